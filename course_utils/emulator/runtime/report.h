// What a launch tells the process that started it. Mirrored field by field in ../report.py.
#pragma once
#include "abi.h"

enum emu_outcome : uint32_t {
    EMU_RUNNING = 0,          // also what is left behind by a worker that died without a word
    EMU_FINISHED = 1,
    EMU_CRASH = 2,            // a signal: the program counter says where
    EMU_TIME_LIMIT = 3,
    EMU_DIVERGENT = 4,
    EMU_STUCK = 5,
    EMU_BAD_COLLECTIVE = 6,
    EMU_TRAP = 7,             // assert() or __trap()
    EMU_UNDEFINED = 8,        // of C++, not of a GPU (undefined.cpp): the launch is to be run again, built by clang
};

// Where the kernel was at a moment after the time limit.
struct emu_sample {
    uint64_t program_counter;
    int32_t waited_at;        // the line of the thread's last barrier or collective: it is there where the counter says nothing
    int32_t padding;
};
#define EMU_SAMPLES 256

struct emu_report {
    uint32_t outcome;
    int32_t line;             // 0: unknown, look the program counter up
    char file[4096];
    emu_defect defect;            // why, where the sanitizer has the same as a finding; else
    char message[512];        // in words
    uint64_t program_counter, address;
    uint32_t sample_count;
    emu_sample samples[EMU_SAMPLES];
    emu_dim3 block, thread;
    uint32_t has_thread;      // after the time limit: whether each sample is of this thread
    uint32_t access;          // of a crash: 0 unknown, 1 read, 2 write
    uint64_t blocks_done;     // how far the launch is: who waits for it reads this meanwhile
    uint64_t print_lost;      // bytes that found no room in `output`
    uint32_t printed;         // bytes in `output`
    char output[1 << 20];           // device printf: 1 MiB, as CUDA's default FIFO
};
