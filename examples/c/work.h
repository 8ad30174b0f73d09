/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands for kernels in the examples: blocks are filled and looked at. On `cuda`
 * by the driver, in the stream's order, while the host goes on; on `host` at once, by
 * this thread, since the memory is this machine's. On `sim` there is none: nothing is
 * written.
 */
#ifndef EXAMPLE_WORK_H
#define EXAMPLE_WORK_H

#include <dlfcn.h>
#include <pagetide/pagetide.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void check(tide_status status) {
    if (status != TIDE_OK) {
        fprintf(stderr, "%s\n", tide_last_error());
        exit(1);
    }
}

typedef struct work {
    bool host;
    int (*fill)(unsigned long long address, unsigned char value, size_t bytes, void *stream);
    int (*copy_out)(void *to, unsigned long long address, size_t bytes);
    int (*wait)(void *stream);
} work;

/* PAGETIDE_DEVICE says which device; without it a GPU where there is one, else host. The
 * allocator has made the GPU's context by the first allocation; it is made current here. */
static inline tide_allocator *open_somewhere(work *w) {
    tide_open_options options = {.struct_size = sizeof options, .backend = getenv("PAGETIDE_DEVICE")};
    tide_allocator *a = NULL;
    memset(w, 0, sizeof *w);
    if (options.backend == NULL) {
        options.backend = "cuda";
        if (tide_open(&options, &a) != TIDE_OK) {
            options.backend = "host";
        }
    }
    if (a == NULL) {
        check(tide_open(&options, &a));
    }
    w->host = strcmp(options.backend, "host") == 0;
    if (strcmp(options.backend, "cuda") == 0) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
        int (*retain)(void **, int) = NULL, (*set)(void *) = NULL;
        if (driver != NULL) {
            *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
            *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
            *(void **)&w->fill = dlsym(driver, "cuMemsetD8Async");
            *(void **)&w->copy_out = dlsym(driver, "cuMemcpyDtoH_v2");
            *(void **)&w->wait = dlsym(driver, "cuStreamSynchronize");
        }
        if (retain == NULL || set == NULL || w->fill == NULL || w->copy_out == NULL || w->wait == NULL ||
            retain(&context, 0) != 0 || set(context) != 0) {
            fprintf(stderr, "the driver's calls for filling and copying are not there\n");
            exit(1);
        }
    }
    printf("on %s\n", options.backend);
    return a;
}

static inline void fill(const work *w, void *block, unsigned char value, size_t bytes, tide_stream stream) {
    if (w->host) {
        memset(block, value, bytes);
    } else if (w->fill != NULL &&
               w->fill((unsigned long long)(size_t)block, value, bytes, (void *)stream) != 0) {
        fprintf(stderr, "cuMemsetD8Async failed\n");
        exit(1);
    }
}

/* Waits for the stream and looks at the first and last byte. */
static inline void expect(const work *w, void *block, unsigned char value, size_t bytes, tide_stream stream) {
    unsigned char first = value, last = value;
    if (w->host) {
        first = *(unsigned char *)block;
        last = ((unsigned char *)block)[bytes - 1];
    } else if (w->fill != NULL) {
        unsigned long long at = (unsigned long long)(size_t)block;
        if (w->wait((void *)stream) != 0 || w->copy_out(&first, at, 1) != 0 ||
            w->copy_out(&last, at + bytes - 1, 1) != 0) {
            fprintf(stderr, "the driver failed\n");
            exit(1);
        }
    }
    if (first != value || last != value) {
        fprintf(stderr, "a block holds %u and %u where %u was written\n", first, last, value);
        exit(1);
    }
}

#endif
