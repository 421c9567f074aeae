// What a kernel takes by malloc() is the host's memory. The sanitizer wants to know where it lies.
#include "heap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"

struct Piece { uintptr_t low; size_t bytes; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Piece* pieces;                         // ascending
static size_t count, capacity;

static size_t first_behind(uintptr_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (pieces[middle].low <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" void* emu_malloc(size_t bytes) {
    void* p = malloc(bytes);
    if (!p || !emu_block->tracer) return p;
    pthread_mutex_lock(&lock);
    if (count == capacity) {
        Piece* more = (Piece*)realloc(pieces, (2 * capacity + 64) * sizeof *pieces);
        if (more) pieces = more, capacity = 2 * capacity + 64;
    }
    if (count < capacity) {
        const size_t i = first_behind((uintptr_t)p);
        memmove(pieces + i + 1, pieces + i, (count++ - i) * sizeof *pieces);
        pieces[i] = {(uintptr_t)p, bytes};
    }
    pthread_mutex_unlock(&lock);
    return p;
}

extern "C" void emu_free(void* p) {
    if (emu_block->tracer) {
        pthread_mutex_lock(&lock);
        const size_t i = first_behind((uintptr_t)p);
        if (i && pieces[i - 1].low == (uintptr_t)p) memmove(pieces + i - 1, pieces + i, (count-- - i) * sizeof *pieces);
        pthread_mutex_unlock(&lock);
    }
    free(p);
}

bool emu_in_heap(uintptr_t address, size_t bytes) {
    pthread_mutex_lock(&lock);
    const size_t i = first_behind(address);
    const bool is_in = i && address + bytes <= pieces[i - 1].low + pieces[i - 1].bytes;
    pthread_mutex_unlock(&lock);
    return is_in;
}
