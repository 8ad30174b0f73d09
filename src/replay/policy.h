/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy: an allocator as replay sees it. Blocks are the schedule's numbers, so
 * a policy needs no map from addresses of its own.
 */
#ifndef TIDE_REPLAY_POLICY_H
#define TIDE_REPLAY_POLICY_H

#include "device/device.h"
#include "replay/recorded.h"
#include "replay/replay.h"
#include "replay/restore.h"
#include "replay/schedule.h"
#include "replay/torch_settings.h"

typedef struct tide__policy tide__policy;

typedef struct tide__policy_ops {
    void (*destroy)(tide__policy *p);
    void (*set_time)(tide__policy *p, uint64_t ns); /* of the trace, from 0 */
    /* TIDE_NO_DEVICE_MEMORY or TIDE_LIMIT: out of memory; anything else ends the replay. */
    tide_status (*alloc)(tide__policy *p, const tide__schedule_op *op);
    /* The caller let go (free_requested); bytes may be in use until free. May be NULL. */
    tide_status (*free_requested)(tide__policy *p, const tide__schedule_op *op);
    tide_status (*free)(tide__policy *p, const tide__schedule_op *op);
    /* A moment at which everything free was given back (empty_cache). */
    tide_status (*release)(tide__policy *p, const tide__schedule_op *op);
    /* --trim-phases: give back what is free, waiting a bounded time. */
    tide_status (*trim)(tide__policy *p);
    void (*phase)(tide__policy *p, const char *name); /* may be NULL */
    uint64_t (*reserved)(tide__policy *p);            /* now; after every op */
    uint64_t (*peak_reserved)(
        tide__policy *p); /* since the last call of this, peaks inside a call included */
    /* Fills moves, waits, wait_seconds, driver_calls, driver_seconds. */
    void (*totals)(tide__policy *p, tide__policy_result *out);
} tide__policy_ops;

struct tide__policy {
    const tide__policy_ops *ops;
};

/* What a policy is made for; all of it outlives the policy. */
typedef struct tide__policy_request {
    tide__policy_kind kind;
    uint64_t limit_bytes; /* 0: none */
    const tide__schedule *schedule;
    const tide__replay_options *options; /* but for limit_bytes */
    const tide__recorded *recorded;
    const tide__torch_settings *settings;
} tide__policy_request;

/* restored: as tide__model_options has it; may be NULL. */
tide_status tide__policy_create(const tide__policy_request *q, tide__restored *restored, tide__policy **out);
/* Whether the policy is a model of the recorded run's. */
bool tide__policy_is_recorded(const tide__policy_request *q);

tide_status tide__policy_pagetide_create(const tide__schedule *s, const tide__replay_options *o,
                                         uint64_t limit_bytes, tide__policy **out);

#endif
