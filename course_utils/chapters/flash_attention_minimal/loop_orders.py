"""Bytes of the two loop orders of chapter 02: requested, footprint, and read from HBM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from course_utils import costs, measured
from course_utils.emulator import profile
from course_utils.measured import Row
from course_utils.operators import flash_fa1_order, flash_plain

SHAPE = 1, 4, 2048, 2048, 64  # B, H, L_q, L_k, d of what ncu counted
THREE_KERNELS = "scores, softmax, output"  # of chapter 01


def requested(
    tiles: Sequence[tuple[int, int]],
    lengths: Sequence[int],
    *,
    masks: Sequence[bool] = (False, True),
    head_dim: int = 64,
) -> list[Row]:
    """Global bytes that forward_fa1_order.cu and forward_plain.cu request for one head, counted on the emulator, beside
    the formulas of `costs`. tiles: pairs of B_r and B_c; masks: whether causal."""
    orders = {"FA1": (flash_fa1_order, costs.fa1_traffic), "FA2": (flash_plain, costs.fa2_traffic)}
    rows: list[Row] = []
    for tile, length, is_causal in itertools.product(tiles, lengths, masks):
        ones = torch.ones(1, 1, length, head_dim)
        for order, (attention, traffic) in orders.items():
            with profile() as counters:
                attention(ones, ones, ones, tile=tile, is_causal=is_causal)
            sizes = {"block_rows": tile[0], "block_cols": tile[1], "element_bytes": 4, "is_causal": is_causal}
            steps = traffic(1, 1, length, length, head_dim, **sizes)
            row: Row = {"order": order, "B_r": tile[0], "B_c": tile[1], "length": length, "is_causal": is_causal}
            for way, access in (("read", "load"), ("written", "store")):
                row[way] = counters.total("bytes", "global", access)
                row[f"{way}, by formula"] = sum(getattr(step, f"bytes_{way}") for step in steps)
            rows.append(row)
    return rows


def reaching_hbm() -> list[Row]:
    """MB of chapter 01's three kernels and of chapter 02's, read and written, H = 4, L = 2048, d = 64: requested by
    formula, the footprint, and what ncu counted at HBM (recorded)."""
    plain, fast = ({"block_rows": r, "block_cols": c, "element_bytes": 4} for r, c in ((64, 32), (128, 64)))
    steps = {
        THREE_KERNELS: costs.naive_requested(*SHAPE),
        "forward_fa1_order": costs.fa1_traffic(*SHAPE, **plain),
        "forward_plain": costs.fa2_traffic(*SHAPE, **plain),
        "forward": costs.fa2_traffic(*SHAPE, **fast),
    }
    ways = (("read", "bytes_only_read", "dram__bytes_read"), ("written", "bytes_written", "dram__bytes_write"))
    rows: list[Row] = []
    for names, of in steps.items():
        parts = [_counted(name) for name in names.split(", ")]
        row: Row = {"kernel": names}
        for way, footprint, metric in ways:
            row[f"{way}: requested"] = sum(getattr(step, f"bytes_{way}") for step in of) / 1e6
            row[f"{way}: footprint"] = sum(part[footprint] for part in parts) / 1e6
            row[f"{way}: HBM"] = sum(part["metrics"][metric] for part in parts) / 1e6
        rows.append(row)
    return rows


def hbm_reads(kernel: str) -> int:
    """Bytes that a kernel read from HBM at the shape of `reaching_hbm`, by ncu."""
    return _counted(kernel)["metrics"]["dram__bytes_read"]


def _counted(kernel: str) -> Row:
    (row,) = measured.load("counters").select(name=f"{kernel}, L=2048")
    return row
