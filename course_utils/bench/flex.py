"""A pattern beside FlexAttention and dense attention.

FlexAttention is compiled for each shape and size of block, and has the blocks that it finds itself.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
import torch._functorch.config
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from course_utils import patterns, timing
from course_utils.bench.timed import (
    MAX_HALF_ERROR,
    Function,
    backward_pass,
    by_kernel,
    columns,
    median_of,
    random_inputs,
    require_close,
    require_right,
    that_run,
)
from course_utils.measured import Row
from course_utils.measured.sparse_patterns import CUDNN, FLASH, FLEX_64, FLEX_128, FLEX_TUNED, OURS
from course_utils.operators import choose_kernel, flash_attention_v2
from course_utils.operators.sparse import sparse_attention
from course_utils.patterns import Pattern

_TILE_OF_64 = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64}  # its own tile is larger than such a block, and fails
FLEX: dict[str, tuple[int, dict[str, int] | None]] = {  # size of block, kernel_options
    FLEX_128: (128, None),
    FLEX_64: (64, _TILE_OF_64),
    FLEX_TUNED: (64, {**_TILE_OF_64, "fwd_num_warps": 4}),
}
DENSE = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
RUNS = 3  # of the comparison with FlexAttention
BUDGET_MS = 25.0  # for each function in each run
HEAD_START_US = 300.0  # longer than the host takes to launch any of these
FEW = {"warmup": 1, "repeats": 5}  # for what takes up to 0.2 s
MOST_PAIRS = 2**28  # L_q · L_k up to which FlexAttention finds its own blocks: it looks at every pair

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def race(
    pattern: Pattern,
    shape: tuple[int, int, int, int],
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float16,
    backward: bool = False,
    flex: Sequence[str] = tuple(FLEX),
    others: Mapping[str, Attention] | None = None,
    label: str | None = None,
) -> list[Row]:
    """Rows of one pattern and shape (B, H, L, d): ours, FlexAttention, other ways to the same, and causal dense
    attention, few times.

    others: by their names, what else gives the output of this pattern; label: for the pattern, in place of its name.
    `ratio_to_flex`: how many times as fast as FlexAttention with the better size of block, the median of three
    interleaved runs with the extremes beside it; `ratio_to_tuned`: the same with the number of warps that we found
    fastest for it by hand among its options; `ratio_to_best`: as the fastest of all that give this output but ours;
    `ratio_to_dense`: as dense FLASH, which is causal for every pattern; that of ours is of runs beside dense attention,
    which at 128 K tokens take longer than those of `median_ms`. All that is timed was compared: with ours,
    which was compared with fp32 torch, or, if dense, with causal attention.
    """
    *inputs, grad_output = random_inputs(shape, device, dtype, count=4)
    batch, heads, length, head_dim = shape

    def function(attention: Attention) -> Function:
        if backward:
            return backward_pass(attention, *inputs, grad_output)
        return lambda: attention(*inputs)

    functions = {OURS: function(functools.partial(sparse_attention, pattern=pattern))}
    where = f"{pattern.name}, L = {length}"
    of_flex = attentions(pattern, length, length, flex, device)
    peers = of_flex | dict(others or {})
    functions |= those_that_run(peers, function, where)
    dense = {name: functools.partial(by_kernel(backend), is_causal=True) for name, backend in DENSE.items()}
    dense_functions = those_that_run(dense, function, where)
    require_alike(functions, pattern, inputs, backward)
    ours_dense = {OURS: function(functools.partial(flash_attention_v2, is_causal=True))}
    require_alike(ours_dense | dense_functions, patterns.causal(), inputs, backward)

    found = [timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US) for _ in range(RUNS)]
    times = {name: median_of([run[name] for run in found]) for name in functions}
    beside_dense = timing.compare({OURS: functions[OURS]} | dense_functions, head_start_us=HEAD_START_US, **FEW)
    times |= {name: beside_dense[name] for name in dense_functions}

    flops = 4 * head_dim * batch * heads * count_pairs(pattern, length, device) * (2.5 if backward else 1)
    kernel = choose_kernel(pattern, length, length, differentiable=backward, device=device).kernel
    rows: list[Row] = []
    for name, taken in times.items():
        row: Row = {"pattern": label or pattern.name, "pass": "backward" if backward else "forward", "length": length}
        row |= {"name": name, "kernel": kernel if name == OURS else None}
        row |= {"dense_mask": "causal" if name in DENSE else None}
        row |= columns(taken)
        row["useful_tflop_per_s"] = flops / taken.median / 1e9 if name not in DENSE else None
        ratios = _ratios(found, name, [other for other in flex if other != FLEX_TUNED])
        if ratios:
            row |= {"ratio_to_flex": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios)}
            row |= {"ratio_to_tuned": statistics.median(_ratios(found, name, flex))}
        best = _ratios(found, name, [other for other in functions if other != OURS])
        if best:
            row["ratio_to_best"] = statistics.median(best)
        if FLASH in times:
            row["ratio_to_dense"] = times[FLASH].median / (beside_dense[OURS] if name == OURS else taken).median
        rows.append(row)
    return rows


def _ratios(runs: Sequence[dict[str, timing.Timing]], name: str, others: Sequence[str]) -> list[float]:
    """In each run, how many times as fast `name` is as the fastest of the others; empty without such a run."""
    return [
        min(run[other].median for other in others if other in run) / run[name].median
        for run in runs
        if name in run and any(other in run for other in others)
    ]


def attentions(
    pattern: Pattern, query_length: int, key_length: int, names: Sequence[str], device: str
) -> dict[str, Attention]:
    """FlexAttention on this mask in each of these ways, to be compiled at the first call."""
    # Beyond 8 versions of one function, torch.compile gives up, and FlexAttention would write down S: start anew.
    torch.compiler.reset()
    attend = compiled()
    blocks = {FLEX[name][0] for name in names}
    masks = {block: block_mask(pattern, query_length, key_length, block, device) for block in blocks}
    return {
        name: functools.partial(attend, block_mask=masks[FLEX[name][0]], kernel_options=FLEX[name][1]) for name in names
    }


def those_that_run(
    attentions: Mapping[str, Attention], function: Callable[[Attention], Function], where: str
) -> dict[str, Function]:
    """`that_run` for functions made from attentions; a compiled one's backward pass can run repeatedly."""
    with torch._functorch.config.patch(donated_buffer=False):  # else a compiled backward pass can run only once
        return that_run({name: functools.partial(function, attend) for name, attend in attentions.items()}, where)


def compiled() -> Callable[..., Tensor]:
    """FlexAttention, compiled for each new shape."""
    return torch.compile(flex_attention, dynamic=False)


def block_mask(
    pattern: Pattern, query_length: int, key_length: int, block: int, device: str, *, look_up: bool = False
) -> BlockMask:
    """The blocks that FlexAttention finds itself, which must equal ours; if L_q · L_k is too large for it, ours.

    look_up: its mask reads the bits of our lists instead of the pattern's own mask.
    """
    lists = pattern.block_lists(query_length, key_length, block=block, device=device)
    ours = lists.to_block_mask(None if look_up else pattern.flex_mask_mod(query_length, key_length, device))
    if query_length * key_length > MOST_PAIRS:
        return ours
    theirs = create_block_mask(ours.mask_mod, None, None, query_length, key_length, device=device, BLOCK_SIZE=block)
    same = torch.equal(ours.to_dense(), theirs.to_dense())
    if query_length % block == 0:  # else they differ on the last row of blocks, which can be full only in our sense
        same = same and torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    if not same:
        raise RuntimeError(f"{pattern.name}: the blocks of {block} at L = {key_length} are not FlexAttention's")
    return theirs


def require_alike(functions: dict[str, Function], pattern: Pattern, inputs: Sequence[Tensor], backward: bool) -> None:
    """Raises RuntimeError unless ours agrees with FlexAttention and, forward, some rows agree with fp32 torch."""
    ours = functions[OURS]()
    if not backward:
        require_right(OURS, ours, *inputs, pattern)
    for other in (name for name in functions if name != OURS):
        theirs = functions[other]()
        if not backward:
            require_close(f"{OURS} beside {other}", ours, theirs, at_most=MAX_HALF_ERROR[ours.dtype])
            continue
        for gradient, our, their in zip(("dq", "dk", "dv"), ours, theirs, strict=True):
            at_most = MAX_HALF_ERROR[our.dtype] * max(1.0, their.abs().max().item())
            require_close(f"{OURS} beside {other}, {gradient}", our, their, at_most=at_most)


def count_pairs(pattern: Pattern, length: int, device: str) -> int:
    """Visible pairs per head: by arithmetic for ranges, else counted in the lists, on a fast device."""
    return (
        pattern.pairs(length)
        if pattern.row_ranges(length) or pattern.ranges
        else pattern.block_lists(length, device=device).pairs()
    )
