/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's memory: each entry point is a call of the device beneath. */
#include "standin_internal.h"

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint64_t left = 0, all = 0;
    int gpu = 0;
    CUresult result = standin__enter("cuMemGetInfo_v2", &gpu);
    if (result == 0 && (result = standin__result(
                            standin__beneath->ops->mem_info(standin__beneath, gpu, &left, &all))) == 0) {
        *free_bytes = left;
        *total_bytes = all;
    }
    return result;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags which) {
    tide__device_properties p;
    CUresult result =
        standin__properties("cuMemGetAllocationGranularity", properties->location.id + 1000, &p);
    if (result == 0) {
        *granularity = p.granularity;
    }
    return result;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *va, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    tide__device *d = standin__beneath;
    uint64_t got = 0;
    int gpu = 0;
    CUresult result = standin__enter_unsafe("cuMemAddressReserve", &gpu);
    if (result != 0) {
        return result;
    }
    tide_status status = d->ops->reserve(d, gpu, size, alignment, hint, &got);
    if (status == TIDE_NO_ADDRESSES && hint != 0) { /* a hint is a wish */
        status = d->ops->reserve(d, gpu, size, alignment, 0, &got);
    }
    if (status == TIDE_OK) {
        *va = got;
    }
    return standin__result(status);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr va, size_t size) {
    CALL(standin__enter_unsafe("cuMemAddressFree", &gpu), unreserve(standin__beneath, gpu, va, size));
}

static CUresult enter_create(const CUmemAllocationProp *p, int *gpu) {
    CUresult result = standin__enter_unsafe("cuMemCreate", gpu);
    if (result == 0 && (p->type != TIDE__CU_PINNED || p->location.type != TIDE__CU_LOCATION_DEVICE ||
                        p->location.id != *gpu)) {
        result = standin__wrong("cuMemCreate", TIDE__CU_INVALID_VALUE);
    }
    return result;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p,
                            unsigned long long flags) {
    CALL_GIVING(enter_create(p, &gpu), chunk_create(standin__beneath, gpu, size, &got),
                CUmemGenericAllocationHandle, handle);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CALL(standin__enter_unsafe("cuMemRelease", &gpu), chunk_release(standin__beneath, gpu, handle));
}

EXPORT CUresult cuMemMap(CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    CALL(standin__enter_unsafe("cuMemMap", &gpu), map(standin__beneath, gpu, va, size, handle));
}

EXPORT CUresult cuMemUnmap(CUdeviceptr va, size_t size) {
    CALL(standin__enter_unsafe("cuMemUnmap", &gpu), unmap(standin__beneath, gpu, va, size));
}

/* Peers are passed on to the device beneath, whose set_access serves them. */
static CUresult enter_access(const CUmemAccessDesc *access, size_t count, int *gpu) {
    tide__device *d = standin__beneath;
    bool self = false;
    CUresult result = standin__enter_unsafe("cuMemSetAccess", gpu);
    for (size_t i = 0; i < count && result == 0; i++) {
        self = self || access[i].location.id == *gpu;
        if (access[i].flags != TIDE__CU_READ_WRITE) {
            result = TIDE__CU_INVALID_VALUE;
        } else if (access[i].location.id != *gpu) {
            result = standin__result(d->ops->peer_enable(d, *gpu, access[i].location.id));
        }
    }
    return result == 0 && !self ? standin__wrong("cuMemSetAccess", TIDE__CU_INVALID_VALUE) : result;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr va, size_t size, const CUmemAccessDesc *access, size_t count) {
    CALL(enter_access(access, count, &gpu), set_access(standin__beneath, gpu, va, size));
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *va, size_t size) {
    CALL_GIVING(standin__enter_unsafe("cuMemAlloc_v2", &gpu), raw_alloc(standin__beneath, gpu, size, &got),
                CUdeviceptr, va);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr va) {
    CALL(standin__enter_unsafe("cuMemFree_v2", &gpu), raw_free(standin__beneath, gpu, va));
}
