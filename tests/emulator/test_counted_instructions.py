""".ci/emulator_times.py: what of a worker's instructions is the emulator's and the kernel's."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".ci"
COUNTS = """\
events: Ir
fl=/tmp/build/Python/ceval.c
fn=_PyEval_EvalFrameDefault
10 1000
fl=/somewhere/course_utils/emulator/runtime/block.cpp
fn=run_another()
20 7
21 5
fl=02_flash_attention_minimal/forward.cu
fn=forward
30 400
fl=???
fn=memset
0 90
summary: 1502
"""


@pytest.fixture
def emulator_times(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "two_checkouts", raising=False)
    spec = importlib.util.spec_from_file_location("emulator_times", FOLDER / "emulator_times.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_emulator_and_its_kernel_count(emulator_times):
    assert emulator_times.own_instructions(COUNTS) == 412


def test_each_launch_is_one_of_the_chapters(emulator_times):
    from course_utils.launches.chapters import course_launches

    assert set(emulator_times.LAUNCHES) <= course_launches().keys()
