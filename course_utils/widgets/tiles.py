"""FlashAttention's forward pass over one head, tile by tile, with every value of the kernel stored for display.

The order is FlashAttention-2's (arXiv 2307.08691, Algorithm 1): the outer loop runs over query tiles i, the inner one
over key tiles j; O stays unnormalised and is divided by l once, at the end. Letters are the paper's.
"""

# ruff: noqa: E741 — l and O are the names in the paper and in the kernel

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from course_utils.costs import visited_tiles
from course_utils.widgets.frame import check_key, one_head

FLOAT_BYTES = 4


@dataclass(frozen=True)
class TileStep:
    """What is on the chip after one step. `rows` and `cols` are the queries and keys of the tile (ends exclusive).

    kind is "tile" (a tile of scores was computed), "skipped" (causal: the tile lies wholly above the diagonal) or
    "write" (the inner loop is over: O is divided by l and written; j and cols are None). All tensors are float32.
    """

    kind: str
    i: int
    j: int | None
    rows: tuple[int, int]
    cols: tuple[int, int] | None
    S: torch.Tensor | None  # [rows, cols], scaled scores, -inf where masked; None unless kind is "tile"
    m: torch.Tensor  # [rows], running row maximum
    l: torch.Tensor  # [rows], running sum of exp(S - m)
    rescale: torch.Tensor  # [rows], exp(m_old - m): the factor applied to the old l and O; 1 when no tile was computed
    O: torch.Tensor  # [rows, d], unnormalised; the final output in a "write" step
    LSE: torch.Tensor | None  # [rows], m + ln l; None unless kind is "write"
    read_bytes: int  # global bytes requested in this step; over all steps they add up to costs.fa2_traffic
    written_bytes: int

    @property
    def skipped(self) -> bool:
        return self.kind == "skipped"


def tile_steps(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    block_rows: int,
    block_cols: int,
    is_causal: bool = False,
    scale: float | None = None,
) -> list[TileStep]:
    """Every step of the forward pass of one head, in the kernel's order and in float32.

    query [L_q, d], key and value [L_k, d] (or [1, 1, L, d]), floating, any device; block_rows (B_r) and
    block_cols (B_c) in tokens, at least 1; the last tile of either loop may be ragged. is_causal is bottom-right
    aligned: query r sees keys c <= r + L_k - L_q. scale=None means 1/sqrt(d). A row that
    sees no key ends with O = 0 and LSE = -inf.

    Raises TypeError or ValueError naming the argument.
    """
    Q, K, V = one_head("query", query), one_head("key", key), one_head("value", value)
    check_key(Q, K)
    if V.shape != K.shape:
        raise ValueError(f"value: got shape {list(V.shape)}, takes that of key, {list(K.shape)}")
    for name, block in (("block_rows", block_rows), ("block_cols", block_cols)):
        if not isinstance(block, int) or block < 1:
            raise ValueError(f"{name}: got {block!r}, takes an int of at least 1")
    (L_q, d), L_k = Q.shape, K.shape[0]
    scale = 1 / math.sqrt(d) if scale is None else float(scale)
    diagonal = L_k - L_q
    visited = set(visited_tiles(L_q, L_k, block_rows, block_cols, is_causal))

    steps = []
    for i, top in enumerate(range(0, L_q, block_rows)):
        bottom = min(top + block_rows, L_q)
        Q_i = Q[top:bottom]
        unread = Q_i.numel() * FLOAT_BYTES  # Q_i is loaded once, before the first key tile
        m = torch.full((bottom - top,), -torch.inf)
        l = torch.zeros(bottom - top)
        O = torch.zeros(bottom - top, d)
        no_change = torch.ones(bottom - top)
        for j, left in enumerate(range(0, L_k, block_cols)):
            right = min(left + block_cols, L_k)
            kind, S, rescale, read, unread = "skipped", None, no_change, unread, 0
            if (i, j) in visited:
                kind = "tile"
                K_j, V_j = K[left:right], V[left:right]
                read += (K_j.numel() + V_j.numel()) * FLOAT_BYTES
                S = scale * (Q_i @ K_j.T)
                if is_causal:
                    above = torch.arange(left, right) > torch.arange(top, bottom)[:, None] + diagonal
                    S = S.masked_fill(above, -torch.inf)
                m_old, m = m, torch.maximum(m, S.amax(dim=1))
                safe_m = m.masked_fill(m == -torch.inf, 0)  # no key seen yet: exp(-inf - 0) is 0, exp(-inf + inf) NaN
                P = torch.exp(S - safe_m[:, None])
                rescale = torch.exp(m_old - safe_m)
                l = rescale * l + P.sum(dim=1)
                O = rescale[:, None] * O + P @ V_j
            steps.append(TileStep(kind, i, j, (top, bottom), (left, right), S, m, l, rescale, O, None, read, 0))
        O = torch.where(l[:, None] > 0, O / l[:, None], 0)
        LSE = m + torch.log(l)
        written = (O.numel() + LSE.numel()) * FLOAT_BYTES
        steps.append(TileStep("write", i, None, (top, bottom), None, None, m, l, no_change, O, LSE, 0, written))
    return steps
