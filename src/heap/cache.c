/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream's cache: blocks that it freed, kept whole, so that the next
 * allocation of the same size takes one lock and a few loads. A block in the
 * cache is still cut out of the heap: nobody else can use it, so the cache is
 * bounded in bytes and the slow path empties it before it takes memory from
 * anywhere.
 *
 * Larger blocks are kept one at a time: whatever comes next, if not an
 * allocation of exactly that size, sends the block back first, so that keeping
 * it never changes where anything is placed.
 */
#include <stdlib.h>

#include "heap/core.h"

tide__block *tide__cache_take(tide__stream_cache *s, uint64_t size) {
    tide__block *b;
    if (size <= TIDE__CACHE_MAX_BYTES) {
        b = s->bins[size / TIDE__ALIGN_BYTES];
        if (b == NULL) {
            return NULL;
        }
        s->bins[size / TIDE__ALIGN_BYTES] = b->list_next;
        s->bytes -= size;
        s->count--;
    } else {
        b = s->last;
        if (b == NULL || b->size != size) {
            return NULL;
        }
        s->last = NULL;
    }
    TIDE__ASSERT(tide__state_of(b) == TIDE__CACHED && b->size == size);
    return b;
}

/* Under the cache's lock: sends blocks back until at most `keep` bytes are left. */
static void shrink(tide__core *c, tide__stream_cache *s, uint64_t keep) {
    tide__lock_take(&c->core);
    for (size_t bin = TIDE__CACHE_MAX_BYTES / TIDE__ALIGN_BYTES; bin > 0 && s->bytes > keep; bin--) {
        while (s->bins[bin] != NULL && s->bytes > keep) {
            tide__block *b = s->bins[bin];
            s->bins[bin] = b->list_next;
            s->bytes -= b->size;
            s->count--;
            tide__core_put_free(c, b);
        }
    }
    tide__lock_drop(&c->core);
}

static void send_last(tide__core *c, tide__stream_cache *s) {
    if (s->last != NULL) {
        tide__block *b = s->last;
        s->last = NULL;
        tide__lock_take(&c->core);
        tide__core_put_free(c, b);
        tide__lock_drop(&c->core);
    }
}

void tide__cache_put(tide__core *c, tide__stream_cache *s, tide__block *b) {
    tide__block_set(b, TIDE__CACHED);
    if (b->size > TIDE__CACHE_MAX_BYTES) {
        send_last(c, s);
        s->last = b;
        return;
    }
    b->list_next = s->bins[b->size / TIDE__ALIGN_BYTES];
    s->bins[b->size / TIDE__ALIGN_BYTES] = b;
    s->bytes += b->size;
    s->count++;
    if (s->bytes > TIDE__CACHE_BOUND_BYTES) {
        shrink(c, s, TIDE__CACHE_BOUND_BYTES / 2);
    }
}

void tide__cache_flush(tide__core *c, tide__stream_cache *s) {
    tide__lock_take(&s->lock);
    if (s->bytes > 0) {
        shrink(c, s, 0);
    }
    send_last(c, s);
    tide__lock_drop(&s->lock);
}

void tide__core_flush_caches(tide__core *c) {
    uint32_t count = atomic_load(&c->cache_count);
    for (uint32_t i = 0; i < count; i++) {
        tide__cache_flush(c, atomic_load(&c->caches[i]));
    }
}

static void raise_peak(_Atomic(int64_t) *peak, int64_t value) {
    int64_t seen = atomic_load_explicit(peak, memory_order_relaxed);
    while (value > seen && !atomic_compare_exchange_weak(peak, &seen, value)) {
    }
}

/* Each stream counts apart and adds to the shared totals in steps, so that
 * threads on different streams do not fight over one cache line. */
#define ACCOUNT_STEP (1 << 20)

void tide__account(tide__core *c, tide__stream_cache *s, int64_t requested, int64_t allocated) {
    s->requested_delta += requested;
    s->allocated_delta += allocated;
    if (s->allocated_delta > ACCOUNT_STEP || s->allocated_delta < -ACCOUNT_STEP) {
        atomic_fetch_add_explicit(&c->requested_bytes, s->requested_delta, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->allocated_bytes, s->allocated_delta, memory_order_relaxed);
        s->requested_delta = s->allocated_delta = 0;
    }
    if (allocated > 0) {
        int64_t r = atomic_load_explicit(&c->requested_bytes, memory_order_relaxed) + s->requested_delta;
        int64_t a = atomic_load_explicit(&c->allocated_bytes, memory_order_relaxed) + s->allocated_delta;
        if (a > atomic_load_explicit(&c->peak_allocated, memory_order_relaxed)) {
            raise_peak(&c->peak_allocated, a);
        }
        if (r > atomic_load_explicit(&c->peak_requested, memory_order_relaxed)) {
            raise_peak(&c->peak_requested, r);
        }
    }
}
