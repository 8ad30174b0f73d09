/* SPDX-License-Identifier: Apache-2.0 */
/* The engine against a reference model: see model.h. */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator.h"
#include "device/fault.h"
#include "device/host.h"
#include "standin/use.h"
#include "watch.h"

#define GRANULE_BYTES (2 * TIDE__MIB)

#define MS UINT64_C(1000000)
#define STREAMS_MAX 6
#define POOLS_MAX 4
#define LIVE_MAX 600
#define PAST_MAX 256

typedef struct block {
    void *ptr;
    int device;
    uint64_t requested, size, content;
    uint16_t slot;      /* watch's */
    tide_stream stream; /* valid while the slot is not gone */
    bool stream_gone;
    tide_pool pool;
} block;

typedef struct past {
    void *ptr;
    int device;
    uint64_t requested;
    tide_pool pool;
} past;

typedef struct pool {
    tide_pool handle;
    bool live;
} pool;

typedef struct device_state {
    tide_stream streams[STREAMS_MAX];
    size_t stream_count;
    pool pools[POOLS_MAX]; /* 0 is the default */
    uint64_t requested, allocated, allocs, frees, ooms;
    uint64_t peak_requested, peak_allocated;
    size_t streams_used;
} device_state;

typedef struct model {
    const model_case *c;
    model_result *result;
    tide_allocator *a;
    watch *w;
    tide__device *fault, *inner; /* inner: the sim or host */
    int devices;
    tide_cross_stream mode;
    uint64_t capacity, limit, delay, time, largest;
    device_state d[2];
    block live[LIVE_MAX];
    size_t live_count;
    past past[PAST_MAX];
    size_t past_count;
    uint64_t content, faults_before;
    bool ever_faulted;
    char violation[768]; /* by host's handler, which may run on another thread */
    int violated;        /* atomic */
} model;

static size_t at_op;
static const model_case *at_case;

/* Says what is wrong; the run ends. */
__attribute__((format(printf, 2, 3))) static bool wrong(model *m, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int used = snprintf(m->result->message, sizeof m->result->message, "[cross_stream %s] ",
                        m->mode == TIDE_CROSS_STREAM_OFF    ? "off"
                        : m->mode == TIDE_CROSS_STREAM_WAIT ? "wait"
                                                            : "idle");
    vsnprintf(m->result->message + used, sizeof m->result->message - (size_t)used, format, args);
    va_end(args);
    return false;
}

const char *model_op_name(int kind) {
    static const char *const names[] = {
#define X(name, weight) #name,
        MODEL_OP_LIST(X)
#undef X
    };
    return kind >= 0 && kind < OP_COUNT ? names[kind] : "?";
}

void model_where(char *text, size_t bytes) {
    if (at_case == NULL) {
        snprintf(text, bytes, "outside a run");
        return;
    }
    snprintf(text, bytes, "backend %s seed %" PRIu64 "%s operation %zu of %zu (%s)",
             at_case->backend == MODEL_HOST ? "host" : "sim", at_case->seed,
             at_case->faults ? " with faults" : "", at_op, at_case->op_count,
             at_op < at_case->op_count ? model_op_name(at_case->ops[at_op].kind) : "end");
}

/* ---- Lists of operations ---- */

static uint64_t draw(uint64_t *state) {
    uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void model_generate(model_case *c, size_t op_count) {
    static const uint32_t weights[] = {
#define X(name, weight) weight,
        MODEL_OP_LIST(X)
#undef X
    };
    uint64_t random = c->seed * 2 + 1, total = 0;
    for (int i = 0; i < OP_COUNT; i++) {
        total += weights[i];
    }
    c->ops = calloc(op_count, sizeof *c->ops);
    c->op_count = c->ops != NULL ? op_count : 0;
    for (size_t i = 0; i < c->op_count; i++) {
        uint64_t pick = draw(&random) % total;
        uint8_t kind = 0;
        while (pick >= weights[kind]) {
            pick -= weights[kind++];
        }
        c->ops[i] =
            (model_op){kind, (uint32_t)draw(&random), (uint32_t)draw(&random), (uint32_t)draw(&random)};
        if (kind == OP_fault && !c->faults) {
            c->ops[i].kind = OP_alloc;
        }
    }
}

bool model_write(const model_case *c, const char *path) {
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        return false;
    }
    fprintf(f, "case %d %" PRIu64 " %d\n", (int)c->backend, c->seed, (int)c->faults);
    for (size_t i = 0; i < c->op_count; i++) {
        fprintf(f, "%s %u %u %u\n", model_op_name(c->ops[i].kind), c->ops[i].a, c->ops[i].b, c->ops[i].c);
    }
    return fclose(f) == 0;
}

bool model_read(model_case *c, const char *path) {
    FILE *f = fopen(path, "r");
    char name[32];
    int backend, faults;
    model_op op;
    size_t cap = 0;
    *c = (model_case){0};
    if (f == NULL || fscanf(f, "case %d %" SCNu64 " %d", &backend, &c->seed, &faults) != 3) {
        return false;
    }
    c->backend = (model_backend)backend;
    c->faults = faults != 0;
    while (fscanf(f, "%31s %u %u %u", name, &op.a, &op.b, &op.c) == 4) {
        for (op.kind = 0; op.kind < OP_COUNT && strcmp(name, model_op_name(op.kind)) != 0;) {
            op.kind++;
        }
        if (op.kind < OP_COUNT && tide__grow((void **)&c->ops, &cap, c->op_count + 1, sizeof *c->ops)) {
            c->ops[c->op_count++] = op;
        }
    }
    fclose(f);
    return true;
}

/* ---- What a failed call may be ---- */

/* A failure was injected since the operation began: anything may be refused. */
static bool was_injected(model *m) { return tide__fault_injected(m->fault) != m->faults_before; }

static uint64_t most_bytes(const model *m) {
    return m->limit != 0 ? tide__min(m->limit, m->capacity) : m->capacity;
}

/* Out of memory is right only where the live blocks' chunks leave no room. */
static bool oom_is_right(model *m, int device, uint64_t size) {
    uint64_t need = tide__align_up(size, GRANULE_BYTES) + GRANULE_BYTES;
    return watch_pinned_bytes(m->w, device) + need > most_bytes(m);
}

/* After each operation: nothing that the watching device or host found. */
static bool nothing_found(model *m) {
    if (m->w->trouble[0] != '\0') {
        return wrong(m, "%s", m->w->trouble);
    }
    if (__atomic_load_n(&m->violated, __ATOMIC_ACQUIRE) != 0) {
        return wrong(m, "host: %s", m->violation);
    }
    return true;
}

static void on_violation(void *user, const tide__host_violation *v) {
    model *m = user;
    int none = 0;
    if (__atomic_compare_exchange_n(&m->violated, &none, -1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        snprintf(m->violation, sizeof m->violation, "%s: %s", tide__host_wrong_name(v->kind), v->text);
        __atomic_store_n(&m->violated, 1, __ATOMIC_RELEASE);
    }
}

/* ---- Content, on host ---- */

static bool queued(model *m, tide_status status, const char *what) {
    return status == TIDE_OK || wrong(m, "queueing a %s: %s", what, tide_last_error());
}

static bool fill(model *m, block *b) {
    b->content = ++m->content;
    return m->c->backend != MODEL_HOST ||
           queued(m,
                  tide__host_fill_pattern(m->inner, b->device, b->stream, (uintptr_t)b->ptr, b->content,
                                          b->size),
                  "fill");
}

/* The content as seen by work queued now on this stream. */
static bool check_on(model *m, const block *b, tide_stream stream) {
    return m->c->backend != MODEL_HOST ||
           queued(
               m,
               tide__host_check_pattern(m->inner, b->device, stream, (uintptr_t)b->ptr, b->content, b->size),
               "check");
}

static bool check_content(model *m, const block *b) {
    /* Where the block's stream is gone, its destruction has waited for the fill: any stream will do. */
    return check_on(m, b, b->stream_gone ? 0 : b->stream);
}

/* What is queued on `to` from now on comes after what is queued on `from`: a
 * user's own event, that the engine does not see. */
static bool order(model *m, int device, tide_stream from, tide_stream to) {
    const tide__device_ops *ops = m->inner->ops;
    tide__event event;
    bool fine = queued(m, ops->event_create(m->inner, device, &event), "event") &&
                queued(m, ops->event_record(m->inner, device, event, from), "record") &&
                queued(m, ops->stream_wait_event(m->inner, device, to, event), "wait");
    return fine && queued(m, ops->event_destroy(m->inner, device, event), "event's end");
}

/* ---- Operations ---- */

/* Log-uniform from 1 byte to the largest. */
static uint64_t size_of(const model *m, uint32_t number) {
    int bits = tide__log2_floor(m->largest);
    uint64_t top = UINT64_C(1) << (number % (uint32_t)(bits + 1));
    uint64_t size = top + (number / 64) * UINT64_C(0x9e3779b9) % top;
    if (number % 7 == 0) {
        size = top; /* powers of two are what programs ask for */
    }
    return tide__min(size, m->largest);
}

static tide_stream pick_stream(const device_state *d, uint32_t number) {
    return d->streams[number % d->stream_count];
}

static bool add_live(model *m, int device, void *ptr, uint64_t requested, tide_stream stream, tide_pool p) {
    device_state *d = &m->d[device];
    size_t have_requested = 0, have_size = 0;
    block *b = &m->live[m->live_count++];
    *b = (block){.ptr = ptr, .device = device, .requested = requested, .stream = stream, .pool = p};
    b->slot = watch_slot(m->w, device, stream);
    if ((uintptr_t)ptr % 512 != 0) {
        return wrong(m, "%p is not aligned to 512 bytes", ptr);
    }
    if (tide_block_size(m->a, ptr, &have_requested, &have_size) != TIDE_OK || have_requested != requested ||
        have_size != tide__align_up(requested, 512)) {
        return wrong(m, "tide_block_size says %zu and %zu of a block of %" PRIu64 " bytes", have_requested,
                     have_size, requested);
    }
    b->size = have_size;
    d->requested += requested;
    d->allocated += b->size;
    d->allocs++;
    d->peak_requested = tide__max(d->peak_requested, d->requested);
    d->peak_allocated = tide__max(d->peak_allocated, d->allocated);
    watch_took(m->w, device, (uintptr_t)ptr, b->size, b->slot, p);
    m->past[m->past_count++ % PAST_MAX] = (past){ptr, device, requested, p};
    return nothing_found(m) && fill(m, b);
}

static bool op_alloc(model *m, const model_op *o) {
    int device = (int)(o->c >> 16) % m->devices;
    device_state *d = &m->d[device];
    const pool *p = &d->pools[o->c % 3 == 0 ? (o->c / 3) % POOLS_MAX : 0];
    tide_stream stream = pick_stream(d, o->a);
    uint64_t requested = size_of(m, o->b);
    void *ptr = NULL;
    if (m->live_count == LIVE_MAX || !p->live) {
        return true;
    }
    tide_status status = tide_alloc(m->a, device, requested, stream, p->handle, &ptr);
    if (status == TIDE_OK) {
        return add_live(m, device, ptr, requested, stream, p->handle);
    }
    if (was_injected(m)) {
        return true;
    }
    if (status != TIDE_NO_DEVICE_MEMORY && status != TIDE_LIMIT) {
        return wrong(m, "alloc of %" PRIu64 " is %s: %s", requested, tide_status_name(status),
                     tide_last_error());
    }
    m->d[device].ooms++;
    if (!oom_is_right(m, device, tide__align_up(requested, 512))) {
        return wrong(
            m, "out of memory for %" PRIu64 " bytes with %" PRIu64 " of %" PRIu64 " under live blocks: %s",
            requested, watch_pinned_bytes(m->w, device), most_bytes(m), tide_last_error());
    }
    return true;
}

static bool op_alloc_at(model *m, const model_op *o) {
    if (m->past_count == 0 || m->live_count == LIVE_MAX) {
        return true;
    }
    const past p = m->past[o->a % tide__min(m->past_count, PAST_MAX)];
    device_state *d = &m->d[p.device];
    tide_stream stream = pick_stream(d, o->b);
    bool known = p.pool == TIDE_POOL_DEFAULT;
    for (size_t i = 1; i < POOLS_MAX; i++) {
        known |= d->pools[i].live && d->pools[i].handle == p.pool;
    }
    uint64_t size = tide__align_up(p.requested, 512);
    bool taken = watch_live_overlaps(m->w, p.device, (uintptr_t)p.ptr, size);
    tide_status status = tide_alloc_at(m->a, p.device, p.requested, stream, p.pool, p.ptr);
    if (status == TIDE_OK) {
        if (taken || !known) {
            return wrong(m, "alloc_at %p succeeded: taken %d, pool known %d", p.ptr, taken, known);
        }
        return add_live(m, p.device, p.ptr, p.requested, stream, p.pool);
    }
    if (was_injected(m)) {
        return true;
    }
    if (!known) {
        return status == TIDE_BAD_HANDLE ||
               wrong(m, "alloc_at in a released pool is %s", tide_status_name(status));
    }
    if (status == TIDE_NO_DEVICE_MEMORY || status == TIDE_LIMIT) {
        m->d[p.device].ooms++;
        return taken || oom_is_right(m, p.device, size) ||
               wrong(m, "alloc_at is out of memory: %s", tide_last_error());
    }
    /* Bytes that were freed and are not idle, or whose old mapping stands, are in use too. */
    bool excused = taken || watch_alias_bytes(m->w, p.device) > 0 || m->w->gpus[p.device].stream_count > 1;
    return (status == TIDE_IN_USE && excused) || wrong(m, "alloc_at %p is %s (taken %d): %s", p.ptr,
                                                       tide_status_name(status), taken, tide_last_error());
}

static bool free_index(model *m, size_t index) {
    block b = m->live[index];
    device_state *d = &m->d[b.device];
    if (!check_content(m, &b)) {
        return false;
    }
    watch_freed(m->w, b.device, (uintptr_t)b.ptr);
    tide_status status = tide_free(m->a, b.ptr);
    if (status != TIDE_OK) { /* a free is the one call that may never fail for want of the driver */
        return wrong(m, "free of a live block is %s: %s", tide_status_name(status), tide_last_error());
    }
    d->requested -= b.requested;
    d->allocated -= b.size;
    d->frees++;
    memmove(m->live + index, m->live + index + 1, (--m->live_count - index) * sizeof *m->live);
    return true;
}

static bool op_free(model *m, const model_op *o) {
    return m->live_count == 0 || free_index(m, o->a % m->live_count);
}

static bool op_free_newest(model *m, const model_op *o) {
    (void)o;
    return m->live_count == 0 || free_index(m, m->live_count - 1);
}

static bool op_free_many(model *m, const model_op *o) {
    size_t count = o->a % 4 == 0 ? m->live_count : o->a % (m->live_count / 2 + 1);
    while (count-- > 0 && m->live_count > 0) {
        if (!free_index(m, (o->b + count * (o->c % 3)) % m->live_count) || !nothing_found(m)) {
            return false;
        }
    }
    return true;
}

static bool op_record(model *m, const model_op *o) {
    if (m->live_count == 0) {
        return true;
    }
    block *b = &m->live[o->a % m->live_count];
    tide_stream stream = pick_stream(&m->d[b->device], o->b);
    if (b->stream_gone) {
        return true;
    }
    if (stream != b->stream && m->c->backend == MODEL_HOST && !order(m, b->device, b->stream, stream)) {
        return false;
    }
    tide_status status = tide_record_stream(m->a, b->ptr, stream);
    if (status != TIDE_OK) {
        return was_injected(m) ||
               wrong(m, "record_stream is %s: %s", tide_status_name(status), tide_last_error());
    }
    watch_recorded(m->w, b->device, (uintptr_t)b->ptr, watch_slot(m->w, b->device, stream));
    return stream == b->stream || check_on(m, b, stream);
}

/* Used on another stream between two events of the user's, without record_stream: the
 * own stream comes after that use, and knows nothing of it. */
static bool op_lend(model *m, const model_op *o) {
    if (m->live_count == 0 || m->c->backend != MODEL_HOST) {
        return true;
    }
    block *b = &m->live[o->a % m->live_count];
    tide_stream stream = pick_stream(&m->d[b->device], o->b);
    if (b->stream_gone || stream == b->stream ||
        !m->w->gpus[b->device].streams[watch_slot(m->w, b->device, stream)].seen) {
        return true; /* a stream that the engine has never seen is the documented limit */
    }
    return order(m, b->device, b->stream, stream) && check_on(m, b, stream) &&
           order(m, b->device, stream, b->stream);
}

static bool op_check(model *m, const model_op *o) {
    return m->live_count == 0 || check_content(m, &m->live[o->a % m->live_count]);
}

static bool op_trim(model *m, const model_op *o) {
    int device = (int)(o->c % (uint32_t)m->devices);
    const watch_gpu *g = &m->w->gpus[device];
    bool all = o->a % 3 != 0, patient = o->b % 2 == 0;
    tide_trim_options options = {.struct_size = sizeof options,
                                 .bytes = all ? UINT64_MAX : size_of(m, o->a),
                                 .wait_ns = patient         ? UINT64_MAX
                                            : o->b % 3 == 0 ? m->delay / 2
                                                            : 0};
    tide_trim_result r = {.struct_size = sizeof r};
    uint64_t before = g->held_bytes;
    tide_status status = tide_trim(m->a, device, &options, &r);
    if (status != TIDE_OK) {
        return was_injected(m) || wrong(m, "trim is %s: %s", tide_status_name(status), tide_last_error());
    }
    uint64_t held = g->held_bytes, pinned = watch_pinned_bytes(m->w, device);
    if (r.released_bytes != before - held) {
        return wrong(m, "trim says %" PRIu64 " bytes released; %" PRIu64 " were", r.released_bytes,
                     before - held);
    }
    if (patient && r.released_bytes < options.bytes && held != pinned) {
        return wrong(m,
                     "a patient trim of %s kept %" PRIu64 " bytes; live blocks pin %" PRIu64
                     " (pinned %" PRIu64 ", pending %" PRIu64 ")",
                     all ? "all" : "some", held, pinned, r.pinned_bytes, r.pending_bytes);
    }
    if (patient && all && (r.pending_bytes != 0 || r.pinned_bytes != held - m->d[device].allocated)) {
        return wrong(m,
                     "a patient trim says pinned %" PRIu64 ", pending %" PRIu64 "; held %" PRIu64
                     ", allocated %" PRIu64,
                     r.pinned_bytes, r.pending_bytes, held, m->d[device].allocated);
    }
    return true;
}

static bool op_wrong_free(model *m, const model_op *o) {
    void *ptr = m; /* foreign */
    if (o->a % 3 == 0 && m->live_count > 0) {
        const block *b = &m->live[o->b % m->live_count];
        ptr = (char *)b->ptr + (b->size > 512 ? 512 : 1);
    } else if (o->a % 3 == 1 && m->past_count > 0) {
        const past *p = &m->past[o->b % tide__min(m->past_count, PAST_MAX)];
        for (size_t i = 0; i < m->live_count; i++) {
            if (m->live[i].ptr == p->ptr) {
                return true;
            }
        }
        ptr = p->ptr;
    }
    tide_status status = tide_free(m->a, ptr);
    return status == TIDE_NOT_ALLOCATED ||
           wrong(m, "free of an address of no block is %s", tide_status_name(status));
}

static bool op_pool_create(model *m, const model_op *o) {
    int device = (int)(o->a % (uint32_t)m->devices);
    for (size_t i = 1; i < POOLS_MAX; i++) {
        pool *p = &m->d[device].pools[i];
        if (!p->live) {
            tide_status status = tide_pool_create(m->a, device, &p->handle);
            p->live = status == TIDE_OK;
            return p->live || was_injected(m) ||
                   wrong(m, "pool_create is %s: %s", tide_status_name(status), tide_last_error());
        }
    }
    return true;
}

static bool op_pool_release(model *m, const model_op *o) {
    int device = (int)(o->a % (uint32_t)m->devices);
    pool *p = &m->d[device].pools[1 + o->b % (POOLS_MAX - 1)];
    size_t blocks = 0;
    for (size_t i = 0; i < m->live_count; i++) {
        blocks += m->live[i].device == device && m->live[i].pool == p->handle;
    }
    bool was = p->live;
    if (!was && p->handle == 0) {
        return true;
    }
    tide_status status = tide_pool_release(m->a, p->handle);
    p->live = was && status != TIDE_OK;
    tide_status want = !was ? TIDE_BAD_HANDLE : blocks > 0 ? TIDE_IN_USE : TIDE_OK;
    return status == want || was_injected(m) ||
           wrong(m, "pool_release with %zu blocks (live %d) is %s, not %s", blocks, was,
                 tide_status_name(status), tide_status_name(want));
}

static bool op_stream_create(model *m, const model_op *o) {
    int device = (int)(o->a % (uint32_t)m->devices);
    device_state *d = &m->d[device];
    if (d->stream_count == STREAMS_MAX || m->w->gpus[device].stream_count >= WATCH_STREAMS - STREAMS_MAX) {
        return true;
    }
    tide_status status = tide_stream_create(m->a, device, &d->streams[d->stream_count]);
    d->stream_count += status == TIDE_OK;
    return status == TIDE_OK || was_injected(m) ||
           wrong(m, "stream_create is %s: %s", tide_status_name(status), tide_last_error());
}

static bool op_stream_retire(model *m, const model_op *o) {
    int device = (int)(o->a % (uint32_t)m->devices);
    device_state *d = &m->d[device];
    if (d->stream_count < 2) {
        return true;
    }
    size_t index = 1 + o->b % (d->stream_count - 1); /* not the default stream */
    tide_stream stream = d->streams[index];
    tide_status status = o->c % 2 == 0 ? TIDE_NOT_READY : tide_stream_destroy(m->a, device, stream);
    if (status != TIDE_OK) { /* as on a GPU: retired here, destroyed by its owner */
        if (status != TIDE_NOT_READY && !was_injected(m)) {
            return wrong(m, "stream_destroy is %s: %s", tide_status_name(status), tide_last_error());
        }
        status = tide_stream_retire(m->a, device, stream);
        if (status != TIDE_OK) {
            return was_injected(m) ||
                   wrong(m, "stream_retire is %s: %s", tide_status_name(status), tide_last_error());
        }
        watch_retired(m->w, device, stream);
        tide__fault_disarm(m->fault);
        status = m->w->base.ops->stream_destroy(&m->w->base, device, stream);
    }
    d->streams[index] = d->streams[--d->stream_count];
    for (size_t i = 0; i < m->live_count; i++) {
        block *b = &m->live[i];
        b->stream_gone |= b->device == device && b->stream == stream;
    }
    return status == TIDE_OK || wrong(m, "the device's stream_destroy is %s", tide_status_name(status));
}

static bool op_phase(model *m, const model_op *o) {
    static const char *const names[] = {"rollout", "compute_log_prob", "update_actor", ""};
    tide_status status = tide_phase(m->a, names[o->a % 4]);
    return status == TIDE_OK || wrong(m, "tide_phase is %s", tide_status_name(status));
}

static bool op_reset_peaks(model *m, const model_op *o) {
    (void)o;
    for (int i = 0; i < m->devices; i++) {
        m->d[i].peak_requested = m->d[i].requested;
        m->d[i].peak_allocated = m->d[i].allocated;
        if (tide_stats_reset_peaks(m->a, i) != TIDE_OK) {
            return wrong(m, "reset_peaks failed");
        }
    }
    return true;
}

static bool op_clock(model *m, const model_op *o) {
    if (m->c->backend == MODEL_SIM) {
        m->time += o->a % 4 == 0 ? 2 * m->delay : o->a % (m->delay / 2 + 1);
        tide__sim_set_trace_time(m->inner, m->time);
    }
    return true;
}

static bool op_fault(model *m, const model_op *o) {
    static const tide_status statuses[] = {TIDE_DRIVER, TIDE_NO_DEVICE_MEMORY, TIDE_NO_HOST_MEMORY,
                                           TIDE_DRIVER};
    static const int calls[] = {TIDE__CALL_CHUNK_CREATE, TIDE__CALL_MAP,           TIDE__CALL_SET_ACCESS,
                                TIDE__CALL_UNMAP,        TIDE__CALL_CHUNK_RELEASE, TIDE__CALL_EVENT_RECORD,
                                TIDE__CALL_EVENT_QUERY,  TIDE__CALL_EVENT_WAIT,    TIDE__CALL_STREAM_WAIT,
                                TIDE__CALL_EVENT_CREATE, TIDE__CALL_RESERVE,       TIDE__CALL_STREAM_ID,
                                TIDE__FAULT_ANY,         TIDE__FAULT_ANY};
    tide__fault_disarm(m->fault);
    if (o->a % 4 == 0) {
        return true;
    }
    m->ever_faulted = true;
    tide__fault_arm(m->fault, calls[o->a % (sizeof calls / sizeof *calls)], 1 + o->b % 6, statuses[o->c % 4],
                    false);
    if (o->c % 5 == 0) { /* the undoing fails too */
        tide__fault_arm(m->fault, TIDE__CALL_UNMAP, 1, TIDE_DRIVER, false);
    }
    return true;
}

static bool is_near(uint64_t a, uint64_t b, uint64_t slack) { return a <= b + slack && b <= a + slack; }

static bool check_stats(model *m, int device) {
    const device_state *d = &m->d[device];
    const watch_gpu *g = &m->w->gpus[device];
    tide_stats s = {.struct_size = sizeof s};
    if (tide_stats_get(m->a, device, &s) != TIDE_OK) {
        return wrong(m, "stats_get failed");
    }
    const struct {
        const char *name;
        uint64_t have, want;
    } equal[] = {{"requested_bytes", s.requested_bytes, d->requested},
                 {"allocated_bytes", s.allocated_bytes, d->allocated},
                 {"allocs", s.allocs, d->allocs},
                 {"frees", s.frees, d->frees},
                 {"ooms", s.ooms, m->ever_faulted ? s.ooms : d->ooms},
                 {"reserved_bytes", s.reserved_bytes, g->held_bytes},
                 {"tide_reserved_bytes", tide_reserved_bytes(m->a, device), g->held_bytes},
                 {"chunks_created", s.chunks_created, g->created},
                 {"chunks_released", s.chunks_released, g->released},
                 {"chunks", s.chunks, g->created - g->released},
                 {"retiring_bytes", s.retiring_bytes,
                  m->ever_faulted ? s.retiring_bytes : watch_alias_bytes(m->w, device)}};
    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) {
        if (equal[i].have != equal[i].want) {
            return wrong(m, "device %d: %s is %" PRIu64 ", not %" PRIu64, device, equal[i].name,
                         equal[i].have, equal[i].want);
        }
    }
    uint64_t slack = TIDE__MIB * (g->stream_count > 0 ? g->stream_count - 1 : 0); /* exact for one stream */
    if (!is_near(s.peak_allocated_bytes, d->peak_allocated, slack) ||
        !is_near(s.peak_requested_bytes, d->peak_requested, slack)) {
        return wrong(m, "peaks are %" PRIu64 " and %" PRIu64 ", not %" PRIu64 " and %" PRIu64,
                     s.peak_requested_bytes, s.peak_allocated_bytes, d->peak_requested, d->peak_allocated);
    }
    if (s.active_bytes < s.allocated_bytes || s.reserved_bytes < s.allocated_bytes ||
        s.reserved_bytes > most_bytes(m)) {
        return wrong(m, "allocated %" PRIu64 ", active %" PRIu64 ", reserved %" PRIu64 " of %" PRIu64,
                     s.allocated_bytes, s.active_bytes, s.reserved_bytes, most_bytes(m));
    }
    return true;
}

static bool op_verify(model *m, const model_op *o) {
    (void)o;
    tide__allocator_validate(m->a);
    for (int i = 0; i < m->devices; i++) {
        if (!check_stats(m, i)) {
            return false;
        }
    }
    return true;
}

/* ---- A run ---- */

/* Chunks so small that the tests' sizes need several, and moves happen often. */
static tide__tuning small_chunks(void) {
    static const uint64_t from[TIDE__CLASSES] = {0, TIDE__MIB, 4 * TIDE__MIB, 16 * TIDE__MIB};
    static const uint64_t chunk[TIDE__CLASSES] = {2 * TIDE__MIB, 2 * TIDE__MIB, 4 * TIDE__MIB, 8 * TIDE__MIB};
    tide__tuning t = tide__tuning_default;
    for (int i = 0; i < TIDE__CLASSES; i++) {
        t.classes[i].from_bytes = from[i];
        t.classes[i].chunk_bytes = chunk[i];
    }
    t.slack_bytes = 0;
    t.epoch_bytes = 4 * TIDE__MIB;
    return t;
}

static bool set_up(model *m, watch_left *left) {
    uint64_t random = m->c->seed ^ UINT64_C(0x5bd1e995);
    bool host = m->c->backend == MODEL_HOST;
    m->devices = draw(&random) % 4 == 0 ? 2 : 1;
    m->mode = (tide_cross_stream)(TIDE_CROSS_STREAM_OFF + draw(&random) % 3);
    m->capacity = host ? 64 * TIDE__MIB << draw(&random) % 2 : 64 * TIDE__MIB << draw(&random) % 6;
    m->limit = draw(&random) % 4 == 0 ? m->capacity / 2 + TIDE__MIB : 0;
    m->delay = draw(&random) % 3 == 0 ? 0 : draw(&random) % 2 == 0 ? MS : 100 * MS;
    m->largest = m->capacity / (draw(&random) % 2 == 0 ? 3 : 16);
    const tide__tuning tuning = small_chunks();
    bool small = host || draw(&random) % 2 == 0;
    size_t streams = 1 + draw(&random) % 4;
    tide_status status = host ? tide__host_open(&(tide__host_options){.device_count = m->devices,
                                                                      .capacity_bytes = m->capacity},
                                                &m->inner)
                              : tide__sim_open(&(tide__sim_options){.device_count = m->devices,
                                                                    .capacity_bytes = m->capacity,
                                                                    .event_delay_ns = m->delay},
                                               &m->inner);
    if (status != TIDE_OK || tide__fault_open(m->inner, &m->fault) != TIDE_OK) {
        return wrong(m, "no device: %s", tide_last_error());
    }
    if (host) {
        tide__host_set_handler(m->inner, on_violation, m);
        tide__host_set_lateness(m->inner, m->c->seed, draw(&random) % 3 == 0 ? 0 : 200000);
        tide__host_reuse_stream_handles(m->inner, draw(&random) % 2 == 0);
    }
    tide__device *device = host ? standin_between(m->fault) : m->fault;
    if (device == NULL) {
        return wrong(m, "no stand-in for the driver: %s", tide_last_error());
    }
    m->w = watch_open(device, m->mode, left);
    tide_open_options options = {
        .struct_size = sizeof options, .cross_stream = m->mode, .limit_bytes = m->limit};
    if (tide__open_on(&m->w->base, &options, small ? &tuning : NULL, &m->a) != TIDE_OK) {
        return wrong(m, "open: %s", tide_last_error());
    }
    for (int i = 0; i < m->devices; i++) {
        m->d[i].pools[0] = (pool){TIDE_POOL_DEFAULT, true};
        m->d[i].streams[0] = 0;
        for (m->d[i].stream_count = 1; m->d[i].stream_count < streams; m->d[i].stream_count++) {
            if (tide_stream_create(m->a, i, &m->d[i].streams[m->d[i].stream_count]) != TIDE_OK) {
                return wrong(m, "stream_create: %s", tide_last_error());
            }
        }
    }
    return true;
}

/* Frees all, trims all, and looks that the device has everything back. */
static bool wind_up(model *m) {
    tide__fault_disarm(m->fault);
    m->faults_before = tide__fault_injected(m->fault);
    while (m->live_count > 0) {
        if (!free_index(m, m->live_count / 2)) {
            return false;
        }
    }
    for (int i = 0; i < m->devices; i++) {
        tide_trim_options options = {
            .struct_size = sizeof options, .bytes = UINT64_MAX, .wait_ns = UINT64_MAX};
        uint64_t free_bytes = 0, total_bytes = 0;
        for (int round = 0; round < 2; round++) { /* what a failed call left may take a second one */
            if (tide_trim(m->a, i, &options, NULL) != TIDE_OK) {
                return wrong(m, "the last trim: %s", tide_last_error());
            }
        }
        if (!op_verify(m, NULL) || !nothing_found(m)) {
            return false;
        }
        m->inner->ops->mem_info(m->inner, i, &free_bytes, &total_bytes);
        if (free_bytes != total_bytes || m->w->gpus[i].mapped_bytes != 0) {
            return wrong(m, "all is freed and trimmed, and %" PRIu64 " bytes are held, %" PRIu64 " mapped",
                         total_bytes - free_bytes, m->w->gpus[i].mapped_bytes);
        }
        if (m->c->backend == MODEL_HOST) {
            tide__host_result r;
            tide__host_device_sync(m->inner, i);
            tide__host_get_result(m->inner, i, &r);
            if (r.wrong_bytes != 0) {
                return wrong(m, "%" PRIu64 " wrong bytes, the first at %#" PRIx64, r.wrong_bytes,
                             r.first_wrong_va);
            }
        }
    }
    return nothing_found(m);
}

static void note_exercise(model *m) {
    for (int i = 0; i < m->devices && m->a != NULL; i++) {
        tide_stats s = {.struct_size = sizeof s};
        tide_stats_get(m->a, i, &s);
        m->result->allocs += s.allocs;
        m->result->ooms += s.ooms;
        m->result->moves += s.moves;
        m->result->stream_waits += s.stream_waits;
    }
    m->result->faults = m->fault != NULL ? tide__fault_injected(m->fault) : 0;
}

static bool run_ops(model *m) {
    static bool (*const run[])(model *, const model_op *) = {
#define X(name, weight) op_##name,
        MODEL_OP_LIST(X)
#undef X
    };
    for (at_op = 0; at_op < m->c->op_count; at_op++) {
        const model_op *o = &m->c->ops[at_op];
        m->faults_before = tide__fault_injected(m->fault);
        if (!run[o->kind](m, o) || !nothing_found(m)) {
            return false;
        }
    }
    return wind_up(m);
}

bool model_run(const model_case *c, model_result *out) {
    model *m = calloc(1, sizeof *m);
    watch_left left = {0};
    *out = (model_result){0};
    if (m == NULL) {
        return false;
    }
    m->c = c;
    m->result = out;
    at_case = c;
    at_op = 0;
    bool fine = set_up(m, &left) && run_ops(m);
    out->failed_at = at_op;
    note_exercise(m);
    if (m->a != NULL) {
        for (int i = 0; c->backend == MODEL_HOST && i < m->devices; i++) {
            tide__host_device_sync(m->inner, i); /* close wants the work done */
        }
        tide_close(m->a);
        const char *without = c->backend == MODEL_HOST ? standin_end(m->fault) : "";
        if (fine && without[0] != '\0') {
            fine = wrong(m, "to the driver: %s", without);
        }
        if (fine && (!left.closed || left.chunks + left.mappings + left.reservations + left.events != 0)) {
            fine = wrong(m, "after close: %zu chunks, %zu mappings, %zu reservations, %zu events",
                         left.chunks, left.mappings, left.reservations, left.events);
        }
    }
    at_case = NULL;
    free(m);
    return fine;
}
