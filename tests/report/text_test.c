/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/text.h"

static void counts_have_commas(void **state) {
    char buf[TIDE__COUNT_TEXT];
    assert_string_equal(tide__format_count(0, buf), "0");
    assert_string_equal(tide__format_count(999, buf), "999");
    assert_string_equal(tide__format_count(1000, buf), "1,000");
    assert_string_equal(tide__format_count(1976444, buf), "1,976,444");
    assert_string_equal(tide__format_count(UINT64_MAX, buf), "18,446,744,073,709,551,615");
}

static void seconds_have_a_fitting_unit(void **state) {
    char buf[TIDE__COUNT_TEXT];
    assert_string_equal(tide__format_seconds(0, buf), "0.0 s");
    assert_string_equal(tide__format_seconds(99.94, buf), "99.9 s");
    assert_string_equal(tide__format_seconds(99.96, buf), "1 min 40 s");
    assert_string_equal(tide__format_seconds(7800, buf), "2 h 10 min");
    assert_string_equal(tide__format_seconds(NAN, buf), "an unknown time");
    assert_string_equal(tide__format_seconds(1e300, buf), "an unknown time");
}

static void expect_name(const char *name, int columns, const char *shown) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    tide__print_name(out, name, columns);
    fclose(out);
    assert_string_equal(text, shown);
    free(text);
}

static void names_fit_and_obey_no_terminal_codes(void **state) {
    expect_name("rollout", 9, "rollout  ");
    expect_name("rollout", 7, "rollout");
    expect_name("compute_log_prob", 10, "compute...");
    expect_name("rollout", 2, "  ");
    expect_name("a\033[2Jb\n", 8, "a?[2Jb? ");
}

static void words_wrap_at_the_width(void **state) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    tide__print_wrapped(out, 10, 2, "one two  three fourteenletters five");
    fclose(out);
    assert_string_equal(text, "  one two\n  three\n  fourteenletters\n  five\n");
    free(text);
}

static void what_is_no_terminal_is_as_wide_as_columns_says(void **state) {
    FILE *none = fopen("/dev/null", "w");
    assert_non_null(none);
    setenv("COLUMNS", "63", 1);
    assert_int_equal(tide__terminal_width(none), 63);
    setenv("COLUMNS", "wide", 1);
    assert_int_equal(tide__terminal_width(none), 80);
    setenv("COLUMNS", "-5", 1);
    assert_int_equal(tide__terminal_width(none), 80);
    unsetenv("COLUMNS");
    assert_int_equal(tide__terminal_width(none), 80);
    fclose(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_have_commas),
        cmocka_unit_test(seconds_have_a_fitting_unit),
        cmocka_unit_test(names_fit_and_obey_no_terminal_codes),
        cmocka_unit_test(words_wrap_at_the_width),
        cmocka_unit_test(what_is_no_terminal_is_as_wide_as_columns_says),
    };
    return cmocka_run_group_tests_name("report: text", tests, NULL, NULL);
}
