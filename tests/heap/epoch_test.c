/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs: done when every stream has passed, and never early, whatever fails. */
#include "heap_test.h"

#include "chunk/epoch.h"

typedef struct fixture {
    tide__device *d;
    tide__epochs *e;
    tide_stream streams[4]; /* 0 is the default */
    pthread_mutex_t *lock;  /* the caller's: held throughout, but for waits */
} fixture;

static fixture open_fixture(uint64_t delay_ns, size_t streams) {
    static tide__epochs epochs;
    static pthread_mutex_t lock; /* both where they were made: a fixture is copied */
    fixture f = {.d = open_sim(TIDE__GIB, delay_ns), .e = &epochs, .lock = &lock};
    uint16_t number;
    assert_ok(tide__epochs_open(f.e, f.d, 0));
    pthread_mutex_init(f.lock, NULL);
    pthread_mutex_lock(f.lock);
    for (size_t i = 0; i < streams; i++) {
        if (i > 0) {
            assert_ok(f.d->ops->stream_create(f.d, 0, &f.streams[i]));
        }
        assert_ok(tide__epochs_add_stream(f.e, f.streams[i], i + 1, &number));
        assert_int_equal(number, i);
    }
    return f;
}

static uint64_t live_events(tide__device *d) {
    tide__device_counters c;
    d->ops->counters(d, 0, &c);
    return c.calls[TIDE__CALL_EVENT_CREATE] - c.calls[TIDE__CALL_EVENT_DESTROY];
}

static void close_fixture(fixture *f) {
    tide__fault_disarm(f->d);
    tide__epochs_close(f->e);
    pthread_mutex_unlock(f->lock);
    pthread_mutex_destroy(f->lock);
    assert_int_equal(live_events(f->d), 0);
    f->d->ops->close(f->d);
}

static void an_epoch_is_done_when_its_streams_are(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 3);
    assert_int_equal(tide__epochs_open_number(f.e), 1);
    assert_ok(tide__epochs_cut(f.e));
    assert_int_equal(tide__epochs_open_number(f.e), 2);
    assert_ok(tide__epochs_poll(f.e));
    assert_int_equal(tide__epochs_done(f.e), 0);
    set_time(f.d, 5 * MS);
    assert_ok(tide__epochs_cut(f.e));
    set_time(f.d, 10 * MS);
    assert_ok(tide__epochs_poll(f.e));
    assert_int_equal(tide__epochs_done(f.e), 1);
    set_time(f.d, 15 * MS);
    assert_ok(tide__epochs_poll(f.e));
    assert_int_equal(tide__epochs_done(f.e), 2);
    close_fixture(&f);
}

static void an_epoch_without_streams_is_done_at_once(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 0);
    assert_ok(tide__epochs_cut(f.e));
    assert_ok(tide__epochs_poll(f.e));
    assert_int_equal(tide__epochs_done(f.e), 1);
    close_fixture(&f);
}

static void a_poll_asks_no_more_than_it_must(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 2);
    for (int i = 0; i < 100; i++) {
        assert_ok(tide__epochs_cut(f.e));
    }
    uint64_t before = tide__fault_calls(f.d, TIDE__CALL_EVENT_QUERY);
    for (int i = 0; i < 50; i++) {
        assert_ok(tide__epochs_poll(f.e));
    }
    assert_int_equal(tide__fault_calls(f.d, TIDE__CALL_EVENT_QUERY) - before, 50);
    close_fixture(&f);
}

static void events_are_used_again(void **state) {
    (void)state;
    fixture f = open_fixture(MS, 3);
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_ok(tide__epochs_cut(f.e));
        set_time(f.d, i * 2 * MS);
        assert_ok(tide__epochs_poll(f.e));
        assert_int_equal(tide__epochs_done(f.e), i);
    }
    assert_true(live_events(f.d) <= 6);
    close_fixture(&f);
}

static void the_ring_holds_any_number(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 2);
    for (uint64_t i = 1; i <= 500; i++) { /* grows while its beginning is anywhere */
        set_time(f.d, i * MS / 10);
        assert_ok(tide__epochs_cut(f.e));
        assert_ok(tide__epochs_poll(f.e));
        assert_int_equal(tide__epochs_done(f.e), i > 100 ? i - 100 : 0);
    }
    close_fixture(&f);
}

/* Recording fails for one stream: what was freed before is not idle until all streams passed a later epoch.
 */
static void a_failed_cut_is_never_taken_for_done(void **state) {
    (void)state;
    for (uint64_t k = 1; k <= 3; k++) {
        fixture f = open_fixture(10 * MS, 3);
        tide__epoch freed_in = tide__epochs_open_number(f.e);
        assert_ok(tide__fault_arm(f.d, TIDE__CALL_EVENT_RECORD, k, TIDE_DRIVER, false));
        assert_fails(TIDE_DRIVER, tide__epochs_cut(f.e));
        set_time(f.d, 100 * MS);
        assert_ok(tide__epochs_poll(f.e));
        assert_true(tide__epochs_done(f.e) < freed_in);
        assert_ok(tide__epochs_cut(f.e)); /* the next one covers it */
        assert_ok(tide__epochs_poll(f.e));
        assert_true(tide__epochs_done(f.e) < freed_in);
        set_time(f.d, 110 * MS);
        assert_ok(tide__epochs_poll(f.e));
        assert_true(tide__epochs_done(f.e) >= freed_in);
        close_fixture(&f);
    }
}

static void a_failed_event_create_is_no_end(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 3);
    assert_ok(tide__fault_arm(f.d, TIDE__CALL_EVENT_CREATE, 2, TIDE_DRIVER, false));
    assert_fails(TIDE_DRIVER, tide__epochs_cut(f.e));
    assert_ok(tide__epochs_cut(f.e));
    set_time(f.d, 10 * MS);
    assert_ok(tide__epochs_poll(f.e));
    assert_int_equal(tide__epochs_done(f.e), tide__epochs_open_number(f.e) - 1);
    close_fixture(&f);
}

static void a_failed_query_or_wait_is_no_answer(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 3);
    assert_ok(tide__epochs_cut(f.e));
    set_time(f.d, 10 * MS);
    for (uint64_t k = 1; k <= 3; k++) {
        tide__fault_disarm(f.d);
        assert_ok(tide__fault_arm(f.d, TIDE__CALL_EVENT_QUERY, 1, TIDE_DRIVER, false));
        assert_fails(TIDE_DRIVER, tide__epochs_poll(f.e));
        assert_int_equal(tide__epochs_done(f.e), 0);
    }
    tide__fault_disarm(f.d);
    assert_ok(tide__epochs_poll(f.e));
    assert_int_equal(tide__epochs_done(f.e), 1);
    assert_ok(tide__epochs_cut(f.e));
    assert_ok(tide__fault_arm(f.d, TIDE__CALL_EVENT_WAIT, 1, TIDE_DRIVER, false));
    assert_fails(TIDE_DRIVER, tide__epochs_wait(f.e, 2, UINT64_MAX, f.lock));
    assert_int_equal(tide__epochs_done(f.e), 1);
    assert_ok(tide__epochs_wait(f.e, 2, UINT64_MAX, f.lock));
    assert_int_equal(tide__epochs_done(f.e), 2);
    close_fixture(&f);
}

static void the_host_waits_for_as_long_as_told(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 2);
    assert_fails(TIDE_TIMEOUT, tide__epochs_wait(f.e, 1, 4 * MS, f.lock)); /* closes it first */
    assert_int_equal(f.d->ops->now_ns(f.d), 4 * MS);
    assert_int_equal(tide__epochs_done(f.e), 0);
    assert_ok(tide__epochs_wait(f.e, 1, 6 * MS, f.lock));
    assert_int_equal(f.d->ops->now_ns(f.d), 10 * MS);
    assert_int_equal(tide__epochs_done(f.e), 1);
    assert_int_equal(f.e->host_waits, 2);
    assert_ok(tide__epochs_wait(f.e, 1, 0, f.lock)); /* done already */
    assert_int_equal(f.e->host_waits, 2);
    close_fixture(&f);
}

static void a_stream_waits_for_all_others_once(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 3);
    assert_ok(tide__epochs_stream_wait(f.e, 0, 1));
    assert_int_equal(f.e->stream_waits, 2);
    assert_true(f.e->streams[0]->waited >= 1);
    assert_ok(tide__epochs_stream_wait(f.e, 0, 1));
    assert_int_equal(f.e->stream_waits, 2);
    assert_ok(tide__epochs_stream_wait(f.e, 1, tide__epochs_open_number(f.e)));
    assert_int_equal(f.e->stream_waits, 4);
    assert_ok(tide__fault_arm(f.d, TIDE__CALL_STREAM_WAIT, 2, TIDE_DRIVER, false));
    tide__epoch before = f.e->streams[2]->waited;
    assert_fails(TIDE_DRIVER, tide__epochs_stream_wait(f.e, 2, tide__epochs_open_number(f.e)));
    assert_int_equal(f.e->streams[2]->waited, before); /* half a wait is none */
    close_fixture(&f);
}

static void close_destroys_every_event(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 3);
    assert_ok(tide__epochs_cut(f.e));
    set_time(f.d, 10 * MS);
    assert_ok(
        tide__fault_arm(f.d, TIDE__CALL_EVENT_QUERY, 3, TIDE_NOT_READY, false)); /* two of three are known */
    assert_ok(tide__epochs_poll(f.e));
    assert_ok(tide__epochs_cut(f.e));
    close_fixture(&f); /* which looks */
}

static void a_stream_that_was_destroyed_is_named(void **state) {
    (void)state;
    fixture f = open_fixture(0, 3);
    assert_ok(f.d->ops->stream_destroy(f.d, 0, f.streams[1]));
    assert_fails(TIDE_BAD_HANDLE, tide__epochs_cut(f.e));
    assert_non_null(strstr(tide_last_error(), "tide_stream_retire"));
    f.e->streams[1]->retired = true;
    assert_ok(tide__epochs_cut(f.e));
    close_fixture(&f);
}

/* Its last event is in an older epoch than the one that is waited for. */
static void a_wait_covers_streams_that_are_captured(void **state) {
    (void)state;
    fixture f = open_fixture(10 * MS, 3);
    assert_ok(tide__epochs_capture(f.e, 1));
    tide__sim_set_capturing(tide__fault_inner(f.d), 0, f.streams[1], true);
    assert_ok(tide__epochs_cut(f.e));
    assert_ok(tide__epochs_stream_wait(f.e, 2, tide__epochs_open_number(f.e) - 1));
    assert_int_equal(f.e->stream_waits, 2); /* streams 0 and 1 */
    tide__sim_set_capturing(tide__fault_inner(f.d), 0, f.streams[1], false);
    tide__epochs_capture_end(f.e, 1);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_is_done_when_its_streams_are),
        cmocka_unit_test(an_epoch_without_streams_is_done_at_once),
        cmocka_unit_test(a_poll_asks_no_more_than_it_must),
        cmocka_unit_test(events_are_used_again),
        cmocka_unit_test(the_ring_holds_any_number),
        cmocka_unit_test(a_failed_cut_is_never_taken_for_done),
        cmocka_unit_test(a_failed_event_create_is_no_end),
        cmocka_unit_test(a_failed_query_or_wait_is_no_answer),
        cmocka_unit_test(the_host_waits_for_as_long_as_told),
        cmocka_unit_test(a_stream_waits_for_all_others_once),
        cmocka_unit_test(close_destroys_every_event),
        cmocka_unit_test(a_stream_that_was_destroyed_is_named),
        cmocka_unit_test(a_wait_covers_streams_that_are_captured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
