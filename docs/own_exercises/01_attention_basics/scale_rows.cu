// y[r][c] = s[r] · x[r][c], one thread per element: block 128, grid ceil(rows · columns / 128)
extern "C" __global__ void scale_rows(const float* x, const float* s, float* y, int rows, int columns) {
    // BEGIN SOLUTION
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * columns) y[i] = s[i / columns] * x[i];
    // END SOLUTION
}
