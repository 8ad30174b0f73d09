/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases: rows in the order first seen, found by name through a map, since a
 * file may name each step.
 */
#include "replay/phases.h"

#include <stdlib.h>

bool tide__phases_enter(tide__phases *p, uint32_t name) {
    uint64_t row;
    if (tide__map_get(&p->by_name, name, &row)) {
        p->current = row;
        return true;
    }
    if (!tide__grow((void **)&p->rows, &p->cap, p->count + 1, sizeof *p->rows) ||
        !tide__grow((void **)&p->ended, &p->ended_cap, p->count + 1, sizeof *p->ended) ||
        !tide__map_put(&p->by_name, name, p->count))
        return false;
    p->rows[p->count] = (tide__phase_result){.name = name};
    p->ended[p->count] = false;
    p->current = p->count++;
    return true;
}

void tide__phases_leave(tide__phases *p, uint64_t live, uint64_t reserved) {
    tide__phase_result *row = &p->rows[p->current];
    bool worse = (int64_t)(reserved - live) > (int64_t)(row->end_reserved - row->end_live);
    if (p->ended[p->current] && !worse) return;
    p->ended[p->current] = true;
    row->end_live = live;
    row->end_reserved = reserved;
}

void tide__phases_free(tide__phases *p) {
    free(p->rows);
    free(p->ended);
    tide__map_free(&p->by_name);
    *p = (tide__phases){0};
}
