"""Chapter 02's plain kernels, one thread per query row, in the loop orders of the two FlashAttention papers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import flag
from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, compiled
from course_utils.operators.library import refuse_gradient
from course_utils.operators.prepare import check_inputs, dense, is_empty

FOLDER = "02_flash_attention_minimal"
TILE = (64, 32)  # B_r, B_c


def flash_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    tile: tuple[int, int] = TILE,
    kernel: str = "forward_plain",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention by forward_plain.cu: the grid runs over query tiles, each block over key tiles.

    query `[B, H, L_q, d]`, key and value `[B, H, L_k, d]`, float32, on the CPU (emulator) or a GPU. tile: B_r and B_c.
    kernel: a file of the chapter with the same kernel in it, such as "broken/no_rescale". Returns out, or with
    return_lse `(out, lse)`, as `flash_attention_minimal`.

    Raises TypeError or ValueError that names the argument, NotImplementedError where a gradient is asked for.
    """
    factor = check_inputs(query, key, value, scale=scale, dtypes=(torch.float32,))
    refuse_gradient("flash_plain", "flash_attention_minimal", query, key, value)
    query, key, value = (dense(tensor) for tensor in (query, key, value))
    (rows, cols), (batch, heads, length, d) = tile, query.shape
    out, lse = torch.empty_like(query), query.new_empty(batch, heads, length)
    if is_empty(query):
        return (out, lse) if return_lse else out
    _kernel(kernel, "forward_plain", tile, d)(
        (ceil_div(length, rows), heads, batch),
        (rows,),
        (query, key, value, out, lse, *_scalars(query, key, factor, is_causal)),
        shared_mem=4 * (rows * (d + 1) + 2 * cols * d + rows * (cols + 1)),
    )
    return (out, lse) if return_lse else out


def flash_fa1_order(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    tile: tuple[int, int] = TILE,
) -> Tensor:
    """Attention by forward_fa1_order.cu: one block per head, its outer loop over key tiles. Arguments and errors are
    those of `flash_plain`."""
    factor = check_inputs(query, key, value, scale=scale, dtypes=(torch.float32,))
    refuse_gradient("flash_fa1_order", "flash_attention_minimal", query, key, value)
    query, key, value = (dense(tensor) for tensor in (query, key, value))
    (rows, cols), (batch, heads, length, d) = tile, query.shape
    out, (l, m) = torch.empty_like(query), query.new_empty(2, batch, heads, length)  # noqa: E741 the paper's letter
    if is_empty(query):
        return out
    _kernel("forward_fa1_order", "forward_fa1_order", tile, d)(
        (1, heads, batch),
        (rows,),
        (query, key, value, out, l, m, *_scalars(query, key, factor, is_causal)),
        shared_mem=4 * (2 * rows * (d + 1) + 2 * cols * d + rows * (cols + 1)),
    )
    return out


def _kernel(file: str, name: str, tile: tuple[int, int], head_dim: int) -> Kernel:
    options = f"-DD={head_dim}", f"-DB_R={tile[0]}", f"-DB_C={tile[1]}"
    return compiled(f"{FOLDER}/{file}.cu", options).get_function(name)


def _scalars(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> tuple[np.generic, ...]:
    return np.int32(query.shape[2]), np.int32(key.shape[2]), np.float32(scale), np.int32(flag("is_causal", is_causal))
