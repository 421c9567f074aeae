"""The puzzles of chapter 03."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Outcome, Output, Part
from course_utils.puzzles.cases import drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

TENSOR_CORES = "03 FlashAttention-2, section 3, 'Step 2: tensor cores'"
SWIZZLE = "03 FlashAttention-2, section 3, 'Step 3: swizzle'"
ADDED = "03 FlashAttention-2, section 5, 'What models add'"

# ---------------------------------------------------------------------------------------------- a fragment's order


def _product(generator: torch.Generator, part: str, products: int) -> Case:
    A = torch.randn(products, 16, 16, generator=generator).half()
    B = torch.randn(products, 16, 8, generator=generator).half()
    launch = Launch("fragment", (products,), (32,), ("A", "B", "C"))
    output = Output(A.double() @ B.double(), same_dtype=A.float() @ B.float(), axes=("product", "row", "column"))
    name = f"products = {products}"
    return Case(part, name, (launch,), {"A": A, "B": B}, {"C": output}, must_be_clean=True)


def _products(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    return [_product(generator, "one", 1), _product(generator, "several", drawn(generator, 2, 4))]


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


# ---------------------------------------------------------------------------------------------- sinks

D, HEADS, THREADS = 16, 3, 64
NEW_M = "const float m_new = fmaxf(m, sink * LOG2_E), rescale = exp2f(m - m_new);\n"
NEW_L = "m = m_new, l = l * rescale + exp2f(sink * LOG2_E - m_new);\n"
NEW_O = "for (int c = 0; c < D; c++) O_i[c] *= rescale;"


def _with_sinks(generator: torch.Generator, part: str, queries: int, keys: int, sinks: Tensor) -> Case:
    """One case. sinks: a logit for each head."""
    Q, K, V = (torch.randn(HEADS, rows, D, generator=generator) for rows in (queries, keys, keys))
    scale = np.float32(0.2 + 0.2 * torch.rand((), generator=generator).item())
    inputs = {"Q": Q, "K": K, "V": V, "sink_logits": sinks}
    right, plain = (_attention_with_sinks(inputs, float(scale), dtype) for dtype in (torch.double, torch.float))
    outputs = {
        "O": Output(right[0], same_dtype=plain[0], axes=("head", "query", "column")),
        "LSE": Output(right[1], kind="lse", axes=("head", "query")),
    }
    arguments = (*("Q", "K", "V", "sink_logits", "O", "LSE"), np.int32(queries), np.int32(keys), scale)
    launch = Launch("sinks", (ceil_div(queries, THREADS), HEADS), (THREADS,), arguments, (f"-DD={D}",))
    name = f"L_q = {queries}, L_k = {keys}, sinks = {', '.join(f'{sink:.1f}' for sink in sinks.tolist())}"
    return Case(part, name, (launch,), inputs, outputs, must_be_clean=True)


def _some_sinks(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """Sinks around the highest score; then so far above it that their weight overflows beside the old maximum, and so
    far below that they have none."""
    near = torch.tensor([0.5, 2.0, 5.0]) + torch.rand(HEADS, generator=generator)
    far = torch.tensor([120.0, 1.0, -120.0]) + torch.rand(HEADS, generator=generator)
    return [
        _with_sinks(generator, "near", drawn(generator, 65, 70), drawn(generator, 5, 9), near),
        _with_sinks(generator, "far", drawn(generator, 4, 9), drawn(generator, 3, 6), far),
    ]


def _attention_with_sinks(inputs: Mapping[str, Tensor], scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """O and LSE."""
    scores = scale * inputs["Q"].to(dtype) @ inputs["K"].to(dtype).mT
    LSE = torch.logaddexp(torch.logsumexp(scores, dim=-1), inputs["sink_logits"].to(dtype)[:, None])
    return torch.exp(scores - LSE[..., None]) @ inputs["V"].to(dtype), LSE


PUZZLES = {
    "fragment": Puzzle(
        Exercise(
            id="03_flash_attention_v2/fragment",
            title="The order of a fragment",
            kernels=("fragment",),
            parts=(Part("one", 1, "C of one product"), Part("several", 1, "several products")),
            cases=_products,
        ),
        lesson="Each lane has four numbers of C in fixed places. A kernel that knows these places can pass C on to "
        "the next product in registers, without shared memory.",
        hint="With lane = 4 g + t, c[0] and c[1] belong to row g, columns 2 t and 2 t + 1; c[2] and c[3] belong to the "
        "same columns of row g + 8. A row of C has 8 numbers.",
        mistakes=(
            mistake(
                "rows and columns are exchanged",
                "Lane 4 g + t has numbers of row g: four neighbouring lanes share a row.",
                TENSOR_CORES,
                "for (int e = 0; e < 4; e++) C[(lane % 4 * 2 + e % 2 + e / 2 * 8) * 8 + lane / 4] = c[e];",
            ),
            mistake(
                "C is stored column by column",
                "A row of C has 8 numbers: row r, column k is C[8 · r + k].",
                TENSOR_CORES,
                "for (int e = 0; e < 4; e++) C[(lane % 4 * 2 + e % 2) * 16 + lane / 4 + e / 2 * 8] = c[e];",
            ),
            mistake(
                "a lane's rows are taken for neighbours",
                "Lane 4 g + t has numbers of the rows g and g + 8, not 2 g and 2 g + 1.",
                TENSOR_CORES,
                "for (int e = 0; e < 4; e++) C[(lane / 4 * 2 + e / 2) * 8 + lane % 4 * 2 + e % 2] = c[e];",
            ),
            mistake(
                "a lane's columns are taken for t and t + 4",
                "Lane 4 g + t has numbers of the columns 2 t and 2 t + 1, which are neighbours.",
                TENSOR_CORES,
                "for (int e = 0; e < 4; e++) C[(lane / 4 + e / 2 * 8) * 8 + lane % 4 + e % 2 * 4] = c[e];",
            ),
            mistake(
                "the registers 1 and 2 have changed places",
                "c[0] and c[1] belong to row g, c[2] and c[3] to row g + 8.",
                TENSOR_CORES,
                "for (int e = 0; e < 4; e++) C[(lane / 4 + e % 2 * 8) * 8 + lane % 4 * 2 + e / 2] = c[e];",
            ),
        ),
    ),
    "swizzle": Puzzle(
        Exercise(
            id="03_flash_attention_v2/swizzle",
            title="The swizzle",
            kernels=("swizzle",),
            parts=(Part("values", 1, "every chunk where it belongs"), Part("banks", 1, "no bank conflicts")),
            cases=_turns,
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
        mistakes=(
            mistake(
                "the swizzle stands on one side only",
                "A chunk is written to one place of its row and looked for in another.",
                SWIZZLE,
                "tile[8 * row + (chunk ^ row % 8)] = in[e];\n__syncthreads();\nout[e] = tile[8 * out_row + out_chunk];",
            ),
        ),
    ),
    "sinks": Puzzle(
        Exercise(
            id="03_flash_attention_v2/sinks",
            title="A sink in the sum",
            kernels=("sinks",),
            parts=(Part("near", 1, "sinks near the scores"), Part("far", 1, "sinks far above and far below them")),
            cases=_some_sinks,
        ),
        lesson="The weights of a row's keys now sum to less than 1: a head may look at nothing. The loop over the keys "
        "is as it was, and the sink costs one exponential a row.",
        hint="Treat the sink as one more key with the score sink · LOG2_E, in powers of two: a new maximum, a "
        "rescale factor for l and O, one more term in l. It has no row of V.",
        mistakes=(
            mistake("the sink is left out", "l needs one more term, the sink's.", ADDED, ""),
            mistake(
                "the sink is not relative to the row's maximum",
                "All terms of l are relative to m: 2 to the power of a score less m.",
                ADDED,
                "l += exp2f(sink * LOG2_E);",
            ),
            mistake(
                "the sink is in base e, the loop in base 2",
                "m and the scores count in powers of two: they hold a factor log2(e), and the sink does not yet.",
                ADDED,
                "const float m_new = fmaxf(m, sink), rescale = exp2f(m - m_new);\n"
                f"m = m_new, l = l * rescale + exp2f(sink - m_new);\n{NEW_O}",
                "l += exp2f(sink - m);",
                "l += expf(sink - m);",
            ),
            mistake(
                "the sink is added to O",
                "It has no value: it belongs to l, the sum, alone.",
                ADDED,
                *(
                    f"{NEW_M}{NEW_L}for (int c = 0; c < D; c++) "
                    f"O_i[c] = O_i[c] * rescale + exp2f(sink * LOG2_E - m_new) * {value};"
                    for value in ("1", "V[c]", "V[(L_k - 1) * D + c]")
                ),
            ),
            mistake("O is not rescaled", "Where m grows, O shrinks with l.", ADDED, f"{NEW_M}{NEW_L}"),
            mistake(
                "l is not rescaled",
                "Where m grows, l shrinks with O.",
                ADDED,
                f"{NEW_M}m = m_new, l += exp2f(sink * LOG2_E - m_new);\n{NEW_O}",
            ),
            mistake(
                "nothing is rescaled",
                "Where m grows, l and O shrink by the same factor.",
                ADDED,
                "m = fmaxf(m, sink * LOG2_E), l += exp2f(sink * LOG2_E - m);",
            ),
            mistake(
                "m stays the maximum of the keys",
                "l is relative to the new maximum, but the log-sum-exp still takes the old one.",
                ADDED,
                f"{NEW_M}l = l * rescale + exp2f(sink * LOG2_E - m_new);\n{NEW_O}",
            ),
            mistake(
                "a large sink overflows",
                "2 to the power of the sink less m is ∞ where the sink lies far above m. The larger of the two must be "
                "the new m.",
                ADDED,
                "l += exp2f(sink * LOG2_E - m);",
            ),
        ),
    ),
}
