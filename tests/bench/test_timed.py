"""What every chapter's benchmarks share: a wrong kernel is not timed, and what does not fit is left out."""

import pytest
import torch

from course_utils.bench import timed
from course_utils.toolchain.nvrtc import ARCHITECTURES, compile_kernel
from course_utils.toolchain.source import read_kernel


def test_lengths_that_do_not_fit_the_gpu_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 16 * 2**30))
    assert timed.fitting((512, 4096), 16, 12, "cuda") == [512]
    assert "L = 4096 is left out" in capsys.readouterr().out


def test_a_wrong_kernel_is_not_timed():
    with pytest.raises(RuntimeError, match="ours is off by"):
        timed.require_close("ours", torch.ones(2), torch.zeros(2))
    with pytest.raises(RuntimeError, match="ours is off by nan"):
        timed.require_close("ours", torch.full((2,), torch.nan), torch.zeros(2))


@pytest.mark.parametrize("file", sorted(timed.KERNELS.glob("*.cu")), ids=lambda file: file.stem)
def test_benchmark_kernels_compile_for_gpus(file):
    source = read_kernel(file)
    lowest = 80 if "arch: sm_80" in source else 75
    for architecture in ARCHITECTURES:
        if architecture >= lowest:
            resources = compile_kernel(source, arch=f"sm_{architecture}").resources
            assert all(kernel.spill_stores == 0 for kernel in resources.values())
