/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events and waiting. A stream that is being captured is never touched:
 * recording on it would put a node into the user's graph, and waiting for what is
 * outside of the graph would spoil it. So it is asked first; the caller sees to it
 * that no capture begins in between, since a stream is announced before.
 *
 * Waiting for the whole device is the exception: the driver answers no question
 * about a context's captures, refuses to wait while there is one, and spoils it. Asking
 * the legacy stream finds the captures of blocking streams; of others the caller knows.
 */
#include <inttypes.h>
#include <time.h>

#include "device/cuda_internal.h"

#define SPIN_NS 20000 /* events that are nearly done are worth a spin */
#define LONGEST_NAP_NS 200000

// NOLINTBEGIN(performance-no-int-to-ptr): the driver's handles are pointers that nobody follows
static CUstream stream_of(tide_stream stream) { return (CUstream)(uintptr_t)stream; }
static CUevent event_of(tide__event event) { return (CUevent)(uintptr_t)event; }
// NOLINTEND(performance-no-int-to-ptr)

static tide_status check_event(tide__event event) {
    return event != 0 ? TIDE_OK : tide__fail(TIDE_BAD_HANDLE, "cuda: event 0 is no event");
}

/* ---- Streams ---- */

static tide_status stream_id(tide__cuda_gpu *g, tide_stream stream, uint64_t *id) {
    unsigned long long got = 0;
    if (stream == TIDE__CU_STREAM_PER_THREAD) {
        return tide__fail(
            TIDE_UNSUPPORTED,
            "the per-thread default stream is another stream in each thread, under one handle: use "
            "streams that were created");
    }
    CUresult result = g->api->cuStreamGetId(stream_of(stream), &got);
    if (result == TIDE__CU_OK) {
        *id = got;
    }
    return tide__cuda_result(g, result, "cuStreamGetId", "stream %#" PRIx64, stream);
}

static tide_status create_stream(tide__cuda_gpu *g, tide_stream *out) {
    CUstream stream = NULL;
    CUresult result = g->api->cuStreamCreate(&stream, TIDE__CU_STREAM_NON_BLOCKING);
    if (result == TIDE__CU_OK) {
        *out = (uintptr_t)stream;
    }
    return tide__cuda_result(g, result, "cuStreamCreate", "non-blocking");
}

static tide_status destroy_stream(tide__cuda_gpu *g, tide_stream stream) {
    if (stream <= TIDE__CU_STREAM_PER_THREAD) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "cuda: the default stream cannot be destroyed");
    }
    return tide__cuda_result(g, g->api->cuStreamDestroy_v2(stream_of(stream)), "cuStreamDestroy",
                             "stream %#" PRIx64, stream);
}

/* The legacy stream is refused (CAPTURE_IMPLICIT) while a stream is captured that
 * synchronises with it. */
static tide_status is_capturing(tide__cuda_gpu *g, tide_stream stream, bool *out) {
    CUstreamCaptureStatus capture = TIDE__CU_CAPTURE_STATUS_NONE;
    CUresult result = g->api->cuStreamIsCapturing(stream_of(stream), &capture);
    if (result == TIDE__CU_OK || result == TIDE__CU_CAPTURE_IMPLICIT) {
        *out = result == TIDE__CU_CAPTURE_IMPLICIT || capture != TIDE__CU_CAPTURE_STATUS_NONE;
        return TIDE_OK;
    }
    return tide__cuda_result(g, result, "cuStreamIsCapturing", "stream %#" PRIx64, stream);
}

static tide_status check_not_capturing(tide__cuda_gpu *g, tide_stream stream) {
    bool capturing = false;
    tide_status status = is_capturing(g, stream, &capturing);
    if (status == TIDE_OK && capturing) {
        status = tide__fail(TIDE_CAPTURING, "stream %#" PRIx64 " of GPU %d is being captured into a graph",
                            stream, g->ordinal);
    }
    return status;
}

/* ---- Events ---- */

static tide_status create_event(tide__cuda_gpu *g, tide__event *out) {
    CUevent event = NULL;
    CUresult result = g->api->cuEventCreate(&event, TIDE__CU_EVENT_DISABLE_TIMING);
    if (result == TIDE__CU_OK) {
        *out = (uintptr_t)event;
    }
    return tide__cuda_result(g, result, "cuEventCreate", "no timing");
}

static tide_status destroy_event(tide__cuda_gpu *g, tide__event event) {
    tide_status status = check_event(event);
    if (status != TIDE_OK) {
        return status;
    }
    return tide__cuda_result(g, g->api->cuEventDestroy_v2(event_of(event)), "cuEventDestroy",
                             "event %#" PRIx64, event);
}

static tide_status check_event_and_stream(tide__cuda_gpu *g, tide__event event, tide_stream stream) {
    tide_status status = check_event(event);
    return status == TIDE_OK ? check_not_capturing(g, stream) : status;
}

static tide_status record_event(tide__cuda_gpu *g, tide__event event, tide_stream stream) {
    tide_status status = check_event_and_stream(g, event, stream);
    if (status != TIDE_OK) {
        return status;
    }
    return tide__cuda_result(g, g->api->cuEventRecord(event_of(event), stream_of(stream)), "cuEventRecord",
                             "event %#" PRIx64 ", stream %#" PRIx64, event, stream);
}

static tide_status wait_on_stream(tide__cuda_gpu *g, tide_stream stream, tide__event event) {
    tide_status status = check_event_and_stream(g, event, stream);
    if (status != TIDE_OK) {
        return status;
    }
    return tide__cuda_result(g, g->api->cuStreamWaitEvent(stream_of(stream), event_of(event), 0),
                             "cuStreamWaitEvent", "stream %#" PRIx64 ", event %#" PRIx64, stream, event);
}

static tide_status query_event(tide__cuda_gpu *g, tide__event event) {
    tide_status status = check_event(event);
    if (status != TIDE_OK) {
        return status;
    }
    return tide__cuda_result(g, g->api->cuEventQuery(event_of(event)), "cuEventQuery", "event %#" PRIx64,
                             event);
}

/* ---- Waiting: TIDE_NOT_READY where the time is over ---- */

static void nap(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

/* Bounded, so by asking again and again: the driver knows no wait with an end. */
static tide_status poll_event(tide__cuda_gpu *g, tide__event event, uint64_t timeout_ns) {
    uint64_t start = tide__monotonic_ns(), took = 0, next = 1000;
    tide_status status;
    while ((status = query_event(g, event)) == TIDE_NOT_READY &&
           (took = tide__monotonic_ns() - start) < timeout_ns) {
        if (took > SPIN_NS) {
            nap(tide__min(next, timeout_ns - took));
            next = tide__min(next * 2, LONGEST_NAP_NS);
        }
    }
    return status;
}

static tide_status await_event(tide__cuda_gpu *g, tide__event event, uint64_t timeout_ns) {
    tide_status status = check_event(event);
    if (status != TIDE_OK) {
        return status;
    }
    uint64_t start = tide__monotonic_ns();
    if (timeout_ns == UINT64_MAX) {
        status = tide__cuda_result(g, g->api->cuEventSynchronize(event_of(event)), "cuEventSynchronize",
                                   "event %#" PRIx64, event);
    } else {
        status = poll_event(g, event, timeout_ns);
    }
    atomic_fetch_add_explicit(&g->host_wait_ns, tide__monotonic_ns() - start, memory_order_relaxed);
    return status;
}

static tide_status wait_event(tide__cuda_gpu *g, tide__event event, uint64_t timeout_ns) {
    tide_status status = await_event(g, event, timeout_ns);
    if (status == TIDE_NOT_READY) {
        status = tide__fail(TIDE_TIMEOUT, "event %#" PRIx64 " of GPU %d is not done after %" PRIu64 " ns",
                            event, g->ordinal, timeout_ns);
    }
    return status;
}

/* An event behind all that the context has queued can be waited for with an end. */
static tide_status await_context(tide__cuda_gpu *g, uint64_t timeout_ns) {
    tide__event event = 0;
    tide_status status = create_event(g, &event);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = g->api->cuCtxRecordEvent(atomic_load(&g->context), event_of(event));
    status = tide__cuda_result(g, result, "cuCtxRecordEvent", "the primary context");
    if (status == TIDE_OK) {
        status = await_event(g, event, timeout_ns);
    }
    g->api->cuEventDestroy_v2(event_of(event));
    return status;
}

/* A driver that can only wait for as long as it takes is not asked to wait for no time. */
static tide_status synchronize(tide__cuda_gpu *g, uint64_t timeout_ns) {
    if (timeout_ns == 0) {
        return TIDE_NOT_READY;
    }
    uint64_t start = tide__monotonic_ns();
    CUresult result = g->api->cuCtxSynchronize();
    atomic_fetch_add_explicit(&g->host_wait_ns, tide__monotonic_ns() - start, memory_order_relaxed);
    return tide__cuda_result(g, result, "cuCtxSynchronize", "for at most %" PRIu64 " ns", timeout_ns);
}

/* See above for which captures are found before they are spoilt. */
static tide_status wait_device(tide__cuda_gpu *g, uint64_t timeout_ns) {
    tide_status status = check_not_capturing(g, 0);
    if (status == TIDE_OK) {
        status = g->api->cuCtxRecordEvent != NULL ? await_context(g, timeout_ns) : synchronize(g, timeout_ns);
    }
    if (status == TIDE_NOT_READY) {
        status = tide__fail(TIDE_TIMEOUT, "GPU %d is not idle after %" PRIu64 " ns", g->ordinal, timeout_ns);
    }
    return status;
}

/* ---- The table's functions ---- */

tide_status tide__cuda_stream_id(tide__device *d, int gpu, tide_stream stream, uint64_t *id) {
    TIDE__CUDA_CALL(TIDE__CALL_STREAM_ID, stream_id(g, stream, id));
}

tide_status tide__cuda_stream_create(tide__device *d, int gpu, tide_stream *out) {
    TIDE__CUDA_CALL(TIDE__CALL_STREAM_CREATE, create_stream(g, out));
}

tide_status tide__cuda_stream_destroy(tide__device *d, int gpu, tide_stream stream) {
    TIDE__CUDA_CALL(TIDE__CALL_STREAM_DESTROY, destroy_stream(g, stream));
}

tide_status tide__cuda_stream_capturing(tide__device *d, int gpu, tide_stream stream, bool *out) {
    TIDE__CUDA_CALL(TIDE__CALL_STREAM_CAPTURING, is_capturing(g, stream, out));
}

tide_status tide__cuda_event_create(tide__device *d, int gpu, tide__event *out) {
    TIDE__CUDA_CALL(TIDE__CALL_EVENT_CREATE, create_event(g, out));
}

tide_status tide__cuda_event_destroy(tide__device *d, int gpu, tide__event event) {
    TIDE__CUDA_CALL(TIDE__CALL_EVENT_DESTROY, destroy_event(g, event));
}

tide_status tide__cuda_event_record(tide__device *d, int gpu, tide__event event, tide_stream stream) {
    TIDE__CUDA_CALL(TIDE__CALL_EVENT_RECORD, record_event(g, event, stream));
}

tide_status tide__cuda_event_query(tide__device *d, int gpu, tide__event event) {
    TIDE__CUDA_CALL(TIDE__CALL_EVENT_QUERY, query_event(g, event));
}

tide_status tide__cuda_event_wait(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns) {
    TIDE__CUDA_CALL(TIDE__CALL_EVENT_WAIT, wait_event(g, event, timeout_ns));
}

tide_status tide__cuda_stream_wait_event(tide__device *d, int gpu, tide_stream stream, tide__event event) {
    TIDE__CUDA_CALL(TIDE__CALL_STREAM_WAIT, wait_on_stream(g, stream, event));
}

tide_status tide__cuda_device_wait(tide__device *d, int gpu, uint64_t timeout_ns) {
    TIDE__CUDA_CALL(TIDE__CALL_DEVICE_WAIT, wait_device(g, timeout_ns));
}
