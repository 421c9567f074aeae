// The instructions of <cuda/ptx> that cuda/std/bit asks for: NVIDIA's own are PTX.
#pragma once
#include <cuda/std/cstdint>

_LIBCUDACXX_BEGIN_NAMESPACE_CUDA_PTX
EMU_INLINE uint32_t bfind(uint32_t x) { return x ? 31 - (uint32_t)__clz((int)x) : ~0u; }
EMU_INLINE uint32_t bfind(uint64_t x) { return x ? 63 - (uint32_t)__clzll((long long)x) : ~0u; }
template <class T> EMU_INLINE T shl(T x, uint32_t by) { return by < 8 * sizeof(T) ? (T)(x << by) : (T)0; }
template <class T> EMU_INLINE T shr(T x, uint32_t by) {
    const uint32_t last = 8 * sizeof(T) - 1;
    return by <= last ? (T)(x >> by) : x < 0 ? (T)-1 : (T)0;
}
_LIBCUDACXX_END_NAMESPACE_CUDA_PTX
