/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin: a libcuda for machines without a GPU. It has the driver's entry points
 * and hands them to a device of ours (host: real bytes, real streams), so that
 * what stands between the engine and the driver is tested: contexts, handles,
 * results, captures.
 *
 * It is stricter than the driver about contexts: every call but those on devices and
 * contexts needs a current one, that of the GPU which its handles belong to.
 *
 * Captures are as in the driver:
 *  - While a blocking stream is captured, in whichever mode, work on the legacy stream is
 *    refused and spoils the capture. A non-blocking stream's capture does not concern it.
 *  - cuCtxSynchronize and cuCtxRecordEvent are refused while a stream of the context is
 *    captured, and spoil the capture, in relaxed threads too.
 *  - What a capture forbids is refused in a thread that is not relaxed, and spoils it;
 *    stricter than the driver: whoever captures, and in whichever mode.
 *  - Stricter too: work on a captured stream is refused, for the device under test has no
 *    business in a user's graph.
 *  - A spoilt capture goes on; its end says CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
 * It knows the streams that were made by it: captures begun on the device beneath, and
 * streams made there, do not count.
 *
 * Loaded by a test it serves the device that the test gives it. Left alone it
 * makes a host device with as many GPUs as the variable STANDIN_GPUS says (1).
 * With STANDIN_NO_CTX_EVENT set it has no cuCtxRecordEvent, as drivers before CUDA 12.5.
 */
#ifndef TIDE_STANDIN_H
#define TIDE_STANDIN_H

#include "device/cuda_api.h"
#include "device/device.h"

typedef struct CUgraph_st *CUgraph; /* a graph of the device beneath */

/* What it has of libcuda beyond what the cuda device calls. */
#define STANDIN_CAPTURE_FUNCTIONS(X)                                        \
    X(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode)) \
    X(cuStreamEndCapture, (CUstream stream, CUgraph * graph))               \
    X(cuGraphDestroy, (CUgraph graph))

/* Who keeps the graphs: functions of the library that the device beneath comes from. */
typedef struct standin_graphs {
    tide_status (*begin)(tide__device *d, int gpu, tide_stream stream);
    tide_status (*end)(tide__device *d, int gpu, tide_stream stream, void **graph);
    void (*destroy)(void *graph);
} standin_graphs;

typedef struct standin_state {
    uint64_t calls;           /* into the stand-in, those that failed too */
    uint64_t injected;        /* failures by fail_call */
    int contexts;             /* primary contexts that are retained now */
    uint64_t without_right;   /* calls without the right context, or that a capture forbids the caller */
    char first_without[64];   /* the first such call */
    uint64_t spoilt_captures; /* by whatever call */
} standin_state;

/* What a test asks of it, by the one symbol standin_get that is not libcuda's. */
typedef struct standin_controls {
    /* Serves this device from now on, which must outlive its use; NULL: none. Forgets all
     * rules and states, and all contexts. */
    void (*serve)(tide__device *device);
    /* Outlives all captures; NULL: a host device's of the stand-in's own. */
    void (*graphs_by)(const standin_graphs *graphs);
    /* The k-th call from now on (from 1) of this function, or of any (NULL), has this result;
     * sticky: and all calls after it, whichever they are. */
    void (*fail_call)(const char *function, uint64_t k, int result, bool sticky);
    /* As at the process's end: every call says DEINITIALIZED. */
    void (*shut_down)(void);
    void (*get)(standin_state *out);
    /* Attributes of devices (CUdevice_attribute), which are otherwise those of an H200. */
    void (*set_attribute)(int attribute, int value);
    /* cuStreamBeginCapture, cuStreamEndCapture, cuGraphDestroy. */
    CUresult (*begin_capture)(CUstream stream, CUstreamCaptureMode mode);
    CUresult (*end_capture)(CUstream stream, CUgraph *graph);
    CUresult (*destroy_graph)(CUgraph graph);
} standin_controls;

const standin_controls *standin_get(void);

#endif
