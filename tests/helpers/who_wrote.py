"""What a recording says of a cell (who wrote it, and from which inputs), put to the test by experiments on the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from course_utils.emulator import record
from course_utils.emulator.recorded import ATOMIC, COPY, COPY_READ, COPY_WRITE, READ, WRITE, Access
from tests.helpers.left_out import ALL_ELSE, DYNAMIC, NEVER, NOTHING, NOWHERE, Lab, Line, Moment, Subject

STEPS = (50.0, -50.0)  # by which an input is changed: a second time where the first one makes no difference


class Cell(NamedTuple):
    """A byte of an array (its number in the recording) at the end, or as a reader finds it."""

    array: int
    byte: int
    reader: Access | None = None

    @property
    def step(self) -> int | None:
        return None if self.reader is None else self.reader.step


class Element(NamedTuple):
    """One number of an input."""

    name: str
    index: int


class Trial:
    """One block of a launch, recorded; some of the bytes that it wrote, drawn at random; and the kernel in a lab.

    outputs, shared: how many bytes of outputs, and of shared memory.
    """

    def __init__(self, subject: Subject, folder: Path, *, outputs: int, shared: int, seed: int = 0) -> None:
        self.subject, self._rng = subject, np.random.default_rng(seed)
        grid = (*subject.launch.grid, 1, 1)[:3]
        self.block = int(self._rng.integers(grid[0] * grid[1] * grid[2]))
        index = self.block % grid[0], self.block // grid[0] % grid[1], self.block // (grid[0] * grid[1])
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in subject.launch.args]
        self.recording = record(lambda: subject.call(subject.module, args), block=index)
        assert not self.recording.failure
        self._c = self.recording.columns
        self._names = [array.name for array in self.recording.arrays]
        self.cells = [*self._draw(outputs, WRITE, is_shared=False), *self._draw(shared, READ, is_shared=True)]
        lines = {(self._line(self.claim(cell)[0]), self._memory(cell.array)) for cell in self.cells}
        looks = {(self._line(cell.reader.step), self._memory(cell.array)) for cell in self.cells if cell.reader}
        self.lab = Lab(subject, folder, lines, looks)

    # ---- what the recording says

    def claim(self, cell: Cell) -> tuple[int, int]:
        """Who wrote the cell: a step of the recording and its thread; of a copy, where it was started, and by whom."""
        access = self.recording.writer(cell.array, cell.byte, cell.step)
        assert access is not None, f"nobody is said to have written {self.name(cell)}"
        if self._c["steps.op"][access.step] != COPY_WRITE:
            return access.step, access.thread
        step = int(self._c["steps.extra"][access.step])
        starts = [32 * int(self._c["steps.warp"][step]) + lane for lane in self._lanes(step)]
        return step, access.thread if access.thread >= 0 else starts[0]

    def origins(self, cell: Cell) -> set[Element]:
        """The inputs that the cell is said to come from."""
        found = set()
        for origin in self.recording.origins(cell.array, cell.byte, cell.step):
            array = self.recording.arrays[self._c["steps.array"][origin.step]]
            low, width = int(self._c["lanes.offset"][origin.row]), int(self._c["steps.width"][origin.step])
            found |= {Element(array.name, at) for at in range(low // array.itemsize, -(-(low + width) // array.itemsize))}
        return found

    def name(self, cell: Cell) -> str:
        when = "" if cell.reader is None else f" before step {cell.step}"
        return f"byte {cell.byte} of {self._names[cell.array]}{when}"

    def _draw(self, count: int, op: int, *, is_shared: bool) -> list[Cell]:
        """Bytes of rows that were written (outputs), or read by threads (shared memory)."""
        c = self._c
        ops = (op, COPY_WRITE) if op == WRITE else (op,)
        right = [(array.space == "shared") == is_shared for array in self.recording.arrays]
        steps = np.flatnonzero(np.isin(c["steps.op"], ops) & np.array([*right, False])[c["steps.array"]])
        steps = steps if op == WRITE else steps[(c["steps.width"][steps] >= 4) & (c["steps.warp"][steps] >= 0)]
        rows = [(step, row) for step in steps.tolist() for row in range(len(self._lanes(step)))]
        cells = []
        for n in self._rng.choice(len(rows), min(count, len(rows)), replace=False):
            step, row = rows[n]
            row_at = int(c["steps.first"][step]) + row
            byte = int(c["lanes.offset"][row_at] + self._rng.integers(c["steps.width"][step]))
            reader = Access(step, 32 * int(c["steps.warp"][step]) + self._lanes(step)[row], row_at)
            cells.append(Cell(int(c["steps.array"][step]), byte, reader if is_shared else None))
        return cells

    def _lanes(self, step: int) -> list[int]:
        return [lane for lane in range(32) if self._c["steps.mask"][step] >> lane & 1]

    def _memory(self, array: int) -> str:
        name = self._names[array]
        if self.recording.arrays[array].space != "shared":
            return NOWHERE
        return DYNAMIC if " " in name else name

    def _line(self, step: int) -> Line:
        place = self.recording.places[self._c["steps.place"][step]]
        return Line(place.file, place.line)

    # ---- who wrote it

    def moment(self, step: int, thread: int) -> Moment:
        """The thread's execution of a statement that a step is part of. Raises AssertionError where the thread comes to
        the statement not as often as the recording says, or not at all."""
        c, line = self._c, self._line(step)
        statement = self.lab.statement(line)
        at = [
            place.file == line.file and place.line >= 0 and self.lab.covers(statement, place.line)
            for place in self.recording.places
        ]
        alike = {WRITE: (WRITE, ATOMIC), ATOMIC: (WRITE, ATOMIC), READ: (READ,), COPY_READ: (COPY_READ,), COPY: (COPY,)}
        mine = (c["steps.warp"] == thread // 32) & (c["steps.mask"] >> np.uint32(thread % 32) & 1 == 1)
        steps = np.flatnonzero(mine & np.isin(c["steps.op"], alike[c["steps.op"][step]]) & np.array([*at, False])[c["steps.place"]])
        moment = Moment(line, self.block, thread, NEVER)
        is_read = c["steps.op"][step] == READ
        if is_read:
            times = self.lab.run(look=(moment, self._memory(int(c["steps.array"][step])), 0)).look_times
        else:
            times = self.lab.run(moment).times
        assert times and len(steps) and len(steps) % times == 0, (
            f"thread {thread} comes to {line} {times} times, and has {len(steps)} steps there"
        )
        return moment._replace(time=int(np.searchsorted(steps, step)) // (len(steps) // times))

    def objections(self, cell: Cell, step: int, thread: int) -> list[str]:
        """What speaks against it that this thread wrote the cell by its part of this step."""
        try:
            moment, read = self.moment(step, thread), None
            if cell.reader is not None:
                read = self.moment(cell.reader.step, cell.reader.thread)
        except AssertionError as error:
            return [str(error)]
        shared = read and (read, self._memory(cell.array), cell.byte // 4)

        def found(**how: object) -> int:
            """The byte; of shared memory, the word that it is part of."""
            seen = self.lab.run(look=shared, **how)
            assert read is None or seen.look_times > read.time
            return seen.word if read else _bytes(seen.tensors, self._names[cell.array])[cell.byte].item()

        def byte(value: int) -> int:
            return value >> 8 * (cell.byte % 4) & 255 if read else value

        right = found()
        threads = int(np.prod(self.subject.launch.block))
        other = moment._replace(thread=int((moment.thread + self._rng.integers(1, threads)) % threads))
        later = moment._replace(time=moment.time + 1)
        says = [f"without {one}, it is another" for one in (other, later) if byte(found(leave_out=one)) != byte(right)]
        if read:  # it must be written anew, also where it was the same before
            scribble = cell.byte // 4, ~right
            if byte(found(leave_out=moment, what=NOTHING, scribble=scribble)) != byte(right):
                says.append(f"{moment} does not write it")
            without = found(leave_out=moment, scribble=scribble)
        else:  # it held another byte before the launch
            if right != _bytes(self.lab.truth, self._names[cell.array])[cell.byte]:
                says.append("it differs from launch to launch")
            if found(leave_out=moment, what=ALL_ELSE) != right:
                says.append(f"{moment} alone does not write it")
            without = found(leave_out=moment)
        return [*says, f"without {moment}, it is the same"] if byte(without) == byte(right) else says

    # ---- what it comes from

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The inputs whose elements can be changed."""
        found = {}
        for name, arg in zip(self.lab.names, self.subject.launch.args, strict=True):
            if isinstance(arg, torch.Tensor) and name not in self.subject.outputs:
                if arg.is_floating_point() or name in self.subject.others:
                    found[name] = arg
        return found

    def elements(self) -> list[Element]:
        """All that can be changed."""
        return [Element(name, i) for name, tensor in self.inputs.items() for i in range(tensor.numel())]

    def altered(self, elements: Iterable[Element]) -> dict[Cell, bool]:
        """Which cells of outputs are others when all these elements are changed."""
        found = {cell: False for cell in self.cells if cell.reader is None}
        elements = list(elements)
        for by in STEPS:
            given = {name: tensor.clone() for name, tensor in self.inputs.items()}
            for name, index in elements:
                if name in self.subject.others:
                    given[name].view(-1)[index] = self.subject.others[name].view(-1)[index]
                else:
                    given[name].view(-1)[index] += by
            tensors = self.lab.run(**given).tensors
            for cell in found:
                name, size = self._names[cell.array], self.recording.arrays[cell.array].itemsize
                number = slice(cell.byte // size * size, cell.byte // size * size + size)
                found[cell] |= not _bytes(tensors, name)[number].equal(_bytes(self.lab.truth, name)[number])
            if all(found.values()):
                break
        return found


def _bytes(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return tensors[name].view(-1).view(torch.uint8)
