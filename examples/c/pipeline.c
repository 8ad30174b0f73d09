/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pipeline over two streams: batches are loaded on one and used on the other.
 *
 *     cc pipeline.c $(pkg-config --cflags --libs pagetide) -ldl && ./a.out
 *
 * tide_record_stream says that a block is used on a second stream, so that it can be
 * freed at once: nobody gets its bytes before both have passed. Without a wait of the
 * host anywhere, a few buffers serve all batches.
 */
#include "work.h"

#define MIB ((size_t)1 << 20)
#define BATCHES 60
#define BYTES (24 * MIB)

int main(void) {
    work w;
    tide_allocator *a = open_somewhere(&w);
    tide_stream load, compute;
    void *state;
    check(tide_stream_create(a, 0, &load));
    check(tide_stream_create(a, 0, &compute));
    check(tide_alloc(a, 0, BYTES, compute, TIDE_POOL_DEFAULT, &state));
    fill(&w, state, 7, BYTES, compute);
    for (int i = 0; i < BATCHES; i++) {
        void *batch, *scratch;
        check(tide_alloc(a, 0, BYTES, load, TIDE_POOL_DEFAULT, &batch));
        fill(&w, batch, (unsigned char)i, BYTES, load);
        expect(&w, batch, (unsigned char)i, BYTES, load); /* a program would make compute wait for an event */
        check(tide_record_stream(a, batch, compute));
        check(tide_alloc(a, 0, BYTES / 2, compute, TIDE_POOL_DEFAULT, &scratch));
        fill(&w, scratch, 200, BYTES / 2, compute); /* uses the batch too */
        check(tide_free(a, scratch));
        check(tide_free(a, batch));
    }
    expect(&w, state, 7, BYTES, compute);
    tide_stats s = {.struct_size = sizeof s};
    check(tide_stats_get(a, 0, &s));
    printf("%d batches of %.0f MiB: at most %.1f MiB reserved, %llu waits of the host\n", BATCHES,
           (double)BYTES / MIB, (double)s.peak_reserved_bytes / MIB, (unsigned long long)s.host_waits);
    check(tide_free(a, state));
    check(tide_stream_destroy(a, 0, load));
    check(tide_stream_destroy(a, 0, compute));
    return tide_close(a) == TIDE_OK ? 0 : 1;
}
