/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the host device share; nobody else includes it.
 *
 *   host.c          open, close, and the table: enters a GPU, calls the rest
 *   host_chunks.c   bytes: the memfd and its offsets, chunks
 *   host_pages.c    addresses: reservations, mappings
 *   host_streams.c  streams, their threads, events, and all waiting
 *   host_work.c     operations: queueing them and running them
 *   host_clocks.c   what is ordered: vector clocks, who touched which bytes
 *
 * Locks. Each GPU has one, and it guards all of that GPU below. The device's
 * handler_lock is a leaf, taken with or without a GPU's lock held; nothing is
 * taken under it. Two GPUs' locks are never held at once. Bytes are touched and
 * handlers and callbacks run with no lock held.
 */
#ifndef TIDE_HOST_INTERNAL_H
#define TIDE_HOST_INTERNAL_H

#include <pthread.h>

#include "device/device.h"
#include "device/host.h"

typedef struct tide__host_gpu tide__host_gpu;
typedef struct tide__host tide__host;

/* ---- Handles: generation 32 bits, kind 2, gpu 6, index 24; never 0 ---- */

#define TIDE__HOST_MAX_GPUS 64
#define TIDE__HOST_MAX_HANDLES ((size_t)1 << 24)

typedef enum tide__host_kind {
    TIDE__HOST_CHUNK,
    TIDE__HOST_EVENT,
    TIDE__HOST_STREAM,
    TIDE__HOST_GATE
} tide__host_kind;

typedef struct tide__host_slot {
    void *object;        /* NULL: free */
    uint32_t generation; /* of the object, or of the next one */
    uint32_t next_free;  /* index + 1 */
} tide__host_slot;

typedef struct tide__host_table {
    tide__host_kind kind;
    int gpu;
    bool same_generation; /* handles come again */
    tide__host_slot *slots;
    size_t count, capacity;
    uint32_t first_free; /* index + 1 */
} tide__host_table;

uint64_t tide__host_table_add(tide__host_table *t, void *object); /* 0: the host is out of memory */
void *tide__host_table_get(const tide__host_table *t, uint64_t handle);
void tide__host_table_remove(tide__host_table *t, uint64_t handle);

/* ---- Clocks ---- */

/* at[slot]: the newest operation of that stream slot known to come before. */
typedef struct tide__host_clock {
    uint64_t *at;
    size_t count;
} tide__host_clock;

typedef struct tide__host_access {
    size_t slot;
    tide__host_operation op; /* op.sequence 0: none */
} tide__host_access;

/* Bytes [lo, hi) of the memfd that share a history. */
typedef struct tide__host_span {
    uint64_t lo, hi;
    tide__host_access write;
    tide__host_access *reads; /* since that write, none ordered before another */
    size_t read_count;
} tide__host_span;

#define TIDE__HOST_CELL_BYTES (2 * TIDE__MIB)
typedef struct tide__host_cell {
    tide__host_span *spans; /* sorted, disjoint; gaps have no history that matters */
    size_t count, capacity;
} tide__host_cell;

bool tide__host_clock_grow(tide__host_clock *c, size_t count) __attribute__((warn_unused_result));
void tide__host_clock_free(tide__host_clock *c);
void tide__host_clock_join(tide__host_clock *into, const tide__host_clock *from);
void tide__host_clock_set(tide__host_clock *to, const tide__host_clock *from);
static inline bool tide__host_clock_covers(const tide__host_clock *c, const tide__host_access *a) {
    return a->op.sequence == 0 || (a->slot < c->count && c->at[a->slot] >= a->op.sequence);
}

/* ---- Pages ---- */

typedef struct tide__host_chunk {
    uint64_t handle, offset, size;
    size_t mappings;
    bool released;
} tide__host_chunk;

typedef struct tide__host_mapping {
    uint64_t va, size;
    uint64_t id; /* never used again */
    tide__host_chunk *chunk;
    bool accessible;
    uint64_t peers;           /* GPUs, a bit each, that set_access gave it to besides its own */
    tide__host_access *users; /* the operations through this mapping that no later one follows */
    size_t user_count, user_capacity;
} tide__host_mapping;

typedef struct tide__host_reservation {
    uint64_t va, size;
    bool raw; /* of raw_alloc: closed to map, unmap and unreserve */
} tide__host_reservation;

typedef struct tide__host_hole {
    uint64_t offset, size;
} tide__host_hole;

typedef struct tide__host_pages {
    int fd;
    uint64_t capacity_bytes, granularity, used_bytes;
    tide__host_table chunks;
    size_t chunk_count; /* with bytes: also those released and still mapped */
    tide__host_hole *holes;
    size_t hole_count, hole_capacity;
    tide__host_reservation *reservations;
    size_t reservation_count, reservation_capacity;
    tide__host_mapping **mappings;
    size_t mapping_count, mapping_capacity;
    uint64_t next_mapping_id;
    size_t areas, area_limit; /* what the kernel counts as mappings; the limit is the process's */
} tide__host_pages;

/* ---- Streams, events, operations ---- */

typedef enum tide__host_op_kind {
    TIDE__HOST_OP_FILL,
    TIDE__HOST_OP_COPY,
    TIDE__HOST_OP_CHECK,
    TIDE__HOST_OP_FILL_PATTERN,
    TIDE__HOST_OP_CHECK_PATTERN,
    TIDE__HOST_OP_CALLBACK,
    TIDE__HOST_OP_DELAY,
    TIDE__HOST_OP_HOLD,
    TIDE__HOST_OP_WAIT,  /* for an event */
    TIDE__HOST_OP_RECORD /* only where records are late; does nothing itself */
} tide__host_op_kind;

typedef struct tide__host_op_range {
    uint64_t va, size;
    bool writes;
    uint64_t signature; /* of the mappings behind it when it was queued */
} tide__host_op_range;

typedef struct tide__host_op {
    struct tide__host_op *next;
    tide__host_op_kind kind;
    uint64_t sequence, late_ns;
    uint64_t value;         /* byte or seed, time of a delay, gate */
    size_t wait_slot;       /* WAIT: until this slot ... */
    uint64_t wait_sequence; /* ... has done this much */
    void (*fn)(void *user);
    void *user;
    size_t range_count;
    tide__host_op_range ranges[];
} tide__host_op;

typedef struct tide__host_stream {
    tide__host_gpu *gpu;
    uint64_t id;
    tide_stream handle;
    size_t slot;
    tide__host_clock clock;
    pthread_t thread; /* from the first operation on */
    bool started, stop;
    pthread_cond_t work;
    tide__host_op *head, *tail;
    const tide__host_op *touching; /* its bytes are being touched right now */
    tide__host_graph *graph;       /* it is captured into this */
} tide__host_stream;

/* A place in the clocks. Outlives its stream: a later stream goes on counting
 * where it stopped, so an old sequence number stays true. */
typedef struct tide__host_lane {
    tide__host_stream *stream; /* NULL: free */
    uint64_t queued, done;     /* sequence numbers */
} tide__host_lane;

typedef struct tide__host_event {
    tide__host_clock clock; /* of the stream when recorded */
    size_t slot;
    uint64_t sequence; /* done when lane[slot].done reaches it; 0: never recorded */
} tide__host_event;

struct tide__host_gpu {
    tide__host *host;
    int index;
    pthread_mutex_t lock;
    pthread_cond_t progress; /* an operation is done, a gate is open, the device closes */
    bool closing;
    tide__host_pages pages;

    tide__host_table streams, events, gates;
    tide__host_stream *default_stream;
    tide__host_lane *lanes;
    size_t lane_count, lane_capacity;
    tide__host_clock host_clock; /* what the host knows to be done */
    tide__map cells;             /* memfd offset / CELL_BYTES -> tide__host_cell * */

    uint64_t random, lateness_ns;
    uint64_t peers;    /* as in a mapping, of those set from now on */
    unsigned captures; /* streams that are captured */
    tide__host_result result;
    tide__device_counters counters;
};

struct tide__host {
    tide__device base;
    int gpu_count;
    tide__device_properties properties;
    pthread_mutex_t handler_lock;
    tide__host_handler handler;
    void *handler_user;
    tide__host_gpu gpus[];
};

/* host.c. The device, checked to be one of these and no wrapper around it. */
tide__host *tide__host_of(tide__device *d);
/* Locks the GPU; NULL, with the message set, if there is none. */
tide__host_gpu *tide__host_enter(tide__device *d, int gpu);
void tide__host_leave(tide__host_gpu *g);

/* host_chunks.c, with the GPU's lock held. */
bool tide__host_chunks_open(tide__host_pages *p, int gpu, uint64_t capacity_bytes, uint64_t granularity);
void tide__host_chunks_close(tide__host_pages *p);
tide_status tide__host_chunk_create(tide__host_gpu *g, uint64_t size, tide__chunk_handle *out);
tide_status tide__host_chunk_release(tide__host_gpu *g, tide__chunk_handle chunk);
/* A released chunk's last mapping is gone: its pages go back to the host. */
void tide__host_chunk_free(tide__host_pages *p, tide__host_chunk *chunk);

/* host_pages.c: all with the GPU's lock held; unmap and raw_free let go of it
 * while a handler runs or work is waited for. */
bool tide__host_pages_open(tide__host_pages *p, int gpu, uint64_t capacity_bytes, uint64_t granularity);
void tide__host_pages_close(tide__host_pages *p);
/* Not empty, no overflow, multiples of the granularity. */
tide_status tide__host_check_range(const tide__host_pages *p, const char *call, uint64_t va, uint64_t size);
tide_status tide__host_reserve(tide__host_gpu *g, uint64_t size, uint64_t align, uint64_t hint, uint64_t *va);
tide_status tide__host_unreserve(tide__host_gpu *g, uint64_t va, uint64_t size);
tide_status tide__host_map(tide__host_gpu *g, uint64_t va, uint64_t size, tide__chunk_handle chunk);
tide_status tide__host_set_access(tide__host_gpu *g, uint64_t va, uint64_t size);
tide_status tide__host_peer_enable(tide__host_gpu *g, int peer);
tide_status tide__host_unmap(tide__host_gpu *g, uint64_t va, uint64_t size);
tide_status tide__host_raw_alloc(tide__host_gpu *g, uint64_t size, uint64_t *va);
tide_status tide__host_raw_free(tide__host_gpu *g, uint64_t va);
/* The mappings behind [va, va + size), first to first + count; false where a
 * byte is not mapped or not accessible. */
bool tide__host_resolve(const tide__host_pages *p, uint64_t va, uint64_t size, size_t *first, size_t *count);

/* host_streams.c: with the lock held; what waits lets go of it meanwhile. */
tide_status tide__host_stream_open(tide__host_gpu *g, bool is_default, tide_stream *out);
tide_status tide__host_stream_close(tide__host_gpu *g, tide_stream stream);
tide__host_stream *tide__host_stream_find(tide__host_gpu *g, tide_stream stream); /* NULL: BAD_HANDLE, said */
void tide__host_streams_stop(tide__host_gpu *g);
bool tide__host_stream_start(tide__host_stream *s);
tide_status tide__host_event_create(tide__host_gpu *g, tide__event *out);
tide_status tide__host_event_destroy(tide__host_gpu *g, tide__event event);
tide_status tide__host_event_record(tide__host_gpu *g, tide__event event, tide_stream stream);
tide_status tide__host_event_query(tide__host_gpu *g, tide__event event);
tide_status tide__host_event_wait(tide__host_gpu *g, tide__event event, uint64_t timeout_ns);
tide_status tide__host_stream_wait(tide__host_gpu *g, tide_stream stream, tide__event event);
/* False when the deadline (of the monotonic clock; UINT64_MAX: none) came first. */
bool tide__host_wait_done(tide__host_gpu *g, size_t slot, uint64_t sequence, uint64_t deadline_ns);
tide_status tide__host_wait_stream(tide__host_gpu *g, size_t slot);
tide_status tide__host_wait_device(tide__host_gpu *g);
/* The same, for at most timeout_ns and while nothing is captured. */
tide_status tide__host_wait_all(tide__host_gpu *g, uint64_t timeout_ns);
/* Waits on progress until the deadline at most. */
void tide__host_wait_progress(tide__host_gpu *g, uint64_t deadline_ns);

/* host_work.c, with the lock held; run lets go of it while bytes are touched. */
tide__host_op *tide__host_op_new(tide__host_op_kind kind, size_t range_count);
/* Takes the operation, whether it succeeds or not. May let go of the lock to
 * report a violation. */
tide_status tide__host_enqueue(tide__host_gpu *g, tide_stream stream, tide__host_op *op);
void tide__host_run(tide__host_gpu *g, tide__host_stream *s, tide__host_op *op);
const char *tide__host_op_name(tide__host_op_kind kind);

/* host_graph.c, with the lock held. */
tide_status tide__host_stream_capturing(tide__host_gpu *g, tide_stream stream, bool *out);
/* TIDE_CAPTURING, said, where the stream is captured. */
tide_status tide__host_check_not_captured(const tide__host_gpu *g, const tide__host_stream *s);
/* The operation goes into the graph that its stream is captured into. */
void tide__host_graph_add(tide__host_graph *graph, tide__host_op *op);
void tide__host_graph_free(tide__host_graph *graph);

/* host_clocks.c, with the lock held. */
/* The operation, ordered by its stream's clock, touches one range: enters it in
 * the histories of its bytes and mappings. True if it is at odds with an
 * earlier one: *v then says how. */
bool tide__host_note(tide__host_gpu *g, const tide__host_stream *s, const tide__host_op *op,
                     const tide__host_op_range *range, tide__host_violation *v);
/* True if the host does not know all work through these mappings to be done. */
bool tide__host_check_unmap(tide__host_gpu *g, size_t first, size_t count, tide__host_violation *v);
void tide__host_cells_free(tide__host_gpu *g);
void tide__host_describe(tide__host_violation *v, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Calls the handler: lets go of the lock and takes it again. */
void tide__host_report(tide__host_gpu *g, const tide__host_violation *v);

#endif
