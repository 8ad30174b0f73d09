/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole replay of traces written by hand: phases, trims, limits and what
 * they explain, out of memory, and what is said where nothing can be compared.
 */
#include "replay_test.h"

#include "replay/torch_settings.h"

#define NATIVE (1u << TIDE__POLICY_NATIVE)
#define EXPANDABLE (1u << TIDE__POLICY_EXPANDABLE)

#define A (UINT64_C(1) << 40) /* addresses that a driver might have chosen */
#define B (UINT64_C(2) << 40)
#define C (UINT64_C(3) << 40)

typedef struct fixture {
    hand_trace *t;
    tide__replay_options options;
    tide__replay_result result;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->t = trace_new();
    f->options = (tide__replay_options){.policies = NATIVE | EXPANDABLE, .device = "sim"};
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    tide__replay_result_free(&f->result);
    free(f->t);
    free(f);
    return 0;
}

static const tide__policy_result *replay(fixture *f, tide__policy_kind kind) {
    tide__replay_result_free(&f->result);
    assert_ok(tide__replay(&f->t->trace, &f->t->gpu, &f->options, &f->result));
    return &f->result.policies[kind];
}

/* A large native block in a segment of its own. */
static void alloc_in_segment(fixture *f, uint64_t addr, uint64_t size) {
    trace_event(f->t, TIDE__ACTION_SEGMENT_ALLOC, addr, size);
    trace_alloc(f->t, addr, size);
}

static void enter(fixture *f, uint32_t phase) {
    f->t->events[f->t->gpu.event_count - 1].phase = phase;
    f->t->events[f->t->gpu.event_count - 1].has_phase = 1;
}

/* ---- Comparison ---- */

static void test_addresses_of_new_segments_are_the_recorded_ones(void **state) {
    fixture *f = *state;
    alloc_in_segment(f, B, 30 * MIB);
    alloc_in_segment(f, A, 40 * MIB);
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.recorded.policy, TIDE__RECORDED_NATIVE);
    assert_int_equal(f->result.recorded.compared, 2);
    assert_int_equal(f->result.recorded.mismatches, 0);
}

static void test_wrong_address_or_reserved_figure_is_a_mismatch(void **state) {
    fixture *f = *state;
    alloc_in_segment(f, A, 30 * MIB);
    trace_free(f->t, A, 30 * MIB);
    trace_alloc(f->t, A + 512, 30 * MIB); /* the model says A */
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.recorded.mismatches, 1);
    assert_int_equal(f->result.recorded.first_mismatch, 4);
    f->t->events[0].size = 32 * MIB; /* the model says 30 */
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.recorded.mismatches, 2);
}

static void test_comparison_is_made_though_the_policy_was_not_asked_for(void **state) {
    fixture *f = *state;
    alloc_in_segment(f, A, 30 * MIB);
    f->options.policies = EXPANDABLE;
    replay(f, TIDE__POLICY_EXPANDABLE);
    assert_int_equal(f->result.recorded.compared, 1);
    assert_false(f->result.policies[TIDE__POLICY_NATIVE].ran);
}

static void assert_not_compared(fixture *f, const char *why) {
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.recorded.compared, 0);
    if (strstr(f->result.recorded.reason, why) == NULL)
        print_error("reason: %s\n", f->result.recorded.reason);
    assert_non_null(strstr(f->result.recorded.reason, why));
}

static void test_trace_without_segment_events_is_not_compared(void **state) {
    fixture *f = *state;
    trace_alloc(f->t, A, 30 * MIB);
    assert_not_compared(f, "no segment events");
    assert_int_equal(f->result.recorded.policy, TIDE__RECORDED_NONE);
}

static void test_trace_of_both_kinds_is_not_compared(void **state) {
    fixture *f = *state;
    alloc_in_segment(f, A, 30 * MIB);
    trace_event(f->t, TIDE__ACTION_SEGMENT_MAP, B, 20 * MIB);
    assert_not_compared(f, "both kinds");
}

static void test_setting_that_is_not_modelled_is_named(void **state) {
    fixture *f = *state;
    alloc_in_segment(f, A, 30 * MIB);
    trace_setting(f->t, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:100,backend:cudaMallocAsync");
    assert_not_compared(f, "backend");
    assert_int_equal(f->result.settings_unmodelled, 1);
}

static void test_trace_from_the_middle_of_a_run_without_segments_is_not_compared(void **state) {
    fixture *f = *state;
    trace_free(f->t, C, 30 * MIB);
    alloc_in_segment(f, A, 30 * MIB);
    assert_not_compared(f, "middle of a run");
    f->t->gpu.event_count = 0;
    trace_alloc(f->t, C, 30 * MIB); /* in no segment that the trace knows */
    alloc_in_segment(f, A, 30 * MIB);
    assert_not_compared(f, "middle of a run");
}

static void test_guessed_heap_that_proves_wrong_is_not_held_against_the_model(void **state) {
    fixture *f = *state;
    trace_free(f->t, A, 12 * MIB + 512 * KIB);
    alloc_in_segment(f, B, 30 * MIB);
    trace_alloc(f->t, A + 13 * MIB, 7 * MIB); /* the block before was of 13 MiB, which nothing tells */
    trace_segment(f->t, A, 20 * MIB, true, false);
    trace_block(f->t, A, 13 * MIB, 0, TIDE__BLOCK_INACTIVE);
    trace_block(f->t, A + 13 * MIB, 7 * MIB, 7 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    trace_segment(f->t, B, 30 * MIB, true, false);
    trace_block(f->t, B, 30 * MIB, 30 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    assert_not_compared(f, "cannot be told exactly");
}

static void test_settings_of_the_file_are_modelled(void **state) {
    fixture *f = *state;
    trace_setting(f->t, "max_split_size", "33554432");
    trace_setting(f->t, "roundup_power2_divisions", "1:0,2:0,4:0,8:0,16:0,32:4,64:4");
    alloc_in_segment(f, A, 40 * MIB);
    trace_free(f->t, A, 40 * MIB);
    trace_alloc(f->t, A, 35 * MIB); /* rounds to 40 and takes it whole */
    trace_event(f->t, TIDE__ACTION_SEGMENT_ALLOC, B, 24 * MIB);
    trace_alloc(f->t, B, 24 * MIB);
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.recorded.compared, 3);
    assert_int_equal(f->result.recorded.mismatches, 0);
}

static tide__torch_settings settings_of(fixture *f, const char *options) {
    tide__torch_settings settings;
    f->t->trace.setting_count = 0;
    trace_setting(f->t, "PYTORCH_CUDA_ALLOC_CONF", options);
    tide__torch_settings_read(&f->t->trace, &settings);
    return settings;
}

static void test_size_of_large_segments_is_read_as_pytorch_reads_it(void **state) {
    fixture *f = *state;
    tide__torch_settings s = settings_of(f, "");
    assert_int_equal(s.large_segment_size, 20 * MIB);
    assert_int_equal(s.max_non_split_rounding, 20 * MIB);
    s = settings_of(f, "expandable_segments:False, large_segment_size_mb : 64");
    assert_int_equal(s.large_segment_size, 64 * MIB);
    assert_int_equal(s.max_non_split_rounding, 64 * MIB);
    s = settings_of(f, "max_non_split_rounding_mb:80,large_segment_size_mb:11,large_segment_size_mb:12");
    assert_int_equal(s.large_segment_size, 12 * MIB);
    assert_int_equal(s.max_non_split_rounding, 80 * MIB);
    assert_int_equal(s.unmodelled, 0);
    assert_int_equal(tide__torch_segment_size(&s, 1 * MIB + 512), 12 * MIB);
    assert_int_equal(tide__torch_segment_size(&s, 10 * MIB - 512), 12 * MIB);
    assert_int_equal(tide__torch_segment_size(&s, 10 * MIB), 10 * MIB);
}

static void test_settings_that_pytorch_refuses_are_named_and_not_taken(void **state) {
    static const char *const values[] = {"1", "2", "3", "10", "", "many"};
    fixture *f = *state;
    alloc_in_segment(f, A, 30 * MIB);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char options[64];
        snprintf(options, sizeof options, "large_segment_size_mb:%s,expandable_segments:False", values[i]);
        assert_int_equal(settings_of(f, options).large_segment_size, 20 * MIB);
        *strchr(options, ',') = 0;
        assert_not_compared(f, options);
    }
    settings_of(f, "max_non_split_rounding_mb:30,large_segment_size_mb:40");
    assert_not_compared(f, "max_non_split_rounding_mb");
}

static void test_native_segments_of_another_size_are_compared(void **state) {
    fixture *f = *state;
    trace_setting(f->t, "PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:15");
    trace_event(f->t, TIDE__ACTION_SEGMENT_ALLOC, A, 15 * MIB);
    trace_alloc(f->t, A, 9 * MIB);
    trace_alloc(f->t, A + 9 * MIB, 5 * MIB);
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.recorded.compared, 2);
    assert_int_equal(f->result.recorded.mismatches, 0);
}

/* The driver creates whole granules only. */
static void test_expandable_pages_that_no_driver_creates_are_not_replayed(void **state) {
    fixture *f = *state;
    trace_setting(f->t, "PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:15");
    f->options.policies = NATIVE | EXPANDABLE;
    alloc_in_segment(f, A, 30 * MIB);
    replay(f, TIDE__POLICY_NATIVE);
    assert_true(f->result.policies[TIDE__POLICY_NATIVE].ran);
    assert_false(f->result.policies[TIDE__POLICY_EXPANDABLE].ran);
    assert_non_null(strstr(f->result.policies[TIDE__POLICY_EXPANDABLE].reason, "multiple of 2 MiB"));
    f->t->gpu.event_count = 0;
    trace_event(f->t, TIDE__ACTION_SEGMENT_MAP, A, 30 * MIB); /* says that one did */
    trace_alloc(f->t, A, 30 * MIB);
    assert_not_compared(f, "multiple of 2 MiB");
}

/* ---- Releases and limits ---- */

/* 30 MiB are freed and given back; then 40 are taken. */
static void release_between(fixture *f) {
    alloc_in_segment(f, A, 30 * MIB);
    trace_free(f->t, A, 30 * MIB);
    trace_event(f->t, TIDE__ACTION_SEGMENT_FREE, A, 30 * MIB);
    alloc_in_segment(f, B, 40 * MIB);
}

static void test_every_policy_honours_a_release(void **state) {
    fixture *f = *state;
    release_between(f);
    assert_int_equal(replay(f, TIDE__POLICY_NATIVE)->peak_reserved, 40 * MIB);
    assert_int_equal(f->result.policies[TIDE__POLICY_EXPANDABLE].peak_reserved, 40 * MIB);
    assert_int_equal(f->result.recorded.compared, 3); /* the release, too */
    assert_int_equal(f->result.recorded.mismatches, 0);
}

static bool release_is_explained(fixture *f, uint64_t limit) {
    tide__schedule s;
    bool explained = false;
    assert_ok(tide__schedule_make(&f->t->trace, &f->t->gpu, limit, &s));
    for (size_t i = 0; i < s.op_count; i++) explained |= s.ops[i].explained_by_limit;
    tide__schedule_free(&s);
    return explained;
}

static void test_limit_explains_a_retry_and_no_other_release(void **state) {
    fixture *f = *state;
    release_between(f);
    assert_false(release_is_explained(f, 0));
    assert_true(release_is_explained(f, 69 * MIB));
    assert_false(release_is_explained(f, 70 * MIB)); /* 30 + 40 would have fitted: the user's own */
}

static void test_retry_under_a_limit_is_the_models_own(void **state) {
    fixture *f = *state;
    release_between(f);
    f->options.limit_bytes = 50 * MIB;
    const tide__policy_result *native = replay(f, TIDE__POLICY_NATIVE);
    assert_false(native->oom.happened);
    assert_int_equal(native->peak_reserved, 40 * MIB);
    assert_int_equal(f->result.recorded.mismatches, 0);
}

static void test_policy_stops_at_its_first_out_of_memory(void **state) {
    fixture *f = *state;
    alloc_in_segment(f, A, 30 * MIB);
    alloc_in_segment(f, B, 40 * MIB);
    alloc_in_segment(f, C, 10 * MIB);
    f->options.limit_bytes = 50 * MIB;
    const tide__policy_result *native = replay(f, TIDE__POLICY_NATIVE);
    assert_true(native->ran && native->oom.happened);
    assert_int_equal(native->oom.event, 3);
    assert_int_equal(native->oom.wanted, 40 * MIB);
    assert_int_equal(native->oom.live, 30 * MIB);
    assert_int_equal(native->oom.reserved, 30 * MIB);
    assert_int_equal(native->peak_reserved, 30 * MIB);
    assert_int_equal(f->result.recorded.compared, 3); /* without the limit */
    assert_int_equal(f->result.peak_live, 80 * MIB);
}

/* 30 MiB are live, and the recorded run was refused 25 more. */
static void refuse(fixture *f) {
    alloc_in_segment(f, A, 30 * MIB);
    trace_event(f->t, TIDE__ACTION_OOM, 0, 25 * MIB);
}

static void test_refused_request_is_tried_under_a_limit(void **state) {
    fixture *f = *state;
    refuse(f);
    f->options.limit_bytes = 50 * MIB;
    const tide__policy_result *native = replay(f, TIDE__POLICY_NATIVE);
    assert_true(native->oom.happened);
    assert_int_equal(native->oom.event, 2);
    assert_int_equal(native->oom.wanted, 25 * MIB);
    assert_int_equal(native->peak_reserved, 30 * MIB);
    f->options.limit_bytes = 60 * MIB;
    assert_false(replay(f, TIDE__POLICY_NATIVE)->oom.happened);
    f->options.limit_bytes = 0;
    assert_false(replay(f, TIDE__POLICY_NATIVE)->oom.happened);
}

static void test_refused_request_that_is_served_counts_in_every_peak(void **state) {
    fixture *f = *state;
    f->options.policies |= 1u << TIDE__POLICY_PAGETIDE;
    refuse(f);
    for (int trim = 0; trim < 2; trim++) {
        f->options.trim_phases = trim;
        f->options.limit_bytes = 70 * MIB;
        replay(f, TIDE__POLICY_NATIVE);
        assert_int_equal(f->result.peak_live, 55 * MIB);
        assert_int_equal(f->result.recorded.peak_live, 30 * MIB);
        assert_int_equal(f->result.bound_reserved, 55 * MIB);
        for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
            const tide__policy_result *p = &f->result.policies[kind];
            assert_in_range(p->peak_reserved, 55 * MIB, 60 * MIB);
            assert_true(p->ratio >= 1 && p->ratio <= 60.0 / 55);
            assert_int_equal(p->phases[0].peak_live, 55 * MIB);
            assert_int_equal(p->phases[0].peak_reserved, p->peak_reserved);
            assert_int_equal(p->phases[0].end_live, 30 * MIB);
            assert_true(p->phases[0].end_reserved < 55 * MIB);
        }
    }
    f->options.limit_bytes = 0;
    replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(f->result.peak_live, 30 * MIB);
    assert_int_equal(f->result.bound_reserved, 30 * MIB);
    assert_int_equal(f->result.policies[TIDE__POLICY_NATIVE].peak_reserved, 30 * MIB);
}

static void test_smallest_limit_that_fits_is_found_whoever_fits_under_the_one_given(void **state) {
    static const uint64_t limits[] = {50 * MIB, 300 * MIB};
    /* expandable asks for 26 MiB more than its 40, of which 10 are free */
    static const uint64_t expected[] = {56 * MIB, 72 * MIB, 56 * MIB};
    fixture *f = *state;
    f->options.policies |= 1u << TIDE__POLICY_PAGETIDE;
    refuse(f);
    for (size_t i = 0; i < 2; i++) {
        f->options.limit_bytes = limits[i];
        replay(f, TIDE__POLICY_NATIVE);
        for (int kind = 0; kind < TIDE__POLICY_COUNT; kind++) {
            assert_int_equal(f->result.policies[kind].oom.happened, i == 0);
            assert_int_equal(f->result.policies[kind].fits_from, expected[kind]);
        }
    }
    f->options.limit_bytes = 0;
    assert_int_equal(replay(f, TIDE__POLICY_NATIVE)->fits_from, 0);
}

static void test_limit_that_is_found_depends_on_what_it_explains(void **state) {
    fixture *f = *state;
    release_between(f);
    f->options.limit_bytes = 200 * MIB; /* explains no release */
    const tide__policy_result *native = replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(native->peak_reserved, 40 * MIB);
    assert_int_equal(native->fits_from, 40 * MIB);
}

/* Each pool of pagetide's takes 64 GiB of addresses, of 128 TiB. */
static void test_policy_that_runs_out_of_addresses_does_not_take_the_others_along(void **state) {
    fixture *f = *state;
    f->options.policies |= 1u << TIDE__POLICY_PAGETIDE;
    f->t->gpu.pool_count = 2100;
    for (unsigned pool = 0; pool < 2100; pool++) {
        f->t->pool = (uint16_t)pool;
        alloc_in_segment(f, A + pool * 64 * MIB, 30 * MIB);
    }
    replay(f, TIDE__POLICY_NATIVE);
    assert_true(f->result.policies[TIDE__POLICY_NATIVE].ran);
    assert_false(f->result.policies[TIDE__POLICY_PAGETIDE].ran);
    assert_non_null(strstr(f->result.policies[TIDE__POLICY_PAGETIDE].reason, "no addresses left"));
}

/* ---- Phases ---- */

static const tide__phase_result *phase(const tide__policy_result *p, uint32_t name) {
    for (size_t i = 0; i < p->phase_count; i++)
        if (p->phases[i].name == name) return &p->phases[i];
    fail_msg("no row of phase %u", name);
    return NULL;
}

static void test_phase_rows_join_occurrences_and_keep_the_worst_end(void **state) {
    fixture *f = *state;
    uint32_t rollout = trace_string(f->t, "rollout"), train = trace_string(f->t, "train");
    alloc_in_segment(f, A, 30 * MIB); /* before any phase */
    alloc_in_segment(f, B, 40 * MIB);
    enter(f, rollout);
    trace_free(f->t, B, 40 * MIB); /* ends 40 MiB above live */
    alloc_in_segment(f, C, 50 * MIB);
    enter(f, train);
    trace_alloc(f->t, B, 40 * MIB);
    enter(f, rollout); /* ends with all live */
    const tide__policy_result *p = replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(p->phase_count, 3);
    assert_int_equal(phase(p, 0)->peak_live, 30 * MIB);
    assert_int_equal(phase(p, rollout)->peak_live, 120 * MIB);
    assert_int_equal(phase(p, rollout)->peak_reserved, 120 * MIB);
    assert_int_equal(phase(p, rollout)->end_live, 30 * MIB);
    assert_int_equal(phase(p, rollout)->end_reserved, 70 * MIB);
    assert_int_equal(phase(p, train)->peak_reserved, 120 * MIB);
    assert_int_equal(phase(p, train)->end_live, 80 * MIB);
}

static void test_phase_does_not_inherit_the_peak_it_began_after(void **state) {
    fixture *f = *state;
    uint32_t train = trace_string(f->t, "train");
    alloc_in_segment(f, A, 300 * MIB);
    trace_free(f->t, A, 300 * MIB);
    trace_event(f->t, TIDE__ACTION_SEGMENT_FREE, A, 300 * MIB);
    enter(f, train);
    alloc_in_segment(f, B, 30 * MIB);
    const tide__policy_result *p = replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(phase(p, train)->peak_reserved, 30 * MIB);
    assert_int_equal(p->peak_reserved, 300 * MIB);
}

static void test_trim_gives_back_at_the_end_of_each_phase(void **state) {
    fixture *f = *state;
    uint32_t rollout = trace_string(f->t, "rollout"), train = trace_string(f->t, "train");
    alloc_in_segment(f, A, 300 * MIB);
    enter(f, rollout);
    trace_free(f->t, A, 300 * MIB);
    alloc_in_segment(f, B, 30 * MIB);
    enter(f, train);
    f->options.trim_phases = true;
    const tide__policy_result *p = replay(f, TIDE__POLICY_NATIVE);
    assert_int_equal(phase(p, rollout)->end_reserved, 0);
    assert_int_equal(phase(p, train)->peak_reserved, 30 * MIB);
    assert_true(p->trim_seconds > 0 && p->trim_seconds < p->driver_seconds);
    assert_int_equal(f->result.recorded.compared, 2); /* against a run without trims */
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_addresses_of_new_segments_are_the_recorded_ones),
        TEST(test_wrong_address_or_reserved_figure_is_a_mismatch),
        TEST(test_comparison_is_made_though_the_policy_was_not_asked_for),
        TEST(test_trace_without_segment_events_is_not_compared),
        TEST(test_trace_of_both_kinds_is_not_compared),
        TEST(test_setting_that_is_not_modelled_is_named),
        TEST(test_trace_from_the_middle_of_a_run_without_segments_is_not_compared),
        TEST(test_guessed_heap_that_proves_wrong_is_not_held_against_the_model),
        TEST(test_settings_of_the_file_are_modelled),
        TEST(test_size_of_large_segments_is_read_as_pytorch_reads_it),
        TEST(test_settings_that_pytorch_refuses_are_named_and_not_taken),
        TEST(test_native_segments_of_another_size_are_compared),
        TEST(test_expandable_pages_that_no_driver_creates_are_not_replayed),
        TEST(test_every_policy_honours_a_release),
        TEST(test_limit_explains_a_retry_and_no_other_release),
        TEST(test_retry_under_a_limit_is_the_models_own),
        TEST(test_policy_stops_at_its_first_out_of_memory),
        TEST(test_refused_request_is_tried_under_a_limit),
        TEST(test_refused_request_that_is_served_counts_in_every_peak),
        TEST(test_smallest_limit_that_fits_is_found_whoever_fits_under_the_one_given),
        TEST(test_limit_that_is_found_depends_on_what_it_explains),
        TEST(test_policy_that_runs_out_of_addresses_does_not_take_the_others_along),
        TEST(test_phase_rows_join_occurrences_and_keep_the_worst_end),
        TEST(test_phase_does_not_inherit_the_peak_it_began_after),
        TEST(test_trim_gives_back_at_the_end_of_each_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
