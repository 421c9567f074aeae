"""The levels of a game: kernels of the course with one barrier taken out, each recorded on the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from course_utils.chapters.hand_overs import hand_overs, own_line, same_function
from course_utils.chapters.tensors import normal
from course_utils.cuda import KernelSource, RawModule, read_kernel
from course_utils.emulator import Recording, record
from course_utils.emulator.recorded import WITH_ROWS, WRITING
from course_utils.launches import Launch
from course_utils.launches.broken import BROKEN
from course_utils.launches.chapters import course_launches
from course_utils.launches.hopper import LADDER, ready

# In the place of what tells the mistake of the file in `broken`; as many lines.
_HEAD_OF_COPY = """\
// scores_of_query.cu — the scores of one query and 32 keys, which cp.async brings to shared memory.
//
// arch: sm_80
// grid   (1)                           block  (128): four threads copy a key, 32 of them score
// layout q [16], K [32, 16], S [32], fp32, contiguous, K aligned to 16 bytes
// shared 4 · 32 · 16 = 2048 bytes, static
// limits 32 keys, d = 16
// options: -DIN_FLIGHT=0"""
BEFORE_COPY = "read before copy"  # the kind of race that no pair of threads has
ENGINE = LADDER[1]  # the step of chapter 07 that waits for copies in the plainest way


@dataclass(frozen=True)
class Level:
    """A kernel with one barrier taken out.

    title, task: for the player; file: the whole kernel, as for `read_kernel`; cut: the line that is taken out,
    verbatim; which: take the n-th such line, from 1 on; run: launches a given source; places: the lines of the changed
    source after which putting the barrier back mends the kernel; lesson: what to remember; head: replaces the first
    lines of a kernel, and its file name, if they say that it is broken.
    """

    name: str
    title: str
    task: str
    file: str
    cut: str
    run: Callable[[KernelSource], None]
    places: tuple[int, ...]
    lesson: str
    which: int = 1
    head: tuple[str, str] | None = None

    @property
    def whole(self) -> KernelSource:
        """The kernel with its barrier."""
        kernel = read_kernel(self.file)
        if self.head is None:
            return kernel
        text, name = self.head
        lines = text.splitlines()
        return KernelSource("\n".join([*lines, *kernel.splitlines()[len(lines) :]]) + "\n", kernel.path, name)

    @property
    def place(self) -> int:
        """The line after which the barrier stood. Raises ValueError where the kernel has no such line."""
        lines = [n for n, line in enumerate(self.whole.splitlines()) if line.strip() == self.cut]
        if len(lines) < self.which:
            raise ValueError(f"cut: got {self.cut!r} number {self.which}, {self.file} has it {len(lines)} times")
        return lines[self.which - 1]

    def source(self, place: int | None = None) -> KernelSource:
        """The kernel without the barrier; with `place`, the barrier is put back after that line of the changed
        source."""
        lines, cut = self.whole.splitlines(), self.place
        barrier = lines.pop(cut)
        if place is not None:
            lines.insert(place, barrier)
        return KernelSource("\n".join(lines) + "\n", self.whole.path, self.whole.name)

    def recording(self) -> Recording:
        """Block 0 of the launch without the barrier."""
        return record(lambda: self.run(self.source())).without_variables()


def _with(launch: Callable[[], Launch]) -> Callable[[KernelSource], None]:
    """Makes a launch with another source."""

    def run(code: KernelSource) -> None:
        made = launch()
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in made.args]
        kernel = RawModule(code=code, options=made.options).get_function(made.kernel)
        kernel(made.grid, made.block, args, shared_mem=made.shared_mem)

    return run


def _two_tiles() -> Launch:
    """Two tiles of keys, where the chapter's launch has three: a shorter recording."""
    made, keys = BROKEN["missing_sync_before_overwrite"].mended(), 40
    query, key, value, out, lse, query_length, _, *rest = made.args
    key, value = (tensor[:, :, :keys].contiguous() for tensor in (key, value))
    return replace(made, args=(query, key, value, out, lse, query_length, np.int32(keys), *rest))


def _copy_engine(code: KernelSource) -> None:
    """Launches a block of 128 queries and 256 keys: two tiles, each in a buffer of its own."""
    query, key, value = (normal(1, 1, length, 64, seed=seed).cpu() for seed, length in enumerate((128, 256, 256)))
    out, lse = torch.full_like(query, torch.nan), torch.full((1, 1, 128), torch.nan)
    kernel = RawModule(code=code, options=ENGINE.options(64, torch.float16)).get_function(ENGINE.kernel)
    ready(ENGINE, query, key, value, out, lse, kernel=kernel)()


LEVELS = (
    Level(
        "transpose",
        "A tile is turned",
        "A block loads a tile of 32 × 32 row by row, and writes it out column by column.",
        "00_start_here/transpose_tiled.cu",
        "__syncthreads();   // a thread writes out what another one loaded",
        _with(lambda: course_launches()["transpose_tiled"]),
        (18, 19, 20, 21),
        "What a thread reads from shared memory, another may have to write first: between the two stands a barrier.",
    ),
    Level(
        "one_copy",
        "Keys that come by themselves",
        "128 threads start a copy of 16 bytes each (cp.async), and 32 of them make scores of the copied keys.",
        "00_start_here/broken/cp_async_too_early.cu",
        'asm volatile("cp.async.wait_group %0;" :: "n"(IN_FLIGHT) : "memory");',
        _with(BROKEN["cp_async_too_early"].mended),
        (17,),
        "A barrier says that all threads have come, not that their copies have. Each thread waits for its own copies, "
        "and then all wait for each other.",
        head=(_HEAD_OF_COPY, "00_start_here/scores_of_query.cu"),
    ),
    Level(
        "reduction",
        "One place, used twice",
        "Softmax of a row of 1,000 scores by 8 warps. The same function finds first the maximum, then the sum.",
        "01_attention_basics/softmax.cu",
        "__syncthreads();   // an earlier call may still be reading of_warp",
        _with(BROKEN["missing_sync_in_reduction"].mended),
        (14, 19, 20, 22, 26, 38, 39, 40, 41, 42),
        "Who reuses shared memory waits until all have read what was there.",
    ),
    Level(
        "histogram",
        "Count the digits",
        "512 threads count digits of keys in a histogram in shared memory, to find the greatest keys.",
        "05_deepseek_sparse/radix_topk.cu",
        "__syncthreads();",
        _with(BROKEN["histogram_without_barrier"].mended),
        (126,),
        "Between clearing shared memory and filling it stands a barrier, even where the filling is atomic.",
        which=3,
    ),
    Level(
        "next_tile",
        "The next tile",
        "FlashAttention by 64 threads, which are 2 warps: tiles of keys and values come one after the other.",
        "02_flash_attention_minimal/forward_plain.cu",
        "__syncthreads();   // every thread is done with the previous K and V",
        _with(_two_tiles),
        (18, 38, 65, 66),
        "A loop over tiles takes two barriers: after the load, and before the next one.",
    ),
    Level(
        "own_warp",
        "Within a warp",
        "FlashAttention whose threads work on pieces: the weights P go from lane to lane through shared memory.",
        "02_flash_attention_minimal/forward.cu",
        "__syncwarp();   // a row of P is written and read by one warp",
        _with(BROKEN["missing_syncwarp"].mended),
        (65, 66, 67),
        "Lanes of one warp need not be at the same place: what they hand to each other takes a __syncwarp().",
    ),
    Level(
        "copy_engine",
        "Hopper's copy engine",
        "The copy engine brings tiles of K and V, and counts their bytes at an mbarrier. Products read the tiles.",
        "07_hopper/step2_copy_engine.cu",
        "wait_for(&shared.full[buffer], tile / BUFFERS % 2);",
        _copy_engine,
        (59, 60, 61, 62, 63),
        "Only the mbarrier says that a tile has come. A product starts behind the wait for it.",
    ),
)


def levels() -> tuple[tuple[dict[str, Any], bytes], ...]:
    """All levels, `packed`."""
    return tuple(packed(level) for level in LEVELS)


def packed(level: Level) -> tuple[dict[str, Any], bytes]:
    """A level as the widget takes it: a dictionary with the recording's `meta`, and the recording's bytes. The
    sanitizer's findings are not in the recording; the race is in "race"."""
    recording = level.recording()
    meta, data = recording.packed()
    handed = [asdict(one) for one in hand_overs(recording)]
    shown = sorted({line for file, line, _ in recording.places if file == recording.file})
    known = {
        "name": level.name,
        "title": level.title,
        "task": level.task,
        "lesson": level.lesson,
        "sort": "wait" if "wait" in level.cut else "barrier",
        "barrier": re.sub(r"\s*//.*", "", level.cut),
        "places": level.places,
        "place": level.place,
        "lines": (shown[0], shown[-1]),
        "race": _race(recording, handed),
        "handed": [one for one in handed if one["by"] >= 0],
        "recording": meta | {"findings": [], "failure": ""},
    }
    return known, data


def _race(recording: Recording, handed: list[dict[str, Any]]) -> dict[str, Any]:
    """The race of a level: the first pair of unordered lines that the sanitizer finds, too; if copies are not waited
    for, the start of a copy and the step that reads before it arrives. "at", "then_at": the lines in words; "offset": a
    byte that both touch."""
    found = [one for one in recording.findings if one.other_line]
    places = recording.columns["steps.place"]
    lines = [
        {own_line(recording, int(places[step])) for step in (one.step, one.other_step)}
        for one in found
        if one.step >= 0 and one.other_step >= 0
    ]
    race = next((one for one in handed if one["by"] < 0 and {one["line"], one["then_line"]} in lines), None)
    if race is None:
        known = next(one for one in found if one.step >= 0 and one.other_step >= 0)
        begun = np.flatnonzero(_in_line_of(recording, known.other_step))
        then, offset = _reads_nothing(recording, known.step)
        array = recording.arrays[recording.columns["steps.array"][then]].name
        race = {"array": array, "kind": BEFORE_COPY, "first": int(begun[0]), "then": then}
    else:
        offset = int(np.intersect1d(_touched(recording, race["first"]), _touched(recording, race["then"]))[0])
    at, then_at = (int(recording.columns["steps.place"][race[key]]) for key in ("first", "then"))
    above, below = same_function(recording, at, then_at)
    words = {"at": _words(recording, at), "then_at": _words(recording, then_at)}
    named = {name: race[name] for name in ("array", "kind", "first", "then")}
    return named | words | {"above": above, "below": below, "offset": offset}


def _words(recording: Recording, place: int) -> str:
    """A place in words: "line 20 (called in line 39)"."""
    file, line, caller = recording.places[place]
    of = "" if file == recording.file else f" of {file}"
    while caller >= 0 and recording.places[caller].file != recording.file:
        caller = recording.places[caller].caller
    return f"line {line}{of}" + (f" (called in line {recording.places[caller].line})" if caller >= 0 else "")


def _in_line_of(recording: Recording, step: int) -> np.ndarray:
    """Whether each step is on the same line as `step`."""
    places = recording.columns["steps.place"]
    lines = np.array([hash((file, line)) for file, line, _ in recording.places])[places]
    return (lines == lines[step]) & (places >= 0)


def _touched(recording: Recording, step: int) -> np.ndarray:
    """The bytes of its array that a step touches, as offsets."""
    columns = recording.columns
    first, lanes = int(columns["steps.first"][step]), int(columns["steps.mask"][step]).bit_count()
    rows = columns["lanes.offset"][first : first + lanes]
    return (rows[:, None] + np.arange(int(columns["steps.width"][step]))).ravel()


def _reads_nothing(recording: Recording, step: int) -> tuple[int, int]:
    """The first step in the line of `step` that reads a byte of shared memory which nobody has written, and where."""
    columns, same = recording.columns, _in_line_of(recording, step)
    shared = {n: np.zeros(one.bytes + one.low, bool) for n, one in enumerate(recording.arrays) if one.space == "shared"}
    for at in range(recording.steps):
        op, written = columns["steps.op"][at], shared.get(int(columns["steps.array"][at]))
        if written is None or op > WITH_ROWS:
            continue
        touched = _touched(recording, at)
        if op in WRITING:
            written[touched] = True
        elif same[at] and not written[touched].all():
            return at, int(touched[~written[touched]][0])
    raise ValueError(f"recording: {recording.kernel}() reads nothing unwritten in the line of step {step}")
