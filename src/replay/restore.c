/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore: in two steps. First the extents that had pages before the first
 * event: for native, whole segments; for expandable, runs of pages in windows
 * of reserved addresses, with a bit for each page. Then each extent is filled:
 *
 *     extent:  [free][ used ][free] [ used ][used]
 *                    ^ a block from before the start, by address
 *
 * In the native large pool no block is of 1 MiB or less, so a gap that small
 * after a used block is part of it.
 */
#include "replay/restore.h"
#include "replay/private_pools.h"

#include <stdlib.h>
#include <string.h>

typedef struct extent {
    uint64_t addr, size;
    uint16_t stream, pool;
    bool is_small, gone;
    bool is_growth; /* expandable: the event mapped it; else it unmapped it, or it is there at the end */
    size_t order;   /* expandable: of the event, from 1 */
} extent;

#define AT_THE_END SIZE_MAX

typedef struct used_block {
    uint64_t addr, size; /* size: as long as the block was, where that is known, else as rounded */
    uint32_t number;
    bool is_exact;
} used_block;

typedef struct restorer {
    tide__torch_heap *heap;
    const tide__schedule *schedule;
    tide__torch_block **blocks;
    extent *extents;
    size_t count, cap;
    used_block *used; /* by address */
    size_t used_count;
    size_t placed;
    bool unsure, contradiction;
} restorer;

static tide_status no_host_memory(void) {
    return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the heap before the first event");
}

static bool add_extent(restorer *r, extent e) {
    if (!tide__grow((void **)&r->extents, &r->cap, r->count + 1, sizeof *r->extents)) return false;
    r->extents[r->count++] = e;
    return true;
}

static int by_address(const void *a, const void *b) {
    const extent *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static int used_by_address(const void *a, const void *b) {
    const used_block *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* ---- The used blocks ---- */

/* Lengths of blocks that live to the end are in the file; a number is freed at most once. */
static tide_status read_lengths(restorer *r, bool *freed) {
    const tide__trace_gpu *gpu = r->schedule->gpu;
    tide__map lengths = {0};
    bool fine = true;
    for (size_t i = 0; fine && i < gpu->block_count; i++)
        if (gpu->blocks[i].state != TIDE__BLOCK_INACTIVE)
            fine = tide__map_put(&lengths, gpu->blocks[i].addr, gpu->blocks[i].size);
    for (size_t i = 0; i < r->used_count; i++) {
        used_block *u = &r->used[i];
        uint64_t length;
        if (!freed[u->number] && tide__map_get(&lengths, u->addr, &length) && length >= u->size) {
            u->size = length;
            u->is_exact = true;
        }
    }
    tide__map_free(&lengths);
    return fine ? TIDE_OK : no_host_memory();
}

static tide_status find_used(restorer *r) {
    const tide__schedule *s = r->schedule;
    size_t n = s->blocks_before_start;
    r->used = calloc(n + 1, sizeof *r->used);
    bool *freed = calloc(n + 1, sizeof *freed);
    tide_status status = r->used != NULL && freed != NULL ? TIDE_OK : no_host_memory();
    if (status == TIDE_OK) {
        r->used_count = n;
        for (uint32_t i = 0; i < n; i++)
            r->used[i] = (used_block){s->before[i].addr,
                                      tide__torch_round(r->heap->settings, s->before[i].size), i, false};
        for (size_t i = 0; i < s->op_count; i++)
            if (s->ops[i].kind == TIDE__OP_FREE && s->ops[i].block < n) freed[s->ops[i].block] = true;
        status = read_lengths(r, freed);
        qsort(r->used, n, sizeof *r->used, used_by_address);
    }
    free(freed);
    return status;
}

/* The first used block at or after an address. */
static size_t used_from(const restorer *r, uint64_t addr) {
    size_t low = 0, high = r->used_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (r->used[mid].addr < addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* ---- Filling an extent ---- */

typedef struct filler {
    restorer *r;
    tide__torch_segment *segment;
    tide__torch_arena *arena;
    tide__torch_block *last;
} filler;

static tide__torch_block *append(filler *f, uint64_t addr, uint64_t size) {
    tide__torch_block *b = tide__torch_block_new(f->r->heap, f->arena, f->segment, addr, size);
    if (b == NULL) return NULL;
    tide__torch_link(b, f->last, NULL);
    f->last = b;
    return b;
}

/* What lies between used blocks: free, or the end of the one before. */
static bool fill_gap(filler *f, uint64_t addr, uint64_t size, bool after_used, bool is_exact) {
    if (size == 0) return true;
    bool native_large = !f->r->heap->backend->expandable && !f->arena->pool->is_small;
    if (native_large && after_used && size <= TIDE__TORCH_SMALL_SIZE) {
        f->last->node.size += size;
        return true;
    }
    if (native_large && after_used && !is_exact) f->r->unsure = true;
    return append(f, addr, size) != NULL;
}

/* Once all is linked, what is free goes into the index. */
static void index_free(const filler *f) {
    for (tide__torch_block *b = f->last; b != NULL; b = b->prev)
        if (!b->used && b->mapped) tide__torch_index_add(b);
}

/* [addr, end) had pages: its used blocks and the gaps between them. */
static bool fill(filler *f, uint64_t addr, uint64_t end) {
    restorer *r = f->r;
    bool after_used = false, is_exact = true;
    for (size_t i = used_from(r, addr); i < r->used_count && r->used[i].addr < end; i++) {
        used_block *u = &r->used[i];
        if (u->addr < addr || u->size > end - u->addr) {
            r->contradiction = true;
            return true;
        }
        if (!fill_gap(f, addr, u->addr - addr, after_used, is_exact)) return false;
        tide__torch_block *b = append(f, u->addr, u->size);
        if (b == NULL) return false;
        b->used = 1;
        b->owner = u->number;
        r->blocks[u->number] = b;
        r->placed++;
        addr = u->addr + u->size;
        after_used = true;
        is_exact = u->is_exact;
    }
    return fill_gap(f, addr, end - addr, after_used, is_exact);
}

static bool begin(filler *f, restorer *r, const extent *e) {
    *f = (filler){.r = r, .arena = tide__torch_arena_get(r->heap, e->pool, e->is_small, e->stream)};
    if (f->arena == NULL) return false;
    f->segment = tide__torch_segment_new(r->heap, e->addr, e->size);
    return f->segment != NULL;
}

/* ---- Native: whole segments ---- */

/* The segments at the end, with what was allocated taken away and what was freed put back. */
static tide_status undo_native(restorer *r) {
    const tide__trace_gpu *gpu = r->schedule->gpu;
    tide__map index = {0};
    bool fine = true;
    for (size_t i = 0; fine && i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        fine = tide__map_put(&index, s->addr, r->count) &&
               add_extent(
                   r, (extent){s->addr, s->size, s->stream, s->pool, !s->is_large, false, false, AT_THE_END});
    }
    for (size_t i = gpu->event_count; fine && i-- > 0;) {
        const tide__trace_event *e = &gpu->events[i];
        uint64_t at;
        if (tide__event_is_growth(e)) {
            if (tide__map_take(&index, e->addr, &at))
                r->extents[at].gone = true;
            else
                r->contradiction = true;
        } else if (tide__event_is_release(e)) {
            bool is_small = e->size == TIDE__TORCH_SMALL_SEGMENT;
            uint16_t pool = tide__schedule_event_pool(r->schedule, i);
            fine = tide__map_put(&index, e->addr, r->count) &&
                   add_extent(r, (extent){e->addr, e->size, e->stream, pool, is_small, false, false, i + 1});
        }
    }
    tide__map_free(&index);
    return fine ? TIDE_OK : no_host_memory();
}

static tide_status restore_native(restorer *r) {
    tide_status status = undo_native(r);
    for (size_t i = 0; status == TIDE_OK && !r->contradiction && i < r->count; i++) {
        const extent *e = &r->extents[i];
        filler f;
        if (e->gone) continue;
        if (!begin(&f, r, e)) return no_host_memory();
        status = r->heap->device->ops->raw_alloc(r->heap->device, 0, e->size, &f.segment->device_va);
        if (status != TIDE_OK) break;
        tide__torch_reserved_add(r->heap, e->size);
        if (!fill(&f, e->addr, e->addr + e->size)) return no_host_memory();
        index_free(&f);
    }
    return status;
}

/* ---- Expandable: pages in windows of addresses ---- */

/* All extents that ever had pages; what kind of pool an event's is in is not told. */
static tide_status list_windows(restorer *r) {
    const tide__trace_gpu *gpu = r->schedule->gpu;
    bool fine = true;
    for (size_t i = 0; fine && i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        fine = add_extent(
            r, (extent){s->addr, s->size, s->stream, s->pool, !s->is_large, false, false, AT_THE_END});
    }
    for (size_t i = 0; fine && i < gpu->event_count; i++) {
        const tide__trace_event *e = &gpu->events[i];
        if (tide__event_is_growth(e) || tide__event_is_release(e))
            fine =
                add_extent(r, (extent){e->addr, e->size, e->stream, tide__schedule_event_pool(r->schedule, i),
                                       false, false, tide__event_is_growth(e), i + 1});
    }
    if (fine) qsort(r->extents, r->count, sizeof *r->extents, by_address);
    return fine ? TIDE_OK : no_host_memory();
}

/* Pages are of 20 MiB unless something in the window says otherwise. */
static extent describe_window(const restorer *r, size_t first, size_t end) {
    extent w = r->extents[first];
    uint64_t large = r->heap->settings->large_segment_size;
    for (size_t i = first; i < end; i++) {
        const extent *e = &r->extents[i];
        w.is_small |= e->is_small || e->size % large != 0 || (e->addr - w.addr) % large != 0;
        w.size = tide__max(w.size, e->addr + e->size - w.addr);
        if (e->pool != 0) w.pool = e->pool;
    }
    return w;
}

static bool set_pages(const extent *w, uint64_t page, uint8_t *bits, const extent *e) {
    uint64_t offset = e->addr - w->addr;
    if (offset % page != 0 || e->size % page != 0 || e->size > w->size - offset) return false;
    memset(bits + offset / page, !e->is_growth, e->size / page);
    return true;
}

static int latest_first(const void *a, const void *b) {
    const extent *x = a, *y = b;
    return x->order > y->order ? -1 : x->order < y->order;
}

/* Which pages of a window were there before the first event: those at the end, with the events undone. */
static bool undo_pages(restorer *r, const extent *w, uint64_t page, uint8_t *bits, size_t first, size_t end) {
    bool fine = true;
    qsort(r->extents + first, end - first, sizeof *r->extents, latest_first);
    for (size_t i = first; fine && i < end; i++) fine = set_pages(w, page, bits, &r->extents[i]);
    return fine;
}

/* One run of pages that were all there, or all not. */
static tide_status fill_run(filler *f, uint64_t page, uint64_t first, uint64_t end, bool mapped) {
    tide__torch_heap *h = f->r->heap;
    uint64_t addr = f->segment->base + first * page, size = (end - first) * page;
    if (mapped) {
        tide_status status = tide__torch_map_pages(h, f->segment, page, addr, size);
        if (status != TIDE_OK) return status;
        tide__torch_reserved_add(h, size);
        return fill(f, addr, addr + size) ? TIDE_OK : no_host_memory();
    }
    tide__torch_block *b = append(f, addr, size);
    if (b == NULL || !tide__torch_unmapped_room(f->arena, 1)) return no_host_memory();
    b->mapped = 0;
    tide__torch_unmapped_add(f->arena, b);
    return TIDE_OK;
}

static tide_status fill_window(restorer *r, const extent *w, uint64_t page, const uint8_t *bits) {
    filler f = {.r = r, .arena = tide__torch_arena_get(r->heap, w->pool, w->is_small, w->stream)};
    uint64_t pages = w->size / page;
    if (memchr(bits, 1, pages) == NULL) return TIDE_OK; /* not reserved then */
    if (f.arena == NULL) return no_host_memory();
    tide_status status =
        tide__torch_window_new(r->heap, page, tide__torch_window_size(r->heap, page, w->size), &f.segment);
    if (status != TIDE_OK) return status;
    f.segment->base = w->addr;
    for (uint64_t first = 0, all = f.segment->size / page; status == TIDE_OK && first < all;) {
        bool mapped = first < pages && bits[first];
        uint64_t end = first + 1;
        while (end < all && (end < pages && bits[end]) == mapped) end++;
        status = fill_run(&f, page, first, end, mapped);
        first = end;
    }
    if (status == TIDE_OK) index_free(&f);
    return status;
}

static tide_status restore_window(restorer *r, size_t first, size_t end) {
    extent w = describe_window(r, first, end);
    uint64_t page = w.is_small ? TIDE__TORCH_SMALL_SEGMENT : r->heap->settings->large_segment_size;
    if (w.size == 0) return TIDE_OK;
    if (w.size > 2 * tide__torch_window_size(r->heap, page, 0)) {
        r->contradiction = true;
        return TIDE_OK;
    }
    uint8_t *bits = calloc(w.size / page + 1, 1);
    if (bits == NULL) return no_host_memory();
    tide_status status = TIDE_OK;
    if (w.size % page != 0 || !undo_pages(r, &w, page, bits, first, end))
        r->contradiction = true;
    else
        status = fill_window(r, &w, page, bits);
    free(bits);
    return status;
}

/* Extents whose addresses lie within one reservation of the first's are of one window. */
static tide_status restore_expandable(restorer *r) {
    tide_status status = list_windows(r);
    uint64_t reach = tide__torch_window_size(r->heap, TIDE__TORCH_SMALL_SEGMENT, 0);
    for (size_t first = 0; status == TIDE_OK && !r->contradiction && first < r->count;) {
        size_t end = first + 1;
        while (end < r->count && r->extents[end].addr - r->extents[first].addr < reach &&
               r->extents[end].stream == r->extents[first].stream)
            end++;
        status = restore_window(r, first, end);
        first = end;
    }
    return status;
}

/* ---- The whole ---- */

tide_status tide__torch_restore(tide__torch_heap *h, const tide__schedule *s, tide__torch_block **blocks,
                                tide__restored *out) {
    restorer r = {.heap = h, .schedule = s, .blocks = blocks};
    tide_status status = find_used(&r);
    if (status == TIDE_OK) status = h->backend->expandable ? restore_expandable(&r) : restore_native(&r);
    if (r.placed != r.used_count) r.contradiction = true;
    *out = r.contradiction ? TIDE__RESTORED_NOT : r.unsure ? TIDE__RESTORED_UNSURELY : TIDE__RESTORED_EXACTLY;
    free(r.extents);
    free(r.used);
    return status;
}
