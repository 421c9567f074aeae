"""Chapter 05's recorded GPU figures, ours beside other libraries', as pictures with their tables."""

from __future__ import annotations

import functools
from typing import Any

import matplotlib.pyplot as plt
import torch

from course_utils import costs, measured, plots, show
from course_utils.chapters.deepseek_sparse.counted import multi_head
from course_utils.measured import Measurement, Row
from course_utils.measured.deepseek_sparse import (
    BACKWARD,
    CORE,
    CORE_PORTABLE,
    DENSE,
    DENSE_LAYER,
    DENSE_MHA,
    DENSE_MHA_CUDNN,
    INDEX_VECTORS,
    INDEXER,
    INDEXER_FP8,
    LENGTHS,
    QUERIES,
    SPARSE_LAYER,
    STEP,
    STEP_BF16,
    TOPK,
    TOPK_TILELANG,
    TOPK_TORCH,
    TOPK_UNSORTED,
    UNPACKING,
)

CHAPTER = "05_deepseek_sparse"
PARTS = {
    INDEXER_FP8: "indexer",
    TOPK: "top-k",
    CORE: "core",
    STEP: "DSA",
    DENSE: "dense",
}
PARTS_MHA = {
    STEP: "DSA",
    DENSE_MHA: "SDPA, masked",
    DENSE_MHA_CUDNN: "cuDNN, merged",
    UNPACKING: "unpacking",
}


@functools.cache  # asked for each figure
def record() -> Measurement:
    """The recording of the chapter."""
    return measured.load(CHAPTER)


def gains() -> None:
    """Draws how many times as fast as dense attention the three kernels are, by length: dense as absorbed MLA, and as
    prefill."""
    table = []
    for row in record().select(part="step", name=STEP):
        others = {other["name"]: other for other in record().select(part="step", length=row["length"])}
        line = {"L": row["length"], "dense MLA, ms": others[DENSE]["median_ms"], "DSA, ms": row["median_ms"]}
        table.append(
            line | {"times dense MLA": row["ratio_to_dense"], "times PyTorch's dense prefill": row["ratio_to_mha"]}
        )
    lines = {name: {line["L"]: line[name] for line in table} for name in list(table[0])[3:]}
    plots.by_length(lines, "times as fast", level=(1, "as fast as dense"))
    plt.show()
    where = f"the last {row['queries']} of L tokens, one layer of V3.2's size; {measured.caption(record())}"
    show.table(table, where, folded=True)


def _rates(part: str, columns: dict[str, str], shape: tuple[str, ...]) -> None:
    """Draws TFLOP/s of the kernels of one part, a group of bars for each shape, and shows a table of `columns` by
    title."""
    rows = record().select(part=part)
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        sizes = ", ".join(
            f"{column} {row[key]:,}" for column, key in zip(("keys", *shape), ("length", *shape), strict=True)
        )
        groups.setdefault(sizes.replace("head_dim", "d"), {})[row["name"]] = row["tflop_per_s"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    plots.grouped_bars(groups, "TFLOP/s", colours=plots.kernel_colours(names))
    plt.show()
    table = []
    for row in rows:
        line = {"": row["name"], "queries": row["queries"], "keys": row["length"]}
        table.append(line | {title: row.get(column, "-") for column, title in columns.items()})
    show.table(table, measured.caption(record()), folded=True)


def indexer() -> None:
    """Shows the lightning indexer beside PyTorch and TileLang."""
    columns = {"heads": "heads", "head_dim": "d", "median_ms": "ms", "tflop_per_s": "TFLOP/s"}
    _rates("indexer", columns | {"ratio_to_torch": "times torch"}, ("heads", "head_dim"))


def core() -> None:
    """Shows the sparse core beside PyTorch and TileLang."""
    columns = {"heads": "heads", "k": "k", "median_ms": "ms", "tflop_per_s": "TFLOP/s"}
    _rates("core", columns | {"ratio_to_torch": "times torch"}, ("k",))


def backward() -> None:
    """Shows the core's backward pass beside its forward pass and TileLang's backward pass."""
    columns = {"heads": "heads", "k": "k", "median_ms": "ms", "gflop": "GFLOP", "tflop_per_s": "TFLOP/s"}
    _rates("backward", columns, ("k",))
    names = (BACKWARD, CORE_PORTABLE)
    ours, forward = (record().select(part="backward", name=name, length=8192)[0] for name in names)
    print(
        f"backward / forward: {ours['gflop'] / forward['gflop']:.2f} times the FLOPs, "
        f"{ours['median_ms'] / forward['median_ms']:.1f} times the time"
    )


def peers() -> None:
    """Shows our kernels beside the fastest of torch's and TileLang's for the same work."""
    cases: dict[str, tuple[str, Row]] = {
        "indexer, 64 heads of 128": (INDEXER_FP8, {"part": "indexer", "heads": 64}),
        "indexer, 32 heads of 64": (INDEXER, {"part": "indexer", "heads": 32}),
        "top-k, 32 K normal scores": (TOPK, {"part": "topk", "queries": 4096, "length": 32768, "scores": "normal"}),
        "core, 2048 of 8 K keys": (CORE, {"part": "core", "length": 8192, "k": 2048}),
        "core, 512 of 8 K keys": (CORE, {"part": "core", "length": 8192, "k": 512}),
        "core, 2048 of 4 K keys": (CORE, {"part": "core", "length": 4096, "k": 2048}),
        "core, backward, 4 K keys": (BACKWARD, {"part": "backward", "length": 4096}),
    }
    table = []
    for work, (name, where) in cases.items():
        rows = {row["name"]: row["median_ms"] for row in record().select(**where)}
        others = {other: ms for other, ms in rows.items() if other.startswith(("torch", "TileLang"))}
        best = min((other for other in others if "products alone" not in other), key=others.__getitem__)
        line = {"4,096 queries": work, "our ms": rows[name], "fastest other": best, "its ms": others[best]}
        table.append(line | {"its time / our time": others[best] / rows[name]})
    show.table(table, f"{measured.caption(record())}, TileLang {record().versions.get('tilelang', 'none')}")


def topk() -> None:
    """Shows top-k beside `torch.topk` and TileLang's, by the length and the content of the rows."""
    table = []
    for row in record().select(part="topk", name=TOPK):
        where = {"queries": row["queries"], "length": row["length"], "scores": row["scores"]}
        line = {"queries": row["queries"], "keys": row["length"], "scores": row["scores"], "ours, ms": row["median_ms"]}
        for name in (TOPK_TORCH, TOPK_UNSORTED):
            line |= {f"{name}, ms": other["median_ms"] for other in record().select(part="topk", name=name, **where)}
        of_tilelang = record().select(part="topk", name=TOPK_TILELANG, **where)
        line["TileLang, ms"] = of_tilelang[0]["median_ms"] if of_tilelang else "-"
        table.append(line | {"times torch": row["ratio_to_torch"]})
    largest = [line for line in table if line["queries"] > 64 and line["scores"] != "causal"]
    groups = {
        f"{line['scores']}\n{line['queries']:,} × {line['keys'] // 1024} K": {
            name.removesuffix(", ms"): None if line[name] == "-" else line[name] for name in line if name.endswith("ms")
        }
        for line in largest
    }
    names = list(next(iter(groups.values())))
    plots.grouped_bars(groups, "ms", colours=plots.kernel_colours(names))
    plt.show()
    show.table(table, f"the {row['k']:,} greatest; {measured.caption(record())}", folded=True)


def quality() -> None:
    """Shows sparse beside dense attention with V3.2's sizes and random weights, as recorded on a GPU."""
    table = []
    for row in record().select(part="quality"):
        line = {"tokens": row["length"], "k": row["k"], "largest difference": row["max_difference"]}
        table.append(line | {"largest output": row["largest"], "1 - cosine": f"{row['cosine_difference']:.1e}"})
        print(f"{row['length']:,} tokens, k = {row['k']:,}: 1 - cosine = {row['cosine_difference']:.1e}")
    show.table(table, f"sparse against dense, random weights; {measured.caption(record())}", folded=True)


# ---- the three kernels together, on this GPU or recorded


def measure() -> Measurement:
    """The step of DSA by length, measured here if this is a GPU with enough memory, otherwise recorded."""
    room = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0  # 37 GB at 128 K, mostly K and V
    live = [n for n in LENGTHS if n == LENGTHS[0] or 2.8e5 * n < room]

    def step() -> list[Row]:
        from course_utils.bench import deepseek_sparse

        return deepseek_sparse.step(lengths=live)

    return measured.live_or_recorded(CHAPTER, step)


def _by_length(taken: Measurement) -> dict[int, dict[str, dict[str, Any]]]:
    """The rows of the step, by length and name."""
    lengths = sorted({row["length"] for row in taken.select(part="step")})
    return {length: {row["name"]: row for row in taken.select(part="step", length=length)} for length in lengths}


def _dsa(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return next(found[name] for name in (STEP, STEP_BF16) if name in found)


def _milliseconds(found: dict[str, dict[str, Any]], parts: dict[str, str]) -> dict[str, float]:
    return {f"{short}, ms": found[name]["median_ms"] for name, short in parts.items() if name in found}


def _draw_times(table: list[dict[str, Any]], colours: tuple[str, ...]) -> None:
    columns = [name for name in table[0] if name.endswith(", ms")]
    lines = {name.removesuffix(", ms"): {line["L"]: line[name] for line in table} for name in columns}
    plots.by_length(lines, "ms", colours=colours)
    plt.show()


def gain_over_dense(taken: Measurement) -> float:
    """Shows DSA beside dense MLA by length. Returns how many times as fast DSA is at the greatest length."""
    table = []
    for length, found in _by_length(taken).items():
        dsa = _dsa(found)
        by_flops = costs.mla_flops(dsa["queries"], length) / costs.dsa_flops(dsa["queries"], length)
        line = {"L": length} | _milliseconds(found, PARTS)
        table.append(line | {"dense / DSA": dsa["ratio_to_dense"], "by FLOPs": by_flops})
    _draw_times(table, (plots.ORANGE, plots.YELLOW, plots.BLUE, plots.VERMILION, plots.GREY))
    where = f"the last {dsa['queries']} of L tokens, one layer, without projections; {measured.caption(taken)}"
    show.table(table, where, folded=True)
    return table[-1]["dense / DSA"]


def speeds_of_parts(taken: Measurement) -> None:
    """Shows the time of each part by length, TFLOP/s at the greatest length, and the length at which indexer and core
    take equally long."""
    length, found = list(_by_length(taken).items())[-1]
    names = {name: PARTS[name] for name in (INDEXER_FP8, TOPK, CORE) if name in found}
    shares = {
        f"{n // 1024} K keys": {short: of[name]["median_ms"] for name, short in names.items()}
        for n, of in _by_length(taken).items()
    }
    plots.stacked_bars(shares, "ms", colours=(plots.ORANGE, plots.YELLOW, plots.BLUE)[-len(names) :])
    plt.show()
    speed = {PARTS[name]: row["tflop_per_s"] for name, row in found.items() if name in PARTS and "tflop_per_s" in row}
    print(f"TFLOP/s at L = {length:,}:", "; ".join(f"{name} {value:.0f}" for name, value in speed.items()))
    if "indexer" in speed:  # in FP8
        even = costs.indexer_core_crossover(index_speed=speed["indexer"] / speed["core"])
        print(f"with these speeds the indexer takes as long as the core at {even:,.0f} keys")
    near = min(_by_length(taken), key=lambda n: abs(n - costs.indexer_core_crossover()))
    of = {row["name"]: row["median_ms"] for row in taken.select(part="step", length=near)}
    print(f"in bf16 at {near:,} keys: indexer {of[INDEXER]:.2f} ms, core {of[CORE]:.2f} ms")


def lengths_of(taken: Measurement) -> list[int]:
    """The lengths that were timed."""
    return list(_by_length(taken))


def faster_than_multi_head_from(taken: Measurement) -> int | str:
    """The length from which on DSA is faster than dense attention in multi-head mode, or "never"."""
    table = []
    for length, found in _by_length(taken).items():
        line = {"L": length} | _milliseconds(found, PARTS_MHA)
        line["the faster / DSA"] = _dsa(found)["ratio_to_mha"]
        table.append(line | {"by FLOPs": multi_head(QUERIES, length) / costs.dsa_flops(QUERIES, length)})
    _draw_times(table, (plots.VERMILION, plots.GREY, plots.PURPLE, plots.GREEN))
    rates = (f"{short} {found[name]['tflop_per_s']:.0f}" for name, short in PARTS_MHA.items() if name in found)
    print(f"TFLOP/s at L = {length:,}:", "; ".join(rates))
    where = f"DSA and dense attention in multi-head mode, K and V ready; {measured.caption(taken)}"
    show.table(table, where, folded=True)
    return next((line["L"] for line in table if line["the faster / DSA"] > 1), "never")


def layers() -> None:
    """Shows time and FLOPs of a whole layer from hidden states, absorbed and sparse."""
    table = []
    for row in record().select(part="layer", name=SPARSE_LAYER):
        others = {other["name"]: other for other in record().select(part="layer", length=row["length"])}
        line = {"tokens": row["length"], "absorbed layer, ms": others[DENSE_LAYER]["median_ms"]}
        line |= {"sparse layer, ms": row["median_ms"], "times as fast": row["ratio_to_dense"]}
        line["by FLOPs"] = others[DENSE_LAYER]["gflop"] / row["gflop"]
        if INDEX_VECTORS in others:
            line["index queries and keys, ms"] = others[INDEX_VECTORS]["median_ms"]
        table.append(line)
    columns = ("absorbed layer, ms", "sparse layer, ms", "times as fast", "by FLOPs")
    panels = {name: [line[name] for line in table] for name in columns}
    plots.bars([f"{line['tokens']:,} tokens" for line in table], panels)
    plt.show()
    where = f"a whole layer from hidden states, all tokens, projections included; {measured.caption(record())}"
    show.table(table, where, folded=True)
