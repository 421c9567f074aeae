"""Who wrote a byte, and from what: back through statements, local variables and copies."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from course_utils.emulator.recorded import (
    COPY_READ,
    COPY_WRITE,
    END,
    JOINING,
    READING,
    WGMMA,
    WRITING,
    Access,
    RecordedArray,
    RecordedPlace,
    RecordedVariable,
    row_counts,
)
from course_utils.emulator.statements import Statements, added_to, made_from, named, parts


class _Followed:
    """What need not be followed again: statements (thread, last and first step, place), changes of variables (thread,
    variable, step), until before which step each of these was set again, rows that were read, and steps that join lanes
    (with the place of the statement). `is_all`: whether each way was followed to its end."""

    def __init__(self) -> None:
        self.statements: set[tuple[int, int, int, int]] = set()
        self.changes: set[tuple[int, int, int]] = set()
        self.again: dict[tuple[int, int, int], int] = {}
        self.rows: set[int] = set()
        self.joined: set[tuple[int, int]] = set()
        self.is_all = True


class Reads(list[Access]):
    """The reads from which something was made. `is_all`: whether these are all that names tell; else a way leads on
    through variables that the recording leaves out, or from a write of which it is not known how it was made."""

    is_all = True


class Origins:
    """The questions that a recording is asked, with what is looked up for them once."""

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        places: Sequence[RecordedPlace],
        arrays: Sequence[RecordedArray],
        variables: Sequence[RecordedVariable],
        left_out: Sequence[RecordedVariable],
        sources: Mapping[str, str],
    ) -> None:
        """All of them those of a `Recording`."""
        self._columns = c = columns
        self._all_places, self._arrays = places, arrays
        self._op, self._array, self._width = (c[f"steps.{name}"] for name in ("op", "array", "width"))
        self._first, self._extra, self._place = (c[f"steps.{name}"] for name in ("first", "extra", "place"))
        self._offset = c["lanes.offset"]
        self._ops, self._places = self._op.tolist(), self._place.tolist()
        statements = Statements(sources)
        self.statement_of = _statements_of(places, statements)
        split = [parts(variable) for variable in variables]
        self.own_names, self.assigned = (
            [_with_any(split, words_at(place.file, place.line)) for place in places]
            for words_at in (statements.new_at, statements.assigned_at)
        )
        self.names = named(places, variables, statements)
        self.made_from = made_from(variables, statements)
        self.added_to = added_to(variables, statements)
        self._statements, self._variables, self._left_out = statements, variables, left_out
        self._of_copies: dict[tuple[int, int], np.ndarray] = {}
        self._that_assign: dict[int, dict[int, list[tuple[int, int]]]] = {}  # of each thread
        self._around: dict[int, dict[int, int]] = {}  # of each place

    # ---- what is looked up

    @cached_property
    def _counts(self) -> np.ndarray:
        return row_counts(self._op, self._columns["steps.mask"])

    @cached_property
    def step_of(self) -> np.ndarray:
        """The step of each row."""
        return np.repeat(np.arange(len(self._op)), self._counts)

    @cached_property
    def _lanes(self) -> tuple[np.ndarray, np.ndarray]:
        """Step and thread (-1: none of the block) of each lane of each step, in order."""
        mask = np.ascontiguousarray(self._columns["steps.mask"], np.uint32)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little").reshape(-1, 32)
        steps, lanes = np.nonzero(bits)
        warps = self._columns["steps.warp"][steps]
        return steps, np.where(warps < 0, -1, 32 * warps + lanes)

    @cached_property
    def thread_of(self) -> np.ndarray:
        """The thread of each row; -1: none of the block."""
        steps, threads = self._lanes
        return threads[self._counts[steps] > 0]

    @cached_property
    def _steps_of_thread(self) -> list[list[int]]:
        """The steps of each thread, in order."""
        steps, threads = self._lanes
        order = np.argsort(threads, kind="stable")
        bounds = np.searchsorted(threads[order], np.arange(threads.max(initial=-1) + 2))
        return [steps[order[low:high]].tolist() for low, high in zip(bounds[:-1], bounds[1:], strict=True)]

    @cached_property
    def _written(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Bytes of a unit; and for each unit of memory and each row that writes it, sorted: a key, and the row."""
        rows = np.flatnonzero(np.isin(self._op, WRITING)[self.step_of])
        offset, width = self._offset[rows].astype(np.int64), self._width[self.step_of[rows]].astype(np.int64)
        unit = int(np.gcd.reduce(np.concatenate([offset, width, [16]])))
        counts = width // unit
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        units = np.repeat(offset // unit, counts) + within
        keys = np.repeat(self._array[self.step_of[rows]].astype(np.int64), counts) << 40 | units
        order = np.argsort(keys, kind="stable")
        return unit, keys[order], np.repeat(rows, counts)[order]

    @cached_property
    def _changes(self) -> dict[tuple[int, int], list[int]]:
        """The steps before which a thread's variable was new, by (thread, variable)."""
        c = self._columns
        found: dict[tuple[int, int], list[int]] = {}
        columns = (c[f"changes.{name}"].tolist() for name in ("thread", "variable", "step"))
        for thread, variable, step in zip(*columns, strict=True):
            steps = found.setdefault((thread, variable), [])
            if not steps or steps[-1] != step:
                steps.append(step)
        return found

    # ---- what is not known

    @cached_property
    def carriers(self) -> list[RecordedVariable]:
        """The variables, and those that were left out, by way of which a number may have come from memory: what is new
        behind a step that reads in a statement that names it, or is assigned to there, and what that is assigned to."""
        if not self._variables:
            return list(self._left_out)
        everything = (*self._variables, *self._left_out)
        around = self._places_that_read()
        found = {
            variable
            for variable, place in self._set_behind()
            if any(one in around and variable in self.own_names[one] for one in self._with_callers(place))
        }
        assigned = frozenset().union(*(self._statements.assigned_at(*self._all_places[one][:2]) for one in around))
        found |= {n for n in range(len(self._variables), len(everything)) if parts(everything[n]) & assigned}
        words = [self._statements.words_assigned(parts(one)) for one in everything]
        words = [
            own | self._statements.words_of_calls(one.function) for own, one in zip(words, everything, strict=True)
        ]
        made = [{n for n, other in enumerate(everything) if parts(other) & own} for own in words]
        count = -1
        while count != len(found):
            count = len(found)
            found |= {n for n, those in enumerate(made) if found & those}
        return [everything[n] for n in sorted(found)]

    def _places_that_read(self) -> set[int]:
        """Those of the steps that bring a number into a register, with their callers."""
        return {one for place in np.unique(self._place[self._brings]).tolist() for one in self._with_callers(place)}

    @cached_property
    def _brings(self) -> np.ndarray:
        """Of each step whether it brings a number into a register."""
        brings = np.isin(self._op, (*READING, *JOINING))
        ends = np.flatnonzero(self._op == END)
        brings[ends] = self._op[self._extra[ends]] == WGMMA
        return brings

    @cached_property
    def _lost(self) -> list[RecordedVariable]:
        left_out = set(self._left_out)
        return [one for one in self.carriers if one in left_out]

    @cached_property
    def is_lost(self) -> list[bool]:
        """Of each place whether its statement names a variable by which a number may have come, and which was left
        out."""
        return [bool(names) for names in named(self._all_places, self._lost, self._statements)]

    @cached_property
    def is_made_of_lost(self) -> list[bool]:
        """The same of the statements that may change each variable."""
        first = len(self._variables)
        made = made_from((*self._variables, *self._lost), self._statements)
        return [any(one >= first for one in those) for those in made[:first]]

    def _with_callers(self, place: int) -> Iterator[int]:
        while place >= 0:
            yield place
            place = self._all_places[place].caller

    def _set_behind(self) -> set[tuple[int, int]]:
        """Each variable that was new right behind a step of its warp, and the place of that step."""
        c = self._columns
        found: set[tuple[int, int]] = set()
        warps = c["changes.thread"] // 32
        for warp in np.unique(warps):
            steps, mine = np.flatnonzero(c["steps.warp"] == warp), warps == warp
            before = np.searchsorted(steps, c["changes.step"][mine]) - 1
            places = self._place[steps[np.maximum(before, 0)]]
            keys = (c["changes.variable"][mine].astype(np.int64) << 32 | places)[(before >= 0) & (places >= 0)]
            found.update((key >> 32, key & 0xFFFFFFFF) for key in np.unique(keys).tolist())
        return found

    def rows_of(self, step: int) -> range:
        """The rows of a step."""
        return range(int(self._first[step]), int(self._first[step] + self._counts[step]))

    def _access(self, row: int) -> Access:
        return Access(int(self.step_of[row]), int(self.thread_of[row]), int(row))

    # ---- questions

    def writer(self, array: int, offset: int, step: int) -> Access | None:
        """Of the byte, the last write before a step."""
        unit, keys, rows = self._written
        key = array << 40 | offset // unit
        low, high = np.searchsorted(keys, key), np.searchsorted(keys, key, side="right")
        found = np.searchsorted(self.step_of[rows[low:high]], step)
        return self._access(rows[low + found - 1]) if found else None

    def inputs(self, write: Access) -> Reads:
        """The reads from which a row was written."""
        followed = _Followed()
        return self._as_reads(self._inputs(write, followed), followed)

    def _as_reads(self, rows: Iterable[int], followed: _Followed) -> Reads:
        reads = Reads(self._access(row) for row in sorted(rows))
        reads.is_all = followed.is_all
        return reads

    def _inputs(self, write: Access, followed: _Followed) -> list[int]:
        """Their rows, but for those behind what has been followed before."""
        if self._op[write.step] == COPY_WRITE:
            return self._copied(write, followed)
        place = int(self._place[write.step])
        if write.thread < 0 or place < 0:
            followed.is_all = False
            return []
        return self._follow(
            write.thread, self._statement(write.thread, write.step, place, writes=True), place, followed
        )

    def first_reads(self, array: int, offset: int, step: int) -> Reads:
        """The reads from global memory of what the block had not written, from which a byte was made before a step."""
        found: set[int] = set()
        seen: set[int] = set()
        followed = _Followed()
        first = self.writer(array, offset, step)
        pending = [] if first is None else [first]
        while pending:
            write = pending.pop()
            if write.row in seen:
                continue
            seen.add(write.row)
            for row in self._inputs(write, followed):
                read = int(self.step_of[row])
                of, at = int(self._array[read]), int(self._offset[row])
                writers = [self.writer(of, at + b, read) for b in range(0, int(self._width[read]), self._written[0])]
                pending += [one for one in writers if one is not None]
                if None in writers and self._arrays[of].space == "global":
                    found.add(row)
        return self._as_reads(found, followed)

    def _copied(self, write: Access, followed: _Followed) -> list[int]:
        """The source of a copied row: of the same lane of the cp.async; of a bulk copy, the row of the same number."""
        begun = int(self._extra[write.step])
        if self._op[begun] == COPY_READ:
            return [row for row in self.rows_of(begun) if self.thread_of[row] == write.thread and self._width[begun]]
        reads, writes = self._rows_of_copy(begun, COPY_READ), self._rows_of_copy(begun, COPY_WRITE)
        if len(reads) != len(writes):
            followed.is_all = False
            return []
        row = int(reads[np.searchsorted(writes, write.row)])
        return [row] if self._width[self.step_of[row]] else []

    def _rows_of_copy(self, begun: int, op: int) -> np.ndarray:
        """What the copy, or the product, that began in a step has read or written, in order: its rows, those of zeros
        among them, which have no width."""
        if (begun, op) not in self._of_copies:
            steps = np.flatnonzero((self._op == op) & (self._extra == begun)).tolist()
            self._of_copies[begun, op] = np.array([row for step in steps for row in self.rows_of(step)], np.int64)
        return self._of_copies[begun, op]

    # ---- statements

    def _is_within(self, place: int, around: int) -> bool:
        while place >= 0 and self.statement_of[place] != self.statement_of[around]:
            place = self._all_places[place].caller
        return place >= 0

    def _statement(self, thread: int, last: int, place: int, *, since: int = 0, writes: bool = False) -> list[int]:
        """The steps of a thread's statement that ends with the step `last`, the last first: back while it is at the
        same place, or in what is called there, from the step `since` on. writes: of a write, back to the one before."""
        mine, ops, places, statement_of = self._steps_of_thread[thread], self._ops, self._places, self.statement_of
        found = []
        for position in range(bisect.bisect_right(mine, last) - 1, -1, -1):
            step = mine[position]
            here = places[step]
            if step < since or not self._is_within(here, place):
                break
            if writes and step != last and ops[step] in WRITING and statement_of[here] == statement_of[places[last]]:
                break
            found.append(step)
        return found

    def _follow(self, thread: int, steps: list[int], place: int, followed: _Followed) -> list[int]:
        """The rows that were read in the steps of a statement, and behind the variables that it names."""
        found: list[int] = []
        pending: list[tuple[int, int, int]] = []  # thread, variable, until before which step it was changed

        def take(thread: int, steps: list[int], place: int) -> None:
            if not steps or (thread, steps[0], steps[-1], place) in followed.statements:
                return
            followed.statements.add((thread, steps[0], steps[-1], place))
            followed.is_all &= not self.is_lost[place]
            new = {row for step in steps for row in self._reads(step, thread)} - followed.rows
            followed.rows |= new
            found.extend(new)
            pending.extend((thread, variable, steps[-1]) for variable in self.names[place])
            for step in steps:
                if self._ops[step] in JOINING and (step, place) not in followed.joined:
                    followed.joined.add((step, place))
                    for other in self._threads_of(step):
                        take(other, self._statement(other, step, place, since=steps[-1]), place)

        take(thread, steps, place)
        while pending:
            of, variable, until = pending.pop()
            changes = self._changes.get((of, variable), [])
            at = bisect.bisect_right(changes, until)
            new = changes[at - 1] if at else -1
            if not at:
                continue
            since = followed.again.get((of, variable, new), new)
            if until > since:
                followed.again[of, variable, new] = until
                # what was added behind its last change may have been too small to change it
                pending.extend((of, other, until) for other in self.added_to[variable])
                for steps, around in self._set_again(of, variable, since, until):
                    take(of, steps, around)
            if (of, variable, new) in followed.changes:
                continue
            followed.changes.add((of, variable, new))
            followed.is_all &= not self.is_made_of_lost[variable]
            before = changes[at - 2] if at > 1 else 0
            pending.extend((of, other, new if other != variable else new - 1) for other in self.made_from[variable])
            mine = self._steps_of_thread[of]
            position = bisect.bisect_left(mine, new)
            last = mine[position - 1] if position else -1
            around = self._naming(self._places[last], variable) if position and last >= before else -1
            if around >= 0:
                take(of, self._statement(of, last, around, since=before), around)
                pending.append((of, variable, new - 1))
        return found

    def _set_again(self, thread: int, variable: int, since: int, until: int) -> Iterator[tuple[list[int], int]]:
        """The statements, the last first, in which a thread may have set a variable to the number that it had already,
        which is no change: by their text they assign to it, and they read. Steps, and place, of each."""
        steps = self._steps_that_assign(thread).get(variable, [])
        low, high = (bisect.bisect_left(steps, (step, -1)) for step in (since, until))
        first = until
        for step, around in reversed(steps[low:high]):
            if step < first:
                found = self._statement(thread, step, around, since=since)
                first = found[-1]
                yield found, around

    def _steps_that_assign(self, thread: int) -> dict[int, list[tuple[int, int]]]:
        """Of each variable the steps of a thread in which a statement that assigns to it brings a number into a
        register, in order, each with the innermost place of such a statement."""
        if thread not in self._that_assign:
            found: dict[int, list[tuple[int, int]]] = {}
            for step in self._steps_of_thread[thread]:
                if self._brings[step]:
                    for variable, around in self._assigned_around(self._places[step]).items():
                        found.setdefault(variable, []).append((step, around))
            self._that_assign[thread] = found
        return self._that_assign[thread]

    def _assigned_around(self, place: int) -> dict[int, int]:
        """The variables that the statement of a place assigns to, or of those from where it was called: the innermost
        for each."""
        if place not in self._around:
            outwards = [*self._with_callers(place)]
            self._around[place] = {variable: one for one in reversed(outwards) for variable in self.assigned[one]}
        return self._around[place]

    def _naming(self, place: int, variable: int) -> int:
        """The innermost of a place and those from which it was called whose statement names a variable; -1: none."""
        while place >= 0 and variable not in self.own_names[place]:
            place = self._all_places[place].caller
        return place

    def _reads(self, step: int, thread: int) -> Iterable[int]:
        """The rows that a thread read in a step; of a product that ends, what the tensor core read for it."""
        if self._ops[step] in READING:
            lanes = int(self._columns["steps.mask"][step])
            before = bin(lanes & ((1 << thread % 32) - 1)).count("1")
            return [int(self._first[step]) + before] if lanes >> thread % 32 & 1 else []
        begun = int(self._extra[step])
        if self._ops[step] == END and self._ops[begun] == WGMMA:
            return self._rows_of_copy(begun, COPY_READ).tolist()
        return []

    def _threads_of(self, step: int) -> list[int]:
        mask, warp = (int(self._columns[f"steps.{name}"][step]) for name in ("mask", "warp"))
        return [32 * warp + lane for lane in range(32) if mask >> lane & 1]


def _with_any(names: Sequence[set[str]], words: frozenset[str]) -> list[int]:
    """The numbers of those that have one of the words."""
    return [n for n, one in enumerate(names) if one & words]


def _statements_of(places: Sequence[RecordedPlace], statements: Statements) -> list[int]:
    """For each place the number of its statement: of one in several lines there are several places."""
    numbers: dict[tuple[str, int, int], int] = {}
    found: list[int] = []
    for place in places:  # a caller comes before its calls
        caller = found[place.caller] if place.caller >= 0 else -1
        found.append(numbers.setdefault((place.file, statements.around(place.file, place.line), caller), len(numbers)))
    return found
