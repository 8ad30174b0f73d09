/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_meaning: the sentences of a replay. A setting that does as well as
 * pagetide is named beside it, and what a model says is called modelled.
 */
#include "report/replay_meaning.h"

#include <string.h>

#define AS_WELL_PARTS 100 /* a hundredth more is as well */

static bool asked_for(const tide__replay_report *r, int kind) { return r->options->policies & 1u << kind; }

static bool is_on_host(const tide__replay_report *r) {
    return r->options->device && !strcmp(r->options->device, "host");
}

/* A policy that was replayed to the run's end, or NULL. */
static const tide__policy_result *finished(const tide__replay_report *r, int kind) {
    const tide__policy_result *p = &r->result->policies[kind];
    return asked_for(r, kind) && p->ran && !p->oom.happened ? p : NULL;
}

static unsigned count_finished(const tide__replay_report *r) {
    unsigned count = 0;
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) count += finished(r, kind) != NULL;
    return count;
}

/* Before the i-th of `count` things: nothing, a comma, or "and". */
static const char *joint(unsigned i, unsigned count) { return i == 0 ? "" : i + 1 == count ? " and " : ", "; }

static void space(tide__sentences *s) {
    if (s->length) tide__say(s, " ");
}

/* ---- Who fits ---- */

static void say_oom(tide__sentences *s, const tide__policy_result *p) {
    char event[TIDE__COUNT_TEXT], wanted[TIDE__BYTES_TEXT], live[TIDE__BYTES_TEXT],
        reserved[TIDE__BYTES_TEXT];
    space(s);
    tide__say(s, "%s runs out of memory at event %s: %s asked for, %s live, %s reserved.",
              tide__policy_name(p->kind), tide__format_count(p->oom.event, event),
              tide__format_bytes(p->oom.wanted, wanted), tide__format_bytes(p->oom.live, live),
              tide__format_bytes(p->oom.reserved, reserved));
}

static void say_finished(const tide__replay_report *r, tide__sentences *s) {
    unsigned i = 0, count = count_finished(r);
    space(s);
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (finished(r, kind))
            tide__say(s, "%s%s", joint(i++, count), tide__policy_name((tide__policy_kind)kind));
}

static void say_who_fits(const tide__replay_report *r, tide__sentences *s) {
    unsigned ran_out = 0, count = count_finished(r);
    char limit[TIDE__BYTES_TEXT];
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
        const tide__policy_result *p = &r->result->policies[kind];
        if (!asked_for(r, kind) || !p->ran || !p->oom.happened) continue;
        say_oom(s, p);
        ran_out++;
    }
    if (count == 0 || (ran_out == 0 && !r->options->limit_bytes)) return;
    say_finished(r, s);
    if (ran_out > 0)
        tide__say(s, count > 1 ? " do not." : " does not.");
    else
        tide__say(s, " fit%s into %s.", count > 1 ? "" : "s",
                  tide__format_bytes(r->options->limit_bytes, limit));
}

static void say_limits(const tide__replay_report *r, tide__sentences *s) {
    unsigned i = 0, count = 0;
    char limit[TIDE__BYTES_TEXT];
    const tide__policy_result *policies = r->result->policies;
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        count += asked_for(r, kind) && policies[kind].fits_from > 0;
    if (count == 0) return;
    tide__say(s, " The least that is enough: ");
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (asked_for(r, kind) && policies[kind].fits_from > 0)
            tide__say(s, "%s%s for %s", joint(i++, count),
                      tide__format_bytes(policies[kind].fits_from, limit),
                      tide__policy_name((tide__policy_kind)kind));
    tide__say(s, " (to 8 MiB).");
}

/* ---- What they reserve ---- */

static void say_difference(const tide__replay_report *r, tide__sentences *s,
                           const tide__policy_result *ours) {
    unsigned i = 0, count = count_finished(r) - 1;
    char bytes[TIDE__BYTES_TEXT];
    for (int kind = 0; kind < TIDE__POLICY_PAGETIDE; kind++) {
        const tide__policy_result *p = finished(r, kind);
        if (!p) continue;
        bool less = p->peak_reserved > ours->peak_reserved;
        uint64_t by = less ? p->peak_reserved - ours->peak_reserved : ours->peak_reserved - p->peak_reserved;
        if (by == 0)
            tide__say(s, "%sas much as %s", joint(i++, count), tide__policy_name(p->kind));
        else
            tide__say(s, "%s%s %s than %s", joint(i++, count), tide__format_bytes(by, bytes),
                      less ? "less" : "more", tide__policy_name(p->kind));
    }
}

static void say_comparison(const tide__replay_report *r, tide__sentences *s,
                           const tide__policy_result *ours) {
    unsigned i = 0, count = count_finished(r);
    char ratio[TIDE__COUNT_TEXT];
    if (count < 2) return;
    space(s);
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
        const tide__policy_result *p = finished(r, kind);
        if (!p) continue;
        tide__say(s, "%s%s%s %s x", joint(i, count), tide__policy_name(p->kind), i == 0 ? " reserves" : "",
                  tide__format_ratio(p->ratio, ratio));
        if (i++ == 0) tide__say(s, " what the run held");
    }
    tide__say(s, ", which is ");
    say_difference(r, s, ours);
    tide__say(s, ".");
}

/* What it takes of memory: the smallest limit where limits are the question, else the peak. */
static uint64_t need_of(const tide__replay_report *r, const tide__policy_result *p) {
    return r->options->limit_bytes ? p->fits_from : p->oom.happened ? 0 : p->peak_reserved;
}

/* A setting is cheaper to try than another allocator. */
static void say_as_well(const tide__replay_report *r, tide__sentences *s) {
    const tide__policy_result *ours = &r->result->policies[TIDE__POLICY_PAGETIDE];
    const tide__policy_result *other = &r->result->policies[TIDE__POLICY_EXPANDABLE];
    if (!asked_for(r, ours->kind) || !asked_for(r, other->kind) || !ours->ran || !other->ran) return;
    uint64_t need = need_of(r, ours), others = need_of(r, other);
    if (need == 0 || others == 0 || others > need + need / AS_WELL_PARTS) return;
    tide__say(s, " expandable, a setting of PyTorch, does as well here.");
}

/* ---- What it costs ---- */

static void say_cost(const tide__replay_report *r, tide__sentences *s, const tide__policy_result *ours) {
    const tide__policy_result *other = finished(r, TIDE__POLICY_EXPANDABLE);
    space(s);
    tide__say(s, "pagetide spends %.2f s in the driver (%s)", ours->driver_seconds,
              is_on_host(r) ? "as measured here" : "modelled");
    if (r->result->trace_seconds > 0)
        tide__say(s, ", %.1f%% of the run's time", 100 * ours->driver_seconds / r->result->trace_seconds);
    if (other) tide__say(s, "; expandable %.2f s", other->driver_seconds);
    if (r->options->trim_phases)
        tide__say(s, "; the trims at the phases' ends cost pagetide %.2f s, waits included",
                  ours->trim_seconds);
    tide__say(s, ".");
}

/* The recorded error is explained by a limit that the file does not hold. */
static void say_limit_hint(const tide__replay_report *r, tide__sentences *s) {
    char event[TIDE__COUNT_TEXT];
    if (!r->result->recorded.has_oom || r->options->limit_bytes) return;
    space(s);
    tide__say(s,
              "The recorded run was refused memory at event %s; --limit with what it was allowed shows who "
              "would have been.",
              tide__format_count(r->result->recorded.oom_event, event));
}

void tide__say_meaning(const tide__replay_report *r, tide__sentences *s) {
    const tide__policy_result *ours = finished(r, TIDE__POLICY_PAGETIDE);
    say_who_fits(r, s);
    if (r->options->limit_bytes)
        say_limits(r, s);
    else if (ours)
        say_comparison(r, s, ours);
    say_as_well(r, s);
    if (ours) say_cost(r, s, ours);
    say_limit_hint(r, s);
}

/* ---- Words and notes ---- */

void tide__say_legend(const tide__replay_report *r, tide__sentences *s) {
    tide__say(s,
              "native: PyTorch's default allocator; expandable: the same with expandable_segments:True in "
              "PYTORCH_CUDA_ALLOC_CONF. live: what callers hold; reserved: what is held of the GPU for "
              "them; ratio: of their peaks. moves: chunks mapped at another address; waits: of the host or "
              "a stream for the GPU. ");
    if (is_on_host(r))
        tide__say(s, "driver s: in calls of the driver, pagetide's as measured here, the others' modelled.");
    else
        tide__say(s, "driver s: in calls of the driver, modelled by what each costs on an H200.");
    tide__say(s, " phase: a part of the run, as the recording names it; peak: the most reserved in it; ");
    tide__say(s,
              r->options->trim_phases
                  ? "at end: after the trim, at the end with most reserved beyond live (each policy's own)."
                  : "excess: reserved beyond live as it ended, at the end where that was most (each "
                    "policy's own).");
}

void tide__say_notes(const tide__replay_report *r, tide__sentences *s) {
    const tide__replay_result *result = r->result;
    char count[TIDE__COUNT_TEXT];
    if (result->recorded.compared)
        tide__say(s,
                  "Taken from the recording: the addresses that the driver chose, and the moments at which "
                  "everything free was given back.");
    if (result->blocks_before_start)
        tide__say(s, " %s blocks were live before the recording began.",
                  tide__format_count(result->blocks_before_start, count));
    if (result->unknown_frees)
        tide__say(s, " %s frees of blocks that the file does not show were left out.",
                  tide__format_count(result->unknown_frees, count));
}
