/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_text: a replay for a person. From the top: what was recorded and under
 * which options it is replayed, a row a policy, a row a phase, the bound, and
 * what it all means in a sentence or two. A table too wide for the terminal is
 * continued below itself.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "report/replay_report.h"
#include "report/text.h"

#define PHASES_SHOWN 24
#define PHASE_COLUMNS 18       /* of a phase's name, in 80 */
#define PHASE_COLUMNS_LEAST 12 /* before policies go below */
#define PHASE_COLUMNS_MOST 40
#define POLICY_TABLE_COLUMNS 78
#define LEAST_WIDTH 50

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
    char wrong[TIDE__COUNT_TEXT];
    if (r->recorded.mismatches == 0)
        say(s, "agrees with the recording at all %s events compared, in bytes reserved and in addresses.",
            count);
    else
        say(s,
            "DIFFERS from the recording at %s of %s events compared, first at event %s: do not rely on it.",
            tide__format_count(r->recorded.mismatches, wrong), count,
            tide__format_count(r->recorded.first_mismatch, first));
    if (r->recorded.reason[0]) say(s, " Inferred: %s.", r->recorded.reason);
}

static bool asked_for(const printer *p, int kind) { return p->report->options->policies & 1u << kind; }

const char *tide__report_cross_stream(tide_cross_stream mode) {
    switch (mode) {
    case TIDE_CROSS_STREAM_OFF: return "off";
    case TIDE_CROSS_STREAM_WAIT: return "wait";
    default: return "idle";
    }
}

/* The options that the figures hang on; the delay is sim's, and the bound's. */
static void say_options(const printer *p, sentence *s) {
    const tide__replay_options *o = p->report->options;
    bool host = o->device && !strcmp(o->device, "host");
    if (o->limit_bytes) {
        char limit[TIDE__BYTES_TEXT];
        say(s, " Limit: %s.", tide__format_bytes(o->limit_bytes, limit));
    }
    if (host)
        say(s, " Device: host");
    else
        say(s, " Event delay: %g ms", (double)o->event_delay_ns / 1e6);
    if (asked_for(p, TIDE__POLICY_PAGETIDE))
        say(s, "; cross-stream: %s", tide__report_cross_stream(o->cross_stream));
    say(s, ".");
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
    say_options(p, &s);
    say(&s, " ");
    say_recorded(p, &s);
    print_sentences(p, &s);
}

/* ---- A row a policy ---- */

enum { TO_FIT = 1, WORK_DONE = 2 }; /* of the columns: one table, or on a narrow terminal two */

static void print_not_replayed(const printer *p, const tide__policy_result *policy) {
    sentence s = {0};
    say(&s, "%s not replayed: %s", tide__policy_name(policy->kind), policy->reason);
    tide__print_wrapped(p->out, p->width, 2, s.text);
}

static void print_policy(const printer *p, const tide__policy_result *policy, int columns) {
    char reserved[TIDE__BYTES_TEXT], ratio[16], moves[TIDE__COUNT_TEXT], waits[TIDE__COUNT_TEXT],
        event[TIDE__COUNT_TEXT];
    if (!policy->ran) {
        if (columns & TO_FIT) print_not_replayed(p, policy);
        return;
    }
    fprintf(p->out, "  %-11s", tide__policy_name(policy->kind));
    /* Who stopped half way has no ratio to compare. */
    if (columns & TO_FIT)
        fprintf(p->out, "%13s  %6s", tide__format_bytes(policy->peak_reserved, reserved),
                policy->oom.happened ? "-" : format_ratio(policy->ratio, ratio));
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

typedef enum figure { PEAK_RESERVED, END_LIVE, END_RESERVED } figure;

static uint64_t figure_of(const tide__phase_result *phase, figure which) {
    switch (which) {
    case PEAK_RESERVED: return phase->peak_reserved;
    case END_LIVE: return phase->end_live;
    default: return phase->end_reserved;
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

static const layout peaks_and_ends = {"", true, 2, 7, {PEAK_RESERVED, END_RESERVED}, {"peak", "end"}};
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
                fprintf(p->out, "%*.2f", t->layout->columns,
                        (double)figure_of(phase, t->layout->figures[k]) / unit);
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
        print_layout(p, &peaks_and_ends, longest);
        tide__print_wrapped(
            p->out, p->width < 80 ? p->width : 80, 2,
            "peak, end: reserved at the phase's peak, and when it ended with most beyond live "
            "bytes (each policy at its own worst occurrence)");
        return;
    }
    print_layout(p, &peaks_alone, longest);
    print_layout(p, &ends_trimmed, longest);
    tide__print_wrapped(p->out, p->width < 80 ? p->width : 80, 2,
                        "peak: reserved at the phase's peak; at end: after the trim, when most was reserved "
                        "beyond live bytes (each policy at its own worst occurrence)");
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
    printer p = {report, report->result, out, width < LEAST_WIDTH ? LEAST_WIDTH : width};
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
