/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space: a heap's addresses, reserved in extents.
 *
 * An extent knows, for each granule, the chunk behind it, and for each window
 * of addresses the live block that begins there, so that free() finds its block
 * in two loads and without a lock. A window is no larger than the least block
 * of the extent's heap, so no two live blocks begin in one. Both tables are
 * mapped lazily by the system: what is not used costs nothing.
 *
 * The registry finds the extent of any address by its upper bits. It is read
 * without a lock: extents are only ever added, their tables stay until close.
 */
#ifndef TIDE_SPACE_H
#define TIDE_SPACE_H

#include "heap/block.h"

#define TIDE__ALIGN_BYTES 512
#define TIDE__REGISTRY_SHIFT 36 /* 64 GiB an entry */
#define TIDE__REGISTRY_ENTRIES (1 << (48 - TIDE__REGISTRY_SHIFT))

typedef struct tide__extent tide__extent;
struct tide__extent {
    uint64_t va, size;
    uint32_t granule_shift, window_shift;
    _Atomic(uint16_t) heap; /* changes where a released pool's addresses are given to another */
    void *core;             /* the tide__core it belongs to */
    uint32_t *chunk_of;     /* by granule: index into the chunks, 0 is none */
    _Atomic(uint32_t)
        *block_of; /* by window: number of the block that begins, or once began, there; 0 is none */
    tide__block *first;
    tide__extent *next;            /* of the space */
    tide__extent *_Atomic chained; /* of the registry's overflow list */
};

typedef struct tide__registry {
    tide__extent *_Atomic entries[TIDE__REGISTRY_ENTRIES];
    tide__extent *_Atomic overflow; /* extents that share an entry or lie beyond, few */
} tide__registry;

/* Makes the tables of an extent; the addresses are reserved already. A window
 * is a power of two. */
tide_status tide__extent_create(uint64_t va, uint64_t size, uint64_t granularity, uint64_t window,
                                tide__extent **out);
void tide__extent_destroy(tide__extent *x);

void tide__registry_add(tide__registry *r, tide__extent *x);
void tide__registry_remove(tide__registry *r, tide__extent *x);

static inline bool tide__extent_has(const tide__extent *x, uint64_t va) { return va - x->va < x->size; }

tide__extent *tide__registry_find_slow(const tide__registry *r, uint64_t va);

static inline tide__extent *tide__registry_find(const tide__registry *r, uint64_t va) {
    if (TIDE__LIKELY(va >> 48 == 0)) {
        tide__extent *x = atomic_load_explicit(&r->entries[va >> TIDE__REGISTRY_SHIFT], memory_order_acquire);
        if (TIDE__LIKELY(x != NULL && tide__extent_has(x, va))) {
            return x;
        }
    }
    return tide__registry_find_slow(r, va);
}

static inline _Atomic(uint32_t) *tide__extent_block_slot(const tide__extent *x, uint64_t va) {
    return &x->block_of[(va - x->va) >> x->window_shift];
}

static inline uint32_t *tide__extent_chunk_slot(const tide__extent *x, uint64_t va) {
    return &x->chunk_of[(va - x->va) >> x->granule_shift];
}

#endif
