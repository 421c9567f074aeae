"""A small language model shaped like Llama. Its keys and values lie in pages; its bits do not depend on the batch.

A token is a byte. A layer is attention with grouped heads and rotary positions, then a gated network, each behind an
RMSNorm and added to what came in. The norms have no gain of their own: the matrix that follows could take it over. The
matrices are 8-bit integers with a scale for each row. `plain_logits` is the same model in ten lines of torch, without a
cache; `course_utils.studies.prose` trains that one.

The order in which numbers are added up changes the last bits of a sum, and a library chooses the order by the shape: of
attention by the number of keys and sequences, of a product by the number of rows. So a sequence would get other bits in
another batch. Two things prevent it here:

- attention with a fixed `split_size`: the order depends on the sequence alone;
- everywhere else sums that are exact, so that their order does not matter. An fp16 number below 2^13 is a multiple of
  2^-24; times an integer of 8 bits, and 2^9 of them added up, it takes 53 bits at most, and float64 has these. What
  the layers add to the residual stream is rounded to multiples of 2^-12, so the sum of its squares is exact, too.

What is left are functions of one number, taken in float64 and rounded to fp16 afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from course_utils.costs import ceil_div
from course_utils.operators import paged_attention
from course_utils.operators.rope import RopeTable, rope_half_split
from course_utils.serving.pages import E4M3_MAX, PagedCache

VOCABULARY, DIM, LAYERS, HIDDEN = 256, 128, 2, 384
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
LONGEST, ROPE_THETA = 8192, 10000.0  # positions that there are
SHAPES = {  # of the matrices: of each layer out × in, but for the embedding, which also gives the logits
    "embed": (VOCABULARY, DIM),
    "query": (LAYERS, HEADS * HEAD_DIM, DIM),
    "key": (LAYERS, KV_HEADS * HEAD_DIM, DIM),
    "value": (LAYERS, KV_HEADS * HEAD_DIM, DIM),
    "out": (LAYERS, DIM, HEADS * HEAD_DIM),
    "gate": (LAYERS, HIDDEN, DIM),
    "up": (LAYERS, HIDDEN, DIM),
    "down": (LAYERS, DIM, HIDDEN),
}
WEIGHTS = Path(__file__).parent / "weights.npz"
EPSILON = 1e-5
SPLIT_SIZE = 256  # keys of a piece of attention
TILE_ROWS = 16  # queries of a group of heads that fill a tile of the kernel
GRID = 2.0**-12  # of the residual stream


class Matrix(NamedTuple):
    """A matrix, or one for each layer: `numbers * scale[..., None]`; int8 `[..., out, in]`, float32 `[..., out]`."""

    numbers: Tensor
    scale: Tensor

    def floats(self) -> Tensor:
        """The matrix in float32."""
        return self.numbers.float() * self.scale[..., None]


def quantised(matrix: Tensor) -> Matrix:
    """The nearest matrix of 8-bit integers; the largest of each row becomes 127."""
    scale = matrix.detach().float().abs().amax(dim=-1).clamp(min=1e-12) / 127
    return Matrix((matrix.detach() / scale[..., None]).round().to(torch.int8), scale)


def save_weights(weights: Mapping[str, Matrix], path: Path = WEIGHTS) -> None:
    """Writes the matrices into a file for `load_weights`."""
    arrays = {f"{name}.{part}": getattr(weights[name], part).numpy() for name in SHAPES for part in Matrix._fields}
    np.savez(path, **arrays)


def load_weights(path: Path = WEIGHTS) -> dict[str, Matrix]:
    """The matrices by the names in `SHAPES`, on the CPU."""
    with np.load(path, allow_pickle=False) as arrays:
        return {
            name: Matrix(*(torch.from_numpy(arrays[f"{name}.{part}"]) for part in Matrix._fields)) for name in SHAPES
        }


def as_tokens(text: str) -> list[int]:
    """The bytes of a text."""
    return list(text.encode())


def as_text(tokens: Sequence[int]) -> str:
    """The text of these bytes; bytes that are not UTF-8 become �."""
    return bytes(tokens).decode(errors="replace")


@functools.cache
def rope_angles(device: str = "cpu") -> RopeTable:
    """Cosine and sine for every position: pair i of a head turns by `ROPE_THETA^(-2i/d)` a token."""
    frequencies = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    angles = torch.arange(LONGEST)[:, None] * frequencies
    return RopeTable(angles.cos().float().to(device), angles.sin().float().to(device))


def plain_logits(matrices: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """The model in plain torch: float32 matrices of `SHAPES`, tokens `[B, L]` → logits `[B, L, VOCABULARY]` of the
    token that follows each."""
    angles = RopeTable(*(part[: tokens.shape[1]] for part in rope_angles(str(tokens.device))))
    x = matrices["embed"][tokens]
    for n in range(LAYERS):
        h = rms_norm(x, (DIM,), eps=EPSILON)
        query, key, value = (
            (h @ matrices[name][n].T).unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1)
            for name in ("query", "key", "value")
        )  # [L, B, H, d]
        query, key = rope_half_split(query, angles), rope_half_split(key, angles)
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + attended.transpose(1, 2).flatten(2) @ matrices["out"][n].T
        h = rms_norm(x, (DIM,), eps=EPSILON)
        x = x + (silu(h @ matrices["gate"][n].T) * (h @ matrices["up"][n].T)) @ matrices["down"][n].T
    return rms_norm(x, (DIM,), eps=EPSILON) @ matrices["embed"].T


class Model:
    """The model as a server runs it: a step takes a few tokens of each of many sequences.

    Prompts go through the kernel that decodes, as many tokens at a time as fill its tile. A kernel for prompts would be
    faster, and would give a token other bits when it is computed anew, as part of a prompt, after a preemption.

    Args:
        weights: the matrices; None: those of the course, from `load_weights`.
        device: where it runs; the cache must be there, too.
        attend: `paged_attention`, or a function with its arguments, such as `reference.paged_attention`.
        split_size: as `paged_attention` takes it. None: the kernel cuts the keys by what else is in the batch.
        exact_sums: all other sums are exact. False: they are torch's, in float32, whose order depends on the batch.
    """

    def __init__(
        self,
        weights: Mapping[str, Matrix] | None = None,
        *,
        device: str = "cpu",
        attend: Callable[..., Tensor] = paged_attention,
        split_size: int | None = SPLIT_SIZE,
        exact_sums: bool = True,
    ) -> None:
        self.attend, self.exact_sums, self.device = attend, exact_sums, device
        self.options = {} if split_size is None else {"split_size": split_size}
        self.dtype = torch.float64 if exact_sums else torch.float32
        self.matrices = {
            name: (matrix.numbers.to(device, self.dtype), matrix.scale.to(device, self.dtype))
            for name, matrix in (weights or load_weights()).items()
        }

    def cache(self, pages: int, page_size: int = 16, **options: object) -> PagedCache:
        """An empty cache for this model; options: further ones of `PagedCache`."""
        sizes = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
        return PagedCache(pages, page_size, **sizes, device=self.device, **options)

    def e4m3_scales(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """k_scale and v_scale for a `cache` in E4M3, `[layers, kv_heads]`: the largest key and the largest value of
        these tokens become the largest number that E4M3 has."""
        cache = self.cache(ceil_div(len(tokens), 16))
        sequence = cache.allocate()
        cache.extend(sequence, len(tokens))
        self.step(cache, [(sequence, tokens)])
        slots = cache.slots(sequence, 0, len(tokens))
        largest = (
            pages.flatten(1, 2)[:, slots].abs().float().amax((1, 3)) for pages in (cache.key_pages, cache.value_pages)
        )
        return {name: numbers / E4M3_MAX for name, numbers in zip(("k_scale", "v_scale"), largest, strict=True)}

    @torch.no_grad()
    def step(self, cache: PagedCache, batch: Sequence[tuple[int, Sequence[int]]]) -> Tensor:
        """Takes the next tokens of some sequences.

        batch: the number of each sequence in the cache, and its new tokens, whose places `cache.extend` has taken: one
            token in decoding, a chunk of the prompt before that. Their keys and values are written.

        Returns float32 `[len(batch), VOCABULARY]`: for each sequence the logits of the token after its last one.
        """
        rows = _Rows.of(cache, batch, TILE_ROWS // (HEADS // KV_HEADS), self.device)
        angles = RopeTable(*(part[rows.positions] for part in rope_angles(self.device)))
        x = self._looked_up(rows.tokens)
        for n in range(LAYERS):
            h = self._norm(x)
            query, key, value = (
                self._linear(h, name, n).unflatten(-1, (-1, HEAD_DIM)) for name in ("query", "key", "value")
            )
            query, key = rope_half_split(query, angles), rope_half_split(key, angles)
            cache.write(n, rows.slots, key, value)
            queries = torch.zeros(len(rows.ends) * rows.width, HEADS, HEAD_DIM, dtype=torch.float16, device=self.device)
            queries[rows.places] = query.half()
            queries = queries.unflatten(0, (-1, rows.width)).transpose(1, 2)
            pages, scales = cache.layer(n), cache.scales(n, len(rows.ends))
            attended = self.attend(queries, *pages, rows.table, rows.ends, **scales, **self.options)
            x = self._add(x, self._linear(attended.transpose(1, 2).flatten(0, 1)[rows.places].flatten(1), "out", n))
            h = self._norm(x)
            x = self._add(x, self._linear(silu(self._linear(h, "gate", n)) * self._linear(h, "up", n), "down", n))
        return self._linear(self._norm(x[rows.last]), "embed").float()

    def next_tokens(self, cache: PagedCache, batch: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
        """Runs a `step`; returns the token with the largest logit of each sequence."""
        return self.step(cache, batch).argmax(dim=-1).tolist()

    def _looked_up(self, tokens: Tensor) -> Tensor:
        numbers, scale = self.matrices["embed"]
        return self._add(0, numbers[tokens] * scale[tokens, None])

    def _norm(self, x: Tensor) -> Tensor:
        return x / (x.square().sum(dim=-1, keepdim=True) / DIM + EPSILON).sqrt()

    def _linear(self, x: Tensor, name: str, layer: int | None = None) -> Tensor:
        numbers, scale = self.matrices[name] if layer is None else (part[layer] for part in self.matrices[name])
        return x.half().to(self.dtype) @ numbers.T * scale

    def _add(self, x: Tensor | float, y: Tensor) -> Tensor:
        return x + ((y / GRID).round() * GRID if self.exact_sums else y)


class _Rows(NamedTuple):
    """A batch as the kernel takes it. A row of the block table is up to `width` tokens of a sequence; if it has
    fewer, unused queries stand before them. width: as many as fill a tile, so that one kernel serves all."""

    tokens: Tensor  # [T], and so are positions, slots (in the cache) and places (among all rows' queries)
    positions: Tensor
    slots: Tensor
    places: Tensor
    table: Tensor
    ends: Tensor  # int32 [rows]: keys that the last query of a row sees
    last: Tensor  # [sequences]: which of the T tokens is a sequence's last
    width: int

    @classmethod
    def of(cls, cache: PagedCache, batch: Sequence[tuple[int, Sequence[int]]], most: int, device: str) -> _Rows:
        if not batch or not all(len(tokens) for _, tokens in batch):
            raise ValueError(f"batch is {batch}; it must have sequences, and each of them at least one new token")
        width = min(most, max(len(tokens) for _, tokens in batch))
        owners, ends, tokens, positions, slots, places, last = ([] for _ in range(7))
        for sequence, new in batch:
            stop = cache.length(sequence)
            for first in range(stop - len(new), stop, width):
                end = min(first + width, stop)
                owners.append(sequence)
                ends.append(end)
                places += range(len(ends) * width - (end - first), len(ends) * width)
            tokens += new
            positions += range(stop - len(new), stop)
            slots += cache.slots(sequence, stop - len(new), stop)
            last.append(len(tokens) - 1)
        if max(positions) >= LONGEST:
            raise ValueError(f"batch has a sequence of {max(positions) + 1} tokens; the model has {LONGEST} positions")
        longs = (torch.tensor(numbers, device=device) for numbers in (tokens, positions, slots, places))
        ends_tensor = torch.tensor(ends, dtype=torch.int32, device=device)
        return cls(*longs, cache.block_table(owners), ends_tensor, torch.tensor(last, device=device), width)
