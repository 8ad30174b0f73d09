/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of a real GPU. Two small ones ship with the project; the others are in
 * the folder that the variable PAGETIDE_TRACES names, and skipped without it.
 * The figures are what Python's pickle reads from the same files; the sum is one
 * over every field of every event, in order.
 */
#include <sys/resource.h>
#include <sys/wait.h>

#include "trace_test.h"

typedef struct recorded {
    const char *file;
    uint64_t sum;
    uint64_t alloc, requested, completed, seg_alloc, seg_free, seg_map, seg_unmap, oom;
    int protocol;
    size_t streams, segments, blocks, stacks, notes;
} recorded;

static const recorded shipped[] = {
#include "recorded_shipped.inc"
};
static const recorded large[] = {
#include "recorded_large.inc"
};

/* The same in make_recorded.py. */
static uint64_t sum_of(const tide__trace *t, const tide__trace_gpu *g) {
    uint64_t sum = 0;
    for (size_t i = 0; i < g->event_count; i++) {
        const tide__trace_event *e = &g->events[i];
        uint64_t fields[] = {e->addr,
                             e->size,
                             (uint64_t)e->time_us,
                             g->streams[e->stream],
                             e->action,
                             strlen(t->strings[e->phase]),
                             t->stack_start[e->stack + 1] - t->stack_start[e->stack]};
        for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) {
            sum = (sum ^ fields[k]) * UINT64_C(0x100000001b3);
        }
    }
    return sum;
}

static void check(const char *folder, const recorded *r) {
    char path[1024];
    tide__trace *t = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, r->file);
    if (tide__trace_read(path, NULL, NULL, &t) != TIDE_OK) {
        fail_msg("%s", tide_last_error());
    }
    const tide__trace_gpu *g = &t->gpus[0];
    uint64_t n[TIDE__ACTION_COUNT] = {0};
    for (size_t i = 0; i < g->event_count; i++) {
        n[g->events[i].action]++;
    }
    assert_int_equal(t->gpu_count, 1);
    assert_int_equal(n[TIDE__ACTION_ALLOC], r->alloc);
    assert_int_equal(n[TIDE__ACTION_FREE_REQUESTED], r->requested);
    assert_int_equal(n[TIDE__ACTION_FREE_COMPLETED], r->completed);
    assert_int_equal(n[TIDE__ACTION_SEGMENT_ALLOC], r->seg_alloc);
    assert_int_equal(n[TIDE__ACTION_SEGMENT_FREE], r->seg_free);
    assert_int_equal(n[TIDE__ACTION_SEGMENT_MAP], r->seg_map);
    assert_int_equal(n[TIDE__ACTION_SEGMENT_UNMAP], r->seg_unmap);
    assert_int_equal(n[TIDE__ACTION_OOM], r->oom);
    assert_int_equal(t->pickle_protocol, r->protocol);
    assert_int_equal(g->stream_count, r->streams);
    assert_int_equal(g->segment_count, r->segments);
    assert_int_equal(g->block_count, r->blocks);
    assert_int_equal(t->stack_count - 1, r->stacks);
    assert_int_equal(t->annotation_count, r->notes);
    assert_true(sum_of(t, g) == r->sum);
    tide__trace_free(t);
}

static void small(void **state) {
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        check(TIDE_TEST_DATA, &shipped[i]);
    }
}

static const char *traces(void) {
    const char *folder = getenv("PAGETIDE_TRACES");
    if (folder == NULL || folder[0] == 0) {
        print_message("%zu traces skipped: PAGETIDE_TRACES is not set\n", sizeof large / sizeof *large);
        skip();
    }
    return folder;
}

static void all(void **state) {
    const char *folder = traces();
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        check(folder, &large[i]);
    }
}

/* A reader in a process of its own needs less than three times the data. */
static void memory(void **state) {
    const char *folder = traces();
    for (size_t i = 0; i < sizeof large / sizeof *large && !SANITIZED; i++) {
        char path[1024];
        int ends[2], status;
        uint64_t data_bytes = 0;
        struct rusage usage;
        snprintf(path, sizeof path, "%s/%s", folder, large[i].file);
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) {
            tide__trace *t;
            bool ok = tide__trace_read(path, NULL, NULL, &t) == TIDE_OK &&
                      write(ends[1], &t->data_bytes, sizeof t->data_bytes) == sizeof t->data_bytes;
            _exit(ok ? 0 : 1);
        }
        close(ends[1]);
        assert_int_equal(read(ends[0], &data_bytes, sizeof data_bytes), sizeof data_bytes);
        close(ends[0]);
        assert_int_equal(wait4(child, &status, 0, &usage), child);
        assert_int_equal(status, 0);
        /* A process that reads nothing has some too. */
        assert_true((uint64_t)usage.ru_maxrss * 1024 < 3 * data_bytes + 4 * TIDE__MIB);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small),
        cmocka_unit_test(memory), /* before the test itself has needed much */
        cmocka_unit_test(all),
    };
    return cmocka_run_group_tests_name("recorded", tests, NULL, NULL);
}
