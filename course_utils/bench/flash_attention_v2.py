"""What `bench 03_flash_attention_v2` measures: every figure of chapter 03, one function for each part of it.

Each row has its `part`. Peers run interleaved with our kernels, and torch's FlashAttention-2 twice: what it gains on
itself is the noise. Where kernels are short, times are of the GPU alone (`head_start_us` of `timing.compare`), and
`call_ms` is of the whole call. Conventions as in `timed`.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, scaled_dot_product_attention

from course_utils import costs, reference, timing
from course_utils.bench.timed import (
    Function,
    all_parts,
    backward_pass,
    columns,
    compile_ahead,
    median_of,
    random_inputs,
    require_close,
    sdpa,
)
from course_utils.launches.ladder import FORWARD, LADDER, TUNING, Step, build, launch
from course_utils.measured import Row, select
from course_utils.nvidia import tools
from course_utils.operators import flash_attention_minimal, flash_attention_v2, flash_v2
from course_utils.toolchain import nvrtc

OURS, FLASH, FLASH_AGAIN, NAIVE = "flash_attention_v2", "torch FLASH", "torch FLASH again", "naive torch"
PEERS = {
    FLASH: SDPBackend.FLASH_ATTENTION,
    "torch cuDNN": SDPBackend.CUDNN_ATTENTION,
    "torch memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TOKENS, WIDTH = 16384, 2048  # B · L and H · d of the comparison
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SHORT_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
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
            time_and_memory,
            recompute_or_store,
            training_block,
            gradient_underflow,
        )
    )


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches."""
    modules = flash_v2.modules(torch.float16, torch.device(device))
    for step, head_dim in itertools.product((*LADDER, *TUNING), flash_v2.HEAD_DIMS):
        modules.append(build(step, head_dim, torch.float16).module)
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
    if _fits(shape, device):
        functions[NAIVE] = _naive(*inputs, is_causal=is_causal, backward=pass_name == "backward")
    flops = costs.attention_flops(batch, heads, length, length, head_dim, is_causal, pass_name == "backward")
    columns = {"part": part, "pass": pass_name, "head_dim": head_dim, "is_causal": is_causal, "length": length}
    rows: list[Row] = []
    for name, (time, ratios) in _interleaved(functions, FLASH, runs, head_start_us, once=(NAIVE,)).items():
        row: Row = {**columns, "name": name, "median_ms": time.median, "spread_ms": time.spread}
        row |= {"tflop_per_s": flops / time.median / 1e9, "ratio_to_flash": statistics.median(ratios)}
        row |= {"ratio_low": min(ratios), "ratio_high": max(ratios)}
        if part == "short" and name != FLASH_AGAIN:
            row["call_ms"] = _call_ms(name, functions[name], inputs, pass_name)
        rows.append(row)
    return rows


def _call_ms(name: str, function: Function, inputs: tuple[Tensor, ...], pass_name: str) -> float:
    """Of torch's kernels the call alone: choosing one takes the host as long as launching it."""
    if name not in PEERS or pass_name == "backward":
        return timing.time_calls(function)
    with sdpa_kernel(PEERS[name]):
        return timing.time_calls(lambda: scaled_dot_product_attention(*inputs[:3]))


def _interleaved(
    functions: dict[str, Function], base: str, runs: int, head_start_us: float, once: tuple[str, ...] = ()
) -> dict[str, tuple[timing.Timing, list[float]]]:
    """Of each function its median time over the runs, and in each run how many times as fast as `base` it is; those
    named in `once` take part in the first run only."""
    times: dict[str, list[timing.Timing]] = {name: [] for name in functions}
    ratios: dict[str, list[float]] = {name: [] for name in functions}
    for run in range(runs):
        taking_part = {name: fn for name, fn in functions.items() if run == 0 or name not in once}
        found = timing.compare(taking_part, budget_ms=BUDGET_MS, head_start_us=head_start_us)
        for name, time in found.items():
            times[name].append(time)
            ratios[name].append(found[base].median / time.median)
    return {name: (median_of(of_name), ratios[name]) for name, of_name in times.items()}


def _summary(rows: list[Row], pass_name: str) -> Row:
    """Geometric mean and extremes of our ratios to FLASH, and of FLASH's to itself."""

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
    """Ours and torch's kernels that run on these inputs; FLASH twice."""

    def peer(backend: SDPBackend) -> Function:
        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(backend, q, k, v, is_causal=is_causal)()

        if backward:
            return backward_pass(forward, query, key, value, grad_output)
        return sdpa(backend, query, key, value, is_causal=is_causal)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention_v2(q, k, v, is_causal=is_causal)

    functions: dict[str, Function] = {
        OURS: backward_pass(ours, query, key, value, grad_output) if backward else lambda: ours(query, key, value)
    }
    for name, backend in PEERS.items():
        try:
            functions[name] = peer(backend)
            functions[name]()
        except RuntimeError as error:  # torch has no such kernel for this GPU
            print(f"{name} is left out at {list(query.shape)}: {error}")
            functions.pop(name, None)
    return functions | {FLASH_AGAIN: peer(PEERS[FLASH])}


def _naive(
    query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, *, is_causal: bool, backward: bool
) -> Function:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.torch_attention(q, k, v, is_causal=is_causal)

    return backward_pass(forward, query, key, value, grad_output) if backward else lambda: forward(query, key, value)


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
    """Each step of the ladder beside FLASH, and what its kernel takes of a multiprocessor."""
    taken = _resources(steps, head_dims, device)
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        shape = tokens // length, width // head_dim, length, head_dim
        query, key, value, _ = random_inputs(shape, device, count=4)
        flash = sdpa(PEERS[FLASH], query, key, value, is_causal=is_causal)
        functions: dict[str, Function] = {FLASH: flash}
        for step in steps:
            functions[step.title] = _step_function(step, query, key, value, is_causal)
            require_close(step.title, functions[step.title](), flash(), at_most=MAX_ERROR)
        flops = costs.attention_flops(*shape[:2], length, length, head_dim, is_causal)
        for name, (time, ratios) in _interleaved(functions, FLASH, 1, HEAD_START_US).items():
            row: Row = {"part": "ladder", "head_dim": head_dim, "is_causal": is_causal, "length": length, "name": name}
            row |= columns(time) | {"tflop_per_s": flops / time.median / 1e9}
            rows.append(row | {"ratio_to_flash": statistics.median(ratios)} | taken.get((name, head_dim), {}))
    return rows


def _step_function(step: Step, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Function:
    out = torch.empty_like(query)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    return lambda: launch(step, query, key, value, is_causal=is_causal, out=out, lse=lse)[0]


def _resources(steps: Sequence[Step], head_dims: Sequence[int], device: str) -> dict[tuple[str, int], Row]:
    """By title and head dimension: what the compiler says of a step's kernel for this GPU, and the occupancy."""
    arch = "sm_90"
    if device == "cuda":
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())

    def of_step(step: Step, head_dim: int) -> Row:
        options = step.options(head_dim, torch.float16)
        found = nvrtc.compile_kernel(step.source, arch, options).resources[step.kernel]
        shared = step.shared_bytes(head_dim)
        occupancy = nvrtc.occupancy(found, step.threads(head_dim), shared, arch)
        return {
            "registers": found.registers,
            "spill_bytes": found.spill_stores + found.spill_loads,
            "shared_bytes": found.static_shared + shared,
            "blocks_per_sm": occupancy.blocks,
            "occupancy": occupancy.fraction,
            "limited_by": occupancy.limited_by,
        }

    wanted = list(itertools.product(steps, head_dims))
    with ThreadPoolExecutor(8) as pool:
        rows = pool.map(lambda pair: of_step(*pair), wanted)
        return {(step.title, head_dim): row for (step, head_dim), row in zip(wanted, rows, strict=True)}


# ---------------------------------------------------------------------------------------------- time, memory, HBM bytes

TABLE_SHAPE = (16, 12, 2048, 64)


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
        FLASH: sdpa(PEERS[FLASH], query, key, value),
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
    """A backward pass that reads the P of the forward pass (naive torch keeps it) beside one that computes it again.
    `median_ms` is the backward pass alone, `peak_mb` the most that forward and backward hold beyond the inputs."""
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
            stored = costs.score_matrix_bytes(*shape[:2], length, length, 2) if name == "stores P" else 0
            rows.append(row | {"peak_mb": peak / 1e6, "stored_p_mb": stored / 1e6})
    return rows


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
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    NAIVE: reference.torch_attention,
    OURS: flash_attention_v2,
    "SDPA": scaled_dot_product_attention,
}


def training_block(
    *, device: str = "cuda", batch: int = 16, length: int = 2048, width: int = 768, heads: int = 12
) -> list[Row]:
    """A training step (forward, backward, SGD) of one block in fp16: time and peak memory at one batch size, and the
    largest batch that fits the memory that is free."""
    rows: list[Row] = []
    steps = {name: training_step(attention, length, width, heads, device) for name, attention in ATTENTIONS.items()}
    times = timing.compare({name: lambda step=step: step(batch) for name, step in steps.items()})
    for name, step in steps.items():
        row: Row = {"part": "block", "name": name, "batch": batch, "length": length}
        row |= columns(times[name])
        row["peak_mb"] = timing.peak_memory(lambda step=step: step(batch)) / 1e6
        if device == "cuda":
            torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else 2**30
        row["free_mb"] = free / 1e6
        row["largest_batch"] = largest_batch(lambda n, step=step: timing.peak_memory(lambda: step(n)), free)
        rows.append(row)
    return rows


def training_step(
    attention: Callable[..., Tensor], length: int, width: int, heads: int, device: str
) -> Callable[[int], None]:
    """A function that does one step on random data of a batch size."""
    torch.manual_seed(0)
    block = Block(attention, width, heads).to(device, torch.float16)
    optimizer = torch.optim.SGD(block.parameters(), lr=1e-3)

    def step(batch: int) -> None:
        x = torch.randn(batch, length, width, device=device, dtype=torch.float16)
        optimizer.zero_grad()
        block(x).float().square().mean().backward()
        optimizer.step()

    return step


def largest_batch(peak: Callable[[int], int], free: int) -> int:
    """The largest batch whose step fits into `free` bytes. `peak(batch)` runs it and gives the bytes it took.

    Memory grows in proportion to the batch: two small ones say how far, and what they predict is run, a little less
    each time until it fits.
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


def gradient_underflow(*, device: str = "cuda", shape: Shape = (4, 16, 1024, 64)) -> list[Row]:
    """Which share of dQ, dK and dV is lost in 16 bits when the loss is a mean, with and without loss scaling.

    A number is subnormal below 2^-14 in fp16, where it has fewer than 11 bits, and 0 below 2^-25.
    """
    *inputs, _ = random_inputs(shape, device, count=4)
    rows: list[Row] = []
    for dtype, loss_scale in [(torch.float16, 1), (torch.float16, 2**10), (torch.float16, 2**16), (torch.bfloat16, 1)]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        loss = loss_scale * flash_attention_v2(*leaves).float().square().mean()
        for name, gradient in zip(("dq", "dk", "dv"), torch.autograd.grad(loss, leaves), strict=True):
            rows.append(
                {
                    "part": "underflow",
                    "dtype": str(dtype).removeprefix("torch."),
                    "loss_scale": loss_scale,
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
    """Whether naive attention fits: eight score matrices at the most, forward and backward."""
    if device != "cuda":
        return True
    torch.cuda.empty_cache()
    batch, heads, length, _ = shape
    return 8 * costs.score_matrix_bytes(batch, heads, length, length, 2) < torch.cuda.mem_get_info()[0]


if __name__ == "__main__":
    run_between_markers()
