"""Chapter 06's recordings: each as a picture, with its figures folded behind it."""

from __future__ import annotations

import functools
import math

import matplotlib.pyplot as plt

from course_utils import measured, plots, show
from course_utils.launches.serving import RUNGS
from course_utils.measured import Measurement, Row
from course_utils.measured.serving import (
    CACHES,
    CUDNN,
    FLASH,
    GRAPH,
    HEAD_DIM,
    HEADS,
    IN_TRITON,
    KV_HEADS,
    LAUNCHES,
    ONE_LAUNCH,
    OURS,
    PAGE_SIZES,
    PIECES,
    SAME_BYTES,
    SPLITS,
    STEP_PAGE_SIZE,
)
from course_utils.planner.devices import by_driver_name

SHAPE = f"{HEADS} query heads, {KV_HEADS} key heads, d = {HEAD_DIM}, fp16, cold L2"
SHORT, LARGE = (8, 1024), (8, 65536)  # batch and keys of a sequence
SWEPT = (1, 65536)
OF_TORCH = FLASH, CUDNN


@functools.cache  # asked for each figure
def record() -> Measurement:
    """What was recorded for this chapter."""
    return measured.load("06_serving")


def caption() -> str:
    """The shape of the launches, the device and the date."""
    return f"{SHAPE}; {measured.caption(record())}"


def of_cache(batch: int, length: int) -> str:
    """A cache's size in words, such as "8 × 64 K"."""
    return f"{batch} × {length // 1024} K"


def by_name(part: str, batch: int, length: int, **columns: object) -> dict[str, Row]:
    """The rows of a part for one cache, by name."""
    rows = record().select(part=part, batch=batch, length=length, **columns)
    return {str(row["name"]): row for row in rows}


# ---- one query


def show_ladder() -> None:
    """Draws the first rungs and the fastest other kernels, as shares of the speed at which a sum reads."""
    rows, table = {}, []
    for batch, length in CACHES:
        found = by_name("contiguous", batch, length) | by_name("ladder", batch, length)
        names = {name: name for name in (*RUNGS.values(), PIECES, *OF_TORCH)}
        names[PIECES + IN_TRITON] = "in pieces, Triton"
        shares = {title: 100 * found[name]["share"] for name, title in names.items()}
        rows[of_cache(batch, length)] = {title: share for title, share in shares.items() if title not in OF_TORCH}
        rows[of_cache(batch, length)] |= {"the best of torch": max(shares[title] for title in OF_TORCH)}
        line = {"sequences × keys": of_cache(batch, length)}
        table.append(line | {f"{title}, µs": found[name]["us"] for name, title in names.items()})
    plots.dots({"": rows}, "% of the speed at which a sum of a large tensor reads it", log=False, mark=100)
    plt.show()
    ceiling = f"a sum reads {record().rows[0]['ceiling_tb_per_s']:.2f} TB/s"
    show.table(table, f"µs of the GPU; {ceiling}; {caption()}", folded=True)


def measure_splits() -> Measurement:
    """The sweep of splits for one long sequence, measured on this GPU or recorded."""

    def measure() -> list[Row]:
        from course_utils.bench.serving import splits

        return splits(caches=(SWEPT,))

    return measured.live_or_recorded("06_serving", measure)


def show_splits(sweep: Measurement) -> int:
    """Draws the speed by the number of splits for three caches, one of them from `measure_splits`. Returns the fastest
    number for that one."""
    panels, chosen = {}, {}
    for batch, length in (SWEPT, (8, 8192), (64, 4096)):
        source = sweep if (batch, length) == SWEPT else record()
        rows = source.select(part="splits", batch=batch, length=length)
        title = of_cache(batch, length)
        panels[title] = {row["splits"]: 100 * row["share"] for row in rows}
        chosen[title] = next(row["splits"] for row in rows if row["chosen"])
    plots.sweeps(panels, chosen, "splits", "% of a sum's speed")
    plt.show()
    table = [{"splits": n} | {title: points.get(n, "-") for title, points in panels.items()} for n in SPLITS]
    show.table(table, f"% of a sum's speed, rings: what is chosen; {SHAPE}; {measured.caption(sweep)}", folded=True)
    first = panels[of_cache(*SWEPT)]
    return max(first, key=first.__getitem__)


def show_ragged() -> None:
    """Shows one long sequence among short ones beside sequences of equal length and a sum of as many bytes."""
    found = {(row["lengths"], row["name"]): row for row in record().select(part="ragged")}
    rows = {
        "a sum of as many bytes": found["equal", SAME_BYTES],
        "32 of one length": found["equal", OURS],
        "one of 64 K, then 31 of 1 K": found["long first", OURS],
        "31 of 1 K, then one of 64 K": found["long last", OURS],
    }
    values = [100 * row["share"] for row in rows.values()]
    plots.bars(list(rows), {"% of the speed of a long sum; the same number of keys in all": values})
    plt.show()
    table = [{"batch": title, "µs": row["us"], "TB/s": row["tb_per_s"]} for title, row in rows.items()]
    show.table(table, caption(), folded=True)


# ---- pages, bits, queries, a prefix


def show_pages() -> float:
    """Draws what pages in random places cost compared with a contiguous cache. Returns the per cent for pages of 16 and
    8 sequences of 64 K."""
    groups: dict[str, dict[str, float]] = {}
    table = []
    for batch, length in CACHES[:2]:
        for size in PAGE_SIZES:
            found = by_name("paged", batch, length, page_size=size)
            plain, paged, peer = (found[name]["us"] for name in (OURS, "paged_attention", "FlashInfer"))
            groups.setdefault(f"pages of {size}", {})[of_cache(batch, length)] = 100 * (paged / plain - 1)
            line = {"sequences × keys": of_cache(batch, length), "page size": size}
            table.append(line | {"contiguous, µs": plain, "pages, µs": paged, "FlashInfer, pages, µs": peer})
    plots.grouped_bars(groups, "% longer than contiguous", colours=(plots.BLUE, plots.ORANGE))
    plt.show()
    show.table(table, f"pages in random order; {caption()}", folded=True)
    return groups[f"pages of {STEP_PAGE_SIZE}"][of_cache(*LARGE)]


def show_eight_bits() -> float:
    """Draws how many times as fast an E4M3 cache is read. Returns the figure for 8 sequences of 64 K."""
    gains, table = {}, []
    for batch, length in CACHES:
        found = by_name("eight bits", batch, length)
        wide, narrow = found[OURS], found[f"{OURS}, E4M3"]
        gains[of_cache(batch, length)] = wide["us"] / narrow["us"]
        line = {"sequences × keys": of_cache(batch, length), "16 bits, µs": wide["us"], "E4M3, µs": narrow["us"]}
        table.append(line | {"times as fast": wide["us"] / narrow["us"], "largest error": narrow["error"]})
    plots.bars(list(gains), {"times as fast as with 16 bits": list(gains.values())}, marks={"half the bytes": 2.0})
    plt.show()
    show.table(table, f"outputs are about 1; {caption()}", folded=True)
    return gains[of_cache(*LARGE)]


def show_prefix() -> float:
    """Draws the time with a prompt that each sequence reads, and with cascade attention. Returns their ratio."""
    rows = {row["name"]: row for row in record().select(part="shared prefix")}
    names = {"paged_attention": "read by each sequence", "cascade_attention": "cascade attention"}
    plots.bars(list(names.values()), {"µs of the GPU": [rows[name]["us"] for name in names]})
    plt.show()
    row = rows["paged_attention"]
    print(f"{row['batch']} sequences of {row['length']} tokens behind {row['prefix']:,} shared ones; {caption()}")
    return rows["paged_attention"]["us"] / rows["cascade_attention"]["us"]


def show_queries() -> float:
    """Draws the time by the number of queries a step, for two caches. Returns the time of 16 queries as a multiple of
    the time of one, for 8 sequences of 64 K."""
    panels: dict[str, dict[int, float]] = {}
    table = []
    for batch, length in CACHES[:2]:
        rows = record().select(part="queries", batch=batch, length=length)
        times = {
            name: {row["query_length"]: row["us"] for row in rows if row["name"] == name} for name in ("chain", "tree")
        }
        panels[of_cache(batch, length)] = {n: us / times["chain"][1] for n, us in times["chain"].items()}
        line = {"sequences × keys": of_cache(batch, length)}
        table += [
            line | {"queries": n, "chain, µs": us, "tree, µs": times["tree"][n]} for n, us in times["chain"].items()
        ]
    plots.sweeps(panels, {}, "queries of a sequence", "times the time of one")
    plt.show()
    show.table(table, caption(), folded=True)
    return panels[of_cache(*LARGE)][16]


# ---- a step


def steps() -> dict[tuple[int, int], dict[str, Row]]:
    """The rows of the part "step" by batch and keys, and then by name."""
    found: dict[tuple[int, int], dict[str, Row]] = {}
    for row in record().select(part="step"):
        found.setdefault((row["batch"], row["length"]), {})[row["name"]] = row
    return found


def floor_us(row: Row) -> float:
    """Microseconds to read the bytes of a row at the bandwidth of the GPU's datasheet."""
    return row["us"] * row["tb_per_s"] * 1e12 / by_driver_name(record().device).bandwidth


def is_steady(row: Row) -> bool:
    """Whether a time varied little: half of its runs lie within a fifth of the median. The host's own time does not
    where other programs use the processor as well."""
    return row["spread_us"] < 0.2 * row["us"]


def show_steps() -> float:
    """Draws 32 layers of append, attention and merge in four ways; times that varied much are in the table alone.
    Returns how many times as fast as a CUDA graph one launch is, for 8 sequences of 1 K."""
    panels: dict[str, dict[str, dict[int, float]]] = {}
    table = []
    for (batch, length), found in steps().items():
        panel = panels.setdefault(f"{batch} sequence{'s' * (batch > 1)}", {})
        floor = floor_us(next(iter(found.values())))
        for name, row in found.items():
            panel.setdefault(name, {})[length] = row["us"] / 1e3 if is_steady(row) else math.nan
        panel.setdefault("floor", {})[length] = floor / 1e3
        line = {"sequences × keys": of_cache(batch, length), "floor, µs": floor}
        line |= {f"{name}, µs": row["us"] for name, row in found.items()}
        table.append(line | {"spread of the launches, µs": found[LAUNCHES]["spread_us"]})
    plots.lines_by_length(panels, "ms of a step, 32 layers")
    plt.show()
    show.table(table, f"floor: the bytes at the datasheet's speed; pages of {STEP_PAGE_SIZE}; {caption()}", folded=True)
    found = steps()[SHORT]
    return found[GRAPH]["us"] / found[ONE_LAUNCH]["us"]


# ---- the loop


def show_served() -> float:
    """Draws the new tokens a second that the loop served with the small model. Returns how many times as many pages on
    demand serve."""
    rows = record().select(part="loop", sums="exact")
    speeds = {row["name"]: row["tokens_per_s"] for row in rows}
    names = {"pages": "in pages, as needed", "reserved": "reserved for the longest"}
    plots.bars(list(names.values()), {"new tokens a second, all requests together": [speeds[name] for name in names]})
    plt.show()
    columns = {"steps": "steps", "at_once": "requests at once", "waste": "taken rows without a token", "seconds": "s"}
    table = [{"": names[row["name"]]} | {title: row[key] for key, title in columns.items()} for row in rows]
    show.table(table, f"the small model, {measured.caption(record())}; the same tokens in both", folded=True)
    return speeds["pages"] / speeds["reserved"]
