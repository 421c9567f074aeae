// What the sanitizer found and the profiler counted in a launch. Mirrored field by field in ../trace_results.py.
#pragma once
#include "abi.h"

enum emu_tool : uint32_t { EMU_MEMCHECK, EMU_RACECHECK, EMU_INITCHECK, EMU_SYNCCHECK, EMU_ASYNCCHECK };

// What a party of asynccheck did, as ../words.py says it. What is started goes on by itself. The last two are nobody's deeds:
// the other event is that the kernel begins, or that the block ends.
enum emu_deed : uint32_t {
    EMU_NO_DEED, EMU_READS, EMU_WRITES, EMU_STARTS_PRODUCT, EMU_STARTS_COPY, EMU_STARTS_STORE, EMU_STARTS_CP_ASYNC, EMU_INITIALISES,
    EMU_USES, EMU_BEGINS, EMU_ENDS,
};

// What touches memory, where it is no plain load or store.
enum emu_by : uint32_t {
    EMU_BY_THREAD, EMU_BY_PREFETCH, EMU_BY_BULK_COPY, EMU_BY_BULK_REDUCTION, EMU_BY_LDMATRIX, EMU_BY_STMATRIX, EMU_BY_ATOMIC,
    EMU_BY_CP_ASYNC,
};

struct emu_finding {
    uint32_t tool, by, bytes, is_write, is_shared;
    uint32_t by_flags;            // of a race: flags order threads there, and not barriers alone
    uint32_t has_other, same_warp;
    uint32_t deed, other_deed;    // of asynccheck, each an emu_deed,
    uint32_t step, other_step;    // when: the number of the access, product or copy in the cluster,
    uint32_t look;                // of a race of a plain read with an atomic: the place of the read; 0: another finding
    uint64_t place, other_place;  // program counters, relative to where the library is loaded; 0: see `line`
    uint64_t address, count;
    emu_dim3 block, thread, other_block, other_thread;
    int32_t line, other_line;     // where the place is known without its program counter; other_line 0: see `other_place`
    char file[256], other_file[256];
    emu_defect defect;
};

enum emu_operation : uint32_t { EMU_LOAD, EMU_STORE, EMU_ATOMIC };

struct emu_counter {
    uint64_t place;
    uint32_t is_shared, operation;
    uint64_t requests, bytes, sectors, ideal_sectors, wavefronts, ideal_wavefronts;
};

// What a line of a kernel for sm_90a asks for. which: of a copy, the array of the launch (none: the number behind them); of a
// wait, the warp.
enum emu_async_kind : uint32_t { EMU_PRODUCT, EMU_COPY_IN, EMU_COPY_OUT, EMU_COPY_BETWEEN, EMU_WAIT };
struct emu_async_counter {
    uint64_t place;
    uint32_t kind, which;
    uint64_t count, flops, global_bytes, shared_bytes, idle;   // idle: turns that other threads of the block took meanwhile
};

struct emu_touched { uint64_t read, written, loaded; };   // bytes of one array: distinct ones, and as often as asked for

struct emu_trace_results {
    uint32_t finding_count, findings_dropped, counter_count, counters_dropped;
    uint64_t blocks_traced, asynchronous_count;
    uint64_t exponentials, beside_products;   // of threads of a kernel for sm_90a; of these, while a product of their warp ran
    uint64_t most_in_flight;                  // bytes of loads that one block had on their way at once
    emu_touched touched[64];
    emu_finding findings[256];
    emu_counter counters[8192];
    emu_async_counter asynchronous[1024];
};
