/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base: what every room above uses. Errors, host memory, small containers,
 * the clock, and the way bytes are printed. Uses nothing of pagetide but the
 * public header's status codes.
 */
#ifndef TIDE_BASE_H
#define TIDE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pagetide/pagetide.h"

#define TIDE__KIB ((uint64_t)1 << 10)
#define TIDE__MIB ((uint64_t)1 << 20)
#define TIDE__GIB ((uint64_t)1 << 30)

#define TIDE__LIKELY(x) __builtin_expect(!!(x), 1)
#define TIDE__UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- Errors ---- */

/* Sets the thread's message and has the value of status, so that a failure is
 * one statement: return tide__fail(TIDE_IO, "%s: %s", path, strerror(errno)).
 * A macro, so that the compiler sees the status and knows it is not TIDE_OK;
 * status is evaluated twice. */
#define tide__fail(status, ...) (tide__set_error(__VA_ARGS__), tide__same_status(status))
static inline tide_status tide__same_status(tide_status status) { return status; }
void tide__set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts "context: " before the thread's message; returns status. */
tide_status tide__fail_context(tide_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An invariant of pagetide's own, kept in release builds: prints and aborts. */
#define TIDE__CHECK(cond) (TIDE__LIKELY(cond) ? (void)0 : tide__check_failed(#cond, __FILE__, __LINE__))
_Noreturn void tide__check_failed(const char *cond, const char *file, int line);

/* The same for debug builds only, where the check costs too much for a hot path. */
#ifdef NDEBUG
#define TIDE__ASSERT(cond) ((void)sizeof(cond))
#else
#define TIDE__ASSERT(cond) TIDE__CHECK(cond)
#endif

/* ---- Host memory ---- */

/* Growable arrays: makes room for `need` elements, doubling; keeps the old
 * array on failure. Usage: if (!tide__grow((void **)&v, &cap, n + 1, sizeof *v)) */
bool tide__grow(void **array, size_t *capacity, size_t need, size_t element_bytes)
    __attribute__((warn_unused_result));

/* a*b and a+b in size_t; false on overflow. */
static inline bool tide__mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tide__add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

static inline uint64_t tide__align_up(uint64_t v, uint64_t align) { return (v + align - 1) & ~(align - 1); }
static inline uint64_t tide__align_down(uint64_t v, uint64_t align) { return v & ~(align - 1); }
static inline int tide__log2_floor(uint64_t v) { return 63 - __builtin_clzll(v); }
static inline uint64_t tide__min(uint64_t a, uint64_t b) { return a < b ? a : b; }
/* UINT64_MAX where the sum does not fit: a deadline without bound stays one. */
static inline uint64_t tide__add_saturated(uint64_t a, uint64_t b) {
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}
static inline uint64_t tide__max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- A map from u64 to u64: open addressing, linear probing, no tombstones
 * (removal shifts back). Any key. Zero-initialised is empty. ---- */
typedef struct tide__map {
    struct tide__map_slot {
        uint64_t key, value;
    } * slots;
    uint8_t *used;
    size_t capacity, count;
} tide__map;

void tide__map_free(tide__map *m);
/* Inserts or replaces; false when the host is out of memory (map unchanged). */
bool tide__map_put(tide__map *m, uint64_t key, uint64_t value) __attribute__((warn_unused_result));
bool tide__map_get(const tide__map *m, uint64_t key, uint64_t *value);
/* Removes; false if it was not there. value may be NULL. */
bool tide__map_take(tide__map *m, uint64_t key, uint64_t *value);

/* ---- Clock and text ---- */

uint64_t tide__monotonic_ns(void);

/* "37.63 GiB" into buf; returns buf. */
#define TIDE__BYTES_TEXT 24
const char *tide__format_bytes(uint64_t bytes, char buf[TIDE__BYTES_TEXT]);

/* "40GiB", "512M", "18463515279"; decimal suffixes K M G T mean 1024; false if
 * not a size or too large. */
bool tide__parse_bytes(const char *text, uint64_t *out);

#endif
