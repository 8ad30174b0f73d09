/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_api.h against NVIDIA's own header, where there is one: everything is compared
 * by the compiler, so that this file's building is the test.
 */
#define TIDE_CUDA_REAL_HEADER
#include "device/cuda_api.h"

#include <stdio.h>

#define X(ours, theirs, value) _Static_assert((int)(theirs) == (ours), #theirs);
TIDE__CUDA_CONSTANTS(X)
#if CUDA_VERSION >= 13000
TIDE__CUDA_NEWER_CONSTANTS(X)
#endif
#undef X

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_PLACE(ours, member, theirs, their_member)                                 \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, their_member), #theirs); \
    _Static_assert(sizeof(((ours *)0)->member) == sizeof(((theirs *)0)->their_member), #theirs)

SAME_SIZE(tide__cu_allocation, CUmemAllocationProp);
SAME_PLACE(tide__cu_allocation, type, CUmemAllocationProp, type);
SAME_PLACE(tide__cu_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(tide__cu_allocation, location.type, CUmemAllocationProp, location.type);
SAME_PLACE(tide__cu_allocation, location.id, CUmemAllocationProp, location.id);
SAME_PLACE(tide__cu_allocation, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(tide__cu_allocation, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_PLACE(tide__cu_allocation, flags.rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(tide__cu_allocation, flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_SIZE(tide__cu_access, CUmemAccessDesc);
SAME_PLACE(tide__cu_access, location.type, CUmemAccessDesc, location.type);
SAME_PLACE(tide__cu_access, location.id, CUmemAccessDesc, location.id);
SAME_PLACE(tide__cu_access, flags, CUmemAccessDesc, flags);

/* What cuda_api.h declares in types of its own. */
_Static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUdevice) == sizeof(int), "results and devices");
_Static_assert(sizeof(CUdevice_attribute) == sizeof(int) && sizeof(CUstreamCaptureMode) == sizeof(int) &&
                   sizeof(CUstreamCaptureStatus) == sizeof(int) &&
                   sizeof(CUmemAllocationGranularity_flags) == sizeof(int),
               "enumerations");
_Static_assert(sizeof(CUdeviceptr) == sizeof(unsigned long long) &&
                   sizeof(CUmemGenericAllocationHandle) == sizeof(unsigned long long),
               "addresses and chunks");

/* Each function has these parameters, in these types: two declarations must agree. */
#define X(name, parameters) extern CUresult CUDAAPI name parameters;
TIDE__CUDA_FUNCTIONS(X)
#if CUDA_VERSION >= 12050
TIDE__CUDA_OPTIONAL_FUNCTIONS(X)
#endif
#undef X

int main(void) {
    printf("cuda_api.h agrees with cuda.h of CUDA %d.%d\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    return 0;
}
