/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor/doctor.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void find(tide__doctor *d, tide__finding_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void find(tide__doctor *d, tide__finding_kind kind, const char *format, ...) {
    if (d->finding_count == TIDE__DOCTOR_FINDINGS) {
        return;
    }
    tide__finding *f = &d->findings[d->finding_count++];
    f->kind = kind;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
}

/* ---- The host ---- */

/* The first number of a file, or of the line that begins with `key`. */
static uint64_t number_in(const char *path, const char *key) {
    char line[256];
    uint64_t value = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        return UINT64_MAX;
    }
    while (fgets(line, sizeof line, f) != NULL) {
        size_t skip = key != NULL ? strlen(key) : 0;
        if ((key == NULL || strncmp(line, key, skip) == 0) && sscanf(line + skip, "%" SCNu64, &value) == 1) {
            break;
        }
    }
    fclose(f);
    return value;
}

static uint64_t kib(uint64_t value) { return value == UINT64_MAX ? value : value * 1024; }

static uint64_t limit_of(int which) {
    struct rlimit limit;
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return UINT64_MAX;
    }
    return limit.rlim_cur;
}

/* Tried on this process itself: seccomp filters of containers refuse the call as such. */
static bool may_take_descriptors(void) {
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int copy = null >= 0 && process >= 0 ? (int)syscall(SYS_pidfd_getfd, process, null, 0) : -1;
    bool may = copy >= 0;
    int opened[] = {null, process, copy};
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        if (opened[i] >= 0) {
            close(opened[i]);
        }
    }
    return may;
}

static void look_at_host(tide__doctor_host *h) {
    uint64_t v2 = number_in("/sys/fs/cgroup/memory.max", NULL);
    uint64_t v1 = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL);
    long barriers = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    *h = (tide__doctor_host){
        .memory_bytes = kib(number_in("/proc/meminfo", "MemTotal:")),
        .available_bytes = kib(number_in("/proc/meminfo", "MemAvailable:")),
        .locked_bytes = limit_of(RLIMIT_MEMLOCK),
        .open_files = limit_of(RLIMIT_NOFILE),
        .mappings = number_in("/proc/sys/vm/max_map_count", NULL),
        .pidfd_getfd = may_take_descriptors(),
        .membarrier = barriers > 0 && (barriers & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0,
    };
    h->cgroup_bytes = tide__min(v2, v1);
    if (h->cgroup_bytes >= h->memory_bytes) { /* version 1 says so many bytes where there is none */
        h->cgroup_bytes = UINT64_MAX;
    }
}

static void judge_host(tide__doctor *d) {
    const tide__doctor_host *h = &d->host;
    char bytes[TIDE__BYTES_TEXT];
    if (!h->pidfd_getfd) {
        find(d, TIDE__FINDING_MISSING,
             "pidfd_getfd is refused here, by the container's seccomp filter or an old kernel: PyTorch's "
             "sharing of expandable memory between processes needs it (docker run "
             "--security-opt seccomp=unconfined, or CAP_SYS_PTRACE)");
    }
    if (!h->membarrier) {
        find(d, TIDE__FINDING_SMALL,
             "membarrier is refused here: threads that wait for one another's locks look again after a "
             "millisecond instead of being woken at once");
    }
    if (h->cgroup_bytes != UINT64_MAX) {
        find(d, TIDE__FINDING_SMALL,
             "this container may use %s of host memory; backups to the host count in it",
             tide__format_bytes(h->cgroup_bytes, bytes));
    }
    if (h->locked_bytes < TIDE__GIB) {
        find(d, TIDE__FINDING_SMALL,
             "a process may lock %s (ulimit -l): network cards lock what is registered with them for RDMA",
             tide__format_bytes(h->locked_bytes, bytes));
    }
    if (h->mappings < 65530) {
        find(d, TIDE__FINDING_SMALL,
             "vm.max_map_count is %" PRIu64 ": the device \"host\" needs a mapping a chunk (sysctl -w "
             "vm.max_map_count=262144)",
             h->mappings);
    }
    if (h->open_files < 4096) {
        find(d, TIDE__FINDING_SMALL,
             "a process may open %" PRIu64
             " files: each chunk shared with another process is one (ulimit -n)",
             h->open_files);
    }
}

/* ---- The GPUs ---- */

static void judge_gpu(tide__doctor *d, int number) {
    const tide__doctor_gpu *g = &d->gpus[number];
    const tide__device_properties *p = &g->properties;
    char used[TIDE__BYTES_TEXT];
    if (!p->exportable) {
        find(d, TIDE__FINDING_MISSING,
             "GPU %d: memory cannot be exported as file descriptors: it cannot be shared between processes",
             number);
    }
    if (!p->rdma) {
        find(d, TIDE__FINDING_MISSING,
             "GPU %d: no GPUDirect RDMA with virtual memory: network cards cannot read and write its chunks",
             number);
    }
    if (g->free_bytes != UINT64_MAX &&
        p->total_bytes - tide__min(g->free_bytes, p->total_bytes) > p->total_bytes / 10) {
        find(d, TIDE__FINDING_SMALL,
             "GPU %d: %s are in use now, by other processes for the most part (nvidia-smi)", number,
             tide__format_bytes(p->total_bytes - g->free_bytes, used));
    }
}

static tide_status look_at_gpus(tide__doctor *d, tide__device *device) {
    int count = device->ops->count(device);
    d->gpus = calloc((size_t)count, sizeof *d->gpus);
    if (d->gpus == NULL) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "no host memory for %d GPUs", count);
    }
    for (d->gpu_count = 0; d->gpu_count < count; d->gpu_count++) {
        int i = d->gpu_count;
        tide__doctor_gpu *g = &d->gpus[i];
        uint64_t total;
        tide_status status = device->ops->properties(device, i, &g->properties);
        if (status == TIDE_OK) {
            status = device->ops->mem_info(device, i, &g->free_bytes, &total);
        }
        if (status != TIDE_OK) {
            g->free_bytes = UINT64_MAX;
            find(d, TIDE__FINDING_MISSING, "GPU %d: %s", i, tide_last_error());
        }
        judge_gpu(d, i);
    }
    return TIDE_OK;
}

tide_status tide__doctor_look(tide__doctor *out) {
    tide__device *device;
    memset(out, 0, sizeof *out);
    look_at_host(&out->host);
    tide_status status = tide__cuda_open(&device);
    if (status == TIDE_OK) {
        status = look_at_gpus(out, device);
        device->ops->close(device);
    } else if (status != TIDE_NO_HOST_MEMORY) {
        find(out, TIDE__FINDING_MISSING, "%s", tide_last_error());
        status = TIDE_OK;
    }
    judge_host(out);
    return status;
}

void tide__doctor_free(tide__doctor *d) { free(d->gpus); }
