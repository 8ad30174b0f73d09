/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures: what a stream allocates while it is captured goes to a pool of the
 * graph's. The graph replays into that memory whenever it is launched, on any
 * stream, so events say nothing of it: the pool keeps all its chunks, and its
 * free blocks are for captures on the same stream, in the order captured. Those of
 * before the first capture, and those freed between captures, await their epoch first.
 *
 * After the pool's release replays that were launched before may still run. The
 * pool drains: its chunks become anybody's when an epoch closed after the
 * release is done.
 */
#include "heap/core.h"

static tide__heap **heaps_of(tide__core *c, uint32_t pool) { return &c->heaps[pool * TIDE__CLASSES]; }

/* What the heap has free, and work queued before the capture may still use, is
 * nobody's until that is done: the graph may be launched on another stream. */
static void put_off_pending(tide__core *c, tide__heap *h) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    tide__free_walk w;
    for (tide__block *b = tide__free_first(h, TIDE__ALIGN_BYTES, &w), *next; b != NULL; b = next) {
        next = tide__free_next(h, &w, b);
        if (b->epoch > done) {
            tide__core_remove_free(c, b);
            tide__block_set(b, TIDE__AWAITING);
            tide__list_push(&c->awaiting, b);
            c->awaiting_bytes += b->size;
        }
    }
}

/* What callers have from before the capture is used by work that is queued, too:
 * freed while the capture lasts, it waits as if it were used on other streams. */
static void mark_eager(const tide__heap *h) {
    for (const tide__extent *x = h->extents; x != NULL; x = x->next) {
        for (tide__block *b = x->first; b != NULL; b = b->next) {
            if (tide__state_of(b) == TIDE__LIVE || tide__state_of(b) == TIDE__BUSY) {
                tide__block_mark(b, true);
            }
        }
    }
}

static void count_capture(tide__core *c, uint32_t pool, int change) {
    tide__lock_take(&c->core);
    for (int kind = 0; kind < TIDE__CLASSES; kind++) {
        tide__heap *h = heaps_of(c, pool)[kind];
        if (change > 0) {
            mark_eager(h);
        }
        if (!h->graph) {
            put_off_pending(c, h);
        }
        h->captures = (uint16_t)(h->captures + change);
        h->graph = true;
    }
    tide__lock_drop(&c->core);
}

static tide_status begin(tide__core *c, tide__stream_cache *s, uint32_t pool) {
    if (atomic_load(&s->capture_pool) != 0) {
        return tide__fail(TIDE_IN_USE, "tide_capture_begin: stream %#llx is announced already",
                          (unsigned long long)s->handle);
    }
    if (!heaps_of(c, pool)[0]->live) {
        return tide__fail(TIDE_BAD_HANDLE, "the pool was released during the call");
    }
    bool first = c->epochs.captures == 0;
    tide_status status = tide__epochs_capture(&c->epochs, s->number);
    if (status != TIDE_OK) {
        return status;
    }
    count_capture(c, pool, 1);
    if (first) {
        c->capture_epoch = tide__epochs_open_number(&c->epochs);
    }
    atomic_store(&s->capture_pool, pool);
    return TIDE_OK;
}

tide_status tide__core_capture_begin(tide__core *c, tide_stream stream, uint32_t pool) {
    tide__stream_cache *s;
    tide_status status = tide__core_stream(c, stream, &s);
    if (status != TIDE_OK) {
        return status;
    }
    pthread_mutex_lock(&c->slow);
    status = begin(c, s, pool);
    pthread_mutex_unlock(&c->slow);
    return status;
}

/* Blocks freed during the captures, with streams recorded on them, await an
 * epoch that covers what was queued up to now. */
static void put_off_awaiting(tide__core *c) {
    tide__epoch now = tide__epochs_open_number(&c->epochs);
    tide__lock_take(&c->core);
    for (tide__block *b = c->awaiting; b != NULL; b = b->list_next) {
        b->epoch = b->epoch >= c->capture_epoch ? now : b->epoch;
    }
    tide__lock_drop(&c->core);
}

tide_status tide__core_capture_end(tide__core *c, tide_stream stream) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&c->slow);
    tide__stream_cache *s = tide__core_known_stream(c, stream); /* one never seen must not be from now on */
    uint32_t pool = s != NULL ? atomic_load(&s->capture_pool) : 0;
    if (pool == 0) {
        status =
            tide__fail(TIDE_INVALID_ARGUMENT, "tide_capture_end: no capture of stream %#llx was announced",
                       (unsigned long long)stream);
    } else {
        atomic_store(&s->capture_pool, 0);
        count_capture(c, pool, -1);
        tide__epochs_capture_end(&c->epochs, s->number);
        if (c->epochs.captures == 0) {
            put_off_awaiting(c);
        }
    }
    pthread_mutex_unlock(&c->slow);
    return status;
}

bool tide__core_pool_is_free(tide__core *c, uint32_t pool) {
    tide__lock_take(&c->core);
    const tide__heap *h = heaps_of(c, pool)[0];
    bool is_free = h == NULL || (!h->live && !h->graph);
    tide__lock_drop(&c->core);
    return is_free;
}

void tide__core_drain_pools(tide__core *c) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    tide__lock_take(&c->core);
    for (uint16_t i = 0; i < c->heap_count && c->draining > 0; i++) {
        tide__heap *h = c->heaps[i];
        if (h != NULL && h->graph && !h->live && h->released_epoch <= done) {
            h->graph = false;
            c->draining--;
        }
    }
    tide__lock_drop(&c->core);
}
