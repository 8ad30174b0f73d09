/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread's last error. A message lives in the thread's own storage, so
 * that reporting a failure allocates nothing and cannot fail itself; it is cut
 * at its buffer's end.
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 2048

static _Thread_local char message[MESSAGE_BYTES];

void tide__set_error(const char *format, ...) {
    /* Arguments may point into the message itself: format elsewhere first. */
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof text);
}

tide_status tide__fail_context(tide_status status, const char *format, ...) {
    char context[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int written = vsnprintf(context, sizeof context, format, args);
    va_end(args);
    size_t used = written < 0 ? 0 : tide__min((uint64_t)written, sizeof context - 1);
    snprintf(context + used, sizeof context - used, ": %s", message);
    memcpy(message, context, sizeof context);
    return status;
}

_Noreturn void tide__check_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "pagetide: %s:%d: invariant does not hold: %s\n", file, line, cond);
    abort();
}

const char *tide_last_error(void) { return message; }

const char *tide_status_name(tide_status status) {
    switch (status) {
#define X(name, value, text) \
    case TIDE_##name: return "TIDE_" #name;
        TIDE_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}
