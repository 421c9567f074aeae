"""Functions for which CUDA's documents bound the error and leave the last bits open, so that a GPU has its own.

The bounds are those of the CUDA C++ Programming Guide ("Mathematical Functions", "Intrinsic Functions"), in units of
the last place (ulp). The GPU's result lies within its bound of the true value, and the emulator's, which is the
host's C library's, within `OURS` of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from course_utils.nvidia.arithmetic.expressions import Expression
from course_utils.nvidia.arithmetic.types import FLOATS, Type, by_name, to_float
from course_utils.nvidia.arithmetic.values import arguments

OURS = 2


class Bound(NamedTuple):
    """A bound of an error: in ulp, or absolute where that is more. `of`: arguments -> what is added to both."""

    ulp: float
    size: float = 0.0
    of: Callable[..., tuple[np.ndarray | float, np.ndarray | float]] = lambda *_: (0.0, 0.0)


def _power(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """__powf is exp2(y * log2(x)): the error of the logarithm, and of the product, counts y times."""
    return 4 * np.abs(y) * (1 + np.abs(np.log2(np.abs(x)))), 0.0


def _turns(x: np.ndarray) -> tuple[float, np.ndarray]:
    """__sinf and __cosf divide by 2 pi in single precision: beyond pi the error grows with x."""
    return 0.0, np.abs(x) * 2.0**-20 + np.where(np.abs(x) > 2**21, 2.0, 0.0)


_SINGLE = {  # maximum error in ulp
    1: "cbrt rcbrt expm1 log log2 log1p sinpi cospi sincospi",
    2: "rsqrt rhypot rnorm3d rnorm4d rnorm exp exp2 exp10 log10 sin cos sincos asin acos atan tanh cosh erf erfinv",
    3: "hypot norm3d norm4d norm atan2 sinh asinh atanh",
    4: "tan acosh pow erfc erfcinv erfcx",
    5: "normcdf normcdfinv tgamma",
    6: "lgamma cyl_bessel_i0 cyl_bessel_i1",
    9: "j0 j1 jn y0 y1 yn",
}
_DOUBLE = {
    1: "rsqrt cbrt rcbrt rhypot rnorm3d rnorm4d rnorm exp exp2 exp10 expm1 log log2 log10 log1p cosh tanh",
    2: "hypot norm3d norm4d norm sin cos sincos tan sinpi cospi sincospi asin acos atan atan2 sinh atanh pow erf",
    3: "asinh acosh",
    4: "erfcx lgamma",
    5: "erfc erfinv normcdf",
    6: "erfcinv cyl_bessel_i0 cyl_bessel_i1",
    7: "j0 j1 jn y0 y1 yn",
    8: "normcdfinv",
    10: "tgamma",
}
_BESSEL = ("j0", "j1", "jn", "y0", "y1", "yn")  # past 8, and near their zeros, an error of this size
BOUNDS: dict[tuple[str, str], Bound] = {
    **{("f32", f"{name}f"): Bound(ulp) for ulp, names in _SINGLE.items() for name in names.split()},
    **{("f64", name): Bound(ulp) for ulp, names in _DOUBLE.items() for name in names.split()},
    **{("f32", f"{name}f"): Bound(9, size=2.2e-6) for name in _BESSEL},
    **{("f64", name): Bound(7, size=5e-12) for name in _BESSEL},
    ("f32", "__fdividef"): Bound(2),
    ("f32", "fdividef"): Bound(0),
    ("f32", "__expf"): Bound(2, of=lambda x: (np.floor(np.abs(1.173 * x)), 0.0)),
    ("f32", "__exp10f"): Bound(2, of=lambda x: (np.floor(np.abs(2.97 * x)), 0.0)),
    ("f32", "__powf"): Bound(2, of=_power),
    ("f32", "__logf"): Bound(3, size=2**-21.41),
    ("f32", "__log2f"): Bound(2, size=2**-22),
    ("f32", "__log10f"): Bound(3, size=2**-24),
    ("f32", "__sinf"): Bound(0, 2**-21.41, _turns),
    ("f32", "__cosf"): Bound(0, 2**-21.19, _turns),
    ("f32", "__sincosf"): Bound(0, 2**-21.19, _turns),
    # The quotient of the two, for which no bound is given; past pi / 2 not even its size.
    ("f32", "__tanf"): Bound(2**13, 2**-20, of=lambda x: (np.where(np.abs(x) > 1.5, 2.0**40, 0.0), 0.0)),
    ("f32", "__tanhf"): Bound(2**13),  # 2 ** -11 of the value
    ("f16", "htanh_approx"): Bound(0, size=2**-10.987),
    ("bf16", "htanh_approx"): Bound(0, size=2**-8),
    # Between its zeros below 0 more than 6 or 4 ulp, as the table says; how much more, it does not.
    ("f32", "lgammaf"): Bound(6, size=2**-22),
    ("f64", "lgamma"): Bound(4, size=2**-50),
}


def bound(expression: Expression) -> Bound | None:
    """How far from the true value the GPU may be; None: not at all."""
    called = re.search(r"\b([a-z_]\w*)\((?:a|\d, a|3, x)\b", expression.text)
    if not called or expression.signature[0] not in FLOATS:
        return None
    kind = "f64" if "f64" in expression.signature else expression.signature[0]
    return BOUNDS.get((kind, called[1])) or BOUNDS.get((kind, f"{called[1]}f"))


def ordered(bits: np.ndarray, type_: Type) -> np.ndarray:
    """Numbers that are as far apart as there are floats between: -0 and 0 are one."""
    size = (bits & np.uint64((1 << type_.bits - 1) - 1)).astype(np.int64)
    return np.where(bits >> np.uint64(type_.bits - 1) == 1, -size, size)


def allowed(expression: Expression, type_: Type, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Which values are near enough to the GPU's: bool [n]."""
    limit = bound(expression)
    if limit is None:
        return np.zeros(ours.shape, dtype=bool)
    given = [
        to_float(bits, by_name(name))
        for bits, name in zip(arguments(expression.signature), expression.signature, strict=True)
        if name in FLOATS
    ]
    with np.errstate(all="ignore"):
        more_ulp, more = (np.nan_to_num(x, nan=0.0, posinf=0.0) for x in limit.of(*given))
        steps = np.abs(ordered(ours, type_).astype(object) - ordered(theirs, type_)).astype(np.float64)
        a, b = to_float(ours, type_), to_float(theirs, type_)
        near = (steps <= limit.ulp + OURS + more_ulp) | (np.abs(a - b) <= limit.size + more)
    same_zero = (a != 0) | (b != 0) | (ours == theirs)
    return near & same_zero & (np.isnan(a) == np.isnan(b)) | _recurs(expression, given[0], a, b)


def _recurs(expression: Expression, x: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """A GPU computes jn and yn from the second order on by a recurrence: for the least x of jn it leaves the range and
    gives NaN, and at -0 and -inf it loses the sign."""
    if not re.search(r"\b[jy]nf?\((2|5)", expression.text):
        return np.zeros(x.shape, dtype=bool)
    is_lost = np.isnan(theirs) & (np.abs(x) < 1e-17) & (np.abs(ours) < 1e-30)
    return is_lost | (np.isin(x, (0.0, -np.inf)) & (np.abs(ours) == np.abs(theirs)))
