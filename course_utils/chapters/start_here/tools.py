"""Chapter 00 on tools: the sanitizer's findings, the profiler's counters, and ncu's beside them."""

from __future__ import annotations

import contextlib

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import display

from course_utils import emulator, measured, nvidia, plots, show
from course_utils.emulator.profiler import Counters
from course_utils.launches import Launch
from course_utils.launches.broken import BROKEN, BrokenKernel
from course_utils.launches.chapters import course_launches
from course_utils.toolchain.errors import KernelError

TRANSPOSES = ("transpose_naive", "transpose_tiled", "transpose_padded")


# ---- section 10: findings


def run_plainly(broken: BrokenKernel) -> None:
    """Runs a kernel that may store past the end of an array without a tool, and prints what one would see."""
    try:
        scores, top = broken.launch().run()
        print("the 4 largest scores are right:", torch.equal(top, scores.topk(4).values))
    except KernelError as error:
        print(error)


def mistakes_to_try(shown: tuple[str, ...]) -> None:
    """Shows the broken kernels of chapter 00 except `shown`, and one of chapter 02, by what one sees without a tool."""
    found = [broken for broken in BROKEN.values() if "00_start_here/broken" in broken.launch().source]
    found = [broken for broken in [*found, BROKEN["wrong_stride"]] if broken.name not in shown]
    show.table([{"name": broken.name, "what one sees without a tool": broken.symptom} for broken in found])


def find_and_mend(broken: BrokenKernel) -> None:
    """Shows what the sanitizer says of a broken kernel, its lesson, and what it says of the mended kernel."""
    with emulator.sanitize() as report, contextlib.suppress(KernelError):  # a deadlock is an error, too
        broken.launch().run()
    with emulator.sanitize() as mended:
        broken.mended().run()
    display(report)
    print(f"{broken.lesson}\nmended: {mended}")


# ---- section 11: counters


def counted_transposes() -> dict[str, Counters]:
    """The memory counters of the three transposes of 128 × 128 floats, by name."""
    launches = course_launches()
    counted = {}
    for name in TRANSPOSES:
        with emulator.profile() as counted[name]:
            launches[name].run()
    return counted


def sectors_per_store(counted: Counters) -> float:
    """Sectors per store to global memory."""
    return counted.total("sectors", "global", "store") / counted.total("requests", "global", "store")


def count_stores(counted: Counters) -> float:
    """Sectors per store to global memory. Prints the counters behind the figure."""
    requests, sectors = (counted.total(what, "global", "store") for what in ("requests", "sectors"))
    print(f"{requests:,} store requests touch {sectors:,} sectors")
    return sectors_per_store(counted)


def conflicts_per_load(counted: Counters) -> float:
    """Bank conflicts per load from shared memory; 0 without loads."""
    return counted.total("bank_conflicts", "shared", "load") / max(1, counted.total("requests", "shared", "load"))


def compare_transposes(counted: dict[str, Counters]) -> None:
    """Draws sectors per store and bank conflicts per load of all three."""
    rows = [
        {
            "kernel": name,
            "sectors per store": sectors_per_store(one),
            "conflicts per shared load": conflicts_per_load(one),
        }
        for name, one in counted.items()
    ]
    show.table(rows)


def compare_loads() -> None:
    """Shows sectors of a load by stride: by hand, by the emulator, and by ncu."""
    words, out, lines = torch.zeros(32 * 1024 + 8), torch.zeros(1024), []
    for stride in (1, 2, 4, 8, 32, 0):
        arguments = words, out, np.int32(stride), np.int32(0)
        launch = Launch("00_start_here/micro/global_loads.cu", "load_float", (4,), (256,), arguments)
        theirs, taken = nvidia.recorded_figures(launch)
        lines.append({"stride": stride, "by hand": len({lane * stride // 8 for lane in range(32)})})
        for who, figures in (("emulator", nvidia.emulated_figures(launch)), ("ncu", theirs)):
            lines[-1][who] = figures["global load sectors"] / figures["global load requests"]
    agree = all(line["by hand"] == line["emulator"] == line["ncu"] for line in lines)
    print(f"{len(lines)} strides; by hand, emulator and ncu agree: {agree}")
    show.table(lines, f"sectors per request; ncu: {taken}", folded=True)


def compare_with_nvidia(name: str) -> None:
    """Shows a kernel's counters and findings by the emulator and by NVIDIA's tools, measured here or recorded."""
    both = nvidia.side_by_side(course_launches()[name])
    print(both.note)
    show.table(both.counters, "emulator and NVIDIA's tools", folded=True)


def ncu_command(name: str) -> str:
    """The ncu command line for three of the counters."""
    names = "global store requests", "global store sectors", "shared load wavefronts"
    metrics = [f"{metric}.sum" for one in names for metric in nvidia.FIGURES[one].metrics]
    return nvidia.ncu_command(course_launches()[name], metrics)


# ---- section 12: what silence does not prove


def bytes_of_products() -> None:
    """Draws the bytes that two matrix products request, touch, and get from HBM."""
    record = measured.load("counters")
    from_hbm = {line["name"]: line["metrics"]["dram__bytes_read"] for line in record.rows}  # cold caches
    launches, lines = course_launches(), []
    for name in ("matmul_naive", "matmul_tiled"):
        with emulator.profile() as counters:
            launches[name].run()
        requested = counters.total("bytes", "global", "load")
        footprint = sum(argument.bytes_read for argument in counters.footprint)
        lines.append({"kernel": name, "requested": requested, "footprint": footprint, "HBM": from_hbm[name]})
    kinds = ("requested", "footprint", "HBM")
    groups = {line["kernel"]: {kind: line[kind] / 1e6 for kind in kinds} for line in lines}
    caption = f"bytes read; HBM: measured by ncu on {measured.caption(record)}"
    plots.grouped_bars(groups, "MB read", colours=(plots.SKY, plots.BLUE, plots.ORANGE)).set_title(caption, fontsize=9)
    plt.show()
    show.table(lines, caption, folded=True)
