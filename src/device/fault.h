/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault: wraps a device and fails chosen calls, so that every failure a driver
 * can give happens in a test. A failing call does not reach the wrapped device:
 * nothing has changed, as the contract says. Frees can fail like anything else.
 *
 * TIDE_DEVICE_LOST and TIDE_DEVICE_GONE stay, as on a real driver: every later
 * call fails with them, whatever it is, and health says so.
 *
 * The usual loop: for k = 1, 2, ...: arm the k-th call, run, look that nothing
 * is lost, disarm; until a run passes with nothing injected.
 */
#ifndef TIDE_FAULT_H
#define TIDE_FAULT_H

#include "device/device.h"

#define TIDE__FAULT_ANY TIDE__CALL_COUNT /* any call of TIDE__CALL_LIST */
#define TIDE__FAULT_MAX_RULES 8

/* Owns inner from success on: closing the fault device closes it. */
tide_status tide__fault_open(tide__device *inner, tide__device **out);

/* For what only the wrapped backend offers, such as queueing work on host. */
tide__device *tide__fault_inner(tide__device *fault);

/* Adds a rule: the k-th call of this kind from now on (from 1) fails with this
 * status; sticky: and all of that kind after it. Where several rules meet, the
 * first armed decides. INVALID_ARGUMENT for k 0, TIDE_OK or an unknown status,
 * an unknown kind; LIMIT beyond 8 rules. */
tide_status tide__fault_arm(tide__device *fault, int call, uint64_t k, tide_status status, bool sticky);

/* The same from text: "map:3:NO_DEVICE_MEMORY", "any:17:DRIVER:sticky", several
 * with commas between; all are armed or none. */
tide_status tide__fault_arm_text(tide__device *fault, const char *text);

/* Forgets all rules; counts stay. */
void tide__fault_disarm(tide__device *fault);

/* Failures injected since the device was opened. */
uint64_t tide__fault_injected(tide__device *fault);

/* Calls of a kind (or TIDE__FAULT_ANY) since then, with those that failed. */
uint64_t tide__fault_calls(tide__device *fault, int call);

#endif
