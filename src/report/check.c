/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check: what pagetide promises of a replay, for --check. docs/design.md says where
 * each number comes from.
 */
#include "report/replay_report.h"

#define PROMISED_RATIO 1.015      /* peak reserved over peak live, and SLACK more */
#define PROMISED_BOUND_RATIO 1.02 /* over the bound, where events are late and nobody waits */
#define PROMISED_END_RATIO 1.05   /* reserved over live at a phase's end, with trim, and SLACK more */
#define SLACK_BYTES (64 * TIDE__MIB)

const tide__policy_result *tide__report_policy(const tide__replay_result *r, tide__policy_kind kind) {
    return r->policies[kind].ran ? &r->policies[kind] : NULL;
}

static void begin(const tide__replay_report *r, FILE *out) {
    fprintf(out, "pagetide: check: %s, GPU %d: ", r->file, r->result->gpu);
}

static unsigned check_models(const tide__replay_report *r, FILE *out) {
    if (!r->result->recorded.mismatches) return 0;
    begin(r, out);
    fprintf(out,
            "the model of the recorded allocator differs from the recording at %llu of %llu events, "
            "first at event %llu\n",
            (unsigned long long)r->result->recorded.mismatches,
            (unsigned long long)r->result->recorded.compared,
            (unsigned long long)r->result->recorded.first_mismatch);
    return 1;
}

static unsigned check_peak(const tide__replay_report *r, const tide__policy_result *p, FILE *out) {
    double live = (double)r->result->peak_live;
    double promised = PROMISED_RATIO * live + (double)SLACK_BYTES;
    bool late = r->options->event_delay_ns > 0;
    /* With `off` nobody ever takes what another stream freed: nothing is promised. */
    if (r->options->cross_stream == TIDE_CROSS_STREAM_OFF) return 0;
    if (r->options->cross_stream != TIDE_CROSS_STREAM_WAIT && late) {
        double bound = PROMISED_BOUND_RATIO * (double)r->result->bound_reserved;
        if (bound > promised) promised = bound;
    }
    if ((double)p->peak_reserved <= promised) return 0;
    char reserved[TIDE__BYTES_TEXT], most[TIDE__BYTES_TEXT];
    begin(r, out);
    fprintf(out, "pagetide reserves %s at its peak, promised is at most %s\n",
            tide__format_bytes(p->peak_reserved, reserved), tide__format_bytes((uint64_t)promised, most));
    return 1;
}

static unsigned check_phase_ends(const tide__replay_report *r, const tide__policy_result *p, FILE *out) {
    unsigned findings = 0;
    for (size_t i = 0; r->options->trim_phases && i < p->phase_count; i++) {
        const tide__phase_result *phase = &p->phases[i];
        double promised = PROMISED_END_RATIO * (double)phase->end_live + (double)SLACK_BYTES;
        if ((double)phase->end_reserved <= promised) continue;
        char reserved[TIDE__BYTES_TEXT], most[TIDE__BYTES_TEXT];
        begin(r, out);
        fprintf(out, "at the end of phase %zu pagetide keeps %s after a trim, promised is at most %s\n", i,
                tide__format_bytes(phase->end_reserved, reserved),
                tide__format_bytes((uint64_t)promised, most));
        findings++;
    }
    return findings;
}

unsigned tide__report_check(const tide__replay_report *r, FILE *out) {
    unsigned findings = check_models(r, out);
    if (!(r->options->policies & 1u << TIDE__POLICY_PAGETIDE)) return findings;
    const tide__policy_result *p = tide__report_policy(r->result, TIDE__POLICY_PAGETIDE);
    if (!p) {
        begin(r, out);
        fprintf(out, "pagetide did not run: %s\n", r->result->policies[TIDE__POLICY_PAGETIDE].reason);
        return findings + 1;
    }
    if (p->oom.happened) {
        char wanted[TIDE__BYTES_TEXT], live[TIDE__BYTES_TEXT];
        begin(r, out);
        fprintf(out, "pagetide runs out of memory at event %llu, with %s asked for and %s live\n",
                (unsigned long long)p->oom.event, tide__format_bytes(p->oom.wanted, wanted),
                tide__format_bytes(p->oom.live, live));
        findings++;
    }
    return findings + check_peak(r, p, out) + check_phase_ends(r, p, out);
}
