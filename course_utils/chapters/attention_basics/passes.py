"""Chapter 01's three passes, each launched on its own, with the kernel of a file or with a changed text of the
kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, RawModule, read_kernel

TILE = 32  # scores.cu and output.cu: a block makes 32 × 32 elements
SOFTMAX_THREADS = {"softmax": 256, "softmax_unsafe": 32}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random(*shape: int, seed: int) -> Tensor:
    """Normal random numbers, on the device where the kernels run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def kernel(name: str, code: str | None = None) -> Kernel:
    """A kernel of the chapter, from its file or from the changed text `code`."""
    code = read_kernel(f"01_attention_basics/{name}.cu") if code is None else code
    return RawModule(code=code).get_function(name)


def scores_with(
    scores_kernel: Kernel, query: Tensor, key: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """S `[B, H, L_q, L_k]` by one of the score kernels; scale=None means 1/sqrt(d)."""
    (B, H, L_q, d), L_k = query.shape, key.shape[2]
    S = torch.full((B, H, L_q, L_k), torch.nan, device=query.device)  # what nobody writes will show
    factor = np.float32(d**-0.5 if scale is None else scale)
    sizes = np.int32(L_q), np.int32(L_k), np.int32(d)
    grid = ceil_div(L_k, TILE) * ceil_div(L_q, TILE), H, B
    scores_kernel(grid, (TILE, TILE), (query, key, S, *sizes, factor, np.int32(is_causal)))
    return S


def softmax_with(name: str, S: Tensor) -> Tensor:
    """P = softmax(S) `[B, H, L_q, L_k]` by "softmax" or "softmax_unsafe", one block per row."""
    P = torch.full_like(S, torch.nan)
    B, H, L_q, L_k = S.shape
    kernel(name)((L_q, H, B), (SOFTMAX_THREADS[name],), (S, P, np.int32(L_k)))
    return P


def output_with(P: Tensor, value: Tensor) -> Tensor:
    """O = P V `[B, H, L_q, d]` by output.cu."""
    (B, H, L_q, L_k), d = P.shape, value.shape[3]
    out = torch.full((B, H, L_q, d), torch.nan, device=P.device)
    grid = ceil_div(d, TILE) * ceil_div(L_q, TILE), H, B
    kernel("output")(grid, (TILE, TILE), (P, value, out, np.int32(L_q), np.int32(L_k), np.int32(d)))
    return out


def three_kernels(scores_kernel: Kernel) -> Callable[..., Tensor]:
    """An attention operator that uses this scores kernel and the chapter's two other kernels."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False, scale: float | None = None
    ) -> Tensor:
        S = scores_with(scores_kernel, query, key, is_causal=is_causal, scale=scale)
        return output_with(softmax_with("softmax", S), value)

    return attend
