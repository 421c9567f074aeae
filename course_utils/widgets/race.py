"""A game beside chapter 07: choose tile, stages, warps and order of a kernel, and race past cuDNN.

A measured kernel answers with its figure; for others a model estimates the speed; if a kernel does not fit into a
multiprocessor, the answer says why. js/race.js computes the same as the functions here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from course_utils.plots.look import GREY, INK, MATRICES
from course_utils.widgets.frame import Frame

SHARED_LIMIT = 227 * 1024  # bytes of shared memory that a block may have
OTHERS = 24  # registers of a thread beside S, P and O: addresses, maxima, sums; recorded kernels have 15 to 32
PLACES = {"2": (2, 2), "3": (3, 2), "4": (4, 4)}  # for tiles of K, and of V
START = {
    "keys": "128", "places": "2", "consumers": "2", "copies": "threads", "overlap": "none", "turns": "no",
    "blocks": "end", "order": "lie", "idea": "none",
}  # fmt: skip


def settled(problem: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, str]:
    """The choices, with those set back that have no effect here: an order if all rows are equally long, the next item
    if there is none, and so on."""
    own = dict(choices)
    queued = own["blocks"] == "stay" and own["order"] != "lie"
    if not problem["is_causal"] and own["order"] != "lie":
        own["order"] = "l2"
    has_more = queued and own["copies"] == "producer" and problem["head_dim"] == 128 and own["consumers"] == "2"
    needs = {"hold": own["overlap"] != "none", "early": queued, "registers": has_more}
    if not needs.get(own["idea"], True):
        own["idea"] = "none"
    return own


def resources(problem: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """The resources of a block: shared, bytes; needed and registers, what a computing thread needs and what it may
    have; why: what does not fit, in words, or ""."""
    d, keys, consumers = problem["head_dim"], int(choices["keys"]), int(choices["consumers"])
    places = sum(PLACES[choices["places"]])
    tiles_of_rows = 2 if choices["blocks"] == "stay" else 1  # Q; and O, which leaves while the next Q comes
    shared = 2 * d * (64 * consumers * tiles_of_rows + places * keys) + 528 * consumers + 24 + 16 * places
    # 64 rows of S (fp32), of P (16 bits) and of O (fp32), shared by 128 threads.
    needed = keys // 2 + keys // 4 + d // 2 + OTHERS
    registers = _registers(choices, consumers)
    why = []
    if shared > SHARED_LIMIT:
        why.append(f"{_kib(shared)} of shared memory, and a block may have {_kib(SHARED_LIMIT)}")
    if needed > registers:
        why.append(f"about {needed} registers for a computing thread, which may have {registers}")
    return {"shared": shared, "needed": needed, "registers": registers, "why": "; and ".join(why)}


def answer(figures: Mapping[str, Any], place: int, choices: Mapping[str, str]) -> dict[str, Any]:
    """The result of a kernel with these choices for problem number `place`: kind ("measured", "model" or "does not
    fit"), ratio to cuDNN and tflops (0 if it does not fit), and text, the same in words."""
    problem, own = figures["problems"][place], settled(figures["problems"][place], choices)
    why = resources(problem, own)["why"]
    if why:
        return {"kind": "does not fit", "ratio": 0, "tflops": 0, "text": f"Does not fit: {why}."}
    known = problem["measured"].get(".".join(own[name] for name in figures["choices"]))
    if known:
        text = f"Measured: {_number(known['ratio'])} times as fast as cuDNN, {known['tflops']:.0f} TFLOP/s "
        text += f"({figures['caption']}). {known['said']}"
        return {"kind": "measured", "ratio": known["ratio"], "tflops": known["tflops"], "text": text}
    factors = losses(problem, own)
    ratio = problem["measured"][problem["record"]]["ratio"] * math.prod(factors.values())
    titles = figures["titles"]
    parts = [f"{' and '.join(titles[name] for name in names)} × {_number(factor)}" for names, factor in factors.items()]
    has_figure = {name for names in factors for name in names}
    others = dict(zip(figures["choices"], problem["record"].split("."), strict=True))
    left = [titles[name] for name in others if own[name] != others[name] and name not in has_figure]
    text = f"Model: about {_number(ratio)} times as fast as cuDNN. Nobody measured this kernel. The record, times what "
    text += f"each choice alone changed: {', '.join(parts)}."
    text += f" No figure is known of: {', '.join(left)}." if left else ""
    return {"kind": "model", "ratio": ratio, "tflops": ratio * problem["cudnn"], "text": text}


def losses(problem: Mapping[str, Any], choices: Mapping[str, str]) -> dict[tuple[str, ...], float]:
    """The factor by which each choice that differs from the record's changed the record's ratio on its own; overlap and
    turns have one factor together. A choice without a figure is left out."""
    factors = {}
    for joined, of in problem["losses"].items():
        names = tuple(joined.split(","))
        value = ",".join(choices[name] for name in names)
        if value in of:
            factors[names] = of[value]
    return factors


def _registers(choices: Mapping[str, str], consumers: int) -> int:
    """How many of the 65,536 registers a computing thread may have, a multiple of 8 and at most 255."""
    if choices["copies"] != "producer":
        return min(65536 // (128 * consumers) // 8 * 8, 255)
    if consumers == 3:
        return 160
    late = choices["blocks"] == "stay" and choices["order"] != "lie" and choices["idea"] != "registers"
    return 240 if late else 232


def _kib(count: int) -> str:
    return f"{math.floor(count / 1024 + 0.5)} KiB"


def _number(value: float) -> str:
    """Two decimals, a half up, as JavaScript is made to round, too."""
    return f"{math.floor(100 * value + 0.5) / 100:.2f}"


class Race(Frame):
    """Made by `race_past_cudnn`. `step` is the number of a problem."""

    _script = "race.js"

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture: FLASH, cuDNN and the record of a problem (None: the current one)."""
        return _draw(self.meta["figures"], self.step if step is None else step)


def race_past_cudnn(figures: Mapping[str, Any], head_dim: int = 128, *, is_causal: bool = False) -> Race:
    """The game, in the browser. figures: of `course_utils.chapters.hopper.race`; head_dim and is_causal: of the first
    problem. Score and tries stay in the browser. Raises ValueError naming the argument."""
    cases = [(problem["head_dim"], problem["is_causal"]) for problem in figures["problems"]]
    if (head_dim, is_causal) not in cases:
        dims = sorted({dim for dim, _ in cases})
        raise ValueError(f"head_dim: got {head_dim!r}, takes {' or '.join(map(str, dims))}")
    meta = {"figures": dict(figures), "start": START}
    return Race(meta=meta, data=b"", step=cases.index((head_dim, is_causal)))


def title_of(problem: Mapping[str, Any]) -> str:
    """A problem in words, as "d = 128, causal, L = 2,048"."""
    mask = "causal" if problem["is_causal"] else "full"
    return f"d = {problem['head_dim']}, {mask}, L = {problem['length']:,}"


def _draw(figures: Mapping[str, Any], place: int) -> Figure:
    problem = figures["problems"][place]
    record = problem["measured"][problem["record"]]
    bars = {"FLASH": problem["flash"] / problem["cudnn"], "cuDNN": 1.0, "chapter 07's record": record["ratio"]}
    figure = Figure(figsize=(7.5, 2.2), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0.1, 1, 0.9))  # the last line is for the note about still pictures
    axes = figure.subplots()
    axes.barh(list(bars), list(bars.values()), color=[GREY, GREY, MATRICES["Q"]])
    axes.axvline(1, color=INK, linestyle="--", linewidth=1)
    for y, ratio in enumerate(bars.values()):
        axes.text(ratio + 0.01, y, f"{ratio:.2f}", va="center", fontsize=9)
    axes.set(xlim=(0, 1.35), xlabel=f"times as fast as cuDNN; {figures['caption']}")
    axes.invert_yaxis()
    axes.set_title(title_of(problem), fontsize=10)
    return figure
