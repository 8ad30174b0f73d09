/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim: a device without bytes, for replaying terabytes in seconds. It counts
 * calls, charges each what it costs on a real card, and keeps two clocks:
 *
 *   host clock = the trace's time (tide__sim_set_trace_time) + all time the
 *                host has waited for events;
 *   GPU clock  = work queued at host time h is done at h + event_delay, and
 *                not before what its stream was told to wait for.
 *
 * Driver time is added up apart and moves neither. Clean bytes: a device
 * starts cleared; what is released is dirty, and a create that finds no clean
 * bytes left pays for the clearing.
 *
 * One lock a device table; handles are indices with a generation, so a stale
 * one is an error and not a crash. The calls themselves keep the contract that
 * a real driver enforces (whole mappings, live handles), since the engine is
 * tested against it here first.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

const tide__sim_costs tide__sim_h200_costs = {
    .create_ns = 10000,
    .create_dirty_ns_per_mib = 1900,
    .map_ns = 700,
    .set_access_ns = 25000,
    .unmap_ns = 17000,
    .release_ns = 10000,
    .release_ns_per_mib = 300,
    .raw_alloc_ns = 42000,
    .raw_free_ns = 49000,
};

#define ADDRESS_BYTES (UINT64_C(1) << 47)
#define FIRST_ADDRESS (UINT64_C(1) << 40)

typedef struct sim_chunk {
    uint64_t size;
    uint32_t generation, mappings;
    bool live;
} sim_chunk;

typedef struct sim_event {
    uint64_t done_ns;
    uint32_t generation;
    bool live;
} sim_event;

typedef struct sim_stream {
    uint64_t ready_ns; /* nothing queued from now on is done before this */
    uint64_t id;
    bool capturing;
} sim_stream;

/* Reserved addresses, and the chunk behind each granule of them: index + 1, with
 * FIRST set where a mapping begins (one chunk may be mapped twice in a row). */
#define FIRST UINT32_C(0x80000000)
typedef struct sim_reservation {
    uint64_t va, size;
    uint32_t *chunk_of;
} sim_reservation;

typedef struct sim_gpu {
    uint64_t used_bytes, clean_bytes;
    sim_chunk *chunks;
    size_t chunk_count, chunk_cap;
    uint32_t *free_chunks;
    size_t free_chunk_count, free_chunk_cap;
    sim_event *events;
    size_t event_count, event_cap;
    uint32_t *free_events;
    size_t free_event_count, free_event_cap;
    sim_reservation *reservations;
    size_t reservation_count, reservation_cap;
    tide__map raw;     /* va -> size */
    tide__map streams; /* handle -> index in stream_list */
    sim_stream *stream_list;
    size_t stream_count, stream_cap;
    unsigned captures; /* streams */
    tide__device_counters counters;
} sim_gpu;

typedef struct sim_device {
    tide__device base;
    pthread_mutex_t lock;
    sim_gpu *gpus;
    int count;
    uint64_t capacity_bytes, granularity, delay_ns;
    tide__sim_costs costs;
    uint64_t trace_ns, waited_ns;
    uint64_t next_va, next_stream;
} sim_device;

/* ---- Small helpers; the lock is held ---- */

static sim_device *self(tide__device *d) { return (sim_device *)d; }
static uint64_t host_now(const sim_device *s) { return s->trace_ns + s->waited_ns; }

static void charge(sim_gpu *g, tide__call call, uint64_t ns) {
    g->counters.calls[call]++;
    g->counters.driver_ns += ns;
}

static uint64_t pack(uint32_t index, uint32_t generation) {
    return ((uint64_t)generation << 32) | (index + 1);
}

static sim_chunk *find_chunk(sim_gpu *g, tide__chunk_handle handle) {
    uint64_t index = (handle & UINT32_MAX) - 1;
    if (index >= g->chunk_count || !g->chunks[index].live || g->chunks[index].generation != handle >> 32) {
        return NULL;
    }
    return &g->chunks[index];
}

static sim_event *find_event(sim_gpu *g, tide__event handle) {
    uint64_t index = (handle & UINT32_MAX) - 1;
    if (index >= g->event_count || !g->events[index].live || g->events[index].generation != handle >> 32) {
        return NULL;
    }
    return &g->events[index];
}

static sim_stream *find_stream(sim_gpu *g, tide_stream stream) {
    uint64_t index;
    return tide__map_get(&g->streams, stream, &index) ? &g->stream_list[index] : NULL;
}

static tide_status bad_stream(tide_stream stream) {
    return tide__fail(TIDE_BAD_HANDLE, "sim: stream %llu does not exist", (unsigned long long)stream);
}

static tide_status is_captured(tide_stream stream) {
    return tide__fail(TIDE_CAPTURING, "sim: stream %llu is being captured", (unsigned long long)stream);
}

static tide_status bad_event(void) { return tide__fail(TIDE_BAD_HANDLE, "sim: the event does not exist"); }

/* A stream that a trace names comes to be when first used. */
static tide_status stream_add(sim_device *s, sim_gpu *g, tide_stream stream) {
    if (!tide__grow((void **)&g->stream_list, &g->stream_cap, g->stream_count + 1, sizeof *g->stream_list) ||
        !tide__map_put(&g->streams, stream, g->stream_count)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "sim: no host memory for a stream");
    }
    g->stream_list[g->stream_count++] = (sim_stream){.id = ++s->next_stream};
    return TIDE_OK;
}

/* ---- Life ---- */

static void gpu_free(sim_gpu *g) {
    free(g->chunks);
    free(g->free_chunks);
    free(g->events);
    free(g->free_events);
    free(g->stream_list);
    for (size_t i = 0; i < g->reservation_count; i++) {
        free(g->reservations[i].chunk_of);
    }
    free(g->reservations);
    tide__map_free(&g->raw);
    tide__map_free(&g->streams);
}

static void sim_close(tide__device *d) {
    sim_device *s = self(d);
    for (int i = 0; i < s->count; i++) {
        gpu_free(&s->gpus[i]);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->gpus);
    free(s);
}

static int sim_count(tide__device *d) { return self(d)->count; }

static tide_status sim_properties(tide__device *d, int gpu, tide__device_properties *out) {
    sim_device *s = self(d);
    *out = (tide__device_properties){.total_bytes = s->capacity_bytes,
                                     .granularity = s->granularity,
                                     .address_bytes = ADDRESS_BYTES,
                                     .name = "sim",
                                     .numa_node = -1};
    return TIDE_OK;
}

static tide_status sim_mem_info(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    charge(&s->gpus[gpu], TIDE__CALL_MEM_INFO, 0);
    *free_bytes = s->capacity_bytes - s->gpus[gpu].used_bytes;
    *total_bytes = s->capacity_bytes;
    pthread_mutex_unlock(&s->lock);
    return TIDE_OK;
}

/* ---- Addresses and chunks ---- */

static sim_reservation *find_reservation(sim_gpu *g, uint64_t va, uint64_t size) {
    for (size_t i = 0; i < g->reservation_count; i++) {
        sim_reservation *r = &g->reservations[i];
        if (va >= r->va && va - r->va < r->size && size <= r->size - (va - r->va)) {
            return r;
        }
    }
    return NULL;
}

static uint32_t *granule(const sim_device *s, const sim_reservation *r, uint64_t va) {
    return &r->chunk_of[(va - r->va) / s->granularity];
}

static tide_status reserve_locked(sim_device *s, sim_gpu *g, uint64_t size, uint64_t align, uint64_t hint,
                                  uint64_t *va) {
    uint64_t at = hint != 0 ? hint : tide__align_up(s->next_va, tide__max(align, s->granularity));
    if (size == 0 || size % s->granularity != 0 || at % s->granularity != 0) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "sim: reserve of %llu bytes: not a multiple of the granularity",
                          (unsigned long long)size);
    }
    /* Addresses are handed out once, rising: a hint is honoured above all of them. */
    if (size > ADDRESS_BYTES || at < s->next_va || at > ADDRESS_BYTES - size) {
        return tide__fail(TIDE_NO_ADDRESSES, "sim: reserve of %llu bytes: no addresses left",
                          (unsigned long long)size);
    }
    sim_reservation r = {.va = at, .size = size, .chunk_of = calloc(size / s->granularity, sizeof(uint32_t))};
    if (r.chunk_of == NULL || !tide__grow((void **)&g->reservations, &g->reservation_cap,
                                          g->reservation_count + 1, sizeof *g->reservations)) {
        free(r.chunk_of);
        return tide__fail(TIDE_NO_HOST_MEMORY, "sim: no host memory for a reservation");
    }
    g->reservations[g->reservation_count++] = r;
    s->next_va = at + size;
    *va = at;
    return TIDE_OK;
}

static tide_status sim_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                               uint64_t *va) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    charge(&s->gpus[gpu], TIDE__CALL_RESERVE, 0);
    tide_status status = reserve_locked(s, &s->gpus[gpu], size, align, hint, va);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static bool any_mapping_in(const sim_device *s, const sim_reservation *r) {
    for (uint64_t i = 0; i < r->size / s->granularity; i++) {
        if (r->chunk_of[i] != 0) {
            return true;
        }
    }
    return false;
}

static tide_status sim_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    sim_reservation *r = find_reservation(g, va, size);
    tide_status status = TIDE_OK;
    charge(g, TIDE__CALL_UNRESERVE, 0);
    if (r == NULL || r->va != va || r->size != size) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "sim: unreserve of a range that is not a reservation");
    } else if (any_mapping_in(s, r)) {
        status = tide__fail(TIDE_IN_USE, "sim: unreserve of a range with chunks mapped in it");
    } else {
        free(r->chunk_of);
        *r = g->reservations[--g->reservation_count];
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Takes size bytes of the device: those not clean cost their clearing. */
static uint64_t take_bytes(const sim_device *s, sim_gpu *g, uint64_t size) {
    uint64_t clean = tide__min(size, g->clean_bytes);
    g->clean_bytes -= clean;
    g->used_bytes += size;
    return (size - clean) * s->costs.create_dirty_ns_per_mib / TIDE__MIB;
}

static tide_status create_locked(sim_device *s, sim_gpu *g, uint64_t size, tide__chunk_handle *out) {
    if (size == 0 || size % s->granularity != 0) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "sim: chunk_create of %llu bytes: not a multiple of the granularity",
                          (unsigned long long)size);
    }
    if (size > s->capacity_bytes - g->used_bytes) {
        return tide__fail(TIDE_NO_DEVICE_MEMORY, "sim: chunk_create of %llu bytes: %llu of %llu are free",
                          (unsigned long long)size, (unsigned long long)(s->capacity_bytes - g->used_bytes),
                          (unsigned long long)s->capacity_bytes);
    }
    uint32_t index;
    if (g->free_chunk_count > 0) {
        index = g->free_chunks[--g->free_chunk_count];
    } else {
        if (!tide__grow((void **)&g->chunks, &g->chunk_cap, g->chunk_count + 1, sizeof *g->chunks) ||
            !tide__grow((void **)&g->free_chunks, &g->free_chunk_cap, g->chunk_cap, sizeof *g->free_chunks)) {
            return tide__fail(TIDE_NO_HOST_MEMORY, "sim: no host memory for a chunk");
        }
        index = (uint32_t)g->chunk_count++;
        g->chunks[index].generation = 0;
    }
    sim_chunk *c = &g->chunks[index];
    *c = (sim_chunk){.size = size, .generation = c->generation + 1, .live = true};
    g->counters.driver_ns += take_bytes(s, g, size);
    *out = pack(index, c->generation);
    return TIDE_OK;
}

static tide_status sim_chunk_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    charge(&s->gpus[gpu], TIDE__CALL_CHUNK_CREATE, s->costs.create_ns);
    tide_status status = create_locked(s, &s->gpus[gpu], size, out);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The last reference or mapping is gone: the bytes are the device's again, dirty. */
static void chunk_gone(sim_gpu *g, sim_chunk *c) {
    g->used_bytes -= c->size;
    g->free_chunks[g->free_chunk_count++] = (uint32_t)(c - g->chunks);
}

static tide_status sim_chunk_release(tide__device *d, int gpu, tide__chunk_handle handle) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    sim_chunk *c = find_chunk(g, handle);
    tide_status status = TIDE_OK;
    if (c == NULL) {
        charge(g, TIDE__CALL_CHUNK_RELEASE, 0);
        status = tide__fail(TIDE_BAD_HANDLE, "sim: chunk_release of a chunk that does not exist");
    } else {
        charge(g, TIDE__CALL_CHUNK_RELEASE,
               s->costs.release_ns + c->size * s->costs.release_ns_per_mib / TIDE__MIB);
        c->live = false;
        if (c->mappings == 0) {
            chunk_gone(g, c);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status map_locked(const sim_device *s, sim_gpu *g, uint64_t va, uint64_t size,
                              tide__chunk_handle handle) {
    sim_chunk *c = find_chunk(g, handle);
    sim_reservation *r = find_reservation(g, va, size);
    if (c == NULL) {
        return tide__fail(TIDE_BAD_HANDLE, "sim: map of a chunk that does not exist");
    }
    if (c->size != size || va % s->granularity != 0 || r == NULL) {
        return tide__fail(
            TIDE_INVALID_ARGUMENT,
            "sim: map of %llu bytes of a chunk of %llu at %#llx: only a whole chunk maps, in whole "
            "granules, inside one reservation",
            (unsigned long long)size, (unsigned long long)c->size, (unsigned long long)va);
    }
    for (uint64_t at = va; at < va + size; at += s->granularity) {
        if (*granule(s, r, at) != 0) {
            return tide__fail(TIDE_IN_USE, "sim: map at %#llx, where a chunk is mapped",
                              (unsigned long long)at);
        }
    }
    for (uint64_t at = va; at < va + size; at += s->granularity) {
        *granule(s, r, at) = ((uint32_t)(c - g->chunks) + 1) | (at == va ? FIRST : 0);
    }
    c->mappings++;
    return TIDE_OK;
}

static tide_status sim_map(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle handle) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    charge(&s->gpus[gpu], TIDE__CALL_MAP, s->costs.map_ns);
    tide_status status = map_locked(s, &s->gpus[gpu], va, size, handle);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* How many whole mappings fill the range; 0 where they do not. */
static size_t mappings_filling(const sim_device *s, sim_gpu *g, uint64_t va, uint64_t size) {
    const sim_reservation *r = find_reservation(g, va, size);
    if (r == NULL || va % s->granularity != 0 || size == 0) {
        return 0;
    }
    size_t count = 0;
    uint64_t at = va;
    while (at < va + size) {
        uint32_t number = *granule(s, r, at);
        if ((number & FIRST) == 0) { /* nothing, or the middle of a mapping */
            return 0;
        }
        at += g->chunks[(number & ~FIRST) - 1].size;
        count++;
    }
    return at == va + size ? count : 0;
}

static tide_status sim_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    size_t count = mappings_filling(s, g, va, size);
    charge(g, TIDE__CALL_SET_ACCESS, s->costs.set_access_ns * tide__max(count, 1));
    tide_status status = TIDE_OK;
    if (count == 0) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "sim: set_access of a range that is not wholly mapped");
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    size_t count = mappings_filling(s, g, va, size);
    charge(g, TIDE__CALL_UNMAP, s->costs.unmap_ns * tide__max(count, 1));
    tide_status status = TIDE_OK;
    if (count == 0) {
        status =
            tide__fail(TIDE_INVALID_ARGUMENT, "sim: unmap of a range that is not made of whole mappings");
    }
    sim_reservation *r = find_reservation(g, va, size);
    for (uint64_t at = va; status == TIDE_OK && at < va + size;) {
        sim_chunk *c = &g->chunks[(*granule(s, r, at) & ~FIRST) - 1];
        uint64_t end = at + c->size;
        for (; at < end; at += s->granularity) {
            *granule(s, r, at) = 0;
        }
        if (--c->mappings == 0 && !c->live) {
            chunk_gone(g, c);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    tide_status status = TIDE_OK;
    charge(g, TIDE__CALL_RAW_ALLOC, s->costs.raw_alloc_ns);
    if (size > s->capacity_bytes - g->used_bytes) {
        status = tide__fail(TIDE_NO_DEVICE_MEMORY, "sim: raw_alloc of %llu bytes: %llu of %llu are free",
                            (unsigned long long)size, (unsigned long long)(s->capacity_bytes - g->used_bytes),
                            (unsigned long long)s->capacity_bytes);
    } else if (!tide__map_put(&g->raw, s->next_va, size)) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "sim: no host memory for an allocation");
    } else {
        take_bytes(s, g, size);
        *va = s->next_va;
        s->next_va += tide__align_up(tide__max(size, 1), s->granularity);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_raw_free(tide__device *d, int gpu, uint64_t va) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    uint64_t size;
    tide_status status = TIDE_OK;
    charge(g, TIDE__CALL_RAW_FREE, s->costs.raw_free_ns);
    if (!tide__map_take(&g->raw, va, &size)) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "sim: raw_free of an address that is not allocated");
    } else {
        g->used_bytes -= size;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- Streams and events ---- */

static tide_status sim_stream_id(tide__device *d, int gpu, tide_stream stream, uint64_t *id) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_STREAM_ID, 0);
    tide_status status = TIDE_OK;
    if (find_stream(g, stream) == NULL) {
        status = stream_add(s, g, stream);
    }
    if (status == TIDE_OK) {
        *id = find_stream(g, stream)->id;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_stream_create(tide__device *d, int gpu, tide_stream *out) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_STREAM_CREATE, 0);
    tide_stream stream = (UINT64_C(1) << 32) + s->next_stream + 1;
    tide_status status = stream_add(s, g, stream);
    if (status == TIDE_OK) {
        *out = stream;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_stream_destroy(tide__device *d, int gpu, tide_stream stream) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_STREAM_DESTROY, 0);
    tide_status status = TIDE_OK;
    if (stream == 0) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "sim: the default stream cannot be destroyed");
    } else if (!tide__map_take(&g->streams, stream, NULL)) {
        status = bad_stream(stream);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status event_create_locked(sim_gpu *g, tide__event *out) {
    uint32_t index;
    if (g->free_event_count > 0) {
        index = g->free_events[--g->free_event_count];
    } else {
        if (!tide__grow((void **)&g->events, &g->event_cap, g->event_count + 1, sizeof *g->events) ||
            !tide__grow((void **)&g->free_events, &g->free_event_cap, g->event_cap, sizeof *g->free_events)) {
            return tide__fail(TIDE_NO_HOST_MEMORY, "sim: no host memory for an event");
        }
        index = (uint32_t)g->event_count++;
        g->events[index].generation = 0;
    }
    sim_event *e = &g->events[index];
    *e = (sim_event){.generation = e->generation + 1, .live = true};
    *out = pack(index, e->generation);
    return TIDE_OK;
}

static tide_status sim_event_create(tide__device *d, int gpu, tide__event *out) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    charge(&s->gpus[gpu], TIDE__CALL_EVENT_CREATE, 0);
    tide_status status = event_create_locked(&s->gpus[gpu], out);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_event_destroy(tide__device *d, int gpu, tide__event event) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_EVENT_DESTROY, 0);
    sim_event *e = find_event(g, event);
    tide_status status = TIDE_OK;
    if (e == NULL) {
        status = bad_event();
    } else {
        e->live = false;
        g->free_events[g->free_event_count++] = (uint32_t)(e - g->events);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_event_record(tide__device *d, int gpu, tide__event event, tide_stream stream) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_EVENT_RECORD, 0);
    sim_event *e = find_event(g, event);
    sim_stream *st = find_stream(g, stream);
    tide_status status = TIDE_OK;
    if (e == NULL || st == NULL) {
        status = e == NULL ? bad_event() : bad_stream(stream);
    } else if (st->capturing) {
        status = is_captured(stream);
    } else {
        e->done_ns = tide__max(host_now(s) + s->delay_ns, st->ready_ns);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_event_query(tide__device *d, int gpu, tide__event event) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_EVENT_QUERY, 0);
    sim_event *e = find_event(g, event);
    tide_status status = e == NULL ? bad_event() : e->done_ns <= host_now(s) ? TIDE_OK : TIDE_NOT_READY;
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_event_wait(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_EVENT_WAIT, 0);
    sim_event *e = find_event(g, event);
    tide_status status = TIDE_OK;
    if (e == NULL) {
        status = bad_event();
    } else if (e->done_ns > host_now(s)) {
        uint64_t need = e->done_ns - host_now(s);
        if (need > timeout_ns) {
            need = timeout_ns;
            status = tide__fail(TIDE_TIMEOUT, "sim: the event is not done after %llu ns",
                                (unsigned long long)timeout_ns);
        }
        s->waited_ns += need;
        g->counters.host_wait_ns += need;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide_status sim_stream_wait(tide__device *d, int gpu, tide_stream stream, tide__event event) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_STREAM_WAIT, 0);
    sim_event *e = find_event(g, event);
    sim_stream *st = find_stream(g, stream);
    tide_status status = TIDE_OK;
    if (e == NULL || st == NULL) {
        status = e == NULL ? bad_event() : bad_stream(stream);
    } else if (st->capturing) {
        status = is_captured(stream);
    } else {
        /* The stream would have come here at now + delay by itself: only what
         * lies beyond that is time it stands still. */
        uint64_t here = tide__max(host_now(s) + s->delay_ns, st->ready_ns);
        if (e->done_ns > here) {
            g->counters.stream_wait_ns += e->done_ns - here;
            st->ready_ns = e->done_ns;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- Clock and counters ---- */

static uint64_t sim_now(tide__device *d) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    uint64_t now = host_now(s);
    pthread_mutex_unlock(&s->lock);
    return now;
}

static void sim_counters(tide__device *d, int gpu, tide__device_counters *out) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    *out = s->gpus[gpu].counters;
    pthread_mutex_unlock(&s->lock);
}

void tide__sim_set_trace_time(tide__device *d, uint64_t ns) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    s->trace_ns = tide__max(s->trace_ns, ns);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Captures, peers, the whole device ---- */

static tide_status sim_stream_capturing(tide__device *d, int gpu, tide_stream stream, bool *out) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_STREAM_CAPTURING, 0);
    const sim_stream *st = find_stream(g, stream);
    tide_status status = st != NULL ? TIDE_OK : bad_stream(stream);
    if (st != NULL) {
        *out = st->capturing;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void tide__sim_set_capturing(tide__device *d, int gpu, tide_stream stream, bool capturing) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    sim_stream *st = find_stream(g, stream);
    TIDE__CHECK(st != NULL);
    g->captures += capturing && !st->capturing ? 1U : 0U;
    g->captures -= !capturing && st->capturing ? 1U : 0U;
    st->capturing = capturing;
    pthread_mutex_unlock(&s->lock);
}

static tide_status sim_peer_enable(tide__device *d, int gpu, int peer) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    charge(&s->gpus[gpu], TIDE__CALL_PEER_ENABLE, 0);
    pthread_mutex_unlock(&s->lock);
    if (peer < 0 || peer >= s->count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "sim peer_enable: there is no GPU %d", peer);
    }
    return TIDE_OK;
}

/* All that is queued by now is done one delay from now. */
static tide_status sim_device_wait(tide__device *d, int gpu, uint64_t timeout_ns) {
    sim_device *s = self(d);
    pthread_mutex_lock(&s->lock);
    sim_gpu *g = &s->gpus[gpu];
    charge(g, TIDE__CALL_DEVICE_WAIT, 0);
    tide_status status = TIDE_OK;
    if (g->captures > 0) {
        status = tide__fail(TIDE_CAPTURING, "sim device_wait: a stream is being captured");
    } else {
        uint64_t need = s->delay_ns;
        if (need > timeout_ns) {
            need = timeout_ns;
            status = tide__fail(TIDE_TIMEOUT, "sim: the device is not idle after %llu ns",
                                (unsigned long long)timeout_ns);
        }
        s->waited_ns += need;
        g->counters.host_wait_ns += need;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tide__health sim_health(tide__device *d) {
    (void)d;
    return TIDE__HEALTH_OK;
}

static const tide__device_ops sim_ops = {
    .struct_size = sizeof sim_ops,
    .name = "sim",
    .close = sim_close,
    .count = sim_count,
    .properties = sim_properties,
    .mem_info = sim_mem_info,
    .reserve = sim_reserve,
    .unreserve = sim_unreserve,
    .chunk_create = sim_chunk_create,
    .chunk_release = sim_chunk_release,
    .map = sim_map,
    .set_access = sim_set_access,
    .unmap = sim_unmap,
    .raw_alloc = sim_raw_alloc,
    .raw_free = sim_raw_free,
    .stream_id = sim_stream_id,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .event_query = sim_event_query,
    .event_wait = sim_event_wait,
    .stream_wait_event = sim_stream_wait,
    .stream_capturing = sim_stream_capturing,
    .peer_enable = sim_peer_enable,
    .device_wait = sim_device_wait,
    .health = sim_health,
    .now_ns = sim_now,
    .counters = sim_counters,
};

tide_status tide__sim_open(const tide__sim_options *options, tide__device **out) {
    tide__sim_options o = options != NULL ? *options : (tide__sim_options){0};
    sim_device *s = calloc(1, sizeof *s);
    int count = o.device_count > 0 ? o.device_count : 1;
    if (s == NULL || (s->gpus = calloc((size_t)count, sizeof *s->gpus)) == NULL) {
        free(s);
        return tide__fail(TIDE_NO_HOST_MEMORY, "sim: no host memory for %d devices", count);
    }
    s->base.ops = &sim_ops;
    pthread_mutex_init(&s->lock, NULL);
    s->count = count;
    s->capacity_bytes = o.capacity_bytes != 0 ? o.capacity_bytes : TIDE__SIM_H200_BYTES;
    s->granularity = o.granularity != 0 ? o.granularity : 2 * TIDE__MIB;
    s->delay_ns = o.event_delay_ns;
    s->costs = o.costs != NULL ? *o.costs : tide__sim_h200_costs;
    s->next_va = FIRST_ADDRESS;
    for (int i = 0; i < count; i++) {
        s->gpus[i].clean_bytes = s->capacity_bytes;
        tide_status status = stream_add(s, &s->gpus[i], 0);
        if (status != TIDE_OK) {
            sim_close(&s->base);
            return status;
        }
    }
    *out = &s->base;
    return TIDE_OK;
}
