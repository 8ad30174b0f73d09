/* SPDX-License-Identifier: Apache-2.0 */
/* Extents and the registry that finds them by address. */
#include "heap_test.h"

#include "heap/space.h"

#define ENTRY (UINT64_C(1) << TIDE__REGISTRY_SHIFT)

static tide__extent *extent(uint64_t va, uint64_t size) {
    tide__extent *x = NULL;
    assert_ok(tide__extent_create(va, size, GRANULE, 512, &x));
    return x;
}

static void an_extent_knows_what_lies_where(void **state) {
    (void)state;
    tide__extent *x = extent(ENTRY, ENTRY);
    assert_int_equal(*tide__extent_chunk_slot(x, ENTRY), 0);
    *tide__extent_chunk_slot(x, ENTRY + GRANULE) = 5;
    assert_int_equal(*tide__extent_chunk_slot(x, ENTRY + 2 * GRANULE - 1), 5);
    assert_int_equal(*tide__extent_chunk_slot(x, ENTRY + 2 * GRANULE), 0);
    atomic_store(tide__extent_block_slot(x, ENTRY + 512), 9);
    assert_int_equal(atomic_load(tide__extent_block_slot(x, ENTRY)), 0);
    assert_int_equal(atomic_load(tide__extent_block_slot(x, ENTRY + 512)), 9);
    assert_int_equal(atomic_load(tide__extent_block_slot(x, 2 * ENTRY - 512)), 0); /* the last */
    assert_true(tide__extent_has(x, ENTRY) && tide__extent_has(x, 2 * ENTRY - 1));
    assert_false(tide__extent_has(x, ENTRY - 1) || tide__extent_has(x, 2 * ENTRY));
    tide__extent_destroy(x);
    tide__extent_destroy(NULL);
}

static void the_registry_finds_every_extent(void **state) {
    (void)state;
    static tide__registry r;
    /* whole entries, several, shared entries, and beyond what the table holds */
    const struct {
        uint64_t va, size;
    } ranges[] = {{16 * ENTRY, ENTRY},
                  {17 * ENTRY, 5 * ENTRY},
                  {30 * ENTRY, 4 * GRANULE},
                  {30 * ENTRY + 4 * GRANULE, 8 * GRANULE},
                  {30 * ENTRY + ENTRY / 2, ENTRY},
                  {(UINT64_C(1) << 48) - GRANULE, 2 * GRANULE},
                  {UINT64_C(1) << 52, ENTRY}};
    enum { COUNT = sizeof ranges / sizeof *ranges };
    tide__extent *x[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = extent(ranges[i].va, ranges[i].size);
        tide__registry_add(&r, x[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        assert_ptr_equal(tide__registry_find(&r, ranges[i].va), x[i]);
        assert_ptr_equal(tide__registry_find(&r, ranges[i].va + ranges[i].size / 2), x[i]);
        assert_ptr_equal(tide__registry_find(&r, ranges[i].va + ranges[i].size - 1), x[i]);
    }
    static const uint64_t nowhere[] = {
        0, 1, ENTRY, 16 * ENTRY - 1, 22 * ENTRY, 30 * ENTRY + 12 * GRANULE, UINT64_MAX};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        assert_null(tide__registry_find(&r, nowhere[i]));
    }
    for (size_t i = 0; i < COUNT; i++) {
        tide__registry_remove(&r, x[i]);
        assert_null(tide__registry_find(&r, ranges[i].va));
        for (size_t k = i + 1; k < COUNT; k++) {
            assert_ptr_equal(tide__registry_find(&r, ranges[k].va), x[k]);
        }
        tide__extent_destroy(x[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_extent_knows_what_lies_where),
        cmocka_unit_test(the_registry_finds_every_extent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
