/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "report/text.h"

#define SHOW_AFTER_NS UINT64_C(500000000)
#define REDRAW_NS UINT64_C(100000000)
#define BAR_COLUMNS 30
#define OTHER_COLUMNS 9 /* of what stands around label and bar, and one left free */

#define ERASE_LINE "\r\033[K"

/* Whether a bar is on the screen, for the signal handler. */
static volatile sig_atomic_t on_screen;

/* Takes the bar away and dies of the signal as if it had not been caught. */
static void interrupted(int signal_number) {
    if (on_screen) {
        ssize_t ignored = write(STDERR_FILENO, ERASE_LINE, sizeof ERASE_LINE - 1);
        (void)ignored;
    }
    raise(signal_number); /* SA_RESETHAND: the default action now */
}

static void catch_signals(void) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction before;
        /* What the caller ignores (nohup) stays ignored. */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
    }
}

void tide__progress_begin(tide__progress_bar *bar, const char *label) {
    const char *slash = strrchr(label, '/');
    memset(bar, 0, sizeof *bar);
    bar->label = slash && slash[1] ? slash + 1 : label;
    bar->start_ns = tide__monotonic_ns();
    bar->to = 1;
    bar->enabled = isatty(STDERR_FILENO);
}

void tide__progress_part(tide__progress_bar *bar, double from, double to) {
    bar->from = from;
    bar->to = to;
}

static void draw(const tide__progress_bar *bar) {
    int room = tide__terminal_width(stderr) - OTHER_COLUMNS;
    int columns = room < 2 * BAR_COLUMNS ? room / 2 : BAR_COLUMNS, label = room - columns;
    if (label > 40) label = 40;
    int filled = (int)(bar->shown * columns);
    fputs("\r", stderr);
    tide__print_name(stderr, bar->label, label);
    fputs(" [", stderr);
    for (int i = 0; i < columns; i++) putc(i < filled ? '=' : ' ', stderr);
    fprintf(stderr, "] %3d%%", (int)(bar->shown * 100));
    fflush(stderr);
}

void tide__progress_update(void *user, uint64_t done, uint64_t total) {
    tide__progress_bar *bar = user;
    if (!bar->enabled) return;
    double part = total ? (double)done / (double)total : 0;
    if (part > 1) part = 1;
    part = bar->from + part * (bar->to - bar->from);
    if (part > bar->shown) bar->shown = part;
    uint64_t now = tide__monotonic_ns();
    if (now - bar->start_ns < SHOW_AFTER_NS || now - bar->drawn_ns < REDRAW_NS) return;
    if (!on_screen) {
        catch_signals();
        on_screen = 1;
    }
    bar->drawn_ns = now;
    draw(bar);
}

void tide__progress_hide(tide__progress_bar *bar) {
    if (!bar->enabled || !on_screen) return;
    fputs(ERASE_LINE, stderr);
    fflush(stderr);
    on_screen = 0;
}
