"""What `bench` measures for each chapter. Peers and own kernels run interleaved in one process; see `timing.compare`.

Each function returns the rows of a table (see `measured`). Times are medians with the interquartile range as spread,
TFLOP/s follow the conventions of `costs`, peak memory is what torch's allocator held beyond the inputs.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_utils import costs, reference, timing
from course_utils.cuda import Kernel, RawModule, read_kernel
from course_utils.measured import Row
from course_utils.operators import flash_attention_minimal, naive_attention
from course_utils.toolchain.source import blank_comments

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BATCH, HEADS, HEAD_DIM = 16, 12, 64  # the shape of the timings in chapters 01 and 02
LENGTHS = (512, 1024, 2048, 4096)
MATRIX = 8192  # side of the matrices that measure the arithmetic ceilings
MAX_ERROR = 1e-3  # a kernel further than this from torch is wrong, and its time means nothing

Function = Callable[[], object]


# ---------------------------------------------------------------------------------------------- chapter 00

STRIDES = (1, 2, 4, 8, 16, 32)
WORKING_SETS = tuple(n * 2**20 for n in (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 256, 512, 1024))  # bytes


def start_here() -> list[Row]:
    """Every figure of chapter 00: the ceilings of the device, its caches, and the chapter's own kernels."""
    return ceilings() + copies() + rereads() + transposes() + matmuls()


def ceilings(
    *, device: str = "cuda", matrix: int = MATRIX, copy_bytes: int = 2**30, fma_steps: int = 4096
) -> list[Row]:
    """The rates nothing on this device exceeds, measured, and the sizes of its memories, as the driver gives them."""
    source = torch.randn(copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    blocks = 32 * (torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 1)
    sink = torch.empty(blocks * 256, device=device)
    fma = _kernel(BENCHMARKS / "fma_peak.cu", "fma_peak")
    products = {dtype: [torch.randn(matrix, matrix, device=device).to(dtype) for _ in range(3)] for dtype in _PRODUCTS}

    functions: dict[str, Function] = {
        "device memory copy": lambda: target.copy_(source),
        "fp32 multiply-add, CUDA cores": lambda: fma((blocks,), (256,), (sink, np.int32(fma_steps), np.float32(0.999))),
    }
    for dtype, label in _PRODUCTS.items():
        a, b, out = products[dtype]
        functions[label] = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
    with reference.full_float32():
        times = timing.compare(functions)

    work = dict.fromkeys(_PRODUCTS.values(), 2 * matrix**3)
    work["fp32 multiply-add, CUDA cores"] = 16 * fma_steps * sink.numel()
    rows: list[Row] = []
    for name, time in times.items():
        row: Row = {"name": name, "median_ms": time.median, "spread_ms": time.spread}
        if name in work:
            row["tflop_per_s"] = work[name] / time.median / 1e9
        else:
            row["gb_per_s"] = 2 * source.nbytes / time.median / 1e6  # read and written
        rows.append(row)
    return rows + (_sizes() if device == "cuda" else [])


def copies(*, device: str = "cuda", n: int = 2**26) -> list[Row]:
    """The three copies on `n` floats; `gb_per_s` counts each byte once read and once written."""
    source = torch.randn(n, device=device)
    targets: dict[str, Tensor] = {}
    functions: dict[str, Function] = {}

    def add(name: str, kernel: Kernel, threads: int, *scalars: np.generic) -> None:
        target = targets[name] = torch.empty_like(source)
        grid = (costs.ceil_div(threads, 256),)
        functions[name] = lambda: kernel(grid, (256,), (source, target, *scalars))

    add("copy.cu", _kernel("00_start_here/copy.cu", "copy"), n, np.int32(n))
    vectors = _kernel("00_start_here/copy_vectors.cu", "copy_vectors")
    add("copy_vectors.cu", vectors, costs.ceil_div(n, 4), np.int32(n))
    strided = _kernel("00_start_here/copy_strided.cu", "copy_strided")
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
    """reread.cu: read bandwidth against the bytes that are read again and again, `total_bytes` in all."""
    kernel = _kernel("00_start_here/reread.cu", "reread")
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
        kernel = _kernel(f"00_start_here/{name}.cu", name)
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
            kernel, grid = _kernel(f"00_start_here/{name}.cu", name), (costs.ceil_div(side, tile),) * 2
            functions[f"{name}.cu"] = lambda kernel=kernel, grid=grid, block=block: kernel(
                grid, block, (A, B, out, *sizes)
            )
            out.fill_(torch.nan)
            functions[f"{name}.cu"]()
            require_close(f"{name}.cu", out / side**0.5, expected / side**0.5)
        functions["torch.mm"] = lambda: torch.mm(A, B, out=out)
        times = timing.compare(functions)
    return [
        {
            "name": name,
            "side": side,
            "median_ms": time.median,
            "spread_ms": time.spread,
            "tflop_per_s": 2 * side**3 / time.median / 1e9,
        }
        for name, time in times.items()
    ]


# Kernel and file, rows and columns of C per block, threads per block.
_MATMULS = (("matmul_naive", 32, (32, 32)), ("matmul_tiled", 32, (32, 32)), ("matmul_registers", 64, (16, 16)))


def _moved(name: str, time: timing.Timing, bytes_moved: int) -> Row:
    return {
        "name": name,
        "median_ms": time.median,
        "spread_ms": time.spread,
        "gb_per_s": bytes_moved / time.median / 1e6,
    }


_PRODUCTS = {
    torch.float32: "fp32 matrix product, TF32 off",
    torch.float16: "fp16 matrix product, tensor cores",
    torch.bfloat16: "bf16 matrix product, tensor cores",
}


def _sizes() -> list[Row]:
    import cupy

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock = cupy.cuda.Device(torch.cuda.current_device()).attributes["ClockRate"]  # kHz
    return [
        {"name": "clock, at most", "mhz": clock / 1000},
        {"name": "streaming multiprocessors", "count": found.multi_processor_count},
        {"name": "device memory", "bytes": found.total_memory},
        {"name": "L2 cache", "bytes": found.L2_cache_size},
        {"name": "shared memory per multiprocessor", "bytes": found.shared_memory_per_multiprocessor},
        {"name": "shared memory per block, at most", "bytes": found.shared_memory_per_block_optin},
        {"name": "registers per multiprocessor", "bytes": 4 * found.regs_per_multiprocessor},
    ]


# ---------------------------------------------------------------------------------------------- chapter 01


def naive_steps(
    *, device: str = "cuda", batch: int = BATCH, heads: int = HEADS, lengths: tuple[int, ...] = LENGTHS[:3]
) -> list[Row]:
    """The three passes of naive attention, ours beside torch's, each alone and all together, fp32; SDPA beside them.

    `traffic_gb_per_s` is the traffic that the pass needs (`costs.naive_traffic`) over the time it took. Lengths whose
    score matrices do not fit the GPU are left out.
    """
    rows: list[Row] = []
    for length in _fitting(lengths, batch, heads, device):
        inputs = _inputs(batch, heads, length, device)
        steps = costs.naive_traffic(batch, heads, length, length, HEAD_DIM, 4)
        traffic = [step.total for step in steps]
        functions = _naive_step_functions(*inputs)
        with reference.full_float32():
            require_close("naive_attention", naive_attention(*inputs), reference.torch_attention(*inputs))
            times = timing.compare(functions)
            for name, step in _STEPS.items():
                row = timed(name, length, times[name])
                if name != "SDPA":  # it stores neither S nor P
                    moved = sum(traffic) if step is None else traffic[step]
                    row["traffic_gb_per_s"] = moved / times[name].median / 1e6
                if step is None:
                    row["peak_mb"] = timing.peak_memory(functions[name]) / 1e6
                rows.append(row)
    return rows


# Name of what is timed -> the step of `costs.naive_traffic` that it does; None for all three.
_STEPS = {
    "scores_uncoalesced.cu": 0,
    "scores_uncoalesced.cu, K transposed": 0,
    "scores.cu": 0,
    "torch Q @ K.mT": 0,
    "softmax.cu": 1,
    "torch softmax": 1,
    "output.cu": 2,
    "torch P @ V": 2,
    "naive_attention": None,
    "naive torch": None,
    "SDPA": None,
}


def _naive_step_functions(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Function]:
    """For each name of `_STEPS` a function that does that step on these inputs."""
    batch, heads, length, head_dim = query.shape
    scale = head_dim**-0.5
    weights = torch.softmax(query @ key.mT * scale, dim=-1)
    scores, out = torch.randn_like(weights), torch.empty_like(query)
    sizes = np.int32(length), np.int32(length), np.int32(head_dim)
    tiles = costs.ceil_div(length, 32)
    column_tiles = costs.ceil_div(head_dim, 32)
    result = torch.empty_like(weights)

    def launch(
        kernel: Kernel, grid: int, block: tuple[int, ...], arguments: tuple[object, ...], out: Tensor
    ) -> Function:
        def function() -> Tensor:
            kernel((grid, heads, batch), block, arguments)
            return out

        return function

    def score(kernel: Kernel, key: Tensor) -> Function:
        arguments = query, key, result, *sizes, np.float32(scale), np.int32(0)
        return launch(kernel, tiles * tiles, (32, 32), arguments, result)

    def kernel(name: str) -> Kernel:
        return _kernel(f"01_attention_basics/{name}.cu", name)

    # The same kernel for K stored as [d, L]: as many loads, at other addresses.
    code = read_kernel("01_attention_basics/scores_uncoalesced.cu")
    code = code.replace("K[(long long)j * d + c]", "K[(long long)c * L_k + j]")
    transposed = RawModule(code=code).get_function("scores_uncoalesced")

    softmax_arguments = scores, result, np.int32(length)
    output_arguments = weights, value, out, *sizes
    return {
        "scores_uncoalesced.cu": score(kernel("scores_uncoalesced"), key),
        "scores_uncoalesced.cu, K transposed": score(transposed, key.mT.contiguous()),
        "scores.cu": score(kernel("scores"), key),
        "torch Q @ K.mT": lambda: torch.matmul(query, key.mT, out=result),
        "softmax.cu": launch(kernel("softmax"), length, (256,), softmax_arguments, result),
        "torch softmax": lambda: torch.softmax(scores, dim=-1),
        "output.cu": launch(kernel("output"), column_tiles * tiles, (32, 32), output_arguments, out),
        "torch P @ V": lambda: torch.matmul(weights, value, out=out),
        "naive_attention": lambda: naive_attention(query, key, value),
        "naive torch": lambda: reference.torch_attention(query, key, value),
        "SDPA": lambda: scaled_dot_product_attention(query, key, value),
    }


# ---------------------------------------------------------------------------------------------- chapter 02

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
    for length in _fitting(lengths, batch, heads, device):
        inputs = _inputs(batch, heads, length, device)
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
                    row = timed(name, length, times[name]) | {"pass": pass_name}
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
    kernel = _kernel("02_flash_attention_minimal/forward_plain.cu", "forward_plain", options)
    shared = 4 * (rows * (head_dim + 1) + 2 * cols * head_dim + rows * (cols + 1))
    grid = costs.ceil_div(length, rows), heads, batch
    scalars = np.int32(length), np.int32(length), np.float32(head_dim**-0.5), np.int32(0)

    def function() -> Tensor:
        out, lse = torch.empty_like(query), query.new_empty(batch, heads, length)
        kernel(grid, (rows,), (query, key, value, out, lse, *scalars), shared_mem=shared)
        return out

    return function


def code_lines(source: str) -> int:
    """Lines of code of a kernel file: neither blank nor comment."""
    return sum(bool(line.strip()) for line in blank_comments(source, strings=False).splitlines())


def _code_lines_of(name: str) -> int | None:
    file = {"forward_plain.cu": "forward_plain.cu", "flash_attention_minimal": "forward.cu"}.get(name)
    return code_lines(read_kernel(f"02_flash_attention_minimal/{file}")) if file else None


# ---------------------------------------------------------------------------------------------- shared


def sdpa(backend: SDPBackend, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False) -> Function:
    """A function without arguments that runs one of torch's own kernels on these inputs."""

    def function() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    return function


def backward_pass(
    forward: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone of `forward(query, key, value)`, which is done once, here: gives dq, dk and dv."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (query, key, value)]
    out = forward(*inputs)
    return lambda: torch.autograd.grad(out, inputs, grad_output, retain_graph=True)


def _inputs(batch: int, heads: int, length: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Random normal fp32 query, key and value; zeros would run faster than real data."""
    return tuple(torch.randn(batch, heads, length, HEAD_DIM, device=device) for _ in range(3))


def _fitting(lengths: tuple[int, ...], batch: int, heads: int, device: str) -> list[int]:
    """The lengths whose score matrices, eight at a time at the most, fit in the memory that is free."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else math.inf
    needed = {length: 8 * costs.score_matrix_bytes(batch, heads, length, length, 4) for length in lengths}
    for length, count in needed.items():
        if count > free:
            print(f"L = {length} is left out: it takes up to {count / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
    return [length for length, count in needed.items() if count <= free]


def timed(name: str, length: int, time: timing.Timing) -> Row:
    """The first columns of a row."""
    return {"name": name, "length": length, "median_ms": time.median, "spread_ms": time.spread}


def require_close(name: str, out: Tensor, expected: Tensor, *, at_most: float = MAX_ERROR) -> None:
    """Raise RuntimeError unless the output is right; `checks` tests more closely."""
    error = (out - expected).abs().max().item()
    if not error <= at_most:
        raise RuntimeError(f"{name} is off by {error:.2e} from plain torch (at most {at_most}): not timed")


def _kernel(file: str | Path, name: str, options: tuple[str, ...] = ()) -> Kernel:
    return RawModule(code=read_kernel(file), options=options).get_function(name)
