/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot: the shape of PyTorch's memory snapshots, made into a trace.
 *
 * Read are: what torch.cuda.memory._snapshot() returns (a dict; `device_traces`
 * must be there, the rest may be missing), a bare list of traces or of entries,
 * and a bare list of segments, as torch.cuda.memory_snapshot() returns. Of an
 * entry `action` must be there, and `addr` and `size` where it allocates or
 * frees; other keys may be missing (0, no phase, no stack) but not of a wrong
 * type. Unknown actions are TIDE__ACTION_OTHER, unknown keys are passed over.
 */
#ifndef TIDE_TRACE_SNAPSHOT_H
#define TIDE_TRACE_SNAPSHOT_H

#include "trace/records.h"

struct tide__trace_storage {
    tide__trace_event *events;         /* of all GPUs, one after the other */
    struct tide__intern_chunk *chunks; /* the strings' bytes */
};

/* From the value that a pickle came to; takes what it needs out of the machine
 * and the records. */
tide_status tide__snapshot_trace(tide__pickle *m, tide__records *r, tide__value top, tide__trace *t);

#endif
