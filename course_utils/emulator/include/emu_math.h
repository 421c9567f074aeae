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
EMU_LIBM(pow) EMU_LIBM(atan2) EMU_LIBM(fmod) EMU_LIBM(hypot) EMU_LIBM(copysign)
EMU_LIBM(remainder) EMU_LIBM(fdim) EMU_LIBM(nextafter)
#undef EMU_LIBM
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
EMU_INLINE float fma(float a, float b, float c) { return fmaf(a, b, c); }
#define EMU_LIBM(result, name, ...)                                                                                         \
    extern "C" result name##f(float, ##__VA_ARGS__) noexcept;                                                               \
    extern "C" result name(double, ##__VA_ARGS__) noexcept;
EMU_LIBM(int, ilogb)
#undef EMU_LIBM
EMU_INLINE int ilogb(float x) { return ilogbf(x); }
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
int fesetround(int) noexcept;
}
EMU_INLINE float ldexp(float x, int power) { return ldexpf(x, power); }
EMU_INLINE float scalbn(float x, int power) { return scalbnf(x, power); }
EMU_INLINE float scalbln(float x, long power) { return scalblnf(x, power); }
EMU_INLINE float frexp(float x, int* power) { return frexpf(x, power); }
EMU_INLINE float modf(float x, float* whole) { return modff(x, whole); }
EMU_INLINE float remquo(float x, float y, int* quotient) { return remquof(x, y, quotient); }
// Bessel functions, under other names: a kernel may be called y0.
#define EMU_BESSEL(name, ...)                                                                                               \
    extern "C" double emu_libm_##name(__VA_ARGS__ double) noexcept __asm__(#name);
EMU_BESSEL(j0) EMU_BESSEL(j1) EMU_BESSEL(y0) EMU_BESSEL(y1) EMU_BESSEL(jn, int,) EMU_BESSEL(yn, int,)
#undef EMU_BESSEL
EMU_INLINE double j0(double x) { return emu_libm_j0(x); }
EMU_INLINE double j1(double x) { return emu_libm_j1(x); }
EMU_INLINE double y0(double x) { return emu_libm_y0(x); }
EMU_INLINE double y1(double x) { return emu_libm_y1(x); }
EMU_INLINE double jn(int n, double x) { return emu_libm_jn(n, x); }
EMU_INLINE double yn(int n, double x) { return emu_libm_yn(n, x); }
EMU_INLINE float j0f(float x) { return (float)j0((double)x); }
EMU_INLINE float j1f(float x) { return (float)j1((double)x); }
EMU_INLINE float y0f(float x) { return (float)y0((double)x); }
EMU_INLINE float y1f(float x) { return (float)y1((double)x); }
EMU_INLINE float jnf(int n, float x) { return (float)jn(n, (double)x); }
EMU_INLINE float ynf(int n, float x) { return (float)yn(n, (double)x); }
EMU_INLINE void sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
EMU_INLINE void sincos(double x, double* sine, double* cosine) { *sine = sin(x), *cosine = cos(x); }
EMU_INLINE void __sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }

// int, as NVRTC has them.
EMU_INLINE int isnan(float x) { return __builtin_isnan(x); }
EMU_INLINE int isnan(double x) { return __builtin_isnan(x); }
EMU_INLINE int isinf(float x) { return __builtin_isinf(x) != 0; }
EMU_INLINE int isinf(double x) { return __builtin_isinf(x) != 0; }
EMU_INLINE int isfinite(float x) { return __builtin_isfinite(x); }
EMU_INLINE int isfinite(double x) { return __builtin_isfinite(x); }
EMU_INLINE int signbit(float x) { return __builtin_signbit(x) != 0; }
EMU_INLINE int signbit(double x) { return __builtin_signbit(x) != 0; }
#define EMU_UNDERSCORED(suffix, T)                                                                                          \
    EMU_INLINE int __finite##suffix(T x) { return isfinite(x); }                                                            \
    EMU_INLINE int __isnan##suffix(T x) { return isnan(x); }                                                                \
    EMU_INLINE int __isinf##suffix(T x) { return isinf(x); }                                                                \
    EMU_INLINE int __signbit##suffix(T x) { return signbit(x); }
EMU_UNDERSCORED(f, float) EMU_UNDERSCORED(, double)
#undef EMU_UNDERSCORED
EMU_INLINE float nanf(const char*) { return __builtin_nanf(""); }
EMU_INLINE double nan(const char*) { return __builtin_nan(""); }

// The greater and the lesser: a NaN loses, and -0 is less than +0.
#define EMU_FMIN_FMAX(T, suffix)                                                                                            \
    EMU_INLINE T fmax##suffix(T a, T b) { return a > b ? a : b > a ? b : isnan(a) ? b : isnan(b) || !signbit(a) ? a : b; }  \
    EMU_INLINE T fmin##suffix(T a, T b) { return a < b ? a : b < a ? b : isnan(a) ? b : isnan(b) || signbit(a) ? a : b; }
EMU_FMIN_FMAX(float, f) EMU_FMIN_FMAX(double, )
#undef EMU_FMIN_FMAX
EMU_INLINE float fmax(float a, float b) { return fmaxf(a, b); }
EMU_INLINE float fmin(float a, float b) { return fminf(a, b); }

namespace emu {

// An operation that rounds up, down or to zero. The compiler does not know that the rounding has changed: it may neither
// compute the operation at compile time nor move it.
#if defined(__aarch64__)
enum class rounding_mode : int { to_nearest = 0, up = 0x400000, down = 0x800000, to_zero = 0xc00000 };
#else
enum class rounding_mode : int { to_nearest = 0, down = 0x400, up = 0x800, to_zero = 0xc00 };
#endif
template <class T> EMU_INLINE auto settle(T& x) { __asm__ volatile("" : "+m"(x)); }
template <class To, class From> EMU_INLINE auto converted(From x) {      // of 0, clang makes -0 on the way down
    To y = (To)x;
    settle(y);
    return x ? y : (To)0;
}
template <class Operation, class... T> EMU_INLINE auto rounded(rounding_mode how, Operation operation, T... x) {
    fesetround((int)how);
    (settle(x), ...);
    auto result = operation(x...);
    settle(result);
    fesetround((int)rounding_mode::to_nearest);
    return result;
}

}  // namespace emu

namespace emu {
// x86 has a longer type than double; elsewhere it would take a library.
#if defined(__x86_64__)
typedef long double wide;
EMU_INLINE wide root(wide x) { return __builtin_sqrtl(x); }
#else
typedef double wide;
EMU_INLINE wide root(wide x) { return sqrt(x); }
#endif
}

// What CUDA has and C does not: in double, so that the float is right to its last bit or nearly so.
#define EMU_BY_DOUBLE(name) EMU_INLINE float name##f(float x) { return (float)name((double)x); }
EMU_INLINE double rcbrt(double x) { return 1 / cbrt(x); }
// The root of a sum of squares, or 1 / that: by the greatest's exponent, so that no square leaves the range.
inline double emu_norm(bool inverse, int count, const double* x) {
    double greatest = 0;
    bool infinite = false;
    for (int i = 0; i < count; i++) greatest = fmax(greatest, fabs(x[i])), infinite |= isinf(x[i]) != 0;
    if (infinite) return inverse ? 0 : __builtin_inf();
    const int exponent = greatest > 0 ? ilogb(greatest) : 0;
    emu::wide sum = 0;
    for (int i = 0; i < count; i++) {
        const emu::wide part = scalbn(x[i], -exponent);
        sum += part * part;
    }
    const emu::wide root = emu::root(sum);
    return inverse ? scalbn((double)(1 / root), -exponent) : scalbn((double)root, exponent);
}
template <class... T> EMU_INLINE auto emu_norm_of(bool inverse, T... x) {
    const double all[] = {x...};
    return emu_norm(inverse, (int)sizeof...(x), all);
}
EMU_INLINE double rhypot(double a, double b) { return emu_norm_of(true, a, b); }
EMU_INLINE double norm3d(double a, double b, double c) { return emu_norm_of(false, a, b, c); }
EMU_INLINE double rnorm3d(double a, double b, double c) { return emu_norm_of(true, a, b, c); }
EMU_INLINE double norm4d(double a, double b, double c, double d) { return emu_norm_of(false, a, b, c, d); }
EMU_INLINE double rnorm4d(double a, double b, double c, double d) { return emu_norm_of(true, a, b, c, d); }
EMU_INLINE float rhypotf(float a, float b) { return (float)rhypot((double)a, (double)b); }
EMU_INLINE float norm3df(float a, float b, float c) { return (float)norm3d(a, b, c); }
EMU_INLINE float rnorm3df(float a, float b, float c) { return (float)rnorm3d(a, b, c); }
EMU_INLINE float norm4df(float a, float b, float c, float d) { return (float)norm4d(a, b, c, d); }
EMU_INLINE float rnorm4df(float a, float b, float c, float d) { return (float)rnorm4d(a, b, c, d); }
EMU_INLINE double norm(int count, const double* x) { return emu_norm(false, count, x); }
EMU_INLINE double rnorm(int count, const double* x) { return emu_norm(true, count, x); }
inline float normf(int count, const float* x) {
    double sum = 0;                                            // of squares: no float's leaves the range of double
    bool infinite = false;
    for (int i = 0; i < count; i++) sum += (double)x[i] * x[i], infinite |= isinf(x[i]) != 0;
    return infinite ? __builtin_inff() : (float)sqrt(sum);
}
EMU_INLINE float rnormf(int count, const float* x) { return (float)(1 / (double)normf(count, x)); }
EMU_INLINE double fdivide(double x, double y) { return x / y; }
EMU_INLINE float fdividef(float x, float y) { return x / y; }

// sin and cos of pi x: of what x has beyond the nearest multiple of 1/2, which is exact.
inline void sincospi(double x, double* sine, double* cosine) {
    const double halves = rint(2 * (x - 2 * trunc(x / 2))), angle = 3.14159265358979323846 * (x - 2 * trunc(x / 2) - halves / 2);
    const int quarter = isfinite(x) ? (int)halves & 3 : 0;
    const double s = sin(angle), c = cos(angle);
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    if (isfinite(x) && x == trunc(x)) *sine = copysign(0.0, x);              // and the cosine of n + 1/2 is +0
    else if (*cosine == 0) *cosine = 0;
}
EMU_INLINE double sinpi(double x) {
    double sine, cosine;
    sincospi(x, &sine, &cosine);
    return sine;
}
EMU_INLINE double cospi(double x) {
    double sine, cosine;
    sincospi(x, &sine, &cosine);
    return cosine;
}
EMU_INLINE void sincospif(float x, float* sine, float* cosine) { *sine = (float)sinpi((double)x), *cosine = (float)cospi((double)x); }
EMU_INLINE void sincos(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }
EMU_INLINE void sincospi(float x, float* sine, float* cosine) { sincospif(x, sine, cosine); }

// exp(x^2) erfc(x): far out, where the factors leave the range of double, by the asymptotic series.
inline double erfcx(double x) {
    if (x < -27) return __builtin_inf();
    if (!(x > 25)) {
        const double square = x * x, rest = fma(x, x, -square);
        return exp(square) * (1 + rest) * erfc(x);
    }
    const double z = 0.5 / x / x;
    return 0.56418958354775628695 / x * (1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z * (1 - 9 * z)))));
}
// The x whose erfc is y: by Newton's steps on erf, where y is near to 1, else on its logarithm, which is nearly a parabola.
inline double erfcinv(double y) {
    if (isnan(y) || y < 0 || y > 2) return nan("");
    if (y == 0 || y == 2) return y == 0 ? __builtin_inf() : -__builtin_inf();
    if (y > 1.5) return -erfcinv(2 - y);
    const double slope = 1.12837916709551257390;              // 2 / sqrt(pi)
    double x = y > 0.5 ? (1 - y) / slope : sqrt(-log(y));
    for (int i = 0; i < 60; i++) {
        const double before = x;
        if (y > 0.5) {
            const double step = (erf(x) - (1 - y)) / (slope * exp(-x * x));
            x -= step / (1 + x * step);
        } else {
            x += (log(erfcx(x)) - fma(x, x, log(y))) * erfcx(x) / slope;
        }
        if (x == before) break;
    }
    return x;
}
inline double erfinv(double y) {
    if (fabs(y) > 0.5) return copysign(erfcinv(1 - fabs(y)), y);
    if (fabs(y) < 1e-9) return y * 0.88622692545275801365;    // sqrt(pi) / 2
    double x = y * 0.88622692545275801365;
    for (int i = 0; i < 8; i++) {
        const double step = (erf(x) - y) / (1.12837916709551257390 * exp(-x * x));
        x -= step / (1 + x * step);
    }
    return x;
}
// By erfc at -x / sqrt(2), which no double is: the derivative makes up for the difference.
inline double normcdf(double x) {
    if (isnan(x) || fabs(x) > 40) return isnan(x) ? x : x > 0 ? 1.0 : 0.0;
    const double high = -x * 0.70710678118654752440, low = fma(-x, 0.70710678118654752440, -high) + x * 4.8336466567264567e-17;
    return 0.5 * erfc(high) - 0.56418958354775628695 * exp(-high * high) * low;
}
inline double normcdfinv(double p) { return p < 0 || p > 1 ? nan("") : 0 - 1.41421356237309504880 * erfcinv(2 * p); }
// Modified Bessel functions: all terms of their series have one sign.
inline double emu_bessel_i(int order, double x) {
    if (isnan(x) || fabs(x) > 714) return isnan(x) ? x : order && x < 0 ? -__builtin_inf() : __builtin_inf();
    const emu::wide quarter = (emu::wide)x * x / 4;
    emu::wide term = order ? (emu::wide)x / 2 : 1, sum = term;
    for (int k = 1; sum + term != sum || k < 2; k++) sum += term *= quarter / ((emu::wide)k * (k + order));
    return (double)sum;
}
EMU_INLINE double cyl_bessel_i0(double x) { return emu_bessel_i(0, x); }
EMU_INLINE double cyl_bessel_i1(double x) { return emu_bessel_i(1, x); }
EMU_BY_DOUBLE(rcbrt) EMU_BY_DOUBLE(sinpi) EMU_BY_DOUBLE(cospi) EMU_BY_DOUBLE(normcdf) EMU_BY_DOUBLE(normcdfinv) EMU_BY_DOUBLE(erfcx)
EMU_BY_DOUBLE(erfinv) EMU_BY_DOUBLE(erfcinv) EMU_BY_DOUBLE(cyl_bessel_i0) EMU_BY_DOUBLE(cyl_bessel_i1)
#undef EMU_BY_DOUBLE
#define EMU_OVERLOAD(name) EMU_INLINE float name(float x) { return name##f(x); }
EMU_OVERLOAD(rcbrt) EMU_OVERLOAD(sinpi) EMU_OVERLOAD(cospi) EMU_OVERLOAD(normcdf) EMU_OVERLOAD(normcdfinv) EMU_OVERLOAD(erfcx)
EMU_OVERLOAD(erfinv) EMU_OVERLOAD(erfcinv)
#undef EMU_OVERLOAD
EMU_INLINE double exp10(double x) { return pow(10.0, x); }
EMU_INLINE float exp10f(float x) { return powf(10.0f, x); }
EMU_INLINE float exp10(float x) { return exp10f(x); }
EMU_INLINE double rsqrt(double x) { return 1 / sqrt(x); }
EMU_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
EMU_INLINE float rsqrt(float x) { return rsqrtf(x); }

// Arithmetic that is rounded as the name says.
#define EMU_EVERY_ROUNDING(T, name, parameters, expression, ...)                                                            \
    EMU_INLINE T name##_rn parameters { return expression; }                                                                \
    EMU_INLINE T name##_rz parameters { return emu::rounded(emu::rounding_mode::to_zero, [] parameters -> T { return expression; }, __VA_ARGS__); } \
    EMU_INLINE T name##_ru parameters { return emu::rounded(emu::rounding_mode::up, [] parameters -> T { return expression; }, __VA_ARGS__); } \
    EMU_INLINE T name##_rd parameters { return emu::rounded(emu::rounding_mode::down, [] parameters -> T { return expression; }, __VA_ARGS__); }
#define EMU_ARITHMETIC(T, letter, fused, root)                                                                              \
    EMU_EVERY_ROUNDING(T, __##letter##add, (T x, T y), x + y, x, y)                                                         \
    EMU_EVERY_ROUNDING(T, __##letter##sub, (T x, T y), x - y, x, y)                                                         \
    EMU_EVERY_ROUNDING(T, __##letter##mul, (T x, T y), x * y, x, y)                                                         \
    EMU_EVERY_ROUNDING(T, __##letter##div, (T x, T y), x / y, x, y)                                                         \
    EMU_EVERY_ROUNDING(T, __##letter##rcp, (T x), 1 / x, x)                                                                 \
    EMU_EVERY_ROUNDING(T, __##letter##sqrt, (T x), root(x), x)                                                              \
    EMU_EVERY_ROUNDING(T, __##fused, (T x, T y, T z), fused(x, y, z), x, y, z)
EMU_ARITHMETIC(float, f, fmaf, sqrtf)
EMU_ARITHMETIC(double, d, fma, sqrt)
EMU_EVERY_ROUNDING(float, __fmaf_ieee, (float x, float y, float z), fmaf(x, y, z), x, y, z)
EMU_EVERY_ROUNDING(float, __int2float, (int x), emu::converted<float>(x), x)
EMU_EVERY_ROUNDING(float, __uint2float, (unsigned x), emu::converted<float>(x), x)
EMU_EVERY_ROUNDING(float, __ll2float, (long long x), emu::converted<float>(x), x)
EMU_EVERY_ROUNDING(float, __ull2float, (unsigned long long x), emu::converted<float>(x), x)
EMU_EVERY_ROUNDING(double, __ll2double, (long long x), emu::converted<double>(x), x)
EMU_EVERY_ROUNDING(double, __ull2double, (unsigned long long x), emu::converted<double>(x), x)
EMU_EVERY_ROUNDING(float, __double2float, (double x), (float)x, x)
#undef EMU_ARITHMETIC
#undef EMU_EVERY_ROUNDING
EMU_INLINE double __int2double_rn(int x) { return x; }
EMU_INLINE double __uint2double_rn(unsigned x) { return x; }
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };

EMU_INLINE float __expf(float x) { return expf(x); }
EMU_INLINE float __exp10f(float x) { return exp10f(x); }
EMU_INLINE float __logf(float x) { return logf(x); }
EMU_INLINE float __log2f(float x) { return log2f(x); }
EMU_INLINE float __log10f(float x) { return log10f(x); }
EMU_INLINE float __powf(float x, float y) { return exp2f(y * log2f(x)); }       // no number for x < 0, and for 0 to the 0
EMU_INLINE float __sinf(float x) { return sinf(x); }
EMU_INLINE float __cosf(float x) { return cosf(x); }
EMU_INLINE float __tanf(float x) { return tanf(x); }
EMU_INLINE float __tanhf(float x) { return tanhf(x); }
EMU_INLINE float __frsqrt_rn(float x) { return (float)(1 / sqrt((double)x)); }
EMU_INLINE float __fdividef(float x, float y) { return fabsf(y) > 0x1p126f ? x * copysignf(0, y) : x / y; }
EMU_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }   // NaN gives 0, as on a GPU

EMU_INLINE int __float_as_int(float x) { return emu::bit_cast<int>(x); }
EMU_INLINE unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
EMU_INLINE float __int_as_float(int x) { return emu::bit_cast<float>(x); }
EMU_INLINE float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
EMU_INLINE long long __double_as_longlong(double x) { return emu::bit_cast<long long>(x); }
EMU_INLINE double __longlong_as_double(long long x) { return emu::bit_cast<double>(x); }
namespace emu {
// A whole number as an integer, as a GPU converts it: what does not fit becomes the nearest that does. NaN becomes 0; from a
// double, or in 64 bits, the highest bit alone.
template <class T, class From> EMU_INLINE auto to_integer(From x) {
    constexpr bool is_signed = (T)-1 < (T)0;
    constexpr int bits = 8 * sizeof(T) - is_signed;
    const From beyond = bits == 64 ? (From)0x1p64 : (From)(1ull << bits % 64);
    const T least = is_signed ? (T)((T)1 << bits % 64) : (T)0;
    const T of_nan = sizeof(T) == 8 || sizeof(From) == 8 ? (T)((T)1 << (8 * sizeof(T) - 1)) : (T)0;
    return isnan(x) ? of_nan : x >= beyond ? (T)~least : x <= (From)least ? least : (T)x;
}
}
#define EMU_TO_INTEGER(from, T, name, suffix)                                                                               \
    EMU_INLINE T name##_rn(from x) { return emu::to_integer<T>(rint##suffix(x)); }                                          \
    EMU_INLINE T name##_rz(from x) { return emu::to_integer<T>(trunc##suffix(x)); }                                         \
    EMU_INLINE T name##_rd(from x) { return emu::to_integer<T>(floor##suffix(x)); }                                         \
    EMU_INLINE T name##_ru(from x) { return emu::to_integer<T>(ceil##suffix(x)); }
EMU_TO_INTEGER(float, int, __float2int, f) EMU_TO_INTEGER(float, unsigned, __float2uint, f)
EMU_TO_INTEGER(float, long long, __float2ll, f) EMU_TO_INTEGER(float, unsigned long long, __float2ull, f)
EMU_TO_INTEGER(double, int, __double2int, ) EMU_TO_INTEGER(double, unsigned, __double2uint, )
EMU_TO_INTEGER(double, long long, __double2ll, ) EMU_TO_INTEGER(double, unsigned long long, __double2ull, )
#undef EMU_TO_INTEGER
#define EMU_TO_LONG(from, suffix)                                                                                           \
    EMU_INLINE long lrint##suffix(from x) { return emu::to_integer<long>(rint##suffix(x)); }                                \
    EMU_INLINE long long llrint##suffix(from x) { return emu::to_integer<long long>(rint##suffix(x)); }                     \
    EMU_INLINE long lround##suffix(from x) { return emu::to_integer<long>(round##suffix(x)); }                              \
    EMU_INLINE long long llround##suffix(from x) { return emu::to_integer<long long>(round##suffix(x)); }
EMU_TO_LONG(float, f) EMU_TO_LONG(double, )
#undef EMU_TO_LONG
EMU_INLINE long lrint(float x) { return lrintf(x); }
EMU_INLINE long long llrint(float x) { return llrintf(x); }
EMU_INLINE long lround(float x) { return lroundf(x); }
EMU_INLINE long long llround(float x) { return llroundf(x); }
// The same, by an argument.
#define EMU_BY_MODE(T, name, mode_unless_given, called, parameters, ...)                                                    \
    EMU_INLINE T name(EMU_LIST parameters, cudaRoundMode mode mode_unless_given) {                                          \
        return mode == cudaRoundZero ? called##_rz(__VA_ARGS__) : mode == cudaRoundPosInf ? called##_ru(__VA_ARGS__)        \
             : mode == cudaRoundMinInf ? called##_rd(__VA_ARGS__) : called##_rn(__VA_ARGS__);                               \
    }
#define EMU_LIST(...) __VA_ARGS__
EMU_BY_MODE(int, double2int, = cudaRoundZero, __double2int, (double x), x)
EMU_BY_MODE(unsigned, double2uint, = cudaRoundZero, __double2uint, (double x), x)
EMU_BY_MODE(long long, double2ll, = cudaRoundZero, __double2ll, (double x), x)
EMU_BY_MODE(unsigned long long, double2ull, = cudaRoundZero, __double2ull, (double x), x)
EMU_BY_MODE(double, ll2double, = cudaRoundNearest, __ll2double, (long long x), x)
EMU_BY_MODE(double, ull2double, = cudaRoundNearest, __ull2double, (unsigned long long x), x)
EMU_BY_MODE(double, dadd, = cudaRoundNearest, __dadd, (double x, double y), x, y)
EMU_BY_MODE(double, dsub, = cudaRoundNearest, __dsub, (double x, double y), x, y)
EMU_BY_MODE(double, dmul, = cudaRoundNearest, __dmul, (double x, double y), x, y)
EMU_BY_MODE(double, fma, , __fma, (double x, double y, double z), x, y, z)
#undef EMU_BY_MODE
#undef EMU_LIST
EMU_INLINE double int2double(int x, cudaRoundMode = cudaRoundNearest) { return x; }
EMU_INLINE double uint2double(unsigned x, cudaRoundMode = cudaRoundNearest) { return x; }
EMU_INLINE double float2double(float x, cudaRoundMode = cudaRoundNearest) { return x; }
EMU_INLINE int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
EMU_INLINE int __double2loint(double x) { return (int)__double_as_longlong(x); }
EMU_INLINE double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

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

#define EMU_ABS(T, U, name) EMU_INLINE T name(T x) { return x < 0 ? (T)-(U)x : x; }    // of the least, itself
EMU_ABS(int, unsigned, abs) EMU_ABS(long, unsigned long, abs) EMU_ABS(long long, unsigned long long, abs)
EMU_ABS(long, unsigned long, labs) EMU_ABS(long long, unsigned long long, llabs)
#undef EMU_ABS
EMU_INLINE float abs(float x) { return fabsf(x); }
EMU_INLINE double abs(double x) { return fabs(x); }
#define EMU_MIN_MAX(T)                                                                                                      \
    EMU_INLINE T min(T a, T b) { return b < a ? b : a; }                                                                    \
    EMU_INLINE T max(T a, T b) { return a < b ? b : a; }
EMU_MIN_MAX(int) EMU_MIN_MAX(unsigned) EMU_MIN_MAX(long) EMU_MIN_MAX(unsigned long) EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
#define EMU_MIXED(S, U)                                                                                                     \
    EMU_INLINE U min(S a, U b) { return min((U)a, b); }                                                                     \
    EMU_INLINE U min(U a, S b) { return min(a, (U)b); }                                                                     \
    EMU_INLINE U max(S a, U b) { return max((U)a, b); }                                                                     \
    EMU_INLINE U max(U a, S b) { return max(a, (U)b); }
EMU_MIXED(int, unsigned) EMU_MIXED(long, unsigned long) EMU_MIXED(long long, unsigned long long)
#undef EMU_MIXED
#define EMU_NAMED(T, letters)                                                                                               \
    EMU_INLINE T letters##min(T a, T b) { return min(a, b); }                                                               \
    EMU_INLINE T letters##max(T a, T b) { return max(a, b); }
EMU_NAMED(unsigned, u) EMU_NAMED(long long, ll) EMU_NAMED(unsigned long long, ull)
#undef EMU_NAMED
EMU_INLINE float min(float a, float b) { return fminf(a, b); }
EMU_INLINE float max(float a, float b) { return fmaxf(a, b); }
EMU_INLINE double min(double a, double b) { return fmin(a, b); }
EMU_INLINE double max(double a, double b) { return fmax(a, b); }
EMU_INLINE double min(float a, double b) { return fmin((double)a, b); }
EMU_INLINE double min(double a, float b) { return fmin(a, (double)b); }
EMU_INLINE double max(float a, double b) { return fmax((double)a, b); }
EMU_INLINE double max(double a, float b) { return fmax(a, (double)b); }
EMU_INLINE double copysign(float x, double y) { return copysign((double)x, y); }
EMU_INLINE double copysign(double x, float y) { return copysign(x, (double)y); }
EMU_INLINE float pow(float x, int y) { return powf(x, (float)y); }
EMU_INLINE double pow(double x, int y) { return pow(x, (double)y); }
