// Cooperative groups: the block, tiles of up to 32 threads, the lanes that are active together; what can be known of the grid
// without a cooperative launch; and, for sm_90a, the cluster of blocks.
#pragma once
#include <cuda/std/climits>
#include <cuda/std/cstdint>

namespace cooperative_groups {

class thread_block {
public:
    static EMU_INLINE void sync(emu_site site = emu_here()) { emu_barrier(0, site); }
    struct arrival_token {};
    static EMU_INLINE arrival_token barrier_arrive() { return {}; }    // here a thread arrives where it waits
    static EMU_INLINE void barrier_wait(arrival_token&&, emu_site site = emu_here()) { emu_barrier(0, site); }
    static EMU_INLINE unsigned thread_rank() { return emu_self()->linear_id; }
    static EMU_INLINE unsigned size() { return num_threads(); }
    static EMU_INLINE unsigned num_threads() {
        const emu_dim3 d = emu_self()->block_dim;
        return d.x * d.y * d.z;
    }
    static EMU_INLINE dim3 group_index() { return emu_self()->block_idx; }
    static EMU_INLINE dim3 thread_index() { return emu_self()->thread_idx; }
    static EMU_INLINE dim3 group_dim() { return emu_self()->block_dim; }
    static EMU_INLINE dim3 dim_threads() { return emu_self()->block_dim; }
};
EMU_INLINE thread_block this_thread_block() { return thread_block(); }

class grid_group {
public:
    EMU_INLINE bool is_valid() const { return num_blocks() == 1; }
    EMU_INLINE void sync(emu_site site = emu_here()) const {
        if (!is_valid()) emu_trap("sync() of a grid of several blocks needs a cooperative launch, which RawModule does not make on any machine: "
                                  "end the kernel here, and launch a second one for what follows", site);
        emu_barrier(0, site);
    }
    static EMU_INLINE dim3 dim_blocks() { return emu_self()->grid_dim; }
    static EMU_INLINE dim3 group_dim() { return emu_self()->grid_dim; }
    static EMU_INLINE dim3 block_index() { return emu_self()->block_idx; }
    static EMU_INLINE unsigned long long num_blocks() {
        const emu_dim3 d = emu_self()->grid_dim;
        return (unsigned long long)d.x * d.y * d.z;
    }
    static EMU_INLINE unsigned long long block_rank() {
        const emu_dim3 d = emu_self()->grid_dim, at = emu_self()->block_idx;
        return ((unsigned long long)at.z * d.y + at.y) * d.x + at.x;
    }
    static EMU_INLINE unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
    static EMU_INLINE unsigned long long size() { return num_threads(); }
    static EMU_INLINE unsigned long long thread_rank() {
        return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
    }
};
EMU_INLINE grid_group this_grid() { return grid_group(); }

#if defined(EMU_HOPPER)
class cluster_group {
public:
    EMU_INLINE void barrier_arrive(emu_site site = emu_here()) const { emu_cluster_arrive(site); }
    EMU_INLINE void barrier_wait(emu_site site = emu_here()) const { emu_cluster_wait(site); }
    EMU_INLINE void sync(emu_site site = emu_here()) const { emu_cluster_arrive(site), emu_cluster_wait(site); }
    EMU_INLINE unsigned block_rank() const { return emu_self()->cluster_rank; }
    EMU_INLINE unsigned num_blocks() const { return emu::cluster_blocks(); }
    EMU_INLINE dim3 dim_blocks() const { return emu_self()->cluster_dim; }
    EMU_INLINE dim3 block_index() const {
        const emu_dim3 at = emu_self()->block_idx, of = emu_self()->cluster_dim;
        return {at.x % of.x, at.y % of.y, at.z % of.z};
    }
    EMU_INLINE unsigned num_threads() const { return num_blocks() * this_thread_block().num_threads(); }
    EMU_INLINE unsigned size() const { return num_threads(); }
    EMU_INLINE unsigned thread_rank() const {
        return block_rank() * this_thread_block().num_threads() + emu_self()->linear_id;
    }
    EMU_INLINE unsigned query_shared_rank(const void* place) const { return emu_rank_of(emu_shared_offset(place)); }
    template <class T> EMU_INLINE T* map_shared_rank(T* place, int rank, emu_site site = emu_here()) const {
        return (T*)emu_shared_pointer(emu_map_to_block(emu_shared_offset(place), (unsigned)rank, site));
    }
};
EMU_INLINE cluster_group this_cluster() { return cluster_group(); }
#endif

// Lanes of a warp, by a mask: the n-th thread of the group is at the n-th set bit.
class coalesced_group {
    unsigned lanes, group_rank = 0, group_count = 1;
    EMU_INLINE unsigned rank_of(unsigned lane) const { return (unsigned)__builtin_popcount(lanes & ((1u << lane) - 1)); }
    EMU_INLINE unsigned packed(unsigned ballot) const {      // from lanes to ranks
        if (lanes == 0xffffffffu) return ballot;
        unsigned result = 0, rank = 0;
        for (unsigned m = lanes; m; rank++) result |= (ballot >> emu::take_lane(m) & 1) << rank;
        return result;
    }

public:
    explicit EMU_INLINE coalesced_group(unsigned lanes, unsigned group_rank = 0, unsigned group_count = 1)
        : lanes(lanes), group_rank(group_rank), group_count(group_count) {}
    EMU_INLINE unsigned mask() const { return lanes; }
    EMU_INLINE void sync(emu_site site = emu_here()) const { __syncwarp(lanes, site); }
    EMU_INLINE unsigned num_threads() const { return (unsigned)__builtin_popcount(lanes); }
    EMU_INLINE unsigned size() const { return num_threads(); }
    EMU_INLINE unsigned thread_rank() const { return rank_of(emu::lane()); }
    EMU_INLINE unsigned meta_group_rank() const { return group_rank; }
    EMU_INLINE unsigned meta_group_size() const { return group_count; }
    EMU_INLINE unsigned lane_of(unsigned rank) const { return __fns(lanes, 0, (int)rank + 1); }
    template <class T> EMU_INLINE T shfl(T value, unsigned rank, emu_site site = emu_here()) const {
        return emu::shuffle_from(lanes, value, lane_of(rank % num_threads()), "__shfl_sync()", site);
    }
    template <class T> EMU_INLINE T shfl_down(T value, unsigned delta, emu_site site = emu_here()) const {
        const unsigned to = thread_rank() + delta;
        return emu::shuffle_from(lanes, value, to < num_threads() ? lane_of(to) : emu::lane(), "__shfl_down_sync()", site);
    }
    template <class T> EMU_INLINE T shfl_up(T value, int delta, emu_site site = emu_here()) const {
        const int to = (int)thread_rank() - delta;
        return emu::shuffle_from(lanes, value, to >= 0 ? lane_of((unsigned)to) : emu::lane(), "__shfl_up_sync()", site);
    }
    EMU_INLINE int any(int predicate, emu_site site = emu_here()) const { return __any_sync(lanes, predicate, site); }
    EMU_INLINE int all(int predicate, emu_site site = emu_here()) const { return __all_sync(lanes, predicate, site); }
    EMU_INLINE unsigned ballot(int predicate, emu_site site = emu_here()) const { return packed(__ballot_sync(lanes, predicate, site)); }
    template <class T> EMU_INLINE unsigned match_any(T value, emu_site site = emu_here()) const {
        return packed(__match_any_sync(lanes, value, site));
    }
    template <class T> EMU_INLINE unsigned match_all(T value, int& all, emu_site site = emu_here()) const {
        return packed(__match_all_sync(lanes, value, &all, site));
    }
};
EMU_INLINE coalesced_group coalesced_threads(emu_site site = emu_here()) { return coalesced_group(emu_active_mask(site)); }

// A tile of a block, or of another tile: `tile_size` neighbours of one warp.
template <unsigned tile_size, class Parent = void> class thread_block_tile;
template <unsigned tile_size> class thread_block_tile<tile_size, void> {
    static_assert(tile_size >= 1 && !(tile_size & (tile_size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads");
    static_assert(tile_size <= 32, "the emulator does not have tiles of more than a warp, a GPU does");
    static constexpr unsigned low_bits = tile_size == 32 ? ~0u : (1u << (tile_size & 31)) - 1;
    EMU_INLINE unsigned first_lane() const { return emu_self()->lane & ~(tile_size - 1); }
    unsigned parent_size;

public:
    explicit EMU_INLINE thread_block_tile(unsigned parent_size) : parent_size(parent_size) {}
    EMU_INLINE unsigned mask() const { return low_bits << first_lane(); }
    EMU_INLINE void sync(emu_site site = emu_here()) const { __syncwarp(mask(), site); }
    static EMU_INLINE unsigned thread_rank() { return emu_self()->lane & (tile_size - 1); }
    EMU_INLINE static constexpr unsigned size() { return tile_size; }
    EMU_INLINE static constexpr unsigned num_threads() { return tile_size; }
    EMU_INLINE unsigned meta_group_rank() const {   // a parent of a warp or less has a power of two of threads
        return (parent_size <= 32 ? emu_self()->lane & (parent_size - 1) : emu_self()->linear_id) / tile_size;
    }
    EMU_INLINE unsigned meta_group_size() const { return (parent_size + tile_size - 1) / tile_size; }
    template <class T> EMU_INLINE T shfl(T value, int source, emu_site site = emu_here()) const {
        return __shfl_sync(mask(), value, source, tile_size, site);
    }
    template <class T> EMU_INLINE T shfl_xor(T value, int xor_mask, emu_site site = emu_here()) const {
        return __shfl_xor_sync(mask(), value, xor_mask, tile_size, site);
    }
    template <class T> EMU_INLINE T shfl_down(T value, unsigned delta, emu_site site = emu_here()) const {
        return __shfl_down_sync(mask(), value, delta, tile_size, site);
    }
    template <class T> EMU_INLINE T shfl_up(T value, unsigned delta, emu_site site = emu_here()) const {
        return __shfl_up_sync(mask(), value, delta, tile_size, site);
    }
    EMU_INLINE unsigned ballot(int predicate, emu_site site = emu_here()) const {
        return __ballot_sync(mask(), predicate, site) >> first_lane() & low_bits;
    }
    EMU_INLINE int any(int predicate, emu_site site = emu_here()) const { return __any_sync(mask(), predicate, site); }
    EMU_INLINE int all(int predicate, emu_site site = emu_here()) const { return __all_sync(mask(), predicate, site); }
    template <class T> EMU_INLINE unsigned match_any(T value, emu_site site = emu_here()) const {
        return __match_any_sync(mask(), value, site) >> first_lane() & low_bits;
    }
    template <class T> EMU_INLINE unsigned match_all(T value, int& all, emu_site site = emu_here()) const {
        return __match_all_sync(mask(), value, &all, site) >> first_lane() & low_bits;
    }
    EMU_INLINE operator coalesced_group() const { return coalesced_group(mask(), meta_group_rank(), meta_group_size()); }
};
template <unsigned tile_size, class Parent> class thread_block_tile : public thread_block_tile<tile_size, void> {
public:
    using thread_block_tile<tile_size, void>::thread_block_tile;
};
template <unsigned tile_size, class Parent> EMU_INLINE thread_block_tile<tile_size, Parent> tiled_partition(const Parent& parent) {
    return thread_block_tile<tile_size, Parent>(parent.num_threads());
}
EMU_INLINE thread_block_tile<1> this_thread() { return thread_block_tile<1>(thread_block::num_threads()); }

template <unsigned most_threads> struct block_tile_memory {
    static_assert(most_threads == 0, "the emulator does not have tiles of more than a warp, a GPU does");
};

// A group whose kind the program chooses: a block, or lanes of a warp.
class thread_group {
    coalesced_group lanes;
    bool is_block;

public:
    EMU_INLINE thread_group(thread_block) : lanes(0), is_block(true) {}
    EMU_INLINE thread_group(const coalesced_group& group) : lanes(group), is_block(false) {}
    template <unsigned tile_size, class Parent>
    EMU_INLINE thread_group(const thread_block_tile<tile_size, Parent>& tile) : lanes(tile), is_block(false) {}
    EMU_INLINE void sync(emu_site site = emu_here()) const { is_block ? (void)emu_barrier(0, site) : lanes.sync(site); }
    EMU_INLINE unsigned num_threads() const { return is_block ? thread_block::num_threads() : lanes.num_threads(); }
    EMU_INLINE unsigned size() const { return num_threads(); }
    EMU_INLINE unsigned thread_rank() const { return is_block ? thread_block::thread_rank() : lanes.thread_rank(); }
    EMU_INLINE coalesced_group partition(unsigned tile_size) const {
        if (tile_size == 0 || tile_size > 32 || (is_block && tile_size & (tile_size - 1)))
            emu_trap("tiled_partition(): a tile has 1, 2, 4, 8, 16 or 32 threads", emu_here());
        const unsigned first = thread_rank() / tile_size * tile_size;
        unsigned mask = 0;
        for (unsigned n = first; n < first + tile_size && n < num_threads(); n++) mask |= 1u << (is_block ? n % 32 : lanes.lane_of(n));
        return coalesced_group(mask, first / tile_size, (num_threads() + tile_size - 1) / tile_size);
    }
};
EMU_INLINE thread_group tiled_partition(const thread_group& parent, unsigned tile_size) { return parent.partition(tile_size); }
EMU_INLINE coalesced_group tiled_partition(const coalesced_group& parent, unsigned tile_size) {
    return thread_group(parent).partition(tile_size);
}

// Groups of the threads with the same label, or with the same truth value.
template <class T> EMU_INLINE coalesced_group labeled_partition(const coalesced_group& group, T label, emu_site site = emu_here()) {
    const unsigned mine = __match_any_sync(group.mask(), label, site), first = mine & -mine;
    const unsigned firsts = __ballot_sync(group.mask(), emu::lane() == (unsigned)__builtin_ctz(first), site);
    return coalesced_group(mine, (unsigned)__builtin_popcount(firsts & (first - 1)), (unsigned)__builtin_popcount(firsts));
}
EMU_INLINE coalesced_group binary_partition(const coalesced_group& group, bool predicate, emu_site site = emu_here()) {
    const unsigned true_ones = __ballot_sync(group.mask(), predicate, site), false_ones = group.mask() & ~true_ones;
    return coalesced_group(predicate ? true_ones : false_ones, predicate, 2);
}

template <class Group> EMU_INLINE void sync(const Group& group, emu_site site = emu_here()) { group.sync(site); }
template <class Group> EMU_INLINE auto thread_rank(const Group& group) { return group.thread_rank(); }
template <class Group> EMU_INLINE auto group_size(const Group& group) { return group.size(); }

// By the group's first thread alone; and what it returns, for all.
template <class Group, class Function, class... Arguments>
EMU_INLINE void invoke_one(const Group& group, Function&& function, Arguments&&... arguments) {
    if (group.thread_rank() == 0) function(static_cast<Arguments&&>(arguments)...);
}
template <class Group, class Function, class... Arguments>
EMU_INLINE auto invoke_one_broadcast(const Group& group, Function&& function, Arguments&&... arguments) {
    decltype(function(static_cast<Arguments&&>(arguments)...)) result;
    if (group.thread_rank() == 0) result = function(static_cast<Arguments&&>(arguments)...);
    return group.shfl(result, 0);
}

// Reductions and scans take these.
template <class T> struct plus { EMU_INLINE T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { EMU_INLINE T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { EMU_INLINE T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { EMU_INLINE T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { EMU_INLINE T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { EMU_INLINE T operator()(T a, T b) const { return a ^ b; } };

}  // namespace cooperative_groups
