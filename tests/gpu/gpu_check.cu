/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a GPU can show: chunks that move while kernels run lose no value and
 * give none to anybody else.
 *
 *     gpu_check                     all checks, one line each; exit code 1 if one failed
 *     gpu_check churn SECONDS SEED  allocates, writes, checks, frees and trims at random; for
 *                                   several processes at once
 *
 * Every block is filled on its stream with words that name the block; before it is
 * freed a kernel on the same stream counts the words that are not so. Nothing between
 * waits for the GPU, so moves happen under queued and running work. A wrong value
 * anywhere is a failure.
 */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pagetide/pagetide.h"

#define MIB ((size_t)1 << 20)
#define GRID 264 /* two blocks a multiprocessor of an H200 */
#define THREADS 512

static void die(const char *what, const char *why) {
    fprintf(stderr, "gpu_check: %s: %s\n", what, why);
    exit(1);
}

static void cuda_ok(cudaError_t error, const char *what) {
    if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}
#define CUDA(call) cuda_ok(call, #call)

static void tide_ok(tide_status status, const char *what) {
    if (status != TIDE_OK) die(what, tide_last_error());
}
#define TIDE(call) tide_ok(call, #call)

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- Kernels ---- */

__device__ static uint32_t word_of(uint32_t name, size_t i) { return name * 2654435761u + (uint32_t)i; }

/* `rounds` writes of the whole block: more rounds, a longer kernel. */
__global__ static void fill(uint32_t *words, size_t count, uint32_t name, int rounds) {
    for (int r = 0; r < rounds; r++) {
        for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
            words[i] = word_of(name + (uint32_t)(rounds - 1 - r) * 7919u, i);
        }
    }
}

__global__ static void check(const uint32_t *words, size_t count, uint32_t name, unsigned long long *wrong) {
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        mine += words[i] != word_of(name, i);
    }
    if (mine != 0) atomicAdd(wrong, mine);
}

/* Started before its predecessor on the stream has ended: touches memory only after it. */
__global__ static void fill_dependent(uint32_t *words, size_t count, uint32_t name) {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        words[i] = word_of(name, i);
    }
}

/* ---- Blocks with names ---- */

typedef struct run {
    tide_allocator *a;
    unsigned long long *wrong; /* on the device */
    uint32_t next_name;
} run;

typedef struct block {
    void *ptr;
    size_t size;
    uint32_t name;
} block;

static block take(run *r, size_t size, cudaStream_t stream, int rounds) {
    block b = {NULL, size, ++r->next_name};
    TIDE(tide_alloc(r->a, 0, size, (tide_stream)stream, TIDE_POOL_DEFAULT, &b.ptr));
    fill<<<GRID, THREADS, 0, stream>>>((uint32_t *)b.ptr, size / 4, b.name, rounds);
    CUDA(cudaGetLastError());
    return b;
}

static void look(run *r, block b, cudaStream_t stream) {
    check<<<GRID, THREADS, 0, stream>>>((const uint32_t *)b.ptr, b.size / 4, b.name, r->wrong);
    CUDA(cudaGetLastError());
}

static void give(run *r, block b, cudaStream_t stream) {
    look(r, b, stream);
    TIDE(tide_free(r->a, b.ptr));
}

static tide_stats stats(run *r) {
    tide_stats s;
    memset(&s, 0, sizeof s);
    s.struct_size = sizeof s;
    TIDE(tide_stats_get(r->a, 0, &s));
    return s;
}

static void open_run(run *r, tide_cross_stream mode, uint64_t limit) {
    tide_open_options o;
    memset(&o, 0, sizeof o);
    o.struct_size = sizeof o;
    o.backend = "cuda";
    o.cross_stream = mode;
    o.limit_bytes = limit;
    memset(r, 0, sizeof *r);
    TIDE(tide_open(&o, &r->a));
    CUDA(cudaMalloc((void **)&r->wrong, sizeof *r->wrong));
    CUDA(cudaMemset(r->wrong, 0, sizeof *r->wrong));
}

/* The words that were wrong. */
static unsigned long long close_run(run *r) {
    unsigned long long wrong = 0;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&wrong, r->wrong, sizeof wrong, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(r->wrong));
    TIDE(tide_close(r->a));
    return wrong;
}

static int failures;

static void report(const char *name, bool holds, const char *details) {
    printf("%-6s %-44s %s\n", holds ? "ok" : "FAILED", name, details);
    fflush(stdout);
    failures += !holds;
}

/* ---- The checks ---- */

enum { SLOTS = 24, ROUNDS = 40 };

/* Blocks of many sizes come and go on `streams` streams in turn, each filled and
 * looked at; the limit keeps memory tight, so that chunks must move. */
static void check_moves(const char *name, tide_cross_stream mode, int streams) {
    char details[160];
    run r;
    cudaStream_t s[8];
    block slots[8][SLOTS];
    unsigned seed = 12345;
    open_run(&r, mode, 0);
    for (int i = 0; i < streams; i++) {
        CUDA(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        for (int k = 0; k < SLOTS; k++) slots[i][k] = take(&r, (size_t)(8 + 8 * (k % 8)) * MIB, s[i], 1);
    }
    double start = now_ms();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < streams; i++) {
            /* Every other block goes, and fewer, larger ones come over their chunks. */
            size_t freed = 0;
            for (int k = round % 2; k < SLOTS; k += 2) {
                freed += slots[i][k].size;
                give(&r, slots[i][k], s[i]);
            }
            for (int k = round % 2; k < SLOTS; k += 2) {
                seed = seed * 1103515245u + 12345u;
                size_t size = k + 2 < SLOTS ? (1 + (seed >> 16) % 96) * MIB : 256 * MIB;
                slots[i][k] = take(&r, size, s[i], 2);
            }
        }
    }
    double host = now_ms() - start;
    for (int i = 0; i < streams; i++) {
        for (int k = 0; k < SLOTS; k++) give(&r, slots[i][k], s[i]);
    }
    CUDA(cudaDeviceSynchronize());
    tide_stats st = stats(&r);
    unsigned long long wrong = close_run(&r);
    for (int i = 0; i < streams; i++) CUDA(cudaStreamDestroy(s[i]));
    snprintf(details, sizeof details, "%llu words wrong; %llu moves, %.1f GiB moved, host %.0f ms, %llu waits", wrong,
             (unsigned long long)st.moves, (double)st.moved_bytes / (double)(1 << 30), host,
             (unsigned long long)st.stream_waits);
    report(name, wrong == 0 && st.moves > 0 && st.moved_bytes >= 10 * 640 * MIB, details);
}

/* A kernel that starts before the one that wrote the freed block has ended, on the
 * chunks that moved from under it. */
static void check_dependent_launch(void) {
    char details[160];
    run r;
    cudaStream_t s;
    open_run(&r, TIDE_CROSS_STREAM_IDLE, 0);
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    cudaLaunchAttribute early;
    memset(&early, 0, sizeof early);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config;
    memset(&config, 0, sizeof config);
    config.gridDim = dim3(GRID);
    config.blockDim = dim3(THREADS);
    config.stream = s;
    config.attrs = &early;
    config.numAttrs = 1;
    uint64_t moves = 0;
    for (int i = 0; i < 20; i++) {
        block pieces[40];
        for (int k = 0; k < 40; k++) pieces[k] = take(&r, 16 * MIB, s, 4);
        for (int k = 0; k < 40; k += 2) TIDE(tide_free(r.a, pieces[k].ptr)); /* written by kernels still queued */
        block b = {NULL, 320 * MIB, ++r.next_name};
        TIDE(tide_alloc(r.a, 0, b.size, (tide_stream)s, TIDE_POOL_DEFAULT, &b.ptr));
        CUDA(cudaLaunchKernelEx(&config, fill_dependent, (uint32_t *)b.ptr, b.size / 4, b.name));
        give(&r, b, s);
        for (int k = 1; k < 40; k += 2) give(&r, pieces[k], s);
    }
    moves = stats(&r).moves;
    unsigned long long wrong = close_run(&r);
    CUDA(cudaStreamDestroy(s));
    snprintf(details, sizeof details, "%llu words wrong; %llu moves", wrong, (unsigned long long)moves);
    report("a dependent launch across a move", wrong == 0 && moves > 0, details);
}

/* Memory of A is used on B and freed without a word; A waits for B later. A third
 * stream that asks meanwhile must not get it. */
static void check_unrecorded_use(tide_cross_stream mode, const char *name) {
    char details[160];
    run r;
    cudaStream_t a, b, c;
    cudaEvent_t ready, used;
    open_run(&r, mode, 0);
    CUDA(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
    block seen = take(&r, MIB, b, 1); /* the allocator has seen B */
    for (int i = 0; i < 30; i++) {
        block x = take(&r, 512 * MIB, a, 1);
        CUDA(cudaEventRecord(ready, a));
        CUDA(cudaStreamWaitEvent(b, ready, 0));
        fill<<<GRID, THREADS, 0, b>>>((uint32_t *)x.ptr, x.size / 4, x.name, 20); /* some 3 ms */
        look(&r, x, b);
        CUDA(cudaEventRecord(used, b));
        TIDE(tide_free(r.a, x.ptr));
        block other = take(&r, 512 * MIB, c, 1); /* not x's bytes while B runs */
        give(&r, other, c);
        CUDA(cudaStreamWaitEvent(a, used, 0));
        block again = take(&r, 512 * MIB, a, 1);
        give(&r, again, a);
    }
    give(&r, seen, b);
    unsigned long long wrong = close_run(&r);
    snprintf(details, sizeof details, "%llu words wrong", wrong);
    report(name, wrong == 0, details);
    CUDA(cudaEventDestroy(ready));
    CUDA(cudaEventDestroy(used));
    CUDA(cudaStreamDestroy(a));
    CUDA(cudaStreamDestroy(b));
    CUDA(cudaStreamDestroy(c));
}

/* A graph replays into blocks freed while it was captured; others allocate meanwhile. */
static void check_graph(void) {
    char details[160];
    run r;
    cudaStream_t s, other;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    tide_pool pool;
    open_run(&r, TIDE_CROSS_STREAM_IDLE, 0);
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    TIDE(tide_pool_create(r.a, 0, &pool));
    TIDE(tide_capture_begin(r.a, 0, (tide_stream)s, pool));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    block in = {NULL, 64 * MIB, ++r.next_name}, out = {NULL, 64 * MIB, ++r.next_name};
    TIDE(tide_alloc(r.a, 0, in.size, (tide_stream)s, TIDE_POOL_CURRENT, &in.ptr));
    fill<<<GRID, THREADS, 0, s>>>((uint32_t *)in.ptr, in.size / 4, in.name, 4);
    look(&r, in, s);
    TIDE(tide_free(r.a, in.ptr));
    TIDE(tide_alloc(r.a, 0, out.size, (tide_stream)s, TIDE_POOL_CURRENT, &out.ptr));
    fill<<<GRID, THREADS, 0, s>>>((uint32_t *)out.ptr, out.size / 4, out.name, 1);
    CUDA(cudaStreamEndCapture(s, &graph));
    TIDE(tide_capture_end(r.a, 0, (tide_stream)s));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 50; i++) {
        CUDA(cudaGraphLaunch(exec, other));
        block b = take(&r, (size_t)(16 + i * 4) * MIB, s, 2), c = take(&r, 64 * MIB, other, 1);
        give(&r, b, s);
        give(&r, c, other);
        tide_trim_options all;
        memset(&all, 0, sizeof all);
        all.struct_size = sizeof all;
        all.bytes = UINT64_MAX;
        TIDE(tide_trim(r.a, 0, &all, NULL));
    }
    look(&r, out, other);
    CUDA(cudaDeviceSynchronize());
    TIDE(tide_free(r.a, out.ptr));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    TIDE(tide_pool_release(r.a, pool));
    unsigned long long wrong = close_run(&r);
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaStreamDestroy(other));
    snprintf(details, sizeof details, "%llu words wrong", wrong);
    report("a graph replays while others allocate and trim", wrong == 0, details);
}

static uint64_t device_free_bytes(void) {
    size_t free_bytes, total_bytes;
    CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
}

static void check_all_is_given_back(void) {
    char details[160];
    run r;
    open_run(&r, TIDE_CROSS_STREAM_IDLE, 0);
    block warm = take(&r, 2 * MIB, 0, 1);
    give(&r, warm, 0);
    TIDE(tide_trim(r.a, 0, NULL, NULL));
    CUDA(cudaDeviceSynchronize());
    uint64_t before = device_free_bytes();
    for (int i = 0; i < 5; i++) {
        block b[64];
        for (int k = 0; k < 64; k++) b[k] = take(&r, (size_t)(1 + k) * MIB, 0, 1);
        for (int k = 0; k < 64; k++) give(&r, b[k], 0);
        tide_trim_options all;
        memset(&all, 0, sizeof all);
        all.struct_size = sizeof all;
        all.bytes = all.wait_ns = UINT64_MAX;
        TIDE(tide_trim(r.a, 0, &all, NULL));
    }
    uint64_t after = device_free_bytes();
    uint64_t reserved = stats(&r).reserved_bytes;
    unsigned long long wrong = close_run(&r);
    snprintf(details, sizeof details, "%llu words wrong; %lld MiB less free than before, %llu MiB reserved", wrong,
             (long long)(before - after) / (long long)MIB, (unsigned long long)reserved / MIB);
    report("a trim gives everything back to the device", wrong == 0 && after + 4 * MIB >= before && reserved == 0, details);
}

/* What moves cost the kernels that run meanwhile: a bandwidth-bound stream alone, and
 * beside a host thread's worth of moves on another stream that launches nothing. */
static void measure_moves_beside_kernels(void) {
    char details[200];
    run r;
    cudaStream_t busy, moving;
    cudaEvent_t from, to;
    float alone = 0, beside = 0;
    open_run(&r, TIDE_CROSS_STREAM_IDLE, 0);
    CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&moving, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    block b = take(&r, 1024 * MIB, busy, 1);
    CUDA(cudaDeviceSynchronize());
    uint64_t moves = 0;
    double per_move_us = 0;
    for (int pass = 0; pass < 2; pass++) {
        CUDA(cudaEventRecord(from, busy));
        for (int i = 0; i < 400; i++) fill<<<GRID, THREADS, 0, busy>>>((uint32_t *)b.ptr, b.size / 4, b.name, 1);
        CUDA(cudaEventRecord(to, busy));
        if (pass == 1) {
            uint64_t first = stats(&r).moves;
            double start = now_ms();
            while (cudaEventQuery(to) == cudaErrorNotReady) {
                void *p[32], *large;
                for (int k = 0; k < 32; k++) TIDE(tide_alloc(r.a, 0, 20 * MIB, (tide_stream)moving, 0, &p[k]));
                for (int k = 0; k < 32; k += 2) TIDE(tide_free(r.a, p[k]));
                TIDE(tide_alloc(r.a, 0, 320 * MIB, (tide_stream)moving, 0, &large));
                TIDE(tide_free(r.a, large));
                for (int k = 1; k < 32; k += 2) TIDE(tide_free(r.a, p[k]));
            }
            moves = stats(&r).moves - first;
            per_move_us = moves > 0 ? (now_ms() - start) * 1e3 / (double)moves : 0;
        }
        CUDA(cudaEventSynchronize(to));
        CUDA(cudaEventElapsedTime(pass == 0 ? &alone : &beside, from, to));
    }
    give(&r, b, busy);
    unsigned long long wrong = close_run(&r);
    snprintf(details, sizeof details, "kernels %.1f ms alone, %.1f beside %llu moves (%.2fx); %.0f us a move", alone, beside,
             (unsigned long long)moves, beside / alone, per_move_us);
    report("what moves cost running kernels", wrong == 0, details);
    CUDA(cudaStreamDestroy(busy));
    CUDA(cudaStreamDestroy(moving));
}

/* ---- Churn: for several processes on one GPU ---- */

static int churn(double seconds, unsigned seed) {
    enum { LIVE = 200 };
    run r;
    cudaStream_t s[4];
    static block blocks[LIVE];
    static int on[LIVE];
    double start = now_ms();
    uint64_t operations = 0;
    open_run(&r, TIDE_CROSS_STREAM_IDLE, (uint64_t)24 << 30);
    for (int i = 0; i < 4; i++) CUDA(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
    while (now_ms() - start < seconds * 1e3) {
        for (int k = 0; k < 64; k++, operations++) {
            seed = seed * 1103515245u + 12345u;
            int i = (int)(seed >> 8) % LIVE;
            if (blocks[i].ptr != NULL) give(&r, blocks[i], s[on[i]]);
            seed = seed * 1103515245u + 12345u;
            size_t size = ((size_t)4096 << (seed >> 16) % 15) + (seed >> 20) % 64 * 4096;
            on[i] = (int)(seed >> 12) % 4;
            blocks[i] = take(&r, size, s[on[i]], 1);
        }
        if (operations % 1024 == 0) {
            tide_trim_options some;
            memset(&some, 0, sizeof some);
            some.struct_size = sizeof some;
            some.bytes = (uint64_t)1 << 30;
            TIDE(tide_trim(r.a, 0, &some, NULL));
        }
    }
    for (int i = 0; i < LIVE; i++) {
        if (blocks[i].ptr != NULL) give(&r, blocks[i], s[on[i]]);
    }
    CUDA(cudaDeviceSynchronize());
    tide_stats st = stats(&r);
    unsigned long long wrong = close_run(&r);
    printf("%s churn: %llu words wrong, %.0f allocations/s, %llu moves, %llu chunks given back\n",
           wrong == 0 ? "ok    " : "FAILED", wrong, (double)operations / seconds, (unsigned long long)st.moves,
           (unsigned long long)st.chunks_released);
    return wrong != 0;
}

int main(int argc, char **argv) {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    if (argc == 4 && strcmp(argv[1], "churn") == 0) return churn(atof(argv[2]), (unsigned)atoi(argv[3]));
    check_moves("moves under writers, one stream", TIDE_CROSS_STREAM_IDLE, 1);
    check_moves("moves under writers, four streams, idle", TIDE_CROSS_STREAM_IDLE, 4);
    check_moves("moves under writers, four streams, wait", TIDE_CROSS_STREAM_WAIT, 4);
    check_moves("moves under writers, four streams, off", TIDE_CROSS_STREAM_OFF, 4);
    check_dependent_launch();
    check_unrecorded_use(TIDE_CROSS_STREAM_IDLE, "used on B, freed, A waits for B: idle");
    check_unrecorded_use(TIDE_CROSS_STREAM_WAIT, "used on B, freed, A waits for B: wait");
    check_graph();
    check_all_is_given_back();
    measure_moves_beside_kernels();
    printf("%d failed\n", failures);
    return failures != 0;
}
