/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the device tests share: names for the table's calls on GPU 0 of the
 * device under test, and a shorthand for what must succeed.
 *
 * cmocka's assertions leave by longjmp, so they are for the main thread only:
 * other threads count, the main thread asserts.
 */
#ifndef TIDE_DEVICE_TEST_H
#define TIDE_DEVICE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device.h"
#include "device/fault.h"
#include "device/host.h"

#define GRANULE (2 * TIDE__MIB)

#define assert_ok(expression) assert_status((expression), TIDE_OK, #expression, __FILE__, __LINE__)
#define assert_fails(status, expression) \
    assert_status((expression), (status), #expression, __FILE__, __LINE__)

static inline void assert_status(tide_status have, tide_status want, const char *what, const char *file,
                                 int line) {
    if (have != want) {
        print_error("%s:%d: %s is %s, not %s: %s\n", file, line, what, tide_status_name(have),
                    tide_status_name(want), tide_last_error());
        _fail(file, line);
    }
}

static inline uint64_t free_bytes_of(tide__device *d) {
    uint64_t free_bytes = 0, total_bytes = 0;
    assert_ok(d->ops->mem_info(d, 0, &free_bytes, &total_bytes));
    return free_bytes;
}

static inline uint64_t reserve(tide__device *d, uint64_t size) {
    uint64_t va = 0;
    assert_ok(d->ops->reserve(d, 0, size, 0, 0, &va));
    return va;
}

static inline tide__chunk_handle chunk_of(tide__device *d, uint64_t size) {
    tide__chunk_handle chunk = 0;
    assert_ok(d->ops->chunk_create(d, 0, size, &chunk));
    return chunk;
}

static inline void map_at(tide__device *d, uint64_t va, uint64_t size, tide__chunk_handle chunk) {
    assert_ok(d->ops->map(d, 0, va, size, chunk));
    assert_ok(d->ops->set_access(d, 0, va, size));
}

/* A small generator: the same numbers for a seed everywhere. */
static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

#endif
