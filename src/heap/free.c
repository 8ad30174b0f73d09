/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free blocks and holes: the lists and indices they are in, how neighbours
 * join, and how an allocation is cut out. `core` is held throughout.
 */
#include <stdlib.h>
#include <string.h>

#include "heap/core.h"

/* ---- Lists ---- */

void tide__list_push(tide__block **head, tide__block *b) {
    b->list_prev = NULL;
    b->list_next = *head;
    if (*head != NULL) {
        (*head)->list_prev = b;
    }
    *head = b;
}

void tide__list_remove(tide__block **head, tide__block *b) {
    if (b->list_prev != NULL) {
        b->list_prev->list_next = b->list_next;
    } else {
        TIDE__CHECK(*head == b);
        *head = b->list_next;
    }
    if (b->list_next != NULL) {
        b->list_next->list_prev = b->list_prev;
    }
}

static tide__block *first_from(const tide__heap *h, tide__free_walk *w) {
    tide__block *b = NULL;
    for (; b == NULL && w->stream < h->index_cap; w->stream += b == NULL) {
        const tide__index *x = h->index[w->stream];
        b = x != NULL && x->count > 0 ? tide__index_first(x, &w->cursor, w->least) : NULL;
    }
    return b;
}

tide__block *tide__free_first(const tide__heap *h, uint64_t least, tide__free_walk *w) {
    *w = (tide__free_walk){.least = least};
    return first_from(h, w);
}

tide__block *tide__free_next(const tide__heap *h, tide__free_walk *w, const tide__block *b) {
    tide__block *next = tide__index_next(h->index[w->stream], &w->cursor, b);
    if (next == NULL) {
        w->stream++;
        next = first_from(h, w);
    }
    return next;
}

/* ---- Into the lists and out of them ---- */

tide__extent *tide__core_extent(const tide__core *c, const tide__block *b) {
    tide__extent *x = tide__registry_find(c->registry, b->va);
    TIDE__CHECK(x != NULL);
    return x;
}

tide__index *tide__core_make_index(tide__heap *h, uint16_t stream) {
    size_t old = h->index_cap;
    if (!tide__grow((void **)&h->index, &h->index_cap, (size_t)stream + 1, sizeof(tide__index *))) {
        return NULL;
    }
    if (h->index_cap > old) {
        memset(h->index + old, 0, (h->index_cap - old) * sizeof(tide__index *));
    }
    h->index[stream] = calloc(1, sizeof(tide__index));
    return h->index[stream];
}

/* Of a block that is, or may be, in the lists: its index was made before. */
static inline tide__index *index_of(const tide__heap *h, uint16_t stream) { return h->index[stream]; }

void tide__core_remove_free(tide__core *c, tide__block *b) {
    tide__index_remove(index_of(c->heaps[b->heap], b->stream), b);
}

void tide__core_remove_hole(tide__core *c, tide__block *b) {
    tide__heap *h = c->heaps[b->heap];
    tide__list_remove(&h->holes, b);
    h->hole_count--;
}

/* The chunks under a block that a caller freed remember when. Its number stays in
 * the table of blocks: tide__core_find asks the record whether it is still so,
 * which saves a store that would miss the caches. */
static void note_freed(tide__core *c, const tide__block *b) {
    const tide__extent *x = tide__core_extent(c, b);
    for (uint64_t va = b->va; va < b->va + b->size;) {
        tide__chunk *k = &c->chunks.items[*tide__extent_chunk_slot(x, va)];
        k->epoch = tide__max(k->epoch, b->epoch);
        va = k->va + k->size;
    }
}

static bool is_free_of(const tide__block *b, uint16_t stream) {
    return b != NULL && tide__state_of(b) == TIDE__FREE && b->stream == stream;
}

tide__block *tide__core_put_free(tide__core *c, tide__block *b) {
    uint8_t was = tide__state_of(b);
    if (was == TIDE__CACHED || was == TIDE__AWAITING || was == TIDE__LIVE) {
        note_freed(c, b);
    }
    tide__block *before = b->prev, *after = b->next;
    if (is_free_of(before, b->stream)) {
        tide__core_remove_free(c, before);
        before->epoch = tide__max(before->epoch, b->epoch);
        tide__block_join(&c->blocks, before, b);
        b = before;
    }
    if (is_free_of(after, b->stream)) {
        tide__core_remove_free(c, after);
        b->epoch = tide__max(b->epoch, after->epoch);
        tide__block_join(&c->blocks, b, after);
    }
    tide__block_set(b, TIDE__FREE);
    tide__index_insert(index_of(c->heaps[b->heap], b->stream), b);
    return b;
}

void tide__core_put_hole(tide__core *c, tide__block *b) {
    if (b->prev != NULL && tide__state_of(b->prev) == TIDE__HOLE) {
        tide__block *before = b->prev;
        tide__core_remove_hole(c, before);
        tide__block_join(&c->blocks, before, b);
        b = before;
    }
    if (b->next != NULL && tide__state_of(b->next) == TIDE__HOLE) {
        tide__core_remove_hole(c, b->next);
        tide__block_join(&c->blocks, b, b->next);
    }
    tide__block_set(b, TIDE__HOLE);
    tide__heap *h = c->heaps[b->heap];
    tide__list_push(&h->holes, b);
    h->hole_count++;
}

/* The bytes of idle chunks that a block of `size` would pin at the front of free
 * block b, and at its end. Only the chunks at b's two ends can reach out of it,
 * and then they are pinned already. */
typedef struct pinned {
    uint64_t front, end;
} pinned;

static inline const tide__chunk *chunk_at(const tide__core *c, const tide__extent *x, uint64_t va) {
    return &c->chunks.items[*tide__extent_chunk_slot(x, va)];
}

static inline pinned pinned_by(const tide__core *c, const tide__block *b, uint64_t size) {
    const tide__extent *x = tide__core_extent(c, b);
    uint64_t end = b->va + b->size;
    const tide__chunk *first = chunk_at(c, x, b->va), *last = chunk_at(c, x, end - 1);
    uint64_t idle_from = first->va < b->va ? first->va + first->size : b->va;
    uint64_t idle_to = last->va + last->size > end ? last->va : end;
    const tide__chunk *after = chunk_at(c, x, b->va + size - 1), *before = chunk_at(c, x, end - size);
    uint64_t to = tide__min(after->va + after->size, idle_to), from = tide__max(before->va, idle_from);
    return (pinned){to > idle_from ? to - idle_from : 0, idle_to > from ? idle_to - from : 0};
}

static uint64_t least_pinned(const void *core, const tide__block *b, uint64_t size) {
    pinned p = pinned_by(core, b, size);
    return tide__min(p.front, p.end);
}

/* The end of b at which fewer are pinned; the front among equals. */
static bool end_pins_fewer(const tide__core *c, const tide__block *b, uint64_t size) {
    if (b->size == size || b->size < c->properties.granularity || size < TIDE__SMALL_BYTES) {
        return false;
    }
    pinned p = pinned_by(c, b, size);
    return p.end < p.front;
}

/* From this class on, chunks are large enough for the choice to matter more than its time. */
#define SCORED_CLASS 2
#define SCORED_BLOCKS 12

tide__block *tide__core_find_fit(const tide__core *c, const tide__heap *h, const tide__index *x,
                                 uint64_t size) {
    if (h->size_class < SCORED_CLASS) {
        return tide__index_find(x, size);
    }
    return tide__index_find_lowest(x, size, SCORED_BLOCKS, least_pinned, c);
}

tide__block *tide__core_carve(tide__core *c, tide__block *b, uint64_t size, uint16_t stream) {
    tide__extent *x = tide__core_extent(c, b);
    if (end_pins_fewer(c, b, size)) {
        tide__block *front = b;
        b = tide__block_cut(&c->blocks, front, front->size - size);
        tide__block_set(front, TIDE__FREE);
        tide__index_insert(index_of(c->heaps[b->heap], front->stream), front);
    } else if (b->size > size) {
        tide__block *rest = tide__block_cut(&c->blocks, b, size);
        tide__block_set(rest, TIDE__FREE);
        tide__index_insert(index_of(c->heaps[b->heap], rest->stream), rest);
    }
    b->stream = stream;
    tide__block_mark(b, false);
    tide__block_set(b, TIDE__BUSY);
    atomic_store_explicit(tide__extent_block_slot(x, b->va), tide__block_number(b), memory_order_release);
    return b;
}

bool tide__core_usable(tide__core *c, const tide__block *b, uint16_t stream) {
    if (b->stream == stream) {
        return true;
    }
    if (c->heaps[b->heap]->graph) {
        return false; /* events say nothing of what a replay will do */
    }
    if (c->cross_stream == TIDE_CROSS_STREAM_OFF) {
        return b->stream == TIDE__STREAM_NONE;
    }
    return b->epoch <= tide__epochs_done(&c->epochs) ||
           (stream != TIDE__STREAM_NONE && b->epoch <= c->epochs.streams[stream]->waited);
}

/* Joins b with free usable blocks after it; the result is in the index of the
 * stream that still needs its epoch, if one does. */
static void gather_after(tide__core *c, tide__block *b, uint16_t stream) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    /* Putting a join back may have joined it to a block before it that the stream may not use. */
    while (tide__core_usable(c, b, stream) && b->next != NULL && tide__state_of(b->next) == TIDE__FREE &&
           tide__core_usable(c, b->next, stream)) {
        tide__block *after = b->next;
        tide__core_remove_free(c, b);
        tide__core_remove_free(c, after);
        if (b->epoch > done && after->epoch > done) {
            b->stream = stream;
        } else if (after->epoch > done || (b->epoch <= done && after->size > b->size)) {
            b->stream = after->stream;
        }
        b->epoch = tide__max(b->epoch, after->epoch);
        tide__block_join(&c->blocks, b, after);
        b = tide__core_put_free(c, b);
    }
}

void tide__core_gather(tide__core *c, tide__heap *h, uint16_t stream) {
    if (c->cross_stream == TIDE_CROSS_STREAM_OFF || tide__core_index(h, stream) == NULL) {
        return;
    }
    for (size_t s = 0; s < h->index_cap; s++) {
        tide__index *x = h->index[s];
        if (x == NULL || x->count == 0) {
            continue;
        }
        /* A join changes the lists under the walk: begin again after each; a
         * pass with none ends it, and each join leaves one block less. */
        for (bool joined = true; joined;) {
            joined = false;
            tide__index_cursor cursor;
            tide__block *b = tide__index_first(x, &cursor, TIDE__ALIGN_BYTES);
            for (; b != NULL; b = tide__index_next(x, &cursor, b)) {
                const tide__block *after = b->next;
                if (after != NULL && tide__state_of(after) == TIDE__FREE && tide__core_usable(c, b, stream) &&
                    tide__core_usable(c, after, stream)) {
                    gather_after(c, b, stream);
                    joined = true;
                    break;
                }
            }
        }
    }
}
