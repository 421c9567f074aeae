"""Chapter 03's training step by torch.compile: the graphs that it makes, and what they gain."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import GraphModule

from course_utils import measured, plots
from course_utils.chapters.tensors import normal
from course_utils.measured import Row
from course_utils.measured.flash_attention_v2 import COMPILED, EAGER, OURS, SDPA
from course_utils.operators import flash_attention_v2
from course_utils.operators.library import NAMESPACE

OUR_OPERATOR, PRODUCTS, COPIES, OTHERS = "our operator", "matrix products", "copies for the layout", "all others"
KINDS = {PRODUCTS: ("mm", "addmm"), COPIES: ("clone", "select_backward")}
VIEWS = "detach", "_unsafe_view"  # that torch does not mark as such
WIDTH, HEADS = 128, 2


# ---- the graphs


def graphs_of_a_step() -> int:
    """Draws what torch.compile makes of a training step of the block with our operator, and prints whether loss and
    gradients equal eager mode's. Returns the number of graphs."""
    torch.manual_seed(0)
    from course_utils.bench.flash_attention_v2 import Block

    x = normal(1, 20, WIDTH)
    block = Block(flash_attention_v2, WIDTH, HEADS).to(x)
    eager = loss_and_gradients(block, block, x)
    graphs: list[GraphModule] = []
    found = loss_and_gradients(block, compiled(block, graphs), x)
    titles = "forward, one graph", "backward, one graph"
    plots.operations({title: operations(graph) for title, graph in zip(titles, graphs, strict=True)})
    plt.show()
    print("loss and gradients are those of eager mode, up to rounding:", all(map(alike, found, eager)))
    return len(graphs)


def compiled(block: nn.Module, graphs: list[GraphModule]) -> Callable[[Tensor], Tensor]:
    """The block by torch.compile, in one graph. The graphs of its forward and backward pass go to `graphs`."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd  # both take seconds to import

    def keep(graph: GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch.compiler.reset()  # a cell may run again and again; what it compiled before counts towards a limit
    return torch.compile(block, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))


def loss_and_gradients(block: nn.Module, model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
    """Loss (a mean of squares) and gradients of the block. model: the block itself, or its compiled form."""
    loss = model(x).float().square().mean()
    return loss.detach(), *torch.autograd.grad(loss, list(block.parameters()))


def alike(found: Tensor, expected: Tensor) -> bool:
    """Whether two results are equal up to rounding. On a GPU atomics add to dQ in no fixed order."""
    return bool((found - expected).abs().max() <= 1e-2 * expected.abs().max())


def operations(graph: GraphModule) -> list[tuple[str, str]]:
    """Kind and name of each operation of a graph that computes something, in order; views are left out."""
    found = []
    for target in (node.target for node in graph.graph.nodes if isinstance(node.target, OpOverload)):
        name = target.overloadpacket.__name__
        if target.is_view or name in VIEWS:
            continue
        kind = next((kind for kind, names in KINDS.items() if name in names), OTHERS)
        kind = OUR_OPERATOR if target.namespace == NAMESPACE else kind
        found.append((kind, name.removeprefix("native_").replace("_", " ")))
    return found


# ---- what they gain


def steps() -> None:
    """Shows time and memory of a step, eager and compiled, with our operator and with SDPA, measured here or
    recorded."""

    def measure() -> list[Row]:
        from course_utils.bench.compiled_step import compiled_step

        return compiled_step()

    found = measured.live_or_recorded("compiled_step", measure)
    for batch, length in dict.fromkeys((row["batch"], row["length"]) for row in found.rows):
        rows = found.select(batch=batch, length=length)
        columns = {"ms per step": "median_ms", "ms of the GPU": "gpu_ms", "peak MB": "peak_mb"}
        names = [f"{row['name']}, {row['way']}" for row in rows]
        plots.bars(names, {title: [row[column] for row in rows] for title, column in columns.items()}, alike=2)
        plt.show()
        print(f"B = {batch}, L = {length}, fp16; {measured.caption(found)}")
        ms = {(row["name"], row["way"]): row["median_ms"] for row in rows}
        for name in (OURS, SDPA):
            if (name, COMPILED) in ms:
                share = ms[name, COMPILED] / ms[name, EAGER]
                print(f"compiled, a step with {name} takes {share:.2f} times as long as in eager mode")
