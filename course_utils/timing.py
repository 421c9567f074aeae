"""Timing on a GPU: CUDA events, warm-up, a cold L2 cache, medians.

Why it is done this way: a launch returns before the kernel has run, so a host clock measures nothing; the first runs
pay for loading and compiling; and inputs that are still in the L2 cache make every repeat after the first look faster.
There is no CPU fallback: a time taken on the emulator says nothing about a GPU.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

MIN_REPEATS = 5
MAX_REPEATS = 200
CYCLES_PER_US = 2000  # of a fast GPU; a slower one idles longer
FLUSH_BYTES = 256 * 2**20  # at least; more on a device whose L2 is larger


class Timing(NamedTuple):
    """Milliseconds per run: the median, and the interquartile range (the middle half of the runs lies within it)."""

    median: float
    spread: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ms ± {self.spread / 2:.2g}"


def time_gpu(
    fn: Callable[[], object], *, warmup: int = 3, repeats: int | None = None, budget_ms: float = 500.0
) -> Timing:
    """Time `fn()` on torch's current stream.

    Args:
        fn: launches the work and returns; it must not synchronise or copy to the host.
        warmup: runs before the first timed one.
        repeats: timed runs; None takes as many as fit in `budget_ms`, at least 5 and at most 200.

    Returns:
        median and interquartile range in milliseconds.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    return compare({"fn": fn}, warmup=warmup, repeats=repeats, budget_ms=budget_ms)["fn"]


def compare(
    functions: dict[str, Callable[[], object]],
    *,
    warmup: int = 3,
    repeats: int | None = None,
    budget_ms: float = 500.0,
    head_start_us: float = 0.0,
) -> dict[str, Timing]:
    """Time several functions side by side, interleaved A B B A A B …, so that a drifting clock affects all alike.

    Arguments as for `time_gpu`; `repeats` and `budget_ms` hold for each function, so a slow one has fewer runs.
    head_start_us: the GPU idles that many microseconds before each run, while the host queues what it launches. If it
    is longer than the host takes, the time is that of the GPU alone, however slow the Python around a launch.
    """
    _require_gpu()
    _check_counts(functions, warmup, repeats, budget_ms)
    cache = _flush_buffer()
    for fn in functions.values():
        for _ in range(warmup):
            fn()
    counts = {name: repeats or _repeats_within(budget_ms, _run(fn, cache)) for name, fn in functions.items()}
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in functions}
    order = list(functions.items())
    for done in range(max(counts.values())):
        for name, fn in order:
            if done < counts[name]:
                events[name].append(_record(fn, cache, head_start_us))
        order.reverse()
    torch.cuda.synchronize()
    return {name: summary([start.elapsed_time(end) for start, end in pairs]) for name, pairs in events.items()}


def time_calls(fn: Callable[[], object], calls: int = 50) -> float:
    """Milliseconds per call of `fn()` when many follow one another, with a warm cache: the time of the GPU, or of the
    host that launches, whichever is longer.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    _require_gpu()
    fn()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def sustained(functions: dict[str, Callable[[], object]], *, seconds: float = 0.8) -> dict[str, Timing]:
    """Milliseconds per call of functions that have the GPU for `seconds` each: A B B A, two turns for each.

    A turn is as hot as a long job: `compare` takes short runs with pauses between them, but here the card reaches the
    power that it may take, and lowers its clock. Caches are warm.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    _require_gpu()
    _check_functions(functions)
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; it must be positive")
    turns: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions.items())
    for _ in range(2):
        for name, fn in order:
            calls = max(1, round(1e3 * seconds / time_calls(fn, 3)))
            turns[name].append(time_calls(fn, calls))
        order.reverse()
    return {name: summary(of_one) for name, of_one in turns.items()}


def compare_host(functions: dict[str, Callable[[], object]], *, rounds: int = 21, calls: int = 20) -> dict[str, Timing]:
    """Milliseconds for which the host is busy with one call of each function, interleaved as by `compare`: the way
    through Python to the last launch, not what is launched.

    Each of the `rounds` samples is the mean of a burst of `calls` without a wait. It begins with an idle GPU, whose
    queue holds a thousand launches: so few must not fill it.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    _require_gpu()
    _check_functions(functions)
    for name, number in (("rounds", rounds), ("calls", calls)):
        if number < 1:
            raise ValueError(f"{name} is {number}; it must be 1 or more")
    samples: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions.items())
    for _, fn in order:
        fn()  # compiles, and fills caches
    for _ in range(rounds):
        for name, fn in order:
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                fn()
            samples[name].append(1e3 * (time.perf_counter() - start) / calls)
        order.reverse()
    torch.cuda.synchronize()
    return {name: summary(of_one) for name, of_one in samples.items()}


def peak_memory(fn: Callable[[], object]) -> int:
    """Bytes that one `fn()` holds at its peak beyond what was allocated before, as torch's allocator counts them.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    _require_gpu()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = fn()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def summary(milliseconds: list[float]) -> Timing:
    """Median and interquartile range of the samples."""
    if not milliseconds:
        raise ValueError("milliseconds is empty; it must hold at least one sample")
    if len(milliseconds) == 1:
        return Timing(milliseconds[0], 0.0)
    lower, _, upper = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return Timing(statistics.median(milliseconds), upper - lower)


def _repeats_within(budget_ms: float, milliseconds: float) -> int:
    """Repeats of a run of `milliseconds` that fit the budget, within the limits."""
    return max(MIN_REPEATS, min(MAX_REPEATS, int(budget_ms / max(milliseconds, 1e-3))))


def _record(
    fn: Callable[[], object], cache: torch.Tensor, head_start_us: float = 0.0
) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Push every input out of L2, then run `fn` between two events. The flush is queued before the first event, so it
    is not timed; it also keeps the GPU busy while the host prepares the launch, which hides most of that cost."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    cache.zero_()
    if head_start_us:
        torch.cuda._sleep(int(head_start_us * CYCLES_PER_US))
    start.record()
    fn()
    end.record()
    return start, end


def _run(fn: Callable[[], object], cache: torch.Tensor) -> float:
    start, end = _record(fn, cache)
    end.synchronize()
    return start.elapsed_time(end)


def _flush_buffer() -> torch.Tensor:
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return torch.empty(max(FLUSH_BYTES, 2 * l2_bytes), dtype=torch.int8, device="cuda")


def _require_gpu() -> None:
    if not torch.cuda.is_available():
        raise RuntimeError(
            "timing needs an NVIDIA GPU and a CUDA build of torch, and this machine has no usable one; "
            "`python -m course_utils doctor` says why. Recorded figures: course_utils.measured.load(...)"
        )


def _check_counts(functions: dict[str, object], warmup: int, repeats: int | None, budget_ms: float) -> None:
    _check_functions(functions)
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}; it must be 0 or more")
    if repeats is not None and repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be 1 or more, or None")
    if not budget_ms > 0:
        raise ValueError(f"budget_ms is {budget_ms}; it must be positive")


def _check_functions(functions: dict[str, object]) -> None:
    if not functions:
        raise ValueError("functions is empty; it must map at least one name to a function")
    for name, fn in functions.items():
        if not callable(fn):
            raise TypeError(
                f"functions[{name!r}] has type {type(fn).__name__}; it must be a function without arguments"
            )
