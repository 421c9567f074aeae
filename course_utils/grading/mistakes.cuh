// mistakes.cuh — the start of a solution with hooks where learners err; course_utils/grading/mistakes.py compiles it.
//
// One launch makes many mistakes: its grid is (blocks of the solution's grid, variants). Each block of variant n writes
// to the n-th copy of the outputs. Where not all blocks of the solution's grid are there, those that are stand at equal
// steps, from the first to the last.
struct Variant {
    int hooks[4];   // that this variant pulls; 0: no more
    float value;    // for hooks that take a number

    __device__ bool pulls(int hook) const {
        return hooks[0] == hook || hooks[1] == hook || hooks[2] == hook || hooks[3] == hook;
    }
};
__constant__ Variant variants[MOST_VARIANTS];
__constant__ int solution_grid[3];
__constant__ int elements[MOST_ARGUMENTS];   // of each argument that is an array
__constant__ int launch_number;   // of a case, from 0: what its launches before have written is the variant's own

__device__ inline int variant_number() { return blockIdx.y; }
__device__ inline dim3 grid_of_solution() { return dim3(solution_grid[0], solution_grid[1], solution_grid[2]); }
__device__ inline dim3 block_of_solution() {
    const int x = solution_grid[0], y = solution_grid[1], last = x * y * solution_grid[2] - 1;
    const int block = last == 0 ? 0 : (long long)blockIdx.x * last / (gridDim.x - 1);
    return dim3(block % x, block / x % y, block / x / y);
}
#define blockIdx block_of_solution()
#define gridDim grid_of_solution()
#define WRONG(hook, right, wrong) (variant.pulls(hook) ? (wrong) : (right))
#define NEG_INF __int_as_float(0xff800000)
