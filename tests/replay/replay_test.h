/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of replay share: traces written by hand, event by event.
 */
#ifndef TIDE_TESTS_REPLAY_TEST_H
#define TIDE_TESTS_REPLAY_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "replay/replay.h"
#include "replay/schedule.h"

#define KIB TIDE__KIB
#define MIB TIDE__MIB
#define GIB TIDE__GIB

#define MAX_EVENTS 4352
#define MAX_POOLS 2112
#define MAX_STRINGS 16

#define assert_ok(call)                                                            \
    do {                                                                           \
        tide_status status_ = (call);                                              \
        if (status_ != TIDE_OK) print_error("%s: %s\n", #call, tide_last_error()); \
        assert_int_equal(status_, TIDE_OK);                                        \
    } while (0)

typedef struct hand_trace {
    tide__trace trace;
    tide__trace_gpu gpu;
    tide__trace_event events[MAX_EVENTS];
    char *strings[MAX_STRINGS];
    tide__trace_setting settings[4];
    uint64_t streams[4];
    tide__trace_pool pools[MAX_POOLS];
    tide__trace_segment segments[8];
    tide__trace_block blocks[16];
    int64_t now_us;
    uint16_t stream, pool; /* of the events that follow */
} hand_trace;

static inline hand_trace *trace_new(void) {
    hand_trace *t = calloc(1, sizeof *t);
    t->strings[0] = (char *)"";
    t->trace.strings = t->strings;
    t->trace.string_count = 1;
    t->trace.settings = t->settings;
    t->trace.gpus = &t->gpu;
    t->trace.gpu_count = 1;
    t->gpu.events = t->events;
    t->gpu.streams = t->streams;
    t->gpu.pools = t->pools;
    for (int i = 0; i < MAX_POOLS; i++) {
        t->pools[i].id[1] = i;
    }
    t->gpu.segments = t->segments;
    t->gpu.blocks = t->blocks;
    t->gpu.stream_count = t->gpu.pool_count = 4;
    for (size_t i = 0; i < 4; i++) {
        t->streams[i] = i;
    }
    t->now_us = 1000;
    return t;
}

static inline uint32_t trace_string(hand_trace *t, const char *text) {
    assert_true(t->trace.string_count < MAX_STRINGS);
    t->strings[t->trace.string_count] = (char *)text;
    return (uint32_t)t->trace.string_count++;
}

static inline void trace_setting(hand_trace *t, const char *name, const char *value) {
    assert_true(t->trace.setting_count < 4);
    t->settings[t->trace.setting_count++] =
        (tide__trace_setting){trace_string(t, name), trace_string(t, value)};
}

static inline tide__trace_event *trace_event(hand_trace *t, tide__action action, uint64_t addr,
                                             uint64_t size) {
    assert_true(t->gpu.event_count < MAX_EVENTS);
    tide__trace_event *e = &t->events[t->gpu.event_count++];
    *e = (tide__trace_event){.addr = addr,
                             .size = size,
                             .time_us = t->now_us,
                             .stream = t->stream,
                             .pool = t->pool,
                             .action = (uint8_t)action};
    return e;
}

static inline void trace_alloc(hand_trace *t, uint64_t addr, uint64_t size) {
    trace_event(t, TIDE__ACTION_ALLOC, addr, size);
}

static inline void trace_free(hand_trace *t, uint64_t addr, uint64_t size) {
    trace_event(t, TIDE__ACTION_FREE_REQUESTED, addr, size);
    trace_event(t, TIDE__ACTION_FREE_COMPLETED, addr, size);
}

/* A segment of the heap at the end, and the next block in the last one. */
static inline void trace_segment(hand_trace *t, uint64_t addr, uint64_t size, bool is_large,
                                 bool is_expandable) {
    t->trace.has_segments = true;
    t->segments[t->gpu.segment_count++] = (tide__trace_segment){.addr = addr,
                                                                .size = size,
                                                                .stream = t->stream,
                                                                .pool = t->pool,
                                                                .is_large = is_large,
                                                                .is_expandable = is_expandable,
                                                                .first_block = t->gpu.block_count};
}

static inline void trace_block(hand_trace *t, uint64_t addr, uint64_t size, uint64_t requested,
                               uint8_t state) {
    t->segments[t->gpu.segment_count - 1].block_count++;
    t->blocks[t->gpu.block_count++] =
        (tide__trace_block){.addr = addr, .size = size, .requested_size = requested, .state = state};
}

#endif
