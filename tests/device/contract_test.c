/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of device.h, held against every backend: host, sim, the fault
 * wrapper (with nothing armed) over each, and cuda, whose driver is the stand-in
 * over host. A backend passes all of it or is no backend.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device_test.h"
#include "standin/use.h"

#define CAPACITY (64 * GRANULE)
#define UNTOUCHED UINT64_C(0x5151515151515151) /* what outputs hold before a call that must fail */

/* ---- The backends ---- */

static tide__device *open_host(void) {
    tide__device *d = NULL;
    assert_ok(tide__host_open(&(tide__host_options){.device_count = 2, .capacity_bytes = CAPACITY}, &d));
    return d;
}

static tide__device *open_sim(void) {
    tide__device *d = NULL;
    assert_ok(tide__sim_open(&(tide__sim_options){.device_count = 2, .capacity_bytes = CAPACITY}, &d));
    return d;
}

static tide__device *wrap(tide__device *inner) {
    tide__device *d = NULL;
    assert_ok(tide__fault_open(inner, &d));
    return d;
}

static tide__device *open_fault_host(void) { return wrap(open_host()); }
static tide__device *open_fault_sim(void) { return wrap(open_sim()); }

static tide__device *beneath_cuda; /* the host device that its driver stands in with */

static tide__device *open_cuda(void) {
    tide__device *d = NULL;
    beneath_cuda = open_host();
    assert_non_null(standin_load());
    standin_load()->serve(beneath_cuda);
    assert_ok(tide__cuda_open(&d));
    return d;
}

static bool is_cuda(tide__device *d) { return strcmp(d->ops->name, "cuda") == 0; }

/* The driver calls more things an invalid value than we do. */
static tide_status in_use(tide__device *d) { return is_cuda(d) ? TIDE_INVALID_ARGUMENT : TIDE_IN_USE; }

typedef struct backend {
    const char *name;
    tide__device *(*open)(void);
} backend;

static const backend backends[] = {{"host", open_host},
                                   {"sim", open_sim},
                                   {"fault over host", open_fault_host},
                                   {"fault over sim", open_fault_sim},
                                   {"cuda over the stand-in", open_cuda}};

static int set_up(void **state) {
    const backend *b = *state;
    *state = b->open();
    return 0;
}

static int tear_down(void **state) {
    tide__device *d = *state;
    d->ops->close(d);
    if (beneath_cuda != NULL) {
        standin_state s;
        standin_load()->get(&s);
        standin_load()->serve(NULL);
        beneath_cuda->ops->close(beneath_cuda);
        beneath_cuda = NULL;
        assert_string_equal(s.first_without, "");
        assert_int_equal(s.contexts, 0);
    }
    return 0;
}

/* ---- Properties and memory ---- */

static void properties_are_sane(void **state) {
    tide__device *d = *state;
    tide__device_properties p;
    assert_int_equal(d->ops->count(d), 2);
    assert_true(d->ops->struct_size >= sizeof(tide__device_ops));
    for (int gpu = 0; gpu < 2; gpu++) {
        assert_ok(d->ops->properties(d, gpu, &p));
        assert_int_equal(p.total_bytes, CAPACITY);
        assert_int_equal(p.granularity, GRANULE);
        assert_true(p.address_bytes >= 4 * CAPACITY);
    }
    assert_int_equal(free_bytes_of(d), CAPACITY);
}

static void chunks_are_created_up_to_the_capacity(void **state) {
    tide__device *d = *state;
    tide__chunk_handle chunks[64], extra = UNTOUCHED;
    for (size_t i = 0; i < 64; i++) {
        chunks[i] = chunk_of(d, GRANULE);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(chunks[i], chunks[j]);
        }
    }
    assert_int_equal(free_bytes_of(d), 0);
    assert_fails(TIDE_NO_DEVICE_MEMORY, d->ops->chunk_create(d, 0, GRANULE, &extra));
    assert_true(strlen(tide_last_error()) > 0);
    assert_int_equal(extra, UNTOUCHED);
    /* The other GPU is not concerned, and what is released can be taken again. */
    assert_ok(d->ops->chunk_create(d, 1, GRANULE, &extra));
    assert_ok(d->ops->chunk_release(d, 1, extra));
    for (size_t i = 0; i < 64; i += 2) {
        assert_ok(d->ops->chunk_release(d, 0, chunks[i]));
    }
    assert_int_equal(free_bytes_of(d), CAPACITY / 2);
    extra = chunk_of(d, CAPACITY / 2); /* one, though the gaps are small: physical memory has no order */
    assert_int_equal(free_bytes_of(d), 0);
    assert_ok(d->ops->chunk_release(d, 0, extra));
}

static void sizes_must_be_multiples(void **state) {
    tide__device *d = *state;
    uint64_t out = UNTOUCHED;
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->chunk_create(d, 0, 0, &out));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->chunk_create(d, 0, GRANULE + 1, &out));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->reserve(d, 0, 0, 0, 0, &out));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->reserve(d, 0, GRANULE / 2, 0, 0, &out));
    assert_int_equal(out, UNTOUCHED);
    assert_int_equal(free_bytes_of(d), CAPACITY);
}

static void released_handles_are_dead(void **state) {
    tide__device *d = *state;
    tide__chunk_handle chunk = chunk_of(d, GRANULE);
    uint64_t va = reserve(d, GRANULE);
    assert_ok(d->ops->chunk_release(d, 0, chunk));
    assert_fails(TIDE_BAD_HANDLE, d->ops->chunk_release(d, 0, chunk));
    assert_fails(TIDE_BAD_HANDLE, d->ops->map(d, 0, va, GRANULE, chunk));
    assert_fails(TIDE_BAD_HANDLE, d->ops->chunk_release(d, 0, 0));
    assert_fails(TIDE_BAD_HANDLE, d->ops->chunk_release(d, 0, UINT64_MAX));
    tide__chunk_handle again = chunk_of(d, GRANULE); /* may take the old one's place */
    assert_int_not_equal(again, chunk);
    assert_fails(TIDE_BAD_HANDLE, d->ops->chunk_release(d, 0, chunk));
    assert_ok(d->ops->chunk_release(d, 0, again));
    assert_int_equal(free_bytes_of(d), CAPACITY);
    assert_ok(d->ops->unreserve(d, 0, va, GRANULE));
}

/* ---- Addresses ---- */

static void reservations_are_aligned_and_apart(void **state) {
    tide__device *d = *state;
    uint64_t va[8] = {0};
    for (size_t i = 0; i < 8; i++) {
        uint64_t align = i < 4 ? 0 : (GRANULE << i);
        assert_ok(d->ops->reserve(d, 0, 3 * GRANULE, align, 0, &va[i]));
        assert_int_equal(va[i] % (align ? align : GRANULE), 0);
        assert_int_not_equal(va[i], 0);
        for (size_t j = 0; j < i; j++) {
            assert_true(va[i] + 3 * GRANULE <= va[j] || va[j] + 3 * GRANULE <= va[i]);
        }
    }
    for (size_t i = 0; i < 8; i++) {
        assert_ok(d->ops->unreserve(d, 0, va[i], 3 * GRANULE));
    }
    assert_int_equal(free_bytes_of(d), CAPACITY); /* addresses are no bytes */
}

static void a_hint_is_exact(void **state) {
    tide__device *d = *state;
    uint64_t freed = reserve(d, 64 * GRANULE), out = UNTOUCHED;
    assert_ok(d->ops->unreserve(d, 0, freed, 64 * GRANULE));
    /* Which addresses are free the backend and the sanitizers decide: one of these is. */
    const uint64_t hints[] = {freed, UINT64_C(1) << 45};
    uint64_t hint = hints[0];
    if (d->ops->reserve(d, 0, 2 * GRANULE, 0, hint, &out) != TIDE_OK) {
        hint = hints[1];
        assert_ok(d->ops->reserve(d, 0, 2 * GRANULE, 0, hint, &out));
    }
    assert_int_equal(out, hint);
    out = UNTOUCHED;
    assert_fails(TIDE_NO_ADDRESSES, d->ops->reserve(d, 0, GRANULE, 0, hint, &out));
    assert_fails(TIDE_NO_ADDRESSES, d->ops->reserve(d, 0, GRANULE, 0, hint + GRANULE, &out));
    assert_int_equal(out, UNTOUCHED);
    assert_ok(d->ops->unreserve(d, 0, hint, 2 * GRANULE));
}

static void only_whole_reservations_are_given_back(void **state) {
    tide__device *d = *state;
    uint64_t va = reserve(d, 4 * GRANULE);
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unreserve(d, 0, va, 2 * GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unreserve(d, 0, va + GRANULE, 3 * GRANULE));
    tide__chunk_handle chunk = chunk_of(d, GRANULE);
    map_at(d, va + 2 * GRANULE, GRANULE, chunk);
    assert_fails(in_use(d), d->ops->unreserve(d, 0, va, 4 * GRANULE));
    assert_ok(d->ops->unmap(d, 0, va + 2 * GRANULE, GRANULE));
    assert_ok(d->ops->unreserve(d, 0, va, 4 * GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unreserve(d, 0, va, 4 * GRANULE));
    assert_ok(d->ops->chunk_release(d, 0, chunk));
}

/* ---- Mappings ---- */

static void only_whole_chunks_are_mapped(void **state) {
    tide__device *d = *state;
    uint64_t va = reserve(d, 8 * GRANULE);
    tide__chunk_handle chunk = chunk_of(d, 4 * GRANULE);
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->map(d, 0, va, 2 * GRANULE, chunk));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->map(d, 0, va, 8 * GRANULE, chunk));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->map(d, 0, va + 4096, 4 * GRANULE, chunk));
    assert_fails(TIDE_INVALID_ARGUMENT,
                 d->ops->map(d, 0, va + 6 * GRANULE, 4 * GRANULE, chunk)); /* past the end */
    assert_ok(d->ops->map(d, 0, va + 4 * GRANULE, 4 * GRANULE, chunk));
    assert_ok(d->ops->unmap(d, 0, va + 4 * GRANULE, 4 * GRANULE));
    assert_ok(d->ops->unreserve(d, 0, va, 8 * GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT,
                 d->ops->map(d, 0, va, 4 * GRANULE, chunk)); /* no reservation any more */
    assert_ok(d->ops->chunk_release(d, 0, chunk));
}

static void nothing_is_mapped_twice(void **state) {
    tide__device *d = *state;
    uint64_t va = reserve(d, 8 * GRANULE);
    tide__chunk_handle big = chunk_of(d, 4 * GRANULE), small = chunk_of(d, GRANULE);
    map_at(d, va + 2 * GRANULE, 4 * GRANULE, big);
    for (uint64_t i = 2; i < 6; i++) {
        assert_fails(in_use(d), d->ops->map(d, 0, va + i * GRANULE, GRANULE, small));
    }
    assert_fails(in_use(d), d->ops->map(d, 0, va, 4 * GRANULE, big)); /* overlaps from below */
    assert_fails(in_use(d), d->ops->map(d, 0, va + 4 * GRANULE, 4 * GRANULE, big));
    map_at(d, va + 1 * GRANULE, GRANULE, small);
    assert_ok(d->ops->unmap(d, 0, va + GRANULE, 5 * GRANULE)); /* two that adjoin, in one call */
    assert_ok(d->ops->map(d, 0, va, 4 * GRANULE, big));
    assert_ok(d->ops->unmap(d, 0, va, 4 * GRANULE));
    assert_ok(d->ops->chunk_release(d, 0, big));
    assert_ok(d->ops->chunk_release(d, 0, small));
    assert_ok(d->ops->unreserve(d, 0, va, 8 * GRANULE));
}

static void only_whole_mappings_are_unmapped(void **state) {
    tide__device *d = *state;
    uint64_t va = reserve(d, 8 * GRANULE);
    tide__chunk_handle a = chunk_of(d, 2 * GRANULE), b = chunk_of(d, 2 * GRANULE);
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va, 2 * GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->set_access(d, 0, va, 2 * GRANULE));
    map_at(d, va, 2 * GRANULE, a);
    map_at(d, va + 4 * GRANULE, 2 * GRANULE, b);
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va + GRANULE, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va, 6 * GRANULE)); /* a gap */
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va, 4 * GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->set_access(d, 0, va, 6 * GRANULE));
    /* What failed changed nothing: both still stand. */
    assert_ok(d->ops->unmap(d, 0, va, 2 * GRANULE));
    assert_ok(d->ops->unmap(d, 0, va + 4 * GRANULE, 2 * GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, va, 2 * GRANULE));
    assert_ok(d->ops->chunk_release(d, 0, a));
    assert_ok(d->ops->chunk_release(d, 0, b));
    assert_ok(d->ops->unreserve(d, 0, va, 8 * GRANULE));
}

static void an_alias_holds_the_bytes(void **state) {
    tide__device *d = *state;
    uint64_t va = reserve(d, 4 * GRANULE);
    tide__chunk_handle chunk = chunk_of(d, 2 * GRANULE);
    map_at(d, va, 2 * GRANULE, chunk);
    map_at(d, va + 2 * GRANULE, 2 * GRANULE, chunk);
    assert_int_equal(free_bytes_of(d), CAPACITY - 2 * GRANULE); /* once, though mapped twice */
    assert_ok(d->ops->chunk_release(d, 0, chunk));
    assert_fails(TIDE_BAD_HANDLE, d->ops->chunk_release(d, 0, chunk));
    assert_int_equal(free_bytes_of(d), CAPACITY - 2 * GRANULE);
    assert_ok(d->ops->unmap(d, 0, va, 2 * GRANULE));
    assert_int_equal(free_bytes_of(d), CAPACITY - 2 * GRANULE);
    assert_ok(d->ops->unmap(d, 0, va + 2 * GRANULE, 2 * GRANULE));
    assert_int_equal(free_bytes_of(d), CAPACITY);
    assert_ok(d->ops->unreserve(d, 0, va, 4 * GRANULE));
}

static void raw_memory_is_taken_and_given(void **state) {
    tide__device *d = *state;
    uint64_t a = UNTOUCHED, b = UNTOUCHED, c = UNTOUCHED;
    assert_ok(d->ops->raw_alloc(d, 0, 20 * GRANULE, &a));
    assert_ok(d->ops->raw_alloc(d, 0, 30 * GRANULE, &b));
    assert_true(a + 20 * GRANULE <= b || b + 30 * GRANULE <= a);
    assert_int_equal(free_bytes_of(d), 14 * GRANULE);
    assert_fails(TIDE_NO_DEVICE_MEMORY, d->ops->raw_alloc(d, 0, 15 * GRANULE, &c));
    assert_int_equal(c, UNTOUCHED);
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->raw_free(d, 0, a + GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->unmap(d, 0, a, 20 * GRANULE));
    assert_ok(d->ops->raw_free(d, 0, a));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->raw_free(d, 0, a));
    assert_ok(d->ops->raw_free(d, 0, b));
    assert_int_equal(free_bytes_of(d), CAPACITY);
}

/* ---- Streams and events ---- */

static void stream_ids_are_never_used_again(void **state) {
    tide__device *d = *state;
    uint64_t ids[20], id = UNTOUCHED;
    for (size_t i = 0; i < 20; i++) {
        tide_stream stream = 0;
        if (i >= 2) {
            assert_ok(d->ops->stream_create(d, 0, &stream));
        }
        assert_ok(d->ops->stream_id(d, i == 1 ? 1 : 0, stream, &ids[i])); /* stream 0 of each GPU first */
        assert_ok(d->ops->stream_id(d, i == 1 ? 1 : 0, stream, &id));
        assert_int_equal(id, ids[i]);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(ids[i], ids[j]);
        }
        if (i >= 2) {
            assert_ok(d->ops->stream_destroy(d, 0, stream));
        }
    }
}

static void stale_streams_are_refused(void **state) {
    tide__device *d = *state;
    tide_stream stream;
    tide__event event;
    assert_ok(d->ops->stream_create(d, 0, &stream));
    assert_ok(d->ops->event_create(d, 0, &event));
    assert_ok(d->ops->event_record(d, 0, event, stream));
    assert_ok(d->ops->stream_wait_event(d, 0, stream, event));
    assert_ok(d->ops->stream_destroy(d, 0, stream));
    assert_fails(TIDE_BAD_HANDLE, d->ops->stream_destroy(d, 0, stream));
    assert_fails(TIDE_BAD_HANDLE, d->ops->event_record(d, 0, event, stream));
    assert_fails(TIDE_BAD_HANDLE, d->ops->stream_wait_event(d, 0, stream, event));
    assert_ok(d->ops->event_wait(d, 0, event, UINT64_MAX)); /* outlives its stream */
    assert_ok(d->ops->event_query(d, 0, event));
    assert_ok(d->ops->event_destroy(d, 0, event));
}

static void stream_0_stays(void **state) {
    tide__device *d = *state;
    uint64_t before = 0, after = UNTOUCHED;
    tide__event event = 0;
    assert_ok(d->ops->stream_id(d, 0, 0, &before));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->stream_destroy(d, 0, 0));
    assert_ok(d->ops->stream_id(d, 0, 0, &after));
    assert_int_equal(before, after);
    assert_ok(d->ops->event_create(d, 0, &event));
    assert_ok(d->ops->event_record(d, 0, event, 0));
    assert_ok(d->ops->event_destroy(d, 0, event));
}

static void events_complete(void **state) {
    tide__device *d = *state;
    tide__event a, b;
    tide_stream stream;
    assert_ok(d->ops->stream_create(d, 0, &stream));
    assert_ok(d->ops->event_create(d, 0, &a));
    assert_ok(d->ops->event_create(d, 0, &b));
    assert_int_not_equal(a, 0);
    assert_int_not_equal(a, b);
    assert_ok(d->ops->event_query(d, 0, a)); /* never recorded */
    assert_ok(d->ops->event_wait(d, 0, a, 0));
    for (int round = 0; round < 3; round++) {
        assert_ok(d->ops->event_record(d, 0, a, 0));
        assert_ok(d->ops->stream_wait_event(d, 0, stream, a));
        assert_ok(d->ops->event_record(d, 0, b, stream));
        assert_ok(d->ops->event_wait(d, 0, b, UINT64_MAX));
        assert_ok(d->ops->event_query(d, 0, b));
        assert_ok(d->ops->event_query(d, 0, a)); /* comes before b */
    }
    assert_ok(d->ops->event_destroy(d, 0, a));
    assert_fails(TIDE_BAD_HANDLE, d->ops->event_destroy(d, 0, a));
    assert_fails(TIDE_BAD_HANDLE, d->ops->event_query(d, 0, a));
    assert_fails(TIDE_BAD_HANDLE, d->ops->event_wait(d, 0, a, 0));
    assert_fails(TIDE_BAD_HANDLE, d->ops->event_record(d, 0, a, 0));
    assert_fails(TIDE_BAD_HANDLE, d->ops->stream_wait_event(d, 0, 0, a));
    assert_fails(TIDE_BAD_HANDLE, d->ops->event_query(d, 0, 0));
    assert_ok(d->ops->event_destroy(d, 0, b));
    assert_ok(d->ops->stream_destroy(d, 0, stream));
}

/* ---- Counters ---- */

static void calls_are_counted(void **state) {
    tide__device *d = *state;
    tide__device_counters before, after;
    uint64_t va, id;
    tide_stream stream;
    tide__event event;
    d->ops->counters(d, 0, &before);
    va = reserve(d, GRANULE);
    tide__chunk_handle chunk = chunk_of(d, GRANULE);
    map_at(d, va, GRANULE, chunk);
    assert_ok(d->ops->unmap(d, 0, va, GRANULE));
    assert_ok(d->ops->chunk_release(d, 0, chunk));
    assert_ok(d->ops->unreserve(d, 0, va, GRANULE));
    assert_ok(d->ops->raw_alloc(d, 0, GRANULE, &va));
    assert_ok(d->ops->raw_free(d, 0, va));
    assert_ok(d->ops->stream_create(d, 0, &stream));
    assert_ok(d->ops->stream_id(d, 0, stream, &id));
    assert_ok(d->ops->event_create(d, 0, &event));
    assert_ok(d->ops->event_record(d, 0, event, stream));
    assert_ok(d->ops->event_wait(d, 0, event, UINT64_MAX));
    assert_ok(d->ops->event_query(d, 0, event));
    assert_ok(d->ops->stream_wait_event(d, 0, 0, event));
    bool capturing;
    assert_ok(d->ops->stream_capturing(d, 0, 0, &capturing));
    assert_ok(d->ops->peer_enable(d, 0, 1));
    assert_ok(d->ops->device_wait(d, 0, UINT64_MAX));
    assert_ok(d->ops->event_destroy(d, 0, event));
    assert_ok(d->ops->stream_destroy(d, 0, stream));
    free_bytes_of(d);
    d->ops->counters(d, 0, &after);
    for (int call = 0; call < TIDE__CALL_COUNT; call++) {
        assert_int_equal(after.calls[call] - before.calls[call], 1);
    }
    assert_true(after.driver_ns >= before.driver_ns);
    d->ops->counters(d, 1, &after);
    assert_int_equal(after.calls[TIDE__CALL_MAP], 0);
}

static void time_does_not_go_back(void **state) {
    tide__device *d = *state;
    uint64_t a = d->ops->now_ns(d), b = d->ops->now_ns(d);
    assert_true(b >= a);
}

/* ---- Against a model: random calls, right and wrong ones ---- */

#define MODEL_CHUNKS 24
#define MODEL_GRANULES 64 /* of addresses, in two reservations */

typedef struct model {
    tide__device *d;
    uint64_t va, random, used;
    struct model_chunk {
        tide__chunk_handle handle; /* 0: released or not yet created */
        uint64_t granules, mappings;
        bool exists;
    } chunks[MODEL_CHUNKS];
    int at[MODEL_GRANULES];     /* chunk + 1 whose mapping covers this granule */
    bool start[MODEL_GRANULES]; /* a mapping begins here */
} model;

static uint64_t draw(model *m, uint64_t below) { return next_random(&m->random) % below; }

static void model_gone(struct model_chunk *c, model *m) {
    if (c->exists && c->handle == 0 && c->mappings == 0) {
        m->used -= c->granules;
        c->exists = false;
    }
}

static void model_create(model *m) {
    struct model_chunk *c = &m->chunks[draw(m, MODEL_CHUNKS)];
    if (c->exists) {
        return;
    }
    uint64_t granules = 1 + draw(m, 8);
    tide__chunk_handle handle = UNTOUCHED;
    bool fits = m->used + granules <= CAPACITY / GRANULE;
    assert_fails(fits ? TIDE_OK : TIDE_NO_DEVICE_MEMORY,
                 m->d->ops->chunk_create(m->d, 0, granules * GRANULE, &handle));
    if (!fits) {
        return;
    }
    *c = (struct model_chunk){.handle = handle, .granules = granules, .exists = true};
    m->used += granules;
}

static void model_release(model *m) {
    struct model_chunk *c = &m->chunks[draw(m, MODEL_CHUNKS)];
    tide__chunk_handle handle = c->handle;
    assert_fails(handle ? TIDE_OK : TIDE_BAD_HANDLE, m->d->ops->chunk_release(m->d, 0, handle));
    c->handle = 0;
    model_gone(c, m);
}

static void model_map(model *m) {
    size_t i = draw(m, MODEL_CHUNKS), at = draw(m, MODEL_GRANULES);
    struct model_chunk *c = &m->chunks[i];
    uint64_t half = MODEL_GRANULES / 2, n = c->granules;
    tide_status want = TIDE_OK;
    if (!c->exists || !c->handle) {
        return;
    }
    if (at / half != (at + n - 1) / half || at + n > MODEL_GRANULES) {
        want = TIDE_INVALID_ARGUMENT;
    }
    for (size_t k = at; want == TIDE_OK && k < at + n; k++) {
        want = m->at[k] ? in_use(m->d) : TIDE_OK;
    }
    assert_fails(want, m->d->ops->map(m->d, 0, m->va + at * GRANULE, n * GRANULE, c->handle));
    if (want != TIDE_OK) {
        return;
    }
    assert_ok(m->d->ops->set_access(m->d, 0, m->va + at * GRANULE, n * GRANULE));
    for (size_t k = at; k < at + n; k++) {
        m->at[k] = (int)i + 1;
    }
    m->start[at] = true;
    c->mappings++;
}

static void model_unmap(model *m) {
    size_t at = draw(m, MODEL_GRANULES), n = 1 + draw(m, 10);
    if (at + n > MODEL_GRANULES / 2 && at < MODEL_GRANULES / 2) {
        n = MODEL_GRANULES / 2 - at; /* within one reservation */
    }
    if (at + n > MODEL_GRANULES) {
        n = MODEL_GRANULES - at;
    }
    bool whole = m->start[at] && (at + n == MODEL_GRANULES || !m->at[at + n] || m->start[at + n]);
    for (size_t k = at; k < at + n; k++) {
        whole = whole && m->at[k];
    }
    assert_fails(whole ? TIDE_OK : TIDE_INVALID_ARGUMENT,
                 m->d->ops->unmap(m->d, 0, m->va + at * GRANULE, n * GRANULE));
    for (size_t k = at; whole && k < at + n; k++) {
        struct model_chunk *c = &m->chunks[m->at[k] - 1];
        if (m->start[k]) {
            c->mappings--;
        }
        m->start[k] = false;
        m->at[k] = 0;
        model_gone(c, m);
    }
}

static void model_run(tide__device *d, uint64_t seed) {
    model m = {.d = d, .random = seed};
    uint64_t half = MODEL_GRANULES / 2 * GRANULE, low, high;
    /* Two reservations side by side, so that a mapping across both is a possible mistake. */
    low = reserve(d, half);
    if (d->ops->reserve(d, 0, half, 0, low + half, &high) != TIDE_OK) {
        if (d->ops->reserve(d, 0, half, 0, low - half, &high) != TIDE_OK) {
            assert_ok(d->ops->unreserve(d, 0, low, half));
            return;
        }
    }
    m.va = low < high ? low : high;
    void (*const steps[])(model *) = {model_create, model_release, model_map,  model_map,
                                      model_map,    model_unmap,   model_unmap};
    for (int i = 0; i < 4000; i++) {
        steps[draw(&m, sizeof steps / sizeof *steps)](&m);
        assert_int_equal(free_bytes_of(d), CAPACITY - m.used * GRANULE);
    }
    for (size_t k = 0; k < MODEL_GRANULES; k++) {
        if (m.start[k]) {
            assert_ok(d->ops->unmap(d, 0, m.va + k * GRANULE, m.chunks[m.at[k] - 1].granules * GRANULE));
        }
    }
    for (size_t i = 0; i < MODEL_CHUNKS; i++) {
        if (m.chunks[i].handle) {
            assert_ok(d->ops->chunk_release(d, 0, m.chunks[i].handle));
        }
    }
    assert_ok(d->ops->unreserve(d, 0, low, half));
    assert_ok(d->ops->unreserve(d, 0, high, half));
    assert_int_equal(free_bytes_of(d), CAPACITY);
}

static void random_calls_match_a_model(void **state) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        print_message("    seed %" PRIu64 "\n", seed);
        model_run(*state, seed);
    }
}

/* ---- Threads ---- */

typedef struct hammer {
    tide__device *d;
    uint64_t seed;
    _Atomic int *wrong;
} hammer;

/* One life of a chunk, an event and a stream; counts what should have worked and did not. */
static int hammer_once(tide__device *d, uint64_t *random, uint64_t va) {
    const tide__device_ops *o = d->ops;
    uint64_t size = (1 + next_random(random) % 4) * GRANULE;
    tide__chunk_handle chunk;
    tide__event event;
    tide_stream stream;
    int wrong = 0;
    wrong += o->chunk_create(d, 0, size, &chunk) != TIDE_OK;
    wrong += o->map(d, 0, va, size, chunk) != TIDE_OK;
    wrong += o->set_access(d, 0, va, size) != TIDE_OK;
    wrong += o->stream_create(d, 0, &stream) != TIDE_OK;
    wrong += o->event_create(d, 0, &event) != TIDE_OK;
    wrong += o->event_record(d, 0, event, stream) != TIDE_OK;
    wrong += o->stream_wait_event(d, 0, 0, event) != TIDE_OK;
    wrong += o->event_wait(d, 0, event, UINT64_MAX) != TIDE_OK;
    wrong += o->event_query(d, 0, event) != TIDE_OK;
    wrong += o->chunk_release(d, 0, chunk) != TIDE_OK;
    wrong += o->unmap(d, 0, va, size) != TIDE_OK;
    wrong += o->event_destroy(d, 0, event) != TIDE_OK;
    wrong += o->stream_destroy(d, 0, stream) != TIDE_OK;
    wrong += o->chunk_release(d, 0, chunk) != TIDE_BAD_HANDLE;
    return wrong;
}

static void *hammer_main(void *argument) {
    hammer *h = argument;
    uint64_t random = h->seed, va;
    int wrong = h->d->ops->reserve(h->d, 0, 4 * GRANULE, 0, 0, &va) != TIDE_OK;
    for (int i = 0; i < 200 && !wrong; i++) {
        wrong += hammer_once(h->d, &random, va);
    }
    wrong += h->d->ops->unreserve(h->d, 0, va, 4 * GRANULE) != TIDE_OK;
    atomic_fetch_add(h->wrong, wrong);
    return NULL;
}

static void threads_do_not_disturb_each_other(void **state) {
    pthread_t threads[4];
    hammer hammers[4];
    _Atomic int wrong = 0;
    for (size_t i = 0; i < 4; i++) {
        hammers[i] = (hammer){.d = *state, .seed = i + 1, .wrong = &wrong};
        assert_int_equal(pthread_create(&threads[i], NULL, hammer_main, &hammers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(free_bytes_of(*state), CAPACITY);
}

/* ---- Captures, peers, the whole device ---- */

static tide__device *innermost(tide__device *d) {
    return is_cuda(d) ? beneath_cuda : strcmp(d->ops->name, "fault") == 0 ? tide__fault_inner(d) : d;
}

static void set_capturing(tide__device *d, tide_stream stream, bool on) {
    void *graph = NULL;
    if (is_cuda(d) && on) {
        assert_int_equal(standin_begin_capture(0, stream, 0), TIDE__CU_OK);
    } else if (is_cuda(d)) { /* the wait for the device, which the contract forbids callers, has spoilt it */
        assert_int_equal(standin_end_capture(0, stream), 901);
    } else if (on) {
        assert_ok(standin_begin_graph(innermost(d), 0, stream));
    } else {
        assert_ok(standin_end_graph(innermost(d), 0, stream, &graph));
        standin_destroy_graph(graph);
    }
}

static void a_captured_stream_is_not_touched(void **state) {
    tide__device *d = *state;
    tide_stream stream, other;
    tide__event event;
    bool capturing = true;
    assert_ok(d->ops->stream_create(d, 0, &stream));
    assert_ok(d->ops->stream_create(d, 0, &other));
    assert_ok(d->ops->event_create(d, 0, &event));
    assert_ok(d->ops->stream_capturing(d, 0, stream, &capturing));
    assert_false(capturing);
    set_capturing(d, stream, true);
    assert_ok(d->ops->stream_capturing(d, 0, stream, &capturing));
    assert_true(capturing);
    assert_ok(d->ops->stream_capturing(d, 0, other, &capturing));
    assert_false(capturing);
    assert_fails(TIDE_CAPTURING, d->ops->event_record(d, 0, event, stream));
    assert_ok(d->ops->event_query(d, 0, event)); /* never recorded */
    assert_ok(d->ops->event_record(d, 0, event, other));
    assert_fails(TIDE_CAPTURING, d->ops->stream_wait_event(d, 0, stream, event));
    assert_ok(d->ops->event_wait(d, 0, event, UINT64_MAX));
    assert_fails(TIDE_CAPTURING, d->ops->device_wait(d, 0, UINT64_MAX));
    assert_ok(d->ops->device_wait(d, 1, UINT64_MAX));
    assert_ok(d->ops->chunk_release(d, 0, chunk_of(d, GRANULE)));
    set_capturing(d, stream, false);
    assert_ok(d->ops->event_record(d, 0, event, stream));
    assert_ok(d->ops->device_wait(d, 0, UINT64_MAX));
    assert_ok(d->ops->event_query(d, 0, event));
    assert_ok(d->ops->event_destroy(d, 0, event));
    assert_ok(d->ops->stream_destroy(d, 0, other));
    assert_ok(d->ops->stream_destroy(d, 0, stream));
    capturing = true;
    assert_fails(TIDE_BAD_HANDLE, d->ops->stream_capturing(d, 0, stream, &capturing));
    assert_true(capturing);
}

static void peers_are_enabled(void **state) {
    tide__device *d = *state;
    assert_ok(d->ops->peer_enable(d, 0, 1));
    assert_ok(d->ops->peer_enable(d, 0, 1));
    assert_ok(d->ops->peer_enable(d, 0, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->peer_enable(d, 0, 2));
    assert_fails(TIDE_INVALID_ARGUMENT, d->ops->peer_enable(d, 0, -1));
}

/* Every call that takes a GPU, with one that is not there; what it would write stays. */
static void refuse_gpu(tide__device *d, int gpu) {
    const tide__device_ops *o = d->ops;
    tide__device_properties p;
    tide__device_counters counters;
    uint64_t a = UNTOUCHED, b = UNTOUCHED;
    bool capturing = true;
    assert_fails(TIDE_INVALID_ARGUMENT, o->properties(d, gpu, &p));
    assert_fails(TIDE_INVALID_ARGUMENT, o->mem_info(d, gpu, &a, &b));
    assert_fails(TIDE_INVALID_ARGUMENT, o->reserve(d, gpu, GRANULE, 0, 0, &a));
    assert_fails(TIDE_INVALID_ARGUMENT, o->unreserve(d, gpu, GRANULE, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, o->chunk_create(d, gpu, GRANULE, &a));
    assert_fails(TIDE_INVALID_ARGUMENT, o->chunk_release(d, gpu, 1));
    assert_fails(TIDE_INVALID_ARGUMENT, o->map(d, gpu, GRANULE, GRANULE, 1));
    assert_fails(TIDE_INVALID_ARGUMENT, o->set_access(d, gpu, GRANULE, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, o->unmap(d, gpu, GRANULE, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, o->raw_alloc(d, gpu, GRANULE, &a));
    assert_fails(TIDE_INVALID_ARGUMENT, o->raw_free(d, gpu, GRANULE));
    assert_fails(TIDE_INVALID_ARGUMENT, o->stream_id(d, gpu, 0, &a));
    assert_fails(TIDE_INVALID_ARGUMENT, o->stream_create(d, gpu, &a));
    assert_fails(TIDE_INVALID_ARGUMENT, o->stream_destroy(d, gpu, 1));
    assert_fails(TIDE_INVALID_ARGUMENT, o->event_create(d, gpu, &a));
    assert_fails(TIDE_INVALID_ARGUMENT, o->event_destroy(d, gpu, 1));
    assert_fails(TIDE_INVALID_ARGUMENT, o->event_record(d, gpu, 1, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, o->event_query(d, gpu, 1));
    assert_fails(TIDE_INVALID_ARGUMENT, o->event_wait(d, gpu, 1, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, o->stream_wait_event(d, gpu, 0, 1));
    assert_fails(TIDE_INVALID_ARGUMENT, o->stream_capturing(d, gpu, 0, &capturing));
    assert_fails(TIDE_INVALID_ARGUMENT, o->peer_enable(d, gpu, 0));
    assert_fails(TIDE_INVALID_ARGUMENT, o->device_wait(d, gpu, 0));
    assert_true(a == UNTOUCHED && b == UNTOUCHED && capturing);
    o->counters(d, gpu, &counters);
    assert_int_equal(counters.calls[TIDE__CALL_MAP], 0);
}

static void gpus_that_are_not_there_are_refused(void **state) {
    tide__device *d = *state;
    if (strcmp(innermost(d)->ops->name, "sim") == 0) {
        skip(); /* sim trusts its callers */
    }
    refuse_gpu(d, 2);
    refuse_gpu(d, -1);
    refuse_gpu(d, INT32_MAX);
}

static void a_sound_device_says_so(void **state) {
    tide__device *d = *state;
    tide__device_properties p;
    assert_int_equal(d->ops->health(d), TIDE__HEALTH_OK);
    assert_ok(d->ops->properties(d, 0, &p));
    assert_true(strlen(p.name) > 0);
    assert_true(p.numa_node >= -1);
}

/* ---- All of it on all of them ---- */

#define TEST(function) \
    { #function, function }
static const struct {
    const char *name;
    CMUnitTestFunction function;
} tests[] = {
    TEST(properties_are_sane),
    TEST(chunks_are_created_up_to_the_capacity),
    TEST(sizes_must_be_multiples),
    TEST(released_handles_are_dead),
    TEST(reservations_are_aligned_and_apart),
    TEST(a_hint_is_exact),
    TEST(only_whole_reservations_are_given_back),
    TEST(only_whole_chunks_are_mapped),
    TEST(nothing_is_mapped_twice),
    TEST(only_whole_mappings_are_unmapped),
    TEST(an_alias_holds_the_bytes),
    TEST(raw_memory_is_taken_and_given),
    TEST(stream_ids_are_never_used_again),
    TEST(stale_streams_are_refused),
    TEST(stream_0_stays),
    TEST(events_complete),
    TEST(calls_are_counted),
    TEST(time_does_not_go_back),
    TEST(random_calls_match_a_model),
    TEST(threads_do_not_disturb_each_other),
    TEST(a_captured_stream_is_not_touched),
    TEST(peers_are_enabled),
    TEST(gpus_that_are_not_there_are_refused),
    TEST(a_sound_device_says_so),
};
#define TEST_COUNT (sizeof tests / sizeof *tests)
#define BACKEND_COUNT (sizeof backends / sizeof *backends)

int main(void) {
    static struct CMUnitTest all[BACKEND_COUNT * TEST_COUNT];
    static char names[BACKEND_COUNT * TEST_COUNT][96];
    size_t n = 0;
    for (size_t b = 0; b < BACKEND_COUNT; b++) {
        for (size_t t = 0; t < TEST_COUNT; t++, n++) {
            snprintf(names[n], sizeof names[n], "%s: %s", backends[b].name, tests[t].name);
            all[n] =
                (struct CMUnitTest){names[n], tests[t].function, set_up, tear_down, (void *)&backends[b]};
        }
    }
    return cmocka_run_group_tests_name("device contract", all, NULL, NULL);
}
