/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the cuda device share; nobody else includes it.
 *
 *   cuda_api.h      the driver API, in our own words
 *   cuda_load.c     libcuda, opened at run time
 *   cuda_context.c  entering and leaving a GPU
 *   cuda_error.c    the driver's results as statuses, messages and states
 *   cuda_memory.c   addresses, chunks, mappings
 *   cuda_stream.c   streams, events, waiting
 *   cuda.c          open, close, and the table
 *
 * Locks: one, for the first entry into a GPU. The driver does its own locking;
 * counters are atomic; what is learned (fallbacks, peers, health) is one atomic
 * word each.
 */
#ifndef TIDE_CUDA_INTERNAL_H
#define TIDE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/cuda_api.h"
#include "device/device.h"

#define TIDE__CUDA_MAX_GPUS 64

struct tide__cuda;

typedef struct tide__cuda_gpu {
    struct tide__cuda *cuda;
    const tide__cuda_api *api; /* the device's */
    int ordinal;
    CUdevice device;
    tide__device_properties properties;
    _Atomic(CUcontext) context; /* the primary one, retained; NULL: not entered so far */
    _Atomic(unsigned) plainer;  /* what the driver refused chunks to be: see chunk_create */
    _Atomic(uint64_t) peers;    /* GPUs, a bit each, that set_access serves too */
    _Atomic(uint64_t) calls[TIDE__CALL_COUNT];
    _Atomic(uint64_t) driver_ns, host_wait_ns;
} tide__cuda_gpu;

typedef struct tide__cuda {
    tide__device base;
    const tide__cuda_api *api;
    int gpu_count;
    pthread_mutex_t first_entry;
    _Atomic(int) health; /* tide__health */
    tide__cuda_gpu gpus[];
} tide__cuda;

/* The functions of libcuda, for the life of the process; `file` or libcuda.so.1.
 * TIDE_NO_DEVICE, with what to do in the message, where there is none or it is too old. */
tide_status tide__cuda_load(const tide__cuda_api **out);

/* One call's stay in the driver. */
typedef struct tide__cuda_visit {
    tide__cuda_gpu *gpu;
    CUstreamCaptureMode capture_mode; /* of the thread, to be put back */
    bool pushed;
    uint64_t start_ns; /* 0: not timed */
} tide__cuda_visit;

/* Counts the call, makes the GPU's primary context current and the thread's
 * capture mode relaxed, so that a capture by whomever neither forbids the call
 * nor is spoilt by it. On TIDE_OK leave must follow. */
tide_status tide__cuda_enter(tide__device *d, int gpu, tide__call call, bool timed, tide__cuda_visit *out);
/* Puts the thread back as it was. Has the value of status. */
tide_status tide__cuda_leave(tide__cuda_visit *v, tide_status status);

/* The body of a table's function: the GPU is g in the expression, whose status is the result. */
#define TIDE__CUDA_VISIT(call, timed, expression)                        \
    tide__cuda_visit visit;                                              \
    tide_status entered = tide__cuda_enter(d, gpu, call, timed, &visit); \
    if (entered != TIDE_OK) return entered;                              \
    tide__cuda_gpu *g = visit.gpu;                                       \
    return tide__cuda_leave(&visit, (expression))
#define TIDE__CUDA_CALL(call, expression) TIDE__CUDA_VISIT(call, false, expression)
/* The same for calls whose time counts as the driver's. */
#define TIDE__CUDA_TIMED_CALL(call, expression) TIDE__CUDA_VISIT(call, true, expression)

/* The status of a driver call's result; where it failed, says which call, with
 * what (format), on which GPU, and what the driver calls it. A result that
 * sticks changes the device's health. */
tide_status tide__cuda_result(tide__cuda_gpu *g, CUresult result, const char *call, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The driver's name for a result; never NULL. */
const char *tide__cuda_result_name(const tide__cuda_api *api, CUresult result);

/* ---- The table's functions; cuda_memory.c ---- */
/* Fills in the properties; enters no context. */
tide_status tide__cuda_describe(tide__cuda_gpu *g);
tide_status tide__cuda_mem_info(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes);
tide_status tide__cuda_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                               uint64_t *va);
tide_status tide__cuda_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size);
tide_status tide__cuda_chunk_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out);
tide_status tide__cuda_chunk_release(tide__device *d, int gpu, tide__chunk_handle chunk);
tide_status tide__cuda_map(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk);
tide_status tide__cuda_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size);
tide_status tide__cuda_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size);
tide_status tide__cuda_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va);
tide_status tide__cuda_raw_free(tide__device *d, int gpu, uint64_t va);
tide_status tide__cuda_peer_enable(tide__device *d, int gpu, int peer);

/* ---- cuda_stream.c ---- */
tide_status tide__cuda_stream_id(tide__device *d, int gpu, tide_stream stream, uint64_t *id);
tide_status tide__cuda_stream_create(tide__device *d, int gpu, tide_stream *out);
tide_status tide__cuda_stream_destroy(tide__device *d, int gpu, tide_stream stream);
tide_status tide__cuda_event_create(tide__device *d, int gpu, tide__event *out);
tide_status tide__cuda_event_destroy(tide__device *d, int gpu, tide__event event);
tide_status tide__cuda_event_record(tide__device *d, int gpu, tide__event event, tide_stream stream);
tide_status tide__cuda_event_query(tide__device *d, int gpu, tide__event event);
tide_status tide__cuda_event_wait(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns);
tide_status tide__cuda_stream_wait_event(tide__device *d, int gpu, tide_stream stream, tide__event event);
tide_status tide__cuda_stream_capturing(tide__device *d, int gpu, tide_stream stream, bool *out);
tide_status tide__cuda_device_wait(tide__device *d, int gpu, uint64_t timeout_ns);

#endif
