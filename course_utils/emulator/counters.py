"""How what a launch left becomes counters: one row for each source line, one for each argument."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from course_utils.emulator import trace_results as raw
from course_utils.emulator.memory import Array
from course_utils.emulator.profiler import AsyncRow, CounterRow, Counters, Footprint, Role
from course_utils.emulator.watching import LaunchTrace
from course_utils.toolchain.parameters import argument_label


def add_counters(counters: Counters, trace: LaunchTrace) -> None:
    """Adds what one launch left."""
    results, kernel, sources = trace.results, trace.kernel, trace.sources
    rows = _rows(trace)
    asynchronous, roles = _asynchronous(trace)
    touched = [
        (arrays[0].index, Footprint(kernel, _labels(arrays, kernel), size, seen.read, seen.written, seen.loaded))
        for (arrays, size), seen in zip(trace.memory.arrays(), results.touched, strict=False)
    ]
    counters.launches += 1
    counters.blocks += math.prod(trace.grid)
    counters.blocks_traced += results.blocks_traced
    counters.dropped += results.counters_dropped
    counters.exponentials += results.exponentials
    counters.beside_products += results.beside_products
    counters.most_in_flight = max(counters.most_in_flight, results.most_in_flight)
    counters.rows = _merged(CounterRow, [*counters.rows, *rows], FIGURES)
    counters.asynchronous = _merged(AsyncRow, [*counters.asynchronous, *asynchronous], ASYNC_FIGURES)
    counters.roles = _merged(Role, [*counters.roles, *roles], ("waits", "idle_turns"))
    counters.footprint += [footprint for _, footprint in sorted(touched, key=lambda item: item[0])]
    counters.sources.update({row.file: sources[row.file] for row in rows if row.file in sources})


def _labels(arrays: Sequence[Array], kernel: str = "") -> str:
    """The label of arguments that share memory."""
    return " = ".join(argument_label(array.index, array.name, kernel) for array in arrays)


def _rows(trace: LaunchTrace) -> list[CounterRow]:
    rows = []
    for c in trace.results.counters[: trace.results.counter_count]:
        place = trace.place(c.place)
        rows.append(
            CounterRow(
                kernel=trace.kernel,
                file=place[0] if place else "",
                line=place[1] if place else 0,
                source=trace.text(place) or "",
                space="shared" if c.is_shared else "global",
                operation=("load", "store", "atomic")[c.operation],
                requests=c.requests,
                sectors=c.sectors,
                ideal_sectors=c.ideal_sectors,
                wavefronts=c.wavefronts,
                ideal_wavefronts=c.ideal_wavefronts,
                bank_conflicts=max(0, c.wavefronts - c.ideal_wavefronts),
                bytes=c.bytes,
            )
        )
    return rows


FIGURES = ("requests", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts", "bank_conflicts", "bytes")


ASYNC_FIGURES = ("count", "flops", "global_bytes", "shared_bytes", "idle_turns")
OPERATIONS = ("wgmma", "copy in", "copy out", "copy between", "wait")


def _asynchronous(trace: LaunchTrace) -> tuple[list[AsyncRow], list[Role]]:
    """What lines of a kernel for sm_90a asked for, and the warps that wait at the same ones."""
    kernel = trace.kernel
    labels = [_labels(arrays) for arrays, _ in trace.memory.arrays()]
    rows, waits = [], []
    for c in trace.results.asynchronous[: trace.results.asynchronous_count]:
        place = trace.place(c.place)
        is_copy = c.kind in (raw.COPY_IN, raw.COPY_OUT) and c.which < len(labels)
        row = AsyncRow(
            kernel=kernel,
            file=place[0] if place else "",
            line=place[1] if place else 0,
            source=trace.text(place) or "",
            operation=OPERATIONS[c.kind],
            argument=labels[c.which] if is_copy else "",
            count=c.count,
            flops=c.flops,
            global_bytes=c.global_bytes,
            shared_bytes=c.shared_bytes,
            idle_turns=c.idle,
        )
        rows.append(row)
        if c.kind == raw.WAIT:
            waits.append((c.which, row))
    lines = {warp: tuple(sorted({row.line for other, row in waits if other == warp})) for warp, _ in waits}
    roles = []
    for where in dict.fromkeys(lines[warp] for warp in sorted(lines)):
        warps = tuple(warp for warp in sorted(lines) if lines[warp] == where)
        mine = [row for warp, row in waits if warp in warps]
        roles.append(Role(kernel, warps, where, sum(row.count for row in mine), sum(row.idle_turns for row in mine)))
    return rows, roles


Row = TypeVar("Row", CounterRow, AsyncRow, Role)


def _merged(kind: type[Row], rows: list[Row], figures: tuple[str, ...]) -> list[Row]:
    """One row for all that differ in figures alone, in the order of the source."""
    names = [one.name for one in fields(kind) if one.name not in figures]
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in names)
        before = merged.get(key)
        sums = {name: getattr(row, name) + getattr(before, name) for name in figures} if before else {}
        merged[key] = replace(row, **sums)
    return [merged[key] for key in sorted(merged)]
