/* SPDX-License-Identifier: Apache-2.0 */
/* allocator: what the rooms of pagetide itself may do beyond the public calls:
 * open an allocator on a device that they made. */
#ifndef TIDE_ALLOCATOR_H
#define TIDE_ALLOCATOR_H

#include "heap/core.h"

/* As tide_open, on `device`, which the allocator owns from here, also when
 * this fails. tuning may be NULL. */
tide_status tide__open_on(tide__device *device, const tide_open_options *options, const tide__tuning *tuning,
                          tide_allocator **out);
tide__device *tide__allocator_device(tide_allocator *a);
/* tide__core_validate on every device. */
void tide__allocator_validate(tide_allocator *a);

#endif
