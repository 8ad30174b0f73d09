/* SPDX-License-Identifier: Apache-2.0 */
/* One device: what it weighs, opening and closing. */
#include "heap/core.h"

#include <stdlib.h>
#include <string.h>

const tide__tuning tide__tuning_default = {
    .classes = {{0, 2 * TIDE__MIB},
                {TIDE__SMALL_BYTES, 8 * TIDE__MIB},
                {16 * TIDE__MIB, 20 * TIDE__MIB},
                {128 * TIDE__MIB, 64 * TIDE__MIB}},
    .chunk_share = 320,
    .chunk_floor = 24 * TIDE__MIB,
    .slack_per_mille = 5,
    .slack_bytes = 20 * TIDE__MIB,
    .most_per_mille = 13,
    .most_bytes = 56 * TIDE__MIB,
    .epoch_bytes = 14 * TIDE__MIB,
    .epoch_share = 512,
};

tide_status tide__core_open(const tide__core_options *o, tide__core **out) {
    tide__core *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a device's state");
    }
    c->device = o->device;
    c->gpu = o->gpu;
    c->cross_stream = o->cross_stream;
    c->registry = o->registry;
    c->owner = o->owner;
    c->on_shortage = o->on_shortage;
    c->oom_wait_ns = o->oom_wait_ns;
    c->no_moves = o->no_moves;
    c->no_unmaps = o->no_unmaps;
    c->tuning = o->tuning != NULL ? *o->tuning : tide__tuning_default;
    tide_status status = o->device->ops->properties(o->device, o->gpu, &c->properties);
    if (status != TIDE_OK) {
        free(c);
        return status;
    }
    pthread_mutex_init(&c->slow, NULL);
    tide__lock_init(&c->core);
    tide__trail_prepare();
    tide__epochs_open(&c->epochs, o->device, o->gpu);
    status = tide__chunks_open(&c->chunks, o->device, o->gpu, o->limit_bytes);
    if (status == TIDE_OK) {
        status = tide__core_add_pool(c, 0);
    }
    if (status != TIDE_OK) {
        tide__core_close(c);
        return status;
    }
    *out = c;
    return TIDE_OK;
}

tide_status tide__core_share(tide__core *c, int peer) {
    pthread_mutex_lock(&c->slow);
    tide_status status = tide__chunks_share(&c->chunks, peer);
    pthread_mutex_unlock(&c->slow);
    return status;
}

void tide__core_limit(tide__core *c, uint64_t limit_bytes, uint64_t margin_bytes) {
    pthread_mutex_lock(&c->slow);
    tide__chunks_set_limits(&c->chunks, limit_bytes, margin_bytes);
    pthread_mutex_unlock(&c->slow);
}

void tide__core_limits(tide__core *c, uint64_t *limit_bytes, uint64_t *margin_bytes) {
    pthread_mutex_lock(&c->slow);
    *limit_bytes = c->chunks.limit_bytes;
    *margin_bytes = c->chunks.margin_bytes;
    pthread_mutex_unlock(&c->slow);
}

void tide__core_close(tide__core *c) {
    if (c == NULL) {
        return;
    }
    for (uint16_t i = 0; i < c->heap_count; i++) {
        if (c->heaps[i] != NULL) {
            tide__heap_close(c, c->heaps[i]);
        }
    }
    tide__chunks_close(&c->chunks);
    tide__epochs_close(&c->epochs);
    for (uint32_t i = 0; i < atomic_load(&c->cache_count); i++) {
        tide__stream_close(atomic_load(&c->caches[i]));
    }
    tide__blocks_close(&c->blocks);
    tide__plan_free(c->plan);
    pthread_mutex_destroy(&c->slow);
    free(c);
}
