"""The wgmma kernel under delays: its warpgroups wait for each other by mbarriers and named barriers alone."""

import functools

import numpy as np
import pytest
import torch

from course_utils import checks, reference
from course_utils.cuda import KernelSource, RawModule, read_kernel
from course_utils.operators import mla
from course_utils.operators.tensor_core import takes_wgmma
from tests.helpers.one_change import with_delays

OUTPUT = "start_output(state.O, shared, buffer, consumer);\n            wait_for"  # the one in the loop
DELAYS = {  # who is held up, and before which statement
    "first consumer before P V": ("consumer == 0", OUTPUT),
    "second consumer before P V": ("consumer == 1", OUTPUT),
    "first consumer before S": ("consumer == 0", "start_scores(S, shared, next, consumer);"),
    "second consumer before its softmax": ("consumer == 1", "update(state, S, shared, buffer, consumer, factor);"),
    "a warp of the producer": ("threadIdx.x / 32 == 9", "const int buffer = tile % BUFFERS;\n        int keys"),
}
MEETING = "sync_threads_or(1, CONSUMERS, exceeds)"
# The maximum stays and nobody meets: P of the next tile may be written while the other consumer still needs the last.
NO_MEETING = "state.m[0] == NEG_INF"


def test_a_part_of_the_block_that_is_held_up_changes_nothing(device, thinned):
    assert not {delay: found for delay in thinned([*DELAYS], 2) if (found := problems(device, delay))}


def test_without_the_meeting_before_p_is_written_a_delay_shows(device):
    assert problems(device, "second consumer before P V", meets=False)


@functools.cache
def module() -> RawModule:
    """The kernel with all delays, and with or without the meeting: a launch chooses."""
    source = read_kernel("05_deepseek_sparse/sparse_mla_hopper.cu")
    text = with_delays(source, DELAYS.values())
    assert text.count(MEETING) == 1
    text = "__constant__ int meets = 1; " + text.replace(MEETING, f"meets ? {MEETING} : {NO_MEETING}")
    return RawModule(code=KernelSource(text, source.path, source.name), options=("-DBF16=1",))


def problems(device: torch.device, delay: str, *, meets: bool = True) -> list[str]:
    """What is wrong with the output of the kernel with this delay, and without the meeting."""
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")
    generator = torch.Generator(device).manual_seed(0)
    S, T, H, k, scale = 6 if device.type == "cuda" else 1, 500, 70, 330, 192**-0.5
    query, latent = (0.5 * torch.randn(*n, 576, device=device, generator=generator) for n in ((S, H), (T,)))
    query, latent = query.bfloat16(), latent.bfloat16()
    indices = torch.randint(-1, T, (S, k), device=device, generator=generator, dtype=torch.int32)
    out = torch.full((S, H, 512), torch.nan, device=device, dtype=torch.bfloat16)
    lse = torch.full((S, H), torch.nan, device=device)
    tile = mla.HopperTile()
    for name, value in (("delay", [*DELAYS].index(delay)), ("meets", meets)):
        module().get_global(name, (1,), torch.int32, device).fill_(value)
    module().get_function("sparse_mla_hopper")(
        (2, S),
        (tile.threads,),
        (query, latent, indices, out, lse, *map(np.int32, (T, H, k)), np.float32(scale)),
        shared_mem=tile.shared_bytes,
    )
    expected_out, expected_lse = reference.sparse_mla(query, latent, indices, scale=scale)
    reports = checks.error_report(out, expected_out), checks.lse_report(lse, expected_lse)
    return [report.problem for report in reports if not report.passed]
