"""Chapter 05's indexer and top-k on this machine: by hand, by the kernels, and against float64."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import plots, reference
from course_utils.chapters.deepseek_sparse.core import difference, normal
from course_utils.operators import lightning_indexer, select_topk

WORDS = "the red fox saw one grey blue car".split()


def eight_words() -> tuple[Tensor, Tensor, Tensor]:
    """Keys [8, 4] of the eight words by noun, colour, animal, vehicle; queries [3, 4] of three heads; weights [3]."""
    keys = [
        [0, 0, 0, 0],
        [0, 2, 0, 0],
        [1, 0, 2, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, -1, 0, 0],
        [0, 2, 0, 0],
        [1, 0, 0, 2],
    ]
    queries = [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]
    return torch.tensor(keys).float(), torch.tensor(queries).float(), torch.tensor([1.0, 0.5, -1.0])


def by_hand() -> Tensor:
    """Computes the scores [8] of the eight words by the formula, and draws them with their products."""
    keys, queries, weights = eight_words()
    dots = queries @ keys.T
    scores = weights @ dots.relu()
    plots.index_scores(WORDS, dots, weights, scores)
    plt.show()
    print("I:", ", ".join(f"{word} {score:g}" for word, score in zip(WORDS, scores.tolist(), strict=True)))
    return scores


def by_kernel() -> None:
    """Computes the same scores by the kernel, with eight equal queries, and shows what ReLU is for."""
    keys, queries, weights = eight_words()
    device = normal(1).device
    eight = queries.expand(8, 3, 4).to(device, torch.bfloat16)
    logits = lightning_indexer(eight, keys.to(device, torch.bfloat16), weights.expand(8, 3).to(device))
    print(logits.cpu().numpy())
    dots = queries @ keys.T
    print("the last row is the one by hand:", torch.equal(logits[-1].cpu(), weights @ dots.relu()))
    print("without ReLU one head would do:", torch.allclose(weights @ dots, (weights @ queries) @ keys.T))


def shares_of_zeros() -> dict[int, float]:
    """Percent of the scores of random vectors that are exactly 0, by the number of heads."""
    shares = {}
    for heads in (2, 4, 8, 64):
        queries, keys = (
            normal(16, heads, 128, dtype=torch.float32).cpu(),
            normal(2048, 128, seed=1, dtype=torch.float32).cpu(),
        )
        weights = normal(16, heads, seed=2, dtype=torch.float32).cpu()
        zero = reference.lightning_indexer(queries, keys, weights, q_start=2048) == 0
        shares[heads] = 100 * zero.double().mean().item()
    return shares


def zeros() -> None:
    """Draws `shares_of_zeros`."""
    shares = shares_of_zeros()
    names = [f"{heads} heads" for heads in shares]
    plots.bars(names, {"random vectors: % of the scores that are exactly 0": [round(x, 1) for x in shares.values()]})
    plt.show()


def random_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Queries [5, 9, 128], keys [130, 128] and weights [5, 9], sizes that no tile divides."""
    return normal(5, 9, 128), normal(130, 128, seed=1), normal(5, 9, seed=2, dtype=torch.float32)


def check_indexer() -> None:
    """Checks lightning_indexer.cu against float64."""
    inputs = random_inputs()
    found = lightning_indexer(*inputs, q_start=120)
    expected = reference.lightning_indexer(*inputs, q_start=120)
    legal = expected > -math.inf
    print("-inf in the right places:", torch.equal(found > -math.inf, legal))
    limit = 1e-5 * expected[legal].abs().max()
    print(f"relative error below 1e-5: {difference(found[legal], expected[legal]) < limit}")


# ---- top-k


def normal_scores() -> Tensor:
    """16,384 normal scores."""
    return torch.randn(16384, generator=torch.Generator().manual_seed(0))


def select_normal() -> Tensor:
    """The indices [1, 2048] of the greatest of `normal_scores`."""
    return select_topk(normal_scores()[None], 2048)


def mostly_zeros() -> Tensor:
    """The absolute values of `normal_scores`, with 90 % of them set to 0."""
    drop = torch.rand(16384, generator=torch.Generator().manual_seed(1)) < 0.9
    return torch.where(drop, 0.0, normal_scores().abs())


def undecided(scores: Tensor, k: int = 2048) -> int:
    """How many scores share the bin of the k-th greatest after the first digit of 11 bits."""
    bits = scores.view(torch.int32).long() & 0xFFFFFFFF
    digit = torch.where(bits >= 1 << 31, 0xFFFFFFFF - bits, bits + (1 << 31)) >> 21
    return int((digit == digit.sort(descending=True).values[k - 1]).sum())


def undecided_after_one_digit() -> float:
    """Percent of a row of normal scores that is undecided after one digit."""
    few, many = undecided(normal_scores()), undecided(mostly_zeros())
    print(f"normal scores: {few:,} of 16,384 are open after one digit")
    print(f"90 % zeros:    {many:,}")
    return round(100 * few / 16384, 1)


def check_topk() -> None:
    """Checks radix_topk.cu on rows with many ties; the second row has only 300 legal keys."""
    logits = (normal(2, 3000, dtype=torch.float32) - 1).relu()
    logits[1, 300:] = -math.inf
    indices, theirs = select_topk(logits, 600), torch.topk(logits, 600).indices
    for row in range(2):
        chosen = indices[row][indices[row] >= 0].long()
        expected = logits[row].sort(descending=True).values[: len(chosen)]
        print(
            f"row {row}: {len(chosen)} selected, each once: {len(chosen.unique()) == len(chosen)}, the greatest: "
            f"{torch.equal(logits[row][chosen].sort(descending=True).values, expected)}, -1 at the tail only: "
            f"{bool((indices[row][len(chosen) :] == -1).all())}"
        )
    ours, of_torch = set(indices[0].tolist()), set(theirs[0].tolist())
    above, ties = int((logits[0] > 0).sum()), int((logits[0] == 0).sum())
    print(f"row 0 has {above} scores above 0; the other {600 - above} are any of {ties:,} zeros")
    print("every score above 0 is there:", set((logits[0] > 0).nonzero()[:, 0].tolist()) <= (ours & of_torch))
