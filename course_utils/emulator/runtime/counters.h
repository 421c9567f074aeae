// The profiler's counters, as the tracer calls them.
#pragma once
#include "tracer.h"

Counters* emu_new_counters();
void emu_count(Tracer& t);                    // reads the logs
void emu_close_requests(Tracer& t);
void emu_count_copied(Tracer& t, unsigned array, const char* from, uint64_t bytes, bool is_load);   // by the copy engine
unsigned emu_array_of(const Tracer& t, const char* address);   // of the launch; their number: of none
void emu_merge_counters(Tracer& t);
void emu_prepare_touched(const emu_launch* launch);  // by the worker: at its start,
void emu_count_touched(const emu_tracing* tracing);    // and in the end
