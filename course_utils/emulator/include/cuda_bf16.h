#pragma once
#define __CUDA_BF16_H__        // so that a header of CUDA's own does not bring in the one of the same name beside it
#include "cuda_fp16.h"

typedef emu::scalar16<emu::bf16_format> __nv_bfloat16;
typedef emu::pair16<emu::bf16_format> __nv_bfloat162;
typedef emu::raw_of<emu::bf16_format> __nv_bfloat16_raw;
typedef emu::raw_pair_of<emu::bf16_format> __nv_bfloat162_raw;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
EMU_FLOAT16_FUNCTIONS(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)

EMU_INLINE short __bfloat16_as_short(__nv_bfloat16 a) { return (short)a.__x; }
EMU_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.__x; }
EMU_INLINE __nv_bfloat16 __short_as_bfloat16(short bits) { return __nv_bfloat16_raw{(unsigned short)bits}; }
EMU_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80u)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7f7fu)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000u)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000u)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3f80u)
