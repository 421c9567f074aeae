"""What the driver gets for a dependent launch, and what is said where it refuses."""

import ctypes
import re

import pytest
from cuda.bindings import nvrtc as compiler

from course_utils.toolchain import dependent_launch, nvrtc
from course_utils.toolchain.errors import LaunchError
from course_utils.toolchain.source import INCLUDE, read_kernel


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("x", "y", "z", "u", "v", "w", "shared")),
        *(("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(ctypes.c_int)), ("count", ctypes.c_uint)),
    )


@pytest.fixture
def driver(monkeypatch):
    """Plays cuLaunchKernelEx: keeps what it gets in `seen`, and returns `error`."""

    class Driver:
        seen, error = [], 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), *3 * (ctypes.c_void_p,))
    def launch(config, function, arguments, extra):
        c = config[0]
        Driver.seen.append(([c.x, c.y, c.z], [c.u, c.v, c.w], c.shared, c.stream, c.count, c.attributes[0]))
        Driver.seen[-1] += c.attributes[2], function, arguments, extra
        return Driver.error

    launch.argtypes = 4 * (ctypes.c_void_p,)
    monkeypatch.setattr(dependent_launch, "_launch_kernel", lambda: launch)
    return Driver


def test_the_driver_gets_the_launch_and_what_makes_it_dependent(driver):
    for stream in (7, 8):  # the second time in memory of the first
        dependent_launch.launch_dependent(11, 1, 2, 3, 32, 4, 5, 600, stream, 99, 0)
    assert driver.seen == [([1, 2, 3], [32, 4, 5], 600, stream, 1, 6, 1, 11, 99, None) for stream in (7, 8)]


def test_what_the_driver_refuses_is_an_error(driver):
    driver.error = 719
    with pytest.raises(LaunchError, match=r"grid \(1, 2, 3\) and block \(32, 1, 1\) is the driver's error 719"):
        dependent_launch.launch_dependent(11, 1, 2, 3, 32, 1, 1, 0, 7, 99, 0)


# ---------------------------------------------------------------------------------------------- what waits for what

PARTS = "O_parts", "LSE_parts"  # what the kernel before merge_pieces writes


def ptx(code, kernel):
    """A kernel's instructions and labels, a line each, without their predicates."""
    flags = f"-I{INCLUDE}", *nvrtc._cuda_include_flags(), "--gpu-architecture=compute_90", "-std=c++17"
    flags += "-DBF16=0", "-DPART_BITS=32", "-DO_BITS=16"
    _, program = compiler.nvrtcCreateProgram(code.encode(), b"merge.cu", 0, [], [])
    compiler.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    text = bytes(compiler.nvrtcGetPTXSize(program)[1])
    compiler.nvrtcGetPTX(program, text)
    body = text.decode().split(f".entry {kernel}(")[1].split("\n}")[0]
    return [re.sub(r"^\s*(@!?%p\d+\s+)?", "", line) for line in body.splitlines()]


def before_its_wait(code):
    """What merge_pieces may do, before it has waited, that it must not: reads of parts, writes, and ways around the
    wait to anything but the end."""
    lines = ptx(code, "merge_pieces")
    names = re.findall(r"(\w+)(?=[,)])", code.split("merge_pieces(")[-1].split("{")[0])
    operands = [re.findall(r"%\w+|merge_pieces_param_\d+", line) for line in lines]
    known = {f"merge_pieces_param_{names.index(name)}" for name in PARTS}
    size = 0
    while size < len(known):  # and what is computed from them
        size = len(known)
        known |= {found[0] for found in operands if known.intersection(found[1:])}
    loads = [n for n, line in enumerate(lines) if line.startswith("ld.global") and known.intersection(operands[n])]
    assert loads
    (wait,) = (n for n, line in enumerate(lines) if line.startswith("griddepcontrol.wait"))
    labels = {line.rstrip(":"): n for n, line in enumerate(lines) if line.endswith(":")}
    jumps = [
        n
        for n, line in enumerate(lines)
        if line.startswith("bra")
        and (to := labels[line.split()[-1].rstrip(";")]) > wait
        and next(filter(None, lines[to + 1 :])) != "ret;"
    ]
    writes = [n for n, line in enumerate(lines) if line.startswith(("st.global", "red", "atom"))]
    return [lines[n] for n in loads + jumps + writes if n < wait]


def test_the_merge_waits_before_it_reads_or_writes():
    """As the compiler orders it. The emulator begins a launch when the one before has ended, and sees none of it."""
    code, wait = str(read_kernel("06_serving/merge.cu")), "    wait_for_previous();"
    assert not before_its_wait(code)
    for early in ("if (LSE_parts[first] > 0) __nanosleep(1);", "*LSE = 0;", "if (B > 1)"):
        assert before_its_wait(code.replace(wait, early + wait))
