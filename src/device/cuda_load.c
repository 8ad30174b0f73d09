/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda, opened at run time: pagetide is not linked with it, so that it runs, on
 * host and sim, where there is none. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda_internal.h"

#define LIBRARY "libcuda.so.1"

static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
static tide__cuda_api loaded;
static bool is_loaded; /* then for good: unloading a driver while the process ends is a way to crash */

static tide_status find(void *library, const char *file, const char *name, void *out) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        return tide__fail(TIDE_NO_DEVICE,
                          "%s has no %s: the NVIDIA driver is too old, CUDA 12.0 or newer is needed", file,
                          name);
    }
    memcpy(out, &symbol,
           sizeof symbol); /* ISO C knows no conversion from an object's to a function's pointer */
    return TIDE_OK;
}

static tide_status load(tide__cuda_api *api) {
    const char *file = getenv("PAGETIDE_LIBCUDA");
    file = file != NULL && file[0] != '\0' ? file : LIBRARY;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return tide__fail(
            TIDE_NO_DEVICE,
            "%s cannot be opened (%s): is NVIDIA's driver installed, and given to this container? "
            "Without a GPU, PAGETIDE_DEVICE=host or sim",
            file, dlerror());
    }
    tide_status status = TIDE_OK;
#define X(name, parameters)                              \
    if (status == TIDE_OK) {                             \
        status = find(library, file, #name, &api->name); \
    }
    TIDE__CUDA_FUNCTIONS(X)
#undef X
    if (status != TIDE_OK) {
        dlclose(library);
        return status;
    }
#define X(name, parameters)                         \
    {                                               \
        void *symbol = dlsym(library, #name);       \
        memcpy(&api->name, &symbol, sizeof symbol); \
    }
    TIDE__CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
    return TIDE_OK;
}

tide_status tide__cuda_load(const tide__cuda_api **out) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&once);
    if (!is_loaded) {
        status = load(&loaded);
        is_loaded = status == TIDE_OK;
    }
    pthread_mutex_unlock(&once);
    if (status == TIDE_OK) {
        *out = &loaded;
    }
    return status;
}
