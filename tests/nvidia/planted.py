"""python -m tests.nvidia.planted: compute-sanitizer on the planted mistakes of kernels for sm_90a, on a Hopper GPU.

Each tool runs a process for each kernel, and a build of it for each mistake. Those are left out that wait for ever or
meet an instruction that the GPU refuses: they end a process whatever tool watches. Writes
course_utils/measured/asynchronous.json, of which docs/validation.md has a table.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from course_utils import cuda, measured
from course_utils.cuda import KernelSource, RawModule
from course_utils.emulator.sanitizer import TOOLS
from tests.helpers.one_change import NONE
from tests.helpers.planted import KERNELS, PLANTED, Planted

COMMAND = "python -m tests.nvidia.planted"
ENDS_THE_PROCESS = {7, 8, 10, 12, 14}  # kinds: bytes, arrivals, parts of a warpgroup, registers, deadlocks
MESSAGES = ("was not initialised", "a multiple of", "has exited")  # of others that do
SECONDS = 20  # without a line, before a process counts as hanging
START_SECONDS = 120  # of its start, which compiles


def chosen() -> list[Planted]:
    """Those that run to their end."""
    return [
        one
        for one in PLANTED
        if one.kind not in ENDS_THE_PROCESS and not any(message in one.message for message in MESSAGES)
    ]


def number_of(one: Planted) -> int:
    return KERNELS[one.kernel]().change(one.statement, one.what).number


# ---- the process that is watched


def launch_all(kernel: str, numbers: list[int]) -> None:
    """Launches a kernel with one change after the other, and says so."""
    cuda.refuse_serialized = lambda *_: None  # they are broken on purpose
    torch.set_default_device("cuda")
    plain = torch.Generator
    torch.Generator = lambda: plain("cuda")  # type: ignore[misc]
    watched = KERNELS[kernel]()
    original, options = watched.module.code, watched.module.options
    for number in numbers:
        # ptxas 13.0 crashes on a kernel with all changes to choose from.
        text = str(original).replace(f"__constant__ int change = {NONE};", f"constexpr int change = {number};")
        module = RawModule(code=KernelSource(text, original.path, original.name), options=options)
        module.compile("cuda")
        watched.module.__dict__.update(module.__dict__)  # the launches hold it
        print(f"@begin {number}", flush=True)
        for launch in watched.launches:
            launch()
            torch.cuda.synchronize()
        print(f"@end {number}", flush=True)


# ---- the watcher


def said_by(tool: str, kernel: str, numbers: list[int]) -> dict[int, list[str] | str]:
    """For each change the tool's lines; or, if the process did not come to its end, why."""
    found: dict[int, list[str] | str] = {}
    while left := [number for number in numbers if number not in found]:
        command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--print-limit", "50"]
        command += [sys.executable, "-m", "tests.nvidia.planted", kernel, json.dumps(left)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        current, lines = left[0], []
        try:
            for line in _lines(process):
                if line.startswith("@begin "):
                    current, lines = int(line.split()[1]), []
                elif line.startswith("@end "):
                    found[current] = lines
                elif line.startswith("========= "):
                    lines.append(line.removeprefix("========= "))
            reason = "the process ended"
        except TimeoutError:
            reason = "hangs"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        found.setdefault(current, reason)
    return found


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """What it prints; TimeoutError if it goes on printing nothing."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    seconds = START_SECONDS
    while True:
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            return
        seconds = SECONDS if line.startswith("@") else seconds
        yield line


def words(said: list[str] | str) -> str:
    """What a tool says of a launch: the lines that it names; "-" for nothing."""
    if isinstance(said, str):
        return said
    places = [re.search(r"in ([\w.]+\.cuh?):(\d+)", line) for line in said]  # not those of the host
    lines = sorted({f"{_file(place[1])}:{place[2]}" for place in places if place})
    return ", ".join(lines) or ("found, without a line" if any("Error" in line for line in said) else "-")


def _file(name: str) -> str:
    """CuPy calls a kernel by its hash."""
    return "kernel" if name.endswith(".cubin.cu") else name


def rows(said: dict[tuple[str, str], dict[int, list[str] | str]]) -> list[measured.Row]:
    """A row for each kernel as it is, and for each planted mistake. said: by tool and kernel."""

    def verdicts(kernel: str, number: int) -> measured.Row:
        return {tool: words(said[tool, kernel][number]) for tool in TOOLS}

    found: list[measured.Row] = []
    for kernel in dict.fromkeys(one.kernel for one in chosen()):
        found.append({"kernel": kernel, "mistake": "none", "ours": "-"} | verdicts(kernel, NONE))
    for one in chosen():
        line, statement = KERNELS[one.kernel]().line(one.line), one.statement.partition(" #")[0]
        row: measured.Row = {"kernel": one.kernel, "mistake": f"{one.what} of `{statement}`"}
        found.append(row | {"ours": f"{one.tool} {line}"} | verdicts(one.kernel, number_of(one)))
    return found


def main() -> None:
    jobs = {one.kernel: [NONE] for one in chosen()}
    for one in chosen():
        jobs[one.kernel].append(number_of(one))
    pairs = [(tool, kernel) for tool in TOOLS for kernel in jobs]
    with ThreadPoolExecutor(len(pairs)) as pool:
        said = pool.map(lambda pair: said_by(*pair, list(dict.fromkeys(jobs[pair[1]]))), pairs)
        everything = dict(zip(pairs, said, strict=True))
    measured.save("asynchronous", rows(everything), COMMAND)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        launch_all(sys.argv[1], json.loads(sys.argv[2]))
    else:
        main()
