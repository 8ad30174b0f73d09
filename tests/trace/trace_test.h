/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_test: what the reader's tests share. Bytes become a file without a disk
 * (memfd), and a growable buffer writes pickles an opcode at a time.
 */
#ifndef TIDE_TRACE_TEST_H
#define TIDE_TRACE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace/trace.h"

#define FIXTURES TIDE_TEST_DATA "/../trace/fixtures/"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- Bytes ---- */

typedef struct bytes {
    uint8_t *data;
    size_t size, capacity;
} bytes;

static inline void put(bytes *b, const void *data, size_t n) {
    assert_true(tide__grow((void **)&b->data, &b->capacity, b->size + n + 1, 1));
    if (n > 0) {
        memcpy(b->data + b->size, data, n);
    }
    b->size += n;
}

/* A string literal, NULs and all. */
#define PUT(b, literal) put((b), (literal), sizeof(literal) - 1)

static inline void put_repeated(bytes *b, uint8_t byte, size_t n) {
    assert_true(tide__grow((void **)&b->data, &b->capacity, b->size + n + 1, 1));
    memset(b->data + b->size, byte, n);
    b->size += n;
}

static inline void put_little(bytes *b, uint64_t value, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)(value >> (8 * i));
        put(b, &byte, 1);
    }
}

static inline void put_text(bytes *b, const char *text) {
    size_t n = strlen(text);
    assert_true(n < 256);
    put(b, (uint8_t[]){0x8c, (uint8_t)n}, 2); /* SHORT_BINUNICODE */
    put(b, text, n);
}

static inline void put_number(bytes *b, uint64_t n) { /* LONG1 of 9 bytes: unsigned */
    PUT(b, "\x8a\x09");
    put_little(b, n, 8);
    PUT(b, "\0");
}

static inline void free_bytes(bytes *b) {
    free(b->data);
    *b = (bytes){0};
}

static inline bytes read_file(const char *path) {
    bytes b = {0};
    FILE *in = fopen(path, "rb");
    if (in == NULL) {
        fail_msg("%s cannot be opened", path);
    }
    for (size_t got = 1; got > 0;) {
        assert_true(tide__grow((void **)&b.data, &b.capacity, b.size + 4097, 1));
        got = fread(b.data + b.size, 1, 4096, in);
        b.size += got;
    }
    fclose(in);
    return b;
}

/* ---- Reading ---- */

/* A file with these bytes: its path; close the descriptor when done. */
static inline int memory_file(const void *data, size_t size, char path[32]) {
    int fd = memfd_create("snapshot", MFD_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static inline tide_status read_bytes(const void *data, size_t size, tide__trace **out) {
    char path[32];
    int fd = memory_file(data, size, path);
    *out = NULL;
    tide_status status = tide__trace_read(path, NULL, NULL, out);
    close(fd);
    return status;
}

/* Must be refused, and for this reason. */
static inline void assert_refused(const bytes *b, const char *cause) {
    tide__trace *t;
    assert_int_equal(read_bytes(b->data, b->size, &t), TIDE_CORRUPT);
    assert_null(t);
    if (strstr(tide_last_error(), cause) == NULL) {
        fail_msg("'%s' does not say '%s'", tide_last_error(), cause);
    }
}

static inline tide__trace *read_fixture(const char *name) {
    char path[512];
    tide__trace *t = NULL;
    snprintf(path, sizeof path, "%s%s", FIXTURES, name);
    if (tide__trace_read(path, NULL, NULL, &t) != TIDE_OK) {
        fail_msg("%s", tide_last_error());
    }
    return t;
}

static inline const char *phase_of(const tide__trace *t, const tide__trace_event *e) {
    return t->strings[e->phase];
}

#endif
