/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow path of an allocation: no free block of the stream's own fits.
 *
 *   1. a block that another stream freed and that is idle by now
 *   2. the place that needs the fewest new bytes (place.c), and for those
 *      bytes chunks:
 *        a. new ones, while reserved stays within a slack over peak live
 *        b. idle ones from anywhere on the device, largest first
 *        c. where those left are all larger than what is missing: one is given
 *           back and new ones are created; or reserved grows a little more; or
 *           it is moved whole to a fresh place
 *        d. with cross_stream=wait: the stream waits, on the device, for what
 *           other streams freed, and all begins anew
 *        e. new ones beyond the slack
 *   3. when the device or the limit refuses those: what shortage.c can find
 *
 * Moving a chunk maps it a second time, at its new address; its old range
 * becomes RETIRING and is unmapped when the epoch of its last free is done.
 * The taker's stream may use the new address at once, since what may use the
 * chunk now is exactly what may use the block it came from.
 */
#include <stdlib.h>
#include <string.h>

#include <stdio.h>

#include "heap/plan.h"

typedef struct growth {
    uint64_t target;        /* reserved may grow to this without more ado */
    uint64_t most;          /* ... and to this rather than pin a chunk much larger than what is missing */
    bool beyond;            /* nothing else helped: grow anyway */
    bool wild;              /* at a fresh place, where the last chunk may be larger than needed */
    bool waited;            /* the stream was made to wait already */
    tide__block *give_back; /* BUSY: an idle chunk too large to use, to be exchanged for new ones */
} growth;

/* ---- Free blocks of other streams ---- */

static tide__block *fit_anywhere(tide__core *c, tide__plan *p) {
    tide__heap *h = p->heap;
    tide__block *best = NULL;
    for (size_t s = 0; tide__core_serves(h, p->stream) && s < h->index_cap; s++) {
        tide__block *b = h->index[s] != NULL ? tide__core_find_fit(c, h, h->index[s], p->size) : NULL;
        if (b != NULL && tide__core_usable(c, b, p->stream->number) &&
            (best == NULL || b->size < best->size)) {
            best = b;
        }
    }
    if (best != NULL) {
        tide__core_remove_free(c, best);
        best = tide__core_carve(c, best, p->size, p->stream->number);
    }
    return best;
}

/* ---- Choosing chunks; `core` is held ---- */

static tide_status add_move(tide__plan *p, uint32_t chunk, tide__block *donor) {
    if (!tide__grow((void **)&p->moves, &p->move_cap, p->move_count + 1, sizeof *p->moves)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a plan");
    }
    p->moves[p->move_count++] = (tide__move){.chunk = chunk, .donor = donor};
    return TIDE_OK;
}

/* A chunk for at most `room` bytes of a hole (at least that much, with `wild`
 * and nothing smaller left); its size, or 0 if there is none. */
static tide_status add_donor(tide__core *c, tide__plan *p, uint64_t room, bool larger, uint64_t *size) {
    *size = 0;
    uint32_t spare = tide__chunks_find_spare(&c->chunks, room);
    if (spare != 0) {
        tide_status status = add_move(p, spare, NULL);
        if (status == TIDE_OK) {
            *size = c->chunks.items[spare].size;
            TIDE__CHECK(tide__chunks_unspare(&c->chunks, spare));
        }
        return status;
    }
    tide__candidate *k = tide__donors_at_most(p, room);
    if (k == NULL && larger) {
        k = tide__donors_at_least(p, room);
    }
    if (k == NULL) {
        return TIDE_OK;
    }
    if (!tide__blocks_reserve(&c->blocks, 4)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
    }
    tide_status status = add_move(p, k->chunk, NULL);
    if (status == TIDE_OK) {
        p->moves[p->move_count - 1].donor = tide__donors_take(c, p, k);
        *size = k->size;
    }
    return status;
}

/* Cuts the piece so that the last move's chunk fills its front; the rest, or NULL. */
static tide_status set_target(tide__core *c, tide__plan *p, tide__block *piece, uint64_t size,
                              tide__block **rest) {
    *rest = NULL;
    if (size < piece->size) {
        if (!tide__blocks_reserve(&c->blocks, 4)) {
            return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
        }
        *rest = tide__block_cut(&c->blocks, piece, size);
        if (p->last == piece) {
            p->last = *rest;
        }
    }
    tide__block_mark(piece, true);
    p->moves[p->move_count - 1].target = piece;
    return TIDE_OK;
}

/* Fills the holes among the pieces with idle chunks, as far as they go. Holes
 * left over stay without a target; their bytes in *missing. */
static tide_status fill_with_donors(tide__core *c, tide__plan *p, uint64_t need, bool wild,
                                    uint64_t *missing) {
    tide_status status = TIDE_OK;
    *missing = 0;
    for (tide__block *b = p->first; b != NULL && status == TIDE_OK; b = b == p->last ? NULL : b->next) {
        if (tide__block_is_backed(c, b)) {
            continue;
        }
        uint64_t size;
        uint64_t room = wild ? tide__min(need, b->size) : b->size;
        if (room == 0) {
            continue;
        }
        status = add_donor(c, p, room, wild, &size);
        if (status != TIDE_OK || size == 0) {
            *missing += room;
            need -= wild ? room : 0;
            continue;
        }
        need -= wild ? tide__min(size, need) : 0;
        tide__block *rest;
        status = set_target(c, p, b, size, &rest);
    }
    return status;
}

/* The size of new chunks for a class: smaller on a device that holds little,
 * where one chunk pinned by a survivor would be a larger share. */
static uint64_t usual_chunk(const tide__core *c, const tide__heap *h) {
    uint64_t share = c->peak_live_window / c->tuning.chunk_share;
    uint64_t size =
        tide__min(c->tuning.classes[h->size_class].chunk_bytes, tide__max(share, c->tuning.chunk_floor));
    return tide__align_up(tide__max(size, 1), c->properties.granularity);
}

/* New chunks for the holes that are left. */
static tide_status fill_with_new(tide__core *c, tide__plan *p) {
    uint64_t usual = usual_chunk(c, p->heap);
    for (tide__block *b = p->first; b != NULL; b = b == p->last ? NULL : b->next) {
        if (tide__block_marked(b) || tide__block_is_backed(c, b)) {
            continue;
        }
        tide__block *rest;
        tide_status status = add_move(p, 0, NULL);
        if (status == TIDE_OK) {
            status = set_target(c, p, b, tide__min(usual, b->size), &rest);
        }
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

/* Puts donors and pieces of an unfinished plan back where they were. */
static void undo(tide__core *c, tide__plan *p) {
    for (size_t i = 0; i < p->move_count; i++) {
        tide__move *m = &p->moves[i];
        if (m->done) {
            continue;
        }
        if (m->donor != NULL) {
            tide__core_put_free(c, m->donor);
        } else if (m->chunk != 0) {
            tide__chunks_set_spare(&c->chunks, m->chunk);
        }
    }
    p->move_count = 0;
    if (p->first != NULL) {
        tide__place_put_back(c, p);
    }
}

/* ---- Doing it; only `slow` is held ---- */

static tide_status map_moves(tide__core *c, tide__plan *p) {
    for (size_t i = 0; i < p->move_count; i++) {
        tide__move *m = &p->moves[i];
        if (m->chunk == 0) {
            uint32_t made;
            tide_status status = tide__chunks_create(&c->chunks, m->target->size, &made);
            if (status != TIDE_OK) {
                return status;
            }
            TIDE__CHECK(tide__chunks_unspare(&c->chunks, made));
            m->chunk = made;
        }
        tide_status status = tide__chunks_map(&c->chunks, m->chunk, m->target->va, &m->stuck);
        if (status != TIDE_OK) {
            return status;
        }
        m->done = true;
        if (m->donor != NULL) {
            tide__trail_add(&c->trail, TIDE__TRAIL_MOVED, m->donor->va, m->donor->size, m->target->va,
                            m->chunk);
        }
    }
    return TIDE_OK;
}

/* A mapping that could be neither used nor taken away: its range retires, to be
 * tried again, and the chunk stays where it was. */
static void commit_stuck(tide__core *c, const tide__move *m) {
    c->chunks.items[m->chunk].aliases++;
    tide__block_set(m->target, TIDE__RETIRING);
    tide__block_mark(m->target, false);
    m->target->chunk = m->chunk;
    m->target->epoch = 0;
    tide__list_push(&c->retiring, m->target);
    c->retiring_bytes += m->target->size;
}

/* The records follow what was mapped. `core` is held. */
static void commit_moves(tide__core *c, tide__plan *p) {
    for (size_t i = 0; i < p->move_count; i++) {
        tide__move *m = &p->moves[i];
        if (m->stuck) {
            commit_stuck(c, m);
        }
        if (!m->done) {
            continue;
        }
        tide__chunk *k = &c->chunks.items[m->chunk];
        tide__extent *x = tide__core_extent(c, m->target);
        m->target->stream = p->stream->number;
        m->target->epoch = 0;
        if (m->donor != NULL) {
            tide__extent *from = tide__core_extent(c, m->donor);
            for (uint64_t va = k->va; va < k->va + k->size; va += c->properties.granularity) {
                *tide__extent_chunk_slot(from, va) = 0;
            }
            m->target->epoch = k->epoch;
            m->donor->epoch = k->epoch;
            k->aliases++;
            tide__block_set(m->donor, TIDE__RETIRING);
            m->donor->chunk = m->chunk;
            tide__list_push(&c->retiring, m->donor);
            c->retiring_bytes += k->size;
            c->chunks.moves++;
            c->chunks.moved_bytes += k->size;
        }
        k->va = m->target->va;
        for (uint64_t va = k->va; va < k->va + k->size; va += c->properties.granularity) {
            *tide__extent_chunk_slot(x, va) = m->chunk;
        }
    }
}

/* The pieces become one LIVE block; what reaches beyond it becomes FREE. */
static tide__block *join_pieces(tide__core *c, tide__plan *p) {
    tide__epoch epoch = 0;
    tide__block *b = p->first;
    for (;;) {
        epoch = tide__max(epoch, b->epoch);
        if (b == p->last) {
            break;
        }
        b = b->next;
    }
    b = p->first;
    bool only = p->first == p->last;
    while (!only) {
        only = b->next == p->last;
        tide__block_join(&c->blocks, b, b->next);
    }
    b->stream = p->stream->number;
    b->epoch = epoch;
    if (b->va < p->at) {
        tide__block *front = b;
        b = tide__block_cut(&c->blocks, front, p->at - front->va);
        tide__core_put_free(c, front);
    }
    if (b->size > p->size) {
        tide__core_put_free(c, tide__block_cut(&c->blocks, b, p->size));
    }
    return tide__core_carve(c, b, p->size, p->stream->number);
}

static tide_status execute(tide__core *c, tide__plan *p, tide__block **out) {
    tide_status status = map_moves(c, p);
    tide__lock_take(&c->core);
    commit_moves(c, p);
    if (status == TIDE_OK && !tide__blocks_reserve(&c->blocks, 4)) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
    }
    if (status != TIDE_OK) {
        undo(c, p);
    } else {
        *out = join_pieces(c, p);
    }
    tide__lock_drop(&c->core);
    return status;
}

/* ---- Deciding ---- */

/* What is asked for by callers at its highest since the last trim, and the
 * slack over it: so much may be reserved before dearer ways are tried. */
static uint64_t growth_target(tide__core *c, uint64_t size) {
    uint64_t live = tide__core_live_bytes(c) + size;
    c->peak_live_window = tide__max(c->peak_live_window, live);
    uint64_t slack = c->peak_live_window / 1000 * c->tuning.slack_per_mille;
    return c->peak_live_window + slack + c->tuning.slack_bytes;
}

typedef enum verdict { DO_IT, AGAIN, NO_ROOM, FAILED } verdict;

/* Finds the place; `core` is held. */
static verdict choose_place(tide__core *c, tide__plan *p, const growth *g, bool exact, tide_status *status,
                            uint64_t *need) {
    tide__place place;
    uint64_t bytes = p->size;
    if (exact) {
        *status = tide__place_exact(c, p, &place);
        if (*status != TIDE_OK) {
            return FAILED;
        }
    } else if (g->wild) {
        bytes = p->size + TIDE__GIB; /* room for a chunk larger than needed; the rest is put back */
        if (!tide__place_wild(c, p, bytes, &place)) {
            return NO_ROOM;
        }
    } else if (!tide__place_find(c, p, &place)) {
        return NO_ROOM;
    }
    tide__place_take(c, p, &place, bytes);
    *need = place.unbacked;
    return DO_IT;
}

/* In a fresh place more addresses were taken than the chunks fill: the last
 * piece is a hole that nothing goes to. */
static void trim_tail(tide__core *c, tide__plan *p) {
    if (tide__block_marked(p->last)) {
        return;
    }
    tide__block *tail = p->last;
    uint64_t end = tide__align_up(p->at + p->size, c->properties.granularity);
    if (tail->va < end) {
        if (tail->va + tail->size <= end) {
            return;
        }
        tail = tide__block_cut(&c->blocks, tail, end - tail->va);
    } else {
        p->last = tail->prev;
    }
    tide__core_put_hole(c, tail);
}

/* A chunk so much larger than what is missing that a new block would pin too
 * much of it, idle for everybody, so that the driver can have it. */
static tide__candidate *exchangeable(tide__core *c, tide__plan *p, uint64_t missing) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    uint64_t usual = usual_chunk(c, p->heap);
    if (c->no_unmaps || !tide__blocks_reserve(&c->blocks, 4)) {
        return NULL;
    }
    for (size_t i = p->candidate_count; i > 0; i--) {
        tide__candidate *k = &p->candidates[i - 1];
        if (!k->used && k->epoch <= done && k->size >= missing && k->size > usual &&
            c->chunks.items[k->chunk].aliases == 0) {
            return k;
        }
    }
    return NULL;
}

/* A capture's work runs whenever its graph is launched, in no stream's order:
 * it gets what is idle for everybody, and so does all else in its pool. */
static bool is_captured(const tide__stream_cache *s) { return atomic_load(&s->capture_pool) != 0; }

static void collect_donors(tide__core *c, tide__plan *p) {
    bool captured = is_captured(p->stream) || p->heap->graph;
    if (c->no_moves) {
        return;
    }
    if (!captured) {
        tide__donors_collect(c, p, p->stream->number);
    } else if (c->cross_stream != TIDE_CROSS_STREAM_OFF) {
        tide__donors_collect(c, p, TIDE__STREAM_NONE);
    }
}

/* Idle chunks do not do, and new ones would pass the target: the plan is undone and
 * another way is tried, the dearer the later. */
static tide_status another_way(tide__core *c, tide__plan *p, growth *g, bool exact, uint64_t reserved,
                               uint64_t missing) {
    tide__candidate *larger =
        tide__donors_at_least(p, 1); /* those left are all larger than what is missing */
    tide__candidate *idle = exchangeable(c, p, missing);
    g->give_back = idle != NULL ? tide__donors_take(c, p, idle) : NULL;
    undo(c, p);
    if (g->give_back != NULL) {
        return TIDE_OK;
    }
    if (larger != NULL && larger->size > 2 * missing && reserved + missing <= g->most) {
        g->beyond = true;
    } else if (larger != NULL && !g->wild && !exact) {
        g->wild = true;
    } else if (c->cross_stream == TIDE_CROSS_STREAM_WAIT && !g->waited && !is_captured(p->stream)) {
        g->wild = false;
        g->waited = true;
        return TIDE_NOT_READY; /* the caller waits, without the lock */
    } else {
        g->wild = false;
        g->beyond = true;
    }
    return TIDE_OK;
}

/* Free neighbours that the stream may both use become one, in all heaps whose chunks may move. */
static void gather_all(tide__core *c, uint16_t stream) {
    for (uint16_t i = 0; i < c->heap_count; i++) {
        if (c->heaps[i] != NULL && c->heaps[i]->size_class != 0 && !c->heaps[i]->graph) {
            tide__core_gather(c, c->heaps[i], stream);
        }
    }
}

/* One attempt under `core`: a block found whole, or a plan to execute. */
static verdict make_plan(tide__core *c, tide__plan *p, growth *g, bool exact, tide_status *status,
                         tide__block **out) {
    p->move_count = 0;
    p->first = p->last = NULL;
    if (!tide__blocks_reserve(&c->blocks, 8)) { /* for all that follows up to the choice of chunks */
        *status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
        *out = NULL;
        return FAILED;
    }
    gather_all(c, p->stream->number);
    *out = exact ? NULL : fit_anywhere(c, p);
    if (*out != NULL) {
        return DO_IT;
    }
    uint64_t need = 0, missing = 0;
    verdict v = choose_place(c, p, g, exact, status, &need);
    if (v != DO_IT) {
        return v;
    }
    uint64_t reserved = atomic_load(&c->chunks.reserved_bytes);
    uint64_t pending =
        0; /* what nobody but its own stream could have: no allocator that does not wait can do without */
    p->candidate_count = 0;
    if (reserved + need > g->target) {
        collect_donors(c, p);
        pending = c->cross_stream == TIDE_CROSS_STREAM_WAIT ? 0 : p->pending_bytes;
    }
    *status = fill_with_donors(c, p, need, g->wild, &missing);
    if (*status == TIDE_OK && g->wild) {
        trim_tail(c, p);
    }
    if (*status == TIDE_OK && missing > 0 && !g->beyond && reserved + missing > g->target + pending) {
        *status = another_way(c, p, g, exact, reserved - tide__min(reserved, pending), missing);
        return AGAIN;
    }
    if (*status == TIDE_OK && missing > 0) {
        *status = fill_with_new(c, p);
    }
    if (*status != TIDE_OK) {
        undo(c, p);
        return FAILED;
    }
    return DO_IT;
}

/* What an allocation asks of the slow path. The plan belongs to whoever holds
 * `slow`, which is dropped while the host waits: it is filled in from this anew. */
typedef struct request {
    tide__heap *heap;
    tide__stream_cache *stream;
    uint64_t size, at; /* at 0: anywhere */
    uint64_t deadline; /* of all waits of the host for it together */
} request;

static verdict attempt(tide__core *c, tide__plan *p, const request *r, growth *g, tide_status *status,
                       tide__block **out) {
    verdict v = FAILED;
    p->heap = r->heap;
    p->stream = r->stream;
    p->size = r->size;
    p->at = r->at;
    tide__lock_take(&c->core);
    if (!r->heap->live) {
        *status = tide__fail(TIDE_BAD_HANDLE, "the pool was released during the call");
    } else {
        v = make_plan(c, p, g, r->at != 0, status, out);
        tide__donors_done(c, p);
    }
    tide__lock_drop(&c->core);
    return v;
}

/* For an address whose blocks were freed: the host waits for what they wait for,
 * once. What is still not there then (a capture holds it) is refused. */
static tide_status wait_for_place(tide__core *c, const tide__plan *p, uint64_t deadline,
                                  tide__epoch *waited) {
    unsigned long long at = p->at; /* the plan is another's while this one waits */
    if (p->wait_for <= *waited) {
        return c->epochs.captures > 0
                   ? tide__fail(TIDE_CAPTURING, "alloc_at %#llx: freed during a capture that has not ended",
                                at)
                   : tide__fail(TIDE_IN_USE, "alloc_at %#llx: another stream's", at);
    }
    *waited = p->wait_for;
    tide_status status = tide__epochs_wait(&c->epochs, *waited, tide__core_time_left(c, deadline), &c->slow);
    if (status == TIDE_TIMEOUT) {
        return tide__fail(TIDE_NOT_READY, "alloc_at %#llx: freed, but queued work may still use it", at);
    }
    return status == TIDE_OK ? tide__core_poll_strictly(c) : status;
}

static tide_status back_once(tide__core *c, tide__plan *p, const request *r, tide__block **out) {
    tide__epoch waited = 0;
    growth g = {.target = growth_target(c, r->size)};
    g.most = c->peak_live_window / 1000 * (1000 + c->tuning.most_per_mille) + c->tuning.most_bytes;
    for (;;) {
        tide_status status = TIDE_OK;
        verdict v = attempt(c, p, r, &g, &status, out);
        if (v == DO_IT) {
            return *out != NULL ? TIDE_OK : execute(c, p, out);
        }
        if (v == FAILED && status == TIDE_NOT_READY) {
            status = wait_for_place(c, p, r->deadline, &waited);
        } else if (v == AGAIN && g.give_back != NULL) {
            uint64_t released = 0;
            status = tide__core_give_back(c, g.give_back, &released);
            g.give_back = NULL;
        } else if (v == NO_ROOM) {
            status = tide__core_add_extent(c, r->heap, r->size + TIDE__GIB);
            if (status == TIDE_NO_ADDRESSES && g.wild) { /* a thrift, for which no addresses are left */
                g.wild = false;
                g.beyond = true;
                status = TIDE_OK;
            }
        } else if (v == AGAIN && status == TIDE_NOT_READY) {
            status =
                tide__epochs_stream_wait(&c->epochs, r->stream->number, tide__epochs_open_number(&c->epochs));
            status = status == TIDE_CAPTURING ? TIDE_OK : status; /* then it grows instead */
        }
        if (status != TIDE_OK) {
            return status;
        }
    }
}

static bool is_out_of_memory(tide_status status) {
    return status == TIDE_NO_DEVICE_MEMORY || status == TIDE_LIMIT;
}

tide_status tide__core_plan(tide__core *c, tide__plan **out) {
    if (c->plan == NULL && (c->plan = calloc(1, sizeof *c->plan)) == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a plan");
    }
    *out = c->plan;
    return TIDE_OK;
}

void tide__plan_free(tide__plan *p) {
    if (p != NULL) {
        free(p->moves);
        free(p->candidates);
        free(p);
    }
}

/* What was taken from the device for a block that did not fit after all is another's again. */
static void give_up(tide__core *c, uint64_t before) {
    uint64_t now = atomic_load(&c->chunks.reserved_bytes), released = 0;
    if (now > before) {
        tide__core_release_idle(c, now - before, &released); /* a failure leaves them for the next call */
    }
}

tide_status tide__core_back(tide__core *c, tide__heap *heap, tide__stream_cache *s, uint64_t size,
                            uint64_t at, tide__block **out) {
    tide__plan *p;
    tide_status status = tide__core_plan(c, &p);
    if (status != TIDE_OK) {
        return status;
    }
    uint64_t now = c->device->ops->now_ns(c->device);
    const request r = {heap, s, size, at, tide__add_saturated(now, c->oom_wait_ns)};
    uint64_t before = atomic_load(&c->chunks.reserved_bytes);
    status = back_once(c, p, &r, out);
    tide__shortage shortage;
    tide__shortage_begin(c, size + 2 * c->properties.granularity, r.deadline, &shortage);
    while (is_out_of_memory(status)) {
        char reason[512]; /* the steps below fail too, which is no news */
        snprintf(reason, sizeof reason, "%s", tide_last_error());
        if (!tide__shortage_relieve(c, &shortage, status)) {
            c->ooms++;
            give_up(c, before);
            return tide__oom_tell(c, status, size, reason);
        }
        status = back_once(c, p, &r, out);
    }
    return status;
}
