// Included before the first line of every kernel: the CUDA C++ that NVRTC knows without any #include.
#pragma once
// NVRTC knows none of these without a header: a kernel may declare them itself, as another type than the host's.
#define int8_t emu_int8_t
#define int16_t emu_int16_t
#define int32_t emu_int32_t
#define int64_t emu_int64_t
#define int_fast8_t emu_int_fast8_t
#define int_fast16_t emu_int_fast16_t
#define int_fast32_t emu_int_fast32_t
#define int_fast64_t emu_int_fast64_t
#define int_least8_t emu_int_least8_t
#define int_least16_t emu_int_least16_t
#define int_least32_t emu_int_least32_t
#define int_least64_t emu_int_least64_t
#define uint8_t emu_uint8_t
#define uint16_t emu_uint16_t
#define uint32_t emu_uint32_t
#define uint64_t emu_uint64_t
#define uint_fast8_t emu_uint_fast8_t
#define uint_fast16_t emu_uint_fast16_t
#define uint_fast32_t emu_uint_fast32_t
#define uint_fast64_t emu_uint_fast64_t
#define uint_least8_t emu_uint_least8_t
#define uint_least16_t emu_uint_least16_t
#define uint_least32_t emu_uint_least32_t
#define uint_least64_t emu_uint_least64_t
#define intptr_t emu_intptr_t
#define uintptr_t emu_uintptr_t
#define intmax_t emu_intmax_t
#define uintmax_t emu_uintmax_t
#include "../runtime/abi.h"
#include <initializer_list>         // which NVRTC has built in

// What NVRTC defines and a file may ask for: with default options, and with the versions of the wheel that was looked at.
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 88
#define __CUDA_API_VER_MAJOR__ 13
#define __CUDA_API_VER_MINOR__ 0
#define CUDART_VERSION 13000
#define __CUDART_API_VERSION ((13 * 1000) + (0 * 10))
#define __CUDACC_DEVICE_ATOMIC_BUILTINS__ 1
#define __CUDACC_RTC_BUILTIN_VECTOR_TYPES__ 1
#define __CUDA_FTZ 0
#define __CUDA_PREC_DIV 1
#define __CUDA_PREC_SQRT 1
#define __EDG__ 1
#define __EDG_VERSION__ 606
#define __NVCC_DIAG_PRAGMA_SUPPORT__ 1
#define __CUDA_ARCH_LIST__ __CUDA_ARCH__
#define __CUDA_MINIMUM_ARCH__ __CUDA_ARCH__
#define __CUDA_ARCH_HAS_FEATURE__(feature) __CUDA_ARCH_FEAT_##feature
#if !defined(NULL)
#define NULL 0
#endif
#if defined(EMU_HOPPER)        // to kernels that ask for exactly sm_90a, as that; to all others as sm_80
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#else
#define __CUDA_ARCH__ 800
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)            // translate.py gives them to the kernel's entry
#define __device_builtin__               // in NVIDIA's headers
#define __cudart_builtin__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __shared__ thread_local      // an OS thread runs one block at a time: its thread-local storage is the block's memory

#if !defined(__clang__)
#define __builtin_assume(condition) ((void)0)
#endif

#if defined(EMU_RECORDED)
#define EMU_NOTICED EMU_IS_RECORDED
#else
#define EMU_NOTICED 0
#endif

// Helpers of these headers vanish from the debug information, so that a line number is the learner's line.
// A template among them returns auto: then g++ compiles its uses in these headers once, when it precompiles them. With a type
// named it would do so at the end of every kernel.
#if defined(__clang__)
#define EMU_INLINE inline __attribute__((always_inline, nodebug))
#else
// Nor does g++ look for what C++ leaves undefined in them (runtime/undefined.cpp): they compute what a GPU does.
#define EMU_INLINE inline __attribute__((always_inline, artificial, no_sanitize("float-cast-overflow", "shift-exponent")))
#endif

// A build for the sanitizer and the profiler defines EMU_TRACED: every access must then reach the runtime, as wide as it is
// on a GPU. The compiler reports those that it can see; functions of these headers that it must not look into report theirs.
#if !defined(EMU_TRACED)
#define EMU_TOUCH(address, bytes, kind)
#define EMU_UNSEEN
#else
#define EMU_TOUCH(address, bytes, kind) emu_touch(address, bytes, kind)
#if defined(__clang__)
#define EMU_UNSEEN __attribute__((noinline, disable_sanitizer_instrumentation))
#else
#define EMU_UNSEEN __attribute__((noinline, no_sanitize("thread"), optimize("O2")))
#endif
#endif

extern "C" {
void* memcpy(void*, const void*, size_t) noexcept;
void* memmove(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
}

namespace emu {
template <class To, class From> EMU_INLINE auto bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between types of different size");
    To to;
    memcpy((void*)&to, &from, sizeof to);
    return to;
}
template <class T> struct identity { typedef T type; };   // keeps a parameter out of template deduction
}

#define __builtin_bit_cast(T, value) emu::bit_cast<T>(value)

#include "emu_vector_types.h"
#include "emu_threads.h"
#include "emu_atomics.h"
#include "emu_math.h"
#include "emu_integers.h"
#include "emu_float16.h"
#include "emu_ptx.h"
#include "emu_memory_ptx.h"
#include "emu_arithmetic_ptx.h"
#include "emu_warp_ptx.h"
#include "emu_mma_ptx.h"
#if defined(EMU_HOPPER)
#include "emu_hopper.h"
#endif
#include "emu_entry.h"

#if defined(EMU_TRACED) && !defined(__clang__)      // g++ leaves it to a library to report what these access
extern "C" {
void* __tsan_memcpy(void*, const void*, size_t) noexcept;
void* __tsan_memmove(void*, const void*, size_t) noexcept;
void* __tsan_memset(void*, int, size_t) noexcept;
}
#define memcpy __tsan_memcpy
#define memmove __tsan_memmove
#define memset __tsan_memset
#endif

// What a GPU prints: the NaN that it computes has no sign, and x86's has.
template <class T> EMU_INLINE T emu_printed(T x) { return x; }
EMU_INLINE double emu_printed(double x) { return x != x ? __builtin_nan("") : x; }
EMU_INLINE double emu_printed(float x) { return emu_printed((double)x); }

// How many values it was given: a GPU's printf() returns no number of characters.
template <class... T> EMU_INLINE int emu_print(const char* format, T... values) {
    if (!format) return -1;
    emu_printf(format, emu_printed(values)...);
    return (int)sizeof...(values);
}
#define printf emu_print
#undef assert
#if defined(NDEBUG)
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : emu_assert(#condition, __PRETTY_FUNCTION__, emu_here()))
#endif

#undef int8_t
#undef int16_t
#undef int32_t
#undef int64_t
#undef int_fast8_t
#undef int_fast16_t
#undef int_fast32_t
#undef int_fast64_t
#undef int_least8_t
#undef int_least16_t
#undef int_least32_t
#undef int_least64_t
#undef uint8_t
#undef uint16_t
#undef uint32_t
#undef uint64_t
#undef uint_fast8_t
#undef uint_fast16_t
#undef uint_fast32_t
#undef uint_fast64_t
#undef uint_least8_t
#undef uint_least16_t
#undef uint_least32_t
#undef uint_least64_t
#undef intptr_t
#undef uintptr_t
#undef intmax_t
#undef uintmax_t
