/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorded_heap: the heap of a recorded run as its addresses alone tell it.
 *
 * Where a block of the trace lies says which region it came from: a segment of
 * the native allocator, a window of reserved addresses of the expandable one.
 * A region is one pool's from its first byte to its last. Which pool is not
 * told, but PyTorch's rules say which regions cannot be of the same one:
 *
 *  - one had a free block that fits an allocation better than what the other
 *    gave, or that fits one for which the other was newly made;
 *  - two windows of a stream and a size class existed at once;
 *  - a release gave back what was free in one and not in the other.
 *
 * Those pairs are what this file finds; private_pools.c makes pools of them.
 */
#ifndef TIDE_REPLAY_RECORDED_HEAP_H
#define TIDE_REPLAY_RECORDED_HEAP_H

#include "replay/recorded.h"
#include "replay/schedule.h"
#include "replay/torch_settings.h"

typedef struct tide__region {
    uint64_t base, top; /* top: the end of the highest byte it ever had */
    uint64_t bytes;     /* that it has now; 0: it is gone */
    uint64_t free_bytes;
    uint16_t stream;
    bool is_small;
    bool has_inner; /* a block began where none does in a pool that splits nothing */
    bool has_rest;  /* a pool that splits would have split a block here */
    bool no_split;  /* in: its blocks are not split */
    bool in_run;    /* of the release at hand */
    bool is_odd;    /* in some pair with itself: no pool that splits would have done so */
} tide__region;

typedef struct tide__region_pair {
    uint32_t a, b; /* a < b */
} tide__region_pair;

typedef struct tide__region_event {
    uint32_t event, region;
} tide__region_event;

typedef struct tide__recorded_heap {
    tide__region *regions; /* in the order in which they came to be */
    size_t region_count;
    tide__region_pair *pairs; /* each once */
    size_t pair_count;
    tide__region_event *events; /* the segment events, by event */
    size_t event_count;
    uint32_t *region_of; /* by the schedule's block; UINT32_MAX where it is not known */
    bool gave_up; /* too much work, or the heap before the first event is not known: nothing here holds */
} tide__recorded_heap;

/* no_split: by region, as numbered by an earlier call for the same schedule; may be NULL. */
tide_status tide__recorded_heap_read(const tide__schedule *s, const tide__recorded *recorded,
                                     const tide__torch_settings *settings, const bool *no_split,
                                     tide__recorded_heap *out);
void tide__recorded_heap_free(tide__recorded_heap *h);

#endif
