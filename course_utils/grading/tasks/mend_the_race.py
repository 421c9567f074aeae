"""How 02_flash_attention_minimal/mend_the_race is graded: by what the sanitizer finds and by the values, together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import checks, reference
from course_utils.costs import ceil_div, least_bytes
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.names import DIFFERENT_BARRIERS, NEVER_WRITTEN
from course_utils.grading.wrong_values import one_hot_values, places, weights_in, wrong_weights

TILE = D = 64  # keys of a tile; columns
AXES = ("sequence", "head", "query", "column")
LOG2_E = math.log2(math.e)
SANITIZER = "02 FlashAttention, minimal, section 12, 'Mistakes that only a sanitizer shows'"
ALGORITHM = "02 FlashAttention, minimal, section 3, 'The tiled algorithm'"


def _case(
    part: str,
    name: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    scale: float,
    one_hot: bool = False,
) -> Case:
    """One launch, one query for each head. one_hot: each key has a column of its own, so O is the keys' weights."""
    query, key, value = (x.contiguous() for x in inputs)
    B, H, L_k, _ = key.shape
    launch = Launch(
        kernel="mend_the_race",
        grid=(H, B),
        block=(D,),
        arguments=("Q", "K", "V", "O", np.int32(L_k), np.float32(scale)),
    )
    S = query @ key.mT * scale
    base_2 = torch.exp2(S * LOG2_E - (S * LOG2_E).amax(dim=-1, keepdim=True))
    same = torch.softmax(S, dim=-1) @ value, base_2 / base_2.sum(dim=-1, keepdim=True) @ value
    exact = reference.attention(query.double(), key.double(), value.double(), scale=scale)
    return Case(
        part=part,
        name=f"B={B} H={H} L_k={L_k}, {name}",
        launches=(launch,),
        inputs={"Q": query, "K": key, "V": value},
        outputs={"O": Output(expected=exact, same_dtype=same, axes=AXES)},
        facts={"scale": scale, "one_hot": one_hot},
        must_be_clean=True,
        explain=explain,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Whole tiles first, then a tile that ends early, then both together. Lengths and the scale are drawn."""

    drawn = partial(between, generator)

    def case(part: str, B: int, H: int, L_k: int, kind: str = "normal") -> Case:
        """kind: of `checks.KINDS`, or "the largest score last"."""
        scale = float(np.float32(0.05 + 0.05 * torch.rand((), generator=generator).item()))
        last = kind not in checks.KINDS
        of_inputs = checks.AttentionCase(B, H, H, 1, L_k, D, False, "normal" if last else kind, scale)
        query, key, value, _ = checks.make_inputs(of_inputs, seed=drawn(0, 2**31 - 1))
        if last:
            key[:, :, -1:] = query * 25 / (scale * query.square().sum(dim=-1, keepdim=True))
        return _case(part, kind, (query, key, value), scale)

    return [
        case("one_tile", 1, 1, TILE),
        case("tiles", 1, 1, drawn(3, 4) * TILE, "the largest score last"),
        case("tiles", 1, 2, 2 * TILE, "large logits"),
        case("tail", 1, 1, drawn(33, 62)),
        case("tail", 1, 1, drawn(2, 31), "offset on V"),
        _one_hot("together", generator, drawn(193, 250)),
        _far_from_zero("together", generator, drawn(65, 120)),
        case("together", 2, 3, drawn(65, 120), "overflowing exp"),
        case("together", 1, 1, drawn(1030, 1080), "the largest score last"),
        case("together", 2, drawn(2, 3), 1),
    ]


def experiments(generator: torch.Generator) -> list[Case]:
    """The weights of more keys than a small array holds."""
    return [_one_hot("together", generator, between(generator, 600, 639))]


def _one_hot(part: str, generator: torch.Generator, L_k: int) -> Case:
    """Heads that differ in V only, where each key has a column of its own: O is the keys' weights."""
    value = one_hot_values(L_k, D)
    query, key = (torch.randn(1, 1, length, D, generator=generator) for length in (1, L_k))
    key *= 0.2  # so that no weight is too small to be seen
    heads = value.shape[1]
    return _case(
        part,
        "a column for each key",
        (query.expand(-1, heads, -1, -1), key.expand(-1, heads, -1, -1), value),
        0.0625,
        one_hot=True,
    )


def _far_from_zero(part: str, generator: torch.Generator, L_k: int) -> Case:
    """Usual scores; the first 100, the others usual; about -20,000; and as low as can be where scores are turned to
    base 2.

    The last two are exact in fp32 whatever the order of the products.
    """
    query, key, value = (torch.randn(1, 4, length, D, generator=generator) for length in (1, L_k, L_k))
    query[:, :2] *= 0.25
    key[:, 1, :1] = 100 * query[:, 1] / query[:, 1].square().sum()
    query[:, 2:] = torch.eye(1, D)
    key[:, 2, :, 0] = -20_000 + torch.randint(64, (L_k,), generator=generator) / 16
    key[:, 3, :, 0] = -1e36 * between(generator, 220, 235)
    return _case(part, "scores far from 0", (query, key, value), 1.0)


def _missing(L_k: int) -> int:
    """Rows of the last tile that are no keys."""
    return ceil_div(L_k, TILE) * TILE - L_k


def explain(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Which columns nobody has written, and what the weights show where each key has a column of its own."""
    keys = case.inputs["K"].shape[2]
    missing = still_blank(outputs["O"])
    if missing.any():
        no_key = (torch.arange(D) >= D - _missing(keys)).expand_as(missing)
        if not torch.equal(missing, no_key):
            return None
        detail = f"{places(missing, AXES)}: never written. Each thread is a column of O, too"
        return Diagnosis("a thread that is no key leaves before it has stored its column", detail, ALGORITHM)
    if not case.facts["one_hot"]:
        return _first_keys_only(case, outputs["O"])
    got, expected = (weights_in(output, keys) for output in (outputs["O"], case.outputs["O"].expected))
    if said := wrong_weights(got, expected):
        return said
    total = got.double().sum().item()
    if math.isfinite(total) and abs(total - 1) > 1e-3:
        return Diagnosis("the weights of the keys do not add up to 1", f"They add up to {total:.4g}.", ALGORITHM)
    return None


def _first_keys_only(case: Case, out: Tensor) -> Diagnosis | None:
    """From which key on there are no weights, if O is right for the keys before."""
    query, key, value = (case.inputs[name].double() for name in "QKV")
    S = case.facts["scale"] * query @ key.mT
    weights = torch.exp(S - S.amax(dim=-1, keepdim=True)).mT
    of_first = (weights * value).cumsum(dim=2) / weights.cumsum(dim=2)  # [B, H, L_k, D]: O of the first 1, 2, ... keys
    error = (of_first - out.double()).abs().amax(dim=(0, 1, 3)).nan_to_num(nan=math.inf)
    first = int(error.argmin()) + 1
    if first == len(error) or error[first - 1] > 1e-3:
        return None
    return Diagnosis(f"keys {first} and later have no weight", "O is what the keys before them give", ALGORITHM)


FINDINGS = {
    "synccheck": Diagnosis(DIFFERENT_BARRIERS, read_again=SANITIZER),
    "initcheck": Diagnosis(NEVER_WRITTEN, read_again=SANITIZER),
}

# ---------------------------------------------------------------------------------------------- figures to predict

PROMPT = 100  # keys, of the question about the reads past the end
LENGTH, HEADS, MIB = 4096, 32, 1 << 20  # of the question about bytes
LEAST = least_bytes(1, HEADS, 1, LENGTH, D, 4)

QUESTIONS = (
    Question(
        name="barriers",
        points=1,
        title="Barriers that one tile needs, the two that stand there included",
        value=4,
        misconceptions=(
            (2, "those are the two that stand there; the sanitizer names what is missing"),
            (3, "one more: the roles change after S, after P, after the load, and before the next load"),
            (5, "one is not needed: ask at each place who writes next what others may still read"),
            (6, "not every place needs one: ask who writes next what others may still read"),
        ),
        read_again=SANITIZER,
    ),
    Question(
        name="past_floats",
        points=1,
        title="Floats of K past its end that the kernel as handed out reads, one head, L_k = 100",
        value=_missing(PROMPT) * D,
        misconceptions=(
            (_missing(PROMPT), "those are rows; each has 64 floats"),
            (4 * _missing(PROMPT) * D, "those are bytes"),
            (2 * _missing(PROMPT) * D, "that is K and V together"),
            (PROMPT % TILE * D, "those are the floats of the last tile that are keys"),
        ),
        read_again=ALGORITHM,
    ),
    Question(
        name="least_mib",
        points=1,
        title="MiB that this kernel must move at least: H = 32, L_k = 4096, D = 64, B = 1, fp32",
        value=LEAST / MIB,
        unit="MiB",
        misconceptions=(
            (LEAST / MIB / 2, "K and V both have to be read"),
            (LEAST / MIB / HEADS, "that is one head of 32"),
            (LEAST / MIB / 4, "those are numbers; each has 4 bytes"),
            (4 * HEADS * LENGTH**2 / MIB, "there is one query: S has one row for each head, and it stays on the chip"),
        ),
        read_again="02 FlashAttention, minimal, section 7, 'Two loop orders and their traffic'",
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/mend_the_race",
    title="Mend the race",
    difficulty=2,
    importance=3,
    kernels=("mend_the_race",),
    parts=(
        Part("one_tile", 2, "One full tile: right, and nothing found"),
        Part("tiles", 3, "Several full tiles: right, and no race"),
        Part("tail", 3, "A tile that ends early: right, and nothing read past the end"),
        Part("together", 4, "Heads, long and ragged, large logits"),
    ),
    cases=cases,
    mistakes=read_mistakes("02_flash_attention_minimal/mend_the_race"),
    experiments=experiments,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
    half_in_step=("tail", "together"),  # the barriers are the exercise; here more is asked for
)
