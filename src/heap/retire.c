/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: old mappings whose work is done are unmapped, idle chunks are
 * given to the driver, and blocks that waited for recorded streams become
 * free. All under `slow`; the core lock is taken for the records only.
 */
#include <stdlib.h>
#include <string.h>

#include "heap/plan.h"

/* ---- Old mappings ---- */

/* One that cannot be unmapped stays in the list, to be tried again; it is in
 * nobody's way but its own, so the others are taken. The first failure. */
static tide_status unmap_retired(tide__core *c) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    tide_status first = TIDE_OK;
    for (tide__block *b = c->retiring, *next; b != NULL; b = next) {
        next = b->list_next;
        if (b->epoch > done || c->no_unmaps) {
            continue;
        }
        tide_status status = c->device->ops->unmap(c->device, c->gpu, b->va, b->size);
        if (status != TIDE_OK) {
            first = first == TIDE_OK ? status : first;
            continue;
        }
        tide__trail_add(&c->trail, TIDE__TRAIL_UNMAPPED, b->va, b->size, 0, b->chunk);
        tide__lock_take(&c->core);
        tide__list_remove(&c->retiring, b);
        c->retiring_bytes -= b->size;
        c->chunks.items[b->chunk].aliases--;
        tide__core_put_hole(c, b);
        tide__lock_drop(&c->core);
    }
    return first;
}

static void free_awaiting(tide__core *c) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    tide__lock_take(&c->core);
    if (c->epochs.captures > 0) { /* what a capture recorded has no event before its end */
        done = tide__min(done, c->capture_epoch - 1);
    }
    for (tide__block *b = c->awaiting, *next; b != NULL; b = next) {
        next = b->list_next;
        if (b->epoch <= done) {
            tide__list_remove(&c->awaiting, b);
            c->awaiting_bytes -= b->size;
            tide__core_put_free(c, b);
        }
    }
    tide__lock_drop(&c->core);
}

static tide_status poll(tide__core *c, tide_status *unmapped) {
    atomic_store_explicit(&c->freed_since_cut, 0, memory_order_relaxed);
    tide_status status = tide__epochs_cut(&c->epochs);
    if (status == TIDE_OK || status == TIDE_CAPTURING) {
        status = tide__epochs_poll(&c->epochs);
    }
    if (status == TIDE_OK) {
        free_awaiting(c);
        tide__core_drain_pools(c);
        *unmapped = unmap_retired(c);
    }
    return status;
}

tide_status tide__core_poll(tide__core *c) {
    tide_status unmapped = TIDE_OK;
    return poll(c, &unmapped);
}

tide_status tide__core_poll_strictly(tide__core *c) {
    tide_status unmapped = TIDE_OK;
    tide_status status = poll(c, &unmapped);
    return status != TIDE_OK ? status : unmapped;
}

/* ---- Giving chunks back ---- */

tide_status tide__core_give_back(tide__core *c, tide__block *b, uint64_t *released) {
    tide__extent *x = tide__core_extent(c, b);
    tide_status status = c->device->ops->unmap(c->device, c->gpu, b->va, b->size);
    if (status != TIDE_OK) {
        tide__lock_take(&c->core);
        tide__core_put_free(c, b);
        tide__lock_drop(&c->core);
        return status;
    }
    tide__trail_add(&c->trail, TIDE__TRAIL_GIVEN_BACK, b->va, b->size, 0, *tide__extent_chunk_slot(x, b->va));
    for (uint64_t va = b->va; va < b->va + b->size;) {
        uint32_t number = *tide__extent_chunk_slot(x, va);
        uint64_t size = c->chunks.items[number].size;
        tide__lock_take(&c->core);
        for (uint64_t at = va; at < va + size; at += c->properties.granularity) {
            *tide__extent_chunk_slot(x, at) = 0;
        }
        tide__lock_drop(&c->core);
        tide__chunks_set_spare(&c->chunks, number);
        tide_status gave = tide__chunks_release(&c->chunks, number);
        if (gave == TIDE_OK) {
            *released += size;
        } else {
            status = gave; /* it is spare now: the next slow path uses it or tries again */
        }
        va += size;
    }
    tide__lock_take(&c->core);
    tide__core_put_hole(c, b);
    tide__lock_drop(&c->core);
    return status;
}

/* Takes idle chunks of about `bytes`, BUSY, into `taken`, at most *count; how many. */
#define RELEASE_BATCH 256
#define RELEASE_BATCH_MAX ((size_t)1 << 16)

static tide_status take_idle(tide__core *c, tide__plan *p, uint64_t bytes, tide__block **taken,
                             size_t *count) {
    size_t batch = *count;
    uint64_t sum = 0;
    tide_status status = TIDE_OK;
    *count = 0;
    tide__lock_take(&c->core);
    if (!tide__blocks_reserve(&c->blocks, 2 * batch)) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
    } else {
        tide__donors_collect(c, p, TIDE__STREAM_NONE);
        for (size_t i = 0; i < p->candidate_count && *count < batch && sum < bytes; i++) {
            tide__candidate *k = &p->candidates[i];
            if (c->chunks.items[k->chunk].aliases == 0) {
                sum += k->size;
                taken[(*count)++] = tide__donors_take(c, p, k);
            }
        }
        tide__donors_done(c, p);
    }
    tide__lock_drop(&c->core);
    return status;
}

/* Gives the taken chunks back. One that the driver keeps is in nobody's way: it is
 * free again and the others are tried, unless the device is lost. The first failure. */
static tide_status give_back_all(tide__core *c, tide__block **taken, size_t count, uint64_t *released) {
    tide_status first = TIDE_OK;
    for (size_t i = 0; i < count; i++) {
        if (first == TIDE_DEVICE_LOST || first == TIDE_DEVICE_GONE) {
            tide__lock_take(&c->core);
            tide__core_put_free(c, taken[i]);
            tide__lock_drop(&c->core);
            continue;
        }
        tide_status status = tide__core_give_back(c, taken[i], released);
        first = first == TIDE_OK ? status : first;
    }
    return first;
}

/* One round: spares, then idle chunks, as many as there is room for. */
static tide_status release_some(tide__core *c, uint64_t bytes, tide__block **taken, size_t batch,
                                uint64_t *released) {
    tide_status status = tide__chunks_release_spares(&c->chunks, bytes, released);
    if (*released < bytes) {
        size_t count = batch;
        tide_status took = take_idle(c, c->plan, bytes - *released, taken, &count);
        tide_status gave = give_back_all(c, taken, count, released);
        status = status != TIDE_OK ? status : took != TIDE_OK ? took : gave;
    }
    return status;
}

tide_status tide__core_release_idle(tide__core *c, uint64_t bytes, uint64_t *released) {
    tide__block *few[RELEASE_BATCH], **taken = few, **more = NULL;
    size_t batch = RELEASE_BATCH, cap = 0;
    uint64_t before;
    tide__plan *p;
    tide_status status = tide__core_plan(c, &p);
    if (status != TIDE_OK || c->no_unmaps) {
        return status;
    }
    do { /* what failed in one round is met again in the next, until one gives nothing back */
        before = *released;
        status = release_some(c, bytes, taken, batch, released);
        /* Each round walks all that is free: rounds that double keep the whole linear. */
        if (batch < RELEASE_BATCH_MAX && tide__grow((void **)&more, &cap, 2 * batch, sizeof(tide__block *))) {
            taken = more;
            batch *= 2;
        }
    } while (*released > before && *released < bytes);
    free(more);
    return *released >= bytes ? TIDE_OK : status;
}

/* ---- Trim ---- */

/* Does a caller's block lie over this chunk, that the free block b lies over? */
static bool is_pinned(const tide__block *b, const tide__chunk *k) {
    while (b->va > k->va && tide__state_of(b) != TIDE__LIVE) {
        b = b->prev;
    }
    while (b != NULL && b->va < k->va + k->size && tide__state_of(b) != TIDE__LIVE) {
        b = b->next;
    }
    return b != NULL && b->va < k->va + k->size;
}

/* The bytes of a free block that stayed, by why; those that nobody asked for
 * are neither pinned nor pending. */
static void count_block(tide__core *c, const tide__block *b, tide__epoch done, tide_trim_result *r) {
    const tide__extent *x = tide__core_extent(c, b);
    for (uint64_t va = b->va, to; va < b->va + b->size; va = to) {
        const tide__chunk *k = &c->chunks.items[*tide__extent_chunk_slot(x, va)];
        to = tide__min(k->va + k->size, b->va + b->size);
        if (is_pinned(b, k)) {
            r->pinned_bytes += to - va;
        } else if (k->epoch > done || k->aliases > 0) {
            r->pending_bytes += to - va;
        }
    }
}

void tide__core_count_free(tide__core *c, tide_trim_result *r) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    tide__lock_take(&c->core);
    r->pending_bytes += c->awaiting_bytes;
    for (uint16_t i = 0; i < c->heap_count; i++) {
        const tide__heap *h = c->heaps[i];
        tide__free_walk w;
        const tide__block *b = h != NULL ? tide__free_first(h, TIDE__ALIGN_BYTES, &w) : NULL;
        for (; b != NULL; b = tide__free_next(h, &w, b)) {
            if (h->graph) {
                r->graph_bytes += b->size;
            } else {
                count_block(c, b, done, r);
            }
        }
    }
    tide__lock_drop(&c->core);
}

tide__epoch tide__core_earliest_pending(tide__core *c) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    tide__lock_take(&c->core);
    tide__epoch earliest = tide__donors_pending(c);
    for (const tide__block *b = c->awaiting; b != NULL; b = b->list_next) {
        if (b->epoch > done && (earliest == 0 || b->epoch < earliest)) {
            earliest = b->epoch;
        }
    }
    tide__lock_drop(&c->core);
    return earliest;
}

static tide_status trim_waiting(tide__core *c, uint64_t bytes, uint64_t wait_ns, uint64_t *released) {
    tide_status status = TIDE_OK;
    tide__epoch until = tide__epochs_open_number(&c->epochs) - 1; /* later frees are not this call's */
    uint64_t deadline = tide__add_saturated(c->device->ops->now_ns(c->device), wait_ns);
    while (status == TIDE_OK && *released < bytes) {
        uint64_t now = c->device->ops->now_ns(c->device);
        tide__epoch next = tide__core_earliest_pending(c);
        if (now >= deadline || next == 0 || next > until) {
            break;
        }
        status = tide__epochs_wait(&c->epochs, bytes == UINT64_MAX ? until : next,
                                   deadline == UINT64_MAX ? UINT64_MAX : deadline - now, &c->slow);
        bool over = status == TIDE_CAPTURING; /* no epoch is closed before a capture's end */
        if (status == TIDE_OK || status == TIDE_TIMEOUT || over) { /* what became idle by now counts too */
            status = tide__core_poll_strictly(c);
        }
        if (status == TIDE_OK) {
            status = tide__core_release_idle(c, bytes, released);
        }
        if (over) {
            break;
        }
    }
    return status;
}

tide_status tide__core_trim(tide__core *c, uint64_t bytes, uint64_t wait_ns, tide_trim_result *result) {
    tide_trim_result r = {.struct_size = sizeof r};
    pthread_mutex_lock(&c->slow);
    tide__core_flush_caches(c);
    tide_status status = tide__core_poll_strictly(c);
    if (status == TIDE_OK) {
        status = tide__core_release_idle(c, bytes, &r.released_bytes);
    }
    if (status == TIDE_OK && wait_ns > 0) {
        status = trim_waiting(c, bytes, wait_ns, &r.released_bytes);
    }
    c->peak_live_window = tide__core_live_bytes(c);
    if (status == TIDE_OK && result != NULL) {
        tide__core_count_free(c, &r);
        *result = r;
    }
    pthread_mutex_unlock(&c->slow);
    return status;
}
