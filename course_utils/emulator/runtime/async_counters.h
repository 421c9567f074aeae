// The profiler's counters of what goes on by itself in a kernel for sm_90a, and of who waits for it: as barriers, products and
// the copy engine call them.
#pragma once
#include "tracer.h"

// Of the block that runs; null where nobody counts.
static inline AsyncCounters* emu_async_counters() {
    const Tracer* t = emu_block->tracer;
    return t && t->watching ? t->async_counters : nullptr;
}

AsyncCounters* emu_new_async_counters();
void emu_merge_async_counters(Tracer& t);     // adds them to the results

void emu_count_product(AsyncCounters& c, const emu_wgmma* product);   // by one warp
// array: that of the launch from which, or into which; its bytes, and those in shared memory of all blocks.
void emu_count_copy(AsyncCounters& c, emu_async_kind kind, unsigned array, uint64_t global_bytes, uint64_t shared_bytes);
// Of the running thread: one exponential. beside: a product of its warp runs meanwhile.
void emu_count_exponential_of(AsyncCounters& c, bool beside);
void emu_count_in_flight(AsyncCounters& c, uint64_t bytes);   // of all loads of the block that are on their way
void emu_count_wait(AsyncCounters& c, uint64_t before);   // of the running thread; before: the block's steps when it began
