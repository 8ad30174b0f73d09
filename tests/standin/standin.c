/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda's entry points over a device of ours: see standin.h. */
#include "standin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_api.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 64
#define MAX_ATTRIBUTES 16

#define X(name, parameters) EXPORT CUresult name parameters;
TIDE__CUDA_FUNCTIONS(X)
#undef X

struct CUctx_st {
    int gpu;
    int retained;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tide__device *device, *own;
static struct CUctx_st contexts[MAX_GPUS];
static standin_state state;
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

/* The result that it has been told to have, or 0. */
static CUresult told(const char *function) {
    pthread_mutex_lock(&lock);
    state.calls++;
    CUresult result = stuck;
    if (result == 0 && rule.k > 0 && (rule.function == NULL || strcmp(rule.function, function) == 0) &&
        --rule.k == 0) {
        result = rule.result;
        state.injected++;
        stuck = rule.sticky ? result : 0;
    }
    if (result == 0 && device == NULL) {
        result = 100;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult wrong(const char *function, CUresult result) {
    pthread_mutex_lock(&lock);
    if (state.without_right++ == 0) {
        snprintf(state.first_without, sizeof state.first_without, "%s", function);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUcontext current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

/* A call on a GPU: *gpu is that of the current context. */
static CUresult enter(const char *function, int *gpu) {
    CUresult result = told(function);
    if (result != 0) {
        return result;
    }
    if (current() == NULL || current()->retained == 0) {
        return wrong(function, 201);
    }
    *gpu = current()->gpu;
    return 0;
}

/* One that a capture forbids in threads that are not relaxed. */
static CUresult enter_unsafe(const char *function, int *gpu) {
    bool capturing = false;
    CUresult result = enter(function, gpu);
    if (result == 0 && capture_mode != TIDE__CU_CAPTURE_RELAXED &&
        device->ops->stream_capturing(device, *gpu, 0, &capturing) == TIDE_OK && capturing) {
        return wrong(function, TIDE__CU_CAPTURE_UNSUPPORTED);
    }
    return result;
}

static CUresult result_of(tide_status status) {
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
    default: return 999;
    }
}

/* The legacy stream has two names. */
static tide_stream stream_of(CUstream stream) {
    return (uintptr_t)stream == TIDE__CU_STREAM_LEGACY ? 0 : (uintptr_t)stream;
}
static tide__event event_of(CUevent event) { return (uintptr_t)event; }

#define GPU_CALL(function, expression)        \
    int gpu = 0;                              \
    CUresult result = enter(#function, &gpu); \
    return result != 0 ? result : result_of(device->ops->expression)
#define UNSAFE_GPU_CALL(function, expression)        \
    int gpu = 0;                                     \
    CUresult result = enter_unsafe(#function, &gpu); \
    return result != 0 ? result : result_of(device->ops->expression)

/* ---- The driver and its devices ---- */

EXPORT CUresult cuInit(unsigned int flags) {
    pthread_mutex_lock(&lock);
    const char *count = getenv("STANDIN_GPUS");
    if (device == NULL && own == NULL) {
        tide__host_options options = {.device_count = count != NULL ? atoi(count) : 1};
        if (options.device_count > 0 && tide__host_open(&options, &own) == TIDE_OK) {
            device = own;
        }
    }
    pthread_mutex_unlock(&lock);
    return told("cuInit");
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = 13000;
    return told("cuDriverGetVersion");
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
    CUresult result = told("cuDeviceGetCount");
    if (result == 0) {
        *count = device->ops->count(device);
    }
    return result;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    CUresult result = told("cuDeviceGet");
    if (result == 0 && (ordinal < 0 || ordinal >= device->ops->count(device))) {
        result = 101;
    }
    if (result == 0) {
        *out = ordinal + 1000; /* no ordinal: the two are different things */
    }
    return result;
}

static CUresult properties_of(const char *function, CUdevice handle, tide__device_properties *out) {
    CUresult result = told(function);
    return result != 0 ? result : result_of(device->ops->properties(device, handle - 1000, out));
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice handle) {
    tide__device_properties p;
    CUresult result = properties_of("cuDeviceGetName", handle, &p);
    if (result == 0) {
        snprintf(name, (size_t)length, "%s", p.name);
    }
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice handle) {
    tide__device_properties p;
    CUresult result = properties_of("cuDeviceTotalMem_v2", handle, &p);
    if (result == 0) {
        *bytes = p.total_bytes;
    }
    return result;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice handle) {
    CUresult result = told("cuDeviceGetAttribute");
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
    CUresult result = told("cuDeviceCanAccessPeer");
    if (result == 0) {
        *can = handle != peer;
    }
    return result;
}

/* ---- Contexts ---- */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice handle) {
    CUresult result = told("cuDevicePrimaryCtxRetain");
    if (result != 0) {
        return result;
    }
    pthread_mutex_lock(&lock);
    CUcontext c = &contexts[handle - 1000];
    c->gpu = handle - 1000;
    state.contexts += c->retained++ == 0;
    pthread_mutex_unlock(&lock);
    *context = c;
    return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice handle) {
    CUresult result = told("cuDevicePrimaryCtxRelease_v2");
    if (result == 0) {
        pthread_mutex_lock(&lock);
        result = contexts[handle - 1000].retained > 0 ? 0 : 201;
        state.contexts -= result == 0 && --contexts[handle - 1000].retained == 0;
        pthread_mutex_unlock(&lock);
    }
    return result;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult result = told("cuCtxGetCurrent");
    if (result == 0) {
        *context = current();
    }
    return result;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = told("cuCtxPushCurrent_v2");
    if (result == 0 && (context == NULL || depth == 32)) {
        result = 201;
    }
    if (result == 0) {
        stack[depth++] = context;
    }
    return result;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    pthread_mutex_lock(&lock); /* cannot be told to fail: nobody could put the thread right again */
    state.calls++;
    pthread_mutex_unlock(&lock);
    if (depth == 0) {
        return wrong("cuCtxPopCurrent_v2", 201);
    }
    *context = stack[--depth];
    return 0;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    /* To leave is, for the same reason, never refused. */
    CUresult result = *mode == TIDE__CU_CAPTURE_RELAXED ? told("cuThreadExchangeStreamCaptureMode") : 0;
    if (result == 0) {
        CUstreamCaptureMode before = capture_mode;
        capture_mode = *mode;
        *mode = before;
    }
    return result;
}

EXPORT CUresult cuCtxSynchronize(void) {
    UNSAFE_GPU_CALL(cuCtxSynchronize, device_wait(device, gpu, UINT64_MAX));
}

/* ---- Memory ---- */

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint64_t left = 0, all = 0;
    int gpu = 0;
    CUresult result = enter("cuMemGetInfo_v2", &gpu);
    if (result == 0 && (result = result_of(device->ops->mem_info(device, gpu, &left, &all))) == 0) {
        *free_bytes = left;
        *total_bytes = all;
    }
    return result;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags which) {
    tide__device_properties p;
    CUresult result = properties_of("cuMemGetAllocationGranularity", properties->location.id + 1000, &p);
    if (result == 0) {
        *granularity = p.granularity;
    }
    return result;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *va, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    uint64_t got = 0;
    int gpu = 0;
    CUresult result = enter_unsafe("cuMemAddressReserve", &gpu);
    if (result != 0) {
        return result;
    }
    tide_status status = device->ops->reserve(device, gpu, size, alignment, hint, &got);
    if (status == TIDE_NO_ADDRESSES && hint != 0) { /* a hint is a wish */
        status = device->ops->reserve(device, gpu, size, alignment, 0, &got);
    }
    if (status == TIDE_OK) {
        *va = got;
    }
    return result_of(status);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr va, size_t size) {
    UNSAFE_GPU_CALL(cuMemAddressFree, unreserve(device, gpu, va, size));
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p,
                            unsigned long long flags) {
    tide__chunk_handle got = 0;
    int gpu = 0;
    CUresult result = enter_unsafe("cuMemCreate", &gpu);
    if (result != 0) {
        return result;
    }
    if (p->type != TIDE__CU_PINNED || p->location.type != TIDE__CU_LOCATION_DEVICE || p->location.id != gpu) {
        return wrong("cuMemCreate", TIDE__CU_INVALID_VALUE);
    }
    tide_status status = device->ops->chunk_create(device, gpu, size, &got);
    if (status == TIDE_OK) {
        *handle = got;
    }
    return result_of(status);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    UNSAFE_GPU_CALL(cuMemRelease, chunk_release(device, gpu, handle));
}

EXPORT CUresult cuMemMap(CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    UNSAFE_GPU_CALL(cuMemMap, map(device, gpu, va, size, handle));
}

EXPORT CUresult cuMemUnmap(CUdeviceptr va, size_t size) {
    UNSAFE_GPU_CALL(cuMemUnmap, unmap(device, gpu, va, size));
}

/* Peers are passed on to the device beneath, whose set_access serves them. */
EXPORT CUresult cuMemSetAccess(CUdeviceptr va, size_t size, const CUmemAccessDesc *access, size_t count) {
    int gpu = 0;
    bool self = false;
    CUresult result = enter_unsafe("cuMemSetAccess", &gpu);
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < count && result == 0 && status == TIDE_OK; i++) {
        self = self || access[i].location.id == gpu;
        if (access[i].flags != TIDE__CU_READ_WRITE) {
            result = TIDE__CU_INVALID_VALUE;
        } else if (access[i].location.id != gpu) {
            status = device->ops->peer_enable(device, gpu, access[i].location.id);
        }
    }
    if (result != 0 || status != TIDE_OK) {
        return result != 0 ? result : result_of(status);
    }
    return self ? result_of(device->ops->set_access(device, gpu, va, size))
                : wrong("cuMemSetAccess", TIDE__CU_INVALID_VALUE);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *va, size_t size) {
    uint64_t got = 0;
    int gpu = 0;
    CUresult result = enter_unsafe("cuMemAlloc_v2", &gpu);
    if (result == 0 && (result = result_of(device->ops->raw_alloc(device, gpu, size, &got))) == 0) {
        *va = got;
    }
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr va) { UNSAFE_GPU_CALL(cuMemFree_v2, raw_free(device, gpu, va)); }

/* ---- Streams and events ---- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    tide_stream got = 0;
    int gpu = 0;
    CUresult result = enter("cuStreamCreate", &gpu);
    if (result == 0 && (result = result_of(device->ops->stream_create(device, gpu, &got))) == 0) {
        *stream = (CUstream)(uintptr_t)got;
    }
    return result;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    GPU_CALL(cuStreamDestroy_v2, stream_destroy(device, gpu, stream_of(stream)));
}

EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    uint64_t got = 0;
    int gpu = 0;
    CUresult result = enter("cuStreamGetId", &gpu);
    if (result == 0 &&
        (result = result_of(device->ops->stream_id(device, gpu, stream_of(stream), &got))) == 0) {
        *id = got;
    }
    return result;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    bool capturing = false;
    int gpu = 0;
    CUresult result = enter("cuStreamIsCapturing", &gpu);
    if (result != 0) {
        return result;
    }
    result = result_of(device->ops->stream_capturing(device, gpu, stream_of(stream), &capturing));
    if (result == 0 && capturing && stream_of(stream) == 0) {
        return TIDE__CU_CAPTURE_IMPLICIT;
    }
    if (result == 0) {
        *status = capturing;
    }
    return result;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    GPU_CALL(cuStreamWaitEvent, stream_wait_event(device, gpu, stream_of(stream), event_of(event)));
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    tide__event got = 0;
    int gpu = 0;
    CUresult result = enter("cuEventCreate", &gpu);
    if (result == 0 && (result = result_of(device->ops->event_create(device, gpu, &got))) == 0) {
        *event = (CUevent)(uintptr_t)got;
    }
    return result;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    GPU_CALL(cuEventDestroy_v2, event_destroy(device, gpu, event_of(event)));
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    GPU_CALL(cuEventRecord, event_record(device, gpu, event_of(event), stream_of(stream)));
}

EXPORT CUresult cuEventQuery(CUevent event) {
    UNSAFE_GPU_CALL(cuEventQuery, event_query(device, gpu, event_of(event)));
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    UNSAFE_GPU_CALL(cuEventSynchronize, event_wait(device, gpu, event_of(event), UINT64_MAX));
}

/* ---- The controls ---- */

static void serve(tide__device *d) {
    pthread_mutex_lock(&lock);
    device = d;
    memset(contexts, 0, sizeof contexts);
    memset(&state, 0, sizeof state);
    memset(&rule, 0, sizeof rule);
    stuck = 0;
    attribute_count = 0;
    pthread_mutex_unlock(&lock);
}

static void fail_call(const char *function, uint64_t k, int result, bool sticky) {
    pthread_mutex_lock(&lock);
    rule.function = function;
    rule.k = k;
    rule.result = result;
    rule.sticky = sticky;
    pthread_mutex_unlock(&lock);
}

static void shut_down(void) {
    pthread_mutex_lock(&lock);
    stuck = TIDE__CU_DEINITIALIZED;
    pthread_mutex_unlock(&lock);
}

static void get(standin_state *out) {
    pthread_mutex_lock(&lock);
    *out = state;
    pthread_mutex_unlock(&lock);
}

static void set_attribute(int attribute, int value) {
    pthread_mutex_lock(&lock);
    if (attribute_count < MAX_ATTRIBUTES) {
        attributes[attribute_count].attribute = attribute;
        attributes[attribute_count++].value = value;
    }
    pthread_mutex_unlock(&lock);
}

EXPORT const standin_controls *standin_get(void) {
    static const standin_controls controls = {.serve = serve,
                                              .fail_call = fail_call,
                                              .shut_down = shut_down,
                                              .get = get,
                                              .set_attribute = set_attribute};
    return &controls;
}
