/* SPDX-License-Identifier: Apache-2.0 */
/* What a made-up result looks like: every case of wording, without replaying anything. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/replay_report.h"

static char *const strings[] = {(char *)"", (char *)"rollout", (char *)"update_actor"};

typedef struct fixture {
    tide__trace trace;
    tide__replay_options options;
    tide__replay_result result;
    tide__phase_result phases[TIDE__POLICY_COUNT][2];
    tide__replay_report report;
} fixture;

/* A run of 10 GiB live for which native reserves 2 x, expandable 1.2 x, pagetide 1 x. */
static void make(fixture *f) {
    static const double ratios[] = {2, 1.2, 1};
    memset(f, 0, sizeof *f);
    f->trace.strings = (char **)strings;
    f->trace.string_count = 3;
    f->options.policies = 7;
    f->options.cross_stream = TIDE_CROSS_STREAM_WAIT;
    f->result.events = 95609;
    f->result.allocations = 40000;
    f->result.trace_seconds = 20;
    f->result.peak_live = 10 * TIDE__GIB;
    f->result.bound_reserved = 10 * TIDE__GIB;
    f->result.recorded.policy = TIDE__RECORDED_NATIVE;
    f->result.recorded.peak_live = 10 * TIDE__GIB;
    f->result.recorded.peak_reserved = 20 * TIDE__GIB;
    f->result.recorded.compared = 40000;
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
        tide__policy_result *p = &f->result.policies[kind];
        p->kind = (tide__policy_kind)kind;
        p->ran = true;
        p->ratio = ratios[kind];
        p->peak_reserved = (uint64_t)(ratios[kind] * 10.0 * (double)TIDE__GIB);
        p->driver_seconds = 0.1;
        p->phases = f->phases[kind];
        p->phase_count = 2;
        for (uint32_t i = 0; i < 2; i++)
            f->phases[kind][i] = (tide__phase_result){i + 1, TIDE__GIB, 2 * TIDE__GIB, TIDE__GIB, TIDE__GIB};
    }
    f->report = (tide__replay_report){"run.pickle", &f->trace, &f->options, &f->result};
}

static char *text_in(fixture *f, int width) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    tide__report_replay_text(&f->report, out, width);
    fclose(out);
    return text;
}

static char *text_of(fixture *f) { return text_in(f, 80); }

/* Sentences wrap anywhere: one space for any white space. */
static char *words_of(fixture *f) {
    char *text = text_of(f), *to = text;
    for (const char *from = text; *from; from++) {
        bool space = *from == ' ' || *from == '\n';
        if (space && to > text && to[-1] == ' ') continue;
        *to++ = space ? ' ' : *from;
    }
    *to = 0;
    return text;
}

static void assert_says(fixture *f, const char *expected) {
    char *text = words_of(f);
    if (!strstr(text, expected)) fail_msg("not said: %s\n%s", expected, text);
    free(text);
}

static void assert_says_not(fixture *f, const char *unexpected) {
    char *text = words_of(f);
    if (strstr(text, unexpected)) fail_msg("said: %s\n%s", unexpected, text);
    free(text);
}

static unsigned findings_of(fixture *f, char **lines) {
    size_t length = 0;
    FILE *out = open_memstream(lines, &length);
    unsigned findings = tide__report_check(&f->report, out);
    fclose(out);
    return findings;
}

static void lines_fit_the_terminal(void **state) {
    static const int widths[] = {50, 60, 78, 80, 120};
    for (size_t i = 0; i < 2 * sizeof widths / sizeof *widths; i++) {
        fixture f;
        make(&f);
        f.options.trim_phases = i % 2;
        f.options.limit_bytes = 15 * TIDE__GIB;
        f.result.policies[0].oom = (tide__oom_result){true, 95608, TIDE__GIB, 10 * TIDE__GIB, 20 * TIDE__GIB};
        f.result.recorded.has_oom = true;
        strcpy(f.result.recorded.reason, "the trace names no pool for 17 segments given back before the end");
        f.result.policies[1].ran = false;
        strcpy(f.result.policies[1].reason,
               "a reason that is so long that it has to be told in two lines or more");
        char *text = text_in(&f, widths[i / 2]);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            assert_in_range(strlen(line), 1, (size_t)widths[i / 2]);
        free(text);
    }
}

/* What does not fit beside goes below, and nothing is left out. */
static void a_narrow_terminal_is_told_everything(void **state) {
    fixture f;
    make(&f);
    char *text = text_in(&f, 60);
    assert_non_null(strstr(text, "policy     peak reserved   ratio  out of memory\n"));
    assert_non_null(strstr(text, "policy          moves    waits  driver s\n"));
    assert_non_null(strstr(text, "  native       expandable\n"));
    assert_non_null(strstr(text, "      pagetide\n"));
    free(text);
}

static void says_what_each_policy_would_have_reserved(void **state) {
    fixture f;
    make(&f);
    assert_says(&f, "The model of it here agrees with the recording at all 40,000 events compared");
    assert_says(&f,
                "run.pickle, GPU 0 native reserves 2.00 x what the run held, expandable 1.20 x and pagetide "
                "1.000 x, which is 10.00 GiB less than native and 2.00 GiB less than expandable. pagetide "
                "spends 0.10 s in the driver (modelled), 0.5% of the run's time; expandable 0.10 s. 95,609");
    f.options.device = "host";
    assert_says(&f, "pagetide spends 0.10 s in the driver (as measured here)");
    f.options.policies = 1u << TIDE__POLICY_PAGETIDE;
    assert_says(&f, "run.pickle, GPU 0 pagetide spends 0.10 s");
}

static void names_the_setting_that_does_as_well(void **state) {
    fixture f;
    make(&f);
    f.result.policies[1].peak_reserved = f.result.policies[2].peak_reserved - 32 * TIDE__MIB;
    assert_says(&f,
                "and 32.00 MiB more than expandable. expandable, a setting of PyTorch, does as well here.");
    f.result.policies[1].peak_reserved = f.result.policies[2].peak_reserved;
    assert_says(&f, "and as much as expandable. expandable, a setting of PyTorch, does as well here.");
    f.result.policies[1].peak_reserved = f.result.policies[2].peak_reserved / 100 * 102;
    assert_says_not(&f, "as well");
    f.options.limit_bytes = 15 * TIDE__GIB; /* where not the peaks count */
    f.result.policies[1].fits_from = f.result.policies[2].fits_from = 10 * TIDE__GIB;
    assert_says(&f, "does as well here");
    f.result.policies[1].oom.happened = true;
    f.result.policies[1].fits_from = 15 * TIDE__GIB + 8 * TIDE__MIB;
    assert_says_not(&f, "as well");
}

static void says_what_each_would_have_needed_to_fit(void **state) {
    fixture f;
    make(&f);
    f.options.limit_bytes = 30 * TIDE__GIB;
    for (uint64_t kind = 0; kind < 3; kind++) f.result.policies[kind].fits_from = (20 - kind) * TIDE__GIB;
    assert_says(&f,
                "native, expandable and pagetide fit into 30.00 GiB. The least that is enough: 20.00 GiB for "
                "native, 19.00 GiB for expandable and 18.00 GiB for pagetide (to 8 MiB). pagetide spends");
    f.options.policies = 1u << TIDE__POLICY_PAGETIDE;
    assert_says(&f,
                "pagetide fits into 30.00 GiB. The least that is enough: 18.00 GiB for pagetide (to 8 MiB).");
}

static void says_who_runs_out_and_who_does_not(void **state) {
    fixture f;
    make(&f);
    f.options.limit_bytes = 15 * TIDE__GIB;
    f.result.policies[0].oom = (tide__oom_result){true, 1234, TIDE__GIB, 9 * TIDE__GIB, 14 * TIDE__GIB};
    f.result.policies[0].phase_count = 1;
    assert_says(&f, "native runs out of memory at event 1,234: 1.00 GiB asked for, 9.00 GiB live, 14.00 GiB "
                    "reserved. expandable and pagetide do not. pagetide spends");
    assert_says(&f, "update_actor 1.00 - - 2.00 0.00 2.00 0.00 "); /* a phase that native never saw */
    f.result.policies[2].oom = f.result.policies[0].oom;
    assert_says(&f, "reserved. pagetide runs out of memory at event 1,234");
    assert_says(&f, "reserved. expandable does not. 95,609 events");
    assert_says_not(&f, "pagetide spends");
}

static void a_row_that_ends_early_is_not_what_was_compared(void **state) {
    fixture f;
    make(&f);
    f.options.limit_bytes = 15 * TIDE__GIB;
    assert_says(&f, "The model of it here agrees with the recording at all 40,000 events");
    f.result.policies[0].oom = (tide__oom_result){true, 1234, TIDE__GIB, 9 * TIDE__GIB, 14 * TIDE__GIB};
    assert_says(&f, "Without the limit the model of it here agrees with the recording at all 40,000 events");
    f.result.recorded.has_oom = true;
    f.result.recorded.oom_event = 1234; /* the recorded run ended there too */
    assert_says(&f, "ran out of memory. The model of it here agrees");
}

static void says_what_was_refused_beside_what_was_held(void **state) {
    fixture f;
    make(&f);
    assert_says_not(&f, "refused");
    f.options.limit_bytes = 15 * TIDE__GIB;
    f.result.recorded.peak_live = 8 * TIDE__GIB;
    assert_says(
        &f, "10.00 GiB live at the peak (8.00 GiB without the request that the recorded run was refused).");
    assert_says(&f, "reserved 20.00 GiB at its peak (2.50 x)");
}

static void who_stopped_half_way_has_no_ratio(void **state) {
    fixture f;
    make(&f);
    assert_says(&f, "native 20.00 GiB 2.00 ");
    f.result.policies[0].oom = (tide__oom_result){true, 1234, TIDE__GIB, 9 * TIDE__GIB, 14 * TIDE__GIB};
    assert_says(&f, "native 20.00 GiB - 0 0 0.10 event 1,234");
}

static void a_phase_has_its_live_bytes_from_who_saw_all_of_it(void **state) {
    fixture f;
    make(&f);
    f.result.policies[0].oom = (tide__oom_result){true, 1234, TIDE__GIB, 9 * TIDE__GIB, 14 * TIDE__GIB};
    f.phases[0][0].peak_live = TIDE__GIB / 2;
    assert_says(&f, "rollout 1.00 2.00 0.00 ");
}

/* Ends are of other occurrences for each policy: only what is beyond live compares. */
static void ends_of_phases_are_told_by_what_exceeds_live(void **state) {
    fixture f;
    make(&f);
    f.phases[0][0].end_live = 3 * TIDE__GIB;
    f.phases[0][0].end_reserved = 4 * TIDE__GIB;
    f.phases[2][0].end_reserved = 2 * TIDE__GIB;
    assert_says(&f,
                "peak live peak excess peak excess peak excess rollout 1.00 2.00 1.00 2.00 0.00 2.00 1.00 ");
}

static void trims_show_what_was_live_at_the_ends(void **state) {
    fixture f;
    make(&f);
    f.phases[2][1].end_live = 3 * TIDE__GIB;
    f.phases[2][1].end_reserved = 4 * TIDE__GIB;
    f.options.trim_phases = true;
    assert_says(&f, "phase peak live peak peak peak rollout 1.00 2.00 2.00 2.00 ");
    assert_says(&f,
                "GiB, at end native expandable pagetide phase live reserved live reserved live reserved ");
    assert_says(&f, "update_actor 1.00 1.00 1.00 1.00 3.00 4.00 ");
    f.result.policies[2].trim_seconds = 0.25;
    assert_says(&f, "; the trims at the phases' ends cost pagetide 0.25 s, waits included. 95,609");
}

static void tells_the_words_of_its_tables(void **state) {
    fixture f;
    make(&f);
    assert_says(&f, "expandable: the same with expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF.");
    assert_says(&f, "driver s: in calls of the driver, modelled by what each costs on an H200.");
    f.options.device = "host";
    assert_says(&f, "pagetide's as measured here, the others' modelled.");
}

static void says_under_which_options(void **state) {
    fixture f;
    make(&f);
    f.options.device = "sim";
    f.options.event_delay_ns = 2500000;
    assert_says(&f, "10.00 GiB live at the peak. Event delay: 2.5 ms; cross-stream: wait. Recorded with");
    f.options.cross_stream = TIDE_CROSS_STREAM_OFF;
    f.options.limit_bytes = 15 * TIDE__GIB;
    assert_says(&f, " Limit: 15.00 GiB. Event delay: 2.5 ms; cross-stream: off.");
    f.options.cross_stream = TIDE_CROSS_STREAM_IDLE;
    f.options.device = "host"; /* whose work takes the time it takes */
    assert_says(&f, " Device: host; cross-stream: idle.");
}

static void says_what_of_the_comparison_was_inferred(void **state) {
    fixture f;
    make(&f);
    strcpy(f.result.recorded.reason, "the trace names no pool for 17 segments");
    assert_says(&f, "in addresses. Inferred: the trace names no pool for 17 segments. ");
}

static void warns_of_a_model_that_differs(void **state) {
    fixture f;
    make(&f);
    f.result.recorded.mismatches = 2;
    f.result.recorded.first_mismatch = 7;
    assert_says(&f, "DIFFERS from the recording at 2 of 40,000 events compared, first at event 7");
}

static void gives_the_reason_where_there_is_none_to_compare(void **state) {
    fixture f;
    make(&f);
    f.result.recorded.policy = TIDE__RECORDED_NONE;
    f.result.recorded.compared = 0;
    strcpy(f.result.recorded.reason, "it has no segment events");
    assert_says(&f, "No comparison with the recording: it has no segment events.");
    f.result.policies[1].ran = false;
    strcpy(f.result.policies[1].reason, "why not");
    assert_says(&f, "expandable not replayed: why not");
}

static void an_empty_run_divides_by_nothing(void **state) {
    fixture f;
    make(&f);
    f.result.peak_live = 0;
    f.result.trace_seconds = 0;
    for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) f.result.policies[kind].ratio = NAN;
    char *text = text_of(&f);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
}

static void check_finds_nothing_in_what_keeps_its_promises(void **state) {
    fixture f;
    char *lines;
    make(&f);
    assert_int_equal(findings_of(&f, &lines), 0);
    assert_string_equal(lines, "");
    free(lines);
}

static void check_names_each_finding(void **state) {
    fixture f;
    char *lines;
    make(&f);
    f.options.trim_phases = true;
    f.result.recorded.mismatches = 1;
    f.result.policies[2].oom.happened = true;
    f.result.policies[2].peak_reserved = 11 * TIDE__GIB;
    f.phases[2][1].end_reserved = 2 * TIDE__GIB;
    assert_int_equal(findings_of(&f, &lines), 4);
    assert_non_null(strstr(lines, "run.pickle, GPU 0: the model of the recorded allocator differs"));
    assert_non_null(strstr(lines, "pagetide runs out of memory"));
    assert_non_null(strstr(lines, "pagetide reserves 11.00 GiB at its peak, promised is at most 10.21 GiB"));
    assert_non_null(strstr(lines, "after a trim"));
    free(lines);
}

static void check_allows_late_events_what_the_bound_needs(void **state) {
    fixture f;
    char *lines;
    make(&f);
    f.options.cross_stream = TIDE_CROSS_STREAM_IDLE;
    f.options.event_delay_ns = 100000000;
    f.result.bound_reserved = 11 * TIDE__GIB;
    f.result.policies[2].peak_reserved = 11 * TIDE__GIB;
    assert_int_equal(findings_of(&f, &lines), 0);
    free(lines);
    f.options.event_delay_ns = 0;
    assert_int_equal(findings_of(&f, &lines), 1);
    free(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_fit_the_terminal),
        cmocka_unit_test(a_narrow_terminal_is_told_everything),
        cmocka_unit_test(says_what_each_policy_would_have_reserved),
        cmocka_unit_test(names_the_setting_that_does_as_well),
        cmocka_unit_test(says_what_each_would_have_needed_to_fit),
        cmocka_unit_test(says_who_runs_out_and_who_does_not),
        cmocka_unit_test(a_row_that_ends_early_is_not_what_was_compared),
        cmocka_unit_test(says_what_was_refused_beside_what_was_held),
        cmocka_unit_test(ends_of_phases_are_told_by_what_exceeds_live),
        cmocka_unit_test(tells_the_words_of_its_tables),
        cmocka_unit_test(who_stopped_half_way_has_no_ratio),
        cmocka_unit_test(a_phase_has_its_live_bytes_from_who_saw_all_of_it),
        cmocka_unit_test(trims_show_what_was_live_at_the_ends),
        cmocka_unit_test(says_under_which_options),
        cmocka_unit_test(says_what_of_the_comparison_was_inferred),
        cmocka_unit_test(warns_of_a_model_that_differs),
        cmocka_unit_test(gives_the_reason_where_there_is_none_to_compare),
        cmocka_unit_test(an_empty_run_divides_by_nothing),
        cmocka_unit_test(check_finds_nothing_in_what_keeps_its_promises),
        cmocka_unit_test(check_names_each_finding),
        cmocka_unit_test(check_allows_late_events_what_the_bound_needs),
    };
    return cmocka_run_group_tests_name("report: replay", tests, NULL, NULL);
}
