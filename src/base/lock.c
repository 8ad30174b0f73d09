/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting half of the lock: a short spin, since what it guards is short,
 * then a futex. */
#include "base/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 100

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void tide__lock_wait(tide__lock *l) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&l->value, memory_order_relaxed) == 0 && tide__lock_try(l)) {
            return;
        }
        relax();
    }
    /* From here on the value says that somebody may sleep, also while this
     * thread holds the lock: its unlock then wakes the next. */
    while (atomic_exchange_explicit(&l->value, 2, memory_order_acquire) != 0) {
        syscall(SYS_futex, &l->value, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    }
}

void tide__lock_wake(tide__lock *l) { syscall(SYS_futex, &l->value, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }
