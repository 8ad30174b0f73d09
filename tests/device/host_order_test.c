/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host device takes to be ordered, against an oracle that keeps, for
 * each operation, the plain set of those before it. Random programs queue
 * operations on ranges that overlap through two aliases, with random events,
 * waits, queries, syncs, streams that end and begin, unmaps, and chunks that
 * are released and created again on the same bytes. For every call the two must
 * agree on whether it is wrong; a program ends with its first wrong call.
 *
 * The operations touch no bytes, so that a wrong program is no data race of
 * the test's own.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device_test.h"

enum { STREAMS = 4, EVENTS = 5, RANGES = 3, MAX_OPS = 60, CHUNKS = 2, ALIASES = 2 };
#define CHUNK_BYTES (2 * GRANULE) /* two cells of the histories */

typedef uint64_t op_set; /* bit i: operation i */

/* Bytes of a chunk, and through which of its mappings. */
typedef struct piece {
    int chunk, alias;
    uint64_t lo, hi;
    bool writes;
} piece;

typedef struct oracle {
    op_set stream[STREAMS]; /* what comes before the next operation there */
    op_set event[EVENTS];
    op_set host;
    op_set through[ALIASES][CHUNKS]; /* operations through this mapping */
    piece pieces[MAX_OPS][RANGES * CHUNKS];
    size_t piece_count[MAX_OPS];
    size_t ops;
} oracle;

typedef struct trial {
    tide__device *d;
    uint64_t random;
    oracle o;
    tide_stream streams[STREAMS];
    tide__event events[EVENTS];
    tide__chunk_handle chunks[CHUNKS];
    uint64_t va[ALIASES]; /* alias 0 maps chunk 0 then 1, alias 1 the other way round */
} trial;

static _Atomic int violations;
static size_t right_calls, wrong_ops, wrong_unmaps;

/* Work that an unmap took the ground from is reported when it runs, at some
 * later time: only what is said of the call itself counts here. */
static void count(void *user, const tide__host_violation *v) {
    if (v->kind == TIDE__HOST_UNMAPPED_WORK) {
        return;
    }
    TIDE__CHECK(v->kind == TIDE__HOST_UNORDERED || v->kind == TIDE__HOST_UNMAP_BUSY ||
                v->kind == TIDE__HOST_UNMAP_UNKNOWN);
    atomic_fetch_add(&violations, 1);
}

static void nothing(void *user) { (void)user; }

static uint64_t draw(trial *t, uint64_t below) { return next_random(&t->random) % below; }

static uint64_t mapping_va(const trial *t, int alias, int chunk) {
    return t->va[alias] + (uint64_t)(alias == 0 ? chunk : CHUNKS - 1 - chunk) * CHUNK_BYTES;
}

/* The call was made; does the device say of it what the oracle says? Says
 * whether the program may go on. */
static bool agree(trial *t, bool wrong, const char *what, size_t *counter) {
    bool found = atomic_exchange(&violations, 0) > 0;
    if (found != wrong) {
        print_error("operation %zu, %s: the device says %s, the oracle %s\n", t->o.ops, what,
                    found ? "wrong" : "right", wrong ? "wrong" : "right");
        fail();
    }
    (*(wrong ? counter : &right_calls))++;
    return !wrong;
}

/* Most wrong calls are not made: programs would be over after a few. */
static bool spare(trial *t, bool wrong) { return wrong && draw(t, 16) != 0; }

/* ---- Operations ---- */

static void add_pieces(trial *t, int alias, uint64_t from, uint64_t to, bool writes) {
    oracle *o = &t->o;
    for (int c = 0; c < CHUNKS; c++) {
        uint64_t at = mapping_va(t, alias, c) - t->va[alias];
        uint64_t lo = tide__max(from, at), hi = tide__min(to, at + CHUNK_BYTES);
        if (lo >= hi) {
            continue;
        }
        o->pieces[o->ops][o->piece_count[o->ops]++] = (piece){c, alias, lo - at, hi - at, writes};
    }
}

static bool at_odds(const piece *a, const piece *b) {
    return a->chunk == b->chunk && a->lo < b->hi && b->lo < a->hi && (a->writes || b->writes);
}

/* Operation o->ops, as queued on this stream now, is at odds with an earlier one. */
static bool oracle_finds(const oracle *o, size_t stream) {
    size_t i = o->ops;
    op_set before = o->stream[stream] | o->host;
    for (size_t j = 0; j < i; j++) {
        for (size_t a = 0; a < o->piece_count[i] && !(before >> j & 1); a++) {
            for (size_t b = 0; b < o->piece_count[j]; b++) {
                if (at_odds(&o->pieces[i][a], &o->pieces[j][b])) {
                    return true;
                }
            }
        }
    }
    return false;
}

static void oracle_queue(oracle *o, size_t stream) {
    size_t i = o->ops++;
    o->stream[stream] |= o->host | (op_set)1 << i;
    for (size_t a = 0; a < o->piece_count[i]; a++) {
        o->through[o->pieces[i][a].alias][o->pieces[i][a].chunk] |= (op_set)1 << i;
    }
}

/* Ranges around the edges of cells and chunks, where mistakes would be. */
static bool step_queue(trial *t) {
    tide__host_range ranges[2][RANGES]; /* reads, writes */
    size_t counts[2] = {0, 0}, n = 1 + draw(t, RANGES), stream = draw(t, STREAMS);
    t->o.piece_count[t->o.ops] = 0;
    for (size_t i = 0; i < n; i++) {
        int alias = (int)draw(t, ALIASES);
        size_t writes = draw(t, 3) == 0;
        uint64_t from = (1 + draw(t, 3)) * GRANULE + draw(t, 8) * 512 - 2048, to = from + 1 + draw(t, 2000);
        ranges[writes][counts[writes]++] = (tide__host_range){t->va[alias] + from, to - from};
        add_pieces(t, alias, from, to, writes);
    }
    bool wrong = oracle_finds(&t->o, stream);
    if (spare(t, wrong)) {
        return true;
    }
    assert_ok(tide__host_callback(t->d, 0, t->streams[stream], nothing, NULL, ranges[0], counts[0], ranges[1],
                                  counts[1]));
    oracle_queue(&t->o, stream);
    return agree(t, wrong, "queue", &wrong_ops);
}

/* ---- Order ---- */

static bool step_record(trial *t) {
    size_t e = draw(t, EVENTS), s = draw(t, STREAMS);
    assert_ok(t->d->ops->event_record(t->d, 0, t->events[e], t->streams[s]));
    t->o.event[e] = t->o.stream[s];
    return true;
}

static bool step_stream_wait(trial *t) {
    size_t e = draw(t, EVENTS), s = draw(t, STREAMS);
    assert_ok(t->d->ops->stream_wait_event(t->d, 0, t->streams[s], t->events[e]));
    t->o.stream[s] |= t->o.event[e];
    return true;
}

static bool step_learn(trial *t) {
    size_t e = draw(t, EVENTS), s = draw(t, STREAMS);
    switch (draw(t, 8)) {
    case 0:
        assert_ok(t->d->ops->event_wait(t->d, 0, t->events[e], UINT64_MAX));
        t->o.host |= t->o.event[e];
        break;
    case 1:
        assert_ok(tide__host_stream_sync(t->d, 0, t->streams[s]));
        t->o.host |= t->o.stream[s];
        break;
    case 2: /* the stream ends, another takes its lane */
        assert_ok(t->d->ops->stream_destroy(t->d, 0, t->streams[s]));
        assert_ok(t->d->ops->stream_create(t->d, 0, &t->streams[s]));
        t->o.host |= t->o.stream[s];
        t->o.stream[s] = 0;
        break;
    default: /* done or not is chance; the oracle hears what the host heard */
        if (t->d->ops->event_query(t->d, 0, t->events[e]) == TIDE_OK) {
            t->o.host |= t->o.event[e];
        }
        break;
    }
    return true;
}

/* ---- Mappings ---- */

static bool step_remap(trial *t) {
    int alias = (int)draw(t, ALIASES), c = (int)draw(t, CHUNKS);
    bool wrong = (t->o.through[alias][c] & ~t->o.host) != 0;
    if (spare(t, wrong)) {
        return true;
    }
    assert_ok(t->d->ops->unmap(t->d, 0, mapping_va(t, alias, c), CHUNK_BYTES));
    map_at(t->d, mapping_va(t, alias, c), CHUNK_BYTES, t->chunks[c]);
    t->o.through[alias][c] = 0;
    return agree(t, wrong, "unmap", &wrong_unmaps);
}

/* Released and created again: a new handle, the same bytes, the same history. */
static bool step_rebirth(trial *t) {
    int c = (int)draw(t, CHUNKS);
    bool wrong = ((t->o.through[0][c] | t->o.through[1][c]) & ~t->o.host) != 0;
    if (spare(t, wrong)) {
        return true;
    }
    for (int alias = 0; alias < ALIASES; alias++) {
        assert_ok(t->d->ops->unmap(t->d, 0, mapping_va(t, alias, c), CHUNK_BYTES));
        t->o.through[alias][c] = 0;
    }
    assert_ok(t->d->ops->chunk_release(t->d, 0, t->chunks[c]));
    t->chunks[c] = chunk_of(t->d, CHUNK_BYTES);
    for (int alias = 0; alias < ALIASES; alias++) {
        map_at(t->d, mapping_va(t, alias, c), CHUNK_BYTES, t->chunks[c]);
    }
    return agree(t, wrong, "unmap and release", &wrong_unmaps);
}

/* ---- Programs ---- */

static void trial_run(trial *t) {
    memset(&t->o, 0, sizeof t->o);
    while (t->o.ops < MAX_OPS) {
        uint64_t r = draw(t, 100);
        bool go_on = r < 30   ? step_queue(t)
                     : r < 50 ? step_record(t)
                     : r < 75 ? step_stream_wait(t)
                     : r < 96 ? step_learn(t)
                     : r < 99 ? step_remap(t)
                              : step_rebirth(t);
        if (!go_on) {
            break;
        }
    }
    assert_ok(tide__host_device_sync(t->d, 0));
    for (size_t e = 0; e < EVENTS; e++) {
        assert_ok(t->d->ops->event_record(t->d, 0, t->events[e], 0));
    }
    assert_ok(tide__host_device_sync(t->d, 0));
}

static void the_device_agrees_with_an_oracle(void **state) {
    trial t = {.random = 1};
    assert_ok(tide__host_open(NULL, &t.d));
    tide__host_set_handler(t.d, count, NULL);
    for (size_t i = 0; i < STREAMS; i++) {
        assert_ok(t.d->ops->stream_create(t.d, 0, &t.streams[i]));
    }
    for (size_t i = 0; i < EVENTS; i++) {
        assert_ok(t.d->ops->event_create(t.d, 0, &t.events[i]));
    }
    for (size_t c = 0; c < CHUNKS; c++) {
        t.chunks[c] = chunk_of(t.d, CHUNK_BYTES);
    }
    for (int alias = 0; alias < ALIASES; alias++) {
        t.va[alias] = reserve(t.d, CHUNKS * CHUNK_BYTES);
        for (int c = 0; c < CHUNKS; c++) {
            map_at(t.d, mapping_va(&t, alias, c), CHUNK_BYTES, t.chunks[c]);
        }
    }
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        t.random = seed;
        trial_run(&t);
    }
    print_message("    %zu right calls, %zu unordered operations, %zu unmaps too early\n", right_calls,
                  wrong_ops, wrong_unmaps);
    assert_true(right_calls > 10 * (wrong_ops + wrong_unmaps) && wrong_ops > 500 && wrong_unmaps > 100);
    t.d->ops->close(t.d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_device_agrees_with_an_oracle)};
    return cmocka_run_group_tests_name("host device: order", tests, NULL, NULL);
}
