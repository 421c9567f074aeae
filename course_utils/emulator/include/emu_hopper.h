// What sm_90a adds, for kernels whose header asks for it: products of a warpgroup, barriers in shared memory.
#pragma once

namespace emu { namespace ptx {

// ---- wgmma

// Where a factor lies in shared memory, as a descriptor says it: bits 0-13 the address, 16-29 and 32-45 the leading and the
// stride offset, each divided by 16; 62-63 the swizzle: none, or rows of 128, 64 or 32 bytes whose chunks of 16 bytes change
// places. Source: PTX ISA, "Shared memory matrix layout".
struct factor {
    unsigned start, leading, stride, row_bytes;
    bool transposed;                          // neighbours are of one column of D, not of one sum
    unsigned element_bytes;

    // The shared address of number k of the sum for row (of A) or column (of B) n.
    unsigned address(unsigned n, unsigned k) const {
        const unsigned along = (transposed ? n : k) * element_bytes, across = transposed ? k : n;
        if (row_bytes == 16) {                // no swizzle: squares of 8 rows of 16 bytes
            const unsigned next = transposed ? stride : leading, below = transposed ? leading : stride;
            return start + along / 16 * next + across / 8 * below + across % 8 * 16 + along % 16;
        }
        const unsigned at = start + along / row_bytes * leading + across / 8 * stride + across % 8 * row_bytes + along % row_bytes;
        return emu_swizzled(at, row_bytes);
    }
};

inline EMU_UNSEEN factor factor_of(unsigned long long descriptor, bool transposed, unsigned element_bytes, emu_site site) {
    static const unsigned row_bytes[] = {16, 128, 64, 32};
    if (descriptor >> 49 & 7) emu_misuse("wgmma: the emulator does not know a descriptor with a base offset", site);
    if (descriptor & 0x1f8ec000c000c000ull) emu_misuse("wgmma: the descriptor has bits that mean nothing", site);
    return {(unsigned)(descriptor & 0x3fff) << 4, (unsigned)(descriptor >> 16 & 0x3fff) << 4, (unsigned)(descriptor >> 32 & 0x3fff) << 4,
            row_bytes[descriptor >> 62], transposed, element_bytes};
}

// The numbers of a factor: [count][depth] as floats, k by k if `by_k`.
template <class Format> EMU_UNSEEN void read_factor(const factor& from, unsigned count, unsigned depth, float sign, float* to, bool by_k,
                                                  emu_site site) {
    const char* shared = (const char*)emu_shared_pointer(0);
    const size_t bytes = emu_shared_bytes();
    for (unsigned n = 0; n < count; n++)
        for (unsigned k = 0; k < depth; k++) {
            const unsigned at = from.address(n, k);
            if (at + Format::bits / 8 > bytes) emu_misuse("wgmma: the descriptor leads past the end of shared memory", site);
            unsigned number = 0;
            memcpy(&number, shared + at, Format::bits / 8);
            to[by_k ? k * count + n : n * depth + k] = sign * Format::widen(number);
        }
}

// Sixteen rows of D = A B + D. Lane 4 g + t has rows g and g + 8, and of each eight columns 2 t and 2 t + 1, as with mma.sync.
template <class Left, class Right> EMU_UNSEEN void multiply_rows(const emu_wgmma* product) {
    typedef float floats8 __attribute__((vector_size(32)));
    enum { bits = Left::bits, count = 32 / bits, depth = 8 * count };
    float left[16][depth], right[depth * 256] __attribute__((aligned(32))), out[16][256] __attribute__((aligned(32)));
    const emu_wgmma& p = *product;
    const unsigned n = p.n;
    const float sign = p.negate_a ? -1 : 1;
    if (p.a_in_registers) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < count; e++)
                    left[(lane >> 2) + 8 * (i & 1)][count * (lane & 3) + depth / 2 * (i >> 1) + e] =
                        sign * Left::widen(p.a[lane][i] >> bits * e & ((1u << bits) - 1));
    } else {
        factor a = factor_of(p.a_descriptor, p.transpose_a, bits / 8, p.site);
        if (a.transposed) {                    // rows 16 w to 16 w + 15 are columns of what is stored
            float all[64 * depth];
            read_factor<Left>(a, 64, depth, sign, all, false, p.site);
            memcpy(left, all + 16 * p.warp * depth, sizeof left);
        } else {
            a.start += 2 * p.warp * a.stride;  // two groups of eight rows
            read_factor<Left>(a, 16, depth, sign, left[0], false, p.site);
        }
    }
    const factor b = factor_of(p.b_descriptor, p.transpose_b, bits / 8, p.site);
    read_factor<Right>(b, n, depth, p.negate_b ? -1 : 1, right, true, p.site);
    for (int row = 0; row < 16; row++)
        for (unsigned column = 0; column < n; column += 8) {
            floats8 sum = {};
            for (int k = 0; k < depth; k++) sum += left[row][k] * *(const floats8*)(right + k * n + column);
            memcpy(&out[row][column], &sum, sizeof sum);
        }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < n / 2; i++) {
            float& d = p.side_by_side ? p.d[lane][i] : *p.d[lane * (n / 2) + i];
            const float sum = out[(lane >> 2) + 8 * (i >> 1 & 1)][i / 4 * 8 + 2 * (lane & 3) + (i & 1)];
            d = p.add ? d + sum : sum;
        }
}

// The 16 bytes that a warp reads: rows of A that are its own, and all of B.
inline EMU_UNSEEN unsigned list_chunks(const factor& from, unsigned first, unsigned count, unsigned depth, unsigned* to, emu_site site) {
    unsigned listed = 0;
    const unsigned step = 16 / from.element_bytes;
    for (unsigned n = first; n < first + count; n += from.transposed ? step : 1)
        for (unsigned k = 0; k < depth; k += from.transposed ? 1 : step) {
            to[listed] = from.address(n, k);
            if (to[listed++] + 16 > emu_shared_bytes()) emu_misuse("wgmma: the descriptor leads past the end of shared memory", site);
        }
    return listed;
}
template <class Left, class Right> EMU_UNSEEN unsigned chunks_of(const emu_wgmma* product, unsigned* to) {
    const emu_wgmma& p = *product;
    const unsigned bytes = Left::bits / 8, depth = 32 / bytes;
    const unsigned of_a = p.a_in_registers ? 0
        : list_chunks(factor_of(p.a_descriptor, p.transpose_a, bytes, p.site), 16 * p.warp, 16, depth, to, p.site);
    return of_a + list_chunks(factor_of(p.b_descriptor, p.transpose_b, bytes, p.site), 0, p.n, depth, to + of_a, p.site);
}

// Where a register of A is, for asynccheck; null: it has no place.
#if defined(EMU_TRACED)
template <class T> EMU_INLINE const void* place_of(T& variable) { return &variable; }
template <class T> EMU_INLINE const void* place_of(const T&&) { return nullptr; }
#define EMU_PLACE() emu_place()
#else
template <class T> EMU_INLINE const void* place_of(const T&) { return nullptr; }
#define EMU_PLACE() 0
#endif

inline EMU_UNSEEN void need_all_lanes(emu_collective** lanes, unsigned participants) {
    if (participants != 0xffffffffu)
        emu_misuse("wgmma needs all 32 lanes of the warp, but some have exited", lanes[__builtin_ctz(participants)]->site);
}

struct wgmma_lanes : emu_collective {
    emu_wgmma product;                         // of this lane: `d` are its numbers alone, `a_places` those of its four registers
    unsigned a[4];
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        need_all_lanes(lanes, participants);
        emu_wgmma whole = ((wgmma_lanes*)lanes[0])->product;
        float* d[32 * 128];
        const void* a_places[32 * 4];
        unsigned a[32][4];
        for (int lane = 0; lane < 32; lane++) {
            const emu_wgmma& mine = ((wgmma_lanes*)lanes[lane])->product;
            if (mine.a_descriptor != whole.a_descriptor || mine.b_descriptor != whole.b_descriptor || mine.add != whole.add)
                emu_misuse("wgmma: the lanes of a warp have different descriptors", lanes[lane]->site);
            memcpy(d + lane * (whole.n / 2), mine.d, whole.n / 2 * sizeof(float*));
            if (whole.a_in_registers) memcpy(a[lane], ((wgmma_lanes*)lanes[lane])->a, sizeof a[lane]);
            if (mine.a_places) memcpy(a_places + 4 * lane, mine.a_places, 4 * sizeof *a_places);
        }
        whole.d = d, whole.a = a;
        if (whole.a_places) whole.a_places = a_places;
        emu_wgmma_start(&whole);
    }
};
struct registers_of_a { unsigned values[4]; const void* places[4]; };
inline void set_left(wgmma_lanes& mine, unsigned long long descriptor) { mine.product.a_descriptor = descriptor; }
inline void set_left(wgmma_lanes& mine, const registers_of_a& a) {
    mine.product.a_in_registers = true;
    mine.product.a_places = a.places;
    memcpy(mine.a, a.values, sizeof mine.a);
}
template <class Left, class Right, size_t size, class A>
EMU_INLINE void wgmma(float* (&d)[size], const A& a, unsigned long long b, bool add, int scale_a, int scale_b, bool transpose_a,
                      bool transpose_b, emu_site site = emu_here()) {
    wgmma_lanes mine;
    mine.product = {multiply_rows<Left, Right>, site, 2 * size, emu_self()->warp % 4, d, false};
    set_left(mine, a);
    mine.product.b_descriptor = b, mine.product.add = add;
    mine.product.negate_a = scale_a < 0, mine.product.negate_b = scale_b < 0;
    mine.product.transpose_a = transpose_a, mine.product.transpose_b = transpose_b;
    mine.product.place = EMU_PLACE(), mine.product.chunks = chunks_of<Left, Right>;
    collect(mine, "wgmma.mma_async", 0xffffffffu, site);
}

struct wgmma_commit_lanes : emu_collective {
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        need_all_lanes(lanes, participants);
        emu_wgmma_commit();
    }
};
EMU_INLINE void wgmma_commit(emu_site site = emu_here()) {
    wgmma_commit_lanes mine;
    collect(mine, "wgmma.commit_group", 0xffffffffu, site);
}
struct wgmma_wait_lanes : emu_collective {
    unsigned in_flight;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        need_all_lanes(lanes, participants);
        emu_wgmma_wait(((wgmma_wait_lanes*)lanes[0])->in_flight, lanes[0]->site);
    }
};
EMU_INLINE void wgmma_wait(unsigned in_flight, emu_site site = emu_here()) {
    (void)EMU_PLACE();
    wgmma_wait_lanes mine;
    mine.in_flight = in_flight;
    collect(mine, "wgmma.wait_group", 0xffffffffu, site);
}
#if defined(EMU_TRACED)
EMU_INLINE void wgmma_fence() { emu_wgmma_fence(); }
EMU_INLINE void fence_proxy() { emu_proxy_fence(false); }
EMU_INLINE void fence_mbarrier_init() { emu_proxy_fence(true); }
#else
EMU_INLINE void wgmma_fence() {}
EMU_INLINE void fence_proxy() {}
EMU_INLINE void fence_mbarrier_init() {}
#endif

// ---- barriers of some threads: bar.{sync,arrive} id, threads; bar.red.{or,and,popc} result, id, threads, predicate

EMU_INLINE void bar_sync(unsigned id, unsigned threads, emu_site site = emu_here()) { emu_named_barrier(id, threads, 0, true, site); }
EMU_INLINE void bar_arrive(unsigned id, unsigned threads, emu_site site = emu_here()) { emu_named_barrier(id, threads, 0, false, site); }
template <class T> EMU_INLINE void bar_red_or(T& result, unsigned id, unsigned threads, bool mine, emu_site site = emu_here()) {
    result = emu_named_barrier(id, threads, mine, true, site) != 0;
}
template <class T> EMU_INLINE void bar_red_and(T& result, unsigned id, unsigned threads, bool mine, emu_site site = emu_here()) {
    result = emu_named_barrier(id, threads, !mine, true, site) == 0;
}
template <class T> EMU_INLINE void bar_red_popc(T& result, unsigned id, unsigned threads, bool mine, emu_site site = emu_here()) {
    result = (T)emu_named_barrier(id, threads, mine, true, site);
}

// ---- mbarriers

EMU_INLINE void mbarrier_init(unsigned address, unsigned count, emu_site site = emu_here()) { emu_mbarrier_init(address, count, site); }
EMU_INLINE void mbarrier_invalidate(unsigned address, emu_site site = emu_here()) { emu_mbarrier_invalidate(address, site); }
template <class State> EMU_INLINE void mbarrier_arrive(State&& state, unsigned address, unsigned count = 1, emu_site site = emu_here()) {
    state = emu_mbarrier_arrive(address, count, 0, true, site);
}
template <class State> EMU_INLINE void mbarrier_arrive_not_last(State&& state, unsigned address, unsigned count = 1, emu_site site = emu_here()) {
    state = emu_mbarrier_arrive(address, count, 0, false, site);
}
template <class State> EMU_INLINE void mbarrier_arrive_expecting(State&& state, unsigned address, unsigned bytes, emu_site site = emu_here()) {
    state = emu_mbarrier_arrive(address, 1, bytes, true, site);
}
EMU_INLINE void mbarrier_expect(unsigned address, unsigned bytes, emu_site site = emu_here()) { emu_mbarrier_transfer(address, (int)bytes, site); }
EMU_INLINE void mbarrier_complete(unsigned address, unsigned bytes, emu_site site = emu_here()) { emu_mbarrier_transfer(address, -(int)bytes, site); }
template <bool waits> EMU_INLINE void mbarrier_wait_parity(bool& over, unsigned address, unsigned parity, emu_site site = emu_here()) {
    over = emu_mbarrier_test(address, parity, waits, site);
}
template <bool waits> EMU_INLINE void mbarrier_wait(bool& over, unsigned address, unsigned long long state, emu_site site = emu_here()) {
    over = emu_mbarrier_test(address, (unsigned)(state >> 63), waits, site);
}

// ---- the copy engine

EMU_INLINE void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier, emu_site site = emu_here()) {
    emu_bulk_copy(true, to, (void*)from, bytes, barrier, site);
}
EMU_INLINE void bulk_store(void* to, unsigned from, unsigned bytes, emu_site site = emu_here()) {
    emu_bulk_copy(false, from, to, bytes, 0, site);
}
template <size_t rank> EMU_INLINE void load_box(unsigned to, const void* map, const int (&at)[rank], unsigned barrier, emu_site site = emu_here()) {
    emu_bulk_box(true, to, map, at, rank, barrier, site);
}
template <size_t rank> EMU_INLINE void store_box(const void* map, const int (&at)[rank], unsigned from, emu_site site = emu_here()) {
    emu_bulk_box(false, from, map, at, rank, 0, site);
}
EMU_INLINE void bulk_commit() { emu_bulk_commit(); }
EMU_INLINE void bulk_wait(unsigned groups_in_flight) { emu_bulk_wait(groups_in_flight); }

// ---- registers

template <bool raises> EMU_INLINE void set_register_limit(unsigned registers, emu_site site = emu_here()) {
    (void)EMU_PLACE();
    if (registers < 24 || registers > 256 || registers % 8) emu_misuse("setmaxnreg takes a multiple of 8 from 24 to 256", site);
}

} }  // namespace emu::ptx
