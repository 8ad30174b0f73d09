/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records: what the dicts of a snapshot are, told by their keys.
 *
 *     an entry       action (a string)
 *     a frame        name, filename, line
 *     a segment      address, total_size, blocks
 *     a block        size, state
 *     an annotation  stage, time_us
 *
 * Where a dict has the keys but not values of the right type, it stays a dict,
 * and the first such case is kept, so that it can be told when the dict turns up
 * where a record has to be.
 */
#ifndef TIDE_TRACE_RECORDS_H
#define TIDE_TRACE_RECORDS_H

#include "trace/pickle.h"
#include "trace/trace.h"

#define TIDE__NO_ADDRESS UINT64_MAX        /* of a block whose dict has none: old versions */
#define TIDE__SIZE_MAX ((uint64_t)1 << 56) /* larger sizes are refused: sums of them overflow */
#define TIDE__DEVICE_MAX 1024              /* devices of one trace */

typedef struct tide__record_segment {
    tide__trace_segment segment; /* stream and pool as in tide__records; no blocks yet */
    int device;
    const tide__object *blocks; /* NULL: none */
    uint64_t offset;
} tide__record_segment;

/* Keys numbered in order of appearance, at most 65536; 0 has number 0. */
typedef struct tide__numbering {
    tide__map index;
    uint64_t *keys;
    size_t count, capacity;
    uint64_t last_key; /* the next one mostly equals the last */
    uint16_t last_index;
} tide__numbering;

typedef struct tide__records {
    tide__pickle *machine;

    tide__trace_event *events; /* stream and pool: of all devices together */
    size_t event_count, event_capacity;
    tide__trace_block *blocks;
    size_t block_count, block_capacity;
    tide__record_segment *segments;
    size_t segment_count, segment_capacity;
    size_t note_count;

    tide__numbering streams; /* by handle */
    tide__numbering pools;   /* by pair */

    uint32_t *frames; /* a stack being put together */
    size_t frame_capacity;

    uint64_t bad_offset; /* of the first dict with values of a wrong type */
    char bad[160];       /* what is wrong with it; "" where there is none */
} tide__records;

tide_status tide__records_open(tide__records *r, tide__pickle *machine);
void tide__records_close(tide__records *r);

/* A value in a few words, such as "1:0,2:0" for a dict; cut at `room`. */
void tide__value_text(const tide__pickle *m, tide__value v, char *out, size_t room);

#endif
