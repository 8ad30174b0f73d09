/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_report: what a replay found, for a person and for a program.
 */
#ifndef TIDE_REPORT_REPLAY_REPORT_H
#define TIDE_REPORT_REPLAY_REPORT_H

#include <stdio.h>

#include "replay/replay.h"

typedef struct tide__replay_report {
    const char *file;
    const tide__trace *trace; /* whose strings name the phases */
    const tide__replay_options *options;
    const tide__replay_result *result;
} tide__replay_report;

/* Tables and a few sentences, at most `width` columns wide (50 at least). */
void tide__report_replay_text(const tide__replay_report *r, FILE *out, int width);

/* One line of JSON, in bytes and seconds; docs/pagetide-replay.1 describes it. */
void tide__report_replay_json(const tide__replay_report *r, FILE *out);

/* "off", "idle" or "wait". */
const char *tide__report_cross_stream(tide_cross_stream mode);

/* A policy of the result, or NULL where it was not asked for or did not run. */
const tide__policy_result *tide__report_policy(const tide__replay_result *r, tide__policy_kind kind);

/* What --check holds a result against. Writes a line for each finding to `out`;
 * returns how many. */
unsigned tide__report_check(const tide__replay_report *r, FILE *out);

#endif
