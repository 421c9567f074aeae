"""Chapter 01's sentence with its vectors, and the size of dot products."""

from __future__ import annotations

import math
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils import plots

WORDS = "the cat drank the milk because it was thirsty".split()
KINDS = ["article", "animal", "verb", "food", "link", "pronoun", "property"]
KIND_OF = dict(the=0, cat=1, drank=2, milk=3, because=4, it=5, was=2, thirsty=6)
LOOKS_FOR = {  # which kinds a word of some kind looks for, and how strongly
    "article": {"animal": 4, "food": 4},
    "animal": {"verb": 5, "property": 3},
    "verb": {"animal": 5, "food": 5},
    "food": {"verb": 5},
    "link": {"verb": 4, "property": 4},
    "pronoun": {"animal": 7, "food": 2},
    "property": {"animal": 5, "pronoun": 5},
}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class Sentence(NamedTuple):
    """The words of the sentence; query and key `[9, 7]`, with a component for each kind of word; value `[9, 9]`,
    one-hot by word."""

    words: list[str]
    query: Tensor
    key: Tensor
    value: Tensor


def sentence() -> Sentence:
    """The sentence, with W_q written by hand: a key names the word's kind, a query the kinds that it looks for."""
    W_q = torch.tensor([[LOOKS_FOR[kind].get(other, 0) for other in KINDS] for kind in KINDS]).float()
    key = F.one_hot(torch.tensor([KIND_OF[word] for word in WORDS]), len(KINDS)).float()
    return Sentence(WORDS, key @ W_q, key, torch.eye(len(WORDS)))


def products(head_dim: int, count: int = 20_000) -> Tensor:
    """Dot products `[count]` of normal vectors with head_dim components, from a fixed seed."""
    generator = torch.Generator().manual_seed(head_dim)
    q, k = (torch.randn(count, head_dim, generator=generator) for _ in range(2))
    return (q * k).sum(dim=-1)


def show_products(dims: tuple[int, ...] = (16, 64, 256, 1024)) -> None:
    """Draws the spread of q·k and of q·k/√d for each d."""
    plain = {f"d = {d}": products(d) for d in dims}
    scaled = {name: values / math.sqrt(d) for (name, values), d in zip(plain.items(), dims, strict=True)}
    plots.dot_products({"q·k": plain, "q·k / √d": scaled})
    plt.show()


def saturated(head_dim: int, power: float, keys: int = 128) -> tuple[float, float]:
    """The largest weight of a row and Σ p(1 − p) for softmax(q·k / d**power) over normal keys, each the mean of 200
    rows."""
    generator = torch.Generator().manual_seed(head_dim)
    q, k = (torch.randn(count, head_dim, generator=generator) for count in (200, keys))
    p = torch.softmax(q @ k.T / head_dim**power, dim=-1)
    return p.amax(dim=-1).mean().item(), (p * (1 - p)).sum(dim=-1).mean().item()


def show_saturation() -> None:
    """Draws the two figures of `saturated` against d, without the factor 1/√d and with it."""
    dims = [2**n for n in range(2, 13)]
    lines = {}
    for name, power in (("q·k", 0.0), ("q·k / √d", 0.5)):
        largest, slopes = zip(*(saturated(d, power) for d in dims), strict=True)
        lines[name] = largest, slopes
    plots.saturation(dims, lines)
    plt.show()


def exponents() -> dict[str, tuple[float, float]]:
    """The range of x in which exp(x) is neither 0 nor infinite, by type."""
    limits = {name: torch.finfo(dtype) for name, dtype in TYPES.items()}
    return {name: (math.log(of.smallest_normal * of.eps), math.log(of.max)) for name, of in limits.items()}


def show_exponents(rows: Tensor) -> None:
    """Draws the ranges of `exponents` beside the scores of some rows `[rows, L_k]`."""
    names = {", ".join(f"{score:g}" for score in row): row for row in rows.tolist()}
    plots.safe_exponents(exponents(), names)
    plt.show()
