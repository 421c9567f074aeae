"""Members of a struct in shared memory have their names in a recording, wherever the kernel's text has one for it."""

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import record
from course_utils.emulator.compiler import find_compiler
from course_utils.emulator.recorded import OPS, WRITE
from course_utils.emulator.struct_members import Member, known_members, parts, with_gaps
from course_utils.launches.chapters import course_launches
from course_utils.launches.hopper import LADDER, launch

WITH_POINTERS = pytest.mark.skipif(find_compiler().kind != "gcc", reason="only g++ says where variables are")


def recording_of(code, shared_mem=0, threads=64):
    x = torch.arange(float(threads))
    return record(lambda: RawModule(code=code).get_function("k")((1,), (threads,), (x,), shared_mem=shared_mem))


def shared_arrays(recording):
    """Of each array in shared memory its name, type, shape, and the byte at which it begins."""
    return [(one.name, one.dtype, one.shape, one.begin) for one in recording.arrays if one.space == "shared"]


TILES = r"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Stage { float K[2][8]; __half V[32]; };
struct Tiles { float4 Q[4][2]; Stage stages[2]; int count; __nv_bfloat16 P[2][16]; };
__device__ void fill(Stage& stage, float x, int t) {
    if (t < 16) stage.K[t / 8][t % 8] = x;
    if (t < 32) stage.V[t] = x;
}
extern "C" __global__ void k(float* x) {
    extern __shared__ __align__(128) char memory[];
    DECLARED;
    const int t = threadIdx.x;
    if (t < 8) tile AT Q[t / 2][t % 2] = make_float4(x[t], 1, 2, 3);
    fill(tile AT stages[0], x[t], t), fill(tile AT stages[1], x[t], t);
    if (t < 32) tile AT P[t / 16][t % 16] = x[t];
    if (t == 0) tile AT count = 3;
    __syncthreads();
    x[t] += tile AT Q[t % 4][1].x + (float)tile AT stages[1].V[t % 32] + tile AT count;
}
"""
MEMBERS = [
    ("Q", "float32", (4, 2, 4), 0),
    ("stages[0].K", "float32", (2, 8), 128),
    ("stages[0].V", "float16", (32,), 192),
    ("stages[1].K", "float32", (2, 8), 256),
    ("stages[1].V", "float16", (32,), 320),
    ("count", "int32", (), 384),
    ("P", "bfloat16", (2, 16), 388),
]
DECLARATIONS = {
    "Tiles& tile = *reinterpret_cast<Tiles*>(memory)": ".",
    "auto* tile = reinterpret_cast<Tiles*>(memory)": "->",
    "__shared__ Tiles tile": ".",
}


@WITH_POINTERS
@pytest.mark.parametrize(("declared", "joint"), DECLARATIONS.items())
def test_members_are_named_as_the_source_writes_them(declared, joint):
    code = TILES.replace("DECLARED", declared).replace(" AT ", joint)
    recording = recording_of(code, shared_mem=512)
    assert shared_arrays(recording) == [(f"tile{joint}{name}", *rest) for name, *rest in MEMBERS]
    write = recording.writer(f"tile{joint}stages[1].V", 2 * 7)
    assert write.thread == 7 and recording.columns["steps.op"][write.step] == WRITE
    whole = "tile" if declared.startswith("__shared__") else "dynamic shared memory"
    assert recording.writer(whole, 320 + 2 * 7) == write
    assert [one.is_vector for one in recording.arrays if one.space == "shared"] == [True, *[False] * 6]


@WITH_POINTERS
def test_a_known_offset_counts_and_what_lies_around_keeps_the_name_of_the_array():
    code = r"""struct Pair { float a[64], b[64]; };
extern "C" __global__ void k(float* x) {
    extern __shared__ float memory[];
    Pair& pair = *reinterpret_cast<Pair*>(memory + 64);
    memory[threadIdx.x] = 1; memory[threadIdx.x + 192] = 2;
    pair.a[threadIdx.x] = 3; pair.b[threadIdx.x] = 4;
    x[threadIdx.x] = pair.a[threadIdx.x];
}"""
    assert shared_arrays(recording_of(code, shared_mem=1024)) == [
        ("dynamic shared memory", "bytes", (256,), 0),
        ("pair.a", "float32", (64,), 256),
        ("pair.b", "float32", (64,), 512),
        ("dynamic shared memory from byte 768", "bytes", (256,), 768),
    ]


@WITH_POINTERS
def test_what_has_no_single_name_stays_as_it_is():
    """A pointer that moves; a view of floats; two structs over each other."""
    body = {
        "Pair* pair = (Pair*)memory + threadIdx.x % 2; pair->a[threadIdx.x] = 3; x[0] = pair->b[1];",
        "float* a = memory; a[threadIdx.x] = 3; x[0] = a[1];",
        "Pair& pair = *(Pair*)memory; Other& other = *(Other*)memory; pair.a[threadIdx.x] = 1; x[0] = other.c;",
    }
    for text in body:
        code = rf"""struct Pair {{ float a[64], b[64]; }};
struct Other {{ float c; int d[63]; }};
extern "C" __global__ void k(float* x) {{ extern __shared__ float memory[]; {text} }}"""
        arrays = shared_arrays(recording_of(code, shared_mem=1024))
        assert arrays == [("dynamic shared memory", "bytes", (1024,), 0)], text


@WITH_POINTERS
def test_a_struct_is_taken_apart_as_far_as_each_request_stays_in_one_part():
    code = r"""struct Work { int head, row; float scale, bias; };
struct Tiles { Work work[2]; float S[64]; };
extern "C" __global__ void k(float* x) {
    __shared__ Tiles tile;
    tile.S[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 0) tile.work[0] = Work{1, 2, 3, 4}, tile.work[1].row = 5;
    __syncthreads();
    Work mine = tile.work[0];
    x[threadIdx.x] = tile.S[63 - threadIdx.x] + mine.row + tile.work[1].row;
}"""
    assert shared_arrays(recording_of(code)) == [
        ("tile.work[0]", "bytes", (16,), 0),
        ("tile.work[1].row", "int32", (), 20),
        ("tile.S", "float32", (64,), 32),
    ]


def test_the_outermost_of_what_is_known_is_taken_apart_and_gaps_are_kept():
    gate = Member("gate", 8, 8, "long", 8)
    tiles = Member("tile", 0, 16, members=(Member("tile.x", 0, 8, "double", 8), gate._replace(name="tile.gate")))
    assert known_members([gate, tiles, tiles], 16) == [tiles]
    assert known_members([tiles, tiles.moved(8)], 64) == []
    assert known_members([tiles.moved(56)], 64) == []
    whole = with_gaps("memory", 64, [tiles.moved(16)])
    spans = torch.tensor([[0, 4], [16, 24], [24, 32], [40, 48]]).numpy()
    assert [one.name for one in parts(whole, spans)] == ["memory", "tile.x", "tile.gate", "memory from byte 32"]
    spans[1, 1] = 28  # over both members
    assert [one.name for one in parts(whole, spans)] == ["memory", "tile", "memory from byte 32"]


@WITH_POINTERS
def test_the_tiles_of_chapter_02_are_named():
    arrays = shared_arrays(record(course_launches()["forward, L=256, causal"].run))
    assert [name for name, *_ in arrays] == ["tile.Q", "tile.K", "tile.V", "tile.P"]
    assert arrays[1][1:] == ("float32", (64, 17, 4), 128 * 17 * 16)


@WITH_POINTERS
def test_tiles_and_mbarriers_of_a_kernel_for_hopper_are_named():
    query, key, value = torch.zeros(3, 1, 1, 64, 64).bfloat16()
    recording = record(lambda: launch(LADDER[3], query, key, value))
    arrays = shared_arrays(recording)
    assert [one[1] for one in arrays if one[0] in ("shared.Q", "shared.K", "shared.V")] == ["bfloat16"] * 3
    assert ("shared.gate_K[0].full", "uint64", ()) in [one[:3] for one in arrays]
    columns = recording.columns
    waits = {"arrive", "wait", "phase"}
    for op, array, extra in zip(columns["steps.op"], columns["steps.array"], columns["steps.extra"], strict=True):
        if OPS[op] in waits and array >= 0:
            assert extra == 0 and ".gate_" in recording.arrays[array].name


@WITH_POINTERS
def test_a_finding_names_the_member_that_it_is_about():
    code = r"""struct Tiles { float a[64], b[64]; };
extern "C" __global__ void k(float* x) {
    extern __shared__ float memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(memory);
    tile.b[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = tile.b[63 - threadIdx.x] + tile.a[0];
}"""
    said = {one.tool: one.message for one in recording_of(code, shared_mem=512).findings}
    assert "hazard in shared memory (tile.b): reads what" in said["racecheck"]
    assert said["initcheck"] == "reads shared memory (tile.a) that no thread of the block has written"
