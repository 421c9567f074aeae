// pieces.cu — a ragged batch in pieces of one size: a block finds out which sequence it is in, and which keys it has.
//
// grid   (pieces, or more)             block  (d), a thread per column
// layout q [B, d]  K, V [B, L, d]  O [pieces, d]  LSE [pieces], fp32; seq_lens [B], from 0 to L; contiguous. Piece by
//        piece, the pieces of sequence 0 come first; a sequence without keys has none
// shared 0 bytes
// limits any size from 1, any d up to 1024 with B · L · d below 2^31; without a key O = 0 and LSE = −∞
#define NEG_INF __int_as_float(0xff800000)

__device__ float dot(const float* q, const float* k, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * k[c];
    return sum;
}

extern "C" __global__ void pieces(const float* q, const float* K, const float* V, const int* seq_lens,
                                  float* O, float* LSE, int B, int L, int d, int size, float scale) {
    const int c = threadIdx.x;        // my column
    int b = 0, part = blockIdx.x;     // my block has part number `part` of sequence b
    // BEGIN SOLUTION
    for (; b < B; b++) {
        const int parts = (seq_lens[b] + size - 1) / size;
        if (part < parts) break;
        part -= parts;
    }
    // END SOLUTION
    const int first = part * size, end = b < B ? min(first + size, seq_lens[b]) : 0;
    float m = NEG_INF, l = 0, o = 0;
    for (int j = first; j < end; j++) {   // online softmax
        const int row = (b * L + j) * d;
        const float s = scale * dot(q + b * d, K + row, d), m_new = fmaxf(m, s);
        const float rescale = expf(m - m_new), p = expf(s - m_new);
        m = m_new, l = l * rescale + p, o = o * rescale + p * V[row + c];
    }
    O[blockIdx.x * d + c] = l > 0 ? o / l : 0;
    if (c == 0) LSE[blockIdx.x] = l > 0 ? m + logf(l) : NEG_INF;
}
