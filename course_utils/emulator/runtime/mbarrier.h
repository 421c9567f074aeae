// The 64 bits of an mbarrier, as the emulator has them: what NVIDIA's look like is not said, and no program may ask.
//
//   bits 0-19    arrivals that a phase takes        bits 40-60   bytes still to come, signed
//   bits 20-39   arrivals that are still to come    bits 61-62   01; poison, and what nobody initialised, has other bits
//                                                   bit 63       the phase, modulo 2
#pragma once
#include <string.h>

#include "abi.h"

// What an mbarrier is told by the copy engine, which the kernel does not call: bytes and arrivals.
void emu_check_barrier(unsigned address, const char* instruction, emu_site site);   // it is one
void emu_count_bytes(unsigned address, int bytes, emu_site site);
uint64_t emu_count_arrivals(unsigned address, unsigned count, unsigned expected_bytes, bool may_complete, bool releases, emu_site site);

struct Mbarrier {
    uint64_t bits;

    static const unsigned most_arrivals = (1 << 20) - 1;
    static const int most_bytes = (1 << 20) - 1;

    static Mbarrier of(unsigned phase, unsigned count, unsigned pending, int bytes) {
        return {(uint64_t)phase << 63 | (uint64_t)1 << 61 | ((uint64_t)bytes & 0x1fffff) << 40 | (uint64_t)pending << 20 | count};
    }
    static Mbarrier at(unsigned address) {
        Mbarrier m;
        memcpy(&m.bits, emu_shared_pointer(address), sizeof m.bits);
        return m;
    }
    void put(unsigned address) const { memcpy(emu_shared_pointer(address), &bits, sizeof bits); }

    bool valid() const { return (bits >> 61 & 3) == 1; }
    unsigned phase() const { return (unsigned)(bits >> 63); }
    unsigned count() const { return (unsigned)bits & most_arrivals; }
    unsigned pending() const { return (unsigned)(bits >> 20) & most_arrivals; }
    int bytes() const { return (int)((int64_t)(bits << 3) >> 43); }
};

void emu_mbarrier_one_more(unsigned address, emu_site site);   // one more arrival, in this phase only
