"""What `bench best_peers` measures: operators of the course beside the best kernels that a user can install.

They are those of `installed_peers`. Every row is a pair, timed by turns on the same random normal inputs, and `speed`
says how many times as fast as the peer the course's operator is. Both are held against fp32 or float64 first, in some
rows or in the first head: what is wrong is an error, and not timed. `sparse_attention` takes the kernel that it chooses
on this GPU. Dense attention has the shapes of chapter 07, sparse patterns have those of chapter 04, the core that of
chapter 05. Times are of the GPU alone, with a cold L2 cache. Conventions as in `timed`.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from course_utils import patterns, reference
from course_utils.bench import deepseek_sparse, flex, installed_peers
from course_utils.bench.by_hand import TUNED_VIEW, by_hand
from course_utils.bench.flex import FLEX_128, FLEX_TUNED
from course_utils.bench.sparse_patterns import documents
from course_utils.bench.timed import (
    Function,
    all_parts,
    backward_pass,
    interleaved,
    random_inputs,
    some_rows,
    that_run,
)
from course_utils.costs import TOP_K, V3_2, DeepSeekDims
from course_utils.measured import Row
from course_utils.measured.best_peers import (
    BLOCKS,
    CORE,
    CUDNN_VIEW,
    DENSE,
    DENSE_BACKWARD,
    DILATED,
    DOCUMENTS,
    FLASH_4,
    FLASH_MLA,
    FLEX_BY_FLASH,
    NARROW,
    NARROW_WINDOWS,
    OTHERS_BACKWARD,
    WINDOWS,
    WINDOWS_BACKWARD,
    Pair,
)
from course_utils.measured.deepseek_sparse import CORE as SPARSE_MLA
from course_utils.measured.deepseek_sparse import QUERIES
from course_utils.measured.hopper import OURS as HOPPER
from course_utils.measured.hopper import TOKENS, WIDTH
from course_utils.measured.sparse_patterns import HEAD_DIM, HEADS
from course_utils.measured.sparse_patterns import OURS as SPARSE
from course_utils.operators import choose_kernel, flash_attention_hopper, mla, sparse_attention
from course_utils.operators.tensor_core import HEAD_DIMS
from course_utils.patterns import Pattern

RUNS = 3  # of each comparison
TIMES = {"budget_ms": 25.0, "head_start_us": 600.0}  # for each function in each run; longer than the host takes
# 1 - cosine from the right numbers that passes: one key too many in a window of 4096 is off by ten times as much.
MOST_OFF, GRADIENT_OFF = 1e-5, 5e-5
WINDOW_SIZES, BLOCK_SIZES = (256, 1024, 4096), (256, 1024)
BACKWARD_LENGTHS = (4096, 16384, 65536)
DOCUMENTS_WORK = "documents of 512 to 3072, causal"
DILATED_SIZES, DILATED_WORK = {"window": 512, "dilation": 8}, "window of 512, every 8th key"
STREAMING_SIZES, STREAMING_WORK = {"sinks": 4, "window": 1024}, "4 sinks, window of 1024"
BIGBIRD_WORK = "BigBird, blocks of 64"
ROWS = 16384  # of queries whose scores are held at a time, in fp32, for gradients that are checked

Gradients = Callable[[], tuple[Tensor, ...]]


def best_peers() -> list[Row]:
    """Every pair.

    Raises:
        RuntimeError: a package is missing, or an output or a gradient is wrong.
    """
    for package in (installed_peers.FLASH_4, installed_peers.FLASH_MLA):
        installed_peers.load(package)
    of_dense, of_windows = (dense, dense_backward), (windows, narrow_windows, windows_backward)
    of_others = documents_packed, blocks, dilated, narrow, others_backward, flex_by_flash
    return all_parts((*of_dense, *of_windows, *of_others, core))


# ---------------------------------------------------------------------------------------------- dense attention


def dense(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (1024, 4096, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """`flash_attention_hopper` in fp16, with B · L and H · d fixed."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        inputs = random_inputs((tokens // length, width // head_dim, length, head_dim), device)
        functions: dict[str, Function] = {
            HOPPER: functools.partial(flash_attention_hopper, *inputs, is_causal=is_causal),
            FLASH_4: installed_peers.flash_4(*inputs, is_causal=is_causal),
        }
        pattern = patterns.causal() if is_causal else patterns.full()
        work = f"{pattern.kind}, d = {head_dim}"
        require_outputs(work, functions, inputs, pattern)
        rows += timed_pairs(DENSE, work, length, functions)
    return rows


def dense_backward(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (4096, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """The backward pass alone of the same, causal."""
    rows: list[Row] = []
    for head_dim, length in itertools.product(head_dims, lengths):
        *inputs, grad_output = random_inputs((tokens // length, width // head_dim, length, head_dim), device, count=4)
        attention = functools.partial(flash_attention_hopper, is_causal=True)
        functions: dict[str, Gradients] = {
            HOPPER: backward_pass(attention, *inputs, grad_output),
            FLASH_4: installed_peers.flash_4_backward(*inputs, grad_output, is_causal=True),
        }
        work = f"causal, d = {head_dim}"
        require_gradients(work, functions, inputs, grad_output, patterns.causal())
        rows += timed_pairs(DENSE_BACKWARD, work, length, functions)
    return rows


# ---------------------------------------------------------------------------------------------- sparse patterns


def windows(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = (4096, 16384, 131072),
    sizes: Sequence[int] = WINDOW_SIZES,
    head_dim: int = HEAD_DIM,
    part: str = WINDOWS,
) -> list[Row]:
    """Sliding windows, causal, beside flash-attn-4's own."""
    rows: list[Row] = []
    for size, length in itertools.product(sizes, lengths):
        inputs = random_inputs((1, heads, length, head_dim), device)
        peers = {FLASH_4: installed_peers.flash_4(*inputs, is_causal=True, window=size)}
        rows += _sparse(part, f"window of {size}", inputs, patterns.sliding_window(size), peers)
    return rows


def narrow_windows(*, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = (4096, 16384)) -> list[Row]:
    """The same with 64 columns."""
    return windows(device=device, heads=heads, lengths=lengths, head_dim=64, part=NARROW_WINDOWS)


def windows_backward(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = BACKWARD_LENGTHS,
    sizes: Sequence[int] = WINDOW_SIZES,
) -> list[Row]:
    """The backward pass alone of sliding windows."""
    rows: list[Row] = []
    for size, length in itertools.product(sizes, lengths):
        tensors = random_inputs((1, heads, length, HEAD_DIM), device, count=4)
        peers = {FLASH_4: installed_peers.flash_4_backward(*tensors, is_causal=True, window=size)}
        pattern = patterns.sliding_window(size)
        rows += _sparse_backward(WINDOWS_BACKWARD, f"window of {size}", tensors, pattern, peers)
    return rows


def documents_packed(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = (4096, 16384, 131072),
    head_dim: int = HEAD_DIM,
    part: str = DOCUMENTS,
) -> list[Row]:
    """Chapter 04's documents of 512 to 3072 tokens, causal, beside flash-attn-4 on packed sequences."""
    rows: list[Row] = []
    for length in lengths:
        inputs, parts = random_inputs((1, heads, length, head_dim), device), documents(length)
        peers = {FLASH_4: installed_peers.flash_4_packed(*inputs, parts, is_causal=True)}
        rows += _sparse(part, DOCUMENTS_WORK, inputs, patterns.document(parts) & patterns.causal(), peers)
    return rows


def blocks(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = (4096, 16384, 131072),
    sizes: Sequence[int] = BLOCK_SIZES,
    head_dim: int = HEAD_DIM,
    part: str = BLOCKS,
) -> list[Row]:
    """Equal blocks beside cuDNN on a view, and beside flash-attn-4 on packed sequences."""
    rows: list[Row] = []
    for size, length in itertools.product(sizes, lengths):
        inputs, pattern = random_inputs((1, heads, length, head_dim), device), patterns.block_diagonal(size)
        peers = {
            CUDNN_VIEW: functools.partial(by_hand(pattern, length, device)[CUDNN_VIEW], *inputs),
            FLASH_4: installed_peers.flash_4_packed(*inputs, [size] * (length // size)),
        }
        rows += _sparse(part, f"blocks of {size}", inputs, pattern, peers)
    return rows


def dilated(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = (4096, 16384, 131072),
    head_dim: int = HEAD_DIM,
    part: str = DILATED,
    with_flex: bool = True,
) -> list[Row]:
    """Chapter 04's dilated window beside windows on a strided view: flash-attn-4's, and FlexAttention's, tuned."""
    rows: list[Row] = []
    for length in lengths:
        inputs, pattern = random_inputs((1, heads, length, head_dim), device), patterns.dilated(**DILATED_SIZES)
        peers = {FLASH_4: installed_peers.flash_4_dilated(*inputs, **DILATED_SIZES)}
        if with_flex:
            peers[TUNED_VIEW] = functools.partial(by_hand(pattern, length, device)[TUNED_VIEW], *inputs)
        rows += _sparse(part, DILATED_WORK, inputs, pattern, peers)
    return rows


def narrow(
    *, device: str = "cuda", heads: int = HEADS, length: int = 16384, sizes: Sequence[int] = BLOCK_SIZES
) -> list[Row]:
    """Documents, equal blocks, a dilated window, sinks and a window, and BigBird, with 64 columns."""
    of_64 = {"device": device, "heads": heads, "lengths": (length,), "head_dim": 64, "part": NARROW}
    rows = documents_packed(**of_64) + blocks(**of_64, sizes=sizes) + dilated(**of_64, with_flex=False)
    inputs = random_inputs((1, heads, length, 64), device)
    by_flex = {STREAMING_WORK: patterns.streaming(**STREAMING_SIZES), BIGBIRD_WORK: patterns.bigbird(64)}
    for work, pattern in by_flex.items():
        attentions = flex.attentions(pattern, length, length, (FLEX_TUNED,), device)
        peers = flex.those_that_run(attentions, lambda attend: functools.partial(attend, *inputs), work)
        rows += _sparse(NARROW, work, inputs, pattern, peers)
    return rows


def others_backward(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = BACKWARD_LENGTHS,
    flex_lengths: Sequence[int] = (4096, 65536),
    sizes: Sequence[int] = BLOCK_SIZES,
) -> list[Row]:
    """The backward pass alone of documents, a dilated window, equal blocks, and sinks and a window.

    flex_lengths: of the last, whose peer is FlexAttention, compiled for each, with blocks of 128 as in chapter 04.
    """
    rows: list[Row] = []
    for length in lengths:
        tensors, parts = random_inputs((1, heads, length, HEAD_DIM), device, count=4), documents(length)
        pair = functools.partial(_sparse_backward, OTHERS_BACKWARD, tensors=tensors)
        packed = installed_peers.flash_4_packed_backward(*tensors, parts, is_causal=True)
        rows += pair(DOCUMENTS_WORK, pattern=patterns.document(parts) & patterns.causal(), peers={FLASH_4: packed})
        strided = installed_peers.flash_4_dilated_backward(*tensors, **DILATED_SIZES)
        rows += pair(DILATED_WORK, pattern=patterns.dilated(**DILATED_SIZES), peers={FLASH_4: strided})
        for size in sizes:
            pattern = patterns.block_diagonal(size)
            peers = {CUDNN_VIEW: backward_pass(by_hand(pattern, length, device)[CUDNN_VIEW], *tensors)}
            rows += pair(f"blocks of {size}", pattern=pattern, peers=peers)
        if length in flex_lengths:
            pattern = patterns.streaming(**STREAMING_SIZES)
            attentions = flex.attentions(pattern, length, length, (FLEX_128,), device)
            peers = flex.those_that_run(
                attentions, lambda attend, of=tensors: backward_pass(attend, *of), STREAMING_WORK
            )
            rows += pair(STREAMING_WORK, pattern=pattern, peers=peers)
    return rows


def flex_by_flash(*, device: str = "cuda", heads: int = HEADS, length: int = 16384, window: int = 1024) -> list[Row]:
    """A window and documents beside FlexAttention with flash-attn-4 as its backend, where it runs and is right."""
    rows: list[Row] = []
    inputs = random_inputs((1, heads, length, HEAD_DIM), device)
    of = {
        f"window of {window}": patterns.sliding_window(window),
        DOCUMENTS_WORK: patterns.document(documents(length)) & patterns.causal(),
    }
    for work, pattern in of.items():
        torch.compiler.reset()
        mask, options = flex.block_mask(pattern, length, length, 128, device), {"BACKEND": "FLASH"}
        attend = functools.partial(flex.compiled(), *inputs, block_mask=mask, kernel_options=options)
        checked = functools.partial(_checked, attend, work, inputs, pattern)
        rows += _sparse(FLEX_BY_FLASH, work, inputs, pattern, that_run({FLEX_BY_FLASH: checked}, work))
    return rows


def _checked(attend: Function, work: str, inputs: Sequence[Tensor], pattern: Pattern) -> Function:
    """That backend, once its output was found right: an error here only leaves it out."""
    require_outputs(work, {FLEX_BY_FLASH: attend}, inputs, pattern)
    return attend


def _sparse(part: str, work: str, inputs: Sequence[Tensor], pattern: Pattern, peers: dict[str, Function]) -> list[Row]:
    """`sparse_attention` beside its peers on a pattern, after a check of each."""
    length, device = inputs[0].shape[2], inputs[0].device
    functions = {SPARSE: functools.partial(sparse_attention, *inputs, pattern)} | peers
    require_outputs(f"{work}, L = {length}", functions, inputs, pattern)
    return timed_pairs(part, work, length, functions, choose_kernel(pattern, length, device=device).kernel)


def _sparse_backward(
    part: str, work: str, tensors: Sequence[Tensor], pattern: Pattern, peers: dict[str, Gradients]
) -> list[Row]:
    """The same of its backward pass. tensors: the inputs, and the gradient of the output."""
    *inputs, grad_output = tensors
    length, device = grad_output.shape[2], grad_output.device
    ours = backward_pass(functools.partial(sparse_attention, pattern=pattern), *tensors)
    functions: dict[str, Gradients] = {SPARSE: ours} | peers
    require_gradients(work, functions, inputs, grad_output, pattern)
    kernel = choose_kernel(pattern, length, differentiable=True, device=device).kernel
    return timed_pairs(part, work, length, functions, kernel)


# ---------------------------------------------------------------------------------------------- the sparse MLA core


def core(
    *,
    device: str = "cuda",
    queries: Sequence[int] = (QUERIES, 16, 1),
    length: int = 8192,
    top_k: int = TOP_K,
    config: DeepSeekDims = V3_2,
) -> list[Row]:
    """The sparse core of a chunk of a prefill, of a few queries and of the one query of a step, in bf16."""
    rows: list[Row] = []
    for count in queries:
        query, latent = deepseek_sparse.latents(count, length, config, device)
        indices = deepseek_sparse.random_selection(count, length, top_k, device)
        arguments = deepseek_sparse.mla_arguments(config)
        functions = {
            SPARSE_MLA: functools.partial(mla.sparse_mla, query, latent, indices, **arguments),
            FLASH_MLA: installed_peers.flash_mla(query, latent, indices, **arguments),
        }
        for some in deepseek_sparse.first_and_last(count):
            expected, _ = reference.sparse_mla(query[some], latent, indices[some], **arguments)
            for name, function in functions.items():
                deepseek_sparse.require_right(f"{name}, {count} queries", function()[0][some], expected, MOST_OFF)
        rows += timed_pairs(CORE, f"{count:,} quer{'y' if count == 1 else 'ies'}", length, functions)
    return rows


# ---------------------------------------------------------------------------------------------- right, and timed


def require_outputs(work: str, functions: dict[str, Function], inputs: Sequence[Tensor], pattern: Pattern) -> None:
    """Raises RuntimeError unless 32 rows of every output are those of fp32 torch."""
    chosen, expected = some_rows(*inputs, pattern)
    for name, function in functions.items():
        found = function().flatten(2, -2)  # of what is sorted by residue class, the rows
        deepseek_sparse.require_right(f"{name}, {work}", found[:, :, chosen], expected, MOST_OFF)


def require_gradients(
    work: str, functions: dict[str, Gradients], inputs: Sequence[Tensor], grad_output: Tensor, pattern: Pattern
) -> None:
    """Raises RuntimeError unless dq, dk and dv of the first key head and its query heads are those of fp32 torch."""
    query, key, value = inputs
    group = slice(query.shape[1] // key.shape[1])
    keys = key[:1, :1], value[:1, :1]
    mask = pattern.mask(query.shape[2], key.shape[2], device=query.device)
    rows = zip(*(of.split(ROWS, dim=-2) for of in (query[:1, group], grad_output[:1, group], mask)), strict=True)
    gradients = functools.partial(reference.attention_gradients, enable_gqa=True, dtype=torch.float32)
    with reference.full_float32():
        dq, dk, dv = zip(*(gradients(some, *keys, grad, attn_mask=keep) for some, grad, keep in rows), strict=True)
    expected = torch.cat(dq, dim=2), sum(dk), sum(dv)
    for name, function in functions.items():
        for which, found, right in zip(("dq", "dk", "dv"), function(), expected, strict=True):
            some = found[:1, : right.shape[1]]
            deepseek_sparse.require_right(f"{which} of {name}, {work}", some, right, GRADIENT_OFF)


def timed_pairs(
    part: str, work: str, length: int, functions: dict[str, Function], kernel: str | None = None
) -> list[Row]:
    """A `Pair` as a row for each peer: the first function, which is ours, beside it."""
    ours, *peers = functions
    times = interleaved(functions, ours, RUNS, **TIMES)
    our, _ = times[ours]
    rows: list[Row] = []
    for peer in peers:
        taken, ratios = times[peer]
        speeds = [1 / ratio for ratio in ratios]  # ratios: how many times as fast as ours the peer is
        middle, low, high = statistics.median(speeds), min(speeds), max(speeds)
        spent = our.median, our.spread, taken.median, taken.spread
        rows.append(asdict(Pair(part, work, length, ours, kernel, peer, *spent, middle, low, high)))
    return rows
