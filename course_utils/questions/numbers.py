"""Typed numbers: how they are read and written, and by how much a wrong one is off."""

from __future__ import annotations

import math
import re

PREFIXES = "KMGTPE"
SAME_RATIO = 0.01  # how close a ratio lies to one with a name
LARGEST_POWER = 512
LARGEST_RATIO = 1e12  # beyond it a factor says nothing any more, and might be infinite
LONGEST = 60  # characters of a typed number

_GROUPS = r"[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:_[0-9]{3})+)(?![0-9])"
_NUMBER = rf"(?:{_GROUPS}|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_FACTOR = re.compile(rf"(-?)({_NUMBER})(?:e([+-]?[0-9]{{1,3}}))?(?: ?(?:\^|\*\*) ?(-?[0-9]{{1,3}})(?![0-9.]))?", re.I)
_SIGN = re.compile(r" ?([*/]) ?(?!\*)")
_SPACES = re.compile(r"\s+")
_SHORT = {"byte": "b", "us": "µs".casefold()}
_SPELLINGS = str.maketrans({"−": "-", "×": "*", "·": "*", "÷": "/", "μ": "µ"})


class UnreadableNumber(ValueError):
    """The text is not clearly a number; the message tells the learner what to type."""


def read_number(text: str, unit: str = "") -> float:
    """The number that was typed: "1,024", "1 024", "1.5e9", "2^20", a product or quotient of those ("3*2^20/8").

    A point is the decimal sign; commas, spaces and underscores stand between groups of three digits. The figure's own
    unit may follow, and with a bare number Ki, Mi, Gi, Ti. Raises UnreadableNumber for anything else.
    """
    text = _SPACES.sub(" ", text.translate(_SPELLINGS)).strip().removeprefix("+").removeprefix("≈").removeprefix("~")
    text = text.strip()
    if len(text) > LONGEST:
        raise UnreadableNumber(f"This is too long for a number: type at most {LONGEST} characters.")
    try:
        value, rest = _product(text)
    except (ZeroDivisionError, OverflowError):
        raise UnreadableNumber(f"“{text}” is no finite number.") from None
    if value is None:
        raise UnreadableNumber(f"“{text}” cannot be read as a number: type one such as 1024, 1.5e9 or 2^20.")
    if rest[:1] in (",", ".", "'", "’"):
        raise UnreadableNumber(
            f"“{text}” can be read in two ways: use a point as the decimal sign, and commas between groups of three "
            "digits or not at all."
        )
    value *= _scale(text, rest.strip(), unit)
    if not math.isfinite(value):
        raise UnreadableNumber(f"“{text}” is no finite number.")
    return value


def _product(text: str) -> tuple[float | None, str]:
    """The product of the factors at the beginning of `text`, None without a factor, and the rest of the text."""
    value, end, sign = None, 0, "*"
    match = _FACTOR.match(text)
    while match:
        factor = float(re.sub("[, _]", "", match[2])) * 10.0 ** int(match[3] or 0)
        if match[4]:
            if abs(int(match[4])) > LARGEST_POWER:
                raise OverflowError
            factor **= int(match[4])
        factor = -factor if match[1] else factor
        value = factor if value is None else value * factor if sign == "*" else value / factor
        end = match.end()
        match = None
        if following := _SIGN.match(text, end):
            sign, match = following[1], _FACTOR.match(text, following.end())
    return value, text[end:]


def _scale(text: str, typed: str, unit: str) -> float:
    """The factor of the typed unit. Raises UnreadableNumber unless it is the unit that is asked for."""
    if not typed or _one_unit(typed) in (_one_unit(unit), _one_unit(unit.split(" ")[0])):
        return 1.0
    if not unit and re.fullmatch(f"[{PREFIXES}]i", typed):
        return 1024.0 ** (1 + PREFIXES.index(typed[0]))
    if not unit and re.fullmatch(f"[k{PREFIXES}]", typed):
        raise UnreadableNumber(f"“{text}”: {typed} can mean a power of 1000 or of 1024; type the number out.")
    if re.match(r"[0-9*/^+(-]", typed):
        raise UnreadableNumber(f"“{text}” cannot be read from “{typed}” on: type one number, such as 1024 or 2^20.")
    asked = f"in {unit}, not in {typed}" if unit else f"as a bare number, without {typed}"
    raise UnreadableNumber(f"The answer is asked {asked}: convert it, and type the number.")


def _one_unit(unit: str) -> str:
    """A unit without insignificant differences: upper and lower case, the s of a plural, short for long."""
    plain = unit.casefold()
    plain = plain.removesuffix("s") if len(plain) > 3 else plain
    return _SHORT.get(plain, plain)


def write_number(value: float, tolerance: float = 0.0) -> str:
    """`value` as text, with as many digits as the relative tolerance needs and at least four: "16.78", "1,024"."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    for digits in range(4, 18):
        text = f"{value:.{digits}g}"
        if agrees(float(text), value, tolerance / 10):
            break
    return f"{value:,.{max(0, digits - 1 - _magnitude(value))}f}" if 1e3 <= abs(value) < 1e15 else text


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def agrees(number: float, value: float, tolerance: float) -> bool:
    """Whether `number` is `value` within the relative tolerance. Without one, whole numbers must be equal."""
    if tolerance == 0 and float(value).is_integer():
        return number == value
    return math.isclose(number, value, rel_tol=0.0, abs_tol=max(tolerance, 1e-9) * abs(value))


def how_far_off(number: float, value: float, unit: str) -> str:
    """In words: whether a wrong number is too large or too small, and by which factor."""
    direction = "large" if number > value else "small"
    if number == 0 or value == 0 or (number < 0) != (value < 0):
        return f"{write_number(number)} is too {direction}."
    if abs(number - value) == 1 and min(abs(number), abs(value)) > 2:
        return f"{write_number(number)} is too {direction} by one."
    ratio = number / value
    if not 1 / LARGEST_RATIO < ratio < LARGEST_RATIO:
        return f"{write_number(number)} is too {direction} by far."
    larger = max(ratio, 1 / ratio)
    said = _prefix_mistaken(ratio, unit) or _power(larger)
    if said:
        return f"{write_number(number)} is too {direction}{said}"
    if larger < 1.5:
        return f"{write_number(number)} is too {direction}, by about {100 * abs(ratio - 1):.2g} %."
    return f"{write_number(number)} is too {direction}, by a factor of about {_rounded(larger)}."


def _rounded(ratio: float) -> str:
    """The ratio to two digits, so that the factor does not give away the right number."""
    two = float(f"{ratio:.2g}")
    return f"{two:,.0f}" if 10 <= two < 1e6 else f"{two:.2g}"


def _prefix_mistaken(ratio: float, unit: str) -> str:
    """The remark for powers of 1000 in place of powers of 1024, or the reverse; empty for another ratio."""
    match = re.match(rf"([k{PREFIXES}])(i?)B\b", unit)
    if not match:
        return ""
    steps = 1 + PREFIXES.index(match[1].upper())
    binary, decimal = f"{match[1].upper()}iB", f"{'k' if steps == 1 else match[1]}B"
    off = 1.024**steps if match[2] else 1.024**-steps
    if not math.isclose(ratio, off, rel_tol=0.004):
        return ""
    given, asked = (decimal, binary) if match[2] else (binary, decimal)
    return f": it is the number of {given}, and {asked} are asked ({_bytes(binary)}, {_bytes(decimal)})."


def _bytes(unit: str) -> str:
    steps = 1 + PREFIXES.index(unit[0].upper())
    return f"1 {unit} is 2^{10 * steps} bytes" if "i" in unit else f"1 {unit} is 10^{3 * steps} bytes"


def _power(ratio: float) -> str:
    """The remark for a ratio near a power of 2 or of 1000; empty for another ratio."""
    # 1000 and 1024 differ by more than SAME_RATIO, their higher powers too.
    thousands, twos = round(math.log(ratio, 1000)), round(math.log2(ratio))
    if thousands and math.isclose(ratio, 1000.0**thousands, rel_tol=SAME_RATIO):
        steps = "one step" if thousands == 1 else f"{thousands} steps"
        return f", by a factor of {1000**thousands:,}: {steps} of the prefixes k, M, G."
    if twos and twos % 10 == 0 and math.isclose(ratio, 2.0**twos, rel_tol=SAME_RATIO):
        steps = "one step" if twos == 10 else f"{twos // 10} steps"
        return f", by a factor of 2^{twos}: {steps} of the prefixes Ki, Mi, Gi."
    if twos and math.isclose(ratio, 2.0**twos, rel_tol=SAME_RATIO):
        power = f" (2^{twos})" if twos > 1 else ""
        return f", by a factor of {2**twos:,}{power}."
    return ""
