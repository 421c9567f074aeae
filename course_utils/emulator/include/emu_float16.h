// half and bfloat16: 16 bits in memory, fp32 arithmetic, rounded to nearest even after each operation, as the hardware does;
// and FP8 as tensor cores read it.
#pragma once

namespace emu {

// To round to a 16-bit format: `round`, to the nearest and of two the even one; any NaN becomes the one that a GPU makes.
struct fp16_format {
    enum { bits = 16, infinity = 0x7c00 };
    static constexpr float least = 0x1p-14f;         // of the normal numbers
#if defined(__F16C__) && !defined(__clang__)       // g++ 12 has the instructions, but no _Float16 in C++
    typedef short bits8 __attribute__((vector_size(16)));
    typedef float floats4 __attribute__((vector_size(16)));
    static EMU_INLINE float widen(unsigned short h) { return __builtin_ia32_vcvtph2ps((bits8){(short)h})[0]; }
    static EMU_INLINE unsigned short round(float x) {
        return isnan(x) ? 0x7fff : (unsigned short)__builtin_ia32_vcvtps2ph((floats4){x}, 0)[0];
    }
#elif defined(__aarch64__) && !defined(__clang__)  // nor has it on ARM, but a type to store that converts as well
    static EMU_INLINE float widen(unsigned short h) { return (float)bit_cast<__fp16>(h); }
    static EMU_INLINE unsigned short round(float x) { return isnan(x) ? 0x7fff : bit_cast<unsigned short>((__fp16)x); }
#elif defined(__FLT16_MANT_DIG__)
    static EMU_INLINE float widen(unsigned short h) { return (float)bit_cast<_Float16>(h); }
    static EMU_INLINE unsigned short round(float x) { return isnan(x) ? 0x7fff : bit_cast<unsigned short>((_Float16)x); }
#else
    static inline float widen(unsigned short h) {
        unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
        if (exponent == 31) return bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
        if (exponent) return bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
        float subnormal = (float)mantissa * 5.9604644775390625e-08f;      // 2^-24
        return bit_cast<float>(bit_cast<unsigned>(subnormal) | sign);
    }
    static inline unsigned short round(float x) {
        unsigned bits = bit_cast<unsigned>(x), sign = bits >> 16 & 0x8000u;
        bits &= 0x7fffffffu;
        if (bits > 0x7f800000u) return 0x7fff;
        if (bits >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
        if (bits < 0x38800000u)                                            // subnormal: count in units of 2^-24
            return (unsigned short)(sign | (unsigned)rintf(bit_cast<float>(bits) * 16777216.0f));
        bits -= 0x38000000u;
        bits += 0xfffu + (bits >> 13 & 1);
        return (unsigned short)(sign | bits >> 13);
    }
#endif
};

struct bf16_format {
    enum { bits = 16, infinity = 0x7f80 };
    static constexpr float least = 0x1p-126f;         // of the normal numbers
    static EMU_INLINE float widen(unsigned short b) { return bit_cast<float>((unsigned)b << 16); }
    static EMU_INLINE unsigned short round(float x) {
        unsigned bits = bit_cast<unsigned>(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
};

// FP8 with 4 bits of exponent and 3 of mantissa: no infinity, and NaN where all bits but the sign are set.
struct e4m3_format {
    enum { bits = 8 };
    static constexpr float least = 0x1p-6f;         // of the normal numbers
    static EMU_INLINE float widen(unsigned char x) {
        unsigned sign = (x & 0x80u) << 24, exponent = x >> 3 & 15, mantissa = x & 7;
        if ((x & 0x7f) == 0x7f) return bit_cast<float>(sign | 0x7fc00000u);
        if (exponent) return bit_cast<float>(sign | (exponent + 120) << 23 | mantissa << 20);
        return bit_cast<float>(bit_cast<unsigned>((float)mantissa * 0.001953125f) | sign);   // subnormal: units of 2^-9
    }
    // To the nearest, of two the even one, and to the largest what is beyond it (`satfinite`).
    static EMU_INLINE unsigned char round(float x) {
        const unsigned sign = bit_cast<unsigned>(x) >> 24 & 0x80, size = bit_cast<unsigned>(x) & 0x7fffffffu;
        if (size > 0x7f800000u) return 0x7f;
        if (size >= 0x43e00000u) return (unsigned char)(sign | 0x7e);   // 448
        if (size < 0x3c800000u)                                         // 2^-6: steps are 2^-9, as they are in fp32 from 2^14 on
            return (unsigned char)(sign | (bit_cast<unsigned>(bit_cast<float>(size) + 16384.0f) & 15));
        return (unsigned char)(sign | ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3));
    }
};

// FP8 with 5 bits of exponent and 2 of mantissa: the upper half of an fp16.
struct e5m2_format {
    enum { bits = 8 };
    static constexpr float least = 0x1p-14f;         // of the normal numbers
    static EMU_INLINE float widen(unsigned char x) { return fp16_format::widen((unsigned short)(x << 8)); }
};

// Rounding twice, first to a longer type, is harmless if the first rounding keeps an inexact result odd.
EMU_INLINE double make_odd(double x, double error) {
    unsigned long long bits = bit_cast<unsigned long long>(x);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error < 0) == (bool)(bits >> 63) ? 1 : -1;
    return bit_cast<double>(bits);
}
EMU_INLINE float make_odd(float x, double error) {
    unsigned bits = bit_cast<unsigned>(x);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error < 0) == (bool)(bits >> 31) ? 1 : -1;
    return bit_cast<float>(bits);
}
// A number as a float from which one more rounding, to 16 bits, gives what a rounding of the number itself would.
EMU_INLINE float odd_float(float x) { return x; }
EMU_INLINE float odd_float(double x) {
    const float near = (float)x;
    return make_odd(near, x - near);
}
template <class T> EMU_INLINE auto odd_float(T x) {
    if constexpr (sizeof(T) <= 4) return odd_float((double)x);
    const bool is_negative = x < 0;
    const unsigned long long size = is_negative ? -(unsigned long long)x : (unsigned long long)x;
    const unsigned long long kept = size >> 32 ? size & ~0xfffull | ((size & 0xfff) != 0) << 12 : size;   // 52 bits, the last odd
    return odd_float(is_negative ? -(double)kept : (double)kept);
}

template <class Format> struct alignas(2) raw_of { unsigned short x; };               // __half_raw, __nv_bfloat16_raw
template <class Format> struct alignas(4) raw_pair_of { unsigned short x, y; };

template <class Format> struct alignas(2) scalar16 {
    typedef Format format;
    unsigned short __x;        // as CUDA's header calls it
    scalar16() = default;
#if defined(EMU_RECORDED)   // by way of a register: g++ reports a copy from memory to memory before it is made, the write first
    scalar16(const scalar16&) = default;
    EMU_INLINE scalar16& operator=(const scalar16& other) {
        unsigned short word = other.__x;
        EMU_KEEP(word);
        __x = word;
        return *this;
    }
#endif
    constexpr EMU_INLINE scalar16(const raw_of<Format>& raw) : __x(raw.x) {}
    EMU_INLINE operator raw_of<Format>() const { return {__x}; }
    EMU_INLINE operator raw_of<Format>() const volatile { return {__x}; }
    EMU_INLINE volatile scalar16& operator=(const raw_of<Format>& raw) volatile { return __x = raw.x, *this; }
    template <class Other> explicit EMU_INLINE scalar16(scalar16<Other> x) : __x(Format::round((float)x)) {}
    EMU_INLINE operator float() const { return Format::widen(__x); }
    constexpr EMU_INLINE operator bool() const { return (__x & 0x7fff) != 0; }
#define EMU_FROM(T) EMU_INLINE scalar16(T x) : __x(Format::round(odd_float(x))) {}
    EMU_FROM(float) EMU_FROM(double) EMU_FROM(short) EMU_FROM(unsigned short) EMU_FROM(int) EMU_FROM(unsigned) EMU_FROM(long)
    EMU_FROM(unsigned long) EMU_FROM(long long) EMU_FROM(unsigned long long)
#undef EMU_FROM
#define EMU_TO(T) EMU_INLINE operator T() const { return to_integer<T>(truncf(Format::widen(__x))); }
    EMU_TO(char) EMU_TO(signed char) EMU_TO(unsigned char) EMU_TO(short) EMU_TO(unsigned short) EMU_TO(int) EMU_TO(unsigned)
    EMU_TO(long) EMU_TO(unsigned long) EMU_TO(long long) EMU_TO(unsigned long long)
#undef EMU_TO

    // Found for a scalar16 only, and no templates: what is converted for them, and what is ambiguous, is as in CUDA.
#define EMU_OPERATOR(op)                                                                                                    \
    friend EMU_INLINE scalar16 operator op(const scalar16& a, const scalar16& b) { return (float)a op (float)b; }           \
    friend EMU_INLINE scalar16& operator op##=(scalar16& a, const scalar16& b) { return a = (float)a op (float)b; }
    EMU_OPERATOR(+) EMU_OPERATOR(-) EMU_OPERATOR(*) EMU_OPERATOR(/)
#undef EMU_OPERATOR
#define EMU_COMPARE(op)                                                                                                     \
    friend EMU_INLINE bool operator op(const scalar16& a, const scalar16& b) { return (float)a op (float)b; }
    EMU_COMPARE(<) EMU_COMPARE(>) EMU_COMPARE(<=) EMU_COMPARE(>=) EMU_COMPARE(==) EMU_COMPARE(!=)
#undef EMU_COMPARE
    friend EMU_INLINE scalar16 operator+(const scalar16& a) { return a; }
    friend EMU_INLINE scalar16 operator-(const scalar16& a) { return raw_of<Format>{(unsigned short)(a.__x ^ 0x8000)}; }
    friend EMU_INLINE scalar16& operator++(scalar16& a) { return a = (float)a + 1.0f; }
    friend EMU_INLINE scalar16& operator--(scalar16& a) { return a = (float)a - 1.0f; }
    friend EMU_INLINE scalar16 operator++(scalar16& a, int) { scalar16 before = a; ++a; return before; }
    friend EMU_INLINE scalar16 operator--(scalar16& a, int) { scalar16 before = a; --a; return before; }
};
template <class Format> struct alignas(4) pair16 {
    typedef scalar16<Format> scalar;
    scalar x, y;
    EMU_MEMBERS2(pair16, scalar)
    EMU_INLINE pair16(const raw_pair_of<Format>& raw) : x(raw_of<Format>{raw.x}), y(raw_of<Format>{raw.y}) {}
    EMU_INLINE operator raw_pair_of<Format>() const { return {x.__x, y.__x}; }
#define EMU_OPERATOR(op)                                                                                                    \
    friend EMU_INLINE pair16 operator op(const pair16& a, const pair16& b) { return {a.x op b.x, a.y op b.y}; }             \
    friend EMU_INLINE pair16& operator op##=(pair16& a, const pair16& b) { return a = a op b; }
    EMU_OPERATOR(+) EMU_OPERATOR(-) EMU_OPERATOR(*) EMU_OPERATOR(/)
#undef EMU_OPERATOR
#define EMU_COMPARE(op)                                                                                                     \
    friend EMU_INLINE bool operator op(const pair16& a, const pair16& b) { return a.x op b.x && a.y op b.y; }
    EMU_COMPARE(<) EMU_COMPARE(>) EMU_COMPARE(<=) EMU_COMPARE(>=) EMU_COMPARE(==) EMU_COMPARE(!=)
#undef EMU_COMPARE
    friend EMU_INLINE pair16 operator+(const pair16& a) { return a; }
    friend EMU_INLINE pair16 operator-(const pair16& a) { return {-a.x, -a.y}; }
    friend EMU_INLINE pair16& operator++(pair16& a) { return a = {(float)a.x + 1.0f, (float)a.y + 1.0f}; }
    friend EMU_INLINE pair16& operator--(pair16& a) { return a = {(float)a.x - 1.0f, (float)a.y - 1.0f}; }
    friend EMU_INLINE pair16 operator++(pair16& a, int) { pair16 before = a; ++a; return before; }
    friend EMU_INLINE pair16 operator--(pair16& a, int) { pair16 before = a; --a; return before; }
};

template <class F> EMU_INLINE auto scalar_of_bits(unsigned short bits) { return scalar16<F>(raw_of<F>{bits}); }
enum direction { to_zero, down, up };
template <class T, direction where, class Number> EMU_INLINE auto rounded(Number number) {
    const float x = odd_float(number);
    T near = x;
    if (isnan(x)) return near;
    near.__x -= fabsf(near) > fabsf(x);        // towards zero: to the pattern before
    near.__x += where == up ? (float)near < x : where == down ? (float)near > x : 0;
    return near;
}
template <class F> EMU_INLINE auto fma16(scalar16<F> a, scalar16<F> b, scalar16<F> c) {
    double product = (double)(float)a * (float)b, addend = (float)c, sum = product + addend, part = sum - product;
    sum = make_odd(sum, (product - (sum - part)) + (addend - part));
    return scalar16<F>(make_odd((float)sum, sum - (float)sum));
}
// Of two zeros the positive one is the larger. A NaN loses against a number, or wins in the functions that say so.
template <class F> EMU_INLINE auto larger(scalar16<F> a, scalar16<F> b) {
    if (isnan((float)a) || isnan((float)b)) return scalar16<F>((float)(isnan((float)a) ? b : a));
    return (float)a == (float)b ? scalar_of_bits<F>(a.__x & b.__x) : (float)a < (float)b ? b : a;
}
template <class F> EMU_INLINE auto smaller(scalar16<F> a, scalar16<F> b) {
    if (isnan((float)a) || isnan((float)b)) return scalar16<F>((float)(isnan((float)a) ? b : a));
    return (float)a == (float)b ? scalar_of_bits<F>(a.__x | b.__x) : (float)b < (float)a ? b : a;
}
template <class F> EMU_INLINE auto nan_or(scalar16<F> a, scalar16<F> b, scalar16<F> otherwise) {
    return isnan((float)a) || isnan((float)b) ? scalar_of_bits<F>(0x7fff) : otherwise;
}
template <class F> EMU_INLINE auto saturated16(scalar16<F> x) {
    return scalar16<F>((float)x > 0 ? (float)x < 1 ? (float)x : 1.0f : 0.0f);
}
template <class F> EMU_INLINE auto relu16(scalar16<F> x) { return nan_or(x, x, (float)x > 0 ? x : scalar16<F>(0.0f)); }
// In 8, 16 and 32 bits there is room for 0 where there is no number, in 64 there is the first bit alone.
template <class T> EMU_INLINE auto integer_of16(float rounded, float given) {
    return sizeof(T) == 8 && isnan(given) ? (T)(1ull << 63) : to_integer<T>(rounded);
}

}  // namespace emu

// The functions that cuda_fp16.h and cuda_bf16.h both declare: for a type T and for a pair T2 of it.
#define EMU_FLOAT16_EACH(T, T2, name, name2, value) /* a function of x, and the same of both halves of a pair */            \
    EMU_INLINE T name(T a) { const float x = a; return value; }                                                             \
    EMU_INLINE T2 name2(T2 a) { return {name(a.x), name(a.y)}; }
#define EMU_FLOAT16_EACH2(T, T2, name, name2, value)                                                                        \
    EMU_INLINE T name(T a, T b) { return value; }                                                                           \
    EMU_INLINE T2 name2(T2 a, T2 b) { return {name(a.x, b.x), name(a.y, b.y)}; }
#define EMU_FLOAT16_EACH3(T, T2, name, name2, value)                                                                        \
    EMU_INLINE T name(T a, T b, T c) { return value; }                                                                      \
    EMU_INLINE T2 name2(T2 a, T2 b, T2 c) { return {name(a.x, b.x, c.x), name(a.y, b.y, c.y)}; }
#define EMU_FLOAT16_COMPARE(T, T2, name, condition)                                                                         \
    EMU_INLINE bool __h##name(T a, T b) { const float x = a, y = b; return condition; }                                     \
    EMU_INLINE T2 __h##name##2(T2 a, T2 b) { return {__h##name(a.x, b.x) ? 1.0f : 0.0f, __h##name(a.y, b.y) ? 1.0f : 0.0f}; }  \
    EMU_INLINE bool __hb##name##2(T2 a, T2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }                        \
    EMU_INLINE unsigned __h##name##2_mask(T2 a, T2 b) {                                                                     \
        return (__h##name(a.x, b.x) ? 0xffffu : 0) | (__h##name(a.y, b.y) ? 0xffff0000u : 0);                               \
    }
#define EMU_FLOAT16_INTEGER(T, type, integer, word) /* to an integer and from it, rounded in each way */                    \
    EMU_INLINE integer __##type##2##word##_rn(T a) { return emu::integer_of16<integer>(rintf(a), a); }                      \
    EMU_INLINE integer __##type##2##word##_rd(T a) { return emu::integer_of16<integer>(floorf(a), a); }                     \
    EMU_INLINE integer __##type##2##word##_ru(T a) { return emu::integer_of16<integer>(ceilf(a), a); }                      \
    EMU_FLOAT16_TRUNCATE(T, type, integer, word)                                                                            \
    EMU_INLINE T __##word##2##type##_rn(integer x) { return emu::odd_float(x); }                                            \
    EMU_FLOAT16_DIRECTED(T, integer, __##word##2##type)
#define EMU_FLOAT16_TRUNCATE(T, type, integer, word)                                                                        \
    EMU_INLINE integer __##type##2##word##_rz(T a) { return emu::integer_of16<integer>(truncf(a), a); }
#define EMU_FLOAT16_DIRECTED(T, from, name)                                                                                 \
    EMU_INLINE T name##_rz(from x) { return emu::rounded<T, emu::to_zero>(x); }                                             \
    EMU_INLINE T name##_rd(from x) { return emu::rounded<T, emu::down>(x); }                                                \
    EMU_INLINE T name##_ru(from x) { return emu::rounded<T, emu::up>(x); }
#define EMU_FLOAT16_ATOMIC(T)                                                                                               \
    EMU_INLINE T atomicAdd(T* address, T value) {                                                                           \
        EMU_TOUCH(address, sizeof(T), EMU_TOUCH_ATOMIC);                                                                    \
        return emu::read_modify_write(address, [value](T old) -> T { return old + value; });                                \
    }

// `type` and `pair` are what the two are called within the names of functions.
#define EMU_FLOAT16_FUNCTIONS(T, T2, type, pair)                                                                            \
    EMU_FLOAT16_EACH2(T, T2, __hadd, __hadd2, a + b) EMU_FLOAT16_EACH2(T, T2, __hadd_rn, __hadd2_rn, a + b)                 \
    EMU_FLOAT16_EACH2(T, T2, __hsub, __hsub2, a - b) EMU_FLOAT16_EACH2(T, T2, __hsub_rn, __hsub2_rn, a - b)                 \
    EMU_FLOAT16_EACH2(T, T2, __hmul, __hmul2, a * b) EMU_FLOAT16_EACH2(T, T2, __hmul_rn, __hmul2_rn, a * b)                 \
    EMU_FLOAT16_EACH2(T, T2, __hdiv, __h2div, a / b)                                                                        \
    EMU_FLOAT16_EACH2(T, T2, __hadd_sat, __hadd2_sat, emu::saturated16(a + b))                                              \
    EMU_FLOAT16_EACH2(T, T2, __hsub_sat, __hsub2_sat, emu::saturated16(a - b))                                              \
    EMU_FLOAT16_EACH2(T, T2, __hmul_sat, __hmul2_sat, emu::saturated16(a * b))                                              \
    EMU_FLOAT16_EACH2(T, T2, __hmax, __hmax2, emu::larger(a, b))                                                            \
    EMU_FLOAT16_EACH2(T, T2, __hmin, __hmin2, emu::smaller(a, b))                                                           \
    EMU_FLOAT16_EACH2(T, T2, __hmax_nan, __hmax2_nan, emu::nan_or(a, b, emu::larger(a, b)))                                 \
    EMU_FLOAT16_EACH2(T, T2, __hmin_nan, __hmin2_nan, emu::nan_or(a, b, emu::smaller(a, b)))                                \
    EMU_FLOAT16_EACH3(T, T2, __hfma, __hfma2, emu::fma16(a, b, c))                                                          \
    EMU_FLOAT16_EACH3(T, T2, __hfma_sat, __hfma2_sat, emu::saturated16(emu::fma16(a, b, c)))                                \
    EMU_FLOAT16_EACH3(T, T2, __hfma_relu, __hfma2_relu, emu::relu16(emu::fma16(a, b, c)))                                   \
    EMU_INLINE T2 __hcmadd(T2 a, T2 b, T2 c) { /* pairs as complex numbers */                                               \
        return {__hfma(-a.y, b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y))};                         \
    }                                                                                                                       \
    EMU_FLOAT16_EACH(T, T2, __hneg, __hneg2, -a)                                                                            \
    EMU_FLOAT16_EACH(T, T2, __habs, __habs2, emu::raw_of<T::format>{(unsigned short)(a.__x & 0x7fff)})                      \
    EMU_FLOAT16_EACH(T, T2, htrunc, h2trunc, truncf(x)) EMU_FLOAT16_EACH(T, T2, hceil, h2ceil, ceilf(x))                    \
    EMU_FLOAT16_EACH(T, T2, hfloor, h2floor, floorf(x)) EMU_FLOAT16_EACH(T, T2, hrint, h2rint, rintf(x))                    \
    EMU_FLOAT16_EACH(T, T2, hsqrt, h2sqrt, sqrtf(x)) EMU_FLOAT16_EACH(T, T2, hrsqrt, h2rsqrt, rsqrtf(x))                    \
    EMU_FLOAT16_EACH(T, T2, hrcp, h2rcp, 1.0f / x)                                                                          \
    EMU_FLOAT16_EACH(T, T2, hexp, h2exp, expf(x)) EMU_FLOAT16_EACH(T, T2, hexp2, h2exp2, exp2f(x))                          \
    EMU_FLOAT16_EACH(T, T2, hexp10, h2exp10, exp10f(x)) EMU_FLOAT16_EACH(T, T2, hlog, h2log, logf(x))                       \
    EMU_FLOAT16_EACH(T, T2, hlog2, h2log2, log2f(x)) EMU_FLOAT16_EACH(T, T2, hlog10, h2log10, log10f(x))                    \
    EMU_FLOAT16_EACH(T, T2, hsin, h2sin, sinf(x)) EMU_FLOAT16_EACH(T, T2, hcos, h2cos, cosf(x))                             \
    EMU_FLOAT16_EACH(T, T2, htanh, h2tanh, tanhf(x)) EMU_FLOAT16_EACH(T, T2, htanh_approx, h2tanh_approx, tanhf(x))         \
    EMU_FLOAT16_COMPARE(T, T2, eq, x == y) EMU_FLOAT16_COMPARE(T, T2, equ, !(x < y || x > y))                               \
    EMU_FLOAT16_COMPARE(T, T2, ne, x < y || x > y) EMU_FLOAT16_COMPARE(T, T2, neu, x != y)                                  \
    EMU_FLOAT16_COMPARE(T, T2, lt, x < y) EMU_FLOAT16_COMPARE(T, T2, ltu, !(x >= y))                                        \
    EMU_FLOAT16_COMPARE(T, T2, le, x <= y) EMU_FLOAT16_COMPARE(T, T2, leu, !(x > y))                                        \
    EMU_FLOAT16_COMPARE(T, T2, gt, x > y) EMU_FLOAT16_COMPARE(T, T2, gtu, !(x <= y))                                        \
    EMU_FLOAT16_COMPARE(T, T2, ge, x >= y) EMU_FLOAT16_COMPARE(T, T2, geu, !(x < y))                                        \
    EMU_INLINE bool __hisnan(T a) { return isnan((float)a); }                                                               \
    EMU_INLINE T2 __hisnan2(T2 a) { return {__hisnan(a.x) ? 1.0f : 0.0f, __hisnan(a.y) ? 1.0f : 0.0f}; }                    \
    EMU_INLINE int __hisinf(T a) { return (a.__x & 0x7fff) == T::format::infinity ? a.__x >> 15 ? -1 : 1 : 0; }             \
    EMU_FLOAT16_INTEGER(T, type, short, short) EMU_FLOAT16_INTEGER(T, type, unsigned short, ushort)                         \
    EMU_FLOAT16_INTEGER(T, type, int, int) EMU_FLOAT16_INTEGER(T, type, unsigned, uint)                                     \
    EMU_FLOAT16_INTEGER(T, type, long long, ll) EMU_FLOAT16_INTEGER(T, type, unsigned long long, ull)                       \
    EMU_FLOAT16_TRUNCATE(T, type, signed char, char) EMU_FLOAT16_TRUNCATE(T, type, unsigned char, uchar)                    \
    EMU_FLOAT16_DIRECTED(T, float, __float2##type)                                                                          \
    EMU_INLINE T __float2##type(float x) { return x; }                                                                      \
    EMU_INLINE T __float2##type##_rn(float x) { return x; }                                                                 \
    EMU_INLINE T __double2##type(double x) { return x; }                                                                    \
    EMU_INLINE float __##type##2float(T a) { return a; }                                                                    \
    EMU_INLINE T2 __float2##pair##_rn(float a) { return {a, a}; }                                                           \
    EMU_INLINE T2 __floats2##pair##_rn(float a, float b) { return {a, b}; }                                                 \
    EMU_INLINE T2 __float22##pair##_rn(float2 a) { return {a.x, a.y}; }                                                     \
    EMU_INLINE float2 __##pair##2float2(T2 a) { return {(float)a.x, (float)a.y}; }                                          \
    EMU_INLINE float __low2float(T2 a) { return a.x; }                                                                      \
    EMU_INLINE float __high2float(T2 a) { return a.y; }                                                                     \
    EMU_INLINE T2 __##type##2##pair(T a) { return {a, a}; }                                                                 \
    EMU_INLINE T2 __halves2##pair(T a, T b) { return {a, b}; }                                                              \
    EMU_INLINE T2 make_##pair(T a, T b) { return {a, b}; }                                                                  \
    EMU_INLINE T __low2##type(T2 a) { return a.x; }                                                                         \
    EMU_INLINE T __high2##type(T2 a) { return a.y; }                                                                        \
    EMU_INLINE T2 __low2##pair(T2 a) { return {a.x, a.x}; }                                                                 \
    EMU_INLINE T2 __high2##pair(T2 a) { return {a.y, a.y}; }                                                                \
    EMU_INLINE T2 __lows2##pair(T2 a, T2 b) { return {a.x, b.x}; }                                                          \
    EMU_INLINE T2 __highs2##pair(T2 a, T2 b) { return {a.y, b.y}; }                                                         \
    EMU_INLINE T2 __lowhigh2highlow(T2 a) { return {a.y, a.x}; }                                                            \
    EMU_FLOAT16_ATOMIC(T) EMU_FLOAT16_ATOMIC(T2)
