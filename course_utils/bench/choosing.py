"""What `bench 08_choosing` measures: dense, flash and sparse attention side by side, from 512 to 128 K tokens.

Then which of torch's kernels take which inputs, and how fast. Each row has its `part`.

B = 1, fp16, causal, forward pass. Times are of the GPU alone (`head_start_us` of `timing.compare`). At each length
the ways to exact attention are interleaved, and then those to a pattern. Not all of them: right after a dense kernel of
100 ms a window took up to a quarter longer (H200, 128 K tokens), most likely because the clock was still low.

An output is compared with fp32 torch on some rows before it is timed. What runs out of memory, does not run on this
device, or would take too long keeps its row, which says so: nothing is left out in silence.

Of each choice there is ours and what torch has for it: dense by forced FLASH, by forced cuDNN and by what
`scaled_dot_product_attention` takes if nothing is said; a pattern by FlexAttention, tuned, and the window also by
FLASH's own.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from course_utils import patterns, timing
from course_utils.bench import flex
from course_utils.bench.by_hand import WINDOW as FLASH_WINDOW
from course_utils.bench.by_hand import by_hand
from course_utils.bench.flex import FLEX_TUNED
from course_utils.bench.timed import (
    MAX_HALF_ERROR,
    Function,
    by_kernel,
    columns,
    random_inputs,
    require_right,
    sdpa,
    some_rows,
)
from course_utils.measured import Row
from course_utils.operators import flash_attention_v2, sparse_attention
from course_utils.patterns import Pattern

DENSE, OURS, FLASH = "dense, written out", "flash_attention_v2", "torch FLASH"
CUDNN, TORCHS_CHOICE = "torch cuDNN", "torch's choice"
FLASH_BACKEND, CUDNN_BACKEND = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
HEADS, HEAD_DIM = 16, 128
LENGTHS = tuple(2**n for n in range(9, 18))  # 512 to 128 K
WINDOW, SINKS, RECENT = 4096, 4, 1024
BUDGET_MS = 60.0  # for each function at each length
HEAD_START_US = 300.0  # longer than the host takes to launch any of these
MOST_MS = 1500.0  # one run that is expected to take longer is not tried: a small GPU would not come to an end
_UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class Contestant(NamedTuple):
    """One way to compute attention. choice: "dense", "flash" or "sparse". pattern: its visible pairs."""

    choice: str
    function: Function
    pattern: Pattern


def choosing_chapter() -> list[Row]:
    """Every figure of chapter 08."""
    return [*choosing(), *backends()]


def choosing(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = LENGTHS,
    window: int = WINDOW,
    recent: int = RECENT,
    most_ms: float = MOST_MS,
) -> list[Row]:
    """Time and memory of the three choices at each length, ten rows a length.

    `peak_extra_bytes`: what torch's allocator held beyond query, key and value, the output included; at short lengths
    torch's FLASH splits the keys and stores fp32 partial outputs, too. `speed_over_flash`: how many times as fast as
    torch's FlashAttention-2 at this length. `asked_bytes`: the failed allocation, if memory ran out. `why_not`: why a
    row has no time; None otherwise.
    """
    rows: list[Row] = []
    expected_ms: dict[str, float] = {}  # of the next length
    with tqdm(total=len(lengths), desc="lengths") as bar:
        for length, following in zip(lengths, [*lengths[1:], lengths[-1]], strict=True):
            inputs = random_inputs((1, heads, length, HEAD_DIM), device)
            found = _one_length(contestants(inputs, window, recent), inputs, expected_ms, most_ms, bar)
            rows += found
            growth = (following / length) ** 2
            known = expected_ms | {row["name"]: row["median_ms"] for row in found if row["median_ms"] is not None}
            expected_ms = {name: growth * milliseconds for name, milliseconds in known.items()}
            del inputs
            if device == "cuda":
                torch.cuda.empty_cache()
            bar.update()
    return rows


def contestants(inputs: Sequence[Tensor], window: int = WINDOW, recent: int = RECENT) -> dict[str, Contestant]:
    """Each way to compute causal attention of query, key and value `[B, H, L, d]`, by name."""
    sliding, streaming = patterns.sliding_window(window), patterns.streaming(SINKS, recent)
    causal, length, device = patterns.causal(), inputs[0].shape[2], str(inputs[0].device)
    flash_window = by_hand(sliding, length, device)[FLASH_WINDOW]
    by_flex = [flex.attentions(pattern, length, length, (FLEX_TUNED,), device) for pattern in (sliding, streaming)]
    flex_window, flex_streaming = (attention[FLEX_TUNED] for attention in by_flex)
    return {
        DENSE: Contestant("dense", functools.partial(written_out, *inputs), causal),
        OURS: Contestant("flash", functools.partial(flash_attention_v2, *inputs, is_causal=True), causal),
        FLASH: Contestant("flash", sdpa(FLASH_BACKEND, *inputs, is_causal=True), causal),
        CUDNN: Contestant("flash", sdpa(CUDNN_BACKEND, *inputs, is_causal=True), causal),
        TORCHS_CHOICE: Contestant(
            "flash", functools.partial(scaled_dot_product_attention, *inputs, is_causal=True), causal
        ),
        f"sliding window of {window}": Contestant(
            "sparse", functools.partial(sparse_attention, *inputs, sliding), sliding
        ),
        f"window of {window}, FLASH": Contestant("sparse", functools.partial(flash_window, *inputs), sliding),
        f"window of {window}, Flex": Contestant("sparse", functools.partial(flex_window, *inputs), sliding),
        f"streaming, {SINKS} + {recent}": Contestant(
            "sparse", functools.partial(sparse_attention, *inputs, streaming), streaming
        ),
        f"streaming, {SINKS} + {recent}, Flex": Contestant(
            "sparse", functools.partial(flex_streaming, *inputs), streaming
        ),
    }


def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of `[B, H, L, d]` with S and P stored in the inputs' dtype, and a mask of one byte a pair."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    position = torch.arange(query.shape[2], device=query.device)
    scores.masked_fill_(position > position[:, None], -torch.inf)
    return scores.softmax(-1) @ value


def _one_length(
    contestants: dict[str, Contestant],
    inputs: Sequence[Tensor],
    expected_ms: dict[str, float],
    most_ms: float,
    bar: tqdm,
) -> list[Row]:
    """The rows of one length: each is checked, its memory is measured, and then all that run are timed, exact attention
    before patterns."""
    length = inputs[0].shape[2]
    missing: dict[str, Row] = {}
    memory: dict[str, int] = {}
    for name, (_, function, pattern) in contestants.items():
        bar.set_description(f"L = {length:,}: checking {name}")
        if expected_ms.get(name, 0) > most_ms:
            missing[name] = {"why_not": f"not tried: one run would take about {expected_ms[name] / 1e3:.2f} s here"}
            continue
        failed = _check(name, function, inputs, pattern)
        if failed is None:
            memory[name] = timing.peak_memory(function)
        else:
            missing[name] = failed
            if inputs[0].is_cuda:
                torch.cuda.empty_cache()  # the matrices that did fit were freed with the error
    bar.set_description(f"L = {length:,}: timing {len(memory)} ways")
    times: dict[str, timing.Timing] = {}
    for choices in (("dense", "flash"), ("sparse",)):
        group = {name: contestants[name].function for name in memory if contestants[name].choice in choices}
        times |= _times(group, missing)
    baseline = times.get(FLASH)
    rows: list[Row] = []
    for name, (choice, _, _) in contestants.items():
        taken = times.get(name)
        row: Row = {"part": "choices", "name": name, "choice": choice, "length": length, "heads": inputs[0].shape[1]}
        row |= {"head_dim": HEAD_DIM, "is_causal": True}
        row |= columns(taken) if taken else {"median_ms": None, "spread_ms": None}
        row["speed_over_flash"] = baseline.median / taken.median if taken and baseline else None
        row |= {"peak_extra_bytes": memory.get(name), "asked_bytes": None, "why_not": None}
        rows.append(row | missing.get(name, {}))
    return rows


def _times(functions: dict[str, Function], missing: dict[str, Row]) -> dict[str, timing.Timing]:
    """The times of all functions, interleaved; if that takes too much memory, without `DENSE`, which is then
    missing."""
    try:
        return timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US) if functions else {}
    except torch.OutOfMemoryError as error:
        if DENSE not in functions:
            raise
        missing[DENSE] = {"asked_bytes": asked_bytes(str(error)), "why_not": "out of memory"}
    torch.cuda.empty_cache()
    return _times({name: function for name, function in functions.items() if name != DENSE}, missing)


def _check(name: str, function: Function, inputs: Sequence[Tensor], pattern: Pattern) -> Row | None:
    """None if the function runs here and is right, else the columns that say why it does not run.

    Raises RuntimeError if its output is wrong: such a function is not timed.
    """
    try:
        out = function()
        if out.is_cuda:
            torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        return {"asked_bytes": asked_bytes(str(error)), "why_not": "out of memory"}
    except Exception as error:  # a kernel for newer devices, a backend that takes no such input, or Triton's own errors
        return {"why_not": f"does not run here: {(str(error).strip() or type(error).__name__).splitlines()[0]}"}
    require_right(name, out, *inputs, pattern)
    return None


def asked_bytes(message: str) -> int | None:
    """The failed allocation from torch's message, which rounds it to hundredths of its unit; None if the message has
    none."""
    found = re.search(r"Tried to allocate ([\d.]+) (MiB|GiB|TiB)", message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


# ---------------------------------------------------------------------------------------------- which kernel runs

BACKENDS = {
    SDPBackend.FLASH_ATTENTION: "Flash attention",
    SDPBackend.CUDNN_ATTENTION: "cuDNN attention",
    SDPBackend.EFFICIENT_ATTENTION: "Memory efficient",
    SDPBackend.MATH: "Math",
}  # and how torch's reasons begin


def backends(*, device: str = "cuda", heads: int = HEADS, length: int = 4096) -> list[Row]:
    """Which of torch's kernels takes which inputs, which one it chooses, and how long each takes, for inputs that
    differ in one property.

    `backend`: torch's name of the kernel. `runs`: whether it takes the case. `chosen`: whether
    `scaled_dot_product_attention` chooses it. `why_not`: torch's reason. `right`: whether the output equals fp32 torch
    on some rows, with the causal mask top left; None if there is none. A wrong kernel is not timed.
    """
    rows: list[Row] = []
    for case, (query, key, value, options) in sdpa_cases(device, heads, length).items():
        mask, is_causal = options.get("attn_mask"), options.get("is_causal", False)
        chosen = SDPBackend(torch._fused_sdp_choice(query, key, value, mask, 0.0, is_causal))
        reasons = {backend: why_not_taken(backend, query, key, value, **options) for backend in BACKENDS}
        functions = {
            backend: sdpa(backend, query, key, value, **options)
            for backend, why_not in reasons.items()
            if why_not is None
        }
        right = {backend: is_right(function(), query, key, value) for backend, function in functions.items()}
        timed = {backend.name: functions[backend] for backend, is_so in right.items() if is_so}
        times = timing.compare(timed, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US) if timed else {}
        for backend, why_not in reasons.items():
            row: Row = {"part": "backends", "case": case, "length": length, "backend": backend.name}
            row |= {"runs": why_not is None, "chosen": backend == chosen, "why_not": why_not}
            row |= {"right": right.get(backend), "median_ms": None, "spread_ms": None}
            rows.append(row | (columns(times[backend.name]) if backend.name in times else {}))
    return rows


def is_right(out: Tensor, query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether some rows of the output equal causal attention with the mask top left: row r sees keys 0 to r."""
    seen = query.shape[2]
    rows, expected = some_rows(query, key[:, :, :seen], value[:, :, :seen], patterns.causal())
    return (out[:, :, rows] - expected).abs().max().item() <= MAX_HALF_ERROR[torch.float16]


def sdpa_cases(device: str, heads: int, length: int) -> dict[str, tuple[Tensor, Tensor, Tensor, dict]]:
    """Inputs of `scaled_dot_product_attention` and its options: a case that every kernel takes, and variations of
    it."""
    query, key, value = (torch.randn(1, heads, length, HEAD_DIM, device=device).half() for _ in range(3))
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    wide = [torch.randn(1, heads, length, 512, device=device).half() for _ in range(3)]
    return {
        "fp16, is_causal": (query, key, value, {"is_causal": True}),
        "the same mask as attn_mask": (query, key, value, {"attn_mask": mask}),
        "fp32": (query.float(), key.float(), value.float(), {"is_causal": True}),
        "d = 512": (*wide, {"is_causal": True}),
        "is_causal, fewer queries than keys": (query[:, :, -length // 2 :], key, value, {"is_causal": True}),
    }


def why_not_taken(backend: SDPBackend, query: Tensor, key: Tensor, value: Tensor, **options: object) -> str | None:
    """None if this kernel of torch takes these inputs; else torch's reason, which it gives as warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            by_kernel(backend)(query, key, value, **options)
        except RuntimeError as error:
            said = [str(warning.message).partition(" (Triggered")[0].strip() for warning in caught]
            heads = [place for place, text in enumerate(said) if text.lower().startswith(BACKENDS[backend].lower())]
            reasons = said[heads[0] + 1 : heads[0] + 2] if heads else []
            return (reasons or [str(error).strip().splitlines()[0]])[0]
    return None
