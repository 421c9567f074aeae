// swizzled_tile.cuh — tiles of a [L, D] matrix of 16-bit floats in shared memory.
//
// A row is D / 8 chunks of 16 bytes. Stored row after row, the same chunk of eight rows lies in the
// same four banks, and ldmatrix, which reads just that, takes eight turns. So chunk c of row r is
// stored at place c XOR (r mod 8): the eight rows then use all 32 banks, and no memory is lost.
// Include after D and THREADS are defined.
#pragma once
#include "async_copy.cuh"
#include "tensor_core.cuh"

static_assert(D == 64 || D == 128 || D == 256, "D must be 64, 128 or 256");

// Index of the first element of a chunk.
__device__ inline int swizzled(int row, int chunk) { return row * D + (chunk ^ row % 8) * 8; }

// The shared-memory address of chunk 0 of a row. That of chunk c is this XOR 16 c, since a tile
// begins at a multiple of a row's bytes; that of the same chunk n rows on, for n a multiple of 8, lies
// 2 n D bytes further. So a lane keeps one address for each way in which it reads a tile: to other
// columns it takes one XOR, to other rows nothing, as an instruction has room for that offset.
__device__ inline unsigned row_address(const scalar_t* tile, int row) {
    return (unsigned)__cvta_generic_to_shared(tile + swizzled(row, 0));
}

// Starts to copy ROWS rows of a matrix to a tile; zeros from row `rows_left` on, since old numbers
// there may be NaN, and 0 · NaN is NaN. RAGGED = false: all rows exist, and nothing is compared.
// `pitch`: elements from one row to the next.
template <int ROWS, bool RAGGED = true>
__device__ inline void load_tile_async(scalar_t* tile, const scalar_t* matrix,
                                       int rows_left = ROWS, int pitch = D) {
    constexpr int STEP = THREADS / (D / 8);   // the block copies so many rows at a time
    static_assert((STEP & (STEP - 1)) == 0, "WARPS must be a power of two");
    static_assert(ROWS % STEP == 0, "a tile's rows must be a multiple of 256 * WARPS / D");
    const int row = threadIdx.x / (D / 8), chunk = threadIdx.x % (D / 8);
    const int place = swizzled(row, chunk);
    matrix += row * pitch + chunk * 8;
    #pragma unroll
    for (int r = 0; r < ROWS; r += STEP)   // row + r swizzles as row XOR r does: row < STEP
        copy_16_bytes_async(tile + r * D + (place ^ r % 8 * 8), matrix + r * pitch,
                            !RAGGED || row + r < rows_left);
}
