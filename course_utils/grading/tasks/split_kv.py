"""Grading of "03_flash_attention_v2/split_kv": the splits of a long K and V, and the merge of their partial results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading import names
from course_utils.grading.diagnosis import wrong_values
from course_utils.grading.draws import FAR, LOWEST, between, low_lse
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
    judging,
)
from course_utils.grading.job import still_blank
from course_utils.grading.seen import one_hot_values, places, wrong_weights

HEAD_DIMS = (64, 128), (32, 96)  # one of each pair is drawn
STALE = 40.0  # V behind the end of a sequence: one stale key is seen at once
Bounds = Callable[[int, int, int], tuple[int, int]]  # (L, splits, s) -> first and end key of split s
Results = tuple[Tensor, Tensor]  # O and LSE, of splits or of rows
Finish = Callable[[Tensor, Tensor, Tensor], Results]  # (m, l, sums of p · V) -> O and LSE of the splits
Walk = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]  # scores [splits, keys], V -> m, l, sums of p · V
Merge = Callable[[Tensor, Tensor], Results]  # O and LSE of the splits -> of the rows

SPEC = "this exercise, 'What to write'"
MERGING = "02 FlashAttention, minimal, section 2, 'A list, split in two'"
TWO_NUMBERS = "02 FlashAttention, minimal, section 2, 'Two numbers'"
ONE_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
LSE_SECTION = "03 FlashAttention-2, section 5, 'The log-sum-exp'"
SCALE_SECTION = "01 Attention basics, section 2, 'Why the scores are divided by √d'"


# ---------------------------------------------------------------------------------------------- what is right


def bounds(length: int, splits: int, s: int) -> tuple[int, int]:
    """First and end key of split s: ceil(L / splits) keys each, until there are none."""
    chunk = costs.ceil_div(length, splits)
    return min(length, s * chunk), min(length, (s + 1) * chunk)


def walk(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, l and the sum of p · V of each split; m = −∞ and l = 0 without a key. scores: −∞ for keys of other splits."""
    m = scores.amax(dim=1)
    p = torch.exp(scores - torch.where(m == -math.inf, 0.0, m)[:, None])
    return m, p.sum(dim=1), p @ values


def finish(m: Tensor, total: Tensor, weighted: Tensor) -> Results:
    """O and LSE of the splits of a row from their maxima, their l and their sums of p · V."""
    empty = total == 0
    out = weighted / torch.where(empty, 1.0, total)[:, None]
    return out.masked_fill(empty[:, None], 0.0), torch.where(empty, -math.inf, m + torch.log(total))


def merge(out: Tensor, lse: Tensor) -> Results:
    """O [N, D] and LSE [N] of all splits together."""
    total = torch.logsumexp(lse, dim=1)
    largest = lse.amax(dim=1, keepdim=True)
    weights = torch.exp(lse - torch.where(largest == -math.inf, 0.0, largest))
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
    merged = (weights[:, :, None] * out).sum(dim=1)  # 0 without a key, even if an empty split left NaN
    return merged.masked_fill((total == -math.inf)[:, None], 0.0), total


@dataclass(frozen=True)
class Way:
    """How a pair of kernels works; as it stands, the right one.

    of_room: whether L_max stands in for L in `bounds`. within: "L" or "L_max", what the bounds are cut off at.
    packed: the inputs whose rows are taken to be lengths[n] keys apart, not L_max.
    scale: from the argument and D, the factor of the scores. of_row_0: the inputs that every row reads of row 0.
    columns: of D, groups of columns that have scores of their own: each lane adds over the lanes of its group alone.
    stored: what becomes of O_part and LSE_part on their way to memory.
    """

    bounds: Bounds = bounds
    of_room: bool = False
    within: str = ""
    packed: str = ""
    walk: Walk = walk
    finish: Finish = finish
    scale: Callable[[float, int], float] = lambda scale, head_dim: scale
    of_row_0: str = ""
    columns: Callable[[int], Tensor] = lambda head_dim: torch.zeros(head_dim, dtype=torch.int64)
    stored: Callable[[Tensor, Tensor], Results] = lambda out, lse: (out, lse)
    merge: Merge = merge


RIGHT = Way()


def partial_results(
    inputs: Mapping[str, Tensor], splits: int, scale: float, way: Way = RIGHT, dtype: torch.dtype = torch.float64
) -> Results:
    """O [N, splits, D] and LSE [N, splits], float64. Raises IndexError where a split would read past all memory."""
    read = {name: x[:1].expand_as(x) if name in way.of_row_0.split() else x for name, x in inputs.items()}
    query = read["Q"].to(dtype)
    rows, room, head_dim = inputs["K"].shape
    out = torch.zeros(rows, splits, head_dim, dtype=torch.float64)
    lse = torch.zeros(rows, splits, dtype=torch.float64)
    group = way.columns(head_dim)
    for n, length in enumerate(read["lengths"].tolist()):
        cut = room if way.of_room else length
        pairs = torch.tensor([way.bounds(cut, splits, s) for s in range(splits)])
        if way.within:
            pairs = pairs.clamp(max=length if way.within == "L" else room)
        first, end = pairs[:, :1], pairs.amax(dim=1, keepdim=True)
        behind = max(1, int(end.max()))
        starts = {name: n * (length if name in way.packed.split() else room) for name in ("K", "V")}
        keys, values = (
            read[name].flatten(0, 1)[start : start + behind].to(dtype)  # behind a sequence stands the next one
            for name, start in starts.items()
        )
        if behind > min(len(keys), len(values)):
            raise IndexError("past the last sequence")
        j = torch.arange(behind)[None]
        for g in range(int(group.max()) + 1):
            mine = group == g
            scores = way.scale(scale, head_dim) * (keys[:, mine] @ query[n, mine])
            scores = scores.masked_fill((j < first) | (j >= end), -math.inf)
            out[n, :, mine], of_group = (x.double() for x in way.finish(*way.walk(scores, values[:, mine])))
            if g == 0:  # lane 0 writes it
                lse[n] = of_group
    return way.stored(out, lse)


def _plain_runs(inputs: Mapping[str, Tensor], splits: int, scale: float) -> list[Results]:
    """The same in fp32, with the scale applied to the scores, or to Q."""
    scaled = {**inputs, "Q": inputs["Q"] * scale}
    return [
        partial_results(inputs, splits, scale, dtype=torch.float32),
        partial_results(scaled, splits, 1.0, dtype=torch.float32),
    ]


# ---------------------------------------------------------------------------------------------- the cases


def _filling(generator: torch.Generator, low: int, high: int, splits: int) -> int:
    """A number of keys from low on, or a few more than high, that leaves no split without a key."""
    first = between(generator, low, high)
    return next(n for n in range(first, first + splits) if bounds(n, splits, splits - 1)[0] < n)


def _odd_at_the_end(generator: torch.Generator, low: int, high: int, splits: int) -> int:
    """A number of keys from low on, or a few more than high, of which the last split has an odd number: whoever takes
    two in a step goes past the end."""
    first = between(generator, low, high)
    return next(n for n in range(first, first + 4 * splits) if (n - bounds(n, splits, splits - 1)[0]) % 2)


def _scale(generator: torch.Generator, head_dim: int) -> float:
    """A scale that is half or twice 1 / √D, roughly."""
    factor = 0.4 + 0.3 * torch.rand((), generator=generator).item()
    return head_dim**-0.5 * (factor if between(generator, 0, 1) else 1 / factor)


def _inputs(
    generator: torch.Generator, lengths: Sequence[int], *, head_dim: int, logits: float = 4.0, room: int = 0
) -> tuple[dict[str, Tensor], float]:
    """One query per row, a cache with stale numbers behind each sequence, and the scale.

    logits: the largest score of a row. room: L_max, by default a few more than the longest sequence has.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, scale = len(lengths), _scale(generator, head_dim)
    room = room or max(lengths) + between(generator, 2, 9)
    query, keys, values = normal(rows, head_dim), normal(rows, room, head_dim), normal(rows, room, head_dim)
    for n, length in enumerate(lengths):
        query[n] *= logits / (scale * (keys[n] @ query[n])).abs().max()
        values[n, length:] += STALE
    return {"Q": query, "K": keys, "V": values, "lengths": torch.tensor(lengths, dtype=torch.int32)}, scale


def _sorted(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The keys of even rows in the order of their scores, the largest last; those of odd rows the other way round."""
    keys = inputs["K"].clone()
    for n, length in enumerate(inputs["lengths"].tolist()):
        order = (keys[n, :length] @ inputs["Q"][n]).argsort(descending=n % 2 == 1)
        keys[n, :length] = keys[n, order]
    return {**inputs, "K": keys}


def _key_by_key(
    generator: torch.Generator, length: int, head_dim: int, *, logits: float = 2.0
) -> tuple[dict[str, Tensor], float]:
    """As many rows as it takes that each key has a column of its own, in which its weight can be read.

    The cache is full where the keys take whole rows.
    """
    room = costs.ceil_div(length, head_dim) * head_dim
    values = one_hot_values(room, head_dim)[0]
    inputs, scale = _inputs(generator, (length,), head_dim=head_dim, logits=logits, room=room)
    same = {name: inputs[name].expand(len(values), *inputs[name].shape[1:]) for name in ("Q", "K", "lengths")}
    return {**same, "V": values}, scale


def _low(generator: torch.Generator, length: int, splits: int, head_dim: int) -> tuple[dict[str, Tensor], float]:
    """Rows whose largest score is −20,000, −300 or LOWEST. One key has it, and no other one is near it."""
    tops = (splits - 1, -2e4), (between(generator, 0, splits - 2), -2e4), (0, LOWEST), (1, -300.0)
    inputs, _ = _inputs(generator, (length,) * len(tops), head_dim=head_dim)
    scale, query, keys = 2.0 ** -between(generator, 4, 6), inputs["Q"], inputs["K"]
    query[2] = 2.0**30
    for n, (split, lowest) in enumerate(tops):
        toward = query[n] / (scale * (query[n] @ query[n]))  # a key with score 1
        apart = 2.0**67 if lowest == LOWEST else 200.0 + 50.0 * torch.rand(len(keys[n]), 1, generator=generator)
        keys[n] = (lowest - apart) * toward
        first, end = bounds(length, splits, split)
        keys[n, between(generator, first + 1, end - 1)] = lowest * toward
    return inputs, scale


def _partial_launch(inputs: Mapping[str, Tensor], splits: int, scale: float) -> Launch:
    rows, room, head_dim = inputs["K"].shape
    arguments = ("Q", "K", "V", "O_part", "LSE_part", "lengths", np.int32(room), np.float32(scale))
    return Launch("split_partial", (splits, rows), (32,), arguments, (f"-DD={head_dim}",))


def _merge_launch(rows: int, splits: int, head_dim: int) -> Launch:
    arguments = ("O_part", "LSE_part", "O", "LSE", np.int32(splits))
    return Launch("split_merge", (rows,), (head_dim,), arguments, (f"-DD={head_dim}",))


def _partial_case(name: str, made: tuple[dict[str, Tensor], float], splits: int, **options: Any) -> Case:
    """split_partial alone. `judging` says for which part."""
    inputs, scale = made
    out, lse = partial_results(inputs, splits, scale)
    runs = _plain_runs(inputs, splits, scale)
    return Case(
        part="",
        name=name,
        launches=(_partial_launch(inputs, splits, scale),),
        inputs=inputs,
        outputs={
            "O_part": Output(out, same_dtype=[run[0] for run in runs], axes=("row", "split", "column")),
            "LSE_part": Output(lse, axes=("row", "split")),
        },
        facts={"stage": "partial", "splits": splits, "scale": scale},
        must_be_clean=True,
        **options,
    )


def _merge_case(name: str, out: Tensor, lse: Tensor, **options: Any) -> Case:
    """split_merge alone."""
    rows, splits, head_dim = out.shape
    right = merge(out.double(), lse.double())
    return Case(
        part="",
        name=name,
        launches=(_merge_launch(rows, splits, head_dim),),
        inputs={"O_part": out.masked_fill((lse == -math.inf)[:, :, None], 0.0), "LSE_part": lse},
        outputs={"O": Output(right[0], axes=("row", "column")), "LSE": Output(right[1], axes=("row",))},
        facts={"stage": "merge", "splits": splits},
        must_be_clean=True,
        **options,
    )


def _decode_case(name: str, made: tuple[dict[str, Tensor], float], splits: int) -> Case:
    inputs, scale = made
    partials = partial_results(inputs, splits, scale)
    out, lse = merge(*partials)
    runs = [merge(*run)[0] for run in _plain_runs(inputs, splits, scale)]
    return Case(
        part="decode",
        name=name,
        launches=(_partial_launch(inputs, splits, scale), _merge_launch(*out.shape[:1], splits, out.shape[1])),
        inputs=inputs,
        outputs={
            "O_part": Output(partials[0], kind="scratch"),
            "LSE_part": Output(partials[1], kind="scratch"),
            "O": Output(out, same_dtype=runs, axes=("row", "column")),
            "LSE": Output(lse, axes=("row",)),
        },
        facts={"stage": "decode", "splits": splits, "scale": scale},
        must_be_clean=True,
        explain=_not_written,
    )


def _of_empty(part: str, case: Case) -> Case:
    """The case for a part that looks at O, and at where LSE is −∞: what it is elsewhere is another part's."""
    return replace(case, part=part, compare=_where_empty, explain=_finite_lse, facts={**case.facts, "only_empty": True})


def _where_empty(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    judged = dict(case.outputs)
    for name, output in case.outputs.items():
        if name.startswith("LSE"):
            empty = torch.isneginf(output.expected) | torch.isneginf(outputs[name])
            judged[name] = replace(output, expected=torch.where(empty, output.expected, outputs[name].double()))
    return wrong_values(replace(case, outputs=judged, compare=None), outputs)


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Sizes are drawn: no number that is written into a kernel fits all of them."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    draw = partial(between, generator)
    D, other = (pair[draw(0, 1)] for pair in HEAD_DIMS)
    inputs = partial(_inputs, generator, head_dim=D)
    few, many, most = draw(4, 7), draw(257, 316), 384 * draw(3, 4)  # `most`: whole tiles of 128, and of each `other`
    length = next(n for n in range(draw(150, 250), 300) if n % few)  # the last split is shorter
    own_keys = _partial_case(f"{length} keys in {few} splits, one column for each key",
                             _key_by_key(generator, length, D), few, explain=_keys_of_splits)  # fmt: skip
    lengths = [_filling(generator, *ends, 7) for ends in ((50, 61), (9, 14), (90, 99))]
    ragged, scale = inputs([*lengths, 7 * draw(15, 18)], head_dim=other, logits=20.0)  # in the last all are equal
    offset = _partial_case(f"D = {other}, 7 splits, an offset on V, keys in the order of their scores",
                           (_sorted({**ragged, "V": ragged["V"] + 10.0}), scale), 7)  # fmt: skip
    wide = draw(24, 31)
    long = inputs([_filling(generator, *ends, wide) for ends in ((1100, 1300), (600, 900))])
    whole_tiles = 384 * draw(
        5, 6
    )  # of any usual size, and of each D; the last row has no room behind it, in this and in `full`
    longest = inputs((draw(1, 40), whole_tiles), head_dim=other, room=whole_tiles)
    full = _odd_at_the_end(generator, 132, 137, 6)

    splits = draw(4, 8)
    plain = _merge_case(f"{splits} splits", normal(4, splits, D), normal(4, splits) + 2.0)
    by_split = one_hot_values(many, D)[0]
    one = _merge_case("one split", normal(3, 1, other), normal(3, 1) - 2.0)
    each = _merge_case(f"{many} splits, one column for each split", by_split,
                       (0.3 * normal(1, many) - 3.0).expand(len(by_split), -1), explain=_merged_splits)  # fmt: skip
    crowd = _merge_case(f"D = {other}, {most} splits, an offset on O", normal(1, most, other) + 10.0,
                        2.0 * normal(1, most) - 3.0)  # fmt: skip
    far = _merge_case("log-sum-exps of 100 and -130, and far apart", normal(*FAR.shape, D),
                      normal(*FAR.shape) + FAR * (1 + 0.2 * torch.rand((), generator=generator)))  # fmt: skip
    low = _merge_case("log-sum-exps of -20,000 and less", normal(4, 6, other), low_lse(generator, 6),
                      explain=_taken_for_empty)  # fmt: skip
    empty = normal(len(_EMPTY_SPLITS), 4).masked_fill(_EMPTY_SPLITS, -math.inf)
    return [
        *judging(own_keys, splits="O_part", split_lse="LSE_part"),
        *judging(offset, splits="O_part", split_lse="LSE_part"),
        *judging(_partial_case("long sequences", long, wide, review=_reads_once), splits="O_part"),
        *judging(_partial_case(f"D = {other}, one split", longest, 1), splits="O_part", split_lse="LSE_part"),
        _of_empty("empty_splits", _partial_case("lengths 1, 0, 3, 9 and 5 in 4 splits", inputs((1, 0, 3, 9, 5)), 4)),
        _of_empty("empty_splits", _partial_case(
            f"D = {other}, more splits than keys", inputs((0, draw(33, 38), draw(2, 9)), head_dim=other), draw(40, 70)
        )),
        *judging(plain, merge="O", merge_lse="LSE"),
        *judging(one, merge="O", merge_lse="LSE"),
        *judging(each, merge="O", merge_lse="LSE"),
        *judging(crowd, merge="O", merge_lse="LSE"),
        *judging(far, peaks="O", merge_lse="LSE"),
        *judging(low, peaks="O"),
        _of_empty("empty_rows", _merge_case("some splits empty, or all", normal(len(empty), 4, D), empty)),
        _decode_case("ragged lengths, 6 splits", inputs((131, 0, 1, draw(105, 115), full), room=full), 6),
        _decode_case(f"D = {other}, large logits, 3 splits",
                     inputs((draw(120, 135), 3, draw(64, 66), 64), head_dim=other, logits=110.0), 3),
        _decode_case("more splits than D", inputs((5, draw(80, 95), 0, draw(140, 170))), draw(190, 220)),
        _decode_case("scores of -20,000 and less, 4 splits", _low(generator, draw(40, 50), 4, D), 4),
    ]  # fmt: skip


def experiments(generator: torch.Generator) -> list[Case]:
    """Many keys, or splits, with a column each: a ragged number of them, and whole tiles without room behind them."""
    D = HEAD_DIMS[0][0]
    ragged, whole = between(generator, 400, 480), 128 * between(generator, 3, 4)
    weights = (0.1 * torch.randn(1, whole, generator=generator)).expand(whole // D, -1)
    long = {length: _key_by_key(generator, length, D, logits=0.5) for length in (ragged, whole)}
    return [
        *(
            _partial_case(f"one split of {length} keys, one column for each", made, 1, explain=_keys_of_splits)
            for length, made in long.items()
        ),
        _merge_case(
            f"{whole} splits, one column for each", one_hot_values(whole, D)[0], weights, explain=_merged_splits
        ),
    ]


_EMPTY_SPLITS = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)


def _reads_once(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The blocks of a row together read its K and V once. Q may be read again for each key."""
    keys, head_dim = int(case.inputs["lengths"].sum()), case.inputs["K"].shape[2]
    needed = 2 * keys * head_dim * 4
    loaded = sum(argument.bytes_loaded for argument in outcome.footprint[1:3])  # of K and V
    if loaded <= 3 * needed:  # room for a second pass, and for keys behind a split that are read and left out
        return None
    return Diagnosis(
        "every split reads all the keys",
        f"K and V of {keys} keys are {needed:,} bytes; the splits asked for {loaded:,} bytes of them together.",
        "03 FlashAttention-2, section 1, 'Why: most of the GPU is idle'",
    )


# ---------------------------------------------------------------------------------------------- what is seen


def _keys_of_splits(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Where each key has a column of its own: which keys a split has left out, or taken too many of."""
    got, expected = (x.movedim(0, 1).flatten(1) for x in (outputs["O_part"], case.outputs["O_part"].expected))
    length = int(case.inputs["lengths"][0])
    if not got[:, length:].any():
        got, expected = got[:, :length], expected[:, :length]
    return _to_read_again(wrong_weights(got, expected, ("split", "key")))


def _merged_splits(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Where each split has a column of its own: which splits the merge has left out, or counted twice."""
    got, expected = (x.flatten()[None, : case.facts["splits"]] for x in (outputs["O"], case.outputs["O"].expected))
    return _to_read_again(wrong_weights(got, expected, ("row", "split")))


def _to_read_again(said: Diagnosis | None) -> Diagnosis | None:
    return said and replace(said, read_again=SPEC)


def _not_written(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Whether the first kernel has left out a part of what the second one reads."""
    for name, axes in (("O_part", ("row", "split", "column")), ("LSE_part", ("row", "split"))):
        if (missing := still_blank(outputs[name])).any():
            count = f"{int(missing.sum())} of {missing.numel()} elements: {places(missing, axes)}"
            return Diagnosis(f"{name} is never written{'' if missing.all() else ' in places'}", count, SPEC)
    return None


def _taken_for_empty(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Whether O is 0 in a row that has keys, where their scores are very small."""
    expected = case.outputs["O"].expected
    if (taken := (outputs["O"] == 0).all(dim=1) & (expected != 0).any(dim=1)).any():
        row = int(taken.nonzero()[0])
        words = f"row {row} has a log-sum-exp of {case.outputs['LSE'].expected[row].item():.6g}, and its O is 0"
        return Diagnosis("a row with keys is taken for an empty one", words, SPEC)
    return None


def _finite_lse(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Whether LSE has a number where there is no key, and O is right."""
    for name, output in case.outputs.items():
        if name.startswith("LSE"):
            numbers = outputs[name][torch.isneginf(output.expected) & torch.isfinite(outputs[name])]
            rest = replace(case, outputs={**case.outputs, name: replace(output, kind="scratch")}, compare=None)
            if len(numbers) and wrong_values(rest, outputs) is None:
                return Diagnosis(_FINITE_LSE[name], f"it is {numbers[0].item():g}; exp(−∞) is 0", LSE_SECTION)
    return None


_FINITE_LSE = {"LSE_part": "the LSE of an empty split is not −∞", "LSE": names.LSE_EMPTY_ROW}


# ---------------------------------------------------------------------------------------------- known mistakes


def _simulate(case: Case, *, way: Way) -> Mapping[str, Tensor] | None:
    """The outputs of kernels that work this way, where they differ from the right ones."""
    stage, splits = case.facts["stage"], case.facts["splits"]
    written = {"partial": ("O_part", "LSE_part")}.get(stage, ("O", "LSE"))
    if stage != "decode" and (way == replace(RIGHT, merge=way.merge)) == (stage == "partial"):
        return None  # it is the other kernel's mistake
    if stage == "merge":
        results = way.merge(case.inputs["O_part"].double(), case.inputs["LSE_part"].double())
    else:
        try:
            results = partial_results(case.inputs, splits, case.facts["scale"], way)
        except IndexError:  # memcheck reports it
            return None
        results = results if stage == "partial" else way.merge(*results)
    simulated = dict(zip(written, results, strict=True))
    right = {name: case.outputs[name].expected for name in written}
    lse = written[1]
    if case.facts.get("only_empty") and bool((torch.isfinite(simulated[lse]) == torch.isfinite(right[lse])).all()):
        del simulated[lse]
    same = all(torch.allclose(x, right[name], rtol=1e-3, atol=1e-3) for name, x in simulated.items())
    return None if same else simulated


def _mistake(name: str, detail: str, read_again: str, **changes: Any) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), partial(_simulate, way=replace(RIGHT, **changes)))


def _mistakes(name: str, detail: str, read_again: str, *ways: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which kernels make it."""
    return tuple(_mistake(name, detail, read_again, **way) for way in ways)


def _cut(chunk: Callable[[int, int], int], more: int = 0) -> Bounds:
    """Splits of chunk(L, splits) keys, and `more` at the end, none of them past L."""

    def of_split(length: int, splits: int, s: int) -> tuple[int, int]:
        size = chunk(length, splits)
        return min(length, s * size), min(length, (s + 1) * size + more)

    return of_split


def _floor(length: int, splits: int) -> int:
    return length // splits


def _one_more(length: int, splits: int) -> int:
    return length // splits + 1


def _whole_warps(length: int, splits: int) -> int:
    return costs.ceil_div(length, 32 * splits) * 32


def _rest_to_last(length: int, splits: int, s: int) -> tuple[int, int]:
    return s * (length // splits), length if s == splits - 1 else (s + 1) * (length // splits)


def _even(length: int, splits: int, s: int) -> tuple[int, int]:
    return s * length // splits, (s + 1) * length // splits


def _past_end(length: int, splits: int, s: int) -> tuple[int, int]:
    chunk = costs.ceil_div(length, splits)
    return s * chunk, (s + 1) * chunk


def _without_last_key(length: int, splits: int, s: int) -> tuple[int, int]:
    return bounds(max(0, length - 1), splits, s)


def _walk(
    scores: Tensor,
    values: Tensor,
    *,
    start: float = -math.inf,
    rescaled: str = "O l",
    maximum: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """`walk` key by key, in fp32: with a maximum that starts elsewhere, with sums that are not rescaled when it rises,
    or without a maximum."""
    scores = scores.float()
    so_far = scores.cummax(dim=1).values.clamp(min=start)
    m = so_far[:, -1]
    base = torch.where(m == -math.inf, 0.0, m)[:, None]
    if not maximum:
        m, base = torch.zeros_like(m), torch.zeros_like(base)
    p, kept = torch.exp(scores - base), torch.exp(scores - torch.where(so_far == -math.inf, 0.0, so_far))
    total = (p if "l" in rescaled else kept).sum(dim=1)
    return m.double(), total.double(), (p if "O" in rescaled else kept).double() @ values


def _finish_with(
    *, empty: tuple[float, float] = (0.0, -math.inf), out: Callable | None = None, lse: Callable | None = None
) -> Finish:
    """`finish`, with out(l, weighted) or lse(m, l) of its own, and what an empty split leaves."""

    def of_splits(m: Tensor, total: Tensor, weighted: Tensor) -> Results:
        no_key = total == 0
        right = finish(m, total, weighted)
        return (
            torch.where(no_key[:, None], empty[0], out(total[:, None], weighted) if out else right[0]),
            torch.where(no_key, empty[1], lse(m, total) if lse else right[1]),
        )

    return of_splits


def _weigh(
    out: Tensor,
    lse: Tensor,
    *,
    largest: Callable[[Tensor], Tensor] = lambda lse: lse.amax(dim=1),
    exp: Callable[[Tensor], Tensor] = torch.exp,
    log: Callable[[Tensor], Tensor] = torch.log,
    divide: bool = True,
    add_maximum: bool = True,
    guard: bool = True,
) -> Results:
    """The merge, in fp32: with something else for the maximum, another exp or log, or with a step left out."""
    lse = lse.float()
    base = largest(lse)
    base = torch.where(base == -math.inf, 0.0, base) if guard else base
    weights = exp(lse - base[:, None]).double()
    total = weights.sum(dim=1)
    merged = (weights[:, :, None] * out).sum(dim=1)
    nothing = (total == 0) & guard
    if divide:
        merged = merged / torch.where(nothing, 1.0, total)[:, None]
    return merged, torch.where(nothing, -math.inf, log(total) + add_maximum * base)


def _largest_but(lse: Tensor, *, split: int) -> Tensor:
    """The largest LSE of each row, where this split is left out: −∞ if there is no other."""
    others = lse.clone()
    others[:, split] = -math.inf
    return others.amax(dim=1)


def _by_walk(out: Tensor, lse: Tensor, *, rescaled: str) -> Results:
    """The merge with a running maximum: the splits of a row are its keys. Each row is one split of `_walk`."""
    results = [_walk(lse[n : n + 1], out[n], rescaled=rescaled) for n in range(len(lse))]
    m, total, weighted = (torch.cat(x) for x in zip(*results, strict=True))
    return finish(m, total, weighted)


def _average(out: Tensor, lse: Tensor, *, of_empty: bool) -> Results:
    count = lse.shape[1] if of_empty else (lse > -math.inf).sum(dim=1, keepdim=True).clamp(min=1)
    return out.sum(dim=1) / count, merge(out, lse)[1]


def _largest_alone(out: Tensor, lse: Tensor) -> Results:
    return out[torch.arange(len(out)), lse.argmax(dim=1)], merge(out, lse)[1]


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


def _some_splits(out: Tensor, lse: Tensor, *, there: Callable[[Tensor], Tensor]) -> Results:
    """The merge of the splits for which `there` is true, by its argument: which splits are empty."""
    return merge(out, lse.masked_fill(~there(lse == -math.inf), -math.inf))


def _but_the_last(empty: Tensor) -> Tensor:
    return (torch.arange(empty.shape[1]) < empty.shape[1] - 1).expand_as(empty)


def _first(empty: Tensor, *, most: int) -> Tensor:
    return (torch.arange(empty.shape[1]) < most).expand_as(empty)


def _before_the_first_empty(empty: Tensor) -> Tensor:
    return empty.cumsum(dim=1) == 0


def _nan_rows(out: Tensor, lse: Tensor, *, where: Callable[[Tensor], Tensor], lse_too: bool) -> Results:
    merged, total = merge(out, lse)
    rows = where(lse == -math.inf)
    return merged.masked_fill(rows[:, None], math.nan), total.masked_fill(rows & lse_too, math.nan)


def _all(empty: Tensor) -> Tensor:
    return empty.all(dim=1)


def _leading(empty: Tensor) -> Tensor:
    return empty[:, 0]


def _of_row_0(out: Tensor, lse: Tensor, *, which: str) -> Results:
    return merge(out[:1].expand_as(out) if "O" in which else out, lse[:1].expand_as(lse) if "L" in which else lse)


def _splits_first(x: Tensor) -> Tensor:
    """[N, splits, ..] as it is read from memory that was written as [splits, N, ..]."""
    return x.transpose(0, 1).reshape(x.shape)


def _columns_first(out: Tensor, lse: Tensor) -> Results:
    """The merge that reads O_part[column * splits + s]."""
    return merge(out.flatten(1).view(len(out), out.shape[2], out.shape[1]).mT, lse)


def _half_warps(head_dim: int) -> Tensor:
    return torch.arange(head_dim) % 32 // 16


_PAST_L = (
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
_LSE_BASE_2 = (names.LSE_BASE_2, "LSE is a natural logarithm: logf, or log2f times log(2).", LSE_SECTION)
_NO_MAXIMUM = (
    names.NO_MAXIMUM,
    "exp(100) is infinite in fp32 and exp(-130) is 0. Subtract the largest first: the weights are the same.",
    ONE_TRAP,
)
_FROM_ZERO = (
    names.MAXIMUM_FROM_ZERO,
    "Where all are negative, the largest is negative, too. With 0 in its place every exp may be 0.",
    ONE_TRAP,
)
_OTHER_MAXIMUM = "exp(L_i - base) is infinite in fp32 where L_i is more than 88.7 above the base. Take the largest."
_EMPTY_ROW = (
    names.EMPTY_ROW_IS_NAN,
    "Where all LSE_part are −∞, O is 0 and LSE −∞. −∞ − (−∞) is NaN, and so is 0 / 0.",
    ONE_TRAP,
)
_RESCALED = (
    (names.L_NOT_RESCALED, "O", "The l of before takes the factor exp(m_old - m_new)."),
    (names.O_NOT_RESCALED, "l", "The O of before takes the factor exp(m_old - m_new)."),
    (names.NEITHER_RESCALED, "", "Both take the factor exp(m_old - m_new) before something is added."),
)
_ROW = "Row n = blockIdx.y (of the merge: blockIdx.x) is one sequence and head. It has its own place in each argument."

MISTAKES = (
    _mistake("the last split misses the rest of L",
             "L / splits rounds down: with 37 keys in 4 splits, key 36 belongs to no split. Round up.",
             SPEC, bounds=_cut(_floor)),
    *_mistakes(*_PAST_L, {"bounds": _past_end}, {"bounds": _past_end, "within": "L_max"}),
    _mistake("neighbouring splits share a key",
             "`end` is the first key that the split does not take. The last key of a split was counted twice.",
             SPEC, bounds=_cut(costs.ceil_div, more=1)),
    _mistake("the last key of each split is left out",
             "The loop runs while j < end: `end` itself is not a key of the split any more.",
             SPEC, bounds=_cut(costs.ceil_div, more=-1)),
    _mistake(names.LAST_KEY_LEFT_OUT, "The keys are 0 to lengths[n] - 1: lengths[n] of them.", SPEC,
             bounds=_without_last_key),
    _mistake("the last split takes the whole rest of L",
             "The result would be right, but the last block works longer than the others. Each split takes "
             "ceil(L / splits) keys.", SPEC, bounds=_rest_to_last),
    *_mistakes("the splits are cut at other keys than the spec says",
               "The splits cover all keys, but each of them is to take ceil(L / splits) keys.", SPEC,
               *({"bounds": way} for way in (_even, _cut(_one_more), _cut(_whole_warps)))),
    *_mistakes("the splits are cut from L_max, not from the row's length",
               "The cache has room for L_max keys; lengths[n] of them count. Each split takes ceil(L / splits). What "
               "follows is stale.", SPEC, {"of_room": True, "within": "L"}, {"of_room": True}),
    *_mistakes("every split attends to all the keys",
               "Each partial result is that of the whole row: the work was not split, it was repeated.",
               SPEC, {"bounds": lambda length, splits, s: (0, length)}),
    _mistake(names.SCALE_MISSING, "A score is scale · q · k.", SCALE_SECTION, scale=lambda scale, D: 1.0),
    _mistake(names.SCALE_TWICE, "A score is scale · q · k; Q has the factor already.", SCALE_SECTION,
             scale=lambda scale, D: scale**2),
    _mistake(names.SCALE_NOT_THE_ARGUMENT, "Whoever calls the kernel says what the scale is.", SCALE_SECTION,
             scale=lambda scale, D: D**-0.5),
    *_mistakes(names.HEAD_ZERO_READ, _ROW, SPEC, *({"of_row_0": which} for which in ("K V", "Q K V"))),
    *(_mistake(f"{names.HEAD_ZERO_READ} of {which}", _ROW, SPEC, of_row_0=which) for which in "KVQ"),
    *(_mistake(f"the rows of {which} are taken to be L keys apart, not L_max",
               "Each row's cache has room for L_max keys: row n starts at n · L_max · D, whatever its length.", SPEC,
               packed=which.replace(" and ", " ")) for which in ("K and V", "K", "V")),
    _mistake("every row has the length of row 0", "Row n has lengths[n] keys.", SPEC, of_row_0="lengths"),
    *_mistakes("the partial results are stored as [splits, N]",
               "O_part is [N, splits, D] and LSE_part [N, splits]: the splits of a row stand side by side.", SPEC,
               {"stored": lambda out, lse: (_splits_first(out), lse)},
               {"stored": lambda out, lse: (out, _splits_first(lse))},
               {"stored": lambda out, lse: (_splits_first(out), _splits_first(lse))}),
    *(_mistake(name, detail, TWO_NUMBERS, walk=partial(_walk, rescaled=rescaled))
      for name, rescaled, detail in _RESCALED),
    _mistake(*_NO_MAXIMUM, walk=partial(_walk, maximum=False)),
    _mistake(*_FROM_ZERO, walk=partial(_walk, start=0.0)),
    *_mistakes(names.MAXIMUM_FROM_FINITE,
               "Scores may be smaller than any number that you choose. Only −∞ is below all of them.", ONE_TRAP,
               *({"walk": partial(_walk, start=start)} for start in (-1e3, -1e4, -1e5, -1e9, -1e10))),
    _mistake(names.HALF_WARP, "A sum over 32 lanes takes steps of 16, 8, 4, 2 and 1.", SPEC, columns=_half_warps),
    _mistake(names.NOT_DIVIDED, "split_partial leaves the sum of p · V. Divide it by l: the merge weighs attention "
             "outputs, not sums.", MERGING, finish=_finish_with(out=lambda total, weighted: weighted)),
    _mistake("the partial O is normalised twice", "split_partial divides by l once; O is then an attention output.",
             MERGING, finish=_finish_with(out=lambda total, weighted: weighted / total**2)),
    _mistake(names.LSE_LACKS_M,
             "l is relative to the maximum m of this split. The log-sum-exp is m + log(l): log(l) alone cannot be "
             "compared with that of another split.", LSE_SECTION,
             finish=_finish_with(lse=lambda m, total: torch.log(total))),
    _mistake("the LSE of a split is only its maximum", "It is m + log(l): how many keys there are counts too.",
             LSE_SECTION, finish=_finish_with(lse=lambda m, total: m)),
    _mistake("the LSE of a split is l, without the logarithm", "It is m + log(l).", LSE_SECTION,
             finish=_finish_with(lse=lambda m, total: m + total)),
    *_mistakes("an empty split gives NaN",
               "A split without keys has l = 0, and 0 / 0 is NaN. It leaves O = 0 and LSE = −∞. The weight 0 "
               "does not help later: 0 · NaN is NaN.", ONE_TRAP,
               {"finish": _finish_with(empty=(math.nan, -math.inf))},
               {"finish": _finish_with(empty=(math.nan, math.nan))}),
    _mistake("the LSE of an empty split is not −∞",
             "With LSE = 0 an empty split gets a weight like a split with one key of score 0. exp(−∞) is 0.",
             LSE_SECTION, finish=_finish_with(empty=(0.0, 0.0))),
    *_mistakes(*_LSE_BASE_2,
               {"finish": _finish_with(lse=lambda m, total: m + torch.log2(total))},
               {"finish": _finish_with(lse=lambda m, total: (m + torch.log(total)) / math.log(2))}),
    *_mistakes(names.AVERAGED,
               "A split whose keys matter little must count little: its weight is exp(L_i - L).", MERGING,
               {"merge": partial(_average, of_empty=True)}, {"merge": partial(_average, of_empty=False)}),
    _mistake("only the split with the largest LSE counts",
             "The others matter less, but they matter: the weight of a split is exp(L_i - L).", MERGING,
             merge=_largest_alone),
    *_mistakes(*_EMPTY_ROW, {"merge": partial(_nan_rows, where=_all, lse_too=True)},
               {"merge": partial(_nan_rows, where=_all, lse_too=False)}),
    *_mistakes(*_NO_MAXIMUM, *({"merge": partial(_without_maximum, form=form)}
                               for form in ("divided", "guarded", "formula", "formula guarded"))),
    *_mistakes(*_FROM_ZERO, *({"merge": partial(_weigh, largest=lambda lse: lse.amax(dim=1).clamp(min=0), guard=guard)}
                              for guard in (True, False))),
    *_mistakes("the LSE of the first split stands in for the largest", _OTHER_MAXIMUM, ONE_TRAP,
               *({"merge": partial(_weigh, largest=lambda lse: lse[:, 0], guard=guard)} for guard in (True, False))),
    *_mistakes("the LSE of the last split stands in for the largest", _OTHER_MAXIMUM, ONE_TRAP,
               *({"merge": partial(_weigh, largest=lambda lse: lse[:, -1], guard=guard)} for guard in (True, False))),
    _mistake("the first split is left out of the maximum", _OTHER_MAXIMUM, ONE_TRAP,
             merge=partial(_weigh, largest=partial(_largest_but, split=0))),
    _mistake("the last split is left out of the maximum", _OTHER_MAXIMUM, ONE_TRAP,
             merge=partial(_weigh, largest=partial(_largest_but, split=-1))),
    _mistake("the weights are not divided by their sum",
             "exp(L_i - max) is 1 for the largest split; the weights must sum to 1.", MERGING,
             merge=partial(_weigh, divide=False)),
    *(_mistake(name, detail, TWO_NUMBERS, merge=partial(_by_walk, rescaled=rescaled))
      for name, rescaled, detail in _RESCALED),
    _mistake(names.MERGED_LSE_LACKS_MAXIMUM, "The sum was taken relative to the largest L_i: add it again.",
             LSE_SECTION, merge=partial(_weigh, add_maximum=False)),
    _mistake("the merged LSE is only the largest one", "L = log Σ exp(L_i): the other splits add to it.", LSE_SECTION,
             merge=partial(_replace_lse, by=lambda lse: lse.amax(dim=1))),
    _mistake("the LSEs are added", "Logarithms add when numbers are multiplied. Here sums of exp are added: "
             "L = log Σ exp(L_i).", LSE_SECTION, merge=partial(_replace_lse, by=lambda lse: lse.sum(dim=1))),
    *_mistakes(*_BASE_2, {"merge": partial(_weigh, exp=torch.exp2, log=torch.log2)},
               {"merge": partial(_weigh, exp=torch.exp2)}),
    _mistake(*_LSE_BASE_2, merge=partial(_weigh, log=torch.log2)),
    _mistake("the last split is left out of the merge", "There are `splits` partial results: s < splits.", MERGING,
             merge=partial(_some_splits, there=_but_the_last)),
    *_mistakes("the last of many splits are left out of the merge",
               "There may be any number of splits, also more than 1,024: no array limits them.", MERGING,
               *({"merge": partial(_some_splits, there=partial(_first, most=most))}
                 for most in (320, 384, 448, 512, 640, 768, 896, 1000, 1024))),
    _mistake("the merge ends at the first empty split", "A split with keys may come after it: weigh all of them.",
             MERGING, merge=partial(_some_splits, there=_before_the_first_empty)),
    _mistake("an empty split before the others gives NaN in the merge",
             "As long as no split had a key, the running maximum is −∞, and −∞ − (−∞) is NaN.",
             ONE_TRAP, merge=partial(_nan_rows, where=_leading, lse_too=True)),
    _mistake(names.HEAD_ZERO_READ, _ROW, SPEC, merge=partial(_of_row_0, which="O L")),
    *(_mistake(f"{names.HEAD_ZERO_READ} of {name}", _ROW, SPEC, merge=partial(_of_row_0, which=which))
      for which, name in (("O", "O_part"), ("L", "LSE_part"))),
    _mistake("O_part is read as [D, splits]", "Column c of split s is O_part[s * D + c].", SPEC, merge=_columns_first),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- the exercise

SMS, KV_HEADS, LENGTH, HEAD_DIM = 132, 8, 32768, 128  # an H100 or H200; a cache of 32 K tokens in fp16
_SPLITS = costs.ceil_div(SMS, KV_HEADS)
_INTENSITY = costs.attention_flops(1, 1, 1, LENGTH, HEAD_DIM) / costs.least_bytes(1, 1, 1, LENGTH, HEAD_DIM, 2)


def _extra(splits: int) -> float:
    """Bytes of O and LSE of the splits in fp32, written once and read once, in percent of K and V."""
    return 100 * 2 * splits * (HEAD_DIM + 1) * 4 / costs.kv_cache_bytes(LENGTH, 1, HEAD_DIM)


_EXTRA = _extra(_SPLITS)

EXERCISE = Exercise(
    id="03_flash_attention_v2/split_kv",
    title="Split-KV, and the merge",
    difficulty=3,
    importance=3,
    parts=(
        Part("splits", 2, "Each split attends to its own keys, all of them and no other"),
        Part("split_lse", 1, "The log-sum-exp of each split"),
        Part("empty_splits", 1, "Splits without keys"),
        Part("merge", 2, "The merge weighs the partial results"),
        Part("merge_lse", 1, "The log-sum-exp of each row"),
        Part("peaks", 2, "Log-sum-exps that are large, or far apart"),
        Part("empty_rows", 1, "Empty splits in the merge, and rows without keys"),
        Part("decode", 2, "Both kernels together, ragged lengths"),
    ),
    kernels=("split_partial", "split_merge"),
    cases=cases,
    mistakes=MISTAKES,
    experiments=experiments,
    questions=(
        Question(
            "fewest_splits", 1, "Fewest splits that give each of 132 SMs a block, for 8 heads", _SPLITS, "", 0.001,
            misconceptions=(
                (SMS, "8 heads already bring 8 blocks: splits · heads must reach 132, not splits alone"),
                (SMS // KV_HEADS, "16 splits make 128 blocks: four SMs stay idle. Round up"),
                (SMS / KV_HEADS, "a split is a whole block: round up"),
                (SMS * KV_HEADS, "8 heads already bring 8 blocks: divide by them, do not multiply"),
            ),
            read_again="03 FlashAttention-2, section 1, 'Why: most of the GPU is idle'",
        ),
        Question(
            "intensity", 1, "FLOPs per byte of decoding one query, fp16", _INTENSITY, "FLOP/byte", 0.01,
            misconceptions=(
                (0.5, "a multiply-add counts as two FLOPs: 4 · L · d in all"),
                (2.0, "both K and V are read: 2 · L · d numbers of two bytes"),
                (LENGTH, "this would be so if a key served all queries; here there is one query"),
                (LENGTH / 2, "this would be so if a key served all queries; here there is one query"),
            ),
            read_again="00 Memory and tools, section 5, 'Two floors and a roof'",
        ),
        Question(
            "extra", 1, "Bytes of the partial results, in percent of K and V (to two digits)", _EXTRA, "%", 0.02,
            misconceptions=(
                (0.1, "nearly: give two digits"),
                (_EXTRA / 2, "the partial results are written and read: count them twice"),
                (_EXTRA * 2, "K and V are both read: 2 · L · d numbers"),
                (_extra(SMS // KV_HEADS), "one split too few: 16 splits leave four SMs idle"),
                (_extra(SMS), "as many splits as SMs are too many: 8 heads bring blocks, too"),
                (_EXTRA * KV_HEADS, "the partial results of 8 heads, but K and V of one"),
                (_EXTRA / 100, "this is the ratio; the question asks for percent"),
                (_EXTRA / 2 / 100, "this is the ratio, and without reading the partial results again"),
            ),
            read_again="03 FlashAttention-2, section 6, 'Roofline and HBM'",
        ),
    ),
    cells=("answers",),
)  # fmt: skip
