/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases: rows found by a walk, since a run has a handful of names.
 */
#include "replay/phases.h"

#include <stdlib.h>

bool tide__phases_enter(tide__phases *p, uint32_t name) {
    for (p->current = 0; p->current < p->count; p->current++)
        if (p->rows[p->current].name == name) return true;
    if (!tide__grow((void **)&p->rows, &p->cap, p->count + 1, sizeof *p->rows) ||
        !tide__grow((void **)&p->ended, &p->ended_cap, p->count + 1, sizeof *p->ended))
        return false;
    p->rows[p->count] = (tide__phase_result){.name = name};
    p->ended[p->count++] = false;
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
    *p = (tide__phases){0};
}
