"""What is said of a kernel that a GPU takes and the emulator does not: the name that it lacks, and the learner's line.

The host compiler's own words, g++'s or clang's, are about the emulator's headers; they stay in the error's log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from course_utils.toolchain.source import line_text

SUBJECTS = {
    r"\b(tex|surf)(1D|2D|3D|Cubemap)|\bcuda(Texture|Surface)": (
        "it knows no textures and no surfaces; an array that is read through a pointer holds the same values"
    ),
    r"<<<": "it knows no kernel that launches another (dynamic parallelism); Python can launch both",
}
"""What the emulator lacks as a whole, by what a name, or a line where no name is known, has in it."""

_NAME = r"'(?P<name>[^']+)'"
_LACKS = [  # a name, in g++'s words and in clang's
    rf"{_NAME} (was not declared|does not name a type|has not been declared|is not a member of)",
    rf"{_NAME} is not a (class )?template",
    rf"has no member named {_NAME}",
    rf"no arguments to {_NAME} that depend on a template parameter",
    rf"call of overloaded {_NAME} is ambiguous",
    rf"(use of undeclared identifier|unknown type name|no (member|type|template) named) {_NAME}",
    rf"call to {_NAME} is ambiguous",
    rf"no matching (member )?function for call to {_NAME}",  # both say so
    r"(?P<header>[^\s':]+): No such file or directory",
    r"'(?P<header>[^']+)' file not found",
]
_DEFINED_ANEW = re.compile(r"redefinition of '(?P<function>[^']+)'")
_OWN = re.compile(r"static assertion failed: (the emulator .*)")
_ERROR = re.compile(r"^.*?\berror: (?P<message>.*)$", flags=re.MULTILINE)


def shortfall(log: str, sources: Mapping[str, str], name: str) -> str:
    """A sentence on the first error of a host compiler's log, or on each inline PTX instruction that is not known.

    sources: the learner's files, by the names that the compiler knows; name: of the kernel's file, for an error that is
    in none of their lines.
    """
    errors = [*_ERROR.finditer(log)]
    if not errors:
        return f"{name}: the emulator does not take this kernel, a GPU does"
    ends = [error.start() for error in errors[1:]] + [len(log)]
    places = [_place(log, error, end, sources) for error, end in zip(errors, ends, strict=True)]
    said = [(place, _OWN.search(error["message"])) for place, error in zip(places, errors, strict=True)]
    own = [f"{_named(place, name)}: {sentence[1]}" for place, sentence in said if sentence]
    if own:
        return "\n".join(own)
    (file, line), message = places[0], errors[0]["message"]
    source = line_text(sources[file], line) if file else None
    anew = _DEFINED_ANEW.search(message)
    lacks = _lacking(message)
    subject = next((said for pattern, said in SUBJECTS.items() if re.search(pattern, lacks or source or "")), None)
    if anew:
        what, more = f"take a second `{anew['function']}`", "CUDA has one; give this one another name"
    else:
        what = f"have {lacks}" if lacks else f"take this {'line' if source else 'kernel'}"
        more = subject or (f"`{source}`" if source and not lacks else None)
    return f"{_named((file, line), name)}: the emulator does not {what}, a GPU does" + (f": {more}" if more else "")


def _named(place: tuple[str, int], name: str) -> str:
    return f"{place[0]}:{place[1]}" if place[0] else name


def _lacking(message: str) -> str:
    """The name or the header that an error says is not there, or nothing."""
    found = next((match.groupdict() for pattern in _LACKS if (match := re.search(pattern, message))), {})
    return f"<{found['header']}>" if "header" in found else found.get("name", "")


def _place(log: str, error: re.Match[str], end: int, sources: Mapping[str, str]) -> tuple[str, int]:
    """The learner's line that an error is about, or ("", 0): its own or, if that is one of the emulator's headers, the
    first of the learner's that is named beside it. end: of what is said of this error."""
    files = "|".join(re.escape(file) for file in sorted(sources, key=len, reverse=True))
    place = re.compile(rf"^({files}):(\d+):", flags=re.MULTILINE)
    found = place.match(log, error.start()) or place.search(log, 0, end)
    return (found[1], int(found[2])) if found else ("", 0)
