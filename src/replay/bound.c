/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound: a greedy account in bytes, exact since bytes have no addresses here.
 *
 * A free makes a record, in two lists at once: all records by age, and those
 * of the stream by age. An allocation takes from the youngest of its stream's
 * records back (the older ones are the first to become everybody's), then from
 * what is free to all, and only then does `reserved` grow. A record that has
 * waited its delay leaves from the old end of both lists. Each record enters
 * and leaves once, so the cost is amortised constant.
 */
#include "replay/bound.h"

#include <stdlib.h>

#define NONE UINT32_MAX

typedef struct record {
    uint64_t bytes, free_at_ns; /* when the bytes are everybody's */
    uint32_t younger, older;    /* of the same stream */
} record;

typedef struct stream_list {
    uint32_t youngest, oldest;
} stream_list;

typedef struct account {
    record *records;     /* by age: frees come in the order of time */
    uint16_t *streams;   /* of the records */
    size_t first, count; /* first: the oldest that has not become everybody's */
    stream_list *lists;
    uint64_t common, reserved; /* never given back, so reserved is its own peak */
} account;

static void unlink_record(account *a, size_t index) {
    record *r = &a->records[index];
    stream_list *l = &a->lists[a->streams[index]];
    if (r->younger != NONE)
        a->records[r->younger].older = r->older;
    else
        l->youngest = r->older;
    if (r->older != NONE)
        a->records[r->older].younger = r->younger;
    else
        l->oldest = r->younger;
}

static void pass_time(account *a, uint64_t now_ns) {
    for (; a->first < a->count && a->records[a->first].free_at_ns <= now_ns; a->first++) {
        if (a->records[a->first].bytes == 0) continue; /* its stream took it all */
        a->common += a->records[a->first].bytes;
        unlink_record(a, a->first);
        a->records[a->first].bytes = 0;
    }
}

static void take(account *a, uint16_t stream, uint64_t bytes) {
    stream_list *l = &a->lists[stream];
    while (bytes > 0 && l->youngest != NONE) {
        record *r = &a->records[l->youngest];
        uint64_t part = tide__min(bytes, r->bytes);
        bytes -= part;
        r->bytes -= part;
        if (r->bytes == 0) unlink_record(a, l->youngest);
    }
    uint64_t part = tide__min(bytes, a->common);
    a->common -= part;
    a->reserved += bytes - part;
}

static void give(account *a, uint16_t stream, uint64_t bytes, uint64_t free_at_ns) {
    if (bytes == 0) return;
    stream_list *l = &a->lists[stream];
    uint32_t index = (uint32_t)a->count++;
    a->streams[index] = stream;
    a->records[index] = (record){bytes, free_at_ns, NONE, l->youngest};
    if (l->youngest != NONE)
        a->records[l->youngest].younger = index;
    else
        l->oldest = index;
    l->youngest = index;
}

static uint64_t later(uint64_t ns, uint64_t delay_ns) {
    uint64_t sum;
    return __builtin_add_overflow(ns, delay_ns, &sum) ? UINT64_MAX : sum;
}

static void play(account *a, const tide__schedule *s, uint16_t *stream_of, uint64_t delay_ns) {
    for (size_t i = 0; i < s->op_count; i++) {
        const tide__schedule_op *op = &s->ops[i];
        if (op->kind == TIDE__OP_ALLOC) {
            pass_time(a, op->time_ns);
            stream_of[op->block] = op->stream;
            take(a, op->stream, op->size);
        } else if (op->kind == TIDE__OP_FREE) {
            give(a, stream_of[op->block], op->size, later(op->time_ns, delay_ns));
        } else if (op->kind == TIDE__OP_OOM && s->asks_refused) {
            pass_time(a, op->time_ns);
            take(a, op->stream, op->size);
            give(a, op->stream, op->size, later(op->time_ns, delay_ns));
        }
    }
}

tide_status tide__bound_reserved(const tide__schedule *s, uint64_t event_delay_ns, uint64_t *out) {
    account a = {0};
    size_t blocks = s->block_count > 0 ? s->block_count : 1, streams = s->gpu->stream_count + 1;
    uint16_t *stream_of = malloc(blocks * sizeof *stream_of);
    a.records = calloc(blocks, sizeof *a.records); /* a block is freed once at most */
    a.streams = calloc(blocks, sizeof *a.streams);
    a.lists = calloc(streams, sizeof *a.lists);
    tide_status status = TIDE_OK;
    if (stream_of == NULL || a.records == NULL || a.streams == NULL || a.lists == NULL) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for the bound");
    } else {
        for (size_t i = 0; i < streams; i++) a.lists[i] = (stream_list){NONE, NONE};
        play(&a, s, stream_of, event_delay_ns);
        *out = a.reserved;
    }
    free(stream_of);
    free(a.records);
    free(a.streams);
    free(a.lists);
    return status;
}
