/* SPDX-License-Identifier: Apache-2.0 */
/* How a test gets the stand-in: the cuda device finds it as its libcuda, and the test its controls. */
#ifndef TIDE_STANDIN_USE_H
#define TIDE_STANDIN_USE_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_internal.h"
#include "device/fault.h"
#include "device/host.h"
#include "standin.h"

/* ---- Graphs, kept by the test's own host or sim device ---- */

static inline tide__device *standin_innermost(tide__device *d) {
    return strcmp(d->ops->name, "fault") == 0 ? standin_innermost(tide__fault_inner(d)) : d;
}

/* A sim device has no graphs: NULL stands for one. */
static inline tide_status standin_begin_graph(tide__device *d, int gpu, tide_stream stream) {
    d = standin_innermost(d);
    if (strcmp(d->ops->name, "sim") == 0) {
        tide__sim_set_capturing(d, gpu, stream, true);
        return TIDE_OK;
    }
    return tide__host_capture_begin(d, gpu, stream);
}

static inline tide_status standin_end_graph(tide__device *d, int gpu, tide_stream stream, void **graph) {
    tide__host_graph *got = NULL;
    tide_status status = TIDE_OK;
    d = standin_innermost(d);
    if (strcmp(d->ops->name, "sim") == 0) {
        tide__sim_set_capturing(d, gpu, stream, false);
    } else {
        status = tide__host_capture_end(d, gpu, stream, &got);
    }
    *graph = got;
    return status;
}

static inline void standin_destroy_graph(void *graph) { tide__host_graph_destroy(graph); }

/* ---- The stand-in ---- */

/* NULL: it cannot be loaded. TIDE_STANDIN is its file. */
static inline const standin_controls *standin_load(void) {
    static const standin_graphs graphs = {
        .begin = standin_begin_graph, .end = standin_end_graph, .destroy = standin_destroy_graph};
    const standin_controls *(*get)(void) = NULL;
    void *library = dlopen(TIDE_STANDIN, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "standin_get") : NULL;
    if (symbol == NULL || setenv("PAGETIDE_LIBCUDA", TIDE_STANDIN, 1) != 0) {
        return NULL;
    }
    memcpy(&get, &symbol, sizeof get);
    get()->graphs_by(&graphs);
    return get();
}

/* In tests that PAGETIDE_TEST_STANDIN turns to the driver: the cuda device over the stand-in
 * over `beneath`, else `beneath` itself. NULL: no such device can be had. */
static inline tide__device *standin_between(tide__device *beneath) {
    tide__device *cuda = NULL;
    const standin_controls *controls;
    if (getenv("PAGETIDE_TEST_STANDIN") == NULL) {
        return beneath;
    }
    if ((controls = standin_load()) == NULL) {
        return NULL;
    }
    controls->serve(beneath);
    return tide__cuda_open(&cuda) == TIDE_OK ? cuda : NULL;
}

/* After the cuda device was closed: closes what was beneath it. Has the first call that was made
 * without the right context or would have spoilt a capture, "a context is left", or "". */
static inline const char *standin_end(tide__device *beneath) {
    static standin_state s;
    if (getenv("PAGETIDE_TEST_STANDIN") == NULL) {
        return "";
    }
    standin_load()->get(&s);
    standin_load()->serve(NULL);
    beneath->ops->close(beneath);
    return s.contexts != 0 ? "a context is left" : s.first_without;
}

/* ---- Captures, as a user of CUDA makes them ---- */

/* The driver's functions, with the GPU's primary context current; NULL where that failed. */
static inline const tide__cuda_api *standin_enter(int gpu) {
    const tide__cuda_api *cuda = NULL;
    CUdevice device = 0;
    CUcontext context = NULL;
    if (tide__cuda_load(&cuda) != TIDE_OK || cuda->cuDeviceGet(&device, gpu) != TIDE__CU_OK ||
        cuda->cuDevicePrimaryCtxRetain(&context, device) != TIDE__CU_OK ||
        cuda->cuCtxPushCurrent_v2(context) != TIDE__CU_OK) {
        return NULL;
    }
    return cuda;
}

static inline void standin_leave(const tide__cuda_api *cuda, int gpu) {
    CUdevice device = 0;
    CUcontext context = NULL;
    cuda->cuCtxPopCurrent_v2(&context);
    cuda->cuDeviceGet(&device, gpu);
    cuda->cuDevicePrimaryCtxRelease_v2(device);
}

static inline CUresult standin_begin_capture(int gpu, tide_stream stream, CUstreamCaptureMode mode) {
    const tide__cuda_api *cuda = standin_enter(gpu);
    CUresult result = standin_load()->begin_capture((CUstream)(uintptr_t)stream, mode);
    standin_leave(cuda, gpu);
    return result;
}

/* Ends and drops it. */
static inline CUresult standin_end_capture(int gpu, tide_stream stream) {
    CUgraph graph = NULL;
    const tide__cuda_api *cuda = standin_enter(gpu);
    CUresult result = standin_load()->end_capture((CUstream)(uintptr_t)stream, &graph);
    standin_load()->destroy_graph(graph);
    standin_leave(cuda, gpu);
    return result;
}

/* One that synchronises with the legacy stream; 0: failed. */
static inline tide_stream standin_blocking_stream(int gpu) {
    CUstream stream = NULL;
    const tide__cuda_api *cuda = standin_enter(gpu);
    cuda->cuStreamCreate(&stream, 0);
    standin_leave(cuda, gpu);
    return (uintptr_t)stream;
}

static inline uint64_t standin_spoilt_captures(void) {
    standin_state s;
    standin_load()->get(&s);
    return s.spoilt_captures;
}

#endif
