"""A recording is what the block did: told by hand, against memory after each step, and against the launch itself."""

import dataclasses
import functools
import json
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import configure, module, record
from course_utils.emulator.compiler import find_compiler
from course_utils.emulator.recorded import OPS, READING, WRITING
from course_utils.emulator.recording import COLUMNS
from course_utils.launches import sparse_patterns
from course_utils.launches.chapters import course_launches
from course_utils.launches.hopper import LADDER, launch
from course_utils.operators import flash_attention_v2
from tests.helpers.all_of import all_of
from tests.helpers.recorded import ADDED, NOT_WRITTEN, WITH_NUMBER

TINY = r"""extern "C" __global__ void tiny(const float* x, float* y) {
    __shared__ float s[64];
    float twice = x[threadIdx.x];
    int nothing = 0; twice *= 2;
    s[threadIdx.x] = twice;
    BARRIER
    if (threadIdx.x == 3) s[5] = 7;
    BARRIER
    y[threadIdx.x] = s[63 - threadIdx.x];
}
"""


WITH_VARIABLES = pytest.mark.skipif(find_compiler().kind != "gcc", reason="only g++ says where variables are")


def tiny(barrier="__syncthreads();", blocks=2, **options):
    kernel = RawModule(code=TINY.replace("BARRIER", barrier)).get_function("tiny")
    x, y = torch.arange(64.0), torch.zeros(64)
    return record(lambda: kernel((blocks,), (64,), (x, y)), **options), y


@pytest.fixture(scope="module")
def recorded():
    return tiny()


def steps(recording):
    """Of each step: turn, warp, what it does, line, the name of its array, lanes."""
    c, found = recording.columns, []
    for i, op in enumerate(c["steps.op"]):
        place, array = c["steps.place"][i], c["steps.array"][i]
        lanes = bin(c["steps.mask"][i]).count("1")
        line = recording.places[place].line if place >= 0 else None
        name = recording.arrays[array].name if array >= 0 else None
        found.append((c["steps.turn"][i], c["steps.warp"][i], OPS[op], line, name, lanes))
    return found


def memory_after(recording):
    """The bytes of each array after all steps, by replaying them; and which of them were written."""
    c, low, word = recording.columns, 0, 0
    arrays, written = [], [np.zeros(array.bytes, bool) for array in recording.arrays]
    for array in recording.arrays:
        arrays.append(c["arrays.initial"][low : low + array.bytes].copy())
        low += array.bytes
    for step in np.flatnonzero(np.isin(c["steps.op"], WRITING)).tolist():
        array, first, width = (int(c[f"steps.{name}"][step]) for name in ("array", "first", "width"))
        rows = bin(c["steps.mask"][step]).count("1")
        words = -(-width // 4)
        values = c["words.value"][word : word + rows * words].view(np.uint8).reshape(rows, 4 * words)[:, :width]
        word += rows * words
        places = c["lanes.offset"][first : first + rows, None] - recording.arrays[array].low + np.arange(width)
        arrays[array][places], written[array][places] = values, True
    assert word == len(c["words.value"])
    return arrays, written


def test_a_tiny_kernel_step_by_step(recorded):
    recording, y = recorded
    both = (0, 1)
    assert steps(recording) == [
        *((1, warp, "read", 3, "x", 32) for warp in both),
        *((2, warp, "write", 5, "s", 32) for warp in both),
        *((3, warp, "barrier", 6, None, 32) for warp in both),
        (3, -1, "end", 6, None, 0),
        (4, 0, "write", 7, "s", 1),
        (4, 1, "barrier", 8, None, 32),
        (5, 0, "barrier", 8, None, 32),
        (5, -1, "end", 8, None, 0),
        *((6, warp, "read", 9, "s", 32) for warp in both),
        *((7, warp, "write", 9, "y", 32) for warp in both),
    ]
    (s,) = [array for array in recording.arrays if array.space == "shared"]
    assert (s.name, s.bytes) == ("s", 256)
    assert memory_after(recording)[0][1].tobytes() == y.numpy().tobytes()
    assert y[58] == 7 and y[0] == 126


@WITH_VARIABLES
def test_local_variables_are_known_once_they_are_set(recorded):
    recording, _ = recorded
    assert [(array.dtype, array.shape) for array in recording.arrays if array.space == "shared"] == [("float32", (64,))]
    c = recording.columns
    found = {}
    for number, variable in enumerate(recording.variables):
        mine = (c["changes.variable"] == number) & (c["changes.thread"] == 40)
        found[variable.name] = c["changes.step"][mine].tolist(), c["changes.word"][mine].tolist()
    doubled = int(np.float32(80).view(np.uint32))
    assert found == {"twice": ([3], [doubled]), "nothing": ([3], [0])}  # read in step 1; also what is set to 0 is set


def test_where_the_compiler_tells_no_variables_a_way_through_them_is_lost(monkeypatch):
    code = 'extern "C" __global__ void k(const float* x, float* y) {\nfloat mine = x[0];\ny[0] = 2 * mine;\n}'
    kernel = RawModule(code=code).get_function("k")
    monkeypatch.setattr(module._Library, "recorded_functions", ())
    monkeypatch.setattr(module._Library, "tells_variables", False)
    recording = record(lambda: kernel((1,), (1,), (torch.ones(1), torch.zeros(1))))
    assert not recording.variables
    assert not recording.origins("y", 0).is_all


def test_who_wrote_a_byte_and_from_what(recorded):
    recording, _ = recorded
    write = recording.writer("y", 4 * 58)
    assert (write.step, write.thread) == (14, 58)
    (read,) = recording.inputs(write.step, write.thread)
    assert (read.step, read.thread) == (12, 58)
    assert recording.writer("s", 4 * 5, read.step)[:2] == (7, 3)  # thread 3's, behind the first barrier
    assert recording.writer("s", 4 * 5, 7)[:2] == (2, 5)
    assert recording.writer("s", 4 * 5, 2) is None
    assert recording.origins("y", 4 * 58) == []  # 7 comes from nowhere
    origins = [origin[:2] for origin in recording.origins("y", 0)]
    assert origins == ([(1, 63)] if recording.variables else [])  # by way of `twice`
    for wrong in ((99, 0), (4, 0), (0, 40)):
        with pytest.raises(ValueError, match="step takes|touches no memory"):
            recording.inputs(*wrong)
    for wrong, words in (
        (("z", 0), "array takes one of x, y, s, got 'z'"),
        ((3, 0), "array takes a name, or a number from 0 to 2, got 3"),
        (("y", -1), "offset takes a byte of y from 0 to 255, got -1"),
        (("y", 256), "offset takes a byte of y from 0 to 255, got 256"),
        (("y", 0, 16), "step takes None, or a number from 0 to 15, got 16"),
    ):
        for ask in (recording.writer, recording.origins):
            with pytest.raises(ValueError, match=words):
                ask(*wrong)
    for ask, wrong in ((recording.writer, (None, 0)), (recording.writer, ("y", 1.5)), (recording.inputs, ("0", 0))):
        with pytest.raises(TypeError, match="takes a"):
            ask(*wrong)


ROUNDABOUT = {
    "a statement": r"""extern "C" __global__ void k(const float* x, float* y) {
    y[threadIdx.x] =
        threadIdx.x < 16
            ? x[threadIdx.x]
            : 3;
}""",
    "a function among a call's arguments": WITH_NUMBER
    + r"""extern "C" __global__ void k(const float* x, float* y) {
    float mine = 0;
    with_number(x,
                [&](float number) { mine = 2 * number; });
    y[threadIdx.x] = mine;
}""",
    "a pointer to a variable": r"""extern "C" __global__ void k(const float* x, float* y) {
    const float mine = x[threadIdx.x];
    __syncwarp();
    const float *other = y,
                *same = reinterpret_cast<const float*>(&mine);
    float sum = 0;
    for (int n = 0; n < 1; n++) sum += same[n];
    y[threadIdx.x] = sum;
}""",
}


@WITH_VARIABLES
@all_of("what", ROUNDABOUT)
def test_a_number_that_comes_in_a_roundabout_way(what):
    x, y = torch.arange(32.0), torch.zeros(32)
    module = RawModule(code=ROUNDABOUT[what])
    recording = record(lambda: module.get_function("k")((1,), (32,), (x, y)))
    assert [origin.thread for origin in recording.origins("y", 4 * 5)] == [5]


@WITH_VARIABLES
def test_a_half_that_is_copied_from_memory_to_memory_is_read_first():
    code = r"""#include <cuda_fp16.h>
extern "C" __global__ void k(const __half* x, __half* y) {
    __shared__ __half s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = threadIdx.x < 16 ? s[31 - threadIdx.x] : __half(0);
}"""
    x, y = torch.arange(32.0).half(), torch.zeros(32).half()
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (x, y)))
    c = recording.columns
    done = [(OPS[c["steps.op"][step]], recording.arrays[c["steps.array"][step]].name) for step in (0, 1, 4, 5)]
    assert done == [("read", "x"), ("write", "s"), ("read", "s"), ("write", "y")]
    assert c["words.value"][:32].tolist() == x.view(torch.int16).tolist()
    assert [one.thread for one in recording.origins("y", 2 * 5)] == [26]


@WITH_VARIABLES
def test_a_variable_that_is_read_anew_and_stays_the_same_comes_from_both():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    for (int n = 0; n < 2; n++) {
        const float a = x[n], b = x[2 + n];
        y[n] = a - b;
    }
}"""
    x, y = torch.full((4,), 10.0), torch.ones(2)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    rows = [[one.row for one in recording.origins("y", 4 * n)] for n in range(2)]
    assert [(recording.columns["lanes.offset"][of] // 4).tolist() for of in rows] == [[0, 2], [0, 2, 1, 3]]


@WITH_VARIABLES
def test_a_sum_comes_from_what_was_too_small_to_change_it_too():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    float sum = 1;
    for (int n = 0; n < 2; n++) {
        const float a = x[n];
        sum = sum * 1 + a;
    }
    y[0] = sum;
}"""
    x, y = torch.tensor([1.0, 1e-20]), torch.zeros(1)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    assert [int(recording.columns["lanes.offset"][one.row]) for one in recording.origins("y", 0)] == [0, 4]


# Of what is read in turn, nothing changes what is written in the end.
UNCHANGED = {
    "a running maximum": ("float m = 0;", "m = fmaxf(m, s);", "m"),
    "a maximum by a condition": ("float m = 0;", "if (s > m) m = s;", "m"),
    "the same bits": ("float best = -1;", "best = s;", "best"),
    "a flag": ("bool flag = false;", "flag = s > 5;", "flag"),
    "a count": ("int count = 0;", "if (s > 5) count++;", "count"),
    "a count by ++ before it": ("int count = 0;", "if (s > 5)\n ++count;", "count"),
    "a member's by -- before it": ("struct { int count = 0; } of;", "if (s > 5)\n --(of.count);", "of.count"),
    "what is done again": ("int count = 0;", "do count++;\n while (count < s);", "count"),
    "what a condition leaves": ("int last = 7;", "if (s > 5) { last = n; }", "last"),
    "what the other case leaves": ("int last = 7;", "if (s < 5) {} else { last = n; }", "last"),
    "a count up to a break": ("int count = 0;", "if (s > 5) break; count++;", "count"),
    "a count but for some": ("int count = 0;", "if (s < 5) { continue; } count++;", "count"),
    "a case": ("int last = 7;", "switch (s > 5) { case 1: last = n; }", "last"),
    "a pointer": ("float m = 0, *const of = &m;", "if (s > *of) *of = s;", "m"),
    "a function that is a value": ("float m = 0; auto add = [&](float s) { m += 0 * s; };", "add(s);", "m"),
    "a sum scaled by 1": ("float m = 4, sum = 1;", "const float f = expf(m - fmaxf(m, s)); sum *= f;", "sum"),
}


@WITH_VARIABLES
@all_of("what", UNCHANGED)
def test_what_leaves_a_number_as_it_was_is_among_its_origins(what):
    before, statement, result = UNCHANGED[what]
    code = f"""extern "C" __global__ void k(const float* x, float* y) {{
    {before}
    for (int n = 0; n < 3; n++) {{
        const float s = x[n];
        __syncwarp();
        {statement}
    }}
    y[0] = {result};
}}"""
    x, y = torch.full((3,), -1.0), torch.zeros(1)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    origins = recording.origins("y", 0)
    assert [int(recording.columns["lanes.offset"][one.row]) for one in origins] == [0, 4, 8] and origins.is_all


@WITH_VARIABLES
def test_a_write_comes_from_the_conditions_around_it_and_from_what_a_pointer_is_made_from():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    const float s = x[0], t = x[2];
    int n = 0;
    if (x[1] > -5) {
        y[0] = 1;
    }
    if (s > -5) {
        if (t > -5)
        {
            y[1] = 2;
        }
    }
    do {
        n++;
        y[2] = 3;
    } while (x[3] > 5);
    y[3] = 4;
    for (int i = 0; i < (x[4] > -5 ? 2 : 1); i++) {
        y[4] = i;
    }
    const float* p = x[5] > 5 ? x + 6 : x + 7;
    y[5] = *p;
}"""
    x, y = torch.zeros(8), torch.zeros(6)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    rows = [[one.row for one in recording.origins("y", 4 * n)] for n in range(6)]
    found = [np.unique(recording.columns["lanes.offset"][of] // 4).tolist() for of in rows]
    assert found == [[1], [0, 2], [], [], [4], [5, 7]]


@WITH_VARIABLES
def test_what_a_function_leaves_as_it_was_by_another_name_is_among_its_origins():
    code = r"""
template <int N>
__device__ void keep_most(float (&most)[N], const float* from, int n) {
    for (int i = 0; i < N; i++) most[i] = fmaxf(most[i], from[n + i]);
}
extern "C" __global__ void k(const float* x, float* y) {
    float kept[2] = {0, 0};
    keep_most(kept, x, 0);
    keep_most<2>(kept, x, 2);
    y[0] = kept[0];
}"""
    x, y = torch.full((4,), -1.0), torch.zeros(1)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    offsets = [int(recording.columns["lanes.offset"][one.row]) for one in recording.origins("y", 0)]
    assert offsets == [0, 4, 8, 12]


# A number of the thread's own, `s`, is made into `v` by way of something that has no statement of its own.
BY_THE_WAY = {
    "values in braces": ("", "const float v{s};", "v"),
    "a list of values": (
        "struct Two { float a, b; };",
        "const Two two{s, 1}; __syncwarp(); float v = Two{0, two.a}.b;",
        "v",
    ),
    "a pointer that is set later": ("", "float v[2] = {0, 0}; float* p; p = v + 1; *p = s;", "v[1]"),
    "an array": ("", "float v[2] = {0, 0}; auto p = v; p[1] = s;", "v[1]"),
    "an array of another name": ("", "float v[2] = {0, 0}; float (&same)[2] = v; same[1] = s;", "v[1]"),
    "an array of pointers": ("", "float v = 0, w = 0; float* p[2] = {&w, &v}; *p[1] = s;", "v"),
    "what a function points to": (
        "__device__ float* at(float* of, int n) { return of + n; }",
        "float v[2] = {0, 0}; float* p = at(v, 1); *p = s;",
        "v[1]",
    ),
    "names of parts": ("", "float v[2] = {0, 0}; auto& [first, second] = v; second = s;", "v[1]"),
    "copies of parts": ("", "float v[2] = {0, s}; __syncwarp(); auto [first, second] = v; __syncwarp();", "second"),
    "a macro": ("#define TWICE(a) const float v = 2 * (a)", "TWICE(s);", "v"),
    "a function that is a value": ("", "float v = 0; auto set = [&](float to) { v = to; }; set(s);", "v"),
    "a function that is given": (
        "template <class F> __device__ void with(float s, F f) { const float t = s; __syncwarp(); f(t); }",
        "float v = 0; with(s, [&](float to) { __syncwarp(); v = to; });",
        "v",
    ),
}


@WITH_VARIABLES
@all_of("what", BY_THE_WAY)
def test_a_number_comes_from_what_stands_in_no_assignment(what):
    above, statement, result = BY_THE_WAY[what]
    code = f"""{above}
extern "C" __global__ void k(const float* x, float* y) {{
    const float s = x[0];
    __syncwarp();
    {statement}
    __syncwarp();
    y[0] = {result};
}}"""
    x, y = torch.ones(1), torch.zeros(1)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    assert len(recording.origins("y", 0)) == 1


@WITH_VARIABLES
def test_elements_that_a_loop_sets_by_reference_come_from_what_it_reads():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    float v[3];
    int n = 0;
    for (float& e : v) e = x[n++];
    y[0] = v[0];
}"""
    x, y = torch.ones(3), torch.zeros(1)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    assert [int(recording.columns["lanes.offset"][one.row]) for one in recording.origins("y", 0)] == [0, 4, 8]


@WITH_VARIABLES
def test_what_all_lanes_add_to_one_number_is_among_its_origins():
    x, y = torch.ones(64), torch.zeros(32)
    recording = record(lambda: RawModule(code=ADDED).get_function("k")((1,), (64,), (x, y)))
    assert y[0] == 64 and y[5] == 5
    found = [recording.origins("y", 4 * n) for n in (0, 5)]
    names = [array.name for array in recording.arrays]
    of = [[(names[recording.columns["steps.array"][one.step]], one.thread) for one in origins] for origins in found]
    assert [sorted(one) for one in of] == [[*(("x", n) for n in range(count)), ("y", 0)] for count in (64, 6)]
    assert all(origins.is_all for origins in found)


@WITH_VARIABLES
def test_what_stays_because_it_was_not_written_is_said_not_to_be_all():
    x, y = torch.zeros(32), torch.zeros(32)
    recording = record(lambda: RawModule(code=NOT_WRITTEN).get_function("k")((1,), (32,), (x, y)))
    assert not recording.origins("y", 0).is_all  # of `any`, if one number were more than 5
    code = NOT_WRITTEN.replace("s > 5", "threadIdx.x > 31")
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (x, y)))
    assert recording.origins("y", 0).is_all


@WITH_VARIABLES
def test_what_all_lanes_and_all_warps_have_together_comes_from_all_of_them_or_is_not_all():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    int sum = __reduce_add_sync(0xffffffff, (int)x[threadIdx.x]);
    y[threadIdx.x] = sum;
    int count = __syncthreads_count(x[threadIdx.x] > 0);
    y[threadIdx.x + 64] = count;
}"""
    x, y = torch.ones(64), torch.zeros(128)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (64,), (x, y)))
    assert y[5] == 32 and {one.thread for one in recording.origins("y", 4 * 5)} == set(range(32))
    assert y[69] == 64 and not recording.origins("y", 4 * 69).is_all


@WITH_VARIABLES
def test_a_way_through_a_variable_of_the_device_is_lost():
    code = r"""__device__ float kept[32];
extern "C" __global__ void k(const float* x, float* y) {
    kept[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = kept[threadIdx.x];
}"""
    x, y = torch.ones(32), torch.zeros(32)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (x, y)))
    assert not recording.origins("y", 0).is_all


@WITH_VARIABLES
def test_zeros_that_a_copy_writes_come_from_nothing():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float4 s[2];
    unsigned to = __cvta_generic_to_shared(s), last = to + 32;
    for (; to < last; to += 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 0;" :: "r"(to), "l"(x) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[0] = last - to + s[1].x;
}"""
    x, y = torch.ones(4), torch.ones(1)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    write = recording.writer("y", 0)
    (read,) = recording.inputs(write.step, write.thread)
    assert y[0] == 0 and recording.arrays[recording.columns["steps.array"][read.step]].name == "s"
    assert recording.origins("y", 0) == []


@WITH_VARIABLES
def test_where_a_way_is_lost_the_answer_says_that_it_is_not_all(recorded):
    recording, _ = recorded
    bare = recording.without_variables()
    assert [one.name for one in bare.left_out] == ["twice"]
    doubled, seven = 0, 4 * 58
    assert recording.origins("y", doubled).is_all and recording.origins("y", seven).is_all
    assert bare.origins("y", doubled) == [] and not bare.origins("y", doubled).is_all
    assert bare.origins("y", seven) == [] and bare.origins("y", seven).is_all
    doubled = recording.writer("s", 4 * 5, 7)
    assert recording.inputs(*doubled[:2]).is_all and not bare.inputs(*doubled[:2]).is_all


@WITH_VARIABLES
def test_a_counter_and_what_a_loop_repeats_are_told_apart():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    float sum = 0, other[2];
    for (int i = 0; i < 2; i++) sum += x[i];
    for (int m = 0; m < 2; m++) other[m] = x[2 + m];
    float4 list[] = {make_float4(x[4], 0, 0, 0),
                     make_float4(x[5], 0, 0, 0)};
    const int n = 6, of_list = threadIdx.x;
    __syncwarp();
    y[0] = sum;
    y[1] = other[0];
    y[2] = x[n];
    y[3] = list[of_list].x;
}"""
    x, y = torch.arange(8.0), torch.zeros(4)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    rows = [[one.row for one in recording.origins("y", 4 * n)] for n in range(4)]
    found = [(recording.columns["lanes.offset"][of] // 4).tolist() for of in rows]
    assert found == [[0, 1], [2, 3], [6], [4, 5]]


LOST = r"""union Word { float f; int i; };
extern "C" __global__ void k(const float* x, float* y, long long first) {
    long long at = first + threadIdx.x;
    double wide[2] = {0.1, 0};
    wide[1] = x[at];
    float narrow = wide[1];
    Word word;
    word.f = x[at];
    __syncwarp();
    y[at] = narrow;
    y[at + 32] = word.f;
    y[at + 64] = x[at];
}"""


@WITH_VARIABLES
def test_variables_of_an_enum_have_the_type_that_it_is_stored_as():
    code = r"""enum Way { LEFT, RIGHT };
enum class Far : long long { AWAY = 5 };
extern "C" __global__ void k(const float* x, float* y) {
    Way way = x[0] > 0 ? LEFT : RIGHT;
    Far far = x[1] > 0 ? Far::AWAY : Far(1);
    y[0] = way + (float)far;
}"""
    kernel = RawModule(code=code).get_function("k")
    recording = record(lambda: kernel((1,), (1,), (torch.ones(2), torch.zeros(1))))
    assert {one.name: one.type for one in recording.variables} == {"way": "unsigned int", "far": "long long int"}


@WITH_VARIABLES
def test_variables_of_8_bytes_have_two_words_and_unions_are_known_by_name_alone():
    x, y = torch.arange(32.0), torch.zeros(96)
    recording = record(lambda: RawModule(code=LOST).get_function("k")((1,), (32,), (x, y, np.int64(0))))
    assert [one.name for one in recording.left_out] == ["word"]
    found = [recording.origins("y", 4 * (5 + first)) for first in (0, 32, 64)]
    assert [(len(one), one.is_all) for one in found] == [(1, True), (0, False), (1, True)]
    wide = {one.name: (n, one.count, one.words) for n, one in enumerate(recording.variables) if one.words > 1}
    assert {name: form for name, (_, *form) in wide.items()} == {"first": [1, 2], "at": [1, 2], "wide": [2, 2]}
    c = recording.columns
    for name, dtype, values in (("at", np.int64, [5]), ("wide", np.float64, [0.1, 5])):
        words = np.full(2 * len(values), -1)
        mine = (c["changes.thread"] == 5) & (c["changes.variable"] == wide[name][0])
        words[c["changes.element"][mine]] = c["changes.word"][mine]
        assert words.astype(np.uint32).view(dtype).tolist() == values


@WITH_VARIABLES
def test_what_a_reference_to_a_variable_sets_comes_from_what_it_is_set_to():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    float most[2] = {0, 0}, least[2] = {0, 0}, both[2] = {0, 0};
    for (int n = 0; n < 4; n++) {
        const float s = x[n];
        float& one = (n < 2 ? most : least)[n % 2];
        if (s > one) one = s;
        for (float& each : both) {
            float& same = each;
            if (s > same) same = s;
        }
        float* other = reinterpret_cast<float*>(least);
        if (s > *other) *other = s;
    }
    y[0] = most[0];
    y[1] = least[0];
    y[2] = both[0];
}"""
    x, y = torch.full((4,), -1.0), torch.zeros(3)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (1,), (x, y)))
    assert [one.name for one in recording.left_out] == ["each", "one", "same"]
    for n in range(3):
        origins = recording.origins("y", 4 * n)
        offsets = [int(recording.columns["lanes.offset"][one.row]) for one in origins]
        assert offsets == [0, 4, 8, 12] and origins.is_all


@WITH_VARIABLES
def test_variables_beside_an_array_that_the_widest_stores_would_fill_are_recorded():
    code = r"""extern "C" __global__ void k(float* y, int n) {
        float sums[4][4] = {};
        for (int i = 0; i < n; i++) sums[i % 4][i / 4] += i;
        y[threadIdx.x] = sums[1][0];
    }"""
    y = torch.zeros(32)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (y, np.int32(16))))
    assert {variable.name for variable in recording.variables} == {"n", "sums", "i"}


def test_a_finding_knows_the_steps_of_both_parties():
    recording, _ = tiny(barrier="")
    races = [finding for finding in recording.findings if finding.tool == "racecheck"]
    inside = [finding for finding in races if "another block" not in finding.message]
    assert inside and all(finding.step >= 0 and finding.other_step >= 0 for finding in inside)
    all_steps = steps(recording)
    for finding in inside:
        assert all_steps[finding.step][3] == finding.line and all_steps[finding.other_step][3] == finding.other_line
    between = [finding for finding in races if finding not in inside]
    assert between and {finding.other_step for finding in between} == {-1}  # the other block is not recorded


def test_a_crash_in_another_block_does_not_end_the_recording():
    source = """extern "C" __global__ void past(float* x) {
    for (int k = 0; k < 20000 && blockIdx.x == 0; k++) x[threadIdx.x] = k;   // meanwhile the others would have crashed
    x[1 << 20] = 1;
}"""
    kernel = RawModule(code=source).get_function("past")
    with configure(threads=4):
        found = record(lambda: kernel((8,), (32,), (torch.zeros(32),)))
    assert "block (0, 0, 0)" in found.failure and found.steps == 20_001


def test_what_is_packed_is_what_was_recorded(recorded):
    recording, _ = recorded
    meta, data = recording.packed()
    assert json.loads(json.dumps(meta)) == meta
    assert meta["ops"] == list(OPS) and meta["threads"] == 64 and meta["warps"] == 2
    raw, at = zlib.decompress(data), 0
    for column in meta["columns"]:
        values = np.frombuffer(raw, np.dtype(column["type"]).newbyteorder("<"), column["count"], at)
        at += values.nbytes
        values = np.cumsum(values, dtype=values.dtype) if column["delta"] else values
        assert np.array_equal(values, recording.columns[column["name"]]), column["name"]
    assert at == len(raw) and [column["name"] for column in meta["columns"]] == list(COLUMNS)


def test_arguments_that_do_not_fit():
    kernel = RawModule(code=TINY.replace("BARRIER", "")).get_function("tiny")
    x, y = torch.arange(64.0), torch.zeros(64)

    def twice():
        for _ in range(2):
            kernel((2,), (64,), (x, y))

    with pytest.raises(ValueError, match=r"block takes an index in the grid \(2, 1, 1\) of tiny\(\), got \(2, 0, 0\)"):
        record(twice, block=2)
    with pytest.raises(ValueError, match=r"several launches \(0: tiny\(\), 1: tiny\(\)\): say which"):
        record(twice)
    with pytest.raises(ValueError, match=r"makes no launch number 2; it makes 0: tiny\(\), 1: tiny\(\)"):
        record(twice, launch=2)
    with pytest.raises(ValueError, match="makes no launch number 0; it makes none"):
        record(lambda: None)
    with pytest.raises(TypeError, match="call takes a function"):
        record(7)
    with pytest.raises(ValueError, match="limit takes a positive int"):
        record(twice, limit=0)
    with pytest.raises(ValueError, match="launch takes a number from 0 on, got True"):
        record(twice, launch=True)
    with pytest.raises(ValueError, match=r"longer than 96 accesses .* after 2 turns.* in lines 3 and 5.* Fewer"):
        record(twice, launch=0, limit=100)
    with pytest.raises(ValueError, match="longer than 0 accesses of threads, after 0 turns"):
        record(twice, launch=0, limit=1)
    assert record(twice, launch=1, block=(1, 0, 0)).index == (1, 0, 0)


def test_who_records_already_is_named():
    with pytest.raises(ValueError, match="inside sanitize.* or another record"):
        record(lambda: record(lambda: None))

    def in_another_thread():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(record, lambda: None).result()

    with pytest.raises(ValueError, match="while another thread records"):
        record(in_another_thread)


def test_what_fails_is_recorded_up_to_there():
    code = r"""extern "C" __global__ void k(float* y) {
        y[threadIdx.x] = 1;
        if (threadIdx.x < 32) __syncwarp(3);
        __syncthreads();
    }"""
    y = torch.zeros(64)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (64,), (y,)))
    assert "does not name lane 2" in recording.failure and y.sum() == 0
    assert steps(recording)[:2] == [(1, warp, "write", 2, "y", 32) for warp in (0, 1)]


def test_what_fails_at_once_has_no_steps():
    code = r"""extern "C" __global__ void k(float* y) {
        __syncwarp(3);
        y[threadIdx.x] = 1;
    }"""
    y = torch.zeros(32)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (y,)))
    assert recording.failure and recording.steps <= 1 and recording.writer("y", 0) is None
    assert recording.packed()[0]["failure"] == recording.failure


def test_lanes_that_part_meet_again():
    code = r"""extern "C" __global__ void k(const int* x, int* y) {
        int sum = 0;
        for (int i = 0; i < threadIdx.x % 4; i++) sum += x[i];
        if (threadIdx.x == 7) sum += x[5];
        y[threadIdx.x] = sum;
    }"""
    x, y = torch.arange(8, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (x, y)))
    assert [step[2:] for step in steps(recording)] == [
        *(("read", 3, "x", lanes) for lanes in (24, 16, 8)),
        ("read", 4, "x", 1),
        ("write", 5, "y", 32),
    ]


# ---- kernels of the course

KERNELS = (
    "transpose_tiled",
    "matmul_tiled",
    "scores, L=128",
    "softmax, L=128",
    "output, L=128",
    "forward, L=256, causal",
    "v2 step2_tensor_cores, d=64, L=200, causal",
    "v2 forward, d=64, L=200",
    "sparse csr_gather, L=200",
)
ROWS = {*READING, *WRITING}
PRODUCER = 2  # a step of chapter 07, with a copy engine and products of a warpgroup


launches = functools.cache(course_launches)


@functools.cache
def of_course(name):
    """The recording of a launch, and the tensors that it left."""
    left = []
    recording = record(lambda: left.extend(launches()[name].run()))
    return recording, left


@functools.cache
def of_hopper(number, length, head_dim):
    """The recording of a step of chapter 07's ladder, and the tensors that it and a plain launch left: out and lse."""
    step, generator, left = LADDER[number], torch.Generator().manual_seed(0), []
    tensors = [torch.randn(1, 1, length, head_dim, generator=generator).bfloat16() for _ in range(3)]
    recording = record(lambda: left.extend(launch(step, *tensors)))
    return recording, left, launch(step, *tensors)


def nobodys(recording):
    """The writes of nobody: memory was not what the steps had made of it when the block read it."""
    c = recording.columns
    return np.flatnonzero((c["steps.warp"] < 0) & (c["steps.op"] == OPS.index("write"))).tolist()


def assert_explains(recording, cells=20):
    """No write is missing, and who wrote a byte is what a look at all steps, one after the other, finds."""
    c = recording.columns
    assert not nobodys(recording)
    lanes = [[lane for lane in range(32) if mask >> lane & 1] for mask in c["steps.mask"].tolist()]
    of_row = [(step, lane) for step, op in enumerate(c["steps.op"]) if op in ROWS for lane in lanes[step]]
    step_of, lane_of = np.array(of_row).T
    width, array, warp = (c[f"steps.{name}"][step_of] for name in ("width", "array", "warp"))
    rows, rng = np.flatnonzero(np.isin(c["steps.op"][step_of], WRITING)), np.random.default_rng(0)
    low = c["lanes.offset"]
    for row in rng.choice(rows, cells):
        offset, before = low[row] + rng.integers(width[row]), rng.integers(step_of[row], recording.steps + 1)
        here = (array[rows] == array[row]) & (low[rows] <= offset) & (offset < low[rows] + width[rows])
        hits = rows[here & (step_of[rows] < before)]
        found = recording.writer(int(array[row]), int(offset), int(before))
        if len(hits):
            last = hits[-1]
            assert found == (step_of[last], -1 if warp[last] < 0 else 32 * warp[last] + lane_of[last], last)
        else:
            assert found is None and before == step_of[row]


@all_of("name", KERNELS)
def test_each_byte_is_explained_and_outputs_are_those_of_a_plain_launch(name):
    recording, left = of_course(name)
    assert_explains(recording)
    plain = launches()[name].run()
    assert all(mine.equal(other) for mine, other in zip(left, plain, strict=True))
    after = [(*both, array) for *both, array in zip(*memory_after(recording), recording.arrays, strict=True)]
    for (values, written, array), tensor in zip(after, plain, strict=False):
        whole = tensor.view(-1).view(torch.uint8).numpy()[array.low : array.low + array.bytes]
        assert (values == whole)[written].all(), array.name
    assert sum(written.sum() for _, written, array in after if array.space == "global") > 0


def test_structs_in_shared_memory_have_a_writer():
    of_range = record(lambda: sparse_patterns.hard()["sparse range_forward, sliding_window, L=200"].run())
    tensors = [torch.zeros(1, 1, 128, 64).bfloat16() for _ in range(3)]
    of_work = record(lambda: launch(LADDER[-1], *tensors))
    assert not nobodys(of_range) and not nobodys(of_work)
    (seen,) = {n for n, place in enumerate(of_range.places) if "tile.seen[r] = keys_of(r)" in line_of(of_range, place)}
    writes = of_range.columns["steps.place"] == seen
    assert np.isin(of_range.columns["steps.op"][writes], WRITING).any()


def line_of(recording, place):
    return recording.sources[place.file].splitlines()[place.line - 1]


def test_products_and_copies_of_a_hopper_kernel_are_explained():
    recording, left, plain = of_hopper(PRODUCER, 128, 64)
    assert_explains(recording)
    assert all(mine.equal(other) for mine, other in zip(left, plain, strict=True))
    c = recording.columns
    count = {name: int((c["steps.op"] == OPS.index(name)).sum()) for name in OPS}
    begun = c["steps.extra"][c["steps.op"] == OPS.index("end")]
    of_products = np.isin(np.flatnonzero(c["steps.op"] == OPS.index("wgmma")), begun)
    of_copies = np.isin(np.flatnonzero(c["steps.op"] == OPS.index("copy")), begun)
    assert of_products.all() and len(of_products) == 8 * (4 + 8)  # Q K and P V, by 8 warps, of 64 and 128 terms
    assert of_copies.all() and len(of_copies) >= 4 and count["phase"] >= len(of_copies) - 1


@WITH_VARIABLES
def test_each_row_of_a_box_that_ends_past_the_array_has_its_source():
    length, head_dim = 6, 64  # of the 128 rows that are copied; what is read is no whole number of steps
    recording, _, _ = of_hopper(PRODUCER, length, head_dim)
    c, read = recording.columns, {"Q": set(), "K": set(), "V": set()}
    for origin in recording.origins("O", 2 * head_dim + 1):
        name = recording.arrays[c["steps.array"][origin.step]].name
        read[name].add(int(c["lanes.offset"][origin.row]))
    every_chunk = set(range(0, 2 * length * head_dim, 16))
    assert read["K"] == read["V"] == every_chunk and read["Q"] <= every_chunk


IN_SECONDS = pytest.mark.exhaustive("the same with shuffles instead of products, which take a hundredth of the time")


@WITH_VARIABLES
@pytest.mark.parametrize(
    "name", ["matmul_tiled", "softmax, L=128", pytest.param("v2 forward, d=64, L=200", marks=IN_SECONDS)]
)
def test_what_a_value_does_not_come_from_may_be_anything(name):
    recording, _ = of_course(name)
    course = launches()[name]
    c, rng = recording.columns, np.random.default_rng(1)
    tensors = [arg for arg in course.args if isinstance(arg, torch.Tensor)]
    outputs = np.flatnonzero(
        np.isin(c["steps.op"], WRITING) & (c["steps.array"] < len(tensors)) & (c["steps.array"] >= 0)
    )
    step = int(rng.choice(outputs))
    number, offset = int(c["steps.array"][step]), int(c["lanes.offset"][c["steps.first"][step]])
    origins = recording.origins(number, offset)
    assert origins
    changed = []
    for i, tensor in enumerate(tensors):
        other = torch.from_numpy(rng.standard_normal(tensor.numel())).to(tensor.dtype).view(-1)
        for origin in origins:
            low, width = int(c["lanes.offset"][origin.row]), int(c["steps.width"][origin.step])
            if c["steps.array"][origin.step] == i:
                kept = slice(low // tensor.element_size(), (low + width) // tensor.element_size())
                other[kept] = tensor.view(-1)[kept]
        changed.append(other.view(tensor.shape))
    assert not all(one.equal(tensor) for one, tensor in zip(changed, tensors, strict=True))
    given = iter(changed)
    args = tuple(next(given) if isinstance(arg, torch.Tensor) else arg for arg in course.args)
    values = [
        one.run()[number].view(-1).view(torch.uint8)[offset : offset + tensors[number].element_size()].tolist()
        for one in (course, dataclasses.replace(course, args=args))
    ]
    assert values[0] == values[1]


# ---- what it costs


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_block_of_chapter_03_is_small_and_recorded_at_once(head_dim):
    query, key, value = (torch.randn(1, 1, 128, head_dim).half() for _ in range(3))
    record(lambda: flash_attention_v2(query, key, value))  # what is compiled
    before = time.perf_counter()
    recording = record(lambda: flash_attention_v2(query, key, value))
    assert time.perf_counter() - before < 10
    assert len(recording.packed()[1]) < 8e6 and len(recording.columns["changes.step"]) > 100_000
    before = time.process_time()
    assert recording.origins("O", 0)
    assert time.process_time() - before < 3


@pytest.mark.exhaustive("the same of a smaller kernel of the chapter")
def test_a_block_of_the_last_kernel_of_chapter_07_is_small_too():
    recording, left, plain = of_hopper(-1, 256, 128)
    assert len(recording.packed()[1]) < 8e6
    assert all(mine.equal(other) for mine, other in zip(left, plain, strict=True))
