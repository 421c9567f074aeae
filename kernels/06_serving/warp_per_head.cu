// warp_per_head.cu — a new token against a long cache, at its plainest: a warp has a query head.
//
// Rung 1 of the ladder, the obvious kernel: key after key, the lanes of the warp multiply their
// columns of q and k, add up, and take their columns of v. Each query head reads K and V for
// itself, so with grouped heads each number of the cache is asked for `group` times; and a key waits for
// the one before, so that next to nothing is on its way while the warp computes.
//
// grid   (ceil(H · L_q / WARPS), B)       block  (32, WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L, D], 16-bit; LSE [B, H, L_q], fp32; seq_lens
//        [B]: how many of the L keys count, all where `ragged` is 0; contiguous, aligned to 16
//        bytes; query head h reads key head h / group; query i sees keys j <= i + keys − L_q
// shared 0 bytes
// limits D 64 or 128
// options: -DD=64 -DBF16=0 -DWARPS=4 | -DD=64 -DBF16=1 -DWARPS=4 | -DD=128 -DBF16=0 -DWARPS=4 | -DD=128 -DBF16=1 -DWARPS=4
// arch: sm_80
// paper  online softmax: FlashAttention-2 (arXiv 2307.08691), Algorithm 1
#include "constants.cuh"
#include "pieces.cuh"
#include "tensor_core.cuh"   // for scalar_t

constexpr int COLS = D / 32;   // columns of a lane
static_assert(D == 64 || D == 128, "D must be 64 or 128");

struct alignas(2 * COLS) Columns { scalar_t of[COLS]; };

extern "C" __global__ void __launch_bounds__(32 * WARPS)
warp_per_head(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
              const int* seq_lens, int B, int H, int L, int L_q, int group, float scale,
              int ragged) {
    const int row = blockIdx.x * WARPS + threadIdx.y, b = blockIdx.y, lane = threadIdx.x;
    if (row >= H * L_q) return;   // the whole warp
    const int keys = Batch{seq_lens, B, L, ragged}.keys(b), end = row % L_q + keys - L_q + 1;
    const long long query = (long long)b * H * L_q + row;
    const long long head = (long long)b * (H / group) + row / L_q / group;
    auto columns = [=](const scalar_t* matrix, long long at) {
        return reinterpret_cast<const Columns*>(matrix + at * D)[lane];
    };

    const Columns q = columns(Q, query);
    float o[COLS] = {}, m = NEG_INF, l = 0;
    for (int j = 0; j < end; j++) {
        const Columns k = columns(K, head * L + j), v = columns(V, head * L + j);
        float s = 0;
        for (int c = 0; c < COLS; c++) s = fmaf(q.of[c], k.of[c], s);
        s = scale * sum_of_warp(s);
        const float m_new = fmaxf(m, s), rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new, l = l * rescale + p;
        for (int c = 0; c < COLS; c++) o[c] = fmaf(p, v.of[c], o[c] * rescale);
    }
    Columns out;
    for (int c = 0; c < COLS; c++) out.of[c] = l == 0 ? 0 : o[c] / l;   // no key: 0 and −∞
    reinterpret_cast<Columns*>(O + query * D)[lane] = out;
    if (lane == 0) LSE[query] = l == 0 ? NEG_INF : m + logf(l);
}
