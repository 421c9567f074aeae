#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class Group, class T, class Operation = plus<T>>
EMU_INLINE T inclusive_scan(const Group& group, T value, Operation operation = Operation(), emu_site site = emu_here()) {
    for (unsigned distance = 1; distance < group.size(); distance *= 2) {
        const T other = group.shfl_up(value, distance, site);
        if (group.thread_rank() >= distance) value = operation(other, value);
    }
    return value;
}
// Of those before a thread; the first gets nothing, T().
template <class Group, class T, class Operation = plus<T>>
EMU_INLINE T exclusive_scan(const Group& group, T value, Operation operation = Operation(), emu_site site = emu_here()) {
    const T before = group.shfl_up(inclusive_scan(group, value, operation, site), 1, site);
    return group.thread_rank() ? before : T();
}

}  // namespace cooperative_groups
