"""What `bench 03_flash_attention_v2` measures: every figure of chapter 03, one function for each part of it.

Each row has its `part`. Torch's FlashAttention-2 is the yardstick, cuDNN the fastest that torch has on a Hopper. Peers
run interleaved with our kernels, and FLASH twice: what it gains on itself is the noise. Where kernels are short, times
are of the GPU alone (`head_start_us` of `timing.compare`), and `call_ms` is of the whole call. Conventions as in
`timed`.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.nn.functional import gelu, scaled_dot_product_attention

from course_utils import costs, reference, timing
from course_utils.bench.timed import (
    KERNELS,
    Function,
    Launched,
    all_parts,
    backward_pass,
    build_kernel,
    by_kernel,
    call_ms,
    columns,
    compile_ahead,
    interleaved,
    random_inputs,
    require_close,
    resources,
    sdpa,
    that_run,
)
from course_utils.cuda import Kernel
from course_utils.launches.ladder import FORWARD, LADDER, TUNING, Step, build, launch
from course_utils.measured import Row, select
from course_utils.measured.flash_attention_v2 import (
    BY_HAND,
    CUDNN,
    FLASH,
    FLASH_AGAIN,
    LENGTHS,
    NAIVE,
    OURS,
    SHORT_LENGTHS,
    SPLIT,
    TABLE_SHAPE,
    TOKENS,
    UNPACKED,
    WIDTH,
)
from course_utils.nvidia import tools
from course_utils.operators import flash_attention_minimal, flash_attention_v2, flash_v2, tensor_core
from course_utils.operators.attention import Call

PEERS = {
    FLASH: SDPBackend.FLASH_ATTENTION,
    CUDNN: SDPBackend.CUDNN_ATTENTION,
    "torch memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
RUNS = 3  # of the comparison by length; what only shows a trend runs once
BUDGET_MS = 25.0  # for each function in each run
HEAD_START_US = 300.0  # longer than the host takes to launch a backward pass
MAX_ERROR = 2e-2  # of fp16 outputs and gradients, between two right kernels

Shape = tuple[int, int, int, int]  # B, H, L, d


def flash_v2_chapter() -> list[Row]:
    """Every figure of chapter 03."""
    compile_all()
    return all_parts(
        (
            by_length,
            ladder,
            tuning,
            short_lengths,
            few_queries,
            time_and_memory,
            recompute_or_store,
            fused_recompute_or_read,
            training_block,
            gradient_underflow,
        )
    )


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches."""
    modules = flash_v2.modules(torch.float16, torch.device(device))
    for step, head_dim in itertools.product((*LADDER, *TUNING), flash_v2.HEAD_DIMS):
        modules.append(build(step, head_dim, torch.float16).module)
    modules += [reads_p(head_dim, torch.float16).module for head_dim in flash_v2.HEAD_DIMS]
    compile_ahead(modules, device)


# ---------------------------------------------------------------------------------------------- against torch


def by_length(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = LENGTHS,
    head_dims: Sequence[int] = flash_v2.HEAD_DIMS,
) -> list[Row]:
    """Forward and backward beside torch's kernels, with B · L and H · d fixed, and the ratios to FLASH summed up."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        shape = tokens // length, width // head_dim, length, head_dim
        for pass_name in ("forward", "backward"):
            rows += _race("lengths", shape, is_causal, pass_name, device)
    return rows + [_summary(rows, pass_name) for pass_name in ("forward", "backward")]


def short_lengths(
    *,
    device: str = "cuda",
    heads: int = 16,
    lengths: Sequence[int] = SHORT_LENGTHS,
    head_dims: Sequence[int] = flash_v2.HEAD_DIMS,
) -> list[Row]:
    """One sequence alone, which does not fill the GPU. `call_ms` is what a call takes when many follow one another,
    the time of the host included: for the shortest, that is all that counts."""
    rows: list[Row] = []
    for head_dim, length, pass_name in itertools.product(head_dims, lengths, ("forward", "backward")):
        rows += _race("short", (1, heads, length, head_dim), False, pass_name, device)
    return rows


def _race(part: str, shape: Shape, is_causal: bool, pass_name: str, device: str) -> list[Row]:
    """Rows of one shape, one for each implementation, after a check that ours is right. The part "lengths" takes three
    runs, as peers are timed; "short" one, of the GPU alone, and the time of calls beside it."""
    runs, head_start_us = (RUNS, 0.0) if part == "lengths" else (1, HEAD_START_US)
    batch, heads, length, head_dim = shape
    inputs = random_inputs(shape, device, count=4)
    functions = _functions(*inputs, is_causal=is_causal, backward=pass_name == "backward")
    if pass_name == "forward":
        require_close(OURS, functions[OURS](), functions[FLASH](), at_most=MAX_ERROR)
    else:
        for name, ours, theirs in zip(("dq", "dk", "dv"), functions[OURS](), functions[FLASH](), strict=True):
            at_most = MAX_ERROR * max(1.0, theirs.abs().max().item())
            require_close(f"{OURS}, {name}", ours, theirs, at_most=at_most)
    flops = costs.attention_flops(batch, heads, length, length, head_dim, is_causal, pass_name == "backward")
    columns = {"part": part, "pass": pass_name, "head_dim": head_dim, "is_causal": is_causal, "length": length}
    found = interleaved(functions, FLASH, runs, once=(NAIVE,), budget_ms=BUDGET_MS, head_start_us=head_start_us)
    rows: list[Row] = []
    for name, (time, ratios) in found.items():
        row: Row = {**columns, "name": name, "median_ms": time.median, "spread_ms": time.spread}
        row |= {"tflop_per_s": flops / time.median / 1e9, "ratio_to_flash": statistics.median(ratios)}
        row |= {"ratio_low": min(ratios), "ratio_high": max(ratios)}
        if part == "short" and name != FLASH_AGAIN:
            of_torch = name in PEERS and pass_name == "forward"
            row["call_ms"] = call_ms(PEERS[name], *inputs[:3]) if of_torch else timing.time_calls(functions[name])
        rows.append(row)
    return rows


def _summary(rows: list[Row], pass_name: str) -> Row:
    """Geometric mean and extremes of our ratios to FLASH, and of FLASH's ratios to itself."""

    def ratios(name: str) -> list[float]:
        return [row["ratio_to_flash"] for row in select(rows, **{"pass": pass_name, "name": name})]

    ours, noise = ratios(OURS), ratios(FLASH_AGAIN)
    return {
        "part": "summary",
        "pass": pass_name,
        "name": OURS,
        "shapes": len(ours),
        "geometric_mean": statistics.geometric_mean(ours),
        "lowest": min(ours),
        "highest": max(ours),
        "flash_to_itself_lowest": min(noise),
        "flash_to_itself_highest": max(noise),
    }


def _functions(
    query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, *, is_causal: bool, backward: bool
) -> dict[str, Function]:
    """Ours, torch's kernels that run on these inputs, FLASH once more, and naive attention where it fits."""

    def make(attention: Callable[..., Tensor]) -> Function:
        attend = functools.partial(attention, is_causal=is_causal)
        if backward:
            return backward_pass(attend, query, key, value, grad_output)
        return functools.partial(attend, query, key, value)

    peers = {name: functools.partial(make, by_kernel(backend)) for name, backend in PEERS.items()}
    functions = {OURS: make(flash_attention_v2)} | that_run(peers, str(list(query.shape)))
    functions[FLASH_AGAIN] = make(by_kernel(PEERS[FLASH]))
    if _fits(query.shape, query.device.type):
        functions[NAIVE] = make(reference.torch_attention)
    return functions


# ---------------------------------------------------------------------------------------------- few queries


def few_queries(
    *,
    device: str = "cuda",
    caches: Sequence[tuple[int, int]] = ((1, 65536), (8, 8192), (8, 65536), (64, 8192)),
    query_lengths: Sequence[int] = (1, 4, 16, 64),
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    places: int | None = None,
) -> list[Row]:
    """The time to read a cache while text is generated: few queries, many keys, grouped heads. Of the GPU alone.

    flash_attention_v2, which packs the heads of a group, beside its kernel with a tile for each head; both also with
    the keys split, so that their blocks fill the GPU; and beside torch's kernels, also on the packed view of the
    queries. No mask: for one query it would hide nothing, and torch's causal mask is another (top-left).

    caches: batch sizes and lengths of keys. places: block slots of the GPU; None: two on each multiprocessor. `pieces`:
    of the keys; `tb_per_s` counts K and V once.
    """
    if places is None:
        places = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    rows: list[Row] = []
    for (batch, key_length), query_length in itertools.product(caches, query_lengths):
        query = torch.randn(batch, heads, query_length, head_dim, device=device, dtype=torch.float16)
        key, value = random_inputs((batch, kv_heads, key_length, head_dim), device, count=2)
        shape = f"{list(query.shape)} with {key_length} keys"
        pieces, made = _ways_to_read_a_cache(query, key, value, places)
        functions = that_run(made, shape)
        expected = torch.softmax(_grouped(query, kv_heads).float() @ key.float().mT * head_dim**-0.5, -1)
        expected = (expected @ value.float()).view(query.shape)
        at_most = MAX_ERROR * expected.abs().max().item()  # an average over many keys is near 0
        for name, function in functions.items():
            require_close(f"{name}, {shape}", function().view(query.shape), expected, at_most=at_most)
        del expected
        for name, time in timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=4 * HEAD_START_US).items():
            row: Row = {"part": "few queries", "name": name, "batch": batch, "heads": heads, "kv_heads": kv_heads}
            row |= {"head_dim": head_dim, "query_length": query_length, "length": key_length, **columns(time)}
            row |= {"tb_per_s": 2 * key.nbytes / time.median / 1e9, "pieces": pieces.get(name, 1)}
            rows.append(row)
    return rows


def _ways_to_read_a_cache(
    query: Tensor, key: Tensor, value: Tensor, places: int
) -> tuple[dict[str, int], dict[str, Callable[[], Function]]]:
    """By name: the number of pieces that split keys are in, and what makes each function."""
    batch, heads, query_length, head_dim = query.shape
    kv_heads, group = key.shape[1], heads // key.shape[1]
    packed = _grouped(query, kv_heads)
    alone, shared = (tensor_core.forward_tile(query_length, n, head_dim, query.device) for n in (1, group))

    def unpacked(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return launch(FORWARD, q, k, v)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return flash_attention_v2(q, k, v, enable_gqa=True, return_lse=True)

    pieces: dict[str, int] = {}
    made: dict[str, Callable[[], Function]] = {}
    for name, attention, blocks in (
        (UNPACKED, unpacked, batch * heads * costs.ceil_div(query_length, alone.block_rows)),
        (OURS, ours, batch * kv_heads * costs.ceil_div(group * query_length, shared.block_rows)),
    ):
        made[name] = lambda attention=attention: lambda: attention(query, key, value)[0]
        count = 2 ** int(math.log2(max(1, places / blocks)))
        if count > 1:
            pieces[name + SPLIT] = count
            made[name + SPLIT] = lambda attention=attention, count=count: (
                lambda: split_keys(attention, query, key, value, count)
            )
    for name in (FLASH, "torch cuDNN"):
        backend = PEERS[name]
        made[name] = lambda backend=backend: sdpa(backend, query, key, value, enable_gqa=True)
        made[name + BY_HAND] = lambda backend=backend: sdpa(backend, packed, key, value)
    return pieces, made


def _grouped(query: Tensor, kv_heads: int) -> Tensor:
    """`[B, H, L_q, d]` as `[B, H_kv, group · L_q, d]`: the queries of the heads that share a key head, as a view."""
    return query.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def split_keys(
    attention: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pieces: int,
) -> Tensor:
    """`attention(query, key, value)`, out and the log-sum-exp, with the keys in so many pieces of one length, each for
    its own blocks, and the results merged by the log-sum-exp. A piece of a key head is passed as a head: a view. Only
    the queries, which are few, are repeated. query `[B, H, L_q, d]`, key and value `[B, H_kv, L_k, d]`; no mask."""
    kv_heads = key.shape[1]
    queries = query.unflatten(1, (kv_heads, 1, -1)).expand(-1, -1, pieces, -1, -1, -1).flatten(1, 3)
    key, value = (tensor.unflatten(2, (pieces, -1)).flatten(1, 2) for tensor in (key, value))
    parts = attention(queries, key, value)
    out, lse = (part.unflatten(1, (kv_heads, pieces, -1)) for part in parts)
    weights = torch.softmax(lse, dim=2)  # exp(LSE of the piece − LSE)
    return (weights[..., None] * out).sum(dim=2).flatten(1, 2).to(query.dtype)


# ---------------------------------------------------------------------------------------------- the ladder


def tuning(**sizes: object) -> list[Row]:
    """forward.cu beside itself without one of its ideas; arguments as for `ladder`."""
    return [row | {"part": "tuning"} for row in ladder(steps=(FORWARD, *TUNING), **sizes)]


def ladder(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (2048, 8192),
    head_dims: Sequence[int] = flash_v2.HEAD_DIMS,
    steps: Sequence[Step] = LADDER,
) -> list[Row]:
    """Each step of the ladder beside FLASH and cuDNN, and the resources of its kernel."""
    taken = _resources(steps, head_dims, device)
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        shape = tokens // length, width // head_dim, length, head_dim
        query, key, value, _ = random_inputs(shape, device, count=4)
        functions = _peers((FLASH, CUDNN), query, key, value, is_causal)
        expected = functions[FLASH]()
        for step in steps:
            functions[step.title] = _step_function(step, query, key, value, is_causal)
            require_close(step.title, functions[step.title](), expected, at_most=MAX_ERROR)
        flops = costs.attention_flops(*shape[:2], length, length, head_dim, is_causal)
        found = interleaved(functions, FLASH, 1, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
        for name, (time, ratios) in found.items():
            row: Row = {"part": "ladder", "head_dim": head_dim, "is_causal": is_causal, "length": length, "name": name}
            row |= columns(time) | {"tflop_per_s": flops / time.median / 1e9}
            rows.append(row | {"ratio_to_flash": statistics.median(ratios)} | taken.get((name, head_dim), {}))
    return rows


def _peers(names: Sequence[str], query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> dict[str, Function]:
    """Torch's kernels that run on these inputs."""
    made = {name: functools.partial(sdpa, PEERS[name], query, key, value, is_causal=is_causal) for name in names}
    return that_run(made, str(list(query.shape)))


def _step_function(step: Step, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Function:
    out = torch.empty_like(query)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    return lambda: launch(step, query, key, value, is_causal=is_causal, out=out, lse=lse)[0]


def _resources(steps: Sequence[Step], head_dims: Sequence[int], device: str) -> dict[tuple[str, int], Row]:
    """By title and head dimension: the compiler's figures for a step's kernel on this GPU, and the occupancy."""
    arch = "sm_90"
    if device == "cuda":
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())

    launched = {
        (step.title, head_dim): Launched(
            step.source,
            step.kernel,
            step.options(head_dim, torch.float16),
            step.threads(head_dim),
            step.shared_bytes(head_dim),
        )
        for step, head_dim in itertools.product(steps, head_dims)
    }
    return resources(launched, arch)


# ---------------------------------------------------------------------------------------------- time, memory, HBM bytes


def time_and_memory(*, device: str = "cuda", shape: Shape = TABLE_SHAPE) -> list[Row]:
    """Forward pass: time, memory beyond the inputs, and bytes between the chip and HBM as ncu counts them (None where
    ncu cannot be used: the reason is printed). The minimal kernel is fp32, all others fp16."""
    functions = _table_functions(shape, device)
    hbm = _hbm_bytes(list(functions)) if device == "cuda" else {}
    batch, heads, length, head_dim = shape
    flops = costs.attention_flops(batch, heads, length, length, head_dim)
    rows: list[Row] = []
    for name, time in timing.compare(functions, head_start_us=HEAD_START_US).items():
        element_bytes = 4 if name == "flash_attention_minimal" else 2
        row: Row = {"part": "table", "name": name, "length": length, "median_ms": time.median, "spread_ms": time.spread}
        row |= {"tflop_per_s": flops / time.median / 1e9, "peak_mb": timing.peak_memory(functions[name]) / 1e6}
        row["least_mb"] = costs.least_bytes(batch, heads, length, length, head_dim, element_bytes) / 1e6
        read, written = hbm.get(name, (None, None))
        rows.append(row | {"hbm_read_mb": read, "hbm_written_mb": written})
    return rows


def _table_functions(shape: Shape, device: str) -> dict[str, Function]:
    query, key, value, _ = random_inputs(shape, device, count=4)
    full = [tensor.float() for tensor in (query, key, value)]
    return {
        NAIVE: lambda: reference.torch_attention(query, key, value),
        "flash_attention_minimal": lambda: flash_attention_minimal(*full),
        **_peers((FLASH, CUDNN), query, key, value, False),
        OURS: lambda: flash_attention_v2(query, key, value),
    }


def _hbm_bytes(names: list[str]) -> dict[str, tuple[float, float]]:
    """MB read and written, of each function of the table: all kernels of one call, each from cold caches."""
    metrics = "dram__bytes_read", "dram__bytes_write"
    try:
        kernels = tools.count_program(["-m", __name__], metrics, timeout=90)
    except tools.ToolError as error:
        print(f"no HBM bytes: {error}")
        return {}
    found = {}
    for name, calls in zip(names, split_at_markers(kernels), strict=True):
        found[name] = tuple(sum(counters.get(metric, 0) for counters in calls) / 1e6 for metric in metrics)
    return found


MARKER = "spin_kernel"  # of torch.cuda._sleep


def run_between_markers(device: str = "cuda", shape: Shape = TABLE_SHAPE) -> None:
    """What ncu watches: each function of the table once, with a marker before and behind it."""
    functions = _table_functions(shape, device)
    for function in functions.values():
        torch.cuda._sleep(1)
        function()
        torch.cuda._sleep(1)
    torch.cuda.synchronize()


def split_at_markers(kernels: Iterable[tuple[str, dict[str, int]]]) -> list[list[dict[str, int]]]:
    """The counters of the kernels between the first and second marker, between the third and fourth, and so on."""
    parts: list[list[dict[str, int]]] = [[]]
    for name, counters in kernels:
        if name == MARKER:
            parts.append([])
        else:
            parts[-1].append(counters)
    return parts[1::2]


# ---------------------------------------------------------------------------------------------- recompute or store


def recompute_or_store(
    *, device: str = "cuda", tokens: int = TOKENS, heads: int = 32, head_dim: int = 64, lengths: Sequence[int] = LENGTHS
) -> list[Row]:
    """A backward pass that reads the P of the forward pass (naive torch stores it) beside one that recomputes it.
    `median_ms` is the backward pass alone, `peak_mb` the peak memory of forward and backward beyond the inputs."""
    rows: list[Row] = []
    for length in lengths:
        shape = tokens // length, heads, length, head_dim
        *inputs, grad_output = random_inputs(shape, device, count=4)
        forwards: dict[str, Callable[..., Tensor]] = {"recomputes P": flash_attention_v2}
        if _fits(shape, device):
            forwards["stores P"] = reference.torch_attention
        functions = {name: backward_pass(forward, *inputs, grad_output) for name, forward in forwards.items()}
        times = timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
        del functions  # with the P that one of them keeps
        for name, forward in forwards.items():
            row: Row = {"part": "recompute", "pass": "backward", "length": length, "name": name}
            row |= columns(times[name])
            peak = timing.peak_memory(lambda call=(forward, *inputs, grad_output): backward_pass(*call)())
            rows.append(row | {"peak_mb": peak / 1e6})
    return rows


def fused_recompute_or_read(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (2048, 8192),
    head_dims: Sequence[int] = flash_v2.HEAD_DIMS,
) -> list[Row]:
    """backward_dk_dv, which computes P again, beside the same kernel when it reads P (backward_reads_p.cu): like with
    like, where `recompute_or_store` has naive torch. Without the forward pass, which would have to write P."""
    rows: list[Row] = []
    for head_dim, length in itertools.product(head_dims, lengths):
        shape = tokens // length, width // head_dim, length, head_dim
        if not _fits(shape, device):
            continue
        functions, results = fused_backwards(*random_inputs(shape, device, count=4))
        for function in functions.values():
            function()
        for ours, theirs in zip(*results.values(), strict=True):
            require_close("backward_reads_p", theirs, ours, at_most=MAX_ERROR * max(1.0, ours.abs().max().item()))
        stored = costs.score_matrix_bytes(*shape[:2], length, length, 2)
        times = timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
        for name, time in times.items():
            row: Row = {"part": "fused", "head_dim": head_dim, "length": length, "name": name} | columns(time)
            rows.append(row | {"read_p_mb": stored / 1e6 if name == "reads P" else 0.0})
    return rows


def fused_backwards(
    query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor
) -> tuple[dict[str, Function], dict[str, tuple[Tensor, Tensor]]]:
    """The two kernels that `fused_recompute_or_read` times, and the dK and dV that each writes.

    Args:
        query, key, value, grad_out: `[B, H, L, d]`, float16, d 64 or 128, L a multiple of the tiles.
    """
    batch, heads, length, head_dim = query.shape
    scale, tile = head_dim**-0.5, tensor_core.BACKWARD_TILES[head_dim][0]
    out, lse = flash_attention_v2(query, key, value, return_lse=True)
    recompute = tensor_core.kernel(tensor_core.BACKWARD, tile.options, query.dtype, "backward_dk_dv")
    read = reads_p(head_dim, query.dtype)
    grid, block = (length // tile.block_cols, heads, batch), (tile.threads,)
    delta, dq_sum = torch.empty_like(lse), torch.zeros_like(query, dtype=torch.float32)
    call = Call(query.shape, key.shape, query.dtype, query.device, scale)
    tensor_core.row_delta(call)(out, grad_out, delta)
    results = {name: (torch.empty_like(key), torch.empty_like(value)) for name in ("recomputes P", "reads P")}
    weights = in_left_factors(torch.softmax(scale * query @ key.mT, -1))
    sizes = np.int32(length), np.int32(length)
    again = *sizes, np.int32(1), np.float32(scale), np.int32(0), np.int32(1)  # one head a group, no mask, with dQ
    inputs = query, key, value, grad_out

    def timed(kernel: Kernel, name: str, rows: Tensor, numbers: tuple[np.generic, ...]) -> Function:
        args = (*inputs, rows, delta, dq_sum, *results[name], *numbers)
        return lambda: kernel(grid, block, args, shared_mem=tile.shared_bytes)

    return {
        "recomputes P": timed(recompute, "recomputes P", lse, again),
        "reads P": timed(read, "reads P", weights, (*sizes, np.float32(scale))),
    }, results


@functools.cache
def reads_p(head_dim: int, dtype: torch.dtype) -> Kernel:
    """backward_reads_p.cu with the tiles of backward_dk_dv, compiled at its first launch."""
    options = (*tensor_core.BACKWARD_TILES[head_dim][0].options, tensor_core.BF16_OPTION[dtype])
    return build_kernel(KERNELS / "backward_reads_p.cu", "backward_reads_p", options)


def in_left_factors(weights: Tensor) -> Tensor:
    """P `[B, H, L_q, L_k]` as backward_reads_p.cu takes it: Pᵀ in tiles of 16 × 16, each as the left factor of an mma,
    `[B, H, L_q / 16, L_k / 16, lane, 8]` (the layout is that of tensor_core.cuh)."""
    *heads, queries, keys = weights.shape
    tiles = weights.mT.unflatten(-1, (queries // 16, 2, 4, 2)).unflatten(-5, (keys // 16, 2, 8))
    # [B, H, key tile, upper or lower rows, g, query tile, left or right columns, t, of a pair]
    return tiles.permute(0, 1, 5, 2, 4, 7, 6, 3, 8).reshape(*heads, queries // 16, keys // 16, 32, 8).contiguous()


# ---------------------------------------------------------------------------------------------- a training step


class Block(nn.Module):
    """A causal transformer block: x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x))."""

    def __init__(self, attention: Callable[..., Tensor], width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.heads = attention, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result: `[B, L, width]`."""
        x = x + self.out(self.attend(self.qkv(self.norm1(x))))
        return x + self.down(gelu(self.up(self.norm2(x))))

    def attend(self, qkv: Tensor) -> Tensor:
        """From `[B, L, 3 · width]` to `[B, L, width]`: query, key and value are strided views of `qkv`."""
        query, key, value = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


PRESCRIBED = (FLASH, CUDNN)
ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    NAIVE: reference.torch_attention,
    OURS: flash_attention_v2,
    "SDPA": scaled_dot_product_attention,
    **{name: by_kernel(PEERS[name]) for name in PRESCRIBED},
}
STEP_HEAD_START_US = 10_000.0  # longer than the host takes to launch a whole step


def training_block(
    *, device: str = "cuda", batch: int = 16, length: int = 2048, width: int = 768, heads: int = 12
) -> list[Row]:
    """A training step (forward, backward, SGD) of one block in fp16: time and peak memory at one batch size, and the
    largest batch that fits the memory that is free.

    `median_ms` is the step with the host's share, `gpu_ms` the GPU's time alone. Of it attention has `forward_ms` and
    `backward_ms`, with the copies that its layout asks for in the block, from the output of one linear layer to the
    input of the next; `dense_forward_ms` and `dense_backward_ms` are without these: dense `[B, H, L, d]` in and out.

    The largest batch is None where a kernel of torch is prescribed: at such batches torch 2.11's FLASH ends in an
    illegal memory access, after which the process can do nothing more.
    """
    rows: list[Row] = []
    steps = {name: training_step(attention, length, width, heads, device) for name, attention in ATTENTIONS.items()}
    whole = that_run({name: lambda step=step: functools.partial(step, batch) for name, step in steps.items()}, "a step")
    times = timing.compare(whole)
    on_gpu = timing.compare(whole, budget_ms=10 * BUDGET_MS, head_start_us=STEP_HEAD_START_US)
    shares = attention_shares(tuple(whole), batch, length, width, heads, device)
    for name in whole:
        step = steps[name]
        row: Row = {"part": "block", "name": name, "batch": batch, "length": length}
        row |= columns(times[name]) | {"gpu_ms": on_gpu[name].median} | shares[name]
        row["peak_mb"] = timing.peak_memory(lambda step=step: step(batch)) / 1e6
        if device == "cuda":
            torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else 2**30
        row["free_mb"] = free / 1e6
        row["largest_batch"] = None
        if name not in PRESCRIBED:
            row["largest_batch"] = largest_batch(lambda n, step=step: timing.peak_memory(lambda: step(n)), free)
        rows.append(row)
    return rows


def attention_shares(
    names: Sequence[str], batch: int, length: int, width: int, heads: int, device: str
) -> dict[str, dict[str, float]]:
    """For each attention the columns `forward_ms` to `dense_backward_ms` of `training_block`."""
    qkv, grad = (torch.randn(batch, length, n * width, device=device, dtype=torch.float16) for n in (3, 1))
    *dense, dense_grad = random_inputs((batch, heads, length, width // heads), device, count=4)
    parts: dict[str, dict[str, Function]] = {"forward": {}, "backward": {}, "dense_forward": {}, "dense_backward": {}}
    for name in names:
        block, attention = Block(ATTENTIONS[name], width, heads), functools.partial(ATTENTIONS[name], is_causal=True)
        leaf = qkv.clone().requires_grad_()
        out = block.attend(leaf)
        parts["forward"][name] = functools.partial(block.attend, qkv)
        parts["backward"][name] = functools.partial(torch.autograd.grad, out, leaf, grad, retain_graph=True)
        parts["dense_forward"][name] = functools.partial(attention, *dense)
        parts["dense_backward"][name] = backward_pass(attention, *dense, dense_grad)
    shares: dict[str, dict[str, float]] = {name: {} for name in names}
    for part, functions in parts.items():
        times = timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=2 * HEAD_START_US)
        for name, time in times.items():
            shares[name][f"{part}_ms"] = time.median
    return shares


def training_step(
    attention: Callable[..., Tensor], length: int, width: int, heads: int, device: str
) -> Callable[[int], None]:
    """A function that does one step of the block on random data of a batch size."""
    torch.manual_seed(0)
    return step_of(Block(attention, width, heads).to(device, torch.float16), length, width, device)


def step_of(model: nn.Module, length: int, width: int, device: str) -> Callable[[int], None]:
    """A function that does one step of a model, which takes and returns `[B, L, width]`, on random data of a batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: int) -> None:
        x = torch.randn(batch, length, width, device=device, dtype=torch.float16)
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def largest_batch(peak: Callable[[int], int], free: int) -> int:
    """The largest batch whose step fits in `free` bytes. `peak(batch)` runs it and returns the bytes it took.

    Memory grows linearly with the batch: two small batches give the slope, and the predicted batch is run, a little
    smaller each time until it fits.
    """
    small, larger = 2, 4
    at_small, at_larger = peak(small), peak(larger)
    per_item = (at_larger - at_small) / (larger - small)
    if per_item <= 0:
        return 0
    batch = math.floor(small + (free - at_small) / per_item)
    while batch > small:
        try:
            peak(batch)
            return batch
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            batch -= max(1, batch // 32)
    return small


# ---------------------------------------------------------------------------------------------- gradients in 16 bits


def output_gradient(shape: Shape, tokens: int, vocabulary: int = 2048) -> Tensor:
    """dO of a language model before it has learnt anything: float64 `[B, H, L, d]` on the CPU.

    The loss is the mean of the cross-entropy over `tokens` tokens, of which these are B · L. Between O and the loss lie
    a projection and the matrix that gives a score to each word, with random weights of standard deviation 0.02, that of
    most of GPT-2's (Hugging Face's `GPT2Config.initializer_range`; its projection behind attention begins smaller, by
    the root of twice the layers); O and the stream that it is added to are normal.
    """
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(size, generator=generator, dtype=torch.float64)

    batch, heads, length, head_dim = shape
    width = heads * head_dim
    out = normal(batch, length, width).requires_grad_()
    stream = torch.nn.functional.layer_norm(
        normal(batch, length, width) + out @ normal(width, width, std=0.02), (width,)
    )
    scores = (stream @ normal(width, vocabulary, std=0.02)).flatten(0, 1)
    words = torch.randint(vocabulary, (batch * length,), generator=generator)
    loss = torch.nn.functional.cross_entropy(scores, words, reduction="sum") / tokens
    (gradient,) = torch.autograd.grad(loss, out)
    return gradient.unflatten(-1, (heads, head_dim)).transpose(1, 2).contiguous()


def gradient_underflow(*, device: str = "cuda", shape: Shape = (2, 12, 1024, 64), tokens: int = 16 * 2048) -> list[Row]:
    """Which share of dQ, dK and dV is lost in 16 bits when the loss is a mean over tokens (`output_gradient`), with and
    without loss scaling.

    A number is subnormal below 2^-14 in fp16, where it has fewer than 11 bits, and 0 below 2^-25.
    """
    *inputs, _ = random_inputs(shape, device, count=4)
    gradient_of_out = output_gradient(shape, tokens).to(device)
    rows: list[Row] = []
    for dtype, loss_scale in [(torch.float16, 1), (torch.float16, 2**10), (torch.float16, 2**16), (torch.bfloat16, 1)]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        out, scaled = flash_attention_v2(*leaves), (loss_scale * gradient_of_out).to(dtype)
        for name, gradient in zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, scaled), strict=True):
            rows.append(
                {
                    "part": "underflow",
                    "dtype": str(dtype).removeprefix("torch."),
                    "loss_scale": loss_scale,
                    "length": shape[2],
                    "name": name,
                }
                | lost_shares(gradient)
            )
    return rows


def lost_shares(gradient: Tensor) -> Row:
    """The shares of a gradient's elements that are 0, subnormal, and infinite or NaN in its dtype."""
    size = gradient.float().abs()
    smallest = torch.finfo(gradient.dtype).smallest_normal
    return {
        "zero": (size == 0).float().mean().item(),
        "subnormal": ((size > 0) & (size < smallest)).float().mean().item(),
        "not_finite": (~size.isfinite()).float().mean().item(),
    }


# ---------------------------------------------------------------------------------------------- shared


def _fits(shape: Shape, device: str) -> bool:
    """Whether naive attention fits: at most eight score matrices, forward and backward."""
    if device != "cuda":
        return True
    torch.cuda.empty_cache()
    batch, heads, length, _ = shape
    return 8 * costs.score_matrix_bytes(batch, heads, length, length, 2) < torch.cuda.mem_get_info()[0]


if __name__ == "__main__":
    run_between_markers()
