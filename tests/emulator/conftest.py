"""A launch in one line, and every compiler of this machine."""

import importlib.util
import shutil

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator.compiler import find_compiler

COMPILERS = [
    *[name for name in ("g++", "clang++") if shutil.which(name)],
    *(["zig"] if importlib.util.find_spec("ziglang") else []),
]


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


@pytest.fixture(params=COMPILERS)
def compiler(request, monkeypatch):
    """Each compiler in turn, chosen as a user chooses it."""
    monkeypatch.setenv("COURSE_EMULATOR_CXX", request.param)
    find_compiler.cache_clear()
    yield request.param
    find_compiler.cache_clear()
