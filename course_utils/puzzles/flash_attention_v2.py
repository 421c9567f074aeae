"""The puzzles of chapter 03."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle

TENSOR_CORES = "03 FlashAttention-2, section 3, 'Step 2: tensor cores'"
SWIZZLE = "03 FlashAttention-2, section 3, 'Step 3: swizzle'"
ADDED = "03 FlashAttention-2, section 5, 'What models add'"

# ---------------------------------------------------------------------------------------------- a fragment's order

PLACES = torch.arange(16 * 8).reshape(16, 8)  # of C, counted row by row


def _product(generator: torch.Generator, part: str, products: int) -> Case:
    A = torch.randn(products, 16, 16, generator=generator).half()
    B = torch.randn(products, 16, 8, generator=generator).half()
    launch = Launch("fragment", (products,), (32,), ("A", "B", "C"))
    output = Output(A.double() @ B.double(), same_dtype=A.float() @ B.float(), axes=("product", "row", "column"))
    name = f"products = {products}"
    return Case(part, name, (launch,), {"A": A, "B": B}, {"C": output}, must_be_clean=True)


def _products(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_product(generator, "one", 1), _product(generator, "several", drawn(generator, 2, 4))]


def _stored_at(place: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Case], Mapping[str, Tensor]]:
    """C if a lane stores register e at place(lane, e) of its 16 · 8 numbers."""
    lane, e = torch.arange(32)[:, None], torch.arange(4)
    belongs = PLACES[lane // 4 + e // 2 * 8, lane % 4 * 2 + e % 2]

    def simulate(case: Case) -> Mapping[str, Tensor]:
        right = case.outputs["C"].expected.flatten(1)
        stored = torch.full_like(right, torch.nan)
        stored[:, place(lane, e).flatten()] = right[:, belongs.flatten()]
        return {"C": stored.reshape(-1, 16, 8)}

    return simulate


# ---------------------------------------------------------------------------------------------- the swizzle

ROWS, CHUNKS, NUMBERS = 32, 8, 8  # of a tile, of a row of it, of a chunk


def _turned(generator: torch.Generator, part: str, tiles: int, **options: object) -> Case:
    """One case of the transpose. No two numbers of a tile are the same."""
    count = ROWS * CHUNKS * NUMBERS
    order = torch.stack([torch.randperm(count, generator=generator) for _ in range(tiles)])
    x = order.half().reshape(tiles, ROWS, CHUNKS, NUMBERS)  # fp16 has each whole number up to 2048
    output = Output(
        x.transpose(1, 2).contiguous(), torch.float16, kind="exact", axes=("tile", "chunk", "row", "number")
    )
    launch = Launch("swizzle", (tiles,), (ROWS * CHUNKS,), ("in", "out"))
    return Case(part, f"tiles = {tiles}", (launch,), {"in": x}, {"out": output}, must_be_clean=True, **options)


def _turns(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    tiles = drawn(generator, 2, 3)
    return [_turned(generator, "values", tiles), _turned(generator, "banks", tiles, review=_banks)]


def _banks(case: Case, outcome: Outcome) -> Diagnosis | None:
    """The check that the tile goes through shared memory with as few wavefronts as possible."""
    shared = [row for row in outcome.counters if row.space == "shared"]
    if not shared:
        return Diagnosis("nothing goes through shared memory", "A chunk goes into the tile, and out of it.", SWIZZLE)
    row = max(shared, key=lambda row: row.bank_conflicts)
    if not row.bank_conflicts:
        return None
    side = "read" if row.operation == "load" else "written"
    detail = (
        f"{row.wavefronts / row.requests:.3g} wavefronts per request, where {row.ideal_wavefronts / row.requests:.3g} "
        f"would do. Eight chunks that are moved at once must lie in eight different places of a row.\n"
        f"{row.line:6d} | {row.source}"
    )
    return Diagnosis(f"the tile is {side} with bank conflicts", detail, SWIZZLE)


def _one_side(case: Case) -> Mapping[str, Tensor]:
    """The result of reading the chunk at place c of row r, where chunk c is looked for."""
    row, chunk = torch.arange(ROWS), torch.arange(CHUNKS)[:, None]
    return {"out": case.inputs["in"][:, row, chunk ^ row % 8]}


# ---------------------------------------------------------------------------------------------- sinks

D, HEADS, THREADS = 16, 3, 64
LOG2_E = math.log2(math.e)


def _with_sinks(generator: torch.Generator, part: str, queries: int, keys: int, sinks: Tensor) -> Case:
    """One case. sinks: a logit for each head."""
    Q, K, V = (torch.randn(HEADS, rows, D, generator=generator) for rows in (queries, keys, keys))
    scale = np.float32(0.2 + 0.2 * torch.rand((), generator=generator).item())
    inputs, facts = {"Q": Q, "K": K, "V": V, "sink_logits": sinks}, {"scale": float(scale)}
    right, plain = (_attention_with_sinks(inputs, facts["scale"], dtype) for dtype in (torch.double, torch.float))
    outputs = {
        "O": Output(right[0], same_dtype=plain[0], axes=("head", "query", "column")),
        "LSE": Output(right[1], kind="lse", axes=("head", "query")),
    }
    arguments = (*("Q", "K", "V", "sink_logits", "O", "LSE"), np.int32(queries), np.int32(keys), scale)
    launch = Launch("sinks", (ceil_div(queries, THREADS), HEADS), (THREADS,), arguments, (f"-DD={D}",))
    name = f"L_q = {queries}, L_k = {keys}, sinks = {', '.join(f'{sink:.1f}' for sink in sinks.tolist())}"
    return Case(part, name, (launch,), inputs, outputs, facts, must_be_clean=True)


def _some_sinks(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """Sinks around the highest score; then so far above it that their weight overflows beside the old maximum, and so
    far below that they have none."""
    near = torch.tensor([0.5, 2.0, 5.0]) + torch.rand(HEADS, generator=generator)
    far = torch.tensor([120.0, 1.0, -120.0]) + torch.rand(HEADS, generator=generator)
    return [
        _with_sinks(generator, "near", drawn(generator, 65, 70), drawn(generator, 5, 9), near),
        _with_sinks(generator, "far", drawn(generator, 4, 9), drawn(generator, 3, 6), far),
    ]


def _scores(inputs: Mapping[str, Tensor], scale: float, dtype: torch.dtype) -> Tensor:
    return scale * inputs["Q"].to(dtype) @ inputs["K"].to(dtype).mT


def _attention_with_sinks(inputs: Mapping[str, Tensor], scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """O and LSE."""
    scores = _scores(inputs, scale, dtype)
    LSE = torch.logaddexp(torch.logsumexp(scores, dim=-1), inputs["sink_logits"].to(dtype)[:, None])
    return torch.exp(scores - LSE[..., None]) @ inputs["V"].to(dtype), LSE


@dataclass(frozen=True)
class _End:
    """What the rows have after their last key, in float64. m: the highest score, in powers of two, `[H, L_q, 1]`;
    sums: l, as m; out: O before the division, `[H, L_q, D]`; sink: as m; V: `[H, L_k, D]`."""

    m: Tensor
    sums: Tensor
    out: Tensor
    sink: Tensor
    V: Tensor

    @property
    def new_m(self) -> Tensor:
        return torch.maximum(self.m, self.sink)

    @property
    def rescale(self) -> Tensor:
        return torch.exp2(self.m - self.new_m)

    @property
    def weight(self) -> Tensor:
        """Of the sink."""
        return torch.exp2(self.sink - self.new_m)

    @property
    def new_sums(self) -> Tensor:
        return self.sums * self.rescale + self.weight


def _ending(end: Callable[[_End], tuple[Tensor, Tensor, Tensor]]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of another end: `end` returns m, l, and O before the division."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        scores = _scores(case.inputs, case.facts["scale"], torch.double) * LOG2_E
        sink, V = case.inputs["sink_logits"].double()[:, None, None] * LOG2_E, case.inputs["V"].double()
        m = scores.amax(dim=-1, keepdim=True)
        P = torch.exp2(scores - m)
        m, sums, out = end(_End(m, P.sum(dim=-1, keepdim=True), P @ V, sink, V))
        return {"O": out / sums, "LSE": ((m + torch.log2(sums)) / LOG2_E)[..., 0]}

    return simulate


def _with_a_value(value: Callable[[_End], Tensor | float]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of giving the sink a value."""
    return _ending(lambda x: (x.new_m, x.new_sums, x.out * x.rescale + x.weight * value(x)))


def _in_base_e(x: _End) -> tuple[Tensor, Tensor, Tensor]:
    x = replace(x, sink=x.sink / LOG2_E)
    return x.new_m, x.new_sums, x.out * x.rescale


def _without_new_maximum(x: _End) -> tuple[Tensor, Tensor, Tensor]:
    """In float32 the sink's weight beside the old maximum is ∞ from 2^128 on."""
    weight = torch.exp2(x.sink - x.m)
    return x.m, x.sums + weight.masked_fill(weight >= 2.0**128, torch.inf), x.out


PUZZLES = {
    "fragment": Puzzle(
        Exercise(
            id="03_flash_attention_v2/fragment",
            title="The order of a fragment",
            kernels=("fragment",),
            parts=(Part("one", 1, "C of one product"), Part("several", 1, "several products")),
            cases=_products,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "rows and columns are exchanged",
                        "Lane 4 g + t has numbers of row g: four neighbouring lanes share a row.",
                        TENSOR_CORES,
                    ),
                    _stored_at(lambda lane, e: PLACES[lane % 4 * 2 + e % 2 + e // 2 * 8, lane // 4]),
                ),
                Mistake(
                    Diagnosis(
                        "C is stored column by column",
                        "A row of C has 8 numbers: row r, column k is C[8 · r + k].",
                        TENSOR_CORES,
                    ),
                    _stored_at(lambda lane, e: (lane % 4 * 2 + e % 2) * 16 + lane // 4 + e // 2 * 8),
                ),
                Mistake(
                    Diagnosis(
                        "a lane's rows are taken for neighbours",
                        "Lane 4 g + t has numbers of the rows g and g + 8, not 2 g and 2 g + 1.",
                        TENSOR_CORES,
                    ),
                    _stored_at(lambda lane, e: PLACES[lane // 4 * 2 + e // 2, lane % 4 * 2 + e % 2]),
                ),
                Mistake(
                    Diagnosis(
                        "a lane's columns are taken for t and t + 4",
                        "Lane 4 g + t has numbers of the columns 2 t and 2 t + 1, which are neighbours.",
                        TENSOR_CORES,
                    ),
                    _stored_at(lambda lane, e: PLACES[lane // 4 + e // 2 * 8, lane % 4 + e % 2 * 4]),
                ),
                Mistake(
                    Diagnosis(
                        "the registers 1 and 2 have changed places",
                        "c[0] and c[1] belong to row g, c[2] and c[3] to row g + 8.",
                        TENSOR_CORES,
                    ),
                    _stored_at(lambda lane, e: PLACES[lane // 4 + e % 2 * 8, lane % 4 * 2 + e // 2]),
                ),
            ),
        ),
        lesson="Each lane has four numbers of C in fixed places. A kernel that knows these places can pass C on to "
        "the next product in registers, without shared memory.",
        hint="With lane = 4 g + t, c[0] and c[1] belong to row g, columns 2 t and 2 t + 1; c[2] and c[3] belong to the "
        "same columns of row g + 8. A row of C has 8 numbers.",
    ),
    "swizzle": Puzzle(
        Exercise(
            id="03_flash_attention_v2/swizzle",
            title="The swizzle",
            kernels=("swizzle",),
            parts=(Part("values", 1, "every chunk where it belongs"), Part("banks", 1, "no bank conflicts")),
            cases=_turns,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "the swizzle stands on one side only",
                        "A chunk is written to one place of its row and looked for in another.",
                        SWIZZLE,
                    ),
                    _one_side,
                ),
            ),
            findings={
                "memcheck": Diagnosis("a place outside the tile, which has 8 chunks in a row", read_again=SWIZZLE),
                "racecheck": Diagnosis("a chunk is read before all have written", read_again=SWIZZLE),
                "initcheck": Diagnosis("a place is read that nobody has written", read_again=SWIZZLE),
            },
            half_in_step=False,
        ),
        lesson="Eight neighbouring chunks of a column now lie in different banks, like the chunks of a row. The price "
        "is one XOR for each address.",
        hint="Store in[e] in the tile, wait for the other threads, and load out[e] from the tile. Chunk c of row r has "
        "the same place both times: 8 · r + (c XOR (r modulo 8)).",
    ),
    "sinks": Puzzle(
        Exercise(
            id="03_flash_attention_v2/sinks",
            title="A sink in the sum",
            kernels=("sinks",),
            parts=(Part("near", 1, "sinks near the scores"), Part("far", 1, "sinks far above and far below them")),
            cases=_some_sinks,
            mistakes=(
                Mistake(
                    Diagnosis("the sink is left out", "l needs one more term, the sink's.", ADDED),
                    _ending(lambda x: (x.m, x.sums, x.out)),
                ),
                Mistake(
                    Diagnosis(
                        "the sink is not relative to the row's maximum",
                        "All terms of l are relative to m: 2 to the power of a score less m.",
                        ADDED,
                    ),
                    _ending(lambda x: (x.m, x.sums + torch.exp2(x.sink), x.out)),
                ),
                *(
                    Mistake(
                        Diagnosis(
                            "the sink is in base e, the loop in base 2",
                            "m and the scores count in powers of two: they hold a factor log2(e), and the sink does "
                            "not yet.",
                            ADDED,
                        ),
                        _ending(end),
                    )
                    for end in (
                        _in_base_e,
                        lambda x: (x.m, x.sums + torch.exp2(x.sink / LOG2_E - x.m), x.out),
                        lambda x: (x.m, x.sums + torch.exp(x.sink / LOG2_E - x.m), x.out),
                    )
                ),
                *(
                    Mistake(
                        Diagnosis("the sink is added to O", "It has no value: it belongs to l, the sum, alone.", ADDED),
                        _with_a_value(value),
                    )
                    for value in (lambda x: 1.0, lambda x: x.V[:, :1], lambda x: x.V[:, -1:])
                ),
                Mistake(
                    Diagnosis("O is not rescaled", "Where m grows, O shrinks with l.", ADDED),
                    _ending(lambda x: (x.new_m, x.new_sums, x.out)),
                ),
                Mistake(
                    Diagnosis("l is not rescaled", "Where m grows, l shrinks with O.", ADDED),
                    _ending(lambda x: (x.new_m, x.sums + x.weight, x.out * x.rescale)),
                ),
                Mistake(
                    Diagnosis("nothing is rescaled", "Where m grows, l and O shrink by the same factor.", ADDED),
                    _ending(lambda x: (x.new_m, x.sums + x.weight, x.out)),
                ),
                Mistake(
                    Diagnosis(
                        "m stays the maximum of the keys",
                        "l is relative to the new maximum, but the log-sum-exp still takes the old one.",
                        ADDED,
                    ),
                    _ending(lambda x: (x.m, x.new_sums, x.out * x.rescale)),
                ),
                Mistake(
                    Diagnosis(
                        "a large sink overflows",
                        "2 to the power of the sink less m is ∞ where the sink lies far above m. The larger of the two "
                        "must be the new m.",
                        ADDED,
                    ),
                    _ending(_without_new_maximum),
                ),
            ),
        ),
        lesson="The weights of a row's keys now sum to less than 1: a head may look at nothing. The loop over the keys "
        "is as it was, and the sink costs one exponential a row.",
        hint="Treat the sink as one more key with the score sink · LOG2_E, in powers of two: a new maximum, a "
        "rescale factor for l and O, one more term in l. It has no row of V.",
    ),
}
