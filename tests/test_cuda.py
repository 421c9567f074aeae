"""The facade: which launches it takes, what it says of the others, and that the emulator agrees with the GPU."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from course_utils import cuda
from course_utils.cuda import PASSED, KernelError, LaunchError, RawModule, ReadyLaunch, read_kernel
from course_utils.emulator import sanitize
from course_utils.toolchain.errors import CompileError

SAXPY = """
extern "C" __global__ void saxpy(const float* x, float* y, int n, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
N, A = np.int32(8), np.float32(2)


def saxpy(x=None, y=None, *rest):
    """Launches saxpy with the arguments given, and good ones for the others."""
    arguments = (torch.ones(8) if x is None else x, torch.ones(8) if y is None else y, *(rest or (N, A)))
    RawModule(code=SAXPY).get_function("saxpy")((1,), (8,), arguments)


# ---- what works


def test_a_launch_changes_its_output(device):
    x, y = torch.arange(1000.0, device=device), torch.ones(1000, device=device)
    RawModule(code=SAXPY).get_function("saxpy")((4,), (256,), (x, y, np.int32(1000), np.float32(2)))
    assert torch.equal(y, 1 + 2 * x)


def test_a_list_of_arguments_and_numpy_integers_for_dimensions_are_taken(device):
    y = torch.zeros(8, device=device)
    RawModule(code=SAXPY).get_function("saxpy")([np.int64(1)], (np.int32(8),), [torch.ones_like(y), y, N, A])
    assert (y == 2).all()


def test_the_backend_follows_the_arguments_of_each_launch(device):
    module = RawModule(code=SAXPY)
    for place in (device, torch.device("cpu"), device):
        y = torch.zeros(8, device=place)
        module.get_function("saxpy")((1,), (8,), (torch.ones_like(y), y, N, A))
        assert (y == 2).all() and y.device.type == place.type


@pytest.mark.gpu
def test_a_launch_follows_torchs_stream_and_is_captured_with_it():
    kernel, y = RawModule(code=SAXPY).get_function("saxpy"), torch.zeros(8, device="cuda")
    args = (torch.ones_like(y), y, N, A)
    kernel((1,), (8,), args)  # what is compiled or loaded cannot be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel((1,), (8,), args)
    assert (y == 2).all()
    graph.replay()
    assert (y == 4).all()


@pytest.mark.gpu
@pytest.mark.parametrize("loaded_before", [True, False])
def test_a_thread_that_has_not_met_the_gpu_launches(loaded_before):
    kernel, y = RawModule(code=SAXPY).get_function("saxpy"), torch.zeros(8, device="cuda")
    args = (torch.ones_like(y), y, N, A)
    if loaded_before:
        kernel((1,), (8,), args)
    thread = threading.Thread(target=lambda: (kernel((1,), (8,), args), torch.cuda.synchronize()))
    thread.start()
    thread.join()
    assert (y == (4 if loaded_before else 2)).all()


def test_launches_of_many_threads_do_not_mix_their_arguments(device):
    kernel = RawModule(code=SAXPY).get_function("saxpy")
    threads, each = (8, 200) if device.type == "cuda" else (2, 2)
    results = torch.zeros(threads, 8, device=device)
    x = torch.ones(8, device=device)

    def work(n):
        for _ in range(each):
            kernel((1,), (8,), (x, results[n], N, np.float32(n)))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert torch.equal(results, (each * torch.arange(threads, device=device))[:, None] * torch.ones_like(results))


def test_dynamic_shared_memory_above_48_kilobytes_needs_no_more_than_its_size(device):
    size = 90_000 // 4
    y = torch.zeros(size, device=device)
    code = """extern "C" __global__ void reverse(float* y, int n) {
        extern __shared__ float s[];
        for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
    }"""
    RawModule(code=code).get_function("reverse")((1,), (128,), (y, np.int32(size)), shared_mem=4 * size)
    assert torch.equal(y.cpu(), torch.arange(size - 1, -1, -1.0))


def test_shared_memory_that_one_module_was_granted_stays_where_another_of_the_same_code_asks_for_less(device):
    code = """extern "C" __global__ void last(float* y, int n) {
        extern __shared__ float s[];
        s[n - 1] = n;
        *y = s[n - 1];
    }"""
    kernels = [RawModule(code=code).get_function("last") for _ in range(2)]
    y = torch.zeros(1, device=device)
    for kernel, size in zip((0, 1, 0, 1, 0), (90_000, 60_000, 90_000, 48_000, 100), strict=True):
        kernels[kernel]((1,), (1,), (y, np.int32(size // 4)), shared_mem=size)
        assert y.item() == size // 4


def test_constants_are_set_through_get_global(device):
    module = RawModule(
        code="""__constant__ float table[4];
        extern "C" __global__ void look_up(float* y) { y[threadIdx.x] = table[threadIdx.x % 4]; }"""
    )
    module.get_global("table", (4,), torch.float32, device).copy_(torch.arange(4.0))
    y = torch.zeros(8, device=device)
    module.get_function("look_up")((1,), (8,), (y,))
    assert y.tolist() == [0, 1, 2, 3] * 2


def test_options_templates_and_headers_of_the_course(device, tmp_path):
    (tmp_path / "half.cuh").write_text("#include <cuda_fp16.h>\n")
    (tmp_path / "a.cu").write_text(
        '#include "half.cuh"\ntemplate <typename T> __global__ void fill(T* y) { y[threadIdx.x] = T(VALUE); }\n'
    )
    module = RawModule(
        code=read_kernel(tmp_path / "a.cu"), options=("-DVALUE=1.5f",), name_expressions=("fill<float>", "fill<__half>")
    )
    for name, dtype in (("fill<float>", torch.float32), ("fill<__half>", torch.float16)):
        y = torch.zeros(4, device=device, dtype=dtype)
        module.get_function(name)((1,), (4,), (y,))
        assert y.tolist() == [1.5] * 4


def test_kernels_of_the_include_folder_are_found(monkeypatch, tmp_path):
    (tmp_path / "shared.cuh").write_text("#define VALUE 4\n")
    for compiler in ("emulator.module", "toolchain.nvrtc"):
        monkeypatch.setattr(f"course_utils.{compiler}.INCLUDE", tmp_path)
    y = torch.zeros(1)
    code = '#include "shared.cuh"\nextern "C" __global__ void k(float* y) { *y = VALUE; }'
    RawModule(code=code).get_function("k")((1,), (1,), (y,))
    assert y.item() == 4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
def test_bytes_are_taken_as_unsigned_char(device, dtype):
    x, y = (torch.randn(8).to(dtype).to(device) for _ in range(2))
    code = """extern "C" __global__ void k(const unsigned char* x, unsigned char* y) {
        y[threadIdx.x] = x[threadIdx.x];
    }"""
    kernel = RawModule(code=code).get_function("k")
    kernel((1,), (8,), (x, y))
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))


# ---- wrong arguments: which one, what it is, what it should be


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(8).double(),), TypeError, r"argument 0 \('x'\) of saxpy\(\) is `const float\* x`: expected a "
         "tensor of torch.float32, got torch.float64"),
        ((None, torch.ones(8).half()), TypeError, r"argument 1 \('y'\) .* of torch.float32, got torch.float16"),
        ((None, None, N, np.float64(2)), TypeError, r"argument 3 \('a'\) .* pass np.float32\(...\), got np.float64"),
        ((None, None, np.int64(8), A), TypeError, r"argument 2 \('n'\) .* pass np.int32\(...\), got np.int64"),
        ((None, None, np.float32(8), A), TypeError, r"argument 2 \('n'\) .* pass np.int32\(...\), got np.float32"),
        ((None, None, 8, A), TypeError, r"argument 2 \('n'\) .*`int n`: pass np.int32\(...\), got int 8"),
        ((None, None, N, 2.0), TypeError, r"argument 3 \('a'\) .* pass np.float32\(...\), got float 2.0"),
        ((None, None, N, None), TypeError, r"argument 3 \('a'\) .* pass np.float32\(...\), got NoneType None"),
        ((None, None, torch.tensor(8), A), TypeError, r"argument 2 \('n'\) .* pass np.int32\(...\), got a tensor"),
        ((np.float32(1),), TypeError, r"argument 0 \('x'\) .* expected a torch tensor, got float32"),
        ((np.ones(8, np.float32),), TypeError, r"argument 0 \('x'\) .* expected a torch tensor, got ndarray"),
        (([1.0] * 8,), TypeError, r"argument 0 \('x'\) .* expected a torch tensor, got list"),
        ((None, None, N), TypeError, r"takes 4 arguments \(const float\* x, float\* y, int n, float a\), got 3"),
        ((None, None, N, A, A), TypeError, "takes 4 arguments .*, got 5"),
        ((torch.ones(16)[::2],), ValueError, r"argument 0 \('x'\) .* contiguous, got shape \(8,\) with strides \(2,\)"),
        ((None, torch.ones(2, 4).T), ValueError, r"argument 1 \('y'\) .* contiguous, .* call .contiguous\(\) first"),
        ((torch.ones(1).expand(8),), ValueError, r"contiguous, got shape \(8,\) with strides \(0,\)"),
        ((torch.ones(8).to_sparse(),), TypeError, "layout torch.sparse_coo; it must be torch.strided"),
        ((torch._neg_view(torch.ones(8)),), ValueError, r"argument 0 \('x'\) .* call .resolve_neg\(\) first"),
        ((None, torch.ones(8, device="meta")), ValueError, r"argument 1 \('y'\) of saxpy\(\) is on meta, but argument "
         r"0 \('x'\) of saxpy\(\) is on cpu: move all tensors to one device"),
        ((torch.ones(8, device="meta"),) * 2, ValueError, "is on meta; kernels run on cpu and cuda tensors"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        saxpy(*arguments)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda x: (x.double(), x, N, A), TypeError, r"argument 0 \('x'\) .* of torch.float32, got torch.float64"),
        (lambda x: (x, torch.ones(8, device="meta"), N, A), ValueError, "argument 1 .* is on meta, but argument 0"),
        (lambda x: (x, torch.ones(16, device=x.device)[::2], N, A), ValueError, r"argument 1 \('y'\) .* contiguous"),
        (lambda x: (torch._neg_view(x), x, N, A), ValueError, r"argument 0 \('x'\) .* call .resolve_neg\(\) first"),
        (lambda x: (x, x, np.int64(8), A), TypeError, r"argument 2 \('n'\) .* pass np.int32\(...\), got np.int64"),
        (lambda x: (x, x, N, 2.0), TypeError, r"argument 3 \('a'\) .* pass np.float32\(...\), got float 2.0"),
        (lambda x: (x, x, N), TypeError, "takes 4 arguments .*, got 3"),
        (lambda x: x, TypeError, "takes a tuple of tensors and NumPy scalars, got Tensor"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_after_right_ones_too(device, wrong, error, message):
    kernel, x = RawModule(code=SAXPY).get_function("saxpy"), torch.ones(8, device=device)
    kernel((1,), (8,), (x, torch.ones_like(x), N, A))
    with pytest.raises(error, match=message):
        kernel((1,), (8,), wrong(x))
    kernel((1,), (8,), (torch.ones_like(x), x, N, A))
    assert (x == 3).all()


def test_a_freed_tensor_is_refused_after_right_ones_too(device):
    kernel, x, freed = RawModule(code=SAXPY).get_function("saxpy"), *(torch.ones(8, device=device) for _ in range(2))
    kernel((1,), (8,), (x, freed, N, A))
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"argument 1 \('y'\) of saxpy\(\) has 0 bytes of memory for the 32"):
        kernel((1,), (8,), (x, freed, N, A))


# ---- a launch that only lacks the tensors of a call


def ready(*args, block=(8,)):
    return ReadyLaunch(RawModule(code=SAXPY).get_function("saxpy"), (1,), block, args)


@pytest.mark.parametrize("table_first", [True, False])
def test_a_ready_launch_takes_the_tensors_of_each_call(device, table_first):
    table = torch.arange(8.0, device=device)
    launch = ready(table, PASSED, N, A) if table_first else ready(PASSED, PASSED, N, A)
    for number in range(4):  # the first launches are checked in whole
        y = torch.full((8,), float(number), device=device)
        launch(y) if table_first else launch(table, y)
        assert torch.equal(y, number + 2 * table)
    with sanitize() as report:
        launch(y) if table_first else launch(table, y)
    assert report.launches == 1 and torch.equal(y, 3 + 4 * table)
    table += 1  # in place: what a launch reads is the table of now
    launch(y) if table_first else launch(table, y)
    assert torch.equal(y, 3 + 4 * (table - 1) + 2 * table)


@pytest.mark.parametrize("launches_before", range(4))
def test_a_ready_launch_checks_each_tensor(device, launches_before):
    x = torch.ones(8, device=device)
    table = x.clone()
    launch = ready(table, PASSED, N, A)
    for _ in range(launches_before):
        launch(x)
    with pytest.raises(TypeError, match=r"argument 1 \('y'\) .* of torch.float32, got torch.float64"):
        launch(x.double())
    with pytest.raises(ValueError, match=r"argument 1 \('y'\) .* must be contiguous"):
        launch(torch.ones(16, device=device)[::2])
    with pytest.raises(ValueError, match="argument 1 .* is on meta, but argument 0"):
        launch(x.to("meta"))
    with pytest.raises(TypeError, match=r"saxpy\(\) is ready but for 1 tensors, got 2"):
        launch(x, x)
    table.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"argument 0 \('x'\) of saxpy\(\) has 0 bytes of memory for the 32"):
        launch(x)


EARLY = """
#include "dependent_launch.cuh"
extern "C" __global__ void first(float* numbers, long long* ended, int loops) {
    let_next_begin();
    float x = numbers[threadIdx.x];
    for (int n = 0; n < loops; n++) x = 0.5f * x + 1;
    numbers[threadIdx.x] = x + 1;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*ended));
}
extern "C" __global__ void second(const float* numbers, float* copies, long long* begun) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*begun));
    wait_for_previous();
    copies[threadIdx.x] = numbers[threadIdx.x];
}
"""


@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_a_dependent_launch_begins_early_and_reads_what_it_waits_for(device, captured):
    if captured and device.type == "cpu":
        pytest.skip("a CUDA graph takes a GPU")
    numbers, ended, begun = torch.zeros(32, device=device), *torch.zeros(2, 1, dtype=torch.int64, device=device)
    loops = 200_000 if device.type == "cuda" else 50
    module = RawModule(code=EARLY)
    first = ReadyLaunch(module.get_function("first"), (1,), (32,), (PASSED, PASSED, np.int32(loops)))
    second = ReadyLaunch(module.get_function("second"), (1,), (32,), (PASSED, PASSED, PASSED), dependent=True)
    copies = torch.zeros(4, 32, device=device)

    def both(into):
        numbers.zero_()
        first(numbers, ended)
        second(numbers, into, begun)

    for into in copies[:3]:  # the first launches are checked in whole
        both(into)
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            both(copies[3])
        graph.replay()
    else:
        both(copies[3])
    assert (copies == 3).all()
    early = device.type == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
    assert (begun < ended) == early


def test_a_ready_launch_of_an_impossible_size_is_none():
    with pytest.raises(LaunchError, match="block .* has 2048 threads"):
        ready(PASSED, PASSED, N, A, block=(1024, 2))


@pytest.mark.gpu
def test_tensors_on_two_devices_are_rejected():
    with pytest.raises(ValueError, match=r"argument 1 \('y'\) .* is on cuda:0, but argument 0 .* is on cpu"):
        saxpy(torch.ones(8), torch.ones(8, device="cuda"))


def test_a_tensor_in_place_of_the_tuple_of_arguments_is_rejected():
    with pytest.raises(TypeError, match=r"args of saxpy\(\) takes a tuple of tensors and NumPy scalars, got Tensor"):
        RawModule(code=SAXPY).get_function("saxpy")((1,), (8,), torch.ones(4))


def test_signed_and_unsigned_scalars_of_one_size_are_interchangeable():
    y = torch.ones(8)
    saxpy(torch.ones(8), y, np.uint32(8), A)
    assert (y == 3).all()


def test_a_tensor_for_a_struct_and_a_struct_of_another_size_are_rejected():
    code = 'struct P { int n; float s; };\nextern "C" __global__ void k(float* y, P p) { y[0] = p.s; }'
    kernel = RawModule(code=code).get_function("k")
    with pytest.raises(TypeError, match=r"argument 1 \('p'\) of k\(\) is `P p`: pass a NumPy scalar .*, got a tensor"):
        kernel((1,), (1,), (torch.ones(1), torch.ones(2)))
    with pytest.raises(TypeError, match=r"argument 1 \('p'\) of k\(\) takes 8 bytes, got 4"):
        kernel((1,), (1,), (torch.ones(1), np.float32(1)))


def test_a_pointer_of_unknown_type_takes_any_tensor():
    code = 'extern "C" __global__ void k(void* raw, unsigned char* bytes) { *(int*)raw = 7; bytes[3] = 1; }'
    raw, other = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    RawModule(code=code).get_function("k")((1,), (1,), (raw, other))
    assert raw.item() == 7 and other.item() == 1 << 24


# ---- impossible launches


@pytest.mark.parametrize(
    ("grid", "block", "error", "message"),
    [
        ((1,), (1025,), LaunchError, r"block \(1025, 1, 1\) is too large: the limits are \(1024, 1024, 64\)"),
        ((1,), (32, 33), LaunchError, r"block \(32, 33, 1\) has 1056 threads; a block has at most 1024"),
        ((1,), (1, 1, 65), LaunchError, r"limits are \(1024, 1024, 64\)"),
        (
            (1, 65536),
            (8,),
            LaunchError,
            r"grid \(1, 65536, 1\) is too large: the limits are \(2147483647, 65535, 65535\)",
        ),
        ((2**31,), (8,), LaunchError, "too large"),
        ((0,), (8,), ValueError, r"grid takes one to three positive ints, got \(0,\)"),
        ((1,), (-8,), ValueError, "block takes one to three positive ints"),
        ((1,), (8.0,), ValueError, "block takes one to three positive ints"),
        (1, (8,), ValueError, "grid takes one to three positive ints .*, got 1"),
        ((1,), (), ValueError, r"block takes .*, got \(\)"),
        ((1, 1, 1, 1), (8,), ValueError, "grid takes one to three"),
    ],
)
def test_an_impossible_grid_or_block_is_rejected(grid, block, error, message):
    x = torch.ones(8)
    with pytest.raises(error, match=message):
        RawModule(code=SAXPY).get_function("saxpy")(grid, block, (x, x, N, A))


@pytest.mark.parametrize("shared_mem", [-1, 1.5, "48"])
def test_an_impossible_size_of_shared_memory_is_rejected(shared_mem):
    with pytest.raises(ValueError, match="shared_mem takes a number of bytes, got"):
        RawModule(code=SAXPY).get_function("saxpy")(
            (1,), (8,), (torch.ones(8), torch.ones(8), N, A), shared_mem=shared_mem
        )


def test_more_shared_memory_than_there_is_names_both_figures(device):
    x = torch.ones(8, device=device)
    with pytest.raises(
        LaunchError, match=r"saxpy\(\) asks for 300,000 bytes of dynamic shared memory .* has [\d,]+ bytes"
    ):
        RawModule(code=SAXPY).get_function("saxpy")((1,), (8,), (x, x, N, A), shared_mem=300_000)


@pytest.mark.parametrize(("arch", "needed"), [("sm_90", "sm_90 or newer"), ("sm_100a only", "sm_100a exactly")])
def test_a_kernel_for_a_newer_device_says_what_it_needs_and_what_was_found(arch, needed):
    code = f"// arch: {arch}\n{SAXPY}"
    with pytest.raises(LaunchError, match=rf"kernel\.cu needs {needed}; the CPU emulator is an sm_80"):
        RawModule(code=code).get_function("saxpy")((1,), (8,), (torch.ones(8), torch.ones(8), N, A))


def test_the_emulator_runs_kernels_for_sm_89_too():
    y = torch.zeros(8)
    RawModule(code=f"// arch: sm_89\n{SAXPY}").get_function("saxpy")((1,), (8,), (torch.ones(8), y, N, A))
    assert (y == 2).all()


def test_the_emulator_presents_itself_as_sm_80():
    y = torch.zeros(1)
    RawModule(code='// arch: sm_80\nextern "C" __global__ void k(float* y) { *y = __CUDA_ARCH__; }').get_function("k")(
        (1,), (1,), (y,)
    )
    assert y.item() == 800


# ---- modules and names


def test_a_missing_kernel_is_an_error_that_lists_those_there_are():
    module = RawModule(code=SAXPY + "template <int N> __global__ void fill(float* y) { *y = N; }")
    with pytest.raises(LookupError, match=r"kernel\.cu has no kernel 'saxy'; it has: saxpy; templates .*: fill"):
        module.get_function("saxy")


def test_a_kernel_of_an_included_file_is_not_found_and_the_error_names_the_file(tmp_path):
    (tmp_path / "kernels.cuh").write_text("template <int N> __global__ void many(float* x) { *x = N; }\n" + SAXPY)
    including = '#include "kernels.cuh"\n'
    module = RawModule(code=including, options=("-I", str(tmp_path)), name_expressions=("many<3>",))
    for name, kernel in (("many<3>", "many"), ("saxpy", "saxpy")):
        with pytest.raises(LookupError, match=rf"it has: none; {kernel} is in kernels\.cuh, which it includes: make"):
            module.get_function(name)


@pytest.mark.parametrize("parameters", ["A<T> x", "own::A<T> x", "own::A<T, 2, own::B> x"])
def test_a_template_whose_parameters_are_unknown_is_an_error_and_not_the_end_of_the_session(device, parameters):
    """NVRTC itself ends the process here, where it is asked for an instance."""
    module = RawModule(code=f"template <class T> __global__ void k({parameters}) {{}}", name_expressions=("k<float>",))
    with pytest.raises(CompileError, match="did not compile"):
        module.compile(device)


def test_a_name_expression_may_be_an_address(device):
    code = "template <int N> __global__ void fill(float* x) { x[threadIdx.x] = N; }"
    module, x = RawModule(code=code, name_expressions=("&fill<3>",)), torch.zeros(4, device=device)
    module.get_function("&fill<3>")((1,), (4,), (x,))
    assert x.tolist() == [3] * 4


def test_a_kernel_that_a_macro_writes_is_not_found_and_the_error_says_so():
    code = "#define UNARY(NAME) __global__ void NAME##_kernel(float* x) {}\nUNARY(relu)\n"
    with pytest.raises(LookupError, match=r"it has: none; a kernel that a macro writes \(UNARY\) is not found"):
        RawModule(code=code).get_function("relu_kernel")


def test_the_mark_of_utf_8_in_front_of_a_text_is_no_matter():
    RawModule(code="\ufeff" + SAXPY).compile()


@pytest.mark.parametrize("name", ["fill", "fill<4>", "saxpy<3>"])
def test_a_template_is_launched_by_a_declared_name_expression_only(name):
    code = SAXPY + "template <int N> __global__ void fill(float* y) { *y = N; }"
    with pytest.raises(LookupError, match="it has: saxpy, fill<3>"):
        RawModule(code=code, name_expressions=["fill<3>"]).get_function(name)


def test_two_definitions_with_different_parameters_are_rejected():
    code = f"#if X\n{SAXPY}\n#else\n{SAXPY.replace('float a', 'double a')}\n#endif"
    with pytest.raises(LookupError, match=r"defines saxpy\(\) in lines 3 and 10 with different parameters"):
        RawModule(code=code).get_function("saxpy")


@pytest.mark.parametrize("name", ["declared", "nothing"])
def test_a_kernel_without_a_body_is_no_kernel(name):
    with pytest.raises(LookupError, match=f"has no kernel '{name}'; it has: saxpy"):
        RawModule(code="__global__ void declared(int n);" + SAXPY).get_function(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"code": b"bytes"}, "code takes CUDA C.. as a str, got bytes"),
        ({"code": SAXPY, "options": "-DN=3"}, r"options takes a sequence of strings .*, got the str '-DN=3'"),
        (
            {"code": SAXPY, "name_expressions": "f<3>"},
            "name_expressions takes a sequence of strings .*, got the str 'f<3>'",
        ),
    ],
)
def test_a_module_names_the_argument_that_is_wrong(arguments, message):
    with pytest.raises(TypeError, match=message):
        RawModule(**arguments)


def test_an_error_names_the_file_of_the_kernel(tmp_path):
    path = tmp_path / "broken.cu"
    path.write_text('\nextern "C" __global__ void k(float* y) {\n    __trap();\n}\n')
    with pytest.raises(KernelError, match=r"broken\.cu:3: __trap") as caught:
        RawModule(code=read_kernel(path)).get_function("k")((1,), (1,), (torch.zeros(1),))
    assert caught.value.file == str(path)


def test_cuda_tensors_without_cupy_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(LaunchError, match=r"CUDA tensors need CuPy.* pip install 'cupy-cuda1\dx\[ctk\]'"):
        cuda._import_cupy()


# ---- the two backends


def test_a_kernel_with_cpp_linkage_is_found_by_its_name(device):
    code = """#if 0
    __global__ void left_out(float* x) { x[0] = 1; }
    #endif
    __device__ float factor = 3;
    __global__ void fill(float* x) { x[threadIdx.x] = factor; }"""
    for text in (code, code.replace("#if 0", "#if 1")):
        x = torch.zeros(4, device=device)
        RawModule(code=text).get_function("fill")((1,), (4,), (x,))
        assert (x == 3).all()


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [32, 64, 256])
@pytest.mark.parametrize("blocks", [1, 7])
def test_the_emulator_and_the_gpu_agree(threads, blocks):
    code = """extern "C" __global__ void k(const float* x, float* y, int n) {
        extern __shared__ float s[];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        s[threadIdx.x] = i < n ? x[i] : 0.0f;
        __syncthreads();
        float sum = s[blockDim.x - 1 - threadIdx.x];
        for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (i < n) y[i] = sum;
    }"""
    n = threads * blocks - 3
    kernel = RawModule(code=code).get_function("k")
    x = torch.randn(n)
    results = []
    for device in ("cpu", "cuda"):
        y = torch.zeros(n, device=device)
        kernel((blocks,), (threads,), (x.to(device), y, np.int32(n)), shared_mem=4 * threads)
        results.append(y.cpu())
    assert torch.allclose(*results, rtol=1e-6, atol=1e-6)
