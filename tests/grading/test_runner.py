"""How the student's Python cells are run, in this process."""

import contextlib
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils.grading import runner
from course_utils.grading.exercise import Launch
from course_utils.grading.job import Job, Run
from course_utils.grading.sandbox import landlock
from course_utils.toolchain.source import KernelSource

EXERCISE = "02_flash_attention_minimal/online_softmax"


def ran(*cells: tuple[str, str]) -> dict:
    job = Job(exercise=EXERCISE, cells=cells, questions=("a", "b"))
    return json.loads(runner._give_answers(job)[0])


@pytest.mark.parametrize(
    ("source", "answers"),
    [
        ("answers = {'a': 3, 'b': ...}", {"a": 3.0, "b": None}),
        ("%matplotlib inline\n!ls\nanswers = {'a': 1}", {"a": 1.0, "b": None}),
        ("answers = {'a': (700\n    + 32\n    % 32\n)}", {"a": 700.0, "b": None}),
        ("answers = {'a': math.sqrt(4), 'b': np.float32(2)}\ndisplay(answers)", {"a": 2.0, "b": 2.0}),
        ("answers = {'a': 'many'}", {"a": "'many'", "b": None}),
    ],
)
def test_answers(source: str, answers: dict) -> None:
    assert ran(("answers", source)) == {"answers": answers, "errors": {}}


def test_answers_given_before_an_exception_count() -> None:
    given = ran(("answers", "answers = {'a': 1}\nraise ValueError('later')"))
    assert given["answers"]["a"] == 1.0
    assert given["errors"] == {"answers": "ValueError: later (cell 'answers', line 2)"}


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "1 +", "answers = 5", "raise KeyboardInterrupt"])
def test_a_cell_that_fails_is_named_and_stops_no_other(source: str) -> None:
    given = ran(("answers", source), ("other", "1 / 0"))
    assert set(given["errors"]) == {"answers", "other"}
    assert given["errors"]["other"] == "ZeroDivisionError: division by zero (cell 'other', line 1)"


@pytest.mark.parametrize("hidden", [None, runner.TASKS])
def test_cells_have_no_way_to_what_the_runner_hears_and_remembers(hidden) -> None:
    """Cases may follow the cells in the same child. Nothing is written: opening is enough to see."""

    def give(job: Job) -> list[bytes]:
        reached = [number for number in ours if Path(f"/proc/self/fd/{number}").is_symlink()]
        with contextlib.suppress(OSError):
            os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))
            reached.append("memory")
        return [json.dumps({"reached": reached}).encode()]

    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        ours = first.fileno(), second.fileno()
        header, _ = runner._in_a_process(give, Job(exercise=EXERCISE), ours, hidden)
    expected = [] if landlock.version() else ["memory"]  # without it, that of one user's processes is open to each
    assert header == {"reached": expected}


@pytest.mark.parametrize(("lines", "told"), [(0, 0), (1, 1), (runner.MOST_PRINTED, runner.MOST_PRINTED), (5000, 21)])
def test_of_what_a_kernel_prints_the_first_lines_are_told(lines: int, told: int) -> None:
    said = runner._first_lines("".join(f"{'x' * 300} {n}\n" for n in range(lines))).splitlines()
    assert len(said) == told and all(len(line) <= 200 for line in said)
    assert (said[-1:] == ["… and 4,980 more lines"]) == (lines == 5000)


@pytest.mark.parametrize(("value", "depends"), [("threadIdx.x", False), ("atomicAdd(counter, 1)", True)])
def test_a_first_case_is_run_in_reverse_order_and_told_if_it_gives_another_result(value: str, depends: bool) -> None:
    text = f'extern "C" __global__ void k(int* out, int* counter) {{ out[threadIdx.x] = {value}; }}'
    source = KernelSource(text, Path("k.cu"), "k.cu")
    tensors = {"out": torch.full((8,), -1, dtype=torch.int32), "counter": torch.zeros(1, dtype=torch.int32)}
    seen = []
    for index in (0, 1):
        run = Run(index, (Launch("k", (1,), (8,), ("out", "counter")),), tensors, ("out",))
        header, outputs = runner._run_case(Job(exercise=EXERCISE, kernel=text), run, source, {}, 5.0)
        seen.append((header.get("in_reverse", False), [list(np.frombuffer(one, np.int32)) for one in outputs]))
    forward, reverse = list(range(8)), list(range(8))[::-1]
    assert seen == [(depends, [forward, reverse] if depends else [forward]), (False, [forward])]


def test_a_launch_that_goes_on_on_a_gpu_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverDone:
        def record(self) -> None: ...

        def query(self) -> bool:
            return False

    monkeypatch.setattr(torch.cuda, "Event", NeverDone)
    monkeypatch.setattr(runner, "LAUNCH_SECONDS", 0.05)
    with pytest.raises(TimeoutError, match="did not end within 0 s on the GPU"):
        runner._wait_for_gpu()
