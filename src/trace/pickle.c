/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's state and its loop. The dozen opcodes that a snapshot is made of
 * run in the loop with what they need in locals: at most 9 bytes are read past
 * the opcode, which is checked once for each. All others, and these in rare cases
 * and at the end of a window, are in pickle_ops.c.
 *
 * Who holds an object: the place it is at (stack or container) and, if it was
 * memoised, one slot. As soon as it is fetched or duplicated it is `shared`. When
 * an object becomes a record an unshared one goes back to the free list and its
 * memo slot gets the record; a shared one stays as a forward.
 */
#include "trace/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace/pickle_opcodes.h"

#define NO_OP (-1)
#define OP_BYTES 16 /* at least what a common opcode and its number take */

tide_status tide__pickle_open(tide__pickle *m, tide__source *source, tide__meter *meter) {
    *m = (tide__pickle){.source = source, .meter = meter, .objects = {.meter = meter}};
    return tide__intern_open(&m->intern, meter);
}

void tide__pickle_drop_memo(tide__pickle *m) {
    tide__meter_give(m->meter, m->stack_capacity * sizeof *m->stack);
    tide__meter_give(m->meter, m->mark_capacity * sizeof *m->marks);
    tide__meter_give(m->meter, m->memo_capacity * sizeof *m->memo);
    tide__meter_give(m->meter, m->scratch_capacity);
    free(m->stack);
    free(m->marks);
    free(m->memo);
    free(m->scratch);
    m->stack = m->memo = NULL;
    m->marks = NULL;
    m->scratch = NULL;
    m->depth = m->stack_capacity = m->mark_count = m->mark_capacity = 0;
    m->memo_count = m->memo_capacity = m->scratch_capacity = 0;
}

void tide__pickle_close(tide__pickle *m) {
    tide__pickle_drop_memo(m);
    tide__objects_free(&m->objects);
    tide__intern_close(&m->intern);
}

void tide__pickle_set_failure(tide__pickle *m, tide_status status, const char *format, ...) {
    char cause[512];
    va_list args;
    va_start(args, format);
    vsnprintf(cause, sizeof cause, format, args);
    va_end(args);
    tide__source_set_failure(m->source, status, m->op_offset, "%s", cause);
}

/* ---- Stack and marks ---- */

static tide_status grow_stack(tide__pickle *m) {
    tide_status status =
        tide__meter_grow(m->meter, (void **)&m->stack, &m->stack_capacity, m->depth + 1, sizeof *m->stack);
    return status == TIDE_OK ? TIDE_OK : tide__pickle_fail_here(m, status);
}

tide_status tide__pickle_push(tide__pickle *m, tide__value v) {
    if (m->depth == m->stack_capacity) {
        tide_status status = grow_stack(m);
        if (status != TIDE_OK) {
            return status;
        }
    }
    m->stack[m->depth++] = v;
    return TIDE_OK;
}

static size_t stack_floor(const tide__pickle *m) {
    return m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
}

static tide_status need_values(tide__pickle *m, size_t n) {
    if (m->depth - stack_floor(m) < n) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "the pickle takes a value from an empty stack");
    }
    return TIDE_OK;
}

tide_status tide__pickle_pop(tide__pickle *m, tide__value *out) {
    tide_status status = need_values(m, 1);
    if (status == TIDE_OK) {
        *out = tide__resolve(m->stack[--m->depth]);
    }
    return status;
}

tide_status tide__pickle_mark(tide__pickle *m) {
    tide_status status = tide__meter_grow(m->meter, (void **)&m->marks, &m->mark_capacity, m->mark_count + 1,
                                          sizeof *m->marks);
    if (status != TIDE_OK) {
        return tide__pickle_fail_here(m, status);
    }
    m->marks[m->mark_count++] = m->depth;
    return TIDE_OK;
}

tide_status tide__pickle_since_mark(tide__pickle *m, tide__value **values, size_t *n) {
    *values = NULL;
    *n = 0;
    if (m->mark_count == 0) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "the pickle takes values since a mark, but there is none");
    }
    size_t floor = m->marks[--m->mark_count];
    *values = m->stack + floor;
    *n = m->depth - floor;
    m->depth = floor;
    return TIDE_OK;
}

/* ---- Memo ---- */

static tide__value share(tide__value v) {
    v = tide__resolve(v);
    if (tide__tag_of(v) == TIDE__TAG_OBJECT) {
        tide__payload_object(v)->shared = true;
    }
    return v;
}

tide_status tide__pickle_get(tide__pickle *m, uint64_t slot) {
    if (slot >= m->memo_count || m->memo[slot] == TIDE__TAG_UNSET) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "memo %llu is fetched but was never stored",
                                 (unsigned long long)slot);
    }
    return tide__pickle_push(m, share(m->memo[slot]));
}

static void note_memo(tide__object *o, uint64_t slot) {
    if (o->memo == 0 && slot < UINT32_MAX) {
        o->memo = (uint32_t)slot + 1;
    } else {
        o->shared = true;
    }
}

tide_status tide__pickle_put(tide__pickle *m, uint64_t slot) {
    tide_status status = need_values(m, 1);
    if (status != TIDE_OK) {
        return status;
    }
    if (slot >= m->memo_count) {
        if (slot >= SIZE_MAX / sizeof *m->memo) {
            return tide__pickle_fail(m, TIDE_CORRUPT, "memo number %llu", (unsigned long long)slot);
        }
        status = tide__meter_grow(m->meter, (void **)&m->memo, &m->memo_capacity, slot + 1, sizeof *m->memo);
        if (status != TIDE_OK) {
            return tide__pickle_fail_here(m, status);
        }
        memset(m->memo + m->memo_count, 0, (slot - m->memo_count) * sizeof *m->memo);
        m->memo_count = slot + 1;
    }
    tide__value v = m->stack[m->depth - 1];
    m->memo[slot] = v;
    if (tide__tag_of(v) == TIDE__TAG_OBJECT) {
        note_memo(tide__payload_object(v), slot);
    }
    return TIDE_OK;
}

void tide__pickle_replace(tide__pickle *m, tide__object *o, tide__value v) {
    if (o->shared) {
        tide__objects_forward(&m->objects, o, v);
        return;
    }
    /* A later PUT may have taken the slot. */
    if (o->memo != 0 && o->memo <= m->memo_count && m->memo[o->memo - 1] == tide__value_object(o)) {
        m->memo[o->memo - 1] = v;
    }
    tide__objects_drop(&m->objects, o);
}

/* ---- Containers ---- */

tide_status tide__pickle_new(tide__pickle *m, tide__kind kind, const tide__value *items, size_t n) {
    tide__object *o;
    tide_status status = tide__objects_new(&m->objects, kind, m->op_offset, &o);
    if (status == TIDE_OK) {
        status = tide__objects_append(&m->objects, o, items, n);
    }
    if (status != TIDE_OK) {
        return tide__pickle_fail_here(m, status);
    }
    return tide__pickle_push(m, tide__value_object(o));
}

/* A dict that was filled one item at a time shows what it is when it is put away. */
static tide_status settle(tide__pickle *m, tide__value *v) {
    tide__object *o = tide__as_object(*v, TIDE__KIND_DICT);
    *v = tide__resolve(*v);
    if (o == NULL || o->count == 0) {
        return TIDE_OK;
    }
    tide__value record = TIDE__TAG_UNSET;
    tide_status status = m->on_dict(m->user, o->items, o->count, o->offset, &record);
    if (status == TIDE_OK && record != TIDE__TAG_UNSET) {
        tide__pickle_replace(m, o, record);
        *v = record;
    }
    return status;
}

static tide_status top_object(tide__pickle *m, tide__kind kind, tide__object **out) {
    tide_status status = need_values(m, 1);
    if (status != TIDE_OK) {
        return status;
    }
    tide__value v = tide__resolve(m->stack[m->depth - 1]);
    *out = tide__as_object(v, kind);
    if (*out != NULL) {
        return TIDE_OK;
    }
    if (tide__tag_of(v) >= TIDE__TAG_STACK) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "a %s is filled again after it was complete",
                                 kind == TIDE__KIND_DICT ? "dict" : "list");
    }
    return tide__pickle_fail(m, TIDE_CORRUPT, "items are put into something that is not a %s",
                             kind == TIDE__KIND_DICT   ? "dict"
                             : kind == TIDE__KIND_LIST ? "list"
                                                       : "set");
}

tide_status tide__pickle_append(tide__pickle *m, tide__kind kind, tide__value *values, size_t n) {
    tide__object *o;
    tide_status status = top_object(m, kind, &o);
    for (size_t i = 0; i < n && status == TIDE_OK; i++) {
        /* Most are records by now. */
        if (tide__tag_of(values[i]) == TIDE__TAG_OBJECT) {
            status = settle(m, &values[i]);
        }
    }
    if (status != TIDE_OK) {
        return m->source->status != TIDE_OK ? status : tide__pickle_fail_here(m, status);
    }
    status = tide__objects_append(&m->objects, o, values, n);
    return status == TIDE_OK ? TIDE_OK : tide__pickle_fail_here(m, status);
}

tide_status tide__pickle_set_items(tide__pickle *m, tide__value *items, size_t n) {
    tide__object *o;
    tide_status status = top_object(m, TIDE__KIND_DICT, &o);
    if (status != TIDE_OK) {
        return status;
    }
    if (n % 2 != 0) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "a dict's key has no value");
    }
    tide__value record = TIDE__TAG_UNSET;
    if (o->count == 0) {
        status = m->on_dict(m->user, items, n, o->offset, &record);
    }
    if (status == TIDE_OK && record != TIDE__TAG_UNSET) {
        m->stack[m->depth - 1] = record;
        tide__pickle_replace(m, o, record);
        return TIDE_OK;
    }
    if (status == TIDE_OK) {
        status = tide__objects_append(&m->objects, o, items, n);
    }
    return status == TIDE_OK ? TIDE_OK : tide__pickle_fail_here(m, status);
}

static tide_status set_items_since_mark(tide__pickle *m) {
    tide__value *items;
    size_t n;
    tide_status status = tide__pickle_since_mark(m, &items, &n);
    return status == TIDE_OK ? tide__pickle_set_items(m, items, n) : status;
}

/* ---- The loop ---- */

static uint32_t little32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t little64(const uint8_t *p) { return little32(p) | (uint64_t)little32(p + 4) << 32; }

/* Between two opcodes: room on the stack and bytes in the window. */
static tide_status refill(tide__pickle *m) {
    if (m->depth == m->stack_capacity) {
        tide_status status = grow_stack(m);
        if (status != TIDE_OK) {
            return status;
        }
    }
    if (!tide__source_fill(m->source, OP_BYTES)) {
        return m->source->status;
    }
    if (m->source->at >= m->source->end) {
        return tide__source_fail(m->source, TIDE_CORRUPT, m->source->data_bytes,
                                 "the file ends inside the pickle (truncated)");
    }
    return TIDE_OK;
}

/* Runs common opcodes until one that is not, which it returns in *op with the
 * source behind it; NO_OP where the window or the stack has come to its end. */
static tide_status run_common(tide__pickle *m, int *op) {
    tide__source *s = m->source;
    const uint8_t *p = s->at, *end = s->end;
    tide__value *stack = m->stack, *memo = m->memo;
    size_t depth = m->depth, capacity = m->stack_capacity;
    tide_status status = TIDE_OK;
    while (end - p >= OP_BYTES && depth < capacity) {
        tide__value v;
        switch (*p) {
        case OP_BINGET:
            v = p[1] < m->memo_count ? memo[p[1]] : TIDE__TAG_UNSET;
            if (v == TIDE__TAG_UNSET) goto other;
            stack[depth++] = tide__tag_of(v) == TIDE__TAG_OBJECT ? share(v) : v;
            p += 2;
            continue;
        case OP_LONG_BINGET:
            v = little32(p + 1) < m->memo_count ? memo[little32(p + 1)] : TIDE__TAG_UNSET;
            if (v == TIDE__TAG_UNSET) goto other;
            stack[depth++] = tide__tag_of(v) == TIDE__TAG_OBJECT ? share(v) : v;
            p += 5;
            continue;
        case OP_BININT1:
            stack[depth++] = tide__value_int(p[1]);
            p += 2;
            continue;
        case OP_BININT2:
            stack[depth++] = tide__value_int(p[1] | p[2] << 8);
            p += 3;
            continue;
        case OP_BININT:
            stack[depth++] = tide__value_int((int32_t)little32(p + 1));
            p += 5;
            continue;
        case OP_LONG1: {
            if (p[1] > 7 || p[1] == 0) goto other;
            unsigned unused = 64u - 8u * p[1];
            stack[depth++] = tide__value_int((int64_t)(little64(p + 2) << unused) >> unused);
            p += 2 + p[1];
            continue;
        }
        case OP_SHORT_BINUNICODE: {
            if (end - p < 2 + p[1]) goto other;
            uint32_t index;
            status = tide__intern_string(&m->intern, p + 2, p[1], &index);
            if (status != TIDE_OK) goto failed;
            stack[depth++] = TIDE__VALUE(TIDE__TAG_STRING, index);
            p += 2 + p[1];
            continue;
        }
        case OP_MEMOIZE:
            if (m->memo_count == m->memo_capacity || depth == stack_floor(m)) goto other;
            v = stack[depth - 1];
            memo[m->memo_count] = v;
            if (tide__tag_of(v) == TIDE__TAG_OBJECT) note_memo(tide__payload_object(v), m->memo_count);
            m->memo_count++;
            p++;
            continue;
        case OP_MARK:
            if (m->mark_count == m->mark_capacity) goto other;
            m->marks[m->mark_count++] = depth;
            p++;
            continue;
        case OP_EMPTY_DICT: {
            tide__object *o;
            s->at = p;
            status = tide__objects_new(&m->objects, TIDE__KIND_DICT, tide__source_offset(s), &o);
            if (status != TIDE_OK) goto failed;
            stack[depth++] = tide__value_object(o);
            p++;
            continue;
        }
        case OP_SETITEMS:
            s->at = p;
            m->op_offset = tide__source_offset(s);
            m->depth = depth;
            status = set_items_since_mark(m);
            if (status != TIDE_OK) return status;
            depth = m->depth;
            p++;
            continue;
        default: goto other;
        }
    }
    s->at = p;
    m->depth = depth;
    *op = NO_OP;
    return TIDE_OK;
other:
    *op = *p;
    s->at = p + 1;
    m->op_offset = tide__source_offset(s) - 1;
    m->depth = depth;
    return TIDE_OK;
failed:
    s->at = p;
    m->op_offset = tide__source_offset(s);
    return tide__pickle_fail_here(m, status);
}

/* What people have instead of a pickle that can be read, and what to do about it; NULL: something else. */
static const char *known_format(const uint8_t *p, size_t n) {
    static const struct {
        const char *start, *message;
    } formats[] = {
        {"PK\3\4", "a zip archive, as torch.save writes, not a pickle: save the snapshot with pickle.dump or "
                   "torch.cuda.memory._dump_snapshot"},
        {"\3757zXZ", "compressed with xz: uncompress it first, or use gzip or zstd"},
        {"BZh", "compressed with bzip2: uncompress it first, or use gzip or zstd"},
        {"{", "JSON or other text, not a pickle: save the snapshot with torch.cuda.memory._dump_snapshot"},
        {"[", "JSON or other text, not a pickle: save the snapshot with torch.cuda.memory._dump_snapshot"},
        {"(", "a pickle of protocol 0 or 1, if any: save it with protocol 2 or later, as pickle.dump does "
              "unless told"},
        {"}", "a pickle of protocol 0 or 1, if any: save it with protocol 2 or later, as pickle.dump does "
              "unless told"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        size_t length = strlen(formats[i].start);
        if (n >= length && memcmp(p, formats[i].start, length) == 0) {
            return formats[i].message;
        }
    }
    return NULL;
}

static tide_status check_start(tide__pickle *m) {
    tide__source *s = m->source;
    if (!tide__source_fill(s, 8)) {
        return s->status;
    }
    const uint8_t *p = s->at;
    size_t n = (size_t)(s->end - s->at);
    if (n == 0) {
        return tide__source_fail(s, TIDE_CORRUPT, 0, "the file is empty");
    }
    const char *known = known_format(p, n);
    if (known != NULL) {
        return tide__source_fail(s, TIDE_CORRUPT, 0, "%s", known);
    }
    if (p[0] != OP_PROTO) {
        return tide__source_fail(s, TIDE_CORRUPT, 0,
                                 "not a pickle of protocol 2 to 5 (it begins with byte 0x%02x)", p[0]);
    }
    if (n >= 2 && (p[1] < 2 || p[1] > 5)) {
        return tide__source_fail(s, TIDE_CORRUPT, 1, "pickle protocol %d is not known (2 to 5 are)", p[1]);
    }
    m->protocol = p[1];
    return TIDE_OK;
}

static tide_status finish(tide__pickle *m, tide__value *out) {
    tide_status status = tide__pickle_pop(m, out);
    if (status == TIDE_OK) {
        status = settle(m, out);
    }
    if (status != TIDE_OK) {
        return status;
    }
    tide__source *s = m->source;
    uint64_t offset = tide__source_offset(s);
    if (!tide__source_fill(s, 1)) {
        return s->status;
    }
    if (s->at < s->end) {
        return tide__source_fail(s, TIDE_CORRUPT, offset, "data follows the end of the pickle");
    }
    return TIDE_OK;
}

tide_status tide__pickle_run(tide__pickle *m, tide__value *out) {
    tide_status status = check_start(m);
    while (status == TIDE_OK) {
        status = refill(m);
        int op = NO_OP;
        if (status == TIDE_OK) {
            status = run_common(m, &op);
        }
        if (status == TIDE_OK && op == NO_OP) {
            /* Nothing but the window's last bytes: one at a time. */
            if (m->depth == m->stack_capacity || m->source->end - m->source->at >= OP_BYTES ||
                !m->source->at_end) {
                continue;
            }
            m->op_offset = tide__source_offset(m->source);
            op = *m->source->at++;
        }
        if (status == TIDE_OK && op == OP_STOP) {
            return finish(m, out);
        }
        if (status == TIDE_OK) {
            status = tide__pickle_step(m, (uint8_t)op);
        }
    }
    return status;
}
