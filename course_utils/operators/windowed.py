"""Dense attention with what models add to it: a window, sinks, a softcap, wide heads. A row sees a range of keys then,
too, and the kernels are those of `sparse_attention`."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from course_utils.arguments import integer
from course_utils.operators.attention import MOST_COLUMNS, Attention, Backward, Call, Forward
from course_utils.operators.prepare import has_own_value_dim
from course_utils.operators.sparse import backward_under, forward_under
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS, WIDE, row_delta
from course_utils.patterns import Pattern, causal, full, sliding_window
from course_utils.patterns.arguments import MAX_LENGTH

NO_WINDOW = 0


def is_plain(query: Tensor, value: Tensor, window: int | None, sinks: Tensor | None, softcap: float | None) -> bool:
    """Whether the dense kernels take a call: no window, sinks or softcap, and heads that are not too wide."""
    if not window is sinks is softcap is None:
        return False
    is_wide = isinstance(query, Tensor) and query.dim() == 4 and query.shape[-1] > MOST_COLUMNS
    return not (is_wide or has_own_value_dim(query, value))


def windowed_attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, window: int | None, **options: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with a window, sinks or a softcap; arguments, results and errors as of `flash_attention_v2`."""
    checked = NO_WINDOW if window is None else integer("window", window, 1, MAX_LENGTH)
    return _attention(query, key, value, is_causal, checked, **options)


@functools.lru_cache(maxsize=1024)  # what a pattern has made goes with it
def _pattern(is_causal: bool, window: int) -> Pattern:
    if window:
        return sliding_window(window)
    return causal() if is_causal else full()


def _forward(call: Call, is_causal: bool, window: int) -> Forward:
    return forward_under(_pattern(is_causal, window), call)


def _backward(call: Call, is_causal: bool, window: int) -> Backward:
    return backward_under(_pattern(is_causal, window), call)


def _flops(query: Tensor, key: Tensor, _: Tensor | None, is_causal: bool, window: int, *__: float) -> int:
    """FLOPs of the products of the pairs in the window; of all pairs, causal or not, without one, as for SDPA."""
    batch, heads, rows, head_dim = query.shape
    keys = key.shape[2]
    pairs = _pattern(is_causal, window).pairs(rows, keys) if window else rows * keys
    return 4 * batch * heads * head_dim * pairs


_attention = Attention(
    "windowed_attention",
    "bool is_causal, SymInt window",
    _forward,
    _backward,
    dtypes=DTYPES,
    head_dims=(*HEAD_DIMS, WIDE),
    flops=_flops,
    tags=("cudagraph_unsafe",),  # the first call at some lengths makes lists
    gradient_tags=("nondeterministic_bitwise", "cudagraph_unsafe"),
    row_delta=row_delta,
)
