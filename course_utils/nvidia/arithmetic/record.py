"""A GPU's results for the expressions of the table, as the rows of a record."""

from __future__ import annotations

import base64
import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from course_utils.measured import Row
from course_utils.nvidia.arithmetic.expressions import Expression
from course_utils.nvidia.arithmetic.table import Result, built, groups, run
from course_utils.nvidia.arithmetic.types import TYPES
from course_utils.nvidia.arithmetic.values import arguments


def measure_arithmetic() -> list[Row]:
    """A row for each expression, as the GPU computes it."""
    chosen = [tuple(members) for members in groups().values()]
    with ThreadPoolExecutor(8) as pool:  # a minute, one after the other
        list(pool.map(lambda members: built(members, "cuda"), chosen))
    rows: list[Row] = []
    for members in chosen:
        found = run(members, "cuda")
        rows += [to_row(expression, found[expression]) for expression in members]
    return rows


def to_row(expression: Expression, result: Result) -> Row:
    """A result as the record has it. `of`: which arguments were given, by a hash."""
    packed = zlib.compress(result.bits.astype(_width(result.type_number)).tobytes(), 9)
    return {
        "name": expression.name,
        "of": _hash(expression.signature),
        "type": result.type_number,
        "bits": base64.b64encode(packed).decode(),
    }


def from_row(row: Row, signature: tuple[str, ...]) -> Result | None:
    """The result that a row of the record has; None where the record was made with other arguments."""
    if row["of"] != _hash(signature):
        return None
    number = int(row["type"])  # type: ignore[call-overload]
    packed = zlib.decompress(base64.b64decode(str(row["bits"])))
    return Result(number, np.frombuffer(packed, dtype=_width(number)).astype(np.uint64))


def _width(type_number: int) -> np.dtype:
    bits = TYPES[type_number - 1].bits if type_number else 64
    return np.dtype(f"<u{bits // 8}")


def _hash(signature: tuple[str, ...]) -> str:
    return hashlib.sha256(arguments(signature).tobytes()).hexdigest()[:8]
