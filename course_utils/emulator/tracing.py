"""`sanitize()`, `profile()` and `in_step()`: clients that watch launches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np

from course_utils.emulator.counters import add_counters
from course_utils.emulator.findings import add_findings
from course_utils.emulator.profiler import Counters
from course_utils.emulator.sanitizer import SanitizerReport
from course_utils.emulator.watching import Client, LaunchTrace, Watch, linear_index, watching
from course_utils.toolchain.errors import Index3


class Sanitizer(Client):
    """Adds the findings of each launch to a report.

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
        nobody wait: the next write of a flag by this thread hands that on. A thread that reads the flag there, by an
        atomic, a volatile read or ld.acquire, comes after it, and so do the threads that it meets at a barrier. A read
        needs no fence behind it. A fence that ends at the block (.cta) counts for this block. A plain store is no flag.
        A flag that threads only ask about (a failed atomicCAS) counts as written by them, too. Which of several pairs
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
    """

    def __init__(self) -> None:
        self.report = SanitizerReport()

    def conflict(self, other: Client) -> str:
        if isinstance(other, Profiler) and other.blocks:
            return "sanitize() inside profile(blocks=...) would see only those blocks: use one after the other"
        return ""

    def watch(self, grid: Index3, kernel: str) -> Watch:
        return Watch(sanitize=True)

    def take(self, trace: LaunchTrace) -> None:
        add_findings(self.report, trace)


class Profiler(Client):
    """Adds what each launch counts. blocks: those to trace; none: all."""

    def __init__(self, blocks: tuple[Index3, ...]) -> None:
        self.counters, self.blocks = Counters(), blocks

    def conflict(self, other: Client) -> str:
        if self.blocks and isinstance(other, Sanitizer):
            return "profile(blocks=...) inside sanitize(), which watches all blocks: use one after the other"
        if isinstance(other, Profiler) and (self.blocks or other.blocks):
            return "profile(blocks=...) and another profile() around each other: use one after the other"
        return ""

    def watch(self, grid: Index3, kernel: str) -> Watch:
        chosen = {block: linear_index(block, grid) for block in self.blocks}
        missing = next((block for block, index in chosen.items() if index is None), None)
        if missing is not None:
            raise ValueError(f"blocks names block {missing}, but the grid is {grid}")
        return Watch(profile=True, blocks=tuple(sorted(set(chosen.values()))))

    def refusal(self, watch: Watch) -> str:
        if watch.sanitize:
            return "sanitize() and profile() around each other watch no such kernel; use one after the other"
        return ""

    def take(self, trace: LaunchTrace) -> None:
        add_counters(self.counters, trace)


class InStep(Client):
    """Lets threads go in step, and takes nothing."""

    alone = True

    def conflict(self, other: Client) -> str:
        if isinstance(other, (Sanitizer, Profiler)):
            return "in_step() inside sanitize() or profile(): use one after the other"
        return ""

    def watch(self, grid: Index3, kernel: str) -> Watch:
        return Watch(in_step=True)

    def refusal(self, watch: Watch) -> str:
        return "in_step() does not know its asynchronous instructions; launch it outside"


@contextlib.contextmanager
def sanitize() -> Iterator[SanitizerReport]:
    """Watches the launches inside a `with` as compute-sanitizer would, and more closely; always on the emulator.

        with sanitize() as report:
            kernel(grid, block, args)
        report.findings

    Findings are never raised: the launch goes on. One that cannot (a deadlock, a crash, the time limit) raises its
    KernelError as always, and the report holds what was found before. The same kernel and inputs give the same report
    each time, ordered by line.

    The first four tools have NVIDIA's names: memcheck, racecheck, initcheck and synccheck; asynccheck is this course's
    own. What each of them watches, and what not: `Sanitizer`.

    Outputs are those of a plain launch, but for what depends on the order of threads (printf, the last bits of float
    atomics): a watched thread may wait in other places. Pointers kept in __device__ variables do not survive the change
    between plain and watched launches.

    A finding is an error on the path that was executed. Silence proves nothing about other inputs, and nothing about
    orders of events that a GPU may choose and the emulator did not: a race is found by what separates two accesses, not
    by what they did.
    """
    client = Sanitizer()
    with watching(client):
        yield client.report


@contextlib.contextmanager
def profile(*, blocks: int | Iterable[int | tuple[int, ...]] | None = None) -> Iterator[Counters]:
    """Counts what the launches inside a `with` ask of memory, per source line, as ncu would; always on the emulator.

        with profile() as counters:
            kernel(grid, block, args)
        counters.rows

    blocks: trace only this or these of a large grid, each as blockIdx.x or as (x, y, z); all blocks run. Raises
    ValueError for a block that a launch does not have, TypeError for what is no block.

    If a kernel's header says `arch: sm_90a only`, these are counted, too: products, copies and waits (`AsyncRow`);
    exponentials (ex2.approx), and how many of them are computed while a product runs; the most bytes of copies that a
    block has on their way at once. The roles of warps are found by the lines where they wait (`Role`). These figures
    were not compared with ncu's.

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
    client = Profiler(chosen or ())
    with watching(client):
        yield client.counters


@contextlib.contextmanager
def in_step() -> Iterator[None]:
    """For the launches inside a `with`, the threads of a block go in step, as if no barrier were missing.

    They write to shared memory until each of them waits or wants to read there, then read until each waits or wants to
    write, and so on. Otherwise a thread runs on until it waits, and a kernel without a barrier gives wrong values; in
    step it gives what its writer meant. Raises ValueError inside sanitize() or profile().
    """
    with watching(InStep()):
        yield


def block_index(block: int | tuple[int, ...], name: str = "blocks") -> Index3:
    """(x, y, z) of a block that a caller names. Raises TypeError or ValueError, which names the argument."""
    index = block if isinstance(block, (tuple, list)) else (block,)
    if not 1 <= len(index) <= 3 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in index):
        raise TypeError(f"{name} takes ints or tuples of one to three of them, got {block!r}")
    if min(index) < 0:
        raise ValueError(f"{name} takes indices from 0 on, got {block!r}")
    x, y, z = (*map(int, index), 0, 0)[:3]
    return x, y, z
