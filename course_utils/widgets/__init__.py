"""Interactive pictures: drawn by JavaScript in the browser, with a still picture where no widget can run.

A widget is a `frame.Frame` with a script in js/. Its root is `.ak-widget[data-widget="name"]` with a `<canvas>` or
`<svg>`, a slider `input.ak-step[type=range][data-lm-suppress-shortcuts=true]`, the buttons `.ak-prev` and `.ak-next`,
and the text `.ak-status[aria-live=polite]`, which changes with every step. Its states come from a pure function with a
test of its own; what JavaScript computes for a still picture, Python computes too, and a test compares both
(test_same_in_both.py); the rules of a game are in JavaScript alone. It also
runs on the site, from the state in its output: there it fits a phone, says in words what needs Python
(`model.get("alone")`), and keeps what its controls say in the page's address (`keepInAddress`). js/shared.js goes in
front of each script, and so do the files that its first lines name: `// with score.js`. No colour alone says something;
coloured words are `inked`, words on a colour have `inkOn` it; what moves by itself asks `prefers-reduced-motion`. It is
listed in tests/helpers/chapter_widgets.py, example_widgets.py beside it, and `SHOWS` of tests/browser/test_chapters.py,
which work it by mouse and keyboard.

A scene is a cell `widgets.scene(call, at="text of a line", on="array")`: one block of a launch in a player that opens
at the moment which shows the point. One question stands before it, what there is to see after it. The call is recorded
in 2 s and in at most 300,000 bytes; `on`, `cell` or `colour` show the point without a click, on a phone's first screen.
`widgets.findings(call, keep=True)` shows what the sanitizer finds, with buttons that work on the site, too.

A game is a widget, its words in docs/games/name.md with the mark `<!-- the game -->` where it stands, and a line in
`GAMES` of site/games.py. Its score is `keptHere` of js/score.js.
"""

# ruff: noqa: F401 — what is imported here is what notebooks and chapters use

from course_utils.widgets.bank_places import bank_places
from course_utils.widgets.bank_turns import bank_turns
from course_utils.widgets.cache_explorer import cache_explorer
from course_utils.widgets.dsa_explorer import DsaState, dsa_explorer, dsa_state, example_scores
from course_utils.widgets.explorer import mask_explorer
from course_utils.widgets.findings import findings
from course_utils.widgets.fragments import warp_fragments
from course_utils.widgets.grade_panel import check
from course_utils.widgets.guesses import guess
from course_utils.widgets.heatmap import score_heatmap
from course_utils.widgets.launch_grid import launch_grid
from course_utils.widgets.load_sectors import load_sectors
from course_utils.widgets.missing_barrier import find_the_missing_barrier
from course_utils.widgets.paint import paint_a_mask
from course_utils.widgets.pieces import two_pieces
from course_utils.widgets.pipeline import pipeline
from course_utils.widgets.planner import Planner, planner
from course_utils.widgets.player import play
from course_utils.widgets.progress_card import finish_chapter, show_progress
from course_utils.widgets.questions import ask
from course_utils.widgets.race import race_past_cudnn
from course_utils.widgets.scene import scene
from course_utils.widgets.stepper import tile_stepper
from course_utils.widgets.tiles import TileStep, tile_steps
