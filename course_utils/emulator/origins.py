"""Who wrote a byte, and from what: back through statements, local variables and copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

import numpy as np

from course_utils.emulator.recorded import (
    COPY_READ,
    COPY_WRITE,
    END,
    JOINING,
    READING,
    REFERENCE,
    WGMMA,
    WRITING,
    Access,
    RecordedArray,
    RecordedPlace,
    RecordedVariable,
    row_counts,
)
from course_utils.emulator.statements import Statements, made_from, named, parts

COUNTING = frozenset({"__syncthreads_count", "__syncthreads_or", "__syncthreads_and"})


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
        kernel: str,
    ) -> None:
        """All of them those of a `Recording`."""
        self._kernel = kernel
        self._columns = c = columns
        self._all_places, self._arrays = places, arrays
        self._op, self._array, self._width = (c[f"steps.{name}"] for name in ("op", "array", "width"))
        self._first, self._extra, self._place = (c[f"steps.{name}"] for name in ("first", "extra", "place"))
        self._offset = c["lanes.offset"]
        self.ops, self.places, self.warps, self.extra = (
            c[f"steps.{name}"].tolist() for name in ("op", "place", "warp", "extra")
        )
        self._masks = c["steps.mask"].tolist()
        self.threads = 32 * (max(self.warps, default=0) + 1)
        statements = Statements(sources)
        self.statement_of = _statements_of(places, statements)
        left_out = [one for one in left_out if one.type != REFERENCE or one.name not in statements.referring]
        left_out += [RecordedVariable("", name, "", 1, ()) for name in sorted(statements.of_device)]
        known = {name for one in (*variables, *left_out) for name in parts(one)}
        self._unrecorded = [one for one in statements.unrecorded() if one.name not in known]
        self._named = (*variables, *self._unrecorded)  # these have the numbers behind those of the variables
        split = [parts(one) for one in self._named]
        self._new, self._assigned, given = (
            [_with_any(split, words_at(place.file, place.line)) for place in places]
            for words_at in (statements.new_at, statements.assigned_at, statements.given_at)
        )
        self._given = [[one for one in those if one < len(variables)] for those in given]
        self.names = named(places, variables, statements)
        self.others = [[len(variables) + one for one in those] for those in named(places, self._unrecorded, statements)]
        self.made_from = made_from(self._named, statements)
        self._statements, self._variables, self._left_out = statements, variables, left_out
        self._outwards = [
            frozenset(self.statement_of[one] for one in self._with_callers(n)) for n in range(len(places))
        ]
        self.names_set = [_set_of((*one, *why)) for one, why in zip(self.names, self.others, strict=True)]
        self._made_set = [_set_of(one) for one in self.made_from]
        self._of_copies: dict[tuple[int, int], np.ndarray] = {}
        self._made: dict[int, int] = {}  # of sets of variables
        self._setting: dict[int, list[tuple[int, int]]] = {}  # of places

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
    def made_of(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each row that reads: the rows that last wrote its bytes before, from a first to the next row's first; and
        whether nobody had written some of them. Lanes of one atomic come one after the other, as their rows do."""
        unit, keys, writes = self._written
        end = len(self._offset)
        written, numbers = np.unique(keys, return_inverse=True)
        writers = np.concatenate([[-1], writes])
        before = numbers * (end + 1) + writes  # ascending: within a unit, rows are in order
        rows = np.flatnonzero(np.isin(self._op, READING)[self.step_of] & (self._width > 0)[self.step_of])
        steps = self.step_of[rows]
        offset = self._offset[rows].astype(np.int64)
        counts = (offset + self._width[steps] - 1) // unit - offset // unit + 1
        of = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        wanted = self._array[steps].astype(np.int64)[of] << 40 | offset[of] // unit + within
        number = np.searchsorted(written, wanted)
        is_written = (
            written[np.minimum(number, len(written) - 1)] == wanted if len(written) else np.zeros(len(of), bool)
        )
        last = np.searchsorted(before, number * (end + 1) + rows[of])
        is_written &= last > np.searchsorted(before, number * (end + 1))
        writer = np.where(is_written, writers[last], -1)
        is_open = np.zeros(len(self._offset), bool)
        is_open[rows[of[writer < 0]]] = True
        is_new = np.concatenate([[True], (of[1:] != of[:-1]) | (writer[1:] != writer[:-1])])[: len(of)] & (writer >= 0)
        first = np.searchsorted(rows[of[is_new]], np.arange(len(self._offset) + 1))
        return first, writer[is_new], is_open

    # ---- what was not written

    @cached_property
    def may_stay(self) -> list[bool]:
        """Of each array whether a number that the kernel itself has read decides if, or where, something is written to
        it: what stays there comes from that number, too."""
        read = {
            one for place in np.unique(self._place[np.isin(self._op, READING)]) for one in self._with_callers(place)
        }
        places = [self._all_places[one] for one in read if self._all_places[one].caller < 0]
        own = frozenset().union(*(parts(one) for one in self._variables if one.function == self._kernel))
        arrays_read = set(self._array[np.isin(self._op, READING)].tolist())
        names = own & self._statements.set_by_reads(places)
        names |= {one.name for n, one in enumerate(self._arrays) if n in arrays_read}
        written = set(self._array[np.isin(self._op, WRITING)].tolist())
        arrays = enumerate(self._arrays)
        return [n in written and bool(self._statements.choosing(one.name) & names) for n, one in arrays]

    # ---- what is not known

    @cached_property
    def carriers(self) -> list[RecordedVariable]:
        """The variables, and those that were left out, by way of which a number may have come from memory: what is new
        behind a step that reads in a statement that names it, or is assigned to there, and what that is assigned to."""
        if not self._variables:
            return list(self._left_out)
        everything = (*self._named, *self._left_out)
        around = self._places_that_read()
        found = {
            variable
            for variable, place in self._set_behind()
            if any(one in around and variable in self._new[one] for one in self._with_callers(place))
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
        return [everything[n] for n in sorted(found) if everything[n] not in self._unrecorded]

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
        out, or has a number of all warps: steps of one warp do not tell it."""
        lost = named(self._all_places, self._lost, self._statements)
        words = (self._statements.words_at(place.file, place.line) for place in self._all_places)
        return [bool(names) or bool(those & COUNTING) for names, those in zip(lost, words, strict=True)]

    @cached_property
    def is_made_of_lost(self) -> list[bool]:
        """The same of the statements that may change each variable, or what is unrecorded."""
        first = len(self._named)
        made = made_from((*self._named, *self._lost), self._statements)
        return [any(one >= first for one in those) for those in made[:first]]

    @property
    def made(self) -> list[dict[str, object]]:
        """Of each variable, and then of what is unrecorded: from which of both it may be made, `is_made_of_lost`."""
        both = zip(self.made_from, self.is_made_of_lost, strict=True)
        return [{"from": those, "lost": is_lost} for those, is_lost in both]

    def _with_callers(self, place: int) -> Iterator[int]:
        while place >= 0:
            yield place
            place = self._all_places[place].caller

    @cached_property
    def _step_behind(self) -> np.ndarray:
        """For each change of a variable the step of its thread right before it; -1: there is none."""
        steps, threads = self._lanes
        end = len(self._op)
        order = np.argsort(threads, kind="stable")
        done = threads[order] * (end + 1) + steps[order]
        step, thread = (self._columns[f"changes.{name}"].astype(np.int64) for name in ("step", "thread"))
        last = order[np.searchsorted(done, thread * (end + 1) + step) - 1]
        return np.where((threads[last] == thread) & (steps[last] < step), steps[last], -1)

    def _set_behind(self) -> set[tuple[int, int]]:
        """Each variable that was new right behind a step of its thread, and the place of that step."""
        places = np.where(self._step_behind < 0, -1, self._place[self._step_behind])
        keys = np.unique((self._columns["changes.variable"].astype(np.int64) << 32 | places)[places >= 0])
        return {(key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()}

    def rows_of(self, step: int) -> range:
        """The rows of a step."""
        return range(int(self._first[step]), int(self._first[step] + self._counts[step]))

    def _access(self, row: int) -> Access:
        return Access(int(self.step_of[row]), int(self.thread_of[row]), int(row))

    # ---- what a way back asks

    @cached_property
    def first_set(self) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int]]]]:
        """Thread and variable of what was set for the first time: by the step before which it was new, and by the step
        of the thread right before that."""
        step, thread, variable = (self._columns[f"changes.{name}"] for name in ("step", "thread", "variable"))
        _, first = np.unique(thread.astype(np.int64) << 32 | variable, return_index=True)
        found: tuple[dict[int, list[tuple[int, int]]], ...] = ({}, {})
        columns = (column[first].tolist() for column in (thread, variable, step, self._step_behind))
        for of, what, *steps in zip(*columns, strict=True):
            for by_step, at in zip(found, steps, strict=True):
                by_step.setdefault(at, []).append((of, 1 << what))
        return found

    @cached_property
    def made_of_lost(self) -> int:
        """The variables for which `is_made_of_lost` holds."""
        return _set_of(np.flatnonzero(self.is_made_of_lost).tolist())

    @cached_property
    def ever_set(self) -> list[int]:
        """The variables of each thread that are set at all, and all of which no thread says so: what is unrecorded,
        and variables of functions that have come to their end before the next step."""
        silent = set(range(len(self._named))) - set(np.unique(self._columns["changes.variable"]).tolist())
        found = [_set_of(silent)] * self.threads
        for those in self.first_set[0].values():
            for thread, variable in those:
                found[thread] |= variable
        return found

    def lanes_of(self, step: int) -> list[int]:
        """The lanes of a step."""
        return list(_bits(self._masks[step]))

    def reads(self, step: int, thread: int) -> Iterable[int]:
        """The rows that a thread read in a step; of a product that ends, what the tensor core read for it."""
        if self.ops[step] in READING:
            if self._array[step] < 0 or not self._width[step]:  # outside of every array, or zeros
                return []
            return [int(self._first[step]) + (self._masks[step] & ((1 << thread % 32) - 1)).bit_count()]
        begun = self.extra[step]
        if self.ops[step] == END and self.ops[begun] == WGMMA:
            return self.rows_of_copy(begun, COPY_READ).tolist()
        return []

    def is_within(self, place: int, around: int) -> bool:
        """Whether a place is in a statement, or was called from there."""
        return place >= 0 and self.statement_of[around] in self._outwards[place]

    @cached_property
    def sets(self) -> list[list[int]]:
        """The variables that each place's statement may set to what is read there: it assigns to them, or gives them
        to a function that may change them; or it names them, and they were new right behind it once."""
        found = [{*those, *given} for those, given in zip(self._assigned, self._given, strict=True)]
        for variable, place in self._set_behind():
            around = next((one for one in self._with_callers(place) if variable in self._new[one]), -1)
            if around >= 0:
                found[around].add(variable)
        return [sorted(those) for those in found]

    def setting(self, place: int) -> list[tuple[int, int]]:
        """A place and those from where it was called, and the variables that their statements set, but for those that
        one further inside does."""
        if place not in self._setting:
            found, before = [], 0
            for one in self._with_callers(place):
                variables = _set_of(self.sets[one]) & ~before
                before |= variables
                if variables:
                    found.append((one, variables))
            self._setting[place] = found
        return self._setting[place]

    def made_set(self, variables: int) -> int:
        """Those from which some variables may be made."""
        if variables not in self._made:
            self._made[variables] = reduce(or_, (self._made_set[one] for one in _bits(variables)), 0)
        return self._made[variables]

    def array_of(self, row: int) -> int:
        return int(self._array[self.step_of[row]])

    def is_global(self, row: int) -> bool:
        return self._arrays[self.array_of(row)].space == "global"

    def has_width(self, row: int) -> bool:
        """Zeros that are written have none at their source."""
        return bool(self._width[self.step_of[row]])

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
        return self._reads_behind([write.row], through_memory=False)

    def first_reads(self, array: int, offset: int, step: int) -> Reads:
        """The reads from global memory of what the block had not written, from which a byte was made before a step."""
        first = self.writer(array, offset, step)
        reads = self._reads_behind([] if first is None else [first.row], through_memory=True)
        reads.is_all &= first is None or not self.may_stay[array]
        return reads

    def _reads_behind(self, rows: list[int], *, through_memory: bool) -> Reads:
        way = _Way(self, through_memory=through_memory)
        way.follow(rows)
        reads = Reads(self._access(row) for row in sorted(way.found))
        reads.is_all = way.is_all
        return reads

    def rows_of_copy(self, begun: int, op: int) -> np.ndarray:
        """What the copy, or the product, that began in a step has read or written, in order: its rows, those of zeros
        among them, which have no width."""
        if (begun, op) not in self._of_copies:
            steps = np.flatnonzero((self._op == op) & (self._extra == begun)).tolist()
            self._of_copies[begun, op] = np.array([row for step in steps for row in self.rows_of(step)], np.int64)
        return self._of_copies[begun, op]


class _Way:
    """The way back from rows that were written, the last step first: all that something was made from lies before it.
    Of a thread's variables a set is a number with a bit for each."""

    def __init__(self, known: Origins, *, through_memory: bool) -> None:
        """through_memory: on from what is read to who wrote it."""
        self._known, self._through_memory = known, through_memory
        self.found: set[int] = set()
        self.is_all = True
        self._read: set[int] = set()
        self._written: dict[int, set[int]] = {}  # of steps, the rows from which the way is still to be followed
        self._matter = [0] * known.threads  # the variables of each thread that something is made from
        self._set = list(known.ever_set)  # those that were set before the step
        # Of each thread the places whose statements it follows back, and whether only to the statement's write before.
        self._within: list[dict[int, bool]] = [{} for _ in range(known.threads)]

    def follow(self, rows: list[int]) -> None:
        """From these rows, which were written."""
        for row in rows:
            self._written.setdefault(int(self._known.step_of[row]), set()).add(row)
        for step in range(max(self._written, default=-1), -1, -1):
            self._step(step)
            new, behind = self._known.first_set
            for thread, variables in new.get(step, ()):
                self._set[thread] &= ~variables
            for thread, variables in behind.get(step, ()):
                self._matter[thread] &= ~variables

    def _step(self, step: int) -> None:
        if self._known.warps[step] >= 0:
            self._part_of_statements(step)
        while rows := self._written.pop(step, None):  # a lane of an atomic reads what another one has written in it
            for row in rows:
                self._begin(step, row)

    def _begin(self, step: int, row: int) -> None:
        """A row that was written, and is followed from here."""
        known, place = self._known, self._known.places[step]
        if known.ops[step] == COPY_WRITE:
            self._copied(step, row)
        elif known.warps[step] < 0 or place < 0:
            self.is_all = False
        else:
            thread = int(known.thread_of[row])
            self._within[thread].setdefault(place, True)
            self._take(step, thread, {place})

    def _part_of_statements(self, step: int) -> None:
        """A step of a warp, as far as it is part of statements that are followed."""
        known = self._known
        first = 32 * known.warps[step]
        lanes = known.lanes_of(step)
        taken: dict[int, set[int]] = {}
        for lane in lanes:
            thread = first + lane
            if self._matter[thread] or self._within[thread]:
                taken[lane] = self._taken(step, thread)
        if known.ops[step] in JOINING and any(taken.values()):
            together = set().union(*taken.values())
            taken = dict.fromkeys(lanes, together)
            for lane in lanes:
                self._within[first + lane] |= dict.fromkeys(together, False)
        for lane, places in taken.items():
            if places:
                self._take(step, first + lane, places)

    def _taken(self, step: int, thread: int) -> set[int]:
        """The places whose statements a step of a thread is part of, of those that are followed."""
        known, place = self._known, self._known.places[step]
        within, matter = self._within[thread], self._matter[thread]
        for around, writes in list(within.items()):
            is_before = writes and known.ops[step] in WRITING
            if not known.is_within(place, around) or (
                is_before and known.statement_of[place] == known.statement_of[around]
            ):
                del within[around]
        within |= {around: False for around, variables in known.setting(place) if variables & matter}
        return set(within)

    def _take(self, step: int, thread: int, places: set[int]) -> None:
        """What the thread reads in a step, and the variables that statements name of which it is part."""
        known = self._known
        for row in known.reads(step, thread):
            self._from(int(row))
        for place in places:
            self.is_all &= not known.is_lost[place]
            self._ask(thread, known.names_set[place])

    def _ask(self, thread: int, variables: int) -> None:
        """The thread's variables before this step, and all those from which they may be made: also what is set to the
        number that it has already, which is no change, is made from something."""
        known = self._known
        new = variables & self._set[thread] & ~self._matter[thread]
        while new:
            self._matter[thread] |= new
            self.is_all &= not new & known.made_of_lost
            new = known.made_set(new) & self._set[thread] & ~self._matter[thread]

    def _from(self, row: int) -> None:
        """A row that was read, and who wrote it."""
        if row in self._read:
            return
        self._read.add(row)
        if not self._through_memory:
            self.found.add(row)
            return
        known = self._known
        self.is_all &= not known.may_stay[known.array_of(row)]
        first, writers, is_open = known.made_of
        for writer in writers[first[row] : first[row + 1]].tolist():
            self._written.setdefault(int(known.step_of[writer]), set()).add(writer)
        if is_open[row] and known.is_global(row):
            self.found.add(row)

    def _copied(self, step: int, row: int) -> None:
        """The source of a copied row: of the same lane of the cp.async; of a bulk copy, the row of the same number."""
        known = self._known
        begun = known.extra[step]
        if known.ops[begun] == COPY_READ:
            thread = known.thread_of[row]
            sources = [one for one in known.rows_of(begun) if known.thread_of[one] == thread]
        else:
            reads, writes = known.rows_of_copy(begun, COPY_READ), known.rows_of_copy(begun, COPY_WRITE)
            is_known = len(reads) == len(writes)
            self.is_all &= is_known
            sources = [int(reads[np.searchsorted(writes, row)])] if is_known else []
        for source in sources:
            if known.has_width(source):
                self._from(source)


def _bits(numbers: int) -> Iterator[int]:
    """The numbers of which a set has the bits."""
    while numbers:
        yield (numbers & -numbers).bit_length() - 1
        numbers &= numbers - 1


def _set_of(numbers: Iterable[int]) -> int:
    """The same the other way."""
    return reduce(or_, (1 << number for number in numbers), 0)


def _with_any(names: Sequence[set[str]], words: frozenset[str]) -> list[int]:
    """The numbers of those that have one of the words."""
    return [n for n, one in enumerate(names) if one & words]


def _statements_of(places: Sequence[RecordedPlace], statements: Statements) -> list[int]:
    """For each place the number of its statement: of one in several lines there are several places, and of one that
    calls what the emulator has made of a line in the same line, another one."""
    numbers: dict[tuple[str, int, int], int] = {}
    found: list[int] = []
    for place in places:  # a caller comes before its calls
        here = place.file, statements.around(place.file, place.line)
        caller = place.caller
        if caller >= 0 and here == (places[caller].file, statements.around(*places[caller][:2])):
            found.append(found[caller])
            continue
        found.append(numbers.setdefault((*here, found[caller] if caller >= 0 else -1), len(numbers)))
    return found
