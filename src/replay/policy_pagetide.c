/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy `pagetide`: the engine itself, through its public calls. Nothing
 * of how it places memory is repeated here; this file only keeps the address
 * of each of the schedule's blocks and moves the sim's clock.
 *
 * A recorded moment at which everything free was given back becomes a trim
 * that does not wait; the trim at a phase's end waits for work in flight.
 */
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "replay/policy.h"

#define PHASE_TRIM_WAIT_NS UINT64_C(2000000000)

typedef struct pagetide_policy {
    tide__policy base;
    tide_allocator *allocator;
    tide__device *sim; /* NULL on host */
    const tide__trace_gpu *gpu;
    void **addresses;     /* by block */
    tide_stream *streams; /* by the trace's stream index */
    tide_pool *pools;     /* by the schedule's pool index */
    size_t pool_count;
} pagetide_policy;

static pagetide_policy *self(tide__policy *p) { return (pagetide_policy *)p; }

static void pt_destroy(tide__policy *p) {
    pagetide_policy *s = self(p);
    tide_close(s->allocator);
    free(s->addresses);
    free(s->streams);
    free(s->pools);
    free(s);
}

static void pt_set_time(tide__policy *p, uint64_t ns) {
    if (self(p)->sim != NULL) {
        tide__sim_set_trace_time(self(p)->sim, ns);
    }
}

static tide_status pt_alloc(tide__policy *p, const tide__schedule_op *op) {
    pagetide_policy *s = self(p);
    return tide_alloc(s->allocator, 0, op->size, s->streams[op->stream], s->pools[op->pool],
                      &s->addresses[op->block]);
}

static tide_status pt_free(tide__policy *p, const tide__schedule_op *op) {
    pagetide_policy *s = self(p);
    tide_status status = tide_free(s->allocator, s->addresses[op->block]);
    s->addresses[op->block] = NULL;
    return status;
}

static tide_status pt_release(tide__policy *p, const tide__schedule_op *op) {
    tide_trim_options o = {.struct_size = sizeof o, .bytes = UINT64_MAX};
    return tide_trim(self(p)->allocator, 0, &o, NULL);
}

static tide_status pt_trim(tide__policy *p) {
    tide_trim_options o = {.struct_size = sizeof o, .bytes = UINT64_MAX, .wait_ns = PHASE_TRIM_WAIT_NS};
    return tide_trim(self(p)->allocator, 0, &o, NULL);
}

static void pt_phase(tide__policy *p, const char *name) { tide_phase(self(p)->allocator, name); }

static uint64_t pt_reserved(tide__policy *p) { return tide_reserved_bytes(self(p)->allocator, 0); }

/* Chunks are created one after the other inside a call and none is given back
 * in between unless memory is short, so the value now is the peak, but for
 * that case, which the engine's own peak tells. */
static uint64_t pt_peak_reserved(tide__policy *p) { return pt_reserved(p); }

static void pt_totals(tide__policy *p, tide__policy_result *out) {
    pagetide_policy *s = self(p);
    tide_stats stats = {.struct_size = sizeof stats};
    tide__device_counters counters;
    tide__device *device = tide__allocator_device(s->allocator);
    tide_stats_get(s->allocator, 0, &stats);
    device->ops->counters(device, 0, &counters);
    out->moves = stats.moves;
    out->waits = stats.stream_waits + stats.host_waits;
    out->wait_seconds = (double)(counters.host_wait_ns + counters.stream_wait_ns) / 1e9;
    out->driver_calls = 0;
    for (int call = TIDE__CALL_RESERVE; call <= TIDE__CALL_RAW_FREE; call++) {
        out->driver_calls += counters.calls[call];
    }
    out->driver_seconds = (double)counters.driver_ns / 1e9;
}

static const tide__policy_ops pagetide_ops = {
    .destroy = pt_destroy,
    .set_time = pt_set_time,
    .alloc = pt_alloc,
    .free = pt_free,
    .release = pt_release,
    .trim = pt_trim,
    .phase = pt_phase,
    .reserved = pt_reserved,
    .peak_reserved = pt_peak_reserved,
    .totals = pt_totals,
};

static tide_status open_engine(pagetide_policy *s, const tide__replay_options *o, uint64_t limit_bytes) {
    tide_open_options open = {.struct_size = sizeof open, .cross_stream = o->cross_stream};
    tide__device *device;
    tide_status status;
    bool host = strcmp(o->device, "host") == 0;
    if (host) {
        status = tide__host_open(&(tide__host_options){.capacity_bytes = limit_bytes}, &device);
    } else {
        status = tide__sim_open(
            &(tide__sim_options){.capacity_bytes = limit_bytes, .event_delay_ns = o->event_delay_ns},
            &device);
    }
    if (status == TIDE_OK) {
        status = tide__open_on(device, &open, NULL, &s->allocator);
        s->sim = host ? NULL : device;
    }
    return status;
}

/* On sim a trace's stream is its handle; on host it is one made for it. */
static tide_status make_streams(pagetide_policy *s) {
    if (s->gpu->stream_count > TIDE__STREAM_MAX) {
        return tide__fail(TIDE_UNSUPPORTED,
                          "pagetide: the trace has %zu streams, more than the %d of one device",
                          s->gpu->stream_count, TIDE__STREAM_MAX);
    }
    for (size_t i = 1; i < s->gpu->stream_count; i++) {
        s->streams[i] = s->gpu->streams[i];
        if (s->sim == NULL) {
            tide_status status = tide_stream_create(s->allocator, 0, &s->streams[i]);
            if (status != TIDE_OK) {
                return status;
            }
        }
    }
    for (size_t i = 1; i < s->pool_count; i++) {
        tide_status status = tide_pool_create(s->allocator, 0, &s->pools[i]);
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

tide_status tide__policy_pagetide_create(const tide__schedule *schedule, const tide__replay_options *o,
                                         uint64_t limit_bytes, tide__policy **out) {
    pagetide_policy *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a policy");
    }
    s->base.ops = &pagetide_ops;
    s->gpu = schedule->gpu;
    s->addresses = calloc(tide__max(schedule->block_count, 1), sizeof(void *));
    s->streams = calloc(tide__max(s->gpu->stream_count, 1), sizeof *s->streams);
    s->pool_count = schedule->pool_count;
    s->pools = calloc(tide__max(s->pool_count, 1), sizeof *s->pools);
    tide_status status = TIDE_OK;
    if (s->addresses == NULL || s->streams == NULL || s->pools == NULL) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for %u blocks", schedule->block_count);
    }
    if (status == TIDE_OK) {
        status = open_engine(s, o, limit_bytes);
    }
    if (status == TIDE_OK) {
        status = make_streams(s);
    }
    if (status != TIDE_OK) {
        pt_destroy(&s->base);
        return status;
    }
    *out = &s->base;
    return TIDE_OK;
}
