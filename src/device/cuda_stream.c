/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events and waiting. A stream that is being captured is never touched:
 * recording on it would put a node into the user's graph, and waiting for what is
 * outside of the graph would spoil it. So it is asked first; the caller sees to it
 * that no capture begins in between, since a stream is announced before.
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

static tide_status stream_id(tide__cuda_visit *v, tide_stream stream, uint64_t *id) {
    unsigned long long got = 0;
    if (stream == TIDE__CU_STREAM_PER_THREAD) {
        return tide__fail(
            TIDE_UNSUPPORTED,
            "the per-thread default stream is another stream in each thread, under one handle: use "
            "streams that were created");
    }
    CUresult result = v->cuda->api->cuStreamGetId(stream_of(stream), &got);
    tide_status status =
        tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuStreamGetId", "stream %#" PRIx64, stream);
    if (status == TIDE_OK) {
        *id = got;
    }
    return status;
}

tide_status tide__cuda_stream_id(tide__device *d, int gpu, tide_stream stream, uint64_t *id) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_STREAM_ID, false, &v);
    return status == TIDE_OK ? tide__cuda_leave(&v, stream_id(&v, stream, id)) : status;
}

tide_status tide__cuda_stream_create(tide__device *d, int gpu, tide_stream *out) {
    CUstream stream = NULL;
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_STREAM_CREATE, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = v.cuda->api->cuStreamCreate(&stream, TIDE__CU_STREAM_NON_BLOCKING);
    status = tide__cuda_result(v.cuda, gpu, result, "cuStreamCreate", "non-blocking");
    if (status == TIDE_OK) {
        *out = (uintptr_t)stream;
    }
    return tide__cuda_leave(&v, status);
}

tide_status tide__cuda_stream_destroy(tide__device *d, int gpu, tide_stream stream) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_STREAM_DESTROY, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    if (stream <= TIDE__CU_STREAM_PER_THREAD) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "cuda: the default stream cannot be destroyed");
        return tide__cuda_leave(&v, status);
    }
    CUresult result = v.cuda->api->cuStreamDestroy_v2(stream_of(stream));
    status = tide__cuda_result(v.cuda, gpu, result, "cuStreamDestroy", "stream %#" PRIx64, stream);
    return tide__cuda_leave(&v, status);
}

/* The legacy stream is refused (CAPTURE_IMPLICIT) while a stream is captured that
 * synchronises with it. */
static tide_status is_capturing(tide__cuda_visit *v, tide_stream stream, bool *out) {
    CUstreamCaptureStatus capture = TIDE__CU_CAPTURE_STATUS_NONE;
    CUresult result = v->cuda->api->cuStreamIsCapturing(stream_of(stream), &capture);
    if (result == TIDE__CU_CAPTURE_IMPLICIT) {
        *out = true;
        return TIDE_OK;
    }
    *out = capture != TIDE__CU_CAPTURE_STATUS_NONE;
    return tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuStreamIsCapturing", "stream %#" PRIx64,
                             stream);
}

static tide_status check_not_capturing(tide__cuda_visit *v, tide_stream stream) {
    bool capturing = false;
    tide_status status = is_capturing(v, stream, &capturing);
    if (status == TIDE_OK && capturing) {
        status = tide__fail(TIDE_CAPTURING, "stream %#" PRIx64 " of GPU %d is being captured into a graph",
                            stream, v->gpu->ordinal);
    }
    return status;
}

tide_status tide__cuda_stream_capturing(tide__device *d, int gpu, tide_stream stream, bool *out) {
    bool capturing = false;
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_STREAM_CAPTURING, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = is_capturing(&v, stream, &capturing);
    if (status == TIDE_OK) {
        *out = capturing;
    }
    return tide__cuda_leave(&v, status);
}

/* ---- Events ---- */

static tide_status create_event(tide__cuda_visit *v, CUevent *out) {
    CUresult result = v->cuda->api->cuEventCreate(out, TIDE__CU_EVENT_DISABLE_TIMING);
    return tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuEventCreate", "no timing");
}

tide_status tide__cuda_event_create(tide__device *d, int gpu, tide__event *out) {
    CUevent event = NULL;
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_EVENT_CREATE, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = create_event(&v, &event);
    if (status == TIDE_OK) {
        *out = (uintptr_t)event;
    }
    return tide__cuda_leave(&v, status);
}

tide_status tide__cuda_event_destroy(tide__device *d, int gpu, tide__event event) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_EVENT_DESTROY, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_event(event);
    if (status == TIDE_OK) {
        CUresult result = v.cuda->api->cuEventDestroy_v2(event_of(event));
        status = tide__cuda_result(v.cuda, gpu, result, "cuEventDestroy", "event %#" PRIx64, event);
    }
    return tide__cuda_leave(&v, status);
}

tide_status tide__cuda_event_record(tide__device *d, int gpu, tide__event event, tide_stream stream) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_EVENT_RECORD, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_event(event);
    if (status == TIDE_OK) {
        status = check_not_capturing(&v, stream);
    }
    if (status == TIDE_OK) {
        CUresult result = v.cuda->api->cuEventRecord(event_of(event), stream_of(stream));
        status = tide__cuda_result(v.cuda, gpu, result, "cuEventRecord",
                                   "event %#" PRIx64 ", stream %#" PRIx64, event, stream);
    }
    return tide__cuda_leave(&v, status);
}

static tide_status query(tide__cuda_visit *v, tide__event event) {
    CUresult result = v->cuda->api->cuEventQuery(event_of(event));
    return tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuEventQuery", "event %#" PRIx64, event);
}

tide_status tide__cuda_event_query(tide__device *d, int gpu, tide__event event) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_EVENT_QUERY, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_event(event);
    return tide__cuda_leave(&v, status == TIDE_OK ? query(&v, event) : status);
}

/* ---- Waiting ---- */

static void nap(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

/* Bounded, so by asking again and again: the driver knows no wait with an end. */
static tide_status wait_event(tide__cuda_visit *v, tide__event event, uint64_t timeout_ns) {
    uint64_t start = tide__monotonic_ns(), took = 0, next = 1000;
    tide_status status;
    if (timeout_ns == UINT64_MAX) {
        CUresult result = v->cuda->api->cuEventSynchronize(event_of(event));
        status = tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuEventSynchronize", "event %#" PRIx64,
                                   event);
        took = tide__monotonic_ns() - start;
    } else {
        while ((status = query(v, event)) == TIDE_NOT_READY &&
               (took = tide__monotonic_ns() - start) < timeout_ns) {
            if (took > SPIN_NS) {
                nap(tide__min(next, timeout_ns - took));
                next = tide__min(next * 2, LONGEST_NAP_NS);
            }
        }
    }
    atomic_fetch_add_explicit(&v->gpu->host_wait_ns, took, memory_order_relaxed);
    return status;
}

tide_status tide__cuda_event_wait(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_EVENT_WAIT, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_event(event);
    if (status == TIDE_OK) {
        status = wait_event(&v, event, timeout_ns);
    }
    if (status == TIDE_NOT_READY) {
        status = tide__fail(TIDE_TIMEOUT, "event %#" PRIx64 " of GPU %d is not done after %" PRIu64 " ns",
                            event, gpu, timeout_ns);
    }
    return tide__cuda_leave(&v, status);
}

tide_status tide__cuda_stream_wait_event(tide__device *d, int gpu, tide_stream stream, tide__event event) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_STREAM_WAIT, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_event(event);
    if (status == TIDE_OK) {
        status = check_not_capturing(&v, stream);
    }
    if (status == TIDE_OK) {
        CUresult result = v.cuda->api->cuStreamWaitEvent(stream_of(stream), event_of(event), 0);
        status = tide__cuda_result(v.cuda, gpu, result, "cuStreamWaitEvent",
                                   "stream %#" PRIx64 ", event %#" PRIx64, stream, event);
    }
    return tide__cuda_leave(&v, status);
}

/* An event behind all that the context has queued can be waited for with an end. */
static tide_status wait_context(tide__cuda_visit *v, uint64_t timeout_ns) {
    const tide__cuda_api *api = v->cuda->api;
    CUevent event = NULL;
    tide_status status = create_event(v, &event);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = api->cuCtxRecordEvent(atomic_load(&v->gpu->context), event);
    status = tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuCtxRecordEvent", "the primary context");
    if (status == TIDE_OK) {
        status = wait_event(v, (uintptr_t)event, timeout_ns);
    }
    api->cuEventDestroy_v2(event);
    return status;
}

static tide_status wait_device(tide__cuda_visit *v, uint64_t timeout_ns) {
    if (v->cuda->api->cuCtxRecordEvent != NULL) {
        return wait_context(v, timeout_ns);
    }
    if (timeout_ns == 0) { /* a driver that can only wait for as long as it takes is not asked to */
        return TIDE_NOT_READY;
    }
    uint64_t start = tide__monotonic_ns();
    CUresult result = v->cuda->api->cuCtxSynchronize();
    atomic_fetch_add_explicit(&v->gpu->host_wait_ns, tide__monotonic_ns() - start, memory_order_relaxed);
    return tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuCtxSynchronize",
                             "for at most %" PRIu64 " ns", timeout_ns);
}

tide_status tide__cuda_device_wait(tide__device *d, int gpu, uint64_t timeout_ns) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_DEVICE_WAIT, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_not_capturing(&v, 0);
    if (status == TIDE_OK) {
        status = wait_device(&v, timeout_ns);
    }
    if (status == TIDE_NOT_READY) {
        status = tide__fail(TIDE_TIMEOUT, "GPU %d is not idle after %" PRIu64 " ns", gpu, timeout_ns);
    }
    return tide__cuda_leave(&v, status);
}
