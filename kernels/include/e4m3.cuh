// e4m3.cuh — E4M3, a number in a byte: a sign, 4 bits of exponent, 3 of fraction; no infinity.
//
// The largest is 448, the smallest normal one 2^-6; below, all steps are 2^-9.
#pragma once

struct E4M3 { unsigned char bits; };

// Four numbers, rounded to the nearest, beyond ±448 to that; the first in the lowest byte. sm_89 on.
__device__ inline unsigned pack_e4m3(float x0, float x1, float x2, float x3) {
    unsigned four;
    asm("{ .reg .b16 low, high; "
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; "
        "mov.b32 %0, {low, high}; }"
        : "=r"(four) : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
    return four;
}
