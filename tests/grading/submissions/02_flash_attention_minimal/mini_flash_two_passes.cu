// Right: m and l of the whole row first, then O in a second walk over the keys, with the final weights.
#define NEG_INF __int_as_float(0xff800000)

__device__ float score(const float* q, const float* k, float scale) {
    float sum = 0;
    for (int d = 0; d < D; d += 4) {
        const float4 a = *(const float4*)(q + d), b = *(const float4*)(k + d);
        sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
    return sum * scale;
}

extern "C" __global__ void mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                      int L_q, int L_k, float scale, int is_causal) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const int lane = threadIdx.x & 7, i = blockIdx.x * 16 + (threadIdx.x >> 3);
    const int seen = i >= L_q ? 0 : is_causal ? max(0, min(L_k, i + L_k - L_q + 1)) : L_k;
    const float* q = Q + (head * L_q + min(i, L_q - 1)) * D;
    K += head * L_k * D, V += head * L_k * D;

    float m = NEG_INF, l = 0;
    for (int j = lane; j < seen; j += 8) {
        const float s = score(q, K + (long long)j * D, scale);
        if (s > m) l = l * expf(m - s) + 1, m = s;
        else l += expf(s - m);
    }
    for (int step = 1; step < 8; step <<= 1) {
        const float other_m = __shfl_xor_sync(0xffffffff, m, step), other_l = __shfl_xor_sync(0xffffffff, l, step);
        const float larger = fmaxf(m, other_m), base = larger == NEG_INF ? 0 : larger;
        l = l * expf(m - base) + other_l * expf(other_m - base);
        m = larger;
    }
    float out[D / 8] = {};
    for (int j0 = 0; j0 < seen; j0 += 8) {   // the eight lanes of a row take as many turns
        const unsigned row = 0xffu << (threadIdx.x % 32 / 8 * 8);
        const float p = j0 + lane < seen ? expf(score(q, K + (long long)(j0 + lane) * D, scale) - m) / l : 0;
        for (int k = 0; k < 8 && j0 + k < seen; k++) {
            const float weight = __shfl_sync(row, p, k, 8);
            for (int c = 0; c < D / 8; c++) out[c] += weight * V[(long long)(j0 + k) * D + 8 * c + lane];
        }
    }
    if (i >= L_q) return;
    for (int c = 0; c < D / 8; c++) O[(head * L_q + i) * D + 8 * c + lane] = out[c];
    if (lane == 0) LSE[head * L_q + i] = seen ? m + logf(l) : NEG_INF;
}
