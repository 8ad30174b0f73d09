/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects come from slabs and go back to a free list: an entry's dict lives from
 * EMPTY_DICT to SETITEMS, so a handful of objects serve millions of entries.
 */
#include "trace/value.h"

#include <stdlib.h>
#include <string.h>

#define SLAB_OBJECTS 84 /* a slab is about a page */

typedef struct tide__object_slab {
    struct tide__object_slab *next;
    tide__object objects[SLAB_OBJECTS];
} slab;

_Static_assert(sizeof(tide__object) % 16 == 0, "a pointer to an object has four bits to spare");

/* What malloc takes for so many bytes. */
static uint64_t malloc_bytes(size_t bytes) { return bytes < 24 ? 32 : tide__align_up(bytes + 8, 16); }

static tide_status add_slab(tide__objects *h) {
    tide_status status = tide__meter_take(h->meter, sizeof(slab));
    if (status != TIDE_OK) {
        return status;
    }
    slab *s = malloc(sizeof *s);
    if (s == NULL) {
        tide__meter_give(h->meter, sizeof(slab));
        return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory");
    }
    s->next = h->slabs;
    h->slabs = s;
    for (size_t i = SLAB_OBJECTS; i-- > 0;) {
        s->objects[i] = (tide__object){.next_free = h->free_list, .kind = TIDE__KIND_FORWARD};
        h->free_list = &s->objects[i];
    }
    return TIDE_OK;
}

tide_status tide__objects_new(tide__objects *h, tide__kind kind, uint64_t offset, tide__object **out) {
    if (h->free_list == NULL) {
        tide_status status = add_slab(h);
        if (status != TIDE_OK) {
            return status;
        }
    }
    tide__object *o = h->free_list;
    h->free_list = o->next_free;
    *o = (tide__object){.kind = (uint8_t)kind, .offset = offset};
    *out = o;
    return TIDE_OK;
}

static void drop_items(tide__objects *h, tide__object *o) {
    if (o->capacity > 0) {
        tide__meter_give(h->meter, malloc_bytes(o->capacity * sizeof *o->items));
        free(o->items);
    }
    o->items = NULL;
    o->count = o->capacity = 0;
}

void tide__objects_drop(tide__objects *h, tide__object *o) {
    drop_items(h, o);
    /* Forward, so that freeing the slabs takes no free object for a live one. */
    o->kind = TIDE__KIND_FORWARD;
    o->next_free = h->free_list;
    h->free_list = o;
}

void tide__objects_forward(tide__objects *h, tide__object *o, tide__value becomes) {
    drop_items(h, o);
    o->kind = TIDE__KIND_FORWARD;
    o->becomes = becomes;
}

void tide__objects_free(tide__objects *h) {
    while (h->slabs != NULL) {
        slab *s = h->slabs;
        h->slabs = s->next;
        for (size_t i = 0; i < SLAB_OBJECTS; i++) {
            if (s->objects[i].kind != TIDE__KIND_FORWARD) {
                free(s->objects[i].items);
            }
        }
        free(s);
    }
    free(h->wide);
    *h = (tide__objects){.meter = h->meter};
}

static tide_status grow_items(tide__objects *h, tide__object *o, size_t need) {
    size_t step = o->capacity * sizeof *o->items > TIDE__MIB ? o->capacity / 2 : o->capacity;
    size_t want = o->capacity + step < 4 ? 4 : o->capacity + step;
    want = want < need ? need : want;
    if (want > UINT32_MAX) {
        return tide__fail(TIDE_CORRUPT, "a container of %zu values", need);
    }
    uint64_t old = o->capacity > 0 ? malloc_bytes(o->capacity * sizeof *o->items) : 0;
    uint64_t bytes = malloc_bytes(want * sizeof *o->items);
    tide_status status = tide__meter_take(h->meter, bytes - old);
    if (status != TIDE_OK) {
        return status;
    }
    tide__value *items = realloc(o->items, want * sizeof *items);
    if (items == NULL) {
        tide__meter_give(h->meter, bytes - old);
        return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory");
    }
    o->items = items;
    o->capacity = (uint32_t)want;
    return TIDE_OK;
}

static bool is_record(tide__value v) {
    return tide__tag_of(v) >= TIDE__TAG_EVENT && tide__tag_of(v) <= TIDE__TAG_NOTE;
}

static tide_status append_one(tide__objects *h, tide__object *o, tide__value v) {
    bool run = o->kind == TIDE__KIND_LIST && is_record(v);
    if (run && o->next == v) {
        o->items[o->count - 1] += TIDE__VALUE(0, 1);
        o->next += TIDE__VALUE(0, 1);
        o->length++;
        return TIDE_OK;
    }
    size_t need = (size_t)o->count + (run ? 2 : 1);
    if (need > o->capacity) {
        tide_status status = grow_items(h, o, need);
        if (status != TIDE_OK) {
            return status;
        }
    }
    o->items[o->count++] = v;
    if (run) {
        o->items[o->count++] = TIDE__VALUE(TIDE__TAG_RUN, 0);
    }
    o->next = run ? v + TIDE__VALUE(0, 1) : 0;
    o->length++;
    return TIDE_OK;
}

tide_status tide__objects_append(tide__objects *h, tide__object *o, const tide__value *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        tide_status status = append_one(h, o, values[i]);
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

/* ---- Numbers ---- */

tide_status tide__objects_wide(tide__objects *h, tide__wide_kind kind, uint64_t bits, tide__value *out) {
    tide_status status =
        tide__meter_grow(h->meter, (void **)&h->wide, &h->wide_capacity, h->wide_count + 1, sizeof *h->wide);
    if (status != TIDE_OK) {
        return status;
    }
    h->wide[h->wide_count] = bits;
    *out = TIDE__VALUE(TIDE__TAG_WIDE, (h->wide_count++ << 2) | (uint64_t)kind);
    return TIDE_OK;
}

bool tide__value_i64(const tide__objects *h, tide__value v, int64_t *out) {
    if (tide__tag_of(v) == TIDE__TAG_INT) {
        *out = tide__payload_int(v);
        return true;
    }
    if (tide__tag_of(v) == TIDE__TAG_WIDE && (tide__payload(v) & 3) == TIDE__WIDE_SIGNED) {
        *out = (int64_t)h->wide[tide__payload(v) >> 2];
        return true;
    }
    if (v == TIDE__VALUE_SINGLE(TIDE__SINGLE_TRUE) || v == TIDE__VALUE_SINGLE(TIDE__SINGLE_FALSE)) {
        *out = v == TIDE__VALUE_SINGLE(TIDE__SINGLE_TRUE);
        return true;
    }
    return false;
}

bool tide__value_u64(const tide__objects *h, tide__value v, uint64_t *out) {
    if (tide__tag_of(v) == TIDE__TAG_WIDE && (tide__payload(v) & 3) == TIDE__WIDE_UNSIGNED) {
        *out = h->wide[tide__payload(v) >> 2];
        return true;
    }
    int64_t n;
    if (!tide__value_i64(h, v, &n) || n < 0) {
        return false;
    }
    *out = (uint64_t)n;
    return true;
}

bool tide__value_double(const tide__objects *h, tide__value v, double *out) {
    if (tide__tag_of(v) != TIDE__TAG_WIDE || (tide__payload(v) & 3) != TIDE__WIDE_DOUBLE) {
        return false;
    }
    memcpy(out, &h->wide[tide__payload(v) >> 2], sizeof *out);
    return true;
}

/* ---- Reading containers ---- */

bool tide__walk_next(tide__walk *w) {
    if (w->left > 0) {
        w->left--;
        w->value += TIDE__VALUE(0, 1);
        return true;
    }
    const tide__object *list = w->list;
    if (w->at == list->count) {
        return false;
    }
    w->value = tide__resolve(list->items[w->at++]);
    if (w->at < list->count && tide__tag_of(list->items[w->at]) == TIDE__TAG_RUN) {
        w->left = tide__payload(list->items[w->at++]);
    }
    return true;
}

bool tide__dict_get(const tide__object *dict, uint32_t key, tide__value *out) {
    for (size_t i = dict->count; i >= 2; i -= 2) {
        if (dict->items[i - 2] == TIDE__VALUE(TIDE__TAG_STRING, key)) {
            *out = tide__resolve(dict->items[i - 1]);
            return true;
        }
    }
    return false;
}
