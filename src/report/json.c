/* SPDX-License-Identifier: Apache-2.0 */
#include "report/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void tide__json_open(tide__json *j, FILE *out) {
    memset(j, 0, sizeof *j);
    j->out = out;
}

void tide__json_close(tide__json *j) {
    TIDE__CHECK(j->depth == 0 && !j->after_key);
    putc('\n', j->out);
}

/* Before a value: the comma it needs, if any. */
static void separate(tide__json *j) {
    if (j->after_key) {
        j->after_key = false;
        return;
    }
    if (j->depth == 0) return;
    TIDE__CHECK(!j->is_object[j->depth - 1]); /* a value in an object needs a key */
    if (j->has_items[j->depth - 1]) putc(',', j->out);
    j->has_items[j->depth - 1] = true;
}

static void open_container(tide__json *j, bool is_object) {
    separate(j);
    TIDE__CHECK(j->depth < TIDE__JSON_DEPTH);
    j->is_object[j->depth] = is_object;
    j->has_items[j->depth] = false;
    j->depth++;
    putc(is_object ? '{' : '[', j->out);
}

static void close_container(tide__json *j, bool is_object) {
    TIDE__CHECK(j->depth > 0 && !j->after_key);
    j->depth--;
    TIDE__CHECK(j->is_object[j->depth] == is_object);
    putc(is_object ? '}' : ']', j->out);
}

void tide__json_object(tide__json *j) { open_container(j, true); }
void tide__json_object_end(tide__json *j) { close_container(j, true); }
void tide__json_array(tide__json *j) { open_container(j, false); }
void tide__json_array_end(tide__json *j) { close_container(j, false); }

/* The length of the UTF-8 sequence at s, or 0 where there is none: overlong
 * forms, surrogates and values past U+10FFFF are not UTF-8. The terminating 0
 * is no continuation byte, so nothing past it is read. */
static size_t utf8_length(const unsigned char *s) {
    unsigned char lead = s[0], low = 0x80, high = 0xBF;
    size_t length;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) {
        length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        length = 3;
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        length = 4;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xF4) high = 0x8F;
    } else {
        return 0;
    }
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    return length;
}

static void write_ascii(FILE *out, unsigned char c) {
    switch (c) {
    case '"': fputs("\\\"", out); return;
    case '\\': fputs("\\\\", out); return;
    case '\n': fputs("\\n", out); return;
    case '\r': fputs("\\r", out); return;
    case '\t': fputs("\\t", out); return;
    default: break;
    }
    if (c < 0x20 || c == 0x7F)
        fprintf(out, "\\u%04x", c);
    else
        putc(c, out);
}

static void write_quoted(FILE *out, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    putc('"', out);
    while (*s) {
        size_t length = utf8_length(s);
        if (length == 0) {
            fputs("\\ufffd", out);
            s++;
        } else if (length == 1) {
            write_ascii(out, *s++);
        } else {
            fwrite(s, 1, length, out);
            s += length;
        }
    }
    putc('"', out);
}

void tide__json_key(tide__json *j, const char *key) {
    TIDE__CHECK(j->depth > 0 && j->is_object[j->depth - 1] && !j->after_key);
    if (j->has_items[j->depth - 1]) putc(',', j->out);
    j->has_items[j->depth - 1] = true;
    write_quoted(j->out, key);
    putc(':', j->out);
    j->after_key = true;
}

void tide__json_string(tide__json *j, const char *text) {
    if (!text) {
        tide__json_null(j);
        return;
    }
    separate(j);
    write_quoted(j->out, text);
}

void tide__json_u64(tide__json *j, uint64_t value) {
    separate(j);
    fprintf(j->out, "%" PRIu64, value);
}

void tide__json_i64(tide__json *j, int64_t value) {
    separate(j);
    fprintf(j->out, "%" PRId64, value);
}

void tide__json_double(tide__json *j, double value) {
    char text[40];
    if (!isfinite(value)) {
        tide__json_null(j);
        return;
    }
    separate(j);
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (digits == 17 || strtod(text, NULL) == value) break;
    }
    fputs(text, j->out);
    /* Readers that tell integers from reals should get the same type each time. */
    if (!strpbrk(text, ".e")) fputs(".0", j->out);
}

void tide__json_bool(tide__json *j, bool value) {
    separate(j);
    fputs(value ? "true" : "false", j->out);
}

void tide__json_null(tide__json *j) {
    separate(j);
    fputs("null", j->out);
}
