"""The puzzles of chapter 07: a tile in panels, and a consumer of a ring of buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle

PANELS = "07 Hopper, section 2, 'Step 1: wgmma'"
RING = "07 Hopper, section 4, 'Step 3: producer and consumers'"
Simulated = Callable[[Case], Mapping[str, Tensor]]

# ---------------------------------------------------------------------------------------------- panels

CHUNKS, NUMBERS = 16, 8  # of a row, of a chunk


def _tile(generator: torch.Generator, part: str, tiles: int, rows: int) -> Case:
    """One case of a tile. No two chunks of it are the same."""
    order = torch.stack([torch.randperm(rows * CHUNKS, generator=generator) for _ in range(tiles)])
    x = order.half().reshape(tiles, rows * CHUNKS, 1).expand(-1, -1, NUMBERS).contiguous()
    output = Output(_placed(x, rows, _place), torch.float16, kind="exact", axes=("tile", "chunk", "number"))
    launch = Launch("panels", (tiles,), (256,), ("in", "out", np.int32(rows)))
    name = f"tiles = {tiles}, rows = {rows}"
    return Case(part, name, (launch,), {"in": x}, {"out": output}, {"rows": rows}, must_be_clean=True)


def _place(row: Tensor, chunk: Tensor, rows: int) -> Tensor:
    return chunk // 8 * rows * 8 + row * 8 + (chunk % 8 ^ row % 8)


def _placed(x: Tensor, rows: int, place: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
    """out if chunk `chunk` of row `row` goes to place(row, chunk, rows)."""
    row, chunk = torch.arange(rows)[:, None], torch.arange(CHUNKS)
    out = torch.full_like(x, torch.nan)
    out[:, place(row, chunk, rows).flatten()] = x
    return out


def _by_place(place: Callable[[Tensor, Tensor, int], Tensor]) -> Simulated:
    return lambda case: {"out": _placed(case.inputs["in"], case.facts["rows"], place)}


def _tiles(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_tile(generator, "one", 1, 8 * drawn(generator, 2, 4)), _tile(generator, "several", 2, 64)]


# ---------------------------------------------------------------------------------------------- the ring


def _sums(generator: torch.Generator, part: str, tiles: int) -> Case:
    x = torch.randn(tiles, 32, generator=generator)
    launch = Launch("ring", (1,), (64,), ("x", "sums", np.int32(tiles)))
    output = Output(x.double().sum(0), same_dtype=x.sum(0), axes=("column",))
    return Case(part, f"tiles = {tiles}", (launch,), {"x": x}, {"sums": output}, must_be_clean=True)


def _rings(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_sums(generator, "once", 3), _sums(generator, "around", drawn(generator, 8, 12))]


def _first_buffers(case: Case) -> Mapping[str, Tensor]:
    x = case.inputs["x"].double()
    return {"sums": x[0] * len(x)}


OUT_OF_TURN = Diagnosis("a tile is read before its bytes have come, or after its place was given back", read_again=RING)
PUZZLES = {
    "panels": Puzzle(
        Exercise(
            id="07_hopper/panels",
            title="A tile in panels",
            kernels=("panels",),
            parts=(Part("one", 1, "one tile"), Part("several", 1, "tiles of 64 rows")),
            cases=_tiles,
            mistakes=(
                Mistake(
                    Diagnosis("the tile is not swizzled", "Chunk c of row r stands at place c XOR r mod 8.", PANELS),
                    _by_place(lambda row, chunk, rows: chunk // 8 * rows * 8 + row * 8 + chunk % 8),
                ),
                Mistake(
                    Diagnosis(
                        "the panels are not apart",
                        "First all rows of the first eight chunks, then all rows of the others.",
                        PANELS,
                    ),
                    _by_place(lambda row, chunk, rows: row * 16 + chunk // 8 * 8 + (chunk % 8 ^ row % 8)),
                ),
                Mistake(
                    Diagnosis("rows of 16 chunks are kept, without a swizzle", "A row of a panel has eight.", PANELS),
                    _by_place(lambda row, chunk, rows: row * 16 + chunk),
                ),
            ),
        ),
        lesson="A row of a panel has eight chunks of 16 bytes: the 128 bytes within which the swizzle moves chunks.",
        hint="A panel has rows · 8 chunks, and chunk / 8 is the panel's number. Row r begins at r · 8 in its panel, "
        "and the chunk stands at place chunk % 8 XOR r % 8 in its row.",
    ),
    "ring": Puzzle(
        Exercise(
            id="07_hopper/ring",
            title="The consumer of a ring",
            kernels=("ring",),
            parts=(Part("once", 1, "each buffer once"), Part("around", 1, "several times around the ring")),
            cases=_rings,
            mistakes=(
                Mistake(
                    Diagnosis("all tiles are read from the first buffer", "Tile t is in buffer t mod 3.", RING),
                    _first_buffers,
                ),
            ),
            findings={
                "asynccheck": OUT_OF_TURN,
                "trap": OUT_OF_TURN,
                "deadlock": Diagnosis("somebody waits for ever", read_again=RING),
            },
            assembly=True,
            half_in_step=False,
        ),
        lesson="Each buffer has two barriers, full and empty, and the parity tells the rounds apart. The producer's "
        "copies run ahead while the consumers compute: the loop has no __syncthreads.",
        hint="Tile t is in buffer t % BUFFERS, and the parity of its phase is t / BUFFERS % 2. Wait for its full, read "
        "the tile, arrive at its empty.",
    ),
}
