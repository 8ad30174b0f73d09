/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_heap: the part of PyTorch's caching allocator that its two kinds share.
 *
 * An allocation looks for the best fit in its stream's index, else obtains new
 * bytes from the backend, in the order that PyTorch tries: (garbage
 * collection,) new, oversize blocks given back and new again, everything free
 * given back and new again, out of memory. Cost per call: a few steps of one
 * treap; blocks come from slabs and are used again.
 */
#include <stdlib.h>

#include "replay/torch_heap.h"

#define SLAB_BLOCKS 1024

typedef struct tide__torch_slab {
    struct tide__torch_slab *next;
    tide__torch_block blocks[SLAB_BLOCKS];
} tide__torch_slab;

/* ---- Life ---- */

tide_status tide__torch_heap_init(tide__torch_heap *h, const tide__torch_backend *backend,
                                  const tide__torch_settings *settings, tide__device *device, size_t pools,
                                  size_t streams) {
    *h = (tide__torch_heap){
        .backend = backend,
        .settings = settings,
        .device = device,
        .device_bytes = TIDE__SIM_H200_BYTES,
        .pool_count = pools,
        .stream_count = streams,
    };
    h->pending.ring_next = h->pending.ring_prev = &h->pending;
    h->pools = calloc(pools * 2, sizeof *h->pools);
    if (h->pools == NULL)
        return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model's pools");
    for (size_t i = 0; i < pools * 2; i++) {
        tide__torch_pool *p = &h->pools[i];
        p->is_small = i & 1;
        p->whole.ring_next = p->whole.ring_prev = &p->whole;
    }
    return TIDE_OK;
}

static void pool_fini(tide__torch_pool *p, size_t streams) {
    for (size_t i = 0; p->arenas != NULL && i < streams; i++) {
        if (p->arenas[i] != NULL) free(p->arenas[i]->unmapped);
        free(p->arenas[i]);
    }
    free(p->arenas);
}

void tide__torch_heap_fini(tide__torch_heap *h) {
    for (size_t i = 0; h->pools != NULL && i < h->pool_count * 2; i++)
        pool_fini(&h->pools[i], h->stream_count);
    free(h->pools);
    while (h->windows != NULL) {
        tide__torch_segment *s = h->windows;
        h->windows = s->next_all;
        tide__torch_segment_list(h, s);
    }
    for (tide__torch_segment *s = h->segments, *next; s != NULL; s = next) {
        next = s->next_all;
        free(s->chunks);
        free(s);
    }
    while (h->slabs != NULL) {
        tide__torch_slab *slab = h->slabs;
        h->slabs = slab->next;
        free(slab);
    }
    *h = (tide__torch_heap){0};
}

/* ---- Parts ---- */

tide__torch_arena *tide__torch_arena_get(tide__torch_heap *h, uint16_t pool, bool is_small, uint16_t stream) {
    if (pool >= h->pool_count || stream >= h->stream_count) return NULL;
    tide__torch_pool *p = &h->pools[pool * 2 + is_small];
    if (p->arenas == NULL && (p->arenas = calloc(h->stream_count, sizeof(tide__torch_arena *))) == NULL)
        return NULL;
    tide__torch_arena *a = p->arenas[stream];
    if (TIDE__UNLIKELY(a == NULL)) {
        a = calloc(1, sizeof *a);
        if (a == NULL) return NULL;
        a->pool = p;
        a->stream = stream;
        p->arenas[stream] = a;
    }
    return a;
}

static bool add_slab(tide__torch_heap *h) {
    tide__torch_slab *slab = malloc(sizeof *slab);
    if (slab == NULL) return false;
    slab->next = h->slabs;
    h->slabs = slab;
    for (size_t i = SLAB_BLOCKS; i-- > 0;) {
        slab->blocks[i].next = h->spare;
        h->spare = &slab->blocks[i];
    }
    return true;
}

tide__torch_block *tide__torch_block_new(tide__torch_heap *h, tide__torch_arena *a, tide__torch_segment *s,
                                         uint64_t addr, uint64_t size) {
    if (h->spare == NULL && !add_slab(h)) return NULL;
    tide__torch_block *b = h->spare;
    h->spare = b->next;
    *b = (tide__torch_block){.node = {.size = size, .addr = addr}, .arena = a, .segment = s, .mapped = 1};
    return b;
}

void tide__torch_block_delete(tide__torch_heap *h, tide__torch_block *b) {
    b->next = h->spare;
    h->spare = b;
}

void tide__torch_segment_list(tide__torch_heap *h, tide__torch_segment *s) {
    s->prev_all = NULL;
    s->next_all = h->segments;
    if (h->segments != NULL) h->segments->prev_all = s;
    h->segments = s;
}

void tide__torch_segment_unlist(tide__torch_heap *h, tide__torch_segment *s) {
    if (s->prev_all != NULL)
        s->prev_all->next_all = s->next_all;
    else
        h->segments = s->next_all;
    if (s->next_all != NULL) s->next_all->prev_all = s->prev_all;
}

tide__torch_segment *tide__torch_segment_new(tide__torch_heap *h, uint64_t base, uint64_t size) {
    tide__torch_segment *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->base = base;
    s->size = size;
    tide__torch_segment_list(h, s);
    return s;
}

void tide__torch_segment_delete(tide__torch_heap *h, tide__torch_segment *s) {
    tide__torch_segment_unlist(h, s);
    free(s->chunks);
    free(s);
}

void tide__torch_link(tide__torch_block *b, tide__torch_block *prev, tide__torch_block *next) {
    b->prev = prev;
    b->next = next;
    if (prev != NULL) prev->next = b;
    if (next != NULL) next->prev = b;
}

void tide__torch_reserved_add(tide__torch_heap *h, uint64_t bytes) {
    h->reserved += bytes;
    if (h->reserved > h->peak) h->peak = h->reserved;
}

/* ---- Free blocks ---- */

static void ring_add(tide__torch_block *head, tide__torch_block *b) {
    b->ring_prev = head->ring_prev;
    b->ring_next = head;
    b->ring_prev->ring_next = b;
    head->ring_prev = b;
}

static void ring_remove(tide__torch_block *b) {
    b->ring_prev->ring_next = b->ring_next;
    b->ring_next->ring_prev = b->ring_prev;
}

void tide__torch_index_add(tide__torch_block *b) {
    TIDE__ASSERT(!b->used && b->mapped);
    tide__torch_arena *a = b->arena;
    b->born = a->pool->searches;
    tide__free_index_add(&a->free, &b->node);
    b->whole = tide__torch_is_whole(b);
    if (b->whole) {
        ring_add(&a->pool->whole, b);
        a->pool->whole_count++;
    }
    if (!a->touched) {
        a->touched = true;
        a->next_touched = a->pool->touched;
        a->pool->touched = a;
    }
}

void tide__torch_index_remove(tide__torch_block *b) {
    tide__free_index_remove(&b->arena->free, &b->node);
    if (b->whole) {
        ring_remove(b);
        b->arena->pool->whole_count--;
        b->whole = 0;
    }
}

/* Blocks without pages are few: a sorted array will do. */
static size_t unmapped_position(const tide__torch_arena *a, uint64_t addr) {
    size_t low = 0, high = a->unmapped_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (a->unmapped[mid]->node.addr < addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

bool tide__torch_unmapped_room(tide__torch_arena *a, size_t more) {
    return tide__grow((void **)&a->unmapped, &a->unmapped_cap, a->unmapped_count + more, sizeof *a->unmapped);
}

void tide__torch_unmapped_add(tide__torch_arena *a, tide__torch_block *b) {
    TIDE__CHECK(a->unmapped_count < a->unmapped_cap);
    size_t at = unmapped_position(a, b->node.addr);
    for (size_t i = a->unmapped_count++; i > at; i--) a->unmapped[i] = a->unmapped[i - 1];
    a->unmapped[at] = b;
}

void tide__torch_unmapped_remove(tide__torch_arena *a, tide__torch_block *b) {
    size_t at = unmapped_position(a, b->node.addr);
    while (at < a->unmapped_count && a->unmapped[at] != b) at++;
    TIDE__CHECK(at < a->unmapped_count);
    a->unmapped_count--;
    for (; at < a->unmapped_count; at++) a->unmapped[at] = a->unmapped[at + 1];
}

void tide__torch_merge(tide__torch_heap *h, tide__torch_block *b, tide__torch_block *from) {
    if (from == NULL || from->used || from->mapped != b->mapped) return;
    if (from->mapped)
        tide__torch_index_remove(from);
    else
        tide__torch_unmapped_remove(from->arena, from);
    if (b->prev == from) {
        b->node.addr = from->node.addr;
        b->prev = from->prev;
        if (b->prev != NULL) b->prev->next = b;
    } else {
        b->next = from->next;
        if (b->next != NULL) b->next->prev = b;
    }
    b->node.size += from->node.size;
    tide__torch_block_delete(h, from);
}

/* ---- Finding ---- */

/* What an expandable block could grow to: its pages and the addresses without pages behind it. */
static uint64_t growable_size(const tide__torch_block *b) {
    return b->node.size + (b->next != NULL && !b->next->mapped ? b->next->node.size : 0);
}

/* The best fit: of expandable blocks that fit, the next larger as long as that one could grow to less. */
static tide__torch_block *find_free(const tide__torch_heap *h, tide__torch_arena *a, uint64_t size) {
    tide__free_node *n = tide__free_index_at_least(&a->free, size, 0);
    if (n == NULL) return NULL;
    if (h->backend->expandable) {
        for (tide__free_node *next = tide__free_index_next(&a->free, n);
             next != NULL && growable_size(tide__torch_of_node(next)) < growable_size(tide__torch_of_node(n));
             next = tide__free_index_next(&a->free, n))
            n = next;
    }
    uint64_t oversize = h->settings->max_split_size;
    if (size < oversize && n->size >= oversize) return NULL;
    if (size >= oversize && n->size >= size + h->settings->max_non_split_rounding) return NULL;
    return tide__torch_of_node(n);
}

static bool should_split(const tide__torch_heap *h, const tide__torch_block *b, uint64_t size) {
    uint64_t rest = b->node.size - size;
    if (b->arena->pool->no_split) return false;
    if (b->arena->pool->is_small || h->backend->expandable) return rest >= TIDE__TORCH_MIN_BLOCK;
    return size < h->settings->max_split_size && rest > TIDE__TORCH_SMALL_SIZE;
}

/* ---- Giving back ---- */

static bool is_out_of_memory(tide_status status) {
    return status == TIDE_NO_DEVICE_MEMORY || status == TIDE_LIMIT;
}

tide_status tide__torch_heap_release(tide__torch_heap *h, uint16_t pool) {
    if (pool >= h->pool_count) return TIDE_OK;
    tide_status status = h->backend->release(h, &h->pools[pool * 2]);
    return status != TIDE_OK ? status : h->backend->release(h, &h->pools[pool * 2 + 1]);
}

tide_status tide__torch_heap_release_cached(tide__torch_heap *h) {
    while (h->pending.ring_next != &h->pending) {
        tide__torch_block *b = h->pending.ring_next;
        uint32_t owner = b->owner;
        tide__torch_heap_free(h, b);
        if (h->forget != NULL) h->forget(h->forget_user, owner);
    }
    return tide__torch_heap_release(h, 0);
}

uint64_t tide__torch_heap_releasable(const tide__torch_heap *h, uint16_t pool) {
    return pool < h->pool_count ? h->pools[pool * 2].whole_count + h->pools[pool * 2 + 1].whole_count : 0;
}

/* One stream's oversize blocks, the smallest that will do, else from the largest down until enough. */
static tide_status release_available(tide__torch_heap *h, tide__torch_arena *a, uint64_t size, bool *enough,
                                     uint64_t *freed) {
    uint64_t oversize = h->settings->max_split_size;
    *enough = false;
    *freed = 0;
    if (oversize == UINT64_MAX || h->backend->expandable) return TIDE_OK;
    uint64_t want = tide__max(size, oversize), total = 0;
    tide__free_node *n = tide__free_index_at_least(&a->free, want, 0);
    if (n == NULL) n = tide__free_index_last(&a->free);
    while (n != NULL && total < want && n->size >= oversize && tide__torch_is_whole(tide__torch_of_node(n))) {
        tide__free_node *smaller = tide__free_index_before(&a->free, n->size, n->addr);
        total += n->size;
        tide_status status = tide__torch_native_release_block(h, tide__torch_of_node(n));
        if (status != TIDE_OK) return status;
        ++*freed;
        n = smaller;
    }
    *enough = total >= want;
    return TIDE_OK;
}

tide_status tide__torch_heap_release_available(tide__torch_heap *h, uint64_t size, uint16_t stream,
                                               uint16_t pool, uint64_t *freed) {
    uint64_t rounded = tide__torch_round(h->settings, size);
    tide__torch_arena *a = tide__torch_arena_get(h, pool, rounded <= TIDE__TORCH_SMALL_SIZE, stream);
    bool enough;
    if (a == NULL) return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model's arena");
    return release_available(h, a, rounded, &enough, freed);
}

/* ---- Garbage collection: whole free segments of the default pool's large blocks, the long unused first ----
 */

typedef struct gc_state {
    tide__torch_pool *pool;
    uint64_t total_age, blocks; /* of those that could be freed */
    uint64_t freed, freed_bytes;
} gc_state;

static uint64_t age(const tide__torch_block *b) { return b->arena->pool->searches - b->born; }

static void gc_begin(tide__torch_heap *h, gc_state *g) {
    *g = (gc_state){.pool = &h->pools[0]};
    for (tide__torch_block *b = g->pool->whole.ring_next; b != &g->pool->whole; b = b->ring_next) {
        g->total_age += age(b);
        g->blocks++;
    }
}

/* What is at least of average age, as the round begins. */
static tide_status gc_round(tide__torch_heap *h, gc_state *g) {
    double threshold = (double)g->total_age / (double)g->blocks;
    for (tide__torch_block *b = g->pool->whole.ring_next, *next; b != &g->pool->whole; b = next) {
        next = b->ring_next;
        if ((double)age(b) < threshold) continue;
        g->freed++;
        g->freed_bytes += b->node.size;
        g->total_age -= age(b);
        g->blocks--;
        tide_status status = tide__torch_native_release_block(h, b);
        if (status != TIDE_OK) return status;
    }
    return TIDE_OK;
}

/* Until `bytes` are given back or, for a recorded run, `count` segments. */
static tide_status collect(tide__torch_heap *h, uint64_t bytes, uint64_t count, uint64_t *freed) {
    gc_state g;
    uint64_t before = UINT64_MAX;
    gc_begin(h, &g);
    while (g.freed_bytes < bytes && g.freed < count && g.blocks > 0 && g.freed != before) {
        before = g.freed;
        tide_status status = gc_round(h, &g);
        if (status != TIDE_OK) return status;
    }
    *freed = g.freed;
    return TIDE_OK;
}

tide_status tide__torch_heap_collect(tide__torch_heap *h, uint64_t count, uint64_t *freed) {
    *freed = 0;
    return h->backend->expandable ? TIDE_OK : collect(h, UINT64_MAX, count, freed);
}

static tide_status collect_by_limit(tide__torch_heap *h) {
    uint64_t allowed = (uint64_t)(h->settings->gc_threshold * (double)h->limit), freed;
    if (h->backend->expandable || h->reserved <= allowed) return TIDE_OK;
    return collect(h, h->reserved - allowed, UINT64_MAX, &freed);
}

/* ---- Allocating ---- */

static tide_status obtain(tide__torch_heap *h, tide__torch_arena *a, uint64_t size, tide__torch_block **out) {
    uint64_t segment = tide__torch_segment_size(h->settings, size);
    if (h->limit != 0 && (segment > h->limit || h->reserved > h->limit - segment))
        return tide__fail(TIDE_LIMIT, "replay: a segment of %llu bytes: %llu of %llu are reserved",
                          (unsigned long long)segment, (unsigned long long)h->reserved,
                          (unsigned long long)h->limit);
    return h->backend->obtain(h, a, size, out);
}

/* Nothing that is free fits: new bytes, making room as PyTorch does. */
static tide_status grow(tide__torch_heap *h, tide__torch_arena *a, uint64_t size, tide__torch_block **out) {
    tide_status status = TIDE_OK;
    if (h->limit != 0 && h->settings->gc_threshold > 0) status = collect_by_limit(h);
    if (status != TIDE_OK) return status;
    status = obtain(h, a, size, out);
    if (!is_out_of_memory(status)) return status;
    bool enough;
    uint64_t freed;
    tide_status released = release_available(h, a, size, &enough, &freed);
    if (released != TIDE_OK) return released;
    if (enough) status = obtain(h, a, size, out);
    if (!is_out_of_memory(status)) return status;
    released = tide__torch_heap_release_cached(h);
    return released != TIDE_OK ? released : obtain(h, a, size, out);
}

/* The front of b becomes a used block, the rest stays free. */
static tide__torch_block *split(tide__torch_heap *h, tide__torch_block *rest, uint64_t size) {
    tide__torch_block *b = tide__torch_block_new(h, rest->arena, rest->segment, rest->node.addr, size);
    if (b == NULL) return NULL;
    tide__torch_link(b, rest->prev, rest);
    rest->node.addr += size;
    rest->node.size -= size;
    return b;
}

tide_status tide__torch_heap_alloc(tide__torch_heap *h, uint64_t size, uint16_t stream, uint16_t pool,
                                   tide__torch_block **out) {
    uint64_t rounded = tide__torch_round(h->settings, size);
    tide__torch_arena *a = tide__torch_arena_get(h, pool, rounded <= TIDE__TORCH_SMALL_SIZE, stream);
    if (a == NULL) return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model's arena");
    a->pool->searches++;
    tide__torch_block *b = find_free(h, a, rounded);
    if (b != NULL) {
        tide__torch_index_remove(b);
    } else {
        tide_status status = grow(h, a, rounded, &b);
        if (status != TIDE_OK) return status;
    }
    if (should_split(h, b, rounded)) {
        tide__torch_block *front = split(h, b, rounded);
        tide__torch_index_add(b);
        if (front == NULL)
            return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model's block");
        b = front;
    }
    b->used = 1;
    *out = b;
    return TIDE_OK;
}

bool tide__torch_heap_would_retry(tide__torch_heap *h, uint64_t size, uint16_t stream, uint16_t pool) {
    uint64_t rounded = tide__torch_round(h->settings, size);
    uint64_t segment = tide__torch_segment_size(h->settings, rounded);
    tide__torch_arena *a = tide__torch_arena_get(h, pool, rounded <= TIDE__TORCH_SMALL_SIZE, stream);
    if (a == NULL || h->limit == 0 || find_free(h, a, rounded) != NULL) return false;
    if (h->settings->gc_threshold > 0 && (double)h->reserved > h->settings->gc_threshold * (double)h->limit)
        return true;
    return segment > h->limit || h->reserved > h->limit - segment;
}

/* ---- Freeing ---- */

void tide__torch_heap_free_requested(tide__torch_heap *h, tide__torch_block *b) {
    if (b->pending) return;
    b->pending = 1;
    ring_add(&h->pending, b);
}

void tide__torch_heap_free(tide__torch_heap *h, tide__torch_block *b) {
    TIDE__ASSERT(b->used);
    if (b->pending) ring_remove(b);
    b->used = b->pending = 0;
    tide__torch_merge(h, b, b->prev);
    tide__torch_merge(h, b, b->next);
    tide__torch_index_add(b);
}
