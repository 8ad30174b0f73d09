/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorded: one pass over the events. Bytes reserved before the first event are
 * what the segments at the end do not owe to events; without those segments
 * they are known only if nothing speaks against 0: no event gives back more
 * than was taken, no block lies in bytes that no event took, and (the schedule
 * knows) no block is freed that was not allocated.
 */
#include "replay/recorded.h"

typedef struct reader {
    tide__recorded *out;
    int64_t now, peak; /* of reserved, from 0 */
    int64_t lowest;    /* what must have been there before: its negative */
    bool native, expandable;
} reader;

static tide_status impossible(size_t event) {
    return tide__fail(TIDE_CORRUPT, "event %zu: a size that cannot be", event);
}

static bool read_event(reader *r, const tide__trace_event *e, size_t index) {
    switch (e->action) {
    case TIDE__ACTION_OOM:
        if (!r->out->has_oom) r->out->oom_event = index;
        r->out->has_oom = true;
        return true;
    case TIDE__ACTION_SEGMENT_ALLOC:
    case TIDE__ACTION_SEGMENT_FREE: r->native = true; break;
    case TIDE__ACTION_SEGMENT_MAP:
    case TIDE__ACTION_SEGMENT_UNMAP: r->expandable = true; break;
    case TIDE__ACTION_ALLOC: break;
    default: return true;
    }
    if (e->size >= TIDE__MAX_TRACE_BYTES) return false;
    int64_t size = (int64_t)e->size, after;
    if (tide__event_is_growth(e))
        r->now = after = r->now + size;
    else if (tide__event_is_release(e))
        r->now = after = r->now - size;
    else
        after = r->now - size; /* a block is in bytes that were there */
    r->peak = r->now > r->peak ? r->now : r->peak;
    r->lowest = after < r->lowest ? after : r->lowest;
    return r->now < (int64_t)TIDE__MAX_TRACE_BYTES && r->now > -(int64_t)TIDE__MAX_TRACE_BYTES;
}

static tide__recorded_policy policy_of(const reader *r) {
    if (r->native && r->expandable) return TIDE__RECORDED_MIXED;
    if (r->native) return TIDE__RECORDED_NATIVE;
    return r->expandable ? TIDE__RECORDED_EXPANDABLE : TIDE__RECORDED_NONE;
}

static bool final_reserved(const tide__trace_gpu *gpu, uint64_t *out) {
    uint64_t sum = 0;
    for (size_t i = 0; i < gpu->segment_count; i++)
        if (__builtin_add_overflow(sum, gpu->segments[i].size, &sum)) return false;
    *out = sum;
    return sum < TIDE__MAX_TRACE_BYTES;
}

tide_status tide__recorded_read(const tide__trace *trace, const tide__trace_gpu *gpu, tide__recorded *out) {
    *out = (tide__recorded){0};
    reader r = {.out = out};
    for (size_t i = 0; i < gpu->event_count; i++)
        if (!read_event(&r, &gpu->events[i], i)) return impossible(i);
    out->policy = policy_of(&r);
    uint64_t final, needed = (uint64_t)-r.lowest;
    if (trace->has_segments && final_reserved(gpu, &final) && (int64_t) final - r.now >= (int64_t)needed) {
        out->initial = (uint64_t)((int64_t) final - r.now);
        out->initial_known = true;
    } else {
        out->initial = needed;
        out->initial_known = !trace->has_segments && needed == 0;
    }
    out->peak = out->initial + (uint64_t)r.peak;
    return TIDE_OK;
}

uint64_t tide__recorded_hint(const tide__trace_gpu *gpu, uint64_t event) {
    if (event == 0 || event > gpu->event_count) return 0;
    const tide__trace_event *e = &gpu->events[event - 1];
    return tide__event_is_growth(e) ? e->addr : 0;
}
