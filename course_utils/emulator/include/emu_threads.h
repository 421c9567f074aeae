// Who am I, barriers, shuffles and votes.
#pragma once

#define threadIdx (emu::thread_index())
#define blockIdx (emu_self()->block_idx)
#define blockDim (emu_self()->block_dim)
#define gridDim (emu_self()->grid_dim)
#define warpSize 32

namespace emu {

// The compiler may count on the largest block that there is, as nvcc does: an index made of threadIdx does not wrap.
EMU_INLINE const emu_dim3& thread_index() {
    const emu_dim3& index = emu_self()->thread_idx;
    if (index.x > 1023 || index.y > 1023 || index.z > 63) __builtin_unreachable();
    return index;
}

}  // namespace emu

EMU_INLINE void __syncthreads(emu_site site = emu_here()) { emu_barrier(0, site); }
EMU_INLINE int __syncthreads_count(int predicate, emu_site site = emu_here()) { return emu_barrier(predicate, site); }
EMU_INLINE int __syncthreads_or(int predicate, emu_site site = emu_here()) { return emu_barrier(predicate, site) != 0; }
EMU_INLINE int __syncthreads_and(int predicate, emu_site site = emu_here()) { return emu_barrier(!predicate, site) == 0; }
// Clocks count the turns that threads have taken: they grow, and mean nothing else.
typedef long clock_t;
EMU_INLINE long long clock64() { return (long long)emu_steps(); }
EMU_INLINE clock_t clock() { return (int)emu_steps(); }
EMU_INLINE unsigned long long __globaltimer() { return emu_steps(); }
// Barriers by number: those of all threads of the block are what __syncthreads() is.
EMU_INLINE void __barrier_sync(unsigned, emu_site site = emu_here()) { emu_barrier(0, site); }
EMU_INLINE void __barrier_sync_count(unsigned, unsigned threads, emu_site site = emu_here()) {
    const emu_dim3 d = emu_self()->block_dim;
    if (threads != (d.x * d.y * d.z + 31) / 32 * 32)
        emu_trap("a barrier of some threads of a block: the emulator has it in kernels whose header says `arch: sm_90a only`", site);
    emu_barrier(0, site);
}
EMU_INLINE unsigned __activemask(emu_site site = emu_here()) { return emu_active_mask(site); }
EMU_INLINE void __nanosleep(unsigned) { emu_yield(); }
EMU_INLINE void __trap(emu_site site = emu_here()) { emu_trap("__trap()", site); }
EMU_INLINE void __brkpt() {}
EMU_INLINE void __prof_trigger(int) {}
EMU_INLINE void __threadfence() { emu_fence(true); }
EMU_INLINE void __threadfence_block() { emu_fence(false); }
EMU_INLINE void __threadfence_system() { emu_fence(true); }

namespace emu {

EMU_INLINE unsigned lane() { return emu_self()->lane; }
EMU_INLINE unsigned cluster_blocks() {
    const emu_dim3 d = emu_self()->cluster_dim;
    return d.x * d.y * d.z;
}
inline unsigned take_lane(unsigned& lanes) {      // lowest set bit, removed
    unsigned l = (unsigned)__builtin_ctz(lanes);
    lanes &= lanes - 1;
    return l;
}

// Runs one lane's side of a collective: fills in the common part and waits for the other lanes.
template <class Mine> EMU_INLINE auto collect(Mine& mine, const char* name, unsigned mask, emu_site site) {
    mine.combine = Mine::combine_lanes;
    mine.name = name;
    mine.mask = mask;
    mine.site = site;
    mine.noticed = (Mine::orders_memory ? EMU_ORDERS_MEMORY : 0) | EMU_NOTICED;
    emu_collect(&mine);
}

template <class T> struct shuffle : emu_collective {
    T value, result;
    unsigned source;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        while (participants) {
            const unsigned l = take_lane(participants);
            shuffle* mine = (shuffle*)lanes[l];
            const shuffle* source = (const shuffle*)lanes[mine->source];
            if (!source) emu_absent_lane(mine, l, mine->source);
            mine->result = (source ? source : mine)->value;      // a lane that takes no part has no value to give
        }
    }
};
template <class T> EMU_UNSEEN __attribute__((noinline)) T shuffle_from(unsigned mask, T value, unsigned source, const char* name, emu_site site) {
    shuffle<T> mine;
    mine.value = value;
    mine.source = source;
    collect(mine, name, mask, site);
    return mine.result;
}

struct vote : emu_collective {
    unsigned predicate, result;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        unsigned ballot = 0;
        for (unsigned m = participants; m;) {
            unsigned l = take_lane(m);
            ballot |= (((vote*)lanes[l])->predicate != 0) << l;
        }
        while (participants) ((vote*)lanes[take_lane(participants)])->result = ballot;
    }
};
inline EMU_UNSEEN __attribute__((noinline)) unsigned ballot(unsigned mask, int predicate, const char* name, emu_site site) {
    vote mine;
    mine.predicate = predicate;
    collect(mine, name, mask, site);
    return mine.result;
}

struct warp_barrier : emu_collective {
    static constexpr bool orders_memory = true;
    static EMU_UNSEEN void combine_lanes(emu_collective**, unsigned) {}
};

template <class T, class Reduce> struct reduction : emu_collective {
    T value;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        unsigned m = participants;
        T total = ((reduction*)lanes[take_lane(m)])->value;
        while (m) total = Reduce::apply(total, ((reduction*)lanes[take_lane(m)])->value);
        while (participants) ((reduction*)lanes[take_lane(participants)])->value = total;
    }
};
template <class Reduce, class T> T reduce(unsigned mask, T value, const char* name, emu_site site) {
    reduction<T, Reduce> mine;
    mine.value = value;
    collect(mine, name, mask, site);
    return mine.value;
}

template <class T> struct match : emu_collective {
    T value;
    unsigned result, participants;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        for (unsigned m = participants; m;) {
            match* mine = (match*)lanes[take_lane(m)];
            mine->participants = participants;
            mine->result = 0;
            for (unsigned n = participants; n;) {
                unsigned l = take_lane(n);
                if (((match*)lanes[l])->value == mine->value) mine->result |= 1u << l;
            }
        }
    }
};

}  // namespace emu

EMU_INLINE void __syncwarp(unsigned mask = 0xffffffffu, emu_site site = emu_here()) {
    emu::warp_barrier mine;
    emu::collect(mine, "__syncwarp()", mask, site);
}

template <class T> EMU_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32, emu_site site = emu_here()) {
    unsigned segment = emu::lane() & ~(width - 1);
    return emu::shuffle_from(mask, value, segment | (source & (width - 1)), "__shfl_sync()", site);
}
template <class T> EMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int xor_mask, int width = 32, emu_site site = emu_here()) {
    unsigned me = emu::lane(), source = me ^ xor_mask, last = me | (width - 1);
    return emu::shuffle_from(mask, value, source > last ? me : source, "__shfl_xor_sync()", site);
}
template <class T> EMU_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, emu_site site = emu_here()) {
    unsigned me = emu::lane(), source = me + delta, last = me | (width - 1);
    return emu::shuffle_from(mask, value, source > last ? me : source, "__shfl_down_sync()", site);
}
template <class T> EMU_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, emu_site site = emu_here()) {
    int me = (int)emu::lane(), source = me - (int)delta, first = me & ~(width - 1);
    return emu::shuffle_from(mask, value, (unsigned)(source < first ? me : source), "__shfl_up_sync()", site);
}
EMU_INLINE unsigned __ballot_sync(unsigned mask, int predicate, emu_site site = emu_here()) {
    return emu::ballot(mask, predicate, "__ballot_sync()", site);
}
EMU_INLINE int __any_sync(unsigned mask, int predicate, emu_site site = emu_here()) {
    return emu::ballot(mask, predicate, "__any_sync()", site) != 0;
}
EMU_INLINE int __all_sync(unsigned mask, int predicate, emu_site site = emu_here()) {
    return emu::ballot(mask, !predicate, "__all_sync()", site) == 0;
}
EMU_INLINE int __uni_sync(unsigned mask, int predicate, emu_site site = emu_here()) {
    const unsigned ballot = emu::ballot(mask, predicate, "__uni_sync()", site);
    return ballot == 0 || ballot == emu::ballot(mask, 1, "__uni_sync()", site);
}
template <class T> EMU_INLINE unsigned __match_any_sync(unsigned mask, T value, emu_site site = emu_here()) {
    emu::match<T> mine;
    mine.value = value;
    emu::collect(mine, "__match_any_sync()", mask, site);
    return mine.result;
}

template <class T> EMU_INLINE unsigned __match_all_sync(unsigned mask, T value, int* all, emu_site site = emu_here()) {
    emu::match<T> mine;
    mine.value = value;
    emu::collect(mine, "__match_all_sync()", mask, site);
    *all = mine.result == mine.participants;
    return *all ? mine.result : 0;
}

#define EMU_REDUCE(name, expression)                                                                                        \
    namespace emu { struct reduce_##name { template <class T> static T apply(T a, T b) { return expression; } }; }              \
    template <class T> EMU_INLINE T __reduce_##name##_sync(unsigned mask, T value, emu_site site = emu_here()) {              \
        return emu::reduce<emu::reduce_##name>(mask, value, "__reduce_" #name "_sync()", site);                                 \
    }
EMU_REDUCE(add, a + b)
EMU_REDUCE(min, b < a ? b : a)
EMU_REDUCE(max, a < b ? b : a)
EMU_REDUCE(and, a & b)
EMU_REDUCE(or, a | b)
EMU_REDUCE(xor, a ^ b)
#undef EMU_REDUCE
