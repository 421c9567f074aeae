"""Applies a unified diff to the text it was made from: exactly, or not at all.

A diff here is what `diff -u` and `git diff` write, so `git apply`, `patch` and GitHub read it too. It changes one file,
and any lines may stand before its `---` line. Unlike `patch`, this looks for a hunk at the line that it names and
nowhere else: the line numbers of the diff stay those of the texts.
"""

from __future__ import annotations

import re

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*\n", flags=re.MULTILINE)


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

    Raises ValueError where the diff has no hunk, or the text has other lines than a hunk expects there.
    """
    file, lines = changed_file(diff, name), text.split("\n")
    _, *hunks = _HUNK.split(diff)
    if not hunks:
        raise ValueError(f"{name}: no hunk ('@@ -1,3 +1,4 @@') in this diff")
    result: list[str] = []
    taken = 0  # so many lines of the text are in the result, or were removed
    for first, body in zip(hunks[::2], hunks[1::2], strict=True):
        changes = [line or " " for line in body.removesuffix("\n").split("\n")]  # an empty line has lost its space
        old, new = ([line[1:] for line in changes if line[0] != other] for other in "+-")
        before = int(first) - bool(old)  # a hunk of no lines names the line ahead of it, any other its own first line
        found = lines[before : before + len(old)]
        if before < taken or found != old:
            raise ValueError(f"{name} no longer applies: expects {old} from line {first} of {file} on, found {found}")
        result += lines[taken:before] + new
        taken = before + len(old)
    return "\n".join(result + lines[taken:])
