/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools of a trace whose events name none: what addresses tell of
 * segments that are gone at the end, rule by rule, and what they do not.
 */
#include "replay_test.h"

#include "replay/private_pools.h"

#define MODELS ((1u << TIDE__POLICY_NATIVE) | (1u << TIDE__POLICY_EXPANDABLE))

#define A \
    (UINT64_C(1) << 45) /* addresses that a driver might have chosen, farther apart than windows are long */
#define B (UINT64_C(2) << 45)
#define C (UINT64_C(3) << 45)
#define D (UINT64_C(4) << 45)

typedef struct fixture {
    hand_trace *t;
    tide__schedule schedule;
    tide__replay_result result;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->t = trace_new();
    f->t->gpu.pool_count = 2; /* of the segments at the end */
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    tide__schedule_free(&f->schedule);
    tide__replay_result_free(&f->result);
    free(f->t);
    free(f);
    return 0;
}

static void replay(fixture *f) {
    tide__replay_options o = {.policies = MODELS, .device = "sim"};
    assert_ok(tide__schedule_make(&f->t->trace, &f->t->gpu, 0, &f->schedule));
    assert_ok(tide__replay(&f->t->trace, &f->t->gpu, &o, &f->result));
}

static void assert_exact(const fixture *f, unsigned pools) {
    assert_int_equal(f->result.recorded.mismatches, 0);
    assert_true(f->result.recorded.compared >= f->result.allocations);
    assert_int_equal(f->schedule.pools_inferred, pools);
    assert_int_equal(strstr(f->result.recorded.reason, "names no pool") != NULL, pools > 0);
}

static void segment(fixture *f, uint64_t addr, uint64_t size) {
    trace_event(f->t, TIDE__ACTION_SEGMENT_ALLOC, addr, size);
}
static void segment_free(fixture *f, uint64_t addr, uint64_t size) {
    trace_event(f->t, TIDE__ACTION_SEGMENT_FREE, addr, size);
}

/* The pool of the schedule's n-th allocation. */
static unsigned pool_of(const fixture *f, unsigned n) {
    for (size_t i = 0; i < f->schedule.op_count; i++)
        if (f->schedule.ops[i].kind == TIDE__OP_ALLOC && n-- == 0) return f->schedule.ops[i].pool;
    fail();
    return 0;
}

/* ---- Native ---- */

static void test_a_new_segment_where_the_default_pool_had_room_is_a_private_pools(void **state) {
    fixture *f = *state;
    segment(f, A, 30 * MIB);
    trace_alloc(f->t, A, 30 * MIB);
    trace_free(f->t, A, 30 * MIB);
    segment(f, B, 30 * MIB);
    trace_alloc(f->t, B, 30 * MIB);
    trace_free(f->t, B, 30 * MIB);
    segment_free(f, B, 30 * MIB); /* the pool is gone; A's stays */
    trace_alloc(f->t, A, 30 * MIB);
    trace_segment(f->t, A, 30 * MIB, true, false);
    trace_block(f->t, A, 30 * MIB, 30 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    replay(f);
    assert_exact(f, 1);
    assert_int_equal(pool_of(f, 0), 0);
    assert_int_equal(pool_of(f, 1), 2);
    assert_int_equal(f->schedule.regions_inferred, 1);
    assert_int_equal(tide__schedule_event_pool(&f->schedule, 8), 2);
}

static void test_what_a_release_keeps_is_not_of_the_pool_it_released(void **state) {
    fixture *f = *state;
    segment(f, A, 30 * MIB); /* no free block ever speaks against this one */
    trace_alloc(f->t, A, 30 * MIB);
    segment(f, B, 2 * MIB);
    trace_alloc(f->t, B, 512);
    trace_free(f->t, A, 30 * MIB);
    trace_free(f->t, B, 512);
    segment_free(f, A, 30 * MIB);
    trace_alloc(f->t, B, 512);
    trace_segment(f->t, B, 2 * MIB, false, false);
    trace_block(f->t, B, 512, 512, TIDE__BLOCK_ACTIVE_ALLOCATED);
    replay(f);
    assert_exact(f, 1);
    assert_int_equal(pool_of(f, 0), 2);
    assert_int_equal(pool_of(f, 1), 0);
}

static void test_segments_at_the_end_have_the_pool_that_the_file_says(void **state) {
    fixture *f = *state;
    segment(f, A, 30 * MIB);
    trace_alloc(f->t, A, 30 * MIB);
    trace_free(f->t, A, 30 * MIB);
    segment(f, B, 30 * MIB);
    trace_alloc(f->t, B, 30 * MIB);
    trace_segment(f->t, A, 30 * MIB, true, false);
    f->t->pool = 1;
    trace_segment(f->t, B, 30 * MIB, true, false);
    trace_block(f->t, B, 30 * MIB, 30 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    replay(f);
    assert_exact(f, 0);
    assert_int_equal(pool_of(f, 0), 0);
    assert_int_equal(pool_of(f, 1), 1);
}

static void test_a_trace_that_one_pool_explains_has_one(void **state) {
    fixture *f = *state;
    segment(f, A, 30 * MIB);
    trace_alloc(f->t, A, 30 * MIB);
    segment(f, B, 40 * MIB);
    trace_alloc(f->t, B, 40 * MIB);
    trace_free(f->t, A, 30 * MIB);
    trace_free(f->t, B, 40 * MIB);
    trace_alloc(f->t, A, 25 * MIB); /* the best fit */
    segment_free(f, B, 40 * MIB);
    replay(f);
    assert_exact(f, 0);
    assert_null(f->schedule.event_pools);
}

static void test_an_address_that_no_rule_gives_stays_a_mismatch(void **state) {
    fixture *f = *state;
    segment(f, A, 30 * MIB);
    trace_alloc(f->t, A, 30 * MIB);
    trace_free(f->t, A, 30 * MIB);
    trace_alloc(f->t, A + 512, 20 * MIB);
    replay(f);
    assert_int_equal(f->result.recorded.mismatches, 1);
    assert_int_equal(f->schedule.pools_inferred, 0);
}

/* Small segments of which each holds one block, though the first had room for all. */
static void test_a_pool_that_splits_nothing_is_told_by_what_it_leaves_unused(void **state) {
    fixture *f = *state;
    const uint64_t base[] = {A, B, C, D};
    for (int i = 0; i < 4; i++) {
        segment(f, base[i], 2 * MIB);
        trace_alloc(f->t, base[i], 1000);
    }
    for (int i = 0; i < 4; i++) trace_free(f->t, base[i], 1000);
    trace_alloc(f->t, A, 700); /* all are as large: the lowest */
    trace_alloc(f->t, B, MIB);
    trace_free(f->t, A, 700);
    trace_free(f->t, B, MIB);
    for (int i = 0; i < 4; i++) segment_free(f, base[i], 2 * MIB);
    replay(f);
    assert_exact(f, 1);
    assert_int_equal(pool_of(f, 0), 2);
    assert_int_equal(pool_of(f, 5), 2);
    assert_true(f->schedule.unsplit_pools[2]);
}

/* ---- Expandable ---- */

static void map(fixture *f, uint64_t addr, uint64_t size) {
    trace_event(f->t, TIDE__ACTION_SEGMENT_MAP, addr, size);
}
static void unmap(fixture *f, uint64_t addr, uint64_t size) {
    trace_event(f->t, TIDE__ACTION_SEGMENT_UNMAP, addr, size);
}

static void test_two_windows_of_a_stream_at_once_are_of_two_pools(void **state) {
    fixture *f = *state;
    map(f, A, 40 * MIB);
    trace_alloc(f->t, A, 30 * MIB);
    map(f, B, 40 * MIB);
    trace_alloc(f->t, B, 30 * MIB);
    trace_free(f->t, B, 30 * MIB);
    unmap(f, B, 40 * MIB);
    map(f, A + 40 * MIB, 20 * MIB);
    trace_alloc(f->t, A + 30 * MIB, 20 * MIB);
    trace_segment(f->t, A, 60 * MIB, true, true);
    trace_block(f->t, A, 30 * MIB, 30 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    trace_block(f->t, A + 30 * MIB, 20 * MIB, 20 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    replay(f);
    assert_exact(f, 1);
    assert_int_equal(pool_of(f, 1), 2);
    assert_int_equal(pool_of(f, 2), 0);
}

static void test_addresses_of_a_window_that_is_gone_may_be_another_pools(void **state) {
    fixture *f = *state;
    map(f, A, 20 * MIB);
    trace_alloc(f->t, A, 20 * MIB);
    trace_free(f->t, A, 20 * MIB);
    unmap(f, A, 20 * MIB);
    map(f, B, 20 * MIB);
    trace_alloc(f->t, B, 20 * MIB);
    map(f, A, 20 * MIB); /* B's could have grown: this is a private pool's */
    trace_alloc(f->t, A, 20 * MIB);
    trace_segment(f->t, B, 20 * MIB, true, true);
    trace_block(f->t, B, 20 * MIB, 20 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    f->t->pool = 1;
    trace_segment(f->t, A, 20 * MIB, true, true);
    trace_block(f->t, A, 20 * MIB, 20 * MIB, TIDE__BLOCK_ACTIVE_ALLOCATED);
    replay(f);
    assert_exact(f, 0);
    assert_int_equal(pool_of(f, 0), 0);
    assert_int_equal(pool_of(f, 1), 0);
    assert_int_equal(pool_of(f, 2), 1);
}

static void test_a_window_that_grows_though_it_has_room_splits_nothing(void **state) {
    fixture *f = *state;
    map(f, A, 2 * MIB);
    trace_alloc(f->t, A, 1000);
    map(f, A + 2 * MIB, 2 * MIB);
    trace_alloc(f->t, A + 2 * MIB, 1000);
    trace_free(f->t, A, 1000);
    trace_alloc(f->t, A, 600);
    trace_free(f->t, A + 2 * MIB, 1000);
    trace_free(f->t, A, 600);
    unmap(f, A, 4 * MIB);
    replay(f);
    assert_exact(f, 1);
    assert_int_equal(pool_of(f, 0), 2);
    assert_true(f->schedule.unsplit_pools[2]);
}

/* ---- Events that name pools ---- */

static void test_events_that_name_pools_are_believed(void **state) {
    fixture *f = *state;
    segment(f, A, 30 * MIB);
    trace_alloc(f->t, A, 30 * MIB);
    trace_free(f->t, A, 30 * MIB);
    f->t->pool = 1;
    segment(f, B, 30 * MIB);
    trace_alloc(f->t, B, 30 * MIB);
    trace_free(f->t, B, 30 * MIB);
    segment_free(f, B, 30 * MIB);
    replay(f);
    assert_exact(f, 0);
    assert_int_equal(pool_of(f, 1), 1);
    assert_int_equal(tide__schedule_event_pool(&f->schedule, 8), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_a_new_segment_where_the_default_pool_had_room_is_a_private_pools),
        TEST(test_what_a_release_keeps_is_not_of_the_pool_it_released),
        TEST(test_segments_at_the_end_have_the_pool_that_the_file_says),
        TEST(test_a_trace_that_one_pool_explains_has_one),
        TEST(test_an_address_that_no_rule_gives_stays_a_mismatch),
        TEST(test_a_pool_that_splits_nothing_is_told_by_what_it_leaves_unused),
        TEST(test_two_windows_of_a_stream_at_once_are_of_two_pools),
        TEST(test_addresses_of_a_window_that_is_gone_may_be_another_pools),
        TEST(test_a_window_that_grows_though_it_has_room_splits_nothing),
        TEST(test_events_that_name_pools_are_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
