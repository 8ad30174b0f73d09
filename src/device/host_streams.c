/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's streams and events, and all of its waiting.
 *
 * A stream is a queue and, from its first operation on, a thread that runs it.
 * It counts operations in its lane; "done" is a number too, so an event needs
 * no place in the queue: recorded, it remembers lane and number, and is done
 * when the lane has got there. Waits of streams are operations that wait for
 * such a number. They name only what was queued before them, so they cannot
 * wait for each other in a circle.
 *
 * Everything is woken by one condition a GPU, `progress`; a stream's thread
 * without work by its own.
 *
 * Bounds: a lane is given back when its stream is destroyed, so clocks are as
 * long as the most streams that existed at once; threads are the system's
 * limit, and a stream whose thread cannot start refuses the operation.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/host_internal.h"

#define THREAD_STACK_BYTES ((size_t)1 << 20)

/* Of all devices, for the life of the process. */
static _Atomic uint64_t next_stream_id = 1;

/* ---- Waiting ---- */

void tide__host_wait_progress(tide__host_gpu *g, uint64_t deadline_ns) {
    if (deadline_ns == UINT64_MAX) {
        pthread_cond_wait(&g->progress, &g->lock);
        return;
    }
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                             .tv_nsec = (long)(deadline_ns % 1000000000)};
    pthread_cond_timedwait(&g->progress, &g->lock, &until);
}

bool tide__host_wait_done(tide__host_gpu *g, size_t slot, uint64_t sequence, uint64_t deadline_ns) {
    TIDE__CHECK(slot < g->lane_count && sequence <= g->lanes[slot].queued);
    while (g->lanes[slot].done < sequence) {
        if (deadline_ns != UINT64_MAX && tide__monotonic_ns() >= deadline_ns) {
            return false;
        }
        tide__host_wait_progress(g, deadline_ns);
    }
    return true;
}

/* Waits for a point of a lane; then the host knows what this clock says. The
 * clock is copied first: its owner may change or go while we wait. */
static tide_status wait_and_learn(tide__host_gpu *g, size_t slot, uint64_t sequence,
                                  const tide__host_clock *clock, uint64_t deadline_ns) {
    if (g->lanes[slot].done >= sequence) {
        tide__host_clock_join(&g->host_clock, clock);
        return TIDE_OK;
    }
    tide__host_clock known = {0};
    if (!tide__host_clock_grow(&known, g->lane_count)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "host wait: the host is out of memory");
    }
    tide__host_clock_set(&known, clock);
    bool done = tide__host_wait_done(g, slot, sequence, deadline_ns);
    if (done) {
        tide__host_clock_join(&g->host_clock, &known);
    }
    tide__host_clock_free(&known);
    return done ? TIDE_OK : TIDE_TIMEOUT;
}

tide_status tide__host_wait_stream(tide__host_gpu *g, size_t slot) {
    const tide__host_lane *lane = &g->lanes[slot];
    TIDE__CHECK(lane->stream);
    return wait_and_learn(g, slot, lane->queued, &lane->stream->clock, UINT64_MAX);
}

/* Lanes that appear meanwhile carry later work only. */
tide_status tide__host_wait_all(tide__host_gpu *g, uint64_t timeout_ns) {
    uint64_t start = tide__monotonic_ns();
    uint64_t deadline = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
    tide_status status = TIDE_OK;
    if (g->captures > 0) {
        return tide__fail(TIDE_CAPTURING, "host device_wait: a stream of GPU %d is being captured", g->index);
    }
    size_t count = g->lane_count;
    for (size_t i = 0; i < count && status == TIDE_OK; i++) {
        const tide__host_lane *lane = &g->lanes[i];
        if (lane->stream) {
            status = wait_and_learn(g, i, lane->queued, &lane->stream->clock, deadline);
        }
    }
    g->counters.host_wait_ns += tide__monotonic_ns() - start;
    if (status == TIDE_TIMEOUT) {
        return tide__fail(TIDE_TIMEOUT, "host device_wait: GPU %d is not idle after %" PRIu64 " ns", g->index,
                          timeout_ns);
    }
    return status;
}

tide_status tide__host_wait_device(tide__host_gpu *g) {
    size_t count = g->lane_count;
    for (size_t i = 0; i < count; i++) {
        tide_status status = g->lanes[i].stream ? tide__host_wait_stream(g, i) : TIDE_OK;
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

/* ---- Streams ---- */

static void *stream_main(void *argument) {
    tide__host_stream *s = argument;
    tide__host_gpu *g = s->gpu;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!s->head && !s->stop) {
            pthread_cond_wait(&s->work, &g->lock);
        }
        tide__host_op *op = s->head;
        if (!op) {
            break;
        }
        tide__host_run(g, s, op);
        s->head = op->next;
        if (!s->head) {
            s->tail = NULL;
        }
        TIDE__CHECK(g->lanes[s->slot].done + 1 == op->sequence);
        g->lanes[s->slot].done = op->sequence;
        pthread_cond_broadcast(&g->progress);
        free(op);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

bool tide__host_stream_start(tide__host_stream *s) {
    if (s->started) {
        return true;
    }
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    int error = pthread_create(&s->thread, &attr, stream_main, s);
    pthread_attr_destroy(&attr);
    s->started = error == 0;
    return s->started;
}

/* Room for this many lanes in every clock of the GPU; in the host's last, whose
 * length says how many lanes all have room for. */
static bool grow_clocks(tide__host_gpu *g, size_t count) {
    for (size_t i = 0; i < g->lane_count; i++) {
        if (g->lanes[i].stream && !tide__host_clock_grow(&g->lanes[i].stream->clock, count)) {
            return false;
        }
    }
    for (size_t i = 0; i < g->events.count; i++) {
        tide__host_event *e = g->events.slots[i].object;
        if (e && !tide__host_clock_grow(&e->clock, count)) {
            return false;
        }
    }
    return tide__host_clock_grow(&g->host_clock, count);
}

/* A free lane, or a new one; false when the host is out of memory. */
static bool find_lane(tide__host_gpu *g, size_t *out) {
    for (size_t i = 0; i < g->lane_count; i++) {
        if (!g->lanes[i].stream) {
            *out = i;
            return true;
        }
    }
    if (!tide__grow((void **)&g->lanes, &g->lane_capacity, g->lane_count + 1, sizeof *g->lanes)) {
        return false;
    }
    if (g->lane_count >= g->host_clock.count && !grow_clocks(g, tide__max(8, g->lane_count * 2))) {
        return false;
    }
    g->lanes[g->lane_count] = (tide__host_lane){0};
    *out = g->lane_count++;
    return true;
}

tide_status tide__host_stream_open(tide__host_gpu *g, bool is_default, tide_stream *out) {
    tide__host_stream *s = calloc(1, sizeof *s);
    size_t slot;
    if (!s || !find_lane(g, &slot) || !tide__host_clock_grow(&s->clock, g->host_clock.count)) {
        goto no_memory;
    }
    if (!is_default && (s->handle = tide__host_table_add(&g->streams, s)) == 0) {
        goto no_memory;
    }
    tide__host_clock_set(&s->clock, &g->host_clock);
    s->gpu = g;
    s->slot = slot;
    s->id = atomic_fetch_add(&next_stream_id, 1);
    pthread_cond_init(&s->work, NULL);
    g->lanes[slot].stream = s;
    TIDE__CHECK(g->lanes[slot].done == g->lanes[slot].queued);
    if (is_default) {
        g->default_stream = s;
    }
    *out = s->handle;
    return TIDE_OK;
no_memory:
    if (s) {
        tide__host_clock_free(&s->clock);
    }
    free(s);
    return tide__fail(TIDE_NO_HOST_MEMORY, "host stream_create: the host is out of memory");
}

tide__host_stream *tide__host_stream_find(tide__host_gpu *g, tide_stream stream) {
    if (stream == 0) {
        return g->default_stream;
    }
    tide__host_stream *s = tide__host_table_get(&g->streams, stream);
    if (!s) {
        tide__fail(TIDE_BAD_HANDLE, "host: 0x%" PRIx64 " is not a stream of GPU %d, or was destroyed", stream,
                   g->index);
    }
    return s;
}

/* The thread ends when its queue is empty. Nobody can queue any more. */
static void stream_end(tide__host_gpu *g, tide__host_stream *s) {
    s->stop = true;
    pthread_cond_signal(&s->work);
    if (s->started) {
        pthread_mutex_unlock(&g->lock);
        pthread_join(s->thread, NULL);
        pthread_mutex_lock(&g->lock);
    }
    TIDE__CHECK(!s->head && g->lanes[s->slot].done == g->lanes[s->slot].queued);
    g->captures -= s->graph != NULL;
    tide__host_graph_free(s->graph);
    tide__host_clock_join(&g->host_clock, &s->clock);
    g->lanes[s->slot].stream = NULL;
    pthread_cond_destroy(&s->work);
    tide__host_clock_free(&s->clock);
    free(s);
}

tide_status tide__host_stream_close(tide__host_gpu *g, tide_stream stream) {
    if (stream == 0) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host stream_destroy: stream 0 of GPU %d cannot be destroyed", g->index);
    }
    tide__host_stream *s = tide__host_stream_find(g, stream);
    if (!s) {
        return TIDE_BAD_HANDLE;
    }
    tide__host_table_remove(&g->streams, stream);
    stream_end(g, s);
    return TIDE_OK;
}

void tide__host_streams_stop(tide__host_gpu *g) {
    g->closing = true;
    pthread_cond_broadcast(&g->progress);
    for (size_t i = 0; i < g->lane_count; i++) {
        if (g->lanes[i].stream) {
            stream_end(g, g->lanes[i].stream);
        }
    }
}

/* ---- Events ---- */

static tide__host_event *event_find(tide__host_gpu *g, tide__event event) {
    tide__host_event *e = tide__host_table_get(&g->events, event);
    if (!e) {
        tide__fail(TIDE_BAD_HANDLE, "host: 0x%" PRIx64 " is not an event of GPU %d, or was destroyed", event,
                   g->index);
    }
    return e;
}

tide_status tide__host_event_create(tide__host_gpu *g, tide__event *out) {
    tide__host_event *e = calloc(1, sizeof *e);
    uint64_t handle = 0;
    if (!e || !tide__host_clock_grow(&e->clock, g->host_clock.count) ||
        (handle = tide__host_table_add(&g->events, e)) == 0) {
        if (e) {
            tide__host_clock_free(&e->clock);
        }
        free(e);
        return tide__fail(TIDE_NO_HOST_MEMORY, "host event_create: the host is out of memory");
    }
    *out = handle;
    return TIDE_OK;
}

tide_status tide__host_event_destroy(tide__host_gpu *g, tide__event event) {
    tide__host_event *e = event_find(g, event);
    if (!e) {
        return TIDE_BAD_HANDLE;
    }
    tide__host_table_remove(&g->events, event);
    tide__host_clock_free(&e->clock);
    free(e);
    return TIDE_OK;
}

tide_status tide__host_event_record(tide__host_gpu *g, tide__event event, tide_stream stream) {
    tide__host_stream *s = tide__host_stream_find(g, stream);
    tide__host_event *e = s ? event_find(g, event) : NULL;
    if (!e) {
        return TIDE_BAD_HANDLE;
    }
    tide_status free_to = tide__host_check_not_captured(g, s);
    if (free_to != TIDE_OK) {
        return free_to;
    }
    if (g->lateness_ns) {
        tide__host_op *op = tide__host_op_new(TIDE__HOST_OP_RECORD, 0);
        tide_status status = tide__host_enqueue(g, stream, op); /* no ranges: keeps the lock */
        if (status != TIDE_OK) {
            return status;
        }
    }
    tide__host_clock_set(&e->clock, &s->clock);
    e->slot = s->slot;
    e->sequence = g->lanes[s->slot].queued;
    return TIDE_OK;
}

tide_status tide__host_event_query(tide__host_gpu *g, tide__event event) {
    tide__host_event *e = event_find(g, event);
    if (!e) {
        return TIDE_BAD_HANDLE;
    }
    if (e->sequence && g->lanes[e->slot].done < e->sequence) {
        return TIDE_NOT_READY;
    }
    tide__host_clock_join(&g->host_clock, &e->clock);
    return TIDE_OK;
}

tide_status tide__host_event_wait(tide__host_gpu *g, tide__event event, uint64_t timeout_ns) {
    tide__host_event *e = event_find(g, event);
    if (!e) {
        return TIDE_BAD_HANDLE;
    }
    uint64_t start = tide__monotonic_ns();
    uint64_t deadline = timeout_ns > UINT64_MAX - start ? UINT64_MAX : start + timeout_ns;
    bool waits = g->lanes[e->slot].done < e->sequence;
    tide_status status = wait_and_learn(g, e->slot, e->sequence, &e->clock, deadline);
    if (waits) {
        g->counters.host_wait_ns += tide__monotonic_ns() - start;
    }
    if (status == TIDE_TIMEOUT) {
        return tide__fail(TIDE_TIMEOUT,
                          "host event_wait: event 0x%" PRIx64 " of GPU %d is not done after %" PRIu64 " ns",
                          event, g->index, timeout_ns);
    }
    return status;
}

tide_status tide__host_stream_wait(tide__host_gpu *g, tide_stream stream, tide__event event) {
    tide__host_stream *s = tide__host_stream_find(g, stream);
    tide__host_event *e = s ? event_find(g, event) : NULL;
    if (!e) {
        return TIDE_BAD_HANDLE;
    }
    tide_status free_to = tide__host_check_not_captured(g, s);
    if (free_to != TIDE_OK) {
        return free_to;
    }
    if (g->lanes[e->slot].done < e->sequence && e->slot != s->slot) {
        tide__host_op *op = tide__host_op_new(TIDE__HOST_OP_WAIT, 0);
        if (op) {
            op->wait_slot = e->slot;
            op->wait_sequence = e->sequence;
        }
        tide_status status = tide__host_enqueue(g, stream, op); /* no ranges: keeps the lock */
        if (status != TIDE_OK) {
            return status;
        }
    }
    tide__host_clock_join(&s->clock, &e->clock);
    return TIDE_OK;
}

/* ---- Waits of the host, and gates ---- */

tide_status tide__host_stream_sync(tide__device *d, int gpu, tide_stream stream) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    const tide__host_stream *s = tide__host_stream_find(g, stream);
    tide_status status = s ? tide__host_wait_stream(g, s->slot) : TIDE_BAD_HANDLE;
    tide__host_leave(g);
    return status;
}

tide_status tide__host_device_sync(tide__device *d, int gpu) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    tide_status status = tide__host_wait_device(g);
    tide__host_leave(g);
    return status;
}
