"""One moment of a recorded launch, as a chapter shows it: the player, opened where a sentence points to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from course_utils.emulator import record
from course_utils.widgets import recorded
from course_utils.widgets.player import Player, player


def scene(
    call: Callable[[], object],
    *,
    at: str,
    on: str | None = None,
    visit: int = 0,
    warp: int | None = None,
    block: int | tuple[int, ...] = (0, 0, 0),
    launch: int | None = None,
    cell: tuple[str, int] | None = None,
    **look: object,
) -> Player:
    """Plays one block of the launch that `call()` makes, and opens at a step in the line that has the text `at`.

        widgets.scene(lambda: kernel(grid, block, args), at="sum += Q", on="K")

    at: a piece of the text of a line, which stands in no other line that the block works in. on: the array that the
    step touches; None: any, or none. visit: which of these steps, counted from 0; a negative one from the end. warp:
    of this warp alone; -1: of the copy engine and the tensor cores. block, launch: as `course_utils.emulator.record`
    takes them. cell: an array and the offset of a byte in it: what is chosen there, and seen at first. look: what else
    the player starts with, such as colour="bank", lane=3 or figures=True.

    Raises what `course_utils.emulator.record` raises, and ValueError for a line, an array or a visit that the block
    does not have.
    """
    meta, data = record(call, block=block, launch=launch).packed()
    step = _step(meta, recorded.columns(meta, data), at, on, visit, warp)
    opened = player(meta, data)
    if cell is not None:
        array = _array(meta, cell[0], "cell")
        look = {**look, "array": array, "cell": {"array": array, "offset": cell[1]}, "looksAtCell": True}
    opened.meta = {**meta, "start": look}
    opened.step = step
    return opened


def _array(meta: Mapping, name: object, argument: str) -> int:
    names = [array["name"] for array in meta["arrays"]]
    if name not in names:
        raise ValueError(f"{argument}: got {name!r}, takes one of {', '.join(map(repr, names))}")
    return names.index(name)


def _step(meta: Mapping, found: Mapping[str, np.ndarray], at: str, on: str | None, visit: int, warp: int | None) -> int:
    places = [
        number
        for number, (file, line) in enumerate(meta["places"])
        if file in meta["sources"] and at in meta["sources"][file].splitlines()[line - 1]
    ]
    if len(places) != 1:
        raise ValueError(f"at: got {at!r}, takes a text in one line that the block works in; {len(places)} have it")
    steps = found["steps.place"] == places[0]
    if on is not None:
        steps &= found["steps.array"] == _array(meta, on, "on")
    if warp is not None:
        steps &= found["steps.warp"] == warp
    steps = np.flatnonzero(steps)
    if not -len(steps) <= visit < len(steps):
        raise ValueError(f"visit: got {visit}; of these steps there are {len(steps)} in the line with {at!r}")
    return int(steps[visit])
