/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations against the reference model (model.h), on sim and host,
 * with and without failing calls.
 *
 *     engine_model                            the usual number of seeds
 *     engine_model --from S --count N --ops K [--backend sim|host] [--faults]
 *     engine_model --replay FILE              a list of operations
 *     engine_model --shrink FILE              the smallest part of it that still fails
 *
 * Where a run fails its seed and operation are printed, and the list is
 * written to the file that PAGETIDE_TEST_OPS names. PAGETIDE_TEST_SEEDS scales
 * the number of seeds, in per cent.
 */
#include "engine_test.h"

#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model.h"

/* ---- Dying processes say where they were ---- */

static const model_case *running;

static void say_where(void) {
    char where[256];
    const char *path = getenv("PAGETIDE_TEST_OPS");
    model_where(where, sizeof where);
    fprintf(stderr, "model: %s\n", where);
    if (path != NULL && running != NULL) {
        model_write(running, path);
    }
}

static void on_abort(int number) {
    say_where();
    signal(number, SIG_DFL);
    raise(number);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void report_deaths(void) {
    signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(say_where);
    }
}

/* ---- Seeds ---- */

static model_result sum;

static bool run_case(const model_case *c) {
    model_result r;
    running = c;
    bool fine = model_run(c, &r);
    if (!fine) {
        const char *path = getenv("PAGETIDE_TEST_OPS");
        print_error("backend %s seed %" PRIu64 "%s operation %zu of %zu (%s): %s\n",
                    c->backend == MODEL_HOST ? "host" : "sim", c->seed, c->faults ? " with faults" : "",
                    r.failed_at, c->op_count,
                    r.failed_at < c->op_count ? model_op_name(c->ops[r.failed_at].kind) : "end", r.message);
        if (path != NULL) {
            model_write(c, path);
        }
    }
    running = NULL;
    sum.allocs += r.allocs;
    sum.ooms += r.ooms;
    sum.moves += r.moves;
    sum.stream_waits += r.stream_waits;
    sum.faults += r.faults;
    return fine;
}

static uint64_t run_seeds(model_backend backend, bool faults, uint64_t from, uint64_t count, size_t ops) {
    uint64_t failed = 0;
    sum = (model_result){0};
    for (uint64_t seed = from; seed < from + count; seed++) {
        model_case c = {.backend = backend, .seed = seed, .faults = faults};
        model_generate(&c, ops);
        failed += !run_case(&c);
        free(c.ops);
    }
    print_message("%" PRIu64 " seeds: %" PRIu64 " allocations, %" PRIu64 " out of memory, %" PRIu64
                  " moves, %" PRIu64 " stream waits, %" PRIu64 " failures injected\n",
                  count, sum.allocs, sum.ooms, sum.moves, sum.stream_waits, sum.faults);
    return failed;
}

static void sim_agrees_with_the_model(void **state) {
    (void)state;
    assert_int_equal(run_seeds(MODEL_SIM, false, 1, seeds_to_run(300, 40), 500), 0);
    assert_true(sum.moves > 0 && sum.ooms > 0 && sum.stream_waits > 0);
}

static void sim_agrees_with_the_model_when_calls_fail(void **state) {
    (void)state;
    assert_int_equal(run_seeds(MODEL_SIM, true, 1, seeds_to_run(300, 40), 500), 0);
    assert_true(sum.faults > 0);
}

static void host_keeps_every_byte(void **state) {
    (void)state;
    assert_int_equal(run_seeds(MODEL_HOST, false, 1, seeds_to_run(10, 5), 300), 0);
}

static void host_keeps_every_byte_when_calls_fail(void **state) {
    (void)state;
    assert_int_equal(run_seeds(MODEL_HOST, true, 1, seeds_to_run(10, 5), 300), 0);
}

/* Lists that once failed, shrunk: found/NAME.ops. */
static void what_was_found_stays_fixed(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob(TIDE_TEST_DATA "/../engine/found/*.ops", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        model_case c;
        assert_true(model_read(&c, found.gl_pathv[i]));
        if (!run_case(&c)) {
            fail_msg("%s", found.gl_pathv[i]);
        }
        free(c.ops);
    }
    globfree(&found);
}

/* ---- Shrinking ---- */

/* How a list fails: its message without the numbers, or the signal; 0 if it does not. In
 * a process of its own, since failing may be dying. */
static uint32_t failure_of(const model_case *c) {
    int ends[2];
    uint32_t digest = 0;
    fflush(NULL);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        model_result r;
        alarm(60);
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) != NULL && !model_run(c, &r)) {
            for (const char *at = r.message; *at != '\0'; at++) {
                digest = strchr("0123456789abcdefx", *at) != NULL ? digest : digest * 31 + (uint8_t)*at;
            }
        }
        _exit(write(ends[1], &digest, sizeof digest) == sizeof digest ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    close(ends[1]);
    if (read(ends[0], &digest, sizeof digest) != sizeof digest) {
        digest = 1000 + (uint32_t)status;
    }
    close(ends[0]);
    return digest;
}

/* Leaves out ever smaller parts, as long as the rest fails in the same way. */
static void shrink(model_case *c, uint32_t failure) {
    model_op *kept = calloc(c->op_count + 1, sizeof *kept);
    assert_non_null(kept);
    for (size_t part = c->op_count / 2; part > 0; part /= 2) {
        for (size_t at = 0; at < c->op_count;) {
            size_t end = at + part < c->op_count ? at + part : c->op_count, count = 0;
            for (size_t i = 0; i < c->op_count; i++) {
                if (i < at || i >= end) {
                    kept[count++] = c->ops[i];
                }
            }
            model_case smaller = *c;
            smaller.ops = kept;
            smaller.op_count = count;
            if (failure_of(&smaller) == failure) {
                memcpy(c->ops, kept, count * sizeof *kept);
                c->op_count = count;
            } else {
                at = end;
            }
        }
    }
    free(kept);
}

/* ---- Command line ---- */

static int replay_file(const char *path, bool smaller) {
    model_case c;
    if (!model_read(&c, path)) {
        fprintf(stderr, "%s: not a list of operations\n", path);
        return 2;
    }
    if (smaller) {
        uint32_t failure = failure_of(&c);
        if (failure == 0) {
            fprintf(stderr, "%s does not fail\n", path);
            return 1;
        }
        shrink(&c, failure);
        model_write(&c, path);
        printf("%zu operations are left\n", c.op_count);
    }
    return run_case(&c) ? 0 : 1;
}

static int run_command_line(int argc, char **argv) {
    model_backend backend = MODEL_SIM;
    bool faults = false;
    uint64_t from = 1, count = 100, ops = 500;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--replay") == 0 || strcmp(argv[i], "--shrink") == 0) {
            return replay_file(value, argv[i][2] == 's');
        }
        if (strcmp(argv[i], "--faults") == 0) {
            faults = true;
            continue;
        }
        if (strcmp(argv[i], "--backend") == 0) {
            backend = strcmp(value, "host") == 0 ? MODEL_HOST : MODEL_SIM;
        } else if (strcmp(argv[i], "--from") == 0) {
            from = strtoull(value, NULL, 0);
        } else if (strcmp(argv[i], "--count") == 0) {
            count = strtoull(value, NULL, 0);
        } else if (strcmp(argv[i], "--ops") == 0) {
            ops = strtoull(value, NULL, 0);
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
        i++;
    }
    return run_seeds(backend, faults, from, count, ops) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_found_stays_fixed),
        cmocka_unit_test(sim_agrees_with_the_model),
        cmocka_unit_test(sim_agrees_with_the_model_when_calls_fail),
        cmocka_unit_test(host_keeps_every_byte),
        cmocka_unit_test(host_keeps_every_byte_when_calls_fail),
    };
    report_deaths();
    return argc > 1 ? run_command_line(argc, argv) : cmocka_run_group_tests(tests, NULL, NULL);
}
