/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagetide: a GPU memory allocator whose physical pages move.
 *
 * A trainer and a rollout engine share one GPU. pagetide gives both their
 * memory from one pool of physical chunks: addresses are reserved once and
 * kept, the chunks behind them move to where the live blocks are, so that the
 * bytes reserved follow the bytes live whatever the holes between them.
 *
 * The simple calls are tide_open, tide_alloc, tide_free, tide_close. All sizes
 * are bytes, all times nanoseconds unless a name says otherwise. Every call
 * returns a tide_status; 0 is success and the others are negative. Outputs are
 * the last parameters and are written only on success. After a failure
 * tide_last_error() describes it for the calling thread. All calls are
 * thread-safe, except that tide_close must be the last call on its allocator.
 *
 * After an error that the device does not recover from (an illegal address, say)
 * every call is TIDE_DEVICE_LOST and touches no driver, and what pagetide last
 * moved and unmapped is printed to stderr once, with stacks. Once the driver has
 * shut down, as at the end of a process, tide_free and tide_close are TIDE_OK and
 * do nothing, and the others are TIDE_DEVICE_GONE.
 *
 * To find out whether pagetide is the cause of a fault, these may be set to 0 in
 * the environment: PAGETIDE_MOVES (no chunk is mapped at a second address),
 * PAGETIDE_UNMAP (nothing is unmapped or given back before tide_close); and
 * PAGETIDE_CROSS_STREAM=off keeps each stream's memory to itself.
 */
#ifndef PAGETIDE_H
#define PAGETIDE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(TIDE_BUILD_SHARED)
#define TIDE_API __attribute__((visibility("default")))
#else
#define TIDE_API
#endif

#define TIDE_VERSION_MAJOR 0
#define TIDE_VERSION_MINOR 1
#define TIDE_VERSION_PATCH 0

/* ---- Status ------------------------------------------------------------ */

/* name, value, what it means in a few words */
#define TIDE_STATUS_LIST(X)                                                         \
    X(OK, 0, "success")                                                             \
    X(INVALID_ARGUMENT, -1, "an argument is outside what the call accepts")         \
    X(NO_HOST_MEMORY, -2, "the host ran out of memory")                             \
    X(NO_DEVICE_MEMORY, -3, "the device ran out of memory")                         \
    X(LIMIT, -4, "a limit set by the user was reached")                             \
    X(NO_ADDRESSES, -5, "no address range of this size can be reserved")            \
    X(NOT_ALLOCATED, -6, "the address is not that of a live block")                 \
    X(BAD_HANDLE, -7, "a pool, stream or event handle is not (or no longer) valid") \
    X(IN_USE, -8, "the address range or object is in use")                          \
    X(NOT_READY, -9, "the event has not completed yet")                             \
    X(TIMEOUT, -10, "a bounded wait ended before its event")                        \
    X(DRIVER, -11, "a driver call failed")                                          \
    X(DEVICE_LOST, -12, "the device failed earlier and accepts no calls")           \
    X(NO_DEVICE, -13, "no usable device or backend")                                \
    X(UNSUPPORTED, -14, "this backend cannot do that")                              \
    X(FORKED, -15, "the allocator belongs to the parent process")                   \
    X(CORRUPT, -16, "a file's content is not what its format says")                 \
    X(IO, -17, "reading or writing a file failed")                                  \
    X(INTERNAL, -18, "an invariant of pagetide does not hold")                      \
    X(CAPTURING, -19, "the stream is being captured into a graph")                  \
    X(DEVICE_GONE, -20, "the driver has shut down")

typedef enum tide_status {
#define X(name, value, text) TIDE_##name = value,
    TIDE_STATUS_LIST(X)
#undef X
} tide_status;

/* A static string such as "TIDE_NO_DEVICE_MEMORY". */
TIDE_API const char *tide_status_name(tide_status status);

/* What went wrong in the calling thread's last failed call: the call that
 * failed, its arguments and what to do. Never NULL; valid until the thread's
 * next failing call. */
TIDE_API const char *tide_last_error(void);

/* ---- Types ------------------------------------------------------------- */

typedef struct tide_allocator tide_allocator;

/* A stream: the CUstream on a GPU, a handle of tide_stream_create on `host`
 * and `sim`. 0 is the default stream and exists on each device. */
typedef uint64_t tide_stream;

/* A pool, checked by generation. */
typedef uint64_t tide_pool;
#define TIDE_POOL_DEFAULT ((tide_pool)0)
#define TIDE_POOL_CURRENT (~(tide_pool)0) /* that of the stream's capture, else the default */

/* Who may take a block that another stream freed before its work is known to
 * be done. The own stream always may. */
typedef enum tide_cross_stream {
    TIDE_CROSS_STREAM_DEFAULT = 0, /* PAGETIDE_CROSS_STREAM, else idle */
    TIDE_CROSS_STREAM_OFF = 1,     /* nobody, ever */
    TIDE_CROSS_STREAM_IDLE = 2,    /* others, once every stream seen on the device has passed the free */
    TIDE_CROSS_STREAM_WAIT = 3 /* as idle; before more is reserved than peak live and a slack over it (0.5%
                                * and 20 MiB) the taker's stream waits on the device */
} tide_cross_stream;

typedef struct tide_open_options {
    size_t struct_size;  /* sizeof(tide_open_options) */
    const char *backend; /* "cuda", "host", "sim"; NULL: PAGETIDE_DEVICE, else cuda. Never host silently. */
    int device_count;    /* host and sim: devices to make, 0 is 1; ignored on cuda */
    tide_cross_stream cross_stream;
    uint64_t limit_bytes; /* per device: physical bytes never exceed it; 0 is no limit */
    uint64_t oom_wait_ns; /* an allocation waits for queued work no longer than this; 0: a minute */
} tide_open_options;

/* ---- Open and close ---------------------------------------------------- */

/* options may be NULL for the defaults. */
TIDE_API tide_status tide_open(const tide_open_options *options, tide_allocator **out);

/* Gives every chunk and address back, live blocks or not; NULL is TIDE_OK.
 * Work queued on the blocks must be done. Where the device is lost or the driver
 * has shut down it gives back the host's memory alone. */
TIDE_API tide_status tide_close(tide_allocator *a);

/* ---- Blocks ------------------------------------------------------------ */

/* Allocates size_bytes on a device for use on a stream, aligned to 512 bytes.
 * Size 0 gives TIDE_OK and NULL. The bytes are not cleared. */
TIDE_API tide_status tide_alloc(tide_allocator *a, int device, size_t size_bytes, tide_stream stream,
                                tide_pool pool, void **out);

/* As tide_alloc, at exactly this address (a multiple of 512 that an earlier
 * block of the pool had): TIDE_IN_USE where any of its bytes is taken,
 * TIDE_CAPTURING where they wait for a capture to end, TIDE_NOT_READY where
 * queued work holds them for longer than oom_wait_ns. Where larger blocks live
 * it takes up to 1 MiB for fewer bytes. */
TIDE_API tide_status tide_alloc_at(tide_allocator *a, int device, size_t size_bytes, tide_stream stream,
                                   tide_pool pool, void *address);

/* Frees on the block's own stream: that stream may reuse the bytes at once.
 * NULL is TIDE_OK; any address that is not a live block's is
 * TIDE_NOT_ALLOCATED and changes nothing. */
TIDE_API tide_status tide_free(tide_allocator *a, void *ptr);

/* The block is also used on `stream`: once freed, nobody (its own stream
 * included) gets its bytes before the work queued there by then is done. */
TIDE_API tide_status tide_record_stream(tide_allocator *a, void *ptr, tide_stream stream);

/* The bytes a caller asked for, and those the block really has. */
TIDE_API tide_status tide_block_size(tide_allocator *a, const void *ptr, size_t *requested_bytes,
                                     size_t *block_bytes);

/* ---- Pools ------------------------------------------------------------- */

/* A pool has addresses of its own, up to 256 GiB at first: some hundreds of pools
 * fit the 128 TiB of a process, and more are TIDE_NO_ADDRESSES when they allocate.
 * No chunk is under blocks of two pools at once. */
TIDE_API tide_status tide_pool_create(tide_allocator *a, int device, tide_pool *out);

/* Gives the pool back: TIDE_IN_USE while it has live blocks or a capture allocates from it. */
TIDE_API tide_status tide_pool_release(tide_allocator *a, tide_pool pool);

/* ---- CUDA graphs ------------------------------------------------------- */

/* A stream is about to be captured into a graph: from here to tide_capture_end
 * what it allocates with TIDE_POOL_CURRENT comes from `pool`, which is the
 * graph's from now on. Between this call and the capture's beginning nothing
 * may be queued on the stream, nor on stream 0 where the two synchronise; a stream that joins a capture is
 * announced too, best before it joins, since otherwise nothing freed is found idle meanwhile.
 *
 * While streams are captured no event is recorded or waited for on them, they
 * are given new chunks or such as are idle for everybody, and blocks with
 * recorded streams that are freed meanwhile come back after the last capture's
 * end. A graph replays into the blocks that it allocated, freed or not: its
 * pool keeps its chunks until tide_pool_release, which comes after the last
 * replay was launched. Free blocks of the pool serve later captures on the same
 * stream; outside of captures what is allocated from the pool gets other memory.
 *
 * An allocation that needs chunks on a captured stream that was not announced
 * is TIDE_CAPTURING. TIDE_IN_USE: the stream is announced already;
 * TIDE_INVALID_ARGUMENT: the default pool; of tide_capture_end: no capture was
 * announced. */
TIDE_API tide_status tide_capture_begin(tide_allocator *a, int device, tide_stream stream, tide_pool pool);
TIDE_API tide_status tide_capture_end(tide_allocator *a, int device, tide_stream stream);

/* ---- Peers ------------------------------------------------------------- */

/* Device `peer` may read and write all memory of `device`, allocated before or
 * after; for the other direction call it the other way round too. TIDE_UNSUPPORTED
 * where the two cannot reach each other. Twice, or itself, is TIDE_OK. */
TIDE_API tide_status tide_peer_enable(tide_allocator *a, int device, int peer);

/* ---- Trim -------------------------------------------------------------- */

typedef struct tide_trim_options {
    size_t struct_size;
    uint64_t bytes;   /* give back at least this much; UINT64_MAX: all that is free */
    uint64_t wait_ns; /* wait at most this long for events; 0: take only what is idle now */
} tide_trim_options;

typedef struct tide_trim_result {
    size_t struct_size;
    uint64_t released_bytes; /* given back to the driver by this call */
    uint64_t pinned_bytes;   /* free bytes that stay: a live block shares their chunk */
    uint64_t pending_bytes;  /* free bytes that stay: work queued before their free is not known to be done */
    uint64_t graph_bytes;    /* free bytes that stay: of CUDA graphs' pools, which replay into them */
} tide_trim_result;

/* Gives cached chunks back to the driver. options may be NULL: all that is free,
 * without waiting. result may be NULL. */
TIDE_API tide_status tide_trim(tide_allocator *a, int device, const tide_trim_options *options,
                               tide_trim_result *result);

/* ---- When memory is short ---------------------------------------------- */

/* Where the device or the limit refuses bytes, an allocation in turn gives idle
 * chunks back, calls the callbacks, waits for the work that freed bytes still
 * wait for (never for other work), waits for the whole device (not for a limit's
 * sake, nor while a stream that pagetide has seen is captured; a capture on one
 * that it has not would be spoilt), and fails only then; after each step it looks
 * at the free blocks again. The waits together take at most oom_wait_ns.
 *
 * A callback runs on the allocating thread, once an allocation, without locks:
 * it may free, trim and allocate, but not close. It returns the bytes it freed,
 * 0 for none; `bytes` is what was asked for and room around it. What it allocates calls no
 * callbacks. */
typedef uint64_t (*tide_oom_callback)(void *user, int device, uint64_t bytes);

/* *id names the callback for its removal. */
TIDE_API tide_status tide_oom_callback_add(tide_allocator *a, tide_oom_callback callback, void *user,
                                           uint64_t *id);
/* When this returns no other thread is inside the callback, and none will be;
 * called from inside a callback it does not wait for other threads. */
TIDE_API tide_status tide_oom_callback_remove(tide_allocator *a, uint64_t id);

typedef struct tide_limits {
    size_t struct_size;
    uint64_t limit_bytes;  /* physical bytes held never grow past it; 0: no limit */
    uint64_t margin_bytes; /* of the device's free bytes, left to others when growing; 0: the driver is not
                              asked */
} tide_limits;

/* Limits of a device from now on. What is held already stays: a trim gives back.
 * Growth past either is TIDE_LIMIT, after the steps above. */
TIDE_API tide_status tide_limits_set(tide_allocator *a, int device, const tide_limits *limits);
TIDE_API tide_status tide_limits_get(tide_allocator *a, int device, tide_limits *out);

/* ---- Streams ----------------------------------------------------------- */

/* A stream of the device, on a GPU one that does not synchronise with stream 0; those
 * made elsewhere serve as well. Destroying retires it, and on host waits for its
 * queued work; where it fails the stream stays as it was. */
TIDE_API tide_status tide_stream_create(tide_allocator *a, int device, tide_stream *out);
TIDE_API tide_status tide_stream_destroy(tide_allocator *a, int device, tide_stream stream);

/* The stream is about to be destroyed: waits for nothing, and blocks freed on
 * it become anybody's once its queued work is done. TIDE_IN_USE while its capture is
 * announced; TIDE_CAPTURING while a capture that nobody announced lasts: then it is
 * to be called again before the stream is destroyed. While a stream that is destroyed
 * is not retired, allocations that need chunks are TIDE_BAD_HANDLE; retired afterwards
 * the host waits for the whole device. */
TIDE_API tide_status tide_stream_retire(tide_allocator *a, int device, tide_stream stream);

/* ---- Statistics and phases --------------------------------------------- */

/* Name, what it counts. New ones are added at the end. */
#define TIDE_STAT_LIST(X)                                                                            \
    X(requested_bytes, "asked for by callers and not yet freed")                                     \
    X(allocated_bytes, "in blocks that callers hold (rounded to 512)")                               \
    X(active_bytes, "allocated, and freed but awaiting recorded streams")                            \
    X(reserved_bytes, "in chunks: the physical bytes held")                                          \
    X(peak_requested_bytes, "highest requested since the last reset")                                \
    X(peak_allocated_bytes, "highest allocated since the last reset")                                \
    X(peak_reserved_bytes, "highest reserved since the last reset")                                  \
    X(retiring_bytes, "of address ranges whose chunk moved away and whose old mapping still stands") \
    X(address_bytes, "of addresses reserved")                                                        \
    X(allocs, "allocations that succeeded")                                                          \
    X(frees, "frees")                                                                                \
    X(cache_hits, "allocations served by a stream's cache")                                          \
    X(slow_allocs, "allocations that had to find chunks")                                            \
    X(chunks, "chunks held")                                                                         \
    X(chunks_created, "chunks taken from the driver")                                                \
    X(chunks_released, "chunks given back")                                                          \
    X(moves, "chunks mapped at another address")                                                     \
    X(moved_bytes, "in those")                                                                       \
    X(stream_waits, "waits put on a taker's stream")                                                 \
    X(host_waits, "waits of the host for an event")                                                  \
    X(epochs, "epochs closed")                                                                       \
    X(ooms, "allocations refused for want of memory")                                                \
    X(slow_ns, "nanoseconds that allocations which had to find chunks took, waits included")

typedef struct tide_stats {
    size_t struct_size;
#define X(name, text) uint64_t name;
    TIDE_STAT_LIST(X)
#undef X
} tide_stats;

/* Peaks are exact while one stream allocates and frees; with several they may be
 * off by at most 1 MiB for each further stream. */
TIDE_API tide_status tide_stats_get(tide_allocator *a, int device, tide_stats *out);
TIDE_API tide_status tide_stats_reset_peaks(tide_allocator *a, int device);

/* The physical bytes held on a device, without a lock, for callers that ask often. */
TIDE_API uint64_t tide_reserved_bytes(const tide_allocator *a, int device);

/* Marks the start of a phase such as "rollout" (all devices; NULL or "" is no
 * phase). The name is copied, its first 63 bytes. */
TIDE_API tide_status tide_phase(tide_allocator *a, const char *name);

typedef struct tide_phase_stats {
    size_t struct_size;
    char name[64];
    uint64_t entered; /* how often */
    uint64_t peak_requested_bytes, peak_reserved_bytes;
    uint64_t requested_bytes, reserved_bytes; /* at its last end, or now */
} tide_phase_stats;

/* index counts phases in the order first seen; TIDE_INVALID_ARGUMENT past the
 * last. */
TIDE_API tide_status tide_phase_stats_get(tide_allocator *a, int device, int index, tide_phase_stats *out);

#ifdef __cplusplus
}
#endif
#endif
