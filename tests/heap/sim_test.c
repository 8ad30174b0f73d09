/* SPDX-License-Identifier: Apache-2.0 */
/* What sim charges for each call, and how its two clocks go: the numbers that replay reports rest on these.
 */
#include "heap_test.h"

#define US UINT64_C(1000)

static uint64_t driver_ns(tide__device *d) {
    tide__device_counters c;
    d->ops->counters(d, 0, &c);
    return c.driver_ns;
}

static void each_call_costs_what_it_does_on_a_card(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__chunk_handle chunk, again;
    uint64_t va, raw, at;
    assert_ok(tide__sim_open(&(tide__sim_options){.capacity_bytes = 64 * TIDE__MIB}, &d));
    assert_ok(d->ops->reserve(d, 0, TIDE__GIB, 0, 0, &va));
    assert_int_equal(driver_ns(d), 0);
    assert_ok(d->ops->chunk_create(d, 0, 64 * TIDE__MIB, &chunk)); /* clean */
    assert_int_equal(driver_ns(d), 10 * US);
    at = driver_ns(d);
    assert_ok(d->ops->map(d, 0, va, 64 * TIDE__MIB, chunk));
    assert_int_equal(driver_ns(d) - at, 700);
    at = driver_ns(d);
    assert_ok(d->ops->set_access(d, 0, va, 64 * TIDE__MIB));
    assert_int_equal(driver_ns(d) - at, 25 * US);
    at = driver_ns(d);
    assert_ok(d->ops->unmap(d, 0, va, 64 * TIDE__MIB));
    assert_int_equal(driver_ns(d) - at, 17 * US);
    at = driver_ns(d);
    assert_ok(d->ops->chunk_release(d, 0, chunk));
    assert_int_equal(driver_ns(d) - at, 10 * US + 64 * 300);
    at = driver_ns(d);
    assert_ok(d->ops->chunk_create(d, 0, 32 * TIDE__MIB, &again)); /* dirty: cleared first */
    assert_int_equal(driver_ns(d) - at, 10 * US + 32 * 1900);
    at = driver_ns(d);
    assert_ok(d->ops->raw_alloc(d, 0, TIDE__MIB, &raw));
    assert_int_equal(driver_ns(d) - at, 42 * US);
    at = driver_ns(d);
    assert_ok(d->ops->raw_free(d, 0, raw));
    assert_int_equal(driver_ns(d) - at, 49 * US);
    d->ops->close(d);
}

static void unmapping_costs_by_the_chunk(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__chunk_handle chunk;
    uint64_t va, at;
    assert_ok(tide__sim_open(&(tide__sim_options){.capacity_bytes = 64 * TIDE__MIB}, &d));
    assert_ok(d->ops->reserve(d, 0, TIDE__GIB, 0, 0, &va));
    for (uint64_t i = 0; i < 5; i++) {
        assert_ok(d->ops->chunk_create(d, 0, GRANULE, &chunk));
        assert_ok(d->ops->map(d, 0, va + i * GRANULE, GRANULE, chunk));
        assert_ok(d->ops->chunk_release(d, 0, chunk));
    }
    at = driver_ns(d);
    assert_ok(d->ops->set_access(d, 0, va, 5 * GRANULE));
    assert_int_equal(driver_ns(d) - at, 5 * 25 * US);
    at = driver_ns(d);
    assert_ok(d->ops->unmap(d, 0, va, 5 * GRANULE));
    assert_int_equal(driver_ns(d) - at, 5 * 17 * US);
    d->ops->close(d);
}

static void a_create_pays_only_for_its_dirty_bytes(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__chunk_handle chunk;
    assert_ok(tide__sim_open(&(tide__sim_options){.capacity_bytes = 16 * TIDE__MIB}, &d));
    assert_ok(d->ops->chunk_create(d, 0, 10 * TIDE__MIB, &chunk));
    assert_ok(d->ops->chunk_release(d, 0, chunk)); /* 6 MiB were never used */
    uint64_t at = driver_ns(d);
    assert_ok(d->ops->chunk_create(d, 0, 16 * TIDE__MIB, &chunk));
    assert_int_equal(driver_ns(d) - at, 10 * US + 10 * 1900);
    d->ops->close(d);
}

static void an_event_is_done_after_the_delay(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__event event;
    assert_ok(tide__sim_open(&(tide__sim_options){.event_delay_ns = 100 * MS}, &d));
    assert_ok(d->ops->event_create(d, 0, &event));
    assert_ok(d->ops->event_query(d, 0, event)); /* never recorded */
    tide__sim_set_trace_time(d, 5 * MS);
    assert_ok(d->ops->event_record(d, 0, event, 0));
    tide__sim_set_trace_time(d, 105 * MS - 1);
    assert_int_equal(d->ops->event_query(d, 0, event), TIDE_NOT_READY);
    tide__sim_set_trace_time(d, 105 * MS);
    assert_ok(d->ops->event_query(d, 0, event));
    d->ops->close(d);
}

static void waits_of_the_host_move_the_clock(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__event event;
    tide__device_counters c;
    assert_ok(tide__sim_open(&(tide__sim_options){.event_delay_ns = 100 * MS}, &d));
    assert_ok(d->ops->event_create(d, 0, &event));
    assert_ok(d->ops->event_record(d, 0, event, 0));
    tide__sim_set_trace_time(d, 10 * MS);
    assert_fails(TIDE_TIMEOUT, d->ops->event_wait(d, 0, event, 30 * MS));
    assert_int_equal(d->ops->now_ns(d), 40 * MS);
    assert_ok(d->ops->event_wait(d, 0, event, UINT64_MAX));
    assert_int_equal(d->ops->now_ns(d), 100 * MS);
    tide__sim_set_trace_time(d, 20 * MS); /* the trace goes on later by what was waited */
    assert_int_equal(d->ops->now_ns(d), 110 * MS);
    tide__sim_set_trace_time(d, 5 * MS); /* and never goes back */
    assert_int_equal(d->ops->now_ns(d), 110 * MS);
    d->ops->counters(d, 0, &c);
    assert_int_equal(c.host_wait_ns, 90 * MS);
    assert_int_equal(c.driver_ns, 0);
    d->ops->close(d);
}

static void driver_time_moves_no_clock(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__chunk_handle chunk;
    assert_ok(tide__sim_open(NULL, &d));
    assert_ok(d->ops->chunk_create(d, 0, TIDE__GIB, &chunk));
    assert_true(driver_ns(d) > 0);
    assert_int_equal(d->ops->now_ns(d), 0);
    uint64_t free_bytes, total_bytes;
    assert_ok(d->ops->mem_info(d, 0, &free_bytes, &total_bytes));
    assert_int_equal(total_bytes, UINT64_C(150109880320)); /* an H200's, where none is given */
    d->ops->close(d);
}

static void a_stream_that_waits_is_held_up(void **state) {
    (void)state;
    tide__device *d = NULL;
    tide__event early, late, own;
    tide_stream other;
    tide__device_counters c;
    assert_ok(tide__sim_open(&(tide__sim_options){.event_delay_ns = 10 * MS}, &d));
    assert_ok(d->ops->stream_create(d, 0, &other));
    assert_ok(d->ops->event_create(d, 0, &early));
    assert_ok(d->ops->event_create(d, 0, &late));
    assert_ok(d->ops->event_create(d, 0, &own));
    assert_ok(d->ops->event_record(d, 0, early, 0));
    tide__sim_set_trace_time(d, 3 * MS);
    assert_ok(d->ops->stream_wait_event(d, 0, other, early)); /* passed long before the stream comes here */
    d->ops->counters(d, 0, &c);
    assert_int_equal(c.stream_wait_ns, 0);
    assert_ok(d->ops->event_wait(d, 0, early, UINT64_MAX)); /* the host is at 10 ms */
    assert_ok(d->ops->event_record(d, 0, late, 0));         /* done at 20 ms */
    assert_ok(d->ops->stream_wait_event(d, 0, other, late));
    assert_ok(d->ops->event_record(d, 0, own, other));
    d->ops->counters(d, 0, &c);
    assert_int_equal(c.stream_wait_ns, 0); /* both at 20 ms */
    tide__sim_set_trace_time(d, 12 * MS);
    assert_int_equal(d->ops->event_query(d, 0, own), TIDE_NOT_READY);
    tide__sim_set_trace_time(d, 13 * MS);
    assert_ok(d->ops->event_query(d, 0, own));
    d->ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_costs_what_it_does_on_a_card),
        cmocka_unit_test(unmapping_costs_by_the_chunk),
        cmocka_unit_test(a_create_pays_only_for_its_dirty_bytes),
        cmocka_unit_test(an_event_is_done_after_the_delay),
        cmocka_unit_test(waits_of_the_host_move_the_clock),
        cmocka_unit_test(driver_time_moves_no_clock),
        cmocka_unit_test(a_stream_that_waits_is_held_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
