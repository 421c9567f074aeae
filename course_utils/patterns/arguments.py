"""Checks of a pattern's arguments: each message names the argument, what it got and what it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from course_utils.arguments import integer
from course_utils.patterns.definition import Shape

MAX_LENGTH = 2**30  # positions and the bounds of Ranges are added in int32


def integers(name: str, values: object) -> np.ndarray:
    """A list, tuple, range, 1-D array or 1-D tensor of integers as int64 `[n]`."""
    takes = "a sequence of integers"
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise TypeError(f"{name} has shape {values.shape} and dtype {values.dtype}; it must be {takes}")
        return values.astype(np.int64)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} is {values!r}; it must be {takes}")
    for n, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name}[{n}] is {value!r}; {name} must be {takes}")
    return np.array(values, dtype=np.int64)


def lengths(L_q: object, L_k: object, device: torch.device | str) -> Shape:
    """The numbers of queries and keys (None: as many as queries), and the device of the tables, with its number."""
    L_q = integer("L_q", L_q, 1, MAX_LENGTH)
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:  # what is kept for cuda is kept for this one
        device = torch.device("cuda", torch.cuda.current_device())
    return Shape(L_q, L_q if L_k is None else integer("L_k", L_k, 1, MAX_LENGTH), device)
