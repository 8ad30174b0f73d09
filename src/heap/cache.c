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

static size_t bin_of(uint64_t size) { return size / TIDE__ALIGN_BYTES; }

static tide__block *pop(tide__stream_cache *s, size_t bin) {
    tide__block *b = s->bins[bin];
    s->bins[bin] = b->list_next;
    if (b->list_next == NULL) {
        s->filled[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
    }
    s->bytes -= b->size;
    return b;
}

tide__block *tide__cache_take(tide__stream_cache *s, uint64_t size) {
    tide__block *b = NULL;
    if (size <= TIDE__CACHE_MAX_BYTES) {
        b = s->bins[bin_of(size)] != NULL ? pop(s, bin_of(size)) : NULL;
    } else if (s->last != NULL && s->last->size == size) {
        b = s->last;
        s->last = NULL;
    }
    TIDE__ASSERT(b == NULL || (tide__state_of(b) == TIDE__CACHED && b->size == size));
    return b;
}

/* Under the cache's lock: sends blocks back, the largest first, until at most
 * `keep` bytes are left. */
static void shrink(tide__core *c, tide__stream_cache *s, uint64_t keep) {
    tide__lock_take(&c->core);
    for (size_t word = TIDE__CACHE_WORDS; word > 0 && s->bytes > keep;) {
        if (s->filled[word - 1] == 0) {
            word--;
            continue;
        }
        size_t bin = (word - 1) * 64 + (size_t)tide__log2_floor(s->filled[word - 1]);
        tide__core_put_free(c, pop(s, bin));
    }
    tide__lock_drop(&c->core);
}

void tide__cache_send_last_locked(tide__core *c, tide__stream_cache *s) {
    tide__block *b = s->last;
    s->last = NULL;
    tide__core_put_free(c, b);
}

void tide__cache_send_last(tide__core *c, tide__stream_cache *s) {
    if (s->last != NULL) {
        tide__lock_take(&c->core);
        tide__cache_send_last_locked(c, s);
        tide__lock_drop(&c->core);
    }
}

void tide__cache_put(tide__core *c, tide__stream_cache *s, tide__block *b) {
    tide__block_set(b, TIDE__CACHED);
    if (b->size > TIDE__CACHE_MAX_BYTES) {
        tide__cache_send_last(c, s);
        s->last = b;
        return;
    }
    size_t bin = bin_of(b->size);
    b->list_next = s->bins[bin];
    s->bins[bin] = b;
    s->filled[bin / 64] |= UINT64_C(1) << (bin % 64);
    s->bytes += b->size;
    if (s->bytes > TIDE__CACHE_BOUND_BYTES) {
        shrink(c, s, TIDE__CACHE_BOUND_BYTES / 2);
    }
}

void tide__cache_flush(tide__core *c, tide__stream_cache *s) {
    tide__lock_take(&s->lock);
    if (s->bytes > 0) {
        shrink(c, s, 0);
    }
    tide__cache_send_last(c, s);
    tide__account_settle(c, s); /* the slow path weighs by the totals */
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
 * threads on different streams do not fight over one cache line. Totals lag more
 * behind what was freed than behind what was allocated, so that a large block that
 * comes and goes costs no atomic operation: a total is too high rather than too
 * low, and no peak escapes. What was asked for is the blocks less what rounding
 * wasted, which is so little that it seldom fills a step. */
#define ACCOUNT_STEP ((int64_t)1 << 20)
#define ACCOUNT_FREED ((int64_t)64 << 20) /* of all streams together, where they are few */

/* The stream's count of transfers is odd during one: see uncounted. */
static void add_in_steps(tide__stream_cache *s, _Atomic(int64_t) *total, _Atomic(int64_t) *delta,
                         int64_t bytes, int64_t most, int64_t freed) {
    int64_t sum = atomic_load_explicit(delta, memory_order_relaxed) + bytes;
    if (sum > most || sum < -freed) {
        uint64_t transfers = atomic_load_explicit(&s->transfers, memory_order_relaxed);
        atomic_store_explicit(&s->transfers, transfers + 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        atomic_fetch_add_explicit(total, sum, memory_order_relaxed);
        atomic_store_explicit(delta, 0, memory_order_relaxed);
        atomic_store_explicit(&s->transfers, transfers + 2, memory_order_release);
        return;
    }
    atomic_store_explicit(delta, sum, memory_order_relaxed);
}

void tide__account_streams(tide__core *c, uint32_t streams) {
    int64_t each = ACCOUNT_FREED / (int64_t)tide__max(streams, 1);
    atomic_store_explicit(&c->account_freed, tide__max(each, ACCOUNT_STEP), memory_order_relaxed);
}

void tide__account_settle(tide__core *c, tide__stream_cache *s) {
    add_in_steps(s, &c->allocated_bytes, &s->allocated_delta, 0, 0, 0);
    add_in_steps(s, &c->wasted_bytes, &s->wasted_delta, 0, 0, 0);
}

/* All streams' transfers so far; an odd number, or two that differ, is no moment at
 * which totals and steps fit together. */
static uint64_t sum_transfers(tide__core *c, uint32_t count, bool *steady) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t n = atomic_load_explicit(&atomic_load(&c->caches[i])->transfers, memory_order_acquire);
        *steady = *steady && n % 2 == 0;
        sum += n;
    }
    return sum;
}

typedef struct totals {
    int64_t requested, allocated;
} totals;

/* What is held now, less what other streams than s (all, where it is NULL) freed and did
 * not count yet: what they allocated and did not count is not in it. */
static totals add_up(tide__core *c, const tide__stream_cache *s) {
    uint32_t count = atomic_load_explicit(&c->cache_count, memory_order_acquire);
    int64_t allocated = 0, wasted = 0;
    bool steady = false;
    for (int tries = 0; tries < 1000 && !steady; tries++) {
        steady = true;
        uint64_t before = sum_transfers(c, count, &steady);
        allocated = atomic_load_explicit(&c->allocated_bytes, memory_order_relaxed);
        wasted = atomic_load_explicit(&c->wasted_bytes, memory_order_relaxed);
        for (uint32_t i = 0; i < count; i++) {
            tide__stream_cache *other = atomic_load_explicit(&c->caches[i], memory_order_relaxed);
            int64_t delta = atomic_load_explicit(&other->allocated_delta, memory_order_relaxed);
            allocated += delta < 0 || other == s ? delta : 0;
            wasted += other == s ? atomic_load_explicit(&other->wasted_delta, memory_order_relaxed) : 0;
        }
        atomic_thread_fence(memory_order_acquire);
        steady = sum_transfers(c, count, &steady) == before && steady;
    }
    return (totals){allocated - wasted, allocated};
}

static void raise_peaks(tide__core *c, totals t) {
    raise_peak(&c->peak_allocated, t.allocated);
    raise_peak(&c->peak_requested, t.requested);
}

void tide__account(tide__core *c, tide__stream_cache *s, int64_t requested, int64_t allocated) {
    int64_t freed = atomic_load_explicit(&c->account_freed, memory_order_relaxed);
    add_in_steps(s, &c->allocated_bytes, &s->allocated_delta, allocated, ACCOUNT_STEP, freed);
    add_in_steps(s, &c->wasted_bytes, &s->wasted_delta, allocated - requested, ACCOUNT_STEP, ACCOUNT_STEP);
    if (allocated > 0) {
        int64_t a = atomic_load_explicit(&c->allocated_bytes, memory_order_relaxed) +
                    atomic_load_explicit(&s->allocated_delta, memory_order_relaxed);
        int64_t r = a - atomic_load_explicit(&c->wasted_bytes, memory_order_relaxed) -
                    atomic_load_explicit(&s->wasted_delta, memory_order_relaxed);
        if (TIDE__UNLIKELY(a > atomic_load_explicit(&c->peak_allocated, memory_order_relaxed) ||
                           r > atomic_load_explicit(&c->peak_requested, memory_order_relaxed))) {
            /* Where there are many streams each counts at once, and adding up would take long. */
            raise_peaks(c, freed > ACCOUNT_STEP ? add_up(c, s) : (totals){r, a});
        }
    }
}

void tide__account_take_peaks(tide__core *c, tide_stats *out) {
    raise_peaks(c, add_up(c, NULL)); /* every stream was settled just now */
    int64_t requested = atomic_load(&c->peak_requested), allocated = atomic_load(&c->peak_allocated);
    out->peak_requested_bytes = (uint64_t)(requested > 0 ? requested : 0);
    out->peak_allocated_bytes = (uint64_t)(allocated > 0 ? allocated : 0);
}

void tide__account_restart_peaks(tide__core *c, tide_stats *out) {
    int64_t requested = atomic_exchange(&c->peak_requested, INT64_MIN);
    int64_t allocated = atomic_exchange(&c->peak_allocated, INT64_MIN);
    raise_peaks(c, add_up(c, NULL)); /* read after the exchange: what others raise meanwhile stays */
    out->peak_requested_bytes =
        tide__max(out->peak_requested_bytes, (uint64_t)(requested > 0 ? requested : 0));
    out->peak_allocated_bytes =
        tide__max(out->peak_allocated_bytes, (uint64_t)(allocated > 0 ? allocated : 0));
}
