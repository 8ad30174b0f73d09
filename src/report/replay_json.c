/* SPDX-License-Identifier: Apache-2.0 */
#include "report/json.h"
#include "report/replay_report.h"

static const char *recorded_name(tide__recorded_policy policy) {
    switch (policy) {
    case TIDE__RECORDED_NATIVE: return "native";
    case TIDE__RECORDED_EXPANDABLE: return "expandable";
    case TIDE__RECORDED_MIXED: return "mixed";
    case TIDE__RECORDED_NONE: break;
    }
    return NULL;
}

/* What is 0 where it is not known or not there. */
static void write_or_null(tide__json *j, const char *key, uint64_t value) {
    tide__json_key(j, key);
    if (value)
        tide__json_u64(j, value);
    else
        tide__json_null(j);
}

static void write_recorded(tide__json *j, const tide__replay_result *r) {
    tide__json_key(j, "recorded");
    tide__json_object(j);
    tide__json_key_string(j, "policy", recorded_name(r->recorded.policy));
    tide__json_key_u64(j, "peak_reserved", r->recorded.peak_reserved);
    tide__json_key_u64(j, "compared", r->recorded.compared);
    tide__json_key_u64(j, "mismatches", r->recorded.mismatches);
    tide__json_key_string(j, "reason", r->recorded.reason[0] ? r->recorded.reason : NULL);
    tide__json_key(j, "first_mismatch");
    if (r->recorded.mismatches)
        tide__json_u64(j, r->recorded.first_mismatch);
    else
        tide__json_null(j);
    tide__json_key(j, "oom_event");
    if (r->recorded.has_oom)
        tide__json_u64(j, r->recorded.oom_event);
    else
        tide__json_null(j);
    tide__json_key_u64(j, "peak_live", r->recorded.peak_live);
    tide__json_object_end(j);
}

static void write_oom(tide__json *j, const tide__oom_result *oom) {
    tide__json_key(j, "oom");
    if (!oom->happened) {
        tide__json_null(j);
        return;
    }
    tide__json_object(j);
    tide__json_key_u64(j, "event", oom->event);
    tide__json_key_u64(j, "wanted", oom->wanted);
    tide__json_key_u64(j, "live", oom->live);
    tide__json_key_u64(j, "reserved", oom->reserved);
    tide__json_object_end(j);
}

static void write_phases(tide__json *j, const tide__trace *trace, const tide__policy_result *p) {
    tide__json_key(j, "phases");
    tide__json_array(j);
    for (size_t i = 0; i < p->phase_count; i++) {
        const tide__phase_result *phase = &p->phases[i];
        tide__json_object(j);
        tide__json_key_string(j, "phase", trace->strings[phase->name]);
        tide__json_key_u64(j, "peak_live", phase->peak_live);
        tide__json_key_u64(j, "peak_reserved", phase->peak_reserved);
        tide__json_key_u64(j, "end_live", phase->end_live);
        tide__json_key_u64(j, "end_reserved", phase->end_reserved);
        tide__json_object_end(j);
    }
    tide__json_array_end(j);
}

/* A policy that could not run has the same keys, its numbers null. */
static void write_policy_absent(tide__json *j, const tide__policy_result *p) {
    static const char *const keys[] = {"peak_reserved",  "ratio",           "moves",
                                       "waits",          "wait_seconds",    "driver_calls",
                                       "driver_seconds", "elapsed_seconds", "oom"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        tide__json_key(j, keys[i]);
        tide__json_null(j);
    }
    tide__json_key(j, "phases");
    tide__json_array(j);
    tide__json_array_end(j);
    tide__json_key(j, "trim_seconds");
    tide__json_null(j);
    tide__json_key_string(j, "reason", p->reason);
    write_or_null(j, "fits_from", 0);
}

static void write_policy(tide__json *j, const tide__trace *trace, const tide__policy_result *p) {
    tide__json_object(j);
    tide__json_key_string(j, "policy", tide__policy_name(p->kind));
    if (!p->ran) {
        write_policy_absent(j, p);
        tide__json_object_end(j);
        return;
    }
    tide__json_key_u64(j, "peak_reserved", p->peak_reserved);
    tide__json_key_double(j, "ratio", p->ratio);
    tide__json_key_u64(j, "moves", p->moves);
    tide__json_key_u64(j, "waits", p->waits);
    tide__json_key_double(j, "wait_seconds", p->wait_seconds);
    tide__json_key_u64(j, "driver_calls", p->driver_calls);
    tide__json_key_double(j, "driver_seconds", p->driver_seconds);
    tide__json_key_double(j, "elapsed_seconds", p->elapsed_seconds);
    write_oom(j, &p->oom);
    write_phases(j, trace, p);
    tide__json_key_double(j, "trim_seconds", p->trim_seconds);
    tide__json_key_string(j, "reason", p->reason[0] ? p->reason : NULL);
    write_or_null(j, "fits_from", p->fits_from);
    tide__json_object_end(j);
}

/* What the figures hang on, so that lines of several calls can be told apart. */
static void write_options(tide__json *j, const tide__replay_options *o) {
    write_or_null(j, "limit_bytes", o->limit_bytes);
    tide__json_key_double(j, "event_delay_ms", (double)o->event_delay_ns / 1e6);
    tide__json_key_string(j, "cross_stream", tide__report_cross_stream(o->cross_stream));
    tide__json_key_bool(j, "trim_phases", o->trim_phases);
    tide__json_key_string(j, "device", o->device);
}

void tide__report_replay_json(const tide__replay_report *report, FILE *out) {
    const tide__replay_result *r = report->result;
    tide__json j;
    tide__json_open(&j, out);
    tide__json_object(&j);
    tide__json_key_string(&j, "file", report->file);
    tide__json_key_i64(&j, "gpu", r->gpu);
    tide__json_key_u64(&j, "events", r->events);
    tide__json_key_u64(&j, "allocations", r->allocations);
    tide__json_key_double(&j, "trace_seconds", r->trace_seconds);
    tide__json_key_u64(&j, "peak_live", r->peak_live);
    tide__json_key_u64(&j, "bound_reserved", r->bound_reserved);
    write_recorded(&j, r);
    tide__json_key(&j, "policies");
    tide__json_array(&j);
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++)
        if (report->options->policies & 1u << kind) write_policy(&j, report->trace, &r->policies[kind]);
    tide__json_array_end(&j);
    tide__json_key_u64(&j, "unknown_frees", r->unknown_frees);
    tide__json_key_u64(&j, "blocks_before_start", r->blocks_before_start);
    tide__json_key_u64(&j, "settings_unmodelled", r->settings_unmodelled);
    write_options(&j, report->options);
    tide__json_object_end(&j);
    tide__json_close(&j);
}
