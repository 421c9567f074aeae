"""python -m tests.nvidia.compute_sanitizer_verdicts: compute-sanitizer's verdicts on planted mistakes, on a Hopper GPU.

The mistakes are ones that the emulator's sanitizer finds and NVIDIA's tools may miss. For each, the lines that the
emulator's tools name and what each of NVIDIA's says are printed, and written to
course_utils/measured/compute_sanitizer_verdicts.json, of which docs/validation.md has a table. Without a GPU only the
emulator's are printed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from course_utils import measured
from course_utils.emulator import sanitize
from course_utils.emulator.sanitizer import TOOLS, Finding
from course_utils.launches import Launch
from course_utils.nvidia.tools import run_compute_sanitizer, why_unavailable
from course_utils.toolchain.source import INCLUDE

COMMAND = "python -m tests.nvidia.compute_sanitizer_verdicts"
KINDS = {  # kind -> blocks, threads, and the body of k(const float* in, float* out, int* flag)
    "an atomic on what nobody has written": (
        (1, 64),
        """
    __shared__ int seen;
    atomicAdd(&seen, 1);
    __syncthreads();
    out[threadIdx.x] = seen;""",
    ),
    "a fence for a barrier of the grid": (
        (4, 64),
        """
    atomicAdd(out, in[threadIdx.x]);
    __threadfence();
    out[1 + 64 * blockIdx.x + threadIdx.x] = in[threadIdx.x] / out[0];""",
    ),
    "a fence for a barrier of the block": (
        (1, 64),
        """
    out[threadIdx.x] = in[threadIdx.x];
    __threadfence();
    out[64 + threadIdx.x] = out[63 - threadIdx.x];""",
    ),
    "a flag without a fence": (
        (2, 1),
        """
    if (blockIdx.x == 0) {
        out[0] = in[0];
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        out[1] = out[0];
    }""",
    ),
    "warps that exchange through global memory": (
        (1, 64),
        """
    out[threadIdx.x] = in[threadIdx.x];
    out[64 + threadIdx.x] = out[63 - threadIdx.x];""",
    ),
    "lanes that exchange through global memory": (
        (1, 32),
        """
    out[threadIdx.x] = in[threadIdx.x];
    out[64 + threadIdx.x] = out[threadIdx.x ^ 1];""",
    ),
    "lanes that exchange through a variable": (
        (1, 32),
        """
    exchange[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = exchange[threadIdx.x ^ 1];""",
    ),
    "a bulk load past the end": (
        (1, 32),
        """
    __shared__ alignas(16) float s[64];
    __shared__ Mbarrier bar;
    if (threadIdx.x) return;
    initialize(&bar, 1);
    publish_barriers();
    arrive_expecting(&bar, 256);
    load_bytes(s, in + 480, 256, &bar);
    wait_for(&bar, 0);
    out[0] = s[63];""",
    ),
    "a bulk store past the end": (
        (1, 32),
        """
    __shared__ alignas(16) float s[64];
    if (threadIdx.x) return;
    for (int i = 0; i < 64; i++) s[i] = i;
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group;"
                 "cp.async.bulk.wait_group 0;"
                 :: "l"(out + 480), "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");""",
    ),
    "a prefetch past the end": ((1, 1), """\n    asm volatile("prefetch.global.L2 [%0];" :: "l"(in + 600));"""),
}


def launch_of(kind: str, folder: Path) -> Launch:
    (blocks, threads), body = KINDS[kind]
    hopper = "Mbarrier" in body or "bulk" in body
    head = f'// arch: sm_90a only\n#include "{INCLUDE}/copy_engine.cuh"' if hopper else "__device__ float exchange[32];"
    file = folder / f"{kind.replace(' ', '_')}.cu"
    parameters = "const float* in, float* out, int* flag"
    file.write_text(f'{head}\nextern "C" __global__ void k({parameters}) {{{body}\n}}\n', encoding="utf-8")
    args = torch.arange(512.0), torch.zeros(512), torch.zeros(1, dtype=torch.int32)
    return Launch(str(file), "k", (blocks,), (threads,), args)


def lines(findings: list[Finding], file: str) -> str:
    """The lines of the source that the findings name; "-" for none."""
    text = Path(file).read_text(encoding="utf-8").splitlines()
    places = dict.fromkeys(f.line for f in findings)
    return ", ".join("?" if n is None or n > len(text) else f"`{text[n - 1].strip()}`" for n in places) or "-"


def row(kind: str, folder: Path) -> measured.Row:
    """What our tools say of a mistake, and where there is a GPU what each of NVIDIA's says."""
    launch = launch_of(kind, folder)
    with sanitize() as report:
        launch.run()
    (tool,) = {f.tool for f in report.findings}
    found: measured.Row = {"mistake": kind, "ours": f"{tool}: {lines(report.findings, launch.source)}"}
    for tool in () if why_unavailable("compute-sanitizer") else TOOLS:
        run = run_compute_sanitizer(launch, tool)
        found[tool] = run.failure or lines(run.findings, launch.source)
    return found


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            rows.append(row(kind, Path(folder)))
            print(*(f"{name}: {said}" for name, said in rows[-1].items()), sep="\n  ", flush=True)
    if why := why_unavailable("compute-sanitizer"):
        print(why)
    else:
        measured.save("compute_sanitizer_verdicts", rows, COMMAND)


if __name__ == "__main__":
    main()
