/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_index: free blocks in the order (size, address), for an exact best fit.
 *
 * Nodes are embedded in blocks, so the index allocates nothing. Sizes fall into
 * bins of 1/16 of a power of two, found through a bitmap; a bin is a treap, so
 * that thousands of blocks of one size stay logarithmic while the usual bin
 * holds one or two and costs a comparison.
 */
#ifndef TIDE_REPLAY_FREE_INDEX_H
#define TIDE_REPLAY_FREE_INDEX_H

#include "base/base.h"

typedef struct tide__free_node {
    uint64_t size, addr;
    struct tide__free_node *left, *right;
    uint32_t priority;
} tide__free_node;

#define TIDE__FREE_BINS 832 /* sizes below 2^60 */

typedef struct tide__free_index {
    tide__free_node *roots[TIDE__FREE_BINS];
    uint64_t bits[TIDE__FREE_BINS / 64]; /* bins that are not empty */
    uint32_t random;
} tide__free_index; /* zero-initialised is empty */

/* The node is in no index, and its size and address do not change while in this one. */
void tide__free_index_add(tide__free_index *f, tide__free_node *n);
void tide__free_index_remove(tide__free_index *f, tide__free_node *n);

/* The first node not below (size, addr); NULL where there is none. */
tide__free_node *tide__free_index_at_least(const tide__free_index *f, uint64_t size, uint64_t addr);
/* The node after n, and the last one of all. */
tide__free_node *tide__free_index_next(const tide__free_index *f, const tide__free_node *n);
tide__free_node *tide__free_index_last(const tide__free_index *f);
/* The node before (size, addr); NULL where there is none. */
tide__free_node *tide__free_index_before(const tide__free_index *f, uint64_t size, uint64_t addr);

#endif
