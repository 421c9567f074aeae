"""The k greatest scores of each query, the keys that DeepSeek Sparse Attention attends to, by radix select
(kernels/05_deepseek_sparse/radix_topk.cu)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import check_tensor, integer
from course_utils.cuda import compiled
from course_utils.operators.library import operator
from course_utils.operators.prepare import autocast, dense

MAX_K = 2048  # as in DeepSeek-V3.2, and as far as the tests go; the kernel has room for 4096
MAX_LENGTH = 2**30
THREADS_FOR_FEW_ROWS, THREADS = 1024, 512  # with few rows most multiprocessors have one block, or none
FEW_ROWS = 264


def select_topk(logits: Tensor, k: int) -> Tensor:
    """The keys with the k greatest scores of each query (DeepSeek-V3.2, arXiv 2512.02556, §2.1).

    Which of the scores equal to the k-th greatest are selected, and the order of the indices, is left open and can
    differ from call to call. NaN counts as the greatest score, as in `torch.topk`.

    Args:
        logits: `[S, T]`, float32, on the CPU (emulator) or a GPU; strided inputs are copied. Minus infinity, which
            `lightning_indexer` gives keys that a query may not see, is never selected.
        k: 1 to 2048.

    Returns:
        indices `[S, k]`, int32; where a row has fewer than k scores above minus infinity, it ends in -1. As all
        integers, they are constants to autograd.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    (logits,) = autocast(logits, dtype=torch.float32)
    return _select(logits, _checked(logits, k))


@operator(
    "select_topk(Tensor logits, SymInt k) -> Tensor",
    fake=lambda logits, k: logits.new_empty((logits.shape[0], k), dtype=torch.int32),
    check=lambda logits, k: _checked(logits, k),
    tags=("nondeterministic_bitwise",),  # the order, and which of equal scores
)
def _select(logits: Tensor, k: int) -> Tensor:
    rows, length = logits.shape
    if not logits.numel():
        return logits.new_full((rows, k), -1, dtype=torch.int32)
    scores = dense(logits)
    indices = scores.new_empty((rows, k), dtype=torch.int32)
    threads = THREADS_FOR_FEW_ROWS if rows <= FEW_ROWS else THREADS
    kernel = compiled("05_deepseek_sparse/radix_topk.cu", (f"-DTHREADS={threads}",)).get_function("radix_topk")
    kernel((rows,), (threads,), (scores, indices, np.int32(length), np.int32(k)))
    return indices


def _checked(logits: Tensor, k: int) -> int:
    """Checks both arguments; returns k."""
    check_tensor("logits", logits, ("S", "T"), (torch.float32,), may_be_empty=True)
    if logits.shape[1] > MAX_LENGTH:
        raise ValueError(f"logits has {logits.shape[1]} scores per row; it must have at most 2^30")
    return integer("k", k, 1, MAX_K)
