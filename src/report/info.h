/* SPDX-License-Identifier: Apache-2.0 */
/*
 * info: what is in a file of a trace, as text for a person and as a line of JSON.
 * Both end with what is missing, in words, since that decides what can be asked
 * of the file.
 */
#ifndef TIDE_REPORT_INFO_H
#define TIDE_REPORT_INFO_H

#include <stdio.h>

#include "trace/summary.h"
#include "trace/trace.h"

typedef struct tide__info {
    const char *file;
    const tide__trace *trace;
    const tide__gpu_summary *gpus; /* one for each of the trace's */
} tide__info;

/* Failures of writing stay in the stream, for ferror. */
void tide__report_info_text(const tide__info *info, FILE *out, int width);
void tide__report_info_json(const tide__info *info, FILE *out);

#endif
