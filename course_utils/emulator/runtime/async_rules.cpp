// Asynccheck: what the asynchronous instructions of sm_90a require, and the races of a block whose threads wait for each other
// at more than __syncthreads().
//
// Each thread has a clock, and knows of every other thread up to which time all it did comes before (a vector clock). Who
// arrives at a barrier leaves what it knows there; who passes it takes that along. A second vector says up to which time a
// thread's writes are also seen by the asynchronous proxy: fence.proxy.async makes the second one as good as the first. Behind
// the threads, a vector has the number of phases of each mbarrier that are known to be over: the bytes of a copy are there
// for those who know its phase. A product or a store is over for those who know of the time at which it was waited for.
//
// The blocks of a cluster have their rules together: threads, mbarriers and bytes are numbered through, block by block. A
// thread may touch the shared memory of another block once it knows of any time there, and if that block knows of its time
// before it ends.
#include "async_rules.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "findings.h"
#include "mbarrier.h"

typedef uint32_t Time;
static const Time started = 1;         // of each thread, before all that it does

enum class Writer : uint8_t { nobody, thread, copy_async, copy };

struct Reading { Time time; uint32_t place, step; uint16_t thread; bool soft; };   // soft: an atomic, or volatile

// Some bytes of shared memory: who wrote them last, and who has read them since.
struct Cell {
    Writer by;
    bool soft;
    uint16_t writer;
    Time time;
    uint32_t what;                     // the place of a thread's write; the number of a copy
    uint32_t step;
    Reading reads[3];                  // not all of them: those of threads that need not know of each other
    uint32_t operations[4];            // numbers of products, by their warpgroups, and of a store or a copy to another block:
};                                     // the last of each
static const unsigned store_slot = 3;

// Sixteen bytes of shared memory are one cell, until somebody accesses less of them.
struct Granule { uint32_t cluster; uint8_t log_piece; };

struct Register {                      // a word of a thread's stack
    uint32_t read_place, write_place, read_step, write_step;
    Time read_fence, write_fence;      // how many wgmma.fence the thread had passed
    uint32_t product;                  // the last one that uses it,
    bool is_factor;                    // as a part of A
};

struct Operation {
    enum Kind : uint8_t { product, load, store } kind;
    bool arrived;                      // of a load: its bytes
    uint8_t to;                        // of a load: the block that they are for
    bool from_shared;                  // of a load: it reads shared memory of the block of its thread
    uint16_t thread;                   // who started it; of a product, one of the warpgroup
    unsigned place, step, columns, barrier;
    Time phase;                        // of the barrier, in which the bytes arrived
    uint64_t a, b;                     // descriptors of a product
    bool a_in_registers;
    Time fences;                       // of a product: how many wgmma.fence the cluster's threads had passed
    uint8_t committed;                 // one bit for each warp of the group
    Time done[4];                      // when each warp of the group has waited for it; of a store, [0]. 0: not yet
};

struct Barrier {
    unsigned address, initialiser;     // address: with its block
    Time initialised, fenced;          // fenced: by thread `fencer`; 0: not
    unsigned fencer;
    uint32_t place, step;
    Time phases;                       // that are over
};

struct Warpgroup { uint32_t* products; unsigned count, capacity; };   // their numbers, in the order of the program
struct Requests { uint32_t count, place, step; };   // of a thread, by setmaxnreg: how many, and the last one
struct WarpProducts { unsigned started, done; };
struct Touch { Time time; uint32_t place, step; };   // a thread's last one of another block's shared memory, or of an mbarrier there

struct Rules {
    Cluster* cluster;
    emu_trace_results* results;
    const emu_tracing* tracing;
    uint32_t cluster_number, steps;    // steps: accesses, products and copies so far
    unsigned blocks, block_threads, threads, most_barriers;   // threads, most_barriers: of the cluster
    size_t window, own_words;          // bytes of a block's shared memory, a multiple of 16; words of its stacks
    unsigned width;                    // of a vector: threads, and then mbarriers
    Time *known, *named, *gathered, *opened;     // pairs of vectors: of each thread; of each named barrier, two pairs; of each
    Time* whole;                                 // mbarrier, arrivals so far and those of all phases that are over; for a while
    Time* released;                    // pairs of vectors, of each thread: what it knew at its last fence
    Touch* touches;                    // [threads][blocks]
    Granule* granules;
    size_t granule_count;
    Cell* cells;                       // [16][granule_count]: each byte's
    Register* registers;
    Operation* operations;
    unsigned operation_count, operation_capacity;
    uint32_t first_operation;          // numbers go on from cluster to cluster
    Barrier* barriers;
    unsigned barrier_count;
    uint16_t* barrier_at;              // for each 8 bytes of shared memory: which one, plus 1
    Warpgroup groups[8 * Cluster::most_blocks];
    Requests* requests;
    WarpProducts warps[32 * Cluster::most_blocks];
    Time *fences, *fences_before;      // of each thread, its wgmma.fence: they go on from cluster to cluster; and before this one
    struct { emu_finding finding; const char* address; unsigned bytes; char before[16]; } written;   // see settle()
};

// ---- numbers of threads, warps and bytes in the cluster

static inline unsigned id_of(const Rules& r, const Fiber* f) { return f->cluster_rank * r.block_threads + f->linear_id; }
static inline unsigned running_id(const Rules& r) { return id_of(r, emu_current); }
static const Fiber* thread_of(const Rules& r, unsigned id) {
    return &r.cluster->blocks[id / r.block_threads]->fibers[id % r.block_threads];
}
static inline unsigned first_thread(const Rules& r, unsigned rank) { return rank * r.block_threads; }
static inline unsigned warp_of(const Fiber* f) { return 32 * f->cluster_rank + f->warp; }
static inline Warpgroup& group_of(Rules& r, const Fiber* f) { return r.groups[8 * f->cluster_rank + f->warp / 4]; }
static inline uintptr_t byte_of(const Rules& r, unsigned address) {
    return emu_rank_of(address) * r.window + (address & emu_in_block);
}
static const char* pointer_to(const Rules& r, uintptr_t byte) {
    return r.cluster->blocks[byte / r.window]->shared_low + byte % r.window;
}

// ---- vectors

static inline Time* known(Rules& r, unsigned thread) { return r.known + (size_t)thread * 2 * r.width; }
static inline Time* fenced(Rules& r, unsigned thread) { return known(r, thread) + r.width; }
static inline Time& now(Rules& r, unsigned thread) { return known(r, thread)[thread]; }
static inline Time* pair(const Rules& r, Time* pairs, unsigned i) { return pairs + (size_t)i * 2 * r.width; }

static inline void join(Time* __restrict__ to, const Time* __restrict__ from, unsigned count) {
    for (unsigned i = 0; i < count; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}
static void leave_knowledge(Rules& r, unsigned thread, Time* at) {
    join(at, known(r, thread), 2 * r.width);
    now(r, thread)++;
}
static void take_knowledge(Rules& r, unsigned thread, const Time* from) { join(known(r, thread), from, 2 * r.width); }

static bool copy_seen(Rules& r, unsigned thread, const Operation& o) {
    return o.arrived && known(r, thread)[r.threads + o.barrier] > o.phase;
}

// Whether a product or a store is over, for all that this thread knows. One warp of a warpgroup waits for all of its product.
static bool operation_over(Rules& r, unsigned thread, const Operation& o) {
    const Time* k = known(r, thread);
    if (o.kind == Operation::load) return copy_seen(r, thread, o);
    if (o.kind == Operation::store) return o.done[0] && k[o.thread] >= o.done[0];
    const unsigned home = o.thread / r.block_threads * r.block_threads;
    for (unsigned warp = 0; warp < 4; warp++) {
        if (!o.done[warp]) continue;
        const unsigned first = home + (o.thread - home) / 128 * 128 + 32 * warp;
        for (unsigned i = first; i < first + 32 && i < home + r.block_threads; i++)
            if (k[i] >= o.done[warp]) return true;
    }
    return false;
}

static Operation* operation(Rules& r, uint32_t number) {
    return number >= r.first_operation && number ? &r.operations[number - r.first_operation] : nullptr;
}

// ---- findings

struct Party { const Fiber* thread; uint32_t place; emu_deed deed; uint32_t step; };

static Party party_of(Rules& r, const Operation& o) {
    static const emu_deed deeds[] = {EMU_STARTS_PRODUCT, EMU_STARTS_COPY, EMU_STARTS_STORE};
    return {thread_of(r, o.thread), o.place, deeds[o.kind], o.step};
}
static Party initialiser_of(const Rules& r, const Barrier& b) {
    return {thread_of(r, b.initialiser), b.place, EMU_INITIALISES, b.step};
}
static const Party beginning = {nullptr, 0, EMU_BEGINS, 0};
static Party ending(const Rules& r) { return {nullptr, 0, EMU_ENDS, r.steps + 1}; }
static Party running(const Rules& r, emu_deed deed) { return {emu_current, emu_place_of(emu_current->place), deed, r.steps}; }

static emu_finding finding_of(emu_tool tool, emu_kind kind, Party me, Party other) {
    emu_finding finding = emu_finding_at(me.thread, tool, kind, me.place);
    finding.is_shared = 1;
    finding.deed = me.deed, finding.step = me.step;
    finding.other_deed = other.deed, finding.other_step = other.step;
    if (!other.thread) return finding;
    finding.has_other = 1;
    finding.other_place = other.place;
    finding.other_block = other.thread->block_idx;
    finding.other_thread = other.thread->thread_idx;
    finding.same_warp = warp_of(other.thread) == warp_of(me.thread);
    return finding;
}

static void find(Rules& r, emu_kind kind, Party me, Party other, emu_figures figures = {}) {
    emu_finding finding = finding_of(EMU_ASYNCCHECK, kind, me, other);
    finding.defect.figures = figures;
    emu_find(r.results, finding);
}

static emu_finding race_of(emu_kind kind, Party me, Party other, bool is_write) {
    emu_finding finding = finding_of(kind == EMU_UNINITIALISED ? EMU_INITCHECK : EMU_RACECHECK, kind, me, other);
    finding.is_write = is_write;
    return finding;
}

static void find_race(Rules& r, emu_kind kind, Party me, Party other, bool is_write) {
    emu_find(r.results, race_of(kind, me, other, is_write));
}

// Two threads may write the same value. What the second one writes is seen at its next step only.
static void settle(Rules& r) {
    if (!r.written.bytes) return;
    if (memcmp(r.written.before, r.written.address, r.written.bytes)) emu_find(r.results, r.written.finding);
    r.written.bytes = 0;
}

// ---- shared memory

static inline Cell& cell(Rules& r, uintptr_t byte) { return r.cells[byte % 16 * r.granule_count + byte / 16]; }

static Granule& fresh(Rules& r, uintptr_t offset) {
    Granule& g = r.granules[offset / 16];
    if (g.cluster != r.cluster_number) {
        g = {r.cluster_number, 4};
        cell(r, offset / 16 * 16) = Cell{};
    }
    return g;
}

// Calls visit(cell) for all that there is of some bytes of one granule.
template <class Visit> static inline void visit_cells(Rules& r, uintptr_t offset, unsigned log_bytes, Visit visit) {
    Granule& g = fresh(r, offset);
    while (g.log_piece > log_bytes) {
        const uintptr_t start = offset / 16 * 16, step = (uintptr_t)1 << --g.log_piece;
        for (uintptr_t byte = start; byte < start + 16; byte += 2 * step) cell(r, byte + step) = cell(r, byte);
    }
    for (uintptr_t byte = offset; byte < offset + (1u << log_bytes); byte += (uintptr_t)1 << g.log_piece) visit(cell(r, byte));
}

static bool knows(Rules& r, unsigned thread, unsigned other, Time time) { return known(r, thread)[other] >= time; }
static Party writer_of(Rules& r, const Cell& c) {
    return {thread_of(r, c.writer), c.what, c.by == Writer::copy_async ? EMU_STARTS_CP_ASYNC : EMU_WRITES, c.step};
}

// ---- other blocks of the cluster

static bool has_started(Rules& r, unsigned thread, unsigned rank) {
    const Time* of_block = known(r, thread) + first_thread(r, rank);
    for (unsigned i = 0; i < r.block_threads; i++)
        if (of_block[i]) return true;
    return false;
}

static void check_started(Rules& r, Party me, unsigned rank) {
    if (rank == me.thread->cluster_rank || has_started(r, id_of(r, me.thread), rank)) return;
    find(r, EMU_BLOCK_NOT_STARTED, me, beginning, {rank});
}

// Shared memory, or an mbarrier, of block `rank`: which must have started, and may not end before.
static inline void touch(Rules& r, Party me, unsigned rank) {
    if (rank == me.thread->cluster_rank) return;
    const unsigned u = id_of(r, me.thread);
    Touch& last = r.touches[u * r.blocks + rank];
    if (!last.time) check_started(r, me, rank);
    last = {now(r, u), me.place, me.step};
}

// ---- shared memory, as threads, copies and products see it

static void check_read(Rules& r, Cell& c, Party me, bool soft) {
    const unsigned u = id_of(r, me.thread);
    switch (c.by) {
    case Writer::nobody:
        if (!soft) find_race(r, EMU_UNINITIALISED, me, {}, false);
        break;
    case Writer::thread:
        if (!(soft && c.soft) && !knows(r, u, c.writer, c.time)) find_race(r, EMU_READ_AFTER_WRITE, me, writer_of(r, c), false);
        break;
    case Writer::copy_async:
        find_race(r, EMU_COPY_IN_FLIGHT, me, writer_of(r, c), false);
        break;
    case Writer::copy:
        const Operation& o = *operation(r, c.what);
        if (!copy_seen(r, u, o)) find(r, EMU_COPY_NOT_WAITED_FOR, me, party_of(r, o));
    }
    Reading* slot = nullptr;
    for (Reading& one : c.reads)
        if (!one.time || one.thread == u || knows(r, u, one.thread, one.time)) slot = &one;
    if (!slot) slot = &c.reads[u % 3];
    *slot = {now(r, u), me.place, me.step, (uint16_t)u, soft};
}

// Those who may still read what is now written over.
template <class Race> static void check_readers(Rules& r, const Cell& c, Party me, bool soft, Race race) {
    const unsigned u = id_of(r, me.thread);
    for (const Reading& one : c.reads)
        if (one.time && !(soft && one.soft) && !knows(r, u, one.thread, one.time)) race(Party{thread_of(r, one.thread), one.place, EMU_READS, one.step});
    for (uint32_t number : c.operations) {
        if (!number) continue;
        const Operation& o = *operation(r, number);
        if (!operation_over(r, u, o)) find(r, EMU_OVERWRITES_OPERAND, me, party_of(r, o));
    }
}

static void check_write(Rules& r, Cell& c, Party me, bool soft, uintptr_t offset, unsigned log_bytes) {
    const unsigned u = id_of(r, me.thread);
    if (c.by == Writer::thread && !(soft && c.soft) && !knows(r, u, c.writer, c.time)) {
        settle(r);
        r.written.finding = race_of(EMU_WRITE_AFTER_WRITE, me, writer_of(r, c), true);
        r.written.address = pointer_to(r, offset);
        r.written.bytes = 1u << log_bytes;
        memcpy(r.written.before, r.written.address, r.written.bytes);
    } else if (c.by == Writer::copy_async) {
        find_race(r, EMU_COPY_IN_FLIGHT, me, writer_of(r, c), true);
    } else if (c.by == Writer::copy && !copy_seen(r, u, *operation(r, c.what))) {
        find(r, EMU_WRITES_INTO_COPY, me, party_of(r, *operation(r, c.what)));
    }
    check_readers(r, c, me, soft, [&](Party reader) { find_race(r, EMU_WRITE_AFTER_READ, me, reader, true); });
}

void emu_rule_access(Rules& r, const Block& of, uintptr_t offset, unsigned log_bytes, Access access, uint32_t place) {
    settle(r);
    const Party me = {emu_current, place, is_read(access) ? EMU_READS : EMU_WRITES, ++r.steps};
    touch(r, me, of.rank);
    offset += of.rank * r.window;
    const unsigned u = id_of(r, me.thread);
    const bool soft = is_atomic(access) || access == Access::volatile_read;
    visit_cells(r, offset, log_bytes, [&](Cell& c) {
        if (access == Access::copy_arrived) {
            if (c.by == Writer::copy_async && c.writer == u) c.by = Writer::thread, c.time = now(r, u);
        } else if (is_read(access)) {
            check_read(r, c, me, soft);
        } else {
            if (access == Access::atomic && c.by == Writer::nobody) find_race(r, EMU_UNINITIALISED, me, {}, true);
            check_write(r, c, me, soft, offset, log_bytes);
            c = Cell{access == Access::copy_issued ? Writer::copy_async : Writer::thread, soft, (uint16_t)u, now(r, u), place, me.step, {}, {}};
        }
    });
}

// What a product or a store reads.
static void check_operand(Rules& r, uintptr_t offset, Party me, uint32_t number, unsigned slot) {
    const unsigned u = id_of(r, me.thread);
    visit_cells(r, offset, 4, [&](Cell& c) {
        if (c.by == Writer::nobody) {
            find_race(r, EMU_UNINITIALISED, me, {}, false);
        } else if (c.by == Writer::copy) {
            const Operation& o = *operation(r, c.what);
            if (!copy_seen(r, u, o)) find(r, EMU_OPERAND_NOT_COME, me, party_of(r, o));
        } else if (c.by == Writer::copy_async) {
            find_race(r, EMU_COPY_IN_FLIGHT, me, writer_of(r, c), false);
        } else if (!knows(r, u, c.writer, c.time)) {
            find(r, EMU_OPERAND_RACE, me, writer_of(r, c));
        } else if (fenced(r, u)[c.writer] < c.time) {
            find(r, EMU_OPERAND_NOT_FENCED, me, writer_of(r, c));
        }
        c.operations[slot] = number;
    });
}

// ---- what orders memory

void emu_rule_block_barrier(Rules& r) {
    settle(r);
    memset(r.whole, 0, 2 * r.width * sizeof(Time));
    const unsigned first = first_thread(r, emu_block->rank);
    for (unsigned i = 0; i < r.block_threads; i++)
        if (emu_block->fibers[i].state == State::at_barrier) leave_knowledge(r, first + i, r.whole);
    for (unsigned i = 0; i < r.block_threads; i++)
        if (emu_block->fibers[i].state == State::at_barrier) take_knowledge(r, first + i, r.whole);
}

void emu_rule_warp_barrier(Rules& r, uint32_t lanes, unsigned warp) {
    settle(r);
    memset(r.whole, 0, 2 * r.width * sizeof(Time));
    const unsigned first = first_thread(r, emu_block->rank) + 32 * warp;
    for (uint32_t m = lanes; m; m &= m - 1) leave_knowledge(r, first + (unsigned)__builtin_ctz(m), r.whole);
    for (uint32_t m = lanes; m; m &= m - 1) take_knowledge(r, first + (unsigned)__builtin_ctz(m), r.whole);
}

// Of the two pairs of a named barrier, the first: each block has sixteen, and the cluster its own behind them.
static unsigned named_pair(const Rules& r, unsigned id) {
    return 2 * (id == emu_cluster_barrier ? 16 * r.blocks : 16 * emu_block->rank + id);
}

void emu_rule_named_arrive(Rules& r, unsigned id) { leave_knowledge(r, running_id(r), pair(r, r.named, named_pair(r, id))); }
void emu_rule_named_open(Rules& r, unsigned id) {
    Time *arrived = pair(r, r.named, named_pair(r, id)), *open = pair(r, r.named, named_pair(r, id) + 1);
    memcpy(open, arrived, 2 * r.width * sizeof(Time));
    memset(arrived, 0, 2 * r.width * sizeof(Time));
}
void emu_rule_named_pass(Rules& r, unsigned id) { take_knowledge(r, running_id(r), pair(r, r.named, named_pair(r, id) + 1)); }

// From here on, what the thread has done and known so far comes before what follows its arrivals with .relaxed.
void emu_rule_fence(Rules& r) {
    const unsigned u = running_id(r);
    memcpy(pair(r, r.released, u), known(r, u), 2 * r.width * sizeof(Time));
    now(r, u)++;
}

// ---- mbarriers

static unsigned barrier_number(const Rules& r, unsigned address) { return r.barrier_at[byte_of(r, address) / 8] - 1u; }

void emu_rule_barrier_init(Rules& r, unsigned address) {
    settle(r);
    address = emu_address_in(emu_rank_of(address), address);
    uint16_t& number = r.barrier_at[byte_of(r, address) / 8];
    if (!number) {
        if (r.barrier_count == r.most_barriers)
            emu_misuse(EMU_TOO_MANY_MBARRIERS, emu_site{}, {r.most_barriers, r.blocks});
        r.barriers[r.barrier_count] = {};
        number = (uint16_t)++r.barrier_count;
    }
    Barrier& b = r.barriers[barrier_number(r, address)];
    const unsigned u = running_id(r);
    b = {address, u, now(r, u), 0, 0, emu_place_of(emu_current->place), ++r.steps, b.phases};
}

// Of a barrier that is there, as the caller has made sure.
void emu_rule_barrier_use(Rules& r, unsigned address, bool releases) {
    const Barrier& b = r.barriers[barrier_number(r, address)];
    const Party me = running(r, EMU_USES);
    if (releases) touch(r, me, emu_rank_of(address));
    else check_started(r, me, emu_rank_of(address));   // who waits for it knows of the arrival, though not of what was before
    if (!knows(r, id_of(r, me.thread), b.initialiser, b.initialised))
        find(r, EMU_MBARRIER_NOT_YET_INITIALISED, me, initialiser_of(r, b));
}

void emu_rule_barrier_arrive(Rules& r, unsigned address, bool releases) {
    const unsigned u = running_id(r);
    Time* gathered = pair(r, r.gathered, barrier_number(r, address));
    if (releases) return leave_knowledge(r, u, gathered);
    join(gathered, pair(r, r.released, u), 2 * r.width);
    if (gathered[u] < started) gathered[u] = started;
}

void emu_rule_barrier_phase(Rules& r, unsigned address) {
    const unsigned n = barrier_number(r, address);
    Time *gathered = pair(r, r.gathered, n), *open = pair(r, r.opened, n);
    join(open, gathered, 2 * r.width);
    memset(gathered, 0, 2 * r.width * sizeof(Time));
    open[r.threads + n] = ++r.barriers[n].phases;
}

void emu_rule_barrier_pass(Rules& r, unsigned address) {
    take_knowledge(r, running_id(r), pair(r, r.opened, barrier_number(r, address)));
}

void emu_rule_proxy_fence(Rules& r, bool only_barriers) {
    const unsigned u = running_id(r);
    if (!only_barriers) join(fenced(r, u), known(r, u), r.width);
    for (unsigned n = 0; n < r.barrier_count; n++) {
        Barrier& b = r.barriers[n];
        if (!b.fenced && knows(r, u, b.initialiser, b.initialised)) b.fencer = u, b.fenced = now(r, u);
    }
    now(r, u)++;
}

// ---- products

static uint32_t start(Rules& r, const Operation& o) {
    if (r.operation_count == r.operation_capacity) {
        r.operation_capacity = r.operation_capacity ? 2 * r.operation_capacity : 1024;
        r.operations = (Operation*)realloc(r.operations, r.operation_capacity * sizeof(Operation));
        if (!r.operations) emu_fail_to_start(emu_block->launch, "memory for asynccheck");
    }
    r.operations[r.operation_count] = o;
    return r.first_operation + r.operation_count++;
}

static inline bool in_flight(const Operation& o, unsigned warp) { return !o.done[warp % 4]; }

static inline Register& register_at(Rules& r, uintptr_t word) { return r.registers[emu_block->rank * r.own_words + word]; }

void emu_rule_register(Rules& r, uintptr_t address, unsigned bytes, bool is_write, uint32_t place) {
    const Fiber* f = emu_current;
    const Time fence = r.fences[id_of(r, f)];
    const uintptr_t own = (uintptr_t)emu_block->own;
    for (uintptr_t word = (address - own) / 4; word * 4 < address + bytes - own; word++) {
        Register& x = register_at(r, word);
        if (is_write) x.write_place = place, x.write_step = r.steps, x.write_fence = fence;
        else x.read_place = place, x.read_step = r.steps, x.read_fence = fence;
        const Operation* o = operation(r, x.product);
        if (!o || !in_flight(*o, f->warp) || (x.is_factor && !is_write)) continue;
        const Party me = {f, place, is_write ? EMU_WRITES : EMU_READS, r.steps};
        find(r, x.is_factor ? EMU_FACTOR_IN_FLIGHT : EMU_ACCUMULATOR_IN_FLIGHT, me, party_of(r, *o));
    }
}

void emu_rule_wgmma_fence(Rules& r) { r.fences[running_id(r)]++; }

void emu_rule_registers(Rules& r) {
    Requests& mine = r.requests[running_id(r)];
    mine = {mine.count + 1, emu_place_of(emu_current->place), r.steps};
}

static void use_register(Rules& r, const void* address, const Fiber* lane, Party me, uint32_t number, bool is_factor) {
    const uintptr_t offset = (uintptr_t)address - (uintptr_t)emu_block->own;
    if (offset >= emu_block->own_bytes) return;
    Register& x = register_at(r, offset / 4);
    const Time fence = r.fences[id_of(r, lane)];
    const Operation *last = operation(r, x.product), *mine = operation(r, number);
    if (last && last != mine && in_flight(*last, lane->warp)) {
        if (!is_factor && (x.is_factor || last->columns != mine->columns))
            find(r, EMU_ACCUMULATOR_OF_ANOTHER_SHAPE, me, party_of(r, *last));
    } else if (x.write_place && x.write_fence == fence) {
        find(r, EMU_REGISTER_NOT_FENCED, me, {lane, x.write_place, EMU_WRITES, x.write_step});
    } else if (!is_factor && x.read_place && x.read_fence == fence) {
        find(r, EMU_ACCUMULATOR_NOT_FENCED, me, {lane, x.read_place, EMU_READS, x.read_step});
    }
    x.product = number, x.is_factor = is_factor;
}

// In this cluster.
static Time fences_of(const Rules& r, const Fiber* f) { return r.fences[id_of(r, f)] - r.fences_before[id_of(r, f)]; }

// The number of the next product of this warp. All four warps of a warpgroup make one together.
static uint32_t next_product(Rules& r, const emu_wgmma* p, Party me) {
    Warpgroup& group = group_of(r, me.thread);
    const unsigned n = r.warps[warp_of(me.thread)].started++;
    const Time fences = fences_of(r, me.thread);
    if (n < group.count) {
        const Operation& o = *operation(r, group.products[n]);
        if (o.a_in_registers != p->a_in_registers || (!p->a_in_registers && o.a != p->a_descriptor) || o.b != p->b_descriptor || o.columns != p->n)
            find(r, EMU_DIFFERENT_PRODUCTS, me, party_of(r, o));
        if (o.fences != fences) find(r, EMU_WARPS_FENCE_APART, me, party_of(r, o));
        return group.products[n];
    }
    if (group.count == group.capacity) {
        group.capacity = group.capacity ? 2 * group.capacity : 256;
        group.products = (uint32_t*)realloc(group.products, group.capacity * sizeof(uint32_t));
        if (!group.products) emu_fail_to_start(emu_block->launch, "memory for asynccheck");
    }
    Operation o = {};
    o.thread = (uint16_t)id_of(r, me.thread), o.place = me.place, o.step = me.step, o.columns = p->n;
    o.fences = fences;
    o.a = p->a_descriptor, o.b = p->b_descriptor, o.a_in_registers = p->a_in_registers;
    return group.products[group.count++] = start(r, o);
}

void emu_rule_product(Rules& r, const emu_wgmma* p) {
    settle(r);
    const unsigned warp = emu_current->warp;
    const Fiber* first = emu_block->warps[warp].fiber[0];
    const Party me = {first, emu_place_of(p->place), EMU_STARTS_PRODUCT, ++r.steps};
    const uint32_t number = next_product(r, p, me);
    unsigned chunks[544];
    const unsigned count = p->chunks(p, chunks);
    const uintptr_t home = emu_block->rank * r.window;
    for (unsigned i = 0; i < count; i++) check_operand(r, home + chunks[i], me, number, warp / 4 % store_slot);
    for (unsigned lane = 0; lane < 32; lane++) {
        const Fiber* f = emu_block->warps[warp].fiber[lane];
        if (lane && fences_of(r, f) != fences_of(r, first)) find(r, EMU_LANES_FENCE_APART, me, {f, 0, EMU_NO_DEED, 0});
        if (!lane && !fences_of(r, f)) find(r, EMU_NO_WGMMA_FENCE, me, beginning);
        for (unsigned i = 0; i < p->n / 2; i++) use_register(r, p->d[lane * (p->n / 2) + i], f, me, number, false);
        for (unsigned i = 0; p->a_places && i < 4; i++) use_register(r, p->a_places[4 * lane + i], f, me, number, true);
    }
}

void emu_rule_products_committed(Rules& r) {
    const unsigned warp = emu_current->warp;
    const Warpgroup& group = group_of(r, emu_current);
    for (unsigned n = r.warps[warp_of(emu_current)].started; n-- > 0;) {
        Operation& o = *operation(r, group.products[n]);
        if (o.committed >> warp % 4 & 1) break;
        o.committed |= 1 << warp % 4;
    }
}

// The lanes meet here, at one time of all their clocks: a thread that knows one lane to be past it knows the products to be over.
void emu_rule_products_done(Rules& r, unsigned count) {
    const unsigned warp = emu_current->warp, left = r.block_threads - 32 * warp, lanes = left < 32 ? left : 32;
    const unsigned first = first_thread(r, emu_block->rank) + 32 * warp, end = first + lanes;
    emu_rule_warp_barrier(r, lanes == 32 ? ~0u : (1u << lanes) - 1, warp);
    Time latest = 0;
    for (unsigned i = first; i < end; i++) latest = now(r, i) > latest ? now(r, i) : latest;
    for (unsigned i = first; i < end; i++) now(r, i) = latest + 1;
    for (unsigned n = 0; n < count; n++)
        operation(r, group_of(r, emu_current).products[r.warps[warp_of(emu_current)].done++])->done[warp % 4] = latest + 1;
}

// ---- copies

// Whether all of a copy's bytes lie in one of a block's arrays.
static bool inside_shared(const Rules& r, unsigned shared, unsigned bytes) {
    const unsigned dynamic = (unsigned)(emu_block->dynamic_shared - emu_block->shared_low);
    if (shared - dynamic < EMU_SHARED_LIMIT) return shared - dynamic + bytes <= emu_block->launch->dynamic_shared;
    for (uint64_t i = 0; i < r.tracing->static_count; i++) {
        const emu_static& s = r.tracing->statics[i];
        if (shared >= s.offset && shared + bytes <= s.offset + s.bytes) return true;
    }
    return false;
}

static Operation new_copy(Rules& r, Operation::Kind kind, Party me, unsigned shared, unsigned bytes) {
    Operation o = {};
    o.kind = kind;
    o.thread = (uint16_t)id_of(r, me.thread), o.place = me.place, o.step = me.step;
    if (!inside_shared(r, shared & emu_in_block, bytes)) {
        emu_finding finding = finding_of(EMU_MEMCHECK, EMU_OUT_OF_BOUNDS, me, {});
        finding.bytes = bytes, finding.is_write = kind == Operation::load;
        emu_find(r.results, finding);
    }
    return o;
}

static void check_source(Rules& r, unsigned shared, unsigned bytes, Party me, uint32_t number) {
    const uintptr_t first = byte_of(r, shared);
    for (uintptr_t at = first; at < first + bytes; at += 16) check_operand(r, at, me, number, store_slot);
}

uint32_t emu_rule_store(Rules& r, unsigned shared, unsigned bytes) {
    settle(r);
    r.steps++;
    const Party me = running(r, EMU_STARTS_STORE);
    const uint32_t number = start(r, new_copy(r, Operation::store, me, shared, bytes));
    check_source(r, shared, bytes, me, number);
    return number;
}

// What a load puts in the place of some bytes of one granule.
static void bring(Rules& r, uintptr_t offset, unsigned log_bytes, Party me, uint32_t number) {
    const unsigned u = id_of(r, me.thread);
    const Cell brought = {Writer::copy, false, (uint16_t)u, 0, number, me.step, {}, {}};
    visit_cells(r, offset, log_bytes, [&](Cell& c) {
        if (c.by == Writer::copy && !copy_seen(r, u, *operation(r, c.what)))
            find(r, EMU_COPY_OVERWRITES_COPY, me, party_of(r, *operation(r, c.what)));
        if ((c.by == Writer::thread || c.by == Writer::copy_async) && !knows(r, u, c.writer, c.time))
            find(r, EMU_COPY_OVERWRITES_WRITE, me, writer_of(r, c));
        check_readers(r, c, me, false, [&](Party reader) { find(r, EMU_COPY_OVERWRITES_READ, me, reader); });
        c = brought;
    });
    if (log_bytes == 4) fresh(r, offset).log_piece = 4;
}

uint32_t emu_rule_load(Rules& r, unsigned shared, unsigned bytes, unsigned barrier, bool by_engine) {
    settle(r);
    r.steps++;
    const Party me = running(r, EMU_STARTS_COPY);
    const unsigned u = id_of(r, me.thread);
    Operation o = new_copy(r, Operation::load, me, shared, bytes);
    o.to = (uint8_t)emu_rank_of(shared);
    check_started(r, me, o.to);
    o.barrier = barrier_number(r, barrier);
    const Barrier& b = r.barriers[o.barrier];
    if (!knows(r, u, b.initialiser, b.initialised))
        find(r, EMU_MBARRIER_NOT_YET_INITIALISED, me, initialiser_of(r, b));
    else if (by_engine && (!b.fenced || !knows(r, u, b.fencer, b.fenced)))
        find(r, EMU_MBARRIER_NOT_PUBLISHED, me, initialiser_of(r, b));
    const uint32_t number = start(r, o);
    const unsigned step = bytes < 16 ? bytes : 16, log_bytes = (unsigned)__builtin_ctz(step);
    const uintptr_t first = byte_of(r, shared);
    for (uintptr_t at = first; at < first + bytes; at += step) bring(r, at, log_bytes, me, number);
    return number;
}

void emu_rule_load_reads(Rules& r, uint32_t number, unsigned shared, unsigned bytes) {
    operation(r, number)->from_shared = true;
    check_source(r, shared, bytes, running(r, EMU_STARTS_COPY), number);
}

void emu_rule_copy_arrives(Rules& r, uint32_t number) {
    settle(r);
    Operation& o = *operation(r, number);
    o.arrived = true;
    o.phase = r.barriers[o.barrier].phases;
}

void emu_rule_store_done(Rules& r, uint32_t number) {
    Operation& o = *operation(r, number);
    o.done[0] = now(r, o.thread);
}

// ---- the life of the rules

static void* zeros(size_t bytes) {       // taken from the system page by page, as they are touched
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) emu_fail_to_start(emu_block->launch, "memory for asynccheck");
    return p;
}

static Rules* new_rules(const Tracer& t) {
    const Block& b = *t.block;
    Rules* r = (Rules*)calloc(1, sizeof(Rules));
    r->cluster = b.cluster;
    r->results = t.results;
    r->tracing = t.tracing;
    r->blocks = b.cluster->size;
    r->block_threads = b.size;
    r->threads = r->blocks * b.size;
    r->most_barriers = 64 + 64 * r->blocks;
    r->width = r->threads + r->most_barriers;
    r->window = ((size_t)(b.shared_high - b.shared_low) + 15) / 16 * 16;
    r->own_words = b.own_bytes / 4;
    const size_t pair_bytes = 2 * r->width * sizeof(Time), shared_bytes = r->blocks * r->window;
    r->known = (Time*)zeros(r->threads * pair_bytes);
    r->named = (Time*)zeros((16 * r->blocks + 1) * 2 * pair_bytes);
    r->gathered = (Time*)zeros(r->most_barriers * pair_bytes);
    r->opened = (Time*)zeros(r->most_barriers * pair_bytes);
    r->whole = (Time*)zeros(pair_bytes);
    r->released = (Time*)zeros(r->threads * pair_bytes);
    r->touches = (Touch*)zeros(r->threads * r->blocks * sizeof(Touch));
    r->granule_count = shared_bytes / 16;
    r->granules = (Granule*)zeros(r->granule_count * sizeof(Granule));
    r->cells = (Cell*)zeros(16 * r->granule_count * sizeof(Cell));
    r->registers = (Register*)zeros(r->blocks * r->own_words * sizeof(Register));
    r->barriers = (Barrier*)zeros(r->most_barriers * sizeof(Barrier));
    r->barrier_at = (uint16_t*)zeros(shared_bytes / 8 * sizeof(uint16_t));
    r->requests = (Requests*)zeros(r->threads * sizeof(Requests));
    r->fences = (Time*)zeros(r->threads * sizeof(Time));
    r->fences_before = (Time*)zeros(r->threads * sizeof(Time));
    r->first_operation = 1;
    return r;
}

Rules* emu_share_rules(Tracer& t) {
    Cluster& c = *t.block->cluster;
    pthread_mutex_lock(&c.mutex);
    if (!c.rules) c.rules = new_rules(t);
    pthread_mutex_unlock(&c.mutex);
    return c.rules;
}

void emu_start_rules(Rules& r) {
    const size_t pair_bytes = 2 * r.width * sizeof(Time);
    r.cluster_number++;
    r.steps = 0;
    memset(r.known, 0, r.threads * pair_bytes);
    memset(r.released, 0, r.threads * pair_bytes);
    memset(r.named, 0, (16 * r.blocks + 1) * 2 * pair_bytes);
    memset(r.gathered, 0, r.barrier_count * pair_bytes);
    memset(r.opened, 0, r.barrier_count * pair_bytes);
    memset(r.touches, 0, r.threads * r.blocks * sizeof(Touch));
    for (unsigned n = 0; n < r.barrier_count; n++) r.barrier_at[byte_of(r, r.barriers[n].address) / 8] = 0;
    r.barrier_count = 0;
    r.first_operation += r.operation_count;
    r.operation_count = 0;
    for (Warpgroup& group : r.groups) group.count = 0;
    memset(r.warps, 0, sizeof r.warps);
    memset(r.requests, 0, r.threads * sizeof(Requests));
    for (unsigned u = 0; u < r.threads; u++) {
        now(r, u) = started + 1;
        r.fences_before[u] = ++r.fences[u];
    }
}

static bool seen_in(Rules& r, unsigned rank, const Operation& o) {
    const unsigned first = first_thread(r, rank);
    for (unsigned u = first; u < first + r.block_threads; u++)
        if (copy_seen(r, u, o)) return true;
    return false;
}

// What is still going on, for all that the block that ends has waited for.
static emu_kind left_behind(Rules& r, const Operation& o) {
    const unsigned ends = emu_block->rank;
    const bool its_own = o.thread / r.block_threads == ends;
    if (o.kind == Operation::load) {
        if (o.to == ends && !seen_in(r, ends, o)) return EMU_LOAD_LEFT_BEHIND;
        if (o.from_shared && its_own && !seen_in(r, ends, o)) return EMU_COPY_READS_EXITED_BLOCK;
        return EMU_NOTHING;
    }
    if (!its_own) return EMU_NOTHING;
    if (o.kind == Operation::store) return o.done[0] ? EMU_NOTHING : EMU_STORE_NOT_WAITED_FOR;
    const bool committed = o.committed, done = o.done[0] || o.done[1] || o.done[2] || o.done[3];
    return done ? EMU_NOTHING : committed ? EMU_PRODUCT_NOT_WAITED_FOR : EMU_PRODUCT_NOT_COMMITTED;
}

// Threads of other blocks whose touches of its shared memory the block that ends knows nothing of.
static void find_late_touches(Rules& r) {
    const unsigned ends = emu_block->rank, first = first_thread(r, ends);
    memset(r.whole, 0, r.width * sizeof(Time));
    for (unsigned u = first; u < first + r.block_threads; u++) join(r.whole, known(r, u), r.width);
    for (unsigned u = 0; u < r.threads; u++) {
        const Touch& last = r.touches[u * r.blocks + ends];
        if (last.time > r.whole[u])
            find(r, EMU_BLOCK_MAY_HAVE_EXITED, {thread_of(r, u), last.place, EMU_USES, last.step}, ending(r), {ends});
    }
}

// Registers are a warpgroup's: each of its threads asks as often as the others.
static void find_missing_requests(Rules& r) {
    for (unsigned i = 0; i < emu_block->size; i++) {
        const unsigned group = first_thread(r, emu_block->rank) + i / 128 * 128, u = first_thread(r, emu_block->rank) + i;
        const unsigned one = r.requests[u].count < r.requests[group].count ? group : u, other = one == u ? group : u;
        if (r.requests[one].count == r.requests[other].count) continue;
        const Party asks = {thread_of(r, one), r.requests[one].place, EMU_NO_DEED, r.requests[one].step};
        find(r, EMU_WARP_WITHOUT_REGISTERS, asks, {thread_of(r, other), 0, EMU_NO_DEED, 0}, {thread_of(r, other)->warp});
    }
}

void emu_end_rules(Rules& r) {
    settle(r);
    for (unsigned n = 0; n < r.operation_count; n++) {
        const Operation& o = r.operations[n];
        if (const emu_kind kind = left_behind(r, o)) find(r, kind, party_of(r, o), ending(r));
    }
    for (unsigned warp = 0; warp < emu_block->warp_count; warp++) {
        const Fiber* first = emu_block->warps[warp].fiber[0];
        const Warpgroup& group = group_of(r, first);
        const unsigned started = r.warps[warp_of(first)].started;
        if (started == group.count) continue;
        const Operation& o = *operation(r, group.products[started]);
        find(r, EMU_WARP_WITHOUT_PRODUCT, party_of(r, o), {first, 0, EMU_NO_DEED, 0}, {warp});
    }
    find_missing_requests(r);
    for (unsigned n = 0; n < r.barrier_count; n++) {
        const Barrier& b = r.barriers[n];
        if (emu_rank_of(b.address) != emu_block->rank) continue;
        const Mbarrier m = Mbarrier::at(b.address);
        if (m.valid() && m.bytes() > 0) find(r, EMU_MBARRIER_LACKS_BYTES, initialiser_of(r, b), {}, {m.bytes()});
        if (m.valid() && m.bytes() < 0) find(r, EMU_MBARRIER_HAS_BYTES_TOO_MANY, initialiser_of(r, b), {}, {-m.bytes()});
    }
    if (r.blocks > 1) find_late_touches(r);
}
