/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger: statistics of one device, also by phase.
 *
 * The core keeps one set of peaks. At a phase's edge they are read, folded
 * into the phase that ends and into the peaks since the user's last reset, and
 * set back to what is held now; so a peak costs the hot path one comparison
 * whoever asks for it.
 */
#ifndef TIDE_LEDGER_H
#define TIDE_LEDGER_H

#include "heap/core.h"

typedef struct tide__ledger {
    pthread_mutex_t lock; /* before the core's locks */
    tide__core *core;
    tide_phase_stats *rows;
    size_t count, cap, current;
    tide__map by_name; /* hash of a name -> its row */
    uint64_t folded_requested, folded_allocated, folded_reserved;
} tide__ledger;

tide_status tide__ledger_open(tide__ledger *p, tide__core *core);
void tide__ledger_close(tide__ledger *p);
tide_status tide__ledger_enter(tide__ledger *p, const char *name);
tide_status tide__ledger_get(tide__ledger *p, size_t index, tide_phase_stats *out);

/* The core's statistics with the peaks since the user's last reset. */
void tide__ledger_stats(tide__ledger *p, tide_stats *out);
void tide__ledger_reset_peaks(tide__ledger *p);

#endif
