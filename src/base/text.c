/* SPDX-License-Identifier: Apache-2.0 */
/* The clock, and bytes as people write and read them. */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t tide__monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

const char *tide__format_bytes(uint64_t bytes, char buf[TIDE__BYTES_TEXT]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    if (unit == 0) {
        snprintf(buf, TIDE__BYTES_TEXT, "%llu B", (unsigned long long)bytes);
    } else {
        snprintf(buf, TIDE__BYTES_TEXT, "%.2f %s", value, units[unit]);
    }
    return buf;
}

/* The power of two of a suffix such as "", "B", "k", "MiB", "GB"; -1 if none. */
static int suffix_shift(const char *text) {
    static const char letters[] = "KMGTP";
    if (*text == '\0' || strcasecmp(text, "B") == 0) {
        return 0;
    }
    const char *at = strchr(letters, toupper((unsigned char)*text));
    if (at == NULL) {
        return -1;
    }
    if (text[1] != '\0' && strcasecmp(text + 1, "B") != 0 && strcasecmp(text + 1, "iB") != 0) {
        return -1;
    }
    return 10 * (int)(at - letters + 1);
}

bool tide__parse_bytes(const char *text, uint64_t *out) {
    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    char *end;
    errno = 0;
    unsigned long long whole = strtoull(text, &end, 10);
    if (errno != 0) {
        return false;
    }
    if (*end == '.') { /* "1.5G": a fraction needs no more than a double holds */
        double value = strtod(text, &end);
        while (*end == ' ') {
            end++;
        }
        int shift = suffix_shift(end);
        double bytes = shift < 0 ? -1 : value * (double)(UINT64_C(1) << shift);
        if (bytes < 0 || bytes >= 9.2e18) {
            return false;
        }
        *out = (uint64_t)bytes;
        return true;
    }
    while (*end == ' ') {
        end++;
    }
    int shift = suffix_shift(end);
    if (shift < 0 || (shift > 0 && whole > UINT64_MAX >> shift)) {
        return false;
    }
    *out = (uint64_t)whole << shift;
    return true;
}
