// SPDX-License-Identifier: Apache-2.0
// The header is C++ too.
#include <pagetide/pagetide.h>

int main() {
    return tide_status_name(TIDE_OK) && tide_last_error() ? 0 : 1;
}
