"""The course's kernels beside the best that a user can install, as tables of the record `bench best_peers` makes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from course_utils import measured, show
from course_utils.costs import TOP_K, V3_2
from course_utils.measured import Measurement, Row
from course_utils.measured.best_peers import (
    BLOCKS,
    CORE,
    DENSE,
    DENSE_BACKWARD,
    DILATED,
    DOCUMENTS,
    OTHERS_BACKWARD,
    PACKAGES,
    RECORD,
    WINDOWS,
    WINDOWS_BACKWARD,
    Pair,
    pairs,
)
from course_utils.measured.hopper import TOKENS, WIDTH
from course_utils.measured.sparse_patterns import HEAD_DIM, HEADS
from course_utils.tables import figure

FASTER = "our speed ÷ the peer's"
DECIMALS = {"our ms": 3, "its ms": 3, FASTER: 2, "mean": 2, "lowest": 2, "highest": 2}
# Equal blocks are left out: their peer is cuDNN, which comes with torch.
KINDS = {
    "dense attention": (DENSE, DENSE_BACKWARD),
    "windows and packed documents": (WINDOWS, WINDOWS_BACKWARD, DOCUMENTS),
    "attention to chosen latents": (CORE,),
}

_BACKWARD = DENSE_BACKWARD, WINDOWS_BACKWARD, OTHERS_BACKWARD
_SPARSE = WINDOWS, WINDOWS_BACKWARD, DOCUMENTS, BLOCKS, DILATED, OTHERS_BACKWARD
_SHAPES = {
    **dict.fromkeys((DENSE, DENSE_BACKWARD), f"B · L = {TOKENS}, H · d = {WIDTH}, fp16"),
    **dict.fromkeys(_SPARSE, f"B = 1, H = {HEADS}, d = {HEAD_DIM}, fp16"),
    CORE: f"H = {V3_2.n_heads}, k = {TOP_K}, bf16",
}


def compare(*parts: str) -> None:
    """Shows the pairs of these parts. What is the same in all of them stands in the caption.

    Raises:
        FileNotFoundError: nothing is recorded.
        KeyError: there is no such part. ValueError: the record has no pair of it.
    """
    record = measured.load(RECORD)
    shapes = dict.fromkeys(_SHAPES[part] for part in parts)
    table = [_line(pair) for pair in pairs(record, parts)]
    same = _same(table)
    rows = [{name: value for name, value in line.items() if name not in same} for line in table]
    words = [f"{name}: {figure(value)}" for name, value in same.items()]
    show.table(rows, "; ".join([*words, *shapes, caption(record)]), decimals=DECIMALS)


def sparse_by_length() -> None:
    """Shows the speeds under sparse patterns, a line for each pattern, pass and peer, a column for each length."""
    record = measured.load(RECORD)
    found = sorted(pairs(record, _SPARSE), key=lambda pair: pair.part in _BACKWARD)
    lengths = sorted({pair.length for pair in found})
    lines: dict[tuple[str, str, str], dict[int, float]] = {}
    for pair in found:
        which = "backward" if pair.part in _BACKWARD else "forward"
        lines.setdefault((which, pair.work, pair.peer), {})[pair.length] = pair.speed
    table = [
        {"pass": which, "pattern": work, "peer": peer}
        | {f"{length // 1024} K": f"{of[length]:.2f}" if length in of else "" for length in lengths}
        for (which, work, peer), of in lines.items()
    ]
    show.table(table, f"{FASTER}, by tokens; {_SHAPES[WINDOWS]}; {caption(record)}")


def by_kind() -> None:
    """Shows the mean, the lowest and the highest speed for each kind of attention."""
    record = measured.load(RECORD)
    table = [_of_kind(kind, pairs(record, parts)) for kind, parts in KINDS.items()]
    show.table(table, f"{FASTER}; {caption(record)}", decimals=DECIMALS)


def _of_kind(kind: str, of_kind: Sequence[Pair]) -> Row:
    speeds = [pair.speed for pair in of_kind]
    (peer,) = {pair.peer for pair in of_kind}
    line: Row = {"what": kind, "mean": statistics.geometric_mean(speeds)}
    line |= {"lowest": min(speeds), "highest": max(speeds)}
    return line | {"faster": f"{peer} in {sum(speed < 1 for speed in speeds)} of {len(speeds)}"}


def caption(record: Measurement) -> str:
    """The GPU, the date, and the versions of torch and of the packages."""
    packages = (f"{package} {record.versions[package]}" for package in PACKAGES.values())
    return f"{measured.caption(record)}, {', '.join(packages)}"


def _same(table: Sequence[Row]) -> Row:
    """What all lines of a table have in common, besides figures that are compared."""
    first, *others = table
    common = {name: value for name, value in first.items() if all(line[name] == value for line in others)}
    return {name: value for name, value in common.items() if others and not isinstance(value, float)}


def _line(pair: Pair) -> Row:
    work = f"backward, {pair.work}" if pair.part in _BACKWARD else pair.work
    line: Row = {"work": work, "keys": pair.length, "our kernel": pair.kernel or pair.ours, "our ms": pair.our_ms}
    return line | {"peer": pair.peer, "its ms": pair.peer_ms, FASTER: pair.speed}
