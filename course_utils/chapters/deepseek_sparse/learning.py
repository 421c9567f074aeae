"""Chapter 05's small model whose indexer learns to choose: what attention holds, the warm-up, sparse training."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import plots, show
from course_utils.chapters.deepseek_sparse.core import normal
from course_utils.operators import lightning_indexer, select_topk, sparse_mla
from course_utils.studies import indexer as study

KS = (1, 2, 4, 8, 16, 32, 64, 128, 224)
EIGHT = KS.index(8)
Curves = dict[str, list[float]]


def trained_dense() -> study.Recall:
    """The model after dense training. Prints how many of its answers are right."""
    model = study.Recall()
    study.train_dense(model)
    print(
        f"dense attention: {study.accuracy(model):.0%} of the answers right; guessing would be {1 / study.VALUES:.0%}"
    )
    return model


def task() -> None:
    """Draws a sequence of the task: facts in random order, and the eight that a question needs."""
    batch = study.make_batch(1, torch.Generator().manual_seed(0))
    plots.facts_of_a_question(
        batch.names[0, : study.FACTS], batch.values[0, : study.FACTS], int(batch.names[0, study.FACTS])
    )
    plt.show()


def mass_curves(model: study.Recall, indexers: Mapping[str, study.Recall]) -> Curves:
    """Percent of the attention mass that k keys hold, for each k in `KS`, by the way of choosing keys."""
    ways = {"oracle": (model, "oracle")} | {name: (chosen, "indexer") for name, chosen in indexers.items()}
    ways |= {"the last k": (model, "window"), "random": (model, "random")}
    ways["oracle, model untrained"] = (study.Recall(), "oracle")
    return {name: [100 * x for x in study.mass_kept(chosen, KS, way)] for name, (chosen, way) in ways.items()}


def mass_before(model: study.Recall) -> float:
    """Draws the curves of all ways to choose before the warm-up. Returns the percent of the mass on the best 8 keys."""
    curves = mass_curves(model, {"indexer, untrained": model})
    plots.mass_kept(KS, curves)
    plt.show()
    return round(curves["oracle"][EIGHT])


def warmed_up(model: study.Recall) -> study.Recall:
    """The model with its indexer after the warm-up. Draws the course of the warm-up."""
    warm = copy.deepcopy(model)
    curve = study.warm_up(warm)
    best = 100 * study.mass_kept(model, (8,), "oracle")[0]
    plots.warm_up(
        [row["kl"] for row in curve], [100 * row["mass_kept"] for row in curve], [row["step"] for row in curve], best
    )
    plt.show()
    return warm


def mass_after(model: study.Recall, warm: study.Recall) -> None:
    """Draws the curves with the indexer after the warm-up."""
    plots.mass_kept(KS, mass_curves(model, {"indexer, untrained": model, "indexer, after the warm-up": warm}))
    plt.show()


def answers(model: study.Recall, warm: study.Recall) -> None:
    """Draws how many answers are right with k keys, by the way of choosing them."""
    found: dict[str, dict[int, float]] = {}
    for k in (4, 8, 16, 32):
        line = {"oracle": study.accuracy(model, k, "oracle"), "indexer, untrained": study.accuracy(model, k)}
        line |= {"after the warm-up": study.accuracy(warm, k), "the last k": study.accuracy(model, k, "window")}
        for name, share in line.items():
            found.setdefault(name, {})[k] = 100 * share
    colours = (plots.GREY, plots.ORANGE, plots.BLUE, plots.PURPLE)
    groups = {f"k = {k} of 256": {name: float(f"{of[k]:.0f}") for name, of in found.items()} for k in (4, 8, 16, 32)}
    plots.grouped_bars(groups, "% of the answers right", colours=colours)
    plt.show()
    rows = [{"k of 256": k} | {name: f"{of[k]:.0f}%" for name, of in found.items()} for k in (4, 8, 16, 32)]
    show.table(rows, f"answers right; dense: {study.accuracy(model):.0%}", folded=True)
    exact = study.accuracy_with(model, study.agreeing(study.new_batch()))
    print(f"with exactly the four facts that agree: {exact:.0%}")


def sparse_training(model: study.Recall) -> float:
    """Draws how many answers are right before and after sparse training, with and without a warm-up. Returns the
    percent after 60 sparse steps without one."""
    rows, groups = [], {}
    for steps, sparse_steps in ((0, 60), (10, 60), (20, 60), (0, 240)):
        trained = copy.deepcopy(model)
        study.warm_up(trained, steps=steps)
        before = study.accuracy(trained, 8)
        study.train_sparse(trained, 8, steps=sparse_steps)
        shares = {"right before them": before, "right after": study.accuracy(trained, 8)}
        shares["the same model, dense"] = study.accuracy(trained)
        line = {"steps of warm-up": steps, "sparse steps": sparse_steps}
        rows.append(line | {name: f"{share:.0%}" for name, share in shares.items()})
        groups[f"warm-up {steps},\nsparse {sparse_steps}"] = {name: round(100 * x) for name, x in shares.items()}
    plots.grouped_bars(groups, "% of the answers right", colours=(plots.ORANGE, plots.BLUE, plots.GREY))
    plt.show()
    show.table(rows, "answers right with the 8 keys that the indexer chooses", folded=True)
    print(f"DeepSeek's sparse stage: {943.7 / (943.7 + 2.1):.1%} of the tokens of both stages")
    return float(rows[0]["right after"].rstrip("%"))


@torch.no_grad()
def by_kernels(model: study.Recall, data: study.Batch, k: int, sequence: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, indices and answers of one sequence by the three kernels in bf16."""
    device = normal(1).device
    x = study.Tensors(*(part[sequence].to(device) for part in model.tensors(data)))
    low = [part.bfloat16() for part in (x.query, x.latent, x.q_index, x.k_index)]
    logits = lightning_indexer(low[2], low[3], x.weights, q_start=study.FACTS)
    indices = select_topk(logits, k)
    out, _ = sparse_mla(low[0], low[1], indices, scale=study.SCALE, value_dim=study.LATENT)
    one = study.Batch(*(part[sequence : sequence + 1] for part in data))
    return logits, indices, model.answer(one, out[None].float().cpu()).argmax(dim=-1)[0]


def check_kernels(warm: study.Recall, sequences: int = 4) -> None:
    """Runs the trained weights in our kernels: prints how many answers are right, and how many keys PyTorch chooses as
    well."""
    data = study.new_batch()
    found = [by_kernels(warm, data, 8, n) for n in range(sequences)]
    right = torch.stack([said == data.answers[n] for n, (_, _, said) in enumerate(found)]).float().mean()
    in_torch = study.choose(warm.tensors(data), 8)
    shared = [in_torch[n].gather(1, indices.cpu().long()).float().mean() for n, (_, indices, _) in enumerate(found)]
    print(f"right by our kernels: {right:.0%} of {sequences * study.QUESTIONS} answers, with k = 8")
    print(f"keys that PyTorch in fp32 chooses as well: {sum(shared) / sequences:.1%}")


@torch.no_grad()
def scores_and_attention(warm: study.Recall) -> tuple[Tensor, Tensor]:
    """The indexer's scores of one sequence by the kernel, and the true attention, both [32, 256]."""
    data = study.new_batch()
    return by_kernels(warm, data, 8, 0)[0].cpu(), study.mass(study.attention(warm.tensors(data)))[0]
