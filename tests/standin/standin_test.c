/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in refuses what the driver refuses while a stream is captured, and spoils what it spoils. */
#include <pthread.h>

#include "device/device_test.h"
#include "standin/use.h"

#define INVALIDATED 901

typedef struct fixture {
    tide__device *beneath;
    const standin_controls *driver;
    const tide__cuda_api *cuda; /* with a context current */
    CUstream blocking, other;
    CUevent event;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_non_null(f->driver = standin_load());
    assert_ok(tide__host_open(NULL, &f->beneath));
    f->driver->serve(f->beneath);
    assert_non_null(f->cuda = standin_enter(0));
    assert_int_equal(f->cuda->cuStreamCreate(&f->blocking, 0), 0);
    assert_int_equal(f->cuda->cuStreamCreate(&f->other, TIDE__CU_STREAM_NON_BLOCKING), 0);
    assert_int_equal(f->cuda->cuEventCreate(&f->event, 0), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    standin_leave(f->cuda, 0);
    f->driver->serve(NULL);
    f->beneath->ops->close(f->beneath);
    free(f);
    return 0;
}

static void begin(fixture *f, CUstream stream, CUstreamCaptureMode mode) {
    assert_int_equal(f->driver->begin_capture(stream, mode), 0);
}

/* The capture's end, and how many were spoilt since the beginning. */
static void end(fixture *f, CUstream stream, CUresult want, uint64_t spoilt) {
    CUgraph graph = NULL;
    assert_int_equal(f->driver->end_capture(stream, &graph), want);
    assert_int_equal(graph != NULL, want == 0);
    assert_int_equal(f->driver->destroy_graph(graph), 0);
    assert_int_equal(standin_spoilt_captures(), spoilt);
}

static void work_on_the_legacy_stream_spoils_a_blocking_streams_capture(void **state) {
    fixture *f = *state;
    for (int mode = 0; mode <= TIDE__CU_CAPTURE_RELAXED; mode++) {
        CUstreamCaptureStatus status = 0;
        uint64_t before = standin_spoilt_captures();
        begin(f, f->blocking, mode);
        assert_int_equal(f->cuda->cuStreamIsCapturing(NULL, &status), TIDE__CU_CAPTURE_IMPLICIT);
        assert_int_equal(f->cuda->cuStreamIsCapturing(f->blocking, &status), 0);
        assert_int_equal(status, 1);
        assert_int_equal(f->cuda->cuEventRecord(f->event, NULL), TIDE__CU_CAPTURE_IMPLICIT);
        assert_int_equal(f->cuda->cuStreamIsCapturing(f->blocking, &status), 0);
        assert_int_equal(status, 2);
        end(f, f->blocking, INVALIDATED, before + 1);
        begin(f, f->blocking, mode);
        assert_int_equal(f->cuda->cuStreamWaitEvent((CUstream)(uintptr_t)1, f->event, 0),
                         TIDE__CU_CAPTURE_IMPLICIT);
        end(f, f->blocking, INVALIDATED, before + 2);
    }
}

static void a_non_blocking_streams_capture_does_not_concern_the_legacy_stream(void **state) {
    fixture *f = *state;
    for (int mode = 0; mode <= TIDE__CU_CAPTURE_RELAXED; mode++) {
        CUstreamCaptureStatus status = 1;
        begin(f, f->other, mode);
        assert_int_equal(f->cuda->cuStreamIsCapturing(NULL, &status), 0);
        assert_int_equal(status, 0);
        assert_int_equal(f->cuda->cuEventRecord(f->event, NULL), 0);
        assert_int_equal(f->cuda->cuStreamWaitEvent(NULL, f->event, 0), 0);
        end(f, f->other, 0, 0);
    }
}

static void waits_for_a_context_spoil_its_captures(void **state) {
    fixture *f = *state;
    CUcontext context = NULL;
    CUstreamCaptureMode mode = TIDE__CU_CAPTURE_RELAXED;
    assert_int_equal(f->cuda->cuCtxGetCurrent(&context), 0);
    assert_int_equal(f->cuda->cuThreadExchangeStreamCaptureMode(&mode), 0);
    begin(f, f->other, mode);
    begin(f, f->blocking, 0);
    assert_int_equal(f->cuda->cuCtxSynchronize(), TIDE__CU_CAPTURE_UNSUPPORTED);
    assert_int_equal(f->cuda->cuCtxSynchronize(), TIDE__CU_CAPTURE_UNSUPPORTED);
    end(f, f->other, INVALIDATED, 2);
    end(f, f->blocking, INVALIDATED, 2);
    begin(f, f->other, 0);
    assert_int_equal(f->cuda->cuCtxRecordEvent(context, f->event), TIDE__CU_CAPTURE_UNSUPPORTED);
    end(f, f->other, INVALIDATED, 3);
    assert_int_equal(f->cuda->cuCtxRecordEvent(context, f->event), 0);
    assert_int_equal(f->cuda->cuCtxSynchronize(), 0);
    assert_int_equal(f->cuda->cuThreadExchangeStreamCaptureMode(&mode), 0);
}

static void what_a_capture_forbids_is_for_relaxed_threads_alone(void **state) {
    fixture *f = *state;
    CUdeviceptr va = 0;
    CUstreamCaptureMode mode = TIDE__CU_CAPTURE_RELAXED;
    begin(f, f->other, 0);
    assert_int_equal(f->cuda->cuThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(f->cuda->cuMemAlloc_v2(&va, GRANULE), 0);
    assert_int_equal(f->cuda->cuThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(f->cuda->cuMemFree_v2(va), TIDE__CU_CAPTURE_UNSUPPORTED);
    end(f, f->other, INVALIDATED, 1);
    assert_int_equal(f->cuda->cuMemFree_v2(va), 0);
}

static void *end_elsewhere(void *user) {
    fixture *f = user;
    CUgraph graph = NULL;
    static CUresult result;
    const tide__cuda_api *cuda = standin_enter(0);
    result = f->driver->end_capture(f->other, &graph);
    f->driver->destroy_graph(graph);
    standin_leave(cuda, 0);
    return &result;
}

static void a_capture_ends_in_the_thread_that_began_it(void **state) {
    fixture *f = *state;
    pthread_t thread;
    void *result = NULL;
    begin(f, f->other, 0);
    assert_int_equal(f->driver->begin_capture(f->other, 0), 401); /* captured already */
    assert_int_equal(f->driver->begin_capture(NULL, 0), TIDE__CU_CAPTURE_UNSUPPORTED);
    assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, f), 0);
    pthread_join(thread, &result);
    assert_int_equal(*(CUresult *)result, TIDE__CU_CAPTURE_WRONG_THREAD);
    end(f, f->other, 0, 0);
    begin(f, f->other, TIDE__CU_CAPTURE_RELAXED);
    assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, f), 0);
    pthread_join(thread, &result);
    assert_int_equal(*(CUresult *)result, 0);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(work_on_the_legacy_stream_spoils_a_blocking_streams_capture),
        TEST(a_non_blocking_streams_capture_does_not_concern_the_legacy_stream),
        TEST(waits_for_a_context_spoil_its_captures),
        TEST(what_a_capture_forbids_is_for_relaxed_threads_alone),
        TEST(a_capture_ends_in_the_thread_that_began_it),
    };
    return cmocka_run_group_tests_name("the stand-in", tests, NULL, NULL);
}
