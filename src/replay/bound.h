/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound: what any allocator that never waits has to reserve for a schedule.
 *
 * It assumes an allocator without fragmentation or rounding, whose streams use
 * their own freed bytes again at once, and that may give a stream's freed
 * bytes to another only once the GPU is known to have passed the free, which
 * is event_delay after it. Nothing that keeps those rules without waiting can
 * stay below; at a delay of 0 the bound is the peak of live bytes.
 *
 * Moments of release need no care: what is given back is what is free to all,
 * so it lowers what is reserved until somebody needs it again and never
 * changes the peak, which is what the bound is.
 */
#ifndef TIDE_REPLAY_BOUND_H
#define TIDE_REPLAY_BOUND_H

#include "replay/schedule.h"

tide_status tide__bound_reserved(const tide__schedule *s, uint64_t event_delay_ns, uint64_t *out);

#endif
