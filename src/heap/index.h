/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index: the free blocks of one heap and stream, by size.
 *
 * Sizes fall into 16 classes a power of two; a bitmap over the classes and one
 * over the powers find the next non-empty class in two steps. Inside a class
 * a bounded number of blocks is looked at for the tightest fit, so a search
 * costs the same however many blocks there are.
 */
#ifndef TIDE_INDEX_H
#define TIDE_INDEX_H

#include "heap/block.h"

#define TIDE__INDEX_SUB 16
#define TIDE__INDEX_SUB_BITS 4
#define TIDE__INDEX_MIN_BITS 9 /* 512 bytes */
#define TIDE__INDEX_CLASSES (40 * TIDE__INDEX_SUB)

typedef struct tide__index {
    uint64_t rows; /* bit r: row r has a non-empty class */
    uint16_t columns[40];
    tide__block *heads[TIDE__INDEX_CLASSES];
    uint64_t bytes; /* in all blocks */
    size_t count;
} tide__index;

void tide__index_insert(tide__index *x, tide__block *block);
void tide__index_remove(tide__index *x, tide__block *block);

/* The tightest block of at least `size` that a bounded search finds; NULL if
 * there is none at all. Does not remove it. */
tide__block *tide__index_find(const tide__index *x, uint64_t size);

/* Calls `score` for up to `most` blocks of at least `size`, tighter classes
 * first; the block with the lowest score, the smaller among equals. */
typedef uint64_t (*tide__index_score)(const void *user, const tide__block *block, uint64_t size);
tide__block *tide__index_find_lowest(const tide__index *x, uint64_t size, int most, tide__index_score score,
                                     const void *user);

/* Walks all blocks of at least about `size`, largest class first:
 * for (b = tide__index_first(x, &cursor, size); b; b = tide__index_next(x, &cursor, b)) */
typedef struct tide__index_cursor {
    int class_number, lowest;
} tide__index_cursor;
tide__block *tide__index_first(const tide__index *x, tide__index_cursor *cursor, uint64_t size);
tide__block *tide__index_next(const tide__index *x, tide__index_cursor *cursor, const tide__block *block);

#endif
