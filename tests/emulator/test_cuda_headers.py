"""CUDA's own headers: what NVRTC takes of them, the emulator takes."""

import re

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator.cuda_headers import AS_NVIDIA_WROTE_IT, BUILT_IN, cuda_folder
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.nvrtc import compile_kernel

OWN = cuda_folder()
ELSEWHERE = {  # taken by NVRTC alone, and not by the emulator: why
    r"cooperative_groups/details/.*": "the inside of cooperative_groups.h",
    r"crt/mma\.h": "the inside of mma.h",
    r"cuda_awbarrier_helpers\.h|cuda_pipeline_helpers\.h": "the inside of cuda_awbarrier.h and cuda_pipeline.h",
}


def _text(headers):
    return (
        "".join(f"#include <{header}>\n" for header in headers)
        + """
extern "C" __global__ void k(float* out) {
    out[0] = CUDART_INF_F;
    out[1] = cuCabsf(cuCmulf(make_cuFloatComplex(3, 4), make_cuFloatComplex(0, 1)));
    out[2] = cudaSuccess + (int)cudaMemcpyDeviceToHost + (int)CUDA_R_32F;
}
"""
    )


def test_the_headers_of_nearly_every_file_say_nothing_new_or_are_nvidias_own():
    out = torch.zeros(3)
    RawModule(code=_text(sorted(BUILT_IN | AS_NVIDIA_WROTE_IT))).get_function("k")((1,), (1,), (out,))
    assert out.tolist() == [float("inf"), 5, 2]


def test_types_of_the_host_are_known_without_a_header():
    code = """struct Arguments { cudaStream_t stream; cudaTextureObject_t texture; float value; };
    extern "C" __global__ void k(float* out, Arguments given) { out[0] = given.value + cudaErrorInvalidValue; }"""
    RawModule(code=code).compile()


def _taken(header, taken):
    try:
        taken(f'#include <{header}>\nextern "C" __global__ void k() {{}}\n')
    except CompileError:
        return False
    return True


@pytest.mark.exhaustive("150 compilations; test_the_headers_of_nearly_every_file… has those that most files name")
def test_each_header_that_nvrtc_takes_alone_the_emulator_takes():
    folders = (".", "crt", "cooperative_groups", "cooperative_groups/details")
    names = sorted(
        path.relative_to(OWN).as_posix() for folder in folders for path in (OWN / folder).glob("*.h*") if path.is_file()
    )
    missing = [
        header
        for header in names
        if not any(re.fullmatch(pattern, header) for pattern in ELSEWHERE)
        and _taken(header, lambda code: compile_kernel(code, "sm_80"))
        and not _taken(header, lambda code: RawModule(code=code).compile())
    ]
    assert not missing


INTEGERS = "sizeof(int8_t) + sizeof(uint32_t) + sizeof(int64_t) + sizeof(uintptr_t)"
LIMITS = "INT_MAX / 2 + UINT_MAX % 2 + CHAR_BIT + (int)(LLONG_MAX >> 60)"


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("cooperative_groups.h", f"{INTEGERS} + {LIMITS}"),
        ("cuda/atomic", f"{INTEGERS} + {LIMITS}"),
        ("cuda/barrier", f"{INTEGERS} + {LIMITS}"),
        ("cuda_pipeline.h", "sizeof(uint16_t) + sizeof(uint32_t) + sizeof(uint64_t) + sizeof(uintptr_t)"),
    ],
)
def test_what_nvidias_headers_bring_along_is_there(header, names):
    """Strangers' kernels take these names without the headers that declare them."""
    code = f'#include <{header}>\nextern "C" __global__ void k(int* out) {{ out[0] = {names}; }}'
    out = torch.zeros(1, dtype=torch.int32)
    RawModule(code=code).get_function("k")((1,), (1,), (out,))
    compile_kernel(code, "sm_80")
    sizes = 21 if header != "cuda_pipeline.h" else 22
    assert out.item() == sizes + (2**30 - 1 + 1 + 8 + 7 if header != "cuda_pipeline.h" else 0)
