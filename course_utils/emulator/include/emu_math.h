// Arithmetic functions and intrinsics. The fast ones (__expf, ex2.approx, ...) are exact here: last bits differ from a GPU's.
#pragma once

#define EMU_LIBM(name)                                                                                                      \
    extern "C" float name##f(float) noexcept;                                                                               \
    extern "C" double name(double) noexcept;                                                                                \
    EMU_INLINE float name(float x) { return name##f(x); }
EMU_LIBM(exp) EMU_LIBM(exp2) EMU_LIBM(expm1) EMU_LIBM(log) EMU_LIBM(log2) EMU_LIBM(log10) EMU_LIBM(log1p) EMU_LIBM(sqrt)
EMU_LIBM(cbrt) EMU_LIBM(sin) EMU_LIBM(cos) EMU_LIBM(tan) EMU_LIBM(asin) EMU_LIBM(acos) EMU_LIBM(atan) EMU_LIBM(sinh) EMU_LIBM(cosh)
EMU_LIBM(tanh) EMU_LIBM(erf) EMU_LIBM(erfc) EMU_LIBM(floor) EMU_LIBM(ceil) EMU_LIBM(round) EMU_LIBM(rint) EMU_LIBM(trunc)
EMU_LIBM(fabs) EMU_LIBM(nearbyint)
#undef EMU_LIBM
#define EMU_LIBM(name)                                                                                                      \
    extern "C" float name##f(float, float) noexcept;                                                                        \
    extern "C" double name(double, double) noexcept;                                                                        \
    EMU_INLINE float name(float x, float y) { return name##f(x, y); }
EMU_LIBM(pow) EMU_LIBM(atan2) EMU_LIBM(fmod) EMU_LIBM(fmin) EMU_LIBM(fmax) EMU_LIBM(hypot) EMU_LIBM(copysign)
#undef EMU_LIBM
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
EMU_INLINE float fma(float a, float b, float c) { return fmaf(a, b, c); }
extern "C" float ldexpf(float, int) noexcept;
extern "C" long lrintf(float) noexcept;
EMU_INLINE void sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
EMU_INLINE void __sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }

EMU_INLINE bool isnan(float x) { return __builtin_isnan(x); }
EMU_INLINE bool isnan(double x) { return __builtin_isnan(x); }
EMU_INLINE bool isinf(float x) { return __builtin_isinf(x) != 0; }
EMU_INLINE bool isinf(double x) { return __builtin_isinf(x) != 0; }
EMU_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
EMU_INLINE bool isfinite(double x) { return __builtin_isfinite(x); }

EMU_INLINE float __expf(float x) { return expf(x); }
EMU_INLINE float __exp10f(float x) { return powf(10.0f, x); }
EMU_INLINE float exp10f(float x) { return powf(10.0f, x); }
EMU_INLINE float __logf(float x) { return logf(x); }
EMU_INLINE float __log2f(float x) { return log2f(x); }
EMU_INLINE float __log10f(float x) { return log10f(x); }
EMU_INLINE float __powf(float x, float y) { return powf(x, y); }
EMU_INLINE float __sinf(float x) { return sinf(x); }
EMU_INLINE float __cosf(float x) { return cosf(x); }
EMU_INLINE float __tanhf(float x) { return tanhf(x); }
EMU_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
EMU_INLINE float rsqrt(float x) { return rsqrtf(x); }
EMU_INLINE float __frsqrt_rn(float x) { return rsqrtf(x); }
EMU_INLINE float __frcp_rn(float x) { return 1.0f / x; }
EMU_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
EMU_INLINE float __fdividef(float x, float y) { return x / y; }
EMU_INLINE float __fdiv_rn(float x, float y) { return x / y; }
EMU_INLINE float __fadd_rn(float x, float y) { return x + y; }
EMU_INLINE float __fsub_rn(float x, float y) { return x - y; }
EMU_INLINE float __fmul_rn(float x, float y) { return x * y; }
EMU_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
EMU_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }   // NaN gives 0, as on a GPU

EMU_INLINE int __float_as_int(float x) { return emu::bit_cast<int>(x); }
EMU_INLINE unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
EMU_INLINE float __int_as_float(int x) { return emu::bit_cast<float>(x); }
EMU_INLINE float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
EMU_INLINE long long __double_as_longlong(double x) { return emu::bit_cast<long long>(x); }
EMU_INLINE double __longlong_as_double(long long x) { return emu::bit_cast<double>(x); }
EMU_INLINE int __float2int_rn(float x) { return (int)rintf(x); }
EMU_INLINE int __float2int_rz(float x) { return (int)x; }
EMU_INLINE int __float2int_rd(float x) { return (int)floorf(x); }
EMU_INLINE int __float2int_ru(float x) { return (int)ceilf(x); }
EMU_INLINE unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
EMU_INLINE float __int2float_rn(int x) { return (float)x; }
EMU_INLINE float __uint2float_rn(unsigned x) { return (float)x; }

EMU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
EMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
EMU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
EMU_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
EMU_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
EMU_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
EMU_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
EMU_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
EMU_INLINE unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}
EMU_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
EMU_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
EMU_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        result |= ((unsigned)(bytes >> 8 * (selector >> 4 * i & 7)) & 0xff) << 8 * i;
    }
    return result;
}

template <class T> EMU_INLINE T __ldg(const T* p) { return *p; }
template <class T> EMU_INLINE T __ldcg(const T* p) { return *p; }
template <class T> EMU_INLINE T __ldcs(const T* p) { return *p; }
template <class T> EMU_INLINE void __stcg(T* p, typename emu::identity<T>::type value) { *p = value; }
template <class T> EMU_INLINE void __stcs(T* p, typename emu::identity<T>::type value) { *p = value; }

EMU_INLINE int abs(int x) { return x < 0 ? -x : x; }
EMU_INLINE long long abs(long long x) { return x < 0 ? -x : x; }
EMU_INLINE float abs(float x) { return fabsf(x); }
EMU_INLINE double abs(double x) { return fabs(x); }
#define EMU_MIN_MAX(T)                                                                                                      \
    EMU_INLINE T min(T a, T b) { return b < a ? b : a; }                                                                    \
    EMU_INLINE T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int) EMU_MIN_MAX(unsigned) EMU_MIN_MAX(long) EMU_MIN_MAX(unsigned long) EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
EMU_INLINE unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
EMU_INLINE unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
EMU_INLINE unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
EMU_INLINE unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
EMU_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
EMU_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
EMU_INLINE float min(float a, float b) { return fminf(a, b); }
EMU_INLINE float max(float a, float b) { return fmaxf(a, b); }
EMU_INLINE double min(double a, double b) { return fmin(a, b); }
EMU_INLINE double max(double a, double b) { return fmax(a, b); }
