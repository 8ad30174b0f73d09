/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_text: a replay for a person. From the top: what was recorded, a row a
 * policy, a row a phase, the bound, and what it all means in a sentence or two.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "report/replay_report.h"
#include "report/text.h"

#define PHASES_SHOWN 24
#define PHASE_COLUMNS 18 /* of a phase's name, in 80 */

typedef unsigned long long ull;

typedef struct printer {
    const tide__replay_report *report;
    const tide__replay_result *result;
    FILE *out;
    int width;
} printer;

/* ---- Sentences: put together in a buffer, then wrapped ---- */

typedef struct sentence {
    char text[2048];
    size_t length;
} sentence;

static void say(sentence *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(sentence *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->text + s->length, sizeof s->text - s->length, format, args);
    va_end(args);
    if (n > 0) s->length += tide__min((uint64_t)n, sizeof s->text - 1 - s->length);
}

static void print_sentences(const printer *p, const sentence *s) {
    if (s->length == 0) return;
    /* Prose wider than this is hard to read, whatever the terminal. */
    int width = p->width < 100 ? p->width : 100;
    putc('\n', p->out);
    tide__print_wrapped(p->out, width, 2, s->text);
}

/* A ratio with the digits that matter: 2.79, but 1.004. */
static const char *format_ratio(double ratio, char buf[16]) {
    if (!(ratio >= 0 && ratio < 1e6)) return strcpy(buf, "-");
    snprintf(buf, 16, ratio < 1.1 ? "%.3f" : "%.2f", ratio);
    return buf;
}

static double ratio_to_live(const printer *p, uint64_t reserved) {
    return p->result->peak_live ? (double)reserved / (double)p->result->peak_live : 0;
}

/* ---- What was recorded ---- */

static void say_recorded(const printer *p, sentence *s) {
    const tide__replay_result *r = p->result;
    char reserved[TIDE__BYTES_TEXT], count[TIDE__COUNT_TEXT], first[TIDE__COUNT_TEXT], ratio[16];
    switch (r->recorded.policy) {
    case TIDE__RECORDED_NONE: say(s, "The file does not show which allocator was recorded"); break;
    case TIDE__RECORDED_MIXED: say(s, "Recorded with a mix of native and expandable segments"); break;
    case TIDE__RECORDED_NATIVE: say(s, "Recorded with PyTorch's native allocator"); break;
    case TIDE__RECORDED_EXPANDABLE: say(s, "Recorded with PyTorch's expandable segments"); break;
    }
    if (r->recorded.peak_reserved)
        say(s, ", which reserved %s at its peak (%s x)",
            tide__format_bytes(r->recorded.peak_reserved, reserved),
            format_ratio(ratio_to_live(p, r->recorded.peak_reserved), ratio));
    if (r->recorded.has_oom) say(s, " and ran out of memory");
    if (r->recorded.compared == 0) {
        if (r->recorded.reason[0])
            say(s, ". No comparison with the recording: %s.", r->recorded.reason);
        else
            say(s, ".");
        return;
    }
    say(s, ". The model of it here ");
    tide__format_count(r->recorded.compared, count);
    if (r->recorded.mismatches == 0) {
        say(s, "agrees with the recording at all %s events compared, in bytes reserved and in addresses.",
            count);
        return;
    }
    char wrong[TIDE__COUNT_TEXT];
    say(s, "DIFFERS from the recording at %s of %s events compared, first at event %s: do not rely on it.",
        tide__format_count(r->recorded.mismatches, wrong), count,
        tide__format_count(r->recorded.first_mismatch, first));
}

static void print_header(const printer *p) {
    const tide__replay_result *r = p->result;
    char events[TIDE__COUNT_TEXT], allocations[TIDE__COUNT_TEXT], time[TIDE__COUNT_TEXT],
        live[TIDE__BYTES_TEXT];
    fprintf(p->out, "%s, GPU %d\n", p->report->file, r->gpu);
    sentence s = {0};
    say(&s, "%s events, %s allocations, %s; %s live at the peak.", tide__format_count(r->events, events),
        tide__format_count(r->allocations, allocations), tide__format_seconds(r->trace_seconds, time),
        tide__format_bytes(r->peak_live, live));
    if (p->report->options->limit_bytes) {
        char limit[TIDE__BYTES_TEXT];
        say(&s, " Limit: %s.", tide__format_bytes(p->report->options->limit_bytes, limit));
    }
    say(&s, " ");
    say_recorded(p, &s);
    print_sentences(p, &s);
}

/* ---- A row a policy ---- */

static bool asked_for(const printer *p, int kind) { return p->report->options->policies & 1u << kind; }

static void print_oom_cell(const printer *p, const tide__policy_result *policy) {
    char event[TIDE__COUNT_TEXT];
    if (policy->oom.happened)
        fprintf(p->out, "  event %s\n", tide__format_count(policy->oom.event, event));
    else
        fputs("  no\n", p->out);
}

static void print_policy(const printer *p, const tide__policy_result *policy) {
    char reserved[TIDE__BYTES_TEXT], ratio[16], moves[TIDE__COUNT_TEXT], waits[TIDE__COUNT_TEXT];
    fprintf(p->out, "  %-11s", tide__policy_name(policy->kind));
    if (!policy->ran) {
        fprintf(p->out, " not replayed: %s\n", policy->reason);
        return;
    }
    fprintf(p->out, "%13s  %6s  %8s  %7s  %8.2f", tide__format_bytes(policy->peak_reserved, reserved),
            format_ratio(policy->ratio, ratio), tide__format_count(policy->moves, moves),
            tide__format_count(policy->waits, waits), policy->driver_seconds);
    print_oom_cell(p, policy);
}

static void print_policies(const printer *p) {
    fprintf(p->out, "\n  %-11s%13s  %6s  %8s  %7s  %8s  %s\n", "policy", "peak reserved", "ratio", "moves",
            "waits", "driver s", "out of memory");
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (asked_for(p, kind)) print_policy(p, &p->result->policies[kind]);
}

/* ---- A row a phase ---- */

/* One unit for a table, so that its columns compare at a glance. */
static double table_unit(const printer *p, const char **name) {
    if (p->result->peak_live >= 2 * TIDE__GIB) {
        *name = "GiB";
        return (double)TIDE__GIB;
    }
    *name = "MiB";
    return (double)TIDE__MIB;
}

static const tide__phase_result *find_phase(const tide__policy_result *policy, uint32_t name) {
    for (size_t i = 0; i < policy->phase_count; i++)
        if (policy->phases[i].name == name) return &policy->phases[i];
    return NULL; /* out of memory before it */
}

/* The policy that saw most phases: one that ran out of memory saw only the first. */
static const tide__policy_result *longest_policy(const printer *p) {
    const tide__policy_result *longest = NULL;
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
        const tide__policy_result *policy = &p->result->policies[kind];
        if (!asked_for(p, kind) || !policy->ran) continue;
        if (!longest || policy->phase_count > longest->phase_count) longest = policy;
    }
    return longest;
}

static void print_phase(const printer *p, const tide__phase_result *row, double unit, int name_columns) {
    const char *name = p->report->trace->strings[row->name];
    fputs("  ", p->out);
    tide__print_name(p->out, name[0] ? name : "(no phase)", name_columns);
    fprintf(p->out, "%9.2f", (double)row->peak_live / unit);
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
        const tide__policy_result *policy = &p->result->policies[kind];
        if (!asked_for(p, kind) || !policy->ran) continue;
        const tide__phase_result *phase = find_phase(policy, row->name);
        if (phase)
            fprintf(p->out, "  %7.2f %7.2f", (double)phase->peak_reserved / unit,
                    (double)phase->end_reserved / unit);
        else
            fprintf(p->out, "  %7s %7s", "-", "-");
    }
    putc('\n', p->out);
}

static void print_phase_header(const printer *p, const char *unit_name, int name_columns) {
    fprintf(p->out, "\n  %-*s%9s", name_columns, unit_name, "");
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (asked_for(p, kind) && p->result->policies[kind].ran)
            fprintf(p->out, "  %15s", tide__policy_name((tide__policy_kind)kind));
    fprintf(p->out, "\n  %-*s%9s", name_columns, "phase", "peak live");
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (asked_for(p, kind) && p->result->policies[kind].ran) fprintf(p->out, "  %7s %7s", "peak", "end");
    putc('\n', p->out);
}

static void print_phases(const printer *p) {
    const tide__policy_result *longest = longest_policy(p);
    if (!longest || longest->phase_count == 0) return;
    const char *unit_name;
    double unit = table_unit(p, &unit_name);
    int name_columns = PHASE_COLUMNS + (p->width > 80 ? p->width - 80 : 0);
    if (name_columns > 40) name_columns = 40;
    print_phase_header(p, unit_name, name_columns);
    for (size_t i = 0; i < longest->phase_count && i < PHASES_SHOWN; i++)
        print_phase(p, &longest->phases[i], unit, name_columns);
    if (longest->phase_count > PHASES_SHOWN)
        fprintf(p->out, "  ... and %zu more (--json has them all)\n", longest->phase_count - PHASES_SHOWN);
    fprintf(p->out, "  peak, end: reserved at the phase's peak, and when it ended with most beyond\n         "
                    "    live bytes (each policy at its own worst occurrence)\n");
}

/* ---- What it means ---- */

static void say_bound(const printer *p, sentence *s) {
    char bound[TIDE__BYTES_TEXT], ratio[16];
    if (!p->result->bound_reserved) return;
    say(s, "Bound: an allocator without fragmentation that never waits would reserve %s here (%s x).",
        tide__format_bytes(p->result->bound_reserved, bound),
        format_ratio(ratio_to_live(p, p->result->bound_reserved), ratio));
    const tide__policy_result *pagetide = tide__report_policy(p->result, TIDE__POLICY_PAGETIDE);
    if (pagetide && pagetide->waits > 0) say(s, " pagetide waited, and so may stay below it.");
}

/* The policy that pagetide is held against: the recorded one if it was replayed. */
static const tide__policy_result *peer(const printer *p) {
    const tide__policy_result *native = tide__report_policy(p->result, TIDE__POLICY_NATIVE);
    const tide__policy_result *expandable = tide__report_policy(p->result, TIDE__POLICY_EXPANDABLE);
    if (p->result->recorded.policy == TIDE__RECORDED_EXPANDABLE && expandable) return expandable;
    return native ? native : expandable;
}

static void say_oom(sentence *s, const tide__policy_result *policy) {
    char event[TIDE__COUNT_TEXT], wanted[TIDE__BYTES_TEXT], live[TIDE__BYTES_TEXT],
        reserved[TIDE__BYTES_TEXT];
    say(s, "%s runs out of memory at event %s: %s asked for, %s live, %s reserved.",
        tide__policy_name(policy->kind), tide__format_count(policy->oom.event, event),
        tide__format_bytes(policy->oom.wanted, wanted), tide__format_bytes(policy->oom.live, live),
        tide__format_bytes(policy->oom.reserved, reserved));
}

static void say_comparison(const printer *p, sentence *s, const tide__policy_result *other,
                           const tide__policy_result *ours) {
    char saved[TIDE__BYTES_TEXT], ratio[16], our_ratio[16];
    say(s, "%s reserved %s x what the run held; pagetide %s x", tide__policy_name(other->kind),
        format_ratio(other->ratio, ratio), format_ratio(ours->ratio, our_ratio));
    if (other->peak_reserved > ours->peak_reserved)
        say(s, ", %s less", tide__format_bytes(other->peak_reserved - ours->peak_reserved, saved));
    if (p->result->trace_seconds > 0)
        say(s, ", for %.2f s in the driver, %.1f%% of the run's time", ours->driver_seconds,
            100 * ours->driver_seconds / p->result->trace_seconds);
    say(s, ".");
}

static void say_meaning(const printer *p, sentence *s) {
    const tide__policy_result *ours = tide__report_policy(p->result, TIDE__POLICY_PAGETIDE);
    const tide__policy_result *other = peer(p);
    /* A policy that stopped half way has no peak to compare. */
    if (ours && other && !ours->oom.happened && !other->oom.happened) say_comparison(p, s, other, ours);
    for (int kind = 0; kind < TIDE__POLICY_PAGETIDE; kind++) {
        const tide__policy_result *policy = &p->result->policies[kind];
        if (!asked_for(p, kind) || !policy->ran || !policy->oom.happened) continue;
        if (s->length) say(s, " ");
        say_oom(s, policy);
    }
    if (!ours) return;
    if (ours->oom.happened) {
        if (s->length) say(s, " ");
        say_oom(s, ours);
    } else if (s->length && other && other->oom.happened) {
        char ratio[16], reserved[TIDE__BYTES_TEXT];
        say(s, " pagetide does not: it reserves %s at its peak, %s x what the run held.",
            tide__format_bytes(ours->peak_reserved, reserved), format_ratio(ours->ratio, ratio));
    }
}

/* The recorded error is explained by a limit that the file does not hold. */
static void say_limit_hint(const printer *p, sentence *s) {
    if (!p->result->recorded.has_oom || p->report->options->limit_bytes) return;
    char event[TIDE__COUNT_TEXT];
    say(s,
        "%sThe recorded run was refused memory at event %s; --limit with what it was allowed shows who would "
        "have been.",
        s->length ? " " : "", tide__format_count(p->result->recorded.oom_event, event));
}

static void say_notes(const printer *p, sentence *s) {
    const tide__replay_result *r = p->result;
    char count[TIDE__COUNT_TEXT];
    if (r->recorded.compared)
        say(s, "Taken from the recording: the addresses that the driver chose, and the moments at which "
               "everything free was given back.");
    if (r->blocks_before_start)
        say(s, " %s blocks were live before the recording began.",
            tide__format_count(r->blocks_before_start, count));
    if (r->unknown_frees)
        say(s, " %s frees of blocks that the file does not show were left out.",
            tide__format_count(r->unknown_frees, count));
    if (p->report->options->trim_phases) {
        const tide__policy_result *ours = tide__report_policy(r, TIDE__POLICY_PAGETIDE);
        if (ours) say(s, " The trims at the phases' ends cost pagetide %.2f s.", ours->trim_seconds);
    }
}

void tide__report_replay_text(const tide__replay_report *report, FILE *out, int width) {
    printer p = {report, report->result, out, width < 80 ? 80 : width};
    sentence bound = {0}, meaning = {0}, notes = {0};
    print_header(&p);
    print_policies(&p);
    print_phases(&p);
    say_bound(&p, &bound);
    print_sentences(&p, &bound);
    say_meaning(&p, &meaning);
    say_limit_hint(&p, &meaning);
    print_sentences(&p, &meaning);
    say_notes(&p, &notes);
    print_sentences(&p, &notes);
}
