/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callbacks: whom to call when device memory is short, in the order added.
 *
 * They run without the list's lock, so they may add and remove callbacks, their
 * own included. Once a remove has returned the callback is not called any more
 * and no thread is inside it, but for the removing thread itself. A callback
 * that ends up here again calls nobody: it would have no end.
 */
#ifndef TIDE_CALLBACKS_H
#define TIDE_CALLBACKS_H

#include <pthread.h>

#include "base/base.h"

/* Returns the bytes it freed, 0 for none. */
typedef uint64_t (*tide__callback_fn)(void *user, int device, uint64_t bytes);

typedef struct tide__callback {
    tide__callback_fn fn;
    void *user;
    uint64_t id;
    unsigned inside; /* threads */
    bool removed;    /* and not forgotten yet, since threads are inside */
} tide__callback;

typedef struct tide__callbacks {
    pthread_mutex_t lock;
    pthread_cond_t left;
    tide__callback *items;
    size_t count, cap;
    uint64_t last_id;
} tide__callbacks;

void tide__callbacks_open(tide__callbacks *c);
void tide__callbacks_close(tide__callbacks *c);
tide_status tide__callbacks_add(tide__callbacks *c, tide__callback_fn fn, void *user, uint64_t *id);
/* TIDE_BAD_HANDLE for an id that is not there. */
tide_status tide__callbacks_remove(tide__callbacks *c, uint64_t id);
/* Calls one after the other until `bytes` are freed; the sum. */
uint64_t tide__callbacks_run(tide__callbacks *c, int device, uint64_t bytes);

#endif
