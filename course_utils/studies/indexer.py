"""How an indexer learns to choose keys: dense training, warm-up by KL, sparse training, with a small model.

The last two stages are those of DeepSeek-V3.2 (arXiv 2512.02556 §2.1.1), whose model had been trained dense. The task
is a recall of many witnesses. A sequence is `FACTS` tokens, each a statement "name = value", in random order; every
name is in `WITNESSES` of them. Half of these say the right value, the others all say different wrong ones. Then come
`QUESTIONS` tokens "name = ?". The answer needs nearly all witnesses, which lie anywhere: no window holds them, and
which keys matter depends on the query.

The model has one layer of multi-head latent attention in its absorbed form (one latent row per token is key and value
of all heads) and beside it a lightning indexer. `Recall.tensors` hands both to the real kernels.

    train_dense(model); warm_up(model); train_sparse(model, k)    # seconds each, on one thread, seeded
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from course_utils.studies.on_cpu import one_thread

NAMES, WITNESSES, VALUES, QUESTIONS = 28, 8, 8, 32
FACTS = NAMES * WITNESSES
LENGTH = FACTS + QUESTIONS
WIDTH, HEADS, LATENT = 64, 4, 64
INDEX_HEADS, INDEX_DIM = 2, 16
SCALE = LATENT**-0.5
WAYS = ("oracle", "indexer", "window", "random")  # of choosing keys, see `choice_scores`


class Batch(NamedTuple):
    """Sequences: names and values, int64 `[B, LENGTH]` (a question's value is VALUES); answers, `[B, QUESTIONS]`."""

    names: Tensor
    values: Tensor
    answers: Tensor


def make_batch(size: int, generator: torch.Generator) -> Batch:
    """Draws `size` sequences; everything in them is new each time, so nothing can be learned by heart."""
    noise = torch.rand(size, NAMES, VALUES, generator=generator).argsort(dim=-1)  # a random order of the values
    right, wrong = noise[..., :1], noise[..., 1 : 1 + WITNESSES // 2]
    said = torch.cat([right.expand(-1, -1, WITNESSES // 2), wrong], dim=-1).flatten(1)
    order = torch.rand(size, FACTS, generator=generator).argsort(dim=-1)
    asked = torch.randint(NAMES, (size, QUESTIONS), generator=generator)
    names = torch.cat([order // WITNESSES, asked], dim=1)
    values = torch.cat([said.gather(1, order), torch.full((size, QUESTIONS), VALUES)], dim=1)
    return Batch(names, values, right[..., 0].gather(1, asked))


def agreeing(batch: Batch) -> Tensor:
    """Marks the facts that state a question's right value, bool `[B, QUESTIONS, LENGTH]`."""
    same_name = batch.names[:, None, :] == batch.names[:, FACTS:, None]
    return same_name & (batch.values[:, None, :] == batch.answers[:, :, None])


class Tensors(NamedTuple):
    """The inputs of attention and indexer for a batch, sequence by sequence as the kernels take them."""

    query: Tensor  # [B, QUESTIONS, HEADS, LATENT]
    latent: Tensor  # [B, LENGTH, LATENT]
    q_index: Tensor  # [B, QUESTIONS, INDEX_HEADS, INDEX_DIM]
    k_index: Tensor  # [B, LENGTH, INDEX_DIM]
    weights: Tensor  # [B, QUESTIONS, INDEX_HEADS], with the scales of V3.2


class Recall(nn.Module):
    """One layer of attention with its indexer. Only the questions are queries: they are the last tokens."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.name, self.value = nn.Embedding(NAMES, WIDTH), nn.Embedding(VALUES + 1, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.to_query = nn.Linear(WIDTH, HEADS * LATENT, bias=False)
        self.to_latent = nn.Linear(WIDTH, LATENT, bias=False)
        self.out = nn.Linear(HEADS * LATENT, WIDTH, bias=False)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VALUES))
        self.indexer = nn.ModuleDict(
            {
                "q": nn.Linear(WIDTH, INDEX_HEADS * INDEX_DIM, bias=False),
                "k": nn.Linear(WIDTH, INDEX_DIM, bias=False),
                "weights": nn.Linear(WIDTH, INDEX_HEADS),
            }
        )

    def hidden(self, batch: Batch, start: int = 0) -> Tensor:
        """Normalised hidden states `[B, LENGTH - start, WIDTH]` of the tokens from `start` on. There are no positions:
        only content tells tokens apart."""
        return self.norm(self.name(batch.names[:, start:]) + self.value(batch.values[:, start:]))

    def tensors(self, batch: Batch) -> Tensors:
        """The projections of a batch. The indexer's input is detached: its loss does not reach the model."""
        hidden = self.hidden(batch)
        last, frozen = hidden[:, FACTS:], hidden.detach()
        weights = self.indexer["weights"](frozen[:, FACTS:]) * (INDEX_HEADS * INDEX_DIM) ** -0.5
        return Tensors(
            self.to_query(last).unflatten(-1, (HEADS, LATENT)),
            self.to_latent(hidden),
            self.indexer["q"](frozen[:, FACTS:]).unflatten(-1, (INDEX_HEADS, INDEX_DIM)),
            self.indexer["k"](frozen),
            weights,
        )

    def answer(self, batch: Batch, attended: Tensor) -> Tensor:
        """Logits `[B, QUESTIONS, VALUES]` from the output of attention `[B, QUESTIONS, HEADS, LATENT]`."""
        return self.head(self.hidden(batch, FACTS) + self.out(attended.flatten(-2)))


@functools.cache
def visible() -> Tensor:
    """The causal mask of the questions: bool `[QUESTIONS, LENGTH]`."""
    return torch.arange(LENGTH) <= torch.arange(FACTS, LENGTH)[:, None]


def index_scores(x: Tensors) -> Tensor:
    """`I[t, s] = sum_j w[t, j] ReLU(q[t, j] · k[s])`, `[B, QUESTIONS, LENGTH]`; minus infinity if hidden."""
    dots = torch.einsum("bsjd,btd->bsjt", x.q_index, x.k_index).relu()
    return torch.einsum("bsj,bsjt->bst", x.weights, dots).masked_fill(~visible(), -torch.inf)


def attention(x: Tensors, marked: Tensor | None = None) -> Tensor:
    """Weights `[B, QUESTIONS, HEADS, LENGTH]` over the visible keys, or over the marked ones `[B, QUESTIONS,
    LENGTH]`."""
    scores = torch.einsum("bshd,btd->bsht", x.query, x.latent) * SCALE
    mask = visible() if marked is None else visible() & marked
    return scores.masked_fill(~mask.unsqueeze(-2), -torch.inf).softmax(dim=-1)


def mass(weights: Tensor) -> Tensor:
    """The target of the indexer: attention summed over the heads and divided by its sum, `[B, QUESTIONS, LENGTH]`."""
    return weights.mean(dim=-2).detach()  # each head's weights sum to 1


def choice_scores(x: Tensors, way: str = "indexer") -> Tensor:
    """A score of each key for the choice, `[B, QUESTIONS, LENGTH]`; minus infinity for a key that the question does not
    see.

    way: "indexer", by its scores; "oracle", by the true attention mass; "window", the nearest first; "random".
    """
    if way not in WAYS:
        raise ValueError(f"way is {way!r}; it must be one of {', '.join(WAYS)}")
    shape = x.query.shape[0], QUESTIONS, LENGTH
    if way == "indexer":
        return index_scores(x)
    if way == "oracle":
        scores = mass(attention(x))
    elif way == "window":
        scores = torch.arange(LENGTH).expand(shape).float()
    else:
        scores = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(~visible(), -torch.inf)


def choose(x: Tensors, k: int, way: str = "indexer") -> Tensor:
    """Marks the k keys with the highest `choice_scores`, bool `[B, QUESTIONS, LENGTH]`."""
    chosen = choice_scores(x, way).topk(k, dim=-1).indices
    return torch.zeros(*chosen.shape[:2], LENGTH, dtype=torch.bool).scatter_(-1, chosen, True)


def attend(x: Tensors, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the chosen keys alone; only their scores are computed. Weights `[B, QUESTIONS, HEADS, k]` and
    output `[B, QUESTIONS, HEADS, LATENT]`.

    chosen: int64 `[B, QUESTIONS, k]`, keys that the questions see.
    """
    latent = x.latent[torch.arange(len(chosen))[:, None, None], chosen]
    weights = (torch.einsum("bshd,bskd->bshk", x.query, latent) * SCALE).softmax(dim=-1)
    return weights, torch.einsum("bshk,bskd->bshd", weights, latent)


def kl_loss(target: Tensor, scores: Tensor) -> Tensor:
    """KL(target ‖ softmax(scores)), the mean over queries, of tensors `[B, QUESTIONS, keys]`; keys with a score of
    minus infinity are left out."""
    predicted = scores.log_softmax(dim=-1).masked_fill(scores == -torch.inf, 0)
    return kl_div(predicted.flatten(0, 1), target.flatten(0, 1), reduction="batchmean")


# ---------------------------------------------------------------------------------------------- the three stages


def _train(
    parameters: Sequence[nn.Parameter],
    steps: int,
    rate: float,
    size: int,
    seed: int,
    loss: Callable[[Batch, int], Tensor],
) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    with one_thread():
        for step in range(steps):
            value = loss(make_batch(size, generator), step)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()


def main_parameters(model: Recall) -> list[nn.Parameter]:
    """All parameters except the indexer's."""
    return [value for name, value in model.named_parameters() if not name.startswith("indexer")]


def train_dense(model: Recall, *, steps: int = 200, rate: float = 4e-3, batch: int = 8, seed: int = 1) -> None:
    """Trains the model with dense attention; the indexer takes no part."""

    def loss(data: Batch, step: int) -> Tensor:
        x = model.tensors(data)
        attended = torch.einsum("bsht,btd->bshd", attention(x), x.latent)
        return cross_entropy(model.answer(data, attended).flatten(0, 1), data.answers.flatten())

    _train(main_parameters(model), steps, rate, batch, seed, loss)


def warm_up(
    model: Recall,
    *,
    steps: int = 100,
    rate: float = 4e-3,
    batch: int = 8,
    seed: int = 2,
    every: int = 5,
    k: int = WITNESSES,
) -> list[dict[str, float]]:
    """Trains the indexer alone by the KL to the head-summed dense attention; the model is frozen.

    Returns the curve, a row each `every` steps: step, kl, mass_kept (at k keys, on new sequences).
    """
    curve = []

    def loss(data: Batch, step: int) -> Tensor:
        x = model.tensors(data)
        with torch.no_grad():
            target = mass(attention(x))
        value = kl_loss(target, index_scores(x))
        if step % every == 0 or step == steps - 1:
            curve.append({"step": step, "kl": value.item(), "mass_kept": mass_kept(model, [k])[0]})
        return value

    _train(list(model.indexer.parameters()), steps, rate, batch, seed, loss)
    return curve


def train_sparse(model: Recall, k: int, *, steps: int = 60, rate: float = 1e-3, batch: int = 8, seed: int = 3) -> None:
    """Trains model and indexer further with the k chosen keys alone.

    The model learns from the task, the indexer from the KL over the chosen keys; neither loss reaches the other's
    parameters.
    """

    def loss(data: Batch, step: int) -> Tensor:
        x = model.tensors(data)
        scores = index_scores(x)
        chosen = scores.topk(k, dim=-1).indices
        weights, attended = attend(x, chosen)
        task = cross_entropy(model.answer(data, attended).flatten(0, 1), data.answers.flatten())
        return task + kl_loss(mass(weights), scores.gather(-1, chosen))

    _train(list(model.parameters()), steps, rate, batch, seed, loss)


# ---------------------------------------------------------------------------------------------- what came of it


@functools.cache
def new_batch(size: int = 32) -> Batch:
    """The same new sequences for every evaluation."""
    return make_batch(size, torch.Generator().manual_seed(1000))


@one_thread()
@torch.no_grad()
def accuracy(model: Recall, k: int | None = None, way: str = "indexer") -> float:
    """Share of right answers on `new_batch`, with dense attention (k None) or with k keys chosen by `way`."""
    return accuracy_with(model, None if k is None else choose(model.tensors(new_batch()), k, way))


@one_thread()
@torch.no_grad()
def accuracy_with(model: Recall, marked: Tensor | None) -> float:
    """Share of right answers on `new_batch` with the marked keys, bool `[B, QUESTIONS, LENGTH]`."""
    data = new_batch()
    x = model.tensors(data)
    weights = attention(x, marked)
    attended = torch.einsum("bsht,btd->bshd", weights, x.latent)
    return (model.answer(data, attended).argmax(dim=-1) == data.answers).float().mean().item()


@one_thread()
@torch.no_grad()
def mass_kept(model: Recall, ks: Sequence[int], way: str = "indexer") -> list[float]:
    """Share of the dense attention's mass on the keys chosen by `way`, for each number of keys in `ks`."""
    x = model.tensors(new_batch())
    chosen = choice_scores(x, way).topk(max(ks), dim=-1).indices  # the first choice first
    sums = mass(attention(x)).gather(-1, chosen).cumsum(dim=-1).mean(dim=(0, 1))
    return [sums[k - 1].item() for k in ks]
