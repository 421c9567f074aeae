// swizzle.cu — turns a tile of chunks: row by row in, column by column out, through shared memory without a bank
// conflict and without padding. A chunk is 16 bytes, 8 numbers; a row of the tile has 8 chunks, 128 bytes, all 32 banks.
//
// grid   (tiles)                       block  (256)
// layout in [tiles, 32, 8] chunks      out [tiles, 8, 32] chunks; 16-bit numbers, aligned to 16 bytes
// shared 4096 bytes
// limits none
extern "C" __global__ void swizzle(const uint4* in, uint4* out) {
    __shared__ uint4 tile[32 * 8];   // places for 32 rows of 8 chunks
    in += blockIdx.x * 256, out += blockIdx.x * 256;
    const int e = threadIdx.x;
    const int row = e / 8, chunk = e % 8;              // of in[e]
    const int out_row = e % 32, out_chunk = e / 32;    // of out[e]: eight neighbours, eight rows
    // BEGIN SOLUTION
    tile[8 * row + (chunk ^ row % 8)] = in[e];
    __syncthreads();
    out[e] = tile[8 * out_row + (out_chunk ^ out_row % 8)];
    // END SOLUTION
}
