// half and bfloat16: 16 bits in memory, fp32 arithmetic, rounded to nearest even after each operation, as the hardware does;
// and FP8 as tensor cores read it.
#pragma once

namespace emu {

struct fp16_format {
    enum { bits = 16 };
    static constexpr float least = 0x1p-14f;         // of the normal numbers
#if defined(__F16C__) && !defined(__clang__)       // g++ 12 has the instructions, but no _Float16 in C++
    typedef short bits8 __attribute__((vector_size(16)));
    typedef float floats4 __attribute__((vector_size(16)));
    static EMU_INLINE float widen(unsigned short h) { return __builtin_ia32_vcvtph2ps((bits8){(short)h})[0]; }
    static EMU_INLINE unsigned short round(float x) { return (unsigned short)__builtin_ia32_vcvtps2ph((floats4){x}, 0)[0]; }
#elif defined(__FLT16_MANT_DIG__)
    static EMU_INLINE float widen(unsigned short h) { return (float)bit_cast<_Float16>(h); }
    static EMU_INLINE unsigned short round(float x) { return bit_cast<unsigned short>((_Float16)x); }
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
        if (bits > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
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
    enum { bits = 16 };
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

template <class Format> struct alignas(2) scalar16 {
    unsigned short bits;
    scalar16() = default;
#if defined(EMU_RECORDED)   // by way of a register: g++ reports a copy from memory to memory before it is made, the write first
    scalar16(const scalar16&) = default;
    EMU_INLINE scalar16& operator=(const scalar16& other) {
        unsigned short word = other.bits;
        EMU_KEEP(word);
        bits = word;
        return *this;
    }
#endif
    EMU_INLINE scalar16(float x) : bits(Format::round(x)) {}
    EMU_INLINE scalar16(double x) : bits(Format::round((float)x)) {}
    EMU_INLINE scalar16(int x) : bits(Format::round((float)x)) {}
    EMU_INLINE scalar16(unsigned x) : bits(Format::round((float)x)) {}
    EMU_INLINE operator float() const { return Format::widen(bits); }
    template <class T> EMU_INLINE scalar16& operator+=(T other) { return *this = scalar16((float)*this + (float)other); }
    template <class T> EMU_INLINE scalar16& operator-=(T other) { return *this = scalar16((float)*this - (float)other); }
    template <class T> EMU_INLINE scalar16& operator*=(T other) { return *this = scalar16((float)*this * (float)other); }
    template <class T> EMU_INLINE scalar16& operator/=(T other) { return *this = scalar16((float)*this / (float)other); }
};
template <class Format> struct alignas(4) pair16 {
    scalar16<Format> x, y;
    EMU_MEMBERS2(pair16, scalar16<Format>)
};

#define EMU_OPERATOR(op)                                                                                                    \
    template <class F> EMU_INLINE scalar16<F> operator op(scalar16<F> a, scalar16<F> b) { return (float)a op (float)b; }    \
    template <class F> EMU_INLINE pair16<F> operator op(pair16<F> a, pair16<F> b) { return {a.x op b.x, a.y op b.y}; }
EMU_OPERATOR(+) EMU_OPERATOR(-) EMU_OPERATOR(*) EMU_OPERATOR(/)
#undef EMU_OPERATOR
#define EMU_ASSIGN(op) \
    template <class F> EMU_INLINE pair16<F>& operator op##=(pair16<F>& a, pair16<F> b) { return a = a op b; }
EMU_ASSIGN(+) EMU_ASSIGN(-) EMU_ASSIGN(*) EMU_ASSIGN(/)
#undef EMU_ASSIGN
template <class F> EMU_INLINE scalar16<F> operator-(scalar16<F> a) { return -(float)a; }
template <class F> EMU_INLINE pair16<F> operator-(pair16<F> a) { return {-a.x, -a.y}; }
#define EMU_COMPARE(op)                                                                                                     \
    template <class F> EMU_INLINE bool operator op(scalar16<F> a, scalar16<F> b) { return (float)a op (float)b; }
EMU_COMPARE(<) EMU_COMPARE(>) EMU_COMPARE(<=) EMU_COMPARE(>=) EMU_COMPARE(==) EMU_COMPARE(!=)
#undef EMU_COMPARE

// Rounding twice, first to a longer type, is harmless if the first rounding keeps an inexact result odd.
EMU_INLINE double make_odd(double x, double error) {
    unsigned long long bits = bit_cast<unsigned long long>(x);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (x > 0) ? 1 : -1;
    return bit_cast<double>(bits);
}
EMU_INLINE float make_odd(float x, double error) {
    unsigned bits = bit_cast<unsigned>(x);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (x > 0) ? 1 : -1;
    return bit_cast<float>(bits);
}
template <class F> inline scalar16<F> fma16(scalar16<F> a, scalar16<F> b, scalar16<F> c) {
    double product = (double)(float)a * (float)b, addend = (float)c, sum = product + addend, part = sum - product;
    sum = make_odd(sum, (product - (sum - part)) + (addend - part));
    return make_odd((float)sum, sum - (float)sum);
}

}  // namespace emu

// The functions that cuda_fp16.h and cuda_bf16.h declare for either type.
#define EMU_FLOAT16_FUNCTIONS(T, T2)                                                                                        \
    EMU_INLINE T __hadd(T a, T b) { return a + b; }                                                                         \
    EMU_INLINE T __hsub(T a, T b) { return a - b; }                                                                         \
    EMU_INLINE T __hmul(T a, T b) { return a * b; }                                                                         \
    EMU_INLINE T __hdiv(T a, T b) { return a / b; }                                                                         \
    EMU_INLINE T __hneg(T a) { return -a; }                                                                                 \
    EMU_INLINE T __hfma(T a, T b, T c) { return emu::fma16(a, b, c); }                                                      \
    EMU_INLINE T __hmax(T a, T b) { return isnan((float)a) ? b : isnan((float)b) ? a : a < b ? b : a; }                     \
    EMU_INLINE T __hmin(T a, T b) { return isnan((float)a) ? b : isnan((float)b) ? a : b < a ? b : a; }                     \
    EMU_INLINE bool __hlt(T a, T b) { return a < b; }                                                                       \
    EMU_INLINE bool __hgt(T a, T b) { return a > b; }                                                                       \
    EMU_INLINE bool __hle(T a, T b) { return a <= b; }                                                                      \
    EMU_INLINE bool __hge(T a, T b) { return a >= b; }                                                                      \
    EMU_INLINE bool __heq(T a, T b) { return a == b; }                                                                      \
    EMU_INLINE bool __hne(T a, T b) { return !isnan((float)a) && !isnan((float)b) && a != b; }                              \
    EMU_INLINE T __habs(T a) { return fabsf(a); }                                                                           \
    EMU_INLINE bool __hisnan(T a) { return isnan((float)a); }                                                               \
    EMU_INLINE T hexp(T a) { return expf(a); }                                                                              \
    EMU_INLINE T hexp2(T a) { return exp2f(a); }                                                                            \
    EMU_INLINE T hlog(T a) { return logf(a); }                                                                              \
    EMU_INLINE T hlog2(T a) { return log2f(a); }                                                                            \
    EMU_INLINE T hsqrt(T a) { return sqrtf(a); }                                                                            \
    EMU_INLINE T hrsqrt(T a) { return rsqrtf(a); }                                                                          \
    EMU_INLINE T hrcp(T a) { return 1.0f / (float)a; }                                                                      \
    EMU_INLINE T2 __hadd2(T2 a, T2 b) { return a + b; }                                                                     \
    EMU_INLINE T2 __hsub2(T2 a, T2 b) { return a - b; }                                                                     \
    EMU_INLINE T2 __hmul2(T2 a, T2 b) { return a * b; }                                                                     \
    EMU_INLINE T2 __hfma2(T2 a, T2 b, T2 c) { return {emu::fma16(a.x, b.x, c.x), emu::fma16(a.y, b.y, c.y)}; }              \
    EMU_INLINE T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                                      \
    EMU_INLINE T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                                      \
    EMU_INLINE T2 __hneg2(T2 a) { return -a; }                                                                              \
    EMU_INLINE T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                                                      \
    EMU_INLINE T2 __h2div(T2 a, T2 b) { return a / b; }                                                                     \
    EMU_INLINE T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                                                            \
    EMU_INLINE T2 h2exp2(T2 a) { return {hexp2(a.x), hexp2(a.y)}; }                                                         \
    EMU_INLINE float __low2float(T2 a) { return a.x; }                                                                      \
    EMU_INLINE float __high2float(T2 a) { return a.y; }
