"""The expressions of the table: operators, casts, and the functions of the Math API, by the types of their arguments.

`a`, `b`, `c` and `d` are the arguments. A group is one file of kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from course_utils.nvidia.arithmetic.functions import FUNCTIONS, HALF_FUNCTIONS, ROUNDED_BY_ARGUMENT, WITH_RESULTS
from course_utils.nvidia.arithmetic.types import FLOATS, INTEGERS, TYPES, by_name

ARITHMETIC = (*INTEGERS, "f32", "f64")
SIXTEEN_BITS = ("f16", "bf16")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
COUNTS = ("s32", "u32", "s64", "u8")  # of a shift


class Expression(NamedTuple):
    """An expression of CUDA C++, and the short names of its arguments' types."""

    group: str
    signature: tuple[str, ...]
    text: str

    @property
    def name(self) -> str:
        """Names it in the record."""
        return f"{self.text} [{' '.join(self.signature)}]"


def _casts() -> Iterator[Expression]:
    for source, target in product(TYPES, TYPES):
        if {source.name, target.name} == {"f16", "bf16"} or (source.name == "bool" and target.name in SIXTEEN_BITS):
            continue
        kind = "16-bit casts" if {source.name, target.name} & set(SIXTEEN_BITS) else "casts"
        for text in (f"({target.cpp})a", f"stored<{target.cpp}>(a)", f"passed<{target.cpp}>(a)"):
            yield Expression(kind, (source.name,), text)
    for target, source in product(INTEGERS, ("f32", "f64")):
        for operator in "+-*":
            text = f"[&] {{ auto x = b; x {operator}= a; return x; }}()"
            yield Expression("casts", (source, target), text)
        yield Expression("casts", (source, target), f"({by_name(target).cpp})(a * 3)")


# NVRTC emits the instruction for constants, too; for a shift by too large a constant it emits nothing.
CONSTANTS = (
    "(int)3e10f",
    "(int)-3e10f",
    "(int)(0.0f / 0.0f)",
    "(unsigned)-5.7f",
    "(unsigned char)300.7f",
    "(signed char)-129.0f",
    "(short)70000.0f",
    "(long long)1e30",
    "(unsigned)3e10",
    "(unsigned long long)-1.0f",
)


def _constants() -> Iterator[Expression]:
    for constant in CONSTANTS:
        yield Expression("casts", ("u8",), f"(a, {constant})")
    for type_ in ("u8", "s32", "f32"):
        yield Expression("casts", (type_,), "(int)(char)a")


def _operators() -> Iterator[Expression]:
    for type_ in (*ARITHMETIC, *SIXTEEN_BITS):
        one, two = (type_,), (type_, type_)
        kind = "16-bit operators" if type_ in SIXTEEN_BITS else "operators"
        for text in ("-a", "+a", "!a") if type_ not in SIXTEEN_BITS else ("-a", "+a"):
            yield Expression(kind, one, text)
        for text in ("++x", "--x", "x++", "x--"):
            yield Expression(kind, one, f"[&] {{ auto x = a; {text}; return x; }}()")
        for operator in ("+", "-", "*", *COMPARISONS):
            yield Expression(kind, two, f"a {operator} b")
        for operator in "+-*":
            yield Expression(kind, two, f"[&] {{ auto x = a; x {operator}= b; return x; }}()")
        if type_ not in SIXTEEN_BITS:
            for text in ("a && b", "a || b", "a < b ? a : b", "a ? a : b"):
                yield Expression(kind, two, text)
        if type_ in INTEGERS:
            yield Expression(kind, one, "~a")
            for operator in "&|^":
                yield Expression(kind, two, f"a {operator} b")
                yield Expression(kind, two, f"[&] {{ auto x = a; x {operator}= b; return x; }}()")
            for operator in "/%":
                yield Expression(kind, two, f"divides(a, b) ? a {operator} b : 0")
                text = f"[&] {{ auto x = a; if (divides(a, b)) x {operator}= b; return x; }}()"
                yield Expression(kind, two, text)
        else:
            yield Expression(kind, two, "a / b")
            yield Expression(kind, two, "[&] { auto x = a; x /= b; return x; }()")


def _mixed() -> Iterator[Expression]:
    for pair in product(ARITHMETIC, ARITHMETIC):
        if pair[0] == pair[1]:
            continue
        division = "divides(a, b) ? a / b : 0" if not set(pair) & set(FLOATS) else "a / b"
        for text in ("a + b", "a * b", "a < b", "a == b", "true ? a : b", division):
            yield Expression("mixed types", pair, text)


def _shifts() -> Iterator[Expression]:
    for pair in product(INTEGERS, COUNTS):
        for operator in ("<<", ">>"):
            yield Expression("shifts", pair, f"a {operator} b")
            yield Expression("shifts", pair, f"[&] {{ auto x = a; x {operator}= b; return x; }}()")
    for pair in (("s32", "s32"), ("u64", "s32")):
        yield Expression("shifts", pair, "1 << b")
        yield Expression("shifts", pair, "1ull << b")
        yield Expression("shifts", pair, "a >> (b + 1) << 2 + b")


LETTERS = "abcd"


def _functions() -> Iterator[Expression]:
    for (group, signature), names in FUNCTIONS.items():
        types = tuple(signature.split())
        given = ", ".join(LETTERS[: len(types)])
        for name in names.split():
            yield Expression(group, types, f"{name}({given})")
    for signature, names in ROUNDED_BY_ARGUMENT.items():
        types = tuple(signature.split())
        given = ", ".join(LETTERS[: len(types)])
        for name, way in product(names.split(), ("Nearest", "Zero", "PosInf", "MinInf")):
            yield Expression("intrinsics", types, f"{name}({given}, cudaRound{way})")
    for (group, signature), texts in WITH_RESULTS.items():
        for text in texts:
            yield Expression(group, tuple(signature.split()), text)
    for type_, (two, infix) in {"f16": ("half2", "half"), "bf16": ("bfloat162", "bfloat16")}.items():
        for signature, names in HALF_FUNCTIONS.items():
            types = tuple(type_ if word == "h" else word for word in signature.split())
            given = ", ".join(LETTERS[: len(types)])
            for name in names.split():
                yield Expression(type_, types, f"{name.replace('{h2}', two).replace('{h}', infix)}({given})")


@cache
def expressions() -> tuple[Expression, ...]:
    """All of them, each once, group by group."""
    found = [*_casts(), *_constants(), *_operators(), *_mixed(), *_shifts(), *_functions()]
    return tuple(sorted(dict.fromkeys(found), key=lambda e: (e.group, e.signature)))


def functions_called() -> set[str]:
    """The names of all functions that the expressions call."""
    return {name for e in expressions() for name in re.findall(r"\b([A-Za-z_]\w*)\(", e.text)}
