"""`bench hopper_ablations`, on the emulator: each order of copies and each left-out part is what is timed."""

import json

import pytest
from torch.nn.attention import SDPBackend

from course_utils import costs, timing
from course_utils.bench import hopper_ablations as bench
from course_utils.launches.ablations import PARTS
from course_utils.launches.hopper import LADDER
from course_utils.measured.hopper import WHOLE

SMALL = {"device": "cpu", "tokens": 300, "width": 64, "head_dims": (64,)}


@pytest.fixture
def on_cpu(one_run_each, monkeypatch):
    """torch's kernel for GPUs is played by its plain one."""
    monkeypatch.setattr(bench, "BACKENDS", dict.fromkeys(bench.BACKENDS, SDPBackend.MATH))
    monkeypatch.setattr(bench, "RUNS", 1)


def test_step_1_is_timed_with_its_copies_before_and_after_and_step_2_beside_it(on_cpu, monkeypatch):
    options = []
    made = bench.step_function
    monkeypatch.setattr(
        bench, "step_function", lambda step, *rest: options.append(step.options(64, rest[0].dtype)) or made(step, *rest)
    )
    rows = bench.order_of_copies(lengths=(300,), **SMALL)
    names = ["wgmma", "wgmma, copies after", "copy engine"]
    assert [(row["is_causal"], row["name"], row["ratio"]) for row in rows] == [
        (c, name, 1) for c in (False, True) for name in names
    ]
    assert ["-DCOPIES_AFTER=1" in of for of in options] == [False, True, False] * 2
    assert rows[0]["tflop_per_s"] == pytest.approx(costs.attention_flops(1, 1, 300, 300, 64, False) / 2e-3 / 1e12)
    json.dumps(rows)


def test_each_step_is_timed_whole_and_without_each_part(on_cpu, monkeypatch):
    found = []

    def compare(functions, **options):
        found.extend((name, fn().abs().max().item()) for name, fn in functions.items())
        return {name: timing.Timing({WHOLE: 4.0, "softmax": 3.0, "products": 1.0}[name], 0.1) for name in functions}

    monkeypatch.setattr(timing, "compare", compare)
    rows = bench.without_a_part(length=300, steps=LADDER[3:4], **SMALL)
    assert [(row["name"], row["without"], row["share"]) for row in rows] == [
        (LADDER[3].title, WHOLE, 1),
        (LADDER[3].title, "softmax", 0.75),
        (LADDER[3].title, "products", 0.25),
    ]
    assert [name for name, _ in found] == [WHOLE, *PARTS] and found[0][1] > 0 == found[1][1]  # l = 0
    json.dumps(rows)
