"""The training step of chapter 03 by torch.compile: what its pictures show."""

import pytest
import torch

from course_utils import measured, plots
from course_utils.chapters.flash_attention_v2 import compiled

KINDS = [compiled.OTHERS, compiled.PRODUCTS, compiled.OUR_OPERATOR, compiled.COPIES]


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    torch.compiler.reset()


def test_a_step_is_two_graphs_with_one_operator_of_ours_in_each(drawn, capsys):
    assert compiled.graphs_of_a_step() == 2
    assert capsys.readouterr().out == "loss and gradients are those of eager mode, up to rounding: True\n"
    shown = [[text.get_text() for text in ax.texts] for ax in drawn[0].axes]
    assert [[name for name in names if "attention" in name] for names in shown] == [
        ["flash attention v2"],
        ["flash attention v2 backward"],
    ]
    assert [text.get_text() for text in drawn[0].legends[0].texts] == KINDS
    forward, backward = (sum(name in ("mm", "addmm") for name in names) for names in shown)
    assert (forward, backward) == (4, 8)  # of four linear layers
    assert not {"t", "view", "transpose", "permute", "select"} & {name for names in shown for name in names}


def test_a_gradient_that_is_not_that_of_eager_mode_is_said(drawn, capsys, monkeypatch):
    monkeypatch.setattr(plots, "operations", lambda graphs: None)
    monkeypatch.setattr(compiled, "operations", lambda graph: [])
    monkeypatch.setattr(
        compiled, "compiled", lambda block, kept: kept.extend([None, None]) or (lambda x: 1.1 * block(x))
    )
    compiled.graphs_of_a_step()
    assert capsys.readouterr().out.endswith(": False\n")


def test_each_size_has_a_picture_and_what_compiling_gains(drawn, capsys, monkeypatch):
    ways = {("flash_attention_v2", "eager"): 8.0, ("flash_attention_v2", "compiled"): 6.0, ("SDPA", "eager"): 5.0}
    rows = [
        {"batch": batch, "length": 64, "name": name, "way": way, "median_ms": ms, "gpu_ms": ms, "peak_mb": 9.0}
        for batch in (2, 1)
        for (name, way), ms in ways.items()
    ]
    versions = {"torch": "0", "cuda": "0"}
    record = measured.Measurement("compiled_step", "a device", "0", versions, "a date", "a command", rows)
    monkeypatch.setattr(measured, "live_or_recorded", lambda name, measure: record)
    compiled.steps()
    assert len(drawn) == 2
    said = capsys.readouterr().out
    assert said.count("compiled, a step with flash_attention_v2 takes 0.75 times as long as in eager mode") == 2
    assert "with SDPA" not in said and "B = 2, L = 64, fp16; a device, a date" in said
