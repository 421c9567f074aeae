// radix_topk.cu — the k greatest scores of each row, as a set: radix select, one block per row.
//
// Nothing is sorted. fp32 numbers have the order of unsigned keys (the bits, with the sign turned
// round), and a key is three digits of 11 bits. A histogram of the first digit over the row shows,
// counted from the top, the bin in which the k-th greatest key lies. What lies above this bin is
// selected, what lies below is not; the bin itself is split by the next digit, and so on. After one
// digit the bin and what is above it mostly fit in shared memory. So the row is read twice: once
// for the histogram, and once, out of L2, to keep these keys; the other digits are theirs alone. If
// they do not fit (many equal scores), each digit takes a reading of the row.
//
// For example, k = 6, and by the first digit 3 keys lie above the bin and 5 in it. The 3 are
// selected, and 6 − 3 = 3 of the 5 are wanted. The next digit splits the 5 into 2, 2 and 1, from the
// top: the first 2 are selected too, the 1 is not, and of the 2 between them, the new bin, 1 is
// wanted. If the last digit does not part these 2, they are equal, and either of them will do.
//
// The order of atomics decides what is left open: the order of the indices in a row, and which of
// the scores equal to the k-th greatest are selected. Both can differ from run to run; the sorted
// scores cannot. −0 counts as less than +0, NaN as the greatest (as in torch.topk); −∞ is never
// selected, and a row with fewer other scores than k ends in −1.
//
// grid   (S)                             block  (THREADS)
// layout logits [S, T], fp32; indices [S, k], int32; contiguous, aligned to 16 bytes; a row
//        belongs to query t = 0 … S − 1, a column to key s = 0 … T − 1
// shared 4 · (BINS + 2·CAPACITY + WARPS + 7) bytes, static: 40.2 KiB
// limits 1 ≤ k ≤ 4096; 1 ≤ T ≤ 2^30
// options: -DTHREADS=1024 | -DTHREADS=512
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1: top-k selection over the indexer's scores
constexpr int WARPS = THREADS / 32;
constexpr int DIGIT = 11, BINS = 1 << DIGIT;     // bits of a digit
constexpr int CAPACITY = 4096;                   // keys that are kept; at least k
constexpr int BATCH = 4, STEP = 4 * THREADS;     // loads on their way per thread; scores per load
constexpr unsigned ALL = 0xffffffff;
#include "constants.cuh"
static_assert(THREADS % 32 == 0 && BINS % THREADS == 0,
              "THREADS must be a multiple of 32 that divides 2048, the number of bins");

// A key grows with its score: a negative number has all its bits turned round, any other its sign.
// Less the key of −∞, that is 0, which is also what stands outside the row, and is never selected;
// NaNs with a sign, once below −∞, come out above all numbers, where the other NaNs are.
__device__ inline unsigned key_of(float score) {
    const int bits = __float_as_int(score);
    return (bits ^ (bits >> 31 | 0x80000000)) - 0x007fffff;
}

// The keys whose first digits are known: those that agree with `key` in the bits of `mask`.
struct Bin {
    unsigned key, mask;
    int count;     // keys in it
    int wanted;    // so many of them are among the k greatest
    __device__ bool has(unsigned other) const { return other && (other & mask) == key; }
};

// scores[first] to scores[first + 3]. A row of T scores begins anywhere, but `first` is such that
// the four lie at a multiple of 16 bytes.
__device__ inline float4 load(const float* scores, int first, int T) {
    if (first >= 0 && first + 4 <= T) return *reinterpret_cast<const float4*>(scores + first);
    float s[4];
    for (int e = 0; e < 4; e++) {
        const int at = first + e;
        s[e] = 0 <= at && at < T ? scores[at] : NEG_INF;
    }
    return make_float4(s[0], s[1], s[2], s[3]);
}

// Calls f(keys, index of the first) for each four scores of the row, all lanes of a warp together.
template <class F>
__device__ inline void for_each_four(const float* scores, int T, F f) {
    const int before = (long long)blockIdx.x * T % 4;   // since the last multiple of 16 bytes
    for (int at = -before; at < T; at += BATCH * STEP) {
        const int first = at + 4 * threadIdx.x;
        float4 batch[BATCH];
        #pragma unroll
        for (int n = 0; n < BATCH; n++) batch[n] = load(scores, first + n * STEP, T);
        #pragma unroll
        for (int n = 0; n < BATCH; n++) {
            if (at + n * STEP >= T) return;
            const float4 s = batch[n];
            const unsigned keys[4] = {key_of(s.x), key_of(s.y), key_of(s.z), key_of(s.w)};
            f(keys, first + n * STEP);
        }
    }
}

// Splits the bin by its next digit, of which `histogram` counts the keys, and keeps the part in
// which the last one wanted lies. Each thread adds up a few digits, the greatest first.
__device__ void narrow(Bin& bin, int shift, const int (&histogram)[BINS + 1]) {
    constexpr int MINE = BINS / THREADS;
    __shared__ int sums[WARPS], digit, above, count;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int greatest = BINS - 1 - MINE * threadIdx.x;
    int sum = 0;
    for (int n = 0; n < MINE; n++) sum += histogram[greatest - n];
    int passed = sum;   // keys with these digits or greater ones: a prefix sum over the block
    for (int other = 1; other < 32; other *= 2) {
        const int given = __shfl_up_sync(ALL, passed, other);
        if (lane >= other) passed += given;
    }
    if (lane == 31) sums[warp] = passed;
    __syncthreads();
    passed -= sum;
    for (int w = 0; w < warp; w++) passed += sums[w];
    for (int n = 0; n < MINE; n++) {
        const int d = greatest - n, here = histogram[d];
        // With too few keys in all: digit 0, so that every key is in the bin or above.
        if (passed < bin.wanted && (passed + here >= bin.wanted || d == 0))
            digit = d, above = passed, count = here;
        passed += here;
    }
    __syncthreads();
    bin = {bin.key | (unsigned)digit << shift, ALL << shift, count, bin.wanted - above};
}

// 2048 threads on an SM is meant for sm_80, sm_90 and sm_100. The SMs of the others (sm_75: 1024;
// sm_86, sm_89, sm_120: 1536) hold fewer, and there ptxas ignores the number of blocks.
extern "C" __global__ void __launch_bounds__(THREADS, 2048 / THREADS)
radix_topk(const float* logits, int* indices, int T, int k) {
    __shared__ int histogram[BINS + 1];      // the last one counts what is not in the bin
    __shared__ uint2 candidates[CAPACITY];   // key and index
    __shared__ int found, selected, ties;
    logits += (long long)blockIdx.x * T, indices += (long long)blockIdx.x * k;
    if (threadIdx.x == 0) found = selected = ties = 0;
    Bin bin = {0, 0, 0, k};   // all keys
    int shift = 32;           // of the last digit that is known

    const auto clear = [&] {
        for (int d = threadIdx.x; d <= BINS; d += THREADS) histogram[d] = 0;
        __syncthreads();
    };
    const auto count_digit = [&](unsigned key) {   // of any key: no lane of a warp has to branch
        atomicAdd(&histogram[bin.has(key) ? key >> shift & BINS - 1 : BINS], 1);
    };
    const auto fits = [&] {   // the bin, and what lies above it
        return k - bin.wanted + bin.count <= CAPACITY;
    };

    // Digit by digit. The shift of the last is 0, not −1: it overlaps the one before by a bit.
    do {
        shift = max(shift - DIGIT, 0);
        clear();
        for_each_four(logits, T, [&](const unsigned (&keys)[4], int) {
            for (unsigned key : keys) count_digit(key);
        });
        __syncthreads();
        narrow(bin, shift, histogram);
    } while (!fits() && shift > 0);

    // Keeps the keys above `least`, up to `most`, as long as there is room. All lanes of a warp add
    // to `found` together; of that the compiler makes a prefix sum over the warp, and one atomic.
    const auto keep = [&](unsigned least, unsigned most) {
        const auto is_kept = [=](unsigned key) { return key > least && key <= most; };
        for_each_four(logits, T, [&](const unsigned (&keys)[4], int first) {
            int mine = 0;
            for (unsigned key : keys) mine += is_kept(key);
            if (!__any_sync(ALL, mine)) return;   // as in the tail of −∞ of a causal row
            int place = atomicAdd(&found, mine);
            for (int e = 0; e < 4; e++) {
                if (!is_kept(keys[e])) continue;
                if (place < CAPACITY) candidates[place] = make_uint2(keys[e], first + e);
                place++;
            }
        });
        __syncthreads();
    };
    if (fits()) {
        keep(max(bin.key, 1u) - 1, ALL);
    } else {   // the keys of the bin are all equal: as many as there is room for, after those above
        keep(bin.key, ALL);
        keep(bin.key - 1, bin.key);
    }

    // The digits that are left, among what was kept; until all of the bin are wanted.
    const int count = min(found, CAPACITY);
    while (bin.count > bin.wanted && shift > 0) {
        shift = max(shift - DIGIT, 0);
        clear();
        for (int c = threadIdx.x; c < count; c += THREADS) count_digit(candidates[c].x);
        __syncthreads();
        narrow(bin, shift, histogram);
    }
    for (int c = threadIdx.x; c < count; c += THREADS) {
        const uint2 candidate = candidates[c];
        if ((candidate.x & bin.mask) > bin.key) indices[atomicAdd(&selected, 1)] = candidate.y;
        if (!bin.has(candidate.x)) continue;
        const int tie = atomicAdd(&ties, 1);
        if (tie < bin.wanted) indices[k - bin.wanted + tie] = candidate.y;
    }
    // Fewer scores than k: all of them were taken.
    for (int n = count + threadIdx.x; n < k; n += THREADS) indices[n] = -1;
}
