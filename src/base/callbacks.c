/* SPDX-License-Identifier: Apache-2.0 */
#include "base/callbacks.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local bool is_inside;

void tide__callbacks_open(tide__callbacks *c) {
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->left, NULL);
}

void tide__callbacks_close(tide__callbacks *c) {
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->left);
    free(c->items);
}

tide_status tide__callbacks_add(tide__callbacks *c, tide__callback_fn fn, void *user, uint64_t *id) {
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&c->lock);
    if (tide__grow((void **)&c->items, &c->cap, c->count + 1, sizeof *c->items)) {
        c->items[c->count++] = (tide__callback){.fn = fn, .user = user, .id = ++c->last_id};
        *id = c->last_id;
    } else {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for a callback");
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* The lock is held. Ids rise along the list, so it is found again whatever went. */
static size_t first_from(const tide__callbacks *c, uint64_t id) {
    size_t i = 0;
    while (i < c->count && c->items[i].id < id) {
        i++;
    }
    return i;
}

static tide__callback *find(tide__callbacks *c, uint64_t id) {
    size_t i = first_from(c, id);
    return i < c->count && c->items[i].id == id ? &c->items[i] : NULL;
}

static void forget(tide__callbacks *c, uint64_t id) {
    size_t i = first_from(c, id);
    memmove(&c->items[i], &c->items[i + 1], (c->count - i - 1) * sizeof *c->items);
    c->count--;
}

tide_status tide__callbacks_remove(tide__callbacks *c, uint64_t id) {
    pthread_mutex_lock(&c->lock);
    tide__callback *k = find(c, id);
    if (k == NULL || k->removed) {
        pthread_mutex_unlock(&c->lock);
        return tide__fail(TIDE_BAD_HANDLE, "callback %llu does not exist", (unsigned long long)id);
    }
    k->removed = true;
    while (!is_inside && k != NULL && k->inside > 0) { /* inside one it would wait for itself */
        pthread_cond_wait(&c->left, &c->lock);
        k = find(c, id);
    }
    if (k != NULL && k->inside == 0) {
        forget(c, id);
    }
    pthread_mutex_unlock(&c->lock);
    return TIDE_OK;
}

static uint64_t call(tide__callbacks *c, tide__callback *k, int device, uint64_t bytes) {
    tide__callback copy = *k;
    k->inside++;
    pthread_mutex_unlock(&c->lock);
    is_inside = true;
    uint64_t freed = copy.fn(copy.user, device, bytes);
    is_inside = false;
    pthread_mutex_lock(&c->lock);
    k = find(c, copy.id);
    if (--k->inside == 0 && k->removed) {
        forget(c, copy.id);
        pthread_cond_broadcast(&c->left);
    }
    return freed;
}

uint64_t tide__callbacks_run(tide__callbacks *c, int device, uint64_t bytes) {
    uint64_t freed = 0;
    if (is_inside) {
        return 0;
    }
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->count && freed < bytes;) {
        uint64_t id = c->items[i].id;
        if (!c->items[i].removed) {
            uint64_t more = call(c, &c->items[i], device, bytes - freed);
            freed = more > UINT64_MAX - freed ? UINT64_MAX : freed + more;
        }
        i = first_from(c, id + 1);
    }
    pthread_mutex_unlock(&c->lock);
    return freed;
}
