"""How a compiled graph names a pattern, by a number; and what must not happen while a graph is made."""

from __future__ import annotations

import itertools
import secrets
from typing import Any
from weakref import WeakValueDictionary

import torch

# From a random start, so that an exported program in another process finds no pattern instead of a wrong one. Not 0 and
# 1, which torch.compile takes for constants: it would compile anew for another number.
_NUMBERS = itertools.count(2 + secrets.randbits(48))
_REGISTERED: WeakValueDictionary[int, Any] = WeakValueDictionary()


def register(owner: object) -> int:
    """A new number, by which `registered` finds the object as long as it lives. A compiled graph can hold a number."""
    number = next(_NUMBERS)
    _REGISTERED[number] = owner
    return number


def registered(number: int) -> Any:
    """The object of this number. Raises RuntimeError if it no longer lives."""
    owner = _REGISTERED.get(number)
    if owner is None:
        raise RuntimeError(
            f"the pattern number {number} of a compiled or exported graph is not in this process, or no more: a graph "
            "names its pattern and does not keep it; keep the pattern as long as the graph, and export anew elsewhere"
        )
    return owner


def refuse_tracing(why: str) -> None:
    """Raises RuntimeError(why) where torch.compile(fullgraph=True) or torch.export traces this call. Without
    fullgraph=True the compiler leaves such a call to eager mode."""
    if torch.compiler.is_compiling():
        raise RuntimeError(why)


def refuse_fake_tensors(what: str) -> None:
    """Raises RuntimeError under FakeTensorMode, where every new tensor is fake and a cached one would stay so."""
    if type(torch.empty(0)) is not torch.Tensor:
        raise RuntimeError(
            f"{what} under FakeTensorMode: make the pattern outside, and call there once what is to be kept, such as "
            "block_lists, with the same lengths"
        )
