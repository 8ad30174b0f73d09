/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch: a device that wraps another and keeps books of its own on what the
 * engine does with it, so that a test can say what is wrong without asking the
 * engine.
 *
 *  - what is mapped where, which chunks, addresses and events are held; what
 *    is left when the engine closes
 *  - who may use which bytes: every stream has a clock, an event that is
 *    recorded keeps its stream's, one that is known to be done gives it to the
 *    host, and a stream that waits for it takes it over. A free ticks the clock of
 *    every stream the engine has seen. The bytes of a freed block may then be
 *    given to another stream, or be unmapped, only when all those ticks have
 *    been passed on to it.
 *
 * Bytes are those of chunks, through whichever mapping. One thread only. The
 * first thing found wrong is kept in `trouble`. With PAGETIDE_TEST_TRACE set, every
 * call that changes an order or a mapping is printed.
 */
#ifndef TIDE_TEST_WATCH_H
#define TIDE_TEST_WATCH_H

#include "device/device.h"

#define WATCH_STREAMS 64
#define WATCH_GPUS 4

typedef struct watch_span {
    uint64_t from, to; /* bytes of the mapping, freed */
    size_t freed;      /* which free: index into the GPU's `frees` */
} watch_span;

typedef struct watch_mapping {
    uint64_t va, size;
    size_t chunk;
    bool accessible;
    watch_span *spans;
    size_t span_count, span_cap;
} watch_mapping;

typedef struct watch_chunk {
    tide__chunk_handle handle;
    uint64_t size;
    uint32_t mappings;
    bool held; /* the engine has not released it */
} watch_chunk;

typedef struct watch_free {
    uint16_t owner;
    uint64_t recorded;             /* bit s: the block was recorded on slot s */
    uint64_t ticks[WATCH_STREAMS]; /* 0: not seen by then */
} watch_free;

typedef struct watch_clock {
    uint64_t at[WATCH_STREAMS];
} watch_clock;

typedef struct watch_stream {
    tide_stream handle;
    bool there, seen, retired;
    uint64_t tick;
    watch_clock clock;
} watch_stream;

typedef struct watch_event {
    tide__event event;
    watch_clock clock;
} watch_event;

typedef struct watch_live {
    uint64_t va, size;
    uint16_t owner;
    uint64_t pool, recorded;
} watch_live;

typedef struct watch_gpu {
    watch_mapping **mappings; /* by address */
    size_t mapping_count, mapping_cap;
    watch_chunk *chunks;
    size_t chunk_count, chunk_cap;
    tide__map reservations; /* va -> size */
    watch_stream streams[WATCH_STREAMS];
    size_t stream_count;
    watch_event *events;
    size_t event_count, event_cap;
    watch_clock host;
    watch_free *frees;
    size_t free_count, free_cap;
    watch_live *live;
    size_t live_count, live_cap;
    uint64_t held_bytes, mapped_bytes, created, released, peak_held_bytes, peak_events;
} watch_gpu;

/* What the engine had not given back when it closed the device. */
typedef struct watch_left {
    bool closed;
    size_t chunks, mappings, reservations, events;
} watch_left;

typedef struct watch {
    tide__device base;
    tide__device *inner;
    watch_gpu gpus[WATCH_GPUS];
    tide_cross_stream mode;
    char trouble[512];
    watch_left *left;
} watch;

/* Owns inner. When the engine closes it, *left is filled and all is freed. */
watch *watch_open(tide__device *inner, tide_cross_stream mode, watch_left *left);

/* The slot of a stream; it is made if there is none. */
uint16_t watch_slot(watch *w, int gpu, tide_stream stream);

/* A caller got, recorded, gave back this block. `taker` is a slot. */
void watch_took(watch *w, int gpu, uint64_t va, uint64_t size, uint16_t taker, uint64_t pool);
void watch_recorded(watch *w, int gpu, uint64_t va, uint16_t slot);
void watch_freed(watch *w, int gpu, uint64_t va);
/* The stream was retired: nothing is queued on it any more. */
void watch_retired(watch *w, int gpu, tide_stream stream);

/* Bytes of chunks with a live byte in them, through whichever mapping. */
uint64_t watch_pinned_bytes(const watch *w, int gpu);
/* Bytes of mappings beyond one a chunk. */
uint64_t watch_alias_bytes(const watch *w, int gpu);
bool watch_live_overlaps(const watch *w, int gpu, uint64_t va, uint64_t size);

#endif
