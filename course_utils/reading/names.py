"""Which names a cell of Python needs from the cells before it, and which it binds: read off its bytecode."""

from __future__ import annotations

import builtins
import dis
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__", "get_ipython", "display"}
_READ = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")


@dataclass(frozen=True)
class CellNames:
    """What a cell does with names at the top level.

    needs: read before a line above in the cell has bound them, by its statements, lambdas and comprehensions, and by
    its functions and classes where it reads those. binds: names that it binds. functions: of its functions and
    classes, the global names that running them reads.
    """

    needs: frozenset[str]
    binds: frozenset[str]
    functions: dict[str, frozenset[str]]


def names_of(source: str) -> CellNames:
    """The names of a cell; lines of commands to IPython (`%matplotlib inline`) name nothing. Raises SyntaxError."""
    needs: set[str] = set()
    binds: set[str] = set()
    functions: dict[str, frozenset[str]] = {}

    def read(name: str, seen: frozenset[str] = frozenset()) -> None:
        if name not in binds:
            needs.add(name)
        for inner in functions.get(name, frozenset()) - seen:
            read(inner, seen | {name, inner})

    for step in dis.get_instructions(compile(python(source), "cell", "exec")):
        if step.opname == "STORE_NAME":
            binds.add(step.argval)
        elif step.opname in _READ:
            read(step.argval)
        elif isinstance(step.argval, CodeType):
            inner = frozenset(_read_inside(step.argval))
            if step.argval.co_name.startswith("<"):  # a lambda or a comprehension: it may run at once
                for name in inner:
                    read(name)
            else:
                functions[step.argval.co_name] = inner
    return CellNames(frozenset(needs - _BUILTIN), frozenset(binds), functions)


def _read_inside(code: CodeType) -> Iterator[str]:
    """The global names that a function or class reads when it runs, with the functions in it."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_NAME", "STORE_GLOBAL")}
    for step in dis.get_instructions(code):
        if step.opname in _READ and step.argval not in own | _BUILTIN:
            yield step.argval
        elif isinstance(step.argval, CodeType):
            yield from _read_inside(step.argval)


def python(source: str) -> str:
    """The source of a cell without the lines that are commands to IPython; nothing of one that is handed to %%magic."""
    if source.startswith("%%"):
        return ""
    return re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)
