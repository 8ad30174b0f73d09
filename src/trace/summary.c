/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map holds every address that was ever allocated or freed: its block's size
 * while it lives, FREED afterwards, so that a free of a block from before the
 * first entry is told from a second free. What is live is counted from the first
 * entry on, in a type that the sizes of any trace fit, and the bytes from before
 * are added when all of them are known.
 */
#include "trace/summary.h"

#include <stdlib.h>

#include "trace/intern.h"

#define FREED UINT64_MAX

typedef __int128 wide;

typedef struct pass {
    const tide__trace_gpu *gpu;
    tide__gpu_summary *out;
    uint64_t seed;
    tide__map blocks;   /* scrambled address: size, or FREED */
    tide__map phase_of; /* string: index into phases */
    size_t phase_capacity, phase;
    wide live, peak;   /* since the first entry */
    wide *phase_peaks; /* as many as phases */
    size_t peak_capacity;
    wide start;
    bool segments_alloc, segments_map;
} pass;

const char *tide__recorded_policy_name(tide__recorded_policy policy) {
    static const char *const names[] = {NULL, "native", "expandable", "mixed"};
    return names[policy];
}

static uint64_t key_of(const pass *p, uint64_t addr) { return tide__intern_scramble(p->seed, addr); }

static tide_status no_memory(void) { return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory"); }

static uint64_t clip(wide v) {
    if (v < 0) return 0;
    return v > (wide)UINT64_MAX ? UINT64_MAX : (uint64_t)v;
}

static uint64_t add(uint64_t a, uint64_t b) { return clip((wide)a + b); }

/* ---- Phases ---- */

static bool find_phase(pass *p, uint32_t name) {
    uint64_t index;
    tide__gpu_summary *s = p->out;
    if (!tide__map_get(&p->phase_of, name, &index)) {
        index = s->phase_count;
        if (!tide__grow((void **)&s->phases, &p->phase_capacity, index + 1, sizeof *s->phases) ||
            !tide__grow((void **)&p->phase_peaks, &p->peak_capacity, index + 1, sizeof *p->phase_peaks) ||
            !tide__map_put(&p->phase_of, name, index)) {
            return false;
        }
        s->phases[s->phase_count++] = (tide__phase_summary){.phase = name};
        p->phase_peaks[index] = p->live;
    }
    p->phase = index;
    return true;
}

static bool enter_phase(pass *p, const tide__trace_event *e, bool first) {
    if (!e->has_phase) {
        p->out->without_phase++;
        if (!first) {
            return true;
        }
    }
    bool same = !first && p->out->phases[p->phase].phase == e->phase;
    if (!same && !find_phase(p, e->phase)) {
        return false;
    }
    TIDE__ASSERT(p->phase_peaks != NULL);
    /* What is live when a phase is entered is live in it. */
    if (p->live > p->phase_peaks[p->phase]) {
        p->phase_peaks[p->phase] = p->live;
    }
    return true;
}

/* ---- Blocks ---- */

static bool on_alloc(pass *p, const tide__trace_event *e) {
    tide__gpu_summary *s = p->out;
    uint64_t old;
    if (tide__map_get(&p->blocks, key_of(p, e->addr), &old) && old != FREED) {
        s->allocated_twice++;
        p->live -= old;
    }
    int bucket = e->size == 0 ? 0 : tide__log2_floor(e->size);
    s->bucket_allocations[bucket]++;
    s->bucket_bytes[bucket] = add(s->bucket_bytes[bucket], e->size);
    tide__phase_summary *phase = &s->phases[p->phase];
    phase->allocations++;
    phase->allocated_bytes = add(phase->allocated_bytes, e->size);
    s->streams[e->stream].allocations++;
    s->pools[e->pool].allocations++;
    p->live += e->size;
    p->peak = p->live > p->peak ? p->live : p->peak;
    if (p->live > p->phase_peaks[p->phase]) {
        p->phase_peaks[p->phase] = p->live;
    }
    return tide__map_put(&p->blocks, key_of(p, e->addr), e->size);
}

static bool on_free(pass *p, const tide__trace_event *e, const tide__trace_event *before) {
    uint64_t size;
    if (before == NULL || before->action != TIDE__ACTION_FREE_REQUESTED || before->addr != e->addr) {
        p->out->late_frees++;
    }
    if (!tide__map_get(&p->blocks, key_of(p, e->addr), &size)) {
        p->out->start_blocks++;
        p->start += e->size;
        size = e->size;
    } else if (size == FREED) {
        p->out->freed_twice++;
        return true;
    }
    p->live -= size;
    return tide__map_put(&p->blocks, key_of(p, e->addr), FREED);
}

static bool on_event(pass *p, size_t i) {
    const tide__trace_event *e = &p->gpu->events[i];
    tide__gpu_summary *s = p->out;
    if (!enter_phase(p, e, i == 0)) {
        return false;
    }
    s->actions[e->action]++;
    s->streams[e->stream].events++;
    s->pools[e->pool].events++;
    s->phases[p->phase].events++;
    s->with_stack += e->stack != 0;
    if (e->time_us != 0) {
        s->first_us = s->first_us == 0 || e->time_us < s->first_us ? e->time_us : s->first_us;
        s->last_us = s->last_us == 0 || e->time_us > s->last_us ? e->time_us : s->last_us;
    }
    switch (e->action) {
    case TIDE__ACTION_ALLOC: return on_alloc(p, e);
    case TIDE__ACTION_FREE_COMPLETED: return on_free(p, e, i > 0 ? e - 1 : NULL);
    case TIDE__ACTION_SEGMENT_ALLOC:
    case TIDE__ACTION_SEGMENT_FREE: p->segments_alloc = true; return true;
    case TIDE__ACTION_SEGMENT_MAP:
    case TIDE__ACTION_SEGMENT_UNMAP: p->segments_map = true; return true;
    default: return true;
    }
}

/* Blocks of the list at the end that no event knows have lived all along. */
static void add_old_blocks(pass *p) {
    for (size_t i = 0; i < p->gpu->block_count; i++) {
        const tide__trace_block *b = &p->gpu->blocks[i];
        uint64_t size;
        if (b->state == TIDE__BLOCK_INACTIVE || tide__map_get(&p->blocks, key_of(p, b->addr), &size)) {
            continue;
        }
        p->out->start_blocks++;
        p->out->end_blocks++;
        p->start += b->requested_size;
    }
}

static void finish(pass *p) {
    tide__gpu_summary *s = p->out;
    for (size_t i = 0; i < p->blocks.capacity; i++) {
        s->end_blocks += p->blocks.used[i] && p->blocks.slots[i].value != FREED;
    }
    add_old_blocks(p);
    s->start_bytes = clip(p->start);
    s->end_bytes = clip(p->start + p->live);
    s->peak_live_bytes = clip(p->start + p->peak);
    TIDE__ASSERT(s->phase_count == 0 || p->phase_peaks != NULL);
    for (size_t i = 0; i < s->phase_count; i++) {
        s->phases[i].peak_live_bytes = clip(p->start + p->phase_peaks[i]);
    }
    if (p->segments_alloc || p->segments_map) {
        s->policy = !p->segments_map     ? TIDE__RECORDED_NATIVE
                    : !p->segments_alloc ? TIDE__RECORDED_EXPANDABLE
                                         : TIDE__RECORDED_MIXED;
    }
}

tide_status tide__gpu_summarize(const tide__trace_gpu *gpu, tide__gpu_summary *out) {
    *out = (tide__gpu_summary){.streams = calloc(gpu->stream_count + 1, sizeof *out->streams),
                               .pools = calloc(gpu->pool_count + 1, sizeof *out->pools)};
    if (out->streams == NULL || out->pools == NULL) {
        return no_memory();
    }
    pass p = {.gpu = gpu, .out = out, .seed = tide__intern_seed()};
    bool ok = true;
    for (size_t i = 0; i < gpu->event_count && ok; i++) {
        ok = on_event(&p, i);
    }
    if (ok) {
        finish(&p);
    }
    tide__map_free(&p.blocks);
    tide__map_free(&p.phase_of);
    free(p.phase_peaks);
    return ok ? TIDE_OK : no_memory();
}

void tide__gpu_summary_free(tide__gpu_summary *s) {
    free(s->streams);
    free(s->pools);
    free(s->phases);
    *s = (tide__gpu_summary){0};
}
