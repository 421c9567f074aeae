"""The chapters' guesses on a page without a kernel: the widget's own JavaScript, upgraded from what a cell has stored.

A cell with a guess stores its question with the answer folded (`course_utils.widgets.guesses`). guesses.js makes the
same box of it in the browser; without scripts the folded answer stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

WIDGETS = Path(__file__).resolve().parents[1] / "widgets"  # read as files: importing them would bring PyTorch
SCRIPT, STYLES = "guesses.js", ("widgets.css", "guesses.css")
_HELD_PICTURE = '<img alt="" src="data:image/'


def widget_script(name: str) -> str:
    """The JavaScript of a widget as JupyterLab gets it (`widgets.frame.esm`)."""
    return "\n".join((WIDGETS / "js" / part).read_text(encoding="utf-8") for part in ("shared.js", name))


def files() -> Iterator[tuple[str, str]]:
    """What pages with a guess load, as (name, text)."""
    yield SCRIPT, f"{widget_script(SCRIPT)}\n{Path(__file__).with_name('guesses.js').read_text(encoding='utf-8')}"
    for name in STYLES:
        yield name, (WIDGETS / name).read_text(encoding="utf-8")


def held_pictures(page: str) -> int:
    """How many pictures a guess in this HTML holds back."""
    return page.count(_HELD_PICTURE)


def described(page: str, alts: list[str]) -> str:
    """The HTML with these descriptions of its held pictures, in order; those without one keep none."""
    given = iter(alts)
    return re.sub(re.escape(_HELD_PICTURE), lambda m: m[0].replace('alt=""', f'alt="{escape(next(given, ""))}"'), page)
