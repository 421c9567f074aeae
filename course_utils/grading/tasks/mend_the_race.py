"""How 02_flash_attention_minimal/mend_the_race is graded: by what the sanitizer finds and by the values, together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils import reference
from course_utils.checks import AttentionCase, make_inputs
from course_utils.costs import ceil_div, least_bytes
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part, Question

TILE = D = 64  # keys of a tile; columns
SANITIZER = "chapter 02, section 12, 'Mistakes that only a sanitizer shows'"
ALGORITHM = "chapter 02, section 3, 'The tiled algorithm'"


def _case(part: str, generator: torch.Generator, shape: tuple[int, int, int], kind: str = "normal") -> Case:
    """One launch, one query for each head. shape: B, H, L_k. kind: of `checks.KINDS`."""
    B, H, L_k = shape
    seed = int(torch.randint(2**31, (), generator=generator))
    query, key, value, _ = make_inputs(AttentionCase(B, H, H, 1, L_k, D, False, kind), seed=seed)
    scale = float(np.float32(D**-0.5))
    launch = Launch(
        kernel="mend_the_race",
        grid=(H, B),
        block=(D,),
        arguments=("Q", "K", "V", "O", np.int32(L_k), np.float32(scale)),
    )
    exact = reference.attention(query, key, value, scale=scale)
    same = torch.softmax(query @ key.mT * scale, dim=-1) @ value
    return Case(
        part=part,
        name=f"B={B} H={H} L_k={L_k}, {kind}",
        launches=(launch,),
        inputs={"Q": query, "K": key, "V": value},
        outputs={"O": Output(expected=exact, same_dtype=same)},
        facts={"scale": scale},
        must_be_clean=True,
    )


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Whole tiles first, then a tile that ends early, then both together."""
    return [
        _case("one_tile", generator, (1, 1, TILE)),
        _case("tiles", generator, (1, 1, 3 * TILE)),
        _case("tiles", generator, (1, 2, 2 * TILE), "large logits"),
        _case("tail", generator, (1, 1, 40)),
        _case("tail", generator, (1, 1, 3), "offset on V"),
        _case("together", generator, (1, 3, 67)),
        _case("together", generator, (2, 2, 113), "overflowing exp"),
        _case("together", generator, (1, 3, 200)),
        _case("together", generator, (1, 1, 1)),
    ]


# ---------------------------------------------------------------------------------------------- known mistakes

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]  # K, V [B, H, L_k, D] -> as the mistake sees them


def _mistake(name: str, detail: str, change: Change) -> Mistake:
    def simulate(case: Case) -> Mapping[str, Tensor] | None:
        changed = change(case.inputs["K"].double(), case.inputs["V"].double())
        if changed is None:
            return None
        return {"O": reference.attention(case.inputs["Q"].double(), *changed, scale=case.facts["scale"])}

    return Mistake(Diagnosis(name, detail, ALGORITHM), simulate)


def _missing(L_k: int) -> int:
    """Rows of the last tile that are no keys."""
    return ceil_div(L_k, TILE) * TILE - L_k


def _zeros_behind(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    rows = _missing(key.shape[2])
    return tuple(torch.nn.functional.pad(x, (0, 0, 0, rows)) for x in (key, value)) if rows else None


def _last_again(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    rows = _missing(key.shape[2])
    return tuple(torch.cat([x, x[:, :, -1:].expand(-1, -1, rows, -1)], dim=2) for x in (key, value)) if rows else None


def _without_last_key(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    L_k = key.shape[2]
    return (key[:, :, :-1], value[:, :, :-1]) if L_k > 1 else None


def _whole_tiles(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    L_k = key.shape[2]
    whole = L_k // TILE * TILE
    return (key[:, :, :whole], value[:, :, :whole]) if 0 < whole < L_k else None


def _first_tile(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    return (key[:, :, :TILE], value[:, :, :TILE]) if key.shape[2] > TILE else None


MISTAKES = (
    _mistake(
        "the rows past L_k count as keys with score 0",
        "They were filled with zeros, but a score of 0 has the weight exp(0 − m). A row that is no key gets −∞.",
        _zeros_behind,
    ),
    _mistake(
        "the last key counts more than once",
        "A row past L_k was replaced by the last key. Its address is safe now, but its weight must be 0.",
        _last_again,
    ),
    _mistake(
        "the last key is left out",
        "The last tile has L_k − j0 keys, and not one less.",
        _without_last_key,
    ),
    _mistake(
        "the last tile is left out where it is not full",
        "The loop must go on while j0 < L_k.",
        _whole_tiles,
    ),
    _mistake(
        "only the first tile counts",
        "The loop must go on while j0 < L_k, and no thread may leave before its end.",
        _first_tile,
    ),
)

FINDINGS = {
    "synccheck": Diagnosis(
        "threads of a block wait at different barriers",
        read_again=SANITIZER,
    ),
    "initcheck": Diagnosis(
        "shared memory is read that nobody has written",
        read_again=SANITIZER,
    ),
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
        read_again="chapter 02, section 7, 'Two loop orders and their traffic'",
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/mend_the_race",
    title="Mend the race",
    kernels=("mend_the_race",),
    parts=(
        Part("one_tile", 2, "One full tile: right, and nothing found"),
        Part("tiles", 3, "Several full tiles: right, and no race"),
        Part("tail", 3, "A tile that ends early: right, and nothing read past the end"),
        Part("together", 4, "Heads, long and ragged, large logits"),
    ),
    cases=cases,
    mistakes=MISTAKES,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
    half_in_step=False,  # the barriers are the exercise
)
