/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_heap: PyTorch's caching allocator as a model, decision for decision.
 *
 * Shared by both of its kinds: pools of small and of large blocks, best fit by
 * (stream, size, address), splitting, merging with neighbours, retries,
 * garbage collection. What differs is where a pool gets more bytes from, and
 * that is the backend: torch_native.c takes a segment from cudaMalloc,
 * torch_expandable.c maps pages behind reserved addresses.
 *
 *     heap -> pool (default, or a private one) x {small, large} -> arena (a stream's)
 *     segment:  [block][block][block]   by prev and next; free ones are in the arena's index
 *
 * Invariants: two free neighbours of one segment (both mapped, or both not)
 * are one block; a block is in its arena's index exactly when it is mapped and
 * not used; `reserved` is the sum of what the driver gave.
 *
 * Addresses are numbers that nothing is behind. They are the driver's where a
 * recorded run tells them (hints), else the device's own.
 */
#ifndef TIDE_REPLAY_TORCH_HEAP_H
#define TIDE_REPLAY_TORCH_HEAP_H

#include "device/device.h"
#include "replay/free_index.h"
#include "replay/torch_settings.h"

typedef struct tide__torch_heap tide__torch_heap;
typedef struct tide__torch_arena tide__torch_arena;
typedef struct tide__torch_block tide__torch_block;

typedef struct tide__torch_segment {
    uint64_t base, size;        /* as the model tells them */
    uint64_t device_va;         /* as the device has them */
    tide__chunk_handle *chunks; /* expandable: by page, 0 where none is mapped */
    uint64_t page;              /* expandable */
    struct tide__torch_segment *next_all, *prev_all;
} tide__torch_segment;

struct tide__torch_block {
    tide__free_node node; /* size and address; first, so that a node is its block */
    tide__torch_block *prev, *next;
    tide__torch_segment *segment;
    tide__torch_arena *arena;
    tide__torch_block *ring_prev, *ring_next; /* of pending blocks while used, of whole ones while free */
    uint64_t born;  /* of garbage collection: the pool's count of searches when it became free */
    uint32_t owner; /* the schedule's block, while used */
    uint8_t used;   /* allocated, or freed with bytes still in use elsewhere (pending) */
    uint8_t pending;
    uint8_t whole; /* in its pool's ring of whole free blocks */
    uint8_t mapped;
};

/* One stream's part of one pool. */
struct tide__torch_arena {
    tide__free_index free;
    tide__torch_block **unmapped; /* expandable: by address */
    size_t unmapped_count, unmapped_cap;
    struct tide__torch_pool *pool;
    tide__torch_arena *next_touched;
    bool touched; /* since the last release of the pool a block became free here */
    uint16_t stream;
};

typedef struct tide__torch_pool {
    tide__torch_arena **arenas; /* by stream; NULL until used */
    tide__torch_block whole;    /* head of the ring of free blocks that are whole segments */
    uint64_t whole_count;
    tide__torch_arena *touched; /* by next_touched */
    uint64_t searches;
    bool is_small;
    bool no_split; /* a torch.cuda.MemPool's: what is larger than asked for is given whole */
} tide__torch_pool;

typedef struct tide__torch_backend {
    bool expandable;
    /* Gets a block of at least size (rounded), in no index, for the arena.
     * TIDE_LIMIT or TIDE_NO_DEVICE_MEMORY: the driver would have refused. */
    tide_status (*obtain)(tide__torch_heap *h, tide__torch_arena *a, uint64_t size, tide__torch_block **out);
    /* Gives back all that is free in the pool. */
    tide_status (*release)(tide__torch_heap *h, tide__torch_pool *p);
} tide__torch_backend;

extern const tide__torch_backend tide__torch_native, tide__torch_expandable;

struct tide__torch_heap {
    const tide__torch_backend *backend;
    const tide__torch_settings *settings;
    tide__device *device;  /* GPU 0 of it is charged; not owned */
    uint64_t limit;        /* as set_per_process_memory_fraction; 0: none */
    uint64_t device_bytes; /* expandable segments reserve 9/8 of it */
    uint64_t reserved, peak;
    uint64_t hint;           /* the address that the driver chose next, where it is known; else 0 */
    tide__torch_pool *pools; /* 2 a pool: large, small */
    size_t pool_count, stream_count;
    tide__torch_segment *segments;
    tide__torch_segment *windows; /* expandable: reserved addresses of segments that are gone, by next_all */
    tide__torch_block pending;    /* head of the ring of pending blocks */
    tide__torch_block *spare;     /* by next */
    struct tide__torch_slab *slabs;
    void (*forget)(void *user, uint32_t owner); /* a pending block was completed by a retry */
    void *forget_user;
};

/* pools and streams: how many there are. */
tide_status tide__torch_heap_init(tide__torch_heap *h, const tide__torch_backend *backend,
                                  const tide__torch_settings *settings, tide__device *device, size_t pools,
                                  size_t streams);
void tide__torch_heap_fini(tide__torch_heap *h); /* calls no driver */

/* TIDE_LIMIT or TIDE_NO_DEVICE_MEMORY: out of memory, after all that PyTorch tries. */
tide_status tide__torch_heap_alloc(tide__torch_heap *h, uint64_t size, uint16_t stream, uint16_t pool,
                                   tide__torch_block **out);
/* The caller let go, but bytes may be in use elsewhere until tide__torch_heap_free. */
void tide__torch_heap_free_requested(tide__torch_heap *h, tide__torch_block *b);
void tide__torch_heap_free(tide__torch_heap *h, tide__torch_block *b);
/* empty_cache: all that is free in one pool. */
tide_status tide__torch_heap_release(tide__torch_heap *h, uint16_t pool);
/* As retries do: completes what is pending, then releases the default pool. */
tide_status tide__torch_heap_release_cached(tide__torch_heap *h);
/* Whether an allocation would find no block and be refused a new one by the limit. */
bool tide__torch_heap_would_retry(tide__torch_heap *h, uint64_t size, uint16_t stream, uint16_t pool);

/* The releases that a recorded run tells only by their number of segments:
 * garbage collection (as many rounds as free `count`), and the oversize blocks
 * that an allocation makes room with (max_split_size). `freed` is how many. */
tide_status tide__torch_heap_collect(tide__torch_heap *h, uint64_t count, uint64_t *freed);
tide_status tide__torch_heap_release_available(tide__torch_heap *h, uint64_t size, uint16_t stream,
                                               uint16_t pool, uint64_t *freed);
/* How many segments a release of the pool would free. */
uint64_t tide__torch_heap_releasable(const tide__torch_heap *h, uint16_t pool);

/* ---- For the backends ---- */

tide__torch_block *tide__torch_block_new(tide__torch_heap *h, tide__torch_arena *a, tide__torch_segment *s,
                                         uint64_t addr, uint64_t size);
void tide__torch_block_delete(tide__torch_heap *h, tide__torch_block *b);
void tide__torch_segment_list(tide__torch_heap *h, tide__torch_segment *s);
void tide__torch_segment_unlist(tide__torch_heap *h, tide__torch_segment *s);
tide__torch_segment *tide__torch_segment_new(tide__torch_heap *h, uint64_t base, uint64_t size);
void tide__torch_segment_delete(tide__torch_heap *h, tide__torch_segment *s);
tide__torch_arena *tide__torch_arena_get(tide__torch_heap *h, uint16_t pool, bool is_small, uint16_t stream);
void tide__torch_index_add(tide__torch_block *b);
void tide__torch_index_remove(tide__torch_block *b);
/* Takes the neighbour `from` into b where it is free and as mapped as b; b is in no index. */
void tide__torch_merge(tide__torch_heap *h, tide__torch_block *b, tide__torch_block *from);
/* Puts a new block before or after an existing one of the same segment. */
void tide__torch_link(tide__torch_block *b, tide__torch_block *prev, tide__torch_block *next);
void tide__torch_unmapped_add(tide__torch_arena *a, tide__torch_block *b); /* room was made before */
bool tide__torch_unmapped_room(tide__torch_arena *a, size_t more);
void tide__torch_unmapped_remove(tide__torch_arena *a, tide__torch_block *b);
void tide__torch_reserved_add(tide__torch_heap *h, uint64_t bytes);
/* Gives one whole native segment back; b is in its arena's index. */
tide_status tide__torch_native_release_block(tide__torch_heap *h, tide__torch_block *b);
/* Puts pages behind [addr, addr + size) of an expandable segment, which begins and ends on pages. */
tide_status tide__torch_map_pages(tide__torch_heap *h, tide__torch_segment *s, uint64_t page, uint64_t addr,
                                  uint64_t size);
/* Reserves addresses for an expandable segment, which is told to lie where the device has it. */
tide_status tide__torch_window_new(tide__torch_heap *h, uint64_t page, uint64_t size,
                                   tide__torch_segment **out);
/* The addresses that an expandable segment reserves: 9/8 of the device, or what is needed. */
uint64_t tide__torch_window_size(const tide__torch_heap *h, uint64_t page, uint64_t need);

static inline bool tide__torch_is_whole(const tide__torch_block *b) {
    return b->prev == NULL && b->next == NULL;
}
static inline tide__torch_block *tide__torch_of_node(tide__free_node *n) { return (tide__torch_block *)n; }

#endif
