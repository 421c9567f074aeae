// Asynccheck, as the barriers, the products, the copy engine and the tracer call it. Each call says what the thread that runs
// (or, of a product, its warp) has just done; each returns at once where nobody watches.
#pragma once
#include "tracer.h"

struct Rules;

// The rules of the block that runs, and of all of its cluster; null in a plain launch, and in a kernel that is not for sm_90a.
static inline Rules* emu_rules() {
    const Tracer* t = emu_block->tracer;
    return t && t->watching ? t->rules : nullptr;
}

Rules* emu_share_rules(Tracer& t);            // those of its block's cluster, made at the first call
void emu_start_rules(Rules& r);               // a cluster starts
void emu_end_rules(Rules& r);                 // all threads of the block that runs have come to their end

// Shared memory of a block of the cluster and, of the stack of the thread, what may be registers of a product.
void emu_rule_access(Rules& r, const Block& of, uintptr_t offset, unsigned log_bytes, Access access, uint32_t place);
void emu_rule_register(Rules& r, uintptr_t address, unsigned bytes, bool is_write, uint32_t place);

// ---- what orders memory

void emu_rule_block_barrier(Rules& r);                      // all of the block's threads have come to __syncthreads()
void emu_rule_warp_barrier(Rules& r, uint32_t lanes, unsigned warp);
void emu_rule_fence(Rules& r);              // a thread's fence.acq_rel, fence.sc or __threadfence()
void emu_rule_named_arrive(Rules& r, unsigned id);          // a thread has come to a named barrier,
void emu_rule_named_open(Rules& r, unsigned id);            // it was the last one,
void emu_rule_named_pass(Rules& r, unsigned id);            // and one of those that waited goes on
static const unsigned emu_cluster_barrier = 16;             // barrier.cluster, as one more

void emu_rule_barrier_init(Rules& r, unsigned address);
void emu_rule_barrier_use(Rules& r, unsigned address, bool releases);      // by the thread that runs. releases: false for an
void emu_rule_barrier_arrive(Rules& r, unsigned address, bool releases);   // arrival with .relaxed
void emu_rule_barrier_phase(Rules& r, unsigned address);    // a phase is over
void emu_rule_barrier_pass(Rules& r, unsigned address);     // a thread has seen that

// ---- asynchronous work. A copy is known by the number that its start returns; 0: nobody watches

void emu_rule_registers(Rules& r);                          // a thread has got what it asked for by setmaxnreg
void emu_rule_wgmma_fence(Rules& r);
void emu_rule_proxy_fence(Rules& r, bool only_barriers);    // only_barriers: fence.mbarrier_init
void emu_rule_product(Rules& r, const emu_wgmma* product);
void emu_rule_products_committed(Rules& r);
void emu_rule_products_done(Rules& r, unsigned count);      // the warp's next ones
uint32_t emu_rule_store(Rules& r, unsigned shared, unsigned bytes);
uint32_t emu_rule_load(Rules& r, unsigned shared, unsigned bytes, unsigned barrier, bool by_engine);   // or by st.async
void emu_rule_load_reads(Rules& r, uint32_t number, unsigned shared, unsigned bytes);   // it comes from shared memory
void emu_rule_copy_arrives(Rules& r, uint32_t number);      // a load's bytes, just before it tells its barrier
void emu_rule_store_done(Rules& r, uint32_t number);        // the thread that started it has waited for it
