/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of heap and chunk share. */
#ifndef TIDE_HEAP_TEST_H
#define TIDE_HEAP_TEST_H

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

#define GRANULE (2 * TIDE__MIB)
#define MS UINT64_C(1000000)

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

static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A sim that fails when told to. */
static inline tide__device *open_sim(uint64_t capacity, uint64_t delay_ns) {
    tide__device *sim = NULL, *d = NULL;
    assert_ok(
        tide__sim_open(&(tide__sim_options){.capacity_bytes = capacity, .event_delay_ns = delay_ns}, &sim));
    assert_ok(tide__fault_open(sim, &d));
    return d;
}

static inline void set_time(tide__device *d, uint64_t ns) {
    tide__sim_set_trace_time(tide__fault_inner(d), ns);
}

static inline uint64_t used_bytes(tide__device *d) {
    uint64_t free_bytes = 0, total_bytes = 0;
    assert_ok(d->ops->mem_info(d, 0, &free_bytes, &total_bytes));
    return total_bytes - free_bytes;
}

#endif
