/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock: a small mutex whose uncontended path is inlined: one atomic exchange to
 * take it and a plain store to drop it, which is what a hit of the allocator can
 * afford. A waiter sleeps in the kernel; a drop wakes one only where one waits.
 *
 * value: 0 free, 1 held. waiters: who waits, beyond a short spin.
 *
 * A drop stores the value and then reads waiters, and the processor may do the
 * second first. So the waiter, which is about to lose much more time than that,
 * makes sure: having raised `waiters` it has the kernel run a memory barrier on
 * every thread of the process before it looks at the value for the last time. A
 * drop whose store that look misses has yet to read waiters, and finds it raised.
 *
 * A lock must outlive every drop of it: a drop reads it after others may take it.
 */
#ifndef TIDE_LOCK_H
#define TIDE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tide__lock {
    _Atomic(uint32_t) value, waiters;
} tide__lock;

void tide__lock_wait(tide__lock *l);
void tide__lock_wake(tide__lock *l);

static inline void tide__lock_init(tide__lock *l) {
    atomic_init(&l->value, 0);
    atomic_init(&l->waiters, 0);
}

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
    atomic_store_explicit(&l->value, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order; for the processor see above */
    if (__builtin_expect(atomic_load_explicit(&l->waiters, memory_order_relaxed) != 0, 0)) {
        tide__lock_wake(l);
    }
}

#endif
