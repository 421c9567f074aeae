"""The wgmma kernel under delays: its warpgroups wait for each other by mbarriers and named barriers alone."""

import numpy as np
import pytest
import torch

from course_utils import checks, reference
from course_utils.cuda import KernelSource, RawModule, read_kernel
from course_utils.operators import mla
from course_utils.operators.tensor_core import takes_wgmma

OUTPUT = "start_output(state.O, shared, buffer, consumer);\n            wait_for"  # the one in the loop
DELAYS = {  # who is held up, and before which statement
    "first consumer before P V": ("consumer == 0", OUTPUT),
    "second consumer before P V": ("consumer == 1", OUTPUT),
    "first consumer before S": ("consumer == 0", "start_scores(S, shared, next, consumer);"),
    "second consumer before its softmax": ("consumer == 1", "update(state, S, shared, buffer, consumer, factor);"),
    "a warp of the producer": ("threadIdx.x / 32 == 9", "const int buffer = tile % BUFFERS;\n        int keys"),
}
# The maximum stays and nobody meets: P of the next tile may be written while the other consumer still needs the last.
NO_MEETING = "if (sync_threads_or(1, CONSUMERS, exceeds))", "if (state.m[0] == NEG_INF)"


def test_a_part_of_the_block_that_is_held_up_changes_nothing(device, thinned):
    assert not {delay: found for delay in thinned([*DELAYS], 2) if (found := problems(device, delay))}


def test_without_the_meeting_before_p_is_written_a_delay_shows(device):
    assert problems(device, "second consumer before P V", NO_MEETING)


def problems(device: torch.device, delay: str, change: tuple[str, str] | None = None) -> list[str]:
    """What is wrong with the output of the kernel with this delay, and changed in one place."""
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")
    who, before = DELAYS[delay]
    source = read_kernel("05_deepseek_sparse/sparse_mla_hopper.cu")
    text = str(source)
    for old, new in ((before, f"if ({who}) __nanosleep(20000);\n{before}"), *([change] if change else [])):
        assert text.count(old) == 1
        text = text.replace(old, new)

    generator = torch.Generator(device).manual_seed(0)
    S, T, H, k, scale = 6 if device.type == "cuda" else 1, 500, 70, 330, 192**-0.5
    query, latent = (0.5 * torch.randn(*n, 576, device=device, generator=generator) for n in ((S, H), (T,)))
    query, latent = query.bfloat16(), latent.bfloat16()
    indices = torch.randint(-1, T, (S, k), device=device, generator=generator, dtype=torch.int32)
    out = torch.full((S, H, 512), torch.nan, device=device, dtype=torch.bfloat16)
    lse = torch.full((S, H), torch.nan, device=device)
    tile = mla.HopperTile()
    module = RawModule(code=KernelSource(text, source.path, source.name), options=("-DBF16=1",))
    module.get_function("sparse_mla_hopper")(
        (2, S),
        (tile.threads,),
        (query, latent, indices, out, lse, *map(np.int32, (T, H, k)), np.float32(scale)),
        shared_mem=tile.shared_bytes,
    )
    expected_out, expected_lse = reference.sparse_mla(query, latent, indices, scale=scale)
    reports = checks.error_report(out, expected_out), checks.lse_report(lse, expected_lse)
    return [report.problem for report in reports if not report.passed]
