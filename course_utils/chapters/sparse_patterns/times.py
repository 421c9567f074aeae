"""Chapter 04's recordings: each as a picture, with its figures folded below."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt

from course_utils import costs, measured, patterns, plots, show
from course_utils.chapters.sparse_patterns.masks import short
from course_utils.measured import Measurement, Row
from course_utils.measured.sparse_patterns import (
    DENSE,
    FLEX_64,
    FLEX_128,
    FLEX_TUNED,
    HEAD_DIM,
    HEADS,
    SDPA_MASK,
    SDPA_NUMBERS,
)
from course_utils.operators import sparse_launch
from course_utils.studies import recall as recall_study

SHAPE = f"B = 1, H = {HEADS}, d = {HEAD_DIM}, fp16"
LONGEST = 131072
FLASH, CUDNN = DENSE
PLAIN = {"sparse_attention", FLEX_128, FLEX_64, FLEX_TUNED, *DENSE}  # all others are ways on a view
Rows = Mapping[str, Mapping[str, float]]


@functools.cache  # asked for each figure
def record() -> Measurement:
    """What was recorded for this chapter."""
    return measured.load("04_sparse_patterns")


def caption() -> str:
    """The shape of the launches, the device and the date."""
    return f"{SHAPE}, {measured.caption(record())}"


def kilo(length: int) -> str:
    """A length, a multiple of 1024, as "16 K tokens"."""
    return f"{length // 1024} K tokens"


def of_one(pattern: str, length: int, part: str = "peers") -> dict[str, Row]:
    """All rows of a pattern at a length, by name."""
    return {row["name"]: row for row in record().select(part=part, pattern=pattern, length=length)}


def best_other(pattern: str, length: int) -> dict[str, Any]:
    """The row of the fastest other way to the same output."""
    rows = [*of_one(pattern, length).values(), *of_one(pattern, length, "scaling").values()]
    others = [row for row in rows if row["name"] not in ("sparse_attention", *DENSE)]
    return min(others, key=lambda row: row["median_ms"], default={"name": "-", "median_ms": None})


def _ours_at(length: int) -> list[Row]:
    return record().select(part="peers", name="sparse_attention", length=length)


# ---- the first figures, and skipping


def first_figures() -> None:
    """Draws our kernels at 128 K tokens beside the best other way and causal dense attention."""
    rows, table = {}, []
    for row in _ours_at(LONGEST):
        best, found = best_other(row["pattern"], LONGEST), of_one(row["pattern"], LONGEST)
        name, ms = short(row["pattern"]), row["median_ms"]
        rows[name] = {"ours": ms, "the best other": best["median_ms"]}
        rows[name] |= {dense: found[dense]["median_ms"] for dense in DENSE}
        line = {"pattern, 128 K tokens": name, "ms": ms, "the best other": best["name"], "its ms": best["median_ms"]}
        line |= {"times it": best["median_ms"] / ms, "times FLASH": row["ratio_to_dense"]}
        table.append(line | {"times cuDNN": row["ratio_to_dense"] / found[CUDNN]["ratio_to_dense"]})
    plots.dots({"": rows}, "ms for 128 K tokens; left is faster")
    plt.show()
    show.table(table, f"speed of the kernels of this chapter; {caption()}", folded=True)


def show_skipping(skipping: Measurement) -> None:
    """Draws what masking and skipping take. skipping: the part "skip" of the bench, measured here or recorded."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    table = []
    for length in sorted({row["length"] for row in skipping.select(part="skip")}):
        found = {row["name"]: row["median_ms"] for row in skipping.select(part="skip", length=length)}
        panels[kilo(length)] = {name: {"": ms} for name, ms in found.items()}
        table.append({"L": length} | {f"{name}, ms": ms for name, ms in found.items()})
    plots.dots(panels, "ms", log=False)
    plt.show()
    show.table(table, f"sliding_window(1024); {SHAPE}, {measured.caption(skipping)}", folded=True)
    last = table[-1]
    gain = last["tiles only masked, ms"] / last["tiles skipped, ms"]
    print(f"L = {last['L']}: tiles skipped is {gain:.1f} times as fast as tiles only masked")
    for name in DENSE:
        row = record().select(part="peers", name=name, length=16384)[0]
        print(f"recorded at L = 16384: {name}, causal, {row['median_ms']:.1f} ms")


# ---- beside other ways to the same output


def _on_a_view(ms: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """The fastest way on a view, or "-", and its milliseconds under the picture's name for it. ms: milliseconds by
    name."""
    view = min(ms.keys() - PLAIN, key=ms.__getitem__, default="-")
    return view, {"on a view": ms[view]} if view in ms else {}


def _ways(pattern: str, length: int) -> tuple[dict[str, float], str]:
    """Milliseconds of ours, FlexAttention by default and tuned, the fastest way on a view and dense cuDNN; and the name
    of that view."""
    ms = {name: row["median_ms"] for name, row in of_one(pattern, length).items()}
    flex = min(ms[name] for name in (FLEX_128, FLEX_64))
    view, on_view = _on_a_view(ms)
    ways = {"ours": ms["sparse_attention"], "FlexAttention": flex, "FlexAttention, tuned": min(flex, ms[FLEX_TUNED])}
    return ways | on_view | {CUDNN: ms[CUDNN]}, view


def show_peers(*kinds: str) -> None:
    """Draws the recorded times of patterns of these kinds beside FlexAttention, dense kernels on a view, and dense
    attention."""
    panels: dict[str, Rows] = {}
    table = []
    for row in record().select(part="peers", name="sparse_attention"):
        pattern, length = row["pattern"], row["length"]
        if not pattern.startswith(kinds):
            continue
        ways, view = _ways(pattern, length)
        panels.setdefault(kilo(length), {})[short(pattern)] = ways
        line = {"pattern": short(pattern), "L": length, "ours, ms": ways["ours"], "Flex, ms": ways["FlexAttention"]}
        line |= {"tuned, ms": ways["FlexAttention, tuned"], "on a view": view, "view, ms": ways.get("on a view", "-")}
        line["times the best"] = best_other(pattern, length)["median_ms"] / row["median_ms"]
        dense = of_one(pattern, length)[CUDNN]["ratio_to_dense"]  # over dense FLASH, in one run with it, as ours
        table.append(line | {"times dense cuDNN": row["ratio_to_dense"] / dense})
    if not table:
        print("nothing is recorded of these yet")
        return
    if len(table) == len(panels):  # one pattern: a line for each length, in one panel
        name = table[0]["pattern"]
        panels = {name: {length: rows[name] for length, rows in panels.items()}}
    plots.dots(panels, "ms")
    plt.show()
    show.table(table, caption(), folded=True, decimals={"times the best": 2, "times dense cuDNN": 1})


def show_speeds() -> None:
    """Shows our speed as a multiple of the fastest other way's, by pattern, pass and length."""
    table = []
    for pattern in dict.fromkeys(row["pattern"] for row in _ours_at(LONGEST)):
        line = {"pattern": short(pattern), "fastest other, 128 K": best_other(pattern, LONGEST)["name"]}
        speeds: dict[str, dict[int, float]] = {"forward": {}, "backward": {}}
        for row in record().select(part="peers", name="sparse_attention", pattern=pattern):
            speeds["forward"][row["length"]] = best_other(pattern, row["length"])["median_ms"] / row["median_ms"]
        for row in record().select(part="backward", name="sparse_attention", pattern=pattern):
            speeds["backward"][row["length"]] = row["ratio_to_best"]
        for which, of_length in speeds.items():
            if of_length:
                lengths = " · ".join(str(length // 1024) for length in of_length)
                line[f"{which}, {lengths} K"] = " · ".join(f"{speed:.2f}" for speed in of_length.values())
        table.append(line)
    where = "without flash-attn-4; backward: beside the fastest other backward pass of this record"
    show.table(table, f"{where}; {caption()}")


def show_backward() -> None:
    """Shows the backward pass of each pattern at each length beside FlexAttention's, the fastest view's and dense
    ones."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    table = []
    ours = record().select(part="backward", name="sparse_attention")
    for row in ours:
        name, length = short(row["pattern"]), row["length"]
        ms = {other: found["median_ms"] for other, found in of_one(row["pattern"], length, "backward").items()}
        view, on_view = _on_a_view(ms)
        ways = {"ours": ms["sparse_attention"], "FlexAttention": ms[FLEX_128]} | on_view
        panels.setdefault(kilo(length), {})[name] = ways | {dense: ms[dense] for dense in DENSE}
        line = {"pattern": name, "L": length, "ours, ms": ways["ours"], "Flex, ms": ways["FlexAttention"]}
        line |= {"times Flex": row["ratio_to_flex"], "on a view": view, "view, ms": ways.get("on a view", "-")}
        table.append(line | {f"{dense}, ms": ms[dense] for dense in DENSE})
    plots.dots(panels, "ms")
    plt.show()
    show.table(table, f"backward pass alone; on a view: the fastest such way; {caption()}", folded=True)
    ratios = [row["ratio_to_flex"] for row in ours]
    found = f"{min(ratios):.2f} to {max(ratios):.2f} times Flex, geometric mean {statistics.geometric_mean(ratios):.2f}"
    print(f"how many times as fast ours is: {found}")


# ---- lists, and rows of keys


def show_csr() -> None:
    """Shows gathering by rows beside block lists and dense attention."""
    rows: dict[str, dict[str, float]] = {}
    table = []
    for label in dict.fromkeys(row["pattern"] for row in record().select(part="csr")):
        found = {row["name"]: row for row in record().select(part="csr", pattern=label)}
        rows[short(label)] = {name: row["median_ms"] for name, row in found.items()}
        line = {"pattern": short(label), "density": f"{found['csr_gather']['density']:.2%}"}
        line |= {f"{name}, ms": row["median_ms"] for name, row in found.items()}
        table.append(line | {"csr_gather, GB/s of K and V": round(found["csr_gather"]["gbytes_per_s"])})
    plots.dots({"": rows}, "ms")
    plt.show()
    length = record().select(part="csr")[0]["length"]
    show.table(table, f"L = {length}; dense FLASH is causal; {caption()}", folded=True)


# ---- by length


def show_scaling() -> None:
    """Draws time against length for every pattern, and for the fastest other way to each."""
    others = [row for row in record().select(part="peers") if row["name"] not in ("sparse_attention", *DENSE)]
    plots.scaling(record().select(part="scaling") + others)
    plt.show()
    print(caption())


def growth(pattern: str, shorter: int, longer: int) -> float:
    """How many times as long our kernel takes with a pattern at the `longer` of two recorded lengths."""
    times = record().select(part="scaling", name="sparse_attention", pattern=pattern)
    ms = {row["length"]: row["median_ms"] for row in times}
    return ms[longer] / ms[shorter]


def longest_table() -> None:
    """Shows every pattern at 128 K tokens, the fastest first."""
    table = []
    dense = {name: record().select(part="scaling", name=name, length=LONGEST)[0]["median_ms"] for name in DENSE}
    ours = record().select(part="scaling", name="sparse_attention", length=LONGEST)
    for row in sorted(ours, key=lambda row: row["median_ms"]):
        best, ms = best_other(row["pattern"], LONGEST), row["median_ms"]
        line = {"pattern": short(row["pattern"]), "kernel": row["kernel"], "density": f"{row['density']:.2%}"}
        line |= {"ms": ms, "the best other": best["name"], "its ms": best["median_ms"] or "-"}
        table.append(line | {"times FLASH": dense[FLASH] / ms, "times cuDNN": dense[CUDNN] / ms})
    timed = f"FLASH {dense[FLASH]:.0f} ms, cuDNN {dense[CUDNN]:.0f} ms"
    show.table(table, f"L = {LONGEST}, dense and causal, timed by itself: {timed}; {caption()}", folded=True)


def lengths(brief: Measurement) -> list[int]:
    """The lengths of the short sequences."""
    return sorted({row["length"] for row in brief.select(part="small")})


def show_short(brief: Measurement) -> int | str:
    """Draws two small patterns. Returns the length from which on sinks and a window take less GPU time than dense
    attention.

    brief: the part "small" of the bench, measured here or recorded.
    """
    times = brief.select(part="small")
    first, last = min(lengths(brief)), max(lengths(brief))
    plots.short_sequences(times)
    plt.show()
    print(f"H = {HEADS}, d = 64, {measured.caption(brief)}")
    wins = plots.first_wins(times, DENSE)
    named = [line | {"pattern": short(line["pattern"])} for line in wins]
    show.table(named, f"from which length on, of {first} to {last}", folded=True)
    flash = {row["length"]: row["median_ms"] for row in brief.select(pattern=wins[-1]["pattern"], name=FLASH)}
    longer = flash[last] / flash[first]
    print(f"{last // first} times the length takes dense FLASH {longer:.0f} times as long on the GPU")
    return wins[-1]["faster than dense from"]


def show_idle() -> None:
    """Shows how much of the GPU short sequences keep busy, and what their work would take at full speed."""
    of_gpu = {row["name"]: row for row in measured.load("00_start_here").rows}
    count = of_gpu["streaming multiprocessors"]["count"]
    blocks, table = {}, []
    for length in (128, 512, 1024, 4096):
        number = HEADS * costs.ceil_div(length, sparse_launch.RANGE_TILES[64][0].block_rows)
        blocks[f"L = {length:,}: {number} blocks"] = number
        line = {"L": length, "blocks of threads": number, "per multiprocessor": number / count}
        for name, pattern in (("dense", patterns.causal()), ("blocks of 16", patterns.block_diagonal(16))):
            flops = 4 * 64 * HEADS * pattern.pairs(length)
            line[f"{name}: GFLOP"] = flops / 1e9
            line[f"{name}: µs at full speed"] = flops / of_gpu["fp16 matrix product, tensor cores"]["tflop_per_s"] / 1e6
        table.append(line)
    plots.multiprocessors_at_work(blocks, count)
    plt.show()
    where = f"H = {HEADS}, d = 64; speeds: {measured.caption(measured.load('00_start_here'))}"
    show.table(table, f"and the time of the work; {where}", folded=True)


# ---- when it pays


def _even() -> list[Row]:
    rows = record().select(part="break_even")
    return [row | {"name": row["name"].replace(" 64, 4 warps", ", tuned")} for row in rows]


def show_break_even() -> None:
    """Draws how many times as fast as dense FLASH ours is, by length and density."""
    even = _even()
    names = [name for name in dict.fromkeys(row["name"] for row in even) if not name.startswith("dense")]
    plots.break_even([row for row in even if row["name"] in names], names)
    plt.show()
    print(caption())


def tree_sizes() -> list[int]:
    """The numbers of positions of the trees that were timed."""
    return sorted({row["tokens"] for row in record().select(part="tree")})


def show_trees() -> int | str:
    """Draws trees of guesses. Returns the largest one for which ours takes less GPU time behind 4096 tokens."""
    names = {"sparse_attention": "ours", SDPA_MASK: "SDPA", SDPA_NUMBERS: "SDPA"}
    names |= {FLEX_128: "Flex", FLEX_TUNED: "Flex"}
    table = plots.tree_times(record().select(part="tree"), names)
    shown = {"ours": "ours", "Flex": "FlexAttention", "SDPA": "SDPA with the mask"}
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for what, title in (("GPU", "the GPU's part"), ("call", "a whole call")):
        for line in table:
            row = f"{line['context']} + {line['tree']}" if line["context"] else f"{line['tree']} alone"
            found = {way: line[f"{name}, {what}"] for name, way in shown.items() if line[f"{name}, {what}"] != "-"}
            panels.setdefault(title, {})[row] = found
    plots.dots(panels, "µs")
    plt.show()
    show.table(table, f"microseconds; {caption()}", folded=True)
    won = {}
    for context, what in ((0, "GPU"), (0, "call"), (4096, "GPU"), (4096, "call")):
        lines = [line for line in table if line["context"] == context]
        won[context, what] = [line["tree"] for line in lines if line[f"ours, {what}"] < line[f"SDPA, {what}"]]
        trees = ", ".join(map(str, won[context, what])) or "none of these sizes"
        print(f"context {context:4}, {what:4}: ours is faster than SDPA for trees of {trees}")
    return max(won[4096, "GPU"], default="none")


def rates() -> dict[str, Any]:
    """Measured rates for the explorer's estimate: of visited tiles, and of memory."""
    wide = next(row for row in _ours_at(LONGEST) if row["pattern"] == "sliding_window(window=4096)")
    hbm = measured.load("00_start_here").select(name="device memory copy")[0]
    speeds = {"flops_per_second": 1e12 * wide["useful_tflop_per_s"], "bytes_per_second": 1e9 * hbm["gb_per_s"]}
    return speeds | {"heads": HEADS, "label": measured.caption(record())}


# ---- recall


def show_recall() -> None:
    """Draws the study of recall: right answers against keys per question."""
    study = measured.load("04_recall_study")
    plots.recall(study.rows, 100 / recall_study.VALUES)
    plt.show()
    table = []
    for row in study.rows:
        line = {"pattern": row["name"], "layers": row["layers"], "keys per question": row["keys_per_question"]}
        line |= {"facts seen": f"{row['visible_facts']:.0%}", "facts in reach": f"{row['reachable_facts']:.0%}"}
        line |= {"one layer can": f"{row['expected_accuracy']:.0%}", "right": f"{row['accuracy']:.0%}"}
        table.append(line)
    show.table(table, f"associative recall; trained on the CPU: {measured.caption(study)}", folded=True)
