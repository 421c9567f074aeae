"""The table of planted mistakes. Each file `KIND.toml` beside this one holds the rows of a kind:

[name_of_the_mistake]
file = "kernels/01_attention_basics/softmax.cu"         # from the root of the repository
old = "what stands there"                               # must occur exactly once in the file
after = "a text before it"                              # optional: `old` need only be unique behind this text
new = "the mistake"
test = "tests/operators/test_naive_attention.py::test_name"     # or a notebook, which nbval runs
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Mutant:
    """A row: a mistake, and the test that must fail with it. `kind` is the name of the row's file."""

    name: str
    kind: str
    file: str
    old: str
    new: str
    test: str
    after: str = ""


def read_table(folder: Path = HERE) -> list[Mutant]:
    """Every row, by kind and then in the order of its file. Raises ValueError for a row that is written wrongly."""
    rows: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in rows:
                raise ValueError(f"{path.name}: {name} is also a row of {rows[name].kind}.toml")
            try:
                rows[name] = Mutant(name, path.stem, **entries)
            except TypeError as error:
                raise ValueError(f"{path.name}: {name} takes file, old, new, test and perhaps after: {error}") from None
    return list(rows.values())


def plant(mutant: Mutant, text: str) -> str:
    """The file's text with the mistake. Raises ValueError unless `old` occurs exactly once (behind `after`)."""
    if mutant.after and text.count(mutant.after) != 1:
        raise ValueError(f"{mutant.file} holds {mutant.after!r} {text.count(mutant.after)} times, not once")
    start = text.index(mutant.after) + len(mutant.after)
    head, tail = text[:start], text[start:]
    if tail.count(mutant.old) != 1:
        place = f" behind {mutant.after!r}" if mutant.after else ""
        raise ValueError(f"{mutant.file} holds {mutant.old!r}{place} {tail.count(mutant.old)} times, not once")
    if mutant.old == mutant.new:
        raise ValueError("old and new are the same")
    return head + tail.replace(mutant.old, mutant.new)
