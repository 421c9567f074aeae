"""A table or plot that shows the time of a kernel of ours also shows the fastest other way that was recorded.

What a cell shows is read from its saved output (tables) or drawn again (plots); what computes the same is said by
`SUBJECTS`, one for each recording. A chapter without a subject is in `EXCEPTIONS`, with the reason.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import nbformat
import pytest

from course_utils import measured
from course_utils.course import chapter_notebooks
from course_utils.measured import Row
from tests.helpers.all_of import all_of
from tests.helpers.notebooks import read_notebook

NOTEBOOKS = {path.stem: path for path in chapter_notebooks(Path(__file__).resolve().parent.parent)}
NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w,]*\.?\d|%)")
AS_SHOWN = 0.006  # tables have three digits
AS_FAST = 1.05  # another part may have timed the same way again
TORCH = re.compile(r"Flex|FLASH|SDPA|cuDNN|torch")
UNIT = re.compile(r"\b(?:ms|milliseconds|microseconds)\b|µs")  # without one, numbers are ratios or lengths


class Subject(NamedTuple):
    """ours: the names of our kernels in a recording. computes: what a row computes, as a key; None where it is not
    compared, as dense attention beside a sparse pattern. label: words of the line of a table that has the row's time; ^
    is its beginning.
    plots: the ids of cells that draw times, and of those before that they need."""

    ours: tuple[str, ...]
    computes: Callable[[Row], object]
    label: Callable[[Row], tuple[str, ...]]
    plots: tuple[tuple[str, ...], ...] = ()


def of_pattern(row: Row) -> object:
    """Chapter 04: a pattern at a length; a tree behind a context; so many random blocks in a row."""
    if row["name"].startswith("dense ") or row["part"] == "dense_way":
        return None
    which = row.get("pass") or "forward"
    return which, *(row.get(column) for column in ("pattern", "length", "context", "tokens", "per_row"))


def pattern_or_tree(row: Row) -> tuple[str, ...]:
    """A pattern as tables write it, or the sizes of a tree."""
    if "pattern" not in row:
        return f"{row.get('context')} ", f"{row.get('tokens')} "
    return (re.sub(r"\w+=", "", row["pattern"]) + "  ",)  # the name ends: another may begin like it


def of_dense(row: Row) -> object:
    """Chapter 03: one short sequence, a few queries of a cache, a training step, and of the passes by length the one
    that `recompute` has timed too. All else is shown as speeds and ratios, or has no kernel but ours."""
    if row["part"] in ("ladder", "tuning", "fused"):
        return None
    if row["part"] == "lengths" and (row["pass"], row["head_dim"], row["is_causal"]) != ("backward", 64, False):
        return None
    part = {"lengths": "recompute"}.get(row["part"], row["part"])
    columns = () if part == "recompute" else ("pass", "head_dim", "batch", "query_length")
    return part, row["length"], *(row.get(column) for column in columns)


def of_dense_line(row: Row) -> tuple[str, ...]:
    if row["part"] == "few queries":
        return (f"{row['batch']:>2}  {row['length']:>6,}  {row['query_length']:>3}  ",)
    return (row["name"] if row["part"] in ("table", "block") else f"{row['length']:,} ",)


def of_decode(row: Row) -> object:
    """Chapter 06: attention of one query, or a step, for a cache. All else is shown as ratios among our own."""
    parts = {"contiguous": "one query", "ladder": "one query", "step": "step"}
    return (parts[row["part"]], row["batch"], row["length"]) if row["part"] in parts else None


def of_choice(row: Row) -> object:
    """Chapter 08: exact attention, a window, or sinks and a window, at a length."""
    if row["part"] != "choices":
        return None
    kinds = {"window of": "window", "streaming": "streaming"}
    return next((kind for part, kind in kinds.items() if part in row["name"]), "exact"), row["length"]


def of_fp32(row: Row) -> object:
    """Chapter 02: a pass at a length, in fp32."""
    return None if "fp16" in row["name"] else (row["pass"], row["length"])


def of_dsa(row: Row) -> object:
    """Chapter 05: a part of DSA at a shape, or attention as a whole."""
    parts = "indexer, FP8", "indexer, bf16", "indexer, FP8", "select", "sparse_mla", "unpacking"
    if (row["part"] == "step" and any(part in row["name"] for part in parts)) or "products alone" in row["name"]:
        return None
    if row["part"] == "backward" and "backward" not in row["name"]:  # the forward pass beside it
        return None
    shape = "part", "queries", "length", "k", "scores", "heads"
    return tuple(row.get(column) for column in shape)


def of_dsa_line(row: Row) -> tuple[str, ...]:
    """A table of whole attention has lines that begin with a length."""
    lines = {"topk": f"{row['length']:,}", "step": f"^{row['length']:,} "}
    return (lines.get(row["part"], row["name"]),)


SUBJECTS = {
    "02_flash_attention_minimal": Subject(
        ("forward_plain.cu", "flash_attention_minimal"), of_fp32, lambda row: (row["name"],)
    ),
    "03_flash_attention_v2": Subject(
        (
            *("flash_attention_v2", "flash_attention_v2, keys split", "flash_attention_minimal", "recomputes P"),
            *("a tile for each head", "a tile for each head, keys split"),
        ),
        of_dense,
        of_dense_line,
    ),
    "05_deepseek_sparse": Subject(
        (
            *("lightning_indexer, FP8", "lightning_indexer, bf16", "lightning_indexer, FP8, mma.sync", "select_topk"),
            *("sparse_mla", "sparse_mla, mma.sync", "DSA, indexer in FP8", "DSA, indexer in bf16"),
            *("mla_attention", "mla_attention, mma.sync", "sparse_mla, backward"),
        ),
        of_dsa,
        of_dsa_line,
    ),
    "04_sparse_patterns": Subject(
        ("sparse_attention", "tiles skipped", "tiles only masked", "csr_gather", "block_sparse"),
        of_pattern,
        pattern_or_tree,
        (("1a", "106"), ("1a", "111a", "111")),
    ),
    "06_serving": Subject(
        (
            *("decode_attention", "decode_attention again", "a warp per query head", "packed heads", "keys in pieces"),
            *("launches", "CUDA graph", "one launch"),
        ),
        of_decode,
        lambda row: (f"{row['batch']} × {row['length'] // 1024} K ",),
    ),
    "08_choosing": Subject(
        ("flash_attention_v2", "sliding window of 4096", "streaming, 4 + 1024"),
        of_choice,
        lambda row: (row["name"],),
        (("1", "22a", "23"),),
    ),
}
EXCEPTIONS = {
    "00_start_here": "it times the machine: no kernel of torch does the same as another",
    "01_attention_basics": "its steps are compared with each other; chapter 02 has the peers",
    "07_hopper": "it shows speeds and ratios, all beside cuDNN's; the bars of its training step have SDPA's time",
}


def recorded(name: str) -> list[Row]:
    """The rows of a recording, with milliseconds where it has microseconds."""
    return [row | {"median_ms": row["us"] / 1e3} if "us" in row else row for row in measured.load(name).rows]


def missing(rows: list[Row], subject: Subject, shows: Callable[[Row], bool]) -> list[str]:
    """What is computed by a kernel of ours whose time is shown, without that of the fastest other, or one as fast."""
    groups: dict[object, list[Row]] = {}
    for row in rows:
        key = subject.computes(row) if row.get("median_ms") and "name" in row else None
        if key is not None:
            groups.setdefault(key, []).append(row)
    found = []
    for key, group in groups.items():
        others = [row for row in group if row["name"] not in subject.ours]
        if others and any(shows(row) for row in group if row["name"] in subject.ours):
            best = min(others, key=lambda row: row["median_ms"])
            if not any(shows(row) for row in others if row["median_ms"] <= AS_FAST * best["median_ms"]):
                found.append(f"{key}: {best['name']} took {best['median_ms']:.4g} ms")
    return found


def in_table(text: str, subject: Subject) -> Callable[[Row], bool]:
    """Whether a table shows the time of a row: one of ours in a line with its label, and, of a pattern in a table with
    a column L, its length; another anywhere. Of a pattern a table shows the lengths that it names, if it names some."""
    lines = [(line, _numbers(line)) for line in text.splitlines()]
    by_length = any("L" in re.split(r" {2,}", line.strip()) for line in text.splitlines())
    named = {int(number) for number in re.findall(r"L = (\d+)", text)}
    named |= {1024 * int(number) for number in re.findall(r"(\d+) K\b", text)}
    scales = (1, 1e3) if "µs" in text or "microseconds" in text else (1,)

    def shows(row: Row) -> bool:
        needed = subject.label(row) if row["name"] in subject.ours else ()
        if needed and by_length and "pattern" in row:
            needed += (f" {row['length']:,} ",)
        if named and "pattern" in row and not by_length and row["length"] not in named:
            return False
        times = [scale * row["median_ms"] for scale in scales]
        return any(
            abs(number - time) <= AS_SHOWN * time
            for line, numbers in lines
            if all(f"^{line.strip()}".startswith(word) or word in f"{line}  " for word in needed)
            for number in numbers
            for time in times
        )

    return shows


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def _text(cell: nbformat.NotebookNode) -> str:
    texts = (output.get("text") or output.get("data", {}).get("text/plain") or "" for output in cell.outputs)
    return "\n".join("".join(text) for text in texts)


def tables() -> list:
    """The cells of chapters with a subject whose saved output names the recording, something of torch and a unit of
    time."""
    cases = []
    for name in SUBJECTS:
        caption = measured.caption(measured.load(name))
        texts = {c.id: _text(c) for c in read_notebook(NOTEBOOKS[name]).cells if c.cell_type == "code"}
        compared = {
            cell: text
            for cell, text in texts.items()
            if caption in text and TORCH.search(text.replace(caption, "")) and UNIT.search(text)
        }
        cases += [(name, cell, text) for cell, text in compared.items()]
    return cases


@all_of("table", tables())
def test_a_table_with_a_time_of_ours_has_the_fastest_other(table):
    name, _, text = table
    assert missing(recorded(name), SUBJECTS[name], in_table(text, SUBJECTS[name])) == []


@pytest.mark.parametrize(
    ("name", "ids"), [pytest.param(name, ids, id=ids[-1]) for name, of in SUBJECTS.items() for ids in of.plots]
)
def test_a_plot_with_a_time_of_ours_has_the_fastest_other(name, ids, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cells = {cell.id: cell.source for cell in read_notebook(NOTEBOOKS[name]).cells}
    namespace: dict[str, object] = {}
    for cell in ids:
        exec(re.sub(r"^%.*$", "", cells[cell], flags=re.MULTILINE), namespace)
    lines = [line for ax in plt.gcf().axes for line in ax.lines]
    points = {point for line in lines for point in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    plt.close("all")

    def shows(row: Row) -> bool:
        return any((row.get("length"), scale * row["median_ms"]) in points for scale in (1, 1e3))

    rows = [row for row in measured.load(name).rows if row.get("median_ms")]
    assert any(shows(row) for row in rows if row.get("name") in SUBJECTS[name].ours)
    assert missing(rows, SUBJECTS[name], shows) == []


def columns(text: str, *names: str) -> list[tuple[float, ...]]:
    """Line by line the numbers of these columns, which are two blanks apart; nothing of a table that lacks one."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    head = next((number for number, line in enumerate(lines) if set(names) <= set(line)), None)
    if head is None:
        return []
    places = [lines[head].index(name) for name in names]
    full = [line for line in lines[head + 1 :] if len(line) == len(lines[head])]
    return [tuple(float(line[place].replace(",", "")) for place in places) for line in full]


def test_ratios_to_two_dense_kernels_are_of_the_same_time_of_ours():
    """Else who divides one column by the other gets another lead of cuDNN than was recorded, at 128 K tokens."""
    rows = measured.load("04_sparse_patterns").select(length=131072)
    dense = [row for row in rows if row.get("name") in ("dense FLASH", "dense cuDNN")]
    times = {(row["part"], row["pattern"], row["name"]): row["median_ms"] for row in dense}
    leads = [ms / times[*key, "dense cuDNN"] for (*key, name), ms in times.items() if name == "dense FLASH"]
    cells = read_notebook(NOTEBOOKS["04_sparse_patterns"]).cells
    texts = [_text(cell) for cell in cells if cell.cell_type == "code"]
    found = [flash / cudnn for text in texts for flash, cudnn in columns(text, "times FLASH", "times cuDNN")]
    assert len(found) >= 12 and all(0.98 * min(leads) < lead < 1.02 * max(leads) for lead in found)


def test_columns_of_a_table_are_read_by_their_names():
    text = "a caption\n a (1)  ms  times FLASH\n  b (2)  1,500  3.5\nL = 4"
    assert columns(text, "times FLASH", "ms") == [(3.5, 1500.0)] and columns(text, "times cuDNN", "ms") == []


def test_every_chapter_with_figures_has_a_subject_or_a_reason():
    assert SUBJECTS.keys() | EXCEPTIONS.keys() == NOTEBOOKS.keys() & set(measured.recorded_names())
    assert not SUBJECTS.keys() & EXCEPTIONS.keys() and all(EXCEPTIONS.values())


def test_a_table_without_the_fastest_other_is_seen():
    times = {"sparse_attention": 1.234, "FLASH": 2.0, "cuDNN": 1.5, "cuDNN, again": 1.53, "dense FLASH": 0.5}
    rows = [{"part": "peers", "pattern": "a(1)", "length": 8, "name": n, "median_ms": ms} for n, ms in times.items()]
    subject = SUBJECTS["04_sparse_patterns"]
    (found,) = missing(rows, subject, in_table("a(1)  1.23  2.00", subject))
    assert found.endswith("cuDNN took 1.5 ms")
    (found,) = missing(rows, subject, in_table("pattern  L  ms\na(1)  8  1.23\n", subject))
    assert found.endswith("cuDNN took 1.5 ms")
    for right in (
        "pattern  L  ms\na(1)  16  1.23",
        "a(1)  1.23  1.53",
        "microseconds\na(1)  1,230  1,500",
        "b(1)  1.23  2.00",
        "a(1)  7.0",
    ):
        assert missing(rows, subject, in_table(right, subject)) == []
