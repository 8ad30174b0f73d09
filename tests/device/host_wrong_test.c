/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of wrong program is caught by the host device: told to a handler, else the end. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host_fixture.h"

static void unordered_writes_through_aliases_are_caught(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    tide__chunk_handle chunk;
    uint64_t va = new_block(f, GRANULE, &chunk), alias = new_alias(f, GRANULE, chunk), id;
    assert_ok(tide__host_fill(f->d, 0, a, va, 1, 1024));
    assert_ok(tide__host_fill(f->d, 0, b, alias + 1024, 2, 1024)); /* beside it: no conflict */
    assert_nothing_seen(f);
    assert_ok(tide__host_fill(f->d, 0, b, alias + 512, 3, 256));
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_int_equal(f->last.va, alias + 512);
    assert_int_equal(f->last.size, 256);
    assert_int_equal(f->last.earlier.va, va);
    assert_int_equal(f->last.later.va, alias + 512);
    assert_int_equal(f->last.later.chunk, chunk);
    assert_ok(f->d->ops->stream_id(f->d, 0, a, &id));
    assert_int_equal(f->last.earlier.stream_id, id);
    assert_non_null(strstr(f->last.text, "unordered"));
    assert_ok(tide__host_device_sync(f->d, 0));
}

static void unordered_reads_and_writes_are_caught(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    uint64_t va = new_block(f, GRANULE, NULL), to = new_block(f, GRANULE, NULL);
    tide__host_gate gate; /* so that the bytes are never touched at once: only the order is wrong */
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_fill(f->d, 0, a, va, 1, GRANULE));
    assert_ok(tide__host_device_sync(f->d, 0));
    assert_ok(tide__host_check(f->d, 0, a, va, 1, GRANULE));
    assert_ok(tide__host_check(f->d, 0, b, va, 1, GRANULE)); /* two reads are fine */
    assert_nothing_seen(f);
    assert_ok(tide__host_hold(f->d, 0, b, gate));
    assert_ok(tide__host_fill(f->d, 0, b, va, 1, 512)); /* after b's read, not after a's */
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_int_equal(f->last.size, 512);
    assert_ok(tide__host_copy(f->d, 0, a, to, va, 512)); /* reads what b writes */
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_ok(tide__host_stream_sync(f->d, 0, a));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_device_sync(f->d, 0));
}

static void an_unmap_under_queued_work_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__host_gate gate;
    uint64_t va = new_block(f, 2 * GRANULE, NULL);
    tide__host_result r;
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_fill(f->d, 0, s, va + 100, 1, 100));
    assert_ok(f->d->ops->unmap(f->d, 0, va, 2 * GRANULE));
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
    assert_non_null(strstr(f->last.text, "unmapped under queued work"));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_stream_sync(f->d, 0, s)); /* the work finds nothing there, and is skipped */
    assert_seen(f, TIDE__HOST_UNMAPPED_WORK, 1);
    tide__host_get_result(f->d, 0, &r);
    assert_int_equal(r.operations, 2);
}

typedef struct late_write {
    volatile uint8_t *at;
    _Atomic int started, go;
} late_write;

static void write_when_told(void *user) {
    late_write *w = user;
    *w->at = 1;
    atomic_store(&w->started, 1);
    while (!atomic_load(&w->go)) {
        usleep(100);
    }
    *w->at = 2;
}

static void *unmap_main(void *user) {
    fixture *f = user;
    return (void *)(intptr_t)f->d->ops->unmap(f->d, 0, f->last.va, GRANULE);
}

/* The bytes are being touched: the unmap is reported, then lets them finish. */
static void an_unmap_under_running_work_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    pthread_t thread;
    void *status;
    uint64_t va = new_block(f, GRANULE, NULL);
    late_write w = {.at = (volatile uint8_t *)va};
    tide__host_range range = {va, 1};
    assert_ok(tide__host_callback(f->d, 0, s, write_when_told, &w, NULL, 0, &range, 1));
    while (!atomic_load(&w.started)) {
        usleep(100);
    }
    f->last.va = va;
    assert_int_equal(pthread_create(&thread, NULL, unmap_main, f), 0);
    while (!seen(f, TIDE__HOST_UNMAP_BUSY)) {
        usleep(100);
    }
    atomic_store(&w.go, 1);
    pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, TIDE_OK);
    assert_ok(tide__host_stream_sync(f->d, 0, s));
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
}

static void an_unmap_by_luck_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__event before = new_event(f);
    uint64_t va = new_block(f, GRANULE, NULL);
    _Atomic int ran = 0;
    assert_ok(tide__host_fill(f->d, 0, s, va, 1, 512));
    assert_ok(f->d->ops->event_record(f->d, 0, before, s));
    assert_ok(tide__host_check(f->d, 0, s, va, 1, 512));
    assert_ok(tide__host_callback(f->d, 0, s, set_flag, &ran, NULL, 0, NULL, 0));
    while (!atomic_load(&ran)) {
        usleep(100); /* the check is done, but nothing of the device's has said so */
    }
    assert_ok(f->d->ops->event_wait(f->d, 0, before, UINT64_MAX)); /* the fill is known, the check is not */
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    assert_seen(f, TIDE__HOST_UNMAP_UNKNOWN, 1);
}

static void a_remap_under_queued_work_is_caught(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__host_gate gate;
    uint64_t va = new_block(f, GRANULE, NULL);
    tide__chunk_handle other = chunk_of(f->d, GRANULE);
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_fill(f->d, 0, s, va, 9, GRANULE));
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    map_at(f->d, va, GRANULE, other);
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_stream_sync(f->d, 0, s));
    assert_seen(f, TIDE__HOST_UNMAPPED_WORK, 1);
    assert_int_equal(*(volatile uint8_t *)va, 0); /* the other chunk's bytes are as they were */
}

static void reuse_of_released_bytes_is_caught(void **state) {
    fixture *f = *state;
    tide_stream a = new_stream(f), b = new_stream(f);
    tide__host_gate gate;
    tide__chunk_handle chunk, next;
    uint64_t va = new_block(f, GRANULE, &chunk);
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, a, gate));
    assert_ok(tide__host_fill(f->d, 0, a, va, 1, GRANULE));
    assert_ok(f->d->ops->chunk_release(f->d, 0, chunk)); /* allowed: the mapping holds the bytes */
    assert_nothing_seen(f);
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    assert_seen(f, TIDE__HOST_UNMAP_BUSY, 1);
    uint64_t fresh = new_block(f, GRANULE, &next); /* first fit: the same bytes, another handle */
    assert_int_not_equal(chunk, next);
    assert_ok(tide__host_fill(f->d, 0, b, fresh, 2, GRANULE));
    assert_seen(f, TIDE__HOST_UNORDERED, 1);
    assert_int_equal(f->last.earlier.chunk, chunk);
    assert_int_equal(f->last.later.chunk, next);
    assert_ok(tide__host_stream_sync(f->d, 0, b));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(tide__host_device_sync(f->d, 0));
    assert_seen(f, TIDE__HOST_UNMAPPED_WORK, 1);
    assert_int_equal(*(volatile uint8_t *)fresh, 2);
}

static void work_on_unmapped_addresses_is_refused(void **state) {
    fixture *f = *state;
    uint64_t va = reserve(f->d, 4 * GRANULE);
    tide__chunk_handle chunk = chunk_of(f->d, GRANULE);
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, 0, va, 1, 512));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 1);
    assert_ok(f->d->ops->map(f->d, 0, va, GRANULE, chunk)); /* and no set_access */
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, 0, va, 1, 512));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 1);
    assert_ok(f->d->ops->set_access(f->d, 0, va, GRANULE));
    assert_ok(tide__host_fill(f->d, 0, 0, va, 1, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, 0, va, 1, GRANULE + 1));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_copy(f->d, 0, 0, va, va + 2 * GRANULE, 8));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_check(f->d, 0, 0, UINT64_MAX - 8, 1, 100));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 3);
    assert_fails(TIDE_BAD_HANDLE, tide__host_fill(f->d, 0, 12345, va, 1, 8));
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 1, 0, va, 1, 8));
    assert_nothing_seen(f);
}

/* ---- Deaths: in a child, where nobody handles ---- */

static int child_status(void (*body)(tide__device *d)) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        tide__device *d = NULL;
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the next test */
        if (!freopen("/dev/null", "w", stderr) || tide__host_open(NULL, &d) != TIDE_OK) {
            _exit(0);
        }
        body(d);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void race(tide__device *d) {
    tide_stream a, b;
    uint64_t va;
    tide__chunk_handle chunk;
    d->ops->reserve(d, 0, GRANULE, 0, 0, &va);
    d->ops->chunk_create(d, 0, GRANULE, &chunk);
    d->ops->map(d, 0, va, GRANULE, chunk);
    d->ops->set_access(d, 0, va, GRANULE);
    d->ops->stream_create(d, 0, &a);
    d->ops->stream_create(d, 0, &b);
    tide__host_fill(d, 0, a, va, 1, 8);
    tide__host_delay(d, 0, b, 100 * MS);
    tide__host_fill(d, 0, b, va, 1, 8);
}

static void touch_after_unmap(tide__device *d) {
    uint64_t va;
    tide__chunk_handle chunk;
    d->ops->reserve(d, 0, GRANULE, 0, 0, &va);
    d->ops->chunk_create(d, 0, GRANULE, &chunk);
    d->ops->map(d, 0, va, GRANULE, chunk);
    d->ops->set_access(d, 0, va, GRANULE);
    *(volatile uint8_t *)va = 1;
    d->ops->unmap(d, 0, va, GRANULE);
    *(volatile uint8_t *)va = 2;
}

static void a_violation_aborts(void **state) {
    int status = child_status(race);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : WEXITSTATUS(status) != 0);
}

static void a_touch_after_unmap_is_a_fault(void **state) {
    int status = child_status(touch_after_unmap);
    assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_violation_aborts), /* children first: before this process has threads */
        cmocka_unit_test(a_touch_after_unmap_is_a_fault),
        TEST(unordered_writes_through_aliases_are_caught),
        TEST(unordered_reads_and_writes_are_caught),
        TEST(an_unmap_under_queued_work_is_caught),
        TEST(an_unmap_under_running_work_is_caught),
        TEST(an_unmap_by_luck_is_caught),
        TEST(a_remap_under_queued_work_is_caught),
        TEST(reuse_of_released_bytes_is_caught),
        TEST(work_on_unmapped_addresses_is_refused),
    };
    return cmocka_run_group_tests_name("host device: wrong programs", tests, NULL, NULL);
}
