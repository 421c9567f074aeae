"""Which loop of a kernel did not end: from the lines in which its threads were when the time limit had passed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from course_utils.toolchain.source import blank_comments, closing, find_kernels

_LOOP = re.compile(r"\b(?:for|while)\s*\(|\bdo\b")


def endless_loop(frames: Sequence[Sequence[int]], code: str, kernel: str, *, jumps_to_itself: bool) -> int:
    """The first line of the loop, or of what was seen if no loop is around it.

    A thread that was seen in the kernel itself has come back there from what it calls, so the loop is the kernel's.

    frames: for each time that a thread was looked at, its lines in `code`, the kernel's own first and the innermost
    inlined function's last. jumps_to_itself: whether it was always at one instruction. That is an empty loop, to which
    the compiler gives the line of what stands before it.
    """
    depth = 0
    while all(len(lines) > depth + 1 for lines in frames) and len({lines[depth] for lines in frames}) == 1:
        depth += 1  # all are within one call: the loop is in the function that is called
    seen = {lines[min(depth, len(lines) - 1)] for lines in frames}
    own = find_kernels(code).get(kernel.partition("<")[0].split("::")[-1])
    bodies = [[code.count("\n", 0, at) + 1 for at in body] for body in (own.bodies if own and not depth else ())]
    seen = {line for line in seen if any(first <= line <= last for first, last in bodies)} or seen
    loops = _loops(code)
    if jumps_to_itself:
        return next((first for first, _, is_empty in loops if is_empty and first >= min(seen)), min(seen))
    return max((first for first, last, _ in loops if first <= min(seen) and max(seen) <= last), default=min(seen))


def _loops(code: str) -> list[tuple[int, int, bool]]:
    """First and last line of each loop, and whether nothing is in it; in the order of the code."""
    plain = blank_comments(code)
    ends: dict[int, int] = {}
    found = []
    for match in reversed(list(_LOOP.finditer(plain))):
        head = closing(plain, match.end() - 1) + 1 if match[0] != "do" else match.end()
        body = re.compile(r"\s*").match(plain, head).end()
        if plain[body : body + 1] == "{":
            end = closing(plain, body)
            is_empty = not plain[body + 1 : end].strip()
        else:
            end = ends.get(body, plain.find(";", body))
            is_empty = end == body and not plain[: match.start()].rstrip().endswith("}")  # else the end of a do loop
        ends[match.start()] = end
        found.append((plain.count("\n", 0, match.start()) + 1, plain.count("\n", 0, end) + 1, is_empty))
    return found[::-1]
