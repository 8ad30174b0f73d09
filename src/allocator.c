/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls: arguments are checked, the device's core is found, and the
 * rooms below do the work. One allocator serves all devices of a process.
 */
#include "allocator.h"

#include <stdlib.h>
#include <string.h>

#include "base/callbacks.h"
#include "ledger/ledger.h"

#define POOLS_MAX 4096

typedef struct pool_record {
    uint32_t generation;
    int device;
    bool live;
} pool_record;

/* How often this process is the child of a fork that the library lived through. */
static _Atomic(unsigned) forks;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }
static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

struct tide_allocator {
    tide__device *device;
    int count;
    tide__core **cores;
    tide__ledger *ledgers;
    tide__registry registry;
    tide__callbacks on_shortage;
    pthread_mutex_t pool_lock;    /* the records; never held across a driver call */
    pthread_mutex_t release_lock; /* of two releases at once, one finds the pool gone */
    pool_record pools[POOLS_MAX]; /* 0 is the default of each device; others are of one */
    uint32_t pool_count;
    unsigned forks; /* when it was opened */
};

/* ---- Options ---- */

static tide_status pick_cross_stream(tide_cross_stream *mode) {
    const char *text = getenv("PAGETIDE_CROSS_STREAM");
    if (*mode != TIDE_CROSS_STREAM_DEFAULT) {
        if ((int)*mode < TIDE_CROSS_STREAM_OFF || *mode > TIDE_CROSS_STREAM_WAIT) {
            return tide__fail(TIDE_INVALID_ARGUMENT, "cross_stream %d is none of off, idle, wait",
                              (int)*mode);
        }
        return TIDE_OK;
    }
    if (text == NULL || strcmp(text, "") == 0 || strcmp(text, "idle") == 0) {
        *mode = TIDE_CROSS_STREAM_IDLE;
    } else if (strcmp(text, "off") == 0) {
        *mode = TIDE_CROSS_STREAM_OFF;
    } else if (strcmp(text, "wait") == 0) {
        *mode = TIDE_CROSS_STREAM_WAIT;
    } else {
        return tide__fail(TIDE_INVALID_ARGUMENT, "PAGETIDE_CROSS_STREAM=%s is none of off, idle, wait", text);
    }
    return TIDE_OK;
}

/* Copies what the caller's version of the structure has; the rest is 0. */
static tide_status read_options(const tide_open_options *options, tide_open_options *out) {
    *out = (tide_open_options){.struct_size = sizeof *out};
    if (options == NULL) {
        return pick_cross_stream(&out->cross_stream);
    }
    if (options->struct_size < offsetof(tide_open_options, device_count) || options->struct_size > 4096) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "tide_open: struct_size %zu is not that of tide_open_options",
                          options->struct_size);
    }
    memcpy(out, options, tide__min(options->struct_size, sizeof *out));
    if (out->device_count < 0 || out->device_count > 64) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "tide_open: device_count %d", out->device_count);
    }
    return pick_cross_stream(&out->cross_stream);
}

/* A switch that is on unless it says 0. */
static tide_status read_switch(const char *name, bool *off) {
    const char *text = getenv(name);
    if (text == NULL || strcmp(text, "") == 0 || strcmp(text, "1") == 0) {
        *off = false;
    } else if (strcmp(text, "0") == 0) {
        *off = true;
    } else {
        return tide__fail(TIDE_INVALID_ARGUMENT, "%s=%s is neither 0 nor 1", name, text);
    }
    return TIDE_OK;
}

static tide_status open_backend(const tide_open_options *o, tide__device **out) {
    const char *name = o->backend != NULL ? o->backend : getenv("PAGETIDE_DEVICE");
    if (name == NULL || strcmp(name, "") == 0 || strcmp(name, "cuda") == 0) {
        return tide__cuda_open(out);
    }
    if (strcmp(name, "sim") == 0) {
        return tide__sim_open(&(tide__sim_options){.device_count = o->device_count}, out);
    }
    if (strcmp(name, "host") == 0) {
        return tide__host_open(&(tide__host_options){.device_count = o->device_count}, out);
    }
    return tide__fail(TIDE_NO_DEVICE, "backend \"%s\" is none of cuda, host, sim", name);
}

/* ---- Open and close ---- */

#define OOM_WAIT_NS UINT64_C(60000000000)

static bool shortage(void *owner, int gpu, uint64_t bytes) {
    tide_allocator *a = owner;
    return tide__callbacks_run(&a->on_shortage, gpu, bytes) > 0;
}

static tide_status open_cores(tide_allocator *a, const tide_open_options *o, const tide__tuning *tuning) {
    bool no_moves, no_unmaps;
    tide_status read = read_switch("PAGETIDE_MOVES", &no_moves);
    if (read == TIDE_OK) {
        read = read_switch("PAGETIDE_UNMAP", &no_unmaps);
    }
    if (read != TIDE_OK) {
        return read;
    }
    for (int i = 0; i < a->count; i++) {
        tide__core_options c = {.device = a->device,
                                .gpu = i,
                                .cross_stream = o->cross_stream,
                                .limit_bytes = o->limit_bytes,
                                .registry = &a->registry,
                                .tuning = tuning,
                                .owner = a,
                                .on_shortage = shortage,
                                .no_moves = no_moves,
                                .no_unmaps = no_unmaps,
                                .oom_wait_ns = o->oom_wait_ns != 0 ? o->oom_wait_ns : OOM_WAIT_NS};
        tide_status status = tide__core_open(&c, &a->cores[i]);
        if (status == TIDE_OK) {
            status = tide__ledger_open(&a->ledgers[i], a->cores[i]);
        }
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

static void destroy(tide_allocator *a) {
    for (int i = 0; i < a->count; i++) {
        if (a->ledgers != NULL && a->ledgers[i].core != NULL) {
            tide__ledger_close(&a->ledgers[i]);
        }
        if (a->cores != NULL) {
            tide__core_close(a->cores[i]);
        }
    }
    free(a->cores);
    free(a->ledgers);
    a->device->ops->close(a->device);
    pthread_mutex_destroy(&a->pool_lock);
    pthread_mutex_destroy(&a->release_lock);
    tide__callbacks_close(&a->on_shortage);
    free(a);
}

tide_status tide__open_on(tide__device *device, const tide_open_options *options, const tide__tuning *tuning,
                          tide_allocator **out) {
    tide_open_options o;
    tide_status status = read_options(options, &o);
    tide_allocator *a = status == TIDE_OK ? calloc(1, sizeof *a) : NULL;
    if (a == NULL) {
        device->ops->close(device);
        return status != TIDE_OK ? status
                                 : tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for an allocator");
    }
    a->device = device;
    pthread_once(&forks_once, watch_forks);
    a->forks = atomic_load_explicit(&forks, memory_order_relaxed);
    pthread_mutex_init(&a->pool_lock, NULL);
    pthread_mutex_init(&a->release_lock, NULL);
    tide__callbacks_open(&a->on_shortage);
    a->pool_count = 1;
    a->count = device->ops->count(device);
    a->cores = calloc((size_t)a->count, sizeof(tide__core *));
    a->ledgers = calloc((size_t)a->count, sizeof *a->ledgers);
    if (a->cores == NULL || a->ledgers == NULL) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for %d devices", a->count);
    } else {
        status = open_cores(a, &o, tuning);
    }
    if (status != TIDE_OK) {
        destroy(a);
        return status;
    }
    *out = a;
    return TIDE_OK;
}

tide_status tide_open(const tide_open_options *options, tide_allocator **out) {
    tide_open_options o;
    tide__device *device;
    if (out == NULL) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "tide_open: out is NULL");
    }
    tide_status status = read_options(options, &o);
    if (status == TIDE_OK) {
        status = open_backend(&o, &device);
    }
    return status == TIDE_OK ? tide__open_on(device, &o, NULL, out) : status;
}

/* A device that is lost takes no call: what it did last is told once. One that is
 * gone, at the process's end, is no failure of those who free. */
static tide_status not_healthy(const tide_allocator *a, tide__health health) {
    if (health == TIDE__HEALTH_GONE) {
        return tide__fail(TIDE_DEVICE_GONE, "the driver has shut down, as it does when a process ends");
    }
    for (int i = 0; i < a->count; i++) {
        tide__core_tell_trail(a->cores[i]);
    }
    return tide__fail(TIDE_DEVICE_LOST,
                      "the device failed earlier and accepts no calls: the process must end");
}

/* In a child its locks may be held for ever by threads that are not there, and
 * the driver knows nothing of it. */
static tide_status check_process(const tide_allocator *a) {
    if (TIDE__UNLIKELY(a->forks != atomic_load_explicit(&forks, memory_order_relaxed))) {
        return tide__fail(TIDE_FORKED, "the allocator belongs to the parent process: open one here");
    }
    tide__health health = a->device->ops->health(a->device);
    return TIDE__LIKELY(health == TIDE__HEALTH_OK) ? TIDE_OK : not_healthy(a, health);
}

tide_status tide_close(tide_allocator *a) {
    if (a == NULL) {
        return TIDE_OK;
    }
    tide_status status = check_process(a);
    if (status == TIDE_FORKED) {
        return status;
    }
    destroy(a); /* of a device that is lost or gone too: then it touches no driver */
    return TIDE_OK;
}

tide__device *tide__allocator_device(tide_allocator *a) { return a->device; }

void tide__allocator_validate(tide_allocator *a) {
    for (int i = 0; i < a->count; i++) {
        tide__core_validate(a->cores[i]);
    }
}

/* ---- Checks that many calls share ---- */

static tide_status check_device(const tide_allocator *a, int device) {
    if (a == NULL || device < 0 || device >= a->count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "device %d: the allocator has %d", device,
                          a != NULL ? a->count : 0);
    }
    return check_process(a);
}

static tide_status check_given(const char *call, bool given) {
    return given ? TIDE_OK : tide__fail(TIDE_INVALID_ARGUMENT, "%s: a pointer is NULL", call);
}

/* A caller's structure may be of an older or newer version. */
static tide_status check_struct(const char *call, const void *structure) {
    size_t size;
    if (structure == NULL) {
        return check_given(call, false);
    }
    memcpy(&size, structure, sizeof size);
    if (size < sizeof size || size > 4096) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "%s: struct_size %zu", call, size);
    }
    return TIDE_OK;
}

/* What both versions of it know is written. */
static void copy_out(void *out, const void *have, size_t have_bytes) {
    size_t size;
    memcpy(&size, out, sizeof size);
    memcpy(out, have, tide__min(size, have_bytes));
    memcpy(out, &size, sizeof size);
}

static tide_pool pool_handle(uint32_t index, uint32_t generation) {
    return ((uint64_t)generation << 32) | index;
}

/* The index of a pool's heaps on a device. */
static tide_status check_pool(tide_allocator *a, int device, tide_pool pool, uint32_t *index) {
    if (TIDE__LIKELY(pool == TIDE_POOL_DEFAULT || pool == TIDE_POOL_CURRENT)) {
        *index = pool == TIDE_POOL_DEFAULT ? 0 : TIDE__POOL_ROUTED;
        return TIDE_OK;
    }
    tide_status status = TIDE_OK;
    uint32_t i = (uint32_t)pool;
    pthread_mutex_lock(&a->pool_lock);
    if (i == 0 || i >= a->pool_count || !a->pools[i].live || a->pools[i].generation != pool >> 32) {
        status = tide__fail(TIDE_BAD_HANDLE, "pool %#llx does not exist", (unsigned long long)pool);
    } else if (a->pools[i].device != device) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "pool %#llx is of device %d, not %d",
                            (unsigned long long)pool, a->pools[i].device, device);
    } else {
        *index = i;
    }
    pthread_mutex_unlock(&a->pool_lock);
    return status;
}

/* ---- Blocks ---- */

tide_status tide_alloc(tide_allocator *a, int device, size_t size_bytes, tide_stream stream, tide_pool pool,
                       void **out) {
    uint32_t index;
    uint64_t va;
    tide_status status = check_device(a, device);
    if (TIDE__UNLIKELY(status != TIDE_OK || (status = check_pool(a, device, pool, &index)) != TIDE_OK)) {
        return status;
    }
    if (TIDE__UNLIKELY(out == NULL)) {
        return check_given("tide_alloc", false);
    }
    if (size_bytes == 0) {
        *out = NULL;
        return TIDE_OK;
    }
    status = tide__core_alloc(a->cores[device], size_bytes, stream, index, &va);
    if (TIDE__LIKELY(status == TIDE_OK)) {
        *out = (void *)(uintptr_t)va; // NOLINT(performance-no-int-to-ptr): a device address
    }
    return status;
}

tide_status tide_alloc_at(tide_allocator *a, int device, size_t size_bytes, tide_stream stream,
                          tide_pool pool, void *address) {
    uint32_t index;
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_pool(a, device, pool, &index);
    }
    if (status != TIDE_OK || size_bytes == 0) {
        return status;
    }
    if (address == NULL) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "tide_alloc_at: address is NULL");
    }
    return tide__core_alloc_at(a->cores[device], size_bytes, stream, index, (uintptr_t)address);
}

static tide_status not_allocated(const void *ptr) {
    return tide__fail(TIDE_NOT_ALLOCATED, "%p is not an address of this allocator", ptr);
}

tide_status tide_free(tide_allocator *a, void *ptr) {
    if (ptr == NULL) {
        return TIDE_OK;
    }
    if (a == NULL) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "tide_free: the allocator is NULL");
    }
    tide_status status = check_process(a);
    if (TIDE__UNLIKELY(status != TIDE_OK)) {
        return status == TIDE_DEVICE_GONE ? TIDE_OK : status;
    }
    tide__extent *x = tide__registry_find(&a->registry, (uintptr_t)ptr);
    return x != NULL ? tide__core_free(x->core, x, (uintptr_t)ptr) : not_allocated(ptr);
}

/* The live block at ptr and its core. */
static tide_status find_block(tide_allocator *a, const void *ptr, tide__core **core, tide__block **out) {
    tide_status status = a != NULL ? check_process(a) : TIDE_OK;
    if (status != TIDE_OK) {
        return status;
    }
    tide__extent *x = a != NULL ? tide__registry_find(&a->registry, (uintptr_t)ptr) : NULL;
    tide__block *b = x != NULL ? tide__core_find(x->core, x, (uintptr_t)ptr) : NULL;
    if (b == NULL) {
        return not_allocated(ptr);
    }
    *core = x->core;
    *out = b;
    return TIDE_OK;
}

tide_status tide_record_stream(tide_allocator *a, void *ptr, tide_stream stream) {
    tide__core *core = NULL;
    tide__block *b = NULL;
    tide_status status = find_block(a, ptr, &core, &b);
    return status == TIDE_OK ? tide__core_record_stream(core, b, stream) : status;
}

tide_status tide_block_size(tide_allocator *a, const void *ptr, size_t *requested_bytes,
                            size_t *block_bytes) {
    tide__core *core = NULL;
    tide__block *b = NULL;
    tide_status status = check_given("tide_block_size", requested_bytes != NULL && block_bytes != NULL);
    if (status == TIDE_OK) {
        status = find_block(a, ptr, &core, &b);
    }
    if (status == TIDE_OK) {
        *requested_bytes = b->requested;
        *block_bytes = b->size;
    }
    return status;
}

/* ---- Pools ---- */

tide_status tide_pool_create(tide_allocator *a, int device, tide_pool *out) {
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_given("tide_pool_create", out != NULL);
    }
    if (status != TIDE_OK) {
        return status;
    }
    pthread_mutex_lock(&a->pool_lock);
    uint32_t index = 1; /* a released pool of the device gives its number and its addresses to the next */
    while (index < a->pool_count && (a->pools[index].live || a->pools[index].device != device ||
                                     !tide__core_pool_is_free(a->cores[device], index))) {
        index++;
    }
    if (index == POOLS_MAX) {
        status = tide__fail(TIDE_LIMIT, "more than %d pools", POOLS_MAX - 1);
    } else {
        status = tide__core_add_pool(a->cores[device], index);
    }
    if (status == TIDE_OK) {
        pool_record *p = &a->pools[index];
        *p = (pool_record){.generation = p->generation + 1, .device = device, .live = true};
        *out = pool_handle(index, p->generation);
        a->pool_count = (uint32_t)tide__max(a->pool_count, index + 1U);
    }
    pthread_mutex_unlock(&a->pool_lock);
    return status;
}

tide_status tide_pool_release(tide_allocator *a, tide_pool pool) {
    uint32_t index = (uint32_t)pool;
    if (a == NULL || pool == TIDE_POOL_DEFAULT || pool == TIDE_POOL_CURRENT || index >= POOLS_MAX) {
        return tide__fail(TIDE_BAD_HANDLE, "pool %#llx cannot be released", (unsigned long long)pool);
    }
    tide_status status = check_process(a);
    if (status != TIDE_OK) {
        return status;
    }
    pthread_mutex_lock(&a->release_lock);
    pthread_mutex_lock(&a->pool_lock);
    pool_record *p = &a->pools[index];
    int device = p->device;
    bool exists = index < a->pool_count && p->live && p->generation == pool >> 32;
    pthread_mutex_unlock(&a->pool_lock);
    if (!exists) {
        status = tide__fail(TIDE_BAD_HANDLE, "pool %#llx does not exist", (unsigned long long)pool);
    } else {
        status = tide__core_release_pool(a->cores[device], index);
    }
    if (status == TIDE_OK) {
        pthread_mutex_lock(&a->pool_lock);
        p->live = false;
        pthread_mutex_unlock(&a->pool_lock);
    }
    pthread_mutex_unlock(&a->release_lock);
    return status;
}

/* ---- Limits, peers ---- */

tide_status tide_peer_enable(tide_allocator *a, int device, int peer) {
    tide_status status = check_device(a, device);
    return status == TIDE_OK ? tide__core_share(a->cores[device], peer) : status;
}

tide_status tide_limits_set(tide_allocator *a, int device, const tide_limits *limits) {
    tide_limits l = {0};
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_struct("tide_limits_set: limits", limits);
    }
    if (status == TIDE_OK) {
        memcpy(&l, limits, tide__min(limits->struct_size, sizeof l));
        tide__core_limit(a->cores[device], l.limit_bytes, l.margin_bytes);
    }
    return status;
}

tide_status tide_limits_get(tide_allocator *a, int device, tide_limits *out) {
    tide_limits l = {.struct_size = sizeof l};
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_struct("tide_limits_get: out", out);
    }
    if (status == TIDE_OK) {
        l.struct_size = out->struct_size;
        tide__core_limits(a->cores[device], &l.limit_bytes, &l.margin_bytes);
        copy_out(out, &l, sizeof l);
    }
    return status;
}

/* ---- Trim, streams, statistics ---- */

tide_status tide_trim(tide_allocator *a, int device, const tide_trim_options *options,
                      tide_trim_result *result) {
    tide_trim_options o = {.bytes = UINT64_MAX};
    tide_trim_result r;
    tide_status status = check_device(a, device);
    if (status == TIDE_OK && options != NULL) {
        status = check_struct("tide_trim: options", options);
    }
    if (status == TIDE_OK && result != NULL) {
        status = check_struct("tide_trim: result", result);
    }
    if (status != TIDE_OK) {
        return status;
    }
    if (options != NULL) {
        memcpy(&o, options, tide__min(options->struct_size, sizeof o));
    }
    status = tide__core_trim(a->cores[device], o.bytes, o.wait_ns, result != NULL ? &r : NULL);
    if (status == TIDE_OK && result != NULL) {
        copy_out(result, &r, sizeof r);
    }
    return status;
}

/* ---- Captures ---- */

tide_status tide_capture_begin(tide_allocator *a, int device, tide_stream stream, tide_pool pool) {
    uint32_t index;
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_pool(a, device, pool, &index);
    }
    if (status == TIDE_OK && (pool == TIDE_POOL_DEFAULT || pool == TIDE_POOL_CURRENT)) {
        status = tide__fail(TIDE_INVALID_ARGUMENT,
                            "tide_capture_begin: a graph needs a pool of its own (tide_pool_create)");
    }
    return status == TIDE_OK ? tide__core_capture_begin(a->cores[device], stream, index) : status;
}

tide_status tide_capture_end(tide_allocator *a, int device, tide_stream stream) {
    tide_status status = check_device(a, device);
    return status == TIDE_OK ? tide__core_capture_end(a->cores[device], stream) : status;
}

/* ---- Shortage ---- */

tide_status tide_oom_callback_add(tide_allocator *a, tide_oom_callback callback, void *user, uint64_t *id) {
    tide_status status = check_device(a, 0);
    if (status == TIDE_OK) {
        status = check_given("tide_oom_callback_add", callback != NULL && id != NULL);
    }
    return status == TIDE_OK ? tide__callbacks_add(&a->on_shortage, callback, user, id) : status;
}

tide_status tide_oom_callback_remove(tide_allocator *a, uint64_t id) {
    tide_status status = check_device(a, 0);
    return status == TIDE_OK ? tide__callbacks_remove(&a->on_shortage, id) : status;
}

/* ---- Streams ---- */

tide_status tide_stream_create(tide_allocator *a, int device, tide_stream *out) {
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_given("tide_stream_create", out != NULL);
    }
    return status == TIDE_OK ? a->device->ops->stream_create(a->device, device, out) : status;
}

tide_status tide_stream_destroy(tide_allocator *a, int device, tide_stream stream) {
    tide_status status = check_device(a, device);
    if (status == TIDE_OK && stream == 0) {
        status =
            tide__fail(TIDE_INVALID_ARGUMENT, "tide_stream_destroy: the default stream cannot be destroyed");
    }
    return status == TIDE_OK ? tide__core_retire_stream(a->cores[device], stream, true) : status;
}

tide_status tide_stream_retire(tide_allocator *a, int device, tide_stream stream) {
    tide_status status = check_device(a, device);
    return status == TIDE_OK ? tide__core_retire_stream(a->cores[device], stream, false) : status;
}

tide_status tide_stats_get(tide_allocator *a, int device, tide_stats *out) {
    tide_stats all;
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        status = check_struct("tide_stats_get", out);
    }
    if (status == TIDE_OK) {
        tide__ledger_stats(&a->ledgers[device], &all);
        copy_out(out, &all, sizeof all);
    }
    return status;
}

tide_status tide_stats_reset_peaks(tide_allocator *a, int device) {
    tide_status status = check_device(a, device);
    if (status == TIDE_OK) {
        tide__ledger_reset_peaks(&a->ledgers[device]);
    }
    return status;
}

uint64_t tide_reserved_bytes(const tide_allocator *a, int device) {
    if (check_device(a, device) != TIDE_OK) {
        return 0;
    }
    return atomic_load_explicit(&a->cores[device]->chunks.reserved_bytes, memory_order_relaxed);
}

tide_status tide_phase(tide_allocator *a, const char *name) {
    tide_status status = check_device(a, 0);
    for (int i = 0; status == TIDE_OK && i < a->count; i++) {
        status = tide__ledger_enter(&a->ledgers[i], name);
    }
    return status;
}

tide_status tide_phase_stats_get(tide_allocator *a, int device, int index, tide_phase_stats *out) {
    tide_status status = check_device(a, device);
    if (status == TIDE_OK && index < 0) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "phase %d", index);
    }
    if (status == TIDE_OK) {
        status = check_struct("tide_phase_stats_get", out);
    }
    tide_phase_stats row;
    if (status == TIDE_OK) {
        status = tide__ledger_get(&a->ledgers[device], (size_t)index, &row);
    }
    if (status == TIDE_OK) {
        copy_out(out, &row, sizeof row);
    }
    return status;
}
