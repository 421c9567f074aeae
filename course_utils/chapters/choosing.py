"""Chapter 08's cells: memory and floors by the planner, recorded times, and quality, each as a picture first."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch

from course_utils import measured, patterns, planner, plots, reference, show
from course_utils.measured import Measurement, Row
from course_utils.operators import flash_attention_v2, sparse_attention
from course_utils.planner import amount, devices, duration
from course_utils.studies import maps as attention_maps
from course_utils.studies import recall as recall_study
from course_utils.toolchain.source import read_kernel, required_architecture

LENGTHS = [2**n for n in range(12, 18)]
L = 128 * 1024
H200 = devices.DEVICES["H200"]
HEADS = tuple(attention_maps.HEADS)
THREE = {"dense": plots.GREY, "flash": plots.PURPLE, "sparse": plots.BLUE}
KERNELS = {
    "flash_attention_minimal, fp32": "02_flash_attention_minimal/forward.cu",
    "flash_attention_v2": "03_flash_attention_v2/forward.cu",
    "flash_attention_hopper": "07_hopper/forward.cu",
    "sparse_attention": "04_sparse_patterns/range.cu",
    "sparse MLA": "05_deepseek_sparse/sparse_mla.cu",
    "its Hopper kernel": "05_deepseek_sparse/sparse_mla_hopper.cu",
}


# ---- by the planner


def memory_rows() -> list[dict[str, Any]]:
    """Memory of one layer by length, dense and flash, on an H200."""
    rows = []
    for length in LENGTHS:
        methods = planner.plan(length, device="H200").methods
        dense, flash = methods["dense"], methods["flash"]
        row = {"L": length, "S": amount(dense.parts[4].bytes), "dense, all": amount(dense.memory_bytes)}
        rows.append(row | {"flash, all": amount(flash.memory_bytes), "dense fits": dense.fits})
    return rows


def where_dense_ends() -> int:
    """Draws the memory of dense and flash attention by length. Returns the first length at which dense attention does
    not fit on an H200."""
    methods = {length: planner.plan(length, device="H200").methods for length in LENGTHS}
    lines = {name: {n: of[name].memory_bytes / 1e9 for n, of in methods.items()} for name in ("dense", "flash")}
    level = H200.memory_bytes / 1e9, "memory of an H200"
    plots.by_length(lines, "GB", level=level, colours=(plots.GREY, plots.PURPLE))
    plt.show()
    show.table(memory_rows(), "memory of one layer: batch 1, 16 heads, d = 128, fp16, causal", folded=True)
    return next(length for length, of in methods.items() if not of["dense"].fits)


def check_three() -> None:
    """Checks dense and flash attention against float64, and sparse attention against attention under its mask."""
    from course_utils.bench.choosing import written_out

    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    query, key, value = torch.randn(3, 1, 2, 200, 64, generator=generator).half().to(device)
    window = patterns.sliding_window(48)
    outputs = {
        "dense": (written_out(query, key, value), patterns.causal()),
        "flash": (flash_attention_v2(query, key, value, is_causal=True), patterns.causal()),
        "sparse": (sparse_attention(query, key, value, window), window),
    }
    for name, (out, pattern) in outputs.items():
        expected = reference.attention(query, key, value, attn_mask=pattern.mask(200, device=query.device))
        assert (out - expected).abs().max().item() < 2e-3
        print(f"{name:>6}: right")


def ceilings() -> None:
    """Shows the measured rates of an H200 beside its datasheet."""
    rates = devices.measured_ceilings()
    papers = {name: H200.bandwidth if "copy" in name else H200.half_flops for name in rates}
    panels = {"% of the datasheet's rate": [round(100 * rate / papers[name]) for name, rate in rates.items()]}
    plots.bars(list(rates), panels)
    plt.show()
    for name, rate in rates.items():
        paper = papers[name]
        print(f"{name:34} datasheet {paper / 1e12:7.1f}, measured {rate / 1e12:6.1f} T/s, {rate / paper:.0%}")
    print(measured.caption(measured.load("00_start_here")))


def floor_rows() -> list[dict[str, Any]]:
    """FLOPs, bytes, the least time and the memory of each method for 128 K tokens."""
    rows = []
    for method in planner.plan(L, device="H200").methods.values():
        row = {"": method.title, "FLOP": f"{method.flops:.3g}", "must move": amount(method.least_bytes)}
        row |= {"at least": duration(method.seconds), "floor of": method.bound, "memory": amount(method.memory_bytes)}
        rows.append(row | {"runs out at": method.breaking_part.name if method.breaking_part else "-"})
    return rows


def floors() -> float:
    """Draws floors and memory of all methods for 128 K tokens. Returns how many times as long as the window's floor the
    floor of flash attention is."""
    methods = planner.plan(L, device="H200").methods
    panels = {"floor, ms": [1e3 * method.seconds for method in methods.values()]}
    panels["memory, GB"] = [method.memory_bytes / 1e9 for method in methods.values()]
    colours = (*THREE.values(), plots.ORANGE)
    plots.bars([method.title for method in methods.values()], panels, colours=colours, log=True)
    plt.show()
    where = "one layer, 128 K tokens, batch 1, on an H200 by its datasheet; logarithmic above"
    show.table(floor_rows(), where, folded=True)
    return methods["flash"].seconds / methods["sparse"].seconds


def largest_of_dsa() -> None:
    """Prints the three largest tensors of DSA for 128 K tokens."""
    parts = planner.plan(L, device="H200").methods["dsa"].parts
    for part in sorted(parts, key=lambda part: -part.bytes)[:3]:
        print(f"{part.name:28} {amount(part.bytes):>8}")


# ---- measured


def measure() -> Measurement:
    """The times of the contestants by length and of torch's kernels by case, measured on this GPU or recorded."""

    def measure() -> list[Row]:
        from course_utils.bench.choosing import choosing_chapter

        return choosing_chapter()

    return measured.live_or_recorded("08_choosing", measure)


def lengths_of(record: Measurement) -> list[int]:
    """The lengths that were timed."""
    return sorted({row["length"] for row in record.select(part="choices")})


def where_a_window_pays(record: Measurement) -> int | str:
    """Draws the times of exact attention and of a window of 4096, each by its fastest kernel. Returns the length from
    which on the window is more than twice as fast, or "never"."""
    rows = record.select(part="choices")
    table: list[dict[str, Any]] = []
    best: dict[str, dict[int, float]] = {"exact": {}, "window": {}}
    for name in dict.fromkeys(row["name"] for row in rows):
        of_name = record.select(part="choices", name=name)
        table.append({"L": name} | {f"{row['length']:,}": row["median_ms"] or row["why_not"] for row in of_name})
        if not name.startswith("streaming"):
            fastest = best["window" if "window of" in name else "exact"]
            for row in of_name:
                before = fastest.get(row["length"], float("inf"))
                fastest[row["length"]] = min(row["median_ms"] or float("inf"), before)
    lines = {"exact, the fastest": best["exact"], "a window of 4096, the fastest": best["window"]}
    plots.by_length(lines, "ms", colours=(plots.PURPLE, plots.BLUE))
    plt.show()
    where = f"milliseconds, medians; 16 heads, d = 128, fp16, causal; {measured.caption(record)}"
    show.table(table, where, folded=True)
    return min((n for n, ms in best["exact"].items() if ms > 2 * best["window"][n]), default="never")


def three_choices(record: Measurement) -> None:
    """Draws time and memory of all contestants by length."""
    capacity = (devices.this_device() or H200).memory_bytes
    plots.three_choices(record.select(part="choices"), capacity)
    plt.show()


def times_the_floor(record: Measurement) -> None:
    """Draws how many times its floor each contestant takes, and compares planned with measured memory."""
    contestants = {"dense, written out": "dense", "torch FLASH": "flash", "torch cuDNN": "flash"}
    windows = ("sliding window of 4096", "window of 4096, FLASH", "window of 4096, Flex")
    contestants |= dict.fromkeys(windows, "sparse")
    contestants = {name: method for name, method in contestants.items() if record.select(name=name)}
    table: list[dict[str, Any]] = []
    lines: dict[str, dict[int, float]] = {}
    for length in (2048, 8192, 32768, 131072):
        plan = planner.plan(length, device=devices.this_device() or "H200")
        for name, method in contestants.items():
            row, planned = record.select(name=name, length=length)[0], plan.methods[method]
            extra = sum(part.bytes for part in planned.parts if part.name not in "QKV")
            line = {"L": length, "": name, "floor": duration(planned.seconds), "memory planned": amount(extra)}
            if row["median_ms"] is None:
                line |= {"measured": "-", "times the floor": "-", "memory": row["why_not"]}
            else:
                seconds = row["median_ms"] / 1e3
                lines.setdefault(name, {})[length] = seconds / planned.seconds
                line |= {"measured": duration(seconds), "times the floor": f"{seconds / planned.seconds:.1f}"}
                line["memory"] = amount(row["peak_extra_bytes"])
            table.append(line)
    colours = (plots.GREY, plots.PURPLE, plots.YELLOW, plots.VERMILION, plots.SKY, plots.GREEN)
    plots.by_length(lines, "times the floor", level=(1, "the floor"), colours=colours)
    plt.show()
    where = f"memory beyond Q, K and V; floors by the datasheet; {measured.caption(record)}"
    show.table(table, where, folded=True)


def _taken(row: Row) -> object:
    """The milliseconds of a kernel for a case if they were recorded, else whether the kernel runs."""
    if not row["runs"]:
        return "no"
    return "wrong" if row.get("right") is False else row.get("median_ms") or "yes"


def backends(record: Measurement) -> str:
    """Shows which of torch's kernels takes which inputs, in how many milliseconds, and which one torch chooses. Returns
    which of the two ways to pass a causal mask FLASH takes: "both", "is_causal alone", "attn_mask alone" or
    "neither"."""
    table, groups = [], {}
    for case in dict.fromkeys(row["case"] for row in record.select(part="backends")):
        of_case = {row["backend"]: row for row in record.select(case=case)}
        line = {"case": case, "chosen": next(name for name, row in of_case.items() if row["chosen"])}
        found = {name.partition("_")[0].lower(): _taken(row) for name, row in of_case.items()}
        why_not = of_case["FLASH_ATTENTION"]["why_not"] or "it runs"
        table.append(line | found | {"why not FLASH": why_not.partition(" Got ")[0]})
        groups[case.replace(", ", ",\n").replace(" as ", "\nas ")] = {
            name: value if isinstance(value, float) else None for name, value in found.items()
        }
    if any(value for bars in groups.values() for value in bars.values()):
        plots.grouped_bars(groups, "ms", colours=(plots.PURPLE, plots.YELLOW, plots.BLUE, plots.GREY), log=True)
        plt.show()
    where = f"which of torch's kernels takes what, and its milliseconds; {measured.caption(record)}"
    show.table(table, where)
    ways = zip(("is_causal alone", "attn_mask alone"), table[:2], strict=True)
    taken = [way for way, row in ways if row["flash"] != "no"]
    return "both" if len(taken) == 2 else taken[0] if taken else "neither"


def who_runs_where() -> dict[str, dict[str, bool]]:
    """Whether each kernel of the course runs on each GPU of the planner's list."""
    found = {}
    for name, file in KERNELS.items():
        needed = required_architecture(read_kernel(file))
        numbers = {gpu: 10 * at.capability[0] + at.capability[1] for gpu, at in devices.DEVICES.items()}
        found[name] = {
            gpu: number == needed.number if needed.exact else number >= needed.number for gpu, number in numbers.items()
        }
    return found


def kernels_by_gpu() -> None:
    """Draws `who_runs_where` as a grid."""
    plots.answers(who_runs_where(), {True: "yes", False: "no"})
    plt.show()


def training() -> None:
    """Draws the times of backward passes at 16 K tokens: ours, the fastest other one with the same gradients, and dense
    ones."""
    backward = measured.load("04_sparse_patterns")
    table, groups = [], {}
    for row in backward.select(part="backward", name="sparse_attention", length=16384):
        others = backward.select(part="backward", pattern=row["pattern"], length=16384)
        same = [other for other in others if other is not row and not other["dense_mask"]]
        best, line = min(same, key=lambda other: other["median_ms"]), {"pattern": row["pattern"].partition("(")[0]}
        line |= {"ours, ms": row["median_ms"], "the best other": best["name"], "its ms": best["median_ms"]}
        dense = {other["name"]: other["median_ms"] for other in others if other["dense_mask"]}
        table.append(line | dense)
        groups[line["pattern"]] = {"ours": row["median_ms"], "the best other": best["median_ms"]} | dense
    plots.dots({"": groups}, "ms of the backward pass")
    plt.show()
    show.table(table, f"16 heads, d = 128, fp16; dense: causal; {measured.caption(backward)}", folded=True)


# ---- quality


def kept_by_head() -> dict[str, dict[str, float]]:
    """Percent of the attention mass that three patterns keep in each of six made-up heads, over 512 tokens."""
    maps = torch.stack([attention_maps.attention_maps(512, seed) for seed in range(4)]).mean(0)
    designs = {
        "window 64": patterns.sliding_window(64),
        "4 sinks + window 60": patterns.streaming(4, 60),
        "window 256": patterns.sliding_window(256),
    }
    found: dict[str, dict[str, float]] = {head: {} for head in HEADS}
    for name, pattern in designs.items():
        shares = attention_maps.kept_mass(maps, pattern.mask(512))
        for head, share in zip(HEADS, shares, strict=True):
            found[head][name] = round(100 * float(share))
    return found


def kept_mass() -> str:
    """Draws `kept_by_head`. Returns the head that loses most under a window of an eighth of the text."""
    found = kept_by_head()
    plots.grouped_bars(found, "% of the attention kept", colours=(plots.BLUE, plots.ORANGE, plots.SKY))
    plt.show()
    rows = [{"head": head} | {name: f"{share}%" for name, share in shares.items()} for head, shares in found.items()]
    show.table(rows, "share of the attention that the pattern keeps, by head; 512 tokens", folded=True)
    return min(found, key=lambda head: found[head]["window 64"])


def recall_rows() -> list[dict[str, Any]]:
    """Small models trained under patterns: keys per question, percent of the facts in sight, percent of right
    answers."""
    names = {"dense", "window 48", "window 32", "window 16", "4 sinks, window 16", "the 4 highest scores"}
    return [
        {
            "pattern": row["name"],
            "keys per question": round(row["keys_per_question"], 1),
            "facts in sight": round(100 * row["visible_facts"]),
            "accuracy": round(100 * row["accuracy"]),
        }
        for row in measured.load(recall_study.NAME).rows
        if row["layers"] == 1 and row["name"] in names
    ]


def recall() -> None:
    """Draws how many answers of the small models are right beside how many facts they see."""
    rows = recall_rows()
    groups = {
        f"{row['pattern']}\n{row['keys per question']:g} keys".replace(", ", ",\n"): {
            "% of the facts in sight": row["facts in sight"],
            "% of the answers right": row["accuracy"],
        }
        for row in rows
    }
    plots.grouped_bars(groups, "%", colours=(plots.SKY, plots.BLUE))
    plt.show()
    study = measured.load(recall_study.NAME)
    where = f"one layer, trained on the CPU, {study.date}; guessing is right in {1 / recall_study.VALUES:.0%}"
    show.table(rows, where, folded=True)


def first_advice(length: int, target_ms: float) -> None:
    """Prints the planner's first advice for an H200."""
    step, *_ = planner.advice(planner.plan(length, device="H200"), target_ms=target_ms)
    print(step.step, step.effect, sep="\n")
