/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as people write and read them. */
#include "base_test.h"

static void bytes_are_printed_for_people(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {1536, "1.50 KiB"},
                 {TIDE__MIB, "1.00 MiB"},
                 {UINT64_C(150109880320), "139.80 GiB"},
                 {UINT64_C(1) << 40, "1.00 TiB"},
                 {UINT64_MAX, "16.00 EiB"}};
    char text[TIDE__BYTES_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ptr_equal(tide__format_bytes(cases[i].bytes, text), text);
        assert_string_equal(text, cases[i].text);
    }
}

static void sizes_are_read_as_people_write_them(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"0", 0},
                 {"18463515279", UINT64_C(18463515279)},
                 {"512B", 512},
                 {"512k", 512 * TIDE__KIB},
                 {"512K", 512 * TIDE__KIB},
                 {"512KB", 512 * TIDE__KIB},
                 {"512KiB", 512 * TIDE__KIB},
                 {"40GiB", 40 * TIDE__GIB},
                 {"40 GiB", 40 * TIDE__GIB},
                 {"40G", 40 * TIDE__GIB},
                 {"2T", UINT64_C(2) << 40},
                 {"1.5G", TIDE__GIB + TIDE__GIB / 2},
                 {"0.5M", TIDE__MIB / 2},
                 {"18446744073709551615", UINT64_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 1;
        if (!tide__parse_bytes(cases[i].text, &bytes) || bytes != cases[i].bytes) {
            fail_msg("\"%s\" is read as %llu", cases[i].text, (unsigned long long)bytes);
        }
    }
}

static void what_is_no_size_is_refused(void **state) {
    (void)state;
    static const char *const cases[] = {"",
                                        " ",
                                        "G",
                                        "-1",
                                        "+1",
                                        "1X",
                                        "1GiBs",
                                        "1 2",
                                        "1.5.5",
                                        "0x10",
                                        "1e3",
                                        "nan",
                                        "1..",
                                        "1,5G",
                                        "1iB",
                                        "1BB",
                                        "18446744073709551616",
                                        "17179869184G",
                                        "9999999P",
                                        "99999999999.5G"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t bytes = 77;
        if (tide__parse_bytes(cases[i], &bytes)) {
            fail_msg("\"%s\" is read as %llu", cases[i], (unsigned long long)bytes);
        }
        assert_int_equal(bytes, 77);
    }
}

static void what_is_printed_can_be_read(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 10000; i++) {
        char text[TIDE__BYTES_TEXT];
        uint64_t bytes = next_random(&random) >> (next_random(&random) % 50 + 13), back = 0;
        tide__format_bytes(bytes, text);
        assert_true(tide__parse_bytes(text, &back));
        uint64_t off = back > bytes ? back - bytes : bytes - back;
        assert_true(off <= bytes / 100 + 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_printed_for_people),
        cmocka_unit_test(sizes_are_read_as_people_write_them),
        cmocka_unit_test(what_is_no_size_is_refused),
        cmocka_unit_test(what_is_printed_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
