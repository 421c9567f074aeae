"""What widgets share whose buttons keep Python at work for seconds: the state in words, and a player below."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anywidget
import ipywidgets
import traitlets

from course_utils.widgets.player import Player


class AtWork(anywidget.AnyWidget):
    """`status` says in words what is going on, `busy` that Python is at work. `below` is a place of its own, shown by
    whoever shows the widget, in which a launch is played."""

    status = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)

    def __init__(self, **traits: object) -> None:
        super().__init__(**traits)
        self.below = ipywidgets.Output()

    def play_below(self, player: Player | None) -> None:
        """Puts a player into `below`, in the place of what was there; None: nothing."""
        self.below.outputs = ()
        if player is not None:
            self.below.append_display_data(player)

    @contextlib.contextmanager
    def at_work(self, words: str, what_failed: str) -> Iterator[None]:
        """Says `words` while the block runs. What it raises is said, too: behind a button nobody would see it."""
        self.busy, self.status = True, words
        try:
            yield
        except Exception as error:
            self.status = f"{what_failed}: {type(error).__name__}: {error}"
        finally:
            self.busy = False
