"""Chapter 00 on memory: the GPU's levels and speeds, floors, coalescing, tiles, banks and matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from course_utils import checks, costs, measured, plots, show
from course_utils.cuda import RawModule, read_kernel
from course_utils.measured import Measurement, Row
from course_utils.nvidia import bottlenecks
from course_utils.toolchain import nvrtc

CHAPTER = "00_start_here"
SIDE = 4096  # of the matrix product
WARP, SECTOR = 32, 32  # threads; bytes
TRANSPOSES = ("transpose_naive", "transpose_tiled", "transpose_padded")
# Each kernel's side of the tile of C that a block computes, of the piece that a thread computes, and its block.
MATMULS = {
    "matmul_naive": (32, 1, (32, 32)),
    "matmul_tiled": (32, 1, (32, 32)),
    "matmul_registers": (64, 4, (16, 16)),
}
Work = dict[str, tuple[int, int]]  # name: (FLOPs, bytes at least)


# ---- section 4: where the numbers live


@dataclass(frozen=True)
class Gpu:
    """The measured figures of a GPU, this one or the recorded one. Rates are per second."""

    figures: Measurement

    def row(self, name: str) -> Row:
        """The row of this name."""
        (only,) = self.figures.select(name=name)
        return only

    @property
    def caption(self) -> str:
        """Device and date."""
        return measured.caption(self.figures)

    @property
    def multiprocessors(self) -> int:
        return self.row("streaming multiprocessors")["count"]

    @property
    def clock(self) -> float:
        """The highest clock rate, in Hz."""
        return self.row("clock, at most")["mhz"] * 1e6

    @property
    def hbm_rate(self) -> float:
        """Bytes of HBM that a copy moves per second."""
        return self.row("device memory copy")["gb_per_s"] * 1e9

    @property
    def fp32_peak(self) -> float:
        """FLOP/s of the CUDA cores in fp32."""
        return self.row("fp32 multiply-add, CUDA cores")["tflop_per_s"] * 1e12

    @property
    def latency(self) -> float:
        """Seconds of a load from HBM."""
        return self.having("chased_bytes")[-1]["ns_per_load"] * 1e-9

    def having(self, column: str) -> list[Row]:
        """The rows that have this column."""
        return [row for row in self.figures.rows if column in row]

    def ms(self, kernel: str) -> float:
        """Milliseconds of a kernel of the chapter."""
        return self.row(kernel)["median_ms"]


def measured_gpu() -> Gpu:
    """Measures this GPU, which takes some seconds; without a GPU, the recorded one."""

    def measure() -> list[Row]:
        from course_utils.bench.start_here import start_here

        return start_here()

    return Gpu(measured.live_or_recorded(CHAPTER, measure))


def memory_levels(gpu: Gpu) -> None:
    """Draws sizes and speeds of registers, shared memory, L2 and HBM, over all multiprocessors."""
    shared_rate = gpu.multiprocessors * 32 * 4 * gpu.clock  # 32 words of 4 bytes a clock
    register_rate = gpu.fp32_peak / 2 * 4 * 4  # one multiply-add is 2 FLOP and moves 4 words of 4 bytes
    l2_rate = max(row["gb_per_s"] for row in gpu.having("working_set_bytes")) * 1e9
    count = gpu.multiprocessors
    levels = [
        ("registers", count * gpu.row("registers per multiprocessor")["bytes"], register_rate),
        ("shared memory", count * gpu.row("shared memory per multiprocessor")["bytes"], shared_rate),
        ("L2 cache", gpu.row("L2 cache")["bytes"], l2_rate),
        ("HBM", gpu.row("device memory")["bytes"], gpu.hbm_rate),
    ]
    plots.memory_levels(levels)
    plt.suptitle(f"{gpu.caption}; {count} multiprocessors together", fontsize="small")
    plt.show()


def sizes_for_a_block(gpu: Gpu) -> None:
    """Shows how much of each level one block can have."""
    for name in (
        "shared memory per multiprocessor",
        "shared memory per block, at most",
        "registers per multiprocessor",
    ):
        print(f"{name:34s} {gpu.row(name)['bytes'] / 1024:4.0f} KiB")
    print(gpu.caption)


def reread_curve(gpu: Gpu) -> None:
    """Draws the read bandwidth against the size of data that are read repeatedly."""
    sweep = {row["working_set_bytes"] / 2**20: row["gb_per_s"] / 1e3 for row in gpu.having("working_set_bytes")}
    ax = plots.against_size(sweep, {"size of the L2 cache": gpu.row("L2 cache")["bytes"] / 2**20})
    ax.set(xlabel="data that are read again and again, MiB", ylabel="read bandwidth, TB/s", title=gpu.caption)
    plt.show()


# ---- section 5: two floors and a roof


def counted_work() -> Work:
    """FLOPs and least bytes of four operations in fp32. Prints them with their ratio."""
    numbers = 2**26
    shape = 16, 12, 2048, 2048, 64  # batch, heads, queries, keys, numbers per head
    work = {
        "copy": (0, 2 * 4 * numbers),
        "vector add": (numbers, 3 * 4 * numbers),
        "matrix product": (2 * SIDE**3, 3 * 4 * SIDE**2),
        "attention": (costs.attention_flops(*shape), costs.least_bytes(*shape, 4)),
    }
    for name, (flops, moved) in work.items():
        print(f"{name:15s} {flops / 1e9:7.2f} GFLOP  {moved / 1e6:6.1f} MB  {flops / moved:7.3f} FLOP per byte")
    return work


def intensities(work: Work) -> None:
    """Draws FLOP per byte on a logarithmic axis; a copy has none."""
    per_byte = {name: flops / moved for name, (flops, moved) in work.items() if flops}
    plots.bars(list(per_byte), {"FLOP per byte, logarithmic": list(per_byte.values())}, log=True)
    plt.show()


def over_floor(gpu: Gpu, work: Work, name: str, kernel: str) -> float:
    """How many times its floor a kernel took. Prints both times."""
    flops, moved = work[name]
    floor = costs.time_floor(flops, moved, gpu.fp32_peak, gpu.hbm_rate)
    bound = "memory" if moved / gpu.hbm_rate > flops / gpu.fp32_peak else "compute"
    print(f"{name}: floor {floor * 1e3:.3f} ms ({bound} bound); {kernel} took {gpu.ms(kernel):.3f} ms; {gpu.caption}")
    return gpu.ms(kernel) / 1e3 / floor


def latencies(gpu: Gpu) -> float:
    """Draws the time of a load against the size of the array. Returns the nanoseconds of a load from HBM."""
    chased = {row["chased_bytes"] / 2**10: row["ns_per_load"] for row in gpu.having("chased_bytes")}
    sizes = {"L1": gpu.row("shared memory per multiprocessor")["bytes"], "L2": gpu.row("L2 cache")["bytes"]}
    ax = plots.against_size(chased, {name: size / 2**10 for name, size in sizes.items()})
    ax.set(xlabel="array, KiB", ylabel="time of a load, ns", title=gpu.caption)
    plt.show()
    nearest = gpu.having("chased_bytes")[0]["ns_per_load"]
    print(f"from L1 {nearest:.0f} ns, from HBM {gpu.latency * 1e9:.0f} ns,", end=" ")
    print(f"or {gpu.latency * gpu.clock:.0f} clocks at the highest clock; {gpu.caption}")
    return gpu.latency * 1e9


def check_copy_vectors(device: torch.device) -> None:
    """Checks copy_vectors.cu on a size that fills no block, and prints how much both copies can have in flight."""
    n, threads = 1000, 256
    numbers = torch.arange(n, device=device).float()
    out = torch.full_like(numbers, torch.nan)
    copy = RawModule(code=read_kernel(f"{CHAPTER}/copy_vectors.cu")).get_function("copy_vectors")
    copy((costs.ceil_div(n, 4 * threads),), (threads,), (numbers, out, np.int32(n)))
    print("still a copy:", torch.equal(out, numbers))
    most_threads = WARP * nvrtc.SM_LIMITS[90].warps  # that an sm_90 multiprocessor, such as an H200's, holds
    for name, word in (("copy.cu", 4), ("copy_vectors.cu", 16)):
        print(f"{name:15s} {most_threads} threads ask for {most_threads * word // 1024:2d} KiB at a time")


def bytes_under_way(gpu: Gpu) -> None:
    """Shows Little's law for the loads of a copy."""
    loads = gpu.hbm_rate / 2 * gpu.latency  # half of what a copy moves is read
    print(f"Little's law: {loads / 2**10:,.0f} KiB of loads under way fill HBM,", end=" ")
    print(f"{loads / gpu.multiprocessors / 2**10:.1f} KiB on each multiprocessor; {gpu.caption}")


def copies(gpu: Gpu, work: Work) -> float:
    """Draws both copies. Returns how many times its floor copy_vectors.cu takes."""
    floor = costs.time_floor(*work["copy"], gpu.fp32_peak, gpu.hbm_rate) * 1e3
    names = "copy.cu", "copy_vectors.cu"
    plots.bars(names, {f"ms; {gpu.caption}": [gpu.ms(name) for name in names]}, marks={"floor": floor})
    plt.show()
    rows = [gpu.row(name) for name in names]
    show.table(
        [
            {"kernel": row["name"], "ms": row["median_ms"], "GB/s": row["gb_per_s"]}
            | {"floors": f"{row['median_ms'] / floor:.2f}×"}
            for row in rows
        ],
        gpu.caption,
        folded=True,
    )
    return rows[-1]["median_ms"] / floor


def roofline(gpu: Gpu, work: Work) -> None:
    """Draws two matrix-product kernels under the roofline of this GPU."""
    flops, moved = work["matrix product"]
    names = {"torch.mm, fp32": "torch.mm", "matmul_naive.cu": "matmul_naive.cu"}
    points = {label: (flops / moved, flops / (gpu.ms(name) / 1e3)) for label, name in names.items()}
    fp16_peak = gpu.row("fp16 matrix product, tensor cores")["tflop_per_s"] * 1e12
    peaks = {"fp32 multiply-add": gpu.fp32_peak, "fp16 matrix product, tensor cores": fp16_peak}
    plots.roofline(peaks, gpu.hbm_rate, points).set(title=gpu.caption, xlabel="FLOP per byte, of the least bytes")
    plt.show()
    for name, peak in peaks.items():
        print(f"{name}: memory bound below {costs.ridge_point(peak, gpu.hbm_rate):.1f} FLOP per byte")


# ---- section 6: coalescing


def strided(gpu: Gpu) -> float:
    """Draws the strided copies beside the number of sectors. Returns how many times as long as at stride 1 the widest
    stride takes."""
    rows = gpu.having("stride")
    strides = [row["stride"] for row in rows]
    sectors = {stride: len({lane * stride * 4 // SECTOR for lane in range(WARP)}) for stride in strides}
    predicted = {stride: sectors[stride] / sectors[1] for stride in strides}
    slower = {row["stride"]: row["median_ms"] / rows[0]["median_ms"] for row in rows}
    plots.two_lines({"sectors predict": predicted, "measured": slower}, "stride", "times as long as at stride 1")
    plt.title(gpu.caption)
    plt.show()
    table = [{"stride": row["stride"], "ms": row["median_ms"]} for row in rows]
    for line in table:
        line["predicted"] = f"{predicted[line['stride']]:.0f}×"
        line["measured"] = f"{slower[line['stride']]:.1f}×"
    show.table(table, f"copy_strided.cu, 2²⁶ floats; {gpu.caption}", folded=True)
    return list(slower.values())[-1]


def check_strided(device: torch.device) -> None:
    """Checks copy_strided.cu, also with a ragged last row."""
    n, threads = 1000, 256
    numbers = torch.arange(n, device=device).float()
    copy = RawModule(code=read_kernel(f"{CHAPTER}/copy_strided.cu")).get_function("copy_strided")
    for stride in (1, 8, 7):
        out = torch.full_like(numbers, torch.nan)
        grid = (costs.ceil_div(stride * costs.ceil_div(n, stride), threads),)
        copy(grid, (threads,), (numbers, out, np.int32(n), np.int32(stride)))
        print(f"stride {stride}: equal = {torch.equal(out, numbers)}")


def divergence(gpu: Gpu) -> float:
    """Draws the time against the run of equal neighbours. Returns how many times as long two branches within each warp
    take."""
    rows = gpu.having("run")
    ways = {row["run"]: len({lane // row["run"] % 2 for lane in range(WARP)}) for row in rows}
    labels = [f"run {row['run']}: {ways[row['run']]} in a warp" for row in rows]
    plots.bars(labels, {f"two_ways.cu, ms; {gpu.caption}": [row["median_ms"] for row in rows]})
    plt.show()
    return rows[0]["median_ms"] / rows[-1]["median_ms"]


# ---- section 7: a tile in shared memory


def transposed(name: str, matrix: Tensor) -> Tensor:
    """The transpose of an fp32 matrix by one of `TRANSPOSES`."""
    rows, cols = matrix.shape
    out = torch.full((cols, rows), torch.nan, device=matrix.device)
    kernel = RawModule(code=read_kernel(f"{CHAPTER}/{name}.cu")).get_function(name)
    kernel(
        (costs.ceil_div(cols, 32), costs.ceil_div(rows, 32)), (32, 32), (matrix, out, np.int32(rows), np.int32(cols))
    )
    return out


def check_transposes(device: torch.device) -> None:
    """Checks the three transposes on a matrix whose sides are no multiples of 32."""
    matrix = torch.arange(70.0 * 45, device=device).reshape(70, 45)
    for name in TRANSPOSES:
        print(f"{name}: {torch.equal(transposed(name, matrix), matrix.T)}")


def transposes(gpu: Gpu) -> float:
    """Draws the three transposes. Returns how many times as long as a copy the naive one takes."""
    copy = gpu.ms("copy.cu")  # 2^26 floats, as many as 8192 × 8192
    times = {name: gpu.ms(name) for name in ("copy.cu", *(f"{name}.cu" for name in TRANSPOSES))}
    title = f"8192 × 8192 floats, ms; {gpu.caption}"
    plots.bars(list(times), {title: list(times.values())}, marks={"a copy": copy})
    plt.show()
    rows = [{"kernel": name, "ms": ms, "of the copy": f"{ms / copy:.2f}×"} for name, ms in times.items()]
    show.table(rows, f"8192 × 8192 floats; {gpu.caption}", folded=True)
    return times["transpose_naive.cu"] / copy


# ---- section 9: the matrix product


def matmul(name: str, A: Tensor, B: Tensor, code: str | None = None) -> Tensor:
    """A @ B in fp32 by one of `MATMULS`, or by `code` in its place."""
    tile, _, block = MATMULS[name]
    (M, K), N = A.shape, B.shape[1]
    C = torch.full((M, N), torch.nan, device=A.device)
    kernel = RawModule(code=code or read_kernel(f"{CHAPTER}/{name}.cu")).get_function(name)
    grid = costs.ceil_div(N, tile), costs.ceil_div(M, tile)
    kernel(grid, block, (A, B, C, np.int32(M), np.int32(N), np.int32(K)))
    return C


def ragged_factors(device: torch.device) -> tuple[Tensor, Tensor]:
    """A [70, 50] and B [50, 65], whose sides are no multiples of a tile."""
    generator = torch.Generator().manual_seed(0)
    A, B = (torch.randn(shape, generator=generator).to(device) for shape in ((70, 50), (50, 65)))
    return A, B


def is_right(product: Tensor, A: Tensor, B: Tensor) -> bool:
    """Whether `product` is as near to A @ B as PyTorch's own."""
    return checks.error_report(product, A.double() @ B.double(), A @ B).passed


def check_matmuls(A: Tensor, B: Tensor) -> None:
    """Checks the three matrix-product kernels."""
    for name in MATMULS:
        print(f"{name}: correct = {is_right(matmul(name, A, B), A, B)}")


def requested_bytes() -> None:
    """Shows what each kernel's source requests of global memory, and what it reads per multiply-add."""
    for name, (_, piece, _) in MATMULS.items():
        words = 2 * piece / piece**2  # of A and of B, per multiply-add of a thread
        asked = f"global bytes requested {_requested(name) / 1e9:5.1f} GB"
        print(f"{name + '.cu':20s} {asked}, words read per multiply-add {words:.1f}")


def requested_bars() -> None:
    """Draws the bytes of `requested_bytes` beside the bytes of the three matrices, on a logarithmic axis."""
    requested = {f"{name}.cu": _requested(name) / 1e9 for name in MATMULS}
    least = 3 * 4 * SIDE**2 / 1e9
    panels = {"GB requested, logarithmic": list(requested.values())}
    plots.bars(list(requested), panels, log=True, marks={"the matrices": least})
    plt.show()


def _requested(name: str) -> int:
    """Bytes that a kernel requests of global memory: tiles load each element of A and B N / tile times, the naive
    kernel N times."""
    return 2 * 4 * SIDE**3 // (1 if name == "matmul_naive" else MATMULS[name][0])


def matmuls(gpu: Gpu) -> float:
    """Draws the speeds of all kernels below the peak. Returns how many times as long as with register tiles the naive
    kernel takes."""
    names = [*(f"{name}.cu" for name in MATMULS), "torch.mm"]
    speeds = {name: gpu.row(name)["tflop_per_s"] for name in names}
    title = f"side {SIDE}, fp32, TF32 off; {gpu.caption}"
    panels = {f"TFLOP/s, {title}": list(speeds.values())}
    plots.bars(names, panels, marks={"fp32 peak": gpu.fp32_peak / 1e12})
    plt.show()
    share = {name: f"{100 * speed * 1e12 / gpu.fp32_peak:.0f} %" for name, speed in speeds.items()}
    rows = [
        {"kernel": name, "ms": gpu.ms(name), "TFLOP/s": speeds[name], "of the fp32 peak": share[name]} for name in names
    ]
    show.table(rows, title, folded=True)
    loaded = 5 * SIDE**3 / 32  # sectors, for each multiply-add of a warp: one for the word of A, four for the row of B
    print(f"the naive kernel's sectors would take {SECTOR * loaded / gpu.hbm_rate * 1e3:.0f} ms from HBM")
    return gpu.ms("matmul_naive.cu") / gpu.ms("matmul_registers.cu")


def what_holds_them_back() -> None:
    """Shows what ncu found in the three kernels: what the data path allows, what they reach, and what their warps wait
    for."""
    by_ncu = measured.load("bottlenecks")  # recorded: ncu counts on a GPU only
    found = [by_ncu.select(name=name)[0] for name in MATMULS]
    lines = []
    for line in found:
        bound = bottlenecks.allowed_tflops(line)
        reached = measured.load(CHAPTER).select(name=f"{line['name']}.cu")[0]["tflop_per_s"]
        lines.append({"kernel": line["name"], "wavefronts per FMA": bottlenecks.wavefronts_per_fma(line)})
        lines[-1] |= {"allow, TFLOP/s": bound, "reached": reached, "of that": f"{reached / bound:.0%}"}
    caption = f"one wavefront a clock at the highest clock; {measured.caption(by_ncu)}"
    groups = {
        line["kernel"]: {"the wavefronts allow": line["allow, TFLOP/s"], "reached": line["reached"]} for line in lines
    }
    plots.grouped_bars(groups, "TFLOP/s", colours=(plots.SKY, plots.BLUE)).set_title(caption, fontsize=9)
    plt.show()
    show.table(lines, caption, folded=True)
    ncu = f"side {SIDE}, ncu {by_ncu.versions['ncu']}; {measured.caption(by_ncu)}"
    rows = bottlenecks.table(found)
    for row, line in zip(rows, found, strict=True):  # waits are counted for each issued instruction
        row["of them ready, not chosen"] = line["waits"]["not_selected"] * line["units"]["issue slots"] / 100
    show.table(rows, ncu, folded=True)
