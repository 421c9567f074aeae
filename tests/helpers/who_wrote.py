"""Who a recording says wrote a cell, and from where it was copied, is tried by experiments on the kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from course_utils.emulator import record
from course_utils.emulator.recorded import ATOMIC, COPY_READ, COPY_WRITE, READ, WGMMA, WRITE, Access
from tests.helpers.left_out import ALL_ELSE, DYNAMIC, NEVER, NOTHING, NOWHERE, Lab, Line, Moment, Subject

Look = tuple[Moment, str, int]  # as `Lab.run` takes it
FEW = 0.01  # of the zeros that the copy engine writes
STEP = 50.0  # by which an input is changed


class Element(NamedTuple):
    """One number of an input."""

    name: str
    index: int


class Written(NamedTuple):
    """A thread did it in a step of the recording: it wrote a cell, or started the copy that did."""

    step: int
    thread: int

    def shifted(self) -> Written:
        """The same of the thread beside it."""
        return self._replace(thread=self.thread ^ 1)


class Copied(NamedTuple):
    """The copy engine brought it from there; None: a zero, from beyond the array's end."""

    source: Element | None

    def shifted(self) -> Copied:
        """The same from the number beside it."""
        return Copied(self.source and self.source._replace(index=self.source.index ^ 1))


ZERO = Copied(None)


class Cell(NamedTuple):
    """A byte of an array (its number in the recording) at the end, or as a reader finds it: a step and a thread of it,
    that reads or starts the product that does."""

    array: int
    byte: int
    reader: Written | None = None

    @property
    def step(self) -> int | None:
        return None if self.reader is None else self.reader.step


class Trial:
    """One block of a launch, recorded; some of the bytes that it wrote, drawn at random; and the kernel in a lab.

    count: how many bytes; shared: how many of them are of shared memory, if it is read at all; the others are of
    outputs.
    """

    def __init__(self, subject: Subject, folder: Path, *, count: int, shared: int, seed: int = 0) -> None:
        self.subject, self._rng = subject, np.random.default_rng(seed)
        grid = (*subject.launch.grid, 1, 1)[:3]
        self.block = int(self._rng.integers(grid[0] * grid[1] * grid[2]))
        index = self.block % grid[0], self.block // grid[0] % grid[1], self.block // (grid[0] * grid[1])
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in subject.launch.args]
        self.recording = record(lambda: subject.call(subject.module, args), block=index)
        assert not self.recording.failure
        self._c = self.recording.columns
        self._names = [array.name for array in self.recording.arrays]
        self.cells = self._draw(shared, is_shared=True)
        self.cells += self._draw(count - len(self.cells), is_shared=False)
        claims = {cell: self.claim(cell) for cell in self.cells}
        writers = [(cell, claim) for cell, claim in claims.items() if isinstance(claim, Written)]
        lines = {(self._line(claim.step), self._memory(cell.array)) for cell, claim in writers}
        looks = {(self._line(cell.reader.step), self._memory(cell.array)) for cell in self.cells if cell.reader}
        self.lab = Lab(subject, folder, lines, looks)
        given = dict(zip(self.lab.names, args, strict=True))
        assert all(given[name].equal(truth) for name, truth in self.lab.truth.items())

    # ---- what the recording says

    def claim(self, cell: Cell) -> Written | Copied:
        """Who wrote the cell; of shared memory that the copy engine wrote, from where it came."""
        access = self.recording.writer(cell.array, cell.byte, cell.step)
        assert access is not None, f"nobody is said to have written {self.name(cell)}"
        if self._c["steps.op"][access.step] != COPY_WRITE:
            return Written(access.step, access.thread)
        if access.thread < 0 and cell.reader is not None:
            return self._copied(cell, access)
        step = int(self._c["steps.extra"][access.step])
        return Written(step, access.thread if access.thread >= 0 else self._first_thread(step))

    def _copied(self, cell: Cell, write: Access) -> Copied:
        within = cell.byte - int(self._c["lanes.offset"][write.row])
        sources = self.recording.inputs(write)
        if not sources:
            return ZERO
        (read,) = sources
        array = self.recording.arrays[self._c["steps.array"][read.step]]
        return Copied(Element(array.name, (int(self._c["lanes.offset"][read.row]) + within) // array.itemsize))

    def name(self, cell: Cell) -> str:
        when = "" if cell.reader is None else f" before step {cell.step}"
        return f"byte {cell.byte} of {self._names[cell.array]}{when}"

    def _draw(self, count: int, *, is_shared: bool) -> list[Cell]:
        """Bytes of rows of outputs that are written, or of shared memory that threads or products read."""
        c = self._c
        op, width, warp, extra = (c[f"steps.{name}"] for name in ("op", "width", "warp", "extra"))
        of_products = np.zeros(len(op), bool)
        read = np.flatnonzero((op == COPY_READ) & (warp < 0) & (width > 0))  # by the engine, or for a product
        of_products[read] = op[extra[read]] == WGMMA
        reads = ((op == READ) & (warp >= 0) & (width >= 4)) | of_products
        spaces = np.array([*((array.space == "shared") == is_shared for array in self.recording.arrays), False])
        steps = np.flatnonzero((reads if is_shared else np.isin(op, (WRITE, COPY_WRITE))) & spaces[c["steps.array"]])
        rows = [(step, n, lane) for step in steps.tolist() for n, lane in enumerate(self._lanes(step))]
        cells: list[Cell] = []
        for number in self._rng.permutation(len(rows)).tolist():
            if len(cells) == count:
                break
            step, n, lane = rows[number]
            row = int(c["steps.first"][step]) + n
            byte = int(c["lanes.offset"][row] + self._rng.integers(width[step]))
            begun = int(extra[step]) if of_products[step] else step
            thread = self._first_thread(begun) if of_products[step] else 32 * int(warp[step]) + lane
            cell = Cell(int(c["steps.array"][step]), byte, Written(begun, thread) if is_shared else None)
            if self.claim(cell) != ZERO or self._rng.random() < FEW:  # most of a box lies past the array's end
                cells.append(cell)
        return cells

    def _lanes(self, step: int) -> list[int]:
        return [lane for lane in range(32) if self._c["steps.mask"][step] >> lane & 1]

    def _first_thread(self, step: int) -> int:
        return 32 * int(self._c["steps.warp"][step]) + self._lanes(step)[0]

    def _memory(self, array: int) -> str:
        """Where the array begins; of a member, where its struct does."""
        one = self.recording.arrays[array]
        if one.space != "shared":
            return NOWHERE
        name = one.part_of or one.name
        return DYNAMIC if " " in name else name

    def _byte(self, cell: Cell) -> int:
        """Of `_memory`."""
        return self.recording.arrays[cell.array].begin + cell.byte

    def _line(self, step: int) -> Line:
        place = self.recording.places[self._c["steps.place"][step]]
        return Line(place.file, place.line)

    # ---- who wrote it

    def moment(self, step: int, thread: int, memory: str | None = None) -> Moment:
        """The thread's execution of a statement that a step is part of; memory: of what it is to look at there. Raises
        AssertionError where the thread comes to the statement not as often as the recording says, or not at all."""
        c, line = self._c, self._line(step)
        statement = self.lab.statement(line)
        at = [
            place.file == line.file and place.line >= 0 and self.lab.covers(statement, place.line)
            for place in self.recording.places
        ]
        op = c["steps.op"][step]
        mine = (c["steps.warp"] == thread // 32) & (c["steps.mask"] >> np.uint32(thread % 32) & 1 == 1)
        alike = np.isin(c["steps.op"], (WRITE, ATOMIC) if op in (WRITE, ATOMIC) else op)
        steps = np.flatnonzero(mine & alike & np.array([*at, False])[c["steps.place"]])
        moment = Moment(line, self.block, thread, NEVER)
        if memory is None:
            times = self.lab.run(moment).times
        else:
            times = self.lab.run(look=(moment, memory, 0)).look_times
        assert times and len(steps) and len(steps) % times == 0, (
            f"thread {thread} comes to {line} {times} times, and has {len(steps)} steps there"
        )
        return moment._replace(time=int(np.searchsorted(steps, step)) // (len(steps) // times))

    def objections(self, cell: Cell, claim: Written | Copied) -> list[str]:
        """What speaks against it."""
        try:
            look = None
            if cell.reader is not None:
                memory = self._memory(cell.array)
                look = self.moment(*cell.reader, memory), memory, self._byte(cell) // 4
            if isinstance(claim, Copied):
                return self._against_source(cell, claim.source, look)
            moment = self.moment(*claim)
        except AssertionError as error:
            return [str(error)]
        return self._against_output(cell, moment) if look is None else self._against_shared(cell, moment, look)

    def _harmless(self, moment: Moment) -> tuple[Moment, Moment]:
        """Another thread at the same time, and the thread the next time."""
        threads = int(np.prod(self.subject.launch.block))
        other = (moment.thread + self._rng.integers(1, threads)) % threads
        return moment._replace(thread=int(other)), moment._replace(time=moment.time + 1)

    def _against_output(self, cell: Cell, moment: Moment) -> list[str]:
        name = self._names[cell.array]

        def found(**how: object) -> int:
            return _bytes(self.lab.run(**how).tensors, name)[cell.byte].item()

        right = _bytes(self.lab.truth, name)[cell.byte].item()
        says = [f"without {one}, it is another" for one in self._harmless(moment) if found(leave_out=one) != right]
        if found(leave_out=moment, what=ALL_ELSE) != right:
            says.append(f"{moment} alone does not write it")
        if found(leave_out=moment) == right:  # it held another byte before the launch
            says.append(f"without {moment}, it is the same")
        return says

    def _against_shared(self, cell: Cell, moment: Moment, look: Look) -> list[str]:
        def found(**how: object) -> int:
            """The word that the byte is part of."""
            seen = self.lab.run(look=look, **how)
            assert seen.look_times > look[0].time
            return seen.word

        def differ(one: int, other: int) -> bool:
            return (one ^ other) >> 8 * (self._byte(cell) % 4) & 255 != 0

        right = found()
        says = [
            f"without {one}, it is another" for one in self._harmless(moment) if differ(found(leave_out=one), right)
        ]
        scribble = look[2], ~right  # so that it is seen to be written anew, also where it was the same before
        if differ(found(leave_out=moment, what=NOTHING, scribble=scribble), right):
            says.append(f"{moment} does not write it")
        if not differ(found(leave_out=moment, scribble=scribble), right):
            says.append(f"without {moment}, it is the same")
        return says

    def _against_source(self, cell: Cell, source: Element | None, look: Look) -> list[str]:
        """Tried on numbers of 16 bits."""

        def found(elements: Collection[Element]) -> int:
            return self.lab.run(look=look, **self._changed(elements)).word >> 16 * (self._byte(cell) % 4 // 2) & 0xFFFF

        right, others = found([]), set(self.elements()) - {source}
        says = [] if found(others) == right else [f"it does not come from {source} alone"]
        if source is None:
            return says if right == 0 else [*says, "it is no zero"]
        return says if found([source]) != right else [*says, f"it does not come from {source}"]

    # ---- from where it was copied

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

    def _changed(self, elements: Collection[Element]) -> dict[str, torch.Tensor]:
        """The inputs, some of whose elements have other values."""
        given = {name: tensor.clone() for name, tensor in self.inputs.items()}
        for name, index in elements:
            if name in self.subject.others:
                given[name].view(-1)[index] = self.subject.others[name].view(-1)[index]
            else:
                given[name].view(-1)[index] += STEP
        return given


def _bytes(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return tensors[name].view(-1).view(torch.uint8)
