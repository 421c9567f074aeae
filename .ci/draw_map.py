"""Draws the two maps that CONTRIBUTING.md opens with: docs/rooms.svg and docs/launch.svg.

    python .ci/draw_map.py

The pictures have a background of their own, so that they can be read on a light and on a dark page.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 1180
INK, SOFT, PAPER, LINE = "#1f2328", "#57606a", "#ffffff", "#8c959f"
SANS = "font-family='Helvetica, Arial, DejaVu Sans, sans-serif'"
MONO = "font-family='Menlo, Consolas, DejaVu Sans Mono, monospace'"


class Floor(NamedTuple):
    """Rooms side by side, with what each is for. sideways: some of them import from rooms to their left."""

    title: str
    colour: str
    rooms: dict[str, str]
    sideways: bool = True


# From top to bottom. tests/test_maps.py compares them with the imports of course_utils.
FLOORS = (
    Floor(
        "Ways in",
        "#eaeef2",
        {
            "site": "the course as pages to read",
            "commands": "one module for each python -m course_utils command",
            "__main__": "the command line: lists the commands and calls one",
        },
        sideways=False,
    ),
    Floor(
        "Learning and grading",
        "#ddf4ff",
        {
            "questions": "asks, and judges the answer",
            "grading": "grades one submission; sandbox/ keeps it apart",
            "reading": "sections, paths, how long they take",
            "progress": "remembers what was done",
            "widgets": "what a learner clicks: Python and JavaScript",
            "puzzles": "kernels with a hole, graded in a chapter's cell",
            "classroom": "grades a class: nbgrader, Dask, gradebook",
        },
    ),
    Floor(
        "Launching and measuring",
        "#dafbe1",
        {
            "launches": "launches as data: chapters, ladder, broken kernels",
            "nvidia": "ncu and compute-sanitizer beside the emulator",
            "bench": "measures a chapter's figures on a GPU",
            "show": "kernels as listings, mistakes as diffs",
            "plots": "pictures, one module for each chapter",
            "chapters": "what a chapter's cells call: counted, measured, drawn",
        },
    ),
    Floor(
        "Attention",
        "#fff8c5",
        {
            "operators": "tensors in, tensors out; each launches its kernels",
            "serving": "a cache in pages, a loop, a small model to run",
            "integrations": "the operators in models of transformers",
            "planner": "which attention fits on which device",
            "studies": "small models that learn: recall, indexer, prose",
        },
    ),
    Floor(
        "Right answers",
        "#ffecde",
        {
            "patterns": "sparse patterns: mask, lists, density, drawing",
            "reference": "attention in float64",
            "checks": "compares a kernel's output with the reference",
        },
    ),
    Floor(
        "Machines",
        "#fbe9f1",
        {
            "toolchain": "kernels as text: read, compile",
            "emulator": "runs .cu files on a CPU; findings and counters",
            "cuda": "the facade: read_kernel, RawModule, launch",
            "doctor": "what this machine can run",
        },
    ),
    Floor(
        "Ground",
        "#f1eafc",
        {
            "measured": "recorded figures",
            "timing": "time_gpu",
            "arguments": "says what is wrong with an argument",
            "costs": "FLOPs, bytes, time floors",
            "course": "chapters, paths, where files lie",
            "tables": "text tables",
        },
        sideways=False,
    ),
)
MODULES = "__main__ arguments checks costs course cuda doctor show tables timing".split()


class Drawing:
    """An SVG picture that is put together piece by piece."""

    def __init__(self, height: int, title: str) -> None:
        self.pieces = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img'>",
            f"<title>{escape(title)}</title>",
            "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='8' markerHeight='8' "
            f"orient='auto-start-reverse'><path d='M0 0L10 5L0 10z' fill='{SOFT}'/></marker></defs>",
            f"<rect x='1' y='1' width='{WIDTH - 2}' height='{height - 2}' rx='12' fill='{PAPER}' stroke='{LINE}'/>",
        ]

    def text(
        self, x: float, y: float, words: str, size: float = 14, font: str = SANS, colour: str = INK, more: str = ""
    ) -> None:
        """One line of text; `more`: further attributes."""
        self.pieces.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size:g}' fill='{colour}' {font} {more}>{escape(words)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, name: str, words: str, colour: str, dashed: bool = False
    ) -> None:
        """A box with a name and a few words below it, broken into lines that fit."""
        dashes = "stroke-dasharray='5 3'" if dashed else ""
        self.pieces.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='7' fill='{colour}' "
            f"stroke='{LINE}' {dashes}/>"
        )
        centred = "text-anchor='middle'"
        self.text(x + width / 2, y + 23, name, 15, MONO, more=f"{centred} font-weight='bold'")
        for i, line in enumerate(textwrap.wrap(words, int((width - 10) / 6.7), break_long_words=False)):
            self.text(x + width / 2, y + 43 + 16 * i, line, 13, more=centred)

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through the points, with a head at the last."""
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.pieces.append(
            f"<polyline points='{way}' fill='none' stroke='{SOFT}' stroke-width='1.6' marker-end='url(#head)'/>"
        )

    def __str__(self) -> str:
        return "\n".join([*self.pieces, "</svg>", ""])


def rooms() -> str:
    """The rooms of course_utils, floor by floor, as SVG."""
    row, box, gap, left = 112, 84, 12, 158
    top = 64
    height = top + row * len(FLOORS) + 8
    picture = Drawing(height, "The rooms of course_utils, floor by floor; imports run down, or to the left")
    picture.text(20, 32, "A room imports from the floors below it, and on its floor only from rooms to its left.", 16)
    picture.text(20, 52, "Solid: a folder of course_utils.  Dashed: a single module.", 13, colour=SOFT)
    for number, floor in enumerate(FLOORS):
        y = top + row * number + 6
        for i, line in enumerate(textwrap.wrap(floor.title, 13)):
            picture.text(20, y + 34 + 19 * i, line, 15, more="font-weight='bold'")
        width = (WIDTH - left - 20 - gap * (len(floor.rooms) - 1)) / len(floor.rooms)
        for i, (name, words) in enumerate(floor.rooms.items()):
            picture.box(left + i * (width + gap), y, width, box, name, words, floor.colour, name in MODULES)
        if floor.sideways:
            picture.arrow((WIDTH - 20, y + box + 9), (left, y + box + 9))
        if number + 1 < len(FLOORS):
            picture.arrow((60, y + box - 6), (60, y + row + 12))
    return str(picture)


def launch() -> str:
    """The way that a launch takes, as SVG."""
    picture = Drawing(480, "The way of a launch: notebook, operator, facade, then the GPU or the emulator")
    blue, yellow, pink, green, grey = "#ddf4ff", "#fff8c5", "#fbe9f1", "#dafbe1", "#eaeef2"
    picture.box(20, 175, 200, 100, "notebook", "flash_attention_v2(…), or a kernel of your own", blue)
    picture.box(270, 175, 200, 100, "operators/", "checks the arguments, chooses tile, grid and block", yellow)
    picture.box(520, 175, 200, 100, "course_utils.cuda", "the facade: each launch runs where its tensors are", pink)
    picture.box(270, 355, 200, 100, "kernels/", "NN_slug/name.cu, read by toolchain/source", grey)
    picture.box(800, 60, 170, 100, "CuPy", "compiles for this GPU and launches there", green)
    picture.box(800, 290, 170, 100, "emulator/", "translates, compiles and runs it, in its own process", green)
    picture.box(1020, 225, 140, 100, "findings", "what is wrong, at which line", yellow)
    picture.box(1020, 355, 140, 100, "counters", "sectors, bank conflicts, bytes", yellow)
    picture.arrow((220, 225), (268, 225))
    picture.arrow((470, 225), (518, 225))
    picture.arrow((120, 175), (120, 130), (620, 130), (620, 173))
    picture.text(150, 122, "RawModule(code=read_kernel(…)): a raw launch", 13, colour=SOFT)
    picture.arrow((470, 405), (620, 405), (620, 277))
    picture.text(480, 397, "read_kernel", 13, MONO, SOFT)
    picture.arrow((720, 205), (755, 205), (755, 110), (798, 110))
    picture.text(746, 100, "CUDA tensors", 13, colour=SOFT, more="text-anchor='end'")
    picture.arrow((720, 245), (755, 245), (755, 340), (798, 340))
    picture.text(746, 322, "CPU tensors,", 13, colour=SOFT, more="text-anchor='end'")
    picture.text(746, 339, "or inside sanitize()", 13, colour=SOFT, more="text-anchor='end'")
    picture.text(746, 356, "or profile()", 13, colour=SOFT, more="text-anchor='end'")
    picture.arrow((970, 340), (1004, 340), (1004, 275), (1018, 275))
    picture.arrow((970, 360), (1004, 360), (1004, 405), (1018, 405))
    picture.arrow((970, 310), (988, 310), (988, 30), (60, 30), (60, 173))
    picture.arrow((970, 110), (988, 110), (988, 36))
    picture.text(70, 50, "either machine writes its results into the tensors of the launch", 13, colour=SOFT)
    picture.arrow((1090, 225), (1090, 30), (994, 30))
    picture.text(1020, 22, "as tables", 13, colour=SOFT)
    return str(picture)


if __name__ == "__main__":
    for name, drawn in (("rooms", rooms()), ("launch", launch())):
        (DOCS / f"{name}.svg").write_text(drawn, encoding="utf-8")
