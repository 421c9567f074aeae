// Turned on the way into a padded tile, four floats at a time where rows are aligned for it.
extern "C" __global__ void __launch_bounds__(256)
conflict_free_tile(const float* in, float* out, int L, int D) {
    __shared__ float columns[32 * 33];   // number c of row r at 33 · c + r
    in += (long long)blockIdx.z * L * D, out += (long long)blockIdx.z * L * D;
    const int left = blockIdx.x * 32, top = blockIdx.y * 32;
    const int thread = threadIdx.y * 32 + threadIdx.x;
    if (D % 4 == 0) {
        const int r = thread / 8, c = thread % 8 * 4;   // eight threads to a row
        if (top + r < L && left + c < D) {
            const float4 x = *(const float4*)&in[(long long)(top + r) * D + left + c];
            const float four[4] = {x.x, x.y, x.z, x.w};
            for (int n = 0; n < 4; n++) columns[33 * (c + n) + r] = four[n];
        }
    } else {
        for (int e = thread; e < 32 * 32; e += 256)
            if (top + e / 32 < L && left + e % 32 < D)
                columns[33 * (e % 32) + e / 32] = in[(long long)(top + e / 32) * D + left + e % 32];
    }
    __syncthreads();
    for (int e = thread; e < 32 * 32; e += 256)
        if (left + e / 32 < D && top + e % 32 < L)
            out[(long long)(left + e / 32) * L + top + e % 32] = columns[33 * (e / 32) + e % 32];
}
