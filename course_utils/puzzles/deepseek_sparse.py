"""The puzzles of chapter 05."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle

BLOCK = 32, 8  # keys, queries
THREADS = 64
INDEXER = "05 DeepSeek Sparse Attention, section 4, 'The lightning indexer'"
CORE = "05 DeepSeek Sparse Attention, section 7, 'The sparse core'"
EDGES = "05 DeepSeek Sparse Attention, section 7, 'Edges'"


# ---------------------------------------------------------------------------------------------- the indexer's score


def _score(generator: torch.Generator, part: str, signed: bool) -> Case:
    """One case of the indexer. signed: the heads' weights have both signs; else all are positive."""
    S, T, H, d = (drawn(generator, *span) for span in ((9, 14), (33, 60), (3, 6), (9, 20)))
    q_start = T - drawn(generator, 2, S - 2)  # the last queries see all keys, the first do not
    q, k = torch.randn(S, H, d, generator=generator), torch.randn(T, d, generator=generator)
    w = 0.2 + torch.rand(S, H, generator=generator)
    if signed:
        w *= torch.where(torch.arange(H) % 2 == drawn(generator, 0, 1), -1, 1)
    arguments = ("q", "k", "w", "I", *map(np.int32, (S, T, H, d, q_start)))
    launch = Launch("relu_before_sum", (ceil_div(T, BLOCK[0]), ceil_div(S, BLOCK[1])), BLOCK, arguments)
    hidden = torch.arange(T) > torch.arange(S)[:, None] + q_start
    plain = _summed(w, torch.einsum("shd,td->sht", q, k).relu()).masked_fill(hidden, 0)
    right = _summed(w.double(), _products(q, k).relu()).masked_fill(hidden, -torch.inf)
    outputs = {"I": Output(right, same_dtype=plain, axes=("query", "key"))}
    name = f"S = {S}, T = {T}, H = {H}, d = {d}"
    return Case(part, name, (launch,), {"q": q, "k": k, "w": w}, outputs, {"hidden": hidden}, must_be_clean=True)


def _products(q: Tensor, k: Tensor) -> Tensor:
    """[S, H, T]"""
    return torch.einsum("shd,td->sht", q.double(), k.double())


def _summed(w: Tensor, of_heads: Tensor) -> Tensor:
    return torch.einsum("sh,sht->st", w, of_heads)


def _scores(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_score(generator, "positive", signed=False), _score(generator, "signed", signed=True)]


def _scored_by(formula: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of another formula, which takes w [S, H] and the products [S, H, T]."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        found = formula(case.inputs["w"].double(), _products(case.inputs["q"], case.inputs["k"]))
        return {"I": found.masked_fill(case.facts["hidden"], -torch.inf)}

    return simulate


# ---------------------------------------------------------------------------------------------- a list of keys


def _gathered(generator: torch.Generator, part: str) -> Case:
    S, T, k, d = (drawn(generator, *span) for span in ((65, 80), (30, 50), (9, 14), (9, 20)))
    Q, K, V = (torch.randn(length, d, generator=generator) for length in (S, T, T))
    indices = torch.stack([torch.randperm(T, generator=generator)[:k] for _ in range(S)]).int()
    if part != "keys":
        none = torch.rand(S, k, generator=generator) < 0.3
        none[:, 0], none[:, drawn(generator, 1, 4)] = False, True  # before and behind it stand keys
        indices = indices.masked_fill(none, -1)
    if part == "edges":
        past = torch.rand(S, k, generator=generator) < 0.2
        indices = torch.where(past, T + torch.randint(0, 4, (S, k), generator=generator), indices).int()
        indices[:: drawn(generator, 3, 6)] = -1
    scale = float(np.float32(d**-0.5 * (0.5 + torch.rand((), generator=generator).item())))
    arguments = ("Q", "K", "V", "indices", "O", *map(np.int32, (S, T, k, d)), np.float32(scale))
    launch = Launch("gather", (ceil_div(S, THREADS),), (THREADS,), arguments)
    inputs, facts = {"Q": Q, "K": K, "V": V, "indices": indices}, {"scale": scale}
    valid = _valid(indices, T)
    right, plain = (
        _attended(q, keys, values, indices, valid, scale)
        for q, keys, values in ((Q.double(), K.double(), V.double()), (Q, K, V))
    )
    outputs = {"O": Output(right, same_dtype=plain, axes=("query", "column"))}
    name = f"S = {S}, T = {T}, k = {k}, d = {d}"
    return Case(part, name, (launch,), inputs, outputs, facts, must_be_clean=True)


def _valid(indices: Tensor, T: int) -> Tensor:
    return (indices >= 0) & (indices < T)


def _attended(Q: Tensor, K: Tensor, V: Tensor, keys: Tensor, counted: Tensor, scale: float) -> Tensor:
    """O [S, d] over the rows in keys [S, k], counting only the places marked in `counted`; 0 if there are none."""
    rows = keys.clamp(0, len(K) - 1).long()
    scores = (scale * torch.einsum("sd,skd->sk", Q, K[rows])).masked_fill(~counted, -torch.inf)
    return torch.einsum("sk,skd->sd", torch.softmax(scores, dim=-1).nan_to_num(), V[rows])


def _gathers(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_gathered(generator, part) for part in ("keys", "holes", "edges")]


def _listed(
    keys: Callable[[Tensor], Tensor] = lambda indices: indices,
    counted: Callable[[Tensor, Tensor], Tensor] = lambda indices, valid: valid,
) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of taking other keys from the list, or counting other places of it."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        Q, K, V = (case.inputs[name].double() for name in "QKV")
        indices = case.inputs["indices"]
        places = counted(indices, _valid(indices, len(K)))
        return {"O": _attended(Q, K, V, keys(indices), places, case.facts["scale"])}

    return simulate


def _places(indices: Tensor) -> Tensor:
    return torch.arange(indices.shape[1]).expand_as(indices)


def _score_zero(with_value: bool) -> Callable[[Case], Mapping[str, Tensor]]:
    """The result if a place without a key has the score 0 and counts in the sum of weights; with_value: it also adds
    the nearest row of V."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        Q, K, V = (case.inputs[name].double() for name in "QKV")
        indices = case.inputs["indices"]
        valid, rows = _valid(indices, len(K)), indices.clamp(0, len(K) - 1).long()
        scores = case.facts["scale"] * torch.einsum("sd,skd->sk", Q, K[rows])
        weights = torch.softmax(scores.masked_fill(~valid, 0), dim=-1)
        return {"O": torch.einsum("sk,skd->sd", weights if with_value else weights * valid, V[rows])}

    return simulate


_PLACE = Diagnosis(names.PLACE_FOR_KEY, "Place i of the list holds the key's number, indices[i].", CORE)
_ZERO = Diagnosis(
    "an index that is no key counts as a score of 0", "A score of 0 has a weight; no key has none.", EDGES
)

PUZZLES = {
    "relu_before_sum": Puzzle(
        Exercise(
            id="05_deepseek_sparse/relu_before_sum",
            title="The indexer's score",
            kernels=("relu_before_sum",),
            parts=(Part("positive", 1, "weights above 0"), Part("signed", 1, "weights of either sign")),
            cases=_scores,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "the ReLU comes after the sum",
                        "Each head's product goes through its own ReLU, before heads are added.",
                        INDEXER,
                    ),
                    _scored_by(lambda w, products: _summed(w, products).relu()),
                ),
                Mistake(
                    Diagnosis("the ReLU is missing", "Without it all heads together are one.", INDEXER),
                    _scored_by(_summed),
                ),
                Mistake(
                    Diagnosis(
                        "the weight is inside of the ReLU",
                        "A head with a negative weight speaks against a key, and ReLU of its product is cut off then.",
                        INDEXER,
                    ),
                    _scored_by(lambda w, products: (w[:, :, None] * products).relu().sum(dim=1)),
                ),
                Mistake(
                    Diagnosis("the weights are missing", "Head j counts w[j] times.", INDEXER),
                    _scored_by(lambda w, products: products.relu().sum(dim=1)),
                ),
            ),
        ),
        lesson="A few small heads, one weight each, no softmax. Only the order of these scores matters: the next "
        "step keeps the k largest.",
        hint="Go over the H heads. Head j's query begins at q + j * d; dot gives its product with the key. A "
        "product below 0 becomes 0 (fmaxf). Multiply it by w[j], and add it to the sum. Store the sum in row t of I, "
        "column s.",
    ),
    "gather": Puzzle(
        Exercise(
            id="05_deepseek_sparse/gather",
            title="A list of keys",
            kernels=("gather",),
            parts=(
                Part("keys", 1, "lists of nothing but keys"),
                Part("holes", 1, "−1 among the keys"),
                Part("edges", 1, "indices past the end, lists without a key"),
            ),
            cases=_gathers,
            mistakes=(
                Mistake(_PLACE, _listed(keys=_places)),
                Mistake(_PLACE, _listed(keys=_places, counted=lambda indices, valid: torch.ones_like(valid))),
                Mistake(_ZERO, _score_zero(with_value=False)),
                Mistake(_ZERO, _score_zero(with_value=True)),
                Mistake(
                    Diagnosis(
                        "an index that is no key is taken for a key", "−1 is not key 0: it has no weight.", EDGES
                    ),
                    _listed(counted=lambda indices, valid: torch.ones_like(valid)),
                ),
                Mistake(
                    Diagnosis("the list ends at the first index that is no key", "Keys may stand behind a −1.", EDGES),
                    _listed(counted=lambda indices, valid: valid.int().cummin(dim=1).values.bool()),
                ),
                Mistake(
                    Diagnosis("key 0 is left out", "Only an index below 0 or from T on is no key.", EDGES),
                    _listed(counted=lambda indices, valid: valid & (indices > 0)),
                ),
                Mistake(
                    Diagnosis(names.SCALE_MISSING, "Each score is scale times the dot product.", CORE),
                    lambda case: _listed()(replace(case, facts={"scale": 1.0})),
                ),
            ),
            findings={"memcheck": Diagnosis("a row is read that K or V does not have", read_again=EDGES)},
        ),
        lesson="The list decides which keys are read: at most k of them, however long the context is. −1 fills the "
        "places of shorter lists.",
        hint="Place i of the list holds a number s. If s is below 0 or at least T, it is no key: go on with the next "
        "place. Otherwise row s of K gives the score, scale times dot, and add_key takes it with row s of V.",
    ),
}
