// output.cu — O = P V, one thread per element of O. The threads of a warp hold 32 neighbouring
// columns, so that loads of V and stores of O are coalesced as they stand; a weight P[i][j] is one
// address for the whole warp.
//
// grid   (ceil(d / 32) · ceil(L_q / 32), H, B)
// block  (32, 32): x runs over columns of V, y over queries
// layout P [B, H, L_q, L_k]  V [B, H, L_k, d]  O [B, H, L_q, d], fp32, contiguous
// shared 0 bytes
// limits any L_q, L_k and d; H and B up to 65535
// paper  FlashAttention (arXiv 2205.14135), Algorithm 0, line 3

extern "C" __global__ void __launch_bounds__(1024)
output(const float* P, const float* V, float* O, int L_q, int L_k, int d) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    P += head * L_q * L_k, V += head * L_k * d, O += head * L_q * d;
    const int tiles = (d + 31) / 32;   // tiles of 32 columns in a row of O
    const int c = blockIdx.x % tiles * 32 + threadIdx.x;   // this thread's column
    const int i = blockIdx.x / tiles * 32 + threadIdx.y;   // this thread's query
    if (i >= L_q || c >= d) return;

    float sum = 0;
    for (int j = 0; j < L_k; j++)
        sum += P[(long long)i * L_k + j] * V[(long long)j * d + c];
    O[(long long)i * d + c] = sum;
}
