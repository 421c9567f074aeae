// panels.cu — a tile of 128 columns as wgmma reads it: two panels of 64 columns, each in 128-byte swizzle.
//
// grid   (tiles)                       block  (256)
// layout in, out [tiles, rows, 16], chunks of 8 numbers of 16 bits, aligned to 16 bytes
// shared none
// limits rows a multiple of 8
// arch: sm_80
// source PTX ISA, "Asynchronous warpgroup level matrix instructions", "128B swizzle mode"
extern "C" __global__ void panels(const uint4* in, uint4* out, int rows) {
    in += blockIdx.x * rows * 16, out += blockIdx.x * rows * 16;
    for (int e = threadIdx.x; e < rows * 16; e += blockDim.x) {
        const int row = e / 16, chunk = e % 16;   // of in[e]; a panel has eight chunks of each row
        // BEGIN SOLUTION
        const int panel = chunk / 8, place = chunk % 8 ^ row % 8;
        out[panel * rows * 8 + row * 8 + place] = in[e];
        // END SOLUTION
    }
}
