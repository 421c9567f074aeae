"""How exercise 04.1, custom sparse mask, is graded: recall of a design within a budget, then a kernel that walks lists.

The design is judged on maps of texts that nobody has seen. The kernel has lists of its own, besides the design's: a bad
design costs only the design's points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.checks import AttentionCase, make_inputs
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
from course_utils.grading.wrong_values import PRESENT, one_hot_values, weights_in, wrong_weights
from course_utils.patterns import local
from course_utils.studies.maps import HEADS, attention_maps, density, kept_mass, mask_of

BUDGET = 0.25  # of the causal pairs
LENGTHS = (256, 320)
SHOWN_SEED = 0  # of the maps in the notebook
STEPS = {"recall_70": 0.70, "recall_80": 0.80, "recall_87": 0.87}
OVERFITTED = 0.02  # recall lost from the shown maps to fresh ones
NARROW, USUAL, WIDE = (64, 4), (96, 2), (128, 2)  # D and WARPS; with 128 columns a plain kernel takes long
ROW_DIM = 64  # of the question about bytes
KERNEL_LENGTH = 96
MOST_LOADED = 2  # times what is loaded where next to no key is left out

_RECALL = "04 Sparse patterns, section 10, 'Reach is not recall'"
_WHICH = "04 Sparse patterns, section 10, 'Which pattern for what'"
_OBJECT = "04 Sparse patterns, section 2, 'One object, many pictures'"
_EDGES = "04 Sparse patterns, section 2, 'Edges'"
_ROWS = "04 Sparse patterns, section 6, 'Rows of keys'"
_WHY = "04 Sparse patterns, section 1, 'Why: a mask saves nothing'"
_ANOTHER_LIST = "a query walks the list of another query"
_NEAR = "few keys"

PARTS = (
    *(Part(name, 2, f"Design: recall of at least {least:.2f} within the budget") for name, least in STEPS.items()),
    Part("values", 2, "Kernel: O over the kept pairs, any scale, several heads"),
    Part("large", 1, "Kernel: O with scores far from 0"),
    Part("lse", 1, "Kernel: LSE, rows without keys too"),
    Part("lengths", 1, "Kernel: any length, rows without keys, rows of many"),
    Part("skips", 2, "Kernel: a pair that is not kept costs nothing"),
)


# ---------------------------------------------------------------------------------------------- the design


def collect(cells: Mapping[str, object]) -> dict[str, Tensor]:
    """The masks of the student's `pattern`, for the lengths judged and the kernel's; empty if it is None."""
    if cells.get("pattern") is None:
        return {}
    return {f"mask_{length}": mask_of(cells["pattern"], length) for length in (*LENGTHS, KERNEL_LENGTH)}


def judge(python: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Diagnosis | None]:
    """Recall over fresh maps of two texts and two lengths, if the design keeps the rules."""
    if not python:
        words = "assign a Pattern or a mask_mod to `pattern`, in the notebook"
        return dict.fromkeys(STEPS, Diagnosis("there is no design yet", words, _OBJECT))
    if other := next((mask.dtype for mask in python.values() if mask.dtype != torch.bool), None):
        words = f"the mask is of {other}: compare with <, ==, and combine with & and |"
        return dict.fromkeys(STEPS, Diagnosis("the design's mask is not of bools", words, _OBJECT))
    masks = {length: _mask(python, length) for length in (*LENGTHS, KERNEL_LENGTH)}
    if any(mask is None for mask in masks.values()):
        words = "for each length L, `pattern` must give a bool tensor of shape [L, L]"
        return dict.fromkeys(STEPS, Diagnosis("the design gives no mask of the right shape", words, _OBJECT))
    del masks[KERNEL_LENGTH]
    broken = next((found for mask in masks.values() if (found := _broken_rule(mask))), None)
    if broken:
        return dict.fromkeys(STEPS, broken)
    seeds = torch.randint(1, 2**31, (2,), generator=generator).tolist()
    reached = {length: mask_of(_reference, length) for length in LENGTHS}
    fresh, shown, within_reach = (
        torch.stack([_recall(mask, seeds_of) for mask in of_lengths.values()])
        for of_lengths, seeds_of in ((masks, seeds), (masks, [SHOWN_SEED]), (reached, seeds))
    )  # [lengths, heads]
    recall = fresh.mean().item()
    low = _too_low(fresh, shown, within_reach)
    return {name: None if recall >= least else low for name, least in STEPS.items()}


def _mask(python: Mapping[str, Tensor], length: int) -> Tensor | None:
    """The design's mask for a length; None where the child sent none, or something else."""
    mask = python.get(f"mask_{length}")
    return mask if mask is not None and mask.dtype == torch.bool and mask.shape == (length, length) else None


def _reference(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The design of the solution: what is within reach of each head under the budget."""
    distance = i - j
    near, columns = distance < 14, (j < 4) | (j % 32 == 0)
    return (near | columns | (distance % 16 == 0) | ((distance - 96).abs() <= 3)) & (j <= i)


def _recall(mask: Tensor, seeds: list[int]) -> Tensor:
    """The share of attention that the mask keeps in each head, as the mean over the texts."""
    return torch.stack([kept_mass(attention_maps(len(mask), seed), mask) for seed in seeds]).mean(dim=0)


def _broken_rule(mask: Tensor) -> Diagnosis | None:
    """Why a design is not graded at all."""
    length = len(mask)
    ahead = mask & ~torch.ones_like(mask).tril()
    if ahead.any():
        i, j = ahead.nonzero()[0].tolist()
        detail = f"L = {length}: query {i} sees key {j}, {int(ahead.sum()):,} such pairs; add `& (j <= i)`"
        return Diagnosis("the pattern looks ahead", detail, _EDGES)
    empty = ~mask.any(dim=1)
    if empty.any():
        detail = f"L = {length}: {int(empty.sum())} of {length} rows, the first is query {int(empty.nonzero()[0])}"
        return Diagnosis("a row of the pattern has no key", f"{detail}; keep at least the diagonal", _EDGES)
    kept = density(mask)
    if kept > BUDGET:
        detail = f"L = {length}: the pattern keeps {kept:.1%} of the causal pairs; the budget is {BUDGET:.0%}"
        return Diagnosis("the pattern keeps more pairs than the budget allows", detail, _OBJECT)
    return None


def _too_low(fresh: Tensor, shown: Tensor, within_reach: Tensor) -> Diagnosis:
    """fresh, shown: recall over new maps and over those of the notebook; within_reach: of the reference design over
    the new ones; `[lengths, heads]`.
    """
    of_heads = fresh.mean(dim=0)
    each = ", ".join(f"{head} {value:.2f}" for head, value in zip(HEADS, of_heads.tolist(), strict=True))
    detail = f"recall {fresh.mean():.3f} on new texts ({each}); {shown.mean():.3f} on the maps of the notebook"
    if (shown - fresh).mean(dim=1).max() > OVERFITTED:
        return Diagnosis("the pattern fits the maps shown, and not those of other texts", detail, _RECALL)
    missed = HEADS[int((within_reach.mean(dim=0) - of_heads).argmax())]
    return Diagnosis(f"the pattern loses most at the head '{missed}'", detail, _WHICH)


# ---------------------------------------------------------------------------------------------- the kernel's cases


@dataclass(frozen=True)
class _Draws:
    """What cases are drawn with: the generator, and what the kernel is compiled for."""

    generator: torch.Generator
    head_dim: int
    warps: int


def _case(
    part: str,
    name: str,
    mask: Tensor,
    tensors: tuple[Tensor, Tensor, Tensor],
    draws: _Draws,
    *,
    scale: float | None = None,
    listed: Tensor | None = None,
    judged: str = "O",
    **options: object,
) -> Case:
    """One launch over the pairs of mask `[L_q, L_k]`.

    tensors: Q, K and V. scale: None is 1/√D. listed: the keys of each row in their order, −1 behind the last; None
    draws an order. judged: the output that counts, "O" or "LSE".
    """
    Q, K, V = tensors
    batch, heads, L_q, _ = Q.shape
    L_k, warps = K.shape[2], draws.warps
    scale = draws.head_dim**-0.5 if scale is None else scale
    out, LSE = reference.attention(Q, K, V, attn_mask=mask, scale=scale, return_lse=True)
    listed = _any_order(mask, draws.generator) if listed is None else listed
    inputs = {
        "Q": Q,
        "K": K,
        "V": V,
        "indptr": torch.nn.functional.pad(mask.sum(dim=1).cumsum(dim=0), (1, 0)).int(),
        "indices": (listed[listed >= 0] if mask.any() else torch.zeros(1)).int(),
    }
    arguments = (*inputs, "O", "LSE", np.int32(L_q), np.int32(L_k), np.float32(scale))
    launch = Launch(
        "csr_attention",
        (costs.ceil_div(L_q, warps), batch * heads),
        (32 * warps,),
        arguments,
        (f"-DD={draws.head_dim}", f"-DWARPS={warps}"),
    )
    axes = ("sequence", "head", "query", "column")
    outputs = {
        "O": Output(out, same_dtype=_in_float32(Q, K, V, mask, scale), axes=axes)
        if judged == "O"
        else Output(out, kind="scratch"),
        "LSE": Output(LSE, kind="values" if judged == "LSE" else "scratch", axes=axes[:3]),
    }
    facts = {"listed": listed, "scale": scale, "mask": mask, "warps": warps}
    return Case(
        part, f"{name}, D = {draws.head_dim}, L_q = {L_q}, L_k = {L_k}", (launch,), inputs, outputs, facts, **options
    )


def _any_order(mask: Tensor, generator: torch.Generator) -> Tensor:
    """The keys of each row of a mask in any order, −1 behind the last: `[L_q, L_k]`."""
    order = torch.rand(mask.shape, generator=generator).masked_fill(~mask, 2.0).argsort(dim=1)
    return order.masked_fill(torch.arange(mask.shape[1]) >= mask.sum(dim=1, keepdim=True), -1)


def _in_float32(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor, scale: float) -> list[Tensor]:
    """Plain torch in fp32, in orders of the head dimension, since one alone may be exact by luck; and with powers of 2,
    whose scores are rounded where those of powers of e may be exact."""
    with reference.full_float32():
        runs = []
        for n in range(3):
            order = torch.randperm(Q.shape[-1], generator=torch.Generator().manual_seed(n))
            out = reference.torch_attention(Q[..., order], K[..., order], V[..., order], attn_mask=mask, scale=scale)
            runs.append(out[..., order.argsort()])
        S = (Q * (scale * math.log2(math.e)) @ K.mT).masked_fill(~mask, -torch.inf)
        weights = torch.exp2(S - S.amax(dim=-1, keepdim=True)).nan_to_num(nan=0.0)
        runs.append(weights @ V / weights.sum(dim=-1, keepdim=True).clamp(min=1.0))
    return runs


def _tensors(
    mask: Tensor, draws: _Draws, kind: str = "normal", *, batch: int = 1, heads: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of a kind of `course_utils.checks`."""
    shape = AttentionCase(batch, heads, heads, *mask.shape, draws.head_dim, False, kind)
    return make_inputs(shape, seed=between(draws.generator, 0, 2**31 - 1))[:3]


def _alike(tensors: tuple[Tensor, Tensor, Tensor], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """`heads` equal heads: a kernel that reads the wrong one loses no points here."""
    Q, K, V = (x.expand(-1, heads, -1, -1).contiguous() for x in tensors)
    return Q, K, V


def _random_mask(L_q: int, L_k: int, share: float, generator: torch.Generator) -> Tensor:
    return torch.rand(L_q, L_k, generator=generator) < share


def _mask_of_counts(counts: Sequence[int], L_k: int, generator: torch.Generator) -> Tensor:
    """Rows with as many keys as `counts` says, drawn."""
    rank = torch.rand(len(counts), L_k, generator=generator).argsort(dim=1).argsort(dim=1)
    return rank < torch.tensor(counts)[:, None]


def _shuffled(values: Sequence[int], generator: torch.Generator) -> list[int]:
    return [values[i] for i in torch.randperm(len(values), generator=generator).tolist()]


def _read_off(part: str, name: str, mask: Tensor, draws: _Draws, *, scale: float, spread: float) -> Case:
    """V as one-hot columns: O says which weight each key has. All heads have the same Q and K.

    spread: of the scores, so small that no kept key's weight is lost.
    """
    L_q, L_k = mask.shape
    V = one_hot_values(L_k, draws.head_dim)
    Q, K, _ = _tensors(mask, draws)
    Q = Q * (spread / scale / draws.head_dim**0.5)
    Q, K = (x.expand(1, V.shape[1], -1, -1).contiguous() for x in (Q, K))
    return _case(part, name, mask, (Q, K, V), draws, scale=scale, explain=_weights_seen)


def _weights_seen(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What is wrong with the weights of the keys, or of the entries of the lists, where V is one-hot columns."""
    mask, listed = case.facts["mask"], case.facts["listed"]
    both = outputs["O"], case.outputs["O"].expected
    got, expected = (weights_in(output.double(), mask.shape[1]) for output in both)
    if not torch.isfinite(got).all():
        return None
    if another := _list_of_another(got.abs() > PRESENT, mask):
        return another
    if (got.abs() > PRESENT)[~mask].any():
        return wrong_weights(got, expected)
    listed = listed[:, : int(mask.sum(dim=1).max())]
    got, expected = (weights.gather(1, listed.clamp(min=0)).masked_fill(listed < 0, 0.0) for weights in (got, expected))
    found = wrong_weights(got, expected, ("query", "entry"))
    return found and replace(found, detail=f"entries of a query's list, from 0: {found.detail}", read_again=_ROWS)


def _list_of_another(has_weight: Tensor, mask: Tensor) -> Diagnosis | None:
    """Where each query that is wrong has just the keys of another one: `[L_q, L_k]`, bool, both."""
    walked = {}
    for i in (has_weight != mask).any(dim=1).nonzero().flatten().tolist():
        others = (has_weight[i] == mask).all(dim=1).nonzero().flatten().tolist()
        if not others or not has_weight[i].any():
            return None
        walked[i] = others[0]
    if not walked:
        return None
    detail = ", ".join(f"query {i} that of query {other}" for i, other in list(walked.items())[:4])
    return Diagnosis(_ANOTHER_LIST, f"{detail}{', …' if len(walked) > 4 else ''}", _ROWS)


def _planted(draws: _Draws) -> Case:
    """Scores that are exact in fp32, whatever the order of the sum: each row has a column of its own in Q and K.

    What no list keeps has a score of 30 more than the largest.
    """
    generator, head_dim = draws.generator, draws.head_dim

    def near(middle: float, count: int) -> Tensor:
        return middle + torch.randint(0, 21, (count,), generator=generator) / 4

    def count() -> int:
        return between(generator, 20, 45)

    steps = torch.arange(-30.0, 91.0, 5.0)
    lists = (
        near(-20_000.0, count()).sort().values,  # the largest is the last
        torch.full((count(),), -1e20),
        torch.cat([torch.full((count(),), -1e20), near(0.0, 1)]),
        steps + near(0.0, len(steps)).sort().values,
        steps.flip(0),
        near(120.0, count()),
        near(-120.0, count()),
        near(0.0, count()).sort().values,
    )
    rows = _shuffled(range(len(lists)), generator)
    lists = [lists[row] for row in rows]
    L_k = between(generator, 50, 90)
    mask = torch.zeros(len(lists), L_k, dtype=torch.bool)
    listed = torch.full((len(lists), L_k), -1)
    heads = 2
    Q, K = torch.zeros(1, heads, len(lists), head_dim), torch.zeros(1, heads, L_k, head_dim)
    columns = torch.randperm(head_dim, generator=generator)
    for i, scores in enumerate(lists):
        keys = torch.randperm(L_k, generator=generator)[: len(scores)]
        listed[i, : len(scores)], mask[i, keys] = keys, True
        Q[0, :, i, columns[i]] = 16  # 1 / scale, which is 1 / √D for no D
        K[0, :, :, columns[i]] = scores.max() + 30
        for head in range(heads):
            K[0, head, keys, columns[i]] = scores - head  # all by as much: only the order of a softmax is in it
    V = torch.randn(1, heads, L_k, head_dim, generator=generator)
    tensors = Q, K, V
    return _case("large", "scores from −1e20 to 125", mask, tensors, draws, scale=1 / 16, listed=listed)


def _long(part: str, draws: _Draws) -> Case:
    """Rows of many keys, beside short ones; one of whole tiles, whatever their usual size."""
    counts = [between(draws.generator, *range_) for range_ in ((3080, 3150), (256, 256), (33, 60), (2, 31), (0, 0))]
    length = max(counts) + between(draws.generator, 1, 60)
    mask = _mask_of_counts(_shuffled(counts, draws.generator), length, draws.generator)
    return _case(part, "rows of up to 3,150 keys", mask, _tensors(mask, draws), draws, must_be_clean=True)


def _skips(draws: _Draws) -> list[Case]:
    """Lists of the same lengths over few keys and over many: what is loaded must not grow with the keys left out."""
    generator = draws.generator
    L_q, blocks = 4 * between(generator, 2, 3), between(generator, 65, 72)
    counts = [between(generator, 15, 30) for _ in range(L_q)]
    near = _mask_of_counts(counts, max(counts) + between(generator, 0, 2), generator)
    far = torch.zeros(L_q, 64 * blocks, dtype=torch.bool)  # each key in another block of 64
    at = 64 * torch.arange(blocks) + torch.randint(64, (L_q, blocks), generator=generator)
    far.scatter_(1, at, _mask_of_counts(counts, blocks, generator))
    loaded: dict[str, int] = {}
    return [
        _case(
            "skips",
            name,
            mask,
            _tensors(mask, draws),
            draws,
            must_be_clean=True,
            review=partial(_review, loaded=loaded),
        )
        for name, mask in ((_NEAR, near), ("the same number of many keys", far))
    ]


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Lists of the student's own design, where it keeps the rules, and lists that nobody would design."""
    draws, other, wide = (_Draws(generator, *block) for block in (USUAL, NARROW, WIDE))
    own, origin = _mask(python, KERNEL_LENGTH), "your pattern"
    if own is None or not own.any() or density(own) > 0.6:
        own, origin = _random_mask(KERNEL_LENGTH, KERNEL_LENGTH, 0.2, generator).tril(), "random causal pairs"
    own = own[4 * between(generator, 9, 14) :]  # whole blocks: what is ragged is for the part "lengths"
    # Neither 1/√d nor near it.
    other_scale = draws.head_dim**-0.5 * (0.4 + 0.2 * float(torch.rand(1, generator=generator)))
    counts = [between(generator, 1, 20) for _ in range(4 * between(generator, 5, 9))]
    random = _mask_of_counts(counts, between(generator, 40, 70), generator)
    counts = [between(generator, 1, 20) for _ in range(4 * between(generator, 4, 6) + 2)]
    counts += [between(generator, 65, 90), 64]  # tiles of most sizes: one is cut off, or none
    dense = _mask_of_counts(_shuffled(counts, generator), between(generator, 90, 128), generator)
    large = _random_mask(4 * between(generator, 5, 7), between(generator, 50, 70), 0.3, generator)
    large[-1] = True  # the row that has the score of 100
    ragged, whole = (
        _random_mask(4 * between(generator, 6, 10) + rest, between(generator, 50, 70), 0.2, generator)
        for rest in (2 * between(generator, 0, 1) + 1, 0)
    )
    for mask in (ragged, whole):
        mask[[0, between(generator, 1, 10), between(generator, 11, 20), -1]] = False
    one, none = torch.ones(1, 1, dtype=torch.bool), torch.zeros(3, between(generator, 4, 9), dtype=torch.bool)
    counts = [between(generator, 0, 3) for _ in range(between(generator, 130, 150))]
    many = _mask_of_counts(counts, between(generator, 4, 9), generator)
    return [
        _case("values", f"{origin}, V + 100", own, _tensors(own, draws, "offset on V", heads=2), draws),
        _read_off("values", "one-hot V", dense, draws, scale=other_scale, spread=0.3),
        _case("values", "random pairs", random, _tensors(random, draws, batch=2, heads=3), draws, scale=other_scale),
        _case("large", "scores up to 100", large, _tensors(large, draws, "overflowing exp", heads=2), draws),
        _planted(draws),
        _case("lse", "random pairs", whole, _tensors(whole, other, heads=2), other, judged="LSE"),
        _case("lse", "scores up to 100", large, _tensors(large, other, "overflowing exp"), other, judged="LSE"),
        _case("lengths", "one pair", one, _tensors(one, other), other, must_be_clean=True),
        _case("lengths", "few pairs", many, _alike(_tensors(many, wide), 9), wide, must_be_clean=True),
        _case("lengths", "no pair", none, _tensors(none, other), other, must_be_clean=True),
        _long("lengths", draws),
        _case("lengths", "rows without keys", ragged, _tensors(ragged, other), other, must_be_clean=True),
        *_skips(draws),
    ]


def experiments(generator: torch.Generator) -> list[Case]:
    """Long rows whose weights are read off; a long row alone would name a kernel by nothing but its length."""
    draws = _Draws(generator, *USUAL)
    counts = [between(generator, *range_) for range_ in ((450, 600), (256, 256), (129, 400), (33, 128), (1, 31))]
    mask = _mask_of_counts(_shuffled(counts, generator), max(counts) + between(generator, 1, 40), generator)
    return [_read_off("values", "one-hot V", mask, draws, scale=draws.head_dim**-0.5, spread=0.1)]


def _review(case: Case, outcome: Outcome, *, loaded: dict[str, int]) -> Diagnosis | None:
    """The loads may not grow with the keys that are left out. loaded: of the case that leaves out next to none."""
    if case.name.startswith(_NEAR):
        loaded[_NEAR] = outcome.loaded_bytes
        return None
    heads, L_q, L_k, head_dim = *case.inputs["Q"].shape[1:3], *case.inputs["K"].shape[2:]
    kept, everything = (2 * heads * pairs * head_dim * 4 for pairs in (len(case.inputs["indices"]), L_q * L_k))
    if outcome.loaded_bytes <= MOST_LOADED * loaded.get(_NEAR, kept):
        return None
    reads = [row for row in outcome.counters if row.space == "global" and row.operation != "store"]
    most = max(reads, key=lambda row: row.bytes)
    detail = (
        f"{case.name}: the kernel asks for {outcome.loaded_bytes / 1e6:.3f} MB, most of it in line {most.line}; with "
        f"as many pairs over few keys it asks for {loaded.get(_NEAR, kept) / 1e6:.3f} MB. K and V of the kept pairs "
        f"are {kept / 1e6:.3f} MB, of all pairs {everything / 1e6:.3f} MB"
    )
    return Diagnosis("masking saves nothing: skipped pairs are still loaded", detail, _WHY)


# ---------------------------------------------------------------------------------------------- questions


_LENGTH, _ROW_BYTES = 4096, 2 * 4 * ROW_DIM  # of K and V together, for one key
_PAIRS = costs.attended_pairs(_LENGTH, _LENGTH, is_causal=True)
_REQUESTED = BUDGET * _PAIRS * _ROW_BYTES / 1e6
_TILED = sum(1 for _ in costs.visited_tiles(_LENGTH, _LENGTH, 64, 64, True)) * 64 * _ROW_BYTES / 1e6

QUESTIONS = (
    Question(
        "window_skips",
        1,
        "percent of pairs that a window of ±4096 skips at 131,072 tokens",
        100 * (1 - local(4096).density(131072)),
        unit="%",
        tolerance=0.003,
        misconceptions=(
            (99.0, "'99 % sparse' is often said of this window, and it is wrong: 8193 of 131,072 keys are kept"),
            (100 * (1 - 4096 / 131072), "the window reaches 4096 to both sides"),
            (100 * local(4096).density(131072), "that is what the window keeps, not what it skips"),
        ),
        read_again=_OBJECT,
    ),
    Question(
        "requested_mb",
        1,
        "K and V that the kernel asks for, per head: L = 4096, D = 64, 25 % of the causal pairs",
        _REQUESTED,
        unit="MB",
        misconceptions=(
            (
                2 * _LENGTH * 4 * ROW_DIM / 1e6,
                "that is K and V once; the kernel asks for both rows at every kept pair",
            ),
            (BUDGET * _LENGTH**2 * _ROW_BYTES / 1e6, "the budget is a share of the causal pairs, not of all L²"),
            (_PAIRS * _ROW_BYTES / 1e6, "only a quarter of the causal pairs is kept"),
            (_REQUESTED / 2, "K is read for the score and V for the sum: both, at every pair; fp32 has 4 bytes"),
        ),
        read_again=_ROWS,
    ),
    Question(
        "against_tiles",
        1,
        "your kernel's bytes over those of a dense causal kernel with tiles of 64 queries",
        _REQUESTED / _TILED,
        tolerance=0.03,
        misconceptions=(
            (
                BUDGET,
                "a quarter of the pairs is not a quarter of the bytes: 64 queries share a row in a tile, none here",
            ),
            (_TILED / _REQUESTED, "upside down: the list asks for more bytes, not fewer"),
            (64.0, "only a quarter of the pairs is kept"),
            (4.0, "upside down, and 64 queries share a row in a tile"),
            (1.0, "64 queries share a row in a tile; here every pair asks for its own"),
        ),
        read_again="04 Sparse patterns, section 9, 'When it pays'",
    ),
)

EXERCISE = Exercise(
    id="04_sparse_patterns/custom_mask",
    title="Custom sparse mask",
    difficulty=4,
    importance=3,
    parts=PARTS,
    kernels=("csr_attention",),
    cases=cases,
    experiments=experiments,
    mistakes=read_mistakes("04_sparse_patterns/custom_mask"),
    questions=QUESTIONS,
    cells=("answers", "pattern"),
    collect=collect,
    judge=judge,
)
