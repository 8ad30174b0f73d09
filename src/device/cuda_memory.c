/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses, chunks and mappings: each call of the table is one call of the driver,
 * whose own checks decide what it refuses; what it would take and the contract
 * does not (sizes that are no multiple of the granularity) is refused here.
 */
#include <inttypes.h>

#include "device/cuda_internal.h"

/* ---- What a chunk is made of ---- */

/* What a driver, a container or a platform may refuse in spite of its attributes,
 * dearest first: tide__cuda_gpu.plainer counts what is left out. */
enum { PLAIN_NOT, PLAIN_NO_RDMA, PLAIN_NO_EXPORT };

static tide__cu_allocation allocation(const tide__cuda_gpu *g, unsigned plainer) {
    tide__cu_allocation a = {.type = TIDE__CU_PINNED,
                             .location = {.type = TIDE__CU_LOCATION_DEVICE, .id = g->ordinal}};
    if (g->properties.exportable && plainer < PLAIN_NO_EXPORT) {
        a.handle_types = TIDE__CU_HANDLE_POSIX_FD;
    }
    a.flags.rdma = g->properties.rdma && plainer < PLAIN_NO_RDMA;
    return a;
}

static tide_status attribute(tide__cuda_gpu *g, int which, const char *name, int *out) {
    CUresult result = g->api->cuDeviceGetAttribute(out, which, g->device);
    return tide__cuda_result(g, result, "cuDeviceGetAttribute", "%s", name);
}

/* One that an older driver may not know: then the device has it not. */
static int optional_attribute(tide__cuda_gpu *g, int which, int otherwise) {
    int value = 0;
    return g->api->cuDeviceGetAttribute(&value, which, g->device) == TIDE__CU_OK ? value : otherwise;
}

static tide_status describe_memory(tide__cuda_gpu *g) {
    size_t bytes = 0, granularity = 0;
    tide__device_properties *p = &g->properties;
    CUresult result = g->api->cuDeviceTotalMem_v2(&bytes, g->device);
    tide_status status = tide__cuda_result(g, result, "cuDeviceTotalMem", "device %d", g->device);
    if (status != TIDE_OK) {
        return status;
    }
    tide__cu_allocation a = allocation(g, PLAIN_NOT);
    result = g->api->cuMemGetAllocationGranularity(&granularity, &a, TIDE__CU_GRANULARITY_MINIMUM);
    status = tide__cuda_result(g, result, "cuMemGetAllocationGranularity", "device %d", g->device);
    if (status == TIDE_OK && (granularity == 0 || (granularity & (granularity - 1)) != 0)) {
        status =
            tide__fail(TIDE_UNSUPPORTED, "GPU %d: chunks have a granularity of %zu bytes, no power of two",
                       g->ordinal, granularity);
    }
    p->total_bytes = bytes;
    p->granularity = granularity;
    p->address_bytes = UINT64_C(1) << 47; /* of a process; measured: 64 reservations of 1 TiB and more */
    return status;
}

tide_status tide__cuda_describe(tide__cuda_gpu *g) {
    int vmm = 0;
    tide__device_properties *p = &g->properties;
    CUresult result = g->api->cuDeviceGetName(p->name, sizeof p->name, g->device);
    tide_status status = tide__cuda_result(g, result, "cuDeviceGetName", "device %d", g->device);
    if (status == TIDE_OK) {
        status = attribute(g, TIDE__CU_ATTRIBUTE_VMM, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", &vmm);
    }
    if (status == TIDE_OK && !vmm) {
        status =
            tide__fail(TIDE_UNSUPPORTED, "GPU %d (%s) has no virtual memory management, which pagetide needs",
                       g->ordinal, p->name);
    }
    if (status == TIDE_OK) {
        status =
            attribute(g, TIDE__CU_ATTRIBUTE_COMPUTE_MAJOR, "COMPUTE_CAPABILITY_MAJOR", &p->compute_major);
    }
    if (status == TIDE_OK) {
        status =
            attribute(g, TIDE__CU_ATTRIBUTE_COMPUTE_MINOR, "COMPUTE_CAPABILITY_MINOR", &p->compute_minor);
    }
    if (status == TIDE_OK) {
        result = g->api->cuDriverGetVersion(&p->driver_version);
        status = tide__cuda_result(g, result, "cuDriverGetVersion", "device %d", g->device);
    }
    p->exportable = optional_attribute(g, TIDE__CU_ATTRIBUTE_POSIX_FD, 0) != 0;
    p->fabric = optional_attribute(g, TIDE__CU_ATTRIBUTE_FABRIC, 0) != 0;
    p->rdma = optional_attribute(g, TIDE__CU_ATTRIBUTE_RDMA, 0) != 0;
    p->numa_node = optional_attribute(g, TIDE__CU_ATTRIBUTE_NUMA_NODE, -1);
    return status == TIDE_OK ? describe_memory(g) : status;
}

/* ---- Checks ---- */

static tide_status check_multiple(const tide__cuda_gpu *g, const char *what, uint64_t value) {
    if (value == 0 || value % g->properties.granularity != 0) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "cuda: %s of %" PRIu64 " is not a multiple of %" PRIu64,
                          what, value, g->properties.granularity);
    }
    return TIDE_OK;
}

static tide_status check_range(const tide__cuda_gpu *g, uint64_t va, uint64_t size) {
    tide_status status = check_multiple(g, "an address", va);
    return status == TIDE_OK ? check_multiple(g, "a size", size) : status;
}

static unsigned long long mib(uint64_t bytes) { return (unsigned long long)(bytes / TIDE__MIB); }

/* ---- Addresses ---- */

static tide_status mem_info(tide__cuda_gpu *g, uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t free_now = 0, total = 0;
    CUresult result = g->api->cuMemGetInfo_v2(&free_now, &total);
    if (result == TIDE__CU_OK) {
        *free_bytes = free_now;
        *total_bytes = total;
    }
    return tide__cuda_result(g, result, "cuMemGetInfo", "free, total");
}

static tide_status reserve(tide__cuda_gpu *g, uint64_t size, uint64_t align, uint64_t hint, uint64_t *va) {
    CUdeviceptr got = 0;
    tide_status status = check_multiple(g, "a size", size);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result =
        g->api->cuMemAddressReserve(&got, size, tide__max(align, g->properties.granularity), hint, 0);
    status = tide__cuda_result(g, result, "cuMemAddressReserve", "%llu MiB, at %#" PRIx64, mib(size), hint);
    if (status == TIDE_NO_DEVICE_MEMORY) { /* as the driver calls it when it finds no addresses */
        return TIDE_NO_ADDRESSES;
    }
    if (status == TIDE_OK && hint != 0 && got != hint) { /* to the driver a hint is a wish */
        g->api->cuMemAddressFree(got, size);
        return tide__fail(TIDE_NO_ADDRESSES, "cuMemAddressReserve: %llu MiB at %#" PRIx64 " are not free",
                          mib(size), hint);
    }
    if (status == TIDE_OK) {
        *va = got;
    }
    return status;
}

static tide_status unreserve(tide__cuda_gpu *g, uint64_t va, uint64_t size) {
    return tide__cuda_result(g, g->api->cuMemAddressFree(va, size), "cuMemAddressFree",
                             "%#" PRIx64 ", %llu MiB", va, mib(size));
}

/* ---- Chunks ---- */

static bool refuses_kind(CUresult result) {
    return result == TIDE__CU_NOT_SUPPORTED || result == TIDE__CU_NOT_PERMITTED ||
           result == TIDE__CU_INVALID_VALUE;
}

/* Where RDMA or export is refused (a container without the right to it, a platform
 * without the module) a plainer chunk does: that is remembered once it was seen to help. */
static tide_status create(tide__cuda_gpu *g, uint64_t size, tide__chunk_handle *out) {
    CUmemGenericAllocationHandle handle = 0;
    tide_status status = check_multiple(g, "a size", size);
    if (status != TIDE_OK) {
        return status;
    }
    unsigned known = atomic_load_explicit(&g->plainer, memory_order_relaxed), plainer = known;
    CUresult result;
    for (;;) {
        tide__cu_allocation a = allocation(g, plainer);
        result = g->api->cuMemCreate(&handle, size, &a, 0);
        if (!refuses_kind(result) || plainer == PLAIN_NO_EXPORT) {
            break;
        }
        plainer++;
    }
    if (result == TIDE__CU_OK) {
        *out = handle;
        if (plainer != known) {
            atomic_store_explicit(&g->plainer, plainer, memory_order_relaxed);
        }
    }
    return tide__cuda_result(g, result, "cuMemCreate", "%llu MiB", mib(size));
}

static tide_status release(tide__cuda_gpu *g, tide__chunk_handle chunk) {
    return tide__cuda_result(g, g->api->cuMemRelease(chunk), "cuMemRelease", "%#" PRIx64, chunk);
}

/* ---- Mappings ---- */

static tide_status map(tide__cuda_gpu *g, uint64_t va, uint64_t size, tide__chunk_handle chunk) {
    tide_status status = check_range(g, va, size);
    if (status != TIDE_OK) {
        return status;
    }
    return tide__cuda_result(g, g->api->cuMemMap(va, size, 0, chunk, 0), "cuMemMap",
                             "%#" PRIx64 ", %llu MiB, chunk %#" PRIx64, va, mib(size), chunk);
}

static tide_status set_access(tide__cuda_gpu *g, uint64_t va, uint64_t size) {
    tide__cu_access who[TIDE__CUDA_MAX_GPUS];
    size_t count = 0;
    uint64_t peers = atomic_load_explicit(&g->peers, memory_order_acquire);
    tide_status status = check_range(g, va, size);
    if (status != TIDE_OK) {
        return status;
    }
    peers |= UINT64_C(1) << g->ordinal;
    for (int i = 0; i < g->cuda->gpu_count; i++) {
        if ((peers >> i & 1) != 0) {
            who[count++] = (tide__cu_access){.location = {.type = TIDE__CU_LOCATION_DEVICE, .id = i},
                                             .flags = TIDE__CU_READ_WRITE};
        }
    }
    return tide__cuda_result(g, g->api->cuMemSetAccess(va, size, who, count), "cuMemSetAccess",
                             "%#" PRIx64 ", %llu MiB, %zu GPUs", va, mib(size), count);
}

static tide_status unmap(tide__cuda_gpu *g, uint64_t va, uint64_t size) {
    tide_status status = check_range(g, va, size);
    if (status != TIDE_OK) {
        return status;
    }
    return tide__cuda_result(g, g->api->cuMemUnmap(va, size), "cuMemUnmap", "%#" PRIx64 ", %llu MiB", va,
                             mib(size));
}

static tide_status allow_peer(tide__cuda_gpu *g, int peer) {
    const tide__cuda *c = g->cuda;
    int can = 0;
    if (peer < 0 || peer >= c->gpu_count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "cuda: there is no GPU %d, there are %d", peer,
                          c->gpu_count);
    }
    if (peer == g->ordinal) {
        return TIDE_OK;
    }
    CUresult result = g->api->cuDeviceCanAccessPeer(&can, c->gpus[peer].device, g->device);
    tide_status status = tide__cuda_result(g, result, "cuDeviceCanAccessPeer", "GPU %d", peer);
    if (status == TIDE_OK && !can) {
        status = tide__fail(TIDE_UNSUPPORTED, "GPU %d cannot reach the memory of GPU %d", peer, g->ordinal);
    }
    if (status == TIDE_OK) {
        atomic_fetch_or_explicit(&g->peers, UINT64_C(1) << peer, memory_order_release);
    }
    return status;
}

/* ---- cudaMalloc and cudaFree ---- */

static tide_status raw_alloc(tide__cuda_gpu *g, uint64_t size, uint64_t *va) {
    CUdeviceptr got = 0;
    CUresult result = g->api->cuMemAlloc_v2(&got, size);
    if (result == TIDE__CU_OK) {
        *va = got;
    }
    return tide__cuda_result(g, result, "cuMemAlloc", "%" PRIu64 " bytes", size);
}

static tide_status raw_free(tide__cuda_gpu *g, uint64_t va) {
    return tide__cuda_result(g, g->api->cuMemFree_v2(va), "cuMemFree", "%#" PRIx64, va);
}

/* ---- The table's functions ---- */

tide_status tide__cuda_mem_info(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    TIDE__CUDA_CALL(TIDE__CALL_MEM_INFO, mem_info(g, free_bytes, total_bytes));
}

tide_status tide__cuda_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                               uint64_t *va) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_RESERVE, reserve(g, size, align, hint, va));
}

tide_status tide__cuda_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_UNRESERVE, unreserve(g, va, size));
}

tide_status tide__cuda_chunk_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_CHUNK_CREATE, create(g, size, out));
}

tide_status tide__cuda_chunk_release(tide__device *d, int gpu, tide__chunk_handle chunk) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_CHUNK_RELEASE, release(g, chunk));
}

tide_status tide__cuda_map(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_MAP, map(g, va, size, chunk));
}

tide_status tide__cuda_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_SET_ACCESS, set_access(g, va, size));
}

tide_status tide__cuda_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_UNMAP, unmap(g, va, size));
}

tide_status tide__cuda_peer_enable(tide__device *d, int gpu, int peer) {
    TIDE__CUDA_CALL(TIDE__CALL_PEER_ENABLE, allow_peer(g, peer));
}

tide_status tide__cuda_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_RAW_ALLOC, raw_alloc(g, size, va));
}

tide_status tide__cuda_raw_free(tide__device *d, int gpu, uint64_t va) {
    TIDE__CUDA_TIMED_CALL(TIDE__CALL_RAW_FREE, raw_free(g, va));
}
