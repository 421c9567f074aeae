"""A struct in memory was written by the lane that stored it, in whatever way the compiler does that."""

import numpy as np
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import record
from course_utils.emulator.recorded import END, OPS, WRITE, WRITING

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


# What g++ reports before it copies a struct is the write, then the read; clang says memcpy().
COPIES = r"""struct One { float x; };
struct Pair { float x; int i; };
struct alignas(16) Four { float x[4]; };
struct Five { float x[5]; };
struct Box { int n; Five of[2]; };
extern "C" __global__ void k(const One* one, const Pair* pair, const Four* four, const Five* five,
                             One* y1, Pair* y2, Four* y4, Five* y5) {
    __shared__ One s1[64];
    __shared__ Pair s2[64];
    __shared__ Four s4[64];
    __shared__ Box boxes[64];
    const int t = threadIdx.x, other = 63 - t;
    s1[t] = one[t];
    s2[t] = t % 2 ? pair[t] : pair[other];
    s4[t] = four[t];
    boxes[t].of[t % 2] = five[t];
    __syncthreads();
    y1[t] = s1[other]; y2[t] = s2[other]; y4[t] = s4[other];
    y5[t] = boxes[other].of[other % 2];
}
"""


def test_a_struct_that_is_copied_from_memory_to_memory_is_read_before_it_is_written(each_compiler):
    x = [torch.rand(64, n) for n in (1, 2, 4, 5)]
    y = [torch.zeros(64, n) for n in (1, 2, 4, 5)]
    kernel = RawModule(code=COPIES).get_function("k")
    recording = record(lambda: kernel((1,), (64,), (*x, *y)))
    c = recording.columns
    names = [array.name for array in recording.arrays]
    assert {OPS[c["steps.op"][begun]] for begun in c["steps.extra"][c["steps.op"] == END]} == {"barrier"}
    assert all((np.diff(c[name]) >= 0).all() for name in ("steps.turn", "steps.first", "changes.step"))
    for n, out, of, space in zip((1, 2, 4, 5), y, x, ("s1", "s2", "s4", "boxes"), strict=True):
        assert torch.equal(out.flip(0)[1::2], of[1::2])
        for thread, part in ((0, 0), (31, n - 1), (40, n // 2)):
            byte = 4 * (n * thread + part)
            write = recording.writer(f"y{n}", byte)
            assert write.thread == thread
            (read,) = recording.inputs(write)
            assert read.step < write.step and names[c["steps.array"][read.step]] == space
            at = c["lanes.offset"][read.row] + byte - c["lanes.offset"][write.row]
            before = recording.writer(space, int(at), read.step)
            assert (
                before.thread == 63 - thread
                and word_of(recording, before, int(at)) == out.view(torch.int32)[thread, part]
            )


def word_of(recording, write, offset):
    """What a write left at an offset of its array, as int32."""
    c = recording.columns
    lanes, words = (np.array([int(mask).bit_count() for mask in c["steps.mask"]]), -(-c["steps.width"] // 4))
    first = np.cumsum(np.where(np.isin(c["steps.op"], WRITING), lanes * words, 0))
    row, width = write.row - c["steps.first"][write.step], words[write.step]
    before = first[write.step] - lanes[write.step] * width
    return int(c["words.value"][before + row * width + (offset - c["lanes.offset"][write.row]) // 4].view(np.int32))


def test_a_store_of_what_was_there_already_stays_before_the_read_behind_it():
    code = r"""extern "C" __global__ void k(float* y, const float* x) {
    __shared__ float s[32];
    y[threadIdx.x] = 0; float a = x[threadIdx.x];
    s[threadIdx.x] = a; y[threadIdx.x] = 0; a = (y[threadIdx.x] = 0) + x[threadIdx.x]; s[threadIdx.x] = a;
}"""
    y, x = torch.zeros(32), torch.rand(32)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (y, x)))
    c = recording.columns
    done = [f"{OPS[op]} {recording.arrays[a].name}" for op, a in zip(c["steps.op"], c["steps.array"], strict=True)]
    assert done == ["write y", "read x", "write s", "write y", "write y", "read y", "read x", "write s"]
