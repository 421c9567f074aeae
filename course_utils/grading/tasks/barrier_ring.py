"""Grading of "07_hopper/barrier_ring": tiles that come through a ring of buffers, each with two mbarriers.

A wrong protocol rarely leaves wrong numbers. It hangs, or the emulator stops it, or asynccheck finds what is read or
overwritten too early. Which mistake it was follows from the smallest case that shows it: one tile, as many as there are
buffers, or more; and from who waits at the end, and for what. That a kernel leaves buffers empty is neither: the
emulator counts the bytes that are on their way at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.emulator.sanitizer import Finding
from course_utils.grading.draws import between
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Outcome,
    Output,
    Part,
    Question,
)
from course_utils.grading.job import still_blank

D, KEYS, CONSUMERS = 64, 32, 2  # columns; keys of a whole tile; warps that compute
THREADS = 32 * (CONSUMERS + 1)
TILE_BYTES = KEYS * (D + 1) * 4  # of a whole tile, with its scales
RING = "07 Hopper, section 4, 'Step 3: producer and consumers'"
COPIES = "07 Hopper, section 3, 'Step 2: the copy engine'"
FENCES = "07 Hopper, section 13, 'The fence that is missing'"
SPEC = "this exercise, 'What to write'"


# ---------------------------------------------------------------------------------------------- the cases


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """One tile, then as many as there are buffers, then more; a short last tile has a part of its own."""
    draw = partial(between, generator)

    def case(
        part: str,
        buffers: int,
        tiles: int,
        missing: int = 0,
        heads: int = 1,
        thread_order: str | None = None,
        **options: object,
    ) -> Case:
        """missing: keys that the last tile lacks."""
        L_k = tiles * KEYS - missing
        query, key = (torch.randn(heads, rows, D, generator=generator) for rows in (CONSUMERS, L_k))
        scales = 0.5 + torch.rand(heads, L_k, generator=generator)
        expected = query.double() @ key.double().mT * scales.double()[:, None]
        launch = Launch(
            "barrier_ring",
            (heads,),
            (THREADS,),
            ("Q", "K", "scales", "S", np.int32(L_k)),
            (f"-DBUFFERS={buffers}",),
            thread_order=thread_order,
        )
        return Case(
            part=part,
            name=f"{buffers} buffer{'s' if buffers > 1 else ''}, {tiles} tile{'s' if tiles > 1 else ''}, L_k = {L_k}",
            launches=(launch,),
            inputs={"Q": query, "K": key, "scales": scales},
            outputs={"S": Output(expected, same_dtype=query @ key.mT * scales[:, None], axes=("head", "query", "key"))},
            facts={"tiles": tiles, "buffers": buffers},
            must_be_clean=True,
            **options,
        )

    def short() -> int:
        return draw(4, KEYS - 4, 4)

    return [
        case("one", 3, 1),
        case("once", 4, 4),
        case("once", 5, draw(2, 3)),
        case("any", 1, 2),
        case("around", 3, draw(7, 8), heads=2, review=_runs_ahead),
        case("around", 2, draw(5, 6), review=_runs_ahead),
        case("any", 1, draw(3, 4)),
        case("any", 5, draw(11, 12)),
        case("short", 3, draw(7, 8), short()),
        case("short", 3, 1, short()),
        case("short", 4, 4, short()),
        # By turns, the warps of a ring that gives a buffer back too often still end the phases they wait for.
        case("around", 3, draw(7, 8), heads=2, thread_order="random"),
    ]


def _runs_ahead(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether the producer asks for tiles until no buffer is empty. The emulator's copies come as late as they may."""
    buffers, asked = case.facts["buffers"], outcome.most_in_flight // TILE_BYTES  # there are more tiles than buffers
    if asked >= buffers:
        return None
    figures = (
        f"{case.name}: at most {outcome.most_in_flight:,} bytes are on their way at once, and the buffers hold "
        f"{buffers * TILE_BYTES:,}."
    )
    return LEAVES_EMPTY.with_figures(figures)


# ---------------------------------------------------------------------------------------------- what went wrong

LEAVES_EMPTY = Diagnosis(
    "right, but the producer waits while buffers are empty",
    "The copy engine pauses while the consumers compute, as if there were fewer buffers. Tile t is in buffer t mod "
    "BUFFERS, and before it the producer waits for one thing: that the tile before in that buffer was given back.",
    RING,
)

NEVER_ASKED = Diagnosis(
    "consumers wait for a tile that nobody has asked for",
    "A wait at `full` does not end: no copy was started for that buffer. Do producer and consumers count the same "
    "tiles, and is tile t in buffer t mod BUFFERS for both?",
    RING,
)
PRODUCER_WAITS_AT_ONCE = Diagnosis(
    "the producer waits for a fresh buffer to be given back: its first parity is wrong",
    "Nobody has used the buffer yet. Of a fresh mbarrier parity 1 counts as over, so the producer's parity is the "
    "consumers' turned round: 1, then 0, then 1.",
    RING,
)
NEVER_GIVEN_BACK = Diagnosis(
    "the consumers do not give their buffers back",
    "The producer has filled each buffer once and waits at `empty`, where nobody has arrived. After the last read of a "
    "tile somebody of each consumer warp arrives there.",
    RING,
)
TOO_FEW_ARRIVE = Diagnosis(
    "`empty` is initialised for more arrivals than come",
    "Some have arrived, and the phase still waits for others. Either all 32 lanes of each consumer arrive, or one of "
    "each does; `prepare` has to say the same.",
    RING,
)
FULL_TAKES_MORE = Diagnosis(
    "`full` is initialised for more arrivals than come",
    "At `full` one thread arrives, the producer, by arrive_expecting. The copies bring bytes, and do not arrive.",
    COPIES,
)
TOO_MANY_BYTES = Diagnosis(
    "more bytes are expected than the copies bring",
    "The phase of `full` cannot end: it waits for bytes that nobody sends. The last tile may be shorter than the "
    "others.",
    COPIES,
)
TOO_FEW_BYTES = Diagnosis(
    "fewer bytes are expected than the copies bring",
    "The phase of `full` ends when as many bytes have come as were expected, here before all have; what comes later "
    "counts in the next phase. Two copies come: keys and scales, 4 bytes a number.",
    COPIES,
)
ASKS_TOO_EARLY = Diagnosis(
    "the producer takes a full buffer for an empty one: its parity never flips, or it does not wait",
    "It expects bytes a second time in the same phase of `full`. Parity 1 of `empty` counts as over until the first "
    "phase has ended: the second time around the producer waits for parity 0.",
    RING,
)
TOO_MANY_ARRIVE = Diagnosis(
    "more arrive at `empty` than it is initialised for",
    "A phase ends before all are done with the tile, and those who come late end the next one: the producer takes "
    "buffers that are still read. `prepare` must say how many arrive, one lane of a warp or all 32.",
    RING,
)
NOT_WAITED = Diagnosis(
    "a tile is read before it has come",
    "Even the first tile is. A consumer waits at `full` of its buffer, for parity 0 the first time around: of a fresh "
    "mbarrier parity 1 counts as over, and a wait for it ends at once.",
    RING,
)
FLIPS_EACH_TILE = Diagnosis(
    "the consumers' parity flips with each tile, not with each time around the ring",
    "Each second tile is read before it has come. All buffers are in their first phase until the ring is full once: "
    "the parity is that of t / BUFFERS.",
    RING,
)
WRONG_BUFFER = Diagnosis(
    "the consumers wait for one buffer and read another",
    "The mbarrier that they wait at is over, and it is not the one at which this tile's bytes count. Tile t is in "
    "buffer t mod BUFFERS, and so are both of its mbarriers.",
    RING,
)
CONSUMER_NEVER_FLIPS = Diagnosis(
    "the consumers' parity never flips",
    "The first time around the ring all is right. Then the wait ends at once, since the phase of that parity is long "
    "over, and the tile before is read again. The parity is the last bit of t / BUFFERS.",
    RING,
)
LEFT_OUT = Diagnosis(
    "the consumers leave out a tile that the producer brings",
    "Nobody waits for its copies, and its scores are never written. Both sides count ceil(L_k / KEYS) tiles.",
    SPEC,
)
GIVEN_BACK_TOO_EARLY = Diagnosis(
    "a buffer is given back while lanes still read it",
    "The next copy may overwrite it under their hands. Arrive at `empty` after the last read; where one lane arrives "
    "for its warp, __syncwarp() must stand before, since the others may not be as far.",
    FENCES,
)
NOT_PUBLISHED = Diagnosis(
    "the copy engine may not see that the mbarriers are initialised",
    "publish_barriers() belongs behind the initialize() calls. __syncthreads() tells the threads, not the engine.",
    FENCES,
)
NOT_INITIALISED = Diagnosis(
    "an mbarrier is used that nobody has initialised",
    "`prepare` initialises `full` and `empty` of each of the BUFFERS buffers.",
    COPIES,
)


@dataclass(frozen=True)
class _Wait:
    """A wait that never ended, and the mbarrier that it was for."""

    by_producer: bool
    parity: int
    phase: int
    missing: int
    arrivals: int
    bytes: int


def _waits(outcome: Outcome) -> list[_Wait]:
    stuck = outcome.found("stuck at mbarrier")
    return [_Wait(_is_producer(finding), *finding.numbers) for finding in stuck if len(finding.numbers) == 5]


def _is_producer(finding: Finding) -> bool:
    return finding.thread is not None and finding.thread[0] >= 32 * CONSUMERS


def diagnose_findings(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[Diagnosis | None]:
    """The mistake of each case. What one case cannot tell, the smallest that shows it does."""
    pairs = list(zip(cases, outcomes, strict=True))
    names = [_of_one(case, outcome) for case, outcome in pairs]
    in_turn = [case.launches[0].thread_order is None for case in cases]
    if not any(name for name, plain in zip(names, in_turn, strict=True) if plain):
        return [name and TOO_MANY_ARRIVE for name in names]  # phases end too often, and the parities fit by chance
    early = next((name for name in names if name in (NOT_WAITED, FLIPS_EACH_TILE, WRONG_BUFFER)), None)
    if early is not None:  # all that follows comes of it
        return [early if name in (CONSUMER_NEVER_FLIPS, ASKS_TOO_EARLY, NOT_WAITED) else name for name in names]
    smallest = [case.facts == {"tiles": 2, "buffers": 1} for case in cases]
    if not any(small and name is ASKS_TOO_EARLY for small, name in zip(smallest, names, strict=True)):
        return [TOO_MANY_ARRIVE if name is ASKS_TOO_EARLY else name for name in names]
    return names


def _of_one(case: Case, outcome: Outcome) -> Diagnosis | None:
    """What findings and error of one case say."""
    if outcome.found("no mbarrier"):
        return NOT_INITIALISED
    if outcome.found("mbarrier not published"):
        return NOT_PUBLISHED
    waits = _waits(outcome)
    for wait in waits:
        if wait.bytes:
            return TOO_MANY_BYTES if wait.bytes > 0 else TOO_FEW_BYTES
    reads = outcome.found("copy not waited for")
    if len({finding.other_line for finding in reads}) == 1 and not waits:
        return TOO_FEW_BYTES  # of the two copies one was waited for
    if reads:
        return _read_early(case, outcome)
    if outcome.found("copy overwrites read"):
        return GIVEN_BACK_TOO_EARLY
    if outcome.found("load left behind"):
        written = outcome.outputs and not still_blank(outcome.outputs["S"]).any()
        return CONSUMER_NEVER_FLIPS if written else LEFT_OUT
    if outcome.found("too many arrivals"):
        return ASKS_TOO_EARLY
    return _stuck(waits)


def _read_early(case: Case, outcome: Outcome) -> Diagnosis:
    """Why a tile is read that has not come: by which tiles it is."""
    tiles, buffers = case.facts["tiles"], case.facts["buffers"]
    if tiles > buffers:
        return CONSUMER_NEVER_FLIPS
    if not outcome.outputs:
        return WRONG_BUFFER
    got, expected = outcome.outputs["S"].double(), case.outputs["S"].expected
    right = torch.isclose(got, expected, rtol=1e-3, atol=1e-3).all(dim=1).all(dim=0)
    wrong = [t for t in range(tiles) if not right[t * KEYS : (t + 1) * KEYS].all()]
    if 0 in wrong:
        return NOT_WAITED
    return FLIPS_EACH_TILE if wrong == list(range(1, tiles, 2)) and tiles > 2 else WRONG_BUFFER


def _stuck(waits: Sequence[_Wait]) -> Diagnosis | None:
    """Why nobody goes on: the mbarriers that are waited for have all the bytes that they expect."""
    producer = next((wait for wait in waits if wait.by_producer), None)
    consumer = next((wait for wait in waits if not wait.by_producer), None)
    if consumer and 0 < consumer.missing < consumer.arrivals:
        return FULL_TAKES_MORE
    if producer and 0 < producer.missing < producer.arrivals:
        return TOO_FEW_ARRIVE
    if producer and consumer:
        return NEVER_GIVEN_BACK if consumer.phase else PRODUCER_WAITS_AT_ONCE
    if consumer:
        return NEVER_ASKED
    return NEVER_GIVEN_BACK if producer else None


# ---------------------------------------------------------------------------------------------- the exercise

SHARED = 232_448  # bytes that a block can have
PAIR = 2 * 128 * 128 * 2  # bytes of a tile of K and one of V, 128 keys of 128 columns, 16 bits
PROMPT = 1000  # keys
LAST = PROMPT - (ceil_div(PROMPT, KEYS) - 1) * KEYS  # of its last tile
ROOM = 5  # buffers of the question about the first wait

QUESTIONS = (
    Question(
        name="buffers",
        points=1,
        title="Buffers that fit into 232,448 bytes: a tile of K and one of V each, 128 keys, D = 128, fp16",
        value=SHARED // PAIR,
        misconceptions=(
            (2 * SHARED // PAIR, "each buffer has a tile of K and one of V"),
            (SHARED // PAIR + 1, "the last one does not fit any more"),
            (SHARED // (2 * PAIR), "fp16 has 2 bytes"),
        ),
        read_again=RING,
    ),
    Question(
        name="last_bytes",
        points=1,
        title="Bytes to expect for the last tile, L_k = 1000",
        value=LAST * (D + 1) * 4,
        unit="bytes",
        misconceptions=(
            (TILE_BYTES, "that is a whole tile; the last one has the keys that are left"),
            (LAST * D * 4, "those are the keys; their scales come, too, at the same mbarrier"),
            (LAST * (D + 1), "those are numbers; each has 4 bytes"),
        ),
        read_again=COPIES,
    ),
    Question(
        name="first_wait",
        points=1,
        title="The first tile, from 0, for which a producer with 5 buffers may have to wait",
        value=ROOM,
        misconceptions=(
            (0, "all buffers are empty at first: of a fresh mbarrier parity 1 counts as over"),
            (1, "it does not wait until a tile is done, but until a buffer is empty"),
            (ROOM - 1, "tiles are counted from 0: this one has the last fresh buffer"),
            (ROOM + 1, "tiles are counted from 0"),
        ),
        read_again=RING,
    ),
)

EXERCISE = Exercise(
    id="07_hopper/barrier_ring",
    title="The barrier ring",
    difficulty=4,
    importance=4,
    kernels=("barrier_ring",),
    parts=(
        Part("one", 2, "One tile: it is read when it has come"),
        Part("once", 2, "As many tiles as buffers, and fewer"),
        Part("around", 4, "Several times around the ring, and all buffers are used"),
        Part("any", 2, "One buffer, and five"),
        Part("short", 2, "A last tile with fewer keys"),
    ),
    cases=cases,
    diagnose_findings=diagnose_findings,
    questions=QUESTIONS,
    cells=("answers",),
    half_in_step=False,
)
