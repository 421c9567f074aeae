"""Decode: one new query of each sequence against its cache. What it must read, and what was measured at such a size.

The floor is bytes over bandwidth, by the datasheet. What the kernels of chapter 06 reach depends on how much there is
to read: little is over before the memory is at speed. So the planner quotes the recorded cache that is nearest in
bytes, and says whose record that is.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from course_utils import costs, measured
from course_utils.costs import ceil_div
from course_utils.measured import Measurement, Row
from course_utils.planner.devices import Device
from course_utils.planner.plan import Plan, Setting, amount, duration

PAGE_SIZE = 16
TILE_ROWS = 32  # queries of a group of heads that a block has
SHORTEST_PIECE, SHORTEST_IN_PAIRS = 128, 1024  # keys; where two blocks share a multiprocessor, these
LARGEST_HEAD_DIM = 128
CAPABILITY = (8, 0)
TWO_SHARE = (9, 0), (10, 0)  # capabilities with shared memory for two blocks on a multiprocessor


@dataclass(frozen=True)
class Decode:
    """A decode step of one layer.

    Attributes:
        bytes: of keys and values, which are read once.
        seconds: the least time for that.
        fits: whether they fit in the device's memory.
        splits: into how many pieces the keys of a sequence are cut, where all have one length.
        contiguous, paged: the speed that was measured near this size, as a share of that at which a sum reads a large
            tensor; paged: with pages of 16 in random places.
        near: bytes of K and V of that cache, of 32 query heads, 8 key heads and d = 128; device: where.
        left_out: why the kernels of chapter 06 do not take it; empty if they do.
    """

    bytes: int
    seconds: float
    fits: bool
    splits: int
    contiguous: float
    paged: float
    near: int
    device: str
    left_out: str

    @property
    def words(self) -> str:
        """All of it in three sentences."""
        said = f"Decode, one query of each sequence: reads {amount(self.bytes)} of K and V"
        if not self.fits:
            return f"{said}, which do not fit in memory."
        said += f", at least {duration(self.seconds)} a layer."
        if self.left_out:
            return f"{said} The kernels of chapter 06 {self.left_out}."
        cut = "does not cut the keys" if self.splits == 1 else f"cuts the keys of each into {self.splits} pieces"
        return (
            f"{said} Chapter 06 {cut}. The nearest that was recorded, {amount(self.near)} on an {self.device}, is read "
            f"at {self.contiguous:.0%} of the speed of a sum, in pages of {PAGE_SIZE} at about {self.paged:.0%}."
        )


def decode(planned: Plan) -> Decode:
    """A decode step for the setting of a plan: `batch` sequences of `length` keys, all of which are seen."""
    s = planned.setting
    read = costs.kv_cache_bytes(s.length, s.kv_heads, s.head_dim, element_bytes=s.element_bytes, batch=s.batch)
    blocks = s.batch * s.kv_heads * ceil_div(s.heads // s.kv_heads, TILE_ROWS)
    in_pairs = _in_pairs(s.device, blocks)
    places = s.device.multiprocessors * (2 if in_pairs else 1)
    most = max(1, s.length // (SHORTEST_IN_PAIRS if in_pairs else SHORTEST_PIECE))
    near = _nearest(read, part="contiguous", name="decode_attention")
    plain, paged = (
        _nearest(read, part="paged", page_size=PAGE_SIZE, name=name) for name in ("decode_attention", "paged_attention")
    )
    return Decode(
        bytes=read,
        seconds=read / s.device.bandwidth,
        fits=read <= s.device.memory_bytes,
        splits=costs.splits_by_waves(blocks, places, most),
        contiguous=near["share"],
        paged=near["share"] * plain["us"] / paged["us"],
        near=_bytes(near),
        device=_record().device.removeprefix("NVIDIA "),
        left_out=_left_out(s),
    )


def _in_pairs(device: Device, blocks: int) -> bool:
    """Whether two blocks share a multiprocessor: if there are blocks for all multiprocessors, blocks are smaller."""
    return blocks >= device.multiprocessors and device.capability in TWO_SHARE


def _left_out(s: Setting) -> str:
    if s.dtype == "float32":
        return "take 16 bits and FP8"
    if s.head_dim > LARGEST_HEAD_DIM:
        return f"take d up to {LARGEST_HEAD_DIM}"
    if s.device.capability < CAPABILITY:
        return "need compute capability {}.{}".format(*CAPABILITY)
    return ""


@functools.cache
def _record() -> Measurement:
    return measured.load("06_serving")


def _bytes(row: Row) -> int:
    """Bytes of K and V of a recorded cache."""
    return round(row["us"] * row["tb_per_s"] * 1e6)


@functools.cache
def _sizes(**columns: object) -> list[tuple[int, Row]]:
    """Bytes of the cache, and the row, of each recorded row with these values."""
    return [(_bytes(row), row) for row in _record().select(**columns)]


def _nearest(read: int, **columns: object) -> Row:
    """The recorded row with these values whose cache has about as many bytes."""
    return min(_sizes(**columns), key=lambda sized: abs(math.log(sized[0] / read)))[1]
