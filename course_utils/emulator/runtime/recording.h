// What the recording of one block leaves: what its warps did, in the order in which they did it. Mirrored in ../raw_recording.py,
// field by field. Most of it stays untouched, and takes no memory.
#pragma once
#include "abi.h"

// As `OPS` in ../recorded.py has them.
enum emu_op : uint32_t {
    EMU_OP_READ, EMU_OP_WRITE, EMU_OP_ATOMIC,
    EMU_OP_COPY_READ, EMU_OP_COPY_WRITE,   // by who copies: a thread's cp.async, the copy engine, or a tensor core (reads only)
    EMU_OP_BARRIER, EMU_OP_WARP_BARRIER,
    EMU_OP_PRODUCT,                        // mma.sync
    EMU_OP_WGMMA, EMU_OP_COPY,             // started
    EMU_OP_ARRIVE, EMU_OP_WAIT,            // at an mbarrier: `array`, and `extra` is its offset there; else an emu_waited
    EMU_OP_END,                            // what the step `extra` began is over
    EMU_OP_EXCHANGE,                       // between the lanes of a warp: a shuffle, a vote, ldmatrix
    EMU_OP_PHASE,                          // of an mbarrier, with `width` as its parity, is over
    EMU_OP_WRITE_BEHIND,                   // a write that belongs behind the step `extra`, where Python puts it
};

// What there is to arrive at and to wait for besides mbarriers: barriers 0 to 15 of the block by their numbers, and these.
enum emu_waited : int32_t { EMU_CLUSTER = 16, EMU_PRODUCTS, EMU_STORES, EMU_CP_ASYNC };

// A request of one warp: its lanes did the same thing at the same place at the same time.
struct emu_step {
    uint32_t turn;                // rounds of the block so far: in each, every warp that can go on makes one step
    int32_t warp;                 // -1: of no warp
    uint32_t place;               // the number of a call; emu_no_place
    int32_t array;                // of the launch; then the __shared__ variables, then dynamic shared memory; -1: none
    uint32_t mask;                // lanes
    uint32_t width;               // bytes of a lane
    uint32_t first;               // its first row; there are as many as lanes, if the op has addresses
    int32_t extra;                // of an access of no array, which has no width: the bytes of a lane
    uint32_t op;
};
static const uint32_t emu_is_site = 1u << 31, emu_no_place = 0;

struct emu_recorded_site { int32_t line; char file[252]; };

// Where a thread is: at a program counter, relative to the library (emu_is_site: the number of a site), and in which call. Number 0
// is where the kernel itself is called.
struct emu_call { uint32_t counter, caller, depth; };

// What Python says of the functions that have variables, by ascending addresses. A variable has `count` elements of 1, 2 or 4 bytes at
// `offset` from the frame's register, or is a pointer. Its frame's variables lie between `low` and `high`. returns: the bytes of the
// struct that it returns; 0: none.
struct emu_function { uint32_t start, end; int32_t low, high; uint32_t first, count, returns; };
struct emu_variable { int32_t offset; uint32_t bytes, count, is_parameter, is_pointer; };

// What was new just before this step. Of a pointer that points into shared memory now: the array, and in `word` the offset there.
struct emu_change { uint32_t step, thread, variable, element, word; };

enum emu_full : uint32_t { EMU_NOT_FULL, EMU_FULL, EMU_IDLE };   // idle: its warps take turns, and touch no memory

struct emu_recording {
    uint32_t most_rows;           // by Python: how many rows the caller wants at most
    uint32_t full;                // there was no room for all: an emu_full
    uint32_t step_count, row_count, word_count, site_count, call_count, change_count;
    uint32_t function_count;
    uint32_t statement_count;     // by Python; 0: nobody knows where statements begin
    double patience;              // by Python: seconds of computing in which the launch must come further, to a step or to the next block
    uint32_t block_count, padding;   // that have begun
    emu_function functions[1024];
    emu_variable variables[16 << 10];
    uint32_t statements[256 << 10];   // where the code of another statement begins, ascending: of another line or column
    emu_recorded_site sites[1024];
    emu_call calls[64 << 10];
    emu_step steps[4 << 20];
    uint32_t rows[16 << 20];      // the offset in the array
    emu_change changes[16 << 20];
    uint32_t words[32 << 20];     // what each row of a write left, in words, of less than a word in its low bytes
};
