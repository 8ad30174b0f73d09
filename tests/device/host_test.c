/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device beyond the contract: real bytes behind real addresses, options,
 * graphs, peers. Kernels that are late, wrong programs and right ones, and what is
 * ordered before what have files of their own, host_*_test.c.
 */
#include <sys/resource.h>

#include "host_fixture.h"

/* ---- Bytes ---- */

static void aliases_see_the_same_bytes(void **state) {
    fixture *f = *state;
    tide__chunk_handle chunk;
    uint64_t a = new_block(f, 2 * GRANULE, &chunk), b = new_alias(f, 2 * GRANULE, chunk);
    *(volatile uint64_t *)(a + 4096) = 42;
    assert_int_equal(*(volatile uint64_t *)(b + 4096), 42);
    assert_ok(f->d->ops->unmap(f->d, 0, a, 2 * GRANULE));
    assert_int_equal(*(volatile uint64_t *)(b + 4096), 42);
    map_at(f->d, a, 2 * GRANULE, chunk);
    assert_int_equal(*(volatile uint64_t *)(a + 4096), 42);
    assert_nothing_seen(f);
}

static void operations_do_what_they_say(void **state) {
    fixture *f = *state;
    tide__host_result r;
    uint64_t a = new_block(f, GRANULE, NULL), b = new_block(f, GRANULE, NULL);
    assert_ok(tide__host_fill(f->d, 0, 0, a, 7, GRANULE));
    assert_ok(tide__host_check(f->d, 0, 0, a, 7, GRANULE));
    assert_ok(tide__host_fill_pattern(f->d, 0, 0, a + 512, 99, 1021));
    assert_ok(tide__host_copy(f->d, 0, 0, b, a, GRANULE));
    assert_ok(tide__host_check(f->d, 0, 0, b, 7, 512));
    assert_ok(tide__host_check_pattern(f->d, 0, 0, b + 512, 99, 1021));
    assert_ok(tide__host_check(f->d, 0, 0, b + 512 + 1021, 7, GRANULE - 512 - 1021));
    assert_ok(tide__host_stream_sync(f->d, 0, 0));
    tide__host_get_result(f->d, 0, &r);
    assert_int_equal(r.wrong_bytes, 0);
    assert_int_equal(r.operations, 7);
    assert_int_equal(r.checks, 4);
    /* And checks find what is wrong. */
    *(volatile uint8_t *)(b + 100) = 8;
    assert_ok(tide__host_check(f->d, 0, 0, b, 7, 512));
    assert_ok(tide__host_check_pattern(f->d, 0, 0, b + 520, 99, 64)); /* the pattern, moved by 8 */
    assert_ok(tide__host_device_sync(f->d, 0));
    tide__host_get_result(f->d, 0, &r);
    assert_true(r.wrong_bytes > 32);
    assert_int_equal(r.first_wrong_va, b + 100);
    assert_int_equal(r.first_expected, 7);
    assert_int_equal(r.first_found, 8);
    assert_nothing_seen(f);
}

static void untouched_chunks_cost_nothing(void **state) {
    tide__device *d = NULL;
    assert_ok(tide__host_open(NULL, &d)); /* an H200's capacity */
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    enum { COUNT = 60 * 1024 / 20 };
    static tide__chunk_handle chunks[COUNT];
    uint64_t size = 10 * GRANULE, va = reserve(d, COUNT * size);
    for (size_t i = 0; i < COUNT; i++) {
        chunks[i] = chunk_of(d, size);
        map_at(d, va + i * size, size, chunks[i]);
        *(volatile uint8_t *)(va + i * size) = 1;
    }
    getrusage(RUSAGE_SELF, &after);
    assert_true(tide__host_resident_bytes(d, 0) >= COUNT * 4096);
    assert_true(tide__host_resident_bytes(d, 0) < 64 * TIDE__MIB);
    assert_true((uint64_t)(after.ru_maxrss - before.ru_maxrss) * 1024 < 256 * TIDE__MIB);
    assert_ok(d->ops->unmap(d, 0, va, COUNT * size));
    for (size_t i = 0; i < COUNT; i++) {
        assert_ok(d->ops->chunk_release(d, 0, chunks[i]));
    }
    assert_int_equal(tide__host_resident_bytes(d, 0), 0);
    d->ops->close(d);
}

static void too_many_mappings_are_a_clear_error(void **state) {
    tide__device *d = NULL;
    assert_ok(tide__host_open(&(tide__host_options){.capacity_bytes = TIDE__GIB, .granularity = 4096}, &d));
    uint64_t va = reserve(d, TIDE__GIB), n = 0, max = TIDE__GIB / 4096 / 2;
    tide__chunk_handle chunk = chunk_of(d, 4096);
    tide_status status = TIDE_OK;
    /* One page at every other address: none can be merged with its neighbour. */
    while (n < max && (status = d->ops->map(d, 0, va + n * 8192, 4096, chunk)) == TIDE_OK) {
        n++;
    }
    if (status == TIDE_OK) {
        print_message("    vm.max_map_count is beyond %" PRIu64 " here\n", max);
    } else {
        assert_int_equal(status, TIDE_NO_HOST_MEMORY);
        assert_non_null(strstr(tide_last_error(), "vm.max_map_count"));
        assert_true(n > 20000); /* by far the most of 65,530, two for each here */
        assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va + n * 8192, 4096)); /* it is not there */
        assert_ok(d->ops->unmap(d, 0, va + (n - 1) * 8192, 4096));
        assert_ok(d->ops->map(d, 0, va + (n - 1) * 8192, 4096, chunk));
        /* Chunks side by side in the file and in addresses count as one. */
        for (uint64_t i = 0; i < n; i++) {
            assert_ok(d->ops->unmap(d, 0, va + i * 8192, 4096));
        }
        for (uint64_t i = 0; i < 70000; i++) {
            map_at(d, va + i * 4096, 4096, chunk_of(d, 4096));
        }
    }
    d->ops->close(d);
}

/* ---- Options ---- */

static void bad_options_are_refused(void **state) {
    tide__device *d = NULL;
    const tide__host_options bad[] = {{.device_count = -1},
                                      {.device_count = 65},
                                      {.granularity = 3 * 4096},
                                      {.granularity = 64},
                                      {.capacity_bytes = GRANULE - 1},
                                      {.capacity_bytes = UINT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(TIDE_INVALID_ARGUMENT, tide__host_open(&bad[i], &d));
    }
    assert_null(d);
}

static void unknown_gpus_are_refused(void **state) {
    fixture *f = *state;
    uint64_t out = 0;
    tide__device_counters counters;
    assert_fails(TIDE_INVALID_ARGUMENT, f->d->ops->chunk_create(f->d, 1, GRANULE, &out));
    assert_fails(TIDE_INVALID_ARGUMENT, f->d->ops->stream_id(f->d, -1, 0, &out));
    f->d->ops->counters(f->d, 7, &counters);
    assert_int_equal(counters.calls[TIDE__CALL_CHUNK_CREATE], 0);
    assert_int_equal(out, 0);
}

/* A graph's operations run at each launch, on what stands behind the addresses then. */
static void a_graph_replays_what_was_captured(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__host_graph *graph = NULL;
    tide__host_result result;
    tide_stream stream;
    uint64_t va;
    tide__chunk_handle chunk;
    assert_ok(tide__host_open(NULL, &d));
    assert_ok(d->ops->stream_create(d, 0, &stream));
    assert_ok(d->ops->reserve(d, 0, GRANULE, 0, 0, &va));
    assert_ok(tide__host_capture_begin(d, 0, stream));
    assert_int_equal(tide__host_capture_begin(d, 0, stream), TIDE_IN_USE);
    assert_ok(tide__host_fill(d, 0, stream, va, 7, GRANULE)); /* nothing is mapped there yet */
    assert_ok(tide__host_check(d, 0, stream, va, 7, GRANULE));
    assert_ok(tide__host_capture_end(d, 0, stream, &graph));
    assert_int_equal(tide__host_capture_end(d, 0, stream, &graph), TIDE_BAD_HANDLE);
    tide__host_get_result(d, 0, &result);
    assert_int_equal(result.operations, 0);
    assert_ok(d->ops->chunk_create(d, 0, GRANULE, &chunk));
    assert_ok(d->ops->map(d, 0, va, GRANULE, chunk));
    assert_ok(d->ops->set_access(d, 0, va, GRANULE));
    assert_ok(tide__host_graph_launch(d, 0, stream, graph));
    assert_ok(tide__host_graph_launch(d, 0, stream, graph));
    tide__host_graph_destroy(graph);
    assert_ok(d->ops->device_wait(d, 0, UINT64_MAX));
    tide__host_get_result(d, 0, &result);
    assert_int_equal(result.checks, 2);
    assert_int_equal(result.wrong_bytes, 0);
    d->ops->close(d);
}

static void a_peer_reaches_what_was_set_after_it_was_enabled(void **state) {
    (void)state;
    tide__device *d = NULL;
    uint64_t va;
    tide__chunk_handle chunk;
    assert_ok(tide__host_open(&(tide__host_options){.device_count = 2}, &d));
    assert_ok(d->ops->reserve(d, 0, GRANULE, 0, 0, &va));
    assert_ok(d->ops->chunk_create(d, 0, GRANULE, &chunk));
    assert_ok(d->ops->map(d, 0, va, GRANULE, chunk));
    assert_ok(d->ops->set_access(d, 0, va, GRANULE));
    assert_ok(d->ops->peer_enable(d, 0, 1));
    assert_true(tide__host_peer_reaches(d, 0, 0, va, GRANULE));
    assert_false(tide__host_peer_reaches(d, 0, 1, va, GRANULE));
    assert_ok(d->ops->set_access(d, 0, va, GRANULE));
    assert_true(tide__host_peer_reaches(d, 0, 1, va, GRANULE));
    d->ops->close(d);
}

static void a_wait_for_the_device_is_bounded(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide_stream stream;
    tide__host_gate gate;
    assert_ok(tide__host_open(NULL, &d));
    assert_ok(d->ops->stream_create(d, 0, &stream));
    assert_ok(tide__host_gate_create(d, 0, &gate));
    assert_ok(tide__host_hold(d, 0, stream, gate));
    assert_int_equal(d->ops->device_wait(d, 0, 1000000), TIDE_TIMEOUT);
    assert_ok(tide__host_gate_open(d, 0, gate));
    assert_ok(d->ops->device_wait(d, 0, UINT64_MAX));
    d->ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(untouched_chunks_cost_nothing),
        cmocka_unit_test(too_many_mappings_are_a_clear_error),
        TEST(unknown_gpus_are_refused),
        TEST(aliases_see_the_same_bytes),
        TEST(operations_do_what_they_say),
        cmocka_unit_test(a_graph_replays_what_was_captured),
        cmocka_unit_test(a_peer_reaches_what_was_set_after_it_was_enabled),
        cmocka_unit_test(a_wait_for_the_device_is_bounded),
    };
    return cmocka_run_group_tests_name("host device", tests, NULL, NULL);
}
