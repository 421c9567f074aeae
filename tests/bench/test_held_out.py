"""Sizes for which no kernel was tuned: each beside its neighbour, by the pairs that it keeps, once it is right."""

import itertools
import json

import pytest

from course_utils import measured, timing
from course_utils.bench import held_out as bench
from course_utils.operators.tensor_core import HEAD_DIMS
from course_utils.patterns import sliding_window

SMALL = {"heads": 2, "length": 80, "ragged": 50, "windows": {24: (20, 30)}, "head_dims": (64,)}
SIZES = [  # name, window, query heads, queries, keys, and the length of the neighbour
    ("neighbour", 24, 2, 80, 80, 80),
    ("window of 20", 20, 2, 80, 80, 80),
    ("window of 30", 30, 2, 80, 80, 80),
    ("L = 79", 24, 2, 79, 79, 80),
    ("L = 81", 24, 2, 81, 81, 80),
    ("neighbour", 24, 2, 40, 40, 40),
    ("L = 50", 24, 2, 50, 50, 40),
    ("L_q = 40, L_k = 80", 24, 2, 40, 80, 40),
    ("neighbour", 24, 4, 40, 40, 40),
    ("GQA 4/1, L = 40", 24, 4, 40, 40, 40),
]
GROUPS = (5, 3, 2)  # how many stand beside each other, the neighbour first


def in_order():
    """Pass and size of each row."""
    ends = list(itertools.accumulate(GROUPS))
    for start, end in zip((0, *ends), ends, strict=False):
        yield from itertools.product(("forward", "backward"), SIZES[start:end])


def check(rows):
    for row, (which, (name, window, heads, queries, keys, of_length)) in zip(rows, in_order(), strict=True):
        assert (row["part"], row["name"], row["neighbour_length"]) == (which, name, of_length)
        assert row["pairs"] == heads * int(sliding_window(window).mask(queries, keys).sum())
        assert (row["head_dim"], row["of"], row["neighbour_heads"]) == (64, 24, heads)
        of_a_pair = 4 if row["part"] == "forward" else 10
        assert row["useful_tflop_per_s"] == pytest.approx(of_a_pair * 64 * row["pairs"] / row["median_ms"] / 1e9)
        assert row["low"] <= row["of_neighbour"] <= row["high"]
    json.dumps(rows)


def test_each_size_is_timed_both_ways_and_its_efficiency_is_by_the_pairs_that_it_keeps(one_run_each, monkeypatch):
    monkeypatch.setattr(bench, "RUNS", 1)
    rows = bench.held_out(device="cpu", **SMALL)
    check(rows)
    for row in rows:  # all are said to take the same time
        if row["name"] == bench.NEIGHBOUR:
            neighbour = row
        assert row["of_neighbour"] == pytest.approx(row["pairs"] / neighbour["pairs"])


def test_a_size_that_takes_twice_as_long_for_as_many_pairs_is_half_as_efficient(monkeypatch):
    def compare(functions, **options):
        return {name: timing.Timing(1.0 + (name == "window of 20"), 0.1) for name in functions}

    monkeypatch.setattr(timing, "compare", compare)
    neighbour, held, *_ = bench.held_out(device="cpu", **SMALL)
    assert neighbour["of_neighbour"] == neighbour["low"] == neighbour["high"] == 1
    assert held["of_neighbour"] == pytest.approx(held["pairs"] / neighbour["pairs"] / 2)


@pytest.mark.gpu
def test_its_smallest_form_runs_on_a_gpu():
    check(bench.held_out(**SMALL))


def half_of_dk(key):
    return key.detach() + 0.5 * (key - key.detach())


@pytest.mark.parametrize(
    ("is_wrong", "change", "message"),
    [
        (
            lambda q, k: q.shape[1] > k.shape[1],
            lambda k: k.roll(1, dims=1),
            "sparse_attention, d = 64, GQA 8/2, L = 40",
        ),
        (lambda q, k: q.shape[1] > k.shape[1], half_of_dk, "dk of sparse_attention, d = 64, GQA 8/2, L = 40"),
        (lambda q, k: q.shape[2] < k.shape[2], half_of_dk, "dk of sparse_attention, d = 64, L_q = 40, L_k = 80"),
    ],
    ids=["keys of another head", "half of dk of a group", "half of dk of fewer queries"],
)
def test_what_is_wrong_is_an_error(one_run_each, monkeypatch, is_wrong, change, message):
    operator = bench.sparse_attention

    def mistaken(query, key, value, **options):
        return operator(query, change(key) if is_wrong(query, key) else key, value, **options)

    monkeypatch.setattr(bench, "sparse_attention", mistaken)
    with pytest.raises(RuntimeError, match=f"^{message} is off by"):
        bench.held_out(device="cpu", **SMALL | {"heads": 4})


def test_the_record_of_the_course_has_every_size_both_ways():
    record = measured.load("held_out")
    assert "H200" in record.device
    kinds = {(row["part"], row["head_dim"], row["of"]) for row in record.rows}
    assert kinds == set(itertools.product(bench.FLOPS, HEAD_DIMS, bench.WINDOWS))
    for kind in kinds:
        names = [row["name"] for row in record.rows if (row["part"], row["head_dim"], row["of"]) == kind]
        assert len(names) == len(SIZES) and len({name for name in names if name != bench.NEIGHBOUR}) == 7
    assert all(row["low"] <= row["of_neighbour"] <= row["high"] for row in record.rows)
