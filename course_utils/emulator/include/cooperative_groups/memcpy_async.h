// Copies by all threads of a group: to shared memory as cp.async has it, where both places allow it.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
namespace emu_copy {

// Pieces of this many bytes, which the threads take in turn; what is left over is copied byte by byte.
template <unsigned piece, class Group>
EMU_INLINE size_t pieces(const Group& group, char* to, const char* from, size_t bytes, emu_site site) {
    const bool is_async = __isShared(to) && !__isShared(from);
    for (size_t at = group.thread_rank() * piece; at + piece <= bytes; at += group.size() * piece) {
        if (is_async) emu::ptx::copy_async(to + at, from + at, piece, piece, piece == 16, site);
        else memcpy(to + at, from + at, piece);
    }
    return bytes / piece * piece;
}
template <class Group> EMU_INLINE void copy(const Group& group, void* to_start, const void* from_start, size_t bytes, emu_site site) {
    char* to = (char*)to_start;
    const char* from = (const char*)from_start;
    const size_t both = (size_t)to | (size_t)from;
    const size_t done = both % 16 == 0  ? pieces<16>(group, to, from, bytes, site)
                        : both % 8 == 0 ? pieces<8>(group, to, from, bytes, site)
                        : both % 4 == 0 ? pieces<4>(group, to, from, bytes, site)
                                        : 0;
    for (size_t at = done + group.thread_rank(); at < bytes; at += group.size()) to[at] = from[at];
    emu_copy_commit();
}

}  // namespace emu_copy

template <class Group, class T, class U, class Bytes>
EMU_INLINE void memcpy_async(const Group& group, T* to, const U* from, const Bytes& bytes, emu_site site = emu_here()) {
    emu_copy::copy(group, to, from, (size_t)bytes, site);
}
// Room and supply in elements: the smaller of the two is copied.
template <class Group, class T, class ToCount, class FromCount>
EMU_INLINE void memcpy_async(const Group& group, T* to, const ToCount& to_count, const T* from, const FromCount& from_count,
                             emu_site site = emu_here()) {
    const size_t room = (size_t)to_count, supply = (size_t)from_count;
    emu_copy::copy(group, to, from, sizeof(T) * (room < supply ? room : supply), site);
}
template <unsigned groups_in_flight, class Group> EMU_INLINE void wait_prior(const Group& group, emu_site site = emu_here()) {
    emu::ptx::copy_wait(groups_in_flight);
    group.sync(site);
}
template <class Group> EMU_INLINE void wait(const Group& group, emu_site site = emu_here()) { wait_prior<0>(group, site); }

}  // namespace cooperative_groups
