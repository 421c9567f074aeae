"""The puzzles of chapter 05."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading import names
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

BLOCK = 32, 8  # keys, queries
THREADS = 64
INDEXER = "05 DeepSeek Sparse Attention, section 4, 'The lightning indexer'"
CORE = "05 DeepSeek Sparse Attention, section 7, 'The sparse core'"
EDGES = "05 DeepSeek Sparse Attention, section 7, 'Edges'"
HEADS = "float sum = 0;\nfor (int j = 0; j < H; j++) sum += "
STORED = ";\nI[t * T + s] = sum;"
VALID = "const int s = indices[i];\nconst bool valid = 0 <= s && s < T;\n"
NEAREST = "const int row = max(0, min(s, T - 1));\n"
GATHERED = "add_key(scale * dot(Q, K + s * d, d), V + s * d, m, l, O, d);"


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
    plain = _indexed(q, k, w).masked_fill(hidden, 0)
    right = _indexed(q.double(), k.double(), w.double()).masked_fill(hidden, -torch.inf)
    outputs = {"I": Output(right, same_dtype=plain, axes=("query", "key"))}
    name = f"S = {S}, T = {T}, H = {H}, d = {d}"
    return Case(part, name, (launch,), {"q": q, "k": k, "w": w}, outputs, must_be_clean=True)


def _indexed(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """[S, T]"""
    return torch.einsum("sh,sht->st", w, torch.einsum("shd,td->sht", q, k).relu())


def _scores(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_score(generator, "positive", signed=False), _score(generator, "signed", signed=True)]


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
    inputs = {"Q": Q, "K": K, "V": V, "indices": indices}
    right, plain = (
        _attended(q, keys, values, indices, scale)
        for q, keys, values in ((Q.double(), K.double(), V.double()), (Q, K, V))
    )
    outputs = {"O": Output(right, same_dtype=plain, axes=("query", "column"))}
    name = f"S = {S}, T = {T}, k = {k}, d = {d}"
    return Case(part, name, (launch,), inputs, outputs, must_be_clean=True)


def _attended(Q: Tensor, K: Tensor, V: Tensor, indices: Tensor, scale: float) -> Tensor:
    """O [S, d] over the keys in indices [S, k]; 0 where there are none."""
    valid, rows = (indices >= 0) & (indices < len(K)), indices.clamp(0, len(K) - 1).long()
    scores = (scale * torch.einsum("sd,skd->sk", Q, K[rows])).masked_fill(~valid, -torch.inf)
    return torch.einsum("sk,skd->sd", torch.softmax(scores, dim=-1).nan_to_num(), V[rows])


def _gathers(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_gathered(generator, part) for part in ("keys", "holes", "edges")]


PUZZLES = {
    "relu_before_sum": Puzzle(
        Exercise(
            id="05_deepseek_sparse/relu_before_sum",
            title="The indexer's score",
            kernels=("relu_before_sum",),
            parts=(Part("positive", 1, "weights above 0"), Part("signed", 1, "weights of either sign")),
            cases=_scores,
        ),
        lesson="A few small heads, one weight each, no softmax. Only the order of these scores matters: the next "
        "step keeps the k largest.",
        hint="Go over the H heads. Head j's query begins at q + j * d; dot gives its product with the key. A "
        "product below 0 becomes 0 (fmaxf). Multiply it by w[j], and add it to the sum. Store the sum in row t of I, "
        "column s.",
        mistakes=(
            mistake(
                "the ReLU comes after the sum",
                "Each head's product goes through its own ReLU, before heads are added.",
                INDEXER,
                f"{HEADS}w[j] * dot(q + j * d, k, d);\nI[t * T + s] = fmaxf(sum, 0);",
            ),
            mistake(
                "the ReLU is missing",
                "Without it all heads together are one.",
                INDEXER,
                f"{HEADS}w[j] * dot(q + j * d, k, d){STORED}",
            ),
            mistake(
                "the weight is inside of the ReLU",
                "A head with a negative weight speaks against a key, and ReLU of its product is cut off then.",
                INDEXER,
                f"{HEADS}fmaxf(w[j] * dot(q + j * d, k, d), 0){STORED}",
            ),
            mistake(
                "the weights are missing",
                "Head j counts w[j] times.",
                INDEXER,
                f"{HEADS}fmaxf(dot(q + j * d, k, d), 0){STORED}",
            ),
        ),
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
            findings={"memcheck": Diagnosis("a row is read that K or V does not have", read_again=EDGES)},
        ),
        lesson="The list decides which keys are read: at most k of them, however long the context is. −1 fills the "
        "places of shorter lists.",
        hint="Place i of the list holds a number s. If s is below 0 or at least T, it is no key: go on with the next "
        "place. Otherwise row s of K gives the score, scale times dot, and add_key takes it with row s of V.",
        mistakes=(
            mistake(
                names.PLACE_FOR_KEY,
                "Place i of the list holds the key's number, indices[i].",
                CORE,
                "if (indices[i] < 0 || indices[i] >= T) continue;\n"
                "add_key(scale * dot(Q, K + i * d, d), V + i * d, m, l, O, d);",
                "add_key(scale * dot(Q, K + i * d, d), V + i * d, m, l, O, d);",
            ),
            mistake(
                "an index that is no key counts as a score of 0",
                "A score of 0 has a weight; no key has none.",
                EDGES,
                f"{VALID}if (valid) {GATHERED}\nelse {{ const float no_value[64] = {{}}; "
                "add_key(0, no_value, m, l, O, d); }",
                f"{VALID}{NEAREST}add_key(valid ? scale * dot(Q, K + row * d, d) : 0, V + row * d, m, l, O, d);",
            ),
            mistake(
                "an index that is no key is taken for a key",
                "−1 is not key 0: it has no weight.",
                EDGES,
                f"{VALID}{NEAREST}add_key(scale * dot(Q, K + row * d, d), V + row * d, m, l, O, d);",
            ),
            mistake(
                "the list ends at the first index that is no key",
                "Keys may stand behind a −1.",
                EDGES,
                f"{VALID}if (!valid) break;\n{GATHERED}",
            ),
            mistake(
                "key 0 is left out",
                "Only an index below 0 or from T on is no key.",
                EDGES,
                f"{VALID}if (valid && s > 0) {GATHERED}",
            ),
            mistake(
                names.SCALE_MISSING,
                "Each score is scale times the dot product.",
                CORE,
                f"{VALID}if (valid) add_key(dot(Q, K + s * d, d), V + s * d, m, l, O, d);",
            ),
        ),
    ),
}
