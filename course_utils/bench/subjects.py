"""Everything that `bench` can measure, by name: `rows = SUBJECTS[name](options)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_utils import measured
from course_utils.bench import (
    attention_basics,
    best_peers,
    choosing,
    compiled_step,
    deepseek_sparse,
    flash_attention_minimal,
    flash_attention_v2,
    held_out,
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
    program: the record can only be made with it, and is shown beside the emulator's figures.
    """

    measure: Callable[..., list[Row]]
    takes: dict[str, bool]
    recorded: Callable[[], Measurement]
    view: Callable[[list[Row]], View] = parts
    count: Callable[..., list[Row]] | None = None
    program: str | None = None

    def __call__(self, options: Mapping[str, object]) -> list[Row]:
        return self.measure(**options)


def _recorded(name: str, measure: Callable[[], list[Row]], *takes: str, **more: Any) -> Subject:
    """A subject whose figures are kept under its own name. takes: options besides json and record."""
    options = dict.fromkeys(("json", "record", *takes), False)
    return Subject(measure, options, functools.partial(measured.load, name), **more)


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


def _bottlenecks(rows: list[Row]) -> View:
    return View([bottlenecks.table(rows)])


def _without_moments(rows: list[Row]) -> View:
    return View([[{key: row[key] for key in row if key not in ("sites", "moments")} for row in rows]])


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
OTHERS: dict[str, Callable[[], list[Row]]] = {
    "best_peers": best_peers.best_peers,
    "model_softmax": model_softmax.model_softmax,
    "held_out": held_out.held_out,
    "host": host.host_times,
    "compiled_step": compiled_step.compiled_step,
    "hopper_ablations": hopper_ablations.hopper_ablations,
}
SUBJECTS: dict[str, Subject] = {
    **{name: _recorded(name, measure, "plot") for name, measure in CHAPTERS.items()},
    **{kind: _pattern(kind) for kind in one_pattern.PATTERNS},
    **{name: _recorded(name, measure) for name, measure in OTHERS.items()},
    "pipeline": _recorded("pipeline", pipeline.pipeline, view=_without_moments),
    "arithmetic": _recorded("arithmetic", arithmetic.measure_arithmetic, view=_arithmetic),
    "counters": _recorded("counters", nvidia.measure_counters, view=_counters, program="ncu"),
    "bottlenecks": _recorded("bottlenecks", bottlenecks.measure_bottlenecks, view=_bottlenecks, program="ncu"),
    "sanitizer": _recorded(
        "sanitizer", nvidia.measure_sanitizer, "markdown", view=_sanitizer, program="compute-sanitizer"
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
