"""Chapter 07's kernel with one of five lines taken out: what asynccheck says, and what NVIDIA's tools say."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace

import torch

from course_utils import measured, show
from course_utils.chapters.tensors import normal
from course_utils.cuda import KernelError, KernelSource, RawModule, read_kernel
from course_utils.emulator import configure, sanitize
from course_utils.emulator.sanitizer import TOOLS, Finding, SanitizerReport
from course_utils.launches.hopper import LADDER, Step, launch, ready
from course_utils.toolchain.source import with_headers

STEP: Step = replace(LADDER[-1], consumers={64: 2})  # the kernel whose lines are taken out
LENGTH = 300


@dataclass(frozen=True)
class Missing:
    """A line that is taken out. which: take the n-th such line, from 1 on; lesson: what the line is for; record: the
    mistake's name in `course_utils/measured/asynchronous.json`."""

    line: str
    lesson: str
    record: str
    which: int = 1


MISSING = {
    "A": Missing(
        "wait_until_full(shared.gate_K[next], next_parity);",
        "A product reads K as soon as it is started. Only the mbarrier says that the copy has come.",
        "wait_until_full(shared.gate_K[next]",
    ),
    "B": Missing(
        "wait_for_product<1>(S);",
        "S is in registers that a product in flight still writes.",
        "wait_for_product<1>(S)",
    ),
    "C": Missing(
        "publish_tile();",
        "Threads write O; the copy engine reads it by another way to memory, a proxy. The fence joins the two.",
        "publish_tile();",
    ),
    "D": Missing(
        "sync_threads(1 + w, 128);",
        "The copy engine may still read the tile of the item before. Its own thread has waited; the others must hear.",
        "sync_threads(1 + w, 128)",
    ),
    "E": Missing(
        "wgmma_fence();",
        "Threads have just written O and P to registers, from where the product takes both by itself.",
        "wgmma_fence();",
        which=2,
    ),
}


def source(name: str) -> KernelSource:
    """The last step without one line, its headers included. Raises KeyError for a name that is not in MISSING."""
    missing, original = MISSING[name], read_kernel(STEP.file)
    parts = with_headers(original).split(f"{missing.line}\n")
    before = f"{missing.line}\n".join(parts[: missing.which])
    return KernelSource(f"{before};\n" + f"{missing.line}\n".join(parts[missing.which :]), original.path, original.name)


@functools.cache
def found(name: str) -> tuple[SanitizerReport, bool]:
    """The sanitizer's report of a launch without that line on the emulator, and whether its output is right."""
    out, lse = torch.full((1, 3, LENGTH, 64), torch.nan, dtype=torch.float16), torch.full((1, 3, LENGTH), torch.nan)
    kernel = RawModule(code=source(name), options=STEP.options(64, torch.float16)).get_function(STEP.kernel)
    # One may not come to its end. With one block after the other it always ends at the same place.
    with configure(threads=1), sanitize() as report, contextlib.suppress(KernelError):
        ready(STEP, *_inputs(), out, lse, kernel=kernel)()
    return report, torch.equal(out, _right())


def _inputs() -> tuple[torch.Tensor, ...]:
    return tuple(normal(1, 3, LENGTH, 64, seed=seed).cpu() for seed in range(3))


@functools.cache
def _right() -> torch.Tensor:
    """O of the kernel with all its lines."""
    return launch(STEP, *_inputs())[0]


def first_finding(name: str) -> Finding:
    """The finding of a launch without that line whose second event came first; others may follow from it."""
    findings = [finding for finding in found(name)[0].findings if finding.events]
    return min(findings, key=lambda finding: finding.events[1].step)


def show_missing(name: str) -> None:
    """Shows the first finding, whether the numbers are wrong, and what the line is for."""
    print(f"{name}: the numbers are {'right' if found(name)[1] else 'wrong'} on the emulator. Its finding:\n")
    print(str(first_finding(name)).strip())
    print(f"\nTaken out: {MISSING[name].line}  {MISSING[name].lesson}")


def verdicts() -> int:
    """Shows what each of NVIDIA's tools says of the five kernels and of the whole one on a GPU, as recorded, and what
    asynccheck says here. Returns in how many runs of the five a tool says something that it does not say of the whole
    kernel."""
    recorded = measured.load("asynchronous")

    def said_of(mistake: str) -> dict[str, str]:
        (row,) = recorded.select(kernel="forward", mistake=mistake)
        return {tool: "silent" if row[tool] == "-" else str(row[tool]).replace("kernel:", "") for tool in TOOLS}

    whole = said_of("none")
    rows = [{"": "whole"} | whole | {"the emulator": "silent"}]
    for name, missing in MISSING.items():
        finding = first_finding(name)
        said = said_of(f"removal of `{missing.record}`")
        rows.append({"": name} | said | {"the emulator": f"{finding.tool}, line {finding.line}"})
    show.table(rows, f"compute-sanitizer: {measured.caption(recorded)}", folded=True)
    of_the_mistake = sum(row[tool] != whole[tool] for row in rows[1:] for tool in TOOLS)
    runs = len(MISSING) * len(TOOLS)
    tools = f"NVIDIA's {len(TOOLS)} tools"
    print(f"{tools} on {len(MISSING)} kernels: {of_the_mistake} of {runs} runs tell them from the whole")
    return of_the_mistake
