/* SPDX-License-Identifier: Apache-2.0 */
/* Right programs, moves of chunks under running kernels above all, are not taken for wrong ones. */
#include "host_fixture.h"

/* The move that the allocator makes: map at a new address and use it there on
 * the same stream while the old address's kernel still runs; unmap the old
 * address when its event is done. */
static void a_move_under_a_running_kernel_is_right(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    tide__host_gate gate;
    tide__event done = new_event(f);
    tide__chunk_handle chunk;
    uint64_t old = new_block(f, GRANULE, &chunk);
    assert_ok(tide__host_gate_create(f->d, 0, &gate));
    assert_ok(tide__host_hold(f->d, 0, s, gate));
    assert_ok(tide__host_fill_pattern(f->d, 0, s, old, 1, GRANULE));
    assert_ok(tide__host_check_pattern(f->d, 0, s, old, 1, GRANULE));
    assert_ok(f->d->ops->event_record(f->d, 0, done, s));
    uint64_t moved = new_alias(f, GRANULE, chunk);
    assert_ok(tide__host_check_pattern(f->d, 0, s, moved, 1, GRANULE));
    assert_ok(tide__host_fill_pattern(f->d, 0, s, moved, 2, GRANULE));
    assert_ok(tide__host_gate_open(f->d, 0, gate));
    assert_ok(f->d->ops->event_wait(f->d, 0, done, UINT64_MAX));
    assert_ok(f->d->ops->unmap(f->d, 0, old, GRANULE)); /* the new address's work may still run */
    assert_ok(tide__host_check_pattern(f->d, 0, s, moved, 2, GRANULE));
    assert_ok(tide__host_stream_sync(f->d, 0, s));
    assert_int_equal(wrong_bytes(f), 0);
    assert_nothing_seen(f);
}

static void raw_free_waits_for_the_device(void **state) {
    fixture *f = *state;
    tide_stream s = new_stream(f);
    uint64_t va, start = f->d->ops->now_ns(f->d);
    assert_ok(f->d->ops->raw_alloc(f->d, 0, 1000, &va));
    assert_ok(tide__host_delay(f->d, 0, s, 20 * MS));
    assert_ok(tide__host_fill(f->d, 0, s, va, 1, 1000));
    assert_ok(f->d->ops->raw_free(f->d, 0, va));
    assert_true(f->d->ops->now_ns(f->d) - start >= 20 * MS);
    assert_fails(TIDE_INVALID_ARGUMENT, tide__host_fill(f->d, 0, s, va, 1, 8));
    assert_seen(f, TIDE__HOST_NOT_MAPPED, 1);
    assert_int_equal(free_bytes_of(f->d), CAPACITY);
}

/* Random legitimate use: blocks that go from stream to stream by events, and
 * chunks that move between addresses, with every operation late. */
enum { STREAMS = 4, BLOCKS = 6, STEPS = 400, BLOCK_BYTES = 64 * 1024 };

typedef struct juggler {
    fixture *f;
    uint64_t random;
    tide_stream streams[STREAMS];
    struct juggled {
        uint64_t va, seed;
        tide__chunk_handle chunk;
        size_t owner;
        uint64_t old_va; /* retiring after old_event; 0: none */
        tide__event old_event;
    } blocks[BLOCKS];
} juggler;

/* The old address goes when its event is done; must: wait for that. */
static void retire(juggler *j, struct juggled *b, bool must) {
    const tide__device_ops *o = j->f->d->ops;
    if (b->old_va == 0) {
        return;
    }
    if (must) {
        assert_ok(o->event_wait(j->f->d, 0, b->old_event, UINT64_MAX));
    } else if (o->event_query(j->f->d, 0, b->old_event) != TIDE_OK) {
        return;
    }
    assert_ok(o->unmap(j->f->d, 0, b->old_va, GRANULE));
    assert_ok(o->unreserve(j->f->d, 0, b->old_va, GRANULE));
    assert_ok(o->event_destroy(j->f->d, 0, b->old_event));
    b->old_va = 0;
}

static void juggle_move(juggler *j, struct juggled *b) {
    retire(j, b, true);
    b->old_va = b->va;
    b->old_event = new_event(j->f);
    assert_ok(j->f->d->ops->event_record(j->f->d, 0, b->old_event, j->streams[b->owner]));
    b->va = new_alias(j->f, GRANULE, b->chunk);
}

static void juggle_once(juggler *j) {
    struct juggled *b = &j->blocks[next_random(&j->random) % BLOCKS];
    struct juggled *other = &j->blocks[next_random(&j->random) % BLOCKS];
    tide__device *d = j->f->d;
    tide_stream s = j->streams[b->owner];
    retire(j, b, false);
    switch (next_random(&j->random) % 5) {
    case 0:
        b->seed = next_random(&j->random);
        assert_ok(tide__host_fill_pattern(d, 0, s, b->va, b->seed, BLOCK_BYTES));
        break;
    case 1: assert_ok(tide__host_check_pattern(d, 0, s, b->va, b->seed, BLOCK_BYTES)); break;
    case 2:
        b->owner = next_random(&j->random) % STREAMS;
        order(j->f, s, j->streams[b->owner]);
        break;
    case 3: juggle_move(j, b); break;
    default: /* b becomes a copy of the other, which waits until it is read */
        if (b == other) {
            break;
        }
        order(j->f, j->streams[other->owner], s);
        assert_ok(tide__host_copy(d, 0, s, b->va, other->va, BLOCK_BYTES));
        order(j->f, s, j->streams[other->owner]);
        b->seed = other->seed;
        break;
    }
}

static void random_right_programs_are_not_flagged(void **state) {
    fixture *f = *state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        juggler j = {.f = f, .random = seed};
        print_message("    seed %" PRIu64 "\n", seed);
        tide__host_set_lateness(f->d, seed, seed * 50000);
        for (size_t i = 0; i < STREAMS; i++) {
            j.streams[i] = new_stream(f);
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            struct juggled *b = &j.blocks[i];
            b->va = new_block(f, GRANULE, &b->chunk);
            b->owner = i % STREAMS;
            assert_ok(tide__host_fill_pattern(f->d, 0, j.streams[b->owner], b->va, b->seed, BLOCK_BYTES));
        }
        for (int step = 0; step < STEPS; step++) {
            juggle_once(&j);
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            struct juggled *b = &j.blocks[i];
            assert_ok(tide__host_check_pattern(f->d, 0, j.streams[b->owner], b->va, b->seed, BLOCK_BYTES));
            retire(&j, b, true);
        }
        for (size_t i = 0; i < STREAMS; i++) {
            assert_ok(f->d->ops->stream_destroy(f->d, 0, j.streams[i])); /* drains: the host knows all */
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            assert_ok(f->d->ops->unmap(f->d, 0, j.blocks[i].va, GRANULE));
            assert_ok(f->d->ops->unreserve(f->d, 0, j.blocks[i].va, GRANULE));
            assert_ok(f->d->ops->chunk_release(f->d, 0, j.blocks[i].chunk));
        }
        assert_int_equal(wrong_bytes(f), 0);
        assert_nothing_seen(f);
    }
    assert_int_equal(free_bytes_of(f->d), CAPACITY);
}

/* Threads that queue, wait and unmap on one device, each with memory of its own. */
typedef struct worker {
    tide__device *d;
    uint64_t seed;
    int wrong;
} worker;

static void *worker_main(void *argument) {
    worker *w = argument;
    tide__device *d = w->d;
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t va = 0;
        tide__chunk_handle chunk = 0;
        tide_stream s = 0;
        w->wrong += d->ops->reserve(d, 0, GRANULE, 0, 0, &va) != TIDE_OK;
        w->wrong += d->ops->chunk_create(d, 0, GRANULE, &chunk) != TIDE_OK;
        w->wrong += d->ops->map(d, 0, va, GRANULE, chunk) != TIDE_OK;
        w->wrong += d->ops->set_access(d, 0, va, GRANULE) != TIDE_OK;
        w->wrong += d->ops->stream_create(d, 0, &s) != TIDE_OK;
        w->wrong += tide__host_fill_pattern(d, 0, s, va, w->seed + i, 32768) != TIDE_OK;
        w->wrong += tide__host_check_pattern(d, 0, s, va, w->seed + i, 32768) != TIDE_OK;
        w->wrong += (i % 2 ? tide__host_device_sync(d, 0) : tide__host_stream_sync(d, 0, s)) != TIDE_OK;
        w->wrong += d->ops->stream_destroy(d, 0, s) != TIDE_OK;
        w->wrong += d->ops->chunk_release(d, 0, chunk) != TIDE_OK;
        w->wrong += d->ops->unmap(d, 0, va, GRANULE) != TIDE_OK;
        w->wrong += d->ops->unreserve(d, 0, va, GRANULE) != TIDE_OK;
    }
    return NULL;
}

static void threads_work_side_by_side(void **state) {
    fixture *f = *state;
    pthread_t threads[4];
    worker workers[4];
    tide__host_set_lateness(f->d, 7, 20000);
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (worker){.d = f->d, .seed = i * 1000};
        assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    assert_int_equal(wrong_bytes(f), 0);
    assert_nothing_seen(f);
    assert_int_equal(free_bytes_of(f->d), CAPACITY);
    assert_int_equal(tide__host_resident_bytes(f->d, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_move_under_a_running_kernel_is_right),
        TEST(raw_free_waits_for_the_device),
        TEST(random_right_programs_are_not_flagged),
        TEST(threads_work_side_by_side),
    };
    return cmocka_run_group_tests_name("host device: right programs", tests, NULL, NULL);
}
