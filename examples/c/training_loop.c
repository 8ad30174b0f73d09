/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training loop whose batches change their length: the case in which an allocator
 * that cannot move memory reserves far more than it holds.
 *
 *     cc training_loop.c $(pkg-config --cflags --libs pagetide) -ldl && ./a.out
 *
 * Each step allocates activations of a new size layer by layer and frees them in
 * reverse, while weights and gradients stay. What is reserved follows what is held.
 */
#include "work.h"

#define MIB ((size_t)1 << 20)
#define LAYERS 12
#define STEPS 40

int main(void) {
    work w;
    tide_allocator *a = open_somewhere(&w);
    tide_stream compute;
    void *weights[LAYERS], *activations[LAYERS];
    unsigned length = 1;
    check(tide_stream_create(a, 0, &compute));
    check(tide_phase(a, "load"));
    for (int i = 0; i < LAYERS; i++) {
        check(tide_alloc(a, 0, 6 * MIB, compute, TIDE_POOL_DEFAULT, &weights[i]));
        fill(&w, weights[i], (unsigned char)(100 + i), 6 * MIB, compute);
    }
    check(tide_phase(a, "train"));
    for (int step = 0; step < STEPS; step++) {
        length = length * 1103515245u + 12345u;
        size_t bytes = (2 + (length >> 16) % 10) * MIB + (length >> 8) % 1000 * 512;
        for (int i = 0; i < LAYERS; i++) { /* forward */
            check(tide_alloc(a, 0, bytes, compute, TIDE_POOL_DEFAULT, &activations[i]));
            fill(&w, activations[i], (unsigned char)i, bytes, compute);
        }
        void *logits;
        check(tide_alloc(a, 0, 5 * bytes, compute, TIDE_POOL_DEFAULT, &logits));
        fill(&w, logits, 50, 5 * bytes, compute);
        expect(&w, logits, 50, 5 * bytes, compute);
        check(tide_free(a, logits));
        for (int i = LAYERS - 1; i >= 0; i--) { /* backward: a gradient as large comes and goes */
            void *gradient;
            check(tide_alloc(a, 0, bytes / 512 * 512, compute, TIDE_POOL_DEFAULT, &gradient));
            expect(&w, activations[i], (unsigned char)i, bytes, compute);
            check(tide_free(a, activations[i]));
            check(tide_free(a, gradient));
        }
    }
    for (int i = 0; i < LAYERS; i++) {
        expect(&w, weights[i], (unsigned char)(100 + i), 6 * MIB, compute);
    }
    tide_stats s = {.struct_size = sizeof s};
    check(tide_stats_get(a, 0, &s));
    printf("%d steps: at most %.1f MiB held, %.1f MiB reserved (%.3f x), %llu chunks moved\n", STEPS,
           (double)s.peak_requested_bytes / MIB, (double)s.peak_reserved_bytes / MIB,
           (double)s.peak_reserved_bytes / (double)s.peak_requested_bytes, (unsigned long long)s.moves);
    for (int i = 0; i < LAYERS; i++) {
        check(tide_free(a, weights[i]));
    }
    tide_trim_options all = {.struct_size = sizeof all, .bytes = UINT64_MAX, .wait_ns = UINT64_MAX};
    tide_trim_result given = {.struct_size = sizeof given};
    check(tide_trim(a, 0, &all, &given));
    printf("a trim gave %.1f MiB back\n", (double)given.released_bytes / MIB);
    check(tide_stream_destroy(a, 0, compute));
    return tide_close(a) == TIDE_OK ? 0 : 1;
}
