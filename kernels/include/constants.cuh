// constants.cuh — the numbers of a softmax to base 2: exp(x) = 2^(LOG2_E x), log(x) = LN_2 log2(x),
// and −∞, the score of a hidden key. NVRTC has no INFINITY.
#pragma once

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
#define NEG_INF __int_as_float(0xff800000)
