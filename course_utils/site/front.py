"""The top of the first page: what the course is, where it starts, a kernel that runs, and links to chapters and games.

Unlike the chapters' widgets its script is in the page itself: a browser loads no module of a page from disk.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

import nbformat

ALT = "The source of the plain FlashAttention kernel, and beside it the matrix that its threads read."
MARK = 'data-widget-script="front.js"'  # in the HTML of a widget, which static/widgets.js would look for
STARTED = "data-front"
START = '<p class="course-start"><a href="{link}">Start</a> You need no GPU.</p>'
MODEL = (Path(__file__).parent / "static" / "model.js").read_text(encoding="utf-8")
# In the place of static/widgets.js.
_START = """
const box = document.querySelector("[data-front]");
const { meta, data, step } = JSON.parse(box.querySelector("script").textContent);
const buffer = new DataView(Uint8Array.from(atob(data), (one) => one.charCodeAt(0)).buffer);
box.replaceChildren(); // the widget measures the room that it has
render({ model: modelOf({ meta, data: buffer, step }), el: box });
"""


def cell() -> nbformat.NotebookNode:
    """A cell of a notebook as if it had just shown the kernel."""
    # These imports bring PyTorch, which the settings of Sphinx do without.
    from course_utils.chapters.start_here import front_page
    from course_utils.widgets.front import running_kernel

    bundle, metadata = running_kernel(*front_page.recording(), front_page.WORDS)._repr_mimebundle_()
    if "image/png" in bundle:
        bundle["image/png"] = base64.b64encode(bundle["image/png"]).decode()
    output = nbformat.v4.new_output("display_data", data=bundle, metadata=metadata)
    return nbformat.v4.new_code_cell(outputs=[output], metadata={"alt": ALT}, id="front")


def part(lead: str, shown: str, chapters: Sequence[tuple[str, str]], games: Sequence[tuple[str, str]]) -> str:
    """The first part of the page as Markdown. lead: what the course is, in a sentence; shown: the HTML of the kernel,
    as of another widget; chapters, games: the title and the link of each. The button leads to the first chapter."""
    from course_utils.widgets.frame import esm

    ways = {"Chapters": chapters, "Games": games}
    rows = [f"**{name}** {' · '.join(f'[{title}]({link})' for title, link in of)}" for name, of in ways.items() if of]
    script = f'<script type="module">{esm("front.js")}{MODEL}{_START}</script>'
    start = [START.format(link=escape(chapters[0][1]))] if chapters else []
    return "\n\n".join([lead, *start, shown.replace(MARK, STARTED), script, *rows]) + "\n"
