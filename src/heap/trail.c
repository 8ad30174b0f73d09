/* SPDX-License-Identifier: Apache-2.0 */
#include "heap/trail.h"

#include <execinfo.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void tide__trail_prepare(void) {
    void *frame;
    backtrace(&frame, 1);
}

void tide__trail_add(tide__trail *t, tide__trail_kind kind, uint64_t va, uint64_t size, uint64_t to,
                     uint32_t chunk) {
    tide__trail_entry *before = &t->entries[t->last % TIDE__TRAIL_LENGTH];
    tide__trail_entry *e = &t->entries[++t->last % TIDE__TRAIL_LENGTH];
    uint64_t now = tide__monotonic_ns();
    /* A slow path adds many at once, and a walk of the stack costs as much as a driver call: one serves all.
     */
    bool same = before->number != 0 && now - before->time_ns < 200000 && before->kind == kind;
    *e = (tide__trail_entry){
        .number = t->last, .time_ns = now, .va = va, .size = size, .to = to, .chunk = chunk, .kind = kind};
    if (same) {
        e->time_ns = before->time_ns;
        e->frames = before->frames;
        memcpy(e->stack, before->stack, sizeof e->stack);
    } else {
        e->frames = backtrace(e->stack, TIDE__TRAIL_FRAMES);
    }
}

static void tell_entry(const tide__trail_entry *e, uint64_t now) {
    static const char *const what[] = {"moved", "old mapping taken away", "given back"};
    unsigned long long end = e->va + e->size;
    fprintf(stderr, "pagetide: %.3f s ago %s: %#llx to %#llx, chunk %u", (double)(now - e->time_ns) / 1e9,
            what[e->kind], (unsigned long long)e->va, end, e->chunk);
    if (e->kind == TIDE__TRAIL_MOVED) {
        fprintf(stderr, ", now at %#llx", (unsigned long long)e->to);
    }
    fputc('\n', stderr);
}

void tide__trail_tell(tide__trail *t, int gpu) {
    uint64_t now = tide__monotonic_ns();
    if (t->told) {
        return;
    }
    t->told = true;
    fprintf(stderr,
            "pagetide: device %d failed. The last addresses that pagetide took chunks away from follow, the "
            "latest "
            "first; to see whether that is the cause, run with PAGETIDE_MOVES=0, then PAGETIDE_UNMAP=0, then "
            "PAGETIDE_CROSS_STREAM=off.\n",
            gpu);
    if (t->last == 0) {
        fprintf(stderr, "pagetide: there are none\n");
    }
    for (uint64_t i = 0; i < TIDE__TRAIL_LENGTH && i < t->last; i++) {
        const tide__trail_entry *e = &t->entries[(t->last - i) % TIDE__TRAIL_LENGTH];
        const tide__trail_entry *later = &t->entries[(t->last - i + 1) % TIDE__TRAIL_LENGTH];
        tell_entry(e, now);
        bool same =
            i > 0 && later->frames == e->frames && memcmp(later->stack, e->stack, sizeof e->stack) == 0;
        if (same) {
            fprintf(stderr, "    (by the same stack)\n");
        } else {
            fflush(stderr);
            backtrace_symbols_fd(e->stack, e->frames, STDERR_FILENO);
        }
    }
}
