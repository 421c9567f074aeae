"""Questions of chapter 01: what the score matrix costs, its three kernels, the mask, and how they are tested."""

from __future__ import annotations

from random import Random

from course_utils import costs
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    Source,
    TradeOff,
    TrueFalse,
    Votes,
)

WARP, SECTOR = 32, 32  # threads; bytes
FP32 = 4  # bytes, of a score in the chapter's kernels
SOFTMAX_FLOPS = 5  # per score, as the chapter counts: compare, subtract, exp, add, multiply


def equal_queries(draw: Random) -> TrueFalse:
    """Two equal queries"""
    first, second = sorted(draw.sample(range(1, 20), 2))
    with_mask = draw.choice((True, False))
    mask = "with" if with_mask else "without"
    return TrueFalse(
        f"Queries {first} and {second} of a sequence are equal vectors, and no position is added to them. In attention "
        f"{mask} the causal mask, their rows of O are equal for every K and V.",
        not with_mask,
        f"Without the mask both rows of S are equal, hence those of P and O. With it query {first} sees "
        f"{first + 1} keys "
        f"and query {second} sees {second + 1}, so that their softmax runs over different scores.",
        "1 Attention on one sentence",
    )


def divided_by_d(draw: Random) -> Choice:
    """The wrong factor"""
    d = draw.choice((64, 128, 256))
    options = [
        Option(
            "The weights of a row are nearly equal, and O is close to the mean of the values.",
            f"The scores now have the variance 1/d = {1 / d:.4f}. Differences that small hardly show after exp.",
            right=True,
        ),
        Option(
            "Each row has one weight near 1, and O is close to a single value: the softmax is saturated.",
            "That is what scores that are too large do. Is d a larger divisor than √d, or a smaller one?",
        ),
        Option(
            "Nothing: the softmax divides by the sum anyway.",
            "The softmax cancels a constant that is added to all scores of a row. A factor changes their differences.",
        ),
        Option(
            "The scores overflow in fp16.",
            "Dividing by more makes the scores smaller. Overflow is what a factor that is too large leads to.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"The components of q and k are independent, with mean 0 and variance 1, and d = {d}. A kernel divides the "
        "scores by d in place of √d. What becomes of an untrained model's attention?",
        tuple(options),
        "2 Why the scores are divided by √d",
    )


def sectors_by_mapping(draw: Random) -> Grid:
    """Which threads make a warp"""
    d, element = draw.choice((64, 96, 128)), draw.choice((2, 4))
    kind = {2: "fp16", 4: "fp32"}[element]
    keys = draw.choice((1008, 2000, 3008))  # multiples of 16: every row of S starts at a sector, in fp16 too
    row = d * element
    steps = {  # bytes between the addresses of neighbouring threads
        "load of `Q[i * d + c]`": (0, row),
        "load of `K[j * d + c]`": (row, 0),
        "store of `S[i * L_k + j]`": (element, keys * element),
    }

    def figure(step: int) -> Figure:
        # All sectors from the first to the last, unless the threads skip some: then one for each thread.
        count = min(WARP, costs.ceil_div((WARP - 1) * step + element, SECTOR))
        neighbours = costs.ceil_div(WARP * element, SECTOR)
        if step == 0:
            why = "All threads of the warp want the same address."
        elif step == element:
            why = f"{WARP} neighbours of {element} bytes are {WARP * element} bytes in a row."
        else:
            why = f"The addresses are {step:,} bytes apart: each thread has a sector of its own."
        mistakes = {
            1: "One sector holds only what lies within 32 bytes. Are all these addresses that close?",
            neighbours: "That many are touched by neighbouring addresses. Are these addresses neighbours?",
            WARP: "One sector for each thread: do all threads want different sectors here?",
            2 * neighbours if element == 2 else neighbours // 2: f"How many bytes has a number? This one is {kind}.",
        }
        return Figure(
            count,
            "sectors",
            why,
            mistakes=tuple(Mistake(value, said) for value, said in mistakes.items() if value != count),
        )

    return Grid(
        f"The accesses of `scores_uncoalesced.cu`, if inputs and scores were {kind}, with d = {d}, L_k = {keys:,}. All "
        "tensors start at a sector, and so do all of their rows. A warp has 32 neighbouring keys j, from a multiple of "
        "32 on, and one query i, as in the chapter; or, with x and y exchanged, 32 neighbouring queries i and one key "
        "j. How many sectors does each access of a full warp touch?",
        tuple(steps),
        ("neighbouring keys", "neighbouring queries"),
        tuple(tuple(figure(step) for step in pair) for pair in steps.values()),
        "5 Which addresses does a warp touch?",
    )


def safe_softmax(draw: Random) -> Votes:
    """What makes the softmax safe"""
    shift = draw.choice((3, 10, 30))
    statements = [
        Option(
            f"In exact arithmetic, adding {shift} to all scores of a row changes none of its weights.",
            f"The factor e^{shift} appears above and below the fraction, and cancels.",
            right=True,
        ),
        Option(
            "With the largest score subtracted, the sum of a row that is not masked everywhere is at least 1.",
            "The largest score itself contributes exp(0) = 1, and no other term is negative.",
            right=True,
        ),
        Option(
            "Subtracting the mean of the row would be as safe as subtracting its largest score.",
            "A row of many zeros and one score of 100 has a mean near 0, and exp(100) is still infinite in fp32.",
        ),
        Option(
            "bfloat16 overflows at much smaller scores than fp32, as it has half the bits.",
            "It has the exponent of fp32 and gives up digits. fp16 is the one with a small range.",
        ),
        Option(
            "A row in which everything is masked needs care even when its largest score is subtracted.",
            "Its largest score is −∞, and −∞ − (−∞) is NaN. The kernel puts 0 in its place.",
            right=True,
        ),
    ]
    draw.shuffle(statements)
    return Votes(
        "Which of these statements on the softmax of a row of scores hold?",
        tuple(statements),
        "6 Softmax without overflow",
    )


def scores_of_a_mask(draw: Random) -> Grid:
    """Cells, tiles and bytes of S"""
    length, tile = draw.choice((1000, 1500, 2000, 3000)), 64
    kind = draw.choice(("fp16", "fp32"))
    side = costs.ceil_div(length, tile)
    memory = costs.score_matrix_bytes(1, 1, length, length, FP32) / 1e6
    halved = "The kernels of this chapter compute and store S in fp32, whatever the inputs were."
    elements = "Those are elements. Count their bytes."

    all_pairs, causal_pairs = (costs.attended_pairs(length, length, is_causal) for is_causal in (False, True))
    all_tiles, causal_tiles = (
        len(list(costs.visited_tiles(length, length, tile, tile, is_causal))) for is_causal in (False, True)
    )
    unmasked = (
        Figure(all_pairs, "", f"Every query sees every key: {length:,}² = {all_pairs:,}."),
        Figure(
            all_tiles,
            "",
            f"{length:,} / {tile} rounded up is {side}, and {side}² = {all_tiles:,}.",
            mistakes=(
                Mistake((length // tile) ** 2, "The tiles at the end are not full. They are visited all the same."),
            ),
        ),
        Figure(
            memory,
            "MB",
            f"{length:,}² scores of {FP32} bytes are {memory:g} MB: the kernels are fp32, and inputs in 16 bits are "
            "converted before the first one.",
            tolerance=0.01,
            mistakes=(Mistake(memory / 2, halved), Mistake(memory / FP32, elements)),
        ),
    )
    causal = (
        Figure(
            causal_pairs,
            "",
            f"Query i sees i + 1 keys: 1 + 2 + ... + {length:,} = {causal_pairs:,}. Half of the square is "
            "accepted, too.",
            tolerance=0.002,
            mistakes=(Mistake(length**2, "That is the whole square. The mask hides the keys that come later."),),
        ),
        Figure(
            causal_tiles,
            "",
            f"Row n of the {side} rows of tiles needs n tiles: 1 + 2 + ... + {side} = {causal_tiles}.",
            mistakes=(
                Mistake(all_tiles, "That is every tile. Which of them hold a pair that the mask keeps?"),
                Mistake(
                    causal_tiles - side,
                    "The tiles on the diagonal count, as they hold pairs that the mask keeps. So do those at the end.",
                ),
            ),
        ),
        Figure(
            memory,
            "MB",
            f"The kernels write a masked score as −∞: all {length:,}² scores are stored, {memory:g} MB.",
            tolerance=0.01,
            mistakes=(
                Mistake(
                    memory / 2, f"Half of S? The kernels store what is masked, too, and all of it in {FP32} bytes."
                ),
                Mistake(memory / FP32, elements),
            ),
        ),
    )
    return Grid(
        f"One head, {length:,} queries and keys, inputs in {kind}. Count the (query, key) pairs that the mask keeps, "
        f"the tiles of {tile} × {tile} that hold at least one such pair, and the memory that S takes in "
        "`naive_attention`, the three fp32 kernels of this chapter (1 MB = 1e6 bytes).",
        ("without a mask", "with the causal mask"),
        ("pairs", "tiles", "memory of S"),
        (unmasked, causal),
        "8 The score matrix needs memory",
    )


def traffic_of_three_passes(draw: Random) -> Aggregate:
    """Traffic of the three passes"""
    length, heads = draw.choice((4096, 8192)), draw.choice((8, 16, 32))
    d, element = draw.choice((64, 128)), draw.choice((2, 4))
    kind = {2: "fp16", 4: "fp32"}[element]
    steps = costs.naive_traffic(1, heads, length, length, d, element)
    least = costs.least_bytes(1, heads, length, length, d, element)
    square = costs.score_matrix_bytes(1, heads, length, length, element)
    thin = least / 4  # one of Q, K, V, O

    def part(label: str, step: costs.Step, why: str) -> tuple[str, Figure]:
        mistakes = {
            step.total / heads: "That is one head. Each head has its own S and P.",
            step.total / element: "Those are elements. Count their bytes.",
        }
        if step.bytes_read == step.bytes_written == square:
            mistakes[square] = "S is read and P is written: that is two matrices."
        else:
            mistakes[2 * thin] = "Only the thin matrices were counted. One with L² elements goes by as well."
        return label, Figure(
            step.total / 1e9, "GB", why, tolerance=0.01, mistakes=_others(mistakes, step.total, per=1e9)
        )

    ratio = costs.total_bytes(steps) / least
    return Aggregate(
        f"Standard attention, one sequence of {length:,} tokens, {heads} heads of d = {d}, {kind}, S and P too "
        "large for "
        "L2. Each step reads its inputs once and writes its result once. How many bytes does it move through HBM, read "
        "and written (1 GB = 1e9 bytes)?",
        (
            part(
                "S = Q Kᵀ / √d",
                steps[0],
                f"Q and K are read ({2 * thin / 1e9:.3f} GB), S is written ({square / 1e9:.3f} GB).",
            ),
            part("P = softmax(S)", steps[1], f"S is read and P is written, {square / 1e9:.3f} GB each."),
            part(
                "O = P V",
                steps[2],
                f"P and V are read, O is written. All three steps together move 1 + L / d = {ratio:.0f} times the "
                "least.",
            ),
        ),
        "9 The score matrix needs bandwidth",
    )


def less_memory_or_less_time(draw: Random) -> TradeOff:
    """What to change first"""
    batch, heads, length, d = draw.choice((8, 16)), draw.choice((12, 16)), draw.choice((2048, 4096)), 64
    halves_allowed = draw.choice((True, False))
    bandwidth, fp32, tensor = 3.35e12, 60e12, 900e12  # bytes/s, FLOP/s
    scores, product = batch * heads * length**2, costs.attention_flops(batch, heads, length, length, d) // 2
    flops = (product, SOFTMAX_FLOPS * scores, product)

    def plan(text: str, element: int, groups: tuple[tuple[int, ...], ...], matrices: float) -> tuple:
        """groups: which of the three steps run as one kernel; what one step hands to the next there is not moved."""
        steps = costs.naive_traffic(batch, heads, length, length, d, element)
        square = costs.score_matrix_bytes(batch, heads, length, length, element)
        moved, floor = 0, 0.0
        for group in groups:
            part = sum(steps[n].total for n in group) - 2 * square * (len(group) - 1)
            moved += part
            floor += costs.time_floor(sum(flops[n] for n in group), part, fp32 if element == 4 else tensor, bandwidth)
        return text, matrices * square, moved, floor

    apart, merged = ((0,), (1,), (2,)), ((0, 1), (2,))
    plans = (
        plan("all heads at once, fp32, S and P both kept", 4, apart, 2),
        plan("all heads at once, fp32, P written over S", 4, apart, 1),
        plan("one sequence of the batch after another, fp32", 4, apart, 2 / batch),
        plan("scores and softmax in one kernel, which writes P only, fp32", 4, merged, 1),
        plan("all heads at once, fp16 on tensor cores, S and P both kept", 2, apart, 2),
    )
    budget = 1.25 * plans[1][1]
    allowed = [p for p in plans if p[1] <= budget and (halves_allowed or "fp16" not in p[0])]
    best = min(allowed, key=lambda p: p[3])

    def why(text: str, memory: float, floor: float) -> str:
        if text == best[0]:
            return "It is within the terms, and of those that are, no other has a lower floor."
        if memory > budget:
            return "S and P do not fit: it runs out of memory before any time passes."
        if "fp16" in text and not halves_allowed:
            return "Its floor is the lowest, but the terms ask for fp32. fp16 changes the results."
        if floor == plans[0][3]:
            return "It takes less memory, and still moves every byte of S and P. Memory saved is not traffic saved."
        return "It fits and it moves less than the first plan does, but another one within the terms has a lower floor."

    terms = "fp16 is accurate enough here." if halves_allowed else "The results must stay fp32."
    options = [
        Option(
            text,
            why(text, memory, floor),
            right=text == best[0],
            figures=(f"{memory / 1e9:.2f} GB", f"{moved / 1e9:.1f} GB", f"{floor * 1e3:.1f} ms"),
        )
        for text, memory, moved, floor in plans
    ]
    draw.shuffle(options)
    return TradeOff(
        f"Standard attention at B = {batch}, H = {heads}, L = {length:,}, d = {d} has {budget / 1e9:.1f} GB left for S "
        f"and P, on a GPU of {bandwidth / 1e12:g} TB/s, {fp32 / 1e12:g} TFLOP/s in fp32, and {tensor / 1e12:g} in "
        f"fp16 on tensor cores. {terms} Which plan fits and "
        "has the lowest floor? (The floor is the sum over its kernels.)",
        ("memory of S and P", "HBM traffic", "time floor"),
        tuple(options),
        "9 The score matrix needs bandwidth",
    )


def too_good_a_loss(draw: Random) -> Choice:
    """A loss that is too good"""
    loss = draw.choice(("0.02", "0.03", "0.05"))
    options = [
        Option(
            "The causal mask is missing or shifted.",
            "Each position then sees the token that it is to predict. Held-out text can be copied from "
            "the right neighbour as well as any other. When it writes, there is none.",
            right=True,
        ),
        Option(
            "It has learned the training text by heart.",
            "Then the loss on held-out text would be high. Here it is as low as in training.",
        ),
        Option(
            "The learning rate is too high.",
            "A learning rate that is too high makes the loss jump or grow. It does not make it too good.",
        ),
        Option(
            "The scores are not divided by √d.",
            "Saturated weights slow learning down. They do not show a model what it is to predict.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"A new attention kernel trains a language model to {loss} nats per letter, on the training text and on "
        "held-out "
        "text alike. When it writes by itself, it babbles. What do you suspect?",
        tuple(options),
        "10 The causal mask, and a model without it",
        kind="scenario",
    )


def kept_pairs(draw: Random) -> Number:
    """Pairs that a mask keeps"""
    queries, keys = draw.choice(((4, 60), (6, 50), (8, 72), (5, 40)))
    pairs = costs.attended_pairs(queries, keys, is_causal=True)
    return Number(
        f"A model has {keys - queries} tokens in its cache and gets {queries} new ones, so that L_q = {queries} and "
        f"L_k = {keys}. How many scores of a head does the causal mask of this course keep?",
        Figure(
            pairs,
            "",
            f"Bottom right: query i sees i + {keys - queries} + 1 keys, the last one all {keys}. "
            f"{queries} · {keys} − {queries} · {queries - 1} / 2 = {pairs:,}.",
            mistakes=(
                Mistake(
                    costs.attended_pairs(queries, queries, is_causal=True),
                    "That is aligned at the top left: the newest token would see the oldest keys only.",
                ),
                Mistake(pairs - queries, "Each query was denied one key: does it not see itself?"),
                Mistake(
                    costs.attended_pairs(queries, keys), "That is without a mask. The new tokens come in an order, too."
                ),
                Mistake(
                    queries * keys / 2, "Half of the scores are hidden when S is square. Here it is a flat rectangle."
                ),
            ),
        ),
        "11 Cross-attention: more keys than queries",
    )


def who_sees_the_shifted_mask(draw: Random) -> Votes:
    """Who notices a shifted mask"""
    length = draw.choice((64, 65, 128, 200))
    statements = [
        Option(
            "A comparison with float64 in which the key behind each query's diagonal is planted to take nearly "
            "all weight.",
            "If the mask lets that key in, the row's output is its value and nothing else. The largest error shows it.",
            right=True,
        ),
        Option(
            "Changing the last key and value, and asking that all rows of O but the last stay the same, bit by bit.",
            "With the shifted mask the last but one query sees the last key, and its row changes.",
            right=True,
        ),
        Option(
            "The mean absolute error over all rows, held to 1e-3, with inputs of about 1e-3.",
            "Then all weights are nearly equal and all outputs near 0. One key more changes next to nothing.",
        ),
        Option(
            "`sanitize()`, with all of its checks.",
            "The kernel reads and writes only what it may. It computes something else, and that is no forbidden "
            "access.",
        ),
        Option(
            "`profile()`: sectors against their ideal.",
            "The mask changes no address. The counters of the right and of the shifted kernel are the same.",
        ),
    ]
    draw.shuffle(statements)
    return Votes(
        "In `scores.cu`, `j > i + L_k - L_q` has become `j > i + L_k - L_q + 1`. Which of these would notice it at "
        f"L_q = L_k = {length}?",
        tuple(statements),
        "13 What can go wrong",
    )


def _others(mistakes: dict[float, str], value: float, per: float = 1) -> tuple[Mistake, ...]:
    """The mistakes that lead to another figure than `value`; both are divided by `per`."""
    return tuple(Mistake(wrong / per, why) for wrong, why in mistakes.items() if abs(wrong - value) > 0.02 * value)


QUESTIONS: tuple[Source, ...] = (
    equal_queries,
    divided_by_d,
    sectors_by_mapping,
    safe_softmax,
    scores_of_a_mask,
    traffic_of_three_passes,
    less_memory_or_less_time,
    too_good_a_loss,
    kept_pairs,
    who_sees_the_shifted_mask,
)
