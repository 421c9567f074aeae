"""Chapter 07's game: the design choices of a kernel, which combinations were measured, and what each choice costs."""

from __future__ import annotations

from typing import Any

from course_utils import measured
from course_utils.chapters.hopper import variants
from course_utils.measured import Measurement, Row

# choice → value → words. The values of all choices, joined by ".", are the name of a kernel.
CHOICES: dict[str, dict[str, str]] = {
    "keys": {"64": "64 keys", "128": "128 keys", "160": "160 keys"},
    "places": {"2": "2 for K, 2 for V", "3": "3 for K, 2 for V", "4": "4 for K, 4 for V"},
    "consumers": {"2": "2: 128 queries", "3": "3: 192 queries"},
    "copies": {
        "threads": "all threads: cp.async",
        "engine": "one thread: copy engine",
        "producer": "a producer: copy engine",
    },
    "overlap": {
        "none": "nothing",
        "maximum": "the next maximum",
        "part": "and some exponentials",
        "all": "and all exponentials",
    },
    "turns": {"no": "as it comes", "yes": "in turns: ping-pong"},
    "blocks": {"end": "does one item", "stay": "stays for the next"},
    "order": {
        "lie": "as rows lie",
        "shortest": "shortest first, L2's heads",
        "one": "longest first, one head",
        "l2": "longest first, L2's heads",
        "all": "longest first, all heads",
    },
    "idea": {
        "none": "none",
        "rescale": "rescale O rarely",
        "polynomial": "exponentials by polynomial",
        "hold": "no hold()",
        "early": "next item early",
        "registers": "8 registers fewer",
    },
}
TITLES = {
    "keys": "tile",
    "places": "stages",
    "consumers": "warpgroups",
    "copies": "copies by",
    "overlap": "beside P V",
    "turns": "tensor cores",
    "blocks": "a block",
    "order": "order",
    "idea": "one idea",
}
LIMITS = {
    "keys": "registers and shared memory on one side, barriers and maxima for each key on the other",
    "places": "how far copies run ahead, for shared memory",
    "consumers": "how many queries use a tile, for registers",
    "copies": "waiting for K and V, and instructions that copy",
    "overlap": "tensor cores that idle while softmax is computed, within a warpgroup",
    "turns": "the same, between warpgroups",
    "blocks": "the begin and the end of blocks",
    "order": "blocks that wait for the last one, and what L2 keeps",
    "idea": "instructions that are issued, and registers",
}
# The steps of the ladder, by their names in 07_hopper.json: what each changes.
STEPS = {
    "wgmma": {
        "keys": "128", "places": "2", "consumers": "2", "copies": "threads", "overlap": "none", "turns": "no",
        "blocks": "end", "order": "lie", "idea": "none",
    },
    "copy engine": {"copies": "engine"},
    "producer and consumers": {"copies": "producer"},
    "softmax beside a product": {"overlap": "maximum"},
    "ping-pong": {"turns": "yes"},
    "blocks that stay": {"blocks": "stay"},
    "order": {"order": "l2"},
}  # fmt: skip
# What each variant of hopper_tried.json changes in the last step.
CHANGES = {
    "without turns": {"turns": "no"},
    "turns, and no overlap in a consumer": {"overlap": "none"},
    "without hold()": {"idea": "hold"},
    "all exponentials beside P V": {"overlap": "all"},
    "a part of the exponentials beside P V": {"overlap": "part"},
    "the same without turns": {"overlap": "part", "turns": "no"},
    "O rescaled only when m rose a lot": {"idea": "rescale"},
    "a quarter of the exponentials by a polynomial": {"idea": "polynomial"},
    "a quarter by a polynomial, without turns": {"idea": "polynomial", "turns": "no"},
    "tiles of 64 keys, four places": {"keys": "64", "places": "4"},
    "tiles of 160 keys": {"keys": "160"},
    "a third place for K": {"places": "3"},
    "232 registers for consumers": {"idea": "registers"},
    "two consumers": {"consumers": "2"},
    "one head at a time": {"order": "one"},
    "all heads at a time": {"order": "all"},
    "the next item taken early": {"idea": "early"},
    "the shortest rows first": {"order": "shortest"},
}
CUDNN, FLASH = "torch cuDNN", "torch FLASH"
CASES = ("head_dim", "is_causal", "length")


def name_of(choices: dict[str, str]) -> str:
    """The name of a kernel: its choices' values, in the order of `CHOICES`."""
    return ".".join(choices[choice] for choice in CHOICES)


def last_step(head_dim: int) -> dict[str, str]:
    """The choices of the chapter's last kernel; with D = 64 it has three consumers."""
    made: dict[str, str] = {}
    for changes in STEPS.values():
        made |= changes
    return made | {"consumers": "3" if head_dim == 64 else "2"}


def figures() -> dict[str, Any]:
    """The data of the game, as JSON: choices, titles and limits, and the measured figures of each problem.

    A problem has head_dim, is_causal, batch, heads and length; cudnn, flash: TFLOP/s; record: the name of the chapter's
    kernel; measured: name of a kernel → ratio (times as fast as cuDNN), tflops, said (what it is, and why it lost). The
    steps were measured in one run with cuDNN. The variants were measured in one run with the last step; their ratio to
    cuDNN is their ratio to the last step times the last step's ratio. losses: choice → value → the factor by which the
    last kernel's ratio changes with this choice alone; "overlap,turns" has the factor of both together. noise: the
    largest deviation of the last step from itself.
    """
    ladder, tried = measured.load("07_hopper"), measured.load("hopper_tried")
    cases = dict.fromkeys(tuple(row[of] for of in CASES) for row in ladder.select(part="rungs"))
    problems = [_problem(dict(zip(CASES, case, strict=True)), ladder, tried) for case in cases]
    return {
        "choices": CHOICES,
        "titles": TITLES,
        "limits": LIMITS,
        "problems": problems,
        "caption": f"{ladder.device}, {ladder.date}",
        "noise": variants.noise(),
    }


def _problem(case: dict[str, Any], ladder: Measurement, tried: Measurement) -> dict[str, Any]:
    steps = {row["name"]: row for row in ladder.select(part="rungs", **case)}
    rows = {row["name"]: row for row in tried.select(**case)}
    last, made, known = last_step(case["head_dim"]), {}, {}
    for number, (name, changes) in enumerate(STEPS.items(), 1):
        made |= changes
        choices = last if number == len(STEPS) else made
        row, said = steps[name], f"Step {number} of chapter 07: {name}."
        known[name_of(choices)] = {"ratio": row["ratio_to_cudnn"], "tflops": row["tflop_per_s"], "said": said}
    record = known[name_of(last)]["ratio"]
    for name, changes in CHANGES.items():
        if name in rows:
            said = f"Tried beside the last step: {name}. {variants.IDEAS[name].found}"
            row = rows[name]
            known[name_of(last | changes)] = {
                "ratio": record * row["ratio"],
                "tflops": row["tflop_per_s"],
                "said": said,
            }
    row = steps[CUDNN]
    return {of: row[of] for of in (*CASES, "batch", "heads")} | {
        "cudnn": row["tflop_per_s"],
        "flash": steps[FLASH]["tflop_per_s"],
        "record": name_of(last),
        "measured": known,
        "losses": _losses(case, steps, rows, tried),
    }


def _losses(case: dict[str, Any], steps: dict[str, Row], rows: dict[str, Row], tried: Measurement) -> dict:
    def step(slower: str, faster: str) -> float:
        return steps[faster]["median_ms"] / steps[slower]["median_ms"]

    def variant(name: str) -> float:
        return rows[name]["ratio"] if name in rows else 1.0

    # Tiles of 160 keys were tried with D = 128 only.
    (wide,) = tried.select(**{**case, "head_dim": 128, "name": "tiles of 160 keys"})
    fewer = variant("two consumers")
    apart, alone = variant("turns, and no overlap in a consumer"), variant("without turns")
    # Four places were tried with small tiles only; with others they cost what a third one does, which helps as little.
    return {
        "keys": {"64": variant("tiles of 64 keys, four places"), "160": wide["ratio"]},
        "places": {"3": variant("a third place for K"), "4": variant("a third place for K")},
        "consumers": {"2": fewer} if case["head_dim"] == 64 else {},
        "copies": {
            "threads": step("wgmma", "producer and consumers"),
            "engine": step("copy engine", "producer and consumers"),
        },
        "overlap,turns": {
            "none,yes": apart,
            "none,no": alone * step("producer and consumers", "softmax beside a product"),
            "maximum,no": alone,
            "part,yes": variant("a part of the exponentials beside P V"),
            "part,no": variant("the same without turns"),
            "all,yes": variant("all exponentials beside P V"),
            "all,no": variant("all exponentials beside P V") * alone,
        },
        "blocks": {"end": step("ping-pong", "blocks that stay")},
        "order": {
            "lie": step("blocks that stay", "order") / fewer,
            "shortest": variant("the shortest rows first"),
            "one": variant("one head at a time"),
            "all": variant("all heads at a time"),
        },
        "idea": {
            "rescale": variant("O rescaled only when m rose a lot"),
            "polynomial": variant("a quarter of the exponentials by a polynomial"),
            "hold": variant("without hold()"),
            "early": variant("the next item taken early"),
            "registers": variant("232 registers for consumers"),
        },
    }
