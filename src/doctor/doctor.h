/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor: what this machine offers to pagetide, and what of it is missing or
 * small. Looks, and changes nothing: no context is made on a GPU but for asking
 * how much of it is free.
 */
#ifndef TIDE_DOCTOR_H
#define TIDE_DOCTOR_H

#include "device/device.h"

#define TIDE__DOCTOR_FINDINGS 64

typedef enum tide__finding_kind {
    TIDE__FINDING_MISSING, /* pagetide does not run, or a part of it does not */
    TIDE__FINDING_SMALL,   /* it runs, and a limit may be met */
} tide__finding_kind;

typedef struct tide__finding {
    tide__finding_kind kind;
    char text[512];
} tide__finding;

typedef struct tide__doctor_gpu {
    tide__device_properties properties;
    uint64_t free_bytes; /* UINT64_MAX: the driver would not say */
} tide__doctor_gpu;

/* Bytes and counts; UINT64_MAX where there is no limit or it cannot be told. */
typedef struct tide__doctor_host {
    uint64_t memory_bytes, available_bytes;
    uint64_t cgroup_bytes; /* what this container may use */
    uint64_t locked_bytes; /* that a process may lock: ulimit -l */
    uint64_t open_files;   /* ulimit -n */
    uint64_t mappings;     /* vm.max_map_count */
    bool pidfd_getfd;      /* descriptors of other processes may be taken, as PyTorch's IPC does */
    bool membarrier;       /* fast waiting for locks */
} tide__doctor_host;

typedef struct tide__doctor {
    tide__doctor_host host;
    tide__doctor_gpu *gpus; /* the device's */
    int gpu_count;          /* 0 where there is no driver or no GPU: the findings say why */
    tide__finding findings[TIDE__DOCTOR_FINDINGS];
    size_t finding_count;
} tide__doctor;

/* Looks at the host and at the GPUs of the driver. TIDE_NO_HOST_MEMORY alone is a
 * failure: what is not there is a finding. */
tide_status tide__doctor_look(tide__doctor *out);
void tide__doctor_free(tide__doctor *d);

#endif
