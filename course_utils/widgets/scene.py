"""One moment of a recorded launch, as a chapter shows it: the player, opened where a sentence points to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from course_utils.arguments import integer
from course_utils.emulator import Recording, record
from course_utils.widgets.player import Player, without_steps

# What a player may start with besides what `scene` finds out by itself, and the values that each takes; None: any.
LOOKS: dict[str, Sequence[object] | None] = {
    "colour": ("value", "writer", "age", "bank"),
    "lane": range(32),
    **dict.fromkeys(("figures", "byBank", "followsArray", "followsWarp", "followsFile", "short"), (False, True)),
    **dict.fromkeys(("array", "element", "quantity", "type", "holdsWindow"), None),
}


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
    variables: bool = False,
    **look: object,
) -> Player:
    """Plays one block of the launch that `call()` makes, and opens at a step in the line that has the text `at`.

        widgets.scene(lambda: kernel(grid, block, args), at="sum += Q", on="K")

    at: a piece of the text of one line in which the block works, or calls a function that does. on: the array that the
    step touches; None: any, or none. visit: which of these steps, counted from 0; a negative one from the end. warp:
    of this warp alone; -1: of the copy engine and the tensor cores. block, launch: as `play` takes them. cell: an array
    and the offset of a byte in it: what is chosen, and seen at first. variables: keep the local variables of each
    thread, which are most of what a page with the player loads. look: what else the player starts with, such as
    colour="bank", lane=3 or figures=True; short=False unfolds all of it.

    Raises what `course_utils.emulator.record` raises, TypeError for what is no text and no number, and ValueError for a
    line, an array, a byte, a warp, a visit or a look that there is not.
    """
    if not isinstance(at, str):
        raise TypeError(f"at: got {at!r}, takes a text of one line")
    integer("visit", visit, -(2**31), 2**31)
    _check_look(look)
    recording = record(call, block=block, launch=launch)
    if not recording.steps:
        why = without_steps(recording.kernel, recording.index, recording.failure)
        raise ValueError(f"call: nothing to play; {why}")
    if warp is not None:
        integer("warp", warp, -1, recording.warps - 1)
    step = _step(recording, at, on, visit, warp)
    if cell is not None:
        look = {**look, **_chosen(recording, cell)}
    meta, data = (recording if variables else recording.without_variables()).packed()
    return Player(meta={**meta, "start": {"short": True, **look}}, data=data, step=step)


def _check_look(look: Mapping[str, object]) -> None:
    for name, value in look.items():
        if name not in LOOKS:
            raise TypeError(f"scene() takes no argument {name!r}; the look of a player has {', '.join(LOOKS)}")
        if LOOKS[name] is not None and value not in LOOKS[name]:
            raise ValueError(f"{name}: got {value!r}, takes {_listed(LOOKS[name])}")


def _listed(values: Sequence[object]) -> str:
    if isinstance(values, range):
        return f"a number from {values[0]} to {values[-1]}"
    return f"one of {', '.join(map(repr, values))}"


def _chosen(recording: Recording, cell: tuple[str, int]) -> dict[str, object]:
    """What the player starts with so that the number at a cell is chosen."""
    if not isinstance(cell, tuple) or len(cell) != 2:
        raise TypeError(f"cell: got {cell!r}, takes an array's name and the offset of a byte, such as ('tile', 132)")
    name, offset = cell
    if isinstance(name, str) and isinstance(offset, int):
        name, offset = recording.member(name, offset)
    number = _array(recording, name, "cell")
    array = recording.arrays[number]
    offset = integer(f"cell: the byte of {array.name}", offset, 0, array.size - 1)
    chosen = {"array": number, "offset": offset - offset % array.itemsize}
    return {"array": number, "cell": chosen, "looksAtCell": True}


def _step(recording: Recording, at: str, on: str | None, visit: int, warp: int | None) -> int:
    columns = recording.columns
    steps = np.isin(columns["steps.place"], _places(recording, at))
    if on is not None:
        steps &= columns["steps.array"] == _array(recording, on, "on")
    if warp is not None:
        steps &= columns["steps.warp"] == warp
    found = np.flatnonzero(steps)
    if not -len(found) <= visit < len(found):
        raise ValueError(f"visit: got {visit}; the block has {len(found)} such steps in the line with {at!r}")
    return int(found[visit])


def _places(recording: Recording, at: str) -> list[int]:
    """The places in the line that has this text, and in functions that are called there."""
    lines = {place[:2] for place in recording.places if at in _text(recording.sources, *place[:2])}
    if len(lines) != 1:
        raise ValueError(f"at: got {at!r}, takes a text of one line in which the block works; {len(lines)} have it")
    found: list[int] = []
    for number in range(len(recording.places)):
        chain = [number]
        while (caller := recording.places[chain[-1]].caller) >= 0:
            chain.append(caller)
        if any(recording.places[one][:2] in lines for one in chain):
            found.append(number)
    return found


def _text(sources: Mapping[str, str], file: str, line: int) -> str:
    lines = sources.get(file, "").splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else ""


def _array(recording: Recording, name: str, argument: str) -> int:
    names = [array.name for array in recording.arrays]
    if name not in names:
        raise ValueError(f"{argument}: got the array {name!r}, takes one of {', '.join(map(repr, names))}")
    return names.index(name)
