// step1_wgmma.cu — FlashAttention forward by wgmma, Hopper's own matrix products.
//
// Step 1 of the ladder: chapter 03's loop, all threads copy (cp.async, two buffers) and all
// multiply. What is new are the products. Four warps, a warpgroup, start one together: 64 rows by
// 128 columns. It reads K and V from shared memory itself, without ldmatrix and without registers
// for them, and runs beside the threads, which here just wait for it. -DCOPIES_AFTER=1 requests the
// next tiles after S = Q Kᵀ has been started, so that the product runs beside these requests.
//
// grid   (ceil(L_q / 128), H, B)       block  (256): two warpgroups with 64 queries each
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L_k, D], fp16 or bf16  LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 2 · D·(B_R + 4·B_C) bytes, dynamic; B_R = B_C = 128
// limits scale > 0; D 64 or 128
// options: -DD=64 -DBF16=0 | -DD=64 -DBF16=1 | -DD=128 -DBF16=0 | -DD=128 -DBF16=1 | -DD=64 -DBF16=0 -DCOPIES_AFTER=1 | -DD=128 -DBF16=0 -DCOPIES_AFTER=1
// arch: sm_90a only
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1; wgmma: FlashAttention-3 (arXiv
//        2407.08608), §2.2
constexpr int B_R = 128, B_C = 128, THREADS = 256, BUFFERS = 2;
#ifndef COPIES_AFTER
#define COPIES_AFTER 0
#endif
#include "async_copy.cuh"
#include "warpgroup_tile.cuh"

struct Shared { scalar_t Q[B_R / ROWS][ROWS * D], K[BUFFERS][B_C * D], V[BUFFERS][B_C * D]; };
static_assert(sizeof(Shared) == 2 * D * (B_R + 4 * B_C), "what the header says");

// Starts to copy N rows of a matrix to a tile in panels; zeros from row `rows_left` on.
template <int N>
__device__ inline void load_tile_async(scalar_t* tile, const scalar_t* matrix, int rows_left) {
    for (int i = threadIdx.x; i < N * D / 8; i += THREADS) {
        const int row = i / (D / 8), chunk = i % (D / 8);
        const bool exists = row < rows_left;
        copy_16_bytes_async(tile + in_panels(N, row, chunk),
                            matrix + (exists ? row * D + chunk * 8 : 0), exists);
    }
}

// O in 16 bits, of the warpgroup's first `rows_left` rows.
__device__ inline void write_rows(scalar_t* out, const Output& O, int rows_left) {
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp_row() + 8 * r + threadIdx.x % 32 / 4;
        #pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (row < rows_left)
                *reinterpret_cast<unsigned*>(out + row * D + 8 * n + threadIdx.x % 4 * 2) =
                    pack(O[n][2 * r], O[n][2 * r + 1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
step1_wgmma(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
            int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head / group * L_k * D, V += head / group * L_k * D;
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which warpgroup
    const int i0 = blockIdx.x * B_R, i_w = i0 + w * ROWS;          // first query of block, warpgroup
    const int shift = L_k - L_q;
    const float factor = scale * LOG2_E;
    const int keys_end = is_causal ? min(L_k, i0 + B_R + shift) : L_k;   // the last row sees most

    Rows rows;
    Output O_i = {};
    for (int half = 0; half < 2; half++)
        load_tile_async<ROWS>(shared.Q[half], Q + (long long)(i0 + half * ROWS) * D,
                              L_q - i0 - half * ROWS);
    load_tile_async<B_C>(shared.K[0], K, L_k);
    load_tile_async<B_C>(shared.V[0], V, L_k);
    commit_copies();
    for (int j0 = 0; j0 < keys_end; j0 += B_C) {
        const int buffer = j0 / B_C % BUFFERS, next = j0 + B_C;
        wait_for_copies<0>();
        publish_tile();
        __syncthreads();   // the tiles are there, and all are done with the previous ones
        auto request_next = [&] {
            if (next >= keys_end) return;
            load_tile_async<B_C>(shared.K[1 - buffer], K + (long long)next * D, L_k - next);
            load_tile_async<B_C>(shared.V[1 - buffer], V + (long long)next * D, L_k - next);
            commit_copies();
        };
        Scores S;
        Weights P;
        if (!COPIES_AFTER) request_next();
        start_scores(S, shared.Q[w], shared.K[buffer]);
        if (COPIES_AFTER) request_next();
        wait_for_product<0>(S);
        if (next > L_k || (is_causal && next - 1 > i_w + shift))
            mask(S, i_w, j0, L_k, shift, is_causal);
        raise_maximum(rows, S, factor);
        exponentials(S, rows, factor);
        rescale(O_i, rows);
        pack_weights(P, S);
        start_output(O_i, P, shared.V[buffer]);
        wait_for_product<0>(O_i);
    }
    wait_for_copies<0>();   // of a block that sees no key, the first copies are still on their way
    normalize(O_i, rows, LSE + i_w, L_q - i_w);
    write_rows(O + (long long)i_w * D, O_i, L_q - i_w);
}
