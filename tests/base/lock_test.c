/* SPDX-License-Identifier: Apache-2.0 */
/* The lock: one holder at a time, nobody is left asleep. */
#include "base_test.h"

#include <pthread.h>
#include <unistd.h>

#include "base/lock.h"

#define THREADS 4
#define ROUNDS 50000

typedef struct counted {
    tide__lock lock;
    uint64_t count; /* plain: the lock alone guards it */
    bool slow;
} counted;

static void *count_up(void *user) {
    counted *c = user;
    for (int i = 0; i < (c->slow ? 200 : ROUNDS); i++) {
        tide__lock_take(&c->lock);
        c->count++;
        if (c->slow) {
            usleep(20); /* so that the others really sleep */
        }
        tide__lock_drop(&c->lock);
    }
    return NULL;
}

static void one_holder_at_a_time(void **state) {
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        counted c = {.slow = slow != 0};
        pthread_t threads[THREADS];
        tide__lock_init(&c.lock);
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, count_up, &c), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
        }
        assert_int_equal(c.count, (uint64_t)THREADS * (slow ? 200 : ROUNDS));
        assert_true(tide__lock_try(&c.lock)); /* it is free again */
    }
}

static void trying_never_waits(void **state) {
    (void)state;
    tide__lock lock;
    tide__lock_init(&lock);
    assert_true(tide__lock_try(&lock));
    assert_false(tide__lock_try(&lock));
    tide__lock_drop(&lock);
    assert_true(tide__lock_try(&lock));
    tide__lock_drop(&lock);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_holder_at_a_time),
        cmocka_unit_test(trying_never_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
