// Where accesses come in: the calls that the compiler puts into an instrumented kernel (the interface of ThreadSanitizer),
// and those of our own headers. Memcheck happens here, at once; the rest when the logs are read.
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "async_counters.h"
#include "async_rules.h"
#include "counters.h"
#include "fences.h"
#include "findings.h"
#include "heap.h"
#include "races.h"
#include "recorder.h"
#include "trace_hooks.h"

static const unsigned log_capacity = 32, log_stride = log_capacity + 8;   // no power of two: cache sets; room for a sync

// Of the thread that runs; null where nobody sanitizes it.
static Tracer* sanitizer() {
    Tracer* t = emu_current ? emu_block->tracer : nullptr;
    return t && t->watching && t->races ? t : nullptr;
}

// ---- memcheck

static const unsigned nowhere = ~0u;

enum : uint8_t { nothing, array, guard };     // what a word of static shared memory is; guard: the compiler's own

static void map_statics(Tracer& t) {
    const emu_tracing& tracing = *t.tracing;
    t.statics = (uint8_t*)calloc((size_t)(t.block->shared_high - t.block->shared_low) / 4 + 2, 1);
    for (uint64_t i = 0; i < tracing.static_count; i++) {
        const emu_static& s = tracing.statics[i];
        for (uint32_t word = s.offset / 4; word * 4 < s.offset + s.bytes; word++) t.statics[word] = s.is_guard ? guard : array;
    }
}

// Whose shared memory of the cluster an address is in; null: nobody's.
static const Block* owner_of(const Block& b, uintptr_t address) {
    const Cluster& c = *b.cluster;
    for (unsigned rank = 0; rank < c.size; rank++)
        if (address - (uintptr_t)c.blocks[rank]->shared_low < (uintptr_t)(b.shared_high - b.shared_low)) return c.blocks[rank];
    return nullptr;
}

static inline unsigned find_among(const Tracer& t, unsigned first, unsigned count, uintptr_t address, unsigned bytes) {
    for (unsigned i = first; i < first + count; i++)
        if (address >= t.arrays[i].low && address + bytes <= t.arrays[i].high) return i;
    return nowhere;
}
static unsigned find_array(const Tracer& t, uintptr_t address, unsigned bytes) {
    return find_among(t, 0, t.array_count, address, bytes);
}
static unsigned find_variable(const Tracer& t, uintptr_t address, unsigned bytes) {   // of those that racecheck watches
    return find_among(t, most_arrays, t.variable_count, address, bytes);
}

// Whether bytes that are in no shared memory belong to nothing: no array of the launch, no variable, nothing from malloc().
static bool outside_of_global(const Tracer& t, uintptr_t address, unsigned bytes) {
    return find_array(t, address, bytes) == nowhere && address - emu_load_base >= emu_load_end - emu_load_base &&
           !emu_in_heap(address, bytes);
}

// Whether an access is in no array and no variable, as memcheck has it: for the recorder, before it happens.
static bool is_outside(const Block& b, uintptr_t address, unsigned bytes) {
    const Block* of = owner_of(b, address);
    if (!of) return outside_of_global(*b.tracer, address, bytes);
    const uintptr_t in_dynamic = address - (uintptr_t)of->dynamic_shared;
    if (in_dynamic < EMU_SHARED_LIMIT) return in_dynamic + bytes > of->launch->dynamic_shared;
    return b.tracer->statics[(address - (uintptr_t)of->shared_low) / 4] == nothing;
}

static void find_access(Tracer& t, Fiber* f, emu_kind kind, uintptr_t address, unsigned bytes, bool is_write, uint32_t place,
                        emu_by by = EMU_BY_THREAD) {
    if (!t.races) return;                                           // only the sanitizer wants to know
    const emu_span reserved = t.tracing->reserved;
    if (kind == EMU_OUT_OF_BOUNDS && f->index_found && address - (uintptr_t)reserved.address >= reserved.bytes) {
        f->index_found = false;                                     // that is what the bad index led to
        return;
    }
    emu_finding finding = emu_finding_at(f, EMU_MEMCHECK, kind, place);
    finding.by = by;
    finding.address = address;
    finding.bytes = bytes;
    finding.is_write = is_write;
    finding.is_shared = owner_of(*t.block, address) != nullptr;
    emu_find(t.results, finding);
}

bool emu_check_bounds(uintptr_t address, size_t bytes, bool is_write, emu_by by, uint32_t place) {
    Tracer* t = sanitizer();
    if (!t || !outside_of_global(*t, address, (unsigned)bytes) || owner_of(*t->block, address)) return true;
    if (address - (uintptr_t)t->block->own < t->block->own_bytes) return true;   // who prefetches may mean the thread's own memory
    find_access(*t, emu_current, EMU_OUT_OF_BOUNDS, address, (unsigned)bytes, is_write, place, by);
    return false;
}

// ---- the log

// The compiler reports a write before it happens. When the same thread comes here again it has, and nobody ran in between.
void emu_trace_settle(Fiber* f) {
    if (Recorder* r = emu_recorder()) return emu_record_settled(*r, f);
    uint64_t words[2] = {};
    memcpy(words, (const void*)f->unsettled->address, 1u << f->unsettled->log_bytes);
    uint64_t digest = (words[0] ^ words[1] * 0xD6E8FEB86659FD93ull) * 0x9E3779B97F4A7C15ull;
    digest = (digest ^ digest >> 32) * 0xD6E8FEB86659FD93ull;
    f->unsettled->value = (uint8_t)(digest >> 56 ? digest >> 56 : 1);
    f->unsettled = nullptr;
}

static inline Access in_log(Access a) { return a == Access::volatile_write ? Access::write : a; }

static inline void append(Tracer& t, Fiber* f, uintptr_t address, unsigned log_bytes, Access access, unsigned space, uint32_t place) {
    if (f->unsettled) emu_trace_settle(f);
    if (f->logged >= log_capacity) emu_wait_for_room();
    LogEntry* entry = &f->log[f->logged++];
    *entry = {address, place, (uint8_t)log_bytes, access, (uint8_t)space, 0};
    if (t.races && access == Access::write) f->unsettled = entry;
}

// Of shared memory of a block of the cluster: whether there is an array, so that the access counts.
static inline __attribute__((always_inline)) bool in_shared_array(Tracer& t, const Block& of, Fiber* f, uintptr_t address, unsigned bytes,
                                                                  Access access, uint32_t place) {
    const uintptr_t offset = address - (uintptr_t)of.dynamic_shared;
    if (offset >= EMU_SHARED_LIMIT) {
        const uint8_t what = t.statics[(address - (uintptr_t)of.shared_low) / 4];
        if (what == array) return true;
        if (what == nothing) find_access(t, f, EMU_OUT_OF_BOUNDS, address, bytes, !is_read(access), place);
        return false;
    }
    if (offset + bytes <= of.launch->dynamic_shared) return true;
    find_access(t, f, EMU_PAST_DYNAMIC_SHARED, offset, bytes, !is_read(access), place);
    return false;
}

// One to memory that threads share. for_rules: shared memory is asynccheck's.
template <bool for_rules>
static inline __attribute__((always_inline)) void record_shared_or_global(Block& b, Tracer& t, Fiber* f, uintptr_t address,
                                                                          unsigned log_bytes, Access access, uint32_t place) {
    const unsigned bytes = 1u << log_bytes;
    const Block* of = address - (uintptr_t)b.shared_low < (uintptr_t)(b.shared_high - b.shared_low) ? &b : nullptr;
    unsigned space = 0;
    if (!of) {
        unsigned i = f->last_array;
        if (address < t.arrays[i].low || address + bytes > t.arrays[i].high) {
            i = find_array(t, address, bytes);
            if (i == nowhere) of = owner_of(b, address);
            if (i == nowhere && !of) {
                if (outside_of_global(t, address, bytes))
                    return find_access(t, f, EMU_OUT_OF_BOUNDS, address, bytes, !is_read(access), place);
                i = find_variable(t, address, bytes);
                if (i == nowhere) return;
            }
            if (!of) f->last_array = i;
        }
        if (!of) {
            if (!t.counters && !t.arrays[i].element_bytes) return;   // in bounds, and nobody may write there: no race
            space = i + 1;
        }
    }
    if (of) {
        if (!in_shared_array(t, *of, f, address, bytes, access, place)) return;
        if (for_rules) return emu_rule_access(*t.rules, *of, address - (uintptr_t)of->shared_low, log_bytes, in_log(access), place);
    }
    if (t.tracing->in_step) {
        if (space == 0 && is_read(access) != t.reading) emu_wait_for_room();
        return;
    }
    if (access == Access::read && t.races) f->looks[f->looked++ % most_looks] = {address, place};
    if (!t.fences || space == 0 || t.counters) append(t, f, address, log_bytes, in_log(access), space, place);
    if (t.fences && space && t.arrays[space - 1].element_bytes) emu_fences_access(*t.fences, address, log_bytes, access, space, place);
}

static __attribute__((noinline)) void record_for_rules(Block& b, Tracer& t, Fiber* f, uintptr_t address, unsigned log_bytes, Access access,
                                                       uint32_t place) {
    if (address - (uintptr_t)b.own < b.own_bytes) emu_rule_register(*t.rules, address, 1u << log_bytes, !is_read(access), place);
    else record_shared_or_global<true>(b, t, f, address, log_bytes, access, place);
}

static __attribute__((noinline)) void record_step(Recorder& r, uintptr_t address, unsigned bytes, Access access, uint32_t place,
                                                  bool shows_late, bool goes_on) {
    const emu_op op = is_atomic(access) ? EMU_OP_ATOMIC : is_read(access) ? EMU_OP_READ : EMU_OP_WRITE;
    if (emu_can_record(r, address, bytes)) emu_announce(r, {op, place, address, bytes, 0, shows_late, goes_on});
    else if (is_outside(*emu_block, address, bytes)) emu_announce(r, {op, place, 0, 0, (int32_t)bytes, false, false});
}

// An access of 2^log_bytes bytes. Returns at once on the host stack, in a block that is not traced, and for what belongs to
// the thread alone: its stack, and what it knows about itself. Most of the time of a traced launch is spent here: what only
// some launches need has no test of its own on the way of the others. goes_on: a further piece of an access.
static inline __attribute__((always_inline)) void record(uintptr_t address, unsigned log_bytes, Access access, uintptr_t counter,
                                                         bool goes_on = false) {
    Fiber* f = emu_current;
    if (!f) return;
    Block& b = *emu_block;
    if (address - (uintptr_t)b.own < b.quiet_bytes) return;
    Tracer* t = b.tracer;
    if (!t) return;
    const uint32_t place = (uint32_t)(counter - 1 - emu_load_base);   // inside the call, not behind it
    if (t->logging) record_shared_or_global<false>(b, *t, f, address, log_bytes, access, place);
    else if (t->watching && t->rules) record_for_rules(b, *t, f, address, log_bytes, access, place);
    else if (t->watching && t->recorder) record_step(*t->recorder, address, 1u << log_bytes, access, place, false, goes_on);
}

// The widest access there may be at an address, as the binary logarithm of its bytes.
static unsigned log_of_piece(uintptr_t address, size_t bytes) {
    unsigned log_bytes = 0;
    while (log_bytes < 4 && (2u << log_bytes) <= bytes && !(address & ((2u << log_bytes) - 1))) log_bytes++;
    return log_bytes;
}

// In pieces of at most `widest` bytes.
static void record_pieces(uintptr_t address, size_t bytes, size_t widest, Access access, uintptr_t counter) {
    const Recorder* r = access == Access::read && emu_current ? emu_recorder() : nullptr;
    for (unsigned piece = 0; bytes; piece++) {
        const unsigned copied = r ? emu_bytes_to_copy(*r, emu_place_of(counter), piece) : 0;
        const unsigned log_bytes = copied && copied <= bytes ? (unsigned)__builtin_ctz(copied)
                                                             : log_of_piece(address, bytes < widest ? bytes : widest);
        record(address, log_bytes, access, counter, piece != 0);
        address += 1u << log_bytes;
        bytes -= 1u << log_bytes;
    }
}

void emu_record_access(uintptr_t address, size_t bytes, Access access, uintptr_t counter) {
    record_pieces(address, bytes, bytes, access, counter);
}

// A struct's size is a multiple of its alignment, and a GPU takes no piece that is wider than that.
static size_t width_in_struct(size_t bytes) { return bytes & -bytes; }

void emu_record_target(Fiber* f, uintptr_t to) {
    if (!emu_block->tracer || !emu_block->tracer->watching || !f->logged) return;
    LogEntry& last = f->log[f->logged - 1];
    if (last.access == Access::copy_read) last.value = (uint8_t)(to / 32);
}

// A __syncwarp() makes an entry in the thread's log.
void emu_trace_collective(Fiber* f, const emu_collective* mine) {
    if (Recorder* r = emu_recorder()) return emu_record_collective(*r, mine);
    while (mine->noticed & EMU_ORDERS_MEMORY && emu_block->tracer->logging && f->logged >= log_capacity) emu_wait_for_room();
}

bool emu_trace_turn(Block& b) { return emu_record_turn(*b.recorder); }
void emu_trace_barrier(emu_site site) { emu_record_barrier(*emu_recorder(), 0, emu_site_counter(*emu_recorder(), site)); }

void emu_trace_cluster_barrier(Block& b) {
    for (unsigned rank = 0; rank < b.cluster->size; rank++) {
        Recorder* r = b.cluster->blocks[rank]->recorder;
        if (r) emu_record_open(*r, EMU_CLUSTER);
    }
    if (Rules* rules = emu_rules()) emu_rule_named_open(*rules, emu_cluster_barrier);
}

// __syncwarp() has completed.
void emu_trace_warp_sync(Warp& w, uint32_t participants) {
    if (!emu_block->tracer->watching || emu_block->tracer->recorder) return;
    if (Fences* fences = emu_block->tracer->fences) emu_fences_warp_sync(*fences, participants, w.fiber[__builtin_ctz(participants)]->warp);
    if (Rules* rules = emu_rules()) return emu_rule_warp_barrier(*rules, participants, w.fiber[__builtin_ctz(participants)]->warp);
    w.syncs++;
    for (uint32_t m = participants; m; m &= m - 1) {
        Fiber* f = w.fiber[__builtin_ctz(m)];
        f->log[f->logged++] = {w.syncs, participants, 0, Access::warp_sync, 0, 0};
    }
}

// ---- the life of a tracer

static bool chosen(const Tracer& t, uint64_t block) {
    const emu_tracing& tracing = *t.tracing;
    if (!tracing.block_count) return true;
    uint64_t low = 0, high = tracing.block_count;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (tracing.blocks[middle] < block) low = middle + 1;
        else high = middle;
    }
    return low < tracing.block_count && tracing.blocks[low] == block;
}

void emu_prepare_tracer(Block& b) {
    Tracer* t = b.tracer = (Tracer*)calloc(1, sizeof(Tracer));
    t->block = &b;
    t->tracing = b.launch->tracing;
    t->results = t->tracing->results;
    for (uint64_t i = 0; i < t->tracing->array_count; i++) {
        const uintptr_t low = (uintptr_t)t->tracing->arrays[i].address;
        const unsigned element_bytes = (unsigned)t->tracing->arrays[i].element_bytes;
        t->arrays[t->array_count++] = {low, low + t->tracing->arrays[i].bytes, element_bytes};
    }
    for (uint64_t i = 0; t->tracing->sanitize && i < b.launch->global_count && i < most_variables; i++) {
        const emu_span& variable = b.launch->globals[i];
        const uintptr_t low = (uintptr_t)variable.address;
        const unsigned element_bytes = variable.bytes % 4 == 0 ? 4 : variable.bytes % 2 == 0 ? 2 : 1;   // nobody says what they are
        t->arrays[most_arrays + t->variable_count++] = {low, low + variable.bytes, element_bytes};
    }
    map_statics(*t);
    t->logs = (LogEntry*)malloc(b.size * log_stride * sizeof(LogEntry));
    if (t->tracing->recording) t->recorder = emu_new_recorder(*t);
    if (t->tracing->sanitize && t->tracing->fences) t->fences = emu_new_fences(*t);
    if (t->tracing->sanitize) t->races = emu_new_races(*t);
    if (t->tracing->sanitize && t->tracing->hopper) {
        t->rules = emu_share_rules(*t);
        b.quiet_bytes = 0;
    }
    if (t->tracing->profile) t->counters = emu_new_counters();
    if (t->tracing->profile && t->tracing->hopper) t->async_counters = emu_new_async_counters();
}

void emu_release_tracer(Block& b) {
    if (b.tracer->counters) emu_merge_counters(*b.tracer);
    if (b.tracer->async_counters) emu_merge_async_counters(*b.tracer);
    b.tracer = nullptr;
}

void emu_trace_start(Block& b) {
    Tracer& t = *b.tracer;
    const emu_dim3 grid = b.launch->grid;
    emu_watch(t, chosen(t, b.index.x + (uint64_t)grid.x * (b.index.y + (uint64_t)grid.y * b.index.z)));
    t.reading = false;
    if (t.tracing->recording) __atomic_fetch_add(&t.tracing->recording->block_count, 1, __ATOMIC_RELAXED);
    b.recorder = t.watching ? t.recorder : nullptr;
    if (!t.watching) return;
    __atomic_fetch_add(&t.results->blocks_traced, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < b.size; i++) {
        Fiber& f = b.fibers[i];
        f.log = t.logs + i * log_stride;
        f.logged = f.last_array = f.warp_epoch = f.looked = 0;
        f.index_found = false;
    }
    if (t.recorder) emu_start_recording(*t.recorder);
    if (t.races) emu_start_races(*t.races);
    if (t.fences) emu_start_fences(*t.fences);
    if (t.rules && b.rank == 0) emu_start_rules(*t.rules);   // the others of the cluster wait for this one
}

void emu_trace_logs(Block& b) {
    Tracer& t = *b.tracer;
    if (!t.watching) return;
    if (t.recorder) return emu_record_stopped(*t.recorder);
    t.reading = !t.reading;                  // in step: all who may not go on now wait for that
    emu_watch(t, false);                     // a signal that comes now finds nothing to do
    if (t.counters) emu_count(t);
    if (t.races) emu_check_races(t);
    for (unsigned i = 0; i < b.size; i++) b.fibers[i].logged = 0;
    emu_watch(t, true);
}

void emu_trace_interval(Block& b) {
    Tracer& t = *b.tracer;
    if (!t.watching) return;
    emu_trace_logs(b);
    t.reading = false;
    if (t.recorder && b.live) emu_record_open(*t.recorder, 0);
    if (t.recorder && !b.live) emu_record_last(*t.recorder);
    if (t.rules && b.live) emu_rule_block_barrier(*t.rules);
    if (t.rules && !b.live) emu_end_rules(*t.rules);
    if (t.counters) emu_close_requests(t);
    for (unsigned i = 0; i < b.size; i++) b.fibers[i].looked = 0;
    if (t.races) emu_end_race_interval(t);
    if (t.fences) emu_fences_barrier(*t.fences);
}

// ---- our own headers: atomics, ldmatrix and stmatrix

static void find_misaligned(uintptr_t address, unsigned bytes, emu_touch_kind kind, uintptr_t counter) {
    Tracer* t = sanitizer();
    if (!t) return;
    emu_finding finding = emu_finding_at(emu_current, EMU_MEMCHECK, EMU_MISALIGNED, counter - 1 - emu_load_base);
    finding.by = kind == EMU_TOUCH_READ ? EMU_BY_LDMATRIX : kind == EMU_TOUCH_WRITE ? EMU_BY_STMATRIX : EMU_BY_ATOMIC;
    finding.defect.figures = {(long long)(address % bytes), bytes};
    emu_find(t->results, finding);
}

// A plain read of what this atomic changes is a look: `old = *p` before a loop of atomicCAS(p, old, ...). It may be old.
static void guard_looks(const Fiber* f, uintptr_t address) {
    for (unsigned n = 0; n < f->looked && n < most_looks; n++)
        if (f->looks[n].address == address) emu_add_look(f->looks[n].place);
}

#define COUNTER ((uintptr_t)__builtin_return_address(0))

static const Access access_of[] = {Access::read, Access::write, Access::atomic, Access::atomic, Access::atomic_store};

extern "C" void emu_touch(const void* address, unsigned bytes, emu_touch_kind kind) {
    if (kind == EMU_TOUCH_PREFETCH) {
        emu_check_bounds((uintptr_t)address, bytes, false, EMU_BY_PREFETCH, emu_place_of(COUNTER));
        return;
    }
    if ((uintptr_t)address % bytes) find_misaligned((uintptr_t)address, bytes, kind, COUNTER);
    Recorder* r = kind == EMU_TOUCH_WRITE ? emu_recorder() : nullptr;
    if (r) record_step(*r, (uintptr_t)address, bytes, Access::write, emu_place_of(COUNTER), true, false);   // once the warp has met
    else emu_record_access((uintptr_t)address, bytes, access_of[kind], COUNTER);
    if (kind == EMU_TOUCH_ATOMIC_GUARDED && sanitizer()) guard_looks(emu_current, (uintptr_t)address);
}

// A copy that is recorded is made piece by piece: each write stands behind its read.
static void* record_copy(char* to, const char* from, size_t bytes, uintptr_t counter) {
    for (size_t done = 0, piece; done < bytes; done += piece) {
        const unsigned log_bytes = log_of_piece((uintptr_t)to + done, bytes - done);
        piece = (size_t)1 << log_bytes;
        record((uintptr_t)from + done, log_bytes, Access::read, counter);
        record((uintptr_t)to + done, log_bytes, Access::write, counter);
        memcpy(to + done, from + done, piece);
    }
    return to;
}

// ---- ThreadSanitizer's interface

extern "C" {
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}        // a constructor sets what a virtual function is looked up by, and a call
void __tsan_vptr_read(void**) {}                 // looks: no access of the source's
void __tsan_func_entry(void* return_address) {
    Recorder* r = emu_current ? emu_recorder() : nullptr;
    if (r) emu_record_entry(*r, emu_place_of(COUNTER), emu_place_of((uintptr_t)return_address), *(char**)__builtin_frame_address(0));
}
void __tsan_func_exit() {
    if (Recorder* r = emu_current ? emu_recorder() : nullptr) emu_record_exit(*r);
}
void __cyg_profile_func_enter(void*, void*) {}   // asked for, so that the two above come with each function
void __cyg_profile_func_exit(void*, void*) {}
#define HOOKS(bytes, log_bytes)                                                                                          \
    void __tsan_read##bytes(void* a) { record((uintptr_t)a, log_bytes, Access::read, COUNTER); }                         \
    void __tsan_write##bytes(void* a) { record((uintptr_t)a, log_bytes, Access::write, COUNTER); }                       \
    void __tsan_unaligned_read##bytes(void* a) { emu_record_access((uintptr_t)a, bytes, Access::read, COUNTER); }             \
    void __tsan_unaligned_write##bytes(void* a) { emu_record_access((uintptr_t)a, bytes, Access::write, COUNTER); }           \
    void __tsan_volatile_read##bytes(void* a) { record((uintptr_t)a, log_bytes, Access::volatile_read, COUNTER); }       \
    void __tsan_volatile_write##bytes(void* a) { record((uintptr_t)a, log_bytes, Access::volatile_write, COUNTER); }     \
    void __tsan_read_write##bytes(void* a) {                                                                             \
        record((uintptr_t)a, log_bytes, Access::read, COUNTER);                                                          \
        record((uintptr_t)a, log_bytes, Access::write, COUNTER);                                                         \
    }                                                                                                                    \
    void __tsan_unaligned_read_write##bytes(void* a) {                                                                   \
        emu_record_access((uintptr_t)a, bytes, Access::read, COUNTER);                                                        \
        emu_record_access((uintptr_t)a, bytes, Access::write, COUNTER);                                                       \
    }
HOOKS(1, 0) HOOKS(2, 1) HOOKS(4, 2) HOOKS(8, 3) HOOKS(16, 4)
#undef HOOKS
void __tsan_read_range(void* a, size_t bytes) { record_pieces((uintptr_t)a, bytes, width_in_struct(bytes), Access::read, COUNTER); }
void __tsan_write_range(void* a, size_t bytes) { record_pieces((uintptr_t)a, bytes, width_in_struct(bytes), Access::write, COUNTER); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
    if (emu_current && emu_recorder()) return record_copy((char*)to, (const char*)from, bytes, COUNTER);
    emu_record_access((uintptr_t)from, bytes, Access::read, COUNTER);
    emu_record_access((uintptr_t)to, bytes, Access::write, COUNTER);
    return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
    emu_record_access((uintptr_t)from, bytes, Access::read, COUNTER);
    emu_record_access((uintptr_t)to, bytes, Access::write, COUNTER);
    return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
    emu_record_access((uintptr_t)to, bytes, Access::write, COUNTER);
    return memset(to, value, bytes);
}
}

// ---- UndefinedBehaviorSanitizer's, of which only the bounds of arrays and the alignment of pointers are asked for

struct Type { uint16_t kind, info; char name[1]; };
struct Place { const char* file; uint32_t line, column; };
struct OutOfBounds { Place place; const Type *array, *index; };
struct TypeMismatch { Place place; const Type* type; uint8_t log_alignment, check; };

static void find_at(const char* file, uint32_t line, const emu_defect& defect, emu_by by = EMU_BY_THREAD) {
    Tracer* t = sanitizer();
    if (!t) return;
    emu_finding finding = emu_finding_at(emu_current, EMU_MEMCHECK, EMU_NOTHING, 0);
    finding.line = (int32_t)line;
    snprintf(finding.file, sizeof finding.file, "%s", file);
    finding.by = by;
    finding.defect = defect;
    emu_find(t->results, finding);
}

extern "C" void __ubsan_handle_out_of_bounds(const OutOfBounds* what, uintptr_t index) {
    const unsigned bits = 1u << (what->index->info >> 1);
    const bool is_signed = what->index->info & 1;
    const long long value = is_signed && bits < 64 ? (long long)(index << (64 - bits)) >> (64 - bits) : (long long)index;
    if (emu_current) emu_current->index_found = true;
    find_at(what->place.file, what->place.line, emu_defect_of(EMU_INDEX_OUT_OF_BOUNDS, {value}, what->array->name));
}

void emu_find_misaligned(emu_site site, unsigned bytes) {
    find_at(site.file, (uint32_t)site.line, emu_defect_of(EMU_MISALIGNED, {0, bytes}), EMU_BY_CP_ASYNC);
}

extern "C" void __ubsan_handle_type_mismatch_v1(const TypeMismatch* what, uintptr_t address) {
    const unsigned alignment = 1u << what->log_alignment;
    find_at(what->place.file, what->place.line,
            emu_defect_of(EMU_MISALIGNED, {(long long)(address % alignment), alignment}, what->type->name));
}
