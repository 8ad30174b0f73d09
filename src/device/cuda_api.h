/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pagetide knows of CUDA's driver API: the functions it calls, the types
 * they take and the constants it gives them. Written down here so that neither
 * building nor running needs CUDA's header or a libcuda to link with; names and
 * values are those of the driver API's documentation (CUDA 12 and 13), and
 * tests/device/cuda_header_test.c compares each of them with the real header
 * where there is one.
 */
#ifndef TIDE_CUDA_API_H
#define TIDE_CUDA_API_H

#include <stddef.h>

#ifdef TIDE_CUDA_REAL_HEADER /* the comparison: the functions below in the real header's types */
#include <cuda.h>
#else
typedef int CUresult;
typedef int CUdevice;
typedef int CUdevice_attribute;
typedef int CUstreamCaptureMode;
typedef int CUstreamCaptureStatus;
typedef int CUmemAllocationGranularity_flags;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct tide__cu_allocation CUmemAllocationProp;
typedef struct tide__cu_access CUmemAccessDesc;
#define CUDAAPI
#endif

/* CUmemAllocationProp: what a chunk is made of. */
typedef struct tide__cu_allocation {
    int type; /* TIDE__CU_PINNED */
    int handle_types;
    struct {
        int type; /* TIDE__CU_LOCATION_DEVICE */
        int id;   /* the device's ordinal */
    } location;
    void *win32;
    struct {
        unsigned char compression;
        unsigned char rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} tide__cu_allocation;

/* CUmemAccessDesc: who may use a range, and how. */
typedef struct tide__cu_access {
    struct {
        int type;
        int id;
    } location;
    int flags; /* TIDE__CU_READ_WRITE */
} tide__cu_access;

/* our name, CUDA's name, value */
#define TIDE__CUDA_CONSTANTS(X)                                                                          \
    X(TIDE__CU_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                 \
    X(TIDE__CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE, 1)                                          \
    X(TIDE__CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                             \
    X(TIDE__CU_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                        \
    X(TIDE__CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                 \
    X(TIDE__CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING, 2)                                         \
    X(TIDE__CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING, 1)                                           \
    X(TIDE__CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                       \
    X(TIDE__CU_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE, 0)                                    \
    X(TIDE__CU_ATTRIBUTE_COMPUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                \
    X(TIDE__CU_ATTRIBUTE_COMPUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                \
    X(TIDE__CU_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)              \
    X(TIDE__CU_ATTRIBUTE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103) \
    X(TIDE__CU_ATTRIBUTE_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)         \
    X(TIDE__CU_ATTRIBUTE_FABRIC, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128)                  \
    X(TIDE__CU_ATTRIBUTE_NUMA_NODE, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 134)                               \
    X(TIDE__CU_OK, CUDA_SUCCESS, 0)                                                                      \
    X(TIDE__CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, 1)                                               \
    X(TIDE__CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, 2)                                               \
    X(TIDE__CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED, 3)                                           \
    X(TIDE__CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED, 4)                                               \
    X(TIDE__CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                     \
    X(TIDE__CU_PEER_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                \
    X(TIDE__CU_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                               \
    X(TIDE__CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE, 400)                                           \
    X(TIDE__CU_NOT_READY, CUDA_ERROR_NOT_READY, 600)                                                     \
    X(TIDE__CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                         \
    X(TIDE__CU_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                           \
    X(TIDE__CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                               \
    X(TIDE__CU_ASSERT, CUDA_ERROR_ASSERT, 710)                                                           \
    X(TIDE__CU_HARDWARE_STACK, CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                                     \
    X(TIDE__CU_ILLEGAL_INSTRUCTION, CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                                 \
    X(TIDE__CU_MISALIGNED_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS, 716)                                   \
    X(TIDE__CU_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                             \
    X(TIDE__CU_INVALID_PC, CUDA_ERROR_INVALID_PC, 718)                                                   \
    X(TIDE__CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED, 719)                                             \
    X(TIDE__CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED, 800)                                             \
    X(TIDE__CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED, 801)                                             \
    X(TIDE__CU_MPS_CLIENT_TERMINATED, CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                             \
    X(TIDE__CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                          \
    X(TIDE__CU_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                                \
    X(TIDE__CU_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)                        \
    X(TIDE__CU_EXTERNAL_DEVICE, CUDA_ERROR_EXTERNAL_DEVICE, 911)

/* The same, of results that headers before CUDA 13 need not have. */
#define TIDE__CUDA_NEWER_CONSTANTS(X)                \
    X(TIDE__CU_CONTAINED, CUDA_ERROR_CONTAINED, 226) \
    X(TIDE__CU_TENSOR_MEMORY_LEAK, CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)

enum {
#define X(ours, theirs, value) ours = (value),
    TIDE__CUDA_CONSTANTS(X) TIDE__CUDA_NEWER_CONSTANTS(X)
#undef X
};

/* Streams with a name instead of an address. */
#define TIDE__CU_STREAM_LEGACY 1     /* the default stream, as 0 */
#define TIDE__CU_STREAM_PER_THREAD 2 /* another stream in each thread */

/* what libcuda exports, its parameters. Those of the second list may be missing. */
#define TIDE__CUDA_FUNCTIONS(X)                                                                              \
    X(cuInit, (unsigned int flags))                                                                          \
    X(cuDriverGetVersion, (int *version))                                                                    \
    X(cuGetErrorName, (CUresult error, const char **name))                                                   \
    X(cuGetErrorString, (CUresult error, const char **text))                                                 \
    X(cuDeviceGetCount, (int *count))                                                                        \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                                         \
    X(cuDeviceGetName, (char *name, int length, CUdevice device))                                            \
    X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))                     \
    X(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                                \
    X(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                                     \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                      \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                       \
    X(cuCtxGetCurrent, (CUcontext * context))                                                                \
    X(cuCtxPushCurrent_v2, (CUcontext context))                                                              \
    X(cuCtxPopCurrent_v2, (CUcontext * context))                                                             \
    X(cuCtxSynchronize, (void))                                                                              \
    X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))                                       \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                          \
    X(cuMemGetAllocationGranularity,                                                                         \
      (size_t * granularity, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags which)) \
    X(cuMemAddressReserve,                                                                                   \
      (CUdeviceptr * va, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags))         \
    X(cuMemAddressFree, (CUdeviceptr va, size_t size))                                                       \
    X(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t size,                                      \
                    const CUmemAllocationProp *properties, unsigned long long flags))                        \
    X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                                   \
    X(cuMemMap, (CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle handle,            \
                 unsigned long long flags))                                                                  \
    X(cuMemUnmap, (CUdeviceptr va, size_t size))                                                             \
    X(cuMemSetAccess, (CUdeviceptr va, size_t size, const CUmemAccessDesc *access, size_t count))            \
    X(cuMemAlloc_v2, (CUdeviceptr * va, size_t size))                                                        \
    X(cuMemFree_v2, (CUdeviceptr va))                                                                        \
    X(cuStreamCreate, (CUstream * stream, unsigned int flags))                                               \
    X(cuStreamDestroy_v2, (CUstream stream))                                                                 \
    X(cuStreamGetId, (CUstream stream, unsigned long long *id))                                              \
    X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status))                                \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))                               \
    X(cuEventCreate, (CUevent * event, unsigned int flags))                                                  \
    X(cuEventDestroy_v2, (CUevent event))                                                                    \
    X(cuEventRecord, (CUevent event, CUstream stream))                                                       \
    X(cuEventQuery, (CUevent event))                                                                         \
    X(cuEventSynchronize, (CUevent event))

#define TIDE__CUDA_OPTIONAL_FUNCTIONS(X) /* CUDA 12.5 */ \
    X(cuCtxRecordEvent, (CUcontext context, CUevent event))

typedef struct tide__cuda_api {
#define X(name, parameters) CUresult(CUDAAPI *name) parameters;
    TIDE__CUDA_FUNCTIONS(X)
    TIDE__CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
} tide__cuda_api;

#endif
