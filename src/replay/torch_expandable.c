/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_expandable: PyTorch's expandable segments. A stream's pool reserves
 * addresses of 9/8 of the device's size and puts pages (20 MiB; 2 MiB in the
 * small pool) behind them as it grows:
 *
 *     | used | free | used | free, mapped | addresses without pages ........ |
 *                                          ^ unmapped: one block
 *
 * An allocation that nothing fits takes the lowest run of free and unmapped
 * blocks with room enough and maps what is missing. A release unmaps the whole
 * pages inside each free block; pages at its ends that are partly used stay,
 * and free blocks of less than a page with them. That is what fragments here.
 */
#include <stdlib.h>

#include "replay/torch_heap.h"

static uint64_t page_size(const tide__torch_heap *h, const tide__torch_arena *a) {
    return a->pool->is_small ? TIDE__TORCH_SMALL_SEGMENT : h->settings->large_segment_size;
}

static tide_status no_host_memory(void) {
    return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for an expandable segment");
}

/* ---- Pages ---- */

/* Creates the pages of [first, end), or none of them. */
static tide_status create_pages(tide__torch_heap *h, tide__torch_segment *s, uint64_t page, uint64_t first,
                                uint64_t end) {
    tide__device *d = h->device;
    for (uint64_t i = first; i < end; i++) {
        tide_status status = d->ops->chunk_create(d, 0, page, &s->chunks[i]);
        if (status == TIDE_OK) continue;
        while (i-- > first) {
            d->ops->chunk_release(d, 0, s->chunks[i]);
            s->chunks[i] = 0;
        }
        return status;
    }
    return TIDE_OK;
}

/* Puts pages behind [addr, addr + size), which begins and ends on pages. */
tide_status tide__torch_map_pages(tide__torch_heap *h, tide__torch_segment *s, uint64_t page, uint64_t addr,
                                  uint64_t size) {
    tide__device *d = h->device;
    uint64_t first = (addr - s->base) / page, end = first + size / page;
    tide_status status = create_pages(h, s, page, first, end);
    for (uint64_t i = first; status == TIDE_OK && i < end; i++)
        status = d->ops->map(d, 0, s->device_va + i * page, page, s->chunks[i]);
    if (status == TIDE_OK) status = d->ops->set_access(d, 0, s->device_va + first * page, size);
    return status;
}

static tide_status unmap_pages(tide__torch_heap *h, tide__torch_segment *s, uint64_t page, uint64_t addr,
                               uint64_t size) {
    tide__device *d = h->device;
    uint64_t first = (addr - s->base) / page, end = first + size / page;
    for (uint64_t i = first; i < end; i++) {
        tide_status status = d->ops->unmap(d, 0, s->device_va + i * page, page);
        if (status == TIDE_OK) status = d->ops->chunk_release(d, 0, s->chunks[i]);
        if (status != TIDE_OK) return status;
        s->chunks[i] = 0;
    }
    return TIDE_OK;
}

/* ---- Growing ---- */

uint64_t tide__torch_window_size(const tide__torch_heap *h, uint64_t page, uint64_t need) {
    uint64_t want = tide__max(h->device_bytes + h->device_bytes / 8, need);
    return (want + page - 1) / page * page;
}

/* A window of a segment that is gone: reserved addresses are kept, since sim hands none out twice. */
static tide__torch_segment *take_window(tide__torch_heap *h, uint64_t page, uint64_t size) {
    for (tide__torch_segment **link = &h->windows; *link != NULL; link = &(*link)->next_all) {
        tide__torch_segment *s = *link;
        if (s->page != page || s->size != size) continue;
        *link = s->next_all;
        tide__torch_segment_list(h, s);
        return s;
    }
    return NULL;
}

tide_status tide__torch_window_new(tide__torch_heap *h, uint64_t page, uint64_t size,
                                   tide__torch_segment **out) {
    tide__torch_segment *s = take_window(h, page, size);
    if (s != NULL) {
        *out = s;
        return TIDE_OK;
    }
    uint64_t va;
    tide_status status = h->device->ops->reserve(h->device, 0, size, page, 0, &va);
    /* More streams and pools than the process has addresses for: PyTorch ends there. */
    if (status == TIDE_NO_ADDRESSES)
        return tide__fail(TIDE_NO_DEVICE_MEMORY, "replay: no addresses are left");
    if (status != TIDE_OK) return status;
    s = tide__torch_segment_new(h, va, size);
    if (s != NULL) s->chunks = calloc(size / page, sizeof *s->chunks);
    if (s == NULL || s->chunks == NULL) {
        if (s != NULL) tide__torch_segment_delete(h, s);
        return no_host_memory();
    }
    s->device_va = va;
    s->page = page;
    *out = s;
    return TIDE_OK;
}

static void give_window(tide__torch_heap *h, tide__torch_segment *s) {
    tide__torch_segment_unlist(h, s);
    s->next_all = h->windows;
    h->windows = s;
}

static tide_status add_segment(tide__torch_heap *h, tide__torch_arena *a, uint64_t need,
                               tide__torch_block **out) {
    uint64_t page = page_size(h, a);
    tide__torch_segment *s = NULL;
    tide_status status = tide__torch_window_new(h, page, tide__torch_window_size(h, page, need), &s);
    if (status != TIDE_OK) return status;
    s->base = h->hint != 0 ? h->hint : s->device_va;
    h->hint = 0;
    tide__torch_block *b = tide__torch_block_new(h, a, s, s->base, s->size);
    if (b == NULL || !tide__torch_unmapped_room(a, 1)) return no_host_memory();
    b->mapped = 0;
    tide__torch_unmapped_add(a, b);
    *out = b;
    return TIDE_OK;
}

/* Whether the unused blocks from b on, mapped or not, have room. */
static bool has_room(const tide__torch_block *b, uint64_t size) {
    uint64_t bytes = 0;
    for (; bytes < size && b != NULL && !b->used; b = b->next) bytes += b->node.size;
    return bytes >= size;
}

/* The lowest run of unused blocks with room that has addresses without pages in it, or a new segment. */
static tide_status find_run(tide__torch_heap *h, tide__torch_arena *a, uint64_t size,
                            tide__torch_block **out) {
    for (size_t i = 0; i < a->unmapped_count; i++) {
        tide__torch_block *b = a->unmapped[i];
        if (b->prev != NULL && !b->prev->used) b = b->prev;
        if (has_room(b, size)) {
            *out = b;
            return TIDE_OK;
        }
    }
    return add_segment(h, a, size, out);
}

/* Maps the first `size` bytes of an unmapped block, in whole pages, and joins it with free neighbours. */
static tide_status map_block(tide__torch_heap *h, tide__torch_block *b, uint64_t size) {
    tide__torch_arena *a = b->arena;
    uint64_t page = page_size(h, a), bytes = (size + page - 1) / page * page;
    tide__torch_block *rest = NULL;
    if (bytes < b->node.size) {
        rest = tide__torch_block_new(h, a, b->segment, b->node.addr + bytes, b->node.size - bytes);
        if (rest == NULL || !tide__torch_unmapped_room(a, 1)) return no_host_memory();
    }
    tide_status status = tide__torch_map_pages(h, b->segment, page, b->node.addr, bytes);
    if (status != TIDE_OK) {
        if (rest != NULL) tide__torch_block_delete(h, rest);
        return status;
    }
    tide__torch_unmapped_remove(a, b);
    b->mapped = 1;
    if (rest != NULL) {
        rest->mapped = 0;
        tide__torch_link(rest, b, b->next);
        b->node.size = bytes;
        tide__torch_unmapped_add(a, rest);
    }
    tide__torch_merge(h, b, b->prev);
    tide__torch_merge(h, b, b->next);
    tide__torch_index_add(b);
    tide__torch_reserved_add(h, bytes);
    return TIDE_OK;
}

/* What was mapped before a failure stays, free, as in PyTorch. */
static tide_status obtain(tide__torch_heap *h, tide__torch_arena *a, uint64_t size, tide__torch_block **out) {
    tide__torch_block *b = NULL;
    tide_status status = find_run(h, a, size, &b);
    if (status == TIDE_OK && !b->mapped) status = map_block(h, b, tide__min(b->node.size, size));
    while (status == TIDE_OK && b->node.size < size) {
        tide__torch_block *next = b->next;
        status = map_block(h, next, tide__min(size - b->node.size, next->node.size));
        b = next;
    }
    if (status != TIDE_OK) return status;
    tide__torch_index_remove(b);
    *out = b;
    return TIDE_OK;
}

/* ---- Giving back ---- */

/* Cuts what lies outside [addr, end) off a free block, as free blocks of their own. */
static bool cut_ends(tide__torch_heap *h, tide__torch_block *b, uint64_t addr, uint64_t end) {
    uint64_t before = addr - b->node.addr, after = b->node.addr + b->node.size - end;
    tide__torch_block *front = NULL, *back = NULL;
    if (before > 0) front = tide__torch_block_new(h, b->arena, b->segment, b->node.addr, before);
    if (after > 0) back = tide__torch_block_new(h, b->arena, b->segment, end, after);
    if ((before > 0 && front == NULL) || (after > 0 && back == NULL)) return false;
    tide__torch_index_remove(b);
    b->node.addr = addr;
    b->node.size = end - addr;
    if (front != NULL) {
        tide__torch_link(front, b->prev, b);
        tide__torch_index_add(front);
    }
    if (back != NULL) {
        tide__torch_link(back, b, b->next);
        tide__torch_index_add(back);
    }
    return true;
}

/* Unmaps the whole pages of a free block. */
static tide_status unmap_block(tide__torch_heap *h, tide__torch_block *b) {
    tide__torch_segment *s = b->segment;
    uint64_t page = page_size(h, b->arena), offset = b->node.addr - s->base;
    uint64_t first = (offset + page - 1) / page * page, end = (offset + b->node.size) / page * page;
    if (first >= end) return TIDE_OK;
    if (!tide__torch_unmapped_room(b->arena, 1) || !cut_ends(h, b, s->base + first, s->base + end))
        return no_host_memory();
    tide_status status = unmap_pages(h, s, page, b->node.addr, b->node.size);
    if (status != TIDE_OK) return status;
    h->reserved -= b->node.size;
    b->mapped = 0;
    tide__torch_merge(h, b, b->prev);
    tide__torch_merge(h, b, b->next);
    tide__torch_unmapped_add(b->arena, b);
    if (!tide__torch_is_whole(b)) return TIDE_OK;
    /* No page is left: the addresses go, too. */
    tide__torch_unmapped_remove(b->arena, b);
    give_window(h, s);
    tide__torch_block_delete(h, b);
    return TIDE_OK;
}

/* Unmapping makes free blocks of less than a page, which are not to be looked at again: gathered first. */
static tide_status release_arena(tide__torch_heap *h, tide__torch_arena *a) {
    tide__torch_block **list = NULL;
    size_t count = 0, cap = 0;
    tide_status status = TIDE_OK;
    for (tide__free_node *n = tide__free_index_at_least(&a->free, page_size(h, a), 0); n != NULL;
         n = tide__free_index_next(&a->free, n)) {
        if (!tide__grow((void **)&list, &cap, count + 1, sizeof *list)) {
            status = no_host_memory();
            break;
        }
        list[count++] = tide__torch_of_node(n);
    }
    for (size_t i = 0; status == TIDE_OK && i < count; i++) status = unmap_block(h, list[i]);
    free(list);
    return status;
}

/* An arena where nothing became free since the last release has no whole page left to give. */
static tide_status release(tide__torch_heap *h, tide__torch_pool *p) {
    tide_status status = TIDE_OK;
    while (status == TIDE_OK && p->touched != NULL) {
        tide__torch_arena *a = p->touched;
        status = release_arena(h, a);
        p->touched = a->next_touched;
        a->touched = false;
    }
    return status;
}

const tide__torch_backend tide__torch_expandable = {true, obtain, release};
