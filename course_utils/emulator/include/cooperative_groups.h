// The part of cooperative groups that lives inside one block, the block and tiles of up to 32 threads; and, for sm_90a, the
// cluster of blocks.
#pragma once

namespace cooperative_groups {

class thread_block {
public:
    EMU_INLINE void sync(emu_site site = emu_here()) const { emu_barrier(0, site); }
    EMU_INLINE unsigned thread_rank() const { return emu_self()->linear_id; }
    EMU_INLINE unsigned size() const { return num_threads(); }
    EMU_INLINE unsigned num_threads() const {
        const emu_dim3 d = emu_self()->block_dim;
        return d.x * d.y * d.z;
    }
    EMU_INLINE dim3 group_index() const { return emu_self()->block_idx; }
    EMU_INLINE dim3 thread_index() const { return emu_self()->thread_idx; }
    EMU_INLINE dim3 group_dim() const { return emu_self()->block_dim; }
    EMU_INLINE dim3 dim_threads() const { return emu_self()->block_dim; }
};
EMU_INLINE thread_block this_thread_block() { return thread_block(); }

#if defined(EMU_HOPPER)
class cluster_group {
public:
    EMU_INLINE void barrier_arrive(emu_site site = emu_here()) const { emu_cluster_arrive(site); }
    EMU_INLINE void barrier_wait(emu_site site = emu_here()) const { emu_cluster_wait(site); }
    EMU_INLINE void sync(emu_site site = emu_here()) const { emu_cluster_arrive(site), emu_cluster_wait(site); }
    EMU_INLINE unsigned block_rank() const { return emu_self()->cluster_rank; }
    EMU_INLINE unsigned num_blocks() const { return emu::cluster_blocks(); }
    EMU_INLINE dim3 dim_blocks() const { return emu_self()->cluster_dim; }
    EMU_INLINE unsigned num_threads() const { return num_blocks() * this_thread_block().num_threads(); }
    EMU_INLINE unsigned thread_rank() const {
        return block_rank() * this_thread_block().num_threads() + emu_self()->linear_id;
    }
    template <class T> EMU_INLINE T* map_shared_rank(T* place, int rank, emu_site site = emu_here()) const {
        return (T*)emu_shared_pointer(emu_map_to_block(emu_shared_offset(place), (unsigned)rank, site));
    }
};
EMU_INLINE cluster_group this_cluster() { return cluster_group(); }
#endif

template <unsigned tile_size> class thread_block_tile {
    static_assert(tile_size >= 1 && tile_size <= 32 && !(tile_size & (tile_size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads");
    static constexpr unsigned low_bits = tile_size == 32 ? ~0u : (1u << (tile_size & 31)) - 1;
    EMU_INLINE unsigned first_lane() const { return emu_self()->lane & ~(tile_size - 1); }
    EMU_INLINE unsigned mask() const { return low_bits << first_lane(); }

public:
    EMU_INLINE void sync(emu_site site = emu_here()) const { __syncwarp(mask(), site); }
    EMU_INLINE unsigned thread_rank() const { return emu_self()->lane & (tile_size - 1); }
    EMU_INLINE static constexpr unsigned size() { return tile_size; }
    EMU_INLINE static constexpr unsigned num_threads() { return tile_size; }
    EMU_INLINE unsigned meta_group_rank() const { return emu_self()->linear_id / tile_size; }
    EMU_INLINE unsigned meta_group_size() const { return (this_thread_block().size() + tile_size - 1) / tile_size; }
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
};
template <unsigned tile_size, class Parent> EMU_INLINE thread_block_tile<tile_size> tiled_partition(const Parent&) {
    return thread_block_tile<tile_size>();
}
template <class Group> EMU_INLINE void sync(const Group& group, emu_site site = emu_here()) { group.sync(site); }

}  // namespace cooperative_groups
