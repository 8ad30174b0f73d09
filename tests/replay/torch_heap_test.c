/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of PyTorch's two allocators, one by one, on a heap driven by hand;
 * and its invariants under random operations.
 */
#include "replay_test.h"

#include "replay/torch_heap.h"

typedef struct fixture {
    tide__torch_settings settings;
    tide__device *device;
    tide__torch_heap heap;
} fixture;

static void open_heap(fixture *f, const tide__torch_backend *backend, uint64_t capacity) {
    const tide__trace no_settings = {0};
    tide__torch_settings_read(&no_settings, &f->settings);
    tide__sim_options sim = {.capacity_bytes = capacity};
    assert_ok(tide__sim_open(&sim, &f->device));
    assert_ok(tide__torch_heap_init(&f->heap, backend, &f->settings, f->device, 2, 2));
}

static int set_up_native(void **state) {
    fixture *f = calloc(1, sizeof *f);
    open_heap(f, &tide__torch_native, 1 * GIB);
    *state = f;
    return 0;
}

static int set_up_expandable(void **state) {
    fixture *f = calloc(1, sizeof *f);
    open_heap(f, &tide__torch_expandable, 1 * GIB);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    tide__torch_heap_fini(&f->heap);
    f->device->ops->close(f->device);
    free(f);
    return 0;
}

static tide__torch_block *take(fixture *f, uint64_t size) {
    tide__torch_block *b = NULL;
    assert_ok(tide__torch_heap_alloc(&f->heap, size, 0, 0, &b));
    return b;
}

static uint64_t calls(fixture *f, tide__call call) {
    tide__device_counters c;
    f->device->ops->counters(f->device, 0, &c);
    return c.calls[call];
}

/* ---- Rounding and segments ---- */

static void test_sizes_round_to_512_bytes_and_segments_to_their_kind(void **state) {
    fixture *f = *state;
    assert_int_equal(tide__torch_round(&f->settings, 0), 512);
    assert_int_equal(tide__torch_round(&f->settings, 513), 1024);
    assert_int_equal(tide__torch_segment_size(&f->settings, 1 * MIB), 2 * MIB);
    assert_int_equal(tide__torch_segment_size(&f->settings, 1 * MIB + 512), 20 * MIB);
    assert_int_equal(tide__torch_segment_size(&f->settings, 10 * MIB - 512), 20 * MIB);
    assert_int_equal(tide__torch_segment_size(&f->settings, 10 * MIB), 10 * MIB);
    assert_int_equal(tide__torch_segment_size(&f->settings, 10 * MIB + 512), 12 * MIB);
}

static void test_small_and_large_blocks_do_not_share_segments(void **state) {
    fixture *f = *state;
    take(f, 1 * MIB);
    take(f, 1 * MIB); /* the rest of the same 2 MiB */
    assert_int_equal(f->heap.reserved, 2 * MIB);
    take(f, 1 * MIB + 1);
    assert_int_equal(f->heap.reserved, 22 * MIB);
    take(f, 512);
    assert_int_equal(f->heap.reserved, 24 * MIB);
}

/* ---- Splitting and merging ---- */

static void test_large_rest_of_more_than_1_mib_is_split_off(void **state) {
    fixture *f = *state;
    tide__torch_block *a = take(f, 19 * MIB); /* of 20: the rest is 1 MiB, kept */
    assert_int_equal(a->node.size, 20 * MIB);
    tide__torch_block *b = take(f, 8 * MIB); /* of 20: the rest is 12 MiB */
    assert_int_equal(b->node.size, 8 * MIB);
    assert_int_equal(take(f, 12 * MIB)->node.addr, b->node.addr + 8 * MIB);
    assert_int_equal(f->heap.reserved, 40 * MIB);
}

static void test_small_rest_is_split_off_from_512_bytes(void **state) {
    fixture *f = *state;
    tide__torch_block *a = take(f, 1 * MIB), *b = take(f, 1 * MIB - 512);
    assert_int_equal(b->node.addr, a->node.addr + 1 * MIB);
    assert_int_equal(b->node.size, 1 * MIB - 512);
    assert_int_equal(take(f, 512)->node.addr, b->node.addr + b->node.size);
}

static void test_freed_neighbours_become_one_block(void **state) {
    fixture *f = *state;
    tide__torch_block *a = take(f, 4 * MIB), *b = take(f, 4 * MIB), *c = take(f, 12 * MIB);
    uint64_t base = a->node.addr;
    assert_int_equal(f->heap.reserved, 20 * MIB);
    tide__torch_heap_free(&f->heap, a);
    tide__torch_heap_free(&f->heap, c);
    tide__torch_heap_free(&f->heap, b);
    tide__torch_block *all = take(f, 20 * MIB);
    assert_int_equal(all->node.addr, base);
    assert_true(tide__torch_is_whole(all));
}

static void test_best_fit_is_smallest_then_lowest(void **state) {
    fixture *f = *state;
    tide__torch_block *big = take(f, 40 * MIB), *first = take(f, 12 * MIB), *second = take(f, 12 * MIB);
    uint64_t lowest = tide__min(first->node.addr, second->node.addr);
    tide__torch_heap_free(&f->heap, big);
    tide__torch_heap_free(&f->heap, second);
    tide__torch_heap_free(&f->heap, first);
    assert_int_equal(take(f, 11 * MIB)->node.addr, lowest);
}

static void test_streams_and_pools_keep_their_blocks(void **state) {
    fixture *f = *state;
    tide__torch_block *b;
    tide__torch_heap_free(&f->heap, take(f, 12 * MIB));
    assert_ok(tide__torch_heap_alloc(&f->heap, 12 * MIB, 1, 0, &b));
    assert_ok(tide__torch_heap_alloc(&f->heap, 12 * MIB, 0, 1, &b));
    assert_int_equal(f->heap.reserved, 36 * MIB);
}

static void test_pending_block_is_neither_reused_nor_merged(void **state) {
    fixture *f = *state;
    tide__torch_block *a = take(f, 4 * MIB), *b = take(f, 16 * MIB);
    tide__torch_heap_free_requested(&f->heap, a);
    tide__torch_heap_free(&f->heap, b);
    take(f, 20 * MIB);
    assert_int_equal(f->heap.reserved, 40 * MIB);
    tide__torch_heap_free(&f->heap, a);
    assert_true(a->used == 0 && tide__torch_is_whole(a));
}

/* ---- Giving back and running out ---- */

static void test_release_gives_back_whole_free_segments_only(void **state) {
    fixture *f = *state;
    tide__torch_block *whole = take(f, 30 * MIB), *part = take(f, 4 * MIB);
    take(f, 4 * MIB);
    tide__torch_heap_free(&f->heap, whole);
    tide__torch_heap_free(&f->heap, part);
    assert_int_equal(tide__torch_heap_releasable(&f->heap, 0), 1);
    assert_ok(tide__torch_heap_release(&f->heap, 0));
    assert_int_equal(f->heap.reserved, 20 * MIB);
    assert_int_equal(calls(f, TIDE__CALL_RAW_FREE), 1);
}

static void test_full_device_is_retried_after_a_release(void **state) {
    fixture *f = *state;
    tide__torch_heap_free(&f->heap, take(f, 600 * MIB));
    take(f, 700 * MIB);
    assert_int_equal(f->heap.reserved, 700 * MIB);
    assert_int_equal(f->heap.peak, 700 * MIB);
}

static void completed(void *user, uint32_t owner) { *(uint32_t *)user = owner; }

static void test_retry_completes_pending_blocks(void **state) {
    fixture *f = *state;
    uint32_t owner = 0;
    tide__torch_block *b = take(f, 600 * MIB);
    f->heap.forget = completed;
    f->heap.forget_user = &owner;
    b->owner = 7;
    tide__torch_heap_free_requested(&f->heap, b);
    take(f, 700 * MIB);
    assert_int_equal(owner, 7);
}

static void test_out_of_memory_leaves_what_is_used(void **state) {
    fixture *f = *state;
    tide__torch_block *b;
    take(f, 600 * MIB);
    assert_int_equal(tide__torch_heap_alloc(&f->heap, 600 * MIB, 0, 0, &b), TIDE_NO_DEVICE_MEMORY);
    f->heap.limit = 700 * MIB;
    assert_int_equal(tide__torch_heap_alloc(&f->heap, 200 * MIB, 0, 0, &b), TIDE_LIMIT);
    assert_true(tide__torch_heap_would_retry(&f->heap, 200 * MIB, 0, 0));
    assert_false(tide__torch_heap_would_retry(&f->heap, 100 * MIB, 0, 0));
    take(f, 100 * MIB);
    assert_int_equal(f->heap.reserved, 700 * MIB);
}

/* ---- Settings ---- */

static void test_oversize_blocks_are_not_split_nor_given_to_small_requests(void **state) {
    fixture *f = *state;
    f->settings.max_split_size = 32 * MIB;
    tide__torch_heap_free(&f->heap, take(f, 64 * MIB));
    take(f, 12 * MIB); /* may not take from the 64 */
    assert_int_equal(f->heap.reserved, 76 * MIB);
    tide__torch_block *b = take(f, 50 * MIB); /* within 20 MiB of 64: takes it whole */
    assert_int_equal(b->node.size, 64 * MIB);
    tide__torch_heap_free(&f->heap, b);
    take(f, 40 * MIB); /* 64 is too far above */
    assert_int_equal(f->heap.reserved, 116 * MIB);
}

static void test_oversize_blocks_are_given_back_one_by_one_to_make_room(void **state) {
    fixture *f = *state;
    f->settings.max_split_size = 32 * MIB;
    f->heap.limit = 300 * MIB;
    tide__torch_block *a = take(f, 40 * MIB), *b = take(f, 100 * MIB), *c = take(f, 150 * MIB);
    tide__torch_heap_free(&f->heap, a);
    tide__torch_heap_free(&f->heap, b);
    tide__torch_heap_free(&f->heap, c);
    take(f, 60 * MIB); /* the smallest that is enough goes: 100 */
    assert_int_equal(f->heap.reserved, 250 * MIB);
    take(f, 180 * MIB); /* none is enough: from the largest down, 150 then 40 */
    assert_int_equal(f->heap.reserved, 240 * MIB);
}

static void test_roundup_divides_the_space_between_powers_of_two(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < TIDE__TORCH_ROUNDUP_INTERVALS; i++) f->settings.roundup_divisions[i] = 4;
    assert_int_equal(tide__torch_round(&f->settings, 1200 * KIB), 1280 * KIB);
    assert_int_equal(tide__torch_round(&f->settings, 2 * MIB), 2 * MIB);
    assert_int_equal(tide__torch_round(&f->settings, 7 * MIB + 1), 8 * MIB);
    assert_int_equal(tide__torch_round(&f->settings, 2048), 2048); /* too small to divide */
    assert_int_equal(tide__torch_round(&f->settings, 2049), 2560);
}

static void test_garbage_collection_frees_what_was_unused_longest(void **state) {
    fixture *f = *state;
    f->settings.gc_threshold = 0.5;
    f->heap.limit = 200 * MIB;
    tide__torch_block *old = take(f, 60 * MIB), *young = take(f, 80 * MIB);
    tide__torch_heap_free(&f->heap, old);
    for (int i = 0; i < 10; i++) take(f, 512);
    tide__torch_heap_free(&f->heap, young);
    for (int i = 0; i < 3; i++)
        tide__torch_heap_free(&f->heap, take(f, 70 * MIB)); /* young's place, old ages */
    take(f, 90 * MIB); /* a miss over 100 MiB: only what is at least of average age goes */
    assert_int_equal(f->heap.reserved, 2 * MIB + 80 * MIB + 90 * MIB);
}

static void test_collection_can_be_told_by_how_many_segments_went(void **state) {
    fixture *f = *state;
    uint64_t freed;
    tide__torch_block *old = take(f, 60 * MIB), *young = take(f, 80 * MIB);
    tide__torch_heap_free(&f->heap, old);
    take(f, 90 * MIB);
    take(f, 90 * MIB);
    tide__torch_heap_free(&f->heap, young);
    assert_ok(tide__torch_heap_collect(&f->heap, 1, &freed));
    assert_int_equal(freed, 1);
    assert_int_equal(f->heap.reserved, 260 * MIB);
}

/* ---- Expandable ---- */

static void test_expandable_maps_pages_as_it_grows(void **state) {
    fixture *f = *state;
    tide__torch_block *a = take(f, 30 * MIB), *b = take(f, 30 * MIB);
    assert_int_equal(f->heap.reserved, 60 * MIB);
    assert_int_equal(b->node.addr, a->node.addr + 30 * MIB);
    take(f, 512);
    assert_int_equal(f->heap.reserved, 62 * MIB);
    assert_int_equal(calls(f, TIDE__CALL_CHUNK_CREATE), 4);
    assert_int_equal(calls(f, TIDE__CALL_RESERVE), 2);
}

static void test_expandable_release_unmaps_whole_pages_inside_free_blocks(void **state) {
    fixture *f = *state;
    take(f, 5 * MIB);
    tide__torch_block *hole = take(f, 60 * MIB);
    take(f, 5 * MIB);
    uint64_t base = hole->segment->base;
    assert_int_equal(f->heap.reserved, 80 * MIB);
    tide__torch_heap_free(&f->heap, hole); /* 5 to 65 MiB: pages 20 to 60 are whole */
    assert_ok(tide__torch_heap_release(&f->heap, 0));
    assert_int_equal(f->heap.reserved, 40 * MIB);
    assert_int_equal(take(f, 15 * MIB)->node.addr, base + 5 * MIB);
    /* 30 MiB: the hole's pages are mapped again before the end grows. */
    assert_int_equal(take(f, 30 * MIB)->node.addr, base + 20 * MIB);
    assert_int_equal(f->heap.reserved, 80 * MIB);
}

static void test_expandable_joins_a_free_end_with_new_pages(void **state) {
    fixture *f = *state;
    take(f, 5 * MIB);
    tide__torch_block *b = take(f, 25 * MIB); /* 15 free, 10 of the next page */
    assert_int_equal(b->node.addr, b->segment->base + 5 * MIB);
    assert_int_equal(f->heap.reserved, 40 * MIB);
}

static void test_expandable_prefers_the_block_that_can_grow_least(void **state) {
    fixture *f = *state;
    take(f, 5 * MIB);
    tide__torch_block *hole = take(f, 12 * MIB);
    take(f, 13 * MIB); /* 30 of 40 MiB: the end is 10 MiB that could grow */
    tide__torch_heap_free(&f->heap, hole);
    assert_int_equal(take(f, 8 * MIB)->node.addr, hole->segment->base + 5 * MIB);
}

static void test_expandable_segment_without_pages_is_gone(void **state) {
    fixture *f = *state;
    tide__torch_heap_free(&f->heap, take(f, 60 * MIB));
    assert_ok(tide__torch_heap_release(&f->heap, 0));
    assert_int_equal(f->heap.reserved, 0);
    assert_null(f->heap.segments);
    take(f, 60 * MIB); /* in a new one, of the addresses that the device had reserved */
    assert_int_equal(calls(f, TIDE__CALL_RESERVE), 1);
}

static void test_expandable_failed_map_is_retried_after_a_release(void **state) {
    fixture *f = *state;
    tide__torch_block *b;
    tide__torch_heap_free(&f->heap, take(f, 600 * MIB));
    assert_ok(tide__torch_heap_alloc(&f->heap, 700 * MIB, 1, 0, &b));
    assert_int_equal(f->heap.reserved, 700 * MIB);
    assert_int_equal(tide__torch_heap_alloc(&f->heap, 700 * MIB, 0, 0, &b), TIDE_NO_DEVICE_MEMORY);
}

/* ---- Invariants under random operations ---- */

/* Walks a block's segment: contiguous, no two free neighbours of a kind. Bytes with pages. */
static void check_segment(const tide__torch_block *b) {
    uint64_t bytes = 0;
    while (b->prev != NULL) b = b->prev;
    assert_int_equal(b->node.addr, b->segment->base);
    for (; b != NULL; b = b->next) {
        bytes += b->node.size;
        if (b->next == NULL) break;
        assert_int_equal(b->node.addr + b->node.size, b->next->node.addr);
        assert_ptr_equal(b->next->prev, b);
        assert_false(!b->used && !b->next->used && b->mapped == b->next->mapped);
    }
    assert_int_equal(bytes, b->segment->size);
}

static uint64_t some_size(void) {
    switch (rand() % 3) {
    case 0: return (uint64_t)rand() % (1 * MIB) + 1;
    case 1: return (uint64_t)rand() % (12 * MIB) + 1;
    default: return (uint64_t)rand() % (100 * MIB) + 1;
    }
}

static void play_randomly(fixture *f, unsigned seed) {
    tide__torch_block *live[200];
    size_t count = 0;
    srand(seed);
    for (int step = 0; step < 4000; step++) {
        int what = rand() % 100;
        if (what == 0) {
            assert_ok(tide__torch_heap_release(&f->heap, 0));
        } else if (count < 200 && what < 52) {
            tide_status status =
                tide__torch_heap_alloc(&f->heap, some_size(), (uint16_t)(rand() % 2), 0, &live[count]);
            count += status == TIDE_OK;
            assert_true(status == TIDE_OK || status == TIDE_NO_DEVICE_MEMORY);
        } else if (count > 0) {
            size_t i = (size_t)rand() % count;
            tide__torch_heap_free(&f->heap, live[i]);
            live[i] = live[--count];
        }
        if (count > 0) check_segment(live[(size_t)rand() % count]);
    }
    while (count > 0) tide__torch_heap_free(&f->heap, live[--count]);
    assert_ok(tide__torch_heap_release_cached(&f->heap));
    assert_int_equal(f->heap.reserved, 0);
    assert_null(f->heap.segments);
}

static void test_native_heap_keeps_its_invariants(void **state) {
    for (unsigned seed = 1; seed <= 10; seed++) play_randomly(*state, seed);
}

static void test_expandable_heap_keeps_its_invariants(void **state) {
    for (unsigned seed = 1; seed <= 10; seed++) play_randomly(*state, seed);
}

#define NATIVE(test) cmocka_unit_test_setup_teardown(test, set_up_native, tear_down)
#define EXPANDABLE(test) cmocka_unit_test_setup_teardown(test, set_up_expandable, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        NATIVE(test_sizes_round_to_512_bytes_and_segments_to_their_kind),
        NATIVE(test_small_and_large_blocks_do_not_share_segments),
        NATIVE(test_large_rest_of_more_than_1_mib_is_split_off),
        NATIVE(test_small_rest_is_split_off_from_512_bytes),
        NATIVE(test_freed_neighbours_become_one_block),
        NATIVE(test_best_fit_is_smallest_then_lowest),
        NATIVE(test_streams_and_pools_keep_their_blocks),
        NATIVE(test_pending_block_is_neither_reused_nor_merged),
        NATIVE(test_release_gives_back_whole_free_segments_only),
        NATIVE(test_full_device_is_retried_after_a_release),
        NATIVE(test_retry_completes_pending_blocks),
        NATIVE(test_out_of_memory_leaves_what_is_used),
        NATIVE(test_oversize_blocks_are_not_split_nor_given_to_small_requests),
        NATIVE(test_oversize_blocks_are_given_back_one_by_one_to_make_room),
        NATIVE(test_roundup_divides_the_space_between_powers_of_two),
        NATIVE(test_garbage_collection_frees_what_was_unused_longest),
        NATIVE(test_collection_can_be_told_by_how_many_segments_went),
        NATIVE(test_native_heap_keeps_its_invariants),
        EXPANDABLE(test_expandable_maps_pages_as_it_grows),
        EXPANDABLE(test_expandable_release_unmaps_whole_pages_inside_free_blocks),
        EXPANDABLE(test_expandable_joins_a_free_end_with_new_pages),
        EXPANDABLE(test_expandable_prefers_the_block_that_can_grow_least),
        EXPANDABLE(test_expandable_segment_without_pages_is_gone),
        EXPANDABLE(test_expandable_failed_map_is_retried_after_a_release),
        EXPANDABLE(test_expandable_heap_keeps_its_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
