// Right: up to eight scores of a thread stay in registers, and are read once; what is longer is read again.
#define NEG_INF __int_as_float(0xff800000)
constexpr int KEPT = 8;

__device__ float all_of_warp(float x, bool sum) {
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffff, x, step);
        x = sum ? x + other : fmaxf(x, other);
    }
    return x;
}

__device__ float all_of_block(float x, bool sum, float* room) {
    x = all_of_warp(x, sum);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    return sum ? room[0] + room[1] + room[2] + room[3] : fmaxf(fmaxf(room[0], room[1]), fmaxf(room[2], room[3]));
}

extern "C" __global__ void online_softmax(const float* S, float* P, float* LSE, int L) {
    __shared__ float room[2][4];
    S += (long long)blockIdx.x * L, P += (long long)blockIdx.x * L;
    float kept[KEPT], m = NEG_INF, l = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const int j = threadIdx.x + 128 * i;
        kept[i] = j < L ? S[j] : NEG_INF;
        m = fmaxf(m, kept[i]);
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (kept[i] > NEG_INF) l += expf(kept[i] - m);
    for (int j = threadIdx.x + 128 * KEPT; j < L; j += 128) {
        const float s = S[j];
        if (s > m) l *= m == NEG_INF ? 0 : expf(m - s), m = s;
        if (s > NEG_INF) l += expf(s - m);
    }
    const float largest = all_of_block(m, false, room[0]);
    l = all_of_block(l > 0 ? l * expf(m - largest) : 0, true, room[1]);
    const float scale = l > 0 ? 1 / l : 0, base = largest == NEG_INF ? 0 : largest;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (threadIdx.x + 128 * i < L) P[threadIdx.x + 128 * i] = expf(kept[i] - base) * scale;
    for (int j = threadIdx.x + 128 * KEPT; j < L; j += 128) P[j] = expf(S[j] - base) * scale;
    if (threadIdx.x == 0) LSE[blockIdx.x] = l > 0 ? largest + logf(l) : NEG_INF;
}
