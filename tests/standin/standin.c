/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda's entry points over a device of ours (see standin.h): what a call goes through,
 * the driver, its devices and contexts, and what tests ask of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/host.h"
#include "standin_internal.h"

#define MAX_ATTRIBUTES 16

pthread_mutex_t standin__lock = PTHREAD_MUTEX_INITIALIZER;
tide__device *standin__beneath;
static tide__device *own;
static struct CUctx_st contexts[MAX_GPUS];
standin_state standin__state;
static struct {
    const char *function;
    uint64_t k;
    int result;
    bool sticky;
} rule;
static int stuck; /* the result of every call, once something sticks */
static struct { int attribute, value; } attributes[MAX_ATTRIBUTES];
static int attribute_count;

static _Thread_local CUcontext stack[32];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode capture_mode;

/* ---- What a call goes through before it is made ---- */

CUresult standin__told(const char *function) {
    pthread_mutex_lock(&standin__lock);
    standin__state.calls++;
    CUresult result = stuck;
    if (result == 0 && rule.k > 0 && (rule.function == NULL || strcmp(rule.function, function) == 0) &&
        --rule.k == 0) {
        result = rule.result;
        standin__state.injected++;
        stuck = rule.sticky ? result : 0;
    }
    if (result == 0 && standin__beneath == NULL) {
        result = NO_DEVICE;
    }
    pthread_mutex_unlock(&standin__lock);
    return result;
}

CUresult standin__wrong(const char *function, CUresult result) {
    pthread_mutex_lock(&standin__lock);
    if (standin__state.without_right++ == 0) {
        snprintf(standin__state.first_without, sizeof standin__state.first_without, "%s", function);
    }
    pthread_mutex_unlock(&standin__lock);
    return result;
}

static CUcontext current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

CUresult standin__enter(const char *function, int *gpu) {
    CUresult result = standin__told(function);
    if (result != 0) {
        return result;
    }
    if (current() == NULL || current()->retained == 0) {
        return standin__wrong(function, INVALID_CONTEXT);
    }
    *gpu = current()->gpu;
    return 0;
}

CUresult standin__enter_unsafe(const char *function, int *gpu) {
    CUresult result = standin__enter(function, gpu);
    if (result == 0 && capture_mode != TIDE__CU_CAPTURE_RELAXED && standin__captures(*gpu)) {
        standin__spoil(*gpu);
        return standin__wrong(function, TIDE__CU_CAPTURE_UNSUPPORTED);
    }
    return result;
}

CUresult standin__result(tide_status status) {
    switch (status) {
    case TIDE_OK: return 0;
    case TIDE_INVALID_ARGUMENT:
    case TIDE_IN_USE: return TIDE__CU_INVALID_VALUE;
    case TIDE_NO_DEVICE_MEMORY:
    case TIDE_NO_ADDRESSES:
    case TIDE_NO_HOST_MEMORY: return TIDE__CU_OUT_OF_MEMORY;
    case TIDE_BAD_HANDLE: return TIDE__CU_INVALID_HANDLE;
    case TIDE_NOT_READY: return TIDE__CU_NOT_READY;
    case TIDE_UNSUPPORTED: return TIDE__CU_NOT_SUPPORTED;
    case TIDE_CAPTURING: return TIDE__CU_CAPTURE_UNSUPPORTED;
    case TIDE_DEVICE_LOST: return TIDE__CU_ILLEGAL_ADDRESS;
    case TIDE_DEVICE_GONE: return TIDE__CU_DEINITIALIZED;
    default: return UNKNOWN;
    }
}

/* ---- The driver and its devices ---- */

EXPORT CUresult cuInit(unsigned int flags) {
    pthread_mutex_lock(&standin__lock);
    const char *count = getenv("STANDIN_GPUS");
    if (standin__beneath == NULL && own == NULL) {
        tide__host_options options = {.device_count = count != NULL ? atoi(count) : 1};
        if (options.device_count > 0 && tide__host_open(&options, &own) == TIDE_OK) {
            standin__beneath = own;
        }
    }
    pthread_mutex_unlock(&standin__lock);
    return standin__told("cuInit");
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = 13000;
    return standin__told("cuDriverGetVersion");
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
    switch (error) {
#define X(ours, theirs, value) \
    case value: *name = #theirs; return 0;
        X(, CUDA_SUCCESS, 0)
        X(, CUDA_ERROR_INVALID_VALUE, 1)
        X(, CUDA_ERROR_OUT_OF_MEMORY, 2)
        X(, CUDA_ERROR_NO_DEVICE, 100)
        X(, CUDA_ERROR_INVALID_CONTEXT, 201)
        X(, CUDA_ERROR_INVALID_HANDLE, 400)
        X(, CUDA_ERROR_ILLEGAL_ADDRESS, 700)
        X(, CUDA_ERROR_UNKNOWN, 999)
#undef X
    default: return TIDE__CU_INVALID_VALUE;
    }
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = "as the stand-in says";
    return 0;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    CUresult result = standin__told("cuDeviceGetCount");
    if (result == 0) {
        *count = standin__beneath->ops->count(standin__beneath);
    }
    return result;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    CUresult result = standin__told("cuDeviceGet");
    if (result == 0 && (ordinal < 0 || ordinal >= standin__beneath->ops->count(standin__beneath))) {
        result = INVALID_DEVICE;
    }
    if (result == 0) {
        *out = ordinal + 1000; /* no ordinal: the two are different things */
    }
    return result;
}

CUresult standin__properties(const char *function, CUdevice handle, tide__device_properties *out) {
    CUresult result = standin__told(function);
    return result != 0
               ? result
               : standin__result(standin__beneath->ops->properties(standin__beneath, handle - 1000, out));
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice handle) {
    tide__device_properties p;
    CUresult result = standin__properties("cuDeviceGetName", handle, &p);
    if (result == 0) {
        snprintf(name, (size_t)length, "%s", p.name);
    }
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice handle) {
    tide__device_properties p;
    CUresult result = standin__properties("cuDeviceTotalMem_v2", handle, &p);
    if (result == 0) {
        *bytes = p.total_bytes;
    }
    return result;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice handle) {
    CUresult result = standin__told("cuDeviceGetAttribute");
    if (result != 0) {
        return result;
    }
    for (int i = 0; i < attribute_count; i++) {
        if (attributes[i].attribute == attribute) {
            *value = attributes[i].value;
            return *value == -1 ? TIDE__CU_INVALID_VALUE : 0; /* -1: not known to this driver */
        }
    }
    switch (attribute) {
    case TIDE__CU_ATTRIBUTE_COMPUTE_MAJOR: *value = 9; return 0;
    case TIDE__CU_ATTRIBUTE_COMPUTE_MINOR:
    case TIDE__CU_ATTRIBUTE_NUMA_NODE: *value = 0; return 0;
    case TIDE__CU_ATTRIBUTE_VMM:
    case TIDE__CU_ATTRIBUTE_POSIX_FD:
    case TIDE__CU_ATTRIBUTE_RDMA:
    case TIDE__CU_ATTRIBUTE_FABRIC: *value = 1; return 0;
    default: return TIDE__CU_INVALID_VALUE;
    }
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice handle, CUdevice peer) {
    CUresult result = standin__told("cuDeviceCanAccessPeer");
    if (result == 0) {
        *can = handle != peer;
    }
    return result;
}

/* ---- Contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice handle) {
    CUresult result = standin__told("cuDevicePrimaryCtxRetain");
    if (result != 0) {
        return result;
    }
    pthread_mutex_lock(&standin__lock);
    CUcontext c = &contexts[handle - 1000];
    c->gpu = handle - 1000;
    standin__state.contexts += c->retained++ == 0;
    pthread_mutex_unlock(&standin__lock);
    *context = c;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice handle) {
    CUresult result = standin__told("cuDevicePrimaryCtxRelease_v2");
    if (result == 0) {
        pthread_mutex_lock(&standin__lock);
        result = contexts[handle - 1000].retained > 0 ? 0 : INVALID_CONTEXT;
        standin__state.contexts -= result == 0 && --contexts[handle - 1000].retained == 0;
        pthread_mutex_unlock(&standin__lock);
    }
    return result;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult result = standin__told("cuCtxGetCurrent");
    if (result == 0) {
        *context = current();
    }
    return result;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = standin__told("cuCtxPushCurrent_v2");
    if (result == 0 && (context == NULL || depth == 32)) {
        result = INVALID_CONTEXT;
    }
    if (result == 0) {
        stack[depth++] = context;
    }
    return result;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    pthread_mutex_lock(&standin__lock); /* cannot be told to fail: nobody could put the thread right again */
    standin__state.calls++;
    pthread_mutex_unlock(&standin__lock);
    if (depth == 0) {
        return standin__wrong("cuCtxPopCurrent_v2", INVALID_CONTEXT);
    }
    *context = stack[--depth];
    return 0;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    /* To leave is, for the same reason, never refused. */
    CUresult result =
        *mode == TIDE__CU_CAPTURE_RELAXED ? standin__told("cuThreadExchangeStreamCaptureMode") : 0;
    if (result == 0) {
        CUstreamCaptureMode before = capture_mode;
        capture_mode = *mode;
        *mode = before;
    }
    return result;
}

EXPORT CUresult cuCtxSynchronize(void) {
    int gpu = 0;
    CUresult result = standin__enter("cuCtxSynchronize", &gpu);
    if (result == 0 && standin__captures(gpu)) { /* whatever the thread's mode */
        standin__spoil(gpu);
        result = TIDE__CU_CAPTURE_UNSUPPORTED;
    }
    return result != 0
               ? result
               : standin__result(standin__beneath->ops->device_wait(standin__beneath, gpu, UINT64_MAX));
}

/* ---- The controls ---- */

static void serve(tide__device *d) {
    pthread_mutex_lock(&standin__lock);
    standin__beneath = d;
    memset(contexts, 0, sizeof contexts);
    memset(&standin__state, 0, sizeof standin__state);
    memset(&rule, 0, sizeof rule);
    stuck = 0;
    attribute_count = 0;
    pthread_mutex_unlock(&standin__lock);
    standin__forget_streams();
    standin__forget_collectors();
}

static void fail_call(const char *function, uint64_t k, int result, bool sticky) {
    pthread_mutex_lock(&standin__lock);
    rule.function = function;
    rule.k = k;
    rule.result = result;
    rule.sticky = sticky;
    pthread_mutex_unlock(&standin__lock);
}

static void shut_down(void) {
    pthread_mutex_lock(&standin__lock);
    stuck = TIDE__CU_DEINITIALIZED;
    pthread_mutex_unlock(&standin__lock);
}

static void get(standin_state *out) {
    pthread_mutex_lock(&standin__lock);
    *out = standin__state;
    pthread_mutex_unlock(&standin__lock);
}

static void set_attribute(int attribute, int value) {
    pthread_mutex_lock(&standin__lock);
    if (attribute_count < MAX_ATTRIBUTES) {
        attributes[attribute_count].attribute = attribute;
        attributes[attribute_count++].value = value;
    }
    pthread_mutex_unlock(&standin__lock);
}

EXPORT const standin_controls *standin_get(void) {
    static const standin_controls controls = {.serve = serve,
                                              .graphs_by = standin__graphs_by,
                                              .fail_call = fail_call,
                                              .shut_down = shut_down,
                                              .get = get,
                                              .set_attribute = set_attribute,
                                              .begin_capture = cuStreamBeginCapture_v2,
                                              .end_capture = cuStreamEndCapture,
                                              .destroy_graph = cuGraphDestroy};
    return &controls;
}
