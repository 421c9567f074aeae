// What the tracer knows. Each access of a thread goes into a log of its own; the logs of a block are read when all of its
// threads have come to a barrier, side by side, as if the threads had run in step.
#pragma once
#include "block.h"
#include "trace_results.h"

enum class Access : uint8_t {
    read, write, atomic,
    atomic_store,                 // one that does not read: what a program begins with
    volatile_read, volatile_write,   // the latter only where fences are followed: in a log it is a write
    copy_read,                    // by a cp.async.cg, which goes around the L1 cache
    copy_issued,                  // cp.async: the bytes are on their way to shared memory
    copy_arrived,                 // its wait has returned
    warp_sync,                    // no access: a __syncwarp(), whose number stands in `address`
};

inline bool is_atomic(Access a) { return a == Access::atomic || a == Access::atomic_store; }
inline bool is_read(Access a) { return a == Access::read || a == Access::volatile_read || a == Access::copy_read; }

struct LogEntry {
    uint64_t address;
    uint32_t place;               // the program counter, relative to the library; of a __syncwarp(), the lanes
    uint8_t log_bytes;
    Access access;
    uint8_t space;                // 0: shared memory; n: the n-th of the tracer's arrays, counted from 1
    uint8_t value;                // of a write, for the sanitizer: a digest of what was written; 0: unknown. Of a copy_read:
                                  // to which 32 bytes of shared memory it goes, modulo 256
};

struct Array { uintptr_t low, high; unsigned element_bytes; };
static const unsigned most_arrays = 64, most_variables = 128;   // more __device__ and __constant__ variables are not watched

struct Races;
struct Counters;
struct AsyncCounters;
struct Rules;
struct Recorder;
struct Fences;

struct Tracer {                   // one for each OS thread
    Block* block;
    const emu_tracing* tracing;
    emu_trace_results* results;
    bool watching;                // the block that runs is one of those to trace,
    bool logging;                 // and all of its accesses go into the logs: neither asynccheck nor the recorder takes them
    bool reading;                 // in step: shared memory may be read now, not written
    Array arrays[most_arrays + most_variables];   // those of the launch; from most_arrays on, for racecheck, the variables
    unsigned array_count, variable_count;
    uint8_t* statics;             // for each word of the shared-memory window
    LogEntry* logs;
    Races* races;                 // null without the sanitizer
    Counters* counters;           // null without the profiler
    AsyncCounters* async_counters;   // null but for the profiler of a kernel for sm_90a
    Rules* rules;                 // null but for the sanitizer of a kernel for sm_90a
    Recorder* recorder;           // null but where a block is recorded
    Fences* fences;               // null but for the sanitizer of a kernel that calls a fence
};

static inline void emu_watch(Tracer& t, bool watching) { t.watching = watching, t.logging = watching && !t.rules && !t.recorder; }
