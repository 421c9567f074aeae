// cp.async: the bytes arrive at the wait, as late as the hardware may let them, so that a kernel that reads early reads wrong.
#include "async_copy.h"

#include <stdlib.h>
#include <string.h>

#include "findings.h"
#include "recorder.h"
#include "trace.h"

static const unsigned most_copies = 64 << 10;   // in flight, per thread: all of shared memory in the smallest pieces

static inline __attribute__((always_inline)) void add(void* to, const void* from, unsigned bytes, unsigned source_bytes, emu_site site,
                                                      uintptr_t counter) {
    Fiber* f = emu_current;
    if (f->copy_count == f->copy_capacity) {
        f->copy_capacity = f->copy_capacity ? 2 * f->copy_capacity : 64;
        f->copies = (PendingCopy*)realloc(f->copies, f->copy_capacity * sizeof(PendingCopy));
        if (!f->copies || f->copy_capacity > most_copies)
            emu_trap("cp.async: this thread has issued 65536 copies without waiting for one of them", site);
    }
    if (((uintptr_t)to | (uintptr_t)from) % bytes) emu_find_misaligned(site, bytes);
    f->copies[f->copy_count++] = {to, from, bytes, source_bytes, f->copy_group, site, counter};
}

extern "C" void emu_copy_async(void* to, const void* from, unsigned bytes, unsigned source_bytes, bool around_l1, emu_site site) {
    const uintptr_t counter = (uintptr_t)__builtin_return_address(0);
    add(to, from, bytes, source_bytes, site, counter);
    emu_record_access((uintptr_t)from, source_bytes, around_l1 ? Access::copy_read : Access::read, counter);
    if (around_l1) emu_record_target(emu_current, (uintptr_t)to);
    emu_record_access((uintptr_t)to, bytes, Access::copy_issued, counter);
}

extern "C" void emu_record_copy(void* to, const void* from, unsigned bytes, unsigned source_bytes, emu_site site) {
    const uint32_t place = emu_place_of((uintptr_t)__builtin_return_address(0));
    Recorder* const r = emu_recorder();
    add(to, from, bytes, source_bytes, site, r ? emu_announce(*r, {EMU_OP_COPY_READ, place, (uintptr_t)from, source_bytes, 0, false}) : 0);
}

extern "C" void emu_copy_commit() { emu_current->copy_group++; }

// Calls before() and after() for each copy of the thread emu_current that is done now.
template <class Before, class After> static inline __attribute__((always_inline)) void finish(unsigned groups_in_flight, Before before, After after) {
    Fiber* f = emu_current;
    unsigned kept = 0;
    for (unsigned i = 0; i < f->copy_count; i++) {
        const PendingCopy& c = f->copies[i];
        if (c.group + groups_in_flight >= f->copy_group) {
            f->copies[kept++] = c;
        } else {
            before(c);
            emu_land(f, c);
            after(c);
        }
    }
    f->copying = emu_site{};
    f->copy_count = kept;
}

static void nothing(const PendingCopy&) {}

extern "C" void emu_copy_wait(unsigned groups_in_flight) {
    finish(groups_in_flight, nothing, [](const PendingCopy& c) {
        emu_record_access((uintptr_t)c.to, c.bytes, Access::copy_arrived, c.counter);
    });
}

static emu_intent arrival_of(const PendingCopy& c) {
    return {EMU_OP_COPY_WRITE, 0, (uintptr_t)c.to, c.bytes, (int32_t)c.counter, false};
}

extern "C" void emu_record_copy_wait(unsigned groups_in_flight) {
    const uint32_t place = emu_place_of((uintptr_t)__builtin_return_address(0));
    Recorder* const r = emu_recorder();
    if (r) emu_announce(*r, {EMU_OP_WAIT, place, 0, 0, EMU_CP_ASYNC, false});
    finish(groups_in_flight, [r](const PendingCopy& c) { if (r) emu_announce(*r, arrival_of(c)); }, nothing);
}

void emu_finish_copies(unsigned groups_in_flight) {
    Recorder* const r = emu_recorder();
    if (!r) return emu_copy_wait(groups_in_flight);
    finish(groups_in_flight, nothing, [r](const PendingCopy& c) { emu_record_done(*r, arrival_of(c)); });
}
