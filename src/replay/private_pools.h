/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private_pools: which allocations of a trace were a private pool's (a CUDA
 * graph's, a torch.cuda.MemPool's). PyTorch 2.11's trace entries do not say.
 * Its segments at the end do, and the addresses of those that are gone do
 * where PyTorch's rules leave no other explanation (recorded_heap.h).
 */
#ifndef TIDE_REPLAY_PRIVATE_POOLS_H
#define TIDE_REPLAY_PRIVATE_POOLS_H

#include "replay/schedule.h"

/* Sets the pool of allocations that lie in a private pool's segment, and the
 * schedule's pools; does nothing where the entries name pools themselves. */
tide_status tide__schedule_find_pools(tide__schedule *s);

/* The pool of a segment event. */
static inline uint16_t tide__schedule_event_pool(const tide__schedule *s, size_t event) {
    return s->event_pools != NULL ? s->event_pools[event] : s->gpu->events[event].pool;
}

#endif
