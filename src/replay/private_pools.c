/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private_pools: an allocation at an address inside a private pool's segment
 * is the pool's, from the moment the segment was allocated. Extents of one
 * expandable segment are one range, since pages between them may have come and
 * gone. A private segment that was given back before the end is not known, and
 * its blocks are taken for the default pool's.
 */
#include "replay/private_pools.h"

#include <stdlib.h>

typedef struct range {
    uint64_t addr, end;
    size_t since; /* event */
    uint16_t pool, stream;
    bool is_large, is_expandable;
} range;

static int by_address(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static bool is_told(const tide__trace_gpu *gpu) {
    for (size_t i = 0; i < gpu->event_count; i++)
        if (gpu->events[i].pool != 0) return true;
    return false;
}

/* The private pools' segments by address, those of one expandable segment joined. */
static size_t list_ranges(const tide__trace_gpu *gpu, range *ranges) {
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        if (s->pool == 0) continue;
        ranges[count++] =
            (range){s->addr, s->addr + s->size, 0, s->pool, s->stream, s->is_large, s->is_expandable};
    }
    qsort(ranges, count, sizeof *ranges, by_address);
    for (size_t i = 0; i < count; i++) {
        range *r = &ranges[i], *last = kept > 0 ? &ranges[kept - 1] : NULL;
        if (last != NULL && r->is_expandable && last->is_expandable && r->pool == last->pool &&
            r->stream == last->stream && r->is_large == last->is_large)
            last->end = r->end;
        else
            ranges[kept++] = *r;
    }
    return kept;
}

static range *find_range(range *ranges, size_t count, uint64_t addr) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (ranges[mid].addr <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 && addr < ranges[low - 1].end ? &ranges[low - 1] : NULL;
}

static void find_since(const tide__trace_gpu *gpu, range *ranges, size_t count) {
    for (size_t i = 0; i < gpu->event_count; i++) {
        const tide__trace_event *e = &gpu->events[i];
        if (e->action != TIDE__ACTION_SEGMENT_ALLOC) continue;
        range *r = find_range(ranges, count, e->addr);
        if (r != NULL && !r->is_expandable) r->since = i;
    }
}

tide_status tide__schedule_find_pools(tide__schedule *s) {
    const tide__trace_gpu *gpu = s->gpu;
    if (gpu->pool_count < 2 || gpu->segment_count == 0 || is_told(gpu)) return TIDE_OK;
    range *ranges = calloc(gpu->segment_count, sizeof *ranges);
    if (ranges == NULL)
        return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the private pools");
    size_t count = list_ranges(gpu, ranges);
    find_since(gpu, ranges, count);
    for (size_t i = 0; i < s->op_count; i++) {
        tide__schedule_op *op = &s->ops[i];
        if (op->kind != TIDE__OP_ALLOC) continue;
        bool is_before = i < s->blocks_before_start;
        const range *r =
            find_range(ranges, count, is_before ? s->before[i].addr : gpu->events[op->event].addr);
        if (r == NULL || (is_before ? r->since > 0 : op->event < r->since)) continue;
        op->pool = r->pool;
        if (is_before) s->before[i].pool = r->pool;
    }
    free(ranges);
    return TIDE_OK;
}
