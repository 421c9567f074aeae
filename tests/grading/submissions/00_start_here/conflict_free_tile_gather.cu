// Without a tile: stores along a row, loads down a column.
extern "C" __global__ void __launch_bounds__(256)
conflict_free_tile(const float* in, float* out, int L, int D) {
    const long long head = (long long)blockIdx.z * L * D;
    const int r = blockIdx.y * 32 + threadIdx.x;
    for (int c = blockIdx.x * 32 + threadIdx.y; c < min(D, (int)blockIdx.x * 32 + 32); c += 8)
        if (r < L) out[head + (long long)c * L + r] = in[head + (long long)r * D + c];
}
