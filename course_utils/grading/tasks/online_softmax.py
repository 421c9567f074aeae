"""How exercise 02.1, online softmax, is graded: P and LSE of rows of scores, each row read twice in all.

The parts follow the work: what one thread knows, what a warp knows, what the block knows. Sizes and places are drawn.
In most rows of drawn lengths each group of scores has half of the weight once ("planted"): from such a P one reads how
often each score was counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading.diagnosis import NOT_ALL_ARRIVE, wrong_values
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import places

THREADS, WARP = 128, 32
WARPS = THREADS // WARP

_PIECES = "02 FlashAttention, minimal, section 2, 'A list, split in two'"
_NUMBERS = "02 FlashAttention, minimal, section 2, 'Two numbers'"

PARTS = (
    Part("thread", 1, "P where one thread has all that counts, its largest score first"),
    Part("late", 1, "P where the largest score comes late"),
    Part("warp", 1, "P where one warp has all that counts"),
    Part("rows", 1, "P of rows that take all four warps"),
    Part("large", 1, "P of large scores: ±50, more than exp can hold, −20,000, −1e20"),
    Part("hidden", 1, "P with hidden keys (−∞), and rows of nothing else"),
    Part("lengths", 1, "P of any length, from 1 to more than 12,000"),
    Part("lse", 1, "The log-sum-exp"),
    Part("reads", 1, "S is read twice, not three times, and the sanitizer finds nothing"),
)


# ---------------------------------------------------------------------------------------------- cases


def _case(part: str, name: str, S: Tensor, *, judged: str = "P", rounded: bool = False, **options: object) -> Case:
    """One launch on scores S `[R, L]`, fp32. judged: P or LSE, or "". rounded: P may be as far off as in base 2."""
    rows, length = S.shape
    exact = S.double()
    P = torch.softmax(exact, dim=1).nan_to_num(nan=0.0)
    outputs = {
        "P": Output(P, same_dtype=_in_base_2(S) if rounded else None, axes=("row", "score")),
        "LSE": Output(torch.logsumexp(exact, dim=1), axes=("row",)),
    }
    outputs |= {name: replace(output, kind="scratch") for name, output in outputs.items() if name != judged}
    launch = Launch("online_softmax", (rows,), (THREADS,), ("S", "P", "LSE", np.int32(length)))
    return Case(part, f"{name}, L = {length}", (launch,), {"S": S}, outputs, **options)


def _in_base_2(S: Tensor) -> Tensor:
    """P in fp32 where each score is turned to base 2 before the maximum is subtracted: a large one is rounded there."""
    return torch.softmax((S * math.log2(math.e)).double() * math.log(2), dim=1).nan_to_num(nan=0.0)


def _normal(generator: torch.Generator, rows: int, length: int, spread: float = 2.0) -> Tensor:
    return spread * torch.randn(rows, length, generator=generator)


def _whole(generator: torch.Generator) -> int:
    """A length that is a multiple of 128: only the part about lengths depends on the end of a row."""
    return THREADS * between(generator, 3, 4)


def _planted_case(
    generator: torch.Generator, part: str, name: str, length: int, size: int = 1, **options: object
) -> Case:
    """A row for each `size` scores, and one for the last: there they have half of the weight, the others the rest."""
    group = torch.arange(length) // size
    group[-1] += size > 1
    own = group == group.unique()[:, None]
    count = own.sum(dim=1, keepdim=True)
    S = -torch.where(own, count, (length - count).clamp(min=1)).log()
    S += 6 * torch.rand(len(S), 1, generator=generator) - 3
    return _case(part, name, S, facts={"group": own.int().argmax(dim=0)}, explain=_counted, **options)


def _some_threads_case(generator: torch.Generator, part: str, name: str, scores: Tensor, threads: int = 1) -> Case:
    """Rows where one of the lots of `threads` neighbours, drawn, has these scores, and all others are 200 below.

    Only its P is judged. scores: `[R, turns · threads]`, as these threads read them.
    """
    rows, length = len(scores), scores.shape[1] // threads * THREADS
    S = _normal(generator, rows, length) + scores.amax(dim=1, keepdim=True) - 200
    lot = torch.arange(length) % THREADS // threads
    columns = (lot == between(generator, 0, THREADS // threads - 1)).nonzero().flatten()
    S[:, columns] = scores
    return _case(part, name, S, facts={"columns": columns}, compare=_in_columns)


def _in_columns(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    columns, P = case.facts["columns"], case.outputs["P"]
    judged = replace(P, expected=P.expected[:, columns], axes=("row", "score of these threads"))
    return wrong_values(replace(case, outputs={"P": judged}, compare=None), {"P": outputs["P"][:, columns]})


def _rising(generator: torch.Generator) -> Tensor:
    """What a thread reads: rising scores; rising by 110 in all; the last one far above the first; a peak."""
    turns = between(generator, 3, 4)
    S = _normal(generator, 4, turns).sort(dim=1).values
    S[1] += torch.linspace(-55, 55, turns)
    S[2] -= 50
    S[2, -1] += 100
    S[3, between(generator, 1, turns - 1)] = 9.0
    return S


def _peaks(generator: torch.Generator, threads: int) -> Tensor:
    """What some threads read: falling and rising rows, and peaks; in one row the last score is far above the first."""
    turns = between(generator, 3, 4)
    S = _normal(generator, 7, turns * threads)
    S[0] = S[0].sort(descending=True).values
    S[1] = S[1].sort().values
    S[2] += torch.linspace(-50, 50, S.shape[1])
    for row, quarter in enumerate(range(0, threads, threads // 4), start=3):  # of all 128 threads: a warp
        S[row, threads * between(generator, 0, turns - 1) + quarter + between(generator, 0, threads // 4 - 1)] = 9.0
    return S


def _one_ulp_apart(generator: torch.Generator) -> Tensor:
    """Rows of one number each; in all but the first a score is up to three steps of fp32 above it."""
    base = 40 * torch.rand(4, 1, generator=generator) - 20
    ulp = torch.nextafter(base.abs(), torch.tensor(torch.inf)) - base.abs()
    steps = torch.randint(0, 4, (4, _whole(generator)), generator=generator)
    steps[0] = 0
    return base + ulp * steps


def _large(generator: torch.Generator) -> Tensor:
    """From −50 to 50; negative, from −50 to −200; and around ±1000 or so."""
    length = _whole(generator)
    S = _normal(generator, 6, length)
    S[0] *= 50 / S[0].abs().max()
    S[0, 7 : 7 + 2 * THREADS + 1 : THREADS] = torch.tensor([50.0, -50.0, -50.0])
    S[1] = -50 - (S[1] * 150 / S[1].abs().max()).abs()
    S[2:] += torch.tensor([[120.0], [1000.0], [-130.0], [-1000.0]])
    return S


def _far_below(generator: torch.Generator) -> Tensor:
    """Scores near −20,000, in one row with a rest that is farther below, and near −10,000."""
    S = _normal(generator, 4, _whole(generator)) - 20_000 - 500 * torch.rand(4, 1, generator=generator)
    S[1, 2 * WARP :] -= 20_000
    S[3] = _normal(generator, 1, S.shape[1]) - 10_050
    return S


def _finite_minimum(generator: torch.Generator) -> Tensor:
    """Rows of one finite score of −1e20 or less: alone, and below ordinary scores; one just below −1e9; and one that is
    as low as it can be where scores are turned to base 2, beside hidden keys.
    """
    S = torch.full((4, _whole(generator)), -(10.0 ** between(generator, 20, 37)))
    S[1, THREADS - 7 :: 3] = _normal(generator, 1, S.shape[1])[0, THREADS - 7 :: 3]
    S[2] = -1e9 - 64
    S[3] = -1e36 * between(generator, 220, 235)  # log2(e) times that is still a number of fp32
    S[3, torch.rand(S.shape[1], generator=generator) < 0.5] = -torch.inf
    return S


def _hidden(generator: torch.Generator) -> Tensor:
    """Keys hidden at the end, at the start, for a whole warp, here and there, nearly everywhere, everywhere."""
    length = _whole(generator)
    S = _normal(generator, 7, length)
    S[0, between(generator, 100, length - 1) :] = -torch.inf
    S[1, : between(generator, THREADS + 1, length - 1)] = -torch.inf
    S[2, torch.arange(length) % THREADS // WARP == between(generator, 0, WARPS - 1)] = -torch.inf
    S[3, torch.rand(length, generator=generator) < 0.5] = -torch.inf
    S[4:] = -torch.inf
    S[4, between(generator, 0, length - 1)] = -3.0
    S[6, THREADS - 1] = -5.0  # the last warp alone knows something
    return S


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh scores for each part; few rows, since a block takes one."""
    draw, planted, alone = (partial(make, generator) for make in (between, _planted_case, _some_threads_case))
    reads = {"must_be_clean": True}
    return [
        alone("thread", "scores that fall", _rising(generator).sort(descending=True).values),
        alone("late", "scores that rise", _rising(generator)),
        alone("warp", "peaks everywhere", _peaks(generator, WARP), WARP),
        _case("rows", "peaks everywhere", _peaks(generator, THREADS)),
        _case("rows", "equal scores, or one step apart", _one_ulp_apart(generator)),
        _case("large", "large scores", _large(generator), rounded=True, explain=_sums),
        _case("large", "scores near -20,000", _far_below(generator), rounded=True, explain=_sums),
        _case("large", "scores of -1e20 or less", _finite_minimum(generator), explain=_sums),
        _case("hidden", "hidden keys", _hidden(generator)),
        *(
            planted("lengths", "peaks everywhere", length, size)
            for length, size in (
                (1, 1),
                (draw(2, WARP - 1), 1),
                (draw(WARP + 1, THREADS - 1), 4),
                (THREADS * draw(1, 2) + draw(1, THREADS - 1), 16),
                (draw(513, 900), 32),
                (draw(1025, 1500), 64),
                (draw(12_300, 12_900), 4096),  # more than fits into shared memory
            )
        ),
        planted("lse", "log-sum-exp", THREADS * draw(5, 7) + draw(1, THREADS - 1), 32, judged="LSE"),
        _case("lse", "log-sum-exp with hidden keys", _hidden(generator), judged="LSE"),
        _case("lse", "log-sum-exp of large scores", _large(generator), judged="LSE"),
        _case("lse", "log-sum-exp near -20,000", _far_below(generator), judged="LSE"),
        _case("lse", "log-sum-exp of -1e20 or less", _finite_minimum(generator), judged="LSE"),
        # One length is odd, one a multiple of 128: a kernel that reads vectors, or pieces, has a loop for either.
        _case(
            "reads", "bytes requested", _normal(generator, draw(2, 5), 2 * draw(150, 200) + 1), review=_review, **reads
        ),
        _case("reads", "bytes requested", _normal(generator, 2, THREADS * draw(9, 11)), review=_review, **reads),
        _case("reads", "short rows", _normal(generator, draw(2, 5), 2 * draw(1, 15) + 1), judged="", **reads),
    ]


def _review(case: Case, outcome: Outcome) -> Diagnosis | None:
    """S may be read twice: once for m and l, once for P."""
    size = 4 * case.inputs["S"].numel()
    times = outcome.loaded_bytes / size
    if times < 2.5:  # a row padded up to whole pieces, by reads of a safe address, is not read a third time
        return None
    passes = "m and l take one read together: three passes are the softmax of chapter 01"
    return Diagnosis(
        "S is read more than twice",
        f"the kernel requests {outcome.loaded_bytes:,} bytes, S has {size:,}: read {times:.3g} times; {passes}",
        _NUMBERS,
    )


# ---------------------------------------------------------------------------------------------- what is seen


def _sums(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Whether all that is wrong with P is the sum of its rows, as far as the rounding of LSE explains it."""
    got, expected = outputs["P"].double(), case.outputs["P"].expected
    sums, LSE = got.sum(dim=1), case.outputs["LSE"].expected.float()
    step = torch.nextafter(LSE.abs(), torch.tensor(torch.inf)) - LSE.abs()
    if (sums.log().abs() > step).any() or not torch.allclose(got / sums[:, None], expected, rtol=1e-4, atol=1e-7):
        return None
    row = int(sums.log().abs().argmax())
    words = (
        f"row {row} adds up to {sums[row].item():.7g}. Near its LSE of {LSE[row].item():.6g} neighbours in fp32 "
        f"are {step[row].item():.1g} apart: exp(score − LSE) has an error like that, exp(score − m) / l has not"
    )
    return Diagnosis("the rows of P do not add up to 1", words, _NUMBERS)


def _counted(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """How often the scores of a planted case are counted in l; None where they are counted in parts, or all once."""
    group, P, lse = case.facts["group"], case.outputs["P"], case.outputs["LSE"]
    if P.kind != "scratch" and (blank := still_blank(outputs["P"])).any():
        where = places(blank.any(dim=0), ("score",))
        count = f"{int(blank.sum())} of {blank.numel()} elements are as they were before the launch"
        return None if blank.all() else Diagnosis(f"P is never written at {where}", count)
    of_groups = torch.zeros(len(P.expected), len(P.expected), dtype=torch.float64)
    of_groups.index_add_(1, group, P.expected)
    who = "the l in LSE"
    times = (outputs["LSE"].double() - lse.expected).exp()[:, None]  # l over the right l
    if P.kind != "scratch":
        who, times = "l", P.expected / outputs["P"].double()
    if not torch.isfinite(times).all():
        return None
    counts = torch.linalg.solve(of_groups, times)  # [group, column]: how often the group's scores are in the column's l
    if (counts - counts.round()).abs().max() > 0.1 or (counts.round() == 1).all():
        return None
    counts = counts.round()
    column = 0
    if (counts != counts[:, :1]).any():
        column = int((counts != 1).any(dim=0).nonzero()[0])
        who = f"l of thread {column % THREADS}"
    lost, more = counts[group, column] < 1, counts[group, column] > 1
    if lost.any():
        return Diagnosis(f"{who} lacks {_scores(lost)}", _everybody(case), _PIECES)
    return Diagnosis(f"{who} counts {_scores(more)} more than once", _everybody(case), _PIECES)


def _everybody(case: Case) -> str:
    length = case.inputs["S"].shape[1]
    return f"read off rows where each score in its turn has much of the weight: all {length} must count, each once"


def _scores(which: Tensor) -> str:
    """Some of a row's scores, as those of threads where that says it: "the scores of threads 96 and later"."""
    thread = torch.arange(len(which)) % THREADS
    threads = torch.zeros(THREADS, dtype=torch.bool)
    threads[thread[which]] = True
    if len(which) > THREADS and torch.equal(threads[thread], which) and not threads.all():
        return f"the scores of {places(threads, ('thread',))}"
    return places(which, ("score",)) or "its only score"


# ---------------------------------------------------------------------------------------------- questions


def _traffic_ratio() -> float:
    """Bytes of chapter 01's softmax, over those of two reads and one write of the same scores."""
    step = costs.naive_requested(1, 1, 4096, 4096, 64)[1]
    return step.total / (3 * costs.score_matrix_bytes(1, 1, 4096, 4096, 4))


QUESTIONS = (
    Question(
        "new_l",
        1,
        "l after the scores 2, 2, 2 and then 5",
        3 * math.exp(2 - 5) + 1,
        misconceptions=(
            (4.0, "the old sum was not rescaled to the new maximum"),
            (3 * math.exp(3) + 1, "the factor is exp(m_old − m_new), not the other way round"),
            (4 * math.exp(-3), "the new score is the maximum now: it counts exp(0) = 1"),
            (3.0, "exp(5 − 5) = 1 counts too, and the old sum shrinks"),
        ),
        read_again=_NUMBERS,
    ),
    Question(
        "shuffles",
        1,
        "shuffles that a thread executes to put its warp together",
        2 * math.log2(WARP),
        misconceptions=(
            (5.0, "a part is two numbers, m and l: each takes a shuffle of its own"),
            (31.0, "the lanes are put together in a tree of 5 steps, not one after the other"),
            (62.0, "the lanes are put together in a tree of 5 steps, not one after the other"),
            (64.0, "the lanes are put together in a tree of 5 steps, not one after the other"),
        ),
        read_again=_PIECES,
    ),
    Question(
        "traffic_ratio",
        1,
        "bytes requested by chapter 01's softmax over those of this kernel, L = 4096",
        _traffic_ratio(),
        misconceptions=(
            (1.5, "P is written too: count 3 reads and 1 write against 2 reads and 1 write"),
            (3.0, "one read is saved, not two: P = exp(S − m) / l needs the scores again"),
            (2.0, "P is written in both, and S is read once more for P in both"),
        ),
        read_again="01 Attention basics, section 9, 'The score matrix needs bandwidth'",
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/online_softmax",
    title="Online softmax",
    difficulty=2,
    importance=5,
    parts=PARTS,
    kernels=("online_softmax",),
    cases=cases,
    mistakes=read_mistakes("02_flash_attention_minimal/online_softmax"),
    findings=NOT_ALL_ARRIVE,
    questions=QUESTIONS,
    cells=("answers",),
)
