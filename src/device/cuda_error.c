/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's results as statuses: what each means for a caller, in words. */
#include <stdio.h>

#include "device/cuda_internal.h"

const char *tide__cuda_result_name(const tide__cuda_api *api, CUresult result) {
    const char *name = NULL;
    if (api->cuGetErrorName(result, &name) != TIDE__CU_OK || name == NULL) {
        return "an unknown error";
    }
    return name;
}

static const char *result_text(const tide__cuda_api *api, CUresult result) {
    const char *text = NULL;
    return api->cuGetErrorString(result, &text) == TIDE__CU_OK && text != NULL ? text : "";
}

/* After these the context answers every call with the same error: all of which cuda.h says
 * that the process must end or the context be destroyed, and the two that hardware cannot correct. */
static bool sticks(CUresult result) {
    switch (result) {
    case TIDE__CU_ECC_UNCORRECTABLE:
    case TIDE__CU_NVLINK_UNCORRECTABLE:
    case TIDE__CU_CONTAINED:
    case TIDE__CU_ILLEGAL_ADDRESS:
    case TIDE__CU_LAUNCH_TIMEOUT:
    case TIDE__CU_CONTEXT_IS_DESTROYED:
    case TIDE__CU_ASSERT:
    case TIDE__CU_HARDWARE_STACK:
    case TIDE__CU_ILLEGAL_INSTRUCTION:
    case TIDE__CU_MISALIGNED_ADDRESS:
    case TIDE__CU_INVALID_ADDRESS_SPACE:
    case TIDE__CU_INVALID_PC:
    case TIDE__CU_LAUNCH_FAILED:
    case TIDE__CU_TENSOR_MEMORY_LEAK:
    case TIDE__CU_MPS_CLIENT_TERMINATED:
    case TIDE__CU_EXTERNAL_DEVICE: return true;
    default: return false;
    }
}

static tide_status status_of(CUresult result) {
    switch (result) {
    case TIDE__CU_INVALID_VALUE: return TIDE_INVALID_ARGUMENT;
    case TIDE__CU_OUT_OF_MEMORY: return TIDE_NO_DEVICE_MEMORY;
    case TIDE__CU_DEINITIALIZED: return TIDE_DEVICE_GONE;
    case TIDE__CU_INVALID_HANDLE: return TIDE_BAD_HANDLE;
    case TIDE__CU_PEER_UNSUPPORTED:
    case TIDE__CU_NOT_PERMITTED:
    case TIDE__CU_NOT_SUPPORTED: return TIDE_UNSUPPORTED;
    default: break;
    }
    if (result >= TIDE__CU_CAPTURE_UNSUPPORTED && result <= TIDE__CU_CAPTURE_WRONG_THREAD) {
        return TIDE_CAPTURING;
    }
    return sticks(result) ? TIDE_DEVICE_LOST : TIDE_DRIVER;
}

/* The first state that is not OK stays. */
static void change_health(tide__cuda *c, tide__health health) {
    int expected = TIDE__HEALTH_OK;
    atomic_compare_exchange_strong(&c->health, &expected, (int)health);
}

tide_status tide__cuda_result(tide__cuda_gpu *g, CUresult result, const char *call, const char *format, ...) {
    char with[160];
    va_list arguments;
    if (TIDE__LIKELY(result == TIDE__CU_OK)) {
        return TIDE_OK;
    }
    if (result == TIDE__CU_NOT_READY) { /* an answer, not a failure */
        return TIDE_NOT_READY;
    }
    tide_status status = status_of(result);
    if (status == TIDE_DEVICE_GONE) {
        change_health(g->cuda, TIDE__HEALTH_GONE);
        return tide__fail(status, "%s: the driver has shut down, as it does when a process ends", call);
    }
    va_start(arguments, format);
    vsnprintf(with, sizeof with, format, arguments);
    va_end(arguments);
    tide__set_error("%s(%s) on GPU %d: %s (%d, %s)%s", call, with, g->ordinal,
                    tide__cuda_result_name(g->api, result), (int)result, result_text(g->api, result),
                    status == TIDE_DEVICE_LOST
                        ? ". The device accepts no more calls from this process: it must end"
                        : "");
    if (status == TIDE_DEVICE_LOST) {
        change_health(g->cuda, TIDE__HEALTH_LOST);
    }
    return status;
}
