"""What a step of a recording does."""

from __future__ import annotations

import numpy as np

# What a step does; runtime/recording.h numbers them so. "end": what the step `extra` has begun is over.
OPS = ("read", "write", "atomic", "copy read", "copy write", "barrier", "warp barrier", "product", "wgmma", "copy")
OPS += ("arrive", "wait", "end", "exchange", "phase")
READ, WRITE, ATOMIC, COPY_READ, COPY_WRITE, BARRIER, WARP_BARRIER, PRODUCT, WGMMA, COPY = range(10)
ARRIVE, WAIT, END, EXCHANGE, PHASE = range(10, 15)
WITH_ROWS = COPY_WRITE  # the ops up to this one have addresses
WRITING = (WRITE, ATOMIC, COPY_WRITE)
READING = (READ, ATOMIC, COPY_READ)
JOINING = (PRODUCT, EXCHANGE)  # lanes of a warp give each other values


def row_counts(op: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """How many rows each step has: one for each lane of `mask`, if its op has addresses. int64."""
    lanes = np.unpackbits(np.ascontiguousarray(mask, np.uint32).view(np.uint8)).reshape(-1, 32).sum(1, dtype=np.int64)
    return np.where(op <= WITH_ROWS, lanes, 0)
