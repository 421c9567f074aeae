"""A recording made by hand, in the format of `Recording.packed`: small enough to be known in every number."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

OPS = [
    *("read", "write", "atomic", "copy read", "copy write", "barrier", "warp barrier", "product", "wgmma", "copy"),
    *("arrive", "wait", "end", "exchange", "phase"),
]
TYPES = {"int32": "<i4", "uint32": "<u4", "uint8": "<u1"}
PLAIN = {"begin": 0, "part_of": "", "is_vector": False}  # an array that is no member of a struct
SOURCE = """// swap.cu: each warp stores its number of the row in shared memory, and reads the other's.
extern "C" __global__ void swap(const float* in, float* out) {
    __shared__ float row[64];
    float mine = 2 * in[threadIdx.x];
    row[threadIdx.x] = mine;
    __syncthreads();   // the other warp's half is there
    float other = row[63 - threadIdx.x];
    out[threadIdx.x] = other;
}
"""

# What goes into a write: a statement of several lines, a function that is called, two statements of one line, a loop in
# one line that reads now and then, an atomic operation, a number that was in a register, and a write on a condition.
STATEMENTS = r"""__device__ float twice(const float* from, int n) {
    return 2 * from[n];
}
extern "C" __global__ void k(const float* x, float* y) {
    const int t = threadIdx.x;
    y[t] =
        t < 16
            ? x[t] + twice(x, t + 1)
            : x[0];
    y[t + 32] = x[1]; y[t + 64] = x[2] * y[t];
    for (int n = 0; n < 2; n++) y[t + 96] = n == 0 ? x[t] : 0;
    const float before = atomicAdd(&y[128], x[t]);
    y[t + 160] = before;
    for (int n = 0; n < 3; n++) {
        if (x[n] > 1) y[t + 192] = n;
        __syncwarp();
    }
}"""


@dataclass
class Tape:
    """Writes a recording step by step, as the emulator's recorder does."""

    meta: dict
    initial: list[np.ndarray]
    steps: list[tuple[int, ...]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    changes: list[tuple[int, ...]] = field(default_factory=list)

    def place(self, line: int) -> int:
        place = [self.meta["file"], line, -1]
        if place not in self.meta["places"]:
            self.meta["places"].append(place)
        return self.meta["places"].index(place)

    def step(self, turn, warp, line, op, array=-1, width=0, lanes=None, values=None, extra=0) -> int:
        """lanes: {lane: byte offset}; values: {lane: words of 32 bits}. Returns the number of the step."""
        lanes = {} if lanes is None else lanes
        mask = sum(1 << lane for lane in lanes) if lanes else 0xFFFFFFFF
        mask = 0 if op == "end" else mask
        place = -1 if line is None else self.place(line)
        at = (turn, warp, place, OPS.index(op), array, mask, width, len(self.offsets), extra)
        self.steps.append(at)
        self.offsets += lanes.values()
        self.into += [-1] * len(lanes)
        for lane in lanes if values else ():
            self.words += values[lane]
        return len(self.steps) - 1

    def goes(self, read: int, write: int) -> None:
        """What a step has read goes into what another one writes, row by row."""
        first, after = self.steps[read][7], self.steps[read + 1][7]
        self.into[first:after] = range(self.steps[write][7], self.steps[write][7] + after - first)

    def packed(self) -> tuple[dict, bytes]:
        names = "turn", "warp", "place", "op", "array", "mask", "width", "first", "extra"
        kinds = {"op": "uint8", "mask": "uint32"}
        columns = [
            (f"steps.{name}", kinds.get(name, "int32"), [step[n] for step in self.steps], name == "turn")
            for n, name in enumerate(names)
        ]
        columns += [("lanes.offset", "int32", self.offsets, True), ("lanes.into", "int32", self.into, True)]
        columns += [("words.value", "uint32", self.words, False)]
        columns += [("arrays.initial", "uint8", np.concatenate([one.view(np.uint8) for one in self.initial]), False)]
        for n, name in enumerate(("step", "thread", "variable", "element", "word")):
            kind = "uint32" if name == "word" else "int32"
            columns.append((f"changes.{name}", kind, [one[n] for one in self.changes], name == "step"))
        meta, data = {**self.meta, "columns": []}, b""
        for name, kind, values, delta in columns:
            raw = np.array(values, dtype=TYPES[kind])
            meta["columns"].append({"name": name, "type": kind, "count": len(raw), "delta": delta})
            data += (np.diff(raw, prepend=raw.dtype.type(0)) if delta else raw).astype(TYPES[kind]).tobytes()
        return meta, zlib.compress(data)


def bits(value: float) -> int:
    """The 32 bits of a float."""
    return int(np.float32(value).view(np.uint32))


def swap(*, has_barrier: bool = True) -> tuple[dict, bytes]:
    """The kernel of SOURCE in 64 threads: in[n] = n, so that out[n] = 2 (63 - n). Without its barrier the first warp
    reads before the second has written, and the second reads what no barrier has ordered.

    Steps with the barrier: 0 and 1 read `in`, 2 and 3 write `row`, 4 and 5 wait, 6 opens the barrier, 7 and 8 read
    `row`, 9 and 10 write `out`.
    """
    values, rows = np.arange(64, dtype=np.float32), [("in", "global"), ("out", "global"), ("row", "shared")]
    meta = {
        **{"kernel": "swap", "file": "swap.cu", "sources": {"swap.cu": SOURCE}, "ops": OPS},
        **{"grid": [1, 1, 1], "block": [64, 1, 1], "index": [0, 0, 0], "threads": 64, "warps": 2, "places": []},
        "arrays": [
            {"name": name, "space": space, "dtype": "float32", "shape": [64], "itemsize": 4, "low": 0, "bytes": 256}
            | PLAIN
            for name, space in rows
        ],
        "failure": "",
        "variables": [
            {"function": of, "name": name, "type": "float", "count": 1, "words": 1, "shape": []}
            for name, of in (("mine", "swap"), ("other", "a_function_of_many_words<float, 128, 64, true>"))
        ],
        "findings": [],
    }
    tape = Tape(meta, [values, np.full(64, np.nan, np.float32), np.full(256, 0xFF, np.uint8)])

    def every(turn, line, op, array, offset, value=None):
        for warp in (0, 1):
            threads = [32 * warp + lane for lane in range(32)]
            written = {lane: [bits(value(n))] for lane, n in enumerate(threads)} if value else None
            tape.step(turn, warp, line, op, array, 4, {lane: 4 * offset(n) for lane, n in enumerate(threads)}, written)

    def changed(first_step, variable, value):
        for n in range(64):
            tape.changes.append((first_step + n // 32, n, variable, 0, bits(value(n))))

    every(0, 4, "read", 0, lambda n: n)
    changed(2, 0, lambda n: 2 * n)
    every(1, 5, "write", 2, lambda n: n, lambda n: 2 * n)
    if has_barrier:
        for warp in (0, 1):
            tape.step(2, warp, 6, "barrier")
        tape.step(2, -1, None, "end", extra=4)
    every(3, 7, "read", 2, lambda n: 63 - n)
    changed(9 if has_barrier else 6, 1, lambda n: 2 * (63 - n))
    every(4, 8, "write", 1, lambda n: n, lambda n: 2 * (63 - n))
    if not has_barrier:
        meta["findings"] = [
            {"tool": "racecheck", "message": "a read races with a write", "line": 7, "other_line": 5}
            | {"step": 4, "other_step": 3}
        ]
    return tape.packed()


def busy(*, warps: int = 8, rounds: int = 400, side: int = 128) -> tuple[dict, bytes]:
    """A long recording: in each round every warp reads a row and a column of a matrix, writes into a tile in shared
    memory and meets the others at a barrier."""
    meta, _ = swap()
    names = [("in", "global", side), ("tile", "shared", 64)]
    meta |= {
        "threads": 32 * warps,
        **{"block": [32 * warps, 1, 1], "warps": warps, "places": [], "variables": [], "findings": []},
        "arrays": [
            {"name": name, "space": space, "dtype": "float32", "shape": [n, n], "itemsize": 4}
            | {"low": 0, "bytes": 4 * n * n}
            | PLAIN
            for name, space, n in names
        ],
    }
    values = np.linspace(-1, 1, side * side, dtype=np.float32)
    tape = Tape(meta, [values, np.full(4 * 64 * 64, 0xFF, np.uint8)])
    for turn in range(rounds):
        for warp in range(warps):
            at = 32 * (turn * warps + warp)
            tape.step(4 * turn, warp, 4, "read", 0, 4, {lane: 4 * ((at + lane) % side**2) for lane in range(32)})
        for warp in range(warps):
            at = (turn + 7 * warp) % side
            tape.step(4 * turn + 1, warp, 5, "read", 0, 4, {lane: 4 * (side * lane + at) for lane in range(32)})
        for warp in range(warps):
            at = 32 * ((turn * warps + warp) % 128)
            new = {lane: [bits((turn + lane) / rounds)] for lane in range(32)}
            tape.step(4 * turn + 2, warp, 7, "write", 1, 4, {lane: 4 * (at + lane) for lane in range(32)}, new)
        first = [tape.step(4 * turn + 3, warp, 6, "barrier") for warp in range(warps)][0]
        tape.step(4 * turn + 3, -1, None, "end", extra=first)
    return tape.packed()


def twice(*, has_barrier: bool = True) -> tuple[dict, bytes]:
    """Both warps write their half of `row`, read the other's, and write their own again. Without its second barrier
    they write over what the other may still have to read.

    Steps without it: 0 and 1 write, 2 and 3 wait, 4 opens the barrier, 5 and 6 read, 7 and 8 write.
    """
    meta, _ = swap()
    meta |= {"places": [], "variables": [], "findings": []}
    del meta["columns"]
    tape = Tape(meta, [np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.full(256, 0xFF, np.uint8)])

    def every(turn, line, op, at, value=None):
        for warp in (0, 1):
            lanes = {lane: 4 * at(32 * warp + lane) for lane in range(32)}
            tape.step(turn, warp, line, op, 2, 4, lanes, {n: [bits(value)] for n in lanes} if value else None)

    def barrier(turn):
        first = [tape.step(turn, warp, 6, "barrier") for warp in (0, 1)][0]
        tape.step(turn, -1, None, "end", extra=first)

    every(0, 5, "write", lambda n: n, 1.0)
    barrier(1)
    every(2, 7, "read", lambda n: 63 - n)
    if has_barrier:
        barrier(3)
    every(4, 8, "write", lambda n: n, 2.0)
    return tape.packed()


def fetched(*, early: bool = False) -> tuple[dict, bytes]:
    """As on Hopper: warp 0 orders a copy of in[0:32] to row, at whose mbarrier (byte 128 of row) warp 1 waits for it.

    Steps: 0 arrives, 1 orders the copy, 2 waits; then without a thread 3 reads, 4 lands, 5 ends, 6 is the end of the
    phase; 7 reads `row`. early: warp 0 reads it, too, before the copy lands: as step 3, and the rest a step later.
    """
    meta, _ = swap()
    meta |= {"places": [], "variables": [], "findings": []}
    del meta["columns"]
    tape = Tape(meta, [np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.full(256, 0xFF, np.uint8)])
    eight = {lane: 16 * lane for lane in range(8)}
    tape.step(0, 0, 4, "arrive", 2, extra=128)
    tape.step(1, 0, 4, "copy", extra=128)
    tape.step(1, 1, 6, "wait", 2, extra=128)
    if early:
        tape.step(2, 0, 7, "read", 2, 4, {lane: 4 * lane for lane in range(32)})
    tape.step(4, -1, 4, "copy read", 0, 16, eight, extra=1)
    new = {lane: [bits(4 * lane + k) for k in range(4)] for lane in eight}
    lands = tape.step(4, -1, 4, "copy write", 2, 16, eight, new, extra=1)
    tape.goes(read=lands - 1, write=lands)
    tape.step(4, -1, 4, "end", extra=1)
    tape.step(4, -1, None, "phase", 2, extra=128)
    tape.step(5, 1, 7, "read", 2, 4, {lane: 4 * lane for lane in range(32)})
    return tape.packed()


def with_many_changes(packed: tuple[dict, bytes], count: int) -> tuple[dict, bytes]:
    """The same recording with `count` changes of thread 37's second variable before its last step: 0, 1 … 99, 0 …"""
    meta, data = packed
    *columns, _, _, _, _, _ = meta["columns"]
    kept = sum(one["count"] * np.dtype(TYPES[one["type"]]).itemsize for one in columns)
    last = next(one["count"] for one in columns if one["name"] == "steps.op") - 1
    step = np.zeros(count, "<i4")
    step[0] = last  # the rest are differences of 0
    rest = [step, np.full(count, 37, "<i4"), np.ones(count, "<i4"), np.zeros(count, "<i4"), np.arange(count) % 100]
    rest[-1] = rest[-1].astype("<f4")
    many = [{**one, "count": count} for one in meta["columns"][-5:]]
    raw = zlib.decompress(data)[:kept] + b"".join(one.tobytes() for one in rest)
    return {**meta, "columns": [*columns, *many]}, zlib.compress(raw, 1)
