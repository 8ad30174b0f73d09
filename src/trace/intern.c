/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash tables of indices, open addressing, at most 3/4 full, grown by doubling.
 * The hash multiplies and folds 8 bytes at a time from a random seed.
 */
#include "trace/intern.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CHUNK_BYTES ((size_t)64 << 10)

typedef struct tide__intern_chunk {
    struct tide__intern_chunk *next;
    size_t used, capacity;
    char bytes[];
} chunk;

static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load8(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* At most 8 bytes; overlapping where that saves a loop. */
static uint64_t load_tail(const uint8_t *p, size_t n) {
    uint32_t first, last;
    if (n < 4) {
        return n == 0 ? 0 : (uint64_t)p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
    }
    memcpy(&first, p, sizeof first);
    memcpy(&last, p + n - 4, sizeof last);
    return first | (uint64_t)last << 32;
}

static uint32_t hash_bytes(uint64_t seed, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t h = seed ^ n;
    for (; n > 8; n -= 8, p += 8) {
        h = fold(h ^ load8(p), UINT64_C(0xa0761d6478bd642f));
    }
    h = fold(h ^ load_tail(p, n), UINT64_C(0xe7037ed1a0b428db));
    return (uint32_t)(h ^ (h >> 32));
}

static tide_status table_grow(tide__intern *t, tide__intern_table *table) {
    size_t capacity = table->capacity == 0 ? 64 : table->capacity * 2;
    size_t bytes = capacity * sizeof *table->slots;
    tide_status status = tide__meter_take(t->meter, bytes);
    if (status != TIDE_OK) {
        return status;
    }
    struct tide__intern_slot *slots = calloc(capacity, sizeof *slots);
    if (slots == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory (%zu bytes)", bytes);
    }
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->slots[i].index_plus_1 != 0) {
            size_t at = table->slots[i].hash & (capacity - 1);
            while (slots[at].index_plus_1 != 0) {
                at = (at + 1) & (capacity - 1);
            }
            slots[at] = table->slots[i];
        }
    }
    tide__meter_give(t->meter, table->capacity * sizeof *table->slots);
    free(table->slots);
    table->slots = slots;
    table->capacity = capacity;
    return TIDE_OK;
}

/* Room for one more, and where the search for a hash starts. */
static tide_status table_ready(tide__intern *t, tide__intern_table *table) {
    if (table->count < table->capacity / 4 * 3) {
        return TIDE_OK;
    }
    if (table->count >= UINT32_MAX / 2) {
        return tide__fail(TIDE_CORRUPT, "more different strings, frames or stacks than a trace can hold");
    }
    return table_grow(t, table);
}

/* ---- Strings ---- */

static tide_status add_chunk(tide__intern *t, size_t need) {
    size_t capacity = need > CHUNK_BYTES / 4 ? need : CHUNK_BYTES;
    tide_status status = tide__meter_take(t->meter, sizeof(chunk) + capacity);
    if (status != TIDE_OK) {
        return status;
    }
    chunk *c = malloc(sizeof *c + capacity);
    if (c == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory (%zu bytes)", capacity);
    }
    c->used = 0;
    c->capacity = capacity;
    if (need > CHUNK_BYTES / 4 && t->chunks != NULL) { /* keep the open chunk in front */
        c->next = t->chunks->next;
        t->chunks->next = c;
    } else {
        c->next = t->chunks;
        t->chunks = c;
    }
    return TIDE_OK;
}

static tide_status store_bytes(tide__intern *t, const void *text, size_t length, char **out) {
    size_t need = length + 1;
    if (t->chunks == NULL || t->chunks->capacity - t->chunks->used < need) {
        tide_status status = add_chunk(t, need);
        if (status != TIDE_OK) {
            return status;
        }
    }
    chunk *c = t->chunks->capacity - t->chunks->used >= need ? t->chunks : t->chunks->next;
    *out = c->bytes + c->used;
    c->used += need;
    memcpy(*out, text, length);
    (*out)[length] = 0;
    return TIDE_OK;
}

static tide_status add_string(tide__intern *t, const void *text, size_t length) {
    tide_status status = tide__meter_grow(t->meter, (void **)&t->strings, &t->string_capacity,
                                          t->string_count + 1, sizeof *t->strings);
    if (status == TIDE_OK) {
        status = tide__meter_grow(t->meter, (void **)&t->lengths, &t->length_capacity, t->string_count + 1,
                                  sizeof *t->lengths);
    }
    if (status == TIDE_OK) {
        status = store_bytes(t, text, length, &t->strings[t->string_count]);
    }
    if (status == TIDE_OK) {
        t->lengths[t->string_count++] = (uint32_t)length;
    }
    return status;
}

static const char replacement[] = {'\xef', '\xbf', '\xbd'}; /* U+FFFD */

/* The text with each NUL replaced. */
static tide_status intern_without_nul(tide__intern *t, const char *text, size_t length, uint32_t *out) {
    TIDE__ASSERT(length > 0);
    uint64_t bytes = (uint64_t)length * sizeof replacement;
    tide_status status = tide__meter_take(t->meter, bytes);
    if (status != TIDE_OK) {
        return status;
    }
    char *clean = malloc(bytes);
    if (clean == NULL) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory");
    } else {
        size_t n = 0;
        for (size_t i = 0; i < length; i++) {
            if (text[i] == 0) {
                memcpy(clean + n, replacement, sizeof replacement);
                n += sizeof replacement;
            } else {
                clean[n++] = text[i];
            }
        }
        status = tide__intern_string(t, clean, n, out);
    }
    free(clean);
    tide__meter_give(t->meter, bytes);
    return status;
}

tide_status tide__intern_string(tide__intern *t, const void *text, size_t length, uint32_t *out) {
    tide__intern_table *table = &t->string_table;
    tide_status status = table_ready(t, table);
    if (status != TIDE_OK) {
        return status;
    }
    uint32_t hash = hash_bytes(t->seed, text, length);
    size_t at = hash & (table->capacity - 1);
    for (; table->slots[at].index_plus_1 != 0; at = (at + 1) & (table->capacity - 1)) {
        uint32_t index = table->slots[at].index_plus_1 - 1;
        if (table->slots[at].hash == hash && t->lengths[index] == length &&
            memcmp(t->strings[index], text, length) == 0) {
            *out = index;
            return TIDE_OK;
        }
    }
    if (length > UINT32_MAX) {
        return tide__fail(TIDE_CORRUPT, "a string of %zu bytes", length);
    }
    if (memchr(text, 0, length) != NULL) {
        return intern_without_nul(t, text, length, out);
    }
    *out = (uint32_t)t->string_count;
    status = add_string(t, text, length);
    if (status == TIDE_OK) {
        table->slots[at] = (struct tide__intern_slot){hash, *out + 1};
        table->count++;
    }
    return status;
}

/* ---- Frames, stacks, pairs ---- */

tide_status tide__intern_frame(tide__intern *t, tide__trace_frame frame, uint32_t *out) {
    tide__intern_table *table = &t->frame_table;
    tide_status status = table_ready(t, table);
    if (status != TIDE_OK) {
        return status;
    }
    uint32_t hash = hash_bytes(t->seed, &frame, sizeof frame);
    size_t at = hash & (table->capacity - 1);
    for (; table->slots[at].index_plus_1 != 0; at = (at + 1) & (table->capacity - 1)) {
        uint32_t index = table->slots[at].index_plus_1 - 1;
        if (memcmp(&t->frames[index], &frame, sizeof frame) == 0) {
            *out = index;
            return TIDE_OK;
        }
    }
    status = tide__meter_grow(t->meter, (void **)&t->frames, &t->frame_capacity, t->frame_count + 1,
                              sizeof *t->frames);
    if (status == TIDE_OK) {
        *out = (uint32_t)t->frame_count;
        t->frames[t->frame_count++] = frame;
        table->slots[at] = (struct tide__intern_slot){hash, *out + 1};
        table->count++;
    }
    return status;
}

static bool stack_equals(const tide__intern *t, uint32_t index, const uint32_t *frames, size_t count) {
    size_t start = t->stack_start[index];
    return t->stack_start[index + 1] - start == count &&
           (count == 0 || memcmp(t->stack_frames + start, frames, count * sizeof *frames) == 0);
}

static tide_status add_stack(tide__intern *t, const uint32_t *frames, size_t count) {
    tide_status status = tide__meter_grow(t->meter, (void **)&t->stack_frames, &t->stack_frame_capacity,
                                          t->stack_frame_count + count, sizeof *t->stack_frames);
    if (status == TIDE_OK) {
        status = tide__meter_grow(t->meter, (void **)&t->stack_start, &t->stack_capacity, t->stack_count + 2,
                                  sizeof *t->stack_start);
    }
    if (status != TIDE_OK) {
        return status;
    }
    if (count > 0) {
        memcpy(t->stack_frames + t->stack_frame_count, frames, count * sizeof *frames);
    }
    t->stack_start[t->stack_count++] = t->stack_frame_count;
    t->stack_frame_count += count;
    t->stack_start[t->stack_count] = t->stack_frame_count;
    return TIDE_OK;
}

tide_status tide__intern_stack(tide__intern *t, const uint32_t *frames, size_t count, uint32_t *out) {
    tide__intern_table *table = &t->stack_table;
    tide_status status = table_ready(t, table);
    if (status != TIDE_OK) {
        return status;
    }
    uint32_t hash = hash_bytes(t->seed, frames, count * sizeof *frames);
    size_t at = hash & (table->capacity - 1);
    for (; table->slots[at].index_plus_1 != 0; at = (at + 1) & (table->capacity - 1)) {
        uint32_t index = table->slots[at].index_plus_1 - 1;
        if (table->slots[at].hash == hash && stack_equals(t, index, frames, count)) {
            *out = index;
            return TIDE_OK;
        }
    }
    status = add_stack(t, frames, count);
    if (status == TIDE_OK) {
        *out = (uint32_t)(t->stack_count - 1);
        table->slots[at] = (struct tide__intern_slot){hash, *out + 1};
        table->count++;
    }
    return status;
}

tide_status tide__intern_pair(tide__intern *t, int64_t first, int64_t second, uint32_t *out) {
    tide__intern_table *table = &t->pair_table;
    tide_status status = table_ready(t, table);
    if (status != TIDE_OK) {
        return status;
    }
    int64_t pair[2] = {first, second};
    uint32_t hash = hash_bytes(t->seed, pair, sizeof pair);
    size_t at = hash & (table->capacity - 1);
    for (; table->slots[at].index_plus_1 != 0; at = (at + 1) & (table->capacity - 1)) {
        uint32_t index = table->slots[at].index_plus_1 - 1;
        if (t->pairs[index].id[0] == first && t->pairs[index].id[1] == second) {
            *out = index;
            return TIDE_OK;
        }
    }
    status = tide__meter_grow(t->meter, (void **)&t->pairs, &t->pair_capacity, t->pair_count + 1,
                              sizeof *t->pairs);
    if (status == TIDE_OK) {
        *out = (uint32_t)t->pair_count;
        t->pairs[t->pair_count++] = (tide__trace_pool){{first, second}};
        table->slots[at] = (struct tide__intern_slot){hash, *out + 1};
        table->count++;
    }
    return status;
}

/* ---- Opening and closing ---- */

static tide_status intern_known(tide__intern *t) {
    static const char *const words[] = {
#define X(id, text) text,
        TIDE__WORD_LIST(X) TIDE__ACTION_LIST(X)
#undef X
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        uint32_t index;
        tide_status status = tide__intern_string(t, words[i], strlen(words[i]), &index);
        if (status != TIDE_OK) {
            return status;
        }
        TIDE__CHECK(index == i); /* the words differ */
    }
    uint32_t zero;
    tide_status status = tide__intern_stack(t, NULL, 0, &zero);
    return status == TIDE_OK ? tide__intern_pair(t, 0, 0, &zero) : status;
}

uint64_t tide__intern_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        seed = tide__monotonic_ns() * UINT64_C(0xe7037ed1a0b428db) ^ (uint64_t)(uintptr_t)&seed;
    }
    return seed;
}

tide_status tide__intern_open(tide__intern *t, tide__meter *meter) {
    *t = (tide__intern){.meter = meter, .seed = tide__intern_seed()};
    return intern_known(t);
}

void tide__intern_free_chunks(struct tide__intern_chunk *chunks) {
    while (chunks != NULL) {
        chunk *next = chunks->next;
        free(chunks);
        chunks = next;
    }
}

void tide__intern_close(tide__intern *t) {
    tide__intern_table *tables[] = {&t->string_table, &t->frame_table, &t->stack_table, &t->pair_table};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        free(tables[i]->slots);
    }
    tide__intern_free_chunks(t->chunks);
    free(t->strings);
    free(t->lengths);
    free(t->frames);
    free(t->stack_frames);
    free(t->stack_start);
    free(t->pairs);
    *t = (tide__intern){0};
}
