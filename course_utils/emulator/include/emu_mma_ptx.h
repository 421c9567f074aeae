// mma.sync of the shapes and types that attention kernels use less: fp16 sums, tf32, fp64, and 8-bit integers.
#pragma once

namespace emu { namespace ptx {

// How an element of a register becomes a number: `bits` of it, `sum` what products are added in.
template <class Format> struct of_16_bits {
    typedef float sum;
    enum { bits = Format::bits };
    static EMU_INLINE float element(unsigned long long x) { return Format::widen((unsigned short)x); }
};
struct tf32 {
    typedef float sum;
    enum { bits = 32 };
    static EMU_INLINE float element(unsigned long long x) { return bit_cast<float>((unsigned)x & ~0x1fffu); }   // silicon reads no more
};
struct fp64 {
    typedef double sum;
    enum { bits = 64 };
    static EMU_INLINE double element(unsigned long long x) { return bit_cast<double>(x); }
};
template <class T> struct of_8_bits {
    typedef int sum;
    enum { bits = 8 };
    static EMU_INLINE int element(unsigned long long x) { return (T)x; }
};

// D[rows, 8] = A[rows, depth] B[depth, 8] + C. Lane = 4 * group + quad. A register of A or B holds `count` neighbours along the
// depth; the registers of A first go down by eight rows, then on by four times `count`.
template <int rows, int depth, class A, class B, class Word, class Sum> struct mma_lanes : emu_collective {
    static constexpr int count = 8 * sizeof(Word) / A::bits, a_registers = rows * depth / 32 / count, b_registers = depth / 4 / count;
    static constexpr int sums = rows / 4;
    Word a[a_registers], b[b_registers];
    Sum c[sums], d[sums];

    template <class Of> static EMU_INLINE typename Of::sum element(Word word, int i) {
        return Of::element((unsigned long long)word >> (Of::bits * i & 63) & (~0ull >> (64 - Of::bits)));
    }
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        if (participants != 0xffffffffu)
            emu_trap("mma.sync needs all 32 lanes of the warp, but some have exited", lanes[__builtin_ctz(participants)]->site);
        typename A::sum left[rows][depth], right[depth][8];
        for (int lane = 0; lane < 32; lane++) {
            const mma_lanes& mine = *(mma_lanes*)lanes[lane];
            const int group = lane >> 2, quad = lane & 3;
            for (int i = 0; i < a_registers; i++)
                for (int e = 0; e < count; e++)
                    left[group + (rows == 16 ? 8 * (i & 1) : 0)][count * quad + 4 * count * (rows == 16 ? i >> 1 : i) + e] = element<A>(mine.a[i], e);
            for (int i = 0; i < b_registers; i++)
                for (int e = 0; e < count; e++) right[count * quad + 4 * count * i + e][group] = element<B>(mine.b[i], e);
        }
        for (int lane = 0; lane < 32; lane++) {
            mma_lanes& mine = *(mma_lanes*)lanes[lane];
            for (int i = 0; i < sums; i++) {
                const int row = (lane >> 2) + 8 * (i >> 1), column = 2 * (lane & 3) + (i & 1);
                typename A::sum total = 0;
                for (int k = 0; k < depth; k++) {
                    if constexpr (A::bits == 8) total = (int)((unsigned)total + (unsigned)(left[row][k] * right[k][column]));
                    else total += left[row][k] * right[k][column];
                }
                if constexpr (A::bits == 8) mine.d[i] = (int)((unsigned)mine.c[i] + (unsigned)total);
                else mine.d[i] = mine.c[i] + total;
            }
        }
    }
};

template <int rows, int depth, class A, class B, class Word, class Sum>
EMU_INLINE void mma(Sum (&d)[rows / 4], const Word (&a)[rows * depth * A::bits / 256 / sizeof(Word)],
                    const Word (&b)[depth * A::bits / 32 / sizeof(Word)], const Sum (&c)[rows / 4], emu_site site = emu_here()) {
    mma_lanes<rows, depth, A, B, Word, Sum> mine;
    for (int i = 0; i < mine.a_registers; i++) mine.a[i] = a[i];
    for (int i = 0; i < mine.b_registers; i++) mine.b[i] = b[i];
    for (int i = 0; i < rows / 4; i++) mine.c[i] = c[i];
    collect(mine, "mma.sync", 0xffffffffu, site);
    for (int i = 0; i < rows / 4; i++) d[i] = mine.d[i];
}
// Sums of fp16: two in a register.
template <int rows, int depth, class A, class B>
EMU_INLINE void mma_of_halves(unsigned (&d)[rows / 8], const unsigned (&a)[rows * depth * A::bits / 1024],
                              const unsigned (&b)[depth * A::bits / 128], const unsigned (&c)[rows / 8], emu_site site = emu_here()) {
    float sums[rows / 4], results[rows / 4];
    for (int i = 0; i < rows / 4; i++) sums[i] = fp16_format::widen((unsigned short)(c[i / 2] >> 16 * (i & 1)));
    mma<rows, depth, A, B>(results, a, b, sums, site);
    for (int i = 0; i < rows / 8; i++)
        d[i] = (unsigned)fp16_format::round(results[2 * i]) | (unsigned)fp16_format::round(results[2 * i + 1]) << 16;
}

} }  // namespace emu::ptx
