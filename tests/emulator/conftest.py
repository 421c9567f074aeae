"""A launch in one line."""

import pytest
import torch

from course_utils.cuda import RawModule


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """A launch without tensors goes to the GPU where there is one; here it belongs to the emulator everywhere."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def run_kernel():
    """Compiles a source text and launches its kernel `k` once; returns the module."""

    def run(code, grid, block, args, *, name="k", shared_mem=0, **options):
        module = RawModule(code=code, **options)
        module.get_function(name)(grid, block, args, shared_mem=shared_mem)
        return module

    return run
