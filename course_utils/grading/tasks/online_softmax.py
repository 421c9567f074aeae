"""How exercise 02.1, online softmax, is graded: P and LSE of rows of scores, each row read twice in all.

The parts follow the work: what one thread knows, what a warp knows, what the block knows. Sizes and places are drawn.
In most rows of drawn lengths each group of scores has half of the weight once ("planted"): from such a P one reads how
often each score was counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading import names
from course_utils.grading.diagnosis import READING_A_FINDING, wrong_values
from course_utils.grading.draws import between
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.seen import places

THREADS, WARP = 128, 32
WARPS = THREADS // WARP

_PIECES = "02 FlashAttention, minimal, section 2, 'A list, split in two'"
_NUMBERS = "02 FlashAttention, minimal, section 2, 'Two numbers'"
_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
_OVERFLOW = "01 Attention basics, section 6, 'Softmax without overflow'"
_LSE = "02 FlashAttention, backward, section 14, 'What must be kept'"

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
        # One length is odd, one whole pieces of 128: whoever reads by vectors, or by pieces, has a loop for each.
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


# ---------------------------------------------------------------------------------------------- known mistakes

# What a thread knows: (m, l), fp32 arrays of the same shape: overflow is part of what is simulated. They are NumPy's,
# whose small operations take half of torch's time.
Known = tuple[np.ndarray, np.ndarray]
Merge = Callable[[Known, Known], Known]


def _base(m: np.ndarray) -> np.ndarray:
    return np.where(m == -np.inf, np.float32(0), m)


def _merge(a: Known, b: Known) -> Known:
    m = np.fmax(a[0], b[0])
    return m, a[1] * np.exp(a[0] - _base(m)) + b[1] * np.exp(b[0] - _base(m))


def _first_not_rescaled(a: Known, b: Known) -> Known:
    m = np.fmax(a[0], b[0])
    return m, a[1] + b[1] * np.exp(b[0] - _base(m))


def _second_not_rescaled(a: Known, b: Known) -> Known:
    m = np.fmax(a[0], b[0])
    return m, a[1] * np.exp(a[0] - _base(m)) + b[1]


def _none_rescaled(a: Known, b: Known) -> Known:
    return np.fmax(a[0], b[0]), a[1] + b[1]


def _wrong_way(a: Known, b: Known) -> Known:
    m = np.fmax(a[0], b[0])
    return m, a[1] * np.exp(_base(m) - a[0]) + b[1] * np.exp(_base(m) - b[0])


def _first_wrong_way(a: Known, b: Known) -> Known:
    m = np.fmax(a[0], b[0])
    return m, a[1] * np.exp(_base(m) - a[0]) + b[1] * np.exp(b[0] - _base(m))


def _nothing_yet(merge: Merge) -> Merge:
    """The merge, but a first part without scores is left out."""

    def guarded(a: Known, b: Known) -> Known:
        m, total = merge(a, b)
        return np.where(a[1] == 0, b[0], m), np.where(a[1] == 0, b[1], total)

    return guarded


def _unguarded(a: Known, b: Known) -> Known:
    m = np.fmax(a[0], b[0])
    return m, a[1] * np.exp(a[0] - m) + b[1] * np.exp(b[0] - m)


def _newest_maximum(a: Known, b: Known) -> Known:
    """The maximum of the newest instead of all."""
    return b[0], a[1] * np.exp(a[0] - _base(b[0])) + b[1]


def _larger_one(a: Known, b: Known) -> Known:
    """Only the part with the larger maximum; the first of two with the same."""
    return np.fmax(a[0], b[0]), np.where(b[0] > a[0], b[1], a[1])


def _larger_one_or_both(a: Known, b: Known) -> Known:
    m, total = _larger_one(a, b)
    return m, np.where(a[0] == b[0], a[1] + b[1], total)


def _first_one(a: Known, b: Known) -> Known:
    return a


def _last_one(a: Known, b: Known) -> Known:
    return b


def _xor(lane: np.ndarray, step: int) -> np.ndarray:
    return lane ^ step


def _down(lane: np.ndarray, step: int) -> np.ndarray:
    return np.where(lane + step < WARP, lane + step, lane)


def _half_a_step(lane: np.ndarray, step: int) -> np.ndarray:
    return lane ^ (step // 2)


def _known(
    S: np.ndarray,
    *,
    loop: Merge = _merge,
    lanes: Merge | None = _merge,
    warps: Merge | None = _merge,
    source: Callable[[np.ndarray, int], np.ndarray] = _xor,
    source_of_l: Callable[[np.ndarray, int], np.ndarray] | None = None,
    steps: tuple[int, ...] = (16, 8, 4, 2, 1),
    speaker: int = 0,
    told: int = THREADS,
    own_twice: bool = False,
    start: float = -math.inf,
) -> Known:
    """(m, l) as each of the 128 threads of a row knows them in the end, `[R, 128]`; None leaves a level out.

    source: the lane that a lane asks in each of the steps; source_of_l: another one for l. speaker: the lane that
    writes what its warp knows. told: so many threads learn what all warps know. own_twice: to what its warp knows, a
    thread adds what all warps know.
    """
    rows, one = len(S), np.float32(1)
    m, total = np.full((rows, THREADS), start, np.float32), np.zeros((rows, THREADS), np.float32)
    for first in range(0, S.shape[1], THREADS):
        piece = S[:, first : first + THREADS]
        n = piece.shape[1]
        m[:, :n], total[:, :n] = loop((m[:, :n], total[:, :n]), (piece, one))
    m, total = m.reshape(rows, WARPS, WARP), total.reshape(rows, WARPS, WARP)
    lane = np.arange(WARP)
    for step in steps if lanes else ():
        other, of_l = source(lane, step), (source_of_l or source)(lane, step)
        m, total = lanes((m, total), (m[..., other], total[..., of_l]))
    if warps:
        block = m[:, 0, speaker, None, None], total[:, 0, speaker, None, None]
        for w in range(1, WARPS):
            block = warps(block, (m[:, w, speaker, None, None], total[:, w, speaker, None, None]))
        whole = _merge((m, total), block) if own_twice else block
        learns = np.arange(THREADS).reshape(WARPS, WARP) < told
        m, total = np.where(learns, whole[0], m), np.where(learns, whole[1], total)
    return m.reshape(rows, THREADS), total.reshape(rows, THREADS)


def _write(S: np.ndarray, known: Known, *, guarded: bool = True) -> dict[str, Tensor]:
    """P and LSE from what the threads know: thread j % 128 writes column j, thread 0 the log-sum-exp."""
    of_column = np.arange(S.shape[1]) % known[0].shape[1]
    m, total = known[0][:, of_column], known[1][:, of_column]
    P, lse = np.exp(S - m) / total, m[:, 0] + np.log(total[:, 0])
    if guarded:
        P, lse = np.where(total == 0, np.float32(0), P), np.where(total[:, 0] == 0, np.float32(-np.inf), lse)
    return {"P": torch.from_numpy(P), "LSE": torch.from_numpy(lse)}


def _reduction(S: np.ndarray, *, guarded: bool = True, **wrong: object) -> dict[str, Tensor]:
    """The outputs where `_known` is wrong in one place."""
    return _write(S, _known(S, **wrong), guarded=guarded)


def _relative_to(base: Callable[[np.ndarray], np.ndarray], S: np.ndarray, *, guarded: bool) -> dict[str, Tensor]:
    """The outputs where m is something else, of the whole row."""
    m = base(S)
    return _write(S, (m, np.exp(S - m).sum(axis=1, keepdims=True)), guarded=guarded)


def _not_divided(S: np.ndarray) -> dict[str, Tensor]:
    return {"P": torch.from_numpy(np.exp(S - _base(S.max(axis=1, keepdims=True))))}


def _full_pieces_only(S: np.ndarray) -> dict[str, Tensor] | None:
    """The last, ragged piece is left out of m and l. (Of a shorter row other mistakes leave nothing, either.)"""
    full = S.shape[1] // THREADS * THREADS
    return _write(S, _known(S[:, :full])) if 0 < full < S.shape[1] else None


def _whole_turns_only(taken: int, S: np.ndarray) -> dict[str, Tensor] | None:
    """A thread takes so many of its scores a turn; what is left over of them is in no turn."""
    piece, thread = np.divmod(np.arange(S.shape[1]), THREADS)
    has = -(-(S.shape[1] - thread) // THREADS)
    kept = piece < has // taken * taken
    return None if kept.all() else _write(S, _known(np.where(kept, S, np.float32(-np.inf))))


def _without_the_last(S: np.ndarray) -> dict[str, Tensor] | None:
    return _write(S, _known(S[:, :-1])) if S.shape[1] > 1 else None


def _padded_with_zeros(S: np.ndarray) -> dict[str, Tensor] | None:
    """The last piece is filled up by scores of 0, which count."""
    missing = -S.shape[1] % THREADS
    return _write(S, _known(np.pad(S, ((0, 0), (0, missing))))) if missing else None


def _taken_for_hidden(limit: float, S: np.ndarray) -> dict[str, Tensor]:
    S = np.where(S < limit, np.float32(-np.inf), S)
    return _write(S, _known(S))


def _lse(of: Callable[[np.ndarray, np.ndarray], np.ndarray], S: np.ndarray) -> dict[str, Tensor]:
    """A log-sum-exp made of m and l in another way."""
    m = S.max(axis=1)
    total = np.exp(S - _base(m)[:, None]).sum(axis=1)
    return {"LSE": torch.from_numpy(np.where(total == 0, np.float32(-np.inf), of(m, total)))}


def _lse_of_thread_0(S: np.ndarray) -> dict[str, Tensor]:
    """The row's m, and l of the scores that thread 0 has read."""
    m = S.max(axis=1)
    return {"LSE": torch.from_numpy(m + np.log(np.exp(S[:, ::THREADS] - _base(m)[:, None]).sum(axis=1)))}


Simulate = Callable[[np.ndarray], Mapping[str, Tensor] | None]


def _as_judged(simulate: Simulate, case: Case) -> Mapping[str, Tensor] | None:
    """What a mistake gives, but nothing where it does not show in the columns that a case is about."""
    with np.errstate(all="ignore"):
        given = simulate(case.inputs["S"].numpy())
    columns = case.facts.get("columns")
    if columns is None or not given:
        return given
    if "P" not in given:
        return None
    got, expected = given["P"][:, columns], case.outputs["P"].expected[:, columns]
    return None if torch.allclose(got.double(), expected, rtol=1e-3, atol=1e-3) else {"P": given["P"]}


def _mistakes(name: str, detail: str, read_again: str, *ways: Simulate) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which a kernel may make it."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_as_judged, way)) for way in ways)


def _reductions(*ways: Mapping[str, object]) -> tuple[Simulate, ...]:
    return tuple(partial(_reduction, **way) for way in ways)


def _bases(base: Callable[[np.ndarray], np.ndarray]) -> tuple[Simulate, ...]:
    return tuple(partial(_relative_to, base, guarded=guarded) for guarded in (False, True))


def _levels(merge: Merge, *levels: str) -> list[dict[str, Merge]]:
    """Where a merge may stand: each of the levels ("lanes+warps" is both at once)."""
    return [dict.fromkeys(level.split("+"), merge) for level in levels]


_ALL = "loop+lanes+warps"
_ENDS = ("lanes", "warps", "lanes+warps")

MISTAKES = (
    *_mistakes(
        names.L_NOT_RESCALED,
        "l is a sum of exp(score − m) for the m of that time; when m rises, the old l takes the factor "
        "exp(m_old − m_new)",
        _NUMBERS,
        *_reductions(
            *_levels(_first_not_rescaled, "loop", _ALL),
            *_levels(_none_rescaled, "loop", _ALL),
        ),
    ),
    *_mistakes(
        "partial sums are added without their factors",
        "each thread and each warp has its own m: its l counts exp(m_own − m) times in the whole",
        _PIECES,
        *_reductions(
            *_levels(_second_not_rescaled, _ALL, *_ENDS),
            *_levels(_none_rescaled, *_ENDS),
            *_levels(_first_not_rescaled, *_ENDS),
        ),
    ),
    *_mistakes(
        "of two parts, only the one with the larger maximum is kept",
        "the other part has scores, too: its l counts, times exp(m_own − m)",
        _PIECES,
        *_reductions(*_levels(_larger_one, *_ENDS), *_levels(_larger_one_or_both, *_ENDS)),
    ),
    *_mistakes(
        names.FACTOR_UPSIDE_DOWN,
        "the factor is exp(m_old − m_new), at most 1; here it is exp(m_new − m_old)",
        _NUMBERS,
        *_reductions(
            *(
                way
                for merge in (_wrong_way, _first_wrong_way, _nothing_yet(_wrong_way), _nothing_yet(_first_wrong_way))
                for way in _levels(merge, _ALL, "loop", "lanes+warps")
            )
        ),
    ),
    *_mistakes(
        "two empty parts merge to NaN",
        "both maxima are −∞, and exp(−∞ − (−∞)) is NaN: subtract 0 where the maximum is still −∞",
        _TRAP,
        *_reductions(*_levels(_unguarded, _ALL, "loop", *_ENDS)),
    ),
    *_mistakes(
        "m is the newest score, not the largest so far",
        "the running maximum is max(m, score); with m = score the sum overflows as soon as a row falls",
        _NUMBERS,
        *_reductions({"loop": _newest_maximum}),
    ),
    *_mistakes(
        "the lanes of a warp do not share what they know",
        "each thread uses m and l of its own scores: part 2 must put 32 lanes together",
        _PIECES,
        *_reductions({"lanes": None, "warps": None}, {"lanes": None}),
    ),
    *_mistakes(
        names.HALF_WARP,
        "32 lanes take five steps, 16, 8, 4, 2 and 1: without one of them half of the scores is missing in l",
        _PIECES,
        *_reductions(
            *({"steps": steps, "warps": warps} for steps in ((8, 4, 2, 1), (16, 8, 4, 2)) for warps in (_merge, None))
        ),
    ),
    *_mistakes(
        "l is taken from another lane than m",
        "a part is a pair: m and l of the same lane, as they were before either was changed",
        _PIECES,
        *_reductions(
            *(
                {"source": source, "source_of_l": of_l, "speaker": speaker}
                for source, of_l in ((_xor, _down), (_down, _xor), (_xor, _half_a_step))
                for speaker in (0, WARP - 1)
            )
        ),
    ),
    *_mistakes(
        "only lane 0 holds the result of the shuffles",
        "after __shfl_down_sync lane 0 knows all, the others a mixture; __shfl_xor_sync gives all lanes the same",
        _PIECES,
        *_reductions({"source": _down, "warps": None}, {"source": _down, "speaker": WARP - 1}),
    ),
    *_mistakes(
        "the warps do not share what they know",
        "each warp uses m and l of its own scores: part 3 must put 4 warps together",
        _PIECES,
        *_reductions({"warps": None}),
    ),
    *_mistakes(
        names.ONE_WARP_ONLY,
        "P and LSE are made of m and l of one warp's scores: part 3 must put all 4 warps together",
        _PIECES,
        *_reductions({"warps": _first_one}, {"warps": _last_one}),
    ),
    *_mistakes(
        "not all threads learn what the block knows",
        "each thread writes some of P: it needs m and l of the whole row",
        _PIECES,
        *_reductions({"told": 1}, {"told": WARP}, {"told": 1, "source": _down}, {"told": WARP, "source": _down}),
    ),
    *_mistakes(
        "a warp's own part is merged twice",
        "what a thread knows after part 2 is in of_warp too: begin with of_warp[0], and merge the other three",
        _PIECES,
        *_reductions({"own_twice": True}),
    ),
    *_mistakes(
        names.EMPTY_ROW_IS_NAN,
        "there m = −∞ and l = 0: write P = 0, LSE = −∞ instead of 0 / 0",
        _TRAP,
        *_reductions({"guarded": False}),
    ),
    *_mistakes(
        names.NO_MAXIMUM,
        "exp overflows fp32 above 88.7 and is 0 below −103: take exp(score − m)",
        _OVERFLOW,
        *_bases(lambda S: np.zeros_like(S[:, :1])),
    ),
    *_mistakes(
        names.FIRST_KEYS_SCORE,
        "exp(score − first) overflows fp32 where a later score is 88.7 above the first one",
        _OVERFLOW,
        *_bases(lambda S: S[:, :1]),
    ),
    *_mistakes(
        names.MAXIMUM_FROM_ZERO,
        "in a row of negative scores m stays 0, and every exp(score − m) may be 0",
        _TRAP,
        *_reductions({"start": 0.0}, {"start": 0.0, "guarded": False}),
    ),
    *_mistakes(
        names.MAXIMUM_FROM_FINITE,
        "in a row of scores far below that number every exp(score − m) is 0",
        _TRAP,
        *_reductions(*({"start": start, "guarded": guarded} for start in (-1e4, -1e9) for guarded in (True, False))),
    ),
    *_mistakes(
        "finite scores are taken for hidden ones",
        "only −∞ hides a key, and m starts there: a row of finite scores has a softmax, however low they are",
        _TRAP,
        *(partial(_taken_for_hidden, limit) for limit in (-1e4, -1e5, -1e9, -1e10, -1e38)),
    ),
    *_mistakes(names.NOT_DIVIDED, "P = exp(score − m) / l: each row must add up to 1", _NUMBERS, _not_divided),
    *_mistakes(
        "the last piece of a row is left out",
        "the row does not end at a multiple of 128: m and l lack the scores behind it",
        _PIECES,
        _full_pieces_only,
    ),
    *_mistakes(
        "what a thread has left over after its last whole turn is left out",
        "the loop takes several scores a turn; a thread may have another number of them, and all of them count",
        _PIECES,
        *(partial(_whole_turns_only, taken) for taken in (2, 4)),
    ),
    *_mistakes(names.LAST_KEY_LEFT_OUT, "m and l must take score L − 1, too", _PIECES, _without_the_last),
    *_mistakes(
        names.TAIL_COUNTS,
        "a thread without a score knows m = −∞ and l = 0; a score of 0 is a key like any other",
        _PIECES,
        _padded_with_zeros,
    ),
    *_mistakes(
        "LSE has the l of thread 0's own scores",
        "l of the row is known when lanes and warps are put together: LSE = m + log(l) comes after that",
        _LSE,
        _lse_of_thread_0,
    ),
    *_mistakes(
        names.LSE_LACKS_M,
        "LSE = m + log(l); here it is log(l) alone",
        _LSE,
        partial(_lse, lambda m, total: np.log(total)),
    ),
    *_mistakes(
        names.LSE_LACKS_LOG, "LSE = m + log(l); here it is m + l", _LSE, partial(_lse, lambda m, total: m + total)
    ),
    *_mistakes("LSE is m − log(l)", "LSE = m + log(l)", _LSE, partial(_lse, lambda m, total: m - np.log(total))),
    *_mistakes(names.LSE_IS_M, "LSE = m + log(l); here it is m alone", _LSE, partial(_lse, lambda m, total: m)),
    *_mistakes(
        "LSE counts one score too many",
        "l has the largest score in it, as exp(0) = 1: LSE = m + log(l), not m + log(1 + l)",
        _LSE,
        partial(_lse, lambda m, total: m + np.log1p(total)),
    ),
    *_mistakes(
        "LSE is made of exp(m)",
        "log(l · exp(m)) overflows where m is above 88.7: LSE = m + log(l)",
        _LSE,
        partial(_lse, lambda m, total: np.log(total * np.exp(m))),
    ),
    *_mistakes(
        names.LSE_BASE_2,
        "LSE is a natural logarithm: logf, not log2f; what is in base 2 takes the factor log(2)",
        _LSE,
        partial(_lse, lambda m, total: m + np.log2(total)),
        partial(_lse, lambda m, total: m / math.log(2) + np.log2(total)),
    ),
)

FINDINGS = {
    "synccheck": Diagnosis(
        names.NOT_ALL_ARRIVE,
        read_again=READING_A_FINDING,
    )
}


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
    mistakes=MISTAKES,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
