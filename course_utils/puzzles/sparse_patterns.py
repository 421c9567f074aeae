"""The puzzles of chapter 04."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

D, THREADS = 16, 32
RANGES = "04 Sparse patterns, section 3, 'Ranges: tiles from arithmetic'"
DOCUMENTS = "04 Sparse patterns, section 3, 'Documents: ends from two arrays'"
FIRST, LAST = "first = max(0, i0 - window + 1) / B_C;\n", "last = (min(i0 + B_R, L) - 1) / B_C;"
SEQUENCE = "int s = 0;\nwhile (i >= cu_seq_q[s + 1]) s++;\n"
BEGIN, END = "first = cu_seq_k[s];\n", "end = cu_seq_k[s + 1] - (cu_seq_q[s + 1] - 1 - i);"


def _case(
    generator: torch.Generator,
    part: str,
    name: str,
    launch: Callable[[np.float32], Launch],
    visible: Tensor,
    also: Mapping[str, Tensor] = MappingProxyType({}),
    **options: object,
) -> Case:
    """One case. visible: the mask [L_q, L_k]. launch: takes the scale. also: the inputs beside Q, K and V."""
    L_q, L_k = visible.shape
    Q, K, V = (torch.randn(rows, D, generator=generator) for rows in (L_q, L_k, L_k))
    scale = np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())
    right = attention(Q.double(), K.double(), V.double(), float(scale), visible)
    output = Output(right, same_dtype=attention(Q, K, V, float(scale), visible), axes=("query", "column"))
    inputs = {"Q": Q, "K": K, "V": V, **also}
    return Case(part, name, (launch(scale),), inputs, {"O": output}, must_be_clean=True, **options)


# ---------------------------------------------------------------------------------------------- which tiles to visit

TILES = (32, 16), (16, 24)  # B_R queries and B_C keys


def _windowed(
    generator: torch.Generator, part: str, tile: tuple[int, int], length: int, window: int, **options: object
) -> Case:
    back, (B_R, B_C) = torch.arange(length)[:, None] - torch.arange(length), tile

    def launch(scale: np.float32) -> Launch:
        arguments = ("Q", "K", "V", "O", np.int32(length), np.int32(window), scale)
        compiled = (f"-DD={D}", f"-DB_R={B_R}", f"-DB_C={B_C}")
        return Launch("skip_tile", (ceil_div(length, B_R),), (B_R,), arguments, compiled)

    facts = {"L": length, "window": window, "B_R": B_R, "B_C": B_C}
    name = f"L = {length}, window = {window}, B_R = {B_R}, B_C = {B_C}"
    return _case(generator, part, name, launch, (back >= 0) & (back < window), facts=facts, **options)


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


def _loads(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The check that K and V are loaded in the tiles with a visible pair, and in no other. All tiles are whole."""
    L, window, B_R, B_C = (case.facts[name] for name in ("L", "window", "B_R", "B_C"))
    i0, every = torch.arange(0, L, B_R), L // B_C  # the first queries of the blocks; tiles of a block that skips none
    first, last = (i0 - window + 1).clamp(min=0) // B_C, ((i0 + B_R).clamp(max=L) - 1) // B_C
    loaded = sum(argument.bytes_loaded for argument in outcome.footprint[1:3])
    tiles = loaded / (2 * B_C * D * 4)  # one of K and one of V
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


# ---------------------------------------------------------------------------------------------- packed sequences

BEHIND = 3  # rows of K and V behind the last sequence, as batches of one shape have them


def _packed(generator: torch.Generator, part: str, queries: Sequence[int], keys: Sequence[int]) -> Case:
    """One case: sequence s has queries[s] queries and keys[s] keys."""
    cu_seq_q, cu_seq_k = (torch.tensor((0, *lengths)).cumsum(0).to(torch.int32) for lengths in (queries, keys))

    def launch(scale: np.float32) -> Launch:
        arguments = (*("Q", "K", "V", "O", "cu_seq_q", "cu_seq_k"), np.int32(len(queries)), scale)
        return Launch("packed", (ceil_div(sum(queries), THREADS),), (THREADS,), arguments, (f"-DD={D}",))

    visible = _visible(cu_seq_q, cu_seq_k, sum(keys) + BEHIND)
    name = f"{_in_words(queries)} queries, {_in_words(keys)} keys"
    return _case(generator, part, name, launch, visible, also={"cu_seq_q": cu_seq_q, "cu_seq_k": cu_seq_k})


def _in_words(numbers: Sequence[int]) -> str:
    return " + ".join(map(str, numbers))


def _packings(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """First whole texts, one of them empty; then texts whose earlier tokens are keys alone."""
    texts = [drawn(generator, 9, 17), drawn(generator, 18, 30), 0, drawn(generator, 5, 8)]
    new = [drawn(generator, 3, 6), 1, drawn(generator, 8, 12)]
    past = [drawn(generator, 10, 14), drawn(generator, 15, 19), drawn(generator, 3, 6)]
    return [
        _packed(generator, "texts", texts, texts),
        _packed(generator, "past", new, [a + b for a, b in zip(new, past, strict=True)]),
    ]


def _visible(cu_seq_q: Tensor, cu_seq_k: Tensor, keys: int) -> Tensor:
    """The mask of packed sequences, [queries, keys]."""
    s = torch.repeat_interleave(torch.arange(len(cu_seq_q) - 1), cu_seq_q.diff())
    first, end = cu_seq_k[s], cu_seq_k[s + 1] - (cu_seq_q[s + 1] - 1 - torch.arange(len(s)))
    return (torch.arange(keys) >= first[:, None]) & (torch.arange(keys) < end[:, None])


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
            findings={"memcheck": Diagnosis("a tile before the first one is loaded", read_again=RANGES)},
        ),
        lesson="The block loads the tiles that its queries see, and no others. So its work grows with the window and "
        "no longer with L.",
        hint="Which is the first key that the block's first query i0 sees, and which is the last that its last query "
        "sees? Each lies in the tile with the number key / B_C. The first queries have fewer than `window` keys "
        "before them, and the last block may have fewer than B_R queries.",
        mistakes=(
            mistake(
                "the last tile, on the diagonal, is lost",
                "The loop takes `last`, too: it is the tile of the last query's own key.",
                RANGES,
                f"{FIRST}last = (min(i0 + B_R, L) - 1) / B_C - 1;",
            ),
            mistake(
                "the loop ends at the block's first query",
                "All queries of a block go over the tiles together: the last one decides where they end.",
                RANGES,
                f"{FIRST}last = i0 / B_C;",
            ),
            mistake(
                "the first tile of the window is lost",
                "The first query's first key may be any key of its tile: round down.",
                RANGES,
                f"first = max(0, i0 - window + 1) / B_C + 1;\n{LAST}",
            ),
            mistake(
                "the loop begins at the last query's first key",
                "All queries of a block go over the tiles together: the first one decides where they begin.",
                RANGES,
                f"first = max(0, i0 + B_R - window) / B_C;\n{LAST}",
            ),
            mistake(
                "the loop begins at the block's first query",
                "That query sees the `window` − 1 keys before it, too.",
                RANGES,
                f"first = i0 / B_C;\n{LAST}",
            ),
            mistake(
                "keys are taken for tiles",
                "Key j lies in tile j / B_C.",
                RANGES,
                "first = max(0, i0 - window + 1);\nlast = i0 + B_R - 1;",
            ),
        ),
    ),
    "packed": Puzzle(
        Exercise(
            id="04_sparse_patterns/packed",
            title="Whose key is it",
            kernels=("packed",),
            parts=(Part("texts", 1, "whole texts"), Part("past", 1, "more keys than queries")),
            cases=_packings,
            findings={"memcheck": Diagnosis("a row is read that the batch does not have", read_again=DOCUMENTS)},
        ),
        lesson="Each row sees a range of keys, whatever the lengths, and nothing is padded. The kernel with tiles "
        "takes the same two numbers for each row from two arrays.",
        hint="First find the sequence s whose rows hold i: the first one with i < cu_seq_q[s + 1]. Its keys begin at "
        "cu_seq_k[s]. Its last query sees all of them, the query before that all but one, and so on.",
        mistakes=(
            mistake(
                "a query sees the sequences before its own",
                "Its keys begin with the first key of its own sequence, cu_seq_k[s].",
                DOCUMENTS,
                f"{SEQUENCE}{END}",
            ),
            mistake(
                "a query sees its whole sequence",
                "Only the last query of a sequence does: attention is causal.",
                DOCUMENTS,
                f"{SEQUENCE}{BEGIN}end = cu_seq_k[s + 1];",
            ),
            mistake(
                "the rows of the queries are taken for rows of keys",
                "A sequence may have more keys than queries: its keys begin at cu_seq_k[s].",
                DOCUMENTS,
                f"{SEQUENCE}first = cu_seq_q[s];\nend = i + 1;",
            ),
            mistake(
                "the last key is found by the position in the batch",
                "Row i of the batch is position i − cu_seq_q[s] among the queries of its sequence.",
                DOCUMENTS,
                f"{SEQUENCE}{BEGIN}end = i + 1;",
            ),
            mistake(
                "queries are counted from the first key",
                "The queries are the last positions of their sequence: its last query sees its last key.",
                DOCUMENTS,
                f"{SEQUENCE}{BEGIN}end = first + i - cu_seq_q[s] + 1;",
            ),
            mistake(
                "a query sees one key too many",
                "The last query of a sequence sees its neighbour's first key then.",
                DOCUMENTS,
                f"{SEQUENCE}{BEGIN}end = cu_seq_k[s + 1] - (cu_seq_q[s + 1] - i) + 2;",
            ),
            mistake(
                "a query does not see its own key",
                "Key `end` itself is not seen.",
                DOCUMENTS,
                f"{SEQUENCE}{BEGIN}end = cu_seq_k[s + 1] - (cu_seq_q[s + 1] - i);",
            ),
            mistake(
                "a sequence's first query is counted to its neighbour",
                "Row cu_seq_q[s + 1] is no longer sequence s.",
                DOCUMENTS,
                f"int s = 0;\nwhile (i > cu_seq_q[s + 1]) s++;\n{BEGIN}{END}",
            ),
        ),
    ),
}
