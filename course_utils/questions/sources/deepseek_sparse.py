"""Questions of chapter 05: the latent cache, the indexer, top-k, the sparse core, and what all of it costs."""

from __future__ import annotations

from random import Random

import torch

from course_utils import costs, measured, reference
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    TradeOff,
    TrueFalse,
    Votes,
    shuffled,
)

SIZES = costs.V3_2
E4M3_MAX = torch.finfo(torch.float8_e4m3fn).max


# ---------------------------------------------------------------------------------------------- 2 latent attention


def three_caches(draw: Random) -> Grid:
    """Three caches"""
    length, groups = draw.choice([16384, 32768, 65536, 131072]), draw.choice([2, 4, 16])
    heads, width, layers = draw.choice([32, 64, 96]), SIZES.qk_nope_head_dim, draw.choice([32, 48])
    latent, rope = draw.choice([256, 384, 768]), draw.choice([32, 64])  # other ones than the chapter's
    row = latent + rope

    def line(per_token: int, how: str, *wrong: tuple[int, str]) -> tuple[Figure, Figure]:
        return (
            Figure(per_token, "bytes", f"{how} = {per_token:,}.", mistakes=tuple(Mistake(*one) for one in wrong)),
            Figure(
                layers * length * per_token / 1e9,
                "GB",
                f"{per_token:,} · {length:,} tokens · {layers} layers.",
                tolerance=0.02,
                mistakes=(Mistake(length * per_token / 1e9, f"That is one layer of {layers}."),),
            ),
        )

    return Grid(
        f"Caches of three models in bf16, keys and values of heads with {width} numbers each, or MLA with other sizes: "
        f"bytes for a token in one layer, and GB (10⁹ bytes) for one sequence of {length:,} tokens in {layers} layers.",
        (
            f"multi-head, {heads} heads",
            f"grouped-query, {groups} key heads for {heads} query heads",
            f"MLA, a latent of {latent} and a RoPE key of {rope}",
        ),
        ("one token, one layer", f"{length:,} tokens, {layers} layers"),
        (
            line(
                costs.kv_cache_bytes(1, heads, width),
                f"2 · {heads} · {width} numbers of 2 bytes",
                (heads * width * 2, "That is K alone, without V."),
            ),
            line(
                costs.kv_cache_bytes(1, groups, width),
                f"2 · {groups} · {width} numbers of 2 bytes",
                (groups * width * 2, "That is K alone, without V."),
                (
                    costs.kv_cache_bytes(1, heads, width),
                    f"That is {heads} heads. Only {groups} have keys and values.",
                ),
            ),
            line(
                costs.mla_cache_bytes(1, latent_dim=latent, rope_dim=rope),
                f"{latent} numbers of the latent, {rope} of the RoPE key, 2 bytes each: 2 · {row}",
                (2 * 2 * latent, "V comes from the same latent: no factor 2. The RoPE key is missing."),
                (2 * latent, "The RoPE key is kept beside the latent."),
                (2 * 2 * row, "K and V come from one latent: it is kept once."),
            ),
        ),
        read_again="2 Multi-head latent attention",
    )


def absorption(draw: Random) -> TrueFalse:
    """Heads over several GPUs"""
    speeds = {row["name"]: row for row in measured.load("00_start_here").rows}
    peak = 1e12 * speeds["bf16 matrix product, tensor cores"]["tflop_per_s"]
    ridge = costs.ridge_point(peak, 1e9 * speeds["device memory copy"]["gb_per_s"])
    gpus, queries = draw.choice([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 2)])
    heads = SIZES.n_heads // gpus
    per_byte = queries * heads * costs.mla_pair_flops() / SIZES.n_heads / costs.mla_cache_bytes(1)
    limit, holds = draw.choice([("memory", per_byte < ridge), ("arithmetic", per_byte > ridge)])
    return TrueFalse(
        f"A GPU can do {ridge:.0f} FLOP per byte that it reads. It holds {heads} of MLA's {SIZES.n_heads} heads and "
        f"the whole latent cache in bf16. Absorbed attention of {queries} new {'token' if queries == 1 else 'tokens'} "
        f"to a long sequence is limited by {limit} there.",
        holds,
        f"A row of {costs.mla_cache_bytes(1):,} bytes serves {queries} · {heads} rows of queries, each with 2 · "
        f"({SIZES.kv_lora_rank + SIZES.qk_rope_head_dim} + {SIZES.kv_lora_rank}) FLOP: {per_byte:.0f} FLOP per byte.",
        read_again="What absorption saves, and what it does not",
    )


# ---------------------------------------------------------------------------------------------- 4 to 7 the kernels


def index_score_by_hand(draw: Random) -> Number:
    """An index score by hand"""
    while True:
        dots = [draw.choice([3, 4, 5]), draw.choice([-4, -3, -2]), draw.choice([1, 2]), draw.choice([2, 3])]
        weights = [draw.choice([2, 3]), draw.choice([1, 2]), draw.choice([-2, -1]), 1]
        order = draw.sample(range(4), 4)
        dots, weights = [dots[n] for n in order], [weights[n] for n in order]
        heads = torch.tensor(dots)[None, :, None].float()  # against a key of one number, 1
        score = int(reference.lightning_indexer(heads, torch.ones(1, 1), torch.tensor(weights)[None]))
        linear = sum(w * dot for w, dot in zip(weights, dots, strict=True))
        positive = sum(max(w * dot, 0) for w, dot in zip(weights, dots, strict=True))
        if linear >= 0 and len({score, linear, positive, sum(dots)}) == 4:
            break
    terms = " + ".join(f"{w if w > 0 else f'({w})'} · ReLU({dot})" for w, dot in zip(weights, dots, strict=True))
    return Number(
        f"A query's four index heads have the products q · k = {', '.join(map(str, dots))} with a key, and the weights "
        f"w = {', '.join(map(str, weights))}. What is the key's score I?",
        Figure(
            score,
            "",
            f"{terms} = {score}. Only a negative weight counts against.",
            mistakes=(
                Mistake(linear, "That is without the ReLU. A negative product counts as nothing."),
                Mistake(positive, "ReLU stands around each product, without its weight, which may be negative."),
                Mistake(sum(dots), "That is the sum of the products. Each head has a weight, and a ReLU."),
            ),
        ),
        read_again="4 The lightning indexer",
    )


def test_of_top_k(draw: Random) -> Choice:
    """A test of top-k"""
    k, queries = draw.choice([256, 512, 2048]), draw.choice([8, 64])
    return Choice(
        f"A new top-k kernel, k = {k}, is compared with `torch.topk` on {queries} rows of index scores. Some indices "
        "differ, the sorted scores agree. What now?",
        shuffled(
            draw,
            Option(
                "Compare the sorted scores, that no index occurs twice, and that none is illegal.",
                "Scores behind a ReLU can be equal, and any of the equal ones is right: top-k is a set.",
                right=True,
            ),
            Option(
                "The kernel is wrong: `torch.topk` is the reference.",
                "Where scores are equal, PyTorch's choice is one of many.",
            ),
            Option(
                "Test with normal random scores, where none are equal and the indices agree.",
                "Then equal scores are never tested. A kernel that fails on them passes.",
            ),
            Option(
                "Add a small random number to each score, so that none are equal.",
                "That hides what the kernel does with equal scores.",
            ),
        ),
        read_again="6 Top-k without sorting",
        kind="scenario",
    )


def tiles_without_neighbours(draw: Random) -> Choice:
    """Tensor cores for a list per query"""
    k = draw.choice([512, 1024, 2048])
    return Choice(
        f"No two queries have the same list of {k} keys. Why can `sparse_mla.cu` use tensor cores, and `csr_gather.cu` "
        "of chapter 04 cannot?",
        shuffled(
            draw,
            Option(
                "The rows of its products are the heads of one query, which share the list and the latent rows.",
                f"A gathered tile of latents serves {SIZES.n_heads} heads: a matrix product, for a single query.",
                right=True,
            ),
            Option(
                "It sorts the queries, so that neighbours have similar lists.",
                "No kernel of the chapter moves a query. Each block has one query, with its own list.",
            ),
            Option(
                "It computes whole blocks of keys, and masks those that are not chosen.",
                "That is what block lists do. Here only chosen rows are loaded.",
            ),
            Option(
                f"{k} keys are many enough; the lists of chapter 04 were too short.",
                "One query of one head stays a vector times a matrix, however long its list is.",
            ),
        ),
        read_again="7 The sparse core",
    )


# ---------------------------------------------------------------------------------------------- 10 cost


def last_token(draw: Random) -> Aggregate:
    """FLOPs of the last token"""
    length, k = draw.choice([16384, 32768, 65536, 98304, 262144]), draw.choice([512, 1024, 4096])
    pair, index_pair = costs.mla_pair_flops(), costs.indexer_pair_flops()
    row = SIZES.kv_lora_rank + SIZES.qk_rope_head_dim
    return Aggregate(
        f"The last of {length:,} tokens, which sees itself, too; one layer, k = {k}. The indexer has "
        f"{SIZES.index_n_heads} heads of {SIZES.index_head_dim} numbers, the core {SIZES.n_heads} heads with keys of "
        f"{row} numbers and values of {SIZES.kv_lora_rank}. How many MFLOP are their matrix products, without the "
        "projections? A multiply-add is 2 FLOP.",
        (
            (
                "indexer",
                Figure(
                    costs.indexer_flops(1, length) / 1e6,
                    "MFLOP",
                    f"It looks at every key: {length:,} · 2 · {SIZES.index_n_heads} · {SIZES.index_head_dim}.",
                    tolerance=0.01,
                    mistakes=(
                        Mistake(index_pair * k / 1e6, f"That is {k} keys. All keys get a score."),
                        Mistake(index_pair / 1e6, "The indexer is not O(1): that is a single key."),
                    ),
                ),
            ),
            (
                "sparse core",
                Figure(
                    costs.sparse_mla_flops(1, length, k) / 1e6,
                    "MFLOP",
                    f"It attends to the chosen keys only: {k} · 2 · {SIZES.n_heads} · ({row} + {SIZES.kv_lora_rank}), "
                    f"which is {k} · {pair:,}.",
                    tolerance=0.01,
                    mistakes=(
                        Mistake(costs.mla_flops(1, length) / 1e6, "That is dense attention, to every key."),
                        Mistake(
                            k * costs.mha_pair_flops() / 1e6,
                            "That is multi-head mode. The core attends to latents.",
                        ),
                    ),
                ),
            ),
        ),
        read_again="10 What it costs",
    )


def way_to_attend(draw: Random) -> TradeOff:
    """The way to attend"""
    queries, length = draw.choice([(1, 1024), (1, 65536), (8192, 8192), (65536, 65536)])
    speeds = {row["name"]: row for row in measured.load("00_start_here").rows}
    peak = 1e12 * speeds["bf16 matrix product, tensor cores"]["tflop_per_s"]
    bandwidth = 1e9 * speeds["device memory copy"]["gb_per_s"]
    key, value = SIZES.qk_nope_head_dim + SIZES.qk_rope_head_dim, SIZES.v_head_dim
    unpacked = 2 * SIZES.n_heads * (key + value)  # bytes of K and V of a token, and as many of Q and O
    pairs = costs.attended_pairs(queries, length, is_causal=True)
    rebuilt = 0 if queries == 1 else costs.rebuild_flops(length)  # decoding: they lie in the cache
    sparse = costs.dsa_work(queries, length)
    ways = {
        "dense, absorbed": (costs.mla_flops(queries, length), costs.mla_work(queries, length).bytes_moved),
        "dense, multi-head mode, K and V unpacked": (
            pairs * costs.mha_pair_flops() + rebuilt,
            unpacked * (queries + length),
        ),
        f"DSA, k = {costs.TOP_K}": (sum(part.flops for part in sparse), sum(part.bytes_moved for part in sparse)),
    }
    floors = {name: costs.time_floor(*cost, peak, bandwidth) for name, cost in ways.items()}
    best = min(floors, key=floors.get)
    unit, time = (1e-6, "µs") if queries == 1 else (1e-3, "ms")

    def option(name: str) -> Option:
        flops, moved = ways[name]
        bound = "FLOPs" if flops / peak > moved / bandwidth else "bytes"
        times = f"its {bound} take {floors[name] / unit:.2f} {time}"
        why = f"The longer of its two: {times}. " + (
            "The others take longer." if name == best else "Another one has a lower floor."
        )
        return Option(
            name, why, right=name == best, figures=(f"{flops / (unit * 1e15):,.2f}", f"{moved / (unit * 1e12):,.2f}")
        )

    work = "One token is decoded, the last of" if queries == 1 else "A whole prompt of"
    unpacking = "lie unpacked in the cache" if queries == 1 else "are unpacked first, which is counted"
    columns = ("GFLOP", "MB moved at least") if queries == 1 else ("TFLOP", "GB moved at least")
    return TradeOff(
        f"{work} {length:,} tokens, one layer of DeepSeek-V3.2, on a GPU of {peak / 1e12:.0f} TFLOP/s and "
        f"{bandwidth / 1e12:.1f} TB/s. In multi-head mode K and V {unpacking}. All FLOPs run at that speed, the "
        "indexer's too. Time floor: the longer of the times for the FLOPs and for the bytes. Which has the lowest?",
        columns,
        shuffled(draw, *map(option, ways)),
        read_again="10 What it costs",
    )


# ---------------------------------------------------------------------------------------------- 12 claims


def what_is_said(draw: Random) -> Votes:
    """What is said about DSA"""
    length = draw.choice([32768, 65536, 131072])
    scored, attended = costs.indexer_flops(1, length), costs.sparse_mla_flops(1, length)
    share = scored / (scored + attended)
    against_mha = costs.kv_cache_bytes(1, 128, 128) / costs.mla_cache_bytes(1)
    against_gqa = costs.kv_cache_bytes(1, 8, 128) / costs.mla_cache_bytes(1)
    numbers = SIZES.kv_lora_rank + SIZES.qk_rope_head_dim
    holding = (
        Option(
            f"All heads of a layer attend to the same keys, at most {costs.TOP_K} for a query.",
            "A key has one score, and k is one for all layers.",
            right=True,
        ),
        Option(
            f"For the last of {length:,} tokens the indexer takes {share:.0%} of the FLOPs of indexer and core.",
            f"It scores {length:,} keys at {costs.indexer_pair_flops():,} FLOP, the core attends to {costs.TOP_K} at "
            f"{costs.mla_pair_flops():,}.",
            right=True,
        ),
        Option(
            f"Up to {costs.TOP_K} tokens DSA computes exactly what dense MLA computes.",
            "Top-k takes every key then. The indexer is extra work.",
            right=True,
        ),
        Option(
            "DeepSeek-V3 attends to all keys; DSA came with V3.2-Exp.",
            "V3 is dense MLA. DSA was added to a model that had been trained dense.",
            right=True,
        ),
    )
    wrong = (
        Option(
            "The lightning indexer takes O(1) per token.",
            "It takes O(L): it scores every earlier key. Only its constant is small.",
        ),
        Option(
            "The indexer takes a seventeenth of the core's FLOPs, whatever the length.",
            f"A seventeenth is its cost for one key. It scores all keys, the core attends to {costs.TOP_K}.",
        ),
        Option("k lies between 128 and 512, and differs between layers.", f"k = {costs.TOP_K}, one for all layers."),
        Option(
            "MLA keeps 2 · 512 numbers per token, and so saves 4 to 8 times the cache.",
            f"It keeps {numbers}: K and V come from one latent, and the RoPE key stands beside it. That is "
            f"{against_mha:.1f} times less than 128 heads of 128, {against_gqa:.1f} times less than 8.",
        ),
        Option(
            "DSA stands for Dynamic Sparse Attention, and is linear in the length.",
            "It is DeepSeek's, and its indexer is quadratic over a prompt, with a small constant.",
        ),
        Option(
            "The language model's loss trains the indexer, which also balances the load of the experts.",
            "The choice has no gradient: the indexer's teacher is the attention. Experts are another matter.",
        ),
    )
    right = draw.choice([1, 2, 3])
    return Votes(
        "These are said about DeepSeek-V3.2 and its attention. Which hold?",
        shuffled(draw, *draw.sample(holding, right), *draw.sample(wrong, 5 - right)),
        read_again="12 What is often said",
    )


QUESTIONS = (
    three_caches,
    absorption,
    index_score_by_hand,
    test_of_top_k,
    tiles_without_neighbours,
    last_token,
    way_to_attend,
    what_is_said,
)
