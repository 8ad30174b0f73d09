/* SPDX-License-Identifier: Apache-2.0 */
/* What info says of a trace: its numbers, and both of its forms. */
#include "trace/summary.h"

#include "report/info.h"
#include "trace_test.h"

static void wrapped_ring(void **state) {
    tide__trace *t = read_fixture("wrapped.pickle");
    tide__gpu_summary s;
    assert_int_equal(tide__gpu_summarize(&t->gpus[0], &s), TIDE_OK);
    /* Freed without an alloc: 100 and 9 bytes; live at the end without one: 500. */
    assert_int_equal(s.start_blocks, 3);
    assert_int_equal(s.start_bytes, 609);
    assert_int_equal(s.end_blocks, 2);
    assert_int_equal(s.end_bytes, 550);
    /* 609, less 100, and 50 and 70 more. */
    assert_int_equal(s.peak_live_bytes, 629);
    assert_int_equal(s.late_frees, 1);
    assert_int_equal(s.freed_twice, 0);
    assert_int_equal(s.allocated_twice, 0);
    assert_int_equal(s.policy, TIDE__RECORDED_NONE);
    assert_null(tide__recorded_policy_name(s.policy));
    tide__gpu_summary_free(&s);
    tide__trace_free(t);
}

static void counts(void **state) {
    tide__trace *t = read_fixture("protocol4.pickle");
    tide__gpu_summary s;
    assert_int_equal(tide__gpu_summarize(&t->gpus[0], &s), TIDE_OK);
    assert_int_equal(s.actions[TIDE__ACTION_ALLOC], 2);
    assert_int_equal(s.actions[TIDE__ACTION_OOM], 1);
    assert_int_equal(s.actions[TIDE__ACTION_OTHER], 1);
    assert_int_equal(s.last_us - s.first_us, 7);
    assert_int_equal(s.policy, TIDE__RECORDED_NATIVE);
    assert_int_equal(s.with_stack, 4);
    assert_int_equal(s.without_phase, 3);
    assert_int_equal(s.bucket_allocations[9], 1); /* 1000 */
    assert_int_equal(s.bucket_allocations[8], 1); /* 300 */
    assert_int_equal(s.bucket_bytes[9], 1000);
    assert_int_equal(s.phase_count, 3);
    assert_string_equal(t->strings[s.phases[0].phase], "init");
    assert_int_equal(s.phases[0].events, 2);
    assert_int_equal(s.phases[0].allocated_bytes, 1000);
    assert_string_equal(t->strings[s.phases[1].phase], "rollout");
    assert_int_equal(s.phases[1].events, 5); /* with the three that have no phase of their own */
    assert_int_equal(s.phases[1].allocations, 1);
    /* The block at the end that is waiting to be freed was there all along: 1 byte. */
    assert_int_equal(s.peak_live_bytes, 1301);
    assert_int_equal(s.phases[1].peak_live_bytes, 1301);
    assert_int_equal(s.phases[0].peak_live_bytes, 1001);
    tide__gpu_summary_free(&s);
    assert_int_equal(tide__gpu_summarize(&t->gpus[1], &s), TIDE_OK);
    assert_int_equal(s.policy, TIDE__RECORDED_EXPANDABLE);
    assert_int_equal(s.bucket_allocations[0], 1); /* of size 0 */
    assert_int_equal(s.bucket_allocations[33], 1);
    tide__gpu_summary_free(&s);
    assert_int_equal(tide__gpu_summarize(&t->gpus[2], &s), TIDE_OK);
    assert_int_equal(s.phase_count, 0);
    assert_int_equal(s.peak_live_bytes, 0);
    tide__gpu_summary_free(&s);
    tide__trace_free(t);
}

/* The largest sizes that the reader lets through, more of them than 64 bits hold. */
static void sums_do_not_overflow(void **state) {
    enum { N = 600 };
    static tide__trace_event events[N];
    uint64_t stream = 0;
    tide__trace_pool pool = {{0, 0}};
    for (size_t i = 0; i < N; i++) {
        events[i] =
            (tide__trace_event){.action = TIDE__ACTION_ALLOC, .addr = i * 512 + 1, .size = UINT64_C(1) << 56};
    }
    tide__trace_gpu gpu = {.events = events,
                           .event_count = N,
                           .streams = &stream,
                           .stream_count = 1,
                           .pools = &pool,
                           .pool_count = 1};
    tide__gpu_summary s;
    assert_int_equal(tide__gpu_summarize(&gpu, &s), TIDE_OK);
    assert_int_equal(s.peak_live_bytes, UINT64_MAX);
    assert_int_equal(s.bucket_bytes[56], UINT64_MAX);
    tide__gpu_summary_free(&s);
}

static void disorder(void **state) {
    static const tide__trace_event events[] = {
        {.action = TIDE__ACTION_ALLOC, .addr = 512, .size = 10},
        {.action = TIDE__ACTION_ALLOC, .addr = 512, .size = 20}, /* twice */
        {.action = TIDE__ACTION_FREE_COMPLETED, .addr = 512, .size = 20},
        {.action = TIDE__ACTION_FREE_COMPLETED, .addr = 512, .size = 20}, /* twice */
        {.action = TIDE__ACTION_SEGMENT_MAP},
        {.action = TIDE__ACTION_SEGMENT_ALLOC},
    };
    uint64_t stream = 0;
    tide__trace_pool pool = {{0, 0}};
    tide__trace_gpu gpu = {.events = (tide__trace_event *)events,
                           .event_count = sizeof events / sizeof *events,
                           .streams = &stream,
                           .stream_count = 1,
                           .pools = &pool,
                           .pool_count = 1};
    tide__gpu_summary s;
    assert_int_equal(tide__gpu_summarize(&gpu, &s), TIDE_OK);
    assert_int_equal(s.allocated_twice, 1);
    assert_int_equal(s.freed_twice, 1);
    assert_int_equal(s.start_blocks, 0);
    assert_int_equal(s.end_blocks, 0);
    assert_int_equal(s.end_bytes, 0);
    assert_int_equal(s.peak_live_bytes, 20);
    assert_int_equal(s.policy, TIDE__RECORDED_MIXED);
    tide__gpu_summary_free(&s);
}

/* ---- Both forms ---- */

static char *report(const char *fixture, const char *name, bool json) {
    tide__trace *t = read_fixture(fixture);
    tide__gpu_summary *gpus = calloc(t->gpu_count + 1, sizeof *gpus);
    assert_non_null(gpus);
    for (size_t i = 0; i < t->gpu_count; i++) {
        assert_int_equal(tide__gpu_summarize(&t->gpus[i], &gpus[i]), TIDE_OK);
    }
    tide__info info = {name, t, gpus};
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    if (json) {
        tide__report_info_json(&info, out);
    } else {
        tide__report_info_text(&info, out, 80);
    }
    fclose(out);
    for (size_t i = 0; i < t->gpu_count; i++) {
        tide__gpu_summary_free(&gpus[i]);
    }
    free(gpus);
    tide__trace_free(t);
    return text;
}

static void assert_has(const char *text, const char *part) {
    if (strstr(text, part) == NULL) {
        fail_msg("no '%s' in: %s", part, text);
    }
}

static void json(void **state) {
    char *text = report("protocol4.pickle", "a \"name\"\n\xff", true);
    assert_has(text, "{\"file\":\"a \\\"name\\\"\\n\\ufffd\",\"pickle_protocol\":4,\"compression\":\"none\"");
    assert_has(text, "\"settings\":{\"PYTORCH_CUDA_ALLOC_CONF\":\"\",\"expandable_segments\":\"True\"");
    assert_has(text, "{\"gpu\":0,\"events\":8,\"actions\":{\"alloc\":2,\"free_requested\":1");
    assert_has(text, "{\"phase\":\"rollout\",\"events\":5,\"allocations\":1,\"allocated_bytes\":300,"
                     "\"peak_live\":1301}");
    assert_has(text, "\"recorded_policy\":\"expandable\"");
    assert_has(text, "{\"id\":[1,2],\"events\":2,\"allocations\":1}");
    assert_has(text, "{\"from\":0,\"allocations\":1,\"bytes\":0}");
    assert_has(text, "\"missing\":[\"events: nothing was recorded for this GPU\"]");
    assert_true(strchr(text, '\n') == text + strlen(text) - 1); /* one line */
    free(text);
}

static void text(void **state) {
    char *text = report("protocol4.pickle", "name\x1b[31m", false);
    assert_has(text, "name?[31m\n");
    assert_has(text, "GPU 0: 8 events over 0.0 s from 2023-11-14 22:13:20 UTC, recorded policy native");
    assert_has(text, "GPU 2: 0 events");
    assert_has(text, "roundup_power2_divisions");
    assert_has(text, "(1, 2)");
    free(text);
    text = report("wrapped.pickle", "w", false);
    assert_has(text, "the beginning: at least 3 block(s) of 609 B were live before the first");
    free(text);
    text = report("strange-metadata.pickle", "s", false);
    assert_null(strchr(text, '\x1b'));
    assert_has(text, "?[31mred");
    free(text);
    text = report("shared.pickle", "s", false);
    assert_has(text, "the list of segments");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrapped_ring), cmocka_unit_test(counts), cmocka_unit_test(sums_do_not_overflow),
        cmocka_unit_test(disorder),     cmocka_unit_test(json),   cmocka_unit_test(text),
    };
    return cmocka_run_group_tests_name("summary", tests, NULL, NULL);
}
