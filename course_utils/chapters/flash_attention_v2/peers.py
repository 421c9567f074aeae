"""Chapter 03's kernel beside PyTorch's: by length, under the roofline, in short calls, and for few queries."""

from __future__ import annotations

import functools
import math

import matplotlib.pyplot as plt

from course_utils import costs, measured, plots, show
from course_utils.chapters.ceilings import BY_CUBLAS, BY_MMA, ON_CUDA_CORES, ceilings, peak
from course_utils.chapters.flash_attention_v2.steps import (
    CHAPTER,
    LENGTH,
    PEERS,
    blocks_that_fit,
    clocks_per_s,
    worth,
)
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.launches.ladder import FORWARD, TUNING
from course_utils.measured import Measurement
from course_utils.measured.flash_attention_v2 import (
    BY_HAND,
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
from course_utils.nvidia import bottlenecks

BY_LENGTH = (OURS, *PEERS, "torch memory-efficient")


@functools.cache  # asked for each figure
def record() -> Measurement:
    """The recording of the chapter."""
    return measured.load(CHAPTER)


def ratios(peer: str, which: str, **where: object) -> list[float]:
    """How many times as fast as one of PyTorch's kernels ours is, for each shape; all were timed in one run.

    which: "forward" or "backward"; where: columns of the recording.
    """
    where |= {"part": "lengths", "pass": which}
    ours, theirs = (record().select(name=name, **where) for name in (OURS, peer))
    return [a["ratio_to_flash"] / b["ratio_to_flash"] for a, b in zip(ours, theirs, strict=True)]


def summary() -> None:
    """Prints the ratios of both passes to FLASH and cuDNN, over all shapes."""
    print(f"{OURS} beside PyTorch's own kernels ({measured.caption(record())}):")
    for row in record().select(part="summary"):
        for peer in PEERS:
            found = ratios(peer, row["pass"])
            mean = math.exp(sum(map(math.log, found)) / len(found))
            times = f"{min(found):.2f} to {max(found):.2f} times as fast, geometric mean {mean:.2f}"
            print(f"{row['pass']:8}, {len(found)} shapes, beside {peer}: {times}")
        noise = f"{row['flash_to_itself_lowest']:.2f} to {row['flash_to_itself_highest']:.2f}"
        print(f"{row['pass']:8}, FLASH beside itself: {noise}")


def minimal_speed() -> float:
    """The highest TFLOP/s of chapter 02's kernel."""
    rows = measured.load("02_flash_attention_minimal").select(name="flash_attention_minimal")
    return max(row["tflop_per_s"] for row in rows)


def show_peaks() -> None:
    """Draws the measured ceilings of the GPU and the speed of chapter 02's kernel."""
    bars = {
        "matrix products in fp16, tensor cores, cuBLAS": peak(BY_CUBLAS),
        "the same by mma.sync and nothing else": peak(BY_MMA),
        "multiply-adds in fp32, CUDA cores": peak(ON_CUDA_CORES),
        "flash_attention_minimal, fp32": minimal_speed(),
    }
    plots.bars(list(bars), {"TFLOP/s": list(bars.values())})
    plt.show()
    print(measured.caption(measured.load("02_flash_attention_minimal")))


def show_floors() -> None:
    """Draws the least times of arithmetic and of memory for three lengths, in fp16."""
    hbm = ceilings()["device memory copy"]["gb_per_s"] * 1e9
    floors: dict[str, list[float]] = {"arithmetic, ms": [], "memory, ms": [], "FLOP per byte": []}
    for length in (512, 2048, 8192):
        flops = costs.attention_flops(16, 12, length, length, 64)
        least = costs.least_bytes(16, 12, length, length, 64, element_bytes=2)
        row = 1e3 * flops / (peak(BY_MMA) * 1e12), 1e3 * least / hbm, flops / least
        for values, value in zip(floors.values(), row, strict=True):
            values.append(value)
    plots.bars([f"L = {length:,}" for length in (512, 2048, 8192)], floors, alike=2)
    plt.show()
    print(f"B = 16, H = 12, d = 64, fp16; the rates: {measured.caption(measured.load('00_start_here'))}")


# ---- by length


def speed_by_length(which: str) -> None:
    """Draws TFLOP/s of a pass against the length, for our kernel and PyTorch's. which: "forward" or "backward"."""
    panels = {}
    for d, is_causal in ALL_CASES:
        where = {"part": "lengths", "pass": which, "head_dim": d, "is_causal": is_causal}
        found = {name: record().select(name=name, **where) for name in BY_LENGTH}
        panels[title(d, is_causal)] = {
            name: {row["length"]: row["tflop_per_s"] for row in rows} for name, rows in found.items()
        }
    plots.speed_by_length(panels)
    plt.show()
    print(f"{which}, fp16, {measured.caption(record())}")


def ratio_table(which: str) -> None:
    """Shows how many times as fast as PyTorch's kernels ours is, by length, as the median of three runs."""
    table = []
    for peer in PEERS:
        for d, is_causal in ALL_CASES:
            found = ratios(peer, which, head_dim=d, is_causal=is_causal)
            row = {"as fast as": peer, "d": d, "causal": is_causal}
            table.append(row | {f"L = {L}": f"{x:.2f}" for L, x in zip(LENGTHS, found, strict=True)})
    show.table(table, f"{which}, how many times as fast; {measured.caption(record())}", folded=True)


def lead_by_rescaling() -> None:
    """Prints our lead over FLASH with and without lazy rescaling of O."""
    always = next(step for step in TUNING if step.title == "O rescaled at every tile")
    for d in (64, 128):
        where = {"part": "tuning", "head_dim": d, "is_causal": False, "length": LENGTH}
        with_it, without = (
            record().select(name=name, **where)[0]["ratio_to_flash"] for name in ("tuned", always.title)
        )
        print(f"d = {d:3}: {with_it:.2f} times as fast as FLASH, {without:.2f} if O is rescaled at every tile", end="")
        print(f": worth a factor of {worth(always, d, False):.2f}")
    print(f"not causal, L = {LENGTH}, {measured.caption(record())}")


# ---- under the roofs


def _at_table() -> tuple[dict[str, dict], str, float, int]:
    """The rows of the roofline by name, a caption, FLOP of the formula, and how many exponentials."""
    batch, heads, length, d = TABLE_SHAPE
    caption = f"forward, B = {batch}, H = {heads}, L = {length}, d = {d}, {measured.caption(record())}"
    rows = {row["name"]: row for row in record().select(part="table")}
    return rows, caption, costs.attention_flops(batch, heads, length, length, d), batch * heads * length * length


def naive_traffic() -> float:
    """Shows what naive attention moves between HBM and the chip, by ncu. Returns its ratio to the least possible."""
    rows, caption, *_ = _at_table()
    read, written, least = (rows[NAIVE][key] for key in ("hbm_read_mb", "hbm_written_mb", "least_mb"))
    print(f"{read:,.0f} MB read, {written:,.0f} MB written; Q, K, V and O once: {least:,.0f} MB ({caption})")
    return (read + written) / least


def roofline() -> None:
    """Draws the kernels under the roofline of chapter 00, by the HBM bytes that ncu measured, with a table."""
    rows, caption, flops, _ = _at_table()
    points = {}
    for name, row in rows.items():
        moved = 1e6 * (row["hbm_read_mb"] + row["hbm_written_mb"])
        points[name] = flops / moved, flops / row["median_ms"] * 1e3
    peaks = {"fp32 multiply-add": peak(ON_CUDA_CORES) * 1e12, "fp16, mma.sync": peak(BY_MMA) * 1e12}
    peaks["fp16, cuBLAS (wgmma)"] = peak(BY_CUBLAS) * 1e12
    plots.roofline(peaks, ceilings()["device memory copy"]["gb_per_s"] * 1e9, points)
    plt.show()
    columns = {"median_ms": "ms", "tflop_per_s": "TFLOP/s", "peak_mb": "peak memory, MB"}
    columns |= {"hbm_read_mb": "HBM read, MB", "hbm_written_mb": "HBM written, MB", "least_mb": "Q, K, V, O once, MB"}
    table = [{"": name} | {shown: row[key] for key, shown in columns.items()} for name, row in rows.items()]
    show.table(table, f"{caption}; HBM bytes: ncu", folded=True)


def exponentials() -> None:
    """Draws the time of the products alone, of the exponentials alone, and of the kernel."""
    rows, caption, flops, count = _at_table()
    per_second = ceilings()["exponentials, special function units"]["per_s"]
    products = flops / (peak(BY_MMA) * 1e12)
    bars = {
        "products alone, by mma.sync": 1e3 * products,
        "exponentials alone": 1e3 * count / per_second,
        "one after the other": 1e3 * (products + count / per_second),
        OURS: rows[OURS]["median_ms"],
    }
    plots.bars(list(bars), {"ms": list(bars.values())})
    plt.show()
    print(f"measured: {per_second / clocks_per_s():.1f} exponentials per clock and multiprocessor ({caption})")


def busy() -> None:
    """Shows how busy ncu found the kernel's units and warps."""
    by_ncu = measured.load("bottlenecks")
    rows = [row for row in by_ncu.rows if row["name"].startswith("v2 forward")]
    shares = {row["kernel"]: row for row in bottlenecks.table(rows)}
    units = [column for column in next(iter(shares.values())) if column.endswith(", %")]
    panels = {f"% busy, {kernel}": [row[unit] for unit in units] for kernel, row in shares.items()}
    plots.bars([unit.removesuffix(", %") for unit in units], panels, alike=len(panels))
    plt.show()
    show.table(bottlenecks.table(rows), f"ncu, {measured.caption(by_ncu)}", folded=True)


def time_and_memory() -> None:
    """Draws time and memory of training with a constant number of tokens: naive attention, which stores P, and ours."""
    plots.time_and_memory(record().select(part="recompute"), ["stores P", "recomputes P"])
    plt.show()
    print(training_caption())


def training_caption() -> str:
    """The shape and the recording that `time_and_memory` shows."""
    return f"B · L = {TOKENS}, H · d = {WIDTH}, d = 64, fp16, {measured.caption(record())}"


# ---- too little to do


def share_of_places(batch: int, length: int) -> float:
    """The share of the GPU's block slots that the last step fills with 12 heads of d = 64."""
    places = blocks_that_fit().blocks * ceilings()["streaming multiprocessors"]["count"]
    return batch * 12 * costs.ceil_div(length, FORWARD.rows_per_block(64)) / places


def show_places() -> None:
    """Prints the number of blocks for some batches and lengths beside the GPU's block slots."""
    places = blocks_that_fit().blocks * ceilings()["streaming multiprocessors"]["count"]
    for batch in (1, 16):
        for length in (512, 2048, 8192):
            share = share_of_places(batch, length)
            count = round(share * places)
            print(f"B = {batch:2}, H = 12, L = {length:4}: {count:6,} blocks for {places} places, {share:6.0%}")


def short_sequences() -> None:
    """Shows the GPU's microseconds for one short sequence: our kernel, PyTorch's kernels, naive attention."""
    names = {OURS: OURS, "FLASH": PEERS[0], "cuDNN": PEERS[1], "efficient": BY_LENGTH[-1], "naive": NAIVE}
    times = {shown: {L: _short(name, L) for L in SHORT_LENGTHS} for shown, name in names.items()}
    plots.short_calls({"the kernel alone": times})
    plt.show()
    table = [{"L": length} | {name: of[length] for name, of in times.items()} for length in SHORT_LENGTHS]
    where = f"forward, B = 1, H = 16, d = 64; {measured.caption(record())}"
    show.table(table, f"µs of the kernel alone, {where}", folded=True)


def _short(name: str, length: int) -> float:
    """Microseconds of the GPU for a forward pass of one short sequence."""
    found = record().select(part="short", name=name, length=length, head_dim=64, **{"pass": "forward"})
    return 1e3 * found[0]["median_ms"] if found else float("nan")


def one_query() -> None:
    """Shows at which rate K and V are read for one query, by the fastest of our ways and of PyTorch's, and what each
    of our ways gains over a tile for each head."""
    copy = ceilings()["device memory copy"]["gb_per_s"] / 1e3
    ways = {"keys split": UNPACKED + SPLIT, "packed": OURS, "both": OURS + SPLIT}
    table, groups = [], {}
    for batch, keys in _shapes("batch", "length"):
        rows = record().select(part="few queries", batch=batch, length=keys, query_length=1)
        found = {row["name"]: row for row in rows}
        row, base = {"B": batch, "L_k": keys}, found[UNPACKED]["median_ms"]
        for shown, name in ways.items():
            row[shown] = f"{base / found[name]['median_ms']:.2f} ×" if name in found else ""
        rate = max(found[name]["tb_per_s"] for name in _ways() if name in found)
        row |= {f"{OURS}, TB/s": rate, "% of a copy's rate": round(100 * rate / copy)}
        rates = {OURS: rate}
        for peer in PEERS:
            of_peer = [found[name]["tb_per_s"] for name in (peer, peer + BY_HAND) if name in found]
            row[f"{peer}, TB/s"] = rates[peer] = max(of_peer, default=float("nan"))
        table.append(row)
        groups[f"B = {batch}\n{keys:,} keys"] = rates
    plots.reading_rates(groups, copy)
    plt.show()
    what = "one query: gain over a tile for each head, and the rate at which K and V are read"
    show.table(table, f"{what}; {measured.caption(record())}", folded=True)


def gain_of_both(batch: int, keys: int) -> float:
    """How many times as fast one query is with packed heads and split keys as with a tile for each head."""
    of_shape = {"part": "few queries", "batch": batch, "length": keys, "query_length": 1}
    before, both = (record().select(name=name, **of_shape)[0] for name in (UNPACKED, OURS + SPLIT))
    return before["median_ms"] / both["median_ms"]


def _ways() -> list[str]:
    return [name + how for name in (UNPACKED, OURS) for how in ("", SPLIT)]


def _shapes(*columns: str) -> list[tuple[int, ...]]:
    """The shapes of the part "few queries", each once, in the order of the recording."""
    rows = record().select(part="few queries")
    return list(dict.fromkeys(tuple(row[column] for column in columns) for row in rows))
