/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fits: the smallest limit under which a policy gets through a run.
 */
#ifndef TIDE_REPLAY_FITS_H
#define TIDE_REPLAY_FITS_H

#include "replay/play.h"

#define TIDE__FITS_STEP_BYTES (8 * TIDE__MIB)
#define TIDE__FITS_PLAYS 10 /* about as many are needed */

/* What the policy came to under q's limit is `known`. *out is a limit under
 * which it fits, and under one a step smaller it does not; 0 where it fits
 * under none that was tried, or fails in another way. tick as in play.h. */
tide_status tide__fits_from(const tide__policy_request *q, const tide__policy_result *known,
                            const tide__play_options *play, uint64_t *out);

#endif
