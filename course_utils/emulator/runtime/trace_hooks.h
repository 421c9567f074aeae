// The calls that go up: what the scheduler (block.cpp) tells the tracer above it (trace.cpp), while a block is traced. All
// other calls of the runtime go down.
#pragma once
#include "abi.h"

struct Block;
struct Fiber;
struct Warp;

void emu_prepare_tracer(Block& b);            // once per OS thread
void emu_release_tracer(Block& b);            // adds this thread's counters to the results
void emu_trace_start(Block& b);               // a block starts
void emu_trace_interval(Block& b);            // all of its threads have come to a barrier, or to their end
void emu_trace_logs(Block& b);                // no thread can go on before the logs are read, or the launch ends
void emu_trace_collective(Fiber* f, const emu_collective* mine);   // before one that is noticed
void emu_trace_settle(Fiber* f);              // before another thread may run: notes what this one has just written
void emu_trace_warp_sync(Warp& w, uint32_t participants);   // a __syncwarp() has completed
void emu_trace_cluster_barrier(Block& b);     // all threads of the cluster have come to barrier.cluster, or to their end

// While the block is recorded.
bool emu_trace_turn(Block& b);                // no thread can go on: lets those go on whose turn it is; false: there are none
void emu_trace_barrier(emu_site site);        // before a thread waits at a __syncthreads()
