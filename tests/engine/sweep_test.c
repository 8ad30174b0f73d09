/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The failure sweep: for k = 1, 2, ... the k-th driver call fails, whichever
 * it is, under one fixed script that goes everywhere: allocations of all
 * classes, moves, streams, recorded uses, pools, given addresses, trims. Every
 * call succeeds or returns a status; afterwards the invariants hold, the same
 * calls work, and when all is freed and trimmed the device has every byte
 * back. The sweep ends with the first run in which nothing failed.
 */
#include "fixture.h"

#define MIB TIDE__MIB
#define BLOCKS 80

typedef struct script {
    fixture *f;
    tide_stream streams[3];
    tide_pool pool;
    void *ptr[BLOCKS];
    size_t requested[BLOCKS];
    tide_stream owner[BLOCKS];
    void *was; /* an address that was used */
    size_t refused;
} script;

static tide__tuning small_chunks(void) {
    tide__tuning t = tide__tuning_default;
    static const uint64_t from[TIDE__CLASSES] = {0, MIB, 4 * MIB, 16 * MIB};
    static const uint64_t chunk[TIDE__CLASSES] = {2 * MIB, 2 * MIB, 4 * MIB, 8 * MIB};
    for (int i = 0; i < TIDE__CLASSES; i++) {
        t.classes[i].from_bytes = from[i];
        t.classes[i].chunk_bytes = chunk[i];
    }
    t.slack_bytes = 0;
    t.epoch_bytes = 4 * MIB;
    return t;
}

static bool may(script *s, tide_status status) {
    if (status != TIDE_OK) {
        s->refused++;
        if (status != TIDE_NOT_READY && strlen(tide_last_error()) == 0) {
            fail_msg("%s without a message", tide_status_name(status));
        }
    }
    return status == TIDE_OK;
}

/* Both ends of a block stand for all of it: the sweep makes thousands of runs. */
#define END_BYTES UINT64_C(8192)

static void queue_ends(script *s, size_t i, bool check) {
    uint64_t size = s->requested[i], part = tide__min(size, END_BYTES), va = (uintptr_t)s->ptr[i];
    for (int tail = 0; s->f->host && tail < 2; tail++, va += size - part) {
        assert_ok(check ? tide__host_check(s->f->inner, 0, s->owner[i], va, (uint8_t)i, part)
                        : tide__host_fill(s->f->inner, 0, s->owner[i], va, (uint8_t)i, part));
    }
}

static void take(script *s, size_t i, uint64_t size, tide_stream stream, tide_pool pool) {
    if (s->ptr[i] == NULL && may(s, try_alloc(s->f, 0, size, stream, pool, &s->ptr[i]))) {
        s->requested[i] = size;
        s->owner[i] = stream;
        queue_ends(s, i, false);
    }
}

static void drop(script *s, size_t i) {
    if (s->ptr[i] == NULL) {
        return;
    }
    queue_ends(s, i, true);
    free_block(s->f, s->ptr[i]); /* a free may not fail, whatever the driver does */
    s->ptr[i] = NULL;
}

static void pass_time(script *s, uint64_t ns) {
    if (!s->f->host) {
        tide__sim_set_trace_time(s->f->inner, s->f->inner->ops->now_ns(s->f->inner) + ns);
    }
}

static void run_allocations(script *s, tide_stream a, tide_stream b) {
    uint64_t random = 11;
    for (size_t i = 0; i < 30; i++) {
        take(s, i, 1 + next_random(&random) % (i % 5 == 0 ? 6 * MIB : 200000), i % 3 == 0 ? b : a,
             TIDE_POOL_DEFAULT);
    }
    for (size_t i = 0; i < 30; i += 2) {
        drop(s, i);
    }
    take(s, 30, 9 * MIB, a, TIDE_POOL_DEFAULT); /* from what is idle */
    take(s, 31, 20 * MIB, b, TIDE_POOL_DEFAULT);
    drop(s, 31);
    take(s, 32, 24 * MIB, a, TIDE_POOL_DEFAULT); /* of another stream's */
    if (s->ptr[32] != NULL) {
        s->was = s->ptr[32];
    }
    drop(s, 32);
}

static void run_uses(script *s, tide_stream a, tide_stream b) {
    take(s, 33, 5 * MIB, a, TIDE_POOL_DEFAULT);
    if (s->ptr[33] != NULL && may(s, tide_record_stream(s->f->a, s->ptr[33], b))) {
        watch_recorded(s->f->w, 0, (uintptr_t)s->ptr[33], watch_slot(s->f->w, 0, b));
    }
    drop(s, 33);
    if (s->was != NULL && may(s, try_alloc_at(s->f, 3 * MIB, a, s->was))) {
        free_block(s->f, s->was);
    }
    tide_trim_options some = {.struct_size = sizeof some, .bytes = 4 * MIB, .wait_ns = UINT64_C(3000000)};
    may(s, tide_trim(s->f->a, 0, &some, NULL));
    pass_time(s, 2000000);
}

static void run_pool(script *s, tide_stream a) {
    if (s->pool == 0 && !may(s, tide_pool_create(s->f->a, 0, &s->pool))) {
        s->pool = 0;
        return;
    }
    take(s, 34, 7 * MIB, a, s->pool);
    take(s, 35, 4000, a, s->pool);
    drop(s, 34);
    drop(s, 35);
    if (may(s, tide_pool_release(s->f->a, s->pool))) {
        s->pool = 0;
    }
}

static void run_stream(script *s) {
    tide_stream stream;
    if (!may(s, tide_stream_create(s->f->a, 0, &stream))) {
        return;
    }
    take(s, 36, 6 * MIB, stream, TIDE_POOL_DEFAULT);
    drop(s, 36);
    if (!may(s, tide_stream_destroy(s->f->a, 0, stream))) {
        tide__fault_disarm(s->f->fault);
        assert_ok(tide_stream_retire(s->f->a, 0, stream));
        watch_retired(s->f->w, 0, stream);
    }
}

static void run_script(script *s) {
    for (int round = 0; round < 2; round++) {
        run_allocations(s, s->streams[0], s->streams[1]);
        run_uses(s, s->streams[1], s->streams[2]);
        run_pool(s, s->streams[0]);
        run_stream(s);
        for (size_t i = 37; i < 50; i++) { /* up to the device's end, and beyond */
            take(s, i, 11 * MIB, s->streams[i % 3], TIDE_POOL_DEFAULT);
        }
        for (size_t i = 0; i < BLOCKS; i += 1 + (size_t)round) {
            drop(s, i);
        }
        tide_trim_options all = {
            .struct_size = sizeof all, .bytes = UINT64_MAX, .wait_ns = round == 0 ? 0 : UINT64_MAX};
        may(s, tide_trim(s->f->a, 0, &all, NULL));
        may(s, tide_phase(s->f->a, round == 0 ? "first" : "second"));
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        drop(s, i);
    }
}

/* One run with what `arm` says; false when nothing failed in it. */
static bool run_once(bool host, tide_cross_stream mode, int call, uint64_t k, tide_status status,
                     bool sticky) {
    const tide__tuning tuning = small_chunks();
    script s = {.f = open_fixture(&(fixture_options){
                    .host = host, .capacity = 96 * MIB, .delay = 1000000, .mode = mode, .tuning = &tuning})};
    s.streams[1] = new_stream(s.f);
    s.streams[2] = new_stream(s.f);
    assert_ok(tide__fault_arm(s.f->fault, call, k, status, sticky));
    run_script(&s);
    uint64_t injected = tide__fault_injected(s.f->fault);
    tide__fault_disarm(s.f->fault);
    if (s.f->w->trouble[0] != '\0') {
        print_error("%s, call %s number %llu\n", host ? "host" : "sim",
                    call == TIDE__FAULT_ANY ? "any" : tide__call_name((tide__call)call),
                    (unsigned long long)k);
    }
    assert_string_equal(s.f->w->trouble, "");
    tide__allocator_validate(s.f->a);
    s.refused = 0;
    run_allocations(&s, s.streams[0], s.streams[1]); /* the next calls work */
    assert_int_equal(s.refused, 0);
    for (size_t i = 0; i < BLOCKS; i++) {
        drop(&s, i);
    }
    for (int round = 0; round < 2; round++) {
        trim(s.f, UINT64_MAX, UINT64_MAX);
    }
    assert_int_equal(stats_of(s.f, 0).reserved_bytes, 0);
    assert_int_equal(used_bytes(s.f, 0), 0);
    if (host) {
        tide__host_result r;
        assert_ok(tide__host_device_sync(s.f->inner, 0));
        tide__host_get_result(s.f->inner, 0, &r);
        assert_int_equal(r.wrong_bytes, 0);
    }
    close_fixture(s.f);
    return injected > 0;
}

static void sweep(bool host, tide_cross_stream mode, uint64_t step) {
    uint64_t k = 1, runs = 0;
    for (; run_once(host, mode, TIDE__FAULT_ANY, k, TIDE_DRIVER, false); k += step) {
        runs++;
    }
    print_message("%llu runs, up to call %llu\n", (unsigned long long)runs, (unsigned long long)k);
    assert_true(k > 200);
}

/* Every call in the long mode, else one in so many. */
static uint64_t step_of(uint64_t usual) {
    return setting("PAGETIDE_TEST_LONG", 0) != 0 ? 1 : SLOW_BUILD ? usual * 5 : usual;
}

static void any_call_may_fail_on_sim(void **state) {
    (void)state;
    sweep(false, TIDE_CROSS_STREAM_IDLE, step_of(3));
    sweep(false, TIDE_CROSS_STREAM_WAIT, step_of(5));
    sweep(false, TIDE_CROSS_STREAM_OFF, step_of(7));
}

static void any_call_may_fail_on_host(void **state) {
    (void)state;
    sweep(true, TIDE_CROSS_STREAM_IDLE, step_of(23));
    sweep(true, TIDE_CROSS_STREAM_WAIT, step_of(29));
}

static void a_kind_of_call_may_fail_for_good(void **state) {
    (void)state;
    static const int calls[] = {TIDE__CALL_CHUNK_CREATE, TIDE__CALL_CHUNK_RELEASE, TIDE__CALL_MAP,
                                TIDE__CALL_SET_ACCESS,   TIDE__CALL_UNMAP,         TIDE__CALL_EVENT_RECORD,
                                TIDE__CALL_EVENT_QUERY,  TIDE__CALL_EVENT_WAIT,    TIDE__CALL_STREAM_WAIT,
                                TIDE__CALL_EVENT_CREATE, TIDE__CALL_RESERVE};
    static const tide_status statuses[] = {TIDE_DRIVER, TIDE_NO_DEVICE_MEMORY, TIDE_NO_HOST_MEMORY};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (uint64_t k = 1; k < 60; k += k < 4 ? 1 : 9) {
            run_once(false, k % 2 == 0 ? TIDE_CROSS_STREAM_IDLE : TIDE_CROSS_STREAM_WAIT, calls[i], k,
                     statuses[(i + k) % 3], true);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_call_may_fail_on_sim),
        cmocka_unit_test(any_call_may_fail_on_host),
        cmocka_unit_test(a_kind_of_call_may_fail_for_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
