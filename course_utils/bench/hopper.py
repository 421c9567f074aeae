"""What `bench 07_hopper` measures: the ladder's steps and `flash_attention_hopper` beside the fastest that torch has.

That is cuDNN: `ratio_to_cudnn` says how many times as fast a row is. Each row has its `part`. cuDNN and FLASH run twice
where the operator is judged: what they gain on themselves is the noise. Times are of the GPU alone, with a cold L2
cache, taken by turns; but in "sustained" each has the card for as long as in a long job. Conventions as in `timed`.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from course_utils import costs, reference, timing
from course_utils.bench.compiled_step import SDPA, compiled_step
from course_utils.bench.start_here import highest_clock
from course_utils.bench.timed import (
    Function,
    Launched,
    all_parts,
    backward_pass,
    by_kernel,
    columns,
    compile_ahead,
    interleaved,
    random_inputs,
    resources,
    sdpa,
)
from course_utils.cuda import Kernel, read_kernel
from course_utils.launches.hopper import EIGHT_BITS, LADDER, ONE_LEVEL, Step, build, launch, ready
from course_utils.measured import Row, select
from course_utils.measured.hopper import (
    AGAIN,
    CUDNN,
    FLASH,
    FLASH_FIXED,
    FLOPS_OF_A_CLOCK,
    LENGTHS,
    LONGEST,
    OURS,
    OURS_E4M3,
    PORTABLE,
    PRODUCT,
    ROUNDED,
    TOKENS,
    TURNS,
    WIDTH,
)
from course_utils.operators import flash_attention_hopper, flash_attention_v2, flash_v2, hopper_launch, tensor_core
from course_utils.operators.tensor_core import DTYPES, HEAD_DIMS, takes_wgmma

BACKENDS = {CUDNN: SDPBackend.CUDNN_ATTENTION, FLASH: SDPBackend.FLASH_ATTENTION}
ARCH = "sm_90a"
BF16_LENGTHS = (4096,)
RUNS = 3  # of the comparisons that the steps and the operator are judged by
BUDGET_MS = 25.0  # for each function in each run
HEAD_START_US = 300.0  # longer than the host takes for a call
CHECKED_ROWS = 32

Shape = tuple[int, int, int, int]  # B, H, L, d


def hopper_chapter() -> list[Row]:
    """Every figure of chapter 07."""
    compile_all()
    eight = eight_bits, error_by_length, needles
    parts = rungs, forward, backward, training_step, grouped_heads, long_sequences, sustained
    return all_parts((*parts, *eight))


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches.

    Raises:
        RuntimeError: the GPU is no Hopper.
    """
    if device == "cuda" and not takes_wgmma(torch.device(device)):
        raise RuntimeError(f"07_hopper needs a Hopper GPU (sm_90), and this is {torch.cuda.get_device_name()}")
    modules = [build(step, head_dim, torch.float16).module for step, head_dim in itertools.product(LADDER, HEAD_DIMS)]
    tiles = itertools.chain.from_iterable(hopper_launch.TILES.values())
    for tile, dtype in itertools.product(tiles, DTYPES):
        modules.append(tile.kernel(dtype).module)
    modules += [tile.kernel(hopper_launch.E4M3).module for tile in hopper_launch.E4M3_TILES.values()]
    modules.append(build(ONE_LEVEL, HEAD_DIMS[-1], hopper_launch.E4M3).module)
    for head_dim, takes_turns, dtype in itertools.product(HEAD_DIMS, (False, True), DTYPES):
        options = hopper_launch.BackwardTile(head_dim, takes_turns).options
        modules.append(tensor_core.kernel(hopper_launch.BACKWARD, options, dtype, "backward").module)
    for dtype in DTYPES:
        modules += flash_v2.modules(dtype, torch.device(device))
    compile_ahead(dict.fromkeys(modules), device)


# ---------------------------------------------------------------------------------------------- the parts


def rungs(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (2048, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
    steps: Sequence[Step] = LADDER,
) -> list[Row]:
    """Each step of the ladder beside cuDNN and FLASH, what its kernel takes of a multiprocessor, and its share of the
    tensor cores' peak at the highest clock. That is a roof that nothing reaches: under load the card lowers its clock,
    as a large product of fp16 matrices shows. `registers` are those of a thread at the launch, of which step 3 and
    later move some from the producer to the consumers."""
    taken = resources({(step.title, d): _launched(step, d) for step, d in itertools.product(steps, head_dims)}, ARCH)
    roofs = {"tensor cores": peak_speed(), PRODUCT: product_speed(device)}
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        inputs = random_inputs((tokens // length, width // head_dim, length, head_dim), device)
        functions = _torchs(*inputs, is_causal)
        functions |= {step.title: step_function(step, *inputs, is_causal) for step in steps}
        for row in _race("rungs", functions, *inputs, is_causal, runs=RUNS):
            more = {"share_of_peak": row["tflop_per_s"] / roofs["tensor cores"]}
            rows.append(row | more | taken.get((row["name"], head_dim), {}))
    return rows + [{"part": "roofs", "name": name, "tflop_per_s": speed} for name, speed in roofs.items()]


def forward(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = LENGTHS,
    bf16_lengths: Sequence[int] = BF16_LENGTHS,
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """The operator beside torch's kernels and chapter 03's, with B · L and H · d fixed; and the ratios of fp16 summed
    up."""
    rows: list[Row] = []
    cases = [(torch.float16, length) for length in lengths] + [(torch.bfloat16, length) for length in bf16_lengths]
    for head_dim, is_causal, (dtype, length) in itertools.product(head_dims, (False, True), cases):
        shape = tokens // length, width // head_dim, length, head_dim
        inputs = random_inputs(shape, device, dtype)
        torchs = _torchs(*inputs, is_causal)
        functions = _all(*inputs, is_causal) | {name + AGAIN: function for name, function in torchs.items()}
        rows += _race("forward", functions, *inputs, is_causal, runs=RUNS)
    return rows + _means(rows)


def backward(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = LENGTHS[1:],
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """The operator's backward pass alone, in fp16, by default and with a fixed order, beside torch's (FLASH also
    in deterministic mode) and chapter 03's, with B · L and H · d fixed; and a summary of the ratios."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        shape = tokens // length, width // head_dim, length, head_dim
        *inputs, grad_output = random_inputs(shape, device, count=4)
        functions = _gradients(*inputs, grad_output, is_causal)
        require_gradients_as_right_as_cudnns(functions, *inputs, grad_output, is_causal)
        options = {"budget_ms": 2 * BUDGET_MS, "head_start_us": 2 * HEAD_START_US}
        times = interleaved(functions, CUDNN, RUNS, **options)
        rows += _rows("backward", times, *inputs, is_causal)
    return rows + _means(rows, "backward means")


def training_step(*, device: str = "cuda", backend: str = "inductor", **sizes: Any) -> list[Row]:
    """A training step of chapter 03's block with the operator, as it is and compiled, beside chapter 03's and SDPA: as
    `compiled_step`, which takes the sizes."""
    attentions = {OURS: flash_attention_hopper, PORTABLE: flash_attention_v2, SDPA: scaled_dot_product_attention}
    return compiled_step(device=device, backend=backend, attentions=attentions, **sizes)


def _means(rows: list[Row], part: str = "means") -> list[Row]:
    """The ratios to cuDNN and to FLASH in the fp16 rows of `forward` or `backward`: for each head dimension, mask and
    implementation the geometric mean over the lengths, the lowest and the highest."""
    rows = select(rows, dtype="float16")
    found: list[Row] = []
    for head_dim, is_causal, name in dict.fromkeys((row["head_dim"], row["is_causal"], row["name"]) for row in rows):
        columns = {"head_dim": head_dim, "is_causal": is_causal, "name": name}
        chosen = select(rows, **columns)
        row: Row = {"part": part, **columns, "shapes": len(chosen)}
        for column in ("ratio_to_cudnn", "ratio_to_flash"):
            ratios = [one[column] for one in chosen]
            row |= {column: statistics.geometric_mean(ratios)}
            row |= {f"lowest_{column}": min(ratios), f"highest_{column}": max(ratios)}
        found.append(row)
    return found


def grouped_heads(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    heads: int = 32,
    kv_heads: int = 8,
    lengths: Sequence[int] = (2048, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """Several query heads share a key head."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        (query,) = random_inputs((tokens // length, heads, length, head_dim), device, count=1)
        key, value = random_inputs((tokens // length, kv_heads, length, head_dim), device, count=2)
        functions = _all(query, key, value, is_causal)
        rows += _race("grouped heads", functions, query, key, value, is_causal)
    return rows


def long_sequences(
    *,
    device: str = "cuda",
    width: int = WIDTH,
    lengths: Sequence[int] = (32768, 131072),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """One long sequence, for which the order of causal work matters little: few heads at a time, and long rows."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        inputs = random_inputs((1, width // head_dim, length, head_dim), device)
        rows += _race("long", _all(*inputs, is_causal), *inputs, is_causal, warmup=1, repeats=4)
    return rows


def sustained(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (2048, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """The operator and cuDNN, each alone for 0.8 s, two turns each: at the card's power limit."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        inputs = random_inputs((tokens // length, width // head_dim, length, head_dim), device)
        functions = {name: _all(*inputs, is_causal)[name] for name in (OURS, CUDNN)}
        require_as_right_as_cudnn(functions, *inputs, is_causal)
        times = timing.sustained(functions)
        ratios = {name: (time, [times[CUDNN].median / time.median]) for name, time in times.items()}
        rows += _rows("sustained", ratios, *inputs, is_causal)
    return rows


def eight_bits(
    *,
    device: str = "cuda",
    tokens: int = TOKENS,
    width: int = WIDTH,
    lengths: Sequence[int] = (1024, 4096, 16384),
    head_dims: Sequence[int] = HEAD_DIMS,
) -> list[Row]:
    """The operator in 16 bits and in E4M3: time, and the error of both against float64 of the inputs in 16 bits, the
    root of its mean square as a share of the output's."""
    rows: list[Row] = []
    for head_dim, is_causal, length in itertools.product(head_dims, (False, True), lengths):
        inputs = random_inputs((tokens // length, width // head_dim, length, head_dim), device)
        numbers, scales = in_e4m3(*inputs)
        functions: dict[str, Function] = {
            OURS: functools.partial(flash_attention_hopper, *inputs, is_causal=is_causal),
            OURS_E4M3: functools.partial(flash_attention_hopper, *numbers, is_causal=is_causal, **scales),
        }
        require_as_right_as_rounded(functions[OURS_E4M3], numbers, scales, is_causal)
        times = interleaved(functions, OURS, RUNS, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
        chosen, mask = _some_rows(inputs[0], inputs[1], is_causal)
        expected = reference.attention(inputs[0][:, :, chosen], *inputs[1:], attn_mask=mask)
        for row, function in zip(_rows("8 bits", times, *inputs, is_causal), functions.values(), strict=True):
            row["ratio_to_16_bits"] = row.pop("ratio_to_cudnn")
            rows.append(row | {"error": _relative_error(function()[:, :, chosen], expected)})
    return rows


def error_by_length(*, device: str = "cuda", lengths: Sequence[int] = (1024, 4096, 16384, 65536, LONGEST)) -> list[Row]:
    """What rounding costs, d = 128: in two levels of sums, in one, and in fp32 with weights rounded to E4M3, against
    float64 of the same E4M3 numbers. Values have a mean of 1, as what a sum does to its small terms then adds up."""
    rows: list[Row] = []
    for length in lengths:
        query, key, value = random_inputs((1, 1, length, 128), device)
        numbers, scales = in_e4m3(query[:, :, : hopper_launch.ROWS], key, value + 1)
        expected = reference.e4m3_attention(*numbers, **scales)
        outs = {
            step.title: launch(step, *numbers, scales=tuple(scales.values()))[0] for step in (EIGHT_BITS, ONE_LEVEL)
        }
        outs[ROUNDED] = reference.rounded_e4m3_attention(*numbers, **scales)
        rows += [
            {"part": "error by length", "length": length, "name": name, "error": _relative_error(out, expected)}
            for name, out in outs.items()
        ]
    return rows


def needles(*, device: str = "cuda", length: int = LONGEST) -> list[Row]:
    """One key at a random place has as much weight as all others together, and the value 4; the others' values are 1.
    The right output, and the output in two levels of sums and in one: 2.5 if each key counts, 1 if the needle is
    skipped, and 2 if the sum of P V swallows the others, whose weights l still counts."""
    rows: list[Row] = []
    for place in (0, length // 3, length // 2, length - 2, length - 1):
        # Numbers that E4M3 holds exactly: every score but the needle's is 0.
        query = random_inputs((1, 1, 1, 128), device, count=1)[0].sign()
        key, value = query.new_zeros(1, 1, length, 128), query.new_ones(1, 1, length, 128)
        key[:, :, place], value[:, :, place] = query[:, :, 0] * (math.log(length) * 128**-0.5), 4
        numbers, scales = in_e4m3(query, key, value)
        row: Row = {"part": "needles", "length": length, "place": place}
        row["expected"] = reference.e4m3_attention(*numbers, **scales).mean().item()
        for step in (EIGHT_BITS, ONE_LEVEL):
            out, _ = launch(step, *numbers, scales=tuple(scales.values()))
            rows.append(row | {"name": step.title, "found": out.double().mean().item()})
    return rows


def peak_speed() -> float:
    """TFLOP/s of the tensor cores in 16 bits, at the highest clock."""
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return FLOPS_OF_A_CLOCK * multiprocessors * highest_clock() / 1e6


def product_speed(device: str) -> float:
    """TFLOP/s of a product of two large fp16 matrices: cuBLAS by wgmma."""
    side = 8192 if device == "cuda" else 8
    left, right = random_inputs((side, side), device, count=2)
    taken = timing.compare({PRODUCT: lambda: left @ right}, budget_ms=4 * BUDGET_MS, head_start_us=HEAD_START_US)
    return 2 * side**3 / taken[PRODUCT].median / 1e9


# ---------------------------------------------------------------------------------------------- 8 bits


def in_e4m3(query: Tensor, key: Tensor, value: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The inputs in E4M3, and the scales of their heads by name."""
    numbers, scales = zip(*map(reference.quantize_heads, (query, key, value)), strict=True)
    return list(numbers), dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))


def require_as_right_as_rounded(
    function: Function, numbers: list[Tensor], scales: dict[str, Tensor], is_causal: bool
) -> None:
    """Raises RuntimeError unless the error is at most 1.5 times that of fp32 torch with weights rounded to E4M3, in 32
    rows of each head."""
    query, key, value = numbers
    chosen, mask = _some_rows(query, key, is_causal)
    # As bytes: torch 2.9 takes no rows of E4M3 numbers on a CPU.
    few = query.view(torch.uint8)[:, :, chosen].view(query.dtype), key, value
    expected = reference.e4m3_attention(*few, **scales, attn_mask=mask)
    ours = _relative_error(function()[:, :, chosen], expected)
    at_most = 1.5 * _relative_error(reference.rounded_e4m3_attention(*few, **scales, attn_mask=mask), expected)
    if not ours <= at_most:
        raise RuntimeError(f"E4M3 is off by {ours:.2e} at {list(query.shape)}, more than {at_most:.2e}: not timed")


def _some_rows(query: Tensor, key: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Up to 32 rows, the first and last among them, and their visible keys."""
    length, key_length, device = query.shape[2], key.shape[2], query.device
    rows = torch.linspace(0, length - 1, min(length, CHECKED_ROWS)).long().to(device)
    last = rows[:, None] + (key_length - length if is_causal else key_length)
    return rows, torch.arange(key_length, device=device) <= last


def _relative_error(out: Tensor, expected: Tensor) -> float:
    """The root mean square of the error divided by that of the expected output."""
    return ((out - expected).square().mean() / expected.square().mean()).sqrt().item()


# ---------------------------------------------------------------------------------------------- functions


def _torchs(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> dict[str, Function]:
    """torch's kernels on these inputs."""
    how = {"is_causal": is_causal, "enable_gqa": query.shape[1] != key.shape[1]}
    return {name: sdpa(backend, query, key, value, **how) for name, backend in BACKENDS.items()}


def _all(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> dict[str, Function]:
    """Ours, torch's and chapter 03's."""
    how = {"is_causal": is_causal, "enable_gqa": query.shape[1] != key.shape[1]}
    return {
        OURS: functools.partial(flash_attention_hopper, query, key, value, **how),
        **_torchs(query, key, value, is_causal),
        PORTABLE: functools.partial(flash_attention_v2, query, key, value, **how),
    }


def _gradients(
    query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, is_causal: bool
) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """The backward passes of ours, torch's and chapter 03's; each returns dq, dk and dv."""
    forwards: dict[str, Callable[..., Tensor]] = {
        OURS: flash_attention_hopper,
        **{name: by_kernel(backend) for name, backend in BACKENDS.items()},
        PORTABLE: flash_attention_v2,
    }
    functions = {
        name: backward_pass(functools.partial(forward, is_causal=is_causal), query, key, value, grad_output)
        for name, forward in forwards.items()
    }
    return functions | {TURNS: _deterministic(functions[OURS]), FLASH_FIXED: _deterministic(functions[FLASH])}


def _deterministic(gradients: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
    """The gradients with torch's deterministic mode."""

    def function() -> tuple[Tensor, ...]:
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")
        try:
            return gradients()
        finally:
            torch.set_deterministic_debug_mode(before)

    return function


def step_function(
    step: Step, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, kernel: Kernel | None = None
) -> Function:
    """Launches a step, always into the same output, which it returns. kernel: instead of the step's own."""
    out = torch.empty_like(query)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    run = ready(step, query, key, value, out, lse, is_causal=is_causal, kernel=kernel)

    def function() -> Tensor:
        run()
        return out

    return function


def _launched(step: Step, head_dim: int) -> Launched:
    options, threads = step.options(head_dim, torch.float16), step.threads(head_dim)
    return Launched(read_kernel(step.file), step.kernel, options, threads, step.shared(head_dim, step.rows(head_dim)))


# ---------------------------------------------------------------------------------------------- rows


def _race(
    part: str,
    functions: dict[str, Function],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    runs: int = 1,
    **options: float,
) -> list[Row]:
    """A row for each function, after a check that each is right; options for `timing.compare`."""
    require_as_right_as_cudnn(functions, query, key, value, is_causal)
    times = interleaved(functions, CUDNN, runs, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US, **options)
    return _rows(part, times, query, key, value, is_causal)


def require_as_right_as_cudnn(
    functions: dict[str, Function], query: Tensor, key: Tensor, value: Tensor, is_causal: bool
) -> None:
    """Raises RuntimeError unless each output is at most twice as far from fp32 torch as cuDNN's, or within one spacing
    of its dtype's numbers; in 32 rows of each head, the first and last among them. An error counts as a share of the
    largest number of its row: an average over many keys is near 0."""
    rows, keep = _some_rows(query, key, is_causal)
    chosen = query[:, :, rows].float(), key.float(), value.float()
    with reference.full_float32():
        expected = reference.torch_attention(*chosen, attn_mask=keep, enable_gqa=query.shape[1] != key.shape[1])
    largest = expected.abs().amax(-1, keepdim=True)

    def error(name: str) -> float:
        return ((functions[name]()[:, :, rows] - expected).abs() / largest).max().item()

    of_cudnn = error(CUDNN)
    at_most = max(2 * of_cudnn, torch.finfo(query.dtype).eps)
    for name in functions:
        found = error(name)
        if not found <= at_most:
            raise RuntimeError(
                f"{name} is off by {found:.2e} of a row's largest number at {list(query.shape)}, "
                f"and cuDNN by {of_cudnn:.2e}: not timed"
            )


def require_gradients_as_right_as_cudnns(
    functions: dict[str, Callable[[], tuple[Tensor, ...]]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_output: Tensor,
    is_causal: bool,
) -> None:
    """Raises RuntimeError unless dq, dk and dv of the whole first head are as right as cuDNN's; an error counts as a
    share of the largest number."""
    head = [tensor[:1, :1].float() for tensor in (query, key, value)]
    with reference.full_float32():
        forward = functools.partial(reference.torch_attention, is_causal=is_causal)
        expected = backward_pass(forward, *head, grad_output[:1, :1].float())()

    def errors(name: str) -> list[float]:
        found = functions[name]()
        return [
            ((ours[:1, :1] - exact).abs().max() / exact.abs().max()).item()
            for ours, exact in zip(found, expected, strict=True)
        ]

    at_most = [max(2 * error, torch.finfo(query.dtype).eps) for error in errors(CUDNN)]
    for name in functions:
        for which, found, limit in zip(("dq", "dk", "dv"), errors(name), at_most, strict=True):
            if not found <= limit:
                raise RuntimeError(
                    f"{which} of {name} is off by {found:.2e} of its largest number at {list(query.shape)}; at most "
                    f"{limit:.2e}, twice cuDNN's: not timed"
                )


def _rows(
    part: str,
    times: dict[str, tuple[timing.Timing, list[float]]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
) -> list[Row]:
    """A row for each time with its ratios to cuDNN over the runs: their median, and with several runs their extremes as
    `low` and `high`."""
    batch, heads, length, head_dim = query.shape
    flops = costs.attention_flops(batch, heads, length, key.shape[2], head_dim, is_causal, part == "backward")
    where: Row = {"part": part, "dtype": str(query.dtype).removeprefix("torch."), "head_dim": head_dim}
    where |= {"is_causal": is_causal, "batch": batch, "heads": heads, "kv_heads": key.shape[1], "length": length}
    rows: list[Row] = []
    for name, (time, ratios) in times.items():
        row = where | {"name": name, **columns(time), "tflop_per_s": flops / time.median / 1e9}
        row["ratio_to_cudnn"] = statistics.median(ratios)
        if FLASH in times:
            row["ratio_to_flash"] = times[FLASH][0].median / time.median
        if len(ratios) > 1:
            row |= {"low": min(ratios), "high": max(ratios)}
        rows.append(row)
    return rows
