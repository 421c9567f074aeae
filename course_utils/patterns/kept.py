"""What is made once and kept: lists for the lengths that a pattern was used at, and the patterns' own numbers.

How long memory lives: what a pattern or its block lists have made lives until `MOST` newer things push it out, or the
pattern is gone. What a CUDA graph has captured stays until the process ends: each replay reads it again, and torch does
not say when the last graph is gone.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch

MOST = 64  # entries: some ten pairs of lengths
MISSING = object()

Made = TypeVar("Made")
_captured: dict[int, object] = {}  # by CUDA graphs


def capturing() -> bool:
    """Whether a CUDA graph is captured on torch's current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Kept:
    """The last `MOST` things that were asked for.

    Nothing can be made while a graph is captured: lists take memory that the graph would call its own, and wait for the
    GPU to know their sizes.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()  # making one thing may ask for another

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: Hashable, make: Callable[[], Made], device: torch.device) -> Made:
        """make(), the first time, and later what it returned. device: where the tensors in it lie."""
        in_capture = capturing()
        with self._lock:
            made = self._made.get(key, MISSING)
            if made is not MISSING:
                self._made.move_to_end(key)
            elif in_capture:
                raise RuntimeError(
                    "the lists of the pattern for these lengths are not made yet, and cannot be while a CUDA graph is "
                    "captured: call the operator once before, with the same shapes"
                )
            else:
                not_faked("what the pattern keeps for these lengths is made")
                made = self._made[key] = finished(make(), device)
                if len(self._made) > MOST:
                    self._made.popitem(last=False)
            if in_capture:
                _captured[id(made)] = made
        return made


def finished(made: Made, device: torch.device) -> Made:
    """What has just been made on torch's current stream of a GPU, once it is there: then any stream may read it, and a
    captured one, which could not wait for another. To know the sizes of lists takes several such waits anyway."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return made


def read(found: Made, device: torch.device) -> Made:
    """What torch's current stream computes from something kept, once it is there: from then on what is kept may be
    pushed out by newer things, or go with its pattern, and its memory to others. A captured graph cannot be waited for,
    and needs no wait: what it reads stays."""
    return found if capturing() else finished(found, device)


# ---------------------------------------------------------------------------------------------- numbers

# From a place of this process's own, so that an exported program in another one finds no pattern instead of a wrong
# one. Not 0 and 1, which torch.compile takes for constants: it compiles anew for another number.
_NUMBERS = itertools.count(2 + secrets.randbits(48))
_NUMBERED: WeakValueDictionary[int, Any] = WeakValueDictionary()


def number_of(owner: object) -> int:
    """A new number by which `numbered` finds the object, as long as it lives: what a compiled graph can hold of it."""
    number = next(_NUMBERS)
    _NUMBERED[number] = owner
    return number


def not_compiled(why: str) -> None:
    """Raises RuntimeError, with these words, where torch.compile(fullgraph=True) or torch.export traces this call.
    Without fullgraph=True the compiler leaves such a call to eager mode."""
    if torch.compiler.is_compiling():
        raise RuntimeError(why)


def not_faked(what: str) -> None:
    """Raises RuntimeError under FakeTensorMode, in which every new tensor is fake: what is kept would never be right
    again."""
    if type(torch.empty(0)) is not torch.Tensor:
        raise RuntimeError(
            f"{what} under FakeTensorMode: make the pattern outside, and call there once what is to be kept, such as "
            "block_lists, with the same lengths"
        )


def numbered(number: int) -> Any:
    """The object of this number. Raises RuntimeError where it lives no more."""
    owner = _NUMBERED.get(number)
    if owner is None:
        raise RuntimeError(
            f"the pattern number {number} of a compiled or exported graph is not in this process, or no more: a graph "
            "names its pattern and does not keep it; keep the pattern as long as the graph, and export anew elsewhere"
        )
    return owner
