"""The host's time of a call: each row is of what it says, beside SDPA in its own group and pass."""

import json
from itertools import groupby

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from course_utils import timing
from course_utils.bench import flex, host
from course_utils.bench.flex import FLEX_128, OURS
from course_utils.bench.host import BACKWARD, FORWARD, LAUNCH, RECORDED, SDPA
from course_utils.patterns import bigbird, sliding_window

PATTERNS = [sliding_window(16), bigbird()]
TINY = {"shape": (1, 1, 64, 64), "times": 2, "rounds": 2, "calls": 3, "patterns": PATTERNS}
DENSE = [SDPA, "flash_attention_v2", "flash_attention_minimal"]
GROUPS = 1 + 3 + 3 + 3 * len(PATTERNS) + 1
DEEPSEEK = [SDPA, "lightning_indexer", "select_topk", "mla_attention", "sparse_mla"]
SERVING = [SDPA, "decode_attention", "paged_attention", "decode_step", "merge_attention", "append_paged"]


def names(rows):
    """Of each group and pass."""
    key = lambda row: (row["part"], row.get("pattern"), row["pass"])  # noqa: E731
    return {of: [row["name"] for row in group] for of, group in groupby(rows, key=key)}


def check(rows, *, launches, flex_in):
    found = names(rows)
    assert found[("launch", None, FORWARD)] == launches
    assert found[("dense", None, FORWARD)] == [*DENSE, "naive_attention"]
    assert found[("dense", None, RECORDED)] == found[("dense", None, BACKWARD)] == DENSE
    assert found[("deepseek", None, FORWARD)] == DEEPSEEK
    assert found[("deepseek", None, RECORDED)] == found[("deepseek", None, BACKWARD)] == [SDPA, "sparse_mla"]
    assert found[("serving", None, FORWARD)] == SERVING
    for pattern in (pattern.name for pattern in PATTERNS):
        for pass_name in (FORWARD, RECORDED, BACKWARD):
            of_flex = [FLEX_128] if pass_name in flex_in else []
            assert found[("sparse", pattern, pass_name)] == [OURS, *of_flex, SDPA]
    assert len(found) == GROUPS
    for row in rows:
        assert row["host_us"] > 0 and row["spread_us"] >= 0
        assert (row["times_sdpa"] is None) == (row["part"] == "launch")
        assert row["name"] != SDPA or row["times_sdpa"] == 1
    json.dumps(rows)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.skipif(torch.__version__ < (2, 10), reason="torch 2.9 runs FlexAttention's backward pass on a CPU")
def test_every_operator_is_timed_beside_sdpa_and_sparse_ones_beside_flex_attention(monkeypatch):
    asked = []

    def compare_host(functions, **options):
        asked.append(options)
        slower = 1.5 if len(asked) <= GROUPS else 1  # the first time
        for fn in functions.values() if slower > 1 else ():
            fn()
        times = {SDPA: 0.02 * slower, OURS: 0.05 * slower}
        return {name: timing.Timing(times.get(name, 0.03), 0.001) for name in functions}

    monkeypatch.setattr(timing, "compare_host", compare_host)
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # no tracing
    rows = host.host_times(device="cpu", **TINY)
    check(rows, launches=[LAUNCH], flex_in=[FORWARD])  # FlexAttention has no gradients on a CPU
    assert asked == 2 * GROUPS * [{"rounds": 2, "calls": 3}]
    ours = [row for row in rows if row["name"] == OURS]
    assert all(row["host_us"] == 50 and row["spread_us"] == 1 and row["times_sdpa"] == 2.5 for row in ours)
    assert [row["kernel"] for row in ours[::3]] == ["range", "block_sparse"]


@pytest.mark.gpu
def test_its_smallest_form_runs_on_a_gpu():
    passes = FORWARD, RECORDED, BACKWARD
    check(host.host_times(**TINY), launches=[LAUNCH, "a launch, CuPy alone"], flex_in=passes)


def test_the_patterns_of_the_record_go_to_every_kernel_with_a_backward_pass():
    kernels = [host.choose_kernel(pattern, host.SHAPE[2]).kernel for pattern in host.sparse_patterns(host.SHAPE[2])]
    assert kernels == ["range", "range", "dense", "block_sparse"]
