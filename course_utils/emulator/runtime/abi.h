// What a compiled kernel and the runtime agree on. Included by both, and by nothing else.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "defects.h"

#define EMU_SHARED_LIMIT 232448   // 227 KB: what one block of the emulated device may use, and the size of its dynamic array

struct emu_dim3 { unsigned x, y, z; };

// What a CUDA thread knows about itself: threadIdx, blockIdx and the rest are fields of this.
struct emu_thread {
    emu_dim3 thread_idx, block_idx, block_dim, grid_dim;
    unsigned linear_id, lane, warp;
    emu_dim3 cluster_dim;         // blocks; 1 each where the kernel has no __cluster_dims__
    unsigned cluster_rank;        // of the block in its cluster
    mutable unsigned carry;       // CC.CF of PTX: what the last instruction with .cc carried out
};

// A place in the learner's source. As a default argument it names the line of the caller.
struct emu_site { const char* file; int line; };
static constexpr emu_site emu_here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

// One lane's part in a warp collective (shuffle, vote, ldmatrix, mma). Each lane brings its operands in a struct that
// derives from this one; the last lane to arrive calls `combine`, which fills in the results of all of them.
enum : unsigned char { EMU_ORDERS_MEMORY = 1, EMU_IS_RECORDED = 2 };   // its type says so; the kernel is built for recordings
struct emu_collective {
    static constexpr bool orders_memory = false;   // __syncwarp(): what its lanes wrote before is seen by its lanes after
    void (*combine)(emu_collective** lanes, unsigned participants);  // lanes[32], null where absent
    const char* name;
    emu_site site;
    unsigned mask;
    unsigned char noticed;        // why the runtime looks at it: EMU_ORDERS_MEMORY, EMU_IS_RECORDED
};

// Where a byte of shared memory lies once the chunks of 16 bytes in rows of 32, 64 or 128 bytes have changed places; 16: none.
// base: at which 128 bytes the pattern begins.
static inline unsigned emu_swizzled(unsigned address, unsigned row_bytes, unsigned base = 0) {
    return address ^ ((address >> 7) - base & (row_bytes / 16 - 1)) << 4;
}

// wgmma.mma_async: what one warp does of a product, its 16 of the 64 rows of D = A B + D. Each lane has n / 2 numbers of D.
struct emu_wgmma {
    void (*multiply)(const emu_wgmma* product);
    emu_site site;
    unsigned n, depth, warp;      // columns of D and B; terms of a sum; which of the four warps of its warpgroup
    float** d;                    // [32][n / 2]: where each lane has its numbers; or, if they are side by side, [32]
    bool side_by_side;
    const unsigned (*a)[4];       // [32]: each lane's part of A,
    bool a_in_registers;          // or a descriptor
    uint64_t a_descriptor, b_descriptor;
    bool add, negate_a, negate_b, transpose_a, transpose_b;
    bool exact;                   // sums are as good as fp32 has them, and not as silicon cuts them
    // While the block is traced: where the kernel calls it; each lane's four places of A in registers; and which 16 bytes of
    // shared memory the warp reads, as their addresses: up to 544.
    uintptr_t place;
    const void* const* a_places;
    unsigned (*chunks)(const emu_wgmma* product, unsigned* addresses);
};

// How a bulk copy differs from a plain one.
typedef void (*emu_combine)(void* to, const void* from);   // what a store does to one element in memory
struct emu_bulk_more {
    unsigned blocks;              // a load goes to all of these blocks of the cluster, a bit each; 0: where its address says
    const emu_combine* combine;   // null: a store takes the place of what is there. With a tensor map: by type
    unsigned element_bytes;       // of what is combined, without a tensor map
};

// ATOMIC_GUARDED: what the thread has read before may be old, the result is right all the same: CAS, min, max, and, or. Of a
// PREFETCH only the bounds count.
enum emu_touch_kind {
    EMU_TOUCH_READ, EMU_TOUCH_WRITE, EMU_TOUCH_ATOMIC, EMU_TOUCH_ATOMIC_GUARDED, EMU_TOUCH_ATOMIC_STORE, EMU_TOUCH_PREFETCH,
};
enum emu_space { EMU_GLOBAL_SPACE, EMU_SHARED_SPACE, EMU_LOCAL_SPACE };

extern "C" {
__attribute__((const)) const emu_thread* emu_self();      // a fiber never changes its thread: safe to hoist

int emu_barrier(int predicate, emu_site site);            // __syncthreads(); returns how many brought a true predicate
void emu_collect(emu_collective* mine);                   // returns when every lane of mine->mask has arrived
void emu_absent_lane(const emu_collective* reads, unsigned lane, unsigned source);   // a shuffle of `lane` reads one that is not there
void emu_leave();                                         // the kernel's own `return;`, before its closing brace

// A 32-bit shared address, as PTX wants it: of the block's own memory, or, as mapa makes it, of another block's.
unsigned emu_shared_offset(const void* pointer);
void* emu_shared_pointer(unsigned address);
unsigned emu_map_to_block(unsigned address, unsigned rank, emu_site site);
unsigned emu_rank_of(unsigned address);
void emu_cluster_arrive(emu_site site);                   // barrier.cluster
void emu_cluster_wait(emu_site site);
void emu_set_registers(unsigned count, emu_site site);    // setmaxnreg: waits until the block has as many
uint64_t emu_steps();                                     // clock64()

void emu_copy_async(void* to, const void* from, unsigned bytes, unsigned source_bytes, bool around_l1, emu_site site);
void emu_copy_commit();
void emu_copy_wait(unsigned groups_in_flight);
void emu_record_copy(void* to, const void* from, unsigned bytes, unsigned source_bytes, emu_site site);   // the same, in a build for
void emu_record_copy_wait(unsigned groups_in_flight);                                                     // recordings

// Barriers 0 to 15 of a block, for `threads` of its threads: bar.sync, bar.arrive (which does not wait), bar.red. Returns how
// many of them brought a true predicate.
int emu_named_barrier(unsigned id, unsigned threads, int predicate, bool waits, emu_site site);

// An mbarrier: 64 bits of shared memory (mbarrier.h). A state is the phase that an arrival was in.
void emu_mbarrier_init(unsigned address, unsigned count, emu_site site);
void emu_mbarrier_invalidate(unsigned address, emu_site site);
// releases: not with .relaxed
uint64_t emu_mbarrier_arrive(unsigned address, unsigned count, unsigned expected_bytes, bool may_complete, bool releases, emu_site site);
uint64_t emu_mbarrier_drop(unsigned address, unsigned count, bool releases, emu_site site);  // arrives, also for all later phases
unsigned emu_mbarrier_pending(uint64_t state);             // before the arrival that gave this state
void emu_copies_arrive(unsigned address, bool expects, emu_site site);
void emu_mbarrier_transfer(unsigned address, int bytes, emu_site site);      // expect_tx: more bytes; complete_tx: less
bool emu_mbarrier_test(unsigned address, unsigned parity, bool waits, emu_site site);   // whether that phase is over

void emu_wgmma_start(const emu_wgmma* product);            // what stands in it is copied
void emu_wgmma_commit();                                   // for a warp
void emu_wgmma_wait(unsigned groups_in_flight, emu_site site);   // until the other warps have started as much, too
// For asynccheck, in a build that reports its accesses.
void emu_wgmma_fence();
void emu_proxy_fence(bool only_barriers);                  // only_barriers: fence.mbarrier_init
uintptr_t emu_place();                                     // where this is called

// cp.async.bulk and, with a tensor map, cp.async.bulk.tensor: a load says its bytes to an mbarrier, a store is of a group.
void emu_bulk_copy(bool is_load, unsigned shared, void* global, unsigned bytes, unsigned barrier, const emu_bulk_more& more,
                   emu_site site);
void emu_bulk_box(bool is_load, unsigned shared, const void* map, const int* at, unsigned rank, unsigned barrier,
                  const emu_bulk_more& more, emu_site site);
void emu_check_map(const void* map, unsigned rank, const int* at, emu_site site);   // rank 0: any; at: of a box to prefetch, or null
void emu_bulk_commit();
void emu_bulk_wait(unsigned groups_in_flight, bool only_read);
void emu_bulk_between(unsigned to, unsigned from, unsigned bytes, unsigned barrier, emu_site site);   // to another block's
void emu_store_async(unsigned to, const void* values, unsigned bytes, unsigned barrier, emu_site site);   // st.async

size_t emu_shared_bytes();                                 // of the shared-memory window
unsigned emu_dynamic_shared_bytes();                       // that the launch asked for
emu_space emu_space_of(const void* pointer);
unsigned emu_active_mask(emu_site site);                   // __activemask(): the lanes that come here before all others wait

void emu_count_exponential();                             // ex2.approx, while the block is traced
void emu_touch(const void* address, unsigned bytes, emu_touch_kind kind);   // an access, at the line of the caller

void emu_fence(bool between_blocks);                      // __threadfence(), __threadfence_block()
int emu_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
void emu_yield();                                         // __nanosleep(): let the other threads of the block go on
[[noreturn]] void emu_trap(const char* message, emu_site site);
[[noreturn]] void emu_assert(const char* condition, const char* function, emu_site site);   // a failed assert()
// What an instruction of sm_90a does not take: a finding of asynccheck, and the end of the launch. name: the instruction's.
[[noreturn]] void emu_misuse(emu_kind kind, emu_site site, emu_figures figures = {}, const char* name = "");
}
