"""Applies a unified diff to the text it was made from: exactly, or not at all.

A diff here is what `diff -u` and `git diff` write, so `git apply`, `patch` and GitHub read it too. It changes one file,
and any lines may stand before its `---` line. Unlike `patch`, this looks for a hunk at the line that it names and
nowhere else: the line numbers of the diff stay those of the texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_SIZES = {" ": (1, 1), "-": (1, 0), "+": (0, 1)}  # of a line: how many lines it is before, and after


@dataclass(frozen=True)
class _Hunk:
    """number: from 1; before, after: how many lines come ahead of it in either text; body: "-", "+" and " " lines."""

    number: int
    before: int
    after: int
    body: tuple[str, ...]


def changed_file(diff: str, name: str) -> str:
    """The path in the diff's line `--- a/path`, without its "a/". `name` is the diff's, for messages.

    Raises ValueError where there is no such line, or more than one.
    """
    start = next((n for n, line in enumerate(_lines(diff)) if line.startswith("@@ ")), None)
    paths = re.findall(r"^--- (?:a/)?([^\t\n]+)", "".join(_lines(diff)[:start]), flags=re.MULTILINE)
    if len(paths) != 1:
        raise ValueError(f"{name}: a diff has one line '--- a/path' ahead of its hunks, this one has {len(paths)}")
    return paths[0]


def apply_diff(diff: str, text: str, name: str) -> str:
    """The text with the diff's changes. `name` is the diff's, for messages.

    Raises ValueError where the diff is malformed, or a line of the text is not the one that a hunk expects there.
    """
    file, lines = changed_file(diff, name), _lines(text)
    result: list[str] = []
    taken = 0  # so many lines of the text are in the result, or were removed
    hunks = list(_hunks(diff, name))
    if not hunks:
        raise ValueError(f"{name}: no hunk ('@@ -1,3 +1,4 @@') in this diff")
    for hunk in hunks:
        result += lines[taken : hunk.before]
        if hunk.before < taken or len(result) != hunk.after:
            raise ValueError(
                f"{name}, hunk {hunk.number}: it says that {hunk.before} lines come before it, and {hunk.after} in the "
                f"result; with the hunks ahead of it these are {max(taken, hunk.before)} and {len(result)}"
            )
        taken = hunk.before
        for kind, line in ((part[0], part[1:]) for part in hunk.body):
            if kind != "+":
                found = lines[taken] if taken < len(lines) else None
                if found != line:
                    raise ValueError(
                        f"{name} no longer applies: hunk {hunk.number} expects line {taken + 1} of {file} to be "
                        f"{line!r}, found {'the end of the file' if found is None else repr(found)}"
                    )
                taken += 1
            if kind != "-":
                result.append(line)
    return "".join(result + lines[taken:])


def _lines(text: str) -> list[str]:
    """The lines with their ends; unlike `splitlines`, a line ends nowhere but at a line feed, as for `diff`."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _hunks(diff: str, name: str) -> Iterator[_Hunk]:
    lines = _lines(diff)
    at = next((n for n, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
    number = 0
    while at < len(lines):
        number += 1
        head = _HUNK.match(lines[at])
        if not head:
            raise ValueError(f"{name}, line {at + 1}: expected a hunk ('@@ -1,3 +1,4 @@'), found {lines[at]!r}")
        left = [int(head[group] or 1) for group in (2, 4)]  # lines still to come
        # A hunk of no lines names the line ahead of it, any other its own first line.
        before, after = (int(head[group]) - (count > 0) for group, count in zip((1, 3), left, strict=True))
        at += 1
        body: list[str] = []
        while any(left) or (at < len(lines) and lines[at].startswith("\\")):
            line = lines[at] if at < len(lines) else ""
            at += 1
            if line.startswith("\\") and body:  # "\ No newline at end of file" speaks of the line above
                body[-1] = body[-1].removesuffix("\n")
                continue
            line = " \n" if line == "\n" else line  # an empty line that has lost its space
            sizes = _SIZES.get(line[:1])
            left = [count - size for count, size in zip(left, sizes or (), strict=False)]
            if not sizes or min(left) < 0:
                raise ValueError(f"{name}, line {at}: hunk {number} does not have as many lines as it says")
            body.append(line)
        yield _Hunk(number, before, after, tuple(body))
