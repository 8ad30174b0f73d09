/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done when the device or a limit refuses bytes. One step at a time,
 * the cheapest first; after each the caller looks at the free blocks again:
 *
 *   1. idle chunks are given back, so that new ones of the right size fit
 *   2. those who asked to be told (callbacks) free what they can
 *   3. the host waits for the oldest epoch that something freed waits for, never
 *      for one that would free nothing; then 1 again
 *   4. the host waits for the whole device, once, unless a stream is captured that we
 *      know: others' frees may be queued there
 *
 * All waits together are bounded: work on this device may itself wait for what
 * the caller would do next.
 */
#include "heap/plan.h"

void tide__shortage_begin(tide__core *c, uint64_t bytes, uint64_t deadline, tide__shortage *s) {
    *s =
        (tide__shortage){.bytes = bytes, .until = tide__epochs_open_number(&c->epochs), .deadline = deadline};
}

uint64_t tide__core_time_left(tide__core *c, uint64_t deadline) {
    uint64_t now = c->device->ops->now_ns(c->device);
    return deadline == UINT64_MAX ? UINT64_MAX : deadline - tide__min(now, deadline);
}

/* Once for each state of the epochs: what a failed attempt took is idle again, so
 * releasing twice without an epoch in between would go on for ever. */
static bool release(tide__core *c, tide__shortage *s) {
    uint64_t released = 0;
    if (s->released) {
        return false;
    }
    s->released = true;
    tide_status status = tide__core_release_idle(c, s->bytes, &released);
    return status == TIDE_OK && released > 0;
}

static bool ask_others(tide__core *c, tide__shortage *s) {
    if (s->asked || c->on_shortage == NULL) {
        return false;
    }
    s->asked = true;
    pthread_mutex_unlock(&c->slow);
    bool freed = c->on_shortage(c->owner, c->gpu, s->bytes);
    pthread_mutex_lock(&c->slow);
    if (freed) { /* theirs count as freed by now */
        s->until = tide__epochs_open_number(&c->epochs);
        s->released = false;
        tide__core_flush_caches(c);
        return tide__core_poll(c) == TIDE_OK;
    }
    return false;
}

static bool wait_for_epoch(tide__core *c, tide__shortage *s) {
    tide__epoch next = tide__core_earliest_pending(c);
    if (next == 0 || next > s->until) {
        return false;
    }
    tide_status status = tide__epochs_wait(&c->epochs, next, tide__core_time_left(c, s->deadline), &c->slow);
    s->timed_out = s->timed_out || status == TIDE_TIMEOUT;
    if (status != TIDE_OK) {
        return false;
    }
    s->released = false;
    return tide__core_poll(c) == TIDE_OK;
}

/* To wait for a device would spoil a capture on any of its streams. */
static bool is_anything_captured(tide__core *c) {
    bool captured = c->epochs.captures > 0;
    for (uint16_t i = 0; i < c->epochs.stream_count && !captured; i++) {
        const tide__epoch_stream *e = c->epochs.streams[i];
        bool is = true; /* also where it cannot be told */
        captured = !e->retired &&
                   (c->device->ops->stream_capturing(c->device, c->gpu, e->handle, &is) != TIDE_OK || is);
    }
    return captured;
}

static bool wait_for_device(tide__core *c, tide__shortage *s) {
    if (s->waited_device || s->timed_out || is_anything_captured(c)) {
        return false;
    }
    s->waited_device = true;
    uint64_t left = tide__core_time_left(c, s->deadline);
    pthread_mutex_unlock(&c->slow);
    tide_status status = c->device->ops->device_wait(c->device, c->gpu, left);
    pthread_mutex_lock(&c->slow);
    s->timed_out = status == TIDE_TIMEOUT;
    if (status != TIDE_OK) { /* TIDE_CAPTURING too: then this step is not to be had */
        return false;
    }
    c->epochs.host_waits++;
    s->until = tide__epochs_open_number(&c->epochs);
    s->released = false;
    return tide__core_poll(c) == TIDE_OK;
}

bool tide__shortage_relieve(tide__core *c, tide__shortage *s, tide_status refused) {
    if (release(c, s) || ask_others(c, s) || wait_for_epoch(c, s)) {
        return true;
    }
    /* A limit is the user's: nothing on the device makes room under it that the steps above have not. */
    return refused == TIDE_NO_DEVICE_MEMORY && wait_for_device(c, s);
}
