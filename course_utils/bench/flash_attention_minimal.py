"""What `bench 02_flash_attention_minimal` measures: FlashAttention in fp32 beside naive torch and torch's kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from course_utils import costs, reference, timing
from course_utils.bench.timed import (
    BATCH,
    HEAD_DIM,
    HEADS,
    Function,
    backward_pass,
    build_kernel,
    columns,
    fitting,
    random_inputs,
    require_close,
    sdpa,
)
from course_utils.cuda import read_kernel
from course_utils.measured import Row
from course_utils.operators import flash_attention_minimal
from course_utils.toolchain.source import blank_comments, with_headers

LENGTHS = (512, 1024, 2048, 4096)
# Kernels of torch that take fp32; the flash and cuDNN kernels take half precision only.
SDPA_KERNELS = {
    "SDPA math": SDPBackend.MATH,
    "SDPA memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
HALF_KERNELS = {"SDPA flash, fp16": SDPBackend.FLASH_ATTENTION}


def minimal_flash(
    *, device: str = "cuda", batch: int = BATCH, heads: int = HEADS, lengths: tuple[int, ...] = LENGTHS
) -> list[Row]:
    """FlashAttention in fp32 (forward_plain.cu and the operator with its tiled kernel) beside naive torch and torch's
    own kernels, forward and backward. `speed_over_naive` is against naive torch in fp32, without TF32. Lengths whose
    score matrices do not fit the GPU are left out."""
    rows: list[Row] = []
    for length in fitting(lengths, batch, heads, device):
        inputs = random_inputs((batch, heads, length, HEAD_DIM), device, torch.float32)
        grad_output = torch.randn_like(inputs[0])
        with reference.full_float32():
            expected = reference.torch_attention(*inputs)
            require_close("forward_plain.cu", _forward_plain(*inputs)(), expected)
            require_close("flash_attention_minimal", flash_attention_minimal(*inputs), expected)
            del expected
            for pass_name in ("forward", "backward"):
                if pass_name == "forward":
                    functions = _flash_forward_functions(*inputs)
                else:
                    functions = _flash_backward_functions(*inputs, grad_output)
                times = timing.compare(functions)
                flops = costs.attention_flops(batch, heads, length, length, HEAD_DIM, backward=pass_name == "backward")
                for name, function in functions.items():
                    row = {"name": name, "length": length} | columns(times[name]) | {"pass": pass_name}
                    row["tflop_per_s"] = flops / times[name].median / 1e9
                    row["speed_over_naive"] = times["naive torch"].median / times[name].median
                    row["peak_mb"] = timing.peak_memory(function) / 1e6
                    row["code_lines"] = _code_lines_of(name) if pass_name == "forward" else None
                    rows.append(row)
                del functions, function  # with the graphs and the matrices that they hold
    return rows


def _flash_forward_functions(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Function]:
    halves = [tensor.half() for tensor in (query, key, value)]
    return {
        "naive torch": lambda: reference.torch_attention(query, key, value),
        "forward_plain.cu": _forward_plain(query, key, value),
        "flash_attention_minimal": lambda: flash_attention_minimal(query, key, value),
        **{name: sdpa(backend, query, key, value) for name, backend in SDPA_KERNELS.items()},
        **{name: sdpa(backend, *halves) for name, backend in HALF_KERNELS.items()},
    }


def _flash_backward_functions(query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor) -> dict[str, Function]:
    """The backward pass alone; each forward pass is done once, here."""

    def backward(forward: Callable[..., Tensor], dtype: torch.dtype = torch.float32) -> Function:
        return backward_pass(forward, *(tensor.to(dtype) for tensor in (query, key, value, grad_output)))

    return {
        "naive torch": backward(reference.torch_attention),
        "flash_attention_minimal": backward(flash_attention_minimal),
        **{
            name: backward(lambda q, k, v, backend=backend: sdpa(backend, q, k, v)())
            for name, backend in SDPA_KERNELS.items()
        },
        **{
            name: backward(lambda q, k, v, backend=backend: sdpa(backend, q, k, v)(), torch.float16)
            for name, backend in HALF_KERNELS.items()
        },
    }


def _forward_plain(query: Tensor, key: Tensor, value: Tensor, rows: int = 64, cols: int = 32) -> Function:
    """forward_plain.cu with tiles of `rows` queries by `cols` keys; the function returns the output."""
    batch, heads, length, head_dim = query.shape
    options = f"-DD={head_dim}", f"-DB_R={rows}", f"-DB_C={cols}"
    kernel = build_kernel("02_flash_attention_minimal/forward_plain.cu", "forward_plain", options)
    shared = 4 * (rows * (head_dim + 1) + 2 * cols * head_dim + rows * (cols + 1))
    grid = costs.ceil_div(length, rows), heads, batch
    scalars = np.int32(length), np.int32(length), np.float32(head_dim**-0.5), np.int32(0)

    def function() -> Tensor:
        out, lse = torch.empty_like(query), query.new_empty(batch, heads, length)
        kernel(grid, (rows,), (query, key, value, out, lse, *scalars), shared_mem=shared)
        return out

    return function


def code_lines(source: str) -> int:
    """Lines of code of a kernel: neither blank nor comment."""
    return sum(bool(line.strip()) for line in blank_comments(source, strings=False).splitlines())


def _code_lines_of(name: str) -> int | None:
    file = {"forward_plain.cu": "forward_plain.cu", "flash_attention_minimal": "forward.cu"}.get(name)
    return code_lines(with_headers(read_kernel(f"02_flash_attention_minimal/{file}"))) if file else None
