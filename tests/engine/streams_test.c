/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams at their edges: destroyed before they were retired, known by two
 * handles, waited for while others are captured; what of a graph's memory is
 * whose; and waits that are bounded.
 */
#include <pthread.h>

#include "fixture.h"

#define MIB TIDE__MIB
#define SECOND UINT64_C(1000000000)

static void *alloc_from(fixture *f, uint64_t size, tide_stream stream, tide_pool pool) {
    void *ptr = NULL;
    assert_ok(try_alloc(f, 0, size, stream, pool, &ptr));
    return ptr;
}

static void a_stream_destroyed_too_early_is_named_and_can_be_retired(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_stream gone = new_stream(f);
    void *ptr = NULL;
    free_block(f, alloc_on(f, 40 * MIB, gone));
    assert_ok(f->inner->ops->stream_destroy(f->inner, 0, gone));
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(f->a, 0, 100 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_non_null(strstr(tide_last_error(), "tide_stream_retire"));
    assert_ok(tide_stream_retire(f->a, 0, gone));
    watch_retired(f->w, 0, gone);
    free_block(f, alloc_on(f, 100 * MIB, 0));
    close_fixture(f);
}

static void the_end_of_a_capture_on_a_stream_never_seen_is_an_error(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide__device_counters before, after;
    f->inner->ops->counters(f->inner, 0, &before);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_capture_end(f->a, 0, (tide_stream)0x1234));
    f->inner->ops->counters(f->inner, 0, &after);
    assert_int_equal(before.calls[TIDE__CALL_STREAM_ID], after.calls[TIDE__CALL_STREAM_ID]);
    close_fixture(f);
}

/* The graph may be launched on a stream that knows nothing of the pool's own. */
static void a_capture_takes_nothing_that_queued_work_may_use(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    tide_stream s = new_stream(f);
    tide_pool pool = 0;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    void *before = alloc_from(f, 40 * MIB, s, pool);
    free_block(f, before);
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    void *in = alloc_from(f, 40 * MIB, s, pool);
    assert_ptr_not_equal(in, before);
    assert_ok(tide_capture_end(f->a, 0, s));
    tide__sim_set_trace_time(f->inner, 10 * SECOND);
    trim(f, 0, 0);
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    assert_ptr_equal(alloc_from(f, 40 * MIB, s, pool), before); /* done by now */
    assert_ok(tide_capture_end(f->a, 0, s));
    free_block(f, before);
    free_block(f, in);
    close_fixture(f);
}

static void what_a_replay_uses_is_given_to_nobody_outside_of_captures(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_stream s = new_stream(f);
    tide_pool pool = 0;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    void *in = alloc_from(f, 40 * MIB, s, pool);
    free_block(f, in);
    assert_ok(tide_capture_end(f->a, 0, s));
    void *eager = alloc_from(f, 40 * MIB, s, pool);
    assert_ptr_not_equal(eager, in);
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    assert_ptr_equal(alloc_from(f, 40 * MIB, s, pool), in); /* another capture may */
    assert_ok(tide_capture_end(f->a, 0, s));
    free_block(f, in);
    free_block(f, eager);
    trim(f, 0, UINT64_MAX);
    assert_int_equal(stats_of(f, 0).active_bytes, 0);
    close_fixture(f);
}

/* Work queued before the capture may still use it. */
static void a_block_freed_in_a_capture_that_was_there_before_is_not_the_graphs(void **state) {
    (void)state;
    for (int captured_before = 0; captured_before < 2; captured_before++) {
        fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
        tide_stream s = new_stream(f);
        tide_pool pool = 0;
        assert_ok(tide_pool_create(f->a, 0, &pool));
        if (captured_before) {
            assert_ok(tide_capture_begin(f->a, 0, s, pool));
            assert_ok(tide_capture_end(f->a, 0, s));
        }
        void *eager = alloc_from(f, 4 * MIB, s, pool);
        assert_ok(tide_capture_begin(f->a, 0, s, pool));
        free_block(f, eager);
        void *in = alloc_from(f, 4 * MIB, s, pool);
        assert_ptr_not_equal(in, eager);
        assert_ok(tide_capture_end(f->a, 0, s));
        free_block(f, in);
        close_fixture(f);
    }
}

static void a_graphs_blocks_are_not_the_next_streams_of_the_same_number(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_stream s = new_stream(f), next;
    tide_pool pool = 0;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    void *in = alloc_from(f, 4 * MIB, s, pool);
    free_block(f, in);
    assert_ok(tide_capture_end(f->a, 0, s));
    assert_ok(tide_stream_destroy(f->a, 0, s));
    watch_retired(f->w, 0, s);
    trim(f, UINT64_MAX, UINT64_MAX);
    next = new_stream(f);
    assert_ok(tide_capture_begin(f->a, 0, next, pool));
    assert_ptr_not_equal(alloc_from(f, 4 * MIB, next, pool), in);
    assert_ok(tide_capture_end(f->a, 0, next));
    close_fixture(f);
}

static void streams_destroyed_too_early_do_not_wait_for_one_another(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_stream s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = new_stream(f);
        free_block(f, alloc_on(f, 4096, s[i]));
    }
    assert_ok(f->inner->ops->stream_destroy(f->inner, 0, s[0]));
    assert_ok(f->inner->ops->stream_destroy(f->inner, 0, s[1]));
    for (int i = 2; i >= 0; i--) {
        assert_ok(i == 2 ? tide_stream_destroy(f->a, 0, s[i]) : tide_stream_retire(f->a, 0, s[i]));
        watch_retired(f->w, 0, s[i]);
    }
    free_block(f, alloc_on(f, 40 * MIB, 0));
    close_fixture(f);
}

static void the_place_of_a_retired_stream_is_no_stream(void **state) {
    (void)state;
    tide_open_options options = {.struct_size = sizeof options, .backend = "sim"};
    tide_allocator *a;
    void *ptr = NULL;
    assert_ok(tide_open(&options, &a)); /* more streams than the watch has room for */
    for (int i = 0; i < 5000; i++) {    /* until the table's slots have all been somebody's */
        tide_stream s = 0;
        assert_ok(tide_stream_create(a, 0, &s));
        assert_ok(tide_alloc(a, 0, 512, s, TIDE_POOL_DEFAULT, &ptr));
        assert_ok(tide_free(a, ptr));
        assert_ok(tide_stream_destroy(a, 0, s));
    }
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(a, 0, 512, UINT64_MAX - 1, TIDE_POOL_DEFAULT, &ptr));
    assert_fails(TIDE_BAD_HANDLE, tide_alloc(a, 0, 512, UINT64_MAX, TIDE_POOL_DEFAULT, &ptr));
    tide__allocator_validate(a);
    assert_ok(tide_close(a));
}

static void a_released_pools_addresses_serve_where_there_are_no_others(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_pool pool = 0;
    void *ptr = NULL;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    free_block(f, alloc_from(f, 20 * MIB, 0, pool));
    trim(f, UINT64_MAX, UINT64_MAX);
    assert_ok(tide__fault_arm(f->fault, TIDE__CALL_RESERVE, 1, TIDE_NO_ADDRESSES, true));
    assert_fails(TIDE_NO_ADDRESSES, tide_alloc(f->a, 0, 20 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_ok(tide_pool_release(f->a, pool));
    free_block(f, alloc_on(f, 20 * MIB, 0));
    tide__fault_disarm(f->fault);
    assert_ok(tide_pool_create(f->a, 0, &pool));
    free_block(f, alloc_from(f, 20 * MIB, 0, pool));
    close_fixture(f);
}

static void an_address_that_stays_in_use_for_long_is_not_ready(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = 100 * SECOND, .oom_wait = SECOND});
    tide_stream other = new_stream(f);
    void *ptr = alloc_on(f, 40 * MIB, other);
    free_block(f, ptr);
    uint64_t start = f->inner->ops->now_ns(f->inner);
    assert_fails(TIDE_NOT_READY, try_alloc_at(f, 40 * MIB, 0, ptr));
    assert_in_range(f->inner->ops->now_ns(f->inner) - start, SECOND, 2 * SECOND);
    tide__sim_set_trace_time(f->inner, 200 * SECOND);
    assert_ok(try_alloc_at(f, 40 * MIB, 0, ptr));
    free_block(f, ptr);
    close_fixture(f);
}

static void hundreds_of_pools_find_addresses(void **state) {
    (void)state;
    enum { POOLS = 300 };
    fixture *f = open_fixture(&(fixture_options){.capacity = 141 * TIDE__GIB});
    void *ptr[POOLS][TIDE__CLASSES];
    tide_pool pool = 0;
    for (int i = 0; i < POOLS; i++) {
        assert_ok(tide_pool_create(f->a, 0, &pool));
        for (int k = 0; k < TIDE__CLASSES; k++) {
            uint64_t size = tide__max(tide__tuning_default.classes[k].from_bytes, 512);
            ptr[i][k] = alloc_from(f, size, 0, pool);
        }
    }
    for (int i = 0; i < POOLS; i++) {
        for (int k = 0; k < TIDE__CLASSES; k++) {
            free_block(f, ptr[i][k]);
        }
    }
    close_fixture(f);
}

static void a_trim_gives_back_all_but_what_the_driver_keeps(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_trim_options all = {.struct_size = sizeof all, .bytes = UINT64_MAX, .wait_ns = UINT64_MAX};
    void *ptr[8];
    for (int i = 0; i < 8; i++) {
        ptr[i] = alloc_on(f, 20 * MIB, 0);
    }
    for (int i = 0; i < 8; i++) {
        free_block(f, ptr[i]);
    }
    for (uint64_t k = 1; k < 3; k++) { /* the first that fails is tried again once others are gone */
        assert_ok(tide__fault_arm(f->fault, TIDE__CALL_UNMAP, k, TIDE_DRIVER, false));
        assert_ok(tide_trim(f->a, 0, &all, NULL));
        assert_int_equal(used_bytes(f, 0), 0);
        free_block(f, alloc_on(f, 200 * MIB, 0));
    }
    assert_ok(tide__fault_arm(f->fault, TIDE__CALL_UNMAP, 1, TIDE_DRIVER, true));
    assert_fails(TIDE_DRIVER, tide_trim(f->a, 0, &all, NULL));
    assert_in_range(used_bytes(f, 0), 200 * MIB, TIDE__GIB);
    tide__fault_disarm(f->fault);
    assert_ok(tide_trim(f->a, 0, &all, NULL));
    assert_int_equal(used_bytes(f, 0), 0);
    close_fixture(f);
}

typedef struct recorder {
    fixture *f;
    void *ptr;
    tide_stream stream;
} recorder;

static void *record_often(void *user) {
    recorder *r = user;
    for (int i = 0; i < 1000; i++) {
        if (tide_record_stream(r->f->a, r->ptr, r->stream) != TIDE_OK) {
            return user;
        }
    }
    return NULL;
}

static void two_threads_may_record_one_block(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, 20 * MIB, 0), *wrong = NULL;
    recorder r[2] = {{f, ptr, new_stream(f)}, {f, ptr, new_stream(f)}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, record_often, &r[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    for (int i = 0; i < 2; i++) {
        watch_recorded(f->w, 0, (uintptr_t)ptr, watch_slot(f->w, 0, r[i].stream));
    }
    free_block(f, ptr);
    close_fixture(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_destroyed_too_early_is_named_and_can_be_retired),
        cmocka_unit_test(the_end_of_a_capture_on_a_stream_never_seen_is_an_error),
        cmocka_unit_test(a_capture_takes_nothing_that_queued_work_may_use),
        cmocka_unit_test(what_a_replay_uses_is_given_to_nobody_outside_of_captures),
        cmocka_unit_test(a_block_freed_in_a_capture_that_was_there_before_is_not_the_graphs),
        cmocka_unit_test(a_graphs_blocks_are_not_the_next_streams_of_the_same_number),
        cmocka_unit_test(streams_destroyed_too_early_do_not_wait_for_one_another),
        cmocka_unit_test(the_place_of_a_retired_stream_is_no_stream),
        cmocka_unit_test(a_released_pools_addresses_serve_where_there_are_no_others),
        cmocka_unit_test(an_address_that_stays_in_use_for_long_is_not_ready),
        cmocka_unit_test(hundreds_of_pools_find_addresses),
        cmocka_unit_test(a_trim_gives_back_all_but_what_the_driver_keeps),
        cmocka_unit_test(two_threads_may_record_one_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
