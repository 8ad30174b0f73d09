/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a device, and the walk that checks the invariants of its blocks and chunks. */
#include <stdlib.h>
#include <string.h>

#include "heap/core.h"

/* Brings the streams' uncounted steps into the totals. */
static void settle_accounts(tide__core *c, tide_stats *out) {
    uint32_t count = atomic_load(&c->cache_count);
    for (uint32_t i = 0; i < count; i++) {
        tide__stream_cache *s = atomic_load(&c->caches[i]);
        tide__lock_take(&s->lock);
        tide__account_settle(c, s);
        out->allocs += s->allocs;
        out->frees += s->frees;
        out->cache_hits += s->hits;
        tide__lock_drop(&s->lock);
    }
}

static uint64_t positive(int64_t v) { return v > 0 ? (uint64_t)v : 0; }

static void stats_locked(tide__core *c, tide_stats *out) {
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    settle_accounts(c, out);
    out->allocated_bytes = positive(atomic_load(&c->allocated_bytes));
    out->requested_bytes = positive(atomic_load(&c->allocated_bytes) - atomic_load(&c->wasted_bytes));
    tide__account_take_peaks(c, out);
    out->reserved_bytes = atomic_load(&c->chunks.reserved_bytes);
    out->peak_reserved_bytes = atomic_load(&c->chunks.peak_reserved_bytes);
    out->retiring_bytes = c->retiring_bytes;
    out->address_bytes = c->address_bytes;
    out->slow_allocs = c->slow_allocs;
    out->slow_ns = c->slow_ns;
    out->chunks = c->chunks.held;
    out->chunks_created = c->chunks.created;
    out->chunks_released = c->chunks.released;
    out->moves = c->chunks.moves;
    out->moved_bytes = c->chunks.moved_bytes;
    out->stream_waits = c->epochs.stream_waits;
    out->host_waits = c->epochs.host_waits;
    out->epochs = c->epochs.closed_total;
    out->ooms = c->ooms;
    tide__lock_take(&c->core);
    out->active_bytes = out->allocated_bytes + c->awaiting_bytes;
    tide__lock_drop(&c->core);
}

void tide__core_stats(tide__core *c, tide_stats *out) {
    pthread_mutex_lock(&c->slow);
    stats_locked(c, out);
    pthread_mutex_unlock(&c->slow);
}

void tide__core_take_peaks(tide__core *c, tide_stats *out) {
    pthread_mutex_lock(&c->slow);
    stats_locked(c, out);
    tide__account_restart_peaks(c, out);
    atomic_store(&c->chunks.peak_reserved_bytes, atomic_load(&c->chunks.reserved_bytes));
    pthread_mutex_unlock(&c->slow);
}

void tide__core_tell_trail(tide__core *c) {
    pthread_mutex_lock(&c->slow);
    tide__trail_tell(&c->trail, c->gpu);
    pthread_mutex_unlock(&c->slow);
}

/* ---- Invariants: the numbers are those of docs/invariants.md ---- */

typedef struct tally {
    uint64_t chunk_bytes, retiring_bytes, live_bytes;
} tally;

/* I3, I4: chunks stand behind all of a block or none of it, as its state says. */
static void check_backing(tide__core *c, const tide__extent *x, const tide__block *b) {
    uint8_t state = tide__state_of(b);
    bool backed =
        state == TIDE__LIVE || state == TIDE__CACHED || state == TIDE__FREE || state == TIDE__AWAITING;
    uint64_t granule = c->properties.granularity;
    TIDE__CHECK(state != TIDE__UNUSED && state != TIDE__BUSY);
    TIDE__CHECK(backed || (b->va % granule == 0 && b->size % granule == 0));
    uint64_t step =
        state == TIDE__HOLE ? tide__max(granule, b->size / 64) : granule; /* a hole is a terabyte */
    for (uint64_t va = tide__align_down(b->va, granule); va < b->va + b->size;
         va += tide__align_up(step, granule)) {
        uint32_t number = *tide__extent_chunk_slot(x, va);
        TIDE__CHECK((number != 0) == backed);
        if (backed) {
            const tide__chunk *k = &c->chunks.items[number];
            TIDE__CHECK(k->live && va >= k->va && va < k->va + k->size);
        }
    }
}

/* I1, I2: the blocks of an extent adjoin, and free neighbours of one stream are one. */
static void check_extent(tide__core *c, const tide__extent *x, tally *t) {
    uint64_t at = x->va;
    const tide__block *before = NULL;
    for (const tide__block *b = x->first; b != NULL; b = b->next) {
        uint8_t state = tide__state_of(b);
        TIDE__CHECK(b->va == at && b->size > 0 && b->size % TIDE__ALIGN_BYTES == 0 && b->prev == before);
        TIDE__CHECK(b->heap == x->heap);
        if (before != NULL && state == tide__state_of(before)) {
            TIDE__CHECK(state != TIDE__HOLE && (state != TIDE__FREE || b->stream != before->stream));
        }
        check_backing(c, x, b);
        t->retiring_bytes += state == TIDE__RETIRING ? b->size : 0;
        t->live_bytes += state == TIDE__LIVE ? b->size : 0;
        at += b->size;
        before = b;
    }
    TIDE__CHECK(at == x->va + x->size);
}

/* I5: reserved bytes are those of the chunks held. */
static void check_totals(tide__core *c, tally *t) {
    for (size_t i = 1; i < c->chunks.count; i++) {
        t->chunk_bytes += c->chunks.items[i].live ? c->chunks.items[i].size : 0;
    }
    TIDE__CHECK(t->chunk_bytes == atomic_load(&c->chunks.reserved_bytes));
    TIDE__CHECK(t->retiring_bytes == c->retiring_bytes);
    TIDE__CHECK(t->live_bytes == tide__core_live_bytes(c));
    TIDE__CHECK(c->chunks.limit_bytes == 0 ||
                t->chunk_bytes <= tide__max(c->chunks.limit_bytes, c->chunks.held_before));
}

void tide__core_validate(tide__core *c) {
    tide_stats stats;
    tide__core_stats(c, &stats); /* settles the accounts */
    pthread_mutex_lock(&c->slow);
    tide__lock_take(&c->core);
    tally t = {0};
    for (uint16_t i = 0; i < c->heap_count; i++) {
        for (tide__extent *x = c->heaps[i] != NULL ? c->heaps[i]->extents : NULL; x != NULL; x = x->next) {
            check_extent(c, x, &t);
        }
    }
    check_totals(c, &t);
    tide__lock_drop(&c->core);
    pthread_mutex_unlock(&c->slow);
}
