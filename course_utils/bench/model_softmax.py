"""What `bench model_softmax` measures: sinks and a softcap, beside the same operator without them, and flash-attn-4.

Rows are pairs, and outputs and gradients are checked before they are timed, as in `best_peers`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_utils import reference
from course_utils.bench import installed_peers
from course_utils.bench.best_peers import GRADIENT_OFF, MOST_OFF, timed_pairs
from course_utils.bench.deepseek_sparse import require_right
from course_utils.bench.timed import all_parts, backward_pass, random_inputs
from course_utils.measured import Row
from course_utils.measured.best_peers import FLASH_4
from course_utils.measured.hopper import OURS
from course_utils.measured.model_softmax import BACKWARD, FORWARD, WITHOUT
from course_utils.measured.sparse_patterns import HEAD_DIM, HEADS
from course_utils.operators import flash_attention_hopper

WINDOWS = (128, 1024, None)  # gpt-oss has 128; None: all keys up to a query's own
SOFTCAP = 50.0  # Gemma 2's


def model_softmax() -> list[Row]:
    """Every pair.

    Raises:
        RuntimeError: flash-attn-4 is missing, or an output or a gradient is wrong.
    """
    installed_peers.load(installed_peers.FLASH_4)
    return all_parts((forward, backward))


def forward(
    device: str = "cuda", heads: int = HEADS, length: int = 16384, windows: Sequence[int | None] = WINDOWS
) -> list[Row]:
    """Causal attention with sinks, and with a softcap, in windows too."""
    rows: list[Row] = []
    for work, with_sinks, mask, softcap in _works(windows):
        inputs, sinks = _inputs((1, heads, length, HEAD_DIM), device, **softcap), _sinks(with_sinks, heads, device)
        functions = {
            OURS: functools.partial(_attend, *inputs, *sinks, **mask, **softcap),
            FLASH_4: installed_peers.flash_4(*inputs, *sinks, **mask, **softcap),
        }
        last = inputs[0][:, :, -32:], *inputs[1:]  # queries
        expected = _attend(*last, *sinks, attention=reference.attention, **mask, **softcap)
        for name, function in functions.items():
            require_right(f"{name}, {work}", function()[:, :, -32:], expected, MOST_OFF)
        functions[WITHOUT] = functools.partial(_attend, *inputs, **mask)
        rows += timed_pairs(FORWARD, work, length, functions)
    return rows


def backward(
    device: str = "cuda", heads: int = HEADS, length: int = 8192, windows: Sequence[int | None] = WINDOWS
) -> list[Row]:
    """The backward pass alone of the same, with the gradient of the sinks."""
    rows: list[Row] = []
    for work, with_sinks, mask, softcap in _works(windows):
        *inputs, grad_output = _inputs((1, heads, length, HEAD_DIM), device, count=4, **softcap)
        sinks = _sinks(with_sinks, heads, device)
        attend = functools.partial(_attend, **mask, **softcap)
        functions = {
            OURS: backward_pass(attend, *inputs, *sinks, grad_output),
            FLASH_4: installed_peers.flash_4_backward(*inputs, *sinks, grad_output, **mask, **softcap),
        }
        first = [*(tensor[:, :1] for tensor in inputs), *(one[:1] for one in sinks), grad_output[:, :1]]  # head
        of_torch = functools.partial(attend, attention=reference.torch_attention)
        with reference.full_float32():
            expected = backward_pass(of_torch, *(tensor.float() for tensor in first))()
        for name, function in functions.items():
            found = [gradient[:1] if gradient.dim() == 1 else gradient[:, :1] for gradient in function()]
            for which, gradient, right in zip(("dq", "dk", "dv", "dsinks"), found, expected, strict=False):
                require_right(f"{which} of {name}, {work}", gradient, right, GRADIENT_OFF)
        functions[WITHOUT] = backward_pass(functools.partial(_attend, **mask), *inputs, grad_output)
        rows += timed_pairs(BACKWARD, work, length, functions)
    return rows


def _works(windows: Sequence[int | None]) -> Iterator[tuple[str, bool, dict[str, Any], dict[str, float]]]:
    """What is computed: its name, whether it has sinks, its mask, and its softcap, as keyword arguments."""
    for window, with_sinks in itertools.product(windows, (True, False)):
        name = f"{'sinks' if with_sinks else 'softcap'}, {f'window of {window}' if window else 'causal'}"
        yield name, with_sinks, {"is_causal": True, "window": window}, {} if with_sinks else {"softcap": SOFTCAP}


def _inputs(shape: tuple[int, ...], device: str, *, count: int = 3, softcap: float = 0) -> tuple[Tensor, ...]:
    """Random, and for a softcap with scores so large that it shows in the results."""
    query, *others = random_inputs(shape, device, count=count)
    return 8 * query if softcap else query, *others


def _sinks(with_sinks: bool, heads: int, device: str) -> tuple[Tensor, ...]:
    return (torch.randn(heads, device=device),) if with_sinks else ()


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None = None,
    *,
    attention: Callable[..., Tensor] = flash_attention_hopper,
    **options: Any,
) -> Tensor:
    """`attention`, with sinks as an input like the others."""
    return attention(query, key, value, sinks=sinks, **options)
