"""`record()`: one block of a launch, step by step."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from course_utils.emulator import words
from course_utils.emulator.debug_lines import DebugLines
from course_utils.emulator.finding_steps import FindingSteps
from course_utils.emulator.frames import Function
from course_utils.emulator.origins import write_of_each_read
from course_utils.emulator.raw_recording import IS_SITE, MOST_ROWS, RawRecording
from course_utils.emulator.recorded import (
    ARRIVE,
    PHASE,
    WAIT,
    RecordedArray,
    RecordedFinding,
    RecordedPlace,
    RecordedVariable,
    row_counts,
)
from course_utils.emulator.recording import COLUMNS, Recording
from course_utils.emulator.sanitizer import Finding
from course_utils.emulator.struct_members import Member, known_members, parts, with_gaps
from course_utils.emulator.tracing import block_index
from course_utils.emulator.watching import Client, LaunchTrace, Watch, linear_index, watching
from course_utils.toolchain.errors import Index3, KernelError
from course_utils.toolchain.parameters import argument_label

MOST_ACCESSES = 4_000_000  # of threads, in a recording
LAST_STEPS = 100  # of a recording that is too long: where it was in the end
# What PyTorch calls the types of elements in shared memory.
DTYPES = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3", "int": "int32"}
DTYPES |= {"float8_e5m2": "float8_e5m2"}
DTYPES |= {"unsigned int": "uint32", "unsigned char": "uint8", "signed char": "int8", "bool": "bool"}
DTYPES |= {"short int": "int16", "short": "int16", "short unsigned int": "uint16", "unsigned short": "uint16"}
DTYPES |= {"long int": "int64", "long": "int64", "long long int": "int64", "long long": "int64", "double": "float64"}
DTYPES |= dict.fromkeys(
    ("long unsigned int", "long long unsigned int", "unsigned long", "unsigned long long"), "uint64"
)


def record(
    call: Callable[[], object],
    *,
    block: int | tuple[int, ...] = (0, 0, 0),
    launch: int | None = None,
    limit: int = MOST_ACCESSES,
) -> Recording:
    """Records one block of the launch that `call()` makes, on the emulator: who read and wrote which byte, and when.

        recording = record(lambda: kernel(grid, block, args))

    block: its index in the grid, as blockIdx.x or as (x, y, z); launch: which one, counted from 0, where `call` makes
    several; limit: how many accesses of threads there may be, up to 16,777,216. The warps of the block take turns, each
    with one request at a time; lanes that have parted meet again as soon as they can. The launch's outputs are those of
    a plain one, but for what depends on the order of threads. What fails is recorded up to there (`Recording.failure`);
    so is a launch that computes for a twentieth of the time limit (`configure`) and comes to no step of the block and
    to no other block. The sanitizer's findings in the same launch come with it, unless it runs out of time; a launch
    that has failed it may run for a tenth.

    All blocks run, without optimisation: a launch of few blocks is recorded sooner. Local variables are recorded where
    g++ is the compiler, but for pointers, references and unions; a variable is unknown until it is set. Where one of
    them refers to a struct in shared memory, the struct's members are arrays with names of their own. Not recorded:
    __device__ and __constant__ variables. A struct that a function returns is seen by what it changes in
    memory, within the first 4 MiB of what the launch may write. What another block writes, and what the compiler does
    not report, is a step of nobody (warp -1) before the block reads it.

    Raises TypeError for what is no call or no block; ValueError for a block that the grid does not have, for several
    launches without `launch`, for none, and where the recording would be longer than the limit, or its warps take
    100,000 turns without an access to memory.
    """
    if not callable(call):
        raise TypeError(f"call takes a function without arguments that makes a launch, got {type(call).__name__}")
    if launch is not None and (not _is_integer(launch) or launch < 0):
        raise ValueError(f"launch takes a number from 0 on, got {launch!r}")
    if not _is_integer(limit) or not 1 <= limit <= MOST_ROWS:
        raise ValueError(f"limit takes a positive int up to {MOST_ROWS}, got {limit!r}")
    recorder = Recorder(block_index(block, "block"), launch, int(limit))
    failure = ""
    with watching(recorder):
        try:
            call()
        except KernelError as error:
            if recorder.recording is None or len(recorder.kernels) - 1 != (launch or 0):
                raise
            failure = str(error)
    made = ", ".join(f"{number}: {kernel}()" for number, kernel in enumerate(recorder.kernels)) or "none"
    if recorder.recording is None:
        raise ValueError(f"call makes no launch number {launch or 0}; it makes {made}")
    if launch is None and len(recorder.kernels) > 1:
        raise ValueError(f"call makes several launches ({made}): say which one to record, as in launch=0")
    return replace(recorder.recording, failure=failure)


class Recorder(Client):
    """Records one of the launches, `launch` (None: the first): a block of it, and at most `limit` accesses. `kernels`:
    those launched so far; `recording`: what came of it."""

    alone = True

    def __init__(self, block: Index3, launch: int | None, limit: int) -> None:
        self.block, self.launch, self.limit = block, launch, limit
        self.kernels: list[str] = []
        self.recording: Recording | None = None
        self.thread = threading.get_ident()  # that asks

    def conflict(self, other: Client) -> str:
        if isinstance(other, Recorder) and other.thread != self.thread:
            return "record() while another thread records, which would see the launches of both: wait for it"
        return "record() inside sanitize(), profile(), in_step() or another record(): use one after the other"

    def watch(self, grid: Index3, kernel: str) -> Watch | None:
        self.kernels.append(kernel)
        if len(self.kernels) - 1 != (self.launch or 0):
            return None
        index = linear_index(self.block, grid)
        if index is None:
            raise ValueError(f"block takes an index in the grid {grid} of {kernel}(), got {self.block}")
        return Watch(blocks=(index,), record=self.limit)

    def take(self, trace: LaunchTrace) -> None:
        self.recording = collect(trace, self.block)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def collect(trace: LaunchTrace, index: Index3) -> Recording:
    """The recording of the block `index` that a launch has left.

    Raises ValueError where there was no room for it.
    """
    raw, kernel, sources = trace.recorded, trace.kernel, trace.sources
    steps, rows, values, changes = raw.columns()
    rows = rows.astype(np.int32)
    place_of, places = _places(steps["place"], raw, trace.lines, trace.entries)
    if raw.full:
        last = sorted({places[number].line for number in place_of[-LAST_STEPS:].tolist() if number >= 0})
        where = f"the last in line{'s' if len(last) > 1 else ''} {_listed(last)}" if last else ""
        turns = steps["turn"].max(initial=0)
        if raw.idle:
            raise ValueError(
                f"the recording of block {index} of {kernel}() has {len(steps):,} steps in {turns:,} turns of its warps"
                f"{where and ', ' + where}, and in most of these no access to memory: does a loop there end?"
            )
        raise ValueError(
            f"the recording of block {index} of {kernel}() is longer than {len(rows):,} accesses of threads, after "
            f"{turns:,} turns of its warps{where and ', ' + where}: does a loop there end? Fewer keys, a smaller "
            "head dimension, a smaller tile or another block make it shorter; limit= of record(), or --limit of the "
            f"command, allows more, up to {MOST_ROWS:,}"
        )
    variable_of, variables = _variables(trace.functions)
    is_pointer = np.array([*(one.target is not None for f in trace.functions for one in f.variables), False])
    pointers = changes[is_pointer[changes["variable"]]]
    changes = changes[~is_pointer[changes["variable"]]]
    array_of, arrays, initial = _arrays(steps, rows, trace, _members(trace, pointers))
    columns = {
        f"steps.{name}": np.ascontiguousarray(steps[name])
        for name in ("turn", "warp", "op", "mask", "width", "first", "extra")
    }
    columns |= {"steps.place": place_of, "steps.array": array_of}
    columns |= {"lanes.offset": rows, "words.value": values, "arrays.initial": initial}
    columns |= {f"changes.{name}": np.ascontiguousarray(changes[name]) for name in changes.dtype.names}
    columns["changes.variable"] = variable_of[changes["variable"]]
    columns["lanes.into"] = write_of_each_read(columns, places, sources)
    recording = Recording(
        kernel=kernel,
        file=trace.file,
        sources={name: sources[name] for name in dict.fromkeys((trace.file, *(place.file for place in places)))},
        grid=trace.grid,
        block=trace.block,
        index=index,
        places=tuple(places),
        arrays=tuple(arrays),
        variables=tuple(variables),
        findings=(),
        columns={name: np.ascontiguousarray(columns[name], dtype) for name, dtype in COLUMNS.items()},
    )
    is_shared = [array.space == "shared" for array in arrays]
    steps = FindingSteps(recording.columns, [place.line for place in places], is_shared, trace.block, index)
    return replace(recording, findings=tuple(_finding(f, recording, *steps.of(f)) for f in trace.findings))


def _finding(found: Finding, recording: Recording, step: int, other_step: int) -> RecordedFinding:
    """The finding with the name of what it is about in shared memory, which only a recording knows."""
    number = recording.columns["steps.array"][step] if step >= 0 else -1
    is_named = found.space == "shared" and number >= 0 and recording.arrays[number].space == "shared"
    said = words.message(found, recording.arrays[number].name) if is_named else found.message
    return RecordedFinding(found.tool, said, found.line, found.other_line, step, other_step)


def _listed(numbers: list[int]) -> str:
    """Up to six of them, in words."""
    some = [str(number) for number in numbers[:6]]
    if len(numbers) > 6:
        return f"{', '.join(some)} and others"
    return " and ".join([", ".join(some[:-1]), some[-1]] if len(some) > 1 else some)


def _places(
    used: np.ndarray, raw: RawRecording, lines: DebugLines, entries: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, list[RecordedPlace]]:
    """The number of each step's place, -1 for none, and the places. entries: the code that calls kernels, which stands
    in no line of theirs."""
    sites = raw.sites
    places: dict[RecordedPlace, int] = {}
    numbers: list[int] = [-1]
    for counter, caller, _ in raw.calls().tolist()[1:]:  # a caller comes before its calls
        if any(low <= counter < high for low, high in entries):
            numbers.append(-1)
            continue
        here = lines.places([sites[counter - IS_SITE]] if counter >= IS_SITE else counter)
        number = numbers[caller]
        for file, line in here[::-1]:
            number = places.setdefault(RecordedPlace(file, line, number), len(places))
        numbers.append(number)
    return np.array(numbers, np.int32)[used], list(places)


def _variables(functions: Sequence[Function]) -> tuple[np.ndarray, list[RecordedVariable]]:
    """The number of each variable, and the variables: what has one name in one function, such as two loops' counters,
    is one. -1: it is a pointer."""
    variables: dict[RecordedVariable, int] = {}
    numbers = [
        -1
        if v.target
        else variables.setdefault(RecordedVariable(f.name, v.name, v.type, v.count, v.shape, v.words), len(variables))
        for f in functions
        for v in f.variables
    ]
    return np.array([*numbers, -1], np.int32), list(variables)


def _members(trace: LaunchTrace, pointers: np.ndarray) -> dict[int, list[Member]]:
    """The structs and arrays in each array of shared memory to which variables of the kernel refer, as far as each
    variable has referred to one place alone. pointers: the changes of such variables."""
    variables = [variable for function in trace.functions for variable in function.variables]
    places = np.unique(pointers[["variable", "element", "word"]])
    found: dict[int, list[Member]] = {}
    # Where two names mean the same, a local variable stands in front of a parameter.
    for number, array, offset in sorted(places.tolist(), key=lambda place: variables[place[0]].is_parameter):
        if (places["variable"] == number).sum() == 1:
            found.setdefault(array, []).append(variables[number].target.moved(offset))
    return found


def _arrays(
    steps: np.ndarray, rows: np.ndarray, trace: LaunchTrace, members: Mapping[int, Sequence[Member]]
) -> tuple[np.ndarray, list[RecordedArray], np.ndarray]:
    """The array of each step, the arrays, and what their kept bytes were at the launch. Of shared memory, only the
    arrays that the block touches, and of a struct its members: `rows`, and an mbarrier's place in `steps`, count from
    there then. members: what is known of each array besides its declaration."""
    tensors = trace.memory.tensors()
    counts = row_counts(steps["op"], steps["mask"])
    array_of_row, width_of_row = (np.repeat(steps[name], counts) for name in ("array", "width"))
    numbers = np.full(len(tensors) + len(trace.statics) + 2, -1, np.int32)  # the last stands for none
    arrays: list[RecordedArray] = []
    initial: list[np.ndarray] = []
    for number, (together, tensor, address, size) in enumerate(tensors):
        mine = array_of_row == number
        low = int(rows[mine].min()) if mine.any() else 0
        kept = int((rows[mine] + width_of_row[mine]).max()) - low if mine.any() else 0
        names = [array.name for array in together if array.name]
        name = " = ".join(names or [argument_label(array.index, array.name, trace.kernel) for array in together])
        if tensor is None:
            arrays.append(RecordedArray(name, "global", "bytes", (size,), 1, low, kept))
        else:
            dtype = str(tensor.dtype).removeprefix("torch.").removesuffix("fn")
            shape = tuple(tensor.shape)
            arrays.append(RecordedArray(name, "global", dtype, shape, tensor.element_size(), low, kept))
        initial.append(np.frombuffer(ctypes.string_at(address + low, kept), np.uint8))
        numbers[number] = number
    array_of = numbers[steps["array"]]
    step_of_row = np.repeat(np.arange(len(steps)), counts)
    for number, (name, size, declared) in enumerate(
        [*trace.statics, ("dynamic shared memory", trace.shared_mem, None)], start=len(tensors)
    ):
        mine = np.flatnonzero(array_of_row == number)
        if not mine.size:
            continue
        outermost = known_members([*([declared] if declared else []), *members.get(number, [])], size)
        is_whole = len(outermost) == 1 and outermost[0].size == size
        whole = outermost[0] if is_whole else with_gaps(name, size, outermost)
        mbarriers = np.flatnonzero((steps["array"] == number) & np.isin(steps["op"], (ARRIVE, WAIT, PHASE)))
        touching = np.concatenate([step_of_row[mine], mbarriers])
        low = np.concatenate([rows[mine], steps["extra"][mbarriers]]).astype(np.int64)
        high = np.concatenate([low[: mine.size] + width_of_row[mine], low[mine.size :] + 1])
        pieces = parts(whole, _spans(touching, low, high))
        of = np.searchsorted([piece.offset for piece in pieces], low, side="right") - 1
        begins = np.array([piece.offset for piece in pieces])[of].astype(np.int32)
        rows[mine] -= begins[: mine.size]
        steps["extra"][mbarriers] -= begins[mine.size :]
        for n in np.unique(of).tolist():
            array_of[touching[of == n]] = len(arrays)
            arrays.append(_shared_array(pieces[n], name))
            initial.append(np.full(pieces[n].size, 0xFF, np.uint8))
    return array_of, arrays, np.concatenate([*initial, np.zeros(0, np.uint8)])


def _spans(step: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """From where to where each step goes, of those that touch bytes from `low` up to `high`; each span once."""
    _, of = np.unique(step, return_inverse=True)
    lowest, highest = np.full(of.max() + 1, low.max()), np.zeros(of.max() + 1, np.int64)
    np.minimum.at(lowest, of, low)
    np.maximum.at(highest, of, high)
    return np.unique(np.stack([lowest, highest], axis=1), axis=0)


def _shared_array(piece: Member, declared: str) -> RecordedArray:
    form = (piece.type, piece.shape, piece.bytes, piece.is_vector)
    if piece.members or piece.type not in DTYPES:
        form = ("bytes", (piece.size,), 1, False)
    kind, shape, itemsize, is_vector = form
    begin, part_of = piece.offset, "" if piece.name == declared else declared
    return RecordedArray(
        piece.name, "shared", DTYPES.get(kind, kind), shape, itemsize, 0, piece.size, begin, part_of, is_vector
    )
