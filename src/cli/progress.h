/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress: a bar on stderr for work that takes a while.
 *
 * Shown only where stderr is a terminal and the work has run for half a second;
 * it takes itself away at the end, and when the program is interrupted.
 */
#ifndef TIDE_CLI_PROGRESS_H
#define TIDE_CLI_PROGRESS_H

#include "base/base.h"

typedef struct tide__progress_bar {
    const char *label;
    uint64_t start_ns, drawn_ns;
    bool enabled;
} tide__progress_bar;

/* label must live as long as the bar. */
void tide__progress_begin(tide__progress_bar *bar, const char *label);
/* A tide__progress: user is the bar. Cheap enough to be called often. */
void tide__progress_update(void *user, uint64_t done, uint64_t total);
/* Takes the bar away: call before anything else is printed. */
void tide__progress_end(tide__progress_bar *bar);

#endif
