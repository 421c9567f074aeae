"""Kernels whose products ptxas runs one after the other do not pass: by NVRTC, and live on a GPU."""

import io
import sys
import types
from pathlib import Path

import pytest

from course_utils.cuda import RawModule
from course_utils.toolchain import nvrtc, serialized
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.source import KernelSource

FOLDER = Path(__file__).parents[1] / "emulator/kernels"
FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
LAST_WAIT = '    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n    const int row'
SAID = "ptxas info    : (C7518) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..."


def source(file, old="", new=""):
    text = (FOLDER / file).read_text(encoding="utf-8")
    assert not old or text.count(old) == 1
    return KernelSource(text.replace(old, new) if old else text, FOLDER / file, file)


@pytest.mark.parametrize("file", ["gemm.cu", "cluster_gemm.cu", "cluster_softmax.cu"])
def test_the_kernels_of_the_emulators_tests_pass(file):
    compiled = nvrtc.compile_kernel(source(file), "sm_90a", ("-DBF16=0",))
    assert "(C75" not in compiled.log  # nor is anything else of theirs ignored


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (FENCE, ""),
        (LAST_WAIT, "    const int row"),
        ("arrive(&shared.empty[(n - 1)", "d[0]++, arrive(&shared.empty[(n - 1)"),
    ],
    ids=["no fence", "not waited for", "touched in flight"],
)
def test_a_kernel_whose_products_are_serialized_does_not_compile(old, new):
    for _ in range(2):  # compiled, and as it is kept
        with pytest.raises(CompileError, match=r"gemm\.cu: ptxas serializes its wgmma(.|\n)*\(C75\d\d\)") as caught:
            nvrtc.compile_kernel(source("gemm.cu", old, new), "sm_90a", ("-DBF16=0",))
    assert "registers" in caught.value.log


class Cupy(types.ModuleType):
    """CuPy as far as a compilation goes: it says something the first time only."""

    def __init__(self, log):
        super().__init__("cupy")
        self.log, self.compiled = log, set()
        self.cuda = types.SimpleNamespace(
            compiler=types.SimpleNamespace(CompileException=RuntimeError),
            nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 0)),
            runtime=types.SimpleNamespace(runtimeGetVersion=lambda: 13000, driverGetVersion=lambda: 13000),
        )

    def RawModule(self, code, options, name_expressions):
        def compile(log_stream: io.StringIO):
            log_stream.write("" if (code, options) in self.compiled else self.log)
            self.compiled.add((code, options))

        return types.SimpleNamespace(compile=compile, options=options)


@pytest.mark.parametrize(("log", "refused"), [(SAID, True), ("", False), ("ptxas info: (C7508) ...", False)])
def test_a_gpu_refuses_it_too_also_when_cupy_has_kept_the_code(monkeypatch, tmp_path, log, refused):
    monkeypatch.setattr(serialized, "cache_folder", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "cupy", Cupy(log))
    for _ in range(2):
        module = RawModule(code=source("gemm.cu"), options=("-DBF16=0",))
        if refused:
            with pytest.raises(CompileError, match=r"ptxas serializes its wgmma(.|\n)*C7518"):
                _ = module._cupy_module
        else:
            assert "-arch=sm_90a" in module._cupy_module.options


def test_older_kernels_are_not_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", Cupy(SAID))
    assert RawModule(code='extern "C" __global__ void k(float* x) { x[0] = 1; }')._cupy_module
