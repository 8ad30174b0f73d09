/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By now the millions are in place: an entry is in the records' array, in the
 * order of the file, and a device's trace is a list with one run of it. So the
 * array is the trace, and each GPU gets its slice. Only where a list is put
 * together otherwise (entries or lists that are in the file once and used twice)
 * are events copied.
 */
#include "trace/snapshot.h"

#include <stdlib.h>
#include <string.h>

typedef struct builder {
    tide__pickle *machine;
    tide__records *records;
    tide__trace *trace;
    const tide__object *traces[TIDE__DEVICE_MAX]; /* each device's list of entries */
    size_t trace_count;
    const tide__object *segments, *settings;
} builder;

static tide_status fail_at(builder *b, uint64_t offset, const char *what) {
    return tide__source_fail(b->machine->source, TIDE_CORRUPT, offset, "%s", what);
}

static tide_status fail_memory(builder *b) {
    tide__source *s = b->machine->source;
    return tide__source_fail(s, TIDE_NO_HOST_MEMORY, s->data_bytes, "out of host memory");
}

/* count*bytes, metered; never NULL on success. */
static tide_status allocate(builder *b, size_t count, size_t bytes, void *out) {
    size_t total;
    tide__source *s = b->machine->source;
    if (!tide__mul_size(count, bytes, &total)) {
        return fail_memory(b);
    }
    tide_status status = tide__meter_take(b->machine->meter, total);
    if (status != TIDE_OK) {
        return tide__source_fail(s, status, s->data_bytes, "%s", tide_last_error());
    }
    void *p = calloc(count > 0 ? count : 1, bytes);
    if (p == NULL) {
        return fail_memory(b);
    }
    memcpy(out, &p, sizeof p);
    return TIDE_OK;
}

/* ---- What is where ---- */

/* What was wrong with the first dict that was nearly a record, else `what`. */
static tide_status fail_shape(builder *b, const tide__object *list, const char *what) {
    if (b->records->bad[0] != 0) {
        return fail_at(b, b->records->bad_offset, b->records->bad);
    }
    return fail_at(b, list->offset, what);
}

static tide_status take_traces(builder *b, const tide__object *list) {
    for (tide__walk w = tide__walk_start(list); tide__walk_next(&w);) {
        const tide__object *trace = tide__as_object(w.value, TIDE__KIND_LIST);
        if (tide__tag_of(w.value) == TIDE__TAG_STACK && tide__payload(w.value) == 0) {
            trace = NULL; /* an empty list that is also an entry's frames */
        } else if (trace == NULL) {
            return fail_shape(b, list, "an item of the list of traces is not a list");
        }
        if (b->trace_count == TIDE__DEVICE_MAX) {
            return fail_at(b, list->offset, "traces of more than 1024 devices");
        }
        b->traces[b->trace_count++] = trace;
    }
    return TIDE_OK;
}

static tide_status take_dict(builder *b, const tide__object *dict) {
    tide__value v;
    if (!tide__dict_get(dict, TIDE__WORD_device_traces, &v)) {
        return fail_at(b, dict->offset,
                       "no 'device_traces': not a snapshot of torch.cuda.memory._snapshot()");
    }
    const tide__object *traces = tide__as_object(v, TIDE__KIND_LIST);
    if (traces == NULL) {
        return fail_at(b, dict->offset, "'device_traces' is not a list of lists");
    }
    if (tide__dict_get(dict, TIDE__WORD_segments, &v)) {
        b->segments = tide__as_object(v, TIDE__KIND_LIST);
        if (b->segments == NULL && v != TIDE__VALUE_SINGLE(TIDE__SINGLE_NONE) &&
            v != TIDE__VALUE(TIDE__TAG_STACK, 0)) {
            return fail_at(b, dict->offset, "'segments' is not a list");
        }
    }
    if (tide__dict_get(dict, TIDE__WORD_allocator_settings, &v)) {
        b->settings = tide__as_object(v, TIDE__KIND_DICT);
    }
    if (tide__dict_get(dict, TIDE__WORD_external_annotations, &v)) {
        const tide__object *notes = tide__as_object(v, TIDE__KIND_LIST);
        b->trace->annotation_count = notes != NULL ? notes->length : 0;
    }
    return take_traces(b, traces);
}

static tide_status take_top(builder *b, tide__value top) {
    const tide__object *dict = tide__as_object(top, TIDE__KIND_DICT);
    const tide__object *list = tide__as_object(top, TIDE__KIND_LIST);
    if (dict != NULL) {
        return take_dict(b, dict);
    }
    if (list == NULL) {
        return fail_at(b, 0, "not a snapshot: the pickle is neither a dict nor a list");
    }
    tide__walk w = tide__walk_start(list);
    if (!tide__walk_next(&w)) {
        return fail_at(b, list->offset, "not a snapshot: an empty list");
    }
    if (tide__tag_of(w.value) == TIDE__TAG_EVENT) {
        b->traces[b->trace_count++] = list;
        return TIDE_OK;
    }
    if (tide__tag_of(w.value) == TIDE__TAG_SEGMENT) {
        b->segments = list;
        return TIDE_OK;
    }
    if (tide__as_object(w.value, TIDE__KIND_LIST) == NULL) {
        return fail_shape(b, list,
                          "not a snapshot: the items of the list are neither traces, entries nor "
                          "segments");
    }
    return take_traces(b, list);
}

/* ---- Events ---- */

/* The list's only run of events. */
static bool one_run(const tide__object *list, size_t *first, size_t *count) {
    *first = *count = 0;
    if (list == NULL || list->count == 0) {
        return true;
    }
    if (list->count != 2 || tide__tag_of(list->items[0]) != TIDE__TAG_EVENT) {
        return false;
    }
    *first = tide__payload(list->items[0]);
    *count = list->length;
    return true;
}

/* Gives each GPU its slice of the records' array; false where that cannot be. */
static bool slice_events(builder *b) {
    tide__trace *t = b->trace;
    size_t previous_end = 0;
    for (size_t i = 0; i < b->trace_count; i++) {
        size_t first, count;
        if (!one_run(b->traces[i], &first, &count)) {
            return false;
        }
        if (count > 0 && first < previous_end) { /* used twice, or not in the file's order */
            return false;
        }
        t->gpus[i].events = count > 0 ? b->records->events + first : NULL;
        t->gpus[i].event_count = count;
        previous_end = count > 0 ? first + count : previous_end;
    }
    return true;
}

static tide_status copy_events(builder *b) {
    tide__trace *t = b->trace;
    uint64_t total = 0;
    for (size_t i = 0; i < b->trace_count; i++) {
        uint64_t length = b->traces[i] != NULL ? b->traces[i]->length : 0;
        if (length > SIZE_MAX - total) return fail_memory(b);
        total += length;
    }
    tide__trace_event *events, *at;
    tide_status status = allocate(b, total, sizeof *events, &events);
    if (status != TIDE_OK) {
        return status;
    }
    at = t->storage->events = events;
    for (size_t i = 0; i < b->trace_count; i++) {
        t->gpus[i].events = at;
        if (b->traces[i] == NULL) continue;
        for (tide__walk w = tide__walk_start(b->traces[i]); tide__walk_next(&w);) {
            if (tide__tag_of(w.value) != TIDE__TAG_EVENT) {
                return fail_shape(b, b->traces[i], "an item of a trace is not an entry with an 'action'");
            }
            *at++ = b->records->events[tide__payload(w.value)];
        }
        t->gpus[i].event_count = (size_t)(at - t->gpus[i].events);
    }
    return TIDE_OK;
}

/* Gives back what the array has grown too far. */
static void trim_events(tide__records *r) {
    if (r->event_count > 0) {
        tide__trace_event *exact = realloc(r->events, r->event_count * sizeof *exact);
        r->events = exact != NULL ? exact : r->events;
    }
}

static tide_status take_events(builder *b) {
    trim_events(b->records);
    if (!slice_events(b)) {
        return copy_events(b);
    }
    b->trace->storage->events = b->records->events;
    b->records->events = NULL;
    return TIDE_OK;
}

/* ---- Segments and blocks ---- */

static int by_device_and_address(const void *left, const void *right) {
    const tide__record_segment *a = left, *b = right;
    if (a->device != b->device) {
        return a->device < b->device ? -1 : 1;
    }
    return a->segment.addr < b->segment.addr ? -1 : a->segment.addr > b->segment.addr;
}

static int by_address(const void *left, const void *right) {
    const tide__trace_block *a = left, *b = right;
    return a->addr < b->addr ? -1 : a->addr > b->addr;
}

/* The segments that the file's list names, in order; one array for all devices. */
static tide_status list_segments(builder *b, tide__record_segment **out, size_t *count) {
    *out = NULL;
    *count = 0;
    if (b->segments == NULL || b->segments->length == 0) {
        return TIDE_OK;
    }
    tide_status status = allocate(b, b->segments->length, sizeof **out, out);
    for (tide__walk w = tide__walk_start(b->segments); status == TIDE_OK && tide__walk_next(&w);) {
        if (tide__tag_of(w.value) != TIDE__TAG_SEGMENT) {
            return fail_shape(b, b->segments,
                              "an item of 'segments' has no 'address', 'total_size' and 'blocks'");
        }
        (*out)[(*count)++] = b->records->segments[tide__payload(w.value)];
    }
    if (status == TIDE_OK) {
        qsort(*out, *count, sizeof **out, by_device_and_address);
    }
    return status;
}

static tide_status take_blocks(builder *b, tide__trace_gpu *gpu, const tide__record_segment *from,
                               tide__trace_segment *segment) {
    uint64_t addr = segment->addr;
    segment->first_block = gpu->block_count;
    if (from->blocks == NULL) {
        return TIDE_OK;
    }
    for (tide__walk w = tide__walk_start(from->blocks); tide__walk_next(&w);) {
        if (tide__tag_of(w.value) != TIDE__TAG_BLOCK) {
            return fail_shape(b, from->blocks, "an item of a segment's 'blocks' has no 'size' and 'state'");
        }
        tide__trace_block *block = &gpu->blocks[gpu->block_count++];
        *block = b->records->blocks[tide__payload(w.value)];
        if (block->addr == TIDE__NO_ADDRESS) {
            block->addr = addr;
        }
        addr = block->addr + block->size;
        segment->block_count++;
    }
    if (segment->block_count > 1) {
        qsort(gpu->blocks + segment->first_block, segment->block_count, sizeof *gpu->blocks, by_address);
    }
    return TIDE_OK;
}

static tide_status take_gpu_segments(builder *b, tide__trace_gpu *gpu, const tide__record_segment *from,
                                     size_t count) {
    uint64_t blocks = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t more = from[i].blocks != NULL ? from[i].blocks->length : 0;
        if (more > SIZE_MAX - blocks) return fail_memory(b);
        blocks += more;
    }
    tide_status status = allocate(b, count, sizeof *gpu->segments, &gpu->segments);
    if (status == TIDE_OK) {
        status = allocate(b, blocks, sizeof *gpu->blocks, &gpu->blocks);
    }
    for (size_t i = 0; i < count && status == TIDE_OK; i++) {
        gpu->segments[i] = from[i].segment;
        gpu->segment_count++;
        status = take_blocks(b, gpu, &from[i], &gpu->segments[i]);
    }
    return status;
}

static tide_status take_segments(builder *b, const tide__record_segment *segments, size_t count) {
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < count && status == TIDE_OK;) {
        size_t end = i;
        while (end < count && segments[end].device == segments[i].device) {
            end++;
        }
        status = take_gpu_segments(b, &b->trace->gpus[segments[i].device], segments + i, end - i);
        i = end;
    }
    return status;
}

/* ---- GPUs: their numbers for streams and pools ---- */

/* Numbers of all devices together, made into one GPU's own: 0 stays 0. */
typedef struct renumbering {
    uint32_t *own; /* by the common number: the GPU's + 1; 0: not seen */
    uint16_t *common;
    size_t count;
} renumbering;

static void renumber(renumbering *n, uint16_t *number) {
    if (n->own[*number] == 0) {
        n->common[n->count++] = *number;
        n->own[*number] = (uint32_t)n->count;
    }
    *number = (uint16_t)(n->own[*number] - 1);
}

static tide_status open_renumbering(builder *b, renumbering *n, size_t count) {
    tide_status status = allocate(b, count, sizeof *n->own, &n->own);
    if (status == TIDE_OK) {
        status = allocate(b, count, sizeof *n->common, &n->common);
    }
    if (status == TIDE_OK) {
        uint16_t zero = 0;
        renumber(n, &zero);
    }
    return status;
}

static void renumber_gpu(tide__trace_gpu *gpu, renumbering *streams, renumbering *pools) {
    for (size_t i = 0; i < gpu->event_count; i++) {
        renumber(streams, &gpu->events[i].stream);
        renumber(pools, &gpu->events[i].pool);
    }
    for (size_t i = 0; i < gpu->segment_count; i++) {
        renumber(streams, &gpu->segments[i].stream);
        renumber(pools, &gpu->segments[i].pool);
    }
}

/* What is alone keeps the numbers it has. */
static void keep_numbers(renumbering *n, size_t count) {
    for (size_t i = n->count; i < count; i++) {
        n->common[n->count++] = (uint16_t)i;
    }
}

static tide_status take_numbers(builder *b, tide__trace_gpu *gpu, renumbering *streams, renumbering *pools) {
    tide__records *r = b->records;
    tide_status status = open_renumbering(b, streams, r->streams.count);
    if (status == TIDE_OK) {
        status = open_renumbering(b, pools, r->pools.count);
    }
    if (status != TIDE_OK) {
        return status;
    }
    if (b->trace->gpu_count > 1) {
        renumber_gpu(gpu, streams, pools);
    } else {
        keep_numbers(streams, r->streams.count);
        keep_numbers(pools, r->pools.count);
    }
    status = allocate(b, streams->count, sizeof *gpu->streams, &gpu->streams);
    if (status == TIDE_OK) {
        status = allocate(b, pools->count, sizeof *gpu->pools, &gpu->pools);
    }
    for (size_t i = 0; i < streams->count && status == TIDE_OK; i++) {
        gpu->streams[gpu->stream_count++] = r->streams.keys[streams->common[i]];
    }
    for (size_t i = 0; i < pools->count && status == TIDE_OK; i++) {
        gpu->pools[gpu->pool_count++] = b->machine->intern.pairs[r->pools.keys[pools->common[i]]];
    }
    return status;
}

static tide_status take_all_numbers(builder *b) {
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < b->trace->gpu_count && status == TIDE_OK; i++) {
        renumbering streams = {0}, pools = {0};
        status = take_numbers(b, &b->trace->gpus[i], &streams, &pools);
        free(streams.own);
        free(streams.common);
        free(pools.own);
        free(pools.common);
    }
    return status;
}

static tide_status take_gpus(builder *b) {
    tide__record_segment *segments;
    size_t count;
    tide_status status = list_segments(b, &segments, &count);
    if (status == TIDE_OK) {
        size_t gpus = count > 0 ? (size_t)segments[count - 1].device + 1 : 1;
        gpus = gpus > b->trace_count ? gpus : b->trace_count;
        status = allocate(b, gpus, sizeof *b->trace->gpus, &b->trace->gpus);
        for (size_t i = 0; i < gpus && status == TIDE_OK; i++) {
            b->trace->gpus[b->trace->gpu_count++].device = (int)i;
        }
    }
    if (status == TIDE_OK) {
        status = take_events(b);
    }
    if (status == TIDE_OK) {
        status = take_segments(b, segments, count);
        b->trace->has_segments = count > 0;
    }
    free(segments);
    return status == TIDE_OK ? take_all_numbers(b) : status;
}

/* ---- Strings, stacks, settings ---- */

static tide_status take_settings(builder *b) {
    tide__trace *t = b->trace;
    tide__intern *intern = &b->machine->intern;
    if (b->settings == NULL) {
        return TIDE_OK;
    }
    tide_status status = allocate(b, b->settings->count / 2, sizeof *t->settings, &t->settings);
    for (size_t i = 0; i < b->settings->count && status == TIDE_OK; i += 2) {
        char name[128], value[1024];
        tide__trace_setting *setting = &t->settings[t->setting_count];
        tide__value_text(b->machine, b->settings->items[i], name, sizeof name);
        tide__value_text(b->machine, b->settings->items[i + 1], value, sizeof value);
        status = tide__intern_string(intern, name, strlen(name), &setting->name);
        if (status == TIDE_OK) {
            status = tide__intern_string(intern, value, strlen(value), &setting->value);
        }
        if (status != TIDE_OK) {
            return tide__source_fail(b->machine->source, status, b->settings->offset, "%s",
                                     tide_last_error());
        }
        t->setting_count++;
    }
    return status;
}

static tide_status take_stacks(builder *b) {
    tide__trace *t = b->trace;
    tide__intern *intern = &b->machine->intern;
    tide_status status = allocate(b, intern->stack_frame_count, sizeof *t->frames, &t->frames);
    if (status != TIDE_OK) {
        return status;
    }
    for (size_t i = 0; i < intern->stack_frame_count; i++) {
        t->frames[i] = intern->frames[intern->stack_frames[i]];
    }
    t->frame_count = intern->stack_frame_count;
    t->stack_start = intern->stack_start;
    t->stack_count = intern->stack_count;
    intern->stack_start = NULL;
    return TIDE_OK;
}

static void take_strings(builder *b) {
    tide__trace *t = b->trace;
    tide__intern *intern = &b->machine->intern;
    t->strings = intern->strings;
    t->string_count = intern->string_count;
    t->storage->chunks = intern->chunks;
    intern->strings = NULL;
    intern->chunks = NULL;
}

tide_status tide__snapshot_trace(tide__pickle *m, tide__records *r, tide__value top, tide__trace *t) {
    builder *b = calloc(1, sizeof *b);
    t->storage = calloc(1, sizeof *t->storage);
    if (b == NULL || t->storage == NULL) {
        free(b);
        return tide__source_fail(m->source, TIDE_NO_HOST_MEMORY, 0, "out of host memory");
    }
    *b = (builder){.machine = m, .records = r, .trace = t};
    tide_status status = take_top(b, top);
    if (status == TIDE_OK) {
        tide__pickle_drop_memo(m);
        status = take_gpus(b);
    }
    if (status == TIDE_OK) {
        status = take_settings(b);
    }
    if (status == TIDE_OK) {
        status = take_stacks(b);
    }
    if (status == TIDE_OK) {
        take_strings(b);
    }
    free(b);
    return status;
}

/* ---- Reading a file ---- */

static tide_status run(tide__pickle *m, tide__records *r, tide__trace *t) {
    tide__value top;
    tide_status status = tide__pickle_run(m, &top);
    if (status != TIDE_OK) {
        /* A dict that should have been a record may be why the rest took too much. */
        return m->meter->refused && r->bad[0] != 0
                   ? tide__source_fail(m->source, TIDE_CORRUPT, r->bad_offset, "%s", r->bad)
                   : status;
    }
    t->pickle_protocol = m->protocol;
    t->compression = m->source->compression;
    t->file_bytes = m->source->file_bytes;
    t->data_bytes = m->source->data_bytes;
    return tide__snapshot_trace(m, r, top, t);
}

tide_status tide__trace_read(const char *path, tide__progress progress, void *user, tide__trace **out) {
    tide__meter meter = {.limit = TIDE__METER_ALLOWANCE};
    tide__source source;
    tide__pickle machine;
    tide__records records;
    tide_status status = tide__source_open(&source, path, &meter, progress, user);
    if (status != TIDE_OK) {
        return status;
    }
    tide__trace *t = calloc(1, sizeof *t);
    status = tide__pickle_open(&machine, &source, &meter);
    tide_status opened = tide__records_open(&records, &machine);
    status = status == TIDE_OK ? opened : status;
    if (t == NULL || status != TIDE_OK) {
        status = tide__fail(TIDE_NO_HOST_MEMORY, "%s: out of host memory", source.name);
    } else {
        status = run(&machine, &records, t);
    }
    tide__records_close(&records);
    tide__pickle_close(&machine);
    tide__source_close(&source);
    if (status != TIDE_OK) {
        tide__trace_free(t);
        return status;
    }
    *out = t;
    return TIDE_OK;
}
