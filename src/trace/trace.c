/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be asked of a trace once it is read, and its end.
 */
#include "trace/trace.h"

#include <stdlib.h>
#include <string.h>

#include "trace/snapshot.h"

const char *tide__action_name(tide__action action) {
    static const char *const names[] = {
#define X(id, name) name,
        TIDE__ACTION_LIST(X)
#undef X
    };
    return (unsigned)action < TIDE__ACTION_COUNT ? names[action] : "other";
}

const char *tide__trace_setting_get(const tide__trace *t, const char *name) {
    for (size_t i = 0; i < t->setting_count; i++) {
        if (strcmp(t->strings[t->settings[i].name], name) == 0) {
            return t->strings[t->settings[i].value];
        }
    }
    return NULL;
}

void tide__trace_free(tide__trace *t) {
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->gpu_count; i++) {
        free(t->gpus[i].streams);
        free(t->gpus[i].pools);
        free(t->gpus[i].segments);
        free(t->gpus[i].blocks);
    }
    if (t->storage != NULL) {
        tide__intern_free_chunks(t->storage->chunks);
        free(t->storage->events);
        free(t->storage);
    }
    free(t->gpus);
    free(t->strings);
    free(t->frames);
    free(t->stack_start);
    free(t->settings);
    free(t);
}
