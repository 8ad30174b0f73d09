/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_native: segments from cudaMalloc, given back whole by cudaFree once
 * nothing in them is used. A segment's size is decided by the allocation that
 * needs it and never changes: what is left over in it is what fragments.
 */
#include "replay/torch_heap.h"

static tide_status obtain(tide__torch_heap *h, tide__torch_arena *a, uint64_t size, tide__torch_block **out) {
    uint64_t bytes = tide__torch_segment_size(h->settings, size), va;
    tide_status status = h->device->ops->raw_alloc(h->device, 0, bytes, &va);
    if (status != TIDE_OK) return status;
    uint64_t base = h->hint != 0 ? h->hint : va;
    h->hint = 0;
    tide__torch_segment *s = tide__torch_segment_new(h, base, bytes);
    tide__torch_block *b = s != NULL ? tide__torch_block_new(h, a, s, base, bytes) : NULL;
    if (b == NULL) {
        if (s != NULL) tide__torch_segment_delete(h, s);
        h->device->ops->raw_free(h->device, 0, va);
        return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a model's segment");
    }
    s->device_va = va;
    tide__torch_reserved_add(h, bytes);
    *out = b;
    return TIDE_OK;
}

tide_status tide__torch_native_release_block(tide__torch_heap *h, tide__torch_block *b) {
    TIDE__CHECK(tide__torch_is_whole(b) && !b->used);
    tide_status status = h->device->ops->raw_free(h->device, 0, b->segment->device_va);
    if (status != TIDE_OK) return status;
    tide__torch_index_remove(b);
    h->reserved -= b->node.size;
    tide__torch_segment_delete(h, b->segment);
    tide__torch_block_delete(h, b);
    return TIDE_OK;
}

static tide_status release(tide__torch_heap *h, tide__torch_pool *p) {
    while (p->whole.ring_next != &p->whole) {
        tide_status status = tide__torch_native_release_block(h, p->whole.ring_next);
        if (status != TIDE_OK) return status;
    }
    return TIDE_OK;
}

const tide__torch_backend tide__torch_native = {false, obtain, release};
