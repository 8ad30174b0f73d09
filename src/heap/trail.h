/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trail: the last moves and unmaps of a device, with the stacks that asked for
 * them. A wrong one shows only later, as a fault of some kernel: then the trail
 * says what had been done to the address that it touched.
 */
#ifndef TIDE_TRAIL_H
#define TIDE_TRAIL_H

#include "base/base.h"

#define TIDE__TRAIL_LENGTH 64
#define TIDE__TRAIL_FRAMES 12

typedef enum tide__trail_kind {
    TIDE__TRAIL_MOVED,
    TIDE__TRAIL_UNMAPPED,
    TIDE__TRAIL_GIVEN_BACK
} tide__trail_kind;

typedef struct tide__trail_entry {
    uint64_t number;   /* from 1; 0: unused */
    uint64_t time_ns;  /* of CLOCK_MONOTONIC */
    uint64_t va, size; /* the range that is another's, or nobody's, from then on */
    uint64_t to;       /* MOVED: where the chunk is now */
    uint32_t chunk;
    tide__trail_kind kind;
    int frames;
    void *stack[TIDE__TRAIL_FRAMES];
} tide__trail_entry;

typedef struct tide__trail {
    tide__trail_entry entries[TIDE__TRAIL_LENGTH];
    uint64_t last;
    bool told;
} tide__trail;

/* The first walk of a stack loads a library: better here, when a device is opened. */
void tide__trail_prepare(void);
/* Both under the core's `slow`. */
void tide__trail_add(tide__trail *t, tide__trail_kind kind, uint64_t va, uint64_t size, uint64_t to,
                     uint32_t chunk);
/* Prints them, the latest first, to stderr; the first time only. */
void tide__trail_tell(tide__trail *t, int gpu);

#endif
