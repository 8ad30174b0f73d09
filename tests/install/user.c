/* SPDX-License-Identifier: Apache-2.0 */
/* A program of somebody who installed pagetide: a block on each kind of device that needs no GPU. */
#include <stdio.h>
#include <string.h>

#include <pagetide/pagetide.h>

static int failed(const char *what, tide_status status) {
    fprintf(stderr, "%s: %s: %s\n", what, tide_status_name(status), tide_last_error());
    return 1;
}

int main(int argc, char **argv) {
    tide_open_options options = {.struct_size = sizeof options, .backend = argc > 1 ? argv[1] : NULL};
    tide_allocator *a;
    void *block;
    tide_status status = tide_open(&options, &a);
    if (status != TIDE_OK) return failed("tide_open", status);
    status = tide_alloc(a, 0, 3 << 20, 0, TIDE_POOL_DEFAULT, &block);
    if (status != TIDE_OK) return failed("tide_alloc", status);

    /* On host the block is memory of this process. */
    if (argc > 2 && !strcmp(argv[2], "touch")) memset(block, 7, 3 << 20);

    tide_stats stats = {.struct_size = sizeof stats};
    status = tide_stats_get(a, 0, &stats);
    if (status != TIDE_OK) return failed("tide_stats_get", status);
    printf("requested %llu reserved %llu\n", (unsigned long long)stats.requested_bytes,
           (unsigned long long)stats.reserved_bytes);
    status = tide_free(a, block);
    if (status != TIDE_OK) return failed("tide_free", status);
    status = tide_close(a);
    if (status != TIDE_OK) return failed("tide_close", status);
    return 0;
}
