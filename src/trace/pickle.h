/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: a machine for Python's pickles that only computes values.
 *
 * It runs protocols 2 to 5: every opcode that makes or fills a value; the ones
 * that import a name, call it or reach outside the file are refused by name. It
 * does not recurse, and everything it holds is metered, so nesting, lengths and
 * memo numbers in a file can be anything.
 *
 * Its owner sees each dict when it is complete, and may turn it into a record: a
 * value of its own that takes the dict's place, also in the memo.
 */
#ifndef TIDE_TRACE_PICKLE_H
#define TIDE_TRACE_PICKLE_H

#include "trace/intern.h"
#include "trace/source.h"
#include "trace/value.h"

typedef struct tide__pickle tide__pickle;

/* Given a dict's keys and values (n values, key first): *out is the record that
 * it is, or stays TIDE__TAG_UNSET where it is none. `offset` is the dict's. */
typedef tide_status (*tide__pickle_dict)(void *user, const tide__value *items, size_t n, uint64_t offset,
                                         tide__value *out);

struct tide__pickle {
    tide__source *source;
    tide__meter *meter;
    tide__objects objects;
    tide__intern intern;
    int protocol;

    /* The owner's. */
    tide__pickle_dict on_dict;
    void *user;

    /* private */
    tide__value *stack;
    size_t depth, stack_capacity;
    size_t *marks; /* the depths at which a MARK stands */
    size_t mark_count, mark_capacity;
    tide__value *memo;
    size_t memo_count, memo_capacity;
    uint64_t op_offset; /* of the opcode being run */
    uint8_t *scratch;
    size_t scratch_capacity;
};

tide_status tide__pickle_open(tide__pickle *m, tide__source *source, tide__meter *meter);
void tide__pickle_close(tide__pickle *m);

/* Runs to STOP, which must be the data's last byte. */
tide_status tide__pickle_run(tide__pickle *m, tide__value *out);

/* Frees stack and memo, which nothing needs after the run. */
void tide__pickle_drop_memo(tide__pickle *m);

/* o is v from now on. The reference in the caller's hand is used up. */
void tide__pickle_replace(tide__pickle *m, tide__object *o, tide__value v);

/* ---- For the machine's own files ---- */

/* Has the value of status, which is evaluated twice (see tide__fail). */
#define tide__pickle_fail(m, status, ...) \
    (tide__pickle_set_failure(m, status, __VA_ARGS__), tide__same_status(status))
/* The thread's message, put into the place the machine stands at. */
#define tide__pickle_fail_here(m, status) tide__pickle_fail(m, status, "%s", tide_last_error())
void tide__pickle_set_failure(tide__pickle *m, tide_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

tide_status tide__pickle_push(tide__pickle *m, tide__value v);
tide_status tide__pickle_pop(tide__pickle *m, tide__value *out);
tide_status tide__pickle_get(tide__pickle *m, uint64_t slot);
tide_status tide__pickle_put(tide__pickle *m, uint64_t slot);
tide_status tide__pickle_mark(tide__pickle *m);
/* What stands above the last mark, and takes the mark away; the values stay in
 * place until the next push. */
tide_status tide__pickle_since_mark(tide__pickle *m, tide__value **values, size_t *n);
tide_status tide__pickle_new(tide__pickle *m, tide__kind kind, const tide__value *items, size_t n);
/* Fills the container on top of the stack. */
tide_status tide__pickle_append(tide__pickle *m, tide__kind kind, tide__value *values, size_t n);
tide_status tide__pickle_set_items(tide__pickle *m, tide__value *items, size_t n);

/* Any opcode, in pickle_ops.c; the common ones run in the loop of pickle.c. */
tide_status tide__pickle_step(tide__pickle *m, uint8_t op);

#endif
