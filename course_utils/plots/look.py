"""The one look of all pictures: a palette with meaning, matplotlib's settings, and how a notebook shows a figure.

A figure goes to a notebook in two forms. PNG at twice the size, on a light ground, is what is saved: GitHub shows it,
and JupyterLab where a notebook is not trusted, which shows no SVG there. SVG is shown where a cell has just run: it has
each colour twice, for a light and for a dark page. JupyterLab shows SVG as an <img>, which sees none of the page's CSS
variables but its `color-scheme`; the course's extension (course_utils/jupyter/labextensions) sets that by the theme.
Elsewhere the system's theme decides. A grey on no ground would not do: none has a contrast of 4.5 on white and #111.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.figure import Figure
from PIL import Image

# What each colour becomes on a dark page. Marks have a contrast of 3 on their ground, the colours of TEXT 4.5.
ON_DARK = {
    (INK := "#1a1a1a"): "#ececec",
    (GROUND := "#ffffff"): "#111111",
    (GREY := "#666666"): "#a8a8a8",
    (PALE := "#d9d9d9"): "#3d3d3d",  # idle, left out, a grid: it is meant to step back
    (BLUE := "#0072b2"): "#4ba3dd",
    (SKY := "#3b98d4"): "#8accf5",
    (ORANGE := "#c87d00"): "#eba937",
    (GREEN := "#00875f"): "#2fbd92",
    (VERMILION := "#c04a00"): "#f08048",
    (PURPLE := "#a8548a"): "#d98fc0",
    (YELLOW := "#8c7a00"): "#dcc93a",
    (RED := "#b3261e"): "#ff8f85",
    (LEAF := "#2e6b34"): "#7bcf85",
}
TEXT = (INK, GREY, BLUE, GREEN, VERMILION, PURPLE, RED, LEAF)

# Where a number is stored, from far to near.
HBM, L2, SHARED, REGISTERS = BLUE, SKY, ORANGE, GREEN
# The library of a time or traffic. A model or a floor is a line in INK, or in GREY.
OURS, FLASH, CUDNN, NAIVE = VERMILION, PURPLE, YELLOW, GREY
_OTHERS = (BLUE, GREEN, SKY, ORANGE)
PASS, FAIL = LEAF, RED
# The matrices of attention, and what the reader has chosen; js/shared.js has them, too. One value for light and dark.
MATRICES = {"Q": "#2b7de0", "K": "#c8641b", "V": "#2e8b57", "S": "#777777", "O": "#a35bd6", "pick": "#e0701a"}
# Where neighbours must differ and the last is the neighbour of the first: banks, lanes, swizzled columns.
CYCLIC = "twilight_shifted"
# Eight of that kind, for the rows of an ldmatrix.
LANES_OF_A_READ = ("#d1495b", "#e08e26", "#b3a100", "#4f9d4a", "#1f9aa8", "#5b86e5", "#9471dd", "#c04f9f")
# Text on a mark, in both themes; and on the light and the dark end of a colour map, which is the same in both.
ON_MARK = "#010101"
ON_MAP = (ON_MARK, "#fefefe")

SHOWN_DPI = 100
# Set in the environment of a run whose pictures are not looked at (tests/helpers/keep_outputs.py): each is drawn once.
UNSEEN = "COURSE_PICTURES_UNSEEN"
_DARK = "".join(f"--c{light[1:]}:{dark};" for light, dark in ON_DARK.items())
_THEMES = f"<style>svg{{fill:var(--c{INK[1:]},{INK})}}@media (prefers-color-scheme: dark){{:root{{{_DARK}}}}}</style>"

mpl.rcParams.update(
    {
        "axes.edgecolor": INK,
        "axes.facecolor": GROUND,
        "axes.labelcolor": INK,
        "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlelocation": "left",
        "figure.constrained_layout.use": True,
        "figure.dpi": SHOWN_DPI,
        "figure.facecolor": GROUND,
        "figure.figsize": (7.5, 3.6),
        "font.size": 10,
        "hatch.color": INK,
        "legend.frameon": False,
        "patch.edgecolor": INK,
        "svg.hashsalt": "course",
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each of the kernels in `names`, by the library that it belongs to; if that is taken, another one."""
    chosen: dict[str, str] = {}
    others = itertools.cycle(_OTHERS)
    for name in names:
        role = _role(name)
        chosen[name] = role if role and role not in chosen.values() else next(others)
    return chosen


def _role(name: str) -> str | None:
    if re.search("naive|math|written out|dense mask", name):
        return NAIVE
    if "cuDNN" in name:
        return CUDNN
    if re.search("FLASH|SDPA flash", name):
        return FLASH
    return OURS if re.match("ours|(flash|sparse)_attention", name) else None


def png_and_size(figure: Figure, shown_dpi: int = SHOWN_DPI) -> tuple[bytes, dict[str, int]]:
    """`figure` as a small PNG at twice the size, so that it is sharp; and the width and height at which it is shown, as
    a notebook has them among an output's metadata."""
    with _laid_out(figure, shown_dpi):
        png, size = _sharp_png(figure, shown_dpi)
    return small_png(png), size


@contextlib.contextmanager
def _laid_out(figure: Figure, shown_dpi: int) -> Iterator[None]:
    """`figure` with the layout of its PNG, computed once. For the SVG savefig would draw all of it once more."""
    layout, dpi = figure.get_layout_engine(), figure.dpi
    if layout is not None:
        figure.dpi = 2 * shown_dpi
        layout.execute(figure)
        figure.dpi = dpi
    with _as_it_lies(figure):
        yield


@contextlib.contextmanager
def _as_it_lies(figure: Figure) -> Iterator[None]:
    """`figure` without its layout engine: savefig draws it once."""
    layout = figure.get_layout_engine()
    if layout is None:
        yield
        return
    with mpl.rc_context({"figure.constrained_layout.use": False}):  # else None would be a new engine
        figure.set_layout_engine(None)  # "none" would leave one, for which savefig draws once more
        yield
    figure.set_layout_engine(layout)


def _sharp_png(figure: Figure, shown_dpi: int) -> tuple[bytes, dict[str, int]]:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=2 * shown_dpi, pil_kwargs={"compress_level": 1})
    width, height = Image.open(file).size
    return file.getvalue(), {"width": width // 2, "height": height // 2}


def small_png(png: bytes) -> bytes:
    """A PNG with 128 colours, so that a saved notebook stays small; one with a palette stays as it is."""
    picture, file = Image.open(io.BytesIO(png)), io.BytesIO()
    if picture.mode == "P":
        return png
    picture.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, format="png", optimize=True)
    return file.getvalue()


def svg(figure: Figure) -> str:
    """`figure` as SVG that follows the theme of its page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    text = text.replace(": #000000", f": {INK}")  # "black" of a cell that knows no INK
    for light in ON_DARK:  # in styles, and in the attributes of hatches
        text = re.sub(f'(: |=")({light})', rf"\1var(--c{light[1:]}, \2)", text)
    head, tag, rest = text.partition("<defs>")
    return f"{head}{_THEMES}{tag}{rest}"


def show_in_notebook() -> None:
    """Makes notebooks show figures in these two forms. Outside of IPython's kernel it does nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or "inline" not in mpl.get_backend():
        return
    plt.switch_backend(mpl.get_backend())  # sets its own forms now, so that it does not replace these later
    plt.uninstall_repl_displayhook()  # at a cell's end it would draw each open figure for a window
    shell.display_formatter.formatters["image/png"].pop(Figure, None)
    shell.display_formatter.mimebundle_formatter.for_type(Figure, both_forms)


def both_forms(figure: Figure, **_: object) -> tuple[dict[str, bytes | str], dict[str, dict[str, int]]]:
    """The data that a notebook shows of `figure`, and their metadata. The PNG is made small when the notebook is saved
    (.ci/tidy_notebooks.py), and the drawing has the layout of the PNG: either would take a quarter of the time.

    Where nobody looks at it (`UNSEEN`), the SVG alone, without a layout: a figure that cannot be drawn is still an
    error.
    """
    if os.environ.get(UNSEEN):
        with _as_it_lies(figure):
            return {"image/svg+xml": svg(figure)}, {}
    with _laid_out(figure, SHOWN_DPI):
        png, size = _sharp_png(figure, SHOWN_DPI)
        drawing = svg(figure)
    return {"image/png": png, "image/svg+xml": drawing}, {"image/png": size}


show_in_notebook()
