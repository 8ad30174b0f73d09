/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_settings: reads the settings that a snapshot carries. They come twice:
 * as values (max_split_size in bytes, -1 for none; roundup_power2_divisions by
 * MiB of the interval's start) and as the user's own string of options, which
 * alone has what the values leave out.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/torch_settings.h"

/* Options that read_option has nothing to do for. The fraction acts through
 * events that a trace holds: its retries and its out of memory. */
static const char *const harmless[] = {
    /* these the file has as values too */
    "max_split_size_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    /* and these change nothing */
    "expandable_segments",
    "pinned_num_register_threads",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "pinned_reserve_segment_size_mb",
    "throw_on_cudamalloc_oom",
    "pinned_max_register_threads",
    "pinned_max_power2_size_mb",
    "pinned_max_cached_size_mb",
};

#define SPACES " \t\n\v\f\r"

static uint64_t mib(const char *text) {
    unsigned long long v = strtoull(text, NULL, 10);
    return tide__min(v, UINT64_C(1) << 40) << 20;
}

static void unmodelled(tide__torch_settings *s, const char *name, size_t length) {
    if (s->unmodelled++ == 0) {
        length = length < sizeof s->unmodelled_name - 1 ? length : sizeof s->unmodelled_name - 1;
        memcpy(s->unmodelled_name, name, length);
        s->unmodelled_name[length] = 0;
    }
}

static bool is(const char *name, size_t length, const char *literal) {
    return strlen(literal) == length && !strncmp(literal, name, length);
}

static bool is_harmless(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (is(name, length, harmless[i])) return true;
    return false;
}

/* "64:8,128:2" or "1:0,2:0": divisions by the interval's first MiB. */
static void read_divisions(tide__torch_settings *s, const char *text) {
    while (*text) {
        char *end;
        unsigned long long start = strtoull(text, &end, 10);
        if (end == text || *end != ':') {
            text += *text != 0;
            continue;
        }
        unsigned long long divisions = strtoull(end + 1, &end, 10);
        unsigned interval = start > 1 ? (unsigned)tide__log2_floor(start) : 0;
        if (interval < TIDE__TORCH_ROUNDUP_INTERVALS && divisions <= UINT32_MAX)
            s->roundup_divisions[interval] = (uint32_t)divisions;
        text = end;
    }
}

/* A value that PyTorch refuses, and with it the whole string: what it went on with is not known. */
static void refused(tide__torch_settings *s, const char *name, size_t length, const char *value) {
    size_t end = (size_t)(value - name) + strcspn(value, ",");
    unmodelled(s, name, end > length ? end : length);
}

/* One option of the user's string, "name:value". */
static void read_option(tide__torch_settings *s, const char *name, size_t length, const char *value) {
    if (is(name, length, "max_non_split_rounding_mb")) {
        s->max_non_split_rounding = mib(value);
        if (mib(value) == 0) refused(s, name, length, value);
    } else if (is(name, length, "large_segment_size_mb")) {
        /* No less than what a segment of this size has to hold. */
        if (mib(value) > TIDE__TORCH_MIN_LARGE)
            s->large_segment_size = mib(value);
        else
            refused(s, name, length, value);
    } else if (is(name, length, "backend") && !strncmp(value, "native", 6)) {
        return;
    } else if (!is_harmless(name, length)) {
        unmodelled(s, name, length);
    }
}

/* "max_split_size_mb:40,roundup_power2_divisions:[256:1,>:4],backend:native", with spaces anywhere */
static void read_option_string(tide__torch_settings *s, const char *text) {
    for (text += strspn(text, SPACES); *text; text += strspn(text, SPACES)) {
        size_t name = strcspn(text, ":,"), length = name;
        if (text[name] != ':') {
            text += name + (text[name] != 0);
            continue;
        }
        while (length > 0 && strchr(SPACES, text[length - 1]) != NULL) length--;
        const char *value = text + name + 1 + strspn(text + name + 1, SPACES);
        read_option(s, text, length, value);
        const char *close = *value == '[' ? strchr(value, ']') : NULL;
        if (close != NULL) value = close;
        text = value + strcspn(value, ",");
        text += *text != 0;
    }
}

/* Where it is not set it is the size of a large segment, and PyTorch refuses less. */
static void settle_rounding(tide__torch_settings *s) {
    static const char name[] = "max_non_split_rounding_mb";
    if (s->max_non_split_rounding == 0)
        s->max_non_split_rounding = s->large_segment_size;
    else if (s->max_non_split_rounding < s->large_segment_size)
        unmodelled(s, name, sizeof name - 1);
}

void tide__torch_settings_read(const tide__trace *trace, tide__torch_settings *out) {
    *out = (tide__torch_settings){
        .max_split_size = UINT64_MAX,
        .large_segment_size = 20 * TIDE__MIB,
    };
    static const char *const strings[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
                                          "PYTORCH_HIP_ALLOC_CONF"};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        const char *text = tide__trace_setting_get(trace, strings[i]);
        if (text != NULL) read_option_string(out, text);
    }
    settle_rounding(out);
    const char *text = tide__trace_setting_get(trace, "max_split_size");
    if (text != NULL && *text != '-' && strtoull(text, NULL, 10) > 0)
        out->max_split_size = strtoull(text, NULL, 10);
    text = tide__trace_setting_get(trace, "garbage_collection_threshold");
    if (text != NULL) out->gc_threshold = strtod(text, NULL);
    if (!(out->gc_threshold > 0 && out->gc_threshold < 1)) out->gc_threshold = 0;
    text = tide__trace_setting_get(trace, "roundup_power2_divisions");
    if (text != NULL) read_divisions(out, text);
}

/* ---- Rounding ---- */

/* Up to the next of `divisions` equal steps between the powers of two around the size. */
static uint64_t round_to_division(uint64_t size, uint32_t divisions) {
    if ((size & (size - 1)) == 0) return size;
    uint64_t floor = UINT64_C(1) << tide__log2_floor(size);
    uint64_t step = floor >> tide__log2_floor(divisions);
    if (step == 0) return floor << 1;
    return tide__align_up(size, step);
}

uint64_t tide__torch_round(const tide__torch_settings *s, uint64_t size) {
    if (size < TIDE__TORCH_MIN_BLOCK) return TIDE__TORCH_MIN_BLOCK;
    int interval = tide__log2_floor(size) - 20;
    interval = interval < 0 ? 0 : interval;
    if (interval >= TIDE__TORCH_ROUNDUP_INTERVALS) interval = TIDE__TORCH_ROUNDUP_INTERVALS - 1;
    uint32_t divisions = s->roundup_divisions[interval];
    if (divisions > 1 && size > TIDE__TORCH_MIN_BLOCK * divisions) return round_to_division(size, divisions);
    return tide__align_up(size, TIDE__TORCH_MIN_BLOCK);
}

uint64_t tide__torch_segment_size(const tide__torch_settings *s, uint64_t size) {
    if (size <= TIDE__TORCH_SMALL_SIZE) return TIDE__TORCH_SMALL_SEGMENT;
    if (size < TIDE__TORCH_MIN_LARGE) return s->large_segment_size;
    return tide__align_up(size, TIDE__TORCH_ROUND_LARGE);
}
