// Right: each warp takes four rows one after the other; a lane scores one key of the tile, and keeps every 32nd column.
#define NEG_INF __int_as_float(0xff800000)
#define ALL 0xffffffff
constexpr int COLUMNS = (D + 31) / 32;

extern "C" __global__ void mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                      int L_q, int L_k, float scale, int is_causal) {
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int row = 4 * warp; row < 4 * warp + 4; row++) {
        const int i = blockIdx.x * 16 + row;
        if (i >= L_q) break;   // the whole warp leaves
        const float* q = Q + (head * L_q + i) * D;
        const int end = is_causal ? min(L_k, i + 1 + L_k - L_q) : L_k;
        float m = NEG_INF, l = 0, out[COLUMNS] = {};
        for (int first = 0; first < end; first += 32) {
            const int j = first + lane;
            float s = NEG_INF;
            if (j < end) {
                s = 0;
                for (int d = 0; d < D; d++) s += q[d] * K[(head * L_k + j) * D + d];
                s *= scale;
            }
            float top = s;
            for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, step));
            if (top > m) {   // the same for the whole warp
                const float factor = m == NEG_INF ? 0 : expf(m - top);
                for (int c = 0; c < COLUMNS; c++) out[c] *= factor;
                l *= factor, m = top;
            }
            const float p = s == NEG_INF ? 0 : expf(s - m);
            l += p;
            for (int k = 0; k < min(32, end - first); k++) {
                const float weight = __shfl_sync(ALL, p, k);
                for (int c = 0; c < COLUMNS; c++)
                    if (lane + 32 * c < D) out[c] += weight * V[(head * L_k + first + k) * D + lane + 32 * c];
            }
        }
        for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(ALL, l, step);
        for (int c = 0; c < COLUMNS; c++)
            if (lane + 32 * c < D) O[(head * L_q + i) * D + lane + 32 * c] = l == 0 ? 0 : out[c] / l;
        if (lane == 0) LSE[head * L_q + i] = l == 0 ? NEG_INF : m + logf(l);
    }
}
