/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli: the program. One file a command; main.c has the table of them.
 *
 * Exit codes, everywhere: 0 answered, whatever the answer; 1 could not; 2 called
 * wrongly. --check turns findings into 1. Data goes to stdout, talk to stderr.
 */
#ifndef TIDE_CLI_H
#define TIDE_CLI_H

#include <getopt.h>

#include "base/base.h"

enum { TIDE__EXIT_OK = 0, TIDE__EXIT_FAILED = 1, TIDE__EXIT_USAGE = 2 };

/* Each gets its own name in argv[0] and may use getopt_long from there.
 * `--help` never reaches it: main answers that from its table. */
int tide__cmd_replay(int argc, char **argv);
int tide__cmd_info(int argc, char **argv);
int tide__cmd_doctor(int argc, char **argv);

/* Says on stderr what was wrong with the call of a command and where help is;
 * returns TIDE__EXIT_USAGE. */
int tide__usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What getopt_long returned: `:` (with a short-option string that begins with
 * one) or `?`. Says which option it was, and which of the table's it may be meant for. */
int tide__option_error(const char *command, int result, char **argv, const struct option *options);

/* What to open for a FILE of the command line: "-" is standard input. */
const char *tide__path_of(const char *file);

/* What was printed so far is to be seen now. False once some of it could not be
 * written: stop early; main says why at the end. */
bool tide__flush_stdout(void);

#endif
