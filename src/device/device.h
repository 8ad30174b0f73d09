/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device: what a driver offers, as one table of functions, so that everything
 * above runs on a GPU, on host memory, on a cost model, or on any of them with
 * failures injected. The rooms above never name a backend.
 *
 * Contract, for every backend (tests/device holds it against each):
 *  - A function returns a status and, on failure, has set the thread's message
 *    and changed nothing; outputs are written only on success.
 *  - Sizes and addresses of chunk calls are multiples of the granularity.
 *  - map puts one whole chunk at an address inside one reservation where
 *    nothing is mapped; the range is usable after set_access. A chunk may be
 *    mapped at several addresses; all see the same bytes.
 *  - unmap takes away whole mappings (one call may span several that adjoin,
 *    with no gaps between). It does not wait for queued work: the caller knows
 *    that work is done.
 *  - chunk_release ends the caller's reference; the bytes are free once no
 *    mapping is left.
 *  - Stream 0 cannot be destroyed, and event 0 is TIDE_BAD_HANDLE. An event
 *    outlives its stream. raw_free waits for the device.
 *  - While a stream is captured into a graph no event is recorded on it and it is
 *    not made to wait: event_record and stream_wait_event say TIDE_CAPTURING
 *    before they touch it. event_query and event_wait touch no stream, and all
 *    calls on memory work as ever.
 *  - Once the device is lost or gone (health) every call but close, count,
 *    properties and counters says so and touches no driver.
 *  - Calls are counted also when they fail.
 *  - Any thread may call; the tables' functions do their own locking.
 */
#ifndef TIDE_DEVICE_H
#define TIDE_DEVICE_H

#include "base/base.h"

typedef struct tide__device tide__device;
typedef uint64_t tide__chunk_handle;
typedef uint64_t tide__event; /* 0 is no event */

/* The calls that are counted, charged by sim and failed by fault. Order is
 * part of no interface; names are what messages and `fault` specs use. */
#define TIDE__CALL_LIST(X)                  \
    X(MEM_INFO, "mem_info")                 \
    X(RESERVE, "reserve")                   \
    X(UNRESERVE, "unreserve")               \
    X(CHUNK_CREATE, "chunk_create")         \
    X(CHUNK_RELEASE, "chunk_release")       \
    X(MAP, "map")                           \
    X(SET_ACCESS, "set_access")             \
    X(UNMAP, "unmap")                       \
    X(RAW_ALLOC, "raw_alloc")               \
    X(RAW_FREE, "raw_free")                 \
    X(STREAM_ID, "stream_id")               \
    X(STREAM_CREATE, "stream_create")       \
    X(STREAM_DESTROY, "stream_destroy")     \
    X(EVENT_CREATE, "event_create")         \
    X(EVENT_DESTROY, "event_destroy")       \
    X(EVENT_RECORD, "event_record")         \
    X(EVENT_QUERY, "event_query")           \
    X(EVENT_WAIT, "event_wait")             \
    X(STREAM_WAIT, "stream_wait_event")     \
    X(STREAM_CAPTURING, "stream_capturing") \
    X(PEER_ENABLE, "peer_enable")           \
    X(DEVICE_WAIT, "device_wait")

typedef enum tide__call {
#define X(id, name) TIDE__CALL_##id,
    TIDE__CALL_LIST(X)
#undef X
        TIDE__CALL_COUNT
} tide__call;

const char *tide__call_name(tide__call call);

typedef struct tide__device_properties {
    uint64_t total_bytes;
    uint64_t granularity;   /* of chunks and their addresses; a power of two, 2 MiB on today's GPUs */
    uint64_t address_bytes; /* what a process may reserve in all */
    char name[96];
    bool exportable; /* chunks can be exported as file descriptors */
    bool fabric;     /* ... and as fabric handles */
    bool rdma;       /* chunks are made for GPUDirect RDMA */
    int numa_node;   /* of the host, nearest to the device; -1: not known */
    int compute_major, compute_minor;
    int driver_version; /* 1000 * major + 10 * minor of the CUDA that it offers; 0: no driver */
} tide__device_properties;

typedef enum tide__health {
    TIDE__HEALTH_OK,
    TIDE__HEALTH_LOST, /* an error that sticks: TIDE_DEVICE_LOST from here on */
    TIDE__HEALTH_GONE, /* the driver has shut down, as at the process's end: TIDE_DEVICE_GONE */
} tide__health;

typedef struct tide__device_counters {
    uint64_t calls[TIDE__CALL_COUNT];
    uint64_t driver_ns;      /* time in the driver: charged by sim, measured elsewhere (0 where it is not) */
    uint64_t host_wait_ns;   /* the host stood still for an event */
    uint64_t stream_wait_ns; /* streams stood still for an event of another */
} tide__device_counters;

typedef struct tide__device_ops {
    size_t struct_size;
    const char *name;

    void (*close)(tide__device *d);
    int (*count)(tide__device *d);
    tide_status (*properties)(tide__device *d, int gpu, tide__device_properties *out);
    tide_status (*mem_info)(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes);

    /* hint 0: anywhere; else exactly there or TIDE_NO_ADDRESSES. */
    tide_status (*reserve)(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                           uint64_t *va);
    tide_status (*unreserve)(tide__device *d, int gpu, uint64_t va, uint64_t size);

    /* TIDE_NO_DEVICE_MEMORY when the device has not the bytes. */
    tide_status (*chunk_create)(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out);
    tide_status (*chunk_release)(tide__device *d, int gpu, tide__chunk_handle chunk);
    tide_status (*map)(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk);
    tide_status (*set_access)(tide__device *d, int gpu, uint64_t va, uint64_t size);
    tide_status (*unmap)(tide__device *d, int gpu, uint64_t va, uint64_t size);

    /* cudaMalloc and cudaFree, for pools that need them and models of allocators that use them. */
    tide_status (*raw_alloc)(tide__device *d, int gpu, uint64_t size, uint64_t *va);
    tide_status (*raw_free)(tide__device *d, int gpu, uint64_t va);

    /* The id of a stream for the life of the process, never used again: handles are. */
    tide_status (*stream_id)(tide__device *d, int gpu, tide_stream stream, uint64_t *id);
    tide_status (*stream_create)(tide__device *d, int gpu, tide_stream *out);
    tide_status (*stream_destroy)(tide__device *d, int gpu, tide_stream stream);

    tide_status (*event_create)(tide__device *d, int gpu, tide__event *out);
    tide_status (*event_destroy)(tide__device *d, int gpu, tide__event event);
    /* Completes when all that is queued on the stream now is done; recording again replaces. */
    tide_status (*event_record)(tide__device *d, int gpu, tide__event event, tide_stream stream);
    /* TIDE_OK: done (or never recorded); TIDE_NOT_READY, with no message set: not yet. */
    tide_status (*event_query)(tide__device *d, int gpu, tide__event event);
    /* The host waits; TIDE_TIMEOUT after timeout_ns (UINT64_MAX: no bound). */
    tide_status (*event_wait)(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns);
    /* What is queued on the stream from now on runs after the event; the host does not wait. */
    tide_status (*stream_wait_event)(tide__device *d, int gpu, tide_stream stream, tide__event event);

    /* Would work queued on it now go into a graph? (Of stream 0: or be refused, since a
     * stream is captured that synchronises with it.) */
    tide_status (*stream_capturing)(tide__device *d, int gpu, tide_stream stream, bool *out);

    /* From here on set_access on the GPU's ranges serves the GPU `peer` too; what was set
     * before is to be set again. TIDE_UNSUPPORTED where the two cannot reach each other;
     * twice, or itself, is TIDE_OK. */
    tide_status (*peer_enable)(tide__device *d, int gpu, int peer);
    /* The host waits for all that is queued on the GPU; TIDE_TIMEOUT after timeout_ns,
     * TIDE_CAPTURING while a stream of it is captured. The caller sees to it that none that it
     * knows is: on cuda only captures of streams that synchronise with stream 0 are found
     * beforehand, and any other is spoilt by the call. */
    tide_status (*device_wait)(tide__device *d, int gpu, uint64_t timeout_ns);
    /* Not counted: callers ask at every turn. */
    tide__health (*health)(tide__device *d);

    uint64_t (*now_ns)(tide__device *d);
    /* May be asked at any time. */
    void (*counters)(tide__device *d, int gpu, tide__device_counters *out);
} tide__device_ops;

/* Every backend's state begins with this. */
struct tide__device {
    const tide__device_ops *ops;
};

/* ---- The backends ---- */

/* sim: counts, charges and keeps a clock; no byte exists. */
typedef struct tide__sim_costs {
    uint64_t create_ns, create_dirty_ns_per_mib, map_ns, set_access_ns, unmap_ns; /* per chunk */
    uint64_t release_ns, release_ns_per_mib;
    uint64_t raw_alloc_ns, raw_free_ns;
} tide__sim_costs;

extern const tide__sim_costs tide__sim_h200_costs; /* measured on an H200, driver 13.0 */
#define TIDE__SIM_H200_BYTES UINT64_C(150109880320)

typedef struct tide__sim_options {
    int device_count;             /* 0: 1 */
    uint64_t capacity_bytes;      /* per device; 0: an H200's */
    uint64_t granularity;         /* 0: 2 MiB */
    uint64_t event_delay_ns;      /* how far the GPU lags the host */
    const tide__sim_costs *costs; /* NULL: tide__sim_h200_costs */
} tide__sim_options;

tide_status tide__sim_open(const tide__sim_options *options, tide__device **out);

/* Sets the host's clock, as a trace tells it. Waits of the host move it on:
 * the clock is the trace's time plus all time waited. Never goes back. */
void tide__sim_set_trace_time(tide__device *d, uint64_t ns);
/* The stream, which must exist, is captured from here on, or no more. */
void tide__sim_set_capturing(tide__device *d, int gpu, tide_stream stream, bool capturing);

/* cuda: all GPUs that the process sees, through libcuda (or the file that PAGETIDE_LIBCUDA
 * names), which is opened now. TIDE_NO_DEVICE, and what to do, where there is none. Makes
 * no context before the first call that needs one. */
tide_status tide__cuda_open(tide__device **out);

/* host: chunks are memfd pages, streams are threads. See host.h for queueing work. */
typedef struct tide__host_options {
    int device_count;        /* 0: 1 */
    uint64_t capacity_bytes; /* per device; 0: an H200's (pages are sparse) */
    uint64_t granularity;    /* 0: 2 MiB */
} tide__host_options;
tide_status tide__host_open(const tide__host_options *options, tide__device **out);

/* fault: wraps a device (which it then owns) and fails chosen calls. See fault.h. */

#endif
