"""What this machine can run, what it cannot, and what to do about it: `python -m course_utils doctor`.

Every check tries the thing itself (compiles, launches, compares) and answers with a `Finding`; none of them raises.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

State = Literal["ok", "absent", "broken"]
OLDEST_PYTHON = (3, 11)
LOWEST_CAPABILITY = 75
# The oldest driver branch for each CUDA major version. Source: CUDA Toolkit release notes, "CUDA Driver".
OLDEST_DRIVER = {12: "525", 13: "580"}

KERNEL = """
extern "C" __global__ void twice_plus_one(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 2.0f * x[i] + 1.0f;
}
"""


class Finding(NamedTuple):
    """One line of the report. "absent": this machine does without it. "broken": it should work and does not."""

    subject: str
    state: State
    text: str
    advice: str = ""


def check_python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= OLDEST_PYTHON:
        return Finding("Python", "ok", found)
    needed = ".".join(map(str, OLDEST_PYTHON))
    return Finding("Python", "broken", f"{found}; the course needs {needed} or newer", "make PYTHON=python3.12 lab")


def check_torch() -> Finding:
    import torch

    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding("PyTorch", "ok", f"{torch.__version__}, {built}")


def check_jupyter() -> Finding:
    wanted = ("jupyterlab", "ipywidgets", "anywidget", "matplotlib")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        state = "absent" if missing == ["jupyterlab"] else "broken"  # a wheel brings it with [lab] only
        return Finding("JupyterLab", state, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Finding("JupyterLab", "ok", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in wanted))


def check_compiler() -> Finding:
    from course_utils.emulator.compiler import find_compiler
    from course_utils.toolchain.errors import CompileError

    try:
        return Finding("C++ compiler", "ok", find_compiler().describe())
    except CompileError as error:
        return Finding("C++ compiler", "broken", str(error), "pip install ziglang")


def check_emulator() -> Finding:
    try:
        seconds = _run_kernel("cpu")
    except Exception as error:
        text = f"a first kernel did not run: {_short(error)}"
        return Finding("Emulator", "broken", text, "COURSE_EMULATOR_CXX=zig tries the ziglang wheel instead")
    return Finding("Emulator", "ok", f"compiled and ran a first kernel on the CPU in {seconds:.1f} s")


def check_nvrtc() -> Finding:
    advice = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt cuda-bindings"
    try:
        from course_utils.toolchain import nvrtc

        nvrtc.compile_kernel("#include <cuda_fp16.h>\n" + KERNEL, "sm_90")
        return Finding("NVRTC", "ok", f"{nvrtc.version()}: compiles kernels for every architecture, without a GPU")
    except Exception as error:
        text = f"NVIDIA's compiler does not work, so that the emulator takes what is no CUDA, too: {_short(error)}"
        return Finding("NVRTC", "broken", text, advice)


def check_driver() -> Finding:
    supported = driver_cuda_version()
    if supported:
        return Finding("NVIDIA driver", "ok", f"supports CUDA {supported[0]}.{supported[1]}")
    if Path("/proc/driver/nvidia/version").exists():
        text = "loaded, but its library libcuda.so.1 is not visible here"
        return Finding("NVIDIA driver", "broken", text, "in a container: start it with --gpus all")
    return Finding("NVIDIA driver", "absent", "none: kernels run on the emulator, and timings shown are recorded ones")


def check_gpu() -> Finding:
    import torch

    supported = driver_cuda_version()
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        capability = 10 * device.major + device.minor
        text = f"{device.name}, sm_{capability}, {device.total_memory / 2**30:.0f} GiB"
        if capability < LOWEST_CAPABILITY:
            return Finding(
                "GPU", "broken", f"{text}: older than sm_{LOWEST_CAPABILITY}", "use the emulator: CPU tensors"
            )
        return Finding("GPU", "ok", text)
    if supported is None:
        return Finding("GPU", "absent", "none that CUDA can use")
    if torch.version.cuda is None:
        return Finding("GPU", "broken", "the driver is here, but PyTorch is the CPU build", "rm -r .venv && make lab")
    mismatch = cuda_mismatch("PyTorch", torch.version.cuda, supported)
    if mismatch:
        return Finding("GPU", "broken", *mismatch)
    return Finding("GPU", "broken", "PyTorch sees no GPU", "see what nvidia-smi says; is CUDA_VISIBLE_DEVICES set?")


def check_cupy() -> Finding:
    supported = driver_cuda_version()
    install = f"pip install 'cupy-cuda{supported[0] if supported else 13}x[ctk]'"
    if importlib.util.find_spec("cupy") is None:
        if supported is None:
            return Finding("CuPy", "absent", "not installed: only needed with a GPU")
        return Finding("CuPy", "broken", "not installed, and CUDA tensors need it", install)
    try:
        import cupy

        runtime = cupy.cuda.runtime.runtimeGetVersion()
    except Exception as error:
        return Finding("CuPy", "broken", f"cannot be imported: {_short(error)}", install)
    text = f"{cupy.__version__}, CUDA {runtime // 1000}.{runtime % 1000 // 10}"
    if supported is None:
        return Finding("CuPy", "absent", f"{text}; unused without a driver")
    mismatch = cuda_mismatch("CuPy", f"{runtime // 1000}.{runtime % 1000 // 10}", supported)
    if mismatch:
        return Finding("CuPy", "broken", *mismatch)
    try:
        seconds = _run_kernel("cuda")
    except Exception as error:
        return Finding("CuPy", "broken", f"{text}; a first kernel did not run: {_short(error)}", install)
    return Finding("CuPy", "ok", f"{text}; compiled and ran a first kernel on the GPU in {seconds:.1f} s")


def check_browser() -> Finding:
    found = find_chromium()
    if found:
        return Finding("Chromium", "ok", f"{found}, for the browser tests")
    return Finding(
        "Chromium", "absent", "none: the browser tests are skipped", "apt-get install chromium-headless-shell"
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_torch,
    check_jupyter,
    check_compiler,
    check_emulator,
    check_nvrtc,
    check_driver,
    check_gpu,
    check_cupy,
    check_browser,
)


def diagnose() -> list[Finding]:
    """Runs every check. A check that itself fails is reported as broken."""
    findings = []
    for check in CHECKS:
        try:
            findings.append(check())
        except Exception as error:
            findings.append(Finding(check.__name__.removeprefix("check_"), "broken", _short(error)))
    return findings


def verdict(findings: list[Finding]) -> tuple[bool, str]:
    """Whether kernels run on this machine at all, and one sentence that says where."""
    state = {finding.subject: finding.state for finding in findings}
    on_cpu = state.get("Emulator") == "ok"
    on_gpu = state.get("GPU") == "ok" and state.get("CuPy") == "ok"
    if on_cpu and on_gpu:
        return True, "Kernels run here on the GPU and, for CPU tensors, on the emulator."
    if on_cpu:
        reason = (
            "there is no GPU" if state.get("NVIDIA driver") == "absent" else "the GPU cannot be used yet, see above"
        )
        return True, f"Every chapter runs here, on the emulator; {reason}."
    if on_gpu:
        return True, "Kernels run here on the GPU, but not on the emulator: see above."
    return False, "No kernel can run on this machine yet: see above."


def render(findings: list[Finding]) -> str:
    """The report as text: one line per finding, with what to do where something is missing."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.subject:<14} {finding.state:<7} {finding.text}")
        if finding.advice and finding.state != "ok":
            lines.append(f"{'':<22} to do: {finding.advice}")
    return "\n".join([*lines, "", verdict(findings)[1]])


def cuda_mismatch(library: str, needs: str, driver: tuple[int, int]) -> tuple[str, str] | None:
    """What is wrong, and what to do, if a library built for CUDA `needs` ("13.0") is too new for this driver.

    Within one major version every driver serves every library (CUDA minor version compatibility).
    """
    major = int(needs.split(".")[0])
    if major <= driver[0]:
        return None
    oldest = OLDEST_DRIVER.get(major)
    update = f"update the driver to version {oldest} or newer" if oldest else "update the driver"
    return f"{library} is built for CUDA {needs}, but the driver supports only CUDA {driver[0]}.{driver[1]}", update


def driver_cuda_version() -> tuple[int, int] | None:
    """(major, minor) of the newest CUDA that the installed driver supports; None without a driver."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if libcuda.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome that the browser tests can drive; `COURSE_CHROMIUM` names another.

    The headless shell comes first: without the parts that show windows a page takes two thirds of the time.
    """
    own = os.environ.get("COURSE_CHROMIUM", "")
    names = (own, "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _run_kernel(device: str) -> float:
    """Compiles and launches a small kernel, checks its result, and returns how many seconds that took."""
    import numpy as np
    import torch

    from course_utils.cuda import RawModule

    start = time.perf_counter()
    x = torch.arange(100, dtype=torch.float32, device=device)
    expected = 2 * x + 1
    kernel = RawModule(code=KERNEL).get_function("twice_plus_one")
    kernel((2,), (64,), (x, np.int32(100)))
    if not torch.equal(x, expected):
        raise RuntimeError(f"a wrong result: {x[:4].tolist()} instead of {expected[:4].tolist()}")
    return time.perf_counter() - start


def _short(error: Exception) -> str:
    """The first line of an exception, at most 300 characters."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
