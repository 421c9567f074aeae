"""What is said of a kernel that a GPU takes and the emulator does not: the name that it lacks, and the learner's line.

The host compiler's own words, g++'s or clang's, are about the emulator's headers; they stay in the error's log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from course_utils.toolchain.source import HOPPER, INCLUDE_LINE, find_kernels, line_text
from course_utils.toolchain.verdict import DYNAMIC_PARALLELISM

SUBJECTS = {
    r"\b(tex|surf)(1D|2D|3D|Cubemap)|\bcuda(Texture|Surface)": (
        "it knows no textures and no surfaces; an array that is read through a pointer holds the same values"
    ),
    r"<<<": DYNAMIC_PARALLELISM,
    r"\bthis_cluster\b|\bcluster_group\b|__cluster_dims__": (
        f"it has clusters in kernels whose header says `// arch: {HOPPER} only`"
    ),
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
_JUMP = re.compile(r"jump (to case label|from switch statement to this case label)")
_SECOND_KERNEL = re.compile(r"(redefinition of '[^']*|symbol `)emu_call_(?P<entry>\d+)")  # the assembler's word, too
_DEFINED_ANEW = re.compile(r"redefinition of '(?P<function>[^']+)'")
_OWN = re.compile(r"static assertion failed: (the emulator .*)")
_LACKED_HEADER = re.compile(r"the emulator does not have (<[^>]+>)")
_ERROR = re.compile(r"^.*?\berror: (?P<message>.*)$", flags=re.MULTILINE)


def shortfall(log: str, sources: Mapping[str, str], name: str) -> str:
    """A sentence on the first error of a host compiler's log, or on each inline PTX instruction that is not known.

    sources: the learner's files, by the names that the compiler knows; name: of the kernel's file, for an error that is
    in none of their lines.
    """
    if second := _SECOND_KERNEL.search(log):
        return _two_kernels(sources[name], int(second["entry"]), name)
    errors = [*_ERROR.finditer(log)]
    if not errors:
        return f"{name}: the emulator does not take this kernel, a GPU does"
    ends = [error.start() for error in errors[1:]] + [len(log)]
    places = [_place(log, error, end, sources) for error, end in zip(errors, ends, strict=True)]
    said = [(place, _OWN.search(error["message"])) for place, error in zip(places, errors, strict=True)]
    own = [(place, sentence[1]) for place, sentence in said if sentence]
    if own and (header := _LACKED_HEADER.search(own[0][1])):
        return _without_header(own[0][0], header[1], sources, name)
    if own:
        return "\n".join(f"{_named(place, name)}: {sentence}" for place, sentence in own)
    (file, line), message = places[0], errors[0]["message"]
    source = line_text(sources[file], line) if file else None
    anew = _DEFINED_ANEW.search(message)
    lacks = _lacking(message)
    if lacks.startswith("<"):
        return _without_header(places[0], lacks, sources, name)
    subject = next((said for pattern, said in SUBJECTS.items() if re.search(pattern, lacks or source or "")), None)
    if anew:
        what, more = f"take a second `{anew['function']}`", "CUDA has one; give this one another name"
    elif _JUMP.search(message):
        what = "take a label of a `switch` behind a variable with an initial value"
        more = "put the statements of each case in braces"
    else:
        what = f"have {lacks}" if lacks else f"take this {'line' if source else 'kernel'}"
        more = subject or (f"`{source}`" if source and not lacks else None)
    return f"{_named((file, line), name)}: the emulator does not {what}, a GPU does" + (f": {more}" if more else "")


def _two_kernels(code: str, entry: int, name: str) -> str:
    """On kernels of one name: overloads, or in two namespaces. entry: as in `Translation.entries`."""
    kernel = [kernel for kernel in find_kernels(code).values() if kernel.bodies and not kernel.template][entry]
    declared = re.compile(rf"\b{kernel.name}\s*\(")
    names = [max((m.start() for m in declared.finditer(code, 0, body)), default=body) for body, _ in kernel.bodies]
    lines = [str(code.count("\n", 0, index) + 1) for index in names]
    return (
        f"{name}:{lines[-1]}: the emulator does not take two kernels of one name, a GPU does: {kernel.name} is defined "
        f"in lines {', '.join(lines[:-1])} and {lines[-1]}; give each a name of its own"
    )


def _without_header(place: tuple[str, int], header: str, sources: Mapping[str, str], name: str) -> str:
    """On a header, in brackets, that is not there: of one that another header includes, what the learner wrote."""
    included = INCLUDE_LINE.match(line_text(sources[place[0]], place[1]) or "") if place[0] else None
    lacks = f"the emulator does not have {header}, a GPU does"
    needs = f": <{included[1]}> needs it" if included and included[1] != header[1:-1] else ""
    return f"{_named(place, name)}: {lacks}{needs}"


def _named(place: tuple[str, int], name: str) -> str:
    return f"{place[0]}:{place[1]}" if place[0] else name


def _lacking(message: str) -> str:
    """The name or the header that an error says is not there, or nothing."""
    found = next((match.groupdict() for pattern in _LACKS if (match := re.search(pattern, message))), {})
    return f"<{found['header']}>" if "header" in found else found.get("name", "")


def _place(log: str, error: re.Match[str], end: int, sources: Mapping[str, str]) -> tuple[str, int]:
    """File and line in the learner's sources that an error is about, or ("", 0).

    An error in one of the emulator's headers counts for the line from which the learner's code calls it, else for the
    last `#include` that the log names before it. end: where the log's lines on this error end.
    """
    files = "|".join(re.escape(file) for file in sorted(sources, key=len, reverse=True))
    place = re.compile(rf"^({files}):(\d+):", flags=re.MULTILINE)
    included = re.compile(rf"^(?:In file included)?\s+from ({files}):(\d+)[:,]", flags=re.MULTILINE)
    found = place.match(log, error.start()) or place.search(log, 0, end)
    found = found or next(reversed([*included.finditer(log, 0, error.start())]), None)
    return (found[1], int(found[2])) if found else ("", 0)
