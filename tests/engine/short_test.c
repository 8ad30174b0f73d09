/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When memory is short, a device fails, or somebody looks for the cause of a
 * fault: the order of what is tried, waits that hold nobody else up, a lost
 * device, the switches.
 */
#include "fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MIB TIDE__MIB
#define SECOND UINT64_C(1000000000)

/* ---- The order ---- */

typedef struct hoard {
    fixture *f;
    void *ptr;
    int calls;
    uint64_t bytes;
} hoard;

static uint64_t give_up_hoard(void *user, int device, uint64_t bytes) {
    hoard *h = user;
    (void)device;
    h->calls++;
    h->bytes = bytes;
    if (h->ptr == NULL) {
        return 0;
    }
    watch_freed(h->f->w, 0, (uintptr_t)h->ptr);
    tide_free(h->f->a, h->ptr);
    h->ptr = NULL;
    return 100 * MIB;
}

static void a_callback_frees_what_is_missing(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 256 * MIB});
    hoard h = {.f = f};
    uint64_t id;
    void *ptr = NULL;
    h.ptr = alloc_on(f, 200 * MIB, 0);
    assert_ok(tide_oom_callback_add(f->a, give_up_hoard, &h, &id));
    alloc_on(f, 20 * MIB, 0);
    assert_int_equal(h.calls, 0); /* nobody is asked while there is room */
    alloc_on(f, 100 * MIB, 0);
    assert_int_equal(h.calls, 1);
    assert_true(h.bytes >= 100 * MIB);
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 200 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_int_equal(h.calls, 2); /* once an allocation */
    assert_ok(tide_oom_callback_remove(f->a, id));
    assert_fails(TIDE_BAD_HANDLE, tide_oom_callback_remove(f->a, id));
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 200 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_int_equal(h.calls, 2);
    close_fixture(f);
}

static void assert_says(const char *text) {
    if (strstr(tide_last_error(), text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, tide_last_error());
    }
}

static void out_of_memory_says_who_holds_what_and_what_would_help(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 256 * MIB});
    uint64_t raw;
    void *ptr = NULL, *first = alloc_on(f, 40 * MIB, 0);
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 230 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_says("230.00 MiB asked for");
    assert_says("pagetide holds 40.00 MiB: 40.00 MiB in use");
    assert_says("blocks in use and this one are more than the device");
    assert_ok(f->inner->ops->raw_alloc(f->inner, 0, 150 * MIB, &raw)); /* nobody tells pagetide */
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 100 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_says("others hold 150.00 MiB, and 66.00 MiB of the device's 256.00 MiB are free");
    assert_says("held by other processes");
    assert_ok(f->inner->ops->raw_free(f->inner, 0, raw));
    tide_pool pool = 0;
    assert_ok(tide_pool_create(f->a, 0, &pool));
    assert_ok(tide_capture_begin(f->a, 0, 0, pool));
    free_block(f, alloc_in(f, 150 * MIB, pool));
    assert_ok(tide_capture_end(f->a, 0, 0));
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 100 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_says("150.00 MiB of graphs' pools");
    assert_says("tide_pool_release");
    free_block(f, first);
    close_fixture(f);
}

static void a_limit_that_refuses_is_named(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 256 * MIB, .limit = 100 * MIB});
    void *ptr = NULL;
    assert_fails(TIDE_LIMIT, tide_alloc(f->a, 0, 120 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_says("limit of 100.00 MiB");
    assert_says("raise limit_bytes");
    close_fixture(f);
}

static void limits_and_a_margin_can_be_set_at_any_time(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 512 * MIB});
    tide_limits l = {.struct_size = sizeof l, .limit_bytes = 100 * MIB};
    uint64_t raw;
    void *ptr = NULL, *first = alloc_on(f, 200 * MIB, 0);
    assert_ok(tide_limits_set(f->a, 0, &l)); /* less than is held: it stays */
    assert_fails(TIDE_LIMIT, tide_alloc(f->a, 0, 20 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    free_block(f, first);
    trim(f, UINT64_MAX, 0);
    free_block(f, alloc_on(f, 80 * MIB, 0));
    assert_fails(TIDE_LIMIT, tide_alloc(f->a, 0, 120 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    l = (tide_limits){.struct_size = sizeof l, .margin_bytes = 200 * MIB};
    assert_ok(tide_limits_set(f->a, 0, &l));
    trim(f, UINT64_MAX, 0);
    first = alloc_on(f, 300 * MIB, 0);
    assert_fails(TIDE_LIMIT, tide_alloc(f->a, 0, 40 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_says("margin of 209715200");
    free_block(f, first);
    trim(f, UINT64_MAX, 0);
    assert_ok(f->inner->ops->raw_alloc(f->inner, 0, 250 * MIB, &raw)); /* what another process takes counts */
    assert_fails(TIDE_LIMIT, tide_alloc(f->a, 0, 100 * MIB, 0, TIDE_POOL_DEFAULT, &ptr));
    assert_ok(f->inner->ops->raw_free(f->inner, 0, raw));
    l = (tide_limits){.struct_size = sizeof l};
    assert_ok(tide_limits_get(f->a, 0, &l));
    assert_int_equal(l.margin_bytes, 200 * MIB);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_limits_set(f->a, 0, NULL));
    assert_fails(TIDE_INVALID_ARGUMENT, tide_limits_set(f->a, 7, &l));
    close_fixture(f);
}

/* Waits of the host for events are expected to end long before the device is idle. */
static void out_of_memory_waits_only_for_what_frees_enough(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.host = true, .capacity = 256 * MIB});
    tide_stream a = new_stream(f), b = new_stream(f), busy = new_stream(f);
    tide__host_gate gate;
    assert_ok(tide__host_gate_create(f->inner, 0, &gate));
    free_block(f, alloc_on(f, 512, b));
    free_block(f, alloc_on(f, 512, busy));
    free_block(f, alloc_on(f, 200 * MIB, a));            /* closes an epoch: nothing is queued anywhere */
    assert_ok(tide__host_hold(f->inner, 0, busy, gate)); /* a long kernel elsewhere, queued after that free */
    uint64_t before = stats_of(f, 0).host_waits;
    alloc_on(f, 200 * MIB, b); /* the bytes are idle though the device is not */
    assert_true(stats_of(f, 0).host_waits <= before + 1);
    assert_ok(tide__host_gate_open(f->inner, 0, gate));
    close_fixture(f);
}

static void waits_for_queued_work_are_bounded(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){.capacity = 256 * MIB, .delay = 90 * SECOND});
    tide_stream a = new_stream(f), b = new_stream(f);
    void *ptr = NULL;
    free_block(f, alloc_on(f, 512, b));
    free_block(f, alloc_on(f, 200 * MIB, a));
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide_alloc(f->a, 0, 200 * MIB, b, TIDE_POOL_DEFAULT, &ptr));
    assert_says("202.00 MiB freed but maybe used by queued work"); /* whole chunks */
    assert_says("oom_wait_ns");
    assert_true(f->inner->ops->now_ns(f->inner) <= 61 * SECOND); /* a minute unless told otherwise */
    alloc_on(f, 200 * MIB, b);
    close_fixture(f);
}

/* ---- Waits hold nobody up ---- */

typedef struct waiter {
    fixture *f;
    _Atomic(bool) done;
    tide_status status;
} waiter;

static void *trim_patiently(void *user) {
    waiter *w = user;
    tide_trim_options options = {.struct_size = sizeof options, .bytes = UINT64_MAX, .wait_ns = UINT64_MAX};
    w->status = tide_trim(w->f->a, 0, &options, NULL);
    atomic_store(&w->done, true);
    return NULL;
}

static void others_allocate_while_a_trim_waits(void **state) {
    (void)state;
    fixture f = {.host = true};
    waiter w = {.f = &f};
    tide_stream busy, other;
    tide__host_gate gate;
    void *ptr, *next;
    pthread_t thread;
    assert_ok(tide__host_open(NULL, &f.inner));
    assert_ok(tide__open_on(f.inner, NULL, NULL, &f.a));
    assert_ok(tide_stream_create(f.a, 0, &busy));
    assert_ok(tide_stream_create(f.a, 0, &other));
    assert_ok(tide_alloc(f.a, 0, 100 * MIB, busy, TIDE_POOL_DEFAULT, &ptr));
    assert_ok(tide__host_gate_create(f.inner, 0, &gate));
    assert_ok(tide__host_hold(f.inner, 0, busy, gate));
    assert_ok(tide__host_fill(f.inner, 0, busy, (uintptr_t)ptr, 1, 100 * MIB));
    assert_ok(tide_free(f.a, ptr));
    assert_int_equal(pthread_create(&thread, NULL, trim_patiently, &w), 0);
    usleep(100000);
    for (int i = 0; i < 50; i++) { /* each finds chunks, and looks at the events that the other waits for */
        assert_ok(tide_alloc(f.a, 0, 30 * MIB, other, TIDE_POOL_DEFAULT, &next));
        tide_stats s = {.struct_size = sizeof s};
        assert_ok(tide_stats_get(f.a, 0, &s));
        assert_ok(tide_free(f.a, next));
        assert_ok(tide_trim(f.a, 0, NULL, NULL));
    }
    assert_false(atomic_load(&w.done));
    assert_ok(tide__host_gate_open(f.inner, 0, gate));
    pthread_join(thread, NULL);
    assert_ok(w.status);
    assert_int_equal(tide_reserved_bytes(f.a, 0), 0);
    assert_ok(tide_close(f.a));
}

/* ---- A device that fails ---- */

static void a_lost_device_takes_no_call(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, 40 * MIB, 0), *other = NULL;
    tide_stats s = {.struct_size = sizeof s};
    assert_ok(tide__fault_arm(f->fault, TIDE__CALL_CHUNK_CREATE, 1, TIDE_DEVICE_LOST, false));
    assert_fails(TIDE_DEVICE_LOST, tide_alloc(f->a, 0, 80 * MIB, 0, TIDE_POOL_DEFAULT, &other));
    assert_fails(TIDE_DEVICE_LOST, tide_alloc(f->a, 0, 512, 0, TIDE_POOL_DEFAULT, &other));
    assert_fails(TIDE_DEVICE_LOST, tide_free(f->a, ptr));
    assert_fails(TIDE_DEVICE_LOST, tide_trim(f->a, 0, NULL, NULL));
    assert_fails(TIDE_DEVICE_LOST, tide_stats_get(f->a, 0, &s));
    assert_ok(tide_close(f->a));
    free(f);
}

static void frees_succeed_when_the_driver_has_gone(void **state) {
    (void)state;
    fixture *f = open_fixture(&(fixture_options){0});
    void *ptr = alloc_on(f, 40 * MIB, 0), *other = NULL;
    assert_ok(tide__fault_arm(f->fault, TIDE__CALL_CHUNK_CREATE, 1, TIDE_DEVICE_GONE, false));
    assert_fails(TIDE_DEVICE_GONE, tide_alloc(f->a, 0, 80 * MIB, 0, TIDE_POOL_DEFAULT, &other));
    assert_ok(tide_free(f->a, ptr));
    assert_fails(TIDE_DEVICE_GONE, tide_alloc(f->a, 0, 512, 0, TIDE_POOL_DEFAULT, &other));
    assert_ok(tide_close(f->a));
    free(f);
}

/* A query that fails must not turn into an error about something else. */
static void a_failed_query_is_named(void **state) {
    (void)state;
    for (int call = 0; call < 2; call++) {
        static const tide__call calls[] = {TIDE__CALL_STREAM_ID, TIDE__CALL_STREAM_CAPTURING};
        fixture *f = open_fixture(&(fixture_options){0});
        tide_stream s = new_stream(f);
        void *ptr = NULL;
        assert_ok(tide__fault_arm(f->fault, calls[call], 1, TIDE_DRIVER, false));
        assert_fails(TIDE_DRIVER, tide_alloc(f->a, 0, 40 * MIB, s, TIDE_POOL_DEFAULT, &ptr));
        assert_non_null(strstr(tide_last_error(), tide__call_name(calls[call])));
        alloc_on(f, 40 * MIB, s);
        close_fixture(f);
    }
}

/* ---- The switches ---- */

static void the_switches_are_checked(void **state) {
    (void)state;
    tide_allocator *a = NULL;
    tide_open_options o = {.struct_size = sizeof o, .backend = "sim"};
    setenv("PAGETIDE_MOVES", "no", 1);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_open(&o, &a));
    assert_non_null(strstr(tide_last_error(), "PAGETIDE_MOVES"));
    unsetenv("PAGETIDE_MOVES");
    setenv("PAGETIDE_UNMAP", "2", 1);
    assert_fails(TIDE_INVALID_ARGUMENT, tide_open(&o, &a));
    unsetenv("PAGETIDE_UNMAP");
}

/* Leaves a hole in the middle and asks for more than it holds: a case for a move. */
static void make_a_move_worthwhile(fixture *f) {
    void *ptrs[4];
    for (int i = 0; i < 4; i++) {
        ptrs[i] = alloc_on(f, 200 * MIB, 0);
    }
    free_block(f, ptrs[0]);
    free_block(f, ptrs[2]);
    alloc_on(f, 300 * MIB, 0);
}

static void with_moves_off_no_chunk_moves(void **state) {
    (void)state;
    for (int off = 0; off < 2; off++) {
        setenv("PAGETIDE_MOVES", off != 0 ? "0" : "1", 1);
        fixture *f = open_fixture(&(fixture_options){0});
        make_a_move_worthwhile(f);
        assert_int_equal(stats_of(f, 0).moves == 0, off != 0);
        close_fixture(f);
    }
    unsetenv("PAGETIDE_MOVES");
}

static void with_unmap_off_nothing_is_unmapped(void **state) {
    (void)state;
    setenv("PAGETIDE_UNMAP", "0", 1);
    fixture *f = open_fixture(&(fixture_options){0});
    make_a_move_worthwhile(f);
    assert_true(stats_of(f, 0).moves > 0);
    assert_int_equal(trim(f, UINT64_MAX, UINT64_MAX).released_bytes, 0);
    assert_int_equal(tide__fault_calls(f->fault, TIDE__CALL_UNMAP), 0);
    close_fixture(f); /* which unmaps all */
    unsetenv("PAGETIDE_UNMAP");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_callback_frees_what_is_missing),
        cmocka_unit_test(out_of_memory_says_who_holds_what_and_what_would_help),
        cmocka_unit_test(a_limit_that_refuses_is_named),
        cmocka_unit_test(limits_and_a_margin_can_be_set_at_any_time),
        cmocka_unit_test(out_of_memory_waits_only_for_what_frees_enough),
        cmocka_unit_test(waits_for_queued_work_are_bounded),
        cmocka_unit_test(others_allocate_while_a_trim_waits),
        cmocka_unit_test(a_lost_device_takes_no_call),
        cmocka_unit_test(frees_succeed_when_the_driver_has_gone),
        cmocka_unit_test(a_failed_query_is_named),
        cmocka_unit_test(the_switches_are_checked),
        cmocka_unit_test(with_moves_off_no_chunk_moves),
        cmocka_unit_test(with_unmap_off_nothing_is_unmapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
