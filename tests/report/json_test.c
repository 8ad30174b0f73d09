/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "report/json.h"

/* What `write` puts out, to be freed. */
static char *written(void (*write)(tide__json *j)) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    tide__json j;
    assert_non_null(out);
    tide__json_open(&j, out);
    write(&j);
    tide__json_close(&j);
    fclose(out);
    return text;
}

static void expect(void (*write)(tide__json *j), const char *line) {
    char *text = written(write);
    assert_string_equal(text, line);
    free(text);
}

static void nested(tide__json *j) {
    tide__json_object(j);
    tide__json_key(j, "a");
    tide__json_array(j);
    tide__json_array_end(j);
    tide__json_key(j, "b");
    tide__json_array(j);
    tide__json_u64(j, UINT64_MAX);
    tide__json_i64(j, INT64_MIN);
    tide__json_object(j);
    tide__json_object_end(j);
    tide__json_object(j);
    tide__json_key_bool(j, "t", true);
    tide__json_key_bool(j, "f", false);
    tide__json_object_end(j);
    tide__json_array_end(j);
    tide__json_key_string(j, "n", NULL);
    tide__json_object_end(j);
}

static void commas_stand_between_values_only(void **state) {
    expect(nested, "{\"a\":[],\"b\":[18446744073709551615,-9223372036854775808,{},{\"t\":true,\"f\":false}],"
                   "\"n\":null}\n");
}

static void escapes(tide__json *j) { tide__json_string(j, "a\"b\\c\n\r\t\x01\x1b[2J\x7f/"); }

static void strings_are_escaped(void **state) {
    expect(escapes, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u001b[2J\\u007f/\"\n");
}

static void utf8(tide__json *j) {
    tide__json_array(j);
    tide__json_string(j, "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8a"); /* two, three and four bytes */
    tide__json_string(j, "\xc0\xaf");                               /* overlong */
    tide__json_string(j, "\xed\xa0\x80");                           /* a surrogate */
    tide__json_string(j, "\xf4\x90\x80\x80");                       /* past U+10FFFF */
    tide__json_string(j, "\xe2\x82");                               /* cut */
    tide__json_string(j, "\xff\x80z");
    tide__json_array_end(j);
}

static void what_is_not_utf8_is_replaced(void **state) {
    expect(utf8, "[\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8a\",\"\\ufffd\\ufffd\",\"\\ufffd\\ufffd\\ufffd\","
                 "\"\\ufffd\\ufffd\\ufffd\\ufffd\",\"\\ufffd\\ufffd\",\"\\ufffd\\ufffdz\"]\n");
}

static void doubles(tide__json *j) {
    tide__json_array(j);
    tide__json_double(j, 0);
    tide__json_double(j, 1.5);
    tide__json_double(j, 0.1);
    tide__json_double(j, 1e300);
    tide__json_double(j, 150109880320.0);
    tide__json_double(j, NAN);
    tide__json_double(j, -INFINITY);
    tide__json_array_end(j);
}

static void doubles_are_short_and_never_nan(void **state) {
    expect(doubles, "[0.0,1.5,0.1,1e+300,1.5010988032e+11,null,null]\n");
}

static double tried;
static void one_double(tide__json *j) { tide__json_double(j, tried); }

static void doubles_read_back_as_they_were(void **state) {
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memcpy(&tried, &seed, sizeof tried);
        if (!isfinite(tried)) continue;
        char *text = written(one_double);
        double back = strtod(text, NULL);
        assert_memory_equal(&back, &tried, sizeof back);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_stand_between_values_only), cmocka_unit_test(strings_are_escaped),
        cmocka_unit_test(what_is_not_utf8_is_replaced),     cmocka_unit_test(doubles_are_short_and_never_nan),
        cmocka_unit_test(doubles_read_back_as_they_were),
    };
    return cmocka_run_group_tests_name("report: json", tests, NULL, NULL);
}
