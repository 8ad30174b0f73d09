/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fits: bisection, each try a whole play of a schedule of its own, since the
 * limit decides which of the recorded releases it explains.
 *
 * It begins between the peak of the live bytes, below which nobody fits, and
 * what the policy reserved where it had room, which nearly always does.
 */
#include "replay/fits.h"

#include <stdlib.h>
#include <string.h>

#include "replay/explain.h"

typedef struct search {
    tide__schedule schedule;
    tide__policy_request request;
    tide__play_options play;
} search;

static tide_status try_limit(search *x, uint64_t limit_bytes, bool *fits, uint64_t *peak) {
    tide__policy *p;
    tide__policy_result result = {.kind = x->request.kind};
    x->request.limit_bytes = x->play.limit_bytes = limit_bytes;
    tide_status status = tide__schedule_explain(&x->schedule, limit_bytes);
    if (status == TIDE_OK) status = tide__policy_create(&x->request, NULL, &p);
    if (status != TIDE_OK) return status;
    status = tide__play(&x->schedule, p, &x->play, &result);
    p->ops->destroy(p);
    free(result.phases);
    *fits = status == TIDE_OK && !result.oom.happened;
    *peak = result.peak_reserved;
    return status;
}

/* Some limit with room enough, and what was reserved under it; 0 where none was found. */
static tide_status find_room(search *x, const tide__policy_result *known, uint64_t *limit, uint64_t *peak) {
    bool fits;
    *limit = x->request.limit_bytes;
    *peak = known->peak_reserved;
    if (!known->oom.happened) return TIDE_OK;
    *limit = tide__min(tide__max(TIDE__SIM_H200_BYTES, 4 * x->schedule.peak_live), TIDE__MAX_LIMIT_BYTES);
    tide_status status = try_limit(x, *limit, &fits, peak);
    if (status == TIDE_OK && !fits) *limit = 0;
    return status;
}

static tide_status bisect(search *x, uint64_t high, uint64_t peak, uint64_t *out) {
    const uint64_t step = TIDE__FITS_STEP_BYTES;
    uint64_t tight = tide__max(tide__align_up(peak, step), step), unused; /* 0 would be no limit */
    uint64_t low = tide__max(x->schedule.peak_live, 1) - 1;
    tide_status status = TIDE_OK;
    bool fits = false;
    low -= low % step;
    if (tight < high) status = try_limit(x, tight, &fits, &unused);
    if (fits) high = tight;
    while (status == TIDE_OK && high > low && high - low > step) {
        uint64_t middle = low + tide__align_up((high - low) / 2, step);
        status = try_limit(x, middle, &fits, &unused);
        if (fits)
            high = middle;
        else
            low = middle;
    }
    *out = high;
    return status;
}

tide_status tide__fits_from(const tide__policy_request *q, const tide__policy_result *known,
                            const tide__play_options *play, uint64_t *out) {
    search x = {.schedule = *q->schedule, .request = *q, .play = *play};
    size_t bytes = x.schedule.op_count * sizeof *x.schedule.ops;
    uint64_t high, peak;
    *out = 0;
    x.schedule.ops = malloc(tide__max(bytes, 1));
    if (x.schedule.ops == NULL)
        return tide__fail(TIDE_NO_HOST_MEMORY, "replay: no host memory for a schedule");
    memcpy(x.schedule.ops, q->schedule->ops, bytes);
    x.request.schedule = &x.schedule;
    tide_status status = find_room(&x, known, &high, &peak);
    if (status == TIDE_OK && high != 0) status = bisect(&x, high, peak, out);
    if (status != TIDE_OK) *out = 0;
    free(x.schedule.ops);
    return status == TIDE_NO_HOST_MEMORY ? status : TIDE_OK;
}
