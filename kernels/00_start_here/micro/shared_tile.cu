// shared_tile.cu — a 32 × 32 tile of floats in shared memory, written by rows and read by columns: laid
// out plainly (32 lanes in one bank), with one word of padding per row, and swizzled by XOR.
//
// grid   any x                         block  (32, 32): a warp per row of the tile
// layout out [grid, 32, 32], fp32, contiguous
// shared 4 · 32 · 33 = 4224 bytes, static
// limits pitch 32 (plain) or 33 (padded)
__device__ int row() { return threadIdx.y; }
__device__ int lane() { return threadIdx.x; }
__device__ float& mine(float* out) { return out[(blockIdx.x * 32 + row()) * 32 + lane()]; }

extern "C" __global__ void read_columns(float* out, int pitch) {
    __shared__ float tile[32 * 33];
    tile[row() * pitch + lane()] = row() * 32 + lane();
    __syncthreads();
    mine(out) = tile[lane() * pitch + row()];
}

extern "C" __global__ void write_columns(float* out, int pitch) {
    __shared__ float tile[32 * 33];
    tile[lane() * pitch + row()] = row() * 32 + lane();
    __syncthreads();
    mine(out) = tile[row() * pitch + lane()];
}

extern "C" __global__ void read_columns_swizzled(float* out) {
    __shared__ float tile[32 * 32];
    tile[row() * 32 + (lane() ^ row())] = row() * 32 + lane();
    __syncthreads();
    mine(out) = tile[lane() * 32 + (row() ^ lane())];
}
