/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare: a model of the recorded allocator held against what was recorded,
 * after every allocation (reserved bytes and the block's address) and after
 * every release (reserved bytes).
 */
#ifndef TIDE_REPLAY_COMPARE_H
#define TIDE_REPLAY_COMPARE_H

#include "replay/model.h"

typedef struct tide__compare {
    const tide__trace_gpu *gpu;
    size_t event;      /* events before this are in `reserved` */
    uint64_t reserved; /* as recorded */
    uint64_t compared, mismatches, first_mismatch;
} tide__compare;

void tide__compare_begin(tide__compare *c, const tide__trace_gpu *gpu, const tide__recorded *recorded);
/* After an alloc or a release that stands in the trace. */
void tide__compare_op(tide__compare *c, tide__policy *model, const tide__schedule_op *op);

#endif
