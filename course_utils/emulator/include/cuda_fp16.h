#pragma once

typedef emu::scalar16<emu::fp16_format> __half;
typedef emu::pair16<emu::fp16_format> __half2;
typedef __half half;
typedef __half2 half2;
EMU_FLOAT16_FUNCTIONS(__half, __half2)

EMU_INLINE float __half2float(__half a) { return a; }
EMU_INLINE __half __float2half(float x) { return x; }
EMU_INLINE __half __float2half_rn(float x) { return x; }
EMU_INLINE __half __int2half_rn(int x) { return x; }
EMU_INLINE float2 __half22float2(__half2 a) { return {(float)a.x, (float)a.y}; }
EMU_INLINE __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
EMU_INLINE __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
EMU_INLINE __half2 __float2half2_rn(float a) { return {a, a}; }
EMU_INLINE __half2 __halves2half2(__half a, __half b) { return {a, b}; }
EMU_INLINE __half2 __half2half2(__half a) { return {a, a}; }
EMU_INLINE __half2 make_half2(__half a, __half b) { return {a, b}; }
EMU_INLINE __half __low2half(__half2 a) { return a.x; }
EMU_INLINE __half __high2half(__half2 a) { return a.y; }
EMU_INLINE unsigned short __half_as_ushort(__half a) { return a.bits; }
EMU_INLINE __half __ushort_as_half(unsigned short bits) { return emu::bit_cast<__half>(bits); }
