"""Chapter 05's way into 8 bits: RoPE, the Hadamard transform and FP8, and what each does to a ranking."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import plots, reference, show
from course_utils.chapters.deepseek_sparse.core import SMALL, difference, normal
from course_utils.chapters.deepseek_sparse.indexer import random_inputs
from course_utils.operators import deepseek, lightning_indexer, quantize_e4m3, rope

Way = Callable[[Tensor], Tensor]
WAYS: dict[str, Way] = {"without": torch.clone, "with Hadamard": deepseek.hadamard_transform}


def scores_by_place() -> dict[str, Tensor]:
    """q · k [50, 50] of one query and one key at all pairs of positions, each rotated by its own convention."""
    table = rope.rope_table(SMALL, torch.arange(50))
    q, k = (normal(1, 64, seed=seed, dtype=torch.float32).cpu().expand(50, 64) for seed in (0, 1))
    turns = {"interleaved": (rope.rope_interleaved,) * 2, "half-split": (rope.rope_half_split,) * 2}
    turns["mixed"] = (rope.rope_interleaved, rope.rope_half_split)
    return {name: of_q(q, table) @ of_k(k, table).T for name, (of_q, of_k) in turns.items()}


def distances() -> None:
    """Draws scores against the distance: a curve for each of the two conventions, and a cloud where they are mixed."""
    found = scores_by_place()
    plots.scores_by_distance(found)
    plt.show()


def outlier() -> Tensor:
    """A vector of 128 normal numbers with 10 added to one of them."""
    vector = torch.randn(128, generator=torch.Generator().manual_seed(0))
    vector[5] += 10
    return vector


def spread() -> None:
    """Draws `outlier` before and after the Hadamard transform, and two other vectors whose product does not change."""
    vector = outlier()
    after = deepseek.hadamard_transform(vector)
    plots.sizes({"one large number": vector, "after the Hadamard transform": after})
    plt.show()
    q, k = normal(2, 128, dtype=torch.float64).cpu()
    turned = deepseek.hadamard_transform(q) @ deepseek.hadamard_transform(k)
    print(f"q · k = {q @ k:.6f}, transformed: {turned:.6f}")


def e4m3_values() -> Tensor:
    """All finite E4M3 numbers in increasing order."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return values[values.isfinite()].unique()


def e4m3_steps() -> None:
    """Draws the E4M3 numbers between 0 and 8 as marks on a line."""
    plots.numbers_on_a_line([value for value in e4m3_values().tolist() if 0 <= value <= 8])
    plt.show()


def e4m3() -> None:
    """Shows how many numbers E4M3 has, and what becomes of the vector with the large number."""
    values = e4m3_values()
    print(
        f"{len(values)} values; in [1, 2): {int(((values >= 1) & (values < 2)).sum())}, largest {values.max():.0f}, "
        f"smallest above 0: 2^{math.log2(values[values > 0].min()):.0f}"
    )
    vector = outlier()
    x8, scale = quantize_e4m3(vector)
    back = x8.float() * scale
    largest = ((back - vector) / vector).abs().max()
    print(f"scale: 2^{math.log2(scale):.0f}; largest relative error of a number: {largest:.3f}")
    print(f"error of the vector: {(back - vector).norm() / vector.norm():.1%} of its length")


def dequantized(x: Tensor) -> Tensor:
    """Each vector quantized to FP8 and back."""
    x8, scale = quantize_e4m3(x)
    return x8.float() * scale[..., None]


def ranking(queries: Tensor, keys: Tensor, transform: Way) -> tuple[float, float]:
    """Percent of the 64 best keys that FP8 chooses, and the error of q · k as a share of its spread over the keys."""
    exact = queries.double() @ keys.double().T
    found = (dequantized(transform(queries)) @ dequantized(transform(keys)).T).double()
    chosen = torch.zeros_like(exact).scatter_(1, found.topk(64).indices, 1.0)
    right = 100 * chosen.gather(1, exact.topk(64).indices).mean().item()
    return right, ((found - exact).std(1) / exact.std(1)).mean().item()


def cases() -> dict[str, tuple[Tensor, Tensor]]:
    """64 queries and 1024 keys of normal numbers, with 10 added to component 5 of some of them; by which vectors have
    it."""
    queries, keys = (normal(n, 128, seed=n, dtype=torch.float32).cpu() for n in (64, 1024))
    queries_10, keys_10 = (x + 10 * (torch.arange(128) == 5) for x in (queries, keys))
    keys_same = keys.clone()
    keys_same[:, 5] = 10  # in every key the same number
    found = {"in no vector": (queries, keys), "in q": (queries_10, keys), "in k": (queries, keys_10)}
    found |= {"in q and k": (queries_10, keys_10), "in q and k, constant in k": (queries_10, keys_same)}
    layer_norm = functools.partial(torch.nn.functional.layer_norm, normalized_shape=(128,))
    return found | {f"{name}; LayerNorm of k": (found[name][0], layer_norm(found[name][1])) for name in list(found)[3:]}


def chosen_without_hadamard() -> float:
    """Draws how many of the right keys FP8 chooses without and with the transform, if all vectors have the large
    number. Returns the percent without it."""
    pair = cases()["in q and k"]
    found = {name: ranking(*pair, transform) for name, transform in WAYS.items()}
    panels = {"% of the right keys": [right for right, _ in found.values()]}
    panels["error of q · k / spread of q · k"] = [error for _, error in found.values()]
    plots.bars(list(found), panels, colours=(plots.GREY, plots.BLUE))
    plt.show()
    return round(found["without"][0])


def case_rows() -> list[dict[str, Any]]:
    """For each case, how much of the ranking the large component decides, and what FP8 chooses without and with the
    transform."""
    rows = []
    for name, (queries, keys) in cases().items():
        products, large = queries @ keys.T, queries[:, 5, None] * keys[:, 5]
        alone = torch.zeros_like(large).scatter_(1, large.topk(64).indices, 1.0).gather(1, products.topk(64).indices)
        row = {"10 more in place 5": name, "% of the variance": 100 * (large.var(1) / products.var(1)).mean().item()}
        row["% found by it alone"] = 100 * alone.mean().item()
        for way, transform in WAYS.items():
            share, error = ranking(queries, keys, transform)
            row |= {f"error / spread, {way}": error, f"% right, {way}": share}
        rows.append(row)
    return rows


def compare_cases() -> None:
    """Shows what FP8 chooses in each case, as a picture and a table."""
    rows = case_rows()
    pairs = {row["10 more in place 5"]: (row["% right, without"], row["% right, with Hadamard"]) for row in rows}
    plots.chosen_by_fp8(pairs)
    plt.show()
    show.table(rows, "the share that comes from that one place, and the errors", folded=True)


def check_fp8() -> None:
    """Checks lightning_indexer_fp8.cu against float64 on the same 8-bit numbers, and shows it beside the bf16
    kernel."""
    q, k, weights = random_inputs()
    (q8, q_scale), (k8, k_scale) = quantize_e4m3(q), quantize_e4m3(k)
    inputs = [x.cpu() for x in (q8, k8, weights)]
    scales = {"q_scale": q_scale.cpu(), "k_scale": k_scale.cpu()}
    fp8 = lightning_indexer(*inputs, q_start=120, **scales)
    expected = reference.lightning_indexer(*inputs, q_start=120, **scales)
    legal = expected > -math.inf
    close = difference(fp8[legal], expected[legal]) < 1e-5 * expected[legal].abs().max()
    print(f"of the numbers it was given: relative error below 1e-5: {close}")
    bf16 = lightning_indexer(q, k, weights, q_start=120).cpu()
    off = difference(fp8[legal], bf16[legal]) / bf16[legal].std()
    print(f"against bf16: off by {off:.2f} of the spread of the scores, at most")


def scales_left_out() -> Tensor:
    """Calls the indexer with FP8 queries and without their scales, which it must refuse."""
    q, k, weights = random_inputs()
    return lightning_indexer(quantize_e4m3(q)[0], quantize_e4m3(k)[0], weights)
