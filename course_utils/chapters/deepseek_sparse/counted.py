"""Chapter 05's formulas: bytes of caches, FLOPs of a pair and of a token, and the figures behind common claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt

from course_utils import costs, measured, plots, show
from course_utils.operators import DeepSeekConfig

L = 128 * 1024
READY, ABSORBED = "multi-head, K and V ready", "absorbed"


def last_token() -> float:
    """Draws the GFLOP of the last token's attention to all of 128 K keys, to 2048 of them, and of everything else.
    Returns the first."""
    dense, few, rest = costs.mla_flops(1, L), costs.sparse_mla_flops(1, L), sum(costs.projection_flops(1).values())
    names = [f"attention to all {L:,} keys", f"attention to {costs.TOP_K} of them", "all projections of the layer"]
    plots.bars(
        names,
        {"GFLOP of one token": [x / 1e9 for x in (dense, few, rest)]},
        colours=(plots.GREY, plots.VERMILION, plots.BLUE),
    )
    plt.show()
    print(f"{dense / 1e9:.1f}, {few / 1e9:.2f} and {rest / 1e9:.2f} GFLOP")
    return dense / 1e9


def cache_rows() -> list[dict[str, Any]]:
    """Bytes of a token's keys and values in one layer, in bf16, by the kind of attention."""
    latents = costs.mla_cache_bytes(1)
    caches = {
        "multi-head, 128 heads of 128": costs.kv_cache_bytes(1, 128, 128),
        "grouped-query, 8 heads of 128": costs.kv_cache_bytes(1, 8, 128),
        "MLA, 512 + 64": latents,
        "MLA, and DSA's index keys in FP8": latents + costs.index_cache_bytes(1),
    }
    return [
        {
            "cache": name,
            "bytes per token and layer": size,
            "times MLA": size / latents,
            "61 layers, 128 K tokens: GB": 61 * L * size / 1e9,
        }
        for name, size in caches.items()
    ]


def caches() -> float:
    """Draws the cache of each kind of attention. Returns how many times smaller than multi-head attention's MLA's cache
    is."""
    rows = cache_rows()
    columns = ("bytes per token and layer", "61 layers, 128 K tokens: GB")
    colours = (plots.GREY, plots.GREY, plots.BLUE)
    plots.bars([row["cache"] for row in rows], {name: [row[name] for row in rows] for name in columns}, colours=colours)
    plt.show()
    show.table(rows, "bf16; DeepSeek-V3.2 has 61 layers", folded=True)
    return rows[0]["times MLA"]


def pair_rows() -> list[dict[str, Any]]:
    """FLOPs of a query and a key with all 128 heads, and the bytes that decoding reads for them, by the form of MLA."""
    flops = {READY: costs.mha_pair_flops(), ABSORBED: costs.mla_pair_flops()}
    flops["unpacking K and V for each pair"] = costs.reprojected_pair_flops()
    read = {READY: 2 * (192 + 128) * 128, ABSORBED: costs.mla_cache_bytes(1)}
    rows = []
    for name, count in flops.items():
        row = {"128 heads, one pair": name, "FLOP": count, "times absorbed": count / costs.mla_pair_flops()}
        row["bytes read per key, decoding"] = read.get(name, "-")
        row["FLOP per byte"] = costs.arithmetic_intensity(count, read[name]) if name in read else "-"
        rows.append(row)
    return rows


def pair_flops() -> float:
    """Draws `pair_rows`. Returns how many times the FLOPs of multi-head mode the absorbed form takes for a pair."""
    rows = pair_rows()
    columns = {"FLOP": "FLOP", "bytes read per key, decoding": "bytes per key", "FLOP per byte": "FLOP per byte"}
    panels = {title: [None if row[name] == "-" else row[name] for row in rows] for name, title in columns.items()}
    plots.bars(
        [row["128 heads, one pair"] for row in rows], panels, colours=(plots.PURPLE, plots.BLUE, plots.GREY), log=True
    )
    plt.show()
    print(f"absorbed: 2 · (576 + 512) · 128 = {2 * (576 + 512) * 128:,} FLOP")
    print(f"multi-head: 2 · (192 + 128) · 128 = {2 * (192 + 128) * 128:,} FLOP")
    print(f"unpacking, one head: 2 · 512 · (128 + 128) = {2 * 512 * (128 + 128):,} FLOP")
    record = measured.load("00_start_here")
    speeds = {row["name"]: row for row in record.rows}
    peak = 1e12 * speeds["bf16 matrix product, tensor cores"]["tflop_per_s"]
    ridge = costs.ridge_point(peak, 1e9 * speeds["device memory copy"]["gb_per_s"])
    print(f"a GPU that computes as fast as it reads: {ridge:.0f} FLOP per byte ({record.device})")
    show.table(rows, "logarithmic bars above", folded=True)
    return costs.mla_pair_flops() / costs.mha_pair_flops()


def index_pair() -> float:
    """How many times cheaper scoring a key is than attending to it."""
    indexer, attention = costs.indexer_pair_flops(), costs.mla_pair_flops()
    print(f"indexer: 2 · 128 · 64 = {indexer:,} FLOP per pair, attention: {attention:,}")
    return attention / indexer


def token_costs() -> float:
    """Draws the FLOPs of one token by the number of keys. Returns the number from which on the indexer takes more than
    the core."""
    lengths = [2**n for n in range(10, 18)]
    curves = {"dense MLA": costs.mla_flops, "indexer": costs.indexer_flops, "sparse core": costs.sparse_mla_flops}
    curves["DSA: indexer and core"] = costs.dsa_flops
    even, equal = costs.dsa_dense_crossover(), costs.indexer_core_crossover()
    marks = {f"DSA is cheaper from {even:,.0f} on": even, f"indexer = core at {equal:,.0f}": equal}
    plots.token_costs(lengths, {name: [flops(1, n) for n in lengths] for name, flops in curves.items()}, marks)
    plt.show()
    last = {name: flops(1, L) / 1e9 for name, flops in curves.items()}
    print("the last of 128 K tokens, GFLOP:", ", ".join(f"{name} {x:.2f}" for name, x in last.items()))
    dsa = last["DSA: indexer and core"]
    print(
        f"dense / DSA: {last['dense MLA'] / dsa:.1f}; share of the indexer: {last['indexer'] / dsa:.0%}; "
        f"the whole prompt: dense / DSA: {costs.mla_flops(L, L) / costs.dsa_flops(L, L):.1f}"
    )
    return equal


def multi_head(queries: int, length: int) -> float:
    """FLOPs of masked attention in multi-head mode for the last `queries` of `length` tokens, with K and V already
    unpacked."""
    return costs.attended_pairs(queries, length, is_causal=True) * costs.mha_pair_flops()


def cheaper_from(queries_of: Callable[[int], int], dense: Callable[[int, int], float]) -> int:
    """The first length from 4096 on at which DSA takes no more FLOPs than dense attention.

    queries_of: how many of the tokens are queries, by length; dense: FLOPs by queries and length.
    """
    return next(n for n in range(4096, 32768) if costs.dsa_flops(queries_of(n), n) <= dense(queries_of(n), n))


def where_dsa_is_cheaper() -> None:
    """Shows the length from which on DSA takes fewer FLOPs than multi-head mode, for the last token, the last 4096 and
    a whole prompt."""
    print(f"by FLOPs DSA is cheaper, for the last token, from {cheaper_from(lambda n: 1, multi_head):,} keys on")
    print(f"         for the last 4096 tokens, this table, from {cheaper_from(lambda n: 4096, multi_head):,}")
    print(
        f"         for a whole prompt, unpacking included, from {cheaper_from(lambda n: n, costs.mha_flops):,} tokens"
    )
    for length in (8192, 16384):
        pair = costs.mha_flops(length, length) / 1e12, costs.dsa_flops(length, length) / 1e12
        print(f"a prompt of {length:,}: multi-head {pair[0]:.2f}, DSA {pair[1]:.2f} TFLOP")


def nsa_rows() -> list[dict[str, Any]]:
    """Keys that one query of Native Sparse Attention attends to, by its three branches."""
    rows = []
    for length in (8192, 65536, 131072):
        branches = {"compressed": (length - 32) // 16 + 1, "selected": 16 * 64, "window": 512}
        total = sum(branches.values())
        rows.append({"L": length} | branches | {"keys in all": total, "fewer than L": f"{length / total:.1f} times"})
    return rows


def nsa_keys() -> None:
    """Shows the keys of one NSA query branch by branch, as bars and figures."""
    rows = nsa_rows()
    columns = ("compressed", "selected", "window")
    bars = {f"{row['L']:,} tokens": {name: row[name] for name in columns} for row in rows}
    plots.stacked_bars(bars, "keys that one query attends to", colours=(plots.SKY, plots.ORANGE, plots.GREEN))
    plt.show()
    show.table(rows, "NSA: keys that one query attends to", folded=True)


def sizes() -> None:
    """Shows the sizes of V3.2, and of the small layer on which the chapter runs its kernels."""
    large, small = DeepSeekConfig.v3_2(), DeepSeekConfig.small()
    names = ("dim", "n_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    names += ("index_n_heads", "index_head_dim", "index_topk")
    rows = [{"": name, "V3.2": getattr(large, name), "small": getattr(small, name)} for name in names]
    show.table(rows, "sizes of V3.2, and of the small layer here", folded=True)
    print(f"softmax scale of V3.2: {large.softmax_scale * 192**0.5:.2f} · 192^-1/2")


def claims() -> None:
    """Shows common claims about DSA and MLA, each beside the figure that settles it."""
    halfway, end = (costs.indexer_flops(1, length) / 1e6 for length in (65536, L))
    share = costs.indexer_flops(L, L) / costs.dsa_flops(L, L)
    latents = costs.mla_cache_bytes(1)
    ratio, gqa = costs.kv_cache_bytes(1, 128, 128) / latents, costs.kv_cache_bytes(1, 8, 128) / latents
    dense, few = (costs.attention_flops(1, 1, 32768, keys, 128) for keys in (32768, 512))
    more = costs.mla_pair_flops() / costs.mha_pair_flops()
    said = {
        "The indexer is O(1).": f"last token at 64 K: {halfway:,.0f} MFLOP, at 128 K: {end:,.0f}. It is O(L).",
        "So DSA is O(L · k), linear.": f"over 128 K tokens {share:.0%} of the FLOPs are the indexer's: O(L²), cheaply.",
        "k is 128 to 512.": f"k = {costs.TOP_K}, one for all layers and heads.",
        "MLA's cache is 2 · L · 512.": f"{latents // 2} numbers per token, and no factor 2.",
        "... which saves 4 to 8 times.": f"{ratio:.1f} times against multi-head, {gqa:.1f} against GQA with 8 heads.",
    }
    for claim, answer in said.items():
        quoted = f"'{claim}'"
        print(f"{quoted:32} {answer}")
    print(f"'32 K tokens: 1 G FLOP a head dense, 16 M with k = 512.'  Those are scores; FLOPs: {dense:.2e}, {few:.2e}.")
    answer = f"{more:.1f} times more per pair; it saves memory traffic, and unpacking."
    print(f"'Absorption saves FLOPs.'        {answer}")
