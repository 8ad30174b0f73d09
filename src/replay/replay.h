/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay: what an allocator would have done with a recorded run.
 *
 * A trace of one GPU becomes a schedule (schedule.h): its allocations numbered,
 * its frees as those numbers, the moments at which everything free was given
 * back. A policy (policy.h) is an allocator that a schedule is played through:
 * the exact models of PyTorch's two, or pagetide itself on a device.
 */
#ifndef TIDE_REPLAY_H
#define TIDE_REPLAY_H

#include "base/base.h"
#include "trace/trace.h"

typedef enum tide__policy_kind {
    TIDE__POLICY_NATIVE,
    TIDE__POLICY_EXPANDABLE,
    TIDE__POLICY_PAGETIDE,
    TIDE__POLICY_COUNT
} tide__policy_kind;

/* The largest limit whose addresses sim has, for a dozen pools and more. */
#define TIDE__MAX_LIMIT_BYTES (4096 * TIDE__GIB)
/* Below this no policy can serve a byte. */
#define TIDE__MIN_LIMIT_BYTES (2 * TIDE__MIB)

const char *tide__policy_name(tide__policy_kind kind);

typedef enum tide__recorded_policy {
    TIDE__RECORDED_NONE, /* no segment events: null in JSON */
    TIDE__RECORDED_NATIVE,
    TIDE__RECORDED_EXPANDABLE,
    TIDE__RECORDED_MIXED
} tide__recorded_policy;

typedef struct tide__replay_options {
    unsigned policies;       /* bit 1 << tide__policy_kind */
    const char *device;      /* "sim" or "host": what pagetide runs on */
    uint64_t limit_bytes;    /* 0: none; the device's capacity then */
    uint64_t event_delay_ns; /* sim */
    tide_cross_stream cross_stream;
    bool trim_phases;        /* trim at each phase's end */
    tide__progress progress; /* done and total in events over all policies; may be NULL */
    void *progress_user;
} tide__replay_options;

typedef struct tide__phase_result {
    uint32_t name; /* string of the trace; 0 is "" */
    uint64_t peak_live, peak_reserved, end_live, end_reserved;
} tide__phase_result;

typedef struct tide__oom_result {
    bool happened;
    uint64_t event, wanted, live, reserved; /* event: index in the GPU's events */
} tide__oom_result;

typedef struct tide__policy_result {
    tide__policy_kind kind;
    bool ran; /* false: reason says why there is none */
    char reason[256];
    uint64_t peak_reserved;
    double ratio;          /* peak_reserved / peak_live */
    uint64_t moves, waits; /* waits: of the host and put on streams */
    double wait_seconds;
    uint64_t driver_calls;
    double driver_seconds, elapsed_seconds; /* elapsed: of this machine, replaying */
    double trim_seconds; /* driver and wait time of --trim-phases' trims, part of the above */
    tide__oom_result oom;
    uint64_t fits_from; /* with a limit: the smallest that is enough (see fits.h); 0: none, or not known */
    tide__phase_result *phases;
    size_t phase_count;
} tide__policy_result;

typedef struct tide__replay_result {
    int gpu;
    uint64_t events, allocations;
    double trace_seconds;
    uint64_t peak_live;      /* with a limit also of requests that the recorded run was refused */
    uint64_t bound_reserved; /* what any allocator that never waits needs; see bound.h */
    struct {
        tide__recorded_policy policy;
        uint64_t peak_live; /* without what was refused */
        uint64_t peak_reserved, compared, mismatches;
        uint64_t first_mismatch; /* event index, where mismatches > 0 */
        bool has_oom;
        uint64_t oom_event;
        char reason[256]; /* why compared is 0, or what of it had to be inferred; or "" */
    } recorded;
    /* What the trace did not hold: told to the user. */
    uint64_t unknown_frees, blocks_before_start, settings_unmodelled;
    tide__policy_result policies[TIDE__POLICY_COUNT];
} tide__replay_result;

/* Replays one GPU of a trace. TIDE_CORRUPT, with the event's index in the
 * message, where the trace contradicts itself (a double free). */
tide_status tide__replay(const tide__trace *trace, const tide__trace_gpu *gpu,
                         const tide__replay_options *options, tide__replay_result *out);
void tide__replay_result_free(tide__replay_result *r);

#endif
