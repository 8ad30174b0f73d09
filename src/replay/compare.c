/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare: walks the segment events beside the schedule's ops.
 */
#include "replay/compare.h"

void tide__compare_begin(tide__compare *c, const tide__trace_gpu *gpu, const tide__recorded *recorded) {
    *c = (tide__compare){.gpu = gpu, .reserved = recorded->initial};
}

static void walk(tide__compare *c, size_t end) {
    for (; c->event < end; c->event++) {
        const tide__trace_event *e = &c->gpu->events[c->event];
        if (tide__event_is_growth(e))
            c->reserved += e->size;
        else if (tide__event_is_release(e))
            c->reserved -= e->size;
    }
}

void tide__compare_op(tide__compare *c, tide__policy *model, const tide__schedule_op *op) {
    bool is_alloc = op->kind == TIDE__OP_ALLOC;
    walk(c, is_alloc ? op->event : (size_t)op->event + op->run_events);
    c->compared++;
    bool same = model->ops->reserved(model) == c->reserved;
    if (is_alloc) same &= tide__model_address(model, op->block) == c->gpu->events[op->event].addr;
    if (!same && c->mismatches++ == 0) c->first_mismatch = op->event;
}
