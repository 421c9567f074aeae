// wgmma: a warp's products are done when it waits for them, as late as the hardware may do them, so that a kernel that reads
// D early reads the old numbers, and one that overwrites a factor early multiplies the new ones.
#include <stdlib.h>
#include <string.h>

#include "block.h"

struct Product { emu_wgmma product; unsigned group; };

struct Products {
    Product* started;
    unsigned count, capacity, group;
    uint64_t block;                  // of which these are: those that an earlier block never waited for are forgotten
};

static Products& mine() {
    const Fiber* f = emu_current;
    Products*& products = emu_block->products[f->warp];
    if (!products) products = (Products*)calloc(1, sizeof(Products));
    const emu_dim3 at = f->block_idx, grid = f->grid_dim;
    const uint64_t block = 1 + at.x + grid.x * (at.y + (uint64_t)grid.y * at.z);
    if (products && products->block != block) {
        for (unsigned i = 0; i < products->count; i++) free(products->started[i].product.d);
        products->count = products->group = 0;
        products->block = block;
    }
    return *products;
}

extern "C" void emu_wgmma_start(const emu_wgmma* product) {
    Products& p = mine();
    if (p.count == p.capacity) {
        p.capacity = p.capacity ? 2 * p.capacity : 32;
        p.started = (Product*)realloc(p.started, p.capacity * sizeof(Product));
    }
    const size_t bytes = 32 * (product->n / 2) * sizeof(float*);
    float** d = (float**)malloc(bytes);
    if (!p.started || !d) emu_trap("wgmma: no memory for products that are not waited for", product->site);
    memcpy(d, product->d, bytes);
    p.started[p.count] = {*product, p.group};
    p.started[p.count].product.exact = emu_block->launch->exact_sums;
    p.started[p.count++].product.d = d;
}

extern "C" void emu_wgmma_commit() { mine().group++; }

extern "C" void emu_wgmma_wait(unsigned groups_in_flight) {
    Products& p = mine();
    unsigned kept = 0;
    for (unsigned i = 0; i < p.count; i++) {
        const Product& one = p.started[i];
        if (one.group + groups_in_flight >= p.group) {
            p.started[kept++] = one;
        } else {
            one.product.multiply(&one.product);
            free(one.product.d);
        }
    }
    p.count = kept;
}
