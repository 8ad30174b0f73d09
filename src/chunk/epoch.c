/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs: see epoch.h. Closed epochs wait in a ring, oldest first, and are
 * asked oldest first, so a poll costs one query of an event that is not done
 * plus what has become done. Events are used again; their number is bounded by
 * streams times epochs in flight.
 */
#include "chunk/epoch.h"

#include <stdlib.h>
#include <string.h>

tide_status tide__epochs_open(tide__epochs *e, tide__device *device, int gpu) {
    memset(e, 0, sizeof *e);
    e->device = device;
    e->gpu = gpu;
    atomic_init(&e->open, 1);
    atomic_init(&e->done, 0);
    return TIDE_OK;
}

static tide__closed_epoch *ring_at(const tide__epochs *e, size_t i) {
    TIDE__CHECK(e->ring_cap > 0);
    return &e->closed[(e->ring_first + i) % e->ring_cap];
}

void tide__epochs_close(tide__epochs *e) {
    const tide__device_ops *ops = e->device->ops;
    for (size_t i = 0; i < e->ring_cap; i++) {
        tide__closed_epoch *c = ring_at(e, i);
        for (size_t k = 0; i < e->ring_count && k < c->event_count; k++) {
            ops->event_destroy(e->device, e->gpu, c->marks[k].event);
        }
        free(c->marks);
    }
    for (size_t i = 0; i < e->spare_count; i++) {
        ops->event_destroy(e->device, e->gpu, e->spare_events[i]);
    }
    for (size_t i = 0; i < e->stream_count; i++) {
        free(e->streams[i]);
    }
    free(e->closed);
    free(e->spare_events);
    memset(e, 0, sizeof *e);
}

tide_status tide__epochs_add_stream(tide__epochs *e, tide_stream handle, uint64_t id, uint16_t *index) {
    if (e->stream_count == TIDE__STREAM_MAX) {
        return tide__fail(TIDE_LIMIT, "more than %d streams on one device: retire those that are destroyed",
                          TIDE__STREAM_MAX);
    }
    tide__epoch_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a stream's record");
    }
    s->handle = handle;
    s->driver_id = id;
    e->streams[e->stream_count] = s;
    *index = e->stream_count++;
    return TIDE_OK;
}

void tide__epochs_reuse_stream(tide__epochs *e, tide_stream handle, uint64_t id, uint16_t index) {
    tide__epoch_stream *s = e->streams[index];
    TIDE__CHECK(s->retired && s->last <= atomic_load(&e->done));
    *s = (tide__epoch_stream){.handle = handle, .driver_id = id};
}

static tide_status take_event(tide__epochs *e, tide__event *out) {
    if (e->spare_count > e->cooling_count) {
        /* The cooling ones are the last: the first of them takes the place of the one taken. */
        size_t i = e->spare_count - e->cooling_count - 1;
        *out = e->spare_events[i];
        e->spare_events[i] = e->spare_events[--e->spare_count];
        return TIDE_OK;
    }
    /* Room to keep it once it is done, so that giving one back cannot fail. */
    if (!tide__grow((void **)&e->spare_events, &e->spare_cap, e->event_count + 1, sizeof *e->spare_events)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for an event");
    }
    tide_status status = e->device->ops->event_create(e->device, e->gpu, out);
    e->event_count += status == TIDE_OK;
    return status;
}

static void give_event(tide__epochs *e, tide__event event) {
    e->spare_events[e->spare_count++] = event;
    e->cooling_count +=
        e->waiters > 0; /* somebody may be waiting for it: recording it anew would prolong that */
}

static bool ring_reserve(tide__epochs *e) {
    if (e->ring_count < e->ring_cap) {
        return true;
    }
    size_t cap = e->ring_cap == 0 ? 64 : e->ring_cap * 2;
    tide__closed_epoch *ring = calloc(cap, sizeof *ring);
    if (ring == NULL) {
        return false;
    }
    for (size_t i = 0; i < e->ring_count; i++) {
        ring[i] = *ring_at(e, i);
    }
    free(e->closed);
    e->closed = ring;
    e->ring_cap = cap;
    e->ring_first = 0;
    return true;
}

static void give_events(tide__epochs *e, const tide__closed_epoch *c) {
    for (size_t k = 0; k < c->event_count; k++) {
        give_event(e, c->marks[k].event);
    }
}

/* The driver's legacy stream, which cannot be captured. */
static bool is_legacy(const tide__epoch_stream *s) { return s->handle == 0; }

/* Has the stream, which takes no event now, queued nothing that is not in a closed epoch? */
static bool passes_over(const tide__epochs *e, const tide__epoch_stream *s) {
    if (s->captured) {
        return s->covered;
    }
    return is_legacy(s) && e->captures > 0 && s->recorded >= e->capture_from;
}

tide_status tide__epochs_cut(tide__epochs *e) {
    tide__closed_epoch *c = ring_reserve(e) ? ring_at(e, e->ring_count) : NULL;
    if (c == NULL || !tide__grow((void **)&c->marks, &c->mark_cap, e->stream_count, sizeof *c->marks)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory to close an epoch");
    }
    c->number = atomic_load(&e->open);
    c->event_count = c->done_count = 0;
    atomic_store(&e->open, c->number + 1);
    for (uint16_t i = 0; i < e->stream_count; i++) {
        tide__event event;
        if (e->streams[i]->retired) {
            continue;
        }
        tide_status status = take_event(e, &event);
        if (status == TIDE_OK) {
            c->marks[c->event_count].event = event;
            c->marks[c->event_count++].stream = i;
            status = e->device->ops->event_record(e->device, e->gpu, event, e->streams[i]->handle);
        }
        if (status == TIDE_CAPTURING && passes_over(e, e->streams[i])) {
            give_event(e, c->marks[--c->event_count].event);
            status = TIDE_OK;
        }
        if (status == TIDE_BAD_HANDLE) {
            status = tide__fail(TIDE_BAD_HANDLE,
                                "stream %#llx was destroyed and nothing said so: call tide_stream_retire, "
                                "best before it is destroyed",
                                (unsigned long long)e->streams[i]->handle);
        }
        if (status != TIDE_OK) { /* not in the ring, so never done by itself: the next cut covers it */
            give_events(e, c);
            return status;
        }
    }
    for (size_t k = 0; k < c->event_count; k++) {
        e->streams[c->marks[k].stream]->recorded = c->number;
    }
    e->ring_count++;
    e->closed_total++;
    return TIDE_OK;
}

tide_status tide__epochs_capture(tide__epochs *e, uint16_t stream) {
    tide__epoch_stream *s = e->streams[stream];
    tide_status status = tide__epochs_cut(e);
    if (status != TIDE_OK && status != TIDE_CAPTURING) {
        return status;
    }
    s->captured = true;
    s->covered = status == TIDE_OK;
    if (e->captures++ == 0) {
        e->capture_from = tide__epochs_open_number(e) - 1;
    }
    return TIDE_OK;
}

void tide__epochs_capture_end(tide__epochs *e, uint16_t stream) {
    TIDE__CHECK(e->captures > 0 && e->streams[stream]->captured);
    e->streams[stream]->captured = e->streams[stream]->covered = false;
    e->captures--;
}

static void retire_oldest(tide__epochs *e) {
    tide__closed_epoch *c = ring_at(e, 0);
    TIDE__CHECK(c->done_count == c->event_count);
    atomic_store_explicit(&e->done, c->number, memory_order_release);
    give_events(e, c);
    e->ring_first = (e->ring_first + 1) % e->ring_cap;
    e->ring_count--;
}

tide_status tide__epochs_poll(tide__epochs *e) {
    while (e->ring_count > 0) {
        tide__closed_epoch *c = ring_at(e, 0);
        while (c->done_count < c->event_count) {
            tide_status status =
                e->device->ops->event_query(e->device, e->gpu, c->marks[c->done_count].event);
            if (status == TIDE_NOT_READY) {
                return TIDE_OK;
            }
            if (status != TIDE_OK) {
                return status;
            }
            c->done_count++;
        }
        retire_oldest(e);
    }
    return TIDE_OK;
}

/* Makes sure that the epoch is closed. */
static tide_status close_up_to(tide__epochs *e, tide__epoch epoch) {
    TIDE__CHECK(epoch <= atomic_load(&e->open));
    bool in_ring = e->ring_count > 0 && ring_at(e, e->ring_count - 1)->number >= epoch;
    if (epoch <= atomic_load(&e->done) || in_ring) {
        return TIDE_OK;
    }
    return tide__epochs_cut(e);
}

/* Waits for one event without the lock. */
static tide_status wait_event(tide__epochs *e, tide__event event, uint64_t timeout_ns,
                              pthread_mutex_t *held) {
    e->waiters++;
    pthread_mutex_unlock(held);
    tide_status status = e->device->ops->event_wait(e->device, e->gpu, event, timeout_ns);
    pthread_mutex_lock(held);
    if (--e->waiters == 0) {
        e->cooling_count = 0;
    }
    return status;
}

tide_status tide__epochs_wait(tide__epochs *e, tide__epoch epoch, uint64_t timeout_ns,
                              pthread_mutex_t *held) {
    tide_status status = close_up_to(e, epoch);
    uint64_t start = e->device->ops->now_ns(e->device), took = 0;
    bool waited = false;
    while (status == TIDE_OK && (status = tide__epochs_poll(e)) == TIDE_OK && tide__epochs_done(e) < epoch &&
           e->ring_count > 0) {
        const tide__closed_epoch *c =
            ring_at(e, 0); /* its first event that is not done holds all others up */
        waited = true;
        if (timeout_ns != UINT64_MAX) {
            took = e->device->ops->now_ns(e->device) - start;
        }
        status = wait_event(e, c->marks[c->done_count].event, timeout_ns - tide__min(took, timeout_ns), held);
    }
    e->host_waits += waited;
    return status;
}

/* The first closed epoch at or after `epoch`; NULL where it is done. */
static tide__closed_epoch *closed_from(tide__epochs *e, tide__epoch epoch) {
    for (size_t i = 0; i < e->ring_count; i++) {
        if (ring_at(e, i)->number >= epoch) {
            return ring_at(e, i);
        }
    }
    return NULL;
}

/* The stream waits for the events of one closed epoch, but for those of streams
 * that have a later one in `last`: a stream's events complete in order. Streams
 * that were retired or captured by then have their last event in an older epoch. */
static tide_status wait_for_marks(tide__epochs *e, uint16_t stream, const tide__closed_epoch *c,
                                  const tide__closed_epoch *last) {
    for (size_t k = c->done_count; k < c->event_count; k++) {
        uint16_t other = c->marks[k].stream;
        if (other == stream || (c != last && e->streams[other]->marked_in == last->number)) {
            continue;
        }
        tide_status status = e->device->ops->stream_wait_event(e->device, e->gpu, e->streams[stream]->handle,
                                                               c->marks[k].event);
        if (status != TIDE_OK) {
            return status;
        }
        e->stream_waits++;
    }
    return TIDE_OK;
}

tide_status tide__epochs_stream_wait(tide__epochs *e, uint16_t stream, tide__epoch epoch) {
    tide__epoch_stream *s = e->streams[stream];
    tide_status status = close_up_to(e, epoch);
    if (status != TIDE_OK || epoch <= s->waited) {
        return status;
    }
    const tide__closed_epoch *last = closed_from(e, epoch);
    if (last == NULL) {
        s->waited = epoch; /* all done already */
        return TIDE_OK;
    }
    for (size_t k = 0; k < last->event_count; k++) {
        e->streams[last->marks[k].stream]->marked_in = last->number;
    }
    for (size_t i = 0; status == TIDE_OK; i++) {
        const tide__closed_epoch *c = ring_at(e, i);
        status = wait_for_marks(e, stream, c, last);
        if (c == last) {
            break;
        }
    }
    if (status == TIDE_OK) {
        s->waited = last->number;
    }
    return status;
}
