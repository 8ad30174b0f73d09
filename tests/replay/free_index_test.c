/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free index against a sorted array: every question, after every change.
 */
#include "replay_test.h"

#include "replay/free_index.h"

#define NODES 400

typedef struct reference {
    tide__free_node *sorted[NODES];
    size_t count;
} reference;

static bool below(const tide__free_node *n, uint64_t size, uint64_t addr) {
    return n->size != size ? n->size < size : n->addr < addr;
}

static size_t position(const reference *r, uint64_t size, uint64_t addr) {
    size_t i = 0;
    while (i < r->count && below(r->sorted[i], size, addr)) i++;
    return i;
}

static void reference_add(reference *r, tide__free_node *n) {
    size_t at = position(r, n->size, n->addr);
    memmove(&r->sorted[at + 1], &r->sorted[at], (r->count++ - at) * sizeof *r->sorted);
    r->sorted[at] = n;
}

static void reference_remove(reference *r, const tide__free_node *n) {
    size_t at = position(r, n->size, n->addr);
    assert_ptr_equal(r->sorted[at], n);
    memmove(&r->sorted[at], &r->sorted[at + 1], (--r->count - at) * sizeof *r->sorted);
}

static void compare(const tide__free_index *f, const reference *r, uint64_t size, uint64_t addr) {
    size_t at = position(r, size, addr);
    tide__free_node *found = tide__free_index_at_least(f, size, addr);
    assert_ptr_equal(found, at < r->count ? r->sorted[at] : NULL);
    assert_ptr_equal(tide__free_index_before(f, size, addr), at > 0 ? r->sorted[at - 1] : NULL);
    assert_ptr_equal(tide__free_index_last(f), r->count > 0 ? r->sorted[r->count - 1] : NULL);
    if (found != NULL)
        assert_ptr_equal(tide__free_index_next(f, found), at + 1 < r->count ? r->sorted[at + 1] : NULL);
}

static uint64_t random_size(void) {
    static const uint64_t common[] = {512, 1024, 2 * MIB, 20 * MIB, 21 * MIB + 512, GIB};
    if (rand() % 3 == 0) return common[rand() % 6];
    return ((uint64_t)rand() % 4096 + 1) << (9 + rand() % 24);
}

static void test_index_answers_as_a_sorted_array_does(void **state) {
    for (unsigned seed = 1; seed <= 20; seed++) {
        static tide__free_node nodes[NODES];
        tide__free_index f = {0};
        reference r = {0};
        bool in[NODES] = {0};
        srand(seed);
        for (int step = 0; step < 3000; step++) {
            size_t i = (size_t)rand() % NODES;
            if (in[i]) {
                tide__free_index_remove(&f, &nodes[i]);
                reference_remove(&r, &nodes[i]);
            } else {
                nodes[i] = (tide__free_node){.size = random_size(), .addr = i * 512};
                tide__free_index_add(&f, &nodes[i]);
                reference_add(&r, &nodes[i]);
            }
            in[i] = !in[i];
            compare(&f, &r, random_size(), (uint64_t)rand() % NODES * 512);
        }
    }
}

static void test_index_of_one_size_orders_by_address(void **state) {
    static tide__free_node nodes[NODES];
    tide__free_index f = {0};
    for (size_t i = 0; i < NODES; i++) {
        nodes[i] = (tide__free_node){.size = 2 * MIB, .addr = (i * 7 % NODES) * 512};
        tide__free_index_add(&f, &nodes[i]);
    }
    tide__free_node *n = tide__free_index_at_least(&f, 2 * MIB, 0);
    for (size_t i = 0; i < NODES; i++, n = tide__free_index_next(&f, n)) assert_int_equal(n->addr, i * 512);
    assert_null(n);
}

static void test_largest_sizes_of_a_trace_have_a_bin(void **state) {
    tide__free_node n = {.size = (UINT64_C(1) << 60) - 512};
    tide__free_index f = {0};
    tide__free_index_add(&f, &n);
    assert_ptr_equal(tide__free_index_at_least(&f, 512, 0), &n);
    tide__free_index_remove(&f, &n);
    assert_null(tide__free_index_last(&f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_answers_as_a_sorted_array_does),
        cmocka_unit_test(test_index_of_one_size_orders_by_address),
        cmocka_unit_test(test_largest_sizes_of_a_trace_have_a_bin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
