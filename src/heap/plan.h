/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: what one slow path is about to do.
 *
 *   pieces   BUSY blocks that adjoin, from `first` to `last`: they cover the
 *            new block [at, at + size) and reach out to whole granules where
 *            nothing was mapped
 *   moves    one for each chunk to be mapped into a piece that was a hole
 *
 * While a plan stands, its pieces and the ranges its chunks come from (the
 * donors) are BUSY: no other thread touches them, so the driver can be called
 * without the core lock.
 */
#ifndef TIDE_PLAN_H
#define TIDE_PLAN_H

#include "heap/core.h"

typedef struct tide__move {
    tide__block *target; /* BUSY, exactly where the chunk goes */
    tide__block *donor;  /* BUSY, exactly where it comes from; NULL: spare or new */
    uint32_t chunk;      /* 0: to be created */
    bool done;
    bool stuck; /* mapped at its target, not accessible there, and not to be unmapped just now */
} tide__move;

typedef struct tide__candidate {
    uint64_t va, size;
    tide__epoch epoch;
    tide__block *block; /* FREE; the chunk begins in it */
    uint32_t chunk;
    bool used;
} tide__candidate;

typedef struct tide__plan {
    tide__heap *heap;
    tide__stream_cache *stream;
    uint64_t size, at;
    tide__epoch wait_for; /* an exact place is had once this epoch is done */
    tide__block *first, *last;
    tide__move *moves;
    size_t move_count, move_cap;
    tide__candidate *candidates;
    size_t candidate_count, candidate_cap;
    size_t candidate_next; /* those before it are used */
    uint64_t candidate_bytes;
    uint64_t pending_bytes; /* of free chunks that only another stream may have yet */
    tide__block *passed;    /* records that candidates may still name: see tide__donors_take */
} tide__plan;

/* The core's plan, made on first use. Under `slow`. */
tide_status tide__core_plan(tide__core *c, tide__plan **out);

/* place.c; `core` is held */

typedef struct tide__place {
    tide__block *first;    /* the block that `at` lies in */
    uint64_t at, unbacked; /* bytes that chunks must be found for */
} tide__place;

/* The range for p->size in p->heap that needs the fewest new bytes. False
 * when no range is large enough. */
bool tide__place_find(tide__core *c, const tide__plan *p, tide__place *out);
/* The start of the largest hole; false if none holds `size` bytes. */
bool tide__place_wild(tide__core *c, const tide__plan *p, uint64_t size, tide__place *out);
/* Exactly `at`; TIDE_IN_USE where a byte of it is not to be had, TIDE_NOT_READY
 * where it will be when p->wait_for is done: freed, or an old mapping. */
tide_status tide__place_exact(tide__core *c, tide__plan *p, tide__place *out);
/* Makes the pieces BUSY. Takes at most 2 records. */
void tide__place_take(tide__core *c, tide__plan *p, const tide__place *place, uint64_t bytes);
/* Puts all pieces back as what they are now: FREE where chunks are, else HOLE. */
void tide__place_put_back(tide__core *c, tide__plan *p);
bool tide__block_is_backed(const tide__core *c, const tide__block *b);

/* donors.c; `core` is held */

/* Fills p->candidates with the chunks under free blocks that the stream may
 * use (TIDE__STREAM_NONE: that are idle for everybody), the largest first and
 * among equals the longest idle first. Not all, where there are thousands or the
 * host has no memory. */
void tide__donors_collect(tide__core *c, tide__plan *p, uint16_t stream);
/* The earliest epoch after `done` that makes a chunk under free blocks alone idle; 0 if none. */
tide__epoch tide__donors_pending(tide__core *c);
/* The largest unused candidate of at most `most` bytes; or the smallest of at least `least`. */
tide__candidate *tide__donors_at_most(tide__plan *p, uint64_t most);
tide__candidate *tide__donors_at_least(tide__plan *p, uint64_t least);
/* Cuts the candidate's range out of its blocks as one BUSY block. Takes at most
 * 2 records. A record that is joined away stays as a signpost, since other
 * candidates may name it, until tide__donors_done. */
tide__block *tide__donors_take(tide__core *c, tide__plan *p, tide__candidate *k);
void tide__donors_done(tide__core *c, tide__plan *p);

/* shortage.c; `slow` is held, and dropped during callbacks and waits */

typedef struct tide__shortage {
    uint64_t bytes;
    tide__epoch until; /* what was freed by then is waited for; later frees are others' luck */
    uint64_t deadline;
    bool released, asked, waited_device, timed_out;
} tide__shortage;

/* Nanoseconds until a deadline of the device's clock; UINT64_MAX: no bound. */
uint64_t tide__core_time_left(tide__core *c, uint64_t deadline);
void tide__shortage_begin(tide__core *c, uint64_t bytes, uint64_t deadline, tide__shortage *s);
/* The next step that may make bytes available; false: there is none left. */
bool tide__shortage_relieve(tide__core *c, tide__shortage *s, tide_status refused);

/* oom.c; `slow` is held. Fails with `refused` and a message that says who holds what,
 * what would help, and last the reason given. */
tide_status tide__oom_tell(tide__core *c, tide_status refused, uint64_t wanted, const char *reason);

#endif
