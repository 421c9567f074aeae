"""Variants of chapter 07's last kernel: each is what it says, right, and watched by the sanitizer."""

import pytest
import torch

from course_utils import checks
from course_utils.emulator import sanitize
from course_utils.launches.hopper_tried import TRIED, Variant, build, operator, require_right, source
from course_utils.toolchain import nvrtc

SPILLS = {("tiles of 64 keys, four places", 128), ("the next item taken early", 128)}
IN_TURN = {"O rescaled only when m rose a lot", "tiles of 160 keys"}
OTHERS = pytest.mark.exhaustive(
    "`make test` runs two of the changes, at one head dimension; `bench` checks what it times"
)
COMPILED = pytest.mark.exhaustive("`bench` compiles each variant that it times for the GPU, by the same rule")
EACH = [
    pytest.param(variant, d, marks=() if variant.name in IN_TURN and d == variant.head_dims[-1] else OTHERS)
    for variant in TRIED
    for d in variant.head_dims
]


@pytest.mark.parametrize(("variant", "head_dim"), EACH, ids=lambda of: getattr(of, "name", of))
def test_right_and_watched_by_the_sanitizer(variant, head_dim):
    require_right(variant, head_dim)
    case = checks.AttentionCase(1, 2, 1, 130, 450, head_dim, variant.masks[-1], "normal")
    inputs = checks.make_inputs(case, dtype=torch.float16, seed=0)[:3]
    with sanitize() as report:
        operator(variant)(*inputs, is_causal=case.is_causal, scale=None)
    assert report.launches == 1 and not report.findings, str(report)


def test_each_is_another_kernel_or_launch():
    told = [(str(source(variant)), variant.step.consumers[64], variant.step.at_once) for variant in TRIED]
    assert len(set(told)) == len(TRIED) == len({variant.name for variant in TRIED})


@COMPILED
@pytest.mark.parametrize("variant", TRIED, ids=lambda variant: variant.name)
def test_products_stay_asynchronous_and_few_spill(variant):
    for d in variant.head_dims:
        options = variant.step.options(d, torch.float16)
        (resources,) = nvrtc.compile_kernel(source(variant), "sm_90a", options).resources.values()
        assert bool(resources.spill_stores) == ((variant.name, d) in SPILLS)


@pytest.mark.parametrize(("passage", "times"), [("exponentials(S, rows, problem.factor);", 2), ("no such text", 0)])
def test_a_passage_that_is_not_there_once_is_refused(passage, times):
    with pytest.raises(ValueError, match=f"'odd' changes what 07_hopper/forward.cu has {times} times, not once: '"):
        build(Variant("odd", "", ((passage, ""),)), 64, torch.float16)
