"""What `bench PATTERN` measures: one pattern beside FlexAttention and dense attention; its arguments are options."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from course_utils import costs, measured, patterns
from course_utils.bench import flex
from course_utils.bench.by_hand import by_hand
from course_utils.measured import Measurement, Row
from course_utils.operators import choose_kernel
from course_utils.patterns import Pattern
from course_utils.patterns.pattern import range_pattern

# The patterns of `bench PATTERN`: their arguments are integers or lists of integers, and each is an option.
PATTERNS: dict[str, Callable[..., Pattern]] = {
    function.__name__: function
    for function in (
        patterns.causal,
        patterns.sliding_window,
        patterns.dilated,
        patterns.power_of_two,
        patterns.strided,
        patterns.fixed,
        patterns.streaming,
        patterns.full,
        patterns.local,
        patterns.local_2d,
        patterns.block_diagonal,
        patterns.random_blocks,
        patterns.bigbird,
        patterns.document,
        patterns.global_tokens,
        patterns.tree,
    )
}
LISTS = ("lengths", "positions", "parents")  # arguments that are lists


def counts(pattern: Pattern, lengths: Sequence[int], heads: int, head_dim: int, batch: int = 1) -> list[Row]:
    """The figures that need no GPU: pairs, density, visited 64 × 64 blocks, how many of them are partial (for a dilated
    pattern in its residue classes), and the FLOPs of a forward pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[Row] = []
    for length in lengths:
        visited, partial = _blocks(pattern, length, device)
        kernel, pairs = (
            choose_kernel(pattern, length, device=device).kernel,
            flex.count_pairs(pattern, length, device),
        )
        row: Row = {"pattern": pattern.name, "length": length, "kernel": kernel}
        row |= {"pairs": pairs, "density": pairs / length**2, "blocks": costs.ceil_div(length, 64) ** 2}
        row |= {"visited": visited, "partial": partial}
        gflop = 4 * head_dim * heads * batch / 1e9
        rows.append(row | {"useful_gflop": gflop * pairs, "dense_gflop": gflop * length**2})
    return rows


def _blocks(pattern: Pattern, length: int, device: str) -> tuple[int, int]:
    """Visited and partial blocks of 64 × 64."""
    if pattern.ranges and pattern.ranges.dilation > 1:
        dilation = pattern.ranges.dilation
        in_class = range_pattern(pattern.kind, pattern.parameters, pattern.ranges._replace(dilation=1))
        classes = Counter(costs.ceil_div(length - first, dilation) for first in range(min(length, dilation)))
        found = [(n, _blocks(in_class, members, device)) for members, n in classes.items()]
        return tuple(sum(n * blocks[k] for n, blocks in found) for k in range(2))
    lists = pattern.block_lists(length, device=device)
    return len(lists.indices), int((lists.bits_index >= 0).sum())


def of_pattern(rows: Sequence[Row], kind: str) -> list[Row]:
    """The recorded rows of patterns of a kind, such as "sliding_window"."""
    chosen = [row for row in rows if str(row.get("pattern")).startswith(f"{kind}(") or row.get("part") == kind]
    return [row for part in ("peers", "backward", "scaling", kind) for row in chosen if row.get("part") == part]


# The options of every pattern besides its own arguments.
SIZES = {"seq_len": None, "batch": 1, "heads": 16, "head_dim": 128, "dtype": "float16", "backward": False}


def arguments(kind: str) -> dict[str, bool]:
    """The arguments of a kind of pattern, and whether each is needed."""
    return {name: of.default is of.empty for name, of in inspect.signature(PATTERNS[kind]).parameters.items()}


def count(kind: str, **options: object) -> list[Row]:
    """`counts` of a pattern with these options."""
    pattern, lengths, size = _chosen(kind, options)
    return counts(pattern, lengths, size["heads"], size["head_dim"], size["batch"])


def measure(kind: str, **options: object) -> list[Row]:
    """`race` of a pattern with these options, at each length."""
    pattern, lengths, size = _chosen(kind, options)
    return [
        row
        for length in lengths
        for row in flex.race(
            pattern,
            (size["batch"], size["heads"], length, size["head_dim"]),
            dtype=getattr(torch, size["dtype"]),
            backward=size["backward"],
            others=by_hand(pattern, length, "cuda") if size["batch"] == 1 else None,
        )
    ]


def recorded(kind: str) -> Measurement:
    """The recorded rows of patterns of this kind; raises RuntimeError if there are none."""
    of_chapter = measured.load("04_sparse_patterns")
    rows = of_pattern(of_chapter.rows, kind)
    if not rows:
        raise RuntimeError(f"this machine has no usable NVIDIA GPU, and no figures are recorded for {kind}")
    return replace(of_chapter, rows=rows)


def _chosen(kind: str, options: dict[str, object]) -> tuple[Pattern, list[int], dict]:
    """The pattern, its lengths (16384, or the one that it is for) and the sizes.

    Raises:
        ValueError: a size below 1, or an argument that the pattern refuses.
    """
    size = {name: options.get(name, default) for name, default in SIZES.items()}
    for name, value in size.items():
        for number in value if isinstance(value, list) else [value]:
            if type(number) is int and number < 1:
                raise ValueError(f"--{name.replace('_', '-')} is {number}; it must be at least 1")
    own = {name: value for name, value in options.items() if name not in SIZES}
    return PATTERNS[kind](**own), size["seq_len"] or [_own_length(own) or 16384], size


def _own_length(own: dict[str, object]) -> int | None:
    """The only length of a pattern with these arguments, or None."""
    if "height" in own:
        return own["height"] * own["width"]
    if "lengths" in own:
        return sum(own["lengths"])
    return len(own["parents"]) if "parents" in own else None
