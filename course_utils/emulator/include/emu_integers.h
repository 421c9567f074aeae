// Integer intrinsics of the CUDA Math API: products of bytes, averages, sums of differences, and the instructions that treat
// a word as two or four small integers ("SIMD intrinsics").
#pragma once

EMU_INLINE long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
EMU_INLINE int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
EMU_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
EMU_INLINE unsigned __sad(int a, int b, unsigned c) { return c + (a < b ? (unsigned)b - (unsigned)a : (unsigned)a - (unsigned)b); }
EMU_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
// The n-th bit that is set in the mask, counted from bit `base` upwards, or, for a negative n, downwards.
EMU_INLINE unsigned __fns(unsigned mask, unsigned base, int n) {
    if (n == 0) return base < 32 && mask >> base & 1 ? base : 0xffffffffu;
    for (int bit = (int)base; bit >= 0 && bit < 32; bit += n > 0 ? 1 : -1)
        if (mask >> bit & 1 && (n > 0 ? --n : ++n) == 0) return (unsigned)bit;
    return 0xffffffffu;
}
EMU_INLINE int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
EMU_INLINE int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
EMU_INLINE unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
EMU_INLINE unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }
EMU_INLINE unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
EMU_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
EMU_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

namespace emu {

// Lane i of a word that is as many integers of type T as fit.
template <class T> EMU_INLINE auto part(unsigned word, int i) { return (T)(word >> 8 * sizeof(T) * i); }

template <class T> EMU_INLINE auto saturated(int x) {
    constexpr bool is_signed = (T)-1 < (T)0;
    constexpr int bits = 8 * sizeof(T), high = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1, low = is_signed ? -high - 1 : 0;
    return x < low ? low : x > high ? high : x;
}
EMU_INLINE int magnitude(int x) { return x < 0 ? -x : x; }

template <class A, class B> EMU_INLINE auto products4(unsigned a, unsigned b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; i++) sum += (unsigned)((int)part<A>(a, i) * (int)part<B>(b, i));
    return (int)sum;
}
template <class A, class B> EMU_INLINE auto products2(unsigned a, unsigned b, int c, int first) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 2; i++) sum += (unsigned)((int)part<A>(a, i) * (int)part<B>(b, first + i));
    return (int)sum;
}
template <class Vector> EMU_INLINE auto word_of(Vector v) {
    static_assert(sizeof v == 4, "a vector of 32 bits");
    return bit_cast<unsigned>(v);
}

}  // namespace emu

EMU_INLINE int __dp4a(int a, int b, int c) { return emu::products4<signed char, signed char>((unsigned)a, (unsigned)b, c); }
EMU_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return (unsigned)emu::products4<unsigned char, unsigned char>(a, b, (int)c);
}
EMU_INLINE int __dp4a(char4 a, char4 b, int c) { return __dp4a((int)emu::word_of(a), (int)emu::word_of(b), c); }
EMU_INLINE unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) { return __dp4a(emu::word_of(a), emu::word_of(b), c); }
#define EMU_DP2A(name, first)                                                                                               \
    EMU_INLINE int name(int a, int b, int c) { return emu::products2<short, signed char>((unsigned)a, (unsigned)b, c, first); } \
    EMU_INLINE unsigned name(unsigned a, unsigned b, unsigned c) {                                                          \
        return (unsigned)emu::products2<unsigned short, unsigned char>(a, b, (int)c, first);                                \
    }                                                                                                                       \
    EMU_INLINE int name(short2 a, char4 b, int c) { return name((int)emu::word_of(a), (int)emu::word_of(b), c); }           \
    EMU_INLINE unsigned name(ushort2 a, uchar4 b, unsigned c) { return name(emu::word_of(a), emu::word_of(b), c); }
EMU_DP2A(__dp2a_lo, 0)
EMU_DP2A(__dp2a_hi, 2)
#undef EMU_DP2A

// Two or four small integers of a word: x and y are one of each, signed or not.
#define EMU_EACH(name, T, expression)                                                                                       \
    EMU_INLINE unsigned name(unsigned a, unsigned b) {                                                                      \
        unsigned result = 0;                                                                                                \
        for (int i = 0; i < (int)(4 / sizeof(T)); i++) {                                                                    \
            const int x = emu::part<T>(a, i), y = emu::part<T>(b, i);                                                       \
            result |= ((unsigned)(expression) & ((1u << 8 * sizeof(T)) - 1)) << 8 * sizeof(T) * i;                          \
        }                                                                                                                   \
        return result;                                                                                                      \
    }
#define EMU_EACH_ALONE(name, T, expression)                                                                                 \
    EMU_INLINE unsigned name(unsigned a) {                                                                                  \
        unsigned result = 0;                                                                                                \
        for (int i = 0; i < (int)(4 / sizeof(T)); i++) {                                                                    \
            const int x = emu::part<T>(a, i);                                                                               \
            result |= ((unsigned)(expression) & ((1u << 8 * sizeof(T)) - 1)) << 8 * sizeof(T) * i;                          \
        }                                                                                                                   \
        return result;                                                                                                      \
    }
#define EMU_SMALL(n, S, U)                                                                                                  \
    EMU_EACH(__vadd##n, U, x + y) EMU_EACH(__vsub##n, U, x - y)                                                             \
    EMU_EACH(__vaddss##n, S, emu::saturated<S>(x + y)) EMU_EACH(__vaddus##n, U, emu::saturated<U>(x + y))                   \
    EMU_EACH(__vsubss##n, S, emu::saturated<S>(x - y)) EMU_EACH(__vsubus##n, U, emu::saturated<U>(x - y))                   \
    EMU_EACH_ALONE(__vabs##n, S, emu::magnitude(x)) EMU_EACH_ALONE(__vabsss##n, S, emu::saturated<S>(emu::magnitude(x)))    \
    EMU_EACH_ALONE(__vneg##n, S, -x) EMU_EACH_ALONE(__vnegss##n, S, emu::saturated<S>(-x))                                  \
    EMU_EACH(__vabsdiffs##n, S, emu::magnitude(x - y)) EMU_EACH(__vabsdiffu##n, U, emu::magnitude(x - y))                   \
    EMU_EACH(__vavgs##n, S, (x + y + (x + y >= 0)) >> 1) EMU_EACH(__vavgu##n, U, (x + y + 1) >> 1)                          \
    EMU_EACH(__vhaddu##n, U, (x + y) >> 1)                                                                                  \
    EMU_EACH(__vmaxs##n, S, x < y ? y : x) EMU_EACH(__vmaxu##n, U, x < y ? y : x)                                           \
    EMU_EACH(__vmins##n, S, y < x ? y : x) EMU_EACH(__vminu##n, U, y < x ? y : x)                                           \
    EMU_COMPARED(eq, n, U, x == y) EMU_COMPARED(ne, n, U, x != y)                                                           \
    EMU_COMPARED(ges, n, S, x >= y) EMU_COMPARED(geu, n, U, x >= y) EMU_COMPARED(gts, n, S, x > y)                          \
    EMU_COMPARED(gtu, n, U, x > y) EMU_COMPARED(les, n, S, x <= y) EMU_COMPARED(leu, n, U, x <= y)                          \
    EMU_COMPARED(lts, n, S, x < y) EMU_COMPARED(ltu, n, U, x < y)                                                           \
    EMU_SUMMED(__vsads##n, n, S) EMU_SUMMED(__vsadu##n, n, U)
#define EMU_COMPARED(name, n, T, condition)                                                                                 \
    EMU_EACH(__vcmp##name##n, T, (condition) ? -1 : 0) EMU_EACH(__vset##name##n, T, (condition) ? 1 : 0)
#define EMU_SUMMED(name, n, T)                                                                                              \
    EMU_INLINE unsigned name(unsigned a, unsigned b) {                                                                      \
        unsigned sum = 0;                                                                                                   \
        for (int i = 0; i < n; i++) sum += (unsigned)emu::magnitude((int)emu::part<T>(a, i) - (int)emu::part<T>(b, i));     \
        return sum;                                                                                                         \
    }
EMU_SMALL(2, short, unsigned short)
EMU_SMALL(4, signed char, unsigned char)
#undef EMU_SMALL

// The instructions of DPX: of three numbers, or of a sum and a third; `relu`: at least 0; `vib`: says which of the two it is.
namespace emu {
template <class T> EMU_INLINE auto both(unsigned a, unsigned b, unsigned c, T (*f)(T, T, T)) {
    const unsigned low = (unsigned short)f(part<T>(a, 0), part<T>(b, 0), part<T>(c, 0));
    return low | (unsigned)(unsigned short)f(part<T>(a, 1), part<T>(b, 1), part<T>(c, 1)) << 16;
}
template <class T> EMU_INLINE auto greater(T a, T b) { return a < b ? b : a; }
template <class T> EMU_INLINE auto lesser(T a, T b) { return b < a ? b : a; }
template <class T> EMU_INLINE auto sum(T a, T b) { return (T)((unsigned)a + (unsigned)b); }
}
#define EMU_DPX(T, type, name, expression)                                                                                  \
    EMU_INLINE T name##type(T a, T b, T c) { return expression; }
#define EMU_DPX_PAIR(T, type, name, expression)                                                                             \
    EMU_INLINE unsigned name##type(unsigned x, unsigned y, unsigned z) {                                                    \
        return emu::both<T>(x, y, z, [](T a, T b, T c) -> T { return expression; });                                        \
    }
#define EMU_OF_THREE(make, T, type)                                                                                         \
    make(T, type, __viaddmax_, emu::greater(emu::sum(a, b), c)) make(T, type, __viaddmin_, emu::lesser(emu::sum(a, b), c))  \
    make(T, type, __vimax3_, emu::greater(emu::greater(a, b), c)) make(T, type, __vimin3_, emu::lesser(emu::lesser(a, b), c))
#define EMU_RELU(make, T, type)                                                                                             \
    make(T, type##_relu, __viaddmax_, emu::greater(emu::greater(emu::sum(a, b), c), (T)0))                                  \
    make(T, type##_relu, __viaddmin_, emu::greater(emu::lesser(emu::sum(a, b), c), (T)0))                                   \
    make(T, type##_relu, __vimax3_, emu::greater(emu::greater(emu::greater(a, b), c), (T)0))                                \
    make(T, type##_relu, __vimin3_, emu::greater(emu::lesser(emu::lesser(a, b), c), (T)0))
EMU_OF_THREE(EMU_DPX, int, s32) EMU_OF_THREE(EMU_DPX, unsigned, u32) EMU_RELU(EMU_DPX, int, s32)
EMU_OF_THREE(EMU_DPX_PAIR, short, s16x2) EMU_OF_THREE(EMU_DPX_PAIR, unsigned short, u16x2) EMU_RELU(EMU_DPX_PAIR, short, s16x2)
#undef EMU_DPX
#undef EMU_DPX_PAIR
#undef EMU_OF_THREE
#undef EMU_RELU
EMU_INLINE int __vimax_s32_relu(int a, int b) { return __vimax3_s32(a, b, 0); }
EMU_INLINE int __vimin_s32_relu(int a, int b) { return __vimin3_s32_relu(a, b, b); }
EMU_INLINE unsigned __vimax_s16x2_relu(unsigned a, unsigned b) { return __vimax3_s16x2(a, b, 0); }
EMU_INLINE unsigned __vimin_s16x2_relu(unsigned a, unsigned b) { return __vimin3_s16x2_relu(a, b, b); }
#define EMU_CHOICE(T, type, name, holds)                                                                                    \
    EMU_INLINE T name##type(T a, T b, bool* first) { return (*first = a holds b) ? a : b; }
#define EMU_CHOICES(T, type, name, holds)                                                                                   \
    EMU_INLINE unsigned name##type(unsigned a, unsigned b, bool* high, bool* low) {                                         \
        *high = emu::part<T>(a, 1) holds emu::part<T>(b, 1), *low = emu::part<T>(a, 0) holds emu::part<T>(b, 0);            \
        return ((*high ? a : b) & 0xffff0000u) | ((*low ? a : b) & 0xffffu);                                                \
    }
EMU_CHOICE(int, s32, __vibmax_, >=) EMU_CHOICE(int, s32, __vibmin_, <=)
EMU_CHOICE(unsigned, u32, __vibmax_, >=) EMU_CHOICE(unsigned, u32, __vibmin_, <=)
EMU_CHOICES(short, s16x2, __vibmax_, >=) EMU_CHOICES(short, s16x2, __vibmin_, <=)
EMU_CHOICES(unsigned short, u16x2, __vibmax_, >=) EMU_CHOICES(unsigned short, u16x2, __vibmin_, <=)
#undef EMU_CHOICE
#undef EMU_CHOICES
#undef EMU_COMPARED
#undef EMU_SUMMED
#undef EMU_EACH
#undef EMU_EACH_ALONE
