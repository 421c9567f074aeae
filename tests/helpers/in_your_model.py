"""The code of docs/in_your_model.md, as a reader runs it."""

import re
from pathlib import Path

NAME = "docs/in_your_model.md"
PAGE = (Path(__file__).parents[2] / NAME).read_text(encoding="utf-8")
MODEL, PATTERN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run_block(block: str, names: dict[str, object]) -> None:
    """Runs a block of the page with these names, and adds its own."""
    exec(compile(block, NAME, "exec"), names)
