/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting half of the lock: a short spin, since what it guards is short,
 * then a futex. */
#include "base/lock.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS 100

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A barrier on every thread of the process. The first in a process has to announce
 * itself. False where the kernel is too old or a sandbox refuses. */
static bool barrier_everywhere(void) {
    return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0 ||
           (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
            syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
}

void tide__lock_wait(tide__lock *l) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&l->value, memory_order_relaxed) == 0 && tide__lock_try(l)) {
            return;
        }
        relax();
    }
    /* Without the barrier a drop may miss the waiter, which then looks again by itself. */
    static const struct timespec soon = {.tv_nsec = 1000000};
    atomic_fetch_add(&l->waiters, 1);
    const struct timespec *bound = barrier_everywhere() ? NULL : &soon;
    while (!tide__lock_try(l)) {
        syscall(SYS_futex, &l->value, FUTEX_WAIT_PRIVATE, 1, bound, NULL, 0);
    }
    atomic_fetch_sub(&l->waiters, 1);
}

void tide__lock_wake(tide__lock *l) { syscall(SYS_futex, &l->value, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }
