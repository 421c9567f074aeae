"""Rotary position embedding (RoFormer, arXiv 2104.09864 §3.2.2) in the two layouts of DeepSeek-V3.2, and YaRN.

RoPE turns each pair of numbers of a vector by an angle that grows with the position, so that a dot product of two
turned vectors depends on the distance of their positions alone. Which numbers make a pair is a convention: the
attention of V3.2 pairs neighbours, its indexer pairs number i with number i + d/2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.reference import DeepSeekConfig


class RopeTable(NamedTuple):
    """Cosine and sine of each position's angles, both fp32 `[S, d/2]`."""

    cos: Tensor
    sin: Tensor


def rope_frequencies(config: DeepSeekConfig) -> Tensor:
    """Angle of each pair per position, in radians: float64 `[d/2]`, `d = config.qk_rope_head_dim`.

    Pair i has the frequency `rope_theta^(-2i/d)`. In an extended context YaRN (arXiv 2309.00071 §3.2) divides it by
    `rope_factor` where a pair turns less than `beta_slow` times within `original_seq_len` positions, and leaves it
    where a pair turns more than `beta_fast` times. Between the two it blends, linearly in i, as YaRN's and DeepSeek's
    code do; the paper has it linear in the number of turns.
    """
    dim, theta = config.qk_rope_head_dim, config.rope_theta
    pair = torch.arange(dim // 2, dtype=torch.float64)
    frequencies = theta ** (-2 * pair / dim)
    if not config.extended:
        return frequencies

    def pair_that_turns(times: float) -> float:
        return dim * math.log(config.original_seq_len / (2 * math.pi * times)) / (2 * math.log(theta))

    first = max(math.floor(pair_that_turns(config.beta_fast)), 0)
    last = min(math.ceil(pair_that_turns(config.beta_slow)), dim - 1)
    slow = ((pair - first) / (last - first or 0.001)).clamp(0, 1)
    return frequencies * (1 - slow) + frequencies / config.rope_factor * slow


def rope_table(config: DeepSeekConfig, positions: Tensor) -> RopeTable:
    """Cosine and sine for `positions`, integers `[S]`, on their device. Angles are float64: in fp32 they would be off
    by up to 0.004 at position 100,000."""
    angles = positions.double()[:, None] * rope_frequencies(config).to(positions.device)
    return RopeTable(angles.cos().float(), angles.sin().float())


def rope_interleaved(x: Tensor, table: RopeTable) -> Tensor:
    """`x [S, ..., d]` with each pair (2i, 2i + 1) turned by the angle i of its row's position; dtype of x, rounded
    once."""
    first, second = _turned(x[..., 0::2], x[..., 1::2], table)
    return torch.stack([first, second], dim=-1).flatten(-2).to(x.dtype)


def rope_half_split(x: Tensor, table: RopeTable) -> Tensor:
    """`x [S, ..., d]` with each pair (i, i + d/2) turned by the angle i of its row's position; dtype of x, rounded
    once."""
    return torch.cat(_turned(*x.chunk(2, dim=-1), table), dim=-1).to(x.dtype)


def _turned(a: Tensor, b: Tensor, table: RopeTable) -> tuple[Tensor, Tensor]:
    if (a.shape[0], a.shape[-1]) != table.cos.shape:
        rows, pairs = table.cos.shape
        raise ValueError(
            f"x has {a.shape[0]} rows of {a.shape[-1] + b.shape[-1]} numbers; the table is for {rows} of {2 * pairs}"
        )
    cos, sin = (part.reshape(len(part), *[1] * (a.ndim - 2), -1) for part in table)
    return a * cos - b * sin, a * sin + b * cos  # fp32, by promotion
