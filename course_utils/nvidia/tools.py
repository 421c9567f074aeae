"""NVIDIA's compute-sanitizer and ncu: where they are, the command line for them, and what they say of a `Launch`.

Both watch a process of their own, `python -m course_utils.nvidia.replay`, which runs saved launches on the GPU. They
differ from the emulator by design: compute-sanitizer's racecheck sees shared memory only and its initcheck global
memory only; ncu counts what the compiled kernel does, after the compiler merged, hoisted or dropped accesses of the
source.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from course_utils.emulator.sanitizer import TOOLS, Finding
from course_utils.launches import Launch
from course_utils.nvidia.figures import METRICS, SHOWN_METRICS
from course_utils.nvidia.output import ended, parse_failure, parse_ncu, parse_sanitizer

PROGRAMS = ("compute-sanitizer", "ncu")
# Where CUDA's installers put them if they are not on the PATH.
FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
SCRIPT = "python my_script.py"  # stands for the user's own program in the command lines that are shown
PADDING = 1024  # bytes that memcheck leaves free behind each allocation
SANITIZER_SECONDS = 60  # for a launch under compute-sanitizer, with the start of Python
KERNEL_SECONDS = 15  # for the kernel itself: one that hangs takes all of it
TAIL = 2000  # characters of a tool's output that an error message quotes


class ToolError(RuntimeError):
    """One of NVIDIA's tools is missing, failed or took too long; the message quotes the end of its output."""


# ---- command lines


def compute_sanitizer_command(kernel: Launch | str, tool: str = "memcheck", program: str = SCRIPT) -> str:
    """The command line that checks one kernel of a program, as text to show; `tool` is one of `TOOLS`."""
    _check_tool(tool)
    # Without its pool torch allocates each tensor alone, and then nothing lies right behind it: no overrun is hidden.
    pool = "PYTORCH_NO_CUDA_MEMORY_CACHING=1 " if tool == "memcheck" else ""
    padding = f" --padding {PADDING}" if tool == "memcheck" else ""
    return f"{pool}compute-sanitizer --tool {tool}{padding} --kernel-name kns={_name(kernel)} {program}"


def ncu_command(kernel: Launch | str, metrics: Sequence[str] = SHOWN_METRICS, program: str = SCRIPT) -> str:
    """The command line that counts one kernel of a program, as text to show."""
    listed = ",\\\n".join(metrics)  # not indented: to the shell this is one word
    return f"ncu --clock-control none -k {_name(kernel)} --metrics \\\n{listed} \\\n{program}"


def _name(kernel: Launch | str) -> str:
    return kernel.kernel if isinstance(kernel, Launch) else kernel


def _check_tool(tool: str) -> None:
    if tool not in TOOLS:
        raise ValueError(f"tool takes one of {', '.join(TOOLS)}, got {tool!r}")


# ---- running them


def why_unavailable(program: str) -> str | None:
    """Why "compute-sanitizer" or "ncu" cannot be used on this machine; None if it can."""
    if program not in PROGRAMS:
        raise ValueError(f"program takes one of {', '.join(PROGRAMS)}, got {program!r}")
    if not torch.cuda.is_available():
        return f"{program} needs an NVIDIA GPU, and PyTorch finds none here"
    if _find(program) is None:
        return f"{program} is not installed (it comes with the CUDA toolkit), neither on the PATH nor in {FOLDERS[0]}"
    return None


@functools.cache
def _find(program: str) -> str | None:
    folders = [folder for pattern in FOLDERS for folder in sorted(glob.glob(pattern), reverse=True)]
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))


def _require(program: str) -> str:
    reason = why_unavailable(program)
    if reason:
        raise ToolError(reason)
    return _find(program) or program


def version(program: str) -> str:
    """The version of "compute-sanitizer" or "ncu"; raises ToolError if it cannot be used here."""
    text = subprocess.run([_require(program), "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"[Vv]ersion\s+(\d[\w.]*)", text)
    return match[1] if match else "unknown"


class SanitizerRun(NamedTuple):
    """What compute-sanitizer said of one launch: parsed, and its whole output. failure: why the kernel did not end,
    such as "launch failed: CUDA error: misaligned address" or "hangs: stopped after 12 s"; empty if it did."""

    findings: list[Finding]
    output: str
    failure: str


def run_compute_sanitizer(
    launch: Launch, tool: str = "memcheck", *, timeout: float = SANITIZER_SECONDS, kernel_timeout: int = KERNEL_SECONDS
) -> SanitizerRun:
    """Runs a launch on the GPU under one tool of compute-sanitizer.

    A kernel that hangs is stopped after `kernel_timeout` seconds, the whole run after `timeout`; what was found until
    then is kept. Raises ToolError if the tool cannot be used here or did not get as far as the kernel.
    """
    code, output = _sanitize([launch], tool, timeout, kernel_timeout)
    findings = parse_sanitizer(output, tool, launch)
    failure = parse_failure(output, launch, timeout if code is None else None)
    if not findings and not failure and ended(launch) not in output:
        raise ToolError(f"compute-sanitizer --tool {tool} did not get as far as {launch.kernel}():\n{output[-TAIL:]}")
    return SanitizerRun(findings, output, failure)


def compute_sanitizer_is_silent(launches: Sequence[Launch], tool: str) -> bool:
    """Whether all launches end under one process of a tool, which finds nothing: most of the time is the process's
    start. Which launch a finding is about is not told."""
    _, output = _sanitize(launches, tool, SANITIZER_SECONDS + KERNEL_SECONDS * len(launches), KERNEL_SECONDS)
    ends = {ended(launch) for launch in launches}
    all_ended = sum(line in ends for line in output.splitlines()) == len(launches)
    return all_ended and not parse_sanitizer(output, tool)


def _sanitize(launches: Sequence[Launch], tool: str, timeout: float, kernel_timeout: int) -> tuple[int | None, str]:
    """Exit status and output of a tool that watches launches, as `_run` gives them."""
    _check_tool(tool)
    # Errors of the CUDA API are left out: a kernel that crashed makes every later call fail.
    options = ["--tool", tool, "--report-api-errors", "no", "--show-backtrace", "device", "--print-limit", "1000"]
    program = _require("compute-sanitizer")
    if tool == "memcheck" and _knows_padding(program):
        options += ["--padding", str(PADDING)]
    with tempfile.TemporaryDirectory() as folder:
        command = [program, *options, *_replay(folder, launches, kernel_timeout)]
        return _run(command, folder, timeout, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


@functools.cache
def _knows_padding(program: str) -> bool:
    return "--padding" in subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout


def run_ncu(
    launches: Sequence[Launch], metrics: Sequence[str] = METRICS, *, timeout: float = 300
) -> list[dict[str, float]]:
    """Counts launches on the GPU under one ncu process, from cold caches: for each, what ncu says of each metric.

    metrics: as ncu takes them; a name without a dot is its total over the GPU. Metrics that this ncu does not know are
    left out.
    Raises ToolError if ncu cannot be used here, fails, or takes more than `timeout` seconds.
    """
    metrics = known_metrics(metrics)
    names = "|".join(sorted({launch.kernel for launch in launches}))
    with tempfile.TemporaryDirectory() as folder:
        program = _replay(folder, launches)
        kernels, text = _count(program, metrics, folder, timeout, ["--kernel-name", f"regex:^({names})$"])
    if [kernel for kernel, _ in kernels] != [launch.kernel for launch in launches]:
        raise ToolError(f"ncu reported {len(kernels)} of {len(launches)} launches:\n{text[-TAIL:]}")
    return [counters for _, counters in kernels]


def count_program(
    arguments: Sequence[str], metrics: Sequence[str], *, timeout: float = 300
) -> list[tuple[str, dict[str, float]]]:
    """Counts every kernel of `python ARGUMENTS` under ncu, torch's own too, each from cold caches: its name and
    the metrics, as `run_ncu` takes them. Raises ToolError as it does."""
    with tempfile.TemporaryDirectory() as folder:
        return _count([sys.executable, *arguments], metrics, folder, timeout)[0]


def _count(
    program: Sequence[str], metrics: Sequence[str], folder: str, timeout: float, options: Sequence[str] = ()
) -> tuple[list[tuple[str, dict[str, float]]], str]:
    """The kernels of a program as ncu counted them, and all that was printed."""
    log = Path(folder) / "ncu.csv"
    command = [_require("ncu"), "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function"]
    command += ["--clock-control", "none", "--log-file", str(log), *options]
    command += ["--metrics", ",".join(name if "." in name else f"{name}.sum" for name in metrics), *program]
    code, output = _run(command, folder, timeout)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if code != 0:
        what = f"took more than {timeout:.0f} s" if code is None else f"failed (exit status {code})"
        hint = "; counters need root or the driver's permission" if "ERR_NVGPUCTRPERM" in text + output else ""
        raise ToolError(f"ncu {what}{hint}:\n{(text + output)[-TAIL:]}")
    return parse_ncu(text), text + output


@functools.cache
def _known() -> tuple[set[str], str]:
    """The metrics that this ncu knows for this GPU, and all that it printed."""
    query = subprocess.run([_require("ncu"), "--query-metrics"], capture_output=True, text=True, check=False)
    return {line.split()[0] for line in query.stdout.splitlines() if line.strip()}, query.stdout + query.stderr


def known_metrics(metrics: Sequence[str] = METRICS) -> list[str]:
    """The metrics among these that this ncu knows for this GPU."""
    known, text = _known()
    found = [name for name in metrics if name.partition(".")[0] in known]
    if not found:
        raise ToolError(f"ncu --query-metrics listed none of the metrics wanted:\n{text[-TAIL:]}")
    return found


def _replay(folder: str, launches: Sequence[Launch], kernel_timeout: int = 0) -> list[str]:
    file = Path(folder) / "launches.pt"
    torch.save(list(launches), file)
    return [sys.executable, "-m", "course_utils.nvidia.replay", str(file), str(kernel_timeout)]


def _run(
    command: list[str], folder: str, timeout: float, environment: dict[str, str] | None = None
) -> tuple[int | None, str]:
    """Exit status (None: stopped at the time limit) and output of a command, which is stopped with all its children."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    output = Path(folder) / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return code, output.read_text(encoding="utf-8", errors="replace")
