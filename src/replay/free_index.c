/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_index: bins by size, a treap a bin.
 *
 * A bin's number rises with the size, so the order over all is the bins' order
 * and inside a bin the treap's. Every operation walks one treap; looking for
 * the next one walks at most one more, plus the bitmap (13 words).
 */
#include "replay/free_index.h"

static bool before(const tide__free_node *n, uint64_t size, uint64_t addr) {
    return n->size != size ? n->size < size : n->addr < addr;
}

/* The order inside a bin. A trace may put two segments at one address: the nodes themselves then decide. */
static bool precedes(const tide__free_node *a, const tide__free_node *b) {
    if (a->size != b->size) return a->size < b->size;
    return a->addr != b->addr ? a->addr < b->addr : (uintptr_t)a < (uintptr_t)b;
}

/* Units of 512 bytes; 16 bins a power of two. */
static unsigned bin_of(uint64_t size) {
    uint64_t units = size >> 9;
    if (units < 16) return (unsigned)units;
    unsigned log = (unsigned)tide__log2_floor(units);
    unsigned bin = (log - 3) * 16 + (unsigned)((units >> (log - 4)) & 15);
    TIDE__ASSERT(bin < TIDE__FREE_BINS);
    return bin < TIDE__FREE_BINS ? bin : TIDE__FREE_BINS - 1;
}

void tide__free_index_add(tide__free_index *f, tide__free_node *n) {
    unsigned bin = bin_of(n->size);
    f->random = f->random * 1664525u + 1013904223u;
    n->priority = f->random >> 1;
    tide__free_node **link = &f->roots[bin];
    while (*link != NULL && (*link)->priority >= n->priority)
        link = precedes(*link, n) ? &(*link)->right : &(*link)->left;
    /* n takes the place of *link, whose tree is split into what is below n and what is above. */
    tide__free_node *rest = *link, **low = &n->left, **high = &n->right;
    *link = n;
    while (rest != NULL) {
        if (precedes(rest, n)) {
            *low = rest;
            low = &rest->right;
            rest = *low;
        } else {
            *high = rest;
            high = &rest->left;
            rest = *high;
        }
    }
    *low = NULL;
    *high = NULL;
    f->bits[bin / 64] |= UINT64_C(1) << (bin % 64);
}

void tide__free_index_remove(tide__free_index *f, tide__free_node *n) {
    unsigned bin = bin_of(n->size);
    tide__free_node **link = &f->roots[bin];
    while (*link != n) {
        TIDE__CHECK(*link != NULL);
        link = precedes(*link, n) ? &(*link)->right : &(*link)->left;
    }
    tide__free_node *low = n->left, *high = n->right;
    while (low != NULL && high != NULL) {
        if (low->priority >= high->priority) {
            *link = low;
            link = &low->right;
            low = *link;
        } else {
            *link = high;
            link = &high->left;
            high = *link;
        }
    }
    *link = low != NULL ? low : high;
    if (f->roots[bin] == NULL) f->bits[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
}

/* ---- Looking ---- */

static tide__free_node *leftmost(tide__free_node *n) {
    while (n->left != NULL) n = n->left;
    return n;
}

static tide__free_node *rightmost(tide__free_node *n) {
    while (n->right != NULL) n = n->right;
    return n;
}

/* The first node of the first bin from `bin` on that has any. */
static tide__free_node *first_from(const tide__free_index *f, unsigned bin) {
    if (bin >= TIDE__FREE_BINS) return NULL;
    unsigned word = bin / 64;
    uint64_t bits = f->bits[word] & (~UINT64_C(0) << (bin % 64));
    while (bits == 0) {
        if (++word == TIDE__FREE_BINS / 64) return NULL;
        bits = f->bits[word];
    }
    return leftmost(f->roots[word * 64 + (unsigned)__builtin_ctzll(bits)]);
}

/* The last node of the bins below `bin`. */
static tide__free_node *last_below(const tide__free_index *f, unsigned bin) {
    for (unsigned word = (bin + 63) / 64; word-- > 0;) {
        uint64_t bits = f->bits[word];
        if (word == bin / 64) bits &= ~(~UINT64_C(0) << (bin % 64));
        if (bits != 0) return rightmost(f->roots[word * 64 + 63 - (unsigned)__builtin_clzll(bits)]);
    }
    return NULL;
}

tide__free_node *tide__free_index_at_least(const tide__free_index *f, uint64_t size, uint64_t addr) {
    unsigned bin = bin_of(size);
    tide__free_node *found = NULL;
    for (tide__free_node *n = f->roots[bin]; n != NULL;) {
        if (before(n, size, addr)) {
            n = n->right;
        } else {
            found = n;
            n = n->left;
        }
    }
    return found != NULL ? found : first_from(f, bin + 1);
}

tide__free_node *tide__free_index_next(const tide__free_index *f, const tide__free_node *n) {
    return n->addr != UINT64_MAX ? tide__free_index_at_least(f, n->size, n->addr + 1)
                                 : tide__free_index_at_least(f, n->size + 1, 0);
}

tide__free_node *tide__free_index_last(const tide__free_index *f) { return last_below(f, TIDE__FREE_BINS); }

tide__free_node *tide__free_index_before(const tide__free_index *f, uint64_t size, uint64_t addr) {
    unsigned bin = bin_of(size);
    tide__free_node *found = NULL;
    for (tide__free_node *n = f->roots[bin]; n != NULL;) {
        if (before(n, size, addr)) {
            found = n;
            n = n->right;
        } else {
            n = n->left;
        }
    }
    return found != NULL ? found : last_below(f, bin);
}
