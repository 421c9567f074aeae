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

FP32 = 4  # bytes, of a score in the chapter's kernels
SOFTMAX_FLOPS = 5  # per score, as the chapter counts: compare, subtract, exp, add, multiply


def equal_queries(draw: Random) -> TrueFalse:
    """Two equal queries"""
    first, second = sorted(draw.sample(range(1, 20), 2))
    with_mask = draw.choice((True, False))
    mask = "with" if with_mask else "without"
    return TrueFalse(
        f"Queries {first} and {second} are equal vectors. In attention {mask} the causal mask, their rows of O are "
        "equal for every K and V.",
        not with_mask,
        f"Without the mask both rows of S are equal, hence both rows of O. With it query {first} sees {first + 1} "
        f"keys and query {second} sees {second + 1}.",
        "1 Attention on one sentence",
    )


def divided_by_d(draw: Random) -> Choice:
    """The wrong factor"""
    d = draw.choice((64, 128, 256))
    options = [
        Option(
            "The weights of a row are nearly equal, and O is close to the mean of the values.",
            f"The scores have the variance 1/d = {1 / d:.4f}. Differences that small hardly show after exp.",
            right=True,
        ),
        Option(
            "Each row has one weight near 1: the softmax is saturated.",
            "Scores that are too large do that. Is d the larger divisor?",
        ),
        Option(
            "Nothing: the softmax divides by the sum anyway.",
            "It cancels a constant that is added to all scores, not a factor.",
        ),
        Option(
            "The scores overflow in fp16.",
            "Dividing by more makes the scores smaller.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"The {d} components of q and k are independent, with mean 0 and variance 1. A kernel divides the scores by d "
        "in place of √d. What becomes of attention?",
        tuple(options),
        "2 Why the scores are divided by √d",
    )


def safe_softmax(draw: Random) -> Votes:
    """What makes the softmax safe"""
    shift = draw.choice((3, 10, 30))
    statements = [
        Option(
            f"In exact arithmetic, adding {shift} to all scores of a row changes none of its weights.",
            f"The factor e^{shift} stands above and below the fraction.",
            right=True,
        ),
        Option(
            "With the largest score subtracted, the sum over L_k keys is at most L_k.",
            "Each of its L_k terms is at most exp(0) = 1.",
            right=True,
        ),
        Option(
            "Subtracting the mean of the row would be as safe.",
            "Of many zeros and one score of 100 the mean is near 0, and exp(100) is infinite in fp32.",
        ),
        Option(
            "In bfloat16, exp overflows at much smaller scores than in fp32.",
            "bfloat16 has the exponent of fp32 and fewer digits. fp16 has the small range.",
        ),
    ]
    draw.shuffle(statements)
    return Votes(
        "Which of these statements on the softmax of a row hold?",
        tuple(statements),
        "6 Softmax without overflow",
    )


def scores_of_a_mask(draw: Random) -> Grid:
    """Cells, tiles and bytes of S"""
    length, tile = draw.choice((1000, 1500, 2000, 3000)), 64
    kind = draw.choice(("fp16", "fp32"))
    side = costs.ceil_div(length, tile)
    memory = costs.score_matrix_bytes(1, 1, length, length, FP32) / 1e6
    halved = "The kernels store S in fp32, whatever the inputs were."
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
            mistakes=(Mistake((length // tile) ** 2, "The tiles at the end are not full, but visited."),),
        ),
        Figure(
            memory,
            "MB",
            f"{length:,}² scores of {FP32} bytes are {memory:g} MB: 16-bit inputs are converted first.",
            tolerance=0.01,
            mistakes=(Mistake(memory / 2, halved), Mistake(memory / FP32, elements)),
        ),
    )
    causal = (
        Figure(
            causal_pairs,
            "",
            f"Query i sees i + 1 keys: 1 + 2 + ... + {length:,} = {causal_pairs:,}.",
            tolerance=0.002,
            mistakes=(Mistake(length**2, "The mask hides the keys that come later."),),
        ),
        Figure(
            causal_tiles,
            "",
            f"Row n of the {side} rows of tiles needs n tiles: 1 + 2 + ... + {side} = {causal_tiles}.",
            mistakes=(
                Mistake(all_tiles, "Which of these tiles hold a pair that the mask keeps?"),
                Mistake(causal_tiles - side, "The tiles on the diagonal hold pairs that the mask keeps."),
            ),
        ),
        Figure(
            memory,
            "MB",
            f"A masked score is stored as −∞: all {length:,}² take {memory:g} MB.",
            tolerance=0.01,
            mistakes=(
                Mistake(memory / 2, f"The kernels store masked scores, too, each in {FP32} bytes."),
                Mistake(memory / FP32, elements),
            ),
        ),
    )
    return Grid(
        f"One head, {length:,} queries and keys, inputs in {kind}. Count the (query, key) pairs that the mask keeps, "
        f"the tiles of {tile} × {tile} that hold such a pair, and the memory of S in the chapter's three fp32 kernels "
        "(1 MB = 1e6 bytes).",
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
            step.total / heads: "Each head has its own S and P.",
            step.total / element: "Those are elements. Count their bytes.",
        }
        if step.bytes_read == step.bytes_written == square:
            mistakes[square] = "S is read and P is written."
        else:
            mistakes[2 * thin] = "One matrix with L² elements moves as well."
        return label, Figure(
            step.total / 1e9, "GB", why, tolerance=0.01, mistakes=_others(mistakes, step.total, per=1e9)
        )

    ratio = costs.total_bytes(steps) / least
    return Aggregate(
        f"Standard attention, one sequence of {length:,} tokens, {heads} heads of d = {d}, {kind}; S and P are too "
        "large for L2. How many bytes does each step read and write in HBM (1 GB = 1e9 bytes)?",
        (
            part(
                "S = Q Kᵀ / √d",
                steps[0],
                f"Q and K, {2 * thin / 1e9:.3f} GB, are read; S, {square / 1e9:.3f} GB, is written.",
            ),
            part("P = softmax(S)", steps[1], f"S is read and P is written, {square / 1e9:.3f} GB each."),
            part(
                "O = P V",
                steps[2],
                f"P and V are read, O is written. All three steps move 1 + L / d = {ratio:.0f} times the least.",
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
        plan("fp32, S and P both kept", 4, apart, 2),
        plan("fp32, P written over S", 4, apart, 1),
        plan("one sequence after another, fp32", 4, apart, 2 / batch),
        plan("scores and softmax in one kernel, which writes P only, fp32", 4, merged, 1),
        plan("fp16, S and P both kept", 2, apart, 2),
    )
    budget = 1.25 * plans[1][1]
    allowed = [p for p in plans if p[1] <= budget and (halves_allowed or "fp16" not in p[0])]
    best = min(allowed, key=lambda p: p[3])

    def why(text: str, memory: float, floor: float) -> str:
        if text == best[0]:
            return "No other plan within the terms has a lower floor."
        if memory > budget:
            return "S and P do not fit into the memory."
        if "fp16" in text and not halves_allowed:
            return "Its floor is the lowest, but the terms ask for fp32."
        if floor == plans[0][3]:
            return "It takes less memory, but still moves every byte of S and P."
        return "It fits, but another plan within the terms has a lower floor."

    terms = "fp16 is accurate enough." if halves_allowed else "The results must stay fp32."
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
        f"fp16 on tensor cores. {terms} Which plan fits and has the lowest floor, summed over its kernels?",
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
            "Each position then sees the token that it is to predict, in held-out text, too. When the model writes, "
            "no such token is there.",
            right=True,
        ),
        Option(
            "It has learned the training text by heart.",
            "Then the loss on held-out text would be high.",
        ),
        Option(
            "The learning rate is too high.",
            "Then the loss would jump or grow.",
        ),
        Option(
            "The scores are not divided by √d.",
            "Saturated weights slow learning down.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"With a new attention kernel a language model reaches {loss} nats per letter, on training and held-out text "
        "alike. When it writes, it babbles. What do you suspect?",
        tuple(options),
        "10 The causal mask, and a model without it",
        kind="scenario",
    )


def kept_pairs(draw: Random) -> Number:
    """Pairs that a mask keeps"""
    queries, keys = draw.choice(((4, 60), (6, 50), (8, 72), (5, 40)))
    pairs = costs.attended_pairs(queries, keys, is_causal=True)
    return Number(
        f"A model has {keys - queries} tokens in its cache and gets {queries} new ones: L_q = {queries} and "
        f"L_k = {keys}. How many scores of a head does this course's causal mask keep?",
        Figure(
            pairs,
            "",
            f"Query i sees i + {keys - queries} + 1 keys, the last one all {keys}. "
            f"{queries} · {keys} − {queries} · {queries - 1} / 2 = {pairs:,}.",
            mistakes=(
                Mistake(
                    costs.attended_pairs(queries, queries, is_causal=True),
                    "At the top left, the newest token would see the oldest keys only.",
                ),
                Mistake(pairs - queries, "Does a query not see itself?"),
                Mistake(costs.attended_pairs(queries, keys), "The new tokens come in an order, too."),
                Mistake(queries * keys / 2, "Half is hidden when S is square. Here it is flat."),
            ),
        ),
        "11 Cross-attention: more keys than queries",
    )


def _others(mistakes: dict[float, str], value: float, per: float = 1) -> tuple[Mistake, ...]:
    """The mistakes that lead to another figure than `value`; both are divided by `per`."""
    return tuple(Mistake(wrong / per, why) for wrong, why in mistakes.items() if abs(wrong - value) > 0.02 * value)


QUESTIONS: tuple[Source, ...] = (
    equal_queries,
    divided_by_d,
    safe_softmax,
    scores_of_a_mask,
    traffic_of_three_passes,
    less_memory_or_less_time,
    too_good_a_loss,
    kept_pairs,
)
