"""How exercise 05.1, top-k and gather, is graded: a selection as a set, and attention over the selected keys.

Each kernel is graded on its own: the second gets lists that were made here. The order of a selection and the choice
among equal scores are free, so scores are compared, never indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading import names
from course_utils.grading.draws import between
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Outcome,
    Output,
    Part,
    Question,
)
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import places, wrong_weights
from course_utils.reference import select_topk

UNWRITTEN = torch.iinfo(torch.int32).max

_SELECT = "05 DeepSeek Sparse Attention, section 6, 'Top-k without sorting'"
_CORE = "05 DeepSeek Sparse Attention, section 7, 'The sparse core'"
_WHY = "05 DeepSeek Sparse Attention, section 1, 'Why: choose cheaply, attend dearly'"
_COSTS = "05 DeepSeek Sparse Attention, section 10, 'What it costs'"
_SAID = "05 DeepSeek Sparse Attention, section 12, 'What is often said'"

PARTS = (
    Part("greatest", 3, "select_topk: the k greatest scores of a row, negative ones too"),
    Part("ties", 2, "select_topk: equal scores"),
    Part("hidden", 2, "select_topk: −∞ is never selected, −1 fills the tail"),
    Part("values", 3, "gather_attention: O and LSE over the selected keys"),
    Part("invalid", 2, "gather_attention: −1, foreign indices, duplicates, no key at all"),
    Part("gathered", 2, "gather_attention: only the selected keys are read"),
)


# ---------------------------------------------------------------------------------------------- select_topk


@dataclass(frozen=True)
class _Draws:
    """What cases are drawn with: the generator, and D and THREADS of this grading."""

    generator: torch.Generator
    head_dim: int
    threads: int

    @property
    def options(self) -> tuple[str, str]:
        return f"-DD={self.head_dim}", f"-DTHREADS={self.threads}"


def _blocks(generator: torch.Generator) -> tuple[_Draws, _Draws]:
    """Blocks of two kinds: 3 warps, with no thread that has no column, and 5 to 7 warps, with some, for another D.

    Each kind is compiled once, which is a good part of a grading's time: no third one.
    """
    wide = _Draws(generator, (64, 128)[between(generator, 0, 1)], 32 * between(generator, 5, 7))
    return _Draws(generator, 96, 96), wide


def _whole(size: int, *steps: int) -> int:
    """The size, or the next one above that is a multiple of all these steps."""
    step = math.lcm(*steps)
    return costs.ceil_div(size, step) * step


def _selection(draws: _Draws, part: str, name: str, scores: Tensor, k: int) -> Case:
    rows, length = scores.shape
    arguments = ("scores", "indices", np.int32(length), np.int32(k))
    launch = Launch("select_topk", (rows,), (draws.threads,), arguments, draws.options)
    output = Output(select_topk(scores, k), dtype=torch.int32, kind="exact", axes=("row", "place"))
    name = f"{name}{', ' if name else ''}T = {length}, k = {k}"
    return Case(
        part,
        name,
        (launch,),
        {"scores": scores},
        {"indices": output},
        {"threads": draws.threads},
        must_be_clean=True,
        compare=_compare_selection,
        names=False,
    )


def _greatest(draws: _Draws) -> Iterator[Case]:
    generator = draws.generator

    def normal(rows: int, length: int) -> Tensor:
        return torch.randn(rows, length, generator=generator)

    # Few scores are negative, fewer than k: so the wrong orders of negative numbers differ from each other.
    yield _selection(draws, "greatest", "", normal(4, between(generator, 200, 250)) + 1.5, between(generator, 24, 40))
    wide = torch.exp(12 * normal(3, between(generator, 131, 180)))
    far = wide[between(generator, 0, 2)]
    far[:] = torch.exp(168 * torch.rand(len(far), generator=generator) - 80)  # from 1e-35 to 1e38
    wide[:, torch.randperm(131, generator=generator)[:7]] *= -1
    far[1 + torch.randperm(len(far) - 2, generator=generator)[:2]] = torch.tensor([3e38, -3e38])
    yield _selection(draws, "greatest", "scores from 1e-16 to 1e16, in a row to 3e38", wide, between(generator, 12, 30))
    negative = -normal(3, between(generator, 140, 170)).abs() - 0.5
    yield _selection(draws, "greatest", "negative scores only", negative, between(generator, 12, 30))
    yield _selection(draws, "greatest", "", normal(2, 1), 1)
    yield _selection(draws, "greatest", "", normal(3, 65) + 2.0, between(generator, 4, 8))
    for rows, length, k in (
        (2, between(generator, 330, 380), between(generator, 65, 100)),
        (1, between(generator, 1400, 1500), _whole(between(generator, 1000, 1090), draws.threads)),
        (1, _whole(between(generator, 12300, 12900), draws.threads, 128), between(generator, 129, 180)),
    ):
        yield _selection(draws, "greatest", "", _gathered_in_places(normal(rows, length) + 1.5, draws), k)


def _gathered_in_places(scores: Tensor, draws: _Draws) -> Tensor:
    """The same, with greater ones at the first key, among the last and in a stretch before them; in the last row at all
    keys of one thread, too."""
    length = scores.shape[1]
    scores[:, 0] += 9.0
    scores[:, -3:] += 8.0
    scores[:, -40 - length // 60 : -40] += 6.0
    scores[-1, between(draws.generator, 1, draws.threads - 1) :: draws.threads] += 7.0
    return scores


def _ties(draws: _Draws) -> Iterator[Case]:
    """One row each, so that what is written past its end is no other row."""
    generator = draws.generator

    def chosen(length: int, count: int) -> Tensor:
        return torch.randperm(length, generator=generator)[:count]

    yield _selection(
        draws,
        "ties",
        "all scores equal",
        torch.full((1, between(generator, 90, 120)), -1.5),
        between(generator, 20, 30),
    )
    common = torch.full((1, between(generator, 160, 190)), 0.5)  # the k-th greatest, by far the most common one
    common[0, 35 + chosen(28, 10)] += torch.randn(10, generator=generator).abs() + 0.1
    common[0, chosen(20, 6)] = -7.0
    yield _selection(draws, "ties", "the k-th greatest at nearly all keys", common, between(generator, 20, 30))
    few = torch.randint(-1, 5, (1, between(generator, 120, 150)), generator=generator).float()
    yield _selection(draws, "ties", "six different scores", few, between(generator, 36, 50))
    few = torch.randint(-4, 5, (1, between(generator, 700, 800)), generator=generator).float()
    yield _selection(draws, "ties", "nine different scores", few, between(generator, 200, 300))
    zeros = torch.randn(1, between(generator, 90, 110), generator=generator)
    zeros = zeros.abs() * torch.where(torch.arange(zeros.shape[1]) < 10, 1.0, -1.0)
    zeros[0, 40:] = 0.0
    zeros[0, 80:] = -0.0  # equals 0, though its bits do not
    yield _selection(draws, "ties", "half of them 0 and −0", zeros[:, chosen(zeros.shape[1], zeros.shape[1])], 40)
    for sign in (1, -1):
        first = torch.rand(1, generator=generator) * 3 + 1
        apart = torch.randint(0, 160, (1, between(generator, 200, 240)), generator=generator).int()
        near = (first.view(torch.int32) + apart).view(torch.float32) * sign
        name = f"{'negative ' if sign < 0 else ''}scores one unit in the last place apart"
        yield _selection(draws, "ties", name, near, between(generator, 40, 60))


def _hidden(draws: _Draws) -> Iterator[Case]:
    generator = draws.generator

    def normal(rows: int, length: int) -> Tensor:
        return torch.randn(rows, length, generator=generator)

    causal = normal(12, 12).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf)
    yield _selection(draws, "hidden", "causal", causal, 8)
    length = between(generator, 140, 190)
    hidden = normal(5, length) + 1.5
    hidden[0] = -torch.inf
    hidden[1, torch.randperm(length, generator=generator)[5:]] = -torch.inf
    hidden[2, :-16] = -torch.inf
    hidden[3, ::2] = -torch.inf
    yield _selection(draws, "hidden", "rows with few keys", hidden, 16)
    yield _selection(draws, "hidden", "k greater than T", normal(1, 5), between(generator, 4100, 4300))
    length = between(generator, 80, 100)
    k = length + draws.threads + between(generator, 20, 60)  # the tail is longer than the block
    yield _selection(draws, "hidden", "k greater than T", normal(2, length), k)
    # Hidden keys among scores that are as low as they can be, and seen.
    low = -torch.exp(torch.rand(2, length, generator=generator) * 40 + 46)  # from -1e20 to -2e37
    low[:, 2] = torch.finfo(torch.float32).min
    low[:, 3::5] = -torch.inf
    low[1, torch.rand(length, generator=generator) < 0.2] = 1.0
    yield _selection(
        draws, "hidden", "scores of −1e20 and below", low, int((low[0] > -torch.inf).sum()) - between(generator, 1, 5)
    )
    yield _selection(draws, "hidden", "scores of −1e20 and below", low, k)


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
        found = diagnosis(name if tail else "not all k places of a row are written", unwritten)
        return replace(found, detail=f"{found.detail}\nunwritten: {places(unwritten, ('row', 'place'))}")
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
    scores, k, threads = case.inputs["scores"], got.shape[1], int(case.facts["threads"])
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
    top = float(chosen[torch.isfinite(chosen)].max()) if torch.isfinite(chosen).any() else 0.0
    lost = scores[scores > top]
    if top > -LOW and len(lost) and _is_best_by(scores, got, lambda s: s.masked_fill(s > top, -torch.inf), above=True):
        words = f"nothing above {top:g} is selected, though there is {lost.min():g}: any finite score may be"
        return Diagnosis("the greatest scores are left out, as if there were a limit", f"{detail}\n{words}", _SELECT)
    for name, key, words in (*_ORDERS, *_cuts(scores.shape[1], threads)):
        if name == _ROUNDED and not _are_taken_for_equal(scores, got, key):
            continue
        if name == _NO_NEGATIVE and not ((scores < 0) & (scores >= LOW)).any():
            continue  # a kernel that takes scores below LOW for −∞ would look the same
        if any(_is_best_by(scores, got, key, above=above) for above in (False, True)):
            return Diagnosis(name, f"{detail}; {words}", _SELECT)
    if len(found) < len(wanted):
        detail = f"{case.name}: row {row}: {len(found)} keys are selected of {len(wanted)}; {equal}"
        if torch.equal(found, wanted[: len(found)]):
            below = wanted[len(found)]
            no_threshold = len(wanted) < k and below < LOW  # the row has no k-th greatest score
            if below == least and not no_threshold:
                return Diagnosis("scores equal to the k-th greatest are dropped", detail, _SELECT)
            if below < LOW:
                words = f"{below:g} is a score like any other: −∞ alone is hidden"
                return Diagnosis("a low score is taken for −∞", f"{detail}\n{words}", _SELECT)
        return Diagnosis("too few keys are selected", detail, _SELECT)
    if most := _most_of_a_thread(scores, got, right, threads):
        words = f"all keys of a thread, j, j + {threads}, j + {2 * threads}, …, may be among the greatest"
        return Diagnosis(f"no more than {most} keys of one thread are selected", f"{detail}; {words}", _SELECT)
    return Diagnosis("a greater score is left out for a smaller one", detail, _SELECT)


LOW = -1e4  # what is sometimes written for −∞ lies below, and for ∞ as far above 0


def _most_of_a_thread(scores: Tensor, got: Tensor, right: Tensor, threads: int) -> int:
    """How many keys of a thread are selected at most, if greater ones are left out for that alone; 0 if not."""
    selected = torch.zeros(scores.shape[0], scores.shape[1] + 1).scatter(1, got % (scores.shape[1] + 1), 1.0)[:, :-1]
    left_out = (scores >= right[:, -1:]) & (scores > -torch.inf) & (selected == 0)
    counts, of_lost = (
        torch.nn.functional.pad(x.float(), (0, -x.shape[1] % threads)).unflatten(1, (-1, threads)).sum(dim=1)
        for x in (selected, left_out)
    )
    most = counts.max()
    return int(most) if (counts[of_lost > 0] == most).all() and (of_lost > 0).sum() < threads // 2 else 0


def _is_best_by(scores: Tensor, got: Tensor, key: Callable[[Tensor], Tensor], *, above: bool) -> bool:
    """Whether these are the selected indices where `key(scores)` is taken for the scores' order; ties may go any way.

    above: −∞ and what this order puts below it are left out, instead of −∞ alone.
    """
    order = key(scores).double()
    hidden = scores == -torch.inf
    if above:
        hidden = hidden | (order <= key(torch.full_like(scores, -torch.inf)))
    order = torch.nn.functional.pad(order.masked_fill(hidden, -torch.inf), (0, got.shape[1]), value=-torch.inf)
    mine = order.gather(1, torch.where(got < 0, scores.shape[1], got))
    if ((got >= 0) & (mine == -torch.inf)).any():
        return False
    return torch.equal(mine.sort(dim=1, descending=True).values, order.topk(got.shape[1], dim=1).values)


def _are_taken_for_equal(scores: Tensor, got: Tensor, key: Callable[[Tensor], Tensor]) -> bool:
    """Whether a score is left out for a smaller one for which `key` gives the same finite number.

    What is above or below all numbers of 16 bits is no sign of them: there other mistakes leave out the same.
    """
    length = scores.shape[1]
    for row, given, chosen in zip(scores, key(scores), got, strict=True):
        selected = torch.zeros(length + 1, dtype=torch.bool).index_fill(
            0, torch.where(chosen < 0, length, chosen), True
        )
        values, of_key = given.unique(return_inverse=True)
        least, most = torch.full((2, len(values)), torch.inf)
        least.scatter_reduce_(0, of_key, row.masked_fill(~selected[:-1], torch.inf), "amin")  # of the selected ones
        most.neg_().scatter_reduce_(0, of_key, row.masked_fill(selected[:-1], -torch.inf), "amax")  # of the others
        if ((most > least) & values.isfinite()).any():
            return True
    return False


def _bits(scores: Tensor) -> Tensor:
    return scores.contiguous().view(torch.int32).long()


_Order = tuple[str, Callable[[Tensor], Tensor], str]  # name, what is taken for the scores' order, words
_ROUNDED = "scores are rounded before they are compared"
_NO_NEGATIVE = "negative scores are never selected"
_BELOW_ZERO = "a largest that starts at 0 is above them, and so are the bits of −∞ while they are not turned round"
_ORDERS: tuple[_Order, ...] = (
    (_NO_NEGATIVE, lambda s: s.masked_fill(s < 0, -torch.inf), _BELOW_ZERO),
    (_NO_NEGATIVE, lambda s: s.masked_fill(s <= 0, -torch.inf), _BELOW_ZERO),
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
    # The finest first: what is right by it is right by a coarser one, too.
    (_ROUNDED, lambda s: s.half().float(), "to 16 bits: fp32 keeps 24 bits of a number, half 11"),
    (_ROUNDED, lambda s: s.bfloat16().float(), "to 16 bits: fp32 keeps 24 bits of a number, bfloat16 8"),
    (_ROUNDED, lambda s: (_bits(s) & ~0xFFFF).int().view(torch.float32), "all 32 bits of a score count"),
    (_ROUNDED, torch.trunc, "to whole numbers: 1.2 is less than 1.7"),
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
        "every row gets the selection of row 0",
        lambda s: s[:1].expand_as(s),
        "a row starts at blockIdx.x · T",
    ),
)


def _cuts(length: int, threads: int) -> Iterator[_Order]:
    """Orders in which the keys from one on are as good as hidden."""

    def first(end: int) -> Callable[[Tensor], Tensor]:
        return lambda s: s.masked_fill(torch.arange(length) >= end, -torch.inf)

    for end in sorted({threads, 64, 128, 256, 512, 1024, 2048, 4096, 8192}):
        if end < length - 1:
            words = (
                "a row is longer than the block has threads: each takes several keys"
                if end == threads
                else ("a row may have any length")
            )
            yield f"keys from {end} on are never selected", first(end), words
    yield names.LAST_KEY_LEFT_OUT, first(length - 1), "the keys are 0 to T − 1"
    for step in (threads, 32, 4):
        name = names.LAST_TILE_LEFT_OUT if length % step else "the last tile is left out, a whole one"
        yield name, first((length - 1) // step * step), f"T may be a multiple of {step}, or not"


def _shown(row: Tensor) -> str:
    """The first indices of a row."""
    more = ", …" if len(row) > 8 else ""
    return "[" + ", ".join("unwritten" if n == UNWRITTEN else str(n) for n in row[:8].tolist()) + more + "]"


# ---------------------------------------------------------------------------------------------- gather_attention


def _gather(
    draws: _Draws,
    part: str,
    name: str,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    scale: float | None = None,
    judged: str = "O LSE",
    **options: object,
) -> Case:
    """Attention of Q `[S, H, D]` over K and V `[T, D]` by lists `[S, k]`. judged: which outputs count.

    scale: None is 1/√D.
    """
    scale = draws.head_dim**-0.5 if scale is None else scale
    inputs = dict(zip(("Q", "K", "V", "indices"), inputs, strict=True))
    inputs["indices"] = inputs["indices"].int()
    (queries, heads, _), (_, k), length = inputs["Q"].shape, inputs["indices"].shape, len(inputs["K"])
    name = f"{name}{', ' if name else ''}S = {queries}, H = {heads}, T = {length}, k = {k}"
    facts = {"scale": float(np.float32(scale)), "threads": draws.threads}
    case = Case(part, name, (), inputs, {}, facts)
    exact = _attend(case)
    with reference.full_float32():
        runs = [_attend(case, dtype=torch.float32, order=n, base_2=n == 3) for n in range(4)]
    arguments = (*inputs, "O", "LSE", np.int32(length), np.int32(k), np.float32(scale))
    launch = Launch("gather_attention", (queries, heads), (draws.threads,), arguments, draws.options, shared_mem=4 * k)
    empty = exact["LSE"] == -torch.inf
    kinds = {output: "values" if output in judged.split() else "scratch" for output in exact}
    outputs = {
        "O": Output(
            exact["O"], same_dtype=[run["O"] for run in runs], kind=kinds["O"], axes=("query", "head", "column")
        ),
        "LSE": Output(
            exact["LSE"],
            same_dtype=[run["LSE"].masked_fill(empty, 0.0) for run in runs],
            kind=kinds["LSE"],
            axes=("query", "head"),
        ),
    }
    return Case(part, name, (launch,), inputs, outputs, facts, **options)


def _normal(draws: _Draws, indices: Tensor, length: int, *, heads: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K and V for lists, all normal."""
    shapes = (len(indices), heads), (length,), (length,)
    return *(torch.randn(*shape, draws.head_dim, generator=draws.generator) for shape in shapes), indices


def _distinct(rows: int, length: int, k: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, length, generator=generator).argsort(dim=1)[:, :k]


def _logits(Q: Tensor, K: Tensor, indices: Tensor, scale: float) -> Tensor:
    """The scores `[S, H, k]` of the keys in lists without holes."""
    return scale * torch.einsum("shd,skd->shk", Q, K[indices.long()])


def _drawn_scale(draws: _Draws, way: int) -> float:
    """Some factor larger (way 1) or smaller (way -1) than 1/√D: it is an argument."""
    return draws.head_dim**-0.5 * 2 ** (way * (0.5 + 0.7 * torch.rand(1, generator=draws.generator).item()))


def _values(draws: _Draws) -> Iterator[Case]:
    generator, scale = draws.generator, draws.head_dim**-0.5
    k, length = between(generator, 33, 63), between(generator, 130, 190)
    inputs = _normal(draws, _distinct(4, length, k, generator), length, heads=between(generator, 2, 3))
    yield _gather(draws, "values", "", inputs, scale=_drawn_scale(draws, 1))
    k, length = between(generator, 30, 40), between(generator, 90, 120)
    Q, K, V, indices = _normal(draws, _distinct(3, length, k, generator), length)
    yield _gather(draws, "values", "V + 100", (Q, K, V + 100, indices), scale=_drawn_scale(draws, -1))
    k, length = between(generator, 65, 90), between(generator, 100, 130)
    Q, K, V, indices = _normal(draws, _distinct(3, length, k, generator), length)
    Q *= 50.0 / _logits(Q, K, indices, scale).max()
    rising = _logits(Q, K, indices, scale)[:, 0].argsort(dim=1)  # for head 0 the largest stands last
    yield _gather(draws, "values", "scores to 50", (Q, K, V, indices.gather(1, rising)))
    k, length = between(generator, 98, 104), between(generator, 120, 150)
    Q, K, V, indices = _normal(draws, _distinct(k, length - 1, k, generator), length, heads=1)
    indices.fill_diagonal_(length - 1)  # the last key stands at place s of query s
    Q[:] = K[-1] * (200.0 / (scale * K[-1].square().sum()))
    few = sorted({*range(0, k, 9), 32, 64, 96, k - 1})  # the largest at every ninth place, a turn's first and the last
    yield _gather(draws, "values", "one score of 200, far above the others", (Q[few], K, V, indices[few]))
    yield _gather(draws, "values", "", _normal(draws, torch.zeros(1, 1), 1, heads=between(generator, 3, 5)))
    yield from _far(draws)
    k, length = _whole(between(generator, 2049, 2600), draws.threads, 128), between(generator, 250, 350)
    Q, K, V, indices = _normal(draws, torch.randint(length, (1, k), generator=generator), length, heads=1)
    Q[:, 0] += 0.3 * K[indices[:, -1]]  # the last place counts
    yield _gather(draws, "values", "keys that stand there several times", (Q, K, V, indices))


def _far(draws: _Draws) -> Iterator[Case]:
    """Scores near −20,000 and 20,000, then finite ones of −1e20.

    Only one column of a query is not 0, and all factors are short numbers: fp32 adds no error to these scores.
    """
    generator = draws.generator
    k, length = between(generator, 33, 50), between(generator, 60, 90)
    Q, K, V, indices = _normal(draws, _distinct(2, length, k, generator), length)
    K[:, 5] = 20000 + torch.randint(0, 40, (length,), generator=generator) / 8
    Q[:] = 0
    Q[0, :, 5] = torch.tensor([-4.0, 4.0])
    Q[1, :, 5] = torch.tensor([4.0, -4.0])
    yield _gather(draws, "values", "scores near −20,000 and 20,000", (Q, K, V, indices), scale=0.25)
    K = K.clone()
    K[:, 5] = 1e20 * torch.randint(1, 3, (length,), generator=generator)
    yield _gather(draws, "values", "scores of −1e20", (-Q.abs(), K, V, indices), scale=0.25)


def _weights(draws: _Draws, k: int) -> Case:
    """Each column of O is the weight of one place of the list, times k.

    All queries have the same Q, and lists of keys with the same K. V of the keys of query s is 1 in the columns of the
    places D s to D s + D − 1, one each.
    """
    generator, head_dim = draws.generator, draws.head_dim
    queries = costs.ceil_div(k, head_dim)
    length = queries * k + between(generator, 1, 40)
    indices = torch.randperm(length, generator=generator)[: queries * k].reshape(queries, k)
    Q, K, V, _ = _normal(draws, indices[:1], length, heads=1)
    K[indices] = torch.randn(k, head_dim, generator=generator)
    V.zero_()
    place = torch.arange(k)
    V[indices[place // head_dim, place], place % head_dim] = float(k)
    inputs = ((0.3 * Q).repeat(queries, 1, 1), K, V, indices)
    scale = _drawn_scale(draws, 1)
    return _gather(draws, "values", "a column per key", inputs, scale=scale, must_be_clean=True, explain=_seen_weights)


def _seen_weights(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    k = case.inputs["indices"].shape[1]
    both = (outputs["O"], case.outputs["O"].expected)
    got, expected = (out.movedim(0, 1).flatten(1)[:, :k] for out in both)
    found = wrong_weights(got, expected, ("head", "place"))
    words = "places of the list are counted from 0; weights are given times k"
    return found and Diagnosis(found.name, f"{found.detail}; {words}", _CORE)


def _invalid(draws: _Draws) -> Iterator[Case]:
    """Scores that no mistake in the scale can spoil: this part is about the lists.

    The numbers of Q are such that their products with K sum to 40 or −40 with the scale of 1/√D.
    """
    generator = draws.generator
    k, length = between(generator, 36, 50), between(generator, 80, 100)
    holes = _distinct(6, length, k, generator)
    holes[torch.rand(6, k, generator=generator) < 0.3] = -1
    holes[:, 0] = torch.tensor([-1, 3, -1, 5, -1, 7])
    yield _gather(draws, "invalid", "−1 anywhere", _two_kinds(draws, holes, length), judged="O", must_be_clean=True)
    k, length = between(generator, 20, 30), between(generator, 65, 75)
    foreign = _distinct(5, length, k, generator)
    largest = torch.iinfo(torch.int32).max
    strange = [length, length + 1, -2, largest, -largest - 1]
    foreign[:, 1::4] = torch.tensor(strange)[:, None]
    yield _gather(
        draws, "invalid", "indices that are no keys", _two_kinds(draws, foreign, length), judged="O", must_be_clean=True
    )
    yield _long_list(draws)
    k, length = between(generator, 18, 30), between(generator, 50, 70)
    twice = _distinct(5, length, k, generator)
    twice[:, k // 2 :] = twice[:, :1]
    Q, K, V, _ = _normal(draws, twice, length)
    yield _gather(draws, "invalid", "duplicates", (0 * Q, K, V, twice), must_be_clean=True)


def _long_list(draws: _Draws) -> Case:
    """A list nearly as long as it may be, of few keys and many holes, which cost little. The last place counts."""
    generator = draws.generator
    k, length = _whole(between(generator, 10000, 10300), draws.threads, 128), between(generator, 80, 100)
    indices = torch.full((1, k), -1)
    few = torch.exp(torch.rand(60, generator=generator) * math.log(k - 1)).long().unique()  # some before any end
    indices[:, few] = _distinct(1, length - 1, len(few), generator)
    indices[:, -1] = length - 1
    Q, K, V, _ = _two_kinds(draws, indices, length)
    K[-1] = 1.0
    inputs = Q[:, :1], K, V, indices
    return _gather(draws, "invalid", "−1 nearly everywhere", inputs, judged="O", must_be_clean=True)


def _empty(draws: _Draws) -> Iterator[Case]:
    """Lists without any key, and scores of −20,000, among which a hole is the greatest of all if it counts.

    There a hole that is read as the first or last key gives NaN, even if its weight is 0. One list has no hole.
    """
    generator, root = draws.generator, draws.head_dim**0.5
    k, length = between(generator, 18, 30), between(generator, 50, 70)
    empty = _distinct(5, length, k, generator)
    empty[1:3] = -1
    empty[3] = length + torch.arange(k)
    Q, K, V, _ = _normal(draws, empty, length)
    yield _gather(draws, "invalid", "queries without any key", (0 * Q, K, V, empty), must_be_clean=True)
    holes = 1 + _distinct(3, length - 2, k, generator)  # the first and the last key stand in no list
    holes[:2, 2::3] = torch.tensor([-1, length])[:, None]
    holes[0, 5::6] = -7
    Q, K, V, _ = _normal(draws, holes, length)
    K = torch.full_like(K, 50.0)
    for x in (K, V):
        x[[0, -1]] = torch.nan
    inputs = (torch.full_like(Q, -400.0 / root), K, V, holes)
    yield _gather(draws, "invalid", "all scores −20,000, and holes", inputs, judged="O", must_be_clean=True)


def _two_kinds(draws: _Draws, indices: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K and V for lists: every second key, or so, has a score of 40, the others of −40."""
    Q, K, V, _ = _normal(draws, indices, length)
    kind = torch.where(torch.rand(length, 1, generator=draws.generator) < 0.5, 1.0, -1.0)
    return torch.full_like(Q, 40.0 * draws.head_dim**-0.5), kind.expand_as(K).contiguous(), V, indices


def _gathered(draws: _Draws) -> Iterator[Case]:
    """One key: its V is the answer whatever the scores are, so that a mistake in these costs no points here.

    Then more keys, where nothing but what is read is judged.
    """
    generator = draws.generator
    length, k = between(generator, 300, 400), between(generator, 20, 40)
    inputs = _normal(draws, _distinct(2, length, 1, generator), length, heads=1)
    yield _gather(draws, "gathered", "", inputs, judged="O", must_be_clean=True, review=_review)
    length = between(generator, 500, 600)
    inputs = _normal(draws, _distinct(2, length, k, generator), length)
    yield _gather(draws, "gathered", "", inputs, judged="", must_be_clean=True, review=_review)


def _review(case: Case, outcome: Outcome) -> Diagnosis | None:
    """What is read of K and V, once or often, are the selected keys, and a few others at most."""
    length, selected = len(case.inputs["K"]), len(case.inputs["indices"].unique())
    for name, argument in zip("KV", outcome.footprint[1:3], strict=True):
        rows = argument.bytes_read / (4 * case.inputs["K"].shape[1])
        if rows > 2 * selected + 4:
            detail = f"{case.name}: {rows:g} of {length} rows of {name} are read; the lists name {selected} keys"
            return Diagnosis("the selection saves nothing: keys that are not selected are loaded", detail, _WHY)
    return None


def _attend(
    case: Case, *, dtype: torch.dtype = torch.float64, order: int | None = None, base_2: bool = False
) -> dict[str, Tensor]:
    """O `[S, H, D]` and LSE `[S, H]` of gather_attention. order: a seed, to add up the products in another order.
    base_2: by exp2, with log2(e) in the scale.
    """
    Q, K, V = (case.inputs[name].to(dtype) for name in "QKV")
    if order is not None:
        shuffled = torch.randperm(Q.shape[-1], generator=torch.Generator().manual_seed(order))
        Q, K = Q[..., shuffled], K[..., shuffled]
    indices = case.inputs["indices"].long()
    valid = (indices >= 0) & (indices < len(K))
    rows = torch.where(valid, indices, 0)
    unit = math.log(2) if base_2 else 1.0
    s = (Q[:, :, None] * K[rows][:, None]).sum(dim=-1) * (case.facts["scale"] / unit)
    s = s.masked_fill(~valid[:, None], -torch.inf)
    m = s.amax(dim=-1, keepdim=True)
    m = m.masked_fill(m == -torch.inf, 0.0)
    weights = (torch.exp2 if base_2 else torch.exp)(s - m)
    total = weights.sum(dim=-1, keepdim=True)
    read = V[rows].masked_fill(~valid[..., None], 0.0)
    out = torch.einsum("shk,skd->shd", weights, read) / total
    return {"O": out.masked_fill(total == 0, 0.0), "LSE": (m * unit + total.log())[..., 0]}


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh scores for the first kernel, fresh lists for the second; each in blocks of both kinds."""
    narrow, wide = _blocks(generator)
    of_scores = [*_greatest(wide), *_ties(narrow), *_hidden(wide)]
    values = [*_values(narrow), _weights(wide, between(generator, 257, 310))]
    return [*of_scores, *values, *_invalid(narrow), *_empty(wide), *_gathered(wide)]


def experiments(generator: torch.Generator) -> list[Case]:
    """A list of whole tiles: what is lost of it can be read off."""
    _, wide = _blocks(generator)
    return [_weights(wide, _whole(256, wide.threads, 128))]


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
    difficulty=5,
    importance=2,
    parts=PARTS,
    kernels=("select_topk", "gather_attention"),
    cases=cases,
    mistakes=read_mistakes("05_deepseek_sparse/topk_gather"),
    experiments=experiments,
    questions=QUESTIONS,
    cells=("answers",),
)
