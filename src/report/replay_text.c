/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_text: a replay for a person. From the top: what it means, what was
 * recorded and under which options it is replayed, a row a policy, a row a
 * phase, what the words stand for, the bound. A table too wide for the terminal is
 * continued below itself.
 */
#include <string.h>

#include "report/replay_meaning.h"

#define PHASES_SHOWN 24
#define PHASE_COLUMNS 18       /* of a phase's name, in 80 */
#define PHASE_COLUMNS_LEAST 12 /* before policies go below */
#define PHASE_COLUMNS_MOST 40
#define POLICY_TABLE_COLUMNS 78
#define LEAST_WIDTH 50

typedef struct printer {
    const tide__replay_report *report;
    const tide__replay_result *result;
    FILE *out;
    int width;
} printer;

/* ---- Sentences ---- */

static void print_sentences(const printer *p, const tide__sentences *s) {
    if (s->length == 0) return;
    /* Prose wider than this is hard to read, whatever the terminal. */
    int width = p->width < 100 ? p->width : 100;
    putc('\n', p->out);
    tide__print_wrapped(p->out, width, 2, s->text);
}

static double ratio_of(uint64_t reserved, uint64_t live) {
    return live ? (double)reserved / (double)live : 0;
}

/* ---- What was recorded ---- */

static bool asked_for(const printer *p, int kind) { return p->report->options->policies & 1u << kind; }

/* Whether the row of the recorded allocator ends before the recorded run did. */
static bool stops_early(const printer *p) {
    const tide__replay_result *r = p->result;
    bool expandable = r->recorded.policy == TIDE__RECORDED_EXPANDABLE;
    int kind = expandable ? TIDE__POLICY_EXPANDABLE : TIDE__POLICY_NATIVE;
    const tide__policy_result *row = &r->policies[kind];
    if (!asked_for(p, kind) || !row->ran || !row->oom.happened) return false;
    return !r->recorded.has_oom || row->oom.event < r->recorded.oom_event;
}

static void say_compared(const printer *p, tide__sentences *s) {
    const tide__replay_result *r = p->result;
    char count[TIDE__COUNT_TEXT], wrong[TIDE__COUNT_TEXT], first[TIDE__COUNT_TEXT];
    tide__format_count(r->recorded.compared, count);
    tide__say(s, ". %s of it here ", stops_early(p) ? "Without the limit the model" : "The model");
    if (r->recorded.mismatches == 0)
        tide__say(s,
                  "agrees with the recording at all %s events compared, in bytes reserved and in addresses.",
                  count);
    else
        tide__say(
            s,
            "DIFFERS from the recording at %s of %s events compared, first at event %s: do not rely on it.",
            tide__format_count(r->recorded.mismatches, wrong), count,
            tide__format_count(r->recorded.first_mismatch, first));
    if (r->recorded.reason[0]) tide__say(s, " Inferred: %s.", r->recorded.reason);
}

static void say_recorded(const printer *p, tide__sentences *s) {
    const tide__replay_result *r = p->result;
    char reserved[TIDE__BYTES_TEXT], ratio[TIDE__COUNT_TEXT];
    switch (r->recorded.policy) {
    case TIDE__RECORDED_NONE: tide__say(s, "The file does not show which allocator was recorded"); break;
    case TIDE__RECORDED_MIXED: tide__say(s, "Recorded with a mix of native and expandable segments"); break;
    case TIDE__RECORDED_NATIVE: tide__say(s, "Recorded with PyTorch's native allocator"); break;
    case TIDE__RECORDED_EXPANDABLE: tide__say(s, "Recorded with PyTorch's expandable segments"); break;
    }
    if (r->recorded.peak_reserved)
        tide__say(s, ", which reserved %s at its peak (%s x)",
                  tide__format_bytes(r->recorded.peak_reserved, reserved),
                  tide__format_ratio(ratio_of(r->recorded.peak_reserved, r->recorded.peak_live), ratio));
    if (r->recorded.has_oom) tide__say(s, " and ran out of memory");
    if (r->recorded.compared)
        say_compared(p, s);
    else if (r->recorded.reason[0])
        tide__say(s, ". No comparison with the recording: %s.", r->recorded.reason);
    else
        tide__say(s, ".");
}

const char *tide__report_cross_stream(tide_cross_stream mode) {
    switch (mode) {
    case TIDE_CROSS_STREAM_OFF: return "off";
    case TIDE_CROSS_STREAM_WAIT: return "wait";
    default: return "idle";
    }
}

/* The options that the figures hang on; the delay is sim's, and the bound's. */
static void say_options(const printer *p, tide__sentences *s) {
    const tide__replay_options *o = p->report->options;
    bool host = o->device && !strcmp(o->device, "host");
    if (o->limit_bytes) {
        char limit[TIDE__BYTES_TEXT];
        tide__say(s, " Limit: %s.", tide__format_bytes(o->limit_bytes, limit));
    }
    if (host)
        tide__say(s, " Device: host");
    else
        tide__say(s, " Event delay: %g ms", (double)o->event_delay_ns / 1e6);
    if (asked_for(p, TIDE__POLICY_PAGETIDE))
        tide__say(s, "; cross-stream: %s", tide__report_cross_stream(o->cross_stream));
    tide__say(s, ".");
}

static void print_recorded(const printer *p) {
    const tide__replay_result *r = p->result;
    char events[TIDE__COUNT_TEXT], allocations[TIDE__COUNT_TEXT], time[TIDE__COUNT_TEXT],
        live[TIDE__BYTES_TEXT];
    tide__sentences s = {0};
    tide__say(&s, "%s events, %s allocations, %s; %s live at the peak", tide__format_count(r->events, events),
              tide__format_count(r->allocations, allocations), tide__format_seconds(r->trace_seconds, time),
              tide__format_bytes(r->peak_live, live));
    if (r->peak_live > r->recorded.peak_live)
        tide__say(&s, " (%s without the request that the recorded run was refused)",
                  tide__format_bytes(r->recorded.peak_live, live));
    tide__say(&s, ".");
    say_options(p, &s);
    tide__say(&s, " ");
    say_recorded(p, &s);
    print_sentences(p, &s);
}

/* ---- A row a policy ---- */

enum { TO_FIT = 1, WORK_DONE = 2 }; /* of the columns: one table, or on a narrow terminal two */

static void print_not_replayed(const printer *p, const tide__policy_result *policy) {
    tide__sentences s = {0};
    tide__say(&s, "%s not replayed: %s", tide__policy_name(policy->kind), policy->reason);
    tide__print_wrapped(p->out, p->width, 2, s.text);
}

static void print_policy(const printer *p, const tide__policy_result *policy, int columns) {
    char reserved[TIDE__BYTES_TEXT], ratio[TIDE__COUNT_TEXT], moves[TIDE__COUNT_TEXT],
        waits[TIDE__COUNT_TEXT], event[TIDE__COUNT_TEXT];
    if (!policy->ran) {
        if (columns & TO_FIT) print_not_replayed(p, policy);
        return;
    }
    fprintf(p->out, "  %-11s", tide__policy_name(policy->kind));
    /* Who stopped half way has no ratio to compare. */
    if (columns & TO_FIT)
        fprintf(p->out, "%13s  %6s", tide__format_bytes(policy->peak_reserved, reserved),
                policy->oom.happened ? "-" : tide__format_ratio(policy->ratio, ratio));
    if (columns & WORK_DONE)
        fprintf(p->out, "  %8s  %7s  %8.2f", tide__format_count(policy->moves, moves),
                tide__format_count(policy->waits, waits), policy->driver_seconds);
    if (columns & TO_FIT)
        fprintf(p->out, "  %s%s", policy->oom.happened ? "event " : "no",
                policy->oom.happened ? tide__format_count(policy->oom.event, event) : "");
    putc('\n', p->out);
}

static void print_policy_table(const printer *p, int columns) {
    fprintf(p->out, "\n  %-11s", "policy");
    if (columns & TO_FIT) fprintf(p->out, "%13s  %6s", "peak reserved", "ratio");
    if (columns & WORK_DONE) fprintf(p->out, "  %8s  %7s  %8s", "moves", "waits", "driver s");
    if (columns & TO_FIT) fputs("  out of memory", p->out);
    putc('\n', p->out);
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (asked_for(p, kind)) print_policy(p, &p->result->policies[kind], columns);
}

static void print_policies(const printer *p) {
    if (p->width >= POLICY_TABLE_COLUMNS) {
        print_policy_table(p, TO_FIT | WORK_DONE);
        return;
    }
    print_policy_table(p, TO_FIT);
    print_policy_table(p, WORK_DONE);
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

/* The policy that got furthest: one that ran out of memory saw neither later phases nor later peaks. */
static const tide__policy_result *longest_policy(const printer *p) {
    const tide__policy_result *longest = NULL;
    uint64_t furthest = 0;
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
        const tide__policy_result *policy = &p->result->policies[kind];
        uint64_t end = policy->oom.happened ? policy->oom.event : UINT64_MAX;
        if (!asked_for(p, kind) || !policy->ran || (longest && end <= furthest)) continue;
        longest = policy;
        furthest = end;
    }
    return longest;
}

typedef enum figure { PEAK_RESERVED, END_LIVE, END_RESERVED, END_EXCESS } figure;

static double figure_of(const tide__phase_result *phase, figure which) {
    switch (which) {
    case PEAK_RESERVED: return (double)phase->peak_reserved;
    case END_LIVE: return (double)phase->end_live;
    case END_RESERVED: return (double)phase->end_reserved;
    default: return (double)phase->end_reserved - (double)phase->end_live;
    }
}

/* What a table of phases shows: a peak of live bytes or not, and figures of each policy. */
typedef struct layout {
    const char *title; /* after the unit */
    bool with_live;
    int count, columns; /* of figures, and of each */
    figure figures[2];
    const char *heads[2];
} layout;

/* Each policy's end is of another occurrence, so that only what exceeds its live bytes compares. */
static const layout peaks_and_excess = {"", true, 2, 7, {PEAK_RESERVED, END_EXCESS}, {"peak", "excess"}};
/* With trims the ends are what was asked about: live bytes stand beside them. */
static const layout peaks_alone = {"", true, 1, 10, {PEAK_RESERVED}, {"peak"}};
static const layout ends_trimmed = {", at end", false, 2, 8, {END_LIVE, END_RESERVED}, {"live", "reserved"}};

static int group_columns(const layout *l) { return 2 + l->count * l->columns + l->count - 1; }

/* A part of a table that the width has room for. */
typedef struct table {
    const layout *layout;
    const tide__policy_result *policies[TIDE__POLICY_COUNT];
    int policy_count, name_columns;
} table;

static void print_phase(const printer *p, const table *t, const tide__phase_result *row, double unit) {
    const char *name = p->report->trace->strings[row->name];
    fputs("  ", p->out);
    tide__print_name(p->out, name[0] ? name : "(no phase)", t->name_columns);
    if (t->layout->with_live) fprintf(p->out, "%9.2f", (double)row->peak_live / unit);
    for (int i = 0; i < t->policy_count; i++) {
        const tide__phase_result *phase = find_phase(t->policies[i], row->name);
        for (int k = 0; k < t->layout->count; k++) {
            fprintf(p->out, k == 0 ? "  " : " ");
            if (phase)
                fprintf(p->out, "%*.2f", t->layout->columns, figure_of(phase, t->layout->figures[k]) / unit);
            else
                fprintf(p->out, "%*s", t->layout->columns, "-");
        }
    }
    putc('\n', p->out);
}

static void print_phase_header(const printer *p, const table *t, const char *unit_name) {
    int live_columns = t->layout->with_live ? 9 : 0;
    char title[32];
    snprintf(title, sizeof title, "%s%s", unit_name, t->layout->title);
    fprintf(p->out, "\n  %-*s%*s", t->name_columns, title, live_columns, "");
    for (int i = 0; i < t->policy_count; i++)
        fprintf(p->out, "%*s", group_columns(t->layout), tide__policy_name(t->policies[i]->kind));
    fprintf(p->out, "\n  %-*s%*s", t->name_columns, "phase", live_columns, live_columns ? "peak live" : "");
    for (int i = 0; i < t->policy_count; i++)
        for (int k = 0; k < t->layout->count; k++)
            fprintf(p->out, "%*s", t->layout->columns + (k == 0 ? 2 : 1), t->layout->heads[k]);
    putc('\n', p->out);
}

static void print_phase_table(const printer *p, const table *t, const tide__policy_result *longest) {
    const char *unit_name;
    double unit = table_unit(p, &unit_name);
    print_phase_header(p, t, unit_name);
    for (size_t i = 0; i < longest->phase_count && i < PHASES_SHOWN; i++)
        print_phase(p, t, &longest->phases[i], unit);
    if (longest->phase_count > PHASES_SHOWN)
        fprintf(p->out, "  ... and %zu more (--json has them all)\n", longest->phase_count - PHASES_SHOWN);
}

/* As many policies side by side as there is room for, the others below. */
static void print_layout(const printer *p, const layout *l, const tide__policy_result *longest) {
    const tide__policy_result *ran[TIDE__POLICY_COUNT];
    int count = 0, group = group_columns(l), lead = 2 + (l->with_live ? 9 : 0);
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (asked_for(p, kind) && p->result->policies[kind].ran) ran[count++] = &p->result->policies[kind];
    int fitting = (p->width - lead - PHASE_COLUMNS_LEAST) / group;
    fitting = fitting < 1 ? 1 : fitting > count ? count : fitting;
    int room = p->width - lead - fitting * group;
    int wanted = PHASE_COLUMNS + (p->width > 80 ? p->width - 80 : 0);
    if (wanted > PHASE_COLUMNS_MOST) wanted = PHASE_COLUMNS_MOST;
    for (int first = 0; first < count; first += fitting) {
        table t = {.layout = l, .name_columns = wanted < room ? wanted : room};
        for (int i = first; i < count && i < first + fitting; i++) t.policies[t.policy_count++] = ran[i];
        print_phase_table(p, &t, longest);
    }
}

static void print_phases(const printer *p) {
    const tide__policy_result *longest = longest_policy(p);
    if (!longest || longest->phase_count == 0) return;
    if (!p->report->options->trim_phases) {
        print_layout(p, &peaks_and_excess, longest);
        return;
    }
    print_layout(p, &peaks_alone, longest);
    print_layout(p, &ends_trimmed, longest);
}

/* ---- The whole ---- */

static void say_bound(const printer *p, tide__sentences *s) {
    char bound[TIDE__BYTES_TEXT], ratio[TIDE__COUNT_TEXT];
    if (!p->result->bound_reserved) return;
    tide__say(s, "Bound: an allocator without fragmentation that never waits would reserve %s here (%s x).",
              tide__format_bytes(p->result->bound_reserved, bound),
              tide__format_ratio(ratio_of(p->result->bound_reserved, p->result->peak_live), ratio));
    const tide__policy_result *pagetide = tide__report_policy(p->result, TIDE__POLICY_PAGETIDE);
    if (pagetide && pagetide->waits > 0) tide__say(s, " pagetide waited, and so may stay below it.");
}

void tide__report_replay_text(const tide__replay_report *report, FILE *out, int width) {
    printer p = {report, report->result, out, width < LEAST_WIDTH ? LEAST_WIDTH : width};
    tide__sentences meaning = {0}, legend = {0}, bound = {0}, notes = {0};
    fprintf(out, "%s, GPU %d\n", report->file, report->result->gpu);
    tide__say_meaning(report, &meaning);
    print_sentences(&p, &meaning);
    print_recorded(&p);
    print_policies(&p);
    print_phases(&p);
    tide__say_legend(report, &legend);
    print_sentences(&p, &legend);
    say_bound(&p, &bound);
    print_sentences(&p, &bound);
    tide__say_notes(report, &notes);
    print_sentences(&p, &notes);
}
