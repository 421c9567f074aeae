"""Paths of this machine that no page of the site may show, and the text in their place.

Outputs, such as the doctor's report, name the checkout, its virtual environment and the home of the user who built
the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path


def private(root: Path) -> dict[str, str]:
    """Path → the text in its place: the checkout in `root`, the virtual environment if there is one, and the home."""
    named = {str(Path.home()): "~", str(root.resolve()): "…"}
    if sys.prefix != sys.base_prefix:
        named[sys.prefix] = ".venv"
    return {path: name for path, name in named.items() if path != "/"}


def neutral(text: str, named: Mapping[str, str]) -> str:
    """`text` with each of these paths replaced, longer paths first."""
    for path in sorted(named, key=len, reverse=True):
        text = _whole(path).sub(lambda _, name=named[path]: name, text)
    return text


def shown(text: str, paths: Mapping[str, str]) -> list[str]:
    """The paths of `paths` that occur in `text`."""
    return [path for path in paths if path in text and _whole(path).search(text)]


def _whole(path: str) -> re.Pattern[str]:
    """Finds `path` as a path: not inside an address, and not as the beginning of another name."""
    return re.compile(rf"(?<![\w/.~-]){re.escape(path)}(?![\w-])")
