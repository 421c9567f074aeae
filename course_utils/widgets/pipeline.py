"""Chapter 07's pipeline viewer: which unit works and which waits, in one block of each step of the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.plots.look import GREEN, GREY, GROUND, INK, MATRICES, PALE
from course_utils.widgets.frame import MASKED_HATCH, Frame

BEGIN, WINDOW = 8000, 8000  # the first visible cycle, and how many are visible
# What a span is: its colour, and the words of the legend. Waits are hatched.
KINDS = {
    "K": (MATRICES["K"], "K: asked for, not yet seen to be there"),
    "V": (MATRICES["V"], "V: asked for, not yet seen to be there"),
    "S": (MATRICES["Q"], "S = Q Kᵀ"),
    "PV": (MATRICES["O"], "P V"),
    "asks": (GREY, "asks for a tile; a producer first waits for a free place"),
    "computes": (GREEN, "computes"),
    "waits": (PALE, "waits"),
}


class Pipeline(Frame):
    """Made by `pipeline`. `step` is the place of a block among those given, from 0 on."""

    _script = "pipeline.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture of a block (None: the current one)."""
        return _draw(self.meta["blocks"][self.step if step is None else step], self.meta["from"])


def pipeline(blocks: Sequence[dict], *, number: str = "3") -> Pipeline:
    """Blocks of the steps of a ladder over time, one at a time, in the browser.

    blocks: of each step its number and title; lanes, each with a name and spans [begin, end, kind] in the order of
    time, a kind being one of KINDS; cycles from tile to tile; share of what the tensor cores could do; slower: how many
    times as long the kernel took while it was recorded. number: of the step that is shown first. Raises
    ValueError naming the argument.
    """
    numbers = [block["number"] for block in blocks]
    if number not in numbers:
        raise ValueError(f"number: got {number!r}, takes {', '.join(numbers)}")
    meta = {"blocks": list(blocks), "kinds": KINDS, "window": WINDOW, "from": BEGIN}
    return Pipeline(meta=meta, data=b"", step=numbers.index(number))


def _draw(block: dict, begin: int) -> Figure:
    figure = Figure(figsize=(7.5, 1.7 + 0.42 * len(block["lanes"])), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.08, 1, 0.92))  # the last line is for the note about still pictures
    axes = figure.subplots()
    for y, lane in enumerate(block["lanes"]):
        visible = (span for span in lane["spans"] if span[1] > begin and span[0] < begin + WINDOW)
        for start, end, kind in visible:
            axes.add_patch(Rectangle((start, y + 0.12), end - start, 0.76, **_look(kind)))
    axes.set(xlim=(begin, begin + WINDOW), ylim=(len(block["lanes"]), 0), xlabel="cycles")
    axes.set_yticks([y + 0.5 for y in range(len(block["lanes"]))], [lane["name"] for lane in block["lanes"]])
    axes.tick_params(length=0)
    axes.set_title(f"{block['number']} {block['title']}: a tile takes {block['cycles']:,} cycles", fontsize=10)
    kinds = [Rectangle((0, 0), 1, 1, label=words, **_look(kind)) for kind, (_, words) in KINDS.items()]
    figure.legend(handles=kinds, loc="outside upper left", ncols=2, fontsize=8, labelspacing=0.25)
    return figure


def _look(kind: str) -> dict[str, object]:
    """The look of a span's box."""
    hatch = MASKED_HATCH if kind == "waits" else None
    return {"facecolor": KINDS[kind][0], "edgecolor": INK if hatch else GROUND, "hatch": hatch, "lw": 0.4}
