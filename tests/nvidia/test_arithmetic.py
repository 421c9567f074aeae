"""The emulator's arithmetic beside silicon's (measured/arithmetic.json): operators, casts and functions."""

import re
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from course_utils import measured
from course_utils.emulator import compiler as compilers
from course_utils.nvidia.arithmetic import compare, table
from course_utils.nvidia.arithmetic.expressions import expressions, functions_called
from tests.helpers.all_of import all_of

GROUPS = {group: tuple(those) for group, those in table.groups().items()}
EVERY = 4  # of a large group: `make test` has one expression of so many, of each type some


@pytest.fixture(scope="module")
def rows():
    return measured.load("arithmetic").rows


def different(rows, those):
    return {d.expression.name: d.why for d in compare.differences(rows, table.run(those, "cpu"))}


def test_silicon_was_asked_for_each_expression(rows):
    assert {row["name"] for row in rows} == {e.name for e in expressions()}
    assert len(rows) >= 2400


@pytest.mark.parametrize("group", GROUPS)
def test_the_emulator_gives_what_silicon_gives(rows, group):
    those = GROUPS[group]
    assert different(rows, those[:: EVERY if len(those) > 300 else 1]) == {}


@pytest.mark.exhaustive("the other expressions of large groups: test_the_emulator_gives_what_silicon_gives has some")
@all_of("group", GROUPS)
def test_the_emulator_gives_all_that_silicon_gives(rows, group):
    assert different(rows, GROUPS[group]) == {}


@pytest.mark.exhaustive("by clang alone, which else builds what g++ cannot: test_the_emulator_gives_what_silicon_gives")
@all_of("group", GROUPS)
def test_with_clang_all_of_it_is_the_same(rows, group, monkeypatch):
    monkeypatch.setenv("COURSE_EMULATOR_CXX", "zig")
    compilers.find_compiler.cache_clear()
    table.built.cache_clear()
    try:
        assert different(rows, GROUPS[group]) == {}
    finally:
        monkeypatch.undo()
        compilers.find_compiler.cache_clear()
        table.built.cache_clear()


DECLARATION = re.compile(
    r"(?:__DEVICE_FUNCTIONS_DECL__|__MATH_FUNCTIONS_DECL__|__SM_\d+_INTRINSICS_DECL__|__DEVICE_DOUBLE_FUNCTIONS_DECL__|"
    r"__DEVICE_HOST_RT_DECL__|__SM_\d+_RT_DECL__)[^;{}()]*?\b(\w+)\s*\("
)
HEADERS = (
    "crt/math_functions.h crt/device_functions.h crt/device_double_functions.h sm_20_intrinsics.h sm_30_intrinsics.h "
    "sm_32_intrinsics.h sm_61_intrinsics.h crt/sm_90_rt.h"
)
# No arithmetic: threads, memory, atomics and addresses, which have tests of their own.
OTHERS = re.compile(
    r"__(ld|st)\w|__[cC]luster|__libcpp|__\w*pow\w*|__[A-Z]|__\w*cluster|__shfl|__\w*sync|__syncthreads|__threadfence|__is(Cta|Cluster|Shared|Global|Local|Constant|Grid)|__cvta|__nv_|atomic|"
    r"__(prof_trigger|brkpt|pm\d|assert\w*|barrier|activemask|u128Atomic|match|reduce|trap|clock\w*|nanosleep)|"
    r"(if|defined|clock\w*|mem(cpy|set)|malloc|free|printf|sync\w+)$"
)
# Declared for a host's compiler; NVRTC does not know them.
NOT_OF_NVRTC = re.compile(r"__(isnan|isinf|signbit)d$|__isfinite[fd]?$|__\w+l$|_\w+\d*_bits$|_[a-z]\w+$", re.IGNORECASE)


def test_every_function_of_the_math_api_is_in_the_table():
    folder = Path(find_nvidia_header_directory("cudart"))
    names = set()
    for header in HEADERS.split():
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", (folder / header).read_text(encoding="utf-8"), flags=re.DOTALL)
        names |= set(DECLARATION.findall(text))
    assert len(names) > 450
    missing = names - functions_called()
    assert {n for n in missing if not OTHERS.match(n) and not NOT_OF_NVRTC.match(n)} == set()
