/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault wrapper: which call fails, with what, how often; that the wrapped
 * device never hears of it; and rules as text. That it is transparent with
 * nothing armed, the contract's tests show.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "device_test.h"

static int set_up(void **state) {
    tide__device *inner = NULL, *d = NULL;
    assert_ok(tide__host_open(&(tide__host_options){.capacity_bytes = 64 * GRANULE}, &inner));
    assert_ok(tide__fault_open(inner, &d));
    assert_ptr_equal(tide__fault_inner(d), inner);
    *state = d;
    return 0;
}

static int tear_down(void **state) {
    tide__device *d = *state;
    d->ops->close(d);
    return 0;
}

static tide_status create(tide__device *d, tide__chunk_handle *out) {
    return d->ops->chunk_create(d, 0, GRANULE, out);
}

static void the_kth_call_of_a_kind_fails_once(void **state) {
    tide__device *d = *state;
    tide__chunk_handle chunks[5], untouched = 77;
    assert_ok(create(d, &chunks[0])); /* before arming: does not count */
    assert_ok(tide__fault_arm(d, TIDE__CALL_CHUNK_CREATE, 3, TIDE_NO_DEVICE_MEMORY, false));
    assert_ok(create(d, &chunks[1]));
    free_bytes_of(d); /* another kind: does not count either */
    assert_ok(create(d, &chunks[2]));
    assert_fails(TIDE_NO_DEVICE_MEMORY, create(d, &untouched));
    assert_int_equal(untouched, 77);
    assert_non_null(strstr(tide_last_error(), "chunk_create"));
    assert_int_equal(free_bytes_of(d), 61 * GRANULE);
    assert_ok(create(d, &chunks[3]));
    assert_int_equal(tide__fault_injected(d), 1);
    assert_int_equal(tide__fault_calls(d, TIDE__CALL_CHUNK_CREATE), 5);
    tide__device_counters counters;
    d->ops->counters(d, 0, &counters);
    assert_int_equal(counters.calls[TIDE__CALL_CHUNK_CREATE], 4); /* the failed one did not get there */
    for (size_t i = 0; i < 4; i++) {
        assert_ok(d->ops->chunk_release(d, 0, chunks[i]));
    }
}

static void a_sticky_rule_fails_from_then_on(void **state) {
    tide__device *d = *state;
    tide__chunk_handle chunk;
    assert_ok(tide__fault_arm(d, TIDE__FAULT_ANY, 2, TIDE_DRIVER, true));
    assert_ok(create(d, &chunk));
    for (int i = 0; i < 3; i++) {
        assert_fails(TIDE_DRIVER, d->ops->chunk_release(d, 0, chunk)); /* frees fail too */
    }
    uint64_t a, b;
    assert_fails(TIDE_DRIVER, d->ops->mem_info(d, 0, &a, &b));
    assert_int_equal(tide__fault_injected(d), 4);
    tide__fault_disarm(d);
    assert_ok(d->ops->chunk_release(d, 0, chunk)); /* it was still there */
    assert_int_equal(tide__fault_calls(d, TIDE__FAULT_ANY), 6);
}

static void several_rules_count_apart(void **state) {
    tide__device *d = *state;
    tide__chunk_handle chunk;
    assert_ok(
        tide__fault_arm_text(d, "chunk_create:2:NO_DEVICE_MEMORY,any:3:TIDE_DRIVER,chunk_create:2:TIMEOUT"));
    assert_ok(create(d, &chunk));
    assert_fails(TIDE_NO_DEVICE_MEMORY, create(d, &chunk)); /* the first armed decides; the last is spent */
    assert_fails(TIDE_DRIVER, d->ops->chunk_release(d, 0, chunk));
    assert_ok(d->ops->chunk_release(d, 0, chunk));
    assert_ok(create(d, &chunk));
    assert_ok(d->ops->chunk_release(d, 0, chunk));
    assert_int_equal(tide__fault_injected(d), 2);
}

/* Each function of the table asks the rules, under its own name. */
static void every_call_can_fail(void **state) {
    tide__device *d = *state;
    const tide__device_ops *o = d->ops;
    uint64_t out = 77, total = 77;
    bool yes = false;
    for (int call = 0; call < TIDE__CALL_COUNT; call++) {
        char text[64];
        snprintf(text, sizeof text, "%s:1:INTERNAL:sticky", tide__call_name((tide__call)call));
        assert_ok(tide__fault_arm_text(d, text));
        tide_status results[TIDE__CALL_COUNT] = {
            [TIDE__CALL_MEM_INFO] = o->mem_info(d, 9, &out, &total),
            [TIDE__CALL_RESERVE] = o->reserve(d, 9, 0, 0, 0, &out),
            [TIDE__CALL_UNRESERVE] = o->unreserve(d, 9, 0, 0),
            [TIDE__CALL_CHUNK_CREATE] = o->chunk_create(d, 9, 0, &out),
            [TIDE__CALL_CHUNK_RELEASE] = o->chunk_release(d, 9, 0),
            [TIDE__CALL_MAP] = o->map(d, 9, 0, 0, 0),
            [TIDE__CALL_SET_ACCESS] = o->set_access(d, 9, 0, 0),
            [TIDE__CALL_UNMAP] = o->unmap(d, 9, 0, 0),
            [TIDE__CALL_RAW_ALLOC] = o->raw_alloc(d, 9, 0, &out),
            [TIDE__CALL_RAW_FREE] = o->raw_free(d, 9, 0),
            [TIDE__CALL_STREAM_ID] = o->stream_id(d, 9, 0, &out),
            [TIDE__CALL_STREAM_CREATE] = o->stream_create(d, 9, &out),
            [TIDE__CALL_STREAM_DESTROY] = o->stream_destroy(d, 9, 0),
            [TIDE__CALL_EVENT_CREATE] = o->event_create(d, 9, &out),
            [TIDE__CALL_EVENT_DESTROY] = o->event_destroy(d, 9, 0),
            [TIDE__CALL_EVENT_RECORD] = o->event_record(d, 9, 0, 0),
            [TIDE__CALL_EVENT_QUERY] = o->event_query(d, 9, 0),
            [TIDE__CALL_EVENT_WAIT] = o->event_wait(d, 9, 0, 0),
            [TIDE__CALL_STREAM_WAIT] = o->stream_wait_event(d, 9, 0, 0),
            [TIDE__CALL_STREAM_CAPTURING] = o->stream_capturing(d, 9, 0, &yes),
            [TIDE__CALL_PEER_ENABLE] = o->peer_enable(d, 9, 0),
            [TIDE__CALL_DEVICE_WAIT] = o->device_wait(d, 9, 0),
        };
        for (int i = 0; i < TIDE__CALL_COUNT; i++) { /* GPU 9 is not there: that is how the others fail */
            assert_int_equal(results[i], i == call ? TIDE_INTERNAL : TIDE_INVALID_ARGUMENT);
        }
        tide__fault_disarm(d);
    }
    assert_int_equal(tide__fault_injected(d), TIDE__CALL_COUNT);
    assert_int_equal(out, 77);
    assert_int_equal(total, 77);
}

/* Lost and gone stay, whatever the rules: nothing reaches the driver any more. */
static void a_lost_device_stays_lost(void **state) {
    tide__device *d = *state;
    static const struct {
        tide_status status;
        tide__health health;
    } ends[] = {{TIDE_DEVICE_LOST, TIDE__HEALTH_LOST}, {TIDE_DEVICE_GONE, TIDE__HEALTH_GONE}};
    for (size_t i = 0; i < 2; i++) {
        tide__device *f = NULL;
        tide__chunk_handle chunk = 77;
        uint64_t free_bytes, total_bytes;
        tide__device_counters before, after;
        assert_ok(tide__host_open(NULL, &d));
        assert_ok(tide__fault_open(d, &f));
        assert_int_equal(f->ops->health(f), TIDE__HEALTH_OK);
        assert_ok(tide__fault_arm(f, TIDE__CALL_MAP, 1, ends[i].status, false));
        assert_fails(ends[i].status, f->ops->map(f, 0, 0, GRANULE, 1));
        assert_int_equal(f->ops->health(f), ends[i].health);
        tide__fault_disarm(f);
        d->ops->counters(d, 0, &before);
        assert_fails(ends[i].status, f->ops->chunk_create(f, 0, GRANULE, &chunk));
        assert_fails(ends[i].status, f->ops->mem_info(f, 0, &free_bytes, &total_bytes));
        d->ops->counters(d, 0, &after);
        assert_memory_equal(&before, &after, sizeof before);
        f->ops->close(f);
    }
}

static void bad_rules_are_refused(void **state) {
    tide__device *d = *state;
    const char *const bad[] = {"",
                               "map",
                               "map:3",
                               "map:0:DRIVER",
                               "map:-1:DRIVER",
                               "map:99999999999999999999:DRIVER",
                               "map::DRIVER",
                               "mop:1:DRIVER",
                               "map:1:OK",
                               "map:1:driver",
                               "map:1:DRIVER:stick",
                               "map:1:DRIVER:sticky:sticky",
                               "map:1:DRIVER,",
                               ",map:1:DRIVER",
                               "map:1:DRIVER map:2:DRIVER"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm_text(d, bad[i]));
    }
    assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm_text(d, "any:1:DRIVER:sticky,mop:1:DRIVER"));
    assert_non_null(strstr(tide_last_error(), "character 21"));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm(d, TIDE__FAULT_ANY + 1, 1, TIDE_DRIVER, false));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm(d, -1, 1, TIDE_DRIVER, false));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm(d, TIDE__CALL_MAP, 0, TIDE_DRIVER, false));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm(d, TIDE__CALL_MAP, 1, TIDE_OK, false));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__fault_arm(d, TIDE__CALL_MAP, 1, (tide_status)5, false));
    assert_fails(TIDE_LIMIT,
                 tide__fault_arm_text(d, "any:1:DRIVER,any:1:DRIVER,any:1:DRIVER,any:1:DRIVER,any:1:DRIVER,"
                                         "any:1:DRIVER,any:1:DRIVER,any:1:DRIVER,any:1:DRIVER"));
    free_bytes_of(d); /* none of it is armed */
    for (int i = 0; i < TIDE__FAULT_MAX_RULES; i++) {
        assert_ok(tide__fault_arm(d, TIDE__CALL_MAP, 1, TIDE_DRIVER, false));
    }
    assert_fails(TIDE_LIMIT, tide__fault_arm(d, TIDE__CALL_MAP, 1, TIDE_DRIVER, false));
}

typedef struct counter {
    tide__device *d;
    _Atomic int *failed;
} counter;

static void *count_main(void *argument) {
    counter *c = argument;
    uint64_t a, b;
    for (int i = 0; i < 1000; i++) {
        atomic_fetch_add(c->failed, c->d->ops->mem_info(c->d, 0, &a, &b) != TIDE_OK);
    }
    return NULL;
}

static void threads_share_one_count(void **state) {
    pthread_t threads[4];
    _Atomic int failed = 0;
    counter c = {*state, &failed};
    assert_ok(tide__fault_arm(*state, TIDE__CALL_MEM_INFO, 2000, TIDE_DRIVER, false));
    assert_ok(tide__fault_arm(*state, TIDE__FAULT_ANY, 3991, TIDE_DRIVER, true));
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, count_main, &c), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(failed, 1 + 10);
    assert_int_equal(tide__fault_injected(*state), 11);
    assert_int_equal(tide__fault_calls(*state, TIDE__CALL_MEM_INFO), 4000);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_kth_call_of_a_kind_fails_once),
        TEST(a_sticky_rule_fails_from_then_on),
        TEST(several_rules_count_apart),
        TEST(every_call_can_fail),
        TEST(bad_rules_are_refused),
        cmocka_unit_test(a_lost_device_stays_lost),
        TEST(threads_share_one_count),
    };
    return cmocka_run_group_tests_name("fault device", tests, NULL, NULL);
}
