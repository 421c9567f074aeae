// What a compiled kernel and the runtime agree on. Included by both, and by nothing else.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EMU_SHARED_LIMIT 232448   // 227 KB: what one block of the emulated device may use, and the size of its dynamic array

struct emu_dim3 { unsigned x, y, z; };

// What a CUDA thread knows about itself: threadIdx, blockIdx and the rest are fields of this.
struct emu_thread {
    emu_dim3 thread_idx, block_idx, block_dim, grid_dim;
    unsigned linear_id, lane, warp;
};

// A place in the learner's source. As a default argument it names the line of the caller.
struct emu_site { const char* file; int line; };
static constexpr emu_site emu_here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

// One lane's part in a warp collective (shuffle, vote, ldmatrix, mma). Each lane brings its operands in a struct that
// derives from this one; the last lane to arrive calls `combine`, which fills in the results of all of them.
struct emu_collective {
    static constexpr bool orders_memory = false;   // __syncwarp(): what its lanes wrote before is seen by its lanes after
    void (*combine)(emu_collective** lanes, unsigned participants);  // lanes[32], null where absent
    const char* name;
    emu_site site;
    unsigned mask;
    bool synchronises;            // memory, too: the `orders_memory` of its type
};

enum emu_touch_kind { EMU_TOUCH_READ, EMU_TOUCH_WRITE, EMU_TOUCH_ATOMIC };

extern "C" {
__attribute__((const)) const emu_thread* emu_self();      // a fiber never changes its thread: safe to hoist

int emu_barrier(int predicate, emu_site site);            // __syncthreads(); returns how many brought a true predicate
void emu_collect(emu_collective* mine);                   // returns when every lane of mine->mask has arrived
void emu_absent_lane(const emu_collective* reads, unsigned lane, unsigned source);   // a shuffle of `lane` reads one that is not there
void emu_leave();                                         // the kernel's own `return;`, before its closing brace

unsigned emu_shared_offset(const void* pointer);          // generic pointer -> 32-bit shared address, as PTX wants it
void* emu_shared_pointer(unsigned offset);

void emu_copy_async(void* to, const void* from, unsigned bytes, unsigned source_bytes, bool around_l1, emu_site site);
void emu_copy_commit();
void emu_copy_wait(unsigned groups_in_flight);

void emu_touch(const void* address, unsigned bytes, emu_touch_kind kind);   // an access, at the line of the caller

void emu_fence(bool between_blocks);                      // __threadfence(), __threadfence_block()
int emu_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
void emu_yield();                                         // __nanosleep(): let the other threads of the block go on
[[noreturn]] void emu_trap(const char* message, emu_site site);
}
