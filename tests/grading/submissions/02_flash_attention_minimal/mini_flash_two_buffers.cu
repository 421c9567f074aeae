// Right: two buffers for K and V, and one barrier a tile; the next tile is loaded before this one is used. Where two do
// not fit into 48 KiB, one, and two barriers a tile.
// A causal block stops after its last tile; P stays in the lanes of its row.
#define NEG_INF __int_as_float(0xff800000)
struct Buffer { float K[32][D + 1], V[32][D]; };
constexpr int BUFFERS = 2 * sizeof(Buffer) <= 48 * 1024 ? 2 : 1;

__device__ void fill(Buffer& buffer, const float* K, const float* V, int j0, int L_k) {
    for (int e = threadIdx.x; e < 32 * D; e += 128) {
        const int j = min(j0 + e / D, L_k - 1);   // past the end: the last key again, hidden below
        buffer.K[e / D][e % D] = K[(long long)j * D + e % D];
        buffer.V[e / D][e % D] = V[(long long)j * D + e % D];
    }
}

extern "C" __global__ void mini_flash(const float* Q, const float* K, const float* V, float* O, float* LSE,
                                      int L_q, int L_k, float scale, int is_causal) {
    __shared__ Buffer buffers[BUFFERS];
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const int lane = threadIdx.x % 8, row = threadIdx.x / 8, i = blockIdx.x * 16 + row;
    K += head * L_k * D, V += head * L_k * D;
    const float* q = Q + (head * L_q + min(i, L_q - 1)) * D;
    const int last_row = min(L_q, (int)blockIdx.x * 16 + 16) - 1;
    const int end = is_causal ? max(0, min(L_k, last_row + L_k - L_q + 1)) : L_k;

    float m = -3e38f, l = 0, out[D / 8] = {};   // a finite start: what is hidden is left out below, not by its score
    if (end > 0) fill(buffers[0], K, V, 0, L_k);
    for (int j0 = 0, turn = 0; j0 < end; j0 += 32, turn ^= BUFFERS - 1) {
        __syncthreads();
        if (BUFFERS == 1 && j0) {
            fill(buffers[0], K, V, j0, L_k);
            __syncthreads();
        }
        if (BUFFERS == 2 && j0 + 32 < end) fill(buffers[(turn ^ 1) % BUFFERS], K, V, j0 + 32, L_k);
        const Buffer& tile = buffers[turn];
        float s[4], top = m;
        bool visible[4];
        for (int k = 0; k < 4; k++) {
            const int j = j0 + 8 * k + lane;
            visible[k] = j < L_k && (!is_causal || j <= i + L_k - L_q);
            s[k] = 0;
            for (int d = 0; d < D; d++) s[k] += q[d] * tile.K[8 * k + lane][d];
            s[k] *= scale;
            if (visible[k]) top = fmaxf(top, s[k]);
        }
        for (int step = 4; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
        const float factor = expf(m - top);
        m = top, l *= factor;
        for (int c = 0; c < D / 8; c++) out[c] *= factor;
        for (int k = 0; k < 4; k++) {
            const float p = visible[k] ? expf(s[k] - m) : 0;
            l += p;
            for (int other = 0; other < 8; other++) {
                const float weight = __shfl_sync(0xffffffff, p, other, 8);
                for (int c = 0; c < D / 8; c++) out[c] += weight * tile.V[8 * k + other][8 * c + lane];
            }
        }
    }
    for (int step = 4; step; step >>= 1) l += __shfl_xor_sync(0xffffffff, l, step);
    if (i >= L_q) return;
    for (int c = 0; c < D / 8; c++) O[(head * L_q + i) * D + 8 * c + lane] = l > 0 ? out[c] / l : 0;
    if (lane == 0) LSE[head * L_q + i] = l > 0 ? m + logf(l) : NEG_INF;
}
