// What sm_90a adds, for kernels whose header asks for it: products of a warpgroup, barriers in shared memory.
#pragma once

namespace emu { namespace ptx {

// ---- wgmma

// Where a factor lies in shared memory, as a descriptor says it: bits 0-13 the address, 16-29 and 32-45 the leading
// and the stride offset, each divided by 16; 49-51 the base offset: for a tile that does not begin at a multiple of
// eight rows, the row of 128 bytes at which its pattern does; 62-63 the swizzle: none, or rows of 128, 64 or 32 bytes
// whose chunks of 16 bytes change places. Source: PTX ISA, "Shared memory matrix layout"; found to be so on an H200.
struct factor {
    unsigned start, leading, stride, row_bytes, base;
    bool transposed;                          // neighbours are of one column of D, not of one sum
    unsigned element_bytes;

    // The shared address of number k of the sum for row (of A) or column (of B) n.
    unsigned address(unsigned n, unsigned k) const {
        const unsigned along = (transposed ? n : k) * element_bytes, across = transposed ? k : n;
        if (row_bytes == 16) {                // no swizzle: squares of 8 rows of 16 bytes
            const unsigned next = transposed ? stride : leading, below = transposed ? leading : stride;
            return start + along / 16 * next + across / 8 * below + across % 8 * 16 + along % 16;
        }
        const unsigned at = start + along / row_bytes * leading + across / 8 * stride + across % 8 * row_bytes;
        return emu_swizzled(at + along % row_bytes, row_bytes, base);
    }
};

inline EMU_UNSEEN factor factor_of(unsigned long long descriptor, bool transposed, unsigned element_bytes, emu_site site) {
    static const unsigned row_bytes[] = {16, 128, 64, 32};
    if (descriptor & 0x3ff1c000c000c000ull) emu_misuse(EMU_DESCRIPTOR_BITS, site);
    const unsigned base = (unsigned)(descriptor >> 49 & 7);
    return {(unsigned)(descriptor & 0x3fff) << 4, (unsigned)(descriptor >> 16 & 0x3fff) << 4,
            (unsigned)(descriptor >> 32 & 0x3fff) << 4, row_bytes[descriptor >> 62], base, transposed, element_bytes};
}

// The numbers of a factor: [count][depth] as floats, k by k if `by_k`.
template <class Format> EMU_UNSEEN void read_factor(const factor& from, unsigned count, unsigned depth, float sign, float* to,
                                                    bool by_k, emu_site site) {
    enum { bytes = Format::bits / 8, in_a_chunk = 16 / bytes };   // numbers that lie side by side, wherever a swizzle puts them
    const char* shared = (const char*)emu_shared_pointer(0);
    const size_t shared_bytes = emu_shared_bytes();
    const unsigned along = from.transposed ? count : depth, across = from.transposed ? depth : count;
    const unsigned of_n = by_k ? 1 : depth, of_k = by_k ? count : 1;   // from one number of `to` to its neighbour
    for (unsigned far = 0; far < across; far++)
        for (unsigned near = 0; near < along; near += in_a_chunk) {
            const unsigned n = from.transposed ? near : far, k = from.transposed ? far : near, at = from.address(n, k);
            if (at + 16 > shared_bytes) emu_misuse(EMU_DESCRIPTOR_PAST_SHARED, site);
            for (unsigned i = 0; i < in_a_chunk; i++) {
                unsigned number = 0;
                memcpy(&number, shared + at + i * bytes, bytes);
                to[n * of_n + k * of_k + i * (from.transposed ? of_n : of_k)] = sign * Format::widen(number);
            }
        }
}

// How silicon adds, found on an H200 (docs/validation.md). The products of one instruction and D before it are terms of
// one sum. An exponent of a product is the sum of its factors' exponents. All terms are cut, toward zero, to `fraction`
// bits behind the greatest exponent of them; they are added exactly; of the sum, the first `kept` bits stay.
template <int bits> struct sum_of { enum { fraction = 25, kept = 24 }; };
template <> struct sum_of<8> { enum { fraction = 13, kept = 14 }; };

// The exponents of numbers as powers of two: of those below the normal numbers, that of the least of these. 0: of 0.
template <class Real> EMU_INLINE void powers_of(const float* numbers, unsigned count, float least, Real* to) {
    typedef Real real8 __attribute__((vector_size(8 * sizeof(Real))));
    typedef float float8 __attribute__((vector_size(32), aligned(4)));
    typedef int int8 __attribute__((vector_size(32)));
    for (unsigned i = 0; i < count; i += 8) {
        const float8 x = *(const float8*)(numbers + i);
        float8 power = (float8)((int8)x & 0x7f800000);
        power = power > least ? power : power * 0 + least;
        *(real8*)(to + i) = __builtin_convertvector((float8)((int8)power & (x != 0)), real8);
    }
}
// Of terms that are not all finite: infinite, or no number.
inline EMU_UNSEEN float special_sum(const float* left, const float* right, unsigned step, int depth, float d) {
    double sum = d;
    for (int k = 0; k < depth; k++) sum += (double)left[k] * right[k * step];
    return isnan(sum) ? bit_cast<float>(0x7fffffffu) : (float)sum;
}

// One row of D = A B + D: left[depth], right[depth][n].
template <class Real, int bits>
EMU_INLINE void add_as_silicon(const float* left, const float* right, const Real* left_power, const Real* right_power,
                               unsigned n, float* d) {
    typedef Real real8 __attribute__((vector_size(8 * sizeof(Real))));
    typedef int int8 __attribute__((vector_size(32)));
    typedef float float8 __attribute__((vector_size(32)));
    typedef double double8 __attribute__((vector_size(64)));
    typedef long long long8 __attribute__((vector_size(64)));
    enum { depth = 256 / bits };
    constexpr double one = 1 << sum_of<bits>::fraction;
    constexpr long long first_bits = (long long)(~0ull << (53 - sum_of<bits>::kept)), sign_bit = (long long)(1ull << 63);
    for (unsigned column = 0; column < n; column += 8) {
        real8 greatest = {};
        for (int k = 0; k < depth; k++) {
            const real8 here = left_power[k] * *(const real8*)(right_power + k * n + column);
            greatest = here > greatest ? here : greatest;
        }
        float8& now = *(float8*)(d + column);
        float powers_of_d[8] __attribute__((aligned(32)));
        powers_of((const float*)&now, 8, 0x1p-126f, powers_of_d);
        const double8 power = __builtin_convertvector(greatest, double8);
        const double8 power_of_d = __builtin_convertvector(*(const float8*)powers_of_d, double8);
        const double8 unit = (power > power_of_d ? power : power_of_d) / one;   // of the last bit that terms keep
        const double8 units_of_1 = 1 / unit;                                    // exact: powers of two
        const real8 scales = __builtin_convertvector((double8)((long8)units_of_1 & (long8)(power > 0)), real8);
        int8 sum = {};
        for (int k = 0; k < depth; k++) {
            const float8 b = *(const float8*)(right + k * n + column);
            sum += __builtin_convertvector((Real)left[k] * __builtin_convertvector(b, real8) * scales, int8);
        }
        const int8 of_d = __builtin_convertvector(__builtin_convertvector(now, double8) * units_of_1, int8);
        const double8 whole = __builtin_convertvector(sum, double8) + __builtin_convertvector(of_d, double8);
        const double8 kept = (double8)((long8)whole & first_bits) * unit;
        const float8 nearest = __builtin_convertvector(kept, float8);
        const double8 size = (double8)((long8)kept & ~sign_bit);
        const double8 size_of_nearest = (double8)((long8)__builtin_convertvector(nearest, double8) & ~sign_bit);
        const int8 toward_zero = (int8)nearest + __builtin_convertvector((long8)(size_of_nearest > size), int8);
        now = (float8)(toward_zero & __builtin_convertvector((long8)(unit != 0), int8));   // 0, also of -0
    }
}
template <class Real, int bits>
EMU_UNSEEN void add_rows(const float* left, const float* right, float least_left, float least_right, unsigned n, float* d) {
    enum { depth = 256 / bits };
    Real left_power[16 * depth] __attribute__((aligned(64))), right_power[depth * 256] __attribute__((aligned(64)));
    powers_of(left, 16 * depth, least_left, left_power);
    powers_of(right, depth * n, least_right, right_power);
    for (int row = 0; row < 16; row++)
        add_as_silicon<Real, bits>(left + row * depth, right, left_power + row * depth, right_power, n, d + 256 * row);
}
// Whether all are finite; and how far their exponents are from 0, at most. Eight at a time.
inline EMU_UNSEEN bool look_through(const float* numbers, unsigned count, int& furthest) {
    typedef float float8 __attribute__((vector_size(32), aligned(4)));
    typedef int int8 __attribute__((vector_size(32)));
    const int8 zeros = {};
    int8 most = zeros + (127 << 23), least = most;
    for (unsigned i = 0; i < count; i += 8) {
        const float8 x = *(const float8*)(numbers + i);
        const int8 exponent = (int8)x & 0x7f800000, of_one = zeros + (127 << 23), seen = x == 0 ? of_one : exponent;
        most = seen > most ? seen : most;
        least = seen < least ? seen : least;
    }
    bool finite = true;
    for (int i = 0; i < 8; i++) {
        finite &= most[i] != 255 << 23;
        if ((most[i] >> 23) - 127 > furthest) furthest = (most[i] >> 23) - 127;
        if (127 - (least[i] >> 23) > furthest) furthest = 127 - (least[i] >> 23);
    }
    return finite;
}

EMU_INLINE float& number_of_d(const emu_wgmma& p, unsigned lane, unsigned i) {
    return p.side_by_side ? p.d[lane][i] : *p.d[lane * (p.n / 2) + i];
}

// Sixteen rows of D = A B + D. Lane 4 g + t has rows g and g + 8, and of each eight columns 2 t and 2 t + 1, as with mma.sync.
template <class Left, class Right> EMU_UNSEEN void multiply_rows(const emu_wgmma* product) {
    enum { bits = Left::bits, count = 32 / bits, depth = 8 * count };
    float left[16][depth], right[depth * 256] __attribute__((aligned(64))), out[16][256] __attribute__((aligned(32)));
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
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < n / 2; i++)
            out[(lane >> 2) + 8 * (i >> 1 & 1)][i / 4 * 8 + 2 * (lane & 3) + (i & 1)] = p.add ? number_of_d(p, lane, i) : 0;
    int furthest = 0;
    bool finite = look_through(left[0], 16 * depth, furthest) & look_through(right, depth * n, furthest);
    for (int row = 0; row < 16; row++) {
        int ignored = 0;
        finite &= look_through(out[row], n, ignored);
    }
    if (p.exact) {
        for (int row = 0; row < 16; row++)
            for (unsigned column = 0; column < n; column++) {
                double sum = out[row][column];
                for (int k = 0; k < depth; k++) sum += (double)left[row][k] * right[k * n + column];
                out[row][column] = (float)sum;
            }
    } else {
        float before[16][256];
        if (!finite) memcpy(before, out, sizeof before);
        if (furthest < 48) add_rows<float, bits>(left[0], right, Left::least, Right::least, n, out[0]);
        else add_rows<double, bits>(left[0], right, Left::least, Right::least, n, out[0]);
        for (int row = 0; row < 16 && !finite; row++)
            for (unsigned column = 0; column < n; column++) {
                int ignored = 0;
                bool plain = isfinite(before[row][column]) && look_through(left[row], depth, ignored);
                for (int k = 0; k < depth; k++) plain &= isfinite(right[k * n + column]);
                if (!plain) out[row][column] = special_sum(left[row], right + column, n, depth, before[row][column]);
            }
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < n / 2; i++)
            number_of_d(p, lane, i) = out[(lane >> 2) + 8 * (i >> 1 & 1)][i / 4 * 8 + 2 * (lane & 3) + (i & 1)];
}

// The 16 bytes that a warp reads: rows of A that are its own, and all of B.
inline EMU_UNSEEN unsigned list_chunks(const factor& from, unsigned first, unsigned count, unsigned depth, unsigned* to, emu_site site) {
    unsigned listed = 0;
    const unsigned step = 16 / from.element_bytes;
    for (unsigned n = first; n < first + count; n += from.transposed ? step : 1)
        for (unsigned k = 0; k < depth; k += from.transposed ? 1 : step) {
            to[listed] = from.address(n, k);
            if (to[listed++] + 16 > emu_shared_bytes()) emu_misuse(EMU_DESCRIPTOR_PAST_SHARED, site);
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
        emu_misuse(EMU_NEEDS_ALL_LANES, lanes[__builtin_ctz(participants)]->site, {}, "wgmma");
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
                emu_misuse(EMU_DIFFERENT_DESCRIPTORS, lanes[lane]->site);
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
    mine.product = {multiply_rows<Left, Right>, site, 2 * size, 256 / Left::bits, emu_self()->warp % 4, d, false};
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

EMU_INLINE void mbarrier_init(unsigned address, unsigned count, emu_site site = emu_here()) {
    emu_mbarrier_init(address, count, site);
}
EMU_INLINE void mbarrier_invalidate(unsigned address, emu_site site = emu_here()) {
    emu_mbarrier_invalidate(address, site);
}
template <bool releases, class State>
EMU_INLINE void mbarrier_arrive(State&& state, unsigned address, unsigned count = 1, emu_site site = emu_here()) {
    state = emu_mbarrier_arrive(address, count, 0, true, releases, site);
}
template <class State>
EMU_INLINE void mbarrier_arrive_not_last(State&& state, unsigned address, unsigned count = 1, emu_site site = emu_here()) {
    state = emu_mbarrier_arrive(address, count, 0, false, true, site);
}
template <bool releases, class State>
EMU_INLINE void mbarrier_arrive_expecting(State&& state, unsigned address, unsigned bytes, emu_site site = emu_here()) {
    state = emu_mbarrier_arrive(address, 1, bytes, true, releases, site);
}
template <bool releases, class State>
EMU_INLINE void mbarrier_drop(State&& state, unsigned address, unsigned count = 1, emu_site site = emu_here()) {
    state = emu_mbarrier_drop(address, count, releases, site);
}
EMU_INLINE void mbarrier_pending(unsigned& count, unsigned long long state) { count = emu_mbarrier_pending(state); }
EMU_INLINE void mbarrier_expect(unsigned address, unsigned bytes, emu_site site = emu_here()) {
    emu_mbarrier_transfer(address, (int)bytes, site);
}
EMU_INLINE void mbarrier_complete(unsigned address, unsigned bytes, emu_site site = emu_here()) {
    emu_mbarrier_transfer(address, -(int)bytes, site);
}
template <bool waits>
EMU_INLINE void mbarrier_wait_parity(bool& over, unsigned address, unsigned parity, emu_site site = emu_here()) {
    over = emu_mbarrier_test(address, parity, waits, site);
}
template <bool waits>
EMU_INLINE void mbarrier_wait(bool& over, unsigned address, unsigned long long state, emu_site site = emu_here()) {
    over = emu_mbarrier_test(address, (unsigned)(state >> 63), waits, site);
}
// An arrival once the thread's copies by cp.async are done; `expects`: the barrier's initial count does not include it.
template <bool expects> EMU_INLINE void copies_arrive(unsigned address, emu_site site = emu_here()) {
    emu_copies_arrive(address, expects, site);
}

// ---- the copy engine

EMU_INLINE void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier, unsigned blocks = 0,
                          emu_site site = emu_here()) {
    emu_bulk_more more = {};
    more.blocks = blocks;
    emu_bulk_copy(true, to, (void*)from, bytes, barrier, more, site);
}
EMU_INLINE void bulk_between(unsigned to, unsigned from, unsigned bytes, unsigned barrier, emu_site site = emu_here()) {
    emu_bulk_between(to, from, bytes, barrier, site);
}
EMU_INLINE void bulk_store(void* to, unsigned from, unsigned bytes, emu_site site = emu_here()) {
    emu_bulk_copy(false, from, to, bytes, 0, emu_bulk_more{}, site);
}
EMU_INLINE void bulk_prefetch(const void* from, unsigned bytes, emu_site site = emu_here()) {
    (void)EMU_PLACE();
    if (bytes == 0 || bytes % 16 || (size_t)from % 16) emu_misuse(EMU_PREFETCH_SIZE, site);
    EMU_TOUCH(from, bytes, EMU_TOUCH_PREFETCH);
}
template <size_t rank>
EMU_INLINE void load_box(unsigned to, const void* map, const int (&at)[rank], unsigned barrier, unsigned blocks = 0,
                         emu_site site = emu_here()) {
    emu_bulk_more more = {};
    more.blocks = blocks;
    emu_bulk_box(true, to, map, at, rank, barrier, more, site);
}
template <size_t rank>
EMU_INLINE void store_box(const void* map, const int (&at)[rank], unsigned from, emu_site site = emu_here()) {
    emu_bulk_box(false, from, map, at, rank, 0, emu_bulk_more{}, site);
}
template <size_t rank>
EMU_INLINE void prefetch_box(const void* map, const int (&at)[rank], emu_site site = emu_here()) {
    emu_check_map(map, rank, at, site);
}
EMU_INLINE void prefetch_map(const void* map, emu_site site = emu_here()) { emu_check_map(map, 0, nullptr, site); }
EMU_INLINE void bulk_commit() { emu_bulk_commit(); }
EMU_INLINE void bulk_wait(unsigned groups_in_flight) { emu_bulk_wait(groups_in_flight, false); }
EMU_INLINE void bulk_wait_read(unsigned groups_in_flight) { emu_bulk_wait(groups_in_flight, true); }

// What a store does to each element in memory, where it does not just take its place.
template <class Format> struct bits16 { unsigned short bits; };
typedef bits16<fp16_format> half_bits;
typedef bits16<bf16_format> bfloat_bits;
template <class T> EMU_INLINE T number(T x) { return x; }
template <class F> EMU_INLINE float number(bits16<F> x) { return F::widen(x.bits); }
template <class T, class Number> struct rounded {
    static EMU_INLINE T from(Number x) { return (T)x; }
};
template <class F, class Number> struct rounded<bits16<F>, Number> {
    static EMU_INLINE bits16<F> from(Number x) { return {F::round((float)x)}; }
};
template <class T> EMU_INLINE T whole_number(T x) { return x; }   // of what has no bits to count with: not called
EMU_INLINE long long whole_number(float x) { return (long long)x; }
EMU_INLINE long long whole_number(double x) { return (long long)x; }
#define EMU_OPERATION(name, expression)                                                                        \
    struct op_##name {                                                                                         \
        template <class N> static EMU_INLINE N apply(N old, N by) {                                            \
            (void)old, (void)by;                                                                               \
            return (N)(expression);                                                                            \
        }                                                                                                      \
    };
EMU_OPERATION(add, old + by)
EMU_OPERATION(min, by < old ? by : old)
EMU_OPERATION(max, old < by ? by : old)
EMU_OPERATION(and, whole_number(old) & whole_number(by))
EMU_OPERATION(or, whole_number(old) | whole_number(by))
EMU_OPERATION(xor, whole_number(old) ^ whole_number(by))
EMU_OPERATION(inc, old >= by ? N() : old + 1)
EMU_OPERATION(dec, old == N() || old > by ? by : old - 1)
#undef EMU_OPERATION
template <class T, class Operation> EMU_UNSEEN void combine_numbers(void* to, const void* from) {
    T old, by;
    memcpy(&old, to, sizeof old), memcpy(&by, from, sizeof by);
    typedef decltype(number(old)) Number;
    const T now = rounded<T, Number>::from(Operation::template apply<Number>(number(old), number(by)));
    memcpy(to, &now, sizeof now);
}
template <class T, class Operation>
EMU_INLINE void bulk_add(void* to, unsigned from, unsigned bytes, emu_site site = emu_here()) {
    const emu_combine combine = combine_numbers<T, Operation>;
    emu_bulk_more more = {};
    more.combine = &combine, more.element_bytes = sizeof(T);
    emu_bulk_copy(false, from, to, bytes, 0, more, site);
}
template <class Operation, size_t rank>
EMU_INLINE void add_box(const void* map, const int (&at)[rank], unsigned from, emu_site site = emu_here()) {
    static const emu_combine by_type[16] = {   // as the driver numbers the types: toolchain/tensor_map.py
        nullptr, nullptr, nullptr, combine_numbers<int, Operation>, nullptr, combine_numbers<long long, Operation>,
        combine_numbers<half_bits, Operation>, combine_numbers<float, Operation>, nullptr, nullptr,
        combine_numbers<bfloat_bits, Operation>};
    emu_bulk_more more = {};
    more.combine = by_type;
    emu_bulk_box(false, from, map, at, rank, 0, more, site);
}

// ---- a warp

// elect.sync leader|elected, mask: the lowest lane of those that there are.
struct elect_lanes : emu_collective {
    unsigned leader;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        const unsigned first = (unsigned)__builtin_ctz(participants);
        while (participants) ((elect_lanes*)lanes[take_lane(participants)])->leader = first;
    }
};
template <class Leader>
EMU_INLINE void elect(Leader&& leader, bool& elected, unsigned mask, emu_site site = emu_here()) {
    elect_lanes mine;
    collect(mine, "elect.sync", mask, site);
    leader = mine.leader, elected = mine.leader == lane();
}

// stmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane 8 m + r brings the address of row r of matrix m.
template <int count, bool transposed> struct stmatrix_lanes : emu_collective {
    unsigned address, given[count];
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        if (participants != 0xffffffffu)
            emu_misuse(EMU_NEEDS_ALL_LANES, lanes[__builtin_ctz(participants)]->site, {}, "stmatrix");
        for (int matrix = 0; matrix < count; matrix++) {
            unsigned short m[8][8];
            for (int lane = 0; lane < 32; lane++)
                for (int half = 0; half < 2; half++) {
                    const int i = lane >> 2, j = 2 * (lane & 3) + half;
                    (transposed ? m[j][i] : m[i][j]) =
                        (unsigned short)(((stmatrix_lanes*)lanes[lane])->given[matrix] >> 16 * half);
                }
            for (int row = 0; row < 8; row++) {
                const stmatrix_lanes* to = (stmatrix_lanes*)lanes[8 * matrix + row];
                if (to->address % 16) emu_trap("stmatrix: a row begins at a multiple of 16 bytes", to->site);
                memcpy(emu_shared_pointer(to->address), m[row], 16);
            }
        }
    }
};
template <bool transposed, class... Registers>
EMU_INLINE void stmatrix_of(unsigned address, emu_site site, Registers... registers) {
    (void)EMU_PLACE();
    stmatrix_lanes<sizeof...(registers), transposed> mine = {};
    mine.address = address;
    if (lane() < 8 * sizeof...(registers)) EMU_TOUCH(emu_shared_pointer(address), 16, EMU_TOUCH_WRITE);
    int n = 0;
    ((mine.given[n++] = registers), ...);
    collect(mine, "stmatrix", 0xffffffffu, site);
}
template <bool transposed> EMU_INLINE void stmatrix(unsigned address, unsigned r0, emu_site site = emu_here()) {
    stmatrix_of<transposed>(address, site, r0);
}
template <bool transposed>
EMU_INLINE void stmatrix(unsigned address, unsigned r0, unsigned r1, emu_site site = emu_here()) {
    stmatrix_of<transposed>(address, site, r0, r1);
}
template <bool transposed>
EMU_INLINE void stmatrix(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3, emu_site site = emu_here()) {
    stmatrix_of<transposed>(address, site, r0, r1, r2, r3);
}

// ---- clusters

EMU_INLINE void map_to_block(unsigned& there, unsigned address, unsigned rank, emu_site site = emu_here()) {
    there = emu_map_to_block(address, rank, site);
}
template <class There, class Pointer>
EMU_INLINE void map_to_block(There& there, Pointer here, unsigned rank, emu_site site = emu_here()) {
    there = (There)emu_shared_pointer(emu_map_to_block(emu_shared_offset((const void*)here), rank, site));
}
EMU_INLINE void rank_of(unsigned& rank, unsigned address) { rank = emu_rank_of(address); }
template <class T, class... Values> EMU_INLINE void store_async_of(unsigned to, unsigned barrier, emu_site site, Values... values) {
    const T all[] = {get<T>(values)...};
    emu_store_async(to, all, sizeof all, barrier, site);
}
template <class T, class V> EMU_INLINE void store_async(unsigned to, unsigned barrier, V v, emu_site site = emu_here()) {
    store_async_of<T>(to, barrier, site, v);
}
template <class T, class V>
EMU_INLINE void store_async(unsigned to, unsigned barrier, V v0, V v1, emu_site site = emu_here()) {
    store_async_of<T>(to, barrier, site, v0, v1);
}
template <class T, class V>
EMU_INLINE void store_async(unsigned to, unsigned barrier, V v0, V v1, V v2, V v3, emu_site site = emu_here()) {
    store_async_of<T>(to, barrier, site, v0, v1, v2, v3);
}
EMU_INLINE void cluster_arrive(emu_site site = emu_here()) { emu_cluster_arrive(site); }
EMU_INLINE void cluster_wait(emu_site site = emu_here()) { emu_cluster_wait(site); }

// ---- registers

EMU_INLINE void set_register_limit(unsigned registers, emu_site site = emu_here()) {
    (void)EMU_PLACE();
    if (registers < 24 || registers > 256 || registers % 8) emu_misuse(EMU_REGISTER_COUNT, site);
    emu_set_registers(registers, site);
}

} }  // namespace emu::ptx
