/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play: the loop over a schedule's ops.
 *
 * Figures are those after an op; a peak inside an allocation counts, too. The
 * state in which a phase begins belongs to the phase before it, so a peak that
 * the policy reports over a time that began there is not the new phase's.
 *
 * A request that the recorded run was refused is made where there is a limit,
 * and given back at once, since nobody knows how long the block would have
 * lived: it tells whether it would have fitted, and counts in the peaks, as
 * what the run needed. Where the run went on, everything free is given back
 * then, as PyTorch had done before it refused.
 */
#include "replay/play.h"

#include <stdlib.h>

#include "replay/phases.h"

#define TICK_OPS 8192

typedef struct player {
    const tide__schedule *schedule;
    tide__policy *policy;
    const tide__play_options *options;
    tide__policy_result *out;
    tide__phases phases;
    uint64_t live;
    bool fresh; /* nothing was allocated in this phase yet */
    bool left;  /* the last phase's end has been seen */
} player;

static bool is_out_of_memory(tide_status status) {
    return status == TIDE_NO_DEVICE_MEMORY || status == TIDE_LIMIT;
}

static tide_status no_host_memory(void) {
    return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the phases");
}

/* The peak since last asked, for the run's peak; what it was. */
static uint64_t take_peak(player *l) {
    uint64_t peak = l->policy->ops->peak_reserved(l->policy);
    if (peak > l->out->peak_reserved) l->out->peak_reserved = peak;
    return peak;
}

/* ---- Phases ---- */

static tide_status trim(player *l) {
    tide__policy_result before = {0}, after = {0};
    l->policy->ops->totals(l->policy, &before);
    tide_status status = l->policy->ops->trim(l->policy);
    l->policy->ops->totals(l->policy, &after);
    l->out->trim_seconds +=
        after.driver_seconds - before.driver_seconds + after.wait_seconds - before.wait_seconds;
    return status;
}

static tide_status leave_phase(player *l) {
    if (l->phases.count == 0) return TIDE_OK;
    tide_status status = l->options->trim_phases ? trim(l) : TIDE_OK;
    take_peak(l);
    tide__phases_leave(&l->phases, l->live, l->policy->ops->reserved(l->policy));
    return status;
}

static tide_status change_phase(player *l, uint32_t name) {
    tide_status status = leave_phase(l);
    if (status != TIDE_OK) return status;
    if (!tide__phases_enter(&l->phases, name)) return no_host_memory();
    if (l->policy->ops->phase != NULL) l->policy->ops->phase(l->policy, l->schedule->trace->strings[name]);
    l->fresh = true;
    return TIDE_OK;
}

/* ---- Ops ---- */

static void record_oom(player *l, const tide__schedule_op *op) {
    l->out->oom = (tide__oom_result){
        .happened = true,
        .event = op->event,
        .wanted = op->size,
        .live = l->live,
        .reserved = l->policy->ops->reserved(l->policy),
    };
}

static tide_status play_alloc(player *l, const tide__schedule_op *op) {
    tide_status status = l->policy->ops->alloc(l->policy, op);
    if (status == TIDE_OK) l->live += op->size;
    l->fresh = false;
    tide__phases_see(&l->phases, l->live, take_peak(l));
    return status;
}

/* Frees and releases only lower what is reserved. */
static void see_lowered(player *l, bool is_release) {
    if (!l->fresh && !is_release) return;
    take_peak(l);
    tide__phases_see(&l->phases, l->live, l->policy->ops->reserved(l->policy));
}

/* A last phase ends before the request, which would leave its own free bytes there; a trim at its end
 * takes those too, and would not have come before it. */
static tide_status play_refused(player *l, const tide__schedule_op *op) {
    if (!l->schedule->asks_refused) return TIDE_OK;
    const tide__policy_ops *ops = l->policy->ops;
    bool is_last = op + 1 == l->schedule->ops + l->schedule->op_count;
    l->left = is_last && !l->options->trim_phases;
    take_peak(l);
    tide_status status = l->left ? leave_phase(l) : TIDE_OK;
    if (status == TIDE_OK) status = ops->alloc(l->policy, op);
    uint64_t served = status == TIDE_OK ? op->size : 0;
    tide__phases_see(&l->phases, l->live + served, take_peak(l));
    if (status == TIDE_OK && ops->free_requested != NULL) status = ops->free_requested(l->policy, op);
    if (status == TIDE_OK) status = ops->free(l->policy, op);
    if (status == TIDE_OK && !is_last) status = ops->trim(l->policy);
    return status;
}

/* Whether the policy is to find out by itself that it has to give back. */
static bool is_own_retry(const player *l, const tide__schedule_op *op) {
    if (l->options->limit_bytes == 0 || op->explained_by_limit == TIDE__EXPLAINED_NOT) return false;
    return !l->options->is_recorded || op->explained_by_limit == TIDE__EXPLAINED_PARTLY;
}

static tide_status play_op(player *l, const tide__schedule_op *op) {
    tide__policy *p = l->policy;
    tide_status status = TIDE_OK;
    switch (op->kind) {
    case TIDE__OP_ALLOC: return play_alloc(l, op);
    case TIDE__OP_FREE_REQUESTED:
        return p->ops->free_requested != NULL ? p->ops->free_requested(p, op) : TIDE_OK;
    case TIDE__OP_FREE:
        l->live -= op->size;
        status = p->ops->free(p, op);
        see_lowered(l, false);
        return status;
    case TIDE__OP_RELEASE:
        if (is_own_retry(l, op)) return TIDE_OK;
        status = p->ops->release(p, op);
        see_lowered(l, true);
        return status;
    default: return play_refused(l, op);
    }
}

static bool is_compared(const player *l, const tide__schedule_op *op) {
    if (l->options->compare == NULL) return false;
    if (op->kind == TIDE__OP_ALLOC) return op >= l->schedule->ops + l->schedule->blocks_before_start;
    return op->kind == TIDE__OP_RELEASE;
}

static tide_status play_all(player *l) {
    const tide__schedule *s = l->schedule;
    const tide__play_options *o = l->options;
    for (size_t i = 0; i < s->op_count; i++) {
        const tide__schedule_op *op = &s->ops[i];
        tide_status status = TIDE_OK;
        l->policy->ops->set_time(l->policy, op->time_ns);
        if (i == 0 || op->phase != op[-1].phase) status = change_phase(l, op->phase);
        if (status == TIDE_OK) {
            status = play_op(l, op);
            if (is_out_of_memory(status)) {
                record_oom(l, op);
                break;
            }
        }
        if (status != TIDE_OK) return status;
        if (is_compared(l, op)) tide__compare_op(o->compare, l->policy, op);
        if (i % TICK_OPS == TICK_OPS - 1 && o->tick != NULL) o->tick(o->tick_user, TICK_OPS);
    }
    return l->left ? TIDE_OK : leave_phase(l);
}

tide_status tide__play(const tide__schedule *s, tide__policy *p, const tide__play_options *o,
                       tide__policy_result *out) {
    player l = {.schedule = s, .policy = p, .options = o, .out = out};
    uint64_t start = tide__monotonic_ns();
    tide_status status = play_all(&l);
    out->elapsed_seconds = (double)(tide__monotonic_ns() - start) / 1e9;
    if (status != TIDE_OK) {
        tide__phases_free(&l.phases);
        return status;
    }
    p->ops->totals(p, out);
    out->ran = true;
    if (s->peak_live > 0) out->ratio = (double)out->peak_reserved / (double)s->peak_live;
    free(l.phases.ended);
    tide__map_free(&l.phases.by_name);
    out->phases = l.phases.rows;
    out->phase_count = l.phases.count;
    return TIDE_OK;
}
