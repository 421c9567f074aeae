"""The arithmetic types of CUDA C++."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Type(NamedTuple):
    """A type by its short name, its name in CUDA C++, its bits, and the bits of its mantissa (0: an integer)."""

    name: str
    cpp: str
    bits: int
    mantissa: int = 0

    @property
    def is_signed(self) -> bool:
        return self.name[0] != "u" and self.name != "bool"


TYPES = (
    Type("bool", "bool", 8),
    Type("s8", "signed char", 8),
    Type("u8", "unsigned char", 8),
    Type("s16", "short", 16),
    Type("u16", "unsigned short", 16),
    Type("s32", "int", 32),
    Type("u32", "unsigned", 32),
    Type("s64", "long long", 64),
    Type("u64", "unsigned long long", 64),
    Type("f16", "__half", 16, 10),
    Type("bf16", "__nv_bfloat16", 16, 7),
    Type("f32", "float", 32, 23),
    Type("f64", "double", 64, 52),
)
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
_BY_NAME = {type_.name: type_ for type_ in TYPES}


def by_name(name: str) -> Type:
    """The type with this short name."""
    return _BY_NAME[name]


def to_float(bits: np.ndarray, type_: Type) -> np.ndarray:
    """Numbers of a floating-point type, as float64."""
    if type_.name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    width = f"{type_.bits // 8}"
    return bits.astype(f"<u{width}").view(f"<f{width}").astype(np.float64)
