/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay: the runs that a request needs, and their results put together.
 *
 * Runs are independent, each with a policy and a device of its own; two
 * threads take them from one list, the longest (pagetide's) first. The
 * comparison with the recorded run needs a run of the recorded allocator's
 * model without limit and trims; where the request has just that, it serves
 * both.
 */
#include "replay/replay.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "replay/bound.h"
#include "replay/fits.h"
#include "replay/play.h"

#define MAX_RUNS (TIDE__POLICY_COUNT + 1)
#define PROGRESS_NS 100000000

const char *tide__policy_name(tide__policy_kind kind) {
    static const char *const names[] = {"native", "expandable", "pagetide"};
    return kind < TIDE__POLICY_COUNT ? names[kind] : "?";
}

typedef struct run {
    tide__policy_kind kind;
    bool is_request; /* else only for the comparison */
    bool is_compared;
    tide__restored restored;
    tide__policy_result result;
    tide_status status;
    char message[512]; /* of the failure, since messages are a thread's own */
} run;

typedef struct session {
    const tide__schedule *schedule;
    const tide__replay_options *options;
    const tide__recorded *recorded;
    const tide__torch_settings *settings;
    tide__compare compare;
    run runs[MAX_RUNS];
    unsigned run_count;
    atomic_uint next_run;
    _Atomic uint64_t ops_done;
    uint64_t ops_total;
    pthread_t main_thread;
} session;

/* ---- One run ---- */

static void report_progress(const session *x) {
    uint64_t done = atomic_load(&x->ops_done);
    if (x->options->progress != NULL)
        x->options->progress(x->options->progress_user, done < x->ops_total ? done : x->ops_total,
                             x->ops_total);
}

static void tick(void *user, uint64_t ops) {
    session *x = user;
    atomic_fetch_add(&x->ops_done, ops);
    if (pthread_equal(pthread_self(), x->main_thread)) report_progress(x);
}

static tide_status play_policy(session *x, run *r, const tide__policy_request *q, tide__play_options *o) {
    tide__policy *p;
    tide_status status = tide__policy_create(q, &r->restored, &p);
    if (status != TIDE_OK) return status;
    if (r->is_compared && r->restored != TIDE__RESTORED_NOT) o->compare = &x->compare;
    status = tide__play(x->schedule, p, o, &r->result);
    p->ops->destroy(p);
    o->compare = NULL;
    return status;
}

/* What one policy cannot do is its row's reason; the others' rows stand. */
static bool is_its_own_failure(tide_status status) {
    return status == TIDE_UNSUPPORTED || status == TIDE_NO_ADDRESSES;
}

/* Real pages are too slow to play with again and again. */
static bool is_to_find_fit(const session *x, const run *r) {
    bool on_sim = r->kind != TIDE__POLICY_PAGETIDE || strcmp(x->options->device, "host") != 0;
    return x->options->limit_bytes != 0 && r->is_request && on_sim;
}

static tide_status play_run(session *x, run *r) {
    tide__policy_request q = {
        .kind = r->kind,
        .limit_bytes = r->is_request ? x->options->limit_bytes : 0,
        .schedule = x->schedule,
        .options = x->options,
        .recorded = x->recorded,
        .settings = x->settings,
    };
    tide__play_options o = {
        .limit_bytes = q.limit_bytes,
        .trim_phases = r->is_request && x->options->trim_phases,
        .is_recorded = tide__policy_is_recorded(&q),
        .tick = tick,
        .tick_user = x,
    };
    r->result.kind = r->kind;
    tide_status status = play_policy(x, r, &q, &o);
    if (is_its_own_failure(status)) {
        r->result = (tide__policy_result){.kind = r->kind};
        snprintf(r->result.reason, sizeof r->result.reason, "%s", tide_last_error());
        return TIDE_OK;
    }
    if (status == TIDE_OK && is_to_find_fit(x, r))
        status = tide__fits_from(&q, &r->result, &o, &r->result.fits_from);
    return status;
}

static void *work(void *user) {
    session *x = user;
    for (unsigned i; (i = atomic_fetch_add(&x->next_run, 1)) < x->run_count;) {
        run *r = &x->runs[i];
        r->status = play_run(x, r);
        if (r->status != TIDE_OK) snprintf(r->message, sizeof r->message, "%s", tide_last_error());
    }
    return NULL;
}

/* ---- All runs ---- */

static run *add_run(session *x, tide__policy_kind kind, bool is_request) {
    run *r = &x->runs[x->run_count++];
    *r = (run){.kind = kind, .is_request = is_request};
    return r;
}

static void plan(session *x, bool compare) {
    const tide__replay_options *o = x->options;
    bool as_recorded = o->limit_bytes == 0 && !o->trim_phases, reused = false;
    tide__policy_kind recorded =
        x->recorded->policy == TIDE__RECORDED_NATIVE ? TIDE__POLICY_NATIVE : TIDE__POLICY_EXPANDABLE;
    for (int kind = TIDE__POLICY_COUNT - 1; kind >= 0; kind--) {
        if (!(o->policies & (1u << kind))) continue;
        run *r = add_run(x, (tide__policy_kind)kind, true);
        r->is_compared = compare && as_recorded && r->kind == recorded;
        reused |= r->is_compared;
    }
    if (compare && !reused) add_run(x, recorded, false)->is_compared = true;
}

/* Progress is told by the caller's thread alone, while it waits for the other's last run, too. */
static void join(const session *x, pthread_t helper) {
    struct timespec until;
    int error;
    do {
        report_progress(x);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PROGRESS_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        error = pthread_timedjoin_np(helper, NULL, &until);
    } while (error == ETIMEDOUT);
    TIDE__CHECK(error == 0);
}

static tide_status play_runs(session *x) {
    pthread_t helper;
    x->main_thread = pthread_self();
    unsigned plays = 0;
    for (unsigned i = 0; i < x->run_count; i++)
        plays += is_to_find_fit(x, &x->runs[i]) ? 1 + TIDE__FITS_PLAYS : 1;
    x->ops_total = (uint64_t)x->schedule->op_count * plays;
    bool helped = x->run_count > 1 && pthread_create(&helper, NULL, work, x) == 0;
    work(x);
    if (helped) join(x, helper);
    for (unsigned i = 0; i < x->run_count; i++)
        if (x->runs[i].status != TIDE_OK)
            return tide__fail(x->runs[i].status, "%s: %s", tide__policy_name(x->runs[i].kind),
                              x->runs[i].message);
    return TIDE_OK;
}

/* ---- What the recorded run says ---- */

/* Why the recorded allocator's model has nothing to be held against; false where it has. */
static bool cannot_compare(const session *x, char *reason, size_t size) {
    const tide__recorded *r = x->recorded;
    *reason = 0;
    if (r->policy == TIDE__RECORDED_NONE)
        snprintf(reason, size, "no segment events tell what the recorded allocator reserved");
    else if (r->policy == TIDE__RECORDED_MIXED)
        snprintf(reason, size, "segments of both kinds: expandable_segments was switched during the run");
    else if (x->settings->unmodelled > 0)
        snprintf(reason, size, "the allocator setting %s is not modelled", x->settings->unmodelled_name);
    return *reason != 0;
}

/* A heap from before the start that is not known, or was guessed and guessed wrong, proves nothing of a
 * model. */
static void judge_restored(session *x, const run *r, tide__replay_result *out) {
    bool guessed_wrong = r->restored == TIDE__RESTORED_UNSURELY && out->recorded.mismatches > 0;
    if (!r->is_compared || (r->restored != TIDE__RESTORED_NOT && !guessed_wrong)) return;
    out->recorded.compared = out->recorded.mismatches = out->recorded.first_mismatch = 0;
    snprintf(out->recorded.reason, sizeof out->recorded.reason,
             "the recording begins in the middle of a run (%u blocks known from before), and %s",
             x->schedule->blocks_before_start,
             guessed_wrong ? "the heap then cannot be told exactly from the one at the end"
                           : "the file does not tell the heap then");
}

/* Events do not name pools; where addresses had to, it is said beside the comparison. */
static void say_inferred(const tide__schedule *s, tide__replay_result *out) {
    if (*out->recorded.reason != 0 || s->pools_inferred == 0) return;
    snprintf(out->recorded.reason, sizeof out->recorded.reason,
             "the trace names no pool for %u segments given back before the end: by their addresses they are "
             "taken for those of %u private pool%s (CUDA graphs, MemPools)",
             s->regions_inferred, s->pools_inferred, s->pools_inferred == 1 ? "" : "s");
}

static void collect(session *x, tide__replay_result *out) {
    const tide__compare *c = &x->compare;
    out->recorded.policy = x->recorded->policy;
    out->recorded.peak_live = x->schedule->peak_live_recorded;
    out->recorded.peak_reserved = x->recorded->peak;
    out->recorded.has_oom = x->recorded->has_oom;
    out->recorded.oom_event = x->recorded->oom_event;
    out->recorded.compared = c->compared;
    out->recorded.mismatches = c->mismatches;
    out->recorded.first_mismatch = c->first_mismatch;
    say_inferred(x->schedule, out);
    for (unsigned i = 0; i < x->run_count; i++) {
        if (x->runs[i].is_compared && !x->runs[i].result.ran)
            snprintf(out->recorded.reason, sizeof out->recorded.reason, "%s", x->runs[i].result.reason);
        else
            judge_restored(x, &x->runs[i], out);
        if (!x->runs[i].is_request) continue;
        out->policies[x->runs[i].kind] = x->runs[i].result;
        x->runs[i].result = (tide__policy_result){0};
    }
}

static void free_runs(session *x) {
    for (unsigned i = 0; i < x->run_count; i++) free(x->runs[i].result.phases);
}

/* ---- The whole ---- */

static tide_status replay_schedule(session *x, tide__replay_result *out) {
    const tide__schedule *s = x->schedule;
    tide_status status = tide__bound_reserved(s, x->options->event_delay_ns, &out->bound_reserved);
    if (status != TIDE_OK) return status;
    out->allocations = s->allocations;
    out->trace_seconds = s->trace_seconds;
    out->peak_live = s->peak_live;
    out->unknown_frees = s->unknown_frees;
    out->blocks_before_start = s->blocks_before_start;
    out->settings_unmodelled = x->settings->unmodelled;
    bool compare = !cannot_compare(x, out->recorded.reason, sizeof out->recorded.reason);
    tide__compare_begin(&x->compare, s->gpu, x->recorded);
    plan(x, compare);
    status = play_runs(x);
    if (status == TIDE_OK) collect(x, out);
    free_runs(x);
    return status;
}

tide_status tide__replay(const tide__trace *trace, const tide__trace_gpu *gpu,
                         const tide__replay_options *options, tide__replay_result *out) {
    *out = (tide__replay_result){.gpu = gpu->device, .events = gpu->event_count};
    for (int i = 0; i < TIDE__POLICY_COUNT; i++) {
        out->policies[i].kind = (tide__policy_kind)i;
        snprintf(out->policies[i].reason, sizeof out->policies[i].reason, "not asked for");
    }
    tide__schedule schedule;
    tide__recorded recorded;
    tide__torch_settings settings;
    tide_status status = tide__recorded_read(trace, gpu, &recorded);
    if (status == TIDE_OK) status = tide__schedule_make(trace, gpu, options->limit_bytes, &schedule);
    if (status != TIDE_OK) return status;
    tide__torch_settings_read(trace, &settings);
    session x = {.schedule = &schedule, .options = options, .recorded = &recorded, .settings = &settings};
    status = replay_schedule(&x, out);
    tide__schedule_free(&schedule);
    if (status != TIDE_OK) tide__replay_result_free(out);
    return status;
}

void tide__replay_result_free(tide__replay_result *r) {
    for (int i = 0; i < TIDE__POLICY_COUNT; i++) {
        free(r->policies[i].phases);
        r->policies[i].phases = NULL;
        r->policies[i].phase_count = 0;
    }
}
