"""Grading of "06_serving/merge_parts": attention over disjoint sets of keys, merged by log-sum-exps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading import names
from course_utils.grading.draws import FAR, between, low_lse
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Mistake,
    Output,
    Part,
    Question,
    judging,
)
from course_utils.grading.seen import one_hot_values, wrong_weights

WARPS = 4  # of a block
HEAD_DIMS = (64, 128), (32, 96)  # one of each pair is drawn
Results = tuple[Tensor, Tensor]  # O [.., D] and LSE [..]

SPEC = "this exercise, 'What to write'"
MERGING = "06 Serving, section 3, 'Parts are merged'"
PREFIXES = "06 Serving, section 7, 'A shared prefix'"
TWO_NUMBERS = "02 FlashAttention, minimal, section 2, 'Two numbers'"
ONE_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"


# ---------------------------------------------------------------------------------------------- the cases


def _case(part: str, name: str, out: Tensor, lse: Tensor, **options: Any) -> Case:
    """One launch. out [parts, rows, D], lse [parts, rows]."""
    parts, rows, head_dim = out.shape
    merged, total = reference.merge_attention(out, lse)
    arguments = ("O_parts", "LSE_parts", "O", "LSE", np.int32(parts))
    return Case(
        part=part,
        name=f"D = {head_dim}, {name}",
        launches=(Launch("merge_parts", (rows,), (32, WARPS), arguments, (f"-DD={head_dim}",)),),
        inputs={"O_parts": out.contiguous(), "LSE_parts": lse.contiguous()},
        outputs={"O": Output(merged, axes=("row", "column")), "LSE": Output(total, axes=("row",))},
        must_be_clean=True,
        **options,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Sizes are drawn: no number that is written into a kernel fits all of them."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    draw = partial(between, generator)
    D, other = (pair[draw(0, 1)] for pair in HEAD_DIMS)
    some, many = draw(5, 11), draw(101, 140)
    each = one_hot_values(many, D)[0].transpose(0, 1)  # [parts, rows, D]
    weights = (0.3 * normal(many, 1) - 3.0).expand(-1, each.shape[1])
    plain = _case("", f"{some} parts", normal(some, 5, D), normal(some, 5) + 2.0)
    crowd = _case("", f"{many} parts, one column for each", each, weights, explain=_merged_parts)
    far = _case("", "log-sum-exps of 100 and -130, and far apart", normal(*FAR.T.shape, D),
                normal(*FAR.T.shape) + FAR.T * (1 + 0.2 * torch.rand((), generator=generator)))  # fmt: skip
    low = _case("", "log-sum-exps of -20,000 and less", normal(6, 4, other), low_lse(generator, 6).T)
    return [
        *judging(plain, merge="O", lse="LSE"),
        *judging(crowd, merge="O", lse="LSE"),
        *(_case("any", f"{_count(parts)}, an offset on O", normal(parts, rows, other) + 10.0, normal(parts, rows) - 2.0)
          for parts, rows in ((1, 3), (draw(2, 3), 2), (4 * draw(3, 5), 2))),
        *judging(far, peaks="O", lse="LSE"),
        *judging(low, peaks="O"),
        _case("empty", "parts without keys", *_with_empty(normal(6, len(_EMPTY), D), normal(6, len(_EMPTY)), _EMPTY)),
        _case("rows", "rows without keys", *_with_empty(normal(3, 5, other), normal(3, 5), _EMPTY_ROWS)),
    ]  # fmt: skip


def experiments(generator: torch.Generator) -> list[Case]:
    """A column for each part, where no warp has more than a few of them."""
    parts, D = between(generator, 20, 31), HEAD_DIMS[1][0]
    lse = (0.3 * torch.randn(parts, 1, generator=generator)).expand(-1, 1)
    return [_case("merge", f"{parts} parts, one column for each", one_hot_values(parts, D)[0].transpose(0, 1), lse,
                  explain=_merged_parts)]  # fmt: skip


_EMPTY = torch.tensor(  # of six parts: a row for each row of O, and each of them has keys
    [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 1],  # warp 1 has no key at all
        [1, 0, 0, 0, 0, 0],  # warp 0 begins without one
        [0, 0, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 1],
        [0, 0, 0, 0, 1, 0],  # warp 0 ends without one
    ],
    dtype=torch.bool,
)
_EMPTY_ROWS = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)


def _with_empty(out: Tensor, lse: Tensor, empty: Tensor) -> Results:
    """O and LSE of the parts, where those that `empty` [rows, parts] names have no key: their O was never written."""
    junk = out.clone()
    junk[..., 0::3], junk[..., 1::3] = math.nan, math.inf  # in other columns a weight of 0 is enough
    return torch.where(empty.T[..., None], junk, out), lse.masked_fill(empty.T, -math.inf)


def _count(parts: int) -> str:
    return "one part" if parts == 1 else f"{parts} parts"


def _merged_parts(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Where each part has a column of its own: which parts were left out, or counted twice."""
    parts = case.inputs["LSE_parts"].shape[0]
    got, expected = (x.flatten()[None, :parts] for x in (outputs["O"], case.outputs["O"].expected))
    said = wrong_weights(got, expected, ("row", "part"))
    return said and replace(said, read_again=SPEC)


# ---------------------------------------------------------------------------------------------- known mistakes


@dataclass(frozen=True)
class Way:
    """How a kernel works; as it stands, the right one.

    warps: how many share the parts. shares: of (part, warp), whether the warp takes the part. arrange: what O_parts and
    LSE_parts are taken for. skips: whether a part with −∞ is left out; else, whether a maximum of −∞ is `guarded`.
    maximum: whether it is subtracted. weighs: whether parts have weights. rescaled: which sums are when the maximum
    rises. finds_empty: of l, where there was no key. adds_maximum: whether the LSE has it.
    """

    warps: int = WARPS
    shares: Callable[[int, int], bool] = lambda part, warp: part % WARPS == warp
    arrange: Callable[[Tensor, Tensor], Results] = lambda out, lse: (out, lse)
    skips: bool = True
    guarded: bool = False
    maximum: bool = True
    weighs: bool = True
    rescaled: str = "O l"
    finds_empty: Callable[[Tensor], Tensor] = lambda total: ~(total > 0)
    adds_maximum: bool = True


def _merge(out: Tensor, lse: Tensor, way: Way) -> Results:
    """O [rows, D] and LSE [rows] of all parts, one after the other, in fp32 as a kernel has it."""
    m, total, weighted = torch.full_like(lse[0], -math.inf), torch.zeros_like(lse[0]), torch.zeros_like(out[0])
    for o, one in zip(out, lse, strict=True):
        new = torch.maximum(m, one) if way.maximum else torch.zeros_like(m)
        base = new.masked_fill(new == -math.inf, 0.0) if way.guarded else new
        rescale, weight = (torch.exp(x - base) if way.weighs else torch.ones_like(x) for x in (m, one))
        kept = torch.ones_like(rescale)
        of_l, of_O = (rescale if name in way.rescaled and way.maximum else kept for name in "lO")
        takes = (one > -math.inf) | (not way.skips)
        total = torch.where(takes, total * of_l + weight, total)
        weighted = torch.where(takes[:, None], weighted * of_O[:, None] + weight[:, None] * o, weighted)
        m = torch.where(takes, new, m)
    empty = way.finds_empty(total)
    result = torch.log(total) + m if way.adds_maximum else torch.log(total)
    return (weighted / total[:, None]).masked_fill(empty[:, None], 0.0), result.masked_fill(empty, -math.inf)


def _simulate(case: Case, *, way: Way) -> Mapping[str, Tensor]:
    """What a kernel that works this way writes."""
    out, lse = way.arrange(case.inputs["O_parts"], case.inputs["LSE_parts"])
    teams = []
    for warp in range(way.warps):
        mine = [part for part in range(len(lse)) if way.warps == 1 or way.shares(part, warp)]
        nothing = torch.zeros_like(out[0]), torch.full_like(lse[0], -math.inf)
        teams.append(_merge(out[mine], lse[mine], way) if mine else nothing)
    of_team, lse_of_team = (torch.stack(x) for x in zip(*teams, strict=True))
    merged = _merge(of_team, lse_of_team, way) if way.warps > 1 else teams[0]
    return {name: x.double() for name, x in zip(("O", "LSE"), merged, strict=True)}


def _mistakes(name: str, detail: str, read_again: str, *ways: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which kernels make it: with the parts shared out, and by one warp alone."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_simulate, way=Way(warps=warps, **way))) for way in ways
                 for warps in (WARPS, 1))  # fmt: skip


def _rows_first(x: Tensor) -> Tensor:
    """[parts, rows, ..] read from memory as if it were [rows, parts, ..]."""
    parts, rows = x.shape[:2]
    return x.flatten(0, 1).unflatten(0, (rows, parts)).transpose(0, 1)


_NONE = {"finds_empty": lambda total: torch.zeros_like(total, dtype=torch.bool)}
_ZERO = {"finds_empty": lambda total: total == 0}

MISTAKES = (
    *_mistakes(names.AVERAGED, "A part whose keys matter little must count little: its weight is exp(LSE_p - LSE).",
               MERGING, {"weighs": False}),
    *_mistakes(names.NO_MAXIMUM,
               "exp(100) is infinite in fp32 and exp(-130) is 0. Subtract the largest first: the weights are the same.",
               ONE_TRAP, {"maximum": False}, {"maximum": False, **_ZERO}, {"maximum": False, **_NONE}),
    *_mistakes(names.O_NOT_RESCALED, "The O of before takes the factor exp(m_old - m_new).", TWO_NUMBERS,
               {"rescaled": "l"}),
    *_mistakes("what a part without keys holds gets into O",
               "A weight of 0 does not help: 0 · NaN is NaN, and so is 0 · ∞. Leave the part out.", MERGING,
               {"skips": False, "guarded": True}),
    *_mistakes("an empty part before the others spoils the sums",
               "As long as no part had a key, the running maximum is −∞, and −∞ − (−∞) is NaN. Leave out a part whose "
               "log-sum-exp is −∞.", MERGING,
               {"skips": False}, {"skips": False, **_ZERO}, {"skips": False, **_NONE}),
    *_mistakes(names.EMPTY_ROW_IS_NAN, "Where no part has a key, O is 0 and LSE −∞. 0 / 0 is NaN.", ONE_TRAP, _NONE),
    *_mistakes(names.MERGED_LSE_LACKS_MAXIMUM, "The sum was taken relative to the largest LSE: add it again.",
               MERGING, {"adds_maximum": False}),
    *_mistakes("every warp takes all the parts",
               "O is right then, but each part counts four times in LSE. Warp w takes the parts w, w + 4, …", SPEC,
               {"shares": lambda part, warp: True}),
    *_mistakes("the parts are read as [rows, parts]",
               "O_parts is [parts, rows, D] and LSE_parts [parts, rows]: the rows of a part stand side by side.", SPEC,
               {"arrange": lambda out, lse: (_rows_first(out), _rows_first(lse))},
               {"arrange": lambda out, lse: (_rows_first(out), lse)},
               {"arrange": lambda out, lse: (out, _rows_first(lse))}),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- the exercise

BELOW = 3  # how far one part's log-sum-exp is below the other's
SEQUENCES, PREFIX, OWN = 64, 2048, 512  # that share a prefix; its tokens; those of each sequence itself
_SHARE = 100 / (1 + math.exp(BELOW))


def _cache(tokens: int) -> int:
    return costs.kv_cache_bytes(tokens, 8, 128)


_APART, _SHARED = SEQUENCES * _cache(PREFIX + OWN), _cache(PREFIX) + SEQUENCES * _cache(OWN)

EXERCISE = Exercise(
    id="06_serving/merge_parts",
    title="The merge of parts",
    difficulty=3,
    importance=4,
    parts=(
        Part("merge", 3, "The parts are weighed by their log-sum-exps"),
        Part("lse", 2, "The log-sum-exp of each row"),
        Part("any", 2, "Any number of parts, also fewer than warps"),
        Part("peaks", 2, "Log-sum-exps that are large, or far apart"),
        Part("empty", 3, "Parts without keys, whatever their O holds"),
        Part("rows", 1, "Rows without any key"),
    ),
    kernels=("merge_parts",),
    cases=cases,
    mistakes=MISTAKES,
    experiments=experiments,
    questions=(
        Question(
            "share", 1, "Weight of the part whose log-sum-exp is 3 less", _SHARE, "%", 0.01,
            misconceptions=(
                (100 * math.exp(-BELOW), "that is its weight relative to the other part; both together are 100 %"),
                (50.0, "that would be a mean: the log-sum-exps say how much each part counts"),
                (100 - _SHARE, "that is the other part's weight"),
                (100 / (1 + 2**BELOW), "log-sum-exps are natural logarithms: e, not 2"),
                (_SHARE / 100, "this is the ratio; the question asks for percent"),
            ),
            read_again=MERGING,
        ),
        Question(
            "shared", 1, "How many times fewer bytes of K and V with a shared prefix", _APART / _SHARED, "×", 0.01,
            misconceptions=(
                (SEQUENCES, "so many times fewer bytes of the prefix; each sequence has keys of its own, too"),
                ((PREFIX + OWN) / OWN, "this would be so if the prefix were not read at all: it is read once"),
                (_SHARED / _APART, "the other way round"),
            ),
            read_again=PREFIXES,
        ),
    ),
    cells=("answers",),
)  # fmt: skip
