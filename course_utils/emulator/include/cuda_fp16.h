#pragma once
#define __CUDA_FP16_H__        // so that a header of CUDA's own does not bring in the one of the same name beside it

typedef emu::scalar16<emu::fp16_format> __half;
typedef emu::pair16<emu::fp16_format> __half2;
typedef emu::raw_of<emu::fp16_format> __half_raw;
typedef emu::raw_pair_of<emu::fp16_format> __half2_raw;
typedef __half half, __nv_half, nv_half;
typedef __half2 half2, __nv_half2, nv_half2;
typedef __half_raw __nv_half_raw;
typedef __half2_raw __nv_half2_raw;
EMU_FLOAT16_FUNCTIONS(__half, __half2, half, half2)

EMU_INLINE short __half_as_short(__half a) { return (short)a.__x; }
EMU_INLINE unsigned short __half_as_ushort(__half a) { return a.__x; }
EMU_INLINE __half __short_as_half(short bits) { return __half_raw{(unsigned short)bits}; }
EMU_INLINE __half __ushort_as_half(unsigned short bits) { return __half_raw{bits}; }

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7bffu)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000u)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000u)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3c00u)
