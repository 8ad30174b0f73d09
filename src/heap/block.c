/* SPDX-License-Identifier: Apache-2.0 */
/* Block records: see block.h. */
#include "heap/block.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void tide__blocks_close(tide__blocks *b) {
    for (size_t i = 0; i < b->page_count; i++) {
        free(b->pages[i]);
    }
    memset(b, 0, sizeof *b);
}

static bool add_page(tide__blocks *b) {
    if (b->page_count == TIDE__BLOCK_PAGES_MAX) {
        return false;
    }
    tide__block *page = aligned_alloc(TIDE__BLOCK_PAGE_BYTES, TIDE__BLOCK_PAGE_BYTES);
    if (page == NULL) {
        return false;
    }
    /* Frees come in any order: fewer misses of the TLB. Where it fails nothing is lost. */
    madvise(page, TIDE__BLOCK_PAGE_BYTES, MADV_HUGEPAGE);
    memset(page, 0, TIDE__BLOCK_PAGE_BYTES);
    page[0].size = b->page_count;
    b->pages[b->page_count++] = page;
    for (size_t i = TIDE__BLOCKS_PER_PAGE - 1; i > 0; i--) { /* lowest first out */
        page[i].list_next = b->unused;
        b->unused = &page[i];
    }
    b->unused_count += TIDE__BLOCKS_PER_PAGE - 1;
    return true;
}

bool tide__blocks_reserve(tide__blocks *b, size_t count) {
    while (b->unused_count < count) {
        if (!add_page(b)) {
            return false;
        }
    }
    return true;
}

tide__block *tide__blocks_take(tide__blocks *b) {
    TIDE__CHECK(b->unused != NULL);
    tide__block *block = b->unused;
    b->unused = block->list_next;
    b->unused_count--;
    return block;
}

void tide__blocks_give(tide__blocks *b, tide__block *block) {
    tide__block_set(block, TIDE__UNUSED);
    block->list_next = b->unused;
    b->unused = block;
    b->unused_count++;
}

tide__block *tide__block_cut(tide__blocks *b, tide__block *block, uint64_t size) {
    TIDE__ASSERT(size > 0 && size < block->size);
    tide__block *rest = tide__blocks_take(b);
    rest->va = block->va + size;
    rest->size = block->size - size;
    rest->prev = block;
    rest->next = block->next;
    rest->list_prev = rest->list_next = NULL;
    rest->epoch = block->epoch;
    rest->stream = block->stream;
    rest->heap = block->heap;
    tide__block_mark(rest, false);
    tide__block_set(rest, tide__state_of(block));
    if (block->next != NULL) {
        block->next->prev = rest;
    }
    block->next = rest;
    block->size = size;
    return rest;
}

tide__block *tide__block_cut_front(tide__blocks *b, tide__block *block, uint64_t size) {
    TIDE__ASSERT(size > 0 && size < block->size);
    tide__block *front = tide__blocks_take(b);
    front->va = block->va;
    front->size = size;
    front->prev = block->prev;
    front->next = block;
    front->list_prev = front->list_next = NULL;
    front->epoch = block->epoch;
    front->stream = block->stream;
    front->heap = block->heap;
    tide__block_mark(front, false);
    tide__block_set(front, tide__state_of(block));
    if (block->prev != NULL) {
        block->prev->next = front;
    }
    block->prev = front;
    block->va += size;
    block->size -= size;
    return front;
}

void tide__block_join(tide__blocks *b, tide__block *first, tide__block *second) {
    TIDE__ASSERT(first->next == second && first->va + first->size == second->va);
    first->size += second->size;
    first->next = second->next;
    if (second->next != NULL) {
        second->next->prev = first;
    }
    tide__blocks_give(b, second);
}
