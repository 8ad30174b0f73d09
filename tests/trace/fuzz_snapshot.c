/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a file, through all that `pagetide info` does with one. In the fuzz
 * build a fuzzer, elsewhere run over fixtures/ by ctest. For longer:
 *
 *     trace_fuzz -dict=tests/trace/snapshot.dict -max_len=8192 FOUND tests/trace/fixtures
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "report/info.h"
#include "trace/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void report(const tide__trace *t, FILE *out) {
    tide__gpu_summary *gpus = calloc(t->gpu_count + 1, sizeof *gpus);
    if (gpus == NULL) abort();
    for (size_t i = 0; i < t->gpu_count; i++) {
        if (tide__gpu_summarize(&t->gpus[i], &gpus[i]) != TIDE_OK) abort();
    }
    tide__info info = {"fuzz", t, gpus};
    tide__report_info_text(&info, out, 80);
    tide__report_info_json(&info, out);
    for (size_t i = 0; i < t->gpu_count; i++) {
        tide__gpu_summary_free(&gpus[i]);
    }
    free(gpus);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    static FILE *out;
    char path[32];
    if (fd < 0) {
        fd = memfd_create("snapshot", MFD_CLOEXEC);
        out = fopen("/dev/null", "w");
        if (fd < 0 || out == NULL) abort();
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tide__trace *t = NULL;
    if (tide__trace_read(path, NULL, NULL, &t) == TIDE_OK) {
        report(t, out);
    }
    tide__trace_free(t);
    return 0;
}
