// ldmatrix.cu — matrices of 8 × 8 halves, read from a shared tile of 16 rows × 64 columns by ldmatrix.
// A row of a matrix is 16 bytes. With a pitch of 64 halves all eight rows begin in bank 0; a pitch of 72
// shifts each row by four banks; a swizzle XORs the column's group of eight with the row.
//
// grid   any x                         block  (32): one warp
// layout out [grid, 32, 4], 32-bit registers, those that the kernel does not fill stay as they are
// shared 2 · 16 · 72 = 2304 bytes, static
// limits pitch 64 or 72 halves; swizzle 0, or 1 with pitch 64; group 0 ... 6: the leftmost eight columns
// paper  PTX ISA, "Warp-level matrix load instruction: ldmatrix"
__shared__ __align__(16) unsigned short tile[16 * 72];

// Index of group `g` of eight columns in row `row`.
__device__ int place(int row, int g, int pitch, int swizzle) {
    return row * pitch + 8 * (swizzle ? g ^ (row % 8) : g);
}

// Fills the tile by words, row by row: no conflicts.
__device__ void fill(int pitch) {
    unsigned* words = reinterpret_cast<unsigned*>(tile);
#pragma unroll 1
    for (int i = threadIdx.x; i < 16 * pitch / 2; i += 32) words[i] = i;
    __syncwarp();
}

// Lane 8 m + r brings the address of row r of matrix m: 0 is top left, 1 below it, 2 and 3 to their right.
__device__ unsigned address(int pitch, int swizzle, int group) {
    const int lane = threadIdx.x;
    return __cvta_generic_to_shared(tile + place(lane % 16, group + lane / 16, pitch, swizzle));
}

__device__ unsigned* mine(unsigned* out) { return out + (blockIdx.x * 32 + threadIdx.x) * 4; }

extern "C" __global__ void ldmatrix_x1(unsigned* out, int pitch, int swizzle, int group) {
    fill(pitch);
    unsigned a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(a) : "r"(address(pitch, swizzle, group)) : "memory");
    mine(out)[0] = a;
}

extern "C" __global__ void ldmatrix_x2(unsigned* out, int pitch, int swizzle, int group) {
    fill(pitch);
    unsigned a, b;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(a), "=r"(b) : "r"(address(pitch, swizzle, group)) : "memory");
    mine(out)[0] = a, mine(out)[1] = b;
}

extern "C" __global__ void ldmatrix_x4(unsigned* out, int pitch, int swizzle, int group) {
    fill(pitch);
    unsigned a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address(pitch, swizzle, group)) : "memory");
    mine(out)[0] = a, mine(out)[1] = b, mine(out)[2] = c, mine(out)[3] = d;
}

extern "C" __global__ void ldmatrix_x4_trans(unsigned* out, int pitch, int swizzle, int group) {
    fill(pitch);
    unsigned a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address(pitch, swizzle, group)) : "memory");
    mine(out)[0] = a, mine(out)[1] = b, mine(out)[2] = c, mine(out)[3] = d;
}
