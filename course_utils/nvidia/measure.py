"""Records what NVIDIA's tools say of the course's launches: `bench counters` and `bench sanitizer`.

On a GPU, ncu counts the launches of `counter_cases` and compute-sanitizer checks the launches of `sanitizer_cases`; the
results are kept with the course. `validation` compares them with the emulator's.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from tqdm import tqdm

from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator.sanitizer import TOOLS
from course_utils.launches import Launch
from course_utils.launches.broken import BROKEN
from course_utils.launches.chapters import course_launches, hard_launches, large_launches
from course_utils.launches.micro import micro_launches
from course_utils.measured import Row
from course_utils.nvidia import tools
from course_utils.nvidia.tools import SanitizerRun, ToolError

NCU_LAUNCHES = 48  # launches that one ncu process counts: a failure loses all of them, and a start costs seconds
NCU_SECONDS = 90  # for each of these processes
NCU_BUDGET = 145  # seconds after which no further one is begun
SANITIZER_PROCESSES = 14  # at a time, on one GPU
SANITIZER_LAUNCHES = 8  # of right kernels that share a process: most of a process's time is its start
SANITIZER_BUDGET = 500  # seconds after which no further launch is begun
# Micro-kernels that the sanitizers see too: one of each kind.
CLEAN_MICRO = ("ldmatrix_x4 swizzled", "copy_async 16 cg, pitch 1", "add_shared_int neighbours", "divergent_shared")


@dataclass(frozen=True)
class Case:
    """A launch with a name of its own. group: "micro" (one access pattern), "course", or "large" (for HBM bytes)."""

    name: str
    group: str
    launch: Launch


# ---- ncu


def counter_cases() -> list[Case]:
    """Every launch whose counters are recorded: uniform ones, and large cold ones for the bytes from and to HBM."""
    groups = {"micro": micro_launches(), "course": course_launches(), "large": large_launches()}
    return [Case(name, group, launch) for group, launches in groups.items() for name, launch in launches.items()]


def measure_counters() -> list[Row]:
    """ncu's metrics of every case, on this machine's GPU. Cases whose ncu process failed are named and left out."""
    rows: list[Row] = []
    groups = [[case for case in counter_cases() if case.group == group] for group in ("course", "large", "micro")]
    parts = [group[start : start + NCU_LAUNCHES] for group in groups for start in range(0, len(group), NCU_LAUNCHES)]
    stop = time.monotonic() + NCU_BUDGET
    for part in tqdm(parts, desc="ncu"):
        try:
            if time.monotonic() > stop:
                raise ToolError(f"the {NCU_BUDGET} seconds for all of them are over")
            counted = tools.run_ncu([case.launch for case in part], timeout=NCU_SECONDS)
        except ToolError as error:
            tqdm.write(f"{part[0].name} ... {part[-1].name} are left out: {error}")
        else:
            rows += [_counter_row(case, metrics) for case, metrics in zip(part, counted, strict=True)]
    order = {case.name: n for n, case in enumerate(counter_cases())}
    return sorted(rows, key=lambda row: order[row["name"]])


def _counter_row(case: Case, metrics: dict[str, int]) -> Row:
    read, written = compulsory_bytes(case.launch)
    return {
        "name": case.name,
        "group": case.group,
        "launch": case.launch.describe(),
        "bytes_only_read": read,
        "bytes_written": written,
        "metrics": metrics,
    }


def compulsory_bytes(launch: Launch) -> tuple[int, int]:
    """Bytes of the tensors that a launch's kernel can only read, and of the tensors that it may write."""
    parameters = RawModule(code=read_kernel(launch.source)).get_function(launch.kernel).parameters
    tensors = [(arg, p) for arg, p in zip(launch.args, parameters, strict=True) if isinstance(arg, torch.Tensor)]
    read = sum(tensor.nbytes for tensor, parameter in tensors if parameter.const)
    return read, sum(tensor.nbytes for tensor, _ in tensors) - read


# ---- compute-sanitizer


@dataclass(frozen=True)
class SanitizerCase:
    """A launch for the sanitizers. state: "broken", "mended" or "clean"; tool: what names the mistake, if anything."""

    name: str
    state: str
    launch: Launch
    tool: str | None = None

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools to run it under: a mended kernel only under the tool that named the mistake."""
        return (self.tool,) if self.state == "mended" and self.tool in TOOLS else TOOLS


def sanitizer_cases() -> list[SanitizerCase]:
    """The broken kernels, the same kernels mended, and right kernels of the course, of every kind."""
    micro = micro_launches()
    clean = course_launches() | {name: micro[name] for name in CLEAN_MICRO} | hard_launches()
    return [
        *(SanitizerCase(broken.name, "broken", broken.launch(), broken.tool) for broken in BROKEN.values()),
        *(SanitizerCase(broken.name, "mended", broken.mended(), broken.tool) for broken in BROKEN.values()),
        *(SanitizerCase(name, "clean", launch) for name, launch in clean.items()),
    ]


def measure_sanitizer() -> list[Row]:
    """compute-sanitizer's findings for every case and tool, on this machine's GPU.

    The tool that should find a defect comes first; runs that have not begun after SANITIZER_BUDGET seconds are left
    out. Right kernels share a process; where anything is found there, each is run again alone.
    """
    jobs = [(case, tool) for case in sanitizer_cases() for tool in case.tools]
    broken = [[job] for job in jobs if job[0].state == "broken"]
    groups = sorted(broken, key=lambda group: group[0][0].tool != group[0][1])
    for of_tool in TOOLS:
        right = [(case, tool) for case, tool in jobs if case.state != "broken" and tool == of_tool]
        groups += [right[start : start + SANITIZER_LAUNCHES] for start in range(0, len(right), SANITIZER_LAUNCHES)]
    stop = time.monotonic() + SANITIZER_BUDGET
    rows: list[Row] = []
    with ThreadPoolExecutor(SANITIZER_PROCESSES) as pool:
        running = [pool.submit(_sanitizer_rows, group, stop) for group in groups]
        for done in tqdm(as_completed(running), total=len(running), desc="compute-sanitizer", mininterval=5):
            rows += done.result()
    if len(rows) < len(jobs):
        tqdm.write(f"{len(jobs) - len(rows)} of {len(jobs)} runs failed or had not begun after {SANITIZER_BUDGET} s")
    order = {(case.name, case.state, tool): n for n, (case, tool) in enumerate(jobs)}
    return sorted(rows, key=lambda row: order[row["name"], row["state"], row["tool"]])


def _sanitizer_rows(jobs: list[tuple[SanitizerCase, str]], stop: float) -> list[Row]:
    """The rows of cases, all under one tool, but for those that fail or do not begin before `stop`."""
    if time.monotonic() > stop:
        return []
    if len(jobs) > 1 and tools.compute_sanitizer_is_silent([case.launch for case, _ in jobs], jobs[0][1]):
        return [_sanitizer_row(case, tool, SanitizerRun([], "", "")) for case, tool in jobs]
    rows = []
    for case, tool in jobs:
        try:
            rows.append(_sanitizer_row(case, tool, tools.run_compute_sanitizer(case.launch, tool)))
        except ToolError as error:
            tqdm.write(str(error))
    return rows


def _sanitizer_row(case: SanitizerCase, tool: str, run: SanitizerRun) -> Row:
    return {
        "name": case.name,
        "state": case.state,
        "tool": tool,
        "failure": run.failure,
        "findings": [
            {
                "message": finding.message,
                "kernel": finding.kernel,
                "line": finding.line,
                "other_line": finding.other_line,
                "block": finding.block,
                "thread": finding.thread,
                "count": finding.count,
            }
            for finding in run.findings
        ],
    }
