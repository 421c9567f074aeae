"""The puzzles of chapter 03."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle

TENSOR_CORES = "03 FlashAttention-2, section 3, 'Step 2: tensor cores'"
SWIZZLE = "03 FlashAttention-2, section 3, 'Step 3: swizzle'"
OWNERS = "03 FlashAttention-2, training, section 11, 'Who owns what'"

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


# ---------------------------------------------------------------------------------------------- the softmax's gradient

KEYS = 32  # of a row, one for each lane


def _rows(generator: torch.Generator, part: str, rows: int, spread: float = 1.0) -> Case:
    S, dP = spread * torch.randn(rows, KEYS, generator=generator), torch.randn(rows, KEYS, generator=generator)
    inputs = {"S": S, "dP": dP, "LSE": torch.logsumexp(S, dim=-1)}
    launch = Launch("softmax_gradient", (rows,), (KEYS,), ("S", "dP", "LSE", "dS"))
    right, plain = (
        _gradient({name: x.to(dtype) for name, x in inputs.items()}) for dtype in (torch.double, torch.float)
    )
    outputs = {"dS": Output(right, same_dtype=plain, axes=("row", "key"))}
    return Case(part, f"rows = {rows}", (launch,), inputs, outputs, must_be_clean=True)


def _some_rows(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_rows(generator, "one", 1), _rows(generator, "several", drawn(generator, 3, 6), spread=3.0)]


def _gradient(of: Mapping[str, Tensor]) -> Tensor:
    p = torch.exp(of["S"] - of["LSE"][:, None])
    return p * (of["dP"] - (p * of["dP"]).sum(dim=-1, keepdim=True))


def _delta(case: Case) -> Tensor:
    p = torch.exp(case.inputs["S"] - case.inputs["LSE"][:, None])
    return (p * case.inputs["dP"]).sum(dim=-1, keepdim=True)


def _with_delta(delta: Callable[[Tensor, Tensor], Tensor | float]) -> Callable[[Case], Mapping[str, Tensor]]:
    """The mistake of another Δ: delta(p, dP)."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        p, dP = torch.exp(case.inputs["S"] - case.inputs["LSE"][:, None]), case.inputs["dP"]
        return {"dS": p * (dP - delta(p, dP))}

    return simulate


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
    "softmax_gradient": Puzzle(
        Exercise(
            id="03_flash_attention_v2/softmax_gradient",
            title="The gradient of the softmax",
            kernels=("softmax_gradient",),
            parts=(Part("one", 1, "one row"), Part("several", 1, "several rows")),
            cases=_some_rows,
            mistakes=(
                Mistake(
                    Diagnosis("Δ is left out", "dS is P ∘ (dP − Δ), not P ∘ dP.", OWNERS),
                    _with_delta(lambda p, dP: 0.0),
                ),
                Mistake(
                    Diagnosis("Δ is this lane's share alone", "Δ is a sum over the row: over all lanes.", OWNERS),
                    _with_delta(lambda p, dP: p * dP),
                ),
                Mistake(
                    Diagnosis("Δ is the sum of dP, without the weights", "Δ is the sum of P ∘ dP.", OWNERS),
                    _with_delta(lambda p, dP: dP.sum(dim=-1, keepdim=True)),
                ),
                Mistake(
                    Diagnosis("the weight is missing before the bracket", "dS is P ∘ (dP − Δ), not dP − Δ.", OWNERS),
                    lambda case: {"dS": case.inputs["dP"] - _delta(case)},
                ),
            ),
        ),
        lesson="Five shuffles give every lane the sum, without shared memory and without a barrier.",
        hint="Each lane has one term of Δ. Five calls of __shfl_xor_sync, at distances 16, 8, 4, 2 and 1, give the sum "
        "to all lanes.",
    ),
}
