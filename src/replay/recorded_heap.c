/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorded_heap: one pass over a schedule and its segment events. Free blocks
 * of one stream and size class are in one index, whatever their pool; the
 * first that fits is then mostly the one that was taken, and those before it
 * are the pairs. Work beyond a few dozen steps an op is not done.
 */
#include "replay/recorded_heap.h"

#include <stdlib.h>

#include "replay/free_index.h"
#include "replay/restore.h"
#include "replay/torch_heap.h"

#define SLAB_BLOCKS 1024
#define STEPS_AN_OP 32
#define STEPS_FREE UINT64_C(20000000)
#define PAIRS_AN_OP 2
#define PAIRS_FREE 1000000

typedef struct block {
    tide__free_node node; /* first, so that a node is its block */
    uint32_t region;
} block;

typedef struct slab {
    struct slab *next;
    block blocks[SLAB_BLOCKS];
} slab;

typedef struct reader {
    tide__recorded_heap *out;
    const tide__schedule *schedule;
    const tide__trace_gpu *gpu;
    const tide__torch_settings *settings;
    const bool *no_split;
    bool expandable;
    tide__free_index **lanes; /* by stream and size class: 2 a stream */
    block **used;             /* by the schedule's block */
    tide__map starts, ends;   /* of free blocks: address -> block */
    tide__map bases;          /* native: of segments: address -> region */
    tide__map pairs;          /* both regions -> anything */
    uint32_t *alive;          /* regions */
    size_t alive_count, alive_cap, region_cap, pair_cap, event_cap;
    size_t events_done;
    uint32_t newest; /* region of the growth just before; UINT32_MAX: none */
    slab *slabs;
    tide__free_node *spare; /* by right */
    uint64_t steps, most_steps;
} reader;

#define NO_REGION UINT32_MAX

static tide_status no_host_memory(void) {
    return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the recorded heap");
}

static block *of_node(tide__free_node *n) { return (block *)n; }

static uint64_t end_of(const block *b) { return b->node.addr + b->node.size; }

static uint64_t page_size(const reader *r, bool is_small) {
    return is_small ? TIDE__TORCH_SMALL_SEGMENT : r->settings->large_segment_size;
}

/* ---- Blocks ---- */

static block *new_block(reader *r, uint64_t addr, uint64_t size, uint32_t region) {
    if (r->spare == NULL) {
        slab *s = malloc(sizeof *s);
        if (s == NULL) return NULL;
        s->next = r->slabs;
        r->slabs = s;
        for (size_t i = 0; i < SLAB_BLOCKS; i++) {
            s->blocks[i].node.right = r->spare;
            r->spare = &s->blocks[i].node;
        }
    }
    block *b = of_node(r->spare);
    r->spare = b->node.right;
    *b = (block){.node = {.size = size, .addr = addr}, .region = region};
    return b;
}

static void delete_block(reader *r, block *b) {
    b->node.right = r->spare;
    r->spare = &b->node;
}

static tide__free_index *lane_of(const reader *r, const tide__region *g) {
    return r->lanes[g->stream * 2 + g->is_small];
}

static bool make_lane(reader *r, uint16_t stream, bool is_small) {
    tide__free_index **lane = &r->lanes[stream * 2 + is_small];
    if (*lane == NULL) *lane = calloc(1, sizeof **lane);
    return *lane != NULL;
}

static void take_free(reader *r, block *b) {
    tide__region *g = &r->out->regions[b->region];
    tide__free_index_remove(lane_of(r, g), &b->node);
    tide__map_take(&r->starts, b->node.addr, NULL);
    tide__map_take(&r->ends, end_of(b), NULL);
    g->free_bytes -= b->node.size;
}

static block *free_at(const tide__map *m, uint64_t addr, uint32_t region) {
    uint64_t value;
    if (!tide__map_get(m, addr, &value)) return NULL;
    block *b = (block *)(uintptr_t)value;
    return b->region == region ? b : NULL;
}

/* b becomes free, one block with its free neighbours. */
static bool put_free(reader *r, block *b) {
    block *prev = free_at(&r->ends, b->node.addr, b->region);
    block *next = free_at(&r->starts, end_of(b), b->region);
    tide__region *g = &r->out->regions[b->region];
    if (prev != NULL) {
        take_free(r, prev);
        b->node.addr = prev->node.addr;
        b->node.size += prev->node.size;
        delete_block(r, prev);
    }
    if (next != NULL) {
        take_free(r, next);
        b->node.size += next->node.size;
        delete_block(r, next);
    }
    g->free_bytes += b->node.size;
    tide__free_index_add(lane_of(r, g), &b->node);
    return tide__map_put(&r->starts, b->node.addr, (uintptr_t)b) &&
           tide__map_put(&r->ends, end_of(b), (uintptr_t)b);
}

static bool add_free(reader *r, uint64_t addr, uint64_t size, uint32_t region) {
    block *b = size > 0 ? new_block(r, addr, size, region) : NULL;
    return size == 0 || (b != NULL && put_free(r, b));
}

/* ---- Pairs ---- */

static bool has_time(reader *r) { return ++r->steps <= r->most_steps; }

static bool differ(reader *r, uint32_t a, uint32_t b) {
    tide__recorded_heap *h = r->out;
    if (a == b) {
        h->regions[a].is_odd = true;
        return true;
    }
    tide__region_pair p = {a < b ? a : b, a < b ? b : a};
    uint64_t key = (uint64_t)p.a << 32 | p.b, there;
    if (tide__map_get(&r->pairs, key, &there)) return true;
    if (h->pair_count > PAIRS_FREE + PAIRS_AN_OP * r->schedule->op_count) {
        r->steps = r->most_steps + 1;
        return true;
    }
    if (!tide__map_put(&r->pairs, key, 0) ||
        !tide__grow((void **)&h->pairs, &r->pair_cap, h->pair_count + 1, sizeof *h->pairs))
        return false;
    h->pairs[h->pair_count++] = p;
    return true;
}

/* What a request may be given: blocks of max_split_size and up are for requests of that size. */
static bool may_serve(const reader *r, uint64_t size, uint64_t have) {
    uint64_t oversize = r->settings->max_split_size;
    if (size < oversize) return have < oversize;
    return have - size < r->settings->max_non_split_rounding;
}

/* Native: the free blocks that a pool would have given rather than b; is_new: than making b's segment. */
static bool compare_fits(reader *r, const block *b, uint64_t size, bool is_new) {
    tide__free_index *lane = lane_of(r, &r->out->regions[b->region]);
    for (tide__free_node *n = tide__free_index_at_least(lane, size, 0); n != NULL;
         n = tide__free_index_next(lane, n)) {
        if (n == &b->node) {
            if (!is_new) return true;
            continue;
        }
        if (!may_serve(r, size, n->size) || !has_time(r)) return true;
        if (!differ(r, b->region, of_node(n)->region)) return false;
    }
    return true;
}

/* ---- Regions ---- */

static bool new_region(reader *r, const tide__region *g) {
    tide__recorded_heap *h = r->out;
    if (!tide__grow((void **)&h->regions, &r->region_cap, h->region_count + 1, sizeof *h->regions) ||
        !tide__grow((void **)&r->alive, &r->alive_cap, r->alive_count + 1, sizeof *r->alive) ||
        !make_lane(r, g->stream, g->is_small))
        return false;
    h->regions[h->region_count] = *g;
    if (r->no_split != NULL) h->regions[h->region_count].no_split = r->no_split[h->region_count];
    r->alive[r->alive_count++] = (uint32_t)h->region_count++;
    return true;
}

static void end_region(reader *r, uint32_t region) {
    size_t i = 0;
    while (i < r->alive_count && r->alive[i] != region) i++;
    r->steps += r->alive_count / 16;
    if (i == r->alive_count) return;
    r->alive_count--;
    for (; i < r->alive_count; i++) r->alive[i] = r->alive[i + 1];
}

/* Expandable: the window that an address is in, or that grows there. */
static uint32_t window_at(reader *r, uint64_t addr) {
    for (size_t i = r->alive_count; i-- > 0 && has_time(r);) {
        const tide__region *g = &r->out->regions[r->alive[i]];
        if (g->base <= addr && addr <= g->top) return r->alive[i];
    }
    return NO_REGION;
}

static uint32_t region_at(reader *r, uint64_t addr) {
    uint64_t region;
    if (r->expandable) return window_at(r, addr);
    return tide__map_get(&r->bases, addr, &region) ? (uint32_t)region : NO_REGION;
}

static bool note_event(reader *r, size_t event, uint32_t region) {
    tide__recorded_heap *h = r->out;
    if (!tide__grow((void **)&h->events, &r->event_cap, h->event_count + 1, sizeof *h->events)) return false;
    h->events[h->event_count++] = (tide__region_event){(uint32_t)event, region};
    return true;
}

/* ---- Growth ---- */

/* What the request was that bytes were taken for: 0 where no request follows. */
static uint64_t request_after(const reader *r, const tide__schedule_op *op) {
    if (op == r->schedule->ops + r->schedule->op_count) return 0;
    bool is_request = op->kind == TIDE__OP_ALLOC || op->kind == TIDE__OP_OOM;
    return is_request ? tide__torch_round(r->settings, op->size) : 0;
}

static bool is_small_growth(const reader *r, const tide__trace_event *e, uint64_t request) {
    if (request != 0) return request <= TIDE__TORCH_SMALL_SIZE;
    return r->expandable ? e->size % r->settings->large_segment_size != 0
                         : e->size == TIDE__TORCH_SMALL_SEGMENT;
}

/* A window that has a free block for the request would not grow. */
static bool look_inside(reader *r, uint32_t region, uint64_t request) {
    tide__free_index *lane = lane_of(r, &r->out->regions[region]);
    for (tide__free_node *n = tide__free_index_at_least(lane, request, 0); n != NULL && has_time(r);
         n = tide__free_index_next(lane, n))
        if (of_node(n)->region == region) return differ(r, region, region);
    return true;
}

static bool meet_windows(reader *r, uint32_t region) {
    const tide__region *g = &r->out->regions[region];
    for (size_t i = 0; i < r->alive_count && has_time(r); i++) {
        const tide__region *other = &r->out->regions[r->alive[i]];
        if (other != g && other->stream == g->stream && other->is_small == g->is_small &&
            !differ(r, region, r->alive[i]))
            return false;
    }
    return true;
}

static bool grow(reader *r, size_t event, const tide__trace_event *e, uint64_t request) {
    uint32_t region = r->expandable ? window_at(r, e->addr) : NO_REGION;
    bool is_new = region == NO_REGION;
    if (is_new) {
        tide__region g = {
            .base = e->addr, .top = e->addr, .stream = e->stream, .is_small = is_small_growth(r, e, request)};
        region = (uint32_t)r->out->region_count;
        if (!new_region(r, &g)) return false;
        if (r->expandable ? !meet_windows(r, region) : !tide__map_put(&r->bases, e->addr, region))
            return false;
    } else if (request != 0 && !look_inside(r, region, request)) {
        return false;
    }
    tide__region *g = &r->out->regions[region];
    g->bytes += e->size;
    g->top = tide__max(g->top, e->addr + e->size);
    r->newest = region;
    return add_free(r, e->addr, e->size, region) && note_event(r, event, region);
}

/* ---- Releases ---- */

/* The free block that holds [addr, addr + size). */
static block *find_free(reader *r, uint32_t region, uint64_t addr, uint64_t size) {
    block *b = free_at(&r->starts, addr, region);
    if (b != NULL) return b->node.size >= size ? b : NULL;
    tide__free_index *lane = lane_of(r, &r->out->regions[region]);
    for (tide__free_node *n = tide__free_index_at_least(lane, size, 0); n != NULL && has_time(r);
         n = tide__free_index_next(lane, n))
        if (of_node(n)->region == region && n->addr <= addr && addr - n->addr <= n->size - size)
            return of_node(n);
    return NULL;
}

static bool give_back(reader *r, size_t event, const tide__trace_event *e) {
    uint32_t region = region_at(r, e->addr);
    if (region == NO_REGION) return true;
    tide__region *g = &r->out->regions[region];
    block *b = find_free(r, region, e->addr, e->size);
    g->in_run = true;
    g->bytes -= tide__min(g->bytes, e->size);
    if (b != NULL) {
        uint64_t front = e->addr - b->node.addr, back = end_of(b) - (e->addr + e->size);
        uint64_t first = b->node.addr;
        take_free(r, b);
        delete_block(r, b);
        if (!add_free(r, first, front, region) || !add_free(r, e->addr + e->size, back, region)) return false;
    }
    if (g->bytes == 0) {
        end_region(r, region);
        tide__map_take(&r->bases, e->addr, NULL);
    }
    return note_event(r, event, region);
}

static bool pair_with_run(reader *r, const uint32_t *run, size_t count, uint32_t kept) {
    for (size_t i = 0; i < count && has_time(r); i++)
        if (!differ(r, run[i], kept)) return false;
    return true;
}

static bool has_whole_page(const reader *r, const tide__region *g, const tide__free_node *n) {
    uint64_t page = page_size(r, g->is_small), offset = n->addr - g->base;
    return (offset + page - 1) / page < (offset + n->size) / page;
}

/* What is free and was kept is not of a pool that was released. */
static bool pair_kept_segments(reader *r, const uint32_t *run, size_t count) {
    for (size_t i = 0; i < r->alive_count && has_time(r); i++) {
        const tide__region *g = &r->out->regions[r->alive[i]];
        if (g->bytes == g->free_bytes && !pair_with_run(r, run, count, r->alive[i])) return false;
    }
    return true;
}

static bool pair_kept_pages(reader *r, const uint32_t *run, size_t count) {
    for (size_t i = 0; i < r->gpu->stream_count * 2; i++) {
        tide__free_index *lane = r->lanes[i];
        if (lane == NULL) continue;
        for (tide__free_node *n = tide__free_index_at_least(lane, page_size(r, i & 1), 0);
             n != NULL && has_time(r); n = tide__free_index_next(lane, n))
            if (has_whole_page(r, &r->out->regions[of_node(n)->region], n) &&
                !pair_with_run(r, run, count, of_node(n)->region))
                return false;
    }
    return true;
}

static tide_status release(reader *r, const tide__schedule_op *op) {
    uint32_t *run = calloc((size_t)op->run_events + 1, sizeof *run);
    size_t count = 0;
    bool fine = run != NULL,
         in_parts = r->settings->gc_threshold > 0 || r->settings->max_split_size != UINT64_MAX;
    for (size_t i = op->event; fine && i < (size_t)op->event + op->run_events; i++) {
        const tide__trace_event *e = &r->gpu->events[i];
        if (!tide__event_is_release(e)) continue;
        size_t before = r->out->event_count;
        uint32_t region = region_at(r, e->addr);
        bool is_first = region != NO_REGION && !r->out->regions[region].in_run;
        fine = give_back(r, i, e);
        if (r->out->event_count > before && is_first) run[count++] = region;
    }
    if (fine && !in_parts)
        fine = r->expandable ? pair_kept_pages(r, run, count) : pair_kept_segments(r, run, count);
    for (size_t i = 0; i < count; i++) r->out->regions[run[i]].in_run = false;
    free(run);
    return fine ? TIDE_OK : no_host_memory();
}

/* ---- Blocks come and go ---- */

static bool can_split(const reader *r, const tide__region *g, uint64_t size, uint64_t rest) {
    if (g->is_small || r->expandable) return rest >= TIDE__TORCH_MIN_BLOCK;
    return size < r->settings->max_split_size && rest > TIDE__TORCH_SMALL_SIZE;
}

static bool alloc(reader *r, const tide__schedule_op *op) {
    uint64_t addr = r->gpu->events[op->event].addr, size = tide__torch_round(r->settings, op->size), value;
    if (!tide__map_get(&r->starts, addr, &value)) return true; /* as no rule does: the model will differ */
    block *b = (block *)(uintptr_t)value;
    tide__region *g = &r->out->regions[b->region];
    if (b->node.size < size || g->stream != op->stream) return true;
    bool is_new = r->newest == b->region && g->bytes == g->free_bytes;
    if (!r->expandable && !compare_fits(r, b, size, is_new)) return false;
    uint64_t offset = addr - g->base;
    g->has_inner |= r->expandable ? offset % page_size(r, g->is_small) != 0 : offset != 0;
    take_free(r, b);
    r->used[op->block] = b;
    r->out->region_of[op->block] = b->region;
    uint64_t rest = b->node.size - size;
    bool rest_is_free = can_split(r, g, size, rest);
    g->has_rest |= rest_is_free;
    if (!rest_is_free || g->no_split) return true;
    b->node.size = size;
    return add_free(r, addr + size, rest, b->region);
}

static bool free_block(reader *r, const tide__schedule_op *op) {
    block *b = r->used[op->block];
    r->used[op->block] = NULL;
    return b == NULL || put_free(r, b);
}

/* ---- The heap before the first event ---- */

static bool import_block(reader *r, const tide__torch_block *t, tide__map *segments) {
    while (t->prev != NULL) t = t->prev;
    uint64_t known;
    if (tide__map_get(segments, (uintptr_t)t->segment, &known)) return true;
    tide__region g = {.base = t->segment->base,
                      .top = t->segment->base,
                      .stream = t->arena->stream,
                      .is_small = t->arena->pool->is_small};
    uint32_t region = (uint32_t)r->out->region_count;
    if (!tide__map_put(segments, (uintptr_t)t->segment, region) || !new_region(r, &g) ||
        (!r->expandable && !tide__map_put(&r->bases, g.base, region)))
        return false;
    for (; t != NULL; t = t->next) {
        if (!t->mapped) continue;
        tide__region *to = &r->out->regions[region];
        block *b = new_block(r, t->node.addr, t->node.size, region);
        if (b == NULL) return false;
        to->bytes += t->node.size;
        to->top = tide__max(to->top, end_of(b));
        if (!t->used) {
            if (!put_free(r, b)) return false;
            continue;
        }
        uint64_t offset = b->node.addr - to->base;
        to->has_inner |= r->expandable ? offset % page_size(r, to->is_small) != 0 : offset != 0;
        r->used[t->owner] = b;
        r->out->region_of[t->owner] = region;
    }
    return true;
}

static bool import_heap(reader *r, const tide__torch_heap *h, tide__torch_block *const *blocks) {
    tide__map segments = {0};
    bool fine = true;
    for (size_t i = 0; fine && i < r->schedule->blocks_before_start; i++)
        if (blocks[i] != NULL) fine = import_block(r, blocks[i], &segments);
    for (size_t i = 0; fine && i < h->pool_count * 2; i++)
        for (size_t k = 0; fine && h->pools[i].arenas != NULL && k < h->stream_count; k++) {
            const tide__torch_arena *a = h->pools[i].arenas[k];
            for (tide__free_node *n = a != NULL ? tide__free_index_at_least(&a->free, 0, 0) : NULL;
                 fine && n != NULL; n = tide__free_index_next(&a->free, n))
                fine = import_block(r, tide__torch_of_node(n), &segments);
        }
    tide__map_free(&segments);
    return fine;
}

static tide_status restore(reader *r, const tide__recorded *recorded) {
    const tide__schedule *s = r->schedule;
    tide__device *device = NULL;
    tide__torch_heap heap = {0};
    tide__restored restored = TIDE__RESTORED_NOT;
    tide__torch_block **blocks = calloc((size_t)s->block_count + 1, sizeof *blocks);
    tide__sim_options sim = {.capacity_bytes = tide__max(TIDE__SIM_H200_BYTES, recorded->peak)};
    tide_status status = blocks != NULL ? tide__sim_open(&sim, &device) : no_host_memory();
    if (status == TIDE_OK)
        status = tide__torch_heap_init(&heap, r->expandable ? &tide__torch_expandable : &tide__torch_native,
                                       r->settings, device, s->gpu->pool_count, s->gpu->stream_count);
    if (status == TIDE_OK) {
        heap.device_bytes = tide__max(heap.device_bytes, recorded->peak);
        status = tide__torch_restore(&heap, s, blocks, &restored);
        if (status != TIDE_OK && status != TIDE_NO_HOST_MEMORY) {
            restored = TIDE__RESTORED_NOT;
            status = TIDE_OK;
        }
        r->out->gave_up = restored == TIDE__RESTORED_NOT || heap.reserved != recorded->initial;
    }
    if (status == TIDE_OK && !r->out->gave_up && !import_heap(r, &heap, blocks)) status = no_host_memory();
    tide__torch_heap_fini(&heap);
    if (device != NULL) device->ops->close(device);
    free(blocks);
    return status;
}

/* ---- The whole ---- */

static tide_status read_growth(reader *r, const tide__schedule_op *op, size_t end) {
    r->newest = NO_REGION;
    for (; r->events_done < end && r->steps <= r->most_steps; r->events_done++) {
        const tide__trace_event *e = &r->gpu->events[r->events_done];
        if (tide__event_is_growth(e) && !grow(r, r->events_done, e, request_after(r, op)))
            return no_host_memory();
    }
    return TIDE_OK;
}

static tide_status read_all(reader *r) {
    const tide__schedule *s = r->schedule;
    tide_status status = TIDE_OK;
    for (size_t i = s->blocks_before_start; status == TIDE_OK && i < s->op_count; i++) {
        const tide__schedule_op *op = &s->ops[i];
        status = read_growth(r, op, op->event);
        if (status != TIDE_OK) break;
        switch (op->kind) {
        case TIDE__OP_ALLOC: status = alloc(r, op) ? TIDE_OK : no_host_memory(); break;
        case TIDE__OP_FREE: status = free_block(r, op) ? TIDE_OK : no_host_memory(); break;
        case TIDE__OP_RELEASE: status = release(r, op); break;
        default: break;
        }
        if (r->steps > r->most_steps) break;
    }
    if (status == TIDE_OK) status = read_growth(r, s->ops + s->op_count, s->gpu->event_count);
    r->out->gave_up |= r->steps > r->most_steps;
    return status;
}

static tide_status begin(reader *r) {
    const tide__schedule *s = r->schedule;
    size_t blocks = (size_t)s->block_count + 1;
    r->lanes = calloc(s->gpu->stream_count * 2, sizeof *r->lanes);
    r->used = calloc(blocks, sizeof(block *));
    r->out->region_of = malloc(blocks * sizeof *r->out->region_of);
    if (r->lanes == NULL || r->used == NULL || r->out->region_of == NULL) return no_host_memory();
    for (size_t i = 0; i < blocks; i++) r->out->region_of[i] = NO_REGION;
    return TIDE_OK;
}

static void end(reader *r) {
    for (size_t i = 0; r->lanes != NULL && i < r->gpu->stream_count * 2; i++) free(r->lanes[i]);
    free(r->lanes);
    free(r->used);
    free(r->alive);
    tide__map_free(&r->starts);
    tide__map_free(&r->ends);
    tide__map_free(&r->bases);
    tide__map_free(&r->pairs);
    while (r->slabs != NULL) {
        slab *s = r->slabs;
        r->slabs = s->next;
        free(s);
    }
}

tide_status tide__recorded_heap_read(const tide__schedule *s, const tide__recorded *recorded,
                                     const tide__torch_settings *settings, const bool *no_split,
                                     tide__recorded_heap *out) {
    *out = (tide__recorded_heap){0};
    reader r = {
        .out = out,
        .schedule = s,
        .gpu = s->gpu,
        .settings = settings,
        .no_split = no_split,
        .expandable = recorded->policy == TIDE__RECORDED_EXPANDABLE,
        .newest = NO_REGION,
        .most_steps = STEPS_FREE + STEPS_AN_OP * (uint64_t)s->op_count,
    };
    bool at_start = recorded->initial_known && recorded->initial == 0 && s->blocks_before_start == 0;
    tide_status status = begin(&r);
    if (status == TIDE_OK && !at_start) {
        if (s->trace->has_segments && recorded->initial_known)
            status = restore(&r, recorded);
        else
            out->gave_up = true;
    }
    if (status == TIDE_OK && !out->gave_up) status = read_all(&r);
    end(&r);
    if (status != TIDE_OK) tide__recorded_heap_free(out);
    return status;
}

void tide__recorded_heap_free(tide__recorded_heap *h) {
    free(h->regions);
    free(h->pairs);
    free(h->events);
    free(h->region_of);
    *h = (tide__recorded_heap){0};
}
