/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch: when is freed memory idle?
 *
 * An event per free would cost more than the free. Instead time is cut into
 * epochs: a free stores the number of the open one, and the slow path closes
 * it by recording one event on every stream seen on the device. When all of
 * an epoch's events are done, everything freed in it or before is idle: no
 * queued work of any seen stream can touch it.
 *
 *      epoch 7        epoch 8        epoch 9 (open)
 *   --frees------|--frees-------|--frees--------> host time
 *            events 7        events 8
 *
 * Invariant: the number of the open epoch rises before the closing events are
 * recorded. A free that still read the old number therefore came before them,
 * and so did the work its caller had queued.
 *
 * Captures: no event is recorded on a stream that is being captured into a
 * graph. One whose capture was announced in time had an event in the epoch that
 * the announcement closed, and queues no work since: later epochs pass it over,
 * and the legacy stream too while it is refused for the capture's sake. A
 * capture that nobody announced may hide work queued before it, so no epoch is
 * closed until it has ended.
 *
 * Threads: `open` and `done` may be read by anyone; everything else is under
 * the caller's slow lock.
 */
#ifndef TIDE_EPOCH_H
#define TIDE_EPOCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/device.h"

typedef uint64_t tide__epoch; /* from 1; 0 is before everything: always done */

#define TIDE__STREAM_NONE UINT16_MAX
#define TIDE__STREAM_MAX 4096

typedef struct tide__epoch_stream {
    tide_stream handle;
    uint64_t driver_id;
    bool retired;
    bool captured;         /* announced, by tide__epochs_capture */
    bool covered;          /* captured: what it had queued is in an epoch that is closed */
    tide__epoch recorded;  /* the last that has an event of it */
    tide__epoch marked_in; /* scratch of tide__epochs_stream_wait: the epoch it has an event in */
    tide__epoch last;      /* retired: of its last work */
    tide__epoch waited;    /* the stream was made to wait, on the device, for all epochs up to this */
} tide__epoch_stream;

typedef struct tide__closed_epoch {
    tide__epoch number;
    size_t event_count, done_count;
    struct {
        tide__event event;
        uint16_t stream; /* whose */
    } * marks;           /* one a stream seen when it closed; kept for the ring's next turn */
    size_t mark_cap;
} tide__closed_epoch;

typedef struct tide__epochs {
    tide__device *device;
    int gpu;
    _Atomic(tide__epoch) open, done;
    tide__epoch_stream *streams[TIDE__STREAM_MAX];
    uint16_t stream_count;
    tide__closed_epoch *closed; /* a ring, oldest first */
    size_t ring_first, ring_count, ring_cap;
    tide__event *spare_events;
    size_t spare_count, spare_cap;
    size_t event_count;   /* of all that exist */
    unsigned waiters;     /* hosts that stand still for an event, without the lock */
    size_t cooling_count; /* the last so many spare events are not used again before they have left */
    uint64_t closed_total, host_waits, stream_waits;
    unsigned captures;        /* streams captured */
    tide__epoch capture_from; /* while there are any: closed when the first was announced */
} tide__epochs;

tide_status tide__epochs_open(tide__epochs *e, tide__device *device, int gpu);
void tide__epochs_close(tide__epochs *e);

/* Adds a stream, of the driver's id; its index is what blocks store. */
tide_status tide__epochs_add_stream(tide__epochs *e, tide_stream handle, uint64_t id, uint16_t *index);

/* Gives the index of a retired stream, whose last epoch is done and of which no
 * block is left that is not idle, to a new one. */
void tide__epochs_reuse_stream(tide__epochs *e, tide_stream handle, uint64_t id, uint16_t index);

/* Closes the open epoch. On failure it stays as closed as it is: the epoch is
 * merged into the next one, never taken for done. TIDE_CAPTURING: not before a
 * capture that nobody announced has ended. TIDE_BAD_HANDLE: not before a
 * stream that was destroyed, which the message names, is retired. */
tide_status tide__epochs_cut(tide__epochs *e);

/* The stream's capture begins or has ended. At its beginning an epoch is closed;
 * where the stream is captured already nothing is until it ends. */
tide_status tide__epochs_capture(tide__epochs *e, uint16_t stream);
void tide__epochs_capture_end(tide__epochs *e, uint16_t stream);

/* Asks the events and raises `done`; asks no more than needed. */
tide_status tide__epochs_poll(tide__epochs *e);

/* The host waits until `epoch` is done (closing it if open), at most timeout_ns.
 * `held` is the caller's lock over *e: dropped while the host stands still and
 * taken again, so that others go on; what it guards may have changed since. */
tide_status tide__epochs_wait(tide__epochs *e, tide__epoch epoch, uint64_t timeout_ns, pthread_mutex_t *held);

/* Stream waits on the device for all epochs up to `epoch` (closing it if open). */
tide_status tide__epochs_stream_wait(tide__epochs *e, uint16_t stream, tide__epoch epoch);

static inline tide__epoch tide__epochs_open_number(tide__epochs *e) { return atomic_load(&e->open); }
static inline tide__epoch tide__epochs_done(tide__epochs *e) {
    return atomic_load_explicit(&e->done, memory_order_acquire);
}

#endif
