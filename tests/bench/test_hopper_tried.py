"""What was tried beside chapter 07's last kernel, on the emulator: what is timed, and what is not."""

import json

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_utils.bench import hopper, hopper_tried
from course_utils.launches.hopper_tried import TRIED, Variant

SMALL = {"device": "cpu", "tokens": 40, "width": 64, "lengths": (40,), "head_dims": (64,)}


@pytest.fixture
def on_cpu(one_run_each, monkeypatch):
    """cuDNN is played by torch's plain kernel."""
    monkeypatch.setattr(hopper, "BACKENDS", {hopper.CUDNN: SDPBackend.MATH})
    torch.manual_seed(0)


def test_variants_are_timed_beside_the_kernel_where_they_can_be(on_cpu):
    tried = [variant for variant in TRIED if variant.name == "one head at a time"]  # causal alone
    wide = Variant("wide", "", head_dims=(128,))
    rows = hopper_tried.hopper_tried(tried=[*tried, wide], **SMALL)
    again = ["the kernel again", hopper.CUDNN]
    assert [(row["is_causal"], row["name"]) for row in rows] == [
        *((False, name) for name in ["the kernel", *again]),
        *((True, name) for name in ["the kernel", "one head at a time", *again]),
    ]
    assert all(row["ratio"] == row["low"] == row["high"] == 1 and row["median_ms"] == 2 for row in rows)
    json.dumps(rows)


def test_a_wrong_variant_is_not_timed(on_cpu):
    wrong = Variant("wrong", "", (("            rescale(O, rows);\n", ""),))
    with pytest.raises(AssertionError, match="wrong, B=1"):
        hopper_tried.hopper_tried(tried=[wrong], **SMALL)


def test_another_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(hopper_tried, "takes_wgmma", lambda device: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    with pytest.raises(RuntimeError, match="hopper_tried needs a Hopper GPU .sm_90., and this is NVIDIA L4"):
        hopper_tried.hopper_tried()
