/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json: writes JSON to a stream, a value at a time.
 *
 *     tide__json j;
 *     tide__json_open(&j, stdout);
 *     tide__json_object(&j);
 *     tide__json_key(&j, "file");
 *     tide__json_string(&j, path);
 *     tide__json_object_end(&j);
 *     tide__json_close(&j);
 *
 * The writer sets commas and escapes; the caller opens and closes in pairs, which
 * is asserted. A document is one line, and tide__json_close ends it. Errors of
 * writing stay in the stream, for the caller to ask with ferror.
 */
#ifndef TIDE_REPORT_JSON_H
#define TIDE_REPORT_JSON_H

#include <stdio.h>

#include "base/base.h"

#define TIDE__JSON_DEPTH 32 /* nesting at most */

typedef struct tide__json {
    FILE *out;
    unsigned depth;
    bool after_key;                   /* a key stands before the next value */
    bool is_object[TIDE__JSON_DEPTH]; /* of the open containers, outermost first */
    bool has_items[TIDE__JSON_DEPTH];
} tide__json;

void tide__json_open(tide__json *j, FILE *out);
void tide__json_close(tide__json *j);

void tide__json_object(tide__json *j);
void tide__json_object_end(tide__json *j);
void tide__json_array(tide__json *j);
void tide__json_array_end(tide__json *j);

/* In an object, before each value. */
void tide__json_key(tide__json *j, const char *key);

/* NULL is null. Bytes that are not UTF-8 become U+FFFD each, so that the output
 * is valid whatever a file held. */
void tide__json_string(tide__json *j, const char *text);
void tide__json_u64(tide__json *j, uint64_t value);
void tide__json_i64(tide__json *j, int64_t value);
/* The shortest decimal that reads back as the same double; null where JSON has
 * no word for it (NaN, infinity). */
void tide__json_double(tide__json *j, double value);
void tide__json_bool(tide__json *j, bool value);
void tide__json_null(tide__json *j);

/* A key and its value in one call, the common case. */
static inline void tide__json_key_string(tide__json *j, const char *key, const char *text) {
    tide__json_key(j, key);
    tide__json_string(j, text);
}
static inline void tide__json_key_u64(tide__json *j, const char *key, uint64_t value) {
    tide__json_key(j, key);
    tide__json_u64(j, value);
}
static inline void tide__json_key_i64(tide__json *j, const char *key, int64_t value) {
    tide__json_key(j, key);
    tide__json_i64(j, value);
}
static inline void tide__json_key_double(tide__json *j, const char *key, double value) {
    tide__json_key(j, key);
    tide__json_double(j, value);
}
static inline void tide__json_key_bool(tide__json *j, const char *key, bool value) {
    tide__json_key(j, key);
    tide__json_bool(j, value);
}

#endif
