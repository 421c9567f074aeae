"""How exercise 02.1, online softmax, is graded: P and LSE of rows of scores, each row read twice in all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import costs
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Question

THREADS, WARP = 128, 32

_PIECES = "chapter 02, section 2, 'A list, split in two'"
_NUMBERS = "chapter 02, section 2, 'Two numbers'"
_TRAP = "chapter 02, section 2, 'The one trap'"
_OVERFLOW = "chapter 01, section 6, 'Softmax without overflow'"
_LSE = "chapter 02, section 10, 'What must be kept?'"

PARTS = (
    Part("rows", 2, "P of ordinary rows, the largest score first"),
    Part("late", 2, "P where the largest score comes late"),
    Part("large", 1, "P of large scores: ±50, and more than exp can hold"),
    Part("hidden", 1, "P with hidden keys (−∞), and rows of nothing else"),
    Part("lengths", 1, "P of any length: 1, 3, 31, 127, 129, 257"),
    Part("lse", 1, "The log-sum-exp"),
    Part("reads", 1, "S is read twice, not three times, and the sanitizer finds nothing"),
)


# ---------------------------------------------------------------------------------------------- cases


def _case(part: str, name: str, S: Tensor, *, judged: str = "P", **options: object) -> Case:
    """One launch on scores S `[R, L]`, fp32. judged: which of P and LSE the part is about."""
    rows, length = S.shape
    exact = S.double()
    kinds = {"P": "values", "LSE": "lse"}
    expected = {"P": torch.softmax(exact, dim=1).nan_to_num(nan=0.0), "LSE": torch.logsumexp(exact, dim=1)}
    outputs = {
        output: Output(expected[output], kind=kind if output in judged.split() else "scratch")
        for output, kind in kinds.items()
    }
    launch = Launch("online_softmax", (rows,), (THREADS,), ("S", "P", "LSE", np.int32(length)))
    return Case(part, name, (launch,), {"S": S}, outputs, **options)


def _normal(generator: torch.Generator, rows: int, length: int, spread: float = 2.0) -> Tensor:
    return spread * torch.randn(rows, length, generator=generator)


def _late(generator: torch.Generator) -> Tensor:
    """Rising rows; besides, a peak that comes late for its thread, its warp or the block."""
    S = _normal(generator, 5, 400).sort(dim=1).values
    for row, column in enumerate((399, 300, 3 * WARP, 2 * THREADS + WARP - 1)):
        S[row, column] = 9.0 + row
    return S


def _large(generator: torch.Generator) -> Tensor:
    S = _normal(generator, 6, 300)
    S[0] *= 50 / S[0].abs().max()
    S[0, 7 : 7 + 2 * THREADS + 1 : THREADS] = torch.tensor([50.0, -50.0, -50.0])
    S[1] = 50 - (S[1] * 100 / S[1].abs().max()).abs()
    S[2:4] += torch.tensor([[120.0], [1000.0]])
    S[4:] -= torch.tensor([[130.0], [1000.0]])
    return S


def _hidden(generator: torch.Generator) -> Tensor:
    """Keys hidden behind the middle, at the start, nearly everywhere, here and there, everywhere."""
    S = _normal(generator, 6, 300)
    S[0, 150:] = -torch.inf
    S[1, :200] = -torch.inf
    S[2] = -torch.inf
    S[2, 2 * THREADS - 7] = -3.0
    S[3, torch.rand(300, generator=generator) < 0.5] = -torch.inf
    S[4:] = -torch.inf
    S[5, :1] = -40.0
    return S


def _ends_high(generator: torch.Generator, length: int) -> Tensor:
    """Rows whose last score weighs about as much as all others."""
    S = _normal(generator, 3, length)
    S[:, -1] = S.logsumexp(dim=1)
    return S


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh scores for each part; few rows, since a block takes one."""
    falling = _normal(generator, 4, 300, 1.0).sort(dim=1, descending=True).values
    return [
        _case("rows", "rows that fall, L = 300", falling),
        _case("late", "rows that rise, L = 400", _late(generator)),
        _case("large", "large scores, L = 300", _large(generator)),
        _case("hidden", "hidden keys, L = 300", _hidden(generator)),
        *(_case("lengths", f"L = {length}", _ends_high(generator, length)) for length in (1, 3, 31, 127, 129, 257)),
        _case("lse", "log-sum-exp with hidden keys, L = 300", _hidden(generator), judged="LSE"),
        _case("lse", "log-sum-exp of large scores, L = 300", _large(generator), judged="LSE"),
        _case(
            "reads",
            "bytes requested, L = 333",
            _normal(generator, 3, 333),
            judged="P LSE",
            must_be_clean=True,
            review=_review,
        ),
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


# ---------------------------------------------------------------------------------------------- known mistakes

# What a thread knows: (m, l), fp32 tensors of the same shape. fp32, since overflow is part of what is simulated.
Known = tuple[Tensor, Tensor]
Merge = Callable[[Known, Known], Known]


def _base(m: Tensor) -> Tensor:
    return torch.where(m == -torch.inf, torch.zeros_like(m), m)


def _merge(a: Known, b: Known) -> Known:
    m = torch.maximum(a[0], b[0])
    return m, a[1] * torch.exp(a[0] - _base(m)) + b[1] * torch.exp(b[0] - _base(m))


def _first_not_rescaled(a: Known, b: Known) -> Known:
    m = torch.maximum(a[0], b[0])
    return m, a[1] + b[1] * torch.exp(b[0] - _base(m))


def _second_not_rescaled(a: Known, b: Known) -> Known:
    m = torch.maximum(a[0], b[0])
    return m, a[1] * torch.exp(a[0] - _base(m)) + b[1]


def _none_rescaled(a: Known, b: Known) -> Known:
    return torch.maximum(a[0], b[0]), a[1] + b[1]


def _wrong_way(a: Known, b: Known) -> Known:
    m = torch.maximum(a[0], b[0])
    return m, a[1] * torch.exp(_base(m) - a[0]) + b[1] * torch.exp(_base(m) - b[0])


def _first_wrong_way(a: Known, b: Known) -> Known:
    m = torch.maximum(a[0], b[0])
    return m, a[1] * torch.exp(_base(m) - a[0]) + b[1] * torch.exp(b[0] - _base(m))


def _nothing_yet(merge: Merge) -> Merge:
    """The merge, but a first part without scores is left out."""

    def guarded(a: Known, b: Known) -> Known:
        m, total = merge(a, b)
        return torch.where(a[1] == 0, b[0], m), torch.where(a[1] == 0, b[1], total)

    return guarded


def _unguarded(a: Known, b: Known) -> Known:
    m = torch.maximum(a[0], b[0])
    return m, a[1] * torch.exp(a[0] - m) + b[1] * torch.exp(b[0] - m)


def _newest_maximum(a: Known, b: Known) -> Known:
    """The maximum of the newest instead of all."""
    return b[0], a[1] * torch.exp(a[0] - _base(b[0])) + b[1]


def _xor(lane: Tensor, step: int) -> Tensor:
    return lane ^ step


def _down(lane: Tensor, step: int) -> Tensor:
    return torch.where(lane + step < WARP, lane + step, lane)


def _known(
    S: Tensor,
    *,
    loop: Merge = _merge,
    lanes: Merge | None = _merge,
    warps: Merge | None = _merge,
    source: Callable[[Tensor, int], Tensor] = _xor,
    own_twice: bool = False,
    start: float = -math.inf,
) -> Known:
    """(m, l) as each of the 128 threads of a row knows them in the end, `[R, 128]`; None leaves a level out.

    own_twice: to what its warp knows, a thread adds what all warps know.
    """
    m, total = torch.full((len(S), THREADS), start), torch.zeros(len(S), THREADS)
    for piece in S.split(THREADS, dim=1):
        n = piece.shape[1]
        m[:, :n], total[:, :n] = loop((m[:, :n], total[:, :n]), (piece, torch.ones_like(piece)))
    m, total = m.view(len(S), -1, WARP), total.view(len(S), -1, WARP)
    lane = torch.arange(WARP)
    for step in (16, 8, 4, 2, 1) if lanes else ():
        other = source(lane, step)
        m, total = lanes((m, total), (m[..., other], total[..., other]))
    if warps:
        first = [(m[:, w, :1], total[:, w, :1]) for w in range(THREADS // WARP)]
        block = first[0]
        for other in first[1:]:
            block = warps(block, other)
        whole = tuple(x[..., None].expand(-1, THREADS // WARP, WARP) for x in block)
        m, total = _merge((m, total), whole) if own_twice else whole
    return m.reshape(len(S), THREADS), total.reshape(len(S), THREADS)


def _write(S: Tensor, known: Known, *, guarded: bool = True) -> dict[str, Tensor]:
    """P and LSE from what the threads know: thread j % 128 writes column j, thread 0 the log-sum-exp."""
    of_column = torch.arange(S.shape[1]) % THREADS
    m, total = known
    P = torch.exp(S - m[:, of_column]) / total[:, of_column]
    lse = m[:, 0] + torch.log(total[:, 0])
    if guarded:
        P = torch.where(total[:, of_column] == 0, torch.zeros_like(P), P)
        lse = torch.where(total[:, 0] == 0, torch.full_like(lse, -torch.inf), lse)
    return {"P": P.double(), "LSE": lse.double()}


def _reduction(case: Case, **wrong: object) -> dict[str, Tensor]:
    """The outputs where `_known` is wrong in one place."""
    S = case.inputs["S"]
    return _write(S, _known(S, **wrong))


def _no_maximum(case: Case) -> dict[str, Tensor]:
    S = case.inputs["S"]
    total = torch.exp(S).sum(dim=1, keepdim=True)
    return {"P": (torch.exp(S) / total).double(), "LSE": torch.log(total[:, 0]).double()}


def _maximum_from_zero(case: Case) -> dict[str, Tensor]:
    S = case.inputs["S"]
    m = S.amax(dim=1, keepdim=True).clamp(min=0)
    total = torch.exp(S - m).sum(dim=1, keepdim=True)
    return _write(S, (m.expand(-1, THREADS), total.expand(-1, THREADS)))


def _not_divided(case: Case) -> dict[str, Tensor]:
    S = case.inputs["S"].double()
    return {"P": torch.exp(S - _base(S.amax(dim=1, keepdim=True)))}


def _unguarded_end(case: Case) -> dict[str, Tensor]:
    """Right but for rows without keys: 0 / 0, or exp(−∞ − (−∞))."""
    S = case.inputs["S"]
    return _write(S, _known(S), guarded=False)


def _full_pieces_only(case: Case) -> dict[str, Tensor] | None:
    """The last, ragged piece is left out of m and l."""
    S = case.inputs["S"]
    full = S.shape[1] // THREADS * THREADS
    return _write(S, _known(S[:, :full])) if full < S.shape[1] else None


def _padded_with_zeros(case: Case) -> dict[str, Tensor] | None:
    """The last piece is filled up by scores of 0, which count."""
    S = case.inputs["S"]
    missing = -S.shape[1] % THREADS
    known = _known(torch.nn.functional.pad(S, (0, missing)))
    return _write(S, known) if missing else None


def _lse(of: Callable[[Tensor, Tensor], Tensor], case: Case) -> dict[str, Tensor]:
    """A log-sum-exp made of m and l in another way."""
    S = case.inputs["S"].double()
    m = S.amax(dim=1)
    total = torch.exp(S - _base(m)[:, None]).sum(dim=1)
    lse = of(m, total)
    return {"LSE": torch.where(total == 0, torch.full_like(lse, -torch.inf), lse)}


_NOT_RESCALED = Diagnosis(
    "l is not rescaled when the maximum changes",
    "l is a sum of exp(score − m) for the m of that time; when m rises, the old l takes the factor exp(m_old − m_new)",
    _NUMBERS,
)
_NOT_WEIGHTED = Diagnosis(
    "partial sums are added without their factors",
    "each thread and each warp has its own m: its l counts exp(m_own − m) times in the whole",
    _PIECES,
)
_WRONG_SIGN = Diagnosis(
    "the rescale factor is upside down",
    "the factor is exp(m_old − m_new), at most 1; here it is exp(m_new − m_old)",
    _NUMBERS,
)
_NOT_A_NUMBER = Diagnosis(
    "two empty parts merge to NaN",
    "both maxima are −∞, and exp(−∞ − (−∞)) is NaN: subtract 0 where the maximum is still −∞",
    _TRAP,
)
_ONLY_OWN = Diagnosis(
    "the lanes of a warp do not share what they know",
    "each thread uses m and l of its own scores: part 2 must put 32 lanes together",
    _PIECES,
)
_WARPS_ALONE = Diagnosis(
    "the warps do not share what they know",
    "each warp uses m and l of its own scores: part 3 must put 4 warps together",
    _PIECES,
)
_ONLY_LANE_0 = Diagnosis(
    "only lane 0 holds the result of the shuffles",
    "after __shfl_down_sync lane 0 knows all, the others a mixture; __shfl_xor_sync gives all lanes the same",
    _PIECES,
)


Simulate = Callable[[Case], Mapping[str, Tensor] | None]


def _mistake(name: str, detail: str, read_again: str, simulate: Simulate) -> Mistake:
    return Mistake(Diagnosis(name, detail, read_again), simulate)


def _same_everywhere(merge: Merge) -> dict[str, Merge]:
    return {"loop": merge, "lanes": merge, "warps": merge}


MISTAKES = (
    Mistake(_NOT_RESCALED, partial(_reduction, loop=_first_not_rescaled)),
    Mistake(_NOT_RESCALED, partial(_reduction, loop=_none_rescaled)),
    Mistake(_NOT_RESCALED, partial(_reduction, **_same_everywhere(_first_not_rescaled))),
    Mistake(_NOT_RESCALED, partial(_reduction, **_same_everywhere(_none_rescaled))),
    Mistake(_NOT_WEIGHTED, partial(_reduction, **_same_everywhere(_second_not_rescaled))),
    *(
        Mistake(_NOT_WEIGHTED, partial(_reduction, **{level: merge}))
        for merge in (_none_rescaled, _first_not_rescaled, _second_not_rescaled)
        for level in ("lanes", "warps")
    ),
    Mistake(_NOT_WEIGHTED, partial(_reduction, lanes=_none_rescaled, warps=_none_rescaled)),
    *(
        Mistake(_WRONG_SIGN, partial(_reduction, **where))
        for merge in (_wrong_way, _first_wrong_way, _nothing_yet(_wrong_way), _nothing_yet(_first_wrong_way))
        for where in (_same_everywhere(merge), {"loop": merge})
    ),
    Mistake(_NOT_A_NUMBER, partial(_reduction, **_same_everywhere(_unguarded))),
    Mistake(_NOT_A_NUMBER, partial(_reduction, loop=_unguarded)),
    Mistake(_NOT_A_NUMBER, partial(_reduction, lanes=_unguarded, warps=_unguarded)),
    Mistake(_NOT_A_NUMBER, partial(_reduction, lanes=_unguarded)),
    Mistake(_NOT_A_NUMBER, partial(_reduction, warps=_unguarded)),
    _mistake(
        "m is the newest score, not the largest so far",
        "the running maximum is max(m, score); with m = score the sum overflows as soon as a row falls",
        _NUMBERS,
        partial(_reduction, loop=_newest_maximum),
    ),
    Mistake(_ONLY_OWN, partial(_reduction, lanes=None, warps=None)),
    Mistake(_ONLY_OWN, partial(_reduction, lanes=None)),
    Mistake(_WARPS_ALONE, partial(_reduction, warps=None)),
    Mistake(_ONLY_LANE_0, partial(_reduction, source=_down, warps=None)),
    _mistake(
        "a warp's own part is merged twice",
        "what a thread knows after part 2 is in of_warp too: begin with of_warp[0], and merge the other three",
        _PIECES,
        partial(_reduction, own_twice=True),
    ),
    _mistake(
        "a row without keys gives NaN",
        "there m = −∞ and l = 0: write P = 0, LSE = −∞ instead of 0 / 0",
        _TRAP,
        _unguarded_end,
    ),
    _mistake(
        "the maximum is not subtracted",
        "exp overflows fp32 above 88.7 and is 0 below −103: take exp(score − m)",
        _OVERFLOW,
        _no_maximum,
    ),
    _mistake(
        "the maximum starts at 0 instead of −∞",
        "in a row of negative scores m stays 0, and every exp(score − m) may be 0",
        _TRAP,
        _maximum_from_zero,
    ),
    _mistake("P is not divided by l", "P = exp(score − m) / l: each row must add up to 1", _NUMBERS, _not_divided),
    _mistake(
        "the last piece of a row is left out",
        "the row does not end at a multiple of 128: m and l lack the scores behind it",
        _PIECES,
        _full_pieces_only,
    ),
    _mistake(
        "threads past the end of the row count as score 0",
        "a thread without a score knows m = −∞ and l = 0; a score of 0 is a key like any other",
        _PIECES,
        _padded_with_zeros,
    ),
    _mistake(
        "LSE lacks m", "LSE = m + log(l); here it is log(l) alone", _LSE, partial(_lse, lambda m, total: total.log())
    ),
    _mistake(
        "LSE lacks the logarithm", "LSE = m + log(l); here it is m + l", _LSE, partial(_lse, lambda m, total: m + total)
    ),
    _mistake("LSE is the maximum", "LSE = m + log(l); here it is m alone", _LSE, partial(_lse, lambda m, total: m)),
    _mistake(
        "LSE is in base 2",
        "LSE is a natural logarithm: logf, not log2f",
        _LSE,
        partial(_lse, lambda m, total: m + total.log2()),
    ),
    _mistake(
        "LSE is in base 2",
        "LSE is a natural logarithm: multiply by log(2) in the end",
        _LSE,
        partial(_lse, lambda m, total: m / math.log(2) + total.log2()),
    ),
)

FINDINGS = {
    "synccheck": Diagnosis(
        "not all threads come to a barrier or shuffle",
        read_again="chapter 00, section 10, 'Reading a finding'",
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
        read_again="chapter 01, section 9, 'The score matrix needs bandwidth'",
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/online_softmax",
    title="Online softmax",
    parts=PARTS,
    kernels=("online_softmax",),
    cases=cases,
    mistakes=MISTAKES,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
