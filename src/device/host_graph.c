/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host device's graphs: operations of a stream kept instead of run, to be
 * queued as often as the graph is launched. A copy goes into the queue, so a
 * graph may be destroyed while its launches still run.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "device/host_internal.h"

struct tide__host_graph {
    tide__host_op *first, *last;
};

tide_status tide__host_check_not_captured(const tide__host_gpu *g, const tide__host_stream *s) {
    if (!s->graph) {
        return TIDE_OK;
    }
    return tide__fail(TIDE_CAPTURING, "host: stream %" PRIu64 " of GPU %d is being captured", s->id,
                      g->index);
}

tide_status tide__host_stream_capturing(tide__host_gpu *g, tide_stream stream, bool *out) {
    const tide__host_stream *s = tide__host_stream_find(g, stream);
    if (!s) {
        return TIDE_BAD_HANDLE;
    }
    *out = stream == 0 ? g->captures > 0 : s->graph != NULL;
    return TIDE_OK;
}

void tide__host_graph_add(tide__host_graph *graph, tide__host_op *op) {
    op->next = NULL;
    if (graph->last) {
        graph->last->next = op;
    } else {
        graph->first = op;
    }
    graph->last = op;
}

void tide__host_graph_free(tide__host_graph *graph) {
    for (tide__host_op *op = graph ? graph->first : NULL, *next; op; op = next) {
        next = op->next;
        free(op);
    }
    free(graph);
}

static tide_status begin(tide__host_gpu *g, tide_stream stream) {
    tide__host_stream *s = tide__host_stream_find(g, stream);
    if (!s) {
        return TIDE_BAD_HANDLE;
    }
    if (s->graph) {
        return tide__fail(TIDE_IN_USE, "host: stream %" PRIu64 " is captured already", s->id);
    }
    s->graph = calloc(1, sizeof *s->graph);
    if (!s->graph) {
        return tide__fail(TIDE_NO_HOST_MEMORY, "host: no memory for a graph");
    }
    g->captures++;
    return TIDE_OK;
}

static tide_status end(tide__host_gpu *g, tide_stream stream, tide__host_graph **out) {
    tide__host_stream *s = tide__host_stream_find(g, stream);
    if (!s) {
        return TIDE_BAD_HANDLE;
    }
    if (!s->graph) {
        return tide__fail(TIDE_BAD_HANDLE, "host: stream %" PRIu64 " is not captured", s->id);
    }
    *out = s->graph;
    s->graph = NULL;
    g->captures--;
    return TIDE_OK;
}

static tide_status launch(tide__host_gpu *g, tide_stream stream, const tide__host_graph *graph) {
    for (const tide__host_op *op = graph->first; op; op = op->next) {
        tide__host_op *copy = tide__host_op_new(op->kind, op->range_count);
        if (copy) {
            memcpy(copy, op, sizeof *op + op->range_count * sizeof op->ranges[0]);
            copy->next = NULL;
        }
        tide_status status = tide__host_enqueue(g, stream, copy);
        if (status != TIDE_OK) {
            return status;
        }
    }
    return TIDE_OK;
}

/* ---- The calls ---- */

tide_status tide__host_capture_begin(tide__device *d, int gpu, tide_stream stream) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    tide_status status = begin(g, stream);
    tide__host_leave(g);
    return status;
}

tide_status tide__host_capture_end(tide__device *d, int gpu, tide_stream stream, tide__host_graph **out) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    tide_status status = end(g, stream, out);
    tide__host_leave(g);
    return status;
}

tide_status tide__host_graph_launch(tide__device *d, int gpu, tide_stream stream,
                                    const tide__host_graph *graph) {
    tide__host_gpu *g = tide__host_enter(d, gpu);
    if (!g) {
        return TIDE_INVALID_ARGUMENT;
    }
    tide_status status = launch(g, stream, graph);
    tide__host_leave(g);
    return status;
}

void tide__host_graph_destroy(tide__host_graph *graph) { tide__host_graph_free(graph); }
