"""What the sanitizer found and the profiler counted, as HTML for a notebook: cards, tables, a listing shaded by cost.

The pages carry their own styles and no scripts. Grounds and texts are those of JupyterLab's theme, elsewhere
light; what is laid over them is translucent, or brings its own text.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CudaLexer
from pygments.style import Style
from pygments.token import Comment, Keyword

from course_utils.emulator.counters import FIGURES
from course_utils.emulator.profiler import (
    ASYNC_HEADING,
    AsyncRow,
    CounterRow,
    Counters,
    Footprint,
    figures_of,
    words_of,
)
from course_utils.emulator.sanitizer import Finding, SanitizerReport
from course_utils.toolchain.errors import Index3

SECTOR_BYTES = 32  # the piece in which global memory is fetched
WAVEFRONT_BYTES = 128  # one pass through 32 banks of 4 bytes

GROUND, INK = "var(--jp-layout-color1, #fafafa)", "var(--jp-content-font-color1, #1a1a1a)"
MUTED = "color-mix(in srgb, currentColor 82%, transparent)"
_RULE = "1px solid color-mix(in srgb, currentColor 40%, transparent)"
FRAME = f"background: {GROUND}; color: {INK}; padding: 8px 12px; border-radius: 4px; overflow-x: auto"
_FONT = "font-family: system-ui, sans-serif; font-size: 13px; line-height: 1.4"
_MONO = "font-family: ui-monospace, monospace; font-size: 12px"
_MUTED = f"color: {MUTED}; font-size: 12px"
_EXCESS = "background: #ffd9a8; color: #1a1a1a; font-weight: 600"
_CUT = "overflow: hidden; text-overflow: ellipsis; white-space: nowrap"
_WRAP = "white-space: pre-wrap; overflow-wrap: anywhere"
_HOT, _MOST = "255, 122, 0", 0.45  # laid over either ground, so that either text keeps a contrast of 4.5
_TOOL_COLOURS = {
    "memcheck": "#b3261e",
    "racecheck": "#7a4a00",
    "initcheck": "#1f5fa8",
    "synccheck": "#6a3d9a",
    "asynccheck": "#0b6b58",
}

_LEGEND = (
    ("request", "one load, store or atomic instruction of one warp"),
    ("sector", "32 bytes of global memory; ideal: how few would hold the bytes that the lanes asked for"),
    ("wavefront", "one pass through the 32 banks of shared memory; ideal: without conflicts"),
    ("bank conflict", "a wavefront more than the ideal, because lanes need different words of one bank"),
    ("shared bytes", "what products read in shared memory, and copies read or write there, in all blocks together"),
    ("idle turns", "how often other threads of the block went on while one waited: no time, but who waits for whom"),
    ("footprint", "the distinct bytes among those requested: no cache can avoid moving them once"),
)


class _TextStyle(Style):
    """Syntax by weight and slant: colours would lose their contrast on the shaded lines."""

    styles = {Comment: "italic", Comment.Preproc: "noitalic", Keyword: "bold"}


def _coloured(lines: Sequence[str]) -> list[str]:
    """Lines of CUDA source as HTML. Their indentation is of non-breaking spaces: nbconvert drops plain ones."""
    formatter = HtmlFormatter(style=_TextStyle, noclasses=True, nowrap=True)
    lines = [line.expandtabs(4) for line in lines]
    indents = [len(line) - len(line.lstrip(" ")) for line in lines]
    text = "".join(f"{line.lstrip(' ')}\n" for line in lines)
    coloured = highlight(text, CudaLexer(stripnl=False), formatter).split("\n")[: len(lines)]
    return ["&nbsp;" * indent + line for indent, line in zip(indents, coloured, strict=True)]


def _div(content: str, style: str) -> str:
    return f'<div style="{style}">{content}</div>'


def _frame(content: str, style: str = "") -> str:
    return _div(content, f"{FRAME}; margin: 4px 0; {_FONT}; {style}")


def _cell(content: str, style: str = "", tag: str = "td", span: int = 1) -> str:
    look = f"padding: 1px 8px; text-align: left; vertical-align: top; border: none; {style}"
    return f'<{tag} colspan="{span}" style="{look}">{content}</{tag}>'


def _row(cells: Iterable[str], style: str = "background: transparent") -> str:
    return f'<tr style="{style}">{"".join(cells)}</tr>'


_LINES = "presentation"  # lines of a kernel beside their numbers: no table of figures


def _table(rows: Iterable[str], width: str = "100%", role: str = "table") -> str:
    # each property that a notebook's own style sheet sets for tables is set here
    look = (
        f"border-collapse: collapse; table-layout: auto; width: {width}; margin: 4px 0; color: inherit; font-size: 12px"
    )
    return f'<table role="{role}" style="{look}"><tbody>{"".join(rows)}</tbody></table>'


def _figure(number: float) -> str:
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def _plural(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{ending if number != 1 else ''}"


# --- findings -------------------------------------------------------------------------------------------------------


def findings_page(report: SanitizerReport) -> str:
    """The findings as HTML, one card each; without any, a line that says so and what it does not prove."""
    head, cards, tail = findings_parts(report)
    return "".join([head, *cards, tail])


def findings_parts(report: SanitizerReport) -> tuple[str, list[str], str]:
    """The page in parts: what stands above the findings, a card for each, and what stands below, if anything."""
    launches = _plural(report.launches, "launch", "es")
    if not report.findings:
        limit = _div("On these inputs: silence proves nothing about others.", _MUTED)
        return _frame(f"no finding in {launches}{limit}", "border-left: 4px solid #2e6b34"), [], ""
    head = _frame(f"{_plural(len(report.findings), 'finding')} in {launches}", "font-weight: 600")
    lost = f"... and {report.dropped:,} more, for which there was no room" if report.dropped else ""
    return head, [_card(finding) for finding in report.findings], _frame(lost) if lost else ""


def _card(finding: Finding) -> str:
    colour = _TOOL_COLOURS.get(finding.tool, "#444444")
    pill = (
        f"background: {colour}; color: #ffffff; padding: 1px 8px; border-radius: 8px; font-size: 12px; font-weight: 600"
    )
    label = f'<span style="{pill}">{html.escape(finding.tool)}</span>'
    message = f'<span style="font-weight: 600">{html.escape(finding.message)}</span>'
    place = f"{finding.file or ''}{f':{finding.line}' if finding.line else ''}"
    facts = [f"kernel {finding.kernel}", place, f"{finding.count:,} times" if finding.count > 1 else ""]
    where = _div(html.escape(" · ".join(filter(None, facts))), f"{_MUTED}; margin-top: 2px")
    race = finding.other_line is not None or finding.other_thread is not None
    parties = [("one party" if race else "", finding.line, finding.source, finding.block, finding.thread)]
    if race:
        other = (finding.other_line, finding.other_source, finding.other_block or finding.block, finding.other_thread)
        parties.append(("other party", *other))
    rows = [_party(*party) for party in parties]
    timeline = _timeline(finding) if finding.events else ""
    return _frame(f"{label} {message}{where}{_table(rows, role=_LINES)}{timeline}", f"border-left: 4px solid {colour}")


def _timeline(finding: Finding) -> str:
    """The two events from left to right, one below the other; in between what the rule wants. No scale of time."""
    left, right, end, rows = 16, 470, 640, (38, 104)
    texts, marks = [], []
    for event, x, y in zip(finding.events, (left, right), rows, strict=True):
        line = f", line {event.line}" if event.line else ""
        words = f"step {event.step:,}{line}: {event.what}"
        anchor = "start" if x == left else "end"
        at = left - 6 if x == left else end
        texts.append(f'<text x="{at}" y="{y - 14}" text-anchor="{anchor}">{html.escape(words)}</text>')
        marks.append(f'<line x1="{left}" x2="{end}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity="0.35"/>')
        if event.goes_on:
            shape = f'x="{x}" y="{y - 7}" width="{end - x}" height="14"'
            marks.append(f'<rect {shape} rx="7" fill="rgb({_HOT})" fill-opacity="{_MOST}"/>')
            if x == left:
                texts.append(f'<text x="{right}" y="{y + 22}" text-anchor="middle">may still be at work</text>')
        marks.append(f'<circle cx="{x}" cy="{y}" r="6" fill="currentColor"/>')
    middle = (left + right) // 2
    look = 'stroke="currentColor" stroke-width="2" stroke-dasharray="4 4"'
    dashes = f'<line x1="{middle}" x2="{middle}" y1="30" y2="112" {look}/>'
    wanted = (
        f'<text x="{middle}" y="134" text-anchor="middle" font-weight="600">wanted: {html.escape(finding.wants)}</text>'
    )
    label = html.escape("; wanted: ".join([str(finding.events[0]), f"{finding.wants}; then {finding.events[1]}"]))
    size = "width: 100%; min-width: 480px; max-width: 656px; height: auto; margin-top: 4px; font-size: 12px"
    drawn = "".join([*marks, dashes, *texts, wanted])
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 656 144" style="{size}" fill="currentColor">{drawn}</svg>'
    )


def _party(name: str, line: int | None, source: str | None, block: Index3 | None, thread: Index3 | None) -> str:
    """Who did it, and the line where; the first of several."""
    who = [f"block {block}" if block is not None else "", f"thread {thread}" if thread is not None else ""]
    code = _coloured([source.strip()])[0] if source else ""
    texts = f'<span style="{_MONO}; {_WRAP}">{code}</span><span>{html.escape(", ".join(filter(None, who)))}</span>'
    # side by side where there is room for both, else one below the other
    apart = "display: flex; flex-wrap: wrap; justify-content: space-between; column-gap: 24px"
    cells = [
        _cell(name, "white-space: nowrap; padding-left: 0") if name else "",
        _cell(str(line or ""), f"{_MONO}; text-align: right; color: {MUTED}"),
        _cell(_div(texts, apart), "width: 100%"),
    ]
    return _row(cells)


# --- counters -------------------------------------------------------------------------------------------------------


def counters_page(counters: Counters) -> str:
    """The counters as HTML: for each kernel a row per source line, space and operation, then its footprint."""
    if not counters.rows and not counters.footprint:
        return _frame(f"no memory access was counted in {_traced(counters)}")
    head = _div(f"Counted on the emulator: {_traced(counters)}", "font-weight: 600")
    note = (
        "Bytes are what the threads request, the footprint is the distinct ones among them. "
        "Neither is HBM traffic: only ncu measures that."
    )
    kernels = dict.fromkeys([row.kernel for row in counters.rows] + [part.kernel for part in counters.footprint])
    parts = [_kernel_section(kernel, counters) for kernel in kernels]
    return _frame(head + _div(note, _MUTED) + "".join(parts) + _legend())


def _traced(counters: Counters) -> str:
    launches = _plural(counters.launches, "launch", "es")
    if counters.blocks_traced == counters.blocks:
        return f"{launches}, {_plural(counters.blocks, 'block')}"
    return f"{launches}, {counters.blocks_traced:,} of {counters.blocks:,} blocks; all figures are of those blocks"


def _legend() -> str:
    terms = "".join(_div(f"<b>{term}</b>: {meaning}", _MUTED) for term, meaning in _LEGEND)
    return f'<details style="margin-top: 6px"><summary style="cursor: pointer">the terms</summary>{terms}</details>'


def _kernel_section(kernel: str, counters: Counters) -> str:
    rows = sorted((row for row in counters.rows if row.kernel == kernel), key=lambda row: (row.file, row.line))
    files = list(dict.fromkeys(row.file for row in rows))
    title = html.escape(" · ".join([f"kernel {kernel}", *files]))
    lines = []
    for space in ("global", "shared"):
        part = [row for row in rows if row.space == space]
        if part:
            lines.append(_counter_heading(space))
            lines += [_counter_row(row, show_file=len(files) > 1) for row in part]
    table = (_table(lines) if lines else "") + _asynchronous(kernel, counters)
    footprint = [part for part in counters.footprint if part.kernel == kernel]
    copied = [row for row in counters.asynchronous if row.kernel == kernel]
    return (
        _div(title, "font-weight: 600; margin-top: 10px")
        + table
        + (_footprint(footprint, rows, copied) if footprint else "")
    )


def _asynchronous(kernel: str, counters: Counters) -> str:
    """The products, copies and waits of each line of a kernel for sm_90a, and which warps wait where."""
    rows = [row for row in counters.asynchronous if row.kernel == kernel]
    if not rows:
        return ""
    style, number = "font-weight: 600; padding-top: 6px; vertical-align: bottom", f"{_MONO}; text-align: right"
    line, operation, argument, *figures = ASYNC_HEADING
    names = [_cell(line, f"{style}; text-align: right", "th"), _cell("", style, "th"), _cell(operation, style, "th")]
    names += [_cell(argument, style, "th"), *(_cell(name, f"{style}; text-align: right", "th") for name in figures)]
    table = [_row(names, f"background: transparent; border-bottom: {_RULE}")]
    for row in rows:
        source = row.source.strip()
        code = f"{_MONO}; width: 100%; min-width: 100px; max-width: 0; {_CUT}"
        cells = [_cell(str(row.line), f"{number}; color: {MUTED}")]
        cells.append(_cell(f'<span title="{html.escape(source)}">{_coloured([source])[0]}</span>', code))
        cells += [_cell(row.operation, "white-space: nowrap"), _cell(html.escape(row.argument), "white-space: nowrap")]
        table.append(_row([*cells, *(_cell(text, f"{number}; white-space: nowrap") for text in figures_of(row))]))
    roles = "".join(_div(words_of(role), _MUTED) for role in counters.roles if role.kernel == kernel)
    return _table(table) + roles


def _counter_heading(space: str) -> str:
    figures = {
        "global": ("requests", "sectors", "ideal", "sectors /&nbsp;request", "bytes"),
        "shared": ("requests", "wavefronts", "ideal", "bank conflicts", "bytes"),
    }
    style = "font-weight: 600; padding-top: 6px; vertical-align: bottom"
    names = [
        _cell("line", f"{style}; text-align: right", "th"),
        _cell(f"{space} memory", style, "th"),
        _cell("", style, "th"),
    ]
    names += [_cell(name, f"{style}; text-align: right", "th") for name in figures[space]]
    return _row(names, f"background: transparent; border-bottom: {_RULE}")


def _counter_row(row: CounterRow, show_file: bool) -> str:
    if row.space == "global":
        excess = row.sectors > row.ideal_sectors
        each = row.sectors / row.requests if row.requests else 0
        figures = [(row.requests, False), (row.sectors, excess), (row.ideal_sectors, False), (each, excess)]
    else:
        excess = row.bank_conflicts > 0
        conflicts = (row.bank_conflicts, excess)
        figures = [(row.requests, False), (row.wavefronts, excess), (row.ideal_wavefronts, False), conflicts]
    number = f"{_MONO}; text-align: right; white-space: nowrap"
    place = f"{row.file}:{row.line}" if show_file else str(row.line)
    source = row.source.strip()
    # the source takes what width is left and is cut with an ellipsis; its tip holds the whole line
    code = f"{_MONO}; width: 100%; min-width: 140px; max-width: 0; {_CUT}"
    cells = [_cell(html.escape(place), f"{number}; color: {MUTED}")]
    cells.append(_cell(f'<span title="{html.escape(source)}">{_coloured([source])[0]}</span>', code))
    cells.append(_cell(html.escape(row.operation)))
    cells += [
        _cell(_figure(n), f"{number}; {_EXCESS if marked else ''}") for n, marked in [*figures, (row.bytes, False)]
    ]
    return _row(cells)


def _footprint(parts: Sequence[Footprint], rows: Sequence[CounterRow], copied: Sequence[AsyncRow]) -> str:
    """The distinct bytes of each argument; below them their sum and how often each is requested."""
    distinct = [sum(part.bytes_read for part in parts), sum(part.bytes_written for part in parts)]
    requested = [
        sum(row.bytes for row in rows if row.space == "global" and row.operation in operations)
        + sum(row.global_bytes for row in copied if row.operation in operations)
        for operations in (("load", "atomic", "copy in"), ("store", "atomic", "copy out"))  # an atomic reads and writes
    ]
    times = [_figure(all_of / one) if one else "" for all_of, one in zip(requested, distinct, strict=True)]
    number = "text-align: right; white-space: nowrap"

    def line(name: str, figures: Iterable[str], style: str = "", tag: str = "td") -> str:
        texts = [_cell(text, f"{number}; {style}; {_MONO if tag == 'td' else ''}", tag) for text in figures]
        return _row([_cell(name, style, tag), *texts])

    heading = ("bytes in all", "bytes read", "bytes written")
    lines = [line("argument", heading, f"font-weight: 600; border-bottom: {_RULE}", "th")]
    for part in parts:
        sizes = (part.bytes, part.bytes_read, part.bytes_written)
        lines.append(line(html.escape(part.argument), map(_figure, sizes)))
    rule = f"border-top: {_RULE}"
    lines.append(line("footprint", ["", *map(_figure, distinct)], rule))
    lines.append(line("requested", ["", *map(_figure, requested)]))
    lines.append(line("times each byte is requested, on average", ["", *times]))
    return _div(_table(lines, width="auto"), "margin-top: 10px")


# --- the listing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """A picture for a notebook, with a text in its place where there is none."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def cost(row: CounterRow) -> int:
    """Bytes of L1's data path that a row takes: 32 for a sector of global memory, 128 for a wavefront of shared."""
    return SECTOR_BYTES * row.sectors + WAVEFRONT_BYTES * row.wavefronts


@dataclass(frozen=True)
class _Line:
    """A line of the listing: `share` and `remarks` (text, above the ideal?) if it has counters; heat in 0 ... 1."""

    number: int
    text: str
    heat: float
    share: str
    remarks: list[tuple[str, bool]]


def heat_listing(counters: Counters) -> Listing:
    """The source of each file that was launched, every line shaded by its share of the cost (see `cost`).

    Beside a line stand its share and what its requests take; the lines of a file whose text is not known (an include)
    are those with counters.
    """
    captions = (
        f"Shade and %: a line's share of the bytes through L1, {SECTOR_BYTES} for each sector of global memory and "
        f"{WAVEFRONT_BYTES} for each wavefront of shared memory. This is traffic, not time.",
        f"Counted on the emulator: {_traced(counters)}.",
    )
    pages, texts = [], list(captions)
    for file, lines in _lines(counters).items():
        pages.append(_div(html.escape(file), "font-weight: 600; margin-top: 8px") + _listing_html(lines))
        texts.append(f"\n{file}\n{_listing_text(lines)}")
    return Listing(_frame(_div(html.escape(" ".join(captions)), _MUTED) + "".join(pages)), "\n".join(texts))


def _lines(counters: Counters) -> dict[str, list[_Line]]:
    """The lines of each file."""
    groups: dict[tuple[str, int], list[CounterRow]] = {}
    for row in counters.rows:
        groups.setdefault((row.file, row.line), []).append(row)
    paid = {place: sum(map(cost, rows)) for place, rows in groups.items()}
    total, peak = sum(paid.values()), max(paid.values(), default=0)

    listing = {}
    for file in dict.fromkeys([*counters.sources, *(file for file, _ in groups)]):
        text = counters.sources.get(file)
        known = dict(enumerate(text.splitlines(), 1)) if text else {}
        texts = known or {line: rows[0].source for (of, line), rows in sorted(groups.items()) if of == file}
        listing[file] = []
        for number, source in texts.items():
            place = (file, number)
            heat = paid[place] / peak if place in groups and peak else 0
            share = _share(paid[place], total) if place in groups else ""
            listing[file].append(
                _Line(number, source, heat, share, [_remark(r) for r in _merge(groups.get(place, []))])
            )
    return listing


def _merge(rows: Iterable[CounterRow]) -> list[CounterRow]:
    """One row per space and operation, over all kernels that ran a line."""
    sums: dict[tuple[str, str], CounterRow] = {}
    for row in rows:
        key = (row.space, row.operation)
        sums[key] = _add(sums[key], row) if key in sums else row
    return [sums[key] for key in sorted(sums)]


def _add(a: CounterRow, b: CounterRow) -> CounterRow:
    return replace(a, **{name: getattr(a, name) + getattr(b, name) for name in FIGURES})


def _remark(row: CounterRow) -> tuple[str, bool]:
    """The key figures of a row in a few words, and whether they exceed the ideal."""
    if row.space == "global":
        each, ideal = (_figure(n / max(row.requests, 1)) for n in (row.sectors, row.ideal_sectors))
        return f"{row.operation}: {each} sectors/request, ideal {ideal}", row.sectors > row.ideal_sectors
    if not row.bank_conflicts:
        return f"shared {row.operation}: no conflict", False
    ways = row.wavefronts / max(row.ideal_wavefronts, 1)
    mean = "" if ways == int(ways) else " on average"
    return f"shared {row.operation}: {_figure(ways)}-way conflict{mean}", True


def _listing_html(lines: Sequence[_Line]) -> str:
    rows = list(map(_listing_row, lines, _coloured([line.text for line in lines])))
    header = 0  # lines of the comment at the file's head, which is folded
    while header < len(lines) and lines[header].number == header + 1 and lines[header].text.startswith("//"):
        header += 1
    summary = f'<summary style="cursor: pointer; {_MUTED}">the comment at the head, {_plural(header, "line")}</summary>'
    head = f"<details>{summary}{_table(rows[:header], role=_LINES)}</details>" if header else ""
    return _div(head + _table(rows[header:], role=_LINES), "max-height: 640px; overflow-y: auto")


def _listing_row(line: _Line, code: str) -> str:
    # a wrapped line goes on four columns to the right of the left edge
    look = f"{_MONO}; {_WRAP}; width: 100%; padding-left: calc(8px + 4ch); text-indent: -4ch"
    number = _cell(str(line.number), f"{_MONO}; text-align: right; color: {MUTED}; padding-left: 4px")
    if not line.remarks:  # the code may then run on through the columns of the figures
        return _row([number, _cell(code, look, span=3)])
    remarks = "".join(
        _div(html.escape(text), f"font-weight: {600 if excess else 400}") for text, excess in line.remarks
    )
    share = _cell(line.share, "text-align: right; white-space: nowrap")
    return _row(
        [number, _cell(code, look), share, _cell(remarks, "white-space: nowrap")], f"background: {_shade(line.heat)}"
    )


def _share(paid: int, total: int) -> str:
    return f"{100 * paid / total:.0f} %" if total and 100 * paid >= total else "< 1 %"


def _shade(heat: float) -> str:
    """The background of a line, from that of the page to the hottest; `heat` in 0 ... 1."""
    return f"rgba({_HOT}, {_MOST * heat:.3f})"


def _listing_text(lines: Sequence[_Line]) -> str:
    texts = []
    for line in lines:
        remarks = "".join(f"   <- {text}" for text, _ in line.remarks)
        texts.append(f"{line.share:>6}  {line.number:4d}  {line.text}{remarks}")
    return "\n".join(texts)
