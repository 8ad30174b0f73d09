/* SPDX-License-Identifier: Apache-2.0 */
/* How a test gets the stand-in: the cuda device finds it as its libcuda, and the test its controls. */
#ifndef TIDE_STANDIN_USE_H
#define TIDE_STANDIN_USE_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

/* NULL: it cannot be loaded. TIDE_STANDIN is its file. */
static inline const standin_controls *standin_load(void) {
    const standin_controls *(*get)(void) = NULL;
    void *library = dlopen(TIDE_STANDIN, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "standin_get") : NULL;
    if (symbol == NULL || setenv("PAGETIDE_LIBCUDA", TIDE_STANDIN, 1) != 0) {
        return NULL;
    }
    memcpy(&get, &symbol, sizeof get);
    return get();
}

/* In tests that PAGETIDE_TEST_STANDIN turns to the driver: the cuda device over the stand-in
 * over `beneath`, else `beneath` itself. NULL: no such device can be had. */
static inline tide__device *standin_between(tide__device *beneath) {
    tide__device *cuda = NULL;
    const standin_controls *controls;
    if (getenv("PAGETIDE_TEST_STANDIN") == NULL) {
        return beneath;
    }
    if ((controls = standin_load()) == NULL) {
        return NULL;
    }
    controls->serve(beneath);
    return tide__cuda_open(&cuda) == TIDE_OK ? cuda : NULL;
}

/* After the cuda device was closed: closes what was beneath it. Has the first call that was made
 * without the right context or would have spoilt a capture, "a context is left", or "". */
static inline const char *standin_end(tide__device *beneath) {
    static standin_state s;
    if (getenv("PAGETIDE_TEST_STANDIN") == NULL) {
        return "";
    }
    standin_load()->get(&s);
    standin_load()->serve(NULL);
    beneath->ops->close(beneath);
    return s.contexts != 0 ? "a context is left" : s.first_without;
}

#endif
