/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases: what a policy's figures were in each phase of a run. A name's row
 * joins its occurrences: peaks over all of them, ends from the one where
 * reserved exceeded live most.
 */
#ifndef TIDE_REPLAY_PHASES_H
#define TIDE_REPLAY_PHASES_H

#include "replay/replay.h"

typedef struct tide__phases {
    tide__phase_result *rows; /* in the order of first occurrence */
    bool *ended;              /* by row: the end_* are of an occurrence */
    size_t count, cap, ended_cap;
    size_t current;    /* row */
    tide__map by_name; /* string -> row */
} tide__phases;        /* zero-initialised is empty */

/* A phase begins; false where the host has no memory. */
bool tide__phases_enter(tide__phases *p, uint32_t name);
void tide__phases_leave(tide__phases *p, uint64_t live, uint64_t reserved);
void tide__phases_free(tide__phases *p);

/* Figures after an op of the current phase. */
static inline void tide__phases_see(tide__phases *p, uint64_t live, uint64_t reserved) {
    tide__phase_result *row = &p->rows[p->current];
    if (live > row->peak_live) row->peak_live = live;
    if (reserved > row->peak_reserved) row->peak_reserved = reserved;
}

#endif
