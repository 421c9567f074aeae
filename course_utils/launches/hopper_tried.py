"""What was tried to make chapter 07's last kernel faster: that kernel with a few changes to its text, or its launch.

for variant in TRIED:
    require_right(variant, 128)
    run = ready(variant.step, query, key, value, out, lse, kernel=build(variant, 128, torch.float16))

One idea is not here: two blocks that are a cluster, and a copy that brings K and V to both ("multicast"). It is no
small change: both blocks must then have the same head and as many tiles, and a place is empty only when both are done
with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_utils import checks
from course_utils.cuda import Kernel, KernelSource, RawModule, read_kernel
from course_utils.launches.hopper import LADDER, Step, ready
from course_utils.operators.hopper import KEYS, ROWS
from course_utils.operators.tensor_core import HEAD_DIMS
from course_utils.toolchain.source import with_headers

SHIPPED = LADDER[-1]
MASKS = False, True  # causal or not

Changes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)  # a step has no hash
class Variant:
    """The last kernel, changed. name, hope: for tables; the hope is why it might have been faster. changes: passages of
    its text or of its headers', each of which is there once, and what comes in their place. step: how it is launched.
    head_dims, masks: where it differs from the kernel, and can be."""

    name: str
    hope: str
    changes: Changes = ()
    step: Step = SHIPPED
    head_dims: tuple[int, ...] = HEAD_DIMS
    masks: tuple[bool, ...] = MASKS


def source(variant: Variant) -> KernelSource:
    """The kernel with its headers in place and with the changes. Raises ValueError for one whose passage is not there
    exactly once."""
    original = read_kernel(variant.step.file)
    text = with_headers(original)
    for old, new in variant.changes:
        if (count := text.count(old)) != 1:
            raise ValueError(f"{variant.name!r} changes what {original.name} has {count} times, not once: {old!r}")
        text = text.replace(old, new)
    return KernelSource(text, original.path, original.name)


@functools.cache
def build(variant: Variant, head_dim: int, dtype: torch.dtype) -> Kernel:
    """Its kernel, compiled at its first launch. Raises ValueError as `source` and `Step.options` do."""
    module = RawModule(code=source(variant), options=variant.step.options(head_dim, dtype))
    return module.get_function(variant.step.kernel)


def operator(variant: Variant) -> Callable[..., tuple[Tensor, Tensor]]:
    """It, to be called as `checks.check_attention` calls an operator."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool = False,
        return_lse: bool = True,
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
        kernel = build(variant, query.shape[-1], query.dtype)
        ready(variant.step, query, key, value, out, lse, is_causal=is_causal, scale=scale, kernel=kernel)()
        return out, lse

    attention.__name__ = variant.name
    return attention


def require_right(variant: Variant, head_dim: int, device: torch.device | str = "cpu") -> None:
    """Raise AssertionError unless it gives what float64 gives, in fp16, by the rule of `checks`: for several tiles, of
    which the last is cut, with maxima that rise a lot and with queries that see no key."""
    shapes = ((130, 450, "planted"), (300, 200, "large logits"))
    cases = [
        checks.AttentionCase(1, 2, 1, *lengths, head_dim, is_causal, kind)
        for *lengths, kind in shapes
        for is_causal in variant.masks
    ]
    checks.check_attention(operator(variant), device=device, dtype=torch.float16, cases=cases, seed=0)


# ---------------------------------------------------------------------------------------------- the changes


def _tiles(keys: int, buffers: int) -> tuple[Changes, Step]:
    """Tiles of so many keys, and so many places for K and for V: changes and launch."""
    changes = (
        ("B_C = 128, BUFFERS = 2;", f"B_C = {keys}, BUFFERS = {buffers};"),
        ("static_assert(B_C == 128,", f"static_assert(B_C == {keys},"),
        _bytes(2 * buffers),
    )
    return changes, replace(SHIPPED, keys=keys, shared=_shared(keys, 2 * buffers))


def _bytes(places: int) -> tuple[str, str]:
    """The kernel's own count of its shared memory with another number of places for tiles of K and V."""
    assertion = "static_assert(sizeof(Shared) == 2 * D * (2 * B_R + {} * B_C) + 528 * CONSUMERS + {},"
    return assertion.format(4, 88), assertion.format(places, 24 + 16 * places)


def _shared(keys: int, places: int) -> Callable[[int, int], int]:
    """The same count, from D and B_R."""
    return lambda d, rows: 2 * d * (2 * rows + places * keys) + 528 * rows // ROWS + 24 + 16 * places


def _heads(at_once: int) -> Step:
    """Causal, the rows of so many heads are mixed, or of all that there are."""
    return replace(SHIPPED, at_once=lambda query_shape, *_: min(at_once, query_shape[0] * query_shape[1]))


ALL_HEADS = 2**20  # more than any launch has
SMALL_TILES, SMALL_STEP = _tiles(64, 4)
LARGE_TILES, LARGE_STEP = _tiles(160, 2)
PRODUCT_OF_160 = """
#define REGISTERS_80(d) REGISTERS_64(d), REGISTERS_16(d, 64)
#define D_80 D_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
__device__ inline void multiply_transposed(float (&d)[80], unsigned long long a,
                                           unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %82, 0; "
                 WGMMA(160) "{" D_80 "}, %80, %81, p, 1, 1, 0, 0; }"
                 : REGISTERS_80(d) : "l"(a), "l"(b), "r"(add));
}
"""
# x = n + f, where n is the whole number that is next to x: 2^f by a polynomial of degree 3, which is off by at most one
# part in 13,000, and n is added to its exponent.
POLYNOMIAL = """
__device__ inline float exp2_polynomial(float x) {
    const float shifted = fmaxf(x, -126) + 12582912, f = fmaxf(x, -126) - (shifted - 12582912);
    const float y = fmaf(fmaf(fmaf(0.05517167f, f, 0.24261112f), f, 0.69326099f), f, 0.99992807f);
    return x < -126 ? 0 : __int_as_float(__float_as_int(y) + (__float_as_int(shifted) << 23));
}
"""
WITHOUT_TURNS = (
    ("{ sync_threads(1 + CONSUMERS + w, 256); }", "{}"),
    ("{\n    arrive_threads(1 + CONSUMERS + (w + 1) % CONSUMERS, 256);\n}", "{}"),
)
UNTIL_O = """            hold(shared.sink[threadIdx.x], rows);
            wait_for_product<0>(O);
            give_back(shared.gate_V[buffer]);
"""
EXPONENTIALS = "            exponentials(S, rows, problem.factor);\n"
FIRST_PART, OTHER_PART = (EXPONENTIALS.replace("ls(", f"ls<{part}>(") for part in ("0, 6", "6, B_C / 8"))
COLUMNS = """    for (int n = 0; n < B_C / 8; n++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            S[n][e] = exp2_approx"""
IN_TWO_PARTS = (
    (
        "__device__ inline void exponentials",
        "template <int FROM = 0, int TO = B_C / 8>\n__device__ inline void exponentials",
    ),
    (COLUMNS, COLUMNS.replace("n = 0; n < B_C / 8;", "n = FROM; n < TO;")),
    (UNTIL_O + EXPONENTIALS, FIRST_PART + UNTIL_O + OTHER_PART),
)
ROSE = "high * factor - more"
MASKED = "// What is subtracted from scores of row r."
WITH_POLYNOMIAL = (
    (MASKED, POLYNOMIAL + MASKED),
    (
        "S[n][e] = exp2_approx(fmaf(S[n][e], factor, -bases[e / 2]));",
        "const float x = fmaf(S[n][e], factor, -bases[e / 2]);\n"
        "            S[n][e] = n % 4 == 3 ? exp2_polynomial(x) : exp2_approx(x);",
    ),
)
LATE = """        // Late, so that no item waits for this block while others idle. All blocks together ask `items`
        // times: the counter goes to items − 1, then to 0 again.
        item = gridDim.x + atomicInc(counter, items - 1);
"""
AFTER_160 = "// D += A B: A [64, 16], and B [16, 128] in two panels."

TRIED = (
    Variant(
        "without turns",
        "The consumers may find an order of their own; no one waits at a barrier.",
        WITHOUT_TURNS,
    ),
    Variant(
        "turns, and no overlap in a consumer",
        "Another consumer's product runs beside the softmax anyway; O need not be in flight.",
        (("wait_for_product<1>(S);", "wait_for_product<0>(S);"),),
    ),
    Variant(
        "without hold()",
        "A store less for each tile.",
        (("            hold(shared.sink[threadIdx.x], rows);\n", ""),),
    ),
    Variant(
        "all exponentials beside P V",
        "P V of the tile before takes longer than the new maximum, and hides more.",
        ((UNTIL_O + EXPONENTIALS, EXPONENTIALS + UNTIL_O),),
    ),
    Variant(
        "a part of the exponentials beside P V",
        "48 of 128 columns, about what is done when P V is.",
        IN_TWO_PARTS,
    ),
    Variant(
        "the same without turns",
        "With more to do beside P V, a consumer may keep the tensor cores busy by itself.",
        (*WITHOUT_TURNS, *IN_TWO_PARTS),
    ),
    Variant(
        "O rescaled only when m rose a lot",
        "m goes up only with a maximum 2^8 times as high; until then weights are up to 256, and O stays as it is. As "
        "right, for l has the same factor.",
        (
            (f"= fmaxf(m_old, {ROSE});", f"= {ROSE} > m_old + 8 ? {ROSE} : m_old;"),
            (
                "            rescale(O, rows);",
                "            const bool rose = rows.rescale[0] != 1 || rows.rescale[1] != 1;\n"
                "            if (__any_sync(0xffffffff, rose)) rescale(O, rows);",
            ),
        ),
    ),
    Variant(
        "a quarter of the exponentials by a polynomial",
        "A multiprocessor has 16 units for ex2, and 128 that add and multiply: these help.",
        WITH_POLYNOMIAL,
    ),
    Variant(
        "a quarter by a polynomial, without turns",
        "Turns may hide what it saves.",
        (*WITHOUT_TURNS, *WITH_POLYNOMIAL),
    ),
    Variant(
        "tiles of 64 keys, four places",
        "Fewer registers, less that is masked at the diagonal, and the first products start sooner.",
        SMALL_TILES,
        SMALL_STEP,
    ),
    Variant(
        "tiles of 160 keys",
        "Fewer barriers and maxima for each key; it just fits shared memory.",
        (*LARGE_TILES, (AFTER_160, PRODUCT_OF_160 + AFTER_160)),
        LARGE_STEP,
        head_dims=(128,),
    ),
    Variant(
        "a third place for K",
        "The producer can be further ahead.",
        (
            ("K[BUFFERS][B_C * D], V[BUFFERS]", "K[3][B_C * D], V[BUFFERS]"),
            ("gate_K[BUFFERS]", "gate_K[3]"),
            ("shared.K[buffer], shared.gate_K[buffer], parity,", "shared.K[t % 3], shared.gate_K[t % 3], t / 3 % 2,"),
            ("const auto [first, first_parity] = place(t);", "const int first = t % 3, first_parity = t / 3 % 2;"),
            ("const auto [next, next_parity] = place(++t);", "const int next = ++t % 3, next_parity = t / 3 % 2;"),
            _bytes(5),
        ),
        replace(SHIPPED, shared=_shared(KEYS, 5)),
    ),
    Variant(
        "232 registers for consumers",
        "The producer has 40 and can keep its item in them, as in step 3.",
        (
            ("? 240 : 160", "? 232 : 160"),
            ("? 24 : 32", "? 40 : 32"),
            ("shared.work[round % 2] = work_of_item(problem, item);", "const Work work = work_of_item(problem, item);"),
            (
                "const volatile Work& work = shared.work[round % 2];   // registers are few here",
                "shared.work[round % 2] = work;",
            ),
        ),
        head_dims=(128,),
    ),
    Variant(
        "two consumers",
        "Each thread has 240 registers, and there is no third consumer to wait for.",
        step=replace(SHIPPED, consumers={64: 2}),
        head_dims=(64,),
    ),
    Variant(
        "one head at a time",
        "K and V of one head are sure to stay in the L2 cache.",
        step=_heads(1),
        masks=(True,),
    ),
    Variant(
        "all heads at a time",
        "The longest rows of all heads come first, and the short ones fill up what is left.",
        step=_heads(ALL_HEADS),
        masks=(True,),
    ),
    Variant(
        "the next item taken early",
        "Its number is there when the last tile of this item has been asked for.",
        (
            (
                LATE,
                "        item = next;\n",
            ),
            (
                "        shared.work[round % 2] = work_of_item(problem, item);\n",
                "        const int next = gridDim.x + atomicInc(counter, items - 1);\n"
                "        shared.work[round % 2] = work_of_item(problem, item);\n",
            ),
        ),
    ),
    Variant(
        "the shortest rows first",
        "The order in which rows lie in memory.",
        (("blocks - 1 - place / heads", "place / heads"),),
        masks=(True,),
    ),
)
