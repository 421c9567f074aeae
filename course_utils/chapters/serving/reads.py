"""Chapter 06's bytes: what a decode step reads, and the least time for it."""

from __future__ import annotations

from typing import NamedTuple

import matplotlib.pyplot as plt

from course_utils import costs, plots
from course_utils.planner.devices import DEVICES

DEVICE = DEVICES["H200"]
PREFIX, OWN, SEQUENCES = 8192, 512, 32  # tokens of a shared prompt, and of each sequence's own


class Model(NamedTuple):
    """The sizes of a model like Llama, with separate embedding and output matrices."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that a step reads, in 16 bits: all but the embedding, of which each token reads one
        row."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_dim
        network = 3 * self.width * self.hidden
        return 2 * (self.layers * (attention + network) + self.vocabulary * self.width)

    def cache_bytes(self, tokens: int, batch: int = 1) -> int:
        """Bytes of the keys and values of all layers, in 16 bits."""
        return costs.kv_cache_bytes(tokens, self.kv_heads, self.head_dim, layers=self.layers, batch=batch)


LLAMA = Model(layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, hidden=14336, vocabulary=128256)


def show_roofline(length: int = 8192) -> None:
    """Draws attention to a prompt, and of one token in three kinds of models, under the roofline of an H200."""
    points: dict[str, tuple[float, float]] = {}

    def add(name: str, flops: int, moved: int) -> None:
        intensity = costs.arithmetic_intensity(flops, moved)
        points[name] = intensity, flops / costs.time_floor(flops, moved, DEVICE.half_flops, DEVICE.bandwidth)

    add(
        f"the whole prompt, {length // 1024} K tokens",
        costs.attention_flops(1, LLAMA.heads, length, length, LLAMA.head_dim, is_causal=True),
        costs.least_bytes(1, LLAMA.heads, length, length, LLAMA.head_dim, 2),
    )
    one = costs.attention_flops(1, LLAMA.heads, 1, length, LLAMA.head_dim)
    add("one token, every head has its keys", one, costs.kv_cache_bytes(length, LLAMA.heads, LLAMA.head_dim))
    add("one token, 4 heads share keys (GQA)", one, costs.kv_cache_bytes(length, LLAMA.kv_heads, LLAMA.head_dim))
    add("one token, 128 heads share latents (MLA)", costs.mla_flops(1, length), costs.mla_cache_bytes(length))
    plots.roofline({"fp16, tensor cores": DEVICE.half_flops}, DEVICE.bandwidth, points)
    plt.show()


def show_step() -> float:
    """Draws what a step of Llama-3-8B reads of weights and cache, by batch and context. Returns the ratio of cache to
    weights for 64 sequences of 8 K tokens."""
    rows = {
        f"{batch} × {tokens // 1024} K tokens": {
            "weights": LLAMA.weight_bytes / 1e9,
            "keys and values": LLAMA.cache_bytes(tokens, batch) / 1e9,
        }
        for batch in (1, 8, 64)
        for tokens in (1024, 8192)
    }
    plots.stacked_bars(rows, "GB read for one token of each sequence", colours=(plots.GREY, plots.BLUE))
    plt.show()
    return LLAMA.cache_bytes(8192, 64) / LLAMA.weight_bytes


def least_us(batch: int, length: int, *, bytes_per_s: float = DEVICE.bandwidth, element_bytes: int = 2) -> float:
    """The least microseconds of attention in one layer of Llama-3-8B, for one token of each sequence."""
    read = costs.kv_cache_bytes(length, LLAMA.kv_heads, LLAMA.head_dim, batch=batch, element_bytes=element_bytes)
    return 1e6 * read / bytes_per_s


def say_least(batch: int = 8, length: int = 8192) -> float:
    """Prints how the least time of a layer is computed. Returns it in µs."""
    read = costs.kv_cache_bytes(length, LLAMA.kv_heads, LLAMA.head_dim, batch=batch)
    factors = " · ".join(f"{n:,}" for n in (2, batch, LLAMA.kv_heads, length, LLAMA.head_dim, 2))
    print(f"keys and values: {factors} bytes = {read / 1e6:.0f} MB")
    print(f"{DEVICE.name}, datasheet: {DEVICE.bandwidth / 1e12:g} TB/s")
    flops = costs.attention_flops(batch, LLAMA.heads, 1, length, LLAMA.head_dim)
    print(f"the products: {flops / 1e9:.2f} GFLOP, {1e6 * flops / DEVICE.half_flops:.2f} µs on the tensor cores")
    return least_us(batch, length)


def show_prefix() -> float:
    """Draws what a layer reads of a shared prompt and of the sequences' own tokens. Returns how many times the bytes
    are read if each sequence reads the prompt."""
    one = costs.kv_cache_bytes(1, LLAMA.kv_heads, LLAMA.head_dim) / 1e6
    own = {"own tokens": SEQUENCES * OWN * one}
    rows = {
        "read by each sequence": {"shared prompt": SEQUENCES * PREFIX * one} | own,
        "read once for all": {"shared prompt": PREFIX * one} | own,
    }
    plots.stacked_bars(rows, "MB that a layer reads", colours=(plots.ORANGE, plots.BLUE))
    plt.show()
    each, once = (sum(row.values()) for row in rows.values())
    return each / once


def show_reserved(lengths: tuple[int, ...] = (5, 12, 3, 9), most: int = 16, page_size: int = 4) -> None:
    """Draws four sequences in a cache with reserved rows, and in one with pages."""

    def reserved(b: int, keys: int) -> tuple[str, list[list[int | None]]]:
        return f"sequence {b}", [[b] * keys + [None] * (most - keys)]

    def paged(b: int, keys: int) -> tuple[str, list[list[int | None]]]:
        pages = [min(page_size, keys - first) for first in range(0, keys, page_size)]
        return f"sequence {b}", [[b] * filled + [None] * (page_size - filled) for filled in pages]

    panels = {"room for the longest, reserved": reserved, f"pages of {page_size}": paged}
    plots.room_of_sequences({title: [of(*one) for one in enumerate(lengths)] for title, of in panels.items()})
    plt.show()
    held = sum(costs.ceil_div(keys, page_size) * page_size for keys in lengths)
    for title, rows in zip(panels, (most * len(lengths), held), strict=True):
        print(f"{title}, rows: {rows}, without a token: {rows - sum(lengths)}")
