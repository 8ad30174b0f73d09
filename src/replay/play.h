/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play: a schedule through one policy, and what came of it.
 */
#ifndef TIDE_REPLAY_PLAY_H
#define TIDE_REPLAY_PLAY_H

#include "replay/compare.h"
#include "replay/policy.h"

typedef struct tide__play_options {
    uint64_t limit_bytes;
    bool trim_phases;
    bool is_recorded;       /* the policy is a model of the recorded run's */
    tide__compare *compare; /* NULL: nothing to compare with */
    /* Told now and then how many ops were done since the last time. May be NULL. */
    void (*tick)(void *user, uint64_t ops);
    void *tick_user;
} tide__play_options;

/* Stops at the policy's first out of memory, which is part of the result; any
 * other failure is one of the replay. out->phases is the caller's to free. */
tide_status tide__play(const tide__schedule *s, tide__policy *p, const tide__play_options *o,
                       tide__policy_result *out);

#endif
