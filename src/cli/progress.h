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
    double from, to; /* the part of the whole that updates tell of */
    double shown;    /* it never goes back */
    bool enabled;
} tide__progress_bar;

/* label must live as long as the bar. */
void tide__progress_begin(tide__progress_bar *bar, const char *label);
/* Updates from now on tell of this part of the whole, from 0 to 1. */
void tide__progress_part(tide__progress_bar *bar, double from, double to);
/* A tide__progress: user is the bar. Cheap enough to be called often. */
void tide__progress_update(void *user, uint64_t done, uint64_t total);
/* Takes the bar away: call before anything else is printed. The next update
 * shows it again. */
void tide__progress_hide(tide__progress_bar *bar);

#endif
