// scores_of_one_query.cu — s = scale · K q, one thread per key: what one token thinks of all the others.
//
// grid   (ceil(L / threads))           block  (threads)
// layout q [d]  K [L, d]  s [L], fp32, contiguous
// shared 0 bytes
// limits L up to 2^31 - 1024, L · d below 2^31
extern "C" __global__ void scores_of_one_query(const float* q, const float* K, float* s,
                                               int L, int d, float scale) {
    // BEGIN SOLUTION
    const int j = blockIdx.x * blockDim.x + threadIdx.x;   // my key
    if (j >= L) return;
    float sum = 0;
    for (int c = 0; c < d; c++) sum += q[c] * K[j * d + c];
    s[j] = scale * sum;
    // END SOLUTION
}
