"""What the tests of several operators use."""

import pytest
import torch

from course_utils import cuda
from course_utils.operators import flash_v2, hopper_launch, serving, sparse_launch, tensor_core
from course_utils.toolchain.source import with_headers

# What operators.serving looks up for a call.
READY_SERVING = "ready_attention", "ready_append", "ready_step", "ready_merge"


@pytest.fixture
def by_hopper_kernels(request, monkeypatch):
    """What a Hopper GPU takes for a pattern; the emulator runs it as well."""
    device = request.getfixturevalue("device") if "device" in request.fixturenames else torch.device("cpu")
    if device.type == "cuda" and not tensor_core.takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")
    monkeypatch.setattr(sparse_launch, "takes_wgmma", lambda _: True)


@pytest.fixture
def nothing_ready(monkeypatch):
    """Launches of operators.serving are made anew for each call: with what a test says of the device."""
    for ready in READY_SERVING:
        monkeypatch.setattr(serving, ready, getattr(serving, ready).__wrapped__)


@pytest.fixture
def break_kernel(monkeypatch):
    """break_kernel(file, right, wrong): operators take the kernel file, or what it includes of the course, with one
    passage replaced, until the test ends."""
    read_kernel = cuda.read_kernel

    def replace(file, right, wrong):
        code = read_kernel(file)
        if right not in code:
            code = with_headers(code)
        assert code.count(right) == 1
        broken = code.replace(right, wrong)
        monkeypatch.setattr(cuda, "read_kernel", lambda name: broken if name == file else read_kernel(name))
        forget_kernels()

    yield replace
    forget_kernels()


def forget_kernels():
    cuda.compiled.cache_clear()
    tensor_core.dense_forward.cache_clear()
    flash_v2.ready_backward_of.cache_clear()
    hopper_launch.forward_launch.cache_clear()
    hopper_launch.ready_backward.cache_clear()
    for ready in READY_SERVING:
        getattr(serving, ready).cache_clear()
