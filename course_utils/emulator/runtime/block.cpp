#include "block.h"

#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fiber.h"
#include "findings.h"
#include "mbarrier.h"
#include "trace_hooks.h"

static const size_t stack_bytes = (256 + 16) << 10;   // 16 KB are for all but local arrays

__thread Block* emu_block __attribute__((tls_model("initial-exec"))) = nullptr;
__thread Fiber* emu_current __attribute__((tls_model("initial-exec"))) = nullptr;

static inline unsigned lowest(uint32_t mask) { return (unsigned)__builtin_ctz(mask); }
static inline uint32_t bit(unsigned lane) { return 1u << lane; }
static inline uintptr_t round_up(uintptr_t n, uintptr_t step) { return (n + step - 1) / step * step; }

// ---- failures

// The first failure of the launch, but for why. False: somebody was first.
static bool record_place(const emu_launch* launch, emu_outcome outcome, const Fiber* fiber, emu_site site) {
    emu_report* report = launch->report;
    uint32_t nobody = EMU_RUNNING;
    if (!__atomic_compare_exchange_n(&report->outcome, &nobody, outcome, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return false;
    report->line = site.line;
    if (site.file) snprintf(report->file, sizeof report->file, "%s", site.file);
    if (fiber) {
        report->has_thread = 1;
        report->block = fiber->block_idx;
        report->thread = fiber->thread_idx;
    }
    return true;
}

bool emu_record(const emu_launch* launch, emu_outcome outcome, const Fiber* fiber, emu_site site, const char* format, ...) {
    if (!record_place(launch, outcome, fiber, site)) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(launch->report->message, sizeof launch->report->message, format, arguments);
    va_end(arguments);
    return true;
}

void emu_end_worker(bool recorded) {
    const timespec moment = {0, 50000000};
    if (!recorded) nanosleep(&moment, nullptr);      // another thread failed first: let it finish its sentence
    _exit(1);
}

void emu_fail_to_start(const emu_launch* launch, const char* what) {
    emu_end_worker(emu_record(launch, EMU_CRASH, nullptr, emu_site{}, "the emulator could not get %s: %s", what, strerror(errno)));
}

template <class... T>
[[noreturn]] static void fail(emu_outcome outcome, const Fiber* fiber, emu_site site, const char* format, T... values) {
    if (emu_block->tracer) emu_trace_logs(*emu_block);
    emu_end_worker(emu_record(emu_block->launch, outcome, fiber, site, format, values...));
}

// Where the sanitizer has the same as a finding.
[[noreturn]] static void fail(emu_outcome outcome, const Fiber* fiber, emu_site site, const emu_defect& defect) {
    if (emu_block->tracer) emu_trace_logs(*emu_block);
    const bool first = record_place(emu_block->launch, outcome, fiber, site);
    if (first) emu_block->launch->report->defect = defect;
    emu_end_worker(first);
}

static bool sanitizing() { return emu_block->launch->tracing && emu_block->launch->tracing->sanitize; }

// Whether it waits for something that only sm_90a has: its place is then known as a program counter.
static bool waits_asynchronously(const Fiber* f) {
    const State s = f->state;
    return f->place && (s == State::at_named_barrier || s == State::at_mbarrier || s == State::at_warpgroup ||
                        s == State::at_cluster_barrier || s == State::for_registers);
}

static void set_line(int32_t& line, char (&file)[256], emu_site site) {
    line = site.line;
    snprintf(file, sizeof file, "%s", site.file);
}

// With the sanitizer a synchronisation error is a finding, and the launch goes on where it can. `other` waits elsewhere
// (null: there is no other party).
static void find(const Fiber* fiber, emu_site site, const Fiber* other, const emu_defect& defect) {
    const bool asynchronous = waits_asynchronously(fiber);
    emu_finding finding = emu_finding_at(fiber, asynchronous ? EMU_ASYNCCHECK : EMU_SYNCCHECK, EMU_NOTHING, 0);
    finding.defect = defect;
    if (asynchronous) finding.place = emu_place_of(fiber->place);
    else set_line(finding.line, finding.file, site);
    if (other) {
        finding.has_other = 1;
        if (waits_asynchronously(other)) finding.other_place = emu_place_of(other->place);
        else set_line(finding.other_line, finding.other_file, other->waits_at);
        finding.other_block = other->block_idx;
        finding.other_thread = other->thread_idx;
    }
    emu_find(emu_block->launch->tracing->results, finding);
}
static void find_or_fail(const Fiber* fiber, emu_site site, const Fiber* other, const emu_defect& defect) {
    if (!sanitizing()) fail(EMU_DIVERGENT, fiber, site, defect);
    find(fiber, site, other, defect);
}
[[noreturn]] static void find_and_fail(emu_outcome outcome, const Fiber* fiber, emu_site site, const Fiber* other, const emu_defect& defect) {
    if (sanitizing()) find(fiber, site, other, defect);
    fail(outcome, fiber, site, defect);
}

static void report_divergent(const Fiber* waiting) {
    const Block& b = *emu_block;
    if (b.elsewhere) {
        const Fiber *one = b.elsewhere, *other = waiting;
        if (sanitizing() && other->waits_at.line < one->waits_at.line) one = waiting, other = b.elsewhere;   // a pair is one finding
        const emu_dim3 w = other->thread_idx;
        find_or_fail(one, one->waits_at, other, emu_defect_of(EMU_DIVERGENT_BARRIER, {w.x, w.y, w.z, other->waits_at.line}));
    } else {
        const emu_dim3 o = b.fell_off->thread_idx;
        find_or_fail(waiting, b.barrier_site, nullptr, emu_defect_of(EMU_BARRIER_RUN_PAST, {b.waiting, b.size, o.x, o.y, o.z}));
    }
}

static emu_wait wait_of(const Fiber& f, unsigned threads) {
    emu_wait wait = {};
    wait.threads = threads;
    wait.line = f.waits_at.line;
    if (f.state == State::in_collective) {
        wait.kind = EMU_STUCK_IN_COLLECTIVE;
        snprintf(wait.name, sizeof wait.name, "%s", f.collective->name);
    } else if (f.state == State::at_named_barrier) {
        const NamedBarrier& n = emu_block->barriers[f.barrier];
        wait.kind = EMU_STUCK_AT_NAMED_BARRIER;
        wait.figures = {f.barrier, n.arrived, n.threads};
    } else if (f.state == State::at_mbarrier) {
        const Mbarrier m = Mbarrier::at(f.barrier);
        wait.kind = EMU_STUCK_AT_MBARRIER;
        wait.figures = {f.parity, m.phase(), m.pending(), m.count(), m.bytes()};
    } else if (f.state == State::at_warpgroup) {
        wait.kind = EMU_STUCK_AT_PRODUCT;
    } else if (f.state == State::at_cluster_barrier) {
        wait.kind = EMU_STUCK_AT_CLUSTER_BARRIER;
        wait.figures = {emu_block->cluster->missing};
    } else if (f.state == State::for_registers) {
        wait.kind = EMU_STUCK_FOR_REGISTERS;
        wait.figures = {emu_block->registers_free};
    } else wait.kind = EMU_STUCK_AT_BARRIER;
    return wait;
}

static bool waits_with(const Fiber& f, const Fiber& g) {
    return f.state == g.state && f.waits_at.line == g.waits_at.line && f.barrier == g.barrier;
}

// Calls `tell(first thread, number of threads)` for each place where live threads wait.
template <class Tell> static void for_each_group(const Block& b, Tell tell) {
    for (unsigned i = 0; i < b.size; i++) {
        const Fiber& f = b.fibers[i];
        if (f.state == State::done) continue;
        unsigned together = 0;
        bool told = false;
        for (unsigned j = 0; j < b.size; j++) {
            const Fiber& g = b.fibers[j];
            if (!waits_with(g, f)) continue;
            told |= j < i;
            together++;
        }
        if (!told) tell(f, together);
    }
}

// The first live thread that waits at another place than `f`; null if there is none.
static const Fiber* waits_elsewhere(const Block& b, const Fiber& f) {
    for (unsigned i = 0; i < b.size; i++)
        if (b.fibers[i].state != State::done && !waits_with(b.fibers[i], f)) return &b.fibers[i];
    return nullptr;
}

[[noreturn]] static void fail_deadlock() {
    const Block& b = *emu_block;
    emu_defect defect = emu_defect_of(EMU_DEADLOCK);
    const Fiber* first = nullptr;
    for_each_group(b, [&](const Fiber& f, unsigned together) {
        if (defect.wait_count < sizeof defect.waits / sizeof *defect.waits) defect.waits[defect.wait_count++] = wait_of(f, together);
        if (!first) first = &f;
    });
    if (sanitizing()) {
        for_each_group(b, [&](const Fiber& f, unsigned together) {
            const emu_wait wait = wait_of(f, together);
            emu_defect here = defect;
            here.kind = wait.kind, here.threads = wait.threads, here.figures = wait.figures;
            memcpy(here.name, wait.name, sizeof wait.name);
            find(&f, f.waits_at, waits_elsewhere(b, f), here);
        });
    }
    fail(EMU_STUCK, first, first->waits_at, defect);
}

// ---- taking turns

static void switch_to(Block& b, Fiber* next) {
    Fiber* me = emu_current;
    b.steps++;
    if (next == me) return;
    emu_current = next;
    emu_switch(&me->stack_pointer, next->stack_pointer);
}

static Fiber* first_ready(const Block& b, unsigned from_warp) {
    for (unsigned k = 0; k < b.warp_count; k++) {
        const Warp& w = b.warps[(from_warp + k) % b.warp_count];
        if (w.ready) return w.fiber[lowest(w.ready)];
    }
    return nullptr;
}

static unsigned draw(uint64_t& x, unsigned count) {   // PCG, but for its constants
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((x >> 33) % count);
}

// In another order than forward: the next thread to run after `me`. Null: none is ready.
static __attribute__((cold, noinline)) Fiber* next_in_order(Block& b, const Fiber* me) {
    if (b.launch->thread_order == EMU_REVERSE) {         // an earlier lane of its warp, an earlier warp; its own warp again
        for (unsigned k = 0; k <= b.warp_count; k++) {
            const Warp& w = b.warps[(me->warp + b.warp_count - k) % b.warp_count];
            const uint32_t ready = k == 0 ? w.ready & (bit(me->lane) - 1) : w.ready;
            if (ready) return w.fiber[31 - (unsigned)__builtin_clz(ready)];
        }
        return nullptr;
    }
    unsigned ready = 0;
    for (unsigned k = 0; k < b.warp_count; k++) ready += (unsigned)__builtin_popcount(b.warps[k].ready);
    if (!ready) return nullptr;
    unsigned skipped = draw(b.thread_chance, ready);
    for (unsigned k = 0;; k++) {
        uint32_t m = b.warps[k].ready;
        const unsigned here = (unsigned)__builtin_popcount(m);
        if (skipped >= here) {
            skipped -= here;
            continue;
        }
        while (skipped--) m &= m - 1;
        return b.warps[k].fiber[lowest(m)];
    }
}

static void make_ready(Warp& w, Fiber* f) {
    f->state = State::ready;
    w.ready |= bit(f->lane);
}

static void stop_running(Fiber* f, State why, emu_site site) {
    if (f->unsettled) emu_trace_settle(f);
    f->state = why;
    f->waits_at = site;
    emu_block->warps[f->warp].ready &= ~bit(f->lane);
}

// Once no thread can run: reads the logs and frees the threads that had no room in theirs. False if there is none.
static bool make_room(Block& b) {
    if (b.recorder && emu_trace_turn(b)) return true;
    bool any = false;
    for (unsigned i = 0; i < b.size; i++) {
        Fiber& f = b.fibers[i];
        if (f.state != State::log_full) continue;
        if (!any) emu_trace_logs(b);
        any = true;
        make_ready(b.warps[f.warp], &f);
    }
    return any;
}

// ---- clusters

// The next block of the cluster has its turn; this one waits for its own, unless it is over.
static void hand_over(Block& b) {
    Cluster& c = *b.cluster;
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, nullptr);     // the watchdog asks the block that runs
    pthread_mutex_lock(&c.mutex);
    do c.running = (c.running + 1) % c.size;
    while (c.left && c.blocks[c.running]->over);
    pthread_cond_broadcast(&c.turns);
    while (!b.over && c.running != b.rank) pthread_cond_wait(&c.turns, &c.mutex);
    pthread_mutex_unlock(&c.mutex);
    pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
}

static void wait_for_first_turn(Block& b) {
    Cluster& c = *b.cluster;
    pthread_mutex_lock(&c.mutex);
    while (c.running != b.rank) pthread_cond_wait(&c.turns, &c.mutex);
    c.idle = 0;
    pthread_mutex_unlock(&c.mutex);
}

void emu_open_cluster_barrier(Cluster& c) {
    if (emu_block->tracer) emu_trace_cluster_barrier(*emu_block);
    for (unsigned rank = 0; rank < c.size; rank++) {
        Block& b = *c.blocks[rank];
        if (!b.live) continue;
        c.missing += b.live;
        for (unsigned i = 0; i < b.size; i++) {
            Fiber& f = b.fibers[i];
            f.arrived = false;
            if (f.state == State::at_cluster_barrier) emu_make_ready(b, &f);
        }
    }
}

extern "C" uint64_t emu_steps() {
    emu_yield();
    return ++emu_block->steps;
}

// Once no thread can go on: one that can after copies are done, or after other blocks of the cluster have run; or null.
static Fiber* somebody_later(Block& b) {
    Cluster& c = *b.cluster;
    while (b.live) {
        if (Fiber* next = first_ready(b, 0)) {
            c.idle = 0;
            return next;
        }
        if (b.do_something_asynchronous && b.do_something_asynchronous(b)) c.idle = 0;
        else if (++c.idle < c.left) hand_over(b);
        else return nullptr;
    }
    return nullptr;
}

static bool same_place(emu_site a, emu_site b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

// No other lane of the warp can go on before these do: those that called __activemask() in one place are active together.
static __attribute__((noinline)) void open_active_mask(Warp& w) {
    const emu_site site = w.fiber[lowest(w.gathering)]->waits_at;
    uint32_t together = 0;
    for (uint32_t m = w.gathering; m; m &= m - 1)
        if (same_place(w.fiber[lowest(m)]->waits_at, site)) together |= m & -m;
    w.gathering &= ~together;
    for (uint32_t m = together; m; m &= m - 1) {
        Fiber* f = w.fiber[lowest(m)];
        f->active_mask = together;
        make_ready(w, f);
    }
}

// The next thread to run after one that cannot: a later lane of its warp, an earlier one, another warp.
static inline Fiber* next_forward(const Block& b, const Fiber* me) {
    const Warp& mine = b.warps[me->warp];
    if (!mine.ready) return first_ready(b, me->warp + 1);
    const uint32_t later = mine.ready & me->later;
    return mine.fiber[lowest(later ? later : mine.ready)];
}

// The same where no lane of its warp can go on, or where threads run in another order.
static __attribute__((noinline)) Fiber* next_elsewhere(Block& b, const Fiber* me) {
    Warp& mine = b.warps[me->warp];
    if (mine.gathering && !mine.ready) open_active_mask(mine);
    Fiber* next = b.forward ? next_forward(b, me) : next_in_order(b, me);
    if (!next && b.tracer && make_room(b)) next = first_ready(b, 0);
    return next ? next : somebody_later(b);
}

static void run_another() {
    Block& b = *emu_block;
    const Fiber* me = emu_current;
    Fiber* next = b.forward && b.warps[me->warp].ready ? next_forward(b, me) : next_elsewhere(b, me);
    if (next) {
        switch_to(b, next);
    } else if (b.live == 0) {
        if (b.do_something_asynchronous) b.do_something_asynchronous(b);   // what the threads have left behind
        emu_current = nullptr;
        void* forgotten;
        emu_switch(&forgotten, b.host_stack_pointer);
    } else {
        fail_deadlock();
    }
}

void emu_stop(State why, emu_site site) { stop_running(emu_current, why, site); }
void emu_make_ready(Block& b, Fiber* f) { make_ready(b.warps[f->warp], f); }
void emu_run_another() { run_another(); }

unsigned emu_choose(unsigned count) {
    if (emu_block->launch->order != EMU_RANDOM) return 0;
    return draw(emu_block->chance, count);
}

bool emu_happens_now() {
    const uint32_t order = emu_block->launch->order;
    return order == EMU_EARLY || (order == EMU_RANDOM && emu_choose(2));
}

void emu_wait_for_room() {
    stop_running(emu_current, State::log_full, emu_site{});
    run_another();
}

extern "C" void emu_yield() {
    Block& b = *emu_block;
    if (emu_current->unsettled) emu_trace_settle(emu_current);
    Warp& mine = b.warps[emu_current->warp];
    const uint32_t later = mine.ready & emu_current->later;
    if (mine.gathering && !(later && b.forward)) open_active_mask(mine);   // the lane that calls this may wait for them
    if (__builtin_expect(!b.forward, false)) return switch_to(b, next_in_order(b, emu_current));
    switch_to(b, later ? mine.fiber[lowest(later)] : first_ready(b, emu_current->warp + 1));
}

// ---- __syncthreads()

// Threads that left through `return;` count as arrived, as on the hardware. One that ran past the barrier is an error.
static void open_barrier(Block& b) {
    if (b.elsewhere || b.fell_off) {
        for (unsigned i = 0; i < b.size; i++) {
            const Fiber& f = b.fibers[i];
            if (f.state != State::at_barrier || !same_place(f.waits_at, b.barrier_site)) continue;
            report_divergent(&f);
            break;
        }
        b.elsewhere = b.fell_off = nullptr;
    }
    if (b.tracer) emu_trace_interval(b);
    for (unsigned w = 0; w < b.warp_count; w++)
        for (uint32_t m = b.warps[w].live; m; m &= m - 1) make_ready(b.warps[w], b.warps[w].fiber[lowest(m)]);
    b.waiting = 0;
    b.predicates_last = b.predicates;
    b.predicates = 0;
}

extern "C" int emu_barrier(int predicate, emu_site site) {
    Block& b = *emu_block;
    Fiber* f = emu_current;
    if (b.recorder) emu_trace_barrier(site);
    stop_running(f, State::at_barrier, site);
    if (b.waiting++ == 0) b.barrier_site = site;
    else if (!same_place(site, b.barrier_site)) b.elsewhere = f;
    b.predicates += predicate != 0;
    if (b.waiting == b.live) open_barrier(b);
    if (f->state != State::ready) run_another();
    return (int)b.predicates_last;
}

// ---- warp collectives

// Completes the collective that `f` waits in, if every live lane of its mask waits in it too.
static bool complete(Warp& w, Fiber* f) {
    const uint32_t participants = f->collective->mask & w.live;
    emu_collective* lanes[32] = {};
    for (uint32_t m = participants; m; m &= m - 1) {
        Fiber* g = w.fiber[lowest(m)];
        if (g->state != State::in_collective || g->collective->mask != f->collective->mask) return false;
        lanes[g->lane] = g->collective;
    }
    for (uint32_t m = participants; m; m &= m - 1) {
        const emu_collective* other = lanes[lowest(m)];
        if (other->combine == f->collective->combine) continue;
        emu_defect defect = emu_defect_of(EMU_DIFFERENT_COLLECTIVES, {other->site.line}, f->collective->name);
        snprintf(defect.other_name, sizeof defect.other_name, "%s", other->name);
        find_and_fail(EMU_BAD_COLLECTIVE, f, f->waits_at, w.fiber[lowest(m)], defect);
    }
    f->collective->combine(lanes, participants);
    if (f->collective->noticed & EMU_ORDERS_MEMORY && emu_block->tracer) emu_trace_warp_sync(w, participants);
    for (uint32_t m = participants; m; m &= m - 1) make_ready(w, w.fiber[lowest(m)]);
    return true;
}

extern "C" void emu_collect(emu_collective* mine) {
    Fiber* f = emu_current;
    Warp& w = emu_block->warps[f->warp];
    if (!(mine->mask & bit(f->lane)))
        find_and_fail(EMU_BAD_COLLECTIVE, f, mine->site, nullptr, emu_defect_of(EMU_LANE_NOT_IN_ITS_MASK, {mine->mask, f->lane}, mine->name));
    if (mine->noticed && emu_block->tracer) emu_trace_collective(f, mine);
    f->collective = mine;
    stop_running(f, State::in_collective, mine->site);
    if (mine->mask & w.ready || !complete(w, f)) run_another();
}

extern "C" unsigned emu_active_mask(emu_site site) {
    Fiber* f = emu_current;
    emu_block->warps[f->warp].gathering |= bit(f->lane);
    stop_running(f, State::at_active_mask, site);
    run_another();
    return f->active_mask;
}

extern "C" void emu_absent_lane(const emu_collective* reads, unsigned lane, unsigned source) {
    if (!sanitizing()) return;
    const Warp& w = emu_block->warps[emu_current->warp];
    const emu_kind kind = !w.fiber[source] ? EMU_LANE_NOT_IN_BLOCK : w.live & bit(source) ? EMU_LANE_NOT_IN_MASK : EMU_LANE_HAS_LEFT;
    find(w.fiber[lane], reads->site, nullptr, emu_defect_of(kind, {lane, source}, reads->name));
}

// ---- the life of a thread

extern "C" const emu_thread* emu_self() { return emu_current; }
extern "C" void emu_leave() { emu_current->left_early = true; }

extern "C" void emu_trap(const char* message, emu_site site) {
    fail(EMU_TRAP, emu_current, site, "%s", message);
}

// In a GPU's words, but for file and line, which the report has.
extern "C" void emu_assert(const char* condition, const char* function, emu_site site) {
    const Fiber* f = emu_current;
    const emu_dim3 b = f->block_idx, t = f->thread_idx;
    fail(EMU_TRAP, f, site, "%s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.", function, b.x, b.y, b.z, t.x, t.y, t.z,
         condition);
}

extern "C" void emu_misuse(emu_kind kind, emu_site site, emu_figures figures, const char* name) {
    const Fiber* f = emu_current;
    const emu_defect defect = emu_defect_of(kind, figures, name);
    if (sanitizing()) {
        emu_finding finding = emu_finding_at(f, EMU_ASYNCCHECK, kind, emu_place_of(f->place));
        if (!f->place) set_line(finding.line, finding.file, site);
        finding.defect = defect;
        emu_find(emu_block->launch->tracing->results, finding);
    }
    fail(EMU_TRAP, f, site, defect);
}

static void thread_main() {
    Block& b = *emu_block;
    b.launch->kernel(b.launch->arguments);
    Fiber* f = emu_current;
    Warp& w = b.warps[f->warp];
    stop_running(f, State::done, emu_site{});
    w.live &= ~bit(f->lane);
    b.live--;
    if (!f->arrived && --b.cluster->missing == 0) emu_open_cluster_barrier(*b.cluster);
    if (!f->left_early) b.fell_off = f;
    for (uint32_t m = w.live; m; m &= m - 1) {     // a collective may have waited for this lane alone
        Fiber* g = w.fiber[lowest(m)];
        if (g->state == State::in_collective) complete(w, g);
    }
    if (b.live && b.waiting == b.live) open_barrier(b);
    else if (b.live == 0 && b.tracer) emu_trace_interval(b);
    run_another();
    __builtin_unreachable();
}

// ---- shared memory

struct Window { uintptr_t inside; char* low; char* high; };

static int find_window(dl_phdr_info* info, size_t, void* argument) {
    Window* window = (Window*)argument;
    bool mine = false;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& segment = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment.p_vaddr;
        if (segment.p_type == PT_LOAD && window->inside - start < segment.p_memsz) mine = true;
        if (segment.p_type == PT_TLS) bytes = segment.p_memsz;
    }
    if (!mine) return 0;
    window->low = (char*)info->dlpi_tls_data;
    window->high = window->low + bytes;
    return 1;
}

extern "C" unsigned emu_shared_offset(const void* pointer) { return (unsigned)((const char*)pointer - emu_block->shared_low); }
extern "C" unsigned emu_dynamic_shared_bytes() { return emu_block->launch->dynamic_shared; }
extern "C" emu_space emu_space_of(const void* pointer) {
    const Block& b = *emu_block;
    const char* p = (const char*)pointer;
    if (p >= b.own && p < b.own + b.own_bytes) return EMU_LOCAL_SPACE;
    return p >= b.shared_low && p < b.shared_high ? EMU_SHARED_SPACE : EMU_GLOBAL_SPACE;
}
extern "C" size_t emu_shared_bytes() { return (size_t)(emu_block->shared_high - emu_block->shared_low); }

// Apart from emu_shared_pointer(), which every ldmatrix calls.
[[noreturn]] static __attribute__((cold, noinline)) void fail_exited(uintptr_t return_address) {
    emu_note_place((void*)return_address);
    emu_block->launch->report->program_counter = return_address - 1;   // inside the call, not behind it
    emu_misuse(EMU_SHARED_OF_EXITED_BLOCK, emu_site{});
}

Block& emu_block_of(unsigned address) {
    const unsigned rank = address >> 24;
    return rank ? *emu_block->cluster->blocks[rank - 1] : *emu_block;
}
unsigned emu_address_in(unsigned rank, unsigned address) { return (rank + 1) << 24 | (address & emu_in_block); }
extern "C" void* emu_shared_pointer(unsigned address) {
    if (address >> 24 == 0) return emu_block->shared_low + address;
    if (address >> 24 > emu_block->cluster->size) return emu_block->shared_low + address;   // no address: a fault
    if (emu_block_of(address).over) fail_exited((uintptr_t)__builtin_return_address(0));
    return emu_block_of(address).shared_low + (address & emu_in_block);
}
extern "C" unsigned emu_map_to_block(unsigned address, unsigned rank, emu_site site) {
    EMU_NOTE_PLACE();
    const unsigned size = emu_block->cluster->size;
    if (rank >= size) emu_misuse(EMU_NO_SUCH_BLOCK, site, {size - 1, rank});
    return emu_address_in(rank, address);
}
extern "C" unsigned emu_rank_of(unsigned address) { return address >> 24 ? (address >> 24) - 1 : emu_block->rank; }

// Shared memory starts undefined. All-ones bytes are NaN in fp32, fp16 and bf16: a value that was never written shows.
static void poison_shared(const Block& b) {
    char* after_dynamic = b.dynamic_shared + EMU_SHARED_LIMIT;
    memset(b.shared_low, 0xff, (size_t)(b.dynamic_shared - b.shared_low));
    memset(b.dynamic_shared, 0xff, b.launch->dynamic_shared);
    memset(after_dynamic, 0xff, (size_t)(b.shared_high - after_dynamic));
}

// Dynamic shared memory that the launch did not ask for must not be touched: a forgotten shared_mem is a fault. Exact to a page.
static void protect_unasked(const Block& b, int protection) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)b.dynamic_shared;
    const uintptr_t low = round_up(start + b.launch->dynamic_shared, page), high = (start + EMU_SHARED_LIMIT) / page * page;
    if (low < high && mprotect((void*)low, high - low, protection)) emu_fail_to_start(b.launch, "guard pages");
}

// ---- running blocks

// A page that may not be touched. Since 6.13, Linux can do that without a mapping of its own for the page; these are dear:
// for a small launch, more so than all else.
static void guard(char* page, size_t bytes, const emu_launch* launch) {
    const int guard_install = 102;   // MADV_GUARD_INSTALL, which many a libc does not know yet
    if (madvise(page, bytes, guard_install) && mprotect(page, bytes, PROT_NONE)) emu_fail_to_start(launch, "guard pages");
}

// What a thread is in each block of the launch that it comes to be in.
static void name_fiber(Block& b, unsigned i) {
    Fiber& f = b.fibers[i];
    const emu_dim3 size = b.launch->block;
    f.thread_idx = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    f.block_dim = size;
    f.grid_dim = b.launch->grid;
    f.cluster_dim = b.launch->cluster;
    f.cluster_rank = b.rank;
    f.linear_id = i;
    f.lane = i % 32;
    f.warp = i / 32;
    f.later = ~((2u << f.lane) - 1);   // of lane 31: 2u << 31 is 0, and none is later
}

void emu_prepare_block(Block& b, const emu_launch* launch) {
    b.launch = launch;
    b.size = launch->block.x * launch->block.y * launch->block.z;
    b.warp_count = (b.size + 31) / 32;
    const size_t guard_bytes = (size_t)sysconf(_SC_PAGESIZE), fibers_bytes = round_up(b.size * sizeof(Fiber), guard_bytes);
    b.stack_stride = guard_bytes + round_up(stack_bytes, guard_bytes);
    b.stacks_bytes = b.stack_stride * b.size;
    b.own_bytes = b.quiet_bytes = fibers_bytes + b.stacks_bytes;
    b.own = (char*)mmap(nullptr, b.own_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.own == MAP_FAILED) emu_fail_to_start(launch, "memory for the stacks of a block");
    b.fibers = (Fiber*)b.own;
    b.stacks = b.own + fibers_bytes;
    for (unsigned i = 0; i < b.size; i++) {
        guard(b.stacks + i * b.stack_stride, guard_bytes, launch);
        name_fiber(b, i);
    }
    b.dynamic_shared = launch->dynamic_shared_base();   // touches the storage, so that this OS thread has its copy
    Window window = {(uintptr_t)launch->dynamic_shared_base, nullptr, nullptr};
    dl_iterate_phdr(find_window, &window);
    b.shared_low = window.low;
    b.shared_high = window.high;
    emu_block = &b;
    if (launch->tracing) emu_prepare_tracer(b);
    if (!sanitizing()) protect_unasked(b, PROT_NONE);   // the sanitizer sees exactly what is touched, and lets it happen
}

void emu_release_block(Block& b) {
    if (b.tracer) emu_release_tracer(b);
    protect_unasked(b, PROT_READ | PROT_WRITE);   // before the thread frees its storage
}

// As many as ptxas gives the threads of a block that has a multiprocessor to itself, which a kernel with setmaxnreg has.
static unsigned registers_at_launch(unsigned threads) {
    const unsigned all = 65536 / threads / 8 * 8;
    return all < 256 ? all : 256;
}

static void start_fiber(Block& b, unsigned i, unsigned registers) {
    Fiber& f = b.fibers[i];
    f.block_idx = b.index;
    f.state = State::ready;
    f.left_early = false;
    f.copy_count = f.copy_group = 0;
    f.barrier = f.bulk_group = 0;
    f.arrived = f.owes_wait = false;
    f.registers = registers;
    f.unsettled = nullptr;
    f.place = 0;
    // Stacks whose tops are a power of two apart would fight for the same few cache sets.
    char* top = b.stacks + (i + 1) * b.stack_stride - (i % 16) * 192 - 64;
    f.stack_pointer = emu_new_stack(top, thread_main);
    Warp& w = b.warps[f.warp];
    w.fiber[f.lane] = &f;
    w.live |= bit(f.lane);
    w.ready |= bit(f.lane);
}

void emu_run_block(Block& b, uint64_t linear_index) {
    const emu_dim3 grid = b.launch->grid;
    b.index = {(unsigned)(linear_index % grid.x), (unsigned)(linear_index / grid.x % grid.y),
               (unsigned)(linear_index / ((uint64_t)grid.x * grid.y))};
    b.live = b.size;
    b.waiting = b.predicates = 0;
    b.elsewhere = b.fell_off = nullptr;
    memset(b.warps, 0, sizeof b.warps);
    memset(b.barriers, 0, sizeof b.barriers);
    b.do_something_asynchronous = nullptr;
    b.forward = b.launch->thread_order == EMU_FORWARD;
    b.chance = b.thread_chance = (b.launch->seed + 1) * 0x9E3779B97F4A7C15ull ^ linear_index;
    b.over = false;
    b.registers_free = 0;
    poison_shared(b);
    const unsigned registers = registers_at_launch(b.size);
    for (unsigned i = 0; i < b.size; i++) start_fiber(b, i, registers);
    if (b.tracer) emu_trace_start(b);
    Cluster& c = *b.cluster;
    if (b.rank == 0) c.running = c.idle = 0, c.left = c.size, c.missing = c.size * b.size;
    if (c.size > 1) {
        pthread_barrier_wait(&c.between);       // all blocks have their threads, and their shared memory
        wait_for_first_turn(b);
    }
    emu_current = b.launch->thread_order == EMU_FORWARD ? &b.fibers[0] : next_in_order(b, &b.fibers[0]);
    emu_switch(&b.host_stack_pointer, emu_current->stack_pointer);
    b.over = true;
    c.left--;
    c.idle = 0;
    if (c.size > 1) {
        hand_over(b);
        pthread_barrier_wait(&c.between);
    }
}
