// Racecheck of global memory in a kernel that calls a fence: its threads may wait for each other by flags, in any block.
//
// What a thread knows is, for each other thread, up to which moment that thread's accesses come before its own next one. A fence
// releases this knowledge, together with the thread's own accesses so far: the next atomic, or write of a volatile variable,
// stores it at that address, and an atomic or volatile read of the same address takes it over. So nobody knows what a thread
// did after its last fence, and a fence without a flag after it orders nothing. Threads that meet at __syncthreads() or
// __syncwarp() know afterwards what each of them knew.
//
// Moments are counted through the launch, under one lock, in the order in which it happens to run.
#include "fences.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "async_rules.h"
#include "findings.h"

typedef uint32_t Moment;

// Whose accesses, and up to when. who: of the party with this number all, a warp, or one thread.
struct Entry { uint32_t party, who; Moment until; };
static const uint32_t all_of_it = 0, first_warp = 1, first_thread = 64;
struct Entries { const Entry* at; unsigned count; };

// By ascending parties; never changed. Null: nothing.
struct Known { unsigned references, count; Entry at[]; };

// Where an atomic or a volatile variable lies: what has been released there; by a fence of a block, only for that one.
struct Flag { uintptr_t address; Known *known, *in_block; uint32_t block; };

// block: its number, from 1 on; 0: none. soft: an atomic, or volatile.
struct Trace { uint32_t block; Moment moment; uint32_t place; uint16_t thread; bool soft; };
struct Cell { Trace writes[2], reads[2]; };   // the last, and one of another thread that it need not know of

struct Who {                              // a thread, as the others may come to know of it
    Known *known, *released, *released_in_block;
    uintptr_t flag;                       // that it has just read: what was released there is known at its next step. 0: none
    Moment warp_until;                    // up to when its warp's accesses come before
    bool wrote;                           // since its last fence, what no fence has released
};

struct Fences {
    Tracer* tracer;
    uint32_t block, party;                // numbers from 1 on; a cluster is one party, in which its own barriers order
    bool is_one;                          // all of a party is as one thread: asynccheck knows what orders it
    Moment block_until;                   // up to when all accesses of the block come before
    Who who[1024];
    // Two threads of a block may write the same value. What the second one writes is seen at its next step only.
    struct { emu_finding finding; const char* address; unsigned bytes; char before[16]; } written;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Moment moment = 1;
static Cell* cells[most_arrays + most_variables];
static Flag* flags;                       // by a hash of their addresses; a power of two of them
static size_t flag_count, flag_capacity;
static uint64_t known_bytes, steps;       // what all this has taken so far
static bool gave_up;                      // more than it may: from now on all is taken to be in order
static const uint64_t most_known_bytes = 512ull << 20, most_steps = 1ull << 30;

static void* must_have(void* p) {
    if (!p || p == MAP_FAILED) emu_fail_to_start(emu_block->launch, "memory for the sanitizer");
    return p;
}

// ---- what is known

static Known* shared(Known* k) {
    if (k) k->references++;
    return k;
}
static void release(Known* k) {
    if (!k || --k->references) return;
    known_bytes -= sizeof(Known) + k->count * sizeof(Entry);
    free(k);
}
static void replace(Known*& old, Known* by) {
    release(old);
    old = by;
}

static Entries entries(const Known* k) { return k ? Entries{k->at, k->count} : Entries{nullptr, 0}; }

static int compare(const Entry& a, const Entry& b) {
    if (a.party != b.party) return a.party < b.party ? -1 : 1;
    return a.who < b.who ? -1 : a.who > b.who;
}

// Both together. Of a party no entry that says less than that for all of it.
static Known* joined(Entries a, Entries b) {
    Known* k = (Known*)must_have(malloc(sizeof(Known) + (a.count + b.count) * sizeof(Entry)));
    k->references = 1, k->count = 0;
    Entry whole = {};
    steps += a.count + b.count;
    for (unsigned i = 0, j = 0; i < a.count || j < b.count;) {
        const int order = i == a.count ? 1 : j == b.count ? -1 : compare(a.at[i], b.at[j]);
        Entry e = order <= 0 ? a.at[i] : b.at[j];
        if (order == 0 && b.at[j].until > e.until) e.until = b.at[j].until;
        i += order <= 0, j += order >= 0;
        if (e.who == all_of_it) whole = e;
        else if (e.party == whole.party && e.until <= whole.until) continue;
        k->at[k->count++] = e;
    }
    known_bytes += sizeof(Known) + k->count * sizeof(Entry);
    return k;
}

static Moment until(Entries of, uint32_t party, uint32_t who) {
    const Entry wanted = {party, who, 0};
    unsigned low = 0, high = of.count;
    while (low < high) {
        const unsigned middle = (low + high) / 2;
        if (compare(of.at[middle], wanted) < 0) low = middle + 1;
        else high = middle;
    }
    return low < of.count && compare(of.at[low], wanted) == 0 ? of.at[low].until : 0;
}

static bool has_all(Entries of, Entries these) {
    steps += these.count;
    for (unsigned i = 0; i < these.count; i++) {
        const Entry& e = these.at[i];
        if (until(of, e.party, e.who) < e.until && until(of, e.party, all_of_it) < e.until) return false;
    }
    return true;
}

static void add(Known*& to, Entries more) {
    if (!has_all(entries(to), more)) replace(to, joined(entries(to), more));
}

// ---- flags

static Flag* flag_at(uintptr_t address) {
    size_t i = address * 0x9E3779B97F4A7C15ull >> 20;
    while (flag_capacity && flags[i &= flag_capacity - 1].address && flags[i].address != address) i++;
    return flag_capacity ? &flags[i] : nullptr;
}

static Flag& new_flag(uintptr_t address) {
    if (2 * flag_count >= flag_capacity) {
        Flag* const old = flags;
        const size_t old_capacity = flag_capacity;
        flag_capacity = old_capacity ? 2 * old_capacity : 256;
        flags = (Flag*)must_have(calloc(flag_capacity, sizeof(Flag)));
        for (size_t i = 0; i < old_capacity; i++)
            if (old[i].address) *flag_at(old[i].address) = old[i];
        free(old);
    }
    Flag& flag = *flag_at(address);
    flag_count += !flag.address;
    flag.address = address;
    return flag;
}

static Moment next_moment() {
    gave_up |= known_bytes > most_known_bytes || steps > most_steps || moment > ~0u - 2;
    return moment++;
}

static Who& running(Fences& f) { return f.who[f.is_one ? 0 : emu_current->linear_id]; }

// What a thread has read before its last step is now known to have happened.
static void take(Fences& f, Who& w) {
    const Flag* flag = w.flag ? flag_at(w.flag) : nullptr;
    w.flag = 0;
    if (!flag || !flag->address) return;
    add(w.known, entries(flag->known));
    if (flag->block == f.block) add(w.known, entries(flag->in_block));
}

static void leave(Fences& f, const Who& w, uintptr_t address) {
    if (!w.released_in_block) return;                        // no fence so far
    Flag& flag = new_flag(address);
    if (flag.block != f.block) replace(flag.in_block, nullptr);
    flag.block = f.block;
    // Who sees the flag knows, too, that the flag has been touched: who resets it at last races with nobody.
    const Entry itself = {f.party, f.is_one ? all_of_it : first_thread + emu_current->linear_id, next_moment()};
    const Entries more = {&itself, w.wrote ? 0u : 1u};
    add(flag.in_block, entries(w.released_in_block));
    add(flag.in_block, more);
    if (!w.released) return;
    add(flag.known, entries(w.released));
    add(flag.known, more);
}

// ---- what orders memory

struct Locked {
    Locked() { pthread_mutex_lock(&lock); }
    ~Locked() { pthread_mutex_unlock(&lock); }
};

static void settle(Fences& f) {
    if (f.written.bytes && memcmp(f.written.before, f.written.address, f.written.bytes))
        emu_find(f.tracer->results, f.written.finding);
    f.written.bytes = 0;
}

extern "C" void emu_fence(bool between_blocks) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (Rules* rules = emu_rules()) emu_rule_fence(*rules);
    Tracer* const t = emu_block->tracer;
    if (!t || !t->fences || !t->watching || gave_up) return;
    const Locked locked;
    Fences& f = *t->fences;
    Who& w = running(f);
    settle(f);
    take(f, w);
    const Fiber* thread = emu_current;
    const Moment now = next_moment();
    const Entry of_thread[] = {{f.party, all_of_it, f.block_until},
                               {f.party, first_warp + thread->warp, w.warp_until},
                               {f.party, first_thread + thread->linear_id, now}};
    const Entry of_party = {f.party, all_of_it, now};
    const Entries mine = f.is_one ? Entries{&of_party, 1} : Entries{of_thread, 3};
    replace(w.released_in_block, joined(entries(w.known), mine));
    if (between_blocks) replace(w.released, shared(w.released_in_block));
    w.wrote = false;
}

// Threads meet: each comes to know what all knew, and if one of them has passed a fence, so has what they did before.
template <class Each> static void meet(Fences& f, Entry these, Each for_each) {
    Known *known = nullptr, *released = nullptr, *in_block = nullptr;
    for_each([&](Who& w) {
        take(f, w);
        add(known, entries(w.known));
        add(released, entries(w.released));
        add(in_block, entries(w.released_in_block));
    });
    if (released) add(released, {&these, 1});
    if (in_block) add(in_block, {&these, 1});
    for_each([&](Who& w) {
        replace(w.known, shared(known));
        replace(w.released, shared(released));
        replace(w.released_in_block, shared(in_block));
        w.wrote &= !in_block;
    });
    release(known);
    release(released);
    release(in_block);
}

void emu_fences_barrier(Fences& f) {
    if (gave_up || f.is_one) return;
    const Locked locked;
    settle(f);
    f.block_until = next_moment();
    meet(f, {f.party, all_of_it, f.block_until}, [&](auto visit) {
        for (unsigned i = 0; i < f.tracer->block->size; i++) visit(f.who[i]);
    });
}

void emu_fences_warp_sync(Fences& f, uint32_t lanes, unsigned warp) {
    if (gave_up || f.is_one) return;
    const Locked locked;
    settle(f);
    const Moment now = next_moment();
    meet(f, {f.party, first_warp + warp, now}, [&](auto visit) {
        for (uint32_t m = lanes; m; m &= m - 1) {
            Who& w = f.who[32 * warp + (unsigned)__builtin_ctz(m)];
            w.warp_until = now;
            visit(w);
        }
    });
}

// ---- accesses

static emu_dim3 index_in(emu_dim3 size, unsigned i) { return {i % size.x, i / size.x % size.y, i / size.x / size.y}; }

// The number of a block's cluster, from 1 on.
static uint32_t party_of(const emu_launch* launch, uint32_t block) {
    const emu_dim3 size = launch->cluster, grid = launch->grid, at = index_in(grid, block - 1);
    return at.x / size.x + grid.x / size.x * (at.y / size.y + grid.y / size.y * (at.z / size.z)) + 1;
}

// Whether an access comes before all that this thread does now.
static bool comes_before(const Fences& f, const Who& w, const Fiber* thread, const Trace& one) {
    const uint32_t party = party_of(f.tracer->block->launch, one.block);
    if (party == f.party) {
        if (f.is_one || one.thread == thread->linear_id || one.moment <= f.block_until) return true;
        if (one.thread / 32u == thread->warp && one.moment <= w.warp_until) return true;
    }
    const Entries known = entries(w.known);
    return until(known, party, all_of_it) >= one.moment || until(known, party, first_warp + one.thread / 32u) >= one.moment ||
           until(known, party, first_thread + one.thread) >= one.moment;
}

static void remember(const Fences& f, const Who& w, const Fiber* thread, Trace (&slots)[2], const Trace& now) {
    // What may be forgotten first: nothing; what races with no more than this does; what this comes after; another soft one.
    const auto worth = [&](const Trace& one) {
        if (!one.block) return 0;
        const bool before = comes_before(f, w, thread, one);
        return before && one.soft >= now.soft ? 1 : before ? 2 : one.soft ? 3 : 4;
    };
    const int first = worth(slots[0]), second = worth(slots[1]);
    if (now.soft && first == 4 && second == 4) return;       // a plain access races with more than a soft one does
    slots[first < second ? 0 : 1] = now;
}

static void find_race(Fences& f, const Fiber* thread, emu_kind kind, const Trace& now, const Trace& other, uintptr_t address,
                      unsigned bytes) {
    const emu_launch* launch = f.tracer->block->launch;
    emu_finding finding = emu_finding_at(thread, EMU_RACECHECK, kind, now.place);
    finding.is_write = kind != EMU_READ_AFTER_WRITE;
    finding.has_other = 1;
    finding.other_place = other.place;
    finding.other_block = index_in(launch->grid, other.block - 1);
    finding.other_thread = index_in(launch->block, other.thread);
    finding.same_warp = other.block == now.block && other.thread / 32u == thread->warp;
    if (kind == EMU_READ_AFTER_WRITE && other.soft) finding.look = now.place;
    if (kind == EMU_WRITE_AFTER_READ && now.soft) finding.look = other.place;
    finding.by_flags = 1;
    if (kind != EMU_WRITE_AFTER_WRITE || other.block != now.block) return emu_find(f.tracer->results, finding);
    settle(f);
    f.written.finding = finding;
    f.written.address = (const char*)address;
    f.written.bytes = bytes;
    memcpy(f.written.before, f.written.address, bytes);
}

void emu_fences_access(Fences& f, uintptr_t address, unsigned log_bytes, Access access, unsigned space, uint32_t place) {
    if (gave_up) return;
    const Locked locked;
    const Fiber* thread = emu_current;
    Who& w = running(f);
    settle(f);
    take(f, w);
    const bool reads = is_read(access);
    const bool soft = is_atomic(access) || access == Access::volatile_read || access == Access::volatile_write;
    const Trace now = {f.block, moment, place, (uint16_t)thread->linear_id, soft};
    const Array& array = f.tracer->arrays[space - 1];
    const unsigned bytes = 1u << log_bytes;
    const uintptr_t offset = address - array.low;
    const uintptr_t end = bytes < array.element_bytes ? offset : offset + bytes;   // a part of an element is not watched
    for (uintptr_t i = offset / array.element_bytes; i * array.element_bytes < end; i++) {
        Cell& c = cells[space - 1][i];
        for (const Trace& one : c.writes)
            if (one.block && !(soft && one.soft) && !comes_before(f, w, thread, one))
                find_race(f, thread, reads ? EMU_READ_AFTER_WRITE : EMU_WRITE_AFTER_WRITE, now, one, address, bytes);
        for (const Trace& one : c.reads)
            if (!reads && one.block && !(soft && one.soft) && !comes_before(f, w, thread, one))
                find_race(f, thread, EMU_WRITE_AFTER_READ, now, one, address, bytes);
        remember(f, w, thread, reads ? c.reads : c.writes, now);
    }
    if (soft && !reads) leave(f, w, address);
    if (!soft && !reads) w.wrote = true;
    if (soft && (reads || access == Access::atomic)) w.flag = address;
}

// ---- the life of it

Fences* emu_new_fences(Tracer& t) {
    const Locked locked;
    for (unsigned i = 0; i < most_arrays + most_variables; i++) {
        const Array& a = t.arrays[i];
        if (!a.element_bytes || cells[i]) continue;
        const size_t size = ((a.high - a.low) / a.element_bytes + 1) * sizeof(Cell);
        void* const zeros = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        cells[i] = (Cell*)must_have(zeros);
    }
    Fences* f = (Fences*)must_have(calloc(1, sizeof(Fences)));
    f->tracer = &t;
    f->is_one = t.tracing->hopper;
    return f;
}

void emu_start_fences(Fences& f) {
    const Locked locked;
    const emu_launch* launch = f.tracer->block->launch;
    const emu_dim3 grid = launch->grid, at = f.tracer->block->index;
    settle(f);
    f.block = (uint32_t)(at.x + (uint64_t)grid.x * (at.y + (uint64_t)grid.y * at.z)) + 1;
    f.party = party_of(launch, f.block);
    f.block_until = 0;
    for (unsigned i = 0; i < f.tracer->block->size; i++) {
        Who& w = f.who[i];
        replace(w.known, nullptr);
        replace(w.released, nullptr);
        replace(w.released_in_block, nullptr);
        w = Who{};
    }
}
