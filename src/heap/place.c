/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a block goes that no free block can hold. A run is a row of adjoining
 * blocks that the stream may use, free or hole:
 *
 *     LIVE | FREE  HOLE     FREE  HOLE | LIVE
 *            ^ run                   ^
 *
 * Every run with a hole in it is tried with the new block starting where one
 * of its blocks starts, or ending where one of its free blocks ends, and the
 * place that needs the fewest unbacked bytes wins; among equals, the smallest
 * run, so that large runs stay large.
 */
#include "heap/plan.h"

#define RUN_PIECES 48
#define RUN_STEPS_LEFT 16
#define HOLES_LOOKED_AT 512

typedef struct run {
    tide__block *pieces[RUN_PIECES];
    size_t count;
    uint64_t start, end;
} run;

bool tide__block_is_backed(const tide__core *c, const tide__block *b) {
    return *tide__extent_chunk_slot(tide__core_extent(c, b), b->va) != 0;
}

/* Who names an address has been told that it is free, a graph's too. */
static bool in_run(tide__core *c, const tide__plan *p, const tide__block *b) {
    if (b == NULL) {
        return false;
    }
    uint8_t state = tide__state_of(b);
    return state == TIDE__HOLE ||
           (state == TIDE__FREE && (p->at != 0 || tide__core_serves(p->heap, p->stream)) &&
            tide__core_usable(c, b, p->stream->number));
}

/* The run around a hole; false if it is tried from a hole further left. */
static bool find_run(tide__core *c, const tide__plan *p, tide__block *hole, run *r) {
    tide__block *b = hole;
    for (int step = 0; step < RUN_STEPS_LEFT && in_run(c, p, b->prev); step++) {
        b = b->prev;
        if (tide__state_of(b) == TIDE__HOLE) {
            return false;
        }
    }
    r->start = r->end = b->va;
    r->count = 0;
    for (; r->count < RUN_PIECES && in_run(c, p, b); b = b->next) {
        r->pieces[r->count++] = b;
        r->end = b->va + b->size;
    }
    return true;
}

/* Bytes without chunks, in whole granules, under [at, at + size) of a run. */
static uint64_t unbacked_in(const tide__core *c, const run *r, uint64_t at, uint64_t size) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->count; i++) {
        const tide__block *b = r->pieces[i];
        uint64_t from = tide__max(at, b->va), to = tide__min(at + size, b->va + b->size);
        if (from < to && tide__state_of(b) == TIDE__HOLE) {
            bytes += tide__align_up(to, c->properties.granularity) -
                     tide__align_down(from, c->properties.granularity);
        }
    }
    return bytes;
}

static tide__block *piece_at(const run *r, uint64_t at) {
    size_t i = 0;
    while (i + 1 < r->count && r->pieces[i + 1]->va <= at) {
        i++;
    }
    return r->pieces[i];
}

typedef struct best_place {
    tide__place place;
    uint64_t run_bytes;
    bool found;
} best_place;

static void try_place(const tide__core *c, const run *r, uint64_t at, uint64_t size, best_place *best) {
    if (at < r->start || at > r->end - size) {
        return;
    }
    uint64_t need = unbacked_in(c, r, at, size), run_bytes = r->end - r->start;
    if (!best->found || need < best->place.unbacked ||
        (need == best->place.unbacked && run_bytes < best->run_bytes)) {
        *best = (best_place){{piece_at(r, at), at, need}, run_bytes, true};
    }
}

static void try_run(const tide__core *c, const run *r, uint64_t size, best_place *best) {
    if (r->end - r->start < size) {
        return;
    }
    for (size_t i = 0; i < r->count; i++) {
        const tide__block *b = r->pieces[i];
        try_place(c, r, b->va, size, best);
        if (tide__state_of(b) == TIDE__FREE) {
            try_place(c, r, b->va + b->size - size, size, best);
        }
    }
}

bool tide__place_find(tide__core *c, const tide__plan *p, tide__place *out) {
    best_place best = {.found = false};
    run r;
    int looked = 0;
    /* The bound is for a better place, not for any: more addresses cost more than looking. */
    for (tide__block *hole = p->heap->holes; hole != NULL && (looked < HOLES_LOOKED_AT || !best.found);
         hole = hole->list_next) {
        looked++;
        if (find_run(c, p, hole, &r)) {
            try_run(c, &r, p->size, &best);
        }
    }
    if (best.found) {
        *out = best.place;
    }
    return best.found;
}

bool tide__place_wild(tide__core *c, const tide__plan *p, uint64_t size, tide__place *out) {
    tide__block *widest = NULL;
    for (tide__block *hole = p->heap->holes; hole != NULL; hole = hole->list_next) {
        if (widest == NULL || hole->size > widest->size) {
            widest = hole;
        }
    }
    if (widest == NULL || widest->size < size) {
        return false;
    }
    *out = (tide__place){widest, widest->va, tide__align_up(p->size, c->properties.granularity)};
    return true;
}

tide_status tide__place_exact(tide__core *c, tide__plan *p, tide__place *out) {
    tide__epoch *wait_for = &p->wait_for;
    tide__extent *x = tide__registry_find(c->registry, p->at);
    if (x == NULL || x->core != c || x->heap != p->heap->number || p->at % TIDE__ALIGN_BYTES != 0 ||
        p->size > x->va + x->size - p->at) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "alloc_at %#llx of %llu bytes: not an address of this pool for blocks of this size",
                          (unsigned long long)p->at, (unsigned long long)p->size);
    }
    tide__block *b = x->first;
    while (b->va + b->size <= p->at) {
        b = b->next;
    }
    *out = (tide__place){b, p->at, 0};
    bool blocked = false;
    *wait_for = 0;
    for (; b != NULL && b->va < p->at + p->size; b = b->next) {
        uint8_t state = tide__state_of(b);
        bool freed = (state == TIDE__RETIRING && !c->no_unmaps) || state == TIDE__AWAITING ||
                     (state == TIDE__FREE && c->cross_stream != TIDE_CROSS_STREAM_OFF && !p->heap->graph);
        if (!in_run(c, p, b) && freed) {
            blocked = true;
            *wait_for = tide__max(*wait_for, b->epoch);
        } else if (!in_run(c, p, b)) {
            return tide__fail(TIDE_IN_USE, "alloc_at %#llx of %llu bytes: %#llx is taken",
                              (unsigned long long)p->at, (unsigned long long)p->size,
                              (unsigned long long)b->va);
        }
        if (tide__state_of(b) == TIDE__HOLE) {
            uint64_t from = tide__max(p->at, b->va), to = tide__min(p->at + p->size, b->va + b->size);
            out->unbacked += tide__align_up(to, c->properties.granularity) -
                             tide__align_down(from, c->properties.granularity);
        }
    }
    return blocked ? TIDE_NOT_READY : TIDE_OK;
}

/* Takes a block out of its list; cuts off what lies before `from` and from
 * `to` on, which goes back to a list of its own. */
static tide__block *take_piece(tide__core *c, tide__block *b, uint64_t from, uint64_t to) {
    bool hole = tide__state_of(b) == TIDE__HOLE;
    if (hole) {
        from = tide__align_down(from, c->properties.granularity);
        to = tide__align_up(to, c->properties.granularity);
        tide__core_remove_hole(c, b);
    } else {
        tide__core_remove_free(c, b);
    }
    tide__block_set(b, TIDE__BUSY);
    tide__block_mark(b, false);
    if (from > b->va) {
        tide__block *front = b;
        b = tide__block_cut(&c->blocks, front, from - front->va);
        hole ? tide__core_put_hole(c, front) : (void)tide__core_put_free(c, front);
    }
    if (to < b->va + b->size) {
        tide__block *rest = tide__block_cut(&c->blocks, b, to - b->va);
        hole ? tide__core_put_hole(c, rest) : (void)tide__core_put_free(c, rest);
    }
    return b;
}

void tide__place_take(tide__core *c, tide__plan *p, const tide__place *place, uint64_t bytes) {
    uint64_t end = place->at + bytes;
    tide__block *b = take_piece(c, place->first, place->at, end);
    p->at = place->at;
    p->first = p->last = b;
    while (p->last->va + p->last->size < end) {
        p->last = take_piece(c, p->last->next, p->last->next->va, end);
    }
}

void tide__place_put_back(tide__core *c, tide__plan *p) {
    tide__block *b = p->first;
    for (bool last = false; !last;) {
        tide__block *next = b->next; /* BUSY, so joining does not swallow it, unless b is the last */
        last = b == p->last;
        tide__block_mark(b, false);
        if (tide__state_of(b) == TIDE__RETIRING) { /* see commit_stuck */
        } else if (tide__block_is_backed(c, b)) {
            tide__core_put_free(c, b);
        } else {
            tide__core_put_hole(c, b);
        }
        b = next;
    }
    p->first = p->last = NULL;
}
