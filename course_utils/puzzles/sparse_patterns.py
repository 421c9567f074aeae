"""The puzzles of chapter 04."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle

D, THREADS = 16, 32
LONGEST = 1000  # no case has as many tokens
EDGES = "04 Sparse patterns, section 2, 'Edges'"
RANGES = "04 Sparse patterns, section 3, 'Ranges: tiles from arithmetic'"
DILATED = "04 Sparse patterns, section 4, 'Dilated: sort, then window'"


def _case(
    generator: torch.Generator,
    part: str,
    name: str,
    launch: Callable[[np.float32], Launch],
    visible: Tensor,
    facts: Mapping[str, int],
    **options: object,
) -> Case:
    """One case. visible: the mask [L, L]. launch: takes the scale."""
    Q, K, V = torch.randn(3, len(visible), D, generator=generator)
    scale = np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())
    right = attention(Q.double(), K.double(), V.double(), float(scale), visible)
    output = Output(right, same_dtype=attention(Q, K, V, float(scale), visible), axes=("query", "column"))
    inputs, facts = {"Q": Q, "K": K, "V": V}, {**facts, "scale": float(scale), "visible": visible}
    return Case(part, name, (launch(scale),), inputs, {"O": output}, facts, must_be_clean=True, **options)


def _seeing(case: Case, visible: Tensor) -> Mapping[str, Tensor]:
    """The result of a kernel whose queries see these keys."""
    Q, K, V = (case.inputs[name].double() for name in "QKV")
    return {"O": attention(Q, K, V, case.facts["scale"], visible)}


def _back(length: int) -> Tensor:
    """How far key j lies before query i, [length, length]."""
    return torch.arange(length)[:, None] - torch.arange(length)


# ---------------------------------------------------------------------------------------------- which tiles to visit

TILES = (32, 16), (16, 24)  # B_R queries and B_C keys


def _windowed(
    generator: torch.Generator, part: str, tile: tuple[int, int], length: int, window: int, **options: object
) -> Case:
    back, (B_R, B_C) = _back(length), tile

    def launch(scale: np.float32) -> Launch:
        arguments = ("Q", "K", "V", "O", np.int32(length), np.int32(window), scale)
        compiled = (f"-DD={D}", f"-DB_R={B_R}", f"-DB_C={B_C}")
        return Launch("skip_tile", (ceil_div(length, B_R),), (B_R,), arguments, compiled)

    facts = {"window": window, "B_R": B_R, "B_C": B_C}
    name = f"L = {length}, window = {window}, B_R = {B_R}, B_C = {B_C}"
    return _case(generator, part, name, launch, (back >= 0) & (back < window), facts, **options)


def _windows(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """Cases of the window. In the last two the window begins with the last key of a tile, and with the first key of
    one."""
    tall, wide = TILES
    return [
        _windowed(generator, "values", tall, drawn(generator, 130, 150), drawn(generator, 20, 40)),
        _windowed(generator, "values", wide, drawn(generator, 100, 120), drawn(generator, 20, 40)),
        _windowed(generator, "values", wide, drawn(generator, 49, 60), 1),
        _windowed(generator, "loads", tall, 160, 16 * drawn(generator, 1, 2) + 2, review=_loads),
        _windowed(generator, "loads", tall, 160, 16 * drawn(generator, 1, 2) + 1, review=_loads),
    ]


def _tiles(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """For each query the first query of its block, and the first and the last tile that the block must visit."""
    L, B_R, B_C, window = len(case.facts["visible"]), *(case.facts[name] for name in ("B_R", "B_C", "window"))
    i0 = torch.arange(L) // B_R * B_R
    return i0, (i0 - window + 1).clamp(min=0) // B_C, ((i0 + B_R).clamp(max=L) - 1) // B_C


def _loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The check that K and V are loaded in the tiles with a visible pair, and in no other. All tiles are whole."""
    i0, first, last = (x[:: case.facts["B_R"]] for x in _tiles(case))  # block by block
    every = len(case.facts["visible"]) // case.facts["B_C"]
    loaded = sum(argument.bytes_loaded for argument in outcome.footprint[1:3])
    tiles = loaded / (2 * case.facts["B_C"] * D * 4)  # one of K and one of V
    needed = int((last - first + 1).sum())
    if tiles <= needed:
        return None
    detail = (
        f"{case.name}: {tiles:.4g} tiles are loaded, and {needed} hold a visible pair; there are {every * len(i0)}."
    )
    names = {
        every * len(i0): "no tile is skipped",
        int((last + 1).sum()): "the tiles before the window are not skipped",
        int((every - first).sum()): "the tiles after the last query are not skipped",
    }
    return Diagnosis(names.get(tiles, "some blocks load a tile that none of their queries sees"), detail, RANGES)


def _visiting(ends: Callable[[Case], tuple[Tensor, Tensor]]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of visiting other tiles; `ends` returns the first and the last one of each query's block."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        first, last = ends(case)
        tile = torch.arange(len(first)) // case.facts["B_C"]
        return _seeing(case, case.facts["visible"] & (tile >= first[:, None]) & (tile <= last[:, None]))

    return simulate


def _without_last(case: Case) -> tuple[Tensor, Tensor]:
    _, first, last = _tiles(case)
    return first, last - 1


def _to_first_query(case: Case) -> tuple[Tensor, Tensor]:
    i0, first, _ = _tiles(case)
    return first, i0 // case.facts["B_C"]


def _without_first(case: Case) -> tuple[Tensor, Tensor]:
    _, first, last = _tiles(case)
    return first + 1, last


def _from_last_query(case: Case) -> tuple[Tensor, Tensor]:
    i0, _, last = _tiles(case)
    return (i0 + case.facts["B_R"] - case.facts["window"]).clamp(min=0) // case.facts["B_C"], last


def _from_first_query(case: Case) -> tuple[Tensor, Tensor]:
    i0, _, last = _tiles(case)
    return i0 // case.facts["B_C"], last


def _keys_for_tiles(case: Case) -> tuple[Tensor, Tensor]:
    i0, _, _ = _tiles(case)
    return (i0 - case.facts["window"] + 1).clamp(min=0), i0 + case.facts["B_R"] - 1


# ---------------------------------------------------------------------------------------------- residue classes


def _dilated(generator: torch.Generator, part: str, length: int, window: int, dilation: int) -> Case:
    def launch(scale: np.float32) -> Launch:
        sizes = np.int32(length), np.int32(window), np.int32(dilation)
        return Launch(
            "residue", (ceil_div(length, THREADS),), (THREADS,), ("Q", "K", "V", "O", *sizes, scale), (f"-DD={D}",)
        )

    facts = {"window": window, "dilation": dilation}
    name = f"L = {length}, window = {window}, dilation = {dilation}"
    return _case(generator, part, name, launch, _of_class(length, range(window), dilation), facts)


def _of_class(length: int, numbers: range, dilation: int) -> Tensor:
    """The mask of the keys i − n · dilation."""
    back = _back(length)
    return torch.isin(back, torch.tensor([n * dilation for n in numbers], dtype=back.dtype)) & (back >= 0)


def _dilations(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    dilation, window = drawn(generator, 3, 5), drawn(generator, 6, 9)
    return [
        _dilated(generator, "values", window * dilation + drawn(generator, 30, 50), window, dilation),
        _dilated(generator, "any", drawn(generator, 40, 60), drawn(generator, 9, 16), 1),
        _dilated(generator, "any", drawn(generator, 33, 40), 64, drawn(generator, 2, 3)),
    ]


def _with_keys(keys: Callable[[int, int], tuple[range, int]]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of other keys: `keys` takes window and dilation, and returns the numbers n and the dilation."""
    return lambda case: _seeing(
        case, _of_class(len(case.facts["visible"]), *keys(case.facts["window"], case.facts["dilation"]))
    )


PUZZLES = {
    "skip_tile": Puzzle(
        Exercise(
            id="04_sparse_patterns/skip_tile",
            title="Which tiles to visit",
            kernels=("skip_tile",),
            parts=(
                Part("values", 1, "O, for any L and window"),
                Part("loads", 1, "no tile is loaded that nobody sees"),
            ),
            cases=_windows,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "the last tile, on the diagonal, is lost",
                        "The loop takes `last`, too: it is the tile of the last query's own key.",
                        RANGES,
                    ),
                    _visiting(_without_last),
                ),
                Mistake(
                    Diagnosis(
                        "the loop ends at the block's first query",
                        "All queries of a block go over the tiles together: the last one decides where they end.",
                        RANGES,
                    ),
                    _visiting(_to_first_query),
                ),
                Mistake(
                    Diagnosis(
                        "the first tile of the window is lost",
                        "The first query's first key may be any key of its tile: round down.",
                        RANGES,
                    ),
                    _visiting(_without_first),
                ),
                Mistake(
                    Diagnosis(
                        "the loop begins at the last query's first key",
                        "All queries of a block go over the tiles together: the first one decides where they begin.",
                        RANGES,
                    ),
                    _visiting(_from_last_query),
                ),
                Mistake(
                    Diagnosis(
                        "the loop begins at the block's first query",
                        "That query sees the `window` − 1 keys before it, too.",
                        RANGES,
                    ),
                    _visiting(_from_first_query),
                ),
                Mistake(
                    Diagnosis("keys are taken for tiles", "Key j lies in tile j / B_C.", RANGES),
                    _visiting(_keys_for_tiles),
                ),
            ),
            findings={"memcheck": Diagnosis("a tile before the first one is loaded", read_again=RANGES)},
        ),
        lesson="The block loads the tiles that its queries see, and no others. So its work grows with the window and "
        "no longer with L.",
        hint="Which is the first key that the block's first query i0 sees, and which is the last that its last query "
        "sees? Each lies in the tile with the number key / B_C. The first queries have fewer than `window` keys "
        "before them, and the last block may have fewer than B_R queries.",
    ),
    "residue": Puzzle(
        Exercise(
            id="04_sparse_patterns/residue",
            title="The keys of a residue class",
            kernels=("residue",),
            parts=(Part("values", 1, "every few keys"), Part("any", 1, "dilation 1, and windows longer than L")),
            cases=_dilations,
            mistakes=(
                Mistake(
                    Diagnosis("the dilation is ignored", "Key n is i − n · dilation.", DILATED),
                    _with_keys(lambda window, dilation: (range(window), 1)),
                ),
                Mistake(
                    Diagnosis(
                        "the window is counted in positions",
                        "A query sees `window` keys, spread over window · dilation positions.",
                        DILATED,
                    ),
                    _with_keys(lambda window, dilation: (range(ceil_div(window, dilation)), dilation)),
                ),
                Mistake(
                    Diagnosis("the window has no end", "A query sees `window` keys, its own among them.", EDGES),
                    _with_keys(lambda window, dilation: (range(LONGEST), dilation)),
                ),
                Mistake(
                    Diagnosis("a query sees one key too many", "The window counts the query's own key.", EDGES),
                    _with_keys(lambda window, dilation: (range(window + 1), dilation)),
                ),
                Mistake(
                    Diagnosis("a query does not see its own key", "Key 0 of query i is i.", EDGES),
                    _with_keys(lambda window, dilation: (range(1, window), dilation)),
                ),
                Mistake(
                    Diagnosis("a query does not see its own key", "Key 0 of query i is i.", EDGES),
                    _with_keys(lambda window, dilation: (range(1, window + 1), dilation)),
                ),
            ),
            findings={"memcheck": Diagnosis("a key before the first one is read", read_again=EDGES)},
        ),
        lesson="Every key of the window has the query's residue modulo the dilation. Sorted by residue these keys "
        "are neighbours, and a plain window remains.",
        hint="Write a loop over n from 0: key n lies n · dilation positions before the query. The loop ends after "
        "`window` keys, or when the next key would lie before position 0.",
    ),
}
