/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entering and leaving a GPU. Its primary context, the one that the CUDA runtime
 * and PyTorch use, is retained at the first call that needs one, since a context
 * takes some hundred MiB of the device: GPUs that are only counted get none.
 */
#include "device/cuda_internal.h"

static tide_status retain(tide__cuda_gpu *g, CUcontext *out) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&g->cuda->first_entry);
    CUcontext context = atomic_load(&g->context);
    if (context == NULL) {
        CUresult result = g->api->cuDevicePrimaryCtxRetain(&context, g->device);
        status = tide__cuda_result(g, result, "cuDevicePrimaryCtxRetain", "device %d", g->device);
        if (status == TIDE_OK) {
            atomic_store(&g->context, context);
        }
    }
    pthread_mutex_unlock(&g->cuda->first_entry);
    *out = context;
    return status;
}

static tide_status make_current(tide__cuda_visit *v, CUcontext context) {
    const tide__cuda_api *api = v->gpu->api;
    CUcontext current = NULL;
    CUresult result = api->cuCtxGetCurrent(&current);
    if (result == TIDE__CU_OK && current == context) {
        return TIDE_OK;
    }
    if (result == TIDE__CU_OK) {
        result = api->cuCtxPushCurrent_v2(context);
        v->pushed = result == TIDE__CU_OK;
    }
    return tide__cuda_result(v->gpu, result, "cuCtxPushCurrent", "the primary context");
}

static tide_status unhealthy(tide__health health) {
    if (health == TIDE__HEALTH_GONE) {
        return tide__fail(TIDE_DEVICE_GONE, "the driver has shut down, as it does when a process ends");
    }
    return tide__fail(TIDE_DEVICE_LOST,
                      "the device failed earlier and accepts no calls: the process must end");
}

tide_status tide__cuda_enter(tide__device *d, int gpu, tide__call call, bool timed, tide__cuda_visit *out) {
    tide__cuda *c = (tide__cuda *)d;
    if (gpu < 0 || gpu >= c->gpu_count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "cuda: there is no GPU %d, there are %d", gpu, c->gpu_count);
    }
    tide__cuda_gpu *g = &c->gpus[gpu];
    *out = (tide__cuda_visit){.gpu = g, .capture_mode = TIDE__CU_CAPTURE_RELAXED};
    atomic_fetch_add_explicit(&g->calls[call], 1, memory_order_relaxed);
    tide__health health = (tide__health)atomic_load_explicit(&c->health, memory_order_relaxed);
    if (TIDE__UNLIKELY(health != TIDE__HEALTH_OK)) {
        return unhealthy(health);
    }
    CUcontext context = atomic_load_explicit(&g->context, memory_order_acquire);
    tide_status status = TIDE__LIKELY(context != NULL) ? TIDE_OK : retain(g, &context);
    if (status == TIDE_OK) {
        status = make_current(out, context);
    }
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = c->api->cuThreadExchangeStreamCaptureMode(&out->capture_mode);
    if (result != TIDE__CU_OK) {
        status = tide__cuda_result(g, result, "cuThreadExchangeStreamCaptureMode", "relaxed");
        if (out->pushed) {
            c->api->cuCtxPopCurrent_v2(&context);
        }
        return status;
    }
    out->start_ns = timed ? tide__monotonic_ns() : 0;
    return TIDE_OK;
}

tide_status tide__cuda_leave(tide__cuda_visit *v, tide_status status) {
    CUcontext context;
    if (v->start_ns != 0) {
        uint64_t took = tide__monotonic_ns() - v->start_ns;
        atomic_fetch_add_explicit(&v->gpu->driver_ns, took, memory_order_relaxed);
    }
    /* Neither can fail but where the driver is gone, and then nothing is to be put back. */
    v->gpu->api->cuThreadExchangeStreamCaptureMode(&v->capture_mode);
    if (v->pushed) {
        v->gpu->api->cuCtxPopCurrent_v2(&context);
    }
    return status;
}
