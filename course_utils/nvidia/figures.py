"""The figures of a launch that the emulator and ncu both count: here and now, out of ncu's metrics, and as recorded."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from course_utils import measured
from course_utils.emulator import profile
from course_utils.launches import Launch
from course_utils.toolchain.errors import KernelError


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
# What `tools.run_ncu` asks for: totals over the GPU.
METRICS = [
    *dict.fromkeys(metric for figure in FIGURES.values() for metric in figure.metrics),
    "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld",  # for the example in docs/validation.md
    "dram__bytes_read",
    "dram__bytes_write",
]
# The metrics at L1, for the command line that a person would type.
SHOWN_METRICS = tuple(f"{name}.sum" for name in METRICS if name.startswith("l1tex"))


def emulated_figures(launch: Launch) -> dict[str, int]:
    """FIGURES of a launch as the emulator counts them, until the end of one that crashes or hangs."""
    with profile() as counters, contextlib.suppress(KernelError):
        launch.run("cpu")
    return {name: counters.total(f.figure, f.space, f.operation) for name, f in FIGURES.items()}


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
    rows = record.select(launch=launch.describe())
    return (ncu_figures(rows[0]["metrics"]), measured.caption(record)) if rows else None  # type: ignore[arg-type]
