"""Chapter 04's attention by torch.compile: a layer that has a pattern, and how many graphs are made of it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from course_utils import patterns, plots
from course_utils.chapters.sparse_patterns.runs import inputs
from course_utils.operators import sparse_attention
from course_utils.patterns import Pattern

LENGTHS, WINDOWS = (150, 200, 90), (40, 30, 20)
AS_IT_IS = "three lengths, as it is"
WAYS = {"three lengths, dynamic=False": False, AS_IT_IS: None, "three lengths, dynamic=True": True}


class Layer(nn.Module):
    """Attention of one head with d = 64 by a pattern: `[B, L, 64]` to `[B, L, 64]`."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        self.qkv, self.pattern = nn.Linear(64, 3 * 64), pattern

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x)[:, None].chunk(3, dim=-1)
        return sparse_attention(query, key, value, self.pattern)[:, 0]


def layer(pattern: Pattern) -> Layer:
    """The layer where this notebook's kernels run, in fp16."""
    return Layer(pattern).to(inputs(1)[0].device, torch.float16)


def by_graphs(
    model: Callable[..., Tensor], graphs: list[GraphModule], *, dynamic: bool | None = None
) -> Callable[..., Tensor]:
    """The model by torch.compile, each graph in one piece and run as it is. The graphs are appended to `graphs`."""

    def keep(graph: GraphModule, _: object) -> GraphModule:
        graphs.append(graph)
        return graph

    torch.compiler.reset()  # a cell may run again and again; what it compiled before counts towards a limit
    return torch.compile(model, fullgraph=True, dynamic=dynamic, backend=keep)


def count_graphs(layer: nn.Module) -> int:
    """Draws how many graphs three calls make, with different lengths and with different patterns. Returns the number
    for three lengths with torch.compile's default for `dynamic`.

    layer: a module that takes `[B, L, 64]` and has a pattern as the attribute `pattern`.
    """
    counts, layer = {}, copy.deepcopy(layer)
    for name, dynamic in WAYS.items():
        model = by_graphs(layer, graphs := [], dynamic=dynamic)
        for length in LENGTHS:
            model(inputs(length)[0][0])
        counts[name] = len(graphs)
    others, qkv = [patterns.sliding_window(window) for window in WINDOWS], inputs(LENGTHS[0])
    model = by_graphs(layer, graphs := [], dynamic=True)
    for pattern in others:
        layer.pattern = pattern
        model(qkv[0][0])
    counts["three patterns, an attribute"] = len(graphs)
    model = by_graphs(sparse_attention, graphs := [], dynamic=True)
    for pattern in others:
        model(*qkv, pattern)
    counts["three patterns, an argument"] = len(graphs)
    plots.bars(list(counts), {"graphs after three calls": list(counts.values())})
    plt.show()
    return counts[AS_IT_IS]
