"""Where columns are cut: what each part has of dK and dV, and the launch that adds the parts, in a fixed order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import LAID_OUT, Kernel, ReadyLaunch
from course_utils.operators.attention import Call
from course_utils.operators.sparse_work import Columns, Work


def parts_argument(work: Work | Columns) -> object:
    """The argument for the results of parts: allocated by each call, or empty if no row or column is split."""
    return LAID_OUT if work.parts else work.items.new_empty(0, dtype=torch.float32)


class SplitColumns(NamedTuple):
    """A launch that writes parts, and that of merge_gradients. shape: of the parts, which each call allocates;
    gradients: where the gradients of key and value are among the tensors of a call."""

    attend: ReadyLaunch
    merge: ReadyLaunch
    shape: tuple[int, ...]
    gradients: slice

    def __call__(self, query: Tensor, *tensors: Tensor) -> None:
        """query and what follows are as `attend` takes them, before the parts."""
        parts = query.new_empty(self.shape, dtype=torch.float32)
        self.attend(query, *tensors, parts)
        self.merge(parts, *(query, *tensors)[self.gradients])


def merged(
    attend: ReadyLaunch,
    merge_gradients: Kernel,
    columns: Columns,
    call: Call,
    *,
    block_cols: int,
    threads: int,
    gradients: slice,
) -> ReadyLaunch | SplitColumns:
    """The launch with that of merge_gradients (kernels/include/key_columns.cuh), if a column is split."""
    if not columns.parts:
        return attend
    batch, kv_heads, key_length, head_dim = call.key_shape
    merge = ReadyLaunch(
        merge_gradients,
        (len(columns.split) * block_cols * head_dim // (4 * threads), kv_heads, batch),
        (threads,),
        (LAID_OUT, columns.split, LAID_OUT, LAID_OUT, np.int32(key_length), np.float32(call.factor)),
    )
    return SplitColumns(attend, merge, (columns.parts, 2, batch, kv_heads, block_cols, head_dim), gradients)
