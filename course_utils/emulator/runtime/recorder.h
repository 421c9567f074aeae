// The recorder: what one block does, step by step. Its threads go in step: each stops before whatever it does, and once all have
// stopped, one group of lanes of each warp goes on, as on hardware. Each call returns at once where nobody records.
#pragma once
#include "recording.h"
#include "tracer.h"

struct Recorder;

// Of the block that runs, if it is the one to record; or null.
static inline Recorder* emu_recorder() {
    return emu_block->recorder;
}

// What a thread is about to do. counter: where, as in an emu_call; 0: unknown, or where the copy that arrives was issued.
struct emu_intent {
    emu_op op;
    uint32_t counter;
    uintptr_t address;            // 0: of no memory
    uint32_t width;
    int32_t extra;                // of an access outside of every array, which has no address and no width: its bytes
    bool shows_late;              // what it writes is there once the warp has met: stmatrix
    bool goes_on;                 // a piece of the access before it: of both, nothing is written yet
};

void emu_prepare_recording(const emu_tracing* tracing);     // by the worker, at its start
Recorder* emu_new_recorder(Tracer& t);
void emu_start_recording(Recorder& r);
unsigned emu_bytes_to_copy(const Recorder& r, uint32_t counter, unsigned piece);   // of a read of what the last write copies; 0: it is none
bool emu_can_record(const Recorder& r, uintptr_t address, unsigned bytes);   // whether they lie in memory that is recorded
int emu_announce(Recorder& r, const emu_intent& deed);        // returns when this thread is to do it: the number of its step
bool emu_record_turn(Recorder& r);                          // no thread can go on but those that have announced; false: none has
void emu_record_settled(Recorder& r, Fiber* f);             // f's last write is in memory,
void emu_record_stopped(Recorder& r);                       // everybody's, as far as they were made: the launch ends here,
void emu_record_last(Recorder& r);                          // and everybody's: all threads have come to their end
void emu_record_barrier(Recorder& r, unsigned id, uint32_t counter);   // a thread comes to a barrier (0: also __syncthreads()), to wait,
void emu_record_open(Recorder& r, unsigned id);             // which opens
void emu_record_phase(Recorder& r, const void* mbarrier, unsigned parity);
void emu_record_collective(Recorder& r, const emu_collective* mine);   // a thread comes to one
int emu_record_at_once(Recorder& r, emu_op op, int warp, uint32_t mask, uint32_t counter, int extra);   // by the current thread, without addresses
// What is copied: from null, zeros or registers.
struct emu_piece { const void* from; void* to; unsigned bytes; };
void emu_record_reads(Recorder& r, const emu_piece* pieces, unsigned count, int begun);
void emu_record_writes(Recorder& r, const emu_piece* pieces, unsigned count, int begun);   // they have been made
void emu_record_done(Recorder& r, const emu_intent& deed);  // what `deed.extra` has begun, by the thread emu_current, a moment ago
void emu_record_end(Recorder& r, int warp, uint32_t mask, int begun);
uint32_t emu_site_counter(Recorder& r, emu_site site);

// A function begins, of a build that says so: where that is, where it was called, and the register by which its frame is known.
void emu_record_entry(Recorder& r, uint32_t counter, uint32_t caller, char* frame);
void emu_record_exit(Recorder& r);
