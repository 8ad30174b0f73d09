/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was found once and must stay fixed: each test is the smallest case of a
 * fault, named after its symptom. Random operations (model_test.c) found most
 * of them.
 */
#include "fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#define MIB TIDE__MIB
#define SECOND UINT64_C(1000000000)

static void alloc_at_on_a_stream_new_to_the_pool(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_stream other = new_stream(f);
    void *ptr = alloc_on(f, 1000, 0);
    free_block(f, ptr);
    trim(f, UINT64_MAX, 0);
    assert_ok(try_alloc_at(f, 1000, other, ptr)); /* the rest of its chunk needs a list to go to */
    free_block(f, ptr);
    trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(used_bytes(f, 0), 0);
    close_fixture(f);
}

static void a_wait_covers_retired_streams(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND, .mode = TIDE_CROSS_STREAM_WAIT});
    tide_stream gone = new_stream(f);
    free_block(f, alloc_on(f, 200 * MIB, gone));
    assert_ok(tide_stream_retire(f->a, 0, gone));
    watch_retired(f->w, 0, gone);
    alloc_on(f, 300 * MIB, 0); /* takes what the retired stream's work may still use: watch looks */
    close_fixture(f);
}

static void trim_gives_back_chunks_that_two_streams_shared(void **state) {
    (void)state;
    static const tide_cross_stream modes[] = {TIDE_CROSS_STREAM_OFF, TIDE_CROSS_STREAM_IDLE,
                                              TIDE_CROSS_STREAM_WAIT};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        fixture *f = open_fixture(&(fixture_options){.mode = modes[i]});
        tide_stream other = new_stream(f);
        void *first = alloc_on(f, 512, 0);
        trim(f, 0, UINT64_MAX);
        void *second = alloc_on(f, 512, other);
        free_block(f, first);
        free_block(f, second);
        trim(f, UINT64_MAX, UINT64_MAX);
        assert_int_equal(used_bytes(f, 0), 0);
        close_fixture(f);
    }
}

static void a_patient_trim_waits_for_chunks_of_small_blocks(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    tide_stream other = new_stream(f);
    void *keep = alloc_on(f, 512, 0);
    trim(f, 0, UINT64_MAX);
    void *ptr = alloc_on(f, 300000, 0), *small = alloc_on(f, 512, other);
    free_block(f, keep);
    free_block(f, ptr);
    free_block(f, small);
    trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(used_bytes(f, 0), 0);
    close_fixture(f);
}

static void a_pool_with_only_freed_blocks_can_be_released(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    tide_stream other = new_stream(f);
    tide_pool pool;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    void *ptr = alloc_in(f, 4 * MIB, pool);
    assert_ok(tide_record_stream(f->a, ptr, other));
    watch_recorded(f->w, 0, (uintptr_t)ptr, watch_slot(f->w, 0, other));
    free_block(f, ptr);
    assert_ok(tide_pool_release(f->a, pool));
    trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(used_bytes(f, 0), 0);
    close_fixture(f);
}

static void a_mapping_that_cannot_be_undone_is_never_given_out(void **state) {
    (void)state;
    for (int host = 0; host < 2; host++) {
        fixture *f = open_fixture(&(fixture_options){.host = host != 0, .capacity = 64 * MIB});
        void *ptr = NULL;
        assert_ok(tide__fault_arm(f->fault, TIDE__CALL_SET_ACCESS, 1, TIDE_DRIVER, false));
        assert_ok(tide__fault_arm(f->fault, TIDE__CALL_UNMAP, 1, TIDE_DRIVER, false));
        assert_fails(TIDE_DRIVER, tide_alloc(f->a, 0, 5 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
        tide__allocator_validate(f->a);
        ptr = alloc_on(f, 5 * MIB, 0); /* watch: it is accessible */
        free_block(f, ptr);
        trim(f, UINT64_MAX, UINT64_MAX);
        assert_int_equal(used_bytes(f, 0), 0);
        close_fixture(f);
    }
}

static void out_of_memory_comes_to_an_end(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 256 * MIB});
    void *ptr = alloc_on(f, 30 * MIB, 0), *none = NULL;
    free_block(f, alloc_on(f, 200 * MIB, 0));
    /* An attempt takes what there is and gives it back: that is no progress. */
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 240 * MIB, 0, TIDE_POOL_DEFAULT, &none));
    free_block(f, ptr);
    alloc_on(f, 240 * MIB, 0);
    close_fixture(f);
}

/* Chunks so small that the shapes below need few bytes. */
static tide__tuning small_chunks(void) {
    tide__tuning t = tide__tuning_default;
    for (int i = 0; i < TIDE__CLASSES; i++) {
        t.classes[i].chunk_bytes = GRANULE;
    }
    t.slack_bytes = 0;
    t.slack_per_mille = 0;
    t.epoch_bytes = TIDE__GIB;
    return t;
}

/* All work queued so far is done, and the engine may know it. */
static void pass_time(fixture *f) {
    trim(f, 0, 0);
    tide__sim_set_trace_time(f->inner, f->inner->ops->now_ns(f->inner) + 2 * SECOND);
}

static void gathering_stops_at_what_is_not_idle(void **state) {
    (void)state;
    const tide__tuning t = small_chunks();
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND, .tuning = &t});
    tide_stream other = new_stream(f);
    alloc_on(f, 512, 0); /* the own stream is the one seen first */
    /* | other, pending | own, idle | other, idle, larger | own, pending | in one heap, in this order */
    void *a = alloc_on(f, 4 * MIB, other), *b = alloc_on(f, 2 * MIB, 0);
    void *c = alloc_on(f, 6 * MIB, other), *d = alloc_on(f, 4 * MIB, 0);
    assert_true(a < b && b < c && c < d);
    free_block(f, b);
    free_block(f, c);
    pass_time(f);
    free_block(f, a);
    free_block(f, d);
    alloc_on(f, 14 * MIB, 0); /* watch looks whose bytes it gets */
    close_fixture(f);
}

static void freeing_and_taking_the_same_block_for_ever_needs_few_events(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    for (int i = 0; i < 5000; i++) {
        free_block(f, alloc_on(f, 64 * MIB, 0)); /* every free is enough for an epoch; every alloc is a hit */
        f->w->gpus[0].free_count = 0;            /* what watch remembers of it is not needed */
        f->w->gpus[0].mappings[0]->span_count = 0;
        for (size_t k = 0; k < f->w->gpus[0].mapping_count; k++) {
            f->w->gpus[0].mappings[k]->span_count = 0;
        }
    }
    assert_true(f->w->gpus[0].peak_events < 100);
    close_fixture(f);
}

static void streams_may_come_and_go_without_end(void **state) {
    (void)state;
    tide_allocator *a = NULL;
    tide_open_options options = {.struct_size = sizeof options, .backend = "sim"};
    assert_ok(tide_open(&options, &a));
    for (int i = 0; i < 4200; i++) {
        tide_stream stream;
        void *ptr;
        assert_ok(tide_stream_create(a, 0, &stream));
        assert_ok(tide_alloc(a, 0, 4096, stream, TIDE_POOL_DEFAULT, &ptr));
        assert_ok(tide_free(a, ptr));
        assert_ok(tide_stream_destroy(a, 0, stream));
    }
    tide__allocator_validate(a);
    assert_ok(tide_close(a));
}

static void pools_may_come_and_go_without_end(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 150 * TIDE__GIB});
    tide_pool first = 0;
    uint64_t addresses = 0;
    for (int i = 0; i < 4200; i++) {
        tide_pool pool;
        assert_ok(tide_pool_create(f->a, 0, &pool));
        assert_true(pool != first);
        first = i == 0 ? pool : first;
        for (uint64_t size = 512; size < 200 * MIB; size *= 400) { /* blocks of each class */
            void *ptr;
            assert_ok(tide_alloc(f->a, 0, size, 0, pool, &ptr));
            assert_ok(tide_free(f->a, ptr));
        }
        assert_ok(tide_pool_release(f->a, pool));
        assert_ok(tide_trim(f->a, 0, NULL, NULL));
        addresses = i == 10 ? stats_of(f, 0).address_bytes : addresses;
    }
    assert_int_equal(stats_of(f, 0).address_bytes, addresses);
    close_fixture(f);
}

static void addresses_do_not_grow_with_the_number_of_holes(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 16 * TIDE__GIB});
    void *ptr[3000];
    for (size_t i = 0; i < 3000; i++) {
        ptr[i] = alloc_on(f, 4 * MIB, 0);
    }
    uint64_t addresses = stats_of(f, 0).address_bytes;
    for (size_t i = 0; i < 3000; i += 2) {
        free_block(f, ptr[i]); /* 1,500 holes */
    }
    trim(f, UINT64_MAX, UINT64_MAX);
    for (size_t i = 0; i < 50; i++) {
        alloc_on(f, 8 * MIB, 0);
    }
    assert_int_equal(stats_of(f, 0).address_bytes, addresses);
    close_fixture(f);
}

static void a_trim_of_some_says_what_is_really_pinned(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    free_block(f, alloc_on(f, 100 * MIB, 0));
    tide_trim_result r = trim(f, 2 * MIB, 0);
    assert_true(r.released_bytes >= 2 * MIB);
    assert_int_equal(r.pinned_bytes, 0); /* no live block shares a chunk with anything */
    close_fixture(f);
}

static void results_fit_the_callers_structure(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    tide_trim_options options = {.struct_size = sizeof options, .bytes = UINT64_MAX};
    tide_trim_result r;
    tide_phase_stats p;
    free_block(f, alloc_on(f, 3 * MIB, 0));
    memset(&r, 0xee, sizeof r);
    r.struct_size = offsetof(tide_trim_result, pinned_bytes); /* an older caller's ends here */
    assert_ok(tide_trim(f->a, 0, &options, &r));
    assert_int_equal(r.released_bytes, 4 * MIB);
    assert_int_equal(r.pinned_bytes, UINT64_C(0xeeeeeeeeeeeeeeee));
    memset(&p, 0xee, sizeof p);
    p.struct_size = offsetof(tide_phase_stats, requested_bytes);
    assert_ok(tide_phase_stats_get(f->a, 0, 0, &p));
    assert_int_equal(p.requested_bytes, UINT64_C(0xeeeeeeeeeeeeeeee));
    close_fixture(f);
}

static void a_child_process_is_told_that_it_is_one(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *block = alloc_on(f, MIB, 0);
    pid_t child = fork();
    if (child == 0) {
        void *ptr = NULL;
        bool told = tide_alloc(f->a, 0, 40 * MIB, 0, TIDE_POOL_DEFAULT, &ptr) == TIDE_FORKED &&
                    tide_alloc(f->a, 0, MIB, 0, TIDE_POOL_DEFAULT, &ptr) == TIDE_FORKED &&
                    tide_free(f->a, block) == TIDE_FORKED && tide_trim(f->a, 0, NULL, NULL) == TIDE_FORKED;
        _exit(told ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    free_block(f, block);
    close_fixture(f);
}

static void calls_without_what_they_need_are_errors(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *block = alloc_on(f, MIB, 0);
    size_t size = 0;
    assert_fails(TIDE_INVALID_ARGUMENT, tide_phase(NULL, "rollout"));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_alloc(f->a, 0, 1, 0, TIDE_POOL_DEFAULT, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stats_get(f->a, 0, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_phase_stats_get(f->a, 0, 0, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_pool_create(f->a, 0, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_stream_create(f->a, 0, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_block_size(f->a, block, NULL, &size));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_block_size(f->a, block, &size, NULL));
    close_fixture(f);
}

static void a_refused_request_counts_as_out_of_memory(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 64 * MIB});
    void *ptr = NULL;
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 65 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_int_equal(stats_of(f, 0).ooms, 1);
    close_fixture(f);
}

static void the_slow_path_times_itself(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, MIB, 0);
    uint64_t first = stats_of(f, 0).slow_ns;
    assert_true(first > 0);
    free_block(f, ptr);
    alloc_on(f, MIB, 0); /* from the cache */
    assert_int_equal(stats_of(f, 0).slow_ns, first);
    close_fixture(f);
}

static void a_free_address_of_another_size_can_be_taken(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, 5 * MIB, 0);
    free_block(f, ptr);
    assert_ok(try_alloc_at(f, 512, 0, ptr)); /* it is an address that an earlier block of the pool had */
    /* It takes what the least block of that heap takes, so that the next begins in a window of its own. */
    size_t requested, size;
    assert_ok(tide_block_size(f->a, ptr, &requested, &size));
    assert_int_equal(requested, 512);
    assert_int_equal(size, MIB);
    void *next = alloc_on(f, 2 * MIB, 0);
    assert_ptr_equal(next, (char *)ptr + MIB);
    assert_fails(TIDE_IN_USE, try_alloc_at(f, 512, 0, ptr));
    free_block(f, ptr);
    free_block(f, next);
    close_fixture(f);
}

static void an_address_whose_old_mapping_stands_can_be_taken(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    void *ptr = alloc_on(f, 500 * MIB, 0);
    alloc_on(f, 200 * MIB, 0); /* in the way */
    free_block(f, ptr);
    void *larger = alloc_on(f, 700 * MIB, 0); /* elsewhere, on the chunks of the first */
    assert_true(stats_of(f, 0).retiring_bytes > 0);
    free_block(f, larger);
    assert_ok(try_alloc_at(f, 500 * MIB, 0, ptr)); /* nobody has these bytes */
    close_fixture(f);
}

static void alloc_at_gives_up_on_a_mapping_that_stays(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    void *ptr = alloc_on(f, 500 * MIB, 0);
    alloc_on(f, 200 * MIB, 0); /* in the way */
    free_block(f, ptr);
    free_block(f, alloc_on(f, 700 * MIB, 0)); /* elsewhere, on the chunks of the first */
    assert_ok(tide__fault_arm(f->fault, TIDE__CALL_UNMAP, 1, TIDE_DRIVER, true));
    assert_fails(TIDE_DRIVER, try_alloc_at(f, 500 * MIB, 0, ptr)); /* waiting does not help */
    tide__fault_disarm(f->fault);
    assert_ok(try_alloc_at(f, 500 * MIB, 0, ptr));
    close_fixture(f);
}

static void alloc_at_refuses_what_a_graph_replays(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    tide_stream stream, other;
    tide_pool pool;
    void *ptr;
    assert_ok(tide_stream_create(f->a, 0, &stream));
    assert_ok(tide_stream_create(f->a, 0, &other));
    assert_ok(tide_pool_create(f->a, 0, &pool));
    assert_ok(
        tide_alloc(f->a, 0, 4 * MIB, stream, pool, &ptr)); /* the pool is a graph's from its capture on */
    assert_ok(tide_free(f->a, ptr));
    assert_ok(tide_capture_begin(f->a, 0, stream, pool));
    assert_ok(tide_capture_end(f->a, 0, stream));
    assert_fails(TIDE_IN_USE, tide_alloc_at(f->a, 0, 4 * MIB, other, pool, ptr));
    assert_ok(tide_alloc_at(f->a, 0, 4 * MIB, stream, pool, ptr));
    assert_ok(tide_free(f->a, ptr));
    assert_ok(tide_pool_release(f->a, pool));
    close_fixture(f);
}

static void alloc_at_does_not_wait_for_a_capture(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.delay = SECOND});
    tide_stream stream;
    tide_pool pool;
    void *ptr = alloc_on(f, 4 * MIB, 0);
    assert_ok(tide_stream_create(f->a, 0, &stream));
    assert_ok(tide_record_stream(f->a, ptr, stream));
    assert_ok(tide_pool_create(f->a, 0, &pool));
    assert_ok(tide_capture_begin(f->a, 0, stream, pool));
    free_block(f, ptr);
    assert_fails(TIDE_CAPTURING, try_alloc_at(f, 4 * MIB, 0, ptr));
    assert_ok(tide_capture_end(f->a, 0, stream));
    assert_ok(try_alloc_at(f, 4 * MIB, 0, ptr));
    assert_ok(tide_pool_release(f->a, pool));
    close_fixture(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alloc_at_on_a_stream_new_to_the_pool),
        cmocka_unit_test(a_wait_covers_retired_streams),
        cmocka_unit_test(trim_gives_back_chunks_that_two_streams_shared),
        cmocka_unit_test(a_patient_trim_waits_for_chunks_of_small_blocks),
        cmocka_unit_test(a_pool_with_only_freed_blocks_can_be_released),
        cmocka_unit_test(a_mapping_that_cannot_be_undone_is_never_given_out),
        cmocka_unit_test(out_of_memory_comes_to_an_end),
        cmocka_unit_test(gathering_stops_at_what_is_not_idle),
        cmocka_unit_test(freeing_and_taking_the_same_block_for_ever_needs_few_events),
        cmocka_unit_test(streams_may_come_and_go_without_end),
        cmocka_unit_test(pools_may_come_and_go_without_end),
        cmocka_unit_test(addresses_do_not_grow_with_the_number_of_holes),
        cmocka_unit_test(a_trim_of_some_says_what_is_really_pinned),
        cmocka_unit_test(results_fit_the_callers_structure),
        cmocka_unit_test(a_child_process_is_told_that_it_is_one),
        cmocka_unit_test(calls_without_what_they_need_are_errors),
        cmocka_unit_test(a_refused_request_counts_as_out_of_memory),
        cmocka_unit_test(a_free_address_of_another_size_can_be_taken),
        cmocka_unit_test(the_slow_path_times_itself),
        cmocka_unit_test(an_address_whose_old_mapping_stands_can_be_taken),
        cmocka_unit_test(alloc_at_gives_up_on_a_mapping_that_stays),
        cmocka_unit_test(alloc_at_refuses_what_a_graph_replays),
        cmocka_unit_test(alloc_at_does_not_wait_for_a_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
