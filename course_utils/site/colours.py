"""CUDA in Python: on the site a puzzle's kernel, and a kernel in a string, have CUDA's colours as in their listings."""

from __future__ import annotations

from collections.abc import Iterator

from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, PythonLexer, find_lexer_class_by_name
from pygments.token import String

Token = tuple[int, object, str]  # where it begins, its kind, its text


class _WithKernels(Lexer):
    """A mixin that precedes a lexer of Python among a class's bases."""

    def get_tokens_unprocessed(self, text: str, *stack: object) -> Iterator[Token]:
        if text.startswith("%%puzzle"):
            first, line_end, kernel = text.partition("\n")
            yield from super().get_tokens_unprocessed(first + line_end, *stack)
            yield from _as_cuda(kernel, len(first + line_end))
            return
        inside: list[Token] = []  # the string that has begun
        for token in super().get_tokens_unprocessed(text, *stack):
            if token[1] in String and token[2] not in ('"""', "'''"):
                inside.append(token)
                continue
            yield from _string(inside)
            yield token
            inside = []
        yield from _string(inside)


def _string(tokens: list[Token]) -> Iterator[Token]:
    """The tokens of a string, coloured as CUDA if it holds a kernel."""
    text = "".join(token[2] for token in tokens)
    yield from _as_cuda(text, tokens[0][0]) if "__global__" in text else tokens


def _as_cuda(text: str, start: int) -> Iterator[Token]:
    return ((start + at, kind, value) for at, kind, value in CudaLexer().get_tokens_unprocessed(text))


class PythonWithKernels(_WithKernels, PythonLexer):
    """Python of a guide."""


class CellWithKernels(_WithKernels, find_lexer_class_by_name("ipython3")):
    """Python of a cell."""


LEXERS = {"python": PythonWithKernels, "ipython3": CellWithKernels}
