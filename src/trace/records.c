/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns complete dicts into records. The keys are known words, whose string
 * indices are the smallest, so an entry's values are put into an array by key and
 * looked up there: no string is compared.
 */
#include "trace/records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HAS(mask, word) (((mask) >> TIDE__WORD_##word & 1) != 0)

_Static_assert(TIDE__WORD_KEYS <= 64, "the keys of records fit a mask");

typedef struct fields {
    tide__value of[TIDE__WORD_KEYS];
    uint64_t mask; /* which are set */
    uint64_t offset;
} fields;

/* Notes what is wrong with a dict and leaves it one. */
static bool bad(tide__records *r, const fields *f, const char *what, const char *key, const char *why) {
    if (r->bad[0] == 0) {
        r->bad_offset = f->offset;
        snprintf(r->bad, sizeof r->bad, "%s: '%s' %s", what, key, why);
    }
    return false;
}

/* ---- Fields ---- */

/* Sets f's value, or *out's default where the key is missing. */
static bool size_field(tide__records *r, const fields *f, unsigned word, const char *what, const char *key,
                       uint64_t *out) {
    if ((f->mask >> word & 1) == 0) {
        return true;
    }
    if (!tide__value_u64(&r->machine->objects, f->of[word], out)) {
        return bad(r, f, what, key, "is not a number from 0 to 2^64");
    }
    return true;
}

static tide_status add_number(tide__records *r, tide__numbering *n, uint64_t key, uint64_t *index) {
    if (n->count > UINT16_MAX) {
        return tide__fail(TIDE_CORRUPT, "more than 65536 streams or pools");
    }
    tide_status status =
        tide__meter_grow(r->machine->meter, (void **)&n->keys, &n->capacity, n->count + 1, sizeof *n->keys);
    if (status != TIDE_OK) {
        return status;
    }
    if (!tide__map_put(&n->index, tide__intern_scramble(r->machine->intern.seed, key), n->count)) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory");
    }
    n->keys[n->count] = key;
    *index = n->count++;
    return TIDE_OK;
}

static tide_status number_of(tide__records *r, tide__numbering *n, uint64_t key, uint16_t *out) {
    if (key != n->last_key) {
        uint64_t index;
        tide_status status = TIDE_OK;
        if (!tide__map_get(&n->index, tide__intern_scramble(r->machine->intern.seed, key), &index)) {
            status = add_number(r, n, key, &index);
        }
        if (status != TIDE_OK) {
            return status;
        }
        n->last_key = key;
        n->last_index = (uint16_t)index;
    }
    *out = n->last_index;
    return TIDE_OK;
}

/* Streams are pointers or small numbers; PyTorch writes them signed. */
static bool stream_field(tide__records *r, const fields *f, const char *what, uint64_t *out) {
    int64_t negative;
    *out = 0;
    if (!HAS(f->mask, stream) || tide__value_u64(&r->machine->objects, f->of[TIDE__WORD_stream], out)) {
        return true;
    }
    if (!tide__value_i64(&r->machine->objects, f->of[TIDE__WORD_stream], &negative)) {
        return bad(r, f, what, "stream", "is not a number");
    }
    *out = (uint64_t)negative;
    return true;
}

static bool pool_field(tide__records *r, const fields *f, const char *what, uint64_t *out) {
    *out = 0;
    bool longer = HAS(f->mask, segment_pool_id);
    if (!longer && !HAS(f->mask, pool_id)) {
        return true;
    }
    tide__value v = f->of[longer ? TIDE__WORD_segment_pool_id : TIDE__WORD_pool_id];
    if (tide__tag_of(v) != TIDE__TAG_PAIR) {
        return bad(r, f, what, longer ? "segment_pool_id" : "pool_id", "is not a pair of numbers");
    }
    *out = tide__payload(v);
    return true;
}

static tide_status stream_and_pool(tide__records *r, uint64_t stream, uint64_t pool, uint16_t *stream_out,
                                   uint16_t *pool_out) {
    tide_status status = number_of(r, &r->streams, stream, stream_out);
    return status == TIDE_OK ? number_of(r, &r->pools, pool, pool_out) : status;
}

/* A list of frames becomes a stack; anything else is none. */
static tide_status stack_field(tide__records *r, const fields *f, uint32_t *out) {
    *out = 0;
    if (!HAS(f->mask, frames)) {
        return TIDE_OK;
    }
    tide__value v = tide__resolve(f->of[TIDE__WORD_frames]);
    if (tide__tag_of(v) == TIDE__TAG_STACK) {
        *out = (uint32_t)tide__payload(v);
        return TIDE_OK;
    }
    tide__object *list = tide__as_object(v, TIDE__KIND_LIST);
    if (list == NULL) {
        return TIDE_OK;
    }
    tide_status status = tide__meter_grow(r->machine->meter, (void **)&r->frames, &r->frame_capacity,
                                          list->count, sizeof *r->frames);
    for (size_t i = 0; i < list->count && status == TIDE_OK; i++) {
        tide__value frame = tide__resolve(list->items[i]);
        if (tide__tag_of(frame) != TIDE__TAG_FRAME) {
            return TIDE_OK;
        }
        r->frames[i] = (uint32_t)tide__payload(frame);
    }
    if (status == TIDE_OK) {
        status = tide__intern_stack(&r->machine->intern, r->frames, list->count, out);
    }
    if (status == TIDE_OK) {
        tide__pickle_replace(r->machine, list, TIDE__VALUE(TIDE__TAG_STACK, *out));
    }
    return status;
}

/* ---- Entries ---- */

static tide_status phase_field(tide__records *r, const fields *f, uint32_t *out) {
    *out = 0;
    tide__value v = HAS(f->mask, user_metadata) ? f->of[TIDE__WORD_user_metadata] : TIDE__TAG_UNSET;
    if (tide__tag_of(v) == TIDE__TAG_STRING) {
        *out = (uint32_t)tide__payload(v);
        return TIDE_OK;
    }
    if (v == TIDE__TAG_UNSET || v == TIDE__VALUE_SINGLE(TIDE__SINGLE_NONE)) {
        return TIDE_OK;
    }
    char text[256];
    tide__value_text(r->machine, v, text, sizeof text);
    return tide__intern_string(&r->machine->intern, text, strlen(text), out);
}

static bool event_numbers(tide__records *r, const fields *f, tide__trace_event *e) {
    const char *what = "a trace entry";
    bool is_oom = e->action == TIDE__ACTION_OOM;
    bool from_free = is_oom && HAS(f->mask, device_free);
    if (!size_field(r, f, from_free ? TIDE__WORD_device_free : TIDE__WORD_addr, what,
                    from_free ? "device_free" : "addr", &e->addr) ||
        !size_field(r, f, TIDE__WORD_size, what, "size", &e->size)) {
        return false;
    }
    if (e->action <= TIDE__ACTION_SEGMENT_UNMAP) {
        if (!HAS(f->mask, addr)) return bad(r, f, what, "addr", "is missing");
        if (!HAS(f->mask, size)) return bad(r, f, what, "size", "is missing");
        if (e->addr + e->size < e->addr) return bad(r, f, what, "size", "reaches past the last address");
    }
    if (e->size > TIDE__SIZE_MAX) {
        return bad(r, f, what, "size", "is more than 2^56 bytes");
    }
    if (HAS(f->mask, time_us) &&
        !tide__value_i64(&r->machine->objects, f->of[TIDE__WORD_time_us], &e->time_us)) {
        return bad(r, f, what, "time_us", "is not a number");
    }
    return true;
}

static tide_status make_event(tide__records *r, const fields *f, tide__value *out) {
    tide__value action = f->of[TIDE__WORD_action];
    if (tide__tag_of(action) != TIDE__TAG_STRING) {
        bad(r, f, "a trace entry", "action", "is not a string");
        return TIDE_OK;
    }
    tide_status status = tide__meter_grow(r->machine->meter, (void **)&r->events, &r->event_capacity,
                                          r->event_count + 1, sizeof *r->events);
    if (status != TIDE_OK) {
        return status;
    }
    uint64_t known = tide__payload(action) - TIDE__WORD_ACTIONS; /* wraps for smaller ones */
    tide__trace_event e = {.action = (uint8_t)(known < TIDE__ACTION_COUNT ? known : TIDE__ACTION_OTHER)};
    uint64_t stream, pool;
    if (!event_numbers(r, f, &e) || !stream_field(r, f, "a trace entry", &stream) ||
        !pool_field(r, f, "a trace entry", &pool)) {
        return TIDE_OK;
    }
    status = stream_and_pool(r, stream, pool, &e.stream, &e.pool);
    if (status == TIDE_OK) {
        status = phase_field(r, f, &e.phase);
        e.has_phase = e.phase != 0;
    }
    if (status == TIDE_OK) {
        status = stack_field(r, f, &e.stack);
    }
    if (status == TIDE_OK) {
        r->events[r->event_count] = e;
        *out = TIDE__VALUE(TIDE__TAG_EVENT, r->event_count++);
    }
    return status;
}

/* ---- Frames, blocks, segments ---- */

static tide_status make_frame(tide__records *r, const fields *f, tide__value *out) {
    tide__value name = f->of[TIDE__WORD_name], file = f->of[TIDE__WORD_filename];
    int64_t line;
    if (tide__tag_of(name) != TIDE__TAG_STRING || tide__tag_of(file) != TIDE__TAG_STRING ||
        !tide__value_i64(&r->machine->objects, f->of[TIDE__WORD_line], &line)) {
        return TIDE_OK;
    }
    tide__trace_frame frame = {.name = (uint32_t)tide__payload(name),
                               .file = (uint32_t)tide__payload(file),
                               .line = line < 0 ? 0 : (uint32_t)tide__min((uint64_t)line, UINT32_MAX)};
    uint32_t index;
    tide_status status = tide__intern_frame(&r->machine->intern, frame, &index);
    if (status == TIDE_OK) {
        *out = TIDE__VALUE(TIDE__TAG_FRAME, index);
    }
    return status;
}

static bool block_state(tide__value v, uint8_t *out) {
    switch (tide__tag_of(v) == TIDE__TAG_STRING ? tide__payload(v) : 0) {
    case TIDE__WORD_inactive: *out = TIDE__BLOCK_INACTIVE; return true;
    case TIDE__WORD_active_allocated: *out = TIDE__BLOCK_ACTIVE_ALLOCATED; return true;
    case TIDE__WORD_active_pending_free:
    case TIDE__WORD_active_awaiting_free: *out = TIDE__BLOCK_ACTIVE_PENDING_FREE; return true;
    default: return false;
    }
}

static tide_status make_block(tide__records *r, const fields *f, tide__value *out) {
    const char *what = "a block";
    tide__trace_block b = {.addr = TIDE__NO_ADDRESS};
    if (!block_state(f->of[TIDE__WORD_state], &b.state)) {
        bad(r, f, what, "state", "is not a known one");
        return TIDE_OK;
    }
    if (!size_field(r, f, TIDE__WORD_address, what, "address", &b.addr) ||
        !size_field(r, f, TIDE__WORD_size, what, "size", &b.size)) {
        return TIDE_OK;
    }
    b.requested_size = b.size;
    if (!size_field(r, f, TIDE__WORD_requested_size, what, "requested_size", &b.requested_size)) {
        return TIDE_OK;
    }
    if (b.size > TIDE__SIZE_MAX || (b.addr != TIDE__NO_ADDRESS && b.addr + b.size < b.addr)) {
        bad(r, f, what, "size", "is more than an address space holds");
        return TIDE_OK;
    }
    tide_status status = tide__meter_grow(r->machine->meter, (void **)&r->blocks, &r->block_capacity,
                                          r->block_count + 1, sizeof *r->blocks);
    if (status == TIDE_OK) {
        status = stack_field(r, f, &b.stack);
    }
    if (status == TIDE_OK) {
        r->blocks[r->block_count] = b;
        *out = TIDE__VALUE(TIDE__TAG_BLOCK, r->block_count++);
    }
    return status;
}

static bool segment_numbers(tide__records *r, const fields *f, tide__record_segment *s) {
    const char *what = "a segment";
    uint64_t device = 0;
    if (!size_field(r, f, TIDE__WORD_address, what, "address", &s->segment.addr) ||
        !size_field(r, f, TIDE__WORD_total_size, what, "total_size", &s->segment.size) ||
        !size_field(r, f, TIDE__WORD_device, what, "device", &device)) {
        return false;
    }
    if (s->segment.size > TIDE__SIZE_MAX || s->segment.addr + s->segment.size < s->segment.addr) {
        return bad(r, f, what, "total_size", "is more than an address space holds");
    }
    if (device >= TIDE__DEVICE_MAX) {
        return bad(r, f, what, "device", "is not the number of a device");
    }
    s->device = (int)device;
    s->blocks = tide__as_object(f->of[TIDE__WORD_blocks], TIDE__KIND_LIST);
    s->segment.is_large = f->of[TIDE__WORD_segment_type] == TIDE__VALUE(TIDE__TAG_STRING, TIDE__WORD_large);
    s->segment.is_expandable = f->of[TIDE__WORD_is_expandable] == TIDE__VALUE_SINGLE(TIDE__SINGLE_TRUE);
    return true;
}

static tide_status make_segment(tide__records *r, fields *f, tide__value *out) {
    static const unsigned optional[] = {TIDE__WORD_segment_type, TIDE__WORD_is_expandable};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        if ((f->mask >> optional[i] & 1) == 0) {
            f->of[optional[i]] = TIDE__TAG_UNSET;
        }
    }
    tide__record_segment s = {.offset = f->offset};
    uint64_t stream, pool;
    if (!segment_numbers(r, f, &s) || !stream_field(r, f, "a segment", &stream) ||
        !pool_field(r, f, "a segment", &pool)) {
        return TIDE_OK;
    }
    tide_status status = tide__meter_grow(r->machine->meter, (void **)&r->segments, &r->segment_capacity,
                                          r->segment_count + 1, sizeof *r->segments);
    if (status == TIDE_OK) {
        status = stream_and_pool(r, stream, pool, &s.segment.stream, &s.segment.pool);
    }
    if (status == TIDE_OK) {
        r->segments[r->segment_count] = s;
        *out = TIDE__VALUE(TIDE__TAG_SEGMENT, r->segment_count++);
    }
    return status;
}

/* ---- Which is it ---- */

static tide_status on_dict(void *user, const tide__value *items, size_t n, uint64_t offset,
                           tide__value *out) {
    tide__records *r = user;
    fields f;
    f.mask = 0;
    f.offset = offset;
    for (size_t i = 0; i < n; i += 2) {
        /* One comparison: a string, and one of the keys. */
        uint64_t word = (items[i] - TIDE__VALUE(TIDE__TAG_STRING, 0)) >> 4;
        if (word < TIDE__WORD_KEYS && tide__tag_of(items[i]) == TIDE__TAG_STRING) {
            f.of[word] = items[i + 1];
            f.mask |= UINT64_C(1) << word;
        }
    }
    if (HAS(f.mask, action)) {
        return make_event(r, &f, out);
    }
    if (HAS(f.mask, name) && HAS(f.mask, filename) && HAS(f.mask, line)) {
        return make_frame(r, &f, out);
    }
    if (HAS(f.mask, total_size) && HAS(f.mask, address) && HAS(f.mask, blocks)) {
        return make_segment(r, &f, out);
    }
    if (HAS(f.mask, size) && HAS(f.mask, state)) {
        return make_block(r, &f, out);
    }
    if (HAS(f.mask, stage) && HAS(f.mask, time_us)) {
        *out = TIDE__VALUE(TIDE__TAG_NOTE, r->note_count++);
    }
    return TIDE_OK;
}

/* ---- Opening and closing ---- */

tide_status tide__records_open(tide__records *r, tide__pickle *machine) {
    *r = (tide__records){.machine = machine};
    machine->on_dict = on_dict;
    machine->user = r;
    /* A key that is no stream's or pool's, so that 0 is looked up and added. */
    uint16_t zero;
    r->streams.last_key = r->pools.last_key = 1;
    return stream_and_pool(r, 0, 0, &zero, &zero);
}

void tide__records_close(tide__records *r) {
    tide__map_free(&r->streams.index);
    tide__map_free(&r->pools.index);
    free(r->streams.keys);
    free(r->pools.keys);
    free(r->events);
    free(r->blocks);
    free(r->segments);
    free(r->frames);
}

/* ---- Values in words ---- */

typedef struct text_out {
    char *at, *end; /* end: of the terminating 0 */
} text_out;

static void put_text(text_out *o, const char *text) {
    while (*text && o->at < o->end) {
        *o->at++ = *text++;
    }
    *o->at = 0;
}

#define TEXT_DEPTH 4

static void put_value(const tide__pickle *m, tide__value v, unsigned depth, text_out *o);

static void put_object(const tide__pickle *m, const tide__object *object, unsigned depth, text_out *o) {
    if (depth == TEXT_DEPTH) {
        put_text(o, "...");
        return;
    }
    bool is_dict = object->kind == TIDE__KIND_DICT;
    size_t step = is_dict ? 2 : 1;
    for (size_t i = 0; i < object->count && o->at < o->end; i += step) {
        put_text(o, i > 0 ? "," : "");
        put_value(m, object->items[i], depth + 1, o);
        if (is_dict) {
            put_text(o, ":");
            put_value(m, object->items[i + 1], depth + 1, o);
        }
    }
}

/* As Python prints it: the fewest digits that read back as the same, and ".0". */
static void put_double(double d, text_out *o) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, d);
        if (strtod(text, NULL) == d) break;
    }
    put_text(o, text);
    put_text(o, strpbrk(text, ".en") == NULL ? ".0" : "");
}

static void put_number(const tide__pickle *m, tide__value v, text_out *o) {
    char text[40];
    int64_t i;
    uint64_t u;
    double d;
    if (tide__value_double(&m->objects, v, &d)) {
        put_double(d, o);
        return;
    }
    if (tide__value_i64(&m->objects, v, &i)) {
        snprintf(text, sizeof text, "%lld", (long long)i);
    } else if (tide__value_u64(&m->objects, v, &u)) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)u);
    } else {
        return;
    }
    put_text(o, text);
}

static void put_value(const tide__pickle *m, tide__value v, unsigned depth, text_out *o) {
    static const char *const singles[] = {"None", "False", "True", "bytes", "a very large number"};
    char text[64];
    v = tide__resolve(v);
    switch (tide__tag_of(v)) {
    case TIDE__TAG_SINGLE: put_text(o, singles[tide__payload(v)]); break;
    case TIDE__TAG_INT:
    case TIDE__TAG_WIDE: put_number(m, v, o); break;
    case TIDE__TAG_STRING: put_text(o, m->intern.strings[tide__payload(v)]); break;
    case TIDE__TAG_OBJECT: put_object(m, tide__payload_object(v), depth, o); break;
    case TIDE__TAG_PAIR: {
        const int64_t *id = m->intern.pairs[tide__payload(v)].id;
        snprintf(text, sizeof text, "%lld,%lld", (long long)id[0], (long long)id[1]);
        put_text(o, text);
        break;
    }
    case TIDE__TAG_RUN: break;
    default: put_text(o, "..."); break;
    }
}

void tide__value_text(const tide__pickle *m, tide__value v, char *out, size_t room) {
    text_out o = {out, out + room - 1};
    out[0] = 0;
    put_value(m, v, 0, &o);
}
