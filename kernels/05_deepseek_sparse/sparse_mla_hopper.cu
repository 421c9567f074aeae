// sparse_mla_hopper.cu — sparse_mla.cu and mla_dense.cu on Hopper's own tensor core instruction.
//
// The algorithm is that of the portable kernels. What wgmma changes is who does what: four warps
// of a block, the producer, do nothing but gather the latent rows of the next tile; the eight
// others multiply. wgmma reads both factors from shared memory and runs beside the threads that
// started it, so S of the next tile is queued behind P V of this one. Registers move from the
// producer, which needs few, to the others.
//
// Consumer w of two has half of the work in each product: keys 32 w to 32 w + 31 of S = Q Kᵀ, and
// columns 256 w to 256 w + 255 of O = P V. They meet twice a tile: to hear whether the maximum of a
// row has to rise, and when P is complete in shared memory; if it rises, once more in between.
//
// grid   (ceil(H / 64), S)      block  (384)      a block: 64 heads of one query
// layout query [S, H, 576], latent [T, 576], indices [S, k] int32, O [S, H, 512], LSE [S, H] fp32,
//        contiguous, aligned to 16 bytes; t = 0 … S - 1 counts queries, s = 0 … T - 1 keys. In
//        sparse_mla_hopper an index below 0 or from T on names no key, and one that stands twice
//        counts twice; in mla_dense_hopper query t sees keys 0 to T - 1, or to t + T - S if causal.
//        A query without a key: O = 0, LSE = −∞
// shared 64·576·2 (Q) + 2·64·576·2 (two tiles of K) + 64·64·2 (P) + 560 bytes = 229936
// limits scale > 0; S at most 65535
// options: -DBF16=1 | -DBF16=0
// arch: sm_90a only
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1; producer and consumers: FlashAttention-3 (arXiv
//        2407.08608), §3.1; a maximum that lags: FlashAttention-4 (arXiv 2603.05451)
#include "async_copy.cuh"
#include "barrier.cuh"
#include "fragment_rows.cuh"
#include "warpgroup.cuh"

constexpr int D_QK = 576, D_V = 512, B_R = 64, B_C = 64;
constexpr int CONSUMERS = 256, PRODUCERS = 128, BUFFERS = 2;
constexpr int PANEL = B_C * 64;         // elements of 64 columns of a tile

struct Shared {
    scalar_t Q[B_R * D_QK], K[BUFFERS][B_C * D_QK], P[B_R * B_C];
    float row[2][B_R];                 // what the consumers tell each other: maxima, then sums
    unsigned seen[BUFFERS][2];         // bit i of word w: key 32 w + i of the tile exists
    Mbarrier full[BUFFERS], empty[BUFFERS];
};
static_assert(sizeof(Shared) == 229936, "what the header says, and who launches it asks for");

// The producer's work: tile after tile of latent rows. `key_of(n)` is the row that is key n of this
// query, or −1. A thread copies one chunk of each panel, of every sixteenth row; so eight threads
// read 128 neighbouring bytes.
template <typename KeyOf>
__device__ inline void produce(Shared& shared, const scalar_t* latent, int tiles, KeyOf key_of) {
    const int thread = threadIdx.x - CONSUMERS, first_row = thread / 8, chunk = thread % 8;
    for (int tile = 0; tile < tiles; tile++) {
        const int buffer = tile % BUFFERS;
        int keys[B_C / 16];   // asked for before the wait, so that they are here after it
        for (int i = 0; i < B_C / 16; i++) keys[i] = key_of(tile * B_C + first_row + 16 * i);
        const int own = thread < B_C ? key_of(tile * B_C + thread) : -1;
        if (tile >= BUFFERS) wait_for(&shared.empty[buffer], (tile / BUFFERS - 1) % 2);

        for (int i = 0; i < B_C / 16; i++) {
            const bool exists = keys[i] >= 0;
            const scalar_t* row = latent + (long long)(exists ? keys[i] : 0) * D_QK + chunk * 8;
            scalar_t* place = shared.K[buffer] + in_panels(B_C, first_row + 16 * i, chunk);
            #pragma unroll
            for (int panel = 0; panel < D_QK / 64; panel++)   // a row that is missing becomes zeros
                copy_16_bytes_async(place + panel * PANEL, row + panel * 64, exists);
        }
        commit_copies();
        const unsigned seen = __ballot_sync(0xffffffff, own >= 0);
        if (thread < B_C && thread % 32 == 0) shared.seen[buffer][thread / 32] = seen;
        wait_for_copies<0>();
        publish_tile();
        arrive(&shared.full[buffer]);
    }
}

// Who holds what of a product. A lane has two rows of a tile, first_row() and 8 further down; its
// number i of S or O stands in the row row(i) of these, 0 or 1, and in column(i) of the consumer's
// 32 keys, or of 128 columns of O. Numbers i and i + 1 of an even i are neighbours.
__device__ inline int first_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ inline int row(int i) { return i / 2 % 2; }
__device__ inline int column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }
__device__ inline bool first_of_row() { return threadIdx.x % 4 == 0; }   // one of a row's four lanes

// Starts S = Q Kᵀ for a consumer's 32 keys of a tile.
__device__ inline void start_scores(float (&S)[16], const Shared& shared, int buffer,
                                    int consumer) {
    const unsigned long long Q = descriptor(shared.Q);
    const unsigned long long K = descriptor(shared.K[buffer] + 32 * 64 * consumer);
    wgmma_fence();
    #pragma unroll
    for (int d = 0; d < D_QK; d += 16) {
        const int bytes = d / 64 * PANEL * 2 + d % 64 * 2;
        multiply_transposed(S, moved(Q, bytes), moved(K, bytes), d > 0);
    }
    wgmma_commit();
}

// Starts O += P V for a consumer's 256 columns; V is the first 512 columns of the latent rows.
__device__ inline void start_output(float (&O)[2][64], const Shared& shared, int buffer,
                                    int consumer) {
    const unsigned long long P = descriptor(shared.P);
    const unsigned long long V = descriptor(shared.K[buffer] + 4 * PANEL * consumer, PANEL * 2);
    wgmma_fence();
    #pragma unroll
    for (int key = 0; key < B_C; key += 16)   // 16 columns of P, 16 rows of V
        #pragma unroll
        for (int half = 0; half < 2; half++)   // two panels each
            multiply(O[half], moved(P, key * 2), moved(V, key * 128 + half * 2 * PANEL * 2));
    wgmma_commit();
}

// What a consumer carries from tile to tile: its 256 columns of O, not yet divided by l; of the
// lane's two rows the maximum m in powers of two, and this lane's part of the sum l.
struct State { float O[2][64], m[2], l[2]; };

// P = exp(S − m) in 16 bits to its place in shared memory, and l += rowsum(P).
__device__ inline void write_weights(State& state, const float (&S)[16], Shared& shared,
                                     int consumer, float factor) {
    #pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const int r = row(i), key = 32 * consumer + column(i);
        const float base = state.m[r] == NEG_INF ? 0 : state.m[r];
        const float p = exp2_approx(fmaf(S[i], factor, -base));
        const float next_p = exp2_approx(fmaf(S[i + 1], factor, -base));
        state.l[r] += p + next_p;
        scalar_t* chunk = shared.P + in_panels(B_R, first_row() + 8 * r, key / 8);
        *reinterpret_cast<unsigned*>(chunk + key % 8) = pack(p, next_p);
    }
    publish_tile();
}

// A new maximum, on which both consumers must agree, and what is old times exp(m_old − m).
__device__ inline void raise_maximum(State& state, const float (&highest)[2], Shared& shared,
                                     int consumer, float factor) {
    float rescale[2];
    for (int r = 0; r < 2; r++) {
        const float high = highest_of_row(highest[r]);
        if (first_of_row()) shared.row[consumer][first_row() + 8 * r] = high;
    }
    sync_threads(1, CONSUMERS);
    for (int r = 0; r < 2; r++) {
        const int head = first_row() + 8 * r;
        const float high = fmaxf(shared.row[0][head], shared.row[1][head]) * factor;
        const float m_new = fmaxf(state.m[r], high);
        rescale[r] = exp2_approx(state.m[r] - (m_new == NEG_INF ? 0 : m_new));
        state.m[r] = m_new, state.l[r] *= rescale[r];
    }
    for (int i = 0; i < 64; i++) {
        state.O[0][i] *= rescale[row(i)];
        state.O[1][i] *= rescale[row(i)];
    }
}

// S, which is complete, becomes P = exp(S − m) in shared memory. As long as no score of the tile
// exceeds the old m by more than 8, in powers of two, m stays and O needs no rescaling.
__device__ inline void update(State& state, float (&S)[16], Shared& shared, int buffer,
                              int consumer, float factor) {
    const unsigned seen = shared.seen[buffer][consumer];
    if (seen != 0xffffffff)
        #pragma unroll
        for (int i = 0; i < 16; i++)
            if (!(seen >> column(i) & 1)) S[i] = NEG_INF;
    float highest[2] = {NEG_INF, NEG_INF};   // of this lane's keys
    for (int i = 0; i < 16; i++) highest[row(i)] = fmaxf(highest[row(i)], S[i]);
    const bool exceeds = highest[0] * factor > state.m[0] + 8 |
                         highest[1] * factor > state.m[1] + 8;
    // After this meeting both are done with the last tile's P as well, and it may be overwritten.
    if (sync_threads_or(1, CONSUMERS, exceeds))
        raise_maximum(state, highest, shared, consumer, factor);
    write_weights(state, S, shared, consumer, factor);
    sync_threads(1, CONSUMERS);
}

// O / l and the log-sum-exp of the block's first `rows_left` rows.
__device__ inline void write(State& state, Shared& shared, scalar_t* out, float* lse,
                             int rows_left, int consumer) {
    for (int r = 0; r < 2; r++) {
        const float l = sum_of_row(state.l[r]);
        if (first_of_row()) shared.row[consumer][first_row() + 8 * r] = l;
    }
    sync_threads(1, CONSUMERS);
    for (int r = 0; r < 2; r++) {
        const int head = first_row() + 8 * r;
        if (head >= rows_left) continue;
        const float l = shared.row[0][head] + shared.row[1][head], inverse = l == 0 ? 0 : 1 / l;
        if (consumer == 0 && first_of_row())
            lse[head] = l == 0 ? NEG_INF : (state.m[r] + log2f(l)) * LN_2;
        scalar_t* columns = out + head * D_V + 256 * consumer;
        #pragma unroll
        for (int i = 2 * r; i < 64; i += 4)   // where row(i) is r
            for (int half = 0; half < 2; half++)
                *reinterpret_cast<unsigned*>(columns + 128 * half + column(i)) =
                    pack(state.O[half][i] * inverse, state.O[half][i + 1] * inverse);
    }
}

// The consumers' work. S of the next tile is started behind O += P V of this one, so that the
// tensor cores go on while this one's buffer is given back.
__device__ inline void consume(Shared& shared, scalar_t* out, float* lse, int tiles, int rows_left,
                               float factor) {
    const int consumer = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // one for the whole warp
    State state;
    for (int r = 0; r < 2; r++) state.m[r] = NEG_INF, state.l[r] = 0;
    for (int i = 0; i < 64; i++) state.O[0][i] = state.O[1][i] = 0;
    if (tiles > 0) {
        float S[16];
        wait_for(&shared.full[0], 0);
        start_scores(S, shared, 0, consumer);
        for (int tile = 0; tile < tiles - 1; tile++) {
            const int buffer = tile % BUFFERS, next = 1 - buffer;
            wgmma_wait<0>();
            update(state, S, shared, buffer, consumer, factor);
            start_output(state.O, shared, buffer, consumer);
            wait_for(&shared.full[next], (tile + 1) / BUFFERS % 2);
            start_scores(S, shared, next, consumer);
            wgmma_wait<1>();   // for O, not for S
            arrive(&shared.empty[buffer]);
        }
        wgmma_wait<0>();
        update(state, S, shared, (tiles - 1) % BUFFERS, consumer, factor);
        start_output(state.O, shared, (tiles - 1) % BUFFERS, consumer);
        wgmma_wait<0>();
    }
    write(state, shared, out, lse, rows_left, consumer);
}

// One block: query t, heads 64 blockIdx.x and on, and `keys` keys.
template <typename KeyOf>
__device__ inline void attend(const scalar_t* query, const scalar_t* latent, scalar_t* O,
                              float* LSE, int t, int H, int keys, float scale, KeyOf key_of) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int first_head = B_R * blockIdx.x, rows_left = min(B_R, H - first_head);
    const long long head = (long long)t * H + first_head;
    const int tiles = (keys + B_C - 1) / B_C;
    if (threadIdx.x < BUFFERS) {
        initialize(&shared.full[threadIdx.x], PRODUCERS);
        initialize(&shared.empty[threadIdx.x], CONSUMERS);
    }
    for (int i = threadIdx.x; i < B_R * (D_QK / 8); i += CONSUMERS + PRODUCERS) {
        const int row = i / (D_QK / 8), chunk = i % (D_QK / 8);
        const bool exists = row < rows_left;
        copy_16_bytes_async(shared.Q + in_panels(B_R, row, chunk),
                            query + (head + (exists ? row : 0)) * D_QK + chunk * 8, exists);
    }
    commit_copies();
    wait_for_copies<0>();
    publish_tile();
    __syncthreads();
    // 384 threads got 168 registers each, and 128 · (168 − 40) = 256 · (232 − 168) move.
    if (threadIdx.x >= CONSUMERS) {
        lower_register_limit<40>();
        produce(shared, latent, tiles, key_of);
    } else {
        raise_register_limit<232>();
        consume(shared, O + head * D_V, LSE + head, tiles, rows_left, scale * LOG2_E);
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
sparse_mla_hopper(const scalar_t* query, const scalar_t* latent, const int* indices, scalar_t* O,
                  float* LSE, int T, int H, int k, float scale) {
    const int t = blockIdx.y;
    const int* row = indices + (long long)t * k;
    attend(query, latent, O, LSE, t, H, k, scale, [=](int n) {
        const int key = n < k ? row[n] : -1;
        return key < T ? key : -1;
    });
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1)
mla_dense_hopper(const scalar_t* query, const scalar_t* latent, scalar_t* O, float* LSE, int S,
                 int T, int H, float scale, int is_causal) {
    const int t = S - 1 - blockIdx.y;   // the longest rows first
    const int keys = is_causal ? max(0, t + T - S + 1) : T;
    attend(query, latent, O, LSE, t, H, keys, scale, [=](int n) { return n < keys ? n : -1; });
}
