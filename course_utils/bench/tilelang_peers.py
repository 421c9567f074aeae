"""TileLang's kernels of DeepSeek Sparse Attention, as peers of chapter 05.

They are examples of its repository, not part of its wheel, and none of them is copied here: they are timed where
`tilelang` is installed and the environment's TILELANG_EXAMPLES names the folder `examples` of a clone of
https://github.com/tile-ai/tilelang, of the wheel's version. Each function below turns the tensors of chapter 05 into
what an example takes, before it is timed, and raises RuntimeError where it cannot be had.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from course_utils.bench.timed import Function

FOLDER = "deepseek_v32"
MOST_ALIKE = 4096  # numbers with one leading digit that topk_selector.py has room for


def example(name: str) -> ModuleType:
    """A module of the examples. It imports others of its folder by their bare names."""
    if "TILELANG_EXAMPLES" not in os.environ:
        raise RuntimeError("TILELANG_EXAMPLES does not name the folder examples of github.com/tile-ai/tilelang")
    folder = str(Path(os.environ["TILELANG_EXAMPLES"], FOLDER))
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(f"{name}.py of {folder} cannot be imported: {error}") from error
    finally:
        sys.path.remove(folder)


def sparse_core(name: str, query: Tensor, latent: Tensor, indices: Tensor, *, scale: float, value_dim: int) -> Function:
    """`sparse_mla_fwd` of the example of this name: the output `[S, H, value_dim]`.

    query: `[S, H, d]`; latent: `[T, d]`; indices: `[S, k]`, each of a key that its query sees, or -1.
    """
    kernel = example(name).sparse_mla_fwd
    (queries, heads, width), (length, _) = query.shape, latent.shape
    first = torch.tensor([length - queries], device=query.device, dtype=torch.int32)
    tensors = query[None], latent[None, :, None], _past_the_end(indices, length)[None, :, None], first
    sizes = heads, value_dim, width - value_dim, indices.shape[1], 1, 1, scale, True, length == queries
    return lambda: kernel(*tensors, *sizes)[0][0]


def sparse_backward(
    query: Tensor, latent: Tensor, indices: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor, *, scale: float
) -> Function:
    """`sparse_mla_bwd`, for as many queries as keys: gradients of query and latent, both bf16.

    Shapes as for `sparse_core`; out, grad_out: `[S, H, value_dim]`; lse: `[S, H]`, natural. The example reads, and adds
    zero to, the row behind the last where an index is that of no key: so the latents are padded.
    """
    kernel = example("sparse_mla_bwd").sparse_mla_bwd
    length = len(latent)
    if len(query) != length:
        raise RuntimeError(f"it has no mask for {len(query)} queries at the end of {length} keys")
    padded = torch.cat([latent, torch.zeros_like(latent[:64])])[None, :, None]
    tensors = query[None], padded, out[None], grad_out[None], _past_the_end(indices, length)[None, :, None]
    lse2 = lse[None] / math.log(2)

    def function() -> tuple[Tensor, Tensor]:
        grad_query, grad_latent = kernel(*tensors, lse2, scale)
        return grad_query[0], grad_latent[0, :length, 0]

    return function


def indexer(q: Tensor, k: Tensor, weights: Tensor, *, q_scale: Tensor, k_scale: Tensor) -> Function:
    """`mqa_attn_return_logits`, every key legal: logits `[S, T]`, float32.

    q: `[S, H, d]` and k: `[T, d]`, E4M3, with their scales; the queries' are multiplied into the weights beforehand.
    """
    kernel = example("fp8_lighting_indexer").mqa_attn_return_logits_interface
    none, all_keys = (torch.full((len(q),), end, device=q.device, dtype=torch.int32) for end in (0, len(k)))
    weights = (weights * q_scale).float().contiguous()
    return lambda: kernel(q, k, k_scale, weights, none, all_keys, clean_logits=False)


def select_topk(logits: Tensor, k: int) -> Function:
    """`tl_topk` of whole rows: int32 `[rows, k]`.

    It sorts numbers into buckets by eight bits of their fp16, and has room for `MOST_ALIKE` in the bucket in which the
    choice ends; more would be written beside it. So rows that hold more are refused.
    """
    kernel = example("topk_selector").tl_topk
    rows, length = logits.shape
    last = logits.topk(k).values[:, -1:]
    most = int((_leading_digit(logits) == _leading_digit(last)).sum(1).max())
    if most > MOST_ALIKE:
        raise RuntimeError(f"{most} numbers of a row share the digit in which the choice ends; it takes {MOST_ALIKE}")
    none, all_keys = (torch.full((rows,), end, device=logits.device, dtype=torch.int32) for end in (0, length))
    return lambda: kernel(logits, none, all_keys, k)


def _leading_digit(x: Tensor) -> Tensor:
    """The upper eight bits of each number as fp16."""
    return x.half().view(torch.int16) >> 8


def _past_the_end(indices: Tensor, length: int) -> Tensor:
    """Index lists with T in place of -1: the examples skip an index that no query may see."""
    return indices.masked_fill(indices < 0, length)
