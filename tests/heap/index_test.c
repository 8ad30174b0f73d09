/* SPDX-License-Identifier: Apache-2.0 */
/* The index of free blocks against a plain list. */
#include "heap_test.h"

#include "heap/index.h"

#define BLOCKS 400

static uint64_t draw_size(uint64_t *random) {
    uint64_t bits = 9 + next_random(random) % 30;
    return ((UINT64_C(1) << bits) + next_random(random) % (UINT64_C(1) << bits)) / 512 * 512;
}

/* A block large enough is found whenever there is one; never one too small. */
static void check_find(const tide__index *x, const tide__block *blocks, const bool *in, uint64_t size) {
    const tide__block *found = tide__index_find(x, size);
    uint64_t tightest = UINT64_MAX;
    for (size_t i = 0; i < BLOCKS; i++) {
        if (in[i] && blocks[i].size >= size) {
            tightest = tide__min(tightest, blocks[i].size);
        }
    }
    assert_int_equal(found != NULL, tightest != UINT64_MAX);
    if (found != NULL) {
        assert_true(in[found - blocks]);
        assert_true(found->size >= size);
        /* Where a class is not crowded, the fit is the tightest of the first class that has one. */
        assert_true(found->size <= tightest + tightest / 8 + 512);
    }
}

static void check_walk(const tide__index *x, const tide__block *blocks, const bool *in, uint64_t size) {
    bool seen[BLOCKS] = {false};
    tide__index_cursor cursor;
    int row_before = INT32_MAX;
    for (tide__block *b = tide__index_first(x, &cursor, size); b != NULL;
         b = tide__index_next(x, &cursor, b)) {
        assert_true(in[b - blocks] && !seen[b - blocks]);
        seen[b - blocks] = true;
        assert_true(tide__log2_floor(b->size) <= row_before); /* the largest first */
        row_before = tide__log2_floor(b->size);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        assert_true(!in[i] || seen[i] || blocks[i].size < size); /* none of this size is left out */
    }
}

static void the_index_agrees_with_a_list(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        static tide__index x;
        static tide__block blocks[BLOCKS];
        bool in[BLOCKS] = {false};
        uint64_t random = seed, bytes = 0, count = 0;
        memset(&x, 0, sizeof x);
        memset(blocks, 0, sizeof blocks);
        for (int step = 0; step < 4000; step++) {
            size_t i = next_random(&random) % BLOCKS;
            if (in[i]) {
                tide__index_remove(&x, &blocks[i]);
                bytes -= blocks[i].size;
                count--;
            } else {
                blocks[i].size = draw_size(&random);
                blocks[i].va = i * 4096;
                tide__index_insert(&x, &blocks[i]);
                bytes += blocks[i].size;
                count++;
            }
            in[i] = !in[i];
            assert_int_equal(x.bytes, bytes);
            assert_int_equal(x.count, count);
            if (step % 10 == 0) {
                check_find(&x, blocks, in, draw_size(&random));
                check_find(&x, blocks, in, 512);
            }
            if (step % 200 == 0) {
                check_walk(&x, blocks, in, draw_size(&random));
                check_walk(&x, blocks, in, 512);
            }
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            if (in[i]) {
                tide__index_remove(&x, &blocks[i]);
            }
        }
        assert_int_equal(x.rows, 0);
        assert_null(tide__index_find(&x, 512));
    }
}

static void an_exact_fit_is_taken(void **state) {
    (void)state;
    static tide__index x;
    static tide__block blocks[3];
    static const uint64_t sizes[] = {GRANULE + 512, GRANULE, GRANULE + 1024};
    for (size_t i = 0; i < 3; i++) {
        blocks[i].size = sizes[i];
        tide__index_insert(&x, &blocks[i]);
    }
    assert_ptr_equal(tide__index_find(&x, GRANULE), &blocks[1]);
    assert_ptr_equal(tide__index_find(&x, GRANULE + 512), &blocks[0]);
    assert_ptr_equal(tide__index_find(&x, GRANULE + 1024), &blocks[2]);
    assert_null(tide__index_find(&x, GRANULE + 1536));
}

static void the_smallest_and_the_largest_sizes_work(void **state) {
    (void)state;
    static tide__index x;
    static tide__block small = {.size = 512}, large = {.size = UINT64_C(1) << 46},
                       beyond = {.size = UINT64_C(1) << 60};
    tide__index_insert(&x, &small);
    tide__index_insert(&x, &large);
    tide__index_insert(&x, &beyond);
    assert_ptr_equal(tide__index_find(&x, 512), &small);
    assert_ptr_equal(tide__index_find(&x, UINT64_C(1) << 45), &large);
    assert_ptr_equal(tide__index_find(&x, UINT64_C(1) << 50), &beyond);
    tide__index_remove(&x, &large);
    tide__index_remove(&x, &small);
    tide__index_remove(&x, &beyond);
    assert_int_equal(x.count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_agrees_with_a_list),
        cmocka_unit_test(an_exact_fit_is_taken),
        cmocka_unit_test(the_smallest_and_the_largest_sizes_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
