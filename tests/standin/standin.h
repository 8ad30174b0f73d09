/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin: a libcuda for machines without a GPU. It has the driver's entry points
 * and hands them to a device of ours (host: real bytes, real streams), so that
 * what stands between the engine and the driver is tested: contexts, handles,
 * results, captures.
 *
 * It is stricter than the driver: every call but those on devices and contexts
 * needs a current context, that of the GPU which its handles belong to; and in a
 * thread whose capture mode is not relaxed, calls that a capture forbids fail
 * and spoil it, whoever captures.
 *
 * Loaded by a test it serves the device that the test gives it. Left alone it
 * makes a host device with as many GPUs as the variable STANDIN_GPUS says (1).
 */
#ifndef TIDE_STANDIN_H
#define TIDE_STANDIN_H

#include "device/device.h"

typedef struct standin_state {
    uint64_t calls;         /* into the stand-in, those that failed too */
    uint64_t injected;      /* failures by fail_call */
    int contexts;           /* primary contexts that are retained now */
    uint64_t without_right; /* calls without the right context, or that would have spoilt a capture */
    char first_without[64]; /* the first such call */
} standin_state;

/* What a test asks of it, by the one symbol standin_get that is not libcuda's. */
typedef struct standin_controls {
    /* Serves this device from now on, which must outlive its use; NULL: none. Forgets all
     * rules and states, and all contexts. */
    void (*serve)(tide__device *device);
    /* The k-th call from now on (from 1) of this function, or of any (NULL), has this result;
     * sticky: and all calls after it, whichever they are. */
    void (*fail_call)(const char *function, uint64_t k, int result, bool sticky);
    /* As at the process's end: every call says DEINITIALIZED. */
    void (*shut_down)(void);
    void (*get)(standin_state *out);
    /* Attributes of devices (CUdevice_attribute), which are otherwise those of an H200. */
    void (*set_attribute)(int attribute, int value);
} standin_controls;

const standin_controls *standin_get(void);

#endif
