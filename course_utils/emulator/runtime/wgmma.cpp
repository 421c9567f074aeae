// wgmma: a warp's products are done when it waits for them, as late as the hardware may do them, so that a kernel that reads
// D early reads the old numbers, and one that overwrites a factor early multiplies the new ones. In other orders some are done
// before, one after the other.
#include <stdlib.h>
#include <string.h>

#include "async_counters.h"
#include "async_rules.h"
#include "findings.h"
#include "recorder.h"

struct Product {
    emu_wgmma product;
    float** d;                       // room for the product's own, kept for the next one in this place
    unsigned (*a)[4];                // the same, of a product with A in registers
    unsigned room, group;
    bool done;
    int step;                        // of a recording, that started it
};

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
        products->count = products->group = 0;
        products->block = block;
    }
    return *products;
}

static void swap(Product& a, Product& b) {
    const Product before = a;
    a = b;
    b = before;
}

// What a product reads of shared memory when it is done.
static void record_factors(Recorder& r, const Product& one) {
    unsigned addresses[544];
    emu_piece pieces[544];
    const unsigned count = one.product.chunks(&one.product, addresses);
    for (unsigned i = 0; i < count; i++) pieces[i] = {emu_shared_pointer(addresses[i]), nullptr, 16};
    emu_record_reads(r, pieces, count, one.step);
}

static void multiply(Product& one) {
    if (one.done) return;
    if (emu_block->tracer) emu_current->place = one.product.place;
    Recorder* const r = emu_recorder();
    if (r) record_factors(*r, one);
    one.product.multiply(&one.product);
    one.done = true;
    if (r) emu_record_end(*r, (int)emu_current->warp, ~0u, one.step);
}

// Those that happen now.
static void do_some(Products& p) {
    for (unsigned i = 0; i < p.count; i++) {
        if (p.started[i].done) continue;
        if (!emu_happens_now()) return;
        multiply(p.started[i]);
    }
}

static bool are_side_by_side(float* const* d, unsigned of_a_lane) {
    for (unsigned lane = 0; lane < 32; lane++, d += of_a_lane)
        for (unsigned i = 1; i < of_a_lane; i++)
            if (d[i] != d[0] + i) return false;
    return true;
}

extern "C" void emu_wgmma_start(const emu_wgmma* product) {
    Products& p = mine();
    if (p.count == p.capacity) {
        const unsigned before = p.capacity;
        p.capacity = before ? 2 * before : 32;
        p.started = (Product*)realloc(p.started, p.capacity * sizeof(Product));
        if (p.started) memset(p.started + before, 0, (p.capacity - before) * sizeof(Product));
    }
    const unsigned of_a_lane = product->n / 2;
    const bool side_by_side = are_side_by_side(product->d, of_a_lane);   // as a rule: fewer pointers to keep
    const unsigned numbers = side_by_side ? 32 : 32 * of_a_lane;
    Product& one = p.started[p.count];
    if (p.started && one.room < numbers) {
        one.d = (float**)realloc(one.d, numbers * sizeof(float*));
        one.room = numbers;
    }
    if (!p.started || !one.d) emu_trap("wgmma: no memory for products that are not waited for", product->site);
    for (unsigned i = 0; i < numbers; i++) one.d[i] = product->d[side_by_side ? i * of_a_lane : i];
    if (Rules* rules = emu_rules()) emu_rule_product(*rules, product);
    if (AsyncCounters* counters = emu_async_counters()) emu_count_product(*counters, product);
    one.product = *product;
    one.product.d = one.d;
    one.product.side_by_side = side_by_side;
    one.product.exact = emu_block->launch->exact_sums;
    if (product->a_in_registers) {
        if (!one.a) one.a = (unsigned (*)[4])malloc(32 * sizeof *one.a);
        if (!one.a) emu_trap("wgmma: no memory for products that are not waited for", product->site);
        memcpy(one.a, product->a, 32 * sizeof *one.a);
        one.product.a = one.a;
    }
    one.group = p.group;
    one.done = false;
    Recorder* const r = emu_recorder();
    if (r) one.step = emu_record_at_once(*r, EMU_OP_WGMMA, (int)emu_current->warp, ~0u, emu_place_of(product->place), (int)product->n);
    p.count++;
    do_some(p);
}

// Those that wait for the other warps of this one's warpgroup look again.
extern "C" void emu_wgmma_commit() {
    mine().group++;
    do_some(mine());
    if (Rules* rules = emu_rules()) emu_rule_products_committed(*rules);
    Block& b = *emu_block;
    const unsigned first = emu_current->warp / 4 * 128;
    for (unsigned i = first; i < first + 128 && i < b.size; i++)
        if (b.fibers[i].state == State::at_warpgroup) emu_make_ready(b, &b.fibers[i]);
}

// A product is one of four warps: none of them can find it to be over before all of them have started it.
static bool others_have_started(unsigned groups) {
    const unsigned first = emu_current->warp / 4 * 4;
    for (unsigned warp = first; warp < first + 4; warp++) {
        const Products* p = emu_block->products[warp];
        const unsigned has = p && p->block == mine().block ? p->group : 0;
        if (has < groups) return false;
    }
    return true;
}

extern "C" void emu_wgmma_fence() {
    if (Rules* rules = emu_rules()) emu_rule_wgmma_fence(*rules);
}

extern "C" void emu_proxy_fence(bool only_barriers) {
    if (Rules* rules = emu_rules()) emu_rule_proxy_fence(*rules, only_barriers);
}

extern "C" void emu_count_exponential() {
    AsyncCounters* counters = emu_async_counters();
    if (counters) emu_count_exponential_of(*counters, mine().count > 0);
}

extern "C" uintptr_t emu_place() {
    EMU_NOTE_PLACE();
    return (uintptr_t)__builtin_return_address(0);
}

// By the last lane of the warp that comes here, while the others wait for it.
extern "C" void emu_wgmma_wait(unsigned groups_in_flight, emu_site site) {
    Products& p = mine();
    const uint64_t before = emu_block->steps;
    const uintptr_t place = emu_current->place;
    Recorder* const r = emu_recorder();
    if (r) emu_record_at_once(*r, EMU_OP_WAIT, (int)emu_current->warp, ~0u, emu_place_of(place), EMU_PRODUCTS);
    while (p.group > groups_in_flight && !others_have_started(p.group - groups_in_flight)) {
        emu_stop(State::at_warpgroup, site);
        emu_run_another();
    }
    unsigned kept = 0;
    for (unsigned i = 0; i < p.count; i++) {
        Product& one = p.started[i];
        if (one.group + groups_in_flight >= p.group) {
            if (i != kept) swap(p.started[kept], one);
            kept++;
        } else {
            multiply(one);
        }
    }
    if (Rules* rules = emu_rules()) emu_rule_products_done(*rules, p.count - kept);
    emu_current->place = place;                        // products have left theirs
    if (AsyncCounters* counters = emu_async_counters()) emu_count_wait(*counters, before);
    p.count = kept;
}
