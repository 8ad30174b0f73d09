/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value: what the pickle machine computes with. A value is 8 bytes: a tag in the
 * low four bits and a payload above. Numbers and references to interned things
 * are values of their own; only lists, dicts, tuples and sets are objects.
 *
 * The parts of a snapshot that come in millions never become objects that stay:
 * a trace entry, a stack frame, a block, a segment and an annotation are known by
 * their keys when their dict is complete, kept as records in compact arrays, and
 * from then on are a tag and a number.
 */
#ifndef TIDE_TRACE_VALUE_H
#define TIDE_TRACE_VALUE_H

#include "base/base.h"
#include "trace/meter.h"

typedef uint64_t tide__value;

typedef enum tide__tag {
    TIDE__TAG_UNSET,  /* an empty memo slot; all zero */
    TIDE__TAG_SINGLE, /* payload: tide__single */
    TIDE__TAG_INT,    /* payload: 60 bits, signed */
    TIDE__TAG_WIDE,   /* payload: index into wide numbers << 2 | tide__wide_kind */
    TIDE__TAG_STRING, /* payload: index of the string, as every one below */
    TIDE__TAG_OBJECT, /* a pointer, aligned to 16 */
    TIDE__TAG_PAIR,   /* a tuple of two integers, interned: a pool's id */
    TIDE__TAG_STACK,  /* a list of frames, interned */
    TIDE__TAG_FRAME,  /* interned */
    TIDE__TAG_EVENT,  /* in order of appearance, as the four below */
    TIDE__TAG_BLOCK,
    TIDE__TAG_SEGMENT,
    TIDE__TAG_NOTE, /* an annotation, counted only */
    TIDE__TAG_RUN,  /* in a list only: the record before it and the n after that one */
} tide__tag;

typedef enum tide__single {
    TIDE__SINGLE_NONE,
    TIDE__SINGLE_FALSE,
    TIDE__SINGLE_TRUE,
    TIDE__SINGLE_BYTES, /* bytes are of no use here: their content is not kept */
    TIDE__SINGLE_HUGE,  /* an integer of more than 64 bits */
} tide__single;

typedef enum tide__wide_kind {
    TIDE__WIDE_SIGNED,
    TIDE__WIDE_UNSIGNED,
    TIDE__WIDE_DOUBLE,
} tide__wide_kind;

#define TIDE__VALUE(tag, payload) (((tide__value)(payload) << 4) | (tide__value)(tag))
#define TIDE__VALUE_SINGLE(single) TIDE__VALUE(TIDE__TAG_SINGLE, (single))

static inline tide__tag tide__tag_of(tide__value v) { return (tide__tag)(v & 15); }
static inline uint64_t tide__payload(tide__value v) { return v >> 4; }
static inline bool tide__fits_int(int64_t v) { return v >= -((int64_t)1 << 59) && v < ((int64_t)1 << 59); }
static inline tide__value tide__value_int(int64_t v) { return TIDE__VALUE(TIDE__TAG_INT, (uint64_t)v); }
static inline int64_t tide__payload_int(tide__value v) { return (int64_t)v >> 4; }

/* ---- Objects ---- */

typedef enum tide__kind {
    TIDE__KIND_LIST,
    TIDE__KIND_DICT, /* items are key, value, key, value... */
    TIDE__KIND_TUPLE,
    TIDE__KIND_SET,
    TIDE__KIND_FORWARD, /* has become a record: `becomes` */
} tide__kind;

typedef struct tide__object {
    _Alignas(16) union {
        tide__value *items;
        tide__value becomes;
        struct tide__object *next_free;
    };
    uint32_t count, capacity; /* of items */
    uint64_t length;          /* elements; more than count where there are runs */
    uint64_t offset;          /* in the data, of the opcode that made it */
    tide__value next;         /* the record that would continue the last run */
    uint32_t memo;            /* its only memo slot + 1; 0: none */
    uint8_t kind;             /* tide__kind */
    bool shared;              /* reachable other than by one reference and its memo slot */
} tide__object;

static inline tide__value tide__value_object(const tide__object *o) {
    return (tide__value)(uintptr_t)o | TIDE__TAG_OBJECT;
}
static inline tide__object *tide__payload_object(tide__value v) {
    return (tide__object *)(uintptr_t)(v & ~(tide__value)15);
}

/* An object's value, or what it has become. */
static inline tide__value tide__resolve(tide__value v) {
    if (tide__tag_of(v) == TIDE__TAG_OBJECT && tide__payload_object(v)->kind == TIDE__KIND_FORWARD) {
        return tide__payload_object(v)->becomes;
    }
    return v;
}

/* NULL unless v is an object of that kind. */
static inline tide__object *tide__as_object(tide__value v, tide__kind kind) {
    v = tide__resolve(v);
    if (tide__tag_of(v) != TIDE__TAG_OBJECT || tide__payload_object(v)->kind != kind) {
        return NULL;
    }
    return tide__payload_object(v);
}

/* Objects and wide numbers, metered. Freed as a whole, without walking values. */
typedef struct tide__objects {
    tide__meter *meter;
    struct tide__object_slab *slabs;
    tide__object *free_list;
    uint64_t *wide;
    size_t wide_count, wide_capacity;
} tide__objects;

tide_status tide__objects_new(tide__objects *h, tide__kind kind, uint64_t offset, tide__object **out);
void tide__objects_drop(tide__objects *h, tide__object *o);
/* Drops the items: o is `becomes` from now on. */
void tide__objects_forward(tide__objects *h, tide__object *o, tide__value becomes);
void tide__objects_free(tide__objects *h);

/* Appends n values as they are; records are joined into runs. */
tide_status tide__objects_append(tide__objects *h, tide__object *o, const tide__value *values, size_t n);

tide_status tide__objects_wide(tide__objects *h, tide__wide_kind kind, uint64_t bits, tide__value *out);

/* Numbers: false where v is not one or is outside the type. True counts as 1. */
bool tide__value_u64(const tide__objects *h, tide__value v, uint64_t *out);
bool tide__value_i64(const tide__objects *h, tide__value v, int64_t *out);
bool tide__value_double(const tide__objects *h, tide__value v, double *out);

/* Walks a list's elements, runs unrolled. */
typedef struct tide__walk {
    const tide__object *list;
    size_t at;
    uint64_t left; /* of the run */
    tide__value value;
} tide__walk;

static inline tide__walk tide__walk_start(const tide__object *list) { return (tide__walk){.list = list}; }
bool tide__walk_next(tide__walk *w); /* then w->value */

/* The value of a dict's key (a string's index), the last where it is repeated. */
bool tide__dict_get(const tide__object *dict, uint32_t key, tide__value *out);

#endif
