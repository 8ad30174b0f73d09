/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: their heaps, one for each class of sizes, and the addresses that a
 * heap reserves. A released pool keeps both for the next of its number.
 */
#include <stdlib.h>
#include <string.h>

#include "heap/core.h"

tide_status tide__core_add_pool(tide__core *c, uint32_t pool) {
    tide__heap *made[TIDE__CLASSES];
    if (pool >= UINT16_MAX / TIDE__CLASSES) {
        return tide__fail(TIDE_LIMIT, "more than %d pools on one device", UINT16_MAX / TIDE__CLASSES);
    }
    if (c->heaps[pool * TIDE__CLASSES] !=
        NULL) { /* a released pool's heaps, with their addresses, serve the next */
        tide__lock_take(&c->core);
        for (uint32_t kind = 0; kind < TIDE__CLASSES; kind++) {
            c->heaps[pool * TIDE__CLASSES + kind]->live = true;
        }
        tide__lock_drop(&c->core);
        return TIDE_OK;
    }
    for (int kind = 0; kind < TIDE__CLASSES; kind++) {
        made[kind] = calloc(1, sizeof *made[kind]);
        if (made[kind] == NULL) {
            while (kind > 0) {
                free(made[--kind]);
            }
            return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a pool");
        }
    }
    tide__lock_take(&c->core);
    for (int kind = 0; kind < TIDE__CLASSES; kind++) {
        uint16_t number = (uint16_t)(pool * TIDE__CLASSES + (uint32_t)kind);
        made[kind]->number = number;
        made[kind]->size_class = (uint8_t)kind;
        made[kind]->live = true;
        c->heaps[number] = made[kind];
        c->heap_count = (uint16_t)tide__max(c->heap_count, number + 1U);
    }
    tide__lock_drop(&c->core);
    return TIDE_OK;
}

tide__heap *tide__core_heap(tide__core *c, uint32_t pool, uint64_t size) {
    uint32_t k = TIDE__CLASSES - 1;
    while (size < c->tuning.classes[k].from_bytes) {
        k--;
    }
    return c->heaps[pool * TIDE__CLASSES + k];
}

uint64_t tide__core_window(const tide__core *c, const tide__heap *h) {
    uint64_t least = c->tuning.classes[h->size_class].from_bytes;
    least = tide__min(tide__max(least, TIDE__ALIGN_BYTES), TIDE__SMALL_BYTES);
    return UINT64_C(1) << tide__log2_floor(least);
}

/* True when no caller has a block of the heap. Those that await recorded streams
 * were freed: they join the free ones in time. */
static bool heap_is_free(const tide__heap *h) {
    for (const tide__extent *x = h->extents; x != NULL; x = x->next) {
        for (const tide__block *b = x->first; b != NULL; b = b->next) {
            uint8_t state = tide__state_of(b);
            if (state == TIDE__LIVE || state == TIDE__CACHED || state == TIDE__BUSY) {
                return false;
            }
        }
    }
    return true;
}

tide_status tide__core_release_pool(tide__core *c, uint32_t pool) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&c->slow);
    tide__core_flush_caches(c);
    tide__lock_take(&c->core);
    for (uint32_t kind = 0; kind < TIDE__CLASSES; kind++) {
        const tide__heap *h = c->heaps[pool * TIDE__CLASSES + kind];
        if (h->captures > 0) {
            status = tide__fail(TIDE_IN_USE, "a capture allocates from the pool");
        } else if (!heap_is_free(h)) {
            status = tide__fail(TIDE_IN_USE, "the pool has live blocks");
        }
    }
    /* Its free blocks stay in the device's indices: their chunks serve other
     * pools from now on, and trim gives them back. */
    for (uint32_t kind = 0; kind < TIDE__CLASSES && status == TIDE_OK; kind++) {
        tide__heap *h = c->heaps[pool * TIDE__CLASSES + kind];
        h->live = false;
        h->released_epoch = tide__epochs_open_number(&c->epochs);
        c->draining += h->graph;
    }
    tide__lock_drop(&c->core);
    pthread_mutex_unlock(&c->slow);
    return status;
}

/* ---- Addresses ---- */

/* Twice the device for the default pool's larger blocks, so that one extent does for
 * a long time; a unit of the registry for all else, and where addresses run short. */
static tide_status reserve(tide__core *c, const tide__heap *h, uint64_t size, uint64_t *bytes, uint64_t *va) {
    uint64_t unit = UINT64_C(1) << TIDE__REGISTRY_SHIFT, least = tide__align_up(size, unit);
    bool wide = h->size_class > 0 && h->number < TIDE__CLASSES;
    *bytes = tide__max(least, wide ? tide__align_up(2 * c->properties.total_bytes, unit) : unit);
    tide_status status = c->device->ops->reserve(c->device, c->gpu, *bytes, unit, 0, va);
    if (status == TIDE_NO_ADDRESSES && *bytes > least) {
        *bytes = least;
        status = c->device->ops->reserve(c->device, c->gpu, *bytes, unit, 0, va);
    }
    return status;
}

/* The link to an extent of a released pool that is one hole of at least `size`, for a heap
 * of the same class; NULL if there is none. */
static tide__extent **find_unused(tide__core *c, const tide__heap *h, uint64_t size) {
    for (uint32_t i = h->size_class; i < c->heap_count; i += TIDE__CLASSES) {
        tide__heap *other = c->heaps[i];
        for (tide__extent **x = other != NULL && !other->live && !other->graph ? &other->extents : NULL;
             x != NULL && *x != NULL; x = &(*x)->next) {
            tide__block *b = (*x)->first;
            if (tide__state_of(b) == TIDE__HOLE && b->next == NULL && b->size >= size) {
                return x;
            }
        }
    }
    return NULL;
}

/* Addresses of a released pool become the heap's, where no others are left. */
static bool adopt_extent(tide__core *c, tide__heap *h, uint64_t size) {
    tide__lock_take(&c->core);
    tide__extent **link = find_unused(c, h, size);
    if (link != NULL) {
        tide__extent *x = *link;
        tide__block *b = x->first;
        tide__core_remove_hole(c, b);
        *link = x->next;
        x->next = h->extents;
        h->extents = x;
        x->heap = h->number;
        b->heap = h->number;
        tide__core_put_hole(c, b);
    }
    tide__lock_drop(&c->core);
    return link != NULL;
}

/* Enlarges the heap by an extent that holds at least `size`. */
tide_status tide__core_add_extent(tide__core *c, tide__heap *h, uint64_t size) {
    uint64_t va, bytes;
    tide__extent *x;
    tide_status status = reserve(c, h, size, &bytes, &va);
    if (status == TIDE_NO_ADDRESSES && adopt_extent(c, h, size)) {
        return TIDE_OK;
    }
    if (status != TIDE_OK) {
        return status;
    }
    status = tide__extent_create(va, bytes, c->properties.granularity, tide__core_window(c, h), &x);
    if (status == TIDE_OK) {
        tide__lock_take(&c->core);
        if (tide__blocks_reserve(&c->blocks, 1)) {
            tide__block *b = tide__blocks_take(&c->blocks);
            *b = (tide__block){.va = va, .size = bytes, .heap = h->number, .stream = TIDE__STREAM_NONE};
            x->core = c;
            x->heap = h->number;
            x->first = b;
            x->next = h->extents;
            h->extents = x;
            c->address_bytes += bytes;
            tide__registry_add(c->registry, x);
            tide__core_put_hole(c, b);
            tide__lock_drop(&c->core);
            return TIDE_OK;
        }
        tide__lock_drop(&c->core);
        tide__extent_destroy(x);
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
    }
    c->device->ops->unreserve(c->device, c->gpu, va, bytes);
    return status;
}

/* Unmaps every chunk of the extent, mapped or left behind, and gives the addresses back. */
static void extent_close(tide__core *c, tide__extent *x) {
    const tide__device_ops *ops = c->device->ops;
    for (tide__block *b = x->first; b != NULL; b = b->next) {
        if (tide__state_of(b) == TIDE__RETIRING) {
            ops->unmap(c->device, c->gpu, b->va, b->size);
        }
    }
    for (uint64_t va = x->va; va < x->va + x->size;) {
        uint32_t chunk = *tide__extent_chunk_slot(x, va);
        uint64_t step = UINT64_C(1) << x->granule_shift;
        if (chunk != 0) {
            step = c->chunks.items[chunk].size;
            ops->unmap(c->device, c->gpu, va, step);
        }
        va += step;
    }
    ops->unreserve(c->device, c->gpu, x->va, x->size);
    tide__registry_remove(c->registry, x);
    tide__extent_destroy(x);
}

void tide__heap_close(tide__core *c, tide__heap *h) {
    while (h->extents != NULL) {
        tide__extent *x = h->extents;
        h->extents = x->next;
        extent_close(c, x);
    }
    for (size_t i = 0; i < h->index_cap; i++) {
        free(h->index[i]);
    }
    free(h->index);
    free(h);
}
