"""A widget whose buttons run Python for seconds: the state in words, and a player below."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anywidget
import ipywidgets
import traitlets

from course_utils.widgets.player import Player


class AtWork(anywidget.AnyWidget):
    """`status` says in words what is going on, and `busy` whether Python runs. `below` shows a launch; the caller
    displays it under the widget."""

    status = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)

    def __init__(self, **traits: object) -> None:
        super().__init__(**traits)
        self.below = ipywidgets.Output()

    def play_below(self, player: Player | None) -> None:
        """Shows a player in `below`, in place of the one before; None: empties it."""
        self.below.outputs = ()
        if player is not None:
            self.below.append_display_data(player)

    @contextlib.contextmanager
    def at_work(self, words: str, what_failed: str) -> Iterator[None]:
        """Sets `status` to `words` while the block runs. An exception goes into `status`: a button shows none."""
        self.busy, self.status = True, words
        try:
            yield
        except Exception as error:
            self.status = f"{what_failed}: {type(error).__name__}: {error}"
        finally:
            self.busy = False
