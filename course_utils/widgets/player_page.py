"""A recorded launch as one page that needs no server, no network and no Python: `python -m course_utils record`."""

from __future__ import annotations

import base64
import html
import json

from course_utils.widgets.player import Player

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; padding: 14px 18px 28px; background: Canvas; color: CanvasText; }
body > main { max-width: 1440px; margin: 0 auto; }
@media (max-width: 500px) { body { padding: 8px 10px 20px; } }
"""

# In the place of Python, which keeps a widget's state in a notebook. The theme is the system's. A block, because the
# player's own names stand in the same script.
_START = """
{
const here = (id) => document.getElementById(id).textContent;
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow_theme = () => { document.body.dataset.jpThemeLight = !dark.matches; };
dark.addEventListener("change", follow_theme);
follow_theme();
const { meta, step } = JSON.parse(here("recording"));
const packed = await (await fetch(`data:application/octet-stream;base64,${here("data")}`)).arrayBuffer();
const state = { meta, data: new DataView(packed), step, alone: true };
const listeners = [];
const model = {
  get: (name) => state[name],
  set(name, value) {
    state[name] = value;
    for (const [event, listener] of listeners) if (event === `change:${name}`) listener();
  },
  save_changes() {},
  on: (event, listener) => listeners.push([event, listener]),
};
await render({ model, el: document.querySelector("main") });
}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1 class="ak-aloud">{title}</h1>
<noscript>This page shows a recorded launch by JavaScript, which is switched off here.</noscript>
</main>
<script type="application/json" id="recording">{recording}</script>
<script type="text/plain" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(player: Player) -> str:
    """The HTML of a page with this player, opened at its step. The page contains the script, the styles and the
    recording."""
    start = json.dumps({"meta": player.meta, "step": player.step}, separators=(",", ":"))
    index = ", ".join(map(str, player.meta["index"]))
    return _PAGE.format(
        title=html.escape(f"{player.meta['kernel']}, block ({index}), step by step"),
        style=f"{player._css}{_STYLE}",
        recording=start.replace("<", "\\u003c"),  # no text of it can end the script
        data=base64.b64encode(player.data).decode(),
        script=f"{player._esm}{_START}",
    )
