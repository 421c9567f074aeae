// The profiler's counters, as the tracer calls them.
#pragma once
#include "tracer.h"

Counters* emu_new_counters();
void emu_count(Tracer& t);                    // reads the logs
void emu_close_requests(Tracer& t);
void emu_merge_counters(Tracer& t);
void emu_prepare_touched(const emu_tracing* tracing);  // by the worker: at its start,
void emu_count_touched(const emu_tracing* tracing);    // and in the end
