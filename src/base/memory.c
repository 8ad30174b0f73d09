/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growable arrays and the map from u64 to u64. The map probes linearly and is
 * kept at most 3/4 full; a removal shifts the cluster back, so there are no
 * tombstones and a map that breathes stays as fast as a new one.
 */
#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool tide__grow(void **array, size_t *capacity, size_t need, size_t element_bytes) {
    if (need <= *capacity) {
        return true;
    }
    size_t want = *capacity < 16 ? 16 : *capacity;
    size_t bytes;
    while (want < need) {
        if (!tide__mul_size(want, 2, &want)) {
            return false;
        }
    }
    if (!tide__mul_size(want, element_bytes, &bytes)) {
        return false;
    }
    void *bigger = realloc(*array, bytes);
    if (bigger == NULL) {
        return false;
    }
    *array = bigger;
    *capacity = want;
    return true;
}

/* Keys come from files of strangers too: the seed, another in each process,
 * keeps them from choosing keys that all collide. */
static uint64_t seed(void) {
    static _Atomic(uint64_t) drawn;
    uint64_t value = atomic_load_explicit(&drawn, memory_order_relaxed);
    if (value == 0) {
        if (getrandom(&value, sizeof value, GRND_NONBLOCK) != sizeof value) {
            value = tide__monotonic_ns();
        }
        uint64_t none = 0;
        value |= 1;
        if (!atomic_compare_exchange_strong(&drawn, &none, value)) {
            value = none;
        }
    }
    return value;
}

static uint64_t hash(uint64_t key) {
    unsigned __int128 product = (unsigned __int128)(key ^ seed()) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The slot that holds the key, or the free one where it would go. */
static size_t find_slot(const tide__map *m, uint64_t key) {
    size_t mask = m->capacity - 1;
    size_t i = hash(key) & mask;
    while (m->used[i] && m->slots[i].key != key) {
        i = (i + 1) & mask;
    }
    return i;
}

static bool map_resize(tide__map *m, size_t capacity) {
    tide__map bigger = {.capacity = capacity, .count = m->count};
    bigger.slots = malloc(capacity * sizeof *bigger.slots);
    bigger.used = calloc(capacity, 1);
    if (bigger.slots == NULL || bigger.used == NULL) {
        free(bigger.slots);
        free(bigger.used);
        return false;
    }
    for (size_t i = 0; i < m->capacity; i++) {
        if (m->used[i]) {
            size_t slot = find_slot(&bigger, m->slots[i].key);
            bigger.slots[slot] = m->slots[i];
            bigger.used[slot] = 1;
        }
    }
    tide__map old = *m;
    *m = bigger;
    free(old.slots);
    free(old.used);
    return true;
}

void tide__map_free(tide__map *m) {
    free(m->slots);
    free(m->used);
    *m = (tide__map){0};
}

bool tide__map_put(tide__map *m, uint64_t key, uint64_t value) {
    if (m->count + 1 > m->capacity / 4 * 3) {
        if (m->capacity > SIZE_MAX / 64 || !map_resize(m, m->capacity == 0 ? 64 : m->capacity * 2)) {
            return false;
        }
    }
    size_t i = find_slot(m, key);
    m->count += !m->used[i];
    m->used[i] = 1;
    m->slots[i] = (struct tide__map_slot){key, value};
    return true;
}

bool tide__map_get(const tide__map *m, uint64_t key, uint64_t *value) {
    if (m->count == 0) {
        return false;
    }
    size_t i = find_slot(m, key);
    if (!m->used[i]) {
        return false;
    }
    *value = m->slots[i].value;
    return true;
}

bool tide__map_take(tide__map *m, uint64_t key, uint64_t *value) {
    if (m->count == 0) {
        return false;
    }
    size_t mask = m->capacity - 1;
    size_t hole = find_slot(m, key);
    if (!m->used[hole]) {
        return false;
    }
    if (value != NULL) {
        *value = m->slots[hole].value;
    }
    /* Move back whatever a probe could no longer reach across the hole. */
    for (size_t i = (hole + 1) & mask; m->used[i]; i = (i + 1) & mask) {
        size_t home = hash(m->slots[i].key) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->used[hole] = 0;
    m->count--;
    return true;
}
