// ring.cu — sums of the columns of tiles that the copy engine brings through a ring of three buffers: a producer asks,
// a warp of consumers adds up.
//
// grid   (1)                           block  (64)
// layout x [tiles, 32], fp32, aligned to 16 bytes  sums [32], fp32
// shared 432 bytes
// limits none
// arch: sm_90a only
// source PTX ISA, "mbarrier", "cp.async.bulk"
#include "copy_engine.cuh"

constexpr int BUFFERS = 3, COLUMNS = 32;
extern "C" __global__ void ring(const float* x, float* sums, int tiles) {
    __shared__ __align__(128) float tile[BUFFERS][COLUMNS];
    __shared__ Mbarrier full[BUFFERS], empty[BUFFERS];
    if (threadIdx.x < BUFFERS) initialize(&full[threadIdx.x], 1), initialize(&empty[threadIdx.x], 32);
    publish_barriers(), __syncthreads();
    if (threadIdx.x == 32) {   // the producer
        for (int t = 0, buffer = 0, free = 1; t < tiles; t++) {
            wait_for(&empty[buffer], free);   // parity 1 of a fresh mbarrier counts as over
            arrive_expecting(&full[buffer], sizeof(tile[0]));
            load_bytes(tile[buffer], x + t * COLUMNS, sizeof(tile[0]), &full[buffer]);
            if (++buffer == BUFFERS) buffer = 0, free ^= 1;
        }
    } else if (threadIdx.x < 32) {
        float sum = 0;
        for (int t = 0; t < tiles; t++) {
            // BEGIN SOLUTION
            const int buffer = t % BUFFERS, parity = t / BUFFERS % 2;
            wait_for(&full[buffer], parity);
            sum += tile[buffer][threadIdx.x];
            arrive(&empty[buffer]);
            // END SOLUTION
        }
        sums[threadIdx.x] = sum;
    }
}
