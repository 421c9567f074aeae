"""Grading of "06_serving/merge_parts": attention over disjoint sets of keys, merged by log-sum-exps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading.draws import FAR, between, low_lse
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Output,
    Part,
    Question,
    judging,
)
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import one_hot_values, wrong_weights

WARPS = 4  # of a block
HEAD_DIMS = (64, 128), (32, 96)  # one of each pair is drawn

SPEC = "this exercise, 'What to write'"
MERGING = "06 Serving, section 3, 'Parts are merged'"
PREFIXES = "06 Serving, section 7, 'A shared prefix'"


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
          for parts, rows in ((1, 3), (draw(2, 3), 2), (4 * draw(3, 5), 2), (draw(1030, 1300), 1))),
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


def _with_empty(out: Tensor, lse: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
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
    mistakes=read_mistakes("06_serving/merge_parts"),
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
