/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture: an allocator over a watching, failing sim or host device, and the
 * calls that tests make all the time, on device 0 unless they say otherwise.
 *
 * Where PAGETIDE_TEST_STANDIN is set, what runs on host runs on the cuda device,
 * whose driver is the stand-in over that host device; what fails then fails in the
 * driver.
 */
#ifndef TIDE_TEST_FIXTURE_H
#define TIDE_TEST_FIXTURE_H

#include "engine_test.h"
#include "standin/use.h"
#include "watch.h"

typedef struct fixture {
    tide_allocator *a;
    watch *w;
    tide__device *fault, *inner;
    bool standin;    /* the cuda device is between the watching device and `fault` */
    watch_left left; /* filled by close */
    bool host;
} fixture;

typedef struct fixture_options {
    bool host;
    int devices;
    uint64_t capacity, limit, delay, oom_wait; /* 0: 1 GiB, none, 0, the allocator's */
    tide_cross_stream mode;                    /* DEFAULT: idle */
    const tide__tuning *tuning;
} fixture_options;

static inline fixture *open_fixture(const fixture_options *options) {
    fixture_options o = *options;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    o.capacity = o.capacity != 0 ? o.capacity : TIDE__GIB;
    o.mode = o.mode != TIDE_CROSS_STREAM_DEFAULT ? o.mode : TIDE_CROSS_STREAM_IDLE;
    f->host = o.host;
    if (o.host) {
        assert_ok(tide__host_open(
            &(tide__host_options){.device_count = o.devices, .capacity_bytes = o.capacity}, &f->inner));
    } else {
        assert_ok(tide__sim_open(&(tide__sim_options){.device_count = o.devices,
                                                      .capacity_bytes = o.capacity,
                                                      .event_delay_ns = o.delay},
                                 &f->inner));
    }
    assert_ok(tide__fault_open(f->inner, &f->fault));
    tide__device *device = o.host ? standin_between(f->fault) : f->fault;
    assert_non_null(device);
    f->w = watch_open(device, o.mode, &f->left);
    tide_open_options open = {.struct_size = sizeof open,
                              .cross_stream = o.mode,
                              .limit_bytes = o.limit,
                              .oom_wait_ns = o.oom_wait};
    assert_ok(tide__open_on(&f->w->base, &open, o.tuning, &f->a));
    return f;
}

/* Nothing was found wrong, the invariants hold, and nothing is left after close. */
static inline void close_fixture(fixture *f) {
    tide__fault_disarm(f->fault);
    tide__allocator_validate(f->a);
    assert_string_equal(f->w->trouble, "");
    for (int i = 0; f->host && i < f->inner->ops->count(f->inner); i++) {
        assert_ok(tide__host_device_sync(f->inner, i));
    }
    assert_ok(tide_close(f->a));
    if (f->host) {
        assert_string_equal(standin_end(f->fault), "");
    }
    assert_true(f->left.closed);
    assert_int_equal(f->left.chunks + f->left.mappings + f->left.reservations + f->left.events, 0);
    free(f);
}

/* Through these the watching device knows what callers hold. */
static inline tide_status try_alloc(fixture *f, int device, uint64_t size, tide_stream stream, tide_pool pool,
                                    void **out) {
    tide_status status = tide_alloc(f->a, device, size, stream, pool, out);
    if (status == TIDE_OK) {
        watch_took(f->w, device, (uintptr_t)*out, tide__align_up(size, 512), watch_slot(f->w, device, stream),
                   pool);
        assert_string_equal(f->w->trouble, "");
    }
    return status;
}

static inline void *alloc_on(fixture *f, uint64_t size, tide_stream stream) {
    void *ptr = NULL;
    assert_ok(try_alloc(f, 0, size, stream, TIDE_POOL_DEFAULT, &ptr));
    return ptr;
}

static inline void *alloc_in(fixture *f, uint64_t size, tide_pool pool) {
    void *ptr = NULL;
    assert_ok(try_alloc(f, 0, size, 0, pool, &ptr));
    return ptr;
}

static inline tide_status try_alloc_at(fixture *f, uint64_t size, tide_stream stream, void *at) {
    tide_status status = tide_alloc_at(f->a, 0, size, stream, TIDE_POOL_DEFAULT, at);
    if (status == TIDE_OK) {
        watch_took(f->w, 0, (uintptr_t)at, tide__align_up(size, 512), watch_slot(f->w, 0, stream),
                   TIDE_POOL_DEFAULT);
        assert_string_equal(f->w->trouble, "");
    }
    return status;
}

static inline void give(fixture *f, int device, void *ptr) {
    watch_freed(f->w, device, (uintptr_t)ptr);
    assert_ok(tide_free(f->a, ptr));
}

static inline void free_block(fixture *f, void *ptr) { give(f, 0, ptr); }

static inline tide_stream new_stream(fixture *f) {
    tide_stream stream = 0;
    assert_ok(tide_stream_create(f->a, 0, &stream));
    return stream;
}

static inline tide_stats stats_of(fixture *f, int device) {
    tide_stats s = {.struct_size = sizeof s};
    assert_ok(tide_stats_get(f->a, device, &s));
    return s;
}

static inline tide_trim_result trim(fixture *f, uint64_t bytes, uint64_t wait_ns) {
    tide_trim_options options = {.struct_size = sizeof options, .bytes = bytes, .wait_ns = wait_ns};
    tide_trim_result result = {.struct_size = sizeof result};
    assert_ok(tide_trim(f->a, 0, &options, &result));
    assert_string_equal(f->w->trouble, "");
    return result;
}

static inline uint64_t used_bytes(fixture *f, int device) {
    uint64_t free_bytes = 0, total_bytes = 0;
    assert_ok(f->inner->ops->mem_info(f->inner, device, &free_bytes, &total_bytes));
    return total_bytes - free_bytes;
}

#endif
