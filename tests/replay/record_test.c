/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs recorded from the models themselves, under settings and limits that no
 * trace at hand has. A heap is driven at random on a device that writes the
 * segment events down; the trace must then replay without a difference, though
 * the replay knows no limit and has to tell retries, oversize releases and
 * garbage collections apart by the events alone.
 */
#include "replay_test.h"

#include "replay/torch_heap.h"

#define MAX_RECORDED 60000
#define LIVE 150

/* A device that passes on to sim and writes events down. */
typedef struct recorder {
    tide__device base;
    tide__device_ops ops;
    tide__device *sim;
    tide__trace_event *events;
    size_t count;
    tide__map sizes; /* of native segments, by address */
    uint16_t stream;
} recorder;

static void write_event(recorder *r, tide__action action, uint64_t addr, uint64_t size) {
    tide__trace_event *last = r->count > 0 ? &r->events[r->count - 1] : NULL;
    bool pages = action == TIDE__ACTION_SEGMENT_MAP || action == TIDE__ACTION_SEGMENT_UNMAP;
    if (pages && last != NULL && last->action == action && last->addr + last->size == addr) {
        last->size += size; /* PyTorch tells whole ranges */
        return;
    }
    assert_true(r->count < MAX_RECORDED);
    r->events[r->count] = (tide__trace_event){.addr = addr,
                                              .size = size,
                                              .time_us = (int64_t)r->count,
                                              .stream = r->stream,
                                              .action = (uint8_t)action};
    r->count++;
}

static recorder *self(tide__device *d) { return (recorder *)d; }

static tide_status rec_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va) {
    tide_status status = self(d)->sim->ops->raw_alloc(self(d)->sim, gpu, size, va);
    if (status == TIDE_OK) {
        write_event(self(d), TIDE__ACTION_SEGMENT_ALLOC, *va, size);
        assert_true(tide__map_put(&self(d)->sizes, *va, size));
    }
    return status;
}

static tide_status rec_raw_free(tide__device *d, int gpu, uint64_t va) {
    uint64_t size;
    assert_true(tide__map_take(&self(d)->sizes, va, &size));
    write_event(self(d), TIDE__ACTION_SEGMENT_FREE, va, size);
    return self(d)->sim->ops->raw_free(self(d)->sim, gpu, va);
}

static tide_status rec_map(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk) {
    write_event(self(d), TIDE__ACTION_SEGMENT_MAP, va, size);
    return self(d)->sim->ops->map(self(d)->sim, gpu, va, size, chunk);
}

static tide_status rec_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    write_event(self(d), TIDE__ACTION_SEGMENT_UNMAP, va, size);
    return self(d)->sim->ops->unmap(self(d)->sim, gpu, va, size);
}

static tide_status rec_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out) {
    return self(d)->sim->ops->chunk_create(self(d)->sim, gpu, size, out);
}

static tide_status rec_release(tide__device *d, int gpu, tide__chunk_handle chunk) {
    return self(d)->sim->ops->chunk_release(self(d)->sim, gpu, chunk);
}

static tide_status rec_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    return self(d)->sim->ops->set_access(self(d)->sim, gpu, va, size);
}

static tide_status rec_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                               uint64_t *va) {
    return self(d)->sim->ops->reserve(self(d)->sim, gpu, size, align, hint, va);
}

static tide_status rec_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    return self(d)->sim->ops->unreserve(self(d)->sim, gpu, va, size);
}

static recorder *recorder_new(void) {
    recorder *r = calloc(1, sizeof *r);
    r->events = calloc(MAX_RECORDED, sizeof *r->events);
    r->base.ops = &r->ops;
    r->ops.raw_alloc = rec_raw_alloc;
    r->ops.raw_free = rec_raw_free;
    r->ops.map = rec_map;
    r->ops.unmap = rec_unmap;
    r->ops.chunk_create = rec_create;
    r->ops.chunk_release = rec_release;
    r->ops.set_access = rec_set_access;
    r->ops.reserve = rec_reserve;
    r->ops.unreserve = rec_unreserve;
    assert_ok(tide__sim_open(&(tide__sim_options){0}, &r->sim));
    return r;
}

static void recorder_free(recorder *r) {
    r->sim->ops->close(r->sim);
    tide__map_free(&r->sizes);
    free(r->events);
    free(r);
}

/* ---- A random run ---- */

typedef struct live_block {
    tide__torch_block *block;
    uint64_t size;
} live_block;

static uint64_t some_size(void) {
    switch (rand() % 4) {
    case 0: return (uint64_t)rand() % (1 * MIB) + 1;
    case 1: return (uint64_t)rand() % (12 * MIB) + 1;
    case 2: return (uint64_t)(rand() % 8 + 1) * 10 * MIB;
    default: return (uint64_t)rand() % (150 * MIB) + 1;
    }
}

static void free_one(tide__torch_heap *h, recorder *r, live_block *live, size_t *count) {
    size_t i = (size_t)rand() % *count;
    tide__torch_block *b = live[i].block;
    r->stream = b->arena->stream;
    write_event(r, TIDE__ACTION_FREE_REQUESTED, b->node.addr, live[i].size);
    write_event(r, TIDE__ACTION_FREE_COMPLETED, b->node.addr, live[i].size);
    tide__torch_heap_free(h, b);
    live[i] = live[--*count];
}

/* Returns whether it ended in an out of memory. */
static bool run(tide__torch_heap *h, recorder *r, int steps) {
    live_block live[LIVE];
    size_t count = 0;
    for (int step = 0; step < steps; step++) {
        int what = rand() % 200;
        if (what == 0) {
            assert_ok(tide__torch_heap_release(h, 0));
        } else if (count < LIVE && what < 104) {
            live_block *l = &live[count];
            *l = (live_block){.size = some_size()};
            r->stream = (uint16_t)(rand() % 2);
            tide_status status = tide__torch_heap_alloc(h, l->size, r->stream, 0, &l->block);
            if (status == TIDE_LIMIT) {
                write_event(r, TIDE__ACTION_OOM, 0, l->size);
                return true;
            }
            assert_ok(status);
            write_event(r, TIDE__ACTION_ALLOC, l->block->node.addr, l->size);
            count++;
        } else if (count > 0) {
            free_one(h, r, live, &count);
        }
    }
    return false;
}

/* ---- Recorded, then replayed ---- */

typedef struct how {
    const tide__torch_backend *backend;
    const char *setting[2][2];
    uint64_t limit; /* of the recorded run */
} how;

static void prepare(hand_trace *t, const how *w) {
    for (size_t i = 0; i < 2; i++)
        if (w->setting[i][0] != NULL) trace_setting(t, w->setting[i][0], w->setting[i][1]);
}

static void replay(hand_trace *t, uint64_t limit, tide__replay_result *out) {
    tide__replay_options o = {.policies = 3, .device = "sim", .limit_bytes = limit};
    assert_ok(tide__replay(&t->trace, &t->gpu, &o, out));
}

static void record_and_replay(const how *w, unsigned seed) {
    recorder *r = recorder_new();
    hand_trace *t = trace_new();
    tide__torch_settings settings;
    tide__torch_heap heap;
    tide__replay_result free_run, limited;
    srand(seed);
    prepare(t, w);
    tide__torch_settings_read(&t->trace, &settings);
    assert_ok(tide__torch_heap_init(&heap, w->backend, &settings, &r->base, 4, 4));
    heap.limit = w->limit;
    bool oom = run(&heap, r, 6000);
    t->gpu.events = r->events;
    t->gpu.event_count = r->count;
    replay(t, 0, &free_run);
    replay(t, w->limit, &limited);
    if (free_run.recorded.mismatches != 0)
        print_error("seed %u: %llu of %llu differ, first event %llu of %zu\n", seed,
                    (unsigned long long)free_run.recorded.mismatches,
                    (unsigned long long)free_run.recorded.compared,
                    (unsigned long long)free_run.recorded.first_mismatch, r->count);
    assert_true(free_run.recorded.compared >= free_run.allocations);
    assert_int_equal(free_run.recorded.mismatches, 0);
    const tide__policy_result *p =
        &limited.policies[w->backend->expandable ? TIDE__POLICY_EXPANDABLE : TIDE__POLICY_NATIVE];
    assert_int_equal(p->oom.happened, oom);
    if (oom) assert_int_equal(p->oom.event, r->count - 1);
    assert_int_equal(p->peak_reserved, free_run.recorded.peak_reserved);
    tide__replay_result_free(&free_run);
    tide__replay_result_free(&limited);
    tide__torch_heap_fini(&heap);
    recorder_free(r);
    free(t);
}

static void record_many(const how *w) {
    for (unsigned seed = 1; seed <= 25; seed++) record_and_replay(w, seed);
}

static void test_native_without_limit(void **state) { record_many(&(how){.backend = &tide__torch_native}); }

static void test_native_retries_under_a_limit(void **state) {
    record_many(&(how){.backend = &tide__torch_native, .limit = 7 * GIB});
    record_many(&(how){.backend = &tide__torch_native, .limit = 5 * GIB});
}

static void test_native_with_oversize_blocks(void **state) {
    record_many(&(how){
        .backend = &tide__torch_native, .setting = {{"max_split_size", "41943040"}}, .limit = 7 * GIB});
    record_many(&(how){.backend = &tide__torch_native,
                       .setting = {{"max_split_size", "67108864"},
                                   {"PYTORCH_CUDA_ALLOC_CONF", "max_non_split_rounding_mb:40"}},
                       .limit = 6 * GIB});
}

static void test_native_with_garbage_collection(void **state) {
    record_many(&(how){.backend = &tide__torch_native,
                       .setting = {{"garbage_collection_threshold", "0.6"}},
                       .limit = 8 * GIB});
}

static void test_native_with_rounded_powers_of_two(void **state) {
    record_many(&(how){.backend = &tide__torch_native,
                       .setting = {{"roundup_power2_divisions", "1:4,2:4,4:4,8:8,16:8,32:2,64:2,128:1"}},
                       .limit = 7 * GIB});
}

static void test_expandable_without_limit(void **state) {
    record_many(&(how){.backend = &tide__torch_expandable});
}

static void test_expandable_retries_under_a_limit(void **state) {
    record_many(&(how){.backend = &tide__torch_expandable, .limit = 6 * GIB});
}

static void test_expandable_with_pages_of_another_size(void **state) {
    record_many(
        &(how){.backend = &tide__torch_expandable,
               .setting = {{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,large_segment_size_mb:64"}},
               .limit = 6 * GIB});
    record_many(&(how){.backend = &tide__torch_expandable,
                       .setting = {{"PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:12"}},
                       .limit = 6 * GIB});
}

static void test_native_with_segments_of_another_size(void **state) {
    record_many(&(how){.backend = &tide__torch_native,
                       .setting = {{"PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:15"}},
                       .limit = 7 * GIB});
    record_many(&(how){
        .backend = &tide__torch_native,
        .setting = {{"PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:40"}, {"max_split_size", "67108864"}},
        .limit = 7 * GIB});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_without_limit),
        cmocka_unit_test(test_native_retries_under_a_limit),
        cmocka_unit_test(test_native_with_oversize_blocks),
        cmocka_unit_test(test_native_with_garbage_collection),
        cmocka_unit_test(test_native_with_rounded_powers_of_two),
        cmocka_unit_test(test_native_with_segments_of_another_size),
        cmocka_unit_test(test_expandable_without_limit),
        cmocka_unit_test(test_expandable_retries_under_a_limit),
        cmocka_unit_test(test_expandable_with_pages_of_another_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
