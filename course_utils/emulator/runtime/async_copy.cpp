// cp.async: the bytes arrive at the wait, as late as the hardware may let them, so that a kernel that reads early reads wrong.
#include "async_copy.h"

#include <stdlib.h>
#include <string.h>

#include "findings.h"
#include "recorder.h"
#include "trace.h"

static const unsigned most_copies = 64 << 10;   // in flight, per thread: all of shared memory in the smallest pieces

extern "C" void emu_copy_async(void* to, const void* from, unsigned bytes, unsigned source_bytes, bool around_l1, emu_site site) {
    Fiber* f = emu_current;
    if (f->copy_count == f->copy_capacity) {
        f->copy_capacity = f->copy_capacity ? 2 * f->copy_capacity : 64;
        f->copies = (PendingCopy*)realloc(f->copies, f->copy_capacity * sizeof(PendingCopy));
        if (!f->copies || f->copy_capacity > most_copies)
            emu_trap("cp.async: this thread has issued 65536 copies without waiting for one of them", site);
    }
    if (((uintptr_t)to | (uintptr_t)from) % bytes) emu_find_misaligned(site, bytes);
    const uintptr_t counter = (uintptr_t)__builtin_return_address(0);
    int step = 0;
    if (Recorder* r = emu_recorder()) step = emu_announce(*r, {EMU_OP_COPY_READ, emu_place_of(counter), (uintptr_t)from, source_bytes, 0, false});
    f->copies[f->copy_count++] = {to, from, bytes, source_bytes, f->copy_group, site, counter, step};
    if (emu_recorder()) return;
    emu_record_access((uintptr_t)from, source_bytes, around_l1 ? Access::copy_read : Access::read, counter);
    if (around_l1) emu_record_target(f, (uintptr_t)to);
    emu_record_access((uintptr_t)to, bytes, Access::copy_issued, counter);
}

extern "C" void emu_copy_commit() { emu_current->copy_group++; }

// Of the thread that runs; at_once: of another one, which stands still.
static void finish(unsigned groups_in_flight, bool at_once) {
    Fiber* f = emu_current;
    Recorder* const r = emu_recorder();
    unsigned kept = 0;
    for (unsigned i = 0; i < f->copy_count; i++) {
        const PendingCopy& c = f->copies[i];
        if (c.group + groups_in_flight >= f->copy_group) {
            f->copies[kept++] = c;
        } else {
            const emu_intent arrival = {EMU_OP_COPY_WRITE, emu_place_of(c.counter), (uintptr_t)c.to, c.bytes, c.step, false};
            if (r && !at_once) emu_announce(*r, arrival);
            f->copying = c.site;
            memcpy(c.to, c.from, c.source_bytes);
            memset((char*)c.to + c.source_bytes, 0, c.bytes - c.source_bytes);
            if (!r) emu_record_access((uintptr_t)c.to, c.bytes, Access::copy_arrived, c.counter);
            else if (at_once) emu_record_done(*r, arrival);
        }
    }
    f->copying = emu_site{};
    f->copy_count = kept;
}

extern "C" void emu_copy_wait(unsigned groups_in_flight) {
    const uint32_t place = emu_place_of((uintptr_t)__builtin_return_address(0));
    if (Recorder* r = emu_recorder()) emu_announce(*r, {EMU_OP_WAIT, place, 0, 0, EMU_CP_ASYNC, false});
    finish(groups_in_flight, false);
}
void emu_finish_copies(unsigned groups_in_flight) { finish(groups_in_flight, true); }
