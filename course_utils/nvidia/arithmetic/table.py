"""Runs the expressions of the table on a device, each with all of its arguments, and brings their bits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import RawModule
from course_utils.nvidia.arithmetic.expressions import LETTERS, Expression, expressions
from course_utils.nvidia.arithmetic.types import TYPES, by_name
from course_utils.nvidia.arithmetic.values import arguments
from course_utils.toolchain.nvrtc import compile_kernel

THREADS = 128
OF_A_TYPE = {type_.cpp: number for number, type_ in enumerate(TYPES, 1)} | {"long": 8, "unsigned long": 9}
HEAD = """\
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T> __device__ T from_bits(unsigned long long bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> __device__ void put(unsigned long long* out, T value) {
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof value);
    *out = bits;
}
template <class T> struct number_of { static constexpr int value = 0; };
%s
#define ROW(row, ...)                                                                                            \\
    {                                                                                                            \\
        auto value = (__VA_ARGS__);                                                                              \\
        put(out + (long long)(row) * n + i, value);                                                              \\
        if (i == 0) types[row] = number_of<decltype(value)>::value;                                              \\
    }
// A conversion that nobody wrote: by an assignment, and by a call.
template <class T, class S> __device__ T stored(S from) {
    T to;
    to = from;
    return to;
}
template <class T> __device__ T same(T x) { return x; }
template <class T, class S> __device__ T passed(S from) { return same<T>(from); }
// Whether PTX says what a / b is.
template <class A, class B> __device__ bool divides(A a, B b) { return (decltype(a + b))b != 0; }
"""
NUMBERS = "".join(
    f"template <> struct number_of<{cpp}> {{ static constexpr int value = {number}; }};\n"
    for cpp, number in OF_A_TYPE.items()
)


class Result(NamedTuple):
    """What an expression gave: the number of its type among TYPES (from 1; 0: another), and the bits of each value."""

    type_number: int
    bits: np.ndarray  # uint64 [n]


def groups() -> dict[str, list[Expression]]:
    """The expressions by their groups."""
    found: dict[str, list[Expression]] = {}
    for expression in expressions():
        found.setdefault(expression.group, []).append(expression)
    return found


def _by_signature(chosen: Iterable[Expression]) -> dict[tuple[str, ...], list[Expression]]:
    found: dict[tuple[str, ...], list[Expression]] = {}
    for expression in chosen:
        found.setdefault(expression.signature, []).append(expression)
    return found


def code(chosen: Iterable[Expression]) -> str:
    """A file of CUDA C++ with a kernel for each signature, k_s32_f32 for instance, and a row for each expression."""
    parts = ["#include <cuda_fp8.h>\n"] if any("fp8" in e.text for e in chosen) else []
    parts.append(HEAD % NUMBERS)
    for signature, members in _by_signature(chosen).items():
        letters = LETTERS[: len(signature)]
        given = "".join(f"const unsigned long long* {letter}_, " for letter in letters)
        parts.append(
            f'extern "C" __global__ void k_{"_".join(signature)}({given}int n, unsigned long long* out, int* types) {{'
            "\n"
            "    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);\n"
            "    if (i >= n) return;\n"
        )
        for name, letter in zip(signature, letters, strict=True):
            cpp = by_name(name).cpp
            parts.append(f"    const {cpp} {letter} = from_bits<{cpp}>({letter}_[i]);\n")
        parts += [f"    ROW({row}, {e.text})\n" for row, e in enumerate(members)]
        parts.append("}\n")
    return "".join(parts)


Launch = Callable[[str, int, Sequence[Tensor | np.int32]], None]  # a kernel's name, blocks, arguments


@cache
def built(chosen: tuple[Expression, ...], device: str) -> Launch:
    """What launches the kernels of these expressions on a device ("cpu", "cuda"): compiled once.

    On a GPU not by CuPy, which makes NVRTC flush the least floats to 0 (-ftz=true), as neither NVRTC nor nvcc do unless
    they are asked to.
    """
    if device == "cpu":
        module = RawModule(code=code(chosen))
        return lambda name, blocks, given: module.get_function(name)((blocks,), (THREADS,), given)
    import cupy

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compile_kernel(code(chosen), arch).cubin)
        file.flush()
        loaded = cupy.RawModule(path=file.name)
        loaded.compile()

    def launch(name: str, blocks: int, given: Sequence[Tensor | np.int32]) -> None:
        arguments = tuple(x.data_ptr() if isinstance(x, Tensor) else x for x in given)
        loaded.get_function(name)((blocks,), (THREADS,), arguments)
        torch.cuda.synchronize()

    return launch


def run(chosen: tuple[Expression, ...], device: str) -> dict[Expression, Result]:
    """What the expressions give on a device. Raises what a launch raises."""
    launch = built(chosen, device)
    found: dict[Expression, Result] = {}
    for signature, members in _by_signature(chosen).items():
        given = arguments(signature)
        n = given.shape[1]
        out = torch.zeros(len(members), n, dtype=torch.uint64, device=device)
        types = torch.full((len(members),), -1, dtype=torch.int32, device=device)
        tensors = [torch.from_numpy(row.copy()).to(device) for row in given]
        launch(f"k_{'_'.join(signature)}", -(-n // THREADS), (*tensors, np.int32(n), out, types))
        bits = out.cpu().numpy()
        for row, (expression, number) in enumerate(zip(members, types.tolist(), strict=True)):
            found[expression] = Result(number, bits[row])
    return found
