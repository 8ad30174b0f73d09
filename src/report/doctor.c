/* SPDX-License-Identifier: Apache-2.0 */
#include "report/doctor.h"

#include <inttypes.h>

#include "report/json.h"
#include "report/text.h"

static const char *kind_name(tide__finding_kind kind) {
    return kind == TIDE__FINDING_MISSING ? "missing" : "small";
}

static void print_bytes(FILE *out, const char *name, uint64_t bytes) {
    char text[TIDE__BYTES_TEXT];
    fprintf(out, "  %-24s %s\n", name, bytes != UINT64_MAX ? tide__format_bytes(bytes, text) : "no limit");
}

static void print_count(FILE *out, const char *name, uint64_t count) {
    char text[TIDE__COUNT_TEXT];
    fprintf(out, "  %-24s %s\n", name, count != UINT64_MAX ? tide__format_count(count, text) : "no limit");
}

static void print_gpu(FILE *out, int number, const tide__doctor_gpu *g) {
    const tide__device_properties *p = &g->properties;
    char version[32];
    fprintf(out, "GPU %d: %s\n", number, p->name);
    print_bytes(out, "memory", p->total_bytes);
    if (g->free_bytes != UINT64_MAX) {
        print_bytes(out, "free now", g->free_bytes);
    }
    snprintf(version, sizeof version, "%d.%d", p->compute_major, p->compute_minor);
    fprintf(out, "  %-24s %s\n", "compute capability", version);
    print_bytes(out, "chunks in steps of", p->granularity);
    fprintf(out, "  %-24s %s%s%s%s\n", "chunks may be",
            p->exportable ? "exported (descriptors" : "kept private",
            p->exportable && p->fabric ? ", fabric" : "", p->exportable ? ")" : "",
            p->rdma ? ", used by RDMA" : "");
    if (p->numa_node >= 0) {
        fprintf(out, "  %-24s %d\n", "NUMA node of the host", p->numa_node);
    }
    fputc('\n', out);
}

void tide__report_doctor_text(const tide__doctor *d, FILE *out, int width) {
    const tide__doctor_host *h = &d->host;
    if (d->gpu_count > 0) {
        fprintf(out, "driver: CUDA %d.%d\n\n", d->gpus[0].properties.driver_version / 1000,
                d->gpus[0].properties.driver_version % 1000 / 10);
    }
    for (int i = 0; i < d->gpu_count; i++) {
        print_gpu(out, i, &d->gpus[i]);
    }
    fprintf(out, "host\n");
    print_bytes(out, "memory", h->memory_bytes);
    print_bytes(out, "available now", h->available_bytes);
    print_bytes(out, "limit of the container", h->cgroup_bytes);
    print_bytes(out, "lockable (ulimit -l)", h->locked_bytes);
    print_count(out, "open files (ulimit -n)", h->open_files);
    print_count(out, "mappings", h->mappings);
    fputc('\n', out);
    if (d->finding_count == 0) {
        fprintf(out, "nothing is missing\n");
    }
    for (size_t i = 0; i < d->finding_count; i++) {
        tide__sentences s = {.length = 0};
        tide__say(&s, "%s: %s.", d->findings[i].kind == TIDE__FINDING_MISSING ? "missing" : "mind",
                  d->findings[i].text);
        tide__print_wrapped(out, width, 2, s.text);
    }
}

static void key_limit(tide__json *j, const char *key, uint64_t value) {
    tide__json_key(j, key);
    if (value != UINT64_MAX) {
        tide__json_u64(j, value);
    } else {
        tide__json_null(j);
    }
}

static void json_gpu(tide__json *j, int number, const tide__doctor_gpu *g) {
    const tide__device_properties *p = &g->properties;
    tide__json_object(j);
    tide__json_key_i64(j, "gpu", number);
    tide__json_key_string(j, "name", p->name);
    tide__json_key_u64(j, "total_bytes", p->total_bytes);
    key_limit(j, "free_bytes", g->free_bytes);
    tide__json_key_u64(j, "granularity", p->granularity);
    tide__json_key_i64(j, "compute_major", p->compute_major);
    tide__json_key_i64(j, "compute_minor", p->compute_minor);
    tide__json_key_bool(j, "exportable", p->exportable);
    tide__json_key_bool(j, "fabric", p->fabric);
    tide__json_key_bool(j, "rdma", p->rdma);
    tide__json_key_i64(j, "numa_node", p->numa_node);
    tide__json_object_end(j);
}

static void json_host(tide__json *j, const tide__doctor_host *h) {
    tide__json_object(j);
    key_limit(j, "memory_bytes", h->memory_bytes);
    key_limit(j, "available_bytes", h->available_bytes);
    key_limit(j, "cgroup_bytes", h->cgroup_bytes);
    key_limit(j, "locked_bytes", h->locked_bytes);
    key_limit(j, "open_files", h->open_files);
    key_limit(j, "mappings", h->mappings);
    tide__json_key_bool(j, "pidfd_getfd", h->pidfd_getfd);
    tide__json_key_bool(j, "membarrier", h->membarrier);
    tide__json_object_end(j);
}

void tide__report_doctor_json(const tide__doctor *d, FILE *out) {
    tide__json j;
    tide__json_open(&j, out);
    tide__json_object(&j);
    tide__json_key(&j, "driver_version");
    if (d->gpu_count > 0) {
        tide__json_i64(&j, d->gpus[0].properties.driver_version);
    } else {
        tide__json_null(&j);
    }
    tide__json_key(&j, "host");
    json_host(&j, &d->host);
    tide__json_key(&j, "gpus");
    tide__json_array(&j);
    for (int i = 0; i < d->gpu_count; i++) {
        json_gpu(&j, i, &d->gpus[i]);
    }
    tide__json_array_end(&j);
    tide__json_key(&j, "findings");
    tide__json_array(&j);
    for (size_t i = 0; i < d->finding_count; i++) {
        tide__json_object(&j);
        tide__json_key_string(&j, "kind", kind_name(d->findings[i].kind));
        tide__json_key_string(&j, "text", d->findings[i].text);
        tide__json_object_end(&j);
    }
    tide__json_array_end(&j);
    tide__json_object_end(&j);
    tide__json_close(&j);
}
