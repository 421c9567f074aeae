"""Everything that `bench` can measure, by name: `rows = SUBJECTS[name](options)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from course_utils import measured
from course_utils.bench import (
    attention_basics,
    best_peers,
    choosing,
    compiled_step,
    deepseek_sparse,
    emulator,
    flash_attention_minimal,
    flash_attention_v2,
    hopper,
    hopper_ablations,
    host,
    model_softmax,
    one_pattern,
    pipeline,
    serving,
    sparse_patterns,
    start_here,
)
from course_utils.measured import Measurement, Row
from course_utils.nvidia import arithmetic, bottlenecks, validation
from course_utils.nvidia import measure as nvidia


class View(NamedTuple):
    """The view of rows: tables, a line below them, and the page that --markdown writes."""

    tables: list[list[Row]]
    note: str = ""
    page: str = ""


def parts(rows: list[Row]) -> View:
    """Rows of one `part` together; where they have none, one table."""
    names = dict.fromkeys(row.get("part") for row in rows)
    return View([[row for row in rows if row.get("part") == name] for name in names])


@dataclass(frozen=True)
class Subject:
    """One subject. Called with options by name, it measures here and returns rows.

    measure: takes the options as keyword arguments. takes: the names of the options, the command's and its own; True if
    required. recorded: the recorded figures, for a machine that cannot measure. view: the view of its rows. count:
    figures that need no measurement, shown first; takes the options as keyword arguments. program: NVIDIA's measuring
    program: the record can only be made with it, and is shown beside the emulator's figures. machine: names the
    machine, for figures that need no GPU; None: they need one.
    """

    measure: Callable[..., list[Row]]
    takes: dict[str, bool]
    recorded: Callable[[], Measurement] | None = None
    view: Callable[[list[Row]], View] = parts
    count: Callable[..., list[Row]] | None = None
    program: str | None = None
    machine: Callable[[], str] | None = None

    def __call__(self, options: Mapping[str, object]) -> list[Row]:
        return self.measure(**options)


def _chapter(name: str, measure: Callable[[], list[Row]]) -> Subject:
    takes = dict.fromkeys(("json", "plot", "record"), False)
    return Subject(measure, takes, functools.partial(measured.load, name))


def _pattern(kind: str) -> Subject:
    takes = one_pattern.arguments(kind) | dict.fromkeys((*one_pattern.SIZES, "json", "plot"), False)
    return Subject(
        functools.partial(one_pattern.measure, kind),
        takes,
        functools.partial(one_pattern.recorded, kind),
        count=functools.partial(one_pattern.count, kind),
    )


def _counters(rows: list[Row]) -> View:
    return View([validation.compare_counters(rows)])


def _sanitizer(rows: list[Row]) -> View:
    results = validation.verdicts(rows)
    return View([validation.sanitizer_table(results)], validation.false_alarms(results), validation.page(results))


def _arithmetic(rows: list[Row]) -> View:
    return View([arithmetic.summary(rows)])


CHAPTERS: dict[str, Callable[[], list[Row]]] = {
    "00_start_here": start_here.start_here,
    "01_attention_basics": attention_basics.naive_steps,
    "02_flash_attention_minimal": flash_attention_minimal.minimal_flash,
    "03_flash_attention_v2": flash_attention_v2.flash_v2_chapter,
    "04_sparse_patterns": sparse_patterns.sparse_chapter,
    "05_deepseek_sparse": deepseek_sparse.deepseek_chapter,
    "06_serving": serving.serving_chapter,
    "07_hopper": hopper.hopper_chapter,
    "08_choosing": choosing.choosing_chapter,
}
SUBJECTS: dict[str, Subject] = {
    **{name: _chapter(name, measure) for name, measure in CHAPTERS.items()},
    **{kind: _pattern(kind) for kind in one_pattern.PATTERNS},
    "best_peers": Subject(
        best_peers.best_peers, dict.fromkeys(("json", "record"), False), functools.partial(measured.load, "best_peers")
    ),
    "model_softmax": Subject(
        model_softmax.model_softmax,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "model_softmax"),
    ),
    "host": Subject(
        host.host_times, dict.fromkeys(("json", "record"), False), functools.partial(measured.load, "host")
    ),
    "compiled_step": Subject(
        compiled_step.compiled_step,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "compiled_step"),
    ),
    "pipeline": Subject(
        pipeline.pipeline,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "pipeline"),
        lambda rows: View([[{key: row[key] for key in row if key not in ("sites", "moments")} for row in rows]]),
    ),
    "hopper_ablations": Subject(
        hopper_ablations.hopper_ablations,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "hopper_ablations"),
    ),
    "emulator": Subject(emulator.measure, {"json": False}, machine=emulator.machine),
    "counters": Subject(
        nvidia.measure_counters,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "counters"),
        _counters,
        program="ncu",
    ),
    "bottlenecks": Subject(
        bottlenecks.measure_bottlenecks,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "bottlenecks"),
        lambda rows: View([bottlenecks.table(rows)]),
        program="ncu",
    ),
    "arithmetic": Subject(
        arithmetic.measure_arithmetic,
        dict.fromkeys(("json", "record"), False),
        functools.partial(measured.load, "arithmetic"),
        _arithmetic,
    ),
    "sanitizer": Subject(
        nvidia.measure_sanitizer,
        dict.fromkeys(("json", "record", "markdown"), False),
        functools.partial(measured.load, "sanitizer"),
        _sanitizer,
        program="compute-sanitizer",
    ),
}
ALIASES = {  # an operator stands for its chapter
    "flash_attention_v2": "03_flash_attention_v2",
    "sparse_attention": "04_sparse_patterns",
    "deepseek": "05_deepseek_sparse",
    "decode_attention": "06_serving",
    "flash_attention_hopper": "07_hopper",
    "window": "sliding_window",
}
