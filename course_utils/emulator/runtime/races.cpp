// Racecheck and initcheck. What memory remembers: for each word, who wrote it last, and who has read it since the last barrier.
// Of global memory, too: the lowest blocks that wrote and read each element, whatever the order they ran in. (In a kernel with
// fences that is not enough: see fences.cpp.)
#include "races.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "findings.h"

// One access: epoch (22 bits), number of its place in the code (12), thread (10), warp epoch (18), atomic (1),
// cp.async that has not arrived (1). Two accesses of one epoch have no barrier between them; of one warp epoch, no
// __syncwarp(). 0: none.
typedef uint64_t Touch;
static inline uint32_t epoch_of(Touch t) { return (uint32_t)(t >> 42); }
static inline unsigned place_id_of(Touch t) { return (unsigned)(t >> 30) & 4095; }
static inline unsigned thread_of(Touch t) { return (unsigned)(t >> 20) & 1023; }
static const Touch atomic_mark = 2, in_flight = 1;

struct Cell {
    Touch write;
    Touch read, same_warp, other_warp;   // the last; the last by another lane of its warp; the last by another warp
};

// Memory that the threads of a block share, from a multiple of 4 bytes on: its shared memory; an array. Who touches parts of a
// word splits it, from then on until the block ends, into pieces of 2 bytes or of 1.
struct Region {
    uintptr_t low;
    size_t word_count;                   // 0: not watched
    Cell* cells[3];                      // by log(piece): for each byte, each 2 bytes, each word
    uint8_t* values[3];                  // what the last write of each wrote: a digest
    uint32_t* split;                     // for each word: the number of the block that has split it, times 4, plus log(piece);
};                                       // made, as the cells of pieces are, for the first one

// One access to global memory: block number (32 bits), place (22), thread (10). 0: none.
typedef uint64_t Mark;
static Mark mark(uint32_t block, unsigned place_id, unsigned thread) { return (Mark)block << 32 | place_id << 10 | thread; }
static uint32_t block_of(Mark m) { return (uint32_t)(m >> 32); }
static unsigned marked_place_id(Mark m) { return (unsigned)m >> 10; }
static unsigned marked_thread(Mark m) { return (unsigned)m & 1023; }

struct Element {
    Mark writes[2], atomics[2], reads[2];   // by the lowest blocks; the second of a pair by another block than the first
    Mark clash[2];                       // two threads of one block have stored different values: the second, and the first
    uint8_t value;                       // the digest of what all writes so far have stored; 0: none so far
    bool differs;                        // they have stored different values, or unknown ones
};

static const unsigned most_places = 4096;   // in the code of one kernel
static const uintptr_t many = 1;
static const uint32_t last_epoch = (1 << 22) - 1;

// Reads, at one place and in one interval, of shared memory that nobody has written: examples, and how many there were.
struct Unwritten {
    uint32_t place;
    bool by_atomics;
    unsigned kept;
    uint64_t count;
    const Cell* cell[32];
    Touch read[32];
};

// Of one thread's log; `who` is the thread's part of a Touch.
struct Reader { const LogEntry *next, *end; Touch who; };
static Touch who_is(const Fiber& f) { return (Touch)f.linear_id << 20 | (f.warp_epoch & 0x3ffff) << 2; }

struct Races {
    Block* block;
    Tracer* tracer;
    uint32_t epoch, first_epoch;         // the intervals between barriers count on from block to block: no cell is cleared
    uint32_t block_number;               // linear index in the grid, plus 1
    Region regions[1 + most_arrays + most_variables];   // by the numbers of spaces
    Element* elements[most_arrays + most_variables];
    uint32_t places[most_places];        // by their numbers
    uintptr_t written[most_places];      // the one address of global memory that a place writes; 0: none so far; many: several
    uint32_t last_place, last_place_id;
    Reader readers[1024];                // not on the stack: that of a fiber may be full
    Unwritten unwritten[32];
    unsigned unwritten_places;
    Races* next;                         // of another OS thread
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static Races* all;

template <class T> static T* zeros(const Races& r, size_t count) {       // taken from the system page by page, as they are touched
    void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) emu_fail_to_start(r.block->launch, "memory for the sanitizer");
    return (T*)p;
}

static void make_cells(const Races& r, Region& region, unsigned log_piece) {
    const size_t count = region.word_count * 4 >> log_piece;
    region.cells[log_piece] = zeros<Cell>(r, count);
    region.values[log_piece] = zeros<uint8_t>(r, count);
}

static void watch(const Races& r, Region& region, uintptr_t low, uintptr_t high) {
    region.low = low & ~(uintptr_t)3;
    region.word_count = (high - region.low) / 4 + 8;
    make_cells(r, region, 2);
}

Races* emu_new_races(Tracer& t) {
    Races* r = (Races*)calloc(1, sizeof(Races));
    r->block = t.block;
    r->tracer = &t;
    watch(*r, r->regions[0], (uintptr_t)t.block->shared_low, (uintptr_t)t.block->shared_high);
    for (unsigned i = 0; i < most_arrays + most_variables && !t.fences; i++) {
        const Array& a = t.arrays[i];
        if (!a.element_bytes) continue;
        r->elements[i] = zeros<Element>(*r, (a.high - a.low) / a.element_bytes + 1);
        if (!t.tracing->hopper) watch(*r, r->regions[1 + i], a.low, a.high);   // there a block has other barriers, too
    }
    pthread_mutex_lock(&all_lock);
    r->next = all;
    all = r;
    pthread_mutex_unlock(&all_lock);
    return r;
}

void emu_start_races(Races& r) {
    const emu_dim3 grid = r.block->launch->grid, at = r.block->index;
    if (r.epoch > last_epoch / 2) {
        for (Region& region : r.regions)      // smaller pieces count only after a new split
            if (region.word_count) madvise(region.cells[2], region.word_count * sizeof(Cell), MADV_DONTNEED);
        r.epoch = 0;
    }
    r.first_epoch = ++r.epoch;
    r.block_number = (uint32_t)(at.x + (uint64_t)grid.x * (at.y + (uint64_t)grid.y * at.z)) + 1;
}

static inline unsigned number_of(Races& r, uint32_t place) {
    if (place == r.last_place) return r.last_place_id;
    unsigned i = place * 0x9E3779B9u >> 20;
    for (unsigned n = 0; n < most_places && r.places[i] && r.places[i] != place; n++) i = (i + 1) % most_places;
    r.places[i] = r.last_place = place;
    return r.last_place_id = i;
}

static inline bool is_look(const LogEntry& e) { return e.access == Access::read && emu_is_look(e.place); }

// ---- within a block

static void find_race(Races& r, emu_kind kind, const Fiber* f, const LogEntry& e, Touch other) {
    emu_finding finding = emu_finding_at(f, EMU_RACECHECK, kind, e.place);
    const Fiber& party = r.block->fibers[thread_of(other)];
    finding.is_shared = !e.space;
    finding.is_write = !is_read(e.access);
    finding.has_other = 1;
    finding.other_place = r.places[place_id_of(other)];
    finding.other_block = f->block_idx;
    finding.other_thread = party.thread_idx;
    finding.same_warp = party.warp == f->warp;
    if (kind == EMU_READ_AFTER_WRITE && e.access == Access::read && other & atomic_mark) finding.look = e.place;
    if (kind == EMU_WRITE_AFTER_READ && is_atomic(e.access)) finding.look = (uint32_t)finding.other_place;
    emu_find(r.tracer->results, finding);
}

// May the two, of one block, happen in either order?
static inline bool unordered(Touch a, Touch b) {
    const Touch difference = a ^ b;
    if (difference >> 42 || !(difference >> 20 & 1023)) return false;   // a barrier in between, or one thread
    return difference >> 25 & 31 || !(difference >> 2 & 0x3ffff);       // two warps, or no __syncwarp()
}

static inline bool same_epoch(Touch a, Touch b) { return !((a ^ b) >> 42); }

static inline void remember_read(Cell& c, Touch now) {
    const Touch difference = c.read ^ now;
    if (!(difference >> 42) && difference >> 20 & 1023) {               // another thread, in the same interval
        if (same_epoch(c.other_warp, now)) return;                      // two warps: one of them is not the next writer's
        if (difference >> 25 & 31) {
            c.other_warp = c.read;
            c.same_warp = 0;
        } else {
            c.same_warp = c.read;
        }
    }
    c.read = now;
}

// Not yet a finding: if another thread writes it in this same interval, the mistake is a race.
static void note_unwritten(Races& r, const Cell& c, Touch now, const LogEntry& e) {
    unsigned i = 0;
    while (i < r.unwritten_places && r.unwritten[i].place != e.place) i++;
    if (i == sizeof r.unwritten / sizeof *r.unwritten) return;
    Unwritten& u = r.unwritten[i];
    if (i == r.unwritten_places) {
        r.unwritten_places++;
        u.place = e.place, u.by_atomics = e.access == Access::atomic, u.kept = 0, u.count = 0;
    }
    u.count++;
    if (u.kept == sizeof u.cell / sizeof *u.cell) return;
    u.cell[u.kept] = &c;
    u.read[u.kept++] = now;
}

// What a thread has stored is looked up a little later. Of an element that other blocks write, too, that would be chance: so
// this is a finding in the end only, if they do not.
static void note_clash(Races& r, const Fiber* f, const LogEntry& e, Touch other) {
    const emu_dim3 grid = r.block->launch->grid;
    if ((uint64_t)grid.x * grid.y * grid.z == 1) return find_race(r, EMU_WRITE_AFTER_WRITE, f, e, other);
    const Array& array = r.tracer->arrays[e.space - 1];
    Element& x = r.elements[e.space - 1][(e.address - array.low) / array.element_bytes];
    if (x.clash[0]) return;
    x.clash[0] = mark(r.block_number, number_of(r, e.place), f->linear_id);
    x.clash[1] = mark(r.block_number, place_id_of(other), thread_of(other));
}

static __attribute__((noinline)) void check_closely(Races& r, Cell& c, uint8_t& value, const Fiber* f, const LogEntry& e, Touch now) {
    if (e.access == Access::copy_arrived) {
        if (c.write & in_flight && thread_of(c.write) == f->linear_id) c.write = now;
        return;
    }
    if (is_read(e.access) || e.access == Access::atomic) {
        if (!e.space && epoch_of(c.write) < r.first_epoch) note_unwritten(r, c, now, e);
        else if (c.write & in_flight) find_race(r, EMU_COPY_IN_FLIGHT, f, e, c.write);
        else if (!(c.write & now & atomic_mark) && unordered(c.write, now)) find_race(r, EMU_READ_AFTER_WRITE, f, e, c.write);
        if (is_read(e.access)) return remember_read(c, now);
    } else if (c.write & in_flight && epoch_of(c.write) >= r.first_epoch) {
        find_race(r, EMU_COPY_IN_FLIGHT, f, e, c.write);
    } else if (unordered(c.write, now) && !(c.write & now & atomic_mark) && !(value && value == e.value)) {
        // the same value by any of them will do
        if (e.space && !((c.write | now) & atomic_mark)) note_clash(r, f, e, c.write);
        else find_race(r, EMU_WRITE_AFTER_WRITE, f, e, c.write);
    }
    const Touch reader = unordered(c.read, now) ? c.read : unordered(c.same_warp, now) ? c.same_warp : c.other_warp;
    if (unordered(reader, now) && !(reader & now & atomic_mark)) find_race(r, EMU_WRITE_AFTER_READ, f, e, reader);
    const bool keeps_plain = now & atomic_mark && !(c.write & atomic_mark) && same_epoch(c.write, now);
    if (keeps_plain) return;                               // a plain write races with more than an atomic does
    c.write = now;
    value = e.value;
}

// True for nearly all accesses: reads of what was written before the last barrier.
static inline bool check(Races& r, Cell& c, uint8_t& value, const Fiber* f, const LogEntry& e, Touch now) {
    const bool long_written = (e.space || epoch_of(c.write) >= r.first_epoch) && !same_epoch(c.write, now) && !(c.write & in_flight);
    if (e.access != Access::read || !long_written) {
        check_closely(r, c, value, f, e, now);
        return false;
    }
    remember_read(c, now);
    return true;
}

static __attribute__((noinline)) void split(const Races& r, Region& region, uintptr_t word, unsigned log_before,
                                            unsigned log_piece) {
    if (!region.split) region.split = zeros<uint32_t>(r, region.word_count);
    if (!region.cells[log_piece]) make_cells(r, region, log_piece);
    for (uintptr_t byte = 4 * word; byte < 4 * word + 4; byte += 1u << log_piece) {
        region.cells[log_piece][byte >> log_piece] = region.cells[log_before][byte >> log_before];
        region.values[log_piece][byte >> log_piece] = 0;
    }
    region.split[word] = r.block_number << 2 | log_piece;
}

static inline bool check_in_block(Races& r, Region& region, const Fiber* f, Touch who, const LogEntry& e) {
    Touch now = (Touch)r.epoch << 42 | (Touch)number_of(r, e.place) << 30 | who;
    if (is_atomic(e.access) || e.access == Access::volatile_read || is_look(e)) now |= atomic_mark;   // may meet an atomic
    if (e.access == Access::copy_issued) now |= in_flight;
    const uintptr_t offset = e.address - region.low, end = offset + (1u << e.log_bytes);
    const unsigned log_access = e.log_bytes < 2 ? e.log_bytes : 2;
    bool safe = true;
    for (uintptr_t word = offset / 4; word * 4 < end; word++) {
        unsigned log_piece = region.split && region.split[word] >> 2 == r.block_number ? region.split[word] & 3 : 2;
        if (log_access < log_piece) {
            split(r, region, word, log_piece, log_access);
            log_piece = log_access;
        }
        const uintptr_t low = word * 4 > offset ? word * 4 : offset, high = word * 4 + 4 < end ? word * 4 + 4 : end;
        for (uintptr_t piece = low >> log_piece; piece << log_piece < high; piece++)
            safe &= check(r, region.cells[log_piece][piece], region.values[log_piece][piece], f, e, now);
    }
    return safe;
}

// ---- between blocks

static void keep_lowest(Mark (&pair)[2], Mark m) {
    if (block_of(m) == block_of(pair[0])) return;
    if (!pair[0] || m < pair[0]) {
        pair[1] = pair[0];
        pair[0] = m;
    } else if (block_of(m) != block_of(pair[1]) && (!pair[1] || m < pair[1])) {
        pair[1] = m;
    }
}

static inline void mark_for_others(Races& r, const Fiber* f, const LogEntry& e) {
    const Array& array = r.tracer->arrays[e.space - 1];
    if (1u << e.log_bytes < array.element_bytes) return;   // a part of an element: the next block may own the other
    if (e.access == Access::volatile_read || is_look(e)) return;   // the former, too, comes before an atomic, as a rule
    const uintptr_t offset = e.address - array.low, end = offset + (1u << e.log_bytes);
    const unsigned place_id = number_of(r, e.place);
    const Mark now = mark(r.block_number, place_id, f->linear_id);
    if (e.access == Access::write) r.written[place_id] = !r.written[place_id] || r.written[place_id] == e.address ? e.address : many;
    for (uintptr_t i = offset / array.element_bytes; i * array.element_bytes < end; i++) {
        Element& x = r.elements[e.space - 1][i];
        keep_lowest(is_read(e.access) ? x.reads : is_atomic(e.access) ? x.atomics : x.writes, now);
        if (is_read(e.access) || is_atomic(e.access)) continue;
        x.differs |= !e.value || (x.value && x.value != e.value);
        x.value = e.value;
    }
}

static emu_dim3 index_in(emu_dim3 size, unsigned i) { return {i % size.x, i / size.x % size.y, i / size.x / size.y}; }

// with_atomic: the first of the two reads what the other one updates.
static void find_conflict(const Races& first, emu_kind kind, const Races& of_a, Mark a, const Races& of_b, Mark b,
                          bool with_atomic = false) {
    const emu_launch* launch = first.block->launch;
    emu_finding finding = {};
    finding.tool = EMU_RACECHECK;
    finding.defect.kind = kind;
    finding.count = 1;
    finding.place = of_a.places[marked_place_id(a)];
    finding.block = index_in(launch->grid, block_of(a) - 1);
    finding.thread = index_in(launch->block, marked_thread(a));
    finding.has_other = 1;
    finding.other_place = of_b.places[marked_place_id(b)];
    finding.other_block = index_in(launch->grid, block_of(b) - 1);
    finding.other_thread = index_in(launch->block, marked_thread(b));
    finding.look = with_atomic ? (uint32_t)finding.place : 0;
    finding.same_warp = block_of(a) == block_of(b) && marked_thread(a) / 32 == marked_thread(b) / 32;
    emu_find(first.tracer->results, finding);
}

// Blocks, by their numbers from 1 on, that are of one cluster, in which barrier.cluster may order what they do.
static __attribute__((cold, noinline)) bool together(const emu_launch* launch, uint32_t a, uint32_t b) {
    const emu_dim3 size = launch->cluster;
    if (!a || !b) return false;
    const emu_dim3 i = index_in(launch->grid, a - 1), j = index_in(launch->grid, b - 1);
    return i.x / size.x == j.x / size.x && i.y / size.y == j.y / size.y && i.z / size.z == j.z / size.z;
}

// Who among the OS threads has the lowest mark of another block than `not_this` (0: of any), and not of its cluster.
struct Owned { const Races* races; Mark mark; };
template <bool clusters, class Pick> static Owned lowest(unsigned array, uint64_t i, uint32_t not_this, Pick pick) {
    Owned found = {nullptr, 0};
    for (const Races* r = all; r; r = r->next) {
        const Element& x = r->elements[array][i];
        for (int n = 0; n < 2; n++) {
            const Mark m = pick(x, n);
            if (!m || block_of(m) == not_this || (found.mark && m >= found.mark)) continue;
            if (!clusters || !together(r->block->launch, block_of(m), not_this)) found = {r, m};
        }
    }
    return found;
}

// Whether two writes of an element are of a flag, as `*found = true` is: both places write nothing else, and all writes of the
// element, by all OS threads, have stored one value. Blocks that compute the same array each may have forgotten blockIdx.
static bool is_flag(unsigned array, uint64_t i, const Owned& a, const Owned& b) {
    uint8_t value = 0;
    if (a.races->written[marked_place_id(a.mark)] == many || b.races->written[marked_place_id(b.mark)] == many) return false;
    for (const Races* r = all; r; r = r->next) {
        const Element& x = r->elements[array][i];
        if (x.differs || (value && x.value && value != x.value)) return false;
        value |= x.value;
    }
    return true;
}

// Elements that two blocks use, one of them to write.
template <bool clusters> static void find_conflicts() {
    const auto write = [](const Element& x, int n) { return x.writes[n]; };
    const auto read = [](const Element& x, int n) { return x.reads[n]; };
    const auto atomic = [](const Element& x, int n) { return x.atomics[n]; };
    for (unsigned array = 0; all && array < most_arrays + most_variables; array++) {
        const Array& a = all->tracer->arrays[array];
        if (!all->elements[array]) continue;
        for (uint64_t i = 0; i < (a.high - a.low) / a.element_bytes; i++) {
            const Owned w = lowest<clusters>(array, i, 0, write), updated = lowest<clusters>(array, i, 0, atomic);
            const Races* clashing = nullptr;
            for (const Races* r = all; r; r = r->next)
                if (r->elements[array][i].clash[0]) clashing = r;
            if (w.mark) {
                const uint32_t block = block_of(w.mark);
                const Owned w2 = lowest<clusters>(array, i, block, write), r2 = lowest<clusters>(array, i, block, read);
                const Owned a2 = lowest<clusters>(array, i, block, atomic);
                if (w2.mark && !is_flag(array, i, w, w2)) find_conflict(*all, EMU_WRITE_AFTER_WRITE, *w2.races, w2.mark, *w.races, w.mark);
                if (a2.mark) find_conflict(*all, EMU_WRITE_AFTER_WRITE, *a2.races, a2.mark, *w.races, w.mark);
                if (r2.mark) find_conflict(*all, EMU_READ_AFTER_WRITE, *r2.races, r2.mark, *w.races, w.mark);
                if (w2.mark || a2.mark) clashing = nullptr;
            }
            if (clashing) {
                const Mark(&pair)[2] = clashing->elements[array][i].clash;
                find_conflict(*all, EMU_WRITE_AFTER_WRITE, *clashing, pair[0], *clashing, pair[1]);
            }
            if (updated.mark) {
                Owned by = updated, r2 = lowest<clusters>(array, i, block_of(by.mark), read);
                if (!r2.mark) {                             // the lowest block alone reads: what another one updates?
                    by = lowest<clusters>(array, i, block_of(updated.mark), atomic);
                    if (by.mark) r2 = lowest<clusters>(array, i, block_of(by.mark), read);
                }
                if (r2.mark) find_conflict(*all, EMU_READ_AFTER_WRITE, *r2.races, r2.mark, *by.races, by.mark, true);
            }
        }
    }
}

void emu_find_conflicts() {
    const emu_dim3 size = all ? all->block->launch->cluster : emu_dim3{1, 1, 1};
    if (size.x * size.y * size.z > 1) find_conflicts<true>();
    else find_conflicts<false>();
    if (all) emu_drop_looks(all->tracer->results);
}

// ---- a block's logs

// Lanes of a warp that read the same, one after the other. Two of them stand for all: one of the two is not the next writer.
struct Broadcast {
    const LogEntry* last = nullptr;
    Touch who = 0;
    unsigned before = 0;
    bool safe = false;

    bool goes_on(const LogEntry& e, Touch reader) {
        const Touch warp = (Touch)31 << 25 | (Touch)0x3ffff << 2;   // and its warp epoch
        const bool same = last && e.address == last->address && e.log_bytes == last->log_bytes &&
                          e.access == Access::read && last->access == Access::read && !((who ^ reader) & warp);
        before = same ? before + 1 : 0;
        last = &e;
        who = reader;
        return before >= 2 && safe;
    }
};

// Once all of its lanes have come to a __syncwarp(), they go on: true.
static bool pass_warp_sync(Block& b, Reader* readers, const Fiber* f, const LogEntry& sync) {
    const unsigned first = 32 * f->warp;
    for (uint32_t m = sync.place; m; m &= m - 1) {
        const Reader& lane = readers[first + (unsigned)__builtin_ctz(m)];
        if (lane.next == lane.end || lane.next->access != Access::warp_sync || lane.next->address != sync.address) return false;
    }
    const uint32_t number = (uint32_t)sync.address;
    for (uint32_t m = sync.place; m; m &= m - 1) {
        const unsigned n = first + (unsigned)__builtin_ctz(m);
        b.fibers[n].warp_epoch = number;
        readers[n].who = who_is(b.fibers[n]);
        readers[n].next++;
    }
    return true;
}

void emu_check_races(Tracer& t) {
    Races& r = *t.races;
    Block& b = *t.block;
    Reader* readers = r.readers;
    for (unsigned n = 0; n < b.size; n++) readers[n] = {b.fibers[n].log, b.fibers[n].log + b.fibers[n].logged, who_is(b.fibers[n])};
    for (bool more = true; more;) {              // one access of each thread after the other, as if they ran in step
        more = false;
        Broadcast broadcast;
        for (unsigned n = 0; n < b.size; n++) {
            if (readers[n].next == readers[n].end) continue;
            Fiber* f = &b.fibers[n];
            const LogEntry& e = *readers[n].next;
            if (e.access == Access::warp_sync) {
                more |= pass_warp_sync(b, readers, f, e);
                continue;
            }
            more = true;
            readers[n].next++;
            Region& region = r.regions[e.space];
            if (region.word_count && !broadcast.goes_on(e, readers[n].who))
                broadcast.safe = check_in_block(r, region, f, readers[n].who, e);
            if (e.space && r.elements[e.space - 1]) mark_for_others(r, f, e);
        }
    }
}

void emu_end_race_interval(Tracer& t) {
    Races& r = *t.races;
    for (unsigned i = 0; i < r.unwritten_places; i++) {
        const Unwritten& u = r.unwritten[i];
        for (unsigned n = 0; n < u.kept; n++) {
            const Touch write = u.cell[n]->write;
            if (unordered(write, u.read[n]) && !(write & u.read[n] & atomic_mark)) continue;   // a race, and found
            emu_finding finding = emu_finding_at(&r.block->fibers[thread_of(u.read[n])], EMU_INITCHECK, EMU_UNINITIALISED, u.place);
            finding.is_shared = 1;
            finding.is_write = u.by_atomics;
            finding.count = u.count;
            emu_find(t.results, finding);
            break;
        }
    }
    r.unwritten_places = 0;
    if (r.epoch < last_epoch) r.epoch++;
    else emu_watch(t, false);                    // two million barriers: the rest of this block is not watched
}
