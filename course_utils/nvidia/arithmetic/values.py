"""The numbers that the expressions of the table are given: where arithmetic has edges, and some in between."""

from __future__ import annotations

import struct
from functools import cache
from itertools import product

import numpy as np

from course_utils.nvidia.arithmetic.types import FLOATS, Type, by_name

# Around 0, 1 and halves; around the ends of each integer; the ends of the format itself come in `_floats`.
SPECIAL = (
    "0.0 -0.0 1.0 -1.0 0.5 -0.5 1.5 -1.5 2.5 -2.5 0.49999997 -0.75 3.7 -5.7 0.99999994 1e-3 127.5 128.0 -128.9 "
    "-129.0 255.5 256.0 300.7 32767.5 32768.0 -32769.0 65535.9 65536.0 100000.3 16777217.0 8388607.5 "
    "2147483520.0 2147483647.5 2147483648.0 -2147483648.0 -2147483904.0 4294967040.0 4294967296.0 3e10 -3e10 "
    "9.2233715e18 9.223372036854775808e18 -9.223372036854775808e18 -9.2233731e18 1.8446742e19 "
    "1.8446744073709551616e19 1e20 3.1415927 -0.7853982 87.5 -104.0 709.5 -750.0 1e30 1e300 inf -inf nan"
)
FEW = "0.0 -0.0 1.0 -1.0 0.5 -2.5 3.7 1e-3 -300.7 16777217.0 3e10 -9.3e18 inf -inf nan"


def bits_of_float(x: float, type_: Type) -> int:
    """The bits of the nearest number of a floating-point type."""
    if type_.name == "f64":
        return struct.unpack("<Q", struct.pack("<d", x))[0]
    with np.errstate(over="ignore"):
        if type_.name == "f16":
            return int(np.float16(x).view(np.uint16))
        single = int(np.float32(x).view(np.uint32))
    if type_.name == "f32":
        return single
    if x != x:
        return 0x7FFF
    return (single + 0x7FFF + (single >> 16 & 1)) >> 16  # bf16


def _ends(type_: Type) -> list[int]:
    """The least and greatest numbers, normal and not, of both signs."""
    mantissa, sign = type_.mantissa, 1 << type_.bits - 1
    infinity = (1 << type_.bits - 1) - (1 << mantissa)
    ends = [1, (1 << mantissa) - 1, 1 << mantissa, infinity - 1]
    return [*ends, *(end | sign for end in ends)]


def _integers(type_: Type, few: bool) -> list[int]:
    width = type_.bits
    middle, top = 1 << width - 1, (1 << width) - 1
    found = [0, 1, 2, 3, 7, width - 1, width, middle - 1, middle, middle + 1, top, top - 1, 100, 0x5A5A5A5A5A5A5A5A]
    if not few:
        found += [5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, width + 1, 2 * width, top - 6, top - width, middle - 2]
        found += [0x8040201008040201, 0x00FF00FF00FF00FF, 0x7F80FF01807F0180, 0xFFFF0000, 0x00FFFFFF01000001]
        found += [(1 << bit) + change for bit in (24, 25, 53, 54) for change in (1, 3)]  # halfway between two floats
    return [x & top for x in found]


@cache
def values(type_name: str, few: bool = False, random: int = 40) -> tuple[int, ...]:
    """The bits of a type's edge values, or of `few` of them, and of so many random numbers, each once."""
    type_ = by_name(type_name)
    if type_.name == "bool":
        return (0, 1)
    # Not NumPy's generator: its numbers may change with its version.
    state, drawn = sum(map(ord, type_name)), []
    for _ in range(random):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        drawn.append(state >> 64 - type_.bits)
    if type_.name in FLOATS:
        # Half of them of any size, and half near to 1.
        bias, keep = (1 << type_.bits - 2 - type_.mantissa) - 1, (1 << type_.mantissa) - 1
        near = [
            x & (1 << type_.bits - 1 | keep) | (bias + (x >> type_.mantissa) % 7 - 3) << type_.mantissa
            for x in drawn[::2]
        ]
        edges = [bits_of_float(float(x), type_) for x in (FEW if few else SPECIAL).split()]
        found = [*edges, *(_ends(type_)[:: 3 if few else 1]), *near, *drawn[1::2]]
    else:
        found = [*_integers(type_, few), *drawn]
    return tuple(dict.fromkeys(found))


@cache
def arguments(signature: tuple[str, ...]) -> np.ndarray:
    """uint64 [arguments, n]: the bits of what the expressions of a signature are given."""
    if len(signature) == 1:
        return np.array([values(signature[0])], dtype=np.uint64)
    if len(signature) == 2:
        first, second = (values(name, few=True, random=2) for name in signature)
        every = 1 if signature[0] == signature[1] else 2  # there are many pairs of types
        crossed = [(a, b) for i, a in enumerate(first) for b in second[i % every :: every]]
    else:
        crossed = product(*(values(name, few=True, random=1)[:: len(signature)] for name in signature))
    alone = [values(name, random=64) for name in signature]
    drawn = [tuple(one[-1 - i - 7 * place] for place, one in enumerate(alone)) for i in range(30)]
    return np.array([*crossed, *(d for d in drawn if len(d) == len(signature))], dtype=np.uint64).T.copy()
