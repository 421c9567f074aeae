// One kernel launch, as the Python side describes it. Mirrored field by field in ../launcher.py.
#pragma once
#include "report.h"

struct emu_span { char* address; uint64_t bytes; };

struct emu_array { char* address; uint64_t bytes, element_bytes; };   // 0 bytes per element: the kernel may not write it

// is_guard: one of the words by which the compiler remembers what it has set up.
struct emu_static { uint32_t offset, bytes, is_guard; };

// What to watch in a launch of a library that was built for it.
struct emu_trace_results;
struct emu_recording;
struct emu_tracing {
    uint32_t sanitize, profile, in_step, hopper;   // hopper: the kernel is for sm_90a
    uint32_t fences;                  // it calls emu_fence()
    const emu_array* arrays;          // the arguments, by ascending addresses
    uint64_t array_count;
    emu_span reserved;                // the address space in which they lie, with nothing between them
    const uint64_t* blocks;           // linear indices of the blocks to trace, ascending; none: all
    uint64_t block_count;
    const emu_static* statics;        // the __shared__ variables
    uint64_t static_count;
    emu_trace_results* results;
    emu_recording* recording;         // null, but where the one block of `blocks` is to be recorded
    const emu_dim3* preferred;        // the block of which a finding tells if it is in several; null: the first of them
};

enum emu_order : uint32_t { EMU_LATE, EMU_EARLY, EMU_RANDOM };
enum emu_thread_order : uint32_t { EMU_FORWARD, EMU_REVERSE, EMU_ANY };

struct emu_launch {
    void (*kernel)(void** arguments);
    void** arguments;                 // one pointer per kernel argument, as for cuLaunchKernel
    emu_dim3 grid, block, cluster;    // cluster: blocks of one, in each direction
    uint32_t dynamic_shared, os_threads;
    uint32_t order, seed;             // when products and copies are done: an emu_order
    uint32_t thread_order;            // which of the threads that can go on does: an emu_thread_order
    double time_limit;                // seconds
    uint32_t exact_sums;              // of wgmma: not cut as silicon cuts them
    char* (*dynamic_shared_base)();   // of the kernel's module, for the calling OS thread
    const emu_span* globals;          // the module's __device__ and __constant__ variables,
    char* global_values;              // and their values one after the other: first theirs, in the end the worker's
    uint64_t global_count;
    emu_report* report;               // in memory that the worker shares with its parent
    const emu_tracing* tracing;       // null: a plain launch
};
