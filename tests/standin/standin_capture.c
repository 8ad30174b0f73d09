/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in's streams as captures need to know them. A capture that is spoilt goes on,
 * as in the driver, and its end says so.
 */
#include <stdatomic.h>
#include <string.h>

#include "device/host.h"
#include "standin_internal.h"

#define MAX_STREAMS 1023 /* at once, of all GPUs */

typedef struct stream_record {
    tide_stream handle; /* 0: this place is free */
    int gpu;
    bool blocking, captured, spoilt;
    CUstreamCaptureMode mode;
    pthread_t thread; /* began the capture */
} stream_record;

static stream_record streams[MAX_STREAMS];
static _Atomic int captured; /* how many */

/* ---- Graphs, by the device that keeps them ---- */

static tide_status begin_own(tide__device *d, int gpu, tide_stream stream) {
    return tide__host_capture_begin(d, gpu, stream);
}

static tide_status end_own(tide__device *d, int gpu, tide_stream stream, void **graph) {
    tide__host_graph *got = NULL;
    tide_status status = tide__host_capture_end(d, gpu, stream, &got);
    *graph = got;
    return status;
}

static void destroy_own(void *graph) { tide__host_graph_destroy(graph); }

static const standin_graphs own_graphs = {.begin = begin_own, .end = end_own, .destroy = destroy_own};
static const standin_graphs *graphs = &own_graphs;

void standin__graphs_by(const standin_graphs *by) { graphs = by != NULL ? by : &own_graphs; }

/* ---- Which streams there are ---- */

static stream_record *find(tide_stream handle) {
    for (size_t i = 0; i < MAX_STREAMS; i++) {
        if (streams[i].handle == handle) {
            return &streams[i];
        }
    }
    return NULL;
}

CUresult standin__stream_made(int gpu, tide_stream stream, bool blocking) {
    pthread_mutex_lock(&standin__lock);
    stream_record *r = find(0);
    if (r != NULL) {
        *r = (stream_record){.handle = stream, .gpu = gpu, .blocking = blocking};
    }
    pthread_mutex_unlock(&standin__lock);
    return r != NULL ? 0 : TIDE__CU_OUT_OF_MEMORY;
}

void standin__stream_gone(tide_stream stream) {
    pthread_mutex_lock(&standin__lock);
    stream_record *r = find(stream);
    if (r != NULL) {
        captured -= r->captured;
        *r = (stream_record){0};
    }
    pthread_mutex_unlock(&standin__lock);
}

void standin__forget_streams(void) {
    pthread_mutex_lock(&standin__lock);
    memset(streams, 0, sizeof streams);
    captured = 0;
    pthread_mutex_unlock(&standin__lock);
}

size_t standin__streams_of(int gpu, tide_stream *out, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&standin__lock);
    for (size_t i = 0; i < MAX_STREAMS && count < room; i++) {
        if (streams[i].handle != 0 && streams[i].gpu == gpu) {
            out[count++] = streams[i].handle;
        }
    }
    pthread_mutex_unlock(&standin__lock);
    return count;
}

/* ---- Which of them are captured ---- */

/* How many captures the GPU has, of blocking streams alone or of all; spoils them if asked. */
static int count_captures(int gpu, bool blocking_alone, bool spoil) {
    int count = 0;
    if (captured == 0) {
        return 0;
    }
    pthread_mutex_lock(&standin__lock);
    for (size_t i = 0; i < MAX_STREAMS; i++) {
        stream_record *r = &streams[i];
        if (r->captured && r->gpu == gpu && (r->blocking || !blocking_alone)) {
            count++;
            standin__state.spoilt_captures += spoil && !r->spoilt;
            r->spoilt = r->spoilt || spoil;
        }
    }
    pthread_mutex_unlock(&standin__lock);
    return count;
}

bool standin__captures(int gpu) { return count_captures(gpu, false, false) > 0; }
void standin__spoil(int gpu) { count_captures(gpu, false, true); }

static CUstreamCaptureStatus capture_of(tide_stream stream) {
    CUstreamCaptureStatus status = TIDE__CU_CAPTURE_STATUS_NONE;
    if (captured == 0 || stream == 0) {
        return status;
    }
    pthread_mutex_lock(&standin__lock);
    const stream_record *r = find(stream);
    if (r != NULL && r->captured) {
        status = r->spoilt ? STATUS_INVALIDATED : STATUS_ACTIVE;
    }
    pthread_mutex_unlock(&standin__lock);
    return status;
}

CUresult standin__check_work(const char *function, int gpu, tide_stream stream) {
    if (stream == 0 && count_captures(gpu, true, true) > 0) {
        return standin__wrong(function, TIDE__CU_CAPTURE_IMPLICIT);
    }
    if (capture_of(stream) != TIDE__CU_CAPTURE_STATUS_NONE) {
        return standin__wrong(function, TIDE__CU_CAPTURE_UNSUPPORTED);
    }
    return 0;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    tide__device *d = standin__beneath;
    tide_stream handle = standin__stream_of(stream);
    bool unused = false;
    int gpu = 0;
    CUresult result = standin__enter("cuStreamIsCapturing", &gpu);
    if (result == 0) { /* is there such a stream? */
        result = standin__result(d->ops->stream_capturing(d, gpu, handle, &unused));
    }
    if (result == 0 && handle == 0 && count_captures(gpu, true, false) > 0) {
        return TIDE__CU_CAPTURE_IMPLICIT; /* asking spoils nothing */
    }
    if (result == 0) {
        *status = capture_of(handle);
    }
    return result;
}

/* ---- Begin and end ---- */

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    tide_stream handle = standin__stream_of(stream);
    int gpu = 0;
    CUresult result = standin__enter("cuStreamBeginCapture_v2", &gpu);
    if (result != 0) {
        return result;
    }
    if (handle == 0) {
        return TIDE__CU_CAPTURE_UNSUPPORTED;
    }
    result = standin__result(graphs->begin(standin__beneath, gpu, handle));
    if (result != 0) {
        return result == TIDE__CU_INVALID_VALUE ? ILLEGAL_STATE : result;
    }
    pthread_mutex_lock(&standin__lock);
    stream_record *r = find(handle);
    if (r != NULL) {
        r->captured = true;
        r->mode = mode;
        r->thread = pthread_self();
        captured++;
    }
    pthread_mutex_unlock(&standin__lock);
    return r != NULL ? 0 : TIDE__CU_INVALID_HANDLE;
}

/* Takes the capture off the record; *spoilt says how it went. */
static CUresult end_record(tide_stream handle, bool *spoilt) {
    CUresult result = 0;
    pthread_mutex_lock(&standin__lock);
    stream_record *r = handle != 0 ? find(handle) : NULL;
    if (r == NULL || !r->captured) {
        result = ILLEGAL_STATE;
    } else if (r->mode != TIDE__CU_CAPTURE_RELAXED && !pthread_equal(r->thread, pthread_self())) {
        result = TIDE__CU_CAPTURE_WRONG_THREAD;
    } else {
        *spoilt = r->spoilt;
        r->captured = r->spoilt = false;
        captured--;
    }
    pthread_mutex_unlock(&standin__lock);
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    tide_stream handle = standin__stream_of(stream);
    void *got = NULL;
    bool spoilt = false;
    int gpu = 0;
    CUresult result = standin__enter("cuStreamEndCapture", &gpu);
    if (result == 0) {
        result = end_record(handle, &spoilt);
    }
    if (result == 0) {
        result = standin__result(graphs->end(standin__beneath, gpu, handle, &got));
    }
    if (result == 0 && spoilt) {
        graphs->destroy(got);
        got = NULL;
        result = CAPTURE_INVALIDATED;
    }
    *graph = got;
    return result;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    CUresult result = standin__told("cuGraphDestroy");
    if (result == 0) {
        graphs->destroy(graph);
    }
    return result;
}
