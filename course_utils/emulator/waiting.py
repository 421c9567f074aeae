"""The progress of a long launch: a line in the notebook or the terminal, which goes when the launch ends."""

from __future__ import annotations

import html
import os
import shutil
import sys
import time
from collections.abc import Callable

FROM_SECONDS = 3.0  # what takes less ends before anybody wonders
EVERY_SECONDS = 0.5


class Progress:
    """The progress of a launch of `blocks` blocks; `done` gives the number of blocks that have ended."""

    def __init__(self, kernel: str, blocks: int, done: Callable[[], int]) -> None:
        self._kernel, self._blocks, self._done = kernel, blocks, done
        self._begun = time.monotonic()
        self._next = self._begun + FROM_SECONDS
        self._write: Callable[[str], None] | None = None

    def look(self) -> None:
        """Shows how far the launch is, if it is time to. To be called again and again while it runs."""
        now = time.monotonic()
        if now < self._next:
            return
        from tqdm import tqdm  # no ordinary launch needs it

        self._next = now + EVERY_SECONDS
        self._write = self._write or _line()
        columns = min(100, shutil.get_terminal_size().columns - 1)
        self._write(
            tqdm.format_meter(self._done(), self._blocks, now - self._begun, columns, prefix=self._kernel, unit="block")
        )

    def close(self) -> None:
        """Takes the line away."""
        if self._write is not None:
            self._write("")


def _line() -> Callable[[str], None]:
    """What writes a text in the place of its last one: where somebody looks on."""
    if "CI" in os.environ or "PYTEST_CURRENT_TEST" in os.environ:
        return lambda text: None
    if _somebody_runs_a_cell():
        return _output_of_the_cell()
    if sys.stderr is not None and sys.stderr.isatty():
        return lambda text: print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
    return lambda text: None


def _somebody_runs_a_cell() -> bool:
    """In a notebook, and not by nbval or nbclient: these say that nobody can answer an input()."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return bool(request.get("content", {}).get("allow_stdin"))


def _output_of_the_cell() -> Callable[[str], None]:
    from IPython.display import HTML, display

    # No widget of tqdm's: a closed one is an error in the notebook that is saved.
    shown = display(HTML(""), display_id=True)
    return lambda text: shown.update(HTML(f"<pre>{html.escape(text)}</pre>" if text else ""))
