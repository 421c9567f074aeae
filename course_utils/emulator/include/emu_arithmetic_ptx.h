// PTX that computes: each instruction as a function of the type that its name ends with. arithmetic_ptx.py gives them registers
// of any C++ type, by get() and put().
#pragma once

namespace emu { namespace ptx { namespace compute {

typedef scalar16<fp16_format> f16;
typedef scalar16<bf16_format> bf16;
typedef pair16<fp16_format> f16x2;
typedef pair16<bf16_format> bf16x2;
typedef unsigned long long u64;

template <class T> constexpr bool is_integer = false;
template <> constexpr bool is_integer<signed char> = true;
template <> constexpr bool is_integer<unsigned char> = true;
template <> constexpr bool is_integer<short> = true;
template <> constexpr bool is_integer<unsigned short> = true;
template <> constexpr bool is_integer<int> = true;
template <> constexpr bool is_integer<unsigned> = true;
template <> constexpr bool is_integer<long long> = true;
template <> constexpr bool is_integer<unsigned long long> = true;
template <class T> constexpr bool is_signed = (T)-1 < (T)0;
template <class T> constexpr T greatest = is_signed<T> ? (T)(((u64)1 << (8 * sizeof(T) - 1)) - 1) : (T)-1;
template <class T> constexpr T least = is_signed<T> ? (T)((u64)1 << (8 * sizeof(T) - 1)) : (T)0;

EMU_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }   // .ftz
EMU_INLINE float saturate(float x) { return __saturatef(x); }                                        // .sat
EMU_INLINE double saturate(double x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
template <class F> EMU_INLINE scalar16<F> saturate(scalar16<F> x) { return scalar16<F>(__saturatef((float)x)); }
template <class F> EMU_INLINE pair16<F> saturate(pair16<F> x) { return {saturate(x.x), saturate(x.y)}; }

// What wraps is computed in 64 bits without a sign.
#define EMU_WRAPS(name, op)                                                                                                 \
    template <class T> EMU_INLINE T name(T a, T b) {                                                                        \
        if constexpr (is_integer<T>) return (T)((u64)a op (u64)b);                                                          \
        else return a op b;                                                                                                 \
    }
EMU_WRAPS(add, +) EMU_WRAPS(sub, -) EMU_WRAPS(mul, *)
#undef EMU_WRAPS
// Of longer numbers: with what was carried or borrowed before (`in`: addc, subc), and for what comes behind (`out`: .cc).
#define EMU_CARRIES(name, op)                                                                                               \
    template <bool in, bool out, class T> EMU_UNSEEN inline T name##_carrying(T a, T b) {                                   \
        const u64 mask = ~0ull >> (64 - 8 * sizeof(T));                                                                     \
        const unsigned __int128 all = (unsigned __int128)((u64)a & mask) op ((u64)b & mask) op (in ? emu_self()->carry : 0u); \
        if (out) emu_self()->carry = (unsigned)(all >> 8 * sizeof(T)) & 1;                                                  \
        return (T)all;                                                                                                      \
    }
EMU_CARRIES(add, +) EMU_CARRIES(sub, -)
#undef EMU_CARRIES
EMU_INLINE int clamped(long long x) { return x > 0x7fffffff ? 0x7fffffff : x < -0x7fffffff - 1 ? -0x7fffffff - 1 : (int)x; }
EMU_INLINE int add_saturated(int a, int b) { return clamped((long long)a + b); }
EMU_INLINE int sub_saturated(int a, int b) { return clamped((long long)a - b); }
template <class T> EMU_INLINE T mul_hi(T a, T b) {
    if constexpr (is_signed<T>) return (T)((__int128)a * b >> 8 * sizeof(T));
    else return (T)((unsigned __int128)a * b >> 8 * sizeof(T));
}
EMU_INLINE int mul_wide(short a, short b) { return (int)a * b; }
EMU_INLINE unsigned mul_wide(unsigned short a, unsigned short b) { return (unsigned)a * b; }
EMU_INLINE long long mul_wide(int a, int b) { return (long long)a * b; }
EMU_INLINE u64 mul_wide(unsigned a, unsigned b) { return (u64)a * b; }
template <class T> EMU_INLINE T mad(T a, T b, T c) { return add(mul(a, b), c); }
template <class T> EMU_INLINE T mad_hi(T a, T b, T c) { return add(mul_hi(a, b), c); }
template <class T, class Wide> EMU_INLINE Wide mad_wide(T a, T b, Wide c) { return add((Wide)mul_wide(a, b), c); }
EMU_INLINE int mul24(int a, int b) { return __mul24(a, b); }
EMU_INLINE unsigned mul24(unsigned a, unsigned b) { return __umul24(a, b); }
EMU_INLINE float fma(float a, float b, float c) { return fmaf(a, b, c); }
EMU_INLINE double fma(double a, double b, double c) { return ::fma(a, b, c); }
template <class F> EMU_INLINE scalar16<F> fma(scalar16<F> a, scalar16<F> b, scalar16<F> c) { return fma16(a, b, c); }
template <class F> EMU_INLINE pair16<F> fma(pair16<F> a, pair16<F> b, pair16<F> c) {
    return {fma16(a.x, b.x, c.x), fma16(a.y, b.y, c.y)};
}
// By zero a GPU gives all ones, and the remainder is the dividend.
template <class T> EMU_INLINE T div(T a, T b) {
    if constexpr (!is_integer<T>) return a / b;
    else if (b == 0) return (T)-1;
    else if (is_signed<T> && b == (T)-1) return sub((T)0, a);
    else return (T)(a / b);
}
template <class T> EMU_INLINE T rem(T a, T b) { return b == 0 ? a : is_signed<T> && b == (T)-1 ? (T)0 : (T)(a % b); }
template <class T> EMU_INLINE T neg(T a) {
    if constexpr (is_integer<T>) return sub((T)0, a);
    else return -a;
}
template <class T> EMU_INLINE T abs(T a) { return a < (T)0 ? neg(a) : a; }
EMU_INLINE float abs(float a) { return __builtin_fabsf(a); }
EMU_INLINE double abs(double a) { return __builtin_fabs(a); }
template <class F> EMU_INLINE scalar16<F> abs(scalar16<F> a) { return scalar16<F>(__builtin_fabsf((float)a)); }
template <class F> EMU_INLINE pair16<F> abs(pair16<F> a) { return {abs(a.x), abs(a.y)}; }
template <class T> EMU_INLINE T copysign(T sign, T size) { return sizeof(T) == 4 ? (T)::copysignf(size, sign) : (T)::copysign(size, sign); }

template <class T> EMU_INLINE T smaller(T a, T b) { return b < a ? b : a; }
template <class T> EMU_INLINE T larger(T a, T b) { return a < b ? b : a; }
// Of numbers, one that is none gives way to the other; with .NaN it stays.
#define EMU_EXTREME(name, pick, number)                                                                                     \
    template <class T> EMU_INLINE T name(T a, T b) { return pick(a, b); }                                                   \
    EMU_INLINE float name(float a, float b) { return number##f(a, b); }                                                     \
    EMU_INLINE double name(double a, double b) { return number(a, b); }                                                     \
    template <class F> EMU_INLINE scalar16<F> name(scalar16<F> a, scalar16<F> b) { return scalar16<F>(number##f((float)a, (float)b)); } \
    template <class F> EMU_INLINE pair16<F> name(pair16<F> a, pair16<F> b) { return {name(a.x, b.x), name(a.y, b.y)}; }     \
    template <class T> EMU_INLINE T name##_nan(T a, T b) { return a != a ? a : b != b ? b : name(a, b); }                   \
    template <class F> EMU_INLINE pair16<F> name##_nan(pair16<F> a, pair16<F> b) {                                          \
        return {name##_nan(a.x, b.x), name##_nan(a.y, b.y)};                                                                \
    }
EMU_EXTREME(min, smaller, fmin) EMU_EXTREME(max, larger, fmax)
#undef EMU_EXTREME

template <class T> EMU_INLINE T bit_and(T a, T b) { return a & b; }
template <class T> EMU_INLINE T bit_or(T a, T b) { return a | b; }
template <class T> EMU_INLINE T bit_xor(T a, T b) { return a ^ b; }
template <class T> EMU_INLINE T bit_not(T a) { return ~a; }
template <> EMU_INLINE bool bit_not<bool>(bool a) { return !a; }
template <class T> EMU_INLINE T cnot(T a) { return a == 0; }
// A shift by all bits or more gives 0, or the sign.
template <class T> EMU_INLINE T shl(T a, unsigned by) { return by >= 8 * sizeof(T) ? (T)0 : (T)((u64)a << by); }
template <class T> EMU_INLINE T shr(T a, unsigned by) {
    if (by >= 8 * sizeof(T)) return a < 0 ? (T)-1 : (T)0;
    return (T)(a >> by);
}
template <class T> EMU_INLINE unsigned popc(T a) { return (unsigned)__builtin_popcountll((u64)a); }
template <class T> EMU_INLINE unsigned clz(T a) { return sizeof(T) == 4 ? (unsigned)__clz((int)a) : (unsigned)__clzll((long long)a); }
template <class T> EMU_INLINE T brev(T a) { return sizeof(T) == 4 ? (T)__brev((unsigned)a) : (T)__brevll((u64)a); }
// The highest bit that differs from the sign, or how far it is from the top.
template <class T> EMU_INLINE unsigned bfind(T a) {
    const T other = is_signed<T> && a < 0 ? (T)~a : a;
    return other ? 8 * sizeof(T) - 1 - clz(other) : ~0u;
}
template <class T> EMU_INLINE unsigned bfind_shiftamt(T a) {
    const T other = is_signed<T> && a < 0 ? (T)~a : a;
    return other ? clz(other) : ~0u;
}
template <class T> EMU_INLINE T bfe(T a, unsigned at, unsigned count) {
    const unsigned bits = 8 * sizeof(T);
    at &= 255, count &= 255;
    if (count == 0) return 0;
    const unsigned last = at + count - 1 < bits - 1 ? at + count - 1 : bits - 1;
    const bool sign = is_signed<T> && (u64)a >> last & 1;
    const u64 found = at >= bits ? 0 : (u64)(a & ~(T)0) >> at & (bits == 64 ? ~0ull : (1ull << bits) - 1);
    const u64 mask = count >= 64 ? ~0ull : (1ull << count) - 1;
    const u64 inside = at >= bits ? 0 : last - at + 1 >= 64 ? ~0ull : (1ull << (last - at + 1)) - 1;
    return (T)((found & inside) | (sign ? ~(inside & mask) : 0));
}
template <class T> EMU_INLINE T bfi(T from, T into, unsigned at, unsigned count) {
    at &= 255, count &= 255;
    const T mask = shl(sub(shl((T)1, count), (T)1), at);
    return (into & ~mask) | (shl(from, at) & mask);
}
EMU_INLINE unsigned prmt(unsigned a, unsigned b, unsigned selector) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned byte = __byte_perm(a, b, selector >> 4 * i & 7) & 255;
        result |= (selector >> 4 * i & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}
EMU_INLINE unsigned lop3(unsigned a, unsigned b, unsigned c, unsigned table) {
    unsigned result = 0;
    for (unsigned row = 0; row < 8; row++)
        if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return result;
}
EMU_INLINE unsigned shf_l_wrap(unsigned a, unsigned b, unsigned by) { return __funnelshift_l(a, b, by); }
EMU_INLINE unsigned shf_r_wrap(unsigned a, unsigned b, unsigned by) { return __funnelshift_r(a, b, by); }
EMU_INLINE unsigned shf_l_clamp(unsigned a, unsigned b, unsigned by) { return __funnelshift_lc(a, b, by); }
EMU_INLINE unsigned shf_r_clamp(unsigned a, unsigned b, unsigned by) { return __funnelshift_rc(a, b, by); }
template <class T> EMU_INLINE T sad(T a, T b, T c) { return add(c, a < b ? sub(b, a) : sub(a, b)); }
template <class A, class B> EMU_INLINE int dp4a(unsigned a, unsigned b, int c) { return products4<A, B>(a, b, c); }
template <class A, class B> EMU_INLINE int dp2a_lo(unsigned a, unsigned b, int c) { return products2<A, B>(a, b, c, 0); }
template <class A, class B> EMU_INLINE int dp2a_hi(unsigned a, unsigned b, int c) { return products2<A, B>(a, b, c, 2); }

EMU_INLINE float counted_exp2(float x) {
#if defined(EMU_TRACED)
    emu_count_exponential();
#endif
    return exp2f(x);
}
#define EMU_OF_ONE(name, in_float, in_double)                                                                               \
    EMU_INLINE float name(float x) { return in_float; }                                                                     \
    EMU_INLINE double name(double x) { return in_double; }                                                                  \
    template <class F> EMU_INLINE scalar16<F> name(scalar16<F> x) { return scalar16<F>(name((float)x)); }                   \
    template <class F> EMU_INLINE pair16<F> name(pair16<F> x) { return {name(x.x), name(x.y)}; }
EMU_OF_ONE(sqrt, sqrtf(x), ::sqrt(x)) EMU_OF_ONE(rcp, 1.0f / x, 1.0 / x) EMU_OF_ONE(rsqrt, rsqrtf(x), ::rsqrt(x))
EMU_OF_ONE(sin, sinf(x), ::sin(x)) EMU_OF_ONE(cos, cosf(x), ::cos(x)) EMU_OF_ONE(ex2, counted_exp2(x), ::exp2(x))
EMU_OF_ONE(lg2, log2f(x), ::log2(x)) EMU_OF_ONE(tanh, tanhf(x), ::tanh(x))
#undef EMU_OF_ONE

// ---- cvt

template <class To, class From> EMU_INLINE To convert(From x) {
    if constexpr (is_integer<From> || is_integer<To>) return (To)x;   // an integer is cut, or made longer by its sign
    else if constexpr (sizeof(From) == 2) return To((float)x);
    else return To(x);
}
template <class To, class From> EMU_INLINE To convert_saturated(From x) {
    if constexpr (!is_integer<To>) return saturate(convert<To>(x));
    else return x < 0 && (!is_signed<To> || (long long)x < (long long)least<To>) ? least<To>
                : x > 0 && (u64)x > (u64)greatest<To>                            ? greatest<To>
                                                                                 : (To)x;
}
#define EMU_ROUNDS(mode, name)                                                                                              \
    template <class To, class From> EMU_INLINE To convert_##mode(From x) {                                                  \
        if constexpr (is_integer<To>) return to_integer<To>((wider_of<From>)name((double)(wider_of<From>)x));       \
        else return To((float)name((double)(wider_of<From>)x));                                                             \
    }
template <class T> struct wider { typedef T type; };
template <class F> struct wider<scalar16<F>> { typedef float type; };
template <class T> using wider_of = typename wider<T>::type;
EMU_ROUNDS(rni, rint) EMU_ROUNDS(rzi, trunc) EMU_ROUNDS(rmi, floor) EMU_ROUNDS(rpi, ceil)
#undef EMU_ROUNDS
// To tf32: of 23 bits of the fraction 10 are left, the nearest, and of two the one away from zero (.rna) or the even one (.rn).
EMU_INLINE unsigned to_tf32_rna(float x) {
    const unsigned bits = bit_cast<unsigned>(x);
    return isfinite(x) ? (bits + 0x1000) & ~0x1fffu : bits;
}
EMU_INLINE unsigned to_tf32_rn(float x) {
    const unsigned bits = bit_cast<unsigned>(x);
    return isfinite(x) ? (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu : bits;
}

// ---- setp, set; with u: also where one of them is no number

template <class T> EMU_INLINE bool is_less_or_greater(T a, T b) { return a < b || a > b; }
#define EMU_COMPARES(name, condition) template <class T> EMU_INLINE bool name(T a, T b) { return condition; }
EMU_COMPARES(eq, a == b) EMU_COMPARES(ne, is_less_or_greater(a, b)) EMU_COMPARES(lt, a < b) EMU_COMPARES(le, a <= b)
EMU_COMPARES(gt, a > b) EMU_COMPARES(ge, a >= b) EMU_COMPARES(lo, a < b) EMU_COMPARES(ls, a <= b) EMU_COMPARES(hi, a > b)
EMU_COMPARES(hs, a >= b) EMU_COMPARES(equ, !is_less_or_greater(a, b)) EMU_COMPARES(neu, !(a == b)) EMU_COMPARES(ltu, !(a >= b))
EMU_COMPARES(leu, !(a > b)) EMU_COMPARES(gtu, !(a <= b)) EMU_COMPARES(geu, !(a < b)) EMU_COMPARES(num, a == a && b == b)
EMU_COMPARES(nan, a != a || b != b)
#undef EMU_COMPARES
template <class T> EMU_INLINE T choose(T a, T b, bool first) { return first ? a : b; }

} } }  // namespace emu::ptx::compute
