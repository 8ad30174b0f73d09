/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay: reads each file, plays each of its GPUs through the policies, prints.
 * A file that cannot be replayed is told on stderr and the next one goes on.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "replay/replay.h"
#include "report/replay_report.h"
#include "report/text.h"
#include "trace/trace.h"

#define DEFAULT_EVENT_DELAY_NS UINT64_C(100000000)
#define ALL_GPUS (-1)
#define READING_PART 0.5 /* of the time that a file takes */

typedef struct request {
    tide__replay_options options;
    int gpu; /* or ALL_GPUS */
    bool json, check;
    /* what came of it */
    unsigned printed, findings;
    bool failed;
} request;

enum {
    OPT_POLICY = 256,
    OPT_DEVICE,
    OPT_LIMIT,
    OPT_DELAY,
    OPT_CROSS,
    OPT_TRIM,
    OPT_GPU,
    OPT_JSON,
    OPT_CHECK
};

static const struct option long_options[] = {
    {"policy", required_argument, NULL, OPT_POLICY},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"limit", required_argument, NULL, OPT_LIMIT},
    {"event-delay", required_argument, NULL, OPT_DELAY},
    {"cross-stream", required_argument, NULL, OPT_CROSS},
    {"trim-phases", no_argument, NULL, OPT_TRIM},
    {"gpu", required_argument, NULL, OPT_GPU},
    {"json", no_argument, NULL, OPT_JSON},
    {"check", no_argument, NULL, OPT_CHECK},
    {NULL, 0, NULL, 0},
};

/* ---- Options: each parser returns an exit code ---- */

static int parse_policies(const char *list, unsigned *out) {
    unsigned policies = 0;
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        int kind = 0;
        for (; kind < TIDE__POLICY_COUNT; kind++) {
            const char *name = tide__policy_name((tide__policy_kind)kind);
            if (strlen(name) == length && !strncmp(name, at, length)) break;
        }
        if (length == 0 && *list)
            return tide__usage_error("replay", "--policy: '%s' has a comma with no name beside it", list);
        if (kind == TIDE__POLICY_COUNT)
            return tide__usage_error("replay", "--policy: '%.*s' is not one of native, expandable, pagetide",
                                     (int)length, at);
        policies |= 1u << kind;
        at += length;
        if (!*at) break;
    }
    *out = policies;
    return TIDE__EXIT_OK;
}

static int parse_device(const char *text, const char **out) {
    if (strcmp(text, "sim") != 0 && strcmp(text, "host") != 0)
        return tide__usage_error("replay", "--device: '%s' is not sim or host", text);
    *out = text;
    return TIDE__EXIT_OK;
}

static int parse_limit(const char *text, uint64_t *out) {
    char bytes[TIDE__BYTES_TEXT];
    if (!tide__parse_bytes(text, out) || *out == 0)
        return tide__usage_error("replay", "--limit: '%s' is not a number of bytes such as 16GiB", text);
    if (*out > TIDE__MAX_LIMIT_BYTES)
        return tide__usage_error("replay", "--limit: '%s' is more than %s, the most that can be replayed",
                                 text, tide__format_bytes(TIDE__MAX_LIMIT_BYTES, bytes));
    if (*out >= TIDE__MIN_LIMIT_BYTES) return TIDE__EXIT_OK;
    /* A unit that was forgotten, or stands apart from its number. */
    bool is_bare = text[strspn(text, "0123456789.")] == 0;
    return tide__usage_error("replay",
                             "--limit: '%s' is %s, less than any allocator takes at once (2 MiB)%s%s%s", text,
                             tide__format_bytes(*out, bytes), is_bare ? "; did you mean " : "",
                             is_bare ? text : "", is_bare ? "GiB?" : "");
}

static int parse_delay(const char *text, uint64_t *out_ns) {
    char *end;
    double ms = strtod(text, &end);
    bool is_number = *text >= '0' && *text <= '9' && *end == 0;
    if (!is_number || !(ms <= 1e9))
        return tide__usage_error("replay",
                                 "--event-delay: '%s' is not a number of milliseconds from 0 to 1e9", text);
    *out_ns = (uint64_t)llround(ms * 1e6);
    return TIDE__EXIT_OK;
}

static int parse_cross_stream(const char *text, tide_cross_stream *out) {
    static const char *const names[] = {"off", "idle", "wait"};
    static const tide_cross_stream values[] = {TIDE_CROSS_STREAM_OFF, TIDE_CROSS_STREAM_IDLE,
                                               TIDE_CROSS_STREAM_WAIT};
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            *out = values[i];
            return TIDE__EXIT_OK;
        }
    return tide__usage_error("replay", "--cross-stream: '%s' is not off, idle or wait", text);
}

static int parse_gpu(const char *text, int *out) {
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || n > 65535)
        return tide__usage_error("replay", "--gpu: '%s' is not the number of a GPU", text);
    *out = (int)n;
    return TIDE__EXIT_OK;
}

static int parse_option(int option, request *q) {
    switch (option) {
    case OPT_POLICY: return parse_policies(optarg, &q->options.policies);
    case OPT_DEVICE: return parse_device(optarg, &q->options.device);
    case OPT_LIMIT: return parse_limit(optarg, &q->options.limit_bytes);
    case OPT_DELAY: return parse_delay(optarg, &q->options.event_delay_ns);
    case OPT_CROSS: return parse_cross_stream(optarg, &q->options.cross_stream);
    case OPT_GPU: return parse_gpu(optarg, &q->gpu);
    case OPT_TRIM: q->options.trim_phases = true; break;
    case OPT_JSON: q->json = true; break;
    default: q->check = true; break;
    }
    return TIDE__EXIT_OK;
}

static int parse(int argc, char **argv, request *q) {
    int option;
    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        int code = option == ':' || option == '?' ? tide__option_error("replay", option, argv, long_options)
                                                  : parse_option(option, q);
        if (code != TIDE__EXIT_OK) return code;
    }
    if (optind == argc) return tide__usage_error("replay", "which file?");
    return TIDE__EXIT_OK;
}

/* ---- Files ---- */

static void print_result(request *q, const char *file, const tide__trace *trace,
                         const tide__replay_result *result) {
    tide__replay_report report = {file, trace, &q->options, result};
    if (q->json) {
        tide__report_replay_json(&report, stdout);
    } else {
        if (q->printed) putchar('\n');
        tide__report_replay_text(&report, stdout, tide__terminal_width(stdout));
    }
    q->printed++;
    tide__flush_stdout(); /* a result is there before the next file is begun */
    if (q->check) q->findings += tide__report_check(&report, stderr);
}

static void replay_gpu(request *q, const char *file, const tide__trace *trace, const tide__trace_gpu *gpu,
                       tide__progress_bar *bar) {
    tide__replay_result result = {0};
    q->options.progress = tide__progress_update;
    q->options.progress_user = bar;
    tide_status status = tide__replay(trace, gpu, &q->options, &result);
    tide__progress_hide(bar);
    if (status == TIDE_OK) {
        print_result(q, file, trace, &result);
    } else {
        fprintf(stderr, "pagetide: %s: GPU %d: %s\n", file, gpu->device, tide_last_error());
        q->failed = true;
    }
    tide__replay_result_free(&result);
}

static bool is_asked_for(const request *q, const tide__trace_gpu *gpu) {
    return gpu->event_count > 0 && (q->gpu == ALL_GPUS || gpu->device == q->gpu);
}

/* Replays the GPUs asked for, each by its share of the events on the bar; how many. */
static unsigned replay_gpus(request *q, const char *file, const tide__trace *trace, tide__progress_bar *bar) {
    unsigned replayed = 0;
    uint64_t events = 0, done = 0;
    for (size_t i = 0; i < trace->gpu_count; i++)
        if (is_asked_for(q, &trace->gpus[i])) events += trace->gpus[i].event_count;
    for (size_t i = 0; i < trace->gpu_count; i++) {
        const tide__trace_gpu *gpu = &trace->gpus[i];
        if (!is_asked_for(q, gpu)) continue;
        double from = (double)done / (double)events, to = (double)(done += gpu->event_count) / (double)events;
        tide__progress_part(bar, READING_PART + (1 - READING_PART) * from,
                            READING_PART + (1 - READING_PART) * to);
        replay_gpu(q, file, trace, gpu, bar);
        replayed++;
    }
    return replayed;
}

static void tell_nothing_replayed(const request *q, const char *file) {
    if (q->gpu != ALL_GPUS)
        fprintf(stderr, "pagetide: %s: no events of GPU %d in this file\n", file, q->gpu);
    else
        fprintf(stderr,
                "pagetide: %s: no allocator events in this file: record with "
                "torch.cuda.memory._record_memory_history() before the run\n",
                file);
}

static void replay_file(request *q, const char *file) {
    tide__trace *trace = NULL;
    tide__progress_bar bar;
    tide__progress_begin(&bar, file);
    tide__progress_part(&bar, 0, READING_PART);
    tide_status status = tide__trace_read(tide__path_of(file), tide__progress_update, &bar, &trace);
    if (status != TIDE_OK) {
        tide__progress_hide(&bar);
        fprintf(stderr, "pagetide: %s\n", tide_last_error());
        q->failed = true;
        return;
    }
    unsigned replayed = replay_gpus(q, file, trace, &bar);
    tide__progress_hide(&bar);
    if (!replayed) {
        tell_nothing_replayed(q, file);
        q->failed = true;
    }
    tide__trace_free(trace);
}

int tide__cmd_replay(int argc, char **argv) {
    request q = {.gpu = ALL_GPUS};
    q.options.policies = (1u << TIDE__POLICY_COUNT) - 1;
    q.options.device = "sim";
    q.options.event_delay_ns = DEFAULT_EVENT_DELAY_NS;
    q.options.cross_stream = TIDE_CROSS_STREAM_IDLE;
    int code = parse(argc, argv, &q);
    if (code != TIDE__EXIT_OK) return code;
    /* With nowhere to print to, the rest need not be computed. */
    for (int i = optind; i < argc && !ferror(stdout); i++) replay_file(&q, argv[i]);
    return q.failed || q.findings ? TIDE__EXIT_FAILED : TIDE__EXIT_OK;
}
