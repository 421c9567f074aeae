"""How exercise 04.1, custom sparse mask, is graded: recall of a design within a budget, then a kernel that walks lists.

The design is judged on maps of texts that nobody has seen. The kernel has lists of its own, besides the design's: a bad
design costs only the design's points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.checks import AttentionCase, make_inputs
from course_utils.grading import names
from course_utils.grading.draws import between
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
from course_utils.grading.seen import PRESENT, one_hot_values, weights_in, wrong_weights
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
_ONLINE = "02 FlashAttention, minimal, section 2, 'Two numbers'"
_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
_NOT_IN_LIST = "the softmax runs over keys that the row does not keep"
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
    """Of each head, the mean over the texts."""
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
    """So many heads that are the same: whoever reads another one loses nothing by it."""
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


# ---------------------------------------------------------------------------------------------- known mistakes


Columns = Callable[[int], Tensor]  # D -> an order of the columns


def _neighbours(head_dim: int) -> Tensor:
    """lane + 32 c for C · lane + c, where each lane has C columns."""
    return torch.arange(head_dim).unflatten(0, (32, -1)).T.flatten()


def _apart(head_dim: int) -> Tensor:
    """The other way round."""
    return _neighbours(head_dim).argsort()


def _in_order(head_dim: int) -> Tensor:
    return torch.arange(head_dim)


def _rolled(head_dim: int) -> Tensor:
    return torch.arange(head_dim).roll(head_dim // 2)


def _scores(
    case: Case,
    *,
    factor: Callable[[float], float] = lambda scale: scale,
    first_head: str = "",
    columns: slice | Columns = slice(None),
    columns_of_K: slice | Columns | None = None,
    root: bool = False,
    exchanged: str = "QKV",
) -> tuple[Tensor, Tensor]:
    """Scores of all pairs `[B, H, L_q, L_k]`, and V. first_head: which of Q, K and V are those of the first head.

    columns: of Q that are multiplied, with the same of K or with `columns_of_K`. root: 1/√D stands in for the scale.
    exchanged: the inputs that are read as Q, K and V.
    """
    Q, K, V = (
        x[:1, :1].expand_as(x) if name in first_head else x
        for name, x in ((name, case.inputs[name].double()) for name in exchanged)
    )
    D = Q.shape[-1]
    columns_of_K = columns if columns_of_K is None else columns_of_K
    of_Q, of_K = (x if isinstance(x, slice) else x(D) for x in (columns, columns_of_K))
    scale = D**-0.5 if root else factor(case.facts["scale"])
    return scale * (Q[..., of_Q] @ K[..., of_K].mT), V


def _attend(
    case: Case,
    *,
    counts: Callable[[Case], Tensor] | None = None,
    maximum: str = "largest",
    hidden: float | None = None,
    tail: int | None = None,
    divided: bool = True,
    lse: Callable[[Tensor, Tensor], Tensor] = lambda m, total: m + total.log(),
    empty: tuple[float, float] = (0.0, -math.inf),
    no_keys: tuple[float, float] | None = None,
    **scores: object,
) -> dict[str, Tensor]:
    """What a kernel writes that is right but for what the arguments say.

    counts: how often each key counts for each row, `[L_q, L_k]`, instead of the lists. maximum: what is subtracted, the
    "largest" score, the "first" of the list, the largest of them and "zero", or "none" at all. hidden: the score of
    all keys that are not in the list. tail: l also has exp(0) for the places that fill the last group of so many.
    empty: O and LSE of a row whose l is 0. no_keys: of a row whose list is empty, if not the same. scores: for
    `_scores`.
    """
    s, V = _scores(case, **scores)
    times = (case.facts["mask"] if counts is None else counts(case)).double()
    if hidden is not None:
        s, times = s.where(case.facts["mask"], torch.tensor(hidden).double()), torch.ones_like(times)
    s = s.masked_fill(times == 0, -torch.inf)
    m = s.amax(dim=-1, keepdim=True)
    if maximum == "first":
        listed = case.facts["listed"][:, :1]
        m = s.gather(-1, listed.clamp(min=0).expand(*s.shape[:3], 1)).masked_fill(listed < 0, -torch.inf)
    elif maximum == "none":
        m = torch.zeros_like(m)
    filled = 0 if tail is None else -times.sum(dim=-1, keepdim=True) % tail
    if maximum == "zero" or tail is not None:
        m = m.clamp(min=0).where(times.any(dim=-1, keepdim=True), m)
    weights = times * torch.exp(s - torch.where(m == -torch.inf, torch.zeros_like(m), m))
    weights = weights.float().double()  # what is too small for fp32 is 0
    total = weights.sum(dim=-1, keepdim=True) + filled * torch.exp(-m).nan_to_num(posinf=0.0)
    out = weights @ V
    if maximum in ("first", "none"):
        out, total = _sums_in_float32(case, weights, V)
    out = out / total if divided else out
    out = torch.where(total == 0, torch.full_like(out, empty[0]), out)
    LSE = torch.where(total == 0, torch.full_like(m, empty[1]), lse(m, total))[..., 0]
    if no_keys is not None:
        none = ~case.facts["mask"].any(dim=1)
        out, LSE = out.masked_fill(none[:, None], no_keys[0]), LSE.masked_fill(none, no_keys[1])
    return {"O": out, "LSE": LSE}


def _sums_in_float32(case: Case, weights: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """O before its division, and l, added up in the order of the lists: where fp32 overflows, this is the mistake."""
    listed = case.facts["listed"][:, : int(case.facts["mask"].sum(dim=1).max())]
    key = listed.clamp(min=0)
    there = weights.gather(-1, key.expand(*weights.shape[:2], -1, -1)).masked_fill(listed < 0, 0.0).float()
    terms = torch.cat(
        [there[..., None] * V[:, :, key].float(), there[..., None]], dim=-1
    )  # [B, H, L_q, entries, D + 1]
    sums = torch.nn.functional.pad(terms, (0, 0, 1, 0)).cumsum(dim=-2)[..., -1, :].double()  # 0 where no list has a key
    return sums[..., :-1], sums[..., -1:]


def _not_rescaled(case: Case, *, out: bool, total: bool) -> dict[str, Tensor]:
    """The keys one after the other; `out`, `total`: whether O and l are rescaled when the maximum changes."""
    s, V = _scores(case)
    listed = case.facts["listed"]
    key = listed.clamp(min=0)
    s = s.gather(-1, key.expand(*s.shape[:2], -1, -1)).masked_fill(listed < 0, -torch.inf)
    newest = s.cummax(dim=-1).values
    then, now = (torch.exp(s - m).nan_to_num(nan=0.0) for m in (newest, newest.amax(dim=-1, keepdim=True)))
    weights = torch.zeros_like(s[..., :1]).repeat(1, 1, 1, V.shape[2])
    weights = weights.scatter_add(-1, key.expand_as(s), now if out else then)
    sums = (now if total else then).sum(dim=-1, keepdim=True)
    lse = newest.amax(dim=-1) + sums[..., 0].log()
    return {"O": (weights @ V / sums).masked_fill(sums == 0, 0.0), "LSE": lse}


def _lanes_apart(case: Case, summed: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Each lane has a softmax of its own. summed: what the lanes make of their products `[B, H, 32, L_q, L_k]`."""
    Q, K, V = (case.inputs[name].double().unflatten(-1, (-1, 32)) for name in "QKV")
    s = summed(case.facts["scale"] * torch.einsum("bhicl,bhjcl->bhlij", Q, K))
    s = s.masked_fill(~case.facts["mask"], -torch.inf)
    out = torch.einsum("bhlij,bhjcl->bhicl", torch.softmax(s, dim=-1).nan_to_num(nan=0.0), V).flatten(-2)
    return {"O": out, "LSE": torch.logsumexp(s[:, :, 0], dim=-1)}


def _half_warp(products: Tensor) -> Tensor:
    halves = products.unflatten(2, (2, 16)).sum(dim=3, keepdim=True)
    return halves.expand(-1, -1, -1, 16, -1, -1).flatten(2, 3)


def _shuffled_down(products: Tensor) -> Tensor:
    """Only lane 0 has the sum; a lane that nobody is below keeps its own."""
    for other in (16, 8, 4, 2, 1):
        products = products + torch.cat([products[:, :, other:], products[:, :, 32 - other :]], dim=2)
    return products


def _l_of_a_lane(case: Case, *, guarded: bool) -> dict[str, Tensor]:
    """A lane takes every 32nd key of a list, and divides its columns of O by the l of those. guarded: or gives 0."""
    s, V = _scores(case)
    s = s.masked_fill(~case.facts["mask"], -torch.inf)
    m = s.amax(dim=-1, keepdim=True)
    weights = torch.exp(s - m).nan_to_num(nan=0.0)
    listed = case.facts["listed"]
    row, place = (listed >= 0).nonzero(as_tuple=True)
    lane = torch.full(listed.shape, -1)
    lane[row, listed[row, place]] = place % 32
    of_lane = torch.stack([(weights * (lane == n)).sum(dim=-1) for n in range(32)], dim=-1)  # [B, H, L_q, 32]
    of_column = torch.arange(V.shape[-1]) % 32
    out = weights @ V / of_lane[..., of_column]
    out = out.masked_fill((of_lane == 0)[..., of_column], 0.0) if guarded else out
    return {"O": out, "LSE": m[..., 0] + of_lane[..., 0].log()}


def _permuted(case: Case, order: Columns) -> dict[str, Tensor]:
    """Column c of O is what belongs into column order[c]."""
    right = _attend(case)
    return {"O": right["O"][..., order(right["O"].shape[-1])], "LSE": right["LSE"]}


def _heads_by_queries(case: Case) -> dict[str, Tensor] | None:
    """K and V of head n start at row n · L_q; None where that is past their end."""
    (batch, heads, L_q, _), L_k = case.inputs["Q"].shape, case.inputs["K"].shape[2]
    if L_q > L_k:
        return None
    rows = (L_q * torch.arange(batch * heads)[:, None] + torch.arange(L_k)).unflatten(0, (batch, heads))
    moved = {name: case.inputs[name].flatten(0, 2)[rows] for name in "KV"}
    return _attend(replace(case, inputs={**case.inputs, **moved}))


def _every_key(case: Case) -> Tensor:
    return torch.ones_like(case.facts["mask"])


def _causal_keys(case: Case) -> Tensor:
    L_q, L_k = case.facts["mask"].shape
    return torch.ones(L_q, L_k).tril(L_k - L_q)


def _between(case: Case) -> Tensor:
    """From the smallest key of a row to the largest."""
    mask = case.facts["mask"].int()
    return mask.cummax(dim=1).values * mask.flip(1).cummax(dim=1).values.flip(1)


def _from_the_start(case: Case) -> Tensor:
    return case.facts["mask"].int().cumsum(dim=0)


def _positions(case: Case) -> Tensor:
    mask = case.facts["mask"]
    return torch.arange(mask.shape[1]) < mask.sum(dim=1, keepdim=True)


def _not_ahead(case: Case) -> Tensor:
    return case.facts["mask"].tril()


def _until_ahead(case: Case) -> Tensor:
    """A row ends at its first key that is later than the query."""
    listed = case.facts["listed"]
    ahead = (listed > torch.arange(len(listed))[:, None]).int().cummax(dim=1).values
    return _without(case, lambda place, length: ahead.bool())


def _of_another(case: Case, of: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Row i has the list of row of(i, warps of a block)."""
    mask = case.facts["mask"]
    return mask[of(torch.arange(len(mask)), case.facts["warps"]).clamp(0, len(mask) - 1)]


def _without(case: Case, left_out: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Lists without the places for which `left_out(place, length of the row)` holds."""
    return _each(case, lambda place, length: ~left_out(place, length))


def _each(case: Case, times: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Lists whose entries count `times(place, length of the row)` times."""
    mask, listed = case.facts["mask"], case.facts["listed"]
    how_often = times(torch.arange(listed.shape[1]), mask.sum(dim=1, keepdim=True)) * (listed >= 0)
    return torch.zeros(mask.shape).scatter_add(1, listed.clamp(min=0), how_often.float())


def _mistake(
    name: str, detail: str, read_again: str, simulate: Callable[[Case], Mapping[str, Tensor] | None]
) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), simulate)


_LSE_NAME = "LSE is the natural logarithm of the sum: m + logf(l)"

MISTAKES = (
    _mistake(_NOT_IN_LIST, "every key counts; the list was not looked at", _ROWS, partial(_attend, counts=_every_key)),
    _mistake(
        _NOT_IN_LIST,
        "every key up to the query counts; the list was not looked at",
        _ROWS,
        partial(_attend, counts=_causal_keys),
    ),
    _mistake(
        _NOT_IN_LIST,
        "every key between the row's smallest and largest one counts: a list is not a range",
        _ROWS,
        partial(_attend, counts=_between),
    ),
    _mistake(
        names.O_NOT_RESCALED,
        "O is a sum of exp(s − m) V for the m of that time; when m rises, O takes exp(m_old − m_new), as l does",
        _ONLINE,
        partial(_not_rescaled, out=False, total=True),
    ),
    _mistake(
        names.L_NOT_RESCALED,
        "when m rises, l takes the factor exp(m_old − m_new), as O does",
        _ONLINE,
        partial(_not_rescaled, out=True, total=False),
    ),
    _mistake(
        names.NEITHER_RESCALED,
        "both are sums of exp(s − m) for the m of that time; when m rises, both take the factor exp(m_old − m_new)",
        _ONLINE,
        partial(_not_rescaled, out=False, total=False),
    ),
    _mistake(
        "m is never set: only the last key of a row counts",
        "m stays −∞, so that exp(m − m_new) is 0 each time: keep m_new in m at the end of the loop",
        _ONLINE,
        partial(
            _attend,
            counts=partial(_without, left_out=lambda place, length: place < length - 1),
            lse=lambda m, total: torch.full_like(m, -math.inf),
        ),
    ),
    _mistake(
        names.SCALE_MISSING,
        "a score is scale · (Q · K); here it is Q · K",
        _ROWS,
        partial(_attend, factor=lambda scale: 1.0),
    ),
    _mistake(
        names.SCALE_TWICE,
        "a score is scale · (Q · K), and q may hold the scale already",
        _ROWS,
        partial(_attend, factor=lambda scale: scale**2),
    ),
    _mistake(
        names.SCALE_NOT_THE_ARGUMENT,
        "a score is scale · (Q · K), with the scale that the kernel is given",
        _ROWS,
        partial(_attend, root=True),
    ),
    _mistake(
        "the last key of each row is left out",
        "row i ends before indptr[i + 1]: the loop runs while at < indptr[i + 1]",
        _ROWS,
        partial(_attend, counts=partial(_without, left_out=lambda place, length: place == length - 1)),
    ),
    _mistake(
        "the first key of each row is left out",
        "row i starts at indptr[i], which belongs to it",
        _ROWS,
        partial(_attend, counts=partial(_without, left_out=lambda place, length: place == 0)),
    ),
    _mistake(
        "each row starts at the beginning of the list",
        "row i starts at indptr[i]; here it also has the keys of all rows before",
        _ROWS,
        partial(_attend, counts=_from_the_start),
    ),
    _mistake(
        names.PLACE_FOR_KEY,
        "the n-th key of row i is indices[indptr[i] + n], not n",
        _ROWS,
        partial(_attend, counts=_positions),
    ),
    *(
        _mistake(
            f"only the first {most} keys of a row are read",
            "a row may have any number of keys: go on until indptr[i + 1]",
            _ROWS,
            partial(_attend, counts=partial(_without, left_out=lambda place, length, most=most: place >= most)),
        )
        for most in (32, 64, 96, 128, 256, 512, 1024, 2048)
    ),
    *(
        _mistake(
            "the last keys of a row are left out where they fill no group",
            f"rows are read in groups of {group}; what is left of a row, up to indptr[i + 1], belongs to it, too",
            _ROWS,
            partial(
                _attend,
                counts=partial(_without, left_out=lambda place, length, group=group: place >= length - length % group),
                empty=empty,
                no_keys=(0.0, -math.inf) if empty[0] else None,
            ),
        )
        for group in (2, 4, 8, 32)
        for empty in ((0.0, -math.inf), (math.nan, -math.inf))
    ),
    *(
        _mistake(
            "the last key of a row counts several times",
            f"where a row's keys do not fill the last group of {group}, its last key is taken again: give it no weight",
            _ROWS,
            partial(
                _attend,
                counts=partial(
                    _each,
                    times=lambda place, length, group=group: 1 + (place == length - 1) * (-length % group),
                ),
            ),
        )
        for group in (2, 4, 8, 32)
    ),
    *(
        _mistake(
            names.TAIL_COUNTS,
            f"the last group of {group} keys of a row is not full; its other places have the score −∞, not 0",
            _ROWS,
            partial(_attend, tail=group),
        )
        for group in (4, 8, 32)
    ),
    *(
        _mistake(_ANOTHER_LIST, detail, _ROWS, partial(_attend, counts=partial(_of_another, of=of)))
        for detail, of in (
            ("every query has the list of query 0", lambda i, warps: 0 * i),
            ("query i has the list of query i + 1", lambda i, warps: i + 1),
            ("query i has the list of query i − 1", lambda i, warps: i - 1),
            ("all warps of a block have the list of its first query", lambda i, warps: i // warps * warps),
            ("query i has the list of its warp in the first block", lambda i, warps: i % warps),
            ("query i has the list of query i / WARPS", lambda i, warps: i // warps),
        )
    ),
    *(
        _mistake("keys later than the query are left out", detail, _OBJECT, partial(_attend, counts=counts))
        for detail, counts in (
            (
                "the list says what a query sees, and nothing else does: there is no causal mask in this kernel",
                _not_ahead,
            ),
            (
                "the row is taken to end at the first of them: the keys come in any order, and any may be there",
                _until_ahead,
            ),
        )
    ),
    _mistake(
        "key 0 is left out",
        "0 is a key like any other",
        _ROWS,
        partial(_attend, counts=lambda case: case.facts["mask"] & (torch.arange(case.facts["mask"].shape[1]) > 0)),
    ),
    *(
        _mistake(
            names.HEAD_ZERO_READ,
            f"{' and '.join(which)}: Q is [B, H, L_q, D], K and V are [B, H, L_k, D], and head blockIdx.y starts at "
            "head · L · D",
            "01 Attention basics, section 4, 'Scores, one thread each'",
            partial(_attend, first_head=which),
        )
        for which in ("KV", "K", "V", "Q", "QKV")
    ),
    _mistake(
        "the heads of K and V are taken to lie L_q rows apart",
        "K and V have L_k rows in each head, and Q and O have L_q: head blockIdx.y of K starts at head · L_k · D",
        "01 Attention basics, section 4, 'Scores, one thread each'",
        _heads_by_queries,
    ),
    _mistake(
        "the products are not summed over the lanes",
        "each lane has D / 32 of the D products; a score is the sum over the whole warp",
        _ROWS,
        partial(_lanes_apart, summed=lambda products: products),
    ),
    _mistake(
        names.HALF_WARP,
        "lanes 0 to 15 have one sum and lanes 16 to 31 another: the first step adds what is 16 lanes away",
        _ROWS,
        partial(_lanes_apart, summed=_half_warp),
    ),
    _mistake(
        "only lane 0 has the sum of the products",
        "__shfl_down_sync leaves the sum in lane 0; every lane needs the score for its columns of O",
        _ROWS,
        partial(_lanes_apart, summed=_shuffled_down),
    ),
    *(
        _mistake(
            name, "a lane has D / 32 columns, and a score all D products", _ROWS, partial(_attend, columns=columns)
        )
        for name, columns in (
            (names.FIRST_32_COLUMNS, slice(0, 32)),
            ("the first 32 columns of Q and K are left out", slice(32, None)),
            ("only the first 64 columns of Q and K are multiplied", slice(0, 64)),
        )
    ),
    *(
        _mistake(
            name,
            "block y has head blockIdx.y of Q, of K and of V: K for the scores, V for O",
            _ROWS,
            partial(_attend, exchanged=read),
        )
        for name, read in (
            ("K and V are swapped", "QVK"),
            ("K is read in V's place", "QKK"),
            ("V is read in K's place", "QVV"),
        )
    ),
    _mistake(
        "Q and K are multiplied in different columns",
        "a lane must hold the same columns of Q as of K: lane, lane + 32, …, or neighbours, for both",
        _ROWS,
        partial(_attend, columns=_apart, columns_of_K=_in_order),
    ),
    _mistake(
        "Q and K are multiplied in different columns",
        "a lane must hold the same columns of Q as of K: lane, lane + 32, …, or neighbours, for both",
        _ROWS,
        partial(_attend, columns=_neighbours, columns_of_K=_in_order),
    ),
    *(
        _mistake(
            "the columns of O are not in the order of V's",
            "what a lane reads from columns of V it writes into the same columns of O",
            _ROWS,
            partial(_permuted, order=order),
        )
        for order in (_neighbours, _apart, _rolled)
    ),
    *(
        _mistake(
            "each lane divides by the l of its own keys",
            "where each lane takes other keys, l is the sum over the whole warp",
            _ONLINE,
            partial(_l_of_a_lane, guarded=guarded),
        )
        for guarded in (True, False)
    ),
    *(
        _mistake(name, detail, _ONLINE, partial(_attend, maximum=maximum, empty=empty, no_keys=no_keys))
        for maximum, name, detail in (
            ("none", names.NO_MAXIMUM, "exp overflows fp32 above 88.7, and is 0 below −104: take exp(s − m)"),
            (
                "first",
                names.FIRST_KEYS_SCORE,
                "a later score may be larger by more than 88.7, where exp overflows fp32",
            ),
            (
                "zero",
                names.MAXIMUM_FROM_ZERO,
                "where all scores of a row are below −104, exp(s − 0) is 0 for each of them",
            ),
        )
        for empty, no_keys in (
            ((0.0, -math.inf), None),
            ((math.nan, -math.inf), (0.0, -math.inf)),
            ((math.nan, math.nan), (0.0, -math.inf)),
        )
    ),
    _mistake(names.NOT_DIVIDED, "O / l, once, at the end", _ONLINE, partial(_attend, divided=False)),
    _mistake(
        names.EMPTY_ROW_IS_NAN,
        "its l is 0, and 0 / 0 is NaN: O = 0 there",
        _TRAP,
        partial(_attend, no_keys=(math.nan, -math.inf)),
    ),
    _mistake(
        names.EMPTY_ROW_IS_NAN,
        "its m is −∞ and its l is 0: O = 0 and LSE = −∞ there",
        _TRAP,
        partial(_attend, no_keys=(math.nan, math.nan)),
    ),
    _mistake(
        names.HIDDEN_IS_ZERO,
        "a key that is not in the list has no score at all: do not visit it, or give it −∞",
        _WHY,
        partial(_attend, hidden=0.0),
    ),
    *(
        _mistake(
            names.HIDDEN_IS_FINITE,
            "where a row has no other key, or only such small scores, those that are not in its list count",
            _WHY,
            partial(_attend, hidden=hidden),
        )
        for hidden in (-1e4, -1e5, -1e6, -1e9, -1e10, -1e20, -1e30, -1e38, float(torch.finfo(torch.float32).min))
    ),
    *(
        _mistake(
            names.LSE_EMPTY_ROW,
            "the sum over no key is 0, its logarithm −∞",
            _TRAP,
            partial(_attend, no_keys=(0.0, value)),
        )
        for value in (math.nan, 0.0, math.inf, -1e9, -1e30, float(torch.finfo(torch.float32).min))
    ),
    _mistake(names.LSE_LACKS_M, _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: total.log())),
    _mistake(names.LSE_BASE_2, _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: m + total.log2())),
    _mistake(
        names.LSE_BASE_2, _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: (m + total.log()) / math.log(2))
    ),
    _mistake(names.LSE_LACKS_LOG, _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: m + total)),
    _mistake("LSE is m alone", _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: m)),
)


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
    mistakes=MISTAKES,
    questions=QUESTIONS,
    cells=("answers", "pattern"),
    collect=collect,
    judge=judge,
)
