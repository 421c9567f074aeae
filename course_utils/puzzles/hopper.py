"""The puzzles of chapter 07: a tile in panels, and a consumer of a ring of buffers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

PANELS = "07 Hopper, section 2, 'Step 1: wgmma'"
RING = "07 Hopper, section 4, 'Step 3: producer and consumers'"

# ---------------------------------------------------------------------------------------------- panels

CHUNKS, NUMBERS = 16, 8  # of a row, of a chunk


def _tile(generator: torch.Generator, part: str, tiles: int, rows: int) -> Case:
    """One case of a tile. No two chunks of it are the same."""
    order = torch.stack([torch.randperm(rows * CHUNKS, generator=generator) for _ in range(tiles)])
    x = order.half().reshape(tiles, rows * CHUNKS, 1).expand(-1, -1, NUMBERS).contiguous()
    output = Output(_placed(x, rows), torch.float16, kind="exact", axes=("tile", "chunk", "number"))
    launch = Launch("panels", (tiles,), (256,), ("in", "out", np.int32(rows)))
    name = f"tiles = {tiles}, rows = {rows}"
    return Case(part, name, (launch,), {"in": x}, {"out": output}, must_be_clean=True)


def _placed(x: Tensor, rows: int) -> Tensor:
    """out: the panels of x, their chunks swizzled."""
    row, chunk = torch.arange(rows)[:, None], torch.arange(CHUNKS)
    out = torch.empty_like(x)
    out[:, (chunk // 8 * rows * 8 + row * 8 + (chunk % 8 ^ row % 8)).flatten()] = x
    return out


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


OUT_OF_TURN = Diagnosis("a tile is read before its bytes have come, or after its place was given back", read_again=RING)
PUZZLES = {
    "panels": Puzzle(
        Exercise(
            id="07_hopper/panels",
            title="A tile in panels",
            kernels=("panels",),
            parts=(Part("one", 1, "one tile"), Part("several", 1, "tiles of 64 rows")),
            cases=_tiles,
        ),
        lesson="A row of a panel has eight chunks of 16 bytes: the 128 bytes within which the swizzle moves chunks.",
        hint="A panel has rows · 8 chunks, and chunk / 8 is the panel's number. Row r begins at r · 8 in its panel, "
        "and the chunk stands at place chunk % 8 XOR r % 8 in its row.",
        mistakes=(
            mistake(
                "the tile is not swizzled",
                "Chunk c of row r stands at place c XOR r mod 8.",
                PANELS,
                "out[chunk / 8 * rows * 8 + row * 8 + chunk % 8] = in[e];",
            ),
            mistake(
                "the panels are not apart",
                "First all rows of the first eight chunks, then all rows of the others.",
                PANELS,
                "out[row * 16 + chunk / 8 * 8 + (chunk % 8 ^ row % 8)] = in[e];",
            ),
            mistake(
                "rows of 16 chunks are kept, without a swizzle",
                "A row of a panel has eight.",
                PANELS,
                "out[e] = in[e];",
            ),
        ),
    ),
    "ring": Puzzle(
        Exercise(
            id="07_hopper/ring",
            title="The consumer of a ring",
            kernels=("ring",),
            parts=(Part("once", 1, "each buffer once"), Part("around", 1, "several times around the ring")),
            cases=_rings,
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
        mistakes=(
            mistake(
                "all tiles are read from the first buffer",
                "Tile t is in buffer t mod 3.",
                RING,
                "const int b = t % BUFFERS, parity = t / BUFFERS % 2;\nwait_for(&full[b], parity);\n"
                "sum += tile[0][threadIdx.x];\narrive(&empty[b]);",
            ),
        ),
    ),
}
