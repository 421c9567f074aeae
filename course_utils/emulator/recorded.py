"""What a recording consists of: steps and what they do, arrays, places, variables, findings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# What a step does; runtime/recording.h numbers them so. "end": what the step `extra` has begun is over.
OPS = ("read", "write", "atomic", "copy read", "copy write", "barrier", "warp barrier", "product", "wgmma", "copy")
OPS += ("arrive", "wait", "end", "exchange", "phase")
READ, WRITE, ATOMIC, COPY_READ, COPY_WRITE, BARRIER, WARP_BARRIER, PRODUCT, WGMMA, COPY = range(10)
ARRIVE, WAIT, END, EXCHANGE, PHASE = range(10, 15)
WITH_ROWS = COPY_WRITE  # the ops up to this one have addresses
WRITING = (WRITE, ATOMIC, COPY_WRITE)
READING = (READ, ATOMIC, COPY_READ)


def row_counts(op: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """How many rows each step has: one for each lane of `mask`, if its op has addresses. int64."""
    lanes = np.unpackbits(np.ascontiguousarray(mask, np.uint32).view(np.uint8)).reshape(-1, 32).sum(1, dtype=np.int64)
    return np.where(op <= WITH_ROWS, lanes, 0)


@dataclass(frozen=True)
class RecordedArray:
    """An array in global or shared memory. `low`, `bytes`: the part of it whose bytes at the launch are kept, which is
    all that the block touches; `dtype`: "bytes" where nobody says how shared memory is used. A member of a struct in
    shared memory is an array, too, which begins `begin` bytes behind the array `part_of` that the kernel declares or
    the launch asks for. is_vector: the last index is a component of a vector such as float4, .x for 0."""

    name: str
    space: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    low: int
    bytes: int
    begin: int = 0
    part_of: str = ""
    is_vector: bool = False

    @property
    def size(self) -> int:
        """In bytes, with what the block does not touch."""
        return max(self.low + self.bytes, math.prod(self.shape) * self.itemsize)


class RecordedPlace(NamedTuple):
    """A line, and the number of the place from where its function was called; -1: it is the kernel itself."""

    file: str
    line: int
    caller: int


@dataclass(frozen=True)
class RecordedVariable:
    """A local variable of a function: of `count` elements, in the form `shape` if it is an array. words: of 32 bits, of
    which an element has one or two; a change is one of a word, counted through all elements, the low one first."""

    function: str
    name: str
    type: str
    count: int
    shape: tuple[int, ...]
    words: int = 1


@dataclass(frozen=True)
class RecordedFinding:
    """What the sanitizer finds in the same launch, and the steps of both parties; -1 where they are not in this
    block."""

    tool: str
    message: str
    line: int | None
    other_line: int | None
    step: int
    other_step: int


class Access(NamedTuple):
    """What one thread did to memory in a step. `thread`: its number in the block; -1: none of it (the copy engine, a
    tensor core, another block). `row`: of the columns of rows."""

    step: int
    thread: int
    row: int
