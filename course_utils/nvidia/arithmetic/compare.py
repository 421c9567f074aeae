"""The emulator's arithmetic beside a GPU's: every bit, except where PTX or CUDA's tables leave some open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from course_utils.measured import Row
from course_utils.nvidia.arithmetic.expressions import Expression
from course_utils.nvidia.arithmetic.record import from_row
from course_utils.nvidia.arithmetic.table import Result, groups, run
from course_utils.nvidia.arithmetic.tolerances import allowed
from course_utils.nvidia.arithmetic.types import TYPES, Type, to_float
from course_utils.nvidia.arithmetic.values import arguments

# By the names of expressions: why the emulator does not give the same, and is not to.
EXPLAINED = {
    "(a, (unsigned)3e10) [u8]": "NVRTC makes cvt.rzi.u32.f64 of it, which gives 4294967295 of a variable; a constant "
    "ptxas converts while it compiles, modulo 2 ** 32."
}


class Difference(NamedTuple):
    """An expression for which emulator and GPU differ: in how many values, and the first of them."""

    expression: Expression
    count: int
    why: str


def differences(rows: Iterable[Row], results: Mapping[Expression, Result]) -> list[Difference]:
    """Where the emulator's results differ from the record without an explanation, or the record lacks an expression."""
    recorded = {str(row["name"]): row for row in rows}
    found = []
    for expression, ours in results.items():
        row = recorded.get(expression.name)
        theirs = None if row is None else from_row(row, expression.signature)
        difference = Difference(expression, 1, "not recorded") if theirs is None else _one(expression, ours, theirs)
        if difference and expression.name not in EXPLAINED:
            found.append(difference)
    return found


def _one(expression: Expression, ours: Result, theirs: Result) -> Difference | None:
    if ours.type_number != theirs.type_number:
        names = [TYPES[number - 1].cpp if number else "another" for number in (ours.type_number, theirs.type_number)]
        return Difference(expression, 1, f"its type is {names[0]} and on the GPU {names[1]}")
    type_ = TYPES[ours.type_number - 1] if ours.type_number else None
    wrong = ours.bits != theirs.bits
    if type_ and type_.mantissa:
        wrong &= ~(_is_nan(ours.bits, type_) & _is_nan(theirs.bits, type_))  # PTX leaves the bits of a NaN open
        wrong &= ~allowed(expression, type_, ours.bits, theirs.bits)
    if not wrong.any():
        return None
    first = int(np.argmax(wrong))
    given = ", ".join(
        shown(int(bits), name)
        for bits, name in zip(arguments(expression.signature)[:, first], expression.signature, strict=True)
    )
    name = type_.name if type_ else "u64"
    pair = [shown(int(one.bits[first]), name) for one in (ours, theirs)]
    return Difference(expression, int(wrong.sum()), f"of {given}: {pair[0]}, GPU {pair[1]}")


def _is_nan(bits: np.ndarray, type_: Type) -> np.ndarray:
    infinity = (1 << type_.bits - 1) - (1 << type_.mantissa)
    return (bits & np.uint64((1 << type_.bits - 1) - 1)) > infinity


def shown(bits: int, type_name: str) -> str:
    """A number as a person reads it, and its bits."""
    type_ = next(type_ for type_ in TYPES if type_.name == type_name)
    if type_.mantissa:
        value = to_float(np.array([bits], dtype=np.uint64), type_)[0]
        return f"{value!s} ({bits:#x})"
    signed = bits - (1 << type_.bits) if type_.is_signed and bits >> type_.bits - 1 else bits
    return f"{signed} ({bits:#x})" if signed > 9 or signed < 0 else str(signed)


def counts() -> list[Row]:
    """A line for each group: its expressions, and the values that they are computed for."""
    return [
        {
            "group": group,
            "expressions": len(members),
            "values": sum(arguments(expression.signature).shape[1] for expression in members),
        }
        for group, members in groups().items()
    ]


def summary(rows: Sequence[Row]) -> list[Row]:
    """The `counts`, and for how many expressions of each group the emulator differs."""
    lines: list[Row] = []
    for line, members in zip(counts(), groups().values(), strict=True):
        found = differences(rows, run(tuple(members), "cpu"))
        first = f"{found[0].expression.name} {found[0].why}" if found else ""
        lines.append({**line, "different": len(found), "the first": first})
    return lines
