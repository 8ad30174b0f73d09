/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block: the records of one device's address ranges.
 *
 * A heap's extents are cut into blocks without gaps; neighbours are linked by
 * address. What a block is:
 *
 *   LIVE      a caller has it
 *   CACHED    a caller freed it; its stream's cache keeps it whole
 *   FREE      chunks behind all of it; in the index of (heap, stream)
 *   HOLE      no chunk behind any of it; granule-aligned; in the heap's list of holes
 *   RETIRING  its chunks have moved away; old mappings stand until `epoch` is done
 *   BUSY      the slow path is working on it: nobody else may touch or merge it
 *   AWAITING  freed, but streams it was recorded on must pass `epoch` first
 *
 *   | LIVE | FREE | LIVE | HOLE        | FREE | RETIRING | HOLE ...
 *   0      512    ...    2 MiB-aligned
 *
 * Records are 64 bytes, in pages of 2 MiB aligned to their size, so that a
 * record's 32-bit number follows from its address and back; pages never move
 * and live until the device is closed, so a record may be read without a lock
 * by whoever holds its block.
 */
#ifndef TIDE_BLOCK_H
#define TIDE_BLOCK_H

#include <stdatomic.h>

#include "chunk/epoch.h"

typedef enum tide__heap_block_state {
    TIDE__UNUSED = 0,
    TIDE__LIVE,
    TIDE__CACHED,
    TIDE__FREE,
    TIDE__HOLE,
    TIDE__RETIRING,
    TIDE__BUSY,
    TIDE__AWAITING,
} tide__heap_block_state;

typedef struct tide__block tide__block;
struct tide__block {
    uint64_t va, size;
    tide__block *prev, *next; /* neighbours by address; NULL at an extent's ends */
    union {
        struct {
            tide__block *list_prev,
                *list_next; /* FREE, HOLE, CACHED, RETIRING, AWAITING: the list it is in */
        };
        uint64_t requested; /* LIVE: what the caller asked for */
    };
    tide__epoch epoch; /* FREE, RETIRING, AWAITING: of the last free over it */
    union {
        uint16_t stream; /* LIVE, CACHED, FREE: whose it is; TIDE__STREAM_NONE: anybody's once idle */
        uint32_t chunk;  /* RETIRING: whose old mapping it is */
    };
    uint16_t heap; /* of the device */
    _Atomic(uint8_t) state;
    _Atomic(uint8_t) marked; /* LIVE: uses on other streams were recorded. BUSY: a move fills it */
};
_Static_assert(sizeof(tide__block) == 64, "records share cache lines otherwise");

#define TIDE__BLOCK_PAGE_BYTES ((size_t)2 << 20)
#define TIDE__BLOCKS_PER_PAGE (TIDE__BLOCK_PAGE_BYTES / sizeof(tide__block))
#define TIDE__BLOCK_PAGES_MAX 8192

typedef struct tide__blocks {
    tide__block *pages[TIDE__BLOCK_PAGES_MAX]; /* entry 0 of a page is its header: `size` is its number */
    size_t page_count;
    tide__block *unused; /* list by list_next */
    size_t unused_count;
} tide__blocks;

void tide__blocks_close(tide__blocks *b);

/* Makes sure that `count` records can be taken without failing. */
bool tide__blocks_reserve(tide__blocks *b, size_t count) __attribute__((warn_unused_result));

/* Takes a record; room was reserved. */
tide__block *tide__blocks_take(tide__blocks *b);
void tide__blocks_give(tide__blocks *b, tide__block *block);

static inline uint32_t tide__block_number(const tide__block *block) {
    uintptr_t page = (uintptr_t)block & ~(uintptr_t)(TIDE__BLOCK_PAGE_BYTES - 1);
    uint64_t page_number = ((const tide__block *)page)->size;
    return (uint32_t)(page_number * TIDE__BLOCKS_PER_PAGE + ((uintptr_t)block - page) / sizeof *block);
}

static inline tide__block *tide__block_at(const tide__blocks *b, uint32_t number) {
    return &b->pages[number / TIDE__BLOCKS_PER_PAGE][number % TIDE__BLOCKS_PER_PAGE];
}

static inline uint8_t tide__state_of(const tide__block *b) {
    return atomic_load_explicit(&b->state, memory_order_relaxed);
}
static inline void tide__block_set(tide__block *b, tide__heap_block_state state) {
    atomic_store_explicit(&b->state, (uint8_t)state, memory_order_relaxed);
}

static inline bool tide__block_marked(const tide__block *b) {
    return atomic_load_explicit(&b->marked, memory_order_relaxed) != 0;
}
static inline void tide__block_mark(tide__block *b, bool marked) {
    atomic_store_explicit(&b->marked, marked, memory_order_relaxed);
}

/* Cuts a block in two at `size` bytes and returns the second part, with the
 * same stream, epoch, heap and state, in no list. Takes one record. */
tide__block *tide__block_cut(tide__blocks *b, tide__block *block, uint64_t size);

/* The same, but the block keeps its record as the second part; returns the first. */
tide__block *tide__block_cut_front(tide__blocks *b, tide__block *block, uint64_t size);

/* Appends `second`, the block after `first`, to it and gives its record back. */
void tide__block_join(tide__blocks *b, tide__block *first, tide__block *second);

#endif
