#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <unsigned tile_size, class Parent, class T, class Operation>
EMU_INLINE T reduce(const thread_block_tile<tile_size, Parent>& group, T value, Operation operation, emu_site site = emu_here()) {
    for (unsigned distance = tile_size / 2; distance; distance /= 2)
        value = operation(value, group.shfl_xor(value, (int)distance, site));
    return value;
}
// The first thread has what all bring after each has joined its own with that of a thread 1, 2, 4, … further on.
template <class T, class Operation>
EMU_INLINE T reduce(const coalesced_group& group, T value, Operation operation, emu_site site = emu_here()) {
    for (unsigned distance = 1; distance < group.size(); distance *= 2) {
        const T other = group.shfl_down(value, distance, site);
        if (group.thread_rank() + distance < group.size()) value = operation(value, other);
    }
    return group.shfl(value, 0, site);
}
// Into memory, by the first thread.
template <class Group, class T, class Operation>
EMU_INLINE void reduce_store_async(const Group& group, T* to, T value, Operation operation, emu_site site = emu_here()) {
    value = reduce(group, value, operation, site);
    if (group.thread_rank() == 0) *to = value;
}

}  // namespace cooperative_groups
