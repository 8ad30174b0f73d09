/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's addresses: reservations, and chunks mapped into them.
 *
 * A reservation is PROT_NONE memory of real addresses. Mapping puts a chunk's
 * pages over it, shared and still PROT_NONE; set_access makes them accessible;
 * unmapping puts PROT_NONE memory back, so that a use after it is a fault.
 *
 * Bound: the kernel allows a process vm.max_map_count areas (65,530 by
 * default) of one kind of memory each. The device counts its own, joined where
 * the kernel joins them, and refuses to map while a sixteenth is left: at the
 * limit itself even unmapping and malloc fail.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/host_internal.h"

static bool is_aligned(const tide__host_pages *p, uint64_t v) { return (v & (p->granularity - 1)) == 0; }

/* A range of addresses or a size that chunk calls accept. */
tide_status tide__host_check_range(const tide__host_pages *p, const char *call, uint64_t va, uint64_t size) {
    if (size == 0 || !is_aligned(p, va) || !is_aligned(p, size) || va + size < va) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host %s: [0x%" PRIx64 ", +%" PRIu64
                          ") is empty or not a multiple of the granularity, %" PRIu64,
                          call, va, size, p->granularity);
    }
    return TIDE_OK;
}

static tide_status fail_mmap(tide_status status, const char *call, uint64_t va, uint64_t size) {
    return tide__fail(status, "host %s [0x%" PRIx64 ", +%" PRIu64 "): %s", call, va, size, strerror(errno));
}

/* ---- Areas: what the kernel counts against vm.max_map_count ---- */

/* Of all devices of the process; upper bounds where reservations adjoin. */
static _Atomic size_t areas_in_process;

static size_t read_area_limit(void) {
    unsigned long long limit = 65530;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (f) {
        if (fscanf(f, "%llu", &limit) != 1) {
            limit = 65530;
        }
        fclose(f);
    }
    return (size_t)(limit - limit / 16);
}

static void count_areas(tide__host_pages *p, int change) {
    TIDE__CHECK(change >= 0 || p->areas >= (size_t)-change);
    p->areas += (size_t)(ptrdiff_t)change;
    atomic_fetch_add(&areas_in_process, (size_t)(ptrdiff_t)change);
}

/* How many areas more there are with a mapping between these two neighbours
 * (NULL: none) of a reservation than without it. */
static int areas_of_mapping(const tide__host_reservation *r, const tide__host_mapping *prev,
                            const tide__host_mapping *next, uint64_t va, const tide__host_chunk *chunk) {
    uint64_t end = va + chunk->size, from = r->va, to = r->va + r->size;
    bool joins_prev = false, joins_next = false;
    if (prev && prev->va + prev->size > from) {
        from = prev->va + prev->size;
        joins_prev = from == va && prev->chunk->offset + prev->size == chunk->offset;
    }
    if (next && next->va < to) {
        to = next->va;
        joins_next = to == end && chunk->offset + chunk->size == next->chunk->offset;
    }
    TIDE__CHECK(from <= va && end <= to);
    return (from < va) + (end < to) - joins_prev - joins_next;
}

/* ---- Open and close ---- */

bool tide__host_pages_open(tide__host_pages *p, int gpu, uint64_t capacity_bytes, uint64_t granularity) {
    *p = (tide__host_pages){.fd = -1, .next_mapping_id = 1, .area_limit = read_area_limit()};
    return tide__host_chunks_open(p, gpu, capacity_bytes, granularity);
}

/* All of it, mapped or not. */
void tide__host_pages_close(tide__host_pages *p) {
    for (size_t i = 0; i < p->mapping_count; i++) {
        tide__host_mapping *m = p->mappings[i];
        if (--m->chunk->mappings == 0 && m->chunk->released) {
            free(m->chunk);
        }
        free(m->users);
        free(m);
    }
    for (size_t i = 0; i < p->reservation_count; i++) {
        munmap((void *)p->reservations[i].va, p->reservations[i].size);
    }
    count_areas(p, -(int)p->areas);
    free(p->mappings);
    free(p->reservations);
    tide__host_chunks_close(p);
    *p = (tide__host_pages){.fd = -1};
}

/* ---- Reservations ---- */

/* PROT_NONE memory of this size and alignment; 0 with errno where there is none. */
static uint64_t map_nothing(uint64_t size, uint64_t align, uint64_t hint) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (hint) {
        void *at = mmap((void *)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == (void *)hint) {
            return hint;
        }
        if (at != MAP_FAILED) { /* a kernel without the flag, or a sanitizer that moved it */
            munmap(at, size);
            errno = EEXIST;
        }
        return 0;
    }
    uint64_t padded = size + align;
    if (padded < size) {
        errno = ENOMEM;
        return 0;
    }
    void *start = mmap(NULL, padded, PROT_NONE, flags, -1, 0);
    if (start == MAP_FAILED) {
        return 0;
    }
    uint64_t va = tide__align_up((uint64_t)start, align), end = (uint64_t)start + padded;
    if (va > (uint64_t)start) {
        munmap(start, va - (uint64_t)start);
    }
    if (end > va + size) {
        munmap((void *)(va + size), end - (va + size));
    }
    return va;
}

/* The first reservation that ends above va. */
static size_t reservation_after(const tide__host_pages *p, uint64_t va) {
    size_t lo = 0, hi = p->reservation_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (p->reservations[mid].va + p->reservations[mid].size <= va) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

tide_status tide__host_reserve(tide__host_gpu *g, uint64_t size, uint64_t align, uint64_t hint,
                               uint64_t *va) {
    tide__host_pages *p = &g->pages;
    tide_status status = tide__host_check_range(p, "reserve", hint, size);
    if (status != TIDE_OK) {
        return status;
    }
    align = tide__max(align, p->granularity);
    if ((align & (align - 1)) != 0 || (hint & (align - 1)) != 0) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host reserve: alignment %" PRIu64 " is no power of two, or 0x%" PRIx64
                          " not a multiple of it",
                          align, hint);
    }
    if (!tide__grow((void **)&p->reservations, &p->reservation_capacity, p->reservation_count + 1,
                    sizeof *p->reservations)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "host reserve: the host is out of memory");
    }
    uint64_t at = map_nothing(size, align, hint);
    if (at == 0) {
        return fail_mmap(TIDE_NO_ADDRESSES, "reserve", hint, size);
    }
    size_t i = reservation_after(p, at);
    tide__host_reservation *r = p->reservations + i;
    TIDE__CHECK(i == p->reservation_count || at + size <= r->va);
    memmove(r + 1, r, (p->reservation_count++ - i) * sizeof *r);
    *r = (tide__host_reservation){.va = at, .size = size};
    count_areas(p, 1);
    *va = at;
    return TIDE_OK;
}

/* The first mapping that ends above va. */
static size_t mapping_after(const tide__host_pages *p, uint64_t va) {
    size_t lo = 0, hi = p->mapping_count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (p->mappings[mid]->va + p->mappings[mid]->size <= va) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static bool is_mapped_anywhere(const tide__host_pages *p, uint64_t va, uint64_t size) {
    size_t i = mapping_after(p, va);
    return i < p->mapping_count && p->mappings[i]->va < va + size;
}

static void forget_reservation(tide__host_pages *p, size_t i) {
    tide__host_reservation *r = p->reservations + i;
    TIDE__CHECK(i < p->reservation_count && !is_mapped_anywhere(p, r->va, r->size));
    memmove(r, r + 1, (--p->reservation_count - i) * sizeof *r);
    count_areas(p, -1);
}

tide_status tide__host_unreserve(tide__host_gpu *g, uint64_t va, uint64_t size) {
    tide__host_pages *p = &g->pages;
    size_t i = reservation_after(p, va);
    const tide__host_reservation *r = p->reservations + i;
    if (i == p->reservation_count || r->va != va || r->size != size || r->raw) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host unreserve: [0x%" PRIx64 ", +%" PRIu64 ") is not one reservation", va, size);
    }
    if (is_mapped_anywhere(p, va, size)) {
        return tide__fail(TIDE_IN_USE, "host unreserve: chunks are mapped in [0x%" PRIx64 ", +%" PRIu64 ")",
                          va, size);
    }
    if (munmap((void *)va, size) != 0) {
        return fail_mmap(TIDE_DRIVER, "unreserve", va, size);
    }
    forget_reservation(p, i);
    return TIDE_OK;
}

/* ---- Mappings ---- */

/* The reservation that holds all of a range; NULL if none does. */
static tide__host_reservation *reservation_around(const tide__host_pages *p, uint64_t va, uint64_t size) {
    size_t i = reservation_after(p, va);
    tide__host_reservation *r = p->reservations + i;
    return i < p->reservation_count && r->va <= va && va + size <= r->va + r->size ? r : NULL;
}

/* The mappings that make up exactly [va, va + size). */
static bool whole_mappings(const tide__host_pages *p, uint64_t va, uint64_t size, size_t *first,
                           size_t *count) {
    size_t i = *first = mapping_after(p, va);
    uint64_t at = va;
    while (at < va + size && i < p->mapping_count && p->mappings[i]->va == at) {
        at += p->mappings[i++]->size;
    }
    *count = i - *first;
    return at == va + size;
}

bool tide__host_resolve(const tide__host_pages *p, uint64_t va, uint64_t size, size_t *first, size_t *count) {
    size_t i = *first = mapping_after(p, va);
    uint64_t at = va;
    for (; at < va + size && i < p->mapping_count; i++) {
        const tide__host_mapping *m = p->mappings[i];
        if (m->va > at || !m->accessible) {
            break;
        }
        at = m->va + m->size;
    }
    *count = i - *first;
    return at >= va + size;
}

static tide__host_mapping *mapping_at(const tide__host_pages *p, size_t i) {
    return i < p->mapping_count ? p->mappings[i] : NULL;
}

/* Into a reservation, where nothing is mapped yet. */
static tide_status map(tide__host_pages *p, const tide__host_reservation *r, uint64_t va,
                       tide__host_chunk *chunk) {
    size_t i = mapping_after(p, va);
    int areas = areas_of_mapping(r, i ? p->mappings[i - 1] : NULL, mapping_at(p, i), va, chunk);
    if (areas > 0 && atomic_load(&areas_in_process) + (size_t)areas > p->area_limit) {
        return tide__fail(
            TIDE_NO_HOST_MEMORY,
            "host map: %zu chunks are mapped in %zu areas of memory, near the kernel's limit: raise "
            "vm.max_map_count, or use larger chunks",
            p->mapping_count, p->areas);
    }
    tide__host_mapping *m = calloc(1, sizeof *m);
    if (!m ||
        !tide__grow((void **)&p->mappings, &p->mapping_capacity, p->mapping_count + 1, sizeof(void *))) {
        free(m);
        return tide__fail(TIDE_NO_HOST_MEMORY, "host map: the host is out of memory");
    }
    if (mmap((void *)va, chunk->size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, p->fd,
             (off_t)chunk->offset) == MAP_FAILED) {
        free(m);
        return fail_mmap(TIDE_NO_HOST_MEMORY, "map", va, chunk->size);
    }
    *m = (tide__host_mapping){.va = va, .size = chunk->size, .id = p->next_mapping_id++, .chunk = chunk};
    chunk->mappings++;
    count_areas(p, areas);
    memmove(p->mappings + i + 1, p->mappings + i, (p->mapping_count++ - i) * sizeof(void *));
    p->mappings[i] = m;
    return TIDE_OK;
}

tide_status tide__host_map(tide__host_gpu *g, uint64_t va, uint64_t size, tide__chunk_handle handle) {
    tide__host_pages *p = &g->pages;
    tide_status status = tide__host_check_range(p, "map", va, size);
    if (status != TIDE_OK) {
        return status;
    }
    tide__host_chunk *chunk = tide__host_table_get(&p->chunks, handle);
    if (!chunk) {
        return tide__fail(TIDE_BAD_HANDLE,
                          "host map: 0x%" PRIx64 " is not a chunk of GPU %d, or was released", handle,
                          g->index);
    }
    if (size != chunk->size) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host map: %" PRIu64 " bytes of a chunk of %" PRIu64
                          "; only whole chunks can be mapped",
                          size, chunk->size);
    }
    const tide__host_reservation *r = reservation_around(p, va, size);
    if (!r || r->raw) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host map: [0x%" PRIx64 ", +%" PRIu64 ") is not inside one reservation", va, size);
    }
    if (is_mapped_anywhere(p, va, size)) {
        return tide__fail(TIDE_IN_USE, "host map: something is mapped in [0x%" PRIx64 ", +%" PRIu64 ")", va,
                          size);
    }
    return map(p, r, va, chunk);
}

static tide_status set_access(tide__host_gpu *g, uint64_t va, uint64_t size) {
    tide__host_pages *p = &g->pages;
    size_t first, count;
    if (!whole_mappings(p, va, size, &first, &count)) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host set_access: [0x%" PRIx64 ", +%" PRIu64 ") is not made of whole mappings", va,
                          size);
    }
    if (mprotect((void *)va, size, PROT_READ | PROT_WRITE) != 0) {
        tide_status status = fail_mmap(TIDE_NO_HOST_MEMORY, "set_access", va, size);
        /* It may have come part of the way. */
        for (size_t i = first; i < first + count; i++) {
            if (!p->mappings[i]->accessible) {
                (void)mprotect((void *)p->mappings[i]->va, p->mappings[i]->size, PROT_NONE);
            }
        }
        return status;
    }
    for (size_t i = first; i < first + count; i++) {
        p->mappings[i]->accessible = true;
        p->mappings[i]->peers = g->peers;
    }
    return TIDE_OK;
}

tide_status tide__host_set_access(tide__host_gpu *g, uint64_t va, uint64_t size) {
    tide_status status = tide__host_check_range(&g->pages, "set_access", va, size);
    return status == TIDE_OK ? set_access(g, va, size) : status;
}

tide_status tide__host_peer_enable(tide__host_gpu *g, int peer) {
    if (peer < 0 || peer >= g->host->gpu_count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "host peer_enable: there is no GPU %d", peer);
    }
    g->peers |= UINT64_C(1) << peer; /* at most 64: see tide__host_open */
    return TIDE_OK;
}

bool tide__host_peer_reaches(tide__device *d, int gpu, int peer, uint64_t va, uint64_t size) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    size_t first, count;
    if (!g) {
        return false;
    }
    bool reaches = tide__host_resolve(&g->pages, va, size, &first, &count);
    for (size_t i = first; reaches && i < first + count; i++) {
        reaches = peer == gpu || (g->pages.mappings[i]->peers >> peer & 1);
    }
    tide__host_leave(g);
    return reaches;
}

/* A thread is in the middle of these bytes: possible only after a violation
 * whose handler returned. Taking the pages away would end the process. */
static bool is_being_touched(const tide__host_gpu *g, uint64_t va, uint64_t size) {
    for (size_t i = 0; i < g->lane_count; i++) {
        const tide__host_op *op = g->lanes[i].stream ? g->lanes[i].stream->touching : NULL;
        for (size_t r = 0; op && r < op->range_count; r++) {
            if (op->ranges[r].va < va + size && va < op->ranges[r].va + op->ranges[r].size) {
                return true;
            }
        }
    }
    return false;
}

/* The address space no longer has them. */
static void forget_mappings(tide__host_pages *p, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) {
        tide__host_mapping *m = p->mappings[i];
        const tide__host_reservation *r = reservation_around(p, m->va, m->size);
        TIDE__CHECK(r && m->chunk->mappings > 0);
        count_areas(p, -areas_of_mapping(r, first ? p->mappings[first - 1] : NULL, mapping_at(p, i + 1),
                                         m->va, m->chunk));
        if (--m->chunk->mappings == 0 && m->chunk->released) {
            tide__host_chunk_free(p, m->chunk);
        }
        free(m->users);
        free(m);
    }
    p->mapping_count -= count;
    memmove(p->mappings + first, p->mappings + first + count, (p->mapping_count - first) * sizeof(void *));
}

/* May these whole mappings be taken away? Reports work that uses them. All is
 * looked up again after each moment without the lock. */
static tide_status prepare_unmap(tide__host_gpu *g, uint64_t va, uint64_t size, bool raw, size_t *first,
                                 size_t *count) {
    tide__host_pages *p = &g->pages;
    tide__host_violation violation;
    for (bool reported = false;;) {
        const tide__host_reservation *r = reservation_around(p, va, size);
        if (!whole_mappings(p, va, size, first, count) || (r && r->raw) != raw) {
            return tide__fail(TIDE_INVALID_ARGUMENT,
                              "host unmap: [0x%" PRIx64 ", +%" PRIu64 ") is not made of whole mappings", va,
                              size);
        }
        if (!reported && tide__host_check_unmap(g, *first, *count, &violation)) {
            reported = true;
            tide__host_report(g, &violation);
        } else if (is_being_touched(g, va, size)) {
            tide__host_wait_progress(g, UINT64_MAX);
        } else {
            return TIDE_OK;
        }
    }
}

tide_status tide__host_unmap(tide__host_gpu *g, uint64_t va, uint64_t size) {
    size_t first, count;
    tide_status status = tide__host_check_range(&g->pages, "unmap", va, size);
    if (status != TIDE_OK || (status = prepare_unmap(g, va, size, false, &first, &count)) != TIDE_OK) {
        return status;
    }
    if (mmap((void *)va, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
        return fail_mmap(TIDE_NO_HOST_MEMORY, "unmap", va, size);
    }
    forget_mappings(&g->pages, first, count);
    return TIDE_OK;
}

/* ---- Memory of its own: a chunk that nobody has a handle of ---- */

/* Takes a mapping and its reservation away in one go, so that it cannot stop
 * half way. */
static tide_status unmap_and_unreserve(tide__host_pages *p, uint64_t va, uint64_t size) {
    if (munmap((void *)va, size) != 0) {
        return fail_mmap(TIDE_DRIVER, "raw_free", va, size);
    }
    if (is_mapped_anywhere(p, va, size)) {
        forget_mappings(p, mapping_after(p, va), 1);
    }
    forget_reservation(p, reservation_after(p, va));
    return TIDE_OK;
}

tide_status tide__host_raw_alloc(tide__host_gpu *g, uint64_t size, uint64_t *va) {
    tide__host_pages *p = &g->pages;
    if (size == 0 || size > UINT64_MAX - p->granularity) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "host raw_alloc: %" PRIu64 " bytes", size);
    }
    tide__chunk_handle handle;
    uint64_t at = 0;
    size = tide__align_up(size, p->granularity);
    tide_status status = tide__host_chunk_create(g, size, &handle);
    if (status != TIDE_OK) {
        return status;
    }
    status = tide__host_reserve(g, size, p->granularity, 0, &at);
    if (status == TIDE_OK) {
        status = map(p, reservation_around(p, at, size), at, tide__host_table_get(&p->chunks, handle));
        if (status == TIDE_OK) {
            status = set_access(g, at, size);
        }
        if (status != TIDE_OK) {
            (void)unmap_and_unreserve(p, at, size); /* if even that fails, close does it */
        }
    }
    (void)tide__host_chunk_release(g, handle); /* the mapping, if there is one, holds the bytes */
    if (status != TIDE_OK) {
        return status;
    }
    reservation_around(p, at, size)->raw = true;
    *va = at;
    return TIDE_OK;
}

/* As cudaFree does, this waits for all work on the GPU first. */
tide_status tide__host_raw_free(tide__host_gpu *g, uint64_t va) {
    tide__host_pages *p = &g->pages;
    size_t first, count;
    const tide__host_reservation *r = reservation_around(p, va, 1);
    if (!r || !r->raw || r->va != va) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "host raw_free: 0x%" PRIx64 " was not given by raw_alloc, or was freed before", va);
    }
    uint64_t size = r->size;
    tide_status status = tide__host_wait_device(g);
    if (status == TIDE_OK) {
        status = prepare_unmap(g, va, size, true, &first, &count);
    }
    return status == TIDE_OK ? unmap_and_unreserve(p, va, size) : status;
}
