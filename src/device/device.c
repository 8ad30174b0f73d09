/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the calls, for messages, counters and fault specs. */
#include "device/device.h"

const char *tide__call_name(tide__call call) {
    switch (call) {
#define X(id, name) \
    case TIDE__CALL_##id: return name;
        TIDE__CALL_LIST(X)
#undef X
    case TIDE__CALL_COUNT: break;
    }
    return "unknown call";
}
