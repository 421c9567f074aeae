"""On which conditions the statements of a kernel's text are executed.

Whether, and how often, a block is executed is a name of its own, which no variable has: `#`, the file, and where its
head begins. A head makes it from the names in it, as an assignment makes a variable; what lies within is made from it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD = re.compile(r"\b(?:for|if(?:\s+constexpr)?|while|switch)\s*\(")
LOOP = re.compile(r"\b(?:for|while|switch)\s*\(")
DO = re.compile(r"\bdo\b")
JUMP = re.compile(r"\b(?:return|goto|break|continue)\b")
LEAVES = re.compile(r"\b(?:return|goto)\b")
BRANCH = re.compile(r"\s*(?:else|case|default)\b")
WORD = re.compile(r"[A-Za-z_]\w*")

Made = tuple[str, frozenset[str]]  # the name of a condition, and from which names it is made


class _Block(NamedTuple):
    """An open block: the condition on which it is executed, and what it is: a "function", a "loop", "do", an "if" or
    "" for braces alone."""

    condition: str
    kind: str


class Conditions:
    """Those of a file's statements, which are given in their order."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._blocks = [_Block(f"#{file}", "function")]
        self._ifs = [""]  # of each open block the condition of the last `if` in it, to which an `else` may belong
        self._ended = _Block("", "")  # the block that was closed last, if nothing has come since

    def of(self, text: str, start: int, *, opens: bool) -> tuple[frozenset[str], list[Made]]:
        """The conditions on which a statement is executed, and those that it makes. start: where it begins; opens:
        whether it stands before a block."""
        within = {self._blocks[-1].condition}
        if text.startswith("else") and self._ifs[-1]:
            within.add(self._ifs[-1])
        own, made = f"#{self._file}:{start}", []
        heads = [text[head.end() : closing(text, head.end() - 1)] for head in HEAD.finditer(text)]
        if heads or opens:
            made.append((own, frozenset(within).union(*(WORD.findall(head) for head in heads))))
        if heads and self._ended.kind == "do":
            made.append((self._ended.condition, frozenset({own})))
        is_done = not opens and bool(DO.search(text))  # a statement without braces that a loop repeats
        if is_done:
            made += [] if heads else [(own, frozenset(within))]
            within.add(own)
        if JUMP.search(text):
            why = frozenset({own} if heads else within)
            made += [(block.condition, why - {block.condition}) for block in self._left_by(text)]
        self._ended = _Block(own, "do") if is_done else _Block("", "")
        if opens:
            self._open(own, _kind(text))
        elif heads:
            self._ifs[-1] = own
        return frozenset(within), made

    def _left_by(self, text: str) -> list[_Block]:
        """The blocks whose execution ends with a jump, or is another afterwards: a loop, or all of a function."""
        found: list[_Block] = []
        for block in reversed(self._blocks):
            if block.kind in ("loop", "do", "function"):
                found.append(block)
            if block.kind == "function" or (block.kind in ("loop", "do") and not LEAVES.search(text)):
                break
        return found

    def _open(self, condition: str, kind: str) -> None:
        self._blocks.append(_Block(condition, kind))
        self._ifs.append("")

    def open(self) -> None:
        """A block of braces alone."""
        self._open(self._blocks[-1].condition, "")

    def close(self) -> None:
        """The end of the last block."""
        if len(self._blocks) > 1:
            self._ended = self._blocks.pop()
            self._ifs.pop()
            if self._ended.kind == "if":
                self._ifs[-1] = self._ended.condition


def _kind(text: str) -> str:
    """What the block is before which a text stands."""
    if re.search(r"\bdo\s*$", text):
        return "do"
    if LOOP.search(text):
        return "loop"
    return "if" if HEAD.search(text) or BRANCH.match(text) else "function"


def closing(text: str, opening: int) -> int:
    """Where the parenthesis that opens there is closed, or the end of the text."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return len(text)
