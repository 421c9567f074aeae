#include "async_counters.h"

#include <pthread.h>
#include <stdlib.h>

#include "findings.h"

static const unsigned most_counters = sizeof(emu_trace_results::asynchronous) / sizeof(emu_async_counter);

struct AsyncCounters {
    emu_async_counter counters[most_counters];
    unsigned count, dropped;
    uint64_t exponentials, beside_products, most_in_flight;
};

static pthread_mutex_t merge_lock = PTHREAD_MUTEX_INITIALIZER;

AsyncCounters* emu_new_async_counters() { return (AsyncCounters*)calloc(1, sizeof(AsyncCounters)); }

// The counter of these, a new one if there is none yet; null: there is no room.
template <class Count>
static emu_async_counter* counter_for(emu_async_counter* all, Count& count, uint64_t place, uint32_t kind, uint32_t which) {
    for (unsigned i = 0; i < count; i++)
        if (all[i].place == place && all[i].kind == kind && all[i].which == which) return &all[i];
    if (count == most_counters) return nullptr;
    all[count] = {};
    all[count].place = place, all[count].kind = kind, all[count].which = which;
    return &all[count++];
}

static void join(emu_async_counter& sum, const emu_async_counter& more) {
    sum.count += more.count;
    sum.flops += more.flops;
    sum.global_bytes += more.global_bytes;
    sum.shared_bytes += more.shared_bytes;
    sum.idle += more.idle;
}

// Of an instruction of the running thread, or of its warp.
static void add(AsyncCounters& c, uintptr_t place, emu_async_kind kind, unsigned which, const emu_async_counter& more) {
    emu_async_counter* const sum = counter_for(c.counters, c.count, emu_place_of(place), kind, which);
    if (sum) join(*sum, more);
    else c.dropped++;
}

// A warpgroup makes the product. Each warp reads its rows of A; B, which all four need, counts once. A row is 32 bytes.
void emu_count_product(AsyncCounters& c, const emu_wgmma* product) {
    const bool first = product->warp == 0;
    emu_async_counter more = {};
    more.count = first;
    more.flops = 2ull * 16 * product->n * product->depth;
    more.shared_bytes = (product->a_in_registers ? 0 : 16 * 32) + (first ? product->n * 32 : 0);
    add(c, product->place, EMU_PRODUCT, 0, more);
}

void emu_count_copy(AsyncCounters& c, emu_async_kind kind, unsigned array, uint64_t global_bytes, uint64_t shared_bytes) {
    emu_async_counter more = {};
    more.count = 1, more.global_bytes = global_bytes, more.shared_bytes = shared_bytes;
    add(c, emu_current->place, kind, array, more);
}

void emu_count_exponential_of(AsyncCounters& c, bool beside) {
    c.exponentials++;
    c.beside_products += beside;
}

void emu_count_in_flight(AsyncCounters& c, uint64_t bytes) {
    if (bytes > c.most_in_flight) c.most_in_flight = bytes;
}

// Others took all turns but the last, by which this thread goes on.
void emu_count_wait(AsyncCounters& c, uint64_t before) {
    const uint64_t turns = emu_block->steps - before;
    emu_async_counter more = {};
    more.count = 1, more.idle = turns ? turns - 1 : 0;
    add(c, emu_current->place, EMU_WAIT, emu_current->warp, more);
}

void emu_merge_async_counters(Tracer& t) {
    emu_trace_results& r = *t.results;
    const AsyncCounters& c = *t.async_counters;
    pthread_mutex_lock(&merge_lock);
    r.counters_dropped += c.dropped;
    r.exponentials += c.exponentials;
    r.beside_products += c.beside_products;
    if (c.most_in_flight > r.most_in_flight) r.most_in_flight = c.most_in_flight;
    for (unsigned i = 0; i < c.count; i++) {
        const emu_async_counter& mine = c.counters[i];
        emu_async_counter* const sum = counter_for(r.asynchronous, r.asynchronous_count, mine.place, mine.kind, mine.which);
        if (sum) join(*sum, mine);
        else r.counters_dropped++;
    }
    pthread_mutex_unlock(&merge_lock);
}
