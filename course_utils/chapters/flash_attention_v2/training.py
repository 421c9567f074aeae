"""Chapter 03's second half: gradients in 16 bits, how the backward pass is divided among blocks, and a training
step."""

from __future__ import annotations

import functools

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from course_utils import costs, measured, plots, reference, show
from course_utils.chapters.flash_attention_v2.peers import record, training_caption
from course_utils.chapters.tensors import normal
from course_utils.measured.flash_attention_v2 import NAIVE, OURS, TOKENS, WIDTH
from course_utils.operators import flash_attention_v2

DTYPES = (torch.float16, torch.bfloat16)
GRADIENTS = ("dQ", "dK", "dV")
BATCH_TOKENS = 16 * 2048  # of the mean that is the loss
SCALED = 2**16


# ---- half precision


def formats() -> None:
    """Shows range and precision of both formats, and the error of the forward pass in each."""
    for dtype in DTYPES:
        info = torch.finfo(dtype)
        print(f"{info.dtype:8}: largest {info.max:.2g}, smallest normal {info.tiny:.2g}, spacing at 1 {info.eps:.2g}")
    for dtype in DTYPES:
        rounded = [x.to(dtype) for x in exact_inputs()]
        expected = reference.attention(*rounded)
        for name, attention in ((OURS, flash_attention_v2), ("plain PyTorch", reference.torch_attention)):
            error = (attention(*rounded) - expected).abs().max().item()
            print(f"{str(dtype)[6:]:8}: {name:18} is off by {error:.1e} at most")


@functools.cache
def exact_inputs() -> tuple[Tensor, ...]:
    """Query, key and value in float64, [1, 2, 200, 64]."""
    generator = torch.Generator().manual_seed(4)
    inputs = [torch.randn(1, 2, 200, 64, generator=generator, dtype=torch.float64) for _ in range(3)]
    return tuple(x.cuda() if torch.cuda.is_available() else x for x in inputs)


@functools.cache
def output_gradient() -> Tensor:
    """dO of an untrained model, [1, 12, 200, 64], for a loss that is a mean over `BATCH_TOKENS` tokens."""
    from course_utils.bench import flash_attention_v2 as bench

    return bench.output_gradient((1, 12, 200, 64), tokens=BATCH_TOKENS)


def size_of_dO() -> float:
    """Prints the typical size of an element of dO beside the smallest numbers of both formats. Returns its ratio to the
    smallest positive fp16 number, to one decimal."""
    size = output_gradient().square().mean().sqrt().item()
    print(f"an element of dO, root of the mean square: {size:.1e}")
    for dtype in DTYPES:
        info = torch.finfo(dtype)
        print(
            f"{info.dtype:8}: smallest positive {info.smallest_normal * info.eps:.1e}, all digits from {info.tiny:.1e}"
        )
    half = torch.finfo(torch.float16)
    return round(size / (half.smallest_normal * half.eps), 1)


@functools.cache
def gradients(dtype: torch.dtype, loss_scale: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """dQ, dK and dV by our kernels with a scaled loss, and the right ones for the same loss."""
    leaves = [x.to(dtype).requires_grad_() for x in exact_inputs()]
    grad = loss_scale * output_gradient()[:, :2].to(leaves[0].device)  # of two heads
    found = torch.autograd.grad(flash_attention_v2(*leaves), leaves, grad.to(dtype))
    return found, reference.attention_gradients(*(x.detach().double() for x in leaves), grad)


def what_is_left() -> None:
    """Shows which share of our gradients is zero and subnormal, without and with loss scaling, and their errors."""
    from course_utils.bench.flash_attention_v2 import lost_shares

    names, zeros, subnormal, table = [], [], [], []
    for dtype, loss_scale in ((torch.float16, 1), (torch.float16, 2**10), (torch.float16, SCALED), (torch.bfloat16, 1)):
        row = {"format": str(dtype)[6:], "loss ×": loss_scale}
        for name, ours, right in zip(GRADIENTS, *gradients(dtype, loss_scale), strict=True):
            lost, error = lost_shares(ours), (ours.double() - right).norm() / right.norm()
            row |= {f"{name}: zeros": f"{lost['zero']:.0%}", f"{name}: subnormal": f"{lost['subnormal']:.0%}"}
            row[f"{name}: error"] = f"{error.item():.1%}"
            names.append(f"{name}, {row['format']}, loss × {loss_scale:,}")
            zeros.append(lost["zero"])
            subnormal.append(lost["subnormal"])
        table.append(row)
    _draw_shares(names, zeros, subnormal)
    show.table(table, "L = 200; shares of elements that are 0 and subnormal; error in the Euclidean norm", folded=True)


def what_is_left_of_longer_rows() -> None:
    """Shows the fp16 figures of `what_is_left`, recorded for longer rows."""
    rows = [
        row for scale in (1, SCALED) for row in record().select(part="underflow", dtype="float16", loss_scale=scale)
    ]
    names = [f"d{row['name'][1:].upper()}, loss × {row['loss_scale']:,}" for row in rows]
    _draw_shares(names, [row["zero"] for row in rows], [row["subnormal"] for row in rows])
    for row in rows:
        shares = f"{row['zero']:.1%} zeros, {row['subnormal']:.1%} subnormal"
        print(f"L = {row['length']}, loss × {row['loss_scale']:6,}, {row['name']}: {shares}")
    print(measured.caption(record()))


def _draw_shares(names: list[str], zeros: list[float], subnormal: list[float]) -> None:
    rows = {
        name: {"all digits": 100 * (1 - zero - few), "subnormal: fewer digits": 100 * few, "0: lost": 100 * zero}
        for name, zero, few in zip(names, zeros, subnormal, strict=True)
    }
    plots.stacked_bars(rows, "% of the elements", colours=(plots.BLUE, plots.SKY, plots.ORANGE))
    plt.show()


def magnitudes() -> None:
    """Draws histograms of the right gradients by powers of two, beside the limits of fp16."""
    _, (dQ, _, dV) = gradients(torch.float16, 1)
    smallest = torch.finfo(torch.float16).smallest_normal
    limits = {"smallest fp16": smallest * torch.finfo(torch.float16).eps, "all digits from here": smallest}
    plots.magnitudes({"dQ": dQ.cpu(), "dV": dV.cpu(), "dQ, loss × 2^16": dQ.cpu() * SCALED}, limits)
    plt.show()


# ---- the backward pass


def products() -> int:
    """Draws the number of matrix products for each way to dQ; the forward pass has two. Returns the number for the last
    way."""
    ways = {"forward": "S O", "backward, dQ by atomics": "S dP dV dK dQ"}
    ways |= {"backward, second pass": "S dP dV dK, S dP dQ"}
    plots.bars(list(ways), {"matrix products": [len(taken.split()) for taken in ways.values()]})
    plt.show()
    for name, taken in ways.items():
        count = len(taken.split())
        print(f"{name:24} {count} products ({taken}): {count / 2:.1f} × forward")
    return count


def sums_in_other_orders() -> None:
    """Shows how many different sums the same numbers give when they are added in different orders."""
    x = torch.randn(256, generator=torch.Generator().manual_seed(6))
    orders = (torch.randperm(256, generator=torch.Generator().manual_seed(seed)) for seed in range(20))
    found = [float(np.add.accumulate(x[order].numpy())[-1]) for order in orders]
    plots.different_sums(found, x.double().sum().item())
    plt.show()
    sums = set(found)
    print(f"the same 256 fp32 numbers added up in 20 orders: {len(sums)} different sums")


def all_gradients() -> tuple[Tensor, ...]:
    """dQ, dK and dV of one fixed input, causal."""
    leaves = [normal(1, 2, 150, 64, seed=seed).requires_grad_() for seed in range(3)]
    out = flash_attention_v2(*leaves, is_causal=True)
    return torch.autograd.grad(out, leaves, normal(1, 2, 150, 64, seed=3))


def gradients_in_the_same_order() -> tuple[Tensor, ...]:
    """`all_gradients` in deterministic mode, by the second pass."""
    torch.use_deterministic_algorithms(True)
    try:
        return all_gradients()
    finally:
        torch.use_deterministic_algorithms(False)


def compare_both_ways() -> None:
    """Prints whether the second pass gives the same bits twice, and the same as atomics up to rounding."""
    by_atomics = all_gradients()
    first, second = gradients_in_the_same_order(), gradients_in_the_same_order()
    print("second pass, two runs, the same bits:", all(map(torch.equal, first, second)))
    close = [torch.allclose(a, b, rtol=1e-2, atol=2e-3) for a, b in zip(first, by_atomics, strict=True)]
    print("the same as by atomics, up to rounding:", all(close))


def recompute_gain(length: int = 2048) -> float:
    """How many times as fast as naive attention's, which stores P, our backward pass is; d = 64."""
    stored, again = (
        record().select(part="recompute", name=name, length=length)[0]["median_ms"]
        for name in ("stores P", "recomputes P")
    )
    return stored / again


def recompute_or_store() -> None:
    """Shows time and memory of recomputing and of storing P, by length."""
    by_length = {(row["name"], row["length"]): row for row in record().select(part="recompute")}
    table = []
    for length in sorted({length for _, length in by_length}):
        again, stored = by_length["recomputes P", length], by_length.get(("stores P", length), {})
        batch, heads = TOKENS // length, WIDTH // 64
        line = {"L": length, "P, MB": costs.score_matrix_bytes(batch, heads, length, length, 2) / 1e6}
        line |= {"LSE, MB": costs.lse_bytes(batch, heads, length) / 1e6}
        line |= {"recomputed: ms": again["median_ms"], "recomputed: peak MB": again["peak_mb"]}
        for key, unit in (("median_ms", "ms"), ("peak_mb", "peak MB")):
            line[f"stored: {unit}"] = stored.get(key, "does not fit")
        peer = {"part": "lengths", "pass": "backward", "head_dim": 64, "is_causal": False, "name": "torch cuDNN"}
        table.append(line | {"cuDNN: ms": record().select(length=length, **peer)[0]["median_ms"]})
    show.table(table, training_caption(), folded=True)


def recompute_or_read(head_dim: int, length: int) -> float:
    """Shows our fused kernel beside the same kernel that reads P. Returns how many times as fast ours is in one
    shape."""
    table, gains = [], {}
    for again in record().select(part="fused", name="recomputes P"):
        d, L = again["head_dim"], again["length"]
        (reads,) = record().select(part="fused", name="reads P", head_dim=d, length=L)
        gains[d, L] = reads["median_ms"] / again["median_ms"]
        row = {"d": d, "L": L, "recomputes P: ms": again["median_ms"], "reads P: ms": reads["median_ms"]}
        row["recomputing is so many times as fast"] = f"{gains[d, L]:.2f}"
        table.append(row | {"P, MB": reads["read_p_mb"]})
    panels = {name: [row[name] for row in table] for name in ("recomputes P: ms", "reads P: ms")}
    plots.bars([f"d = {row['d']}, L = {row['L']:,}" for row in table], panels, alike=2)
    plt.show()
    shape = f"B · L = {TOKENS}, H · d = {WIDTH}, fp16"
    show.table(table, f"backward_dk_dv alone, {shape}; {measured.caption(record())}", folded=True)
    return gains[head_dim, length]


# ---- a training step


def larger_batch() -> float:
    """How many times larger the batch can be with our attention than with naive attention."""
    largest = {row["name"]: row["largest_batch"] for row in record().select(part="block")}
    return largest[OURS] / largest[NAIVE]


def training_step() -> None:
    """Shows time and memory of a training step with each kind of attention."""
    rows, table = record().select(part="block"), []
    for row in rows:
        line = {"attention": row["name"], "ms per step": row["median_ms"], "peak MB": row["peak_mb"]}
        table.append(line | {"largest batch": row["largest_batch"] or "", "in free GB": row["free_mb"] / 1e3})
    panels = {name: [line[name] for line in table] for name in ("ms per step", "peak MB")}
    plots.bars([line["attention"] for line in table], panels)
    plt.show()
    show.table(
        table, f"B = {rows[0]['batch']}, L = {rows[0]['length']}, fp16; {measured.caption(record())}", folded=True
    )


def parts_of_the_step() -> None:
    """Draws the GPU milliseconds of the step part by part, and prints in which parts our operator loses time."""
    rows = record().select(part="block")
    parts = {row["name"]: _parts(row) for row in rows}
    shown = list(_parts(rows[0]))[2:]
    fused = {name: {part: of[part] for part in shown} for name, of in parts.items() if name != NAIVE}
    plots.stacked_bars(fused, "ms of the GPU", colours=(plots.BLUE, plots.SKY, plots.ORANGE, plots.VERMILION))
    plt.show()
    where = f"B = {rows[0]['batch']}, L = {rows[0]['length']}, fp16; {measured.caption(record())}"
    show.table(list(parts.values()), f"ms, {where}", folded=True)
    ours = parts[OURS]
    for peer in ("SDPA", "torch FLASH"):
        lost = {part: ours[part] - parts[peer][part] for part in shown}
        print(f"{OURS} takes {ours['whole step'] - parts[peer]['whole step']:+.2f} ms beside {peer}:", end=" ")
        print(
            ", ".join(f"{part.split()[-1]} {ms:+.2f}" for part, ms in sorted(lost.items(), key=lambda part: -part[1]))
        )


def _parts(row: measured.Row) -> dict[str, object]:
    """Name, GPU milliseconds of the whole step, and GPU milliseconds of its parts."""
    layout = row["forward_ms"] - row["dense_forward_ms"] + row["backward_ms"] - row["dense_backward_ms"]
    parts = {"attention forward": row["dense_forward_ms"], "attention backward": row["dense_backward_ms"]}
    parts |= {"layout": layout, "others": row["gpu_ms"] - row["forward_ms"] - row["backward_ms"]}
    return {"attention": row["name"], "whole step": row["gpu_ms"]} | parts
