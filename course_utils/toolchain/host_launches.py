"""The launches in a CUDA file, `kernel<<<grid, block, shared, stream>>>(...)`, and lines of Python that do the same.

Nothing is compiled: a size is known where the file has it as a number, a constant or a macro.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from typing import NamedTuple

from course_utils.toolchain.declarations import split_arguments
from course_utils.toolchain.parameters import SCALAR_TYPES, TENSOR_DTYPES
from course_utils.toolchain.source import KernelFunction, Parameter, blank_comments, closing, split_outside_brackets

Size = tuple[int, ...]


class HostLaunch(NamedTuple):
    """A launch as a file has it. kernel: with its namespace; arguments: of a template, as written; grid, block and
    shared (bytes): None where the file does not say them in numbers."""

    kernel: str
    arguments: tuple[str, ...]
    grid: Size | None
    block: Size | None
    shared: int | None
    line: int


@functools.lru_cache(maxsize=16)  # of a file with many kernels each asks for them
def find_launches(code: str) -> tuple[HostLaunch, ...]:
    """All launches of a file, in the order of the lines."""
    plain, found = blank_comments(code), []
    for match in re.finditer(r"<<<", plain):
        name, arguments = _launched(plain[: match.start()])
        end = plain.find(">>>", match.end())
        if name and end >= 0:
            sizes = [*map(str.strip, split_outside_brackets(plain[match.end() : end])), "", "", ""]
            before = plain[: match.start()]
            shared = number(sizes[2] or "0", before)
            line = code.count("\n", 0, match.start()) + 1
            found.append(HostLaunch(name, arguments, _size(sizes[0], before), _size(sizes[1], before), shared, line))
    return tuple(found)


def _launched(before: str) -> tuple[str, tuple[str, ...]]:
    """The kernel's name and template arguments, from the text in front of `<<<`."""
    before, arguments = before.rstrip(), ()
    if before.endswith(">"):
        depth = 0
        for i in range(len(before) - 1, -1, -1):
            depth += (before[i] == ">") - (before[i] == "<")
            if depth == 0 or before[i] in ";{}":
                break
        arguments, before = tuple(split_arguments(before[i + 1 : -1])), before[:i].rstrip()
    name = re.search(r"[A-Za-z_][\w:]*$", before)
    return (name[0], arguments) if name else ("", ())


def _size(text: str, before: str, depth: int = 0) -> Size | None:
    """A grid or block: a number, `dim3(...)`, or a variable that is one."""
    if listed := re.fullmatch(r"(?:dim3\s*)?[({](.*)[)}]", text, flags=re.DOTALL):
        numbers = [number(part, before) for part in split_outside_brackets(listed[1])]
        return None if None in numbers or not 1 <= len(numbers) <= 3 else tuple(numbers)
    if depth == 0 and re.fullmatch(r"\w+", text):
        variables = list(re.finditer(rf"\bdim3\s+(?:[^;]*,\s*)?{text}\s*(?:=\s*(?:dim3\s*)?)?([({{])", before))
        if variables:
            opening = variables[-1].end() - 1
            return _size(before[opening : closing(before, opening) + 1], before, 1)
    value = number(text, before)
    return None if value is None else (value,)


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def number(text: str, before: str, depth: int = 0) -> int | None:
    """What an expression of whole numbers, constants and macros is; None where the text before it does not say that."""
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text.strip())
    for type_name, of_type in SCALAR_TYPES.items():
        text = re.sub(rf"\bsizeof\s*\(\s*{type_name}\s*\)", str(of_type(0).itemsize), text)
    text = re.sub(r"\(\s*(?:int|unsigned(?:\s+int)?|size_t)\s*\)", "", text)  # a cast
    if depth > 8 or len(text) > 200:
        return None
    for name in set(re.findall(r"\b[A-Za-z_]\w*\b", text)):
        defined = re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+([^\n]+)", before, flags=re.MULTILINE)
        defined += re.findall(rf"\b\w+\s+{name}\s*=\s*([^;,]+)[;,]", before)
        changed = re.search(rf"\b{name}\s*(?:[-+*/%]|<<|>>)=|(?:\+\+|--)\s*{name}\b|\b{name}\s*(?:\+\+|--)", before)
        value = None if not defined or changed else number(defined[-1], before, depth + 1)
        if value is None:
            return None
        text = re.sub(rf"\b{name}\b", str(value), text)
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and right > 62:
            raise ValueError("no number of blocks, threads or bytes")
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("not a sum of whole numbers")


# ---- templates


def instances(code: str, kernel: KernelFunction) -> list[str]:
    """Name expressions of a template kernel: those of the file's launches, without repetition; one with usual values
    where it has none. An argument that the file does not tell is float, true or 32, by what the template takes."""
    takes = _template_parameters(code, kernel)
    launches = [launch for launch in find_launches(code) if launch.kernel.split("::")[-1] == kernel.name]
    found = [_instance(launch.kernel, takes, launch.arguments, code) for launch in launches]
    return list(dict.fromkeys(found or [_instance(kernel.name, takes, (), code)]))


def _template_parameters(code: str, kernel: KernelFunction) -> list[tuple[str, str, str]]:
    """The kind ("typename", "int", ...), name and default ("" without one) of each template parameter."""
    plain = blank_comments(code)
    before = plain[: kernel.bodies[-1][0] if kernel.bodies else len(plain)]
    opening = [*re.finditer(r"\btemplate\s*(?=<)", before)][-1].end()
    depth = 0
    for end in range(opening, len(before)):
        depth += (before[end] == "<") - (before[end] == ">")
        if depth == 0:
            break
    parameters = []
    for text in split_arguments(before[opening + 1 : end]):
        declared, _, default = text.partition("=")
        kind = re.sub(r"\b(?:const|constexpr)\b|\w+\s*$", "", declared).strip() or declared.strip()
        parameters.append((kind, declared.split()[-1].strip(".") if declared.strip() else "", default.strip()))
    return parameters


def _named_instance(code: str, kernel: KernelFunction, launch: HostLaunch | None) -> str:
    """The name expression of a launch; an argument that it does not tell is the name of the template's parameter."""
    takes, given = _template_parameters(code, kernel), launch.arguments if launch else ()
    plain = blank_comments(code)
    known = [_is_type(one, code) or one in ("true", "false") or number(one, plain) is not None for one in given]
    names = [name for _, name, default in takes[len(given) :] if not default]
    arguments = [
        one if is_known else takes[min(i, len(takes) - 1)][1]
        for i, (one, is_known) in enumerate(zip(given, known, strict=True))
    ]
    return f"{launch.kernel if launch else kernel.name}<{', '.join([*arguments, *names])}>"


def _instance(name: str, takes: list[tuple[str, str, str]], arguments: tuple[str, ...], code: str) -> str:
    chosen = []
    for index, (kind, _, default) in enumerate(takes):
        given = arguments[index] if index < len(arguments) else default
        if kind.endswith("..."):
            chosen += arguments[index:]
            break
        if kind in ("typename", "class"):
            chosen.append(given if _is_type(given, code) else "float")
        elif given in ("true", "false") or number(given or "?", blank_comments(code)) is not None:
            chosen.append(given)
        else:
            chosen.append("true" if kind == "bool" else "32")
    return f"{name}<{', '.join(chosen)}>"


def _is_type(name: str, code: str) -> bool:
    if not re.fullmatch(r"\w+", name):
        return name in SCALAR_TYPES
    declared = rf"\b(?:struct|class|using)\s+{name}\b(?!\s*[,>])|\btypedef\b[^;]*\b{name}\s*;"  # no parameter
    return name in SCALAR_TYPES or name in TENSOR_DTYPES or bool(re.search(declared, code))


# ---- in Python


def python_lines(code: str, kernel: KernelFunction, source: str) -> list[str]:
    """The three lines that launch a kernel from Python, as the file's first launch of it does. source: the Python
    expression for the code. What the file does not say is a name: blocks, threads, shared_bytes, the arguments."""
    launch = next((one for one in find_launches(code) if one.kernel.split("::")[-1] == kernel.name), None)
    name, expressions = kernel.name, ""
    if kernel.template:
        name = _named_instance(code, kernel, launch)
        expressions = f', name_expressions=("{name}",)'
    grid, block = (_written(size, default) for size, default in _sizes(launch))
    arguments = ", ".join(_argument(parameter, index, code) for index, parameter in enumerate(kernel.parameters))
    arguments += "," if len(kernel.parameters) == 1 else ""
    shared = ""
    if launch and launch.shared != 0:
        shared = f", shared_mem={'shared_bytes' if launch.shared is None else launch.shared}"
    return [
        f"module = RawModule(code={source}{expressions})",
        f'kernel = module.get_function("{name}")',
        f"kernel({grid}, {block}, ({arguments}){shared})",
    ]


def _sizes(launch: HostLaunch | None) -> list[tuple[Size | None, str]]:
    return [(launch and launch.grid, "blocks"), (launch and launch.block, "threads")]


def _written(size: Size | None, name: str) -> str:
    return f"({name},)" if size is None else f"({size[0]},)" if len(size) == 1 else str(size)


def _argument(parameter: Parameter, index: int, code: str) -> str:
    name, of_type = parameter.name or f"argument_{index}", SCALAR_TYPES.get(_type(parameter.type, code))
    return name if parameter.pointer or of_type is None else f"np.{of_type.__name__}({name})"


def _type(name: str, code: str) -> str:
    """The type behind a name that the file gives it, if there is such a name."""
    if name in SCALAR_TYPES or not re.fullmatch(r"\w+", name):
        return name
    alias = re.search(rf"\btypedef\s+([\w ]+?)\s+{name}\s*;|\busing\s+{name}\s*=\s*([\w ]+?)\s*;", blank_comments(code))
    return (alias[1] or alias[2]) if alias else name


def tensors(code: str, kernel: KernelFunction) -> list[str]:
    """What the pointers of a kernel take, as "torch.float32 for a, b"."""
    taking: dict[str, list[str]] = {}
    for p in kernel.parameters:
        dtypes = TENSOR_DTYPES.get(_type(p.type, code)) if p.pointer and p.name else None
        if dtypes:
            taking.setdefault(" or ".join(map(str, dtypes)), []).append(p.name)
    return [f"{dtype} for {', '.join(names)}" for dtype, names in taking.items()]
