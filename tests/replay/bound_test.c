/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on cases computed by hand, and against a reference that keeps
 * every freed byte range in one list and walks it for each allocation.
 */
#include "replay_test.h"

#include "replay/bound.h"

typedef struct hand_schedule {
    tide__schedule schedule;
    tide__trace_gpu gpu;
    tide__schedule_op ops[2000];
} hand_schedule;

static void begin(hand_schedule *h) {
    memset(h, 0, sizeof *h);
    h->gpu.stream_count = 4;
    h->schedule.gpu = &h->gpu;
    h->schedule.ops = h->ops;
}

static uint32_t take(hand_schedule *h, uint64_t ns, uint16_t stream, uint64_t size) {
    uint32_t block = h->schedule.block_count++;
    h->ops[h->schedule.op_count++] = (tide__schedule_op){
        .time_ns = ns, .size = size, .block = block, .stream = stream, .kind = TIDE__OP_ALLOC};
    return block;
}

static void give(hand_schedule *h, uint64_t ns, uint32_t block) {
    uint64_t size = 0;
    for (size_t i = 0; i < h->schedule.op_count; i++)
        if (h->ops[i].kind == TIDE__OP_ALLOC && h->ops[i].block == block) size = h->ops[i].size;
    h->ops[h->schedule.op_count++] =
        (tide__schedule_op){.time_ns = ns, .size = size, .block = block, .kind = TIDE__OP_FREE};
}

static uint64_t bound(const hand_schedule *h, uint64_t delay_ns) {
    uint64_t bytes = UINT64_MAX;
    assert_ok(tide__bound_reserved(&h->schedule, delay_ns, &bytes));
    return bytes;
}

static void test_own_stream_reuses_at_once_and_others_after_the_delay(void **state) {
    hand_schedule *h = malloc(sizeof *h);
    begin(h);
    give(h, 10, take(h, 0, 0, 100));
    take(h, 20, 0, 60); /* own: nothing new */
    assert_int_equal(bound(h, 100), 100);
    take(h, 30, 1, 40); /* another's: 40 are free but young */
    assert_int_equal(bound(h, 100), 140);
    assert_int_equal(bound(h, 20), 100); /* free at 30 */
    assert_int_equal(bound(h, 21), 140);
    free(h);
}

static void test_youngest_of_the_own_bytes_go_first(void **state) {
    hand_schedule *h = malloc(sizeof *h);
    begin(h);
    uint32_t old = take(h, 0, 0, 100), young = take(h, 0, 0, 100);
    give(h, 0, old);
    give(h, 50, young);
    take(h, 60, 0, 100);  /* takes the young, so that the old are everybody's */
    take(h, 110, 1, 100); /* at 100 */
    assert_int_equal(bound(h, 100), 200);
    free(h);
}

static void test_without_delay_the_bound_is_peak_live(void **state) {
    hand_schedule *h = malloc(sizeof *h);
    begin(h);
    uint32_t a = take(h, 0, 0, 100), b = take(h, 1, 1, 50);
    give(h, 2, a);
    take(h, 2, 1, 120);
    give(h, 3, b);
    take(h, 4, 2, 30);
    assert_int_equal(bound(h, 0), 170);
    free(h);
}

static void test_empty_schedule_needs_nothing(void **state) {
    hand_schedule *h = malloc(sizeof *h);
    begin(h);
    assert_int_equal(bound(h, 100), 0);
    free(h);
}

/* ---- The reference ---- */

typedef struct piece {
    uint64_t bytes, at_ns;
    uint16_t stream;
} piece;

/* Takes from the pieces that `fits` allows, the youngest first. */
static uint64_t take_pieces(piece *pieces, size_t count, uint64_t want, uint64_t now, uint64_t delay,
                            int stream) {
    for (size_t i = count; i-- > 0 && want > 0;) {
        bool is_old = pieces[i].at_ns + delay <= now;
        if (stream >= 0 ? is_old || pieces[i].stream != stream : !is_old) continue;
        uint64_t part = tide__min(want, pieces[i].bytes);
        pieces[i].bytes -= part;
        want -= part;
    }
    return want;
}

static uint64_t reference(const hand_schedule *h, uint64_t delay) {
    static piece pieces[2000];
    static uint16_t stream_of[2000];
    size_t count = 0;
    uint64_t reserved = 0;
    for (size_t i = 0; i < h->schedule.op_count; i++) {
        const tide__schedule_op *op = &h->ops[i];
        if (op->kind == TIDE__OP_FREE) {
            pieces[count++] = (piece){op->size, op->time_ns, stream_of[op->block]};
            continue;
        }
        stream_of[op->block] = op->stream;
        uint64_t want = take_pieces(pieces, count, op->size, op->time_ns, delay, op->stream);
        reserved += take_pieces(pieces, count, want, op->time_ns, delay, -1);
    }
    return reserved;
}

static void test_bound_agrees_with_a_list_of_pieces(void **state) {
    hand_schedule *h = malloc(sizeof *h);
    for (unsigned seed = 1; seed <= 200; seed++) {
        uint32_t live[100];
        size_t count = 0;
        uint64_t now = 0;
        srand(seed);
        begin(h);
        for (int i = 0; i < 600; i++) {
            now += (uint64_t)rand() % 8;
            if (count < 100 && (count == 0 || rand() % 2)) {
                live[count++] = take(h, now, (uint16_t)(rand() % 3), (uint64_t)rand() % 50);
            } else {
                size_t k = (size_t)rand() % count;
                give(h, now, live[k]);
                live[k] = live[--count];
            }
        }
        uint64_t delay = (uint64_t)rand() % 60;
        if (bound(h, delay) != reference(h, delay)) print_error("seed %u\n", seed);
        assert_int_equal(bound(h, delay), reference(h, delay));
    }
    free(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_stream_reuses_at_once_and_others_after_the_delay),
        cmocka_unit_test(test_youngest_of_the_own_bytes_go_first),
        cmocka_unit_test(test_without_delay_the_bound_is_peak_live),
        cmocka_unit_test(test_empty_schedule_needs_nothing),
        cmocka_unit_test(test_bound_agrees_with_a_list_of_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
