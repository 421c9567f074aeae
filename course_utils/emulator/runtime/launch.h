// One kernel launch, as the Python side describes it. Mirrored field by field in ../launch.py.
#pragma once
#include "report.h"

struct emu_span { char* address; uint64_t bytes; };

struct emu_launch {
    void (*kernel)(void** arguments);
    void** arguments;                 // one pointer per kernel argument, as for cuLaunchKernel
    emu_dim3 grid, block;
    uint32_t dynamic_shared, os_threads;
    double time_limit;                // seconds
    char* (*dynamic_shared_base)();   // of the kernel's module, for the calling OS thread
    const emu_span* globals;          // the module's __device__ and __constant__ variables,
    char* global_values;              // and their values one after the other: first theirs, in the end the worker's
    uint64_t global_count;
    emu_report* report;               // in memory that the worker shares with its parent
};

// Starts a worker process that runs the launch; returns its process id, or -errno.
extern "C" int emu_start(const emu_launch* launch);
