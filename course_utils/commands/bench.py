"""`python -m course_utils bench SUBJECT`: measures a chapter's figures on this GPU, or shows the recorded ones.

A subject is a chapter, a pattern of sparse attention with its arguments as options, "emulator" for the speed of the CPU
emulator itself, or "counters" or "sanitizer" for what the emulator finds beside what NVIDIA's tools find. What is
measured is in `bench_gpu`, `bench_flash_v2`, `bench_sparse`, `bench_deepseek`, `bench_choosing`, `bench_emulator` and
`bench_counters`; here are the command line, the table and the plot.
"""

import argparse
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from course_utils import measured
from course_utils.bench import choosing as bench_choosing
from course_utils.bench import deepseek_sparse as bench_deepseek
from course_utils.bench import emulator as bench_emulator
from course_utils.bench import flash_attention_v2 as bench_flash_v2
from course_utils.bench import gpu as bench_gpu
from course_utils.bench import sparse_patterns as bench_sparse
from course_utils.bench.sparse_patterns import PATTERNS
from course_utils.costs import ceil_div
from course_utils.measured import Measurement, Row
from course_utils.nvidia import measure as bench_counters
from course_utils.nvidia import tools as nvidia_tools
from course_utils.nvidia import validation
from course_utils.patterns import Pattern

CHAPTERS: dict[str, Callable[[], list[Row]]] = {
    "00_start_here": bench_gpu.start_here,
    "01_attention_basics": bench_gpu.naive_steps,
    "02_flash_attention_minimal": bench_gpu.minimal_flash,
    "03_flash_attention_v2": bench_flash_v2.flash_v2_chapter,
    "04_sparse_patterns": bench_sparse.sparse_chapter,
    "05_deepseek_sparse": bench_deepseek.deepseek_chapter,
    "08_choosing": bench_choosing.choosing_chapter,
}
ALIASES = {  # an operator stands for its chapter
    "flash_attention_v2": "03_flash_attention_v2",
    "sparse_attention": "04_sparse_patterns",
    "deepseek": "05_deepseek_sparse",
    "window": "sliding_window",
}
# Subject: NVIDIA's program, and what it measures.
TOOLS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "counters": ("ncu", bench_counters.measure_counters),
    "sanitizer": ("compute-sanitizer", bench_counters.measure_sanitizer),
}
# What every pattern takes, and what only some do.
SIZES = {"batch": 1, "heads": 16, "head_dim": 128, "dtype": "float16", "backward": False}
ARGUMENTS = list(dict.fromkeys(name for of in PATTERNS.values() for name in inspect.signature(of).parameters))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench` to a command line."""
    subjects = [*CHAPTERS, *ALIASES, *PATTERNS, "emulator", *TOOLS]
    parser.add_argument("subject", choices=subjects, metavar="SUBJECT", help=f"what to measure: {', '.join(subjects)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw them (.png, .svg or .pdf); chapters and patterns"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="sanitizer only: also write docs/validation.md, with the counters"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep the figures in the course, for readers without a GPU; chapters and tools",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FOLDER",
        help="emulator only: run the prototype in FOLDER (emu.py) side by side",
    )
    sizes = parser.add_argument_group("patterns", "beside FlexAttention and dense attention; a pattern's own arguments")
    sizes.add_argument(
        "--seq-len",
        type=int,
        nargs="+",
        metavar="L",
        help="sequence lengths; default 16384, or what the pattern is for",
    )
    for name in ("batch", "heads", "head_dim"):
        sizes.add_argument(_option(name), type=int, metavar="N", help=f"default {SIZES[name]}")
    sizes.add_argument("--dtype", choices=["float16", "bfloat16"], help=f"default {SIZES['dtype']}")
    sizes.add_argument("--backward", action="store_true", default=None, help="time the backward pass")
    for name in ARGUMENTS:
        takers = [pattern for pattern, of in PATTERNS.items() if name in inspect.signature(of).parameters]
        many = "+" if name in bench_sparse.LISTS else None
        sizes.add_argument(_option(name), type=int, nargs=many, metavar="N", help=f"of {', '.join(takers)}")


def run(args: argparse.Namespace) -> int:
    """Carry out `bench` and return the exit status: 0, or 1 if the figures cannot be had on this machine."""
    args.subject = ALIASES.get(args.subject, args.subject)
    try:
        if args.subject in PATTERNS:
            return _run_pattern(args)
        for name in ("seq_len", *SIZES, *ARGUMENTS):
            if getattr(args, name) is not None:
                raise ValueError(f"{_option(name)} belongs to a pattern, such as `bench sliding_window`")
        if args.subject == "emulator":
            return _run_emulator(args)
        if args.subject in TOOLS:
            return _run_tools(args)
        return _run_chapter(args)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


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
    rows = [row for row in _parts(measurement.rows)[0] if row.get("median_ms") is not None]
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
                points = [(row["length"], row["median_ms"]) for row in chosen if row["name"] == label]
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


def _run_chapter(args: argparse.Namespace) -> int:
    if args.against:
        raise ValueError("--against belongs to `bench emulator`")
    command = f"python -m course_utils bench {args.subject}"
    if torch.cuda.is_available():
        measurement = measured.collect(args.subject, CHAPTERS[args.subject](), command)
        if args.record:
            print(f"recorded in {measured.write(measurement)}")
    elif args.record:
        raise RuntimeError("--record needs a GPU: only figures measured here can be recorded")
    else:
        measurement = measured.load(args.subject)
        print("This machine has no usable NVIDIA GPU. These are the recorded figures:\n")
    _show(measurement, args)
    return 0


def _show(measurement: Measurement, args: argparse.Namespace) -> None:
    """Prints the tables, and writes what --json and --plot ask for."""
    print("\n\n".join(map(table, _parts(measurement.rows))))
    print(f"\n{measured.caption(measurement)}")
    if args.json:
        measured.write(measurement, args.json)
    if args.plot:
        plot(measurement).savefig(args.plot)


def _run_pattern(args: argparse.Namespace) -> int:
    """Counts what a pattern keeps, and times it on a GPU; without one, shows what is recorded of patterns like it."""
    if args.record or args.against or args.markdown:
        raise ValueError("--record, --against and --markdown do not belong to patterns")
    pattern, lengths = _pattern(args), args.seq_len or [_own_length(args) or 16384]
    size = {name: default if getattr(args, name) is None else getattr(args, name) for name, default in SIZES.items()}
    for name, value in [*size.items(), *(("seq_len", length) for length in lengths)]:
        if type(value) is int and value < 1:
            raise ValueError(f"{_option(name)} is {value}; it must be at least 1")
    print(table(bench_sparse.counts(pattern, lengths, size["heads"], size["head_dim"], size["batch"])), end="\n\n")
    if torch.cuda.is_available():
        rows = [
            row
            for length in lengths
            for row in bench_sparse.race(
                pattern,
                (size["batch"], size["heads"], length, size["head_dim"]),
                dtype=getattr(torch, size["dtype"]),
                backward=size["backward"],
            )
        ]
        measurement = measured.collect(args.subject, rows, f"python -m course_utils bench {pattern.name}")
    else:
        measurement = measured.load("04_sparse_patterns")
        measurement = replace(measurement, rows=bench_sparse.of_pattern(measurement.rows, args.subject))
        if not measurement.rows:
            raise RuntimeError(f"this machine has no usable NVIDIA GPU, and no figures are recorded for {args.subject}")
        print(f"This machine has no usable NVIDIA GPU. These are the recorded figures of {args.subject}:\n")
    _show(measurement, args)
    return 0


def _pattern(args: argparse.Namespace) -> Pattern:
    """The pattern from its options.

    Raises:
        ValueError: an option that the pattern does not take, one that it needs, or a value that it refuses.
    """
    takes = inspect.signature(PATTERNS[args.subject]).parameters
    given = {name: getattr(args, name) for name in ARGUMENTS if getattr(args, name) is not None}
    options = ", ".join(map(_option, takes)) or "no options of its own"
    for name in given:
        if name not in takes:
            raise ValueError(f"{args.subject} does not take {_option(name)}; it takes {options}")
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in given:
            raise ValueError(f"{args.subject} needs {_option(name)}; it takes {options}")
    return PATTERNS[args.subject](**given)


def _own_length(args: argparse.Namespace) -> int | None:
    """The one length that a pattern with these options is for, or None."""
    if args.height:
        return args.height * args.width
    return sum(args.lengths) if args.lengths else len(args.parents) if args.parents else None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parts(rows: list[Row]) -> list[list[Row]]:
    """Rows of one `part` together; a chapter of one table has none."""
    return [[row for row in rows if row.get("part") == part] for part in dict.fromkeys(row.get("part") for row in rows)]


def _run_tools(args: argparse.Namespace) -> int:
    """Compares what was recorded with the emulator; with --record, only measures."""
    if args.against or args.plot:
        raise ValueError("--against belongs to `bench emulator`, and --plot to the chapters")
    if args.markdown and (args.record or args.subject != "sanitizer"):
        raise ValueError("--markdown belongs to `bench sanitizer` without --record")
    if args.markdown and not args.markdown.parent.is_dir():
        raise FileNotFoundError(f"--markdown {args.markdown}: there is no folder {args.markdown.parent}")
    program, measure = TOOLS[args.subject]
    if args.record:
        tool_version = nvidia_tools.version(program)
        measurement = measured.collect(args.subject, measure(), f"python -m course_utils bench {args.subject} --record")
        measurement.versions[program] = tool_version
        print(f"{len(measurement.rows)} rows recorded in {measured.write(measurement)}")
    else:
        measurement = measured.load(args.subject)
        if args.subject == "counters":
            print(table(validation.compare_counters(measurement.rows)))
        else:
            results = validation.verdicts(measurement.rows)
            print(f"{table(validation.sanitizer_table(results))}\n\n{validation.false_alarms(results)}")
            if args.markdown:
                args.markdown.write_text(validation.page(results), encoding="utf-8")
        print(f"\n{program} {measurement.versions[program]}: {measured.caption(measurement)}")
    if args.json:
        measured.write(measurement, args.json)
    return 0


def _run_emulator(args: argparse.Namespace) -> int:
    if args.plot or args.record:
        raise ValueError("--plot and --record belong to the chapters; `bench emulator` has --json and --against")
    result = bench_emulator.measure(args.against)
    print(table(result.rows))
    print(f"\n{result.machine}")
    if args.json:
        bench_emulator.write(result, args.json)
    return 0


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
