// latent_tile.cuh — B_R heads of one query attend to rows of the latent, B_C at a time.
//
// In the absorbed form of multi-head latent attention all heads share one row of D_QK numbers per
// token: c, which is the value too, and the RoPE key. So the rows of a matrix product are the heads
// of one query, and a tile of latent rows is loaded once and read twice: S = Q Kᵀ takes all of its
// columns, O += P V the first D_V, which ldmatrix transposes on the way.
//
// `row_of(i)` names the i-th row that the query attends to, or −1, which is none: that is all by
// which dense and sparse attention differ.
//
// Tiles lie in shared memory as panels of D = 64 columns, each swizzled as in swizzled_tile.cuh.
// The warps split the work twice. Of S, [B_R, B_C], a warp has 16 heads and KEYS keys, over all
// D_QK columns. Of O, [B_R, D_V], it has all heads and COLUMNS columns, since O fills the registers
// and V would be read once per 16 heads otherwise. P goes from one split to the other through
// shared memory, and so do the maxima.
// Include after D_QK, D_V, B_R, B_C and WARPS are defined.
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1, but with the lazy rescaling of
//        FlashAttention-4 (2603.05451); DeepSeek-V3 (2412.19437), §2.1.1
#pragma once
constexpr int THREADS = 32 * WARPS, D = 64;
#include "fragment_rows.cuh"
#include "tile_products.cuh"

static_assert(16 * WARPS % B_R == 0, "16 * WARPS must be a multiple of B_R");
constexpr int PANELS = D_QK / D;
constexpr int KEY_WARPS = 16 * WARPS / B_R, KEYS = B_C / KEY_WARPS;
constexpr int COLUMNS = D_V / WARPS, WIDTH = COLUMNS < D ? COLUMNS : D;   // WIDTH: in one panel
constexpr int STEP = THREADS / 8;   // rows that the block copies at a time: 8 threads a row
static_assert(D_QK % D == 0 && D_V % D == 0, "D_QK and D_V must be multiples of 64");
static_assert(D_V <= D_QK, "D_V must be at most D_QK: V is a part of K");
static_assert(KEYS % 16 == 0, "B_R * B_C must be a multiple of 256 * WARPS");
static_assert(B_C <= D, "B_C must be at most 64");
static_assert(COLUMNS % 16 == 0 && (COLUMNS & (COLUMNS - 1)) == 0,
              "D_V / WARPS must be a power of two, and at least 16");
static_assert(STEP % 8 == 0, "WARPS must be even");
static_assert(B_R % STEP == 0 && B_C % STEP == 0, "B_R and B_C must be multiples of 4 * WARPS");

typedef scalar_t LatentTile[PANELS][B_C * D];

struct Tiles {
    scalar_t Q[PANELS][B_R * D];
    LatentTile latent[2];
    scalar_t P[B_R * D];
    int held[2][B_C];                 // which rows of the latent these are; −1: none
    float m[B_R], rescale[B_R];
    float by_warp[KEY_WARPS][B_R];    // maxima, and in the end sums, each of KEYS keys of a tile
};

typedef float Scores[KEYS / 8][4];   // of 16 heads
struct Sums { float O[COLUMNS / WIDTH][B_R / 16][WIDTH / 8][4], l[2]; };   // l: of the lane's keys

// The rows that this thread helps to copy, of those from `first` on.
template <int N, class RowOf>
__device__ inline void name_rows(int (&rows)[N], int first, RowOf row_of) {
    for (int n = 0; n < N; n++) rows[n] = row_of(first + n * STEP + threadIdx.x / 8);
}

// Starts to copy rows of D_ROW numbers to a tile; zeros for row −1. A thread brings the same chunk
// of each panel, and eight threads 128 bytes of a row that lie side by side.
template <int D_ROW = D_QK, int N>
__device__ inline void copy_rows_async(scalar_t (*tile)[N * STEP * D], const scalar_t* matrix,
                                       const int (&rows)[N]) {
    const int chunk = threadIdx.x % 8, place = swizzled(threadIdx.x / 8, chunk);
    #pragma unroll
    for (int n = 0; n < N; n++) {
        const scalar_t* row = matrix + (long long)max(rows[n], 0) * D_ROW + chunk * 8;
        #pragma unroll
        for (int p = 0; p < D_ROW / D; p++)
            copy_16_bytes_async(tile[p] + n * STEP * D + place, row + p * D, rows[n] >= 0);
    }
}

// The same for a tile of the latent; `held` keeps which rows they are. True where one is none.
template <int N>
__device__ inline bool load_latent_async(LatentTile& tile, int* held, const scalar_t* latent,
                                         const int (&rows)[N]) {
    copy_rows_async(tile, latent, rows);
    bool incomplete = false;
    for (int n = 0; n < N; n++) {
        if (threadIdx.x % 8 == 0) held[n * STEP + threadIdx.x / 8] = rows[n];
        incomplete |= rows[n] < 0;
    }
    return incomplete;
}

// S = Q Kᵀ of the warp's 16 heads and KEYS keys, over the columns of the first N panels, UNROLL of
// them at a time. The scale comes in with the exponential.
template <int N = PANELS, int UNROLL = N>
__device__ inline void compute_scores(Scores& S, const scalar_t (*Q)[B_R * D],
                                      const LatentTile& latent, int head, int key) {
    auto& sum = reinterpret_cast<float (&)[1][KEYS / 8][4]>(S);   // one product of 16 rows
    for (auto& s : S) s[0] = s[1] = s[2] = s[3] = 0;
    #pragma unroll UNROLL
    for (int p = 0; p < N; p++) {
        const unsigned q_rows = by_rows(Q[p] + head * D), k_rows = by_columns(latent[p] + key * D);
        #pragma unroll
        for (int d = 0; d < D; d += 16) {
            unsigned q[1][4];
            ldmatrix_x4(q[0], at(q_rows, 0, d));
            multiply_transposed(sum, q, at(k_rows, 0, d));
        }
    }
}

// S = −∞ for keys that are none.
__device__ inline void mask_scores(Scores& S, const int* held) {
    for (int n = 0; n < KEYS / 8; n++)
        for (int e = 0; e < 2; e++)
            if (held[8 * n + threadIdx.x % 4 * 2 + e] < 0) S[n][e] = S[n][2 + e] = NEG_INF;
}

// P = exp(S − m) of the warp's heads and keys, to shared memory in 16 bits, and its sums per row of
// this lane. m counts in powers of two, as `factor` = scale · log2(e) does.
__device__ inline void write_weights(scalar_t* P, float (&sum)[2], const Scores& S, const float* m,
                                     float factor, int head, int key) {
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 2; r++) {
        const int row = head + 8 * r + lane / 4;
        const float m_row = m[row], base = m_row == NEG_INF ? 0 : m_row;   // never −∞ − (−∞)
        sum[r] = 0;
        for (int n = 0; n < KEYS / 8; n++) {
            const float left = exp2_approx(fmaf(S[n][2 * r], factor, -base));
            const float right = exp2_approx(fmaf(S[n][2 * r + 1], factor, -base));
            sum[r] += left + right;
            reinterpret_cast<unsigned*>(P + swizzled(row, key / 8 + n))[lane % 4] =
                pack(left, right);
        }
    }
}

// Whether exp(S − m) exceeds 2^8 for some score of the lane. Any m gives the same O / l up to
// rounding, as long as exp(S − m) neither overflows nor vanishes: the block keeps an old m until
// then (FlashAttention-4, arXiv 2603.05451: lazy rescaling), and the weights of a tile only rarely
// have to be written again.
__device__ inline bool exceeds(float (&highest)[2], const Scores& S, const float* m, float factor,
                               int head) {
    bool any = false;
    for (int r = 0; r < 2; r++) {
        highest[r] = highest_of_lane(S, r, NEG_INF);
        any |= highest[r] * factor > m[head + 8 * r + threadIdx.x % 32 / 4] + 8;
    }
    return any;
}

// A new maximum of each row, and what was summed up under the old one times exp(m_old − m).
__device__ inline void raise_maximum(Tiles& tile, Sums& sums, const float (&highest)[2],
                                     float factor, int head) {
    const int lane = threadIdx.x % 32, row_of_lane = lane / 4;
    for (int r = 0; r < 2; r++)
        tile.by_warp[threadIdx.x / 32 % KEY_WARPS][head + 8 * r + row_of_lane] =
            highest_of_row(highest[r]);
    __syncthreads();
    const int row = threadIdx.x;
    if (row < B_R) {
        const float m_old = tile.m[row];
        float m_new = m_old;
        for (int w = 0; w < KEY_WARPS; w++) m_new = fmaxf(m_new, tile.by_warp[w][row] * factor);
        tile.rescale[row] = exp2_approx(m_old - (m_new == NEG_INF ? 0 : m_new));
        tile.m[row] = m_new;
    }
    __syncthreads();
    for (int r = 0; r < 2; r++) {
        sums.l[r] *= tile.rescale[head + 8 * r + row_of_lane];
        for (int i = 0; i < B_R / 16; i++) {
            const float rescale = tile.rescale[16 * i + 8 * r + row_of_lane];
            for (auto& panel : sums.O) scale_row(panel[i], r, rescale);
        }
    }
}

// O += P V of all heads and the warp's columns, from `column` on.
__device__ inline void accumulate(Sums& sums, const scalar_t* P, const LatentTile& latent,
                                  int column) {
    #pragma unroll
    for (int key = 0; key < B_C; key += 16) {
        unsigned p[B_R / 16][4];
        for (int i = 0; i < B_R / 16; i++) ldmatrix_x4(p[i], at(by_rows(P), 16 * i, key));
        for (int c = 0; c < COLUMNS / WIDTH; c++)
            multiply(sums.O[c], p, at(by_rows(latent[column / D + c]), key, column % D));
    }
}

// O / l and m + log(l), the log-sum-exp as a natural logarithm; 0 and −∞ for a query without keys.
// O passes through the place of Q, so that a lane writes 16 bytes at a time.
__device__ inline void write_output(Tiles& tile, const Sums& sums, scalar_t* O, float* LSE,
                                    int heads, int head, int column) {
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 2; r++)
        tile.by_warp[threadIdx.x / 32 % KEY_WARPS][head + 8 * r + lane / 4] =
            sum_of_row(sums.l[r]);
    __syncthreads();
    auto row_sum = [&](int row) {
        float l = 0;
        for (int w = 0; w < KEY_WARPS; w++) l += tile.by_warp[w][row];
        return l;
    };
    if (threadIdx.x < heads && threadIdx.x < B_R) {
        const float l = row_sum(threadIdx.x);
        LSE[threadIdx.x] = l == 0 ? NEG_INF : (tile.m[threadIdx.x] + __log2f(l)) * LN_2;
    }
    constexpr int CHUNKS = WIDTH / 8;
    for (int c = 0; c < COLUMNS / WIDTH; c++) {
        scalar_t* panel = tile.Q[column / D + c];
        const int first = column % D / 8;   // chunk of the panel
        #pragma unroll
        for (int i = 0; i < B_R / 16; i++)
            for (int r = 0; r < 2; r++) {
                const int row = 16 * i + 8 * r + lane / 4;
                const float l = row_sum(row), inverse = l == 0 ? 0 : __fdividef(1, l);
                for (int n = 0; n < CHUNKS; n++) {
                    const float* o = &sums.O[c][i][n][2 * r];
                    reinterpret_cast<unsigned*>(panel + swizzled(row, first + n))[lane % 4] =
                        pack(o[0] * inverse, o[1] * inverse);
                }
            }
        __syncwarp();
        const int chunk = lane % CHUNKS;
        for (int row = lane / CHUNKS; row < min(heads, B_R); row += 32 / CHUNKS)
            reinterpret_cast<uint4*>(O + row * D_V + column + c * D)[chunk] =
                *reinterpret_cast<const uint4*>(panel + swizzled(row, first + chunk));
    }
}

// Attention of the block's first `heads` rows of `query` to the rows of `latent` that row_of(0) to
// row_of(keys − 1) name. O and LSE begin where the block's first head does, as `query` does.
template <class RowOf>
__device__ inline void attend(const scalar_t* query, const scalar_t* latent, scalar_t* O,
                              float* LSE, int heads, int keys, float scale, RowOf row_of) {
    extern __shared__ __align__(256) uint4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const int warp = threadIdx.x / 32, column = warp * COLUMNS;
    const int head = warp / KEY_WARPS * 16, key = warp % KEY_WARPS * KEYS;
    const int tiles = (keys + B_C - 1) / B_C;
    const float factor = scale * LOG2_E;
    auto row_or_none = [=](int i) { return i < keys ? row_of(i) : -1; };

    int head_rows[B_R / STEP], rows[B_C / STEP];   // rows: of the tile that is loaded next
    name_rows(head_rows, 0, [=](int row) { return row < heads ? row : -1; });
    name_rows(rows, 0, row_or_none);
    copy_rows_async(tile.Q, query, head_rows);
    bool incomplete = load_latent_async(tile.latent[0], tile.held[0], latent, rows);
    commit_copies();
    name_rows(rows, B_C, row_or_none);
    if (threadIdx.x < B_R) tile.m[threadIdx.x] = NEG_INF;
    Sums sums = {};

    for (int j = 0, buffer = 0; j < tiles; j++, buffer ^= 1) {
        wait_for_copies<0>();
        // Tile j is there, and every warp is done with the one before.
        const bool masked = __syncthreads_or(incomplete);
        if (j + 1 < tiles) {   // one tile ahead, and the names of its rows one more
            incomplete = load_latent_async(tile.latent[buffer ^ 1], tile.held[buffer ^ 1], latent,
                                           rows);
            commit_copies();
            name_rows(rows, (j + 2) * B_C, row_or_none);
        }
        Scores S;
        compute_scores(S, tile.Q, tile.latent[buffer], head, key);
        if (masked) mask_scores(S, tile.held[buffer] + key);

        float highest[2], sum[2];
        const bool too_high = exceeds(highest, S, tile.m, factor, head);
        write_weights(tile.P, sum, S, tile.m, factor, head, key);
        if (__syncthreads_or(too_high)) {
            raise_maximum(tile, sums, highest, factor, head);
            write_weights(tile.P, sum, S, tile.m, factor, head, key);
            __syncthreads();
        }
        for (int r = 0; r < 2; r++) sums.l[r] += sum[r];
        accumulate(sums, tile.P, tile.latent[buffer], column);
    }
    wait_for_copies<0>();   // of Q, where there is no tile
    write_output(tile, sums, O, LSE, heads, head, column);
}
