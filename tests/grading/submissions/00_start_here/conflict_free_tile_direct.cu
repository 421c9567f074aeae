// Without a tile: loads along a row, stores down a column.
extern "C" __global__ void __launch_bounds__(256)
conflict_free_tile(const float* in, float* out, int L, int D) {
    const long long head = (long long)blockIdx.z * L * D;
    const int c = blockIdx.x * 32 + threadIdx.x;
    for (int r = blockIdx.y * 32 + threadIdx.y; r < min(L, (int)blockIdx.y * 32 + 32); r += 8)
        if (c < D) out[head + (long long)c * L + r] = in[head + (long long)r * D + c];
}
