/* SPDX-License-Identifier: Apache-2.0 */
#include "report/info.h"

#include <string.h>
#include <time.h>

#include "report/json.h"
#include "report/text.h"

#define LEAST_WIDTH 50
#define NARROW 72 /* columns: below, less is shown of a line */
#define ROWS 24   /* of a list in the text; JSON has them all */

/* ---- What is missing: sentences, for both forms ---- */

#define NOTES 16
#define NOTE_BYTES 320

typedef struct notes {
    char text[NOTES][NOTE_BYTES];
    size_t count;
} notes;

static void note(notes *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(notes *n, const char *format, ...) {
    if (n->count == NOTES) return;
    va_list args;
    va_start(args, format);
    vsnprintf(n->text[n->count++], NOTE_BYTES, format, args);
    va_end(args);
}

static void note_start(notes *n, const tide__gpu_summary *s) {
    char blocks[TIDE__COUNT_TEXT], bytes[TIDE__BYTES_TEXT];
    if (s->start_blocks == 0) return;
    note(n,
         "the beginning: at least %s block(s) of %s were live before the first entry. The recording was "
         "started late, or its ring wrapped (max_entries)",
         tide__format_count(s->start_blocks, blocks), tide__format_bytes(s->start_bytes, bytes));
}

static void note_contents(notes *n, const tide__gpu_summary *s, const tide__trace_gpu *gpu) {
    char count[TIDE__COUNT_TEXT];
    if (s->policy == TIDE__RECORDED_NONE)
        note(n, "segment events: which allocator was recorded is not known");
    if (s->without_phase == gpu->event_count) {
        note(n, "phases: no entry has user_metadata (torch.cuda.memory._set_memory_metadata sets it)");
    }
    if (s->with_stack == 0) {
        note(n, "stack frames: no entry has any (_record_memory_history(context=\"all\", stacks=\"python\") "
                "records "
                "them)");
    }
    if (s->first_us == 0) note(n, "times: no entry has time_us");
    if (s->actions[TIDE__ACTION_OTHER] > 0) {
        note(n, "the meaning of %s entries: their kinds are not known here",
             tide__format_count(s->actions[TIDE__ACTION_OTHER], count));
    }
    if (s->freed_twice > 0) {
        note(n, "order: %s frees are of blocks freed before", tide__format_count(s->freed_twice, count));
    }
    if (s->allocated_twice > 0) {
        note(n, "order: %s allocations are at addresses of live blocks",
             tide__format_count(s->allocated_twice, count));
    }
}

static void gpu_notes(notes *n, const tide__info *info, size_t i) {
    const tide__trace_gpu *gpu = &info->trace->gpus[i];
    n->count = 0;
    if (gpu->event_count == 0) {
        note(n, "events: nothing was recorded for this GPU");
    } else {
        note_start(n, &info->gpus[i]);
        note_contents(n, &info->gpus[i], gpu);
    }
}

static void file_notes(notes *n, const tide__info *info) {
    n->count = 0;
    if (!info->trace->has_segments) {
        note(n, "the list of segments and blocks: what was reserved at the end is not known");
    }
    if (info->trace->setting_count == 0) note(n, "the allocator's settings");
}

/* ---- Text ---- */

#define TIME_TEXT 40

static const char *format_time(int64_t time_us, char buf[TIME_TEXT]) {
    time_t seconds = (time_t)(time_us / 1000000);
    struct tm utc;
    if (time_us <= 0 || gmtime_r(&seconds, &utc) == NULL ||
        strftime(buf, TIME_TEXT, "%Y-%m-%d %H:%M:%S UTC", &utc) == 0)
        snprintf(buf, TIME_TEXT, "%lld us", (long long)time_us);
    return buf;
}

static int name_columns(int width, int others) {
    int columns = width - others;
    return columns < 8 ? 8 : columns > 40 ? 40 : columns;
}

static void print_more(FILE *out, size_t count) {
    if (count > ROWS) fprintf(out, "      ... and %zu more\n", count - ROWS);
}

static void print_actions(FILE *out, int width, const tide__gpu_summary *s) {
    char count[TIDE__COUNT_TEXT];
    for (int i = 0; i < TIDE__ACTION_COUNT; i++) {
        if (s->actions[i] > 0) {
            fprintf(out, "    %-18s %14s", tide__action_name((tide__action)i),
                    tide__format_count(s->actions[i], count));
            if (i == TIDE__ACTION_FREE_COMPLETED && s->late_frees > 0) {
                fprintf(out, "   %s late%s", tide__format_count(s->late_frees, count),
                        width < NARROW ? "" : " (record_stream)");
            }
            putc('\n', out);
        }
    }
}

static void print_live(FILE *out, int width, const tide__gpu_summary *s) {
    char peak[TIDE__BYTES_TEXT], start[TIDE__BYTES_TEXT], end[TIDE__BYTES_TEXT];
    char start_blocks[TIDE__COUNT_TEXT], end_blocks[TIDE__COUNT_TEXT], text[256];
    snprintf(text, sizeof text, "live: peak %s; at the start %s in %s block(s); at the end %s in %s",
             tide__format_bytes(s->peak_live_bytes, peak), tide__format_bytes(s->start_bytes, start),
             tide__format_count(s->start_blocks, start_blocks), tide__format_bytes(s->end_bytes, end),
             tide__format_count(s->end_blocks, end_blocks));
    tide__print_wrapped(out, width, 2, text);
}

/* Where there is no room, what all of a phase asked for in sum is left out. */
static void print_phases(FILE *out, int width, const tide__trace *t, const tide__gpu_summary *s) {
    char events[TIDE__COUNT_TEXT], allocations[TIDE__COUNT_TEXT];
    char bytes[TIDE__BYTES_TEXT], peak[TIDE__BYTES_TEXT];
    bool narrow = width < NARROW;
    int columns = name_columns(width, narrow ? 42 : 60), count = narrow ? 11 : 14;
    fprintf(out, "  phases %*s%*s%*s", columns - 3, "", count, "events", count + narrow, "allocations");
    if (!narrow) fprintf(out, "%13s", "allocated");
    fprintf(out, "%13s\n", "peak live");
    for (size_t i = 0; i < s->phase_count && i < ROWS; i++) {
        const tide__phase_summary *p = &s->phases[i];
        fputs("    ", out);
        tide__print_name(out, p->phase == 0 ? "(none)" : t->strings[p->phase], columns);
        fprintf(out, "  %*s%*s", count, tide__format_count(p->events, events), count + narrow,
                tide__format_count(p->allocations, allocations));
        if (!narrow) fprintf(out, "%13s", tide__format_bytes(p->allocated_bytes, bytes));
        fprintf(out, "%13s\n", tide__format_bytes(p->peak_live_bytes, peak));
    }
    print_more(out, s->phase_count);
}

static void print_counts(FILE *out, const char *name, const tide__count_summary *c) {
    char events[TIDE__COUNT_TEXT], allocations[TIDE__COUNT_TEXT];
    fprintf(out, "    %-18s%14s%14s\n", name, tide__format_count(c->events, events),
            tide__format_count(c->allocations, allocations));
}

static void print_streams(FILE *out, const tide__trace_gpu *gpu, const tide__gpu_summary *s) {
    char name[48];
    fprintf(out, "  %-20s%14s%14s\n", "streams", "events", "allocations");
    for (size_t i = 0; i < gpu->stream_count && i < ROWS; i++) {
        if (s->streams[i].events == 0) continue;
        snprintf(name, sizeof name, "0x%llx", (unsigned long long)gpu->streams[i]);
        print_counts(out, name, &s->streams[i]);
    }
    print_more(out, gpu->stream_count);
    if (gpu->pool_count == 1) return;
    fprintf(out, "  %-20s%14s%14s\n", "pools", "events", "allocations");
    for (size_t i = 0; i < gpu->pool_count && i < ROWS; i++) {
        snprintf(name, sizeof name, "(%lld, %lld)", (long long)gpu->pools[i].id[0],
                 (long long)gpu->pools[i].id[1]);
        print_counts(out, name, &s->pools[i]);
    }
    print_more(out, gpu->pool_count);
}

static void print_sizes(FILE *out, int width, const tide__gpu_summary *s) {
    uint64_t most = 1;
    int bar_columns = width < 46 + 24 ? width - 46 : 24;
    for (int i = 0; i < TIDE__SUMMARY_BUCKETS; i++) most = tide__max(most, s->bucket_allocations[i]);
    fprintf(out, "  %-18s%11s%13s\n", "sizes asked, from", "allocations", "bytes");
    for (int i = 0; i < TIDE__SUMMARY_BUCKETS; i++) {
        char from[TIDE__BYTES_TEXT], bytes[TIDE__BYTES_TEXT], count[TIDE__COUNT_TEXT];
        if (s->bucket_allocations[i] == 0) continue;
        fprintf(out, "    %12s%15s%13s  ", tide__format_bytes(i == 0 ? 0 : UINT64_C(1) << i, from),
                tide__format_count(s->bucket_allocations[i], count),
                tide__format_bytes(s->bucket_bytes[i], bytes));
        int bar = (int)((double)s->bucket_allocations[i] / (double)most * bar_columns + 0.5);
        while (bar-- > 0) putc('#', out);
        putc('\n', out);
    }
}

static void print_notes(FILE *out, int width, const notes *n) {
    if (n->count == 0) return;
    fputs("  missing\n", out);
    for (size_t i = 0; i < n->count; i++) tide__print_wrapped(out, width, 4, n->text[i]);
}

static void print_gpu(const tide__info *info, FILE *out, int width, size_t i) {
    const tide__trace_gpu *gpu = &info->trace->gpus[i];
    const tide__gpu_summary *s = &info->gpus[i];
    char count[TIDE__COUNT_TEXT], span[TIDE__COUNT_TEXT], time[TIME_TEXT], title[256];
    const char *policy = tide__recorded_policy_name(s->policy);
    notes n;
    size_t at = (size_t)snprintf(title, sizeof title, "GPU %d: %s events", gpu->device,
                                 tide__format_count(gpu->event_count, count));
    if (s->first_us != 0)
        at +=
            (size_t)snprintf(title + at, sizeof title - at, " over %s from %s",
                             tide__format_seconds((double)s->last_us / 1e6 - (double)s->first_us / 1e6, span),
                             format_time(s->first_us, time));
    if (policy != NULL) snprintf(title + at, sizeof title - at, ", recorded policy %s", policy);
    tide__print_wrapped(out, width, 0, title);
    if (info->trace->has_segments) {
        fprintf(out, "  at the end %zu segments with %zu blocks\n", gpu->segment_count, gpu->block_count);
    }
    if (gpu->event_count > 0) {
        print_actions(out, width, s);
        print_live(out, width, s);
        print_streams(out, gpu, s);
        print_phases(out, width, info->trace, s);
        print_sizes(out, width, s);
    }
    gpu_notes(&n, info, i);
    print_notes(out, width, &n);
}

static void print_settings(const tide__trace *t, FILE *out, int width) {
    if (t->setting_count == 0) return;
    fputs("  settings\n", out);
    for (size_t i = 0; i < t->setting_count && i < 2 * ROWS; i++) {
        const char *value = t->strings[t->settings[i].value];
        int names = width < 60 ? width - 26 : 34, columns = width - names - 6;
        fputs("    ", out);
        tide__print_name(out, t->strings[t->settings[i].name], names);
        putc(' ', out);
        int length = strlen(value) < (size_t)columns ? (int)strlen(value) : columns;
        tide__print_name(out, value, length);
        putc('\n', out);
    }
}

static void print_file_name(FILE *out, const char *file) { tide__print_name(out, file, (int)strlen(file)); }

void tide__report_info_text(const tide__info *info, FILE *out, int width) {
    if (width < LEAST_WIDTH) width = LEAST_WIDTH;
    const tide__trace *t = info->trace;
    char stored[TIDE__BYTES_TEXT], data[TIDE__BYTES_TEXT], count[TIDE__COUNT_TEXT], stored_as[96], text[192];
    notes n;
    print_file_name(out, info->file);
    bool packed = strcmp(t->compression, "none") != 0;
    snprintf(stored_as, sizeof stored_as, packed ? "of %s holding %s" : "not compressed", t->compression,
             tide__format_bytes(t->data_bytes, data));
    snprintf(text, sizeof text, "pickle protocol %d, %s%s %s", t->pickle_protocol,
             tide__format_bytes(t->file_bytes, stored), packed ? "" : ",", stored_as);
    putc('\n', out);
    tide__print_wrapped(out, width, 2, text);
    if (t->stack_count > 1) fprintf(out, "  %zu different stacks\n", t->stack_count - 1);
    if (t->annotation_count > 0) {
        fprintf(out, "  %s annotations\n", tide__format_count(t->annotation_count, count));
    }
    print_settings(t, out, width);
    file_notes(&n, info);
    print_notes(out, width, &n);
    for (size_t i = 0; i < t->gpu_count; i++) print_gpu(info, out, width, i);
}

/* ---- JSON ---- */

static void json_notes(tide__json *j, const notes *n) {
    tide__json_key(j, "missing");
    tide__json_array(j);
    for (size_t i = 0; i < n->count; i++) tide__json_string(j, n->text[i]);
    tide__json_array_end(j);
}

static void json_live(tide__json *j, const char *key, uint64_t blocks, uint64_t bytes) {
    tide__json_key(j, key);
    tide__json_object(j);
    tide__json_key_u64(j, "blocks", blocks);
    tide__json_key_u64(j, "bytes", bytes);
    tide__json_object_end(j);
}

static void json_counts(tide__json *j, const tide__count_summary *c) {
    tide__json_key_u64(j, "events", c->events);
    tide__json_key_u64(j, "allocations", c->allocations);
    tide__json_object_end(j);
}

static void json_streams(tide__json *j, const tide__trace_gpu *gpu, const tide__gpu_summary *s) {
    tide__json_key(j, "streams");
    tide__json_array(j);
    for (size_t i = 0; i < gpu->stream_count; i++) {
        tide__json_object(j);
        tide__json_key_u64(j, "stream", gpu->streams[i]);
        json_counts(j, &s->streams[i]);
    }
    tide__json_array_end(j);
    tide__json_key(j, "pools");
    tide__json_array(j);
    for (size_t i = 0; i < gpu->pool_count; i++) {
        tide__json_object(j);
        tide__json_key(j, "id");
        tide__json_array(j);
        tide__json_i64(j, gpu->pools[i].id[0]);
        tide__json_i64(j, gpu->pools[i].id[1]);
        tide__json_array_end(j);
        json_counts(j, &s->pools[i]);
    }
    tide__json_array_end(j);
}

static void json_sizes(tide__json *j, const tide__gpu_summary *s) {
    tide__json_key(j, "sizes");
    tide__json_array(j);
    for (int i = 0; i < TIDE__SUMMARY_BUCKETS; i++) {
        if (s->bucket_allocations[i] == 0) continue;
        tide__json_object(j);
        tide__json_key_u64(j, "from", i == 0 ? 0 : UINT64_C(1) << i);
        tide__json_key_u64(j, "allocations", s->bucket_allocations[i]);
        tide__json_key_u64(j, "bytes", s->bucket_bytes[i]);
        tide__json_object_end(j);
    }
    tide__json_array_end(j);
}

static void json_phases(tide__json *j, const tide__trace *t, const tide__gpu_summary *s) {
    tide__json_key(j, "phases");
    tide__json_array(j);
    for (size_t i = 0; i < s->phase_count; i++) {
        const tide__phase_summary *p = &s->phases[i];
        tide__json_object(j);
        tide__json_key_string(j, "phase", t->strings[p->phase]);
        tide__json_key_u64(j, "events", p->events);
        tide__json_key_u64(j, "allocations", p->allocations);
        tide__json_key_u64(j, "allocated_bytes", p->allocated_bytes);
        tide__json_key_u64(j, "peak_live", p->peak_live_bytes);
        tide__json_object_end(j);
    }
    tide__json_array_end(j);
}

static void json_actions(tide__json *j, const tide__gpu_summary *s) {
    tide__json_key(j, "actions");
    tide__json_object(j);
    for (int i = 0; i < TIDE__ACTION_COUNT; i++) {
        if (s->actions[i] > 0) tide__json_key_u64(j, tide__action_name((tide__action)i), s->actions[i]);
    }
    tide__json_object_end(j);
}

static void json_gpu(tide__json *j, const tide__info *info, size_t i) {
    const tide__trace_gpu *gpu = &info->trace->gpus[i];
    const tide__gpu_summary *s = &info->gpus[i];
    notes n;
    tide__json_object(j);
    tide__json_key_i64(j, "gpu", gpu->device);
    tide__json_key_u64(j, "events", gpu->event_count);
    json_actions(j, s);
    tide__json_key_i64(j, "first_us", s->first_us);
    tide__json_key_i64(j, "last_us", s->last_us);
    tide__json_key_double(j, "seconds", (double)s->last_us / 1e6 - (double)s->first_us / 1e6);
    tide__json_key_string(j, "recorded_policy", tide__recorded_policy_name(s->policy));
    tide__json_key_u64(j, "peak_live", s->peak_live_bytes);
    json_live(j, "live_start", s->start_blocks, s->start_bytes);
    json_live(j, "live_end", s->end_blocks, s->end_bytes);
    tide__json_key_u64(j, "late_frees", s->late_frees);
    tide__json_key_u64(j, "with_stack", s->with_stack);
    tide__json_key_u64(j, "without_phase", s->without_phase);
    tide__json_key_u64(j, "segments", gpu->segment_count);
    tide__json_key_u64(j, "blocks", gpu->block_count);
    json_streams(j, gpu, s);
    json_phases(j, info->trace, s);
    json_sizes(j, s);
    gpu_notes(&n, info, i);
    json_notes(j, &n);
    tide__json_object_end(j);
}

void tide__report_info_json(const tide__info *info, FILE *out) {
    const tide__trace *t = info->trace;
    tide__json j;
    notes n;
    tide__json_open(&j, out);
    tide__json_object(&j);
    tide__json_key_string(&j, "file", info->file);
    tide__json_key_i64(&j, "pickle_protocol", t->pickle_protocol);
    tide__json_key_string(&j, "compression", t->compression);
    tide__json_key_u64(&j, "file_bytes", t->file_bytes);
    tide__json_key_u64(&j, "data_bytes", t->data_bytes);
    tide__json_key_bool(&j, "has_segments", t->has_segments);
    tide__json_key_u64(&j, "stacks", t->stack_count - 1);
    tide__json_key_u64(&j, "annotations", t->annotation_count);
    tide__json_key(&j, "settings");
    tide__json_object(&j);
    for (size_t i = 0; i < t->setting_count; i++) {
        tide__json_key_string(&j, t->strings[t->settings[i].name], t->strings[t->settings[i].value]);
    }
    tide__json_object_end(&j);
    tide__json_key(&j, "gpus");
    tide__json_array(&j);
    for (size_t i = 0; i < t->gpu_count; i++) json_gpu(&j, info, i);
    tide__json_array_end(&j);
    file_notes(&n, info);
    json_notes(&j, &n);
    tide__json_object_end(&j);
    tide__json_close(&j);
}
