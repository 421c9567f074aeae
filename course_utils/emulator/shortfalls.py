"""What is said of a kernel that a GPU takes and the emulator does not: the name that it lacks, and the learner's line.

The host compiler's own words, g++'s or clang's, are about the emulator's headers; they stay in the error's log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from course_utils.toolchain.source import line_text

_NAME = r"'(?P<name>[^']+)'"
_UNKNOWN = tuple(  # errors that name what is not there; of each pair g++'s is the first
    map(
        re.compile,
        (
            rf"{_NAME} was not declared",
            rf"use of undeclared identifier {_NAME}",
            rf"{_NAME} (?:does not name a type|has not been declared|is not a member of|is not a(?: class)? template)",
            rf"(?:unknown type name|no (?:type|template) named) {_NAME}",
            rf"has no member named {_NAME}",
            rf"no member named {_NAME}",
            rf"there are no arguments to {_NAME} that depend on a template parameter",
            rf"no matching function for call to {_NAME}",
            rf"no matching (?:member function|constructor) for (?:call to|initialization of) {_NAME}",
            rf"(?:call of overloaded|call to) {_NAME} is ambiguous",
            r"(?P<header>[^\s':]+): No such file or directory",
            r"'(?P<header>[^']+)' file not found",
        ),
    )
)
_OWN = re.compile(r"static assertion failed:? (the emulator .*)|static_assert failed \"(the emulator .*)\"")


class _Subject(NamedTuple):
    """What the emulator lacks as a whole: by what a name or a line of it looks like."""

    name: re.Pattern[str]  # matches a name from its beginning to its end
    line: re.Pattern[str]  # is found in a line of the source
    sentence: str


_NOTHING = re.compile(r"(?!)")
SUBJECTS = (
    _Subject(
        re.compile(r"(tex|surf)(1D|2D|3D|Cubemap)\w*|cuda(Texture|Surface|Tex|Surf)\w*|(texture|surface)\w*"),
        _NOTHING,
        "it knows no textures and no surfaces; an array that is read through a pointer does the same",
    ),
    _Subject(
        _NOTHING,
        re.compile(r"<<<"),
        "it knows no kernel that launches another (dynamic parallelism); Python can launch both",
    ),
)
"""Of these the sentence says more than the name."""


def shortfall(log: str, sources: Mapping[str, str], name: str) -> str:
    """A sentence on the first error of a host compiler's log. sources: the learner's files, by the name that the
    compiler knows; name: of the kernel's file, for an error in none of their lines."""
    errors = [*re.finditer(r"^.*?\berror: (?P<message>.*)$", log, flags=re.MULTILINE)]
    if not errors:
        return f"{name}: the emulator does not take this kernel, a GPU does"
    first = errors[0]
    file, line = _place(log, first, errors[1].start() if len(errors) > 1 else len(log), sources)
    place = f"{file}:{line}" if file else name
    own = _OWN.search(first["message"])
    if own:
        return f"{place}: {own[1] or own[2]}"
    source = (line_text(sources[file], line) if file else None) or ""
    unknown = next((found for pattern in _UNKNOWN if (found := pattern.search(first["message"]))), None)
    lacks = _missing(unknown) if unknown else ""
    more = [s.sentence for s in SUBJECTS if s.name.fullmatch(lacks.split("(")[0]) or s.line.search(source)]
    what = f"does not have {lacks}" if lacks else "does not take this line" if source else "does not take this kernel"
    shown = f": `{source}`" if source and not lacks and not more else ""
    return f"{place}: the emulator {what}, a GPU does{shown}" + "".join(f": {sentence}" for sentence in more)


def _missing(unknown: re.Match[str]) -> str:
    found = unknown.groupdict()
    return f"<{found['header']}>" if found.get("header") else found["name"]


def _place(log: str, error: re.Match[str], end: int, sources: Mapping[str, str]) -> tuple[str, int]:
    """The line of the learner's that an error is about, or ("", 0): its own, or the first that is named beside it,
    where it lies in a header of the emulator."""
    files = "|".join(re.escape(file) for file in sorted(sources, key=len, reverse=True))
    place = re.compile(rf"^({files}):(\d+):", flags=re.MULTILINE)
    found = place.match(log, error.start()) or place.search(log, 0, end)
    return (found[1], int(found[2])) if found else ("", 0)
