/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: found by handle without a lock, known to the epochs from the first
 * allocation on, and forgotten when they are retired.
 */
#include <stdlib.h>
#include <string.h>

#include "heap/core.h"

static size_t stream_slot(tide_stream handle) {
    uint64_t h = handle * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h >> 51); /* 13 bits: TIDE__STREAM_TABLE */
}

tide__stream_cache *tide__core_known_stream(tide__core *c, tide_stream handle) {
    size_t i = stream_slot(handle);
    for (size_t step = 0; step < TIDE__STREAM_TABLE; step++, i = (i + 1) % TIDE__STREAM_TABLE) {
        uint64_t key = atomic_load_explicit(&c->stream_table[i].handle, memory_order_acquire);
        if (key == handle + 1 && key != UINT64_MAX) {
            return atomic_load_explicit(&c->stream_table[i].cache, memory_order_relaxed);
        }
        if (key == 0) {
            return NULL;
        }
    }
    return NULL;
}

static tide_status make_cache(tide_stream handle, tide__stream_cache **out) {
    tide__stream_cache *s = aligned_alloc(64, tide__align_up(sizeof *s, 64));
    tide__block **bins = calloc(TIDE__CACHE_BINS, sizeof *bins);
    if (s == NULL || bins == NULL) {
        free(s);
        free(bins);
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a stream's cache");
    }
    memset(s, 0, sizeof *s);
    s->handle = handle;
    s->bins = bins;
    tide__lock_init(&s->lock);
    *out = s;
    return TIDE_OK;
}

/* Has the stream free blocks of a graph, or such as will be? They are its own
 * captures' alone, and their number tells whose they are. */
static bool has_graphs_blocks(tide__core *c, uint16_t number) {
    bool has = false;
    tide__lock_take(&c->core);
    for (uint16_t i = 0; i < c->heap_count && !has; i++) {
        const tide__heap *h = c->heaps[i];
        has = h != NULL && h->graph && number < h->index_cap && h->index[number] != NULL &&
              h->index[number]->count > 0;
    }
    for (const tide__block *b = c->awaiting; b != NULL && !has; b = b->list_next) {
        has = b->stream == number && c->heaps[b->heap]->graph;
    }
    tide__lock_drop(&c->core);
    return has;
}

/* A retired stream of which nothing is left: its work is done, no caller has a
 * block of it, and those freed are idle. The next stream is given its number,
 * so that streams may come and go without end. */
static tide__stream_cache *find_spent(tide__core *c) {
    tide__epochs_poll(&c->epochs); /* a failure leaves more for later: no harm */
    tide__epoch done = tide__epochs_done(&c->epochs);
    for (uint16_t i = 0; i < c->epochs.stream_count; i++) {
        const tide__epoch_stream *e = c->epochs.streams[i];
        if (!e->retired || e->last > done) {
            continue;
        }
        tide__stream_cache *s = atomic_load(&c->caches[i]);
        tide__lock_take(&s->lock);
        bool spent = s->allocs == s->frees && s->last_free <= done;
        tide__lock_drop(&s->lock);
        if (spent && !has_graphs_blocks(c, i)) {
            return s;
        }
    }
    return NULL;
}

/* Under `slow`: a slot that never held a handle, or holds one no more. */
static void enter_stream(tide__core *c, tide_stream handle, tide__stream_cache *s) {
    size_t i = stream_slot(handle);
    while (atomic_load(&c->stream_table[i].handle) != 0 &&
           atomic_load(&c->stream_table[i].handle) != UINT64_MAX) {
        i = (i + 1) % TIDE__STREAM_TABLE;
    }
    atomic_store(&c->stream_table[i].cache, s);
    atomic_store_explicit(&c->stream_table[i].handle, handle + 1, memory_order_release);
}

/* The stream, where it is known by another handle: the driver has several for its
 * legacy stream. */
static tide__stream_cache *find_by_id(tide__core *c, uint64_t id) {
    for (uint16_t i = 0; i < c->epochs.stream_count; i++) {
        if (!c->epochs.streams[i]->retired && c->epochs.streams[i]->driver_id == id) {
            return atomic_load(&c->caches[i]);
        }
    }
    return NULL;
}

/* Under `slow`, since epochs belong to it. */
static tide_status add_stream(tide__core *c, tide_stream handle, tide__stream_cache **out) {
    tide__stream_cache *s = NULL;
    uint64_t id;
    if (handle >= UINT64_MAX - 1) { /* two values that the table keeps for itself */
        return tide__fail(TIDE_BAD_HANDLE, "stream %#llx is not a stream", (unsigned long long)handle);
    }
    tide_status status = c->device->ops->stream_id(c->device, c->gpu, handle, &id);
    if (status != TIDE_OK) {
        return status;
    }
    if ((s = find_by_id(c, id)) != NULL) {
        enter_stream(c, handle, s);
        *out = s;
        return TIDE_OK;
    }
    if ((s = find_spent(c)) != NULL) {
        tide__epochs_reuse_stream(&c->epochs, handle, id, s->number);
        s->handle = handle;
        enter_stream(c, handle, s);
        *out = s;
        return TIDE_OK;
    }
    status = make_cache(handle, &s);
    if (status != TIDE_OK) {
        return status;
    }
    status = tide__epochs_add_stream(&c->epochs, handle, id, &s->number);
    if (status != TIDE_OK) {
        tide__stream_close(s);
        return status;
    }
    atomic_store(&c->caches[s->number], s);
    atomic_store(&c->cache_count, s->number + 1U);
    tide__account_streams(c, s->number + 1U);
    enter_stream(c, handle, s);
    *out = s;
    return TIDE_OK;
}

tide_status tide__core_stream(tide__core *c, tide_stream handle, tide__stream_cache **out) {
    tide__stream_cache *s = tide__core_known_stream(c, handle);
    if (TIDE__LIKELY(s != NULL)) {
        *out = s;
        return TIDE_OK;
    }
    pthread_mutex_lock(&c->slow);
    s = tide__core_known_stream(c, handle);
    tide_status status = TIDE_OK;
    if (s != NULL) {
        *out = s;
    } else {
        status = add_stream(c, handle, out);
    }
    pthread_mutex_unlock(&c->slow);
    return status;
}

void tide__stream_close(tide__stream_cache *s) {
    free(s->bins);
    free(s);
}

/* ---- Streams that go ---- */

/* Under `slow`: no later epoch waits for the stream, and its handles are another's. */
static void forget_stream(tide__core *c, uint16_t number) {
    const tide__stream_cache *s = atomic_load(&c->caches[number]);
    c->epochs.streams[number]->retired = true;
    c->epochs.streams[number]->last = tide__epochs_open_number(&c->epochs) - 1;
    for (size_t i = 0; i < TIDE__STREAM_TABLE; i++) {
        uint64_t key = atomic_load(&c->stream_table[i].handle);
        if (key != 0 && key != UINT64_MAX && atomic_load(&c->stream_table[i].cache) == s) {
            /* Probes go on past the slot; a stream of the same handle is a new one. */
            atomic_store(&c->stream_table[i].handle, UINT64_MAX);
        }
    }
}

/* No epoch is closed while a stream that was destroyed is not retired, this one or
 * another: this one's work is done when the whole device's is. */
static tide_status close_last_epoch(tide__core *c) {
    tide_status status = tide__epochs_cut(&c->epochs);
    if (status == TIDE_BAD_HANDLE) {
        status = c->device->ops->device_wait(c->device, c->gpu, c->oom_wait_ns);
    }
    return status;
}

tide_status tide__core_retire_stream(tide__core *c, tide_stream handle, bool destroy) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&c->slow);
    tide__stream_cache *s = tide__core_known_stream(c, handle);
    if (s != NULL && atomic_load(&s->capture_pool) != 0) {
        status = tide__fail(TIDE_IN_USE, "stream %#llx is announced as captured: call tide_capture_end first",
                            (unsigned long long)handle);
    } else if (s != NULL) {
        tide__cache_flush(c, s);
        status = close_last_epoch(c); /* its last work is in this epoch */
    }
    /* Forgotten only once it is gone: a stream that lives on after a failed
     * destroy must go on holding epochs back. */
    if (status == TIDE_OK && destroy) {
        status = c->device->ops->stream_destroy(c->device, c->gpu, handle);
    }
    if (status == TIDE_OK && s != NULL) {
        forget_stream(c, s->number);
    }
    pthread_mutex_unlock(&c->slow);
    return status;
}
