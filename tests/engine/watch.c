/* SPDX-License-Identifier: Apache-2.0 */
/* The device that watches: see watch.h. It is made to be plainly right, not
 * fast: most look-ups walk what there is. */
#include "watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static watch *self(tide__device *d) { return (watch *)d; }

__attribute__((format(printf, 2, 3))) static void trouble(watch *w, const char *format, ...) {
    va_list args;
    if (w->trouble[0] != '\0') {
        return;
    }
    va_start(args, format);
    vsnprintf(w->trouble, sizeof w->trouble, format, args);
    va_end(args);
}

__attribute__((format(printf, 1, 2))) static void trace(const char *format, ...) {
    static int on = -1;
    va_list args;
    if (on < 0) {
        on = getenv("PAGETIDE_TEST_TRACE") != NULL;
    }
    if (on > 0) {
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
    }
}

static void must(bool room) {
    if (!room) {
        fprintf(stderr, "watch: no host memory\n");
        abort();
    }
}

/* ---- Clocks ---- */

static void join(watch_clock *to, const watch_clock *from) {
    for (size_t i = 0; i < WATCH_STREAMS; i++) {
        to->at[i] = tide__max(to->at[i], from->at[i]);
    }
}

uint16_t watch_slot(watch *w, int gpu, tide_stream stream) {
    watch_gpu *g = &w->gpus[gpu];
    for (size_t i = 0; i < g->stream_count; i++) {
        if (g->streams[i].there && g->streams[i].handle == stream) {
            return (uint16_t)i;
        }
    }
    TIDE__CHECK(g->stream_count < WATCH_STREAMS);
    g->streams[g->stream_count] = (watch_stream){.handle = stream, .there = true, .tick = 1};
    return (uint16_t)g->stream_count++;
}

static watch_event *event_of(watch_gpu *g, tide__event event) {
    for (size_t i = 0; i < g->event_count; i++) {
        if (g->events[i].event == event) {
            return &g->events[i];
        }
    }
    return NULL;
}

static void host_learns(watch_gpu *g, tide__event event) {
    const watch_event *e = event_of(g, event);
    if (e != NULL) {
        join(&g->host, &e->clock);
    }
}

/* May work queued now on slot `taker` come after this free? taker < 0: the host itself. */
static bool passed(const watch *w, const watch_gpu *g, const watch_free *f, int taker) {
    bool own = taker >= 0 && f->owner == taker;
    for (size_t s = 0; s < WATCH_STREAMS; s++) {
        uint64_t known = g->host.at[s];
        if (taker >= 0) {
            known = tide__max(known, g->streams[taker].clock.at[s]);
        }
        if ((int)s == taker) { /* a stream comes after itself */
            continue;
        }
        bool needed = own ? ((f->recorded >> s) & 1) != 0 : f->ticks[s] != 0;
        if (needed && known < f->ticks[s]) {
            return false;
        }
    }
    const watch_stream *owner = &g->streams[f->owner]; /* off: nobody else's, unless the stream is no more */
    return own || taker < 0 || w->mode != TIDE_CROSS_STREAM_OFF || owner->retired || !owner->there;
}

/* ---- Mappings ---- */

/* The first mapping that ends beyond va. */
static size_t first_beyond(const watch_gpu *g, uint64_t va) {
    size_t low = 0, high = g->mapping_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (g->mappings[middle]->va + g->mappings[middle]->size <= va) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static watch_chunk *chunk_of_handle(watch_gpu *g, tide__chunk_handle handle, size_t *index) {
    for (size_t i = 0; i < g->chunk_count; i++) {
        if (g->chunks[i].handle == handle && g->chunks[i].held) {
            *index = i;
            return &g->chunks[i];
        }
    }
    return NULL;
}

bool watch_live_overlaps(const watch *w, int gpu, uint64_t va, uint64_t size) {
    const watch_gpu *g = &w->gpus[gpu];
    for (size_t i = 0; i < g->live_count; i++) {
        if (g->live[i].va < va + size && va < g->live[i].va + g->live[i].size) {
            return true;
        }
    }
    return false;
}

static void span_add(watch_mapping *m, uint64_t from, uint64_t to, size_t freed) {
    watch_span *old = m->spans;
    size_t count = m->span_count;
    m->spans = NULL;
    m->span_count = m->span_cap = 0;
    must(tide__grow((void **)&m->spans, &m->span_cap, count * 2 + 1, sizeof *m->spans));
    for (size_t i = 0; i < count; i++) {
        const watch_span s = old[i];
        if (s.from < tide__min(s.to, from)) {
            m->spans[m->span_count++] = (watch_span){s.from, tide__min(s.to, from), s.freed};
        }
        if (tide__max(s.from, to) < s.to) {
            m->spans[m->span_count++] = (watch_span){tide__max(s.from, to), s.to, s.freed};
        }
    }
    m->spans[m->span_count++] = (watch_span){from, to, freed};
    free(old);
}

/* ---- What callers do ---- */

static void check_piece(watch *w, int gpu, const watch_mapping *m, uint64_t from, uint64_t to, uint16_t taker,
                        uint64_t pool) {
    watch_gpu *g = &w->gpus[gpu];
    for (size_t i = 0; i < g->mapping_count; i++) {
        const watch_mapping *n = g->mappings[i];
        if (n->chunk != m->chunk) {
            continue;
        }
        for (size_t k = 0; k < g->live_count; k++) {
            const watch_live *l = &g->live[k];
            if (l->va >= n->va + n->size || n->va >= l->va + l->size) {
                continue;
            }
            if (l->pool != pool) {
                trouble(w, "one chunk under blocks of pools %" PRIu64 " and %" PRIu64, l->pool, pool);
            }
            if (n != m && l->va < n->va + to && n->va + from < l->va + l->size) {
                trouble(w,
                        "the bytes of a new block are those of the live block at %#" PRIx64 ", by an alias",
                        l->va);
            }
        }
        for (size_t k = 0; k < n->span_count; k++) {
            const watch_span *s = &n->spans[k];
            if (s->from < to && from < s->to && !passed(w, g, &g->frees[s->freed], taker)) {
                trouble(w,
                        "stream slot %u got bytes at %#" PRIx64
                        " that slot %u freed, before the work queued by then "
                        "is known to be done",
                        taker, m->va + tide__max(from, s->from), g->frees[s->freed].owner);
            }
        }
    }
}

void watch_took(watch *w, int gpu, uint64_t va, uint64_t size, uint16_t taker, uint64_t pool) {
    watch_gpu *g = &w->gpus[gpu];
    trace("took %#" PRIx64 " size %" PRIu64 " slot %u pool %" PRIu64 "\n", va, size, taker, pool);
    if (watch_live_overlaps(w, gpu, va, size)) {
        trouble(w, "a new block at %#" PRIx64 " of %" PRIu64 " bytes overlaps a live one", va, size);
    }
    uint64_t at = va;
    for (size_t i = first_beyond(g, va); at < va + size; i++) {
        if (i >= g->mapping_count || g->mappings[i]->va > at || !g->mappings[i]->accessible) {
            trouble(w, "a new block at %#" PRIx64 " of %" PRIu64 " bytes: nothing accessible at %#" PRIx64,
                    va, size, at);
            break;
        }
        const watch_mapping *m = g->mappings[i];
        uint64_t to = tide__min(va + size, m->va + m->size);
        check_piece(w, gpu, m, at - m->va, to - m->va, taker, pool);
        at = to;
    }
    must(tide__grow((void **)&g->live, &g->live_cap, g->live_count + 1, sizeof *g->live));
    g->live[g->live_count++] = (watch_live){va, size, taker, pool, 0};
}

static watch_live *live_at(watch_gpu *g, uint64_t va) {
    for (size_t i = 0; i < g->live_count; i++) {
        if (g->live[i].va == va) {
            return &g->live[i];
        }
    }
    return NULL;
}

void watch_recorded(watch *w, int gpu, uint64_t va, uint16_t slot) {
    watch_live *l = live_at(&w->gpus[gpu], va);
    TIDE__CHECK(l != NULL);
    l->recorded |= UINT64_C(1) << slot;
}

void watch_freed(watch *w, int gpu, uint64_t va) {
    watch_gpu *g = &w->gpus[gpu];
    watch_live *l = live_at(g, va);
    TIDE__CHECK(l != NULL);
    trace("freed %#" PRIx64 " size %" PRIu64 " slot %u\n", va, l->size, l->owner);
    must(tide__grow((void **)&g->frees, &g->free_cap, g->free_count + 1, sizeof *g->frees));
    watch_free *f = &g->frees[g->free_count];
    *f = (watch_free){.owner = l->owner, .recorded = l->recorded};
    for (size_t s = 0; s < g->stream_count; s++) {
        watch_stream *st = &g->streams[s];
        if (st->seen) {
            f->ticks[s] = st->there && !st->retired ? ++st->tick : st->tick;
        }
    }
    for (size_t i = first_beyond(g, va); i < g->mapping_count && g->mappings[i]->va < va + l->size; i++) {
        watch_mapping *m = g->mappings[i];
        span_add(m, tide__max(va, m->va) - m->va, tide__min(va + l->size, m->va + m->size) - m->va,
                 g->free_count);
    }
    g->free_count++;
    *l = g->live[--g->live_count];
}

void watch_retired(watch *w, int gpu, tide_stream stream) {
    w->gpus[gpu].streams[watch_slot(w, gpu, stream)].retired = true;
}

uint64_t watch_pinned_bytes(const watch *w, int gpu) {
    const watch_gpu *g = &w->gpus[gpu];
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->mapping_count; i++) {
        const watch_mapping *m = g->mappings[i];
        bytes += watch_live_overlaps(w, gpu, m->va, m->size) ? m->size : 0;
    }
    return bytes;
}

uint64_t watch_alias_bytes(const watch *w, int gpu) {
    const watch_gpu *g = &w->gpus[gpu];
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->chunk_count; i++) {
        bytes += g->chunks[i].mappings > 1 ? (g->chunks[i].mappings - 1) * g->chunks[i].size : 0;
    }
    return bytes;
}

/* ---- The table: what the engine does ---- */

static void watch_close(tide__device *d) {
    watch *w = self(d);
    watch_left left = {.closed = true};
    for (int gpu = 0; gpu < WATCH_GPUS; gpu++) {
        watch_gpu *g = &w->gpus[gpu];
        for (size_t i = 0; i < g->chunk_count; i++) {
            left.chunks += g->chunks[i].held;
        }
        left.mappings += g->mapping_count;
        left.reservations += g->reservations.count;
        left.events += g->event_count;
        for (size_t i = 0; i < g->mapping_count; i++) {
            free(g->mappings[i]->spans);
            free(g->mappings[i]);
        }
        free(g->mappings);
        free(g->chunks);
        free(g->events);
        free(g->frees);
        free(g->live);
        tide__map_free(&g->reservations);
    }
    if (w->left != NULL) {
        *w->left = left;
    }
    w->inner->ops->close(w->inner);
    free(w);
}

static int watch_count(tide__device *d) { return self(d)->inner->ops->count(self(d)->inner); }

static tide_status watch_properties(tide__device *d, int gpu, tide__device_properties *out) {
    return self(d)->inner->ops->properties(self(d)->inner, gpu, out);
}

static tide_status watch_mem_info(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    return self(d)->inner->ops->mem_info(self(d)->inner, gpu, free_bytes, total_bytes);
}

static tide_status watch_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                                 uint64_t *va) {
    watch *w = self(d);
    tide_status status = w->inner->ops->reserve(w->inner, gpu, size, align, hint, va);
    if (status == TIDE_OK) {
        must(tide__map_put(&w->gpus[gpu].reservations, *va, size));
    }
    return status;
}

static tide_status watch_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    watch *w = self(d);
    tide_status status = w->inner->ops->unreserve(w->inner, gpu, va, size);
    if (status == TIDE_OK) {
        tide__map_take(&w->gpus[gpu].reservations, va, NULL);
    }
    return status;
}

static tide_status watch_chunk_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->chunk_create(w->inner, gpu, size, out);
    if (status == TIDE_OK) {
        must(tide__grow((void **)&g->chunks, &g->chunk_cap, g->chunk_count + 1, sizeof *g->chunks));
        g->chunks[g->chunk_count++] = (watch_chunk){.handle = *out, .size = size, .held = true};
        g->held_bytes += size;
        g->peak_held_bytes = tide__max(g->peak_held_bytes, g->held_bytes);
        g->created++;
    }
    return status;
}

static tide_status watch_chunk_release(tide__device *d, int gpu, tide__chunk_handle handle) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    size_t index = 0;
    watch_chunk *k = chunk_of_handle(g, handle, &index);
    if (k == NULL) {
        trouble(w, "release of a chunk that is not held");
    } else if (k->mappings > 0) {
        trouble(w, "release of a chunk that is mapped");
    }
    tide_status status = w->inner->ops->chunk_release(w->inner, gpu, handle);
    trace("release %#" PRIx64 ": %s\n", handle, tide_status_name(status));
    if (status == TIDE_OK && k != NULL) {
        k->held = false;
        g->held_bytes -= k->size;
        g->released++;
    }
    return status;
}

static tide_status watch_map(tide__device *d, int gpu, uint64_t va, uint64_t size,
                             tide__chunk_handle handle) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    size_t chunk = 0;
    tide_status status = w->inner->ops->map(w->inner, gpu, va, size, handle);
    trace("map %#" PRIx64 " size %" PRIu64 " chunk %#" PRIx64 ": %s\n", va, size, handle,
          tide_status_name(status));
    if (status != TIDE_OK) {
        return status;
    }
    if (chunk_of_handle(g, handle, &chunk) == NULL) {
        trouble(w, "map of a chunk that is not held");
        return status;
    }
    size_t at = first_beyond(g, va);
    if (at < g->mapping_count && g->mappings[at]->va < va + size) {
        trouble(w, "map at %#" PRIx64 " where something is mapped", va);
    }
    must(tide__grow((void **)&g->mappings, &g->mapping_cap, g->mapping_count + 1, sizeof(watch_mapping *)));
    memmove(g->mappings + at + 1, g->mappings + at, (g->mapping_count - at) * sizeof(watch_mapping *));
    g->mappings[at] = calloc(1, sizeof(watch_mapping));
    must(g->mappings[at] != NULL);
    *g->mappings[at] = (watch_mapping){.va = va, .size = size, .chunk = chunk};
    g->mapping_count++;
    g->chunks[chunk].mappings++;
    g->mapped_bytes += size;
    return status;
}

static tide_status watch_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->set_access(w->inner, gpu, va, size);
    for (size_t i = first_beyond(g, va);
         status == TIDE_OK && i < g->mapping_count && g->mappings[i]->va < va + size; i++) {
        g->mappings[i]->accessible = true;
    }
    return status;
}

/* Nothing that is live, and nothing that queued work may still use, is unmapped. */
static void check_unmap(watch *w, int gpu, const watch_mapping *m) {
    const watch_gpu *g = &w->gpus[gpu];
    if (watch_live_overlaps(w, gpu, m->va, m->size)) {
        trouble(w, "unmap at %#" PRIx64 " under a live block", m->va);
    }
    for (size_t i = 0; i < m->span_count; i++) {
        if (!passed(w, g, &g->frees[m->spans[i].freed], -1)) {
            trouble(w,
                    "unmap at %#" PRIx64
                    " before the work queued by the free of its bytes is known to be done",
                    m->va + m->spans[i].from);
        }
    }
}

static tide_status watch_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->unmap(w->inner, gpu, va, size);
    trace("unmap %#" PRIx64 " size %" PRIu64 ": %s\n", va, size, tide_status_name(status));
    if (status != TIDE_OK) {
        return status;
    }
    size_t at = first_beyond(g, va);
    while (at < g->mapping_count && g->mappings[at]->va < va + size) {
        watch_mapping *m = g->mappings[at];
        check_unmap(w, gpu, m);
        g->chunks[m->chunk].mappings--;
        g->mapped_bytes -= m->size;
        free(m->spans);
        free(m);
        memmove(g->mappings + at, g->mappings + at + 1, (--g->mapping_count - at) * sizeof(watch_mapping *));
    }
    return status;
}

static tide_status watch_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va) {
    return self(d)->inner->ops->raw_alloc(self(d)->inner, gpu, size, va);
}

static tide_status watch_raw_free(tide__device *d, int gpu, uint64_t va) {
    return self(d)->inner->ops->raw_free(self(d)->inner, gpu, va);
}

static tide_status watch_stream_id(tide__device *d, int gpu, tide_stream stream, uint64_t *id) {
    watch *w = self(d);
    tide_status status = w->inner->ops->stream_id(w->inner, gpu, stream, id);
    if (status == TIDE_OK) {
        watch_stream *s = &w->gpus[gpu].streams[watch_slot(w, gpu, stream)];
        s->seen = true;
        s->retired = false;
    }
    return status;
}

static tide_status watch_stream_create(tide__device *d, int gpu, tide_stream *out) {
    return self(d)->inner->ops->stream_create(self(d)->inner, gpu, out);
}

static tide_status watch_stream_destroy(tide__device *d, int gpu, tide_stream stream) {
    watch *w = self(d);
    tide_status status = w->inner->ops->stream_destroy(w->inner, gpu, stream);
    if (status == TIDE_OK) {
        w->gpus[gpu].streams[watch_slot(w, gpu, stream)].there = false;
    }
    return status;
}

static tide_status watch_event_create(tide__device *d, int gpu, tide__event *out) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->event_create(w->inner, gpu, out);
    if (status == TIDE_OK) {
        must(tide__grow((void **)&g->events, &g->event_cap, g->event_count + 1, sizeof *g->events));
        g->events[g->event_count++] = (watch_event){.event = *out};
        g->peak_events = tide__max(g->peak_events, g->event_count);
    }
    return status;
}

static tide_status watch_event_destroy(tide__device *d, int gpu, tide__event event) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->event_destroy(w->inner, gpu, event);
    watch_event *e = event_of(g, event);
    if (status == TIDE_OK && e != NULL) {
        *e = g->events[--g->event_count];
    }
    return status;
}

static tide_status watch_event_record(tide__device *d, int gpu, tide__event event, tide_stream stream) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->event_record(w->inner, gpu, event, stream);
    trace("record event %#" PRIx64 " on stream %" PRIu64 ": %s\n", event, stream, tide_status_name(status));
    watch_event *e = event_of(g, event);
    if (status == TIDE_OK && e != NULL) {
        uint16_t slot = watch_slot(w, gpu, stream);
        e->clock = g->streams[slot].clock;
        join(&e->clock, &g->host);
        e->clock.at[slot] = g->streams[slot].tick;
    }
    return status;
}

static tide_status watch_event_query(tide__device *d, int gpu, tide__event event) {
    watch *w = self(d);
    tide_status status = w->inner->ops->event_query(w->inner, gpu, event);
    trace("query event %#" PRIx64 ": %s\n", event, tide_status_name(status));
    if (status == TIDE_OK) {
        host_learns(&w->gpus[gpu], event);
    }
    return status;
}

static tide_status watch_event_wait(tide__device *d, int gpu, tide__event event, uint64_t timeout_ns) {
    watch *w = self(d);
    tide_status status = w->inner->ops->event_wait(w->inner, gpu, event, timeout_ns);
    trace("wait event %#" PRIx64 ": %s\n", event, tide_status_name(status));
    if (status == TIDE_OK) {
        host_learns(&w->gpus[gpu], event);
    }
    return status;
}

static tide_status watch_stream_wait(tide__device *d, int gpu, tide_stream stream, tide__event event) {
    watch *w = self(d);
    watch_gpu *g = &w->gpus[gpu];
    tide_status status = w->inner->ops->stream_wait_event(w->inner, gpu, stream, event);
    trace("stream %" PRIu64 " waits for event %#" PRIx64 ": %s\n", stream, event, tide_status_name(status));
    const watch_event *e = event_of(g, event);
    if (status == TIDE_OK && e != NULL) {
        join(&g->streams[watch_slot(w, gpu, stream)].clock, &e->clock);
    }
    return status;
}

static tide_status watch_stream_capturing(tide__device *d, int gpu, tide_stream stream, bool *out) {
    return self(d)->inner->ops->stream_capturing(self(d)->inner, gpu, stream, out);
}

static tide_status watch_peer_enable(tide__device *d, int gpu, int peer) {
    return self(d)->inner->ops->peer_enable(self(d)->inner, gpu, peer);
}

static tide_status watch_device_wait(tide__device *d, int gpu, uint64_t timeout_ns) {
    watch *w = self(d);
    tide_status status = w->inner->ops->device_wait(w->inner, gpu, timeout_ns);
    trace("wait for the device: %s\n", tide_status_name(status));
    for (size_t i = 0; status == TIDE_OK && i < w->gpus[gpu].stream_count; i++) {
        join(&w->gpus[gpu].host, &w->gpus[gpu].streams[i].clock);
    }
    return status;
}

static tide__health watch_health(tide__device *d) { return self(d)->inner->ops->health(self(d)->inner); }

static uint64_t watch_now_ns(tide__device *d) { return self(d)->inner->ops->now_ns(self(d)->inner); }

static void watch_counters(tide__device *d, int gpu, tide__device_counters *out) {
    self(d)->inner->ops->counters(self(d)->inner, gpu, out);
}

static const tide__device_ops watch_ops = {
    .struct_size = sizeof watch_ops,
    .name = "watch",
    .close = watch_close,
    .count = watch_count,
    .properties = watch_properties,
    .mem_info = watch_mem_info,
    .reserve = watch_reserve,
    .unreserve = watch_unreserve,
    .chunk_create = watch_chunk_create,
    .chunk_release = watch_chunk_release,
    .map = watch_map,
    .set_access = watch_set_access,
    .unmap = watch_unmap,
    .raw_alloc = watch_raw_alloc,
    .raw_free = watch_raw_free,
    .stream_id = watch_stream_id,
    .stream_create = watch_stream_create,
    .stream_destroy = watch_stream_destroy,
    .event_create = watch_event_create,
    .event_destroy = watch_event_destroy,
    .event_record = watch_event_record,
    .event_query = watch_event_query,
    .event_wait = watch_event_wait,
    .stream_wait_event = watch_stream_wait,
    .stream_capturing = watch_stream_capturing,
    .peer_enable = watch_peer_enable,
    .device_wait = watch_device_wait,
    .health = watch_health,
    .now_ns = watch_now_ns,
    .counters = watch_counters,
};

watch *watch_open(tide__device *inner, tide_cross_stream mode, watch_left *left) {
    watch *w = calloc(1, sizeof *w);
    must(w != NULL && inner->ops->count(inner) <= WATCH_GPUS);
    w->base.ops = &watch_ops;
    w->inner = inner;
    w->mode = mode;
    w->left = left;
    return w;
}
