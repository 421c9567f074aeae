"""`python -m course_utils bench SUBJECT`: measures a chapter's figures on this GPU, or shows the recorded ones.

A subject is a chapter, a pattern of sparse attention with its arguments as options, "host" for the host's time of a
call, "compiled_step" for a training step by torch.compile, or "counters" or "sanitizer" for what the emulator finds
beside what NVIDIA's tools find. What is measured is in `course_utils.bench`; here are the command line, the tables and
the plot.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure

from course_utils import measured
from course_utils.bench import one_pattern
from course_utils.bench.subjects import ALIASES, SUBJECTS, Subject, parts
from course_utils.costs import ceil_div
from course_utils.measured import Measurement, Row
from course_utils.nvidia import tools

FILES = {
    "json": "also write the figures as JSON",
    "plot": "also draw them (.png, .svg or .pdf)",
    "markdown": "also write docs/validation.md, with the counters",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench` to a command line."""
    subjects = [*SUBJECTS, *ALIASES]
    parser.add_argument("subject", choices=subjects, metavar="SUBJECT", help=f"what to measure: {', '.join(subjects)}")

    def add(add_argument: Callable[..., argparse.Action], name: str, text: str, **how: object) -> None:
        add_argument(_option(name), default=None, help=f"{text}; of {_takers(name)}", **how)

    for name, text in FILES.items():
        add(parser.add_argument, name, text, type=Path, metavar="FILE")
    add(parser.add_argument, "record", "keep the figures in the course, for readers without a GPU", action="store_true")
    sizes = parser.add_argument_group("patterns", "beside FlexAttention and dense attention; a pattern's own arguments")
    lengths = "sequence lengths; default 16384, or what the pattern is for"
    add(sizes.add_argument, "seq_len", lengths, type=int, nargs="+", metavar="L")
    for name in ("batch", "heads", "head_dim"):
        add(sizes.add_argument, name, f"default {one_pattern.SIZES[name]}", type=int, metavar="N")
    add(sizes.add_argument, "dtype", f"default {one_pattern.SIZES['dtype']}", choices=["float16", "bfloat16"])
    add(sizes.add_argument, "backward", "time the backward pass", action="store_true")
    for name in dict.fromkeys(name for kind in one_pattern.PATTERNS for name in one_pattern.arguments(kind)):
        nargs = "+" if name in one_pattern.LISTS else None
        add(sizes.add_argument, name, "an argument", type=int, nargs=nargs, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Carry out `bench` and return the exit status: 0, or 1 if the figures cannot be had on this machine."""
    name = ALIASES.get(args.subject, args.subject)
    given = {option: value for option, value in vars(args).items() if option in _OPTIONS and value is not None}
    try:
        _check(name, given)
        _run(name, given)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


_OPTIONS = dict.fromkeys(option for subject in SUBJECTS.values() for option in subject.takes)


def _check(name: str, given: dict[str, object]) -> None:
    """Raise ValueError for an option that the subject does not take, or one without which it cannot be."""
    takes = SUBJECTS[name].takes
    listed = f"it takes {', '.join(map(_option, takes))}"
    for option in given:
        if option not in takes:
            raise ValueError(f"{name} does not take {_option(option)}, an option of {_takers(option)}; {listed}")
    for option, is_needed in takes.items():
        if is_needed and option not in given:
            raise ValueError(f"{name} needs {_option(option)}; {listed}")
    if "markdown" in given:
        if "record" in given:
            raise ValueError("--markdown shows what is recorded, and --record only measures: one after the other")
        folder = given["markdown"].parent
        if not folder.is_dir():
            raise FileNotFoundError(f"--markdown {given['markdown']}: there is no folder {folder}")


def _run(name: str, given: dict[str, object]) -> None:
    """Measures or loads, prints the tables, and writes what --json, --plot and --markdown ask for."""
    subject = SUBJECTS[name]
    options = {option: value for option, value in given.items() if option not in (*FILES, "record")}
    if subject.count:
        print(table(subject.count(**options)), end="\n\n")
    measurement = _figures(name, subject, options, record="record" in given)
    if "record" in given:
        print(f"{len(measurement.rows)} rows recorded in {measured.write(measurement)}")
    if not (subject.program and "record" in given):
        view, origin = subject.view(measurement.rows), measured.caption(measurement)
        if subject.program:
            origin = f"{subject.program} {measurement.versions[subject.program]}: {origin}"
        print("\n\n".join([*map(table, view.tables), *filter(None, [view.note]), origin]))
        if "markdown" in given:
            given["markdown"].write_text(view.page, encoding="utf-8")
    if "json" in given:
        measured.write(measurement, given["json"])
    if "plot" in given:
        plot(measurement).savefig(given["plot"])


def _figures(name: str, subject: Subject, options: dict[str, object], *, record: bool) -> Measurement:
    """The figures of a subject: measured here where that can be, else the recorded ones, and it is said so."""
    command = " ".join(["python -m course_utils bench", name, *_words(options)])
    if subject.program:
        if not record:
            return subject.recorded()
        version = tools.version(subject.program)
        measurement = measured.collect(name, subject(options), f"{command} --record")
        measurement.versions[subject.program] = version
        return measurement
    if torch.cuda.is_available():
        return measured.collect(name, subject(options), command)
    if record:
        raise RuntimeError("--record needs a GPU: only figures measured here can be recorded")
    measurement = subject.recorded()
    print(f"This machine has no usable NVIDIA GPU. These are the recorded figures of {name}:\n")
    return measurement


def _words(options: dict[str, object]) -> list[str]:
    """Options as they are typed."""
    words: list[str] = []
    for name, value in options.items():
        words += [_option(name), *map(str, value if isinstance(value, list) else [] if value is True else [value])]
    return words


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _takers(option: str) -> str:
    """The subjects that take an option, or the first of them."""
    names = [name for name, subject in SUBJECTS.items() if option in subject.takes]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def table(rows: list[Row]) -> str:
    """Rows as aligned text: a column per key, in order of first appearance; numbers to the right, nothing for None."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(key)) for key in keys] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(keys, *cells, strict=True)]
    numeric = [all(isinstance(row.get(key), int | float | None) for row in rows) for key in keys]

    def line(texts: list[str]) -> str:
        parts = (t.rjust(w) if n else t.ljust(w) for t, w, n in zip(texts, widths, numeric, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(keys), line(["-" * width for width in widths]), *map(line, cells)])


def plot(measurement: Measurement) -> Figure:
    """Time against length, a line per implementation and a panel per pass, head dimension and mask, or as the rows say;
    or bars where there is no length. Of a chapter in several parts, the first."""
    rows = [row for row in parts(measurement.rows).tables[0] if row.get("median_ms") is not None]
    panels = list(dict.fromkeys(map(_panel, rows)))
    colours: dict[object, str] = {}  # the same in every panel
    for panel in panels:
        for n, name in enumerate(dict.fromkeys(row["name"] for row in rows if _panel(row) == panel)):
            colours.setdefault(name, f"C{n}")
    columns = min(len(panels), 4)
    lines = ceil_div(len(panels), columns)
    figure = Figure(figsize=(5.5 * columns, 4.5 * lines), layout="constrained")
    for axes, name in zip(figure.subplots(lines, columns, squeeze=False).flat, panels, strict=False):
        chosen = [row for row in rows if _panel(row) == name]
        if "length" in chosen[0]:
            for label in dict.fromkeys(row["name"] for row in chosen):
                points = [(row["length"], row["median_ms"]) for row in measured.select(chosen, name=label)]
                axes.plot(*zip(*points, strict=True), marker="o", label=label, color=colours[label])
            axes.set(xscale="log", yscale="log", xlabel="sequence length", ylabel="milliseconds (median)")
            axes.set_title(name, loc="left")
            axes.set_xscale("log", base=2)
            axes.legend(fontsize="small")
        else:
            axes.barh([row["name"] for row in chosen], [row["median_ms"] for row in chosen])
            axes.set(xlabel="milliseconds (median)")
            axes.invert_yaxis()
    figure.suptitle(f"{measurement.name}\n{measured.caption(measurement)}", fontsize="medium")
    return figure


def _panel(row: Row) -> str:
    words = [row["pattern"]] if "pattern" in row else []
    words += [row[key] for key in ("panel", "pass") if key in row]
    words += [f"d={row['head_dim']}"] if "head_dim" in row else []
    words += ["causal"] if row.get("is_causal") else []
    return ", ".join(map(str, words))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
