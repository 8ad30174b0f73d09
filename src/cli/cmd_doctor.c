/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: looks at the machine and prints what it offers. Something missing is an answer, not a failure. */
#include <getopt.h>
#include <stdio.h>

#include "cli/cli.h"
#include "report/doctor.h"
#include "report/text.h"

static const struct option long_options[] = {
    {"json", no_argument, NULL, 'j'},
    {NULL, 0, NULL, 0},
};

int tide__cmd_doctor(int argc, char **argv) {
    bool json = false;
    int option;
    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (option != 'j') {
            return tide__option_error("doctor", option, argv, long_options);
        }
        json = true;
    }
    if (optind < argc) {
        return tide__usage_error("doctor", "it takes no file ('%s')", argv[optind]);
    }
    static tide__doctor d;
    if (tide__doctor_look(&d) != TIDE_OK) {
        fprintf(stderr, "pagetide: %s\n", tide_last_error());
        return TIDE__EXIT_FAILED;
    }
    if (json) {
        tide__report_doctor_json(&d, stdout);
    } else {
        tide__report_doctor_text(&d, stdout, tide__terminal_width(stdout));
    }
    tide__doctor_free(&d);
    return TIDE__EXIT_OK;
}
