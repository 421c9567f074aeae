"""What a user could write instead of a sparse kernel: torch's own dense kernels on a view of the same memory.

Each takes query, key and value `[B, H, L, d]` and returns the output in that shape. Only `SORTED` copies its inputs,
which is its point. `varlen_attn` is FlashAttention-2 for packed sequences, optionally with a window.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from course_utils import patterns
from course_utils.bench import flex
from course_utils.bench.flex import FLEX, FLEX_128, FLEX_TUNED, Attention
from course_utils.bench.timed import by_kernel
from course_utils.measured.best_peers import CUDNN_VIEW
from course_utils.patterns import Pattern

try:
    from torch.nn.attention.varlen import varlen_attn
except ModuleNotFoundError:  # torch 2.9 has none
    varlen_attn = None

BLOCKS = {
    "FLASH, a batch of blocks": SDPBackend.FLASH_ATTENTION,
    CUDNN_VIEW: SDPBackend.CUDNN_ATTENTION,
}
WINDOW, DOCUMENTS = "FLASH, its own window", "FLASH, varlen"
CLASSES = "FLASH's window, strided view"
TUNED_VIEW = "Flex 64, 4 warps, strided view"
STRIDED = {"Flex 128, strided view": FLEX_128, TUNED_VIEW: FLEX_TUNED}
SORTED = {"Flex 64, 4 warps, sorted copies": FLEX_TUNED}
Window = tuple[int, int]  # keys before the query's own, and behind it; -1 is no end


def by_hand(pattern: Pattern, length: int, device: str, *, with_flex: bool = True) -> dict[str, Attention]:
    """By name, the ways to compute this pattern at this length with dense kernels; empty if there are none.
    All but `BLOCKS` need torch 2.10 or newer.

    with_flex: also the ways with FlexAttention, which is compiled at the first call.
    """
    parts = pattern.parameters.get("parts", (pattern,)) if pattern.kind == "and" else (pattern,)
    of = {part.kind: part.parameters for part in parts}
    if of.keys() == {"block_diagonal"} and length % of["block_diagonal"]["block"] == 0:
        block = of["block_diagonal"]["block"]
        return {name: functools.partial(_blocks, backend=backend, block=block) for name, backend in BLOCKS.items()}
    if varlen_attn is None:
        return {}
    if of.keys() == {"sliding_window"}:
        ends = sequence_ends([length], device)
        window = of["sliding_window"]["window"] - 1, 0
        return {WINDOW: functools.partial(_packed, ends=ends, longest=length, window=window)}
    if of.keys() in ({"document"}, {"document", "causal"}):
        lengths = of["document"]["lengths"]
        window = (-1, 0) if "causal" in of else (-1, -1)
        packed = functools.partial(_packed, ends=sequence_ends(lengths, device), longest=max(lengths), window=window)
        return {DOCUMENTS: packed}
    if of.keys() == {"dilated"} and length % of["dilated"]["dilation"] == 0:
        return _dilated(of["dilated"]["window"], of["dilated"]["dilation"], length, device, with_flex)
    return {}


def sequence_ends(lengths: Sequence[int], device: str) -> Tensor:
    """The ends of sequences of these lengths, after a 0: what varlen_attn calls cu_seq."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).int()


def _varlen(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, window: Window) -> Tensor:
    """varlen_attn on `[tokens, H, d]`; torch 2.10 has is_causal in place of window_size."""
    named = {"window_size": window}
    if "window_size" not in inspect.signature(varlen_attn).parameters and window[0] == -1:
        named = {"is_causal": window == (-1, 0)}
    return varlen_attn(query, key, value, ends, ends, longest, longest, **named)


def _packed(query: Tensor, key: Tensor, value: Tensor, *, ends: Tensor, longest: int, window: Window) -> Tensor:
    """Sequences one after the other in a batch of one."""
    out = _varlen(*(tensor[0].transpose(0, 1) for tensor in (query, key, value)), ends, longest, window)
    return out.transpose(0, 1)[None]


def _blocks(query: Tensor, key: Tensor, value: Tensor, *, backend: SDPBackend, block: int) -> Tensor:
    """Each block becomes a head."""
    views = (tensor.flatten(0, 1).unflatten(1, (-1, block)) for tensor in (query, key, value))
    return by_kernel(backend)(*views).reshape(query.shape)


def _dilated(window: int, dilation: int, length: int, device: str, with_flex: bool) -> dict[str, Attention]:
    """A window in each residue class. A head's memory is `[tokens, classes, d]`, since neighbours are in different
    classes: for varlen_attn the classes become heads, and the heads become sequences."""
    tokens = length // dilation

    def classes_as_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        views = (tensor.reshape(-1, dilation, tensor.shape[-1]) for tensor in (query, key, value))
        ends = _class_ends(query.shape[0] * query.shape[1], tokens, device)
        return _varlen(*views, ends, tokens, (window - 1, 0)).view(query.shape)

    found: dict[str, Attention] = {CLASSES: classes_as_heads}
    if not with_flex:
        return found
    in_class, attend = patterns.sliding_window(window), flex.compiled()
    for name, setting in (STRIDED | SORTED).items():
        block, options = FLEX[setting]
        mask = flex.block_mask(in_class, tokens, tokens, block, device)
        attention = functools.partial(attend, block_mask=mask, kernel_options=options)
        found[name] = functools.partial(_by_class, attention, dilation, copies=name in SORTED)
    return found


@functools.lru_cache(maxsize=8)
def _class_ends(sequences: int, tokens: int, device: str) -> Tensor:
    return sequence_ends([tokens] * sequences, device)


def _by_class(
    attention: Attention, dilation: int, query: Tensor, key: Tensor, value: Tensor, *, copies: bool
) -> Tensor:
    """A dense kernel on `[B · H, classes, tokens, d]`, a view or copies; the output is permuted back."""
    views = [tensor.flatten(0, 1).unflatten(1, (-1, dilation)).transpose(1, 2) for tensor in (query, key, value)]
    out = attention(*(view.contiguous() for view in views) if copies else views)
    return out.transpose(1, 2).reshape(query.shape)
