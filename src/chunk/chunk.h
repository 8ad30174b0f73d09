/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk: the physical handles of one device: who holds each, how many bytes
 * they are together, and where each is mapped.
 *
 * A chunk is either mapped at `va`, the address whose blocks use it, or spare:
 * held but nowhere mapped. While it moves it is mapped twice; the old mapping
 * is then a retiring range of the heap's, and `aliases` counts those, since a
 * chunk is given back to the driver only after its last mapping is gone.
 *
 * Driver calls are made under the caller's slow lock and not under its core
 * lock; the records are changed under both, but for `epoch`, which is under core.
 */
#ifndef TIDE_CHUNK_H
#define TIDE_CHUNK_H

#include "chunk/epoch.h"

typedef struct tide__chunk {
    tide__chunk_handle handle;
    uint64_t size, va; /* va 0: spare */
    tide__epoch epoch; /* of the last free of a block over it */
    uint32_t aliases;  /* old mappings still standing */
    uint32_t next;     /* in the list of spare or unused records; 0 ends */
    bool live;
} tide__chunk;

#define TIDE__CHUNKS_MAX (1U << 20) /* 2 TiB in the smallest chunks */

typedef struct tide__chunks {
    tide__device *device;
    int gpu;
    tide__chunk *items; /* item 0 is no chunk; the table never moves, and what is not used costs nothing */
    size_t count;
    uint32_t unused, spare; /* list heads */
    _Atomic(uint64_t) reserved_bytes;
    _Atomic(uint64_t) peak_reserved_bytes; /* since the last reset */
    uint64_t limit_bytes;                  /* 0: none */
    uint64_t margin_bytes;                 /* of the device's free bytes: left to others when growing */
    uint64_t held_before;                  /* when the limit was set: may be more than it */
    uint64_t held, created, released, moves, moved_bytes;
} tide__chunks;

tide_status tide__chunks_open(tide__chunks *c, tide__device *device, int gpu, uint64_t limit_bytes);
void tide__chunks_close(tide__chunks *c);

/* From here on no chunk is taken past these. What is held already stays. */
void tide__chunks_set_limits(tide__chunks *c, uint64_t limit_bytes, uint64_t margin_bytes);

/* Takes a new chunk from the driver, spare; its index in *out. TIDE_LIMIT (the
 * margin too) or TIDE_NO_DEVICE_MEMORY when there is none. */
tide_status tide__chunks_create(tide__chunks *c, uint64_t size, uint32_t *out);

/* Gives a spare chunk with no alias back. On failure it is spare again. */
tide_status tide__chunks_release(tide__chunks *c, uint32_t index);

/* Gives spare chunks back, adding to *released until it is `bytes`. One that the driver keeps
 * stays spare and the others are tried. The first failure. */
tide_status tide__chunks_release_spares(tide__chunks *c, uint64_t bytes, uint64_t *released);

/* Maps a chunk at va and makes it accessible there; on failure nothing is
 * mapped at va, or *stuck is set when the new mapping could not be taken away
 * again. Does not change the record. */
tide_status tide__chunks_map(tide__chunks *c, uint32_t index, uint64_t va, bool *stuck);

/* The GPU `peer` may read and write all chunks, those mapped already too. On failure
 * some are not shared yet: the call may be made again. */
tide_status tide__chunks_share(tide__chunks *c, int peer);

/* The record: spare chunks are in a list, others are not. */
void tide__chunks_set_spare(tide__chunks *c, uint32_t index);
/* Off the list; false if it is not in it. */
bool tide__chunks_unspare(tide__chunks *c, uint32_t index);
/* The largest spare chunk of at most max_bytes; 0 if there is none. */
uint32_t tide__chunks_find_spare(const tide__chunks *c, uint64_t max_bytes);

#endif
