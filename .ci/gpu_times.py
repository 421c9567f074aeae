"""GPU times of the operators in this checkout over those in another: what a change costs, or gains.

    git worktree add ../before COMMIT
    python .ci/gpu_times.py ../before [--record .ci/gpu_times.json]

One checkout after the other in a process of its own, A B B A …, each with its own kernels and operators and with this
checkout's clock. Of each checkout and row the median of its processes counts. `itself` is the ratio of two halves of
the other checkout's processes: so far two equal things differ.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
from pathlib import Path

from two_checkouts import HERE, Row, measure, run

TURNS = 8  # processes: four of each checkout
LENGTHS = 512, 1024, 4096, 16384


def measure_here() -> dict[str, float]:
    """Milliseconds on the GPU of each row, in the checkout that this process imports."""
    import torch

    from course_utils import patterns
    from course_utils.bench.timed import backward_pass
    from course_utils.operators import flash_attention_v2, sparse_attention

    clock = importlib.util.spec_from_file_location("clock", HERE / "course_utils/timing.py")
    timing = importlib.util.module_from_spec(clock)
    clock.loader.exec_module(timing)
    times = {}
    for length in LENGTHS:
        query, key, value, grad = (
            torch.randn(1, 16, length, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4)
        )
        window = patterns.sliding_window(min(length, 1024))
        forward = {
            "dense causal": functools.partial(flash_attention_v2, query, key, value, is_causal=True),
            "window 1024": functools.partial(sparse_attention, query, key, value, window),
            "BigBird": functools.partial(sparse_attention, query, key, value, patterns.bigbird()),
        }
        with torch.no_grad():
            for call in forward.values():
                call()
            # The GPU waits while the host queues a call: host time is no part of it.
            found = timing.compare(forward, budget_ms=150, head_start_us=600)
        causal = functools.partial(flash_attention_v2, is_causal=True)
        backward = {"dense causal, backward": backward_pass(causal, query, key, value, grad)}
        found |= timing.compare(backward, budget_ms=150, head_start_us=900)
        times |= {f"{name}, L = {length}": time.median for name, time in found.items()}
    return times


def compare(before: Path, turns: int = TURNS) -> list[Row]:
    """A row for each operator and length: milliseconds before and here, their ratio, and that of `before` to itself."""
    order = [(before, HERE, HERE, before)[n % 4] for n in range(turns)]
    found = [(checkout, measure(__file__, checkout)) for checkout in order]
    rows = []
    for name in found[0][1]:
        old, new = ([times[name] for checkout, times in found if checkout == side] for side in (before, HERE))
        half = statistics.median(old[::2]) / statistics.median(old[1::2])
        before_ms, here_ms = statistics.median(old), statistics.median(new)
        rows.append(
            {"name": name, "before_ms": before_ms, "here_ms": here_ms, "ratio": here_ms / before_ms, "itself": half}
        )
    return rows


def machine() -> Row:
    """What the rows were measured on."""
    import torch

    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}


if __name__ == "__main__":
    line = "{name:34s} {before_ms:8.4f} ms  {here_ms:8.4f} ms  {ratio:.3f}  (itself {itself:.3f})"
    run(__doc__, measure_here, compare, line, machine)
