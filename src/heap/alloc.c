/* SPDX-License-Identifier: Apache-2.0 */
/* The two calls that matter, alloc and free, up to where an allocation needs chunks. */
#include <string.h>

#include "heap/core.h"

/* ---- Alloc ---- */

static tide_status take_fit(tide__core *c, tide__heap *h, tide__stream_cache *s, uint64_t size,
                            tide__block **out) {
    tide_status status = TIDE_OK;
    *out = NULL;
    tide__lock_take(&c->core);
    if (size > TIDE__CACHE_MAX_BYTES && s->last != NULL) {
        tide__cache_send_last_locked(c, s); /* joined to its neighbours it may make room */
    }
    tide__index *x = tide__core_index(h, s->number);
    if (TIDE__UNLIKELY(!h->live)) {
        status = tide__fail(TIDE_BAD_HANDLE, "the pool was released during the call");
    } else if (x == NULL || !tide__blocks_reserve(&c->blocks, 2)) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
    } else {
        tide__block *b = tide__core_serves(h, s) ? tide__core_find_fit(c, h, x, size) : NULL;
        if (b != NULL) {
            tide__index_remove(x, b);
            *out = tide__core_carve(c, b, size, s->number);
        }
    }
    tide__lock_drop(&c->core);
    return status;
}

uint64_t tide__core_live_bytes(tide__core *c) {
    int64_t live = atomic_load_explicit(&c->allocated_bytes, memory_order_relaxed);
    return live > 0 ? (uint64_t)live : 0;
}

/* A stream that is captured without our knowledge would put memory into a graph
 * that others take while it replays. The legacy stream cannot be captured. */
static tide_status check_announced(tide__core *c, const tide__heap *h, const tide__stream_cache *s) {
    bool capturing = false;
    if (s->handle == 0 || atomic_load(&s->capture_pool) != 0 || h->captures > 0) {
        return TIDE_OK;
    }
    tide_status status = c->device->ops->stream_capturing(c->device, c->gpu, s->handle, &capturing);
    if (status == TIDE_OK && capturing) {
        return tide__fail(
            TIDE_CAPTURING,
            "stream %#llx is being captured and nothing said so: call tide_capture_begin before "
            "the capture begins",
            (unsigned long long)s->handle);
    }
    return status;
}

/* Under the cache's lock: the block is a caller's from here, and no sooner, for
 * who frees a stale address that it has may come at once. */
static void hand_out(tide__core *c, tide__stream_cache *s, tide__block *b, uint64_t requested) {
    b->requested = requested;
    s->allocs++;
    tide__account(c, s, (int64_t)requested, (int64_t)b->size);
    tide__block_set(b, TIDE__LIVE);
}

static tide_status alloc_slow(tide__core *c, tide__heap *h, tide__stream_cache *s, uint64_t requested,
                              uint64_t size, uint64_t at, tide__block **out) {
    uint64_t start = tide__monotonic_ns();
    pthread_mutex_lock(&c->slow);
    c->slow_allocs++;
    tide_status status = check_announced(c, h, s);
    if (status == TIDE_OK) {
        tide__core_flush_caches(c);
        status = tide__core_poll(c);
    }
    tide__lock_take(&c->core); /* what the stream has of this heap must have an index to go back to */
    if (status == TIDE_OK && tide__core_index(h, s->number) == NULL) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for an index");
    }
    tide__lock_drop(&c->core);
    if (status == TIDE_OK) {
        status = tide__core_back(c, h, s, size, at, out);
    }
    if (status == TIDE_OK) {
        tide__lock_take(&s->lock);
        hand_out(c, s, *out, requested);
        tide__lock_drop(&s->lock);
    }
    c->slow_ns += tide__monotonic_ns() - start;
    pthread_mutex_unlock(&c->slow);
    return status;
}

/* The whole of the fast path: a block of this size from the cache, else one
 * that the stream has free. *out is NULL where there is neither. */
static tide_status alloc_fast(tide__core *c, uint64_t requested, tide__stream_cache *s, uint32_t pool,
                              tide__block **out) {
    uint64_t size = tide__align_up(requested, TIDE__ALIGN_BYTES);
    tide_status status = TIDE_OK;
    tide__lock_take(&s->lock);
    tide__block *b = TIDE__LIKELY(pool == 0) ? tide__cache_take(s, size) : NULL;
    if (TIDE__LIKELY(b != NULL)) {
        tide__block_mark(b, false);
        s->hits++;
        hand_out(c, s, b, requested);
    } else {
        status = take_fit(c, tide__core_heap(c, pool, size), s, size, &b);
        if (b != NULL) {
            hand_out(c, s, b, requested);
        }
    }
    tide__lock_drop(&s->lock);
    *out = b;
    return status;
}

static tide_status check_size(tide__core *c, uint64_t requested) {
    if (TIDE__UNLIKELY(requested > c->properties.total_bytes)) {
        pthread_mutex_lock(&c->slow);
        c->ooms++;
        pthread_mutex_unlock(&c->slow);
        return tide__fail(TIDE_NO_DEVICE_MEMORY, "an allocation of %llu bytes on a device of %llu",
                          (unsigned long long)requested, (unsigned long long)c->properties.total_bytes);
    }
    return TIDE_OK;
}

/* The pool's heap that the address belongs to, whatever the size: any address
 * that an earlier block had can be had again, though not by a block smaller
 * than the heap's. */
static tide_status heap_at(tide__core *c, uint32_t pool, uint64_t at, tide__heap **out, uint64_t *size) {
    const tide__extent *x = tide__registry_find(c->registry, at);
    if (x == NULL || x->core != c || x->heap / TIDE__CLASSES != pool) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "alloc_at %#llx: not an address of this pool",
                          (unsigned long long)at);
    }
    *out = c->heaps[x->heap];
    *size = tide__max(*size, tide__core_window(c, *out));
    return TIDE_OK;
}

static tide_status alloc_slow_block(tide__core *c, uint64_t requested, tide__stream_cache *s, uint32_t pool,
                                    uint64_t at, tide__block **out) {
    uint64_t size = tide__align_up(requested, TIDE__ALIGN_BYTES);
    tide__heap *h = tide__core_heap(c, pool, size);
    tide_status status = at != 0 ? heap_at(c, pool, at, &h, &size) : TIDE_OK;
    if (status == TIDE_OK) {
        status = alloc_slow(c, h, s, requested, size, at, out);
    }
    return status;
}

static inline uint32_t route(tide__stream_cache *s, uint32_t pool) {
    return pool == TIDE__POOL_ROUTED ? atomic_load_explicit(&s->capture_pool, memory_order_relaxed) : pool;
}

tide_status tide__core_alloc(tide__core *c, uint64_t requested, tide_stream stream, uint32_t pool,
                             uint64_t *va) {
    tide__stream_cache *s;
    tide__block *b;
    tide_status status = check_size(c, requested);
    if (TIDE__UNLIKELY(status != TIDE_OK || (status = tide__core_stream(c, stream, &s)) != TIDE_OK)) {
        return status;
    }
    pool = route(s, pool);
    status = alloc_fast(c, requested, s, pool, &b);
    if (TIDE__UNLIKELY(b == NULL && status == TIDE_OK)) {
        status = alloc_slow_block(c, requested, s, pool, 0, &b);
    }
    if (TIDE__LIKELY(status == TIDE_OK)) {
        *va = b->va;
    }
    return status;
}

tide_status tide__core_alloc_at(tide__core *c, uint64_t requested, tide_stream stream, uint32_t pool,
                                uint64_t va) {
    tide__stream_cache *s;
    tide__block *b;
    tide_status status = check_size(c, requested);
    if (status == TIDE_OK) {
        status = tide__core_stream(c, stream, &s);
    }
    return status == TIDE_OK ? alloc_slow_block(c, requested, s, route(s, pool), va, &b) : status;
}

/* ---- Free ---- */

tide__block *tide__core_find(tide__core *c, const tide__extent *x, uint64_t va) {
    if (va % TIDE__ALIGN_BYTES != 0) {
        return NULL;
    }
    uint32_t number = atomic_load_explicit(tide__extent_block_slot(x, va), memory_order_acquire);
    if (number == 0) {
        return NULL;
    }
    tide__block *b = tide__block_at(&c->blocks, number);
    return b->va == va && tide__state_of(b) == TIDE__LIVE ? b : NULL;
}

/* Freed bytes call for an epoch now and then, so that they become anybody's in
 * time; whoever has the slow path's lock now will cut one soon anyway. */
static void maybe_cut(tide__core *c, uint64_t freed) {
    uint64_t sum = freed + atomic_load_explicit(&c->freed_since_cut, memory_order_relaxed);
    uint64_t reserved = atomic_load_explicit(&c->chunks.reserved_bytes, memory_order_relaxed);
    if (sum < tide__max(c->tuning.epoch_bytes, reserved / c->tuning.epoch_share) ||
        pthread_mutex_trylock(&c->slow) != 0) {
        atomic_fetch_add_explicit(&c->freed_since_cut, freed, memory_order_relaxed);
    } else {
        tide__epochs_poll(&c->epochs); /* else the closed ones pile up where no slow path comes by */
        if (tide__epochs_cut(&c->epochs) == TIDE_OK) {
            atomic_store_explicit(&c->freed_since_cut, 0, memory_order_relaxed);
        }
        pthread_mutex_unlock(&c->slow);
    }
}

/* A block with recorded uses is nobody's before an epoch from now on is done. Nor is
 * a graph's that is freed outside of its captures: they take free blocks as they are. */
static void put_awaiting(tide__core *c, tide__block *b) {
    tide__lock_take(&c->core);
    tide__block_set(b, TIDE__AWAITING);
    tide__list_push(&c->awaiting, b);
    c->awaiting_bytes += b->size;
    tide__lock_drop(&c->core);
}

static tide_status not_live(uint64_t va) {
    return tide__fail(TIDE_NOT_ALLOCATED, "free of %#llx: no live block begins there",
                      (unsigned long long)va);
}

tide_status tide__core_free(tide__core *c, const tide__extent *x, uint64_t va) {
    tide__block *b = tide__core_find(c, x, va);
    if (TIDE__UNLIKELY(b == NULL)) {
        return not_live(va);
    }
    uint16_t number = b->stream; /* nonsense, where another thread frees it too and it moves on */
    tide__stream_cache *s =
        number < TIDE__STREAM_MAX ? atomic_load_explicit(&c->caches[number], memory_order_relaxed) : NULL;
    if (TIDE__UNLIKELY(s == NULL)) {
        return not_live(va);
    }
    tide__epoch epoch = tide__epochs_open_number(&c->epochs);
    tide__lock_take(&s->lock);
    /* Of two threads that free one block at once, one fails here. */
    if (TIDE__UNLIKELY(tide__state_of(b) != TIDE__LIVE || b->va != va || b->stream != s->number)) {
        tide__lock_drop(&s->lock);
        return not_live(va);
    }
    uint64_t size = b->size, cut_for = 0;
    s->frees++;
    s->last_free = epoch;
    tide__account(c, s, -(int64_t)b->requested, -(int64_t)size);
    b->epoch = epoch;
    if (TIDE__UNLIKELY(tide__block_marked(b))) {
        put_awaiting(c, b);
    } else if (TIDE__LIKELY(b->heap < TIDE__CLASSES)) {
        tide__cache_put(c, s, b);
    } else if (!tide__core_serves(c->heaps[b->heap], s)) {
        put_awaiting(c, b);
    } else {
        tide__lock_take(&c->core);
        tide__block_set(b, TIDE__CACHED);
        tide__core_put_free(c, b);
        tide__lock_drop(&c->core);
    }
    s->freed_since_cut += size;
    if (s->freed_since_cut >= c->tuning.epoch_bytes) {
        cut_for = s->freed_since_cut;
        s->freed_since_cut = 0;
    }
    tide__lock_drop(&s->lock);
    if (TIDE__UNLIKELY(cut_for != 0)) {
        maybe_cut(c, cut_for);
    }
    return TIDE_OK;
}

tide_status tide__core_record_stream(tide__core *c, tide__block *b, tide_stream stream) {
    tide__stream_cache *s;
    tide_status status = tide__core_stream(c, stream, &s);
    if (status == TIDE_OK && s->number != b->stream) {
        tide__block_mark(b, true);
    }
    return status;
}
