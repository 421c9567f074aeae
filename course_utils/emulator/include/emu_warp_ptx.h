// PTX in which the lanes of a warp meet, and barriers of the block: shfl, vote, match, redux, bar.
#pragma once

namespace emu { namespace ptx {

// shfl.sync: the lane to read lies in a segment, whose mask is in the upper bits of `bounds`, and not beyond the lower bits.
// `inside`: whether it does; else a lane reads its own.
struct shuffle_source { unsigned lane; bool inside; };
EMU_INLINE unsigned segment(unsigned bounds) { return bounds >> 8 & 31; }
EMU_INLINE unsigned last_lane(unsigned bounds) { return (lane() & segment(bounds)) | (bounds & 31 & ~segment(bounds)); }
EMU_INLINE shuffle_source up(unsigned b, unsigned bounds) {
    const int from = (int)lane() - (int)(b & 31);
    return {(unsigned)from, from >= (int)last_lane(bounds)};
}
EMU_INLINE shuffle_source down(unsigned b, unsigned bounds) { return {lane() + (b & 31), lane() + (b & 31) <= last_lane(bounds)}; }
EMU_INLINE shuffle_source bfly(unsigned b, unsigned bounds) { return {lane() ^ (b & 31), (lane() ^ (b & 31)) <= last_lane(bounds)}; }
EMU_INLINE shuffle_source idx(unsigned b, unsigned bounds) {
    const unsigned from = (lane() & segment(bounds)) | (b & 31 & ~segment(bounds));
    return {from, from <= last_lane(bounds)};
}
template <class Register> EMU_INLINE void shfl(Register& to, bool& inside, unsigned value, shuffle_source from, unsigned mask, emu_site site) {
    inside = from.inside;
    put(to, shuffle_from(mask, value, from.inside ? from.lane : lane(), "shfl.sync", site));
}

template <class Register, class T> EMU_INLINE void match_all(Register& to, bool& all, T value, unsigned mask, emu_site site) {
    int are_all;
    put(to, __match_all_sync(mask, value, &are_all, site));
    all = are_all;
}

// Barriers with a number. All of the block's threads must come to it; what some of them wait at is in emu_hopper.h.
#if !defined(EMU_HOPPER)
EMU_INLINE void bar_sync(unsigned id, emu_site site = emu_here()) { __barrier_sync(id, site); }
EMU_INLINE void bar_sync(unsigned id, unsigned threads, emu_site site = emu_here()) { __barrier_sync_count(id, threads, site); }
#endif

} }  // namespace emu::ptx
