"""Which names a cell of Python needs from the cells before it, and which it binds: read off the code, nothing runs."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass

_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__", "get_ipython", "display"}


@dataclass(frozen=True)
class CellNames:
    """What a cell does with names at the top level.

    needs: read before the cell itself has bound them, by its statements, lambdas and comprehensions, and by its
    functions and classes when it reads those. binds: names that it binds, if only on one way through an `if`.
    unsure: needs that the cell itself binds on some of its ways. functions: of its functions and classes, the global
    names that running them reads.
    """

    needs: frozenset[str]
    binds: frozenset[str]
    unsure: frozenset[str]
    functions: dict[str, frozenset[str]]


def names_of(source: str) -> CellNames:
    """The names of a cell; lines of commands to IPython (`%matplotlib inline`) name nothing. Raises SyntaxError."""
    walk = _Walk()
    for statement in ast.parse(python(source)).body:
        walk.visit(statement)
    needs = frozenset(walk.needs - _BUILTIN)
    functions = {name: frozenset(reads) for name, reads in walk.functions.items()}
    return CellNames(needs, frozenset(walk.binds | walk.maybe), needs & walk.maybe, functions)


def python(source: str) -> str:
    """The source of a cell without the lines that are commands to IPython; nothing of one that is handed to %%magic."""
    if source.startswith("%%"):
        return ""
    return re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE)


class _Walk(ast.NodeVisitor):
    """Goes through statements in the order in which they run."""

    def __init__(self, local: frozenset[str] = frozenset()) -> None:
        self.local = local  # of the functions around; not visible to other cells
        self.needs: set[str] = set()
        self.binds: set[str] = set()
        self.maybe: set[str] = set()  # bound on one way only
        self.functions: dict[str, set[str]] = {}

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.binds.add(node.id)
        else:
            self._read(node.id, set())

    def _read(self, name: str, seen: set[str]) -> None:
        """A name is read; with a function of this cell, what it reads when it runs."""
        if name in self.local or name in seen:
            return
        if name not in self.binds:
            self.needs.add(name)
        for inner in self.functions.get(name, ()):
            self._read(inner, seen | {name})

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, set())
        self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_For(self, node: ast.For) -> None:
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before, after = set(self.binds), []
        for branch in (node.body, node.orelse):
            self.binds = set(before)
            for statement in branch:
                self.visit(statement)
            after.append(self.binds)
        self.binds = after[0] & after[1]
        self.maybe |= (after[0] | after[1]) - self.binds

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars:
                self.visit(item.optional_vars)
        for statement in node.body:
            self.visit(statement)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.binds |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type:
            self.visit(node.type)
        bound = set(self.binds)
        if node.name:
            self.binds.add(node.name)
        for statement in node.body:
            self.visit(statement)
        self.maybe |= self.binds - bound  # a handler may not run
        self.binds = bound

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for outer in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(outer)
        self.functions[node.name] = self._inside(node.args, node.body)
        self.binds.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        for name in self._inside(node.args, [node.body]):
            self._read(name, set())

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outer in (*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)):
            self.visit(outer)
        body = _Walk(self.local)
        for statement in node.body:
            body.visit(statement)
        for name in body.needs:  # a class's body runs at once, its methods later
            self._read(name, set())
        self.functions[node.name] = set().union(*body.functions.values())
        self.binds.add(node.name)

    def _inside(self, arguments: ast.arguments, body: list[ast.AST]) -> set[str]:
        """The global names that a function reads when it runs."""
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        inner = _Walk(self.local | {one.arg for one in given if one})
        assigned = {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name) and _stored(n)}
        outside = {n for part in body for one in ast.walk(part) if isinstance(one, ast.Global) for n in one.names}
        inner.local |= frozenset(assigned - outside)  # Python, too, takes them for local wherever they are assigned
        for part in body:
            inner.visit(part)
        read = set(inner.needs)
        for names in inner.functions.values():  # functions in functions: they may run whenever this one does
            read |= names
        return read - inner.binds - _BUILTIN

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        inner = {n.id for one in node.generators for n in ast.walk(one.target) if isinstance(n, ast.Name)}
        self.visit(node.generators[0].iter)
        outer_local, self.local = self.local, self.local | inner
        for number, one in enumerate(node.generators):
            if number:
                self.visit(one.iter)
            for condition in one.ifs:
                self.visit(condition)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part)
        self.local = outer_local

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension


def _stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)
