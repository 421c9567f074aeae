"""NVIDIA's compute-sanitizer and ncu on a `Launch`, and what they say beside what the emulator says.

Both tools watch a process of their own, `python -m course_utils.nvidia.tools replay FILE`, which runs saved launches on
the GPU. They differ from the emulator by design: compute-sanitizer's racecheck sees shared memory only and its
initcheck global memory only; ncu counts what the compiled kernel does, after the compiler merged, hoisted or dropped
accesses of the source.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from course_utils import measured
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import profile, sanitize
from course_utils.emulator.sanitizer import TOOLS, Finding
from course_utils.launches import Launch
from course_utils.measured import Row
from course_utils.toolchain.errors import Index3, KernelError
from course_utils.toolchain.source import line_text

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


class Figure(NamedTuple):
    """One figure of a launch: the emulator's `Counters.total(...)` of it, and the metrics of ncu whose sum it is."""

    figure: str
    space: str
    operation: str
    metrics: tuple[str, ...]


def _global(figure: str, operation: str, *ops: str) -> Figure:
    return Figure(figure, "global", operation, tuple(f"l1tex__t_{figure}_pipe_lsu_mem_global_op_{op}" for op in ops))


def _shared(figure: str, operation: str, op: str) -> Figure:
    """ncu counts at L1 ("l1tex"), which is what the hardware does, and per instruction ("sass"). Only for the stores of
    cp.async (LDGSTS) we take the latter: there are no wavefronts of theirs at L1."""
    name = {"wavefronts": "pipe_lsu_wavefronts", "bank_conflicts": "bank_conflicts_pipe_lsu"}[figure] + "_mem_shared_op"
    asynchronous = (f"smsp__sass_l1tex_data_{name}_ldgsts",) if op == "st" else ()
    return Figure(figure, "shared", operation, (f"l1tex__data_{name}_{op}", *asynchronous))


FIGURES: dict[str, Figure] = {
    "global load requests": _global("requests", "load", "ld"),
    "global load sectors": _global("sectors", "load", "ld"),
    "global store requests": _global("requests", "store", "st"),
    "global store sectors": _global("sectors", "store", "st"),
    "global atomic requests": _global("requests", "atomic", "atom", "red"),
    "global atomic sectors": _global("sectors", "atomic", "atom", "red"),
    "shared load wavefronts": _shared("wavefronts", "load", "ld"),
    "shared load bank conflicts": _shared("bank_conflicts", "load", "ld"),
    "shared store wavefronts": _shared("wavefronts", "store", "st"),
    "shared store bank conflicts": _shared("bank_conflicts", "store", "st"),
    "shared atomic wavefronts": _shared("wavefronts", "atomic", "atom"),
}
# What `run_ncu` asks for (ncu then wants ".sum" behind each: over the GPU), less what this ncu or GPU does not have.
METRICS = [
    *dict.fromkeys(metric for figure in FIGURES.values() for metric in figure.metrics),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld",  # for the example in docs/validation.md
    "dram__bytes_read",
    "dram__bytes_write",
]
# Those at L1, for the command line that a person would type.
SHOWN_METRICS = tuple(f"{name}.sum" for name in METRICS if name.startswith("l1tex"))


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
    _check_tool(tool)
    # Errors of the CUDA API are left out: a kernel that crashed makes every later call fail.
    options = ["--tool", tool, "--report-api-errors", "no", "--show-backtrace", "device", "--print-limit", "1000"]
    program = _require("compute-sanitizer")
    if tool == "memcheck" and _knows_padding(program):
        options += ["--padding", str(PADDING)]
    with tempfile.TemporaryDirectory() as folder:
        command = [program, *options, *_replay(folder, [launch], kernel_timeout)]
        code, output = _run(command, folder, timeout, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    findings = parse_sanitizer(output, tool, launch)
    failure = _failure(launch, output, timeout if code is None else None)
    if not findings and not failure and _launched(launch) not in output:
        raise ToolError(f"compute-sanitizer --tool {tool} did not get as far as {launch.kernel}():\n{output[-TAIL:]}")
    return SanitizerRun(findings, output, failure)


@functools.cache
def _knows_padding(program: str) -> bool:
    return "--padding" in subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout


def _failure(launch: Launch, output: str, timeout: float | None) -> str:
    """Why a replayed kernel did not end, by the lines that `replay` prints; timeout: seconds after which it was stopped
    from outside, None if it was not."""
    match = re.search(r"^(launch failed: .*|hangs: .*)$", output, re.MULTILINE)
    if match:
        return match[1]
    hangs = timeout is not None and _begins(launch) in output and _launched(launch) not in output
    return f"hangs: stopped after {timeout:.0f} s" if hangs else ""


def run_ncu(launches: Sequence[Launch], *, timeout: float = 300) -> list[dict[str, int]]:
    """Counts launches on the GPU under one ncu process, from cold caches: for each, the total of each of METRICS.

    Raises ToolError if ncu cannot be used here, fails, or takes more than `timeout` seconds.
    """
    metrics = known_metrics()
    names = "|".join(sorted({launch.kernel for launch in launches}))
    with tempfile.TemporaryDirectory() as folder:
        program = _replay(folder, launches)
        kernels, text = _count(program, metrics, folder, timeout, ["--kernel-name", f"regex:^({names})$"])
    if [kernel for kernel, _ in kernels] != [launch.kernel for launch in launches]:
        raise ToolError(f"ncu reported {len(kernels)} of {len(launches)} launches:\n{text[-TAIL:]}")
    return [counters for _, counters in kernels]


def count_program(
    arguments: Sequence[str], metrics: Sequence[str], *, timeout: float = 300
) -> list[tuple[str, dict[str, int]]]:
    """Counts every kernel of `python ARGUMENTS` under ncu, torch's own too, each from cold caches: its name and the
    total of each metric. Raises ToolError as `run_ncu` does."""
    with tempfile.TemporaryDirectory() as folder:
        return _count([sys.executable, *arguments], metrics, folder, timeout)[0]


def _count(
    program: Sequence[str], metrics: Sequence[str], folder: str, timeout: float, options: Sequence[str] = ()
) -> tuple[list[tuple[str, dict[str, int]]], str]:
    """The kernels of a program as ncu counted them, and all that was printed."""
    log = Path(folder) / "ncu.csv"
    command = [_require("ncu"), "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function"]
    command += ["--clock-control", "none", "--log-file", str(log), *options]
    command += ["--metrics", ",".join(f"{name}.sum" for name in metrics), *program]
    code, output = _run(command, folder, timeout)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if code != 0:
        what = f"took more than {timeout:.0f} s" if code is None else f"failed (exit status {code})"
        hint = "; counters need root or the driver's permission" if "ERR_NVGPUCTRPERM" in text + output else ""
        raise ToolError(f"ncu {what}{hint}:\n{(text + output)[-TAIL:]}")
    return parse_ncu(text), text + output


@functools.cache
def known_metrics() -> list[str]:
    """Those of METRICS that this ncu knows for this GPU."""
    query = subprocess.run([_require("ncu"), "--query-metrics"], capture_output=True, text=True, check=False)
    known = {line.split()[0] for line in query.stdout.splitlines() if line.strip()}
    found = [name for name in METRICS if name in known]
    if not found:
        raise ToolError(
            f"ncu --query-metrics listed none of the metrics wanted:\n{(query.stdout + query.stderr)[-TAIL:]}"
        )
    return found


def _replay(folder: str, launches: Sequence[Launch], kernel_timeout: int = 0) -> list[str]:
    file = Path(folder) / "launches.pt"
    torch.save(list(launches), file)
    return [sys.executable, "-m", "course_utils.nvidia.tools", "replay", str(file), str(kernel_timeout)]


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


def replay(file: str, kernel_timeout: int = 0) -> None:
    """Runs saved launches on the GPU, one after the other; what the tools watch.

    A kernel that fails, or takes more than `kernel_timeout` seconds (0: no limit), ends the process at once: nothing
    else stops one that hangs, and after a failure torch aborts as soon as it frees a tensor.
    """
    torch.cuda.synchronize()  # starts CUDA, which takes seconds under a tool: outside of the time limit
    for launch in torch.load(file, weights_only=False):
        RawModule(code=read_kernel(launch.source), options=launch.options).compile("cuda")
        print(_begins(launch), flush=True)
        watch = threading.Timer(kernel_timeout, _give_up, [f"hangs: stopped after {kernel_timeout} s"])
        watch.daemon = True
        if kernel_timeout:
            watch.start()
        try:
            tensors = launch.run("cuda")
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = re.search(r"(?:CUDA error|cudaError\w+|CUDA_ERROR_\w+): (.+)", str(error))
            if not reason:
                raise
            _give_up(f"launch failed: CUDA error: {reason[1]}")
        watch.cancel()
        print(_launched(launch), flush=True)
        del tensors  # not before: see above


def _give_up(why: str) -> None:
    print(why, flush=True)
    os._exit(1)


def _begins(launch: Launch) -> str:
    return f"launching {launch.kernel}()"


def _launched(launch: Launch) -> str:
    return f"launched {launch.kernel}()"


# ---- reading what they print

_PLACE = re.compile(
    r"\b(?P<kernel>[^\s].*?)\+0x[0-9a-f]+(?: in (?P<file>.+?):(?P<line>\d+))?(?: \[(?P<hazards>\d+) hazards?\])?$"
)
_THREAD = re.compile(r"by thread \((\d+),\s*(\d+),\s*(\d+)\) in block \((\d+),\s*(\d+),\s*(\d+)\)")
_RACE = re.compile(r"Race reported between (\w+) access at (.*)")


def parse_sanitizer(output: str, tool: str, launch: Launch | None = None) -> list[Finding]:
    """The findings in compute-sanitizer's output, one per kind and line, in the order of their first appearance.

    CuPy compiles a kernel from a temporary copy; `launch` gives it its own name and the text of its lines back.
    """
    code = read_kernel(launch.source) if launch else ""
    found: dict[tuple[str, str | None, int | None, int | None], Finding] = {}
    for entry in _entries(output):
        finding = _finding(entry, tool, launch, code)
        if finding:
            key = (finding.message, finding.file, finding.line, finding.other_line)
            count = found[key].count + finding.count if key in found else finding.count
            found[key] = Finding(**{**vars(found.get(key, finding)), "count": count})
    return list(found.values())


def _entries(output: str) -> list[list[str]]:
    """The messages of the tool: a line behind "========= " and those that are indented below it."""
    entries: list[list[str]] = []
    for line in output.splitlines():
        match = re.match(r"=========(?: |$)(\s*)(.*)", line)
        if not match:
            continue
        if match[1] and entries:
            entries[-1].append(match[2].strip())
        elif match[2]:
            entries.append([match[2].strip()])
    return entries


def _finding(entry: list[str], tool: str, launch: Launch | None, code: str) -> Finding | None:
    """One message as a finding; None for one that is not about a place in a kernel, such as the summary."""
    message, *details = entry
    places = [(detail, match) for detail in details if (match := _place(detail))]
    race = _RACE.search(message)
    if race:
        first = _place(race[2])
        seconds = [match for detail, match in places if detail.startswith("and ")]
        kinds = sorted({detail.split()[1].lower() for detail, _ in places if detail.startswith("and ")})
        message = f"Race between {race[1].lower()} access and {' or '.join(kinds)} access"
        count = sum(int(match["hazards"] or 1) for match in seconds)
        second = seconds[0] if seconds else None
    else:
        first = next((match for detail, match in places if detail.startswith("at ")), None)
        second, count = None, 1
    thread = next((match for detail in details if (match := _THREAD.search(detail))), None)
    if first is None and thread is None:
        return None
    frames = [match for detail, match in places if detail.startswith("Device Frame")]  # the kernel comes last
    kernel = frames[-1] if frames else first
    numbers = [int(n) for n in thread.groups()] if thread else []
    line, other_line = _line(first), _line(second)
    return Finding(
        tool=tool,
        message=message,
        kernel=_function(kernel["kernel"]) if kernel else (launch.kernel if launch else ""),
        file=_file(first, launch),
        line=line,
        source=line_text(code, line),
        block=_index(numbers[3:]),
        thread=_index(numbers[:3]),
        other_line=other_line,
        other_source=line_text(code, other_line),
        count=count,
    )


def _index(numbers: list[int]) -> Index3 | None:
    return (numbers[0], numbers[1], numbers[2]) if numbers else None


def _place(text: str) -> re.Match[str] | None:
    return _PLACE.search(re.sub(r"^(?:at|and \w+ access at|Device Frame:)\s+", "", text))


def _line(place: re.Match[str] | None) -> int | None:
    return int(place["line"]) if place and place["line"] else None


def _file(place: re.Match[str] | None, launch: Launch | None) -> str | None:
    if place is None or place["file"] is None:
        return None
    own = launch is not None and place["file"].endswith(".cu")  # a header keeps its name
    return launch.source if own else place["file"]


def _function(signature: str) -> str:
    """The bare name of "void scale<4>(float *, int)"."""
    return re.split(r"[<(]", signature.strip())[0].split()[-1]


def parse_ncu(text: str) -> list[tuple[str, dict[str, int]]]:
    """ncu's `--csv --page raw` output: per launch the kernel's name and its metrics, without the suffix ".sum"."""
    table = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    kernels = []
    for row in table:
        if not row["ID"]:
            continue  # the row of units
        counters = {
            name.removesuffix(".sum"): round(float(value.replace(",", "")))
            for name, value in row.items()
            if name and name.endswith(".sum") and re.fullmatch(r"[\d.,]+(?:e\+\d+)?", value or "")
        }
        kernels.append((_function(row["Kernel Name"]), counters))
    return kernels


# ---- side by side


class SideBySide(NamedTuple):
    """Tables of a launch for `show.table`, and where NVIDIA's figures come from, or why there are none."""

    counters: list[Row]
    findings: list[Row]
    note: str


def side_by_side(launch: Launch) -> SideBySide:
    """What the emulator and NVIDIA's tools say of a launch.

    Without a GPU, ncu's figures are the recorded ones if this very launch was recorded, and compute-sanitizer's column
    is empty; the note says so.
    """
    ours, nvidias, notes = emulated_figures(launch), {}, []
    if reason := why_unavailable("ncu"):
        recorded = recorded_figures(launch)
        nvidias = recorded[0] if recorded else {}
        notes.append(f"ncu: recorded on {recorded[1]}" if recorded else f"{reason}; this launch is not recorded")
    else:
        nvidias = ncu_figures(run_ncu([launch])[0])
        notes.append(f"ncu: measured now on {torch.cuda.get_device_name()}")
    counters: list[Row] = [
        {"figure": name, "emulator": ours[name], "ncu": nvidias.get(name, "")}
        for name in FIGURES
        if ours[name] or nvidias.get(name)
    ]
    findings = [_finding_row("emulator", finding) for finding in emulated_findings(launch)]
    if reason := why_unavailable("compute-sanitizer"):
        notes.append(reason)
    else:
        for tool in TOOLS:
            run = run_compute_sanitizer(launch, tool)
            findings += [_finding_row("compute-sanitizer", finding) for finding in run.findings]
            if run.failure:
                findings.append({"by": "compute-sanitizer", "tool": tool, "line": "", "message": run.failure})
    return SideBySide(counters, findings, "\n".join(notes))


def _finding_row(who: str, finding: Finding) -> Row:
    return {"by": who, "tool": finding.tool, "line": finding.line or "", "message": finding.message}


def emulated_figures(launch: Launch) -> dict[str, int]:
    """FIGURES of a launch as the emulator counts them, until the end of one that crashes or hangs."""
    with profile() as counters, contextlib.suppress(KernelError):
        launch.run("cpu")
    return {name: counters.total(f.figure, f.space, f.operation) for name, f in FIGURES.items()}


def emulated_findings(launch: Launch) -> list[Finding]:
    """What the emulator's sanitizer finds in a launch, also in one that crashes or hangs."""
    with sanitize() as report, contextlib.suppress(KernelError):
        launch.run("cpu")
    return report.findings


def ncu_figures(metrics: dict[str, int]) -> dict[str, int]:
    """FIGURES out of ncu's metrics; a figure without any of its metrics is left out."""
    return {
        name: sum(metrics.get(metric, 0) for metric in figure.metrics)
        for name, figure in FIGURES.items()
        if figure.metrics[0] in metrics
    }


def recorded_figures(launch: Launch, name: str = "counters") -> tuple[dict[str, int], str] | None:
    """FIGURES that were recorded for this very launch, and the caption of the record; None if there are none."""
    if name not in measured.recorded_names():
        return None
    record = measured.load(name)
    row = next((row for row in record.rows if row["launch"] == describe(launch)), None)
    return (ncu_figures(row["metrics"]), measured.caption(record)) if row else None  # type: ignore[arg-type]


def describe(launch: Launch) -> str:
    """A launch in one line, which tells launches apart by all that decides which addresses a kernel accesses."""
    place = " ".join([launch.source, *launch.options])
    arguments = ", ".join(map(_argument, launch.args))
    return f"{place}: {launch.kernel}<<<{launch.grid}, {launch.block}, {launch.shared_mem}>>>({arguments})"


def _argument(value: torch.Tensor | np.generic) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.dtype.is_floating_point:
        return text
    return f"{text}#{zlib.crc32(value.numpy().tobytes()):08x}"  # integers may be indices


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] != "replay":
        sys.exit("usage: python -m course_utils.nvidia.tools replay FILE [SECONDS]")
    replay(sys.argv[2], *map(int, sys.argv[3:]))
