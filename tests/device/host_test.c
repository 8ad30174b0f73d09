/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device beyond the contract: real bytes behind real addresses, kernels
 * that are late, and every kind of wrong program caught. A recorder stands in
 * for the handler that would abort. What is ordered before what has a test of
 * its own, host_order_test.c.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_test.h"

#define CAPACITY (64 * GRANULE)
#define MS UINT64_C(1000000)

/* ---- The device under test, with a handler that takes notes ---- */

typedef struct fixture {
    tide__device *d;
    pthread_mutex_t lock;
    int seen[TIDE__HOST_WRONG_COUNT], total;
    tide__host_violation last;
} fixture;

static void take_note(void *user, const tide__host_violation *v) {
    fixture *f = user;
    pthread_mutex_lock(&f->lock);
    f->seen[v->kind]++;
    f->total++;
    f->last = *v;
    pthread_mutex_unlock(&f->lock);
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    pthread_mutex_init(&f->lock, NULL);
    assert_ok(tide__host_open(&(tide__host_options){.capacity_bytes = CAPACITY}, &f->d));
    tide__host_set_handler(f->d, take_note, f);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    f->d->ops->close(f->d);
    pthread_mutex_destroy(&f->lock);
    free(f);
    return 0;
}

static int seen(fixture *f, tide__host_wrong kind) {
    pthread_mutex_lock(&f->lock);
    int n = f->seen[kind];
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* Exactly these happened since the last look: n of one kind. */
static void assert_seen(fixture *f, tide__host_wrong kind, int n) {
    pthread_mutex_lock(&f->lock);
    int of_kind = f->seen[kind], total = f->total;
    memset(f->seen, 0, sizeof f->seen);
    f->total = 0;
    pthread_mutex_unlock(&f->lock);
    if (of_kind != n || total != n) {
        print_error("%d violations, %d of them \"%s\"; the last: %s\n", total, of_kind,
                    tide__host_wrong_name(kind), f->last.text);
    }
    assert_int_equal(of_kind, n);
    assert_int_equal(total, n);
}

static void assert_nothing_seen(fixture *f) { assert_seen(f, TIDE__HOST_UNORDERED, 0); }

static tide_stream new_stream(fixture *f) {
    tide_stream stream = 0;
    assert_ok(f->d->ops->stream_create(f->d, 0, &stream));
    return stream;
}

static tide__event new_event(fixture *f) {
    tide__event event = 0;
    assert_ok(f->d->ops->event_create(f->d, 0, &event));
    return event;
}

/* A chunk mapped at addresses of its own. */
static uint64_t new_block(fixture *f, uint64_t size, tide__chunk_handle *chunk) {
    uint64_t va = reserve(f->d, size);
    tide__chunk_handle handle = chunk_of(f->d, size);
    map_at(f->d, va, size, handle);
    if (chunk) {
        *chunk = handle;
    }
    return va;
}

static uint64_t new_alias(fixture *f, uint64_t size, tide__chunk_handle chunk) {
    uint64_t va = reserve(f->d, size);
    map_at(f->d, va, size, chunk);
    return va;
}

static uint64_t wrong_bytes(fixture *f) {
    tide__host_result result;
    tide__host_get_result(f->d, 0, &result);
    return result.wrong_bytes;
}

/* After b, the stream waits for what is queued on a. */
static void order(fixture *f, tide_stream a, tide_stream b) {
    tide__event event = new_event(f);
    assert_ok(f->d->ops->event_record(f->d, 0, event, a));
    assert_ok(f->d->ops->stream_wait_event(f->d, 0, b, event));
    assert_ok(f->d->ops->event_destroy(f->d, 0, event));
}

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

/* ---- Kernels that are late ---- */

static void set_flag(void *user) { atomic_store((_Atomic int *)user, 1); }

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

/* ---- Wrong programs, each caught ---- */

static void unordered_writes_through_aliases_are_caught(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    tide__chunk_handle chunk;
    uint64_t va = new_block(f, GRANULE, &chunk), alias = new_alias(f, GRANULE, chunk), id;
    assert_ok(tide__host_fill(f->d, 0, a, va, 1, 1024));
    assert_ok(tide__host_fill(f->d, 0, b, alias + 1024, 2, 1024)); /* beside it: no conflict */
    assert_nothing_seen(f);
    assert_ok(tide__host_fill(f->d, 0, b, alias + 512, 3, 256));
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_int_equal(f->last.va, alias + 512);
    assert_int_equal(f->last.size, 256);
    assert_int_equal(f->last.earlier.va, va);
    assert_int_equal(f->last.later.va, alias + 512);
    assert_int_equal(f->last.later.chunk, chunk);
    assert_ok(f->d->ops->stream_id(f->d, 0, a, &id));
    assert_int_equal(f->last.earlier.stream_id, id);
    assert_non_null(strstr(f->last.text, "unordered"));
    assert_ok(tide__host_device_sync(f->d, 0));
}

static void unordered_reads_and_writes_are_caught(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    uint64_t va = new_block(f, GRANULE, NULL), to = new_block(f, GRANULE, NULL);
    tide__host_gate gate; /* so that the bytes are never touched at once: only the order is wrong */
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_fill(f->d, 0, a, va, 1, GRANULE));
    assert_ok(tide__host_device_sync(f->d, 0));
    assert_ok(tide__host_check(f->d, 0, a, va, 1, GRANULE));
    assert_ok(tide__host_check(f->d, 0, b, va, 1, GRANULE)); /* two reads are fine */
    assert_nothing_seen(f);
    assert_ok(tide__host_hold(f->d, 0, b, gate));
    assert_ok(tide__host_fill(f->d, 0, b, va, 1, 512)); /* after b's read, not after a's */
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_int_equal(f->last.size, 512);
    assert_ok(tide__host_copy(f->d, 0, a, to, va, 512)); /* reads what b writes */
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_ok(tide__host_stream_sync(f->d, 0, a));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_device_sync(f->d, 0));
}

static void an_unmap_under_queued_work_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__host_gate gate;
    uint64_t va = new_block(f, 2 * GRANULE, NULL);
    tide__host_result r;
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_fill(f->d, 0, s, va + 100, 1, 100));
    assert_ok(f->d->ops->unmap(f->d, 0, va, 2 * GRANULE));
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
    assert_non_null(strstr(f->last.text, "unmapped under queued work"));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_stream_sync(f->d, 0, s)); /* the work finds nothing there, and is skipped */
    assert_seen(f, TIDE__HOST_UNMAPPED_WORK, 1);
    tide__host_get_result(f->d, 0, &r);
    assert_int_equal(r.operations, 2);
}

typedef struct late_write {
    volatile uint8_t *at;
    _Atomic int started, go;
} late_write;

static void write_when_told(void *user) {
    late_write *w = user;
    *w->at = 1;
    atomic_store(&w->started, 1);
    while (!atomic_load(&w->go)) {
        usleep(100);
    }
    *w->at = 2;
}

static void *unmap_main(void *user) {
    fixture *f = user;
    return (void *)(intptr_t)f->d->ops->unmap(f->d, 0, f->last.va, GRANULE);
}

/* The bytes are being touched: the unmap is reported, then lets them finish. */
static void an_unmap_under_running_work_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    pthread_t thread;
    void *status;
    uint64_t va = new_block(f, GRANULE, NULL);
    late_write w = {.at = (volatile uint8_t *)va};
    tide__host_range range = {va, 1};
    assert_ok(tide__host_callback(f->d, 0, s, write_when_told, &w, NULL, 0, &range, 1));
    while (!atomic_load(&w.started)) {
        usleep(100);
    }
    f->last.va = va;
    assert_int_equal(pthread_create(&thread, NULL, unmap_main, f), 0);
    while (!seen(f, TIDE__HOST_UNMAP_BUSY)) {
        usleep(100);
    }
    atomic_store(&w.go, 1);
    pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, TIDE_OK);
    assert_ok(tide__host_stream_sync(f->d, 0, s));
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
}

static void an_unmap_by_luck_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__event before = new_event(f);
    uint64_t va = new_block(f, GRANULE, NULL);
    _Atomic int ran = 0;
    assert_ok(tide__host_fill(f->d, 0, s, va, 1, 512));
    assert_ok(f->d->ops->event_record(f->d, 0, before, s));
    assert_ok(tide__host_check(f->d, 0, s, va, 1, 512));
    assert_ok(tide__host_callback(f->d, 0, s, set_flag, &ran, NULL, 0, NULL, 0));
    while (!atomic_load(&ran)) {
        usleep(100); /* the check is done, but nothing of the device's has said so */
    }
    assert_ok(f->d->ops->event_wait(f->d, 0, before, UINT64_MAX)); /* the fill is known, the check is not */
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    assert_seen(f, TIDE__HOST_UNMAP_UNKNOWN, 1);
}

static void a_remap_under_queued_work_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__host_gate gate;
    uint64_t va = new_block(f, GRANULE, NULL);
    tide__chunk_handle other = chunk_of(f->d, GRANULE);
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_fill(f->d, 0, s, va, 9, GRANULE));
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    map_at(f->d, va, GRANULE, other);
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_stream_sync(f->d, 0, s));
    assert_seen(f, TIDE__HOST_UNMAPPED_WORK, 1);
    assert_int_equal(*(volatile uint8_t *)va, 0); /* the other chunk's bytes are as they were */
}

static void reuse_of_released_bytes_is_caught(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    tide__host_gate gate;
    tide__chunk_handle chunk, next;
    uint64_t va = new_block(f, GRANULE, &chunk);
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, a, gate));
    assert_ok(tide__host_fill(f->d, 0, a, va, 1, GRANULE));
    assert_ok(f->d->ops->chunk_release(f->d, 0, chunk)); /* allowed: the mapping holds the bytes */
    assert_nothing_seen(f);
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
    uint64_t fresh = new_block(f, GRANULE, &next); /* first fit: the same bytes, another handle */
    assert_int_not_equal(chunk, next);
    assert_ok(tide__host_fill(f->d, 0, b, fresh, 2, GRANULE));
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_int_equal(f->last.earlier.chunk, chunk);
    assert_int_equal(f->last.later.chunk, next);
    assert_ok(tide__host_stream_sync(f->d, 0, b));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_device_sync(f->d, 0));
    assert_seen(f, TIDE__HOST_UNMAPPED_WORK, 1);
    assert_int_equal(*(volatile uint8_t *)fresh, 2);
}

static void work_on_unmapped_addresses_is_refused(void **state) {
    fixture *f = *state;
    uint64_t va = reserve(f->d, 4 * GRANULE);
    tide__chunk_handle chunk = chunk_of(f->d, GRANULE);
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, 0, va, 1, 512));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 1);
    assert_ok(f->d->ops->map(f->d, 0, va, GRANULE, chunk)); /* and no set_access */
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, 0, va, 1, 512));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 1);
    assert_ok(f->d->ops->set_access(f->d, 0, va, GRANULE));
    assert_ok(tide__host_fill(f->d, 0, 0, va, 1, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, 0, va, 1, GRANULE + 1));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_copy(f->d, 0, 0, va, va + 2 * GRANULE, 8));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_check(f->d, 0, 0, UINT64_MAX - 8, 1, 100));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 3);
    assert_fails(TIDE_BAD_HANDLE, tide__host_fill(f->d, 0, 12345, va, 1, 8));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 1, 0, va, 1, 8));
    assert_nothing_seen(f);
}

/* ---- Deaths: in a child, where nobody handles ---- */

static int child_status(void (*body)(tide__device *d)) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        tide__device *d = NULL;
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the next test */
        if (!freopen("/dev/null", "w", stderr) || tide__host_open(NULL, &d) != TIDE_OK) {
            _exit(0);
        }
        body(d);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void race(tide__device *d) {
    tide_stream a, b;
    uint64_t va;
    tide__chunk_handle chunk;
    d->ops->reserve(d, 0, GRANULE, 0, 0, &va);
    d->ops->chunk_create(d, 0, GRANULE, &chunk);
    d->ops->map(d, 0, va, GRANULE, chunk);
    d->ops->set_access(d, 0, va, GRANULE);
    d->ops->stream_create(d, 0, &a);
    d->ops->stream_create(d, 0, &b);
    tide__host_fill(d, 0, a, va, 1, 8);
    tide__host_delay(d, 0, b, 100 * MS);
    tide__host_fill(d, 0, b, va, 1, 8);
}

static void touch_after_unmap(tide__device *d) {
    uint64_t va;
    tide__chunk_handle chunk;
    d->ops->reserve(d, 0, GRANULE, 0, 0, &va);
    d->ops->chunk_create(d, 0, GRANULE, &chunk);
    d->ops->map(d, 0, va, GRANULE, chunk);
    d->ops->set_access(d, 0, va, GRANULE);
    *(volatile uint8_t *)va = 1;
    d->ops->unmap(d, 0, va, GRANULE);
    *(volatile uint8_t *)va = 2;
}

static void a_violation_aborts(void **state) {
    int status = child_status(race);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : WEXITSTATUS(status) != 0);
}

static void a_touch_after_unmap_is_a_fault(void **state) {
    int status = child_status(touch_after_unmap);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0);
}

/* ---- Right programs, not flagged ---- */

/* The move that the allocator makes: map at a new address and use it there on
 * the same stream while the old address's kernel still runs; unmap the old
 * address when its event is done. */
static void a_move_under_a_running_kernel_is_right(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__host_gate gate;
    tide__event done = new_event(f);
    tide__chunk_handle chunk;
    uint64_t old = new_block(f, GRANULE, &chunk);
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_fill_pattern(f->d, 0, s, old, 1, GRANULE));
    assert_ok(tide__host_check_pattern(f->d, 0, s, old, 1, GRANULE));
    assert_ok(f->d->ops->event_record(f->d, 0, done, s));
    uint64_t moved = new_alias(f, GRANULE, chunk);
    assert_ok(tide__host_check_pattern(f->d, 0, s, moved, 1, GRANULE));
    assert_ok(tide__host_fill_pattern(f->d, 0, s, moved, 2, GRANULE));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(f->d->ops->event_wait(f->d, 0, done, UINT64_MAX));
    assert_ok(f->d->ops->unmap(f->d, 0, old, GRANULE)); /* the new address's work may still run */
    assert_ok(tide__host_check_pattern(f->d, 0, s, moved, 2, GRANULE));
    assert_ok(tide__host_stream_sync(f->d, 0, s));
    assert_int_equal(wrong_bytes(f), 0);
    assert_nothing_seen(f);
}

static void raw_free_waits_for_the_device(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    uint64_t va, start = f->d->ops->now_ns(f->d);
    assert_ok(f->d->ops->raw_alloc(f->d, 0, 1000, &va));
    assert_ok(tide__host_delay(f->d, 0, s, 20 * MS));
    assert_ok(tide__host_fill(f->d, 0, s, va, 1, 1000));
    assert_ok(f->d->ops->raw_free(f->d, 0, va));
    assert_true(f->d->ops->now_ns(f->d) - start >= 20 * MS);
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, s, va, 1, 8));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 1);
    assert_int_equal(free_bytes_of(f->d), CAPACITY);
}

/* Random legitimate use: blocks that go from stream to stream by events, and
 * chunks that move between addresses, with every operation late. */
enum { STREAMS = 4, BLOCKS = 6, STEPS = 400, BLOCK_BYTES = 64 * 1024 };

typedef struct juggler {
    fixture *f;
    uint64_t random;
    tide_stream streams[STREAMS];
    struct juggled {
        uint64_t va, seed;
        tide__chunk_handle chunk;
        size_t owner;
        uint64_t old_va; /* retiring after old_event; 0: none */
        tide__event old_event;
    } blocks[BLOCKS];
} juggler;

/* The old address goes when its event is done; must: wait for that. */
static void retire(juggler *j, struct juggled *b, bool must) {
    const tide__device_ops *o = j->f->d->ops;
    if (b->old_va == 0) {
        return;
    }
    if (must) {
        assert_ok(o->event_wait(j->f->d, 0, b->old_event, UINT64_MAX));
    } else if (o->event_query(j->f->d, 0, b->old_event) != TIDE_OK) {
        return;
    }
    assert_ok(o->unmap(j->f->d, 0, b->old_va, GRANULE));
    assert_ok(o->unreserve(j->f->d, 0, b->old_va, GRANULE));
    assert_ok(o->event_destroy(j->f->d, 0, b->old_event));
    b->old_va = 0;
}

static void juggle_move(juggler *j, struct juggled *b) {
    retire(j, b, true);
    b->old_va = b->va;
    b->old_event = new_event(j->f);
    assert_ok(j->f->d->ops->event_record(j->f->d, 0, b->old_event, j->streams[b->owner]));
    b->va = new_alias(j->f, GRANULE, b->chunk);
}

static void juggle_once(juggler *j) {
    struct juggled *b = &j->blocks[next_random(&j->random) % BLOCKS];
    struct juggled *other = &j->blocks[next_random(&j->random) % BLOCKS];
    tide__device *d = j->f->d;
    tide_stream s = j->streams[b->owner];
    retire(j, b, false);
    switch (next_random(&j->random) % 5) {
    case 0:
        b->seed = next_random(&j->random);
        assert_ok(tide__host_fill_pattern(d, 0, s, b->va, b->seed, BLOCK_BYTES));
        break;
    case 1: assert_ok(tide__host_check_pattern(d, 0, s, b->va, b->seed, BLOCK_BYTES)); break;
    case 2:
        b->owner = next_random(&j->random) % STREAMS;
        order(j->f, s, j->streams[b->owner]);
        break;
    case 3: juggle_move(j, b); break;
    default: /* b becomes a copy of the other, which waits until it is read */
        if (b == other) {
            break;
        }
        order(j->f, j->streams[other->owner], s);
        assert_ok(tide__host_copy(d, 0, s, b->va, other->va, BLOCK_BYTES));
        order(j->f, s, j->streams[other->owner]);
        b->seed = other->seed;
        break;
    }
}

static void random_right_programs_are_not_flagged(void **state) {
    fixture *f = *state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        juggler j = {.f = f, .random = seed};
        print_message("    seed %" PRIu64 "\n", seed);
        tide__host_set_lateness(f->d, seed, seed * 50000);
        for (size_t i = 0; i < STREAMS; i++) {
            j.streams[i] = new_stream(f);
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            struct juggled *b = &j.blocks[i];
            b->va = new_block(f, GRANULE, &b->chunk);
            b->owner = i % STREAMS;
            assert_ok(tide__host_fill_pattern(f->d, 0, j.streams[b->owner], b->va, b->seed, BLOCK_BYTES));
        }
        for (int step = 0; step < STEPS; step++) {
            juggle_once(&j);
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            struct juggled *b = &j.blocks[i];
            assert_ok(tide__host_check_pattern(f->d, 0, j.streams[b->owner], b->va, b->seed, BLOCK_BYTES));
            retire(&j, b, true);
        }
        for (size_t i = 0; i < STREAMS; i++) {
            assert_ok(f->d->ops->stream_destroy(f->d, 0, j.streams[i])); /* drains: the host knows all */
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            assert_ok(f->d->ops->unmap(f->d, 0, j.blocks[i].va, GRANULE));
            assert_ok(f->d->ops->unreserve(f->d, 0, j.blocks[i].va, GRANULE));
            assert_ok(f->d->ops->chunk_release(f->d, 0, j.blocks[i].chunk));
        }
        assert_int_equal(wrong_bytes(f), 0);
        assert_nothing_seen(f);
    }
    assert_int_equal(free_bytes_of(f->d), CAPACITY);
}

/* Threads that queue, wait and unmap on one device, each with memory of its own. */
typedef struct worker {
    tide__device *d;
    uint64_t seed;
    int wrong;
} worker;

static void *worker_main(void *argument) {
    worker *w = argument;
    tide__device *d = w->d;
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t va = 0;
        tide__chunk_handle chunk = 0;
        tide_stream s = 0;
        w->wrong += d->ops->reserve(d, 0, GRANULE, 0, 0, &va) != TIDE_OK;
        w->wrong += d->ops->chunk_create(d, 0, GRANULE, &chunk) != TIDE_OK;
        w->wrong += d->ops->map(d, 0, va, GRANULE, chunk) != TIDE_OK;
        w->wrong += d->ops->set_access(d, 0, va, GRANULE) != TIDE_OK;
        w->wrong += d->ops->stream_create(d, 0, &s) != TIDE_OK;
        w->wrong += tide__host_fill_pattern(d, 0, s, va, w->seed + i, 32768) != TIDE_OK;
        w->wrong += tide__host_check_pattern(d, 0, s, va, w->seed + i, 32768) != TIDE_OK;
        w->wrong += (i % 2 ? tide__host_device_sync(d, 0) : tide__host_stream_sync(d, 0, s)) != TIDE_OK;
        w->wrong += d->ops->stream_destroy(d, 0, s) != TIDE_OK;
        w->wrong += d->ops->chunk_release(d, 0, chunk) != TIDE_OK;
        w->wrong += d->ops->unmap(d, 0, va, GRANULE) != TIDE_OK;
        w->wrong += d->ops->unreserve(d, 0, va, GRANULE) != TIDE_OK;
    }
    return NULL;
}

static void threads_work_side_by_side(void **state) {
    fixture *f = *state;
    pthread_t threads[4];
    worker workers[4];
    tide__host_set_lateness(f->d, 7, 20000);
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (worker){.d = f->d, .seed = i * 1000};
        assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    assert_int_equal(wrong_bytes(f), 0);
    assert_nothing_seen(f);
    assert_int_equal(free_bytes_of(f->d), CAPACITY);
    assert_int_equal(tide__host_resident_bytes(f->d, 0), 0);
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
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_violation_aborts), /* children first: before this process has threads */
        cmocka_unit_test(a_touch_after_unmap_is_a_fault),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(untouched_chunks_cost_nothing),
        cmocka_unit_test(too_many_mappings_are_a_clear_error),
        cmocka_unit_test(closing_opens_gates_and_ends_delays),
        TEST(unknown_gpus_are_refused),
        TEST(aliases_see_the_same_bytes),
        TEST(operations_do_what_they_say),
        TEST(a_gate_holds_a_stream),
        TEST(delays_and_lateness_make_events_late),
        TEST(destroyed_events_still_hold_waits),
        TEST(stream_handles_can_be_used_again),
        TEST(unordered_writes_through_aliases_are_caught),
        TEST(unordered_reads_and_writes_are_caught),
        TEST(an_unmap_under_queued_work_is_caught),
        TEST(an_unmap_under_running_work_is_caught),
        TEST(an_unmap_by_luck_is_caught),
        TEST(a_remap_under_queued_work_is_caught),
        TEST(reuse_of_released_bytes_is_caught),
        TEST(work_on_unmapped_addresses_is_refused),
        TEST(a_move_under_a_running_kernel_is_right),
        TEST(raw_free_waits_for_the_device),
        TEST(random_right_programs_are_not_flagged),
        TEST(threads_work_side_by_side),
        cmocka_unit_test(a_graph_replays_what_was_captured),
        cmocka_unit_test(a_peer_reaches_what_was_set_after_it_was_enabled),
        cmocka_unit_test(a_wait_for_the_device_is_bounded),
    };
    return cmocka_run_group_tests_name("host device", tests, NULL, NULL);
}
