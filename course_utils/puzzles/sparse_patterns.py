"""The puzzles of chapter 04."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle

D, THREADS = 16, 32
RANGES = "04 Sparse patterns, section 3, 'Ranges: tiles from arithmetic'"
DOCUMENTS = "04 Sparse patterns, section 3, 'Documents: ends from two arrays'"


def _case(
    generator: torch.Generator,
    part: str,
    name: str,
    launch: Callable[[np.float32], Launch],
    visible: Tensor,
    facts: Mapping[str, object],
    also: Mapping[str, Tensor] = MappingProxyType({}),
    **options: object,
) -> Case:
    """One case. visible: the mask [L_q, L_k]. launch: takes the scale. also: the inputs beside Q, K and V."""
    L_q, L_k = visible.shape
    Q, K, V = (torch.randn(rows, D, generator=generator) for rows in (L_q, L_k, L_k))
    scale = np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())
    right = attention(Q.double(), K.double(), V.double(), float(scale), visible)
    output = Output(right, same_dtype=attention(Q, K, V, float(scale), visible), axes=("query", "column"))
    inputs, facts = {"Q": Q, "K": K, "V": V, **also}, {**facts, "scale": float(scale), "visible": visible}
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


# ---------------------------------------------------------------------------------------------- packed sequences

BEHIND = 3  # rows of K and V behind the last sequence, as batches of one shape have them


def _packed(generator: torch.Generator, part: str, queries: Sequence[int], keys: Sequence[int]) -> Case:
    """One case: sequence s has queries[s] queries and keys[s] keys."""
    cu_seq_q, cu_seq_k = (torch.tensor((0, *lengths)).cumsum(0).to(torch.int32) for lengths in (queries, keys))

    def launch(scale: np.float32) -> Launch:
        arguments = (*("Q", "K", "V", "O", "cu_seq_q", "cu_seq_k"), np.int32(len(queries)), scale)
        return Launch("packed", (ceil_div(sum(queries), THREADS),), (THREADS,), arguments, (f"-DD={D}",))

    facts = {"cu_seq_q": cu_seq_q, "cu_seq_k": cu_seq_k, "keys": sum(keys) + BEHIND}
    visible = _between(facts["keys"], *_seen(facts))
    name = f"{_in_words(queries)} queries, {_in_words(keys)} keys"
    return _case(generator, part, name, launch, visible, facts, also={"cu_seq_q": cu_seq_q, "cu_seq_k": cu_seq_k})


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


def _sequence_of(cu_seq: Tensor) -> Tensor:
    """The sequence of each row."""
    return torch.repeat_interleave(torch.arange(len(cu_seq) - 1), cu_seq.diff())


def _seen(facts: Mapping[str, Tensor], late: bool = False) -> tuple[Tensor, Tensor]:
    """The first key of each query, and the one behind its last. late: the first query of each sequence is counted to
    the sequence before it."""
    cu_seq_q, cu_seq_k = facts["cu_seq_q"].long(), facts["cu_seq_k"].long()
    s, i = _sequence_of(cu_seq_q), torch.arange(cu_seq_q[-1])
    if late:
        s = s[(i - 1).clamp(min=0)]
    return cu_seq_k[s], cu_seq_k[s + 1] - (cu_seq_q[s + 1] - 1 - i)


def _between(keys: int, first: Tensor, end: Tensor) -> Tensor:
    """The mask in which each query sees the keys from `first` to `end` − 1, [queries, keys]."""
    return (torch.arange(keys) >= first[:, None]) & (torch.arange(keys) < end[:, None])


def _with_ends(
    ends: Callable[[Mapping[str, Tensor], Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of other ends: `ends` takes the facts and the right ones."""
    return lambda case: _seeing(case, _between(case.facts["keys"], *ends(case.facts, *_seen(case.facts))))


def _own_position(facts: Mapping[str, Tensor]) -> Tensor:
    """Of each query among the queries of its sequence."""
    cu_seq_q = facts["cu_seq_q"].long()
    return torch.arange(cu_seq_q[-1]) - cu_seq_q[_sequence_of(cu_seq_q)]


def _to_the_end(facts: Mapping[str, Tensor], first: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return first, facts["cu_seq_k"].long()[_sequence_of(facts["cu_seq_q"]) + 1]


def _by_rows_of_queries(facts: Mapping[str, Tensor], first: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return facts["cu_seq_q"].long()[_sequence_of(facts["cu_seq_q"])], torch.arange(len(first)) + 1


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
    "packed": Puzzle(
        Exercise(
            id="04_sparse_patterns/packed",
            title="Whose key is it",
            kernels=("packed",),
            parts=(Part("texts", 1, "whole texts"), Part("past", 1, "more keys than queries")),
            cases=_packings,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "a query sees the sequences before its own",
                        "Its keys begin with the first key of its own sequence, cu_seq_k[s].",
                        DOCUMENTS,
                    ),
                    _with_ends(lambda facts, first, end: (torch.zeros_like(first), end)),
                ),
                Mistake(
                    Diagnosis(
                        "a query sees its whole sequence",
                        "Only the last query of a sequence does: attention is causal.",
                        DOCUMENTS,
                    ),
                    _with_ends(_to_the_end),
                ),
                Mistake(
                    Diagnosis(
                        "the rows of the queries are taken for rows of keys",
                        "A sequence may have more keys than queries: its keys begin at cu_seq_k[s].",
                        DOCUMENTS,
                    ),
                    _with_ends(_by_rows_of_queries),
                ),
                Mistake(
                    Diagnosis(
                        "the last key is found by the position in the batch",
                        "Row i of the batch is position i − cu_seq_q[s] among the queries of its sequence.",
                        DOCUMENTS,
                    ),
                    _with_ends(lambda facts, first, end: (first, torch.arange(len(first)) + 1)),
                ),
                Mistake(
                    Diagnosis(
                        "queries are counted from the first key",
                        "The queries are the last positions of their sequence: its last query sees its last key.",
                        DOCUMENTS,
                    ),
                    _with_ends(lambda facts, first, end: (first, first + _own_position(facts) + 1)),
                ),
                Mistake(
                    Diagnosis(
                        "a query sees one key too many",
                        "The last query of a sequence sees its neighbour's first key then.",
                        DOCUMENTS,
                    ),
                    _with_ends(lambda facts, first, end: (first, end + 1)),
                ),
                Mistake(
                    Diagnosis("a query does not see its own key", "Key `end` itself is not seen.", DOCUMENTS),
                    _with_ends(lambda facts, first, end: (first, end - 1)),
                ),
                Mistake(
                    Diagnosis(
                        "a sequence's first query is counted to its neighbour",
                        "Row cu_seq_q[s + 1] is no longer sequence s.",
                        DOCUMENTS,
                    ),
                    _with_ends(lambda facts, first, end: _seen(facts, late=True)),
                ),
            ),
            findings={"memcheck": Diagnosis("a row is read that the batch does not have", read_again=DOCUMENTS)},
        ),
        lesson="Each row sees a range of keys, whatever the lengths, and nothing is padded. The kernel with tiles "
        "takes the same two numbers for each row from two arrays.",
        hint="First find the sequence s whose rows hold i: the first one with i < cu_seq_q[s + 1]. Its keys begin at "
        "cu_seq_k[s]. Its last query sees all of them, the query before that all but one, and so on.",
    ),
}
