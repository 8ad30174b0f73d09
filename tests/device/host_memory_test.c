/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device when the host itself refuses: the k-th allocation or system
 * call fails, for k = 1, 2, ... until a run passes with none. The call that it
 * hits must say so, leave everything as it was, and succeed when made again.
 *
 * The linker's --wrap puts this file between the device and the C library.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "device_test.h"

#define CAPACITY (64 * GRANULE)

/* ---- The failing host. Only the thread that asked for it sees failures. ---- */

static _Thread_local bool armed;
static unsigned long left; /* calls until the failure; 0: none to come */
static unsigned long injected;

static bool fails_now(void) {
    if (!armed || left == 0 || --left > 0) {
        return false;
    }
    injected++;
    errno = ENOMEM;
    return true;
}

#define WRAP(type, name, failure, parameters, ...) \
    type __real_##name parameters;                 \
    type __wrap_##name parameters;                 \
    type __wrap_##name parameters { return fails_now() ? (failure) : __real_##name(__VA_ARGS__); }

WRAP(void *, malloc, NULL, (size_t size), size)
WRAP(void *, calloc, NULL, (size_t count, size_t size), count, size)
WRAP(void *, realloc, NULL, (void *old, size_t size), old, size)
WRAP(void *, mmap, MAP_FAILED, (void *at, size_t size, int prot, int flags, int fd, off_t offset), at, size,
     prot, flags, fd, offset)
WRAP(int, munmap, -1, (void *at, size_t size), at, size)
WRAP(int, mprotect, -1, (void *at, size_t size, int prot), at, size, prot)
WRAP(int, memfd_create, -1, (const char *name, unsigned flags), name, flags)
WRAP(int, ftruncate, -1, (int fd, off_t size), fd, size)
WRAP(int, pthread_create, EAGAIN,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument), thread, attr,
     start, argument)

/* ---- A life in which every call of the device is made ---- */

/* The host failed the call just made: it says so and has changed nothing. */
static void assert_refused(tide__device *d, tide_status status, uint64_t free_before) {
    assert_true(status == TIDE_NO_HOST_MEMORY || status == TIDE_NO_ADDRESSES || status == TIDE_DRIVER);
    assert_true(strlen(tide_last_error()) > 0);
    if (d) {
        assert_int_equal(free_bytes_of(d), free_before);
    }
}

/* The call gives `want`; where the host fails it, the same call does next. */
#define STEP_GIVES(want, expression)                                    \
    do {                                                                \
        uint64_t free_before = d ? free_bytes_of(d) : 0;                \
        unsigned long injected_before = injected;                       \
        armed = true;                                                   \
        tide_status status = (expression);                              \
        armed = false;                                                  \
        if (injected > injected_before && status != (want)) {           \
            assert_refused(d, status, free_before);                     \
            status = (expression);                                      \
        }                                                               \
        assert_status(status, (want), #expression, __FILE__, __LINE__); \
    } while (0)
#define STEP(expression) STEP_GIVES(TIDE_OK, expression)

enum { STREAMS = 12 }; /* more than the clocks have room for at first */

typedef struct life {
    uint64_t va[2], raw;
    tide__chunk_handle chunk;
    tide_stream streams[STREAMS];
    tide__event events[STREAMS];
    tide__host_gate gate;
} life;

static void memory_is_taken(tide__device *d, life *l) {
    STEP(d->ops->reserve(d, 0, 4 * GRANULE, 4 * GRANULE, 0, &l->va[0]));
    STEP(d->ops->reserve(d, 0, 2 * GRANULE, 0, 0, &l->va[1]));
    STEP(d->ops->chunk_create(d, 0, 2 * GRANULE, &l->chunk));
    STEP(d->ops->map(d, 0, l->va[0], 2 * GRANULE, l->chunk));
    STEP(d->ops->map(d, 0, l->va[0] + 2 * GRANULE, 2 * GRANULE, l->chunk));
    STEP(d->ops->set_access(d, 0, l->va[0], 4 * GRANULE));
    STEP(d->ops->map(d, 0, l->va[1], 2 * GRANULE, l->chunk));
    STEP(d->ops->raw_alloc(d, 0, 3 * GRANULE, &l->raw));
    *(volatile uint8_t *)l->va[0] = 1;
    *(volatile uint8_t *)l->raw = 1;
}

static void streams_come_and_wait(tide__device *d, life *l) {
    for (size_t i = 0; i < STREAMS; i++) {
        STEP(d->ops->stream_create(d, 0, &l->streams[i]));
        STEP(d->ops->event_create(d, 0, &l->events[i]));
    }
    STEP(tide__host_gate_create(d, 0, &l->gate));
    STEP(tide__host_hold(d, 0, l->streams[0], l->gate));
    STEP(d->ops->event_record(d, 0, l->events[0], l->streams[0]));
    for (size_t i = 1; i < STREAMS; i++) {
        STEP(d->ops->stream_wait_event(d, 0, l->streams[i], l->events[i - 1]));
        STEP(d->ops->event_record(d, 0, l->events[i], l->streams[i]));
    }
    STEP_GIVES(TIDE_NOT_READY, d->ops->event_query(d, 0, l->events[STREAMS - 1]));
    STEP_GIVES(TIDE_TIMEOUT, d->ops->event_wait(d, 0, l->events[STREAMS - 1], 0));
    STEP(tide__host_gate_open(d, 0, l->gate));
    STEP(d->ops->event_wait(d, 0, l->events[STREAMS - 1], UINT64_MAX));
    tide__host_set_lateness(d, 1, 1000);
    STEP(d->ops->event_record(d, 0, l->events[0], 0)); /* late, so an operation of its own */
    tide__host_set_lateness(d, 1, 0);
    STEP(tide__host_delay(d, 0, 0, 1000));
    STEP(tide__host_device_sync(d, 0));
}

static void all_is_given_back(tide__device *d, life *l) {
    for (size_t i = 0; i < STREAMS; i++) {
        STEP(d->ops->event_destroy(d, 0, l->events[i]));
        STEP(d->ops->stream_destroy(d, 0, l->streams[i]));
    }
    STEP(d->ops->unmap(d, 0, l->va[0], 2 * GRANULE));
    STEP(d->ops->chunk_release(d, 0, l->chunk));
    STEP(d->ops->unmap(d, 0, l->va[0] + 2 * GRANULE, 2 * GRANULE));
    STEP(d->ops->unmap(d, 0, l->va[1], 2 * GRANULE));
    STEP(d->ops->unreserve(d, 0, l->va[0], 4 * GRANULE));
    STEP(d->ops->unreserve(d, 0, l->va[1], 2 * GRANULE));
    STEP(d->ops->raw_free(d, 0, l->raw));
    assert_int_equal(free_bytes_of(d), CAPACITY);
    assert_int_equal(tide__host_resident_bytes(d, 0), 0);
}

static void a_host_that_refuses_changes_nothing(void **state) {
    unsigned long k = 0, before;
    do {
        tide__device *d = NULL;
        life l = {0};
        before = injected;
        left = ++k;
        STEP(tide__host_open(&(tide__host_options){.device_count = 2, .capacity_bytes = CAPACITY}, &d));
        memory_is_taken(d, &l);
        streams_come_and_wait(d, &l);
        all_is_given_back(d, &l);
        d->ops->close(d);
    } while (injected > before);
    print_message("    %lu failures\n", injected);
    assert_true(injected > 60);
}

static void a_fault_device_without_memory_is_refused(void **state) {
    tide__device *inner = NULL, *d = NULL;
    assert_ok(tide__host_open(NULL, &inner));
    left = 1;
    armed = true;
    tide_status status = tide__fault_open(inner, &d);
    armed = false;
    assert_int_equal(status, TIDE_NO_HOST_MEMORY);
    assert_null(d);
    inner->ops->close(inner); /* still the caller's */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_host_that_refuses_changes_nothing),
                                       cmocka_unit_test(a_fault_device_without_memory_is_refused)};
    return cmocka_run_group_tests_name("host device: a host that refuses", tests, NULL, NULL);
}
