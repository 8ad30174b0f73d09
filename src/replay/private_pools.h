/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private_pools: which allocations of a trace were a private pool's (a CUDA
 * graph's, a torch.cuda.MemPool's). PyTorch 2.11's trace entries do not say;
 * its segments at the end do.
 */
#ifndef TIDE_REPLAY_PRIVATE_POOLS_H
#define TIDE_REPLAY_PRIVATE_POOLS_H

#include "replay/schedule.h"

/* Sets the pool of allocations that lie in a private pool's segment; does
 * nothing where the entries name pools themselves. */
tide_status tide__schedule_find_pools(tide__schedule *s);

#endif
