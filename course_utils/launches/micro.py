"""Launches of the micro-kernels of chapter 00, each of which makes one pattern of accesses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch

from course_utils.launches.arguments import counted, ints
from course_utils.launches.launch import Launch

FOLDER = "00_start_here/micro"
GRID, BLOCK = 4, 256
N = GRID * BLOCK

Index = Callable[[int], int]  # lane -> element
Named = Iterator[tuple[str, Launch]]  # (what the pattern is, the launch)


def micro_launches() -> dict[str, Launch]:
    """Every one, by the name of its kernel and of its pattern, such as "load_float stride 2"."""
    of_kinds = _global_loads, _global_stores, _shared, _ldmatrix, _cp_async, _atomics, _divergence
    return {f"{launch.kernel} {pattern}".strip(): launch for kind in of_kinds for pattern, launch in kind()}


def _micro(
    file: str, kernel: str, *args: torch.Tensor | np.generic, block: tuple[int, ...] = (BLOCK,), **more
) -> Launch:
    return Launch(f"{FOLDER}/{file}.cu", kernel, (GRID,), block, args, **more)


def _table(index: Index, count: int) -> torch.Tensor:
    return torch.tensor([index(i) for i in range(count)], dtype=torch.int32)


def _global_loads() -> Named:
    file, out = "global_loads", torch.zeros(N)
    for stride, first in [(1, 0), (2, 0), (4, 0), (8, 0), (32, 0), (0, 0), (1, 1), (1, 8), (2, 1)]:
        name = f"stride {stride}" + (f" from {first}" if first else "")
        yield name, _micro(file, "load_float", counted(32 * N + 8), out, *ints(stride, first))
    for width, strides in [(2, (1, 2, 16, 0)), (4, (1, 2, 8, 0))]:
        for stride in strides:
            args = counted(16 * N, width), torch.zeros(N, width), *ints(stride)
            yield f"stride {stride}", _micro(file, f"load_float{width}", *args)
    yield "", _micro(file, "load_half2", counted(N, 2).half(), torch.zeros(N, 2).half())
    for lanes in (1, 16):
        yield f"{lanes}", _micro(file, "load_some_lanes", counted(N), out, *ints(lanes))
    gathers: dict[str, Index] = {
        "reversed": lambda i: N - 1 - i,
        "pairs": lambda i: i // 2,
        "scattered": lambda i: i * 37 % N,  # 37 and N have no common factor: a permutation
        "two rows": lambda i: i % 2 * 512 + i // 2,
    }
    for name, index in gathers.items():
        yield name, _micro(file, "load_gather", _table(index, N), counted(N), out)


def _global_stores() -> Named:
    file = "global_stores"
    for stride, first in [(1, 0), (2, 0), (4, 0), (8, 0), (32, 0), (1, 1), (1, 8)]:
        name = f"stride {stride}" + (f" from {first}" if first else "")
        yield name, _micro(file, "store_float", torch.zeros(32 * N + 8), *ints(stride, first))
    for width in (2, 4):
        for stride in (1, 2, 8):
            yield f"stride {stride}", _micro(file, f"store_float{width}", torch.zeros(8 * N, width), *ints(stride))
    for lanes in (1, 16):
        yield f"{lanes}", _micro(file, "store_some_lanes", torch.zeros(N), *ints(lanes))


def _strides(*strides: int) -> dict[str, Index]:
    return {f"stride {stride}": lambda i, stride=stride: i * stride for stride in strides}


# Which element each lane of a warp takes. "Rows" are 17 elements apart, as in a tile of 64 floats padded by four.
SHARED_READS: dict[str, dict[str, Index]] = {
    "float": {
        **_strides(1, 2, 4, 8, 32, 33, 0),
        "pairs": lambda i: i // 2,
        "reversed": lambda i: 31 - i,
        "two of one bank": lambda i: i % 16 + i // 16 * 32,
    },
    "float2": {
        **_strides(1, 2, 4, 16, 17, 0),
        "pairs": lambda i: i // 2,
        "every other": lambda i: i // 4 * 2 + i % 2,
        "halves": lambda i: i % 16,
    },
    "float4": {
        **_strides(1, 2, 4, 8, 17, 0),
        "pairs": lambda i: i // 2,
        "every other": lambda i: i // 4 * 2 + i % 2,
        "quads": lambda i: i // 4,
        "halves": lambda i: i % 16,
        "eighths": lambda i: i % 4,
        "four rows": lambda i: (i % 2 + i // 16 * 2) * 17,
        "eight rows": lambda i: i // 2 % 8 * 17,
        "eight neighbours": lambda i: i // 2 % 8,
    },
}
SHARED_WRITES: dict[str, dict[str, Index]] = {
    "half": _strides(1, 2, 4, 16, 33),
    "half2": _strides(1, 2, 8, 33),
    "float": {**_strides(1, 2, 4, 8, 32, 33), "reversed": lambda i: 31 - i},
    "float2": _strides(1, 2, 4, 16, 17),
    "float4": _strides(1, 2, 4, 8, 17),
}
SHARED_READS |= {
    type_: {**patterns, "pairs": lambda i: i // 2} for type_, patterns in SHARED_WRITES.items() if "half" in type_
}
WIDTHS = {"half": 1, "half2": 2, "float": 1, "float2": 2, "float4": 4}  # numbers in an element


def _random_patterns(type_: str) -> dict[str, Index]:
    """Ten patterns with fixed seeds: elements out of few or many, so that lanes share words or collide in a bank; in
    every other pattern a quarter of the lanes is idle."""
    patterns: dict[str, Index] = {}
    for seed in range(10):
        generator = random.Random(f"{type_} {seed}")
        elements = (8, 32, 64, 256, 1024)[seed // 2]
        idle = 0.25 if seed % 2 else 0
        table = [-1 if generator.random() < idle else generator.randrange(elements) for _ in range(32)]
        patterns[f"random {seed}"] = table.__getitem__
    return patterns


def _agreements(type_: str) -> dict[str, Index]:
    """Random reads of 8 or 16 bytes in which lanes read what their partners read: the neighbours i and i ^ 1, or the
    lanes i and i ^ 2. Another pairing in each half-warp, or in one half-warp only, shows what the hardware looks at."""
    patterns: dict[str, Index] = {}
    for first, second in [(1, 2), (2, 1), (1, 0), (0, 2), (1, 1), (2, 2)]:
        for seed in range(3):
            generator = random.Random(f"{type_} {first} {second} {seed}")
            table = [generator.randrange((16, 64, 256)[seed]) for _ in range(32)]
            table = [table[i & ~(first if i < 16 else second)] for i in range(32)]
            patterns[f"partners {first} and {second}, {seed}"] = table.__getitem__
    return patterns


for _type in ("float", "float2", "float4"):
    SHARED_READS[_type] |= _random_patterns(_type) | (_agreements(_type) if _type != "float" else {})
    SHARED_WRITES[_type] |= _random_patterns(_type)


def _shared() -> Named:
    for kernel in ("read_columns", "write_columns"):
        for pitch in (32, 33):
            args = torch.zeros(GRID, 32, 32), *ints(pitch)
            yield f"pitch {pitch}", _micro("shared_tile", kernel, *args, block=(32, 32))
    yield "", _micro("shared_tile", "read_columns_swizzled", torch.zeros(GRID, 32, 32), block=(32, 32))
    for type_, indices in SHARED_READS.items():
        number = torch.float16 if "half" in type_ else torch.float32
        for name, index in indices.items():
            args = _table(index, 32), torch.zeros(GRID, 32, WIDTHS[type_], dtype=number)
            yield name, _micro("shared_access", f"read_{type_}", *args, block=(32,))
    for type_, indices in SHARED_WRITES.items():
        for name, index in indices.items():
            args = _table(index, 32), torch.zeros(GRID, 512 if type_ == "half" else 1024)
            yield name, _micro("shared_access", f"write_{type_}", *args, block=(32,))


def _ldmatrix() -> Named:
    layouts = {"pitch 64": (64, 0), "pitch 72": (72, 0), "swizzled": (64, 1)}
    for kernel in ("ldmatrix_x1", "ldmatrix_x2", "ldmatrix_x4", "ldmatrix_x4_trans"):
        for name, layout in layouts.items():
            args = torch.zeros(GRID, 32, 4, dtype=torch.int32), *ints(*layout, 2)
            yield name, _micro("ldmatrix", kernel, *args, block=(32,))


# Where the copies of a block go, in units of their size.
COPY_TARGETS: dict[str, Index] = {
    "pitch 1": lambda i: i,
    "pitch 2": lambda i: 2 * i,
    "pairs swapped": lambda i: i ^ 1,
    "pairs apart": lambda i: i // 2 * 4 + i % 2,
    "quads swapped": lambda i: i ^ 2,
    "swizzled": lambda i: i ^ (i // 8 % 8),  # rows of 128 bytes, as in a tile of 64 halves
    "padded rows of 8": lambda i: i + i // 8,
    "padded rows of 16": lambda i: i + i // 16,
}


def _cp_async() -> Named:
    for size, cache in [(4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")]:
        options = (f"-DBYTES={size}", *(["-DAROUND_L1"] if cache == "cg" else []))
        for name, index in COPY_TARGETS.items():
            if size == 16 or "pitch" in name:
                args = counted(N, size // 4), _table(index, BLOCK), torch.zeros(N)
                yield f"{size} {cache}, {name}", _micro("cp_async", "copy_async", *args, options=options)


# Which threads share an address.
SHARED_SUMS: dict[str, Index] = {
    "one address": lambda i: 0,
    "neighbours": lambda i: i,
    "pairs": lambda i: i // 2,
    "quads": lambda i: i // 4,
    "eighths": lambda i: i // 8,
    "pairs 16 apart": lambda i: i // 32 * 32 + i % 16,
    "every fourth": lambda i: i // 32 * 32 + i % 4 * 8,
    "one hot, others alone": lambda i: i // 32 * 32 if i % 32 < 8 else i,
}


def _atomics() -> Named:
    for name, index in SHARED_SUMS.items():
        everywhere, in_block = _table(index, N), _table(index, BLOCK)
        ints, floats = torch.zeros(N, dtype=torch.int32), torch.zeros(N)
        yield name, _micro("atomics", "reduce_global", everywhere, ints)
        yield name, _micro("atomics", "reduce_global_float", everywhere, floats)
        yield name, _micro("atomics", "add_global", everywhere, ints, ints.clone())
        yield name, _micro("atomics", "add_shared_int", in_block, ints)
        yield name, _micro("atomics", "add_shared_float", in_block, floats)


def _divergence() -> Named:
    yield "", _micro("divergence", "divergent_global", counted(8, N), torch.zeros(N))
    yield "", _micro("divergence", "divergent_shared", torch.zeros(N))
