/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule: what becomes of a trace's events, of traces that begin in the
 * middle of a run, and of those that contradict themselves.
 */
#include "replay_test.h"

static int set_up(void **state) {
    *state = trace_new();
    return 0;
}

static int tear_down(void **state) {
    free(*state);
    return 0;
}

static void make(hand_trace *t, tide__schedule *s) {
    assert_ok(tide__schedule_make(&t->trace, &t->gpu, 0, s));
}

static void refuse(hand_trace *t, const char *event) {
    tide__schedule s;
    assert_int_equal(tide__schedule_make(&t->trace, &t->gpu, 0, &s), TIDE_CORRUPT);
    if (strstr(tide_last_error(), event) == NULL) print_error("message: %s\n", tide_last_error());
    assert_non_null(strstr(tide_last_error(), event));
}

static void assert_kinds(const tide__schedule *s, const char *kinds) {
    assert_int_equal(s->op_count, strlen(kinds));
    for (size_t i = 0; i < s->op_count; i++) assert_int_equal("arfRo"[s->ops[i].kind], kinds[i]);
}

static void test_blocks_are_numbered_in_the_order_of_allocation(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_alloc(t, 0x1000, 100);
    trace_alloc(t, 0x2000, 200);
    trace_free(t, 0x1000, 100);
    trace_alloc(t, 0x1000, 50); /* another block at the same address */
    make(t, &s);
    assert_kinds(&s, "aarfa");
    assert_int_equal(s.ops[3].block, 0);
    assert_int_equal(s.ops[4].block, 2);
    assert_int_equal(s.allocations, 3);
    assert_int_equal(s.peak_live, 300);
    tide__schedule_free(&s);
}

static void test_pending_block_is_live_until_its_free_completes(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_alloc(t, 0x1000, 100);
    trace_event(t, TIDE__ACTION_FREE_REQUESTED, 0x1000, 100);
    trace_alloc(t, 0x2000, 100);
    trace_event(t, TIDE__ACTION_FREE_COMPLETED, 0x1000, 100);
    make(t, &s);
    assert_kinds(&s, "araf");
    assert_int_equal(s.peak_live, 200);
    tide__schedule_free(&s);
}

static void test_run_of_segment_frees_is_one_release(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_event(t, TIDE__ACTION_SEGMENT_ALLOC, 0x1000, 2 * MIB);
    trace_alloc(t, 0x1000, 100);
    trace_free(t, 0x1000, 100);
    trace_event(t, TIDE__ACTION_SEGMENT_FREE, 0x1000, 2 * MIB);
    trace_event(t, TIDE__ACTION_SNAPSHOT, 0, 0); /* does not end the run */
    trace_event(t, TIDE__ACTION_SEGMENT_FREE, 0x9000, 2 * MIB);
    trace_event(t, TIDE__ACTION_SEGMENT_ALLOC, 0x1000, 2 * MIB);
    trace_alloc(t, 0x1000, 100);
    make(t, &s);
    assert_kinds(&s, "arfRa");
    assert_int_equal(s.ops[3].event, 4);
    assert_int_equal(s.ops[3].run_events, 3);
    tide__schedule_free(&s);
}

static void test_phase_carries_over_and_time_never_steps_back(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    uint32_t rollout = trace_string(t, "rollout");
    trace_alloc(t, 0x1000, 1);
    t->now_us = 1500;
    tide__trace_event *e = trace_event(t, TIDE__ACTION_ALLOC, 0x2000, 1);
    e->phase = rollout;
    e->has_phase = 1;
    t->now_us = 1200;
    trace_alloc(t, 0x3000, 1);
    t->now_us = INT64_MIN;
    trace_alloc(t, 0x4000, 1);
    make(t, &s);
    assert_int_equal(s.ops[0].phase, 0);
    assert_int_equal(s.ops[1].phase, rollout);
    assert_int_equal(s.ops[3].phase, rollout);
    assert_int_equal(s.ops[1].time_ns, 500000);
    assert_int_equal(s.ops[3].time_ns, 500000);
    assert_true(s.trace_seconds == 500e-6);
    tide__schedule_free(&s);
}

/* ---- In the middle of a run ---- */

static void test_free_of_a_block_never_allocated_puts_it_before_the_start(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_alloc(t, 0x1000, 100);
    trace_free(t, 0x2000, 300);
    trace_event(t, TIDE__ACTION_FREE_COMPLETED, 0x3000, 50); /* its request was before, too */
    trace_event(t, TIDE__ACTION_FREE_COMPLETED, 0x4000, 0);
    make(t, &s);
    assert_kinds(&s, "aaarff");
    assert_int_equal(s.blocks_before_start, 2);
    assert_int_equal(s.unknown_frees, 1);
    assert_int_equal(s.block_count, 3);
    assert_int_equal(s.ops[0].size, 300);
    assert_int_equal(s.ops[2].block, 2); /* the trace's own */
    assert_int_equal(s.ops[4].block, 0);
    assert_int_equal(s.ops[5].block, 1);
    assert_int_equal(s.peak_live, 450);
    assert_int_equal(s.allocations, 1);
    tide__schedule_free(&s);
}

static void test_blocks_at_the_end_that_no_event_tells_of_were_there_all_along(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_alloc(t, 0x1000, 100);
    trace_segment(t, 0x1000, 2 * MIB, false, false);
    trace_block(t, 0x1000, 512, 100, TIDE__BLOCK_ACTIVE_ALLOCATED);
    trace_block(t, 0x1200, 1024, 700, TIDE__BLOCK_ACTIVE_ALLOCATED);
    trace_block(t, 0x1600, 2 * MIB - 1536, 0, TIDE__BLOCK_INACTIVE);
    make(t, &s);
    assert_int_equal(s.blocks_before_start, 1);
    assert_int_equal(s.before[0].addr, 0x1200);
    assert_int_equal(s.peak_live, 800);
    tide__schedule_free(&s);
}

static void test_private_pool_is_told_by_its_segments_at_the_end(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_alloc(t, 0x1000, 100); /* of a segment that was here before the private one */
    trace_free(t, 0x1000, 100);
    trace_event(t, TIDE__ACTION_SEGMENT_ALLOC, 0x1000, 2 * MIB);
    trace_alloc(t, 0x1000, 100);
    trace_alloc(t, 0x1000 + 2 * MIB, 100);
    t->pool = 2;
    trace_segment(t, 0x1000, 2 * MIB, false, false);
    make(t, &s);
    assert_kinds(&s, "arfaa");
    assert_int_equal(s.ops[0].pool, 0);
    assert_int_equal(s.ops[3].pool, 2);
    assert_int_equal(s.ops[4].pool, 0);
    tide__schedule_free(&s);
}

/* ---- Contradictions ---- */

static void test_double_free_is_corrupt_and_names_the_event(void **state) {
    hand_trace *t = *state;
    trace_alloc(t, 0x1000, 100);
    trace_free(t, 0x1000, 100);
    trace_event(t, TIDE__ACTION_FREE_COMPLETED, 0x1000, 100);
    refuse(t, "event 3");
}

static void test_second_free_request_is_corrupt(void **state) {
    hand_trace *t = *state;
    trace_alloc(t, 0x1000, 100);
    trace_event(t, TIDE__ACTION_FREE_REQUESTED, 0x1000, 100);
    trace_event(t, TIDE__ACTION_FREE_REQUESTED, 0x1000, 100);
    refuse(t, "event 2");
}

static void test_double_free_of_a_block_from_before_is_corrupt(void **state) {
    hand_trace *t = *state;
    trace_free(t, 0x1000, 100);
    trace_free(t, 0x1000, 100);
    refuse(t, "event 2");
}

static void test_alloc_over_a_live_block_is_corrupt(void **state) {
    hand_trace *t = *state;
    trace_alloc(t, 0x1000, 100);
    trace_alloc(t, 0x1000, 100);
    refuse(t, "event 1");
}

static void test_sizes_that_overflow_are_corrupt(void **state) {
    hand_trace *t = *state;
    trace_alloc(t, 0x1000, UINT64_MAX);
    refuse(t, "event 0");
    t->gpu.event_count = 0;
    trace_alloc(t, 0x1000, UINT64_C(1) << 59);
    trace_alloc(t, 0x2000, UINT64_C(1) << 59);
    refuse(t, "event 1");
    t->gpu.event_count = 0;
    trace_free(t, 0x1000, UINT64_MAX);
    refuse(t, "event 0");
    t->gpu.event_count = 0;
    trace_event(t, TIDE__ACTION_OOM, 0, UINT64_MAX);
    refuse(t, "event 0");
}

static void test_free_of_another_size_counts_what_was_allocated(void **state) {
    hand_trace *t = *state;
    tide__schedule s;
    trace_alloc(t, 0x1000, 100);
    trace_free(t, 0x1000, UINT64_MAX);
    trace_alloc(t, 0x1000, 70);
    make(t, &s);
    assert_int_equal(s.ops[2].size, 100);
    assert_int_equal(s.peak_live, 100);
    tide__schedule_free(&s);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_blocks_are_numbered_in_the_order_of_allocation),
        TEST(test_pending_block_is_live_until_its_free_completes),
        TEST(test_run_of_segment_frees_is_one_release),
        TEST(test_phase_carries_over_and_time_never_steps_back),
        TEST(test_free_of_a_block_never_allocated_puts_it_before_the_start),
        TEST(test_blocks_at_the_end_that_no_event_tells_of_were_there_all_along),
        TEST(test_private_pool_is_told_by_its_segments_at_the_end),
        TEST(test_double_free_is_corrupt_and_names_the_event),
        TEST(test_second_free_request_is_corrupt),
        TEST(test_double_free_of_a_block_from_before_is_corrupt),
        TEST(test_alloc_over_a_live_block_is_corrupt),
        TEST(test_sizes_that_overflow_are_corrupt),
        TEST(test_free_of_another_size_counts_what_was_allocated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
