/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core: one device's heaps and everything behind them.
 *
 * Files, as an allocation passes through them:
 *   alloc.c    the calls
 *   streams.c  which stream it is
 *   cache.c    a block of this very size that the stream freed: taken whole
 *   free.c     a free block with chunks behind it, split and coalesced
 *   backing.c  the slow path: an address range is chosen (place.c) and chunks
 *              are found (donors.c) for the part of it that has none
 *   retire.c   old mappings, chunks given back, trim
 *   shortage.c the steps before out of memory, oom.c what is said then
 *   capture.c  streams that are captured into graphs, and their pools
 * and pools.c heaps and their addresses, core.c opening and closing, inspect.c
 * statistics and the walk that checks the invariants.
 *
 * Locks, in the order in which they may be taken:
 *   1. slow    one slow path at a time; held across driver calls
 *   2. cache   of a stream; hits take only this
 *   3. core    blocks, indices, holes; never held across a driver call
 * The slow path plans under `core`, marks what it will use BUSY, calls the
 * driver under `slow` alone, then commits or puts back under `core`.
 */
#ifndef TIDE_CORE_H
#define TIDE_CORE_H

#include <pthread.h>

#include "base/lock.h"
#include "chunk/chunk.h"
#include "heap/index.h"
#include "heap/space.h"
#include "heap/trail.h"

/* A pool has a heap for each class of block sizes, so that a chunk is never
 * pinned by a block much smaller than itself: small blocks come and go by the
 * hundred thousand on chunks of the least size, and only the largest stand on
 * large chunks. Idle chunks go wherever they are needed. */
#define TIDE__CLASSES 4
#define TIDE__SMALL_BYTES TIDE__MIB

typedef struct tide__heap {
    uint16_t number; /* pool * TIDE__CLASSES + class */
    uint8_t size_class;
    bool live;
    _Atomic(bool)
        graph; /* a CUDA graph's: keeps its chunks, and its free blocks are their own stream's alone */
    uint16_t captures;          /* streams whose captures allocate here now */
    tide__epoch released_epoch; /* graph and not live: from when it is done on, the chunks are anybody's */
    tide__extent *extents;
    tide__index **index; /* by stream number; NULL where it has none */
    size_t index_cap;
    tide__block *holes;
    size_t hole_count;
} tide__heap;

#define TIDE__CACHE_MAX_BYTES TIDE__SMALL_BYTES
#define TIDE__CACHE_BOUND_BYTES (8 * TIDE__MIB)
#define TIDE__CACHE_BINS (TIDE__CACHE_MAX_BYTES / TIDE__ALIGN_BYTES + 1)
#define TIDE__CACHE_WORDS ((TIDE__CACHE_BINS + 63) / 64)

typedef struct tide__stream_cache {
    tide__lock lock;
    tide_stream handle;
    uint16_t number;
    tide__block **bins; /* by size / 512, up to TIDE__CACHE_MAX_BYTES */
    tide__block *last;  /* the last larger block freed: the next alloc of its size gets it whole */
    uint64_t bytes;     /* in bins */
    uint64_t filled[TIDE__CACHE_WORDS]; /* bit i: bin i has a block */
    /* Not yet in the core's totals: see tide__account. Written under the lock, read by anyone. */
    _Atomic(int64_t) allocated_delta, wasted_delta;
    _Atomic(uint64_t) transfers; /* of them to the totals: twice the number, odd during one */
    uint64_t allocs, frees, hits;
    tide__epoch last_free;          /* of its blocks */
    uint64_t freed_since_cut;       /* bytes not yet in the core's */
    _Atomic(uint32_t) capture_pool; /* where TIDE__POOL_ROUTED leads while the stream is captured; else 0 */
} tide__stream_cache;

/* For a pool's index: the capture's that the stream is in, else the default. */
#define TIDE__POOL_ROUTED UINT32_MAX

#define TIDE__STREAM_TABLE 8192 /* slots; twice TIDE__STREAM_MAX */

/* What the policy weighs: data, so that benchmarks can vary it. */
typedef struct tide__tuning {
    struct {
        uint64_t from_bytes;  /* blocks of at least this size */
        uint64_t chunk_bytes; /* stand on new chunks of this size */
    } classes[TIDE__CLASSES];
    uint64_t chunk_share;     /* no new chunk is larger than peak live / this ... */
    uint64_t chunk_floor;     /* ... or this, whichever is more */
    uint64_t slack_per_mille; /* reserved may pass peak live by so much before anything dear is done */
    uint64_t slack_bytes;
    uint64_t most_per_mille,
        most_bytes;       /* ... and by this rather than pin a chunk much larger than what is missing */
    uint64_t epoch_bytes; /* an epoch is cut after so many bytes were freed ... */
    uint64_t epoch_share; /* ... or reserved / this, whichever is more */
} tide__tuning;

extern const tide__tuning tide__tuning_default;

typedef struct tide__core {
    tide__device *device;
    int gpu;
    tide__device_properties properties;
    tide_cross_stream cross_stream;
    tide__tuning tuning;
    tide__registry *registry; /* the allocator's */
    void *owner;
    bool (*on_shortage)(void *owner, int gpu,
                        uint64_t bytes); /* true: something was freed. Called without locks */
    uint64_t oom_wait_ns;

    pthread_mutex_t slow;
    tide__epochs epochs;
    tide__chunks chunks;
    uint64_t address_bytes;
    tide__block *retiring; /* list */
    uint64_t retiring_bytes;
    uint64_t slow_allocs, slow_ns, ooms;
    uint64_t peak_live_window; /* highest live bytes since the last trim */
    struct tide__plan *plan;   /* the slow path's working memory */
    tide__trail trail;

    tide__lock core;
    tide__blocks blocks;
    tide__heap *heaps[UINT16_MAX];
    uint16_t heap_count;
    tide__block *awaiting; /* list */
    uint64_t awaiting_bytes;
    tide__epoch capture_epoch; /* while there are captures: what was freed from here on awaits their end */
    unsigned draining;         /* pools released, whose graphs may still run */
    bool no_moves, no_unmaps;  /* switches to find a fault with; never change */
    _Atomic(uint64_t) freed_since_cut;

    /* Written under the cache locks, in steps: see tide__account. */
    _Atomic(int64_t) allocated_bytes, wasted_bytes; /* requested is the one less the other */
    _Atomic(int64_t) account_freed; /* so many bytes may a stream have freed and not counted yet */
    _Atomic(int64_t) peak_requested, peak_allocated;

    struct {                      /* written under `slow`, read without a lock */
        _Atomic(uint64_t) handle; /* + 1; 0 is empty */
        tide__stream_cache *_Atomic cache;
    } stream_table[TIDE__STREAM_TABLE];
    tide__stream_cache *_Atomic caches[TIDE__STREAM_MAX]; /* by stream number */
    _Atomic(uint32_t) cache_count;
} tide__core;

typedef struct tide__core_options {
    tide__device *device;
    int gpu;
    tide_cross_stream cross_stream;
    uint64_t limit_bytes;
    tide__registry *registry;
    const tide__tuning *tuning; /* NULL: the default */
    void *owner;                /* of on_shortage, which may be NULL */
    bool (*on_shortage)(void *owner, int gpu, uint64_t bytes);
    bool no_moves;        /* a chunk is never mapped at a second address */
    bool no_unmaps;       /* nothing is unmapped before close: old mappings stand, nothing is given back */
    uint64_t oom_wait_ns; /* the host waits no longer than this before it says out of memory */
} tide__core_options;

tide_status tide__core_open(const tide__core_options *options, tide__core **out);
void tide__core_close(tide__core *c);

/* ---- The calls behind the public ones; pool is an index, 0 the default ---- */
tide_status tide__core_alloc(tide__core *c, uint64_t requested, tide_stream stream, uint32_t pool,
                             uint64_t *va);
tide_status tide__core_alloc_at(tide__core *c, uint64_t requested, tide_stream stream, uint32_t pool,
                                uint64_t va);
/* The live block at va, or NULL. */
tide__block *tide__core_find(tide__core *c, const tide__extent *x, uint64_t va);
tide_status tide__core_free(tide__core *c, const tide__extent *x, uint64_t va);
tide_status tide__core_record_stream(tide__core *c, tide__block *b, tide_stream stream);
tide_status tide__core_trim(tide__core *c, uint64_t bytes, uint64_t wait_ns, tide_trim_result *result);
/* destroy: the device destroys the stream too; where that fails it is not retired. */
tide_status tide__core_retire_stream(tide__core *c, tide_stream stream, bool destroy);
tide_status tide__core_add_pool(tide__core *c, uint32_t pool);
tide_status tide__core_release_pool(tide__core *c, uint32_t pool);
/* False while a pool of this number was released and its graphs may still run. */
bool tide__core_pool_is_free(tide__core *c, uint32_t pool);
tide_status tide__core_capture_begin(tide__core *c, tide_stream stream, uint32_t pool);
tide_status tide__core_capture_end(tide__core *c, tide_stream stream);
tide_status tide__core_share(tide__core *c, int peer);
void tide__core_limit(tide__core *c, uint64_t limit_bytes, uint64_t margin_bytes);
void tide__core_limits(tide__core *c, uint64_t *limit_bytes, uint64_t *margin_bytes);
void tide__core_stats(tide__core *c, tide_stats *out);
/* The same, and peaks start anew from what is held now. */
void tide__core_take_peaks(tide__core *c, tide_stats *out);
/* After the device's loss: prints the trail, once. */
void tide__core_tell_trail(tide__core *c);

/* Walks everything and checks I1 to I5 of docs/invariants.md; aborts where one
 * does not hold. For tests: takes all locks. */
void tide__core_validate(tide__core *c);

/* ---- Between the files of this room ---- */

/* Under `slow`: released graphs' pools whose last replays are done give their chunks to all. */
void tide__core_drain_pools(tide__core *c);
/* Enlarges the heap by an extent that holds at least `size`. Under `slow`. */
tide_status tide__core_add_extent(tide__core *c, tide__heap *h, uint64_t size);
/* Unmaps and unreserves all that the heap has. */
void tide__heap_close(tide__core *c, tide__heap *h);
void tide__stream_close(tide__stream_cache *s);

/* The stream's cache, made if this is the first time it is seen. */
tide_status tide__core_stream(tide__core *c, tide_stream handle, tide__stream_cache **out);
/* NULL if it is not known, or is retired. */
tide__stream_cache *tide__core_known_stream(tide__core *c, tide_stream handle);

/* A block of exactly `size` from the stream's cache; NULL if there is none.
 * The cache's lock is held. */
tide__block *tide__cache_take(tide__stream_cache *s, uint64_t size);
/* Keeps a freed block, or gives blocks back to the core to make room. */
void tide__cache_put(tide__core *c, tide__stream_cache *s, tide__block *b);
/* Everything the cache keeps goes back to the core. Takes its lock. */
void tide__cache_flush(tide__core *c, tide__stream_cache *s);
/* The last larger block alone. The cache's lock is held. */
void tide__cache_send_last(tide__core *c, tide__stream_cache *s);
/* The same where there is one and `core` is held too. */
void tide__cache_send_last_locked(tide__core *c, tide__stream_cache *s);
void tide__core_flush_caches(tide__core *c);

/* Adds to what callers hold; peaks are kept exact for one stream at a time.
 * The cache's lock is held. */
void tide__account(tide__core *c, tide__stream_cache *s, int64_t requested, int64_t allocated);
/* Brings a stream's uncounted steps into the totals. The cache's lock is held. */
void tide__account_settle(tide__core *c, tide__stream_cache *s);
/* There are so many streams now. Under `slow`. */
void tide__account_streams(tide__core *c, uint32_t streams);
/* The peaks, of what is held now too; the second starts them anew from there, and
 * raises those in *out to what they were. All streams are settled. */
void tide__account_take_peaks(tide__core *c, tide_stats *out);
void tide__account_restart_peaks(tide__core *c, tide_stats *out);

/* Under `core`: the free block of the index that fits `size` best: the tightest,
 * for large blocks the one whose taking pins the fewest idle bytes. NULL if none. */
tide__block *tide__core_find_fit(const tide__core *c, const tide__heap *h, const tide__index *x,
                                 uint64_t size);
/* Under `core`: a free block, out of its index, becomes a live one of `size` at
 * the end that pins fewer chunks anew; the rest stays free. */
tide__block *tide__core_carve(tide__core *c, tide__block *b, uint64_t size, uint16_t stream);
/* Under `core`: free neighbours that the stream may both use become one, so
 * that chunks which lie across them can be had. */
void tide__core_gather(tide__core *c, tide__heap *h, uint16_t stream);
/* Under `core`: a block in no list, its stream and epoch set, becomes FREE and
 * joins its free neighbours of the same stream. */
tide__block *tide__core_put_free(tide__core *c, tide__block *b);
/* The same for HOLE: joins neighbouring holes. */
void tide__core_put_hole(tide__core *c, tide__block *b);
/* Under `core`: all free blocks of a heap of at least about `least` bytes, each stream's
 * the largest first. The next one is asked for before a block leaves its list. */
typedef struct tide__free_walk {
    size_t stream;
    uint64_t least;
    tide__index_cursor cursor;
} tide__free_walk;
tide__block *tide__free_first(const tide__heap *h, uint64_t least, tide__free_walk *w);
tide__block *tide__free_next(const tide__heap *h, tide__free_walk *w, const tide__block *b);

void tide__core_remove_free(tide__core *c, tide__block *b);
void tide__core_remove_hole(tide__core *c, tide__block *b);
tide__extent *tide__core_extent(const tide__core *c, const tide__block *b);
void tide__list_push(tide__block **head, tide__block *b);
void tide__list_remove(tide__block **head, tide__block *b);
/* May work queued now on this stream use the bytes of this FREE block? */
bool tide__core_usable(tide__core *c, const tide__block *b, uint16_t stream);
/* The index of (heap, stream), which makes sure that blocks of the stream can be
 * put into the heap's lists; NULL where the host has no memory for one. */
tide__index *tide__core_make_index(tide__heap *h, uint16_t stream);
static inline tide__index *tide__core_index(tide__heap *h, uint16_t stream) {
    if (TIDE__LIKELY(stream < h->index_cap && h->index[stream] != NULL)) {
        return h->index[stream];
    }
    return tide__core_make_index(h, stream);
}
tide__heap *tide__core_heap(tide__core *c, uint32_t pool, uint64_t size);
/* Are the heap's free blocks for this stream now? A graph's are for its captures
 * alone: a replay may be writing to them. */
static inline bool tide__core_serves(const tide__heap *h, const tide__stream_cache *s) {
    return TIDE__LIKELY(!atomic_load_explicit(&h->graph, memory_order_relaxed)) ||
           atomic_load_explicit(&s->capture_pool, memory_order_relaxed) == h->number / TIDE__CLASSES;
}
/* No block of the heap is smaller; a power of two from 512 to TIDE__SMALL_BYTES. */
uint64_t tide__core_window(const tide__core *c, const tide__heap *h);

/* Under `slow`, and no other lock: a live block of `size`, chunks found. With
 * at != 0 exactly there. */
tide_status tide__core_back(tide__core *c, tide__heap *heap, tide__stream_cache *s, uint64_t size,
                            uint64_t at, tide__block **out);

/* Under `slow`: asks the epochs, takes away old mappings whose epoch is done,
 * frees awaiting blocks. Failures leave things as they were, to be tried again. */
tide_status tide__core_poll(tide__core *c);
/* The same for those to whom an old mapping that stays is a failure. */
tide_status tide__core_poll_strictly(tide__core *c);
/* Under `slow`: the earliest epoch not done that would make freed bytes idle; 0 if none would. */
tide__epoch tide__core_earliest_pending(tide__core *c);
/* Under `slow`: gives idle chunks back until `bytes` are or there are no more. */
tide_status tide__core_release_idle(tide__core *c, uint64_t bytes, uint64_t *released);
/* Under `slow`: adds up the free bytes that stay after a trim, by why. */
void tide__core_count_free(tide__core *c, tide_trim_result *r);
/* Under `slow`, chunks of BUSY block `b` (wholly filled by chunks) are unmapped and
 * given back; it becomes a HOLE. On failure what is left is put back. */
tide_status tide__core_give_back(tide__core *c, tide__block *b, uint64_t *released);

uint64_t tide__core_live_bytes(tide__core *c);
void tide__plan_free(struct tide__plan *p);

#endif
