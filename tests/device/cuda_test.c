/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cuda device does beyond the contract: the caller's context and capture
 * mode stay as they were, contexts are made where they are needed, results that
 * stick, a driver that shuts down, what a driver refuses chunks to be.
 */
#include <pthread.h>

#include "device/cuda_internal.h"
#include "device_test.h"
#include "standin/use.h"

typedef struct fixture {
    tide__device *d, *beneath;
    const standin_controls *driver;
    const tide__cuda_api *cuda; /* of the driver, as a caller has it who uses CUDA himself */
} fixture;

static fixture serve(int gpus) {
    fixture f = {.driver = standin_load()};
    assert_non_null(f.driver);
    assert_ok(tide__cuda_load(&f.cuda));
    assert_ok(tide__host_open(&(tide__host_options){.device_count = gpus}, &f.beneath));
    f.driver->serve(f.beneath);
    return f;
}

static fixture open_cuda(int gpus) {
    fixture f = serve(gpus);
    assert_ok(tide__cuda_open(&f.d));
    return f;
}

static void end(fixture *f) {
    standin_state s;
    if (f->d != NULL) {
        f->d->ops->close(f->d);
    }
    f->driver->get(&s);
    assert_string_equal(s.first_without, "");
    f->driver->serve(NULL);
    f->beneath->ops->close(f->beneath);
}

static int contexts(const fixture *f) {
    standin_state s;
    f->driver->get(&s);
    return s.contexts;
}

/* ---- Opening ---- */

static void a_missing_driver_is_a_clear_error(void **state) {
    (void)state;
    tide__device *d = NULL;
    assert_int_equal(setenv("PAGETIDE_LIBCUDA", "/nowhere/libcuda.so.1", 1), 0);
    assert_fails(TIDE_NO_DEVICE, tide__cuda_open(&d));
    assert_non_null(strstr(tide_last_error(), "/nowhere/libcuda.so.1"));
    assert_non_null(strstr(tide_last_error(), "PAGETIDE_DEVICE"));
    assert_int_equal(setenv("PAGETIDE_LIBCUDA", "libm.so.6", 1), 0);
    assert_fails(TIDE_NO_DEVICE, tide__cuda_open(&d));
    assert_non_null(strstr(tide_last_error(), "too old"));
    assert_null(d);
}

static void a_machine_without_gpus_is_a_clear_error(void **state) {
    (void)state;
    fixture f = serve(1);
    static const char *const calls[] = {"cuInit", "cuDeviceGetCount"};
    for (size_t i = 0; i < 2; i++) {
        f.driver->fail_call(calls[i], 1, 100, false);
        assert_fails(TIDE_NO_DEVICE, tide__cuda_open(&f.d));
        assert_non_null(strstr(tide_last_error(), "CUDA_ERROR_NO_DEVICE"));
        assert_null(f.d);
    }
    f.driver->set_attribute(TIDE__CU_ATTRIBUTE_VMM, 0);
    assert_fails(TIDE_UNSUPPORTED, tide__cuda_open(&f.d));
    assert_null(f.d);
    end(&f);
}

/* Whichever call fails: nothing is left, and the next time it opens. */
static void opening_may_fail_anywhere(void **state) {
    (void)state;
    uint64_t k = 1;
    for (;; k++) {
        fixture f = serve(2);
        standin_state s;
        f.driver->fail_call(NULL, k, 999, false);
        tide_status status = tide__cuda_open(&f.d);
        f.driver->get(&s);
        if (status != TIDE_OK) {
            assert_int_equal(s.injected, 1);
            assert_null(f.d);
            assert_true(strlen(tide_last_error()) > 0);
            f.driver->fail_call(NULL, 0, 0, false);
            assert_ok(tide__cuda_open(&f.d));
        }
        end(&f);
        if (s.injected == 0) {
            break;
        }
    }
    assert_true(k > 10);
}

/* ---- Contexts ---- */

static void only_gpus_that_are_used_get_a_context(void **state) {
    (void)state;
    fixture f = open_cuda(16);
    tide__chunk_handle chunk;
    assert_int_equal(f.d->ops->count(f.d), 16);
    assert_int_equal(contexts(&f), 0);
    assert_ok(f.d->ops->chunk_create(f.d, 7, GRANULE, &chunk));
    assert_ok(f.d->ops->chunk_release(f.d, 7, chunk));
    assert_int_equal(contexts(&f), 1);
    for (int gpu = 0; gpu < 16; gpu++) {
        tide__event event;
        assert_ok(f.d->ops->event_create(f.d, gpu, &event));
        assert_ok(f.d->ops->event_record(f.d, gpu, event, 0));
        assert_ok(f.d->ops->event_wait(f.d, gpu, event, UINT64_MAX));
        assert_ok(f.d->ops->event_destroy(f.d, gpu, event));
    }
    assert_int_equal(contexts(&f), 16);
    assert_fails(TIDE_INVALID_ARGUMENT, f.d->ops->chunk_create(f.d, 16, GRANULE, &chunk));
    f.d->ops->close(f.d);
    f.d = NULL;
    assert_int_equal(contexts(&f), 0);
    end(&f);
}

/* What the caller's thread has current, and its capture mode, whatever happens in the call. */
static void the_callers_thread_stays_as_it_was(void **state) {
    (void)state;
    fixture f = open_cuda(2);
    CUcontext mine, current;
    CUstreamCaptureMode mode = 1, other = 0;
    tide__chunk_handle chunk;
    uint64_t free_bytes, total_bytes;
    assert_int_equal(f.cuda->cuDevicePrimaryCtxRetain(&mine, 1001), 0);
    assert_int_equal(f.cuda->cuCtxPushCurrent_v2(mine), 0);
    assert_int_equal(f.cuda->cuThreadExchangeStreamCaptureMode(&mode), 0);
    for (int gpu = 0; gpu < 2; gpu++) {
        assert_ok(f.d->ops->mem_info(f.d, gpu, &free_bytes, &total_bytes));
        assert_ok(f.d->ops->chunk_create(f.d, gpu, GRANULE, &chunk));
        assert_ok(f.d->ops->chunk_release(f.d, gpu, chunk));
        assert_fails(TIDE_BAD_HANDLE, f.d->ops->chunk_release(f.d, gpu, chunk));
        assert_int_equal(f.cuda->cuCtxGetCurrent(&current), 0);
        assert_ptr_equal(current, mine);
    }
    static const char *const calls[] = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2",
                                        "cuThreadExchangeStreamCaptureMode", "cuMemCreate"};
    for (size_t i = 0; i < 4; i++) {
        f.driver->fail_call(calls[i], 1, 999, false);
        assert_fails(TIDE_DRIVER, f.d->ops->chunk_create(f.d, 0, GRANULE, &chunk));
        assert_int_equal(f.cuda->cuCtxGetCurrent(&current), 0);
        assert_ptr_equal(current, mine);
    }
    assert_int_equal(f.cuda->cuThreadExchangeStreamCaptureMode(&other),
                     0); /* gives back what the thread had */
    assert_int_equal(other, 1);
    assert_int_equal(f.cuda->cuCtxPopCurrent_v2(&current), 0);
    assert_ptr_equal(current, mine);
    assert_int_equal(f.cuda->cuDevicePrimaryCtxRelease_v2(1001), 0);
    end(&f);
}

typedef struct allocation_thread {
    fixture *f;
    int gpu, wrong;
} allocation_thread;

static void *allocate_without_a_context(void *user) {
    allocation_thread *t = user;
    const tide__device_ops *o = t->f->d->ops;
    tide__chunk_handle chunk;
    CUcontext current = NULL;
    for (int i = 0; i < 200; i++) {
        t->wrong += o->chunk_create(t->f->d, t->gpu, GRANULE, &chunk) != TIDE_OK;
        t->wrong += o->chunk_release(t->f->d, t->gpu, chunk) != TIDE_OK;
        t->wrong += t->f->cuda->cuCtxGetCurrent(&current) != 0 || current != NULL;
    }
    return NULL;
}

static void threads_share_one_context_a_gpu(void **state) {
    (void)state;
    fixture f = open_cuda(2);
    pthread_t threads[4];
    allocation_thread t[4];
    for (int i = 0; i < 4; i++) {
        t[i] = (allocation_thread){.f = &f, .gpu = i % 2};
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_without_a_context, &t[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(t[i].wrong, 0);
    }
    assert_int_equal(contexts(&f), 2);
    end(&f);
}

/* ---- Captures by others ---- */

/* All that the device may do while somebody captures. */
static void use_beside_a_capture(fixture *f, tide_stream other) {
    tide__event event;
    assert_ok(f->d->ops->event_create(f->d, 0, &event));
    uint64_t va = reserve(f->d, GRANULE);
    tide__chunk_handle chunk = chunk_of(f->d, GRANULE);
    map_at(f->d, va, GRANULE, chunk);
    assert_ok(f->d->ops->event_record(f->d, 0, event, other));
    assert_ok(f->d->ops->event_wait(f->d, 0, event, UINT64_MAX));
    assert_ok(f->d->ops->event_query(f->d, 0, event));
    assert_ok(f->d->ops->unmap(f->d, 0, va, GRANULE));
    assert_ok(f->d->ops->chunk_release(f->d, 0, chunk));
    assert_ok(f->d->ops->unreserve(f->d, 0, va, GRANULE));
    assert_ok(f->d->ops->event_destroy(f->d, 0, event));
}

/* In whichever mode, of a stream that synchronises with the legacy stream or not. */
static void a_capture_neither_forbids_a_call_nor_is_spoilt(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    tide_stream other, streams[2] = {standin_blocking_stream(0)};
    tide__event event;
    assert_ok(f.d->ops->stream_create(f.d, 0, &other));
    assert_ok(f.d->ops->stream_create(f.d, 0, &streams[1]));
    assert_ok(f.d->ops->event_create(f.d, 0, &event));
    for (int i = 0; i < 6; i++) {
        tide_stream stream = streams[i % 2];
        bool blocking = i % 2 == 0, refused = false;
        assert_int_equal(standin_begin_capture(0, stream, i / 2), TIDE__CU_OK);
        use_beside_a_capture(&f, other);
        assert_fails(TIDE_CAPTURING, f.d->ops->event_record(f.d, 0, event, stream));
        assert_fails(blocking ? TIDE_CAPTURING : TIDE_OK, f.d->ops->event_record(f.d, 0, event, 0));
        assert_fails(blocking ? TIDE_CAPTURING : TIDE_OK, f.d->ops->stream_wait_event(f.d, 0, 0, event));
        assert_ok(f.d->ops->stream_capturing(f.d, 0, 0, &refused));
        assert_int_equal(refused, blocking);
        assert_int_equal(standin_end_capture(0, stream), TIDE__CU_OK);
    }
    assert_int_equal(standin_spoilt_captures(), 0);
    assert_ok(f.d->ops->event_destroy(f.d, 0, event));
    assert_ok(f.d->ops->stream_destroy(f.d, 0, other));
    end(&f);
}

/* Found out beforehand where the legacy stream tells; else the driver refuses, and the capture
 * is spoilt: callers have to know. */
static void a_wait_for_the_device_and_a_capture(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    tide_stream stream, blocking = standin_blocking_stream(0);
    assert_ok(f.d->ops->stream_create(f.d, 0, &stream));
    assert_int_equal(standin_begin_capture(0, blocking, 0), TIDE__CU_OK);
    assert_fails(TIDE_CAPTURING, f.d->ops->device_wait(f.d, 0, UINT64_MAX));
    assert_int_equal(standin_end_capture(0, blocking), TIDE__CU_OK);
    assert_int_equal(standin_begin_capture(0, stream, 0), TIDE__CU_OK);
    assert_fails(TIDE_CAPTURING, f.d->ops->device_wait(f.d, 0, UINT64_MAX));
    assert_int_equal(standin_spoilt_captures(), 1);
    assert_int_equal(standin_end_capture(0, stream), 901);
    assert_ok(f.d->ops->device_wait(f.d, 0, UINT64_MAX));
    end(&f);
}

static void a_wait_for_the_device_is_for_all_its_streams(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    tide_stream streams[3] = {0, standin_blocking_stream(0)};
    assert_int_equal(f.cuda->cuCtxRecordEvent == NULL, getenv("STANDIN_NO_CTX_EVENT") != NULL);
    assert_ok(f.d->ops->stream_create(f.d, 0, &streams[2]));
    for (int i = 0; i < 3; i++) {
        tide__host_gate gate;
        assert_ok(tide__host_gate_create(f.beneath, 0, &gate));
        assert_ok(tide__host_hold(f.beneath, 0, streams[i], gate));
        assert_fails(TIDE_TIMEOUT, f.d->ops->device_wait(f.d, 0, 0));
        if (f.cuda->cuCtxRecordEvent != NULL) { /* without it a wait has no end but the work's */
            assert_fails(TIDE_TIMEOUT, f.d->ops->device_wait(f.d, 0, UINT64_C(1000000)));
        }
        assert_ok(tide__host_gate_open(f.beneath, 0, gate));
        assert_ok(f.d->ops->device_wait(f.d, 0, UINT64_MAX));
        assert_ok(f.d->ops->device_wait(f.d, 0, UINT64_C(1000000000)));
    }
    end(&f);
}

/* ---- Results ---- */

static void messages_name_the_call_and_its_arguments(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    tide__chunk_handle chunk;
    f.driver->fail_call("cuMemCreate", 1, TIDE__CU_OUT_OF_MEMORY, false);
    assert_fails(TIDE_NO_DEVICE_MEMORY, f.d->ops->chunk_create(f.d, 0, 20 * TIDE__MIB, &chunk));
    assert_non_null(strstr(tide_last_error(), "cuMemCreate(20 MiB) on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (2"));
    f.driver->fail_call("cuMemAddressReserve", 1, TIDE__CU_OUT_OF_MEMORY, false);
    uint64_t va;
    assert_fails(TIDE_NO_ADDRESSES, f.d->ops->reserve(f.d, 0, GRANULE, 0, 0, &va));
    end(&f);
}

static void an_error_that_sticks_is_the_last_call(void **state) {
    (void)state;
    static const int results[] = {TIDE__CU_ECC_UNCORRECTABLE,
                                  TIDE__CU_NVLINK_UNCORRECTABLE,
                                  TIDE__CU_CONTAINED,
                                  TIDE__CU_ILLEGAL_ADDRESS,
                                  TIDE__CU_LAUNCH_TIMEOUT,
                                  TIDE__CU_CONTEXT_IS_DESTROYED,
                                  TIDE__CU_ASSERT,
                                  TIDE__CU_HARDWARE_STACK,
                                  TIDE__CU_ILLEGAL_INSTRUCTION,
                                  TIDE__CU_MISALIGNED_ADDRESS,
                                  TIDE__CU_INVALID_ADDRESS_SPACE,
                                  TIDE__CU_INVALID_PC,
                                  TIDE__CU_LAUNCH_FAILED,
                                  TIDE__CU_TENSOR_MEMORY_LEAK,
                                  TIDE__CU_MPS_CLIENT_TERMINATED,
                                  TIDE__CU_EXTERNAL_DEVICE};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        fixture f = open_cuda(2);
        standin_state before, after;
        tide__chunk_handle chunk;
        uint64_t va, free_bytes, total_bytes;
        assert_ok(f.d->ops->mem_info(f.d, 0, &free_bytes, &total_bytes));
        f.driver->fail_call("cuMemCreate", 1, results[i], true);
        assert_fails(TIDE_DEVICE_LOST, f.d->ops->chunk_create(f.d, 0, GRANULE, &chunk));
        assert_int_equal(f.d->ops->health(f.d), TIDE__HEALTH_LOST);
        f.driver->get(&before);
        assert_fails(TIDE_DEVICE_LOST, f.d->ops->chunk_create(f.d, 1, GRANULE, &chunk));
        assert_fails(TIDE_DEVICE_LOST, f.d->ops->reserve(f.d, 0, GRANULE, 0, 0, &va));
        assert_fails(TIDE_DEVICE_LOST, f.d->ops->event_query(f.d, 0, 1));
        f.d->ops->close(f.d);
        f.d = NULL;
        f.driver->get(&after);
        assert_int_equal(after.calls, before.calls); /* the driver is left alone */
        end(&f);
    }
}

static void an_error_that_does_not_stick_is_the_calls_alone(void **state) {
    (void)state;
    static const int results[] = {
        1,   /* INVALID_VALUE */
        701, /* LAUNCH_OUT_OF_RESOURCES */
        703, /* LAUNCH_INCOMPATIBLE_TEXTURING */
        720, /* COOPERATIVE_LAUNCH_TOO_LARGE */
        802, /* SYSTEM_NOT_READY */
        901, /* STREAM_CAPTURE_INVALIDATED */
        999, /* UNKNOWN */
    };
    fixture f = open_cuda(1);
    tide__chunk_handle chunk = chunk_of(f.d, GRANULE);
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        f.driver->fail_call("cuMemRelease", 1, results[i], false);
        assert_int_not_equal(f.d->ops->chunk_release(f.d, 0, chunk), TIDE_OK);
        assert_int_equal(f.d->ops->health(f.d), TIDE__HEALTH_OK);
    }
    assert_ok(f.d->ops->chunk_release(f.d, 0, chunk));
    end(&f);
}

static void a_driver_that_has_shut_down_is_no_failure(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    tide__chunk_handle chunk = chunk_of(f.d, GRANULE);
    tide__event event;
    standin_state before, after;
    assert_ok(f.d->ops->event_create(f.d, 0, &event));
    f.driver->shut_down();
    assert_fails(TIDE_DEVICE_GONE, f.d->ops->chunk_release(f.d, 0, chunk));
    assert_int_equal(f.d->ops->health(f.d), TIDE__HEALTH_GONE);
    f.driver->get(&before);
    assert_fails(TIDE_DEVICE_GONE, f.d->ops->event_destroy(f.d, 0, event));
    f.d->ops->close(f.d);
    f.d = NULL;
    f.driver->get(&after);
    assert_int_equal(after.calls, before.calls);
    end(&f);
}

/* ---- What chunks are ---- */

static void plainer_chunks_where_the_driver_refuses_better_ones(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    standin_state before, after;
    tide__chunk_handle chunk;
    f.driver->fail_call("cuMemCreate", 1, TIDE__CU_NOT_SUPPORTED, false);
    assert_ok(f.d->ops->chunk_create(f.d, 0, GRANULE, &chunk)); /* without RDMA */
    assert_ok(f.d->ops->chunk_release(f.d, 0, chunk));
    f.driver->get(&before);
    assert_ok(f.d->ops->chunk_create(f.d, 0, GRANULE, &chunk)); /* remembered: one call */
    f.driver->get(&after);
    assert_ok(f.d->ops->chunk_release(f.d, 0, chunk));
    uint64_t one = after.calls - before.calls;
    f.driver->fail_call("cuMemCreate", 1, TIDE__CU_OUT_OF_MEMORY, false);
    f.driver->get(&before);
    assert_fails(TIDE_NO_DEVICE_MEMORY,
                 f.d->ops->chunk_create(f.d, 0, GRANULE, &chunk)); /* no reason for it */
    f.driver->get(&after);
    assert_int_equal(after.calls - before.calls, one);
    end(&f);
}

static void what_an_older_driver_does_not_know_the_device_has_not(void **state) {
    (void)state;
    fixture f = serve(1);
    tide__device_properties p;
    f.driver->set_attribute(TIDE__CU_ATTRIBUTE_FABRIC, -1);
    f.driver->set_attribute(TIDE__CU_ATTRIBUTE_NUMA_NODE, -1);
    f.driver->set_attribute(TIDE__CU_ATTRIBUTE_RDMA, 0);
    assert_ok(tide__cuda_open(&f.d));
    assert_ok(f.d->ops->properties(f.d, 0, &p));
    assert_false(p.fabric);
    assert_false(p.rdma);
    assert_true(p.exportable);
    assert_int_equal(p.numa_node, -1);
    end(&f);
}

static void the_per_thread_stream_is_refused_by_name(void **state) {
    (void)state;
    fixture f = open_cuda(1);
    uint64_t id;
    assert_fails(TIDE_UNSUPPORTED, f.d->ops->stream_id(f.d, 0, TIDE__CU_STREAM_PER_THREAD, &id));
    assert_non_null(strstr(tide_last_error(), "per-thread"));
    end(&f);
}

static void peers_are_given_access(void **state) {
    (void)state;
    fixture f = open_cuda(3);
    uint64_t va = reserve(f.d, GRANULE);
    tide__chunk_handle chunk = chunk_of(f.d, GRANULE);
    map_at(f.d, va, GRANULE, chunk);
    assert_false(tide__host_peer_reaches(f.beneath, 0, 2, va, GRANULE));
    assert_ok(f.d->ops->peer_enable(f.d, 0, 2));
    assert_ok(f.d->ops->set_access(f.d, 0, va, GRANULE));
    assert_true(tide__host_peer_reaches(f.beneath, 0, 2, va, GRANULE));
    assert_false(tide__host_peer_reaches(f.beneath, 0, 1, va, GRANULE));
    assert_ok(f.d->ops->unmap(f.d, 0, va, GRANULE));
    assert_ok(f.d->ops->chunk_release(f.d, 0, chunk));
    assert_ok(f.d->ops->unreserve(f.d, 0, va, GRANULE));
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_driver_is_a_clear_error), /* first: a driver once loaded stays */
        cmocka_unit_test(a_machine_without_gpus_is_a_clear_error),
        cmocka_unit_test(opening_may_fail_anywhere),
        cmocka_unit_test(only_gpus_that_are_used_get_a_context),
        cmocka_unit_test(the_callers_thread_stays_as_it_was),
        cmocka_unit_test(threads_share_one_context_a_gpu),
        cmocka_unit_test(a_capture_neither_forbids_a_call_nor_is_spoilt),
        cmocka_unit_test(a_wait_for_the_device_and_a_capture),
        cmocka_unit_test(a_wait_for_the_device_is_for_all_its_streams),
        cmocka_unit_test(messages_name_the_call_and_its_arguments),
        cmocka_unit_test(an_error_that_sticks_is_the_last_call),
        cmocka_unit_test(an_error_that_does_not_stick_is_the_calls_alone),
        cmocka_unit_test(a_driver_that_has_shut_down_is_no_failure),
        cmocka_unit_test(plainer_chunks_where_the_driver_refuses_better_ones),
        cmocka_unit_test(what_an_older_driver_does_not_know_the_device_has_not),
        cmocka_unit_test(the_per_thread_stream_is_refused_by_name),
        cmocka_unit_test(peers_are_given_access),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
