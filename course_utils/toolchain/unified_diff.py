"""Applies a unified diff to the text it was made from: exactly, or not at all.

A diff here is what `diff -u` and `git diff` write, so `git apply`, `patch` and GitHub read it too. It changes one file,
and any lines may stand before its `---` line. Unlike `patch`, this looks for a hunk at the line that it names and
nowhere else: the line numbers of the diff stay those of the texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def changed_file(diff: str, name: str) -> str:
    """The path in the diff's line `--- a/path`, without its "a/". `name` is the diff's, for messages.

    Raises ValueError where there is no such line, or more than one.
    """
    ahead = re.split(r"^@@ ", diff, maxsplit=1, flags=re.MULTILINE)[0]
    paths = re.findall(r"^--- (?:a/)?([^\t\n]+)", ahead, flags=re.MULTILINE)
    if len(paths) != 1:
        raise ValueError(f"{name}: a diff has one line '--- a/path' ahead of its hunks, this one has {len(paths)}")
    return paths[0]


def apply_diff(diff: str, text: str, name: str) -> str:
    """The text with the diff's changes. `name` is the diff's, for messages.

    Raises ValueError where the diff has no hunk, or a line of the text is not the one that a hunk expects there.
    """
    file, lines = changed_file(diff, name), _lines(text)
    result: list[str] = []
    taken = number = 0  # so many lines of the text are in the result, or were removed
    for number, (first, body) in enumerate(_hunks(diff, name), 1):
        old = [line for sign, line in body if sign != "+"]
        before = first - bool(old)  # a hunk of no lines names the line ahead of it, any other its own first line
        if not taken <= before <= len(lines):
            raise ValueError(f"{name}, hunk {number}: line {first} of {file} is not behind the hunk ahead of it")
        for place, expected in enumerate(old, before):
            found = lines[place] if place < len(lines) else None
            if found != expected:
                raise ValueError(
                    f"{name} no longer applies: hunk {number} expects line {place + 1} of {file} to be {expected!r}, "
                    f"found {'the end of the file' if found is None else repr(found)}"
                )
        result += lines[taken:before] + [line for sign, line in body if sign != "-"]
        taken = before + len(old)
    if not number:
        raise ValueError(f"{name}: no hunk ('@@ -1,3 +1,4 @@') in this diff")
    return "".join(result + lines[taken:])


def _lines(text: str) -> list[str]:
    """The lines with their ends; unlike `splitlines`, a line ends nowhere but at a line feed, as for `diff`."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _hunks(diff: str, name: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Of each hunk the line number in the text, and its lines as (" ", "-" or "+", line)."""
    for part in re.split(r"^(?=@@ )", diff, flags=re.MULTILINE)[1:]:
        head, *rest = _lines(part)
        found = _HUNK.match(head)
        if not found:
            raise ValueError(f"{name}: expected a hunk ('@@ -1,3 +1,4 @@'), found {head!r}")
        body: list[tuple[str, str]] = []
        for line in rest:
            if line.startswith("\\"):  # "\ No newline at end of file" speaks of the line above
                body[-1] = body[-1][0], body[-1][1].removesuffix("\n")
            else:  # an empty line has lost its space
                body.append((" ", line) if line == "\n" else (line[0], line[1:]))
        yield int(found[1]), body
