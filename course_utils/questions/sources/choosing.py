"""Questions of chapter 08: what fits, the floors, whether flash is on, and in which order to try."""

from __future__ import annotations

from random import Random

from course_utils import costs, planner
from course_utils.planner import amount, duration
from course_utils.planner.devices import DEVICES
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

GLANCE = "2 Three choices at a glance"
FITS = "3 What fits, and the least time"
PLANNER = "4 The planner"
MEASURED = "5 Measured"
BACKEND = "6 Is flash really on?"
QUALITY = "7 Quality before sparse"


def out_of_memory(draw: Random) -> Choice:
    """The first thing to try"""
    length, name = draw.choice(((65536, "H200"), (32768, "A100 40 GB"), (65536, "H100")))
    plan = planner.plan(length, device=name)
    square, flash = plan.methods["dense"].parts[4], plan.methods["flash"]
    options = [
        Option(
            "Ask which attention kernel really runs, and turn flash on.",
            f"{amount(square.bytes)} is the size of S. Flash never makes such a matrix: it needs "
            f"{amount(flash.memory_bytes)} in all, and the output stays the same.",
            right=True,
        ),
        Option(
            "Train with a sliding window.",
            "That changes the model. First try what changes nothing.",
        ),
        Option(
            "Retrieve, and put a quarter of the tokens into the context.",
            "It would fit, but the model never sees the other tokens. First try what loses nothing.",
        ),
        Option(
            "Halve the head dimension.",
            "The allocation that fails has no d in its size, and the model would be another one.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"A layer with 16 heads of d = 128 in fp16 runs out of memory at {length:,} tokens on an "
        f"{name}: torch tried to "
        f"allocate {amount(square.bytes)}. What comes first?",
        tuple(options),
        BACKEND,
        kind="scenario",
    )


def what_a_mask_saves(draw: Random) -> Choice:
    """What a window does to memory"""
    window, length = draw.choice((512, 1024, 4096)), draw.choice((32768, 65536, 131072))
    options = [
        Option(
            "Nothing: Q, K, V, O and the log-sum-exp stay.",
            "Flash stores no scores, so no tensor of size L² is left to shrink.",
            right=True,
        ),
        Option(
            f"It falls to {window / length:.2%}, as the pairs do.",
            "The FLOPs fall so. Which tensor in memory has an entry for each pair?",
        ),
        Option(
            "It falls by half, since only V is still read whole.",
            "Every key is in the window of some query.",
        ),
        Option(
            "It grows, by a mask of one byte for each pair.",
            "A kernel of ranges computes which tiles to visit, and stores no mask.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"At {length:,} tokens a range kernel with a window of {window:,} replaces flash attention. What happens to "
        "the layer's memory at prefill?",
        tuple(options),
        GLANCE,
    )


def below_the_window(draw: Random) -> TrueFalse:
    """A window on short inputs"""
    window, times = draw.choice((1024, 2048, 4096)), draw.choice((2, 4))
    length = times * window
    pairs, causal = costs.window_pairs(length, window), costs.attended_pairs(length, length, True)
    return TrueFalse(
        f"At {length:,} tokens a causal window of {window:,} keys saves more than half of the causal FLOPs.",
        pairs < causal / 2,
        f"It keeps {pairs:,} of {causal:,} pairs, {pairs / causal:.0%}: the first {window:,} rows lose nothing.",
        MEASURED,
    )


def silent_fallback(draw: Random) -> Votes:
    """What torch's FLASH does not take"""
    length = draw.choice((4096, 8192))
    statements = [
        Option(
            "The inputs become fp32.",
            "FLASH takes fp16 and bf16 only. By default torch then runs its memory-efficient kernel.",
            right=True,
        ),
        Option(
            f"A bool tensor `attn_mask` [{length}, {length}] with the same mask replaces the flag.",
            "FLASH takes no mask tensor. By default torch then runs another fused kernel. The tensor has "
            f"{amount(costs.score_matrix_bytes(1, 1, length, length, 1))}.",
            right=True,
        ),
        Option(
            "The batch becomes 1.",
            "The GPU may be half idle, but the kernel takes it.",
        ),
        Option(
            f"The length becomes {length - 3}, no multiple of the tile.",
            "The kernel masks the last tile.",
        ),
    ]
    draw.shuffle(statements)
    return Votes(
        f"fp16, batch 4, d = 64, {length:,} tokens, `is_causal=True`: within `sdpa_kernel(SDPBackend.FLASH_ATTENTION)` "
        "torch's FLASH runs on an H200. Which single changes end in `No available kernel`? Mark all.",
        tuple(statements),
        BACKEND,
    )


def pick_for_a_target(draw: Random) -> TradeOff:
    """Under the target, with the least risk"""
    name, length, target_ms = draw.choice(  # none of them is in a table of the chapter
        (
            ("H100", 65536, 60),
            ("H100", 131072, 30),
            ("A100 80 GB", 32768, 50),
            ("A100 80 GB", 65536, 40),
            ("L4", 16384, 30),
            ("L4", 32768, 30),
        )
    )
    plan = planner.plan(length, device=name)
    rows = {key: plan.methods[key] for key in ("dense", "flash", "sparse")}
    exact = {"dense": "yes", "flash": "yes", "sparse": "no"}
    within = [key for key, row in rows.items() if row.fits and 3 * row.seconds * 1e3 <= target_ms]
    best = within[0]  # in the order of risk
    flash = rows["flash"]
    why = {
        "dense": f"It needs {amount(rows['dense'].memory_bytes)}, and its floor is {duration(rows['dense'].seconds)}.",
        "flash": (
            "It fits, three times its floor is within the target, and the output stays the same."
            if best == "flash"
            else f"Its floor is {duration(flash.seconds)}; three times that misses the target."
        ),
        "sparse": (
            "The only one that may meet the target. A quality check must say whether the model bears it."
            if best == "sparse"
            else "It leaves keys out, and an exact way may meet the target."
        ),
    }
    options = [
        Option(
            planner.TITLES[key],
            why[key],
            right=key == best,
            figures=(amount(row.memory_bytes), duration(row.seconds), exact[key]),
        )
        for key, row in rows.items()
    ]
    draw.shuffle(options)
    return TradeOff(
        f"{length:,} tokens, 16 heads of d = 128, fp16, causal, on an {name} with "
        f"{amount(DEVICES[name].memory_bytes)}; the window has {planner.WINDOW:,} keys. The target is {target_ms} ms "
        "for a layer, and you allow a kernel three times its floor. Which is the first to try: it fits, may meet the "
        "target, and changes the output least?",
        ("memory", "time floor", "exact"),
        tuple(options),
        PLANNER,
    )


def parts_of_flash(draw: Random) -> Aggregate:
    """What flash needs"""
    length, heads = draw.choice((8192, 16384, 32768)), draw.choice((16, 32))
    kv_heads = draw.choice((4, 8))
    plan = planner.plan(length, heads=heads, kv_heads=kv_heads)
    sizes = {part.name: part.bytes / 1e6 for part in plan.methods["flash"].parts}
    no_sharing = costs.kv_cache_bytes(length, heads, 128) / 1e6
    return Aggregate(
        f"Flash attention of one sequence, forward: {length:,} tokens, {heads} query heads, {kv_heads} key heads "
        "(GQA), d = 128, fp16, and the log-sum-exp is returned too. What do these tensors take in device memory, in "
        "MB (10⁶ bytes)?",
        (
            (
                "Q and O",
                Figure(
                    sizes["Q"] + sizes["O"],
                    "MB",
                    f"Two tensors of {heads} · {length:,} · 128 numbers of 2 bytes.",
                    tolerance=0.01,
                    mistakes=(Mistake(sizes["Q"], "That is Q alone; the output is as large."),),
                ),
            ),
            (
                "K and V",
                Figure(
                    sizes["K"] + sizes["V"],
                    "MB",
                    f"Two tensors of {kv_heads} · {length:,} · 128 numbers of 2 bytes: key heads, not query heads.",
                    tolerance=0.01,
                    mistakes=(
                        Mistake(no_sharing, "With GQA several query heads share a key head. How many are kept?"),
                    ),
                ),
            ),
            (
                "log-sum-exp",
                Figure(
                    sizes["log-sum-exp, fp32"],
                    "MB",
                    f"One fp32 number for each of {heads} · {length:,} rows.",
                    tolerance=0.01,
                    mistakes=(Mistake(sizes["log-sum-exp, fp32"] / 2, "It is kept in fp32, whatever the inputs are."),),
                ),
            ),
        ),
        FITS,
    )


def which_fits(draw: Random) -> Grid:
    """Memory by length"""
    heads = draw.choice((8, 12, 24, 32))  # the chapter's tables have 16
    lengths = draw.choice(((4096, 16384), (8192, 32768)))

    def cell(length: int, name: str) -> Figure:
        method = planner.plan(length, heads=heads).methods[name]
        value = method.memory_bytes / 1e9
        tensors = sum(part.bytes for part in method.parts if part.name in "QKVO") / 1e9
        if name == "dense":
            why = f"Q, K, V and O: {tensors:.3g} GB; S and P: 2 · {heads} · {length:,}² · 2 bytes."
            mistakes = (Mistake((value + tensors) / 2, "S and P are two matrices: count both."),)
        else:
            why = f"Q, K, V and O: {tensors:.3g} GB, and one fp32 number a row."
            mistakes = (Mistake(tensors / 2, "Four tensors of L · d numbers a head: Q, K, V and O."),)
        return Figure(value, "GB", why, tolerance=0.02, mistakes=mistakes)

    return Grid(
        f"One sequence, {heads} heads of d = 128, fp16, forward. How much device memory does attention need in one "
        "layer, inputs and output included, in GB (10⁹ bytes)? Dense keeps S and P, and no mask tensor.",
        ("dense, written out", "flash"),
        tuple(f"L = {length:,}" for length in lengths),
        tuple(tuple(cell(length, name) for length in lengths) for name in ("dense", "flash")),
        FITS,
    )


def floor_of_flash(draw: Random) -> Number:
    """A time floor"""
    name, length = draw.choice(("A100 80 GB", "B200", "L4")), draw.choice((16384, 32768))
    where = DEVICES[name]
    method = planner.plan(length, device=name).methods["flash"]
    return Number(
        f"Causal flash attention, forward, one sequence of {length:,} tokens, 16 heads of d = 128, fp16, at the rates "
        f"of the {name}'s datasheet: {where.half_flops / 1e12:g} TFLOP/s on tensor cores, {where.bandwidth / 1e9:,g} "
        "GB/s. What is its time floor?",
        Figure(
            method.seconds * 1e3,
            "ms",
            f"{method.flops:.3g} FLOP over the peak are {duration(method.arithmetic_seconds)}; "
            f"{amount(method.least_bytes)} "
            f"over the bandwidth are {duration(method.memory_seconds)}. The larger one is the floor.",
            tolerance=0.03,
            mistakes=(
                Mistake(method.seconds * 2e3, "Flash skips the tiles above the diagonal."),
                Mistake(method.memory_seconds * 1e3, "That is the floor of the bytes. The larger one counts."),
                Mistake(method.seconds * 5e2, "A multiply-add counts 2 FLOP, and there are two products, QKᵀ and PV."),
            ),
        ),
        FITS,
    )


def quality_check(draw: Random) -> Choice:
    """Before a window goes in"""
    share = draw.choice((93, 95, 97))
    options = [
        Option(
            "The kept share of each head, and then the task's own score.",
            "A mean hides a head that loses nearly all, and only the task says whether that head was needed.",
            right=True,
        ),
        Option(
            f"Nothing: {share} % of the mass is kept.",
            "That is a mean. One head of twenty may have lost everything.",
        ),
        Option(
            "Whether the outputs agree with SDPA under the same mask.",
            "That tests the kernel, and says nothing about what the mask leaves out.",
        ),
        Option(
            "The speed at the longest length.",
            "It does not say whether the answers are still right.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        f"A window keeps {share} % of the attention mass, as a mean over all heads of a trained "
        "model. What do you check "
        "before you use it?",
        tuple(options),
        QUALITY,
        kind="scenario",
    )


QUESTIONS: tuple[Source, ...] = (
    what_a_mask_saves,
    parts_of_flash,
    which_fits,
    floor_of_flash,
    below_the_window,
    silent_fallback,
    out_of_memory,
    pick_for_a_target,
    quality_check,
)
