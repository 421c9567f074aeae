// Racecheck and initcheck. Each word of shared memory remembers who wrote it last and who has read it since the last barrier;
// each word of global memory, which block and thread did.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "trace.h"

// One access to a word of shared memory. Those of one epoch have no barrier between them.
struct Touch {
    uint32_t epoch, place;
    uint32_t thread : 10, warp_epoch : 22;
};

struct Cell {
    Touch write;
    Touch read, same_warp, other_warp;   // the last; the last by another lane of its warp; the last by another warp
    uint32_t split;                      // in this block (its number) threads access single bytes: see `bytes`
    bool atomic, in_flight;              // of `write`: an atomic; a cp.async that has not arrived
};

// One access to a word of global memory, in which a mask names the bytes.
struct GlobalTouch { uint32_t block, epoch, place; uint16_t thread; uint8_t bytes, atomic; };
struct GlobalCell { GlobalTouch write, read, other_read; };   // other_read: the last by another block than `read`

struct Unwritten { Cell* cell; uint32_t place; uint16_t thread; uintptr_t address; };

struct Races {
    Block* block;
    Tracer* tracer;
    uint32_t epoch, first_epoch;         // they count on from block to block, so that no cell needs to be cleared
    uint32_t block_number;               // linear index in the grid, plus 1
    Cell *words, *bytes;
    GlobalCell* global[64];
    Unwritten unwritten[1024];           // reads in this interval of what nobody has written
    unsigned unwritten_count;
};

static __thread bool fenced __attribute__((tls_model("initial-exec")));   // the block has called __threadfence()
extern "C" void emu_fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    fenced = true;
}

static void* zeros(size_t bytes) {       // taken from the system page by page, as they are touched
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

Races* emu_new_races(Tracer& t) {
    Races* r = (Races*)calloc(1, sizeof(Races));
    r->block = t.block;
    r->tracer = &t;
    const size_t window = (size_t)(t.block->shared_high - t.block->shared_low);
    r->words = (Cell*)zeros((window / 4 + 2) * sizeof(Cell));
    r->bytes = (Cell*)zeros((window + 8) * sizeof(Cell));
    bool failed = !r->words || !r->bytes;
    for (unsigned i = 0; i < t.array_count; i++) {
        r->global[i] = (GlobalCell*)zeros(((t.arrays[i].high - t.arrays[i].low) / 4 + 2) * sizeof(GlobalCell));
        failed |= !r->global[i];
    }
    if (failed) emu_fail_to_start(t.block->launch, "memory for the sanitizer");
    return r;
}

void emu_start_races(Races& r) {
    const emu_dim3 grid = r.block->launch->grid, at = r.block->index;
    r.first_epoch = ++r.epoch;
    r.block_number = (uint32_t)(at.x + (uint64_t)grid.x * (at.y + (uint64_t)grid.y * at.z)) + 1;
    fenced = false;
}

// ---- shared memory

static void find_race(Races& r, emu_finding_kind kind, const Fiber* f, const LogEntry& e, const Touch& other) {
    emu_finding finding = emu_finding_at(f, kind, e.place);
    finding.is_shared = 1;
    finding.bytes = 1u << e.log_bytes;
    finding.has_other = 1;
    finding.other_place = other.place;
    finding.other_block = f->block_idx;
    finding.other_thread = r.block->fibers[other.thread].thread_idx;
    finding.same_warp = r.block->fibers[other.thread].warp == f->warp;
    emu_find(*r.tracer, finding);
}

// May `other`, of this interval, and an access by `f` now happen in either order?
static inline bool unordered(const Races& r, const Touch& other, const Fiber* f) {
    if (other.epoch != r.epoch || other.thread == f->linear_id) return false;
    return other.thread / 32 != f->warp || other.warp_epoch == (f->warp_epoch & 0x3fffff);
}

static inline void remember_read(Cell& c, const Touch& now) {
    if (c.read.epoch == now.epoch && c.read.thread != now.thread) {
        if (c.read.thread / 32 == now.thread / 32) {
            c.same_warp = c.read;
        } else {
            c.other_warp = c.read;
            c.same_warp.epoch = 0;
        }
    }
    c.read = now;
}

static void find_unwritten(Races& r, const Unwritten& u) {
    emu_finding finding = emu_finding_at(&r.block->fibers[u.thread], EMU_UNINITIALISED, u.place);
    finding.is_shared = 1;
    finding.address = u.address;
    emu_find(*r.tracer, finding);
}

static void check(Races& r, Cell& c, const Fiber* f, const LogEntry& e) {
    const bool reads = e.access == Access::read || e.access == Access::atomic, atomic = e.access == Access::atomic;
    Touch now = {r.epoch, e.place, 0, 0};
    now.thread = f->linear_id;
    now.warp_epoch = f->warp_epoch;
    if (e.access == Access::copy_arrived) {
        if (c.in_flight && c.write.thread == now.thread) c.write = now, c.in_flight = false;
        return;
    }
    if (reads) {
        if (c.write.epoch < r.first_epoch) {
            // Not yet a finding: if another thread writes it in this same interval, the mistake is a race.
            if (r.unwritten_count < sizeof r.unwritten / sizeof *r.unwritten)
                r.unwritten[r.unwritten_count++] = {&c, e.place, (uint16_t)f->linear_id, e.address};
        } else if (c.in_flight) {
            find_race(r, EMU_COPY_IN_FLIGHT, f, e, c.write);
        } else if (!(atomic && c.atomic) && unordered(r, c.write, f)) {
            find_race(r, EMU_READ_AFTER_WRITE, f, e, c.write);
        }
        if (!atomic) return remember_read(c, now);
    } else if (c.write.epoch >= r.first_epoch && unordered(r, c.write, f)) {
        find_race(r, EMU_WRITE_AFTER_WRITE, f, e, c.write);
    }
    const Touch* reader = unordered(r, c.read, f) ? &c.read : unordered(r, c.same_warp, f) ? &c.same_warp : &c.other_warp;
    if (unordered(r, *reader, f)) find_race(r, EMU_WRITE_AFTER_READ, f, e, *reader);
    c.write = now;
    c.atomic = atomic;
    c.in_flight = e.access == Access::copy_issued;
}

static void check_shared(Races& r, const Fiber* f, const LogEntry& e) {
    const uintptr_t offset = e.address - (uintptr_t)r.block->shared_low, end = offset + (1u << e.log_bytes);
    for (uintptr_t word = offset / 4; word * 4 < end; word++) {
        Cell& whole = r.words[word];
        const bool partial = word * 4 < offset || word * 4 + 4 > end;
        if (whole.split != r.block_number && !partial) {
            check(r, whole, f, e);
            continue;
        }
        Cell* bytes = r.bytes + word * 4;
        if (whole.split != r.block_number) {
            for (int i = 0; i < 4; i++) bytes[i] = whole;
            whole.split = r.block_number;
        }
        const uintptr_t low = word * 4 > offset ? word * 4 : offset, high = word * 4 + 4 < end ? word * 4 + 4 : end;
        for (uintptr_t byte = low; byte < high; byte++) check(r, r.bytes[byte], f, e);
    }
}

// ---- global memory

static void find_global_race(Races& r, emu_finding_kind kind, const Fiber* f, const LogEntry& e, const GlobalTouch& other) {
    emu_finding finding = emu_finding_at(f, kind, e.place);
    const emu_dim3 grid = f->grid_dim;
    const uint32_t b = other.block - 1;
    finding.address = e.address;
    finding.bytes = 1u << e.log_bytes;
    finding.has_other = 1;
    finding.other_place = other.place;
    finding.other_block = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    finding.other_thread = r.block->fibers[other.thread].thread_idx;
    emu_find(*r.tracer, finding);
}

static bool conflict(const Races& r, const GlobalTouch& other, const GlobalTouch& now, const Fiber* f) {
    if (!other.block || !(other.bytes & now.bytes) || (other.atomic && now.atomic)) return false;
    if (other.block != now.block) return !fenced;     // blocks that talk to each other need __threadfence(): trust those
    return other.epoch == now.epoch && other.thread / 32 != f->warp;
}

static void check_global(Races& r, const Fiber* f, const LogEntry& e) {
    const unsigned array = e.space - 1;
    const uintptr_t offset = e.address - r.tracer->arrays[array].low, end = offset + (1u << e.log_bytes);
    const bool atomic = e.access == Access::atomic, writes = e.access != Access::read;
    for (uintptr_t word = offset / 4; word * 4 < end; word++) {
        GlobalCell& c = r.global[array][word];
        const unsigned first = word * 4 > offset ? 0 : (unsigned)(offset - word * 4);
        const unsigned last = end - word * 4 < 4 ? (unsigned)(end - word * 4) : 4;
        const uint8_t bytes = (uint8_t)((1u << last) - (1u << first));
        const GlobalTouch now = {r.block_number, r.epoch, e.place, (uint16_t)f->linear_id, bytes, atomic};
        if (conflict(r, c.write, now, f)) find_global_race(r, writes ? EMU_WRITE_AFTER_WRITE : EMU_READ_AFTER_WRITE, f, e, c.write);
        if (writes) {
            const GlobalTouch& reader = conflict(r, c.read, now, f) ? c.read : c.other_read;
            if (conflict(r, reader, now, f)) find_global_race(r, EMU_WRITE_AFTER_READ, f, e, reader);
            c.write = now;
        } else {
            if (c.read.block != now.block) c.other_read = c.read;
            c.read = now;
        }
    }
}

// ---- a block's logs

void emu_check_races(Tracer& t) {
    Races& r = *t.races;
    Block& b = *t.block;
    bool more = true;
    for (unsigned i = 0; more; i++) {            // all threads side by side, as if they ran in step
        more = false;
        for (unsigned n = 0; n < b.size; n++) {
            Fiber& f = b.fibers[n];
            if (i >= f.logged) continue;
            more = true;
            const LogEntry& e = f.log[i];
            if (e.access == Access::warp_sync) f.warp_epoch = (uint32_t)e.address;
            else if (e.space) check_global(r, &f, e);
            else check_shared(r, &f, e);
        }
    }
}

void emu_end_race_interval(Tracer& t) {
    Races& r = *t.races;
    for (unsigned i = 0; i < r.unwritten_count; i++) {
        const Unwritten& u = r.unwritten[i];
        const bool race = u.cell->write.epoch >= r.first_epoch && u.cell->write.thread != u.thread;
        if (!race) find_unwritten(r, u);
    }
    r.unwritten_count = 0;
    r.epoch++;
}
