/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain: plays the recorded run's own model under the limit. Where a release
 * stands before an allocation for which the model would have to give back what
 * is free by itself, the release is that retry. (Settings may make a retry give
 * back a part; a run that gave back everything is played as recorded, since the
 * user may have done so just before.) A run of which no model exists
 * explains nothing; the model ends at its first out of memory and so does what
 * it can explain.
 */
#include "replay/explain.h"

#include "replay/model.h"

static tide_status play(tide__policy *p, tide__schedule_op *op) {
    switch (op->kind) {
    case TIDE__OP_ALLOC: return p->ops->alloc(p, op);
    case TIDE__OP_FREE_REQUESTED: return p->ops->free_requested(p, op);
    case TIDE__OP_FREE: return p->ops->free(p, op);
    case TIDE__OP_RELEASE:
        op->explained_by_limit = (uint8_t)tide__model_explain(p, op);
        return op->explained_by_limit == TIDE__EXPLAINED_PARTLY ? TIDE_OK : p->ops->release(p, op);
    default: return TIDE_OK;
    }
}

tide_status tide__schedule_explain(tide__schedule *s, uint64_t limit_bytes) {
    tide__recorded recorded;
    tide__torch_settings settings;
    tide__policy *p;
    tide_status status = tide__recorded_read(s->trace, s->gpu, &recorded);
    if (status != TIDE_OK) return status;
    if (recorded.policy != TIDE__RECORDED_NATIVE && recorded.policy != TIDE__RECORDED_EXPANDABLE)
        return TIDE_OK;
    for (size_t i = 0; i < s->op_count; i++) s->ops[i].explained_by_limit = TIDE__EXPLAINED_NOT;
    tide__torch_settings_read(s->trace, &settings);
    tide__model_options options = {
        .kind = recorded.policy == TIDE__RECORDED_NATIVE ? TIDE__POLICY_NATIVE : TIDE__POLICY_EXPANDABLE,
        .limit_bytes = limit_bytes,
        .recorded = &recorded,
        .settings = &settings,
    };
    status = tide__model_create(s, &options, &p);
    if (status != TIDE_OK) return status;
    for (size_t i = 0; status == TIDE_OK && i < s->op_count; i++) status = play(p, &s->ops[i]);
    p->ops->destroy(p);
    return status == TIDE_LIMIT || status == TIDE_NO_DEVICE_MEMORY ? TIDE_OK : status;
}
