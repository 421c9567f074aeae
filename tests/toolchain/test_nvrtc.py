"""The compile gate: every kernel of the course, for every architecture and option set of its header, without a GPU."""

import itertools
import os
import re
import subprocess
import sys

import pytest

from course_utils.emulator.compiler import find_compiler
from course_utils.launches.broken import BROKEN
from course_utils.toolchain import nvrtc
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.source import KERNELS, KernelSource, compile_options, kernel_names, read_kernel

CHAPTERS = {"00_start_here", "01_attention_basics", "02_flash_attention_minimal"}
FILES = kernel_names()
LAUNCHED = {launch.source: launch.options for launch in (broken.launch() for broken in BROKEN.values())}


def option_sets(file):
    """Those of the header; of a right kernel broken by a diff only the set that it is launched with."""
    source = read_kernel(file)
    return [LAUNCHED[file]] if source.path.suffix == ".diff" else compile_options(source)


EXHAUSTIVE = pytest.mark.exhaustive(
    "make test compiles each kernel for the lowest architecture with the first and the last of its option sets, "
    "between which nearly every -D changes"
)


def cases(file):
    architectures, options = nvrtc.architectures(read_kernel(file)), option_sets(file)
    for arch, chosen in itertools.product(architectures, options):
        in_gate = arch == architectures[0] and chosen in (options[0], options[-1])
        marks = [] if in_gate else [EXHAUSTIVE]
        yield pytest.param(file, arch, chosen, id=" ".join((file, arch, *chosen)), marks=marks)


CASES = [case for file in FILES for case in cases(file)]


def test_the_gate_covers_each_kernel_of_each_chapter():
    assert {case.values[0] for case in CASES if not case.marks} == set(FILES)
    assert {file.split("/")[0] for file in FILES} >= CHAPTERS


@pytest.mark.parametrize("file, arch, options", CASES)
def test_kernel_compiles(file, arch, options):
    compiled = nvrtc.compile_kernel(read_kernel(file), arch, options)
    assert compiled.resources, "no __global__ function in this file"
    assert len(compiled.cubin) > 0


@pytest.mark.parametrize(
    ("file", "wrong", "says"),
    [
        ("02_flash_attention_minimal/forward", "-DTX=12 -DD=96 -DB_C=48", "TX must be 4, 8 or 16 and divide D/4"),
        ("02_flash_attention_minimal/backward", "-DD=40", "D must be a multiple of 4 * TX"),
        ("03_flash_attention_v2/forward", "-DB_R=48", "B_R, or BLOCK, must be a multiple of 16 * WARPS"),
        ("03_flash_attention_v2/forward", "-DD=96", "D must be 64, 128 or 256"),
        ("03_flash_attention_v2/forward", "-DWARPS=3 -DB_R=96", "WARPS must be a power of two"),
        ("03_flash_attention_v2/backward", "-DKEYS=40", "KEYS must be a multiple of 16"),
        ("03_flash_attention_v2/step1_cuda_cores", "-DB_R=48", "B_R * D must be 2048 * WARPS"),
        ("03_flash_attention_v2/step2_tensor_cores", "-DB_C=144", "B_C <= D must hold"),
        ("03_flash_attention_v2/step3_swizzle", "-DB_R=48", "16 * WARPS must divide B_R, and 16 B_C"),
        ("03_flash_attention_v2/step5_registers", "-DB_C=72", "16 * WARPS must divide B_R, and 16 B_C"),
        ("04_sparse_patterns/block_sparse", "-DBLOCK=96", "BLOCK must be 64 or 128"),
        ("04_sparse_patterns/block_sparse_backward", "-DBLOCK=96", "BLOCK must be a multiple of B_C"),
        ("05_deepseek_sparse/lightning_indexer", "-DWARPS=3", "WARPS must be 4 or 8"),
        ("05_deepseek_sparse/radix_topk", "-DTHREADS=96", "multiple of 32 that divides 2048"),
        ("05_deepseek_sparse/mla_reprojected", "-DTHREADS=96", "at least D_V"),
        ("05_deepseek_sparse/sparse_mla", "-DWARPS=6", "16 * WARPS must be a multiple of B_R"),
        ("05_deepseek_sparse/sparse_mla", "-DB_C=48", "multiples of 4 * WARPS"),
        ("06_serving/packed_heads", "-DSTAGES=1", "STAGES must be at least 2"),
        ("06_serving/paged_cache", "-DB_C=64", "B_C must be at most 32"),
        ("06_serving/e4m3_cache", "-DB_C=16", "B_C must be a multiple of 32"),
        ("06_serving/persistent_step", "-DWARPS=6", "WARPS must be a multiple of 4"),
    ],
)
def test_a_tile_that_a_kernel_cannot_have_is_an_error_that_names_the_option(file, wrong, says):
    code = read_kernel(f"{file}.cu")
    changed = dict(option.split("=") for option in wrong.split())
    options = (
        f"{name}={changed.pop(name, value)}" for name, _, value in (o.partition("=") for o in option_sets(code.name)[0])
    )
    with pytest.raises(CompileError, match=re.escape(says)):
        nvrtc.compile_kernel(code, options=tuple(options))
    assert not changed, f"{file}.cu has no such option"


def test_what_a_kernel_asserts_reads_well_wherever_it_is_printed():
    """NVRTC prints a character beyond ASCII as its bytes."""
    for path in KERNELS.rglob("*.cu*"):
        for sentence in re.findall(r'static_assert\([^;]*"(.*)"\);', path.read_text(encoding="utf-8")):
            assert sentence.isascii(), path


SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    __shared__ float tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] += a * tile[threadIdx.x ^ 1];
}
"""


@pytest.mark.parametrize("arch", [f"sm_{a}" for a in nvrtc.ARCHITECTURES] + ["sm_90a"])
def test_resources_of_a_kernel_are_reported(arch):
    found = nvrtc.compile_kernel(SAXPY, arch).resources["saxpy"]
    assert 4 <= found.registers <= 64
    assert found.static_shared == 256 * 4
    assert found.spill_stores == found.spill_loads == found.stack_frame == 0
    assert found.barriers == 1


def test_what_was_compiled_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path)
    first = nvrtc.compile_kernel(SAXPY)
    (kept,) = tmp_path.iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(nvrtc, "_compile", None)
        assert nvrtc.compile_kernel(SAXPY) == first
    kept.write_text("{", encoding="utf-8")  # not whole
    assert nvrtc.compile_kernel(SAXPY).resources == first.resources
    nvrtc.compile_kernel(SAXPY, options=("-DD=64",))
    nvrtc.compile_kernel(SAXPY.replace("0.0f", "1.0f"))
    assert len(list(tmp_path.iterdir())) == 3


def test_another_clone_of_the_course_finds_what_was_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path)
    for clone in ("one", "other"):
        headers = tmp_path / clone / "include"
        headers.mkdir(parents=True)
        (headers / "size.cuh").write_text("constexpr int SIZE = 256;", encoding="utf-8")
        monkeypatch.setattr(nvrtc, "INCLUDE", headers)
        code = '#include "size.cuh"\n' + SAXPY.replace("256", "SIZE")
        nvrtc.compile_kernel(KernelSource(code, tmp_path / clone / "a.cu", "a.cu"))
    assert len(list(tmp_path.glob("nvrtc-*"))) == 1


@pytest.mark.parametrize("place", ["beside the kernel", "the course's headers", "-I", "--include-path="])
def test_a_changed_header_of_a_header_is_compiled_again(place, tmp_path, monkeypatch):
    cache, headers = tmp_path / "cache", tmp_path / "headers"
    cache.mkdir()
    headers.mkdir()
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: cache)
    if place == "the course's headers":
        monkeypatch.setattr(nvrtc, "INCLUDE", headers)
    (headers / "outer.cuh").write_text('#include "inner.cuh"\n', encoding="utf-8")
    code = KernelSource('#include "outer.cuh"\n' + SAXPY.replace("256", "SIZE"), tmp_path / "a.cu", "a.cu")
    if place == "beside the kernel":
        code.path = headers / "a.cu"
    options = (f"{place}{headers}",) if place.startswith("-") else ()
    for size in (64, 128, 64):
        (headers / "inner.cuh").write_text(f"constexpr int SIZE = {size};", encoding="utf-8")
        assert nvrtc.compile_kernel(code, options=options).resources["saxpy"].static_shared == 4 * size
    assert len(list(cache.iterdir())) == 2


def test_two_kernels_in_one_file_keep_their_own_resources():
    code = SAXPY + 'extern "C" __global__ void nothing() {}'
    found = nvrtc.compile_kernel(code).resources
    assert found["saxpy"].static_shared == 1024
    assert found["nothing"].static_shared == 0


def test_spills_are_reported():
    code = """
    extern "C" __global__ void __launch_bounds__(1024, 2) many_registers(float* x) {
        float a[128];
        for (int i = 0; i < 128; i++) a[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 128; i++) x[i * 1024 + threadIdx.x] = a[127 - i] * a[i];
    }
    """
    found = nvrtc.compile_kernel(code).resources["many_registers"]
    assert found.registers <= 32
    assert found.spill_stores > 0
    assert found.spill_loads > 0


def test_a_template_is_found_by_its_expression():
    code = "template <int D> __global__ void fill(float* x) { x[threadIdx.x] = D; }"
    assert set(nvrtc.compile_kernel(code, name_expressions=("fill<64>",)).resources) == {"fill<64>"}


def test_cuda_headers_and_cuda_std_are_found():
    code = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    #include <mma.h>
    #include <cooperative_groups.h>
    #include <cuda/std/limits>
    extern "C" __global__ void f(__half* x, __nv_bfloat16* y) { y[0] = __float2bfloat16(__half2float(x[0])); }
    """
    assert "f" in nvrtc.compile_kernel(code, "sm_80").resources


def test_a_mistake_is_an_error_that_names_file_and_line(tmp_path):
    text = 'extern "C" __global__ void f(float* x) {\n    x[0] = undefined_name;\n}\n'
    with pytest.raises(CompileError, match=r"broken\.cu") as raised:
        nvrtc.compile_kernel(KernelSource(text, tmp_path / "broken.cu", "broken.cu"))
    assert "broken.cu(2)" in raised.value.log
    assert "undefined_name" in raised.value.log


def test_an_instruction_the_architecture_lacks_is_an_error():
    code = 'extern "C" __global__ void f() { asm volatile("cp.async.wait_all;"); }'
    nvrtc.compile_kernel(code, "sm_80")
    with pytest.raises(CompileError, match="sm_75"):
        nvrtc.compile_kernel(code, "sm_75")


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="arch takes"):
        nvrtc.compile_kernel(SAXPY, "90")
    with pytest.raises(TypeError, match="options"):
        nvrtc.compile_kernel(SAXPY, options="-DD=64")


def test_architectures_follow_the_header():
    every = [f"sm_{a}" for a in nvrtc.ARCHITECTURES]
    assert nvrtc.architectures("// a.cu\n") == every
    assert nvrtc.architectures("// a.cu\n// arch: sm_80\n") == every[1:]
    assert nvrtc.architectures("// a.cu\n// arch: sm_90a only\n") == ["sm_90a"]


def resources(registers=32, static_shared=0):
    return nvrtc.Resources(registers, static_shared, 0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    "registers, shared, threads, arch, blocks, limited_by",
    [
        (32, 0, 256, "sm_90", 8, "warps and registers"),
        (32, 0, 32, "sm_90", 32, "blocks"),
        (32, 0, 32, "sm_75", 16, "blocks"),
        (128, 0, 128, "sm_90", 4, "registers"),
        (255, 0, 256, "sm_90", 1, "registers"),
        (32, 100 << 10, 128, "sm_90", 2, "shared memory"),  # (100 + 1) KB each of 228 KB
        (32, 48 << 10, 128, "sm_80", 3, "shared memory"),  # (48 + 1) KB each of 164 KB
        (32, 32 << 10, 128, "sm_75", 2, "shared memory"),  # Turing reserves nothing
        (128, 56 << 10, 128, "sm_90", 4, "registers and shared memory"),  # no single one of them is to blame
    ],
)
def test_occupancy(registers, shared, threads, arch, blocks, limited_by):
    found = nvrtc.occupancy(resources(registers), threads, shared, arch)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.fraction == found.warps / found.max_warps <= 1


def test_occupancy_of_an_impossible_launch_is_zero():
    assert nvrtc.occupancy(resources(), 128, 100 << 10, "sm_86").blocks == 0
    assert nvrtc.occupancy(resources(registers=128), 1024).blocks == 0


def test_occupancy_names_bad_arguments():
    with pytest.raises(ValueError, match="block_threads"):
        nvrtc.occupancy(resources(), 2048)
    with pytest.raises(ValueError, match="arch"):
        nvrtc.occupancy(resources(), 128, arch="sm_60")
    with pytest.raises(ValueError, match="dynamic_shared"):
        nvrtc.occupancy(resources(), 128, -1)


def test_the_courses_nvrtc_compiles_where_an_older_one_is_loaded(tmp_path):
    """As beside a PyTorch for CUDA 12."""
    older = tmp_path / "libnvrtc.so.12"
    compiler = [
        *find_compiler().command,
        "-shared",
        "-x",
        "c",
        os.devnull,
        "-Wl,-soname,libnvrtc.so.12",
        "-o",
        str(older),
    ]
    subprocess.run(compiler, check=True, capture_output=True)
    program = "import ctypes; ctypes.CDLL({!r}); from course_utils.toolchain import nvrtc; nvrtc.compile_kernel({!r})"
    command = [sys.executable, "-c", program.format(str(older), "#include <cuda_fp16.h>\n__global__ void nothing() {}")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
