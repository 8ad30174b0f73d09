/* SPDX-License-Identifier: Apache-2.0 */
#include "report/text.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const char *tide__format_count(uint64_t count, char buf[TIDE__COUNT_TEXT]) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}

const char *tide__format_seconds(double seconds, char buf[TIDE__COUNT_TEXT]) {
    /* A trace may claim any time; what does not fit an hour count is not worth one. */
    if (!(seconds >= 0 && seconds < 1e12)) return strcpy(buf, "an unknown time");
    if (seconds < 99.95) {
        snprintf(buf, TIDE__COUNT_TEXT, "%.1f s", seconds);
        return buf;
    }
    uint64_t whole = (uint64_t)(seconds + 0.5);
    if (whole < 2 * 3600)
        snprintf(buf, TIDE__COUNT_TEXT, "%" PRIu64 " min %02" PRIu64 " s", whole / 60, whole % 60);
    else
        snprintf(buf, TIDE__COUNT_TEXT, "%" PRIu64 " h %02" PRIu64 " min", whole / 3600, whole / 60 % 60);
    return buf;
}

const char *tide__format_ratio(double ratio, char buf[TIDE__COUNT_TEXT]) {
    if (!(ratio >= 0 && ratio < 1e6)) return strcpy(buf, "-");
    snprintf(buf, TIDE__COUNT_TEXT, ratio < 1.1 ? "%.3f" : "%.2f", ratio);
    return buf;
}

void tide__say(tide__sentences *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->text + s->length, sizeof s->text - s->length, format, args);
    va_end(args);
    if (n > 0) s->length += tide__min((uint64_t)n, sizeof s->text - 1 - s->length);
}

void tide__print_name(FILE *out, const char *name, int columns) {
    size_t length = strlen(name), room = columns > 0 ? (size_t)columns : 0;
    size_t shown = length <= room ? length : room > 3 ? room - 3 : 0;
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)name[i];
        putc(c >= 0x20 && c < 0x7F ? c : '?', out);
    }
    if (shown < length && room > 3) {
        fputs("...", out);
        shown += 3;
    }
    for (; shown < room; shown++) putc(' ', out);
}

void tide__print_wrapped(FILE *out, int width, int indent, const char *text) {
    int column = 0;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > 0 && column + 1 + word > width) {
            putc('\n', out);
            column = 0;
        }
        if (column == 0)
            column = fprintf(out, "%*s", indent, "");
        else
            column += fprintf(out, " ");
        column += fprintf(out, "%.*s", word, text);
        text += word;
        text += strspn(text, " ");
    }
    if (column > 0) putc('\n', out);
}

/* COLUMNS, which shells set and some export; 0 where it says nothing. */
static int columns_wanted(void) {
    const char *text = getenv("COLUMNS");
    long columns = text != NULL ? strtol(text, NULL, 10) : 0;
    return columns > 0 && columns < INT_MAX ? (int)columns : 0;
}

int tide__terminal_width(FILE *stream) {
    struct winsize size;
    int fd = fileno(stream), wanted = columns_wanted(), there = 0;
    if (fd >= 0 && isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0) there = size.ws_col;
    /* One that was exported before the window was made narrower is out of date. */
    if (wanted > 0 && there > 0) return wanted < there ? wanted : there;
    return wanted > 0 ? wanted : there > 0 ? there : 80;
}
