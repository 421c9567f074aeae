"""What a chapter puts on the page besides plots: the machine, a kernel's source, a table, an expected error."""

from __future__ import annotations

import contextlib
import difflib
import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from IPython.display import HTML, DisplayHandle, display
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CudaLexer
from pygments.style import Style
from pygments.token import Comment, Keyword, Name, Number, String

from course_utils.emulator.compiler import find_compiler
from course_utils.emulator.launch import settings
from course_utils.emulator.pages import FRAME, MUTED
from course_utils.tables import figure
from course_utils.toolchain.errors import CompileError, KernelError, LaunchError
from course_utils.toolchain.source import KERNELS, KernelSource, read_kernel, source_name

if TYPE_CHECKING:
    from course_utils.launches.broken import BrokenKernel

MISTAKE_CONTEXT = 3  # equal lines around each change of a broken kernel, as in its .diff file
_FOLD = '<details><summary style="cursor: pointer; font-size: 85%; opacity: 0.8">{}</summary>{}</details>'
_CAPTION = f'<div style="font-size: 85%; color: {MUTED}">{{}}</div>'
_MONO = "font: 90%/1.35 ui-monospace, monospace; margin: 0; white-space: pre; word-break: normal"  # the box scrolls
_NUMBER = f'<span style="color: {MUTED}; user-select: none">{{}} </span>'
# Laid over the ground of either theme. The signs - and + say the same.
_CHANGED = {"-": "background: rgba(220, 60, 40, 0.16)", "+": "background: rgba(40, 160, 70, 0.18)"}


class _OnLight(Style):
    """CUDA on white: each colour has a contrast of 4.5, on a changed line, too."""

    styles = {
        Comment: "italic #4d5f53",
        Comment.Preproc: "noitalic #7a4a00",
        Comment.PreprocFile: "noitalic #7a4a00",
        Keyword: "bold #0b4f8a",
        Keyword.Type: "nobold #7a2f8f",
        Name.Function: "bold",
        Number: "#8a3300",
        String: "#96182a",
    }


class _OnDark(Style):
    """The same on JupyterLab's dark grounds."""

    styles = {
        Comment: "italic #a9c4b1",
        Comment.Preproc: "noitalic #e6b877",
        Comment.PreprocFile: "noitalic #e6b877",
        Keyword: "bold #8cc7ff",
        Keyword.Type: "nobold #dfb0f2",
        Name.Function: "bold",
        Number: "#f3b088",
        String: "#ffa8a8",
    }


def _rules(scope: str, style: type[Style]) -> str:
    rules = HtmlFormatter(style=style, classprefix="ak-").get_token_style_defs(scope)
    return "".join(rule.partition(" /*")[0] for rule in rules)


# A page's <style> is dropped where the notebook is not trusted, and on GitHub: there the text has one colour.
_DARK = '[data-jp-theme-light="false"] .ak-code'
_COLOURS = f"<style>{_rules('.ak-code', _OnLight)}{_rules(_DARK, _OnDark)}</style>"


def machine() -> torch.device:
    """Says where this notebook's kernels run, and returns that device: the GPU if there is one, otherwise the CPU."""
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        print(f"Kernels run on {torch.cuda.get_device_name()} (sm_{major}{minor}), through CuPy.")
        return torch.device("cuda")
    threads = settings().threads
    print(
        f"No GPU here: kernels run for real on the CPU emulator ({find_compiler().kind}, {threads} threads). "
        "Timings shown were measured on a GPU and say which."
    )
    return torch.device("cpu")


def source(name: str, first: int = 1, last: int | None = None) -> DisplayHandle | None:
    """Shows lines `first` to `last` (1-based, inclusive) of a kernel file, with line numbers and colours."""
    kernel = read_kernel(name)
    lines = kernel.splitlines()
    last = min(len(lines), last or len(lines))
    if not 1 <= first <= last:
        raise ValueError(f"first and last take a range of lines within 1 ... {len(lines)}, got {first} ... {last}")
    rows = list(enumerate(lines[first - 1 : last], first))
    coloured = _coloured([line for _, line in rows])
    body = "\n".join(_NUMBER.format(f"{n:4d}") + line for (n, _), line in zip(rows, coloured, strict=True))
    page = f'<div style="{FRAME}">{_CAPTION.format(_file_link(name, kernel.path))}{_code(body)}</div>'
    return display({"text/html": page, "text/plain": "\n".join(f"{n:4d}  {line}" for n, line in rows)}, raw=True)


def highlighted(text: str) -> str:
    """HTML of a piece of CUDA, in the colours of JupyterLab's theme."""
    return _code("\n".join(_coloured(text.splitlines())))


def _coloured(lines: Sequence[str]) -> list[str]:
    """The HTML of each line of a text in CUDA."""
    text = "".join(f"{line}\n" for line in lines)
    formatter = HtmlFormatter(style=_OnLight, classprefix="ak-", nowrap=True)
    return highlight(text, CudaLexer(stripnl=False), formatter).split("\n")[: len(lines)]


def _code(body: str) -> str:
    """A <pre>, because GitHub leaves the spaces of nothing else as they are."""
    ground = "background: transparent; color: inherit; padding: 0; width: max-content; min-width: 100%"
    return f'{_COLOURS}<pre class="ak-code" style="{_MONO}; {ground}">{body}</pre>'


def _file_link(name: str, path: Path) -> str:
    """A kernel's name as a link to its file from the notebook's folder, in which its kernel runs.

    The file is sought beside the notebook's folder and above, as links of the chapters find it.
    """
    file = Path("kernels", path.relative_to(KERNELS)) if path.is_relative_to(KERNELS) else Path(path.name)
    shown = html.escape(f"kernels/{name}" if path.is_relative_to(KERNELS) else name)
    for up, folder in enumerate((Path.cwd(), *Path.cwd().parents)):
        if (folder / file).is_file():
            return f'<a href="{html.escape("../" * up + file.as_posix())}">{shown}</a>'
    return shown


def passage(name: str, start: str, end: str | None = None) -> DisplayHandle | None:
    """Shows a kernel file from the first line that contains `start` up to, not including, the next one with `end`.

    `end=None` goes to the next line that begins with "}", the end of a function, and includes it. Unlike line numbers,
    this follows the file when it is edited. Raises ValueError if there is no such line.
    """
    return source(name, *passage_lines(name, start, end))


def passage_lines(name: str, start: str, end: str | None = None) -> tuple[int, int]:
    """The first and the last line (1-based, inclusive) of what `passage` shows. Raises ValueError if there are none."""
    lines = read_kernel(name).splitlines()
    first = next((n for n, line in enumerate(lines, 1) if start in line), None)
    if first is None:
        raise ValueError(f"start: no line of {name} contains {start!r}")
    following = list(enumerate(lines, 1))[first:]
    last = next((n for n, line in following if (line.startswith("}") if end is None else end in line)), None)
    if last is None:
        raise ValueError(
            f"end: no line of {name} after line {first} " + (f"contains {end!r}" if end else "begins with }")
        )
    if end is not None:
        last -= 1
        while not lines[last - 1].strip():
            last -= 1
    return first, last


def difference(before: str, after: str, context: int = 2, skip_header: bool = False) -> DisplayHandle | None:
    """Shows the lines in which two kernels differ, as `diff -u` does: "-" only in `before`, "+" only in `after`.
    Before each line the page shows its number in either kernel.

    before, after: what `read_kernel` returns, or any text; context: equal lines shown around each change; skip_header:
    leave out the comments at the heads of the files. Raises ValueError if the texts are equal, as after a `replace`
    that found nothing.
    """
    both, lines = (before, after), difference_lines(before, after, context, skip_header)
    rows = list(_with_line_numbers(lines[2:]))
    # The line break is inside of what fills the line: a <pre> would show one between two of them as an empty line.
    body = "".join(
        f'<span style="display: block; {_CHANGED.get(line[0], "")}">'
        f"{_NUMBER.format(f'{old:>4} {new:>4}')}{line[0]}{code}\n</span>"
        for (line, old, new), code in zip(rows, _coloured([line[1:] for line, *_ in rows]), strict=True)
    )
    links = [_file_link(text.name, text.path) if isinstance(text, KernelSource) else source_name(text) for text in both]
    caption = " → ".join(dict.fromkeys(links))
    page = f'<div style="{FRAME}">{_CAPTION.format(caption)}{_code(body)}</div>'
    return display({"text/html": page, "text/plain": "\n".join(lines)}, raw=True)


def difference_lines(before: str, after: str, context: int = 2, skip_header: bool = False) -> list[str]:
    """What `difference` shows as plain text, a line each; the first two name the kernels. Raises ValueError as it."""
    names = [source_name(text) for text in (before, after)]
    texts = [text.splitlines() for text in (before, after)]
    skipped = [_header_lines(text) if skip_header else 0 for text in texts]
    bodies = [text[first:] for text, first in zip(texts, skipped, strict=True)]
    lines = list(difflib.unified_diff(*bodies, *names, n=context, lineterm=""))
    if not lines:
        raise ValueError(f"before and after are equal, line by line: {names[0]}")

    def in_the_file(place: re.Match[str]) -> str:
        old, size, new = place.groups()
        return f"@@ -{int(old) + skipped[0]}{size} +{int(new) + skipped[1]}"

    return [re.sub(r"^@@ -(\d+)(\S*) \+(\d+)", in_the_file, line) for line in lines]


def _with_line_numbers(lines: Sequence[str]) -> Iterator[tuple[str, int | str, int | str]]:
    """The lines of a diff's hunks, each with its number in the text before and in the text after; "" if it has none."""
    old = new = 0
    for line in lines:
        if place := re.match(r"@@ -(\d+)\S* \+(\d+)", line):
            old, new = int(place[1]), int(place[2])
            yield line, "", ""
        else:
            yield line, old if line[0] != "+" else "", new if line[0] != "-" else ""
            old += line[0] != "+"
            new += line[0] != "-"


def _header_lines(text: Sequence[str]) -> int:
    """How many lines of comment a file begins with."""
    return sum(1 for _ in itertools.takewhile(lambda line: line.startswith("//"), text))


def mistake(broken: BrokenKernel) -> DisplayHandle | None:
    """Shows what turns a right kernel (-) into the broken one (+), if these are two kernels and not one with an option.

    The lines that the sanitizer names in the broken one are those of the second column.
    """
    return difference(*mistake_kernels(broken), context=MISTAKE_CONTEXT)


def mistake_kernels(broken: BrokenKernel) -> tuple[str, str]:
    """The texts of the right kernel and of the broken one."""
    right, wrong = (read_kernel(launch.source) for launch in (broken.mended(), broken.launch()))
    return right, wrong


def table(
    rows: Sequence[Mapping[str, Any]],
    caption: str = "",
    *,
    folded: bool = False,
    decimals: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Shows rows (dicts with the same keys) as a table; the keys are its heading. Numbers are right-aligned, and long
    words get the room for a few lines: on a narrow page their column would shrink to one word a line.

    folded: only the caption is seen until it is clicked, as behind a picture of the same figures. decimals: how many
    the floats of a column have; those of the other columns have three digits each.
    """
    columns = list(rows[0]) if rows else []
    cells = [[figure(row.get(column, ""), decimals.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    plain = "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in [columns, *cells]
    )
    numeric = [all(isinstance(row.get(column), (int, float)) for row in rows) for column in columns]
    aligned = [f"text-align: {'right' if n else 'left'}" for n in numeric]
    in_body = [aligned[i] + ("" if numeric[i] else _room([line[i] for line in cells])) for i in range(len(columns))]

    def row_html(tag: str, texts: Sequence[str], styles: Sequence[str]) -> str:
        styled = zip(texts, styles, strict=True)
        return "".join(f'<{tag} style="{style}">{html.escape(text)}</{tag}>' for text, style in styled)

    head = row_html("th", columns, aligned)
    body = "".join(f"<tr>{row_html('td', line, in_body)}</tr>" for line in cells)
    heading = _CAPTION.format(html.escape(caption)) if caption else ""  # a <caption> would wrap at the table's width
    page = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    if folded:
        summary = f"The figures{': ' * bool(caption)}{html.escape(caption)}"
        page = _FOLD.format(summary, page)
    else:
        page = heading + page
    display({"text/html": page, "text/plain": f"{caption}\n{plain}".strip()}, raw=True)


def folded(summary: str, text: str, page: str | None = None) -> None:
    """Shows a text in full only once its summary is clicked. A viewer of plain text gets both. page: the text as HTML;
    None: as it stands."""
    inside = f"<pre>{html.escape(text)}</pre>" if page is None else page
    display({"text/html": _FOLD.format(html.escape(summary), inside), "text/plain": f"{summary}\n{text}"}, raw=True)


def _room(words: Sequence[str]) -> str:
    """Style for the cells of a column of words: short words stay in one line, long ones wrap at a sensible width."""
    longest = max(map(len, words), default=0)
    return f"; min-width: {min(longest // 2, 24)}ch" if longest > 14 else "; white-space: nowrap"


@contextlib.contextmanager
def expected_error() -> Iterator[None]:
    """Runs code that must fail, and shows its error without a traceback. No error raises AssertionError."""
    try:
        yield
    except (KernelError, LaunchError, CompileError, TypeError, ValueError, LookupError, OSError) as error:
        message = html.escape(f"{type(error).__name__}: {error}")
        style = "border-left: 4px solid #d1543f; padding: 6px 12px; background: rgba(220, 60, 40, 0.1); color: inherit"
        wrap = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"  # JupyterLab would break words
        display(HTML(f'<pre style="{style}; {wrap}">{message}</pre>'))
    else:
        raise AssertionError("this code was expected to fail, but it ran to its end")


def prediction(predicted: float | None, found: float, unit: str = "") -> None:
    """Prints a learner's prediction beside the figure that was found; None: no prediction was made."""
    shown = f"{figure(found)} {unit}".strip()
    if predicted is None:
        print(f"Found: {shown}.")
    elif predicted == 0 or found == 0:
        print(f"You predicted {figure(predicted)} {unit}".strip() + f"; found: {shown}.")
    else:
        factor = max(predicted / found, found / predicted)
        print(f"You predicted {figure(predicted)} {unit}".strip() + f"; found: {shown}. You are off by {factor:.2g}×.")
