/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are cut, changed or made to do harm: each gets an answer or an
 * error that names the file, no crash, no hang, and memory stays bounded.
 */
#include <sys/resource.h>
#include <sys/wait.h>
#include <zlib.h>

#include "trace/source.h"
#include "trace/summary.h"
#include "trace_test.h"

/* What a user does with a file, down to every byte of the trace. */
static tide_status read_and_use(const void *data, size_t size) {
    tide__trace *t;
    tide_status status = read_bytes(data, size, &t);
    if (status != TIDE_OK) {
        assert_null(t);
        assert_non_null(strstr(tide_last_error(), "/proc/self/fd/"));
        assert_true(status == TIDE_CORRUPT || status == TIDE_NO_HOST_MEMORY);
        return status;
    }
    for (size_t i = 0; i < t->gpu_count; i++) {
        const tide__trace_gpu *g = &t->gpus[i];
        tide__gpu_summary s;
        assert_int_equal(tide__gpu_summarize(g, &s), TIDE_OK);
        tide__gpu_summary_free(&s);
        for (size_t k = 0; k < g->event_count; k++) {
            const tide__trace_event *e = &g->events[k];
            assert_true(e->action < TIDE__ACTION_COUNT && e->stream < g->stream_count);
            assert_true(e->pool < g->pool_count && e->phase < t->string_count && e->stack < t->stack_count);
        }
        for (size_t k = 0; k < g->segment_count; k++) {
            assert_true(g->segments[k].first_block + g->segments[k].block_count <= g->block_count);
            assert_true(g->segments[k].stream < g->stream_count && g->segments[k].pool < g->pool_count);
        }
    }
    for (size_t i = 0; i < t->frame_count; i++) {
        assert_true(t->frames[i].name < t->string_count && t->frames[i].file < t->string_count);
    }
    assert_int_equal(t->stack_start[t->stack_count], t->frame_count);
    tide__trace_free(t);
    return TIDE_OK;
}

static const char *const small_files[] = {"protocol2.pickle", "protocol4.pickle",  "protocol5.pickle",
                                          "shared.pickle",    "wrapped.pickle",    "strange-metadata.pickle",
                                          "whole.pickle.gz",  "members.pickle.gz", "whole.pickle.zst"};

static bytes small_file(size_t i) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", FIXTURES, small_files[i]);
    return read_file(path);
}

static void cut_anywhere(void **state) {
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++) {
        bytes b = small_file(i);
        bool padded = strcmp(small_files[i], "members.pickle.gz") == 0;
        for (size_t size = 0; size < b.size; size++) {
            /* Only the zeros after the last member may be missing. */
            bool may_be_whole = padded && size >= b.size - 7;
            assert_int_equal(read_and_use(b.data, size) == TIDE_OK, may_be_whole);
        }
        assert_int_equal(read_and_use(b.data, b.size), TIDE_OK);
        free_bytes(&b);
    }
}

/* Every bit of the first file; the lowest, the highest and all bits of each byte
 * of the others. */
static void changed_anywhere(void **state) {
    static const uint8_t changes[] = {0x01, 0x80, 0xff, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40};
    for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++) {
        bytes b = small_file(i);
        size_t each = i == 0 ? sizeof changes : 3;
        for (size_t at = 0; at < b.size; at++) {
            for (size_t k = 0; k < each; k++) {
                b.data[at] ^= changes[k];
                read_and_use(b.data, b.size);
                b.data[at] ^= changes[k];
            }
        }
        free_bytes(&b);
    }
}

/* Bytes left out and bytes doubled: everything after moves. */
static void shifted_anywhere(void **state) {
    for (size_t i = 0; i < 6; i++) {
        bytes b = small_file(i);
        uint8_t *copy = malloc(b.size + 1);
        assert_non_null(copy);
        for (size_t at = 0; at < b.size; at++) {
            memcpy(copy, b.data, at);
            memcpy(copy + at, b.data + at + 1, b.size - at - 1);
            read_and_use(copy, b.size - 1);
            memcpy(copy, b.data, at + 1);
            memcpy(copy + at + 1, b.data + at, b.size - at);
            read_and_use(copy, b.size + 1);
        }
        free(copy);
        free_bytes(&b);
    }
}

/* ---- Lengths that are not there ---- */

static void giant_lengths(void **state) {
    static const char *const heads[] = {"X\xff\xff\xff\xff", "B\xff\xff\xff\xff", "T\xff\xff\xff\xff",
                                        "\x8b\xff\xff\xff\x7f"};
    static const char *const heads8[] = {"\x8d", "\x8e", "\x96"};
    static const uint64_t lengths[] = {UINT64_C(1) << 60, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 32};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        bytes b = {0};
        PUT(&b, "\x80\x04");
        put(&b, heads[i], 5);
        PUT(&b, "abc");
        assert_refused(&b, "the file ends inside the pickle");
        free_bytes(&b);
    }
    for (size_t i = 0; i < sizeof heads8 / sizeof *heads8; i++) {
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            bytes b = {0};
            PUT(&b, "\x80\x04");
            put(&b, heads8[i], 1);
            put_little(&b, lengths[k], 8);
            PUT(&b, "abc");
            assert_refused(&b, "the file ends inside the pickle");
            free_bytes(&b);
        }
    }
}

/* ---- Small bytes, large memory: each of 24 MiB, in a child whose peak is seen ---- */

#define BOMB_BYTES ((size_t)24 << 20)

typedef struct bomb {
    const char *name;
    const char *head, *unit;
    size_t head_bytes, unit_bytes;
} bomb;

#define BOMB(name, head, unit) \
    { name, "\x80\x04" head, unit, sizeof("\x80\x04" head) - 1, sizeof(unit) - 1 }

static const bomb bombs[] = {
    BOMB("lists in lists", "", "]"),
    BOMB("lists in lists, memoised", "", "]\x94"),
    BOMB("lists in lists, put away", "]", "(]e"),
    BOMB("tuples in tuples", "N", "\x85"),
    BOMB("dicts in dicts", "", "}N"),
    BOMB("marks", "", "("),
    BOMB("nothings", "", "N"),
    BOMB("empty tuples", "", ")"),
    BOMB("empty sets", "", "\x8f"),
    BOMB("memo", "N", "\x94"),
    BOMB("a list with itself", "]\x94", "h\0a"),
    BOMB("a list of one value", "](", "N"),
    BOMB("a list that doubles", "]\x94(h\0h\0e", "]\x94(h\0h\0e0"),
    BOMB("dicts of dicts of the last", "}\x94", "}(K\x01h\0K\x02h\0u\x94"),
    BOMB("floats", "",
         "G@\t!\373TD-\030"
         "0"),
    BOMB("big numbers", "",
         "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
         "0"),
    BOMB("pairs", "", "K\x01K\x02\x86"),
    BOMB("an entry again and again",
         "](}\x94(\x8c\x06"
         "action\x8c\x05"
         "alloc\x8c\x04"
         "addrK\x01\x8c\x04"
         "sizeK\x01u",
         "h\0"),
    BOMB("pops of marks", "", "(0"),
};

static bytes make_bomb(const bomb *m) {
    bytes b = {0};
    put(&b, m->head, m->head_bytes);
    while (b.size < BOMB_BYTES) {
        put(&b, m->unit, m->unit_bytes);
    }
    return b;
}

/* Different strings, as short as can be. */
static bytes make_string_bomb(void) {
    bytes b = {0};
    PUT(&b, "\x80\x04");
    for (uint32_t i = 0; b.size < BOMB_BYTES; i++) {
        PUT(&b, "\x8c\x04");
        put_little(&b, i | 0x01010101, 4);
        PUT(&b, "0");
    }
    return b;
}

static void in_child(const char *name, const bytes *b) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        tide__trace *t;
        alarm(60); /* a hang is a failure */
        tide_status status = read_bytes(b->data, b->size, &t);
        if (status == TIDE_OK) tide__trace_free(t);
        _exit(status == TIDE_OK || status == TIDE_CORRUPT ? 0 : 1);
    }
    int status;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_msg("%s: status %d", name, status);
    }
    /* The child begins with this process's bytes: those of the bomb, and the
     * test itself; memfd's pages are not its own. */
    uint64_t own = (uint64_t)usage.ru_maxrss * 1024;
    uint64_t bound = 3 * b->size + 32 * TIDE__MIB + b->capacity;
    if (!SANITIZED && own > bound) {
        fail_msg("%s: %llu bytes of memory for %zu", name, (unsigned long long)own, b->size);
    }
}

static void bombs_are_bounded(void **state) {
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        bytes b = make_bomb(&bombs[i]);
        in_child(bombs[i].name, &b);
        free_bytes(&b);
    }
    bytes b = make_string_bomb();
    in_child("strings", &b);
    free_bytes(&b);
}

/* Deep nesting that is within the bound: read and freed without recursion. */
static void deep_nesting(void **state) {
    bytes b = {0};
    size_t depth = 50000;
    PUT(&b, "\x80\x04}(");
    put_text(&b, "device_traces");
    PUT(&b, "](]e");
    put_text(&b, "allocator_settings");
    PUT(&b, "}(");
    put_text(&b, "deep");
    put_repeated(&b, ']', depth);
    put_repeated(&b, 'a', depth - 1);
    PUT(&b, "uu.");
    tide__trace *t;
    assert_int_equal(read_bytes(b.data, b.size, &t), TIDE_OK);
    assert_string_equal(tide__trace_setting_get(t, "deep"), "...");
    tide__trace_free(t);
    free_bytes(&b);
}

/* A dict that holds the last one twice, 60 times over, shown as a setting. */
static void doubled_setting(void **state) {
    bytes b = {0};
    PUT(&b, "\x80\x04}(");
    put_text(&b, "device_traces");
    PUT(&b, "](]e");
    put_text(&b, "allocator_settings");
    PUT(&b, "}(");
    put_text(&b, "boom");
    PUT(&b, "]\x94");
    for (int i = 0; i < 60; i++) {
        PUT(&b, "0](h");
        put_little(&b, (uint64_t)i, 1);
        PUT(&b, "h");
        put_little(&b, (uint64_t)i, 1);
        PUT(&b, "e\x94");
    }
    PUT(&b, "uu.");
    tide__trace *t;
    assert_int_equal(read_bytes(b.data, b.size, &t), TIDE_OK);
    assert_true(strlen(tide__trace_setting_get(t, "boom")) < 1024);
    tide__trace_free(t);
    free_bytes(&b);
}

/* More streams than an event can name. */
static void too_many_streams(void **state) {
    bytes b = {0};
    PUT(&b, "\x80\x04](");
    for (uint32_t i = 0; i < 70000; i++) {
        PUT(&b, "}(");
        put_text(&b, "action");
        put_text(&b, "alloc");
        put_text(&b, "addr");
        PUT(&b, "K\x01");
        put_text(&b, "size");
        PUT(&b, "K\x01");
        put_text(&b, "stream");
        PUT(&b, "J");
        put_little(&b, i, 4);
        PUT(&b, "u");
    }
    PUT(&b, "e.");
    assert_refused(&b, "more than 65536 streams");
    free_bytes(&b);
}

/* Addresses made to meet in one place of a tide__map, by running its hash backwards. */
static uint64_t meeting_key(uint64_t i) {
    uint64_t h = i << 26, inverse = 1;
    const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    for (int k = 0; k < 6; k++) {
        inverse *= 2 - factor * inverse;
    }
    h ^= h >> 29 ^ h >> 58;
    h *= inverse;
    return h ^ h >> 32;
}

static void colliding_addresses(void **state) {
    enum { N = 400000 };
    tide__trace_event *events = calloc(N, sizeof *events);
    assert_non_null(events);
    for (uint64_t i = 0; i < N; i++) {
        events[i] = (tide__trace_event){.action = TIDE__ACTION_ALLOC, .addr = meeting_key(i + 1), .size = 1};
    }
    uint64_t stream = 0;
    tide__trace_pool pool = {{0, 0}};
    tide__trace_gpu gpu = {.events = events,
                           .event_count = N,
                           .streams = &stream,
                           .stream_count = 1,
                           .pools = &pool,
                           .pool_count = 1};
    tide__gpu_summary s;
    unsigned left = alarm(60);
    assert_int_equal(tide__gpu_summarize(&gpu, &s), TIDE_OK);
    alarm(left);
    assert_int_equal(s.end_blocks, N);
    tide__gpu_summary_free(&s);
    free(events);
}

/* ---- The container ---- */

static bytes gzip_of(const bytes *b) {
    bytes out = {0};
    z_stream z = {0};
    uint8_t block[1 << 16];
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = b->data;
    z.avail_in = (uInt)b->size;
    for (int result = Z_OK; result != Z_STREAM_END;) {
        z.next_out = block;
        z.avail_out = sizeof block;
        result = deflate(&z, Z_FINISH);
        assert_true(result == Z_OK || result == Z_STREAM_END);
        put(&out, block, sizeof block - z.avail_out);
    }
    deflateEnd(&z);
    return out;
}

/* 192 MiB of zeros in 190 KB: too much for one string, and for any snapshot. */
static void gzip_bomb(void **state) {
    bytes b = {0}, packed;
    PUT(&b, "\x80\x04\x8e");
    put_little(&b, 192 * TIDE__MIB, 8);
    put_repeated(&b, 0, 192 * TIDE__MIB);
    PUT(&b, "0N.");
    packed = gzip_of(&b);
    assert_true(packed.size < TIDE__MIB);
    assert_refused(&packed, "expands more than 256 times");
    free_bytes(&packed);
    free_bytes(&b);
}

/* In a member of its own, each byte of the pickle. */
static void many_members(void **state) {
    bytes b = small_file(3), all = {0};
    for (size_t i = 0; i < b.size; i++) {
        bytes one = {.data = b.data + i, .size = 1}, packed = gzip_of(&one);
        put(&all, packed.data, packed.size);
        free_bytes(&packed);
    }
    assert_int_equal(read_and_use(all.data, all.size), TIDE_OK);
    free_bytes(&all);
    free_bytes(&b);
}

/* Two frames of zstd, and one that may be skipped. */
static void zstd_frames(void **state) {
    bytes b = small_file(8), all = {0};
    PUT(&all, "\x50\x2a\x4d\x18\x03\x00\x00\x00xyz");
    put(&all, b.data, b.size);
    assert_int_equal(read_and_use(all.data, all.size), TIDE_OK);
    put(&all, b.data, b.size);
    assert_refused(&all, "data follows the end of the pickle");
    all.size -= 5;
    assert_refused(&all, "the file ends inside its zstd data (truncated)");
    free_bytes(&all);
    put(&all, b.data, b.size);
    PUT(&all, "more");
    assert_int_equal(read_and_use(all.data, all.size), TIDE_CORRUPT);
    free_bytes(&all);
    free_bytes(&b);
}

static void not_files(void **state) {
    tide__trace *t = NULL;
    assert_int_equal(tide__trace_read("/", NULL, NULL, &t), TIDE_IO);
    assert_string_equal(tide_last_error(), "/: is a directory");
    assert_int_equal(tide__trace_read("/nonexistent/\x1b[31m", NULL, NULL, &t), TIDE_IO);
    assert_string_equal(tide_last_error(), "/nonexistent/?[31m: cannot open: No such file or directory");
    assert_int_equal(tide__trace_read("", NULL, NULL, &t), TIDE_IO);
    assert_int_equal(tide__trace_read("/dev/null", NULL, NULL, &t), TIDE_CORRUPT);
    assert_string_equal(tide_last_error(), "/dev/null: offset 0: the file is empty");
    assert_int_equal(tide__trace_read("/dev/zero", NULL, NULL, &t), TIDE_CORRUPT);
    assert_int_equal(tide__trace_read("/proc/self/mem", NULL, NULL, &t), TIDE_IO);
    assert_null(t);
}

static void from_a_pipe(void **state) {
    bytes b = small_file(1);
    int ends[2];
    char path[32];
    tide__trace *t;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], b.data, b.size), b.size); /* less than a pipe holds */
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    assert_int_equal(tide__trace_read(path, NULL, NULL, &t), TIDE_OK);
    assert_int_equal(t->file_bytes, b.size);
    tide__trace_free(t);
    close(ends[0]);
    free_bytes(&b);
}

typedef struct seen {
    uint64_t calls, done, total;
} seen;

static void watch(void *user, uint64_t done, uint64_t total) {
    seen *s = user;
    assert_true(done >= s->done && done <= total);
    s->calls++;
    s->done = done;
    s->total = total;
}

static void progress(void **state) {
    bytes b = small_file(6);
    char path[32];
    seen s = {0};
    tide__trace *t;
    int fd = memory_file(b.data, b.size, path);
    assert_int_equal(tide__trace_read(path, watch, &s, &t), TIDE_OK);
    assert_true(s.calls > 0);
    assert_int_equal(s.done, b.size);
    assert_int_equal(s.total, b.size);
    tide__trace_free(t);
    close(fd);
    free_bytes(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(changed_anywhere),
        cmocka_unit_test(shifted_anywhere),
        cmocka_unit_test(giant_lengths),
        cmocka_unit_test(bombs_are_bounded),
        cmocka_unit_test(deep_nesting),
        cmocka_unit_test(doubled_setting),
        cmocka_unit_test(too_many_streams),
        cmocka_unit_test(colliding_addresses),
        cmocka_unit_test(gzip_bomb),
        cmocka_unit_test(many_members),
        cmocka_unit_test(zstd_frames),
        cmocka_unit_test(not_files),
        cmocka_unit_test(from_a_pipe),
        cmocka_unit_test(progress),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
