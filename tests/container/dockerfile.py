"""A Dockerfile as steps, and what .dockerignore leaves out. What is not known here is refused, not skipped."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_NO_FLAG = r"(?!-)\S+"
_FORMS = {
    "FROM": _NO_FLAG,
    "COPY": rf"{_NO_FLAG} /\S*",
    "RUN": r"(?!--|\[).+",
    "ENV": r"\w+=[^\s$\\]*( \w+=[^\s$\\]*)*",
    "EXPOSE": r"\d+",
    "CMD": r"\[.*\]",
}


class Step(NamedTuple):
    """One instruction, such as RUN, and what stands behind it, on one line."""

    instruction: str
    argument: str


def read_steps(text: str) -> list[Step]:
    """The steps of a Dockerfile. Raises ValueError for an instruction, or a form of one, that is not known here."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    steps = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        step = Step(*line.strip().partition(" ")[::2])
        if not re.fullmatch(_FORMS.get(step.instruction, "(?!)"), step.argument):
            raise ValueError(f"Dockerfile: no such step is known here: {line}")
        steps.append(step)
    if [step.instruction for step in steps].count("FROM") != 1 or steps[0].instruction != "FROM":
        raise ValueError("Dockerfile: takes one FROM, at its beginning")
    return steps


def environment(steps: list[Step]) -> dict[str, str]:
    """What the ENV among these steps set."""
    words = [word for step in steps if step.instruction == "ENV" for word in shlex.split(step.argument)]
    return dict(word.split("=", 1) for word in words)


def command(steps: list[Step]) -> list[str]:
    """The words of the last CMD."""
    return json.loads([step.argument for step in steps if step.instruction == "CMD"][-1])


def left_out(text: str, context: Path) -> Callable[[str, list[str]], set[str]]:
    """What .dockerignore leaves out of a copy of `context`, for shutil.copytree.

    Raises ValueError for a pattern that is neither a name at the top nor, behind **/, a name in any folder.
    """
    patterns = text.split()
    for pattern in patterns:
        if "/" in pattern.removeprefix("**/") or pattern[0] in "!#":
            raise ValueError(f".dockerignore: no such pattern is known here: {pattern}")

    def ignored(folder: str, names: list[str]) -> set[str]:
        at_the_top = Path(folder) == context
        here = [one.removeprefix("**/") for one in patterns if at_the_top or one.startswith("**/")]
        return {name for one in here for name in fnmatch.filter(names, one)}

    return ignored
