"""`python -m course_utils bench counters` and `bench sanitizer`: the emulator's tools held against NVIDIA's.

With --record, on a GPU, ncu counts the launches of `counter_cases` and compute-sanitizer checks those of
`sanitizer_cases`; what they said is kept with the course. `validation` compares it with what the emulator says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from course_utils import patterns
from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator.sanitizer import TOOLS
from course_utils.launches import Launch
from course_utils.launches.ladder import LADDER, Step
from course_utils.measured import Row
from course_utils.nvidia import tools as nvidia_tools
from course_utils.nvidia.tools import ToolError
from course_utils.operators import flash_v2, indexer, mla, sparse
from course_utils.operators.minimal import BACKWARD_TILES, FORWARD_TILES, BackwardTile, ForwardTile

# Their source names what a row sees, or the bits of a block, again for each score, or leaves to the compiler how many
# atomics become one. How often that is an access depends on the compiler, on a GPU and on the emulator, so that these
# are for the sanitizers only.
REREADING = ("range_forward", "block_sparse_forward", "range_dk_dv", "radix_topk", "sparse_mla_backward")
NCU_LAUNCHES = 48  # launches that one ncu process counts: a failure loses these, and a start costs seconds
NCU_SECONDS = 90  # for each of these processes
NCU_BUDGET = 145  # seconds after which no further one is begun
SANITIZER_PROCESSES = 14  # at a time, on one GPU
SANITIZER_BUDGET = 240  # seconds after which no further launch is begun

MICRO = "00_start_here/micro"
Index = Callable[[int], int]  # lane -> element


@dataclass(frozen=True)
class Case:
    """A launch with a name of its own. group: "micro" (one access pattern), "course", or "large" (for HBM bytes)."""

    name: str
    group: str
    launch: Launch


# ---- the launches that ncu counts


def counter_cases() -> list[Case]:
    """Every launch whose counters are recorded: uniform ones, and large cold ones for the bytes from and to HBM."""
    micro = [*_global_loads(), *_global_stores(), *_shared(), *_ldmatrix(), *_cp_async(), *_atomics(), *_divergence()]
    return [
        *(Case(f"{launch.kernel} {pattern}".strip(), "micro", launch) for pattern, launch in micro),
        *(Case(name, "course", launch) for name, launch in course_launches().items()),
        *(Case(name, "large", launch) for name, launch in large_launches().items()),
    ]


Named = Iterator[tuple[str, Launch]]  # (what the pattern is, the launch)
GRID, BLOCK = 4, 256
N = GRID * BLOCK


def _micro(
    file: str, kernel: str, *args: torch.Tensor | np.generic, block: tuple[int, ...] = (BLOCK,), **more
) -> Launch:
    return Launch(f"{MICRO}/{file}.cu", kernel, (GRID,), block, args, **more)


def _floats(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).view(shape)


def _ints(*values: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, values))


def _table(index: Index, count: int) -> torch.Tensor:
    return torch.tensor([index(i) for i in range(count)], dtype=torch.int32)


def _global_loads() -> Named:
    file, out = "global_loads", torch.zeros(N)
    for stride, first in [(1, 0), (2, 0), (4, 0), (8, 0), (32, 0), (0, 0), (1, 1), (1, 8), (2, 1)]:
        name = f"stride {stride}" + (f" from {first}" if first else "")
        yield name, _micro(file, "load_float", _floats(32 * N + 8), out, *_ints(stride, first))
    for width, strides in [(2, (1, 2, 16, 0)), (4, (1, 2, 8, 0))]:
        for stride in strides:
            args = _floats(16 * N, width), torch.zeros(N, width), *_ints(stride)
            yield f"stride {stride}", _micro(file, f"load_float{width}", *args)
    yield "", _micro(file, "load_half2", _floats(N, 2).half(), torch.zeros(N, 2).half())
    for lanes in (1, 16):
        yield f"{lanes}", _micro(file, "load_some_lanes", _floats(N), out, *_ints(lanes))
    gathers: dict[str, Index] = {
        "reversed": lambda i: N - 1 - i,
        "pairs": lambda i: i // 2,
        "scattered": lambda i: i * 37 % N,  # 37 and N have no common factor: a permutation
        "two rows": lambda i: i % 2 * 512 + i // 2,
    }
    for name, index in gathers.items():
        yield name, _micro(file, "load_gather", _table(index, N), _floats(N), out)


def _global_stores() -> Named:
    file = "global_stores"
    for stride, first in [(1, 0), (2, 0), (4, 0), (8, 0), (32, 0), (1, 1), (1, 8)]:
        name = f"stride {stride}" + (f" from {first}" if first else "")
        yield name, _micro(file, "store_float", torch.zeros(32 * N + 8), *_ints(stride, first))
    for width in (2, 4):
        for stride in (1, 2, 8):
            yield f"stride {stride}", _micro(file, f"store_float{width}", torch.zeros(8 * N, width), *_ints(stride))
    for lanes in (1, 16):
        yield f"{lanes}", _micro(file, "store_some_lanes", torch.zeros(N), *_ints(lanes))


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
            args = torch.zeros(GRID, 32, 32), *_ints(pitch)
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
            args = torch.zeros(GRID, 32, 4, dtype=torch.int32), *_ints(*layout, 2)
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
                args = _floats(N, size // 4), _table(index, BLOCK), torch.zeros(N)
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
    yield "", _micro("divergence", "divergent_global", _floats(8, N), torch.zeros(N))
    yield "", _micro("divergence", "divergent_shared", torch.zeros(N))


def course_launches() -> dict[str, Launch]:
    """Each kernel of chapters 00 to 02 at sizes that fill its tiles, and those from 03 on at one that does not."""
    a, b, out = (_floats(128, 128) / 128 for _ in range(3))
    side = np.int32(128)
    chapter = "00_start_here"
    launches = {
        "vector_add": _elementwise("vector_add", a, b, out, np.int32(a.numel())),
        "copy": _elementwise("copy", a, out, np.int32(a.numel())),
        "copy_vectors": _elementwise("copy_vectors", a, out, np.int32(a.numel()), per_thread=4),
        "copy_strided": _elementwise("copy_strided", a, out, np.int32(a.numel()), np.int32(8)),
        "reread": Launch(f"{chapter}/reread.cu", "reread", (2,), (128,), (a, torch.zeros(256), *_ints(a.numel(), 2))),
    }
    for name in ("transpose_naive", "transpose_tiled", "transpose_padded"):
        launches[name] = Launch(f"{chapter}/{name}.cu", name, (4, 4), (32, 32), (a, out, side, side))
    for name, tile, block in [
        ("matmul_naive", 32, (32, 32)),
        ("matmul_tiled", 32, (32, 32)),
        ("matmul_registers", 64, (16, 16)),
    ]:
        launches[name] = Launch(f"{chapter}/{name}.cu", name, (128 // tile,) * 2, block, (a, b, out, side, side, side))
    launches |= _naive_attention(heads=2, length=128)
    launches |= _naive_attention(heads=2, length=128, is_causal=True)
    launches |= _flash_forward(heads=2, length=256)
    launches |= _flash_forward(heads=2, length=256, is_causal=True)
    launches |= _flash_backward(heads=1, length=128)
    for head_dim in flash_v2.HEAD_DIMS:
        launches |= _flash_v2_backward(heads=2, length=200, head_dim=head_dim)
        for is_causal in (False, True):
            steps = LADDER if head_dim == 64 else LADDER[-1:]  # of the others, once is enough
            launches |= _flash_ladder(steps, heads=2, length=200, is_causal=is_causal, head_dim=head_dim)
    launches |= {name: launch for name, launch in _sparse_short().items() if launch.kernel not in REREADING}
    return launches | {name: launch for name, launch in _deepseek().items() if launch.kernel not in REREADING}


def _sparse_short() -> dict[str, Launch]:
    """Chapter 04's kernels at a length that does not fill their tiles."""
    kinds = patterns.sliding_window(40), patterns.streaming(4, 40), patterns.dilated(16, 3)
    return _sparse("L=200", torch.float16, kinds, heads=2, kv_heads=2, queries=200, keys=200, head_dim=64)


def large_launches() -> dict[str, Launch]:
    """Naive attention and both loop orders of FlashAttention at B=1, H=4, d=64: for the bytes from and to HBM."""
    launches: dict[str, Launch] = {}
    for length in (1024, 2048):
        naive = _naive_attention(heads=4, length=length)
        launches |= {
            name: launch for name, launch in naive.items() if "unsafe" not in name and "uncoalesced" not in name
        }
        launches |= _flash_forward(heads=4, length=length)
    return launches


def _elementwise(name: str, *args: torch.Tensor | np.generic, per_thread: int = 1) -> Launch:
    grid = args[0].numel() // per_thread // 256
    return Launch(f"00_start_here/{name}.cu", name, (grid,), (256,), args)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _naive_attention(heads: int, length: int, *, is_causal: bool = False, head_dim: int = 64) -> dict[str, Launch]:
    matrix, scores = _random(1, heads, length, head_dim), _random(1, heads, length, length)
    sizes, tiles = _ints(length, length, head_dim), length // 32
    score_args = (matrix, matrix.clone(), scores, *sizes, np.float32(head_dim**-0.5), np.int32(is_causal))
    folder, label = "01_attention_basics", f", L={length}" + (", causal" if is_causal else "")
    launches = {
        name + label: Launch(f"{folder}/{name}.cu", name, (tiles * tiles, heads, 1), (32, 32), score_args)
        for name in ("scores", "scores_uncoalesced")
    }
    if is_causal:  # the other kernels are told nothing of it
        return launches
    for name, threads in [("softmax", 256), ("softmax_unsafe", 32)]:
        args = scores, torch.zeros_like(scores), np.int32(length)
        launches[name + label] = Launch(f"{folder}/{name}.cu", name, (length, heads, 1), (threads,), args)
    args = scores, matrix, torch.zeros_like(matrix), *sizes
    grid = head_dim // 32 * tiles, heads, 1
    launches["output" + label] = Launch(f"{folder}/output.cu", "output", grid, (32, 32), args)
    return launches


def _attention_args(heads: int, length: int, head_dim: int, *outputs: torch.Tensor, is_causal: bool) -> tuple:
    query, key, value = (_random(1, heads, length, head_dim) for _ in range(3))
    scalars = *_ints(length, length), np.float32(head_dim**-0.5), np.int32(is_causal)
    return query, key, value, torch.zeros_like(query), *outputs, *scalars


def _flash_forward(heads: int, length: int, *, is_causal: bool = False, head_dim: int = 64) -> dict[str, Launch]:
    """forward_plain.cu and forward_fa1_order.cu with 64 × 32 tiles, and forward.cu with its own tiles."""
    folder, label = "02_flash_attention_minimal", f", L={length}" + (", causal" if is_causal else "")
    row = torch.zeros(1, heads, length)
    rows, cols = 64, 32
    options = f"-DD={head_dim}", f"-DB_R={rows}", f"-DB_C={cols}"
    launches: dict[str, Launch] = {}
    for name, grid, matrices, outputs in [
        ("forward_plain", ceil_div(length, rows), 1, (row,)),
        ("forward_fa1_order", 1, 2, (row, row.clone())),
    ]:
        shared = 4 * (matrices * rows * (head_dim + 1) + 2 * cols * head_dim + rows * (cols + 1))
        args = _attention_args(heads, length, head_dim, *outputs, is_causal=is_causal)
        launches[name + label] = Launch(
            f"{folder}/{name}.cu", name, (grid, heads, 1), (rows,), args, options, shared_mem=shared
        )
    tile: ForwardTile = FORWARD_TILES[head_dim][0]
    args = _attention_args(heads, length, head_dim, row, is_causal=is_causal)
    grid3 = ceil_div(length, tile.block_rows), heads, 1
    launches["forward" + label] = Launch(
        f"{folder}/forward.cu", "forward", grid3, (tile.threads,), args, tile.options, shared_mem=tile.shared_bytes
    )
    return launches


def _flash_backward(heads: int, length: int, head_dim: int = 64) -> dict[str, Launch]:
    tile: BackwardTile = BACKWARD_TILES[head_dim][0]
    source, grid, block = "02_flash_attention_minimal/backward.cu", (length // tile.tile, heads, 1), (tile.threads,)
    matrix, row = _random(1, heads, length, head_dim), torch.full((1, heads, length), 10.0)
    inputs = matrix, matrix.clone(), matrix.clone(), matrix.clone(), row, row.clone()
    scalars = *_ints(length, length), np.float32(head_dim**-0.5), np.int32(0)
    arguments = {
        "backward_delta": (matrix, inputs[1], row, scalars[0]),
        "backward_dk_dv": (*inputs, torch.zeros_like(matrix), torch.zeros_like(matrix), *scalars),
        "backward_dq": (*inputs, torch.zeros_like(matrix), *scalars),
    }
    return {
        f"{name}, L={length}": Launch(
            source, name, grid, block, args, tile.options, 0 if name == "backward_delta" else tile.shared_bytes
        )
        for name, args in arguments.items()
    }


def _half_args(heads: int, length: int, head_dim: int, inputs: int) -> tuple[torch.Tensor, ...]:
    return tuple(_random(1, heads, length, head_dim).half() for _ in range(inputs))


def _flash_ladder(
    steps: Sequence[Step], heads: int, length: int, *, is_causal: bool, head_dim: int
) -> dict[str, Launch]:
    """Steps of chapter 03, whose last is forward.cu, in fp16."""
    launches: dict[str, Launch] = {}
    for step in steps:
        query, key, value, out = _half_args(heads, length, head_dim, 4)
        scalars = *_ints(length, length, 1), np.float32(head_dim**-0.5), np.int32(is_causal)
        launches[f"v2 {step.kernel}, d={head_dim}, L={length}" + (", causal" if is_causal else "")] = Launch(
            step.file,
            step.kernel,
            (ceil_div(length, step.rows_per_block(head_dim)), heads, 1),
            (step.threads(head_dim),),
            (query, key, value, out, torch.zeros(1, heads, length), *scalars),
            step.options(head_dim, torch.float16),
            step.shared_bytes(head_dim),
        )
    return launches


def hard_launches() -> dict[str, Launch]:
    """The kernels of chapters 03 (the final ones) and 04 where most can go wrong, for the sanitizers: bf16, two query
    heads to a key head, and a mask that leaves the first queries without a key; and those of 05 at V3.2's sizes."""
    queries, keys, launches = 200, 136, dict[str, Launch]()
    for head_dim in flash_v2.HEAD_DIMS:
        query, out = (_random(1, 4, queries, head_dim).bfloat16() for _ in range(2))
        key, value = (_random(1, 2, keys, head_dim).bfloat16() for _ in range(2))
        tile = flash_v2.FORWARD_TILES[head_dim][0]
        scalars = *_ints(queries, keys, 2), np.float32(head_dim**-0.5), np.int32(1)
        launches[f"v2 forward, d={head_dim}, hard"] = Launch(
            f"{flash_v2.FOLDER}/forward.cu",
            "forward",
            (ceil_div(queries, tile.block_rows), 4, 1),
            (tile.threads,),
            (query, key, value, out, torch.zeros(1, 4, queries), *scalars),
            (*tile.options, "-DBF16=1"),
            tile.shared_bytes,
        )
        for n, tile in enumerate(flash_v2.BACKWARD_TILES[head_dim]):
            lse = torch.full((1, 4, queries), 10.0).masked_fill(torch.arange(queries) < queries - keys, -torch.inf)
            inputs = query, key, value, out, lse, torch.zeros(1, 4, queries)
            of_key_tiles = torch.zeros(1, 4, queries, head_dim), key.clone(), value.clone(), *scalars, np.int32(1)
            launches |= {
                f"v2 {name}, d={head_dim}, hard, tile {n}": Launch(
                    f"{flash_v2.FOLDER}/backward.cu",
                    name,
                    grid,
                    (tile.threads,),
                    args,
                    (*tile.options, "-DBF16=1"),
                    shared,
                )
                for name, grid, args, shared in [
                    (
                        "backward_dk_dv",
                        (ceil_div(keys, tile.block_cols), 2, 1),
                        (*inputs, *of_key_tiles),
                        tile.shared_bytes,
                    ),
                    (
                        "backward_dq",
                        (ceil_div(queries, tile.dq_rows), 4, 1),
                        (*inputs, out.clone(), *scalars),
                        tile.dq_shared_bytes,
                    ),
                ]
            }
    launches |= {name: launch for name, launch in _sparse_short().items() if launch.kernel in REREADING}
    launches |= {name: launch for name, launch in _deepseek().items() if launch.kernel in REREADING}
    launches |= _deepseek_hard()
    kinds = (patterns.dilated(16, 3),)
    return launches | _sparse(
        "hard", torch.bfloat16, kinds, heads=4, kv_heads=2, queries=queries, keys=keys, head_dim=128
    )


def _sparse(
    label: str,
    dtype: torch.dtype,
    of_ranges: Sequence[patterns.Pattern],
    *,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
) -> dict[str, Launch]:
    """The kernels of chapter 04, range_dk_dv for the last of the patterns of ranges only. The block lists have rows of
    several lengths, one of which is split in two."""
    query, out = (_random(1, heads, queries, head_dim).to(dtype) for _ in range(2))
    key, value = (_random(1, kv_heads, keys, head_dim).to(dtype) for _ in range(2))
    row = torch.zeros(1, heads, queries)
    lse = torch.full_like(row, 10.0).masked_fill(torch.arange(queries) < queries - keys, -torch.inf)
    gradients = out, lse, row, torch.zeros(1, heads, queries, head_dim), key.clone(), value.clone()
    scalars = *_ints(queries, keys, heads // kv_heads), np.float32(head_dim**-0.5)
    bf16 = f"-DBF16={flash_v2.BF16[dtype]}"
    launches: dict[str, Launch] = {}

    def add(what: str, file: str, kernel: str, grid: int, threads: int, args: tuple, options: tuple, shared: int = 0):
        of = kv_heads if kernel.endswith("dk_dv") else heads
        launches[f"sparse {kernel}, {what}{label}"] = Launch(
            f"{sparse.FOLDER}/{file}.cu", kernel, (grid, of, 1), (threads,), args, (*options, bf16), shared
        )

    forward, back = sparse.RANGE_TILES[head_dim][0], sparse.RANGE_BACKWARD_TILES[head_dim][0]
    for pattern in of_ranges:
        what = f"{pattern.kind}, "
        numbers, classes = _ints(*pattern.ranges), pattern.ranges.dilation
        tiles = classes * ceil_div(ceil_div(queries, classes), forward.block_rows)
        args = query, key, value, out, row, *scalars, *numbers
        options = *forward.options, f"-DDILATED={int(classes > 1)}"
        add(what, "range", "range_forward", tiles, forward.threads, args, options, forward.shared_bytes)
    tiles = classes * ceil_div(ceil_div(keys, classes), back.block_cols)
    args = query, key, value, *gradients, *scalars, *numbers
    add(what, "range_backward", "range_dk_dv", tiles, back.threads, args, back.options, back.shared_bytes)

    lists = (patterns.local(40) | patterns.global_tokens([3])).block_lists(queries, keys)
    ends = lists.indptr.tolist()
    items = [(n, ends[n], ends[n + 1], -1) for n in range(1, lists.rows)]
    items += [(0, 0, ends[1] // 2, 0), (0, ends[1] // 2, ends[1], 1)]
    parts = torch.zeros(2, 1, heads, lists.block, head_dim)
    tile = sparse.BLOCK_TILES[head_dim, lists.block][0]
    of_lists = torch.tensor(items, dtype=torch.int32), lists.indices, lists.bits_index, lists.bits
    args = query, key, value, out, row, *of_lists, parts, parts[..., 0].contiguous(), *scalars
    name = "block_sparse_forward"
    add("", "block_sparse", name, len(items), tile.threads, args, tile.options, tile.shared_bytes)
    args = parts, parts[..., 0].contiguous(), torch.tensor([(0, 0, 2, 0)], dtype=torch.int32), out, row, scalars[0]
    rows = sparse.MERGED_ROWS
    add("", "block_sparse", "merge_parts", lists.block // rows, 32 * rows, args, tile.options)
    back = sparse.BLOCK_BACKWARD_TILES[head_dim, lists.block][0]
    args = query, key, value, *gradients, *lists.by_key(), lists.bits, *scalars
    tiles, options = ceil_div(keys, lists.block) * lists.block // back.block_cols, (*back.options, "-DBLOCK=64")
    name = "block_sparse_dk_dv"
    add("", "block_sparse_backward", name, tiles, back.threads, args, options, back.shared_bytes)

    warps = sparse.CSR_WARPS
    args = query, key, value, out, row, *patterns.power_of_two().csr(queries, keys), *scalars
    options = f"-DD={head_dim}", f"-DWARPS={warps}"
    add("", "csr_gather", "csr_gather", ceil_div(queries, warps), 32 * warps, args, options)
    return launches


DEEPSEEK = mla.FOLDER


def _deepseek() -> dict[str, Launch]:
    """Chapter 05's kernels at a small size, by its portable kernels, with heads that do not fill a tile."""
    tiles = mla.FEW_HEADS_TILES[128, 64][0], mla.FEW_HEADS_BACKWARD_TILES[128, 64][0]
    launches = _latent_attention("small", *tiles, queries=3, keys=70, heads=5)
    sizes = {"D_NOPE": 32, "D_ROPE": 64, "D_C": 64, "D_V": 32, "THREADS": 128}
    shapes = (2, 3, 32), (2, 3, 64), (9, 64), (9, 64), (3, 32, 64), (3, 32, 64)
    launches["deepseek mla_reprojected"] = Launch(
        f"{DEEPSEEK}/mla_reprojected.cu",
        "mla_reprojected",
        (3, 2),
        (128,),
        (*(_random(*shape) for shape in shapes), torch.zeros(2, 3, 32), *_ints(2, 9, 3), np.float32(0.1)),
        tuple(f"-D{name}={size}" for name, size in sizes.items()),
    )
    for dtype in (torch.bfloat16, indexer.E4M3):
        launches |= _indexer(dtype, queries=5, keys=300, heads=20, q_start=250)
    args = _random(2, 5001), torch.zeros(2, 100, dtype=torch.int32), *_ints(5001, 100)
    launches["deepseek radix_topk, T=5001"] = Launch(
        f"{DEEPSEEK}/radix_topk.cu", "radix_topk", (2,), (1024,), args, ("-DTHREADS=1024",)
    )
    return launches


def _deepseek_hard() -> dict[str, Launch]:
    """Latents of 576 numbers, queries without a key, index heads that fill the tile, and scores most of which are
    equal or minus infinity."""
    launches: dict[str, Launch] = {}
    for n, (tiles, backward_tiles) in enumerate(
        [(mla.TILES, mla.BACKWARD_TILES), (mla.FEW_HEADS_TILES, mla.FEW_HEADS_BACKWARD_TILES)]
    ):
        tile, backward_tile = tiles[mla.FULL][0], backward_tiles[mla.FULL][0]
        heads = tile.block_rows + 1
        launches |= _latent_attention(f"hard, tile {n}", tile, backward_tile, queries=3, keys=2, heads=heads)
    launches |= _indexer(torch.float16, queries=2, keys=70, heads=64, q_start=-1, head_dim=128)
    scores = _random(2, 6000).clamp(min=1.5)  # 93 of 100 are 1.5
    scores[1, 50:] = -torch.inf
    args = scores, torch.zeros(2, 2048, dtype=torch.int32), *_ints(6000, 2048)
    launches["deepseek radix_topk, hard"] = Launch(
        f"{DEEPSEEK}/radix_topk.cu", "radix_topk", (2,), (512,), args, ("-DTHREADS=512",)
    )
    return launches


def _latent_attention(
    label: str, forward: mla.LatentTile, backward: mla.BackwardTile, *, queries: int, keys: int, heads: int
) -> dict[str, Launch]:
    """mla_dense.cu, causal, sparse_mla.cu over 40 indices in any order, some of them -1 or too large, and its backward
    pass, in bf16."""
    query, grad_query = (_random(queries, heads, forward.key_dim).bfloat16() for _ in range(2))
    latent = _random(keys, forward.key_dim).bfloat16()
    out, grad = (_random(queries, heads, forward.value_dim).bfloat16() for _ in range(2))
    row = torch.full((queries, heads), 10.0)
    indices = torch.randint(-1, keys + 1, (queries, 40), generator=torch.Generator().manual_seed(0)).int()
    sizes, scale = _ints(queries, keys, heads), np.float32(forward.key_dim**-0.5)
    of_lists = *sizes[1:], np.int32(40), scale  # the grid says how many queries
    gradients = grad, row, grad_query, torch.zeros(keys, forward.key_dim)
    launches: dict[str, Launch] = {}

    def add(kernel: str, tile: mla.LatentTile, args: tuple):
        launches[f"deepseek {kernel}, {label}"] = Launch(
            f"{DEEPSEEK}/{kernel}.cu",
            kernel,
            (ceil_div(heads, tile.block_rows), queries),
            (tile.threads,),
            args,
            (*tile.options, "-DBF16=1"),
            tile.shared_bytes,
        )

    add("mla_dense", forward, (query, latent, out, row, *sizes, scale, np.int32(1)))
    add("sparse_mla", forward, (query, latent, indices, out, row, *of_lists))
    add("sparse_mla_backward", backward, (query, latent, indices, *gradients, *of_lists))
    return launches


def _indexer(
    dtype: torch.dtype, *, queries: int, keys: int, heads: int, q_start: int, head_dim: int = 64
) -> dict[str, Launch]:
    """The indexer for one dtype; FP8 has its scales."""
    q, k, weights = _random(queries, heads, head_dim), _random(keys, head_dim), _random(queries, heads)
    variant, scales = indexer.variant(dtype, head_dim, torch.device("cpu")), ()
    if dtype == indexer.E4M3:
        q, k = _random(queries, heads, variant.dim), _random(keys, variant.dim)
        (q, q_scale), (k, k_scale) = indexer.quantize_e4m3(q), indexer.quantize_e4m3(k)
        q, k, scales = q.view(torch.uint8), k.view(torch.uint8), (q_scale, k_scale)
    else:
        q, k = q.to(dtype), k.to(dtype)
    logits = torch.zeros(queries, keys)
    return {
        f"deepseek {variant.file}, H={heads}": Launch(
            f"{DEEPSEEK}/{variant.file}.cu",
            variant.file,
            (ceil_div(keys, indexer.BLOCK_KEYS), 1),  # so that a block goes from query to query
            (variant.threads,),
            (q, k, weights, *scales, logits, *_ints(queries, keys, heads, q_start)),
            variant.options,
            variant.shared_bytes,
        )
    }


def _flash_v2_backward(heads: int, length: int, head_dim: int) -> dict[str, Launch]:
    """The four kernels of chapter 03's backward.cu, in fp16."""
    tile = flash_v2.BACKWARD_TILES[head_dim][0]
    query, key, value, grad_out, grad = _half_args(heads, length, head_dim, 5)
    row, dq_sum = torch.full((1, heads, length), 10.0), torch.zeros(1, heads, length, head_dim)
    inputs = query, key, value, grad_out, row, row.clone()
    scale, lengths = np.float32(head_dim**-0.5), _ints(length, length, 1)
    scalars, size = (*lengths, scale, np.int32(0)), query.numel()
    key_tiles, query_tiles = ceil_div(length, tile.block_cols), ceil_div(length, tile.dq_rows)
    rows = tile.threads * 8 // head_dim  # of a block of backward_delta
    kernels: dict[str, tuple[tuple[int, ...], tuple, int]] = {
        "backward_delta": ((ceil_div(length, rows), heads, 1), (query, grad_out, row, lengths[0]), 0),
        "backward_dk_dv": (
            (key_tiles, heads, 1),
            (*inputs, dq_sum, grad, grad.clone(), *scalars, np.int32(1)),
            tile.shared_bytes,
        ),
        "backward_round_dq": ((ceil_div(size, 4 * tile.threads),), (dq_sum, grad, scale, np.int64(size)), 0),
        "backward_dq": ((query_tiles, heads, 1), (*inputs, grad, *scalars), tile.dq_shared_bytes),
    }
    return {
        f"v2 {name}, d={head_dim}, L={length}": Launch(
            f"{flash_v2.FOLDER}/backward.cu",
            name,
            grid,
            (tile.threads,),
            args,
            (*tile.options, "-DBF16=0"),
            shared_mem=shared,
        )
        for name, (grid, args, shared) in kernels.items()
    }


# ---- bench counters


def measure_counters() -> list[Row]:
    """ncu's metrics of every case, on this machine's GPU. Cases whose ncu process failed are named and left out."""
    rows: list[Row] = []
    groups = [[case for case in counter_cases() if case.group == group] for group in ("course", "large", "micro")]
    parts = [group[start : start + NCU_LAUNCHES] for group in groups for start in range(0, len(group), NCU_LAUNCHES)]
    stop = time.monotonic() + NCU_BUDGET
    for part in tqdm(parts, desc="ncu"):
        try:
            if time.monotonic() > stop:
                raise ToolError(f"the {NCU_BUDGET} seconds for all of them are over")
            counted = nvidia_tools.run_ncu([case.launch for case in part], timeout=NCU_SECONDS)
        except ToolError as error:
            tqdm.write(f"{part[0].name} ... {part[-1].name} are left out: {error}")
        else:
            rows += [_counter_row(case, metrics) for case, metrics in zip(part, counted, strict=True)]
    order = {case.name: n for n, case in enumerate(counter_cases())}
    return sorted(rows, key=lambda row: order[row["name"]])


def _counter_row(case: Case, metrics: dict[str, int]) -> Row:
    read, written = compulsory_bytes(case.launch)
    return {
        "name": case.name,
        "group": case.group,
        "launch": nvidia_tools.describe(case.launch),
        "bytes_only_read": read,
        "bytes_written": written,
        "metrics": metrics,
    }


def compulsory_bytes(launch: Launch) -> tuple[int, int]:
    """Bytes of a launch's tensors that its kernel can only read, and of those that it may write."""
    parameters = RawModule(code=read_kernel(launch.source)).get_function(launch.kernel).parameters
    tensors = [(arg, p) for arg, p in zip(launch.args, parameters, strict=True) if isinstance(arg, torch.Tensor)]
    read = sum(tensor.nbytes for tensor, parameter in tensors if parameter.const)
    return read, sum(tensor.nbytes for tensor, _ in tensors) - read


# ---- bench sanitizer


@dataclass(frozen=True)
class SanitizerCase:
    """A launch for the sanitizers. state: "broken", "mended" or "clean"; tool: what names the mistake, if anything."""

    name: str
    state: str
    launch: Launch
    tool: str | None = None

    @property
    def tools(self) -> tuple[str, ...]:
        """What it runs under: a mended kernel only under the tool that named the mistake."""
        return (self.tool,) if self.state == "mended" and self.tool in TOOLS else TOOLS


def sanitizer_cases() -> list[SanitizerCase]:
    """The broken kernels, the same mended, and kernels of the course of every kind, which nothing is wrong with."""
    from course_utils.launches.broken import BROKEN

    clean = course_launches() | {
        case.name: case.launch
        for case in counter_cases()
        if case.name
        in ("ldmatrix_x4 swizzled", "copy_async 16 cg, pitch 1", "add_shared_int neighbours", "divergent_shared")
    }
    return [
        *(SanitizerCase(broken.name, "broken", broken.launch(), broken.tool) for broken in BROKEN.values()),
        *(SanitizerCase(broken.name, "mended", broken.mended(), broken.tool) for broken in BROKEN.values()),
        *(SanitizerCase(name, "clean", launch) for name, launch in (clean | hard_launches()).items()),
    ]


def measure_sanitizer() -> list[Row]:
    """compute-sanitizer's findings for every case and tool, on this machine's GPU.

    The tool that is to find a defect comes first; what has not begun after SANITIZER_BUDGET seconds is left out.
    """
    jobs = [(case, tool) for case in sanitizer_cases() for tool in case.tools]
    first = sorted(jobs, key=lambda job: job[0].state == "broken" and job[0].tool != job[1])
    stop = time.monotonic() + SANITIZER_BUDGET
    rows: list[Row] = []
    with ThreadPoolExecutor(SANITIZER_PROCESSES) as pool:
        running = [pool.submit(_sanitizer_row, case, tool, stop) for case, tool in first]
        for done in tqdm(as_completed(running), total=len(running), desc="compute-sanitizer", mininterval=5):
            try:
                row = done.result()
            except ToolError as error:
                tqdm.write(str(error))
            else:
                rows += [row] if row else []
    if len(rows) < len(jobs):
        tqdm.write(f"{len(jobs) - len(rows)} of {len(jobs)} runs failed or had not begun after {SANITIZER_BUDGET} s")
    order = {(case.name, case.state, tool): n for n, (case, tool) in enumerate(jobs)}
    return sorted(rows, key=lambda row: order[row["name"], row["state"], row["tool"]])


def _sanitizer_row(case: SanitizerCase, tool: str, stop: float) -> Row | None:
    begin = time.monotonic()
    if begin > stop:
        return None
    run = nvidia_tools.run_compute_sanitizer(case.launch, tool)
    return {
        "name": case.name,
        "state": case.state,
        "tool": tool,
        "failure": run.failure,
        "seconds": round(time.monotonic() - begin, 1),
        "findings": [
            {
                "message": finding.message,
                "kernel": finding.kernel,
                "line": finding.line,
                "other_line": finding.other_line,
                "block": finding.block,
                "thread": finding.thread,
                "count": finding.count,
            }
            for finding in run.findings
        ],
    }
