// Where some of a block's threads wait: the sixteen barriers that have numbers, and those that lie in shared memory; that of
// a cluster; and for registers.
#include "async_counters.h"
#include "async_rules.h"
#include "findings.h"
#include "mbarrier.h"
#include "recorder.h"

// Makes those of a block ready that wait in this state at this barrier, and for this parity.
static void let_go(Block& b, State state, unsigned barrier, unsigned parity) {
    for (unsigned i = 0; i < b.size; i++) {
        Fiber& f = b.fibers[i];
        if (f.state == state && f.barrier == barrier && f.parity == parity) emu_make_ready(b, &f);
    }
}

// Of a recording: a thread comes to a barrier of its block (mbarrier null: of what has the number `extra`), to arrive or to wait.
static void record(emu_op op, const void* mbarrier, int extra) {
    Recorder* r = emu_recorder();
    if (r) emu_announce(*r, {op, emu_place_of(emu_current->place), (uintptr_t)mbarrier, 8, extra, false});
}

// ---- bar.sync, bar.arrive, bar.red

extern "C" int emu_named_barrier(unsigned id, unsigned threads, int predicate, bool waits, emu_site site) {
    EMU_NOTE_PLACE();
    if (id > 15) emu_misuse(EMU_BARRIER_NUMBER, site, {id});
    if (threads == 0 || threads % 32) emu_misuse(EMU_BARRIER_THREADS, site, {id, threads});
    Recorder* const recorder = emu_recorder();
    if (recorder && waits) emu_record_barrier(*recorder, id, emu_place_of(emu_current->place));
    else record(EMU_OP_ARRIVE, nullptr, (int)id);
    NamedBarrier& barrier = emu_block->barriers[id];
    if (barrier.arrived && barrier.threads != threads)
        emu_misuse(EMU_BARRIER_OF_TWO_SIZES, site, {id, threads, barrier.threads, barrier.site.line});
    if (!barrier.arrived) barrier.site = site;
    barrier.threads = threads;
    barrier.predicates += predicate != 0;
    Fiber* f = emu_current;
    f->barrier = id, f->parity = 0;
    Rules* const rules = emu_rules();
    const uint64_t before = emu_block->steps;
    if (rules) emu_rule_named_arrive(*rules, id);
    if (waits) emu_stop(State::at_named_barrier, site);
    if (++barrier.arrived == threads) {
        barrier.predicates_last = barrier.predicates;
        barrier.arrived = barrier.predicates = 0;
        if (rules) emu_rule_named_open(*rules, id);
        if (recorder) emu_record_open(*recorder, id);
        let_go(*emu_block, State::at_named_barrier, id, 0);
    }
    if (waits && f->state != State::ready) emu_run_another();
    if (waits && rules) emu_rule_named_pass(*rules, id);
    if (AsyncCounters* counters = waits ? emu_async_counters() : nullptr) emu_count_wait(*counters, before);
    return (int)barrier.predicates_last;
}

// ---- barrier.cluster

extern "C" void emu_cluster_arrive(emu_site site) {
    EMU_NOTE_PLACE();
    Fiber* f = emu_current;
    Cluster& c = *emu_block->cluster;
    if (f->owes_wait) emu_misuse(EMU_CLUSTER_ARRIVES_TWICE, site);
    record(EMU_OP_ARRIVE, nullptr, EMU_CLUSTER);
    f->arrived = f->owes_wait = true;
    if (Rules* rules = emu_rules()) emu_rule_named_arrive(*rules, emu_cluster_barrier);
    if (--c.missing == 0) emu_open_cluster_barrier(c);
}

extern "C" void emu_cluster_wait(emu_site site) {
    EMU_NOTE_PLACE();
    Fiber* f = emu_current;
    if (!f->owes_wait) emu_misuse(EMU_CLUSTER_WAITS_FIRST, site);
    record(EMU_OP_WAIT, nullptr, EMU_CLUSTER);
    f->owes_wait = false;
    const uint64_t before = emu_block->steps;
    if (f->arrived) {                                   // it is not yet open
        emu_stop(State::at_cluster_barrier, site);
        emu_run_another();
    }
    if (Rules* rules = emu_rules()) emu_rule_named_pass(*rules, emu_cluster_barrier);
    if (AsyncCounters* counters = emu_async_counters()) emu_count_wait(*counters, before);
}

// ---- setmaxnreg

extern "C" void emu_set_registers(unsigned count, emu_site site) {
    EMU_NOTE_PLACE();
    Block& b = *emu_block;
    Fiber* f = emu_current;
    while (count > f->registers + b.registers_free) {
        emu_stop(State::for_registers, site);
        emu_run_another();
    }
    b.registers_free += f->registers - count;
    const bool gives = count < f->registers;
    f->registers = count;
    if (Rules* rules = emu_rules()) emu_rule_registers(*rules);
    for (unsigned i = 0; gives && i < b.size; i++)
        if (b.fibers[i].state == State::for_registers) emu_make_ready(b, &b.fibers[i]);
}

// ---- mbarriers

static void check_place(unsigned address, const char* instruction, emu_site site) {
    const unsigned here = address & emu_in_block;
    if (here % 8 || here + 8 > emu_shared_bytes()) emu_misuse(EMU_MBARRIER_ADDRESS, site, {here}, instruction);
    if (emu_block_of(address).over) emu_misuse(EMU_MBARRIER_OF_EXITED_BLOCK, site, {}, instruction);
}

static Mbarrier look_at(unsigned address, const char* instruction, emu_site site) {
    check_place(address, instruction, site);
    const Mbarrier m = Mbarrier::at(address);
    if (!m.valid()) emu_misuse(EMU_NO_MBARRIER, site, {}, instruction);
    return m;
}

void emu_check_barrier(unsigned address, const char* instruction, emu_site site) { look_at(address, instruction, site); }

static void record_at(emu_op op, unsigned address) {
    if (emu_recorder()) record(op, emu_shared_pointer(address), 0);
}

// Once no arrival and no byte is to come, the next phase begins.
static void settle(unsigned address, Mbarrier m) {
    if (m.pending() || m.bytes()) return m.put(address);
    if (Rules* rules = emu_rules()) emu_rule_barrier_phase(*rules, address);
    if (Recorder* r = emu_recorder()) emu_record_phase(*r, emu_shared_pointer(address), m.phase());
    Mbarrier::of(m.phase() ^ 1, m.count(), m.count(), 0).put(address);
    let_go(emu_block_of(address), State::at_mbarrier, address & emu_in_block, m.phase());
}

extern "C" void emu_mbarrier_init(unsigned address, unsigned count, emu_site site) {
    EMU_NOTE_PLACE();
    check_place(address, "mbarrier.init", site);
    if (count == 0 || count > Mbarrier::most_arrivals)
        emu_misuse(EMU_MBARRIER_COUNT, site, {Mbarrier::most_arrivals, count});
    record(EMU_OP_WRITE, emu_shared_pointer(address), 0);
    Mbarrier::of(0, count, count, 0).put(address);
    if (Rules* rules = emu_rules()) emu_rule_barrier_init(*rules, address);
}

extern "C" void emu_mbarrier_invalidate(unsigned address, emu_site site) {
    EMU_NOTE_PLACE();
    look_at(address, "mbarrier.inval", site);
    Mbarrier{0}.put(address);
}

// What all arrivals need.
static Mbarrier look_at_arrival(unsigned address, unsigned count, const char* instruction, bool releases, emu_site site) {
    const Mbarrier m = look_at(address, instruction, site);
    Rules* const rules = emu_rules();
    if (rules) emu_rule_barrier_use(*rules, address, releases);
    if (count == 0 || count > m.pending())
        emu_misuse(EMU_TOO_MANY_ARRIVALS, site, {count, m.pending(), m.count()}, instruction);
    if (rules) emu_rule_barrier_arrive(*rules, address, releases);
    return m;
}

uint64_t emu_count_arrivals(unsigned address, unsigned count, unsigned expected_bytes, bool may_complete, bool releases, emu_site site) {
    const Mbarrier m = look_at_arrival(address, count, "mbarrier.arrive", releases, site);
    if (!may_complete && count == m.pending())
        emu_misuse(EMU_LAST_ARRIVAL_COMPLETES, site);
    if ((long long)m.bytes() + expected_bytes > Mbarrier::most_bytes)
        emu_misuse(EMU_EXPECTS_TOO_MANY_BYTES, site, {Mbarrier::most_bytes});
    settle(address, Mbarrier::of(m.phase(), m.count(), m.pending() - count, m.bytes() + (int)expected_bytes));
    return m.bits;
}

extern "C" uint64_t emu_mbarrier_arrive(unsigned address, unsigned count, unsigned expected_bytes, bool may_complete, bool releases,
                                        emu_site site) {
    EMU_NOTE_PLACE();
    record_at(EMU_OP_ARRIVE, address);
    return emu_count_arrivals(address, count, expected_bytes, may_complete, releases, site);
}

extern "C" uint64_t emu_mbarrier_drop(unsigned address, unsigned count, bool releases, emu_site site) {
    EMU_NOTE_PLACE();
    record_at(EMU_OP_ARRIVE, address);
    const Mbarrier m = look_at_arrival(address, count, "mbarrier.arrive_drop", releases, site);
    settle(address, Mbarrier::of(m.phase(), m.count() - count, m.pending() - count, m.bytes()));
    return m.bits;
}

extern "C" unsigned emu_mbarrier_pending(uint64_t state) { return Mbarrier{state}.pending(); }

void emu_mbarrier_one_more(unsigned address, emu_site site) {
    const Mbarrier m = look_at(address, "cp.async.mbarrier.arrive", site);
    Mbarrier::of(m.phase(), m.count(), m.pending() + 1, m.bytes()).put(address);
}

void emu_count_bytes(unsigned address, int bytes, emu_site site) {
    const Mbarrier m = look_at(address, bytes > 0 ? "mbarrier.expect_tx" : "mbarrier.complete_tx", site);
    const int now = m.bytes() + bytes;
    if (now > Mbarrier::most_bytes || now < -Mbarrier::most_bytes)
        emu_misuse(EMU_COUNTS_TOO_MANY_BYTES, site, {Mbarrier::most_bytes, now});
    settle(address, Mbarrier::of(m.phase(), m.count(), m.pending(), now));
}

extern "C" void emu_mbarrier_transfer(unsigned address, int bytes, emu_site site) {
    EMU_NOTE_PLACE();
    record_at(EMU_OP_ARRIVE, address);
    emu_count_bytes(address, bytes, site);
}

static bool is_over(unsigned address, unsigned parity, bool waits, emu_site site) {
    const Mbarrier m = look_at(address, waits ? "mbarrier.try_wait" : "mbarrier.test_wait", site);
    if (&emu_block_of(address) != emu_block) emu_misuse(EMU_MBARRIER_OF_ANOTHER_BLOCK, site);
    if (m.phase() != (parity & 1)) return true;
    if (!waits) {
        emu_yield();   // who asks again and again lets the others go on, and the copies
        if (Mbarrier::at(address).phase() == (parity & 1) && emu_block->do_something_asynchronous)
            emu_block->do_something_asynchronous(*emu_block);
        return Mbarrier::at(address).phase() != (parity & 1);
    }
    Fiber* f = emu_current;
    f->barrier = address & emu_in_block, f->parity = parity & 1;
    emu_stop(State::at_mbarrier, site);
    emu_run_another();
    return true;
}

extern "C" bool emu_mbarrier_test(unsigned address, unsigned parity, bool waits, emu_site site) {
    EMU_NOTE_PLACE();
    record_at(EMU_OP_WAIT, address);
    Block& b = *emu_block;
    if (b.do_something_asynchronous && b.launch->order == EMU_RANDOM && emu_happens_now()) b.do_something_asynchronous(b);
    const uint64_t before = b.steps;
    const bool over = is_over(address, parity, waits, site);
    if (AsyncCounters* counters = emu_async_counters()) emu_count_wait(*counters, before);
    Rules* const rules = emu_rules();
    if (rules) emu_rule_barrier_use(*rules, address, true);
    if (over && rules) emu_rule_barrier_pass(*rules, address);
    return over;
}
