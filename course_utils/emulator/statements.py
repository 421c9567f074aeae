"""Which variables the statements of a kernel name: by its text alone, as a reader looks for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course_utils.toolchain.source import blank_comments

if TYPE_CHECKING:
    from course_utils.emulator.recording import RecordedPlace, RecordedVariable

WORD = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"(?<![=!<>])(?:<<|>>)?[-+*/%&|^]?=(?!=)|\+\+|--")


class Statements:
    """The statements of a kernel's files, each as its text and its first and last line."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._of_file = {file: _statements(text) for file, text in sources.items()}

    def words_at(self, file: str, line: int) -> set[str]:
        """The names in the statements that a line is part of."""
        return {
            word
            for first, last, text in self._of_file.get(file, ())
            if first <= line <= last
            for word in WORD.findall(text)
        }

    def words_with(self, names: set[str]) -> set[str]:
        """The names in the statements that may change a variable of one of these names: it is assigned to there, or
        handed to a function."""
        found = set()
        for statements in self._of_file.values():
            for _, _, text in statements:
                words = set(WORD.findall(text))
                if names & words and names & _may_change(text, words):
                    found |= words
        return found

    def words_of_calls(self, function: str) -> set[str]:
        """The names in the statements that call a function."""
        call = re.compile(rf"\b{re.escape(function.split('<')[0])}\b\s*[<(]")
        return {
            word
            for statements in self._of_file.values()
            for _, _, text in statements
            if call.search(text)
            for word in WORD.findall(text)
        }


def _may_change(text: str, words: set[str]) -> set[str]:
    """What stands before an assignment; all names, if there is none."""
    assigned = [text[: match.start()] for match in ASSIGNED.finditer(text)]
    return set(WORD.findall(assigned[-1])) if assigned else words


def _statements(text: str) -> list[tuple[int, int, str]]:
    """First line, last line, text: what lies between semicolons and braces. The head of a loop is one."""
    plain = blank_comments(text)
    found, start, depth = [], 0, 0
    for match in re.finditer(r"[;{}()]|^[ \t]*#.*$", plain, flags=re.MULTILINE):
        mark = match[0]
        depth += (mark == "(") - (mark == ")")
        if mark in "()" or (mark == ";" and depth > 0):
            continue
        end = match.start()
        if plain[start:end].strip():
            begin = start + len(plain[start:end]) - len(plain[start:end].lstrip())
            found.append((plain.count("\n", 0, begin) + 1, plain.count("\n", 0, end) + 1, plain[begin:end]))
        start, depth = match.end(), 0
    return found


def parts(variable: RecordedVariable) -> set[str]:
    """By which a statement may name a variable: of a member, also the struct, and inside of it the member alone."""
    names = variable.name.split(".")
    return {names[0], names[-1]}


def named(
    places: Sequence[RecordedPlace], variables: Sequence[RecordedVariable], statements: Statements
) -> list[list[int]]:
    """For each place the variables that its statement names, or one of those from which its function was called."""
    found: list[list[int]] = []
    words_of: list[set[str]] = []
    for place in places:  # a caller comes before its calls
        around = words_of[place.caller] if place.caller >= 0 else set()
        words_of.append(statements.words_at(place.file, place.line) | around)
        found.append([i for i, variable in enumerate(variables) if parts(variable) & words_of[-1]])
    return found


def made_from(variables: Sequence[RecordedVariable], statements: Statements) -> list[list[int]]:
    """For each variable those from which it may be made: they stand in a statement that may change it, or in one that
    calls its function."""
    found = []
    for variable in variables:
        words = statements.words_with(parts(variable)) | statements.words_of_calls(variable.function)
        found.append([i for i, other in enumerate(variables) if parts(other) & words])
    return found
