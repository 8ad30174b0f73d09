/* SPDX-License-Identifier: Apache-2.0 */
/*
 * summary: what a GPU's part of a trace holds, in numbers. One pass over the
 * events, with the live blocks in a map.
 */
#ifndef TIDE_TRACE_SUMMARY_H
#define TIDE_TRACE_SUMMARY_H

#include "trace/trace.h"

#define TIDE__SUMMARY_BUCKETS 64 /* bucket i: sizes from 2^i up to 2^(i+1); size 0 is in the first */

typedef struct tide__phase_summary {
    uint32_t phase; /* string */
    uint64_t events, allocations, allocated_bytes, peak_live_bytes;
} tide__phase_summary;

typedef struct tide__count_summary {
    uint64_t events, allocations;
} tide__count_summary;

typedef enum tide__recorded_policy {
    TIDE__RECORDED_NONE, /* no segment events */
    TIDE__RECORDED_NATIVE,
    TIDE__RECORDED_EXPANDABLE,
    TIDE__RECORDED_MIXED,
} tide__recorded_policy;

typedef struct tide__gpu_summary {
    uint64_t actions[TIDE__ACTION_COUNT];
    int64_t first_us, last_us;            /* the earliest and latest; 0 where no entry has a time */
    tide__count_summary *streams, *pools; /* as many as the GPU's */
    uint64_t bucket_allocations[TIDE__SUMMARY_BUCKETS], bucket_bytes[TIDE__SUMMARY_BUCKETS];
    /* By name, in order of appearance. An entry without a phase belongs to the
     * one before it; the first may be "". */
    tide__phase_summary *phases;
    size_t phase_count;
    uint64_t without_phase; /* entries with none of their own */
    uint64_t with_stack;

    /* Live is what callers asked for, from alloc to free_completed. Before the
     * first entry: blocks that are freed later or live at the end and were never
     * allocated in the trace; so at least these were. */
    uint64_t start_blocks, start_bytes, end_blocks, end_bytes, peak_live_bytes;
    uint64_t late_frees;      /* completed with other events in between */
    uint64_t freed_twice;     /* free_completed of a block that was freed before */
    uint64_t allocated_twice; /* alloc at the address of a live block */
    tide__recorded_policy policy;
} tide__gpu_summary;

/* "native", "expandable", "mixed"; NULL for none. */
const char *tide__recorded_policy_name(tide__recorded_policy policy);

/* Release with tide__gpu_summary_free, also after a failure (out of memory). */
tide_status tide__gpu_summarize(const tide__trace_gpu *gpu, tide__gpu_summary *out);
void tide__gpu_summary_free(tide__gpu_summary *s);

#endif
