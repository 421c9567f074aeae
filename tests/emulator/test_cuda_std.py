"""CUDA's library for kernels: cuda/std as NVIDIA wrote it, and what waits: atomics, barriers, pipelines."""

from pathlib import Path

import numpy as np
import pytest
import torch
from cuda.pathfinder import find_nvidia_header_directory

from course_utils.cuda import RawModule
from course_utils.emulator import sanitize
from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.nvrtc import compile_kernel

ABSENT = {"cuda/annotated_ptr", "cuda/discard_memory", "cuda/ptx", "cuda/work_stealing"}  # refused by a sentence
NOT_FOR_KERNELS = {"cuda/memory_resource", "cuda/stream_ref"}  # NVRTC refuses them

KERNELS = """
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda_pipeline.h>

extern "C" __global__ void atomics(int* n) {
    cuda::atomic_ref<int, cuda::thread_scope_device> a(n[0]);
    a.fetch_add(1, cuda::memory_order_relaxed);
    a++;
    cuda::atomic_ref<int>(n[1]).fetch_max((int)threadIdx.x);
    __shared__ cuda::atomic<int, cuda::thread_scope_block> s;
    if (threadIdx.x == 0) s = 5;
    __syncthreads();
    s.fetch_add(2);
    s -= 1;
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) n[2] = s.load();
    int expected = 0;
    cuda::atomic_ref<int> c(n[3]);
    if (c.compare_exchange_strong(expected, 7)) c.fetch_or(8, cuda::std::memory_order_acq_rel);
}

template <bool waits> __device__ void reverse(const float* x, float* out) {
    __shared__ float tile[128];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(tile + threadIdx.x, x + threadIdx.x, cuda::aligned_size_t<4>(4), bar);
    auto token = bar.arrive();
    if (waits) bar.wait(static_cast<decltype(token)&&>(token));
    out[threadIdx.x] = tile[127 - threadIdx.x];
    if (waits) bar.arrive_and_wait();
    tile[threadIdx.x] = 0;
}
extern "C" __global__ void reversed(const float* x, float* out) { reverse<true>(x, out); }
extern "C" __global__ void reversed_early(const float* x, float* out) { reverse<false>(x, out); }

extern "C" __global__ void stages(const float* x, float* out, int rounds) {
    __shared__ float tile[2][64];
    cuda::pipeline<cuda::thread_scope_thread> pipe = cuda::make_pipeline();
    for (int i = 0, ahead = 0; i < rounds; i++) {
        for (; ahead < rounds && ahead < i + 2; ahead++) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[ahead % 2][threadIdx.x], &x[64 * ahead + threadIdx.x], sizeof(float), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        __syncthreads();
        out[64 * i + threadIdx.x] = 2 * tile[i % 2][63 - threadIdx.x];
        __syncthreads();
        pipe.consumer_release();
    }
}

extern "C" __global__ void roles(const float* x, float* out, int rounds) {
    __shared__ float tile[2][32];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    const auto role = threadIdx.x < 32 ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(cooperative_groups::this_thread_block(), &state, role);
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < rounds; i++) {
        if (role == cuda::pipeline_role::producer) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tile[i % 2][lane], &x[32 * i + lane], sizeof(float), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            out[32 * i + lane] = 3 * tile[i % 2][31 - lane];
            pipe.consumer_release();
        }
    }
}

extern "C" __global__ void primitives(const float* x, float* out) {
    __shared__ float4 tile[32];
    __pipeline_memcpy_async(&tile[threadIdx.x], (const float4*)x + threadIdx.x, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    const float4 v = tile[31 - threadIdx.x];
    ((float4*)out)[threadIdx.x] = make_float4(v.x, v.y, v.z, v.w);
}

__device__ cuda::std::atomic<int> ready{0};
__device__ int payload;
__device__ cuda::latch<cuda::thread_scope_device> everyone{64};
__device__ cuda::counting_semaphore<cuda::thread_scope_device, 4> gate{1};
extern "C" __global__ void waits(int* out) {
    if (threadIdx.x == 0) {
        payload = 42;
        ready.store(1, cuda::std::memory_order_release);
    }
    if (threadIdx.x == 32) {
        while (ready.load(cuda::std::memory_order_acquire) == 0) {}
        out[0] = payload;
    }
    everyone.arrive_and_wait();
    gate.acquire();
    out[1] = out[1] + 1;
    gate.release();
}

extern "C" __global__ void library(float* out) {
    const cuda::std::array<float, 3> a{1, 2, 3};
    out[0] = a[1] + a.size();
    out[1] = cuda::std::numeric_limits<float>::max();
    const cuda::std::complex<float> c(3, 4);
    out[2] = abs(c * c);
    out[3] = cuda::std::get<1>(cuda::std::make_tuple(1, 2.5f));
    out[4] = cuda::std::bit_ceil((unsigned)out[0]) + 10 * cuda::std::bit_width(300u) + 1000 * cuda::std::popcount(7u);
}
"""


@pytest.fixture(scope="module")
def launches():
    """Launches a kernel of KERNELS: each module has its own `__device__` variables."""
    compile_kernel(KERNELS, "sm_80")

    def launch(module, name, grid, block, *arguments):
        module.get_function(name)((grid,), (block,), arguments)
        return arguments[-2] if isinstance(arguments[-1], np.int32) else arguments[-1]

    return launch


def check_all(launch):
    module, x = RawModule(code=KERNELS), torch.arange(256.0)
    assert launch(module, "atomics", 4, 64, torch.zeros(4, dtype=torch.int32)).tolist() == [512, 63, 69, 15]
    assert torch.equal(launch(module, "reversed", 1, 128, x, torch.zeros(128)), x[:128].flip(0))
    twice = launch(module, "stages", 1, 64, x, torch.zeros(256), np.int32(4))
    assert torch.equal(twice, 2 * x.view(4, 64).flip(1).reshape(-1))
    thrice = launch(module, "roles", 1, 64, x, torch.zeros(256), np.int32(8))
    assert torch.equal(thrice, 3 * x.view(8, 32).flip(1).reshape(-1))
    turned = launch(module, "primitives", 1, 32, x[:128].contiguous(), torch.zeros(128))
    assert torch.equal(turned, x[:128].view(32, 4).flip(0).reshape(-1))
    assert launch(module, "waits", 1, 64, torch.zeros(2, dtype=torch.int32)).tolist() == [42, 64]
    assert launch(module, "library", 1, 1, torch.zeros(5)).tolist() == [
        5,
        torch.finfo(torch.float32).max,
        25,
        2.5,
        3098,
    ]


def test_what_waits_gives_the_right_numbers(launches):
    check_all(launches)


def test_the_sanitizer_knows_what_they_order_and_is_silent(launches):
    with sanitize() as report:
        check_all(launches)
    assert not report.findings, report


def test_the_sanitizer_finds_who_does_not_wait_for_a_barrier(launches):
    with sanitize() as report:
        launches(RawModule(code=KERNELS), "reversed_early", 1, 128, torch.arange(128.0), torch.zeros(128))
    assert any("tile[127 - threadIdx.x]" in str(finding) for finding in report.findings), report


def headers_of_the_wheel():
    """Those that a kernel may name: without the parts that they consist of."""
    folder = Path(find_nvidia_header_directory("cudart")) / "cccl"
    found = [*(folder / "cuda").iterdir(), *(folder / "cuda" / "std").iterdir()]
    return {str(file.relative_to(folder)) for file in found if file.is_file()} - NOT_FOR_KERNELS


def test_every_header_that_nvrtc_takes_compiles_or_is_refused_by_a_sentence():
    headers = headers_of_the_wheel()
    assert len(headers) > 40 and headers >= ABSENT
    code = "".join(f"#include <{header}>\n" for header in sorted(headers)) + "__global__ void k() {}\n"
    compile_kernel(code, "sm_80")
    code = "".join(f"#include <{header}>\n" for header in sorted(headers - ABSENT)) + "__global__ void k() {}\n"
    RawModule(code=code).compile()
    for header in ABSENT:
        with pytest.raises(CompileError, match=f"the emulator does not have <{header}>, a GPU does"):
            RawModule(code=f"#include <{header}>\n__global__ void k() {{}}\n").compile()
