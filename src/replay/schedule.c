/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule: one pass over a GPU's events, with a map from each address seen to
 * the block that lies there or last lay there.
 *
 * Blocks freed without an alloc in the trace were live before its first event
 * (the ring had wrapped, or the recording began late); so were those that the
 * heap at the end has and no event explains. They get the first numbers and
 * are allocated at time 0. A run of segment_free or segment_unmap events is
 * one release, put before the event that follows.
 *
 * Which releases a limit explains is found by playing the recorded run's own
 * model through the schedule under that limit (explain.c).
 */
#include <stdlib.h>
#include <string.h>

#include "replay/explain.h"
#include "replay/private_pools.h"
#include "replay/recorded.h"
#include "replay/schedule.h"

#define DEAD (UINT64_C(1) << 63)      /* in the map: the block is gone */
#define BEFORE (UINT32_C(1) << 31)    /* in an op, while building: a number among those before the start */
#define REQUESTED (UINT64_C(1) << 63) /* in a size: free_requested was seen */

typedef struct builder {
    const tide__trace_gpu *gpu;
    tide__schedule *out;
    tide__map blocks;               /* address -> number, with DEAD or BEFORE */
    uint64_t *sizes, *before_sizes; /* of blocks by number, with REQUESTED */
    size_t op_cap, size_cap, before_cap, before_size_cap;
    uint32_t before_count, block_count;
    uint64_t live, live_before;
    uint64_t time_ns;
    uint32_t phase;
    bool in_release;
} builder;

static tide_status no_host_memory(void) {
    return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the schedule");
}

static tide_status corrupt(size_t event, const tide__trace_event *e, const char *what) {
    return tide__fail(TIDE_CORRUPT, "event %zu: %s of %#llx, %llu bytes: %s", event,
                      tide__action_name(e->action), (unsigned long long)e->addr, (unsigned long long)e->size,
                      what);
}

/* ---- Ops ---- */

static tide__schedule_op *add_op(builder *b, tide__op_kind kind, size_t event) {
    if (!tide__grow((void **)&b->out->ops, &b->op_cap, b->out->op_count + 1, sizeof *b->out->ops))
        return NULL;
    tide__schedule_op *op = &b->out->ops[b->out->op_count++];
    *op = (tide__schedule_op){
        .time_ns = b->time_ns,
        .event = (uint32_t)event,
        .phase = b->phase,
        .kind = (uint8_t)kind,
    };
    return op;
}

static tide_status add_block_op(builder *b, tide__op_kind kind, size_t event, const tide__trace_event *e,
                                uint32_t block) {
    tide__schedule_op *op = add_op(b, kind, event);
    if (op == NULL) return no_host_memory();
    op->block = block;
    op->size = e->size;
    op->stream = e->stream;
    op->pool = e->pool;
    return TIDE_OK;
}

/* The clock of a trace may step back a little (threads) or, in a bad one, anywhere. */
static void tell_time(builder *b, const tide__trace_event *e) {
    int64_t since;
    uint64_t ns;
    if (__builtin_sub_overflow(e->time_us, b->gpu->events[0].time_us, &since) || since < 0) return;
    if (__builtin_mul_overflow((uint64_t)since, UINT64_C(1000), &ns)) return;
    if (ns > b->time_ns) b->time_ns = ns;
}

/* ---- Events ---- */

static tide_status on_alloc(builder *b, size_t event, const tide__trace_event *e) {
    uint64_t number;
    if (e->size >= TIDE__MAX_TRACE_BYTES) return corrupt(event, e, "a size that cannot be");
    if (tide__map_get(&b->blocks, e->addr, &number) && !(number & DEAD))
        return corrupt(event, e, "the block there has not been freed");
    b->live += e->size;
    if (b->live >= TIDE__MAX_TRACE_BYTES) return corrupt(event, e, "more live bytes than can be");
    uint32_t block = b->block_count++;
    if (!tide__grow((void **)&b->sizes, &b->size_cap, b->block_count, sizeof *b->sizes) ||
        !tide__map_put(&b->blocks, e->addr, block))
        return no_host_memory();
    b->sizes[block] = e->size;
    b->out->allocations++;
    return add_block_op(b, TIDE__OP_ALLOC, event, e, block);
}

static tide_status add_before(builder *b, const tide__before_block *block) {
    uint32_t index = b->before_count++;
    if (!tide__grow((void **)&b->out->before, &b->before_cap, b->before_count, sizeof *b->out->before) ||
        !tide__grow((void **)&b->before_sizes, &b->before_size_cap, b->before_count,
                    sizeof *b->before_sizes) ||
        !tide__map_put(&b->blocks, block->addr, index | BEFORE))
        return no_host_memory();
    b->out->before[index] = *block;
    b->before_sizes[index] = block->size;
    b->live_before += block->size;
    if (block->size >= TIDE__MAX_TRACE_BYTES || b->live_before >= TIDE__MAX_TRACE_BYTES)
        return tide__fail(TIDE_CORRUPT, "the blocks from before the first event have more bytes than can be");
    return TIDE_OK;
}

/* Finds the block that is freed; one that the trace never allocated was there before the start. */
static tide_status find_freed(builder *b, size_t event, const tide__trace_event *e, uint64_t *number) {
    if (!tide__map_get(&b->blocks, e->addr, number)) {
        if (e->size == 0) {
            b->out->unknown_frees++;
            *number = DEAD;
            return TIDE_OK;
        }
        if (e->size >= TIDE__MAX_TRACE_BYTES) return corrupt(event, e, "a size that cannot be");
        tide__before_block block = {e->addr, e->size, e->stream, e->pool};
        *number = b->before_count | BEFORE;
        return add_before(b, &block);
    }
    return *number & DEAD ? corrupt(event, e, "the block there has been freed before") : TIDE_OK;
}

static tide_status on_free(builder *b, size_t event, const tide__trace_event *e) {
    uint64_t number;
    tide_status status = find_freed(b, event, e, &number);
    if (status != TIDE_OK || (number & DEAD)) return status;
    uint32_t block = (uint32_t)number;
    uint64_t *size = block & BEFORE ? &b->before_sizes[block & ~BEFORE] : &b->sizes[block];
    if (e->action == TIDE__ACTION_FREE_REQUESTED) {
        if (*size & REQUESTED) return corrupt(event, e, "the block there has been freed before");
        *size |= REQUESTED;
        return add_block_op(b, TIDE__OP_FREE_REQUESTED, event, e, block);
    }
    if (!tide__map_put(&b->blocks, e->addr, number | DEAD)) return no_host_memory();
    if (!(block & BEFORE)) b->live -= *size & ~REQUESTED;
    return add_block_op(b, TIDE__OP_FREE, event, e, block);
}

static tide_status on_release(builder *b, size_t event) {
    if (!b->in_release && add_op(b, TIDE__OP_RELEASE, event) == NULL) return no_host_memory();
    b->in_release = true;
    tide__schedule_op *op = &b->out->ops[b->out->op_count - 1];
    op->run_events = (uint32_t)(event + 1 - op->event);
    return TIDE_OK;
}

/* A refused request has a number too, so that a policy can be asked for it. */
static tide_status on_oom(builder *b, size_t event, const tide__trace_event *e) {
    if (e->size >= TIDE__MAX_TRACE_BYTES) return corrupt(event, e, "a size that cannot be");
    uint32_t block = b->block_count++;
    if (!tide__grow((void **)&b->sizes, &b->size_cap, b->block_count, sizeof *b->sizes))
        return no_host_memory();
    b->sizes[block] = e->size;
    return add_block_op(b, TIDE__OP_OOM, event, e, block);
}

static tide_status on_event(builder *b, size_t event) {
    const tide__trace_event *e = &b->gpu->events[event];
    tell_time(b, e);
    if (e->has_phase) b->phase = e->phase;
    if (tide__event_is_release(e)) return on_release(b, event);
    switch (e->action) {
    case TIDE__ACTION_ALLOC: b->in_release = false; return on_alloc(b, event, e);
    case TIDE__ACTION_FREE_REQUESTED:
    case TIDE__ACTION_FREE_COMPLETED: b->in_release = false; return on_free(b, event, e);
    case TIDE__ACTION_OOM: b->in_release = false; return on_oom(b, event, e);
    case TIDE__ACTION_SEGMENT_ALLOC:
    case TIDE__ACTION_SEGMENT_MAP: b->in_release = false; return TIDE_OK;
    default: return TIDE_OK;
    }
}

/* Blocks that the heap has at the end and no event tells of were there all along. */
static tide_status add_survivors(builder *b) {
    const tide__trace_gpu *gpu = b->gpu;
    for (size_t i = 0; i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        for (size_t k = 0; k < s->block_count; k++) {
            const tide__trace_block *t = &gpu->blocks[s->first_block + k];
            uint64_t number, size = t->requested_size != 0 ? t->requested_size : t->size;
            if (t->state == TIDE__BLOCK_INACTIVE || size == 0 || tide__map_get(&b->blocks, t->addr, &number))
                continue;
            tide__before_block block = {t->addr, size, s->stream, s->pool};
            tide_status status = add_before(b, &block);
            if (status != TIDE_OK) return status;
        }
    }
    return TIDE_OK;
}

/* Gives the blocks from before the start the first numbers, and allocates them first of all. */
static tide_status prepend_before(builder *b) {
    tide__schedule *s = b->out;
    size_t n = b->before_count;
    if (n + b->block_count >= BEFORE) return tide__fail(TIDE_CORRUPT, "more blocks than can be replayed");
    if (!tide__grow((void **)&s->ops, &b->op_cap, s->op_count + n, sizeof *s->ops)) return no_host_memory();
    if (n > 0) memmove(s->ops + n, s->ops, s->op_count * sizeof *s->ops);
    for (size_t i = 0; i < n; i++) {
        const tide__before_block *block = &s->before[i];
        s->ops[i] = (tide__schedule_op){.size = block->size,
                                        .block = (uint32_t)i,
                                        .stream = block->stream,
                                        .pool = block->pool,
                                        .kind = TIDE__OP_ALLOC};
    }
    s->op_count += n;
    for (size_t i = n; n > 0 && i < s->op_count; i++) {
        tide__schedule_op *op = &s->ops[i];
        if (op->kind == TIDE__OP_RELEASE) continue;
        op->block = op->block & BEFORE ? op->block & ~BEFORE : op->block + (uint32_t)n;
    }
    s->blocks_before_start = (uint32_t)n;
    s->block_count = (uint32_t)n + b->block_count;
    return TIDE_OK;
}

/* Frees carry the size of the block they free, whatever their events said. */
static void finish(builder *b) {
    tide__schedule *s = b->out;
    uint64_t live = 0, refused = 0; /* refused: the most with a request that was */
    for (size_t i = 0; i < s->op_count; i++) {
        tide__schedule_op *op = &s->ops[i];
        if (op->kind == TIDE__OP_ALLOC) {
            live += op->size;
            s->peak_live_recorded = tide__max(s->peak_live_recorded, live);
        } else if (op->kind == TIDE__OP_OOM) {
            refused = tide__max(refused, live + op->size);
        } else if (op->kind <= TIDE__OP_FREE) {
            uint32_t n = s->blocks_before_start;
            op->size = (op->block < n ? b->before_sizes[op->block] : b->sizes[op->block - n]) & ~REQUESTED;
            if (op->kind == TIDE__OP_FREE) live -= op->size;
        }
    }
    s->peak_live = s->asks_refused ? tide__max(s->peak_live_recorded, refused) : s->peak_live_recorded;
    s->trace_seconds = (double)b->time_ns / 1e9;
}

static tide_status build(builder *b) {
    tide__schedule *s = b->out;
    size_t count = b->gpu->event_count;
    if (count >= BEFORE) return tide__fail(TIDE_CORRUPT, "more events than can be replayed");
    if (!tide__grow((void **)&s->ops, &b->op_cap, count, sizeof *s->ops)) return no_host_memory();
    tide_status status = TIDE_OK;
    for (size_t i = 0; status == TIDE_OK && i < count; i++) status = on_event(b, i);
    if (status == TIDE_OK) status = add_survivors(b);
    if (status == TIDE_OK) status = prepend_before(b);
    if (status == TIDE_OK) finish(b);
    return status;
}

tide_status tide__schedule_make(const tide__trace *trace, const tide__trace_gpu *gpu, uint64_t limit_bytes,
                                tide__schedule *out) {
    *out = (tide__schedule){
        .trace = trace, .gpu = gpu, .pool_count = gpu->pool_count, .asks_refused = limit_bytes != 0};
    builder b = {.gpu = gpu, .out = out};
    tide_status status = build(&b);
    tide__map_free(&b.blocks);
    free(b.sizes);
    free(b.before_sizes);
    if (status == TIDE_OK) status = tide__schedule_find_pools(out);
    if (status == TIDE_OK && limit_bytes != 0) status = tide__schedule_explain(out, limit_bytes);
    if (status != TIDE_OK) tide__schedule_free(out);
    return status;
}

void tide__schedule_free(tide__schedule *s) {
    free(s->ops);
    free(s->before);
    free(s->event_pools);
    free(s->unsplit_pools);
    *s = (tide__schedule){0};
}
