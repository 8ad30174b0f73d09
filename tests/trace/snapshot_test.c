/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes of snapshots: what make_fixtures.py wrote, read back. */
#include "trace/snapshot.h"
#include "trace_test.h"

#define BASE UINT64_C(0x7f0000000000)
#define POOL_BASE UINT64_C(0x300000000)
#define POOL_STREAM UINT64_C(0x5566778899aa)
#define TIME INT64_C(1700000000000000)

static void assert_event(const tide__trace *t, const tide__trace_gpu *gpu, size_t i, tide__action action,
                         uint64_t addr, uint64_t size, const char *phase) {
    assert_true(i < gpu->event_count);
    const tide__trace_event *e = &gpu->events[i];
    assert_int_equal(e->action, action);
    assert_int_equal(e->addr, addr);
    assert_int_equal(e->size, size);
    assert_string_equal(phase_of(t, e), phase);
    assert_int_equal(e->has_phase, phase[0] != 0);
}

/* "name:line name:line", outermost last. */
static void assert_stack(const tide__trace *t, uint32_t stack, const char *expected) {
    char text[256] = "";
    assert_true(stack < t->stack_count);
    for (size_t i = t->stack_start[stack]; i < t->stack_start[stack + 1]; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s:%u", used > 0 ? " " : "",
                 t->strings[t->frames[i].name], t->frames[i].line);
        assert_string_equal(t->strings[t->frames[i].file], "train.py");
    }
    assert_string_equal(text, expected);
}

static void check_first_gpu(const tide__trace *t) {
    const tide__trace_gpu *g = &t->gpus[0];
    assert_int_equal(g->device, 0);
    assert_int_equal(g->event_count, 8);
    assert_event(t, g, 0, TIDE__ACTION_SEGMENT_ALLOC, BASE, 2 << 20, "init");
    assert_event(t, g, 1, TIDE__ACTION_ALLOC, BASE, 1000, "init");
    assert_event(t, g, 2, TIDE__ACTION_ALLOC, BASE + 1024, 300, "rollout");
    assert_event(t, g, 3, TIDE__ACTION_FREE_REQUESTED, BASE, 1000, "rollout");
    assert_event(t, g, 4, TIDE__ACTION_FREE_COMPLETED, BASE, 1000, "");
    assert_event(t, g, 5, TIDE__ACTION_SNAPSHOT, 0, 0, "");
    assert_event(t, g, 6, TIDE__ACTION_OOM, 4096, UINT64_C(1) << 40, "");
    assert_event(t, g, 7, TIDE__ACTION_OTHER, 1, 2, "step:3");
    assert_stack(t, g->events[0].stack, "forward:10 main:99");
    assert_stack(t, g->events[2].stack, "backward:20 main:99");
    assert_int_equal(g->events[1].stack, g->events[0].stack);
    assert_int_equal(g->events[4].stack, 0);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(g->events[i].time_us, TIME + (int64_t)i + 1);
        assert_int_equal(g->events[i].stream, 0);
        assert_int_equal(g->events[i].pool, 0);
    }
    assert_int_equal(g->stream_count, 1);
    assert_int_equal(g->pool_count, 1);
}

static void check_second_gpu(const tide__trace *t) {
    const tide__trace_gpu *g = &t->gpus[1];
    assert_int_equal(g->device, 1);
    assert_int_equal(g->event_count, 4);
    assert_event(t, g, 0, TIDE__ACTION_SEGMENT_MAP, POOL_BASE, 20 << 20, "");
    assert_event(t, g, 1, TIDE__ACTION_ALLOC, POOL_BASE, UINT64_C(1) << 33, "7");
    assert_event(t, g, 2, TIDE__ACTION_ALLOC, UINT64_C(0x500000000), 0, "");
    assert_event(t, g, 3, TIDE__ACTION_SEGMENT_UNMAP, POOL_BASE, 20 << 20, "");
    assert_int_equal(g->stream_count, 3);
    assert_int_equal(g->streams[0], 0);
    assert_int_equal(g->streams[g->events[0].stream], POOL_STREAM);
    assert_int_equal(g->streams[g->events[2].stream], 0);
    assert_int_equal(g->streams[g->events[3].stream], 1);
    assert_int_equal(g->pool_count, 3);
    assert_int_equal(g->pools[0].id[0], 0);
    assert_int_equal(g->pools[0].id[1], 0);
    assert_int_equal(g->pools[g->events[0].pool].id[0], 1);
    assert_int_equal(g->pools[g->events[0].pool].id[1], 2);
    assert_int_equal(g->events[2].pool, 0);
    assert_int_equal(g->pools[g->events[3].pool].id[1], 5);
}

static void check_segments(const tide__trace *t) {
    const tide__trace_gpu *g = &t->gpus[0];
    assert_true(t->has_segments);
    assert_int_equal(g->segment_count, 1);
    assert_int_equal(g->segments[0].addr, BASE);
    assert_int_equal(g->segments[0].size, 2 << 20);
    assert_false(g->segments[0].is_large);
    assert_false(g->segments[0].is_expandable);
    assert_int_equal(g->segments[0].block_count, 3);
    assert_int_equal(g->block_count, 3);
    assert_int_equal(g->blocks[0].state, TIDE__BLOCK_INACTIVE);
    assert_int_equal(g->blocks[0].requested_size, 1000);
    assert_int_equal(g->blocks[1].state, TIDE__BLOCK_ACTIVE_ALLOCATED);
    assert_int_equal(g->blocks[1].addr, BASE + 1024);
    assert_int_equal(g->blocks[1].size, 512);
    assert_stack(t, g->blocks[1].stack, "backward:20 main:99");
    assert_int_equal(g->blocks[2].state, TIDE__BLOCK_ACTIVE_PENDING_FREE);
    g = &t->gpus[1];
    assert_int_equal(g->segment_count, 1);
    assert_true(g->segments[0].is_large);
    assert_true(g->segments[0].is_expandable);
    assert_int_equal(g->streams[g->segments[0].stream], POOL_STREAM);
    assert_int_equal(g->pools[g->segments[0].pool].id[1], 2);
    assert_int_equal(g->blocks[0].state, TIDE__BLOCK_ACTIVE_PENDING_FREE);
}

static void check_rest(const tide__trace *t) {
    assert_int_equal(t->setting_count, 5);
    assert_string_equal(tide__trace_setting_get(t, "PYTORCH_CUDA_ALLOC_CONF"), "");
    assert_string_equal(tide__trace_setting_get(t, "expandable_segments"), "True");
    assert_string_equal(tide__trace_setting_get(t, "garbage_collection_threshold"), "0.0");
    assert_string_equal(tide__trace_setting_get(t, "max_split_size"), "-1");
    assert_string_equal(tide__trace_setting_get(t, "roundup_power2_divisions"), "1:0,2:4");
    assert_null(tide__trace_setting_get(t, "another"));
    assert_int_equal(t->annotation_count, 2);
    assert_int_equal(t->gpu_count, 3);
    assert_int_equal(t->gpus[2].event_count, 0);
    assert_int_equal(t->gpus[2].stream_count, 1);
    assert_int_equal(t->stack_count, 3);
    assert_string_equal(t->strings[0], "");
}

/* The same snapshot, as every protocol, pickler and compression has it. */
static void whole(void **state) {
    static const struct {
        const char *file, *compression;
        int protocol;
    } files[] = {{"protocol2.pickle", "none", 2},   {"protocol3.pickle", "none", 3},
                 {"protocol4.pickle", "none", 4},   {"protocol5.pickle", "none", 5},
                 {"pure-python.pickle", "none", 2}, {"whole.pickle.gz", "gzip", 4},
                 {"members.pickle.gz", "gzip", 4},  {"whole.pickle.zst", "zstd", 4}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        tide__trace *t = read_fixture(files[i].file);
        assert_string_equal(t->compression, files[i].compression);
        assert_int_equal(t->pickle_protocol, files[i].protocol);
        assert_true(t->data_bytes > 1500 && t->data_bytes < 2000);
        assert_true(t->file_bytes <= t->data_bytes);
        check_first_gpu(t);
        check_second_gpu(t);
        check_segments(t);
        check_rest(t);
        tide__trace_free(t);
    }
}

/* An entry in a trace twice, a trace of two devices, an entry of another's. */
static void shared(void **state) {
    tide__trace *t = read_fixture("shared.pickle");
    assert_int_equal(t->gpu_count, 4);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(t->gpus[i].event_count, 3);
        assert_event(t, &t->gpus[i], 0, TIDE__ACTION_ALLOC, 4096, 512, "");
        assert_event(t, &t->gpus[i], 1, TIDE__ACTION_FREE_REQUESTED, 4096, 512, "");
        assert_event(t, &t->gpus[i], 2, TIDE__ACTION_ALLOC, 4096, 512, "");
        for (size_t k = 0; k < 3; k++) {
            assert_stack(t, t->gpus[i].events[k].stack, "f:1");
        }
    }
    assert_int_equal(t->gpus[2].event_count, 0);
    assert_int_equal(t->gpus[3].event_count, 1);
    assert_event(t, &t->gpus[3], 0, TIDE__ACTION_ALLOC, 4096, 512, "");
    assert_false(t->has_segments);
    assert_int_equal(t->annotation_count, 0);
    tide__trace_free(t);
}

static void old_version(void **state) {
    tide__trace *t = read_fixture("old.pickle");
    const tide__trace_gpu *g = &t->gpus[0];
    assert_int_equal(g->block_count, 2);
    assert_int_equal(g->blocks[0].addr, 4096);
    assert_int_equal(g->blocks[0].requested_size, 1024);
    assert_int_equal(g->blocks[1].addr, 5120);
    assert_int_equal(g->blocks[1].state, TIDE__BLOCK_INACTIVE);
    assert_event(t, g, 0, TIDE__ACTION_ALLOC, 4096, 1000, "");
    assert_int_equal(g->events[0].time_us, 0);
    tide__trace_free(t);
}

static void bare_lists(void **state) {
    tide__trace *t = read_fixture("bare-traces.pickle");
    assert_int_equal(t->gpu_count, 3);
    check_first_gpu(t);
    assert_int_equal(t->gpus[1].event_count, 4);
    assert_false(t->has_segments);
    tide__trace_free(t);

    t = read_fixture("bare-entries.pickle");
    assert_int_equal(t->gpu_count, 1);
    check_first_gpu(t);
    tide__trace_free(t);

    t = read_fixture("bare-segments.pickle");
    assert_int_equal(t->gpu_count, 2);
    assert_int_equal(t->gpus[0].event_count, 0);
    check_segments(t);
    tide__trace_free(t);
}

static void empty_trace(void **state) {
    tide__trace *t = read_fixture("empty-trace.pickle");
    assert_int_equal(t->gpu_count, 1);
    assert_int_equal(t->gpus[0].event_count, 0);
    assert_false(t->has_segments);
    tide__trace_free(t);
}

static void strange_metadata(void **state) {
    static const char *const phases[] = {"",
                                         "True",
                                         "bytes",
                                         "1.5",
                                         "1,2",
                                         "1,2,3,4,...",
                                         "a:b:None",
                                         "x\xef\xbf\xbdy",
                                         "\xc3\xbcn\xc3\xaf"
                                         "code",
                                         "a very large number",
                                         "1,2",
                                         "\x1b[31mred"};
    tide__trace *t = read_fixture("strange-metadata.pickle");
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        assert_event(t, &t->gpus[0], i, TIDE__ACTION_ALLOC, 1, 1, phases[i]);
    }
    tide__trace_free(t);
}

static void many(void **state) {
    tide__trace *t = read_fixture("many.pickle.gz");
    assert_int_equal(t->gpus[0].event_count, 2500);
    for (size_t i = 0; i < 2500; i++) {
        char phase[32];
        snprintf(phase, sizeof phase, "step %zu", i / 100);
        assert_event(t, &t->gpus[0], i, TIDE__ACTION_ALLOC, (uint64_t)i << 12, 512, phase);
    }
    assert_int_equal(t->setting_count, 1500);
    assert_string_equal(tide__trace_setting_get(t, "key 1499"), "1499");
    tide__trace_free(t);
}

static void high_addresses(void **state) {
    tide__trace *t = read_fixture("high-addresses.pickle");
    assert_event(t, &t->gpus[0], 0, TIDE__ACTION_ALLOC, UINT64_MAX - 8191, 4096, "");
    assert_int_equal(t->gpus[0].streams[t->gpus[0].events[0].stream], UINT64_MAX);
    assert_event(t, &t->gpus[0], 1, TIDE__ACTION_ALLOC, UINT64_C(1) << 63, 1, "");
    tide__trace_free(t);
}

/* A pickler that fills a dict one item at a time, as protocol 0 does. */
static void one_item_at_a_time(void **state) {
    bytes b = {0};
    PUT(&b, "\x80\x02}");
    put_text(&b, "device_traces");
    PUT(&b, "]]}q\x05");
    put_text(&b, "action");
    put_text(&b, "alloc");
    PUT(&b, "s");
    put_text(&b, "addr");
    put_number(&b, 4096);
    PUT(&b, "s");
    put_text(&b, "size");
    put_number(&b, 512);
    PUT(&b, "sah\x05"
            "aas.");
    tide__trace *t;
    assert_int_equal(read_bytes(b.data, b.size, &t), TIDE_OK);
    assert_int_equal(t->gpus[0].event_count, 2); /* appended, and once more by its memo */
    assert_event(t, &t->gpus[0], 0, TIDE__ACTION_ALLOC, 4096, 512, "");
    assert_event(t, &t->gpus[0], 1, TIDE__ACTION_ALLOC, 4096, 512, "");
    tide__trace_free(t);
    free_bytes(&b);
}

/* What is wrong, where, and in which file. */
static void refused(void **state) {
    static const struct {
        const char *file, *cause;
    } files[] = {
        {"bad-blocks.pickle", "offset 111: a block: 'state' is not a known one"},
        {"bad-cut.pickle.gz", ": the file ends inside its gzip data (truncated)"},
        {"bad-device.pickle", "'device' is not the number of a device"},
        {"bad-empty-list.pickle", "an empty list"},
        {"bad-empty.pickle", "offset 0: the file is empty"},
        {"bad-entry.pickle", "an item of a trace is not an entry with an 'action'"},
        {"bad-global.pickle", "offset 46: opcode STACK_GLOBAL is refused"},
        {"bad-global-2.pickle", "offset 25: opcode GLOBAL is refused"},
        {"bad-list.pickle", "neither traces, entries nor segments"},
        {"bad-many-devices.pickle", "more than 1024 devices"},
        {"bad-no-action.pickle", "not an entry with an 'action'"},
        {"bad-no-addr.pickle", "offset 47: a trace entry: 'addr' is missing"},
        {"bad-no-size.pickle", "offset 47: a trace entry: 'size' is missing"},
        {"bad-no-traces.pickle", "no 'device_traces'"},
        {"bad-number.pickle", "neither a dict nor a list"},
        {"bad-protocol.pickle", "offset 1: pickle protocol 6 is not known"},
        {"bad-recursive.pickle", "not an entry"},
        {"bad-segment.pickle", "an item of 'segments'"},
        {"bad-segments.pickle", "'segments' is not a list"},
        {"bad-text.pickle", "offset 0: not a pickle of protocol 2 to 5"},
        {"bad-trace.pickle", "not a list"},
        {"bad-traces.pickle", "'device_traces' is not a list"},
        {"bad-trailing.pickle", "data follows the end of the pickle"},
        {"bad-trailing.pickle.gz", "bytes that are not gzip follow"},
        {"bad-value-action.pickle", "'action' is not a string"},
        {"bad-value-addr.pickle", "'addr' is not a number"},
        {"bad-value-float.pickle", "'size' is not a number"},
        {"bad-value-huge.pickle", "'size' is not a number from 0 to 2^64"},
        {"bad-value-negative.pickle", "'size' is not a number from 0 to 2^64"},
        {"bad-value-overflow.pickle", "'size' reaches past the last address"},
        {"bad-value-pool.pickle", "'segment_pool_id' is not a pair"},
        {"bad-value-stream.pickle", "'stream' is not a number"},
        {"bad-value-time.pickle", "'time_us' is not a number"},
        {"bad-value-too-large.pickle", "'size' is more than 2^56 bytes"},
        {"bad-zero.pickle", "not a pickle of protocol 2 to 5"},
        {"bad-zip.pickle", "torch.save"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        tide__trace *t = NULL;
        snprintf(path, sizeof path, "%s%s", FIXTURES, files[i].file);
        assert_int_equal(tide__trace_read(path, NULL, NULL, &t), TIDE_CORRUPT);
        assert_null(t);
        assert_non_null(strstr(tide_last_error(), path));
        if (strstr(tide_last_error(), files[i].cause) == NULL) {
            fail_msg("'%s' does not say '%s'", tide_last_error(), files[i].cause);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole),      cmocka_unit_test(shared),         cmocka_unit_test(old_version),
        cmocka_unit_test(bare_lists), cmocka_unit_test(empty_trace),    cmocka_unit_test(strange_metadata),
        cmocka_unit_test(many),       cmocka_unit_test(high_addresses), cmocka_unit_test(one_item_at_a_time),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
