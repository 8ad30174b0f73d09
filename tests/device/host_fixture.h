/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the host device share: a device whose violations are noted
 * instead of ending the process, and the calls made all the time, on GPU 0.
 */
#ifndef TIDE_HOST_FIXTURE_H
#define TIDE_HOST_FIXTURE_H

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

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

static inline void take_note(void *user, const tide__host_violation *v) {
    fixture *f = user;
    pthread_mutex_lock(&f->lock);
    f->seen[v->kind]++;
    f->total++;
    f->last = *v;
    pthread_mutex_unlock(&f->lock);
}

static inline int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    pthread_mutex_init(&f->lock, NULL);
    assert_ok(tide__host_open(&(tide__host_options){.capacity_bytes = CAPACITY}, &f->d));
    tide__host_set_handler(f->d, take_note, f);
    *state = f;
    return 0;
}

static inline int tear_down(void **state) {
    fixture *f = *state;
    f->d->ops->close(f->d);
    pthread_mutex_destroy(&f->lock);
    free(f);
    return 0;
}

static inline int seen(fixture *f, tide__host_wrong kind) {
    pthread_mutex_lock(&f->lock);
    int n = f->seen[kind];
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* Exactly these happened since the last look: n of one kind. */
static inline void assert_seen(fixture *f, tide__host_wrong kind, int n) {
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

static inline void assert_nothing_seen(fixture *f) { assert_seen(f, TIDE__HOST_UNORDERED, 0); }

static inline tide_stream new_stream(fixture *f) {
    tide_stream stream = 0;
    assert_ok(f->d->ops->stream_create(f->d, 0, &stream));
    return stream;
}

static inline tide__event new_event(fixture *f) {
    tide__event event = 0;
    assert_ok(f->d->ops->event_create(f->d, 0, &event));
    return event;
}

/* A chunk mapped at addresses of its own. */
static inline uint64_t new_block(fixture *f, uint64_t size, tide__chunk_handle *chunk) {
    uint64_t va = reserve(f->d, size);
    tide__chunk_handle handle = chunk_of(f->d, size);
    map_at(f->d, va, size, handle);
    if (chunk) {
        *chunk = handle;
    }
    return va;
}

static inline uint64_t new_alias(fixture *f, uint64_t size, tide__chunk_handle chunk) {
    uint64_t va = reserve(f->d, size);
    map_at(f->d, va, size, chunk);
    return va;
}

static inline uint64_t wrong_bytes(fixture *f) {
    tide__host_result result;
    tide__host_get_result(f->d, 0, &result);
    return result.wrong_bytes;
}

/* After b, the stream waits for what is queued on a. */
static inline void order(fixture *f, tide_stream a, tide_stream b) {
    tide__event event = new_event(f);
    assert_ok(f->d->ops->event_record(f->d, 0, event, a));
    assert_ok(f->d->ops->stream_wait_event(f->d, 0, b, event));
    assert_ok(f->d->ops->event_destroy(f->d, 0, event));
}

/* A callback's work. */
static inline void set_flag(void *user) { atomic_store((_Atomic int *)user, 1); }

/* A test whose state is a fixture. */
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

#endif
