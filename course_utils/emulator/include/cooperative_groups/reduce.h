#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus { EMU_INLINE T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { EMU_INLINE T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { EMU_INLINE T operator()(T a, T b) const { return a < b ? b : a; } };

template <class Group, class T, class Operation>
EMU_INLINE T reduce(const Group& group, T value, Operation operation, emu_site site = emu_here()) {
    for (unsigned distance = Group::size() / 2; distance; distance /= 2)
        value = operation(value, group.shfl_xor(value, (int)distance, site));
    return value;
}

}  // namespace cooperative_groups
