/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source: the bytes of a file, uncompressed, a window at a time.
 *
 * The compression is told by the first bytes, not the name. The caller reads at
 * `at` up to `end` and moves `at` forward itself. Bounds: two fixed blocks (zstd
 * adds its window, at most 128 MiB), and a file may not expand by more than TIDE__SOURCE_EXPANSION beyond its
 * first 64 MiB, so that a small bomb stays small (real snapshots expand 12 to 60 times).
 */
#ifndef TIDE_TRACE_SOURCE_H
#define TIDE_TRACE_SOURCE_H

#include "base/base.h"
#include "trace/meter.h"
#include "trace/trace.h"

#define TIDE__SOURCE_WINDOW ((size_t)256 << 10)
#define TIDE__SOURCE_EXPANSION 256
#define TIDE__SOURCE_FREE_BYTES (64 * TIDE__MIB)

typedef struct tide__source {
    const uint8_t *at, *end;
    uint64_t window_offset; /* of the window's first byte, in the uncompressed data */
    uint64_t file_bytes;    /* read of the file so far */
    uint64_t data_bytes;    /* uncompressed so far */
    const char *compression;
    tide_status status; /* of the first failure; its message is the thread's */
    bool at_end;        /* no bytes follow the window */

    /* private */
    char *name; /* the path, with what a terminal would obey replaced by '?' */
    int fd;
    uint64_t file_size; /* 0 where not known (a pipe) */
    uint8_t *window, *input;
    size_t input_at, input_end;
    bool input_at_end;
    void *codec;
    bool codec_done; /* the codec is between two members or frames */
    tide_status (*pull)(struct tide__source *s, uint8_t *to, size_t room, size_t *got);
    tide__meter *meter;
    tide__progress progress;
    void *user;
} tide__source;

/* On failure the message is set and nothing has to be closed. */
tide_status tide__source_open(tide__source *s, const char *path, tide__meter *meter, tide__progress progress,
                              void *user);
void tide__source_close(tide__source *s);

/* Makes at least `need` bytes (at most half a window) stand at `at`, fewer only
 * at the file's end. False after a failure, which is in s->status. */
bool tide__source_fill(tide__source *s, size_t need);

static inline uint64_t tide__source_offset(const tide__source *s) {
    return s->window_offset + (uint64_t)(s->at - s->window);
}

/* The next n bytes in one piece, consumed; valid until the next call. Longer
 * ones than a window are gathered in *scratch as they arrive. NULL on failure. */
const uint8_t *tide__source_take(tide__source *s, uint64_t n, uint8_t **scratch, size_t *scratch_capacity);
bool tide__source_skip(tide__source *s, uint64_t n);

/* Fails with "FILE: offset N: " (or "FILE: byte N of the uncompressed data: ") and
 * the cause; has the value of status, which is evaluated twice (see tide__fail). */
#define tide__source_fail(s, status, ...) \
    (tide__source_set_failure(s, status, __VA_ARGS__), tide__same_status(status))
void tide__source_set_failure(tide__source *s, tide_status status, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
