/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads on one allocator, each with a stream of its own: allocations
 * of all classes, frees by other threads, recorded uses, trims, statistics,
 * phases, pools and streams that come and go. On host every byte is checked and
 * every unordered use counts. Made for ThreadSanitizer.
 *
 * Threads count what goes wrong; the main thread asserts.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "engine_test.h"
#include "standin/use.h"

#define MIB TIDE__MIB
#define THREADS 6
#define OWN 24
#define SHARED 32

typedef struct held {
    void *ptr;
    uint64_t size, content;
    tide_stream stream;
} held;

typedef struct crowd {
    tide_allocator *a;
    tide__device *host; /* NULL on sim */
    int rounds;
    struct {
        _Atomic(uint32_t) state; /* 0 empty, 1 being changed, 2 full */
        held block;
    } shared[SHARED]; /* blocks that whoever comes by may free */
    _Atomic(uint32_t) wrong, violations, ooms;
    _Atomic(uint64_t) content, allocs;
} crowd;

typedef struct worker {
    crowd *c;
    tide_stream stream;
    uint64_t random;
    tide_pool pool;
    held own[OWN];
} worker;

static void expect(crowd *c, bool fine) {
    if (!fine) {
        atomic_fetch_add(&c->wrong, 1);
    }
}

static void fill(crowd *c, held *h) {
    h->content = atomic_fetch_add(&c->content, 1);
    if (c->host != NULL) {
        expect(c, tide__host_fill_pattern(c->host, 0, h->stream, (uintptr_t)h->ptr, h->content, h->size) ==
                      TIDE_OK);
    }
}

static void give(crowd *c, held *h) {
    if (h->ptr == NULL) {
        return;
    }
    if (c->host != NULL) {
        expect(c, tide__host_check_pattern(c->host, 0, h->stream, (uintptr_t)h->ptr, h->content, h->size) ==
                      TIDE_OK);
    }
    expect(c, tide_free(c->a, h->ptr) == TIDE_OK);
    h->ptr = NULL;
}

static uint64_t pick_size(worker *w) {
    uint64_t number = next_random(&w->random), bits = 9 + number % 14;
    return (UINT64_C(1) << bits) + next_random(&w->random) % (UINT64_C(1) << bits); /* up to 8 MiB */
}

static void take(worker *w, held *h) {
    crowd *c = w->c;
    tide_pool pool = w->pool != 0 && next_random(&w->random) % 8 == 0 ? w->pool : TIDE_POOL_DEFAULT;
    *h = (held){.size = pick_size(w), .stream = w->stream};
    tide_status status = tide_alloc(c->a, 0, h->size, w->stream, pool, &h->ptr);
    if (status == TIDE_OK) {
        atomic_fetch_add(&c->allocs, 1);
        fill(c, h);
    } else {
        expect(c, status == TIDE_NO_DEVICE_MEMORY);
        atomic_fetch_add(&c->ooms, 1);
        h->ptr = NULL;
    }
}

/* Puts a block where others find it, or frees one that somebody put there. */
static void share(worker *w, held *h) {
    crowd *c = w->c;
    size_t slot = next_random(&w->random) % SHARED;
    uint32_t empty = 0, full = 2;
    if (h->ptr != NULL && atomic_compare_exchange_strong(&c->shared[slot].state, &empty, 1)) {
        c->shared[slot].block = *h;
        h->ptr = NULL;
        atomic_store(&c->shared[slot].state, 2);
    } else if (atomic_compare_exchange_strong(&c->shared[slot].state, &full, 1)) {
        give(c, &c->shared[slot].block);
        atomic_store(&c->shared[slot].state, 0);
    }
}

static void do_rare_thing(worker *w, uint64_t what) {
    crowd *c = w->c;
    tide_stats s = {.struct_size = sizeof s};
    tide_phase_stats p = {.struct_size = sizeof p};
    tide_trim_options o = {
        .struct_size = sizeof o, .bytes = what % 2 == 0 ? UINT64_MAX : 4 * MIB, .wait_ns = what % 3};
    switch (what % 6) {
    case 0: expect(c, tide_trim(c->a, 0, &o, NULL) == TIDE_OK); break;
    case 1: expect(c, tide_stats_get(c->a, 0, &s) == TIDE_OK && s.allocs >= s.frees); break;
    case 2:
        expect(c, tide_phase(c->a, what % 4 == 0 ? "one" : "other") == TIDE_OK &&
                      tide_phase_stats_get(c->a, 0, 0, &p) == TIDE_OK);
        break;
    case 3:
        if (w->pool == 0) {
            expect(c, tide_pool_create(c->a, 0, &w->pool) == TIDE_OK);
        } else if (tide_pool_release(c->a, w->pool) == TIDE_OK) {
            w->pool = 0;
        }
        break;
    case 4: expect(c, tide_free(c->a, c) == TIDE_NOT_ALLOCATED); break;
    default:
        expect(c, tide_stats_reset_peaks(c->a, 0) == TIDE_OK && tide_reserved_bytes(c->a, 0) < TIDE__GIB);
        break;
    }
}

static void change_stream(worker *w) {
    for (size_t i = 0; i < OWN; i++) {
        give(w->c, &w->own[i]);
    }
    /* Blocks of this stream that others hold are checked on it: it stays. */
    expect(w->c, tide_stream_create(w->c->a, 0, &w->stream) == TIDE_OK);
}

static void *work(void *user) {
    worker *w = user;
    for (int round = 0; round < w->c->rounds; round++) {
        uint64_t what = next_random(&w->random);
        held *h = &w->own[what % OWN];
        if (h->ptr == NULL) {
            take(w, h);
        } else if (what / OWN % 8 == 0) {
            share(w, h);
        } else if (what / OWN % 16 == 1) {
            expect(w->c, tide_record_stream(w->c->a, h->ptr, 0) == TIDE_OK);
        } else {
            give(w->c, h);
        }
        if (what / 1024 % 64 == 0) {
            do_rare_thing(w, what / 65536);
        }
        if (what / 1024 % 1024 == 7) {
            change_stream(w);
        }
    }
    for (size_t i = 0; i < OWN; i++) {
        give(w->c, &w->own[i]);
    }
    return NULL;
}

static void on_violation(void *user, const tide__host_violation *v) {
    crowd *c = user;
    if (atomic_fetch_add(&c->violations, 1) == 0) {
        fprintf(stderr, "host: %s: %s\n", tide__host_wrong_name(v->kind), v->text);
    }
}

static void run_crowd(bool on_host, tide_cross_stream mode, int rounds) {
    static crowd c;
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    tide__device *device = NULL;
    tide__tuning tuning = tide__tuning_default;
    tuning.slack_bytes = 0;
    tuning.epoch_bytes = MIB;
    memset(&c, 0, sizeof c);
    c.rounds = rounds;
    if (on_host) {
        assert_ok(tide__host_open(&(tide__host_options){.capacity_bytes = 192 * MIB}, &device));
        c.host = device;
        tide__host_set_handler(device, on_violation, &c);
        tide__host_set_lateness(device, 5, 20000);
    } else {
        assert_ok(tide__sim_open(&(tide__sim_options){.capacity_bytes = 192 * MIB, .event_delay_ns = 1000},
                                 &device));
    }
    tide_open_options options = {.struct_size = sizeof options, .cross_stream = mode};
    tide__device *under = on_host ? standin_between(device) : device;
    assert_non_null(under);
    assert_ok(tide__open_on(under, &options, &tuning, &c.a));
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.c = &c, .random = 100 + i};
        assert_ok(tide_stream_create(c.a, 0, &workers[i].stream));
    }
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < SHARED; i++) {
        give(&c, &c.shared[i].block);
    }
    assert_int_equal(atomic_load(&c.wrong), 0);
    tide__allocator_validate(c.a);
    tide_stats s = {.struct_size = sizeof s};
    assert_ok(tide_stats_get(c.a, 0, &s));
    assert_int_equal(s.requested_bytes + s.allocated_bytes, 0);
    assert_int_equal(s.allocs, s.frees);
    assert_int_equal(s.allocs, atomic_load(&c.allocs));
    tide_trim_options all = {.struct_size = sizeof all, .bytes = UINT64_MAX, .wait_ns = UINT64_MAX};
    assert_ok(tide_trim(c.a, 0, &all, NULL));
    assert_int_equal(tide_reserved_bytes(c.a, 0), 0);
    if (on_host) {
        tide__host_result r;
        assert_ok(tide__host_device_sync(device, 0));
        tide__host_get_result(device, 0, &r);
        assert_int_equal(r.wrong_bytes, 0);
        assert_int_equal(atomic_load(&c.violations), 0);
    }
    assert_ok(tide_close(c.a));
    if (on_host) {
        assert_string_equal(standin_end(device), "");
    }
    print_message("%llu allocations, %u out of memory, %llu moves\n", (unsigned long long)s.allocs,
                  atomic_load(&c.ooms), (unsigned long long)s.moves);
}

static int rounds_of(int usual, int under_sanitizers) {
    return (int)seeds_to_run((uint64_t)usual, (uint64_t)under_sanitizers);
}

static void threads_on_sim(void **state) {
    (void)state;
    run_crowd(false, TIDE_CROSS_STREAM_IDLE, rounds_of(20000, 3000));
    run_crowd(false, TIDE_CROSS_STREAM_WAIT, rounds_of(20000, 3000));
    run_crowd(false, TIDE_CROSS_STREAM_OFF, rounds_of(20000, 3000));
}

static void threads_on_host(void **state) {
    (void)state;
    run_crowd(true, TIDE_CROSS_STREAM_IDLE, rounds_of(300, 150));
    run_crowd(true, TIDE_CROSS_STREAM_WAIT, rounds_of(300, 150));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_on_sim),
        cmocka_unit_test(threads_on_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
