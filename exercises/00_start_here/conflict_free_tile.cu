// conflict_free_tile.cu — turns K [.., L, D] into Kᵀ [.., D, L], as a decoding kernel wants its
// keys: coalesced on both sides, and without bank conflicts in between.
//
// grid   (ceil(D / 32), ceil(L / 32), heads)          block  (32, 8): a thread moves four numbers
// layout in [heads, L, D], out [heads, D, L], fp32, contiguous
// shared 4 · 32 · 32 = 4096 bytes, static; with a column of padding 4224
// limits any L and D; heads and L / 32 up to 65535
// paper  M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA blog, 2013
constexpr int TILE = 32, ROWS = 8;

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
conflict_free_tile(const float* in, float* out, int L, int D) {
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;   // the tile's corner in `in`
    in += (long long)blockIdx.z * L * D, out += (long long)blockIdx.z * L * D;
    // YOUR CODE HERE
}
