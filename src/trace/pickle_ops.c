/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One small function for each opcode, run through a table by byte. Strings are
 * kept as UTF-8, as the file has them; the text opcodes of protocol 0, which may
 * stand in later ones, keep their escapes undecoded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trace/pickle.h"
#include "trace/pickle_opcodes.h"

#define LINE_BYTES ((size_t)64 << 10) /* the longest line of a text opcode */

typedef tide_status (*run_op)(tide__pickle *m);

/* ---- Arguments ---- */

/* n bytes, little-endian; on failure the source's status is set. */
static bool take_number(tide__pickle *m, unsigned n, uint64_t *out) {
    const uint8_t *p = tide__source_take(m->source, n, NULL, NULL);
    if (p == NULL) {
        return false;
    }
    *out = 0;
    for (unsigned i = 0; i < n; i++) {
        *out |= (uint64_t)p[i] << (8 * i);
    }
    return true;
}

/* Up to and without the newline, as a C string in the scratch. */
static tide_status take_line(tide__pickle *m, char **out, size_t *length) {
    tide__source *s = m->source;
    if (!tide__source_fill(s, LINE_BYTES)) {
        TIDE__ASSERT(s->status != TIDE_OK);
        return s->status;
    }
    size_t n = (size_t)(s->end - s->at);
    const uint8_t *newline = memchr(s->at, '\n', n < LINE_BYTES ? n : LINE_BYTES);
    if (newline == NULL) {
        return n < LINE_BYTES ? tide__source_fail(s, TIDE_CORRUPT, s->data_bytes,
                                                  "the file ends inside the pickle (truncated)")
                              : tide__pickle_fail(m, TIDE_CORRUPT, "a text argument without an end");
    }
    *length = (size_t)(newline - s->at);
    tide_status status =
        tide__meter_grow(m->meter, (void **)&m->scratch, &m->scratch_capacity, *length + 1, 1);
    if (status != TIDE_OK) {
        return tide__pickle_fail_here(m, status);
    }
    memcpy(m->scratch, s->at, *length);
    m->scratch[*length] = 0;
    s->at = newline + 1;
    *out = (char *)m->scratch;
    return TIDE_OK;
}

/* ---- Singles and numbers ---- */

static tide_status op_none(tide__pickle *m) {
    return tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_NONE));
}
static tide_status op_true(tide__pickle *m) {
    return tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_TRUE));
}
static tide_status op_false(tide__pickle *m) {
    return tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_FALSE));
}

static tide_status push_wide(tide__pickle *m, tide__wide_kind kind, uint64_t bits) {
    tide__value v;
    tide_status status = tide__objects_wide(&m->objects, kind, bits, &v);
    return status == TIDE_OK ? tide__pickle_push(m, v) : tide__pickle_fail_here(m, status);
}

static tide_status push_int(tide__pickle *m, int64_t n) {
    if (tide__fits_int(n)) {
        return tide__pickle_push(m, tide__value_int(n));
    }
    return push_wide(m, TIDE__WIDE_SIGNED, (uint64_t)n);
}

static tide_status push_double(tide__pickle *m, double d) {
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return push_wide(m, TIDE__WIDE_DOUBLE, bits);
}

static tide_status op_binint(tide__pickle *m) {
    uint64_t n;
    return take_number(m, 4, &n) ? push_int(m, (int32_t)(uint32_t)n) : m->source->status;
}
static tide_status op_binint1(tide__pickle *m) {
    uint64_t n;
    return take_number(m, 1, &n) ? push_int(m, (int64_t)n) : m->source->status;
}
static tide_status op_binint2(tide__pickle *m) {
    uint64_t n;
    return take_number(m, 2, &n) ? push_int(m, (int64_t)n) : m->source->status;
}

/* An integer of n bytes, two's complement, little-endian. */
static tide_status push_long(tide__pickle *m, uint64_t n) {
    if (n > 9) {
        return tide__source_skip(m->source, n) ? tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_HUGE))
                                               : m->source->status;
    }
    uint64_t low = 0, high = 0;
    if (!take_number(m, n < 8 ? (unsigned)n : 8, &low) || (n == 9 && !take_number(m, 1, &high))) {
        return m->source->status;
    }
    if (n == 0) {
        return push_int(m, 0);
    }
    if (n <= 8) {
        unsigned unused = 64 - 8 * (unsigned)n;
        return push_int(m, (int64_t)(low << unused) >> unused);
    }
    if (high == 0) {
        return low <= INT64_MAX ? push_int(m, (int64_t)low) : push_wide(m, TIDE__WIDE_UNSIGNED, low);
    }
    return tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_HUGE));
}

static tide_status op_long1(tide__pickle *m) {
    uint64_t n;
    return take_number(m, 1, &n) ? push_long(m, n) : m->source->status;
}
static tide_status op_long4(tide__pickle *m) {
    uint64_t n;
    if (!take_number(m, 4, &n)) {
        return m->source->status;
    }
    if (n > INT32_MAX) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "an integer of negative length");
    }
    return push_long(m, n);
}

static tide_status op_int(tide__pickle *m) {
    char *text = NULL, *end;
    size_t length = 0;
    tide_status status = take_line(m, &text, &length);
    if (status != TIDE_OK) {
        return status;
    }
    if (length == 2 && text[0] == '0' && (text[1] == '0' || text[1] == '1')) {
        return text[1] == '1' ? op_true(m) : op_false(m);
    }
    if (length > 0 && text[length - 1] == 'L') {
        text[--length] = 0;
    }
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (length == 0 || end != text + length) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "text that is not an integer");
    }
    return errno == 0 ? push_int(m, n) : tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_HUGE));
}
static tide_status op_long(tide__pickle *m) { return op_int(m); }

static tide_status op_float(tide__pickle *m) {
    char *text = NULL, *end;
    size_t length = 0;
    tide_status status = take_line(m, &text, &length);
    if (status != TIDE_OK) {
        return status;
    }
    double d = strtod(text, &end);
    if (length == 0 || end != text + length) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "text that is not a number");
    }
    return push_double(m, d);
}

static tide_status op_binfloat(tide__pickle *m) {
    uint64_t bits;
    double d;
    if (!take_number(m, 8, &bits)) {
        return m->source->status;
    }
    bits = __builtin_bswap64(bits); /* big-endian, unlike the rest */
    memcpy(&d, &bits, sizeof d);
    return push_double(m, d);
}

/* ---- Strings and bytes ---- */

static tide_status push_string(tide__pickle *m, const void *text, size_t length) {
    uint32_t index;
    tide_status status = tide__intern_string(&m->intern, text, length, &index);
    return status == TIDE_OK ? tide__pickle_push(m, TIDE__VALUE(TIDE__TAG_STRING, index))
                             : tide__pickle_fail_here(m, status);
}

static tide_status string_of(tide__pickle *m, unsigned length_bytes) {
    uint64_t length;
    if (!take_number(m, length_bytes, &length)) {
        return m->source->status;
    }
    const uint8_t *p = tide__source_take(m->source, length, &m->scratch, &m->scratch_capacity);
    return p != NULL ? push_string(m, p, length) : m->source->status;
}
static tide_status op_short_binunicode(tide__pickle *m) { return string_of(m, 1); }
static tide_status op_binunicode(tide__pickle *m) { return string_of(m, 4); }
static tide_status op_binunicode8(tide__pickle *m) { return string_of(m, 8); }

static tide_status bytes_of(tide__pickle *m, unsigned length_bytes) {
    uint64_t length;
    if (!take_number(m, length_bytes, &length) || !tide__source_skip(m->source, length)) {
        return m->source->status;
    }
    return tide__pickle_push(m, TIDE__VALUE_SINGLE(TIDE__SINGLE_BYTES));
}
static tide_status op_short_binbytes(tide__pickle *m) { return bytes_of(m, 1); }
static tide_status op_binbytes(tide__pickle *m) { return bytes_of(m, 4); }
static tide_status op_binbytes8(tide__pickle *m) { return bytes_of(m, 8); }

static tide_status op_unicode(tide__pickle *m) {
    char *text = NULL;
    size_t length = 0;
    tide_status status = take_line(m, &text, &length);
    return status == TIDE_OK ? push_string(m, text, length) : status;
}

static tide_status op_string(tide__pickle *m) {
    char *text = NULL;
    size_t length = 0;
    tide_status status = take_line(m, &text, &length);
    if (status != TIDE_OK) {
        return status;
    }
    if (length < 2 || (text[0] != '\'' && text[0] != '"') || text[length - 1] != text[0]) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "a string without its quotes");
    }
    return push_string(m, text + 1, length - 2);
}

/* ---- Stack and memo ---- */

static tide_status op_mark(tide__pickle *m) { return tide__pickle_mark(m); }

static tide_status op_pop_mark(tide__pickle *m) {
    tide__value *values;
    size_t n;
    return tide__pickle_since_mark(m, &values, &n);
}

/* As in Python, POP with nothing above the mark takes the mark. */
static tide_status op_pop(tide__pickle *m) {
    if (m->mark_count > 0 && m->marks[m->mark_count - 1] == m->depth) {
        m->mark_count--;
        return TIDE_OK;
    }
    tide__value v;
    return tide__pickle_pop(m, &v);
}

static tide_status op_dup(tide__pickle *m) {
    tide__value v;
    tide_status status = tide__pickle_pop(m, &v);
    if (status != TIDE_OK) {
        return status;
    }
    if (tide__tag_of(v) == TIDE__TAG_OBJECT) {
        tide__payload_object(v)->shared = true;
    }
    m->stack[m->depth++] = v; /* its own place */
    return tide__pickle_push(m, v);
}

static tide_status get_of(tide__pickle *m, unsigned bytes) {
    uint64_t slot;
    return take_number(m, bytes, &slot) ? tide__pickle_get(m, slot) : m->source->status;
}
static tide_status op_binget(tide__pickle *m) { return get_of(m, 1); }
static tide_status op_long_binget(tide__pickle *m) { return get_of(m, 4); }

static tide_status put_of(tide__pickle *m, unsigned bytes) {
    uint64_t slot;
    return take_number(m, bytes, &slot) ? tide__pickle_put(m, slot) : m->source->status;
}
static tide_status op_binput(tide__pickle *m) { return put_of(m, 1); }
static tide_status op_long_binput(tide__pickle *m) { return put_of(m, 4); }
static tide_status op_memoize(tide__pickle *m) { return tide__pickle_put(m, m->memo_count); }

static tide_status take_slot(tide__pickle *m, uint64_t *slot) {
    char *text = NULL, *end;
    size_t length = 0;
    tide_status status = take_line(m, &text, &length);
    if (status != TIDE_OK) {
        return status;
    }
    errno = 0;
    *slot = strtoull(text, &end, 10);
    if (length == 0 || text[0] == '-' || errno != 0 || end != text + length) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "text that is not a memo number");
    }
    return TIDE_OK;
}
static tide_status op_get(tide__pickle *m) {
    uint64_t slot;
    tide_status status = take_slot(m, &slot);
    return status == TIDE_OK ? tide__pickle_get(m, slot) : status;
}
static tide_status op_put(tide__pickle *m) {
    uint64_t slot;
    tide_status status = take_slot(m, &slot);
    return status == TIDE_OK ? tide__pickle_put(m, slot) : status;
}

/* ---- Containers ---- */

static tide_status op_empty_dict(tide__pickle *m) { return tide__pickle_new(m, TIDE__KIND_DICT, NULL, 0); }
static tide_status op_empty_list(tide__pickle *m) { return tide__pickle_new(m, TIDE__KIND_LIST, NULL, 0); }
static tide_status op_empty_tuple(tide__pickle *m) { return tide__pickle_new(m, TIDE__KIND_TUPLE, NULL, 0); }
static tide_status op_empty_set(tide__pickle *m) { return tide__pickle_new(m, TIDE__KIND_SET, NULL, 0); }

/* A tuple of two integers is a pool's id, and there may be one in every entry. */
static tide_status push_tuple(tide__pickle *m, const tide__value *items, size_t n) {
    int64_t first, second;
    if (n == 2 && tide__value_i64(&m->objects, items[0], &first) &&
        tide__value_i64(&m->objects, items[1], &second)) {
        uint32_t index;
        tide_status status = tide__intern_pair(&m->intern, first, second, &index);
        return status == TIDE_OK ? tide__pickle_push(m, TIDE__VALUE(TIDE__TAG_PAIR, index))
                                 : tide__pickle_fail_here(m, status);
    }
    return tide__pickle_new(m, TIDE__KIND_TUPLE, items, n);
}

static tide_status tuple_of(tide__pickle *m, size_t n) {
    tide__value items[3];
    for (size_t i = n; i-- > 0;) {
        tide_status status = tide__pickle_pop(m, &items[i]);
        if (status != TIDE_OK) {
            return status;
        }
    }
    return push_tuple(m, items, n);
}
static tide_status op_tuple1(tide__pickle *m) { return tuple_of(m, 1); }
static tide_status op_tuple2(tide__pickle *m) { return tuple_of(m, 2); }
static tide_status op_tuple3(tide__pickle *m) { return tuple_of(m, 3); }

static tide_status op_tuple(tide__pickle *m) {
    tide__value *values;
    size_t n;
    tide_status status = tide__pickle_since_mark(m, &values, &n);
    return status == TIDE_OK ? push_tuple(m, values, n) : status;
}

static tide_status op_frozenset(tide__pickle *m) {
    tide__value *values;
    size_t n;
    tide_status status = tide__pickle_since_mark(m, &values, &n);
    return status == TIDE_OK ? tide__pickle_new(m, TIDE__KIND_SET, values, n) : status;
}

/* The container would take the place of the first value: make it on top, then
 * fill it as APPENDS and SETITEMS do, so that records are recognised. */
static tide_status filled(tide__pickle *m, tide__kind kind) {
    tide__value *values, made;
    size_t n;
    tide_status status = tide__pickle_since_mark(m, &values, &n);
    if (status != TIDE_OK) {
        return status;
    }
    m->depth += n;
    status = tide__pickle_new(m, kind, NULL, 0);
    if (status != TIDE_OK) {
        return status;
    }
    size_t base = m->depth - 1 - n;
    made = m->stack[m->depth - 1];
    memmove(m->stack + base + 1, m->stack + base, n * sizeof *m->stack);
    m->stack[base] = made;
    m->depth = base + 1;
    values = m->stack + base + 1;
    return kind == TIDE__KIND_DICT ? tide__pickle_set_items(m, values, n)
                                   : tide__pickle_append(m, kind, values, n);
}
static tide_status op_list(tide__pickle *m) { return filled(m, TIDE__KIND_LIST); }
static tide_status op_dict(tide__pickle *m) { return filled(m, TIDE__KIND_DICT); }

static tide_status op_append(tide__pickle *m) {
    tide__value v;
    tide_status status = tide__pickle_pop(m, &v);
    return status == TIDE_OK ? tide__pickle_append(m, TIDE__KIND_LIST, &v, 1) : status;
}

static tide_status append_since_mark(tide__pickle *m, tide__kind kind) {
    tide__value *values;
    size_t n;
    tide_status status = tide__pickle_since_mark(m, &values, &n);
    return status == TIDE_OK ? tide__pickle_append(m, kind, values, n) : status;
}
static tide_status op_appends(tide__pickle *m) { return append_since_mark(m, TIDE__KIND_LIST); }
static tide_status op_additems(tide__pickle *m) { return append_since_mark(m, TIDE__KIND_SET); }

static tide_status op_setitem(tide__pickle *m) {
    tide__value item[2];
    tide_status status = tide__pickle_pop(m, &item[1]);
    if (status == TIDE_OK) {
        status = tide__pickle_pop(m, &item[0]);
    }
    return status == TIDE_OK ? tide__pickle_set_items(m, item, 2) : status;
}
static tide_status op_setitems(tide__pickle *m) {
    tide__value *items;
    size_t n;
    tide_status status = tide__pickle_since_mark(m, &items, &n);
    return status == TIDE_OK ? tide__pickle_set_items(m, items, n) : status;
}

/* ---- The pickle itself ---- */

static tide_status op_proto(tide__pickle *m) {
    uint64_t n;
    return take_number(m, 1, &n) ? TIDE_OK : m->source->status;
}

/* A frame only says how much may be read at once. */
static tide_status op_frame(tide__pickle *m) {
    uint64_t n;
    return take_number(m, 8, &n) ? TIDE_OK : m->source->status;
}

/* ---- The table ---- */

static const struct {
    const char *name;
    run_op run;
} opcodes[256] = {
#define X(id, byte, run) [byte] = {#id, run},
    TIDE__OPCODE_LIST(X)
#undef X
};

tide_status tide__pickle_step(tide__pickle *m, uint8_t op) {
    if (TIDE__LIKELY(opcodes[op].run != NULL)) {
        return opcodes[op].run(m);
    }
    if (opcodes[op].name == NULL) {
        return tide__pickle_fail(m, TIDE_CORRUPT, "byte 0x%02x is not a pickle opcode", op);
    }
    return tide__pickle_fail(m, TIDE_CORRUPT,
                             "opcode %s is refused: it imports, calls or reaches outside the file, and a "
                             "snapshot is only data",
                             opcodes[op].name);
}
