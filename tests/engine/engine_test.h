/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the engine share: assertions on statuses, random numbers
 * that are the same everywhere, and how many seeds to run.
 *
 * cmocka's assertions leave by longjmp, so they are for the main thread only.
 */
#ifndef TIDE_ENGINE_TEST_H
#define TIDE_ENGINE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "allocator.h"
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
                    tide_status_name(want), have == TIDE_OK ? "" : tide_last_error());
        _fail(file, line);
    }
}

static inline uint64_t next_random(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The number in the environment variable `name`, else `usual`. */
static inline uint64_t setting(const char *name, uint64_t usual) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : usual;
}

/* Sanitizers make everything several times slower: fewer rounds there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_BUILD 1
#else
#define SLOW_BUILD 0
#endif

/* How many seeds a random test runs: PAGETIDE_TEST_SEEDS in per cent of the usual number. */
static inline uint64_t seeds_to_run(uint64_t usual, uint64_t under_sanitizers) {
    uint64_t count = (SLOW_BUILD ? under_sanitizers : usual) * setting("PAGETIDE_TEST_SEEDS", 100) / 100;
    return count > 0 ? count : 1;
}

#endif
