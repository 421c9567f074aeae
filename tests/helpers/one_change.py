"""Many changes to one kernel in one build: which of them a launch has, a `__constant__` variable says.

A change takes a statement away, gives it another argument, or holds up some threads in front of it. Lines keep their
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NONE = -1
ARGUMENTS = r"(?:[^;()]|\((?:[^;()]|\([^;()]*\))*\))*"


def call(*functions: str) -> str:
    """A pattern for statements that call one of these functions."""
    return rf"(?<![\w] )\b(?:{'|'.join(functions)})\({ARGUMENTS}\);"


def instruction(*names: str) -> str:
    """A pattern for inline PTX that begins with one of these names."""
    return rf'asm volatile\("(?:{"|".join(names)})[^"]*"{ARGUMENTS}\);'


class Change(NamedTuple):
    """What is done to the statement of a line; `number` is the value of the variable."""

    number: int
    line: int
    statement: str
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what} of `{self.statement}`"


class Rule(NamedTuple):
    """Statements that match `pattern` can be taken away, or changed: `others` are (what, pattern of a part, its
    replacement)."""

    pattern: str
    others: Sequence[tuple[str, str, str]] = ()


def with_changes(code: str, rules: Sequence[Rule], *, start: str) -> tuple[str, list[Change]]:
    """The kernel with all changes to choose from, and what they are. They are made from the text `start` on, in front
    of which the variable `change` is declared.
    """
    begin = code.index(start)
    found = [(match, rule) for rule in rules for match in re.compile(rule.pattern).finditer(code, begin)]
    pieces, changes, position = [code[:begin], f"__constant__ int change = {NONE}; "], [], begin
    for match, rule in sorted(found, key=lambda pair: pair[0].start()):
        line, statement = code.count("\n", 0, match.start()) + 1, " ".join(match[0].split())
        branches = []
        for what, part, instead in rule.others:
            other, times = re.subn(part, instead, match[0])
            assert times == 1, (statement, part)
            branches.append(f"if (change == {len(changes)}) {{ {other} }} else ")
            changes.append(Change(len(changes), line, statement, what))
        branches.append(f"if (change != {len(changes)}) {match[0]}")
        changes.append(Change(len(changes), line, statement, "removal"))
        pieces += [code[position : match.start()], "{ ", *branches, " }"]
        position = match.end()
    return "".join(pieces) + code[position:], changes


def with_delays(code: str, delays: Iterable[tuple[str, str]]) -> str:
    """The kernel with all delays to choose from by the variable `delay`: (which threads, the statement before which
    they wait)."""
    for number, (threads, before) in enumerate(delays):
        assert code.count(before) == 1, (before, code.count(before))
        code = code.replace(before, f"{{ if (delay == {number} && ({threads})) __nanosleep(20000); }} {before}")
    return f"__constant__ int delay = {NONE}; {code}"
