"""What one block of each step of chapter 07's ladder did, as recorded: spans on lanes, for the pipeline viewer."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from course_utils import measured
from course_utils.launches.hopper import KEYS, LADDER, ROWS, Step
from course_utils.launches.timestamps import Moment, from_text
from course_utils.measured import Row
from course_utils.measured.hopper import FLOPS_OF_A_CLOCK

WAITS = ("__syncthreads", "wait_for", "wait_for_copies", "wait_until_full", "take_turn", "wait_for_product")
ASKS = ("fill", "load_box", "load_tile_async")
STARTS = {"start_scores": "S", "start_output": "PV"}


@dataclass(frozen=True)
class Span:
    """Something that lasts from cycle `begin` to cycle `end`. kind: K or V (a tile), S or PV (a product), asks,
    computes or waits, as `widgets.pipeline` draws them."""

    begin: int
    end: int
    kind: str


@dataclass(frozen=True)
class Lane:
    """The spans of one part of the multiprocessor, in order of time."""

    name: str
    spans: tuple[Span, ...]


def consumers(moments: Sequence[Moment]) -> list[int]:
    """The leaders of the warpgroups that start products."""
    return sorted({moment.leader for moment in moments if moment.site.verb in STARTS})


def lanes(moments: Sequence[Moment]) -> list[Lane]:
    """Tiles of K and V, the products in flight of each consumer, and what each warpgroup does.

    A tile lasts from its request until a consumer has seen its arrival, which may be long after the copy engine is
    done; a product lasts until a consumer has waited for it.
    """
    workers = consumers(moments)
    warpgroups = sorted({moment.leader for moment in moments})
    found = [Lane(f"tiles of {name}", tuple(_copies(moments, workers, name))) for name in "KV"]
    for n, leader in enumerate(workers):
        mine = [moment for moment in moments if moment.leader == leader]
        found.append(Lane(f"products of {_name(n)}", tuple(_products(mine))))
    for leader in warpgroups:
        mine = [moment for moment in moments if moment.leader == leader]
        name = _name(workers.index(leader)) if leader in workers else "producer"
        found.append(Lane(name, tuple(_doings(mine))))
    return found


def _name(consumer: int) -> str:
    return f"warpgroup {consumer}"


def _products(mine: Sequence[Moment]) -> list[Span]:
    """The products of one consumer, each from its start to the end of the wait for it, by what it is stored in."""
    under_way: dict[str, tuple[int, str]] = {}
    spans = []
    for moment in mine:
        result = moment.site.argument
        if moment.site.verb in STARTS:
            under_way[result] = moment.begin, STARTS[moment.site.verb]
        elif moment.site.verb == "wait_for_product" and result in under_way:
            begin, kind = under_way.pop(result)
            spans.append(Span(begin, moment.end, kind))
    return sorted(spans, key=lambda span: span.begin)


def _doings(mine: Sequence[Moment]) -> list[Span]:
    """What one warpgroup does: it asks, it waits, and between these it computes."""
    spans: list[Span] = []
    for moment in mine:
        if spans and moment.begin > spans[-1].end:
            spans.append(Span(spans[-1].end, moment.begin, "computes"))
        if moment.site.verb in WAITS:
            spans.append(Span(moment.begin, moment.end, "waits"))
        elif moment.site.verb in ASKS:
            spans.append(Span(moment.begin, moment.end, "asks"))
        else:
            spans.append(Span(moment.begin, moment.end, "computes"))
    return spans


def _copies(moments: Sequence[Moment], workers: Sequence[int], name: str) -> list[Span]:
    """The tiles of K or V. The n-th tile has arrived when a consumer has waited for that matrix the n-th time."""
    asked: list[int] = []
    arrivals: dict[int, list[int]] = {leader: [] for leader in workers}
    for moment in moments:
        verb, argument = moment.site.verb, moment.site.argument
        if verb in ASKS and f"shared.{name}" in argument:
            if verb != "load_tile_async" or moment.leader == workers[0]:  # there all threads copy
                asked.append(moment.end)
        elif moment.leader in workers and name in _awaited(verb, argument):
            arrivals[moment.leader].append(moment.end)
    first_arrivals = (min(ends) for ends in itertools.zip_longest(*arrivals.values(), fillvalue=math.inf))
    return [Span(begin, max(int(end), begin), name) for begin, end in zip(asked, first_arrivals, strict=False)]


def _awaited(verb: str, argument: str) -> str:
    """The matrices whose tiles a wait is for."""
    if verb == "wait_for_copies" or (verb == "wait_for" and "full[" in argument):
        return "KV"
    return re.search(r"gate_([QKV])", argument)[1] if verb == "wait_until_full" else ""


def cycles_of_a_tile(moments: Sequence[Moment]) -> float:
    """The median of the cycles from one tile to the next, as the first consumer starts them."""
    first = consumers(moments)[0]
    starts = [m.begin for m in moments if m.leader == first and m.site.verb == "start_scores"]
    return statistics.median(after - before for before, after in zip(starts[1:], starts[2:], strict=False))


def share_of_roof(moments: Sequence[Moment], head_dim: int) -> float:
    """The share of the tensor cores' peak that the products of a tile reach in `cycles_of_a_tile`."""
    flop = 4 * ROWS * KEYS * head_dim * len(consumers(moments))
    return flop / (cycles_of_a_tile(moments) * FLOPS_OF_A_CLOCK)


def blocks(head_dim: int = 128) -> list[dict]:
    """The recorded blocks of all steps, as `widgets.pipeline` takes them.

    Each has its number and title, its lanes with their spans, the cycles from tile to tile, its share of what the
    tensor cores could do, and how many times as long the kernel took with the clocks in it. Raises ValueError for a
    head dimension that was not recorded.
    """
    recorded = measured.load("pipeline")
    rows = {row["name"]: row for row in recorded.select(part="pipeline", head_dim=head_dim)}
    if not rows:
        raise ValueError(f"head_dim: got {head_dim}, of which {recorded.name} has no record")
    return [_block(step, rows[step.title], head_dim) for step in LADDER]


def _block(step: Step, row: Row, head_dim: int) -> dict:
    moments = from_text(row["sites"], row["moments"])
    return {
        "number": step.number,
        "title": step.title,
        "lanes": [
            {"name": lane.name, "spans": [[span.begin, span.end, span.kind] for span in lane.spans]}
            for lane in lanes(moments)
        ],
        "cycles": round(cycles_of_a_tile(moments)),
        "share": round(share_of_roof(moments, head_dim), 3),
        "slower": round(row["slower"], 2),
    }
