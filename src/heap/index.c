/* SPDX-License-Identifier: Apache-2.0 */
/* The index of free blocks: see index.h. */
#include "heap/index.h"

/* How many blocks of a class are looked at for a tighter fit. */
#define SEARCH_BOUND 24

/* The class of a size: 16 equal steps between one power of two and the next. */
static int class_of(uint64_t size) {
    TIDE__ASSERT(size >= 512);
    int row = tide__log2_floor(size) - TIDE__INDEX_MIN_BITS;
    int column = 0;
    if (row + TIDE__INDEX_MIN_BITS >= TIDE__INDEX_SUB_BITS) {
        column = (int)((size >> (row + TIDE__INDEX_MIN_BITS - TIDE__INDEX_SUB_BITS)) & (TIDE__INDEX_SUB - 1));
    }
    int number = row * TIDE__INDEX_SUB + column;
    return number < TIDE__INDEX_CLASSES ? number : TIDE__INDEX_CLASSES - 1;
}

void tide__index_insert(tide__index *x, tide__block *block) {
    int number = class_of(block->size);
    tide__block *head = x->heads[number];
    block->list_prev = NULL;
    block->list_next = head;
    if (head != NULL) {
        head->list_prev = block;
    }
    x->heads[number] = block;
    x->rows |= UINT64_C(1) << (number / TIDE__INDEX_SUB);
    x->columns[number / TIDE__INDEX_SUB] |= (uint16_t)(1U << (number % TIDE__INDEX_SUB));
    x->bytes += block->size;
    x->count++;
}

void tide__index_remove(tide__index *x, tide__block *block) {
    int number = class_of(block->size);
    if (block->list_prev != NULL) {
        block->list_prev->list_next = block->list_next;
    } else {
        TIDE__ASSERT(x->heads[number] == block);
        x->heads[number] = block->list_next;
        if (block->list_next == NULL) {
            int row = number / TIDE__INDEX_SUB;
            x->columns[row] &= (uint16_t) ~(1U << (number % TIDE__INDEX_SUB));
            if (x->columns[row] == 0) {
                x->rows &= ~(UINT64_C(1) << row);
            }
        }
    }
    if (block->list_next != NULL) {
        block->list_next->list_prev = block->list_prev;
    }
    x->bytes -= block->size;
    x->count--;
}

/* The first non-empty class at or after `number`; -1 if there is none. */
static int class_from(const tide__index *x, int number) {
    if (number >= TIDE__INDEX_CLASSES) {
        return -1;
    }
    int row = number / TIDE__INDEX_SUB;
    unsigned columns = x->columns[row] & (~0U << (number % TIDE__INDEX_SUB));
    if (columns == 0) {
        uint64_t rows = row >= 63 ? 0 : x->rows & (~UINT64_C(0) << (row + 1));
        if (rows == 0) {
            return -1;
        }
        row = __builtin_ctzll(rows);
        columns = x->columns[row];
    }
    return row * TIDE__INDEX_SUB + __builtin_ctz(columns);
}

static tide__block *tightest(tide__block *block, uint64_t size) {
    tide__block *best = NULL;
    for (int looked = 0; block != NULL && looked < SEARCH_BOUND; block = block->list_next, looked++) {
        if (block->size == size) {
            return block;
        }
        if (block->size > size && (best == NULL || block->size < best->size ||
                                   (block->size == best->size && block->va < best->va))) {
            best = block;
        }
    }
    return best;
}

tide__block *tide__index_find(const tide__index *x, uint64_t size) {
    int own = class_of(size);
    for (int number = class_from(x, own); number >= 0; number = class_from(x, number + 1)) {
        tide__block *best = tightest(x->heads[number], size);
        if (best != NULL) {
            return best;
        }
        /* Only the size's own class (and the last) can hold blocks too small. */
    }
    return NULL;
}

tide__block *tide__index_find_lowest(const tide__index *x, uint64_t size, int most, tide__index_score score,
                                     const void *user) {
    tide__block *best = NULL;
    uint64_t lowest = UINT64_MAX;
    for (int number = class_from(x, class_of(size)); number >= 0 && most > 0;
         number = class_from(x, number + 1)) {
        for (tide__block *b = x->heads[number]; b != NULL && most > 0; b = b->list_next) {
            if (b->size < size) {
                continue;
            }
            most--;
            uint64_t s = score(user, b, size);
            if (s < lowest || (s == lowest && best != NULL && b->size < best->size)) {
                lowest = s;
                best = b;
            }
        }
    }
    return best;
}

tide__block *tide__index_first(const tide__index *x, tide__index_cursor *cursor, uint64_t size) {
    cursor->lowest = class_of(size);
    cursor->class_number = x->rows == 0 ? 0 : (tide__log2_floor(x->rows) + 1) * TIDE__INDEX_SUB;
    return tide__index_next(x, cursor, NULL);
}

tide__block *tide__index_next(const tide__index *x, tide__index_cursor *cursor, const tide__block *block) {
    if (block != NULL && block->list_next != NULL) {
        return block->list_next;
    }
    for (int number = cursor->class_number - 1; number >= cursor->lowest; number--) {
        if (x->columns[number / TIDE__INDEX_SUB] == 0) {
            number = number / TIDE__INDEX_SUB * TIDE__INDEX_SUB; /* an empty row */
            continue;
        }
        if (x->heads[number] != NULL) {
            cursor->class_number = number;
            return x->heads[number];
        }
    }
    return NULL;
}
