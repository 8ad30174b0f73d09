/* SPDX-License-Identifier: Apache-2.0 */
/* Block records: numbers, cuts and joins, and records that are used again. */
#include "heap_test.h"

#include "heap/block.h"

static tide__block *take(tide__blocks *b, uint64_t va, uint64_t size) {
    assert_true(tide__blocks_reserve(b, 1));
    tide__block *block = tide__blocks_take(b);
    *block = (tide__block){.va = va, .size = size, .heap = 3, .stream = 7, .epoch = 11};
    tide__block_set(block, TIDE__FREE);
    return block;
}

static void records_and_numbers_lead_to_each_other(void **state) {
    (void)state;
    static tide__blocks b;
    enum { COUNT = 20000 }; /* several pages */
    static tide__block *taken[COUNT];
    assert_true(tide__blocks_reserve(&b, COUNT));
    for (size_t i = 0; i < COUNT; i++) {
        taken[i] = tide__blocks_take(&b);
        taken[i]->va = i;
        uint32_t number = tide__block_number(taken[i]);
        assert_int_not_equal(number, 0); /* 0 is no block */
        assert_ptr_equal(tide__block_at(&b, number), taken[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(taken[i]->va, i); /* records do not overlap */
    }
    size_t pages = b.page_count;
    for (size_t i = 0; i < COUNT; i++) {
        tide__blocks_give(&b, taken[i]);
        assert_int_equal(tide__state_of(taken[i]), TIDE__UNUSED);
    }
    assert_true(tide__blocks_reserve(&b, COUNT));
    assert_int_equal(b.page_count, pages); /* what was given back serves again */
    tide__blocks_close(&b);
}

static void a_cut_keeps_what_the_block_was(void **state) {
    (void)state;
    static tide__blocks b;
    tide__block *first = take(&b, 0x1000, 4096), *end = take(&b, 0x2000, 512);
    first->next = end;
    end->prev = first;
    first->marked = 1;
    assert_true(tide__blocks_reserve(&b, 1));
    tide__block *rest = tide__block_cut(&b, first, 1024);
    assert_int_equal(first->size, 1024);
    assert_int_equal(rest->va, 0x1400);
    assert_int_equal(rest->size, 3072);
    assert_int_equal(rest->stream, 7);
    assert_int_equal(rest->heap, 3);
    assert_int_equal(rest->epoch, 11);
    assert_int_equal(rest->marked, 0);
    assert_int_equal(tide__state_of(rest), TIDE__FREE);
    assert_true(first->next == rest && rest->prev == first && rest->next == end && end->prev == rest);
    tide__block_join(&b, first, rest);
    assert_int_equal(first->size, 4096);
    assert_true(first->next == end && end->prev == first);
    tide__block_join(&b, first, end);
    assert_int_equal(first->size, 4608);
    assert_null(first->next);
    tide__blocks_close(&b);
}

/* Cuts and joins at random: the row of blocks always covers the range, without gaps. */
static void any_cuts_and_joins_leave_the_range_whole(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        static tide__blocks b;
        uint64_t random = seed, count = 1;
        tide__block *first = take(&b, 0x100000, 1 << 20);
        for (int step = 0; step < 3000; step++) {
            tide__block *at = first;
            for (uint64_t skip = next_random(&random) % count; skip > 0; skip--) {
                at = at->next;
            }
            if (next_random(&random) % 2 == 0 && at->size > 512) {
                assert_true(tide__blocks_reserve(&b, 1));
                tide__block_cut(&b, at, (1 + next_random(&random) % (at->size / 512 - 1)) * 512);
                count++;
            } else if (at->next != NULL) {
                tide__block_join(&b, at, at->next);
                count--;
            }
        }
        uint64_t va = 0x100000, seen = 0;
        for (const tide__block *at = first, *before = NULL; at != NULL; before = at, at = at->next) {
            assert_int_equal(at->va, va);
            assert_ptr_equal(at->prev, before);
            va += at->size;
            seen++;
        }
        assert_int_equal(va, 0x100000 + (1 << 20));
        assert_int_equal(seen, count);
        tide__blocks_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_numbers_lead_to_each_other),
        cmocka_unit_test(a_cut_keeps_what_the_block_was),
        cmocka_unit_test(any_cuts_and_joins_leave_the_range_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
