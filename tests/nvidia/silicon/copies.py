"""The copy engine: boxes of tensors with every swizzle, over the edge, loads, stores and sums; plain bytes; groups."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import tensor_map
from tests.nvidia.silicon.case import HEAD, MBARRIER, Arguments, Case, numbers

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{{}}}], [%2];"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group [%0, {{{}}}], [%1];"
SUM = "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.OPERATION.tile.bulk_group [%0, {{{}}}], [%1];"
MAP = "struct alignas(64) TensorMap { unsigned long long words[16]; };\n"


def box_kernel(rank: int, operation: str) -> str:
    """Bytes into shared memory, one box out of it or into it, and shared memory back."""
    coordinates = ", ".join(f'"r"(c{n})' for n in range(rank))
    first = 3 if operation == "load" else 2
    places = ", ".join(f"%{n + first}" for n in range(rank))
    if operation == "load":
        copy = (
            f'arrive_expecting(&bar, expected);\n        asm volatile("{LOAD.format(rank, places)}" '
            f':: "r"(at(shared)), "l"(&map), "r"(at(&bar)), {coordinates} : "memory");\n'
            "        for (int n = 0; n < 100000 && !over_parity(&bar, 0); n++);  // no hang, if there are other bytes"
        )
    else:
        text = (STORE if operation == "store" else SUM.replace("OPERATION", operation)).format(rank, places)
        copy = (
            f'asm volatile("{text}" :: "l"(&map), "r"(at(shared)), {coordinates} : "memory");\n'
            '        asm volatile("cp.async.bulk.commit_group;" ::: "memory");\n'
            '        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");'
        )
    return f"""{HEAD}{MAP}{MBARRIER}
extern "C" __global__ void k(const __grid_constant__ TensorMap map, unsigned char* bytes, int count, int expected,
                             int c0, int c1, int c2, int c3, int c4) {{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) init(&bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = threadIdx.x; i < count; i += 32) shared[i] = bytes[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {{
        {copy}
    }}
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += 32) bytes[i] = shared[i];
    if (threadIdx.x == 0) bytes[count] = over_parity(&bar, 0);  // whether these were all the bytes
}}"""


class Box(NamedTuple):
    """What one copy moves; shapes in the tensor's order."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    box: tuple[int, ...]
    start: tuple[int, ...]
    swizzle: str | None = None
    operation: str = "load"

    @property
    def room(self) -> int:
        """Bytes of shared memory: more than the box has, to see what is written where."""
        return math.prod(self.box[:-1]) * max(
            self.box[-1] * self.dtype.itemsize, int(self.swizzle[:-1]) if self.swizzle else 0
        )

    def arguments(self, device: str) -> Arguments:
        """Of the kernel. The results: the bytes in shared memory, and the tensor."""
        count, expected = self.room, math.prod(self.box) * self.dtype.itemsize
        tensor = filled(self.dtype, self.shape, seed=1).to(device)
        content = filled(torch.uint8 if self.operation == "load" else self.dtype, (count + 1,), seed=2)
        content = content.view(torch.uint8)[: count + 1].clone().to(device)
        shown = content if self.room > expected else content[:count]  # the last says whether a load's bytes were all
        coordinates = [np.int32(n) for n in (*reversed(self.start), 0, 0, 0, 0)[:5]]
        mapped = tensor_map(tensor, self.box, swizzle=self.swizzle)
        return (mapped, content, np.int32(count), np.int32(expected), *coordinates), (shown, tensor.view(torch.uint8))

    def __str__(self) -> str:
        sizes = ["x".join(map(str, one)) for one in (self.shape, self.box)]
        place = ",".join(map(str, self.start))
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.operation} {name} {sizes[1]} of {sizes[0]} at {place}, swizzle {self.swizzle}"


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Small integers of a type: their sums are exact."""
    if dtype is torch.uint8:
        return torch.from_numpy((numbers(*shape, seed=seed) & 0xFF).astype(np.uint8))
    return torch.from_numpy((numbers(*shape, seed=seed) % 101).astype(np.int64) - 50).to(dtype)


HALF = torch.float16
SHAPES = [  # shape, box, start
    ((40,), (16,), (8,)),
    ((40,), (16,), (32,)),
    ((40,), (16,), (-8,)),
    ((40,), (16,), (-40,)),
    ((9, 16), (4, 8), (2, 8)),
    ((9, 16), (4, 8), (7, -3)),
    ((9, 16), (4, 8), (-2, 12)),
    ((9, 16), (4, 8), (9, 16)),
    ((3, 5, 16), (2, 3, 16), (0, 1, 0)),
    ((3, 5, 16), (2, 3, 16), (-1, 4, 5)),
    ((2, 3, 4, 8), (1, 2, 3, 8), (1, 0, 1, 0)),
    ((2, 3, 4, 8), (1, 2, 3, 8), (1, 2, 3, -1)),
    ((2, 2, 2, 3, 8), (2, 1, 2, 2, 8), (0, 1, 0, 1, 0)),
    ((2, 2, 2, 3, 8), (2, 1, 2, 2, 8), (-1, 1, 1, 2, 1)),
]


def boxes() -> Iterator[Box]:
    """Loads and stores of every rank, type and swizzle; sums into memory."""
    for operation, shape in itertools.product(("load", "store"), SHAPES):
        yield Box(HALF, *shape, operation=operation)
    for operation, (swizzle, row) in itertools.product(("load", "store"), (("32B", 32), ("64B", 64), ("128B", 128))):
        for inner in sorted({16, row // 2, row}):  # rows shorter than the swizzle's, too
            yield Box(torch.uint8, (40, 256), (16, inner), (3, 16), swizzle, operation)
            yield Box(HALF, (40, 128), (32, inner // 2), (20, 120), swizzle, operation)
        yield Box(HALF, (3, 9, 64), (2, 5, row // 2), (1, 2, 0), swizzle, operation)
    for operation, start in itertools.product(
        ("load", "store"), ((-2, 8), (2, -8), (7, 8), (-2, 0), (2, 3), (2, 4), (-4, 8))
    ):
        yield Box(HALF, (9, 16), (4, 8), start, None, operation)
    for operation, start in itertools.product(("load", "store"), ((2, 4), (2, -4), (-1, 4), (2, 2), (2, 1), (6, 12))):
        yield Box(torch.float32, (9, 16), (4, 8), start, None, operation)
    for operation in ("load", "store"):
        yield Box(HALF, (40, 128), (32, 64), (20, 100), "128B", operation)
        yield Box(HALF, (40, 128), (32, 64), (-4, 64), "128B", operation)
    for dtype in (torch.int8, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64):
        for operation in ("load", "store"):
            yield Box(dtype, (9, 32), (4, 16), (-1, 20), None, operation)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        yield Box(dtype, (9, 32), (4, 16), (6, 20), None, "add")
    for operation in ("min", "max"):
        for dtype in (torch.int32, torch.float16, torch.int64):
            yield Box(dtype, (9, 32), (4, 16), (6, 20), None, operation)
    for operation in ("and", "or", "xor"):
        yield Box(torch.int32, (9, 32), (4, 16), (6, 20), "64B", operation)
    for rank in (1, 3, 5):
        shape = SHAPES[{1: 1, 3: 9, 5: 13}[rank]]
        yield Box(torch.int32, *shape, operation="add")


# ---- plain bytes

BYTES = f"""{HEAD}{MBARRIER}
extern "C" __global__ void k(const int* x, int* y, int bytes, int from, int to) {{
    extern __shared__ __align__(128) int box[];
    __shared__ unsigned long long bar;
    const int i = threadIdx.x;
    for (int n = i; n < 1024; n += 32) box[n] = -n;
    if (i == 0) init(&bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (i == 0) {{
        arrive_expecting(&bar, 2 * bytes);
        for (int n = 0; n < 2; n++)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         :: "r"(at(box + 4 * to) + n * bytes), "l"(x + 4 * from + n), "r"(bytes), "r"(at(&bar))
                         : "memory");
    }}
    wait(&bar, 0);
    for (int n = i; n < 1024; n += 32) box[n] += 7;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (i == 0) {{
        for (int n = 0; n < 4; n++) {{
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                         :: "l"(y + 1024 * n), "r"(at(box)), "r"(1024 * (n + 1)) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }}
        asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;"
                     :: "l"(y + 4096), "r"(at(box)), "r"(4096) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }}
}}""".replace("x + 4 * from + n)", "x + 4 * (from + n))")


def move_bytes(count: int, source: int, target: int, device: str) -> Arguments:
    """Two loads, side by side; stores in four groups; a sum."""
    x = torch.from_numpy(numbers(2048, seed=5).view(np.int32) >> 4).to(device)
    y = torch.arange(5120, dtype=torch.int32).to(device)
    return (x, y, np.int32(count), np.int32(source), np.int32(target)), (y,)


SUM_BYTES = f"""{HEAD}{MBARRIER}
extern "C" __global__ void k(const uint4* x, uint4* y, int count) {{
    extern __shared__ __align__(128) uint4 box[];
    for (int n = threadIdx.x; n < count; n += 32) box[n] = x[n];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {{
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.OPERATION [%0], [%1], %2;"
                     :: "l"(y), "r"(at(box)), "r"(16 * count) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }}
}}"""
SUMS = {
    "add.f32": torch.float32,
    "add.f64": torch.float64,
    "add.noftz.f16": torch.float16,
    "add.noftz.bf16": torch.bfloat16,
    "add.u32": torch.int32,
    "add.u64": torch.int64,
    "min.s32": torch.int32,
    "max.s64": torch.int64,
    "min.u32": torch.int32,
    "min.f16": torch.float16,
    "max.bf16": torch.bfloat16,
    "and.b32": torch.int32,
    "or.b32": torch.int32,
    "xor.b64": torch.int64,
    "inc.u32": torch.int32,
    "dec.u32": torch.int32,
}


def sum_bytes(dtype: torch.dtype, device: str) -> Arguments:
    """256 bytes of shared memory onto as many of global memory."""
    x, y = (filled(dtype, (256 // dtype.itemsize,), seed).to(device) for seed in (6, 7))
    return (x.view(torch.int32), y.view(torch.int32), np.int32(16)), (y.view(torch.int32),)


def copies() -> Iterator[Case]:
    """Every case of the copy engine in one block."""
    for box in boxes():
        code = box_kernel(len(box.shape), box.operation)
        yield Case("copies", str(box), code, box.arguments, threads=32, shared=box.room)
    for count, source, target in ((16, 0, 0), (48, 3, 5), (1024, 1, 0), (1008, 2, 3)):
        made = functools.partial(move_bytes, count, source, target)
        name = f"{count} bytes from chunk {source} to chunk {target}, stores in four groups"
        yield Case("copies", name, BYTES, lambda device, made=made: made(device=device), threads=32, shared=4096)
    for operation, dtype in SUMS.items():
        made = functools.partial(sum_bytes, dtype)
        code = SUM_BYTES.replace("OPERATION", operation)
        yield Case("copies", f"bytes {operation}", code, made, threads=32, shared=256)


ALL: Sequence = (copies,)
