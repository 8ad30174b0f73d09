/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a file, tells its compression and hands its bytes on. Each codec is one
 * `pull` function: fill `room` bytes at `to`, fewer only at the end. A stream
 * that ends inside a gzip member or a zstd frame is an error, as is anything but
 * another member, another frame or zero padding after one.
 */
#include "trace/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define INPUT_BYTES ((size_t)128 << 10)

void tide__source_set_failure(tide__source *s, tide_status status, uint64_t offset, const char *format, ...) {
    char cause[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(cause, sizeof cause, format, args);
    va_end(args);
    bool plain = strcmp(s->compression, "none") == 0;
    s->status = status;
    tide__set_error(plain ? "%s: offset %llu: %s" : "%s: byte %llu of the uncompressed data: %s", s->name,
                    (unsigned long long)offset, cause);
}

/* A failure of the file as stored: the offset is in the file itself. */
static tide_status fail_stored(tide__source *s, const char *cause) {
    uint64_t offset = s->file_bytes - (s->input_end - s->input_at);
    return tide__fail(TIDE_CORRUPT, "%s: offset %llu: %s", s->name, (unsigned long long)offset, cause);
}

/* ---- The file's own bytes ---- */

static tide_status read_some(tide__source *s, uint8_t *to, size_t room, size_t *got) {
    ssize_t n;
    do {
        n = read(s->fd, to, room);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return tide__fail(TIDE_IO, "%s: offset %llu: cannot read: %s", s->name,
                          (unsigned long long)s->file_bytes, strerror(errno));
    }
    *got = (size_t)n;
    s->file_bytes += (uint64_t)n;
    s->input_at_end = n == 0;
    return TIDE_OK;
}

/* Keeps what is left of the input and reads more behind it. */
static tide_status more_input(tide__source *s) {
    size_t left = s->input_end - s->input_at, got = 0;
    memmove(s->input, s->input + s->input_at, left);
    s->input_at = 0;
    s->input_end = left;
    tide_status status = read_some(s, s->input + left, INPUT_BYTES - left, &got);
    s->input_end += got;
    return status;
}

static tide_status pull_plain(tide__source *s, uint8_t *to, size_t room, size_t *got) {
    size_t left = tide__min(s->input_end - s->input_at, room); /* what the detection has read */
    memcpy(to, s->input + s->input_at, left);
    s->input_at += left;
    *got = left;
    while (*got < room && !s->input_at_end) {
        size_t n;
        tide_status status = read_some(s, to + *got, room - *got, &n);
        if (status != TIDE_OK) {
            return status;
        }
        *got += n;
    }
    return TIDE_OK;
}

/* ---- gzip ---- */

static bool is_gzip(const uint8_t *p, size_t n) { return n >= 2 && p[0] == 0x1f && p[1] == 0x8b; }

/* Between members: another one, zero padding, or the end. */
static tide_status next_member(tide__source *s, bool *more) {
    *more = false;
    for (;;) {
        while (s->input_at < s->input_end && s->input[s->input_at] == 0) {
            s->input_at++;
        }
        if (s->input_end - s->input_at >= 2 || s->input_at_end) {
            break;
        }
        tide_status status = more_input(s);
        if (status != TIDE_OK) {
            return status;
        }
    }
    if (s->input_at == s->input_end) {
        return TIDE_OK;
    }
    if (!is_gzip(s->input + s->input_at, s->input_end - s->input_at)) {
        return fail_stored(s, "bytes that are not gzip follow the gzip data");
    }
    *more = true;
    return TIDE_OK;
}

static tide_status inflate_some(tide__source *s, z_stream *z, uint8_t *to, size_t room, size_t *got) {
    z->next_in = s->input + s->input_at;
    z->avail_in = (uInt)(s->input_end - s->input_at);
    z->next_out = to;
    z->avail_out = (uInt)room;
    int result = inflate(z, Z_NO_FLUSH);
    s->input_at = s->input_end - z->avail_in;
    *got = room - z->avail_out;
    s->codec_done = result == Z_STREAM_END;
    if (result == Z_MEM_ERROR) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "%s: out of host memory", s->name);
    }
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return fail_stored(s, z->msg != NULL ? z->msg : "the gzip data is corrupt");
    }
    return TIDE_OK;
}

static tide_status pull_gzip(tide__source *s, uint8_t *to, size_t room, size_t *got) {
    *got = 0;
    while (*got < room) {
        tide_status status;
        if (s->codec_done) {
            bool more;
            status = next_member(s, &more);
            if (status != TIDE_OK || !more) {
                return status;
            }
            inflateReset(s->codec);
            s->codec_done = false;
        }
        if (s->input_at == s->input_end) {
            if (s->input_at_end) {
                return fail_stored(s, "the file ends inside its gzip data (truncated)");
            }
            status = more_input(s);
            if (status != TIDE_OK) {
                return status;
            }
            continue;
        }
        size_t n;
        status = inflate_some(s, s->codec, to + *got, room - *got, &n);
        if (status != TIDE_OK) {
            return status;
        }
        *got += n;
    }
    return TIDE_OK;
}

static tide_status open_gzip(tide__source *s) {
    z_stream *z = calloc(1, sizeof *z);
    if (z == NULL || inflateInit2(z, 15 + 16) != Z_OK) {
        free(z);
        return tide__fail(TIDE_NO_HOST_MEMORY, "%s: out of host memory", s->name);
    }
    s->codec = z;
    s->pull = pull_gzip;
    s->compression = "gzip";
    return TIDE_OK;
}

/* ---- zstd ---- */

static bool is_zstd(const uint8_t *p, size_t n) {
    bool skippable = n >= 4 && (p[0] & 0xf0) == 0x50 && p[1] == 0x2a && p[2] == 0x4d && p[3] == 0x18;
    return skippable || (n >= 4 && p[0] == 0x28 && p[1] == 0xb5 && p[2] == 0x2f && p[3] == 0xfd);
}

static tide_status pull_zstd(tide__source *s, uint8_t *to, size_t room, size_t *got) {
    ZSTD_outBuffer out = {to, room, 0};
    while (out.pos < room) {
        bool dry = s->input_at == s->input_end;
        if (dry && !s->input_at_end) {
            tide_status status = more_input(s);
            if (status != TIDE_OK) {
                return status;
            }
            continue;
        }
        if (dry && s->codec_done) {
            break;
        }
        ZSTD_inBuffer in = {s->input, s->input_end, s->input_at};
        size_t before = out.pos;
        size_t hint = ZSTD_decompressStream(s->codec, &out, &in);
        s->input_at = in.pos;
        s->codec_done = hint == 0;
        if (ZSTD_isError(hint)) {
            return fail_stored(s, ZSTD_getErrorName(hint));
        }
        if (dry && out.pos == before && hint != 0) {
            return fail_stored(s, "the file ends inside its zstd data (truncated)");
        }
    }
    *got = out.pos;
    return TIDE_OK;
}

static tide_status open_zstd(tide__source *s) {
    s->codec = ZSTD_createDStream();
    if (s->codec == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "%s: out of host memory", s->name);
    }
    s->pull = pull_zstd;
    s->compression = "zstd";
    return TIDE_OK;
}

/* ---- Opening ---- */

static tide_status detect(tide__source *s) {
    while (s->input_end < 4 && !s->input_at_end) {
        tide_status status = more_input(s);
        if (status != TIDE_OK) {
            return status;
        }
    }
    if (is_gzip(s->input, s->input_end)) {
        return open_gzip(s);
    }
    if (is_zstd(s->input, s->input_end)) {
        return open_zstd(s);
    }
    s->pull = pull_plain;
    return TIDE_OK;
}

/* Control characters, those of UTF-8's second block too. */
static char *printable(const char *path) {
    char *name = strdup(path);
    for (unsigned char *c = (unsigned char *)name; c != NULL && *c != 0; c++) {
        if (*c < 0x20 || *c == 0x7f || (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)) {
            *c = '?';
        }
    }
    return name;
}

static tide_status open_file(tide__source *s, const char *path) {
    struct stat st;
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) != 0) {
        return tide__fail(TIDE_IO, "%s: cannot open: %s", s->name, strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) {
        return tide__fail(TIDE_IO, "%s: is a directory", s->name);
    }
    s->file_size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    s->window = malloc(TIDE__SOURCE_WINDOW);
    s->input = malloc(INPUT_BYTES);
    if (s->window == NULL || s->input == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "%s: out of host memory", s->name);
    }
    s->at = s->end = s->window;
    s->input_at = s->input_end = 0;
    return detect(s);
}

tide_status tide__source_open(tide__source *s, const char *path, tide__meter *meter, tide__progress progress,
                              void *user) {
    *s = (tide__source){.name = printable(path),
                        .compression = "none",
                        .meter = meter,
                        .progress = progress,
                        .user = user,
                        .fd = -1};
    tide_status status =
        s->name != NULL ? open_file(s, path) : tide__fail(TIDE_NO_HOST_MEMORY, "out of host memory");
    if (status != TIDE_OK) {
        tide__source_close(s);
    }
    return status;
}

void tide__source_close(tide__source *s) {
    if (s->pull == pull_gzip) {
        inflateEnd(s->codec);
        free(s->codec);
    } else if (s->pull == pull_zstd) {
        ZSTD_freeDStream(s->codec);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    free(s->window);
    free(s->input);
    free(s->name);
    s->window = s->input = NULL;
    s->name = NULL;
    s->codec = NULL;
    s->pull = NULL;
    s->fd = -1;
}

/* ---- The window ---- */

static bool over_expanded(const tide__source *s) {
    return s->pull != pull_plain &&
           s->data_bytes > TIDE__SOURCE_FREE_BYTES + s->file_bytes * TIDE__SOURCE_EXPANSION;
}

static bool pull_window(tide__source *s, size_t left) {
    size_t got = 0;
    s->status = s->pull(s, s->window + left, TIDE__SOURCE_WINDOW - left, &got);
    if (s->status != TIDE_OK) {
        return false;
    }
    s->data_bytes += got;
    s->at_end = got < TIDE__SOURCE_WINDOW - left;
    s->end = s->window + left + got;
    tide__meter_set_data(s->meter, s->data_bytes);
    if (over_expanded(s)) {
        tide__source_fail(s, TIDE_CORRUPT, s->data_bytes,
                          "the file expands more than %d times: not a snapshot's compression",
                          TIDE__SOURCE_EXPANSION);
        return false;
    }
    if (s->progress != NULL) {
        s->progress(s->user, s->file_bytes, s->file_size != 0 ? s->file_size : s->file_bytes);
    }
    return true;
}

bool tide__source_fill(tide__source *s, size_t need) {
    if (s->status != TIDE_OK) {
        return false;
    }
    size_t left = (size_t)(s->end - s->at);
    if (left >= need || s->at_end) {
        return true;
    }
    s->window_offset = tide__source_offset(s);
    memmove(s->window, s->at, left);
    s->at = s->window;
    s->end = s->window + left;
    return pull_window(s, left);
}

static bool gather(tide__source *s, uint8_t *to, size_t n) {
    while (n > 0) {
        if (!tide__source_fill(s, 1)) {
            return false;
        }
        size_t part = tide__min(n, (uint64_t)(s->end - s->at));
        if (part == 0) {
            tide__source_fail(s, TIDE_CORRUPT, s->data_bytes, "the file ends inside the pickle (truncated)");
            return false;
        }
        if (to != NULL) {
            memcpy(to, s->at, part);
            to += part;
        }
        s->at += part;
        n -= part;
    }
    return true;
}

bool tide__source_skip(tide__source *s, uint64_t n) { return gather(s, NULL, n); }

const uint8_t *tide__source_take(tide__source *s, uint64_t n, uint8_t **scratch, size_t *scratch_capacity) {
    if (n <= TIDE__SOURCE_WINDOW / 2) {
        if (!tide__source_fill(s, n)) {
            return NULL;
        }
        if ((uint64_t)(s->end - s->at) < n) {
            tide__source_fail(s, TIDE_CORRUPT, s->data_bytes, "the file ends inside the pickle (truncated)");
            return NULL;
        }
        const uint8_t *p = s->at;
        s->at += n;
        return p;
    }
    uint64_t start = tide__source_offset(s);
    for (uint64_t have = 0; have < n;) {
        /* A part at a time: the length is a claim until its bytes have come. */
        size_t part = tide__min(n - have, TIDE__SOURCE_WINDOW / 2);
        tide_status status = tide__meter_grow(s->meter, (void **)scratch, scratch_capacity, have + part, 1);
        if (status != TIDE_OK) {
            tide__source_fail(s, status, start, "%s", tide_last_error());
            return NULL;
        }
        if (!gather(s, *scratch + have, part)) {
            return NULL;
        }
        have += part;
    }
    return *scratch;
}
