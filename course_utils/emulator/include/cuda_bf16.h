#pragma once

typedef emu::scalar16<emu::bf16_format> __nv_bfloat16;
typedef emu::pair16<emu::bf16_format> __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
EMU_FLOAT16_FUNCTIONS(__nv_bfloat16, __nv_bfloat162)

EMU_INLINE float __bfloat162float(__nv_bfloat16 a) { return a; }
EMU_INLINE __nv_bfloat16 __float2bfloat16(float x) { return x; }
EMU_INLINE __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
EMU_INLINE float2 __bfloat1622float2(__nv_bfloat162 a) { return {(float)a.x, (float)a.y}; }
EMU_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
EMU_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
EMU_INLINE __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
EMU_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
EMU_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
EMU_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
EMU_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
EMU_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.bits; }
EMU_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return emu::bit_cast<__nv_bfloat16>(bits); }
