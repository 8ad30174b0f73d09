/* SPDX-License-Identifier: Apache-2.0 */
/*
 * info: reads each file, sums it up, prints. A file that cannot be read is told
 * on stderr and the next one goes on.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "report/info.h"
#include "report/text.h"

static const struct option long_options[] = {
    {"json", no_argument, NULL, 'j'},
    {NULL, 0, NULL, 0},
};

static tide_status print(const tide__info *info, bool json) {
    if (json) {
        tide__report_info_json(info, stdout);
    } else {
        tide__report_info_text(info, stdout, tide__terminal_width(stdout));
    }
    tide__flush_stdout(); /* a file's answer is there before the next is begun */
    return TIDE_OK;
}

static tide_status summarize_and_print(const char *file, const tide__trace *trace, bool json) {
    tide__gpu_summary *gpus = calloc(trace->gpu_count + 1, sizeof *gpus);
    tide_status status =
        gpus == NULL ? tide__fail(TIDE_NO_HOST_MEMORY, "%s: out of host memory", file) : TIDE_OK;
    size_t made = 0;
    while (status == TIDE_OK && made < trace->gpu_count) {
        status = tide__gpu_summarize(&trace->gpus[made], &gpus[made]);
        made++;
        if (status != TIDE_OK) {
            tide__fail_context(status, "%s", file);
        }
    }
    if (status == TIDE_OK) {
        tide__info info = {file, trace, gpus};
        status = print(&info, json);
    }
    for (size_t i = 0; i < made; i++) {
        tide__gpu_summary_free(&gpus[i]);
    }
    free(gpus);
    return status;
}

static bool info_file(const char *file, bool json) {
    tide__trace *trace = NULL;
    tide__progress_bar bar;
    tide__progress_begin(&bar, file);
    tide_status status = tide__trace_read(tide__path_of(file), tide__progress_update, &bar, &trace);
    tide__progress_hide(&bar);
    if (status == TIDE_OK) {
        status = summarize_and_print(file, trace, json);
        tide__trace_free(trace);
    }
    if (status != TIDE_OK) {
        fprintf(stderr, "pagetide: %s\n", tide_last_error());
    }
    return status == TIDE_OK;
}

int tide__cmd_info(int argc, char **argv) {
    bool json = false, failed = false;
    int option;
    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (option != 'j') {
            return tide__option_error("info", option, argv, long_options);
        }
        json = true;
    }
    if (optind == argc) {
        return tide__usage_error("info", "which file?");
    }
    /* With nowhere to print to, the rest need not be read. */
    for (int i = optind; i < argc && !ferror(stdout); i++) {
        if (i > optind && !json) {
            putchar('\n');
        }
        failed |= !info_file(argv[i], json);
    }
    return failed ? TIDE__EXIT_FAILED : TIDE__EXIT_OK;
}
