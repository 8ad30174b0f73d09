/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda: GPUs through NVIDIA's driver. This file opens and closes the device and
 * holds its table; cuda_internal.h lists the rooms behind.
 *
 * Every GPU that the process sees is one of the device's, by its ordinal. Opening
 * makes no context: see cuda_context.c.
 */
#include <stdlib.h>

#include "device/cuda_internal.h"

/* ---- The table ---- */

static int cuda_count(tide__device *d) { return ((tide__cuda *)d)->gpu_count; }

static tide_status cuda_properties(tide__device *d, int gpu, tide__device_properties *out) {
    tide__cuda *c = (tide__cuda *)d;
    if (gpu < 0 || gpu >= c->gpu_count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "cuda: there is no GPU %d, there are %d", gpu, c->gpu_count);
    }
    *out = c->gpus[gpu].properties;
    return TIDE_OK;
}

static tide__health cuda_health(tide__device *d) {
    return (tide__health)atomic_load_explicit(&((tide__cuda *)d)->health, memory_order_relaxed);
}

static uint64_t cuda_now_ns(tide__device *d) {
    (void)d;
    return tide__monotonic_ns();
}

static void cuda_counters(tide__device *d, int gpu, tide__device_counters *out) {
    tide__cuda *c = (tide__cuda *)d;
    *out = (tide__device_counters){0};
    if (gpu < 0 || gpu >= c->gpu_count) {
        return;
    }
    for (int i = 0; i < TIDE__CALL_COUNT; i++) {
        out->calls[i] = atomic_load_explicit(&c->gpus[gpu].calls[i], memory_order_relaxed);
    }
    out->driver_ns = atomic_load_explicit(&c->gpus[gpu].driver_ns, memory_order_relaxed);
    out->host_wait_ns = atomic_load_explicit(&c->gpus[gpu].host_wait_ns, memory_order_relaxed);
}

static void cuda_close(tide__device *d) {
    tide__cuda *c = (tide__cuda *)d;
    for (int i = 0; i < c->gpu_count; i++) {
        if (cuda_health(d) == TIDE__HEALTH_OK && atomic_load(&c->gpus[i].context) != NULL) {
            c->api->cuDevicePrimaryCtxRelease_v2(c->gpus[i].device);
        }
    }
    pthread_mutex_destroy(&c->first_entry);
    free(c);
}

static const tide__device_ops cuda_ops = {.struct_size = sizeof(tide__device_ops),
                                          .name = "cuda",
                                          .close = cuda_close,
                                          .count = cuda_count,
                                          .properties = cuda_properties,
                                          .mem_info = tide__cuda_mem_info,
                                          .reserve = tide__cuda_reserve,
                                          .unreserve = tide__cuda_unreserve,
                                          .chunk_create = tide__cuda_chunk_create,
                                          .chunk_release = tide__cuda_chunk_release,
                                          .map = tide__cuda_map,
                                          .set_access = tide__cuda_set_access,
                                          .unmap = tide__cuda_unmap,
                                          .raw_alloc = tide__cuda_raw_alloc,
                                          .raw_free = tide__cuda_raw_free,
                                          .stream_id = tide__cuda_stream_id,
                                          .stream_create = tide__cuda_stream_create,
                                          .stream_destroy = tide__cuda_stream_destroy,
                                          .event_create = tide__cuda_event_create,
                                          .event_destroy = tide__cuda_event_destroy,
                                          .event_record = tide__cuda_event_record,
                                          .event_query = tide__cuda_event_query,
                                          .event_wait = tide__cuda_event_wait,
                                          .stream_wait_event = tide__cuda_stream_wait_event,
                                          .stream_capturing = tide__cuda_stream_capturing,
                                          .peer_enable = tide__cuda_peer_enable,
                                          .device_wait = tide__cuda_device_wait,
                                          .health = cuda_health,
                                          .now_ns = cuda_now_ns,
                                          .counters = cuda_counters};

/* ---- Opening ---- */

/* What a user can do about it where cuInit or the count fails. */
static tide_status no_device(const tide__cuda_api *api, const char *call, CUresult result) {
    return tide__fail(
        TIDE_NO_DEVICE,
        "%s: %s (%d): no GPU can be used. Is one there and given to this container (nvidia-smi), and "
        "does CUDA_VISIBLE_DEVICES leave one? Without a GPU, PAGETIDE_DEVICE=host or sim",
        call, tide__cuda_result_name(api, result), (int)result);
}

static tide_status describe_gpus(tide__cuda *c) {
    for (int i = 0; i < c->gpu_count; i++) {
        tide__cuda_gpu *g = &c->gpus[i];
        g->cuda = c;
        g->api = c->api;
        g->ordinal = i;
        CUresult result = c->api->cuDeviceGet(&g->device, i);
        tide_status status = tide__cuda_result(g, result, "cuDeviceGet", "%d", i);
        if (status == TIDE_OK) {
            status = tide__cuda_describe(g);
        }
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

tide_status tide__cuda_open(tide__device **out) {
    const tide__cuda_api *api;
    int count = 0;
    tide_status status = tide__cuda_load(&api);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = api->cuInit(0);
    if (result != TIDE__CU_OK) {
        return no_device(api, "cuInit", result);
    }
    result = api->cuDeviceGetCount(&count);
    if (result != TIDE__CU_OK || count <= 0) {
        return no_device(api, "cuDeviceGetCount", result);
    }
    count = (int)tide__min((uint64_t)count, TIDE__CUDA_MAX_GPUS);
    tide__cuda *c = calloc(1, sizeof *c + (size_t)count * sizeof c->gpus[0]);
    if (c == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for %d GPUs", count);
    }
    c->base.ops = &cuda_ops;
    c->api = api;
    c->gpu_count = count;
    pthread_mutex_init(&c->first_entry, NULL);
    status = describe_gpus(c);
    if (status != TIDE_OK) {
        cuda_close(&c->base);
        return status;
    }
    *out = &c->base;
    return TIDE_OK;
}
