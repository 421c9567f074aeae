"""A kernel launch as data, which can be run here, on the other backend, or in another process under NVIDIA's tools."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch

from course_utils.cuda import RawModule, ReadyLaunch, TensorMap, read_kernel

_Argument = torch.Tensor | TensorMap | np.generic


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel file.

    source: as for `read_kernel`; kernel: its name; args: CPU tensors, tensor maps of such, and NumPy
    scalars, one per parameter; options: as for `RawModule`; shared_mem: bytes of dynamic shared memory.
    """

    source: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[_Argument, ...]
    options: tuple[str, ...] = ()
    shared_mem: int = 0

    @classmethod
    def of_ready(cls, ready: ReadyLaunch, *tensors: torch.Tensor) -> Launch:
        """The launch of an operator with these tensors, CPU tensors as `ready` takes them."""
        module = ready.kernel.module
        args = ready.arguments(*tensors)
        return cls(module.name, ready.kernel.name, ready.grid, ready.block, args, module.options, ready.shared_mem)

    def run(self, device: str | torch.device = "cpu") -> list[torch.Tensor]:
        """Runs the kernel on copies of the tensors, on a device; returns the copies, in the order of the parameters.

        device: "cpu" (the emulator) or "cuda". Raises ValueError for another, and where there is no GPU.
        """
        kind = torch.device(device).type if str(device).split(":")[0] in ("cpu", "cuda") else None
        if kind is None or (kind == "cuda" and not torch.cuda.is_available()):
            here = "cpu and cuda" if torch.cuda.is_available() else "cpu (PyTorch finds no GPU here)"
            raise ValueError(f"device takes {here}, got {str(device)!r}")
        args = [_copied(arg, device) for arg in self.args]
        module = RawModule(code=read_kernel(self.source), options=self.options)
        module.get_function(self.kernel)(self.grid, self.block, args, shared_mem=self.shared_mem)
        tensors = [arg.tensor if isinstance(arg, TensorMap) else arg for arg in args]
        return [arg for arg in tensors if isinstance(arg, torch.Tensor)]

    def describe(self) -> str:
        """The launch in one line, which tells launches apart by all that decides which addresses a kernel accesses."""
        place = " ".join([self.source, *self.options])
        arguments = ", ".join(map(_described, self.args))
        return f"{place}: {self.kernel}<<<{self.grid}, {self.block}, {self.shared_mem}>>>({arguments})"


def _copied(value: _Argument, device: str | torch.device) -> _Argument:
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    return replace(value, tensor=value.tensor.to(device, copy=True)) if isinstance(value, TensorMap) else value


def _described(value: _Argument) -> str:
    if isinstance(value, TensorMap):
        return f"{_described(value.tensor)} in boxes {list(value.box)}"
    if not isinstance(value, torch.Tensor):
        return str(value)
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value.dtype.is_floating_point:
        return text
    return f"{text}#{zlib.crc32(value.numpy().tobytes()):08x}"  # integers may be indices
