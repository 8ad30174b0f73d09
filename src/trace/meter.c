/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that grows with the file. Arrays are counted at their capacity; large
 * ones are moved by the C library without a second copy (mremap).
 */
#include "trace/meter.h"

#include <stdlib.h>

#define DOUBLE_UP_TO ((size_t)1 << 20) /* bytes; beyond, grow by half */

tide_status tide__meter_take(tide__meter *m, uint64_t bytes) {
    if (bytes > m->limit || m->used > m->limit - bytes) {
        m->refused = true;
        return tide__fail(TIDE_CORRUPT, "its values need more memory than a snapshot of this size may "
                                        "(over 2.5 times the bytes read)");
    }
    m->used += bytes;
    return TIDE_OK;
}

tide_status tide__meter_grow(tide__meter *m, void **array, size_t *capacity, size_t need,
                             size_t element_bytes) {
    if (need <= *capacity) {
        return TIDE_OK;
    }
    size_t step = *capacity * element_bytes < DOUBLE_UP_TO ? *capacity : *capacity / 2;
    size_t want = *capacity + step < 16 ? 16 : *capacity + step;
    size_t bytes;
    if (want < need) {
        want = need;
    }
    if (!tide__mul_size(want, element_bytes, &bytes)) {
        bytes = SIZE_MAX; /* over any limit */
    }
    size_t old_bytes = *capacity * element_bytes;
    tide_status status = tide__meter_take(m, bytes - old_bytes);
    if (status != TIDE_OK) {
        return status;
    }
    void *bigger = realloc(*array, bytes);
    if (bigger == NULL) {
        tide__meter_give(m, bytes - old_bytes);
        return tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory (%zu bytes)", bytes);
    }
    *array = bigger;
    *capacity = want;
    return TIDE_OK;
}
