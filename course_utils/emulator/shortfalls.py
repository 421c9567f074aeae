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
_OWN = r"static assertion failed: (the emulator .*)"
_ERROR = re.compile(r"^.*?\berror: (?P<message>.*)$", flags=re.MULTILINE)


def shortfall(log: str, sources: Mapping[str, str], name: str) -> str:
    """A sentence on the first error of a host compiler's log. sources: the learner's files, by the names that the
    compiler knows; name: of the kernel's file, for an error that is in none of their lines."""
    error = _ERROR.search(log)
    message = error["message"] if error else ""
    file, line = _place(log, error, sources) if error else ("", 0)
    place = f"{file}:{line}" if file else name
    own = re.search(_OWN, message)
    if own:
        return f"{place}: {own[1]}"
    source = line_text(sources[file], line) if file else None
    lacks = _lacking(message)
    subject = next((said for pattern, said in SUBJECTS.items() if re.search(pattern, lacks or source or "")), None)
    what = f"have {lacks}" if lacks else f"take this {'line' if source else 'kernel'}"
    more = subject or (f"`{source}`" if source and not lacks else None)
    return f"{place}: the emulator does not {what}, a GPU does" + (f": {more}" if more else "")


def _lacking(message: str) -> str:
    """The name or the header that an error says is not there, or nothing."""
    found = next((match.groupdict() for pattern in _LACKS if (match := re.search(pattern, message))), {})
    return f"<{found['header']}>" if "header" in found else found.get("name", "")


def _place(log: str, error: re.Match[str], sources: Mapping[str, str]) -> tuple[str, int]:
    """The learner's line that an error is about, or ("", 0): its own or, if that is one of the emulator's headers, the
    first line of the learner's that is named before the next error."""
    files = "|".join(re.escape(file) for file in sorted(sources, key=len, reverse=True))
    place = re.compile(rf"^({files}):(\d+):", flags=re.MULTILINE)
    next_error = _ERROR.search(log, error.end())
    found = place.match(log, error.start()) or place.search(log, 0, next_error.start() if next_error else len(log))
    return (found[1], int(found[2])) if found else ("", 0)
