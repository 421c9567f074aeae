// What the sanitizer has found so far, one entry for each mistake: whoever finds one, the scheduler or the tracer, adds it here.
#pragma once
#include "trace_results.h"

emu_finding emu_finding_at(const emu_thread* thread, emu_finding_kind kind, uint64_t place);
void emu_find(emu_trace_results* results, const emu_finding& finding);

bool emu_is_finding();   // this OS thread is in emu_find(): a signal handler must not call it
