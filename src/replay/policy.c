/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/policy.h"

#include "replay/model.h"

tide_status tide__policy_create(const tide__policy_request *q, tide__restored *restored, tide__policy **out) {
    if (q->kind == TIDE__POLICY_PAGETIDE)
        return tide__policy_pagetide_create(q->schedule, q->options, q->limit_bytes, out);
    tide__model_options o = {
        .kind = q->kind,
        .limit_bytes = q->limit_bytes,
        .recorded = q->recorded,
        .settings = q->settings,
        .restored = restored,
    };
    return tide__model_create(q->schedule, &o, out);
}

bool tide__policy_is_recorded(const tide__policy_request *q) {
    return (q->kind == TIDE__POLICY_NATIVE && q->recorded->policy == TIDE__RECORDED_NATIVE) ||
           (q->kind == TIDE__POLICY_EXPANDABLE && q->recorded->policy == TIDE__RECORDED_EXPANDABLE);
}
