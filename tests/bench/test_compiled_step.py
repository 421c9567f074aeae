"""The training step by torch.compile: each row is of what it says, and only a right block is timed."""

import json

import pytest
import torch

from course_utils.bench import compiled_step as bench
from course_utils.bench.flash_attention_v2 import ATTENTIONS

TINY = {"device": "cpu", "sizes": ((2, 20),), "width": 64, "heads": 1, "backend": "eager"}


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    torch.compiler.reset()


def test_a_step_is_timed_eager_and_compiled_with_each_attention(one_run_each):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    rows = bench.compiled_step(**TINY | {"backend": keep})
    found = [(row["name"], row["way"]) for row in rows]
    assert found == [(name, way) for name in ("flash_attention_v2", "SDPA") for way in ("eager", "compiled")]
    assert all((row["batch"], row["length"]) == (2, 20) for row in rows)
    assert all(row["median_ms"] == row["gpu_ms"] == 2 and row["peak_mb"] == 3 for row in rows)
    json.dumps(rows)
    assert len(graphs) == 2, "compiled is compiled"
    assert all(any("attention" in str(node.target) for node in graph.graph.nodes) for graph in graphs)


def test_a_wrong_gradient_is_seen(one_run_each, monkeypatch):
    def with_half_the_gradient_of_value(query, key, value, *, is_causal):
        return ATTENTIONS[bench.SDPA](query, key, (value + value.detach()) / 2, is_causal=is_causal)

    monkeypatch.setitem(ATTENTIONS, bench.OURS, with_half_the_gradient_of_value)
    with pytest.raises(RuntimeError, match="norm1.weight of the block, flash_attention_v2, eager, is off by"):
        bench.compiled_step(**TINY)


def test_what_this_machine_cannot_compile_is_left_out(one_run_each, capsys):
    def broken(graph, inputs):
        raise FileNotFoundError("no compiler")

    rows = bench.compiled_step(**TINY | {"backend": broken})
    assert {row["way"] for row in rows} == {"eager"}
    assert "SDPA, compiled is left out at B = 2, L = 20" in capsys.readouterr().out


@pytest.mark.gpu
def test_its_smallest_form_runs_on_a_gpu():
    rows = bench.compiled_step(sizes=((2, 64),), width=128, heads=2)
    assert len(rows) == 4 and all(row["median_ms"] > 0 and row["peak_mb"] > 0 for row in rows)
