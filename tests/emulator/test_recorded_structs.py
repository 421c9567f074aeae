"""A struct in memory was written by the lane that stored it, in whatever way the compiler does that."""

import numpy as np
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import record
from course_utils.emulator.recorded import WRITE

KERNEL = r"""struct Item { float x; int i; double d; short h; };
struct Pair { int low, high; };
__device__ Pair pair_of(int n) { return {n, n + 1}; }
extern "C" __global__ void k(const double* x, float* y, Pair* pairs) {
    __shared__ Item items[64];
    __shared__ Pair two[64];
    Item mine = {1, 2, x[threadIdx.x], 4};
    items[threadIdx.x] = mine;
    two[threadIdx.x] = pair_of(threadIdx.x);
    pairs[threadIdx.x] = pair_of(100 + threadIdx.x);
    Pair here = pair_of(7);
    __syncthreads();
    Item other = items[63 - threadIdx.x];
    y[threadIdx.x] = other.x + (float)other.d + two[(threadIdx.x + 1) % 64].high + here.low;
}
"""


def test_a_struct_has_a_writer():
    x, y, pairs = torch.rand(64).double(), torch.zeros(64), torch.zeros(64, 2, dtype=torch.int32)
    kernel = RawModule(code=KERNEL).get_function("k")
    recording = record(lambda: kernel((1,), (64,), (x, y, pairs)))
    c = recording.columns
    assert (c["steps.warp"][c["steps.op"] == WRITE] >= 0).all()
    for array, size, line in (("items", 24, 8), ("two", 8, 9), ("pairs", 8, 10)):
        for thread in (0, 31, 40):
            for byte in range(0, size - size % 16 + 2):
                write = recording.writer(array, size * thread + byte)
                assert write.thread == thread, (array, thread, byte)
                assert recording.places[c["steps.place"][write.step]].line == line
    assert pairs[5].tolist() == [105, 106]


def test_the_pieces_of_a_struct_have_its_values():
    x, y, pairs = torch.rand(64).double(), torch.zeros(64), torch.zeros(64, 2, dtype=torch.int32)
    kernel = RawModule(code=KERNEL).get_function("k")
    recording = record(lambda: kernel((1,), (64,), (x, y, pairs)))
    c = recording.columns
    widths = c["steps.width"]
    lanes = np.array([int(mask).bit_count() for mask in c["steps.mask"]])
    words = np.where(np.isin(c["steps.op"], (WRITE,)), lanes * -(-widths // 4), 0)
    first = np.cumsum(words) - words
    write = recording.writer("items", 24 * 40 + 8)  # its .d
    assert write.thread == 40 and c["steps.op"][write.step] == WRITE
    at = first[write.step] + (write.row - c["steps.first"][write.step]) * -(-widths[write.step] // 4)
    skipped = 24 * 40 + 8 - c["lanes.offset"][write.row]
    value = c["words.value"][at + skipped // 4 : at + skipped // 4 + 2].view(np.float64)[0]
    assert value == x[40]


def test_lanes_that_store_what_a_function_returns_make_one_request():
    code = (
        KERNEL[: KERNEL.index("extern")]
        + r"""extern "C" __global__ void k(Pair* pairs) {
        pairs[threadIdx.x] = pair_of(threadIdx.x);
    }"""
    )
    pairs = torch.full((64, 2), -5, dtype=torch.int32)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (64,), (pairs,)))
    c = recording.columns
    assert c["steps.warp"].tolist() == [0, 1] and c["steps.width"].tolist() == [8, 8]
    assert (c["steps.mask"] == 0xFFFFFFFF).all()
    assert c["words.value"].tolist() == pairs.flatten().tolist()
