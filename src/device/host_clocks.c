/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is ordered before what, and who touched which bytes.
 *
 * Each stream has a lane and counts its operations there. A vector clock says,
 * for each lane, up to which operation things are known to come before: the
 * stream's own clock for what is queued next, an event's for what the record
 * covered, the host's for what the host knows to be done (host.h has the
 * rules). Operation (lane, n) comes before one with clock C if C[lane] >= n.
 * Lanes outlive streams: a destroyed stream's operations are all in the host's
 * clock, and the next stream on its lane counts on.
 *
 * Clocks depend only on the order of the calls, so all checks are made when an
 * operation is queued, in that order: an operation can only be ordered after
 * those queued before it.
 *
 * Histories. For the bytes of the memfd, in cells of 2 MiB, spans hold the last
 * write and the reads since, of which each read drops those that come before
 * it. Offsets keep their history when a chunk is released and another gets the
 * same bytes. For each mapping there is the list of operations through it that
 * no later one follows: all must be known to the host before it is unmapped.
 *
 *     cell        0            64K        192K                   2M
 *     spans       [ w:(1,7)    ][ w:(2,3) r:(1,9),(3,1) ]  gap
 *
 * Bounds: a history that the host knows to be done can never be at odds with
 * anything that follows, so it is dropped when its cell is next written. Spans
 * are at most as many as the edges of ranges in use. Memory for histories is
 * checked, not reported: a test that runs out of it aborts.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_internal.h"

/* ---- Vector clocks ---- */

bool tide__host_clock_grow(tide__host_clock *c, size_t count) {
    if (count <= c->count) {
        return true;
    }
    uint64_t *at = realloc(c->at, count * sizeof *at);
    if (!at) {
        return false;
    }
    memset(at + c->count, 0, (count - c->count) * sizeof *at);
    c->at = at;
    c->count = count;
    return true;
}

void tide__host_clock_free(tide__host_clock *c) {
    free(c->at);
    *c = (tide__host_clock){0};
}

/* All clocks of a GPU have room for all its lanes, and nothing but zeros beyond
 * (one may be longer than another where growing failed half way), so this
 * cannot fail. */
void tide__host_clock_join(tide__host_clock *into, const tide__host_clock *from) {
    for (size_t i = 0; i < from->count && i < into->count; i++) {
        into->at[i] = tide__max(into->at[i], from->at[i]);
    }
    for (size_t i = into->count; i < from->count; i++) {
        TIDE__ASSERT(from->at[i] == 0);
    }
}

void tide__host_clock_set(tide__host_clock *to, const tide__host_clock *from) {
    memset(to->at, 0, to->count * sizeof *to->at);
    tide__host_clock_join(to, from);
}

/* ---- Violations ---- */

const char *tide__host_wrong_name(tide__host_wrong kind) {
    static const char *const names[TIDE__HOST_WRONG_COUNT] = {
        [TIDE__HOST_UNORDERED] = "unordered operations",
        [TIDE__HOST_UNMAP_BUSY] = "unmapped under queued work",
        [TIDE__HOST_UNMAP_UNKNOWN] = "unmapped without knowing that work is done",
        [TIDE__HOST_NOT_MAPPED] = "work queued on addresses that are not mapped and accessible",
        [TIDE__HOST_UNMAPPED_WORK] = "work executed on addresses that were unmapped after it was queued",
    };
    return (unsigned)kind < TIDE__HOST_WRONG_COUNT ? names[kind] : "unknown";
}

static int describe_operation(char *text, size_t size, const char *label, const tide__host_operation *op) {
    return snprintf(text, size,
                    "\n  %s: %s %s [0x%" PRIx64 ", +%" PRIu64 "), operation %" PRIu64 " of stream %" PRIu64
                    ", chunk 0x%" PRIx64,
                    label, op->what, op->writes ? "writes" : "reads", op->va, op->size, op->sequence,
                    op->stream_id, op->chunk);
}

/* Fills v->text from its other fields and a last remark. */
void tide__host_describe(tide__host_violation *v, const char *format, ...) {
    size_t size = sizeof v->text, n = 0;
    n += (size_t)snprintf(v->text, size,
                          "pagetide host device, GPU %d: %s, bytes [0x%" PRIx64 ", +%" PRIu64 ")", v->gpu,
                          tide__host_wrong_name(v->kind), v->va, v->size);
    if (v->earlier.what && n < size) {
        n += (size_t)describe_operation(v->text + n, size - n, v->later.what ? "earlier" : "work",
                                        &v->earlier);
    }
    if (v->later.what && n < size) {
        n += (size_t)describe_operation(v->text + n, size - n, "later", &v->later);
    }
    if (n + 3 >= size) {
        return;
    }
    n += (size_t)snprintf(v->text + n, size - n, "\n  ");
    va_list args;
    va_start(args, format);
    vsnprintf(v->text + n, size - n, format, args);
    va_end(args);
}

void tide__host_set_handler(tide__device *d, tide__host_handler handler, void *user) {
    tide__host *h = tide__host_of(d);
    pthread_mutex_lock(&h->handler_lock);
    h->handler = handler;
    h->handler_user = user;
    pthread_mutex_unlock(&h->handler_lock);
}

void tide__host_report(tide__host_gpu *g, const tide__host_violation *v) {
    tide__host *h = g->host;
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_lock(&h->handler_lock);
    tide__host_handler handler = h->handler;
    void *user = h->handler_user;
    pthread_mutex_unlock(&h->handler_lock);
    if (!handler) {
        fprintf(stderr, "%s\n", v->text);
        abort();
    }
    handler(user, v);
    pthread_mutex_lock(&g->lock);
}

/* ---- Histories of bytes ---- */

static void *checked(void *memory) {
    TIDE__CHECK(memory); /* no memory for histories: see the head */
    return memory;
}

static tide__host_cell *cell_at(tide__host_gpu *g, uint64_t index) {
    uint64_t value;
    if (tide__map_get(&g->cells, index, &value)) {
        return (tide__host_cell *)value;
    }
    tide__host_cell *cell = checked(calloc(1, sizeof *cell));
    TIDE__CHECK(tide__map_put(&g->cells, index, (uint64_t)cell));
    return cell;
}

static void cell_free(tide__host_cell *cell) {
    for (size_t i = 0; i < cell->count; i++) {
        free(cell->spans[i].reads);
    }
    free(cell->spans);
    free(cell);
}

void tide__host_cells_free(tide__host_gpu *g) {
    for (size_t i = 0; i < g->cells.capacity; i++) {
        if (g->cells.used[i]) {
            cell_free((tide__host_cell *)g->cells.slots[i].value);
        }
    }
    tide__map_free(&g->cells);
}

/* One range of one operation on its way through the cells. */
typedef struct noting {
    const tide__host_clock *clock, *host_clock;
    tide__host_access access;
    bool found; /* a conflict; the first is kept */
    uint64_t lo, hi;
    tide__host_access earlier;
} noting;

static void note_conflict(noting *n, const tide__host_access *earlier, uint64_t lo, uint64_t hi) {
    if (n->found || tide__host_clock_covers(n->clock, earlier)) {
        return;
    }
    n->found = true;
    n->earlier = *earlier;
    n->lo = lo;
    n->hi = hi;
}

/* The whole span is touched: compare, then make the access part of its history. */
static void span_touch(tide__host_span *s, noting *n) {
    note_conflict(n, &s->write, s->lo, s->hi);
    if (n->access.op.writes) {
        for (size_t i = 0; i < s->read_count; i++) {
            note_conflict(n, &s->reads[i], s->lo, s->hi);
        }
        free(s->reads);
        s->reads = NULL;
        s->read_count = 0;
        s->write = n->access;
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < s->read_count; i++) {
        if (!tide__host_clock_covers(n->clock, &s->reads[i])) {
            s->reads[kept++] = s->reads[i];
        }
    }
    s->reads = checked(realloc(s->reads, (kept + 1) * sizeof *s->reads));
    s->reads[kept] = n->access;
    s->read_count = kept + 1;
}

/* Nothing that follows can be at odds with it. */
static bool span_is_settled(const tide__host_span *s, const tide__host_clock *host_clock) {
    bool settled = tide__host_clock_covers(host_clock, &s->write);
    for (size_t i = 0; settled && i < s->read_count; i++) {
        settled = tide__host_clock_covers(host_clock, &s->reads[i]);
    }
    return settled;
}

static bool same_access(const tide__host_access *a, const tide__host_access *b) {
    return a->slot == b->slot && a->op.sequence == b->op.sequence && a->op.va == b->op.va;
}

static bool spans_join(const tide__host_span *a, const tide__host_span *b) {
    if (a->hi != b->lo || a->read_count != b->read_count || !same_access(&a->write, &b->write)) {
        return false;
    }
    for (size_t i = 0; i < a->read_count; i++) {
        if (!same_access(&a->reads[i], &b->reads[i])) {
            return false;
        }
    }
    return true;
}

/* Adds a span behind the others, or to the last one. Takes its reads. */
static void cell_append(tide__host_cell *cell, tide__host_span span) {
    if (span.lo >= span.hi) {
        free(span.reads);
        return;
    }
    tide__host_span *last = cell->count ? &cell->spans[cell->count - 1] : NULL;
    TIDE__ASSERT(!last || last->hi <= span.lo);
    if (last && spans_join(last, &span)) {
        last->hi = span.hi;
        free(span.reads);
        return;
    }
    TIDE__CHECK(tide__grow((void **)&cell->spans, &cell->capacity, cell->count + 1, sizeof span));
    cell->spans[cell->count++] = span;
}

/* The part [lo, hi) of a span, with reads of its own. */
static tide__host_span span_part(const tide__host_span *s, uint64_t lo, uint64_t hi) {
    tide__host_span part = *s;
    part.lo = tide__max(lo, s->lo);
    part.hi = tide__min(hi, s->hi);
    part.reads = NULL;
    part.read_count = 0;
    if (s->read_count && part.lo < part.hi) {
        part.read_count = s->read_count;
        part.reads = checked(malloc(s->read_count * sizeof *part.reads));
        memcpy(part.reads, s->reads, s->read_count * sizeof *part.reads);
    }
    return part;
}

static void cell_drop_settled(tide__host_cell *cell, const tide__host_clock *host_clock) {
    size_t kept = 0;
    for (size_t i = 0; i < cell->count; i++) {
        if (span_is_settled(&cell->spans[i], host_clock)) {
            free(cell->spans[i].reads);
        } else {
            cell->spans[kept++] = cell->spans[i];
        }
    }
    cell->count = kept;
}

static void cell_append_touched(tide__host_cell *cell, tide__host_span span, noting *n) {
    if (span.lo < span.hi) {
        span_touch(&span, n);
    }
    cell_append(cell, span);
}

/* Builds the cell anew: what lies before [lo, hi), the touched part with its
 * gaps filled, what lies behind. */
static void cell_touch(tide__host_cell *cell, uint64_t lo, uint64_t hi, noting *n) {
    tide__host_cell fresh = {0};
    cell_drop_settled(cell, n->host_clock);
    for (size_t i = 0; i < cell->count; i++) {
        cell_append(&fresh, span_part(&cell->spans[i], 0, lo));
    }
    uint64_t at = lo;
    for (size_t i = 0; i < cell->count; i++) {
        const tide__host_span *s = &cell->spans[i];
        if (s->hi <= lo || s->lo >= hi) {
            continue;
        }
        cell_append_touched(&fresh, (tide__host_span){.lo = at, .hi = s->lo}, n);
        cell_append_touched(&fresh, span_part(s, lo, hi), n);
        at = tide__min(s->hi, hi);
    }
    cell_append_touched(&fresh, (tide__host_span){.lo = at, .hi = hi}, n);
    for (size_t i = 0; i < cell->count; i++) {
        cell_append(&fresh, span_part(&cell->spans[i], hi, UINT64_MAX));
        free(cell->spans[i].reads);
    }
    free(cell->spans);
    *cell = fresh;
}

/* ---- Histories of mappings ---- */

static void mapping_touch(tide__host_mapping *m, const tide__host_clock *clock,
                          const tide__host_access *access) {
    size_t kept = 0;
    for (size_t i = 0; i < m->user_count; i++) {
        if (!tide__host_clock_covers(clock, &m->users[i])) {
            m->users[kept++] = m->users[i];
        }
    }
    TIDE__CHECK(tide__grow((void **)&m->users, &m->user_capacity, kept + 1, sizeof *m->users));
    m->users[kept] = *access;
    m->user_count = kept + 1;
}

bool tide__host_note(tide__host_gpu *g, const tide__host_stream *s, const tide__host_op *op,
                     const tide__host_op_range *range, tide__host_violation *v) {
    size_t first, count;
    TIDE__CHECK(tide__host_resolve(&g->pages, range->va, range->size, &first, &count));
    noting n = {.clock = &s->clock, .host_clock = &g->host_clock};
    n.access.slot = s->slot;
    n.access.op = (tide__host_operation){.what = tide__host_op_name(op->kind),
                                         .writes = range->writes,
                                         .stream_id = s->id,
                                         .sequence = op->sequence,
                                         .va = range->va,
                                         .size = range->size};
    tide__host_violation wrong = {.kind = TIDE__HOST_UNORDERED, .gpu = g->index};
    for (size_t i = first; i < first + count; i++) {
        tide__host_mapping *m = g->pages.mappings[i];
        uint64_t from = tide__max(range->va, m->va), to = tide__min(range->va + range->size, m->va + m->size);
        uint64_t lo = m->chunk->offset + (from - m->va), hi = lo + (to - from);
        bool found_before = n.found;
        n.access.op.chunk = m->chunk->handle;
        mapping_touch(m, &s->clock, &n.access);
        for (uint64_t at = lo, end; at < hi; at = end) {
            end = tide__min(hi, tide__align_down(at, TIDE__HOST_CELL_BYTES) + TIDE__HOST_CELL_BYTES);
            cell_touch(cell_at(g, at / TIDE__HOST_CELL_BYTES), at, end, &n);
        }
        if (n.found && !found_before) {
            wrong.va = m->va + (n.lo - m->chunk->offset);
            wrong.size = n.hi - n.lo;
            wrong.earlier = n.earlier.op;
            wrong.later = n.access.op;
        }
    }
    if (!n.found) {
        return false;
    }
    *v = wrong;
    tide__host_describe(v,
                        "nothing orders the two: no event between the streams, and the host has not learned "
                        "that the earlier one is done");
    return true;
}

bool tide__host_check_unmap(tide__host_gpu *g, size_t first, size_t count, tide__host_violation *v) {
    const tide__host_access *worst = NULL;
    const tide__host_mapping *through = NULL;
    bool busy = false;
    for (size_t i = first; i < first + count && !busy; i++) {
        const tide__host_mapping *m = g->pages.mappings[i];
        for (size_t u = 0; u < m->user_count && !busy; u++) {
            const tide__host_access *a = &m->users[u];
            if (tide__host_clock_covers(&g->host_clock, a)) {
                continue;
            }
            worst = a;
            through = m;
            busy = g->lanes[a->slot].done < a->op.sequence;
        }
    }
    if (!worst) {
        return false;
    }
    *v = (tide__host_violation){.kind = busy ? TIDE__HOST_UNMAP_BUSY : TIDE__HOST_UNMAP_UNKNOWN,
                                .gpu = g->index,
                                .earlier = worst->op,
                                .va = through->va,
                                .size = through->size};
    tide__host_describe(v, "%s",
                        busy ? "it is queued or running now"
                             : "it is done by chance: no event or wait has told the host so");
    return true;
}
