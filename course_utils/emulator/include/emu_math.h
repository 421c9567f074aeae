// Arithmetic functions and intrinsics. The fast ones (__expf, ex2.approx, ...) are exact here: last bits differ from a GPU's.
#pragma once

#define EMU_LIBM(name)                                                                                                      \
    extern "C" float name##f(float) noexcept;                                                                               \
    extern "C" double name(double) noexcept;                                                                                \
    EMU_INLINE float name(float x) { return name##f(x); }
EMU_LIBM(exp) EMU_LIBM(exp2) EMU_LIBM(expm1) EMU_LIBM(log) EMU_LIBM(log2) EMU_LIBM(log10) EMU_LIBM(log1p) EMU_LIBM(sqrt)
EMU_LIBM(cbrt) EMU_LIBM(sin) EMU_LIBM(cos) EMU_LIBM(tan) EMU_LIBM(asin) EMU_LIBM(acos) EMU_LIBM(atan) EMU_LIBM(sinh) EMU_LIBM(cosh)
EMU_LIBM(tanh) EMU_LIBM(erf) EMU_LIBM(erfc) EMU_LIBM(floor) EMU_LIBM(ceil) EMU_LIBM(round) EMU_LIBM(rint) EMU_LIBM(trunc)
EMU_LIBM(fabs) EMU_LIBM(nearbyint) EMU_LIBM(asinh) EMU_LIBM(acosh) EMU_LIBM(atanh) EMU_LIBM(lgamma) EMU_LIBM(tgamma) EMU_LIBM(logb)
#undef EMU_LIBM
#define EMU_LIBM(name)                                                                                                      \
    extern "C" float name##f(float, float) noexcept;                                                                        \
    extern "C" double name(double, double) noexcept;                                                                        \
    EMU_INLINE float name(float x, float y) { return name##f(x, y); }
EMU_LIBM(pow) EMU_LIBM(atan2) EMU_LIBM(fmod) EMU_LIBM(fmin) EMU_LIBM(fmax) EMU_LIBM(hypot) EMU_LIBM(copysign)
EMU_LIBM(remainder) EMU_LIBM(fdim) EMU_LIBM(nextafter)
#undef EMU_LIBM
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
EMU_INLINE float fma(float a, float b, float c) { return fmaf(a, b, c); }
#define EMU_LIBM(result, name, ...)                                                                                         \
    extern "C" result name##f(float, ##__VA_ARGS__) noexcept;                                                               \
    extern "C" result name(double, ##__VA_ARGS__) noexcept;
EMU_LIBM(int, ilogb) EMU_LIBM(long, lrint) EMU_LIBM(long, lround) EMU_LIBM(long long, llrint) EMU_LIBM(long long, llround)
#undef EMU_LIBM
#define EMU_LIBM(name, type)                                                                                                \
    extern "C" float name##f(float, type) noexcept;                                                                         \
    extern "C" double name(double, type) noexcept;
EMU_LIBM(ldexp, int) EMU_LIBM(scalbn, int) EMU_LIBM(scalbln, long) EMU_LIBM(frexp, int*)
#undef EMU_LIBM
extern "C" {
float modff(float, float*) noexcept;
double modf(double, double*) noexcept;
float remquof(float, float, int*) noexcept;
double remquo(double, double, int*) noexcept;
float j0f(float) noexcept;       // of double, too, in CUDA: a kernel may be called y0
float j1f(float) noexcept;
float y0f(float) noexcept;
float y1f(float) noexcept;
float jnf(int, float) noexcept;
float ynf(int, float) noexcept;
}
EMU_INLINE void sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
EMU_INLINE void sincos(double x, double* sine, double* cosine) { *sine = sin(x), *cosine = cos(x); }
EMU_INLINE void __sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }

EMU_INLINE bool isnan(float x) { return __builtin_isnan(x); }
EMU_INLINE bool isnan(double x) { return __builtin_isnan(x); }
EMU_INLINE bool isinf(float x) { return __builtin_isinf(x) != 0; }
EMU_INLINE bool isinf(double x) { return __builtin_isinf(x) != 0; }
EMU_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
EMU_INLINE bool isfinite(double x) { return __builtin_isfinite(x); }

// What CUDA has and C does not: in double, so that the float is right to its last bit or nearly so.
EMU_INLINE double rcbrt(double x) { return 1 / cbrt(x); }
EMU_INLINE float rcbrtf(float x) { return (float)rcbrt((double)x); }
EMU_INLINE double rhypot(double x, double y) { return 1 / hypot(x, y); }
EMU_INLINE float rhypotf(float x, float y) { return (float)rhypot((double)x, (double)y); }
EMU_INLINE double norm3d(double a, double b, double c) { return hypot(hypot(a, b), c); }
EMU_INLINE float norm3df(float a, float b, float c) { return (float)norm3d(a, b, c); }
EMU_INLINE double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
EMU_INLINE float rnorm3df(float a, float b, float c) { return (float)rnorm3d(a, b, c); }
EMU_INLINE double norm4d(double a, double b, double c, double d) { return hypot(norm3d(a, b, c), d); }
EMU_INLINE float norm4df(float a, float b, float c, float d) { return (float)norm4d(a, b, c, d); }
EMU_INLINE double rnorm4d(double a, double b, double c, double d) { return 1 / norm4d(a, b, c, d); }
EMU_INLINE float rnorm4df(float a, float b, float c, float d) { return (float)rnorm4d(a, b, c, d); }
EMU_INLINE double sinpi(double x) { return sin(3.14159265358979323846 * (x - 2 * rint(x / 2))); }
EMU_INLINE float sinpif(float x) { return (float)sinpi((double)x); }
EMU_INLINE double cospi(double x) { return cos(3.14159265358979323846 * (x - 2 * rint(x / 2))); }
EMU_INLINE float cospif(float x) { return (float)cospi((double)x); }
EMU_INLINE void sincospif(float x, float* sine, float* cosine) { *sine = sinpif(x), *cosine = cospif(x); }
EMU_INLINE double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
EMU_INLINE float normcdff(float x) { return (float)normcdf((double)x); }
EMU_INLINE double exp10(double x) { return pow(10.0, x); }
EMU_INLINE double rsqrt(double x) { return 1 / sqrt(x); }
EMU_INLINE float __tanf(float x) { return tanf(x); }
EMU_INLINE double __dadd_rn(double x, double y) { return x + y; }
EMU_INLINE double __dsub_rn(double x, double y) { return x - y; }
EMU_INLINE double __dmul_rn(double x, double y) { return x * y; }
EMU_INLINE double __ddiv_rn(double x, double y) { return x / y; }
EMU_INLINE double __drcp_rn(double x) { return 1 / x; }
EMU_INLINE double __dsqrt_rn(double x) { return sqrt(x); }
EMU_INLINE double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

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
namespace emu {
// A number as an integer, as a GPU converts it: what does not fit becomes the nearest that does, and no number becomes 0.
template <class T> EMU_INLINE T to_integer(double x) {
    constexpr bool is_signed = (T)-1 < (T)0;
    constexpr int bits = 8 * sizeof(T) - is_signed;
    const double beyond = bits == 64 ? 0x1p64 : bits == 63 ? 0x1p63 : (double)(1ull << bits);
    const T least = is_signed ? (T)((T)1 << bits) : (T)0;
    return isnan(x) ? (T)0 : x >= beyond ? (T)~least : x <= (double)least ? least : (T)x;
}
}
#define EMU_TO_INTEGER(from, T, name)                                                                                       \
    EMU_INLINE T name##_rn(from x) { return emu::to_integer<T>(rint((double)x)); }                                          \
    EMU_INLINE T name##_rz(from x) { return emu::to_integer<T>(trunc((double)x)); }                                         \
    EMU_INLINE T name##_rd(from x) { return emu::to_integer<T>(floor((double)x)); }                                         \
    EMU_INLINE T name##_ru(from x) { return emu::to_integer<T>(ceil((double)x)); }
EMU_TO_INTEGER(float, int, __float2int) EMU_TO_INTEGER(float, unsigned, __float2uint)
EMU_TO_INTEGER(float, long long, __float2ll) EMU_TO_INTEGER(float, unsigned long long, __float2ull)
EMU_TO_INTEGER(double, int, __double2int) EMU_TO_INTEGER(double, unsigned, __double2uint)
EMU_TO_INTEGER(double, long long, __double2ll) EMU_TO_INTEGER(double, unsigned long long, __double2ull)
#undef EMU_TO_INTEGER
EMU_INLINE float __int2float_rn(int x) { return (float)x; }
EMU_INLINE float __uint2float_rn(unsigned x) { return (float)x; }
EMU_INLINE float __ll2float_rn(long long x) { return (float)x; }
EMU_INLINE float __ull2float_rn(unsigned long long x) { return (float)x; }
EMU_INLINE double __int2double_rn(int x) { return x; }
EMU_INLINE double __uint2double_rn(unsigned x) { return x; }
EMU_INLINE double __ll2double_rn(long long x) { return (double)x; }
EMU_INLINE double __ull2double_rn(unsigned long long x) { return (double)x; }
EMU_INLINE float __double2float_rn(double x) { return (float)x; }
EMU_INLINE int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
EMU_INLINE int __double2loint(double x) { return (int)__double_as_longlong(x); }
EMU_INLINE double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

// What the CUDA Math API has and the emulator has not: "use of deleted function", with the caller's line.
namespace emu { struct the_emulator_does_not_have_this; }
#define EMU_MISSING(name) template <class... T> emu::the_emulator_does_not_have_this name(T...) = delete;
#define EMU_MISSING_ROUNDING(name) EMU_MISSING(name##_rz) EMU_MISSING(name##_ru) EMU_MISSING(name##_rd)
EMU_MISSING(erfinv) EMU_MISSING(erfinvf) EMU_MISSING(erfcinv) EMU_MISSING(erfcinvf) EMU_MISSING(erfcx) EMU_MISSING(erfcxf)
EMU_MISSING(normcdfinv) EMU_MISSING(normcdfinvf) EMU_MISSING(cyl_bessel_i0) EMU_MISSING(cyl_bessel_i0f)
EMU_MISSING(cyl_bessel_i1) EMU_MISSING(cyl_bessel_i1f) EMU_MISSING(sincospi)
EMU_MISSING_ROUNDING(__fadd) EMU_MISSING_ROUNDING(__fsub) EMU_MISSING_ROUNDING(__fmul) EMU_MISSING_ROUNDING(__fmaf)
EMU_MISSING_ROUNDING(__frcp) EMU_MISSING_ROUNDING(__fsqrt) EMU_MISSING_ROUNDING(__fdiv) EMU_MISSING_ROUNDING(__dadd)
EMU_MISSING_ROUNDING(__dsub) EMU_MISSING_ROUNDING(__dmul) EMU_MISSING_ROUNDING(__fma) EMU_MISSING_ROUNDING(__drcp)
EMU_MISSING_ROUNDING(__dsqrt) EMU_MISSING_ROUNDING(__ddiv) EMU_MISSING_ROUNDING(__int2float)
EMU_MISSING_ROUNDING(__uint2float) EMU_MISSING_ROUNDING(__ll2float) EMU_MISSING_ROUNDING(__ull2float)
EMU_MISSING_ROUNDING(__double2float) EMU_MISSING_ROUNDING(__ll2double) EMU_MISSING_ROUNDING(__ull2double)
#undef EMU_MISSING_ROUNDING
#undef EMU_MISSING

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
