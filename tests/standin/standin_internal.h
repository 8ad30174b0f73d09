/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the stand-in share.
 *
 *   standin.c           what a call goes through first; the driver, devices, contexts; the controls
 *   standin_memory.c    addresses, chunks, mappings
 *   standin_stream.c    streams and events
 *   standin_capture.c   which streams there are, and which of them are captured
 */
#ifndef TIDE_STANDIN_INTERNAL_H
#define TIDE_STANDIN_INTERNAL_H

#include <pthread.h>

#include "device/cuda_api.h"
#include "standin.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 64

/* Results that the cuda device has no name for. */
enum {
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ILLEGAL_STATE = 401,
    CAPTURE_INVALIDATED = 901,
    UNKNOWN = 999
};
enum { STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2 }; /* CUstreamCaptureStatus */

struct CUctx_st {
    int gpu;
    int retained;
};

#define X(name, parameters) EXPORT CUresult name parameters;
TIDE__CUDA_FUNCTIONS(X)
TIDE__CUDA_OPTIONAL_FUNCTIONS(X)
STANDIN_CAPTURE_FUNCTIONS(X)
#undef X

extern pthread_mutex_t standin__lock; /* of all that follows; no call is made under it */
extern tide__device *standin__beneath;
extern standin_state standin__state;

/* ---- standin.c ---- */

/* The result that the call has been told to have, or 0. Counts it. */
CUresult standin__told(const char *function);
/* The call should not have been made: counted, and the first one named. Has the value of result. */
CUresult standin__wrong(const char *function, CUresult result);
/* A call on a GPU: *gpu is that of the current context, without which it is wrong. */
CUresult standin__enter(const char *function, int *gpu);
/* One that captures forbid in threads that are not relaxed: there it is wrong and spoils them. */
CUresult standin__enter_unsafe(const char *function, int *gpu);
CUresult standin__result(tide_status status);
/* properties of the device beneath, by the driver's handle. */
CUresult standin__properties(const char *function, CUdevice handle, tide__device_properties *out);

/* An entry point's body: once entered, a call of the device beneath. */
#define CALL(entered, expression) \
    int gpu = 0;                  \
    CUresult result = (entered);  \
    return result != 0 ? result : standin__result(standin__beneath->ops->expression)

/* The same where that call gives something, `got`, which goes to *out. */
#define CALL_GIVING(entered, expression, type, out)                                          \
    int gpu = 0;                                                                             \
    uint64_t got = 0;                                                                        \
    CUresult result = (entered);                                                             \
    if (result == 0 && (result = standin__result(standin__beneath->ops->expression)) == 0) { \
        *(out) = (type)(uintptr_t)got;                                                       \
    }                                                                                        \
    return result

/* ---- standin_stream.c ---- */

/* The legacy stream has two names. */
tide_stream standin__stream_of(CUstream stream);
void standin__forget_collectors(void);

/* ---- standin_capture.c ---- */

CUresult standin__stream_made(int gpu, tide_stream stream, bool blocking);
void standin__stream_gone(tide_stream stream);
void standin__forget_streams(void);
void standin__graphs_by(const standin_graphs *by);
/* Copies the handles of at most `room` streams of the GPU; their number. */
size_t standin__streams_of(int gpu, tide_stream *out, size_t room);

/* May work be queued on the stream? A captured one would put it into the user's graph; on
 * the legacy stream it spoils the captures of blocking streams. */
CUresult standin__check_work(const char *function, int gpu, tide_stream stream);
bool standin__captures(int gpu);
void standin__spoil(int gpu);

#endif
