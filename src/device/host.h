/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host: a device made of host memory, for tests that want real bytes. Chunks
 * are pages of a memfd, addresses are real, streams are threads. This header
 * queues work on it and says what it watches for; the device itself is the
 * table in device.h.
 *
 * What it catches. Every operation says which addresses it reads and writes.
 * The device knows which operations are ordered, and reports (by default it
 * prints both operations and aborts):
 *
 *   UNORDERED      two operations touch the same bytes of a chunk, at least
 *                  one writes, and nothing orders them. Bytes are those of
 *                  the device: through whichever alias, and also where a
 *                  released chunk's bytes came back in a new chunk.
 *   UNMAP_BUSY     a range is unmapped (or raw memory freed) that queued or
 *                  running work uses.
 *   UNMAP_UNKNOWN  the same, where the work happens to be done but the host
 *                  has not learned so: it was luck.
 *   NOT_MAPPED     an operation is queued on addresses that are not mapped or
 *                  not made accessible. It is not queued.
 *   UNMAPPED_WORK  addresses were unmapped or mapped anew between the queueing
 *                  of an operation and its execution. The operation is skipped.
 *
 * All but the last are found when the call is made, from the order that the
 * program asked for, never from how the threads happened to run: a wrong
 * program is caught every time.
 *
 * What orders two operations (happens-before), on one GPU:
 *   1. The same stream, in the order queued.
 *   2. Event record, then stream_wait_event: what was queued on the recorded
 *      stream before the record comes before what is queued on the waiting
 *      stream after the wait.
 *   3. The host: event_query that says OK, event_wait that succeeds,
 *      tide__host_stream_sync, tide__host_device_sync, stream_destroy and
 *      raw_free tell the host that work is done; whatever any thread queues
 *      afterwards comes after that work. There is one host for all threads:
 *      locks between them are not seen, so what one has learned counts for all.
 * Nothing else does: not stream 0, which is a stream like any other, not
 * chunk_release and chunk_create, not a flag that a callback sets.
 *
 * Kernels may be late: a delay or a gate queued on a stream holds all that
 * follows, and set_lateness makes every operation wait a random time.
 */
#ifndef TIDE_HOST_H
#define TIDE_HOST_H

#include "device/device.h"

typedef enum tide__host_wrong {
    TIDE__HOST_UNORDERED,
    TIDE__HOST_UNMAP_BUSY,
    TIDE__HOST_UNMAP_UNKNOWN,
    TIDE__HOST_NOT_MAPPED,
    TIDE__HOST_UNMAPPED_WORK,
    TIDE__HOST_WRONG_COUNT
} tide__host_wrong;

/* One operation, as far as it concerns a violation. */
typedef struct tide__host_operation {
    const char *what;   /* "fill", "copy", ...; NULL: there is no such operation */
    bool writes;        /* in the range below */
    uint64_t stream_id; /* as stream_id gives it */
    uint64_t sequence;  /* of the operations queued on streams of this slot, from 1 */
    uint64_t va, size;  /* the declared range */
    uint64_t chunk;     /* the handle behind the first byte concerned; may be released by now */
} tide__host_operation;

typedef struct tide__host_violation {
    tide__host_wrong kind;
    int gpu;
    tide__host_operation earlier, later; /* later only where two operations are at odds */
    uint64_t va, size;                   /* the bytes concerned, as the later one (or the call) sees them */
    char text[640];
} tide__host_violation;

/* Called without locks, on the thread that did wrong; when it returns, the
 * device goes on as a GPU would. NULL: print and abort. */
typedef void (*tide__host_handler)(void *user, const tide__host_violation *violation);
void tide__host_set_handler(tide__device *d, tide__host_handler handler, void *user);
const char *tide__host_wrong_name(tide__host_wrong kind);

typedef struct tide__host_range {
    uint64_t va, size;
} tide__host_range;

/* ---- Graphs ---- */

/* What is queued on the stream from here on is not run but kept, with its
 * addresses, until capture_end; a launch queues it all, in order, on a stream,
 * and what stands behind the addresses then is what it touches. TIDE_IN_USE:
 * the stream is captured already; TIDE_BAD_HANDLE: it is not. */
typedef struct tide__host_graph tide__host_graph;
tide_status tide__host_capture_begin(tide__device *d, int gpu, tide_stream stream);
tide_status tide__host_capture_end(tide__device *d, int gpu, tide_stream stream, tide__host_graph **out);
tide_status tide__host_graph_launch(tide__device *d, int gpu, tide_stream stream,
                                    const tide__host_graph *graph);
void tide__host_graph_destroy(tide__host_graph *graph);

/* May GPU `peer` use all of [va, va + size)? */
bool tide__host_peer_reaches(tide__device *d, int gpu, int peer, uint64_t va, uint64_t size);

/* ---- Queueing work: returns at once; a thread runs it in the stream's order ---- */

tide_status tide__host_fill(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint8_t value,
                            uint64_t size);
tide_status tide__host_copy(tide__device *d, int gpu, tide_stream stream, uint64_t dst, uint64_t src,
                            uint64_t size);
/* Adds the bytes that differ from value to tide__host_result. */
tide_status tide__host_check(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint8_t value,
                             uint64_t size);
/* As fill and check, with bytes that depend on the seed and on the distance
 * from va: finds chunks in the wrong order, which one value cannot. */
tide_status tide__host_fill_pattern(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint64_t seed,
                                    uint64_t size);
tide_status tide__host_check_pattern(tide__device *d, int gpu, tide_stream stream, uint64_t va, uint64_t seed,
                                     uint64_t size);
/* fn runs on the stream's thread, without locks, and touches only these
 * ranges. It must not wait for its own stream. */
tide_status tide__host_callback(tide__device *d, int gpu, tide_stream stream, void (*fn)(void *user),
                                void *user, const tide__host_range *reads, size_t read_count,
                                const tide__host_range *writes, size_t write_count);

/* Holds the stream for a time, or until the gate opens. A gate is shut when
 * made and stays open once opened; closing the device opens them all and ends
 * all delays. */
typedef uint64_t tide__host_gate;
tide_status tide__host_delay(tide__device *d, int gpu, tide_stream stream, uint64_t ns);
tide_status tide__host_gate_create(tide__device *d, int gpu, tide__host_gate *out);
tide_status tide__host_gate_open(tide__device *d, int gpu, tide__host_gate gate);
tide_status tide__host_hold(tide__device *d, int gpu, tide_stream stream, tide__host_gate gate);

/* The host waits for what is queued now, without bound. */
tide_status tide__host_stream_sync(tide__device *d, int gpu, tide_stream stream);
tide_status tide__host_device_sync(tide__device *d, int gpu);

/* ---- Settings and results ---- */

/* Operations queued from now on (event records too, which otherwise are done
 * at once on an idle stream) are late by 0 to max_ns, drawn from the seed. */
void tide__host_set_lateness(tide__device *d, uint64_t seed, uint64_t max_ns);

/* A destroyed stream's handle may come again for a new one, as on a GPU (the
 * id never does). Otherwise a stale handle is BAD_HANDLE. */
void tide__host_reuse_stream_handles(tide__device *d, bool reuse);

typedef struct tide__host_result {
    uint64_t operations;                                                  /* executed */
    uint64_t checks;                                                      /* of those, checks */
    uint64_t wrong_bytes;                                                 /* that checks found */
    uint64_t first_wrong_va, first_wrong_stream_id, first_wrong_sequence; /* of the first such byte */
    uint8_t first_expected, first_found;
} tide__host_result;
void tide__host_get_result(tide__device *d, int gpu, tide__host_result *out);

/* Bytes of memory that the GPU's chunks really take from the host. */
uint64_t tide__host_resident_bytes(tide__device *d, int gpu);

#endif
