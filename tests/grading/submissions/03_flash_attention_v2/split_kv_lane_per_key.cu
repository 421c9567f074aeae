// split_kv.cu — Flash-Decoding: one query against a long K and V, which several blocks share.
//
// split_partial: block (s, n) attends to the keys of split s alone and leaves its own O and LSE.
// split_merge:   block n weighs the partial results of row n by their LSE and adds them up.
// A row is one sequence and head. Its cache has room for L_max keys, of which the first lengths[n]
// count; what follows them is stale.
//
// split_partial  grid (splits, N)   block (32)   one warp; a lane owns the columns lane,
//                                               lane + 32, …
// split_merge    grid (N)           block (D)    a thread owns one column of O
// layout Q, O [N, D]  K, V [N, L_max, D]  O_part [N, splits, D]  LSE_part [N, splits]  LSE [N],
//        fp32, contiguous; lengths [N], int32
// shared 0 bytes
// limits D a multiple of 32; 0 <= lengths[n] <= L_max; splits >= 1; N at most 65535
// options: -DD=64 | -DD=128
// paper  Flash-Decoding (pytorch.org/blog/flash-decoding); Dao et al., FlashAttention-2
constexpr int COLUMNS = D / 32;   // of a lane
#define NEG_INF __int_as_float(0xff800000)
static_assert(D % 32 == 0, "each lane has as many columns");

// Sum over the 32 lanes; each of them gets it.
__device__ inline float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

extern "C" __global__ void __launch_bounds__(32)
split_partial(const float* Q, const float* K, const float* V, float* O_part, float* LSE_part,
              const int* lengths, int L_max, float scale) {
    const int split = blockIdx.x, splits = gridDim.x, n = blockIdx.y, lane = threadIdx.x;
    const int L = lengths[n];
    Q += n * D, K += (long long)n * L_max * D, V += (long long)n * L_max * D;
    O_part += ((long long)n * splits + split) * D;
    LSE_part += (long long)n * splits + split;

    // 1. The keys of this split: first, first + 1, ... end - 1. Every split but the last ones
    //    takes ceil(L / splits) of them.
    int first = 0, end = 0;
        const int chunk = (L + splits - 1) / splits;
    first = min(L, split * chunk);
    end = min(L, first + chunk);

    float O_s[COLUMNS] = {}, m = NEG_INF, l = 0;
    for (int j0 = first; j0 < end; j0 += 32) {
        float s = 0;
        if (j0 + lane < end)
            for (int c = 0; c < D; c++) s += Q[c] * K[(long long)(j0 + lane) * D + c];
        s = j0 + lane < end ? s * scale : NEG_INF;
        float m_new = fmaxf(m, s);
        for (int step = 16; step > 0; step /= 2)
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, step));
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new;
        l = l * rescale + warp_sum(p);
        for (int c = 0; c < COLUMNS; c++) O_s[c] *= rescale;
        for (int i = 0; i < 32 && j0 + i < end; i++) {
            const float p_i = __shfl_sync(0xffffffff, p, i);
            for (int c = 0; c < COLUMNS; c++)
                O_s[c] += p_i * V[(long long)(j0 + i) * D + lane + 32 * c];
        }
    }

    // 2. Leave the attention of these keys alone, and its log-sum-exp. Here O_s and l are sums
    //    relative to the maximum m; a split without keys has m = −∞ and l = 0.
        for (int c = 0; c < COLUMNS; c++) O_part[lane + 32 * c] = l > 0 ? O_s[c] / l : 0;
    if (lane == 0) LSE_part[0] = l > 0 ? m + logf(l) : NEG_INF;
}

extern "C" __global__ void __launch_bounds__(D)
split_merge(const float* O_part, const float* LSE_part, float* O, float* LSE, int splits) {
    const int n = blockIdx.x, column = threadIdx.x;
    O_part += (long long)n * splits * D, LSE_part += (long long)n * splits;

    // 3. O and LSE of row n from its partial results: O_part[s * D + column] and LSE_part[s].
        float largest = NEG_INF;
    for (int s = 0; s < splits; s++) largest = fmaxf(largest, LSE_part[s]);
    const float base = largest == NEG_INF ? 0 : largest;   // no key at all: never −∞ − (−∞)

    float sum = 0, O_n = 0;
    for (int s = 0; s < splits; s++) {
        const float weight = expf(LSE_part[s] - base);
        sum += weight;
        O_n += weight * O_part[s * D + column];
    }
    O[n * D + column] = sum > 0 ? O_n / sum : 0;
    if (column == 0) LSE[n] = sum > 0 ? base + logf(sum) : NEG_INF;
}
