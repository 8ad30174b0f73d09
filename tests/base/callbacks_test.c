/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks: in order, until enough is freed; gone when the removal has returned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/callbacks.h"

typedef struct visit {
    tide__callbacks *list;
    uint64_t frees, seen_bytes, id;
    int calls, removed_at;
    _Atomic(bool) entered, leave, removed;
} visit;

static uint64_t visited(void *user, int device, uint64_t bytes) {
    visit *v = user;
    (void)device;
    v->seen_bytes = bytes;
    v->calls++;
    return v->frees;
}

static void they_run_in_order_until_enough_is_freed(void **state) {
    (void)state;
    tide__callbacks list;
    visit v[3] = {{.frees = 10}, {.frees = 90}, {.frees = 1}};
    tide__callbacks_open(&list);
    assert_int_equal(tide__callbacks_run(&list, 0, 100), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tide__callbacks_add(&list, visited, &v[i], &v[i].id), TIDE_OK);
    }
    assert_int_equal(tide__callbacks_run(&list, 0, 100), 100);
    assert_int_equal(v[0].seen_bytes, 100);
    assert_int_equal(v[1].seen_bytes, 90);
    assert_int_equal(v[2].calls, 0);
    assert_int_equal(tide__callbacks_remove(&list, v[1].id), TIDE_OK);
    assert_int_equal(tide__callbacks_remove(&list, v[1].id), TIDE_BAD_HANDLE);
    assert_int_equal(tide__callbacks_run(&list, 0, 100), 11);
    assert_int_equal(v[1].calls, 1);
    tide__callbacks_close(&list);
}

static uint64_t removes_itself_and_runs_again(void *user, int device, uint64_t bytes) {
    visit *v = user;
    v->calls++;
    assert_int_equal(tide__callbacks_run(v->list, device, bytes), 0); /* nobody: it would have no end */
    assert_int_equal(tide__callbacks_remove(v->list, v->id), TIDE_OK);
    return 1;
}

static void one_may_remove_itself(void **state) {
    (void)state;
    tide__callbacks list;
    visit v = {.list = &list}, after = {.frees = 5};
    tide__callbacks_open(&list);
    assert_int_equal(tide__callbacks_add(&list, removes_itself_and_runs_again, &v, &v.id), TIDE_OK);
    assert_int_equal(tide__callbacks_add(&list, visited, &after, &after.id), TIDE_OK);
    assert_int_equal(tide__callbacks_run(&list, 0, 100), 6);
    assert_int_equal(tide__callbacks_run(&list, 0, 100), 5);
    assert_int_equal(v.calls, 1);
    assert_int_equal(list.count, 1);
    tide__callbacks_close(&list);
}

static uint64_t stays_inside(void *user, int device, uint64_t bytes) {
    visit *v = user;
    (void)device;
    (void)bytes;
    atomic_store(&v->entered, true);
    while (!atomic_load(&v->leave)) {
        usleep(1000);
    }
    return 0;
}

static void *run_all(void *user) {
    visit *v = user;
    tide__callbacks_run(v->list, 0, 1);
    return NULL;
}

static void *remove_one(void *user) {
    visit *v = user;
    tide__callbacks_remove(v->list, v->id);
    atomic_store(&v->removed, true);
    return NULL;
}

static void a_removal_waits_for_those_inside(void **state) {
    (void)state;
    tide__callbacks list;
    visit v = {.list = &list};
    pthread_t runner, remover;
    tide__callbacks_open(&list);
    assert_int_equal(tide__callbacks_add(&list, stays_inside, &v, &v.id), TIDE_OK);
    assert_int_equal(pthread_create(&runner, NULL, run_all, &v), 0);
    while (!atomic_load(&v.entered)) {
        usleep(1000);
    }
    assert_int_equal(pthread_create(&remover, NULL, remove_one, &v), 0);
    usleep(50000);
    assert_false(atomic_load(&v.removed));
    atomic_store(&v.leave, true);
    pthread_join(runner, NULL);
    pthread_join(remover, NULL);
    assert_true(atomic_load(&v.removed));
    assert_int_equal(list.count, 0);
    tide__callbacks_close(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_run_in_order_until_enough_is_freed),
        cmocka_unit_test(one_may_remove_itself),
        cmocka_unit_test(a_removal_waits_for_those_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
