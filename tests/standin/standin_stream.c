/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's streams and events. */
#include <stdlib.h>

#include "standin_internal.h"

#define MOST_STREAMS 1024

static pthread_mutex_t collect_lock = PTHREAD_MUTEX_INITIALIZER;
static tide_stream collectors[MAX_GPUS]; /* streams of the stand-in's own, for cuCtxRecordEvent */

tide_stream standin__stream_of(CUstream stream) {
    return (uintptr_t)stream == TIDE__CU_STREAM_LEGACY ? 0 : (uintptr_t)stream;
}
static tide__event event_of(CUevent event) { return (uintptr_t)event; }

/* ---- Streams ---- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    tide__device *d = standin__beneath;
    tide_stream got = 0;
    int gpu = 0;
    CUresult result = standin__enter("cuStreamCreate", &gpu);
    if (result == 0) {
        result = standin__result(d->ops->stream_create(d, gpu, &got));
    }
    if (result != 0) {
        return result;
    }
    result = standin__stream_made(gpu, got, flags != TIDE__CU_STREAM_NON_BLOCKING);
    if (result != 0) {
        d->ops->stream_destroy(d, gpu, got);
        return result;
    }
    *stream = (CUstream)(uintptr_t)got;
    return 0;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    tide__device *d = standin__beneath;
    int gpu = 0;
    CUresult result = standin__enter("cuStreamDestroy_v2", &gpu);
    if (result == 0 &&
        (result = standin__result(d->ops->stream_destroy(d, gpu, standin__stream_of(stream)))) == 0) {
        standin__stream_gone(standin__stream_of(stream));
    }
    return result;
}

EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    CALL_GIVING(standin__enter("cuStreamGetId", &gpu),
                stream_id(standin__beneath, gpu, standin__stream_of(stream), &got), unsigned long long, id);
}

static CUresult enter_work(const char *function, CUstream stream, int *gpu) {
    CUresult result = standin__enter(function, gpu);
    return result != 0 ? result : standin__check_work(function, *gpu, standin__stream_of(stream));
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    CALL(enter_work("cuStreamWaitEvent", stream, &gpu),
         stream_wait_event(standin__beneath, gpu, standin__stream_of(stream), event_of(event)));
}

/* ---- Events ---- */

EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    CALL_GIVING(standin__enter("cuEventCreate", &gpu), event_create(standin__beneath, gpu, &got), CUevent,
                event);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    CALL(standin__enter("cuEventDestroy_v2", &gpu), event_destroy(standin__beneath, gpu, event_of(event)));
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    CALL(enter_work("cuEventRecord", stream, &gpu),
         event_record(standin__beneath, gpu, event_of(event), standin__stream_of(stream)));
}

EXPORT CUresult cuEventQuery(CUevent event) {
    CALL(standin__enter_unsafe("cuEventQuery", &gpu), event_query(standin__beneath, gpu, event_of(event)));
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    CALL(standin__enter_unsafe("cuEventSynchronize", &gpu),
         event_wait(standin__beneath, gpu, event_of(event), UINT64_MAX));
}

/* ---- An event behind all of a context ---- */

void standin__forget_collectors(void) {
    for (size_t i = 0; i < MAX_GPUS; i++) {
        collectors[i] = 0;
    }
}

/* The collector waits for what the stream has queued. One that was destroyed meanwhile has
 * nothing queued. */
static tide_status collect(int gpu, tide_stream collector, tide_stream stream, tide__event mark) {
    tide__device *d = standin__beneath;
    tide_status status = d->ops->event_record(d, gpu, mark, stream);
    if (status == TIDE_BAD_HANDLE) {
        return TIDE_OK;
    }
    return status == TIDE_OK ? d->ops->stream_wait_event(d, gpu, collector, mark) : status;
}

static tide_status collect_all(int gpu, tide__event mark) {
    tide__device *d = standin__beneath;
    tide_stream streams[MOST_STREAMS];
    tide_status status = TIDE_OK;
    if (collectors[gpu] == 0) {
        status = d->ops->stream_create(d, gpu, &collectors[gpu]);
    }
    streams[0] = 0;
    size_t count = 1 + standin__streams_of(gpu, streams + 1, MOST_STREAMS - 1);
    for (size_t i = 0; i < count && status == TIDE_OK; i++) {
        status = collect(gpu, collectors[gpu], streams[i], mark);
    }
    return status;
}

static tide_status record_behind_all(int gpu, tide__event event) {
    tide__device *d = standin__beneath;
    tide__event mark = 0;
    tide_status status = d->ops->event_create(d, gpu, &mark);
    if (status != TIDE_OK) {
        return status;
    }
    status = collect_all(gpu, mark);
    if (status == TIDE_OK) {
        status = d->ops->event_record(d, gpu, event, collectors[gpu]);
    }
    d->ops->event_destroy(d, gpu, mark);
    return status;
}

static CUresult context_event(CUcontext context, CUevent event) {
    CUresult result = standin__told("cuCtxRecordEvent");
    if (result != 0) {
        return result;
    }
    if (context == NULL || context->retained == 0) {
        return standin__wrong("cuCtxRecordEvent", INVALID_CONTEXT);
    }
    if (standin__captures(context->gpu)) {
        standin__spoil(context->gpu);
        return TIDE__CU_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_lock(&collect_lock);
    result = standin__result(record_behind_all(context->gpu, event_of(event)));
    pthread_mutex_unlock(&collect_lock);
    return result;
}

/* Chosen when the symbol is looked up, so that an older driver's lack of it can be had. */
__attribute__((used)) static CUresult (*choose_context_event(void))(CUcontext, CUevent) {
    return getenv("STANDIN_NO_CTX_EVENT") == NULL ? context_event : NULL;
}
EXPORT CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
    __attribute__((ifunc("choose_context_event")));
