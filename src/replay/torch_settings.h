/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_settings: PyTorch's allocator settings, as far as they change what its
 * caching allocator reserves, and its rounding of sizes under them.
 */
#ifndef TIDE_REPLAY_TORCH_SETTINGS_H
#define TIDE_REPLAY_TORCH_SETTINGS_H

#include "trace/trace.h"

#define TIDE__TORCH_MIN_BLOCK UINT64_C(512)
#define TIDE__TORCH_SMALL_SIZE (UINT64_C(1) << 20)    /* up to here: the small pool */
#define TIDE__TORCH_SMALL_SEGMENT (UINT64_C(2) << 20) /* its segments and pages */
#define TIDE__TORCH_MIN_LARGE (UINT64_C(10) << 20)    /* from here a segment of its own size */
#define TIDE__TORCH_ROUND_LARGE (UINT64_C(2) << 20)
#define TIDE__TORCH_ROUNDUP_INTERVALS 16 /* powers of two from 1 MiB to 32 GiB and up */

typedef struct tide__torch_settings {
    uint64_t max_split_size; /* UINT64_MAX: none */
    uint64_t max_non_split_rounding;
    uint64_t large_segment_size; /* also the page of expandable segments' large pool */
    double gc_threshold;         /* 0: none */
    uint32_t roundup_divisions[TIDE__TORCH_ROUNDUP_INTERVALS]; /* 0 or 1: none */
    unsigned unmodelled;      /* settings of the file that change the figures and are not modelled */
    char unmodelled_name[64]; /* the first of them */
} tide__torch_settings;

/* What the trace's file says, PyTorch's defaults elsewhere. */
void tide__torch_settings_read(const tide__trace *trace, tide__torch_settings *out);

uint64_t tide__torch_round(const tide__torch_settings *s, uint64_t size);
/* What is asked of the driver when no free block will do; size is rounded. */
uint64_t tide__torch_segment_size(const tide__torch_settings *s, uint64_t size);

#endif
