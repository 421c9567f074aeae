// pointer_chase.cu — one thread walks through an array whose elements say where to go next. No load
// can begin before the one before it is back: a step takes the latency of the memory with the array.
//
// grid   (1)                           block  (1)
// layout next [n], last [1], int32, contiguous; every next[i] is in 0 … n - 1
// shared 0 bytes
// limits 1 <= n <= 2^31 - 1
extern "C" __global__ void pointer_chase(const int* next, int* last, int steps) {
    int i = 0;
    for (int step = 0; step < steps; step++) i = next[i];
    *last = i;   // written in the end, or the compiler would drop the reads
}
