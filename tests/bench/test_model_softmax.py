"""Sinks and softcaps are timed beside flash-attn-4 and beside the operator without them, once they are right."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from course_utils import measured, reference, timing
from course_utils.bench import installed_peers
from course_utils.bench import model_softmax as bench
from course_utils.measured.best_peers import FLASH_4, Pair, pairs
from course_utils.measured.model_softmax import BACKWARD, FORWARD, RECORD, WITHOUT

SMALL = {"device": "cpu", "heads": 2, "length": 80, "windows": (24, None)}
WORKS = ["sinks, window of 24", "softcap, window of 24", "sinks, causal", "softcap, causal"]


def flash_attn_func(*inputs, causal, window_size, learnable_sink=None, softcap=0.0):
    """flash-attn-4 on `[B, L, H, d]`, by plain torch."""
    window = None if window_size[0] is None else window_size[0] + 1
    options = {"is_causal": causal, "window": window, "sinks": learnable_sink, "softcap": softcap or None}
    return reference.torch_attention(*(tensor.transpose(1, 2) for tensor in inputs), **options).transpose(1, 2), None


@pytest.fixture
def package(monkeypatch):
    """flash-attn-4, played by plain torch; and no clock: the course is said to take 3 ms, all others 2."""
    played = SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setattr(installed_peers, "load", {installed_peers.FLASH_4: played}.__getitem__)
    monkeypatch.setattr(
        timing,
        "compare",
        lambda functions, **_: {name: timing.Timing(2.0 + (not n), 0.1) for n, name in enumerate(functions)},
    )
    torch.manual_seed(0)
    return played


@pytest.mark.parametrize(("measure", "part"), [(bench.forward, FORWARD), (bench.backward, BACKWARD)])
def test_each_is_timed_beside_the_peer_and_beside_itself_without(package, measure, part):
    rows = measure(**SMALL)
    assert all(row == asdict(Pair(**row)) and row["part"] == part for row in rows)
    assert [(row["work"], row["peer"]) for row in rows] == [(w, peer) for w in WORKS for peer in (FLASH_4, WITHOUT)]


@pytest.mark.parametrize("feature", ["learnable_sink", "softcap"])
def test_a_peer_that_leaves_one_out_is_an_error(package, feature):
    package.flash_attn_func = lambda *inputs, **options: flash_attn_func(
        *inputs, **{name: value for name, value in options.items() if name != feature}
    )
    with pytest.raises(RuntimeError, match="flash-attn-4, .*window of 24 is off by"):
        bench.forward(**SMALL)


def test_the_gradient_of_the_sinks_is_checked(package):
    def wrong_gradient(*inputs, learnable_sink=None, **options):
        if learnable_sink is not None:
            learnable_sink = learnable_sink.detach() + 0.9 * (learnable_sink - learnable_sink.detach())
        return flash_attn_func(*inputs, learnable_sink=learnable_sink, **options)

    package.flash_attn_func = wrong_gradient
    with pytest.raises(RuntimeError, match="dsinks of flash-attn-4"):
        bench.backward(**SMALL)


def test_the_record_has_both_passes():
    record = measured.load(RECORD)
    for one in pairs(record, (FORWARD, BACKWARD)):
        assert one.low <= one.speed <= one.high
    assert "H200" in record.device and record.versions["flash-attn-4"] != "none"
