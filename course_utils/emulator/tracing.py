"""`sanitize()`, `profile()`, `in_step()`, `record()`: what they watch; how raw results become findings and counters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np

from course_utils.emulator import trace_results as raw
from course_utils.emulator.memory import DeviceMemory
from course_utils.emulator.profiler import AsyncRow, CounterRow, Counters, Footprint, Role
from course_utils.emulator.recording import Recording
from course_utils.emulator.sanitizer import Event, Finding, SanitizerReport
from course_utils.toolchain.source import line_text

Block = tuple[int, int, int]
Locate = Callable[[int], "tuple[str, int] | None"]

_sanitizers: list[SanitizerReport] = []
_profilers: list[tuple[Counters, tuple[Block, ...] | None]] = []
_in_step: list[None] = []
_recorders: list[Asked] = []


@contextlib.contextmanager
def sanitize() -> Iterator[SanitizerReport]:
    """Watches the launches inside a `with` as compute-sanitizer would, and more closely; always on the emulator.

        with sanitize() as report:
            kernel(grid, block, args)
        report.findings

    Findings are never raised: the launch goes on. One that cannot (a deadlock, a crash, the time limit) raises its
    KernelError as always, and the report holds what was found before. The same kernel and inputs give the same report
    each time, ordered by line.

    The tools, the first four by NVIDIA's names:

    memcheck: accesses outside of the arguments (exact to the byte), of static and local arrays (by the index), and of
        the dynamic shared memory that the launch asked for; misaligned vectors. Outside of the arguments that is said
        of whatever touches global memory: loads, stores, atomics, vectors, cp.async, bulk copies and reductions by them
        in both directions, boxes of a tensor map, prefetches. Unlike compute-sanitizer it sees a static shared array
        overrun into its neighbour; through a pointer into the middle of an array it does not. An index past the end of
        a row counts, even where another row of the same array follows: C++ leaves it undefined.
    racecheck: two threads of a block that touch the same bytes of shared memory without a barrier between them, where
        at least one writes; within a warp, without __syncwarp() (a shuffle orders no memory); a cp.async that is read
        before its wait. Unlike compute-sanitizer's, it also watches global memory and __device__ variables: for threads
        of a block, and of a warp, by the same rules; and two blocks that write the same elements, or one that reads
        what another writes, without atomics. No hazard: threads of a block that store the same value; blocks that do,
        in a place of the code that writes nothing else (`*found = true`); a volatile read beside atomics; a plain read
        of what the same thread then changes by an atomic that makes up for an old value (CAS, min, max, and, or). A
        hazard, though it may be meant: threads of a block that wait for each other by a flag in shared memory, or by
        one that is no atomic in a file without fences.
        In a file in which something calls a fence (__threadfence(), __threadfence_block(), fence, membar, st.release),
        flags in global memory count, volatile or atomic. A fence releases what its thread has done and knows, and makes
        nobody wait: the next write of a flag by this thread hands that on, whoever reads the flag there, by an atomic,
        a volatile read or ld.acquire, comes after it, and so do those that it meets at a barrier. A read needs no fence
        behind it. A fence that ends at the block (.cta) counts for this block. A plain store is no flag. Of a flag that
        threads only ask about (a failed atomicCAS) it is taken that they have written it, too. Which of several pairs
        is named may there depend on the order in which blocks ran. A launch in which more than 512 MB, or 2^30 steps,
        would go into knowing who knows what is taken to be in order from there on.
        Not watched: between blocks, and in a file with fences everywhere, accesses narrower than the tensor's elements
        (a variable's are taken to be of 4 bytes, or 2 or 1 if its size is no multiple); variables beyond the first 128;
        which lanes of a warp a __syncwarp() with a partial mask orders (all that came before it in this warp); with
        g++, here and below, what a call reads for a struct that the function takes by value (by reference it is seen;
        clang and zig show both).
    initcheck: reads of shared memory, and atomics on it, atomicExch included, that no thread of the block has written
        before. (compute-sanitizer's looks at global memory only, which here always comes from a tensor.)
    synccheck: threads of a block that wait at different barriers, or run past one; with a deadlock, where each group
        waits. Threads that left through `return` count as arrived, as on the hardware. A shuffle that reads a lane
        which its mask does not name, or which has left, or which the block does not have; a mask that does not name
        the lane that calls; lanes that meet in different collectives.
    asynccheck: what compute-sanitizer does not have. In a kernel whose header says `arch: sm_90a only` it finds
        - what a thread wrote to shared memory and wgmma or a bulk store reads, without fence.proxy.async on the way;
        - accumulators read or written, and registers of A written, while their wgmma may still run; a product without a
          wgmma.fence behind the last touch of its registers;
        - shared memory overwritten, by a thread or a copy, while a product, a store or a thread may still read it;
        - a copy's bytes that are read by who has not waited for the phase of its mbarrier, or on the wrong parity;
        - an mbarrier before its init can be seen (by copies: without a fence of its own), or after its end; too many or
          too few arrivals and bytes; products and copies that are never committed or never waited for;
        - products, wgmma.fence and setmaxnreg by only a part of the warpgroup; products with other descriptors; copies
          of a wrong size or place;
        - in a cluster, shared memory or an mbarrier of a block that may not have started yet, or that may have exited
          by then; a copy that may still read the shared memory of a block that has exited;
        - a deadlock, and who waits for what.
        There racecheck and initcheck, too, know all barriers of shared memory. Two lines are ordered if a chain of
        barriers leads from one to the other, whatever the order they ran in. A proxy fence may stand anywhere on that
        chain, as the PTX memory model has it. Taken to be safe: the lanes of a warp that meet in a wgmma.wait_group see
        each other's accesses, one warp's wait for a product speaks for its warpgroup, and at barrier.cluster an arrival
        with .relaxed orders what one with .release does, as at an mbarrier a wait with .relaxed does what one with
        .acquire does. An arrival at an mbarrier with .relaxed orders only what its thread had done and known at its
        last fence; scopes (.cta, .cluster, .gpu) are not looked at. Not watched: atomics as locks, global memory within
        a block or a cluster (between them, flags count as above, a block or cluster as one thread), what the copy
        engine does to it; a read of A's registers in flight, which does no harm. A register is a variable of the
        source: where the compiler would put a new value of it elsewhere, a finding is about the variable.

    Outputs are those of a plain launch, but for what depends on the order of threads (printf, the last bits of float
    atomics): a watched thread may wait in other places. Pointers kept in __device__ variables do not survive the change
    between plain and watched launches.

    A finding is an error on the path that was executed. Silence proves nothing about other inputs, and nothing about
    orders of events that a GPU may choose and the emulator did not: a race is found by what separates two accesses, not
    by what they did.
    """
    if any(blocks is not None for _, blocks in _profilers):
        raise ValueError("sanitize() inside profile(blocks=...) would see only those blocks: use one after the other")
    report = SanitizerReport()
    _sanitizers.append(report)
    try:
        yield report
    finally:
        _sanitizers[:] = [other for other in _sanitizers if other is not report]


@contextlib.contextmanager
def profile(*, blocks: int | Iterable[int | tuple[int, ...]] | None = None) -> Iterator[Counters]:
    """Counts what the launches inside a `with` ask of memory, per source line, as ncu would; always on the emulator.

        with profile() as counters:
            kernel(grid, block, args)
        counters.rows

    blocks: trace only this or these of a large grid, each as blockIdx.x or as (x, y, z); all blocks run. Raises
    ValueError for a block that a launch does not have, TypeError for what is no block.

    Of kernels whose header says `arch: sm_90a only` it also counts products, copies and waits (`AsyncRow`), and
    exponentials (ex2.approx) with those that are computed while a product runs, and the most bytes of copies that a
    block has on their way at once, and finds the roles of warps by the lines where they wait (`Role`); ncu has not been
    asked about these.

    A broadcast touches fewer sectors than its bytes would fill: `ideal_sectors` may exceed `sectors`, as ncu's do.

    How far the figures agree with ncu's on an H200: docs/validation.md, launch by launch. In short: requests and
    sectors are ncu's; so are wavefronts and bank conflicts, but for a cp.async.cg whose lanes write to scattered
    places, which is counted as a .ca (where we count 256, the H200 takes 1,024), and float atomics in shared memory, a
    loop on the hardware. The counters follow the source as a host compiler sees it. nvcc may merge, hoist or drop an
    access: it reads four neighbouring floats of shared memory at once, so that of 131,072 wavefronts counted in
    scores.cu 98,304 were left. g++ and zig may disagree on a value that one of them keeps in a register. __device__
    and __constant__ variables are not counted.
    """
    if isinstance(blocks, (int, np.integer)):
        blocks = (blocks,)
    if blocks is not None and not isinstance(blocks, Iterable):
        raise TypeError(f"blocks takes block indices, got {blocks!r}")
    chosen = None if blocks is None else tuple(block_index(block) for block in blocks)
    if chosen is not None and not chosen:
        raise ValueError("blocks takes at least one block index, got none")
    if chosen is not None and _sanitizers:
        raise ValueError("profile(blocks=...) inside sanitize(), which watches all blocks: use one after the other")
    if any(chosen is not None or blocks is not None for _, blocks in _profilers):
        raise ValueError("profile(blocks=...) and another profile() around each other: use one after the other")
    counters = Counters()
    _profilers.append((counters, chosen))
    try:
        yield counters
    finally:
        _profilers[:] = [entry for entry in _profilers if entry[0] is not counters]


@contextlib.contextmanager
def in_step() -> Iterator[None]:
    """For the launches inside a `with`, the threads of a block go in step, as if no barrier were missing.

    They write to shared memory until each of them waits or wants to read there, then read until each waits or wants to
    write, and so on. Otherwise a thread runs on until it waits, and a kernel without a barrier gives wrong values; in
    step it gives what its writer meant. Raises ValueError inside sanitize() or profile().
    """
    if _sanitizers or _profilers:
        raise ValueError("in_step() inside sanitize() or profile(): use one after the other")
    _in_step.append(None)
    try:
        yield
    finally:
        _in_step.pop()


@dataclass
class Asked:
    """What a `record()` wants of the launches in its call: `launch`, the number of one of them (None: the first), of
    which it takes `block` and at most `limit` accesses. `kernels`: those launched so far; `recording`: what came of
    it."""

    block: Block
    launch: int | None
    limit: int
    kernels: list[str] = field(default_factory=list)
    recording: Recording | None = None
    thread: int = field(default_factory=threading.get_ident)  # that asks


@contextlib.contextmanager
def recording(asked: Asked) -> Iterator[None]:
    """Records as `asked` in the launches inside a `with`. Raises ValueError inside of what else watches launches."""
    if _recorders and _recorders[-1].thread != threading.get_ident():
        raise ValueError("record() while another thread records, which would see the launches of both: wait for it")
    if active():
        raise ValueError(
            "record() inside sanitize(), profile(), in_step() or another record(): use one after the other"
        )
    _recorders.append(asked)
    try:
        yield
    finally:
        _recorders.pop()


def recorded(recording: Recording) -> None:
    """Hands over what `recording()` has asked for."""
    _recorders[-1].recording = recording


@contextlib.contextmanager
def findings_aside() -> Iterator[SanitizerReport]:
    """The report of a launch that is run for its findings, before it is recorded."""
    report = SanitizerReport()
    _sanitizers.append(report)
    try:
        yield report
    finally:
        _sanitizers.pop()


def block_index(block: int | tuple[int, ...], name: str = "blocks") -> Block:
    index = block if isinstance(block, (tuple, list)) else (block,)
    if not 1 <= len(index) <= 3 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in index):
        raise TypeError(f"{name} takes ints or tuples of one to three of them, got {block!r}")
    if min(index) < 0:
        raise ValueError(f"{name} takes indices from 0 on, got {block!r}")
    x, y, z = (*map(int, index), 0, 0)[:3]
    return x, y, z


@dataclass(frozen=True)
class Watch:
    """What one launch is watched for; `blocks` are linear indices, none means all."""

    sanitize: bool
    profile: bool
    blocks: tuple[int, ...]
    in_step: bool = False
    hopper: bool = False  # the kernel is for sm_90a
    fences: bool = False  # something in its file is a fence
    record: int = 0  # accesses of threads of the one block in `blocks` to be recorded, at most; 0: none
    preferred: Block | None = None  # of which a finding tells if it is in several; None: the first of them


def active() -> bool:
    """Whether launches belong to the emulator in any case: nothing else watches, or lets threads go in step."""
    return bool(_sanitizers or _profilers or _in_step or _recorders)


def watch(grid: Block, kernel: str) -> Watch | None:
    """How to watch a launch of this grid now; None: not at all."""
    if _in_step:
        return Watch(False, False, (), in_step=True)
    if _recorders:
        return _watch_to_record(_recorders[-1], grid, kernel)
    if not active():
        return None
    chosen: set[int] = set()
    for _, blocks in _profilers:
        for x, y, z in blocks or ():
            if x >= grid[0] or y >= grid[1] or z >= grid[2]:
                raise ValueError(f"blocks names block {(x, y, z)}, but the grid is {grid}")
            chosen.add(x + grid[0] * (y + grid[1] * z))
    if any(blocks is None for _, blocks in _profilers):
        chosen.clear()
    return Watch(bool(_sanitizers), bool(_profilers), tuple(sorted(chosen)))


def _watch_to_record(asked: Asked, grid: Block, kernel: str) -> Watch | None:
    asked.kernels.append(kernel)
    if len(asked.kernels) - 1 != (asked.launch or 0):
        return None
    x, y, z = asked.block
    if x >= grid[0] or y >= grid[1] or z >= grid[2]:
        raise ValueError(f"block takes an index in the grid {grid} of {kernel}(), got {asked.block}")
    return Watch(False, False, (x + grid[0] * (y + grid[1] * z),), record=asked.limit)


def collect(
    results: raw.TraceResults,
    *,
    kernel: str,
    blocks: int,
    memory: DeviceMemory,
    locate: Locate,
    sources: Mapping[str, str],
    preferred: Block | None,
) -> None:
    """Adds a launch's results to the reports that are open.

    `locate` turns a place in the library into (file, line), `sources` has the text of each file by its name;
    `preferred`: as in the launch's `Watch`.
    """
    for report in _sanitizers:
        report.dropped += results.findings_dropped
        found = [_finding(f, kernel, memory, locate, sources) for f in results.findings[: results.finding_count]]
        for finding in sorted(found, key=lambda one: _order(one, preferred)):
            _add_finding(report, replace(finding, launch=report.launches))
        report.launches += 1
    if not _profilers:
        return
    rows = _rows(results, kernel, locate, sources)
    asynchronous, roles = _asynchronous(results, kernel, memory, locate, sources)
    touched = [
        (position, Footprint(kernel, label, size, seen.read, seen.written, seen.loaded))
        for (position, label, size), seen in zip(memory.arrays(), results.touched, strict=False)
    ]
    for counters, _ in _profilers:
        counters.launches += 1
        counters.blocks += blocks
        counters.blocks_traced += results.blocks_traced
        counters.dropped += results.counters_dropped
        counters.exponentials += results.exponentials
        counters.beside_products += results.beside_products
        counters.most_in_flight = max(counters.most_in_flight, results.most_in_flight)
        counters.rows = _merged(CounterRow, [*counters.rows, *rows], FIGURES)
        counters.asynchronous = _merged(AsyncRow, [*counters.asynchronous, *asynchronous], ASYNC_FIGURES)
        counters.roles = _merged(Role, [*counters.roles, *roles], ("waits", "idle_turns"))
        counters.footprint += [footprint for _, footprint in sorted(touched, key=lambda item: item[0])]
        counters.sources.update({row.file: sources[row.file] for row in rows if row.file in sources})


# ---- findings


def _finding(
    f: raw.RawFinding, kernel: str, memory: DeviceMemory, locate: Locate, sources: Mapping[str, str]
) -> Finding:
    place = _place(f.file, f.line, f.place, locate)
    other = _place(f.other_file, f.other_line, f.other_place, locate) if f.has_other else None
    tool, message = _words(f, memory, other[1] if other else None)
    return Finding(
        tool=tool,
        message=message,
        kernel=kernel,
        file=place[0] if place else None,
        line=place[1] if place else None,
        source=_text(sources, place),
        block=f.block.as_tuple(),
        thread=f.thread.as_tuple(),
        other_line=other[1] if other else None,
        other_source=_text(sources, other),
        other_block=f.other_block.as_tuple() if f.has_other else None,
        other_thread=f.other_thread.as_tuple() if f.has_other else None,
        count=f.count,
        events=_events(f, place, other),
        wants=f.wants.decode(),
    )


# As runtime/trace_results.h numbers them; and which of them start what goes on by itself.
DEEDS = ("", "reads", "writes", "starts a wgmma", "starts a copy", "starts a bulk store", "starts a cp.async")
DEEDS += ("initialises an mbarrier", "uses shared memory", "the kernel begins", "the block ends")
STARTED = range(3, 7)
Place = tuple[str, int] | None


def _events(f: raw.RawFinding, place: Place, other: Place) -> tuple[Event, ...]:
    """Both events of a finding, the first first; none where there is nothing to want between them."""
    if not f.wants:
        return ()

    def event(step: int, deed: int, place: Place, block: Block | None, thread: Block | None) -> Event:
        return Event(step, DEEDS[deed], deed in STARTED, place[1] if place else None, block, thread)

    mine = event(f.step, f.deed, place, f.block.as_tuple(), f.thread.as_tuple())
    whose = (f.other_block.as_tuple(), f.other_thread.as_tuple()) if f.has_other else (None, None)
    its = event(f.other_step, f.other_deed, other, *whose)
    return (its, mine) if its.step <= mine.step else (mine, its)


def _place(file: bytes, line: int, counter: int, locate: Locate) -> Place:
    """(file, line): as the runtime knows them, or where its program counter lies."""
    return (file.decode(errors="replace"), line) if line else locate(counter)


def _text(sources: Mapping[str, str], place: Place) -> str | None:
    return line_text(sources.get(place[0], ""), place[1]) if place else None


def _words(f: raw.RawFinding, memory: DeviceMemory, other_line: int | None) -> tuple[str, str]:
    """The tool that a finding belongs to, and what it says."""
    access = f"{'write' if f.is_write else 'read'} of {f.bytes} byte{'s' if f.bytes != 1 else ''}"
    at_line = f"in line {other_line}" if other_line else "elsewhere"
    if f.kind == raw.OUT_OF_BOUNDS:
        where = "in shared memory, outside of every array" if f.is_shared else memory.describe(f.address)
        by = f" by {f.message.decode()}" if f.message else ""
        return "memcheck", f"{access}{by} out of bounds, {where}"
    if f.kind == raw.DYNAMIC_SHARED:
        return "memcheck", f"{access} at byte {f.address} of dynamic shared memory, more than the launch asked for"
    if f.kind == raw.INDEX:
        return "memcheck", "out of bounds: " + f.message.decode(errors="replace")
    if f.kind == raw.MISALIGNED:
        return "memcheck", "misaligned: " + f.message.decode(errors="replace")
    if f.kind == raw.UNINITIALISED:
        who = "an atomic updates" if f.is_write else "reads"
        return "initcheck", f"{who} shared memory that no thread of the block has written"
    if f.kind == raw.ASYNC:
        return "asynccheck", f.message.decode(errors="replace").replace("{other}", at_line)
    if f.kind == raw.BARRIER:
        return "synccheck", f.message.decode(errors="replace")
    if f.kind == raw.COPY_IN_FLIGHT:
        return "racecheck", (
            f"{'writes' if f.is_write else 'reads'} shared memory while the cp.async {at_line} may still be on its "
            "way: no wait for it in between"
        )
    hint = f" ({f.message.decode()})" if f.message else ""
    if not f.is_shared and f.block.as_tuple() != f.other_block.as_tuple():
        what = {
            raw.READ_AFTER_WRITE: f"reads global memory that another block writes {at_line}",
            raw.WRITE_AFTER_READ: f"writes global memory that another block reads {at_line}",
            raw.WRITE_AFTER_WRITE: f"writes global memory that another block writes, too, {at_line}",
        }[f.kind]
        return "racecheck", f"{what}: blocks run in any order; atomics, or one block per element, would be safe{hint}"
    where = "shared" if f.is_shared else "global"
    other_block = f.block.as_tuple() != f.other_block.as_tuple()
    barrier = "barrier.cluster" if other_block else "__syncwarp()" if f.same_warp else "__syncthreads()"
    name, what = {
        raw.READ_AFTER_WRITE: ("read-after-write", f"reads what another thread writes {at_line}"),
        raw.WRITE_AFTER_READ: ("write-after-read", f"overwrites what another thread may still have to read {at_line}"),
        raw.WRITE_AFTER_WRITE: ("write-after-write", f"writes what another thread writes, too, {at_line}"),
    }[f.kind]
    return "racecheck", f"{name} hazard in {where} memory: {what}, with no {barrier} in between{hint}"


def _add_finding(report: SanitizerReport, new: Finding) -> None:
    """The same mistake at the same place is one finding, however often the compiler has copied the line."""
    for i, old in enumerate(report.findings):
        if _same(old, new):
            report.findings[i] = replace(old, count=old.count + new.count)
            return
    report.findings.append(new)


def _order(f: Finding, preferred: Block | None) -> tuple[object, ...]:
    """By line; for one line the preferred block, or the first, and the first thread, z before y before x."""
    place = f.line or 0, f.other_line or 0, f.tool, f.block != preferred
    return *place, (f.block or ())[::-1], (f.thread or ())[::-1], f.message


def _same(a: Finding, b: Finding) -> bool:
    places = [(f.tool, f.kernel, f.file, f.line, f.source, f.other_line, f.other_source) for f in (a, b)]
    between_blocks = all(f.other_block not in (None, f.block) for f in (a, b))  # `+=` reads and writes: one mistake
    return places[0] == places[1] and (between_blocks or a.message.split(",")[0] == b.message.split(",")[0])


# ---- counters


def _rows(results: raw.TraceResults, kernel: str, locate: Locate, sources: Mapping[str, str]) -> list[CounterRow]:
    rows = []
    for c in results.counters[: results.counter_count]:
        place = locate(c.place)
        rows.append(
            CounterRow(
                kernel=kernel,
                file=place[0] if place else "",
                line=place[1] if place else 0,
                source=_text(sources, place) or "",
                space="shared" if c.is_shared else "global",
                operation=("load", "store", "atomic")[c.operation],
                requests=c.requests,
                sectors=c.sectors,
                ideal_sectors=c.ideal_sectors,
                wavefronts=c.wavefronts,
                ideal_wavefronts=c.ideal_wavefronts,
                bank_conflicts=max(0, c.wavefronts - c.ideal_wavefronts),
                bytes=c.bytes,
            )
        )
    return rows


FIGURES = ("requests", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts", "bank_conflicts", "bytes")


ASYNC_FIGURES = ("count", "flops", "global_bytes", "shared_bytes", "idle_turns")
OPERATIONS = ("wgmma", "copy in", "copy out", "copy between", "wait")


def _asynchronous(
    results: raw.TraceResults, kernel: str, memory: DeviceMemory, locate: Locate, sources: Mapping[str, str]
) -> tuple[list[AsyncRow], list[Role]]:
    """What lines of a kernel for sm_90a asked for, and the warps that wait at the same ones."""
    labels = [label for _, label, _ in memory.arrays()]
    rows, waits = [], []
    for c in results.asynchronous[: results.asynchronous_count]:
        place = locate(c.place)
        is_copy = c.kind in (raw.COPY_IN, raw.COPY_OUT) and c.which < len(labels)
        row = AsyncRow(
            kernel=kernel,
            file=place[0] if place else "",
            line=place[1] if place else 0,
            source=_text(sources, place) or "",
            operation=OPERATIONS[c.kind],
            argument=labels[c.which].replace(f" of {kernel}()", "") if is_copy else "",
            count=c.count,
            flops=c.flops,
            global_bytes=c.global_bytes,
            shared_bytes=c.shared_bytes,
            idle_turns=c.idle,
        )
        rows.append(row)
        if c.kind == raw.WAIT:
            waits.append((c.which, row))
    lines = {warp: tuple(sorted({row.line for other, row in waits if other == warp})) for warp, _ in waits}
    roles = []
    for where in dict.fromkeys(lines[warp] for warp in sorted(lines)):
        warps = tuple(warp for warp in sorted(lines) if lines[warp] == where)
        mine = [row for warp, row in waits if warp in warps]
        roles.append(Role(kernel, warps, where, sum(row.count for row in mine), sum(row.idle_turns for row in mine)))
    return rows, roles


Row = TypeVar("Row", CounterRow, AsyncRow, Role)


def _merged(kind: type[Row], rows: list[Row], figures: tuple[str, ...]) -> list[Row]:
    """One row for all that differ in figures alone, in the order of the source."""
    names = [one.name for one in fields(kind) if one.name not in figures]
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in names)
        before = merged.get(key)
        sums = {name: getattr(row, name) + getattr(before, name) for name in figures} if before else {}
        merged[key] = replace(row, **sums)
    return [merged[key] for key in sorted(merged)]
