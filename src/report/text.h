/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: how numbers, names and sentences are laid out for a person to read.
 */
#ifndef TIDE_REPORT_TEXT_H
#define TIDE_REPORT_TEXT_H

#include <stdio.h>

#include "base/base.h"

#define TIDE__COUNT_TEXT 32

/* 1976444 as "1,976,444" into buf; returns buf. */
const char *tide__format_count(uint64_t count, char buf[TIDE__COUNT_TEXT]);

/* "7.2 s", "3 min 05 s", "2 h 10 min" into buf; returns buf. */
const char *tide__format_seconds(double seconds, char buf[TIDE__COUNT_TEXT]);

/* A ratio with the digits that matter, "2.79" but "1.004", or "-", into buf; returns buf. */
const char *tide__format_ratio(double ratio, char buf[TIDE__COUNT_TEXT]);

/* Writes a name from a file into `columns` columns, filled up with spaces and
 * cut with "..." where it is longer. What a terminal would obey or could not
 * show becomes '?'. */
void tide__print_name(FILE *out, const char *name, int columns);

/* Writes words as lines of at most `width` columns, each after `indent` spaces. */
void tide__print_wrapped(FILE *out, int width, int indent, const char *text);

/* Sentences: put together here, then wrapped. What has no room is left out. */
typedef struct tide__sentences {
    char text[4096];
    size_t length;
} tide__sentences;

void tide__say(tide__sentences *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The columns of the terminal that a stream is, or fewer where COLUMNS says so;
 * of what is no terminal: COLUMNS, or 80. */
int tide__terminal_width(FILE *stream);

#endif
