"""A recording is what the block did: told by hand, against memory after each step, and against the launch itself."""

import functools
import json
import re
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import configure, record
from course_utils.emulator.compiler import find_compiler
from course_utils.emulator.recorded import ATOMIC, COPY_WRITE, OPS, READ, READING, WRITE, WRITING, Access
from course_utils.emulator.recording import COLUMNS
from course_utils.launches import sparse_patterns
from course_utils.launches.chapters import course_launches
from course_utils.launches.hopper import LADDER, launch
from course_utils.operators import flash_attention_v2
from course_utils.toolchain.source import blank_comments
from tests.helpers.all_of import all_of
from tests.helpers.recorded import STATEMENTS

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


def test_who_wrote_a_byte_and_from_which_reads(recorded):
    recording, _ = recorded
    write = recording.writer("y", 4 * 58)
    assert (write.step, write.thread) == (14, 58)
    (read,) = recording.inputs(write)
    assert (read.step, read.thread) == (12, 58)
    assert recording.writer("s", 4 * 5, read.step)[:2] == (7, 3)  # thread 3's, behind the first barrier
    assert recording.writer("s", 4 * 5, 7)[:2] == (2, 5)
    assert recording.writer("s", 4 * 5, 2) is None
    assert recording.inputs(recording.writer("s", 4 * 5, 7)) == []  # `twice` was read in another statement
    for wrong, words in (
        (("z", 0), "array takes one of x, y, s, got 'z'"),
        ((3, 0), "array takes a name, or a number from 0 to 2, got 3"),
        (("y", -1), "offset takes a byte of y from 0 to 255, got -1"),
        (("y", 256), "offset takes a byte of y from 0 to 255, got 256"),
        (("y", 0, 16), "step takes None, or a number from 0 to 15, got 16"),
    ):
        with pytest.raises(ValueError, match=words):
            recording.writer(*wrong)
    for ask, wrong in ((recording.writer, (None, 0)), (recording.writer, ("y", 1.5)), (recording.inputs, (None,))):
        with pytest.raises(TypeError, match="takes a"):
            ask(*wrong)


def test_what_went_into_a_write_is_what_its_statement_read():
    x, y = torch.arange(64.0), torch.zeros(224)
    recording = record(lambda: RawModule(code=STATEMENTS).get_function("k")((1,), (32,), (x, y)))
    c = recording.columns

    def inputs(number):
        reads = recording.inputs(recording.writer("y", 4 * number))
        names = [recording.arrays[c["steps.array"][one.step]].name for one in reads]
        return [f"{name}{c['lanes.offset'][one.row] // 4}" for name, one in zip(names, reads, strict=True)]

    assert inputs(5) == ["x5", "x6"] and inputs(20) == ["x0"]  # a statement of three lines, and a function called there
    assert inputs(37) == ["x1"] and inputs(69) == ["x2", "y5"]  # two statements in one line
    first = recording.writer("y", 4 * 101, recording.writer("y", 4 * 101).step)
    assert inputs(101) == [] and len(recording.inputs(first)) == 1  # the loop's second round reads nothing
    assert inputs(128) == ["x31"]  # an atomic operation, of the last lane
    assert inputs(165) == []  # from a register
    assert inputs(197) == ["x2"]  # not what the condition read in the rounds before


def test_the_head_of_a_loop_or_condition_is_a_statement_of_its_own():
    code = r"""extern "C" __global__ void k(const float* x, float* y) {
    for (int n = (int)x[threadIdx.x]; n < 33; n += 40)
        y[n] = 1;
    if (x[threadIdx.x] > 3)
        y[threadIdx.x + 32] = 2;
    else if (x[threadIdx.x] > 2)
        y[threadIdx.x + 32] = 3;
    else
        y[threadIdx.x + 32] = x[0];
}"""
    x, y = torch.arange(32.0), torch.zeros(80)
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (x, y)))
    counts = [len(recording.inputs(recording.writer("y", 4 * number))) for number in (5, 36, 35, 33)]
    assert counts == [0, 0, 0, 1]


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
    (read,) = recording.inputs(recording.writer("y", 2 * 5))
    assert recording.writer("s", 2 * 26, read.step).thread == 26


def test_zeros_that_a_copy_writes_were_not_read():
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
    (read,) = recording.inputs(recording.writer("y", 0))
    assert y[0] == 0 and recording.arrays[recording.columns["steps.array"][read.step]].name == "s"
    assert recording.writer("s", 16) and recording.inputs(recording.writer("s", 16)) == []


WIDE = r"""union Word { float f; int i; };
extern "C" __global__ void k(const float* x, float* y, long long first) {
    long long at = first + threadIdx.x;
    double wide[2] = {0.1, 0};
    wide[1] = x[at];
    Word word;
    word.f = wide[1];
    y[at] = word.f;
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
def test_variables_of_8_bytes_have_two_words_and_unions_are_left_out():
    x, y = torch.arange(32.0), torch.zeros(32)
    recording = record(lambda: RawModule(code=WIDE).get_function("k")((1,), (32,), (x, y, np.int64(0))))
    assert "word" not in {one.name for one in recording.variables}
    wide = {one.name: (n, one.count, one.words) for n, one in enumerate(recording.variables) if one.words > 1}
    assert {name: form for name, (_, *form) in wide.items()} == {"first": [1, 2], "at": [1, 2], "wide": [2, 2]}
    c = recording.columns
    for name, dtype, values in (("at", np.int64, [5]), ("wide", np.float64, [0.1, 5])):
        words = np.full(2 * len(values), -1)
        mine = (c["changes.thread"] == 5) & (c["changes.variable"] == wide[name][0])
        words[c["changes.element"][mine]] = c["changes.word"][mine]
        assert words.astype(np.uint32).view(dtype).tolist() == values


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
    "matmul_tiled",
    "softmax, L=128",
    "forward, L=256, causal",
    "v2 forward, d=64, L=200",
    "sparse csr_gather, L=200",
)
FROM_REGISTERS = "sparse csr_gather, L=200"  # what it writes was read in other statements
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


def statement_of(recording, place):
    """A place's file, how many statements end in the lines above it, and who called its function."""
    file, line, caller = recording.places[place]
    above = blank_comments(recording.sources[file]).split("\n")[: line - 1]
    return file, sum(bool(re.search(r"[;{}]\s*$|^\s*#", one)) for one in above), caller


def went_into(recording, write):
    """What a thread read before a write, step by step backwards, up to another statement or another write."""
    c, found = recording.columns, []
    around = statement_of(recording, c["steps.place"][write.step])
    mine = (c["steps.warp"] == write.thread // 32) & (c["steps.mask"] >> np.uint32(write.thread % 32) & 1 == 1)
    for step in np.flatnonzero(mine & (c["steps.op"] != COPY_WRITE))[::-1].tolist():
        if step >= write.step:
            continue
        place, op = c["steps.place"][step], c["steps.op"][step]
        while place >= 0 and statement_of(recording, place) != around:
            place = recording.places[place].caller
        if place < 0 or op == WRITE:
            break
        if op in (READ, ATOMIC) and c["steps.array"][step] >= 0:
            found.append(step)
        if op == ATOMIC:
            break
    return found[::-1]


@all_of("name", ["matmul_tiled", "softmax, L=128", FROM_REGISTERS, "v2 backward_dk_dv, d=64, L=200"])
def test_what_went_into_a_write_is_what_a_look_at_all_steps_finds(name):
    recording, _ = of_course(name)
    c, rng = recording.columns, np.random.default_rng(2)
    has_reads = 0
    for step in rng.permutation(np.flatnonzero(c["steps.op"] == WRITE)).tolist()[:30]:
        lane = rng.choice([lane for lane in range(32) if c["steps.mask"][step] >> lane & 1])
        row = int(c["steps.first"][step]) + (int(c["steps.mask"][step]) & (1 << int(lane)) - 1).bit_count()
        write = Access(step, 32 * int(c["steps.warp"][step]) + int(lane), row)
        found = recording.inputs(write)
        assert all(read.thread == write.thread for read in found)
        assert [read.step for read in found] == went_into(recording, write)
        has_reads += bool(found)
    assert has_reads or name == FROM_REGISTERS


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


def test_each_row_of_a_box_that_ends_past_the_array_has_its_source():
    length, head_dim = 6, 64  # of the 128 rows that are copied; what is read is no whole number of steps
    recording, _, _ = of_hopper(PRODUCER, length, head_dim)
    c, read = recording.columns, {"Q": set(), "K": set(), "V": set()}
    for step in np.flatnonzero((c["steps.op"] == OPS.index("copy write")) & (c["steps.warp"] < 0)).tolist():
        first = int(c["steps.first"][step])
        for row in range(first, first + int(c["steps.mask"][step]).bit_count()):
            for source in recording.inputs(Access(step, -1, row)):
                name = recording.arrays[c["steps.array"][source.step]].name
                if name in read:
                    read[name].add(int(c["lanes.offset"][source.row]))
    every_chunk = set(range(0, 2 * length * head_dim, 16))
    assert read["Q"] == read["K"] == read["V"] == every_chunk


# ---- what it costs


def test_a_block_of_chapter_03_is_small_and_recorded_at_once():
    query, key, value = (torch.randn(1, 1, 128, 128).half() for _ in range(3))
    record(lambda: flash_attention_v2(query, key, value))  # what is compiled
    before = time.perf_counter()
    recording = record(lambda: flash_attention_v2(query, key, value))
    assert time.perf_counter() - before < 10
    assert len(recording.packed()[1]) < 8e6 and len(recording.columns["changes.step"]) > 100_000
    before = time.process_time()
    assert recording.writer("O", 0)
    assert time.process_time() - before < 3


@pytest.mark.exhaustive("the same of a smaller kernel of the chapter")
def test_a_block_of_the_last_kernel_of_chapter_07_is_small_too():
    recording, left, plain = of_hopper(-1, 256, 128)
    assert len(recording.packed()[1]) < 8e6
    assert all(mine.equal(other) for mine, other in zip(left, plain, strict=True))
