/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule: a trace of one GPU, made ready to be played through any policy.
 */
#ifndef TIDE_REPLAY_SCHEDULE_H
#define TIDE_REPLAY_SCHEDULE_H

#include "replay/replay.h"

typedef enum tide__op_kind {
    TIDE__OP_ALLOC,          /* block, size, stream, pool */
    TIDE__OP_FREE_REQUESTED, /* block */
    TIDE__OP_FREE,           /* block: from here its bytes are the allocator's */
    TIDE__OP_RELEASE,        /* everything free was given back */
    TIDE__OP_OOM, /* the recorded run was refused size bytes; block is a number that is never freed */
} tide__op_kind;

typedef enum tide__explained {
    TIDE__EXPLAINED_NOT,    /* the user's own */
    TIDE__EXPLAINED_PARTLY, /* a retry before out of memory (or a collection), which gave back some of what
                               was free */
    TIDE__EXPLAINED_EVERYTHING, /* a retry, which gave back all of it */
} tide__explained;

typedef struct tide__schedule_op {
    uint64_t time_ns; /* since the trace's first event; never decreases */
    uint64_t size;    /* alloc, oom: bytes asked for */
    uint32_t event;   /* index in the GPU's events */
    uint32_t block;   /* dense, from 0 in the order of allocation */
    uint32_t phase;   /* string of the trace, carried over entries that have none */
    uint16_t stream, pool;
    uint8_t kind;               /* tide__op_kind */
    uint8_t explained_by_limit; /* release: tide__explained, by the limit; other policies than the recorded
                                   ignore it */
    uint32_t run_events;        /* release: the events, from `event` on, that tell of it */
} tide__schedule_op;

/* A block that was live before the first event. */
typedef struct tide__before_block {
    uint64_t addr, size;
    uint16_t stream, pool;
} tide__before_block;

typedef struct tide__schedule {
    const tide__trace *trace;
    const tide__trace_gpu *gpu;
    tide__schedule_op *ops;
    size_t op_count;
    uint32_t block_count;
    tide__before_block *before;   /* of the blocks below */
    uint32_t blocks_before_start; /* blocks 0 to this are live before the first event: their allocs come
                                     first, at time 0 */
    uint64_t allocations;         /* alloc events */
    uint64_t unknown_frees;       /* of blocks never seen: dropped */
    size_t pool_count;            /* the GPU's pools first, then those that addresses told of */
    uint16_t *event_pools;        /* by event, of segment events; NULL: as the events say */
    bool *unsplit_pools;          /* by pool: it splits no block; NULL: all do */
    uint32_t pools_inferred;      /* pools that only addresses told of, */
    uint32_t regions_inferred;    /* and the segments that are in them */
    bool asks_refused;  /* requests that the recorded run was refused are made, and count in peak_live */
    uint64_t peak_live; /* that callers would have held */
    uint64_t peak_live_recorded; /* without what was refused */
    double trace_seconds;
} tide__schedule;

/* limit_bytes as --limit: with one, refused requests are made, and it is told which releases it explains. */
tide_status tide__schedule_make(const tide__trace *trace, const tide__trace_gpu *gpu, uint64_t limit_bytes,
                                tide__schedule *out);
void tide__schedule_free(tide__schedule *s);

#endif
