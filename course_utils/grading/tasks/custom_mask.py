"""How exercise 04.1, custom sparse mask, is graded: recall of a design within a budget, then a kernel that walks lists.

The design is judged on maps of texts that nobody has seen. The kernel has lists of its own, besides the design's: a bad
design costs only the design's points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.checks import AttentionCase, make_inputs
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
from course_utils.patterns import local
from course_utils.studies.maps import HEADS, attention_maps, density, kept_mass, mask_of

BUDGET = 0.25  # of the causal pairs
LENGTHS = (256, 320)
SHOWN_SEED = 0  # of the maps in the notebook
STEPS = {"recall_70": 0.70, "recall_80": 0.80, "recall_87": 0.87}
OVERFITTED = 0.02  # recall lost from the shown maps to fresh ones
HEAD_DIM, WARPS = 64, 4
KERNEL_LENGTH = 96

_RECALL = "chapter 04, section 10, 'Reach is not recall'"
_WHICH = "chapter 04, section 10, 'Which pattern for what'"
_OBJECT = "chapter 04, section 2, 'One object, many pictures'"
_EDGES = "chapter 04, section 2, 'Edges'"
_ROWS = "chapter 04, section 6, 'Rows of keys'"
_WHY = "chapter 04, section 1, 'Why: a mask saves nothing'"
_ONLINE = "chapter 02, section 2, 'Two numbers'"
_TRAP = "chapter 02, section 2, 'The one trap'"

PARTS = (
    *(Part(name, 2, f"Design: recall of at least {least:.2f} within the budget") for name, least in STEPS.items()),
    Part("values", 3, "Kernel: O and LSE over the kept pairs, large scores too"),
    Part("lengths", 2, "Kernel: any length, rows without keys"),
    Part("skips", 2, "Kernel: a pair that is not kept costs nothing"),
)


# ---------------------------------------------------------------------------------------------- the design


def collect(names: Mapping[str, object]) -> dict[str, Tensor]:
    """The masks of the student's `pattern`, for the lengths judged and the kernel's; empty if it is None."""
    if names.get("pattern") is None:
        return {}
    return {f"mask_{length}": mask_of(names["pattern"], length) for length in (*LENGTHS, KERNEL_LENGTH)}


def judge(python: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Diagnosis | None]:
    """Recall over fresh maps of two texts and two lengths, if the design keeps the rules."""
    if not python:
        words = "assign a Pattern or a mask_mod to `pattern`, in the notebook"
        return dict.fromkeys(STEPS, Diagnosis("there is no design yet", words, _OBJECT))
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


def _case(
    part: str,
    name: str,
    mask: Tensor,
    generator: torch.Generator,
    *,
    kind: str = "normal",
    batch: int = 1,
    heads: int = 2,
    **options: object,
) -> Case:
    """One launch over the pairs of mask `[L_q, L_k]`. The keys of a row come in any order."""
    L_q, L_k = mask.shape
    shape = AttentionCase(batch, heads, heads, L_q, L_k, HEAD_DIM, False, kind)
    Q, K, V, _ = make_inputs(shape, seed=int(torch.randint(2**31, (1,), generator=generator)))
    out, LSE = reference.attention(Q, K, V, attn_mask=mask, return_lse=True)
    order = torch.rand(L_q, L_k, generator=generator).masked_fill(~mask, 2.0).argsort(dim=1)
    counts = mask.sum(dim=1, keepdim=True)
    listed = order.masked_fill(torch.arange(L_k) >= counts, -1)  # row by row, -1 behind the last
    inputs = {
        "Q": Q,
        "K": K,
        "V": V,
        "indptr": torch.nn.functional.pad(counts[:, 0].cumsum(dim=0), (1, 0)).int(),
        "indices": (listed[listed >= 0] if mask.any() else torch.zeros(1)).int(),
    }
    scale = HEAD_DIM**-0.5
    arguments = (*inputs, "O", "LSE", np.int32(L_q), np.int32(L_k), np.float32(scale))
    launch = Launch(
        "csr_attention",
        (costs.ceil_div(L_q, WARPS), batch * heads),
        (32 * WARPS,),
        arguments,
        (f"-DD={HEAD_DIM}", f"-DWARPS={WARPS}"),
    )
    outputs = {
        "O": Output(out, same_dtype=_in_float32(Q, K, V, mask)),
        "LSE": Output(LSE, kind="lse"),
    }
    facts = {"listed": listed, "scale": scale, "mask": mask, "empty_rows": ~mask.any(dim=1)}
    return Case(part, name, (launch,), inputs, outputs, facts, **options)


def _in_float32(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor) -> list[Tensor]:
    """Plain torch in fp32, in four orders of the head dimension: one alone may be exact by luck."""
    with reference.full_float32():
        runs = []
        for n in range(4):
            order = torch.randperm(HEAD_DIM, generator=torch.Generator().manual_seed(n))
            out = reference.torch_attention(Q[..., order], K[..., order], V[..., order], attn_mask=mask)
            runs.append(out[..., order.argsort()])
    return runs


def _random_mask(L_q: int, L_k: int, share: float, generator: torch.Generator) -> Tensor:
    return torch.rand(L_q, L_k, generator=generator) < share


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Lists of the student's own design, where it keeps the rules, and lists that nobody would design."""
    own, origin = _mask(python, KERNEL_LENGTH), "your pattern"
    if own is None or not own.any() or density(own) > 0.6:
        own, origin = _random_mask(KERNEL_LENGTH, KERNEL_LENGTH, 0.2, generator).tril(), "random causal pairs"
    n = KERNEL_LENGTH
    random = _random_mask(n, n, 0.15, generator)
    random[-1] = True  # the row that has the score of 100
    ragged = _random_mask(66, 63, 0.2, generator)
    ragged[[0, 9, 10, 65]] = False
    ragged[11] = True
    long = _random_mask(5, 130, 0.9, generator)
    long[2] = False
    few = torch.zeros(8, 4096, dtype=torch.bool)
    few.scatter_(1, torch.rand(8, 4096, generator=generator).argsort(dim=1)[:, :2], True)
    return [
        _case("values", f"{origin}, L = {n}", own, generator),
        _case("values", f"{origin}, V + 100, L = {n}", own, generator, kind="offset on V"),
        _case("values", f"random pairs, L = {n}", random, generator),
        _case("values", f"random pairs, scores to ±50, L = {n}", random, generator, kind="large logits"),
        _case("values", f"random pairs, scores up to 100, L = {n}", random, generator, kind="overflowing exp"),
        _case("lengths", "L_q = 1, L_k = 1", torch.ones(1, 1, dtype=torch.bool), generator, must_be_clean=True),
        _case(
            "lengths", "L_q = 3, L_k = 5, no pair", torch.zeros(3, 5, dtype=torch.bool), generator, must_be_clean=True
        ),
        _case("lengths", "L_q = 5, L_k = 130, long rows", long, generator, batch=2, must_be_clean=True),
        _case(
            "lengths", "L_q = 66, L_k = 63, rows without keys", ragged, generator, batch=2, heads=1, must_be_clean=True
        ),
        _case(
            "skips", "2 keys per row, L_q = 8, L_k = 4096", few, generator, heads=1, must_be_clean=True, review=_review
        ),
    ]


def _review(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The loads may not grow with L_k: half of reading K once per block is too much, as if its warps shared a tile.

    With few keys of many it is told from waste on the kept ones: each lane may ask for all their K and V, twice.
    """
    batch, heads, L_q, L_k = *case.inputs["Q"].shape[:3], case.inputs["K"].shape[2]
    kept = 2 * batch * heads * len(case.inputs["indices"]) * HEAD_DIM * 4
    everything = 2 * batch * heads * L_q * L_k * HEAD_DIM * 4
    if outcome.loaded_bytes <= everything / WARPS / 4:
        return None
    reads = [row for row in outcome.counters if row.space == "global" and row.operation != "store"]
    most = max(reads, key=lambda row: row.bytes)
    detail = (
        f"{case.name}: the kernel asks for {outcome.loaded_bytes / 1e6:.3f} MB, most of it in line {most.line}; K and "
        f"V of the kept pairs are {kept / 1e6:.3f} MB, of all pairs {everything / 1e6:.3f} MB"
    )
    return Diagnosis("masking saves nothing: skipped pairs are still loaded", detail, _WHY)


# ---------------------------------------------------------------------------------------------- known mistakes


def _scores(case: Case, *, scaled: bool = True, first_head: bool = False) -> tuple[Tensor, Tensor]:
    """Scores of all pairs `[B, H, L_q, L_k]`, and V."""
    Q, K, V = (case.inputs[name].double() for name in "QKV")
    if first_head:
        K, V = (x[:1, :1].expand_as(x) for x in (K, V))
    return (case.facts["scale"] if scaled else 1.0) * (Q @ K.mT), V


def _attend(
    case: Case,
    *,
    counts: Callable[[Case], Tensor] | None = None,
    maximum: bool = True,
    divided: bool = True,
    lse: Callable[[Tensor, Tensor], Tensor] = lambda m, total: m + total.log(),
    empty: tuple[float, float] = (0.0, -math.inf),
    **scores: bool,
) -> dict[str, Tensor]:
    """What a kernel writes that is right but for what the arguments say.

    counts: how often each key counts for each row, `[L_q, L_k]`, instead of the lists. empty: O and LSE of a row
    without keys. scores: for `_scores`.
    """
    s, V = _scores(case, **scores)
    times = (case.facts["mask"] if counts is None else counts(case)).double()
    s = s.masked_fill(times == 0, -torch.inf)
    m = s.amax(dim=-1, keepdim=True) if maximum else torch.zeros_like(s[..., :1])
    weights = times * torch.exp(s - torch.where(m == -torch.inf, torch.zeros_like(m), m))
    if not maximum:  # fp32 overflows, and that is the mistake
        weights = weights.float().double()
    total = weights.sum(dim=-1, keepdim=True)
    out = weights @ V
    out = out / total if divided else out
    return {
        "O": torch.where(total == 0, torch.full_like(out, empty[0]), out),
        "LSE": torch.where(total == 0, torch.full_like(m, empty[1]), lse(m, total))[..., 0],
    }


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


def _own_columns(case: Case) -> dict[str, Tensor]:
    """Each lane has a softmax of its own columns."""
    Q, K, V = (case.inputs[name].double().unflatten(-1, (-1, 32)) for name in "QKV")
    s = case.facts["scale"] * torch.einsum("bhicl,bhjcl->bhlij", Q, K)
    s = s.masked_fill(~case.facts["mask"], -torch.inf)
    out = torch.einsum("bhlij,bhjcl->bhicl", torch.softmax(s, dim=-1).nan_to_num(nan=0.0), V).flatten(-2)
    return {"O": out, "LSE": torch.logsumexp(s[:, :, 0], dim=-1)}


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


def _without(case: Case, left_out: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Lists without the places for which `left_out(place, length of the row)` holds."""
    mask, listed = case.facts["mask"], case.facts["listed"]
    out = left_out(torch.arange(listed.shape[1]), mask.sum(dim=1, keepdim=True))
    kept = (listed >= 0) & ~out
    return torch.zeros(mask.shape).scatter_add(1, listed.clamp(min=0), kept.float())


def _mistake(
    name: str, detail: str, read_again: str, simulate: Callable[[Case], Mapping[str, Tensor] | None]
) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), simulate)


_NOT_IN_LIST = "the softmax runs over keys that the row does not keep"
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
        "O is not rescaled when the maximum changes",
        "O is a sum of exp(s − m) V for the m of that time; when m rises, O takes exp(m_old − m_new), as l does",
        _ONLINE,
        partial(_not_rescaled, out=False, total=True),
    ),
    _mistake(
        "l is not rescaled when the maximum changes",
        "when m rises, l takes the factor exp(m_old − m_new), as O does",
        _ONLINE,
        partial(_not_rescaled, out=True, total=False),
    ),
    _mistake(
        "neither O nor l is rescaled when the maximum changes",
        "both are sums of exp(s − m) for the m of that time; when m rises, both take the factor exp(m_old − m_new)",
        _ONLINE,
        partial(_not_rescaled, out=False, total=False),
    ),
    _mistake(
        "the scale is missing",
        "a score is scale · (Q · K); here it is Q · K",
        _ROWS,
        partial(_attend, scaled=False),
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
        "the place in the list is taken for the key",
        "the n-th key of row i is indices[indptr[i] + n], not n",
        _ROWS,
        partial(_attend, counts=_positions),
    ),
    _mistake(
        "only the first 32 keys of a row are read",
        "a row may be longer than a warp: loop until indptr[i + 1]",
        _ROWS,
        partial(_attend, counts=partial(_without, left_out=lambda place, length: place >= 32)),
    ),
    _mistake(
        "all heads read K and V of the first head",
        "K and V are [B, H, L_k, D]: head blockIdx.y starts at head · L_k · D",
        "chapter 01, section 4, 'Scores, one thread each'",
        partial(_attend, first_head=True),
    ),
    _mistake(
        "the products are not summed over the lanes",
        "each lane has D / 32 of the D products; a score is the sum over the whole warp",
        _ROWS,
        _own_columns,
    ),
    _mistake(
        "the maximum is not subtracted",
        "exp overflows fp32 above 88.7: take exp(s − m)",
        _ONLINE,
        partial(_attend, maximum=False),
    ),
    _mistake("O is not divided by l", "O / l, once, at the end", _ONLINE, partial(_attend, divided=False)),
    _mistake(
        "a row without keys gives NaN",
        "its l is 0, and 0 / 0 is NaN: O = 0 there",
        _TRAP,
        partial(_attend, empty=(math.nan, -math.inf)),
    ),
    _mistake(
        "a row without keys gives NaN",
        "its m is −∞ and its l is 0: O = 0 and LSE = −∞ there",
        _TRAP,
        partial(_attend, empty=(math.nan, math.nan)),
    ),
    _mistake(
        "LSE of a row without keys is not −∞",
        "the sum over no key is 0, its logarithm −∞",
        _TRAP,
        partial(_attend, empty=(0.0, math.nan)),
    ),
    _mistake(
        "LSE of a row without keys is not −∞",
        "the sum over no key is 0, its logarithm −∞",
        _TRAP,
        partial(_attend, empty=(0.0, 0.0)),
    ),
    _mistake("LSE lacks m", _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: total.log())),
    _mistake("LSE is in base 2", _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: m + total.log2())),
    _mistake(
        "LSE is in base 2", _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: (m + total.log()) / math.log(2))
    ),
    _mistake("LSE lacks the logarithm", _LSE_NAME, _ONLINE, partial(_attend, lse=lambda m, total: m + total)),
)


# ---------------------------------------------------------------------------------------------- questions


_LENGTH, _ROW_BYTES = 4096, 2 * 4 * HEAD_DIM  # of K and V together, for one key
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
                2 * _LENGTH * 4 * HEAD_DIM / 1e6,
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
        read_again="chapter 04, section 9, 'When it pays'",
    ),
)

EXERCISE = Exercise(
    id="04_sparse_patterns/custom_mask",
    title="Custom sparse mask",
    parts=PARTS,
    kernels=("csr_attention",),
    cases=cases,
    mistakes=MISTAKES,
    questions=QUESTIONS,
    cells=("answers", "pattern"),
    collect=collect,
    judge=judge,
)
