"""How exercise 05.1, top-k and gather, is graded: a selection as a set, and attention over the selected keys.

Each kernel is graded on its own: the second gets lists that were made here. The order of a selection and the choice
among equal scores are free, so scores are compared, never indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Mistake,
    Outcome,
    Output,
    Part,
    Question,
)
from course_utils.reference import select_topk

HEAD_DIM, THREADS = 64, 64
OPTIONS = (f"-DD={HEAD_DIM}", f"-DTHREADS={THREADS}")
UNWRITTEN = torch.iinfo(torch.int32).max

_SELECT = "chapter 05, section 6, 'Top-k without sorting'"
_CORE = "chapter 05, section 7, 'The sparse core'"
_EDGES = "chapter 05, section 7, 'Edges'"
_WHY = "chapter 05, section 1, 'Why: choose cheaply, attend dearly'"
_COSTS = "chapter 05, section 10, 'What it costs'"
_SAID = "chapter 05, section 12, 'What is often said'"
_ONLINE = "chapter 02, section 2, 'Two numbers'"

PARTS = (
    Part("greatest", 3, "select_topk: the k greatest scores of a row, negative ones too"),
    Part("ties", 2, "select_topk: equal scores"),
    Part("hidden", 2, "select_topk: −∞ is never selected, −1 fills the tail"),
    Part("values", 3, "gather_attention: O and LSE over the selected keys"),
    Part("invalid", 2, "gather_attention: −1, foreign indices, duplicates, no key at all"),
    Part("gathered", 2, "gather_attention: only the selected keys are read"),
)


# ---------------------------------------------------------------------------------------------- select_topk


def _selection(part: str, name: str, scores: Tensor, k: int) -> Case:
    rows, length = scores.shape
    launch = Launch("select_topk", (rows,), (THREADS,), ("scores", "indices", np.int32(length), np.int32(k)), OPTIONS)
    output = Output(select_topk(scores, k), dtype=torch.int32, kind="exact")
    return Case(
        part, name, (launch,), {"scores": scores}, {"indices": output}, must_be_clean=True, compare=_compare_selection
    )


def _selections(generator: torch.Generator) -> list[Case]:
    def normal(rows: int, length: int) -> Tensor:
        return torch.randn(rows, length, generator=generator)

    # Few scores are negative, fewer than k: so the wrong orders of negative numbers differ from each other.
    plain, wide = normal(4, 200) + 1.5, torch.exp(12 * normal(4, 131))
    wide[:, torch.randperm(131, generator=generator)[:7]] *= -1
    negative = -normal(4, 150).abs() - 0.5
    equal = torch.full((1, 100), -1.5)
    common = torch.full((1, 170), 0.5)  # the k-th greatest, by far the most common one
    common[0, 35 + torch.randperm(28, generator=generator)[:10]] += normal(1, 10)[0].abs() + 0.1
    common[0, torch.randperm(20, generator=generator)[:6]] = -7.0
    few = torch.randint(-1, 5, (1, 130), generator=generator).float()
    zeros = torch.cat((torch.zeros(50), normal(1, 10)[0].abs(), -normal(1, 30)[0].abs()))
    zeros = zeros[torch.randperm(90, generator=generator)][None]
    causal = normal(12, 12).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf)
    hidden = normal(5, 140) + 1.5
    hidden[0] = -torch.inf
    hidden[1, torch.randperm(140, generator=generator)[5:]] = -torch.inf
    hidden[2, :-16] = -torch.inf
    hidden[3, ::2] = -torch.inf
    return [
        _selection("greatest", "S = 4, T = 200, k = 32", plain, 32),
        _selection("greatest", "scores from 1e-16 to 1e16, k = 16", wide, 16),
        _selection("greatest", "negative scores only, k = 16", negative, 16),
        _selection("greatest", "T = 1, k = 1", normal(2, 1), 1),
        _selection("greatest", "k = 5, T = 65", normal(3, 65) + 2.0, 5),
        # One row each, so that what is written past its end is no other row.
        _selection("ties", "all scores equal, T = 100, k = 24", equal, 24),
        _selection("ties", "the k-th greatest 154 times, T = 170, k = 24", common, 24),
        _selection("ties", "six different scores, T = 130, k = 40", few, 40),
        _selection("ties", "half of them 0, T = 90, k = 40", zeros, 40),
        _selection("hidden", "causal, T = 12, k = 8", causal, 8),
        _selection("hidden", "rows with few keys, T = 140, k = 16", hidden, 16),
        _selection("hidden", "k greater than T, T = 5, k = 9", normal(3, 5), 9),
    ]


def _compare_selection(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """The first thing wrong with a selection. Scores are compared, sorted; never indices."""
    got, expected, scores = outputs["indices"].long(), case.outputs["indices"].expected.long(), case.inputs["scores"]
    length = scores.shape[1]

    def diagnosis(name: str, where: Tensor, read_again: str = _SELECT) -> Diagnosis:
        row, place = where.nonzero()[0].tolist()
        return Diagnosis(name, f"{case.name}: row {row}: {_shown(got[row])}, place {place}", read_again)

    if (got == UNWRITTEN).all():
        return Diagnosis("the selection is never written", case.name, _SELECT)
    unwritten = got == UNWRITTEN
    if unwritten.any():
        tail = (unwritten <= (expected == -1)).all()
        name = "the places that are left at the end of a row are not filled with −1"
        return diagnosis(name if tail else "not all k places of a row are written", unwritten)
    none = got == -1
    outside = (got >= length) | (got < -1)
    if outside.any():
        return diagnosis("an index names no key of the row", outside)
    tail = expected == -1
    if tail.any() and got.any() and (got[tail] == 0).all():
        return diagnosis("the tail of a row is filled with key 0 instead of −1", tail)
    chosen = scores.gather(1, got.clamp(min=0)).masked_fill(none, -torch.inf)
    hidden = ~none & (chosen == -torch.inf)
    if hidden.any():
        return diagnosis("−∞ is selected: a key that the query must not see", hidden)
    ordered = got.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row = int(twice.any(dim=1).nonzero()[0])
        key = int(ordered[row, 1:][twice[row]][0])
        return Diagnosis("a key is selected twice", f"{case.name}: row {row} names key {key} more than once", _SELECT)
    if (none[:, :-1] & ~none[:, 1:]).any():
        return diagnosis("−1 stands before the end of a row", none)
    return _compare_scores(case, chosen, got)


def _compare_scores(case: Case, chosen: Tensor, got: Tensor) -> Diagnosis | None:
    """Whether the selected scores, of a selection that is one, are the greatest."""
    scores, k = case.inputs["scores"], got.shape[1]
    have = chosen.sort(dim=1, descending=True).values
    right = torch.nn.functional.pad(scores, (0, k), value=-torch.inf).topk(k, dim=1).values
    wrong = (have != right).any(dim=1)
    if not wrong.any():
        return None
    row = int(wrong.nonzero()[0])
    missing = int((have[row] != right[row]).sum())
    detail = f"{case.name}: row {row}: {missing} of the {k} greatest scores are not there"
    if (have == -torch.inf).all() and (scores > 0).any():
        words = "is −∞ the smallest in your order of the bits?"
        return Diagnosis("no key is selected where there are scores", f"{detail}; {words}", _SELECT)
    found, wanted = (x[row][x[row] > -torch.inf] for x in (have, right))
    least = wanted.min()
    equal = f"{int((scores[row] == least).sum())} scores of the row equal the k-th greatest, {least:g}"
    if len(found) == len(wanted) and (found >= least).all():
        words = "write those above it first"
        return Diagnosis(
            "ties at the threshold take the places of greater scores", f"{detail}; {equal}: {words}", _SELECT
        )
    for name, key, words in _ORDERS:
        if any(torch.equal(have, _best_by(scores, key, k, above=above)) for above in (False, True)):
            return Diagnosis(name, f"{detail}; {words}", _SELECT)
    if len(found) < len(wanted):
        detail = f"{case.name}: row {row}: {len(found)} keys are selected of {len(wanted)}; {equal}"
        if torch.equal(found, wanted[: len(found)]) and (wanted[len(found) :] == least).all():
            return Diagnosis("scores equal to the k-th greatest are dropped", detail, _SELECT)
        return Diagnosis("too few keys are selected", detail, _SELECT)
    return Diagnosis("a greater score is left out for a smaller one", detail, _SELECT)


def _best_by(scores: Tensor, key: Callable[[Tensor], Tensor], k: int, *, above: bool) -> Tensor:
    """The scores that are selected, sorted, where `key(scores)` is taken for their order.

    above: −∞ and what this order puts below it are left out, instead of −∞ alone.
    """
    order = key(scores).double()
    hidden = scores == -torch.inf
    if above:
        hidden = hidden | (order <= key(torch.full_like(scores, -torch.inf)))
    padded = torch.nn.functional.pad(order.masked_fill(hidden, -torch.inf), (0, k), value=-torch.inf)
    best = padded.topk(k, dim=1)
    found = scores.gather(1, best.indices.clamp(max=scores.shape[1] - 1))
    return found.masked_fill(best.values == -torch.inf, -torch.inf).sort(dim=1, descending=True).values


def _bits(scores: Tensor) -> Tensor:
    return scores.contiguous().view(torch.int32).long()


_ORDERS: tuple[tuple[str, Callable[[Tensor], Tensor], str], ...] = (
    (
        "negative scores are in the wrong order",
        _bits,
        "as signed numbers, the bits of negative floats grow as the floats fall: turn all bits round",
    ),
    (
        "negative scores come out as the greatest",
        lambda s: _bits(s) & 0xFFFFFFFF,
        "as unsigned numbers, the bits of a negative float have the highest bit set",
    ),
    ("the k smallest scores are selected", lambda s: -s, "turn the comparison round"),
    ("the scores are ordered by magnitude", lambda s: s.abs(), "a negative score is smaller the larger its magnitude"),
    (
        "the first k keys are selected, whatever their scores",
        lambda s: -torch.arange(s.shape[1]).expand_as(s),
        "it did not matter which scores are great",
    ),
    (
        "the last k keys are selected, whatever their scores",
        lambda s: torch.arange(s.shape[1]).expand_as(s),
        "it did not matter which scores are great",
    ),
    (
        f"keys from {THREADS} on are never selected",
        lambda s: s.masked_fill(torch.arange(s.shape[1]) >= THREADS, -torch.inf),
        "a row is longer than the block has threads: each takes several keys",
    ),
    (
        "every row gets the selection of row 0",
        lambda s: s[:1].expand_as(s),
        "a row starts at blockIdx.x · T",
    ),
)


def _shown(row: Tensor) -> str:
    """The first indices of a row."""
    more = ", …" if len(row) > 8 else ""
    return "[" + ", ".join("unwritten" if n == UNWRITTEN else str(n) for n in row[:8].tolist()) + more + "]"


# ---------------------------------------------------------------------------------------------- gather_attention


def _gather(
    part: str,
    name: str,
    indices: Tensor,
    length: int,
    generator: torch.Generator,
    *,
    heads: int = 2,
    largest: float = 0.0,
    offset: float = 0.0,
    **options: object,
) -> Case:
    """Attention over `indices [S, k]`. largest: of the selected logits, if not 0. offset: added to V."""
    queries, k = indices.shape
    Q, K, V = (torch.randn(*shape, HEAD_DIM, generator=generator) for shape in ((queries, heads), (length,), (length,)))
    scale = HEAD_DIM**-0.5
    if largest:
        selected = torch.einsum("shd,skd->shk", Q, K[indices.long()])
        Q *= largest / (scale * selected.max())
    V += offset
    inputs = {"Q": Q, "K": K, "V": V, "indices": indices.int()}
    facts = {"scale": scale}
    case = Case(part, name, (), inputs, {}, facts)
    exact = _attend(case)
    with reference.full_float32():
        runs = [_attend(case, dtype=torch.float32, order=n)["O"] for n in range(4)]
    arguments = (*inputs, "O", "LSE", np.int32(length), np.int32(k), np.float32(scale))
    launch = Launch("gather_attention", (queries, heads), (THREADS,), arguments, OPTIONS, shared_mem=4 * k)
    outputs = {"O": Output(exact["O"], same_dtype=runs), "LSE": Output(exact["LSE"], kind="lse")}
    return Case(part, name, (launch,), inputs, outputs, facts, **options)


def _distinct(rows: int, length: int, k: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, length, generator=generator).argsort(dim=1)[:, :k]


def _gathers(generator: torch.Generator) -> list[Case]:
    holes = _distinct(6, 90, 40, generator)
    holes[torch.rand(6, 40, generator=generator) < 0.3] = -1
    holes[:, 0] = torch.tensor([-1, 3, -1, 5, -1, 7])
    foreign = _distinct(5, 70, 24, generator)
    foreign[:, 1::4] = torch.tensor([[70], [71], [-2], [75], [-3]])
    twice = _distinct(5, 60, 20, generator)
    twice[:, 10:] = twice[:, :1]
    empty = _distinct(4, 50, 12, generator)
    empty[1:3] = -1
    return [
        _gather("values", "k = 33, T = 150", _distinct(6, 150, 33, generator), 150, generator),
        _gather("values", "V + 100, k = 32", _distinct(5, 100, 32, generator), 100, generator, offset=100.0),
        _gather("values", "scores to 50, k = 70", _distinct(4, 100, 70, generator), 100, generator, largest=50.0),
        _gather("values", "scores to 100, k = 20", _distinct(4, 64, 20, generator), 64, generator, largest=100.0),
        _gather("values", "S = 1, T = 1, k = 1", torch.zeros(1, 1), 1, generator, heads=3),
        _gather("invalid", "−1 anywhere, k = 40", holes, 90, generator, must_be_clean=True),
        _gather("invalid", "indices that are no keys, T = 70", foreign, 70, generator, must_be_clean=True),
        _gather("invalid", "duplicates, k = 20", twice, 60, generator, must_be_clean=True),
        _gather("invalid", "queries without any key", empty, 50, generator, must_be_clean=True),
        _gather(
            "gathered",
            "k = 2 of T = 2048",
            _distinct(2, 2048, 2, generator),
            2048,
            generator,
            heads=1,
            must_be_clean=True,
            review=_review,
        ),
    ]


def _review(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The loads may not grow with T: half of reading K for each query and head is too much.

    With few keys of many it is told from waste on the selected ones: each thread may ask for all their K and V, twice.
    """
    queries, heads, _ = case.inputs["Q"].shape
    length, k = case.inputs["K"].shape[0], case.inputs["indices"].shape[1]
    of_a_key = 2 * queries * heads * HEAD_DIM * 4
    if outcome.loaded_bytes <= of_a_key * length / 4:
        return None
    reads = [row for row in outcome.counters if row.space == "global" and row.operation != "store"]
    most = max(reads, key=lambda row: row.bytes)
    asked = outcome.loaded_bytes / 1e6
    detail = (
        f"{case.name}: the kernel asks for {asked:.3f} MB, most of it in line {most.line}; K and V of the "
        f"selected keys are {of_a_key * k / 1e6:.3f} MB, of all keys {of_a_key * length / 1e6:.3f} MB"
    )
    return Diagnosis("the selection saves nothing: all keys are still loaded", detail, _WHY)


def _attend(
    case: Case,
    *,
    keys: Callable[[Tensor, int], Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
    order: int | None = None,
    scaled: bool = True,
    maximum: bool = True,
    zero_scores: bool = False,
    divided: bool = True,
    lse: Callable[[Tensor, Tensor], Tensor] = lambda m, total: m + total.log(),
    empty: tuple[float, float] = (0.0, -math.inf),
) -> dict[str, Tensor]:
    """O `[S, H, D]` and LSE `[S, H]` of gather_attention, right but for what the arguments say.

    keys: a row of indices and T -> the indices that are used instead. order: a seed, to add up the products in another
    order. zero_scores: an invalid index counts as a score of 0 with V = 0.
    """
    Q, K, V = (case.inputs[name].to(dtype) for name in "QKV")
    if order is not None:
        columns = torch.randperm(HEAD_DIM, generator=torch.Generator().manual_seed(order))
        Q, K = Q[..., columns], K[..., columns]
    length = len(K)
    used = [row.long() if keys is None else keys(row.long(), length) for row in case.inputs["indices"]]
    used = torch.nn.utils.rnn.pad_sequence(used, batch_first=True, padding_value=-1)
    used = torch.nn.functional.pad(used, (0, 1), value=-1)  # no row is empty
    valid = ((used >= 0) & (used < length))[:, None]
    rows = torch.where(valid[:, 0], used, 0)
    s = torch.einsum("shd,skd->shk", Q, K[rows]) * (case.facts["scale"] if scaled else 1.0)
    s = s.masked_fill(~valid, -torch.inf)
    if zero_scores:
        s[..., :-1] = s[..., :-1].masked_fill(~valid[..., :-1], 0.0)
    m = s.amax(dim=-1, keepdim=True) if maximum else torch.zeros_like(s[..., :1])
    weights = torch.exp(s - torch.where(m == -torch.inf, torch.zeros_like(m), m))
    if not maximum:  # fp32 overflows, and that is the mistake
        weights = weights.float().to(dtype)
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.einsum("shk,skd->shd", weights * valid, V[rows])
    out = out / total if divided else out
    nothing = total == 0
    return {
        "O": torch.where(nothing, torch.full_like(out, empty[0]), out),
        "LSE": torch.where(nothing, torch.full_like(m, empty[1]), lse(m, total))[..., 0],
    }


def _of_gather(**wrong: object) -> Callable[[Case], dict[str, Tensor] | None]:
    """A mistake of gather_attention; says nothing about the other kernel's cases."""
    return lambda case: _attend(case, **wrong) if "O" in case.outputs else None


def _is_key(row: Tensor, length: int) -> Tensor:
    return (row >= 0) & (row < length)


def _until_the_first_hole(row: Tensor, length: int) -> Tensor:
    holes = (~_is_key(row, length)).nonzero()
    return row[: int(holes[0])] if len(holes) else row


def _mistake(name: str, detail: str, read_again: str, **wrong: object) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), _of_gather(**wrong))


_LSE_NAME = "LSE is the natural logarithm of the sum: m + logf(l)"
_EMPTY_NAME = "without any key l is 0: write O = 0 and LSE = −∞ instead of 0 / 0 or exp(−∞ − (−∞))"

MISTAKES = (
    _mistake(
        "the softmax runs over all keys",
        "every key of the row counts; the selection was not looked at",
        _CORE,
        keys=lambda row, length: torch.arange(length),
    ),
    _mistake(
        "the place in the list is taken for the key",
        "the n-th key is indices[n], not n",
        _CORE,
        keys=lambda row, length: torch.where(_is_key(row, length), torch.arange(len(row)), -1),
    ),
    _mistake(
        "the place in the list is taken for the key",
        "the n-th key is indices[n], not n",
        _CORE,
        keys=lambda row, length: torch.arange(len(row)),
    ),
    _mistake(
        "−1 is read as the last key",
        "an index below 0 names no key: it is not counted from the end",
        _EDGES,
        keys=lambda row, length: torch.where(row == -1, length - 1, row),
    ),
    _mistake(
        "−1 is read as key 0",
        "an index below 0 names no key: to clamp it makes key 0 count",
        _EDGES,
        keys=lambda row, length: torch.where(row < 0, 0, row),
    ),
    _mistake(
        "an invalid index is clamped to a key",
        "an index below 0, or T and more, names no key: to clamp it makes the first or last key count",
        _EDGES,
        keys=lambda row, length: row.clamp(0, length - 1),
    ),
    _mistake(
        "an index of T or more is clamped to the last key",
        "it names no key: nothing is read, nothing is added",
        _EDGES,
        keys=lambda row, length: torch.where(row >= length, length - 1, row),
    ),
    _mistake(
        "an invalid index counts as a score of 0",
        "its score is −∞, so that its weight is 0; with a score of 0 it takes a part of the softmax",
        _EDGES,
        zero_scores=True,
    ),
    _mistake(
        "the list is taken to end at the first −1",
        "−1 may stand anywhere: skip the place and go on",
        _EDGES,
        keys=_until_the_first_hole,
    ),
    _mistake(
        "a duplicate is counted once",
        "a key that stands in the list twice counts twice: no search for duplicates is asked for",
        _EDGES,
        keys=lambda row, length: row.unique(),
    ),
    _mistake(
        "only the first 32 places of a list are read",
        "k may be more than a warp has lanes",
        _CORE,
        keys=lambda row, length: row[:32],
    ),
    _mistake(
        "the last place of a list is left out", "n runs from 0 to k − 1", _CORE, keys=lambda row, length: row[:-1]
    ),
    _mistake("the scale is missing", "a score is scale · (Q · K)", _CORE, scaled=False),
    _mistake("the maximum is not subtracted", "exp overflows fp32 above 88.7: take exp(s − m)", _ONLINE, maximum=False),
    _mistake("O is not divided by l", "O / l, once, at the end", _ONLINE, divided=False),
    _mistake("a query without any key gives NaN", _EMPTY_NAME, _EDGES, empty=(math.nan, -math.inf)),
    _mistake("a query without any key gives NaN", _EMPTY_NAME, _EDGES, empty=(math.nan, math.nan)),
    _mistake("LSE of a query without any key is not −∞", _EMPTY_NAME, _EDGES, empty=(0.0, math.nan)),
    _mistake("LSE of a query without any key is not −∞", _EMPTY_NAME, _EDGES, empty=(0.0, 0.0)),
    _mistake("LSE lacks m", _LSE_NAME, _ONLINE, lse=lambda m, total: total.log()),
    _mistake("LSE is in base 2", _LSE_NAME, _ONLINE, lse=lambda m, total: m + total.log2()),
    _mistake("LSE is in base 2", _LSE_NAME, _ONLINE, lse=lambda m, total: (m + total.log()) / math.log(2)),
    _mistake("LSE lacks the logarithm", _LSE_NAME, _ONLINE, lse=lambda m, total: m + total),
)


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh scores for the first kernel, fresh lists for the second."""
    return [*_selections(generator), *_gathers(generator)]


# ---------------------------------------------------------------------------------------------- questions


_LONG, _TOP_K = 32768, 512
_SAVED = costs.attended_pairs(_LONG, _LONG, is_causal=True) / costs.selected_pairs(_LONG, _LONG, _TOP_K)
_ROW_MB = costs.gathered_bytes(1, 131072) / 1e6

QUESTIONS = (
    Question(
        "core_saving",
        1,
        "pairs of dense causal attention over those of the sparse core: L = 32,768, k = 512",
        _SAVED,
        tolerance=0.01,
        misconceptions=(
            (_LONG / _TOP_K, "64 is against all L² pairs: causal attention has half of them"),
            (1 / _SAVED, "upside down"),
        ),
        read_again=_SAID,
    ),
    Question(
        "indexer_growth",
        1,
        "FLOPs of the lightning indexer for one more token at 131,072 keys, over those at 8,192",
        costs.indexer_flops(1, 131072) / costs.indexer_flops(1, 8192),
        misconceptions=(
            (1.0, "'the indexer is O(1)' is wrong: it scores every earlier key, O(L) for each token"),
            (256.0, "one token, not all of them: the whole prompt grows with L², one token with L"),
            (math.log(131072) / math.log(8192), "no tree is searched: every earlier key is scored"),
        ),
        read_again=_SAID,
    ),
    Question(
        "gathered_mb",
        1,
        "MB of latent rows that DeepSeek-V3.2's sparse core gathers for one query, k = 2048, 16-bit",
        _ROW_MB,
        unit="MB",
        misconceptions=(
            (2048 * 512 * 2 / 1e6, "a row is 512 latent numbers and 64 of RoPE"),
            (2 * _ROW_MB, "K and V are one and the same latent row: no factor 2"),
            (2 * 2048 * 512 * 2 / 1e6, "K and V are one and the same latent row, and 64 numbers of RoPE belong to it"),
            (128 * _ROW_MB, "all 128 heads share a row: it is gathered once"),
            (131072 * 1152 / 1e6, "that is all keys: only 2048 are gathered"),
            (512 * 1152 / 1e6, "k is 2048, not 512"),
        ),
        read_again=_COSTS,
    ),
)

EXERCISE = Exercise(
    id="05_deepseek_sparse/topk_gather",
    title="Top-k and gather",
    parts=PARTS,
    kernels=("select_topk", "gather_attention"),
    cases=cases,
    mistakes=MISTAKES,
    questions=QUESTIONS,
    cells=("answers",),
)
