// What the sanitizer has found so far, one entry for each mistake, added by the scheduler or the tracer.
#pragma once
#include "trace_results.h"

emu_defect emu_defect_of(emu_kind kind, emu_figures figures = {}, const char* name = "");
emu_finding emu_finding_at(const emu_thread* thread, emu_tool tool, emu_kind kind, uint64_t place);
void emu_find(emu_trace_results* results, const emu_finding& finding);

extern uintptr_t emu_load_base, emu_load_end;   // of the kernel's library; the worker sets them
extern const emu_dim3* emu_preferred;           // as in emu_tracing; the worker sets it
// The place of a call, by where it returns to; 0: unknown.
static inline uint32_t emu_place_of(uintptr_t return_address) {
    return return_address ? (uint32_t)(return_address - 1 - emu_load_base) : 0;
}

// Places of plain reads that an atomic then guards: such a read does not race with atomics.
void emu_add_look(uint32_t place);
bool emu_knows_look(uint32_t place);
extern bool emu_has_looks;                // most launches have none
static inline bool emu_is_look(uint32_t place) {
    return emu_has_looks && emu_knows_look(place);
}
void emu_drop_looks(emu_trace_results* results);   // in the end, when all of these places are known: findings of such reads

bool emu_is_finding();   // this OS thread is in emu_find(): a signal handler must not call it
