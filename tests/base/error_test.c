/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last error: one a thread, with context before it, cut where its buffer ends. */
#include "base_test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void a_failure_sets_the_message_and_returns_its_status(void **state) {
    (void)state;
    assert_int_equal(tide__fail(TIDE_IO, "%s: number %d", "file", 7), TIDE_IO);
    assert_string_equal(tide_last_error(), "file: number 7");
    assert_int_equal(tide__fail(TIDE_LIMIT, "another"), TIDE_LIMIT);
    assert_string_equal(tide_last_error(), "another");
}

static void context_stands_before_the_message(void **state) {
    (void)state;
    tide__fail(TIDE_IO, "no such file");
    assert_int_equal(tide__fail_context(TIDE_IO, "reading %s", "trace"), TIDE_IO);
    assert_string_equal(tide_last_error(), "reading trace: no such file");
    assert_int_equal(tide__fail_context(TIDE_CORRUPT, "replay"), TIDE_CORRUPT);
    assert_string_equal(tide_last_error(), "replay: reading trace: no such file");
}

static void a_message_may_quote_the_last_one(void **state) {
    (void)state;
    tide__fail(TIDE_IO, "first");
    tide__fail(TIDE_IO, "second after %s and %s", tide_last_error(), tide_last_error());
    assert_string_equal(tide_last_error(), "second after first and first");
}

static void long_messages_are_cut(void **state) {
    (void)state;
    char text[10000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    tide__fail(TIDE_IO, "begin %s", text);
    size_t length = strlen(tide_last_error());
    assert_true(length > 200 && length < sizeof text);
    assert_memory_equal(tide_last_error(), "begin xxx", 9);
    tide__fail_context(TIDE_IO, "before");
    assert_memory_equal(tide_last_error(), "before: begin xxx", 17);
    assert_true(strlen(tide_last_error()) <= length);
    tide__fail_context(TIDE_IO, "%s", text); /* no room is left for what was there */
    assert_int_equal(tide_last_error()[0], 'x');
    assert_true(strlen(tide_last_error()) <= length);
}

static void *fail_on_a_thread(void *user) {
    snprintf(user, 64, "%s", tide_last_error());
    tide__fail(TIDE_DRIVER, "of the other thread");
    return NULL;
}

static void each_thread_has_its_own_message(void **state) {
    (void)state;
    char found[64] = "?";
    pthread_t thread;
    tide__fail(TIDE_IO, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, fail_on_a_thread, found), 0);
    pthread_join(thread, NULL);
    assert_string_equal(found, "");
    assert_string_equal(tide_last_error(), "of this thread");
}

static void statuses_have_names(void **state) {
    (void)state;
#define X(name, value, text)                                           \
    assert_string_equal(tide_status_name(TIDE_##name), "TIDE_" #name); \
    assert_int_equal(TIDE_##name, value);
    TIDE_STATUS_LIST(X)
#undef X
    assert_string_equal(tide_status_name((tide_status)-1000), "unknown status");
}

static void a_broken_invariant_ends_the_process(void **state) {
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(1);
        }
        TIDE__CHECK(1 + 1 == 3);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_sets_the_message_and_returns_its_status),
        cmocka_unit_test(context_stands_before_the_message),
        cmocka_unit_test(a_message_may_quote_the_last_one),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(each_thread_has_its_own_message),
        cmocka_unit_test(statuses_have_names),
        cmocka_unit_test(a_broken_invariant_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
