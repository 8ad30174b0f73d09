/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: PyTorch's caching allocator (torch_heap.h) as a policy on the sim
 * device, which charges it for its driver calls.
 */
#ifndef TIDE_REPLAY_MODEL_H
#define TIDE_REPLAY_MODEL_H

#include "replay/policy.h"
#include "replay/recorded.h"
#include "replay/restore.h"
#include "replay/torch_heap.h"

typedef struct tide__model_options {
    tide__policy_kind kind;               /* native or expandable */
    uint64_t limit_bytes;                 /* as set_per_process_memory_fraction; 0: none */
    const tide__recorded *recorded;       /* of the schedule's trace; may not be NULL */
    const tide__torch_settings *settings; /* outlive the model */
    tide__restored *restored; /* out: the heap from before the first event, where this is the recorded kind;
                                 may be NULL */
} tide__model_options;

tide_status tide__model_create(const tide__schedule *s, const tide__model_options *o, tide__policy **out);

/* Where the model has put a block that is allocated; 0 elsewhere. */
uint64_t tide__model_address(const tide__policy *p, uint32_t block);
/* Whether a release op is the retry of the op after it, because of the limit. */
tide__explained tide__model_explain(tide__policy *p, const tide__schedule_op *op);

#endif
