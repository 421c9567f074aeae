"""wgmma in every form: types, widths, layouts, swizzles, signs, A in registers, products one after another.

Where a factor is small integers, the sums are exact, so that every machine must have the same bits. Where one factor is
the identity and the other has a different number in each place of shared memory, the result says which places a
descriptor leads to.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.nvidia.silicon.case import HEAD, Arguments, Case, integers, numbers

HALF, BF16, E4M3, E5M2 = torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
PTX = {HALF: "f16", BF16: "bf16", E4M3: "e4m3", E5M2: "e5m2"}
ROW_BYTES = {128: 1, 64: 2, 32: 3, 16: 0}  # of a swizzle, 16 for none -> its number in a descriptor
IMAGE = 32768  # bytes of shared memory for each factor
Dtypes = tuple[torch.dtype, torch.dtype]
BOTH_MAJOR = list(itertools.product((False, True), repeat=2))  # of A and of B: whether it is MN-major

KERNEL = (
    HEAD
    + """extern "C" __global__ void k(const uint4* A_bytes, const uint4* B_bytes, const unsigned* A_registers,
                             const unsigned long long* descriptors, int steps, int add, const float* C, float* D) {
    extern __shared__ __align__(1024) uint4 shared[];
    const int i = threadIdx.x, count = 32768 / 16;
    for (int n = i; n < count; n += 128) shared[n] = A_bytes[n], shared[count + n] = B_bytes[n];
    const unsigned long long start = (unsigned)__cvta_generic_to_shared(shared) / 16;
    float d[SIZE];
    for (int n = 0; n < SIZE; n++) d[n] = C[SIZE * i + n];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        const unsigned long long a = descriptors[2 * step] + start, b = descriptors[2 * step + 1] + start + count;
        unsigned r[4];
        for (int n = 0; n < 4; n++) r[n] = A_registers[4 * (128 * step + i) + n];
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ .reg .pred p; setp.ne.b32 p, ADD, 0; wgmma.mma_async.sync.aligned.m64nCOLUMNSkDEPTH.f32.TYPES "
                     "{NUMBERS}, LEFT, %RIGHT, p, SIGN_A, SIGN_B FLAGS; }"
                     : OUTPUTS : INPUTS "l"(b), "r"(add + step));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int n = 0; n < SIZE; n++) D[SIZE * i + n] = d[n];
}"""
)


def depth_of(dtype: torch.dtype) -> int:
    """How many products one instruction adds to a number of D."""
    return 32 // dtype.itemsize


class Form(NamedTuple):
    """What is written in the instruction."""

    dtypes: Dtypes
    columns: int
    in_registers: bool = False
    transposed: tuple[bool, bool] = (False, False)
    signs: tuple[int, int] = (1, 1)

    def code(self) -> str:
        """The kernel."""
        size, of_a = self.columns // 2, 4 if self.in_registers else 1
        left = ", ".join(f"%{size + n}" for n in range(of_a))
        flags = self.transposed[self.in_registers :] if self.dtypes[0].itemsize == 2 else ()
        inputs = [f'"r"(r[{n}]), ' for n in range(4)] if self.in_registers else ['"l"(a), ']
        code = KERNEL
        for old, new in {
            "SIZE": size,
            "ADD": f"%{size + of_a + 1}",
            "COLUMNS": self.columns,
            "DEPTH": depth_of(self.dtypes[0]),
            "TYPES": ".".join(PTX[dtype] for dtype in self.dtypes),
            "NUMBERS": ", ".join(f"%{n}" for n in range(size)),
            "LEFT": f"{{{left}}}" if self.in_registers else left,
            "RIGHT": size + of_a,
            "SIGN_A": self.signs[0],
            "SIGN_B": self.signs[1],
            "FLAGS": "".join(f", {int(flag)}" for flag in flags),
            "OUTPUTS": ", ".join(f'"+f"(d[{n}])' for n in range(size)),
            "INPUTS": "".join(inputs),
        }.items():
            code = code.replace(old, str(new))
        return code

    def __str__(self) -> str:
        words = ["x".join(dict.fromkeys(PTX[dtype] for dtype in self.dtypes)), f"n{self.columns}"]
        words += ["A in registers"] if self.in_registers else []
        words += ["".join("MN" if flag else "K" for flag in self.transposed)] if any(self.transposed) else []
        words += [f"signs {self.signs[0]:+} {self.signs[1]:+}"] if self.signs != (1, 1) else []
        return " ".join(words)


class Stored(NamedTuple):
    """A factor in shared memory, and a descriptor for each step along K; an address counts from the image's start."""

    image: Tensor
    descriptors: list[int]


def descriptor(leading: int, stride: int, row_bytes: int, start: int = 0, base_offset: int = 0) -> int:
    """The 64 bits; offsets and start are bytes."""
    return start // 16 | leading // 16 << 16 | stride // 16 << 32 | base_offset << 49 | ROW_BYTES[row_bytes] << 62


def stored(factor: Tensor, row_bytes: int, transposed: bool) -> Stored:
    """A factor [n, k] as wgmma takes it.

    By the figures of the PTX ISA, row by row and chunk by chunk of 16 bytes, not by bits of addresses."""
    rows = (factor.T if transposed else factor).contiguous().view(torch.uint8)  # what is stored side by side is a row
    chunks = rows.view(rows.shape[0], -1, 16)
    in_a_row, groups = row_bytes // 16, -(-len(rows) // 8)
    across = 8 * row_bytes if row_bytes > 16 else 128 * chunks.shape[1]  # from eight rows to the next eight
    along = across * groups if row_bytes > 16 else 128  # from the chunks of a row to its next ones
    image = torch.full((IMAGE,), 0x55, dtype=torch.uint8)
    for row, chunk in itertools.product(range(len(rows)), range(chunks.shape[1])):
        block, place = divmod(chunk, in_a_row)
        place ^= row % 8 * in_a_row // 8  # of 128 bytes: every row another; of 64: every second; of 32: every fourth
        at = row // 8 * across + block * along + row % 8 * row_bytes + 16 * place
        image[at : at + 16] = chunks[row, chunk]
    stride, leading = (along, across) if transposed and row_bytes == 16 else (across, along)
    found = []
    for step in range(factor.shape[1] // depth_of(factor.dtype)):
        if transposed:  # 16 rows further on
            start = 2 * step * across
        else:  # 32 bytes further on in each row
            block, place = divmod(2 * step, in_a_row)
            start = block * along + 16 * place
        found.append(descriptor(leading if transposed or row_bytes == 16 else 16, stride, row_bytes, start))
    return Stored(image, found)


def registers_of(a: Tensor) -> Tensor:
    """A [64, K] as four registers of each of 128 threads, step by step."""
    count = 4 // a.element_size()
    words = a.contiguous().view(torch.int32)  # [64, K / count]
    thread = torch.arange(128)
    group, quad = 16 * (thread // 32) + thread % 32 // 4, thread % 4
    steps = [
        torch.stack([words[group + 8 * (n % 2), 8 * step + quad + 4 * (n // 2)] for n in range(4)], dim=1)
        for step in range(a.shape[1] // (8 * count))
    ]
    return torch.stack(steps)


def places(columns: int) -> tuple[Tensor, Tensor]:
    """(row, column) of each number of D, [128, columns / 2]."""
    thread, n = torch.arange(128)[:, None], torch.arange(columns // 2)
    rows = 16 * (thread // 32) + thread % 32 // 4 + 8 * (n // 2 % 2)
    return rows, n // 4 * 8 + 2 * (thread % 4) + n % 2


def of_threads(d: Tensor) -> Tensor:
    """D [64, columns] as each thread has it, [128, columns / 2]."""
    return d[places(d.shape[1])].contiguous()


def product_arguments(
    a: Stored, b: Stored, registers: Tensor | None, before: Tensor, *, add: bool, device: str
) -> Arguments:
    """Of the kernel: its factors, and D [64, columns] before it."""
    steps = len(b.descriptors)
    pairs = np.array(list(zip(a.descriptors, b.descriptors, strict=True)), dtype=np.uint64).view(np.int64)
    of_a = torch.zeros(steps, 128, 4, dtype=torch.int32) if registers is None else registers
    c = of_threads(before).to(device)
    d = torch.zeros_like(c)
    inputs = (a.image.view(torch.int32), b.image.view(torch.int32), of_a, torch.from_numpy(pairs))
    moved = [one.to(device) for one in inputs]
    return (*moved, np.int32(steps), np.int32(add), c, d), (d,)


def multiply(form: Form, row_bytes: tuple[int, int], steps: int, add: bool, device: str) -> Arguments:
    """Factors of small integers, of as many steps."""
    a, b = exact_factors(form, steps)
    images = [stored(one, *how) for one, *how in zip((a, b), row_bytes, form.transposed, strict=True)]
    return product_arguments(*images, registers_of(a), exact_before(form), add=add, device=device)


def exact_factors(form: Form, steps: int) -> tuple[Tensor, Tensor]:
    """A [64, K] and B [columns, K]: all sums of their products are integers below 2048."""
    depth = steps * depth_of(form.dtypes[0])
    return (
        integers(64, depth, seed=1).to(form.dtypes[0]),
        integers(form.columns, depth, seed=2).to(form.dtypes[1]),
    )


def exact_before(form: Form) -> Tensor:
    """D [64, columns] before the product, integers as well."""
    return integers(64, form.columns, seed=3, low=-500, high=500)


def products() -> Iterator[Case]:
    """Exact sums, in every form of the instruction."""
    pairs = [(HALF, HALF), (BF16, BF16), (E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)]
    widths = {(HALF, HALF): range(8, 257, 8), (BF16, BF16): (8, 40, 128, 256), (E4M3, E4M3): (8, 24, 96, 176, 256)}
    forms = [(Form(pair, n), (128, 128), 4) for pair in pairs for n in widths.get(pair, (8, 64, 256))]
    forms += [(Form(pair, n, True), (128, 128), 4) for pair in pairs for n in (8, 64, 256)]
    signs = [(-1, 1), (1, -1), (-1, -1)]
    forms += [(Form((one, one), 32, False, (False, False), sign), (128, 128), 2) for one in PTX for sign in signs]
    swizzles = list(itertools.product(ROW_BYTES, repeat=2))
    for major in BOTH_MAJOR:
        forms += [(Form((HALF, HALF), 64, False, major), swizzle, 4) for swizzle in swizzles]
    forms += [(Form((E4M3, E4M3), 64), swizzle, 4) for swizzle in swizzles]
    for n in (8, 72, 128, 256):
        forms += [(Form((BF16, BF16), n, False, (True, True)), (swizzle, swizzle), 2) for swizzle in ROW_BYTES]
        forms += [(Form((BF16, BF16), n, True, (False, True)), (swizzle, swizzle), 4) for swizzle in ROW_BYTES]
    for form, swizzle, steps in dict.fromkeys(forms):
        for add in (False, True):
            name = f"{form}, rows of {swizzle[0]} and {swizzle[1]} bytes, {steps} steps, {'D +=' if add else 'D ='}"
            yield _product(name, form, functools.partial(multiply, form, swizzle, steps, add))


def _product(name: str, form: Form, made: functools.partial, group: str = "products", sums: bool = False) -> Case:
    return Case(group, name, form.code(), lambda device: made(device=device), shared=2 * IMAGE, sums=sums)


# ---- which places a descriptor leads to

PROBE_COLUMNS = 96


def numbered(dtype: torch.dtype, digit: int) -> Tensor:
    """Shared memory with a different number in every place: of 8 bits, digit by digit of 6 bits."""
    if dtype.itemsize == 2:
        return (1024 + torch.arange(IMAGE // 2)).to(torch.int16).view(torch.uint8)
    return (8 + (torch.arange(IMAGE) >> 6 * digit & 63)).to(torch.uint8)


def probe(dtype: torch.dtype, of_b: bool, transposed: bool, bits: int, digit: int, device: str) -> Arguments:
    """One factor is numbered memory behind a descriptor; the other is the identity."""
    depth = depth_of(dtype)
    seen = Stored(numbered(dtype, digit), [bits])
    identity = stored(torch.eye(64 if of_b else PROBE_COLUMNS, depth).to(dtype), 16, False)
    factors = (identity, seen) if of_b else (seen, identity)
    return product_arguments(*factors, None, torch.zeros(64, PROBE_COLUMNS), add=False, device=device)


def probed() -> Iterator[tuple[bool, int, bool, dict[str, int]]]:
    """Of B or of A; bytes of a row; MN-major or not; the descriptor's fields."""
    for of_b, row_bytes, transposed in itertools.product((False, True), ROW_BYTES, (False, True)):
        normal = {"leading": 2048, "stride": 8 * row_bytes if row_bytes > 16 else 256}
        yield of_b, row_bytes, transposed, normal
        yield of_b, row_bytes, transposed, {"leading": 1040, "stride": 528}
        yield of_b, row_bytes, transposed, {"leading": 16, "stride": 1024}
        for start in (16, 32, 48, 64, 112, 128, 256, 384, 512, 768, 896, 1024):
            yield of_b, row_bytes, transposed, {**normal, "start": start}
        if row_bytes > 16:
            for start, base in ((0, 1), (0, 4), (128, 1), (256, 2), (256, 1), (512, 4), (896, 7), (160, 1), (640, 5)):
                yield of_b, row_bytes, transposed, {**normal, "start": start, "base_offset": base}


def layouts() -> Iterator[Case]:
    """Where descriptors lead to, usual ones and odd ones."""
    for of_b, row_bytes, transposed, fields in probed():
        bits = descriptor(row_bytes=row_bytes, **fields)
        major = (False, transposed) if of_b else (transposed, False)
        told = ", ".join(f"{name} {value}" for name, value in fields.items())
        name = f"{'B' if of_b else 'A'} {'MN' if transposed else 'K'}-major, rows of {row_bytes} bytes, {told}"
        form = Form((HALF, HALF), PROBE_COLUMNS, False, major)
        yield _product(name, form, functools.partial(probe, HALF, of_b, transposed, bits, 0), "layouts")
        if not transposed and len(fields) == 2:
            for digit in range(3):
                form = Form((E4M3, E4M3), PROBE_COLUMNS)
                made = functools.partial(probe, E4M3, of_b, False, bits, digit)
                yield _product(f"{name}, bytes, digit {digit}", form, made, "layouts")


# ---- rounded sums

SUM_COLUMNS = 8


def spread(dtype: torch.dtype, *shape: int, seed: int, low: int, high: int) -> Tensor:
    """Random signs and fractions, exponents from low to high."""
    bits = numbers(*shape, seed=seed).astype(np.int64)
    exponent = low + (bits >> 8) % (high - low + 1)
    value = (1 + (bits & 0x7F) / 128) * np.exp2(exponent) * np.where(bits >> 31 & 1, -1, 1)
    return torch.from_numpy(value).to(dtype)


RANGES = {HALF: (-14, 14), BF16: (-40, 40), E4M3: (-6, 7), E5M2: (-14, 14)}  # exponents of normal numbers


def sum_factors(dtypes: Dtypes, kind: str, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """A [64, K], B [8, K] and D [64, 8] before it, for one kind of experiment."""
    depth = steps * depth_of(dtypes[0])
    shapes = ((64, depth), (SUM_COLUMNS, depth))
    before = torch.zeros(64, SUM_COLUMNS)
    if kind == "one size":  # as in a product of normal numbers
        a, b = (spread(d, *s, seed=11 + n, low=-2, high=1) for n, (d, s) in enumerate(zip(dtypes, shapes, strict=True)))
    elif kind in ("all sizes", "all sizes and D"):
        a, b = (
            spread(d, *s, seed=13 + n, low=RANGES[d][0], high=RANGES[d][1])
            for n, (d, s) in enumerate(zip(dtypes, shapes, strict=True))
        )
        if kind.endswith("D"):
            before = spread(torch.float32, 64, SUM_COLUMNS, seed=15, low=-10, high=30)
    elif kind == "sizes apart":  # of few sizes, so that many sums are of middling ones
        a, b = (spread(d, *s, seed=17 + n, low=-5, high=3) for n, (d, s) in enumerate(zip(dtypes, shapes, strict=True)))
        before = spread(torch.float32, 64, SUM_COLUMNS, seed=19, low=-12, high=12)
    elif kind == "below normal numbers":
        a, b = (
            spread(d, *s, seed=21 + n, low=RANGES[d][0] - 4, high=RANGES[d][0] + 2)
            for n, (d, s) in enumerate(zip(dtypes, shapes, strict=True))
        )
        before = spread(torch.float32, 64, SUM_COLUMNS, seed=23, low=-60, high=-10)
    elif kind == "nothing to add":  # zeros, of either sign, times what comes; D of all sizes, also below normal numbers
        signed = torch.where(torch.arange(64)[:, None] % 2 == 0, -0.0, 0.0).expand(64, depth)
        a, b = signed.to(dtypes[0]), spread(dtypes[1], *shapes[1], seed=25, low=-3, high=3)
        exponent = torch.arange(64)[:, None] * 4 - 149 + torch.arange(SUM_COLUMNS)
        before = torch.ldexp(spread(torch.float32, 64, SUM_COLUMNS, seed=27, low=0, high=0), exponent.clamp(max=127))
        before[:, 7] = 0
        before[::4, 7] *= -1
    elif (
        kind == "below what D can hold"
    ):  # products of small numbers onto D below normal ones; and above the greatest D
        a, b = torch.zeros(64, depth), torch.zeros(SUM_COLUMNS, depth)
        low = {HALF: -14, BF16: -100, E4M3: -6, E5M2: -14}
        a[:, 0], b[:, 0] = 2.0 ** low[dtypes[0]], 2.0 ** low[dtypes[1]]
        a, b = a.to(dtypes[0]), b.to(dtypes[1])
        before = spread(torch.float32, 64, SUM_COLUMNS, seed=29, low=-148, high=-100)
        before[32:] = spread(torch.float32, 32, SUM_COLUMNS, seed=31, low=127, high=127)
    elif kind == "cut":
        # Row r, column c: 256 from the first product (of D in the last 16 rows), then small ones 2^-(r + c): one, of
        # the other sign, two, one of D; where they are lost, and to which side.
        a, b = torch.zeros(64, depth), torch.zeros(SUM_COLUMNS, depth)
        row, column = torch.arange(16), torch.arange(SUM_COLUMNS)
        a[:, 0], b[:, 0] = 16, 16
        b[:, 1] = b[:, 2] = b[:, depth - 1] = torch.exp2(-column)
        small = torch.exp2(6.0 - row)
        a[:16, 1] = small.clamp(min=2**-6)
        a[16:32, 1] = -small.clamp(min=2**-6)
        a[32:48, 1], a[32:48, depth - 1] = small.clamp(min=2**-6), small.clamp(min=2**-6) * 1.5
        a[48:, 0], before[48:] = 0, 256
        a[48:, 1] = small.clamp(min=2**-6) * torch.where(row % 2 == 0, 1, -1)
        before[:16] = torch.exp2(-(row[:, None] + column).float()) * (column % 2)
        a, b = a.to(dtypes[0]), b.to(dtypes[1])
    else:  # "specials"
        bits = [0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0xFBFF]
        if dtypes[0] is BF16:
            bits = [0x7F80, 0xFF80, 0x7FC0, 0x8000, 0x0001, 0x007F, 0x7F7F, 0xFF7F]
        if dtypes[0].itemsize == 1:
            bits = [0x7C, 0xFC, 0x7F, 0x80, 0x01, 0x07, 0x7E, 0xFE]
        view = torch.int16 if dtypes[0].itemsize == 2 else torch.int8
        width = 0x10000 if dtypes[0].itemsize == 2 else 0x100
        signed = torch.tensor([n - width if n >= width // 2 else n for n in bits], dtype=view)
        a, b = torch.zeros(64, depth, dtype=view), torch.zeros(SUM_COLUMNS, depth, dtype=view)
        a[:, 0] = signed[torch.arange(64) % 8]
        a[:, 1] = torch.where(torch.arange(64) >= 32, signed[torch.arange(64) // 8 % 8], 0)
        b[:, 0] = signed
        b[:, 1] = signed.flip(0)
        a, b = a.view(dtypes[0]), b.view(dtypes[1])
        before[16:32], before[48:] = -0.0, 2.0**-140
    return a, b, before


def add_up(dtypes: Dtypes, kind: str, steps: int, device: str) -> Arguments:
    """Arguments for one kind of experiment with sums."""
    a, b, before = sum_factors(dtypes, kind, steps)
    return product_arguments(
        stored(a, 32, False), stored(b, 32, False), None, before, add=bool(before.any()), device=device
    )


SUM_KINDS = [
    ("one size", 1),
    ("one size", 8),
    ("all sizes", 1),
    ("all sizes and D", 1),
    ("sizes apart", 1),
    ("sizes apart", 4),
    ("cut", 1),
    ("specials", 1),
    ("below normal numbers", 1),
    ("nothing to add", 1),
    ("below what D can hold", 2),
]


def sums() -> Iterator[Case]:
    """Sums that cannot be exact: how many bits does silicon keep of which term?"""
    for dtypes in ((HALF, HALF), (BF16, BF16), (E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)):
        form = Form(dtypes, SUM_COLUMNS)
        for kind, steps in SUM_KINDS:
            name = f"{form}, {kind}, {steps} {'step' if steps == 1 else 'steps'}"
            yield _product(name, form, functools.partial(add_up, dtypes, kind, steps), "sums", sums=True)


ALL: Sequence = (products, layouts, sums)
