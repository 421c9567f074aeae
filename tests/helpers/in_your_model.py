"""The code of docs/in_your_model.md, as a reader runs it."""

import re
from pathlib import Path

NAME = "docs/in_your_model.md"
PAGE = (Path(__file__).parents[2] / NAME).read_text(encoding="utf-8")
ATTENTION, REGISTRATION, PATTERN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def of_the_page() -> dict[str, object]:
    """What the first block defines: course_attention."""
    names: dict[str, object] = {}
    exec(compile(ATTENTION, NAME, "exec"), names)
    return names


def register(model: object) -> None:
    """Gives a model of transformers the course's attention, by both blocks."""
    exec(compile(REGISTRATION, NAME, "exec"), {**of_the_page(), "model": model})


def run_pattern(names: dict[str, object]) -> None:
    """Runs the block on patterns with these names, and adds its own."""
    exec(compile(PATTERN, NAME, "exec"), names)
