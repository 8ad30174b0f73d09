/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_meaning: what a replay means, in sentences.
 */
#ifndef TIDE_REPORT_REPLAY_MEANING_H
#define TIDE_REPORT_REPLAY_MEANING_H

#include "report/replay_report.h"
#include "report/text.h"

/* The answer: who runs out of memory and what each needs, or what each reserves; and what it costs. */
void tide__say_meaning(const tide__replay_report *r, tide__sentences *s);

/* What the table's words stand for. */
void tide__say_legend(const tide__replay_report *r, tide__sentences *s);

/* How it was come by, and what the file did not hold. */
void tide__say_notes(const tide__replay_report *r, tide__sentences *s);

#endif
