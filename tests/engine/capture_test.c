/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures: what a stream allocates goes to the graph's pool, which keeps its
 * chunks; nothing is recorded on the stream meanwhile; what was freed before is
 * found idle all the same, and nothing that a replay uses ever is.
 *
 * Each test runs on sim, where work is late by the delay, and on host (or the cuda
 * device, see fixture.h), where it is late while a gate holds its stream. There the
 * capture is one of the device's: it must end well.
 */
#include "fixture.h"

#define MIB TIDE__MIB
#define SECOND UINT64_C(1000000000)

static bool on_sim = false, on_host = true;

/* On the device that the test is for. */
static fixture *open_here(void **state, fixture_options options) {
    options.host = *(bool *)*state;
    return open_fixture(&options);
}

static bool is_cuda(const fixture *f) { return f->host && getenv("PAGETIDE_TEST_STANDIN") != NULL; }

static tide_pool new_pool(fixture *f) {
    tide_pool pool = 0;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    return pool;
}

/* What is queued on the stream, an event too, is not done before the gate is opened; on sim, before
 * the delay is over. */
static tide__host_gate hold(fixture *f, tide_stream stream) {
    tide__host_gate gate = 0;
    if (f->host) {
        assert_ok(tide__host_gate_create(f->inner, 0, &gate));
        assert_ok(tide__host_hold(f->inner, 0, stream, gate));
    }
    return gate;
}

static void let_go(fixture *f, tide__host_gate gate) {
    if (f->host) {
        assert_ok(tide__host_gate_open(f->inner, 0, gate));
    }
}

static void device_capture_begin(fixture *f, tide_stream stream) {
    if (is_cuda(f)) {
        assert_int_equal(standin_begin_capture(0, stream, 0), TIDE__CU_OK);
    } else {
        assert_ok(standin_begin_graph(f->inner, 0, stream));
    }
}

static void device_capture_end(fixture *f, tide_stream stream) {
    void *graph = NULL;
    if (is_cuda(f)) {
        assert_int_equal(standin_end_capture(0, stream), TIDE__CU_OK); /* else it was spoilt */
    } else {
        assert_ok(standin_end_graph(f->inner, 0, stream, &graph));
        standin_destroy_graph(graph);
    }
}

static void begin_capture(fixture *f, tide_stream stream, tide_pool pool) {
    assert_ok(tide_capture_begin(f->a, 0, stream, pool));
    device_capture_begin(f, stream);
}

static void end_capture(fixture *f, tide_stream stream) {
    device_capture_end(f, stream);
    assert_ok(tide_capture_end(f->a, 0, stream));
}

static void *alloc_routed(fixture *f, uint64_t size, tide_stream stream, tide_pool pool) {
    void *ptr = NULL;
    assert_ok(tide_alloc(f->a, 0, size, stream, TIDE_POOL_CURRENT, &ptr));
    watch_took(f->w, 0, (uintptr_t)ptr, tide__align_up(size, 512), watch_slot(f->w, 0, stream), pool);
    assert_string_equal(f->w->trouble, "");
    return ptr;
}

static void a_capture_allocates_from_its_pool(void **state) {
    fixture *f = open_here(state, (fixture_options){.delay = SECOND});
    tide_stream s = new_stream(f), other = new_stream(f);
    tide_pool pool = new_pool(f);
    void *before = alloc_on(f, 40 * MIB, s);
    tide__host_gate gate = hold(f, s);
    free_block(f, before);
    begin_capture(f, s, pool);
    void *in = alloc_routed(f, 40 * MIB, s, pool);
    assert_ptr_not_equal(in, before); /* own order does not protect what a replay writes */
    void *elsewhere = alloc_routed(f, 40 * MIB, other, TIDE_POOL_DEFAULT);
    end_capture(f, s);
    assert_ptr_equal(alloc_routed(f, 40 * MIB, s, TIDE_POOL_DEFAULT), before);
    let_go(f, gate);
    free_block(f, in);
    free_block(f, elsewhere);
    close_fixture(f);
}

static void a_graphs_pool_keeps_its_chunks_until_it_is_released(void **state) {
    fixture *f = open_here(state, (fixture_options){.capacity = 256 * MIB});
    tide_stream s = new_stream(f);
    tide_pool pool = new_pool(f);
    begin_capture(f, s, pool);
    void *first = alloc_routed(f, 100 * MIB, s, pool);
    free_block(f, first);
    assert_ptr_equal(alloc_routed(f, 100 * MIB, s, pool), first); /* in order within the graph */
    free_block(f, first);
    end_capture(f, s);
    tide_trim_result r = trim(f, UINT64_MAX, UINT64_MAX);
    assert_int_equal(r.graph_bytes, 100 * MIB);
    assert_true(used_bytes(f, 0) >= 100 * MIB);
    void *ptr = NULL; /* not even for want of memory */
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 200 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_ok(tide_pool_release(f->a, pool));
    alloc_on(f, 200 * MIB, 0);
    close_fixture(f);
}

static void a_released_graphs_memory_waits_for_its_last_replay(void **state) {
    fixture *f = open_here(state, (fixture_options){.capacity = 256 * MIB, .delay = SECOND});
    tide_stream s = new_stream(f);
    alloc_on(f, 512, 0);
    tide_pool pool = new_pool(f);
    begin_capture(f, s, pool);
    free_block(f, alloc_routed(f, 100 * MIB, s, pool));
    end_capture(f, s);
    if (!f->host) {
        tide__sim_set_trace_time(f->inner, 10 * SECOND);
    }
    trim(f, 0, 0);
    tide__host_gate replay = hold(f, 0);
    assert_ok(tide_pool_release(f->a, pool));
    tide_trim_result r = trim(f, UINT64_MAX, 0);
    assert_int_equal(r.released_bytes, 0);
    tide_pool next = new_pool(f); /* nor does the next pool get its addresses */
    assert_int_not_equal((uint32_t)next, (uint32_t)pool);
    let_go(f, replay);
    r = trim(f, UINT64_MAX, 2 * SECOND);
    assert_true(r.released_bytes >= 100 * MIB);
    tide_pool third = new_pool(f);
    assert_int_equal((uint32_t)third, (uint32_t)pool);
    close_fixture(f);
}

static void blocks_of_a_graph_are_their_own_streams_alone(void **state) {
    fixture *f = open_here(state, (fixture_options){0});
    tide_stream s = new_stream(f), t = new_stream(f);
    tide_pool pool = new_pool(f);
    begin_capture(f, s, pool);
    begin_capture(f, t, pool);
    void *ptr = alloc_routed(f, 40 * MIB, s, pool);
    free_block(f, ptr);
    trim(f, 0, 0); /* closes an epoch, which no captured stream takes part in */
    assert_ptr_not_equal(alloc_routed(f, 40 * MIB, t, pool), ptr);
    end_capture(f, t);
    end_capture(f, s);
    close_fixture(f);
}

static void others_go_on_while_a_capture_lasts(void **state) {
    fixture *f = open_here(state, (fixture_options){.capacity = 256 * MIB, .delay = SECOND});
    tide_stream s = new_stream(f), other = new_stream(f);
    tide_pool pool = new_pool(f);
    free_block(f, alloc_on(f, 512, other));
    void *ptr = alloc_on(f, 200 * MIB, s);
    if (f->host) {
        assert_ok(tide__host_delay(f->inner, 0, s, SECOND / 50));
    }
    free_block(f, ptr);
    begin_capture(f, s, pool);
    alloc_on(f, 200 * MIB, other); /* waits for what the stream had queued before its capture, and takes it */
    end_capture(f, s);
    close_fixture(f);
}

static void want_of_memory_spoils_no_capture(void **state) {
    fixture *f = open_here(state, (fixture_options){.capacity = 256 * MIB});
    tide_stream s = new_stream(f), other = new_stream(f);
    tide_pool pool = new_pool(f);
    void *ptr = NULL;
    free_block(f, alloc_on(f, 512, s));
    begin_capture(f, s, pool);
    void *in = alloc_routed(f, 20 * MIB, s, pool);
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 250 * MIB, other, TIDE_POOL_DEFAULT, &ptr));
    /* The watch asks for an event of every stream, which a captured one has not. */
    assert_ok(tide_alloc(f->a, 0, 40 * MIB, other, TIDE_POOL_DEFAULT, &ptr));
    assert_ok(tide_free(f->a, ptr));
    assert_true(trim(f, UINT64_MAX, SECOND).released_bytes >= 40 * MIB);
    end_capture(f, s);
    free_block(f, in);
    close_fixture(f);
}

static void memory_freed_during_a_capture_with_uses_on_others_comes_back_after_it(void **state) {
    fixture *f = open_here(state, (fixture_options){0});
    tide_stream s = new_stream(f), other = new_stream(f);
    tide_pool pool = new_pool(f);
    begin_capture(f, s, pool);
    void *ptr = alloc_routed(f, 40 * MIB, s, pool);
    assert_ok(tide_record_stream(f->a, ptr, other));
    watch_recorded(f->w, 0, (uintptr_t)ptr, watch_slot(f->w, 0, other));
    free_block(f, ptr);
    trim(f, 0, 0);
    assert_true(stats_of(f, 0).active_bytes >= 40 * MIB);
    void *next = alloc_routed(f, 40 * MIB, s, pool);
    assert_ptr_not_equal(next, ptr);
    end_capture(f, s);
    free_block(f, next);
    trim(f, 0, UINT64_MAX);
    assert_int_equal(stats_of(f, 0).active_bytes, 0);
    close_fixture(f);
}

static void a_miss_on_an_unannounced_capture_is_an_error(void **state) {
    fixture *f = open_here(state, (fixture_options){0});
    tide_stream s = new_stream(f);
    tide_pool pool = new_pool(f);
    void *ptr = NULL;
    free_block(f, alloc_on(f, 512, s));
    device_capture_begin(f, s);
    assert_fails(TIDE_CAPTURING, tide_alloc(f->a, 0, 40 * MIB, s, TIDE_POOL_CURRENT, &ptr));
    assert_non_null(strstr(tide_last_error(), "tide_capture_begin"));
    /* Told late is told: it works, and nothing is taken for idle until the end. */
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    void *in = alloc_routed(f, 40 * MIB, s, pool);
    end_capture(f, s);
    free_block(f, in);
    close_fixture(f);
}

static void nothing_is_idle_while_an_unannounced_capture_hides_work(void **state) {
    fixture *f = open_here(state, (fixture_options){0});
    tide_stream s = new_stream(f), other = new_stream(f);
    free_block(f, alloc_on(f, 512, s));
    free_block(f, alloc_on(f, 512, other));
    void *ptr = alloc_on(f, 10 * MIB, 0); /* too small for its free to close an epoch */
    trim(f, 0, 0);
    free_block(f, ptr); /* s may have used it, and is captured before an event said when that is over */
    device_capture_begin(f, s);
    trim(f, 0, 0);
    void *taken = alloc_on(f, 10 * MIB, other);
    assert_ptr_not_equal(taken, ptr);
    assert_true(trim(f, UINT64_MAX, SECOND).released_bytes < 10 * MIB);
    device_capture_end(f, s);
    assert_true(trim(f, UINT64_MAX, 0).released_bytes >= 10 * MIB);
    close_fixture(f);
}

static void captures_are_checked(void **state) {
    fixture *f = open_here(state, (fixture_options){0});
    tide_stream s = new_stream(f);
    tide_pool pool = new_pool(f);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_capture_begin(f->a, 0, s, TIDE_POOL_DEFAULT));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_capture_begin(f->a, 0, s, TIDE_POOL_CURRENT));
    assert_fails(TIDE_BAD_HANDLE, tide_capture_begin(f->a, 0, s, pool + 1));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_capture_end(f->a, 0, s));
    assert_ok(tide_capture_begin(f->a, 0, s, pool));
    assert_fails(TIDE_IN_USE, tide_capture_begin(f->a, 0, s, pool));
    assert_fails(TIDE_IN_USE, tide_pool_release(f->a, pool));
    assert_fails(TIDE_IN_USE, tide_stream_retire(f->a, 0, s));
    assert_ok(tide_capture_end(f->a, 0, s));
    assert_ok(tide_pool_release(f->a, pool));
    assert_ok(tide_stream_retire(f->a, 0, s));
    close_fixture(f);
}

#define TEST(function) \
    {"sim: " #function, function, NULL, NULL, &on_sim}, { "host: " #function, function, NULL, NULL, &on_host }

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_capture_allocates_from_its_pool),
        TEST(a_graphs_pool_keeps_its_chunks_until_it_is_released),
        TEST(a_released_graphs_memory_waits_for_its_last_replay),
        TEST(blocks_of_a_graph_are_their_own_streams_alone),
        TEST(others_go_on_while_a_capture_lasts),
        TEST(want_of_memory_spoils_no_capture),
        TEST(memory_freed_during_a_capture_with_uses_on_others_comes_back_after_it),
        TEST(a_miss_on_an_unannounced_capture_is_an_error),
        TEST(nothing_is_idle_while_an_unannounced_capture_hides_work),
        TEST(captures_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
