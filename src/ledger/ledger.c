/* SPDX-License-Identifier: Apache-2.0 */
/* Phases: see ledger.h. Rows are found by a hash of their name. */
#include "ledger/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Folds the core's peaks into the current phase and the peaks since reset. */
static void fold(tide__ledger *p) {
    tide_stats now;
    tide__core_take_peaks(p->core, &now);
    tide_phase_stats *row = &p->rows[p->current];
    row->peak_requested_bytes = tide__max(row->peak_requested_bytes, now.peak_requested_bytes);
    row->peak_reserved_bytes = tide__max(row->peak_reserved_bytes, now.peak_reserved_bytes);
    row->requested_bytes = now.requested_bytes;
    row->reserved_bytes = now.reserved_bytes;
    p->folded_requested = tide__max(p->folded_requested, now.peak_requested_bytes);
    p->folded_allocated = tide__max(p->folded_allocated, now.peak_allocated_bytes);
    p->folded_reserved = tide__max(p->folded_reserved, now.peak_reserved_bytes);
}

static uint64_t hash_name(const char *name) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    }
    return h;
}

/* Where the hash is another name's, the rows are walked; all else is one look. */
static bool has_row(const tide__ledger *p, const char *name, uint64_t hash, size_t *index) {
    uint64_t row;
    if (!tide__map_get(&p->by_name, hash, &row)) {
        return false;
    }
    for (*index = row; *index < p->count; (*index)++) {
        if (strcmp(p->rows[*index].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static tide_status find_row(tide__ledger *p, const char *name, size_t *index) {
    tide_phase_stats row = {.struct_size = sizeof row};
    snprintf(row.name, sizeof row.name, "%s", name);
    uint64_t hash = hash_name(row.name), first;
    if (has_row(p, row.name, hash, index)) {
        return TIDE_OK;
    }
    if (!tide__grow((void **)&p->rows, &p->cap, p->count + 1, sizeof *p->rows) ||
        (!tide__map_get(&p->by_name, hash, &first) && !tide__map_put(&p->by_name, hash, p->count))) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for phase %s", row.name);
    }
    p->rows[p->count] = row;
    *index = p->count++;
    return TIDE_OK;
}

tide_status tide__ledger_open(tide__ledger *p, tide__core *core) {
    memset(p, 0, sizeof *p);
    p->core = core;
    pthread_mutex_init(&p->lock, NULL);
    tide_status status = find_row(p, "", &p->current);
    if (status == TIDE_OK) {
        p->rows[0].entered = 1;
    } else {
        tide__ledger_close(p);
    }
    return status;
}

void tide__ledger_close(tide__ledger *p) {
    pthread_mutex_destroy(&p->lock);
    free(p->rows);
    tide__map_free(&p->by_name);
    memset(p, 0, sizeof *p);
}

tide_status tide__ledger_enter(tide__ledger *p, const char *name) {
    size_t index;
    pthread_mutex_lock(&p->lock);
    tide_status status = find_row(p, name != NULL ? name : "", &index);
    if (status == TIDE_OK) {
        fold(p);
        p->rows[index].entered++;
        p->current = index;
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

tide_status tide__ledger_get(tide__ledger *p, size_t index, tide_phase_stats *out) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&p->lock);
    if (index >= p->count) {
        status = tide__fail(TIDE_INVALID_ARGUMENT, "phase %zu of %zu", index, p->count);
    } else {
        fold(p);
        *out = p->rows[index];
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

void tide__ledger_stats(tide__ledger *p, tide_stats *out) {
    pthread_mutex_lock(&p->lock);
    tide__core_stats(p->core, out);
    out->peak_requested_bytes = tide__max(out->peak_requested_bytes, p->folded_requested);
    out->peak_allocated_bytes = tide__max(out->peak_allocated_bytes, p->folded_allocated);
    out->peak_reserved_bytes = tide__max(out->peak_reserved_bytes, p->folded_reserved);
    pthread_mutex_unlock(&p->lock);
}

void tide__ledger_reset_peaks(tide__ledger *p) {
    pthread_mutex_lock(&p->lock);
    fold(p); /* the phase keeps what it reached */
    p->folded_requested = p->folded_allocated = p->folded_reserved = 0;
    pthread_mutex_unlock(&p->lock);
}
