"""Grading of "03_flash_attention_v2/split_kv": the splits of a long K and V, and the merge of their partial results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading.diagnosis import wrong_values
from course_utils.grading.draws import FAR, LOWEST, between, low_lse
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Outcome,
    Output,
    Part,
    Question,
    judging,
)
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import one_hot_values, places, wrong_weights

HEAD_DIMS = (64, 128), (32, 96)  # one of each pair is drawn
STALE = 40.0  # V behind the end of a sequence: one stale key is seen at once
Results = tuple[Tensor, Tensor]  # O and LSE, of splits or of rows

SPEC = "this exercise, 'What to write'"


# ---------------------------------------------------------------------------------------------- what is right


def bounds(length: int, splits: int, s: int) -> tuple[int, int]:
    """First and end key of split s: ceil(L / splits) keys each, until there are none."""
    chunk = costs.ceil_div(length, splits)
    return min(length, s * chunk), min(length, (s + 1) * chunk)


def merge(out: Tensor, lse: Tensor) -> Results:
    """O [N, D] and LSE [N] of all splits together."""
    weights = torch.softmax(lse, dim=1).nan_to_num(nan=0.0)
    return (weights[:, :, None] * out).sum(dim=1), torch.logsumexp(lse, dim=1)


def partial_results(
    inputs: Mapping[str, Tensor], splits: int, scale: float, dtype: torch.dtype = torch.float64
) -> Results:
    """O [N, splits, D] and LSE [N, splits], float64; O = 0 and LSE = −∞ without a key."""
    query, keys, values = (inputs[name].to(dtype) for name in "QKV")
    rows = []
    for n, length in enumerate(inputs["lengths"].tolist()):
        split_of_key = torch.arange(length) // max(1, costs.ceil_div(length, splits))
        scores = (scale * (keys[n, :length] @ query[n])).expand(splits, -1)
        scores = scores.masked_fill(torch.arange(splits)[:, None] != split_of_key, -math.inf)
        weights = torch.softmax(scores, dim=1).nan_to_num(nan=0.0)
        rows.append(((weights @ values[n, :length]).double(), torch.logsumexp(scores, dim=1).double()))
    out, lse = map(torch.stack, zip(*rows, strict=True))
    return out, lse


def _plain_runs(inputs: Mapping[str, Tensor], splits: int, scale: float) -> list[Results]:
    """The same in fp32, with the scale applied to the scores, or to Q."""
    scaled = {**inputs, "Q": inputs["Q"] * scale}
    return [
        partial_results(inputs, splits, scale, torch.float32),
        partial_results(scaled, splits, 1.0, torch.float32),
    ]


# ---------------------------------------------------------------------------------------------- the cases


def _filling(generator: torch.Generator, low: int, high: int, splits: int) -> int:
    """A number of keys from low on, or a few more than high, that leaves no split without a key."""
    first = between(generator, low, high)
    return next(n for n in range(first, first + splits) if bounds(n, splits, splits - 1)[0] < n)


def _odd_at_the_end(generator: torch.Generator, low: int, high: int, splits: int) -> int:
    """A number of keys from low to high, or a few more, that gives the last split an odd number of keys: a kernel that
    takes two keys in a step goes past the end."""
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
        must_be_clean=True,
        explain=_not_written,
    )


def _of_empty(part: str, case: Case) -> Case:
    """The case for a part that looks at O, and at where LSE is −∞: what it is elsewhere is another part's."""
    return replace(case, part=part, compare=_where_empty)


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
    low = _merge_case("log-sum-exps of -20,000 and less", normal(4, 6, other), low_lse(generator, 6))
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
    splits = case.inputs["LSE_part"].shape[1]
    got, expected = (x.flatten()[None, :splits] for x in (outputs["O"], case.outputs["O"].expected))
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
    mistakes=read_mistakes("03_flash_attention_v2/split_kv"),
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
