"""The puzzles of chapter 08: one query that reads a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle

DECODE = "08 Choosing, section 6, 'Decode'"


def _scale(generator: torch.Generator) -> np.float32:
    return np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())


# ---------------------------------------------------------------------------------------------- heads that share keys


def _shared(generator: torch.Generator, part: str, H_kv: int, group: int) -> Case:
    T, d, H = drawn(generator, 20, 40), 4 * drawn(generator, 3, 6), H_kv * group
    q, scale = torch.randn(H, d, generator=generator), _scale(generator)
    K, V = (torch.randn(H_kv, T, d, generator=generator) for _ in "KV")
    arguments = ("q", "K", "V", "O", *map(np.int32, (H, H_kv, T, d)), scale)
    inputs, facts = {"q": q, "K": K, "V": V}, {"scale": float(scale)}
    heads = torch.arange(H) // group
    right = _by_heads(q.double(), K.double(), V.double(), float(scale), heads)
    output = Output(right, same_dtype=_by_heads(q, K, V, float(scale), heads), axes=("head", "column"))
    launch = Launch("shared_heads", (H,), (d,), arguments)
    return Case(
        part, f"H = {H}, H_kv = {H_kv}, T = {T}, d = {d}", (launch,), inputs, {"O": output}, facts, must_be_clean=True
    )


def _by_heads(q: Tensor, K: Tensor, V: Tensor, scale: float, heads: Tensor) -> Tensor:
    """O [H, d], where head h of q reads head heads[h] of K and V."""
    return attention(q[:, None], K[heads], V[heads], scale)[:, 0]


def _reading(heads: Callable[[int, int], Tensor]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of reading other heads; heads: of K and V, by H and H_kv."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        q, K, V = (case.inputs[name].double() for name in ("q", "K", "V"))
        return {"O": _by_heads(q, K, V, case.facts["scale"], heads(len(q), len(K)))}

    return simulate


def _groups(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_shared(generator, "two", 3, 2), _shared(generator, "more", 2, drawn(generator, 3, 5))]


# ---------------------------------------------------------------------------------------------- keys that are split


def _split(generator: torch.Generator, part: str, T: int, parts: int) -> Case:
    d, scale = 4 * drawn(generator, 3, 6), _scale(generator)
    q, K, V = (torch.randn(length, d, generator=generator) for length in (1, T, T))
    arguments = ("q", "K", "V", "O", "LSE", *map(np.int32, (T, d)), scale)
    inputs, facts = {"q": q, "K": K, "V": V}, {"scale": float(scale), "parts": parts}
    keys = ceil_div(T, parts)
    spans = [(p * keys, min(p * keys + keys, T)) for p in range(parts)]
    right = _of_spans(q.double(), K.double(), V.double(), float(scale), spans)
    plain = _of_spans(q, K, V, float(scale), spans)
    axes = {"O": ("part", "column"), "LSE": ("part",)}
    outputs = {name: Output(right[name], same_dtype=plain[name], axes=axes[name]) for name in axes}
    launch = Launch("split_keys", (parts,), (d,), arguments)
    return Case(part, f"T = {T}, parts = {parts}, d = {d}", (launch,), inputs, outputs, facts, must_be_clean=True)


def _of_spans(q: Tensor, K: Tensor, V: Tensor, scale: float, spans: list[tuple[int, int]]) -> dict[str, Tensor]:
    """O [parts, d] and LSE [parts] of the keys in each span [first, end)."""
    out, lse = q.new_zeros(len(spans), q.shape[1]), q.new_full((len(spans),), -torch.inf)
    for part, (first, end) in enumerate(spans):
        if first < end:
            out[part] = attention(q, K[first:end], V[first:end], scale)[0]
            lse[part] = torch.logsumexp(scale * (q @ K[first:end].mT)[0], dim=0)
    return {"O": out, "LSE": lse}


def _spanning(spans: Callable[[int, int], list[tuple[int, int]]]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of other parts; spans: by T and the number of parts."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        q, K, V = (case.inputs[name].double() for name in ("q", "K", "V"))
        return _of_spans(q, K, V, case.facts["scale"], spans(len(K), case.facts["parts"]))

    return simulate


def _floor(T: int, parts: int) -> list[tuple[int, int]]:
    return [(p * (T // parts), (p + 1) * (T // parts)) for p in range(parts)]


def _splits(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """Cases with whole parts, with a shorter last part, and with parts that have no key."""
    keys = drawn(generator, 5, 9)
    return [
        _split(generator, "whole", 4 * keys, 4),
        _split(generator, "ragged", 5 * keys - drawn(generator, 2, 4), 5),
        _split(generator, "empty", 9, 8),
    ]


PUZZLES = {
    "shared_heads": Puzzle(
        Exercise(
            id="08_choosing/shared_heads",
            title="Heads that share their keys",
            kernels=("shared_heads",),
            parts=(Part("two", 1, "two heads to each head of K"), Part("more", 1, "three or more")),
            cases=_groups,
            mistakes=(
                Mistake(
                    Diagnosis(names.HEAD_ZERO_READ, "K and V begin with their head 0; move on to yours.", DECODE),
                    _reading(lambda H, H_kv: torch.zeros(H, dtype=torch.long)),
                ),
                Mistake(
                    Diagnosis(
                        "heads share in turns, not as neighbours",
                        "Heads 0, 1, … of one group are neighbours: divide, and take no remainder.",
                        DECODE,
                    ),
                    _reading(lambda H, H_kv: torch.arange(H) % H_kv),
                ),
                Mistake(
                    Diagnosis("the last heads come first", "Head 0 of q reads head 0 of K and V.", DECODE),
                    _reading(lambda H, H_kv: H_kv - 1 - torch.arange(H) // (H // H_kv)),
                ),
            ),
            findings={"memcheck": Diagnosis("a head is read that K or V does not have", read_again=DECODE)},
        ),
        lesson="The query heads of a group read the same K and V. A block with the whole group would read them once.",
        hint="H / H_kv neighbouring heads of q form a group. Which group is head h in? A head of K or V has T * d "
        "numbers: move both pointers past the heads of the groups before.",
    ),
    "split_keys": Puzzle(
        Exercise(
            id="08_choosing/split_keys",
            title="Keys split among blocks",
            kernels=("split_keys",),
            parts=(
                Part("whole", 1, "as many keys in each part"),
                Part("ragged", 1, "a shorter last part"),
                Part("empty", 1, "parts without a key"),
            ),
            cases=_splits,
            mistakes=(
                Mistake(
                    Diagnosis("every part has all keys", "Each key belongs to one part alone.", DECODE),
                    _spanning(lambda T, parts: [(0, T)] * parts),
                ),
                Mistake(
                    Diagnosis(
                        "the last keys are in no part", "T / parts rounds down; a part needs ceil(T / parts).", DECODE
                    ),
                    _spanning(_floor),
                ),
                Mistake(
                    Diagnosis("the parts overlap", "A part ends where the next one begins.", DECODE),
                    _spanning(lambda T, parts: [(p * ceil_div(T, parts), T) for p in range(parts)]),
                ),
            ),
            findings={"memcheck": Diagnosis("a key past the end is read", "The last part may be shorter.", DECODE)},
        ),
        lesson="One query gives few blocks for many multiprocessors; parts of the keys give each of them something to "
        "read. The parts' results are merged by their LSE, like tiles in chapter 02.",
        hint="A part has ceil(T / parts) keys: (T + parts - 1) / parts in whole numbers. Part p begins at p times "
        "that number, and ends no later than T.",
    ),
}
