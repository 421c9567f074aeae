"""How 08_choosing/measure_and_decide is graded: figures by costs and records, choices by what chapter 08 measured.

There is no kernel. The student's `predict` and `choose` are called in the child process for the same workloads each
time; what they give comes back as tensors and is held to the recorded times here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_utils import costs, measured
from course_utils.grading.diagnosis import most_common
from course_utils.grading.exercise import Diagnosis, Exercise, Part, Question
from course_utils.planner import devices
from course_utils.planner.workloads import NAMES, WINDOW, Candidate, Workload, actual, workloads

WORKLOADS = workloads(200, seed=8)
TIME_WITHIN, BYTES_WITHIN = 0.25, 0.1  # how far predictions may be off, relative to what was measured
AS_FAST = 1.1  # times the fastest candidate's time
NOTHING, NOT_WRITTEN = -1, -2  # in the place of a choice
FITS = "08 Choosing, section 3, 'What fits, and the least time'"
PLANNER = "08 Choosing, section 4, 'The planner'"
MEASURED = "08 Choosing, section 5, 'Measured'"
QUALITY = "08 Choosing, section 7, 'Quality before sparse'"
SHORT = "03 FlashAttention-2, section 6, 'When it wins, and when not'"

# ---------------------------------------------------------------------------------------------- in the child


def collect(cells: Mapping[str, object]) -> dict[str, Tensor]:
    """What `predict` and `choose` give for each workload: "choice" [n], an index of NAMES; "predicted"
    [n, candidates, 2], milliseconds and bytes, NaN where there is no candidate or no prediction."""
    predict, choose = cells.get("predict"), cells.get("choose")
    if not callable(predict) or not callable(choose):
        raise TypeError("predict and choose must be functions")
    predicted = torch.full((len(WORKLOADS), len(NAMES), 2), torch.nan, dtype=torch.float64)
    for workload, row in zip(WORKLOADS, predicted, strict=True):
        for candidate, place in zip(workload.candidates, row, strict=False):
            place[:] = _pair(predict(workload, candidate))
    return {"choice": torch.tensor([_index(choose(one), one) for one in WORKLOADS]), "predicted": predicted}


def _pair(given: object) -> Tensor:
    if given is None or given is Ellipsis:
        return torch.full((2,), torch.nan, dtype=torch.float64)
    try:
        milliseconds, extra_bytes = given  # type: ignore[misc]
        return torch.tensor([float(milliseconds), float(extra_bytes)], dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"predict gave {given!r:.80}, takes two numbers: milliseconds, bytes") from None


def _index(given: object, workload: Workload) -> int:
    if given is None:
        return NOTHING
    if given is Ellipsis:
        return NOT_WRITTEN
    there_are = [one.name for one in workload.candidates]
    if given not in there_are:
        raise ValueError(f"choose gave {given!r:.80}, takes a candidate's name ({', '.join(there_are)}) or None")
    return NAMES.index(given)


# ---------------------------------------------------------------------------------------------- what is right


def is_exact(workload: Workload, candidate: Candidate) -> bool:
    """Whether it computes full causal attention at this length: a window that hides nothing does."""
    return candidate.choice != "sparse" or workload.window >= workload.length


Taken = Mapping[str, tuple[float, float] | None]  # milliseconds and bytes by the candidates' names; None: did not run


def really(workload: Workload) -> Taken:
    """What each candidate takes at the workload's length."""
    return {one.name: actual(workload, one) for one in workload.candidates}


def choices(workload: Workload, taken: Taken) -> list[Candidate]:
    """The candidates to choose if they take so much: the fastest one, and those within a tenth of it; none if empty.

    Exact attention comes first where it meets the target in the memory that there is, else a window that keeps enough.
    """
    there_is = [one for one in workload.candidates if _affordable(workload, taken[one.name])]
    exact = [one for one in there_is if is_exact(workload, one)]
    enough = exact or [one for one in there_is if workload.kept_mass >= workload.wanted]
    best = min((taken[one.name][0] for one in enough), default=0.0)
    return [one for one in enough if taken[one.name][0] <= AS_FAST * best]


def _affordable(workload: Workload, taken: tuple[float, float] | None) -> bool:
    return taken is not None and taken[0] <= workload.target_ms and taken[1] <= workload.free_bytes


# ---------------------------------------------------------------------------------------------- verdicts


def judge(python: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Diagnosis | None]:
    """Verdicts on the predictions, and on the choices by what was the right one.

    A wrong choice that follows from wrong predictions has their name.
    """
    predicted = python["predicted"]
    verdicts = {"times": _wrong_times(predicted[..., 0]), "memory": _wrong_bytes(predicted[..., 1])}
    mistaken = verdicts["times"] or verdicts["memory"]
    wrong: dict[str, list[Diagnosis]] = {"exact": [], "window": [], "nothing": []}
    all_chosen = [_named(workload, index) for workload, index in zip(WORKLOADS, python["choice"].tolist(), strict=True)]
    # Who holds the measured times against the target never chooses a candidate whose measured time misses it.
    by_measured = all(one.ms <= of.target_ms for of, one in zip(WORKLOADS, all_chosen, strict=True) if one)
    for workload, index, chosen, pairs in zip(
        WORKLOADS, python["choice"].tolist(), all_chosen, predicted.tolist(), strict=True
    ):
        right = choices(workload, really(workload))
        if index != NOT_WRITTEN and _is_among(chosen, right):
            continue
        believed = {one.name: pair for one, pair in zip(workload.candidates, pairs, strict=False)}
        if index == NOT_WRITTEN:
            found = Diagnosis("nothing is chosen yet")
        elif mistaken and _is_among(chosen, choices(workload, believed)):
            found = mistaken
        else:
            found = _wrong_choice(workload, chosen, right, by_measured)
        wrong["nothing" if not right else "exact" if is_exact(workload, right[0]) else "window"].append(found)
        if chosen is None and right:
            wrong["nothing"].append(found)
    return verdicts | {kind: most_common(found) if found else None for kind, found in wrong.items()}


def _named(workload: Workload, index: int) -> Candidate | None:
    """The candidate with the name of this index, None if there is none."""
    return next((one for one in workload.candidates if index >= 0 and one.name == NAMES[index]), None)


def _is_among(chosen: Candidate | None, right: Sequence[Candidate]) -> bool:
    """Whether a choice is one of these; None is right where there is none."""
    return chosen in right if right else chosen is None


def _wrong_choice(
    workload: Workload, taken: Candidate | None, right: Sequence[Candidate], by_measured: bool
) -> Diagnosis:
    """What is wrong with a choice. by_measured: whether all that was chosen meets the target by its measured time."""
    asked = (
        f"{workload.length:,} tokens, {workload.target_ms:.3g} ms, {workload.free_bytes / 1e9:.3g} GB free; a window "
        f"keeps {workload.kept_mass:.1%}, wanted {workload.wanted:.0%}"
    )
    detail = f"{asked}; chosen: {taken.name if taken else None}, right: {right[0].name if right else None}"
    found = really(workload)[taken.name] if taken else None
    hides_nothing = right and right[0].choice == "sparse" and is_exact(workload, right[0])
    if hides_nothing and (taken is None or taken.choice != "sparse" and _affordable(workload, found)):
        return Diagnosis("a window that hides nothing is exact, and is not taken for it", detail, MEASURED)
    if taken is None:
        return Diagnosis("nothing is chosen where something meets the target", detail, PLANNER)
    if found is None or found[1] > workload.free_bytes:
        return Diagnosis("what does not fit into the memory is chosen", detail, FITS)
    if found[0] > workload.target_ms:
        if by_measured:
            tried = f"; at {taken.length:,} tokens it took {taken.ms:.3g} ms, at {workload.length:,} {found[0]:.3g} ms"
            return Diagnosis("a time of a shorter length is held against the target", detail + tried, MEASURED)
        return Diagnosis("what misses the target is chosen", f"{detail}; it took {found[0]:.3g} ms", PLANNER)
    if not is_exact(workload, taken) and right and is_exact(workload, right[0]):
        return Diagnosis("a window is chosen where exact attention meets the target", detail, PLANNER)
    if not is_exact(workload, taken) and workload.kept_mass < workload.wanted:
        return Diagnosis("a window is chosen that loses more than the model can spare", detail, QUALITY)
    return Diagnosis("a slower kernel is chosen where a faster one does the same", detail, MEASURED)


Row = tuple[Workload, Candidate, float, float]  # with a prediction, and what it really takes
Growth = Callable[[Workload, Candidate], float]  # by what a known mistake multiplies the measured figure


def _ratio(workload: Workload, candidate: Candidate) -> float:
    return workload.length / candidate.length


def _pairs(workload: Workload, candidate: Candidate) -> float:
    """How many times as many pairs the candidate computes at the workload's length."""
    if candidate.choice != "sparse":
        return _ratio(workload, candidate) ** 2
    return costs.window_pairs(workload.length, WINDOW) / costs.window_pairs(candidate.length, WINDOW)


AS_IT_IS = "the figure that was measured at another length is taken as it is"
TIMES: tuple[tuple[str, Growth], ...] = (
    (AS_IT_IS, lambda workload, one: 1.0),
    ("all times are taken to grow with the length", _ratio),
    ("all times are taken to grow with the square of the length", lambda workload, one: _ratio(workload, one) ** 2),
    ("milliseconds were asked for, and seconds are given", lambda workload, one: _pairs(workload, one) / 1e3),
)
BYTES: tuple[tuple[str, Growth], ...] = (
    (AS_IT_IS, lambda workload, one: 1.0),
    ("the memory of S and P is taken to grow with the length, not with its square", _ratio),
    (
        "memory is taken to grow with the square of the length where S and P are not stored",
        lambda workload, one: _ratio(workload, one) ** 2,
    ),
    (
        "bytes were asked for, and gigabytes are given",
        lambda workload, one: _ratio(workload, one) ** (2 if one.choice == "dense" else 1) / 1e9,
    ),
)


def _wrong_times(predicted: Tensor) -> Diagnosis | None:
    """What is wrong with predicted milliseconds [n, candidates]."""
    judged = [one for one in _rows(predicted, 0) if one[1].choice != "dense"]  # which follows the law less closely
    return _wrong(judged, TIME_WITHIN, TIMES, lambda one: one.ms, "ms", MEASURED)


def _wrong_bytes(predicted: Tensor) -> Diagnosis | None:
    """What is wrong with predicted bytes [n, candidates]."""
    return _wrong(_rows(predicted, 1), BYTES_WITHIN, BYTES, lambda one: one.extra_bytes, "bytes", FITS)


def _rows(predicted: Tensor, place: int) -> list[Row]:
    """Predictions beside what was measured: the first or second figure of `actual`. What did not run at the workload's
    length is left out: nobody knows what it would take."""
    return [
        (workload, one, given, found[place])
        for workload, row in zip(WORKLOADS, predicted.tolist(), strict=True)
        for one, given in zip(workload.candidates, row, strict=False)
        if (found := actual(workload, one))
    ]


def _wrong(
    rows: Sequence[Row],
    within: float,
    known: Sequence[tuple[str, Growth]],
    was: Callable[[Candidate], float],
    unit: str,
    read_again: str,
) -> Diagnosis | None:
    """The prediction that is farthest off, under the name of the growth that all of them have, if one is known."""
    if any(math.isnan(given) for _, _, given, _ in rows):
        return Diagnosis("nothing is predicted yet", "predict must give two numbers: milliseconds, bytes", read_again)
    workload, one, given, right = max(rows, key=lambda row: abs(row[2] / row[3] - 1))
    if abs(given / right - 1) <= within:
        return None
    detail = (
        f"{one.name}, {workload.length:,} tokens: predicted {given:.4g} {unit}, it took {right:.4g}; at "
        f"{one.length:,} tokens {was(one):.4g}. Predictions may be off by {within:.0%}"
    )
    for name, growth in known:
        if all(math.isclose(given, growth(w, one) * was(one), rel_tol=1e-3) for w, one, given, _ in rows):
            return Diagnosis(name, detail, read_again)
    few = sum(abs(given / right - 1) > within for _, _, given, right in rows)
    return Diagnosis("predictions are too far off", f"{few} of {len(rows)}; {detail}", read_again)


# ---------------------------------------------------------------------------------------------- figures to predict

H200 = devices.DEVICES["H200"]
HEADS, D, HALF = 16, 128, 2  # of all three workloads; bytes of a number
LONG, WINDOWED, TEXT = 16384, 32768, 64  # tokens of the encoder's document, of the model with a window, of a short text


def _encoder_ms(name: str) -> float:
    found = measured.load("03_flash_attention_v2").select(
        part="lengths", head_dim=D, is_causal=False, length=LONG, name=name, **{"pass": "forward"}
    )
    return found[0]["median_ms"]


def _windowed_ms(name: str) -> float:
    return measured.load("08_choosing").select(part="choices", name=name, length=WINDOWED)[0]["median_ms"]


def _short(name: str) -> Mapping[str, float]:
    found = measured.load("03_flash_attention_v2").select(
        part="short", head_dim=D, length=TEXT, name=name, **{"pass": "forward"}
    )
    return found[0]


FLOPS = costs.attention_flops(1, HEADS, LONG, LONG, D)
FLOOR_MS = 1e3 * costs.time_floor(
    FLOPS, costs.least_bytes(1, HEADS, LONG, LONG, D, HALF), H200.half_flops, H200.bandwidth
)
FLOOR_OF_BYTES_MS = 1e3 * costs.least_bytes(1, HEADS, LONG, LONG, D, HALF) / H200.bandwidth
PAIRS = costs.attended_pairs(WINDOWED, WINDOWED, is_causal=True) / costs.window_pairs(WINDOWED, WINDOW)
EXACT_MS = min(map(_windowed_ms, ("flash_attention_v2", "torch FLASH", "torch cuDNN")))
WINDOW_MS = min(map(_windowed_ms, NAMES[4:]))
TEXT_FLOPS, TEXT_BYTES = (
    costs.attention_flops(1, HEADS, TEXT, TEXT, D),
    costs.least_bytes(1, HEADS, TEXT, TEXT, D, HALF),
)
TEXT_FLOOR_US = 1e6 * costs.time_floor(TEXT_FLOPS, TEXT_BYTES, H200.half_flops, H200.bandwidth)
FUSED = ("flash_attention_v2", "torch FLASH", "torch cuDNN", "torch memory-efficient")
CALLS_US = {name: 1e3 * _short(name)["call_ms"] for name in FUSED}
KERNELS_US = {name: 1e3 * _short(name)["median_ms"] for name in FUSED}
QUICKEST = min(KERNELS_US, key=lambda name: KERNELS_US[name])  # on the GPU

QUESTIONS = (
    Question(
        "encoder_floor",
        1,
        "The encoder: least time on an H200, in ms",
        FLOOR_MS,
        unit="ms",
        misconceptions=(
            (FLOOR_MS / 2, "an encoder is not causal: all pairs count"),
            (FLOOR_OF_BYTES_MS, "that is the memory's floor; the larger of the two counts"),
        ),
        read_again=FITS,
    ),
    Question(
        "encoder_share",
        1,
        "The encoder: the floor as a share of the fastest kernel's time, in %",
        100 * FLOOR_MS / _encoder_ms("torch cuDNN"),
        unit="%",
        tolerance=0.02,
        misconceptions=(
            (100 * FLOOR_MS / _encoder_ms("torch FLASH"), "that is FLASH; another kernel is faster"),
            (100 * FLOOR_MS / _encoder_ms("flash_attention_v2"), "that is the course's kernel; another one is faster"),
            (100 * _encoder_ms("torch cuDNN") / FLOOR_MS, "that is upside down: no kernel is above its floor"),
        ),
        read_again=MEASURED,
    ),
    Question(
        "window_floors",
        1,
        "The model with a window: how many times the window's floor the exact one's is",
        PAIRS,
        misconceptions=(
            (WINDOWED / WINDOW, "exact attention is causal, too: its query sees half of the keys on average"),
            (EXACT_MS / WINDOW_MS, "that is measured; the floors are computed"),
        ),
        tolerance=0.02,
        read_again=FITS,
    ),
    Question(
        "window_times",
        1,
        "The model with a window: how many times as fast the fastest window is as the fastest exact kernel",
        EXACT_MS / WINDOW_MS,
        tolerance=0.01,  # the ratio of the floors is only 3 % smaller
        misconceptions=(
            (PAIRS, "that is the ratio of the floors; the kernels are not equally far from theirs"),
            (EXACT_MS / _windowed_ms("window of 4096, Flex"), "that is FlexAttention's window; another one is faster"),
            (_windowed_ms("torch FLASH") / WINDOW_MS, "FLASH is not the fastest exact kernel"),
        ),
        read_again=MEASURED,
    ),
    Question(
        "text_floor",
        1,
        "The short text: least time on an H200, in µs",
        TEXT_FLOOR_US,
        unit="µs",
        tolerance=0.02,
        misconceptions=(
            (1e6 * TEXT_FLOPS / H200.half_flops, "that is the arithmetic's floor; the larger of the two counts"),
        ),
        read_again=FITS,
    ),
    Question(
        "text_call",
        1,
        "The short text: µs of a call of the kernel that you would choose",
        min(CALLS_US.values()),
        unit="µs",
        tolerance=0.02,
        misconceptions=(
            (KERNELS_US[QUICKEST], "that is the shortest time on the GPU; a call of that kernel takes far longer"),
            (CALLS_US[QUICKEST], "that is the kernel with the shortest time on the GPU; another one's call is shorter"),
            (CALLS_US["torch cuDNN"], "that is cuDNN's call; another one's is shorter"),
        ),
        read_again=SHORT,
    ),
)

EXERCISE = Exercise(
    id="08_choosing/measure_and_decide",
    title="Measure and decide",
    difficulty=2,
    importance=4,
    parts=(
        Part("times", 3, "Predicted times: within 25 % of the measured ones"),
        Part("memory", 2, "Predicted memory: within 10 % of the measured one"),
        Part("exact", 3, "Exact attention wherever it is affordable, by its fastest kernel"),
        Part("window", 3, "The window where it must be and may be, by its fastest kernel"),
        Part("nothing", 2, "None where nothing will do, and only there"),
    ),
    questions=QUESTIONS,
    cells=("answers", "decide"),
    collect=collect,
    judge=judge,
)
