/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace: a run's allocator history in memory, whatever file it came from.
 *
 * A trace holds one list of events for each GPU, in the order recorded. Strings
 * (phases, file and function names) are interned once; events refer to them by
 * index. String 0 is "".
 */
#ifndef TIDE_TRACE_H
#define TIDE_TRACE_H

#include "base/base.h"

/* PyTorch's names for what happened; the order is ours. */
#define TIDE__ACTION_LIST(X)                    \
    X(ALLOC, "alloc")                           \
    X(FREE_REQUESTED, "free_requested")         \
    X(FREE_COMPLETED, "free_completed")         \
    X(SEGMENT_ALLOC, "segment_alloc")           \
    X(SEGMENT_FREE, "segment_free")             \
    X(SEGMENT_MAP, "segment_map")               \
    X(SEGMENT_UNMAP, "segment_unmap")           \
    X(SNAPSHOT, "snapshot")                     \
    X(OOM, "oom")                               \
    X(WORKSPACE_SNAPSHOT, "workspace_snapshot") \
    X(OTHER, "other")

typedef enum tide__action {
#define X(id, name) TIDE__ACTION_##id,
    TIDE__ACTION_LIST(X)
#undef X
        TIDE__ACTION_COUNT
} tide__action;

const char *tide__action_name(tide__action action);

typedef struct tide__trace_event {
    uint64_t addr; /* oom: the device's free bytes */
    uint64_t size; /* bytes; alloc and free: as asked for, before rounding */
    int64_t time_us;
    uint32_t phase;    /* string: user_metadata */
    uint32_t stack;    /* index into stacks; 0 is none */
    uint16_t stream;   /* index into the GPU's streams */
    uint16_t pool;     /* index into the GPU's pools; 0 is (0, 0), the default */
    uint8_t action;    /* tide__action */
    uint8_t has_phase; /* 0: the entry has no user_metadata, or an empty one */
    uint8_t reserved[2];
} tide__trace_event;

typedef struct tide__trace_pool {
    int64_t id[2]; /* PyTorch's MempoolId_t */
} tide__trace_pool;

typedef enum tide__block_state {
    TIDE__BLOCK_INACTIVE,
    TIDE__BLOCK_ACTIVE_ALLOCATED,
    TIDE__BLOCK_ACTIVE_PENDING_FREE, /* active_pending_free and active_awaiting_free */
} tide__block_state;

typedef struct tide__trace_block {
    uint64_t addr, size, requested_size;
    uint32_t stack;
    uint8_t state; /* tide__block_state */
} tide__trace_block;

typedef struct tide__trace_segment {
    uint64_t addr, size;
    uint16_t stream, pool;
    uint8_t is_large, is_expandable;
    size_t first_block, block_count; /* in the GPU's blocks, by address */
} tide__trace_segment;

typedef struct tide__trace_gpu {
    int device;
    tide__trace_event *events;
    size_t event_count;
    uint64_t *streams; /* the handles as recorded; [0] is the default stream, 0 */
    size_t stream_count;
    tide__trace_pool *pools; /* [0] is {0, 0} */
    size_t pool_count;
    /* The heap at the end of the recording, where the file has it. */
    tide__trace_segment *segments;
    size_t segment_count;
    tide__trace_block *blocks;
    size_t block_count;
} tide__trace_gpu;

typedef struct tide__trace_frame {
    uint32_t name, file; /* strings */
    uint32_t line;
} tide__trace_frame;

typedef struct tide__trace_setting {
    uint32_t name, value; /* strings; a nested value is printed, such as "1:0,2:0" */
} tide__trace_setting;

typedef struct tide__trace {
    char **strings;
    size_t string_count;
    tide__trace_frame *frames;
    size_t frame_count;
    /* stack i is frames[stack_start[i]] up to stack_start[i+1]; stack 0 is empty */
    size_t *stack_start;
    size_t stack_count;
    tide__trace_setting *settings;
    size_t setting_count;
    tide__trace_gpu *gpus;
    size_t gpu_count;
    bool has_segments; /* the file has a non-empty list of segments */
    size_t annotation_count;
    int pickle_protocol;
    const char *compression;             /* "none", "gzip", "zstd"; static */
    uint64_t file_bytes, data_bytes;     /* as stored, and uncompressed */
    struct tide__trace_storage *storage; /* private: what several of the above lie in */
} tide__trace;

/* Called now and then while reading: bytes of the file consumed and its size. May be NULL. */
typedef void (*tide__progress)(void *user, uint64_t done, uint64_t total);

/* Reads a PyTorch snapshot: pickle protocol 2 to 5, plain, gzip or zstd. The
 * file is data: no opcode that calls code is accepted. On failure the message
 * names file, offset and cause. Release with tide__trace_free. */
tide_status tide__trace_read(const char *path, tide__progress progress, void *user, tide__trace **out);
void tide__trace_free(tide__trace *t);

/* The value of a setting such as "expandable_segments", or NULL. */
const char *tide__trace_setting_get(const tide__trace *t, const char *name);

#endif
