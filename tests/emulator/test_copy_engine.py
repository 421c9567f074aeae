"""cp.async.bulk and tensor maps: what arrives where, when, and what is said of a copy that cannot be."""

import functools
import itertools
import re

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule, tensor_map
from course_utils.emulator import configure, sanitize
from tests.helpers.all_of import all_of
from tests.nvidia.silicon.case import MBARRIER

HEAD = f"""// arch: sm_90a only
struct alignas(64) TensorMap {{ unsigned long long words[16]; }};
{MBARRIER}"""
LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{{}}}], [%2];"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group [%0, {{{}}}], [%1];"


def move(tensor, box, start, *, swizzle=None, values=None, shared_mem=None):
    """The shared memory after a load of the box at `start`, in the tensor's order, as bytes; with `values`, which lie
    there, a store instead."""
    rank, elements = tensor.dim(), int(np.prod(box))
    numbers = ", ".join(f"%{n + (3 if values is None else 2)}" for n in range(rank))
    coordinates = ", ".join(f'"r"({n})' for n in reversed(start))
    load = (
        f'arrive_expecting(&bar, {elements * tensor.element_size()}); asm volatile("{LOAD.format(rank, numbers)}" '
        f':: "r"(at(shared)), "l"(&map), "r"(at(&bar)), {coordinates} : "memory"); wait(&bar, 0);'
    )
    store = (
        f'asm volatile("{STORE.format(rank, numbers)}" :: "l"(&map), "r"(at(shared)), {coordinates} : "memory"); '
        'asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");'
    )
    code = f"""{HEAD}
extern "C" __global__ void k(const __grid_constant__ TensorMap map, unsigned char* bytes, int count) {{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) init(&bar, 1);
    for (int i = threadIdx.x; i < count; i += 32) shared[i] = bytes[i];
    __syncthreads();
    if (threadIdx.x == 0) {{ {load if values is None else store} }}
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += 32) bytes[i] = shared[i];
}}"""
    count = shared_mem or elements * tensor.element_size()
    content = (
        torch.full((count,), 0x55, dtype=torch.uint8) if values is None else values.view(torch.uint8).flatten().clone()
    )
    arguments = (tensor_map(tensor, box, swizzle=swizzle), content, np.int32(count))
    RawModule(code=code).get_function("k")((1,), (32,), arguments, shared_mem=count)
    return content


def cut_out(tensor, box, start):
    """The box, with zeros outside of the tensor."""
    found = torch.zeros(box, dtype=tensor.dtype)
    for place in itertools.product(*map(range, box)):
        source = tuple(a + b for a, b in zip(start, place, strict=True))
        if all(0 <= n < size for n, size in zip(source, tensor.shape, strict=True)):
            found[place] = tensor[source]
    return found


BOXES = [  # shape, box, start
    ((40,), (16,), (32,)),
    ((9, 16), (4, 8), (7, -8)),
    ((3, 5, 16), (2, 3, 16), (-1, 4, 0)),
    ((2, 3, 4, 8), (1, 2, 3, 8), (1, 2, 3, 0)),
    ((2, 2, 2, 3, 8), (2, 1, 2, 2, 8), (0, 1, 1, 2, 0)),
]


@pytest.mark.parametrize(("shape", "box", "start"), BOXES, ids=lambda one: "x".join(map(str, one)))
def test_a_box_comes_from_its_place_with_zeros_outside_of_the_tensor(shape, box, start):
    tensor = torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.int16).view(torch.float16).reshape(shape)
    assert torch.equal(move(tensor, box, start).view(torch.float16).view(box), cut_out(tensor, box, start))


@pytest.mark.parametrize(
    ("shape", "box", "start"), [one for one in BOXES if min(one[2]) >= 0], ids=lambda one: "x".join(map(str, one))
)
def test_a_box_goes_to_its_place_and_nothing_is_written_outside(shape, box, start):
    tensor, values = torch.zeros(shape), torch.arange(1, 1 + int(np.prod(box))).float().view(box)
    expected = torch.zeros(shape)
    for place in itertools.product(*map(range, box)):
        target = tuple(a + b for a, b in zip(start, place, strict=True))
        if all(0 <= n < size for n, size in zip(target, shape, strict=True)):
            expected[target] = values[place]
    move(tensor, box, start, values=values)
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("start", "values", "message"),
    [
        ((0, 4), None, "a box begins at a multiple of 16 bytes of a row, got element 4 of 2 bytes"),
        ((-1, 0), torch.ones(4, 8).half(), "a store begins at coordinates of 0 or more, got -1"),
    ],
)
def test_a_box_that_an_h200_takes_for_an_illegal_instruction_is_an_error(start, values, message):
    with pytest.raises(KernelError, match=message):
        move(torch.zeros(9, 16).half(), (4, 8), start, values=values)


def test_with_a_swizzle_rows_are_as_long_as_its_pattern():
    """So it is on an H200: what a shorter box leaves between its rows stays as it was."""
    tensor = torch.arange(1, 65, dtype=torch.uint8).view(4, 16)
    found = move(tensor, (4, 16), (0, 0), swizzle="64B", shared_mem=256)
    assert torch.equal(found.view(4, 4, 16)[[0, 1, 2, 3], [0, 0, 1, 1]], tensor)
    assert (found == 0x55).sum() == 256 - 64


@pytest.mark.parametrize(("swizzle", "row_bytes"), [("128B", 128), ("64B", 64), ("32B", 32)])
def test_with_a_swizzle_chunks_of_16_bytes_change_places(swizzle, row_bytes):
    rows, in_a_row = 16, row_bytes // 16
    tensor = torch.randint(0, 256, (rows, row_bytes), dtype=torch.uint8)
    found = move(tensor, (rows, row_bytes), (0, 0), swizzle=swizzle).view(rows, in_a_row, 16)
    chunks = tensor.view(rows, in_a_row, 16)
    for row, chunk in itertools.product(range(rows), range(in_a_row)):
        assert torch.equal(found[row, chunk ^ row % 8 * in_a_row // 8], chunks[row, chunk])
    back = torch.zeros_like(tensor)
    move(back, (rows, row_bytes), (0, 0), swizzle=swizzle, values=found.contiguous())
    assert torch.equal(back, tensor)


def test_a_strided_view_is_copied_as_it_is_seen():
    """A tile [rows, 128] in panels of 64 columns, as wgmma takes it."""
    tensor = torch.randn(2, 50, 128).half()
    panels = tensor.view(2, 50, 2, 64).transpose(1, 2)
    found = move(panels, (1, 2, 16, 64), (1, 0, 40, 0)).view(torch.float16).view(1, 2, 16, 64)
    assert torch.equal(found, cut_out(panels, (1, 2, 16, 64), (1, 0, 40, 0)))


BYTES = (
    HEAD
    + """
extern "C" __global__ void k(const float* x, float* y, float* early) {
    __shared__ __align__(128) float box[64];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) init(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expecting(&bar, 256);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                     :: "r"(at(box)), "l"(x), "r"(at(&bar)) : "memory");
        early[0] = box[0];
    }
    wait(&bar, 0);
    box[threadIdx.x] += 1, box[32 + threadIdx.x] += 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" :: "l"(y), "r"(at(box)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        early[1] = y[0];
        WAIT
        early[2] = y[0];
    }
}"""
)


def test_bytes_come_when_the_barrier_opens_and_go_when_their_group_is_waited_for(run_kernel):
    x, y, early = torch.arange(64).float(), torch.zeros(64), torch.zeros(3)
    run_kernel(BYTES.replace("WAIT", 'asm volatile("cp.async.bulk.wait_group 0;");'), (1,), (32,), (x, y, early))
    assert torch.equal(y, x + 1)
    assert early[0].isnan() and early[1:].tolist() == [0, 1]


def test_a_store_that_nobody_waits_for_is_done_at_the_end(run_kernel):
    x, y, early = torch.arange(64).float(), torch.zeros(64), torch.zeros(3)
    run_kernel(BYTES.replace("WAIT", ""), (1,), (32,), (x, y, early))
    assert torch.equal(y, x + 1) and early[2] == 0


PRODUCT = (
    HEAD
    + """
// D [M, 64] = A [M, K] B [64, K]ᵀ: a producer warp fills two buffers of 64 columns, a warpgroup multiplies, TMA stores.
struct Shared { unsigned short A[2][64 * 64], B[2][64 * 64]; float D[64 * 64]; unsigned long long full[2], empty[2]; };
__device__ inline void load(void* to, const TensorMap& map, int row, int column, void* bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(at(to)), "l"(&map), "r"(column), "r"(row), "r"(at(bar)) : "memory");
}
extern "C" __global__ void k(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                             const __grid_constant__ TensorMap D, int K) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x < 2) init(&shared.full[threadIdx.x], 1), init(&shared.empty[threadIdx.x], 128);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    const int steps = (K + 63) / 64;
    if (threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 128)
            for (int n = 0; n < steps; n++) {
                if (n >= 2) wait(&shared.empty[n % 2], (n / 2 - 1) % 2);
                arrive_expecting(&shared.full[n % 2], 2 * 64 * 64 * 2);
                load(shared.A[n % 2], A, 64 * blockIdx.x, 64 * n, &shared.full[n % 2]);
                load(shared.B[n % 2], B, 0, 64 * n, &shared.full[n % 2]);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    float d[32];
    for (int n = 0; n < steps; n++) {
        wait(&shared.full[n % 2], n / 2 % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; k++) {
            const unsigned long long tile = 64ull << 32 | 1ull << 62;
            const unsigned long long a = tile | (at(shared.A[n % 2]) + 32 * k) / 16;
            const unsigned long long b = tile | (at(shared.B[n % 2]) + 32 * k) / 16;
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                         "{NUMBERS}, %32, %33, p, 1, 1, 0, 0; }" : OUTPUTS : "l"(a), "l"(b), "r"(n + k));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        arrive(&shared.empty[n % 2]);
    }
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    for (int i = 0; i < 32; i++)
        shared.D[(row + 8 * (i / 2 % 2)) * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&D), "r"(0), "r"(64 * blockIdx.x), "r"(at(shared.D)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}"""
)
PRODUCT = PRODUCT.replace("NUMBERS", ", ".join(f"%{n}" for n in range(32)))
PRODUCT = PRODUCT.replace("OUTPUTS", ", ".join(f'"+f"(d[{n}])' for n in range(32)))


def multiply(rows, depth, code=PRODUCT):
    a, b, d = torch.randn(rows, depth).half(), torch.randn(64, depth).half(), torch.full((rows, 64), torch.nan)
    maps = (*(tensor_map(x, (64, 64)) for x in (a, b)), tensor_map(d, (64, 64), swizzle=None))
    shared_bytes = 4 * 8192 + 16384 + 32
    RawModule(code=code).get_function("k")((-(-rows // 64),), (160,), (*maps, np.int32(depth)), shared_mem=shared_bytes)
    return d, a.double() @ b.double().T


@pytest.mark.parametrize(("rows", "depth"), [(64, 64), (100, 328), (129, 200)])
def test_a_producer_and_a_warpgroup_multiply_matrices(rows, depth):
    found, expected = multiply(rows, depth)
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "arrive_expecting(&shared.full[n % 2], 2 * 64 * 64 * 2);",
            "arrive_expecting(&shared.full[n % 2], 64 * 64 * 2);",
            None,
        ),
        ("wait(&shared.full[n % 2], n / 2 % 2);", "", None),
        ("wait(&shared.full[n % 2], n / 2 % 2);", "wait(&shared.full[n % 2], 1);", "mbarrier|wrong"),
        ("if (n >= 2) wait(&shared.empty[n % 2], (n / 2 - 1) % 2);", "", None),
        ('asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");', "", None),
        ("2 * 64 * 64 * 2);", "3 * 64 * 64 * 2);", r"0 of 1 arrivals and 8192 bytes are to come"),
        ("arrive(&shared.empty[n % 2]);", "", r"parity 0 of an mbarrier in phase 0 \(128 of 128 arrivals"),
    ],
    ids=["too few bytes", "no wait", "wrong parity", "overwritten", "not waited for", "too many bytes", "no arrival"],
)
def test_a_mistake_shows_in_the_values_or_is_a_deadlock_that_says_who_waits_for_what(old, new, message):
    """Copies and products are done as late as they may be, so that what is used too early is not there."""
    assert PRODUCT.count(old) == 1
    try:
        found, expected = multiply(64, 328, PRODUCT.replace(old, new))
    except KernelError as error:
        assert re.search(message or "mbarrier", str(error)), str(error)
    else:
        assert message is None or "wrong" in message
        assert not (found - expected).abs().max() < 1e-2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".tensor.2d.shared::cluster", ".tensor.3d.shared::cluster", "the tensor map has 2 dimensions"),
        ('"l"(&map)', '"l"(memory_of(map))', "this is no tensor map"),
        ('"r"(at(to))', '"r"(at(to) + 64)', "a multiple of 128, got"),
        ('"r"(at(to))', '"r"(at(to) + 231424)', "past the end of shared memory"),
    ],
)
def test_a_copy_that_cannot_be_is_an_error_with_its_line(old, new, message):
    code = PRODUCT.replace(old, new, 1).replace(
        "[%1, {%2, %3}]", "[%1, {%2, %3, %3}]" if "3d" in new else "[%1, {%2, %3}]", 1
    )
    code = code.replace(
        "struct Shared",
        "__device__ const void* memory_of(const TensorMap& map) { return &map.words[1]; }\nstruct Shared",
    )
    with pytest.raises(KernelError, match=rf"kernel\.cu:\d+: .*{message}"):
        multiply(64, 64, code)


# ---- tensor_map

GOOD = torch.zeros(4, 16, dtype=torch.float16)


@pytest.mark.parametrize(
    ("tensor", "box", "swizzle", "error", "message"),
    [
        ([1.0], (1,), None, TypeError, "tensor takes a torch.Tensor, got list"),
        (GOOD.bool(), (4, 16), None, TypeError, "tensor takes one of torch.uint8.*got torch.bool"),
        (GOOD, (4, 16), "256B", ValueError, 'swizzle takes None, "32B", "64B" or "128B", got \'256B\''),
        (torch.zeros(1, 1, 1, 1, 1, 8), (1,) * 6, None, ValueError, "1 to 5 dimensions"),
        (GOOD[:0], (4, 16), None, ValueError, "none of them empty"),
        (GOOD[:, 4:], (4, 8), None, ValueError, "begins at a multiple of 16 bytes"),
        (GOOD.T, (16, 4), None, ValueError, "the last dimension of tensor is contiguous"),
        (
            torch.zeros(4, 9, dtype=torch.float16),
            (4, 8),
            None,
            ValueError,
            "strides of tensor are multiples of 16 bytes",
        ),
        (GOOD[:1].expand(4, 16), (4, 16), None, ValueError, "multiples of 16 bytes above 0"),
        (
            torch.empty_strided((3, 64), (2**39, 1), dtype=torch.float16, device="meta"),
            (3, 64),
            None,
            ValueError,
            r"above 0 and below 2\*\*40",
        ),
        (GOOD, (4,), None, ValueError, "box takes 2 ints from 1 to 256"),
        (GOOD, (0, 16), None, ValueError, "box takes 2 ints from 1 to 256"),
        (torch.zeros(512, 16), (257, 16), None, ValueError, "box takes 2 ints from 1 to 256"),
        (GOOD, (4, 12), None, ValueError, "innermost side of box is a multiple of 16 bytes"),
        (
            torch.zeros(4, 32),
            (4, 32),
            "64B",
            ValueError,
            "with swizzle '64B' the innermost side of box has at most 64 bytes",
        ),
    ],
)
def test_a_tensor_or_box_that_cannot_be_is_named_before_a_launch(tensor, box, swizzle, error, message):
    with pytest.raises(error, match=message):
        tensor_map(tensor, box, swizzle=swizzle)


def test_a_map_is_no_pointer_and_nothing_else_is_a_map(run_kernel):
    with pytest.raises(TypeError, match=r"argument 0 \('x'\) of k\(\) is `float\* x`, got a tensor map"):
        run_kernel('extern "C" __global__ void k(float* x) {}', (1,), (1,), (tensor_map(GOOD, (4, 16)),))
    with pytest.raises(TypeError, match="takes 128 bytes, got 4"):
        code = HEAD + 'extern "C" __global__ void k(const __grid_constant__ TensorMap map) {}'
        run_kernel(code, (1,), (1,), (np.float32(1),))


STORE_AND_LOOK = f"""{HEAD}
extern "C" __global__ void k(int* out) {{
    __shared__ __align__(128) int box[32];
    box[threadIdx.x] = 7;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x > 0) return;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" :: "l"(out), "r"(at(box)) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
    box[0] = 8;
    out[32] = out[0];
    WAIT
    out[33] = out[0];
}}"""


@pytest.mark.parametrize(("order", "seen"), [("late", 0), ("early", 7)])
def test_a_store_that_is_only_read_may_not_yet_be_there(order, seen):
    for wait, then in (("", seen), ('asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");', 7)):
        out = torch.zeros(34, dtype=torch.int32)
        with configure(order=order):
            RawModule(code=STORE_AND_LOOK.replace("WAIT", wait)).get_function("k")((1,), (32,), (out,))
        assert out.tolist() == [7] * 32 + [seen, then]


WAYS = {  # to touch bytes of global memory from x + at on: in a block of one thread; and how many bytes
    "load": ("keep = x[at];", 4),
    "load_of_a_vector": ("*(float4*)s = *(const float4*)(x + at);", 16),
    "load_of_a_byte": ("keep = ((const char*)(x + at))[0];", 1),
    "store": ("x[at] = 1;", 4),
    "store_of_a_vector": ("*(float2*)(x + at) = make_float2(1, 2);", 8),
    "atomic": ("atomicAdd(x + at, 1.f);", 4),
    "atomic_that_compares": ("atomicCAS((unsigned long long*)(x + at), 1ull, 2ull);", 8),
    "atomic_of_a_vector": ("atomicAdd((float4*)(x + at), make_float4(1, 2, 3, 4));", 16),
    "memory_function": ("memset(x + at, 0, 16);", 16),
    "ptx_load": ('asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(keep) : "l"(x + at));', 4),
    "ptx_load_acquire": ('asm volatile("ld.acquire.gpu.global.f32 %0, [%1];" : "=f"(keep) : "l"(x + at));', 4),
    "ptx_store": ('asm volatile("st.global.f32 [%0], %1;" :: "l"(x + at), "f"(keep));', 4),
    "ptx_store_release": ('asm volatile("st.release.gpu.global.f32 [%0], %1;" :: "l"(x + at), "f"(keep));', 4),
    "cp_async": (
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.wait_all;" :: "r"(at_s), "l"(x + at));',
        16,
    ),
    "bulk_load": (
        'arrive_expecting(&bar, 64);\n    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::'
        'complete_tx::bytes [%0], [%1], 64, [%2];" :: "r"(at_s), "l"(x + at), "r"(shared_at(&bar)) : "memory"); '
        "wait(&bar, 0);",
        64,
    ),
    "bulk_store": (
        'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 32; cp.async.bulk.commit_group; '
        'cp.async.bulk.wait_group 0;" :: "l"(x + at), "r"(at_s) : "memory");',
        32,
    ),
    "reduction_by_copy": (
        'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 32; '
        'cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" :: "l"(x + at), "r"(at_s) : "memory");',
        32,
    ),
    "prefetch": ('asm volatile("prefetch.global.L2 [%0];" :: "l"(x + at));', 1),
    "bulk_prefetch": ('asm volatile("cp.async.bulk.prefetch.L2.global [%0], 64;" :: "l"(x + at));', 64),
}
BY = {
    "bulk_load": "a bulk copy",
    "bulk_store": "a bulk copy",
    "reduction_by_copy": "a reduction by copy",
    "prefetch": "a prefetch",
    "bulk_prefetch": "a prefetch",
}


@functools.cache
def ways():
    """All of them as kernels of one module, and its text."""
    shared_at = "__device__ unsigned shared_at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }"
    code = (
        HEAD
        + shared_at
        + "".join(
            f"""
extern "C" __global__ void {name}(float* x, int at) {{
    extern __shared__ __align__(128) float s[];
    __shared__ unsigned long long bar;
    float keep = 0;
    const unsigned at_s = shared_at(s);
    for (int i = 0; i < 16; i++) s[i] = 0;
    init(&bar, 1);
    asm volatile("fence.proxy.async;" ::: "memory");
    {text}
    s[0] = keep;
}}"""
            for name, (text, _) in WAYS.items()
        )
    )
    return RawModule(code=code), code.splitlines()


def touched(name, at):
    with sanitize() as report:
        ways()[0].get_function(name)((1,), (1,), (torch.zeros(16), np.int32(at)), shared_mem=64)
    return report


@all_of("name", WAYS)
def test_every_way_to_global_memory_has_bounds(name):
    """What is in bounds is no finding; what begins behind the array, before it or in its last bytes is one."""
    text, size = WAYS[name]
    assert not touched(name, 0).findings, str(touched(name, 0))
    for at in (20, -16, *([12] if size > 16 else [])):
        report = touched(name, at)
        assert {f.tool for f in report.findings} == {"memcheck"}, str(report)
        first = report.findings[0]
        assert (first.kind, first.array, first.bytes) == ("out of bounds", "x", size)
        assert first.by == BY.get(name, "")
        assert text.splitlines()[-1].strip() == ways()[1][first.line - 1].strip(), str(report)
