/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Idle chunks: those under free blocks alone. They are not kept in lists of
 * their own, since that would cost every alloc and free; the slow path, which
 * is about to spend tens of microseconds a chunk in the driver, finds them by
 * walking the larger free blocks.
 *
 * A chunk knows the epoch of the last free over it, which is often older than
 * that of the free block it lies in: that one grew by joining. So a chunk may
 * be idle for everybody in a block that is not, and it may lie across blocks
 * of several streams.
 */
#include <stdlib.h>

#include "heap/plan.h"

/* May the stream use this chunk, that begins in the free block b? */
static bool chunk_usable(tide__core *c, const tide__chunk *k, const tide__block *b, uint16_t stream) {
    bool for_all = k->epoch <= tide__epochs_done(&c->epochs);
    bool owned = stream != TIDE__STREAM_NONE;
    uint16_t heap = b->heap;
    bool waited = owned && k->epoch <= c->epochs.streams[stream]->waited;
    if (stream != TIDE__STREAM_NONE && c->cross_stream == TIDE_CROSS_STREAM_OFF) {
        for_all = waited = false;
    }
    uint64_t end = k->va + k->size;
    bool mixed = false;
    for (const tide__block *first = b; b != NULL && b->va < end; b = b->next) {
        if (tide__state_of(b) != TIDE__FREE) {
            return false;
        }
        owned = owned && b->stream == stream;
        mixed = mixed || b->stream != first->stream;
    }
    if (!for_all && waited && mixed) { /* it would become the taker's: see tide__donors_take */
        return tide__core_index(c->heaps[heap], stream) != NULL;
    }
    return for_all || waited || owned;
}

/* Adds the chunks that begin inside one free block. */
static void collect_block(tide__core *c, tide__plan *p, tide__block *b, uint16_t stream) {
    const tide__extent *x = tide__core_extent(c, b);
    uint64_t granule = UINT64_C(1) << x->granule_shift;
    uint64_t va = tide__align_up(b->va, granule), end = b->va + b->size;
    while (va < end) {
        uint32_t number = *tide__extent_chunk_slot(x, va);
        TIDE__CHECK(number != 0);
        const tide__chunk *k = &c->chunks.items[number];
        bool takeable =
            stream != TIDE__STREAM_NONE || k->aliases == 0; /* the driver wants no old mapping left */
        if (k->va >= b->va && takeable && chunk_usable(c, k, b, stream)) {
            if (!tide__grow((void **)&p->candidates, &p->candidate_cap, p->candidate_count + 1,
                            sizeof *p->candidates)) {
                return;
            }
            p->candidate_bytes += k->size;
            p->candidates[p->candidate_count++] = (tide__candidate){
                .va = k->va, .size = k->size, .epoch = k->epoch, .block = b, .chunk = number};
        } else if (k->va >= b->va && k->va + k->size <= end) {
            p->pending_bytes += k->size;
        }
        va = k->va + k->size;
    }
}

/* Whose chunks may go elsewhere at all. */
static bool lends(const tide__heap *h) { return h != NULL && !h->graph; }

/* The earliest epoch that a chunk waits for which begins in the free block b and
 * has only free blocks over it; `none` where there is none. */
static tide__epoch block_pending(tide__core *c, const tide__block *b, tide__epoch done, tide__epoch none) {
    const tide__extent *x = tide__core_extent(c, b);
    uint64_t va = tide__align_up(b->va, UINT64_C(1) << x->granule_shift), end = b->va + b->size;
    while (va < end) {
        const tide__chunk *k = &c->chunks.items[*tide__extent_chunk_slot(x, va)];
        const tide__block *over = b;
        if (k->va >= b->va && k->epoch > done && k->epoch < none) {
            while (over != NULL && over->va < k->va + k->size && tide__state_of(over) == TIDE__FREE) {
                over = over->next;
            }
            none = over == NULL || over->va >= k->va + k->size ? k->epoch : none;
        }
        va = k->va + k->size;
    }
    return none;
}

tide__epoch tide__donors_pending(tide__core *c) {
    tide__epoch done = tide__epochs_done(&c->epochs), earliest = UINT64_MAX;
    for (uint16_t i = 0; i < c->heap_count; i++) {
        tide__heap *h = c->heaps[i];
        if (h != NULL && h->graph && !h->live) {
            earliest = tide__min(earliest, h->released_epoch);
        }
        tide__free_walk w;
        const tide__block *b = lends(h) ? tide__free_first(h, TIDE__ALIGN_BYTES, &w) : NULL;
        for (; b != NULL; b = tide__free_next(h, &w, b)) {
            earliest = block_pending(c, b, done, earliest);
        }
    }
    return earliest == UINT64_MAX ? 0 : earliest;
}

static int larger_then_older(const void *left, const void *right) {
    const tide__candidate *a = left, *b = right;
    if (a->size != b->size) {
        return a->size > b->size ? -1 : 1;
    }
    if (a->epoch != b->epoch) {
        return a->epoch < b->epoch ? -1 : 1;
    }
    return a->va < b->va ? -1 : a->va > b->va;
}

/* Blocks smaller than this are not looked into for chunks that begin in them,
 * where a taker wants any chunk soon; giving back looks into all. */
#define LEAST_BLOCK_BYTES (512 * TIDE__KIB)

/* A taker needs no more than this to choose from, once it is several times what
 * it needs; more would only cost time. */
#define ENOUGH_CANDIDATES 2048
#define ENOUGH_TIMES 4

static bool has_enough(const tide__plan *p, uint16_t stream) {
    return stream != TIDE__STREAM_NONE && p->candidate_count >= ENOUGH_CANDIDATES &&
           p->candidate_bytes / ENOUGH_TIMES >= p->size;
}

void tide__donors_collect(tide__core *c, tide__plan *p, uint16_t stream) {
    uint64_t least = stream == TIDE__STREAM_NONE ? TIDE__ALIGN_BYTES : LEAST_BLOCK_BYTES;
    p->candidate_count = p->candidate_next = 0;
    p->candidate_bytes = p->pending_bytes = 0;
    for (uint16_t i = c->heap_count; i > 0; i--) { /* the heaps of large chunks first */
        const tide__heap *h = c->heaps[i - 1];
        tide__free_walk w;
        tide__block *b = lends(h) ? tide__free_first(h, least, &w) : NULL;
        for (; b != NULL && !has_enough(p, stream); b = tide__free_next(h, &w, b)) {
            collect_block(c, p, b, stream);
        }
    }
    if (p->candidate_count > 0) {
        qsort(p->candidates, p->candidate_count, sizeof *p->candidates, larger_then_older);
    }
}

tide__candidate *tide__donors_at_most(tide__plan *p, uint64_t most) {
    while (p->candidate_next < p->candidate_count && p->candidates[p->candidate_next].used) {
        p->candidate_next++;
    }
    for (size_t i = p->candidate_next; i < p->candidate_count; i++) {
        if (!p->candidates[i].used && p->candidates[i].size <= most) {
            return &p->candidates[i];
        }
    }
    return NULL;
}

tide__candidate *tide__donors_at_least(tide__plan *p, uint64_t least) {
    tide__candidate *best = NULL;
    for (size_t i = 0; i < p->candidate_count; i++) {
        tide__candidate *k = &p->candidates[i];
        if (!k->used && k->size >= least && (best == NULL || k->size < best->size)) {
            best = k;
        }
    }
    return best;
}

/* As tide__block_join, but the second record is kept, to be walked past. */
static void join_passed(tide__plan *p, tide__block *first, tide__block *second) {
    first->size += second->size;
    first->next = second->next;
    if (second->next != NULL) {
        second->next->prev = first;
    }
    second->list_next = p->passed;
    p->passed = second;
}

void tide__donors_done(tide__core *c, tide__plan *p) {
    while (p->passed != NULL) {
        tide__block *b = p->passed;
        p->passed = b->list_next;
        tide__blocks_give(&c->blocks, b);
    }
    p->candidate_count = 0;
}

tide__block *tide__donors_take(tide__core *c, tide__plan *p, tide__candidate *k) {
    /* Earlier takings may have cut the block or joined its front away: the
     * part in which this chunk begins comes after the record that the
     * candidate names. */
    tide__block *b = k->block;
    while (b->va + b->size <= k->va) {
        b = b->next;
    }
    TIDE__CHECK(tide__state_of(b) == TIDE__FREE && b->va <= k->va);
    uint64_t end = k->va + k->size;
    bool mixed = false;
    tide__core_remove_free(c, b);
    tide__block_set(b, TIDE__BUSY);
    if (k->va > b->va) {
        tide__block *front = b;
        b = tide__block_cut(&c->blocks, front, k->va - front->va);
        tide__core_put_free(c, front);
    }
    if (b->va + b->size > end) {
        tide__core_put_free(c, tide__block_cut(&c->blocks, b, k->size));
    }
    while (b->va + b->size < end) {
        tide__block *after = b->next;
        TIDE__CHECK(after != NULL && tide__state_of(after) == TIDE__FREE);
        tide__core_remove_free(c, after);
        tide__block_set(after, TIDE__BUSY);
        if (after->va + after->size > end) { /* the record stays with the rest: other candidates name it */
            tide__block *front = tide__block_cut_front(&c->blocks, after, end - after->va);
            tide__core_put_free(c, after);
            after = front;
        }
        mixed = mixed || after->stream != b->stream;
        join_passed(p, b, after);
    }
    /* If the plan is undone, bytes of several streams go back as one block: they
     * are the taker's then, who has waited for all of them, and nobody else's. */
    if (mixed && k->epoch > tide__epochs_done(&c->epochs)) {
        b->stream = p->stream->number;
    }
    b->epoch = k->epoch;
    k->used = true;
    return b;
}
