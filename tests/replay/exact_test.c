/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models against recorded runs: every reserved figure and every address of
 * every trace, whole and cut off in front. Traces are those of tests/data and
 * of the folder that PAGETIDE_TRACES names.
 */
#include <dirent.h>

#include "replay_test.h"

#include "replay/bound.h"

#define MODELS ((1u << TIDE__POLICY_NATIVE) | (1u << TIDE__POLICY_EXPANDABLE))
#define CUTS 8

static char *paths[256];
static size_t path_count;

static int ends_in(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && !strcmp(text + a - b, end);
}

static size_t list(const char *folder) {
    size_t before = path_count;
    DIR *d = folder != NULL ? opendir(folder) : NULL;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strstr(e->d_name, ".pickle") == NULL || path_count == sizeof paths / sizeof *paths) continue;
        paths[path_count] = malloc(strlen(folder) + strlen(e->d_name) + 2);
        sprintf(paths[path_count++], "%s/%s", folder, e->d_name);
    }
    if (d != NULL) closedir(d);
    return path_count - before;
}

static void replay(const char *path, const tide__trace *t, const tide__trace_gpu *gpu, uint64_t limit,
                   tide__replay_result *r) {
    tide__replay_options o = {.policies = MODELS, .device = "sim", .limit_bytes = limit};
    tide_status status = tide__replay(t, gpu, &o, r);
    if (status != TIDE_OK) print_error("%s: %s\n", path, tide_last_error());
    assert_int_equal(status, TIDE_OK);
}

static void assert_exact(const char *path, const tide__replay_result *r, size_t cut) {
    if (r->recorded.mismatches != 0 || r->recorded.compared < r->allocations)
        print_error("%s from event %zu: %llu of %llu compared events differ, %llu allocations, the first at "
                    "%llu %s\n",
                    path, cut, (unsigned long long)r->recorded.mismatches,
                    (unsigned long long)r->recorded.compared, (unsigned long long)r->allocations,
                    (unsigned long long)r->recorded.first_mismatch, r->recorded.reason);
    assert_int_equal(r->recorded.mismatches, 0);
    assert_true(r->recorded.compared >= r->allocations);
}

static bool has_model(const tide__replay_result *r) {
    return r->recorded.policy == TIDE__RECORDED_NATIVE || r->recorded.policy == TIDE__RECORDED_EXPANDABLE;
}

/* ---- What holds for any trace ---- */

static void check_whole(const char *path, const tide__trace *t, const tide__trace_gpu *gpu) {
    tide__replay_result r;
    replay(path, t, gpu, 0, &r);
    if (has_model(&r)) {
        assert_exact(path, &r, 0);
        const tide__policy_result *p =
            &r.policies[r.recorded.policy == TIDE__RECORDED_NATIVE ? TIDE__POLICY_NATIVE
                                                                   : TIDE__POLICY_EXPANDABLE];
        assert_int_equal(p->peak_reserved, r.recorded.peak_reserved);
        assert_false(p->oom.happened);
    }
    assert_true(r.bound_reserved == r.peak_live); /* at a delay of 0 */
    for (int k = 0; k < 2; k++)
        assert_true(r.policies[k].peak_reserved >= r.peak_live || r.policies[k].oom.happened);
    tide__replay_result_free(&r);
}

/* A recording that began late: the heap before it is worked out from the one at the end. Whose a private
 * pool's segments were then is not always told; where it is not, that is said. */
static void check_cuts(const char *path, const tide__trace *t, const tide__trace_gpu *whole) {
    for (size_t i = 1; i < CUTS; i++) {
        size_t cut = whole->event_count / CUTS * i + i * i;
        if (cut >= whole->event_count) break;
        tide__trace_gpu gpu = *whole;
        tide__replay_result r;
        gpu.events += cut;
        gpu.event_count -= cut;
        replay(path, t, &gpu, 0, &r);
        assert_true(!has_model(&r) || r.blocks_before_start > 0);
        bool may_be_unknown = gpu.pool_count > 1 && r.recorded.compared == 0;
        if (has_model(&r) && t->has_segments && !may_be_unknown)
            assert_exact(path, &r, cut);
        else
            assert_true(r.recorded.compared == 0 && *r.recorded.reason != 0);
        tide__replay_result_free(&r);
    }
}

static void check_all(size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        tide__trace *t = NULL;
        assert_ok(tide__trace_read(paths[i], NULL, NULL, &t));
        for (size_t g = 0; g < t->gpu_count; g++) {
            if (t->gpus[g].event_count == 0) continue;
            check_whole(paths[i], t, &t->gpus[g]);
            if (t->gpus[g].event_count < 100000) check_cuts(paths[i], t, &t->gpus[g]);
        }
        tide__trace_free(t);
    }
}

static void test_models_are_exact_on_the_traces_that_ship(void **state) {
    size_t first = path_count;
    assert_true(list(TIDE_TEST_DATA) >= 2);
    check_all(first, path_count);
}

static void test_models_are_exact_on_all_traces_at_hand(void **state) {
    size_t first = path_count;
    if (getenv("PAGETIDE_TRACES") == NULL) {
        print_message("PAGETIDE_TRACES is not set: no larger traces compared\n");
        skip();
    }
    assert_true(list(getenv("PAGETIDE_TRACES")) > 0);
    check_all(first, path_count);
}

/* ---- The recorded out of memory ---- */

static void test_native_runs_out_of_memory_where_the_recorded_run_did(void **state) {
    const uint64_t limit = UINT64_C(18463515279); /* of that run */
    const char *path = NULL;
    if (path_count == 0) list(getenv("PAGETIDE_TRACES"));
    for (size_t i = 0; i < path_count; i++)
        if (ends_in(paths[i], "/rl-oom-native.pickle.gz")) path = paths[i];
    if (path == NULL) skip();
    tide__trace *t = NULL;
    tide__replay_result r;
    assert_ok(tide__trace_read(path, NULL, NULL, &t));
    replay(path, t, &t->gpus[0], limit, &r);
    assert_true(r.recorded.has_oom && r.policies[TIDE__POLICY_NATIVE].oom.happened);
    assert_int_equal(r.policies[TIDE__POLICY_NATIVE].oom.event, r.recorded.oom_event);
    assert_int_equal(r.policies[TIDE__POLICY_NATIVE].peak_reserved, r.recorded.peak_reserved);
    assert_exact(path, &r, 0);
    tide__replay_result_free(&r);
    tide__trace_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_are_exact_on_the_traces_that_ship),
        cmocka_unit_test(test_models_are_exact_on_all_traces_at_hand),
        cmocka_unit_test(test_native_runs_out_of_memory_where_the_recorded_run_did),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    while (path_count > 0) free(paths[--path_count]);
    return failed;
}
