"""What `bench 02_flash_attention_minimal` measures: FlashAttention in fp32 beside naive torch and torch's kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from course_utils import costs, measured, reference, timing
from course_utils.bench.timed import (
    BATCH,
    HEAD_DIM,
    HEADS,
    Function,
    backward_pass,
    by_kernel,
    columns,
    fitting,
    random_inputs,
    require_close,
    sdpa,
)
from course_utils.cuda import read_kernel
from course_utils.measured import Measurement, Row
from course_utils.nvidia import bottlenecks
from course_utils.operators import flash_attention_minimal, flash_plain
from course_utils.operators.minimal import FORWARD_TILES
from course_utils.toolchain import nvrtc

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
            require_close("forward_plain.cu", flash_plain(*inputs), expected)
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
                    rows.append(row)
                del functions, function  # with the graphs and the matrices that they hold
    return rows


def minimal_flash_here() -> list[Row]:
    """`minimal_flash` on this machine's GPU: smaller batch and lengths where less than 60 GB of its memory are free."""
    if torch.cuda.mem_get_info()[0] >= 60e9:
        return minimal_flash()
    return minimal_flash(batch=2, lengths=(512, 1024, 2048))


def time_table(timings: Measurement, which: str, length: int = 2048) -> list[Row]:
    """The rows of one pass ("forward", "backward") at a length as a table."""
    columns = {"median_ms": "ms", "tflop_per_s": "TFLOP/s", "speed_over_naive": "× naive", "peak_mb": "peak MB"}
    rows = timings.select(length=length, **{"pass": which})
    return [{"": row["name"]} | {columns[key]: row[key] for key in columns} for row in rows]


def _flash_forward_functions(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Function]:
    halves = [tensor.half() for tensor in (query, key, value)]
    return {
        "naive torch": lambda: reference.torch_attention(query, key, value),
        "forward_plain.cu": lambda: flash_plain(query, key, value),
        "flash_attention_minimal": lambda: flash_attention_minimal(query, key, value),
        **{name: sdpa(backend, query, key, value) for name, backend in SDPA_KERNELS.items()},
        **{name: sdpa(backend, *halves) for name, backend in HALF_KERNELS.items()},
    }


def _flash_backward_functions(query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor) -> dict[str, Function]:
    """The backward pass alone; each forward pass runs once, here."""

    def backward(forward: Callable[..., Tensor], dtype: torch.dtype = torch.float32) -> Function:
        return backward_pass(forward, *(tensor.to(dtype) for tensor in (query, key, value, grad_output)))

    return {
        "naive torch": backward(reference.torch_attention),
        "flash_attention_minimal": backward(flash_attention_minimal),
        **{name: backward(by_kernel(backend)) for name, backend in SDPA_KERNELS.items()},
        **{name: backward(by_kernel(backend), torch.float16) for name, backend in HALF_KERNELS.items()},
    }


def forward_resources(arch: str = "sm_90") -> list[Row]:
    """The resources of forward.cu with the operator's tiles, by NVIDIA's compiler, and how many of its blocks a
    multiprocessor holds. It needs no GPU."""
    source, limits = read_kernel("02_flash_attention_minimal/forward.cu"), nvrtc.SM_LIMITS[int(arch[3:])]
    rows: list[Row] = []
    for tile, *_ in FORWARD_TILES.values():
        found = nvrtc.compile_kernel(source, arch=arch, options=tile.options).resources["forward"]
        fits = nvrtc.occupancy(found, tile.threads, tile.shared_bytes, arch=arch)
        row = {"d": tile.head_dim, "B_r": tile.block_rows, "B_c": tile.block_cols, "threads": tile.threads}
        row |= {"registers": found.registers, "spilled bytes": found.spill_stores}
        row |= {"shared KiB": tile.shared_bytes / 1024, "blocks per SM": fits.blocks}
        row |= {"warps per SM": fits.warps, "of": fits.max_warps, "limited by": fits.limited_by}
        row["registers, %"] = 100 * fits.blocks * tile.threads * found.registers / limits.registers
        shared = fits.blocks * (tile.shared_bytes + limits.shared_reserved)
        rows.append(
            row | {"shared memory, %": 100 * shared / limits.shared, "warps, %": 100 * fits.warps / fits.max_warps}
        )
    return rows


def bounds(timings: Measurement) -> list[Row]:
    """TFLOP/s of both forward kernels at L = 2048, beside what their wavefronts allow (counted by ncu) and what
    multiply-adds alone sustained in chapter 00."""
    chip = {row["name"]: row for row in measured.load("00_start_here").rows}
    rows: list[Row] = []
    for kernel, name in (("forward_plain", "forward_plain.cu"), ("forward", "flash_attention_minimal")):
        (timed,) = timings.select(name=name, length=2048, **{"pass": "forward"})
        (counted,) = measured.load("bottlenecks").select(name=f"{kernel}, L=2048")
        row: Row = {"kernel": f"{kernel}.cu", "reached": timed["tflop_per_s"]}
        row["wavefronts allow"] = bottlenecks.allowed_tflops(counted)
        rows.append(row | {"multiply-adds sustained": chip["fp32 multiply-add, CUDA cores"]["tflop_per_s"]})
    return rows
