"""The memory traffic and the times of chapter 01's three passes: counted on the emulator, computed, and recorded."""

from __future__ import annotations

import os
from collections.abc import Iterable

import matplotlib.pyplot as plt
import torch

from course_utils import costs, measured, plots, show
from course_utils.chapters.attention_basics import passes
from course_utils.cuda import read_kernel
from course_utils.emulator import profile
from course_utils.measured import Measurement, Row
from course_utils.nvidia import bottlenecks
from course_utils.operators import naive_attention

NAMES = ("scores", "softmax", "output")
FLOP_PER_SCORE = (128, 5, 128)  # d = 64; softmax: compare, subtract, exp, add, multiply
SHAPE = {"batch": 16, "heads": 12, "query_length": 2048, "key_length": 2048, "head_dim": 64}
WAYS = {
    "one thread per score": "scores_uncoalesced",
    "the same, K transposed": "scores_uncoalesced",
    "shared-memory tile": "scores",
}
TIMED = ("scores_uncoalesced.cu", "scores_uncoalesced.cu, K transposed", "scores.cu")


def sectors(addresses: Iterable[int]) -> int:
    """Number of 32-byte sectors that hold these byte addresses."""
    return len({address // 32 for address in addresses})


# ---- the loads of the scores


def scores_of(way: str, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """S by one of WAYS. The transposed way stores K as `[d, L_k]`, and its kernel reads it so."""
    code = read_kernel(f"01_attention_basics/{WAYS[way]}.cu")
    if "transposed" in way:
        code = code.replace("K[(long long)j * d + c]", "K[(long long)c * L_k + j]")
        key = key.mT.contiguous().view(key.shape)  # the bytes of Kᵀ; the kernel sees only bytes
    return passes.scores_with(passes.kernel(WAYS[way], code), query, key)


def loads(way: str) -> dict[str, float]:
    """Requests, sectors, bytes and sectors per request of the global loads at L = 64, d = 64, which fills whole
    tiles."""
    with profile() as counters:
        scores_of(way, *(passes.random(1, 1, 64, 64, seed=seed) for seed in (1, 2)))
    found = {name: counters.total(name, "global", "load") for name in ("requests", "sectors", "bytes")}
    return found | {"sectors per request": found["sectors"] / found["requests"]}


def show_loads() -> None:
    """Draws the loads of the three ways, counted on the emulator."""
    counted = {way: loads(way) for way in WAYS}
    shown = ("requests", "sectors", "sectors per request")
    plots.bars(list(counted), {name: [row[name] for row in counted.values()] for name in shown})
    plt.show()
    table = [{"kernel": way} | row for way, row in counted.items()]
    show.table(table, "global loads, L_q = L_k = 64, d = 64, counted on the emulator", folded=True)


# ---- times


def timings() -> Measurement:
    """The chapter's timings, measured on this GPU or recorded."""

    def measure() -> list[Row]:
        from course_utils.bench.attention_basics import naive_steps

        return naive_steps()

    return measured.live_or_recorded("01_attention_basics", measure)


def longest(found: Measurement) -> tuple[int, dict[str, float]]:
    """The greatest length in the timings, and the milliseconds at that length by name."""
    length = max(row["length"] for row in found.rows)  # 2048, or less on a GPU with little memory
    return length, {row["name"]: row["median_ms"] for row in found.select(length=length)}


def show_scores_timed(found: Measurement) -> float:
    """Draws the times of the three ways. Returns how many times as fast as the first way the last one is."""
    length, ms = longest(found)
    plots.bars(list(TIMED), {f"ms, L = {length}": [ms[name] for name in TIMED]})
    plt.show()
    first, transposed = (loads(way)["sectors"] for way in list(WAYS)[:2])
    print(f"K transposed: {first / transposed:.1f} times fewer sectors; {ms[TIMED[0]] / ms[TIMED[1]]:.1f} times faster")
    print(f"the tile: {ms[TIMED[1]] / ms[TIMED[2]]:.1f} times faster again. {measured.caption(found)}")
    return ms[TIMED[0]] / ms[TIMED[2]]


def at_ncu(name: str) -> dict:
    """The row that ncu recorded of a pass at L = 2048."""
    return measured.load("bottlenecks").select(name=f"{name}, L=2048")[0]


# ---- the score matrix


def memory_held(device: torch.device) -> int:
    """Bytes that torch holds on the GPU, or that this process holds on the CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def show_memory_taken(device: torch.device) -> None:
    """Allocates S of one head in fp32 for two lengths, and shows how much memory that takes."""
    taken, said = {}, []
    for length in (4096, 8192):
        before = memory_held(device)
        score_matrix = torch.ones(1, 1, length, length, device=device)
        taken[length] = (memory_held(device) - before) / 1e6
        predicted = costs.score_matrix_bytes(1, 1, length, length, element_bytes=4) / 1e6
        del score_matrix
        said.append(f"L = {length}: predicted {predicted:.0f} MB, taken {taken[length]:.0f} MB")
    plots.score_squares(taken)
    plt.show()
    print(*said, sep="\n")


def score_bytes(length: int) -> dict[str, float]:
    """Gigabytes in fp16 of S for one head, of S and P for 32 heads, and of Q, K, V and O for 32 heads with d = 128."""
    return {
        "S, 1 head": costs.score_matrix_bytes(1, 1, length, length, 2) / 1e9,
        "S and P, 32 heads": costs.score_matrix_bytes(1, 32, length, length, 2, matrices=2) / 1e9,
        "Q, K, V and O, 32 heads": costs.least_bytes(1, 32, length, length, 128, 2) / 1e9,
    }


def show_score_bytes(lengths: tuple[int, ...] = (2048, 8192, 32_768, 131_072)) -> float:
    """Draws `score_bytes` against the length. Returns the gigabytes of S for one head at the greatest length."""
    rows = [score_bytes(length) for length in lengths]
    plots.growing_bytes(lengths, {name: [row[name] for row in rows] for name in rows[0]}, {"80 GB: all of an H100": 80})
    plt.show()
    by_length = zip(lengths, rows, strict=True)
    show.table([{"L": length} | row for length, row in by_length], "GB in fp16", folded=True)
    return rows[-1]["S, 1 head"]


# ---- traffic


def show_traffic() -> float:
    """Draws the traffic of the three passes at SHAPE in fp32 beside the least possible. Returns their ratio."""
    steps = costs.naive_traffic(**SHAPE, element_bytes=4)
    least = costs.least_bytes(**SHAPE, element_bytes=4)
    plots.traffic_bars(
        {"three passes": steps, "the least": [costs.Step("Q, K, V and O", 0, least)]},
        highlight=lambda name: name != "Q, K, V and O",
        legend=("a pass: reads and writes", "Q, K, V and O once"),
    )
    plt.show()
    for step in steps:
        print(f"{step.name:18s} reads {step.bytes_read / 1e9:5.2f} GB, writes {step.bytes_written / 1e9:5.2f} GB")
    ratio = costs.total_bytes(steps) / least
    print(f"together {costs.total_bytes(steps) / 1e9:.2f} GB; the least is {least / 1e9:.2f} GB")
    print(f"ratio {ratio:.1f} = 1 + L / d = {1 + SHAPE['key_length'] / SHAPE['head_dim']:.1f}")
    return ratio


def requested_and_footprint() -> None:
    """Counts requested bytes and footprint at 200 tokens, which no tile divides, and compares them with the formulas to
    the byte."""
    small = 1, 2, 200, 200, 64  # B, H, L_q, L_k, d
    with profile() as counters:
        naive_attention(*(passes.random(1, 2, 200, 64, seed=seed) for seed in (1, 2, 3)))
    formulas = zip(costs.naive_requested(*small), costs.naive_traffic(*small, element_bytes=4), strict=True)
    for name, (requested, moved) in zip(NAMES, formulas, strict=True):
        rows = [row for row in counters.select("global") if row.kernel == name]
        asked = [sum(row.bytes for row in rows if row.operation == way) for way in ("load", "store")]
        touched = [part for part in counters.footprint if part.kernel == name]
        distinct = [sum(part.bytes_read for part in touched), sum(part.bytes_written for part in touched)]
        assert asked == [requested.bytes_read, requested.bytes_written]
        assert distinct == [moved.bytes_read, moved.bytes_written]
        print(f"{name:7s}: requested {sum(asked):10,} bytes, footprint {sum(distinct):7,}")
    print("requested = costs.naive_requested, footprint = costs.naive_traffic, to the byte")


def counts_at(length: int) -> dict[str, dict[str, dict[str, float]]]:
    """Megabytes read and written by each kernel at B = 1, H = 4, d = 64: requested, footprint, and at HBM by ncu."""
    shape = 1, 4, length, length, 64
    hbm_of = {row["name"]: row["metrics"] for row in measured.load("counters").rows}
    found: dict[str, dict[str, dict[str, float]]] = {"read": {}, "written": {}}
    formulas = costs.naive_requested(*shape), costs.naive_traffic(*shape, element_bytes=4)
    for name, requested, moved in zip(NAMES, *formulas, strict=True):
        for way, metric in (("read", "dram__bytes_read"), ("written", "dram__bytes_write")):
            found[way][name] = {
                "requested": getattr(requested, f"bytes_{way}") / 1e6,
                "footprint": getattr(moved, f"bytes_{way}") / 1e6,
                "HBM": hbm_of[f"{name}, L={length}"][metric] / 1e6,
            }
    return found


def show_counts(lengths: tuple[int, int] = (1024, 2048)) -> str:
    """Draws the counts for the longer length, and shows a folded table for both lengths. Returns which count the HBM
    reads at the longer length are nearer to, in every kernel, or "neither"."""
    plots.three_counts({f"{way}, L = {lengths[1]}": kernels for way, kernels in counts_at(lengths[1]).items()})
    plt.show()
    table = []
    for length in lengths:
        found = counts_at(length)
        for name in NAMES:
            read, written = found["read"][name], found["written"][name]
            row = {"L": length, "kernel": name} | {f"read: {count}": value for count, value in read.items()}
            table.append(row | {f"written: {count}": written[count] for count in ("footprint", "HBM")})
    ncu = measured.load("counters")
    by_ncu = f"MB for B = 1, H = 4, d = 64. HBM: ncu {ncu.versions['ncu']} on {measured.caption(ncu)}"
    show.table(table, f"{by_ncu}. The rest: by the formulas, which hold to the byte", folded=True)
    names = {"footprint": "the footprint", "requested": "what is requested"}
    reads = counts_at(lengths[1])["read"].values()
    nearer = {min(names, key=lambda name: abs(row[name] - row["HBM"])) for row in reads}
    return names[nearer.pop()] if len(nearer) == 1 else "neither"


# ---- rates


def ceilings() -> Measurement:
    """The device's speeds from chapter 00, measured on this GPU or recorded."""

    def measure() -> list[Row]:
        from course_utils.bench.start_here import ceilings

        return ceilings()

    return measured.live_or_recorded("00_start_here", measure)


def speeds(of: Measurement) -> tuple[float, dict[str, float]]:
    """Bytes/s of a copy in device memory, and FLOP/s of fp32 multiply-adds and fp16 tensor cores."""
    rates = {row["name"]: row for row in of.rows}
    peaks = {"fp16 tensor cores": 1e12 * rates["fp16 matrix product, tensor cores"]["tflop_per_s"]}
    peaks["fp32"] = 1e12 * rates["fp32 multiply-add, CUDA cores"]["tflop_per_s"]
    return 1e9 * rates["device memory copy"]["gb_per_s"], peaks


def rates(found: Measurement, of: Measurement) -> dict[str, dict[str, float]]:
    """By kernel at the longest length: ms, floor in ms, GB/s, TFLOP/s, FLOP per byte."""
    bandwidth, peaks = speeds(of)
    length, ms = longest(found)
    table = {}
    steps = costs.naive_traffic(SHAPE["batch"], SHAPE["heads"], length, length, SHAPE["head_dim"], element_bytes=4)
    for name, step, per_score in zip(NAMES, steps, FLOP_PER_SCORE, strict=True):
        work, time = per_score * SHAPE["batch"] * SHAPE["heads"] * length**2, ms[f"{name}.cu"]
        table[f"{name}.cu"] = {
            "ms": time,
            "floor, ms": 1e3 * costs.time_floor(work, step.total, peaks["fp32"], bandwidth),
            "GB/s": step.total / time / 1e6,
            "TFLOP/s": work / time / 1e9,
            "FLOP per byte": costs.arithmetic_intensity(work, step.total),
        }
    return table


def show_floors(found: Measurement, of: Measurement) -> None:
    """Draws the times of the three kernels and their floors."""
    by_kernel = rates(found, of)
    groups = {name: {"floor": row["floor, ms"], "measured": row["ms"]} for name, row in by_kernel.items()}
    plots.grouped_bars(groups, "ms", colours=(plots.SKY, plots.BLUE))
    plt.show()
    caption = f"bytes and FLOP by arithmetic; L = {longest(found)[0]}; {measured.caption(found)}"
    show.table([{"kernel": name} | row for name, row in by_kernel.items()], caption, folded=True)


def show_roofline(found: Measurement, of: Measurement) -> None:
    """Draws the three kernels under the roofline, and what their wavefronts allow."""
    bandwidth, peaks = speeds(of)
    by_kernel = rates(found, of)
    points = {name: (row["FLOP per byte"], 1e12 * row["TFLOP/s"]) for name, row in by_kernel.items()}
    plots.roofline(peaks, bandwidth, points)
    plt.show()
    for name in ("scores", "output"):
        speed, by_ncu = by_kernel[f"{name}.cu"]["TFLOP/s"], at_ncu(name)
        bound, wavefronts = bottlenecks.allowed_tflops(by_ncu), bottlenecks.wavefronts_per_fma(by_ncu)
        print(f"{name}.cu: {speed:.2f} TFLOP/s, {speed * 1e12 / peaks['fp32']:.0%} of the fp32 roof;", end=" ")
        print(f"{wavefronts:.2f} wavefronts per multiply-add allow {bound:.2f} TFLOP/s, it reaches {speed / bound:.0%}")


def show_against_torch(found: Measurement) -> float:
    """Draws time and memory beside PyTorch's kernels. Returns how many times as long as naive PyTorch the three kernels
    take."""
    names = ("naive_attention", "naive torch", "SDPA")
    plots.time_and_memory(found.rows, names, wide=names[:1])
    plt.show()
    table, rows = [], {(row["name"], row["length"]): row for row in found.rows}
    for length in sorted({row["length"] for row in found.rows}):
        times = {f"{name}, ms": rows[name, length]["median_ms"] for name in names}
        table.append({"L": length, **times} | {f"{name}, MB": rows[name, length]["peak_mb"] for name in names})
    show.table(table, measured.caption(found), folded=True)
    _, ms = longest(found)
    return ms["naive_attention"] / ms["naive torch"]
