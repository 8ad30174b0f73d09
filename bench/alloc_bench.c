/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an alloc and a free cost, on the sim device, beside mimalloc on the
 * very same sequence in the same run.
 *
 * Each figure is the median of several repeats with the lowest and highest
 * behind it; both allocators take turns, so that a machine whose speed drifts
 * drifts for both. Single-threaded figures are of the thread's CPU time.
 * mimalloc hands out host memory, which is never touched here; of the sequences
 * in which it calls the system for each block it gets a shorter run.
 *
 * Allocations that had to find chunks (new ones, or idle ones that move) are
 * counted apart: the figure is of all others, and what these add to it, spread
 * over all pairs, stands at the end of the line.
 */
#include <mimalloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "allocator.h"

#define REPEATS 7
#define MAX_THREADS 8

typedef struct target {
    tide_allocator *a; /* NULL: mimalloc */
} target;

static void *take(const target *t, size_t size, tide_stream stream) {
    void *p = NULL;
    if (t->a == NULL) {
        return mi_malloc(size);
    }
    if (tide_alloc(t->a, 0, size, stream, TIDE_POOL_DEFAULT, &p) != TIDE_OK) {
        fprintf(stderr, "alloc_bench: %s\n", tide_last_error());
        exit(1);
    }
    return p;
}

static void give(const target *t, void *p) {
    if (t->a == NULL) {
        mi_free(p);
    } else if (tide_free(t->a, p) != TIDE_OK) {
        fprintf(stderr, "alloc_bench: %s\n", tide_last_error());
        exit(1);
    }
}

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Log-uniform between low and high: small sizes are as likely as large ones. */
static size_t random_size(uint64_t *state, size_t low, size_t high) {
    int doublings = tide__log2_floor(high / low);
    int shift = (int)(random_next(state) % (uint64_t)doublings);
    size_t base = low << shift;
    return base + random_next(state) % base;
}

/* The thread's own time: what else runs on the machine does not count, though it
 * still takes caches and clock away. */
static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* Of allocations that had to find chunks, so far; 0 for mimalloc. */
static uint64_t slow_ns(const target *t) {
    tide_stats s = {.struct_size = sizeof s};
    if (t->a != NULL) {
        tide_stats_get(t->a, 0, &s);
    }
    return s.slow_ns;
}

/* ---- The sequences: nanoseconds for an alloc and a free ---- */

typedef struct job {
    const target *t;
    size_t low, high; /* sizes; equal: always the same */
    size_t live;      /* blocks */
    size_t pairs;
    size_t their_pairs; /* mimalloc's, where each costs system calls; 0: as many */
    tide_stream stream;
    bool lifo;
    double ns;      /* result: without ... */
    double slow_ns; /* ... what allocations that had to find chunks took */
} job;

/* What is timed lies between these two. */
static void begin(job *j) {
    j->slow_ns = (double)slow_ns(j->t);
    j->ns = (double)cpu_ns();
}

static void end(job *j) {
    j->ns = ((double)cpu_ns() - j->ns) / (double)j->pairs;
    j->slow_ns = ((double)slow_ns(j->t) - j->slow_ns) / (double)j->pairs;
    j->ns -= j->slow_ns;
}

static void run_cached(job *j) {
    begin(j);
    for (size_t i = 0; i < j->pairs; i++) {
        give(j->t, take(j->t, j->low, j->stream));
    }
    end(j);
}

/* Frees a random live block and allocates another in its place. What comes next
 * is drawn before the clock starts. */
static void run_mix(job *j) {
    void **blocks = calloc(j->live, sizeof *blocks);
    struct {
        size_t which, size;
    } *steps = calloc(2 * j->pairs, sizeof *steps);
    uint64_t seed = 88172645463325252U;
    for (size_t i = 0; i < j->live; i++) {
        blocks[i] = take(j->t, random_size(&seed, j->low, j->high), j->stream);
    }
    for (size_t i = 0; i < 2 * j->pairs; i++) {
        steps[i].which = random_next(&seed) % j->live;
        steps[i].size = random_size(&seed, j->low, j->high);
    }
    for (size_t i = 0; i < 2 * j->pairs; i++) {
        if (i == j->pairs) { /* the first half warms up */
            begin(j);
        }
        void **block = &blocks[steps[i].which];
        give(j->t, *block);
        *block = take(j->t, steps[i].size, j->stream);
    }
    end(j);
    for (size_t i = 0; i < j->live; i++) {
        give(j->t, blocks[i]);
    }
    free(steps);
    free(blocks);
}

/* With `live` blocks held: allocates and frees on top of them, last in first
 * out, or frees and allocates at random among them. */
static void run_live(job *j) {
    enum { DEPTH = 64 };
    void **blocks = calloc(j->live, sizeof *blocks), *top[DEPTH];
    uint64_t seed = 88172645463325252U;
    for (size_t i = 0; i < j->live; i++) {
        blocks[i] = take(j->t, j->low, j->stream);
    }
    begin(j);
    if (j->lifo) {
        for (size_t i = 0; i < j->pairs; i += DEPTH) {
            for (int k = 0; k < DEPTH; k++) {
                top[k] = take(j->t, j->low, j->stream);
            }
            for (int k = DEPTH; k > 0; k--) {
                give(j->t, top[k - 1]);
            }
        }
    } else {
        for (size_t i = 0; i < j->pairs; i++) {
            size_t k = random_next(&seed) % j->live;
            give(j->t, blocks[k]);
            blocks[k] = take(j->t, j->low, j->stream);
        }
    }
    end(j);
    for (size_t i = 0; i < j->live; i++) {
        give(j->t, blocks[i]);
    }
    free(blocks);
}

/* ---- Running and printing ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct figure {
    double low, median, high;
} figure;

static figure figure_of(double *values) {
    qsort(values, REPEATS, sizeof *values, by_value);
    return (figure){values[0], values[REPEATS / 2], values[REPEATS - 1]};
}

static tide_allocator *open_sim(void) {
    tide__device *d;
    tide_allocator *a;
    if (tide__sim_open(NULL, &d) != TIDE_OK || tide__open_on(d, NULL, NULL, &a) != TIDE_OK) {
        fprintf(stderr, "alloc_bench: %s\n", tide_last_error());
        exit(1);
    }
    return a;
}

/* Runs a sequence on both, in turns; medians into ours and theirs. */
static void compare(const char *name, void (*run)(job *), const job *what, double *ours, double *theirs) {
    double tide_ns[REPEATS], mi_ns[REPEATS], slow[REPEATS];
    uint64_t moves = 0;
    for (int i = -1; i < REPEATS; i++) { /* -1 warms up */
        target tide = {open_sim()}, mi = {NULL};
        job j = *what;
        j.t = &tide;
        if (i < 0) {
            j.pairs = j.pairs / 10 + 1;
        }
        run(&j); /* maps chunks, fills caches */
        run(&j);
        job k = j;
        k.t = &mi;
        k.pairs = what->their_pairs != 0 ? what->their_pairs : j.pairs;
        run(&k);
        run(&k);
        if (i >= 0) {
            tide_ns[i] = j.ns;
            slow[i] = j.slow_ns;
            mi_ns[i] = k.ns;
        }
        tide_stats s = {.struct_size = sizeof s};
        tide_stats_get(tide.a, 0, &s);
        moves = s.moves;
        tide_close(tide.a);
    }
    figure f = figure_of(tide_ns), g = figure_of(mi_ns);
    printf("%-44s %7.1f (%.1f-%.1f) ns %9.1f (%.1f-%.1f) ns %6.2fx   and %.1f ns, %llu moves\n", name,
           f.median, f.low, f.high, g.median, g.low, g.high, f.median / g.median, figure_of(slow).median,
           (unsigned long long)moves);
    fflush(stdout);
    if (ours != NULL) {
        *ours = f.median;
        *theirs = g.median;
    }
}

static void *thread_main(void *arg) {
    run_cached(arg);
    return NULL;
}

/* Pairs a second of `threads` threads on as many streams. */
static double throughput(int threads) {
    target t = {open_sim()};
    pthread_t ids[MAX_THREADS];
    job jobs[MAX_THREADS];
    for (int i = 0; i < threads; i++) {
        jobs[i] =
            (job){.t = &t, .low = 64 * 1024, .high = 64 * 1024, .pairs = 2000000, .stream = (tide_stream)i};
    }
    uint64_t start = tide__monotonic_ns();
    for (int i = 0; i < threads; i++) {
        pthread_create(&ids[i], NULL, thread_main, &jobs[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
    }
    double seconds = (double)(tide__monotonic_ns() - start) / 1e9;
    tide_close(t.a);
    return (double)threads * (double)jobs[0].pairs / seconds;
}

static void compare_threads(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double one[REPEATS], many[REPEATS];
    int threads = MAX_THREADS;
    for (int i = 0; i < REPEATS; i++) {
        one[i] = throughput(1);
        many[i] = throughput(threads);
    }
    figure f = figure_of(one), g = figure_of(many);
    printf("%-44s %7.1f (%.1f-%.1f) M/s, 1 thread %.1f (%.1f-%.1f) M/s: %.2fx on %ld cores\n",
           "8 threads on 8 streams, alloc and free pairs", g.median / 1e6, g.low / 1e6, g.high / 1e6,
           f.median / 1e6, f.low / 1e6, f.high / 1e6, g.median / f.median, cores);
}

static void compare_growth(const char *name, bool lifo) {
    double ours[2], theirs[2];
    char text[64];
    size_t live[2] = {1000, 1000000};
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%s, %zu live of 1 KiB", name, live[i]);
        job j = {.low = 1024, .high = 1024, .live = live[i], .pairs = 1000000, .lifo = lifo};
        compare(text, run_live, &j, &ours[i], &theirs[i]);
    }
    printf("%-44s %7.2fx               %9.2fx              %6.2fx of its growth\n",
           "  growth from 1,000 to 1,000,000", ours[1] / ours[0], theirs[1] / theirs[0],
           ours[1] / ours[0] / (theirs[1] / theirs[0]));
}

int main(void) {
    printf("%-44s %7s %18s %20s   %s\n", "an alloc and a free, one thread", "pagetide", "mimalloc", "ratio",
           "finding chunks");
    compare("cached, 64 KiB", run_cached, &(job){.low = 65536, .pairs = 3000000}, NULL, NULL);
    compare("cached, 1 MiB", run_cached, &(job){.low = 1 << 20, .pairs = 3000000, .their_pairs = 300000},
            NULL, NULL);
    compare("cached, 20 MiB", run_cached, &(job){.low = 20 << 20, .pairs = 1000000, .their_pairs = 2000},
            NULL, NULL);
    compare("random, 512 B to 1 MiB, 2,000 live", run_mix,
            &(job){.low = 512, .high = 1 << 20, .live = 2000, .pairs = 500000, .their_pairs = 200000}, NULL,
            NULL);
    compare("random, 512 B to 64 MiB, 1,000 live", run_mix,
            &(job){.low = 512, .high = 64 << 20, .live = 1000, .pairs = 300000, .their_pairs = 5000}, NULL,
            NULL);
    compare_growth("last in first out", true);
    compare_growth("random order", false);
    compare_threads();
    return 0;
}
