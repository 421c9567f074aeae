// The sanitizer and the profiler. Each access of a thread goes into a log of its own; the logs of a block are read when all
// of its threads have come to a barrier, side by side, as if the threads had run in step.
#pragma once
#include "block.h"
#include "trace_results.h"

enum class Access : uint8_t {
    read, write, atomic,
    volatile_read,
    copy_read,                    // by a cp.async.cg, which goes around the L1 cache
    copy_issued,                  // cp.async: the bytes are on their way to shared memory
    copy_arrived,                 // its wait has returned
    warp_sync,                    // no access: a __syncwarp(), whose number stands in `address`
};

inline bool is_read(Access a) { return a == Access::read || a == Access::volatile_read || a == Access::copy_read; }

struct LogEntry {
    uint64_t address;
    uint32_t place;               // the program counter, relative to the library; of a __syncwarp(), the lanes
    uint8_t log_bytes;
    Access access;
    uint8_t space;                // 0: shared memory; n: the n-th array of the launch, counted from 1
    uint8_t value;                // of a write to shared memory: a digest of what was written; 0: unknown. Of a copy_read:
                                  // to which 32 bytes of shared memory it goes, modulo 256
};

struct Array { uintptr_t low, high; unsigned element_bytes; };

struct Races;
struct Counters;

struct Tracer {                   // one for each OS thread
    Block* block;
    const emu_tracing* tracing;
    emu_trace_results* results;
    bool watching;                // the block that runs is one of those to trace
    bool finding;                 // in emu_find()
    Array arrays[64];
    unsigned array_count;
    uint8_t* statics;             // for each word of the shared-memory window
    LogEntry* logs;
    Races* races;                 // null without the sanitizer
    Counters* counters;           // null without the profiler
};

extern uintptr_t emu_load_base, emu_load_end;   // of the kernel's library, in this worker

// ---- called by the block
void emu_prepare_tracer(Block& b);            // once per OS thread
void emu_release_tracer(Block& b);            // adds this thread's counters to the results
void emu_trace_start(Block& b);               // a block starts
void emu_trace_interval(Block& b);            // all of its threads have come to a barrier, or to their end
void emu_trace_logs(Block& b);                // reads the logs so far
void emu_trace_leave_room(Fiber* f);
void emu_trace_settle(Fiber* f);              // before another thread may run: notes what this one has just written
void emu_trace_warp_sync(Warp& w, uint32_t participants);

void emu_record_access(uintptr_t address, size_t bytes, Access access, uintptr_t counter);   // by the current thread
void emu_record_target(Fiber* f, uintptr_t to);            // of the copy_read that it has just recorded
void emu_find_misaligned(emu_site site, unsigned bytes);   // a cp.async of so many bytes

// ---- called by the parts of the tracer
void emu_find(Tracer& t, const emu_finding& finding);
emu_finding emu_finding_at(const Fiber* fiber, emu_finding_kind kind, uint64_t place);

Races* emu_new_races(Tracer& t);
void emu_start_races(Races& r);
void emu_check_races(Tracer& t);              // reads the logs
void emu_end_race_interval(Tracer& t);
void emu_find_conflicts();                    // by the worker, in the end: between blocks

Counters* emu_new_counters();
void emu_count(Tracer& t);                    // reads the logs
void emu_close_requests(Tracer& t);
void emu_merge_counters(Tracer& t);
void emu_prepare_touched(const emu_tracing* tracing);  // by the worker: at its start,
void emu_count_touched(const emu_tracing* tracing);    // and in the end
