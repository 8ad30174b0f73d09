/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain: which of a recorded run's releases are its allocator's own retries
 * under a limit, and which are the user's.
 */
#ifndef TIDE_REPLAY_EXPLAIN_H
#define TIDE_REPLAY_EXPLAIN_H

#include "replay/schedule.h"

/* Again with another limit: what was told before is forgotten. */
tide_status tide__schedule_explain(tide__schedule *s, uint64_t limit_bytes);

#endif
