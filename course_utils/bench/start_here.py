"""What `bench 00_start_here` measures: the ceilings of the device, its caches, and the chapter's own kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference, timing
from course_utils.bench.timed import KERNELS, Function, build_kernel, columns, require_close
from course_utils.cuda import Kernel
from course_utils.measured import Row

STRIDES = (1, 2, 4, 8, 16, 32)
CHASED = tuple(2**n for n in (13, 14, 15, 16, 17, 20, 22, 23, 24, 27, 28, 29))  # bytes, for the latency
LINE = 128  # bytes that L1 keeps together
RUNS = (1, 2, 4, 8, 16, 32, 64)  # neighbours that go the same way
WORKING_SETS = tuple(n * 2**20 for n in (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 256, 512, 1024))  # bytes


def start_here() -> list[Row]:
    """Every figure of chapter 00: the ceilings of the device, its caches, and the chapter's own kernels."""
    return ceilings() + latencies() + copies() + rereads() + transposes() + matmuls() + divergence()


def ceilings(
    *,
    device: str = "cuda",
    matrix: int = 8192,
    copy_bytes: int = 2**30,
    fma_steps: int = 4096,
    mma_steps: int = 4096,
    exp_steps: int = 1024,
) -> list[Row]:
    """The highest measured rates of this device, and the sizes of its memories, as the driver reports them."""
    source = torch.randn(copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    blocks = 32 * (torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 1)
    sink = torch.empty(blocks * 256, device=device)
    fma = build_kernel(KERNELS / "fma_peak.cu", "fma_peak")
    exp = build_kernel(KERNELS / "exp_peak.cu", "exp_peak")
    mma = build_kernel(KERNELS / "mma_peak.cu", "mma_peak", ("-DBF16=0",))
    products = {dtype: [torch.randn(matrix, matrix, device=device).to(dtype) for _ in range(3)] for dtype in _PRODUCTS}

    functions: dict[str, Function] = {
        "device memory copy": lambda: target.copy_(source),
        "fp32 multiply-add, CUDA cores": lambda: fma((blocks,), (256,), (sink, np.int32(fma_steps), np.float32(0.999))),
        "exponentials, special function units": lambda: exp((blocks,), (256,), (sink, np.int32(exp_steps))),
        "fp16 mma.sync alone, tensor cores": lambda: mma((blocks,), (256,), (sink, np.int32(mma_steps))),
    }
    for dtype, label in _PRODUCTS.items():
        a, b, out = products[dtype]
        functions[label] = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
    with reference.full_float32():
        times = timing.compare(functions)

    work = dict.fromkeys(_PRODUCTS.values(), 2 * matrix**3)
    work["fp32 multiply-add, CUDA cores"] = 16 * fma_steps * sink.numel()
    work["fp16 mma.sync alone, tensor cores"] = 8 * 2 * 16 * 8 * 16 * mma_steps * (sink.numel() // 32)
    rows: list[Row] = []
    for name, time in times.items():
        row: Row = {"name": name} | columns(time)
        if name == "exponentials, special function units":
            row["per_s"] = 8 * exp_steps * sink.numel() / time.median * 1e3
        elif name in work:
            row["tflop_per_s"] = work[name] / time.median / 1e9
        else:
            row["gb_per_s"] = 2 * source.nbytes / time.median / 1e6  # read and written
        rows.append(row)
    return rows + (_sizes() if device == "cuda" else [])


def latencies(*, device: str = "cuda", sizes: tuple[int, ...] = CHASED, steps: int = 2**15) -> list[Row]:
    """pointer_chase.cu over arrays of `sizes` bytes: nanoseconds of a load that begins when the one before is back.

    The walk visits each line of 128 bytes once, in a random order, before it comes back to the first. Caches are cold
    when it begins: of two walks, the longer one's surplus is what counts. What fits L2 is walked through once before
    that, at least `steps` loads; of what does not fit, so many are walked that none comes twice.
    """
    kernel, last = build_kernel("00_start_here/pointer_chase.cu", "pointer_chase"), torch.empty(1, device=device).int()
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 2**20
    functions: dict[str, Function] = {}
    walks: dict[int, int] = {}
    for size in sizes:
        lines = size // LINE
        array = torch.zeros(lines, LINE // 4, dtype=torch.int32, device=device)
        array[:, 0] = _random_cycle(lines).to(device) * (LINE // 4)
        walks[size] = max(steps, lines) if size <= l2_bytes else min(steps, lines // 2)
        for times_over in (1, 2):
            functions[f"{size} bytes, {times_over}"] = lambda array=array, loads=times_over * walks[size]: kernel(
                (1,), (1,), (array, last, np.int32(loads))
            )
    times = timing.compare(functions)
    rows: list[Row] = []
    for size, loads in walks.items():
        short, long = (times[f"{size} bytes, {times_over}"].median for times_over in (1, 2))
        name, surplus = f"pointer_chase.cu, {size} bytes", 1e6 * (long - short)
        rows.append({"name": name, "chased_bytes": size, "median_ms": long, "ns_per_load": surplus / loads})
    return rows


def _random_cycle(n: int) -> Tensor:
    """int32 [n]: where to go from each of n places so as to visit all of them, in a random order."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    following = torch.empty(n, dtype=torch.int32)
    following[order] = order.roll(-1).int()
    return following


def divergence(*, device: str = "cuda", threads: int = 2**22, steps: int = 1024) -> list[Row]:
    """two_ways.cu for each of RUNS: the same multiply-adds, with both ways in a warp below 32."""
    kernel, out = build_kernel("00_start_here/two_ways.cu", "two_ways"), torch.empty(threads, device=device)
    functions: dict[str, Function] = {
        f"two_ways.cu, run {run}": lambda run=run: kernel(
            (costs.ceil_div(threads, 256),), (256,), (out, np.int32(steps), np.int32(run))
        )
        for run in RUNS
    }
    times = timing.compare(functions)
    return [{"name": name, "run": run} | columns(times[name]) for name, run in zip(functions, RUNS, strict=True)]


def copies(*, device: str = "cuda", n: int = 2**26) -> list[Row]:
    """The three copies on `n` floats; `gb_per_s` counts each byte once read and once written."""
    source = torch.randn(n, device=device)
    targets: dict[str, Tensor] = {}
    functions: dict[str, Function] = {}

    def add(name: str, kernel: Kernel, threads: int, *scalars: np.generic) -> None:
        target = targets[name] = torch.empty_like(source)
        grid = (costs.ceil_div(threads, 256),)
        functions[name] = lambda: kernel(grid, (256,), (source, target, *scalars))

    add("copy.cu", build_kernel("00_start_here/copy.cu", "copy"), n, np.int32(n))
    vectors = build_kernel("00_start_here/copy_vectors.cu", "copy_vectors")
    add("copy_vectors.cu", vectors, costs.ceil_div(n, 4), np.int32(n))
    strided = build_kernel("00_start_here/copy_strided.cu", "copy_strided")
    strides = {f"copy_strided.cu, stride {stride}": stride for stride in STRIDES}
    for name, stride in strides.items():
        add(name, strided, stride * costs.ceil_div(n, stride), np.int32(n), np.int32(stride))
    times = timing.compare(functions)
    for name, target in targets.items():
        require_close(name, target, source)
    rows = [_moved(name, time, 2 * source.nbytes) for name, time in times.items()]
    return [row | ({"stride": strides[row["name"]]} if row["name"] in strides else {}) for row in rows]


def rereads(
    *, device: str = "cuda", working_sets: tuple[int, ...] = WORKING_SETS, total_bytes: int = 2**33
) -> list[Row]:
    """reread.cu: read bandwidth against the size of repeatedly read data, `total_bytes` in all."""
    kernel = build_kernel("00_start_here/reread.cu", "reread")
    blocks = 4 * (torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 1)
    data = torch.randn(max(working_sets) // 4, device=device)
    sums = torch.empty(blocks * 512, device=device)
    functions: dict[str, Function] = {}
    for size in working_sets:
        scalars = np.int32(size // 4), np.int32(total_bytes // size)
        functions[f"reread.cu, {size // 2**20} MiB"] = lambda scalars=scalars: kernel(
            (blocks,), (512,), (data, sums, *scalars)
        )
    times = timing.compare(functions)
    return [
        _moved(name, time, total_bytes // size * size) | {"working_set_bytes": size}
        for (name, time), size in zip(times.items(), working_sets, strict=True)
    ]


def transposes(*, device: str = "cuda", side: int = 8192) -> list[Row]:
    """The three transposes of a square fp32 matrix; `gb_per_s` counts each byte once read and once written."""
    source, out = torch.randn(side, side, device=device), torch.empty(side, side, device=device)
    grid, sizes = (costs.ceil_div(side, 32),) * 2, (np.int32(side),) * 2
    functions: dict[str, Function] = {}
    for name in ("transpose_naive", "transpose_tiled", "transpose_padded"):
        kernel = build_kernel(f"00_start_here/{name}.cu", name)
        functions[f"{name}.cu"] = lambda kernel=kernel: kernel(grid, (32, 32), (source, out, *sizes))
        out.fill_(torch.nan)
        functions[f"{name}.cu"]()
        require_close(f"{name}.cu", out, source.T)
    return [_moved(name, time, 2 * source.nbytes) for name, time in timing.compare(functions).items()]


def matmuls(*, device: str = "cuda", side: int = 4096) -> list[Row]:
    """The three matrix products of a square fp32 matrix beside torch's, TF32 off."""
    A, B = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    out, sizes = torch.empty_like(A), (np.int32(side),) * 3
    functions: dict[str, Function] = {}
    with reference.full_float32():
        expected = A @ B
        for name, tile, block in _MATMULS:
            kernel, grid = build_kernel(f"00_start_here/{name}.cu", name), (costs.ceil_div(side, tile),) * 2
            functions[f"{name}.cu"] = lambda kernel=kernel, grid=grid, block=block: kernel(
                grid, block, (A, B, out, *sizes)
            )
            out.fill_(torch.nan)
            functions[f"{name}.cu"]()
            require_close(f"{name}.cu", out / side**0.5, expected / side**0.5)
        functions["torch.mm"] = lambda: torch.mm(A, B, out=out)
        times = timing.compare(functions)
    return [
        {"name": name, "side": side} | columns(time) | {"tflop_per_s": 2 * side**3 / time.median / 1e9}
        for name, time in times.items()
    ]


# Kernel and file, rows and columns of C per block, threads per block.
_MATMULS = (("matmul_naive", 32, (32, 32)), ("matmul_tiled", 32, (32, 32)), ("matmul_registers", 64, (16, 16)))


def _moved(name: str, time: timing.Timing, bytes_moved: int) -> Row:
    return {"name": name} | columns(time) | {"gb_per_s": bytes_moved / time.median / 1e6}


_PRODUCTS = {
    torch.float32: "fp32 matrix product, TF32 off",
    torch.float16: "fp16 matrix product, tensor cores",
    torch.bfloat16: "bf16 matrix product, tensor cores",
}


def highest_clock() -> float:
    """The highest clock rate of the GPU's multiprocessors, in MHz."""
    import cupy

    return cupy.cuda.Device(torch.cuda.current_device()).attributes["ClockRate"] / 1000


def _sizes() -> list[Row]:
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return [
        {"name": "clock, at most", "mhz": highest_clock()},
        {"name": "streaming multiprocessors", "count": found.multi_processor_count},
        {"name": "device memory", "bytes": found.total_memory},
        {"name": "L2 cache", "bytes": found.L2_cache_size},
        {"name": "shared memory per multiprocessor", "bytes": found.shared_memory_per_multiprocessor},
        {"name": "shared memory per block, at most", "bytes": found.shared_memory_per_block_optin},
        {"name": "registers per multiprocessor", "bytes": 4 * found.regs_per_multiprocessor},
    ]
