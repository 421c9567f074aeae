// causal_skip.cu — FlashAttention-2's two kinds of tiles, each in a loop of its own: full tiles are computed without
// any comparison, those on the diagonal and the ragged one with a comparison per key.
constexpr int COLUMNS = D / 4, THREADS = 4 * B_R;
#define NEG_INF __int_as_float(0xff800000)

struct Row {
    float q[COLUMNS], o[COLUMNS], m, l;
};

__device__ void load(float* to, const float* from, int numbers, int exist) {
    for (int e = threadIdx.x; e < numbers; e += THREADS) to[e] = e < exist ? from[e] : 0.f;
}

__device__ float score(const Row& row, const float* key) {
    float sum = 0;
    for (int d = 0; d < COLUMNS; d++) sum = fmaf(row.q[d], key[4 * d], sum);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

__device__ void add(Row& row, float s, const float* value) {
    if (s > row.m) {   // a new largest score
        const float rescale = expf(row.m - s);
        row.m = s, row.l *= rescale;
        for (int d = 0; d < COLUMNS; d++) row.o[d] *= rescale;
    }
    const float p = expf(s - row.m);
    row.l += p;
    for (int d = 0; d < COLUMNS; d++) row.o[d] = fmaf(p, value[4 * d], row.o[d]);
}

extern "C" __global__ void __launch_bounds__(4 * B_R)
causal_skip(const float* Q, const float* K, const float* V, float* O, float* LSE,
            int L_q, int L_k, float scale) {
    __shared__ float keys[B_C * D], values[B_C * D];
    const long long head = blockIdx.y;
    K += head * L_k * D, V += head * L_k * D;
    const int part = threadIdx.x & 3, i0 = blockIdx.x * B_R, i = i0 + (threadIdx.x >> 2);
    const int last_of_first = i0 + L_k - L_q;   // last key that the first query of the block sees
    const int last_of_last = min(i0 + B_R, L_q) - 1 + L_k - L_q;
    const int full = last_of_first < 0 ? 0 : (last_of_first + 1) / B_C;
    const int all = last_of_last < 0 ? 0 : last_of_last / B_C + 1;

    Row row;
    for (int d = 0; d < COLUMNS; d++) {
        row.q[d] = scale * Q[(head * L_q + min(i, L_q - 1)) * D + part + 4 * d];
        row.o[d] = 0;
    }
    row.m = NEG_INF, row.l = 0;
    auto get = [&](int tile) {
        __syncthreads();
        load(keys, K + tile * B_C * D, B_C * D, (L_k - tile * B_C) * D);
        load(values, V + tile * B_C * D, B_C * D, (L_k - tile * B_C) * D);
        __syncthreads();
    };
    int tile = 0;
    for (; tile < full; tile++) {
        get(tile);
        for (int c = 0; c < B_C; c++) add(row, score(row, keys + c * D + part), values + c * D + part);
    }
    for (; tile < all; tile++) {
        get(tile);
        for (int c = 0; c < B_C; c++) {
            const float s = score(row, keys + c * D + part);
            if (tile * B_C + c <= i + L_k - L_q && tile * B_C + c < L_k) add(row, s, values + c * D + part);
        }
    }
    if (i >= L_q) return;
    for (int d = 0; d < COLUMNS; d++)
        O[(head * L_q + i) * D + part + 4 * d] = row.l > 0 ? row.o[d] / row.l : 0;
    if (part == 0) LSE[head * L_q + i] = row.l > 0 ? row.m + logf(row.l) : NEG_INF;
}
