/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock: a mutex of four bytes whose uncontended path is inlined: one atomic
 * exchange each way, which is what a hit of the allocator can afford. A waiter
 * sleeps in the kernel; an unlock wakes one only where one may sleep.
 *
 * value: 0 free, 1 held, 2 held and somebody may sleep.
 */
#ifndef TIDE_LOCK_H
#define TIDE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tide__lock {
    _Atomic(uint32_t) value;
} tide__lock;

void tide__lock_wait(tide__lock *l);
void tide__lock_wake(tide__lock *l);

static inline void tide__lock_init(tide__lock *l) { atomic_init(&l->value, 0); }

static inline bool tide__lock_try(tide__lock *l) {
    uint32_t free_value = 0;
    return atomic_compare_exchange_strong_explicit(&l->value, &free_value, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static inline void tide__lock_take(tide__lock *l) {
    if (__builtin_expect(!tide__lock_try(l), 0)) {
        tide__lock_wait(l);
    }
}

static inline void tide__lock_drop(tide__lock *l) {
    if (__builtin_expect(atomic_exchange_explicit(&l->value, 0, memory_order_release) == 2, 0)) {
        tide__lock_wake(l);
    }
}

#endif
