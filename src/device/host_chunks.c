/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's bytes: chunks.
 *
 * Each GPU has one memfd, much longer than its capacity and sparse. A chunk is
 * a range of it, found first fit among the holes, so that released bytes are
 * taken again soon (which is where wrong programs show). When a chunk is
 * released and its last mapping gone, its pages are punched out: what is
 * resident is what was touched and still stands.
 *
 * Bound: the file has 64 times the capacity in offsets. First fit needs at most
 * about log2(largest / smallest chunk) times what is live, so a chunk that the
 * capacity allows always finds a hole.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/host_internal.h"

#define OFFSETS_PER_CAPACITY 64

/* ---- The memfd and its offsets ---- */

bool tide__host_chunks_open(tide__host_pages *p, int gpu, uint64_t capacity_bytes, uint64_t granularity) {
    p->capacity_bytes = capacity_bytes;
    p->granularity = granularity;
    p->chunks = (tide__host_table){.kind = TIDE__HOST_CHUNK, .gpu = gpu};
    p->fd = memfd_create("pagetide-host", MFD_CLOEXEC);
    if (p->fd < 0) {
        return false;
    }
    uint64_t length = capacity_bytes * OFFSETS_PER_CAPACITY;
    if (ftruncate(p->fd, (off_t)length) != 0 ||
        !tide__grow((void **)&p->holes, &p->hole_capacity, 1, sizeof *p->holes)) {
        tide__host_chunks_close(p);
        return false;
    }
    p->holes[0] = (tide__host_hole){0, length};
    p->hole_count = 1;
    return true;
}

/* Nothing may be mapped any more. */
void tide__host_chunks_close(tide__host_pages *p) {
    for (size_t i = 0; i < p->chunks.count; i++) {
        free(p->chunks.slots[i].object);
    }
    free(p->chunks.slots);
    free(p->holes);
    if (p->fd >= 0) {
        close(p->fd);
    }
    p->fd = -1;
}

/* First fit. Never fails where the capacity allows: see the head. */
static uint64_t take_offset(tide__host_pages *p, uint64_t size) {
    for (size_t i = 0; i < p->hole_count; i++) {
        tide__host_hole *h = &p->holes[i];
        if (h->size < size) {
            continue;
        }
        uint64_t offset = h->offset;
        h->offset += size;
        h->size -= size;
        if (h->size == 0) {
            memmove(h, h + 1, (--p->hole_count - i) * sizeof *h);
        }
        return offset;
    }
    TIDE__CHECK(!"the memfd has a hole for every chunk that the capacity allows");
    return 0;
}

/* Puts a range back among the holes, joined with its neighbours. There is room
 * for one more: chunk_create made it, since n chunks leave at most n + 1 holes. */
static void give_offset(tide__host_pages *p, uint64_t offset, uint64_t size) {
    size_t lo = 0, hi = p->hole_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (p->holes[mid].offset < offset) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    tide__host_hole *h = p->holes;
    TIDE__CHECK(lo == 0 || h[lo - 1].offset + h[lo - 1].size <= offset);
    TIDE__CHECK(lo == p->hole_count || offset + size <= h[lo].offset);
    bool with_left = lo > 0 && h[lo - 1].offset + h[lo - 1].size == offset;
    bool with_right = lo < p->hole_count && offset + size == h[lo].offset;
    if (with_left && with_right) {
        h[lo - 1].size += size + h[lo].size;
        memmove(h + lo, h + lo + 1, (--p->hole_count - lo) * sizeof *h);
    } else if (with_left) {
        h[lo - 1].size += size;
    } else if (with_right) {
        h[lo] = (tide__host_hole){offset, h[lo].size + size};
    } else {
        TIDE__CHECK(p->hole_count < p->hole_capacity);
        memmove(h + lo + 1, h + lo, (p->hole_count++ - lo) * sizeof *h);
        h[lo] = (tide__host_hole){offset, size};
    }
}

/* ---- Chunks ---- */

tide_status tide__host_chunk_create(tide__host_gpu *g, uint64_t size, tide__chunk_handle *out) {
    tide__host_pages *p = &g->pages;
    tide_status status = tide__host_check_range(p, "chunk_create", 0, size);
    if (status != TIDE_OK) {
        return status;
    }
    if (size > p->capacity_bytes - p->used_bytes) {
        return tide__fail(TIDE_NO_DEVICE_MEMORY,
                          "host chunk_create: %" PRIu64 " bytes wanted, %" PRIu64 " of %" PRIu64
                          " free on GPU %d",
                          size, p->capacity_bytes - p->used_bytes, p->capacity_bytes, g->index);
    }
    tide__host_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk || !tide__grow((void **)&p->holes, &p->hole_capacity, p->chunk_count + 2, sizeof *p->holes) ||
        (chunk->handle = tide__host_table_add(&p->chunks, chunk)) == 0) {
        free(chunk);
        return tide__fail(TIDE_NO_HOST_MEMORY, "host chunk_create: the host is out of memory for a handle");
    }
    chunk->offset = take_offset(p, size);
    chunk->size = size;
    p->chunk_count++;
    p->used_bytes += size;
    *out = chunk->handle;
    return TIDE_OK;
}

/* The last reference is gone: the pages go back to the host. */
void tide__host_chunk_free(tide__host_pages *p, tide__host_chunk *chunk) {
    TIDE__CHECK(chunk->released && chunk->mappings == 0);
    TIDE__CHECK(p->used_bytes >= chunk->size && p->chunk_count > 0);
    /* Failing here costs pages until the offset is used again, nothing else. */
    while (fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)chunk->offset,
                     (off_t)chunk->size) != 0 &&
           errno == EINTR) {
        ;
    }
    give_offset(p, chunk->offset, chunk->size);
    p->used_bytes -= chunk->size;
    p->chunk_count--;
    free(chunk);
}

tide_status tide__host_chunk_release(tide__host_gpu *g, tide__chunk_handle handle) {
    tide__host_chunk *chunk = tide__host_table_get(&g->pages.chunks, handle);
    if (!chunk) {
        return tide__fail(TIDE_BAD_HANDLE,
                          "host chunk_release: 0x%" PRIx64
                          " is not a chunk of GPU %d, or was released before",
                          handle, g->index);
    }
    tide__host_table_remove(&g->pages.chunks, handle);
    chunk->released = true;
    if (chunk->mappings == 0) {
        tide__host_chunk_free(&g->pages, chunk);
    }
    return TIDE_OK;
}

uint64_t tide__host_resident_bytes(tide__device *d, int gpu) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return 0;
    }
    struct stat st;
    uint64_t bytes = fstat(g->pages.fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    tide__host_leave(g);
    return bytes;
}
