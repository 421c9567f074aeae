// The copy engine: cp.async.bulk and cp.async.bulk.tensor. A load is done as late as may be: when no thread of the block can
// go on without it. A store is done when the thread that started it waits for its group, or its block ends; a wait with .read
// only takes what is to be stored out of shared memory. In other orders some are done before: at once, or when somebody looks
// at an mbarrier.
#include <stdlib.h>
#include <string.h>

#include "async_copy.h"
#include "async_counters.h"
#include "async_rules.h"
#include "counters.h"
#include "findings.h"
#include "mbarrier.h"
#include "recorder.h"
#include "trace.h"

// What the 128 bytes of a tensor map say, as the driver writes them (toolchain/tensor_map.py). Sizes and boxes from the innermost
// dimension on.
struct TensorMap {
    char* address;
    unsigned rank;                     // 0: no map
    unsigned element_bytes, row_bytes, type;
    uint64_t size[5], stride[4];       // stride: bytes, of all dimensions but the innermost
    unsigned box[5];
};

// NVIDIA does not say how it encodes a map: found from what its driver makes of one argument after the other. Rank 0 if these
// bytes are no map that the emulator knows.
static TensorMap decode(const void* map) {
    static const uint8_t element_bytes[16] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2};
    static const unsigned alignments[] = {16, 256, 512, 1024};
    uint32_t words[32];
    memcpy(words, map, sizeof words);
    TensorMap m = {};
    memcpy(&m.address, words, sizeof m.address);
    const uint32_t how = words[2], swizzle = how >> 13 & 3;
    m.type = how >> 7 & 15;
    m.element_bytes = element_bytes[m.type];
    m.row_bytes = 16u << swizzle;
    uint64_t bytes = m.element_bytes;
    for (unsigned d = 0; d < 5; d++) {
        m.size[d] = (uint64_t)words[8 + d] + 1;
        m.box[d] = (d == 0 ? words[13] >> 24 : words[14] >> 8 * (d - 1) & 255) + 1;
        if (d < 4) m.stride[d] = ((uint64_t)(words[7] >> 4 * d & 15) << 32 | words[3 + d]) << 4;
        bytes *= m.box[d];
    }
    bool zeros = !(how & ~0x667f0u) && !(words[13] & 0xffffff) && !words[15] && !words[17];
    for (unsigned i = 19; i < 32; i++) zeros &= words[i] == 0;
    const unsigned rank = (how >> 4 & 7) + 1;
    if (zeros && rank <= 5 && m.element_bytes && words[16] == bytes && words[18] == alignments[swizzle]) m.rank = rank;
    return m;
}

struct BulkCopy {
    TensorMap map;                     // as it was: a parameter lies on the stack of its thread. Rank 0: plain bytes
    char* global;                      // null: between blocks, or st.async
    unsigned shared, bytes, barrier;
    int at[5];                         // coordinates; of st.async, what it stores; between blocks, [0] is the address from where
    bool is_load;
    unsigned group, thread;
    emu_site site;
    unsigned blocks;                   // to all of these
    emu_combine combine;               // null: what is stored takes the place of what is there
    unsigned element_bytes;
    bool is_arrival;                   // no copy, but cp.async.mbarrier.arrive
    bool is_store_async;
    uintptr_t place;
    int step;                          // of a recording, that started it
    uint32_t number;                   // by which the rules know it; one to several blocks has as many numbers
    bool done;                         // of a store that nobody has waited for yet
    char* held;                        // of a store whose bytes have been read: these
};

struct BulkCopies { BulkCopy* waiting; unsigned count, capacity; };

// From a row in shared memory to the next: with a swizzle all rows are as long as its pattern, found to be so on an H200.
static unsigned row_pitch(const TensorMap& map) {
    const unsigned bytes = map.box[0] * map.element_bytes;
    return map.row_bytes > 16 ? map.row_bytes : bytes;
}

// From the first byte in shared memory to behind the last.
static unsigned shared_span(const BulkCopy& copy) {
    const TensorMap& map = copy.map;
    return map.rank ? copy.bytes / (map.box[0] * map.element_bytes) * row_pitch(map) : copy.bytes;
}

static unsigned box_bytes(const TensorMap& map) {
    uint64_t bytes = map.element_bytes;
    for (int d = 0; d < 5; d++) bytes *= map.box[d];
    return (unsigned)bytes;
}

// One element in memory, which other blocks may change at the same time.
template <class Word> static void combine_one(char* to, const char* from, emu_combine combine) {
    Word old = __atomic_load_n((Word*)to, __ATOMIC_RELAXED), now;
    do {
        now = old;
        combine(&now, from);
    } while (!__atomic_compare_exchange_n((Word*)to, &old, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
static void store_one(const BulkCopy& copy, char* to, const char* from, unsigned bytes) {
    if (!copy.combine) memcpy(to, from, bytes);
    else if (bytes == 2) combine_one<uint16_t>(to, from, copy.combine);
    else if (bytes == 4) combine_one<uint32_t>(to, from, copy.combine);
    else combine_one<uint64_t>(to, from, copy.combine);
}

// Calls visit(row, inside) for each row of a box: where the tensor's row begins, and whether there is one.
template <class Visit> static void visit_rows(const BulkCopy& copy, Visit visit) {
    const TensorMap& map = copy.map;
    unsigned i[5] = {};
    for (i[4] = 0; i[4] < map.box[4]; i[4]++)
        for (i[3] = 0; i[3] < map.box[3]; i[3]++)
            for (i[2] = 0; i[2] < map.box[2]; i[2]++)
                for (i[1] = 0; i[1] < map.box[1]; i[1]++) {
                    bool inside = true;
                    char* row = map.address;
                    for (int d = 1; d < 5; d++) {
                        const long long at = (long long)copy.at[d] + i[d];
                        inside &= at >= 0 && at < map.size[d];
                        if (d < (int)map.rank) row += at * (long long)map.stride[d - 1];
                    }
                    visit(row, inside);
                }
}

// Moves a box, element by element of 16 bytes or less: chunks of 16 bytes change places in shared memory, by its addresses.
// here: the bytes at address `to`, or a copy of them.
static void move_box(const BulkCopy& copy, unsigned to, char* here) {
    const TensorMap& map = copy.map;
    const unsigned first = to & emu_in_block;
    unsigned row_at = first;
    visit_rows(copy, [&](char* row, bool inside) {
        unsigned linear = row_at;
        row_at += row_pitch(map);
        for (unsigned i = 0; i < map.box[0]; i++, linear += map.element_bytes) {
            const long long at = (long long)copy.at[0] + i;
            const bool exists = inside && at >= 0 && at < map.size[0];
            char* place = here + (emu_swizzled(linear, map.row_bytes) - first);
            if (!copy.is_load) {
                if (exists) store_one(copy, row + at * map.element_bytes, place, map.element_bytes);
            } else if (exists) memcpy(place, row + at * map.element_bytes, map.element_bytes);
            else memset(place, 0, map.element_bytes);
        }
    });
}

// In shared memory, of all blocks that they go to.
static uint64_t shared_bytes(const BulkCopy& copy) {
    return (uint64_t)copy.bytes * (copy.blocks ? (unsigned)__builtin_popcount(copy.blocks) : 1);
}

// Calls visit(address, bytes) for each stretch of global memory that a copy touches, as long as it returns true.
template <class Visit> static void visit_global(const BulkCopy& copy, Visit visit) {
    const TensorMap& map = copy.map;
    if (!map.rank && copy.global) visit(copy.global, (uint64_t)copy.bytes);
    if (!map.rank) return;
    const long long left = copy.at[0] > 0 ? copy.at[0] : 0, right = (long long)copy.at[0] + map.box[0];
    const long long end = right < (long long)map.size[0] ? right : (long long)map.size[0];
    bool goes_on = end > left;
    visit_rows(copy, [&](char* row, bool inside) {
        if (inside && goes_on) goes_on = visit(row + left * map.element_bytes, (uint64_t)(end - left) * map.element_bytes);
    });
}

static void check_bounds(const BulkCopy& copy, emu_by by) {
    if (!emu_block->tracer) return;
    visit_global(copy, [&](const char* at, uint64_t bytes) {
        return emu_check_bounds((uintptr_t)at, bytes, !copy.is_load, by, emu_place_of(emu_current->place));
    });
}

// For the profiler: which bytes of which array, and how many in shared memory.
static void count(AsyncCounters& counters, const BulkCopy& copy) {
    Tracer& t = *emu_block->tracer;
    const TensorMap& map = copy.map;
    const char* const global = map.rank ? map.address : copy.global;
    const unsigned array = emu_array_of(t, global);
    uint64_t global_bytes = 0;
    visit_global(copy, [&](const char* from, uint64_t bytes) {
        global_bytes += bytes;
        if (array < t.array_count) emu_count_copied(t, array, from, bytes, copy.is_load);
        return true;
    });
    emu_count_copy(counters, !copy.is_load ? EMU_COPY_OUT : global ? EMU_COPY_IN : EMU_COPY_BETWEEN, array, global_bytes,
                   shared_bytes(copy));
}

static const void* source_of(const BulkCopy& copy) {
    return copy.is_store_async ? copy.at : copy.global ? copy.global : emu_shared_pointer((unsigned)copy.at[0]);
}

// Calls tell() with all pieces of a copy, of up to 16 bytes each. Where it has no bytes to copy, it writes zeros, or nothing.
static void record_pieces(Recorder& r, const BulkCopy& copy, unsigned shared, decltype(emu_record_reads)* tell) {
    char* const here = (char*)emu_shared_pointer(shared);
    const unsigned most = shared_span(copy);
    emu_piece* const pieces = (emu_piece*)malloc(most * sizeof(emu_piece));
    if (!pieces) emu_trap("no memory for copies in flight", copy.site);
    unsigned count = 0;
    const auto add = [&](char* global, char* in_shared, unsigned bytes) {
        if (copy.is_load) pieces[count++] = {global, in_shared, bytes};
        else if (global) pieces[count++] = {in_shared, global, bytes};
    };
    const TensorMap& map = copy.map;
    if (map.rank) {
        const unsigned first = shared & emu_in_block, all = map.box[0] * map.element_bytes, bytes = all % 16 ? map.element_bytes : 16;
        const unsigned elements = bytes / map.element_bytes;
        unsigned row_at = first;
        visit_rows(copy, [&](char* row, bool inside) {
            for (unsigned i = 0; i < map.box[0]; i += elements) {
                const long long at = (long long)copy.at[0] + i;
                const bool exists = inside && at >= 0 && at + elements <= map.size[0];
                char* const place = here + (emu_swizzled(row_at + i * map.element_bytes, map.row_bytes) - first);
                add(exists ? row + at * map.element_bytes : nullptr, place, bytes);
            }
            row_at += row_pitch(map);
        });
    } else {
        char* const from = copy.is_store_async ? nullptr : (char*)source_of(copy);
        const unsigned bytes = copy.bytes < 16 ? copy.bytes : 16;
        for (unsigned i = 0; i < copy.bytes; i += bytes) add(from ? from + i : nullptr, here + i, bytes);
    }
    tell(r, pieces, count, copy.step);
    free(pieces);
}

static void perform_at(const BulkCopy& copy, unsigned shared, unsigned barrier, uint32_t number) {
    if (emu_block_of(shared).over) {
        emu_current->place = copy.place;
        emu_misuse(EMU_COPY_TO_EXITED_BLOCK, copy.site);
    }
    char* here = copy.held ? copy.held : (char*)emu_shared_pointer(shared);
    if (copy.map.rank) move_box(copy, shared, here);
    else if (copy.is_load) memcpy(here, source_of(copy), copy.bytes);
    else
        for (unsigned i = 0; i < copy.bytes; i += copy.element_bytes)
            store_one(copy, copy.global + i, here + i, copy.element_bytes);
    if (Recorder* r = emu_recorder()) {
        if (!copy.held) record_pieces(*r, copy, shared, emu_record_reads);
        record_pieces(*r, copy, shared, emu_record_writes);
        emu_record_end(*r, -1, 0, copy.step);
    }
    if (!copy.is_load) return;
    if (Rules* rules = number ? emu_rules() : nullptr) emu_rule_copy_arrives(*rules, number);
    emu_count_bytes(barrier, -(int)copy.bytes, copy.site);
}

// By the thread whose copies these are, with the place of its instruction.
static void arrive(const BulkCopy& copy) {
    Fiber *const running = emu_current, *const f = &emu_block->fibers[copy.thread];
    const uintptr_t place = f->place;
    emu_current = f;
    f->place = copy.place;
    f->copy_group++;                   // of all groups, also of the one that is not yet committed
    emu_finish_copies(0);
    f->copy_group--;
    emu_count_arrivals(copy.barrier, 1, 0, true, true, copy.site);
    f->place = place;
    emu_current = running;
}

static void perform(const BulkCopy& copy) {
    Fiber* const running = emu_current;
    if (copy.is_arrival) return arrive(copy);
    running->copying = copy.site;
    uint32_t number = copy.number;
    if (!copy.blocks) perform_at(copy, copy.shared, copy.barrier, number);
    for (unsigned rank = 0; rank < emu_block->cluster->size; rank++)
        if (copy.blocks >> rank & 1)
            perform_at(copy, emu_address_in(rank, copy.shared), emu_address_in(rank, copy.barrier), number ? number++ : 0);
    running->copying = emu_site{};
}

static BulkCopies& copies() {
    Block& b = *emu_block;
    if (!b.bulk_copies) b.bulk_copies = (BulkCopies*)calloc(1, sizeof(BulkCopies));
    if (!b.bulk_copies) emu_trap("no memory for copies in flight", emu_site{});
    return *b.bulk_copies;
}

static void take_out(BulkCopies& all, unsigned index) {
    all.count--;
    memmove(all.waiting + index, all.waiting + index + 1, (all.count - index) * sizeof(BulkCopy));
}

static bool goes_elsewhere(const BulkCopy& copy) {
    return copy.blocks || (copy.is_load && !copy.is_arrival && &emu_block_of(copy.shared) != emu_block);
}

static void finish_store(const BulkCopy& copy) {
    if (!copy.done) perform(copy);
    free(copy.held);
}

static void hold(BulkCopy& copy) {
    const unsigned span = shared_span(copy);
    copy.held = (char*)malloc(span);
    if (!copy.held) emu_trap("no memory for copies in flight", copy.site);
    memcpy(copy.held, emu_shared_pointer(copy.shared), span);
    if (Recorder* r = emu_recorder()) record_pieces(*r, copy, copy.shared, emu_record_reads);
}

// The first load that waits, or by chance another; false if none does. After the block's last thread: the stores that nobody
// waited for, and loads for other blocks.
static bool go_on(Block& b) {
    BulkCopies& all = *b.bulk_copies;
    if (b.live == 0) {
        for (unsigned i = 0; i < all.count; i++)
            if (all.waiting[i].is_load) {
                if (goes_elsewhere(all.waiting[i])) perform(all.waiting[i]);
            } else finish_store(all.waiting[i]);
        all.count = 0;
    }
    unsigned loads = 0;
    for (unsigned i = 0; i < all.count; i++) loads += all.waiting[i].is_load;
    unsigned skipped = loads ? emu_choose(loads) : 0;
    for (unsigned i = 0; i < all.count; i++) {
        if (!all.waiting[i].is_load || skipped-- > 0) continue;
        const BulkCopy copy = all.waiting[i];
        take_out(all, i);
        perform(copy);
        return true;
    }
    return false;
}

// Tells the rules; returns the first number by which they know it.
static uint32_t watch(Rules& rules, const BulkCopy& copy) {
    if (!copy.is_load) return emu_rule_store(rules, copy.shared, copy.bytes);
    if (!copy.blocks) {
        const uint32_t number = emu_rule_load(rules, copy.shared, copy.bytes, copy.barrier, !copy.is_store_async);
        if (!copy.map.rank && !copy.global && !copy.is_store_async)
            emu_rule_load_reads(rules, number, (unsigned)copy.at[0], copy.bytes);
        return number;
    }
    uint32_t first = 0;
    for (unsigned rank = 0; rank < emu_block->cluster->size; rank++) {
        if (!(copy.blocks >> rank & 1)) continue;
        const uint32_t number = emu_rule_load(rules, emu_address_in(rank, copy.shared), copy.bytes,
                                              emu_address_in(rank, copy.barrier), true);
        if (!first) first = number;
    }
    return first;
}

static uint64_t bytes_in_flight(const BulkCopies& all) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < all.count; i++) bytes += all.waiting[i].is_load ? shared_bytes(all.waiting[i]) : 0;
    return bytes;
}

static void start(BulkCopy copy) {
    BulkCopies& all = copies();
    Rules* const rules = emu_rules();
    copy.place = emu_current->place;
    check_bounds(copy, copy.combine ? EMU_BY_BULK_REDUCTION : EMU_BY_BULK_COPY);
    copy.number = rules && !copy.is_arrival ? watch(*rules, copy) : 0;
    if (Recorder* r = emu_recorder()) {
        const uintptr_t barrier = copy.is_arrival ? (uintptr_t)emu_shared_pointer(copy.barrier) : 0;
        const emu_op op = copy.is_arrival ? EMU_OP_ARRIVE : EMU_OP_COPY;
        copy.step = emu_announce(*r, {op, emu_place_of(copy.place), barrier, 8, (int)copy.bytes, false});
    }
    AsyncCounters* const counters = copy.is_arrival ? nullptr : emu_async_counters();
    if (counters) count(*counters, copy);
    if (all.count == all.capacity) {
        all.capacity = all.capacity ? 2 * all.capacity : 64;
        all.waiting = (BulkCopy*)realloc(all.waiting, all.capacity * sizeof(BulkCopy));
        if (!all.waiting) emu_trap("no memory for copies in flight", copy.site);
    }
    emu_block->do_something_asynchronous = go_on;
    copy.done = emu_happens_now();
    if (copy.done) perform(copy);
    if (!copy.done || !copy.is_load) all.waiting[all.count++] = copy;
    if (counters) emu_count_in_flight(*counters, bytes_in_flight(all));
}

static void check_shared(unsigned shared, unsigned bytes, unsigned alignment, const char* what, emu_site site) {
    shared &= emu_in_block;
    if (shared % alignment) emu_misuse(EMU_SHARED_ALIGNMENT, site, {alignment, shared}, what);
    if ((size_t)shared + bytes > emu_shared_bytes()) emu_misuse(EMU_PAST_SHARED, site, {bytes, shared}, what);
}

static unsigned check_blocks(unsigned blocks, const char* what, emu_site site) {
    const unsigned there_are = emu_block->cluster->size;
    if (blocks >> there_are) emu_misuse(EMU_NO_SUCH_BLOCKS, site, {blocks, there_are}, what);
    return blocks;
}

// Those of all blocks that a load goes to.
static void check_barriers(unsigned blocks, unsigned barrier, const char* what, emu_site site) {
    if (!blocks) emu_check_barrier(barrier, what, site);
    for (unsigned rank = 0; rank < emu_block->cluster->size; rank++)
        if (blocks >> rank & 1) emu_check_barrier(emu_address_in(rank, barrier), what, site);
}

extern "C" void emu_bulk_copy(bool is_load, unsigned shared, void* global, unsigned bytes, unsigned barrier,
                              const emu_bulk_more& more, emu_site site) {
    EMU_NOTE_PLACE();
    if (bytes == 0 || bytes % 16 || (uintptr_t)global % 16) emu_misuse(EMU_BULK_ALIGNMENT, site);
    check_shared(shared, bytes, 16, "cp.async.bulk", site);
    if (is_load) check_barriers(more.blocks, barrier, "cp.async.bulk", site);
    const Fiber* f = emu_current;
    BulkCopy copy = {TensorMap{}, (char*)global, shared, bytes, barrier, {}, is_load, f->bulk_group, f->linear_id, site};
    copy.blocks = check_blocks(more.blocks, "cp.async.bulk", site);
    copy.combine = more.combine ? *more.combine : nullptr;
    copy.element_bytes = more.combine ? more.element_bytes : bytes;
    start(copy);
}

// rank: that it must have; 0: any.
static TensorMap checked_map(const void* map, unsigned rank, emu_site site) {
    const TensorMap m = decode(map);
    if (!m.rank) emu_misuse(EMU_NO_TENSOR_MAP, site);
    if (rank && m.rank != rank) emu_misuse(EMU_TENSOR_MAP_RANK, site, {rank, m.rank});
    return m;
}

extern "C" void emu_check_map(const void* map, unsigned rank, const int* at, emu_site site) {
    EMU_NOTE_PLACE();
    BulkCopy prefetch = {checked_map(map, rank, site)};
    prefetch.is_load = true;
    for (unsigned d = 0; at && d < rank; d++) prefetch.at[d] = at[d];
    if (at) check_bounds(prefetch, EMU_BY_PREFETCH);
}

extern "C" void emu_bulk_box(bool is_load, unsigned shared, const void* map, const int* at, unsigned rank, unsigned barrier,
                             const emu_bulk_more& more, emu_site site) {
    EMU_NOTE_PLACE();
    const TensorMap m = checked_map(map, rank, site);
    BulkCopy copy = {m, nullptr, shared, box_bytes(m), barrier, {}, is_load, emu_current->bulk_group, emu_current->linear_id, site};
    for (unsigned d = 0; d < rank; d++) copy.at[d] = at[d];
    if ((long long)at[0] * m.element_bytes % 16) emu_misuse(EMU_BOX_ALIGNMENT, site, {at[0], m.element_bytes});
    for (unsigned d = 0; d < rank && !is_load; d++)      // an H200 says "illegal instruction"; of a load, zeros are read there
        if (at[d] < 0) emu_misuse(EMU_BOX_BEFORE_START, site, {at[d]});
    copy.blocks = check_blocks(more.blocks, "cp.async.bulk.tensor", site);
    copy.combine = more.combine ? more.combine[m.type] : nullptr;
    if (more.combine && !copy.combine) emu_misuse(EMU_NO_SUCH_REDUCTION, site);
    check_shared(shared, shared_span(copy), 128, "cp.async.bulk.tensor", site);
    if (is_load) check_barriers(more.blocks, barrier, "cp.async.bulk.tensor", site);
    start(copy);
}

extern "C" void emu_bulk_between(unsigned to, unsigned from, unsigned bytes, unsigned barrier, emu_site site) {
    EMU_NOTE_PLACE();
    if (bytes == 0 || bytes % 16) emu_misuse(EMU_BULK_ALIGNMENT, site);
    check_shared(to, bytes, 16, "cp.async.bulk", site);
    check_shared(from, bytes, 16, "cp.async.bulk", site);
    emu_check_barrier(barrier, "cp.async.bulk", site);
    const Fiber* f = emu_current;
    start({TensorMap{}, nullptr, to, bytes, barrier, {(int)from}, true, f->bulk_group, f->linear_id, site});
}

extern "C" void emu_store_async(unsigned to, const void* values, unsigned bytes, unsigned barrier, emu_site site) {
    EMU_NOTE_PLACE();
    check_shared(to, bytes, bytes, "st.async", site);
    emu_check_barrier(barrier, "st.async", site);
    const Fiber* f = emu_current;
    BulkCopy copy = {TensorMap{}, nullptr, to, bytes, barrier, {}, true, f->bulk_group, f->linear_id, site};
    copy.is_store_async = true;
    memcpy(copy.at, values, bytes);
    start(copy);
}

extern "C" void emu_copies_arrive(unsigned address, bool expects, emu_site site) {
    EMU_NOTE_PLACE();
    if (expects) emu_mbarrier_one_more(address, site);
    else emu_check_barrier(address, "cp.async.mbarrier.arrive", site);
    BulkCopy arrival = {};
    arrival.barrier = address, arrival.thread = emu_current->linear_id, arrival.site = site;
    arrival.is_load = arrival.is_arrival = true;
    start(arrival);
}

extern "C" void emu_bulk_commit() { emu_current->bulk_group++; }

extern "C" void emu_bulk_wait(unsigned groups_in_flight, bool only_read) {
    const uint32_t place = emu_place_of((uintptr_t)__builtin_return_address(0));
    if (Recorder* r = emu_recorder()) emu_announce(*r, {EMU_OP_WAIT, place, 0, 0, EMU_STORES, false});
    if (!emu_block->bulk_copies) return;
    BulkCopies& all = *emu_block->bulk_copies;
    const Fiber* f = emu_current;
    for (unsigned i = 0; i < all.count;) {
        BulkCopy& copy = all.waiting[i];
        const bool waited_for = !copy.is_load && copy.thread == f->linear_id && copy.group + groups_in_flight < f->bulk_group;
        if (!waited_for || (only_read && copy.held)) {
            i++;
            continue;
        }
        Rules* const rules = copy.number && !copy.held ? emu_rules() : nullptr;
        if (rules) emu_rule_store_done(*rules, copy.number);
        if (only_read && !copy.done) {
            hold(copy);
            i++;
        } else {
            const BulkCopy store = copy;
            take_out(all, i);
            finish_store(store);
        }
    }
}
