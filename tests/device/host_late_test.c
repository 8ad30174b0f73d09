/* SPDX-License-Identifier: Apache-2.0 */
/* The host device's kernels are late: gates, delays, lateness, and streams that end. */
#include <unistd.h>

#include "host_fixture.h"

static void a_gate_holds_a_stream(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f), other = new_stream(f);
    tide__host_gate gate;
    tide__event event = new_event(f), on_other = new_event(f);
    _Atomic int ran = 0, other_ran = 0, other_runs = 0;
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_callback(f->d, 0, other, set_flag, &other_runs, NULL, 0, NULL, 0));
    while (!atomic_load(&other_runs)) {
        usleep(100); /* its thread has started, so its wait will be counted */
    }
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_callback(f->d, 0, s, set_flag, &ran, NULL, 0, NULL, 0));
    assert_ok(f->d->ops->event_record(f->d, 0, event, s));
    assert_ok(f->d->ops->stream_wait_event(f->d, 0, other, event));
    assert_ok(tide__host_callback(f->d, 0, other, set_flag, &other_ran, NULL, 0, NULL, 0));
    assert_ok(f->d->ops->event_record(f->d, 0, on_other, other));
    tide__fail(TIDE_IO, "an earlier failure");
    assert_fails(TIDE_NOT_READY, f->d->ops->event_query(f->d, 0, event));
    assert_string_equal(tide_last_error(), "an earlier failure"); /* not yet is no failure */
    assert_fails(TIDE_TIMEOUT, f->d->ops->event_wait(f->d, 0, event, 0));
    assert_fails(TIDE_TIMEOUT, f->d->ops->event_wait(f->d, 0, on_other, 20 * MS));
    assert_int_equal(ran + other_ran, 0);
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(f->d->ops->event_wait(f->d, 0, on_other, UINT64_MAX));
    assert_int_equal(ran + other_ran, 2);
    assert_ok(f->d->ops->event_query(f->d, 0, event));
    tide__device_counters c;
    f->d->ops->counters(f->d, 0, &c);
    assert_true(c.host_wait_ns >= 20 * MS);
    assert_true(c.stream_wait_ns > 0);
    assert_fails(TIDE_BAD_HANDLE, tide__host_gate_open(f->d, 0, gate + 1));
    assert_fails(TIDE_BAD_HANDLE, tide__host_hold(f->d, 0, s, event));
}

static void delays_and_lateness_make_events_late(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__event event = new_event(f);
    uint64_t start = f->d->ops->now_ns(f->d);
    assert_ok(tide__host_delay(f->d, 0, s, 300 * MS));
    assert_ok(f->d->ops->event_record(f->d, 0, event, s));
    assert_fails(TIDE_NOT_READY, f->d->ops->event_query(f->d, 0, event));
    assert_ok(f->d->ops->stream_destroy(f->d, 0, s)); /* drains */
    assert_ok(f->d->ops->event_query(f->d, 0, event));
    assert_true(f->d->ops->now_ns(f->d) - start >= 300 * MS);
    tide__host_set_lateness(f->d, 1, 1000 * MS);
    assert_ok(f->d->ops->event_record(f->d, 0, event, 0)); /* an idle stream, and late all the same */
    assert_fails(TIDE_NOT_READY, f->d->ops->event_query(f->d, 0, event));
    tide__host_set_lateness(f->d, 1, 0);
}

static void destroyed_events_still_hold_waits(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    tide__host_gate gate;
    _Atomic int ran = 0;
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, a, gate));
    order(f, a, b); /* destroys its event at once */
    assert_ok(tide__host_callback(f->d, 0, b, set_flag, &ran, NULL, 0, NULL, 0));
    usleep(10000);
    assert_int_equal(ran, 0);
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_stream_sync(f->d, 0, b));
    assert_int_equal(ran, 1);
}

static void closing_opens_gates_and_ends_delays(void **state) {
    tide__device *d = NULL;
    tide__host_gate gate;
    tide_stream s;
    _Atomic int ran = 0;
    assert_ok(tide__host_open(&(tide__host_options){.capacity_bytes = CAPACITY}, &d));
    assert_ok(d->ops->stream_create(d, 0, &s));
    assert_ok(tide__host_gate_create(d, 0, &gate));
    assert_ok(tide__host_hold(d, 0, s, gate));
    assert_ok(tide__host_delay(d, 0, s, 3600 * 1000 * MS));
    assert_ok(tide__host_callback(d, 0, s, set_flag, &ran, NULL, 0, NULL, 0));
    d->ops->close(d);
    assert_int_equal(ran, 1);
}

static void stream_handles_can_be_used_again(void **state) {
    fixture *f = *state;
    uint64_t first_id, second_id;
    tide_stream first = new_stream(f);
    assert_ok(f->d->ops->stream_id(f->d, 0, first, &first_id));
    assert_ok(f->d->ops->stream_destroy(f->d, 0, first));
    assert_fails(TIDE_BAD_HANDLE, f->d->ops->stream_id(f->d, 0, first, &first_id));
    tide__host_reuse_stream_handles(f->d, true);
    first = new_stream(f);
    assert_ok(f->d->ops->stream_id(f->d, 0, first, &first_id));
    assert_ok(f->d->ops->stream_destroy(f->d, 0, first));
    tide_stream second = new_stream(f);
    assert_int_equal(first, second);
    assert_ok(f->d->ops->stream_id(f->d, 0, second, &second_id));
    assert_int_not_equal(first_id, second_id);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closing_opens_gates_and_ends_delays),
        TEST(a_gate_holds_a_stream),
        TEST(delays_and_lateness_make_events_late),
        TEST(destroyed_events_still_hold_waits),
        TEST(stream_handles_can_be_used_again),
    };
    return cmocka_run_group_tests_name("host device: late kernels", tests, NULL, NULL);
}
