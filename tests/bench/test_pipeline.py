"""`bench pipeline`, on the emulator, and its record: moments of each step of chapter 07's ladder, in order."""

import itertools
import json

import pytest

from course_utils import measured
from course_utils.bench import pipeline as bench
from course_utils.cuda import read_kernel
from course_utils.launches.hopper import LADDER
from course_utils.launches.timestamps import from_text, with_clocks
from course_utils.operators.tensor_core import HEAD_DIMS

RECORDED = measured.load("pipeline")


def test_each_step_has_a_row_of_its_first_cycles(monkeypatch):
    monkeypatch.setattr(bench, "CYCLES", 20_000)
    steps = LADDER[0], LADDER[-1]
    rows = bench.pipeline(device="cpu", batch=1, width=64, length=400, head_dims=(64,), steps=steps)
    assert [(row["part"], row["name"], row["head_dim"], row["length"], row["slower"]) for row in rows] == [
        ("pipeline", step.title, 64, 400, None) for step in steps
    ]
    for row in rows:
        begins = [moment.begin for moment in from_text(row["sites"], row["moments"])]
        assert begins[0] == 0 and begins == sorted(begins) and 10_000 < begins[-1] < 20_000
    json.dumps(rows)


def test_the_record_has_every_step_at_both_head_dimensions():
    found = [(row["head_dim"], row["name"]) for row in RECORDED.rows]
    assert found == list(itertools.product(HEAD_DIMS, [step.title for step in LADDER]))


@pytest.mark.parametrize("row", RECORDED.rows, ids=lambda row: f"{row['name']}, {row['head_dim']}")
def test_recorded_moments_are_in_order_and_of_calls_that_are_there(row):
    (step,) = [step for step in LADDER if step.title == row["name"]]
    moments = from_text(row["sites"], row["moments"])
    assert 0 == moments[0].begin <= moments[-1].begin < bench.CYCLES
    assert [moment.begin for moment in moments] == sorted(moment.begin for moment in moments)
    for leader in {moment.leader for moment in moments}:
        mine = [moment for moment in moments if moment.leader == leader]
        assert all(before.end <= after.begin for before, after in itertools.pairwise(mine))
    _, sites = with_clocks(read_kernel(step.file))
    assert {moment.site[:2] for moment in moments} <= {site[:2] for site in sites}  # lines may have moved since
