/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorded: what a trace tells of the allocator that was recorded: which of
 * PyTorch's two it was, how many bytes it had reserved after each event, and
 * the addresses that the driver chose for it.
 */
#ifndef TIDE_REPLAY_RECORDED_H
#define TIDE_REPLAY_RECORDED_H

#include "replay/replay.h"

/* Bytes above which a size in a trace is not believed: PyTorch refuses an exbibyte. */
#define TIDE__MAX_TRACE_BYTES (UINT64_C(1) << 60)

static inline bool tide__event_is_release(const tide__trace_event *e) {
    return e->action == TIDE__ACTION_SEGMENT_FREE || e->action == TIDE__ACTION_SEGMENT_UNMAP;
}
static inline bool tide__event_is_growth(const tide__trace_event *e) {
    return e->action == TIDE__ACTION_SEGMENT_ALLOC || e->action == TIDE__ACTION_SEGMENT_MAP;
}

typedef struct tide__recorded {
    tide__recorded_policy policy;
    uint64_t initial;   /* reserved before the first event, where known; else 0 */
    bool initial_known; /* by the segments at the end, or because nothing was there before */
    uint64_t peak;      /* of reserved, the initial included */
    bool has_oom;
    uint64_t oom_event;
} tide__recorded;

/* TIDE_CORRUPT where a segment's size cannot be. */
tide_status tide__recorded_read(const tide__trace *trace, const tide__trace_gpu *gpu, tide__recorded *out);

/* The address of the growth just before an event, 0 where there is none. */
uint64_t tide__recorded_hint(const tide__trace_gpu *gpu, uint64_t event);

#endif
