/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's operations: what is queued, and what a stream's thread
 * does with it.
 *
 * Queueing checks that the declared ranges are mapped, advances the stream's
 * clock and enters the ranges in the histories (host_clocks.c). Running waits
 * first (lateness, delays, gates, events), then looks whether the ranges still
 * have the mappings that they had, by a signature over the mappings' ids, then
 * touches the bytes without the lock. While it does so the stream is `touching`,
 * and an unmap that a handler let pass waits for it.
 *
 * Bound: a queue is as long as the host's memory allows.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_internal.h"

const char *tide__host_op_name(tide__host_op_kind kind) {
    static const char *const names[] = {
        [TIDE__HOST_OP_FILL] = "fill",
        [TIDE__HOST_OP_COPY] = "copy",
        [TIDE__HOST_OP_CHECK] = "check",
        [TIDE__HOST_OP_FILL_PATTERN] = "fill_pattern",
        [TIDE__HOST_OP_CHECK_PATTERN] = "check_pattern",
        [TIDE__HOST_OP_CALLBACK] = "callback",
        [TIDE__HOST_OP_DELAY] = "delay",
        [TIDE__HOST_OP_HOLD] = "hold",
        [TIDE__HOST_OP_WAIT] = "wait",
        [TIDE__HOST_OP_RECORD] = "record",
    };
    TIDE__CHECK((size_t)kind < sizeof names / sizeof *names);
    return names[kind];
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* ---- Queueing ---- */

tide__host_op *tide__host_op_new(tide__host_op_kind kind, size_t range_count) {
    tide__host_op *op = calloc(1, sizeof *op + range_count * sizeof op->ranges[0]);
    if (op) {
        op->kind = kind;
        op->range_count = range_count;
    }
    return op;
}

/* Which mappings stand behind a range; false where there is a gap. */
static bool signature_of(const tide__host_pages *p, const tide__host_op_range *r, uint64_t *out) {
    size_t first, count;
    if (r->size == 0 || r->va + r->size < r->va || !tide__host_resolve(p, r->va, r->size, &first, &count)) {
        return false;
    }
    uint64_t signature = count;
    for (size_t i = first; i < first + count; i++) {
        signature = mix(signature + p->mappings[i]->id * UINT64_C(0x9e3779b97f4a7c15));
    }
    *out = signature;
    return true;
}

static tide__host_operation operation_of(const tide__host_stream *s, const tide__host_op *op,
                                         const tide__host_op_range *r) {
    return (tide__host_operation){.what = tide__host_op_name(op->kind),
                                  .writes = r->writes,
                                  .stream_id = s->id,
                                  .sequence = op->sequence,
                                  .va = r->va,
                                  .size = r->size};
}

/* All ranges are mapped; otherwise *v says which is not. */
static bool ranges_mapped(tide__host_gpu *g, const tide__host_stream *s, tide__host_op *op,
                          tide__host_violation *v) {
    for (size_t i = 0; i < op->range_count; i++) {
        tide__host_op_range *r = &op->ranges[i];
        if (signature_of(&g->pages, r, &r->signature)) {
            continue;
        }
        *v = (tide__host_violation){.kind = TIDE__HOST_NOT_MAPPED,
                                    .gpu = g->index,
                                    .earlier = operation_of(s, op, r),
                                    .va = r->va,
                                    .size = r->size};
        tide__host_describe(v, "the operation is refused");
        return false;
    }
    return true;
}

static uint64_t draw_lateness(tide__host_gpu *g) {
    if (g->lateness_ns == 0) {
        return 0;
    }
    g->random += UINT64_C(0x9e3779b97f4a7c15);
    return mix(g->random) % g->lateness_ns;
}

/* The operation gets its place in its stream and in the order of things. */
static bool append(tide__host_gpu *g, tide__host_stream *s, tide__host_op *op, tide__host_violation *v) {
    bool wrong = false;
    tide__host_lane *lane = &g->lanes[s->slot];
    TIDE__CHECK(lane->stream == s && !s->stop);
    tide__host_clock_join(&s->clock, &g->host_clock);
    op->sequence = s->clock.at[s->slot] = ++lane->queued;
    op->late_ns = draw_lateness(g);
    for (size_t i = 0; i < op->range_count; i++) {
        tide__host_violation this_one;
        if (tide__host_note(g, s, op, &op->ranges[i], &this_one) && !wrong) {
            wrong = true;
            *v = this_one;
        }
    }
    if (s->tail) {
        s->tail->next = op;
    } else {
        s->head = op;
    }
    s->tail = op;
    pthread_cond_signal(&s->work);
    return wrong;
}

tide_status tide__host_enqueue(tide__host_gpu *g, tide_stream stream, tide__host_op *op) {
    tide__host_violation violation;
    if (!op) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "host: no memory to queue an operation");
    }
    tide__host_stream *s = tide__host_stream_find(g, stream);
    if (!s) {
        free(op);
        return TIDE_BAD_HANDLE;
    }
    if (s->graph) { /* its addresses matter when it is launched */
        tide__host_graph_add(s->graph, op);
        return TIDE_OK;
    }
    if (!ranges_mapped(g, s, op, &violation)) {
        free(op);
        tide__host_report(g, &violation);
        return tide__fail(TIDE_INVALID_ARGUMENT, "%s", violation.text);
    }
    if (!tide__host_stream_start(s)) {
        free(op);
        return tide__fail(TIDE_NO_HOST_MEMORY, "host: the thread of stream %" PRIu64 " cannot start", s->id);
    }
    if (append(g, s, op, &violation)) {
        tide__host_report(g, &violation);
    }
    return TIDE_OK;
}

/* ---- Running ---- */

static void sleep_until(tide__host_gpu *g, uint64_t ns) {
    uint64_t deadline = tide__monotonic_ns() + ns;
    while (!g->closing && tide__monotonic_ns() < deadline) {
        tide__host_wait_progress(g, deadline);
    }
}

static void wait_for_event(tide__host_gpu *g, const tide__host_op *op) {
    if (g->lanes[op->wait_slot].done >= op->wait_sequence) {
        return;
    }
    uint64_t start = tide__monotonic_ns();
    tide__host_wait_done(g, op->wait_slot, op->wait_sequence, UINT64_MAX);
    g->counters.stream_wait_ns += tide__monotonic_ns() - start;
}

static bool *gate_find(tide__host_gpu *g, tide__host_gate gate) {
    return tide__host_table_get(&g->gates, gate);
}

/* The eight bytes of a pattern at this distance from its start. */
static uint64_t pattern_at(uint64_t seed, uint64_t distance) { return mix(seed + (distance >> 3) + 1); }

static void fill_pattern(uint64_t va, uint64_t seed, uint64_t size) {
    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t word = pattern_at(seed, at);
        memcpy((void *)(va + at), &word, tide__min(8, size - at));
    }
}

/* What a check finds, before it is added up under the lock. */
typedef struct finding {
    uint64_t wrong, first_va;
    uint8_t expected, found;
} finding;

static void compare_word(uint64_t va, uint64_t word, uint64_t size, finding *f) {
    uint64_t have = 0;
    memcpy(&have, (const void *)va, size);
    if (size == 8 && have == word) {
        return;
    }
    for (uint64_t i = 0; i < size; i++) {
        uint8_t expected = (uint8_t)(word >> (8 * i)), found = (uint8_t)(have >> (8 * i));
        if (expected == found) {
            continue;
        }
        if (f->wrong++ == 0) {
            f->first_va = va + i;
            f->expected = expected;
            f->found = found;
        }
    }
}

static void check_bytes(const tide__host_op *op, finding *f) {
    const tide__host_op_range *r = &op->ranges[0];
    uint64_t same = op->value * UINT64_C(0x0101010101010101);
    bool pattern = op->kind == TIDE__HOST_OP_CHECK_PATTERN;
    for (uint64_t at = 0; at < r->size; at += 8) {
        compare_word(r->va + at, pattern ? pattern_at(op->value, at) : same, tide__min(8, r->size - at), f);
    }
}

/* Without the lock. */
static void touch(const tide__host_op *op, finding *f) {
    const tide__host_op_range *r = op->ranges;
    switch (op->kind) {
    case TIDE__HOST_OP_FILL: memset((void *)r[0].va, (int)op->value, r[0].size); break;
    case TIDE__HOST_OP_COPY: /* ranges: source, destination */
        memmove((void *)r[1].va, (const void *)r[0].va, r[0].size);
        break;
    case TIDE__HOST_OP_FILL_PATTERN: fill_pattern(r[0].va, op->value, r[0].size); break;
    case TIDE__HOST_OP_CHECK:
    case TIDE__HOST_OP_CHECK_PATTERN: check_bytes(op, f); break;
    case TIDE__HOST_OP_CALLBACK: op->fn(op->user); break;
    default: break;
    }
}

static void add_finding(tide__host_gpu *g, const tide__host_stream *s, const tide__host_op *op,
                        const finding *f) {
    if (op->kind != TIDE__HOST_OP_CHECK && op->kind != TIDE__HOST_OP_CHECK_PATTERN) {
        return;
    }
    g->result.checks++;
    if (f->wrong && g->result.wrong_bytes == 0) {
        g->result.first_wrong_va = f->first_va;
        g->result.first_wrong_stream_id = s->id;
        g->result.first_wrong_sequence = op->sequence;
        g->result.first_expected = f->expected;
        g->result.first_found = f->found;
    }
    g->result.wrong_bytes += f->wrong;
}

/* Reports and says no if a range has not the mappings that it was queued on. */
static bool still_mapped(tide__host_gpu *g, const tide__host_stream *s, const tide__host_op *op) {
    for (size_t i = 0; i < op->range_count; i++) {
        const tide__host_op_range *r = &op->ranges[i];
        uint64_t signature;
        bool mapped = signature_of(&g->pages, r, &signature);
        if (mapped && signature == r->signature) {
            continue;
        }
        tide__host_violation v = {.kind = TIDE__HOST_UNMAPPED_WORK,
                                  .gpu = g->index,
                                  .earlier = operation_of(s, op, r),
                                  .va = r->va,
                                  .size = r->size};
        tide__host_describe(&v, mapped ? "other chunks are mapped there now" : "nothing is mapped there now");
        tide__host_report(g, &v);
        return false;
    }
    return true;
}

void tide__host_run(tide__host_gpu *g, tide__host_stream *s, tide__host_op *op) {
    finding f = {0};
    sleep_until(g, op->late_ns);
    if (op->kind == TIDE__HOST_OP_DELAY) {
        sleep_until(g, op->value);
    } else if (op->kind == TIDE__HOST_OP_WAIT) {
        wait_for_event(g, op);
    } else if (op->kind == TIDE__HOST_OP_HOLD) {
        while (!g->closing && !*gate_find(g, op->value)) {
            tide__host_wait_progress(g, UINT64_MAX);
        }
    }
    g->result.operations++;
    if (!still_mapped(g, s, op)) {
        return;
    }
    TIDE__CHECK(!s->touching);
    s->touching = op;
    pthread_mutex_unlock(&g->lock);
    touch(op, &f);
    pthread_mutex_lock(&g->lock);
    s->touching = NULL;
    add_finding(g, s, op, &f);
}

/* ---- The calls ---- */

static tide_status queue(tide__device *d, int gpu, tide_stream stream, tide__host_op *op) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        free(op);
        return TIDE_INVALID_ARGUMENT;
    }
    tide_status status = tide__host_enqueue(g, stream, op);
    tide__host_leave(g);
    return status;
}

static tide_status queue_one_range(tide__device *d, int gpu, tide_stream stream, tide__host_op_kind kind,
                                   uint64_t va, uint64_t size, uint64_t value) {
    tide__host_op *op = tide__host_op_new(kind, 1);
    if (op) {
        bool writes = kind == TIDE__HOST_OP_FILL || kind == TIDE__HOST_OP_FILL_PATTERN;
        op->ranges[0] = (tide__host_op_range){.va = va, .size = size, .writes = writes};
        op->value = value;
    }
    return queue(d, gpu, stream, op);
}

tide_status tide__host_fill(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint8_t value,
                            uint64_t size) {
    return queue_one_range(d, gpu, stream, TIDE__HOST_OP_FILL, va, size, value);
}

tide_status tide__host_check(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint8_t value,
                             uint64_t size) {
    return queue_one_range(d, gpu, stream, TIDE__HOST_OP_CHECK, va, size, value);
}

tide_status tide__host_fill_pattern(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint64_t seed,
                                    uint64_t size) {
    return queue_one_range(d, gpu, stream, TIDE__HOST_OP_FILL_PATTERN, va, size, mix(seed));
}

tide_status tide__host_check_pattern(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint64_t seed,
                                     uint64_t size) {
    return queue_one_range(d, gpu, stream, TIDE__HOST_OP_CHECK_PATTERN, va, size, mix(seed));
}

tide_status tide__host_copy(tide__device *d, int gpu, tide_stream stream, uint64_t dst, uint64_t src,
                            uint64_t size) {
    tide__host_op *op = tide__host_op_new(TIDE__HOST_OP_COPY, 2);
    if (op) {
        op->ranges[0] = (tide__host_op_range){.va = src, .size = size};
        op->ranges[1] = (tide__host_op_range){.va = dst, .size = size, .writes = true};
    }
    return queue(d, gpu, stream, op);
}

tide_status tide__host_callback(tide__device *d, int gpu, tide_stream stream, void (*fn)(void *user),
                                void *user, const tide__host_range *reads, size_t read_count,
                                const tide__host_range *writes, size_t write_count) {
    tide__host_op *op = tide__host_op_new(TIDE__HOST_OP_CALLBACK, read_count + write_count);
    if (op) {
        op->fn = fn;
        op->user = user;
        for (size_t i = 0; i < read_count; i++) {
            op->ranges[i] = (tide__host_op_range){.va = reads[i].va, .size = reads[i].size};
        }
        for (size_t i = 0; i < write_count; i++) {
            op->ranges[read_count + i] =
                (tide__host_op_range){.va = writes[i].va, .size = writes[i].size, .writes = true};
        }
    }
    return queue(d, gpu, stream, op);
}

tide_status tide__host_delay(tide__device *d, int gpu, tide_stream stream, uint64_t ns) {
    tide__host_op *op = tide__host_op_new(TIDE__HOST_OP_DELAY, 0);
    if (op) {
        op->value = ns;
    }
    return queue(d, gpu, stream, op);
}

/* ---- Gates ---- */

tide_status tide__host_gate_create(tide__device *d, int gpu, tide__host_gate *out) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    bool *open = calloc(1, sizeof *open);
    uint64_t handle = open ? tide__host_table_add(&g->gates, open) : 0;
    tide__host_leave(g);
    if (handle == 0) {
        free(open);
        return tide__fail(TIDE_NO_HOST_MEMORY, "host: no memory for a gate");
    }
    *out = handle;
    return TIDE_OK;
}

tide_status tide__host_gate_open(tide__device *d, int gpu, tide__host_gate gate) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    bool *open = gate_find(g, gate);
    if (open) {
        *open = true;
        pthread_cond_broadcast(&g->progress);
    }
    tide__host_leave(g);
    return open ? TIDE_OK
                : tide__fail(TIDE_BAD_HANDLE, "host: 0x%" PRIx64 " is not a gate of GPU %d", gate, gpu);
}

tide_status tide__host_hold(tide__device *d, int gpu, tide_stream stream, tide__host_gate gate) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    tide_status status;
    if (!gate_find(g, gate)) {
        status = tide__fail(TIDE_BAD_HANDLE, "host: 0x%" PRIx64 " is not a gate of GPU %d", gate, gpu);
    } else {
        tide__host_op *op = tide__host_op_new(TIDE__HOST_OP_HOLD, 0);
        if (op) {
            op->value = gate;
        }
        status = tide__host_enqueue(g, stream, op);
    }
    tide__host_leave(g);
    return status;
}

/* ---- Settings and results ---- */

void tide__host_set_lateness(tide__device *d, uint64_t seed, uint64_t max_ns) {
    for (int i = 0; i < tide__host_of(d)->gpu_count; i++) {
        tide__host_gpu *g = tide__host_enter(d, i);
        g->random = mix(seed + (uint64_t)i);
        g->lateness_ns = max_ns;
        tide__host_leave(g);
    }
}

void tide__host_get_result(tide__device *d, int gpu, tide__host_result *out) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        *out = (tide__host_result){0};
        return;
    }
    *out = g->result;
    tide__host_leave(g);
}
