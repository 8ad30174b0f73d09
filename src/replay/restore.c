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
            bool known = tide__map_take(&index, e->addr, &at);
            TIDE__CHECK(!known || (r->extents != NULL && at < r->count));
            if (known)
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

/* All extents that ever had pages: those at the end, and what events mapped or unmapped, in that order. */
static tide_status list_extents(restorer *r) {
    const tide__trace_gpu *gpu = r->schedule->gpu;
    bool fine = true;
    for (size_t i = 0; fine && i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        fine = add_extent(
            r, (extent){s->addr, s->size, s->stream, s->pool, !s->is_large, false, false, AT_THE_END});
    }
    for (size_t i = 0; fine && i < gpu->event_count; i++) {
        const tide__trace_event *e = &gpu->events[i];
        if (e->size > 0 && (tide__event_is_growth(e) || tide__event_is_release(e)))
            fine =
                add_extent(r, (extent){e->addr, e->size, e->stream, tide__schedule_event_pool(r->schedule, i),
                                       false, false, tide__event_is_growth(e), i + 1});
    }
    return fine ? TIDE_OK : no_host_memory();
}

/* Extents that cover one address, the one of the earliest event on top. */
typedef struct cover {
    const extent **heap;
    size_t count;
} cover;

static void cover_push(cover *c, const extent *e) {
    size_t i = c->count++;
    for (; i > 0 && c->heap[(i - 1) / 2]->order > e->order; i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = e;
}

static void cover_pop(cover *c) {
    const extent *e = c->heap[--c->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < c->count; i = child) {
        if (child + 1 < c->count && c->heap[child + 1]->order < c->heap[child]->order) child++;
        if (c->heap[child]->order >= e->order) break;
        c->heap[i] = c->heap[child];
    }
    if (c->count > 0) c->heap[i] = e;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* What had pages before the first event: where the earliest to tell of an address unmaps it, or where none
 * does and it has pages at the end. Extents of such runs, by address. */
static bool sweep(const extent *sorted, size_t count, uint64_t *edges, cover *c, extent *runs,
                  size_t *run_count) {
    for (size_t i = 0; i < count; i++) {
        edges[2 * i] = sorted[i].addr;
        edges[2 * i + 1] = sorted[i].addr + sorted[i].size;
        if (edges[2 * i + 1] < sorted[i].addr) return false;
    }
    qsort(edges, 2 * count, sizeof *edges, by_value);
    size_t next = 0;
    for (size_t i = 0; i + 1 < 2 * count; i++) {
        while (next < count && sorted[next].addr <= edges[i]) cover_push(c, &sorted[next++]);
        while (c->count > 0 && c->heap[0]->addr + c->heap[0]->size <= edges[i]) cover_pop(c);
        if (edges[i] == edges[i + 1] || c->count == 0 || c->heap[0]->is_growth) continue;
        extent e = *c->heap[0];
        e.addr = edges[i];
        e.size = edges[i + 1] - edges[i];
        runs[(*run_count)++] = e;
    }
    return true;
}

/* The size class of a run, where the file, its size or a block in it tells; -1 elsewhere. */
static int class_of_run(const restorer *r, const extent *run) {
    if (run->order == AT_THE_END) return run->is_small;
    if (run->size % r->heap->settings->large_segment_size != 0) return 1;
    size_t i = used_from(r, run->addr);
    if (i == r->used_count || r->used[i].addr >= run->addr + run->size) return -1;
    return r->used[i].size <= TIDE__TORCH_SMALL_SIZE;
}

static int pool_of_run(const restorer *r, const extent *run) {
    return run->order == AT_THE_END || r->schedule->event_pools != NULL ? run->pool : -1;
}

typedef struct window {
    extent at;          /* from its first address on */
    int pool, is_small; /* -1: not told */
    size_t first_run, end_run;
} window;

/* Runs from one on that can be of one window. */
static window gather_window(const restorer *r, const extent *runs, size_t count, size_t first,
                            uint64_t reach) {
    window w = {.at = runs[first], .pool = -1, .is_small = -1, .first_run = first, .end_run = first};
    for (; w.end_run < count; w.end_run++) {
        const extent *run = &runs[w.end_run];
        int pool = pool_of_run(r, run), is_small = class_of_run(r, run);
        if (run->stream != w.at.stream || run->addr - w.at.addr >= reach) break;
        if (pool >= 0 && w.pool >= 0 && pool != w.pool) break;
        if (is_small >= 0 && w.is_small >= 0 && is_small != w.is_small) break;
        bool is_large = is_small == 0 || w.is_small == 0;
        if (is_large && (run->addr - w.at.addr) % r->heap->settings->large_segment_size != 0) break;
        if (pool >= 0) w.pool = pool;
        if (is_small >= 0) w.is_small = is_small;
        w.at.size = run->addr + run->size - w.at.addr;
    }
    return w;
}

/* A window whose first pages were not there grows from its first address again; else that is not told,
 * and makes no difference. */
static void find_base(window *w, const extent *log, size_t count, uint64_t bytes, uint64_t reach) {
    for (size_t i = 0; i < count && bytes > 0; i++) {
        const extent *e = &log[i];
        if (e->order == AT_THE_END || e->stream != w->at.stream) continue;
        bool is_below = e->addr < w->at.addr && w->at.addr - e->addr < reach / 2;
        bool is_inside = e->addr >= w->at.addr && e->addr - w->at.addr < reach;
        if (is_below && e->is_growth) {
            w->at.size += w->at.addr - e->addr;
            w->at.addr = e->addr;
            return;
        }
        if (is_inside) bytes = e->is_growth ? bytes + e->size : bytes - tide__min(bytes, e->size);
    }
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

/* The pages of a window's runs, or false where they are of another size. */
static bool set_pages(const window *w, const extent *runs, uint64_t page, uint8_t *bits) {
    for (size_t i = w->first_run; i < w->end_run; i++) {
        uint64_t offset = runs[i].addr - w->at.addr;
        if (offset % page != 0 || runs[i].size % page != 0) return false;
        memset(bits + offset / page, 1, runs[i].size / page);
    }
    return true;
}

/* Pages are of 20 MiB unless something says otherwise. */
static bool has_large_pages(const restorer *r, const window *w, const extent *runs) {
    uint64_t large = r->heap->settings->large_segment_size;
    for (size_t i = w->first_run; i < w->end_run; i++)
        if ((runs[i].addr - w->at.addr) % large != 0 || runs[i].size % large != 0) return false;
    return true;
}

static tide_status restore_window(restorer *r, window *w, const extent *runs, uint64_t reach) {
    uint64_t bytes = 0;
    for (size_t i = w->first_run; i < w->end_run; i++) bytes += runs[i].size;
    find_base(w, r->extents, r->count, bytes, reach);
    extent e = w->at;
    e.pool = w->pool > 0 ? (uint16_t)w->pool : 0;
    e.is_small = w->is_small >= 0 ? w->is_small : !has_large_pages(r, w, runs);
    uint64_t page = e.is_small ? TIDE__TORCH_SMALL_SEGMENT : r->heap->settings->large_segment_size;
    if (e.size > 2 * tide__torch_window_size(r->heap, page, 0)) {
        r->contradiction = true;
        return TIDE_OK;
    }
    uint8_t *bits = calloc(e.size / page + 1, 1);
    if (bits == NULL) return no_host_memory();
    tide_status status = TIDE_OK;
    if (e.size % page != 0 || !set_pages(w, runs, page, bits))
        r->contradiction = true;
    else
        status = fill_window(r, &e, page, bits);
    free(bits);
    return status;
}

#define MOST_WINDOW_STEPS UINT64_C(400000000) /* windows times segment events */

static tide_status restore_windows(restorer *r, const extent *runs, size_t count) {
    uint64_t reach = tide__torch_window_size(r->heap, TIDE__TORCH_SMALL_SEGMENT, 0), steps = 0;
    tide_status status = TIDE_OK;
    for (size_t first = 0; status == TIDE_OK && !r->contradiction && first < count;) {
        window w = gather_window(r, runs, count, first, reach);
        first = w.end_run;
        steps += r->count;
        if (steps > MOST_WINDOW_STEPS)
            r->contradiction = true;
        else
            status = restore_window(r, &w, runs, reach);
    }
    return status;
}

/* Where there are private pools, whose a window was is not always told. */
static tide_status restore_expandable(restorer *r) {
    tide_status status = list_extents(r);
    r->unsure |= r->schedule->pool_count > 1;
    size_t n = r->count, run_count = 0;
    extent *sorted = calloc(n + 1, sizeof *sorted), *runs = calloc(2 * n + 1, sizeof *runs);
    uint64_t *edges = calloc(2 * n + 1, sizeof *edges);
    cover c = {.heap = calloc(n + 1, sizeof *c.heap)};
    if (status == TIDE_OK && (sorted == NULL || runs == NULL || edges == NULL || c.heap == NULL))
        status = no_host_memory();
    if (status == TIDE_OK) {
        if (n > 0) memcpy(sorted, r->extents, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_address);
        if (sweep(sorted, n, edges, &c, runs, &run_count))
            status = restore_windows(r, runs, run_count);
        else
            r->contradiction = true;
    }
    free(sorted);
    free(runs);
    free(edges);
    free(c.heap);
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
