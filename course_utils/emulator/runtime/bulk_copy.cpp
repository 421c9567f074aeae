// The copy engine: cp.async.bulk and cp.async.bulk.tensor. A load is done as late as may be: when no thread of the block can
// go on without it. A store is done when the thread that started it waits for its group, or ends. In other orders some are
// done before: at once, or when somebody looks at an mbarrier.
#include <stdlib.h>
#include <string.h>

#include "async_rules.h"
#include "mbarrier.h"

// The emulator's own tensor map (toolchain/tensor_map.py): sizes and boxes from the innermost dimension on.
struct TensorMap {
    uint64_t mark;
    char* address;
    uint32_t rank, element_bytes, row_bytes, none;
    uint32_t size[5], box[5];
    uint64_t stride[4];                // bytes, of all dimensions but the innermost
};
static const uint64_t map_mark = 0x70616d5f726f736e;

struct BulkCopy {
    TensorMap map;                     // as it was: a parameter lies on the stack of its thread. No mark: plain bytes
    char* global;
    unsigned shared, bytes, barrier;
    int at[5];
    bool is_load;
    unsigned group, thread;
    emu_site site;
    uint32_t number;                   // by which the rules know it
    bool done;                         // of a store that nobody has waited for yet
};

struct BulkCopies { BulkCopy* waiting; unsigned count, capacity; };

static unsigned box_bytes(const TensorMap& map) {
    uint64_t bytes = map.element_bytes;
    for (int d = 0; d < 5; d++) bytes *= map.box[d];
    return (unsigned)bytes;
}

// Moves a box, element by element of 16 bytes or less: chunks of 16 bytes change places in shared memory, by its addresses.
static void move_box(const BulkCopy& copy) {
    const TensorMap& map = copy.map;
    char* shared = (char*)emu_shared_pointer(0);
    unsigned linear = copy.shared;
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
                    for (i[0] = 0; i[0] < map.box[0]; i[0]++, linear += map.element_bytes) {
                        const long long at = (long long)copy.at[0] + i[0];
                        const bool exists = inside && at >= 0 && at < map.size[0];
                        char* place = shared + emu_swizzled(linear, map.row_bytes);
                        if (!copy.is_load) {
                            if (exists) memcpy(row + at * map.element_bytes, place, map.element_bytes);
                        } else if (exists) memcpy(place, row + at * map.element_bytes, map.element_bytes);
                        else memset(place, 0, map.element_bytes);
                    }
                }
}

static void perform(const BulkCopy& copy) {
    emu_current->copying = copy.site;
    char* shared = (char*)emu_shared_pointer(copy.shared);
    if (copy.map.mark) move_box(copy);
    else if (copy.is_load) memcpy(shared, copy.global, copy.bytes);
    else memcpy(copy.global, shared, copy.bytes);
    emu_current->copying = emu_site{};
    Rules* const rules = copy.number ? emu_rules() : nullptr;
    if (copy.is_load) {
        if (rules) emu_rule_copy_arrives(*rules, copy.number);
        emu_count_bytes(copy.barrier, -(int)copy.bytes, copy.site);
    }
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

// The first load that waits, or by chance another; false if none does. After the block's last thread: the stores that nobody waited for.
static bool go_on(Block& b) {
    BulkCopies& all = *b.bulk_copies;
    if (b.live == 0) {
        for (unsigned i = 0; i < all.count; i++)
            if (!all.waiting[i].is_load && !all.waiting[i].done) perform(all.waiting[i]);
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

static void start(BulkCopy copy) {
    BulkCopies& all = copies();
    Rules* const rules = emu_rules();
    copy.number = rules ? emu_rule_copy(*rules, copy.is_load, copy.shared, copy.bytes, copy.barrier) : 0;
    if (all.count == all.capacity) {
        all.capacity = all.capacity ? 2 * all.capacity : 64;
        all.waiting = (BulkCopy*)realloc(all.waiting, all.capacity * sizeof(BulkCopy));
        if (!all.waiting) emu_trap("no memory for copies in flight", copy.site);
    }
    emu_block->do_something_asynchronous = go_on;
    copy.done = emu_happens_now();
    if (copy.done) perform(copy);
    if (!copy.done || !copy.is_load) all.waiting[all.count++] = copy;
}

static void check_shared(unsigned shared, unsigned bytes, unsigned alignment, const char* what, emu_site site) {
    if (shared % alignment) emu_misuse_in_words(site, "%s: the shared address is a multiple of %u, got %u", what, alignment, shared);
    if ((size_t)shared + bytes > emu_shared_bytes())
        emu_misuse_in_words(site, "%s: %u bytes from address %u on reach past the end of shared memory", what, bytes, shared);
}

extern "C" void emu_bulk_copy(bool is_load, unsigned shared, void* global, unsigned bytes, unsigned barrier, emu_site site) {
    EMU_NOTE_PLACE();
    if (bytes == 0 || bytes % 16 || (uintptr_t)global % 16) emu_misuse("cp.async.bulk: size and addresses are multiples of 16 bytes", site);
    check_shared(shared, bytes, 16, "cp.async.bulk", site);
    if (is_load) emu_check_barrier(barrier, "cp.async.bulk", site);
    const Fiber* f = emu_current;
    start({TensorMap{}, (char*)global, shared, bytes, barrier, {}, is_load, f->bulk_group, f->linear_id, site, 0, false});
}

extern "C" void emu_bulk_box(bool is_load, unsigned shared, const void* map, const int* at, unsigned rank, unsigned barrier, emu_site site) {
    EMU_NOTE_PLACE();
    const TensorMap& m = *(const TensorMap*)map;
    if (m.mark != map_mark) emu_misuse("cp.async.bulk.tensor: this is no tensor map (course_utils.cuda.tensor_map makes them)", site);
    if (m.rank != rank) emu_misuse_in_words(site, "cp.async.bulk.tensor.%ud: the tensor map has %u dimensions", rank, m.rank);
    BulkCopy copy = {m, nullptr, shared, box_bytes(m), barrier, {}, is_load, emu_current->bulk_group, emu_current->linear_id, site, 0, false};
    for (unsigned d = 0; d < rank; d++) copy.at[d] = at[d];
    check_shared(shared, copy.bytes, 128, "cp.async.bulk.tensor", site);
    if (is_load) emu_check_barrier(barrier, "cp.async.bulk.tensor", site);
    start(copy);
}

extern "C" void emu_bulk_commit() { emu_current->bulk_group++; }

extern "C" void emu_bulk_wait(unsigned groups_in_flight) {
    if (!emu_block->bulk_copies) return;
    BulkCopies& all = *emu_block->bulk_copies;
    const Fiber* f = emu_current;
    for (unsigned i = 0; i < all.count;) {
        const BulkCopy copy = all.waiting[i];
        if (copy.is_load || copy.thread != f->linear_id || copy.group + groups_in_flight >= f->bulk_group) {
            i++;
        } else {
            take_out(all, i);
            if (!copy.done) perform(copy);
            Rules* const rules = copy.number ? emu_rules() : nullptr;
            if (rules) emu_rule_store_done(*rules, copy.number);
        }
    }
}
