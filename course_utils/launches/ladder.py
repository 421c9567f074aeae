"""The ladder of forward kernels of chapter 03: one step a file, each with one idea more than the step before. The last
step, the operator's kernel, has several ideas, and `TUNING` takes them away one by one.

for step in LADDER:
    out, lse = launch(step, query, key, value, is_causal=True)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.cuda import Kernel, RawModule, compiled, read_kernel
from course_utils.launches.arguments import check_attention, ints
from course_utils.launches.launch import Launch
from course_utils.operators.flash_v2 import FORWARD_TILES
from course_utils.toolchain.source import KernelSource, with_headers

HEAD_DIMS = (64, 128)
DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Step:
    """One kernel of the ladder.

    file: as for `read_kernel`; the kernel has the name of the file. number: its place on the ladder, "3b" between 3 and
    4. title, idea: for tables; the idea is what this step changes. tiles: of each head dimension D, the options B_R
    (queries of a block), B_C (keys of a tile) and WARPS. shared: bytes of dynamic shared memory from (D, B_R, B_C).
    changes: text of the file, or of a header that it includes, and its replacement.
    """

    file: str
    number: str
    title: str
    idea: str
    tiles: dict[int, dict[str, int]]
    shared: Callable[[int, int, int], int]
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def source(self) -> KernelSource:
        """The text of the kernel file; with `changes` made, its headers are in the place of their includes."""
        return _source(self.file, self.changes)

    @property
    def kernel(self) -> str:
        """The name of the `__global__` function."""
        return self.file.split("/")[-1].removesuffix(".cu")

    def options(self, head_dim: int, dtype: torch.dtype) -> tuple[str, ...]:
        """The compiler's options. Raises ValueError for another D than 64 and 128, or another dtype than 16 bits."""
        if head_dim not in self.tiles:
            raise ValueError(f"head_dim is {head_dim}; {self.file} takes {' and '.join(map(str, self.tiles))}")
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype}; {self.file} takes torch.float16 and torch.bfloat16")
        sizes = {"D": head_dim, "BF16": int(dtype == torch.bfloat16), **self.tiles[head_dim]}
        return tuple(f"-D{name}={size}" for name, size in sizes.items())

    def rows_per_block(self, head_dim: int) -> int:
        """Queries of a block, B_R."""
        return self.tiles[head_dim]["B_R"]

    def threads(self, head_dim: int) -> int:
        """Threads of a block."""
        return 32 * self.tiles[head_dim]["WARPS"]

    def shared_bytes(self, head_dim: int) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return self.shared(head_dim, self.tiles[head_dim]["B_R"], self.tiles[head_dim]["B_C"])


def _padded(d: int, rows: int, keys: int) -> int:
    return 2 * ((rows + keys) * (d + 8) + keys * d + rows * (keys + d // 8))


def _with_weights(d: int, rows: int, keys: int) -> int:
    return 4 * d * (rows + keys)


def _with_weights_two_buffers(d: int, rows: int, keys: int) -> int:
    return 4 * d * (rows + 2 * keys)


def _two_buffers(d: int, rows: int, keys: int) -> int:
    return 2 * d * (rows + 4 * keys)


_CHAPTER = "03_flash_attention_v2"
_TILES = dict.fromkeys(HEAD_DIMS, {"B_R": 64, "B_C": 64, "WARPS": 4})

LADDER = (
    Step(
        f"{_CHAPTER}/step1_cuda_cores.cu",
        "1",
        "CUDA cores",
        "Chapter 02's kernel, with tiles of 16-bit numbers and arithmetic in fp32.",
        {64: {"B_R": 128, "B_C": 64, "WARPS": 4}, 128: {"B_R": 128, "B_C": 64, "WARPS": 8}},
        _padded,
    ),
    Step(
        f"{_CHAPTER}/step2_tensor_cores.cu",
        "2",
        "tensor cores",
        "Both products by mma.sync, whose operands ldmatrix brings from shared memory.",
        _TILES,
        _with_weights,
    ),
    Step(
        f"{_CHAPTER}/step3_swizzle.cu",
        "3",
        "swizzle",
        "Chunks of a row change places: ldmatrix reads eight rows from all 32 banks at once.",
        _TILES,
        _with_weights,
    ),
    Step(
        f"{_CHAPTER}/step3b_async_copy.cu",
        "3b",
        "async copy",
        "cp.async copies tiles from global to shared memory, past the registers.",
        _TILES,
        _with_weights,
    ),
    Step(
        f"{_CHAPTER}/step4_double_buffer.cu",
        "4",
        "double buffer",
        "Two buffers: the next tile of K and V is copied while the block computes with this tile.",
        _TILES,
        _with_weights_two_buffers,
    ),
    Step(
        f"{_CHAPTER}/step5_registers.cu",
        "5",
        "P in registers",
        "P is the left factor of P V in the registers in which S was.",
        _TILES,
        _two_buffers,
    ),
    Step(
        f"{_CHAPTER}/step5b_exp2.cu",
        "5b",
        "exp2",
        "Scale and subtraction are one multiply-add; the exponential is one instruction.",
        _TILES,
        _two_buffers,
    ),
    Step(
        f"{_CHAPTER}/step6_causal_skip.cu",
        "6",
        "causal skip",
        "Key tiles beyond the diagonal are not visited.",
        _TILES,
        _two_buffers,
    ),
    Step(
        f"{_CHAPTER}/step6b_mask_edges.cu",
        "6b",
        "mask at edges",
        "Only tiles that cross the diagonal, or the last key, are masked.",
        _TILES,
        _two_buffers,
    ),
    Step(
        f"{_CHAPTER}/forward.cu",
        "7",
        "tuned",
        "Several small ideas: 32 queries per warp, larger tiles, O rarely rescaled, ...",
        {d: {"B_R": t.block_rows, "B_C": t.block_cols, "WARPS": t.warps} for d, (t, *_) in FORWARD_TILES.items()},
        _two_buffers,
    ),
)


# forward.cu with one of its ideas taken away, to see what each is worth.
FORWARD = LADDER[-1]
TUNING = (
    replace(
        FORWARD,
        title="16 queries per warp",
        tiles={64: {"B_R": 128, "B_C": 128, "WARPS": 8}, 128: {"B_R": 128, "B_C": 64, "WARPS": 8}},
    ),
    replace(
        FORWARD,
        title="half as many keys per tile",
        tiles={64: {"B_R": 128, "B_C": 64, "WARPS": 4}, 128: {"B_R": 128, "B_C": 32, "WARPS": 4}},
    ),
    replace(
        FORWARD,
        title="O rescaled at every tile",
        changes=(("if (!__any_sync(0xffffffff, exceeds)) return;", ""),),
    ),
    replace(
        FORWARD,
        title="all exponentials before the products",
        changes=(
            (
                "            pack_a(p[i], S[i][n], S[i][n + 1]);\n        }\n",
                "        }\n    }\n    #pragma unroll\n    for (int n = 0; n < N; n += 2) {\n"
                "        unsigned p[M][4];\n"
                "        for (int i = 0; i < M; i++) pack_a(p[i], S[i][n], S[i][n + 1]);\n",
            ),
        ),
    ),
    replace(
        FORWARD,
        title="every copy looks for the end",
        changes=tuple(
            (
                f"load_tile_async<B_C, false>(tile.{name}[(j - 1) % 2], {name} + (long long)(j - 1) * B_C * D);",
                f"load_tile_async<B_C>(tile.{name}[(j - 1) % 2], {name} + (long long)(j - 1) * B_C * D, "
                "L_k - (j - 1) * B_C);",
            )
            for name in "KV"
        ),
    ),
    replace(
        FORWARD,
        title="no warp leaves out a tile",
        changes=(("if (idle || (is_causal && j0 > last + shift)) continue;", ""),),
    ),
    replace(
        FORWARD,
        title="longest blocks last",
        changes=(("is_causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x", "blockIdx.x"),),
    ),
)


def _source(file: str, changes: tuple[tuple[str, str], ...]) -> KernelSource:
    original = read_kernel(file)
    return KernelSource(_changed(original, changes), original.path, original.name) if changes else original


def _changed(code: str, changes: tuple[tuple[str, str], ...]) -> str:
    code = with_headers(code)
    for before, after in changes:
        if code.count(before) != 1:
            raise ValueError(f"{before!r} must stand in the kernel once; it does {code.count(before)} times")
        code = code.replace(before, after)
    return code


def build(step: Step, head_dim: int, dtype: torch.dtype) -> Kernel:
    """The kernel of a step, compiled at its first launch. Errors as for `Step.options`."""
    options = step.options(head_dim, dtype)
    module = _compiled_with(step.file, step.changes, options) if step.changes else compiled(step.file, options)
    return module.get_function(step.kernel)


@functools.cache
def _compiled_with(file: str, changes: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> RawModule:
    return RawModule(code=_source(file, changes), options=options)


def launch(
    step: Step,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Runs one step: on the GPU for CUDA tensors, on the emulator for CPU tensors.

    Args:
        query: [B, H, L_q, D], fp16 or bf16, contiguous, D 64 or 128.
        key, value: [B, H_kv, L_k, D] of the same dtype, H a multiple of H_kv.
        is_causal: bottom-right aligned; a query that sees no key gives 0.
        scale: positive; None takes 1/√D.
        out, lse: where the results go, [B, H, L_q, D] and fp32 [B, H, L_q]; None allocates them.

    Returns:
        out and lse (natural logarithm, minus infinity for queries without keys).

    Raises:
        ValueError: a shape, dtype or scale that the kernels do not take.
    """
    check_attention(query, key, value, scale)
    out = torch.empty_like(query) if out is None else out
    lse = query.new_empty(query.shape[:3], dtype=torch.float32) if lse is None else lse
    kernel = build(step, query.shape[3], query.dtype)
    found = as_launch(step, query, key, value, out, lse, is_causal=is_causal, scale=scale)
    kernel(found.grid, found.block, found.args, shared_mem=found.shared_mem)
    return out, lse


def as_launch(
    step: Step,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Launch:
    """`launch` as data, of the step's file without its `changes`."""
    batch, heads, query_length, d = query.shape
    kv_heads, key_length = key.shape[1:3]
    scalars = *ints(query_length, key_length, heads // kv_heads), np.float32(scale or d**-0.5), np.int32(is_causal)
    return Launch(
        step.file,
        step.kernel,
        (ceil_div(query_length, step.rows_per_block(d)), heads, batch),
        (step.threads(d),),
        (query, key, value, out, lse, *scalars),
        step.options(d, query.dtype),
        step.shared_bytes(d),
    )
