/* SPDX-License-Identifier: Apache-2.0 */
/* Extents and the registry: see space.h. */
#include "heap/space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *map_table(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static uint64_t chunk_table_bytes(const tide__extent *x) {
    return (x->size >> x->granule_shift) * sizeof *x->chunk_of;
}
static uint64_t block_table_bytes(const tide__extent *x) {
    return (x->size >> x->window_shift) * sizeof *x->block_of;
}

/* A million small blocks come and go at random, and the walk through page tables
 * would cost as much as the load. A table that never fills a huge page stays as it is. */
#define HUGE_TABLE_BYTES (64 * TIDE__MIB)

tide_status tide__extent_create(uint64_t va, uint64_t size, uint64_t granularity, uint64_t window,
                                tide__extent **out) {
    tide__extent *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for an extent's record");
    }
    x->va = va;
    x->size = size;
    x->granule_shift = (uint32_t)tide__log2_floor(granularity);
    x->window_shift = (uint32_t)tide__log2_floor(window);
    x->chunk_of = map_table(chunk_table_bytes(x));
    x->block_of = map_table(block_table_bytes(x));
    if (x->chunk_of == NULL || x->block_of == NULL) {
        tide_status status =
            tide__fail(TIDE_NO_HOST_MEMORY, "no host addresses for the tables of an extent of %llu bytes: %s",
                       (unsigned long long)size, strerror(errno));
        tide__extent_destroy(x);
        return status;
    }
    if (block_table_bytes(x) >= HUGE_TABLE_BYTES) {
        madvise((void *)x->block_of, block_table_bytes(x), MADV_HUGEPAGE); /* refused, it is slower */
    }
    *out = x;
    return TIDE_OK;
}

void tide__extent_destroy(tide__extent *x) {
    if (x == NULL) {
        return;
    }
    if (x->chunk_of != NULL) {
        munmap(x->chunk_of, chunk_table_bytes(x));
    }
    if (x->block_of != NULL) {
        munmap((void *)x->block_of, block_table_bytes(x));
    }
    free(x);
}

void tide__registry_add(tide__registry *r, tide__extent *x) {
    uint64_t first = x->va >> TIDE__REGISTRY_SHIFT, last = (x->va + x->size - 1) >> TIDE__REGISTRY_SHIFT;
    bool alone = last < TIDE__REGISTRY_ENTRIES;
    for (uint64_t i = first; i <= last && i < TIDE__REGISTRY_ENTRIES; i++) {
        tide__extent *none = NULL;
        if (!atomic_compare_exchange_strong(&r->entries[i], &none, x)) {
            alone = false;
        }
    }
    if (!alone) {
        tide__extent *head = atomic_load(&r->overflow);
        do {
            atomic_store(&x->chained, head);
        } while (!atomic_compare_exchange_weak(&r->overflow, &head, x));
    }
}

void tide__registry_remove(tide__registry *r, tide__extent *x) {
    for (size_t i = 0; i < TIDE__REGISTRY_ENTRIES; i++) {
        if (atomic_load(&r->entries[i]) == x) {
            atomic_store(&r->entries[i], NULL);
        }
    }
    for (tide__extent *_Atomic *at = &r->overflow; atomic_load(at) != NULL; at = &atomic_load(at)->chained) {
        if (atomic_load(at) == x) {
            atomic_store(at, atomic_load(&x->chained));
            return;
        }
    }
}

tide__extent *tide__registry_find_slow(const tide__registry *r, uint64_t va) {
    tide__extent *x = atomic_load_explicit(&r->overflow, memory_order_acquire);
    while (x != NULL && !tide__extent_has(x, va)) {
        x = atomic_load_explicit(&x->chained, memory_order_acquire);
    }
    return x;
}
