"""Grading of "03_flash_attention_v2/split_kv": the splits of a long K and V, and the merge of their partial results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading.diagnosis import wrong_values
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

D, L_MAX = 64, 132
OPTIONS = (f"-DD={D}",)
STALE = 40.0  # V behind the end of a sequence: one stale key is seen at once
Bounds = Callable[[int, int, int], tuple[int, int]]  # (L, splits, s) -> first and end key of split s
Finish = Callable[[float, float, Tensor], tuple[Tensor, float]]  # (m, l, sum of p · V) -> O and LSE of a split
Results = tuple[Tensor, Tensor]  # O and LSE, of splits or of rows
Merge = Callable[[Tensor, Tensor], Results]  # O and LSE of the splits -> of the rows

SPEC = "this exercise, 'What to write'"
MERGING = "chapter 02, section 2, 'A list, split in two'"
ONE_TRAP = "chapter 02, section 2, 'The one trap'"
LSE_SECTION = "chapter 03, section 5, 'The log-sum-exp'"


# ---------------------------------------------------------------------------------------------- what is right


def bounds(length: int, splits: int, s: int) -> tuple[int, int]:
    """First and end key of split s: ceil(L / splits) keys each, until there are none."""
    chunk = costs.ceil_div(length, splits)
    return min(length, s * chunk), min(length, (s + 1) * chunk)


def finish(m: float, total: float, weighted: Tensor) -> tuple[Tensor, float]:
    """O and LSE of one split from its maximum, its l and its sum of p · V."""
    if total == 0:
        return torch.zeros_like(weighted), -math.inf
    return weighted / total, m + math.log(total)


def partial_results(
    inputs: Mapping[str, Tensor], splits: int, scale: float, *, bounds: Bounds = bounds, finish: Finish = finish
) -> Results:
    """O [N, splits, D] and LSE [N, splits], float64. Raises IndexError where a split would read past all memory."""
    query, keys, values = (inputs[name].double() for name in ("Q", "K", "V"))
    rows, room = keys.shape[:2]
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # what stands behind a sequence is the next one
    out = torch.zeros(rows, splits, query.shape[1], dtype=torch.float64)
    lse = torch.zeros(rows, splits, dtype=torch.float64)
    for n, length in enumerate(inputs["lengths"].tolist()):
        for s in range(splits):
            first, end = bounds(length, splits, s)
            end = max(first, end)
            if n * room + end > len(keys):
                raise IndexError("past the last sequence")
            scores = scale * (keys[n * room + first : n * room + end] @ query[n])
            m = scores.max().item() if end > first else -math.inf
            p = torch.exp(scores - m)
            weighted = p @ values[n * room + first : n * room + end]
            out[n, s], lse[n, s] = finish(m, p.sum().item(), weighted)
    return out, lse


def merge(out: Tensor, lse: Tensor) -> Results:
    """O [N, D] and LSE [N] of all splits together."""
    total = torch.logsumexp(lse, dim=1)
    weights = torch.exp(lse - torch.where(total == -math.inf, 0.0, total)[:, None])
    merged = (weights[:, :, None] * out).sum(dim=1)  # 0 without a key, even if an empty split left NaN
    return merged.masked_fill((total == -math.inf)[:, None], 0.0), total


# ---------------------------------------------------------------------------------------------- the cases


def _inputs(generator: torch.Generator, lengths: tuple[int, ...], *, logits: float = 4.0) -> dict[str, Tensor]:
    """One query per row, a cache with stale numbers behind each sequence; `logits` is the largest score of a row."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows = len(lengths)
    query, keys, values = normal(rows, D), normal(rows, L_MAX, D), normal(rows, L_MAX, D)
    for n, length in enumerate(lengths):
        scores = D**-0.5 * (keys[n] @ query[n])
        query[n] *= logits / scores.abs().max()
        values[n, length:] += STALE
    return {"Q": query, "K": keys, "V": values, "lengths": torch.tensor(lengths, dtype=torch.int32)}


def _partial_launch(rows: int, splits: int, scale: float) -> Launch:
    arguments = ("Q", "K", "V", "O_part", "LSE_part", "lengths", np.int32(L_MAX), np.float32(scale))
    return Launch("split_partial", (splits, rows), (32,), arguments, OPTIONS)


def _merge_launch(rows: int, splits: int) -> Launch:
    return Launch("split_merge", (rows,), (D,), ("O_part", "LSE_part", "O", "LSE", np.int32(splits)), OPTIONS)


def _partial_case(part: str, name: str, inputs: dict[str, Tensor], splits: int, **options: object) -> Case:
    scale = D**-0.5
    out, lse = partial_results(inputs, splits, scale)
    return Case(
        part=part,
        name=name,
        launches=(_partial_launch(len(out), splits, scale),),
        inputs=inputs,
        outputs={"O_part": Output(out), "LSE_part": Output(lse, kind="lse")},
        facts={"stage": "partial", "splits": splits, "scale": scale},
        must_be_clean=True,
        compare=_one_split_first,
        **options,
    )


def _merge_case(part: str, name: str, out: Tensor, lse: Tensor) -> Case:
    rows, splits = lse.shape
    right = merge(out.double(), lse.double())
    return Case(
        part=part,
        name=name,
        launches=(_merge_launch(rows, splits),),
        inputs={"O_part": out.masked_fill((lse == -math.inf)[:, :, None], 0.0), "LSE_part": lse},
        outputs={"O": Output(right[0]), "LSE": Output(right[1], kind="lse")},
        facts={"stage": "merge", "splits": splits},
        must_be_clean=True,
    )


def _decode_case(name: str, inputs: dict[str, Tensor], splits: int) -> Case:
    scale = D**-0.5
    partials = partial_results(inputs, splits, scale)
    out, lse = merge(*partials)
    return Case(
        part="decode",
        name=name,
        launches=(_partial_launch(len(out), splits, scale), _merge_launch(len(out), splits)),
        inputs=inputs,
        outputs={
            "O_part": Output(partials[0], kind="scratch"),
            "LSE_part": Output(partials[1], kind="scratch"),
            "O": Output(out),
            "LSE": Output(lse, kind="lse"),
        },
        facts={"stage": "decode", "splits": splits, "scale": scale},
        must_be_clean=True,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    offset = _inputs(generator, (61, 14, 123, 99), logits=20.0)
    offset["V"] += 10.0
    far = normal(6, 5, D), normal(6, 5) + torch.tensor([0.0, 100.0, -130.0, 0.0, 20.0, 0.0])[:, None]
    far[1][3:] += torch.tensor([0.0, 95.0, 10.0, -140.0, 20.0])  # and far apart within a row
    empty = normal(5, 4, D), normal(5, 4)
    empty[1].masked_fill_(_EMPTY_SPLITS, -math.inf)
    return [
        _partial_case("splits", "lengths 128, 96, 37, 13 and 130 in 4 splits",
                      _inputs(generator, (128, 96, 37, 13, 130)), 4, review=_reads_once),
        _partial_case("splits", "7 splits, an offset on V", offset, 7),
        _merge_case("merge", "5 splits", normal(4, 5, D), normal(4, 5) + 2.0),
        _merge_case("merge", "40 splits, an offset on O", normal(2, 40, D) + 10.0, 2.0 * normal(2, 40) - 3.0),
        _merge_case("peaks", "log-sum-exps of 100 and -130, and far apart", *far),
        _partial_case("empty", "lengths 1, 0, 3, 9 and 5 in 4 splits", _inputs(generator, (1, 0, 3, 9, 5)), 4),
        _merge_case("empty", "some splits empty, or all", *empty),
        _decode_case("lengths 131, 0, 1, 113 and 132 in 6 splits", _inputs(generator, (131, 0, 1, 113, L_MAX)), 6),
        _decode_case("large logits, 3 splits", _inputs(generator, (L_MAX, 3, 65, 64), logits=50.0), 3),
    ]  # fmt: skip


_EMPTY_SPLITS = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.bool)


def _one_split_first(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What is wrong with partial results, and what to try where no known mistake explains it."""
    found = wrong_values(replace(case, compare=None), outputs)
    if found is None:
        return None
    words = "With one split, is it right? Then look at the bounds; if not, at what is left after the loop."
    return replace(found, detail=f"{found.detail}\n{words}", read_again=SPEC)


def _reads_once(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The blocks of a row together read its K and V once."""
    keys = int(case.inputs["lengths"].sum())
    needed = 2 * keys * D * 4
    if outcome.loaded_bytes <= 1.5 * needed:  # room for Q and lengths, which each split reads
        return None
    return Diagnosis(
        "every split reads all the keys",
        f"K and V of {keys} keys are {needed:,} bytes; the splits asked for {outcome.loaded_bytes:,} bytes together.",
        "chapter 03, section 1, 'Why: most of the GPU is idle'",
    )


# ---------------------------------------------------------------------------------------------- known mistakes


def _simulate(
    case: Case, *, bounds: Bounds = bounds, finish: Finish = finish, merge: Merge = merge
) -> Mapping[str, Tensor] | None:
    """The outputs of kernels with other bounds, another end of split_partial, or another merge, where they differ."""
    stage, splits = case.facts["stage"], case.facts["splits"]
    names = ("O_part", "LSE_part") if stage == "partial" else ("O", "LSE")
    if stage == "merge":
        written = dict(zip(names, merge(case.inputs["O_part"].double(), case.inputs["LSE_part"].double()), strict=True))
    else:
        try:
            results = partial_results(case.inputs, splits, case.facts["scale"], bounds=bounds, finish=finish)
        except IndexError:  # memcheck reports it
            return None
        written = dict(zip(names, results if stage == "partial" else merge(*results), strict=True))
    return {
        name: tensor
        for name, tensor in written.items()
        if not torch.allclose(tensor, case.outputs[name].expected, rtol=1e-3, atol=1e-3)
    } or None


def _mistake(name: str, detail: str, read_again: str, **changes: Callable[..., object]) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), partial(_simulate, **changes))


def _cut(chunk: Callable[[int, int], int], more: int = 0) -> Bounds:
    """Splits of chunk(L, splits) keys, and `more` at the end, none of them past L."""

    def of_split(length: int, splits: int, s: int) -> tuple[int, int]:
        size = chunk(length, splits)
        return min(length, s * size), min(length, (s + 1) * size + more)

    return of_split


def _floor(length: int, splits: int) -> int:
    return length // splits


def _of_room(length: int, splits: int) -> int:
    return costs.ceil_div(L_MAX, splits)


def _rest_to_last(length: int, splits: int, s: int) -> tuple[int, int]:
    return s * (length // splits), length if s == splits - 1 else (s + 1) * (length // splits)


def _even(length: int, splits: int, s: int) -> tuple[int, int]:
    return s * length // splits, (s + 1) * length // splits


def _past_end(length: int, splits: int, s: int) -> tuple[int, int]:
    chunk = costs.ceil_div(length, splits)
    return s * chunk, (s + 1) * chunk


def _up_to_room(length: int, splits: int, s: int) -> tuple[int, int]:
    first, end = _past_end(length, splits, s)
    return min(L_MAX, first), min(L_MAX, end)


def _finish_with(
    *, empty: tuple[float, float] = (0.0, -math.inf), out: Callable | None = None, lse: Callable | None = None
) -> Finish:
    """`finish`, with out(l, weighted) or lse(m, l) of its own, and what an empty split leaves."""

    def of_split(m: float, total: float, weighted: Tensor) -> tuple[Tensor, float]:
        if total == 0:
            return torch.full_like(weighted, empty[0]), empty[1]
        right = finish(m, total, weighted)
        return out(total, weighted) if out else right[0], lse(m, total) if lse else right[1]

    return of_split


def _weigh(
    out: Tensor,
    lse: Tensor,
    *,
    exp: Callable[[Tensor], Tensor] = torch.exp,
    log: Callable[[Tensor], Tensor] = torch.log,
    divide: bool = True,
    add_maximum: bool = True,
) -> Results:
    """The merge, with the maximum, by another exp or log or with a step left out."""
    largest = lse.amax(dim=1)
    base = torch.where(largest == -math.inf, 0.0, largest)
    weights = exp(lse - base[:, None])
    total = weights.sum(dim=1)
    merged = (weights[:, :, None] * out).sum(dim=1)
    if divide:
        merged = merged / torch.where(total == 0, 1.0, total)[:, None]
    return merged, torch.where(total == 0, -math.inf, log(total) + add_maximum * base)


def _average(out: Tensor, lse: Tensor, *, of_empty: bool) -> Results:
    count = lse.shape[1] if of_empty else (lse > -math.inf).sum(dim=1, keepdim=True).clamp(min=1)
    return out.sum(dim=1) / count, merge(out, lse)[1]


def _without_maximum(out: Tensor, lse: Tensor, *, form: str) -> Results:
    """exp(L_i) itself, which in fp32 overflows from 88.7 on and vanishes below -104. Divided by their sum, or by the
    formula O = Σ exp(L_i - L) O_i; "guarded": O = 0 where the sum is 0."""
    weights = torch.exp(lse.float())
    total = weights.sum(dim=1)
    result = torch.log(total)
    if form.startswith("formula"):
        weights, total = torch.exp(lse.float() - result[:, None]), torch.ones_like(total)
    merged = (weights[:, :, None] * out.float()).sum(dim=1) / total[:, None]
    if form.endswith("guarded"):
        merged = torch.where(torch.exp(lse.float()).sum(dim=1)[:, None] > 0, merged, 0.0)
    return merged.double(), result.double()


def _replace_lse(out: Tensor, lse: Tensor, *, by: Callable[[Tensor], Tensor]) -> Results:
    return merge(out, lse)[0], by(lse)


def _first_splits(out: Tensor, lse: Tensor) -> Results:
    return merge(out[:, :-1], lse[:, :-1]) if lse.shape[1] > 1 else (torch.zeros_like(out[:, 0]), lse[:, 0] - math.inf)


def _nan_rows(out: Tensor, lse: Tensor, *, where: Callable[[Tensor], Tensor], lse_too: bool) -> Results:
    merged, total = merge(out, lse)
    rows = where(lse == -math.inf)
    return merged.masked_fill(rows[:, None], math.nan), total.masked_fill(rows & lse_too, math.nan)


def _all(empty: Tensor) -> Tensor:
    return empty.all(dim=1)


def _leading(empty: Tensor) -> Tensor:
    return empty[:, 0]


_NOT_NORMALISED = (
    "split_partial leaves the sum of p · V. Divide it by l: the merge weighs attention outputs, not sums.",
    MERGING,
)
_PAST_L = Diagnosis(
    "a split reads past L",
    "The last split that has keys is shorter than the others, and those after it have none: no key from lengths[n] on "
    "may count. What follows is the stale rest of the cache, or memory that is not yours.",
    SPEC,
)
_BASE_2 = (
    "log base 2 is mixed with the natural one",
    "LSE is a natural logarithm: expf and logf belong together, exp2f and log2f too, and never one of each.",
    LSE_SECTION,
)
_NO_MAXIMUM = (
    "the weights exp(L_i) are taken without the maximum",
    "exp(100) is infinite in fp32 and exp(-130) is 0. Subtract the largest L_i first: the weights are the same.",
    ONE_TRAP,
)
_EMPTY_ROW = (
    "a row without keys gives NaN in the merge",
    "Where all LSE_part are −∞, O is 0 and LSE −∞. −∞ − (−∞) is NaN, and so is 0 / 0.",
    ONE_TRAP,
)

MISTAKES = (
    _mistake("the last split misses the rest of L",
             "L / splits rounds down: with 37 keys in 4 splits, key 36 belongs to no split. Round up.",
             SPEC, bounds=_cut(_floor)),
    Mistake(_PAST_L, partial(_simulate, bounds=_past_end)),
    Mistake(_PAST_L, partial(_simulate, bounds=_up_to_room)),
    _mistake("neighbouring splits share a key",
             "`end` is the first key that the split does not take. The last key of a split was counted twice.",
             SPEC, bounds=_cut(costs.ceil_div, more=1)),
    _mistake("the last key of each split is left out",
             "The loop runs while j < end: `end` itself is not a key of the split any more.",
             SPEC, bounds=_cut(costs.ceil_div, more=-1)),
    _mistake("the last split takes the whole rest of L",
             "The result would be right, but the last block works longer than the others. Each split takes "
             "ceil(L / splits) keys.", SPEC, bounds=_rest_to_last),
    _mistake("the splits are cut at other keys than the spec says",
             "The splits cover all keys, from s · L / splits on. The spec wants ceil(L / splits) keys in each.",
             SPEC, bounds=_even),
    _mistake("the splits are cut from L_max, not from the row's length",
             "The cache has room for L_max keys; lengths[n] of them count. Each split takes ceil(L / splits).",
             SPEC, bounds=_cut(_of_room)),
    _mistake("the splits are cut from L_max, not from the row's length",
             "The cache has room for L_max keys; lengths[n] of them count. What follows them is stale.",
             SPEC, bounds=lambda length, splits, s: _up_to_room(L_MAX, splits, s)),
    _mistake("every split attends to all the keys",
             "Each partial result is that of the whole row: the work was not split, it was repeated.",
             SPEC, bounds=lambda length, splits, s: (0, length)),
    _mistake("the partial O is not normalised", *_NOT_NORMALISED,
             finish=_finish_with(out=lambda total, weighted: weighted)),
    _mistake("the partial O is normalised twice", "split_partial divides by l once; O is then an attention output.",
             MERGING, finish=_finish_with(out=lambda total, weighted: weighted / total**2)),
    _mistake("the LSE of a split lacks its maximum",
             "l is relative to the maximum m of this split. The log-sum-exp is m + log(l): log(l) alone cannot be "
             "compared with that of another split.", LSE_SECTION,
             finish=_finish_with(lse=lambda m, total: math.log(total))),
    _mistake("the LSE of a split is only its maximum", "It is m + log(l): how many keys there are counts too.",
             LSE_SECTION, finish=_finish_with(lse=lambda m, total: m)),
    _mistake("an empty split gives NaN",
             "A split without keys has l = 0, and 0 / 0 is NaN. It leaves O = 0 and LSE = −∞. The weight 0 "
             "does not help later: 0 · NaN is NaN.", ONE_TRAP, finish=_finish_with(empty=(math.nan, -math.inf))),
    _mistake("the LSE of an empty split is not −∞",
             "With LSE = 0 an empty split gets a weight like a split with one key of score 0. exp(−∞) is 0.",
             LSE_SECTION, finish=_finish_with(empty=(0.0, 0.0))),
    _mistake(*_BASE_2, finish=_finish_with(lse=lambda m, total: m + math.log2(total))),
    _mistake(*_BASE_2, finish=_finish_with(lse=lambda m, total: (m + math.log(total)) / math.log(2))),
    _mistake("the partial outputs are averaged instead of weighted",
             "A split whose keys matter little must count little: its weight is exp(L_i - L).", MERGING,
             merge=partial(_average, of_empty=True)),
    _mistake("the partial outputs are averaged instead of weighted",
             "A split whose keys matter little must count little: its weight is exp(L_i - L).", MERGING,
             merge=partial(_average, of_empty=False)),
    _mistake(*_EMPTY_ROW, merge=partial(_nan_rows, where=_all, lse_too=True)),
    _mistake(*_EMPTY_ROW, merge=partial(_nan_rows, where=_all, lse_too=False)),
    *(
        _mistake(*_NO_MAXIMUM, merge=partial(_without_maximum, form=form))
        for form in ("divided", "guarded", "formula", "formula guarded")
    ),
    _mistake("the weights are not divided by their sum",
             "exp(L_i - max) is 1 for the largest split; the weights must sum to 1.", MERGING,
             merge=partial(_weigh, divide=False)),
    _mistake("the merged LSE lacks the maximum", "The sum was taken relative to the largest L_i: add it again.",
             LSE_SECTION, merge=partial(_weigh, add_maximum=False)),
    _mistake("the merged LSE is only the largest one", "L = log Σ exp(L_i): the other splits add to it.", LSE_SECTION,
             merge=partial(_replace_lse, by=lambda lse: lse.amax(dim=1))),
    _mistake("the LSEs are added", "Logarithms add when numbers are multiplied. Here sums of exp are added: "
             "L = log Σ exp(L_i).", LSE_SECTION, merge=partial(_replace_lse, by=lambda lse: lse.sum(dim=1))),
    _mistake(*_BASE_2, merge=partial(_weigh, exp=torch.exp2, log=torch.log2)),
    _mistake(*_BASE_2, merge=partial(_weigh, exp=torch.exp2)),
    _mistake(*_BASE_2, merge=partial(_weigh, log=torch.log2)),
    _mistake("the last split is left out of the merge", "There are `splits` partial results: s < splits.", MERGING,
             merge=_first_splits),
    _mistake("an empty split before the others gives NaN in the merge",
             "As long as no split had a key, the running maximum is −∞, and −∞ − (−∞) is NaN.",
             ONE_TRAP, merge=partial(_nan_rows, where=_leading, lse_too=True)),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- the exercise

SMS, KV_HEADS, LENGTH, HEAD_DIM = 132, 8, 32768, 128  # an H100 or H200; a cache of 32 K tokens in fp16
_SPLITS = costs.ceil_div(SMS, KV_HEADS)
_INTENSITY = costs.attention_flops(1, 1, 1, LENGTH, HEAD_DIM) / costs.least_bytes(1, 1, 1, LENGTH, HEAD_DIM, 2)
_PARTIAL_BYTES = 2 * _SPLITS * (HEAD_DIM + 1) * 4  # O and LSE in fp32, written once and read once
_EXTRA = 100 * _PARTIAL_BYTES / costs.kv_cache_bytes(LENGTH, 1, HEAD_DIM)

EXERCISE = Exercise(
    id="03_flash_attention_v2/split_kv",
    title="Split-KV, and the merge",
    parts=(
        Part("splits", 3, "Each split attends to its own keys, all of them and no other"),
        Part("merge", 3, "The merge weighs the partial results"),
        Part("peaks", 2, "Log-sum-exps that are large, or far apart"),
        Part("empty", 2, "Splits without keys, rows without keys"),
        Part("decode", 2, "Both kernels together, ragged lengths"),
    ),
    kernels=("split_partial", "split_merge"),
    cases=cases,
    mistakes=MISTAKES,
    questions=(
        Question(
            "fewest_splits", 1, "Fewest splits that give each of 132 SMs a block, for 8 heads", _SPLITS, "", 0.001,
            misconceptions=(
                (SMS, "8 heads already bring 8 blocks: splits · heads must reach 132, not splits alone"),
                (SMS // KV_HEADS, "16 splits make 128 blocks: four SMs stay idle. Round up"),
                (SMS / KV_HEADS, "a split is a whole block: round up"),
            ),
            read_again="chapter 03, section 1, 'Why: most of the GPU is idle'",
        ),
        Question(
            "intensity", 1, "FLOPs per byte of decoding one query, fp16", _INTENSITY, "FLOP/byte", 0.01,
            misconceptions=(
                (0.5, "a multiply-add counts as two FLOPs: 4 · L · d in all"),
                (2.0, "both K and V are read: 2 · L · d numbers of two bytes"),
                (LENGTH, "this would be so if a key served all queries; here there is one query"),
                (LENGTH / 2, "this would be so if a key served all queries; here there is one query"),
            ),
            read_again="chapter 00, section 5, 'Two floors and a roof'",
        ),
        Question(
            "extra", 1, "Bytes of the partial results, in percent of K and V (to two digits)", _EXTRA, "%", 0.02,
            misconceptions=(
                (0.1, "nearly: give two digits"),
                (_EXTRA / 2, "the partial results are written and read: count them twice"),
                (_EXTRA * 2, "K and V are both read: 2 · L · d numbers"),
                (_EXTRA / 100, "this is the ratio; the question asks for percent"),
                (_EXTRA / 2 / 100, "this is the ratio, and without reading the partial results again"),
            ),
            read_again="chapter 03, section 6, 'Roofline and HBM'",
        ),
    ),
    cells=("answers",),
)  # fmt: skip
