/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One device: opening, streams, the free blocks' lists, and the two calls that
 * matter, alloc and free, up to where an allocation needs chunks.
 */
#include "heap/core.h"

#include <stdlib.h>
#include <string.h>

const tide__tuning tide__tuning_default = {
    .classes = {{0, 2 * TIDE__MIB},
                {TIDE__SMALL_BYTES, 8 * TIDE__MIB},
                {16 * TIDE__MIB, 20 * TIDE__MIB},
                {128 * TIDE__MIB, 64 * TIDE__MIB}},
    .chunk_share = 320,
    .chunk_floor = 24 * TIDE__MIB,
    .slack_per_mille = 5,
    .slack_bytes = 20 * TIDE__MIB,
    .most_per_mille = 13,
    .most_bytes = 56 * TIDE__MIB,
    .epoch_bytes = 16 * TIDE__MIB,
    .epoch_share = 512,
};

/* ---- Lists ---- */

void tide__list_push(tide__block **head, tide__block *b) {
    b->list_prev = NULL;
    b->list_next = *head;
    if (*head != NULL) {
        (*head)->list_prev = b;
    }
    *head = b;
}

void tide__list_remove(tide__block **head, tide__block *b) {
    if (b->list_prev != NULL) {
        b->list_prev->list_next = b->list_next;
    } else {
        TIDE__CHECK(*head == b);
        *head = b->list_next;
    }
    if (b->list_next != NULL) {
        b->list_next->list_prev = b->list_prev;
    }
}

/* ---- Open and close ---- */

tide_status tide__core_open(const tide__core_options *o, tide__core **out) {
    tide__core *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a device's state");
    }
    c->device = o->device;
    c->gpu = o->gpu;
    c->cross_stream = o->cross_stream;
    c->registry = o->registry;
    c->tuning = o->tuning != NULL ? *o->tuning : tide__tuning_default;
    tide_status status = o->device->ops->properties(o->device, o->gpu, &c->properties);
    if (status != TIDE_OK) {
        free(c);
        return status;
    }
    pthread_mutex_init(&c->slow, NULL);
    tide__lock_init(&c->core);
    tide__epochs_open(&c->epochs, o->device, o->gpu);
    status = tide__chunks_open(&c->chunks, o->device, o->gpu, o->limit_bytes);
    if (status == TIDE_OK) {
        status = tide__core_add_pool(c, 0);
    }
    if (status != TIDE_OK) {
        tide__core_close(c);
        return status;
    }
    *out = c;
    return TIDE_OK;
}

/* Unmaps every chunk of the extent, mapped or left behind, and gives the addresses back. */
static void extent_close(tide__core *c, tide__extent *x) {
    const tide__device_ops *ops = c->device->ops;
    for (tide__block *b = x->first; b != NULL; b = b->next) {
        if (tide__state_of(b) == TIDE__RETIRING) {
            ops->unmap(c->device, c->gpu, b->va, b->size);
        }
    }
    for (uint64_t va = x->va; va < x->va + x->size;) {
        uint32_t chunk = *tide__extent_chunk_slot(x, va);
        uint64_t step = UINT64_C(1) << x->granule_shift;
        if (chunk != 0) {
            step = c->chunks.items[chunk].size;
            ops->unmap(c->device, c->gpu, va, step);
        }
        va += step;
    }
    ops->unreserve(c->device, c->gpu, x->va, x->size);
    tide__registry_remove(c->registry, x);
    tide__extent_destroy(x);
}

static void heap_close(tide__core *c, tide__heap *h) {
    while (h->extents != NULL) {
        tide__extent *x = h->extents;
        h->extents = x->next;
        extent_close(c, x);
    }
    for (size_t i = 0; i < h->index_cap; i++) {
        free(h->index[i]);
    }
    free(h->index);
    free(h);
}

static void cache_close(tide__stream_cache *s) {
    free(s->bins);
    free(s);
}

void tide__core_close(tide__core *c) {
    if (c == NULL) {
        return;
    }
    for (uint16_t i = 0; i < c->heap_count; i++) {
        if (c->heaps[i] != NULL) {
            heap_close(c, c->heaps[i]);
        }
    }
    tide__chunks_close(&c->chunks);
    tide__epochs_close(&c->epochs);
    for (uint32_t i = 0; i < atomic_load(&c->cache_count); i++) {
        cache_close(atomic_load(&c->caches[i]));
    }
    tide__blocks_close(&c->blocks);
    tide__plan_free(c->plan);
    pthread_mutex_destroy(&c->slow);
    free(c);
}

/* ---- Pools ---- */

tide_status tide__core_add_pool(tide__core *c, uint32_t pool) {
    tide__heap *made[TIDE__CLASSES];
    if (pool >= UINT16_MAX / TIDE__CLASSES) {
        return tide__fail(TIDE_LIMIT, "more than %d pools on one device", UINT16_MAX / TIDE__CLASSES);
    }
    if (c->heaps[pool * TIDE__CLASSES] !=
        NULL) { /* a released pool's heaps, with their addresses, serve the next */
        tide__lock_take(&c->core);
        for (uint32_t kind = 0; kind < TIDE__CLASSES; kind++) {
            c->heaps[pool * TIDE__CLASSES + kind]->live = true;
        }
        tide__lock_drop(&c->core);
        return TIDE_OK;
    }
    for (int kind = 0; kind < TIDE__CLASSES; kind++) {
        made[kind] = calloc(1, sizeof *made[kind]);
        if (made[kind] == NULL) {
            while (kind > 0) {
                free(made[--kind]);
            }
            return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a pool");
        }
    }
    tide__lock_take(&c->core);
    for (int kind = 0; kind < TIDE__CLASSES; kind++) {
        uint16_t number = (uint16_t)(pool * TIDE__CLASSES + (uint32_t)kind);
        made[kind]->number = number;
        made[kind]->size_class = (uint8_t)kind;
        made[kind]->live = true;
        c->heaps[number] = made[kind];
        c->heap_count = (uint16_t)tide__max(c->heap_count, number + 1U);
    }
    tide__lock_drop(&c->core);
    return TIDE_OK;
}

tide__heap *tide__core_heap(tide__core *c, uint32_t pool, uint64_t size) {
    uint32_t k = TIDE__CLASSES - 1;
    while (size < c->tuning.classes[k].from_bytes) {
        k--;
    }
    return c->heaps[pool * TIDE__CLASSES + k];
}

uint64_t tide__core_window(const tide__core *c, const tide__heap *h) {
    uint64_t least = c->tuning.classes[h->size_class].from_bytes;
    least = tide__min(tide__max(least, TIDE__ALIGN_BYTES), TIDE__SMALL_BYTES);
    return UINT64_C(1) << tide__log2_floor(least);
}

/* ---- Streams ---- */

static size_t stream_slot(tide_stream handle) {
    uint64_t h = handle * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h >> 51); /* 13 bits: TIDE__STREAM_TABLE */
}

static tide__stream_cache *find_stream(tide__core *c, tide_stream handle) {
    size_t i = stream_slot(handle);
    for (size_t step = 0; step < TIDE__STREAM_TABLE; step++, i = (i + 1) % TIDE__STREAM_TABLE) {
        uint64_t key = atomic_load_explicit(&c->stream_table[i].handle, memory_order_acquire);
        if (key == handle + 1) {
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
        if (spent) {
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

/* Under `slow`, since epochs belong to it. */
static tide_status add_stream(tide__core *c, tide_stream handle, tide__stream_cache **out) {
    tide__stream_cache *s = NULL;
    if (handle >= UINT64_MAX - 1) { /* two values that the table keeps for itself */
        return tide__fail(TIDE_BAD_HANDLE, "stream %#llx is not a stream", (unsigned long long)handle);
    }
    tide_status status;
    if ((s = find_spent(c)) != NULL) {
        status = tide__epochs_reuse_stream(&c->epochs, handle, s->number);
        if (status == TIDE_OK) {
            s->handle = handle;
            enter_stream(c, handle, s);
            *out = s;
        }
        return status;
    }
    status = make_cache(handle, &s);
    if (status != TIDE_OK) {
        return status;
    }
    status = tide__epochs_add_stream(&c->epochs, handle, &s->number);
    if (status != TIDE_OK) {
        cache_close(s);
        return status;
    }
    atomic_store(&c->caches[s->number], s);
    atomic_store(&c->cache_count, s->number + 1U);
    enter_stream(c, handle, s);
    *out = s;
    return TIDE_OK;
}

tide_status tide__core_stream(tide__core *c, tide_stream handle, tide__stream_cache **out) {
    tide__stream_cache *s = find_stream(c, handle);
    if (TIDE__LIKELY(s != NULL)) {
        *out = s;
        return TIDE_OK;
    }
    pthread_mutex_lock(&c->slow);
    s = find_stream(c, handle);
    tide_status status = TIDE_OK;
    if (s != NULL) {
        *out = s;
    } else {
        status = add_stream(c, handle, out);
    }
    pthread_mutex_unlock(&c->slow);
    return status;
}

/* ---- Free blocks and holes; `core` is held ---- */

tide__extent *tide__core_extent(const tide__core *c, const tide__block *b) {
    tide__extent *x = tide__registry_find(c->registry, b->va);
    TIDE__CHECK(x != NULL);
    return x;
}

static tide__index *make_index(tide__heap *h, uint16_t stream) {
    size_t old = h->index_cap;
    if (!tide__grow((void **)&h->index, &h->index_cap, (size_t)stream + 1, sizeof(tide__index *))) {
        return NULL;
    }
    if (h->index_cap > old) {
        memset(h->index + old, 0, (h->index_cap - old) * sizeof(tide__index *));
    }
    h->index[stream] = calloc(1, sizeof(tide__index));
    return h->index[stream];
}

/* The index of (heap, stream); NULL where the host has no memory for one. */
static inline tide__index *index_of(tide__heap *h, uint16_t stream, bool make) {
    if (TIDE__LIKELY(stream < h->index_cap && h->index[stream] != NULL)) {
        return h->index[stream];
    }
    return make ? make_index(h, stream) : NULL;
}

bool tide__core_index_ready(tide__core *c, tide__heap *h, uint16_t stream) {
    return index_of(h, stream, true) != NULL;
}

void tide__core_remove_free(tide__core *c, tide__block *b) {
    tide__index_remove(index_of(c->heaps[b->heap], b->stream, false), b);
}

void tide__core_remove_hole(tide__core *c, tide__block *b) {
    tide__heap *h = c->heaps[b->heap];
    tide__list_remove(&h->holes, b);
    h->hole_count--;
}

/* The chunks under a block that a caller freed remember when. Its number stays in
 * the table of blocks: tide__core_find asks the record whether it is still so,
 * which saves a store that would miss the caches. */
static void note_freed(tide__core *c, const tide__block *b) {
    const tide__extent *x = tide__core_extent(c, b);
    for (uint64_t va = b->va; va < b->va + b->size;) {
        tide__chunk *k = &c->chunks.items[*tide__extent_chunk_slot(x, va)];
        k->epoch = tide__max(k->epoch, b->epoch);
        va = k->va + k->size;
    }
}

static bool is_free_of(const tide__block *b, uint16_t stream) {
    return b != NULL && tide__state_of(b) == TIDE__FREE && b->stream == stream;
}

tide__block *tide__core_put_free(tide__core *c, tide__block *b) {
    uint8_t was = tide__state_of(b);
    if (was == TIDE__CACHED || was == TIDE__AWAITING || was == TIDE__LIVE) {
        note_freed(c, b);
    }
    tide__block *before = b->prev, *after = b->next;
    if (is_free_of(before, b->stream)) {
        tide__core_remove_free(c, before);
        before->epoch = tide__max(before->epoch, b->epoch);
        tide__block_join(&c->blocks, before, b);
        b = before;
    }
    if (is_free_of(after, b->stream)) {
        tide__core_remove_free(c, after);
        b->epoch = tide__max(b->epoch, after->epoch);
        tide__block_join(&c->blocks, b, after);
    }
    tide__block_set(b, TIDE__FREE);
    tide__index_insert(index_of(c->heaps[b->heap], b->stream, false), b);
    return b;
}

void tide__core_put_hole(tide__core *c, tide__block *b) {
    if (b->prev != NULL && tide__state_of(b->prev) == TIDE__HOLE) {
        tide__block *before = b->prev;
        tide__core_remove_hole(c, before);
        tide__block_join(&c->blocks, before, b);
        b = before;
    }
    if (b->next != NULL && tide__state_of(b->next) == TIDE__HOLE) {
        tide__core_remove_hole(c, b->next);
        tide__block_join(&c->blocks, b, b->next);
    }
    tide__block_set(b, TIDE__HOLE);
    tide__heap *h = c->heaps[b->heap];
    tide__list_push(&h->holes, b);
    h->hole_count++;
}

/* The bytes of idle chunks that a block of `size` would pin at the front of free
 * block b, and at its end. Only the chunks at b's two ends can reach out of it,
 * and then they are pinned already. */
typedef struct pinned {
    uint64_t front, end;
} pinned;

static inline const tide__chunk *chunk_at(const tide__core *c, const tide__extent *x, uint64_t va) {
    return &c->chunks.items[*tide__extent_chunk_slot(x, va)];
}

static inline pinned pinned_by(const tide__core *c, const tide__block *b, uint64_t size) {
    const tide__extent *x = tide__core_extent(c, b);
    uint64_t end = b->va + b->size;
    const tide__chunk *first = chunk_at(c, x, b->va), *last = chunk_at(c, x, end - 1);
    uint64_t idle_from = first->va < b->va ? first->va + first->size : b->va;
    uint64_t idle_to = last->va + last->size > end ? last->va : end;
    const tide__chunk *after = chunk_at(c, x, b->va + size - 1), *before = chunk_at(c, x, end - size);
    uint64_t to = tide__min(after->va + after->size, idle_to), from = tide__max(before->va, idle_from);
    return (pinned){to > idle_from ? to - idle_from : 0, idle_to > from ? idle_to - from : 0};
}

static uint64_t least_pinned(const void *core, const tide__block *b, uint64_t size) {
    pinned p = pinned_by(core, b, size);
    return tide__min(p.front, p.end);
}

/* The end of b at which fewer are pinned; the front among equals. */
static bool end_pins_fewer(const tide__core *c, const tide__block *b, uint64_t size) {
    if (b->size == size || b->size < c->properties.granularity || size < TIDE__SMALL_BYTES) {
        return false;
    }
    pinned p = pinned_by(c, b, size);
    return p.end < p.front;
}

/* From this class on, chunks are large enough for the choice to matter more than its time. */
#define SCORED_CLASS 2
#define SCORED_BLOCKS 12

tide__block *tide__core_find_fit(const tide__core *c, const tide__heap *h, const tide__index *x,
                                 uint64_t size) {
    if (h->size_class < SCORED_CLASS) {
        return tide__index_find(x, size);
    }
    return tide__index_find_lowest(x, size, SCORED_BLOCKS, least_pinned, c);
}

tide__block *tide__core_carve(tide__core *c, tide__block *b, uint64_t size, uint16_t stream) {
    tide__extent *x = tide__core_extent(c, b);
    if (end_pins_fewer(c, b, size)) {
        tide__block *front = b;
        b = tide__block_cut(&c->blocks, front, front->size - size);
        tide__block_set(front, TIDE__FREE);
        tide__index_insert(index_of(c->heaps[b->heap], front->stream, false), front);
    } else if (b->size > size) {
        tide__block *rest = tide__block_cut(&c->blocks, b, size);
        tide__block_set(rest, TIDE__FREE);
        tide__index_insert(index_of(c->heaps[b->heap], rest->stream, false), rest);
    }
    b->stream = stream;
    b->marked = 0;
    tide__block_set(b, TIDE__LIVE);
    atomic_store_explicit(tide__extent_block_slot(x, b->va), tide__block_number(b), memory_order_release);
    return b;
}

bool tide__core_usable(tide__core *c, const tide__block *b, uint16_t stream) {
    if (b->stream == stream) {
        return true;
    }
    if (c->cross_stream == TIDE_CROSS_STREAM_OFF) {
        return b->stream == TIDE__STREAM_NONE;
    }
    return b->epoch <= tide__epochs_done(&c->epochs) ||
           (stream != TIDE__STREAM_NONE && b->epoch <= c->epochs.streams[stream]->waited);
}

/* Joins b with free usable blocks after it; the result is in the index of the
 * stream that still needs its epoch, if one does. */
static void gather_after(tide__core *c, tide__block *b, uint16_t stream) {
    tide__epoch done = tide__epochs_done(&c->epochs);
    /* Putting a join back may have joined it to a block before it that the stream may not use. */
    while (tide__core_usable(c, b, stream) && b->next != NULL && tide__state_of(b->next) == TIDE__FREE &&
           tide__core_usable(c, b->next, stream)) {
        tide__block *after = b->next;
        tide__core_remove_free(c, b);
        tide__core_remove_free(c, after);
        if (b->epoch > done && after->epoch > done) {
            b->stream = stream;
        } else if (after->epoch > done || (b->epoch <= done && after->size > b->size)) {
            b->stream = after->stream;
        }
        b->epoch = tide__max(b->epoch, after->epoch);
        tide__block_join(&c->blocks, b, after);
        b = tide__core_put_free(c, b);
    }
}

void tide__core_gather(tide__core *c, tide__heap *h, uint16_t stream) {
    if (c->cross_stream == TIDE_CROSS_STREAM_OFF || index_of(h, stream, true) == NULL) {
        return;
    }
    for (size_t s = 0; s < h->index_cap; s++) {
        tide__index *x = h->index[s];
        if (x == NULL || x->count == 0) {
            continue;
        }
        /* A join changes the lists under the walk: begin again after each; a
         * pass with none ends it, and each join leaves one block less. */
        for (bool joined = true; joined;) {
            joined = false;
            tide__index_cursor cursor;
            tide__block *b = tide__index_first(x, &cursor, TIDE__ALIGN_BYTES);
            for (; b != NULL; b = tide__index_next(x, &cursor, b)) {
                const tide__block *after = b->next;
                if (after != NULL && tide__state_of(after) == TIDE__FREE && tide__core_usable(c, b, stream) &&
                    tide__core_usable(c, after, stream)) {
                    gather_after(c, b, stream);
                    joined = true;
                    break;
                }
            }
        }
    }
}

/* ---- Alloc ---- */

static tide_status take_fit(tide__core *c, tide__heap *h, tide__stream_cache *s, uint64_t size,
                            tide__block **out) {
    tide_status status = TIDE_OK;
    *out = NULL;
    tide__lock_take(&c->core);
    if (size > TIDE__CACHE_MAX_BYTES && s->last != NULL) {
        tide__cache_send_last_locked(c, s); /* joined to its neighbours it may make room */
    }
    tide__index *x = index_of(h, s->number, true);
    if (x == NULL || !tide__blocks_reserve(&c->blocks, 2)) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for block records");
    } else {
        tide__block *b = tide__core_find_fit(c, h, x, size);
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

static tide_status alloc_slow(tide__core *c, tide__heap *h, tide__stream_cache *s, uint64_t size, uint64_t at,
                              tide__block **out) {
    uint64_t start = tide__monotonic_ns();
    pthread_mutex_lock(&c->slow);
    c->slow_allocs++;
    tide__core_flush_caches(c);
    tide_status status = tide__core_poll(c);
    tide__lock_take(&c->core); /* what the stream has of this heap must have an index to go back to */
    if (status == TIDE_OK && index_of(h, s->number, true) == NULL) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for an index");
    }
    tide__lock_drop(&c->core);
    if (status == TIDE_OK) {
        status = tide__core_back(c, h, s, size, at, out);
    }
    c->slow_ns += tide__monotonic_ns() - start;
    pthread_mutex_unlock(&c->slow);
    return status;
}

/* Under the cache's lock: the block is a caller's from here. */
static void hand_out(tide__core *c, tide__stream_cache *s, tide__block *b, uint64_t requested) {
    b->requested = requested;
    s->allocs++;
    tide__account(c, s, (int64_t)requested, (int64_t)b->size);
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
        b->marked = 0;
        s->hits++;
        hand_out(c, s, b, requested);
        tide__block_set(b, TIDE__LIVE);
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
        status = alloc_slow(c, h, s, size, at, out);
    }
    if (status == TIDE_OK) {
        tide__lock_take(&s->lock);
        hand_out(c, s, *out, requested);
        tide__lock_drop(&s->lock);
    }
    return status;
}

tide_status tide__core_alloc(tide__core *c, uint64_t requested, tide_stream stream, uint32_t pool,
                             uint64_t *va) {
    tide__stream_cache *s;
    tide__block *b;
    tide_status status = check_size(c, requested);
    if (TIDE__UNLIKELY(status != TIDE_OK || (status = tide__core_stream(c, stream, &s)) != TIDE_OK)) {
        return status;
    }
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
    return status == TIDE_OK ? alloc_slow_block(c, requested, s, pool, va, &b) : status;
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
    freed += atomic_fetch_add_explicit(&c->freed_since_cut, freed, memory_order_relaxed);
    uint64_t reserved = atomic_load_explicit(&c->chunks.reserved_bytes, memory_order_relaxed);
    if (freed >= tide__max(c->tuning.epoch_bytes, reserved / c->tuning.epoch_share) &&
        pthread_mutex_trylock(&c->slow) == 0) {
        tide__epochs_poll(&c->epochs); /* else the closed ones pile up where no slow path comes by */
        if (tide__epochs_cut(&c->epochs) == TIDE_OK) {
            atomic_store_explicit(&c->freed_since_cut, 0, memory_order_relaxed);
        }
        pthread_mutex_unlock(&c->slow);
    }
}

/* A block with recorded uses is nobody's before an epoch from now on is done. */
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
    tide__stream_cache *s = atomic_load_explicit(&c->caches[b->stream], memory_order_relaxed);
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
    if (TIDE__UNLIKELY(b->marked)) {
        put_awaiting(c, b);
    } else if (TIDE__LIKELY(b->heap < TIDE__CLASSES)) {
        tide__cache_put(c, s, b);
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
        b->marked = 1;
    }
    return status;
}
