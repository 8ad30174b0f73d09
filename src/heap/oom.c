/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said when nothing more can be done: who holds the device, and what
 * would help here.
 */
#include <stdio.h>

#include "heap/plan.h"

typedef struct holders {
    uint64_t wanted, live, reserved, limit;
    uint64_t pinned, pending, graph, spare; /* of what is reserved and not live */
    uint64_t others, free, total;           /* of the device; total 0: it does not say */
} holders;

static holders find_holders(tide__core *c, uint64_t wanted) {
    tide_trim_result kept = {0};
    holders h = {.wanted = wanted, .live = tide__core_live_bytes(c), .limit = c->chunks.limit_bytes};
    tide__core_count_free(c, &kept);
    h.reserved = atomic_load(&c->chunks.reserved_bytes);
    h.pinned = kept.pinned_bytes;
    h.pending = kept.pending_bytes;
    h.graph = kept.graph_bytes;
    uint64_t named = h.live + h.pinned + h.pending + h.graph;
    h.spare = h.reserved - tide__min(named, h.reserved);
    if (c->device->ops->mem_info(c->device, c->gpu, &h.free, &h.total) == TIDE_OK) {
        h.others = h.total - tide__min(h.total, h.free + h.reserved);
    } else {
        h.total = 0;
    }
    return h;
}

/* The first of these that is large enough to matter. */
static const char *advice(const tide__core *c, const holders *h, tide_status refused) {
    if (refused == TIDE_LIMIT) {
        return c->chunks.margin_bytes != 0
                   ? "a limit or the margin for others refuses it, not the device: tide_limits_set, or free "
                     "blocks"
                   : "the limit refuses it, not the device: raise limit_bytes, or free blocks";
    }
    if (h->wanted + h->live > h->total && h->total != 0) {
        return "blocks in use and this one are more than the device: free some first";
    }
    if (c->epochs.captures > 0 && h->pending > 0) {
        return "a stream is being captured, so that queued work could not be waited for";
    }
    if (h->others >= h->wanted) {
        return "most is held by other processes, or by CUDA memory of this one that is not pagetide's";
    }
    if (h->pending >= h->wanted) {
        return "queued work still uses what was freed: a larger oom_wait_ns waits longer";
    }
    if (h->graph >= h->wanted) {
        return "graphs' pools keep theirs until tide_pool_release";
    }
    if (c->no_moves || c->no_unmaps) {
        return "chunks may not move: PAGETIDE_MOVES or PAGETIDE_UNMAP is set";
    }
    return "free blocks, or make the request smaller";
}

tide_status tide__oom_tell(tide__core *c, tide_status refused, uint64_t wanted, const char *reason) {
    holders h = find_holders(c, wanted);
    char device[160] = "", limit[64] = "", b[7][TIDE__BYTES_TEXT];
    if (h.total != 0) {
        snprintf(device, sizeof device, "; others hold %s, and %s of the device's %s are free",
                 tide__format_bytes(h.others, b[0]), tide__format_bytes(h.free, b[1]),
                 tide__format_bytes(h.total, b[2]));
    }
    if (h.limit != 0) {
        snprintf(limit, sizeof limit, " of its limit of %s", tide__format_bytes(h.limit, b[0]));
    }
    return tide__fail(
        refused,
        "device %d: %s asked for. pagetide holds %s%s: %s in use, %s free beside blocks in use, "
        "%s freed but maybe used by queued work, %s of graphs' pools, %s idle%s. What would "
        "help: %s. (%s)",
        c->gpu, tide__format_bytes(wanted, b[0]), tide__format_bytes(h.reserved, b[1]), limit,
        tide__format_bytes(h.live, b[2]), tide__format_bytes(h.pinned, b[3]),
        tide__format_bytes(h.pending, b[4]), tide__format_bytes(h.graph, b[5]),
        tide__format_bytes(h.spare, b[6]), device, advice(c, &h, refused), reason);
}
