// What can be wrong with a kernel. ../words.py has a sentence for each kind, in this order.
#pragma once
#include <stdint.h>

enum emu_kind : uint32_t {
    EMU_NOTHING,
    // memcheck. figures: of an index, the index; of a misaligned access, by how many bytes and of how many
    EMU_OUT_OF_BOUNDS, EMU_PAST_DYNAMIC_SHARED, EMU_INDEX_OUT_OF_BOUNDS, EMU_MISALIGNED,
    // racecheck and initcheck
    EMU_READ_AFTER_WRITE, EMU_WRITE_AFTER_READ, EMU_WRITE_AFTER_WRITE, EMU_COPY_IN_FLIGHT, EMU_UNINITIALISED,
    // synccheck. figures: the other thread, and its line; how many wait, how many there are, and the thread that ran past
    EMU_DIVERGENT_BARRIER, EMU_BARRIER_RUN_PAST,
    EMU_DIFFERENT_COLLECTIVES,    // the line of the other one
    EMU_LANE_NOT_IN_ITS_MASK,     // the mask, the lane
    EMU_LANE_NOT_IN_BLOCK, EMU_LANE_NOT_IN_MASK, EMU_LANE_HAS_LEFT,   // which lane reads, which one
    // A deadlock as a whole, and where a thread waits in one. figures: as in emu_wait
    EMU_DEADLOCK,
    EMU_STUCK_AT_BARRIER, EMU_STUCK_IN_COLLECTIVE, EMU_STUCK_AT_NAMED_BARRIER, EMU_STUCK_AT_MBARRIER, EMU_STUCK_AT_PRODUCT,
    EMU_STUCK_AT_CLUSTER_BARRIER, EMU_STUCK_FOR_REGISTERS,
    // asynccheck: what is not in order
    EMU_BLOCK_NOT_STARTED,        // which block of the cluster
    EMU_COPY_NOT_WAITED_FOR, EMU_OVERWRITES_OPERAND, EMU_WRITES_INTO_COPY, EMU_OPERAND_NOT_COME, EMU_OPERAND_RACE,
    EMU_OPERAND_NOT_FENCED, EMU_MBARRIER_NOT_YET_INITIALISED, EMU_MBARRIER_NOT_PUBLISHED, EMU_ACCUMULATOR_IN_FLIGHT,
    EMU_FACTOR_IN_FLIGHT, EMU_ACCUMULATOR_OF_ANOTHER_SHAPE, EMU_REGISTER_NOT_FENCED, EMU_ACCUMULATOR_NOT_FENCED,
    EMU_DIFFERENT_PRODUCTS, EMU_WARPS_FENCE_APART, EMU_LANES_FENCE_APART, EMU_NO_WGMMA_FENCE, EMU_COPY_OVERWRITES_COPY,
    EMU_COPY_OVERWRITES_WRITE, EMU_COPY_OVERWRITES_READ,
    EMU_LOAD_LEFT_BEHIND, EMU_COPY_READS_EXITED_BLOCK, EMU_STORE_NOT_WAITED_FOR, EMU_PRODUCT_NOT_WAITED_FOR, EMU_PRODUCT_NOT_COMMITTED,
    EMU_BLOCK_MAY_HAVE_EXITED,    // which block of the cluster
    EMU_WARP_WITHOUT_REGISTERS, EMU_WARP_WITHOUT_PRODUCT,   // the warp
    EMU_MBARRIER_LACKS_BYTES, EMU_MBARRIER_HAS_BYTES_TOO_MANY,   // how many
    // asynccheck: what an instruction does not take; the launch ends
    EMU_DESCRIPTOR_BITS, EMU_DESCRIPTOR_PAST_SHARED, EMU_DIFFERENT_DESCRIPTORS, EMU_NEEDS_ALL_LANES, EMU_PREFETCH_SIZE, EMU_REGISTER_COUNT,
    EMU_BARRIER_NUMBER,           // the number
    EMU_BARRIER_THREADS,          // the number of the barrier, the threads
    EMU_BARRIER_OF_TWO_SIZES,     // the number of the barrier, the threads here, those in the line that is the fourth
    EMU_CLUSTER_ARRIVES_TWICE, EMU_CLUSTER_WAITS_FIRST,
    EMU_MBARRIER_ADDRESS,         // the address
    EMU_MBARRIER_OF_EXITED_BLOCK, EMU_NO_MBARRIER,
    EMU_MBARRIER_COUNT,           // how many arrivals at most, and how many it got
    EMU_TOO_MANY_ARRIVALS,        // arrivals here, to come, of a phase
    EMU_LAST_ARRIVAL_COMPLETES,
    EMU_EXPECTS_TOO_MANY_BYTES,   // at most
    EMU_COUNTS_TOO_MANY_BYTES,    // at most, got
    EMU_MBARRIER_OF_ANOTHER_BLOCK, EMU_SHARED_OF_EXITED_BLOCK,
    EMU_NO_SUCH_BLOCK,            // the last block of the cluster, got
    EMU_COPY_TO_EXITED_BLOCK,
    EMU_SHARED_ALIGNMENT,         // a multiple of, got
    EMU_PAST_SHARED,              // bytes, from which address on
    EMU_NO_SUCH_BLOCKS,           // the mask, the blocks of the cluster
    EMU_BULK_ALIGNMENT, EMU_NO_TENSOR_MAP,
    EMU_TENSOR_MAP_RANK,          // of the instruction, of the map
    EMU_BOX_ALIGNMENT,            // the element, its bytes
    EMU_BOX_BEFORE_START,         // the coordinate
    EMU_NO_SUCH_REDUCTION,
    EMU_TOO_MANY_MBARRIERS,       // at most, the blocks of the cluster
};

struct emu_figures { long long of[5]; };

// Threads of a block that wait at one place for good. figures: of a named barrier its number, the threads that have arrived and
// those that must; of an mbarrier the parity, its phase, the arrivals to come, those of a phase, and the bytes to come; of
// barrier.cluster the threads that are missing; of setmaxnreg the registers that there are.
struct emu_wait {
    uint32_t kind, threads;       // kind: one of EMU_STUCK_...
    int64_t line;
    emu_figures figures;
    char name[64];                // of the collective
};

struct emu_defect {
    uint32_t kind, wait_count;    // kind: an emu_kind
    uint64_t threads;             // of a deadlock: how many wait here
    emu_figures figures;          // whose meaning is the kind's
    char name[128];               // of an instruction, a collective, or the type of an array
    char other_name[64];          // of the collective that another lane is in
    emu_wait waits[8];            // of a deadlock: the places where threads of the block wait, up to eight
};
