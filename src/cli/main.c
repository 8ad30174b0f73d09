/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main: finds the command, answers --help, and makes sure that what was printed
 * has arrived.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define MAX_WORD 32 /* letters of an option's name */
#define MOST_LETTERS_APART 2

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
    const char *help;
} command;

/* clang-format off */
static const command commands[] = {
    {"replay", tide__cmd_replay, "what allocators would have reserved in a recorded run",
     "usage: pagetide replay FILE... [OPTION...]\n"
     "\n"
     "Replays PyTorch memory snapshots through allocators, with no GPU: what each would\n"
     "have reserved, and whether the run would have fitted.\n"
     "\n"
     "A FILE is what torch.cuda.memory._dump_snapshot() wrote, or a pickle of what\n"
     "torch.cuda.memory._snapshot() returned; plain, gzip or zstd; - is standard input.\n"
     "\n"
     "  --policy LIST        of native, expandable, pagetide (all, without this option):\n"
     "                       PyTorch's default allocator, the same with\n"
     "                       PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pagetide\n"
     "  --limit BYTES        memory that each may reserve, such as 16GiB or 18463515279;\n"
     "                       K, M, G and T are powers of 1024, so that 16GB is 16GiB\n"
     "                       (without it: the 150109880320 bytes of an H200)\n"
     "  --device sim|host    what pagetide runs on: a model of a GPU that counts (sim),\n"
     "                       or real pages of this machine (host)\n"
     "  --event-delay MS     how far the GPU is behind the host (100)\n"
     "  --cross-stream off|idle|wait\n"
     "                       who may take what another stream freed: nobody; anybody once\n"
     "                       it is idle (the default); or, when memory would grow, anybody\n"
     "                       after a wait on the GPU\n"
     "  --trim-phases        give back what is free at the end of each phase\n"
     "  --gpu N              this GPU of the file only\n"
     "  --json               a line of JSON for each file and GPU, in bytes and seconds\n"
     "  --check              exit code 1 where a model differs from the recording, or\n"
     "                       pagetide runs out of memory or reserves more than it promises\n"
     "\n"
     "What the table says:\n"
     "  live      what callers hold            reserved  what is held of the GPU for them\n"
     "  ratio     peak reserved / peak live    moves     chunks mapped at another address\n"
     "  waits     of the host or a stream for the GPU\n"
     "  driver s  in calls of the driver: a model of an H200's; of pagetide on host measured\n"
     "  phase     what torch.cuda.memory._set_memory_metadata named; excess: reserved\n"
     "            beyond live when it ended, where that was most\n"
     "\n"
     "Exit code: 0 answered, 1 some file could not be replayed (or --check found\n"
     "something), 2 called wrongly.\n"},
    {"info", tide__cmd_info, "what is in a file: events, streams, sizes, phases, settings",
     "usage: pagetide info FILE... [--json]\n"
     "\n"
     "Shows what a PyTorch memory snapshot holds: events by kind, streams, sizes, phases,\n"
     "time, settings, and what is missing.\n"
     "\n"
     "  --json               a line of JSON for each file\n"
     "\n"
     "Exit code: 0 answered, 1 some file could not be read, 2 called wrongly.\n"},
    {"doctor", tide__cmd_doctor, "what this machine offers, and what is missing",
     "usage: pagetide doctor [--json]\n"
     "\n"
     "Shows the driver, the GPUs and the host's limits as far as pagetide needs them, and\n"
     "says in words what is missing or small. Changes nothing.\n"
     "\n"
     "  --json               one line of JSON\n"
     "\n"
     "Exit code: 0 answered, whatever is missing; 2 called wrongly.\n"},
};
/* clang-format on */

#define COMMAND_COUNT (sizeof commands / sizeof *commands)

static const command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

static void print_help(FILE *out) {
    fputs("usage: pagetide COMMAND [ARGUMENT...]\n\n"
          "A GPU memory allocator whose physical pages move, and the tools around it.\n\n",
          out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fputs("  help      help on a command: pagetide help COMMAND, or pagetide COMMAND --help\n"
          "  version   the version\n",
          out);
}

static int print_version(void) {
    printf("pagetide %d.%d.%d\n", TIDE_VERSION_MAJOR, TIDE_VERSION_MINOR, TIDE_VERSION_PATCH);
    return TIDE__EXIT_OK;
}

int tide__usage_error(const char *command_name, const char *format, ...) {
    va_list args;
    fprintf(stderr, "pagetide %s: ", command_name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry 'pagetide %s --help'.\n", command_name);
    return TIDE__EXIT_USAGE;
}

/* How many letters to change, put in or leave out to make one word of the other: the usual table, of which
 * only the last row is kept. */
static size_t letters_apart(const char *a, const char *b) {
    size_t row[MAX_WORD + 1], columns = strlen(b);
    if (columns > MAX_WORD) return SIZE_MAX;
    for (size_t k = 0; k <= columns; k++) row[k] = k;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0]++;
        for (size_t k = 0; k < columns; k++) {
            size_t changed = diagonal + (a[i] != b[k]);
            diagonal = row[k + 1];
            row[k + 1] = tide__min(changed, tide__min(diagonal, row[k]) + 1);
        }
    }
    return row[columns];
}

/* The option that is nearest to one that is not known; NULL where none is near. */
static const char *nearest_option(const char *text, const struct option *options) {
    const char *nearest = NULL;
    size_t least = MOST_LETTERS_APART + 1;
    if (strncmp(text, "--", 2) != 0) return NULL;
    char word[MAX_WORD + 1];
    size_t length = strcspn(text + 2, "=");
    if (length > MAX_WORD) return NULL;
    snprintf(word, sizeof word, "%.*s", (int)length, text + 2);
    for (const struct option *o = options; o->name; o++) {
        size_t apart = letters_apart(word, o->name);
        if (apart >= least) continue;
        least = apart;
        nearest = o->name;
    }
    return nearest;
}

const char *tide__path_of(const char *file) { return strcmp(file, "-") != 0 ? file : "/dev/stdin"; }

int tide__option_error(const char *command_name, int result, char **argv, const struct option *options) {
    /* getopt_long leaves a short option in optopt, a long one just behind. */
    char short_option[] = {'-', (char)optopt, 0};
    bool is_short = optopt > ' ' && optopt < 0x7F;
    const char *option = is_short ? short_option : argv[optind - 1];
    if (result == ':') return tide__usage_error(command_name, "option '%s' needs a value", option);
    if (!is_short && optopt) return tide__usage_error(command_name, "option '%s' takes no value", option);
    const char *nearest = nearest_option(option, options);
    return tide__usage_error(command_name, "unknown option '%s'%s%s%s", option,
                             nearest ? "; did you mean '--" : "", nearest ? nearest : "",
                             nearest ? "'?" : "");
}

static int unknown_command(const char *name) {
    fprintf(stderr, "pagetide: '%s' is not a command", name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        /* A beginning of one, or one with its beginning: what hasty fingers type. */
        if (*name && (!strncmp(commands[i].name, name, strlen(name)) || !strncmp(commands[i].name, name, 3)))
            fprintf(stderr, "; did you mean '%s'?", commands[i].name);
    }
    if (!access(name, R_OK)) fprintf(stderr, "; to replay the file: pagetide replay %s", name);
    fprintf(stderr, "\nTry 'pagetide --help'.\n");
    return TIDE__EXIT_USAGE;
}

static int help_on(const char *name) {
    if (!name) {
        print_help(stdout);
        return TIDE__EXIT_OK;
    }
    const command *c = find_command(name);
    if (!c) return unknown_command(name);
    fputs(c->help, stdout);
    return TIDE__EXIT_OK;
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return TIDE__EXIT_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) return help_on(NULL);
    if (!strcmp(name, "help")) return help_on(argc > 2 ? argv[2] : NULL);
    if (!strcmp(name, "--version") || !strcmp(name, "version")) return print_version();
    const command *c = find_command(name);
    if (!c) return unknown_command(name);
    if (asks_for_help(argc - 1, argv + 1)) return help_on(c->name);
    return c->run(argc - 1, argv + 1);
}

/* A stdin, stdout or stderr that is closed would lend its number to the next
 * file opened, and what is printed would go there. */
static void fill_standard_files(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
            /* Read only, so that printing to it fails as it did before. */
            int opened = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
            if (opened != fd) _exit(TIDE__EXIT_FAILED);
        }
}

static int stdout_errno; /* of the first failure seen */

bool tide__flush_stdout(void) {
    bool arrived = fflush(stdout) == 0 && !ferror(stdout);
    if (!arrived && !stdout_errno) stdout_errno = errno;
    return arrived;
}

/* Whoever read the pipe has seen enough (head, less): nothing to tell. */
static bool reader_has_left(void) {
    struct pollfd end = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&end, 1, 0) > 0 && (end.revents & POLLERR);
}

/* Whether all that was printed has arrived: a full disk may show only here. */
static int close_stdout(int code) {
    bool quiet = reader_has_left(), arrived = tide__flush_stdout();
    if (fclose(stdout) == 0 && arrived) return code;
    if (!quiet)
        fprintf(stderr, "pagetide: stdout: %s\n", stdout_errno ? strerror(stdout_errno) : "write error");
    return code == TIDE__EXIT_OK ? TIDE__EXIT_FAILED : code;
}

int main(int argc, char **argv) {
    fill_standard_files();
    signal(SIGPIPE, SIG_IGN); /* a write says so instead */
    return close_stdout(run(argc, argv));
}
