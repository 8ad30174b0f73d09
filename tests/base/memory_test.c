/* SPDX-License-Identifier: Apache-2.0 */
/* Growable arrays, arithmetic that notices overflow, and the map against a plain table. */
#include "base_test.h"

static void arrays_grow_and_keep_their_content(void **state) {
    (void)state;
    uint32_t *array = NULL;
    size_t capacity = 0, grown = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t before = capacity;
        assert_true(tide__grow((void **)&array, &capacity, i + 1, sizeof *array));
        assert_true(capacity > i);
        grown += capacity != before;
        array[i] = i * 3;
    }
    assert_true(grown < 20); /* by doubling */
    for (uint32_t i = 0; i < 100000; i++) {
        assert_int_equal(array[i], i * 3);
    }
    free(array);
}

static void growth_that_cannot_be_leaves_the_array(void **state) {
    (void)state;
    char *array = NULL;
    size_t capacity = 0;
    assert_true(tide__grow((void **)&array, &capacity, 10, 1));
    char *was = array;
    size_t had = capacity;
    assert_false(tide__grow((void **)&array, &capacity, SIZE_MAX, 1));
    assert_false(tide__grow((void **)&array, &capacity, SIZE_MAX / 2, 8)); /* the bytes overflow */
    assert_ptr_equal(array, was);
    assert_int_equal(capacity, had);
    free(array);
}

static void overflow_is_noticed(void **state) {
    (void)state;
    size_t out = 5;
    assert_true(tide__mul_size(3, 4, &out));
    assert_int_equal(out, 12);
    assert_false(tide__mul_size(SIZE_MAX / 2, 3, &out));
    assert_true(tide__add_size(SIZE_MAX - 1, 1, &out));
    assert_int_equal(out, SIZE_MAX);
    assert_false(tide__add_size(SIZE_MAX, 1, &out));
}

static void small_arithmetic(void **state) {
    (void)state;
    assert_int_equal(tide__align_up(0, 512), 0);
    assert_int_equal(tide__align_up(1, 512), 512);
    assert_int_equal(tide__align_up(512, 512), 512);
    assert_int_equal(tide__align_down(1023, 512), 512);
    assert_int_equal(tide__log2_floor(1), 0);
    assert_int_equal(tide__log2_floor(1023), 9);
    assert_int_equal(tide__log2_floor(UINT64_MAX), 63);
    assert_int_equal(tide__min(3, 4), 3);
    assert_int_equal(tide__max(3, 4), 4);
    assert_true(tide__monotonic_ns() <= tide__monotonic_ns());
}

static void an_empty_map_has_nothing(void **state) {
    (void)state;
    tide__map m = {0};
    uint64_t value;
    assert_false(tide__map_get(&m, 0, &value));
    assert_false(tide__map_take(&m, 0, &value));
    tide__map_free(&m);
    tide__map_free(&m);
}

static void any_key_will_do(void **state) {
    (void)state;
    static const uint64_t keys[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(0x100000000)};
    tide__map m = {0};
    uint64_t value;
    for (size_t i = 0; i < 5; i++) {
        assert_true(tide__map_put(&m, keys[i], i));
    }
    assert_true(tide__map_put(&m, 0, 77)); /* replaces */
    assert_int_equal(m.count, 5);
    assert_true(tide__map_get(&m, 0, &value));
    assert_int_equal(value, 77);
    for (size_t i = 1; i < 5; i++) {
        assert_true(tide__map_take(&m, keys[i], &value));
        assert_int_equal(value, i);
        assert_false(tide__map_take(&m, keys[i], NULL));
    }
    tide__map_free(&m);
}

#define KEYS 512

/* Keys that crowd together, so that clusters form, wrap and shrink. */
static void the_map_agrees_with_a_table(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t random = seed, value, present = 0;
        uint64_t key_of[KEYS], value_of[KEYS];
        bool there[KEYS] = {false};
        tide__map m = {0};
        for (size_t i = 0; i < KEYS; i++) {
            key_of[i] = seed % 2 == 0 ? i * UINT64_C(0x200000) : next_random(&random);
        }
        for (int step = 0; step < 20000; step++) {
            size_t i = next_random(&random) % KEYS;
            bool grow = (step / 2000) % 2 == 0; /* breathes in and out */
            if (next_random(&random) % 100 < (grow ? 70U : 30U)) {
                value_of[i] = next_random(&random);
                assert_true(tide__map_put(&m, key_of[i], value_of[i]));
                present += !there[i];
                there[i] = true;
            } else {
                assert_int_equal(tide__map_take(&m, key_of[i], &value), there[i]);
                assert_true(!there[i] || value == value_of[i]);
                present -= there[i];
                there[i] = false;
            }
            assert_int_equal(m.count, present);
            size_t k = next_random(&random) % KEYS;
            assert_int_equal(tide__map_get(&m, key_of[k], &value), there[k]);
            assert_true(!there[k] || value == value_of[k]);
        }
        for (size_t i = 0; i < KEYS; i++) {
            assert_int_equal(tide__map_get(&m, key_of[i], &value), there[i]);
        }
        tide__map_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_grow_and_keep_their_content),
        cmocka_unit_test(growth_that_cannot_be_leaves_the_array),
        cmocka_unit_test(overflow_is_noticed),
        cmocka_unit_test(small_arithmetic),
        cmocka_unit_test(an_empty_map_has_nothing),
        cmocka_unit_test(any_key_will_do),
        cmocka_unit_test(the_map_agrees_with_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
