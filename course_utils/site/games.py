"""The games: a page of text in docs/games/ for each, with the game in place of a mark."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

if TYPE_CHECKING:
    from course_utils.widgets.frame import Frame

MARK = "<!-- the game -->"


@dataclass(frozen=True)
class Game:
    """A game. file: its page, in the repository; chapter: the slug of its chapter; invitation: Markdown for the
    chapter's page, with the link as `{link}`; alt: a description of its still picture; make: makes its widget."""

    file: str
    chapter: str
    invitation: str
    alt: str
    make: Callable[[], Frame]


def _race() -> Frame:
    # These imports bring PyTorch, which the settings of Sphinx do without.
    from course_utils.chapters.hopper.race import figures
    from course_utils.widgets import race_past_cudnn

    return race_past_cudnn(figures())


def _paint() -> Frame:
    from course_utils.chapters.sparse_patterns.times import rates
    from course_utils.widgets import paint_a_mask

    return paint_a_mask(rates=rates())


def _missing_barrier() -> Frame:
    from course_utils.chapters.missing_barrier import levels
    from course_utils.widgets import find_the_missing_barrier

    return find_the_missing_barrier(levels())


GAMES = (
    Game(
        "docs/games/find_the_missing_barrier.md",
        "02_flash_attention_minimal",
        "**A game** [Find the missing barrier]({link}): seven kernels have each lost one. Step until you see it.",
        "The source of a kernel that turns a tile of 32 × 32, and beside it the numbers that it reads.",
        _missing_barrier,
    ),
    Game(
        "docs/games/paint_a_mask.md",
        "04_sparse_patterns",
        "**A game** [Paint a mask]({link}): who sees whom, what it costs, how far it reaches, and its code.",
        "A grid of 64 × 64 cells with a strided pattern; in words its density, tiles that it skips and its reach.",
        _paint,
    ),
    Game(
        "docs/games/race_past_cudnn.md",
        "07_hopper",
        "**A game** [Race past cuDNN]({link}): choose tile, stages, warps and order; recorded runs answer.",
        "Bars: the speeds of FLASH, of cuDNN and of the chapter's last kernel, as times of cuDNN's.",
        _race,
    ),
)


def of_chapter(slug: str) -> Game | None:
    """The game that belongs to a chapter, if there is one."""
    return next((game for game in GAMES if game.chapter == slug), None)


def cell_of(game: Game) -> nbformat.NotebookNode:
    """A cell of a notebook as if it had just shown the game."""
    bundle, metadata = game.make()._repr_mimebundle_()
    if "image/png" in bundle:
        bundle["image/png"] = base64.b64encode(bundle["image/png"]).decode()
    output = nbformat.v4.new_output("display_data", data=bundle, metadata=metadata)
    return nbformat.v4.new_code_cell(outputs=[output], metadata={"alt": game.alt}, id=Path(game.file).stem)
