"""A small kernel that runs on a Hopper GPU and on the emulator, and what it leaves behind."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import RawModule

HEAD = "// arch: sm_90a only\n"
# What small kernels call an mbarrier by, for kernels that are a text in Python.
MBARRIER = Path(__file__).with_name("mbarrier.cuh").read_text(encoding="utf-8").replace("#pragma once\n", "")
Arguments = tuple[Sequence[object], Sequence[Tensor]]  # of a launch; and those of them that hold its results


@dataclass(frozen=True, eq=False)
class Case:
    """One launch of one block, or of one cluster.

    group, name: together they name it in the record.
    code: CUDA C++ with a kernel of the name `kernel`.
    arguments: makes the arguments on a device, the same each time, and says which tensors hold the results.
    threads, blocks, shared: of the launch.
    sums: its results are rounded sums of products, which the record keeps in full.
    """

    group: str
    name: str
    code: str
    arguments: Callable[[str], Arguments]
    kernel: str = "k"
    threads: int = 128
    blocks: int = 1
    shared: int = 0
    sums: bool = False

    def run(self, device: str) -> bytes:
        """The bytes of its results. Raises what a launch raises."""
        arguments, results = self.arguments(device)
        kernel = module(self.code).get_function(self.kernel)
        kernel((self.blocks,), (self.threads,), arguments, shared_mem=self.shared)
        if device == "cuda":
            torch.cuda.synchronize()
        return b"".join(result.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for result in results)


def results_of(case: Case, results: bytes) -> dict[str, str]:
    """What a record keeps of the bytes of its results."""
    if case.sums:
        return {"bytes": base64.b64encode(results).decode()}
    return {"sha256": hashlib.sha256(results).hexdigest()}


@functools.cache
def module(code: str) -> RawModule:
    """The module of a text, made once."""
    return RawModule(code=code)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of 32 bits that look random and are the same on every machine, with every version of every library."""
    count = int(np.prod(shape))
    n = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the last steps of splitmix64
        n = (n ^ n >> np.uint64(shift)) * np.uint64(factor)
    return (n >> np.uint64(32)).astype(np.uint32).reshape(shape)


def integers(*shape: int, seed: int = 0, low: int = -3, high: int = 3) -> Tensor:
    """Integers from low to high, as floats: their products and sums are exact in every format."""
    return torch.from_numpy(numbers(*shape, seed=seed) % (high - low + 1)).float() + low
