// One thread block on one OS thread: its CUDA threads are fibers that take turns, and change only where CUDA itself makes
// threads wait for each other: at __syncthreads(), in warp collectives, and at the end.
#pragma once
#include <pthread.h>
#include <string.h>

#include "launch.h"

enum class State : uint8_t {
    ready, at_barrier, at_named_barrier, at_mbarrier, at_warpgroup, at_cluster_barrier, for_registers, in_collective, at_active_mask, log_full, for_turn, done
};

struct Tracer;
struct LogEntry;

// counter: where it was issued; of a recording, the number of that step
struct PendingCopy { void* to; const void* from; unsigned bytes, source_bytes, group; emu_site site; uintptr_t counter; };

struct Look { uintptr_t address; uint32_t place; };   // a plain read of memory that other threads can reach
static const unsigned most_looks = 8;

struct Fiber : emu_thread {
    void* stack_pointer;
    State state;
    bool left_early;                 // through its own `return;`
    uint32_t later;                  // the lanes of its warp behind it, a bit each
    emu_site waits_at;
    emu_collective* collective;
    PendingCopy* copies;             // cp.async, not yet waited for; the buffer is kept from block to block
    unsigned copy_count, copy_capacity, copy_group;
    uint32_t active_mask;            // what __activemask() gives
    unsigned barrier;                // where it waits: the number of a named barrier, or an mbarrier's shared address,
    unsigned parity;                 // and the parity of the phase that is to be over
    unsigned bulk_group;             // of the bulk stores that it starts now
    unsigned registers;              // what it may use, by setmaxnreg or from the start
    bool arrived;                    // at the barrier of the cluster, which has not opened since,
    bool owes_wait;                  // or, if it has, this thread has not waited for it yet
    emu_site copying;                // of the cp.async whose bytes arrive right now: a fault is its fault
    LogEntry* log;                   // while the block is traced: its accesses since the logs were last read
    unsigned logged, last_array;     // last_array: that of the last access to global memory
    LogEntry* unsettled;             // its last write to shared memory, if the log does not yet say what was written
    bool index_found;                // it has just used an index outside of an array
    uintptr_t place;                 // while the block is traced: where the kernel called its last instruction of sm_90a
    uint32_t warp_epoch;             // the number of the last __syncwarp() that the tracer has read in the log
    Look looks[most_looks];          // for the sanitizer: its last ones since the last barrier, in turn
    unsigned looked;
};

// The bytes of a copy arrive.
static inline __attribute__((always_inline)) void emu_land(Fiber* f, const PendingCopy& c) {
    f->copying = c.site;
    memcpy(c.to, c.from, c.source_bytes);
    memset((char*)c.to + c.source_bytes, 0, c.bytes - c.source_bytes);
}

struct Warp {
    uint32_t live, ready;            // one bit a lane
    uint32_t gathering;              // the lanes in __activemask()
    uint32_t syncs;                  // __syncwarp()s so far, while the block is traced
    Fiber* fiber[32];
};

// bar.sync id, threads; and what bar.red has counted. The last thread that arrives opens it.
struct NamedBarrier { unsigned threads, arrived, predicates, predicates_last; emu_site site; };

// Blocks whose threads may touch each other's shared memory. Each is on an OS thread of its own, but only one of them runs at
// a time: it hands over once none of its threads can go on.
struct Block;
struct Cluster {
    static const unsigned most_blocks = 8;
    unsigned size;
    Block* blocks[most_blocks];
    unsigned missing;                // threads that have not exited and not arrived at the cluster's barrier
    unsigned left, running, idle;    // blocks that have not ended; which one has its turn; how many had nothing to do in a row
    pthread_mutex_t mutex;
    pthread_cond_t turns;
    pthread_barrier_t between;       // one cluster and the next on the same OS threads
    struct Rules* rules;             // of asynccheck, for all blocks
};

struct Block {
    const emu_launch* launch;
    Cluster* cluster;
    unsigned rank;                   // in the cluster
    bool over;                       // its threads have exited
    bool forward;                    // in this order its threads run: the launch's thread_order
    unsigned registers_free;         // of those that the block has had from the start
    uint64_t steps;                  // turns of threads, ever
    emu_dim3 index;
    unsigned size, warp_count;
    Fiber* fibers;
    Warp warps[32];
    unsigned live, waiting;          // threads that have not exited; of those, at the barrier
    emu_site barrier_site;           // where the first of the waiting threads waits
    Fiber* elsewhere;                // a thread that waits at another barrier than the first one did
    Fiber* fell_off;                 // a thread that ran to the closing brace of the kernel
    unsigned predicates, predicates_last;
    NamedBarrier barriers[16];
    struct BulkCopies* bulk_copies;  // cp.async.bulk: those that are not yet done; kept from block to block
    bool (*do_something_asynchronous)(Block& b);   // once no thread can go on; false: there is nothing to do. Null: never
    uint64_t chance;                 // of order EMU_RANDOM: the state of its generator
    uint64_t thread_chance;          // of thread order EMU_ANY, likewise
    struct Products* products[32];   // wgmma: those of each warp that are not yet waited for; kept from block to block
    void* host_stack_pointer;
    char* own;                       // one mapping of `own_bytes`: the fibers, then their stacks
    size_t own_bytes, quiet_bytes;   // quiet: whose accesses the tracer need not see, all of them but for asynccheck
    char* stacks;                    // `size` stacks of `stack_stride` bytes, each above a guard page
    size_t stack_stride, stacks_bytes;
    char* shared_low;                // the shared-memory window: the thread-local storage of the kernel's module
    char* shared_high;
    char* dynamic_shared;
    Tracer* tracer;                  // null in a plain launch
    struct Recorder* recorder;       // null but while this block is the one to record
};

extern __thread Block* emu_block __attribute__((tls_model("initial-exec")));
extern __thread Fiber* emu_current __attribute__((tls_model("initial-exec")));   // null on the host stack

void emu_prepare_block(Block& block, const emu_launch* launch);   // once per OS thread, at its start
void emu_release_block(Block& block);                              // and at its end
void emu_run_block(Block& block, uint64_t linear_index);   // its number in the grid

// A shared address has, above these bits, 0 for the block itself or 1 + the rank of a block of its cluster.
static const unsigned emu_in_block = (1 << 24) - 1;
Block& emu_block_of(unsigned address);
unsigned emu_address_in(unsigned rank, unsigned address);

// Whether a product or a copy that may be done now or later is done now; and one of `count` things, by chance if the order is.
bool emu_happens_now();
unsigned emu_choose(unsigned count);

// Notes the place of an instruction, for the findings that it may lead to. First in a function that the kernel calls.
static inline void emu_note_place(void* return_address) {
    if (emu_block->tracer) emu_current->place = (uintptr_t)return_address;
}
#define EMU_NOTE_PLACE() emu_note_place(__builtin_return_address(0))

// What barriers are made of. `emu_stop` and then `emu_run_another`: the current thread waits until it is made ready.
void emu_stop(State why, emu_site site);
void emu_make_ready(Block& b, Fiber* f);
void emu_run_another();
void emu_open_cluster_barrier(Cluster& c);

void emu_wait_for_room();            // of a thread whose log is full

// Records the first failure of the launch; later ones are its echoes and are dropped. False: somebody was first.
bool emu_record(const emu_launch* launch, emu_outcome outcome, const Fiber* fiber, emu_site site, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

// Ends the worker process after a failure: the launch is lost, and its other blocks may wait for this one for ever.
[[noreturn]] void emu_end_worker(bool recorded);
[[noreturn]] void emu_fail_to_start(const emu_launch* launch, const char* what);   // errno says why
