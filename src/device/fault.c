/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault: the wrapper that fails chosen calls. Each function of the table asks
 * `strike` first; it counts the call, and a rule that comes due answers instead
 * of the wrapped device. Calls that are not of TIDE__CALL_LIST pass through.
 *
 * One lock guards counts and rules and is never held over a call of the wrapped
 * device. Bound: 8 rules at a time.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "device/fault.h"

typedef struct rule {
    int call;      /* or TIDE__FAULT_ANY */
    uint64_t left; /* calls until it is due; 0: due */
    tide_status status;
    bool sticky, spent;
} rule;

typedef struct fault {
    tide__device base;
    tide__device *inner;
    pthread_mutex_t lock;
    uint64_t calls[TIDE__CALL_COUNT + 1]; /* the last: all */
    uint64_t injected;
    _Atomic(int) health; /* a tide__health: lost or gone once such a failure was injected */
    rule rules[TIDE__FAULT_MAX_RULES];
    size_t rule_count;
} fault;

static const tide__device_ops fault_ops;

static fault *fault_of(tide__device *d) {
    TIDE__CHECK(d && d->ops == &fault_ops);
    return (fault *)d;
}

/* ---- Rules ---- */

/* This call counts for the rule; is it the one to fail? */
static bool rule_hits(rule *r, tide__call call) {
    if ((r->call != TIDE__FAULT_ANY && r->call != (int)call) || r->spent) {
        return false;
    }
    if (r->left > 0 && --r->left > 0) {
        return false;
    }
    r->spent = !r->sticky;
    return true;
}

/* TIDE_OK: the wrapped device is to be called. */
static tide_status strike(fault *f, tide__call call) {
    tide_status status = TIDE_OK;
    TIDE__CHECK((unsigned)call < TIDE__CALL_COUNT);
    pthread_mutex_lock(&f->lock);
    uint64_t number = ++f->calls[call];
    f->calls[TIDE__FAULT_ANY]++;
    for (size_t i = 0; i < f->rule_count; i++) {
        if (rule_hits(&f->rules[i], call) && status == TIDE_OK) {
            status = f->rules[i].status;
        }
    }
    if (status != TIDE_OK) {
        f->injected++;
    }
    if (status == TIDE_DEVICE_LOST || status == TIDE_DEVICE_GONE) {
        atomic_store(&f->health, status == TIDE_DEVICE_LOST ? TIDE__HEALTH_LOST : TIDE__HEALTH_GONE);
    }
    int health = atomic_load(&f->health);
    pthread_mutex_unlock(&f->lock);
    if (health != TIDE__HEALTH_OK) {
        status = health == TIDE__HEALTH_LOST ? TIDE_DEVICE_LOST : TIDE_DEVICE_GONE;
    }
    if (status == TIDE_OK || status == TIDE_NOT_READY) { /* the latter never has a message */
        return status;
    }
    return tide__fail(status, "fault: %s number %" PRIu64 " fails with %s, as armed", tide__call_name(call),
                      number, tide_status_name(status));
}

static bool status_known(tide_status status) {
    switch (status) {
#define X(name, value, text) case TIDE_##name:
        TIDE_STATUS_LIST(X)
#undef X
        return true;
    }
    return false;
}

static bool rule_valid(int call, uint64_t k, tide_status status) {
    return call >= 0 && call <= TIDE__FAULT_ANY && k > 0 && status != TIDE_OK && status_known(status);
}

static tide_status add_rules(fault *f, const rule *rules, size_t count) {
    pthread_mutex_lock(&f->lock);
    bool fits = f->rule_count + count <= TIDE__FAULT_MAX_RULES;
    if (fits) {
        memcpy(f->rules + f->rule_count, rules, count * sizeof *rules);
        f->rule_count += count;
    }
    pthread_mutex_unlock(&f->lock);
    return fits ? TIDE_OK
                : tide__fail(TIDE_LIMIT, "fault: more than %d rules; disarm first", TIDE__FAULT_MAX_RULES);
}

tide_status tide__fault_arm(tide__device *d, int call, uint64_t k, tide_status status, bool sticky) {
    if (!rule_valid(call, k, status)) {
        return tide__fail(TIDE_INVALID_ARGUMENT,
                          "fault: no such rule: call %d, number %" PRIu64 ", status %d", call, k,
                          (int)status);
    }
    rule r = {.call = call, .left = k, .status = status, .sticky = sticky};
    return add_rules(fault_of(d), &r, 1);
}

/* ---- Rules from text ---- */

static bool word_is(const char *word, size_t length, const char *text) {
    return strlen(text) == length && memcmp(word, text, length) == 0;
}

static bool parse_call(const char *word, size_t length, int *out) {
    for (int call = 0; call < TIDE__CALL_COUNT; call++) {
        if (word_is(word, length, tide__call_name((tide__call)call))) {
            *out = call;
            return true;
        }
    }
    *out = TIDE__FAULT_ANY;
    return word_is(word, length, "any");
}

static bool parse_number(const char *word, size_t length, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (word[i] < '0' || word[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(word[i] - '0'), &value)) {
            return false;
        }
    }
    *out = value;
    return length > 0;
}

static bool parse_status(const char *word, size_t length, tide_status *out) {
#define X(name, value, text)                                                    \
    if (word_is(word, length, #name) || word_is(word, length, "TIDE_" #name)) { \
        *out = TIDE_##name;                                                     \
        return true;                                                            \
    }
    TIDE_STATUS_LIST(X)
#undef X
    return false;
}

/* One rule, up to a comma or the end; the place behind it, or NULL. */
static const char *parse_rule(const char *text, rule *r) {
    const char *words[4] = {NULL};
    size_t lengths[4] = {0}, count = 0;
    for (;;) {
        if (count == 4) {
            return NULL;
        }
        words[count] = text;
        lengths[count] = strcspn(text, ":,");
        text += lengths[count++];
        if (*text != ':') {
            break;
        }
        text++;
    }
    *r = (rule){.sticky = count == 4};
    if (count < 3 || !parse_call(words[0], lengths[0], &r->call) ||
        !parse_number(words[1], lengths[1], &r->left) || !parse_status(words[2], lengths[2], &r->status) ||
        (r->sticky && !word_is(words[3], lengths[3], "sticky"))) {
        return NULL;
    }
    return rule_valid(r->call, r->left, r->status) ? text : NULL;
}

tide_status tide__fault_arm_text(tide__device *d, const char *text) {
    rule rules[TIDE__FAULT_MAX_RULES];
    size_t count = 0;
    for (const char *at = text;; at++) {
        if (count == TIDE__FAULT_MAX_RULES) {
            return tide__fail(TIDE_LIMIT, "fault: more than %d rules in \"%s\"", TIDE__FAULT_MAX_RULES, text);
        }
        const char *end = parse_rule(at, &rules[count]);
        if (!end) {
            return tide__fail(TIDE_INVALID_ARGUMENT,
                              "fault: \"%s\" at character %zu: expected CALL:NUMBER:STATUS[:sticky], such as "
                              "map:3:NO_DEVICE_MEMORY or any:17:DRIVER:sticky",
                              text, (size_t)(at - text) + 1);
        }
        count++;
        at = end;
        if (*at == 0) {
            return add_rules(fault_of(d), rules, count);
        }
    }
}

void tide__fault_disarm(tide__device *d) {
    fault *f = fault_of(d);
    pthread_mutex_lock(&f->lock);
    f->rule_count = 0;
    pthread_mutex_unlock(&f->lock);
}

uint64_t tide__fault_injected(tide__device *d) {
    fault *f = fault_of(d);
    pthread_mutex_lock(&f->lock);
    uint64_t injected = f->injected;
    pthread_mutex_unlock(&f->lock);
    return injected;
}

uint64_t tide__fault_calls(tide__device *d, int call) {
    fault *f = fault_of(d);
    TIDE__CHECK(call >= 0 && call <= TIDE__FAULT_ANY);
    pthread_mutex_lock(&f->lock);
    uint64_t calls = f->calls[call];
    pthread_mutex_unlock(&f->lock);
    return calls;
}

tide__device *tide__fault_inner(tide__device *d) { return fault_of(d)->inner; }

/* ---- The table ---- */

/* A function of the table that asks first: name, kind, parameters, arguments. */
#define FAULT_CALL(name, call, parameters, ...)                                         \
    static tide_status fault_##name parameters {                                        \
        fault *f = fault_of(d);                                                         \
        tide_status status = strike(f, call);                                           \
        return status == TIDE_OK ? f->inner->ops->name(f->inner, __VA_ARGS__) : status; \
    }

FAULT_CALL(mem_info, TIDE__CALL_MEM_INFO,
           (tide__device * d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes), gpu, free_bytes,
           total_bytes)
FAULT_CALL(reserve, TIDE__CALL_RESERVE,
           (tide__device * d, int gpu, uint64_t size, uint64_t align, uint64_t hint, uint64_t *va), gpu, size,
           align, hint, va)
FAULT_CALL(unreserve, TIDE__CALL_UNRESERVE, (tide__device * d, int gpu, uint64_t va, uint64_t size), gpu, va,
           size)
FAULT_CALL(chunk_create, TIDE__CALL_CHUNK_CREATE,
           (tide__device * d, int gpu, uint64_t size, tide__chunk_handle *out), gpu, size, out)
FAULT_CALL(chunk_release, TIDE__CALL_CHUNK_RELEASE, (tide__device * d, int gpu, tide__chunk_handle chunk),
           gpu, chunk)
FAULT_CALL(map, TIDE__CALL_MAP,
           (tide__device * d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk), gpu, va, size,
           chunk)
FAULT_CALL(set_access, TIDE__CALL_SET_ACCESS, (tide__device * d, int gpu, uint64_t va, uint64_t size), gpu,
           va, size)
FAULT_CALL(unmap, TIDE__CALL_UNMAP, (tide__device * d, int gpu, uint64_t va, uint64_t size), gpu, va, size)
FAULT_CALL(raw_alloc, TIDE__CALL_RAW_ALLOC, (tide__device * d, int gpu, uint64_t size, uint64_t *va), gpu,
           size, va)
FAULT_CALL(raw_free, TIDE__CALL_RAW_FREE, (tide__device * d, int gpu, uint64_t va), gpu, va)
FAULT_CALL(stream_id, TIDE__CALL_STREAM_ID, (tide__device * d, int gpu, tide_stream stream, uint64_t *id),
           gpu, stream, id)
FAULT_CALL(stream_create, TIDE__CALL_STREAM_CREATE, (tide__device * d, int gpu, tide_stream *out), gpu, out)
FAULT_CALL(stream_destroy, TIDE__CALL_STREAM_DESTROY, (tide__device * d, int gpu, tide_stream stream), gpu,
           stream)
FAULT_CALL(event_create, TIDE__CALL_EVENT_CREATE, (tide__device * d, int gpu, tide__event *out), gpu, out)
FAULT_CALL(event_destroy, TIDE__CALL_EVENT_DESTROY, (tide__device * d, int gpu, tide__event event), gpu,
           event)
FAULT_CALL(event_record, TIDE__CALL_EVENT_RECORD,
           (tide__device * d, int gpu, tide__event event, tide_stream stream), gpu, event, stream)
FAULT_CALL(event_query, TIDE__CALL_EVENT_QUERY, (tide__device * d, int gpu, tide__event event), gpu, event)
FAULT_CALL(event_wait, TIDE__CALL_EVENT_WAIT,
           (tide__device * d, int gpu, tide__event event, uint64_t timeout_ns), gpu, event, timeout_ns)
FAULT_CALL(stream_wait_event, TIDE__CALL_STREAM_WAIT,
           (tide__device * d, int gpu, tide_stream stream, tide__event event), gpu, stream, event)

FAULT_CALL(stream_capturing, TIDE__CALL_STREAM_CAPTURING,
           (tide__device * d, int gpu, tide_stream stream, bool *out), gpu, stream, out)
FAULT_CALL(peer_enable, TIDE__CALL_PEER_ENABLE, (tide__device * d, int gpu, int peer), gpu, peer)
FAULT_CALL(device_wait, TIDE__CALL_DEVICE_WAIT, (tide__device * d, int gpu, uint64_t timeout_ns), gpu,
           timeout_ns)

static tide__health fault_health(tide__device *d) {
    fault *f = fault_of(d);
    tide__health health = (tide__health)atomic_load_explicit(&f->health, memory_order_relaxed);
    return health != TIDE__HEALTH_OK ? health : f->inner->ops->health(f->inner);
}

static int fault_count(tide__device *d) {
    fault *f = fault_of(d);
    return f->inner->ops->count(f->inner);
}

static tide_status fault_properties(tide__device *d, int gpu, tide__device_properties *out) {
    fault *f = fault_of(d);
    return f->inner->ops->properties(f->inner, gpu, out);
}

static uint64_t fault_now_ns(tide__device *d) {
    fault *f = fault_of(d);
    return f->inner->ops->now_ns(f->inner);
}

/* The wrapped device's: calls that failed here are not among them. */
static void fault_counters(tide__device *d, int gpu, tide__device_counters *out) {
    fault *f = fault_of(d);
    f->inner->ops->counters(f->inner, gpu, out);
}

static void fault_close(tide__device *d) {
    fault *f = fault_of(d);
    f->inner->ops->close(f->inner);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static const tide__device_ops fault_ops = {
    .struct_size = sizeof(tide__device_ops),
    .name = "fault",
    .close = fault_close,
    .count = fault_count,
    .properties = fault_properties,
    .mem_info = fault_mem_info,
    .reserve = fault_reserve,
    .unreserve = fault_unreserve,
    .chunk_create = fault_chunk_create,
    .chunk_release = fault_chunk_release,
    .map = fault_map,
    .set_access = fault_set_access,
    .unmap = fault_unmap,
    .raw_alloc = fault_raw_alloc,
    .raw_free = fault_raw_free,
    .stream_id = fault_stream_id,
    .stream_create = fault_stream_create,
    .stream_destroy = fault_stream_destroy,
    .event_create = fault_event_create,
    .event_destroy = fault_event_destroy,
    .event_record = fault_event_record,
    .event_query = fault_event_query,
    .event_wait = fault_event_wait,
    .stream_wait_event = fault_stream_wait_event,
    .stream_capturing = fault_stream_capturing,
    .peer_enable = fault_peer_enable,
    .device_wait = fault_device_wait,
    .health = fault_health,
    .now_ns = fault_now_ns,
    .counters = fault_counters,
};

tide_status tide__fault_open(tide__device *inner, tide__device **out) {
    fault *f = calloc(1, sizeof *f);
    if (!f) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "fault: no memory");
    }
    f->base.ops = &fault_ops;
    f->inner = inner;
    pthread_mutex_init(&f->lock, NULL);
    *out = &f->base;
    return TIDE_OK;
}
