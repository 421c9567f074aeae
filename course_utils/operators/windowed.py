"""Dense attention with what models add to it: a window, sinks, a softcap, wide heads. A row sees a range of keys then,
too, and the kernels are those of `sparse_attention`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from course_utils.arguments import flag, integer
from course_utils.operators.attention import MOST_COLUMNS
from course_utils.operators.prepare import has_own_value_dim
from course_utils.operators.sparse import attend_by_number
from course_utils.patterns import Pattern, causal, full, sliding_window
from course_utils.patterns.arguments import MAX_LENGTH


def is_plain(query: Tensor, value: Tensor, window: int | None, sinks: Tensor | None, softcap: float | None) -> bool:
    """Whether the dense kernels take a call: no window, sinks or softcap, and heads that are not too wide."""
    if not window is sinks is softcap is None:
        return False
    is_wide = isinstance(query, Tensor) and query.dim() == 4 and query.shape[-1] > MOST_COLUMNS
    return not (is_wide or has_own_value_dim(query, value))


def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    window: int | None,
    sinks: Tensor | None,
    softcap: float | None,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with a window, sinks or a softcap; arguments, results and errors as of `flash_attention_v2`."""
    if window is not None:
        window = integer("window", window, 1, MAX_LENGTH)
    number = _number_of_pattern(flag("is_causal", is_causal), window)
    return attend_by_number(
        query,
        key,
        value,
        number,
        sinks=sinks,
        softcap=softcap,
        scale=scale,
        enable_gqa=enable_gqa,
        return_lse=return_lse,
    )


@torch.compiler.assume_constant_result  # a pattern cannot be made while a graph is
def _number_of_pattern(is_causal: bool, window: int | None) -> int:
    return _pattern(is_causal, window).number


@functools.lru_cache(maxsize=1024)  # a compiled graph names its pattern, and does not keep it
def _pattern(is_causal: bool, window: int | None) -> Pattern:
    if window is not None:
        return sliding_window(window)
    return causal() if is_causal else full()
