/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk records: what fails leaves them as they were. */
#include "heap_test.h"

#include "chunk/chunk.h"

typedef struct fixture {
    tide__device *d;
    tide__chunks c;
    uint64_t va;
} fixture;

static fixture open_fixture(uint64_t limit) {
    fixture f = {.d = open_sim(16 * GRANULE, 0)};
    tide__chunks_open(&f.c, f.d, 0, limit);
    assert_ok(f.d->ops->reserve(f.d, 0, 64 * GRANULE, 0, 0, &f.va));
    return f;
}

static void close_fixture(fixture *f) {
    tide__fault_disarm(f->d);
    tide__chunks_close(&f->c);
    assert_int_equal(used_bytes(f->d), 0);
    f->d->ops->close(f->d);
}

static uint32_t create(fixture *f, uint64_t size) {
    uint32_t chunk = 0;
    assert_ok(tide__chunks_create(&f->c, size, &chunk));
    assert_int_not_equal(chunk, 0);
    return chunk;
}

static void fail_next(fixture *f, tide__call call) {
    assert_ok(tide__fault_arm(f->d, call, 1, TIDE_DRIVER, false));
}

static void counts_follow_what_is_held(void **state) {
    (void)state;
    fixture f = open_fixture(0);
    uint32_t small = create(&f, GRANULE), large = create(&f, 4 * GRANULE);
    assert_int_equal(atomic_load(&f.c.reserved_bytes), 5 * GRANULE);
    assert_int_equal(f.c.held, 2);
    assert_int_equal(used_bytes(f.d), 5 * GRANULE);
    assert_ok(tide__chunks_release(&f.c, large));
    assert_int_equal(atomic_load(&f.c.reserved_bytes), GRANULE);
    assert_int_equal(atomic_load(&f.c.peak_reserved_bytes), 5 * GRANULE);
    assert_int_equal(create(&f, 2 * GRANULE), large); /* the record serves again */
    assert_ok(tide__chunks_release(&f.c, small));
    assert_int_equal(f.c.created, 3);
    assert_int_equal(f.c.released, 2);
    close_fixture(&f);
}

static void the_largest_spare_that_fits_is_found(void **state) {
    (void)state;
    fixture f = open_fixture(0);
    uint32_t one = create(&f, GRANULE), two = create(&f, 2 * GRANULE), four = create(&f, 4 * GRANULE);
    assert_int_equal(tide__chunks_find_spare(&f.c, UINT64_MAX), four);
    assert_int_equal(tide__chunks_find_spare(&f.c, 3 * GRANULE), two);
    assert_int_equal(tide__chunks_find_spare(&f.c, GRANULE - 1), 0);
    f.c.items[four].aliases = 1; /* an old mapping stands: not to be had */
    assert_int_equal(tide__chunks_find_spare(&f.c, UINT64_MAX), two);
    f.c.items[four].aliases = 0;
    assert_true(tide__chunks_unspare(&f.c, two));
    assert_false(tide__chunks_unspare(&f.c, two));
    assert_int_equal(tide__chunks_find_spare(&f.c, 3 * GRANULE), one);
    tide__chunks_set_spare(&f.c, two);
    assert_int_equal(tide__chunks_find_spare(&f.c, 3 * GRANULE), two);
    close_fixture(&f);
}

static void the_limit_is_never_passed(void **state) {
    (void)state;
    fixture f = open_fixture(4 * GRANULE);
    uint32_t chunk = 77;
    create(&f, 3 * GRANULE);
    assert_fails(TIDE_LIMIT, tide__chunks_create(&f.c, 2 * GRANULE, &chunk));
    assert_fails(TIDE_LIMIT, tide__chunks_create(&f.c, UINT64_MAX - GRANULE + 1, &chunk));
    assert_int_equal(chunk, 77);
    create(&f, GRANULE);
    assert_fails(TIDE_LIMIT, tide__chunks_create(&f.c, GRANULE, &chunk));
    close_fixture(&f);
    f = open_fixture(0);
    assert_fails(TIDE_NO_DEVICE_MEMORY, tide__chunks_create(&f.c, 17 * GRANULE, &chunk));
    assert_int_equal(f.c.held, 0);
    close_fixture(&f);
}

static void a_failed_create_changes_nothing(void **state) {
    (void)state;
    fixture f = open_fixture(0);
    uint32_t chunk = 77;
    fail_next(&f, TIDE__CALL_CHUNK_CREATE);
    assert_fails(TIDE_DRIVER, tide__chunks_create(&f.c, GRANULE, &chunk));
    assert_int_equal(chunk, 77);
    assert_int_equal(atomic_load(&f.c.reserved_bytes), 0);
    assert_int_equal(f.c.held + f.c.created, 0);
    assert_int_equal(create(&f, GRANULE), 1);
    close_fixture(&f);
}

static void a_failed_release_leaves_it_spare(void **state) {
    (void)state;
    fixture f = open_fixture(0);
    uint32_t chunk = create(&f, GRANULE);
    fail_next(&f, TIDE__CALL_CHUNK_RELEASE);
    assert_fails(TIDE_DRIVER, tide__chunks_release(&f.c, chunk));
    assert_int_equal(atomic_load(&f.c.reserved_bytes), GRANULE);
    assert_int_equal(tide__chunks_find_spare(&f.c, GRANULE), chunk);
    assert_ok(tide__chunks_release(&f.c, chunk));
    assert_int_equal(tide__chunks_find_spare(&f.c, UINT64_MAX), 0);
    close_fixture(&f);
}

static void a_failed_map_leaves_nothing_mapped(void **state) {
    (void)state;
    static const tide__call calls[] = {TIDE__CALL_MAP, TIDE__CALL_SET_ACCESS};
    for (size_t i = 0; i < 2; i++) {
        fixture f = open_fixture(0);
        uint32_t chunk = create(&f, GRANULE);
        bool stuck = true;
        fail_next(&f, calls[i]);
        assert_fails(TIDE_DRIVER, tide__chunks_map(&f.c, chunk, f.va, &stuck));
        assert_false(stuck);
        assert_ok(tide__chunks_map(&f.c, chunk, f.va, &stuck)); /* the address is free */
        assert_false(stuck);
        assert_ok(f.d->ops->unmap(f.d, 0, f.va, GRANULE));
        close_fixture(&f);
    }
}

static void a_map_that_cannot_be_undone_says_so(void **state) {
    (void)state;
    fixture f = open_fixture(0);
    uint32_t chunk = create(&f, GRANULE);
    bool stuck = false;
    assert_ok(tide__fault_arm(f.d, TIDE__CALL_SET_ACCESS, 1, TIDE_NO_HOST_MEMORY, false));
    fail_next(&f, TIDE__CALL_UNMAP);
    assert_fails(TIDE_NO_HOST_MEMORY,
                 tide__chunks_map(&f.c, chunk, f.va, &stuck)); /* the first failure is told */
    assert_non_null(strstr(tide_last_error(), "set_access"));
    assert_true(stuck);
    assert_ok(f.d->ops->unmap(f.d, 0, f.va, GRANULE));
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_follow_what_is_held),
        cmocka_unit_test(the_largest_spare_that_fits_is_found),
        cmocka_unit_test(the_limit_is_never_passed),
        cmocka_unit_test(a_failed_create_changes_nothing),
        cmocka_unit_test(a_failed_release_leaves_it_spare),
        cmocka_unit_test(a_failed_map_leaves_nothing_mapped),
        cmocka_unit_test(a_map_that_cannot_be_undone_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
