"""The chapters' widgets on a page without a kernel: JupyterLab's own JavaScript, and the state to start from.

A widget's output carries its state (`course_utils.widgets.frame.STATE`). static/widgets.js puts the widget in the place
of its still picture; without scripts the picture stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

WIDGETS = Path(__file__).resolve().parents[1] / "widgets"  # read as files: importing them would bring PyTorch
STYLES = ("widgets.css", "guesses.css", "player.css", "playing.css")
COMMENT = re.compile(r"^[ \t]*//.*\n", re.MULTILINE)
STATE = "application/vnd.attention-course.widget+json"


def files() -> Iterator[tuple[str, str]]:
    """The files that pages with a widget load, as (path, text): each script as JupyterLab gets it
    (`widgets.frame.esm`), without comment lines, which keeps pages light."""
    scripts = WIDGETS / "js"
    texts = {str(file.relative_to(scripts)): file.read_text(encoding="utf-8") for file in sorted(scripts.rglob("*.js"))}
    for name, text in texts.items():
        if 'data-widget": "' in text:  # not a script that others begin with
            parts = ("shared.js", *re.findall(r"^// with ([\w/]+\.js)$", text, re.MULTILINE), name)
            yield f"widgets/{name}", COMMENT.sub("", "\n".join(texts[part] for part in parts))
    for name in STYLES:
        yield name, (WIDGETS / name).read_text(encoding="utf-8")


def alive(state: Mapping, still: str) -> str:
    """The HTML of a widget that starts from this state. still: the HTML of its picture."""
    start = json.dumps({name: state[name] for name in ("meta", "data", "step")}, separators=(",", ":"))
    inert = start.replace("<", "\\u003c")  # no text of it can end the script
    return (
        f'<div class="course-widget" data-widget-script="{escape(state["script"])}">{still}'
        f'<script type="application/json">{inert}</script></div>'
    )
