/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host: the device made of host memory. This file opens and closes it, counts
 * calls, and leads each call of the table into its GPU, under whose lock the
 * rooms behind (host_internal.h lists them) do the work.
 *
 * Closing opens all gates, ends all delays, lets the queues run out, and gives
 * everything back. No other thread may be in a call then.
 *
 * Bounds: 64 GPUs; 2^24 handles of a kind on each.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/host_internal.h"

#define HOST_MAX_CAPACITY ((uint64_t)1 << 46)  /* 64 times as many offsets still fit the file */
#define HOST_ADDRESS_BYTES ((uint64_t)1 << 47) /* what the kernel gives a process */

/* ---- Handles ---- */

static uint64_t handle_of(const tide__host_table *t, size_t index) {
    return (uint64_t)t->slots[index].generation << 32 | (uint64_t)t->kind << 30 | (uint64_t)t->gpu << 24 |
           (uint64_t)index;
}

uint64_t tide__host_table_add(tide__host_table *t, void *object) {
    TIDE__CHECK(object);
    size_t index;
    if (t->first_free) {
        index = t->first_free - 1;
        t->first_free = t->slots[index].next_free;
    } else {
        if (t->count == TIDE__HOST_MAX_HANDLES ||
            !tide__grow((void **)&t->slots, &t->capacity, t->count + 1, sizeof *t->slots)) {
            return 0;
        }
        index = t->count++;
        t->slots[index].generation = 1;
    }
    t->slots[index].object = object;
    return handle_of(t, index);
}

void *tide__host_table_get(const tide__host_table *t, uint64_t handle) {
    size_t index = handle & (TIDE__HOST_MAX_HANDLES - 1);
    if (index >= t->count || !t->slots[index].object || handle_of(t, index) != handle) {
        return NULL;
    }
    return t->slots[index].object;
}

void tide__host_table_remove(tide__host_table *t, uint64_t handle) {
    TIDE__CHECK(tide__host_table_get(t, handle));
    size_t index = handle & (TIDE__HOST_MAX_HANDLES - 1);
    tide__host_slot *slot = &t->slots[index];
    slot->object = NULL;
    if (!t->same_generation && ++slot->generation == 0) {
        slot->generation = 1;
    }
    slot->next_free = t->first_free;
    t->first_free = (uint32_t)index + 1;
}

/* ---- Entering ---- */

static const tide__device_ops host_ops;

tide__host *tide__host_of(tide__device *d) {
    TIDE__CHECK(d && d->ops == &host_ops); /* a wrapper's inner device is meant: tide__fault_inner */
    return (tide__host *)d;
}

tide__host_gpu *tide__host_enter(tide__device *d, int gpu) {
    tide__host *h = tide__host_of(d);
    if (gpu < 0 || gpu >= h->gpu_count) {
        tide__fail(TIDE_INVALID_ARGUMENT, "host: there is no GPU %d, there are %d", gpu, h->gpu_count);
        return NULL;
    }
    pthread_mutex_lock(&h->gpus[gpu].lock);
    return &h->gpus[gpu];
}

void tide__host_leave(tide__host_gpu *g) { pthread_mutex_unlock(&g->lock); }

/* The body of a table's function: the GPU is g, the result is status. */
#define HOST_CALL(call, expression)               \
    tide__host_gpu *g = tide__host_enter(d, gpu); \
    if (!g) return TIDE_INVALID_ARGUMENT;         \
    g->counters.calls[call]++;                    \
    tide_status status = (expression);            \
    tide__host_leave(g);                          \
    return status

/* The same for calls whose time counts as the driver's. */
#define HOST_TIMED_CALL(call, expression)                     \
    tide__host_gpu *g = tide__host_enter(d, gpu);             \
    if (!g) return TIDE_INVALID_ARGUMENT;                     \
    g->counters.calls[call]++;                                \
    uint64_t start_ns = tide__monotonic_ns();                 \
    tide_status status = (expression);                        \
    g->counters.driver_ns += tide__monotonic_ns() - start_ns; \
    tide__host_leave(g);                                      \
    return status

/* ---- The table ---- */

static int host_count(tide__device *d) { return tide__host_of(d)->gpu_count; }

static tide_status host_properties(tide__device *d, int gpu, tide__device_properties *out) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    *out = g->host->properties;
    tide__host_leave(g);
    return TIDE_OK;
}

static tide_status mem_info(tide__host_gpu *g, uint64_t *free_bytes, uint64_t *total_bytes) {
    TIDE__CHECK(g->pages.used_bytes <= g->pages.capacity_bytes);
    *free_bytes = g->pages.capacity_bytes - g->pages.used_bytes;
    *total_bytes = g->pages.capacity_bytes;
    return TIDE_OK;
}

static tide_status host_mem_info(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    HOST_CALL(TIDE__CALL_MEM_INFO, mem_info(g, free_bytes, total_bytes));
}

static tide_status host_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                                uint64_t *va) {
    HOST_TIMED_CALL(TIDE__CALL_RESERVE, tide__host_reserve(g, size, align, hint, va));
}

static tide_status host_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    HOST_TIMED_CALL(TIDE__CALL_UNRESERVE, tide__host_unreserve(g, va, size));
}

static tide_status host_chunk_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out) {
    HOST_TIMED_CALL(TIDE__CALL_CHUNK_CREATE, tide__host_chunk_create(g, size, out));
}

static tide_status host_chunk_release(tide__device *d, int gpu, tide__chunk_handle chunk) {
    HOST_TIMED_CALL(TIDE__CALL_CHUNK_RELEASE, tide__host_chunk_release(g, chunk));
}

static tide_status host_map(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk) {
    HOST_TIMED_CALL(TIDE__CALL_MAP, tide__host_map(g, va, size, chunk));
}

static tide_status host_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    HOST_TIMED_CALL(TIDE__CALL_SET_ACCESS, tide__host_set_access(g, va, size));
}

static tide_status host_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    HOST_TIMED_CALL(TIDE__CALL_UNMAP, tide__host_unmap(g, va, size));
}

static tide_status host_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va) {
    HOST_TIMED_CALL(TIDE__CALL_RAW_ALLOC, tide__host_raw_alloc(g, size, va));
}

static tide_status host_raw_free(tide__device *d, int gpu, uint64_t va) {
    HOST_TIMED_CALL(TIDE__CALL_RAW_FREE, tide__host_raw_free(g, va));
}

static tide_status stream_id(tide__host_gpu *g, tide_stream stream, uint64_t *id) {
    const tide__host_stream *s = tide__host_stream_find(g, stream);
    if (!s) {
        return TIDE_BAD_HANDLE;
    }
    *id = s->id;
    return TIDE_OK;
}

static tide_status host_stream_id(tide__device *d, int gpu, tide_stream stream, uint64_t *id) {
    HOST_CALL(TIDE__CALL_STREAM_ID, stream_id(g, stream, id));
}

static tide_status host_stream_create(tide__device *d, int gpu, tide_stream *out) {
    HOST_CALL(TIDE__CALL_STREAM_CREATE, tide__host_stream_open(g, false, out));
}

static tide_status host_stream_destroy(tide__device *d, int gpu, tide_stream stream) {
    HOST_CALL(TIDE__CALL_STREAM_DESTROY, tide__host_stream_close(g, stream));
}

static tide_status host_event_create(tide__device *d, int gpu, tide__event *out) {
    HOST_CALL(TIDE__CALL_EVENT_CREATE, tide__host_event_create(g, out));
}

static tide_status host_event_destroy(tide__device *d, int gpu, tide__event event) {
    HOST_CALL(TIDE__CALL_EVENT_DESTROY, tide__host_event_destroy(g, event));
}

static tide_status host_event_record(tide__device *d, int gpu, tide__event event, tide_stream stream) {
    HOST_CALL(TIDE__CALL_EVENT_RECORD, tide__host_event_record(g, event, stream));
}

static tide_status host_event_query(tide__device *d, int gpu, tide__event event) {
    HOST_CALL(TIDE__CALL_EVENT_QUERY, tide__host_event_query(g, event));
}

static tide_status host_event_wait(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns) {
    HOST_CALL(TIDE__CALL_EVENT_WAIT, tide__host_event_wait(g, event, timeout_ns));
}

static tide_status host_stream_wait_event(tide__device *d, int gpu, tide_stream stream, tide__event event) {
    HOST_CALL(TIDE__CALL_STREAM_WAIT, tide__host_stream_wait(g, stream, event));
}

static tide_status host_stream_capturing(tide__device *d, int gpu, tide_stream stream, bool *out) {
    HOST_CALL(TIDE__CALL_STREAM_CAPTURING, tide__host_stream_capturing(g, stream, out));
}

static tide_status host_peer_enable(tide__device *d, int gpu, int peer) {
    HOST_CALL(TIDE__CALL_PEER_ENABLE, tide__host_peer_enable(g, peer));
}

static tide_status host_device_wait(tide__device *d, int gpu, uint64_t timeout_ns) {
    HOST_CALL(TIDE__CALL_DEVICE_WAIT, tide__host_wait_all(g, timeout_ns));
}

static tide__health host_health(tide__device *d) {
    (void)d;
    return TIDE__HEALTH_OK;
}

static uint64_t host_now_ns(tide__device *d) { return tide__monotonic_ns(); }

static void host_counters(tide__device *d, int gpu, tide__device_counters *out) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        *out = (tide__device_counters){0};
        return;
    }
    *out = g->counters;
    tide__host_leave(g);
}

void tide__host_reuse_stream_handles(tide__device *d, bool reuse) {
    for (int i = 0; i < tide__host_of(d)->gpu_count; i++) {
        tide__host_gpu *g = tide__host_enter(d, i);
        g->streams.same_generation = reuse;
        tide__host_leave(g);
    }
}

/* ---- Open and close ---- */

static void table_free_objects(tide__host_table *t) {
    for (size_t i = 0; i < t->count; i++) {
        free(t->slots[i].object);
    }
    free(t->slots);
    *t = (tide__host_table){0};
}

static void gpu_close(tide__host_gpu *g) {
    pthread_mutex_lock(&g->lock);
    tide__host_streams_stop(g);
    for (size_t i = 0; i < g->events.count; i++) {
        tide__host_event *e = g->events.slots[i].object;
        if (e) {
            tide__host_clock_free(&e->clock);
        }
    }
    table_free_objects(&g->events);
    table_free_objects(&g->gates);
    free(g->streams.slots);
    free(g->lanes);
    tide__host_clock_free(&g->host_clock);
    tide__host_cells_free(g);
    tide__host_pages_close(&g->pages);
    pthread_mutex_unlock(&g->lock);
    pthread_cond_destroy(&g->progress);
    pthread_mutex_destroy(&g->lock);
}

static void host_close(tide__device *d) {
    tide__host *h = tide__host_of(d);
    for (int i = 0; i < h->gpu_count; i++) {
        gpu_close(&h->gpus[i]);
    }
    pthread_mutex_destroy(&h->handler_lock);
    free(h);
}

static tide_status gpu_open(tide__host *h, int index) {
    tide__host_gpu *g = &h->gpus[index];
    pthread_condattr_t attr;
    tide_stream default_stream;
    g->host = h;
    g->index = index;
    g->streams = (tide__host_table){.kind = TIDE__HOST_STREAM, .gpu = index};
    g->events = (tide__host_table){.kind = TIDE__HOST_EVENT, .gpu = index};
    g->gates = (tide__host_table){.kind = TIDE__HOST_GATE, .gpu = index};
    if (!tide__host_pages_open(&g->pages, index, h->properties.total_bytes, h->properties.granularity)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "host: no memory file for GPU %d", index);
    }
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->progress, &attr);
    pthread_condattr_destroy(&attr);
    tide_status status = tide__host_stream_open(g, true, &default_stream);
    if (status != TIDE_OK) {
        gpu_close(g);
    }
    return status;
}

static const tide__device_ops host_ops = {
    .struct_size = sizeof(tide__device_ops),
    .name = "host",
    .close = host_close,
    .count = host_count,
    .properties = host_properties,
    .mem_info = host_mem_info,
    .reserve = host_reserve,
    .unreserve = host_unreserve,
    .chunk_create = host_chunk_create,
    .chunk_release = host_chunk_release,
    .map = host_map,
    .set_access = host_set_access,
    .unmap = host_unmap,
    .raw_alloc = host_raw_alloc,
    .raw_free = host_raw_free,
    .stream_id = host_stream_id,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_query = host_event_query,
    .event_wait = host_event_wait,
    .stream_wait_event = host_stream_wait_event,
    .stream_capturing = host_stream_capturing,
    .peer_enable = host_peer_enable,
    .device_wait = host_device_wait,
    .health = host_health,
    .now_ns = host_now_ns,
    .counters = host_counters,
};

tide_status tide__host_open(const tide__host_options *options, tide__device **out) {
    tide__host_options o = options ? *options : (tide__host_options){0};
    int count = o.device_count ? o.device_count : 1;
    uint64_t granularity = o.granularity ? o.granularity : 2 * TIDE__MIB;
    uint64_t capacity =
        tide__align_down(o.capacity_bytes ? o.capacity_bytes : TIDE__SIM_H200_BYTES, granularity);
    if (count < 1 || count > TIDE__HOST_MAX_GPUS) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "host: %d devices; 1 to %d are possible", count,
                          TIDE__HOST_MAX_GPUS);
    }
    if ((granularity & (granularity - 1)) != 0 || granularity < (uint64_t)sysconf(_SC_PAGESIZE)) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host: granularity %" PRIu64 " is no power of two of a page or more", granularity);
    }
    if (capacity == 0 || capacity > HOST_MAX_CAPACITY) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host: capacity %" PRIu64 " is less than a chunk or more than %" PRIu64,
                          o.capacity_bytes, HOST_MAX_CAPACITY);
    }
    tide__host *h = calloc(1, sizeof *h + (size_t)count * sizeof h->gpus[0]);
    if (!h) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "host: no memory for %d devices", count);
    }
    h->base.ops = &host_ops;
    h->properties = (tide__device_properties){.total_bytes = capacity,
                                              .granularity = granularity,
                                              .address_bytes = HOST_ADDRESS_BYTES,
                                              .name = "host",
                                              .exportable = true,
                                              .numa_node = -1};
    pthread_mutex_init(&h->handler_lock, NULL);
    while (h->gpu_count < count) {
        tide_status status = gpu_open(h, h->gpu_count);
        if (status != TIDE_OK) {
            host_close(&h->base);
            return status;
        }
        h->gpu_count++;
    }
    *out = &h->base;
    return TIDE_OK;
}
