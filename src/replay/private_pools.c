/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private_pools: the regions of the recorded heap are given pools so that no
 * two that PyTorch's rules keep apart share one. Regions that are there at the
 * end have their pool from the file. Of the others as many as can be are the
 * default pool's; what is left is as few private pools as a greedy choice
 * makes of it: each takes, the least constrained first, whatever has no
 * quarrel with what it has. Any such choice replays exactly as recorded; which
 * of two pools that never meet a region belonged to cannot be told. Segments
 * of a stream that one release gave back side by side, in the order in which
 * it goes through a pool, go together, unless they quarrel.
 *
 * A pool made with no_split is told by two things: its regions hold blocks at
 * their beginnings (or on pages) only, and taken for regions that are split
 * they quarrel although they go together, or each with itself. They are then
 * read once more as what they seem to be.
 *
 * Where the heap before the first event is not known, only segments at the end
 * count: an address inside a private one is its pool's.
 */
#include "replay/private_pools.h"

#include <stdlib.h>
#include <string.h>

#include "replay/recorded_heap.h"

#define NOT_TOLD UINT16_MAX
#define MOST_NEW_POOLS 64 /* beyond, it is no pools that a trace differs by */

static tide_status no_host_memory(void) {
    return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the private pools");
}

static bool is_told(const tide__trace_gpu *gpu) {
    for (size_t i = 0; i < gpu->event_count; i++)
        if (gpu->events[i].pool != 0) return true;
    return false;
}

/* ---- Pools for regions ---- */

typedef struct labels {
    const tide__recorded_heap *heap;
    uint16_t *pool; /* by region; NOT_TOLD while it has none */
    bool *is_known; /* by region: the file tells */
    uint32_t *degree;
    size_t *first;    /* of a region's neighbours; one more than there are regions */
    uint32_t *others; /* the neighbours */
    uint32_t *group;  /* by region: the first of those that go with it */
    uint32_t *loose;  /* and of those that would if they did not quarrel */
    uint32_t *order;  /* regions that the file does not tell, the least constrained first */
    size_t order_count;
    size_t pool_count; /* those of the file and new ones */
    size_t told_pools;
} labels;

static void labels_free(labels *l) {
    free(l->pool);
    free(l->is_known);
    free(l->degree);
    free(l->first);
    free(l->others);
    free(l->group);
    free(l->loose);
    free(l->order);
}

typedef struct final_range {
    uint64_t addr, end;
    uint16_t pool;
} final_range;

static int by_start(const void *a, const void *b) {
    const final_range *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* The first final segment at or after an address. */
static size_t range_from(const final_range *ranges, size_t count, uint64_t addr) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (ranges[mid].addr < addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Regions that have bytes at the end are in the file's segments. */
static tide_status read_known(labels *l, const tide__trace_gpu *gpu) {
    final_range *ranges = calloc(gpu->segment_count + 1, sizeof *ranges);
    if (ranges == NULL) return no_host_memory();
    for (size_t i = 0; i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        ranges[i] = (final_range){s->addr, s->addr + s->size, s->pool};
    }
    qsort(ranges, gpu->segment_count, sizeof *ranges, by_start);
    for (size_t i = 0; i < l->heap->region_count; i++) {
        const tide__region *g = &l->heap->regions[i];
        size_t at = range_from(ranges, gpu->segment_count, g->base);
        l->pool[i] = NOT_TOLD;
        if (g->bytes == 0 || at == gpu->segment_count || ranges[at].addr >= g->top) continue;
        l->pool[i] = ranges[at].pool;
        l->is_known[i] = true;
    }
    free(ranges);
    return TIDE_OK;
}

static void list_neighbours(labels *l) {
    const tide__recorded_heap *h = l->heap;
    for (size_t i = 0; i < h->pair_count; i++) {
        l->degree[h->pairs[i].a]++;
        l->degree[h->pairs[i].b]++;
    }
    for (size_t i = 0; i < h->region_count; i++) l->first[i + 1] = l->first[i] + l->degree[i];
    for (size_t i = 0; i < h->pair_count; i++) {
        tide__region_pair p = h->pairs[i];
        l->others[l->first[p.a] + --l->degree[p.a]] = p.b;
        l->others[l->first[p.b] + --l->degree[p.b]] = p.a;
    }
    for (size_t i = 0; i < h->region_count; i++) l->degree[i] = (uint32_t)(l->first[i + 1] - l->first[i]);
}

/* ---- What goes together ---- */

/* Whether a release went from one segment to the next without leaving a pool, by all that can be seen. */
static bool is_next(const labels *l, const tide__trace_gpu *gpu, const tide__region_event *a,
                    const tide__region_event *b) {
    const tide__trace_event *x = &gpu->events[a->event], *y = &gpu->events[b->event];
    if (b->event != a->event + 1 || x->action != TIDE__ACTION_SEGMENT_FREE || y->action != x->action)
        return false;
    const tide__region *g = &l->heap->regions[a->region], *h = &l->heap->regions[b->region];
    if (g->stream != h->stream || g->is_small != h->is_small || g->no_split != h->no_split) return false;
    return x->size != y->size ? x->size < y->size : x->addr < y->addr;
}

static void make_groups(labels *l, const tide__trace_gpu *gpu) {
    const tide__recorded_heap *h = l->heap;
    for (uint32_t i = 0; i < h->region_count; i++) l->group[i] = i;
    for (size_t i = 1; i < h->event_count; i++)
        if (is_next(l, gpu, &h->events[i - 1], &h->events[i]))
            l->group[h->events[i].region] = l->group[h->events[i - 1].region];
    memcpy(l->loose, l->group, h->region_count * sizeof *l->group);
    /* A group in which two quarrel is none; its name then stays with the first alone. */
    for (size_t i = 0; i < h->pair_count; i++)
        if (l->group[h->pairs[i].a] == l->group[h->pairs[i].b])
            l->degree[l->group[h->pairs[i].a]] = UINT32_MAX;
    for (uint32_t i = 0; i < h->region_count; i++)
        if (l->degree[l->group[i]] == UINT32_MAX && l->group[i] != i) l->group[i] = i;
    for (uint32_t i = 0; i < h->region_count; i++) l->degree[i] = (uint32_t)(l->first[i + 1] - l->first[i]);
}

typedef struct ranked {
    double degree; /* the mean of the group's */
    uint32_t group, region;
} ranked;

static int least_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->degree != y->degree) return x->degree < y->degree ? -1 : 1;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->region < y->region ? -1 : x->region > y->region;
}

static tide_status rank(labels *l) {
    size_t n = l->heap->region_count;
    ranked *list = calloc(n + 1, sizeof *list);
    uint64_t *sums = calloc(2 * n + 1, sizeof *sums);
    if (list == NULL || sums == NULL) {
        free(list);
        free(sums);
        return no_host_memory();
    }
    for (uint32_t i = 0; i < n; i++) {
        sums[2 * l->group[i]] += l->degree[i];
        sums[2 * l->group[i] + 1]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *sum = &sums[2 * l->group[i]];
        if (!l->is_known[i])
            list[l->order_count++] = (ranked){(double)sum[0] / (double)sum[1], l->group[i], i};
    }
    qsort(list, l->order_count, sizeof *list, least_first);
    for (size_t i = 0; i < l->order_count; i++) l->order[i] = list[i].region;
    free(list);
    free(sums);
    return TIDE_OK;
}

static bool has_neighbour_in(const labels *l, uint32_t region, uint16_t pool) {
    for (size_t i = l->first[region]; i < l->first[region + 1]; i++)
        if (l->pool[l->others[i]] == pool) return true;
    return false;
}

/* Whether a region is of a pool that splits (0) or of one that does not (1); -1: of either. */
static int nature_of(const tide__region *g) { return g->no_split ? 1 : g->has_rest ? 0 : -1; }

static bool fits(const labels *l, uint32_t region, uint16_t pool, int *nature) {
    int own = nature_of(&l->heap->regions[region]);
    if (has_neighbour_in(l, region, pool) || (own >= 0 && *nature >= 0 && own != *nature)) return false;
    if (own >= 0) *nature = own;
    return true;
}

/* Gives a pool all it can have, a group or none of it; how many regions are left. */
static size_t fill_pool(labels *l, uint16_t pool) {
    size_t left = 0;
    int nature = pool == 0 ? 0 : -1;
    for (size_t i = 0, end; i < l->order_count; i = end) {
        const uint32_t *order = l->order;
        int with_group = nature;
        bool all_fit = true;
        for (end = i; end < l->order_count && l->group[order[end]] == l->group[order[i]]; end++)
            all_fit = all_fit && fits(l, order[end], pool, &with_group);
        if (l->pool[order[i]] != NOT_TOLD) continue;
        if (!all_fit) {
            left += end - i;
            continue;
        }
        for (size_t k = i; k < end; k++) l->pool[order[k]] = pool;
        nature = with_group;
    }
    return left;
}

static tide_status labels_make(labels *l, const tide__recorded_heap *h, const tide__trace_gpu *gpu,
                               bool *gave_up) {
    size_t n = h->region_count;
    *l = (labels){.heap = h, .told_pools = gpu->pool_count, .pool_count = gpu->pool_count};
    l->pool = calloc(n + 1, sizeof *l->pool);
    l->is_known = calloc(n + 1, sizeof *l->is_known);
    l->degree = calloc(n + 1, sizeof *l->degree);
    l->first = calloc(n + 1, sizeof *l->first);
    l->others = calloc(2 * h->pair_count + 1, sizeof *l->others);
    l->group = calloc(n + 1, sizeof *l->group);
    l->loose = calloc(n + 1, sizeof *l->loose);
    l->order = calloc(n + 1, sizeof *l->order);
    if (l->pool == NULL || l->is_known == NULL || l->degree == NULL || l->first == NULL ||
        l->others == NULL || l->group == NULL || l->loose == NULL || l->order == NULL)
        return no_host_memory();
    tide_status status = read_known(l, gpu);
    if (status != TIDE_OK) return status;
    list_neighbours(l);
    make_groups(l, gpu);
    status = rank(l);
    if (status != TIDE_OK) return status;
    size_t left = fill_pool(l, 0);
    while (left > 0) {
        if (l->pool_count - l->told_pools == MOST_NEW_POOLS || l->pool_count == NOT_TOLD) {
            *gave_up = true;
            break;
        }
        left = fill_pool(l, (uint16_t)l->pool_count++);
    }
    return TIDE_OK;
}

/* ---- Pools that split nothing ---- */

/* What speaks against a choice: regions that no pool explains and, much less, pools that nobody named. */
static uint64_t cost_of(const labels *l) {
    uint64_t unexplained = 0;
    for (size_t i = 0; i < l->heap->region_count; i++) unexplained += l->heap->regions[i].is_odd;
    for (size_t i = 0; i < l->heap->pair_count; i++)
        unexplained += l->pool[l->heap->pairs[i].a] == l->pool[l->heap->pairs[i].b];
    return unexplained * (MOST_NEW_POOLS + 1) + (l->pool_count - l->told_pools);
}

/* Marks the groups, or pools that are known, in which regions quarrel. */
static void mark_quarrels(const labels *l, bool *groups, bool *pools) {
    const tide__recorded_heap *h = l->heap;
    for (size_t i = 0; i < h->pair_count; i++) {
        uint32_t a = h->pairs[i].a, b = h->pairs[i].b;
        if (l->loose[a] == l->loose[b]) groups[l->loose[a]] = true;
        if (l->is_known[a] && l->is_known[b] && l->pool[a] == l->pool[b]) pools[l->pool[a]] = true;
    }
    for (size_t i = 0; i < h->region_count; i++) {
        const tide__region *g = &h->regions[i];
        if (!g->is_odd) continue;
        groups[l->loose[i]] = true;
        if (l->is_known[i]) pools[l->pool[i]] = true;
    }
    for (size_t i = 0; i < h->region_count; i++) {
        if (!h->regions[i].has_inner) continue;
        groups[l->loose[i]] = false;
        if (l->is_known[i]) pools[l->pool[i]] = false;
    }
    pools[0] = false;
}

/* The regions that seem to be of pools that split nothing; NULL: no host memory. */
static bool *list_unsplit(const labels *l, bool *is_any) {
    const tide__recorded_heap *h = l->heap;
    bool *groups = calloc(h->region_count + 1, sizeof *groups);
    bool *pools = calloc(l->pool_count + 1, sizeof *pools);
    bool *list = calloc(h->region_count + 1, sizeof *list);
    *is_any = false;
    if (groups != NULL && pools != NULL && list != NULL) {
        mark_quarrels(l, groups, pools);
        for (size_t i = 0; i < h->region_count; i++) {
            list[i] = l->is_known[i] ? pools[l->pool[i]] : groups[l->loose[i]];
            *is_any |= list[i];
        }
    } else {
        free(list);
        list = NULL;
    }
    free(groups);
    free(pools);
    return list;
}

typedef struct finder {
    tide__schedule *schedule;
    const tide__recorded *recorded;
    const tide__torch_settings *settings;
    tide__recorded_heap heap;
    labels labels;
    bool gave_up;
} finder;

static tide_status find(finder *f, const bool *no_split) {
    tide_status status = tide__recorded_heap_read(f->schedule, f->recorded, f->settings, no_split, &f->heap);
    if (status != TIDE_OK) return status;
    f->gave_up = f->heap.gave_up;
    return f->gave_up ? TIDE_OK : labels_make(&f->labels, &f->heap, f->schedule->gpu, &f->gave_up);
}

static void finder_free(finder *f) {
    labels_free(&f->labels);
    tide__recorded_heap_free(&f->heap);
}

/* Takes the second reading where it explains the trace with less. */
static tide_status try_unsplit(finder *f) {
    bool is_any;
    bool *no_split = list_unsplit(&f->labels, &is_any);
    finder second = {.schedule = f->schedule, .recorded = f->recorded, .settings = f->settings};
    tide_status status = no_split != NULL ? TIDE_OK : no_host_memory();
    if (status == TIDE_OK && is_any) status = find(&second, no_split);
    free(no_split);
    if (status == TIDE_OK && is_any && !second.gave_up && cost_of(&second.labels) < cost_of(&f->labels)) {
        finder first = *f;
        *f = second;
        f->labels.heap = &f->heap;
        second = first;
    }
    finder_free(&second);
    return status;
}

/* ---- Into the schedule ---- */

static tide_status write_pools(const finder *f) {
    tide__schedule *s = f->schedule;
    const labels *l = &f->labels;
    const tide__recorded_heap *h = &f->heap;
    bool is_any = false;
    for (size_t i = 0; i < h->region_count; i++) is_any |= l->pool[i] != 0;
    if (!is_any) return TIDE_OK;
    s->event_pools = calloc(s->gpu->event_count + 1, sizeof *s->event_pools);
    s->unsplit_pools = calloc(l->pool_count, sizeof *s->unsplit_pools);
    if (s->event_pools == NULL || s->unsplit_pools == NULL) return no_host_memory();
    s->pool_count = l->pool_count;
    s->pools_inferred = (uint32_t)(l->pool_count - l->told_pools);
    for (size_t i = 0; i < h->region_count; i++) {
        s->unsplit_pools[l->pool[i]] |= h->regions[i].no_split;
        s->regions_inferred += !l->is_known[i] && l->pool[i] != 0;
    }
    for (size_t i = 0; i < h->event_count; i++)
        s->event_pools[h->events[i].event] = l->pool[h->events[i].region];
    for (size_t i = 0; i < s->op_count; i++) {
        tide__schedule_op *op = &s->ops[i];
        if (op->kind != TIDE__OP_ALLOC) continue;
        uint32_t region = h->region_of[op->block];
        op->pool = region != UINT32_MAX ? l->pool[region] : 0;
        if (op->block < s->blocks_before_start) s->before[op->block].pool = op->pool;
    }
    return TIDE_OK;
}

/* ---- Where only the segments at the end are known ---- */

typedef struct range {
    uint64_t addr, end;
    size_t since; /* event */
    uint16_t pool, stream;
    bool is_large, is_expandable;
} range;

static int by_address(const void *a, const void *b) {
    const range *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* The private pools' segments by address, those of one expandable segment joined. */
static size_t list_ranges(const tide__trace_gpu *gpu, range *ranges) {
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < gpu->segment_count; i++) {
        const tide__trace_segment *s = &gpu->segments[i];
        if (s->pool == 0) continue;
        ranges[count++] =
            (range){s->addr, s->addr + s->size, 0, s->pool, s->stream, s->is_large, s->is_expandable};
    }
    qsort(ranges, count, sizeof *ranges, by_address);
    for (size_t i = 0; i < count; i++) {
        range *r = &ranges[i], *last = kept > 0 ? &ranges[kept - 1] : NULL;
        if (last != NULL && r->is_expandable && last->is_expandable && r->pool == last->pool &&
            r->stream == last->stream && r->is_large == last->is_large)
            last->end = r->end;
        else
            ranges[kept++] = *r;
    }
    return kept;
}

static range *find_range(range *ranges, size_t count, uint64_t addr) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (ranges[mid].addr <= addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 && addr < ranges[low - 1].end ? &ranges[low - 1] : NULL;
}

static void find_since(const tide__trace_gpu *gpu, range *ranges, size_t count) {
    for (size_t i = 0; i < gpu->event_count; i++) {
        const tide__trace_event *e = &gpu->events[i];
        if (e->action != TIDE__ACTION_SEGMENT_ALLOC) continue;
        range *r = find_range(ranges, count, e->addr);
        if (r != NULL && !r->is_expandable) r->since = i;
    }
}

static tide_status find_by_final_segments(tide__schedule *s) {
    const tide__trace_gpu *gpu = s->gpu;
    if (gpu->pool_count < 2 || gpu->segment_count == 0) return TIDE_OK;
    range *ranges = calloc(gpu->segment_count, sizeof *ranges);
    if (ranges == NULL) return no_host_memory();
    size_t count = list_ranges(gpu, ranges);
    find_since(gpu, ranges, count);
    for (size_t i = 0; i < s->op_count; i++) {
        tide__schedule_op *op = &s->ops[i];
        if (op->kind != TIDE__OP_ALLOC) continue;
        bool is_before = i < s->blocks_before_start;
        const range *r =
            find_range(ranges, count, is_before ? s->before[i].addr : gpu->events[op->event].addr);
        if (r == NULL || (is_before ? r->since > 0 : op->event < r->since)) continue;
        op->pool = r->pool;
        if (is_before) s->before[i].pool = r->pool;
    }
    free(ranges);
    return TIDE_OK;
}

/* ---- The whole ---- */

tide_status tide__schedule_find_pools(tide__schedule *s) {
    tide__recorded recorded;
    tide__torch_settings settings;
    tide_status status = tide__recorded_read(s->trace, s->gpu, &recorded);
    if (status != TIDE_OK || is_told(s->gpu)) return status;
    if (recorded.policy != TIDE__RECORDED_NATIVE && recorded.policy != TIDE__RECORDED_EXPANDABLE)
        return find_by_final_segments(s);
    tide__torch_settings_read(s->trace, &settings);
    finder f = {.schedule = s, .recorded = &recorded, .settings = &settings};
    status = find(&f, NULL);
    if (status == TIDE_OK && !f.gave_up) status = try_unsplit(&f);
    if (status == TIDE_OK) status = f.gave_up ? find_by_final_segments(s) : write_pools(&f);
    finder_free(&f);
    return status;
}
