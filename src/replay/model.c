/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: joins a schedule's ops to a torch_heap.
 *
 * Where the model is of the allocator that was recorded, it is told what no
 * trace holds otherwise: the address that the driver chose for a new segment
 * (from the segment event just before the alloc), and the moments of release.
 * A release tells by the number of its segment events, too, which kind it was
 * where settings allow several: garbage collection, oversize blocks given back
 * to make room, or everything. A limit acts as PyTorch's memory fraction does.
 */
#include <stdlib.h>

#include "replay/model.h"
#include "replay/private_pools.h"

#define NOT_PLACED NULL

typedef struct model {
    tide__policy base;
    const tide__schedule *schedule;
    tide__device *device;
    tide__torch_heap heap;
    tide__torch_block **blocks; /* by the schedule's number */
    bool is_recorded;           /* the recorded run's allocator was of this kind */
    bool restored;              /* the heap began as the recorded run's was */
} model;

static model *self(tide__policy *p) { return (model *)p; }

/* ---- Ops ---- */

static tide_status model_alloc(tide__policy *p, const tide__schedule_op *op) {
    model *m = self(p);
    tide__torch_block *b = NULL;
    if (m->restored && op->block < m->schedule->blocks_before_start) return TIDE_OK;
    m->heap.hint =
        m->is_recorded && op->kind == TIDE__OP_ALLOC ? tide__recorded_hint(m->schedule->gpu, op->event) : 0;
    tide_status status = tide__torch_heap_alloc(&m->heap, op->size, op->stream, op->pool, &b);
    if (status != TIDE_OK) return status;
    b->owner = op->block;
    m->blocks[op->block] = b;
    return TIDE_OK;
}

static tide_status model_free_requested(tide__policy *p, const tide__schedule_op *op) {
    model *m = self(p);
    if (m->blocks[op->block] != NOT_PLACED) tide__torch_heap_free_requested(&m->heap, m->blocks[op->block]);
    return TIDE_OK;
}

static tide_status model_free(tide__policy *p, const tide__schedule_op *op) {
    model *m = self(p);
    if (m->blocks[op->block] != NOT_PLACED) tide__torch_heap_free(&m->heap, m->blocks[op->block]);
    m->blocks[op->block] = NOT_PLACED;
    return TIDE_OK;
}

/* A retry waited for the block: its free_completed will find nothing to do. */
static void forget(void *user, uint32_t owner) { ((model *)user)->blocks[owner] = NOT_PLACED; }

/* ---- Releases ---- */

/* How many segments the pool lost in the run of events. */
static uint64_t run_of_pool(const model *m, const tide__schedule_op *op, uint16_t pool) {
    const tide__trace_event *events = m->schedule->gpu->events + op->event;
    uint64_t count = 0;
    for (uint32_t i = 0; i < op->run_events; i++)
        count += tide__event_is_release(&events[i]) &&
                 tide__schedule_event_pool(m->schedule, op->event + i) == pool;
    return count;
}

/* With settings that release in part: what the run's number of segments says it was. */
static tide_status release_in_part(model *m, const tide__schedule_op *op, uint64_t count, bool *done) {
    const tide__torch_settings *settings = m->heap.settings;
    const tide__schedule_op *next = op + 1;
    bool has_next = next < m->schedule->ops + m->schedule->op_count;
    uint64_t freed = 0;
    tide_status status = TIDE_OK;
    *done = false;
    if (settings->gc_threshold == 0 && settings->max_split_size == UINT64_MAX) return TIDE_OK;
    if (count == 0 || count >= tide__torch_heap_releasable(&m->heap, 0)) return TIDE_OK;
    if (settings->gc_threshold > 0) status = tide__torch_heap_collect(&m->heap, count, &freed);
    if (status == TIDE_OK && freed < count && settings->max_split_size != UINT64_MAX && has_next &&
        (next->kind == TIDE__OP_ALLOC || next->kind == TIDE__OP_OOM)) {
        uint64_t more = 0;
        status = tide__torch_heap_release_available(&m->heap, next->size, next->stream, next->pool, &more);
        freed += more;
    }
    *done = freed >= count;
    return status;
}

/* Pools that the run names are released, each as it is first named. */
static tide_status model_release(tide__policy *p, const tide__schedule_op *op) {
    model *m = self(p);
    const tide__trace_event *events = m->schedule->gpu->events + op->event;
    tide_status status = TIDE_OK;
    bool done = false;
    if (m->is_recorded) status = release_in_part(m, op, run_of_pool(m, op, 0), &done);
    for (uint32_t i = 0; status == TIDE_OK && i < op->run_events; i++) {
        uint16_t pool = tide__schedule_event_pool(m->schedule, op->event + i);
        if (tide__event_is_release(&events[i]) && !(done && pool == 0))
            status = tide__torch_heap_release(&m->heap, pool); /* again: nothing is left to do */
    }
    return status;
}

static tide_status model_trim(tide__policy *p) { return tide__torch_heap_release_cached(&self(p)->heap); }

/* ---- Figures ---- */

static void model_set_time(tide__policy *p, uint64_t ns) { /* nothing here depends on time */
}

static uint64_t model_reserved(tide__policy *p) { return self(p)->heap.reserved; }

static uint64_t model_peak_reserved(tide__policy *p) {
    model *m = self(p);
    uint64_t peak = m->heap.peak;
    m->heap.peak = m->heap.reserved;
    return peak;
}

static void model_totals(tide__policy *p, tide__policy_result *out) {
    tide__device_counters c;
    tide__device *d = self(p)->device;
    d->ops->counters(d, 0, &c);
    out->driver_calls = 0;
    for (int i = 0; i < TIDE__CALL_COUNT; i++) out->driver_calls += c.calls[i];
    out->driver_seconds = (double)c.driver_ns / 1e9;
    out->moves = out->waits = 0;
    out->wait_seconds = 0;
}

uint64_t tide__model_address(const tide__policy *p, uint32_t block) {
    const tide__torch_block *b = ((const model *)p)->blocks[block];
    return b != NOT_PLACED ? b->node.addr : 0;
}

tide__explained tide__model_explain(tide__policy *p, const tide__schedule_op *op) {
    model *m = self(p);
    const tide__schedule_op *next = op + 1;
    if (next == m->schedule->ops + m->schedule->op_count) return TIDE__EXPLAINED_NOT;
    if (next->kind != TIDE__OP_ALLOC && next->kind != TIDE__OP_OOM) return TIDE__EXPLAINED_NOT;
    if (!tide__torch_heap_would_retry(&m->heap, next->size, next->stream, next->pool))
        return TIDE__EXPLAINED_NOT;
    bool in_parts = m->heap.settings->gc_threshold > 0 || m->heap.settings->max_split_size != UINT64_MAX;
    bool everything = !in_parts || run_of_pool(m, op, 0) >= tide__torch_heap_releasable(&m->heap, 0);
    return everything ? TIDE__EXPLAINED_EVERYTHING : TIDE__EXPLAINED_PARTLY;
}

/* ---- Life ---- */

/* The recorded run may have come from a device larger than the one assumed. A
 * page of grace above a limit, since the fraction looks at what is asked for
 * and not at the pages it takes. */
static uint64_t capacity(const tide__model_options *o) {
    if (o->limit_bytes != 0) return o->limit_bytes + o->settings->large_segment_size;
    return tide__max(TIDE__SIM_H200_BYTES, o->recorded->peak);
}

/* Pages are whole granules of the driver's; PyTorch's first mapping fails otherwise. */
static tide_status check_pages(const tide__model_options *o) {
    uint64_t page = o->settings->large_segment_size;
    if (o->kind == TIDE__POLICY_NATIVE || page % TIDE__TORCH_SMALL_SEGMENT == 0) return TIDE_OK;
    return tide__fail(TIDE_UNSUPPORTED,
                      "large_segment_size_mb:%llu: expandable segments need pages of a multiple of 2 MiB",
                      (unsigned long long)(page / TIDE__MIB));
}

static tide_status begin(model *m, const tide__model_options *o) {
    const tide__schedule *s = m->schedule;
    tide__sim_options sim = {.capacity_bytes = capacity(o)};
    tide_status status = check_pages(o);
    if (status == TIDE_OK) status = tide__sim_open(&sim, &m->device);
    if (status == TIDE_OK)
        status = tide__torch_heap_init(
            &m->heap, o->kind == TIDE__POLICY_NATIVE ? &tide__torch_native : &tide__torch_expandable,
            o->settings, m->device, s->pool_count, s->gpu->stream_count);
    if (status != TIDE_OK) return status;
    for (size_t i = 0; s->unsplit_pools != NULL && i < s->pool_count * 2; i++)
        m->heap.pools[i].no_split = s->unsplit_pools[i / 2];
    m->heap.limit = o->limit_bytes;
    m->heap.device_bytes = tide__max(m->heap.device_bytes, o->recorded->peak);
    m->heap.forget = forget;
    m->heap.forget_user = m;
    m->blocks = calloc(tide__max(s->block_count, 1), sizeof *m->blocks);
    return m->blocks != NULL ? TIDE_OK
                             : tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model's blocks");
}

static void end(model *m) {
    tide__torch_heap_fini(&m->heap);
    if (m->device != NULL) m->device->ops->close(m->device);
    free(m->blocks);
    m->device = NULL;
    m->blocks = NULL;
}

/* Where the recorded run had a heap before its first event, its model begins
 * with that; where that cannot be known (or the limit has no room for it), it
 * begins empty and is given the blocks one by one, as any policy. */
static tide_status restore(model *m, const tide__model_options *o, tide__restored *out) {
    const tide__schedule *s = m->schedule;
    *out = TIDE__RESTORED_NOTHING;
    bool at_start = o->recorded->initial_known && o->recorded->initial == 0 && s->blocks_before_start == 0;
    if (!m->is_recorded || at_start) return TIDE_OK;
    *out = TIDE__RESTORED_NOT;
    if (!s->trace->has_segments || !o->recorded->initial_known) return TIDE_OK;
    tide_status status = tide__torch_restore(&m->heap, s, m->blocks, out);
    if (status == TIDE_NO_HOST_MEMORY) return status;
    if (status != TIDE_OK || m->heap.reserved != o->recorded->initial) *out = TIDE__RESTORED_NOT;
    m->restored = *out != TIDE__RESTORED_NOT;
    m->heap.peak = m->heap.reserved;
    if (m->restored) return TIDE_OK;
    end(m);
    return begin(m, o);
}

static void model_destroy(tide__policy *p) {
    end(self(p));
    free(p);
}

static const tide__policy_ops ops = {
    .destroy = model_destroy,
    .set_time = model_set_time,
    .alloc = model_alloc,
    .free_requested = model_free_requested,
    .free = model_free,
    .release = model_release,
    .trim = model_trim,
    .reserved = model_reserved,
    .peak_reserved = model_peak_reserved,
    .totals = model_totals,
};

tide_status tide__model_create(const tide__schedule *s, const tide__model_options *o, tide__policy **out) {
    model *m = calloc(1, sizeof *m);
    if (m == NULL) return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model");
    m->base.ops = &ops;
    m->schedule = s;
    m->is_recorded = o->recorded->policy ==
                     (o->kind == TIDE__POLICY_NATIVE ? TIDE__RECORDED_NATIVE : TIDE__RECORDED_EXPANDABLE);
    tide__restored restored;
    tide_status status = begin(m, o);
    if (status == TIDE_OK) status = restore(m, o, &restored);
    if (status != TIDE_OK) {
        model_destroy(&m->base);
        return status;
    }
    if (o->restored != NULL) *o->restored = restored;
    *out = &m->base;
    return TIDE_OK;
}
