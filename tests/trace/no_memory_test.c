/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host runs out of memory at the first allocation, then at the second, until
 * a file is read with none failing. Each time: the right status and no leak. The
 * linker puts the functions below in front of the C library's (--wrap).
 */
#include <errno.h>

#include "trace/summary.h"
#include "trace_test.h"

static long countdown = -1; /* until the allocation that fails; negative: none does */
static long live;           /* allocations not freed */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
void __wrap_free(void *p);

static bool fails(void) {
    if (countdown < 0 || --countdown >= 0) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t n) {
    void *p = fails() ? NULL : __real_malloc(n);
    live += p != NULL;
    return p;
}
void *__wrap_calloc(size_t n, size_t size) {
    void *p = fails() ? NULL : __real_calloc(n, size);
    live += p != NULL;
    return p;
}
void *__wrap_realloc(void *old, size_t n) {
    void *p = fails() ? NULL : __real_realloc(old, n);
    live += p != NULL && old == NULL;
    return p;
}
char *__wrap_strdup(const char *s) {
    char *p = fails() ? NULL : __real_strdup(s);
    live += p != NULL;
    return p;
}
void __wrap_free(void *p) {
    live -= p != NULL;
    __real_free(p);
}

static tide_status read_and_summarize(const char *path) {
    tide__trace *t = NULL;
    tide_status status = tide__trace_read(path, NULL, NULL, &t);
    for (size_t i = 0; status == TIDE_OK && i < t->gpu_count; i++) {
        tide__gpu_summary s;
        status = tide__gpu_summarize(&t->gpus[i], &s);
        tide__gpu_summary_free(&s);
    }
    tide__trace_free(t);
    return status;
}

/* Shrinking an array is the one allocation that may fail unnoticed. */
static void fail_each(const char *file) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", FIXTURES, file);
    long before = live;
    for (long k = 0;; k++) {
        countdown = k;
        tide_status status = read_and_summarize(path);
        bool failed = countdown < 0;
        countdown = -1;
        assert_int_equal(live, before);
        if (!failed) {
            assert_int_equal(status, TIDE_OK);
            assert_true(k > 10);
            return;
        }
        if (status != TIDE_OK) {
            if (status != TIDE_NO_HOST_MEMORY) {
                fail_msg("%s, allocation %ld: %s", file, k, tide_last_error());
            }
            assert_non_null(strstr(tide_last_error(), "out of host memory"));
        }
    }
}

static void each_allocation(void **state) {
    static const char *const files[] = {"protocol2.pickle", "protocol5.pickle",       "shared.pickle",
                                        "old.pickle",       "whole.pickle.gz",        "whole.pickle.zst",
                                        "many.pickle.gz",   "strange-metadata.pickle"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        fail_each(files[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation)};
    return cmocka_run_group_tests_name("no memory", tests, NULL, NULL);
}
