"""The lightning indexer of DeepSeek Sparse Attention (kernels/05_deepseek_sparse), in bf16, fp16 and FP8.

The kernels hold 256 keys a block in registers and let the queries stream by. FP8 has two: mma.sync, on sm_89 and newer,
and on Hopper, where mma.sync multiplies FP8 as fp16, wgmma.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import check_tensor, not_traced
from course_utils.costs import V3_2, ceil_div
from course_utils.cuda import RawModule, compiled
from course_utils.operators.library import operator
from course_utils.operators.prepare import MAX_GRID, autocast, dense, padded
from course_utils.operators.tensor_core import BF16, takes_wgmma

FOLDER = "05_deepseek_sparse"
E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
AMAX_FLOOR = 1e-4  # a vector of zeros has a scale too
FARTHEST = 2**62  # q_start: torch's integers have 64 bits, and no query is so far from a key
MAX_HEADS, MAX_DIM = V3_2.index_n_heads, V3_2.index_head_dim
WARPS = 4
BLOCK_KEYS = 64 * WARPS
BLOCK_QUERIES = 64  # at most: then to load the keys takes a few percent of the time
SLOTS = 264  # blocks that a large GPU runs at a time


class Variant(NamedTuple):
    """A kernel for one dtype and length of the vectors: its file and name, its options, numbers of a vector with the
    padding, threads of a block and bytes of shared memory."""

    file: str
    options: tuple[str, ...]
    dim: int
    threads: int
    shared_bytes: int


def variant(dtype: torch.dtype, dim: int, device: torch.device, *, hopper: bool | None = None) -> Variant:
    """What the operator launches for vectors of `dim` numbers; hopper: see `indexer_forward`."""
    if hopper is None:
        hopper = takes_wgmma(device)
    if dtype == E4M3 and hopper:
        return Variant("lightning_indexer_hopper", (), 128, 256, 4 * MAX_HEADS * (128 + 4))
    file, kernel_dim, number_bytes = "lightning_indexer", 64 if dim <= 64 else 128, 2
    options: tuple[str, ...] = (f"-DWARPS={WARPS}",)
    if dtype == E4M3:
        file, kernel_dim, number_bytes = "lightning_indexer_fp8", 128, 1
    else:
        options = f"-DD={kernel_dim}", f"-DBF16={BF16[dtype]}", *options
    # The keys; then, in the same place, two queries: for each head a vector and a weight.
    shared_bytes = max(BLOCK_KEYS * kernel_dim * number_bytes, 2 * MAX_HEADS * (kernel_dim * number_bytes + 4))
    return Variant(file, options, kernel_dim, 32 * WARPS, shared_bytes)


def lightning_indexer(
    q_index: Tensor,
    k_index: Tensor,
    weights: Tensor,
    *,
    q_start: int = 0,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
) -> Tensor:
    """`I[t, s] = sum_j weights[t, j] · ReLU(q_index[t, j] · k_index[s])` (DeepSeek-V3.2, arXiv 2512.02556, §2.1), by
    tensor cores, sums in fp32; in FP8, Hopper's and Ada's keep some 14 bits of a sum.

    Args:
        q_index: `[S, H_I, d_I]`, bfloat16, float16 or float8_e4m3fn, H_I up to 64, d_I up to 128, on the CPU (emulator)
            or a GPU (for FP8, sm_89 or newer); strided inputs are copied, and d_I is padded with zeros.
        k_index: `[T, d_I]`, one vector a token for all heads; dtype and device of q_index.
        weights: float32 `[S, H_I]`, of either sign; any scale, such as `H_I ** -0.5 * d_I ** -0.5`, is in them already.
        q_start: the position of query 0: key s is legal for query t if `s <= t + q_start`. Any int.
        q_scale: float32 `[S, H_I]`, with FP8 and only then; the factors of `quantize_e4m3`. None may be negative:
            the kernels take it out of the ReLU. That is not checked, since the check would wait for the GPU.
        k_scale: float32 `[T]`, the same for k_index. It comes in last: without it, a score must be within fp32 too.

    Returns:
        float32 `[S, T]`; minus infinity where a key is not legal. A product that is NaN counts as 0. To ask for its
        gradient is an error: what follows is a selection, which has none, and the indexer is trained by a loss of its
        own.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device or value; the message names it.
    """
    (q_index, k_index), (weights,) = autocast(q_index, k_index), autocast(weights, dtype=torch.float32)
    _check(q_index, k_index, weights, q_scale, k_scale, q_start)
    if not isinstance(q_start, torch.SymInt):  # which torch.export keeps open
        q_start = max(-FARTHEST, min(int(q_start), FARTHEST))
    return _indexer(q_index, k_index, weights, q_scale, k_scale, q_start)


@operator(
    "lightning_indexer(Tensor q_index, Tensor k_index, Tensor weights, Tensor? q_scale, Tensor? k_scale, "
    "SymInt q_start) -> Tensor",
    fake=lambda q_index, k_index, weights, *_: weights.new_empty((q_index.shape[0], k_index.shape[0])),
    check=lambda *args: _check(*args),
    flops=lambda q_index, k_index, *_: 2 * q_index.numel() * k_index.shape[0],
    instead="the same sum in plain torch, for a loss of the indexer's own",
)
def _indexer(
    q_index: Tensor, k_index: Tensor, weights: Tensor, q_scale: Tensor | None, k_scale: Tensor | None, q_start: int
) -> Tensor:
    return indexer_forward(q_index, k_index, weights, q_start=q_start, q_scale=q_scale, k_scale=k_scale)


def indexer_forward(
    q_index: Tensor,
    k_index: Tensor,
    weights: Tensor,
    *,
    q_start: int = 0,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    hopper: bool | None = None,
) -> Tensor:
    """`lightning_indexer` without its checks.

    hopper: whether lightning_indexer_hopper.cu does the work in FP8, or the portable kernel; None for the one that the
    operator takes on this device.
    """
    (queries, heads, dim), keys = q_index.shape, k_index.shape[0]
    kernel = variant(q_index.dtype, dim, q_index.device, hopper=hopper)
    logits = weights.new_empty(queries, keys)
    q, k = (_padded(tensor.detach(), kernel.dim) for tensor in (q_index, k_index))
    scales = () if q_scale is None else (dense(q_scale.detach()), dense(k_scale.detach()))
    q_start = max(-queries, min(q_start, keys))  # beyond, nothing changes, and t + q_start could overflow
    _module(kernel).get_function(kernel.file)(
        grid(queries, keys),
        (kernel.threads,),
        (q, k, dense(weights.detach()), *scales, logits, *map(np.int32, (queries, keys, heads, q_start))),
        shared_mem=kernel.shared_bytes,
    )
    return logits


def quantize_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors in FP8, E4M3, each with one scale, as DeepSeek-V3.2's indexer takes them: `x ≈ x_e4m3.float() · scale`.

    x: `[..., d]`, float32, bfloat16 or float16. Returns (x_e4m3, scale): float8_e4m3fn `[..., d]` and float32 `[...]`.
    The scale is `max(|x|, 1e-4) / 448`, rounded up to a power of two: so no number overflows, and to multiply by it
    rounds nothing. What is left is the rounding to E4M3: at most 1/16 of a number, or 2^-10 of the scale. A vector with
    an infinity or a NaN becomes NaN as a whole, its scale too. To autograd both are constants, as what is rounded is.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; it must be a torch tensor [..., d]")
    if x.dtype not in (torch.float32, *BF16):
        raise TypeError(f"x has dtype {x.dtype}; it must be torch.float32 or torch.bfloat16 or torch.float16")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {list(x.shape)}; it must be [..., d] with d at least 1")
    x = x.detach().float()
    amax = x.abs().amax(dim=-1).clamp(min=AMAX_FLOOR)
    mantissa, exponent = torch.frexp(amax / E4M3_MAX)  # mantissa in [1/2, 1)
    exponent = exponent - (mantissa == 0.5).int()
    scale = ((exponent + 127) << 23).view(torch.float32)  # 2 ** exponent: an fp32 number without fraction
    scale = torch.where(amax.isfinite(), scale, torch.nan)
    return (x / scale[..., None]).to(E4M3), scale


def grid(queries: int, keys: int) -> tuple[int, int]:
    """Blocks along the keys, and along the queries: at most 64 queries each, fewer where two rounds of blocks would not
    fill the GPU, and more where the grid has no room for so many blocks."""
    key_blocks = ceil_div(keys, BLOCK_KEYS)
    query_blocks = max(ceil_div(queries, BLOCK_QUERIES), ceil_div(2 * SLOTS, key_blocks))
    return key_blocks, min(queries, query_blocks, MAX_GRID)


def modules(device: torch.device) -> list[RawModule]:
    """What the operator can launch at DeepSeek-V3.2's sizes on this device, to be compiled ahead of time."""
    variants = [variant(torch.bfloat16, 128, device)]
    if runs_fp8(device):
        variants += {variant(E4M3, 128, device), variant(E4M3, 128, device, hopper=False)}
    return [_module(kernel) for kernel in variants]


def runs_fp8(device: torch.device) -> bool:
    """Whether the FP8 kernels run there: on the emulator, and on GPUs of compute capability 8.9 or higher."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)


def _padded(tensor: Tensor, dim: int) -> Tensor:
    """Dense vectors of `dim` numbers; FP8 vectors as bytes, since torch can do little with float8."""
    return padded(tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor, dim)


def _check(
    q_index: Tensor, k_index: Tensor, weights: Tensor, q_scale: Tensor | None, k_scale: Tensor | None, q_start: int
) -> None:
    check_tensor("q_index", q_index, ("S", "H_I", "d_I"), (*BF16, E4M3))
    queries, heads, dim = q_index.shape
    if heads > MAX_HEADS:
        raise ValueError(f"q_index has {heads} heads; it must have at most {MAX_HEADS}")
    if dim > MAX_DIM:
        raise ValueError(f"q_index has vectors of {dim} numbers; they must have at most {MAX_DIM}")
    like = "q_index", q_index
    check_tensor("k_index", k_index, ("T", dim), like=like)
    check_tensor("weights", weights, (queries, heads), (torch.float32,), like=like)
    not_traced("q_start", q_start)
    if isinstance(q_start, bool) or not isinstance(q_start, (int, np.integer, torch.SymInt)):
        raise TypeError(f"q_start is {q_start!r}; it must be an int")
    for name, scale, shape in (("q_scale", q_scale, (queries, heads)), ("k_scale", k_scale, k_index.shape[:1])):
        if (scale is None) == (q_index.dtype == E4M3):
            takes = "is needed for" if scale is None else "is for FP8 only; it must be None for"
            raise ValueError(f"{name} {takes} q_index of {q_index.dtype}")
        if scale is not None:
            check_tensor(name, scale, tuple(shape), (torch.float32,), like=like)


def _module(kernel: Variant) -> RawModule:
    return compiled(f"{FOLDER}/{kernel.file}.cu", kernel.options)
