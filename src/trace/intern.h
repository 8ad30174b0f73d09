/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intern: everything a trace keeps once. Strings, frames, stacks (lists of
 * frames) and pool ids each get an index in order of appearance; equal ones get
 * the same. String 0 is "", stack 0 is empty, pair 0 is (0, 0).
 *
 * The strings that a snapshot's keys and actions are come first, so that they
 * are known by number: TIDE__WORD_action and so on.
 */
#ifndef TIDE_TRACE_INTERN_H
#define TIDE_TRACE_INTERN_H

#include "trace/meter.h"
#include "trace/trace.h"

/* Keys of an entry, a frame, a block or a segment: fewer than 64, first. */
#define TIDE__WORD_LIST(X)                          \
    X(empty, "")                                    \
    X(action, "action")                             \
    X(addr, "addr")                                 \
    X(size, "size")                                 \
    X(stream, "stream")                             \
    X(time_us, "time_us")                           \
    X(user_metadata, "user_metadata")               \
    X(frames, "frames")                             \
    X(device_free, "device_free")                   \
    X(segment_pool_id, "segment_pool_id")           \
    X(pool_id, "pool_id")                           \
    X(name, "name")                                 \
    X(filename, "filename")                         \
    X(line, "line")                                 \
    X(address, "address")                           \
    X(requested_size, "requested_size")             \
    X(state, "state")                               \
    X(total_size, "total_size")                     \
    X(device, "device")                             \
    X(segment_type, "segment_type")                 \
    X(is_expandable, "is_expandable")               \
    X(blocks, "blocks")                             \
    X(stage, "stage")                               \
    /* not keys of records */                       \
    X(segments, "segments")                         \
    X(device_traces, "device_traces")               \
    X(allocator_settings, "allocator_settings")     \
    X(external_annotations, "external_annotations") \
    X(large, "large")                               \
    X(inactive, "inactive")                         \
    X(active_allocated, "active_allocated")         \
    X(active_pending_free, "active_pending_free")   \
    X(active_awaiting_free, "active_awaiting_free")

enum {
#define X(id, text) TIDE__WORD_##id,
    TIDE__WORD_LIST(X)
#undef X
        TIDE__WORD_ACTIONS, /* the first action's; the others follow in their order */
    TIDE__WORD_KEYS = TIDE__WORD_segments,
};

typedef struct tide__intern_table {
    struct tide__intern_slot {
        uint32_t hash, index_plus_1;
    } * slots;
    size_t capacity, count;
} tide__intern_table;

typedef struct tide__intern {
    tide__meter *meter;
    uint64_t seed; /* of the hashes: a file cannot be made to collide */

    tide__intern_table string_table;
    char **strings;
    uint32_t *lengths;
    size_t string_count, string_capacity, length_capacity;
    struct tide__intern_chunk *chunks; /* the strings' bytes */

    tide__intern_table frame_table;
    tide__trace_frame *frames;
    size_t frame_count, frame_capacity;

    tide__intern_table stack_table;
    uint32_t *stack_frames; /* indices into frames */
    size_t stack_frame_count, stack_frame_capacity;
    size_t *stack_start;
    size_t stack_count, stack_capacity;

    tide__intern_table pair_table;
    tide__trace_pool *pairs;
    size_t pair_count, pair_capacity;
} tide__intern;

/* Random, so that nobody can write a file whose keys collide. */
uint64_t tide__intern_seed(void);

/* Another name for a key that a file chooses, one to one, before it goes into a
 * tide__map, whose hash anybody can foresee. */
static inline uint64_t tide__intern_scramble(uint64_t seed, uint64_t key) {
    return __builtin_bswap64((key ^ seed) * (seed | 1)) * UINT64_C(0xa0761d6478bd642f);
}

tide_status tide__intern_open(tide__intern *t, tide__meter *meter);
void tide__intern_close(tide__intern *t);
void tide__intern_free_chunks(struct tide__intern_chunk *chunks);

/* A NUL inside becomes U+FFFD, so that C strings tell them apart. */
tide_status tide__intern_string(tide__intern *t, const void *text, size_t length, uint32_t *out);
tide_status tide__intern_frame(tide__intern *t, tide__trace_frame frame, uint32_t *out);
tide_status tide__intern_stack(tide__intern *t, const uint32_t *frames, size_t count, uint32_t *out);
tide_status tide__intern_pair(tide__intern *t, int64_t first, int64_t second, uint32_t *out);

#endif
