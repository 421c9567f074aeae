"""A recording is what the block did: told by hand, against memory after each step, and against the launch itself."""

import dataclasses
import json
import re
import time
import zlib

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import record
from course_utils.emulator.ops import OPS, WITH_ROWS, WRITING
from course_utils.emulator.recording import COLUMNS
from course_utils.launches.broken import BROKEN
from course_utils.launches.chapters import course_launches
from course_utils.launches.flash_attention_v2 import LADDER, _ladder
from course_utils.launches.hopper import LADDER as HOPPER
from course_utils.launches.hopper import launch as launch_hopper

TINY = r"""extern "C" __global__ void tiny(const float* x, float* y) {
    __shared__ float s[64];
    float twice = x[threadIdx.x];
    twice *= 2;
    s[threadIdx.x] = twice;
    BARRIER
    if (threadIdx.x == 3) s[5] = 7;
    BARRIER
    y[threadIdx.x] = s[63 - threadIdx.x];
}
"""


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
    """The bytes of each array after all steps, by replaying them."""
    c, low = recording.columns, 0
    arrays = []
    for array in recording.arrays:
        arrays.append(c["arrays.initial"][low : low + array.bytes].copy())
        low += array.bytes
    word = 0
    for op, array, first, width, mask in zip(
        *(c[f"steps.{name}"] for name in ("op", "array", "first", "width", "mask")), strict=True
    ):
        for row in range(first, first + bin(mask).count("1") if op in WRITING else first):
            value = c["words.value"][word : word + -(-width // 4)].view(np.uint8)[:width]
            word += -(-width // 4)
            at = c["lanes.offset"][row] - recording.arrays[array].low
            arrays[array][at : at + width] = value
    assert word == len(c["words.value"])
    return arrays


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
    assert (s.name, s.dtype, s.shape, s.bytes) == ("s", "float32", (64,), 256)
    assert memory_after(recording)[1].tobytes() == y.numpy().tobytes()
    assert y[58] == 7 and y[0] == 126


def test_local_variables_are_known_once_they_are_set(recorded):
    recording, _ = recorded
    (twice,) = [i for i, variable in enumerate(recording.variables) if variable.name == "twice"]
    c = recording.columns
    mine = (c["changes.variable"] == twice) & (c["changes.thread"] == 40)
    assert c["changes.step"][mine].tolist() == [3]  # it was read in step 1 and doubled
    assert c["changes.word"][mine].view(np.float32).tolist() == [80.0]


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
    (origin,) = recording.origins("y", 0)
    assert (origin.step, origin.thread) == (1, 63)
    for wrong in ((99, 0), (4, 0), (0, 40)):
        with pytest.raises(ValueError, match="step takes|touches no memory"):
            recording.inputs(*wrong)
    with pytest.raises(ValueError, match="array takes one of x, y, s, got 'z'"):
        recording.writer("z", 0)


def test_a_finding_knows_the_steps_of_both_parties():
    recording, _ = tiny(barrier="")
    races = [finding for finding in recording.findings if finding.tool == "racecheck"]
    assert races and all(finding.step >= 0 and finding.other_step >= 0 for finding in races)
    all_steps = steps(recording)
    for finding in races:
        assert all_steps[finding.step][3] == finding.line and all_steps[finding.other_step][3] == finding.other_line


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
    with pytest.raises(ValueError, match=r"longer than 96 accesses of threads, after 2 turns .* fewer keys"):
        record(twice, launch=0, limit=100)
    assert record(twice, launch=1, block=(1, 0, 0)).index == (1, 0, 0)


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
