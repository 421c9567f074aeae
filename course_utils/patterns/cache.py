"""Lists made for the lengths that a pattern was used at, and how long they live.

What a pattern or its block lists have made lives until `MOST` newer entries push it out, or the pattern is gone. What a
CUDA graph has captured stays until the process ends: each replay reads it again, and torch does not say when the last
graph is gone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from course_utils.arguments import is_capturing
from course_utils.patterns.graphs import refuse_fake_tensors

MOST = 64  # entries: some ten pairs of lengths
MISSING = object()

Made = TypeVar("Made")
_captured: dict[int, object] = {}  # by CUDA graphs


class Cache:
    """The last `MOST` entries that were asked for.

    Nothing can be made while a graph is captured: lists take memory that the graph would call its own, and wait for the
    GPU to know their sizes.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.RLock()  # making one entry may ask for another

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], Made], device: torch.device) -> Made:
        """make() the first time, and later what it returned. device: where its tensors lie."""
        in_capture = is_capturing(device)
        with self._lock:
            entry = self._entries.get(key, MISSING)
            if entry is not MISSING:
                self._entries.move_to_end(key)
            elif in_capture:
                raise RuntimeError(
                    "the lists of the pattern for these lengths are not made yet, and cannot be while a CUDA graph is "
                    "captured: call the operator once before, with the same shapes"
                )
            else:
                refuse_fake_tensors("what the pattern keeps for these lengths is made")
                entry = self._entries[key] = wait_until_made(make(), device)
                if len(self._entries) > MOST:
                    self._entries.popitem(last=False)
            if in_capture:
                _captured[id(entry)] = entry
        return entry


def wait_until_made(made: Made, device: torch.device) -> Made:
    """Returns `made` when torch's current stream of the GPU has computed it. Then any stream may read it, and so may a
    stream that is being captured, which could not wait. Finding the sizes of lists waits several times anyway."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return made


def wait_until_read(result: Made, device: torch.device) -> Made:
    """Returns `result` when torch's current stream has computed it from a cached entry. From then on the entry may be
    pushed out, or go with its pattern, and its memory may be reused. During a capture nothing can be waited for, and
    need not be: what a graph reads stays."""
    return result if is_capturing(device) else wait_until_made(result, device)
