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

static tide_status attribute(tide__cuda *c, const tide__cuda_gpu *g, int which, const char *name, int *out) {
    CUresult result = c->api->cuDeviceGetAttribute(out, which, g->device);
    return tide__cuda_result(c, g->ordinal, result, "cuDeviceGetAttribute", "%s", name);
}

/* One that an older driver may not know: then the device has it not. */
static int optional_attribute(tide__cuda *c, const tide__cuda_gpu *g, int which, int otherwise) {
    int value = 0;
    return c->api->cuDeviceGetAttribute(&value, which, g->device) == TIDE__CU_OK ? value : otherwise;
}

static tide_status describe_memory(tide__cuda *c, tide__cuda_gpu *g) {
    size_t bytes = 0, granularity = 0;
    tide__device_properties *p = &g->properties;
    CUresult result = c->api->cuDeviceTotalMem_v2(&bytes, g->device);
    tide_status status = tide__cuda_result(c, g->ordinal, result, "cuDeviceTotalMem", "device %d", g->device);
    if (status != TIDE_OK) {
        return status;
    }
    tide__cu_allocation a = allocation(g, PLAIN_NOT);
    result = c->api->cuMemGetAllocationGranularity(&granularity, &a, TIDE__CU_GRANULARITY_MINIMUM);
    status =
        tide__cuda_result(c, g->ordinal, result, "cuMemGetAllocationGranularity", "device %d", g->device);
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

tide_status tide__cuda_describe(tide__cuda *c, tide__cuda_gpu *g) {
    int vmm = 0;
    tide__device_properties *p = &g->properties;
    CUresult result = c->api->cuDeviceGetName(p->name, sizeof p->name, g->device);
    tide_status status = tide__cuda_result(c, g->ordinal, result, "cuDeviceGetName", "device %d", g->device);
    if (status == TIDE_OK) {
        status = attribute(c, g, TIDE__CU_ATTRIBUTE_VMM, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", &vmm);
    }
    if (status == TIDE_OK && !vmm) {
        status =
            tide__fail(TIDE_UNSUPPORTED, "GPU %d (%s) has no virtual memory management, which pagetide needs",
                       g->ordinal, p->name);
    }
    if (status == TIDE_OK) {
        status =
            attribute(c, g, TIDE__CU_ATTRIBUTE_COMPUTE_MAJOR, "COMPUTE_CAPABILITY_MAJOR", &p->compute_major);
    }
    if (status == TIDE_OK) {
        status =
            attribute(c, g, TIDE__CU_ATTRIBUTE_COMPUTE_MINOR, "COMPUTE_CAPABILITY_MINOR", &p->compute_minor);
    }
    p->exportable = optional_attribute(c, g, TIDE__CU_ATTRIBUTE_POSIX_FD, 0) != 0;
    p->fabric = optional_attribute(c, g, TIDE__CU_ATTRIBUTE_FABRIC, 0) != 0;
    p->rdma = optional_attribute(c, g, TIDE__CU_ATTRIBUTE_RDMA, 0) != 0;
    p->numa_node = optional_attribute(c, g, TIDE__CU_ATTRIBUTE_NUMA_NODE, -1);
    return status == TIDE_OK ? describe_memory(c, g) : status;
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

tide_status tide__cuda_mem_info(tide__device *d, int gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t free_now = 0, total = 0;
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_MEM_INFO, false, &v);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = v.cuda->api->cuMemGetInfo_v2(&free_now, &total);
    status = tide__cuda_result(v.cuda, gpu, result, "cuMemGetInfo", "free, total");
    if (status == TIDE_OK) {
        *free_bytes = free_now;
        *total_bytes = total;
    }
    return tide__cuda_leave(&v, status);
}

static tide_status reserve(tide__cuda_visit *v, uint64_t size, uint64_t align, uint64_t hint, uint64_t *va) {
    const tide__cuda_api *api = v->cuda->api;
    CUdeviceptr got = 0;
    tide_status status = check_multiple(v->gpu, "a size", size);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result =
        api->cuMemAddressReserve(&got, size, tide__max(align, v->gpu->properties.granularity), hint, 0);
    status = tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuMemAddressReserve",
                               "%llu MiB, at %#" PRIx64, mib(size), hint);
    if (status == TIDE_NO_DEVICE_MEMORY) { /* as the driver calls it when it finds no addresses */
        return TIDE_NO_ADDRESSES;
    }
    if (status == TIDE_OK && hint != 0 && got != hint) { /* to the driver a hint is a wish */
        api->cuMemAddressFree(got, size);
        return tide__fail(TIDE_NO_ADDRESSES, "cuMemAddressReserve: %llu MiB at %#" PRIx64 " are not free",
                          mib(size), hint);
    }
    if (status == TIDE_OK) {
        *va = got;
    }
    return status;
}

tide_status tide__cuda_reserve(tide__device *d, int gpu, uint64_t size, uint64_t align, uint64_t hint,
                               uint64_t *va) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_RESERVE, true, &v);
    return status == TIDE_OK ? tide__cuda_leave(&v, reserve(&v, size, align, hint, va)) : status;
}

tide_status tide__cuda_unreserve(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_UNRESERVE, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = v.cuda->api->cuMemAddressFree(va, size);
    status =
        tide__cuda_result(v.cuda, gpu, result, "cuMemAddressFree", "%#" PRIx64 ", %llu MiB", va, mib(size));
    return tide__cuda_leave(&v, status);
}

/* ---- Chunks ---- */

static bool refuses_kind(CUresult result) {
    return result == TIDE__CU_NOT_SUPPORTED || result == TIDE__CU_NOT_PERMITTED ||
           result == TIDE__CU_INVALID_VALUE;
}

/* Where RDMA or export is refused (a container without the right to it, a platform
 * without the module) a plainer chunk does: that is remembered once it was seen to help. */
static tide_status create(tide__cuda_visit *v, uint64_t size, tide__chunk_handle *out) {
    CUmemGenericAllocationHandle handle = 0;
    tide_status status = check_multiple(v->gpu, "a size", size);
    if (status != TIDE_OK) {
        return status;
    }
    unsigned known = atomic_load_explicit(&v->gpu->plainer, memory_order_relaxed), plainer = known;
    CUresult result;
    for (;;) {
        tide__cu_allocation a = allocation(v->gpu, plainer);
        result = v->cuda->api->cuMemCreate(&handle, size, &a, 0);
        if (!refuses_kind(result) || plainer == PLAIN_NO_EXPORT) {
            break;
        }
        plainer++;
    }
    if (result == TIDE__CU_OK) {
        *out = handle;
        if (plainer != known) {
            atomic_store_explicit(&v->gpu->plainer, plainer, memory_order_relaxed);
        }
    }
    return tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuMemCreate", "%llu MiB", mib(size));
}

tide_status tide__cuda_chunk_create(tide__device *d, int gpu, uint64_t size, tide__chunk_handle *out) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_CHUNK_CREATE, true, &v);
    return status == TIDE_OK ? tide__cuda_leave(&v, create(&v, size, out)) : status;
}

tide_status tide__cuda_chunk_release(tide__device *d, int gpu, tide__chunk_handle chunk) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_CHUNK_RELEASE, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = v.cuda->api->cuMemRelease(chunk);
    status = tide__cuda_result(v.cuda, gpu, result, "cuMemRelease", "%#" PRIx64, chunk);
    return tide__cuda_leave(&v, status);
}

/* ---- Mappings ---- */

tide_status tide__cuda_map(tide__device *d, int gpu, uint64_t va, uint64_t size, tide__chunk_handle chunk) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_MAP, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_range(v.gpu, va, size);
    if (status == TIDE_OK) {
        CUresult result = v.cuda->api->cuMemMap(va, size, 0, chunk, 0);
        status = tide__cuda_result(v.cuda, gpu, result, "cuMemMap", "%#" PRIx64 ", %llu MiB, chunk %#" PRIx64,
                                   va, mib(size), chunk);
    }
    return tide__cuda_leave(&v, status);
}

static tide_status set_access(tide__cuda_visit *v, uint64_t va, uint64_t size) {
    tide__cu_access who[TIDE__CUDA_MAX_GPUS];
    size_t count = 0;
    uint64_t peers = atomic_load_explicit(&v->gpu->peers, memory_order_acquire);
    peers |= UINT64_C(1) << v->gpu->ordinal;
    for (int i = 0; i < v->cuda->gpu_count; i++) {
        if ((peers >> i & 1) != 0) {
            who[count++] = (tide__cu_access){.location = {.type = TIDE__CU_LOCATION_DEVICE, .id = i},
                                             .flags = TIDE__CU_READ_WRITE};
        }
    }
    CUresult result = v->cuda->api->cuMemSetAccess(va, size, who, count);
    return tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuMemSetAccess",
                             "%#" PRIx64 ", %llu MiB, %zu GPUs", va, mib(size), count);
}

tide_status tide__cuda_set_access(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_SET_ACCESS, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_range(v.gpu, va, size);
    return tide__cuda_leave(&v, status == TIDE_OK ? set_access(&v, va, size) : status);
}

tide_status tide__cuda_unmap(tide__device *d, int gpu, uint64_t va, uint64_t size) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_UNMAP, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    status = check_range(v.gpu, va, size);
    if (status == TIDE_OK) {
        CUresult result = v.cuda->api->cuMemUnmap(va, size);
        status =
            tide__cuda_result(v.cuda, gpu, result, "cuMemUnmap", "%#" PRIx64 ", %llu MiB", va, mib(size));
    }
    return tide__cuda_leave(&v, status);
}

static tide_status allow_peer(tide__cuda_visit *v, int peer) {
    int can = 0;
    if (peer < 0 || peer >= v->cuda->gpu_count) {
        return tide__fail(TIDE_INVALID_ARGUMENT, "cuda: there is no GPU %d, there are %d", peer,
                          v->cuda->gpu_count);
    }
    if (peer == v->gpu->ordinal) {
        return TIDE_OK;
    }
    CUresult result = v->cuda->api->cuDeviceCanAccessPeer(&can, v->cuda->gpus[peer].device, v->gpu->device);
    tide_status status =
        tide__cuda_result(v->cuda, v->gpu->ordinal, result, "cuDeviceCanAccessPeer", "GPU %d", peer);
    if (status == TIDE_OK && !can) {
        status =
            tide__fail(TIDE_UNSUPPORTED, "GPU %d cannot reach the memory of GPU %d", peer, v->gpu->ordinal);
    }
    if (status == TIDE_OK) {
        atomic_fetch_or_explicit(&v->gpu->peers, UINT64_C(1) << peer, memory_order_release);
    }
    return status;
}

tide_status tide__cuda_peer_enable(tide__device *d, int gpu, int peer) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_PEER_ENABLE, false, &v);
    return status == TIDE_OK ? tide__cuda_leave(&v, allow_peer(&v, peer)) : status;
}

/* ---- cudaMalloc and cudaFree ---- */

tide_status tide__cuda_raw_alloc(tide__device *d, int gpu, uint64_t size, uint64_t *va) {
    CUdeviceptr got = 0;
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_RAW_ALLOC, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = v.cuda->api->cuMemAlloc_v2(&got, size);
    status = tide__cuda_result(v.cuda, gpu, result, "cuMemAlloc", "%" PRIu64 " bytes", size);
    if (status == TIDE_OK) {
        *va = got;
    }
    return tide__cuda_leave(&v, status);
}

tide_status tide__cuda_raw_free(tide__device *d, int gpu, uint64_t va) {
    tide__cuda_visit v;
    tide_status status = tide__cuda_enter(d, gpu, TIDE__CALL_RAW_FREE, true, &v);
    if (status != TIDE_OK) {
        return status;
    }
    CUresult result = v.cuda->api->cuMemFree_v2(va);
    status = tide__cuda_result(v.cuda, gpu, result, "cuMemFree", "%#" PRIx64, va);
    return tide__cuda_leave(&v, status);
}
