"""What the profiler counted, as data and as text. Its page for a notebook, in pages.py, is unknown here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CounterRow:
    """What one source line asked of one memory space, in ncu's terms. All figures are totals over the traced blocks.

    space: "global" or "shared"; operation: "load", "store" or "atomic". A request is one instruction of one warp.
    sectors: pieces of 32 bytes that the requests touch in global memory (0 for shared); ideal_sectors: how few would
    hold the bytes that the lanes asked for. wavefronts: passes through the 32 banks of shared memory (0 for global);
    ideal_wavefronts: without conflicts; bank_conflicts: the difference. bytes: what all lanes asked for together.
    """

    kernel: str
    file: str
    line: int
    source: str
    space: str
    operation: str
    requests: int
    sectors: int
    ideal_sectors: int
    wavefronts: int
    ideal_wavefronts: int
    bank_conflicts: int
    bytes: int


@dataclass(frozen=True)
class AsyncRow:
    """What one source line of a kernel for sm_90a asked of what works by itself, or waited for.

    operation: "wgmma", "copy in" (from global to shared memory), "copy out", "copy between" (blocks of a cluster; also
    st.async) or "wait" (at a named barrier, an mbarrier, barrier.cluster or wgmma.wait_group). count: products of a
    warpgroup, copies, or waits: a thread's, and of wgmma.wait_group a warp's. argument: the tensor that is copied, by
    its own name or by its map's. flops: a multiply-add is two. global_bytes: inside of the tensor; shared_bytes: what
    products read, or copies read or write, in all blocks together, with what a box has outside of the tensor.
    idle_turns: how often other threads of the block went on meanwhile, added over those that waited; no time, but who
    waits for whom shows.
    """

    kernel: str
    file: str
    line: int
    source: str
    operation: str
    argument: str
    count: int
    flops: int
    global_bytes: int
    shared_bytes: int
    idle_turns: int


@dataclass(frozen=True)
class Role:
    """The warps of a block that wait at the same lines: how often they do, and the idle turns of these waits."""

    kernel: str
    warps: tuple[int, ...]
    lines: tuple[int, ...]
    waits: int
    idle_turns: int


@dataclass(frozen=True)
class Footprint:
    """How much of one argument a kernel touched: distinct bytes read and written, of `bytes` in all.

    The sum over the arguments is the compulsory traffic: no cache, however large, can avoid it once. bytes_loaded: what
    all threads together ask for in loads of it, the same bytes each time anew; an atomic function loads, too.
    """

    kernel: str
    argument: str
    bytes: int
    bytes_read: int
    bytes_written: int
    bytes_loaded: int = 0


@dataclass(repr=False)
class Counters:
    """The counters of the launches inside a `with profile()`: `rows` per source line, `footprint` per argument. Of
    kernels for sm_90a, `asynchronous` per source line, `roles` per group of warps; `exponentials`, how often a thread
    computes ex2.approx, and how many of these `beside_products`: its warp has started a product and not waited for it;
    `most_in_flight`, bytes of copies to shared memory that one block had on their way at once. These come as late as
    they may, but for another order (`configure`): so it is how far a producer runs ahead of its consumers.

    "Bytes" are what threads request, and "footprint" the distinct ones among them. Neither is HBM traffic, which
    depends on the caches and which only ncu can measure. `blocks_traced` of `blocks` were watched. `dropped` counts the
    places in the code for which there was no room: their requests are missing.
    """

    rows: list[CounterRow] = field(default_factory=list)
    footprint: list[Footprint] = field(default_factory=list)
    asynchronous: list[AsyncRow] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    exponentials: int = 0
    beside_products: int = 0
    most_in_flight: int = 0
    launches: int = 0
    blocks: int = 0
    blocks_traced: int = 0
    dropped: int = 0
    # (file name, its text) of every kernel file that was launched, for the listing
    sources: dict[str, str] = field(default_factory=dict)

    def select(
        self, space: str | None = None, operation: str | None = None, line: int | None = None
    ) -> list[CounterRow]:
        """The rows of a memory space, an operation, a line; None takes all."""
        wanted = {"space": space, "operation": operation, "line": line}
        return [row for row in self.rows if all(v is None or getattr(row, k) == v for k, v in wanted.items())]

    def total(self, figure: str, space: str | None = None, operation: str | None = None) -> int:
        """The sum of one figure ("bytes", "sectors", "requests", "wavefronts", ...) over `select(space, operation)`."""
        return sum(getattr(row, figure) for row in self.select(space, operation))

    @property
    def product_flops(self) -> int:
        """Floating-point operations of all products of warpgroups; a multiply-add is two."""
        return sum(row.flops for row in self.asynchronous)

    def __str__(self) -> str:
        lost = f"\n... {self.dropped} requests are missing: their places found no room" if self.dropped else ""
        return "\n\n".join(filter(None, (_text(self.rows), _asynchronous_text(self)))) + lost

    __repr__ = __str__


def _text(rows: Iterable[CounterRow]) -> str:
    heading = ("line", "space", "operation", "requests")
    heading += ("sectors", "ideal", "wavefronts", "ideal", "conflicts", "bytes")
    table = [heading]
    for r in rows:
        sectors = (f"{r.sectors:,}", f"{r.ideal_sectors:,}") if r.space == "global" else ("", "")
        shared = (r.wavefronts, r.ideal_wavefronts, r.bank_conflicts)
        wavefronts = tuple(f"{n:,}" for n in shared) if r.space == "shared" else ("", "", "")
        table.append((str(r.line), r.space, r.operation, f"{r.requests:,}", *sectors, *wavefronts, f"{r.bytes:,}"))
    return _aligned(table)


ASYNC_HEADING = ("line", "operation", "argument", "count", "FLOPs", "global bytes", "shared bytes", "idle turns")


def figures_of(row: AsyncRow) -> tuple[str, ...]:
    """Its figures, in the order of ASYNC_HEADING; "" for what the operation has not."""
    is_wait, is_product = row.operation == "wait", row.operation == "wgmma"
    flops, idle = (f"{row.flops:,}" if is_product else ""), (f"{row.idle_turns:,}" if is_wait else "")
    global_bytes = "" if is_wait or is_product else f"{row.global_bytes:,}"
    return f"{row.count:,}", flops, global_bytes, "" if is_wait else f"{row.shared_bytes:,}", idle


def words_of(role: Role) -> str:
    """A role in a line."""
    warps, lines = (", ".join(map(str, numbers)) for numbers in (role.warps, role.lines))
    who = f"warps {warps} wait" if len(role.warps) > 1 else f"warp {warps} waits"
    return f"{who} at lines {lines}: {role.waits:,} waits, {role.idle_turns:,} idle turns"


def _asynchronous_text(counters: Counters) -> str:
    if not counters.asynchronous:
        return ""
    table = [(str(row.line), row.operation, row.argument, *figures_of(row)) for row in counters.asynchronous]
    return "\n".join([_aligned([ASYNC_HEADING, *table]), *map(words_of, counters.roles)])


def _aligned(table: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in table)
