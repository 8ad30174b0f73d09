/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meter: the reader's bound on memory.
 *
 * A file may be hostile: one byte of a pickle can ask for eight of memory, and a
 * length may say anything. So everything that grows with the file asks here
 * first, and what may be held is tied to the bytes that have really been read:
 *
 *     limit = 16 MiB + 2.5 x uncompressed bytes read so far
 *
 * Real snapshots need about 1.2 x. The factor stays under 3 so that what the
 * meter does not see (malloc's own bytes, the blocks of the source) fits too.
 */
#ifndef TIDE_TRACE_METER_H
#define TIDE_TRACE_METER_H

#include "base/base.h"

#define TIDE__METER_ALLOWANCE (16 * TIDE__MIB)

typedef struct tide__meter {
    uint64_t used, limit;
    bool refused; /* something was over the limit */
} tide__meter;

static inline void tide__meter_set_data(tide__meter *m, uint64_t data_bytes) {
    m->limit = TIDE__METER_ALLOWANCE + data_bytes * 2 + data_bytes / 2;
}

/* Both set the thread's message on failure, without a file's name or offset:
 * TIDE_CORRUPT where the file is over the limit, TIDE_NO_HOST_MEMORY. */
tide_status tide__meter_take(tide__meter *m, uint64_t bytes) __attribute__((warn_unused_result));
static inline void tide__meter_give(tide__meter *m, uint64_t bytes) { m->used -= bytes; }

/* As tide__grow, metered, growing by half where doubling would be large. */
tide_status tide__meter_grow(tide__meter *m, void **array, size_t *capacity, size_t need,
                             size_t element_bytes) __attribute__((warn_unused_result));

#endif
