/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk records: see chunk.h. Spare chunks are few (what failed calls leave),
 * so their list is searched from its head. */
#include "chunk/chunk.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static const size_t table_bytes = TIDE__CHUNKS_MAX * sizeof(tide__chunk);

tide_status tide__chunks_open(tide__chunks *c, tide__device *device, int gpu, uint64_t limit_bytes) {
    memset(c, 0, sizeof *c);
    void *table =
        mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host addresses for the table of chunks: %s",
                          strerror(errno));
    }
    c->items = table;
    c->device = device;
    c->gpu = gpu;
    c->limit_bytes = limit_bytes;
    c->count = 1;
    return TIDE_OK;
}

void tide__chunks_close(tide__chunks *c) {
    for (size_t i = 1; i < c->count; i++) {
        if (c->items[i].live) {
            c->device->ops->chunk_release(c->device, c->gpu, c->items[i].handle);
        }
    }
    if (c->items != NULL) {
        munmap(c->items, table_bytes);
    }
    memset(c, 0, sizeof *c);
}

static tide_status take_record(tide__chunks *c, uint32_t *out) {
    if (c->unused != 0) {
        *out = c->unused;
        return TIDE_OK;
    }
    if (c->count >= TIDE__CHUNKS_MAX) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "more than %u chunks on one device", TIDE__CHUNKS_MAX - 1);
    }
    *out = (uint32_t)c->count;
    return TIDE_OK;
}

void tide__chunks_set_limits(tide__chunks *c, uint64_t limit_bytes, uint64_t margin_bytes) {
    c->limit_bytes = limit_bytes;
    c->margin_bytes = margin_bytes;
    c->held_before = atomic_load(&c->reserved_bytes);
}

/* The driver is asked for its free bytes only where a margin is to be left. */
static tide_status check_limits(tide__chunks *c, uint64_t size) {
    uint64_t reserved = atomic_load(&c->reserved_bytes), free_bytes, total_bytes;
    if (c->limit_bytes != 0 && (size > c->limit_bytes || reserved > c->limit_bytes - size)) {
        return tide__fail(TIDE_LIMIT, "a chunk of %llu bytes would pass the limit of %llu: %llu are reserved",
                          (unsigned long long)size, (unsigned long long)c->limit_bytes,
                          (unsigned long long)reserved);
    }
    if (c->margin_bytes == 0) {
        return TIDE_OK;
    }
    tide_status status = c->device->ops->mem_info(c->device, c->gpu, &free_bytes, &total_bytes);
    if (status == TIDE_OK && (size > free_bytes || free_bytes - size < c->margin_bytes)) {
        status = tide__fail(TIDE_LIMIT,
                            "a chunk of %llu bytes would leave less than the margin of %llu to others: "
                            "%llu are free",
                            (unsigned long long)size, (unsigned long long)c->margin_bytes,
                            (unsigned long long)free_bytes);
    }
    return status;
}

tide_status tide__chunks_create(tide__chunks *c, uint64_t size, uint32_t *out) {
    uint32_t index;
    tide_status status = check_limits(c, size);
    if (status == TIDE_OK) {
        status = take_record(c, &index);
    }
    if (status != TIDE_OK) {
        return status;
    }
    tide__chunk_handle handle;
    status = c->device->ops->chunk_create(c->device, c->gpu, size, &handle);
    if (status != TIDE_OK) {
        return status;
    }
    if (index == c->unused) {
        c->unused = c->items[index].next;
    } else {
        c->count++;
    }
    c->items[index] = (tide__chunk){.handle = handle, .size = size, .live = true};
    tide__chunks_set_spare(c, index);
    uint64_t now = atomic_fetch_add(&c->reserved_bytes, size) + size;
    if (now > atomic_load(&c->peak_reserved_bytes)) {
        atomic_store(&c->peak_reserved_bytes, now);
    }
    c->held++;
    c->created++;
    *out = index;
    return TIDE_OK;
}

tide_status tide__chunks_release(tide__chunks *c, uint32_t index) {
    tide__chunk *k = &c->items[index];
    TIDE__CHECK(k->live && k->va == 0 && k->aliases == 0);
    tide_status status = c->device->ops->chunk_release(c->device, c->gpu, k->handle);
    if (status != TIDE_OK) {
        return status;
    }
    TIDE__CHECK(tide__chunks_unspare(c, index));
    atomic_fetch_sub(&c->reserved_bytes, k->size);
    c->held--;
    c->released++;
    *k = (tide__chunk){.next = c->unused};
    c->unused = index;
    return TIDE_OK;
}

tide_status tide__chunks_release_spares(tide__chunks *c, uint64_t bytes, uint64_t *released) {
    tide_status first = TIDE_OK;
    for (uint32_t i = c->spare, next; i != 0 && *released < bytes; i = next) {
        uint64_t size = c->items[i].size;
        next = c->items[i].next;
        if (c->items[i].aliases > 0) { /* a mapping of it could not be taken away yet */
            continue;
        }
        tide_status status = tide__chunks_release(c, i);
        if (status == TIDE_OK) {
            *released += size;
        } else if (first == TIDE_OK) {
            first = status;
        }
    }
    return first;
}

tide_status tide__chunks_share(tide__chunks *c, int peer) {
    const tide__device_ops *ops = c->device->ops;
    tide_status status = ops->peer_enable(c->device, c->gpu, peer);
    for (size_t i = 1; status == TIDE_OK && i < c->count; i++) {
        const tide__chunk *k = &c->items[i];
        if (k->live && k->va != 0) {
            status = ops->set_access(c->device, c->gpu, k->va, k->size);
        }
    }
    return status;
}

tide_status tide__chunks_map(tide__chunks *c, uint32_t index, uint64_t va, bool *stuck) {
    const tide__device_ops *ops = c->device->ops;
    const tide__chunk *k = &c->items[index];
    *stuck = false;
    tide_status status = ops->map(c->device, c->gpu, va, k->size, k->handle);
    if (status != TIDE_OK) {
        return status;
    }
    status = ops->set_access(c->device, c->gpu, va, k->size);
    if (status == TIDE_OK) {
        return TIDE_OK;
    }
    char reason[512]; /* the undoing may fail too: the first failure is the one to tell */
    strncpy(reason, tide_last_error(), sizeof reason - 1);
    reason[sizeof reason - 1] = '\0';
    if (ops->unmap(c->device, c->gpu, va, k->size) != TIDE_OK) {
        *stuck = true;
    }
    return tide__fail(status, "%s", reason);
}

void tide__chunks_set_spare(tide__chunks *c, uint32_t index) {
    tide__chunk *k = &c->items[index];
    TIDE__CHECK(k->live);
    k->va = 0;
    k->next = c->spare;
    c->spare = index;
}

bool tide__chunks_unspare(tide__chunks *c, uint32_t index) {
    for (uint32_t *at = &c->spare; *at != 0; at = &c->items[*at].next) {
        if (*at == index) {
            *at = c->items[index].next;
            c->items[index].next = 0;
            return true;
        }
    }
    return false;
}

uint32_t tide__chunks_find_spare(const tide__chunks *c, uint64_t max_bytes) {
    uint32_t best = 0;
    for (uint32_t i = c->spare; i != 0; i = c->items[i].next) {
        const tide__chunk *k = &c->items[i];
        if (k->aliases == 0 && k->size <= max_bytes && (best == 0 || k->size > c->items[best].size)) {
            best = i;
        }
    }
    return best;
}
