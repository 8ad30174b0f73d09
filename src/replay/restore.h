/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore: the recorded allocator's heap as it was before the first event, for
 * recordings that began late or whose ring wrapped.
 *
 * The segments then are those at the end, with all segment events undone; the
 * used blocks in them are the schedule's blocks from before the start. What a
 * trace cannot tell is how much longer than its request a block of the native
 * allocator's large pool was, if it was freed later and free bytes followed it.
 */
#ifndef TIDE_REPLAY_RESTORE_H
#define TIDE_REPLAY_RESTORE_H

#include "replay/recorded.h"
#include "replay/schedule.h"
#include "replay/torch_heap.h"

typedef enum tide__restored {
    TIDE__RESTORED_NOTHING, /* nothing was there before */
    TIDE__RESTORED_EXACTLY,
    TIDE__RESTORED_UNSURELY, /* a block's length was guessed */
    TIDE__RESTORED_NOT,      /* the trace does not tell, or contradicts itself; the heap is of no use then */
} tide__restored;

/* Fills an empty heap of the recorded kind; blocks gets those from before the start, by number. */
tide_status tide__torch_restore(tide__torch_heap *h, const tide__schedule *s, tide__torch_block **blocks,
                                tide__restored *out);

#endif
