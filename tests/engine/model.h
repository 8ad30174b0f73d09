/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: the engine under a list of operations, against a reference model that
 * is simple enough to be believed: the set of live blocks, what the callers
 * asked for, and the books that `watch` keeps of the device.
 *
 * An operation holds random numbers, not addresses ("free the a-th live block
 * of those there are"), so any part of a list is a list: that is what makes
 * shrinking possible.
 */
#ifndef TIDE_TEST_MODEL_H
#define TIDE_TEST_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, weight */
#define MODEL_OP_LIST(X)                                         \
    X(alloc, 300)      /* a: stream, b: size, c: pool, device */ \
    X(free, 240)       /* a: which */                            \
    X(free_newest, 60) /* last in, first out */                  \
    X(free_many, 12)   /* a: how many, b: from where */          \
    X(record, 40)      /* a: which, b: stream */                 \
    X(lend, 30)        /* used on stream b between events */     \
    X(check, 20)       /* a: its content */                      \
    X(trim, 25)        /* a: bytes, b: wait */                   \
    X(alloc_at, 30)    /* a: of the addresses there were */      \
    X(wrong_free, 10)  /* a: which kind of wrong */              \
    X(pool_create, 4)                                            \
    X(pool_release, 5)                                           \
    X(stream_create, 4)                                          \
    X(stream_retire, 4)                                          \
    X(phase, 6)                                                  \
    X(reset_peaks, 3)                                            \
    X(clock, 60) /* a: time passes */                            \
    X(fault, 12) /* a: kind, b: which call, c: status */         \
    X(verify, 10)

typedef enum model_op_kind {
#define X(name, weight) OP_##name,
    MODEL_OP_LIST(X)
#undef X
        OP_COUNT
} model_op_kind;

typedef struct model_op {
    uint8_t kind;
    uint32_t a, b, c;
} model_op;

typedef enum model_backend { MODEL_SIM, MODEL_HOST, MODEL_BACKENDS } model_backend;

typedef struct model_case {
    model_backend backend;
    uint64_t seed; /* also of the devices, streams, limits and delays */
    bool faults;
    model_op *ops;
    size_t op_count;
} model_case;

typedef struct model_result {
    size_t failed_at; /* the operation; op_count: at the end */
    char message[768];
    uint64_t allocs, ooms, moves, stream_waits, faults; /* what was exercised */
} model_result;

void model_generate(model_case *c, size_t op_count);
/* True when nothing was found. */
bool model_run(const model_case *c, model_result *out);

/* The case as text, and back. */
bool model_write(const model_case *c, const char *path);
bool model_read(model_case *c, const char *path);
const char *model_op_name(int kind);

/* For a message when the process is about to die: where model_run is. */
void model_where(char *text, size_t bytes);

#endif
